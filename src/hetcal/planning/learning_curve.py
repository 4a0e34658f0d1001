"""A learning curve fitted to measured points: its shape, its limit, and their uncertainty.

Three shapes are fitted. All decrease like 1/m for large m, as the loss of a smooth fit with a fixed number of
parameters does::

    c + a/m                      the textbook case
    c + a/(m + m₀)               a slow start, such as shrinkage that weakens as rows are added
    c + a/m + d·exp(−m/τ)        a fast start, such as separable classes whose temperature diverges

Every bootstrap draw chooses its own shape, so the uncertainty includes that of the choice.
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


_RELATIVE_MISFIT = 0.1  # misfit of a shape that is allowed for, relative to the height above the lowest point
_PENALTY = 2.0  # reduction of χ² that an additional parameter must achieve (Akaike)
# The initial phase may extend beyond the measured sizes. With few rows per class, the sizes may cover nothing
# else, and a curve that excluded this case would underestimate the uncertainty of its limit.
_MAX_M0 = 4.0  # largest m₀, relative to the largest size
_MAX_TAU = 1.0  # largest τ, relative to the largest size
_MAX_ROWS = 1e8  # an answer beyond this many rows is reported as infinite


class Interval(NamedTuple):
    """An estimate and the ends of its interval; ``inf`` if no number of rows suffices."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Curve:
    """``c + a/(m + m₀) + d·exp(−m/τ)``, fitted to the measured means and to each bootstrap draw.

    Attributes
    ----------
    fit : array of shape (5,)
        c, a, m₀, d, τ; m₀ or d is zero.
    draws : array of shape (B, 5)
        The parameters of each draw.
    scatter : array of shape (B,)
        The deviation of a single fit on m rows from the curve is ``scatter/m``; one sample per draw.
    sizes : array of shape (S,)
        The measured sizes.
    residual : array of shape (1 + B, S)
        Measured minus fitted values, for the means and for each draw.
    """

    fit: Float
    draws: Float
    scatter: Float
    sizes: Float
    residual: Float

    @property
    def limit(self) -> float:
        """Limit c for infinitely many rows."""
        return float(self.fit[0])

    def at(self, m: Float) -> Float:
        """Height at the sizes `m`, (len(m),)."""
        return np.asarray(_height(self.fit[None], np.atleast_1d(m))[0])

    def sample(self, m: Float, *, single: bool = False) -> Float:
        """Height of every draw at `m`, (B, len(m)); with `single`, that of one fit, not of the mean fit."""
        height = _height(self.draws, np.atleast_1d(m))
        return height + self.scatter[:, None] / np.atleast_1d(m) if single else height

    def interpolated(self, m: Float) -> Float:
        """Height at `m`, corrected to pass through the measured points, (1 + B, len(m)).

        The first row is for the fit, the others are for the draws. No simple shape is exact where the curve
        is steep, so within the measured sizes the residuals are interpolated. Beyond them they decay.
        """
        log_sizes = np.log(self.sizes)
        left = np.clip(np.searchsorted(self.sizes, m, side="right") - 1, 0, len(self.sizes) - 2)
        weight = np.clip((np.log(m) - log_sizes[left]) / (log_sizes[left + 1] - log_sizes[left]), 0, 1)
        correction = (1 - weight) * self.residual[:, left] + weight * self.residual[:, left + 1]
        decay = np.minimum(1, self.sizes[-1] / m) ** 2
        return np.asarray(_height(np.vstack([self.fit, self.draws]), m) + decay * correction)


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
    """Fit every shape by weighted least squares and choose one by Akaike's criterion.

    The constraints are ``a, d ≥ 0`` and ``c ≥ floor``.

    A size is weighted by the inverse variance of its mean over the repeats. A tenth of its height above the
    lowest point is added to its standard error, because no simple shape is exact where the curve is steep.

    Parameters
    ----------
    sizes : array of shape (S,)
    values : array of shape (S, R)
        One measurement per repeat.
    draws : array of shape (S, B)
        Means of the bootstrap draws.
    rng : numpy.random.Generator
        For the scatter of single fits.
    floor : float
        Lowest possible limit.
    floors : array of shape (B,), optional
        Lowest possible limit for each draw; `floor` by default.
    """
    mean, n_repeats = values.mean(axis=1), values.shape[1]
    variance = values.var(axis=1, ddof=1) / n_repeats
    misfit = _RELATIVE_MISFIT * (mean - mean.min())
    # A lower bound on the variance prevents infinite weights where rounding makes it zero.
    min_variance = (1e-6 * max(1.0, float(np.abs(mean).max()))) ** 2
    weight = 1 / (variance + misfit**2 + min_variance)
    targets = np.concatenate([mean[:, None], draws], axis=1)
    lower = np.full(targets.shape[1], floor)
    if floors is not None:
        lower[1:] = floors
    parameters = _best_shapes(sizes, targets, weight, lower)
    # The choice of held-out rows and diverging temperatures can only increase the scatter of a fit, so the
    # smallest estimate over the sizes is the most accurate.
    scatter = (values.std(axis=1, ddof=1) * sizes).min() * rng.normal(size=draws.shape[1])
    residual = targets.T - _height(parameters, sizes)
    return Curve(parameters[0], parameters[1:], scatter, sizes, residual)


def interval_of(value: float, draws: Float, level: float) -> Interval:
    """Central interval of the draws, extended to include the estimate."""
    # "lower" and "higher" avoid interpolating between finite and infinite draws.
    low = float(np.quantile(draws, (1 - level) / 2, method="lower"))
    high = float(np.quantile(draws, (1 + level) / 2, method="higher"))
    return Interval(value, min(low, value), max(high, value))


def last_above(curve: Float, sizes: Float) -> Float:
    """Size beyond which each row of `curve`, differences (B, len(sizes)), stays at or below 0; inf if none.

    The crossing between two sizes is interpolated linearly in log m.
    """
    above = curve > 0
    last = np.where(above.any(axis=1), curve.shape[1] - 1 - above[:, ::-1].argmax(axis=1), -1)
    left = np.clip(last, 0, curve.shape[1] - 2)
    row = np.arange(len(curve))
    high, low = curve[row, left], curve[row, left + 1]
    step = np.clip(np.divide(high, high - low, out=np.zeros(len(curve)), where=high > low), 0, 1)
    log_m = np.log(sizes)
    crossing = np.exp(log_m[left] + step * (log_m[left + 1] - log_m[left]))
    crossing = np.where(last < 0, sizes[0], crossing)
    return np.where(last == curve.shape[1] - 1, np.inf, crossing)


def far_sizes(smallest: float) -> Float:
    """Sizes from the smallest up to the search limit, dense enough for interpolation."""
    return np.geomspace(smallest, _MAX_ROWS, 600)


def _height(parameters: Float, m: Float) -> Float:
    c, a, m0, d, tau = (column[:, None] for column in parameters.T)
    return np.asarray(c + a / (m + m0) + d * np.exp(-m / tau))


def _shapes(sizes: Float) -> Iterator[tuple[float, float | None, int]]:
    """m₀, τ and number of parameters of every candidate shape; τ is None without the exponential term."""
    yield 0.0, None, 2
    yield from ((m0, None, 3) for m0 in np.geomspace(0.3 * sizes[0], _MAX_M0 * sizes[-1], 16).tolist())
    yield from ((0.0, tau, 4) for tau in np.geomspace(0.5 * sizes[0], _MAX_TAU * sizes[-1], 16).tolist())


def _best_shapes(sizes: Float, values: Float, weight: Float, floors: Float) -> Float:
    """Parameters (B, 5) of the shape that minimises the criterion, for every column of `values` (S, B)."""
    best = np.full(values.shape[1], np.inf)
    parameters = np.tile(np.array([0.0, 0.0, 0.0, 0.0, 1.0]), (values.shape[1], 1))
    for m0, tau, n_parameters in _shapes(sizes):
        columns = [np.ones_like(sizes), 1 / (sizes + m0)]
        if tau is not None:
            columns.append(np.exp(-sizes / tau))
        solution, rss = _least_squares(np.stack(columns, axis=1), values, weight, floors)
        score = rss + _PENALTY * n_parameters
        better = score < best
        best[better] = score[better]
        parameters[better, :2] = solution[:2, better].T
        parameters[better, 2] = m0
        parameters[better, 3] = 0.0 if tau is None else solution[2, better]
        parameters[better, 4] = 1.0 if tau is None else tau
    return parameters


def _least_squares(design: Float, values: Float, weight: Float, floors: Float) -> tuple[Float, Float]:
    """Constrained least squares: coefficients (p, B) and residual sums of squares (B,).

    The first coefficient is at least `floors` (B,), the others are at least zero. The problem is convex with
    at most three unknowns, so every active set is tried.
    """
    root = np.sqrt(weight)[:, None]
    x, n_coefficients = design * root, design.shape[1]
    best = np.full(values.shape[1], np.inf)
    coefficients = np.zeros((n_coefficients, values.shape[1]))
    for free in product((True, False), repeat=n_coefficients):
        columns = np.flatnonzero(free)
        candidate = np.zeros_like(coefficients)
        if not free[0]:
            candidate[0] = np.where(np.isfinite(floors), floors, 0.0)
        remainder = values * root - x @ candidate
        candidate[columns] = np.linalg.pinv(x[:, columns]) @ remainder
        rss = ((values * root - x @ candidate) ** 2).sum(axis=0)
        feasible = (candidate[0] >= floors) & (candidate[1:] >= 0).all(axis=0)
        better = feasible & (rss < best)
        best[better] = rss[better]
        coefficients[:, better] = candidate[:, better]
    return coefficients, best
