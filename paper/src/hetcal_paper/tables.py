"""Markdown tables of our numbers, with the published numbers beside them where the paper has any."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hetcal_paper.evaluate_run import BINS
from hetcal_paper.published import ITEMS
from hetcal_paper.rows import METHODS, Row, class_names, first_row
from hetcal_paper.runs import runs_for

if TYPE_CHECKING:
    from hetcal_paper.claims import Claim

__all__ = [
    "LABELS",
    "METRIC_NAMES",
    "NONE",
    "claims_to_markdown",
    "class_tables",
    "count_seeds",
    "differences",
    "example_tables",
    "few_label",
    "half_tables",
    "join_words",
    "largest_distances",
    "markdown_table",
    "mean_and_std",
    "method_tables",
    "percent",
    "sampling_tables",
    "seed_columns",
    "signed_interval",
    "sweep_tables",
    "training_tables",
]

#: Names of the metrics in headings and labels.
LABELS = {"accuracy": "Accuracy", "ece": "ECE", "max_ece": "max-ECE", "avg_ece": "Avg-ECE"}
#: Names of the metrics within a sentence.
METRIC_NAMES = {
    "accuracy": "accuracy",
    "confidence": "confidence",
    "gap": "confidence − accuracy",
    "ece": "ECE",
    "max_ece": "max-ECE",
    "avg_ece": "Avg-ECE",
    "class_ece": "ECE",
    "error": "error by predicted class",
    "error_true": "error by true class",
}
#: Text of a cell without a number.
NONE = "–"
_COMPARED = ("accuracy", "confidence", "gap", "ece", "max_ece")
_CLASS_METRICS = {
    "avg_ece": "ECE by predicted class",
    "error": "error by predicted class",
    "error_true": "error by true class",
}
_HALVES: dict[str, dict[str, object]] = {"low": {"half": "low"}, "high": {"half": "high"}}


def claims_to_markdown(claims: Sequence[Claim]) -> str:
    """Return a Markdown table of the claims, or a sentence if there are none."""
    if not claims:
        return "The available runs are not sufficient to check the claims of the paper."
    return markdown_table(
        ["Claim of the paper", "Here", "Our numbers (percent)"],
        [[claim.text, "holds" if claim.holds else "**does not hold**", claim.evidence] for claim in claims],
        numbers=False,
    )


def differences(rows: Sequence[Row]) -> str:
    """Describe the largest differences from the published numbers, and list the cells with large differences.

    A cell is listed if both numbers have a standard deviation and the difference exceeds two combined
    standard deviations, ``2 * sqrt(std**2 + paper_std**2)``.
    """
    compared = [
        row for row in rows if row["paper"] is not None and row.get("paper_std") and row["std"] is not None
    ]
    far: dict[str, str] = {}
    for row in compared:
        difference = row["mean"] - row["paper"]
        if abs(difference) > 2 * math.hypot(row["std"], row["paper_std"]):
            bins = "" if row["metric"] == "accuracy" else f", {row['bins']} bins"
            far.setdefault(f"{row['method']} {LABELS[row['metric']]}{bins}", f"{100 * difference:+.2f}")
    largest = _largest(rows)
    if not compared:
        return largest
    if not far:
        return f"{largest} No comparison differs by more than two combined standard deviations."
    cells = "; ".join(f"{cell} ({value})" for cell, value in far.items())
    n = len({(row["method"], row["metric"], row["metric"] != "accuracy" and row["bins"]) for row in compared})
    return (
        f"{largest} The paper does not state its number of bins, so its errors are compared with ours for "
        f"each number. {len(far)} of {n} comparisons "
        f"{'differs' if len(far) == 1 else 'differ'} by more than two "
        f"combined standard deviations (ours − paper, in points): {cells}."
    )


def largest_distances(rows: Sequence[Row]) -> dict[str, float]:
    """Return the largest distance from the published numbers for each metric in ``_COMPARED``.

    Distances are fractions, not percentages. Metrics without published numbers are left out.
    """
    distances: dict[str, float] = {}
    for row in rows:
        metric = row["metric"]
        if row["paper"] is not None and metric in _COMPARED:
            distances[metric] = max(distances.get(metric, 0.0), abs(row["mean"] - row["paper"]))
    return distances


def _largest(rows: Sequence[Row]) -> str:
    """Describe the largest distance from the paper for each metric; empty if the paper prints no numbers."""
    distances = largest_distances(rows)
    if not distances:
        return ""
    parts = ", ".join(f"{100 * value:.1f} in {METRIC_NAMES[metric]}" for metric, value in distances.items())
    return f"Largest distance from the paper, in points: {parts}."


def markdown_table(head: Sequence[str], lines: Sequence[Sequence[str]], *, numbers: bool = True) -> str:
    """Return a Markdown table; with ``numbers``, all columns but the first are right-aligned."""
    rule = ["---"] + ["---:" if numbers else "---"] * (len(head) - 1)
    if any(len(line) != len(head) for line in lines):
        raise ValueError(
            f"lines must have {len(head)} cells like the head, got {sorted({len(c) for c in lines})}; "
            "add or remove cells"
        )
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, rule, *lines])


def mean_and_std(row: Mapping[str, Any] | None, *, digits: int = 2, signed: bool = False) -> str:
    """Format the mean ± standard deviation of a row in percent.

    Without a standard deviation, the result is the mean alone. Without a row or a mean, it is a dash.
    """
    if row is None or row["mean"] is None:
        return NONE
    mean = f"{100 * row['mean']:{'+' if signed else ''}.{digits}f}"
    return mean if row["std"] is None else f"{mean} ± {100 * row['std']:.{digits}f}"


def method_tables(name: str, rows: Sequence[Row]) -> list[str]:
    """Return a table of the methods for each number of bins, and then a table of the uncalibrated model.

    The last table compares the two halves of the classes.
    """
    tables = []
    present = [m for m in METHODS if first_row(rows, method=m)]
    seeds = _seeds(rows)
    for bins in BINS:
        head = [f"{bins} bins, {seeds}"]
        for metric, label in LABELS.items():
            head += [label, *([] if metric == "accuracy" else ["floor"])]
            head += [] if metric == "avg_ece" else ["paper"]
        lines = []
        for method in present:
            line = [method]
            for metric in LABELS:
                row = first_row(rows, method=method, metric=metric, bins=bins, half=None)
                line += [mean_and_std(row), *([] if metric == "accuracy" else [_floor(row)])]
                line += [] if metric == "avg_ece" else [_paper(row)]
            lines.append(line)
        tables.append(markdown_table(head, lines))
    return [*tables, _gap_table(name, rows, _HALVES)]


def training_tables(name: str, rows: Sequence[Row]) -> list[str]:
    """Return a list with one table for networks with clean, noisy and small training sets."""
    labels = {"clean": "clean data", "noise": "30% label noise on all classes", "few": few_label(name)}
    keys = {label: {"training": t} for t, label in labels.items() if first_row(rows, training=t)}
    return [_gap_table(name, rows, keys, ece=True)]


def sampling_tables(name: str, rows: Sequence[Row]) -> list[str]:
    """Return a list with one table for networks with training sets of different sizes."""
    rates = sorted({row["rate"] for row in rows})
    return [_gap_table(name, rows, {f"{100 * rate:g}%": {"rate": rate} for rate in rates}, ece=True)]


def half_tables(name: str, rows: Sequence[Row]) -> list[str]:
    """Return a list with one table, which compares the two halves of the classes.

    Each test row belongs to the half that contains its true class.
    """
    return [_gap_table(name, rows, _HALVES, ece=True)]


def _gap_table(
    name: str, rows: Sequence[Row], keys: Mapping[str, Mapping[str, object]], *, ece: bool = False
) -> str:
    """Return a table of the confidence and accuracy of the uncalibrated model, and of their difference.

    Published numbers, if any, are next to ours. With ``ece``, the table also contains the ECE and its noise
    floor. If the table compares the halves of the classes, each test row belongs to the half of its true
    class.
    """
    names = {"low": ITEMS[name].low, "high": ITEMS[name].high}
    printed = any(row["paper"] is not None for row in rows if row["metric"] == "gap")
    by = ", by true class" if keys is _HALVES else ""
    sizes = any("rate" in key for key in keys.values())
    seeds = _seeds([row for row in rows if row["metric"] == "gap"], as_range=True)
    head = [f"Training rows (uncalibrated, {seeds})" if sizes else f"Uncalibrated{by}, {seeds}"]
    for label in ("Confidence", "Accuracy", "Confidence − accuracy"):
        head += [label, *(["paper"] if printed else [])]
    head += ["95% interval", *(["ECE (15 bins)", "floor"] if ece else [])]
    lines = []
    for label, key in keys.items():
        line = [names.get(label, label)]
        for metric in ("confidence", "accuracy", "gap"):
            row = first_row(rows, metric=metric, method="Uncal", bins=None, **key)
            line += [mean_and_std(row, digits=1, signed=metric == "gap")]
            line += [_paper(row, digits=1, signed=metric == "gap")] if printed else []
        line.append(signed_interval(first_row(rows, metric="gap", **key)))
        if ece:
            row = first_row(rows, metric="ece", bins=BINS[-1], **key)
            line += [mean_and_std(row), _floor(row)]
        lines.append(line)
    return markdown_table(head, lines)


def sweep_tables(name: str, rows: Sequence[Row]) -> list[str]:
    """Return one table per metric and number of bins, with one line per noise or sampling rate.

    The last columns contain numbers of seeds. Methods with the same numbers of seeds share a column.
    """
    label = "Noise rate" if ITEMS[name].kind == "noise" else "Sampling rate"
    methods = [m for m in METHODS if first_row(rows, method=m, metric="ece")]
    rates = sorted({row["rate"] for row in rows})
    seeds = seed_columns({m: _seeds_by_rate(rows, m, rates) for m in methods})
    tables = []
    for metric in [m for m in ("max_ece", "ece", "avg_ece") if first_row(rows, metric=m)]:
        for bins in BINS:
            head = [label, *(f"{m} {LABELS[metric]}" for m in methods), f"CTS floor ({bins} bins)", *seeds]
            lines = []
            for i, rate in enumerate(rates):
                cells = {
                    m: first_row(rows, method=m, metric=metric, bins=bins, rate=rate, half=None)
                    for m in methods
                }
                line = [*map(mean_and_std, cells.values()), _floor(cells.get("CTS"))]
                lines.append([f"{100 * rate:g}%", *line, *(column[i] for column in seeds.values())])
            tables.append(markdown_table(head, lines))
    return tables


def percent(rate: float) -> str:
    """Format a noise or sampling rate in percent, such as ``30%``."""
    return f"{100 * rate:g}%"


def seed_columns(counts: Mapping[str, Sequence[int]]) -> dict[str, list[str]]:
    """Return columns with the numbers of seeds of each method, as a dictionary with headings as keys.

    Methods with the same numbers share a column. Zero is shown as a dash.

    Examples
    --------
    >>> seed_columns({"TS": [5, 5], "CTS": [5, 5], "Auto": [3, 0]})
    {'seeds (TS, CTS)': ['5', '5'], 'seeds (Auto)': ['3', '–']}
    """
    groups: dict[tuple[int, ...], list[str]] = {}
    for method, numbers in counts.items():
        groups.setdefault(tuple(numbers), []).append(method)
    return {
        "seeds" if len(groups) == 1 else f"seeds ({', '.join(methods)})": [str(n or NONE) for n in numbers]
        for numbers, methods in groups.items()
    }


def _seeds_by_rate(rows: Sequence[Row], method: str, rates: Sequence[float]) -> list[int]:
    cells = (first_row(rows, method=method, metric="ece", rate=rate, half=None) for rate in rates)
    return [0 if cell is None else cell["n"] for cell in cells]


def class_tables(name: str, rows: Sequence[Row]) -> list[str]:
    """Return three tables.

    The first contains means over the classes of each half. The second compares the uncalibrated model on the
    two halves. The third contains the ECE of individual classes and, for the uncalibrated model, their
    confidence − accuracy.
    """
    bins = BINS[-1]
    present = [m for m in METHODS if first_row(rows, method=m, metric="avg_ece")]
    head = [f"Mean over classes, {bins} bins, {_seeds(rows)}", *present, "floor (CTS)"]
    lines = []
    for metric, label in _CLASS_METRICS.items():
        for half in ("low", "high"):
            cells = [first_row(rows, method=m, metric=metric, half=half, bins=bins) for m in present]
            floor = _floor(cells[present.index("CTS")]) if "CTS" in present else NONE
            lines.append([f"{label}, {getattr(ITEMS[name], half)}", *map(mean_and_std, cells), floor])
    tables = [markdown_table(head, lines), _gap_table(name, rows, _HALVES)]
    head = [
        f"ECE by predicted class, {bins} bins",
        *present,
        "floor (CTS)",
        "Uncal: confidence − accuracy, by true class (95% interval)",
    ]
    lines = []
    for k, label in class_names(name).items():
        key: dict[str, Any] = {"class": k, "bins": bins, "metric": "class_ece"}
        cells = [first_row(rows, method=m, **key) for m in present]
        gap = first_row(rows, metric="class_gap", **{"class": k})
        floor = _floor(cells[present.index("CTS")]) if "CTS" in present else NONE
        lines.append([label, *map(mean_and_std, cells), floor, _gap(gap)])
    return [*tables, markdown_table(head, lines)]


def example_tables(name: str, rows: Sequence[Row]) -> list[str]:  # noqa: ARG001
    """Return a list with one table, which shows the example in Section 5.4 of the paper."""
    lines = []
    for method in ("TS", "CTS"):
        line = [method]
        for key in ({"class": 0}, {"class": 1}, {"metric": "ece"}):
            row = first_row(rows, method=method, **key)
            line += [_fraction(row, "mean"), _fraction(row, "paper")]
        lines.append(line)
    head = ["", "ECE of class 1", "paper", "ECE of class 2", "paper", "ECE over both", "paper"]
    return [markdown_table(head, lines)]


def count_seeds(n: int) -> str:
    """Describe a number of seeds: ``one seed`` or ``5 seeds``."""
    return "one seed" if n == 1 else f"{n} seeds"


def join_words(words: Sequence[str]) -> str:
    """Join words as in a sentence: ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def few_label(name: str) -> str:
    """Describe the training set with few rows per class, for example as ``50 labels per class``."""
    (per_class,) = {run.per_class for run in runs_for(name) if run.kind == "few"}
    return f"{per_class} labels per class"


def signed_interval(row: Mapping[str, Any] | None) -> str:
    """Format the 95% interval of a row in percentage points, as in ``+1.0 to +2.0``; a dash if none."""
    if row is None or row["low"] is None:
        return NONE
    return f"{100 * row['low']:+.1f} to {100 * row['high']:+.1f}"


def _seeds(rows: Sequence[Row], *, as_range: bool = False) -> str:
    """Describe the largest number of seeds in the rows.

    With ``as_range``, include the smallest number if it differs from the largest.
    """
    counts = [row["n"] for row in rows]
    if as_range and min(counts) < max(counts):
        return f"{min(counts)} to {max(counts)} seeds"
    return count_seeds(max(counts))


def _floor(row: Mapping[str, Any] | None) -> str:
    return NONE if row is None or row["floor"] is None else f"{100 * row['floor']:.2f}"


def _paper(row: Mapping[str, Any] | None, *, digits: int = 2, signed: bool = False) -> str:
    if row is None or row["paper"] is None:
        return NONE
    text = f"{100 * row['paper']:{'+' if signed else ''}.{digits}f}"
    return f"{text} ± {100 * row['paper_std']:.{digits}f}" if "paper_std" in row else text


def _gap(row: Mapping[str, Any] | None) -> str:
    if row is None or row["mean"] is None:
        return NONE
    mean = f"{100 * row['mean']:+.1f}"
    return mean if row["low"] is None else f"{mean} ({signed_interval(row)})"


def _fraction(row: Mapping[str, Any] | None, key: str) -> str:
    return NONE if row is None else f"{row[key]:.2f}"
