"""Softmax, decisions and logarithms of probabilities."""

from __future__ import annotations

import numpy as np

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

LEAST_FLOOR = float(np.finfo(np.float32).tiny)  # a floor that every runtime can represent


def normalise_weights(w: Float) -> Float:
    """Weights scaled to sum to the effective sample size, ``(Σw)² / Σw²``: a common factor has no effect.

    Examples
    --------
    >>> normalise_weights(np.array([5.0, 5.0])), normalise_weights(np.array([1.0, 3.0]))
    (array([1., 1.]), array([0.4, 1.2]))
    """
    w = w / w.max()
    return np.asarray(w * (w.sum() / (w @ w)))


def softmax(z: FloatArray) -> FloatArray:
    """Row-wise softmax in the dtype of `z`; finite for all finite logits."""
    with np.errstate(over="ignore"):  # the distance of two huge logits is -inf, whose exponential is right
        p: FloatArray = z - z.max(axis=1, keepdims=True)
    np.exp(p, out=p)
    p /= p.sum(axis=1, keepdims=True)
    return p


def top_label(p: FloatArray) -> tuple[FloatArray, IntArray]:
    """Largest entry of every row and its column, ties to the lowest index."""
    if p.shape[1] > 15:
        guess = p.argmax(axis=1).astype(np.int64, copy=False)
        return np.asarray(np.minimum(p[np.arange(len(p)), guess], 1)), guess
    # Along short rows argmax is slow: go down the columns of a few rows at a time.
    top, guess, step = np.empty(len(p), p.dtype), np.empty(len(p), np.int64), (1 << 18) // p.shape[1]
    for rows in (slice(start, start + step) for start in range(0, len(p), step)):
        columns = np.ascontiguousarray(p[rows].T)
        best, at = columns[0].copy(), np.zeros(columns.shape[1], np.uint8)
        for k in range(1, len(columns)):
            np.maximum(at, (columns[k] > best).view(np.uint8) * np.uint8(k), out=at)
            np.maximum(best, columns[k], out=best)
        guess[rows] = at
        np.minimum(best, 1, out=top[rows])
    return top, guess


FAR = 100.0


def keep_decision(p: FloatArray, guess: CodeArray) -> FloatArray:
    """Make `guess` the argmax of every row of `p`, in place, where rounding made it a tie.

    Logits that differ can end as equal probabilities (a difference of 1e-20 is lost in the exponential);
    the argmax would then move to the lowest of the tied columns. One unit in the last place settles it.
    """
    rows = np.flatnonzero(p.argmax(axis=1) != guess)
    if rows.size:
        p[rows, guess[rows]] = np.nextafter(p[rows].max(axis=1), p.dtype.type(2))
    return p


def centre(z: FloatArray) -> FloatArray:
    """Logits less their row's mean, in which entries more than `FAR` below the top (masks) are that far."""
    with np.errstate(over="ignore"):
        below = np.maximum(z - z.max(axis=1, keepdims=True), z.dtype.type(-1e30))
    return np.asarray(below - np.maximum(below, -FAR).mean(axis=1, keepdims=True).astype(z.dtype))


def probability_floor(p: FloatArray) -> float:
    """What an exact zero counts as: half of the smallest positive probability of these rows.

    Of a forest of T trees that is half a vote, of a table rounded to some digits half a unit of the last
    one. It is no more than 1/(2K), so that decisions stay, and no less than a float32 can hold.
    """
    least = float(p.min(initial=1.0, where=p > 0))
    return float(np.clip(least / 2, LEAST_FLOOR, 1 / (2 * p.shape[1])))


def log_probs(p: FloatArray, floor: float | None = None) -> FloatArray:
    """Logarithm of checked probabilities, none of which counts as less than `floor`.

    Where two that differ have the same logarithm, the larger one keeps its lead. A calibrator that was fitted
    on logits knows no floor (None); then only what underflows is raised.
    """
    least = p.dtype.type(LEAST_FLOOR if floor is None else floor)
    return keep_decision(np.log(np.maximum(p, least)), p.argmax(axis=1))
