"""Penalised fits whose penalties are chosen from the data (empirical Bayes).

The parameters θ (p,) fall into groups. Those of group g have a normal prior with mean 0 and precision
(inverse variance) τ_g. The penalised loss is therefore ``L(θ) + Σ_g τ_g/2 · ‖θ_g‖²``, where L is the NLL
summed over the rows. By default, the precisions start at given values τ⁰_g. They are updated by MacKay's
rule, which maximises the evidence in Laplace's approximation. Two terms are added to this rule, ``+ 1`` and
``+ 1/τ⁰_g``:

    ``τ_g = (γ_g + 1) / (‖θ_g‖² + 1/τ⁰_g)``    with    ``γ_g = p_g − τ_g Σ_{j in g} Var(θ_j | data)``

p_g is the number of parameters of the group, and γ_g is how many of them the data determine. The two terms
act like one more parameter that is known to have the square ``1/τ⁰_g``. Without them, the precision of a
group of few parameters often grows without bound by chance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.linalg.lapack import dpotri

from hetcal._numeric.threads import with_one_blas_thread
from hetcal._typing import Float, IntArray
from hetcal._warnings import emit

__all__ = [
    "Curvature",
    "DenseHessian",
    "Evaluate",
    "NewtonProblem",
    "Penalised",
    "Problem",
    "QuadraticModel",
    "fit_precisions",
    "minimise_penalised",
]

_MAX_UPDATES = 50
_MAX_ROUNDS = 30  # maximum number of updates of the precisions with the same quadratic model
_MAX_STEPS = 100
_MAX_TRIALS = 20  # maximum number of step lengths that a line search tries
_MAX_DAMPING = 1e9
_ROUNDING = 1e-9  # rounding may hide a decrease of the loss by less than this, relative to max(1, loss)
_PRECISION_BOUNDS = (1e-3, 1e8)
_MEMORY = 3  # maximum number of previous updates that an extrapolation uses
_MAX_STRETCH = 10.0  # maximum length of an extrapolated step, relative to the step without extrapolation
_STEADY = 1e-4  # by default, the precisions have converged if their relative change is below this
_ROUGH, _EXACT = 1e-4, 1e-13  # relative decreases of the loss below which intermediate and final fits end


class Curvature(Protocol):
    """The Hessian H (p, p) of the unpenalised loss at one point."""

    def solve(self, slope: Float, precision: Float) -> Float:
        """``(H + diag(precision))⁻¹ slope``, (p,), exactly or approximately.

        If `slope` is the gradient of the penalised loss, a Newton step subtracts this vector from the
        parameters.
        """

    def solve_with_variances(self, slope: Float, precision: Float) -> tuple[Float, Float]:
        """Return ``(H + diag(precision))⁻¹ slope`` and the diagonal of ``(H + diag(precision))⁻¹``.

        The diagonal contains the posterior variances. Both results have shape (p,) and may be approximate.
        """


#: Function that returns the unpenalised loss at θ (p,), its gradient (p,) and its curvature
Evaluate = Callable[[Float], tuple[float, Float, Curvature]]


@dataclass(frozen=True, eq=False)
class QuadraticModel:
    """A quadratic model of the unpenalised loss around the point `theta` (p,).

    Attributes
    ----------
    theta, gradient : (p,) the point, and the gradient there
    curvature : the Hessian there
    steady : relative change below which the precisions have converged
        It should be larger than the default if the curvature is approximate.
    """

    theta: Float
    gradient: Float
    curvature: Curvature
    steady: float = _STEADY

    def minimise(self, precision: Float) -> tuple[Float, Float]:
        """Minimiser of the model plus ``Σ_j precision_j/2 · θ_j²``, and posterior variances, (p,) each."""
        slope = self.gradient + precision * self.theta
        step, variances = self.curvature.solve_with_variances(slope, precision)
        return self.theta - step, variances


class Problem(Protocol):
    """A loss L(θ) that can be minimised with a penalty ``Σ_j precision_j/2 · θ_j²`` added."""

    def minimise(
        self, theta: Float, precision: Float, tolerance: float, negligible: float
    ) -> tuple[Float, float]:
        """Minimiser (p,) of the penalised loss, and the unpenalised loss there.

        The search starts at `theta`. It ends when the relative decrease of the loss is below `tolerance`. It
        also ends as soon as the unpenalised loss is at most `negligible`, since separable rows have no finite
        minimiser without a penalty. Parameters with infinite precision, which must start at zero, stay zero.
        """

    def model(self) -> QuadraticModel:
        """Return a model of the loss around the result of the last call of `minimise`."""


@dataclass(frozen=True, eq=False)
class DenseHessian:
    """A full Hessian (p, p).

    Attributes
    ----------
    matrix : the Hessian
    upper : for a loss that is not convex, a positive semidefinite upper bound of the Hessian, otherwise None
        It replaces the Hessian if the Hessian of the penalised loss is not positive definite.
    """

    matrix: Float
    upper: Float | None = None

    def solve(self, slope: Float, precision: Float) -> Float:
        """``(H + diag(precision))⁻¹ slope``, (p,)."""
        return np.asarray(cho_solve(self._factor(precision), slope, check_finite=False))

    def solve_with_variances(self, slope: Float, precision: Float) -> tuple[Float, Float]:
        """Return ``(H + diag(precision))⁻¹ slope`` and the diagonal of ``(H + diag(precision))⁻¹``."""
        factor, is_lower = self._factor(precision)
        step = np.asarray(cho_solve((factor, is_lower), slope, check_finite=False))
        inverse, _ = dpotri(factor, lower=is_lower)  # only one triangle is computed, including the diagonal
        return step, inverse.diagonal().copy()

    def _factor(self, precision: Float) -> Any:
        """Cholesky factor of ``H + diag(precision)``, as returned by :func:`scipy.linalg.cho_factor`.

        A small number is added to the diagonal, since the data may not determine some directions. If the
        factorisation fails, `upper` replaces H, if there is one. After that, the number is increased until
        the factorisation succeeds.
        """
        hessian, upper = self.matrix, self.upper
        added = 1e-10 * (1 + float(hessian.diagonal().max()))
        while True:
            matrix = hessian.copy()
            matrix[np.diag_indices_from(matrix)] += precision + added
            try:
                return cho_factor(matrix, overwrite_a=True, check_finite=False)
            except LinAlgError:
                if upper is not None:
                    hessian, upper = upper, None
                else:
                    added *= 100


class NewtonProblem:
    """A problem with few parameters, solved by Newton's method with a line search."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self._theta: Float = np.empty(0)  # where the last search ended
        self._last: tuple[float, Float, Curvature] | None = None

    def minimise(
        self, theta: Float, precision: Float, tolerance: float, negligible: float
    ) -> tuple[Float, float]:
        """Minimiser (p,) of the penalised loss, and the unpenalised loss there."""
        theta, result = _newton(self._at, theta, precision, tolerance, negligible)
        self._theta, self._last = theta, result
        return theta, result[0]

    def model(self) -> QuadraticModel:
        """Return a model of the loss around the result of the last call of `minimise`."""
        _, gradient, curvature = self._at(self._theta)
        return QuadraticModel(self._theta, gradient, curvature)

    def _at(self, theta: Float) -> tuple[float, Float, Curvature]:
        """Unpenalised loss, gradient and curvature at `theta`, reused if the last search ended there."""
        if self._last is not None and np.array_equal(theta, self._theta):
            return self._last
        return self._evaluate(theta)


@dataclass(frozen=True, eq=False)
class Penalised:
    """Result of a penalised fit.

    Attributes
    ----------
    theta : (p,) parameters
    loss : float, unpenalised loss at `theta`
    precision : (G,) precision of every group
    """

    theta: Float
    loss: float
    precision: Float


@with_one_blas_thread
def minimise_penalised(
    problem: Problem,
    groups: IntArray,
    precision: Float,
    start: Float | None = None,
    *,
    negligible: float = 0.0,
) -> Penalised:
    """Minimise the penalised loss for given precisions (G,).

    The search begins at `start` (p,), by default at zero, and ends early if the unpenalised loss falls to
    `negligible`. Parameters of a group with infinite precision, which must start at zero, stay zero. `groups`
    (p,) is the group of every parameter.
    """
    theta = np.zeros(len(groups)) if start is None else start
    theta, loss = problem.minimise(theta, precision[groups], _EXACT, negligible)
    return Penalised(theta, loss, precision)


@with_one_blas_thread
def fit_precisions(
    problem: Problem, groups: IntArray, prior: Float, start: Penalised | None = None
) -> Penalised:
    """Choose the precisions by MacKay's rule (see the top of this module), and fit the parameters.

    The loss is minimised roughly and replaced by a quadratic model around the minimum. For this model, the
    precisions are updated until they converge. Both steps are repeated until the precisions hardly change. If
    the curvature of the model is approximate, so are the precisions, but the parameters are exact for these
    precisions.

    Parameters
    ----------
    problem : the loss
    groups : (p,) group of every parameter
    prior : (G,) precisions τ⁰ in MacKay's rule
    start : starting point, for example the fit to a sample of the rows
        By default, the parameters start at zero and the precisions at `prior`.
    """
    precision, theta = (prior, np.zeros(len(groups))) if start is None else (start.precision, start.theta)
    previous = np.inf  # largest change of a logarithm of a precision in the previous round
    for _ in range(_MAX_UPDATES):
        problem.minimise(theta, precision[groups], _ROUGH, 0.0)
        model, last = problem.model(), precision
        theta, precision = _update_precisions(model, groups, prior, precision)
        step = np.log(precision / last)
        change = np.abs(step).max(initial=0)
        if change < model.steady:
            break
        if change > previous / 2:  # the precisions oscillate or hardly converge
            precision = last * np.exp(step / 2)
        previous = change
    else:
        emit(f"the penalties did not converge in {_MAX_UPDATES} updates", RuntimeWarning)
    theta, loss = problem.minimise(theta, precision[groups], _EXACT, 0.0)
    return Penalised(theta, loss, precision)


def _update_precisions(
    model: QuadraticModel, groups: IntArray, prior: Float, precision: Float
) -> tuple[Float, Float]:
    """Update the precisions until they converge; return the model's minimiser (p,) and the precisions (G,).

    Plain updates often converge slowly, so Anderson's method extrapolates from the last few of them.
    """
    sizes, (lowest, highest) = np.bincount(groups, minlength=len(prior)), np.log(_PRECISION_BOUNDS)
    x = np.log(precision)
    points: list[Float] = []
    changes: list[Float] = []
    for _ in range(_MAX_ROUNDS):
        precision = np.exp(x)
        theta, variances = model.minimise(precision[groups])
        uncertain = np.bincount(groups, variances, len(prior))
        determined = np.clip(sizes - precision * uncertain, 0, sizes)
        squares = np.bincount(groups, theta**2, len(prior))
        new = np.log((determined + 1) / (squares + 1 / prior))
        points, changes = [*points, x][-_MEMORY - 1 :], [*changes, np.clip(new, lowest, highest) - x]
        changes = changes[-_MEMORY - 1 :]
        if np.abs(changes[-1]).max(initial=0) < model.steady / 4:
            break
        x = np.clip(x + _extrapolate(points, changes), lowest, highest)
    return theta, precision


def _extrapolate(points: list[Float], changes: list[Float]) -> Float:
    """Step that Anderson's method computes to accelerate a fixed-point iteration.

    `points` are the last points of the iteration, and `changes` the plain steps from them. If the computed
    step is too long or not finite, the result is the last plain step.
    """
    last = changes[-1]
    if len(points) == 1:
        return last
    differences, slopes = np.diff(points, axis=0).T, np.diff(changes, axis=0).T
    weights = np.linalg.lstsq(slopes, last, rcond=1e-8)[0]
    step = np.asarray(last - (differences + slopes) @ weights)
    is_usable = np.isfinite(step).all() and np.abs(step).max() <= _MAX_STRETCH * np.abs(last).max()
    return step if is_usable else last


def _newton(
    evaluate: Evaluate, theta: Float, precision: Float, tolerance: float, negligible: float
) -> tuple[Float, tuple[float, Float, Curvature]]:
    """Minimiser (p,) of the penalised loss, and the unpenalised loss, its gradient and its curvature there.

    The search ends early if the unpenalised loss is at most `negligible`, since separable rows have no finite
    minimiser without a penalty.
    """
    free = np.isfinite(precision)
    penalty = np.where(free, precision, 0.0)

    def penalised(theta: Float, loss: float) -> float:
        return loss + float(penalty @ theta**2) / 2

    current = evaluate(theta)
    value, damping = penalised(theta, current[0]), 0.0
    for _ in range(_MAX_STEPS):
        slope = np.where(free, current[1] + penalty * theta, 0.0)
        step = np.where(free, current[2].solve(slope, np.where(free, penalty, 1e12) + damping), 0.0)
        decrease = float(slope @ step)
        if decrease <= tolerance * max(1.0, abs(value)) or current[0] <= negligible:
            return theta, current
        length = 1.0
        for _ in range(_MAX_TRIALS):
            proposal = theta - length * step
            candidate = evaluate(proposal)
            new_value = penalised(proposal, candidate[0])
            if new_value <= value - 1e-4 * length * decrease:
                theta, current, value, damping = proposal, candidate, new_value, damping / 10
                break
            length /= 4
        else:
            # No step length was accepted. If rounding may be the cause, or damping does not help, stop here.
            # Otherwise, use more damping, which shortens the step in directions of little curvature.
            if damping > _MAX_DAMPING or decrease <= _ROUNDING * max(1.0, abs(value)):
                return theta, current
            damping = max(100 * damping, 1e-4)
    emit(f"a penalised fit did not converge in {_MAX_STEPS} Newton steps", RuntimeWarning)
    return theta, current
