"""The claims of the paper's theory beside exact computation and simulation, and data for two figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetcal._validate import as_generator
from hetcal.theory._arguments import fraction, positive_int
from hetcal.theory.bounds import (
    AlphaRange,
    BoundTerms,
    Regime,
    classwise_bound_terms,
    classwise_confidence,
    cts_bound_terms,
)
from hetcal.theory.noise import NoisyBinary
from hetcal.theory.rare import RareFeature

__all__ = [
    "BoundLine",
    "Check",
    "LemmaCurve",
    "Slack",
    "bound_curve",
    "bound_slack",
    "lemma_curve",
    "theory_checks",
]

Floats = NDArray[np.float64]
Rng = np.random.Generator | int

_NOISES = ((0.1, 0.1), (0.3, 0.1), (0.05, 0.4))  # training noise (p_plus, p_minus)
_P_TEST = 0.05
_ROWS = 2000  # rows of each simulated data set for Lemma 3.3
_SIZES = (20, 100, 400)  # n of Theorem 3.1
_EPSILON = 0.01  # its precision: confidence 0.99
_CORRECT = tuple(
    round(0.5 + 0.05 * k, 2) for k in range(10)
)  # accuracy of each class in the check of the bounds
_ERRORS = 4  # standard errors that a simulation may be off
_SLACK_RANGE = (0.0, 10.0)


@dataclass(frozen=True)
class Check:
    """One claim: what the paper promises, what is exactly so, what simulation shows, and whether it holds.

    A claim that begins with P(…) promises at least that probability, any other the value itself. ``exact`` is
    None where only a simulation is at hand.
    """

    claim: str
    promised: float
    exact: float | None
    simulated: float
    holds: bool


@dataclass(frozen=True)
class Slack:
    """How far a bound is from the truth in the example of :func:`bound_slack`.

    ``excess`` is what ``1 − delta`` of the draws stay under, ``frequency`` the share of draws that stay under
    the ``bound``, which was ``promised`` as a probability.
    """

    claim: str
    regime: Regime
    bound: float
    excess: float
    promised: float
    frequency: float

    @property
    def ratio(self) -> float:
        """``bound / excess``: how many times too large the bound is."""
        return self.bound / self.excess


@dataclass(frozen=True)
class LemmaCurve:
    """Lemma 3.3 against training noise: lines, and simulated means with their standard errors."""

    noise: tuple[float, ...]
    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]
    simulated_confidence: tuple[float, ...]
    simulated_confidence_error: tuple[float, ...]
    simulated_accuracy: tuple[float, ...]
    simulated_accuracy_error: tuple[float, ...]


@dataclass(frozen=True)
class BoundLine:
    """Theorem 4.1 against the number of validation rows, for one K and one Γ."""

    n_classes: int
    gamma: float
    n: tuple[int, ...]
    bound: tuple[float, ...]
    regime: tuple[Regime, ...]


def theory_checks(rng: Rng = 0, draws: int = 2000) -> list[Check]:
    """Check Lemma 3.3, Theorem 3.1 as stated and as proved, Theorem 4.1 and Corollary 4.2.

    Parameters
    ----------
    rng : numpy.random.Generator or int
        Source of the simulations.
    draws : int
        Data sets to simulate for each claim.

    Returns
    -------
    list of Check
        Only the 30 n rows of Theorem 3.1 as stated do not hold.

    Examples
    --------
    >>> for check in theory_checks(draws=200):
    ...     if not check.holds:
    ...         print(check.claim, check.promised, round(check.exact, 3))
    P(f₂ confident and right), Theorem 3.1 as stated, 30n rows, n = 20 0.9 0.777
    P(f₂ confident and right), Theorem 3.1 as stated, 30n rows, n = 100 0.9 0.777
    P(f₂ confident and right), Theorem 3.1 as stated, 30n rows, n = 400 0.9 0.777
    """
    generator = as_generator(rng)
    positive_int(draws, "draws", "it is a number of data sets")
    checks = [check for noise in _NOISES for check in _lemma_checks(*noise, draws, generator)]
    for n in _SIZES:
        checks += _rare_checks(RareFeature(n), draws, generator)
    slacks = bound_slack(100_000, _CORRECT, draws=draws, rng=generator)
    return checks + [
        _at_least(f"P(excess ≤ bound), {s.claim}", s.promised, None, s.frequency, draws) for s in slacks
    ]


def bound_slack(
    n: int, correct: Sequence[float], *, delta: float = 0.05, draws: int = 2000, rng: Rng = 0
) -> tuple[Slack, Slack, Slack]:
    """Compare the bounds with the true excess loss where that is known in closed form.

    K classes are predicted equally often; predictions of class k are right with probability ``correct[k]``,
    wrong labels are uniform. The logits are the unit vector of the predicted class, α lies in [0, 10], and
    the loss is half the Brier score. So ``l_f = 1``, ``l_c = √2``, and the fitted confidence c of a class of
    accuracy q costs ``(c − q)² K / (2 (K − 1))`` too much. The three answers are for one temperature
    (Theorem 4.1, Γ = 0), free temperatures (Theorem 4.1, Γ = 5) and the worst class (Corollary 4.2, δ/K for
    each class).

    Parameters
    ----------
    n : int
        Validation rows.
    correct : sequence of float, shape (K,)
        Accuracy of each predicted class, between 1/K and 1.
    delta : float
        Probability that a bound may fail.
    draws : int
        Validation sets to draw.
    rng : numpy.random.Generator or int
        Source of the simulation.

    Examples
    --------
    >>> slack = bound_slack(100_000, [0.6, 0.7, 0.8, 0.9], draws=500)
    >>> [(s.regime, round(s.bound, 2), s.frequency) for s in slack]
    [('shared', 0.09, 1.0), ('class-wise', 0.14, 1.0), ('separate', 0.29, 1.0)]
    >>> all(s.ratio > 1000 for s in slack)
    True
    """
    q = _checked_correct(correct)
    fraction(delta, "delta", "it is the probability that the bound may fail, say 0.05")
    rows, classes = positive_int(n, "n", "it is the number of validation rows"), len(q)
    draw = positive_int(draws, "draws", "it is a number of data sets")
    shared, average, worst = _excess(rows, q, draw, as_generator(rng))
    one, free = (_slack_terms(rows, classes, gamma, delta) for gamma in (0.0, _SLACK_RANGE[1] / 2))
    alone = classwise_bound_terms(
        rows, 1 / classes, alpha_range=_SLACK_RANGE, l_f=1.0, l_c=math.sqrt(2), delta=delta / classes
    )
    promised = classwise_confidence(rows, 1 / classes, classes, delta=delta / classes)
    return (
        _slack("Theorem 4.1, Γ = 0", one, shared, 1 - delta, delta),
        _slack("Theorem 4.1, Γ = 5", free, average, 1 - delta, delta),
        _slack("Corollary 4.2", alone, worst, promised, delta),
    )


def lemma_curve(
    p_test: float = 0.1,
    noise: Sequence[float] | None = None,
    *,
    size: int = 2000,
    draws: int = 200,
    rng: Rng = 0,
) -> LemmaCurve:
    """Confidence and test accuracy against training noise ``p₊ = p₋``, from Lemma 3.3 and by simulation.

    Parameters
    ----------
    p_test : float
        Noise of the test labels: the accuracy is ``1 − p_test`` whatever the training noise.
    noise : sequence of float, optional
        Training noise, below 1/2; 0 to 0.45 in steps of 0.05 if left out.
    size, draws : int
        Rows of a data set, and data sets for each noise level.
    rng : numpy.random.Generator or int
        Source of the simulation.

    Examples
    --------
    >>> curve = lemma_curve(0.1, [0.0, 0.2], draws=50)
    >>> curve.confidence, curve.accuracy
    ((1.0, 0.8), (0.9, 0.9))
    """
    generator = as_generator(rng)
    levels = tuple(round(0.05 * k, 2) for k in range(10)) if noise is None else tuple(float(p) for p in noise)
    models = [NoisyBinary(p, p) for p in levels]
    fits = [model.simulate(size, draws=draws, rng=generator, p_test=p_test) for model in models]
    confidence = [_mean_and_error((fit.prob_plus + fit.prob_minus) / 2) for fit in fits]
    accuracy = [_mean_and_error(fit.accuracy) for fit in fits]
    return LemmaCurve(
        noise=levels,
        confidence=tuple(model.confidence_plus for model in models),
        accuracy=tuple(model.accuracy(p_test) for model in models),
        simulated_confidence=tuple(mean for mean, _ in confidence),
        simulated_confidence_error=tuple(error for _, error in confidence),
        simulated_accuracy=tuple(mean for mean, _ in accuracy),
        simulated_accuracy_error=tuple(error for _, error in accuracy),
    )


def bound_curve(
    n: Sequence[int] | None = None,
    n_classes: Sequence[int] = (2, 10, 100),
    gammas: Sequence[float] = (0.0, 0.01, 1.0),
    *,
    alpha_range: AlphaRange = (0.0, 10.0),
    l_f: float = 10.0,
    l_c: float = 1.0,
    delta: float = 0.05,
) -> tuple[BoundLine, ...]:
    """Bound of Theorem 4.1 against n (100 to 10⁷ if left out), a line for each K and Γ.

    Examples
    --------
    >>> for line in bound_curve([5000], [10, 100], [0.0, 1.0]):
    ...     print(line.n_classes, line.gamma, line.regime[0], round(line.bound[0], 3))
    10 0.0 shared 0.398
    10 1.0 class-wise 0.773
    100 0.0 shared 0.398
    100 1.0 class-wise 1.89
    """
    sizes = tuple(int(m) for m in np.unique(np.logspace(2, 7, 61).round())) if n is None else tuple(n)
    lines = []
    for k in n_classes:
        for gamma in gammas:
            terms = [
                cts_bound_terms(m, k, gamma, alpha_range=alpha_range, l_f=l_f, l_c=l_c, delta=delta)
                for m in sizes
            ]
            lines.append(
                BoundLine(k, gamma, sizes, tuple(t.total for t in terms), tuple(t.regime for t in terms))
            )
    return tuple(lines)


def _lemma_checks(p_plus: float, p_minus: float, draws: int, rng: np.random.Generator) -> list[Check]:
    model = NoisyBinary(p_plus, p_minus)
    fit = model.fit_population()
    seen = model.simulate(_ROWS, draws=draws, rng=rng, p_test=_P_TEST)
    where = f"Lemma 3.3, p₊ = {p_plus:g}, p₋ = {p_minus:g}"
    return [
        _equal(f"confidence at v, {where}", model.confidence_plus, fit.prob_plus, seen.prob_plus),
        _equal(f"confidence at −v, {where}", model.confidence_minus, fit.prob_minus, seen.prob_minus),
        _equal(
            f"accuracy at test noise {_P_TEST:g}, {where}",
            model.accuracy(_P_TEST),
            fit.accuracy(_P_TEST),
            seen.accuracy,
        ),
    ]


def _rare_checks(model: RareFeature, draws: int, rng: np.random.Generator) -> list[Check]:
    """Theorem 3.1 on both data sets, with rows, radius and probability of the statement and of the proof."""
    stated = model.statement_radius(_EPSILON)
    small, large = model.proof_radii(_EPSILON)
    wrong, right = "f₁ confident and wrong at v'", "f₂ confident and right"
    checks = []
    for what, source, promise, radius in (
        (wrong, "as stated", model.stated_small, stated),
        (wrong, "as proved", model.proved_small, small),
        (right, "as stated", model.stated_large, stated),
        (right, "as proved", model.proved_large, large),
    ):
        exact = model.exact(promise.rows, epsilon=_EPSILON, radius=radius)
        seen = model.simulate(promise.rows, draws=draws, epsilon=_EPSILON, radius=radius, rng=rng)
        factor = promise.rows // model.n
        claim = f"P({what}), Theorem 3.1 {source}, {'' if factor == 1 else factor}n rows, n = {model.n}"
        both = (
            (exact.small_event, seen.small_event) if what is wrong else (exact.large_event, seen.large_event)
        )
        checks.append(_at_least(claim, promise.probability, *both, draws))
    return checks


def _equal(claim: str, promised: float, exact: float, draws: Floats) -> Check:
    mean, error = _mean_and_error(draws)
    holds = abs(exact - promised) <= 1e-6 and abs(mean - promised) <= _ERRORS * error + 1e-9
    return Check(claim, promised, exact, mean, holds)


def _at_least(claim: str, promised: float, exact: float | None, frequency: float, draws: int) -> Check:
    error = math.sqrt(promised * (1 - promised) / draws)
    holds = frequency >= promised - _ERRORS * error and (exact is None or exact >= promised)
    return Check(claim, promised, exact, frequency, holds)


def _mean_and_error(draws: Floats) -> tuple[float, float]:
    found = draws[np.isfinite(draws)]
    return float(found.mean()), float(found.std() / math.sqrt(len(found)))


def _checked_correct(correct: Sequence[float]) -> Floats:
    remedy = "it is the accuracy of each predicted class"
    if len(correct) < 2:
        raise ValueError(f"correct must have at least two entries, got {len(correct)}; {remedy}")
    values = [fraction(q, f"correct[{k}]", remedy, low=1 / len(correct)) for k, q in enumerate(correct)]
    return np.array(values)


def _slack_terms(n: int, classes: int, gamma: float, delta: float) -> BoundTerms:
    return cts_bound_terms(
        n, classes, gamma, alpha_range=_SLACK_RANGE, l_f=1.0, l_c=math.sqrt(2), delta=delta
    )


def _excess(n: int, q: Floats, draws: int, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """Excess loss of one temperature, of free ones on average, and of the worst class, each (draws,)."""
    classes = len(q)
    rows = rng.multinomial(n, np.full(classes, 1 / classes), size=draws)
    right = rng.binomial(rows, q)
    # Clipping is exact for one temperature and for Corollary 4.2. With Γ = 5 it is so while no class is at
    # an end of the range: the free optimum then lies within Γ of the middle of the range.
    largest = 1 / (1 + (classes - 1) * math.exp(-_SLACK_RANGE[1]))
    pooled = np.clip(right.sum(axis=1) / n, 1 / classes, largest)
    fitted = np.where(rows > 0, right / np.maximum(rows, 1), pooled[:, None]).clip(1 / classes, largest)
    cost = classes / (2 * (classes - 1))
    alone = cost * (fitted - q) ** 2
    return cost * (pooled - q.mean()) ** 2, alone.mean(axis=1), alone.max(axis=1)


def _slack(claim: str, terms: BoundTerms, excess: Floats, promised: float, delta: float) -> Slack:
    frequency = float((excess <= terms.total).mean())
    return Slack(claim, terms.regime, terms.total, float(np.quantile(excess, 1 - delta)), promised, frequency)
