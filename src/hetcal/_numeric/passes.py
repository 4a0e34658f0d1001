"""Fused passes over the logits: the only code that walks over them.

Everything is computed from ``d = z − max(z)`` (row-wise, so ``d ≤ 0`` and exponentials never overflow), in
the dtype of the logits, with sums over rows in float64: by numpy in chunks that stay in the cache, or by
compiled passes on all cores where the array is large (see `fast`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._numeric import redistribute
from hetcal._numeric.acceleration import compiled_for
from hetcal._numeric.probabilities import keep_decision
from hetcal._numeric.rows import NARROW, Rows, below_top, decide
from hetcal._numeric.threads import in_order, over_blocks
from hetcal._typing import CodeArray, Float, FloatArray, IntArray

__all__ = [
    "count_slices",
    "flat_rows",
    "nll_pass",
    "scaled_softmax",
    "slope_pass",
    "spread",
    "sum_slices",
    "temperature_errors",
    "tempered_nll",
    "top_margin",
]


_CHUNK = 1 << 18  # elements per chunk: large enough for threads, small enough for the caches
_WORTH = 4  # chunks from which threads pay: handing work over takes longer than a small chunk
_MANY_ROWS = 1 << 20  # rows whose slices are counted together


def slope_pass(
    rows: Rows, ids: CodeArray, alpha: Float, active: NDArray[np.bool_]
) -> tuple[Float, Float, Float]:
    """First three derivatives in α of the NLL of ``softmax(α z)``, summed over each slice that is active.

    They are ``Σ w (E_p[d] − d_y)``, ``Σ w Var_p[d]`` and ``Σ w E_p[(d − E_p[d])³]``.

    Parameters
    ----------
    rows : Rows
    ids : (n,) slice of each row; rows of slices beyond S are left out
    alpha : (S,) inverse temperature of each slice
    active : (S,) slices whose rows are visited

    Returns
    -------
    (S,) float64 each, zero for slices that are not active
    """
    kernels = compiled_for(rows.z.size)
    if kernels is None:
        index = None if active.all() else np.flatnonzero(active[ids])
        return _slope_chunks(rows, ids, alpha, index)
    visit = kernels.narrow_slopes if rows.z.shape[1] < NARROW else kernels.wide_slopes
    weight = np.empty(0) if rows.given_weight is None else rows.given_weight

    def some(start: int, stop: int) -> Float:
        sums = np.zeros((3, len(alpha)))
        visit(rows.z, rows.y, rows.guess, ids, weight, alpha, active, sums, start, stop)
        return sums

    first, second, third = sum(over_blocks(some, *rows.z.shape), np.zeros((3, len(alpha))))
    return first, second, third


def _slope_chunks(
    rows: Rows, ids: CodeArray, alpha: Float, index: IntArray | None
) -> tuple[Float, Float, Float]:
    n_slices, w = len(alpha), rows.given_weight
    d_true = rows.d_true
    rows.below_top(slice(0))  # what is kept is made here, not by every thread

    def some(part: slice | IntArray) -> list[Float]:
        k = ids[part]
        _, mean, var, skew = _moments(rows.below_top(part), alpha[k])
        terms = (mean - d_true[part], var, skew)
        return [sum_slices(k, t if w is None else w[part] * t, n_slices) for t in terms]

    parts = [(part,) for part in _chunks(rows, index)]
    first, second, third = sum(
        (np.array(sums) for sums in in_order(some, parts, _WORTH)), np.zeros((3, n_slices))
    )
    return first, second, third


def nll_pass(
    rows: Rows, ids: CodeArray, alpha: Float, index: IntArray | None = None
) -> tuple[Float, Float, Float]:
    """Sum over each slice of the NLL of ``softmax(α z)`` with its first and second derivative in α.

    ``L = Σ w (log Σ_j e^{α d_j} − α d_y)``, ``L' = Σ w (E_p[d] − d_y)``, ``L'' = Σ w Var_p[d]``.

    Parameters
    ----------
    rows : Rows
    ids : (n,) slice of each row
    alpha : (S,) inverse temperature of each slice
    index : rows to visit, all where None

    Returns
    -------
    loss, gradient, curvature : (S,) float64, zero for slices without visited rows
    """
    n_slices = len(alpha)
    sums = np.zeros((3, n_slices))
    for part in _chunks(rows, index):
        k = ids[part]
        a = alpha[k]
        total, mean, var, _ = _moments(rows.below_top(part), a)
        w, d_true = rows.weight[part], rows.d_true[part]
        sums[0] += np.bincount(k, w * (np.log(total) - a * d_true), n_slices)
        sums[1] += np.bincount(k, w * (mean - d_true), n_slices)
        sums[2] += np.bincount(k, w * var, n_slices)
    return sums[0], sums[1], sums[2]


def tempered_nll(rows: Rows, alpha: Float) -> Float:
    """NLL of every row under ``softmax(α_i z_i)``, (n,)."""
    out = np.empty(len(rows))
    kernels = compiled_for(rows.z.size)
    if kernels is None:
        for part in _chunks(rows, None):
            _, total = _shares(rows.below_top(part), alpha[part])
            out[part] = np.log(total) - alpha[part] * rows.d_true[part]
        return out
    visit = kernels.narrow_losses if rows.z.shape[1] < NARROW else kernels.wide_losses
    over_blocks(lambda a, b: visit(rows.z, rows.y, rows.guess, alpha, out, a, b), *rows.z.shape)
    return out


def sum_slices(ids: CodeArray, values: NDArray[Any], n_slices: int) -> Float:
    """Sum of the values of every slice, (S,) float64."""
    return np.asarray(np.bincount(ids, values, n_slices), np.float64)


def count_slices(ids: CodeArray, n_slices: int) -> IntArray:
    """Rows of every slice, (S,), without a wide copy of `ids`; rows of slices beyond S are left out."""
    counts = np.zeros(n_slices, np.int64)
    for start in range(0, len(ids), _MANY_ROWS):
        counts += np.bincount(ids[start : start + _MANY_ROWS], minlength=n_slices)[:n_slices]
    return counts


def flat_rows(rows: Rows, index: IntArray) -> NDArray[np.bool_]:
    """Whether all logits of a row are equal, for the rows `index`; no temperature changes such a row."""
    out = np.empty(len(index), bool)
    step = _step(rows.z)
    for start in range(0, len(index), step):
        part = index[start : start + step]
        out[start : start + step] = rows.z[part].min(axis=1) == rows.top[part]
    return out


def scaled_softmax(z: FloatArray, alpha: Float, guess: CodeArray | None = None) -> FloatArray:
    """``softmax(α_i z_i)`` row by row with the decision kept, in the dtype of `z`; `guess` is the argmax."""
    guess = decide(z) if guess is None else guess
    top = z[np.arange(len(z)), guess]
    out = np.empty_like(z)

    def some(part: slice) -> None:
        d = below_top(z[part], top[part])
        _temper(d, alpha[part], out=d)
        np.exp(d, out=d)
        d /= d.sum(axis=1, keepdims=True)
        out[part] = _settle_ties(d, guess[part])

    in_order(some, [(part,) for part in _parts(z)], _WORTH)
    return out


def top_margin(z: FloatArray, guess: CodeArray | None = None) -> tuple[Float, CodeArray]:
    """Log-odds of the predicted class, ``log p̂ / (1 − p̂)``, and that class; exact where p̂ rounds to 1."""
    guess = decide(z) if guess is None else guess
    top = z[np.arange(len(z)), guess]
    out = np.empty(len(z))

    def some(part: slice) -> None:
        second, rest = _rest(z[part], top[part], guess[part])
        out[part] = -(second + np.log(rest.sum(axis=1)))

    in_order(some, [(part,) for part in _parts(z)], _WORTH)
    return out, guess


def temperature_errors(z: FloatArray, p: FloatArray, error: Float) -> FloatArray:
    """Standard errors of ``p = softmax(α z)`` from those of α (n,): ``|∂p/∂α|`` times them."""
    d = below_top(z, z.max(axis=1))
    d = np.where(p > 0, d, 0)
    slope = np.abs(p * (d - np.einsum("ij,ij->i", p, d)[:, None]))
    with np.errstate(invalid="ignore"):  # zero times infinity: what does not move has no error
        return np.asarray(np.where(slope > 0, np.minimum(slope * error[:, None], 1.0), 0.0), z.dtype)


def spread(
    z: FloatArray, confidence: Float, *, pool: bool = False, guess: CodeArray | None = None
) -> FloatArray:
    """Probabilities that give the predicted class `confidence` and share out the rest as the softmax does.

    The argmax stays. Where another class would overtake, the confidence stays too (at ``1/K`` or above) and
    the rest is mixed with the uniform distribution just enough; or, with `pool`, the predicted class and
    those that overtake it share what they have, which is the nearest distribution in KL divergence.
    """
    n_classes = z.shape[1]
    guess = decide(z) if guess is None else guess
    top = z[np.arange(len(z)), guess]
    out = np.empty_like(z)

    def some(part: slice) -> None:
        c = confidence[part] if pool else np.maximum(confidence[part], 1 / n_classes)
        _, rest = _rest(z[part], top[part], guess[part])
        share = rest.astype(np.float64)
        share /= share.sum(axis=1, keepdims=True)
        here = np.arange(len(share))
        if pool:
            share *= (1 - c)[:, None]
            c = redistribute.pool(share, c)
        else:
            share = redistribute.level(share, c, n_classes) * (1 - c)[:, None]
        share[here, guess[part]] = c
        out[part] = _settle_ties(share.astype(z.dtype), guess[part])

    in_order(some, [(part,) for part in _parts(z)], _WORTH)
    return out


def _settle_ties(p: FloatArray, guess: CodeArray) -> FloatArray:
    """`keep_decision`; along short rows, where an argmax is slow, only if an entry ties with `guess`."""
    if p.shape[1] >= NARROW:
        return keep_decision(p, guess)
    top = p[np.arange(len(p)), guess][:, None]
    return p if np.count_nonzero(p >= top) == len(p) else keep_decision(p, guess)


def _moments(d: FloatArray, alpha: Float) -> tuple[Float, Float, Float, Float]:
    """Per row: Σ e^{αd}, E_p[d], Var_p[d] and E_p[(d − E_p[d])³] with p = softmax(αd)."""
    e, total = _shares(d, alpha)
    ones = np.ones(d.shape[1], d.dtype)
    mean, square, cube = (np.multiply(e, d, out=e) @ ones / total for _ in range(3))
    var = square - mean * mean
    skew = cube - mean * (square + 2 * var)
    return total, mean, np.maximum(var, 0), skew


def _shares(d: FloatArray, alpha: Float) -> tuple[FloatArray, Float]:
    """``e^{αd}`` and their sum along each row."""
    e = _temper(d, alpha)
    np.exp(e, out=e)
    return e, (e @ np.ones(e.shape[1], e.dtype)).astype(np.float64)  # the fastest sum along rows


def _temper(d: FloatArray, alpha: Float, out: FloatArray | None = None) -> FloatArray:
    """``αd`` row by row; −inf past the end of the dtype, whose exponential is right."""
    a = np.minimum(alpha, np.finfo(d.dtype).max).astype(d.dtype)
    with np.errstate(over="ignore"):
        return np.multiply(d, a[:, None], out=out)


def _rest(z: FloatArray, top: FloatArray, guess: CodeArray) -> tuple[Float, FloatArray]:
    """Distance of the runner-up below the top, and ``e^{z − z_2}`` of all classes but the predicted one."""
    d = below_top(z, top)
    here = np.arange(len(d))
    d[here, guess] = -np.inf
    second = d.max(axis=1)
    d -= second[:, None]
    np.exp(d, out=d)
    return second.astype(np.float64), d


def _step(z: FloatArray) -> int:
    return max(1, _CHUNK // int(z.shape[1]))


def _parts(z: FloatArray) -> list[slice]:
    step = _step(z)
    return [slice(start, min(start + step, len(z))) for start in range(0, len(z), step)]


def _chunks(rows: Rows, index: IntArray | None) -> Iterator[slice | IntArray]:
    if index is None:
        yield from _parts(rows.z)
    else:
        step = _step(rows.z)
        yield from (index[start : start + step] for start in range(0, len(index), step))
