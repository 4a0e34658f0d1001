"""Fused passes over the logits: the only code that walks over them.

Everything is computed from ``d = z − max(z)`` (row-wise, so ``d ≤ 0`` and exponentials never overflow), in
chunks that stay in the cache, in the dtype of the logits, with sums over rows in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._core.arrays import FloatArray, IntArray, keep_decision

__all__ = [
    "Rows",
    "decide",
    "flat_rows",
    "nll_pass",
    "prepare",
    "scaled_softmax",
    "spread",
    "sum_slices",
    "tempered_nll",
    "top_margin",
]

Float = NDArray[np.float64]

_CHUNK = 1 << 17  # elements per chunk: two float32 buffers of it fit in an L2 cache
_FARTHEST = (
    -1e30
)  # logits farther below the top (masks, mostly) count as this far: α·d stays finite in float32


@dataclass(frozen=True)
class Rows:
    """Logits with what every pass needs beside them.

    Attributes
    ----------
    z : (n, K) float32 or float64
    y : (n,) labels
    top : (n,) row maxima
    guess : (n,) argmax of each row, ties to the lowest index
    d_true : (n,) float64, ``z_y − max z``: how far the true class lies below the predicted one
    right : (n,) bool, whether the prediction is the label
    weight : (n,) float64
    """

    z: FloatArray
    y: IntArray
    top: FloatArray
    guess: IntArray
    d_true: Float
    right: NDArray[np.bool_]
    weight: Float

    def __len__(self) -> int:
        return len(self.z)

    def take(self, index: IntArray) -> Rows:
        """Return some of the rows."""
        return Rows(*(getattr(self, field.name)[index] for field in fields(self)))


def decide(z: FloatArray) -> tuple[FloatArray, IntArray]:
    """Row maximum and predicted class."""
    guess = z.argmax(axis=1)
    return z[np.arange(len(z)), guess], guess


def prepare(z: FloatArray, y: IntArray, weight: Float | None) -> Rows:
    """Gather what the passes need; rows of weight zero are left out."""
    if weight is not None and not weight.all():
        kept = weight > 0
        z, y, weight = z[kept], y[kept], weight[kept]
    top, guess = decide(z)
    with np.errstate(over="ignore"):
        d_true = np.maximum(z[np.arange(len(z)), y].astype(np.float64) - top, _FARTHEST)
    return Rows(z, y, top, guess, d_true, guess == y, np.ones(len(z)) if weight is None else weight)


def nll_pass(
    rows: Rows, ids: IntArray, alpha: Float, index: IntArray | None = None
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
        z, a = rows.z[part], alpha[k]
        lse, mean, var = _moments(z, rows.top[part], a)
        w, d_true = rows.weight[part], rows.d_true[part]
        sums[0] += np.bincount(k, w * (lse - a * d_true), n_slices)
        sums[1] += np.bincount(k, w * (mean - d_true), n_slices)
        sums[2] += np.bincount(k, w * var, n_slices)
    return sums[0], sums[1], sums[2]


def tempered_nll(rows: Rows, alpha: Float) -> Float:
    """NLL of every row under ``softmax(α_i z_i)``, (n,)."""
    out = np.empty(len(rows))
    for part in _chunks(rows, None):
        lse, _, _ = _moments(rows.z[part], rows.top[part], alpha[part])
        out[part] = lse - alpha[part] * rows.d_true[part]
    return out


def sum_slices(ids: IntArray, values: NDArray[Any], n_slices: int) -> Float:
    """Sum of the values of every slice, (S,) float64."""
    return np.asarray(np.bincount(ids, values, n_slices), np.float64)


def flat_rows(rows: Rows, index: IntArray) -> NDArray[np.bool_]:
    """Whether all logits of a row are equal, for the rows `index`; no temperature changes such a row."""
    out = np.empty(len(index), bool)
    step = _step(rows.z)
    for start in range(0, len(index), step):
        part = index[start : start + step]
        out[start : start + step] = rows.z[part].min(axis=1) == rows.top[part]
    return out


def scaled_softmax(z: FloatArray, alpha: Float) -> FloatArray:
    """``softmax(α_i z_i)`` row by row with the decision kept, in the dtype of `z`."""
    top, guess = decide(z)
    out = np.empty_like(z)
    step = _step(z)
    for start in range(0, len(z), step):
        part = slice(start, start + step)
        d = _below_top(z[part], top[part])
        d *= alpha[part, None].astype(z.dtype)
        np.exp(d, out=d)
        d /= d.sum(axis=1, keepdims=True)
        out[part] = keep_decision(d, guess[part])
    return out


def top_margin(z: FloatArray) -> tuple[Float, IntArray]:
    """Log-odds of the predicted class, ``log p̂ / (1 − p̂)``, and that class; exact where p̂ rounds to 1."""
    top, guess = decide(z)
    out = np.empty(len(z))
    step = _step(z)
    for start in range(0, len(z), step):
        part = slice(start, start + step)
        second, rest = _rest(z[part], top[part], guess[part])
        out[part] = -(second + np.log(rest.sum(axis=1)))
    return out, guess


def spread(z: FloatArray, confidence: Float) -> FloatArray:
    """Probabilities that give the predicted class `confidence` and share out the rest as the softmax does.

    The argmax stays: confidence is kept at ``1/K`` or above, and where another class would overtake, the
    rest is mixed with the uniform distribution just enough that it does not.
    """
    n_classes = z.shape[1]
    top, guess = decide(z)
    out = np.empty_like(z)
    step = _step(z)
    for start in range(0, len(z), step):
        part = slice(start, start + step)
        c = np.maximum(confidence[part], 1 / n_classes)
        _, rest = _rest(z[part], top[part], guess[part])
        share = rest.astype(np.float64)
        share /= share.sum(axis=1, keepdims=True)
        share = _level(share, c, n_classes) * (1 - c)[:, None]
        here = np.arange(len(share))
        share[here, guess[part]] = c
        out[part] = keep_decision(share.astype(z.dtype), guess[part])
    return out


def _level(share: Float, c: Float, n_classes: int) -> Float:
    """Mix `share` (rows sum to 1 over the other classes) with uniform until ``(1−c) max share ≤ c``."""
    largest = share.max(axis=1)
    odds = np.divide(c, 1 - c, out=np.full_like(c, np.inf), where=c < 1)
    uniform = 1 / (n_classes - 1)
    over = largest > odds
    if not over.any():
        return share
    room = np.where(over, largest - uniform, 1)
    mix = np.clip(np.where(over, (largest - odds) / np.where(room > 0, room, 1), 0), 0, 1)
    return np.asarray((1 - mix)[:, None] * share + mix[:, None] * uniform)


def _moments(z: FloatArray, top: FloatArray, alpha: Float) -> tuple[Float, Float, Float]:
    """Per row: log Σ e^{αd}, E_p[d], Var_p[d] with p = softmax(αd)."""
    d = _below_top(z, top)
    e = d * alpha[:, None].astype(d.dtype)
    np.exp(e, out=e)
    total = e.sum(axis=1, dtype=np.float64)
    np.multiply(e, d, out=e)
    mean = e.sum(axis=1, dtype=np.float64) / total
    square = np.einsum("ij,ij->i", d, e).astype(np.float64) / total
    return np.log(total), mean, np.maximum(square - mean * mean, 0)


def _below_top(z: FloatArray, top: FloatArray) -> FloatArray:
    """``z − max z``, kept finite: logits near the end of their dtype would give −inf, and −inf · 0 is nan."""
    with np.errstate(over="ignore"):
        d: FloatArray = z - top[:, None]
    if d.min() < _FARTHEST:
        np.maximum(d, _FARTHEST, out=d)
    return d


def _rest(z: FloatArray, top: FloatArray, guess: IntArray) -> tuple[Float, FloatArray]:
    """Distance of the runner-up below the top, and ``e^{z − z_2}`` of all classes but the predicted one."""
    d = _below_top(z, top)
    here = np.arange(len(d))
    d[here, guess] = -np.inf
    second = d.max(axis=1)
    d -= second[:, None]
    np.exp(d, out=d)
    return second.astype(np.float64), d


def _step(z: FloatArray) -> int:
    return max(1, _CHUNK // int(z.shape[1]))


def _chunks(rows: Rows, index: IntArray | None) -> Iterator[slice | IntArray]:
    step = _step(rows.z)
    n = len(rows) if index is None else len(index)
    for start in range(0, n, step):
        part = slice(start, min(start + step, n))
        yield part if index is None else index[part]
