"""Write ``docs/choosing.md`` and its figure from the results of ``study.py``."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from hetcal._palette import FAINT, INK, PALETTE
from hetcal_paper.reproduction import reproduce
from hetcal_paper.rows import METHODS, first_row

__all__ = ["write"]

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAPER_RESULTS = ROOT / "paper" / "results"
Rows = list[dict[str, Any]]
#: Methods that never change a prediction, other than Auto itself and those that use groups.
DECISION_PRESERVING = (
    *("Identity", "TS", "Platt", "CTS", "CTS cv", "CTS bayes", "CTS, 5 bundles", "VS, kept"),
    *("CTS, Brier loss", "CTS, ECE loss"),
    *("class-wise Platt, Γ = 1", "class-wise Platt bayes", "class-wise isotonic"),
    *("scikit-learn, temperature", "netcal, temperature"),
)
#: Methods that use the groups; they have a table of their own.
GROUPED = ("TS by group", "TS by group, bayes", "Platt by group, bayes", "Auto by group")
#: Methods in the figure, with their colours.
COLOURS = {
    "TS": PALETTE["grey"],
    "CTS": PALETTE["vermilion"],
    "CTS bayes": PALETTE["blue"],
    "VS": PALETTE["orange"],
    "class-wise Platt bayes": PALETTE["purple"],
    "probmetrics SVS": PALETTE["sky"],
    "Auto": PALETTE["green"],
}
MARKERS = {
    "CTS": "v",
    "CTS bayes": "s",
    "VS": "^",
    "class-wise Platt bayes": "D",
    "probmetrics SVS": "X",
    "Auto": "o",
}
_STYLE = {
    "font.size": 10,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
}
#: Names of the methods of hetcal-paper that have other names in the study.
_STUDY_NAMES = {"Uncal": "Identity", "CTS-cv": "CTS cv", "CTS-bayes": "CTS bayes"}
_HEAD = """# Which calibrator when

This page recommends a calibrator for your situation. In most cases, use `AutoCalibrator()`. It is the default
of `hetcal fit`, of the report and of `CalibratedClassifier`. The table names a calibrator for each need. Most
of it is based on a study of {n_problems} problems, which the rest of the page describes.

| What you need | Calibrator |
| --- | --- |
| the best probabilities without changing predictions | `AutoCalibrator()` |
| a single, easily explained parameter | `TemperatureScaling()`; check which classes it leaves miscalibrated |
| one temperature per class | `ClassWiseTemperatureScaling("bayes")`; with many rows, omit `"bayes"` |
| a calibrated confidence only, not the other probabilities | `ClassWise(PlattScaling(), gamma="bayes")` |
| calibration within groups known for every row | `AutoCalibrator().fit(logits, labels, groups=groups)` |
| better probabilities; predictions may change | `AutoCalibrator(keep_decision=False)` ([results](arena.md)) |
| higher accuracy too, if classes are noisy or rare | `VectorScaling(0.01)`, which may change predictions |

Keeping predictions can be costly, for example if the model favours some classes. The attribute `advice_` of a
fitted `AutoCalibrator()` then recommends `keep_decision=False`. It says how many predictions a
calibrator without this restriction would change, and how log-loss and accuracy would change.
`hetcal fit` and the report show the same advice.

**The problems** come from five families:

- *CIFAR*: networks that we trained on clean data, on noisy labels and on few samples.
- *tables*: small data sets from scikit-learn, with 20% noise in the training labels of half of the classes.
- *synthetic*: random logits, with labels drawn from the probabilities that a known map gives.
- *groups*: synthetic logits and handwritten digits whose rows belong to known groups.
- *text*: the intents of CLINC150, with and without noise in the training labels.

**The protocol.** Methods are fitted on 10 to 500 rows per class on average, using at most half of the
rows, and evaluated on up to 5,000 other rows. We repeat this for {n_splits} random splits, which are the same
for all methods; *netcal, beta* and *probmetrics SMS* are run only on the first. Numbers after ± are standard
errors over problems and splits. Times are CPU times.

**The metrics.** *NLL* is the negative log-likelihood, also called log-loss. *ECE* is the expected calibration
error of all rows, and *max-ECE* is the largest ECE of a predicted class.

**The methods.**

- *Identity* is the uncalibrated model, *TS* is one temperature, and *Auto* is `AutoCalibrator`.
- *CTS* is one temperature per predicted class. [Γ](gamma.md) limits how much these temperatures may differ:
  Γ = ∞ is no limit, *cv* chooses Γ by cross-validation, and *bayes* shrinks the temperatures towards their
  mean instead. If a name contains none of these, Γ is ∞. *5 bundles* fits one temperature for each of five
  bundles of classes with similar gaps (confidence − accuracy).
- *VS* is vector scaling. *VS, ridge* is `VectorScaling(0.01)`. *VS, kept* also sets `center=True` and
  `keep_decision=True`, so that it changes no prediction.
- *Platt* is Platt scaling of the confidence, either for all rows or class-wise.
- *Dirichlet* is logistic regression on log-probabilities, as in Dirichlet calibration.
- Methods that start with the name of another library come from that library. *SVS* and *SMS* are structured
  vector and matrix scaling.

`python benchmarks/study.py --text DIR` runs the study and writes
[results/study.csv](../results/study.csv); DIR contains the folder `clinc150`. With `--page` it only
regenerates this page.
"""


_CAPTION = """\
*NLL of a method minus the NLL of one temperature on the same rows, for each family of problems: the mean and
its standard error over problems and splits. Methods below zero are better than one temperature. Points above
the top of a panel are not shown: with few rows, CTS and VS overfit.*
"""


_AUTO = """\
`AutoCalibrator` averages the probabilities of several candidates that keep all predictions. The weights
maximise the cross-validated likelihood, with a weak prior that is worth two rows for TS and one for every
other candidate. Candidates with a weight below 3% are dropped. If the gain over TS exceeds its standard
error, a final class-wise Platt step corrects the mixture. This step is fitted on out-of-fold predictions and
shrunk towards the identity. `candidates_` contains the score and the weight of every candidate.

*Design problems* are those that we used to design Auto at first; the other problems were evaluated
afterwards. Differences are *paired*: both methods are evaluated on the same rows. Negative differences mean
that Auto is better.
"""


_DESIGN_HISTORY = """\
**How Auto was designed.** We chose the first candidates and weights of Auto on the design problems only. The
other problems then showed synthetic cases in which the NLL of Auto was higher than that of TS. In these
cases one temperature is the true map, and fitting weights to few rows costs more than it gains. For a while,
we therefore shrank the weights towards TS if the gain could be due to chance. The
[comparison with other libraries](arena.md) showed that shrinking costs more on real data than it saves, so
the weights are no longer shrunk. We chose the current candidates and the prior on the design half of that
comparison. By then we had seen all problems of this study, so none of them is an independent test of these
choices.

Nor are these problems an independent test of the final step, the class-wise Platt scaling after the mixture.
We added this step because, with 10 bins, the max-ECE of Auto on table1 was no lower than that of VS. We chose
its form on the design problems and on two CIFAR-100 networks that are not part of the study. Outside the
design problems, the step did harm on problems that need only one temperature or no calibration. Auto
therefore applies at most a quarter of the fitted step. The less clear the gain of Auto over TS is, the
smaller the applied fraction is. We tried a quarter, a third and a half, and by NLL all three are equally good
on the design problems (`python benchmarks/last_step.py`). We chose a quarter, the most cautious of the three.
At that time, we had already seen the results of all three on the paper's tables."""

_MIN_SHARE = 0.9  # a mean over fewer of the problems and splits could not be compared with the other methods


def write(results: Path, docs: Path = DOCS) -> None:
    """Write the page and its figure."""
    with results.open(encoding="utf-8", newline="") as file:
        rows: Rows = [_parse(line) for line in csv.DictReader(file)]
    figure = _draw(rows)
    figure.savefig(docs / "images" / "choosing.png", dpi=200)
    plt.close(figure)
    n_splits = 1 + max(row["split"] for row in rows)
    head = _HEAD.format(n_problems=len({row["problem"] for row in rows}), n_splits=n_splits)
    parts = [
        head,
        "![NLL relative to one temperature, by rows per class](images/choosing.png)\n",
        _CAPTION,
        _by_size(rows),
        _by_family(rows),
        _on_some_runs(rows),
        _by_group(rows),
        _paper_tables(rows),
        _auto_section(rows),
        _losses(rows),
    ]
    (docs / "choosing.md").write_text("\n".join(parts), encoding="utf-8")


def _parse(line: dict[str, str]) -> dict[str, Any]:
    strings = ("problem", "family", "method")
    integers = ("design", "classes", "rows_per_class", "split")
    return {k: v if k in strings else int(v) if k in integers else float(v or "nan") for k, v in line.items()}


def _pairs(rows: Rows, metric: str) -> dict[tuple[Any, ...], dict[str, float]]:
    """Return the metric of every method, by problem, size and split."""
    pairs: dict[tuple[Any, ...], dict[str, float]] = defaultdict(dict)
    for row in rows:
        pairs[row["problem"], row["rows_per_class"], row["split"]][row["method"]] = row[metric]
    return pairs


def _names(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["method"] for row in rows if row["method"] not in GROUPED))


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    a = np.asarray(values)
    return float(a.mean()), float(a.std(ddof=1) / np.sqrt(len(a))) if len(a) > 1 else float("nan")


def _by_size(rows: Rows) -> str:
    sizes = sorted({row["rows_per_class"] for row in rows})
    lines = []
    for name in _names(rows):
        cells = [name]
        for size in sizes:
            pairs = list(_pairs([r for r in rows if r["rows_per_class"] == size], "nll").values())
            differences = [p[name] - p["TS"] for p in pairs if name in p]
            if len(differences) < _MIN_SHARE * len(pairs):
                cells.append("–")
                continue
            mean, error = _mean_and_error(differences)
            cells.append(f"{1000 * mean:+.0f} ± {1000 * error:.0f}")
        selected = [r for r in rows if r["method"] == name]
        if len(selected) < _MIN_SHARE * len(_pairs(rows, "nll")):
            cells += ["–", "–"]
        else:
            cells.append(f"{100 * np.mean([r['changed'] for r in selected]):.1f}%")
            cells.append(f"{1000 * np.median([r['seconds'] for r in selected]):.0f} ms")
        lines.append(cells)
    head = ["1000 × (NLL − NLL of TS)", *(f"{size} rows per class" for size in sizes)]
    return (
        "## By number of rows per class\n\nThe table shows the NLL minus the NLL of one temperature (TS). "
        "Negative values are better than one\ntemperature. Small data sets are missing from the columns with "
        "many rows, so compare the methods within a\ncolumn. A dash means that the method was run on fewer "
        "than 90% of the problems and splits. The last two columns show the mean share of changed\ndecisions "
        "and the median time.\n\n" + _table([*head, "decisions changed", "time to fit"], lines)
    )


def _by_family(rows: Rows) -> str:
    lines = []
    for name in _names(rows):
        cells = [name]
        for family in dict.fromkeys(row["family"] for row in rows):
            in_family = [r for r in rows if r["family"] == family]
            selected = [r for r in in_family if r["method"] == name]
            if len(selected) < _MIN_SHARE * len(_pairs(in_family, "nll")):
                cells += ["–", "–"]
                continue
            cells += [
                f"{100 * np.mean([r[m] - r[f'{m}_floor'] for r in selected]):.2f}" for m in ("ece", "max_ece")
            ]
        if set(cells[1:]) != {"–"}:
            lines.append(cells)
    head = ["Excess over the floor (points)"]
    for family in dict.fromkeys(row["family"] for row in rows):
        head += [f"{family}: ECE", "max-ECE"]
    return (
        "## Calibration error in excess of the noise floor\n\nThis table shows the calibration error with 15 "
        "bins minus its [noise floor](noise-floors.md), averaged\nover all problems of a family, all sizes "
        "and all splits. A dash means that the method was run on fewer than 90% of\nthem.\n\n"
        + _table(head, lines)
    )


def _on_some_runs(rows: Rows) -> str:
    """Compare the methods that were not run on all problems and splits with Auto on the same ones."""
    titles = {"nll": "NLL − NLL of TS", "ece": "ECE − ECE of TS", "max_ece": "max-ECE − max-ECE of TS"}
    runs = {metric: _pairs(rows, metric) for metric in titles}
    n_runs = len(runs["nll"])
    lines = []
    for name in _names(rows):
        shared = [key for key, values in runs["nll"].items() if name in values]
        if len(shared) >= _MIN_SHARE * n_runs:
            continue
        cells = [name, f"{len(shared)} of {n_runs}"]
        for values in runs.values():
            for method in (name, "Auto"):
                differences = [values[key][method] - values[key]["TS"] for key in shared]
                cells.append(f"{100 * np.mean(differences):+.2f}")
        lines.append(cells)
    head = ["100 × difference", "runs"]
    for title in titles.values():
        head += [title, "Auto"]
    return (
        "## Methods that were run on some of the problems\n\nSome methods were run on fewer than 90% of the "
        "problems and splits. This table compares each of them\nwith *Auto* on exactly the problems, sizes "
        "and splits on which it was run. Negative values are better than\none temperature (TS).\n\n"
        + _table(head, lines)
    )


def _by_group(rows: Rows) -> str:
    """Compare methods that use groups with methods that do not, on problems with groups."""
    grouped = [r for r in rows if r["family"] == "groups"]
    sizes = sorted({r["rows_per_class"] for r in grouped})
    lines = []
    for name in ("Identity", "TS", "CTS bayes", "Auto", *GROUPED):
        cells = [name]
        for size in sizes:
            selected = [r for r in grouped if r["rows_per_class"] == size]
            differences = [p[name] - p["TS"] for p in _pairs(selected, "nll").values()]
            worst = [r["worst_group"] for r in selected if r["method"] == name]
            cells += [f"{1000 * np.mean(differences):+.0f}", f"{100 * np.mean(worst):.1f}"]
        lines.append(cells)
    head = ["method"]
    for size in sizes:
        head += [f"{size} rows: NLL − TS", "worst group"]
    return (
        "## Data with groups\n\nThese problems are synthetic logits with one temperature for each of four "
        "groups, and handwritten digits\nin three groups by the amount of ink. In the training rows of the "
        "digits, one group has noisy labels and\none has few rows. The columns are 1000 × (NLL − NLL of TS) "
        "and the largest excess of a group's ECE over\nits floor, in points, by rows per class. The columns "
        "for 200 and 500 rows contain only the synthetic\nlogits.\n\n" + _table(head, lines)
    )


_PAPER_TABLES = """\
The paper that hetcal implements has two tables. This section evaluates the methods on [our
reproduction](reproduction/index.md) of both, with the paper's split. Numbers are averages over seeds. Methods
are fitted on the validation rows (50 per class in table1, 500 in table2) and evaluated on the test rows.
*Floor* and *excess* refer to max-ECE. The floor differs between methods because it depends on their
confidences.

*Splits* is the excess of max-ECE with 15 bins on other random splits of the same rows, with the same
number of rows per class to fit on. It says more about a method than the paper's single split, because a
maximum over classes is noisy. The splits cover {covered}.
"""


def _paper_tables(rows: Rows) -> str:
    """Evaluate the methods on the paper's own tables."""
    lines, covered = [], []
    for name, size in (("table1", 50), ("table2", 500)):
        reproduction = reproduce(name, PAPER_RESULTS)
        points = reproduction.selection.points if reproduction.selection else ()
        runs = {run for point in points for run in point.runs}
        n_split = len(runs & {row["problem"] for row in rows})
        covered.append(f"{n_split} of the {len(runs)} seeds of {name}")
        for method in (m for m in METHODS if first_row(reproduction.rows, method=m)):
            study_name = _STUDY_NAMES.get(method, method)
            cells = [f"{name}, {study_name}"]
            accuracy = first_row(reproduction.rows, method=method, metric="accuracy", half=None)
            cells.append(f"{100 * accuracy['mean']:.2f}")
            for bins in (10, 15):
                ece, worst = (
                    first_row(reproduction.rows, method=method, metric=metric, bins=bins, half=None)
                    for metric in ("ece", "max_ece")
                )
                excess = worst["mean"] - worst["floor"]
                cells += [f"{100 * v:.2f}" for v in (ece["mean"], worst["mean"], worst["floor"], excess)]
            selected = [r for r in rows if r["problem"] in runs and r["rows_per_class"] == size]
            selected = [r for r in selected if r["method"] == study_name]
            excesses = [100 * (r["max_ece"] - r["max_ece_floor"]) for r in selected]
            lines.append([*cells, "{:.2f} ± {:.2f}".format(*_mean_and_error(excesses)) if excesses else "–"])
    head = ["percent", "accuracy"]
    for bins in (10, 15):
        head += [f"{bins} bins: ECE", "max-ECE", "floor", "excess"]
    text = _PAPER_TABLES.format(covered=" and ".join(covered))
    return f"## On the paper's tables\n\n{text}\n" + _table([*head, "splits"], lines)


def _auto_section(rows: Rows) -> str:
    """Compare Auto with the other decision-preserving methods, problem by problem."""
    sentences = []
    for design, title in ((1, "Design problems"), (0, "Other problems")):
        selected = [r for r in rows if r["design"] == design]
        differences: dict[str, list[float]] = defaultdict(list)
        by_problem: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for (problem, _, _), values in _pairs(selected, "nll").items():
            for method in (name for name in DECISION_PRESERVING if name in values):
                by_problem[problem][method].append(values["Auto"] - values[method])
                differences[method].append(values["Auto"] - values[method])
        ts, cts = (_mean_and_error(differences[method]) for method in ("TS", "CTS"))
        others = [name for name in DECISION_PRESERVING if name not in ("TS", "CTS")]
        sentences.append(
            f"- **{title} ({len(by_problem)}).** The NLL of Auto minus the NLL of TS is {ts[0]:+.3f} ± "
            f"{ts[1]:.3f}. The NLL of Auto minus the NLL of CTS is {cts[0]:+.3f} ± {cts[1]:.3f}.\n"
            "  - Problems on which Auto is worse than TS or CTS by more than two paired standard errors: "
            f"{_worse(by_problem, ('TS', 'CTS'))}.\n"
            "  - Problems on which Auto is worse, by the same rule, than another method that keeps "
            "predictions: "
            f"{_worse(by_problem, others)}."
        )
    few = _pairs([r for r in rows if r["rows_per_class"] == 20], "nll").values()
    auto, cts = (_mean_and_error([p[name] - p["TS"] for p in few]) for name in ("Auto", "CTS"))
    changed = max(r["changed"] for r in rows if r["method"] == "Auto")
    sentences.append(
        f"- **With 20 rows per class,** the NLL minus the NLL of TS is {auto[0]:+.3f} ± {auto[1]:.3f} for "
        f"Auto and {cts[0]:+.3f} ± {cts[1]:.3f} for CTS with Γ = ∞."
    )
    sentences.append(f"- **Predictions changed by Auto:** {100 * changed:g}%.")
    parts = [
        "## How good is AutoCalibrator?\n",
        _AUTO,
        *sentences,
        f"\n{_DESIGN_HISTORY}\n",
    ]
    return "\n".join(parts)


def _worse(by_problem: dict[str, dict[str, list[float]]], methods: Sequence[str]) -> str:
    """List the problems on which Auto has a higher NLL than one of the methods, over sizes and splits."""
    worse = []
    for problem, differences in by_problem.items():
        for method in (name for name in methods if len(differences.get(name, [])) > 1):
            mean, error = _mean_and_error(differences[method])
            if mean > 2 * error:
                worse.append(f"{problem} ({mean:+.4f} ± {error:.4f} compared with {method})")
    return "; ".join(worse) or "none"


def _losses(rows: Rows) -> str:
    """Compare the losses that CTS can minimise."""
    names = ("CTS", "CTS, Brier loss", "CTS, ECE loss")
    small = [r for r in rows if r["classes"] <= 20 and r["method"] in names]
    sizes = sorted({r["rows_per_class"] for r in small})
    lines = []
    for name in names:
        cells = [name]
        for size in sizes:
            selected = [r for r in small if r["method"] == name and r["rows_per_class"] == size]
            cells += [
                f"{np.mean([r['nll'] for r in selected]):.3f}",
                f"{100 * np.mean([r['ece'] for r in selected]):.2f}",
            ]
        lines.append(cells)
    head = ["method"]
    for size in sizes:
        head += [f"{size} rows: NLL", "ECE"]
    return (
        "## Other losses\n\nThis table compares class-wise temperatures that minimise the NLL, the Brier "
        "score or the ECE, on problems\nwith up to 20 classes, by number of rows per class. The ECE is in "
        "percent and includes its noise floor. Compare\nthe methods within a column, because small data sets "
        "are missing from the last columns. A fit that minimises\nthe ECE overfits the sampling error of the "
        "rows it is fitted on.\n\n" + _table(head, lines)
    )


def _draw(rows: Rows) -> Any:
    families = list(dict.fromkeys(row["family"] for row in rows))
    n_columns = 3
    n_rows = -(-(len(families) + 1) // n_columns)  # one more panel for the legend
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(n_rows, n_columns, figsize=(9, 2.9 * n_rows), layout="constrained")
        for ax, family in zip(axes.flat, families, strict=False):
            _panel(ax, family, [r for r in rows if r["family"] == family])
        handles, labels = axes.flat[0].get_legend_handles_labels()
        for ax in axes.flat[len(families) :]:
            ax.axis("off")
        axes.flat[len(families)].legend(
            handles[::-1], labels[::-1], loc="center", frameon=False, fontsize=11, labelspacing=0.6
        )
        figure.supxlabel("rows per class (log scale)", fontsize=11)
        figure.supylabel("NLL − NLL of one temperature (lower is better)", fontsize=11)
    return figure


def _panel(ax: Axes, family: str, rows: Rows) -> None:
    """Draw the difference from one temperature of every method of the figure, on one family of problems."""
    sizes = sorted({r["rows_per_class"] for r in rows})
    ax.axhline(0, color=COLOURS["TS"], linewidth=1.8, label="TS (one temperature)")
    for name in (name for name in COLOURS if name != "TS"):
        means, errors = [], []
        for size in sizes:
            pairs = _pairs([r for r in rows if r["rows_per_class"] == size], "nll").values()
            differences = [p[name] - p["TS"] for p in pairs if name in p] or [np.nan]
            mean, error = _mean_and_error(differences)
            means.append(mean)
            errors.append(error)
        is_auto = name == "Auto"
        ax.errorbar(
            sizes, means, errors, color=COLOURS[name], label=name, marker=MARKERS[name],
            markersize=6 if is_auto else 5, linewidth=2.8 if is_auto else 1.4, elinewidth=1,
            zorder=3 if is_auto else 2,
        )  # fmt: skip
    ax.set_xscale("log")
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.minorticks_off()
    low = min(-0.02, 1.25 * _lowest(rows))
    ax.set_ylim(low, -low)
    ax.yaxis.set_major_locator(MaxNLocator(5))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:+.2f}".replace("-", "−") if value else "0")
    ax.grid(axis="y", color=FAINT, linewidth=0.7)
    ax.set_axisbelow(True)
    ax.set_title(family, loc="left")


def _lowest(rows: Rows) -> float:
    """Return the lowest mean difference from TS over the methods of the figure and all sizes."""
    lowest = 0.0
    for size in {r["rows_per_class"] for r in rows}:
        pairs = _pairs([r for r in rows if r["rows_per_class"] == size], "nll").values()
        for name in COLOURS:
            differences = [p[name] - p["TS"] for p in pairs if name in p]
            lowest = min(lowest, float(np.mean(differences))) if differences else lowest
    return lowest


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    body = [head, ["---", *["---:"] * (len(head) - 1)], *lines]
    return "".join("| " + " | ".join(line) + " |\n" for line in body)
