"""A learning curve fitted to measured points: its shape, its limit, and the uncertainty of both.

Three shapes are fitted to the mean loss of fits on m rows. For large m, they approach their limit c like 1/m,
as does the loss of a smooth model with a fixed number of parameters::

    c + a/m                      the textbook case
    c + a/(m + m₀)               a slow start, for example if shrinkage weakens as rows are added
    c + a/m + d·exp(−m/τ)        a fast start, for example if the temperatures of separable classes diverge

A shape is chosen for each bootstrap draw separately, so the intervals reflect the uncertainty of this choice.
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


# Expected misfit at a size, as a fraction of the difference between the mean at this size and the lowest mean
_RELATIVE_MISFIT = 0.1
_PENALTY = 2.0  # reduction of χ² that an additional parameter must achieve (Akaike's criterion)
# With few rows per class, a slow or fast start may extend beyond the largest measured size. Excluding this
# case would underestimate the uncertainty of the limit.
_MAX_M0 = 4.0  # largest m₀, relative to the largest size
_MAX_TAU = 1.0  # largest τ, relative to the largest size
_MAX_ROWS = 1e8  # a larger number of rows is reported as infinite


class Interval(NamedTuple):
    """An estimate and the ends of its interval.

    If they are numbers of rows, inf means that 10⁸ rows are not enough.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Curve:
    """Learning curve ``c + a/(m + m₀) + d·exp(−m/τ)``, fitted to the measured means and to bootstrap draws.

    S is the number of measured sizes m, and B is the number of bootstrap draws.

    Attributes
    ----------
    fit : array of shape (5,)
        The parameters c, a, m₀, d, τ for the measured means. At least one of m₀ and d is zero.
    draws : array of shape (B, 5)
        The parameters for each draw.
    scatter : array of shape (B,)
        A random number s for each draw. In this draw, a single fit on m rows deviates from the curve by
        ``s/m``.
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
        """The limit c for infinitely many rows."""
        return float(self.fit[0])

    def at(self, m: Float) -> Float:
        """Heights at the sizes `m` of the curve that is fitted to the measured means, (len(m),)."""
        return np.asarray(_height(self.fit[None], np.atleast_1d(m))[0])

    def sample(self, m: Float, *, single: bool = False) -> Float:
        """Height of the curve of every draw at the sizes `m`, (B, len(m)).

        The curves describe the mean over fits. With `single`, the random deviation of a single fit is added.
        """
        height = _height(self.draws, np.atleast_1d(m))
        return height + self.scatter[:, None] / np.atleast_1d(m) if single else height

    def interpolated(self, m: Float) -> Float:
        """Heights at the sizes `m`, corrected to pass through the measured points, (1 + B, len(m)).

        The first row belongs to the curve fitted to the means, the other rows to those of the draws. No
        simple shape is exact where the curve is steep, so interpolated residuals are added. Beyond the
        largest measured size, these residuals decay.
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

    Each size is weighted by the inverse variance of its mean over the R repeats. No simple shape is exact
    where the curve is steep. The variance is therefore increased by the square of the expected misfit, which
    is a tenth of the difference between this mean and the lowest mean.

    Parameters
    ----------
    sizes : array of shape (S,)
    values : array of shape (S, R)
        One measurement per repeat.
    draws : array of shape (S, B)
        Means in each bootstrap draw.
    rng : numpy.random.Generator
        Generator for the deviations of single fits.
    floor : float
        Lowest possible limit.
    floors : array of shape (B,), optional
        Lowest possible limit for each draw; `floor` by default.
    """
    mean, n_repeats = values.mean(axis=1), values.shape[1]
    variance = values.var(axis=1, ddof=1) / n_repeats
    misfit = _RELATIVE_MISFIT * (mean - mean.min())
    # A tiny additional variance prevents infinite weights at sizes with neither variance nor misfit.
    min_variance = (1e-6 * max(1.0, float(np.abs(mean).max()))) ** 2
    weight = 1 / (variance + misfit**2 + min_variance)
    targets = np.concatenate([mean[:, None], draws], axis=1)
    lower = np.full(targets.shape[1], floor)
    if floors is not None:
        lower[1:] = floors
    parameters = _best_shapes(sizes, targets, weight, lower)
    # At some sizes, diverging temperatures and the choice of the held-out rows increase the measured scatter.
    # The smallest estimate over the sizes is therefore used.
    scatter = (values.std(axis=1, ddof=1) * sizes).min() * rng.normal(size=draws.shape[1])
    residual = targets.T - _height(parameters, sizes)
    return Curve(parameters[0], parameters[1:], scatter, sizes, residual)


def interval_of(value: float, draws: Float, level: float) -> Interval:
    """Central interval of the draws, extended to include the estimate."""
    # "lower" and "higher" avoid interpolating between finite and infinite draws.
    low = float(np.quantile(draws, (1 - level) / 2, method="lower"))
    high = float(np.quantile(draws, (1 + level) / 2, method="higher"))
    return Interval(value, min(low, value), max(high, value))


def last_above(difference: Float, sizes: Float) -> Float:
    """Size beyond which each row of `difference` (B, len(sizes)) stays at or below 0, (B,).

    For a row that is above 0 at the largest size, the result is inf. For a row that is never above 0, it is
    the smallest size. The crossing between two sizes m is interpolated linearly in log m.
    """
    n_draws, n_sizes = difference.shape
    above = difference > 0
    last = np.where(above.any(axis=1), n_sizes - 1 - above[:, ::-1].argmax(axis=1), -1)
    left = np.clip(last, 0, n_sizes - 2)
    row = np.arange(n_draws)
    high, low = difference[row, left], difference[row, left + 1]
    step = np.clip(np.divide(high, high - low, out=np.zeros(n_draws), where=high > low), 0, 1)
    log_m = np.log(sizes)
    crossing = np.exp(log_m[left] + step * (log_m[left + 1] - log_m[left]))
    crossing = np.where(last < 0, sizes[0], crossing)
    return np.where(last == n_sizes - 1, np.inf, crossing)


def far_sizes(smallest: float) -> Float:
    """Sizes from `smallest` to the largest number of rows considered, dense enough for interpolation."""
    return np.geomspace(smallest, _MAX_ROWS, 600)


def _height(parameters: Float, m: Float) -> Float:
    c, a, m0, d, tau = (column[:, None] for column in parameters.T)
    return np.asarray(c + a / (m + m0) + d * np.exp(-m / tau))


def _shapes(sizes: Float) -> Iterator[tuple[float, float | None, int]]:
    """Yield m₀, τ and the number of parameters of each candidate shape; τ is None if it is not used."""
    yield 0.0, None, 2
    yield from ((m0, None, 3) for m0 in np.geomspace(0.3 * sizes[0], _MAX_M0 * sizes[-1], 16).tolist())
    yield from ((0.0, tau, 4) for tau in np.geomspace(0.5 * sizes[0], _MAX_TAU * sizes[-1], 16).tolist())


def _best_shapes(sizes: Float, values: Float, weight: Float, floors: Float) -> Float:
    """Parameters (B, 5) of the best shape by Akaike's criterion, for each column of `values` (S, B)."""
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

    The first coefficient is at least `floors` (B,), and the others are at least zero. The problem is convex
    and has at most three unknowns. Every subset of the constraints is tried as the set that holds with
    equality.
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
