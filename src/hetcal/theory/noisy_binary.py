"""Label noise lowers confidence but not accuracy: Definition 3.2 and Lemma 3.3.

The distribution has only two points, so the classifier that minimises the NLL can be computed exactly and
compared with the lemma.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from hetcal._coerce import real_array
from hetcal._typing import Float, IntArray
from hetcal._validate import as_generator, check_integer, check_number

__all__ = ["NoisyBinary", "NoisyDraws", "NoisyFit"]

Rng = np.random.Generator | int

_NEWTON_STEPS = 100


@dataclass(frozen=True)
class NoisyFit:
    """Linear classifier ``f(x) = sigmoid(slope · x + intercept)`` on the points x = 1 (v) and x = −1 (−v).

    ``prob_plus = f(v)`` and ``prob_minus = 1 − f(−v)`` are the probabilities that the classifier gives to the
    noise-free label of each point. If they are at least 1/2, they are also its confidence there.
    """

    slope: float
    intercept: float
    prob_plus: float
    prob_minus: float

    def accuracy(self, p_test: float) -> float:
        """Probability that the decision agrees with a test label; both points have test noise `p_test`."""
        noise = _check_noise(p_test, "p_test")
        return float(_accuracy(np.float64(self.prob_plus), np.float64(self.prob_minus), noise))


@dataclass(frozen=True)
class NoisyDraws:
    """Results of fits to simulated data sets, (draws,) each.

    `prob_plus` and `prob_minus` are those of :class:`NoisyFit`. `accuracy` is that on a simulated test set.
    """

    prob_plus: Float
    prob_minus: Float
    accuracy: Float


@dataclass(frozen=True)
class NoisyBinary:
    """The distribution of Definition 3.2: two opposite points, each with its own label noise.

    The distribution has ``P(X = v) = P(X = −v) = 1/2``, ``P(Y = 1 | v) = 1 − p_plus`` and
    ``P(Y = 0 | −v) = 1 − p_minus``. A point is represented by its coordinate along v, which is 1 or −1.

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
            _check_noise(getattr(self, name), name)

    @property
    def confidence_plus(self) -> float:
        """Confidence at v according to Lemma 3.3: ``1 − p_plus``."""
        return 1 - self.p_plus

    @property
    def confidence_minus(self) -> float:
        """Confidence at −v according to Lemma 3.3: ``1 − p_minus``."""
        return 1 - self.p_minus

    def accuracy(self, p_test: float) -> float:
        """Test accuracy according to Lemma 3.3: ``1 − p_test``, for any training noise below 1/2."""
        noise = _check_noise(p_test, "p_test")
        if max(self.p_plus, self.p_minus) == 0.5:
            raise ValueError(
                f"p_plus and p_minus must be below 1/2 for Lemma 3.3, got {self.p_plus:g}, {self.p_minus:g}; "
                "use fit_population().accuracy(p_test), which breaks ties at 1/2 as the paper does"
            )
        return 1 - noise

    def sample(self, size: int, rng: Rng) -> tuple[IntArray, IntArray]:
        """Draw points (size,) in {1, −1} and labels (size,) in {0, 1}."""
        size = check_integer(size, "size", minimum=1, remedy="pass the number of rows")
        generator = as_generator(rng)
        x = np.where(generator.random(size) < 0.5, 1, -1).astype(np.int64)
        flipped = generator.random(size) < np.where(x == 1, self.p_plus, self.p_minus)
        return x, ((x == 1) ^ flipped).astype(np.int64)

    @staticmethod
    def fit(x: ArrayLike, y: ArrayLike) -> NoisyFit:
        """Fit the linear classifier that minimises the NLL on points x (n,) and labels y (n,).

        The points are 1 (for v) or −1 (for −v), and both must occur. The labels are 0 or 1. If all labels of
        a point are equal, there is no finite optimum; see `fit_population`.
        """
        points, labels = _check_rows(x, y)
        plus = points == 1
        return _fit_rates(labels[plus].mean(), labels[~plus].mean())

    def fit_population(self) -> NoisyFit:
        """Fit the linear classifier that minimises the expected NLL.

        If a point has no noise, there is no finite optimum. Newton's method then stops when the confidence at
        that point is within 1e-13 of 1.
        """
        return _fit_rates(1 - self.p_plus, self.p_minus)

    def simulate(self, size: int, *, draws: int, rng: Rng, p_test: float = 0.0) -> NoisyDraws:
        """Fit `draws` simulated data sets of `size` rows, and test each fit on `size` simulated rows.

        The noise of the test labels is `p_test`. If a data set lacks one of the two points, its results are
        nan.
        """
        size = check_integer(size, "size", minimum=1, remedy="pass the number of rows")
        draws = check_integer(draws, "draws", minimum=1, remedy="pass the number of data sets")
        noise = _check_noise(p_test, "p_test")
        generator = as_generator(rng)
        n_plus = generator.binomial(size, 0.5, size=draws)
        n_minus = size - n_plus
        rate_plus = generator.binomial(n_plus, 1 - self.p_plus) / np.maximum(n_plus, 1)
        rate_minus = generator.binomial(n_minus, self.p_minus) / np.maximum(n_minus, 1)
        slope, intercept = _newton(rate_plus, rate_minus)
        plus, minus = special.expit(slope + intercept), special.expit(slope - intercept)
        accuracy = generator.binomial(size, _accuracy(plus, minus, noise)) / size
        missing = (n_plus == 0) | (n_minus == 0)
        return NoisyDraws(*(np.where(missing, np.nan, values) for values in (plus, minus, accuracy)))


def _check_noise(value: object, name: str) -> float:
    return check_number(
        value, name, minimum=0, maximum=0.5, remedy="pass the probability that a label is flipped"
    )


def _newton(rate_plus: ArrayLike, rate_minus: ArrayLike) -> tuple[Float, Float]:
    """Slope and intercept that minimise the NLL, given the frequency of label 1 at v and at −v.

    For two points, the Newton step in (slope, intercept) has a closed form. Newton's method starts with a
    score of 0 at both points. It then approaches the best score of each point from one side without
    overshooting, since the sigmoid is concave above 0 and convex below.
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
        f"the fit must converge in {_NEWTON_STEPS} Newton steps, got {plus} and {minus} "
        "as the frequencies of label 1; please report this"
    )


def _fit_rates(rate_plus: float, rate_minus: float) -> NoisyFit:
    slope, intercept = (float(value) for value in _newton(rate_plus, rate_minus))
    plus, minus = special.expit(slope + intercept), special.expit(slope - intercept)
    return NoisyFit(slope, intercept, float(plus), float(minus))


def _accuracy(plus: ArrayLike, minus: ArrayLike, noise: float) -> Float:
    # The decision is label 1 if f >= 1/2, so a tie counts as the noise-free label at v but not at −v.
    accuracy_plus = np.where(np.asarray(plus) >= 0.5, 1 - noise, noise)
    accuracy_minus = np.where(np.asarray(minus) > 0.5, 1 - noise, noise)
    return np.asarray((accuracy_plus + accuracy_minus) / 2)


def _check_rows(x: ArrayLike, y: ArrayLike) -> tuple[Float, Float]:
    points, labels = (real_array(a, name).astype(np.float64) for a, name in ((x, "x"), (y, "y")))
    if points.ndim != 1 or labels.shape != points.shape:
        raise ValueError(
            f"x and y must be one-dimensional and of equal length, got {points.shape} and {labels.shape}; "
            "pass the arrays that sample() returns"
        )
    for name, values, allowed in (("x", points, (-1, 1)), ("y", labels, (0, 1))):
        invalid = ~np.isin(values, allowed)
        if invalid.any():
            row = int(np.argmax(invalid))
            raise ValueError(
                f"{name} must contain only {allowed[0]} and {allowed[1]}, got {values[row]:g} at row {row}; "
                "pass coordinates along v and binary labels"
            )
    if len(np.unique(points)) < 2:
        raise ValueError(
            f"x must contain both -1 and 1, got only {np.unique(points).tolist()}; draw more rows"
        )
    return points, labels
