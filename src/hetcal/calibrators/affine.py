"""Affine maps of the logits: vector scaling, and Platt scaling of the confidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np

from hetcal._numeric.blocks import BlockProblem
from hetcal._numeric.device import TensorProblem
from hetcal._numeric.families import PlattFamily, VectorFamily, family_evaluator
from hetcal._numeric.probabilities import centre
from hetcal._numeric.problems import Problem
from hetcal._numeric.temperatures import fit_pooled
from hetcal._numeric.trust_region import minimise_pooled, without_error
from hetcal._numeric.vector_solver import fit_vector_lbfgs
from hetcal._typing import Float
from hetcal._validate import check_flag, check_ridge
from hetcal._warnings import warn_separable
from hetcal.calibrators.base import Calibrator, FitData
from hetcal.calibrators.slicing import open_problem
from hetcal.calibrators.temperature import everything
from hetcal.export import maps
from hetcal.partition import Slices

__all__ = [
    "PlattScaling",
    "VectorScaling",
    "anchored_family",
]

# Vector scaling uses Newton's method with the full Hessian for little data, or for few classes where passes
# over the rows are dear; L-BFGS otherwise.
_DENSE, _SMALL = 20, 30_000_000


class VectorScaling(Calibrator):
    """``softmax(a ⊙ z + b)``: a scale and a bias per class. May change decisions unless told to keep them.

    Parameters
    ----------
    ridge : float
        Adds ``ridge/2 · (‖a − α‖² + ‖b‖²)`` to the mean NLL, with α the temperature that fits best; a large
        ridge gives temperature scaling, zero gives the paper's vector scaling.
    center : bool
        Whether a row's mean is subtracted first, so that logits which differ by a constant are treated alike
        (as every softmax does) and a constant far from zero does no harm.
    keep_decision : bool
        Whether no class may pass the predicted one: ``softmax(min(u, u_ŷ))`` with ``u = a ⊙ z + b``. Most
        rows are as without; where the decision would change, the classes that pass are as likely as ŷ.

    Attributes
    ----------
    scale_, bias_ : (K,) arrays
    """

    def __init__(self, ridge: float = 0.0, *, center: bool = False, keep_decision: bool = False) -> None:
        self.ridge = ridge
        self.center = center
        self.keep_decision = keep_decision

    @property
    def preserves_decision(self) -> bool:
        """Whether the argmax stays."""
        return bool(self.keep_decision)

    def _needs_memory(self) -> bool:
        return bool(self.center)

    def _fits_on_device(self) -> bool:
        return not self.center

    def _fit(self, data: FitData) -> None:
        check_flag(self.keep_decision, "keep_decision")
        if check_flag(self.center, "center"):
            rows = data.in_memory
            data = replace(data, rows=replace(rows, z=centre(rows.z)))
        slices, problem = open_problem(data, sliced=False)
        n_classes = slices.n_slices
        family = anchored_family(problem, self.ridge)
        total, least = problem.weights()
        small = n_classes <= 300 and problem.counts().sum() * n_classes**2 <= _SMALL
        few_passes = n_classes <= _DENSE and isinstance(problem, BlockProblem)  # each reads a file again
        if not isinstance(problem, TensorProblem) and (small or few_passes):
            evaluate = family_evaluator(family, problem, np.zeros(n_classes, np.int64))
            theta, loss = minimise_pooled(evaluate, np.array([total]), family.start(n_classes))
        else:
            theta, loss = fit_vector_lbfgs(family, problem)
        perfect = np.flatnonzero([without_error(loss, least)])
        warn_separable(perfect, everything, can_shrink=not self.ridge)
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
    """``sigmoid(a · logit(p̂) + b)`` for the predicted class; the others share the rest as before.

    Parameters
    ----------
    pool : bool
        What happens where another class would overtake the predicted one. False: the confidence stays as it
        is (at ``1/K`` or above), and the others are levelled until none overtakes. True: the predicted class
        and those that overtake it share what they have, the nearest distribution that keeps the decision;
        the NLL is lower, the confidence of such rows higher than it should be.

    Attributes
    ----------
    slope_, intercept_ : float, a and b
    """

    preserves_decision = True

    def __init__(self, *, pool: bool = False) -> None:
        self.pool = pool

    def _fit(self, data: FitData) -> None:
        check_flag(self.pool, "pool")
        slices, problem = open_problem(data, sliced=False)
        family = PlattFamily()
        evaluate = family_evaluator(family, problem, np.zeros(slices.n_slices, np.int64))
        total, least = problem.weights()
        theta, loss = minimise_pooled(evaluate, np.array([total]), family.start(slices.n_slices))
        warn_separable(np.flatnonzero([without_error(loss, least)]), everything)
        self.slope_, self.intercept_ = float(theta[0]), float(theta[1])

    def _map(self) -> maps.Map:
        return self._map_by_slice(np.array([[self.slope_, self.intercept_]], np.float64))

    def _map_by_slice(self, theta: Float, slices: Slices | None = None) -> maps.Map:
        return maps.Platt(theta, slices, bool(self.pool))

    @classmethod
    def _examples(cls) -> list[Self]:
        return [cls(), cls(pool=True)]


def anchored_family(problem: Problem, ridge: Any) -> VectorFamily:
    """Vector scaling that starts from, and with a ridge is drawn to, the best single temperature."""
    strength = check_ridge(ridge)
    alpha, _ = fit_pooled(problem, (0.01, 100.0))
    return VectorFamily(ridge=strength, anchor=alpha)
