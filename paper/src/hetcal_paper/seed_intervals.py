"""Means over seeds, with Student's t interval."""

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
        None with fewer than two seeds.
    std : float or None
        Standard deviation over the seeds.
    n : int
        Number of seeds.
    """

    mean: float
    low: float | None
    high: float | None
    std: float | None
    n: int

    @property
    def includes_zero(self) -> bool:
        """Whether zero lies in the interval; False where there is none."""
        return self.low is not None and self.high is not None and self.low <= 0 <= self.high


def seed_interval(values: Sequence[float]) -> SeedInterval | None:
    """Return the mean of one value per seed with its interval; nan is left out, None if nothing remains.

    Examples
    --------
    >>> found = seed_interval([1.0, 2.0, 3.0])
    >>> found.mean, round(found.low, 3), round(found.high, 3), found.n
    (2.0, -0.484, 4.484, 3)
    """
    known = np.array([value for value in values if not math.isnan(value)])
    if not known.size:
        return None
    mean = float(known.mean())
    if known.size == 1:
        return SeedInterval(mean, None, None, None, 1)
    std = float(known.std(ddof=1))
    reach = float(stats.t.ppf((1 + _LEVEL) / 2, known.size - 1)) * std / math.sqrt(known.size)
    return SeedInterval(mean, mean - reach, mean + reach, std, int(known.size))
