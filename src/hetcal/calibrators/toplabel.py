"""Non-parametric maps of the confidence: isotonic regression and histogram binning."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression

from hetcal._numeric.passes import sum_slices, top_margin
from hetcal._numeric.source import Source
from hetcal._typing import Float, IntArray
from hetcal.calibrators.base import Calibrator
from hetcal.export import maps
from hetcal.metrics.binning import bin_edges, check_binning

__all__ = ["TopLabelHistogram", "TopLabelIsotonic"]


# Confidences count as equal if they differ by at most this, relative to their distance from 1. Otherwise
# rounding in runtimes that compute in float32 could move rows with equal scores, such as those of a random
# forest, to different sides of a bin edge.
_TOLERANCE = 1e-6
_MAX_RANGE = 1e-5  # maximum range of confidences that are merged into one, relative to their distance from 1


class _TopLabelCalibrator(Calibrator, register=False):
    """A calibrator that maps only the confidence; the other classes share the remaining probability."""

    preserves_decision = True

    def _fit_confidence(self, confidence: Float, correct: NDArray[Any], weight: Float) -> None:
        """Fit to confidences, correctness (see `Rows.correctness`) and weights of the rows, (n,) each."""
        raise NotImplementedError

    def _needs_memory(self) -> bool:
        return True

    def _fit(self, source: Source) -> None:
        rows = source.in_memory(type(self).__name__).rows
        self._fit_confidence(expit(top_margin(rows.z, rows.guess)[0]), rows.correctness, rows.weight)


class TopLabelIsotonic(_TopLabelCalibrator):
    """A non-decreasing, piecewise linear map from confidence to accuracy, fitted by isotonic regression.

    The decision is preserved, so the new confidence is at least ``1/K``.

    Attributes
    ----------
    x_, y_ : (m,) knots of the map: confidence ``x_[i]`` becomes ``y_[i]``, or ``1/K`` if this is larger
        Values between the knots are interpolated. Outside the knots, the map is constant.

    Examples
    --------
    >>> z = np.array([[2.0, 0.0]] * 4 + [[5.0, 0.0]] * 4)
    >>> cal = TopLabelIsotonic().fit(z, [0, 1, 0, 0] + [0, 0, 0, 0])
    >>> cal.predict_proba([[2.0, 0.0]])
    array([[0.75, 0.25]])
    """

    def _fit_confidence(self, confidence: Float, correct: NDArray[Any], weight: Float) -> None:
        value, position = _merge(confidence)
        total = sum_slices(position, weight, len(value))
        hits = sum_slices(position, weight * correct, len(value))
        curve = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
        curve.fit(value, hits / total, sample_weight=total)
        self.x_, self.y_ = curve.X_thresholds_, curve.y_thresholds_

    def _map(self) -> maps.Map:
        return maps.Curve(np.asarray(self.x_, np.float64), np.asarray(self.y_, np.float64))


class TopLabelHistogram(_TopLabelCalibrator):
    """Histogram binning: every confidence is replaced with the accuracy of its bin.

    The decision is preserved, so accuracies below ``1/K`` are replaced with ``1/K``.

    Parameters
    ----------
    n_bins : int, number of bins; with "mass", there are fewer bins if many confidences are equal
    binning : "mass" or "width"
        "mass" gives every bin about the same number of rows, or the same total weight if the rows have
        weights. "width" gives all bins the same width.

    Attributes
    ----------
    edges_ : (M + 1,) edges of the bins ``(lo, hi]``
    values_ : (M,) accuracy of each bin; the midpoint for empty bins
    """

    def __init__(self, n_bins: int = 15, binning: Literal["width", "mass"] = "mass") -> None:
        self.n_bins = n_bins
        self.binning = binning

    def _fit_confidence(self, confidence: Float, correct: NDArray[Any], weight: Float) -> None:
        check_binning(self.n_bins, self.binning)
        edges = bin_edges(confidence, n_bins=self.n_bins, binning=self.binning)
        if self.binning == "mass":
            edges = _weighted_edges(confidence, weight, self.n_bins)
        else:  # move edges that coincide with a confidence, so that rounding cannot move rows across them
            inner = edges[1:-1]
            inner += _TOLERANCE * np.isclose(inner, _nearest(confidence, inner), rtol=0, atol=_TOLERANCE)
        self.edges_ = np.unique(edges)
        cell, n_cells = _bin(confidence, self.edges_), len(self.edges_) - 1
        total = sum_slices(cell, weight, n_cells)
        hits = sum_slices(cell, weight * correct, n_cells)
        midpoint = (self.edges_[1:] + self.edges_[:-1]) / 2
        # Noisy labels give estimates of the accuracy that may lie outside [0, 1].
        self.values_ = np.clip(np.divide(hits, total, out=midpoint, where=total > 0), 0, 1)

    def _map(self) -> maps.Map:
        return maps.Steps(np.asarray(self.edges_, np.float64), np.asarray(self.values_, np.float64))


def _weighted_edges(confidence: Float, weight: Float, n_bins: int) -> Float:
    """Edges of at most `n_bins` bins with about equal total weight."""
    value, position = _merge(confidence)
    mass = sum_slices(position, weight, len(value))
    below = np.cumsum(mass) - mass
    # Without the tolerance, values exactly on an edge could change bins when all weights are rescaled.
    cell = np.floor(below * n_bins / mass.sum() + 1e-9).astype(np.int64)
    last = np.flatnonzero(cell[1:] != cell[:-1])
    return np.asarray(np.r_[0.0, (value[last] + value[last + 1]) / 2, 1.0])


def _merge(confidence: Float) -> tuple[Float, IntArray]:
    """Distinct confidences in increasing order, and the position of each row among them.

    Nearly equal confidences are merged into their mean.
    """
    order = np.argsort(confidence)
    ordered = confidence[order]
    # On this scale, differences are relative to the distance from 1. Neighbours that differ by at most the
    # tolerance belong to the same chain.
    scaled = -np.log(np.maximum(1 - ordered, 1e-17))
    chain = np.cumsum(np.r_[False, np.diff(scaled) > _TOLERANCE])
    first = scaled[np.searchsorted(chain, chain)]  # for each value, the first value of its chain
    step = np.floor((scaled - first) / _MAX_RANGE).astype(np.int64)
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
