"""The numbers behind each table and figure.

A row is a JSON-compatible dictionary with these keys:

``method``, ``metric``, ``bins``  what was measured; the metric ``gap`` is mean confidence − accuracy
``mean``, ``std``, ``n``          mean and standard deviation over the seeds, and the number of seeds
``floor``                         mean noise floor: the error that a calibrated model would show by chance
``paper``, ``paper_std``          the published number and, in tables, its standard deviation
``low``, ``high``                 95% interval over the seeds; only for ``gap`` and ``class_gap``
``rate``                          noise or sampling rate; only in figures with several rates
``half``                          ``low`` or ``high``; only for halves of the classes
``training``                      ``clean``, ``noise`` or ``few``; only in figures that compare trainings
``class``                         index of the class; only for individual classes

Metrics and rates are fractions, not percentages. Values that do not exist are None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hetcal
from hetcal.metrics import avg_ece, class_ece, ece, max_ece
from hetcal_paper.evaluate_run import BINS
from hetcal_paper.intervals import seed_interval
from hetcal_paper.published import AVERAGES, EXAMPLE, EXAMPLE_ACCURACY, ITEMS, TABLES
from hetcal_paper.results import ClassRows, Results
from hetcal_paper.runs import Run, runs_for, with_default_recipe

__all__ = [
    "METHODS",
    "Point",
    "Row",
    "Selection",
    "all_class_names",
    "class_names",
    "class_rows",
    "evaluated",
    "example_rows",
    "first_row",
    "fitted",
    "half_rows",
    "measured_everywhere",
    "sampling_rows",
    "select",
    "shown_classes",
    "sweep_rows",
    "table_rows",
    "training_rows",
]

Row = dict[str, Any]

#: Methods in the order of the paper's tables, followed by methods that the paper does not have: CTS with its
#: parameter Γ chosen by cross-validation, CTS with shrinkage, and the AutoCalibrator.
METHODS = ("Uncal", "VS", "TS", "CTS", "CTS-cv", "CTS-bayes", "Auto")
_HALF_METRICS = {"ece": "avg_ece", "error": "error", "error_true": "error_true"}
_CLASS_METRICS = {column: f"class_{column}" for column in _HALF_METRICS}
_EXAMPLE_BINS = 3  # puts all confidences of the example in the bin (1/3, 2/3]; the paper uses [0.4, 0.6]
_EXAMPLE_DATA = {"c10": "cifar10-noisy", "c100": "cifar100-noisy"}


@dataclass(frozen=True)
class Point:
    """The runs of a table or figure that differ only in their seed.

    Attributes
    ----------
    run : Run
        The run with seed 0.
    runs : tuple of str
        Names of the runs that the results contain.
    missing : tuple of str
        Names of the runs of the table or figure that the results lack, even if :func:`select` replaces them.
    """

    run: Run
    runs: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def training(self) -> str:
        """Corruption of the training rows: ``clean``, ``noise``, ``under`` or ``few``."""
        return self.run.kind

    def rate(self, kind: str) -> float:
        """Return the noise or sampling rate of the run.

        If the run has none, the result is 0 in figures of the kind ``noise`` and 1 in figures of other kinds.
        """
        return (0.0 if kind == "noise" else 1.0) if self.run.rate is None else self.run.rate


@dataclass(frozen=True)
class Selection:
    """The runs behind one table or figure, and the choice of epoch at which they are compared."""

    name: str
    results: Results
    points: tuple[Point, ...]
    choice: str

    @property
    def kind(self) -> str:
        """Kind of the table or figure, as in :class:`~hetcal_paper.published.Item`."""
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
    """Select the runs behind a table or figure.

    If the results contain none of these runs, the runs with the default recipe replace them. This makes a
    difference only for a table or figure with its own recipe. If `choice` is None, the choice is the one that
    represents the first run.
    """
    item_runs = runs_for(name)
    use_default_recipe = not any(run.name in results.runs for run in item_runs)
    used = {run: with_default_recipe(run) if use_default_recipe else run for run in item_runs}
    groups: dict[Run, list[Run]] = {}
    for run in item_runs:
        groups.setdefault(replace(used[run], seed=0), []).append(run)
    points = (
        Point(
            first,
            tuple(used[run].name for run in runs if used[run].name in results.runs),
            tuple(run.name for run in runs if run.name not in results.runs),
        )
        for first, runs in groups.items()
    )
    return Selection(name, results, tuple(points), choice or used[item_runs[0]].choice)


def example_rows() -> list[Row]:
    """Return the rows of the example of Section 5.4, computed from two classes of 100 samples each."""
    predicted = np.repeat([0, 1], 100)
    correct = np.concatenate([np.arange(100) < round(100 * a) for a in EXAMPLE_ACCURACY])
    labels = np.where(correct, predicted, 1 - predicted)
    rows: list[Row] = []
    for method, paper in EXAMPLE.items():
        confidence = np.repeat(np.array(paper.confidence), 100)
        options: Any = {"predicted": predicted, "n_bins": _EXAMPLE_BINS}
        head: Any = {"method": method, "bins": _EXAMPLE_BINS}
        for k, value in enumerate(class_ece(confidence, labels, **options)):
            rows.append(_row([value], [], paper.class_ece[k], metric="class_ece", **head, **_class(k)))
        printed = {"ece": paper.ece, "max_ece": max(paper.class_ece), "avg_ece": sum(paper.class_ece) / 2}
        for metric, score in (("ece", ece), ("max_ece", max_ece), ("avg_ece", avg_ece)):
            rows.append(
                _row([score(confidence, labels, **options)], [], printed[metric], metric=metric, **head)
            )
    return rows


def first_row(rows: Iterable[Mapping[str, Any]], **wanted: object) -> Mapping[str, Any] | None:
    """Return the first row with these values, or None. A key that a row lacks counts as None."""
    return next((row for row in rows if all(row.get(k) == v for k, v in wanted.items())), None)


def fitted(selection: Selection) -> tuple[str, ...]:
    """Return the methods with which all selected runs were evaluated."""
    has, choice = selection.results.has, selection.choice
    runs = [run for point in selection.present for run in point.runs]
    return tuple(method for method in METHODS if all(has(run, method, choice) for run in runs))


def evaluated(selection: Selection, point: Point, *methods: str) -> tuple[str, ...]:
    """Return the runs of a point whose results include all the given methods."""
    has, choice = selection.results.has, selection.choice
    return tuple(run for run in point.runs if all(has(run, method, choice) for method in methods))


def measured_everywhere(selection: Selection) -> tuple[str, ...]:
    """Return the methods with which at least one run of every point was evaluated."""
    points = selection.present
    return tuple(m for m in METHODS if all(evaluated(selection, point, m) for point in points))


def shown_classes(name: str) -> tuple[int, ...]:
    """Return the classes that figures by class show: all of CIFAR-10, five of each half of CIFAR-100.

    The paper draws five classes of each half at random and does not name them. Our random classes are the
    same in all figures.
    """
    if ITEMS[name].data == "c10":
        return tuple(range(10))
    rng = np.random.default_rng(2020)
    halves = (sorted(rng.choice(50, 5, replace=False) + start) for start in (0, 50))
    return tuple(int(k) for half in halves for k in half)


def class_names(name: str) -> dict[int, str]:
    """Return the names, by index, of the classes that figures by class show."""
    names = all_class_names(name)
    return {k: names[k] for k in shown_classes(name)}


def all_class_names(name: str) -> list[str]:
    """Return the names of all classes in the data set of a table or figure."""
    return _names_of(ITEMS[name].data or "c10")


@cache
def _names_of(data: str) -> list[str]:
    """Return the class names of a data set from the example data in hetcal, with spaces for underscores."""
    names = hetcal.load_example(_EXAMPLE_DATA[data]).class_names or []
    return [name.replace("_", " ") for name in names]


def table_rows(selection: Selection) -> list[Row]:
    """Return the rows of a table of methods."""
    (point,) = selection.present
    printed = TABLES[selection.name]
    rows = [
        _cell(selection, point, method, metric, bins=bins, paper=printed.get(method, {}).get(metric))
        for bins in BINS
        for method in fitted(selection)
        for metric in ("accuracy", "ece", "max_ece", "avg_ece")
    ]
    return rows + _averages(selection, point, None, halves=("low", "high"))


def training_rows(selection: Selection) -> list[Row]:
    """Return the rows of networks trained on clean, noisy and small training sets."""
    return [
        row
        for point in selection.present
        for row in [
            *_averages(selection, point, None, training=point.training),
            *(_cell(selection, point, "Uncal", "ece", bins=bins, training=point.training) for bins in BINS),
        ]
    ]


def sampling_rows(selection: Selection) -> list[Row]:
    """Return the rows of networks trained on training sets of different sizes."""
    rows: list[Row] = []
    for point in selection.present:
        rate = point.rate("size")
        rows += _averages(selection, point, AVERAGES[selection.name].get(rate), rate=rate)
        rows += [_cell(selection, point, "Uncal", "ece", bins=bins, rate=rate) for bins in BINS]
    return rows


def half_rows(selection: Selection) -> list[Row]:
    """Return the rows of the two halves of the classes."""
    (point,) = selection.present
    rows: list[Row] = []
    for half in ("low", "high"):
        rows += _averages(selection, point, AVERAGES[selection.name][half], halves=(half,))
        rows += [_cell(selection, point, "Uncal", "ece", bins=bins, half=half) for bins in BINS]
    return rows


def sweep_rows(selection: Selection) -> list[Row]:
    """Return the rows of a figure with several noise or sampling rates.

    If only some runs were evaluated with a method, its rows use only these runs. Rates without such runs have
    no rows of the method.
    """
    metrics = ("ece", "max_ece") if selection.kind == "noise" else ("max_ece", "ece", "avg_ece")
    rows: list[Row] = []
    for point in sorted(selection.present, key=lambda point: point.rate(selection.kind)):
        rate = point.rate(selection.kind)
        for method in METHODS:
            part = replace(point, runs=evaluated(selection, point, method))
            if not part.runs:
                continue
            rows.append(_cell(selection, part, method, "accuracy", rate=rate))
            rows += [
                _cell(selection, part, method, metric, bins=bins, rate=rate)
                for metric in metrics
                for bins in BINS
            ]
        rows += _averages(selection, point, None, halves=("low", "high"), rate=rate)
    return rows


def class_rows(selection: Selection) -> list[Row]:
    """Return the rows of a figure about individual classes.

    These are means over the classes of each half, values of single classes, and confidence − accuracy.
    """
    (point,) = selection.present
    rows: list[Row] = []
    for bins in BINS:
        for method in fitted(selection):
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
    """Return one row per metric, averaged over the classes in ``part``."""
    rows = []
    for column, metric in metrics.items():
        values = [_mean(getattr(table, column)[part]) for table in tables]
        floors = [_mean(table.floor[part]) for table in tables] if column == "ece" else []
        rows.append(_row(values, floors, None, metric=metric, **key))
    return rows


def _class_gaps(selection: Selection, point: Point) -> list[Row]:
    """Return rows of the uncalibrated model by true class.

    They contain confidence, accuracy and their difference on each half, and the difference in single classes.
    """
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
    """Return rows of mean confidence, accuracy and their difference for the uncalibrated model."""
    rows = []
    for half in halves:
        key: dict[str, Any] = {} if half == "all" else {"half": half}
        for metric in ("confidence", "accuracy", "gap"):
            printed = {} if paper is None else dict(zip(("confidence", "accuracy"), paper, strict=True))
            if printed:
                printed["gap"] = printed["confidence"] - printed["accuracy"]
            rows.append(_cell(selection, point, "Uncal", metric, paper=printed.get(metric), **key, **extra))
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
    """Return the row of one metric, computed over the seeds of a point."""
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
    interval = seed_interval(values)
    floors = [floor for floor in floors if not math.isnan(floor)]
    printed, printed_std = paper if isinstance(paper, tuple) else (paper, None)
    row: Row = {
        "method": method,
        "metric": metric,
        "bins": bins,
        "mean": _rounded(None if interval is None else interval.mean),
        "std": _rounded(None if interval is None else interval.std),
        "n": 0 if interval is None else interval.n,
        "floor": _rounded(float(np.mean(floors)) if floors else None),
        "paper": _rounded(printed),
    }
    if printed_std is not None:
        row["paper_std"] = printed_std
    if metric.endswith("gap"):
        ends = (None, None) if interval is None else (interval.low, interval.high)
        row |= {"low": _rounded(ends[0]), "high": _rounded(ends[1])}
    return row | extra


def _mean(values: NDArray[np.float64]) -> float:
    """Mean of the values that are not nan; nan if there are none."""
    valid = values[~np.isnan(values)]
    return float(valid.mean()) if valid.size else float("nan")


def _class(k: int) -> Any:
    """Return a dictionary to pass as ``**_class(k)``, because Python does not allow ``class=k``."""
    return {"class": k}


def _rounded(value: float | None) -> float | None:
    """Round to seven decimals, about the precision of the results; None stays None."""
    return None if value is None else round(value, 7) + 0.0  # adding 0.0 turns -0.0 into 0.0
