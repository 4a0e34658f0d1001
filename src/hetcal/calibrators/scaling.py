"""Calibrators that treat all rows alike: identity, temperature, vector and Platt scaling."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from hetcal._core.arrays import FloatArray, IntArray, check_labels, check_logits, check_weights
from hetcal._core.balls import minimise_pooled
from hetcal._core.kernels import prepare, scaled_softmax
from hetcal._core.messages import warn_at_bound, warn_thin_data
from hetcal._core.temperature import TemperatureProblem, fit_pooled
from hetcal.calibrators.families import PlattFamily, VectorFamily, fit_vector_lbfgs
from hetcal.calibrators.search import LossName, search_temperatures

__all__ = ["Identity", "PlattScaling", "TemperatureScaling", "VectorScaling", "check_bounds", "check_fit"]

_DENSE = 300  # classes up to which vector scaling uses Newton's method with the full Hessian


class Identity(BaseEstimator):  # type: ignore[misc]
    """``softmax(z)``: the uncalibrated row of every table.

    Examples
    --------
    >>> Identity().fit([[0.0, 2.0], [1.0, -1.0]], [1, 0]).predict_proba([[3.0, 3.0]])
    array([[0.5, 0.5]])
    """

    preserves_decision = True

    def fit(self, logits: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None) -> Self:  # noqa: ARG002
        """Check the input; nothing is learned but the number of classes."""
        self.n_features_in_ = check_fit(logits, labels, sample_weight)[0].shape[1]
        return self

    def predict_proba(self, logits: ArrayLike, *, groups: ArrayLike | None = None) -> FloatArray:  # noqa: ARG002
        """Softmax of the logits, (n, K)."""
        check_is_fitted(self)
        z = check_logits(logits, n_classes=self.n_features_in_)
        return scaled_softmax(z, np.ones(len(z)))


class TemperatureScaling(BaseEstimator):  # type: ignore[misc]
    """``softmax(α z)`` with one inverse temperature for all rows.

    Parameters
    ----------
    alpha_bounds : (lower, upper), both positive
    loss : "nll", or "brier" and "ece", which are searched on a grid and refined

    Attributes
    ----------
    alpha_ : float, the inverse temperature; ``T = 1 / alpha_``

    Examples
    --------
    >>> z = np.array([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    >>> cal = TemperatureScaling().fit(z, [0, 0, 1, 1])
    >>> round(cal.alpha_, 4)  # three of four are right: sigmoid(2α) = 3/4
    0.5493
    """

    preserves_decision = True

    def __init__(self, alpha_bounds: tuple[float, float] = (0.01, 100.0), *, loss: LossName = "nll") -> None:
        self.alpha_bounds = alpha_bounds
        self.loss = loss

    def fit(self, logits: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None) -> Self:  # noqa: ARG002
        """Find α by Newton's method; groups do not matter here."""
        z, y, w = check_fit(logits, labels, sample_weight)
        bounds = check_bounds(self.alpha_bounds)
        rows = prepare(z, y, w)
        problem = TemperatureProblem(rows, np.zeros(len(rows), np.int64), 1)
        if self.loss == "nll":
            self.alpha_, at_bound = fit_pooled(problem, bounds)
        else:
            fit = search_temperatures(problem, self.loss, 0.0, bounds)
            self.alpha_, at_bound = fit.alpha0, False
        warn_at_bound(np.flatnonzero([at_bound]), lambda _: "the whole data set", str(bounds))
        self.n_features_in_ = z.shape[1]
        return self

    def predict_proba(self, logits: ArrayLike, *, groups: ArrayLike | None = None) -> FloatArray:  # noqa: ARG002
        """Calibrated probabilities (n, K)."""
        check_is_fitted(self)
        z = check_logits(logits, n_classes=self.n_features_in_)
        return scaled_softmax(z, np.full(len(z), self.alpha_))


class VectorScaling(BaseEstimator):  # type: ignore[misc]
    """``softmax(a ⊙ z + b)``: a scale and a bias per class. May change decisions.

    Parameters
    ----------
    ridge : float
        Adds ``ridge/2 · (‖a − α‖² + ‖b‖²)`` to the mean NLL, with α the temperature that fits best; a large
        ridge gives temperature scaling, zero gives the paper's vector scaling.

    Attributes
    ----------
    scale_, bias_ : (K,) arrays
    """

    preserves_decision = False

    def __init__(self, ridge: float = 0.0) -> None:
        self.ridge = ridge

    def fit(self, logits: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None) -> Self:  # noqa: ARG002
        """Minimise the NLL by Newton's method, or by L-BFGS for many classes; groups do not matter here."""
        if not np.isscalar(self.ridge) or not np.isfinite(self.ridge) or self.ridge < 0:
            raise ValueError(f"ridge must be a finite number, zero or more, got {self.ridge!r}")
        z, y, w = check_fit(logits, labels, sample_weight)
        n_classes = z.shape[1]
        rows = prepare(z, y, w)
        alpha, _ = fit_pooled(TemperatureProblem(rows, np.zeros(len(rows), np.int64), 1), (0.01, 100.0))
        family = VectorFamily(ridge=float(self.ridge), anchor=alpha)
        kept = slice(None) if w is None else w > 0
        if n_classes <= _DENSE:
            evaluate = family.evaluator(rows.z, y[kept], rows.weight, np.zeros(len(rows), np.int64), 1)
            theta = minimise_pooled(evaluate, 1, family.start(n_classes))
        else:
            theta = fit_vector_lbfgs(family, rows.z, y[kept], rows.weight)
        self.scale_, self.bias_ = theta[:n_classes], theta[n_classes:] - theta[n_classes:].mean()
        self.n_features_in_ = n_classes
        return self

    def predict_proba(self, logits: ArrayLike, *, groups: ArrayLike | None = None) -> FloatArray:  # noqa: ARG002
        """Calibrated probabilities (n, K)."""
        check_is_fitted(self)
        z = check_logits(logits, n_classes=self.n_features_in_)
        theta = np.concatenate([self.scale_, self.bias_])[None]
        return VectorFamily().predict(z, theta, np.zeros(len(z), np.int64))


class PlattScaling(BaseEstimator):  # type: ignore[misc]
    """``sigmoid(a · logit(p̂) + b)`` for the predicted class; the others share the rest as before.

    The decision stays: confidence is kept at ``1/K`` or above and the rest is levelled where it must be.

    Attributes
    ----------
    slope_, intercept_ : float, a and b
    """

    preserves_decision = True

    def fit(self, logits: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None) -> Self:  # noqa: ARG002
        """Minimise the NLL of "the prediction is right"; groups do not matter here."""
        z, y, w = check_fit(logits, labels, sample_weight)
        weight = np.ones(len(z)) if w is None else w
        family = PlattFamily()
        evaluate = family.evaluator(z, y, weight, np.zeros(len(z), np.int64), 1)
        self.slope_, self.intercept_ = (float(v) for v in minimise_pooled(evaluate, 1, family.start(z.shape[1])))
        self.n_features_in_ = z.shape[1]
        return self

    def predict_proba(self, logits: ArrayLike, *, groups: ArrayLike | None = None) -> FloatArray:  # noqa: ARG002
        """Calibrated probabilities (n, K)."""
        check_is_fitted(self)
        z = check_logits(logits, n_classes=self.n_features_in_)
        return PlattFamily().predict(z, np.array([[self.slope_, self.intercept_]]), np.zeros(len(z), np.int64))


def check_fit(
    logits: ArrayLike, labels: ArrayLike, sample_weight: ArrayLike | None
) -> tuple[FloatArray, IntArray, NDArray[np.float64] | None]:
    """Check what every `fit` takes; warn where the data are thin."""
    z = check_logits(logits)
    y = check_labels(labels, n_rows=len(z), n_classes=z.shape[1])
    w = check_weights(sample_weight, n_rows=len(z))
    warn_thin_data(y, z.shape[1])
    return z, y, w


def check_bounds(alpha_bounds: Any) -> tuple[float, float]:
    """Two positive finite numbers in order."""
    try:
        lower, upper = (float(b) for b in alpha_bounds)
    except (TypeError, ValueError):
        raise TypeError(f"alpha_bounds must be a pair (lower, upper), got {alpha_bounds!r}") from None
    if not 0 < lower < upper < np.inf:
        raise ValueError(f"alpha_bounds must be positive, finite and in order, got {alpha_bounds!r}; the default is (0.01, 100)")
    return lower, upper
