"""Confidence bins, shared by the calibration errors, noise floors, intervals and reliability curves.

The noise floor of a calibration error is the error that a calibrated model with the same confidences has by
chance.

Predictions are first reduced to a :class:`TopLabel`. A slice consists of the rows predicted as one class, or
of all rows. :class:`Cells` contains sums over the rows of every slice and bin, from which calibration errors
and reliability curves are computed. :class:`FineBins` subdivides the bins of equal width so finely that the
rows of a fine bin can be treated as if they had equal confidences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcal._numeric.probabilities import top_label
from hetcal._typing import Float, FloatArray, IntArray
from hetcal._validate import (
    GIVE_PREDICTED,
    check_integer,
    check_observed_labels,
    check_probs,
    check_top_label,
    choose,
    refuse_transition,
)
from hetcal.metrics.agreement import Agreement, LabelKind, noisy_agreement, soft_agreement

__all__ = [
    "Binning",
    "Cells",
    "FineBins",
    "FineCells",
    "Norm",
    "ReliabilityCurve",
    "TopLabel",
    "bin_edges",
    "bin_index",
    "calibration_error",
    "cell_index",
    "cells",
    "check_binning",
    "chunk_ranges",
    "class_cells",
    "fine_cells",
    "group_sum",
    "pooled_cells",
    "reduce_to_top_label",
    "reliability_by_class",
    "reliability_curve",
    "top_label_of",
    "width_edges",
]

Binning = Literal["width", "mass"]
Norm = Literal["l1", "l2"]

# Class numbers of this size or more are probably identifiers or timestamps. A table with one entry per class
# could exhaust the memory.
_MAX_CLASSES = 1 << 24
_MAX_DIRECT_BINS = 1 << 10  # up to this many bins, rounding shifts ⌊confidence × n_bins⌋ by at most one bin
_FINE_BINS = 64  # default of the minimum number of fine bins in [0, 1]
_LOOKUP_SIZE = 1 << 13  # the lookup table has an entry for each multiple of 1/_LOOKUP_SIZE
_MAX_LOOKUP_STEPS = 4  # with more edges between two entries of the table, a binary search is faster
_CHUNK_ROWS = 1 << 16  # rows processed at a time


@dataclass(frozen=True, eq=False)
class TopLabel:
    """Validated predictions, reduced to the predicted class, confidence and correctness of every row.

    Attributes
    ----------
    confidence : (n,) float array
    predicted : (n,) int array
    correct : (n,) bool array, or float array for noisy and soft labels
        Whether the predicted class is the label. For noisy labels, it is an estimate that may lie outside
        [0, 1]. For soft labels, it is the probability that the soft label gives to the predicted class.
    n_classes : int
    agreement : Agreement, or None for hard labels without noise
    """

    confidence: FloatArray
    predicted: IntArray
    correct: NDArray[Any]
    n_classes: int
    agreement: Agreement | None = None

    @property
    def labels(self) -> LabelKind:
        """Kind of the labels."""
        return LabelKind.HARD if self.agreement is None else self.agreement.kind

    @property
    def null_variance(self) -> Float:
        """Variance of ``confidence - correct`` of every row if the model is calibrated, (n,)."""
        if self.agreement is not None:
            return self.agreement.variance
        p = self.confidence.astype(np.float64)
        return p * (1 - p)


@dataclass(frozen=True, eq=False)
class Cells:
    """Sums per slice and bin. A cell is one bin of one slice.

    Attributes
    ----------
    count, confidence, correct : (S, M) float64 arrays
        Number of rows, sum of confidences and sum of correctness in every cell. Slices are the predicted
        classes, or all rows together (S = 1).
    correct_square : (S, M) float64 array, or None for hard labels without noise
        Sum of the squares of correctness.
    """

    count: Float
    confidence: Float
    correct: Float
    correct_square: Float | None = None

    @property
    def residual(self) -> Float:
        """Sum of ``confidence - correct`` in every cell, (S, M)."""
        return self.confidence - self.correct

    def merged(self) -> Cells:
        """Return the cells of all slices together, of shape (1, M).

        The bins must have equal width, because only such bins are the same in all slices.
        """
        tables = (self.count, self.confidence, self.correct, self.correct_square)
        return Cells(*(None if a is None else a.sum(axis=0, keepdims=True) for a in tables))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class ReliabilityCurve:
    """Confidence and accuracy per bin: the data of a reliability diagram.

    Attributes
    ----------
    edges : (M + 1,) array
        Bin ``b`` is ``(edges[b], edges[b + 1]]``; 0 belongs to the first bin.
    count : (M,) int array
    confidence, accuracy : (M,) arrays
        Means over the rows of the bin, nan in empty bins.
    """

    edges: Float
    count: IntArray
    confidence: Float
    accuracy: Float

    @property
    def gap(self) -> Float:
        """Confidence − accuracy per bin, (M,): positive in over-confident bins, nan in empty ones."""
        return self.confidence - self.accuracy

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.count.sum())

    @property
    def mean_confidence(self) -> float:
        """Mean confidence of all rows, nan if there are none."""
        return self._mean(self.confidence)

    @property
    def mean_accuracy(self) -> float:
        """Accuracy over all rows, nan if there are none."""
        return self._mean(self.accuracy)

    @property
    def ece(self) -> float:
        """Expected calibration error, ``Σ_b (n_b/n)·abs(gap_b)``; nan if there are no rows."""
        return self._mean(np.abs(self.gap))

    def to_dict(self) -> dict[str, list[float | None]]:
        """Return the bins as lists by name, ready for JSON; every list has one entry per bin.

        The names are "low" and "high" for the edges, "count", "confidence", "accuracy" and "gap". None
        replaces nan.
        """
        columns = {"low": self.edges[:-1], "high": self.edges[1:], "count": self.count}
        columns |= {"confidence": self.confidence, "accuracy": self.accuracy, "gap": self.gap}
        return {name: [None if v != v else v for v in a.tolist()] for name, a in columns.items()}

    def _mean(self, per_bin: Float) -> float:
        used = self.count > 0
        return float(np.average(per_bin[used], weights=self.count[used])) if used.any() else float("nan")


@dataclass(frozen=True)
class FineBins:
    """Bins of equal width, each subdivided into fine bins.

    On the scale ``θ = arcsin √p`` of the confidence p, no fine bin is longer than ``π/(2·resolution)``.

    If the model is calibrated, the number of correct predictions in a fine bin is a sum of independent
    ``Bernoulli(p_i)`` variables. It is approximated by a binomial variable whose success probability is the
    mean of the ``p_i``. Both have the same expectation. If the ``p_i`` lie between ``sin²θ`` and
    ``sin²(θ + δ)``, the variance of the binomial variable is larger by a factor of at most ``1/cos²δ``. With
    a `resolution` of 64 or more, this is an increase of at most 0.061%.

    Attributes
    ----------
    n_bins : int
        Number of bins M.
    resolution : int
        Minimum number of fine bins in [0, 1]. There can be more, because every bin contains a whole number
        of fine bins. With 1, the bins are not subdivided.
    """

    n_bins: int
    resolution: int = _FINE_BINS

    @cached_property
    def pieces(self) -> IntArray:
        """Number of fine bins in every bin, (M,)."""
        return np.maximum(1, np.ceil(np.diff(self._angles) * self.resolution - 1e-9)).astype(np.int64)

    @cached_property
    def first(self) -> IntArray:
        """Index of the first fine bin of every bin, (M,)."""
        return np.asarray(np.cumsum(self.pieces) - self.pieces)

    @property
    def size(self) -> int:
        """Number of fine bins T."""
        return int(self.pieces.sum())

    def edges(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Edges of the fine bins, rounded to `dtype`, (T + 1,). They include the edges of the bins."""
        angle = np.repeat(self._angles[:-1], self.pieces)
        step = np.repeat(np.diff(self._angles) / self.pieces, self.pieces)
        angle += step * (np.arange(self.size) - np.repeat(self.first, self.pieces))
        edges = np.append(np.sin(angle * (np.pi / 2)) ** 2, 1).astype(dtype)
        edges[self.first] = width_edges(self.n_bins, dtype)[:-1]
        return edges

    def index(self, confidence: FloatArray) -> IntArray:
        """Index ``t`` of the fine bin ``(edges[t], edges[t + 1]]`` of every confidence; 0 is in bin 0."""
        table, upper, n_steps = self._lookup(confidence.dtype)
        if n_steps > _MAX_LOOKUP_STEPS:
            return np.searchsorted(upper[:-1], confidence, side="left")
        index = table[(confidence * confidence.dtype.type(_LOOKUP_SIZE)).astype(np.int64)]
        for _ in range(n_steps):
            index += confidence > upper[index]
        return index

    def merged(self, table: NDArray[Any]) -> NDArray[Any]:
        """Sums over the fine bins of every bin; the last axis of the result has length M instead of T."""
        return np.asarray(np.add.reduceat(table, self.first, axis=-1))

    @cached_property
    def _angles(self) -> Float:
        """Angle ``θ = arcsin √p`` of every edge p of the bins, as a fraction of a right angle, (M + 1,)."""
        return np.asarray(np.arcsin(np.sqrt(width_edges(self.n_bins, np.dtype(np.float64)))) / (np.pi / 2))

    @cached_property
    def _tables(self) -> dict[np.dtype[Any], tuple[IntArray, NDArray[Any], int]]:
        """Results of :meth:`_lookup` by dtype."""
        return {}

    def _lookup(self, dtype: np.dtype[Any]) -> tuple[IntArray, NDArray[Any], int]:
        """Lookup table of the fine bins for confidences of this dtype.

        Returns
        -------
        table : fine bin of each multiple of ``1/_LOOKUP_SIZE``
        upper : (T,) upper edges of the fine bins, the last one infinite
        n_steps : largest number of edges between two adjacent multiples of ``1/_LOOKUP_SIZE``
        """
        if dtype not in self._tables:
            inner = self.edges(dtype)[1:-1]
            multiples = np.arange(_LOOKUP_SIZE + 1, dtype=dtype) / dtype.type(_LOOKUP_SIZE)
            table = np.searchsorted(inner, multiples, side="left")
            n_steps = int(np.diff(table, append=len(inner)).max())
            self._tables[dtype] = table, np.append(inner, dtype.type(np.inf)), n_steps
        return self._tables[dtype]


@dataclass(frozen=True, eq=False)
class FineCells:
    """Sums per predicted class and fine bin.

    They suffice to compute the noise floor: the calibration error that a calibrated model with the same
    confidences has by chance.

    Attributes
    ----------
    count, confidence : (K, T) float64 arrays
        Number of rows and sum of their confidences.
    bins : FineBins
    """

    count: Float
    confidence: Float
    bins: FineBins


def reliability_curve(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    transition: ArrayLike | None = None,
    n_bins: int = 15,
    binning: Binning = "width",
    rows: ArrayLike | None = None,
) -> ReliabilityCurve:
    """Compute the mean confidence and the accuracy of the rows in every confidence bin.

    Parameters
    ----------
    probs : (n, K) probabilities, or the (n,) confidences together with `predicted`
    labels : (n,) classes as integers or class names, or (n, K) soft labels or counts
        Soft labels and counts need the probabilities of all classes.
    predicted : (n,) predicted classes, if `probs` contains only the confidences
    class_names : K strings; by default the column names of a data frame
    transition : (K, K) matrix or noise rates of the labels, see :mod:`hetcal.metrics.scores`
    n_bins : number of bins M
    binning : ``"width"`` for bins ``(i/M, (i+1)/M]``, ``"mass"`` for bins with about equal numbers of rows
    rows : (n,) bool mask, or a list of row numbers
        The rows to use, for example ``labels < 50``. By default, all rows are used.

    Examples
    --------
    >>> curve = reliability_curve([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], n_bins=2)
    >>> curve.count
    array([0, 3])
    >>> curve.gap.round(3)
    array([ nan, 0.133])
    """
    check_binning(n_bins, binning)
    top = reduce_to_top_label(probs, labels, predicted, class_names, transition)
    confidence, correct = top.confidence, top.correct
    if rows is not None:
        selection = _check_rows(rows, len(confidence))
        confidence, correct = confidence[selection], correct[selection]
    table = cells(confidence, correct, n_bins=n_bins, binning=binning)
    return _curve(table, 0, bin_edges(confidence, n_bins=n_bins, binning=binning))


def reliability_by_class(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    transition: ArrayLike | None = None,
    n_bins: int = 15,
    binning: Binning = "width",
) -> tuple[ReliabilityCurve, ...]:
    """Compute a reliability curve for each of the K classes, from the rows predicted as the class.

    The parameters are those of :func:`reliability_curve`, except that there is no `rows`.

    Examples
    --------
    >>> curves = reliability_by_class([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1])
    >>> [curve.n for curve in curves]
    [2, 1]
    """
    check_binning(n_bins, binning)
    top = reduce_to_top_label(probs, labels, predicted, class_names, transition)
    table = class_cells(top, n_bins, binning)
    if binning == "width":
        edges = [bin_edges(top.confidence, n_bins=n_bins, binning=binning)] * top.n_classes
    else:
        by_class = (top.confidence[top.predicted == k] for k in range(top.n_classes))
        edges = [bin_edges(confidence, n_bins=n_bins, binning=binning) for confidence in by_class]
    return tuple(_curve(table, k, edges[k]) for k in range(top.n_classes))


def check_binning(n_bins: int, binning: Binning, norm: Norm = "l1") -> None:
    """Raise an error if the number of bins, the kind of bins or the norm is invalid."""
    check_integer(n_bins, "n_bins", minimum=1)
    choose(dict.fromkeys(get_args(Binning)), binning, "binning")
    choose(dict.fromkeys(get_args(Norm)), norm, "norm")


def reduce_to_top_label(
    probs: ArrayLike,
    labels: ArrayLike,
    predicted: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    transition: ArrayLike | None = None,
) -> TopLabel:
    """Validate the input of a metric, and reduce it to predicted class, confidence and correctness.

    The number of classes of the result is the number of columns of `probs`. If `predicted` is passed, it is
    one more than the largest class in `predicted` and `labels`, or the number of `class_names` if that is
    larger.
    """
    if predicted is None:
        p = check_probs(probs, shape_remedy=GIVE_PREDICTED)
        options: dict[str, Any] = {"n_rows": len(p), "n_classes": p.shape[1], "class_names": class_names}
        return top_label_of(p, *check_observed_labels(labels, transition, **options, table=probs))
    refuse_transition(transition, "if predicted is passed, got both; pass the probabilities of all classes")
    confidence, guess, y = check_top_label(probs, labels, predicted, class_names)
    n_classes = 1 + int(max(guess.max(), y.max()))
    if n_classes > _MAX_CLASSES:
        raise ValueError(
            f"labels and predicted must lie in 0..{_MAX_CLASSES - 1}, got {n_classes - 1}; "
            "number the classes from 0 without gaps"
        )
    if class_names is not None:
        n_classes = max(n_classes, np.size(np.asarray(class_names, dtype=object)))
    return TopLabel(confidence, guess, guess == y, n_classes)


def top_label_of(p: FloatArray, labels: NDArray[Any], transition: Float | None = None) -> TopLabel:
    """Reduce validated probabilities (n, K) and labels to a `TopLabel`.

    Labels are hard (n,) or soft (n, K). Hard labels are taken to be noisy if `transition` is passed.
    """
    (confidence, guess), n_classes = top_label(p), p.shape[1]
    if labels.ndim == 2:
        agreement, correct = soft_agreement(confidence, guess, labels, n_classes)
        return TopLabel(confidence, guess, correct, n_classes, agreement)
    if transition is not None:
        agreement, correct = noisy_agreement(p, confidence, guess, labels, transition)
        return TopLabel(confidence, guess, correct, n_classes, agreement)
    return TopLabel(confidence, guess, guess == labels, n_classes)


def class_cells(top: TopLabel, n_bins: int, binning: Binning) -> Cells:
    """Cells with one slice per predicted class, (K, M)."""
    return cells(
        top.confidence,
        top.correct,
        slices=top.predicted,
        n_slices=top.n_classes,
        n_bins=n_bins,
        binning=binning,
    )


def pooled_cells(top: TopLabel, n_bins: int, binning: Binning) -> Cells:
    """Cells with all rows in one slice, (1, M)."""
    return cells(top.confidence, top.correct, n_bins=n_bins, binning=binning)


def cells(
    confidence: FloatArray,
    correct: NDArray[Any],
    *,
    slices: IntArray | None = None,
    n_slices: int = 1,
    n_bins: int = 15,
    binning: Binning = "width",
) -> Cells:
    """Count the rows and sum their confidence and correctness in every slice and bin.

    Parameters
    ----------
    confidence : (n,) float array
    correct : (n,) bool or float array
    slices : (n,) int array in 0..S-1
        Slice of every row. By default all rows form one slice.
    n_slices : number of slices S
    n_bins, binning : as in :func:`bin_index`

    Returns
    -------
    Cells
        With arrays of shape (S, M).
    """
    cell = cell_index(confidence, n_bins=n_bins, binning=binning, slices=slices)
    size, shape = n_slices * n_bins, (n_slices, n_bins)
    count = np.bincount(cell, minlength=size).astype(np.float64)
    summands = [confidence, correct, *([] if correct.dtype == bool else [correct**2])]
    return Cells(count.reshape(shape), *(group_sum(cell, a, size).reshape(shape) for a in summands))


def cell_index(
    confidence: FloatArray, *, n_bins: int = 15, binning: Binning = "width", slices: IntArray | None = None
) -> IntArray:
    """Index of the cell of every row: ``slice·M + bin``, in 0..S·M-1."""
    index = bin_index(confidence, n_bins=n_bins, binning=binning, slices=slices)
    return index if slices is None else slices * n_bins + index


def bin_index(
    confidence: FloatArray, *, n_bins: int = 15, binning: Binning = "width", slices: IntArray | None = None
) -> IntArray:
    """Bin of every row, in 0..M-1.

    ``"width"``: bin ``i`` is ``(i/M, (i+1)/M]``; 0 belongs to the first bin. Edges are rounded to the dtype
    of the confidences: a float32 0.6 equals the edge 6/10 and falls into the bin below that edge.

    ``"mass"``: the ``n`` rows of a slice are ranked in ascending order of confidence, starting with rank 0.
    Rows with equal confidences all get the lowest of their ranks. A row of rank ``r`` falls into bin
    ``⌊r M / n⌋``.

    Examples
    --------
    >>> bin_index(np.array([0.0, 0.07, 0.0701, 1.0]), n_bins=100)
    array([ 0,  6,  7, 99])
    >>> bin_index(np.array([0.9, 0.5, 0.9, 0.6]), n_bins=2, binning="mass")
    array([1, 0, 1, 0])
    """
    if binning == "width":
        return _width_index(confidence, n_bins)
    return _mass_index(confidence, n_bins, slices)


def bin_edges(confidence: FloatArray, *, n_bins: int = 15, binning: Binning = "width") -> Float:
    """Edges (M + 1,) of the bins ``(edges[b], edges[b + 1]]`` to which :func:`bin_index` assigns the rows.

    The edges are float64. For ``"width"``, :func:`bin_index` rounds them to the dtype of `confidence`.
    """
    if binning == "width":
        return width_edges(n_bins, np.dtype(np.float64))
    edges = np.zeros(n_bins + 1)
    np.maximum.at(edges, _mass_index(confidence, n_bins, None) + 1, confidence)
    edges = np.maximum.accumulate(edges)
    edges[-1] = 1.0
    return edges


def width_edges(n_bins: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Edges (M + 1,) of bins of equal width, rounded to `dtype`."""
    return np.asarray(np.arange(n_bins + 1, dtype=dtype) / dtype.type(n_bins))


def calibration_error(count: Float, residual: Float, norm: Norm = "l1") -> Float:
    """Calibration error of every slice, computed from its cells, (..., S); nan for a slice without rows.

    With ``w_b = n_b/n`` and ``gap_b = residual_b/n_b``, it is ``Σ_b w_b·abs(gap_b)`` for ``"l1"`` and
    ``√(Σ_b w_b·gap_b²)`` for ``"l2"``.

    Parameters
    ----------
    count : (..., S, M) number of rows per cell
    residual : (..., S, M) sum of ``confidence - correct`` per cell
    norm : ``"l1"`` or ``"l2"``
    """
    n = count.sum(axis=-1)
    safe_n = np.maximum(n, 1)
    if norm == "l1":
        error = np.abs(residual).sum(axis=-1) / safe_n
    else:
        error = np.sqrt((residual**2 / np.maximum(count, 1)).sum(axis=-1) / safe_n)
    return np.where(n > 0, error, np.nan)


def fine_cells(top: TopLabel, bins: FineBins) -> FineCells:
    """Count the rows and sum their confidences per predicted class and fine bin."""
    count, total = (np.zeros((top.n_classes, bins.size)) for _ in range(2))
    for start, stop in chunk_ranges(len(top.confidence), _CHUNK_ROWS):
        confidence = top.confidence[start:stop]
        cell = top.predicted[start:stop] * bins.size + bins.index(confidence)
        np.add.at(count.reshape(-1), cell, 1.0)
        np.add.at(total.reshape(-1), cell, confidence.astype(np.float64))
    return FineCells(count, total, bins)


def group_sum(group: IntArray, values: NDArray[Any], n_groups: int) -> Float:
    """Sum of the values of every group, in float64."""
    return np.asarray(np.bincount(group, weights=values, minlength=n_groups), dtype=np.float64)


def chunk_ranges(n: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield ``(start, stop)`` of consecutive ranges that cover 0..n-1, with at most `step` elements each."""
    return ((start, min(start + step, n)) for start in range(0, n, step))


def _curve(table: Cells, k: int, edges: Float) -> ReliabilityCurve:
    """Reliability curve of slice `k`."""
    count, confidence, correct = table.count[k], table.confidence[k], table.correct[k]
    safe_count = np.where(count > 0, count, np.nan)
    return ReliabilityCurve(edges, count.astype(np.int64), confidence / safe_count, correct / safe_count)


def _check_rows(rows: ArrayLike, n: int) -> NDArray[Any]:
    selection = np.asarray(rows)
    if selection.ndim != 1 or (selection.dtype == bool and len(selection) != n):
        raise ValueError(
            f"rows must be a bool mask of length {n} or a list of row numbers, got shape {selection.shape}; "
            "pass one bool per row, or row numbers"
        )
    if selection.dtype.kind not in "biu":
        raise TypeError(
            f"rows must be a bool mask or row numbers, got dtype {selection.dtype}; use int or bool"
        )
    if not (selection.any() if selection.dtype == bool else selection.size):
        raise ValueError("rows must select at least one row, got none; omit rows to use all")
    if selection.dtype != bool and (selection.min() < 0 or selection.max() >= n):
        raise ValueError(
            f"rows must be row numbers in 0..{n - 1}, got {selection.min()}..{selection.max()}; "
            "remove the numbers outside this range"
        )
    return selection


def _width_index(confidence: FloatArray, n_bins: int) -> IntArray:
    edges = width_edges(n_bins, confidence.dtype)
    if n_bins > _MAX_DIRECT_BINS or confidence.itemsize < 4:
        return np.searchsorted(edges[1:-1], confidence, side="left")
    # Multiplication is faster than a binary search, but rounding can shift a row to an adjacent bin. Every
    # confidence is therefore compared with the two edges of its bin.
    edges[0], edges[-1] = -np.inf, np.inf
    index = np.clip((confidence * confidence.dtype.type(n_bins)).astype(np.int64), 0, n_bins - 1)
    index -= confidence <= edges[index]
    index += confidence > edges[index + 1]
    return index


def _mass_index(confidence: FloatArray, n_bins: int, slices: IntArray | None) -> IntArray:
    s = np.zeros(len(confidence), dtype=np.int64) if slices is None else slices
    order = np.lexsort((confidence, s))
    c, s = confidence[order], s[order]
    position = np.arange(len(c))
    new_slice = np.r_[True, s[1:] != s[:-1]][: len(c)]
    new_value = new_slice | np.r_[True, c[1:] != c[:-1]][: len(c)]
    rank = np.maximum.accumulate(position * new_value) - np.maximum.accumulate(position * new_slice)
    bins = np.empty(len(c), dtype=np.int64)
    bins[order] = rank * n_bins // np.bincount(s)[s] if len(c) else 0
    return bins
