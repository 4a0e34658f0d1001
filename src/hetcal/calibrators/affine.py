"""Affine maps: vector scaling of the logits, and Platt scaling of the confidence."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from hetcal._numeric.families import VectorFamily
from hetcal._numeric.platt import fit_platt
from hetcal._numeric.probabilities import centre
from hetcal._numeric.source import Source
from hetcal._numeric.temperatures import DEFAULT_BOUNDS, fit_one_temperature
from hetcal._numeric.trust_region import is_error_free, minimise_pooled
from hetcal._numeric.vector_solver import fit_vector_lbfgs
from hetcal._typing import Float, FloatArray
from hetcal._validate import check_flag, check_ridge
from hetcal._warnings import warn_separable
from hetcal.calibrators.base import Calibrator
from hetcal.calibrators.temperature import name_whole_data
from hetcal.export import maps
from hetcal.partition import Slices

__all__ = ["PlattScaling", "VectorScaling", "anchored_family"]

# Vector scaling uses Newton's method for small data, and for few classes if passes over the rows are
# expensive. Otherwise, and for tensors on a device, it uses L-BFGS.
_NEWTON_CLASSES = 300  # data with more classes do not count as small
_NEWTON_WORK = 30_000_000  # data do not count as small if rows times classes² exceed this
_NEWTON_FEW_CLASSES = 20  # up to this many classes count as few


class VectorScaling(Calibrator):
    """``softmax(a ⊙ z + b)`` for logits z, with a scale and a bias per class.

    Decisions may change unless `keep_decision` is True.

    Parameters
    ----------
    ridge : float
        Adds ``ridge/2 · (‖a − α‖² + ‖b‖²)`` to the mean NLL, where α is the best single inverse temperature.
        With a large ridge, the result is close to temperature scaling. With zero, there is no penalty.
    center : bool
        Whether to subtract the mean of each row of logits first. Adding a constant to all logits of a row
        then does not change the result. When the mean is computed, a logit that is more than 100 below the
        maximum of its row counts as 100 below it.
    keep_decision : bool
        Whether to preserve the predicted class ŷ by computing ``softmax(min(u, u_ŷ))`` with
        ``u = a ⊙ z + b``. This affects only rows in which another class would overtake ŷ; that class becomes
        as likely as ŷ.

    Attributes
    ----------
    scale_, bias_ : (K,) arrays, a and b
    """

    def __init__(self, ridge: float = 0.0, *, center: bool = False, keep_decision: bool = False) -> None:
        self.ridge = ridge
        self.center = center
        self.keep_decision = keep_decision

    @property
    def preserves_decision(self) -> bool:
        """Whether the argmax is preserved."""
        return bool(self.keep_decision)

    def _fits_on_device(self) -> bool:
        return not self.center

    def _fit(self, source: Source) -> None:
        check_flag(self.keep_decision, "keep_decision")
        if check_flag(self.center, "center"):
            source = source.transform(_centre)
        n_classes = source.n_classes
        family = anchored_family(source, self.ridge)
        total, min_weight = source.weights()
        if source.has_hessians and _suits_newton(source):
            evaluate = source.family_evaluator(family, np.zeros(n_classes, np.int64))
            theta, loss = minimise_pooled(evaluate, np.array([total]), family.start(n_classes))
        else:
            theta, loss = fit_vector_lbfgs(family, source)
        separable = np.flatnonzero([is_error_free(loss, min_weight)])
        warn_separable(separable, name_whole_data, can_shrink=not self.ridge)
        self.scale_, self.bias_ = theta[:n_classes], theta[n_classes:] - theta[n_classes:].mean()

    def _map(self) -> maps.Map:
        return self._map_by_slice(np.concatenate([self.scale_, self.bias_])[None])

    def _map_by_slice(self, theta: Float, slices: Slices | None = None) -> maps.Map:
        return maps.Vector(theta, slices, bool(self.keep_decision), bool(self.center))

    @classmethod
    def _examples(cls) -> list[Self]:
        flags = ((False, False), (False, True), (True, False), (True, True))
        return [cls(1e-3, center=center, keep_decision=keep) for center, keep in flags]


class PlattScaling(Calibrator):
    """Replace the confidence p̂ with ``sigmoid(a · logit(p̂) + b)``.

    The confidence is the probability of the predicted class. The other classes share the remaining
    probability in the proportions of the softmax, unless one of them would overtake the predicted class. The
    decision is always preserved.

    Parameters
    ----------
    pool : bool
        What to do if another class would overtake the predicted one.

        False: use the value of the sigmoid (but at least ``1/K``) as the confidence, and mix the other
        classes with the uniform distribution until none overtakes the predicted class.

        True: give the predicted class, and as many of the most probable other classes as necessary, the mean
        of their probabilities. This is the smallest change, in KL divergence, that preserves the decision.
        The NLL is usually lower than with False, but the confidence of such rows is higher than the value of
        the sigmoid.

    Attributes
    ----------
    slope_, intercept_ : float, a and b
    """

    preserves_decision = True

    def __init__(self, *, pool: bool = False) -> None:
        self.pool = pool

    def _fit(self, source: Source) -> None:
        check_flag(self.pool, "pool")
        theta, loss = fit_platt(source)
        _, min_weight = source.weights()
        warn_separable(np.flatnonzero([is_error_free(loss, min_weight)]), name_whole_data)
        self.slope_, self.intercept_ = float(theta[0]), float(theta[1])

    def _map(self) -> maps.Map:
        return self._map_by_slice(np.array([[self.slope_, self.intercept_]], np.float64))

    def _map_by_slice(self, theta: Float, slices: Slices | None = None) -> maps.Map:
        return maps.Platt(theta, slices, bool(self.pool))

    @classmethod
    def _examples(cls) -> list[Self]:
        return [cls(), cls(pool=True)]


def anchored_family(source: Source, ridge: Any) -> VectorFamily:
    """Return the `VectorFamily` that starts from, and is shrunk towards, the best single temperature."""
    strength = check_ridge(ridge)
    alpha, _, _ = fit_one_temperature(source, DEFAULT_BOUNDS)
    return VectorFamily(ridge=strength, anchor=alpha)


def _centre(z: FloatArray, groups: Any) -> FloatArray:  # noqa: ARG001
    return centre(z)


def _suits_newton(source: Source) -> bool:
    """Whether Newton's method, which computes a Hessian in every pass, is probably faster than L-BFGS."""
    n_classes = source.n_classes
    small = n_classes <= _NEWTON_CLASSES and source.counts().sum() * n_classes**2 <= _NEWTON_WORK
    return bool(small or (source.prefers_few_passes and n_classes <= _NEWTON_FEW_CLASSES))
