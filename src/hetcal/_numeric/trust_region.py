"""Smooth convex problems with several parameters a slice, each kept in a ball around a shared centre.

``min Σ_k L_k(θ_k)`` subject to ``‖θ_k − θ_0‖₂ ≤ Γ``. For a fixed centre the slices part into ball-constrained
problems, solved by Newton steps whose quadratic model is minimised exactly over the ball. The value as a
function of the centre is convex with gradient ``Σ_k ∇L_k(θ_k)``, and L-BFGS finds its minimum.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from hetcal._numeric.threads import with_one_blas_thread
from hetcal._typing import Float, IntArray
from hetcal._warnings import emit

__all__ = ["EvaluateVector", "minimise_coupled", "minimise_in_ball", "minimise_pooled", "without_error"]

# (θ (S, p) of all slices, indices of the slices wanted) -> loss (s,), gradient (s, p), Hessian (s, p, p)
EvaluateVector = Callable[[Float, IntArray], tuple[Float, Float, Float]]

_MAX_STEPS = 100
_MAX_HALVINGS = 40
_ROUNDING = 1e-13  # gain, as a share of the loss, that says nothing
_NOISE = 1e-12  # slope, of a row of weight 1, that is rounding
_SETTLED = 1e-5  # slope of the loss, as a share of it, that a search may end on
_SMALL = 1e-3  # a mean loss under which relative progress means nothing
_PERFECT = 1e-8  # a mean loss that shows a fit without error, which larger parameters only repeat


@with_one_blas_thread
def minimise_pooled(evaluate: EvaluateVector, mass: Float, start: Float) -> tuple[Float, float]:
    """One parameter vector for all slices, of weights `mass`: minimiser of ``Σ_k L_k(θ)``, and its sum."""
    n_slices = len(mass)
    everyone = np.arange(n_slices)

    def together(theta: Float, _: IntArray) -> tuple[Float, Float, Float]:
        loss, gradient, hessian = evaluate(np.broadcast_to(theta, (n_slices, theta.shape[1])), everyone)
        return (
            loss.sum(keepdims=True),
            gradient.sum(axis=0, keepdims=True),
            hessian.sum(axis=0, keepdims=True),
        )

    theta = minimise_in_ball(together, mass.sum(keepdims=True), start[None], start, np.inf)
    return np.asarray(theta[0]), float(together(theta, everyone)[0][0])


@with_one_blas_thread
def minimise_coupled(
    evaluate: EvaluateVector, mass: Float, pooled: Float, gamma: float
) -> tuple[Float, Float]:
    """Centre (p,) and parameters (S, p) of the coupled optimum, from the pooled fit `pooled` (p,).

    `mass` (S,) holds the weight of every slice's rows.
    """
    start = np.tile(pooled, (len(mass), 1))
    if gamma == 0:
        return pooled, start
    if np.isinf(gamma):
        return pooled, minimise_in_ball(evaluate, mass, start, pooled, np.inf)
    warm = [start]
    everyone = np.arange(len(mass))

    def value(centre: Float) -> tuple[float, Float]:
        theta = minimise_in_ball(evaluate, mass, _project(warm[0], centre, gamma), centre, gamma)
        warm[0] = theta
        loss, gradient, _ = evaluate(theta, everyone)
        # A slice whose optimum lies inside its ball has no gradient but rounding.
        return float(loss.sum()), gradient.sum(axis=0)

    scale = max(value(pooled)[0], _SMALL * float(mass.sum()))
    unit = _units(evaluate(start, everyone)[2] / mass.sum())

    def scaled(x: Float) -> tuple[float, Float]:
        loss, gradient = value(pooled + unit * x)
        return loss / scale, unit * gradient / scale

    options = {"maxiter": 1000, "ftol": 1e-15, "gtol": 1e-9}
    found = minimize(scaled, np.zeros_like(pooled), jac=True, method="L-BFGS-B", options=options)
    # A line search that finds nothing lower ends well where the slope is nothing but rounding.
    if not found.success and np.abs(found.jac).max() > _SETTLED:
        emit(f"the shared parameters did not settle: {found.message}", RuntimeWarning)
    centre = np.asarray(pooled + unit * found.x)
    return centre, minimise_in_ball(evaluate, mass, _project(warm[0], centre, gamma), centre, gamma)


def without_error(loss: float, least: float) -> bool:
    """Whether a summed NLL proves that every row's label is its likeliest class.

    A row that is not costs at least ``w log 2``, with `least` the least weight w. Without such a row larger
    parameters fit ever better, and the best ones are infinite.
    """
    return bool(loss < np.log(2) * least)


def minimise_in_ball(
    evaluate: EvaluateVector, mass: Float, start: Float, centre: Float, radius: float
) -> Float:
    """Minimise every ``L_k`` over ``‖θ − centre‖ ≤ radius`` (``inf``: freely), all slices together.

    Losses are sums over rows, whose weights add up to `mass` (S,) in each slice. Slices whose loss has no
    finite minimiser (separable data) stop when it is next to nothing.
    """
    theta = np.array(start, float)
    active = np.arange(len(theta))
    now = evaluate(theta, active)
    for _ in range(_MAX_STEPS):
        loss, gradient, hessian = now
        step = _model_step(theta[active] - centre, gradient, hessian, radius, _NOISE * mass[active])
        decrease = -np.einsum("sp,sp->s", gradient, step)
        least = np.maximum(np.abs(loss), _SMALL * mass[active])
        going = (decrease > _ROUNDING * least) & (loss > _PERFECT * mass[active])
        active = active[going]
        if active.size:
            moved, now = _line_search(evaluate, theta, active, loss[going], step[going], decrease[going])
            # Where nothing is left to gain but rounding, the model may promise more for ever.
            further = loss[going][moved] - now[0] > _ROUNDING * least[going][moved]
            active, now = active[moved][further], (now[0][further], now[1][further], now[2][further])
        if active.size == 0:
            return theta
    emit(
        f"{active.size} slice(s) did not settle in {_MAX_STEPS} Newton steps (first: slice {active[0]})",
        RuntimeWarning,
    )
    return theta


def _units(hessian: Float) -> Float:
    """Step of every parameter that matters about as much as any other's, from the slices' curvatures."""
    bend = np.einsum("spp->p", hessian)
    return np.asarray(1 / np.sqrt(np.maximum(bend, 1e-12 * max(float(bend.max()), 1e-12))))


def _model_step(offset: Float, gradient: Float, hessian: Float, radius: float, noise: Float) -> Float:
    """Minimiser of the quadratic model over the ball, as a step from the present point.

    Directions that do not bend, with a slope below `noise` (S,), lead nowhere: they go back to the centre.
    """
    values, vectors = np.linalg.eigh(hessian)
    least = 1e-12 * np.maximum(values[:, -1:], 1e-12)
    flat = (values < least) & (np.abs(np.einsum("spq,sp->sq", vectors, gradient)) < noise[:, None])
    values = np.maximum(values, least)
    linear = gradient - np.einsum("spq,sq->sp", hessian, offset)
    q = np.where(flat, 0.0, np.einsum("spq,sp->sq", vectors, linear))
    shift = np.zeros((len(q), 1))
    if np.isfinite(radius):
        shift = _secular(values, q, radius)
    u = -np.einsum("spq,sq->sp", vectors, q / (values + shift))
    step = u - offset
    limit = 10 * (1 + np.linalg.norm(offset, axis=1) + np.abs(offset).max(axis=1))
    length = np.linalg.norm(step, axis=1)
    shrink = np.where(length > limit, limit / np.maximum(length, 1e-300), 1.0)
    return np.asarray(step * shrink[:, None])


def _secular(values: Float, q: Float, radius: float) -> Float:
    """Multipliers λ ≥ 0 with ``‖q / (values + λ)‖ = radius`` where the free step is too long, else 0.

    One over the norm is concave in λ and close to a line, so Newton's method on it rises to the root.
    """
    longest = np.linalg.norm(q, axis=1, keepdims=True) / radius
    shift = np.maximum(longest - values.max(axis=1, keepdims=True), 0)
    for _ in range(_MAX_STEPS):
        u = q / (values + shift)
        length = np.linalg.norm(u, axis=1, keepdims=True)
        over = length > radius * (1 + 1e-14)
        if not over.any():
            break
        bend = np.where(over, (u * u / (values + shift)).sum(axis=1, keepdims=True), 1.0)
        shift = np.where(over, shift + (length / radius - 1) * length * length / bend, shift)
    return np.asarray(shift)


def _line_search(
    evaluate: EvaluateVector, theta: Float, active: IntArray, loss: Float, step: Float, decrease: Float
) -> tuple[NDArray[np.bool_], tuple[Float, Float, Float]]:
    """Halve each slice's step until its loss falls; moves `theta` in place.

    Returns which slices moved, and loss, gradient and Hessian of those at their new place.
    """
    origin = theta[active].copy()
    length = np.ones(len(active))
    p = theta.shape[1]
    there = (np.empty(len(active)), np.empty((len(active), p)), np.empty((len(active), p, p)))
    trying = np.ones(len(active), bool)
    for _ in range(_MAX_HALVINGS):
        which = np.flatnonzero(trying)
        theta[active[which]] = origin[which] + length[which, None] * step[which]
        value = evaluate(theta, active[which])
        for kept, new in zip(there, value, strict=True):
            kept[which] = new
        trying[which] = ~(value[0] <= loss[which] - 1e-4 * length[which] * decrease[which])
        if not trying.any():
            break
        length[trying] /= 2
    theta[active[trying]] = origin[trying]
    moved = ~trying
    return moved, (there[0][moved], there[1][moved], there[2][moved])


def _project(theta: Float, centre: Float, radius: float) -> Float:
    offset = theta - centre
    length = np.linalg.norm(offset, axis=1, keepdims=True)
    return np.asarray(centre + offset * np.where(length > radius, radius / np.maximum(length, radius), 1))
