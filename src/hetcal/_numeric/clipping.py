"""Fit one temperature, and choose a limit at which very low logits are clipped.

Classifiers such as naive Bayes, nearest neighbours and random forests can return probabilities of 0 or
1e-100, whose logarithms are extremely low logits. A map that is linear in the logits depends too much on
them. For example, a single temperature that suits them makes the differences between all other logits too
small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._numeric.matrix import MASK
from hetcal._numeric.rows import Rows
from hetcal._numeric.scalar_solver import Derivatives, minimise_slices
from hetcal._numeric.source import Source
from hetcal._numeric.temperatures import DEFAULT_BOUNDS, fit_pooled
from hetcal._typing import Float, IntArray

__all__ = ["fit_clipped"]

_LEVELS = np.array([28.0, 20.0, 14.0, 10.0, 7.0, 5.0])  # candidates: how far below the row maximum to clip
_MIN_GAIN = 10.0  # logits are clipped only if the summed NLL decreases by at least this


def fit_clipped(source: Source) -> tuple[float, float]:
    """Fit an inverse temperature α, and choose how far below the row maximum the entries of α z are clipped.

    Returns α and this distance. The distance is finite only if clipping reduces the summed NLL of the best
    single temperature by at least 10, and if some logit is more than 28 (a probability below about 1e-12) and
    at most 10,000 below the maximum of its row. Otherwise it is infinite, which means no clipping. Logits
    that are further below the maximum are considered masks of impossible classes and are never clipped.
    """
    alpha, _ = fit_pooled(source, DEFAULT_BOUNDS)
    (n_low,) = source.sum_rows(_count_low)
    if not n_low:
        return alpha, np.inf

    def derivatives(alphas: Float, active: IntArray) -> Derivatives:
        first, second, third = source.sum_rows(_Slopes(_LEVELS[active], alphas[active]))
        return first, second, third

    alphas = minimise_slices(derivatives, np.full(len(_LEVELS), alpha), DEFAULT_BOUNDS).alpha
    levels, alphas = np.append(_LEVELS, np.inf), np.append(alphas, alpha)
    (loss,) = source.sum_rows(_Losses(levels, alphas))
    loss[-1] -= _MIN_GAIN
    best = int(np.argmin(loss))
    return float(alphas[best]), float(alphas[best] * levels[best])


# -- Functions of blocks of rows; they must be picklable, since they may be sent to other machines. --


def _count_low(rows: Rows) -> tuple[NDArray[Any], ...]:
    """Number of logits that are more than 28, but at most 10,000, below the maximum of their row."""
    below = rows.below_top(slice(None))
    return (np.array(np.count_nonzero((below < -_LEVELS[0]) & (below >= -MASK))),)


def _clip(rows: Rows, level: float) -> Float:
    """``z − max z``, clipped at −level, (n, K). Entries below −10,000 mask a class and are not clipped."""
    below = rows.below_top(slice(None)).astype(np.float64)
    return np.where(below < -MASK, below, np.maximum(below, -level))


def _pull(rows: Rows, z: Float, alpha: float) -> tuple[Float | float, ...]:
    """``pull(α z)`` for every row, and its first three derivatives in α, (n,) each or the number 0.

    The function ``pull`` is defined in the module `label_models`. If the label y is certain, it is ``α z_y``.
    """
    if rows.label_model is not None:
        return rows.label_model.moments(z, np.full(len(z), alpha))
    label = z[np.arange(len(rows)), rows.y]
    return alpha * label, label, 0.0, 0.0


@dataclass(frozen=True, eq=False)
class _Slopes:
    """First three derivatives in α of the summed NLL of clipped logits, for L clipping levels, (L,) each."""

    levels: Float
    alphas: Float

    def __call__(self, rows: Rows) -> tuple[NDArray[Any], ...]:
        sums = []
        for level, alpha in zip(self.levels, self.alphas, strict=True):
            z = _clip(rows, level)
            p = np.exp(alpha * z)
            p /= p.sum(axis=1, keepdims=True)
            mean = (p * z).sum(axis=1)
            deviation = z - mean[:, None]
            second, third = ((p * deviation**power).sum(axis=1) for power in (2, 3))
            pulls = _pull(rows, z, alpha)[1:]
            derivatives = zip((mean, second, third), pulls, strict=True)
            sums.append([rows.weight @ (value - pull) for value, pull in derivatives])
        return tuple(np.array(sums).reshape(-1, 3).T)


@dataclass(frozen=True, eq=False)
class _Losses:
    """Summed NLL of clipped logits, for L clipping levels, (L,)."""

    levels: Float
    alphas: Float

    def __call__(self, rows: Rows) -> tuple[NDArray[Any], ...]:
        losses = []
        for level, alpha in zip(self.levels, self.alphas, strict=True):
            z = _clip(rows, level)
            losses.append(rows.weight @ (np.log(np.exp(alpha * z).sum(axis=1)) - _pull(rows, z, alpha)[0]))
        return (np.array(losses),)
