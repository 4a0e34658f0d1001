"""Non-parametric maps of the confidence: isotonic regression and histogram binning."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression

from hetcal._numeric.passes import sum_slices, top_margin
from hetcal._numeric.source import Source
from hetcal._typing import BoolArray, Float, IntArray
from hetcal.calibrators.base import Calibrator
from hetcal.export import maps
from hetcal.metrics.binning import bin_edges, check_binning

__all__ = ["TopLabelHistogram", "TopLabelIsotonic", "fit_confidence"]


# Confidences within this distance, relative to their distance from 1, count as equal. Other runtimes compute
# in float32, where rounding would put equal scores, as from a forest, on both sides of a bin edge.
_TOLERANCE = 1e-6
_MAX_RANGE = 1e-5  # maximum range of the confidences that are merged into one


class TopLabelIsotonic(Calibrator):
    """A non-decreasing, piecewise linear map from confidence to accuracy, by isotonic regression.

    Attributes
    ----------
    x_, y_ : knots of the map; confidences between them are interpolated

    Examples
    --------
    >>> z = np.array([[2.0, 0.0]] * 4 + [[5.0, 0.0]] * 4)
    >>> cal = TopLabelIsotonic().fit(z, [0, 1, 0, 0] + [0, 0, 0, 0])
    >>> cal.predict_proba([[2.0, 0.0]])
    array([[0.75, 0.25]])
    """

    preserves_decision = True

    def _needs_memory(self) -> bool:
        return True

    def _fit(self, source: Source) -> None:
        rows = source.in_memory(type(self).__name__).rows
        fit_confidence(self, expit(top_margin(rows.z, rows.guess)[0]), rows.right, rows.weight)

    def _map(self) -> maps.Map:
        return maps.Curve(np.asarray(self.x_, np.float64), np.asarray(self.y_, np.float64))


class TopLabelHistogram(Calibrator):
    """Histogram binning: every confidence is replaced by the accuracy of its bin.

    Parameters
    ----------
    n_bins : int
    binning : "mass" for bins with equal numbers of rows (by weight, if there are weights), "width" for equal
        width

    Attributes
    ----------
    edges_ : (M + 1,) edges of the bins ``(lo, hi]``
    values_ : (M,) accuracy of each bin; the midpoint for empty bins
    """

    preserves_decision = True

    def __init__(self, n_bins: int = 15, binning: Literal["width", "mass"] = "mass") -> None:
        self.n_bins = n_bins
        self.binning = binning

    def _needs_memory(self) -> bool:
        return True

    def _fit(self, source: Source) -> None:
        rows = source.in_memory(type(self).__name__).rows
        fit_confidence(self, expit(top_margin(rows.z, rows.guess)[0]), rows.right, rows.weight)

    def _map(self) -> maps.Map:
        return maps.Steps(np.asarray(self.edges_, np.float64), np.asarray(self.values_, np.float64))


def fit_confidence(
    model: TopLabelIsotonic | TopLabelHistogram, confidence: Float, correct: BoolArray, weight: Float
) -> None:
    """Fit to confidences, their correctness and weights, (n,) each."""
    fit = _fit_isotonic if isinstance(model, TopLabelIsotonic) else _fit_histogram
    fit(model, confidence, correct, weight)


def _fit_isotonic(model: Any, confidence: Float, correct: BoolArray, weight: Float) -> None:
    value, position = _merge(confidence)
    total = sum_slices(position, weight, len(value))
    hits = sum_slices(position, weight * correct, len(value))
    curve = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
    curve.fit(value, hits / total, sample_weight=total)
    model.x_, model.y_ = curve.X_thresholds_, curve.y_thresholds_


def _fit_histogram(model: Any, confidence: Float, correct: BoolArray, weight: Float) -> None:
    check_binning(model.n_bins, model.binning)
    edges = bin_edges(confidence, n_bins=model.n_bins, binning=model.binning)
    if model.binning == "mass":
        edges = _weighted_edges(confidence, weight, model.n_bins)
    else:
        inner = edges[1:-1]
        inner += _TOLERANCE * np.isclose(inner, _nearest(confidence, inner), rtol=0, atol=_TOLERANCE)
    model.edges_ = np.unique(edges)
    cell, n_cells = _bin(confidence, model.edges_), len(model.edges_) - 1
    total = sum_slices(cell, weight, n_cells)
    hits = sum_slices(cell, weight * correct, n_cells)
    midpoint = (model.edges_[1:] + model.edges_[:-1]) / 2
    model.values_ = np.divide(hits, total, out=midpoint, where=total > 0)


def _weighted_edges(confidence: Float, weight: Float, n_bins: int) -> Float:
    """Edges of bins of equal weight; with equal weights they are those of `bin_edges`."""
    value, position = _merge(confidence)
    mass = sum_slices(position, weight, len(value))
    below = np.cumsum(mass) - mass
    # The tolerance makes ranks on an edge independent of the scale of the weights.
    cell = np.floor(below * n_bins / mass.sum() + 1e-9).astype(np.int64)
    last = np.flatnonzero(cell[1:] != cell[:-1])
    return np.asarray(np.r_[0.0, (value[last] + value[last + 1]) / 2, 1.0])


def _merge(confidence: Float) -> tuple[Float, IntArray]:
    """Distinct confidences in increasing order, nearly equal ones averaged, and the position of each row."""
    order = np.argsort(confidence)
    ordered = confidence[order]
    doubt = -np.log(np.maximum(1 - ordered, 1e-17))  # distances are relative to the distance from 1
    chain = np.cumsum(np.r_[False, np.diff(doubt) > _TOLERANCE])
    first = doubt[np.searchsorted(chain, chain)]  # first value in the chain of close neighbours
    step = np.floor((doubt - first) / _MAX_RANGE).astype(np.int64)
    group = np.cumsum(np.r_[False, (np.diff(chain) > 0) | (np.diff(step) > 0)])
    position = np.empty(len(confidence), np.int64)
    position[order] = group
    return np.bincount(group, ordered) / np.bincount(group), position


def _nearest(values: Float, targets: Float) -> Float:
    """The element of `values` nearest to each target, in the shape of `targets`."""
    ordered = np.sort(values)
    index = np.clip(np.searchsorted(ordered, targets), 1, max(len(ordered) - 1, 1))
    left, right = ordered[index - 1], ordered[np.minimum(index, len(ordered) - 1)]
    return np.asarray(np.where(targets - left <= right - targets, left, right))


def _bin(confidence: Float, edges: Float) -> IntArray:
    return np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, len(edges) - 2)
