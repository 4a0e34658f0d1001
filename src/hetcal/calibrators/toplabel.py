"""Non-parametric maps of the confidence: isotonic regression and histogram binning."""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from sklearn.base import BaseEstimator
from sklearn.isotonic import IsotonicRegression
from sklearn.utils.validation import check_is_fitted

from hetcal._core.arrays import FloatArray, check_logits
from hetcal._core.kernels import spread, top_margin
from hetcal.calibrators.scaling import check_fit
from hetcal.metrics.reliability import bin_edges, check_n_bins

__all__ = ["TopLabelHistogram", "TopLabelIsotonic"]


class TopLabelIsotonic(BaseEstimator):  # type: ignore[misc]
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

    def fit(self, logits: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None) -> Self:  # noqa: ARG002
        """Regress "the prediction is right" on confidence; groups do not matter here."""
        z, y, w = check_fit(logits, labels, sample_weight)
        margin, guess = top_margin(z)
        kept = slice(None) if w is None else w > 0
        model = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
        model.fit(expit(margin[kept]), (guess == y)[kept].astype(float), sample_weight=None if w is None else w[kept])
        self.x_, self.y_ = model.X_thresholds_, model.y_thresholds_
        self.n_features_in_ = z.shape[1]
        return self

    def predict_proba(self, logits: ArrayLike, *, groups: ArrayLike | None = None) -> FloatArray:  # noqa: ARG002
        """Calibrated probabilities (n, K)."""
        check_is_fitted(self)
        z = check_logits(logits, n_classes=self.n_features_in_)
        return spread(z, np.interp(expit(top_margin(z)[0]), self.x_, self.y_))


class TopLabelHistogram(BaseEstimator):  # type: ignore[misc]
    """Every confidence becomes the accuracy of its bin.

    Parameters
    ----------
    n_bins : int
    binning : "mass" for bins of equal rows, "width" for bins of equal width

    Attributes
    ----------
    edges_ : (M + 1,) borders of the bins ``(lo, hi]``
    values_ : (M,) accuracy of each bin; the bin's middle where no row fell
    """

    preserves_decision = True

    def __init__(self, n_bins: int = 15, binning: Literal["width", "mass"] = "mass") -> None:
        self.n_bins = n_bins
        self.binning = binning

    def fit(self, logits: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None) -> Self:  # noqa: ARG002
        """Measure the accuracy of every bin; groups do not matter here."""
        check_n_bins(self.n_bins)
        z, y, w = check_fit(logits, labels, sample_weight)
        margin, guess = top_margin(z)
        weight = np.ones(len(z)) if w is None else w
        kept = weight > 0
        confidence = expit(margin[kept])
        self.edges_ = np.unique(bin_edges(confidence, n_bins=self.n_bins, binning=self.binning))
        cell = _bin(confidence, self.edges_)
        rows = np.bincount(cell, weight[kept], len(self.edges_) - 1)
        right = np.bincount(cell, (weight * (guess == y))[kept], len(self.edges_) - 1)
        middle = (self.edges_[1:] + self.edges_[:-1]) / 2
        self.values_ = np.divide(right, rows, out=middle, where=rows > 0)
        self.n_features_in_ = z.shape[1]
        return self

    def predict_proba(self, logits: ArrayLike, *, groups: ArrayLike | None = None) -> FloatArray:  # noqa: ARG002
        """Calibrated probabilities (n, K)."""
        check_is_fitted(self)
        z = check_logits(logits, n_classes=self.n_features_in_)
        return spread(z, self.values_[_bin(expit(top_margin(z)[0]), self.edges_)])


def _bin(confidence: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, len(edges) - 2)
