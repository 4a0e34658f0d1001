"""Sections that compare the methods of a sweep with temperature scaling (TS).

A sweep is a figure with several noise or sampling rates. One section is about the runs of the sweep. Another
is about runs at the same rates with the network of the paper, if the sweep uses a smaller one. A table shows
how much class-wise temperatures can correct. All findings are generated from the results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hetcal_paper.claims import Comparison, paired_difference
from hetcal_paper.evaluate_run import BINS
from hetcal_paper.intervals import SeedInterval
from hetcal_paper.notes import validation_rows
from hetcal_paper.published import ITEMS
from hetcal_paper.reproduction import Reproduction
from hetcal_paper.rows import Point, Selection, measured_everywhere
from hetcal_paper.runs import parse, with_default_recipe
from hetcal_paper.tables import METRIC_NAMES, NONE, join_words, markdown_table, percent, seed_columns
from hetcal_paper.training_page import means_over_runs, network_name

__all__ = ["compare_networks", "compare_with_ts"]

_BASELINE = "TS"
_METRICS = ("ece", "max_ece")
_PAPER = ("Uncal", "VS", "TS", "CTS")

_INTRODUCTION = """\
The claims of the paper are about `CTS`, with Γ = ∞. The following tables also contain {methods}. They show
the ECE or max-ECE of each method minus that of TS. Both values come from the same runs: a method that was
evaluated on fewer runs is compared with TS on these runs only. The differences are means over the seeds, in
percentage points, with 95% intervals. A negative difference means that the method is better than TS."""


@dataclass(frozen=True)
class _Cell:
    """The paired difference between a method and TS at one rate."""

    method: str
    metric: str
    bins: int
    rate: float
    interval: SeedInterval


@dataclass(frozen=True)
class _Heterogeneity:
    """What class-wise temperatures can correct at one rate, and how precisely they are estimated.

    Attributes
    ----------
    rate : float
    spread : float or None
        Standard deviation of log T over the classes, as estimated by CTS-bayes; None if no run has it. T is
        the temperature of a class.
    error : float or None
        Standard error of log T, as estimated by CTS (median over the classes); None if no run has it.
    n_at_bound : float or None
        Number of classes whose T, fitted by CTS, is at a bound of its range; None if no run has it.
    ece, avg_ece : float
        ECE and Avg-ECE of TS minus their noise floors, the values to expect of a perfectly calibrated model.
    low, high : float
        Confidence − accuracy of the uncalibrated network on the first and on the second half of the classes.
    """

    rate: float
    spread: float | None
    error: float | None
    n_at_bound: float | None
    ece: float
    avg_ece: float
    low: float
    high: float

    @property
    def ratio(self) -> float | None:
        """Spread divided by error; None if either is None or the error is 0."""
        return None if self.spread is None or not self.error else self.spread / self.error


def compare_with_ts(item: Reproduction) -> str:
    """Return the section that compares other methods with TS at every rate of a sweep.

    The methods are CTS and those methods that are not in the paper. A method that was not evaluated at every
    rate is left out. The section is empty if the table or figure is not a sweep, or if no method that is not
    in the paper remains.
    """
    selection = item.selection
    if selection is None or selection.kind not in ("noise", "size"):
        return ""
    methods = [m for m in measured_everywhere(selection) if m not in ("Uncal", "VS", _BASELINE)]
    if set(methods) <= set(_PAPER):
        return ""
    cells = _differences(selection, methods)
    ours = join_words([f"`{method}`" for method in methods if method not in _PAPER])
    parts = [
        "## All methods compared with TS",
        _INTRODUCTION.format(methods=ours),
        _summary_table(cells, methods),
        _summary(cells, methods),
    ]
    parts += [_table(selection, cells, methods, metric, bins) for metric in _METRICS for bins in BINS]
    parts.append(_explain(selection, cells))
    return "\n\n".join(part for part in parts if part)


def compare_networks(item: Reproduction) -> str:
    """Return the section that compares other methods with TS on runs with the default recipe.

    The default recipe uses the network of the paper. The section is empty if the table or figure is not a
    sweep, if the sweep itself uses the default recipe, or if the results contain no runs with that recipe at
    the rates of the sweep.
    """
    if item.selection is None or item.selection.kind not in ("noise", "size"):
        return ""
    default = _with_default_recipe(item.selection)
    if not default.points:
        return ""
    methods = ["CTS", "CTS-cv", "CTS-bayes", "Auto"]
    cells = _differences(default, methods)
    first, other = item.selection.present[0].run, default.points[0].run
    parts = [
        f"## With {network_name(other)}",
        _NETWORK_INTRODUCTION.format(
            paper=network_name(other),
            ours=network_name(first),
            rates=join_words([percent(rate) for rate in _rates(default)]),
        ),
        _count_lower(default, cells),
        *(_table(default, cells, methods, metric, bins) for metric in _METRICS for bins in BINS),
        _recipe_table(item.selection, default),
    ]
    return "\n\n".join(part for part in parts if part)


def _with_default_recipe(selection: Selection) -> Selection:
    """Select the runs of the default recipe at the rates of a sweep that has another recipe."""
    points = []
    for point in _points(selection):
        default = with_default_recipe(point.run)
        same = [name for name in selection.results.runs if replace(parse(name), seed=default.seed) == default]
        if default != point.run and same:
            points.append(Point(default, tuple(same), ()))
    choice = points[0].run.choice if points else selection.choice
    return Selection(selection.name, selection.results, tuple(points), choice)


def _count_lower(selection: Selection, cells: Sequence[_Cell]) -> str:
    """State at which rates CTS has lower errors than TS with both numbers of bins.

    Noise rate 0 is left out, because the paper makes no claim about it.
    """
    rates = [rate for rate in _rates(selection) if rate > 0 or selection.kind != "noise"]
    if not rates:
        return ""
    parts = []
    for metric in _METRICS:
        selected = _select(cells, "CTS", metric)
        higher = {cell.rate for cell in selected if cell.interval.mean >= 0}
        lower = [percent(rate) for rate in rates if rate in {c.rate for c in selected} - higher]
        where = f"at {join_words(lower)}" if lower else "at none of these rates"
        parts.append(f"its {METRIC_NAMES[metric]} is lower {where}")
    return (
        f"These are the results of CTS (means over seeds) compared with TS, with both {BINS[0]} and "
        f"{BINS[1]} bins: {join_words(parts)}."
    )


def _recipe_table(selection: Selection, default: Selection) -> str:
    """Compare the runs of a sweep with those of the default recipe at the same rates."""
    lines = []
    for point in default.points:
        rate = point.rate(selection.kind)
        (ours,) = (other for other in selection.present if other.rate(selection.kind) == rate)
        for same in (ours, point):
            numbers = means_over_runs(selection.results, same.runs, same.run.choice, _METRICS)
            lines.append([percent(rate), network_name(same.run), str(len(same.runs)), *numbers])
    low, high = ITEMS[selection.name].low, ITEMS[selection.name].high
    head = [_rate_label(selection), "Network", "seeds", "accuracy", low, high]
    head += [f"{method} {METRIC_NAMES[m]}" for m in _METRICS for method in ("Uncal", "TS", "CTS")]
    text = _RECIPES.format(low=low, high=high, bins=BINS[-1])
    return f"{text}\n\n{markdown_table(head, lines)}"


def _differences(selection: Selection, methods: Sequence[str]) -> list[_Cell]:
    cells = []
    for metric in _METRICS:
        for bins in BINS:
            for method in methods:
                for rate in _rates(selection):
                    comparison = Comparison(metric, method, _BASELINE, bins=bins, rate=rate)
                    interval = paired_difference(selection, comparison)
                    if interval is not None:
                        cells.append(_Cell(method, metric, bins, rate, interval))
    return cells


def _select(cells: Iterable[_Cell], method: str, metric: str, bins: int | None = None) -> list[_Cell]:
    return [
        cell for cell in cells if (cell.method, cell.metric) == (method, metric) and bins in (None, cell.bins)
    ]


def _summary_table(cells: Sequence[_Cell], methods: Sequence[str]) -> str:
    """Count the rates at which each method is better than TS.

    Also name the rates at which the interval of the difference is entirely negative or entirely positive.
    """
    lines = []
    for metric in _METRICS:
        for method in methods:
            for bins in BINS:
                selected = _select(cells, method, metric, bins)
                lower = [cell for cell in selected if cell.interval.mean < 0]
                clear = [_clear(selected, sign) for sign in (-1, 1)]
                name = f"{method} − {_BASELINE} in {METRIC_NAMES[metric]}, {bins} bins"
                lines.append([name, f"{len(lower)} of {len(selected)}", *clear])
    head = [
        "Difference",
        "rates where it is negative",
        "interval entirely negative",
        "interval entirely positive",
    ]
    return markdown_table(head, lines)


def _clear(cells: Sequence[_Cell], sign: int) -> str:
    """Name the rates at which the whole interval has the given sign; ``none`` if there are none."""
    return ", ".join(percent(cell.rate) for cell in cells if _is_clear(cell, sign)) or "none"


def _is_clear(cell: _Cell, sign: int) -> bool:
    low, high = cell.interval.low, cell.interval.high
    return low is not None and high is not None and sign * low > 0 and sign * high > 0


def _summary(cells: Sequence[_Cell], methods: Sequence[str]) -> str:
    """State which methods have lower errors than TS at every rate, and which are nowhere clearly worse."""
    sentences = [_sentence(cells, methods, metric) for metric in _METRICS]
    worse = {cell.method for cell in cells if _is_clear(cell, 1)}
    safe = [f"`{method}`" for method in methods if method not in worse]
    if safe:
        sentences.append(f"No interval of {join_words(safe)} is entirely positive.")
    sentences.append("If a method does not differ from TS, about 5% of its intervals exclude zero by chance.")
    return " ".join(sentences)


def _sentence(cells: Sequence[_Cell], methods: Sequence[str], metric: str) -> str:
    everywhere, exceptions = [], []
    for method in methods:
        not_lower = {cell.rate for cell in _select(cells, method, metric) if cell.interval.mean >= 0}
        if not_lower:
            rates = join_words([percent(rate) for rate in sorted(not_lower)])
            exceptions.append(f"`{method}` at {rates}")
        else:
            everywhere.append(f"`{method}`")
    label = METRIC_NAMES[metric]
    subject = f"only {join_words(everywhere)}" if everywhere and exceptions else join_words(everywhere)
    verb = "has" if len(everywhere) < 2 else "have"
    text = (
        f"{subject or 'no method'} {verb} a lower mean {label} than TS at every rate with both {BINS[0]} "
        f"and {BINS[1]} bins"
    )
    text = f"{text[0].upper()}{text[1:]}."
    if not exceptions:
        return text
    listed = "; ".join(exceptions)
    return (
        f"{text} With {BINS[0]} bins, {BINS[1]} bins or both, the mean is no lower than that of TS in these "
        f"cases: {listed}."
    )


def _table(
    selection: Selection, cells: Sequence[_Cell], methods: Sequence[str], metric: str, bins: int
) -> str:
    rates = _rates(selection)
    columns = {m: {cell.rate: cell for cell in _select(cells, m, metric, bins)} for m in methods}
    seeds = seed_columns(
        {
            m: [column[rate].interval.n if rate in column else 0 for rate in rates]
            for m, column in columns.items()
        }
    )
    lines = [
        [
            percent(rate),
            *(_difference(column.get(rate)) for column in columns.values()),
            *(numbers[i] for numbers in seeds.values()),
        ]
        for i, rate in enumerate(rates)
    ]
    label = METRIC_NAMES[metric]
    head = [f"{label}, {bins} bins", *(f"{m} − {_BASELINE}" for m in methods), *seeds]
    return markdown_table(head, lines)


def _difference(cell: _Cell | None) -> str:
    if cell is None:
        return NONE
    interval = cell.interval
    mean = f"{100 * interval.mean:+.2f}"
    if interval.low is None or interval.high is None:
        return mean
    return f"{mean} ({100 * interval.low:+.2f} to {100 * interval.high:+.2f})"


def _explain(selection: Selection, cells: Sequence[_Cell]) -> str:
    """Compare the spread of the temperatures between classes with the error of their estimates."""
    numbers = [_heterogeneity(selection, point) for point in _points(selection)]
    low, high = ITEMS[selection.name].low, ITEMS[selection.name].high
    head = [_rate_label(selection), "spread of log T", "error of log T", "ratio", "classes at a bound"]
    head += ["TS ECE − floor", "TS Avg-ECE − floor", low, high]
    lines = [
        [
            percent(n.rate),
            *(NONE if value is None else f"{value:.3f}" for value in (n.spread, n.error)),
            *(NONE if value is None else f"{value:.1f}" for value in (n.ratio, n.n_at_bound)),
            *(f"{100 * value:+.2f}" for value in (n.ece, n.avg_ece)),
            *(f"{100 * value:+.1f}" for value in (n.low, n.high)),
        ]
        for n in numbers
    ]
    rows = validation_rows(selection)
    parts = [_EXPLANATION.format(rows=rows, bins=BINS[0], low=low, high=high), markdown_table(head, lines)]
    return "\n\n".join([*parts, _conclusion(selection, numbers, cells)]).strip()


def _heterogeneity(selection: Selection, point: Point) -> _Heterogeneity:
    results, choice = selection.results, selection.choice

    def fitted(metric: str, method: str) -> float | None:
        runs = [run for run in point.runs if results.has(run, method, choice, metric)]
        return (
            float(np.mean([results.value(r, metric, method=method, choice=choice)[0] for r in runs]))
            if runs
            else None
        )

    def excess(metric: str) -> float:
        pairs = [results.value(r, metric, method=_BASELINE, bins=BINS[0], choice=choice) for r in point.runs]
        return float(np.mean([value - floor for value, floor in pairs]))

    gaps = (
        float(np.mean([results.value(run, "gap", half=half, choice=choice)[0] for run in point.runs]))
        for half in ("low", "high")
    )
    return _Heterogeneity(
        point.rate(selection.kind),
        fitted("log_t_spread", "CTS-bayes"),
        fitted("log_t_error", "CTS"),
        fitted("n_at_bound", "CTS"),
        excess("ece"),
        excess("avg_ece"),
        *gaps,
    )


def _conclusion(selection: Selection, numbers: Sequence[_Heterogeneity], cells: Sequence[_Cell]) -> str:
    """State where the error of the temperatures exceeds their spread, and why CTS is not better than TS.

    Explanations that the results do not support are left out.
    """
    uncertain = [percent(n.rate) for n in numbers if n.ratio is not None and n.ratio < 1]
    sentences = []
    if uncertain:
        sentences.append(
            f"The error exceeds the spread at {join_words(uncertain)}. There, one temperature for all "
            "classes is closer to the true temperatures of the classes, on average, than separate estimates."
        )
    sentences += [_explain_ece(selection, numbers, cells), _explain_max_ece(selection, numbers, cells)]
    return " ".join(sentence for sentence in sentences if sentence)


def _split(
    numbers: Sequence[_Heterogeneity], cells: Sequence[_Cell], metric: str
) -> tuple[list[_Heterogeneity], list[_Heterogeneity]]:
    """Split the rates above 0 into those at which CTS is not better than TS, and those at which it is.

    Noise rate 0 is left out, because the paper makes no claim about it.
    """
    failing = {cell.rate for cell in _select(cells, "CTS", metric) if cell.interval.mean >= 0}
    claimed = [n for n in numbers if n.rate > 0]
    return [n for n in claimed if n.rate in failing], [n for n in claimed if n.rate not in failing]


def _name_rates(selection: Selection, worse: Sequence[_Heterogeneity], metric: str) -> tuple[str, str]:
    """Return a phrase for the rates at which CTS is not better than TS, and one for the other rates."""
    rates = join_words([percent(n.rate) for n in worse])
    return (
        f"at {rates}, where `CTS` does not have lower {METRIC_NAMES[metric]} than TS",
        f"at the other rates{' above 0' if selection.kind == 'noise' else ''}",
    )


def _explain_ece(selection: Selection, numbers: Sequence[_Heterogeneity], cells: Sequence[_Cell]) -> str:
    """Explain why the ECE of CTS is not lower than that of TS at some rates.

    The explanations are uncertain temperatures and a small ECE of TS. The text is empty if the results
    support neither.
    """
    worse, better = _split(numbers, cells, "ece")
    if not worse or not better:
        return ""
    rates, others = _name_rates(selection, worse, "ece")
    sentences = []
    small, large = ([n.ratio for n in group if n.ratio is not None] for group in (worse, better))
    if small and large and max(small) < min(large):
        sentences.append(
            f"The spread is at most {max(small):.1f} times the error {rates}, and at least {min(large):.1f} "
            f"times the error {others}."
        )
    most, least = max(n.ece for n in worse), min(n.ece for n in better)
    if most < least:
        sentences.append(
            f"The ECE of TS exceeds its floor by at most {100 * most:.2f} points {rates}, and by at least "
            f"{100 * least:.2f} points {others}."
        )
    return " ".join(sentences)


def _explain_max_ece(selection: Selection, numbers: Sequence[_Heterogeneity], cells: Sequence[_Cell]) -> str:
    """Explain why the max-ECE of CTS is not lower than that of TS at some rates.

    The explanation is that temperatures are at a bound of their range. The text is empty if the results do
    not support it.
    """
    worse, better = _split(numbers, cells, "max_ece")
    many, few = ([n.n_at_bound for n in group if n.n_at_bound is not None] for group in (worse, better))
    if not many or not few or min(many) <= max(few):
        return ""
    rates, others = _name_rates(selection, worse, "max_ece")
    fewer = f"at most {max(few):.1f} classes" if max(few) else "no class"
    return (
        f"{rates[0].upper()}{rates[1:]}, the temperatures of at least {min(many):.1f} classes are at a bound "
        f"(mean over the seeds), compared with {fewer} {others}. With Γ = ∞, this happens, for example, if "
        "the few validation rows that are predicted as a class are all correct."
    )


def _points(selection: Selection) -> list[Point]:
    return sorted(selection.present, key=lambda point: point.rate(selection.kind))


def _rates(selection: Selection) -> list[float]:
    return [point.rate(selection.kind) for point in _points(selection)]


def _rate_label(selection: Selection) -> str:
    return "Noise rate" if selection.kind == "noise" else "Sampling rate"


_NETWORK_INTRODUCTION = """\
The paper trains {paper}. The runs above use {ours}, which takes much less time to train. The results also
contain runs of {paper} with [the default recipe](training.md) at {rates}. The following tables show the
differences from TS for these runs, in percentage points. A single seed has no interval."""
_RECIPES = """\
The last table compares the two networks. Numbers are means over seeds, in percent, with {bins} bins. Each
run is evaluated at its epoch with the best validation accuracy (up to the end of training or to early
stopping). The columns “{low}” and “{high}” show confidence − accuracy of the uncalibrated network by true
class, in points."""
_EXPLANATION = """\
The following table shows how much class-wise temperatures T can correct, and how precisely they are
estimated. A class has only {rows} validation rows on average. The *spread of log T* is the standard deviation
of the true values of log T over the classes, as estimated by `CTS-bayes`. The *error of log T* is the median
over the classes of the standard error of log T with Γ = ∞. *Ratio* is the spread divided by the error.
*Classes at a bound* counts the classes whose T, with Γ = ∞, is at a bound of its range. These four columns
use only the runs with all methods; the other columns use all runs. The ECE and Avg-ECE of TS are given in
percentage points above their noise floors, with {bins} bins. The columns “{low}” and “{high}” show
confidence − accuracy of the uncalibrated network by true class, in points."""
