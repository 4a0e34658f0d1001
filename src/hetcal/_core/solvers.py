"""Many one-dimensional convex problems at once, and the exact Γ-coupled problem.

A slice has a convex loss ``L_k(α)``. All slices take their Newton step together: one call of `evaluate` is
one pass over the rows of the slices that are not finished.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetcal._core.arrays import IntArray

__all__ = ["Evaluate", "SliceSolution", "couple", "minimise_slices"]

Float = NDArray[np.float64]
# (α of all slices, indices of the slices wanted) -> gradient and curvature of those slices
Evaluate = Callable[[Float, IntArray], tuple[Float, Float]]

_MAX_STEPS = 100
_LONGEST_STEP = np.log(4.0)  # in log α: a far Newton step says little
_LAST_STEP = 1e-5  # Newton squares the error, so the step after this one would be about 1e-10
_SETTLED = 1e-9  # relative step at which the centre has settled
_NO_STEP = 1e-12  # a step in log α that rounding may turn into none at all


@dataclass(frozen=True)
class SliceSolution:
    """Minimisers of all slices, and which of them stand at a bound."""

    alpha: Float
    at_bound: NDArray[np.bool_]


def minimise_slices(evaluate: Evaluate, start: Float, bounds: tuple[float, float]) -> SliceSolution:
    """Minimise every ``L_k`` over ``[lower, upper]`` by Newton steps in log α, kept inside brackets.

    The gradient is monotone, so its sign tells on which side the minimiser lies. A step that would leave
    the bracket is replaced by bisection, or by a look at the bound while that end has not been seen.
    """
    lower, upper = bounds
    alpha = np.clip(start, lower, upper)
    bracket = np.tile(np.array([[lower], [upper]]), (1, len(alpha)))
    seen = np.zeros((2, len(alpha)), bool)
    at_bound = np.zeros(len(alpha), bool)
    active = np.arange(len(alpha))
    for _ in range(_MAX_STEPS):
        a = alpha[active]
        gradient, curvature = evaluate(alpha, active)
        pushed = np.where(gradient < 0, a >= upper, a <= lower) & (gradient != 0)
        at_bound[active[pushed]] = True
        _tighten(bracket, seen, active, a, gradient)
        proposal = _propose(a, gradient, curvature, bracket[:, active], seen[:, active])
        proposal[pushed | (gradient == 0)] = a[pushed | (gradient == 0)]
        alpha[active] = proposal
        active = active[np.abs(np.log(proposal / a)) > _LAST_STEP]
        if active.size == 0:
            return SliceSolution(alpha, at_bound)
    warnings.warn(
        f"the temperatures of {active.size} slice(s) did not settle in {_MAX_STEPS} steps "
        f"(first: slice {active[0]})",
        RuntimeWarning,
        stacklevel=3,
    )
    return SliceSolution(alpha, at_bound)


def couple(evaluate: Evaluate, best: Float, gamma: float, pooled: float) -> tuple[float, Float]:
    """Solve ``min Σ_k L_k(α_k)`` subject to ``|α_k − α_0| ≤ Γ`` exactly.

    For a fixed α₀ the best α_k is the minimiser of L_k clipped to ``[α₀ − Γ, α₀ + Γ]``; what remains is
    convex in α₀ alone, and its derivative needs only the slices that are clipped.

    Parameters
    ----------
    evaluate : gradient and curvature of slices
    best : (S,) minimisers of the slices, each alone
    gamma : Γ, finite and not negative
    pooled : minimiser of all slices together; of several optimal α₀ the one nearest to it is taken

    Returns
    -------
    alpha_0, alpha : the centre and the (S,) inverse temperatures
    """
    left, right = float(best.min()) + gamma, float(best.max()) - gamma
    if right <= left:  # one window holds all minimisers: any centre in between is optimal
        centre = float(np.clip(pooled, right, left))
        return centre, np.clip(best, centre - gamma, centre + gamma)
    low, high = left, right
    centre = float(np.clip(pooled, low, high))
    for _ in range(_MAX_STEPS):
        slope, curvature = _outer_slope(evaluate, best, gamma, centre)
        if slope == 0:
            break
        low, high = (centre, high) if slope < 0 else (low, centre)
        step = -slope / curvature if curvature > 0 else np.copysign(np.inf, -slope)
        if abs(step) <= _SETTLED * centre:
            centre = float(np.clip(centre + step, low, high))
            break
        proposal = centre + step
        centre = proposal if low < proposal < high else (low + high) / 2
        if high - low <= _SETTLED * centre:
            break
    else:
        warnings.warn(f"the centre did not settle in {_MAX_STEPS} steps", RuntimeWarning, stacklevel=3)
    return centre, np.clip(best, centre - gamma, centre + gamma)


def _outer_slope(evaluate: Evaluate, best: Float, gamma: float, centre: float) -> tuple[float, float]:
    alpha = np.clip(best, centre - gamma, centre + gamma)
    clipped = np.flatnonzero(alpha != best)
    if clipped.size == 0:
        return 0.0, 0.0
    gradient, curvature = evaluate(alpha, clipped)
    return float(gradient.sum()), float(curvature.sum())


def _tighten(bracket: Float, seen: NDArray[np.bool_], active: IntArray, a: Float, gradient: Float) -> None:
    for end, hit in ((0, gradient < 0), (1, gradient > 0)):
        bracket[end, active[hit]] = a[hit]
        seen[end, active[hit]] = True


def _propose(a: Float, gradient: Float, curvature: Float, bracket: Float, seen: NDArray[np.bool_]) -> Float:
    slope = a * curvature
    step = np.divide(-gradient, slope, out=np.copysign(np.inf, -gradient), where=slope > 0)
    proposal = a * np.exp(np.clip(step, -_LONGEST_STEP, _LONGEST_STEP))
    low, high = bracket
    middle = np.sqrt(low * high)
    proposal = np.where(proposal >= high, np.where(seen[1], middle, high), proposal)
    proposal = np.where(proposal <= low, np.where(seen[0], middle, low), proposal)
    return np.asarray(np.where(np.abs(step) <= _NO_STEP, a, proposal))
