"""Checks of the paper's theory by exact computation and simulation, and the data of the figures about it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetcal._typing import Float
from hetcal._validate import as_generator, check_integer, check_number
from hetcal.theory.bounds import (
    AlphaRange,
    BoundTerms,
    Regime,
    classwise_bound_terms,
    classwise_confidence,
    cts_bound_terms,
)
from hetcal.theory.noisy_binary import NoisyBinary
from hetcal.theory.rare_feature import RareFeature

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

Rng = np.random.Generator | int

_NOISE_PAIRS = ((0.1, 0.1), (0.3, 0.1), (0.05, 0.4))  # training noise (p_plus, p_minus)
_P_TEST = 0.05
_ROWS = 2000  # number of rows of each simulated data set for Lemma 3.3
_SIZES = (20, 100, 400)  # values of n for Theorem 3.1
_EPSILON = 0.01  # epsilon in Theorem 3.1, for confidence 0.99
_ACCURACIES = tuple(round(0.5 + 0.05 * k, 2) for k in range(10))  # of ten classes, to check the bounds
_MAX_ERRORS = 4  # largest accepted difference between a simulated value and the claim, in standard errors
_SLACK_RANGE = (0.0, 10.0)  # range of α in bound_slack


@dataclass(frozen=True)
class Check:
    """One claim of the paper, compared with exact computation and simulation.

    Attributes
    ----------
    claim : str
        Description of the claim. A claim of the form P(…) states a lower bound on a probability. Any other
        claim states a value.
    promised : float
        The claimed value or lower bound.
    exact : float or None
        The exact value; None if only a simulation is available.
    simulated : float
        The simulated value.
    holds : bool
        Whether the exact value, if any, agrees with the claim, and the simulated value agrees within four
        standard errors.
    """

    claim: str
    promised: float
    exact: float | None
    simulated: float
    holds: bool


@dataclass(frozen=True)
class Slack:
    """How loose a bound is in the example of :func:`bound_slack`.

    Attributes
    ----------
    claim : str
        The theorem with its Γ, or the corollary.
    regime : {"shared", "class-wise", "separate"}
        The regime that applies, as in :class:`BoundTerms`.
    bound : float
        Value of the bound.
    excess : float
        The ``1 − delta`` quantile of the simulated excess loss.
    promised : float
        Probability with which the bound is claimed to hold.
    frequency : float
        Fraction of the simulations in which the bound holds.
    """

    claim: str
    regime: Regime
    bound: float
    excess: float
    promised: float
    frequency: float

    @property
    def ratio(self) -> float:
        """``bound / excess``: the factor by which the bound overestimates the excess."""
        return self.bound / self.excess


@dataclass(frozen=True)
class LemmaCurve:
    """Confidence and test accuracy for several levels of training noise.

    The attributes contain the levels, the values of Lemma 3.3, the means over simulated data sets, and the
    standard errors of these means.
    """

    noise: tuple[float, ...]
    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]
    simulated_confidence: tuple[float, ...]
    simulated_confidence_error: tuple[float, ...]
    simulated_accuracy: tuple[float, ...]
    simulated_accuracy_error: tuple[float, ...]


@dataclass(frozen=True)
class BoundLine:
    """Bound of Theorem 4.1 for several numbers of validation rows n, and for one K and one Γ."""

    n_classes: int
    gamma: float
    n: tuple[int, ...]
    bound: tuple[float, ...]
    regime: tuple[Regime, ...]


def theory_checks(rng: Rng = 0, draws: int = 2000) -> list[Check]:
    """Check Lemma 3.3, Theorem 3.1 (both as stated and as proved), Theorem 4.1 and Corollary 4.2.

    Parameters
    ----------
    rng : numpy.random.Generator or int
        Random generator or seed.
    draws : int
        Number of data sets to simulate for each claim.

    Returns
    -------
    list of Check
        With the default arguments, all claims hold except those about 30 n rows in the statement of Theorem
        3.1. With few draws, a simulation may contradict a true claim by chance.

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
    draws = _check_draws(draws)
    checks = [check for noise in _NOISE_PAIRS for check in _lemma_checks(*noise, draws, generator)]
    for n in _SIZES:
        checks += _rare_checks(RareFeature(n), draws, generator)
    slacks = bound_slack(100_000, _ACCURACIES, draws=draws, rng=generator)
    return checks + [
        _check_lower_bound(f"P(excess ≤ bound), {s.claim}", s.promised, None, s.frequency, draws)
        for s in slacks
    ]


def bound_slack(
    n: int, correct: Sequence[float], *, delta: float = 0.05, draws: int = 2000, rng: Rng = 0
) -> tuple[Slack, Slack, Slack]:
    """Compare the bounds with the true excess loss in an example where this loss has a closed form.

    In this example, K classes are predicted equally often. A prediction of class k is correct with
    probability ``correct[k]``; otherwise, all other classes are equally likely labels. The logits are the
    unit vector of the predicted class, the inverse temperature α is in [0, 10], and the loss is half the
    Brier score, so ``l_f = 1`` and ``l_c = √2``. If a class has the accuracy q, its expected loss with the
    confidence c exceeds that with the confidence q by ``(c − q)² K / (2 (K − 1))``.

    Parameters
    ----------
    n : int
        Number of validation rows.
    correct : sequence of float, shape (K,)
        Accuracy of each predicted class, above 1/K and below 1.
    delta : float
        Probability, in (0, 1), with which a bound may fail.
    draws : int
        Number of validation sets to draw.
    rng : numpy.random.Generator or int
        Random generator or seed.

    Returns
    -------
    tuple of three Slack
        The first is for a shared temperature (Theorem 4.1, Γ = 0), and the second for the mean over classes
        with separate temperatures (Theorem 4.1, Γ = 5). The third is for the class with the largest excess
        (Corollary 4.2, with δ/K for each class).

    Examples
    --------
    >>> slack = bound_slack(100_000, [0.6, 0.7, 0.8, 0.9], draws=500)
    >>> [(s.regime, round(s.bound, 2), s.frequency) for s in slack]
    [('shared', 0.09, 1.0), ('class-wise', 0.14, 1.0), ('separate', 0.29, 1.0)]
    >>> all(s.ratio > 1000 for s in slack)
    True
    """
    accuracy = _check_correct(correct)
    n_classes = len(accuracy)
    remedy = "pass the probability that the bound fails, for example 0.05"
    check_number(delta, "delta", above=0, below=1, remedy=remedy)
    n = check_integer(n, "n", minimum=1, remedy="pass the number of validation rows")
    pooled, average, worst = _excess_losses(n, accuracy, _check_draws(draws), as_generator(rng))
    setup: dict[str, Any] = {"alpha_range": _SLACK_RANGE, "l_f": 1.0, "l_c": math.sqrt(2)}
    shared, unconstrained = (
        cts_bound_terms(n, n_classes, gamma, delta=delta, **setup) for gamma in (0.0, _SLACK_RANGE[1] / 2)
    )
    separate = classwise_bound_terms(n, 1 / n_classes, delta=delta / n_classes, **setup)
    promised = classwise_confidence(n, 1 / n_classes, n_classes, delta=delta / n_classes)
    return (
        _slack("Theorem 4.1, Γ = 0", shared, pooled, 1 - delta, delta),
        _slack("Theorem 4.1, Γ = 5", unconstrained, average, 1 - delta, delta),
        _slack("Corollary 4.2", separate, worst, promised, delta),
    )


def lemma_curve(
    p_test: float = 0.1,
    noise: Sequence[float] | None = None,
    *,
    size: int = 2000,
    draws: int = 200,
    rng: Rng = 0,
) -> LemmaCurve:
    """Confidence and test accuracy as functions of the training noise, from Lemma 3.3 and by simulation.

    Both points of :class:`NoisyBinary` have the same training noise, ``p₊ = p₋``.

    Parameters
    ----------
    p_test : float
        Noise of the test labels. According to the lemma, the accuracy is ``1 − p_test`` for any training
        noise below 1/2.
    noise : sequence of float, optional
        Levels of training noise, each below 1/2. By default 0 to 0.45 in steps of 0.05.
    size, draws : int
        Number of rows per data set, and number of data sets per noise level.
    rng : numpy.random.Generator or int
        Random generator or seed.

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
    """Bound of Theorem 4.1 as a function of the number of validation rows, one line for each pair of K and Γ.

    By default, `n` contains 61 values from 100 to 10⁷. `n_classes` and `gammas` are sequences of values of K
    and Γ. The other arguments are those of :func:`hetcal.theory.cts_bound`.

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
    simulated = model.simulate(_ROWS, draws=draws, rng=rng, p_test=_P_TEST)
    source = f"Lemma 3.3, p₊ = {p_plus:g}, p₋ = {p_minus:g}"
    return [
        _check_equal(f"confidence at v, {source}", model.confidence_plus, fit.prob_plus, simulated.prob_plus),
        _check_equal(
            f"confidence at −v, {source}", model.confidence_minus, fit.prob_minus, simulated.prob_minus
        ),
        _check_equal(
            f"accuracy at test noise {_P_TEST:g}, {source}",
            model.accuracy(_P_TEST),
            fit.accuracy(_P_TEST),
            simulated.accuracy,
        ),
    ]


def _rare_checks(model: RareFeature, draws: int, rng: np.random.Generator) -> list[Check]:
    """Check Theorem 3.1 on the small and on the large data set, each as stated and as proved."""
    stated_radius = model.statement_radius(_EPSILON)
    small_radius, large_radius = model.proof_radii(_EPSILON)
    checks = []
    for is_small, source, promise, radius in (
        (True, "as stated", model.stated_small, stated_radius),
        (True, "as proved", model.proved_small, small_radius),
        (False, "as stated", model.stated_large, stated_radius),
        (False, "as proved", model.proved_large, large_radius),
    ):
        rates = (
            model.exact(promise.rows, epsilon=_EPSILON, radius=radius),
            model.simulate(promise.rows, draws=draws, epsilon=_EPSILON, radius=radius, rng=rng),
        )
        exact, frequency = (r.small_event if is_small else r.large_event for r in rates)
        event = "f₁ confident and wrong at v'" if is_small else "f₂ confident and right"
        factor = promise.rows // model.n
        claim = f"P({event}), Theorem 3.1 {source}, {'' if factor == 1 else factor}n rows, n = {model.n}"
        checks.append(_check_lower_bound(claim, promise.probability, exact, frequency, draws))
    return checks


def _check_equal(claim: str, promised: float, exact: float, draws: Float) -> Check:
    mean, error = _mean_and_error(draws)
    holds = abs(exact - promised) <= 1e-6 and abs(mean - promised) <= _MAX_ERRORS * error + 1e-9
    return Check(claim, promised, exact, mean, holds)


def _check_lower_bound(
    claim: str, promised: float, exact: float | None, frequency: float, draws: int
) -> Check:
    error = math.sqrt(promised * (1 - promised) / draws)
    holds = frequency >= promised - _MAX_ERRORS * error and (exact is None or exact >= promised)
    return Check(claim, promised, exact, frequency, holds)


def _mean_and_error(draws: Float) -> tuple[float, float]:
    finite = draws[np.isfinite(draws)]
    return float(finite.mean()), float(finite.std() / math.sqrt(len(finite)))


def _check_draws(draws: object) -> int:
    return check_integer(draws, "draws", minimum=1, remedy="pass the number of data sets")


def _check_correct(correct: Sequence[float]) -> Float:
    remedy = "pass the accuracy of each predicted class"
    if len(correct) < 2:
        raise ValueError(f"correct must have at least two entries, got {len(correct)}; {remedy}")
    lowest = 1 / len(correct)
    return np.array(
        [
            check_number(q, f"correct[{k}]", above=lowest, below=1, remedy=remedy)
            for k, q in enumerate(correct)
        ]
    )


def _excess_losses(
    n: int, accuracy: Float, draws: int, rng: np.random.Generator
) -> tuple[Float, Float, Float]:
    """Simulated excess losses: that of a shared temperature, and the mean and maximum over separate ones.

    Each has shape (draws,). The mean and the maximum are over the classes.
    """
    n_classes = len(accuracy)
    rows = rng.multinomial(n, np.full(n_classes, 1 / n_classes), size=draws)
    n_correct = rng.binomial(rows, accuracy)
    # The confidence that minimises the loss on the data is the observed accuracy, clipped to the confidences
    # that an α in [0, 10] can give. Γ = 5 imposes no further constraint, because every such α is within 5 of
    # α₀ = 5.
    largest = 1 / (1 + (n_classes - 1) * math.exp(-_SLACK_RANGE[1]))
    pooled = np.clip(n_correct.sum(axis=1) / n, 1 / n_classes, largest)
    fitted = np.where(rows > 0, n_correct / np.maximum(rows, 1), pooled[:, None]).clip(1 / n_classes, largest)
    cost = n_classes / (2 * (n_classes - 1))
    separate = cost * (fitted - accuracy) ** 2
    return cost * (pooled - accuracy.mean()) ** 2, separate.mean(axis=1), separate.max(axis=1)


def _slack(claim: str, terms: BoundTerms, excess: Float, promised: float, delta: float) -> Slack:
    frequency = float((excess <= terms.total).mean())
    return Slack(claim, terms.regime, terms.total, float(np.quantile(excess, 1 - delta)), promised, frequency)
