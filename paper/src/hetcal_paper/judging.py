"""One finished run: fit the paper's methods on its validation rows, judge them on its test rows.

The result is lines of the tables that :mod:`hetcal_paper.results` keeps.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._warnings import collect_warnings
from hetcal.compare import paper_methods
from hetcal.metrics.binning import TopLabel, calibration_error, cells, class_cells, reduce_to_top_label
from hetcal.metrics.floors import floor_of
from hetcal.metrics.scores import mean_nll
from hetcal_paper import store
from hetcal_paper.runs import RECIPES, Run

__all__ = ["BINS", "COLUMNS", "HALVES", "epochs_of", "judge", "kept_as"]

_LOG = logging.getLogger(__name__)

BINS = (10, 15)
HALVES = ("all", "low", "high")

#: Columns of each file.
COLUMNS: dict[str, tuple[str, ...]] = {
    "metrics": (
        *("run", "dataset", "kind", "classes", "rate", "seed"),
        *("choice", "method", "metric", "bins", "half", "value", "floor"),
    ),
    "classes": (
        *("run", "choice", "method", "bins", "class"),
        *("n", "ece", "floor", "error", "n_true", "error_true", "confidence_true"),
    ),
    "curves": ("run", "choice", "method", "bins", "half", "bin", "count", "confidence", "correct"),
    "runs": (
        *("run", "dataset", "kind", "classes", "rate", "per_class", "seed"),
        *("network", "recipe", "epochs", "batch_size", "weight_decay", "n_train", "n_validation"),
        *("chosen", "val_accuracy", "test_accuracy", "seconds", "parallel", "compiled", "device"),
        *("hetcal", "python", "numpy", "torch", "git"),
    ),
}

# Auto takes longer than all others together: it is judged where a table or a figure by class shows it.
_AUTO_FOR = ("table1", "table2", "fig7", "fig13")
_CLASSES_FOR = ("table1", "table2", "fig6", "fig7", "fig11", "fig13")
_CURVES_FOR = ("fig1", "fig2", "fig3", "fig4", "fig9", "fig12", "table2")
_N_REDRAWS = 200


@dataclass(frozen=True, eq=False)
class _Predicted:
    """Test rows under one method."""

    choice: str
    method: str
    probs: NDArray[Any]
    top: TopLabel
    labels: NDArray[np.int64]

    def half(self, low: NDArray[np.bool_], half: str) -> tuple[TopLabel, NDArray[Any], NDArray[np.int64]]:
        """Top label, probabilities and labels of one half."""
        if half == "all":
            return self.top, self.probs, self.labels
        rows = low if half == "low" else ~low
        top = replace(
            self.top,
            confidence=self.top.confidence[rows],
            predicted=self.top.predicted[rows],
            correct=self.top.correct[rows],
        )
        return top, self.probs[rows], self.labels[rows]


def judge(folder: Path, name: str, used: Mapping[str, set[str]]) -> dict[str, list[str]]:
    """Lines of every file for one run.

    Parameters
    ----------
    folder : path
        The store of finished runs.
    name : str
        The run.
    used : mapping of table or figure to the names of its runs
        Decides what is kept beside ``metrics`` and ``runs``.
    """
    record = store.read(folder, name).record
    run = Run.from_dict(record["run"])

    def shown_in(items: tuple[str, ...]) -> bool:
        return any(name in used[item] for item in items)

    lines: dict[str, list[tuple[object, ...]]] = {file: [] for file in COLUMNS}
    lines["runs"].append(_describe(name, run, record))
    epochs = epochs_of(record)
    main = {"best", _stored_as(epochs, run.choice)}
    for choice in _distinct(epochs):
        methods = [m for m in paper_methods() if m != "Auto" or (choice in main and shown_in(_AUTO_FOR))]
        for predicted in _predict(store.read(folder, name, kept_as(record, choice)), choice, methods):
            low = _in_low(run, predicted.labels, predicted.top.n_classes)
            halves = HALVES if choice in main or predicted.method == "Uncal" else HALVES[:1]
            lines["metrics"] += (_about(name, run) + row for row in _metrics(predicted, low, halves))
            if choice in main and shown_in(_CLASSES_FOR):
                lines["classes"] += ((name, *row) for row in _classes(predicted))
            if predicted.method == "Uncal" and shown_in(_CURVES_FOR):
                lines["curves"] += ((name, *row) for row in _curves(predicted, low))
    return {file: [",".join(map(_text, row)) for row in rows] for file, rows in lines.items()}


def epochs_of(record: Mapping[str, Any]) -> dict[str, int]:
    """Epoch by choice: those of the record, and what early stopping would have kept.

    No phase is longer than patience, so that it is the best of its phase, whose logits the record has.
    """
    run, kept = Run.from_dict(record["run"]), dict(record["epochs"])
    if not RECIPES[run.recipe].patience:
        return kept
    return {"best": kept["best"], "early": run.early_stop(record["history"]["val_accuracy"])[0], **kept}


def kept_as(record: Mapping[str, Any], choice: str | None = None) -> str:
    """Return the record's name for a choice of epoch; by default the one that stands for the run."""
    wanted = epochs_of(record)[choice or Run.from_dict(record["run"]).choice]
    return str(next(name for name, epoch in record["epochs"].items() if epoch == wanted))


def _predict(result: store.Result, choice: str, methods: list[str]) -> Iterator[_Predicted]:
    """Fit the methods on the validation rows and apply them to the test rows."""
    name = result.record["name"]
    for method in methods:
        calibrator = paper_methods()[method]
        with collect_warnings() as usual, collect_warnings(RuntimeWarning) as failures:
            calibrator.fit(result.val_logits, result.val_labels)
        for level, texts in ((logging.INFO, usual), (logging.WARNING, failures)):
            for text in texts:
                _LOG.log(level, "%s at %s, %s: %s", name, choice, method, text)
        probs = np.asarray(calibrator.predict_proba(result.test_logits))
        yield _Predicted(
            choice, method, probs, reduce_to_top_label(probs, result.test_labels), result.test_labels
        )


def _metrics(
    predicted: _Predicted, low: NDArray[np.bool_], halves: tuple[str, ...]
) -> Iterator[tuple[object, ...]]:
    for half in halves:
        top, probs, labels = predicted.half(low, half)
        if not len(labels):
            continue
        head = (predicted.choice, predicted.method)
        yield (*head, "accuracy", "", half, top.correct.mean(), "")
        yield (*head, "confidence", "", half, top.confidence.mean(dtype=np.float64), "")
        yield (*head, "nll", "", half, mean_nll(probs, labels), "")
        for bins in BINS:
            table = class_cells(top, bins, "width")
            pooled = table.merged()
            per_class = calibration_error(table.count, table.residual)
            floor = floor_of(top, n_bins=bins, n_redraws=_N_REDRAWS, quantiles=()).mean
            ece = calibration_error(pooled.count, pooled.residual)[0]
            yield (*head, "ece", bins, half, ece, floor["ece"])
            if half == "all":
                yield (*head, "max_ece", bins, half, np.nanmax(per_class), floor["max_ece"])
                yield (*head, "avg_ece", bins, half, np.nanmean(per_class), floor["avg_ece"])


def _classes(predicted: _Predicted) -> Iterator[tuple[object, ...]]:
    top, y = predicted.top, predicted.labels
    true = replace(top, predicted=y)
    by_label = class_cells(true, 1, "width")
    n_true = by_label.count[:, 0]
    for bins in BINS:
        table = class_cells(top, bins, "width")
        n = table.count.sum(axis=1)
        per_class = calibration_error(table.count, table.residual)
        floor = np.asarray(floor_of(top, n_bins=bins, n_redraws=_N_REDRAWS, quantiles=()).mean["class_ece"])
        with np.errstate(invalid="ignore"):
            error = 1 - table.correct.sum(axis=1) / n
            error_true = 1 - by_label.correct[:, 0] / n_true
            confidence_true = by_label.confidence[:, 0] / n_true
        columns = (n, per_class, floor, error, n_true, error_true, confidence_true)
        for k, values in enumerate(zip(*columns, strict=True)):
            yield (predicted.choice, predicted.method, bins, k, *values)


def _curves(predicted: _Predicted, low: NDArray[np.bool_]) -> Iterator[tuple[object, ...]]:
    for bins in BINS:
        for half in HALVES:
            top, _, _ = predicted.half(low, half)
            table = cells(top.confidence, top.correct, n_bins=bins)
            columns = (table.count[0], table.confidence[0], table.correct[0])
            for at, values in enumerate(zip(*columns, strict=True)):
                if values[0] > 0:
                    yield (predicted.choice, predicted.method, bins, half, at, *values)


def _about(name: str, run: Run) -> tuple[object, ...]:
    classes = "all" if run.classes is None else f"{run.classes[0]}-{run.classes[1]}"
    rate = "" if run.rate is None else run.rate
    return (name, run.data, run.kind, "" if run.kind == "clean" else classes, rate, run.seed)


def _describe(name: str, run: Run, record: Mapping[str, Any]) -> tuple[object, ...]:
    *head, seed = _about(name, run)
    kept, accuracy, versions = epochs_of(record), record["accuracy"]["best"], record["versions"]
    return (
        *(*head, "" if run.per_class is None else run.per_class, seed),
        *(run.network, run.recipe, run.epochs, run.batch_size, run.weight_decay),
        *(record["n_train"], record["n_validation"]),
        " ".join(f"{choice}={epoch}" for choice, epoch in kept.items()),
        *(accuracy["val"], accuracy["test"], record["seconds"], record["parallel"], record["compiled"]),
        record["device"].replace(",", ";"),
        *(versions[key] for key in ("hetcal", "python", "numpy", "torch")),
        record["git"] or "",
    )


def _in_low(run: Run, labels: NDArray[np.int64], n_classes: int) -> NDArray[np.bool_]:
    """Whether a row is of the classes that were corrupted, or of the first half."""
    first, last = (0, n_classes // 2 - 1) if run.classes is None else run.classes
    return np.asarray((labels >= first) & (labels <= last))


def _distinct(epochs: Mapping[str, int]) -> list[str]:
    """Choices of epoch without those that coincide with an earlier one."""
    return [choice for choice in epochs if _stored_as(epochs, choice) == choice]


def _stored_as(epochs: Mapping[str, int], choice: str) -> str:
    """Return the first choice with the same epoch."""
    return next(other for other, epoch in epochs.items() if epoch == epochs[choice])


def _text(value: object) -> str:
    """Six digits, nothing for nan."""
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{float(value):.6g}"
    return str(value)
