"""Evaluate one finished run: fit the methods on its validation rows and evaluate them on its test rows."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone

import hetcal
from hetcal.metrics import accuracy, class_ece, ece, nll, noise_floor, reliability_curve
from hetcal_paper import store
from hetcal_paper.runs import RECIPES, Run, items_of

__all__ = [
    "BINS",
    "COLUMNS",
    "METHODS",
    "chosen_epochs",
    "evaluate_method",
    "evaluate_run",
    "stored_choice",
]

_LOG = logging.getLogger(__name__)
#: Lock held while warnings are recorded, because all threads of a process share Python's warning filters.
_WARNING_FILTERS = threading.Lock()

#: Unfitted calibrators by method. They are cloned before they are fitted.
METHODS: dict[str, Any] = {
    "Uncal": hetcal.Identity(),
    "TS": hetcal.TemperatureScaling(),
    "VS": hetcal.VectorScaling(),
    "CTS": hetcal.ClassWiseTemperatureScaling(),
    "CTS-cv": hetcal.ClassWiseTemperatureScaling("cv"),
    "CTS-bayes": hetcal.ClassWiseTemperatureScaling("bayes"),
    "Auto": hetcal.AutoCalibrator(),
}

BINS = (10, 15)
_HALVES = ("all", "low", "high")
_N_REDRAWS = 200

#: Columns of each table of results.
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

#: Slow methods. They are fitted only at the best epoch and at the epoch of :attr:`Run.choice`.
_SLOW = ("CTS-cv", "CTS-bayes", "Auto")
#: Tables and figures that need results by class.
_CLASSES_FOR = {"table1", "table2", "fig6", "fig7", "fig11", "fig13"}
#: Tables and figures that need reliability curves.
_CURVES_FOR = {"fig1", "fig2", "fig3", "fig4", "fig9", "fig12", "table2"}

_Cells = tuple[object, ...]


def evaluate_run(folder: str | Path, name: str) -> dict[str, pd.DataFrame]:
    """Evaluate one run of a store.

    Parameters
    ----------
    folder : path
        The store of finished runs.
    name : str
        The run.

    Returns
    -------
    dict of str to DataFrame
        Lines of each table in :data:`COLUMNS`, as text; floats are rounded to six significant digits.
        ``classes`` and ``curves`` are empty unless a table or figure of the paper needs them for this run.
    """
    record = store.read_record(folder, name)
    run = Run.from_dict(record["run"])
    rows: dict[str, list[_Cells]] = {table: [] for table in COLUMNS}
    rows["runs"].append(_describe(name, run, record))
    epochs = chosen_epochs(record)
    main_choices = {"best", _first_with_same_epoch(epochs, run.choice)}
    for choice in epochs:
        if _first_with_same_epoch(epochs, choice) != choice:
            continue  # this epoch has been evaluated under another name
        result = store.read(folder, name, stored_choice(record, choice))
        for method in METHODS:
            is_main = choice in main_choices
            if method in _SLOW and not is_main:
                continue
            for table, lines in _method_lines(run, result, choice, method, is_main=is_main).items():
                rows[table] += lines
    return {table: _frame(table, lines) for table, lines in rows.items()}


def evaluate_method(run: Run, result: store.Result, choice: str, method: str) -> dict[str, pd.DataFrame]:
    """Evaluate one method on one result of a run.

    `choice` names the epoch of the result. It must be ``best`` or ``run.choice``. The returned lines include
    results by class and by half, and only at these epochs does :func:`evaluate_run` compute both for all
    methods.

    Returns
    -------
    dict of str to DataFrame
        Lines of the tables ``metrics``, ``classes`` and ``curves``, as returned by :func:`evaluate_run`.
    """
    lines = _method_lines(run, result, choice, method, is_main=True)
    return {table: _frame(table, lines[table]) for table in lines}


def chosen_epochs(record: Mapping[str, Any]) -> dict[str, int]:
    """Return the epoch number of each choice of epoch, as described in :mod:`hetcal_paper.store`.

    For recipes with early stopping, the result also contains ``early``, the epoch that early stopping
    selects. The patience is about as long as the longest learning-rate phase, so training does not stop
    before the phase of this epoch has ended. The epoch is therefore the best of its phase, and its logits are
    stored.
    """
    run, epochs = Run.from_dict(record["run"]), dict(record["epochs"])
    if not RECIPES[run.recipe].patience:
        return epochs
    return {"best": epochs["best"], "early": run.early_stop(record["history"]["val_accuracy"])[0], **epochs}


def stored_choice(record: Mapping[str, Any], choice: str | None = None) -> str:
    """Return the name under which the record stores the logits of the epoch that `choice` selects.

    If `choice` is None, :attr:`Run.choice` is used.
    """
    epoch = chosen_epochs(record)[choice or Run.from_dict(record["run"]).choice]
    return _first_with_epoch(record["epochs"], epoch)


def _method_lines(
    run: Run, result: store.Result, choice: str, method: str, *, is_main: bool
) -> dict[str, list[_Cells]]:
    """Return the lines of one method at one epoch, by table.

    Without `is_main`, results by class are left out, and only Uncal has results by half.
    """
    name, items, labels = run.name, items_of(run.name), result.test_labels
    calibrator, head = clone(METHODS[method]), (choice, method)
    probs = _predict(calibrator, result, f"{name} at {choice}, {method}")
    low, halves = _in_low_half(run, labels), _HALVES if is_main or method == "Uncal" else _HALVES[:1]
    overall = {bins: _errors(probs, labels, bins) for bins in BINS}
    lines: dict[str, list[_Cells]] = {"classes": [], "curves": []}
    lines["metrics"] = [
        (*_key(name, run), *head, *cells)
        for cells in (*_metrics(probs, labels, low, halves, overall), *_temperatures(calibrator))
    ]
    if is_main and items & _CLASSES_FOR:
        lines["classes"] = [(name, *head, *cells) for cells in _classes(probs, labels, overall)]
    if method == "Uncal" and items & _CURVES_FOR:
        lines["curves"] = [(name, *head, *cells) for cells in _curves(probs, labels, low)]
    return lines


def _frame(table: str, lines: list[_Cells]) -> pd.DataFrame:
    return pd.DataFrame([[_text(cell) for cell in cells] for cells in lines], columns=list(COLUMNS[table]))


def _predict(calibrator: Any, result: store.Result, context: str) -> NDArray[Any]:
    """Fit on the validation rows, log warnings, and return probabilities of the test rows, shape (n, K)."""
    with _WARNING_FILTERS, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        calibrator.fit(result.val_logits, result.val_labels)
    for warning in caught:
        severe = issubclass(warning.category, RuntimeWarning)
        _LOG.log(logging.WARNING if severe else logging.INFO, "%s: %s", context, warning.message)
    return np.asarray(calibrator.predict_proba(result.test_logits))


@dataclass(frozen=True, eq=False)
class _Errors:
    """Calibration errors for one number of bins, and their noise floors. Both are stored by metric.

    The noise floor is the mean calibration error that the same confidences would show under perfect
    calibration.
    """

    values: Mapping[str, Any]
    floors: Mapping[str, Any]


def _errors(probs: NDArray[Any], labels: NDArray[np.int64], bins: int) -> _Errors:
    by_class = class_ece(probs, labels, n_bins=bins)
    values = {
        "ece": ece(probs, labels, n_bins=bins),
        "class_ece": by_class,
        "max_ece": np.nanmax(by_class),
        "avg_ece": np.nanmean(by_class),
    }
    return _Errors(values, noise_floor(probs, n_bins=bins, n_redraws=_N_REDRAWS, quantiles=()).mean)


def _metrics(
    probs: NDArray[Any],
    labels: NDArray[np.int64],
    low: NDArray[np.bool_],
    halves: tuple[str, ...],
    overall: Mapping[int, _Errors],
) -> Iterator[_Cells]:
    """Yield the last five cells of lines of the table ``metrics``: metric, bins, half, value, floor."""
    for half in halves:
        rows = _rows_of(low, half)
        if not rows.any():
            continue
        p, y = probs[rows], labels[rows]
        yield ("accuracy", "", half, accuracy(p, y), "")
        yield ("confidence", "", half, p.max(axis=1).mean(dtype=np.float64), "")
        yield ("nll", "", half, nll(p, y), "")
        for bins in BINS:
            errors = overall[bins] if half == "all" else _errors(p, y, bins)
            for metric in ("ece", "max_ece", "avg_ece") if half == "all" else ("ece",):
                yield (metric, bins, half, errors.values[metric], errors.floors[metric])


def _temperatures(calibrator: Any) -> Iterator[_Cells]:
    """Describe fitted class-wise temperatures: yield the last five cells of lines of the table ``metrics``.

    T denotes the temperature of a class. With ``gamma=inf``, ``log_t_error`` is the median over the classes
    of the standard error of log T, and ``n_at_bound`` is the number of classes whose T is at a bound of its
    range. Both leave out classes that are not predicted for any validation row. With ``gamma="bayes"``,
    ``log_t_spread`` is the estimated standard deviation of log T between the classes.
    """
    if not isinstance(calibrator, hetcal.ClassWiseTemperatureScaling):
        return
    if calibrator.gamma == np.inf:
        fitted = calibrator.n_samples_ > 0
        errors = calibrator.alpha_std_[fitted] / calibrator.alpha_[fitted]  # errors of log T = -log α
        yield ("log_t_error", "", "all", np.median(errors), "")
        yield ("n_at_bound", "", "all", int(np.isinf(errors).sum()), "")
    if calibrator.gamma == "bayes" and calibrator.choice_ is not None:
        yield ("log_t_spread", "", "all", calibrator.choice_["tau"], "")


def _classes(
    probs: NDArray[Any], labels: NDArray[np.int64], overall: Mapping[int, _Errors]
) -> Iterator[_Cells]:
    """Yield the cells of each line of the table ``classes`` from the column ``bins`` on."""
    n_classes = probs.shape[1]
    confidence, predicted = probs.max(axis=1), probs.argmax(axis=1)
    correct = predicted == labels
    n, n_true = (np.bincount(classes, minlength=n_classes) for classes in (predicted, labels))
    with np.errstate(invalid="ignore"):
        error = 1 - np.bincount(predicted, correct, n_classes) / n
        error_true = 1 - np.bincount(labels, correct, n_classes) / n_true
        confidence_true = np.bincount(labels, confidence, n_classes) / n_true
    for bins, errors in overall.items():
        by_class, floor = errors.values["class_ece"], errors.floors["class_ece"]
        columns = (n, by_class, floor, error, n_true, error_true, confidence_true)
        for k, values in enumerate(zip(*columns, strict=True)):
            yield (bins, k, *values)


def _curves(probs: NDArray[Any], labels: NDArray[np.int64], low: NDArray[np.bool_]) -> Iterator[_Cells]:
    """Yield the cells of the table ``curves`` from the column ``bins`` on, for bins that contain rows."""
    for bins in BINS:
        for half in _HALVES:
            curve = reliability_curve(probs, labels, n_bins=bins, rows=_rows_of(low, half))
            for b in np.flatnonzero(curve.count):
                n = curve.count[b]
                yield (bins, half, b, n, n * curve.confidence[b], n * curve.accuracy[b])


def _key(name: str, run: Run) -> _Cells:
    classes = "all" if run.classes is None else f"{run.classes[0]}-{run.classes[1]}"
    rate = "" if run.rate is None else run.rate
    return (name, run.data, run.kind, "" if run.kind == "clean" else classes, rate, run.seed)


def _describe(name: str, run: Run, record: Mapping[str, Any]) -> _Cells:
    *key, seed = _key(name, run)
    best, versions = record["accuracy"]["best"], record["versions"]
    return (
        *(*key, "" if run.per_class is None else run.per_class, seed),
        *(run.network, run.recipe, run.epochs, run.batch_size, run.weight_decay),
        *(record["n_train"], record["n_validation"]),
        " ".join(f"{choice}={epoch}" for choice, epoch in chosen_epochs(record).items()),
        *(best["val"], best["test"], record["seconds"], record["parallel"], record["compiled"]),
        record["device"],
        *(versions[package] for package in ("hetcal", "python", "numpy", "torch")),
        record["git"] or "",
    )


def _in_low_half(run: Run, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return, for each row, whether its true class is in the low half; shape (n,).

    The low half consists of the corrupted classes. If the corruption affects all classes or none, it is the
    first half of the classes.
    """
    first, last = (0, run.n_classes // 2 - 1) if run.classes is None else run.classes
    return np.asarray((labels >= first) & (labels <= last))


def _rows_of(low: NDArray[np.bool_], half: str) -> NDArray[np.bool_]:
    return {"all": np.ones_like(low), "low": low, "high": ~low}[half]


def _first_with_same_epoch(epochs: Mapping[str, int], choice: str) -> str:
    return _first_with_epoch(epochs, epochs[choice])


def _first_with_epoch(epochs: Mapping[str, int], epoch: int) -> str:
    return next(choice for choice, number in epochs.items() if number == epoch)


def _text(value: object) -> str:
    """Format a cell: floats rounded to six significant digits, nan as "", and other values with str."""
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{float(value):.6g}"
    return str(value)
