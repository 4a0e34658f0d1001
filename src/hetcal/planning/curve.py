"""A learning curve through measured points: its shape, its limit, and how far both can be trusted.

Three shapes are tried, all of which fall like 1/m in the end, as the loss of a smooth fit with a fixed number
of parameters does::

    c + a/m                      the textbook case
    c + a/(m + m₀)               a slow start: shrinkage that loosens as rows come in
    c + a/m + d·exp(−m/τ)        a fast start: classes without a single error, whose temperature runs off

Everything is done for all bootstrap draws at once, so that the choice of shape is part of the uncertainty.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from hetcal._numeric.threads import with_one_blas_thread
from hetcal._typing import Float

__all__ = ["Curve", "Interval", "far_sizes", "fit_curve", "interval_of", "last_above"]


_ROUGH = 0.1  # misfit that a shape is allowed, as a share of the height above the lowest point
_PENALTY = 2.0  # χ² that one more parameter has to save (Akaike)
# A start need not be seen to end: with few rows a class the whole curve is start, and a curve that may not
# say so is sure of a limit that it cannot know.
_SLOWEST = 4.0  # largest m₀ in units of the largest size
_LONGEST = 1.0  # largest τ in units of the largest size
_MOST = 1e8  # rows beyond which an answer is "never"


class Interval(NamedTuple):
    """An estimate and the ends of its interval; ``inf`` where no number of rows is enough."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Curve:
    """``c + a/(m + m₀) + d·exp(−m/τ)``, one fit to the measured means and one to each bootstrap draw.

    Attributes
    ----------
    fit : (5,) array
        c, a, m₀, d, τ; m₀ or d is zero.
    draws : (B, 5) array
    scatter : (B,) array
        A single fit on m rows strays from the curve; it does so by ``scatter/m``, drawn once for each draw.
    sizes : (S,) array
    residual : (1 + B, S) array
        Measured minus fitted, of the means and of the draws.
    """

    fit: Float
    draws: Float
    scatter: Float
    sizes: Float
    residual: Float

    @property
    def limit(self) -> float:
        """Value for ever more rows, c."""
        return float(self.fit[0])

    def at(self, m: Float) -> Float:
        """Height at the sizes `m`, (len(m),)."""
        return np.asarray(_height(self.fit[None], np.atleast_1d(m))[0])

    def sample(self, m: Float, *, single: bool = False) -> Float:
        """Height of every draw at `m`, (B, len(m)); with `single`, of one fit and not of their mean."""
        height = _height(self.draws, np.atleast_1d(m))
        return height + self.scatter[:, None] / np.atleast_1d(m) if single else height

    def traced(self, m: Float) -> Float:
        """Height at `m` led through the measured points, of the fit and of the draws, (1 + B, len(m)).

        Where the curve is steep no shape is exact; answers from within the measured sizes should not suffer.
        """
        log_sizes = np.log(self.sizes)
        at = np.clip(np.searchsorted(self.sizes, m, side="right") - 1, 0, len(self.sizes) - 2)
        share = np.clip((np.log(m) - log_sizes[at]) / (log_sizes[at + 1] - log_sizes[at]), 0, 1)
        between = (1 - share) * self.residual[:, at] + share * self.residual[:, at + 1]
        fading = np.minimum(1, self.sizes[-1] / m) ** 2
        return np.asarray(_height(np.vstack([self.fit, self.draws]), m) + fading * between)


@with_one_blas_thread
def fit_curve(
    sizes: Float,
    values: Float,
    draws: Float,
    rng: np.random.Generator,
    *,
    floor: float = -np.inf,
    floors: Float | None = None,
) -> Curve:
    """Weighted least squares with ``a, d ≥ 0`` and ``c ≥ floor``; the shape by Akaike's criterion.

    A size counts by the variance of its mean over the repeats, to which a tenth of its height above the
    lowest point is added: where the curve is steep, no simple shape is right to the last digit.

    Parameters
    ----------
    sizes : (S,)
    values : (S, R) one measurement per repeat
    draws : (S, B) means of bootstrap draws
    rng : for the scatter of single fits
    floor : lowest limit that is possible
    floors : (B,) the same for every draw; `floor` where left out
    """
    mean, n_repeats = values.mean(axis=1), values.shape[1]
    variance = values.var(axis=1, ddof=1) / n_repeats
    rough = _ROUGH * (mean - mean.min())
    # Rounding must not make a point infinitely heavy.
    least = (1e-6 * max(1.0, float(np.abs(mean).max()))) ** 2
    weight = 1 / (variance + rough**2 + least)
    every = np.concatenate([mean[:, None], draws], axis=1)
    low = np.full(every.shape[1], floor)
    if floors is not None:
        low[1:] = floors
    parameters = _best_shapes(sizes, every, weight, low)
    # Rows held out and classes that ran off only add to the scatter of a fit: the least is nearest to it.
    scatter = (values.std(axis=1, ddof=1) * sizes).min() * rng.normal(size=draws.shape[1])
    residual = every.T - _height(parameters, sizes)
    return Curve(parameters[0], parameters[1:], scatter, sizes, residual)


def interval_of(value: float, draws: Float, level: float) -> Interval:
    """Central interval of the draws, widened to hold the estimate itself."""
    ends = np.array([(1 - level) / 2, (1 + level) / 2])
    # "lower"/"higher" keep infinite draws from spoiling their neighbours.
    low = float(np.quantile(draws, ends[0], method="lower"))
    high = float(np.quantile(draws, ends[1], method="higher"))
    return Interval(value, min(low, value), max(high, value))


def last_above(curve: Float, sizes: Float) -> Float:
    """Size from which on the differences `curve` (B, len(sizes)) are zero or less; inf where they never are.

    Between the last size above and the next one the crossing is found on a straight line in log m.
    """
    above = curve > 0
    last = np.where(above.any(axis=1), curve.shape[1] - 1 - above[:, ::-1].argmax(axis=1), -1)
    at = np.clip(last, 0, curve.shape[1] - 2)
    here = np.arange(len(curve))
    high, low = curve[here, at], curve[here, at + 1]
    step = np.clip(np.divide(high, high - low, out=np.zeros(len(curve)), where=high > low), 0, 1)
    log_m = np.log(sizes)
    crossing = np.exp(log_m[at] + step * (log_m[at + 1] - log_m[at]))
    crossing = np.where(last < 0, sizes[0], crossing)
    return np.where(last == curve.shape[1] - 1, np.inf, crossing)


def far_sizes(smallest: float) -> Float:
    """Sizes from the smallest to the largest that is looked at, close enough for interpolation."""
    return np.geomspace(smallest, _MOST, 600)


def _height(parameters: Float, m: Float) -> Float:
    c, a, m0, d, tau = (column[:, None] for column in parameters.T)
    return np.asarray(c + a / (m + m0) + d * np.exp(-m / tau))


def _shapes(sizes: Float) -> Iterator[tuple[float, float, int]]:
    """m₀, τ and number of parameters of every shape tried; τ = 0 leaves the exponential out."""
    yield 0.0, 0.0, 2
    yield from ((m0, 0.0, 3) for m0 in np.geomspace(0.3 * sizes[0], _SLOWEST * sizes[-1], 16).tolist())
    yield from ((0.0, tau, 4) for tau in np.geomspace(0.5 * sizes[0], _LONGEST * sizes[-1], 16).tolist())


def _best_shapes(sizes: Float, values: Float, weight: Float, floors: Float) -> Float:
    """Parameters (B, 5) of the shape with the least criterion, for every column of `values` (S, B)."""
    best = np.full(values.shape[1], np.inf)
    out = np.tile(np.array([0.0, 0.0, 0.0, 0.0, 1.0]), (values.shape[1], 1))
    for m0, tau, n_parameters in _shapes(sizes):
        columns = [np.ones_like(sizes), 1 / (sizes + m0)]
        if tau:
            columns.append(np.exp(-sizes / tau))
        solution, rss = _least_squares(np.stack(columns, axis=1), values, weight, floors)
        score = rss + _PENALTY * n_parameters
        better = score < best
        best[better] = score[better]
        made = np.zeros((int(better.sum()), 5))
        made[:, :2] = solution[:2, better].T
        made[:, 2], made[:, 4] = m0, tau or 1.0
        if tau:
            made[:, 3] = solution[2, better]
        out[better] = made
    return out


def _least_squares(design: Float, values: Float, weight: Float, floors: Float) -> tuple[Float, Float]:
    """Coefficients (p, B) with the first at or above `floors` (B,), the others at or above zero, and the RSS.

    The problem is convex and has at most three unknowns: all sets of active constraints are tried.
    """
    root = np.sqrt(weight)[:, None]
    x, n_coefficients = design * root, design.shape[1]
    best = np.full(values.shape[1], np.inf)
    out = np.zeros((n_coefficients, values.shape[1]))
    for free in product((True, False), repeat=n_coefficients):
        chosen = np.flatnonzero(free)
        fixed = np.zeros_like(out)
        if not free[0]:
            fixed[0] = np.where(np.isfinite(floors), floors, 0.0)
        rest = values * root - x @ fixed
        fixed[chosen] = np.linalg.pinv(x[:, chosen]) @ rest
        rss = ((values * root - x @ fixed) ** 2).sum(axis=0)
        allowed = (fixed[0] >= floors) & (fixed[1:] >= 0).all(axis=0)
        better = allowed & (rss < best)
        best[better] = rss[better]
        out[:, better] = fixed[:, better]
    return out, best
