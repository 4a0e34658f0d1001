"""Minimise many convex functions of one variable, separately or with all minimisers within Γ of a centre.

Each slice k is a set of rows with the loss ``L_k(α)``, which is assumed to be convex. All slices take their
steps together: one call of `evaluate` is one pass over the rows of the slices that have not converged. A pass
computes three derivatives, so the solvers can take Halley steps, which converge cubically.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetcal._typing import Float, IntArray
from hetcal._warnings import emit

__all__ = ["Derivatives", "Evaluate", "SliceSolution", "couple", "minimise_slices"]

# First, second and third derivatives of the losses of the active slices, (s,) each
Derivatives = tuple[Float, Float, Float]
# (α of all slices, indices of the active slices) -> derivatives of the active slices
Evaluate = Callable[[Float, IntArray], Derivatives]

_MAX_STEPS = 100
_LONGEST_STEP = np.log(4.0)  # longest step, in log α
_LAST_STEP = 5e-4  # stop after a step this short; the remaining error is about its cube, 1e-10
_CONVERGED = 1e-7  # `couple` always stops at this relative precision of the centre
_NO_STEP = 1e-12  # steps in log α up to this length are rounding errors


@dataclass(frozen=True)
class SliceSolution:
    """Minimiser of each slice, whether it is at a bound, and the curvature of its loss, (S,) each.

    The curvature was evaluated before the last step. It is nan for slices that were not minimised.
    """

    alpha: Float
    at_bound: NDArray[np.bool_]
    curvature: Float


def minimise_slices(
    evaluate: Evaluate,
    start: Float,
    bounds: tuple[float, float],
    *,
    active: IntArray | None = None,
    known: Derivatives | None = None,
) -> SliceSolution:
    """Minimise every ``L_k`` over ``[lower, upper]`` by Halley steps in log α, safeguarded by brackets.

    The gradient is monotone, so its sign shows on which side of the current point the minimiser lies. A step
    that would leave the bracket is replaced by bisection, or by a step to the bound if the bound has not been
    evaluated yet.

    Parameters
    ----------
    evaluate : function that computes the derivatives of slices
    start : (S,) starting points, which are clipped to `bounds`
    bounds : (lower, upper)
    active : indices of the slices to minimise; None for all. The other slices stay at their starting points.
    known : derivatives of all slices at `start`, or None if no earlier pass has computed them
    """
    lower, upper = bounds
    alpha = np.clip(start, lower, upper)
    bracket = np.tile(np.array([[lower], [upper]]), (1, len(alpha)))
    evaluated = np.zeros((2, len(alpha)), bool)
    at_bound, last_curvature = np.zeros(len(alpha), bool), np.full(len(alpha), np.nan)
    active = np.arange(len(alpha)) if active is None else active
    current = None if known is None else tuple(values[active] for values in known)
    for _ in range(_MAX_STEPS):
        if active.size == 0:
            return SliceSolution(alpha, at_bound, last_curvature)
        a = alpha[active]
        gradient, curvature, third = evaluate(alpha, active) if current is None else current
        current = None
        last_curvature[active] = curvature
        blocked = np.where(gradient < 0, a >= upper, a <= lower) & (gradient != 0)
        at_bound[active[blocked]] = True
        _tighten(bracket, evaluated, active, a, gradient)
        proposal = _propose(a, (gradient, curvature, third), bracket[:, active], evaluated[:, active])
        proposal[blocked | (gradient == 0)] = a[blocked | (gradient == 0)]
        alpha[active] = proposal
        active = active[np.abs(np.log(proposal / a)) > _LAST_STEP]
    if active.size == 0:
        return SliceSolution(alpha, at_bound, last_curvature)
    emit(
        f"the temperatures of {active.size} slice(s) did not converge in {_MAX_STEPS} steps "
        f"(first: slice {active[0]})",
        RuntimeWarning,
    )
    return SliceSolution(alpha, at_bound, last_curvature)


def couple(
    evaluate: Evaluate, best: Float, gamma: float, pooled: float, *, last_step: float | None = None
) -> tuple[float, Float]:
    """Minimise ``Σ_k L_k(α_k)`` over all α_k and the centre α₀, subject to ``|α_k − α₀| ≤ Γ``.

    For a fixed α₀, the best α_k is the minimiser of L_k, clipped to ``[α₀ − Γ, α₀ + Γ]``. The sum of the
    losses is then a convex function of α₀, and only the clipped slices contribute to its derivative.

    Parameters
    ----------
    evaluate : function that computes the derivatives of slices
    best : (S,) minimiser of each L_k
    gamma : Γ, finite and not negative
    pooled : starting point of the centre, such as the minimiser of ``Σ_k L_k(α)``
        If there are centres for which no slice is clipped, all of them are optimal. The one nearest to
        `pooled` is then returned.
    last_step : stop when the relative step of the centre is at most this (by default 5e-4), unless the step
        changes which slices are clipped

    Returns
    -------
    alpha_0, alpha : the centre and the (S,) inverse temperatures
    """
    left, right = float(best.min()) + gamma, float(best.max()) - gamma
    if right <= left:  # every centre from `right` to `left` is optimal, since no minimiser is clipped
        centre = float(np.clip(pooled, right, left))
        return centre, np.clip(best, centre - gamma, centre + gamma)
    tolerance = _LAST_STEP if last_step is None else last_step
    low, high = left, right
    centre = float(np.clip(pooled, low, high))
    for _ in range(_MAX_STEPS):
        outside = _outside(best, gamma, centre)
        step, rising = _centre_step(evaluate, best, gamma, centre, outside)
        if step == 0:
            break
        low, high = (low, centre) if rising else (centre, high)
        proposal = centre + step
        # If the set of clipped slices changes, the curvature jumps, and the step may be far too long or too
        # short. A step within the tolerance is therefore the last one only if this set stays the same. A
        # negligible step is always the last one.
        settled = abs(step) <= tolerance * centre and np.array_equal(outside, _outside(best, gamma, proposal))
        if settled or abs(step) <= _CONVERGED * centre:
            centre = float(np.clip(proposal, low, high))
            break
        centre = proposal if low < proposal < high else (low + high) / 2
        if high - low <= _CONVERGED * centre:
            break
    else:
        emit(f"the shared temperature did not converge in {_MAX_STEPS} steps", RuntimeWarning)
    return centre, np.clip(best, centre - gamma, centre + gamma)


def _outside(best: Float, gamma: float, centre: float) -> NDArray[np.int8]:
    """For each slice, −1, 0 or 1 if its minimiser is below, in or above ``[centre − Γ, centre + Γ]``."""
    return (best > centre + gamma).astype(np.int8) - (best < centre - gamma)


def _centre_step(
    evaluate: Evaluate, best: Float, gamma: float, centre: float, outside: NDArray[np.int8]
) -> tuple[float, bool]:
    """Halley step of the centre, and whether the loss increases with the centre.

    The step is 0 at the optimum, and infinite if the curvature is not positive.
    """
    clipped = np.flatnonzero(outside)
    if clipped.size == 0:
        return 0.0, False
    derivatives = evaluate(np.clip(best, centre - gamma, centre + gamma), clipped)
    slope, curvature, third = (float(values.sum()) for values in derivatives)
    if slope == 0 or not curvature > 0:
        return (0.0 if slope == 0 else float(np.copysign(np.inf, -slope))), slope > 0
    newton = -slope / curvature
    divisor = 1 + newton * third / (2 * curvature)
    return newton / (divisor if 0.25 < divisor < 4 else 1), slope > 0


def _tighten(
    bracket: Float, evaluated: NDArray[np.bool_], active: IntArray, a: Float, gradient: Float
) -> None:
    """Move the lower end of a slice's bracket to α if the gradient is negative, the upper end if positive."""
    for end, moves in ((0, gradient < 0), (1, gradient > 0)):
        bracket[end, active[moves]] = a[moves]
        evaluated[end, active[moves]] = True


def _propose(a: Float, derivatives: Derivatives, bracket: Float, evaluated: NDArray[np.bool_]) -> Float:
    """Next α of each slice: a Halley step in log α that stays inside the bracket."""
    gradient, curvature, third = derivatives
    slope = a * curvature  # derivative of the gradient with respect to log α
    with np.errstate(invalid="ignore", over="ignore"):
        # If the curvature is not positive, the step is infinite until it is clipped to _LONGEST_STEP below.
        newton = np.divide(-gradient, slope, out=np.copysign(np.inf, -gradient), where=slope > 0)
        # Halley's method divides the Newton step by 1 + newton · change / 2, where change = d log slope / d
        # log α.
        change = np.divide(a * third, curvature, out=np.zeros_like(a), where=curvature > 0) + 1
        divisor = 1 + np.clip(newton, -1, 1) * change / 2
    step = newton / np.where(divisor > 0.25, divisor, 1)
    proposal = a * np.exp(np.clip(step, -_LONGEST_STEP, _LONGEST_STEP))
    low, high = bracket
    middle = np.sqrt(low * high)
    proposal = np.where(proposal >= high, np.where(evaluated[1], middle, high), proposal)
    proposal = np.where(proposal <= low, np.where(evaluated[0], middle, low), proposal)
    return np.asarray(np.where(np.abs(step) <= _NO_STEP, a, proposal))
