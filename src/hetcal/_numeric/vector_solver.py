"""Vector scaling for many classes: L-BFGS in coordinates in which the loss is nearly round.

A sample of the rows gives the Hessian at the best single temperature; in the coordinates of its Cholesky
factor the loss curves alike in all directions, and some fifteen passes over the rows find the minimum. In
these coordinates half the square of the gradient is how much the loss can still fall, which says when to end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize

from hetcal._numeric.acceleration import compiled_for
from hetcal._numeric.blocks import Block, BlockProblem
from hetcal._numeric.families import VectorFamily, vector_hessian, vector_slopes
from hetcal._numeric.problems import Problem, TemperatureProblem
from hetcal._numeric.rows import Rows
from hetcal._numeric.threads import one_blas_thread, over_blocks
from hetcal._typing import Float
from hetcal._warnings import emit

__all__ = ["fit_vector_lbfgs"]


_SAMPLE = 2000  # rows behind the Hessian, or twice as many as classes
_FULL = 1000  # classes up to which the whole Hessian is used, its diagonal beyond
_DAMPING = 1e-3  # share of the mean curvature added: directions that the sample does not know
_GAP = {
    4: 1e-9,
    8: 1e-12,
}  # what the mean loss may still fall when values no longer guide, by bytes of a logit
_PERFECT = 1e-6  # a mean loss of rows that all fit, which larger parameters only repeat
_POLISH = 4  # steps that the slope guides alone, afterwards


def fit_vector_lbfgs(family: VectorFamily, problem: Problem) -> tuple[Float, float]:
    """Parameters (2K,) and the summed loss."""
    with one_blas_thread():
        return _fit(family, problem)


def _fit(family: VectorFamily, problem: Problem) -> tuple[Float, float]:
    rows = _some_rows(problem)
    anchor = family.start(rows.z.shape[1])
    total, _ = problem.weights()
    sums = _sums_of(problem)
    to_theta, to_slope = _rounding(family, rows)

    last: list[Any] = [np.zeros_like(anchor), 1.0]  # slope and mean loss where they were computed last

    def value(x: Float) -> tuple[float, Float]:
        away = to_theta(x)
        loss, gradient = sums(anchor + away)
        last[:] = to_slope(gradient / total + family.ridge * away), loss / total
        return loss / total + family.ridge / 2 * float(away @ away), last[0]

    def enough(_: Float) -> None:
        if last[0] @ last[0] / 2 <= _GAP[rows.z.itemsize] or last[1] <= _PERFECT:
            raise StopIteration

    options = {"maxiter": 300, "maxfun": 600, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 20}
    start = np.zeros_like(anchor)
    found = minimize(value, start, jac=True, method="L-BFGS-B", callback=enough, options=options)
    x, slope, loss = _polish(value, found)
    if slope @ slope / 2 > 1e-6 * max(1.0, abs(loss)):
        emit(f"vector scaling did not settle: {found.message}", RuntimeWarning)
    return anchor + to_theta(x), loss * total


def _polish(value: Callable[[Float], tuple[float, Float]], found: Any) -> tuple[Float, Float, float]:
    """Take a few more steps while they lower the slope, which rounding hurts less than the loss."""
    x, slope, loss = found.x, found.jac, float(found.fun)
    for _ in range(_POLISH):
        there = x - found.hess_inv @ slope
        new_loss, new_slope = value(there)
        if not new_slope @ new_slope < slope @ slope:
            break
        x, slope, loss = there, new_slope, new_loss
    return np.asarray(x), slope, loss


def _some_rows(problem: Any) -> Rows:
    """Rows in memory, or some of those that are not."""
    if isinstance(problem, TemperatureProblem):
        return problem.rows
    if isinstance(problem, BlockProblem):
        return problem.source.first().rows
    some: Rows = problem.some_rows(2 * max(_SAMPLE, 2 * problem.z.shape[1]))
    return some


def _sums_of(problem: Any) -> Callable[[Float], tuple[float, Float]]:
    """Loss and gradient (2K,) summed over all rows, as a function of the parameters."""

    def in_memory(theta: Float) -> tuple[float, Float]:
        return _row_sums(problem.rows, theta)

    def in_blocks(theta: Float) -> tuple[float, Float]:
        loss, gradient = problem.source.reduce(_BlockSums(theta))
        return float(loss), gradient

    if isinstance(problem, BlockProblem):
        return in_blocks
    if isinstance(problem, TemperatureProblem):
        return in_memory
    on_device: Callable[[Float], tuple[float, Float]] = problem.vector_sums
    return on_device


@dataclass(frozen=True)
class _BlockSums:
    theta: Float

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        loss, gradient = _row_sums(block.rows, self.theta)
        return np.array(loss), gradient


def _row_sums(rows: Rows, theta: Float) -> tuple[float, Float]:
    n, n_classes = rows.z.shape
    kernels = compiled_for(rows.z.size)

    def some(start: int, stop: int) -> tuple[float, Float]:
        part = slice(start, stop)
        if kernels is None:
            return vector_slopes(rows.z[part], rows.y[part], weight[part], theta)
        gradient = np.zeros((2, n_classes))
        loss = kernels.vector_sums(rows.z, rows.y, weight, scale, bias, gradient, start, stop)
        return loss, gradient.ravel()

    if kernels is None:
        weight = rows.weight
    else:
        weight = np.empty(0) if rows.given_weight is None else rows.given_weight
        scale, bias = theta.astype(rows.z.dtype).reshape(2, n_classes)
    parts = over_blocks(some, n, n_classes)
    return sum(loss for loss, _ in parts), np.sum([gradient for _, gradient in parts], axis=0)


def _rounding(family: VectorFamily, rows: Rows) -> tuple[Callable[[Float], Float], Callable[[Float], Float]]:
    """Maps from the rounded coordinates to parameters (less the anchor), and of gradients the other way."""
    n_classes = rows.z.shape[1]
    step = max(1, len(rows) // max(_SAMPLE, 2 * n_classes))
    z = np.clip(rows.z[::step].astype(np.float64), -1e30, 1e30)
    p = family.anchor * z
    p -= p.max(axis=1, keepdims=True)
    np.exp(p, out=p)
    p /= p.sum(axis=1, keepdims=True)
    if n_classes > _FULL:
        return _by_diagonal(family, z, p)
    hessian = vector_hessian(z, p, np.ones(len(z))) / len(z)
    mean = float(np.trace(hessian)) / len(hessian)
    hessian[np.diag_indices_from(hessian)] += family.ridge + max(_DAMPING * mean, 1e-12)
    factor = cholesky(hessian, lower=True)
    return (
        lambda x: np.asarray(solve_triangular(factor, x, trans="T", lower=True, check_finite=False)),
        lambda g: np.asarray(solve_triangular(factor, g, lower=True, check_finite=False)),
    )


def _by_diagonal(
    family: VectorFamily, z: Float, p: Float
) -> tuple[Callable[[Float], Float], Callable[[Float], Float]]:
    spread = p * (1 - p)
    bend = np.concatenate([(spread * z * z).mean(axis=0), spread.mean(axis=0)])
    unit = 1 / np.sqrt(bend + family.ridge + max(_DAMPING * float(bend.mean()), 1e-12))
    return (lambda x: unit * x), (lambda g: unit * g)
