"""Label noise: Definition 3.2 and Lemma 3.3.

Two points carry all the mass, so that the classifier of least NLL can be found exactly, and the lemma can be
checked against it rather than believed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from hetcal._coerce import real_array
from hetcal._validate import as_generator
from hetcal.theory._arguments import fraction, positive_int

__all__ = ["NoisyBinary", "NoisyDraws", "NoisyFit"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rng = np.random.Generator | int

_NEWTON_STEPS = 100


@dataclass(frozen=True)
class NoisyFit:
    """Linear classifier ``f(x) = sigmoid(slope · x + intercept)`` on the points x = 1 (v) and x = −1 (−v).

    ``prob_plus = f(v)`` and ``prob_minus = 1 − f(−v)`` are what it gives to the usual label of each point:
    its confidence there as long as they are at least 1/2.
    """

    slope: float
    intercept: float
    prob_plus: float
    prob_minus: float

    def accuracy(self, p_test: float) -> float:
        """Probability of a right decision where both points have test noise `p_test`."""
        noise = _noise(p_test, "p_test")
        return float(_accuracy(np.float64(self.prob_plus), np.float64(self.prob_minus), noise))


@dataclass(frozen=True)
class NoisyDraws:
    """Fits to many data sets: ``prob_plus``, ``prob_minus`` and test ``accuracy``, each of shape (draws,)."""

    prob_plus: Floats
    prob_minus: Floats
    accuracy: Floats


@dataclass(frozen=True)
class NoisyBinary:
    """Definition 3.2: two opposite points, each with its own rate of wrong labels.

    ``P(X = v) = P(X = −v) = 1/2``, ``P(Y = 1 | v) = 1 − p_plus``, ``P(Y = 0 | −v) = 1 − p_minus``. Points are
    given by their coordinate along v, 1 or −1; other directions have no part in the problem.

    Parameters
    ----------
    p_plus, p_minus : float in [0, 1/2]
        Label noise at v and at −v.

    Examples
    --------
    >>> train = NoisyBinary(0.3, 0.1)
    >>> train.confidence_plus, train.confidence_minus, train.accuracy(p_test=0.05)
    (0.7, 0.9, 0.95)
    >>> fit = train.fit_population()
    >>> round(fit.prob_plus, 6), round(fit.prob_minus, 6), round(fit.accuracy(0.05), 6)
    (0.7, 0.9, 0.95)
    """

    p_plus: float
    p_minus: float

    def __post_init__(self) -> None:
        for name in ("p_plus", "p_minus"):
            _noise(getattr(self, name), name)

    @property
    def confidence_plus(self) -> float:
        """Lemma 3.3: ``P̂(v) = 1 − p_plus``."""
        return 1 - self.p_plus

    @property
    def confidence_minus(self) -> float:
        """Lemma 3.3: ``P̂(−v) = 1 − p_minus``."""
        return 1 - self.p_minus

    def accuracy(self, p_test: float) -> float:
        """Lemma 3.3: ``1 − p_test`` at either point, whatever the training noise below 1/2."""
        noise = _noise(p_test, "p_test")
        if max(self.p_plus, self.p_minus) == 0.5:
            raise ValueError(
                f"p_plus and p_minus must be below 1/2 for Lemma 3.3, got {self.p_plus:g}, {self.p_minus:g}; "
                "fit_population().accuracy(p_test) breaks the tie at 1/2 as the paper does"
            )
        return 1 - noise

    def sample(self, size: int, rng: Rng) -> tuple[Ints, Ints]:
        """Points (size,) in {1, −1} and labels (size,) in {0, 1}."""
        rows = positive_int(size, "size", "it is a number of rows")
        generator = as_generator(rng)
        x = np.where(generator.random(rows) < 0.5, 1, -1).astype(np.int64)
        wrong = generator.random(rows) < np.where(x == 1, self.p_plus, self.p_minus)
        return x, ((x == 1) ^ wrong).astype(np.int64)

    @staticmethod
    def fit(x: ArrayLike, y: ArrayLike) -> NoisyFit:
        """Linear classifier of least NLL on points (n,) in {1, −1} with labels (n,) in {0, 1}."""
        points, labels = _noisy_rows(x, y)
        plus = points == 1
        return _noisy_fit(labels[plus].mean(), labels[~plus].mean())

    def fit_population(self) -> NoisyFit:
        """Linear classifier of least NLL on infinitely many rows.

        At noise 0 the least value is not attained: Newton's method stops where the confidence is 1 within
        1e-13.
        """
        return _noisy_fit(1 - self.p_plus, self.p_minus)

    def simulate(self, size: int, *, draws: int, rng: Rng, p_test: float = 0.0) -> NoisyDraws:
        """Fit to `draws` data sets of `size` rows; test each fit on `size` rows with noise `p_test`.

        nan where a data set happens to miss one of the two points.
        """
        rows = positive_int(size, "size", "it is a number of rows")
        repeats = positive_int(draws, "draws", "it is a number of data sets")
        noise = _noise(p_test, "p_test")
        generator = as_generator(rng)
        n_plus = generator.binomial(rows, 0.5, size=repeats)
        n_minus = rows - n_plus
        rate_plus = generator.binomial(n_plus, 1 - self.p_plus) / np.maximum(n_plus, 1)
        rate_minus = generator.binomial(n_minus, self.p_minus) / np.maximum(n_minus, 1)
        slope, intercept = _noisy_newton(rate_plus, rate_minus)
        plus, minus = special.expit(slope + intercept), special.expit(slope - intercept)
        right = generator.binomial(rows, _accuracy(plus, minus, noise)) / rows
        missing = (n_plus == 0) | (n_minus == 0)
        return NoisyDraws(*(np.where(missing, np.nan, values) for values in (plus, minus, right)))


def _noise(value: object, name: str) -> float:
    return fraction(value, name, "a rate above 1/2 would swap the labels", high=0.5, closed="low high")


def _noisy_newton(rate_plus: ArrayLike, rate_minus: ArrayLike) -> tuple[Floats, Floats]:
    """Slope and intercept of least NLL, given the share of label 1 at v and at −v.

    The Newton step in (slope, intercept), worked out for two points. Started from zero it approaches the
    minimum from one side and cannot overshoot, since the sigmoid is concave above zero and convex below.
    """
    plus, minus = np.asarray(rate_plus, dtype=np.float64), np.asarray(rate_minus, dtype=np.float64)
    slope, intercept = np.zeros(plus.shape), np.zeros(plus.shape)
    for _ in range(_NEWTON_STEPS):
        f_plus, f_minus = special.expit(intercept + slope), special.expit(intercept - slope)
        gap_plus, gap_minus = plus - f_plus, minus - f_minus
        if max(np.abs(gap_plus).max(), np.abs(gap_minus).max()) <= 1e-13:
            return slope, intercept
        step_plus = gap_plus / (f_plus * special.expit(-(intercept + slope)))
        step_minus = gap_minus / (f_minus * special.expit(slope - intercept))
        slope = slope + (step_plus - step_minus) / 2
        intercept = intercept + (step_plus + step_minus) / 2
    raise RuntimeError(
        f"the fit must converge in {_NEWTON_STEPS} Newton steps, got rates {plus}, {minus}; report this"
    )


def _noisy_fit(rate_plus: float, rate_minus: float) -> NoisyFit:
    slope, intercept = (float(value) for value in _noisy_newton(rate_plus, rate_minus))
    plus, minus = special.expit(slope + intercept), special.expit(slope - intercept)
    return NoisyFit(slope, intercept, float(plus), float(minus))


def _accuracy(plus: ArrayLike, minus: ArrayLike, noise: float) -> Floats:
    # f >= 1/2 decides for label 1, so a tie is right at v and wrong at −v.
    right_plus = np.where(np.asarray(plus) >= 0.5, 1 - noise, noise)
    right_minus = np.where(np.asarray(minus) > 0.5, 1 - noise, noise)
    return np.asarray((right_plus + right_minus) / 2)


def _noisy_rows(x: ArrayLike, y: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    points, labels = (real_array(a, name).astype(np.float64) for a, name in ((x, "x"), (y, "y")))
    if points.ndim != 1 or labels.shape != points.shape:
        raise ValueError(
            f"x and y must be one-dimensional and of one length, got {points.shape} and {labels.shape}; "
            "pass what sample() returns"
        )
    for name, values, allowed in (("x", points, (-1, 1)), ("y", labels, (0, 1))):
        strange = ~np.isin(values, allowed)
        if strange.any():
            row = int(np.argmax(strange))
            raise ValueError(
                f"{name} must hold {allowed[0]} and {allowed[1]} only, got {values[row]:g} at row {row}; "
                "pass coordinates along v and binary labels"
            )
    if len(np.unique(points)) < 2:
        raise ValueError(f"x must hold both -1 and 1, got {len(points)} rows without one; draw more rows")
    return points, labels
