"""Vector scaling for many rows or classes by preconditioned L-BFGS.

The preconditioner is the Cholesky factor of the Hessian at the best single temperature, computed from a
sample of the rows. For many classes, only a 2 × 2 block of the Hessian is computed for each class. In the
preconditioned coordinates, the Hessian is close to the identity. Therefore, about fifteen passes over the
rows usually suffice, and half the squared norm of the gradient estimates how much the loss can still
decrease.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize

from hetcal._numeric.families import VectorFamily, clip_logits, vector_hessian
from hetcal._numeric.rows import Rows
from hetcal._numeric.source import Source
from hetcal._numeric.threads import over_blocks, with_one_blas_thread
from hetcal._typing import Float
from hetcal._warnings import emit

__all__ = ["fit_vector_lbfgs"]


_SAMPLE = 2000  # a full Hessian is computed from at least this many rows (2K if that is more), if available
_MAX_FULL_HESSIAN = 300  # with more classes, the preconditioner uses one 2 × 2 block of the Hessian per class
# The 2 × 2 blocks of the Hessian are computed from at least this number times K rows, if available.
_ROWS_PER_CLASS = 20
_DAMPING = 1e-3  # fraction of the mean curvature that is added to the diagonal of the Hessian
# A fit stops when the estimated further decrease of the mean loss is at most this. The keys are the numbers
# of bytes per logit.
_TOLERANCE = {4: 1e-9, 8: 1e-12}
# A fit also stops when the mean loss is at most this. The rows are then separable or nearly so. Without a
# penalty, the parameters of separable rows would diverge.
_PERFECT = 1e-6
_POLISH_STEPS = 4

# Linear map of vectors (2K,); see `_precondition`
LinearMap = Callable[[Float], Float]


@with_one_blas_thread
def fit_vector_lbfgs(family: VectorFamily, source: Source) -> tuple[Float, float]:
    """Fit vector scaling to all rows; return the parameters (2K,) and the summed loss, penalty included."""
    rows = source.sample_rows(max(2 * _SAMPLE, _ROWS_PER_CLASS * source.n_classes))
    anchor = family.start(source.n_classes)
    total, _ = source.weights()
    to_theta, to_slope = _precondition(family, rows)
    slope, mean_loss = np.zeros_like(anchor), 1.0  # `value` updates them for `stop_early`

    def value(x: Float) -> tuple[float, Float]:
        nonlocal slope, mean_loss
        offset = to_theta(x)
        loss, gradient = source.vector_gradient(anchor + offset)
        slope, mean_loss = to_slope(gradient / total + family.ridge * offset), loss / total
        return mean_loss + family.ridge / 2 * float(offset @ offset), slope

    def stop_early(_: Float) -> None:
        if slope @ slope / 2 <= _TOLERANCE[rows.z.itemsize] or mean_loss <= _PERFECT:
            raise StopIteration

    options = {"maxiter": 300, "maxfun": 600, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 20}
    start = np.zeros_like(anchor)
    solution = minimize(value, start, jac=True, method="L-BFGS-B", callback=stop_early, options=options)
    x, final_slope, loss = _polish(value, solution)
    if final_slope @ final_slope / 2 > 1e-6 * max(1.0, abs(loss)):
        emit(f"vector scaling did not converge: {solution.message}", RuntimeWarning)
    return anchor + to_theta(x), loss * total


def _polish(value: Callable[[Float], tuple[float, Float]], solution: Any) -> tuple[Float, Float, float]:
    """Take up to four more quasi-Newton steps, as long as each shortens the gradient.

    Near the minimum, the gradient is more accurate than the loss. Returns the point, and the gradient and the
    loss there.
    """
    x, slope, loss = solution.x, solution.jac, float(solution.fun)
    for _ in range(_POLISH_STEPS):
        proposal = x - solution.hess_inv @ slope
        new_loss, new_slope = value(proposal)
        if not new_slope @ new_slope < slope @ slope:
            break
        x, slope, loss = proposal, new_slope, new_loss
    return np.asarray(x), slope, loss


def _precondition(family: VectorFamily, rows: Rows) -> tuple[LinearMap, LinearMap]:
    """Return two linear maps that define the preconditioned coordinates.

    The first maps the coordinates to the difference between the parameters and those of the best single
    temperature. The second maps gradients with respect to the parameters to gradients with respect to the
    coordinates.
    """
    n_classes = rows.z.shape[1]
    if n_classes > _MAX_FULL_HESSIAN:
        return _precondition_by_class(family, rows)
    step = max(1, len(rows) // max(_SAMPLE, 2 * n_classes))
    z = clip_logits(rows.z[::step])
    hessian = vector_hessian(z, _probs(family, z), np.ones(len(z))) / len(z)
    mean = float(np.trace(hessian)) / len(hessian)
    hessian[np.diag_indices_from(hessian)] += family.ridge + max(_DAMPING * mean, 1e-12)
    factor = cholesky(hessian, lower=True)
    return (
        lambda x: np.asarray(solve_triangular(factor, x, trans="T", lower=True, check_finite=False)),
        lambda g: np.asarray(solve_triangular(factor, g, lower=True, check_finite=False)),
    )


def _precondition_by_class(family: VectorFamily, rows: Rows) -> tuple[LinearMap, LinearMap]:
    """Return the maps of `_precondition` for many classes, from one 2 × 2 block of the Hessian per class."""
    step = max(1, len(rows) // (_ROWS_PER_CLASS * rows.z.shape[1]))
    sample = rows.z[::step]

    def sum_block(start: int, stop: int) -> Float:
        z = clip_logits(sample[start:stop])
        p = _probs(family, z)
        variance = p * (1 - p)
        return np.stack(
            [
                np.einsum("ij,ij,ij->j", variance, z, z),
                np.einsum("ij,ij->j", variance, z),
                variance.sum(axis=0),
            ]
        )

    scale, mixed, bias = np.sum(over_blocks(sum_block, *sample.shape), axis=0) / len(sample)
    added = family.ridge + max(_DAMPING * float(scale.mean() + bias.mean()) / 2, 1e-12)
    # Entries of the Cholesky factor ((first, 0), (lower, last)) of every 2 × 2 block
    first = np.sqrt(scale + added)
    lower = mixed / first
    last = np.sqrt(bias + added - lower**2)

    def to_theta(x: Float) -> Float:
        u, v = x.reshape(2, -1)
        return np.concatenate([(u - lower * (v / last)) / first, v / last])

    def to_slope(g: Float) -> Float:
        u, v = g.reshape(2, -1)
        return np.concatenate([u / first, (v - lower * (u / first)) / last])

    return to_theta, to_slope


def _probs(family: VectorFamily, z: Float) -> Float:
    """Probabilities (n, K) at the best single temperature."""
    p = family.anchor * z
    p -= p.max(axis=1, keepdims=True)
    np.exp(p, out=p)
    p /= p.sum(axis=1, keepdims=True)
    return p
