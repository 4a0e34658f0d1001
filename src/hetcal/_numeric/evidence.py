"""Penalised fits whose penalties are chosen from the data (empirical Bayes).

The parameters θ (p,) fall into groups. Those of group g have a normal prior with mean 0 and precision τ_g, so
the penalised loss is ``L(θ) + Σ_g τ_g/2 · ‖θ_g‖²``, where L is the NLL summed over the rows. The precisions
start at given values τ⁰_g and are updated by MacKay's rule, which maximises the evidence in Laplace's
approximation, with two added terms (``+ 1`` and ``+ 1/τ⁰_g``):

    ``τ_g = (γ_g + 1) / (‖θ_g‖² + 1/τ⁰_g)``    with    ``γ_g = p_g − τ_g Σ_{j in g} Var(θ_j | data)``

p_g is the number of parameters of the group, and γ_g is how many of them the data determine. The added terms
act like one more parameter that is known to have the square ``1/τ⁰_g``. Without them, the precision of a
group of few parameters often grows without bound by chance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

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
    "fit_precisions",
    "minimise_penalised",
]

_MAX_UPDATES = 50
_MAX_STEPS = 100
_MAX_TRIALS = 20  # step lengths that a line search tries
_MAX_DAMPING = 1e9
_ROUNDING = 1e-9  # a predicted relative decrease of the loss below this may be lost to rounding
_PRECISION_BOUNDS = (1e-3, 1e8)
_STRETCH = 1.8  # factor of an update in the same direction as the previous one
_STEADY = 0.03  # the precisions have converged if their relative change is below this
_ROUGH, _EXACT = 1e-5, 1e-13  # a fit ends when a Newton step promises a smaller relative decrease


class Curvature(Protocol):
    """The Hessian H (p, p) of the unpenalised loss at one point."""

    def solve(self, gradient: Float, precision: Float) -> Float:
        """``(H + diag(precision))⁻¹ gradient``, (p,): a Newton step subtracts it; may be approximate."""

    def variances(self, precision: Float) -> Float:
        """Diagonal of ``(H + diag(precision))⁻¹``, the posterior variances (p,); may be approximate."""


#: Loss, gradient (p,) and curvature of the unpenalised loss at θ (p,)
Evaluate = Callable[[Float], tuple[float, Float, Curvature]]


class Problem(Protocol):
    """An unpenalised loss that can be minimised with any precisions (p,) added."""

    def minimise(
        self, theta: Float, precision: Float, tolerance: float, negligible: float
    ) -> tuple[Float, float]:
        """Minimiser (p,) of the penalised loss, and the unpenalised loss there.

        The search starts at `theta`. It ends when the relative decrease of the loss is below `tolerance`, or
        early at a loss of `negligible`, since separable rows have no finite minimiser without a penalty.
        Parameters with infinite precision stay zero.
        """

    def variances(self, theta: Float, precision: Float) -> Float:
        """Posterior variances (p,) at the last minimiser θ; may be approximate."""


@dataclass(frozen=True, eq=False)
class DenseHessian:
    """A full Hessian (p, p)."""

    matrix: Float

    def solve(self, gradient: Float, precision: Float) -> Float:
        """``(H + diag(precision))⁻¹ gradient``, (p,)."""
        return np.asarray(cho_solve(self._factor(precision), gradient))

    def variances(self, precision: Float) -> Float:
        """Diagonal of ``(H + diag(precision))⁻¹``, (p,)."""
        return np.diag(cho_solve(self._factor(precision), np.eye(len(precision)))).copy()

    def _factor(self, precision: Float) -> Any:
        """Cholesky factor of the penalised Hessian.

        A small number is added to the diagonal, since the data may not determine some directions. It is
        increased until the factorisation succeeds.
        """
        added = 1e-10 * (1 + float(self.matrix.diagonal().max()))
        while True:
            matrix = self.matrix.copy()
            matrix[np.diag_indices_from(matrix)] += precision + added
            try:
                return cho_factor(matrix)
            except LinAlgError:
                added *= 100


class NewtonProblem:
    """A problem of few parameters, solved by Newton's method with a line search."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self._curvature: Curvature | None = None  # at the last minimiser

    def minimise(
        self, theta: Float, precision: Float, tolerance: float, negligible: float
    ) -> tuple[Float, float]:
        """Minimiser (p,) of the penalised loss, and the unpenalised loss there."""
        theta, (loss, _, self._curvature) = _newton(self._evaluate, theta, precision, tolerance, negligible)
        return theta, loss

    def variances(self, theta: Float, precision: Float) -> Float:
        """Posterior variances (p,) at the last minimiser θ, in Laplace's approximation."""
        curvature = self._evaluate(theta)[2] if self._curvature is None else self._curvature
        return curvature.variances(precision)


@dataclass(frozen=True, eq=False)
class Penalised:
    """A penalised fit.

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

    Parameters of a group with infinite precision stay zero. The search ends early at a loss of `negligible`.
    """
    theta = np.zeros(len(groups)) if start is None else start
    theta, loss = problem.minimise(theta, precision[groups], _EXACT, negligible)
    return Penalised(theta, loss, precision)


@with_one_blas_thread
def fit_precisions(problem: Problem, groups: IntArray, prior: Float, *, exact: bool = False) -> Penalised:
    """Choose the precisions by maximum evidence, starting at `prior` (G,), and fit the parameters.

    By default, the updates and the fits between them end early, so that the precisions depend a little on
    rounding errors. `exact` avoids this; use it if fits are cheap.
    """
    steady, tolerance = (1e-6, _EXACT) if exact else (_STEADY, _ROUGH)
    precision, theta = prior.copy(), np.zeros(len(groups))
    sizes, last = np.bincount(groups, minlength=len(prior)), np.zeros(len(prior))
    for _ in range(_MAX_UPDATES):
        theta, _ = problem.minimise(theta, precision[groups], tolerance, 0.0)
        uncertain = np.bincount(groups, problem.variances(theta, precision[groups]), len(prior))
        determined = np.clip(sizes - precision * uncertain, 0, sizes)
        squares = np.bincount(groups, theta**2, len(prior))
        change = np.log((determined + 1) / (squares + 1 / prior) / precision)
        # Updates that continue in one direction are too short; stretching them saves many fits.
        change *= np.where(change * last > 0, _STRETCH, 1.0)
        precision = np.clip(precision * np.exp(change), *_PRECISION_BOUNDS)
        last = change
        if np.abs(change).max(initial=0, where=sizes > 0) < steady:
            break
    theta, loss = problem.minimise(theta, precision[groups], _EXACT, 0.0)
    return Penalised(theta, loss, precision)


def _newton(
    evaluate: Evaluate, theta: Float, precision: Float, tolerance: float, negligible: float
) -> tuple[Float, tuple[float, Float, Curvature]]:
    """Minimiser of the penalised loss, and the unpenalised loss with its derivatives there.

    The search ends early if the penalised loss is at most `negligible`, since separable rows have no finite
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
        if decrease <= tolerance * max(1.0, abs(value)) or value <= negligible:
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
        else:  # every length failed, perhaps by rounding: damp directions of little curvature, or stop here
            if damping > _MAX_DAMPING or decrease <= _ROUNDING * max(1.0, abs(value)):
                return theta, current
            damping = max(100 * damping, 1e-4)
    emit(f"a penalised fit did not converge in {_MAX_STEPS} Newton steps", RuntimeWarning)
    return theta, current
