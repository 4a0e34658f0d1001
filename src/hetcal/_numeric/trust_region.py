"""Minimise smooth convex losses of slices whose parameter vectors lie in a ball around a shared centre.

A slice is a set of rows. Slice k has its own parameters θ_k and loss L_k. The problem is to find the θ_k and
the centre θ_0 that minimise ``Σ_k L_k(θ_k)`` subject to ``‖θ_k − θ_0‖₂ ≤ Γ``. For a fixed centre, the slices
are independent, and the loss of each is minimised by Newton steps. Each step goes towards the minimiser of a
quadratic model of the loss over the ball. The sum of the minima is a convex function of the centre, with the
gradient ``Σ_k ∇L_k(θ_k)``. L-BFGS minimises this function.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from hetcal._numeric.threads import with_one_blas_thread
from hetcal._typing import Float, IntArray
from hetcal._warnings import emit

__all__ = [
    "EvaluateVector",
    "LastEvaluation",
    "is_error_free",
    "minimise_coupled",
    "minimise_in_ball",
    "minimise_pooled",
]

# (θ (S, p) of all slices, indices (s,) of slices) -> their loss (s,), gradient (s, p), Hessian (s, p, p)
EvaluateVector = Callable[[Float, IntArray], tuple[Float, Float, Float]]

_MAX_STEPS = 100
_MAX_HALVINGS = 40
_ROUNDING = 1e-13  # smaller relative decreases of the loss are rounding errors
_NOISE = 1e-12  # slopes of the mean loss that are smaller in absolute value are rounding errors
# A failed search for the centre warns if an entry of the scaled gradient exceeds this in absolute value.
_CONVERGED = 1e-5
_SMALL = 1e-3  # decreases of the mean loss are measured relative to the larger of the mean loss and this
_PERFECT = 1e-8  # with a smaller mean loss, the rows are separable, and larger parameters always fit better


class LastEvaluation:
    """An evaluator that reuses its result for a slice (a set of rows) until the slice's parameters change.

    Parameters
    ----------
    evaluate : the evaluator to call for new parameters
    n_slices, n_parameters : number of slices, and number of parameters of each slice
    """

    def __init__(self, evaluate: EvaluateVector, n_slices: int, n_parameters: int) -> None:
        self._evaluate = evaluate
        self._theta = np.full((n_slices, n_parameters), np.nan)
        self._loss = np.empty(n_slices)
        self._gradient = np.empty((n_slices, n_parameters))
        self._hessian = np.empty((n_slices, n_parameters, n_parameters))

    def __call__(self, theta: Float, active: IntArray) -> tuple[Float, Float, Float]:
        """Loss, gradient and Hessian of the slices `active`."""
        stale = active[(self._theta[active] != theta[active]).any(axis=1)]
        if stale.size:
            self._loss[stale], self._gradient[stale], self._hessian[stale] = self._evaluate(theta, stale)
            self._theta[stale] = theta[stale]
        return self._loss[active], self._gradient[active], self._hessian[active]


@with_one_blas_thread
def minimise_pooled(evaluate: EvaluateVector, mass: Float, start: Float) -> tuple[Float, float]:
    """Minimiser θ (p,) and minimum of ``Σ_k L_k(θ)``; `mass` (S,) is the weight of the rows of each slice."""
    n_slices = len(mass)
    all_slices = np.arange(n_slices)

    def evaluate_sum(theta: Float, _: IntArray) -> tuple[Float, Float, Float]:
        loss, gradient, hessian = evaluate(np.broadcast_to(theta, (n_slices, theta.shape[1])), all_slices)
        return (
            loss.sum(keepdims=True),
            gradient.sum(axis=0, keepdims=True),
            hessian.sum(axis=0, keepdims=True),
        )

    pooled = LastEvaluation(evaluate_sum, 1, len(start))
    theta = minimise_in_ball(pooled, mass.sum(keepdims=True), start[None], start, np.inf)
    return np.asarray(theta[0]), float(pooled(theta, np.zeros(1, np.int64))[0][0])


@with_one_blas_thread
def minimise_coupled(
    evaluate: EvaluateVector, mass: Float, pooled: Float, gamma: float
) -> tuple[Float, Float]:
    """Optimal centre (p,) and parameters (S, p) for the radius Γ = `gamma`.

    `mass` (S,) is the total weight of the rows of each slice. `pooled` (p,) are the best parameters for all
    slices together. If Γ is infinite, the centre has no effect on the loss, and `pooled` is returned as the
    centre.
    """
    start = np.tile(pooled, (len(mass), 1))
    if gamma == 0:
        return pooled, start
    if np.isinf(gamma):
        return pooled, minimise_in_ball(evaluate, mass, start, pooled, np.inf)
    theta = start
    all_slices = np.arange(len(mass))

    def value(centre: Float) -> tuple[float, Float]:
        nonlocal theta
        theta = minimise_in_ball(evaluate, mass, _project(theta, centre, gamma), centre, gamma)
        loss, gradient, _ = evaluate(theta, all_slices)
        # The gradient with respect to the centre is the sum of the slices' gradients. Parameters at the
        # boundary of the ball move with the centre. Inside the ball, the gradient of the slice is 0.
        return float(loss.sum()), gradient.sum(axis=0)

    scale = max(value(pooled)[0], _SMALL * float(mass.sum()))
    unit = _units(evaluate(start, all_slices)[2] / mass.sum())

    def scaled(x: Float) -> tuple[float, Float]:
        loss, gradient = value(pooled + unit * x)
        return loss / scale, unit * gradient / scale

    options = {"maxiter": 1000, "ftol": 1e-15, "gtol": 1e-9}
    solution = minimize(scaled, np.zeros_like(pooled), jac=True, method="L-BFGS-B", options=options)
    # The line search may fail at the optimum, where the slope consists of rounding errors. That is harmless.
    if not solution.success and np.abs(solution.jac).max() > _CONVERGED:
        emit(f"the shared parameters did not converge: {solution.message}", RuntimeWarning)
    centre = np.asarray(pooled + unit * solution.x)
    return centre, minimise_in_ball(evaluate, mass, _project(theta, centre, gamma), centre, gamma)


def is_error_free(loss: float, min_weight: float) -> bool:
    """Whether a summed NLL proves that every row's label is its most likely class.

    If the most likely class of a row of weight w is not its label, the row adds at least ``w log 2`` to the
    NLL. If there is no such row, larger parameters fit ever better, and there is no finite optimum.
    `min_weight` is the smallest weight of a row, or 0 if that is unknown.
    """
    return bool(loss < np.log(2) * min_weight)


def minimise_in_ball(
    evaluate: EvaluateVector, mass: Float, start: Float, centre: Float, radius: float
) -> Float:
    """Minimisers (S, p) of every ``L_k(θ)`` over ``‖θ − centre‖ ≤ radius``, computed for all slices at once.

    An infinite radius means no constraint. The loss of each slice is a sum over its rows, whose total weight
    is `mass` (S,). A separable slice has no finite minimiser without a constraint; its search ends when the
    loss is close to zero.
    """
    theta = np.array(start, float)
    active = np.arange(len(theta))
    current = evaluate(theta, active)
    for _ in range(_MAX_STEPS):
        loss, gradient, hessian = current
        step = _model_step(theta[active] - centre, gradient, hessian, radius, _NOISE * mass[active])
        decrease = -np.einsum("sp,sp->s", gradient, step)
        scale = np.maximum(np.abs(loss), _SMALL * mass[active])
        unfinished = (decrease > _ROUNDING * scale) & (loss > _PERFECT * mass[active])
        active = active[unfinished]
        if active.size:
            moved, current = _line_search(
                evaluate, theta, active, loss[unfinished], step[unfinished], decrease[unfinished]
            )
            # Close to the optimum, rounding errors may hide the decrease that the model predicts. A slice
            # whose loss decreased by no more than a rounding error is therefore considered finished.
            decreased = loss[unfinished][moved] - current[0] > _ROUNDING * scale[unfinished][moved]
            active = active[moved][decreased]
            current = (current[0][decreased], current[1][decreased], current[2][decreased])
        if active.size == 0:
            return theta
    emit(
        f"{active.size} slice(s) did not converge in {_MAX_STEPS} Newton steps (first: slice {active[0]})",
        RuntimeWarning,
    )
    return theta


def _units(hessian: Float) -> Float:
    """Step of each parameter, (p,), such that all steps change the summed loss by similar amounts."""
    curvature = np.einsum("spp->p", hessian)
    return np.asarray(1 / np.sqrt(np.maximum(curvature, 1e-12 * max(float(curvature.max()), 1e-12))))


def _model_step(offset: Float, gradient: Float, hessian: Float, radius: float, noise: Float) -> Float:
    """Step (S, p) from the current point of each slice to the minimiser of its quadratic model over the ball.

    `offset` (S, p) is the current point minus the centre. In directions whose curvature is
    numerically 0 and whose slope is below `noise` (S,) in absolute value, the step leads back to the centre.
    Very long steps are shortened.
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
    """Lagrange multipliers λ (S, 1) of the constraint that the new parameters of each slice are in the ball.

    λ is 0 if ``‖q / values‖ ≤ radius``. Otherwise, it solves ``‖q / (values + λ)‖ = radius``. `values` (S, p)
    are the eigenvalues of the Hessians. `q` (S, p) are the linear terms of the quadratic models in the bases
    of eigenvectors. The reciprocal of ``‖q / (values + λ)‖`` is concave and almost linear in λ, so Newton's
    method converges from below.
    """
    longest = np.linalg.norm(q, axis=1, keepdims=True) / radius
    shift = np.maximum(longest - values.max(axis=1, keepdims=True), 0)
    for _ in range(_MAX_STEPS):
        u = q / (values + shift)
        length = np.linalg.norm(u, axis=1, keepdims=True)
        over = length > radius * (1 + 1e-14)
        if not over.any():
            break
        slope = np.where(over, (u * u / (values + shift)).sum(axis=1, keepdims=True), 1.0)
        shift = np.where(over, shift + (length / radius - 1) * length * length / slope, shift)
    return np.asarray(shift)


def _line_search(
    evaluate: EvaluateVector, theta: Float, active: IntArray, loss: Float, step: Float, decrease: Float
) -> tuple[NDArray[np.bool_], tuple[Float, Float, Float]]:
    """Halve the step of each slice until the loss decreases sufficiently, and update `theta` in place.

    Returns which slices moved, and their loss, gradient and Hessian at the new parameters. A slice does not
    move if no tried step is accepted.
    """
    origin = theta[active].copy()
    length = np.ones(len(active))
    p = theta.shape[1]
    result = (np.empty(len(active)), np.empty((len(active), p)), np.empty((len(active), p, p)))
    trying = np.ones(len(active), bool)
    for _ in range(_MAX_HALVINGS):
        index = np.flatnonzero(trying)
        theta[active[index]] = origin[index] + length[index, None] * step[index]
        value = evaluate(theta, active[index])
        for array, new in zip(result, value, strict=True):
            array[index] = new
        trying[index] = ~(value[0] <= loss[index] - 1e-4 * length[index] * decrease[index])
        if not trying.any():
            break
        length[trying] /= 2
    theta[active[trying]] = origin[trying]
    moved = ~trying
    return moved, (result[0][moved], result[1][moved], result[2][moved])


def _project(theta: Float, centre: Float, radius: float) -> Float:
    offset = theta - centre
    length = np.linalg.norm(offset, axis=1, keepdims=True)
    return np.asarray(centre + offset * np.where(length > radius, radius / np.maximum(length, radius), 1))
