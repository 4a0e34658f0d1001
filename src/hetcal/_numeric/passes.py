"""Passes over the logits: losses and their derivatives, probabilities and log-odds of many rows.

Losses and probabilities are computed from ``d = z − max(z)`` of each row. Since ``d ≤ 0``, exponentials do
not overflow. The exponentials are computed in the dtype of the logits, whereas sums over rows use float64.
Most functions process the rows in chunks that are small enough to stay in the cache. For large arrays,
`slope_pass` and `tempered_nll` use numba instead of numpy if it is available (see `acceleration`) and the
labels are not soft.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from hetcal._numeric import redistribute
from hetcal._numeric.acceleration import compiled_for
from hetcal._numeric.label_models import NoisyLabels, SoftLabels
from hetcal._numeric.probabilities import keep_decision
from hetcal._numeric.rows import NARROW, Rows, below_top, decide
from hetcal._numeric.threads import in_order, over_blocks
from hetcal._typing import CodeArray, Float, FloatArray, IntArray

__all__ = [
    "count_slices",
    "flat_rows",
    "gap_sums",
    "nll_pass",
    "row_slopes",
    "scaled_softmax",
    "slope_pass",
    "spread",
    "sum_slices",
    "temperature_errors",
    "tempered_nll",
    "top_margin",
]


_CHUNK = 1 << 18  # logits per chunk: enough to occupy a thread, few enough to stay in the cache
_MIN_CHUNKS = 4  # with fewer chunks, starting threads costs more than it saves
_COUNT_ROWS = 1 << 20  # number of rows that `count_slices` processes at once


def slope_pass(
    rows: Rows, ids: CodeArray, alpha: Float, active: NDArray[np.bool_]
) -> tuple[Float, Float, Float]:
    """First three derivatives in α of the NLL of ``softmax(α z)``, summed over each active slice.

    With ``d = z − max(z)`` and ``p = softmax(α d)``, they are ``Σ w (E_p[d] − d_y)``, ``Σ w Var_p[d]`` and
    ``Σ w E_p[(d − E_p[d])³]`` for certain labels y. For soft and noisy labels, the first derivative of the
    pull (see `label_models`) replaces d_y. Its second derivative is subtracted from ``Var_p[d]``, and its
    third derivative from ``E_p[(d − E_p[d])³]``.

    Parameters
    ----------
    rows : Rows
    ids : (n,) slice of each row
    alpha : (S,) inverse temperature of each slice
    active : (S,) bool, whether to visit the rows of each slice

    Returns
    -------
    first, second, third : (S,) float64, zero for slices that are not active
    """
    kernels = compiled_for(rows.z.size)
    if kernels is None or isinstance(rows.label_model, SoftLabels):
        index = None if active.all() else np.flatnonzero(active[ids])
        return _slope_chunks(rows, ids, alpha, index)
    visit = kernels.narrow_slopes if rows.z.shape[1] < NARROW else kernels.wide_slopes
    weight = np.empty(0) if rows.given_weight is None else rows.given_weight
    inputs: tuple[Any, ...] = (rows.z, rows.y, rows.guess, ids, weight, alpha, active)
    if isinstance(rows.label_model, NoisyLabels):
        visit, inputs = kernels.noisy_slopes, (*inputs, rows.label_model.likelihood.astype(rows.z.dtype))

    def sum_block(start: int, stop: int) -> Float:
        sums = np.zeros((3, len(alpha)))
        visit(*inputs, sums, start, stop)
        return sums

    first, second, third = sum(over_blocks(sum_block, *rows.z.shape), np.zeros((3, len(alpha))))
    return first, second, third


def _slope_chunks(
    rows: Rows, ids: CodeArray, alpha: Float, index: IntArray | None
) -> tuple[Float, Float, Float]:
    n_slices, w, labels = len(alpha), rows.given_weight, rows.label_model
    d_true = rows.d_true
    rows.below_top(slice(0))  # for small arrays, caches z − max z before the threads start

    def sum_chunk(part: slice | IntArray) -> list[Float]:
        k = ids[part]
        d, a = rows.below_top(part), alpha[k]
        _, *terms = _moments(d, a)
        if labels is None:
            terms[0] -= d_true[part]
        else:
            _, *pulls = labels.take(part).moments(d, a)
            terms = [term - pull for term, pull in zip(terms, pulls, strict=True)]
        return [sum_slices(k, t if w is None else w[part] * t, n_slices) for t in terms]

    parts = [(part,) for part in _chunks(rows, index)]
    first, second, third = sum(
        (np.array(sums) for sums in in_order(sum_chunk, parts, _MIN_CHUNKS)), np.zeros((3, n_slices))
    )
    return first, second, third


def nll_pass(
    rows: Rows, ids: CodeArray, alpha: Float, index: IntArray | None = None
) -> tuple[Float, Float, Float]:
    """NLL of ``softmax(α z)`` and its first and second derivatives in α, summed over each slice.

    With ``d = z − max(z)`` and ``p = softmax(α d)``, they are ``L = Σ w (log Σ_j e^{α d_j} − α d_y)``,
    ``L' = Σ w (E_p[d] − d_y)`` and ``L'' = Σ w Var_p[d]`` for certain labels y. For soft and noisy labels,
    the pull (see `label_models`) replaces ``α d_y``, its first derivative replaces d_y, and its second
    derivative is subtracted from ``Var_p[d]``.

    Parameters
    ----------
    rows : Rows
    ids : (n,) slice of each row
    alpha : (S,) inverse temperature of each slice
    index : rows to visit; all if None

    Returns
    -------
    loss, gradient, curvature : (S,) float64, zero for slices without visited rows
    """
    n_slices = len(alpha)
    sums = np.zeros((3, n_slices))
    for part in _chunks(rows, index):
        k = ids[part]
        a = alpha[k]
        d, w = rows.below_top(part), rows.weight[part]
        total, mean, var, _ = _moments(d, a)
        pull, slope, curvature = _pulls(rows, part, d, a)
        sums[0] += np.bincount(k, w * (np.log(total) - pull), n_slices)
        sums[1] += np.bincount(k, w * (mean - slope), n_slices)
        sums[2] += np.bincount(k, w * (var - curvature), n_slices)
    return sums[0], sums[1], sums[2]


def row_slopes(rows: Rows, alpha: float) -> tuple[Float, Float]:
    """First two derivatives in α of the unweighted NLL of every row under ``softmax(α z)``, (n,) each."""
    out = np.empty((2, len(rows)))
    rows.below_top(slice(0))  # for small arrays, caches z − max z before the threads start

    def compute(part: slice) -> None:
        d = rows.below_top(part)
        a = np.full(len(d), alpha)
        _, mean, var, _ = _moments(d, a)
        _, slope, curvature = _pulls(rows, part, d, a)
        out[:, part] = mean - slope, var - curvature

    in_order(compute, [(part,) for part in _parts(rows.z)], _MIN_CHUNKS)
    return out[0], out[1]


def tempered_nll(rows: Rows, alpha: Float) -> Float:
    """Unweighted NLL of every row i under ``softmax(α_i z_i)``, (n,)."""
    out = np.empty(len(rows))
    kernels = compiled_for(rows.z.size)
    if kernels is None or isinstance(rows.label_model, SoftLabels):
        for part in _chunks(rows, None):
            d, a = rows.below_top(part), alpha[part]
            out[part] = np.log(_exponentials(d, a)[1]) - _pulls(rows, part, d, a)[0]
        return out
    visit = kernels.narrow_losses if rows.z.shape[1] < NARROW else kernels.wide_losses
    inputs: tuple[Any, ...] = (rows.z, rows.y, rows.guess, alpha)
    if isinstance(rows.label_model, NoisyLabels):
        visit, inputs = kernels.noisy_losses, (*inputs, rows.label_model.likelihood.astype(rows.z.dtype))
    over_blocks(lambda a, b: visit(*inputs, out, a, b), *rows.z.shape)
    return out


def _pulls(
    rows: Rows, part: slice | IntArray, d: FloatArray, alpha: Float
) -> tuple[Float, Float, Float | float]:
    """``pull(α d)`` of each row (see `label_models`), and its first two derivatives in α."""
    if rows.label_model is None:
        return alpha * rows.d_true[part], rows.d_true[part], 0.0
    pull, slope, curvature, _ = rows.label_model.take(part).moments(d, alpha)
    return pull, slope, curvature


def sum_slices(ids: CodeArray, values: NDArray[Any], n_slices: int) -> Float:
    """Sum of the values of every slice, in float64.

    The shape is (S,), where S is `n_slices`. If `ids` contains numbers of S or more, the result is longer and
    also contains the sums for these numbers.
    """
    return np.asarray(np.bincount(ids, values, n_slices), np.float64)


def count_slices(ids: CodeArray, n_slices: int) -> IntArray:
    """Number of rows in each slice, (S,), where S is `n_slices`; ids of S or more are ignored.

    Counting in chunks avoids an int64 copy of all `ids`.
    """
    counts = np.zeros(n_slices, np.int64)
    for start in range(0, len(ids), _COUNT_ROWS):
        counts += np.bincount(ids[start : start + _COUNT_ROWS], minlength=n_slices)[:n_slices]
    return counts


def flat_rows(rows: Rows, index: IntArray) -> NDArray[np.bool_]:
    """For each row in `index`, whether all its logits are equal, so that α has no effect on it."""
    out = np.empty(len(index), bool)
    step = _step(rows.z)
    for start in range(0, len(index), step):
        part = index[start : start + step]
        out[start : start + step] = rows.z[part].min(axis=1) == rows.top[part]
    return out


def gap_sums(rows: Rows) -> tuple[Float, Float]:
    """Sums of ``weight`` and of ``weight · (confidence − correctness)`` by predicted class, (K,) each."""
    margin, guess = top_margin(rows.z, rows.guess)
    gap = rows.weight * (expit(margin) - rows.correctness)
    n_classes = rows.z.shape[1]
    return sum_slices(guess, rows.weight, n_classes), sum_slices(guess, gap, n_classes)


def scaled_softmax(z: FloatArray, alpha: Float, guess: CodeArray | None = None) -> FloatArray:
    """``softmax(α_i z_i)`` of every row i, in the dtype of `z`; every row keeps its argmax.

    `guess` is the argmax of every row; if None, it is computed.
    """
    guess = decide(z) if guess is None else guess
    top = z[np.arange(len(z)), guess]
    out = np.empty_like(z)
    near_tie = 1 - 8 * np.finfo(z.dtype).eps

    def transform(part: slice) -> None:
        e = below_top(z[part], top[part])
        _temper(e, alpha[part], out=e)
        np.exp(e, out=e)
        # For the predicted class, e is 1. If e is clearly smaller for all other classes, the division cannot
        # cause a tie.
        unique = np.count_nonzero(e > near_tie) == len(e)
        e /= e.sum(axis=1, keepdims=True)
        out[part] = e if unique else keep_decision(e, guess[part])

    in_order(transform, [(part,) for part in _parts(z)], _MIN_CHUNKS)
    return out


def top_margin(z: FloatArray, guess: CodeArray | None = None) -> tuple[Float, CodeArray]:
    """Log-odds ``log(p̂ / (1 − p̂))`` of the predicted class (n,), and this class (n,).

    The log-odds are accurate even if p̂ rounds to 1. `guess` is the argmax of every row; if None, it is
    computed.
    """
    guess = decide(z) if guess is None else guess
    top = z[np.arange(len(z)), guess]
    out = np.empty(len(z))

    def compute(part: slice) -> None:
        second, rest = _rest(z[part], top[part], guess[part])
        out[part] = -(second + np.log(rest.sum(axis=1)))

    in_order(compute, [(part,) for part in _parts(z)], _MIN_CHUNKS)
    return out, guess


def temperature_errors(z: FloatArray, p: FloatArray, error: Float) -> FloatArray:
    """Standard errors (n, K) of the probabilities ``p = softmax(α z)``, at most 1.

    They are ``|∂p/∂α|`` times `error` (n,), the standard error of α for each row.
    """
    d = below_top(z, z.max(axis=1))
    d = np.where(p > 0, d, 0)
    slope = np.abs(p * (d - np.einsum("ij,ij->i", p, d)[:, None]))
    with np.errstate(invalid="ignore"):  # 0 · inf is nan; the error is 0 where p does not depend on α
        return np.asarray(np.where(slope > 0, np.minimum(slope * error[:, None], 1.0), 0.0), z.dtype)


def spread(
    z: FloatArray, confidence: Float, *, pool: bool = False, guess: CodeArray | None = None
) -> FloatArray:
    """Probabilities (n, K) in which the predicted class has a given confidence and the argmax is preserved.

    The other classes share the remaining probability in the same proportions as in the softmax, unless one of
    them would then overtake the predicted class.

    By default, a confidence below ``1/K`` is raised to ``1/K``. If another class would still overtake the
    predicted class, the shares of the other classes are mixed with just enough of a uniform distribution to
    prevent this. With ``pool=True``, the predicted class and as many of the most probable other classes as
    necessary receive their mean probability instead. Among the distributions p that preserve the argmax, the
    result then minimises ``KL(q ‖ p)``, where q are the probabilities without this correction.

    `confidence` has shape (n,). `guess` is the argmax of every row; if None, it is computed.
    """
    n_classes = z.shape[1]
    guess = decide(z) if guess is None else guess
    top = z[np.arange(len(z)), guess]
    out = np.empty_like(z)

    def transform(part: slice) -> None:
        c = confidence[part] if pool else np.maximum(confidence[part], 1 / n_classes)
        _, rest = _rest(z[part], top[part], guess[part])
        share = rest.astype(np.float64)
        share /= share.sum(axis=1, keepdims=True)
        if pool:
            share *= (1 - c)[:, None]
            c = redistribute.pool(share, c)
        else:
            share = redistribute.level(share, c, n_classes) * (1 - c)[:, None]
        share[np.arange(len(share)), guess[part]] = c
        out[part] = _break_ties(share.astype(z.dtype), guess[part])

    in_order(transform, [(part,) for part in _parts(z)], _MIN_CHUNKS)
    return out


def _break_ties(p: FloatArray, guess: CodeArray) -> FloatArray:
    """Apply `keep_decision`. For short rows, whose argmax is slow, first check whether there are any ties."""
    if p.shape[1] >= NARROW:
        return keep_decision(p, guess)
    top = p[np.arange(len(p)), guess][:, None]
    return p if np.count_nonzero(p >= top) == len(p) else keep_decision(p, guess)


def _moments(d: FloatArray, alpha: Float) -> tuple[Float, Float, Float, Float]:
    """``Σ e^{αd}``, E_p[d], Var_p[d] and E_p[(d − E_p[d])³] of each row, with ``p = softmax(αd)``."""
    e, total = _exponentials(d, alpha)
    ones = np.ones(d.shape[1], d.dtype)
    mean, square, cube = (np.multiply(e, d, out=e) @ ones / total for _ in range(3))
    var = square - mean * mean
    skew = cube - mean * (square + 2 * var)
    return total, mean, np.maximum(var, 0), skew


def _exponentials(d: FloatArray, alpha: Float) -> tuple[FloatArray, Float]:
    """``e^{αd}`` and its sum along each row."""
    e = _temper(d, alpha)
    np.exp(e, out=e)
    return e, (e @ np.ones(e.shape[1], e.dtype)).astype(np.float64)  # faster than sum()


def _temper(d: FloatArray, alpha: Float, out: FloatArray | None = None) -> FloatArray:
    """``α_i d_i`` of each row i; overflow gives −inf, whose exponential is correctly 0."""
    a = np.minimum(alpha, np.finfo(d.dtype).max).astype(d.dtype)
    with np.errstate(over="ignore"):
        return np.multiply(d, a[:, None], out=out)


def _rest(z: FloatArray, top: FloatArray, guess: CodeArray) -> tuple[Float, FloatArray]:
    """Return ``z_2 − z_1`` and ``e^{z − z_2}`` of each row, where z_1 ≥ z_2 are its two largest logits.

    In the second result, the entry of the predicted class is set to 0.
    """
    d = below_top(z, top)
    d[np.arange(len(d)), guess] = -np.inf
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
