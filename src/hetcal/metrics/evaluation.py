"""Evaluation of predictions: accuracy, scores, calibration errors and noise floors in one result.

The noise floor of a calibration error is its distribution for a perfectly calibrated model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcal._binary_probs import two_columns
from hetcal._coerce import as_array
from hetcal._columns import class_names_of, column_names, labels_by_number
from hetcal._display import display_name
from hetcal._extras import missing_package
from hetcal._images import flatten_images
from hetcal._numeric.blocks import RowSource, is_source
from hetcal._numeric.passes import scaled_softmax
from hetcal._tables import Table, TableDisplay, hidden_classes
from hetcal._typing import Float, FloatArray, IntArray
from hetcal._validate import (
    GIVE_PREDICTED,
    NAME_COLUMNS,
    as_generator,
    check_integer,
    check_logits,
    check_names,
    check_observed_labels,
    check_probs,
    is_soft,
    refuse_transition,
)
from hetcal._warnings import warn_fitted_rows
from hetcal.metrics.agreement import LabelKind, observed_probs
from hetcal.metrics.binning import (
    Cells,
    FineBins,
    TopLabel,
    calibration_error,
    class_cells,
    reduce_to_top_label,
    top_label_of,
)
from hetcal.metrics.floors import NoiseFloor, floor_of, floor_of_fine_cells, uses_fine_cells
from hetcal.metrics.scores import (
    as_binary,
    debiased_error,
    mean_brier,
    mean_nll,
    smooth_error,
    smooth_error_of_grid,
)
from hetcal.metrics.totals import Totals, totals_of, totals_of_source

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "ClassTable",
    "Evaluation",
    "as_frame",
    "as_plain",
    "evaluate",
    "evaluation_of_totals",
    "evaluation_tables",
]

_WITH_FLOOR = ("ece", "max_ece", "avg_ece")
_COLUMNS_OR_PREDICTED = "pass a column for each class, or for top-label confidences pass predicted= as well"
_MAX_PRINTED = 5  # maximum number of classes in the printed table
_MAX_ROWS = 40  # maximum number of classes in tables for Rich and notebooks
_CLASS_COLUMNS = ("Class", "Rows", "Accuracy", "Confidence", "Gap", "ECE", "Floor")


@dataclass(frozen=True, eq=False)
class ClassTable:
    """Metrics of every class, computed from the rows predicted as that class.

    For a class that is never predicted, `n` is 0 and the other numbers are nan.

    Attributes
    ----------
    name : tuple of K str
    n : (K,) int array
        Number of rows predicted as the class.
    accuracy, confidence : (K,) arrays
        Accuracy and mean confidence on these rows.
    signed_gap : (K,) array
        Confidence − accuracy.
    ece, floor, floor_q95 : (K,) arrays
        ECE of the class, and the mean and 95% quantile that it would have under perfect calibration.
    """

    name: tuple[str, ...]
    n: IntArray
    accuracy: Float
    confidence: Float
    signed_gap: Float
    ece: Float
    floor: Float
    floor_q95: Float

    def rows(self) -> list[dict[str, Any]]:
        """Return one dictionary of plain values per class; None replaces nan."""
        names = [f.name for f in fields(self)]
        columns = (as_plain(getattr(self, name)) for name in names)
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


@dataclass(frozen=True, eq=False)
class Evaluation(TableDisplay):
    """Result of :func:`evaluate`; ``print``, Rich and notebooks show it as tables.

    Attributes
    ----------
    n, n_classes, n_bins : int
    accuracy, nll, brier : float
    n_zero : int
        Number of rows whose label has probability 0. For soft labels, it is the number of rows in which a
        class with a positive share of the label has probability 0. Such zeros would make `nll` infinite.
        They are replaced with half of the smallest positive probability, but at most ``1/(2K)`` and at least
        1.2e-38, the smallest normal float32. If only the confidences of predicted classes were evaluated,
        `nll`, `brier` and `n_zero` refer to the outcome of each row, correct or wrong, and K in this formula
        is 2.
    ece, max_ece, avg_ece, smooth_ece, debiased_ece : float
    worst_class : str
        Name of the class with the largest ECE.
    floor, floor_q95 : mapping of ``ece``, ``max_ece`` and ``avg_ece`` to float
        Mean and 95% quantile of the metric for a perfectly calibrated model with these confidences.
    classes : ClassTable
    labels : LabelKind
        ``"hard"``, ``"noisy"`` or ``"soft"``. If it is ``"noisy"``, accuracies and calibration errors are
        corrected for label noise, while `nll` and `brier` refer to the observed labels. The probabilities of
        the observed labels are ``p T``, where T is the transition matrix.
    """

    n: int
    n_classes: int
    n_bins: int
    accuracy: float
    nll: float
    brier: float
    n_zero: int
    ece: float
    max_ece: float
    avg_ece: float
    smooth_ece: float
    debiased_ece: float
    worst_class: str
    floor: Mapping[str, float]
    floor_q95: Mapping[str, float]
    classes: ClassTable
    labels: LabelKind = LabelKind.HARD

    @property
    def excess(self) -> dict[str, float]:
        """Metric minus its mean under perfect calibration (`floor`), for every metric in `floor`."""
        return {name: getattr(self, name) - self.floor[name] for name in _WITH_FLOOR}

    def to_frame(self) -> pd.DataFrame:
        """Return the metrics of the classes as a pandas data frame, one row per class."""
        return as_frame(self.classes.rows())

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain Python values, ready for JSON; None replaces nan."""
        values = {f.name: as_plain(getattr(self, f.name)) for f in fields(self) if f.name != "classes"}
        return values | {"excess": self.excess, "classes": self.classes.rows()}

    def __str__(self) -> str:
        lines = [
            f"{self.n:,} rows, {self.n_classes:,} classes, {self.n_bins} bins{self.labels.note}",
            f"accuracy {self.accuracy:.4f}   nll {self.nll:.4f}   brier {self.brier:.4f}",
            *([f"{self.n_zero:,} labels had probability 0"] if self.n_zero else []),
            "",
            f"{'metric':<14}{'value':>8}{'floor':>8}{'floor 95%':>11}{'excess':>9}",
        ]
        for name in _WITH_FLOOR:
            value, floor, q95 = getattr(self, name), self.floor[name], self.floor_q95[name]
            lines.append(f"{name:<14}{value:>8.4f}{floor:>8.4f}{q95:>11.4f}{value - floor:>+9.4f}")
        lines += [f"{name:<14}{getattr(self, name):>8.4f}" for name in ("smooth_ece", "debiased_ece")]
        return "\n".join(lines + self._class_lines())

    def _tables(self) -> tuple[Table, ...]:
        return evaluation_tables(self)

    def _class_lines(self) -> list[str]:
        table = self.classes
        order = np.argsort(np.where(table.n > 0, table.floor - table.ece, np.inf), kind="stable")
        order = order[: min(_MAX_PRINTED, int((table.n > 0).sum()))]
        names = [display_name(table.name[k]) for k in order]
        width = max(14, 2 + max(map(len, names)))
        title = "class" if len(order) == self.n_classes else "worst classes"
        head = f"{title:<{width}}{'rows':>8}{'acc.':>8}{'conf.':>8}{'gap':>9}"
        note = "each floor is for one class; compare the largest ece with the floor of max_ece"
        end = [] if len(order) == self.n_classes else [note]
        lines = [
            f"{name:<{width}}{table.n[k]:>8,}{table.accuracy[k]:>8.3f}{table.confidence[k]:>8.3f}"
            f"{table.signed_gap[k]:>+9.3f}{table.ece[k]:>8.3f}{table.floor[k]:>8.3f}{table.floor_q95[k]:>11.3f}"
            for name, k in zip(names, order, strict=True)
        ]
        return ["", head + f"{'ece':>8}{'floor':>8}{'floor 95%':>11}", *lines, *end]


def evaluate(
    probs: Any = None,
    labels: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    *,
    logits: Any = None,
    calibrator: Any = None,
    groups: ArrayLike | None = None,
    predicted: ArrayLike | None = None,
    transition: ArrayLike | None = None,
    ignore_index: int | None = None,
    n_bins: int = 15,
    n_redraws: int = 200,
    rng: np.random.Generator | int = 0,
) -> Evaluation:
    """Compute accuracy, NLL, Brier score and calibration errors of predictions, with noise floors.

    The noise floor of a calibration error is its distribution for a perfectly calibrated model with the same
    confidences. Accuracy, ECE and the noise floor of ECE are also computed for every class, from the rows
    predicted as that class.

    Parameters
    ----------
    probs : (n, K) probabilities, or the (n,) confidences together with `predicted`, or batches
        An array or tensor (B, K, d1, d2, ...) contains B images, with the classes on axis 1. Hard labels
        then have shape (B, d1, d2, ...), and soft labels have the shape of the probabilities. Every position
        is a row. The noise floors assume that rows are independent. Neighbouring positions are not, so the
        floors of images are too low.
        Without `predicted`, an array (n,) or a single column contains the probabilities of class 1.
        Batches of probabilities are a :class:`hetcal.Batches`, or the result of a calibrator's
        ``predict_proba`` for batches of logits. They are evaluated in one pass, or in two passes if a label
        has probability 0. Up to rounding, the metrics are the same as for rows in memory. The noise floors
        may differ, because for batches they are always computed by the method that
        :func:`~hetcal.metrics.noise_floor` uses for large inputs: rows of nearly equal confidence are redrawn
        together.
    labels : (n,) classes as integers or class names, or (n, K) soft labels or counts
        Omitted for batches, which contain the labels.
    class_names : K strings
        By default the column names of a data frame or of batches, or the class numbers. With `predicted` but
        without `class_names`, K is one more than the largest class in `labels` and `predicted`.
    logits : (n, K) unnormalised scores, images (B, K, d1, d2, ...) or batches, instead of `probs`
    calibrator : fitted calibrator, optional
        Its probabilities for `logits` or `probs` are evaluated. A warning is issued if these rows and
        those it was fitted on overlap by more than 5% of the smaller set. For batches, only the rows of the
        first batch are checked.
    groups : (n,) group of every row, for a calibrator that was fitted by group
        For images, one entry per position (B, d1, d2, ...) or per image (B,).
    predicted : (n,) predicted classes, for data that contain only the top label
    transition : (K, K) matrix, or noise rates as one number or (K,) numbers
        The label noise: entry [i, j] is the probability that a label of class i is recorded as j. A noise
        rate is the probability that a label is replaced with one drawn uniformly from all K classes.
        Accuracies and calibration errors then refer to the true classes; see :mod:`hetcal.metrics.scores`.
    ignore_index : label of rows that are left out, such as 255 for unlabelled pixels
    n_bins : number of equal-width confidence bins
    n_redraws : number of redraws for the floor, see :func:`~hetcal.metrics.noise_floor`
    rng : generator or seed for the redraws

    Examples
    --------
    >>> result = evaluate([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]], [0, 1, 1], ["cat", "dog"], n_bins=10)
    >>> result.worst_class, round(result.max_ece, 3), result.classes.n.tolist()
    ('cat', 0.4, [2, 1])
    >>> result.to_dict()["classes"][1]["name"]
    'dog'
    """
    check_integer(n_bins, "n_bins", minimum=1)
    check_integer(n_redraws, "n_redraws", minimum=1)
    settings = _Settings(n_bins, n_redraws, as_generator(rng))
    if predicted is None or ignore_index is not None:
        rows = flatten_images(
            *(logits, probs, labels, ignore_index),
            confidences=predicted is not None,
            groups=groups,
            predicted=predicted,
        )
        logits, probs, labels = rows.logits, rows.probs, rows.labels
        groups, predicted = rows.per_row["groups"], rows.per_row["predicted"]
    if predicted is None:
        if getattr(calibrator, "n_features_in_", 2) == 2:
            fit_names = getattr(calibrator, "class_names_", None)
            probs = two_columns(probs, labels, class_names, fit_names=fit_names, remedy=_COLUMNS_OR_PREDICTED)
        table = probs if logits is None else logits
        if not is_soft(labels):
            labels = labels_by_number(labels, column_names(table), class_names)
        class_names = _names_of(table) if class_names is None else class_names
    if calibrator is not None or logits is not None:
        if predicted is not None:
            raise ValueError(
                "predicted must be left out if logits or a calibrator is passed, got both; pass it only with "
                "top-label confidences as probs="
            )
        probs = _probabilities(calibrator, logits, probs, labels, class_names, groups)
    elif probs is None:
        raise ValueError("probs must be given, got None; pass probabilities, or scores as logits=")
    if is_source(probs):
        names = check_names(class_names, probs.n_classes)
        refuse_transition(transition, "for batches, got it with batches; pass arrays of the rows instead")
        parts = _from_source(probs, labels, predicted, settings)
    elif predicted is None:
        parts = _from_probs(probs, labels, class_names, transition, settings)
        names = check_names(class_names, len(parts.by_class.count))
    else:
        refuse_transition(
            transition, "if predicted is passed, got both; pass the probabilities of all classes"
        )
        parts = _from_confidences(probs, labels, predicted, class_names, settings)
        names = check_names(class_names, len(parts.by_class.count))
    return _assemble(names, parts)


def evaluation_tables(
    result: Evaluation, max_classes: int = _MAX_ROWS, remedy: str = "to_frame() returns all"
) -> tuple[Table, ...]:
    """Return a table of the metrics, and a table of the classes.

    The second table is sorted by the excess of ECE over its noise floor, largest first, and shows at most
    `max_classes` classes. If it leaves any out, a note below it contains `remedy`, which says where to find
    them.
    """
    rows = [[name, f"{getattr(result, name):.4f}"] for name in ("accuracy", "nll", "brier")]
    if result.n_zero:
        rows.append(["labels with p = 0", f"{result.n_zero:,}"])
    for name in _WITH_FLOOR:
        value, floor = getattr(result, name), result.floor[name]
        rows.append([name, f"{value:.4f}", f"{floor:.4f}", f"{value - floor:+.4f}"])
    rows += [[name, f"{getattr(result, name):.4f}"] for name in ("smooth_ece", "debiased_ece")]
    title = f"{result.n} rows, {result.n_classes} classes, {result.n_bins} bins{result.labels.note}"
    metrics = Table(title, ("Metric", "Value", "Noise floor", "Excess"), rows)
    table = result.classes
    order = np.argsort(np.where(table.n > 0, table.floor - table.ece, np.inf), kind="stable")
    columns = (table.accuracy, table.confidence, table.signed_gap, table.ece, table.floor)
    classes = Table(
        "By predicted class, largest excess of ECE over its floor first",
        _CLASS_COLUMNS,
        [
            [
                display_name(table.name[k]),
                str(table.n[k]),
                *(f"{column[k]:.3f}" if table.n[k] else "" for column in columns),
            ]
            for k in order[:max_classes]
        ],
        hidden_classes(len(order) - max_classes, remedy),
    )
    return metrics, classes


def evaluation_of_totals(
    totals: Totals, names: list[str], *, n_redraws: int, rng: np.random.Generator
) -> Evaluation:
    """Compute the evaluation from the totals of at least one row.

    `names` are the validated names of the K classes.
    """
    return _assemble(names, _from_totals(totals, _Settings(totals.bins.n_bins, n_redraws, rng)))


def as_plain(value: Any) -> Any:
    """Convert NumPy values to plain Python and nan to None, recursively."""
    if isinstance(value, np.ndarray | np.generic):
        return as_plain(value.tolist())
    if isinstance(value, Mapping):
        return {key: as_plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(v) for v in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def as_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return dictionaries, one per row, as a pandas data frame."""
    try:
        import pandas as pd
    except ImportError as error:
        raise missing_package("to_frame needs pandas", "files") from error
    return pd.DataFrame(list(rows))


@dataclass(frozen=True, eq=False)
class _Settings:
    """Validated options of an evaluation."""

    n_bins: int
    n_redraws: int
    rng: np.random.Generator


@dataclass(frozen=True, eq=False)
class _Parts:
    """Quantities from which an evaluation is assembled."""

    by_class: Cells
    nll: float
    brier: float
    n_zero: int
    smooth_ece: float
    floor: NoiseFloor
    labels: LabelKind = LabelKind.HARD


def _probabilities(
    calibrator: Any, logits: Any, probs: Any, labels: Any, class_names: Any, groups: Any
) -> Any:
    """Probabilities to evaluate: the softmax of logits, or the output of a calibrator."""
    if calibrator is None:
        if probs is not None:
            raise ValueError("probs must be left out if logits are passed, got both; pass one of them")
        if is_source(logits):
            check_logits(logits.first().rows.z, probs_remedy="pass batches of probabilities as probs=")
            return logits.transform(_softmax)
        return _softmax(check_logits(logits), None)
    if not hasattr(calibrator, "_fitted_share"):
        raise TypeError(
            f"calibrator must be a fitted calibrator of hetcal, got {calibrator!r:.60}; omit it and pass the "
            "probabilities of other models as probs="
        )
    calibrated = calibrator.predict_proba(logits, probs=probs, groups=groups, class_names=class_names)
    if is_soft(labels):
        labels = as_array(labels, "labels").argmax(axis=1)
    if labels is not None or is_source(logits):
        warn_fitted_rows(calibrator._fitted_share(logits, probs, labels, class_names))
    return calibrated


def _names_of(table: Any) -> list[str] | None:
    """Class names from the columns of a table or of batches; None if there are none."""
    if is_source(table):
        names: list[str] | None = table.class_names
        return names
    columns = column_names(table)
    return None if columns is None else class_names_of(columns)


def _softmax(z: FloatArray, groups: Any) -> FloatArray:  # noqa: ARG001
    return scaled_softmax(z, np.ones(len(z)))


def _from_source(source: RowSource, labels: Any, predicted: Any, settings: _Settings) -> _Parts:
    for name, value, content in (
        ("labels", labels, "labels"),
        ("predicted", predicted, "probabilities of all classes"),
    ):
        if value is not None:
            raise ValueError(
                f"{name} must be left out for batches, got {type(value).__name__}; "
                f"the batches contain the {content}"
            )
    return _from_totals(totals_of_source(source, settings.n_bins), settings)


def _from_probs(
    probs: ArrayLike,
    labels: ArrayLike | None,
    class_names: ArrayLike | None,
    transition: ArrayLike | None,
    settings: _Settings,
) -> _Parts:
    p = check_probs(probs, shape_remedy=GIVE_PREDICTED)
    names = None if class_names is None else check_names(class_names, p.shape[1])
    options: dict[str, Any] = {"class_names": names, "names_remedy": NAME_COLUMNS}
    y, t = check_observed_labels(labels, transition, n_rows=len(p), n_classes=p.shape[1], **options)
    bins, is_hard = FineBins(settings.n_bins), t is None and y.ndim == 1
    if is_hard and uses_fine_cells(len(p), p.shape[1], bins, settings.n_redraws):
        return _from_totals(totals_of(p, y, bins), settings)
    top, observed = top_label_of(p, y, t), observed_probs(p, t)
    scores = mean_nll(observed, y), mean_brier(observed, y), _count_zeros(observed, y)
    return _from_top_label(top, *scores, settings)


def _from_confidences(
    confidence: ArrayLike,
    labels: Any,
    predicted: ArrayLike,
    class_names: ArrayLike | None,
    settings: _Settings,
) -> _Parts:
    top = reduce_to_top_label(confidence, labels, predicted, class_names)
    p, y = as_binary(top)
    return _from_top_label(top, mean_nll(p, y), mean_brier(p, y) / 2, _count_zeros(p, y), settings)


def _from_top_label(top: TopLabel, nll: float, brier: float, n_zero: int, settings: _Settings) -> _Parts:
    floor = floor_of(
        top, n_bins=settings.n_bins, n_redraws=settings.n_redraws, quantiles=(0.95,), rng=settings.rng
    )
    by_class = class_cells(top, settings.n_bins, "width")
    return _Parts(by_class, nll, brier, n_zero, smooth_error(top), floor, top.labels)


def _from_totals(totals: Totals, settings: _Settings) -> _Parts:
    floor = floor_of_fine_cells(
        totals.fine_cells(), n_redraws=settings.n_redraws, quantiles=(0.95,), rng=settings.rng
    )
    smooth = smooth_error_of_grid(totals.grid, totals.n)
    return _Parts(totals.cells(), totals.nll, totals.brier, totals.n_zero, smooth, floor)


def _count_zeros(p: FloatArray, y: NDArray[Any]) -> int:
    """Number of rows in which the label has probability 0.

    For soft labels, it is the number of rows in which some class with a positive share has probability 0.
    """
    if y.ndim == 2:
        return int(np.count_nonzero(((p == 0) & (y > 0)).any(axis=1)))
    return int(np.count_nonzero(p[np.arange(len(p)), y] == 0))


def _assemble(names: list[str], parts: _Parts) -> Evaluation:
    floor, pooled = parts.floor, parts.by_class.merged()
    classes = _class_table(names, parts.by_class, floor)
    return Evaluation(
        n=int(pooled.count.sum()),
        n_classes=len(names),
        n_bins=pooled.count.shape[1],
        accuracy=float(pooled.correct.sum() / pooled.count.sum()),
        nll=parts.nll,
        brier=parts.brier,
        n_zero=parts.n_zero,
        ece=float(calibration_error(pooled.count, pooled.residual)[0]),
        max_ece=float(np.nanmax(classes.ece)),
        avg_ece=float(np.nanmean(classes.ece)),
        smooth_ece=parts.smooth_ece,
        debiased_ece=debiased_error(pooled, "l1"),
        worst_class=names[int(np.nanargmax(classes.ece))],
        floor={name: float(floor.mean[name]) for name in _WITH_FLOOR},
        floor_q95={name: float(floor.quantiles[name][0]) for name in _WITH_FLOOR},
        classes=classes,
        labels=parts.labels,
    )


def _class_table(names: list[str], by_class: Cells, floor: NoiseFloor) -> ClassTable:
    n = by_class.count.sum(axis=1)
    safe_n = np.where(n > 0, n, np.nan)
    accuracy, confidence = by_class.correct.sum(axis=1) / safe_n, by_class.confidence.sum(axis=1) / safe_n
    return ClassTable(
        name=tuple(names),
        n=n.astype(np.int64),
        accuracy=accuracy,
        confidence=confidence,
        signed_gap=confidence - accuracy,
        ece=calibration_error(by_class.count, by_class.residual),
        floor=np.asarray(floor.mean["class_ece"]),
        floor_q95=floor.quantiles["class_ece"][0],
    )
