"""Rows as Markdown: ours beside the paper's, cell by cell, in per cent as the paper has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hetcal_paper.judging import BINS
from hetcal_paper.paper_claims import Claim
from hetcal_paper.paper_numbers import ITEMS
from hetcal_paper.paper_rows import METHODS, Row, class_names, first_row

__all__ = [
    "METRIC_NAMES",
    "claims_to_markdown",
    "differences",
    "grid",
    "in_words",
    "largest_distances",
    "rows_to_markdown",
]

_LABELS = {"accuracy": "Accuracy", "ece": "ECE", "max_ece": "max-ECE", "avg_ece": "Avg-ECE"}
_TRAININGS = {"clean": "clean data", "noise": "30% label noise on all classes", "few": "few samples"}
_COMPARED = ("accuracy", "confidence", "gap", "ece", "max_ece")

#: Metrics as they are called in a sentence.
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
_NONE = "–"


def rows_to_markdown(name: str, rows: Sequence[Row]) -> str:
    """Tables of an item."""
    return "\n\n".join(_TABLES[ITEMS[name].kind](name, rows))


def claims_to_markdown(claims: Sequence[Claim]) -> str:
    """Claims as a table; a sentence where the runs at hand let none be judged."""
    if not claims:
        return "None of the paper's claims can be judged by these runs alone."
    return grid(
        ["The paper says", "Here", "Numbers (per cent)"],
        [[claim.text, "holds" if claim.holds else "**does not hold**", claim.evidence] for claim in claims],
        numbers=False,
    )


def differences(rows: Sequence[Row]) -> str:
    """Say which cells lie further from the paper's than the spreads of both explain."""
    compared = [
        row for row in rows if row["paper"] is not None and row.get("paper_std") and row["std"] is not None
    ]
    far: dict[str, list[str]] = {}
    for row in compared:
        apart = row["mean"] - row["paper"]
        if abs(apart) > 2 * math.hypot(row["std"], row["paper_std"]):
            bins = "" if row["metric"] == "accuracy" else f", {row['bins']} bins"
            far.setdefault(f"{row['method']} {_LABELS[row['metric']]}{bins}", []).append(
                f"{100 * apart:+.2f}"
            )
    largest = _largest(rows)
    if not compared:
        return largest
    if not far:
        return f"{largest} No cell differs by more than twice the standard deviation of both."
    cells = ", ".join(f"{cell} ({values[0]})" for cell, values in far.items())
    n = len({(row["method"], row["metric"], row["metric"] != "accuracy" and row["bins"]) for row in compared})
    return (
        f"{largest} Of {n} cells, {len(far)} differ by more than twice the standard deviation "
        f"of both (ours − paper's, points): {cells}."
    )


def largest_distances(rows: Sequence[Row]) -> dict[str, float]:
    """Return the largest distance from the paper's numbers by metric, as a fraction."""
    apart: dict[str, float] = {}
    for row in rows:
        metric = row["metric"]
        if row["paper"] is not None and metric in _COMPARED:
            apart[metric] = max(apart.get(metric, 0.0), abs(row["mean"] - row["paper"]))
    return apart


def _largest(rows: Sequence[Row]) -> str:
    """Say how far the furthest cell of every metric is from the paper's."""
    apart = largest_distances(rows)
    if not apart:
        return ""
    furthest = ", ".join(f"{100 * value:.1f} in {METRIC_NAMES[metric]}" for metric, value in apart.items())
    return f"Largest distance from the paper's numbers, in points: {furthest}."


def grid(head: Sequence[str], lines: Sequence[Sequence[str]], *, numbers: bool = True) -> str:
    """Return a Markdown table; numbers are set to the right."""
    rule = ["---"] + ["---:" if numbers else "---"] * (len(head) - 1)
    if any(len(line) != len(head) for line in lines):
        raise ValueError(
            f"lines must have {len(head)} cells as the head, got {sorted({len(c) for c in lines})}"
        )
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, rule, *lines])


def in_words(row: Mapping[str, Any] | None, *, digits: int = 2, signed: bool = False) -> str:
    """Mean ± standard deviation in per cent."""
    if row is None or row["mean"] is None:
        return _NONE
    mean = f"{100 * row['mean']:{'+' if signed else ''}.{digits}f}"
    return mean if row["std"] is None else f"{mean} ± {100 * row['std']:.{digits}f}"


def _methods(name: str, rows: Sequence[Row]) -> list[str]:
    tables = []
    present = [m for m in METHODS if first_row(rows, method=m)]
    seeds = _seeds(rows)
    for bins in BINS:
        head = [f"{bins} bins, {seeds}"]
        for metric, label in _LABELS.items():
            head += [label, *([] if metric == "accuracy" else ["floor"])]
            head += [] if metric == "avg_ece" else ["paper"]
        lines = []
        for method in present:
            line = [method]
            for metric in _LABELS:
                row = first_row(rows, method=method, metric=metric, bins=bins, half=None)
                line += [in_words(row), *([] if metric == "accuracy" else [_floor(row)])]
                line += [] if metric == "avg_ece" else [_paper(row)]
            lines.append(line)
        tables.append(grid(head, lines))
    return [*tables, _gap_table(name, rows, {"low": {"half": "low"}, "high": {"half": "high"}})]


def _trainings(name: str, rows: Sequence[Row]) -> list[str]:
    few = {"c100": "50 labels per class", "c10": "100 labels per class"}[ITEMS[name].data or "c10"]
    names = {**_TRAININGS, "few": few}
    where = {names[t]: {"training": t} for t in _TRAININGS if first_row(rows, training=t)}
    return [_gap_table(name, rows, where, ece=True)]


def _sampling(name: str, rows: Sequence[Row]) -> list[str]:
    rates = sorted({row["rate"] for row in rows})
    return [_gap_table(name, rows, {f"{100 * rate:g}%": {"rate": rate} for rate in rates}, ece=True)]


def _halves(name: str, rows: Sequence[Row]) -> list[str]:
    return [_gap_table(name, rows, {"low": {"half": "low"}, "high": {"half": "high"}}, ece=True)]


def _gap_table(
    name: str, rows: Sequence[Row], where: Mapping[str, Mapping[str, object]], *, ece: bool = False
) -> str:
    """Confidence, accuracy and their difference, beside the paper's where it prints them."""
    names = {"low": ITEMS[name].low, "high": ITEMS[name].high}
    printed = any(row["paper"] is not None for row in rows if row["metric"] == "gap")
    head = [f"Uncalibrated, {_seeds([row for row in rows if row['metric'] == 'gap'], least=True)}"]
    for label in ("Confidence", "Accuracy", "Confidence − accuracy"):
        head += [label, *(["paper"] if printed else [])]
    head += ["95% interval", *(["ECE (15 bins)", "floor"] if ece else [])]
    lines = []
    for label, key in where.items():
        line = [names.get(label, label)]
        for metric in ("confidence", "accuracy", "gap"):
            row = first_row(rows, metric=metric, method="Uncal", bins=None, **key)
            line += [in_words(row, digits=1, signed=metric == "gap")]
            line += [_paper(row, digits=1, signed=metric == "gap")] if printed else []
        line.append(_interval(first_row(rows, metric="gap", **key)))
        if ece:
            row = first_row(rows, metric="ece", bins=BINS[-1], **key)
            line += [in_words(row), _floor(row)]
        lines.append(line)
    return grid(head, lines)


def _sweep(name: str, rows: Sequence[Row]) -> list[str]:
    """One table per metric and number of bins."""
    what = "Noise rate" if ITEMS[name].kind == "noise" else "Sampling rate"
    rates = sorted({row["rate"] for row in rows})
    tables = []
    for metric in [m for m in ("max_ece", "ece", "avg_ece") if first_row(rows, metric=m)]:
        for bins in BINS:
            head = [what, *(f"{m} {_LABELS[metric]}" for m in _SWEPT), f"CTS floor ({bins} bins)", "seeds"]
            lines = []
            for rate in rates:
                cells = [
                    first_row(rows, method=m, metric=metric, bins=bins, rate=rate, half=None) for m in _SWEPT
                ]
                n = "" if cells[-1] is None else str(cells[-1]["n"])
                lines.append([f"{100 * rate:g}%", *map(in_words, cells), _floor(cells[-1]), n])
            tables.append(grid(head, lines))
    return tables


def _classes(name: str, rows: Sequence[Row]) -> list[str]:
    bins = BINS[-1]
    present = [m for m in METHODS if first_row(rows, method=m, metric="avg_ece")]
    head = [f"Mean over classes, {bins} bins, {_seeds(rows)}", *present, "floor (CTS)"]
    lines = []
    for metric, label in _CLASS_METRICS.items():
        for half in ("low", "high"):
            cells = [first_row(rows, method=m, metric=metric, half=half, bins=bins) for m in present]
            floor = _floor(cells[present.index("CTS")]) if "CTS" in present else _NONE
            lines.append([f"{label}, {getattr(ITEMS[name], half)}", *map(in_words, cells), floor])
    tables = [grid(head, lines), _gap_table(name, rows, {"low": {"half": "low"}, "high": {"half": "high"}})]
    head = [f"ECE of the class, {bins} bins", *present, "floor (CTS)", "confidence − accuracy, by true class"]
    lines = []
    for k, label in class_names(name).items():
        key: dict[str, Any] = {"class": k, "bins": bins, "metric": "class_ece"}
        cells = [first_row(rows, method=m, **key) for m in present]
        gap = first_row(rows, metric="class_gap", **{"class": k})
        floor = _floor(cells[present.index("CTS")]) if "CTS" in present else _NONE
        lines.append(
            [
                label,
                *map(in_words, cells),
                floor,
                _gap(gap),
            ]
        )
    return [*tables, grid(head, lines)]


def _example(name: str, rows: Sequence[Row]) -> list[str]:  # noqa: ARG001
    lines = []
    for method in ("TS", "CTS"):
        line = [method]
        for key in ({"class": 0}, {"class": 1}, {"metric": "ece"}):
            row = first_row(rows, method=method, **key)
            line += [_fraction(row, "mean"), _fraction(row, "paper")]
        lines.append(line)
    head = ["", "ECE of class 1", "paper", "ECE of class 2", "paper", "ECE of both", "paper"]
    return [grid(head, lines)]


_SWEPT = ("Uncal", "VS", "TS", "CTS")
_CLASS_METRICS = {
    "avg_ece": "ECE",
    "error": "error by predicted class",
    "error_true": "error by true class",
}


def _seeds(rows: Sequence[Row], *, least: bool = False) -> str:
    """How many seeds the rows have at most; with ``least``, from how many on."""
    counts = [row["n"] for row in rows]
    most = max(counts)
    if least and min(counts) < most:
        return f"{min(counts)} to {most} seeds"
    return "one seed" if most == 1 else f"{most} seeds"


def _floor(row: Mapping[str, Any] | None) -> str:
    return _NONE if row is None or row["floor"] is None else f"{100 * row['floor']:.2f}"


def _paper(row: Mapping[str, Any] | None, *, digits: int = 2, signed: bool = False) -> str:
    if row is None or row["paper"] is None:
        return _NONE
    text = f"{100 * row['paper']:{'+' if signed else ''}.{digits}f}"
    return f"{text} ± {100 * row['paper_std']:.{digits}f}" if "paper_std" in row else text


def _interval(row: Mapping[str, Any] | None) -> str:
    if row is None or row["low"] is None:
        return _NONE
    return f"{100 * row['low']:+.1f} to {100 * row['high']:+.1f}"


def _gap(row: Mapping[str, Any] | None) -> str:
    if row is None or row["mean"] is None:
        return _NONE
    mean = f"{100 * row['mean']:+.1f}"
    return mean if row["low"] is None else f"{mean} ({_interval(row)})"


def _fraction(row: Mapping[str, Any] | None, key: str) -> str:
    return _NONE if row is None else f"{row[key]:.2f}"


_TABLES: dict[str, Callable[[str, Sequence[Row]], list[str]]] = {
    "table": _methods,
    "trainings": _trainings,
    "sampling": _sampling,
    "halves": _halves,
    "noise": _sweep,
    "size": _sweep,
    "classes": _classes,
    "example": _example,
}
