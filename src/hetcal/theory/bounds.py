"""Theorem 4.1 and Corollary 4.2 as numbers, and the number of validation rows that they ask for.

Both bound how much worse the fitted inverse temperatures do on fresh data than the best ones would. They hold
for a loss in [0, 1] that is ``l_c``-Lipschitz in the probabilities, and logits of norm at most ``l_f``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hetcal.theory._arguments import finite_number, fraction, positive_int, positive_number, width_of

__all__ = [
    "BoundTerms",
    "classwise_bound",
    "classwise_bound_terms",
    "classwise_confidence",
    "cts_bound",
    "cts_bound_terms",
    "samples_needed",
]

Boundary = Literal["theorem", "text"]
Regime = Literal["shared", "class-wise", "separate"]
AlphaRange = float | tuple[float, float]

# Γ up to factor/(√n l_f l_c) counts as small. The proof gives 1/8; the text after the theorem says 8.
_BOUNDARIES: dict[str, float] = {"theorem": 1 / 8, "text": 8.0}
_MOST_ROWS = 10**12


@dataclass(frozen=True)
class BoundTerms:
    """The parts of a bound.

    ``regime`` is "shared" or "class-wise" (Theorem 4.1 at small and large Γ), or "separate" (Corollary 4.2).
    ``complexity`` grows with what can be chosen, ``confidence`` with ``log(2/δ)``; ``total`` is their sum.
    ``gamma_boundary`` is the largest Γ of the shared regime, None for Corollary 4.2, which has no Γ.
    """

    regime: Regime
    complexity: float
    confidence: float
    total: float
    gamma_boundary: float | None


def cts_bound(
    n: int,
    n_classes: int,
    gamma: float,
    *,
    alpha_range: AlphaRange,
    l_f: float,
    l_c: float,
    delta: float,
    boundary: Boundary = "theorem",
) -> float:
    """Excess that Theorem 4.1 allows over the best possible loss of class-wise temperature scaling.

    With probability ``1 − delta`` the excess loss is at most, with ``W = α₊ − α₋`` and ``s = √n l_f l_c``::

        8 √(log(2/δ)/n) + 4/√n · √(log(1 + 4 W s))                            if Γ ≤ 1/(8 s)   (shared)
        8 √(log(2/δ)/n) + 4/√n · √(log(W/(2Γ)) + (K + 1) log(8 Γ s))          otherwise        (class-wise)

    Grows with K, Γ, W, l_f and l_c and falls with δ and n, except where the formula itself switches: on
    entering the class-wise regime it drops by the 1 in ``log(1 + 4 W s)``, and with many classes it rises
    with n for a while, up to at most ``n = e/(64 Γ² l_f² l_c²)``.

    Parameters
    ----------
    n : int
        Validation rows.
    n_classes : int
        K, the number of classes.
    gamma : float
        Γ, how far a class may be from the shared α₀; at most ``W/2``.
    alpha_range : (float, float) or float
        ``(α₋, α₊)``, or its width W.
    l_f : float
        Largest norm of a row of logits.
    l_c : float
        Lipschitz constant of the loss in the probabilities.
    delta : float
        Probability, in (0, 1), that the bound may fail.
    boundary : {"theorem", "text"}
        Where the shared regime ends: ``1/(8 s)`` as in the theorem and its proof, or ``8/s`` as in the text
        after it, which the proof does not support.

    Returns
    -------
    float
        The loss lies in [0, 1], so that a value of 1 or more says nothing.

    Examples
    --------
    >>> setup = dict(alpha_range=(0, 10), l_f=10.0, l_c=1.0, delta=0.05)
    >>> round(cts_bound(5000, 100, 0.0, **setup), 3), round(cts_bound(5000, 100, 1.0, **setup), 3)
    (0.398, 1.89)
    """
    return cts_bound_terms(
        n, n_classes, gamma, alpha_range=alpha_range, l_f=l_f, l_c=l_c, delta=delta, boundary=boundary
    ).total


def cts_bound_terms(
    n: int,
    n_classes: int,
    gamma: float,
    *,
    alpha_range: AlphaRange,
    l_f: float,
    l_c: float,
    delta: float,
    boundary: Boundary = "theorem",
) -> BoundTerms:
    """Parts of :func:`cts_bound`, with the regime that applies.

    Examples
    --------
    >>> cts_bound_terms(5000, 100, 1.0, alpha_range=(0, 10), l_f=10.0, l_c=1.0, delta=0.05).regime
    'class-wise'
    """
    rows = _rows(n)
    classes = positive_int(n_classes, "n_classes", "it is the number of classes")
    width, lipschitz = width_of(alpha_range), _lipschitz(l_f, l_c)
    shift = _checked_gamma(gamma, width)
    if boundary not in _BOUNDARIES:
        names = ", ".join(map(repr, _BOUNDARIES))
        raise ValueError(f"boundary must be one of {names}, got {boundary!r}; the proof's is 'theorem'")
    s = math.sqrt(rows) * lipschitz
    limit = _BOUNDARIES[boundary] / s
    if shift <= limit:
        regime: Regime = "shared"
        cover = _log_above_one(4.0, width, s)
    else:
        regime = "class-wise"
        cover = math.log(width / (2 * shift)) + (classes + 1) * _log_of(8.0, shift, s)
    # Rounding just above the boundary can leave −1e-16 where the formula has 0.
    complexity = 4 * math.sqrt(max(cover, 0.0) / rows)
    confidence = 8 * math.sqrt(_log_failure(delta) / rows)
    return BoundTerms(regime, complexity, confidence, complexity + confidence, limit)


def classwise_bound(
    n: int, p_min: float, *, alpha_range: AlphaRange, l_f: float, l_c: float, delta: float
) -> float:
    """Excess that Corollary 4.2 allows over the best possible loss of each class, calibrated alone.

    With probability ``1 − K (δ + exp(−p_min n/8))``, see :func:`classwise_confidence`, the excess loss of
    every predicted class is at most, with ``W = α₊ − α₋``::

        6 √(log(1 + 4 W √n l_f l_c) / (p_min n)) + 12 √(log(2/δ) / (p_min n))

    Falls with n, p_min and δ, grows with W, l_f and l_c.

    Parameters
    ----------
    n : int
        Validation rows of all classes together.
    p_min : float
        Probability of the least predicted class, in (0, 1]; at most 1/K.
    alpha_range, l_f, l_c, delta
        As in :func:`cts_bound`; `delta` counts once for every class.

    Returns
    -------
    float

    Examples
    --------
    >>> round(classwise_bound(5000, 0.01, alpha_range=(0, 10), l_f=10.0, l_c=1.0, delta=0.0005), 3)
    7.604
    """
    return classwise_bound_terms(n, p_min, alpha_range=alpha_range, l_f=l_f, l_c=l_c, delta=delta).total


def classwise_bound_terms(
    n: int, p_min: float, *, alpha_range: AlphaRange, l_f: float, l_c: float, delta: float
) -> BoundTerms:
    """Parts of :func:`classwise_bound`; the regime is always "separate"."""
    rows = _rows(n)
    effective = _checked_p_min(p_min) * rows
    cover = _log_above_one(4.0, width_of(alpha_range), math.sqrt(rows), _lipschitz(l_f, l_c))
    complexity = 6 * math.sqrt(cover / effective)
    confidence = 12 * math.sqrt(_log_failure(delta) / effective)
    return BoundTerms("separate", complexity, confidence, complexity + confidence, None)


def classwise_confidence(n: int, p_min: float, n_classes: int, *, delta: float) -> float:
    """Probability with which Corollary 4.2 holds: ``1 − K (δ + exp(−p_min n/8))``, 0 where that is negative.

    Examples
    --------
    >>> round(classwise_confidence(50_000, 0.01, 100, delta=0.0005), 3)
    0.95
    >>> classwise_confidence(2000, 0.01, 100, delta=0.0005)
    0.0
    """
    classes = positive_int(n_classes, "n_classes", "it is the number of classes")
    share = _checked_p_min(p_min)
    if share * classes > 1 + 1e-9:
        raise ValueError(
            f"p_min must be at most 1/n_classes = {1 / classes:.4g}, got {p_min}; "
            "it is the share of the least predicted class"
        )
    failure = fraction(delta, "delta", "it is the probability that the bound may fail, say 0.05")
    return max(0.0, 1 - classes * (failure + math.exp(-share * _rows(n) / 8)))


def samples_needed(
    epsilon: float,
    *,
    alpha_range: AlphaRange,
    l_f: float,
    l_c: float,
    delta: float,
    n_classes: int | None = None,
    gamma: float | None = None,
    p_min: float | None = None,
    boundary: Boundary = "theorem",
) -> int:
    """Smallest number of validation rows from which on a bound is at most `epsilon`.

    With `n_classes` and `gamma` it is Theorem 4.1 that is inverted, with `p_min` Corollary 4.2. The answer n
    has ``bound(n) ≤ epsilon < bound(n − 1)``, and ``bound(m) ≤ epsilon`` for every ``m ≥ n``: where Theorem
    4.1 rises for a while behind its regime switch, a size before the rise counts only if the whole rise stays
    at or below `epsilon`.

    Examples
    --------
    >>> setup = dict(alpha_range=(0, 10), l_f=10.0, l_c=1.0, delta=0.05)
    >>> n = samples_needed(0.1, n_classes=10, gamma=1.0, **setup)
    >>> n, cts_bound(n, 10, 1.0, **setup) <= 0.1 < cts_bound(n - 1, 10, 1.0, **setup)
    (350324, True)
    >>> samples_needed(0.1, p_min=0.1, **setup)
    2014903
    """
    positive_number(epsilon, "epsilon", "it is the excess loss to allow, say 0.1")
    if (n_classes is None) != (gamma is None) or (n_classes is None) == (p_min is None):
        raise ValueError(
            "n_classes and gamma, or p_min alone, must be given, "
            f"got n_classes={n_classes}, gamma={gamma}, p_min={p_min}; "
            "the first two select Theorem 4.1, the last Corollary 4.2"
        )

    def terms(n: int) -> BoundTerms:
        if n_classes is None or gamma is None:
            share = _checked_p_min(p_min)
            return classwise_bound_terms(n, share, alpha_range=alpha_range, l_f=l_f, l_c=l_c, delta=delta)
        return cts_bound_terms(
            n, n_classes, gamma, alpha_range=alpha_range, l_f=l_f, l_c=l_c, delta=delta, boundary=boundary
        )

    rows = _smallest_for_good(terms, epsilon)
    if rows is None:
        raise ValueError(
            f"epsilon must be within reach of {_MOST_ROWS:.0e} rows, got {epsilon}; allow more excess loss"
        )
    return rows


def _smallest_for_good(terms: Callable[[int], BoundTerms], epsilon: float) -> int | None:
    """Smallest n from which on the bound stays at or below `epsilon`, None beyond the largest size looked at.

    The shared and the separate regime fall with n throughout; the class-wise one rises to a single peak,
    often at its start, and falls from there.
    """

    def small(n: int) -> bool:
        return terms(n).total <= epsilon

    switch = _first(lambda n: terms(n).regime == "class-wise", 1)
    if switch is None:
        return _first(small, 1)
    peak = _first(lambda n: terms(n + 1).total < terms(n).total, switch)
    if peak is None or not small(peak):
        return _first(small, peak or switch)
    return _first(small, 1)


def _first(holds: Callable[[int], bool], low: int) -> int | None:
    """Smallest n from `low` on at which `holds` turns true, by doubling and halving."""
    if holds(low):
        return low
    high = 2 * low
    while not holds(high):
        low, high = high, 2 * high
        if high > _MOST_ROWS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _rows(n: object) -> int:
    return positive_int(n, "n", "it is the number of validation rows")


def _lipschitz(l_f: object, l_c: object) -> float:
    norm = positive_number(l_f, "l_f", "it is the largest norm of a row of logits")
    product = norm * positive_number(l_c, "l_c", "it is the Lipschitz constant of the loss")
    return positive_number(product, "l_f times l_c", "choose units in which both are near 1")


def _log_failure(delta: object) -> float:
    return math.log(2 / fraction(delta, "delta", "it is the probability that the bound may fail, say 0.05"))


def _checked_p_min(p_min: object) -> float:
    return fraction(p_min, "p_min", "it is the share of the least predicted class", closed="high")


def _checked_gamma(gamma: object, width: float) -> float:
    remedy = "for classes calibrated alone (an infinite gamma) use classwise_bound"
    shift = finite_number(gamma, "gamma", remedy)
    if shift < 0:
        raise ValueError(f"gamma must not be negative, got {gamma}; 0 is one temperature for all classes")
    if 2 * shift > width:
        raise ValueError(
            f"gamma must be at most half the width of alpha_range, {width / 2:g}, as Theorem 4.1 assumes, "
            f"got {gamma}; widen alpha_range, or use classwise_bound for classes calibrated alone"
        )
    return shift


def _log_of(*factors: float) -> float:
    """Logarithm of a product that itself may be beyond a float."""
    product = math.prod(factors)
    return math.log(product) if 0 < product < math.inf else sum(map(math.log, factors))


def _log_above_one(*factors: float) -> float:
    """``log(1 + product)``, likewise."""
    product = math.prod(factors)
    return math.log1p(product) if product < math.inf else sum(map(math.log, factors))
