"""Kernels for passes over the rows, compiled by numba.

This module is imported only for large arrays (see `acceleration`). All kernels process the rows
``start:stop`` and release the GIL. The rows are divided into disjoint sets, called slices. Kernels with the
argument `ids`, which contains the slice of every row, skip the rows of slices that are not `active`. If
`weight` is empty, every row has weight 1.

The exponentials of logits are computed as 2^x = 2^k · 2^f with an integer k and f in [−1/2, 1/2]. A
polynomial approximates 2^f. For a given x, the relative error of 2^x is about 1e-7 in float32 and below 1e-15
in float64. The code has no branches, so LLVM can vectorise it.

The kernels `narrow_slopes` and `narrow_losses`, for few classes, transpose 64 rows at a time, so that vector
instructions process the same class of several rows. All other kernels process one row at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload, register_jitable

from hetcal._numeric.rows import FARTHEST, MAX_LOGIT, MIN_EXPONENT

__all__ = [
    "decide",
    "narrow_losses",
    "narrow_slopes",
    "noisy_losses",
    "noisy_slopes",
    "platt_sums",
    "vector_sums",
    "wide_losses",
    "wide_slopes",
]

_TILE = 64  # rows that `narrow_slopes` and `narrow_losses` process at once
_PARTIAL_ROWS = 32  # `vector_sums` sums this many rows in the dtype of z, then adds the sum in float64
_LOG2E = math.log2(math.e)
# Among other things, these flags let LLVM reorder sums and assume that there are no NaNs.
_FASTMATH = {"reassoc", "contract", "nnan", "nsz"}


def _compiled(**options: Any) -> Callable[[Any], Any]:
    """Return a decorator that compiles a function on first use and caches the result on disk if possible."""

    def decorate(function: Any) -> Any:
        try:
            cached = njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:  # neither the package's folder nor the user's cache is writable
            return njit(nogil=True, **options)(function)

        @wraps(function)
        def call(*arguments: Any) -> Any:
            try:
                return cached(*arguments)
            except OSError:  # the cache could not be written, but the compiled function is in memory
                return cached(*arguments)

        return call

    return decorate


def _bit_cast(source: Any, target: Any, llvm: Any) -> Any:
    """Return a compiled function that reinterprets the bits of a number as another type."""

    @intrinsic
    def cast(_: Any, x: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
            return builder.bitcast(arguments[0], llvm)

        return target(source), generate

    return cast


_bits32 = _bit_cast(types.float32, types.int32, ir.IntType(32))
_float32 = _bit_cast(types.int32, types.float32, ir.FloatType())
_bits64 = _bit_cast(types.float64, types.int64, ir.IntType(64))
_float64 = _bit_cast(types.int64, types.float64, ir.DoubleType())

# Adding and then subtracting one of these rounds a number to the nearest integer.
_ROUND32, _ROUND64 = np.float32(1.5 * 2**23), 1.5 * 2.0**52
# Coefficients of the polynomials for 2^f: _S for float32, _D for float64
_S0, _S1, _S2, _S3, _S4, _S5, _S6 = (
    np.float32(c)
    for c in (
        *(1.0000000005542002, 0.6931472057376322, 0.2402264689043146, 0.055503287761308535),
        *(0.009618488975690453, 0.0013399931566734531, 0.00015345807895825528),
    )
)
_D = tuple(math.log(2) ** i / math.factorial(i) for i in range(14))


def _exp2(x: Any) -> Any:
    """2^x for ``MIN_EXPONENT ≤ x ≤ 0``, in the dtype of `x`."""
    return np.exp2(x)


@overload(_exp2, jit_options={"fastmath": {"contract"}})
def _exp2_compiled(x: Any) -> Any:
    def single(x: Any) -> Any:
        shifted = x + _ROUND32
        f = x - (shifted - _ROUND32)
        p = (((((_S6 * f + _S5) * f + _S4) * f + _S3) * f + _S2) * f + _S1) * f + _S0
        return _float32(_bits32(p) + (_bits32(shifted) << np.int32(23)))

    def double(x: Any) -> Any:
        shifted = x + _ROUND64
        f = x - (shifted - _ROUND64)
        p = ((((((_D[13] * f + _D[12]) * f + _D[11]) * f + _D[10]) * f + _D[9]) * f + _D[8]) * f + _D[7]) * f
        p = ((((((p + _D[6]) * f + _D[5]) * f + _D[4]) * f + _D[3]) * f + _D[2]) * f + _D[1]) * f + _D[0]
        return _float64(_bits64(p) + (_bits64(shifted) << np.int64(52)))

    return single if x == types.float32 else double


@_compiled()
def decide(z: Any, guess: Any, start: int, stop: int) -> None:
    """Write the argmax of every row to `guess`; ties go to the lowest index."""
    for i in range(start, stop):
        best, column = z[i, 0], 0
        for j in range(1, z.shape[1]):
            if z[i, j] > best:
                best, column = z[i, j], j
        guess[i] = column


@_compiled(fastmath=_FASTMATH)
def wide_slopes(
    z: Any,
    y: Any,
    guess: Any,
    ids: Any,
    weight: Any,
    alpha: Any,
    active: Any,
    sums: Any,
    start: int,
    stop: int,
) -> None:
    """Add the first three derivatives of the NLL of every active slice to `sums` (3, S).

    They are derivatives with respect to the inverse temperature of the slice.
    """
    real = z.dtype.type
    for i in range(start, stop):
        s = ids[i]
        if not active[s]:
            continue
        top = z[i, guess[i]]
        scale = real(alpha[s] * _LOG2E)
        lowest = real(MIN_EXPONENT) / scale
        e0 = e1 = e2 = e3 = real(0)
        for j in range(z.shape[1]):
            d = max(z[i, j] - top, lowest)
            e = _exp2(scale * d)
            ed = e * d
            edd = ed * d
            e0 += e
            e1 += ed
            e2 += edd
            e3 += edd * d
        total = np.float64(e0)
        m1, m2, m3 = e1 / total, e2 / total, e3 / total
        w = weight[i] if weight.size else 1.0
        sums[0, s] += w * (m1 - max(np.float64(z[i, y[i]]) - top, FARTHEST))
        sums[1, s] += w * max(m2 - m1 * m1, 0.0)
        sums[2, s] += w * (m3 - 3 * m1 * m2 + 2 * m1 * m1 * m1)


@_compiled(fastmath=_FASTMATH)
def narrow_slopes(
    z: Any,
    y: Any,
    guess: Any,
    ids: Any,
    weight: Any,
    alpha: Any,
    active: Any,
    sums: Any,
    start: int,
    stop: int,
) -> None:
    """Compute the same as `wide_slopes`, but faster for few classes."""
    real = z.dtype.type
    n_classes = z.shape[1]
    d = np.empty((n_classes, _TILE), z.dtype)
    row = np.empty(_TILE, np.int64)
    scale, lowest = np.empty(_TILE, z.dtype), np.empty(_TILE, z.dtype)
    e0, e1 = np.empty(_TILE, z.dtype), np.empty(_TILE, z.dtype)
    e2, e3 = np.empty(_TILE, z.dtype), np.empty(_TILE, z.dtype)
    next_row = start
    while next_row < stop:
        n = 0
        while next_row < stop and n < _TILE:
            s = ids[next_row]
            if active[s]:
                row[n] = next_row
                top = z[next_row, guess[next_row]]
                scale[n] = real(alpha[s] * _LOG2E)
                for j in range(n_classes):
                    d[j, n] = z[next_row, j] - top
                n += 1
            next_row += 1
        for b in range(n):
            lowest[b] = real(MIN_EXPONENT) / scale[b]
            e0[b] = e1[b] = e2[b] = e3[b] = real(0)
        for j in range(n_classes):
            for b in range(n):
                x = max(d[j, b], lowest[b])
                e = _exp2(scale[b] * x)
                ex = e * x
                exx = ex * x
                e0[b] += e
                e1[b] += ex
                e2[b] += exx
                e3[b] += exx * x
        for b in range(n):
            m1, m2, m3 = e1[b] / e0[b], e2[b] / e0[b], e3[b] / e0[b]
            e1[b] = m1
            e2[b] = max(m2 - m1 * m1, real(0))
            e3[b] = m3 - real(3) * m1 * m2 + real(2) * m1 * m1 * m1
        for b in range(n):
            i = row[b]
            s = ids[i]
            w = weight[i] if weight.size else 1.0
            sums[0, s] += w * (np.float64(e1[b]) - max(np.float64(d[y[i], b]), FARTHEST))
            sums[1, s] += w * e2[b]
            sums[2, s] += w * e3[b]


@_compiled(fastmath=_FASTMATH)
def wide_losses(z: Any, y: Any, guess: Any, alpha: Any, out: Any, start: int, stop: int) -> None:
    """Write the NLL of every row i under ``softmax(α_i z_i)`` to `out`."""
    real = z.dtype.type
    for i in range(start, stop):
        top = z[i, guess[i]]
        scale = real(alpha[i] * _LOG2E)
        lowest = real(MIN_EXPONENT) / scale
        total = real(0)
        for j in range(z.shape[1]):
            total += _exp2(scale * max(z[i, j] - top, lowest))
        out[i] = math.log(np.float64(total)) - alpha[i] * max(np.float64(z[i, y[i]]) - top, FARTHEST)


@_compiled(fastmath=_FASTMATH)
def narrow_losses(z: Any, y: Any, guess: Any, alpha: Any, out: Any, start: int, stop: int) -> None:
    """Compute the same as `wide_losses`, but faster for few classes."""
    real = z.dtype.type
    n_classes = z.shape[1]
    d, scale = np.empty((n_classes, _TILE), z.dtype), np.empty(_TILE, z.dtype)
    lowest, total = np.empty(_TILE, z.dtype), np.empty(_TILE, z.dtype)
    for first in range(start, stop, _TILE):
        n = min(_TILE, stop - first)
        for b in range(n):
            top = z[first + b, guess[first + b]]
            scale[b] = real(alpha[first + b] * _LOG2E)
            for j in range(n_classes):
                d[j, b] = z[first + b, j] - top
        for b in range(n):
            lowest[b] = real(MIN_EXPONENT) / scale[b]
            total[b] = real(0)
        for j in range(n_classes):
            for b in range(n):
                total[b] += _exp2(scale[b] * max(d[j, b], lowest[b]))
        for b in range(n):
            i = first + b
            out[i] = math.log(np.float64(total[b])) - alpha[i] * max(np.float64(d[y[i], b]), FARTHEST)


@register_jitable
def _best_possible(row: Any, top: Any, likelihood: Any, guess: int) -> Any:
    """Largest logit of the classes for which the observed label is possible, minus `top`; at most 0.

    `top` is the largest logit of the row, that of class `guess`. `likelihood` (K,) is the probability of the
    observed label given each true class.
    """
    if likelihood[guess] > 0:
        return row[guess] - top
    best = -np.inf
    for j in range(row.size):
        if likelihood[j] > 0:
            best = max(best, row[j])
    return max(best - top, FARTHEST)


@_compiled(fastmath=_FASTMATH)
def noisy_slopes(
    z: Any,
    y: Any,
    guess: Any,
    ids: Any,
    weight: Any,
    alpha: Any,
    active: Any,
    likelihood: Any,
    sums: Any,
    start: int,
    stop: int,
) -> None:
    """Compute the same as `wide_slopes`, but for observed labels that may be wrong.

    Entry ``[i, j]`` of `likelihood` (K, K) is the probability of the observed label i if the true class is j.
    """
    real = z.dtype.type
    for i in range(start, stop):
        s = ids[i]
        if not active[s]:
            continue
        top, label = z[i, guess[i]], y[i]
        scale = real(alpha[s] * _LOG2E)
        lowest = real(MIN_EXPONENT) / scale
        best = _best_possible(z[i], top, likelihood[label], guess[i])
        e0 = e1 = e2 = e3 = real(0)
        q0 = q1 = q2 = q3 = real(0)
        for j in range(z.shape[1]):
            d = max(z[i, j] - top, lowest)
            e = _exp2(scale * d)
            ed = e * d
            edd = ed * d
            e0 += e
            e1 += ed
            e2 += edd
            e3 += edd * d
            if best < 0:
                d = max(min(z[i, j] - top - best, real(0)), lowest)
                e = _exp2(scale * d)
            q = likelihood[label, j] * e
            qd = q * d
            qdd = qd * d
            q0 += q
            q1 += qd
            q2 += qdd
            q3 += qdd * d
        total = np.float64(e0)
        m1, m2, m3 = e1 / total, e2 / total, e3 / total
        total = np.float64(q0)
        n1, n2, n3 = q1 / total, q2 / total, q3 / total
        w = weight[i] if weight.size else 1.0
        sums[0, s] += w * (m1 - (n1 + best))
        sums[1, s] += w * (max(m2 - m1 * m1, 0.0) - max(n2 - n1 * n1, 0.0))
        sums[2, s] += w * ((m3 - 3 * m1 * m2 + 2 * m1 * m1 * m1) - (n3 - 3 * n1 * n2 + 2 * n1 * n1 * n1))


@_compiled(fastmath=_FASTMATH)
def noisy_losses(
    z: Any, y: Any, guess: Any, alpha: Any, likelihood: Any, out: Any, start: int, stop: int
) -> None:
    """Compute the same as `wide_losses`, but for observed labels that may be wrong.

    `likelihood` (K, K) is the same as in `noisy_slopes`.
    """
    real = z.dtype.type
    for i in range(start, stop):
        top, label = z[i, guess[i]], y[i]
        scale = real(alpha[i] * _LOG2E)
        lowest = real(MIN_EXPONENT) / scale
        best = _best_possible(z[i], top, likelihood[label], guess[i])
        total = observed = real(0)
        for j in range(z.shape[1]):
            x = max(z[i, j] - top, real(FARTHEST))
            e = _exp2(scale * max(x, lowest))
            total += e
            if best < 0:
                e = _exp2(scale * max(min(x - best, real(0)), lowest))
            observed += likelihood[label, j] * e
        out[i] = math.log(np.float64(total)) - math.log(np.float64(observed)) - alpha[i] * best


@_compiled(fastmath=_FASTMATH)
def vector_sums(
    z: Any, y: Any, weight: Any, scale: Any, bias: Any, gradient: Any, start: int, stop: int
) -> float:
    """Return the NLL of ``softmax(scale ⊙ z + bias)``, summed over the rows.

    Its gradient with respect to scale and bias is added to `gradient` (2, K).
    """
    real = z.dtype.type
    lowest, limit = real(MIN_EXPONENT), real(MAX_LOGIT)
    n_classes = z.shape[1]
    u = np.empty(n_classes, z.dtype)
    partial = np.zeros((2, n_classes), z.dtype)  # softmax terms of the gradient, summed over a few rows
    loss = 0.0
    for first in range(start, stop, _PARTIAL_ROWS):
        last = min(first + _PARTIAL_ROWS, stop)
        for i in range(first, last):
            w = weight[i] if weight.size else 1.0
            largest = real(-np.inf)
            for j in range(n_classes):
                u[j] = scale[j] * min(max(z[i, j], -limit), limit) + bias[j]
                largest = max(largest, u[j])
            true = np.float64(u[y[i]]) - largest
            total = real(0)
            for j in range(n_classes):
                x = (u[j] - largest) * real(_LOG2E)
                e = _exp2(max(x, lowest))
                u[j] = e if x > lowest else real(0)  # clipped entries, mostly of masked classes, add zero
                total += u[j]
            loss += w * (math.log(np.float64(total)) - true)
            share = real(w) / total
            for j in range(n_classes):
                p = u[j] * share
                partial[0, j] += p * min(max(z[i, j], -limit), limit)
                partial[1, j] += p
            gradient[0, y[i]] -= w * min(max(z[i, y[i]], -limit), limit)
            gradient[1, y[i]] -= w
        for j in range(n_classes):
            gradient[0, j] += partial[0, j]
            gradient[1, j] += partial[1, j]
            partial[0, j] = partial[1, j] = real(0)
    return loss


@_compiled(fastmath=_FASTMATH)
def platt_sums(
    x: Any, right: Any, ids: Any, weight: Any, theta: Any, active: Any, sums: Any, start: int, stop: int
) -> None:
    """Add the NLL of `right` in each slice, its gradient and its Hessian to `sums` (6, S).

    `right` says whether the prediction for each row is correct. In the model, it is correct with probability
    ``sigmoid(θ₀ x + θ₁)``, where x is the log-odds of the predicted class. The gradient has 2 entries, and
    the Hessian has 3 distinct ones.
    """
    for i in range(start, stop):
        s = ids[i]
        if not active[s]:
            continue
        u = theta[s, 0] * x[i] + theta[s, 1]
        e = math.exp(-abs(u))
        likely, unlikely = 1 / (1 + e), e / (1 + e)
        w = weight[i] if weight.size else 1.0
        if right[i]:
            linear_loss = -u if u < 0 else 0.0
            slope = -w * (unlikely if u >= 0 else likely)
        else:
            linear_loss = u if u > 0 else 0.0
            slope = w * (likely if u >= 0 else unlikely)
        curve = w * likely * unlikely
        sums[0, s] += w * (linear_loss + math.log1p(e))
        sums[1, s] += slope * x[i]
        sums[2, s] += slope
        sums[3, s] += curve * x[i] * x[i]
        sums[4, s] += curve * x[i]
        sums[5, s] += curve
