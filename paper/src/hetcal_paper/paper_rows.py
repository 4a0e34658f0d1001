"""The numbers behind each table and figure: results in, rows out.

A row is a dictionary ready for JSON: method, metric, number of bins, mean and standard deviation over the
seeds, their number, the mean noise floor and the paper's number, all as fractions. Rows of sweeps add
``rate``, of halves of the classes ``half``, of different trainings ``training``, of single classes
``class``. ``gap`` is mean confidence − accuracy, with a 95% interval over the seeds in ``low`` and ``high``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal.examples import load_example
from hetcal.metrics import avg_ece, class_ece, ece, max_ece
from hetcal_paper.judging import BINS
from hetcal_paper.paper_numbers import AVERAGES, EXAMPLE, EXAMPLE_ACCURACY, ITEMS, TABLES
from hetcal_paper.results import ClassRows, Results
from hetcal_paper.runs import Run, runs_for, usual
from hetcal_paper.seed_intervals import seed_interval

__all__ = [
    "METHODS",
    "Point",
    "Row",
    "Selection",
    "all_class_names",
    "class_names",
    "first_row",
    "fitted",
    "make_rows",
    "select",
    "shown_classes",
]

Row = dict[str, Any]

#: In the order of the paper's tables.
METHODS = ("Uncal", "VS", "TS", "CTS", "Auto")
_SWEPT = ("Uncal", "VS", "TS", "CTS")
_HALF_METRICS = {"ece": "avg_ece", "error": "error", "error_true": "error_true"}
_CLASS_METRICS = {column: f"class_{column}" for column in _HALF_METRICS}
_EXAMPLE_BINS = 3  # (1/3, 2/3] holds all four confidences, as the paper's bucket [0.4, 0.6] does
_EXAMPLES = {"c10": "cifar10-noisy", "c100": "cifar100-noisy"}


@dataclass(frozen=True)
class Point:
    """One training of an item in all its seeds.

    Attributes
    ----------
    run : Run
        The first of its runs, which says what was trained.
    runs, missing : tuple of str
        Names of those that the results hold, and of those that they lack.
    """

    run: Run
    runs: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def training(self) -> str:
        """What was done to the training rows: ``clean``, ``noise`` or ``few``."""
        return self.run.kind

    def rate(self, kind: str) -> float:
        """Noise rate, or share of rows kept; clean data are the end of either sweep."""
        return (0.0 if kind == "noise" else 1.0) if self.run.rate is None else self.run.rate


@dataclass(frozen=True)
class Selection:
    """The runs behind one item, at one choice of epoch."""

    name: str
    results: Results
    points: tuple[Point, ...]
    choice: str

    @property
    def kind(self) -> str:
        """Kind of the item."""
        return ITEMS[self.name].kind

    @property
    def present(self) -> tuple[Point, ...]:
        """Points with at least one run."""
        return tuple(point for point in self.points if point.runs)

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the runs that the results lack."""
        return tuple(name for point in self.points for name in point.missing)


def select(name: str, results: Results, choice: str | None = None) -> Selection:
    """Find the runs behind a table or figure.

    Where it has a recipe of its own and none of its runs is there, those of the usual recipe stand in.
    """
    own = runs_for(name)
    stand_ins = {run: usual(run) for run in own} if not any(run.name in results.runs for run in own) else {}
    groups: dict[Run, list[Run]] = {}
    for run in own:
        groups.setdefault(replace(stand_ins.get(run, run), seed=0), []).append(run)
    points = (
        Point(
            run,
            tuple(r.name for r in (stand_ins.get(one, one) for one in runs) if r.name in results.runs),
            tuple(one.name for one in runs if one.name not in results.runs),
        )
        for run, runs in groups.items()
    )
    chosen = choice or stand_ins.get(own[0], own[0]).choice
    return Selection(name, results, tuple(points), chosen)


def make_rows(selection: Selection) -> list[Row]:
    """Return the rows of an item."""
    return _ROWS[selection.kind](selection)


def example_rows() -> list[Row]:
    """Section 5.4's example, from two classes of 100 rows."""
    labels = np.repeat([0, 1], 100)
    right = np.concatenate([np.arange(100) < round(100 * a) for a in EXAMPLE_ACCURACY])
    truth = np.where(right, labels, 1 - labels)
    rows: list[Row] = []
    for method, paper in EXAMPLE.items():
        confidence = np.repeat(np.array(paper.confidence), 100)
        judged: Any = {"predicted": labels, "n_bins": _EXAMPLE_BINS}
        head: Any = {"method": method, "bins": _EXAMPLE_BINS}
        for k, value in enumerate(class_ece(confidence, truth, **judged)):
            rows.append(_row([value], [], paper.class_ece[k], metric="class_ece", **head, **_class(k)))
        printed = {"ece": paper.ece, "max_ece": max(paper.class_ece), "avg_ece": sum(paper.class_ece) / 2}
        for metric, score in (("ece", ece), ("max_ece", max_ece), ("avg_ece", avg_ece)):
            rows.append(
                _row([score(confidence, truth, **judged)], [], printed[metric], metric=metric, **head)
            )
    return rows


def first_row(rows: Iterable[Mapping[str, Any]], **wanted: object) -> Mapping[str, Any] | None:
    """Return the first row with these values; None stands for a key that is missing or null."""
    return next((row for row in rows if all(row.get(k) == v for k, v in wanted.items())), None)


def fitted(selection: Selection, point: Point) -> tuple[str, ...]:
    """Methods that all runs of the point have."""
    has = selection.results.has
    return tuple(m for m in METHODS if all(has(run, m, selection.choice) for run in point.runs))


def shown_classes(name: str) -> tuple[int, ...]:
    """Classes that a figure by class shows: all of CIFAR-10, five of each half of CIFAR-100.

    The paper drew its five at random and does not name them; ours are drawn once, the same for all figures.
    """
    if ITEMS[name].data == "c10":
        return tuple(range(10))
    rng = np.random.default_rng(2020)
    halves = (sorted(rng.choice(50, 5, replace=False) + start) for start in (0, 50))
    return tuple(int(k) for half in halves for k in half)


def class_names(name: str) -> dict[int, str]:
    """Names of the shown classes."""
    names = all_class_names(name)
    return {k: names[k] for k in shown_classes(name)}


def all_class_names(name: str) -> list[str]:
    """Names of all classes of an item's data set."""
    return _names_of(ITEMS[name].data or "c10")


@cache
def _names_of(data: str) -> list[str]:
    """All classes of a data set; the examples that come with the package know them."""
    names = load_example(_EXAMPLES[data]).class_names or []
    return [name.replace("_", " ") for name in names]


def _table(selection: Selection) -> list[Row]:
    (point,) = selection.present
    printed = TABLES[selection.name]
    rows = [
        _cell(selection, point, method, metric, bins=bins, paper=printed.get(method, {}).get(metric))
        for bins in BINS
        for method in fitted(selection, point)
        for metric in ("accuracy", "ece", "max_ece", "avg_ece")
    ]
    return rows + _averages(selection, point, None, halves=("low", "high"))


def _trainings(selection: Selection) -> list[Row]:
    return [
        row
        for point in selection.present
        for row in [
            *_averages(selection, point, None, training=point.training),
            *(_cell(selection, point, "Uncal", "ece", bins=bins, training=point.training) for bins in BINS),
        ]
    ]


def _sampling(selection: Selection) -> list[Row]:
    rows: list[Row] = []
    for point in selection.present:
        rate = point.rate("size")
        rows += _averages(selection, point, AVERAGES[selection.name].get(rate), rate=rate)
        rows += [_cell(selection, point, "Uncal", "ece", bins=bins, rate=rate) for bins in BINS]
    return rows


def _halves(selection: Selection) -> list[Row]:
    (point,) = selection.present
    rows: list[Row] = []
    for half in ("low", "high"):
        rows += _averages(selection, point, AVERAGES[selection.name][half], halves=(half,))
        rows += [_cell(selection, point, "Uncal", "ece", bins=bins, half=half) for bins in BINS]
    return rows


def _sweep(selection: Selection) -> list[Row]:
    metrics = ("ece", "max_ece") if selection.kind == "noise" else ("max_ece", "ece", "avg_ece")
    rows: list[Row] = []
    for point in sorted(selection.present, key=lambda point: point.rate(selection.kind)):
        rate = point.rate(selection.kind)
        for method in _SWEPT:
            rows.append(_cell(selection, point, method, "accuracy", rate=rate))
            rows += [
                _cell(selection, point, method, metric, bins=bins, rate=rate)
                for metric in metrics
                for bins in BINS
            ]
        rows += _averages(selection, point, None, halves=("low", "high"), rate=rate)
    return rows


def _by_class(selection: Selection) -> list[Row]:
    """Mean over the classes of each half, by predicted class, then the shown classes one by one."""
    (point,) = selection.present
    rows: list[Row] = []
    for bins in BINS:
        for method in fitted(selection, point):
            tables = [selection.results.classes(run, method, bins, selection.choice) for run in point.runs]
            middle = len(tables[0].n) // 2
            head: dict[str, Any] = {"method": method, "bins": bins}
            for half, part in (("low", slice(None, middle)), ("high", slice(middle, None))):
                rows += _class_means(tables, part, _HALF_METRICS, half=half, **head)
            for k in shown_classes(selection.name):
                rows += _class_means(tables, slice(k, k + 1), _CLASS_METRICS, **head, **_class(k))
    return rows + _class_gaps(selection, point)


def _class_means(
    tables: Sequence[ClassRows], part: slice, metrics: Mapping[str, str], **key: Any
) -> list[Row]:
    """Rows of some classes together, a metric each."""
    rows = []
    for column, metric in metrics.items():
        values = [_mean(getattr(table, column)[part]) for table in tables]
        floors = [_mean(table.floor[part]) for table in tables] if column == "ece" else []
        rows.append(_row(values, floors, None, metric=metric, **key))
    return rows


def _class_gaps(selection: Selection, point: Point) -> list[Row]:
    """Mean confidence − accuracy of the uncalibrated model, by true class."""
    tables = [selection.results.classes(run, "Uncal", BINS[0], selection.choice) for run in point.runs]
    rows = _averages(selection, point, None, halves=("low", "high"))
    for k in shown_classes(selection.name):
        values = [table.confidence_true[k] - (1 - table.error_true[k]) for table in tables]
        rows.append(_row(values, [], None, method="Uncal", metric="class_gap", bins=None, **_class(k)))
    return rows


def _averages(
    selection: Selection,
    point: Point,
    paper: tuple[float, float] | None,
    *,
    halves: Sequence[str] = ("all",),
    **extra: Any,
) -> list[Row]:
    """Mean confidence, accuracy and their difference for the uncalibrated model."""
    rows = []
    for half in halves:
        where: dict[str, Any] = {} if half == "all" else {"half": half}
        for metric in ("confidence", "accuracy", "gap"):
            printed = {} if paper is None else dict(zip(("confidence", "accuracy"), paper, strict=True))
            if printed:
                printed["gap"] = printed["confidence"] - printed["accuracy"]
            rows.append(_cell(selection, point, "Uncal", metric, paper=printed.get(metric), **where, **extra))
    return rows


def _cell(
    selection: Selection,
    point: Point,
    method: str,
    metric: str,
    *,
    bins: int | None = None,
    paper: tuple[float, float] | float | None = None,
    **extra: Any,
) -> Row:
    """One metric over the seeds."""
    pairs = [
        selection.results.value(
            run,
            metric,
            method=method,
            bins=bins if metric.endswith("ece") else None,
            half=extra.get("half", "all"),
            choice=selection.choice,
        )
        for run in point.runs
    ]
    values, floors = zip(*pairs, strict=True)
    return _row(values, floors, paper, method=method, metric=metric, bins=bins, **extra)


def _row(
    values: Sequence[float],
    floors: Sequence[float],
    paper: tuple[float, float] | float | None,
    *,
    method: str,
    metric: str,
    bins: int | None,
    **extra: Any,
) -> Row:
    found = seed_interval(values)
    floors = [floor for floor in floors if not math.isnan(floor)]
    printed, printed_std = paper if isinstance(paper, tuple) else (paper, None)
    row: Row = {
        "method": method,
        "metric": metric,
        "bins": bins,
        "mean": _plain(None if found is None else found.mean),
        "std": _plain(None if found is None else found.std),
        "n": 0 if found is None else found.n,
        "floor": _plain(float(np.mean(floors)) if floors else None),
        "paper": _plain(printed),
    }
    if printed_std is not None:
        row["paper_std"] = printed_std
    if metric.endswith("gap"):
        ends = (None, None) if found is None else (found.low, found.high)
        row |= {"low": _plain(ends[0]), "high": _plain(ends[1])}
    return row | extra


def _mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def _class(k: int) -> Any:
    """Key of a row that cannot be a keyword."""
    return {"class": k}


def _plain(value: float | None) -> float | None:
    """Round away what is below the digits of the results."""
    return None if value is None else round(value, 7) + 0.0


_ROWS: dict[str, Callable[[Selection], list[Row]]] = {
    "table": _table,
    "trainings": _trainings,
    "sampling": _sampling,
    "halves": _halves,
    "noise": _sweep,
    "size": _sweep,
    "classes": _by_class,
}
