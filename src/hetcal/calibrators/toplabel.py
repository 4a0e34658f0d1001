"""Non-parametric maps of the confidence: isotonic regression and histogram binning."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression

from hetcal._numeric.passes import sum_slices, top_margin
from hetcal._typing import Float
from hetcal.calibrators.base import Calibrator, FitData
from hetcal.export import maps
from hetcal.metrics.binning import bin_edges, check_binning

__all__ = ["TopLabelHistogram", "TopLabelIsotonic", "fit_confidence"]


# Confidences that differ by no more, relative to their distance from 1, are one: other runtimes compute in
# float32, where equal scores of a forest come out on either side of a corner or an edge right at them.
_SAME = 1e-6
_WIDEST = 1e-5  # range of confidences that are taken together, where many lie close to each other


class TopLabelIsotonic(Calibrator):
    """A rising step-free map from confidence to accuracy, by isotonic regression.

    Attributes
    ----------
    x_, y_ : the map's corners; confidences between them are interpolated

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

    def _fit(self, data: FitData) -> None:
        rows = data.in_memory
        fit_confidence(self, expit(top_margin(rows.z)[0]), rows.right, rows.weight)

    def _map(self) -> maps.Map:
        return maps.Curve(np.asarray(self.x_, np.float64), np.asarray(self.y_, np.float64))


class TopLabelHistogram(Calibrator):
    """Every confidence becomes the accuracy of its bin.

    Parameters
    ----------
    n_bins : int
    binning : "mass" for bins of equal rows (by weight, where weights are given), "width" for equal width

    Attributes
    ----------
    edges_ : (M + 1,) borders of the bins ``(lo, hi]``
    values_ : (M,) accuracy of each bin; the bin's middle where no row fell
    """

    preserves_decision = True

    def __init__(self, n_bins: int = 15, binning: Literal["width", "mass"] = "mass") -> None:
        self.n_bins = n_bins
        self.binning = binning

    def _needs_memory(self) -> bool:
        return True

    def _fit(self, data: FitData) -> None:
        rows = data.in_memory
        fit_confidence(self, expit(top_margin(rows.z)[0]), rows.right, rows.weight)

    def _map(self) -> maps.Map:
        return maps.Steps(np.asarray(self.edges_, np.float64), np.asarray(self.values_, np.float64))


def fit_confidence(
    model: TopLabelIsotonic | TopLabelHistogram, confidence: Float, right: NDArray[np.bool_], weight: Float
) -> None:
    """Fit one of the two to rows of which no more is known, (n,) each."""
    if isinstance(model, TopLabelIsotonic):
        _fit_isotonic(model, confidence, right, weight)
    else:
        _fit_histogram(model, confidence, right, weight)


def _fit_isotonic(
    model: TopLabelIsotonic, confidence: Float, right: NDArray[np.bool_], weight: Float
) -> None:
    value, at = _merge(confidence)
    total = sum_slices(at, weight, len(value))
    hits = sum_slices(at, weight * right, len(value))
    curve = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
    curve.fit(value, hits / total, sample_weight=total)
    model.x_, model.y_ = curve.X_thresholds_, curve.y_thresholds_


def _fit_histogram(
    model: TopLabelHistogram, confidence: Float, right: NDArray[np.bool_], weight: Float
) -> None:
    check_binning(model.n_bins, model.binning)
    edges = bin_edges(confidence, n_bins=model.n_bins, binning=model.binning)
    if model.binning == "mass":
        edges = _weighted_edges(confidence, weight, model.n_bins)
    else:
        inner = edges[1:-1]
        inner += _SAME * np.isclose(inner, _nearest(confidence, inner), rtol=0, atol=_SAME)
    model.edges_ = np.unique(edges)
    cell, n_cells = _bin(confidence, model.edges_), len(model.edges_) - 1
    total = sum_slices(cell, weight, n_cells)
    hits = sum_slices(cell, weight * right, n_cells)
    middle = (model.edges_[1:] + model.edges_[:-1]) / 2
    model.values_ = np.divide(hits, total, out=middle, where=total > 0)


def _weighted_edges(confidence: Float, weight: Float, n_bins: int) -> Float:
    """Edges of bins of equal weight, as `bin_edges` has them for rows that all weigh the same."""
    value, at = _merge(confidence)
    mass = sum_slices(at, weight, len(value))
    below = np.cumsum(mass) - mass
    cell = np.floor(below * n_bins / mass.sum() + 1e-9).astype(
        np.int64
    )  # a rank on an edge, whatever the scale
    last = np.flatnonzero(cell[1:] != cell[:-1])
    return np.asarray(np.r_[0.0, (value[last] + value[last + 1]) / 2, 1.0])


def _merge(confidence: Float) -> tuple[Float, NDArray[np.int64]]:
    """Distinct confidences in order, as means of those that count as one, and which of them each row has."""
    order = np.argsort(confidence)
    ordered = confidence[order]
    doubt = -np.log(np.maximum(1 - ordered, 1e-17))  # distances near 1 count by what is left
    chain = np.cumsum(np.r_[False, np.diff(doubt) > _SAME])
    first = doubt[np.searchsorted(chain, chain)]  # of the chain of neighbours that each belongs to
    step = np.floor((doubt - first) / _WIDEST).astype(np.int64)
    group = np.cumsum(np.r_[False, (np.diff(chain) > 0) | (np.diff(step) > 0)])
    at = np.empty(len(confidence), np.int64)
    at[order] = group
    return np.bincount(group, ordered) / np.bincount(group), at


def _nearest(values: Float, to: Float) -> Float:
    """The one of `values` that is nearest to each of `to`."""
    ordered = np.sort(values)
    place = np.clip(np.searchsorted(ordered, to), 1, max(len(ordered) - 1, 1))
    left, right = ordered[place - 1], ordered[np.minimum(place, len(ordered) - 1)]
    return np.asarray(np.where(to - left <= right - to, left, right))


def _bin(confidence: Float, edges: Float) -> NDArray[np.int64]:
    return np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, len(edges) - 2)
