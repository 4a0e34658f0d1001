"""Calibrators side by side: a weighted mean of their probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator

from hetcal._core.arrays import FloatArray, keep_decision
from hetcal._core.kernels import decide
from hetcal.calibrators.chain import check_steps, fit_step, predict_step
from hetcal.calibrators.inputs import check_fit, check_predict, in_memory, remember_columns, wherever

__all__ = ["Mixture"]


class Mixture(BaseEstimator):  # type: ignore[misc]
    """``Σ_m w_m p_m``: the weighted mean of several calibrators' probabilities.

    It keeps decisions where all members do, since the predicted class leads in each.

    Parameters
    ----------
    calibrators : sequence of calibrators
    weights : (M,) zero or more, made to sum to 1; equal where None

    Attributes
    ----------
    calibrators_ : list of the fitted calibrators
    weights_ : (M,) array
    """

    def __init__(self, calibrators: Sequence[Any], weights: ArrayLike | None = None) -> None:
        self.calibrators = calibrators
        self.weights = weights

    @property
    def preserves_decision(self) -> bool:
        """Whether the argmax stays, which every member must see to."""
        members = check_steps(self.calibrators, "calibrators")
        return all(getattr(member, "preserves_decision", False) for member in members)

    def fit(
        self,
        logits: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Fit every member on the same rows; `groups` (n,) go to those that slice by them."""
        members = check_steps(self.calibrators, "calibrators")
        weights = _check_weights(self.weights, len(members))
        in_memory(self, logits)
        z, y, w = check_fit(logits, labels, sample_weight)
        self.calibrators_ = [fit_step(member, z, y, w, groups) for member in members]
        self.weights_ = weights
        remember_columns(self, logits)
        return self

    @wherever
    def predict_proba(self, logits: ArrayLike, *, groups: ArrayLike | None = None) -> FloatArray:
        """Calibrated probabilities (n, K); `groups` where they were given to `fit`."""
        z = check_predict(self, logits)
        total = np.zeros(z.shape)
        for weight, member in zip(self.weights_, self.calibrators_, strict=True):
            total += weight * predict_step(member, z, groups)
        np.minimum(total, 1, out=total)  # weights that sum to 1 may do so from above, by the last digit
        p: FloatArray = total.astype(z.dtype, copy=False)
        return keep_decision(p, decide(z)) if self.preserves_decision else p


def _check_weights(weights: ArrayLike | None, n: int) -> NDArray[np.float64]:
    if weights is None:
        return np.full(n, 1 / n)
    try:
        w = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"weights must be {n} numbers, got {weights!r}") from None
    if w.shape != (n,) or not np.isfinite(w).all() or w.min() < 0 or w.max() == 0:
        raise ValueError(f"weights must be {n} numbers, zero or more, not all zero, got {weights!r}")
    w = w / w.max()  # large ones would overflow in the sum
    return np.asarray(w / w.sum())
