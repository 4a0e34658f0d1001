"""Softmax, predicted classes, logarithms of probabilities, and normalisation of weights and logits."""

from __future__ import annotations

import numpy as np

from hetcal._numeric.rows import FARTHEST
from hetcal._numeric.threads import in_order
from hetcal._typing import CodeArray, Float, FloatArray, IntArray

__all__ = [
    "FAR",
    "LEAST_FLOOR",
    "centre",
    "keep_decision",
    "log_probs",
    "normalise_weights",
    "probability_floor",
    "softmax",
    "top_label",
]

# Smallest replacement for a probability of 0: the smallest normal float32. Smaller numbers have a lower
# relative precision in float32.
LEAST_FLOOR = float(np.finfo(np.float32).tiny)
_BLOCK = 1 << 17  # logits processed at a time
_MIN_BLOCKS = 4  # with fewer blocks, starting threads costs more than it saves
FAR = 100.0  # for the row mean, logits further than this below the row maximum are raised to this distance


def normalise_weights(w: Float) -> Float:
    """Weights scaled so that they sum to the effective sample size ``(Σw)² / Σw²``.

    The result does not change if all weights are multiplied by the same number.

    Examples
    --------
    >>> normalise_weights(np.array([5.0, 5.0])), normalise_weights(np.array([1.0, 3.0]))
    (array([1., 1.]), array([0.4, 1.2]))
    """
    w = w / w.max()
    return np.asarray(w * (w.sum() / (w @ w)))


def softmax(z: FloatArray) -> FloatArray:
    """Row-wise softmax in the dtype of `z`; finite for all finite logits."""
    with np.errstate(over="ignore"):  # overflow gives −inf, whose exponential is correctly 0
        p: FloatArray = z - z.max(axis=1, keepdims=True)
    np.exp(p, out=p)
    p /= p.sum(axis=1, keepdims=True)
    return p


def top_label(p: FloatArray) -> tuple[FloatArray, IntArray]:
    """Largest entry of every row, clipped to at most 1, and its column; ties go to the lowest index."""
    if p.shape[1] > 15:
        guess = p.argmax(axis=1).astype(np.int64, copy=False)
        return np.asarray(np.minimum(p[np.arange(len(p)), guess], 1)), guess
    # numpy's argmax is slow for short rows, so the columns of many rows are compared at once instead.
    top, guess, step = np.empty(len(p), p.dtype), np.empty(len(p), np.int64), (1 << 18) // p.shape[1]
    for rows in (slice(start, start + step) for start in range(0, len(p), step)):
        columns = np.ascontiguousarray(p[rows].T)
        best, index = columns[0].copy(), np.zeros(columns.shape[1], np.uint8)
        for k in range(1, len(columns)):
            np.maximum(index, (columns[k] > best).view(np.uint8) * np.uint8(k), out=index)
            np.maximum(best, columns[k], out=best)
        guess[rows] = index
        np.minimum(best, 1, out=top[rows])
    return top, guess


def keep_decision(p: FloatArray, guess: CodeArray) -> FloatArray:
    """Make `guess` the argmax of every row of `p`, in place, by breaking ties caused by rounding.

    Different logits can give equal probabilities, because a difference of 1e-20 is lost in the exponential.
    The argmax would then be the first of the tied columns. To break the tie, the entry of `guess` is set to
    the next floating-point number above the largest entry of the row.
    """
    rows = np.flatnonzero(p.argmax(axis=1) != guess)
    if rows.size:
        p[rows, guess[rows]] = np.nextafter(p[rows].max(axis=1), p.dtype.type(2))
    return p


def centre(z: FloatArray) -> FloatArray:
    """Return the logits minus the mean of each row.

    Logits more than 100 below the maximum of their row, such as those of masked classes, count as 100 below
    it in the mean.
    """
    out, step = np.empty_like(z), max(1, _BLOCK // z.shape[1])

    def subtract_mean(start: int) -> None:
        rows = slice(start, start + step)
        with np.errstate(over="ignore"):
            below = np.maximum(z[rows] - z[rows].max(axis=1, keepdims=True), z.dtype.type(FARTHEST))
        mean = np.maximum(below, -FAR).mean(axis=1, keepdims=True).astype(z.dtype)
        np.subtract(below, mean, out=out[rows])

    in_order(subtract_mean, [(start,) for start in range(0, len(z), step)], _MIN_BLOCKS)
    return out


def probability_floor(p: FloatArray) -> float:
    """Replacement for probabilities of exactly 0: half of the smallest positive probability.

    For a random forest, this is typically half a vote. For rounded probabilities, it is typically half a unit
    in the last digit. The result is at most 1/(2K), so that decisions are preserved, and at least the
    smallest normal float32.
    """
    least = float(p.min(initial=1.0, where=p > 0))
    return float(np.clip(least / 2, LEAST_FLOOR, 1 / (2 * p.shape[1])))


def log_probs(p: FloatArray, floor: float | None = None) -> FloatArray:
    """Logarithm of validated probabilities, where probabilities below `floor` are raised to `floor`.

    The argmax of every row is preserved. If `floor` is None, as for a calibrator that was fitted on logits,
    the smallest normal float32 is used.
    """
    least = p.dtype.type(LEAST_FLOOR if floor is None else floor)
    return keep_decision(np.log(np.maximum(p, least)), p.argmax(axis=1))
