"""Calibrators that treat all rows alike: identity, temperature, vector and Platt scaling."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from hetcal._core.arrays import FloatArray, centre
from hetcal._core.balls import minimise_pooled, without_error
from hetcal._core.blocks import BlockProblem
from hetcal._core.kernels import decide, scaled_softmax, temperature_errors
from hetcal._core.messages import warn_at_bound, warn_separable
from hetcal._core.problems import Problem
from hetcal._core.temperature import fit_pooled, fit_pooled_with_error
from hetcal._core.tensors import on_device
from hetcal.calibrators.families import PlattFamily, VectorFamily, family_evaluator
from hetcal.calibrators.inputs import (
    as_source,
    check_bounds,
    check_fit,
    check_flag,
    check_predict,
    check_ridge,
    in_memory,
    remember_columns,
    wherever,
)
from hetcal.calibrators.search import LossName, check_loss, search_temperatures
from hetcal.calibrators.slicing import open_problem
from hetcal.calibrators.vector import fit_vector_lbfgs

__all__ = ["Identity", "PlattScaling", "TemperatureScaling", "VectorScaling", "anchored_family"]

# Vector scaling uses Newton's method with the full Hessian for little data, or for few classes where passes
# over the rows are dear; L-BFGS otherwise.
_DENSE, _SMALL = 20, 30_000_000


class Identity(BaseEstimator):  # type: ignore[misc]
    """``softmax(z)``: the uncalibrated row of every table.

    Examples
    --------
    >>> Identity().fit([[0.0, 2.0], [1.0, -1.0]], [1, 0]).predict_proba([[3.0, 3.0]])
    array([[0.5, 0.5]])
    """

    preserves_decision = True

    def fit(
        self,
        logits: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,  # noqa: ARG002
    ) -> Self:
        """Check the input; nothing is learned but the number of classes."""
        if as_source(logits, labels, sample_weight) is None:
            check_fit(logits, labels, sample_weight)
        remember_columns(self, logits)
        return self

    @wherever
    def predict_proba(self, logits: ArrayLike, *, groups: ArrayLike | None = None) -> FloatArray:  # noqa: ARG002
        """Softmax of the logits, (n, K)."""
        z = check_predict(self, logits)
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

    def fit(
        self,
        logits: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,  # noqa: ARG002
    ) -> Self:
        """Find α by Halley's method; groups do not matter here."""
        bounds = check_bounds(self.alpha_bounds)
        nll = check_loss(self.loss) == "nll"
        _, problem = open_problem(logits, labels, sample_weight, sliced=False, device=nll)
        if nll:
            self.alpha_, at_bound, self.alpha_std_ = fit_pooled_with_error(problem, bounds)
        else:
            self.alpha_, at_bound = search_temperatures(problem, self.loss, 0.0, bounds).alpha0, False
            self.alpha_std_ = float("nan")
        warn_at_bound(np.flatnonzero([at_bound]), _everything, str(bounds))
        remember_columns(self, logits)
        return self

    @wherever
    def predict_proba(
        self,
        logits: ArrayLike,
        *,
        groups: ArrayLike | None = None,  # noqa: ARG002
        return_std: bool = False,
    ) -> Any:
        """Calibrated probabilities (n, K); with `return_std` also their standard errors (n, K)."""
        z = check_predict(self, logits)
        p = scaled_softmax(z, np.full(len(z), self.alpha_))
        return (p, temperature_errors(z, p, np.full(len(z), self.alpha_std_))) if return_std else p


class VectorScaling(BaseEstimator):  # type: ignore[misc]
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

    def fit(
        self,
        logits: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,  # noqa: ARG002
    ) -> Self:
        """Minimise the NLL by Newton's method, or by L-BFGS for many classes; groups do not matter here."""
        check_flag(self.keep_decision, "keep_decision")
        given = logits
        if check_flag(self.center, "center"):
            in_memory(self, logits)
            logits, labels, sample_weight = check_fit(logits, labels, sample_weight)
            logits = centre(logits)
        slices, problem = open_problem(logits, labels, sample_weight, sliced=False, device=True)
        n_classes = slices.n_slices
        family = anchored_family(problem, self.ridge)
        total, least = problem.weights()
        small = n_classes <= 300 and problem.counts().sum() * n_classes**2 <= _SMALL
        few_passes = n_classes <= _DENSE and isinstance(problem, BlockProblem)  # each reads a file again
        if not on_device(logits) and (small or few_passes):
            evaluate = family_evaluator(family, problem, np.zeros(n_classes, np.int64))
            theta, loss = minimise_pooled(evaluate, np.array([total]), family.start(n_classes))
        else:
            theta, loss = fit_vector_lbfgs(family, problem)
        warn_separable(np.flatnonzero([without_error(loss, least)]), _everything)
        self.scale_, self.bias_ = theta[:n_classes], theta[n_classes:] - theta[n_classes:].mean()
        remember_columns(self, given)
        return self

    @wherever
    def predict_proba(self, logits: ArrayLike, *, groups: ArrayLike | None = None) -> FloatArray:  # noqa: ARG002
        """Calibrated probabilities (n, K)."""
        z = check_predict(self, logits)
        theta = np.concatenate([self.scale_, self.bias_])[None]
        moved = centre(z) if self.center else z
        family = VectorFamily(keep=self.preserves_decision)
        return family.predict(moved, theta, np.zeros(len(z), np.int64), decide(z))


class PlattScaling(BaseEstimator):  # type: ignore[misc]
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

    def fit(
        self,
        logits: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,  # noqa: ARG002
    ) -> Self:
        """Minimise the NLL of "the prediction is right"; groups do not matter here."""
        check_flag(self.pool, "pool")
        slices, problem = open_problem(logits, labels, sample_weight, sliced=False)
        family = PlattFamily()
        evaluate = family_evaluator(family, problem, np.zeros(slices.n_slices, np.int64))
        total, least = problem.weights()
        theta, loss = minimise_pooled(evaluate, np.array([total]), family.start(slices.n_slices))
        warn_separable(np.flatnonzero([without_error(loss, least)]), _everything)
        self.slope_, self.intercept_ = float(theta[0]), float(theta[1])
        remember_columns(self, logits)
        return self

    @wherever
    def predict_proba(self, logits: ArrayLike, *, groups: ArrayLike | None = None) -> FloatArray:  # noqa: ARG002
        """Calibrated probabilities (n, K)."""
        z = check_predict(self, logits)
        theta = np.array([[self.slope_, self.intercept_]])
        return PlattFamily(pool=bool(self.pool)).predict(z, theta, np.zeros(len(z), np.int64))


def anchored_family(problem: Problem, ridge: Any) -> VectorFamily:
    """Vector scaling that starts from, and with a ridge is drawn to, the best single temperature."""
    strength = check_ridge(ridge)
    alpha, _ = fit_pooled(problem, (0.01, 100.0))
    return VectorFamily(ridge=strength, anchor=alpha)


def _everything(_: int) -> str:
    return "the whole data set"
