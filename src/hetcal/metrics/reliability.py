"""The only binning: rows to ``(slice, bin)`` cells, from which all calibration errors and diagrams come."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcal._typing import FloatArray, IntArray
from hetcal._validate import check_top_label, choose

__all__ = [
    "Binning",
    "Cells",
    "Norm",
    "ReliabilityCurve",
    "TopLabel",
    "bin_edges",
    "bin_index",
    "calibration_error",
    "cells",
    "check_positive",
    "group_sum",
    "reduce_to_top_label",
    "reliability_by_class",
    "reliability_curve",
    "width_edges",
]

Binning = Literal["width", "mass"]
Norm = Literal["l1", "l2"]

# A label above this is a mistake (an identifier, a time stamp), and its table would fill the memory.
_MOST_CLASSES = 1 << 24
_MOST_GUESSED = 1 << 10  # bins of equal width whose number in float32 is right to one


@dataclass(frozen=True, eq=False)
class TopLabel:
    """What is left of a prediction after the softmax, and all that calibration of the top label needs.

    Attributes
    ----------
    confidence : (n,) float array
    predicted : (n,) int array
    correct : (n,) bool array
    n_classes : int
    """

    confidence: FloatArray
    predicted: IntArray
    correct: NDArray[np.bool_]
    n_classes: int


@dataclass(frozen=True, eq=False)
class Cells:
    """Sums per slice and bin, made in one pass over the rows.

    Attributes
    ----------
    count, confidence, correct : (S, M) float64 arrays
        Rows, sum of confidences and number of right predictions in every cell. Slices are the predicted
        classes, or all rows together (S = 1).
    """

    count: NDArray[np.float64]
    confidence: NDArray[np.float64]
    correct: NDArray[np.float64]

    @property
    def residual(self) -> NDArray[np.float64]:
        """Sum of ``confidence - correct`` in every cell, (S, M)."""
        return self.confidence - self.correct

    def merged(self) -> Cells:
        """All slices as one, (1, M). Meaningful for bins of equal width, which all slices share."""
        return Cells(*(a.sum(axis=0, keepdims=True) for a in (self.count, self.confidence, self.correct)))


@dataclass(frozen=True, eq=False)
class ReliabilityCurve:
    """Confidence and accuracy per bin: the numbers behind a reliability diagram.

    Attributes
    ----------
    edges : (M + 1,) array
        Bin ``b`` is ``(edges[b], edges[b + 1]]``; 0 belongs to the first bin.
    count : (M,) int array
    confidence, accuracy : (M,) arrays
        Means over the rows of the bin, nan in empty bins.
    """

    edges: NDArray[np.float64]
    count: IntArray
    confidence: NDArray[np.float64]
    accuracy: NDArray[np.float64]

    @property
    def gap(self) -> NDArray[np.float64]:
        """Confidence − accuracy per bin, (M,): above zero where over-confident, nan in empty bins."""
        return self.confidence - self.accuracy

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.count.sum())

    @property
    def mean_confidence(self) -> float:
        """Mean confidence of all rows, nan where there are none."""
        return self._mean(self.confidence)

    @property
    def mean_accuracy(self) -> float:
        """Accuracy over all rows, nan where there are none."""
        return self._mean(self.accuracy)

    @property
    def ece(self) -> float:
        """Σ_b (n_b / n)·abs(gap_b), nan where there are no rows."""
        return self._mean(np.abs(self.gap))

    def to_dict(self) -> dict[str, list[float | None]]:
        """Columns as plain lists, ready for JSON; None in place of nan."""
        columns = {"low": self.edges[:-1], "high": self.edges[1:], "count": self.count}
        columns |= {"confidence": self.confidence, "accuracy": self.accuracy, "gap": self.gap}
        return {name: [None if v != v else v for v in a.tolist()] for name, a in columns.items()}

    def _mean(self, per_bin: NDArray[np.float64]) -> float:
        used = self.count > 0
        return float(np.average(per_bin[used], weights=self.count[used])) if used.any() else float("nan")


def reliability_curve(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    n_bins: int = 15,
    binning: Binning = "width",
    rows: ArrayLike | None = None,
) -> ReliabilityCurve:
    """Confidence and accuracy per confidence bin.

    Parameters
    ----------
    probs : (n, K) probabilities, or the (n,) confidence together with `predicted`
    labels : (n,) true classes
    predicted : (n,) predicted classes, for top-1 dumps
    n_bins : number of bins M
    binning : ``"width"`` for bins ``(i/M, (i+1)/M]``, ``"mass"`` for bins with like numbers of rows
    rows : (n,) bool mask or row numbers
        The rows to look at, for example ``labels < 50``; all of them by default.

    Examples
    --------
    >>> curve = reliability_curve([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], n_bins=2)
    >>> curve.count
    array([0, 3])
    >>> curve.gap.round(3)
    array([ nan, 0.133])
    """
    top = reduce_to_top_label(probs, labels, predicted)
    confidence, correct = top.confidence, top.correct
    if rows is not None:
        chosen = _check_rows(rows, len(confidence))
        confidence, correct = confidence[chosen], correct[chosen]
    table = cells(confidence, correct, n_bins=n_bins, binning=binning)
    return _curve(table, 0, bin_edges(confidence, n_bins=n_bins, binning=binning))


def reliability_by_class(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    n_bins: int = 15,
    binning: Binning = "width",
) -> tuple[ReliabilityCurve, ...]:
    """One :func:`reliability_curve` per class, over the rows predicted as that class; K curves.

    Examples
    --------
    >>> curves = reliability_by_class([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1])
    >>> [curve.n for curve in curves]
    [2, 1]
    """
    top = reduce_to_top_label(probs, labels, predicted)
    table = cells(
        top.confidence,
        top.correct,
        slices=top.predicted,
        n_slices=top.n_classes,
        n_bins=n_bins,
        binning=binning,
    )
    if binning == "width":
        edges = [bin_edges(top.confidence, n_bins=n_bins, binning=binning)] * top.n_classes
    else:
        parts = (top.confidence[top.predicted == k] for k in range(top.n_classes))
        edges = [bin_edges(part, n_bins=n_bins, binning=binning) for part in parts]
    return tuple(_curve(table, k, edges[k]) for k in range(top.n_classes))


def reduce_to_top_label(probs: ArrayLike, labels: ArrayLike, predicted: ArrayLike | None = None) -> TopLabel:
    """Check the input of a metric and reduce it to confidence, prediction and correctness.

    K is the number of columns; in the top-1 form the largest class seen in `predicted` or `labels`, plus one.
    """
    confidence, guess, y = check_top_label(probs, labels, predicted)
    if predicted is None:
        n_classes = np.shape(probs)[1]
    else:
        n_classes = 1 + int(max(guess.max(), y.max()))
        if n_classes > _MOST_CLASSES:
            raise ValueError(
                f"labels and predicted must lie in 0..{_MOST_CLASSES - 1}, got {n_classes - 1}; "
                "number the classes from 0 without holes"
            )
    return TopLabel(confidence, guess, guess == y, n_classes)


def cells(
    confidence: FloatArray,
    correct: NDArray[np.bool_],
    *,
    slices: IntArray | None = None,
    n_slices: int = 1,
    n_bins: int = 15,
    binning: Binning = "width",
) -> Cells:
    """Count, Σ confidence and Σ correct for every slice and bin.

    Parameters
    ----------
    confidence : (n,) float array
    correct : (n,) bool array
    slices : (n,) int array in 0..S-1
        All rows are one slice by default.

    Returns
    -------
    Cells
        With (S, M) tables.
    """
    cell = bin_index(confidence, n_bins=n_bins, binning=binning, slices=slices)
    if slices is not None:
        cell = slices * n_bins + cell
    size, shape = n_slices * n_bins, (n_slices, n_bins)
    count = np.bincount(cell, minlength=size).astype(np.float64)
    sums = (group_sum(cell, values, size).reshape(shape) for values in (confidence, correct))
    return Cells(count.reshape(shape), *sums)


def bin_index(
    confidence: FloatArray, *, n_bins: int = 15, binning: Binning = "width", slices: IntArray | None = None
) -> IntArray:
    """Bin of every row, in 0..M-1.

    ``"width"``: bin ``i`` is ``(i/M, (i+1)/M]`` with 0 in the first. Edges are rounded in the dtype of the
    confidence, so a float32 0.6 equals the edge 6/10 and lands below it.

    ``"mass"``: rank ``r`` of ``n`` rows goes to bin ``⌊r M / n⌋``, where equal confidences share the lowest
    of their ranks. Ranks count within each slice.

    Examples
    --------
    >>> bin_index(np.array([0.0, 0.07, 0.0701, 1.0]), n_bins=100)
    array([ 0,  6,  7, 99])
    >>> bin_index(np.array([0.9, 0.5, 0.9, 0.6]), n_bins=2, binning="mass")
    array([1, 0, 1, 0])
    """
    check_positive(n_bins, "n_bins")
    return choose(_INDEX, binning, "binning")(confidence, n_bins, slices)


def bin_edges(confidence: FloatArray, *, n_bins: int = 15, binning: Binning = "width") -> NDArray[np.float64]:
    """Edges (M + 1,) of the bins ``(edges[b], edges[b + 1]]`` that :func:`bin_index` puts `confidence` in."""
    check_positive(n_bins, "n_bins")
    return choose(_EDGES, binning, "binning")(confidence, n_bins)


def width_edges(n_bins: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Edges (M + 1,) of bins of equal width, rounded in `dtype`."""
    return np.asarray(np.arange(n_bins + 1, dtype=dtype) / dtype.type(n_bins))


def calibration_error(
    count: NDArray[np.float64], residual: NDArray[np.float64], norm: Norm = "l1"
) -> NDArray[np.float64]:
    """Calibration error of every slice from its cells, (..., S, M) to (..., S); nan for a slice without rows.

    With ``w_b = n_b/n`` and ``gap_b = residual_b/n_b``: ``Σ_b w_b·abs(gap_b)`` for ``"l1"``,
    ``√(Σ_b w_b·gap_b²)`` for ``"l2"``.

    Parameters
    ----------
    count : (..., S, M) rows per cell
    residual : (..., S, M) sum of ``confidence - correct`` per cell
    """
    n = count.sum(axis=-1)
    error = choose(_ERROR, norm, "norm")(count, residual, np.maximum(n, 1))
    return np.where(n > 0, error, np.nan)


def group_sum(group: IntArray, values: NDArray[Any], n_groups: int) -> NDArray[np.float64]:
    """Sum of the values of every group, in float64."""
    return np.asarray(np.bincount(group, weights=values, minlength=n_groups), dtype=np.float64)


def check_positive(count: int, name: str) -> None:
    """Refuse anything but a positive integer."""
    try:
        good = operator.index(count) > 0 and not isinstance(count, bool)
    except TypeError:
        good = False
    if not good:
        raise ValueError(f"{name} must be a positive integer, got {count!r}")


def _curve(table: Cells, s: int, edges: NDArray[np.float64]) -> ReliabilityCurve:
    count, confidence, correct = table.count[s], table.confidence[s], table.correct[s]
    safe = np.where(count > 0, count, np.nan)
    return ReliabilityCurve(edges, count.astype(np.int64), confidence / safe, correct / safe)


def _check_rows(rows: ArrayLike, n: int) -> NDArray[Any]:
    chosen = np.asarray(rows)
    if chosen.ndim != 1 or (chosen.dtype == bool and len(chosen) != n):
        raise ValueError(f"rows must be a mask of length {n} or row numbers, got shape {chosen.shape}")
    if chosen.dtype.kind not in "biu":
        raise TypeError(f"rows must be a bool mask or row numbers, got dtype {chosen.dtype}")
    if not (chosen.any() if chosen.dtype == bool else chosen.size):
        raise ValueError("rows must select at least one row, got none")
    if chosen.dtype != bool and (chosen.min() < 0 or chosen.max() >= n):
        raise ValueError(f"rows must be row numbers in 0..{n - 1}, got {chosen.min()}..{chosen.max()}")
    return chosen


def _width_index(confidence: FloatArray, n_bins: int, slices: IntArray | None) -> IntArray:  # noqa: ARG001
    edges = width_edges(n_bins, confidence.dtype)
    if n_bins > _MOST_GUESSED or confidence.itemsize < 4:
        return np.searchsorted(edges[1:-1], confidence, side="left")
    # Quicker than a search: the product is off by rounding alone, so look at the edges on either side.
    edges[0], edges[-1] = -np.inf, np.inf
    at = np.clip((confidence * confidence.dtype.type(n_bins)).astype(np.int64), 0, n_bins - 1)
    at -= confidence <= edges[at]
    at += confidence > edges[at + 1]
    return at


def _mass_index(confidence: FloatArray, n_bins: int, slices: IntArray | None) -> IntArray:
    s = np.zeros(len(confidence), dtype=np.int64) if slices is None else slices
    order = np.lexsort((confidence, s))
    c, s = confidence[order], s[order]
    at = np.arange(len(c))
    new_slice = np.r_[True, s[1:] != s[:-1]][: len(c)]
    new_value = new_slice | np.r_[True, c[1:] != c[:-1]][: len(c)]
    rank = np.maximum.accumulate(at * new_value) - np.maximum.accumulate(at * new_slice)
    bins = np.empty(len(c), dtype=np.int64)
    bins[order] = rank * n_bins // np.bincount(s)[s] if len(c) else 0
    return bins


def _width_edges(confidence: FloatArray, n_bins: int) -> NDArray[np.float64]:  # noqa: ARG001
    return width_edges(n_bins, np.dtype(np.float64))


def _mass_edges(confidence: FloatArray, n_bins: int) -> NDArray[np.float64]:
    edges = np.zeros(n_bins + 1)
    np.maximum.at(edges, _mass_index(confidence, n_bins, None) + 1, confidence)
    edges = np.maximum.accumulate(edges)
    edges[-1] = 1.0
    return edges


def _l1(
    count: NDArray[np.float64],  # noqa: ARG001
    residual: NDArray[np.float64],
    n: NDArray[np.float64],
) -> NDArray[np.float64]:
    return np.asarray(np.abs(residual).sum(axis=-1) / n)


def _l2(
    count: NDArray[np.float64], residual: NDArray[np.float64], n: NDArray[np.float64]
) -> NDArray[np.float64]:
    return np.asarray(np.sqrt((residual**2 / np.maximum(count, 1)).sum(axis=-1) / n))


_INDEX: dict[str, Callable[..., IntArray]] = {"width": _width_index, "mass": _mass_index}
_EDGES: dict[str, Callable[..., NDArray[np.float64]]] = {"width": _width_edges, "mass": _mass_edges}
_ERROR: dict[str, Callable[..., NDArray[np.float64]]] = {"l1": _l1, "l2": _l2}
