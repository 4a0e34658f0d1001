"""Few samples cause over-confidence: the distribution in the proof of Theorem 3.1.

The distribution has only three points, so three counts describe a data set. The probabilities in the theorem
can therefore be computed by fitting the NLL-minimising classifier to every possible data set, apart from
unlikely ones whose total probability is below 1e-12. The probabilities can also be simulated.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from hetcal._coerce import real_array
from hetcal._typing import BoolArray, Float, IntArray
from hetcal._validate import as_generator, check_integer, check_number

__all__ = ["EventRates", "Promise", "RareFeature", "RareFit"]

Rng = np.random.Generator | int

# The points v, −v and v' = (u + v)/√2 as rows, in the basis (v, u).
ATOMS: Float = np.array([[1.0, 0.0], [-1.0, 0.0], [np.sqrt(0.5), np.sqrt(0.5)]])
_SIGNS: Float = np.array([1.0, -1.0, -1.0])  # 1 for label 1, −1 for label 0

_TAIL = 1e-14  # each tail of a count's distribution with at most this probability is not enumerated
_BISECTIONS = 54  # halvings of [0, 1] down to the resolution of a float64
_NEWTON_STEPS = 100


@dataclass(frozen=True)
class RareFit:
    """Linear classifiers on the three points of :class:`RareFeature`.

    `weight` (..., 2) contains the weights in the basis (v, u), and `bias` (...,) the intercepts. Both are nan
    for data with only one label, for which the NLL has no minimum.
    """

    weight: Float
    bias: Float

    @property
    def scores(self) -> Float:
        """Score ``weight · x + bias`` at the points v, −v and v', shape (..., 3)."""
        values: Float = self.weight @ ATOMS.T + self.bias[..., None]
        return values

    def confident(self, epsilon: float) -> BoolArray:
        """Whether the confidence is at least ``1 − epsilon`` at all three points, shape (...)."""
        epsilon = _check_epsilon(epsilon)
        return np.asarray((special.expit(-np.abs(self.scores)) <= epsilon).all(axis=-1))

    @property
    def right(self) -> BoolArray:
        """Whether the decision is correct at v, −v and v', shape (..., 3)."""
        scores = self.scores
        return np.stack([scores[..., 0] >= 0, scores[..., 1] < 0, scores[..., 2] < 0], axis=-1)


@dataclass(frozen=True)
class EventRates:
    """Probabilities of the events in Theorem 3.1, either exact or estimated by simulation.

    The classifier is confident at a point if its confidence there is at least ``1 − epsilon``.

    Attributes
    ----------
    seen : float
        Probability that the data contain v'.
    small_event : float
        Probability that the classifier is confident at every point and wrong at v'. Its accuracy is then at
        most ``1 − 1/(20 n)``.
    large_event : float
        Probability that the classifier is confident and correct at every point.
    """

    seen: float
    small_event: float
    large_event: float


@dataclass(frozen=True)
class Promise:
    """A claim of Theorem 3.1: the number of rows and the minimum probability of the event."""

    rows: int
    probability: float


@dataclass(frozen=True)
class RareFeature:
    """The distribution in the proof of Theorem 3.1, with N = 20 n.

    With orthogonal unit vectors u and v, the points and their labels are

    - ``v``, label 1, with probability ``1/2``,
    - ``−v``, label 0, with probability ``1/2 − 1/N``,
    - ``v' = (u + v)/√2``, label 0, with probability ``1/N``.

    A data set of n rows rarely contains v', whereas a data set of 50 n rows usually does.

    Parameters
    ----------
    n : int
        Number of rows of the small data set.

    Examples
    --------
    >>> rare = RareFeature(20)
    >>> round(rare.seen_probability(30 * 20), 3), round(rare.seen_probability(50 * 20), 3)
    (0.777, 0.918)
    >>> rates = rare.exact(30 * 20, epsilon=0.01)
    >>> round(rates.large_event, 3), rare.stated_large.probability
    (0.777, 0.9)
    """

    n: int

    def __post_init__(self) -> None:
        check_integer(self.n, "n", minimum=1, remedy="pass the number of rows of the small data set")

    @property
    def probabilities(self) -> tuple[float, float, float]:
        """Probabilities of v, −v and v'."""
        rare = 1 / (20 * self.n)
        return 0.5, 0.5 - rare, rare

    @property
    def stated_small(self) -> Promise:
        """Theorem 3.1 as stated: `EventRates.small_event` is at least 9/10 for n rows."""
        return Promise(self.n, 0.9)

    @property
    def stated_large(self) -> Promise:
        """Theorem 3.1 as stated: `EventRates.large_event` is at least 9/10 for 30 n rows."""
        return Promise(30 * self.n, 0.9)

    @property
    def proved_small(self) -> Promise:
        """Theorem 3.1 as proved: `EventRates.small_event` is at least ``0.95 − 2 exp(−n/100)`` for n rows.

        Up to n = 74, this number is negative, so the claim is vacuous and the probability is stored as 0.
        """
        return Promise(self.n, max(0.0, 0.95 - 2 * math.exp(-self.n / 100)))

    @property
    def proved_large(self) -> Promise:
        """Theorem 3.1 as proved: `EventRates.large_event` is at least 9/10 for 50 n rows."""
        return Promise(50 * self.n, 0.9)

    def statement_radius(self, epsilon: float) -> float:
        """Smallest radius for which the theorem is stated: ``6 log(50 n + 1/epsilon)``.

        The radius bounds the norm of the weights of the classifier.
        """
        return 6 * math.log(50 * self.n + 1 / _check_epsilon(epsilon))

    def proof_radii(self, epsilon: float) -> tuple[float, float]:
        """Smallest radii for which the theorem is proved, for the small and for the large data set.

        They are ``3 log max(6, 1/epsilon)`` and ``6 log max(50 n, 1/epsilon)``. The radius bounds the norm of
        the weights of the classifier.
        """
        inverse = 1 / _check_epsilon(epsilon)
        return 3 * math.log(max(6.0, inverse)), 6 * math.log(max(50.0 * self.n, inverse))

    def seen_probability(self, size: int) -> float:
        """Exact probability that `size` rows contain v': ``1 − (1 − 1/(20 n))^size``."""
        size = _check_size(size)
        return -math.expm1(size * math.log1p(-self.probabilities[2]))

    def rows_to_see(self, probability: float = 0.9) -> int:
        """Smallest number of rows that contain v' with at least the given probability.

        For a probability of 9/10, this is about 46.05 n.

        Examples
        --------
        >>> RareFeature(20).rows_to_see(0.9)
        920
        """
        remedy = "choose a probability such as 0.9"
        probability = check_number(probability, "probability", above=0, below=1, remedy=remedy)
        rows = max(1, math.ceil(math.log1p(-probability) / math.log1p(-self.probabilities[2])))
        # Rounding in the logarithms can move their ratio across an integer, so `rows` may be off by one.
        while rows > 1 and self.seen_probability(rows - 1) >= probability:
            rows -= 1
        while self.seen_probability(rows) < probability:
            rows += 1
        return rows

    def sample(self, size: int, rng: Rng) -> tuple[Float, IntArray]:
        """Draw inputs (size, 2) in the basis (v, u) and labels (size,) in {0, 1}."""
        atom = as_generator(rng).choice(3, size=_check_size(size), p=self.probabilities)
        return ATOMS[atom], (atom == 0).astype(np.int64)

    @staticmethod
    def fit(x: ArrayLike, y: ArrayLike, radius: float) -> RareFit:
        """Fit the classifier that minimises the NLL on inputs (n, 2) and labels (n,).

        The norm of its weights is at most `radius`.
        """
        fit = RareFeature.fit_counts(_count_atoms(x, y)[None], radius)
        return RareFit(fit.weight[0], fit.bias[0])

    @staticmethod
    def fit_counts(counts: ArrayLike, radius: float) -> RareFit:
        """Fit m data sets at once, given how often v, −v and v' occur in each of them, (m, 3)."""
        array = np.asarray(counts)
        is_count = array.dtype.kind in "iu" and (array >= 0).all()
        if array.ndim != 2 or array.shape[1] != 3 or not is_count:
            minimum = f" with minimum {array.min()}" if array.dtype.kind in "iu" and array.size else ""
            raise ValueError(
                f"counts must be non-negative integers of shape (m, 3), got dtype {array.dtype} and shape "
                f"{array.shape}{minimum}; pass how often v, −v and v' occur in each data set"
            )
        return _minimise_nll(array.astype(np.int64), _check_radius(radius))

    def simulate(
        self, size: int, *, draws: int, epsilon: float, rng: Rng, radius: float | None = None
    ) -> EventRates:
        """Simulate `draws` data sets of `size` rows and return the event frequencies.

        `radius` defaults to :meth:`statement_radius`. A data set with only one label has no optimal
        classifier and counts neither as `small_event` nor as `large_event`.
        """
        size, epsilon = _check_size(size), _check_epsilon(epsilon)
        draws = check_integer(draws, "draws", minimum=1, remedy="pass the number of data sets")
        radius = self.statement_radius(epsilon) if radius is None else _check_radius(radius)
        counts = as_generator(rng).multinomial(size, self.probabilities, size=draws)
        return _event_rates(counts, np.ones(draws), float(draws), epsilon, radius)

    def exact(self, size: int, *, epsilon: float, radius: float | None = None) -> EventRates:
        """Compute event probabilities by fitting all data sets of `size` rows that are not too unlikely.

        The omitted data sets have a total probability below 1e-12. `radius` defaults to
        :meth:`statement_radius`.
        """
        size, epsilon = _check_size(size), _check_epsilon(epsilon)
        radius = self.statement_radius(epsilon) if radius is None else _check_radius(radius)
        return _exact_rates(self, size, epsilon, radius)


@functools.lru_cache(maxsize=256)
def _exact_rates(model: RareFeature, rows: int, epsilon: float, radius: float) -> EventRates:
    """Event probabilities from fits to all data sets that are not extremely unlikely.

    The results are cached, because a call may compute tens of thousands of fits.
    """
    from scipy import stats  # imported here because the import is slow

    p_plus, _, p_rare = model.probabilities
    p_plus_given_common = p_plus / (1 - p_rare)
    blocks = []
    for n_rare in range(int(stats.binom.isf(_TAIL, rows, p_rare)) + 1):
        common = stats.binom(rows - n_rare, p_plus_given_common)
        n_plus = np.arange(common.ppf(_TAIL), common.isf(_TAIL) + 1)
        blocks.append(np.stack([n_plus, rows - n_rare - n_plus, np.full(len(n_plus), n_rare)], axis=1))
    counts = np.concatenate(blocks).astype(np.int64)
    mass = stats.binom.pmf(counts[:, 2], rows, p_rare)
    mass *= stats.binom.pmf(counts[:, 0], rows - counts[:, 2], p_plus_given_common)
    return _event_rates(counts, mass, 1.0, epsilon, radius)


def _event_rates(counts: IntArray, mass: Float, total: float, epsilon: float, radius: float) -> EventRates:
    fit = _minimise_nll(counts, radius)
    confident = fit.confident(epsilon)
    wrong_rare = fit.scores[:, 2] >= 0  # False for data with only one label, whose scores are nan
    return EventRates(
        seen=float(mass @ (counts[:, 2] > 0)) / total,
        small_event=float(mass @ (confident & wrong_rare)) / total,
        large_event=float(mass @ (confident & fit.right.all(axis=1))) / total,
    )


def _count_atoms(x: ArrayLike, y: ArrayLike) -> IntArray:
    inputs, labels = (real_array(a, name).astype(np.float64) for a, name in ((x, "x"), (y, "y")))
    if inputs.ndim != 2 or inputs.shape[1] != 2 or labels.shape != inputs.shape[:1]:
        raise ValueError(
            f"x and y must have shapes (n, 2) and (n,), got {inputs.shape} and {labels.shape}; "
            "pass the arrays that sample() returns"
        )
    same = np.abs(inputs[:, None, :] - ATOMS).max(axis=2) < 1e-9
    if not same.any(axis=1).all():
        row = int(np.argmin(same.any(axis=1)))
        raise ValueError(
            f"x must contain only v, −v and v', got {inputs[row]} at row {row}; use the basis (v, u)"
        )
    atom = same.argmax(axis=1)
    if (labels != (atom == 0)).any():
        row = int(np.argmax(labels != (atom == 0)))
        raise ValueError(
            f"y must be 1 at v and 0 elsewhere, got {labels[row]:g} at row {row}; use noiseless labels"
        )
    return np.bincount(atom, minlength=3).astype(np.int64)


def _check_size(size: object) -> int:
    return check_integer(size, "size", minimum=1, remedy="pass the number of rows")


def _check_epsilon(epsilon: object) -> float:
    remedy = "pass 1 minus the required confidence, for example 0.01"
    return check_number(epsilon, "epsilon", above=0, below=1, remedy=remedy)


def _check_radius(radius: object) -> float:
    remedy = "use the value of statement_radius(epsilon)"
    return check_number(radius, "radius", above=0, remedy=remedy)


# The classifier has the score a·x + b and minimises the NLL subject to ‖a‖ ≤ R. The labels (1 at v, 0 at −v
# and v') are linearly separable, so the loss decreases along every separating direction and the constraint is
# active. Let g be the magnitude of the derivative of a point's total loss with respect to its score. The
# optimality conditions are
#
#     g(v) = g(−v) + g(v')                                                                 (intercept b)
#     a    = R · ((2 − r) v − r v') / ‖(2 − r) v − r v'‖,   r = g(v') / g(v) in [0, 1]     (weight a)
#
# The problem is convex, so these conditions are sufficient. For a given r, the second condition determines a,
# and the first is a monotone equation in b, which Newton's method solves. What remains is an equation in r.
# If −v and v' both occur, the difference of its two sides has opposite signs at r = 0 and r = 1. Bisection
# therefore solves it, for tens of thousands of data sets at once. scipy.optimize.brentq solves only one
# equation at a time. scipy.optimize.elementwise.find_root solves many, but it requires SciPy 1.15.


def _minimise_nll(counts: IntArray, radius: float) -> RareFit:
    """Fit data sets given as counts (m, 3) of v, −v and v'; nan for data sets with only one label."""
    distinct, inverse = np.unique(counts, axis=0, return_inverse=True)
    weight = np.full((len(distinct), 2), np.nan)
    bias = np.full(len(distinct), np.nan)
    both_labels = (distinct[:, 0] > 0) & (distinct[:, 1:].sum(axis=1) > 0)
    weight[both_labels], bias[both_labels] = _solve(distinct[both_labels], radius)
    inverse = inverse.reshape(-1)  # NumPy 2.0 returns `inverse` with an extra axis
    return RareFit(weight[inverse], bias[inverse])


def _solve(counts: IntArray, radius: float) -> tuple[Float, Float]:
    with np.errstate(divide="ignore"):
        log_counts: Float = np.log(counts.astype(np.float64))
    low, high = np.zeros(len(counts)), np.ones(len(counts))
    bias = np.zeros(len(counts))
    for _ in range(_BISECTIONS):
        ratio = (low + high) / 2
        margins = _SIGNS * (_weight(ratio, radius) @ ATOMS.T)
        bias = _intercept(log_counts, margins, bias)
        log_g = _log_gradients(log_counts, margins, bias)
        too_low = log_g[:, 2] - log_g[:, 0] > np.log(ratio)
        low, high = np.where(too_low, ratio, low), np.where(too_low, high, ratio)
    ratio = np.where(counts[:, 2] == 0, 0.0, np.where(counts[:, 1] == 0, 1.0, (low + high) / 2))
    weight = _weight(ratio, radius)
    return weight, _intercept(log_counts, _SIGNS * (weight @ ATOMS.T), bias)


def _weight(ratio: Float, radius: float) -> Float:
    direction = np.outer(2 - ratio, ATOMS[0]) - np.outer(ratio, ATOMS[2])
    weight: Float = radius * direction / np.linalg.norm(direction, axis=1, keepdims=True)
    return weight


def _log_gradients(log_counts: Float, margins: Float, bias: Float) -> Float:
    log_g: Float = log_counts + special.log_expit(-(margins + _SIGNS * bias[:, None]))
    return log_g


def _intercept(log_counts: Float, margins: Float, start: Float) -> Float:
    """Root in b of ``log g(v) − log(g(−v) + g(v'))``, whose slope in b is between −2 and −1."""
    bias = start
    tolerance = 1e-14 * (1 + np.abs(margins).max(initial=0) + np.abs(log_counts[:, 0]).max(initial=0))
    for _ in range(_NEWTON_STEPS):
        log_g = _log_gradients(log_counts, margins, bias)
        log_zero = np.logaddexp(log_g[:, 1], log_g[:, 2])
        excess = log_g[:, 0] - log_zero
        if np.abs(excess).max(initial=0) <= tolerance:
            return bias
        sigma = special.expit(margins + _SIGNS * bias[:, None])
        share = np.exp(log_g[:, 1:] - log_zero[:, None])
        bias = bias + excess / (sigma[:, 0] + (share * sigma[:, 1:]).sum(axis=1))
    worst = np.abs(excess).max()
    raise RuntimeError(
        f"the intercept must converge in {_NEWTON_STEPS} steps, got a residual of {worst:.2g}; reduce radius"
    )
