"""Means over seeds with Student's t intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

__all__ = ["SeedInterval", "seed_interval"]

_LEVEL = 0.95


@dataclass(frozen=True)
class SeedInterval:
    """Mean over seeds and its 95% interval.

    Attributes
    ----------
    mean : float
    low, high : float or None
        Ends of the interval; None with one seed.
    std : float or None
        Sample standard deviation over the seeds; None with one seed.
    n : int
        Number of seeds whose value is not nan.
    """

    mean: float
    low: float | None
    high: float | None
    std: float | None
    n: int

    @property
    def includes_zero(self) -> bool:
        """Whether the interval contains zero; False if there is no interval."""
        return self.low is not None and self.high is not None and self.low <= 0 <= self.high


def seed_interval(values: Sequence[float]) -> SeedInterval | None:
    """Return the mean of one value per seed, with its 95% interval from Student's t-distribution.

    Values that are nan are ignored. The result is None if no other values remain.

    Examples
    --------
    >>> interval = seed_interval([1.0, 2.0, 3.0])
    >>> interval.mean, round(interval.low, 3), round(interval.high, 3), interval.n
    (2.0, -0.484, 4.484, 3)
    """
    valid = np.array([value for value in values if not math.isnan(value)])
    if not valid.size:
        return None
    mean = float(valid.mean())
    if valid.size == 1:
        return SeedInterval(mean, None, None, None, 1)
    std = float(valid.std(ddof=1))
    margin = float(stats.t.ppf((1 + _LEVEL) / 2, valid.size - 1)) * std / math.sqrt(valid.size)
    return SeedInterval(mean, mean - margin, mean + margin, std, int(valid.size))
