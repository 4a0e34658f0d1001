"""Calibrators that treat all rows alike: identity, temperature, vector and Platt scaling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hetcal._core.arrays import FloatArray, centre
from hetcal._core.balls import minimise_pooled, without_error
from hetcal._core.blocks import BlockProblem, is_source
from hetcal._core.kernels import decide, scaled_softmax, temperature_errors
from hetcal._core.messages import warn_at_bound, warn_separable
from hetcal._core.problems import Problem
from hetcal._core.temperature import fit_pooled, fit_pooled_with_error
from hetcal._core.tensors import TensorProblem, is_tensor
from hetcal.calibrators.base import Calibrator, FitData, check_bounds, check_flag, check_ridge
from hetcal.calibrators.families import PlattFamily, VectorFamily, family_evaluator
from hetcal.calibrators.search import LossName, check_loss, search_temperatures
from hetcal.calibrators.slicing import open_problem
from hetcal.calibrators.vector import fit_vector_lbfgs

__all__ = [
    "Identity",
    "PlattScaling",
    "TemperatureScaling",
    "VectorScaling",
    "anchored_family",
    "refuse_std",
]

# Vector scaling uses Newton's method with the full Hessian for little data, or for few classes where passes
# over the rows are dear; L-BFGS otherwise.
_DENSE, _SMALL = 20, 30_000_000


class Identity(Calibrator):
    """``softmax(z)``: the uncalibrated row of every table. Probabilities stay as they are.

    Examples
    --------
    >>> Identity().fit([[0.0, 2.0], [1.0, -1.0]], [1, 0]).predict_proba([[3.0, 3.0]])
    array([[0.5, 0.5]])
    """

    preserves_decision = True

    def _fit(self, data: FitData) -> None:
        """Learn nothing."""

    def _predict(self, z: FloatArray, groups: ArrayLike | None) -> FloatArray:  # noqa: ARG002
        return scaled_softmax(z, np.ones(len(z)))

    def _predict_probs(self, p: FloatArray, groups: ArrayLike | None) -> FloatArray:  # noqa: ARG002
        return p.copy()


class TemperatureScaling(Calibrator):
    """``softmax(α z)`` with one inverse temperature for all rows.

    Parameters
    ----------
    alpha_bounds : (lower, upper), both positive
    loss : "nll", or "brier" and "ece", which are searched on a grid and refined

    Attributes
    ----------
    alpha_ : float, the inverse temperature; ``T = 1 / alpha_``
    alpha_std_ : float, its standard error (infinite at a bound, nan for losses other than "nll")

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

    def _fits_on_device(self) -> bool:
        return self.loss == "nll"

    def _fit(self, data: FitData) -> None:
        bounds = check_bounds(self.alpha_bounds)
        nll = check_loss(self.loss) == "nll"
        _, problem = open_problem(data, sliced=False)
        if nll:
            self.alpha_, at_bound, self.alpha_std_ = fit_pooled_with_error(problem, bounds)
        else:
            self.alpha_, at_bound = search_temperatures(problem, self.loss, 0.0, bounds).alpha0, False
            self.alpha_std_ = float("nan")
        warn_at_bound(np.flatnonzero([at_bound]), _everything, str(bounds))

    def predict_proba(
        self,
        logits: Any = None,
        *,
        probs: Any = None,
        groups: ArrayLike | None = None,
        class_names: ArrayLike | None = None,
        return_std: bool = False,
    ) -> Any:
        """Calibrated probabilities (n, K); with `return_std` also their standard errors (n, K).

        Other parameters are those of all calibrators.
        """
        predict = self._predict
        if return_std:
            refuse_std(probs if logits is None else logits)
            predict = self._predict_with_std
        return self._respond(predict, logits, probs, groups, class_names)

    def _predict(self, z: FloatArray, groups: ArrayLike | None) -> Any:  # noqa: ARG002
        return scaled_softmax(z, np.full(len(z), self.alpha_))

    def _predict_with_std(self, z: FloatArray, groups: ArrayLike | None) -> Any:
        p = self._predict(z, groups)
        return p, temperature_errors(z, p, np.full(len(z), self.alpha_std_))


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
        warn_separable(perfect, _everything, can_shrink=not self.ridge)
        self.scale_, self.bias_ = theta[:n_classes], theta[n_classes:] - theta[n_classes:].mean()

    def _predict(self, z: FloatArray, groups: ArrayLike | None) -> FloatArray:  # noqa: ARG002
        theta = np.concatenate([self.scale_, self.bias_])[None]
        moved = centre(z) if self.center else z
        family = VectorFamily(keep=self.preserves_decision)
        return family.predict(moved, theta, np.zeros(len(z), np.int64), decide(z))


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
        warn_separable(np.flatnonzero([without_error(loss, least)]), _everything)
        self.slope_, self.intercept_ = float(theta[0]), float(theta[1])

    def _predict(self, z: FloatArray, groups: ArrayLike | None) -> FloatArray:  # noqa: ARG002
        theta = np.array([[self.slope_, self.intercept_]])
        return PlattFamily(pool=bool(self.pool)).predict(z, theta, np.zeros(len(z), np.int64))


def refuse_std(rows: Any) -> None:
    """Refuse rows that are no array, for which there are no standard errors."""
    if is_source(rows) or is_tensor(rows):
        raise TypeError(
            f"logits must be an array for return_std, got {type(rows).__name__}; take some rows as an array"
        )


def anchored_family(problem: Problem, ridge: Any) -> VectorFamily:
    """Vector scaling that starts from, and with a ridge is drawn to, the best single temperature."""
    strength = check_ridge(ridge)
    alpha, _ = fit_pooled(problem, (0.01, 100.0))
    return VectorFamily(ridge=strength, anchor=alpha)


def _everything(_: int) -> str:
    return "the whole data set"
