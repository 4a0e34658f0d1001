"""Calibrators side by side: a weighted mean of their probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcal._core.arrays import FloatArray, keep_decision
from hetcal._core.kernels import decide
from hetcal.calibrators.base import Calibrator, FitData, fit_step, predict_step
from hetcal.calibrators.chain import check_steps

__all__ = ["Mixture"]


class Mixture(Calibrator):
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

    def _needs_memory(self) -> bool:
        return True

    def _fit(self, data: FitData) -> None:
        members = check_steps(self.calibrators, "calibrators")
        weights = _check_weights(self.weights, len(members))
        self.calibrators_ = [fit_step(member, data) for member in members]
        self.weights_ = weights

    def _predict(self, z: FloatArray, groups: ArrayLike | None) -> FloatArray:
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
