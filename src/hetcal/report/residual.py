"""Confidence ranges in which confidence and accuracy differ significantly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from hetcal._typing import Float
from hetcal.metrics.binning import Cells

__all__ = ["Deviation", "find_deviations"]

_MIN_GAP = 0.01  # smaller gaps are not listed, however significant


@dataclass(frozen=True)
class Deviation:
    """Range of confidences with a significant gap, which has the same sign in all non-empty bins.

    Attributes
    ----------
    low, high : float, ends of the range
    n : int, rows in the range
    gap : float, mean confidence minus accuracy of these rows
    """

    low: float
    high: float
    n: int
    gap: float


def find_deviations(cells: Cells, level: float) -> tuple[Deviation, ...]:
    """Join neighbouring bins whose gaps have the same sign, and return the ranges with a significant gap.

    Empty bins are skipped. A range is returned if its p-value is at most `level` and its absolute gap is at
    least one percentage point.

    The tests assume ranges that are fixed in advance. Here the signs of the gaps determine the ranges. Even
    under perfect calibration, more than a fraction `level` of them would therefore be significant. Call this
    function only if the ECE of all rows is significant.
    """
    pooled = cells.merged()
    used = np.flatnonzero(pooled.count[0])
    sign = np.sign(pooled.residual[0, used])
    starts = np.flatnonzero(np.diff(sign, prepend=np.nan))
    count, confidence, correct = (
        np.add.reduceat(a[0, used], starts) for a in (pooled.count, pooled.confidence, pooled.correct)
    )
    gap = (confidence - correct) / count
    is_listed = (_p_values(count, confidence, correct) <= level) & (np.abs(gap) >= _MIN_GAP)
    low = used[starts] / pooled.count.shape[1]
    high = (used[np.append(starts[1:], len(used)) - 1] + 1) / pooled.count.shape[1]
    return tuple(
        Deviation(float(low[i]), float(high[i]), int(count[i]), float(gap[i]))
        for i in np.flatnonzero(is_listed)
    )


def _p_values(count: Float, confidence: Float, correct: Float) -> Float:
    """Two-sided p-values of the ranges.

    The null hypothesis is that the mean confidence of a range is the probability that a row in it is correct.
    """
    p = np.clip(confidence / count, 0, 1)
    tails = stats.binom.cdf(correct, count, p), stats.binom.sf(correct - 1, count, p)
    return np.asarray(np.clip(2 * np.minimum(*tails), 0, 1))
