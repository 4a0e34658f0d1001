"""A rare feature: the distribution in the proof of Theorem 3.1.

Three points carry all the mass, so that every data set is three counts, the classifier of least NLL can be
found exactly, and the probabilities in the theorem can be computed as well as simulated.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from hetcal._coerce import real_array
from hetcal._validate import as_generator
from hetcal.theory._arguments import fraction, positive_int, positive_number
from hetcal.theory._rare_fit import ATOMS, minimise_nll

__all__ = ["EventRates", "Promise", "RareFeature", "RareFit"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rng = np.random.Generator | int

_TAIL = 1e-14  # probability that an enumeration may leave out at either end of a count
_RADIUS = "take RareFeature.statement_radius(epsilon)"
_EPSILON = "1 - epsilon is the confidence asked for, say 0.99"


@dataclass(frozen=True)
class RareFit:
    """Linear classifiers on the three points of :class:`RareFeature`.

    ``weight`` (..., 2) in the basis (v, u) and ``bias`` (...,); nan where the data hold one label only and
    the NLL has no minimiser.
    """

    weight: Floats
    bias: Floats

    @property
    def scores(self) -> Floats:
        """``a·x + b`` at v, −v and v', shape (..., 3)."""
        values: Floats = self.weight @ ATOMS.T + self.bias[..., None]
        return values

    def confident(self, epsilon: float) -> NDArray[np.bool_]:
        """Whether the confidence is at least ``1 − epsilon`` at all three points, shape (...)."""
        level = fraction(epsilon, "epsilon", _EPSILON)
        return np.asarray((special.expit(-np.abs(self.scores)) <= level).all(axis=-1))

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether the decision is right at v, −v and v', shape (..., 3)."""
        scores = self.scores
        return np.stack([scores[..., 0] >= 0, scores[..., 1] < 0, scores[..., 2] < 0], axis=-1)


@dataclass(frozen=True)
class EventRates:
    """Frequencies or probabilities of what Theorem 3.1 speaks of.

    ``seen``: v' is among the rows. ``small_event``: confident at every point, wrong at v', hence an accuracy
    of at most ``1 − 1/(20 n)``. ``large_event``: confident at every point and always right.
    """

    seen: float
    small_event: float
    large_event: float


@dataclass(frozen=True)
class Promise:
    """What Theorem 3.1 promises: the number of rows, and the least probability of its event."""

    rows: int
    probability: float


@dataclass(frozen=True)
class RareFeature:
    """The distribution in the proof of Theorem 3.1, with N = 20 n.

    ``v`` (label 1) has probability 1/2, ``v' = (u + v)/√2`` (label 0) has ``1/N`` and ``−v`` (label 0) the
    rest; u and v are orthogonal unit vectors. A data set of n rows seldom holds v', one of 50 n rows mostly
    does.

    Parameters
    ----------
    n : int
        Rows of the small data set.

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
        positive_int(self.n, "n", "it is the number of rows of the small data set")

    @property
    def probabilities(self) -> tuple[float, float, float]:
        """Probabilities of v, −v and v'."""
        rare = 1 / (20 * self.n)
        return 0.5, 0.5 - rare, rare

    @property
    def stated_small(self) -> Promise:
        """Theorem 3.1 as stated: on n rows, confident and wrong at v' with probability 9/10."""
        return Promise(self.n, 0.9)

    @property
    def stated_large(self) -> Promise:
        """Theorem 3.1 as stated: on 30 n rows, confident and right with probability 9/10."""
        return Promise(30 * self.n, 0.9)

    @property
    def proved_small(self) -> Promise:
        """What the proof gives on n rows: ``0.95 − 2 exp(−n/100)``, and nothing up to n = 74."""
        return Promise(self.n, max(0.0, 0.95 - 2 * math.exp(-self.n / 100)))

    @property
    def proved_large(self) -> Promise:
        """What the proof gives: probability 9/10, on 50 n rows."""
        return Promise(50 * self.n, 0.9)

    def statement_radius(self, epsilon: float) -> float:
        """Smallest R that the statement admits: ``6 log(50 n + 1/epsilon)``."""
        return 6 * math.log(50 * self.n + 1 / fraction(epsilon, "epsilon", _EPSILON))

    def proof_radii(self, epsilon: float) -> tuple[float, float]:
        """Smallest R for the small and the large data set in the proof.

        ``3 log max(6, 1/epsilon)`` and ``6 log max(50 n, 1/epsilon)``.
        """
        inverse = 1 / fraction(epsilon, "epsilon", _EPSILON)
        return 3 * math.log(max(6.0, inverse)), 6 * math.log(max(50.0 * self.n, inverse))

    def seen_probability(self, size: int) -> float:
        """Exact probability that v' is among `size` rows: ``1 − (1 − 1/(20 n))^size``."""
        rows = positive_int(size, "size", "it is a number of rows")
        return -math.expm1(rows * math.log1p(-self.probabilities[2]))

    def rows_to_see(self, probability: float = 0.9) -> int:
        """Smallest number of rows that hold v' with this probability: about 46.05 n for 9/10.

        Examples
        --------
        >>> RareFeature(20).rows_to_see(0.9)
        920
        """
        wanted = fraction(probability, "probability", "say 0.9")
        rows = max(1, math.ceil(math.log1p(-wanted) / math.log1p(-self.probabilities[2])))
        # The logarithms may miss an exact integer by one rounding.
        while rows > 1 and self.seen_probability(rows - 1) >= wanted:
            rows -= 1
        while self.seen_probability(rows) < wanted:
            rows += 1
        return rows

    def sample(self, size: int, rng: Rng) -> tuple[Floats, Ints]:
        """Draw inputs (size, 2) in the basis (v, u) and labels (size,) in {0, 1}."""
        rows = positive_int(size, "size", "it is a number of rows")
        atom = as_generator(rng).choice(3, size=rows, p=self.probabilities)
        return ATOMS[atom], (atom == 0).astype(np.int64)

    @staticmethod
    def fit(x: ArrayLike, y: ArrayLike, radius: float) -> RareFit:
        """Find the classifier of least NLL with ``‖a‖ ≤ radius`` on inputs (n, 2) and labels (n,)."""
        fit = RareFeature.fit_counts(_rare_counts(x, y)[None], radius)
        return RareFit(fit.weight[0], fit.bias[0])

    @staticmethod
    def fit_counts(counts: ArrayLike, radius: float) -> RareFit:
        """Find the same for m data sets at once, given as counts (m, 3) of v, −v and v'."""
        numbers = np.asarray(counts)
        whole = numbers.dtype.kind in "iu" and (numbers >= 0).all()
        if numbers.ndim != 2 or numbers.shape[1] != 3 or not whole:
            raise ValueError(
                f"counts must be non-negative integers of shape (m, 3), got dtype {numbers.dtype} and shape "
                f"{numbers.shape}; pass how often v, −v and v' occur in each data set"
            )
        bound = positive_number(radius, "radius", _RADIUS)
        weight, bias = minimise_nll(numbers.astype(np.int64), bound)
        return RareFit(weight, bias)

    def simulate(
        self, size: int, *, draws: int, epsilon: float, rng: Rng, radius: float | None = None
    ) -> EventRates:
        """Frequencies over `draws` data sets of `size` rows; `radius` defaults to that of the statement.

        A data set with one label has no minimiser and counts for neither event.
        """
        rows = positive_int(size, "size", "it is a number of rows")
        repeats = positive_int(draws, "draws", "it is a number of data sets")
        counts = as_generator(rng).multinomial(rows, self.probabilities, size=repeats)
        bound = self.statement_radius(epsilon) if radius is None else radius
        return _rates(counts, np.ones(repeats), float(repeats), epsilon, bound)

    def exact(self, size: int, *, epsilon: float, radius: float | None = None) -> EventRates:
        """Probabilities of the same, by fitting every data set that can occur (but for 1e-12 of them)."""
        rows = positive_int(size, "size", "it is a number of rows")
        level = fraction(epsilon, "epsilon", _EPSILON)
        bound = self.statement_radius(level) if radius is None else positive_number(radius, "radius", _RADIUS)
        return _exact_rates(self, rows, level, bound)


@functools.lru_cache(maxsize=256)
def _exact_rates(model: RareFeature, rows: int, epsilon: float, radius: float) -> EventRates:
    """Fit every likely data set: seconds for 10⁵ rows, so that an answer once found is kept."""
    half, _, rare = model.probabilities
    share = half / (1 - rare)
    blocks = []
    for unusual in range(int(stats.binom.isf(_TAIL, rows, rare)) + 1):
        rest = rows - unusual
        plus = np.arange(stats.binom.ppf(_TAIL, rest, share), stats.binom.isf(_TAIL, rest, share) + 1)
        blocks.append(np.stack([plus, rest - plus, np.full(len(plus), unusual)], axis=1))
    counts = np.concatenate(blocks).astype(np.int64)
    mass = stats.binom.pmf(counts[:, 2], rows, rare)
    mass *= stats.binom.pmf(counts[:, 0], rows - counts[:, 2], share)
    return _rates(counts, mass, 1.0, epsilon, radius)


def _rates(counts: Ints, mass: Floats, total: float, epsilon: float, radius: float) -> EventRates:
    fit = RareFeature.fit_counts(counts, radius)
    confident = fit.confident(epsilon)
    wrong_rare = fit.scores[:, 2] >= 0  # False where nan: no minimiser, no event
    return EventRates(
        seen=float(mass @ (counts[:, 2] > 0)) / total,
        small_event=float(mass @ (confident & wrong_rare)) / total,
        large_event=float(mass @ (confident & fit.right.all(axis=1))) / total,
    )


def _rare_counts(x: ArrayLike, y: ArrayLike) -> Ints:
    inputs, labels = (real_array(a, name).astype(np.float64) for a, name in ((x, "x"), (y, "y")))
    if inputs.ndim != 2 or inputs.shape[1] != 2 or labels.shape != inputs.shape[:1]:
        raise ValueError(
            f"x and y must have shapes (n, 2) and (n,), got {inputs.shape} and {labels.shape}; "
            "pass what sample() returns"
        )
    same = np.abs(inputs[:, None, :] - ATOMS).max(axis=2) < 1e-9
    if not same.any(axis=1).all():
        row = int(np.argmin(same.any(axis=1)))
        raise ValueError(
            f"x must hold only v, −v and v', got {inputs[row]} at row {row}; use the basis (v, u)"
        )
    atom = same.argmax(axis=1)
    if (labels != (atom == 0)).any():
        row = int(np.argmax(labels != (atom == 0)))
        raise ValueError(
            f"y must be 1 at v and 0 elsewhere, got {labels[row]:g} at row {row}; these labels have no noise"
        )
    return np.bincount(atom, minlength=3).astype(np.int64)
