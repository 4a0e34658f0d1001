"""The bounds of Theorem 4.1 and Corollary 4.2, and the number of validation rows they require.

Both bound the excess loss: the expected loss of the fitted inverse temperatures on new data minus the
expected loss of the best possible inverse temperatures. They assume a loss in [0, 1] that is
``l_c``-Lipschitz in the probabilities, and logits of norm at most ``l_f``.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hetcal._validate import check_integer, check_number, choose

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

# Theorem 4.1 has one formula for small Γ and one for large Γ, see `cts_bound`. The former applies up to
# Γ = factor/(√n l_f l_c). The factor is 1/8 in the theorem and its proof, but 8 in the text after the
# theorem.
_BOUNDARIES: dict[str, float] = {"theorem": 1 / 8, "text": 8.0}
_MAX_ROWS = 10**12  # samples_needed does not search beyond this

# Remedies shared by several error messages.
_N = "pass the number of validation rows"
_N_CLASSES = "pass the number of classes"
_P_MIN = "pass the probability of the class that is predicted least often"


@dataclass(frozen=True)
class BoundTerms:
    """The terms of a bound.

    Attributes
    ----------
    regime : {"shared", "class-wise", "separate"}
        "shared" for Theorem 4.1 with small Γ, "class-wise" for Theorem 4.1 with large Γ, and "separate" for
        Corollary 4.2.
    complexity : float
        Term that grows with the size of the parameter space.
    confidence : float
        Term that grows with ``log(2/δ)``.
    total : float
        The bound: the sum of both terms.
    gamma_boundary : float or None
        Largest Γ of the shared regime; None for Corollary 4.2, which has no Γ.
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
    """Bound of Theorem 4.1 on the excess loss of class-wise temperature scaling.

    The excess loss is the expected loss of the fitted inverse temperatures α on new data minus that of the
    best possible ones. Let ``W = α₊ − α₋`` and ``s = √n l_f l_c``. With probability at least ``1 − δ``, the
    excess loss is at most::

        8 √(log(2/δ)/n) + 4/√n · √(log(1 + 4 W s))                            if Γ ≤ 1/(8 s)   (shared)
        8 √(log(2/δ)/n) + 4/√n · √(log(W/(2Γ)) + (K + 1) log(8 Γ s))          otherwise        (class-wise)

    With the default `boundary` and apart from two exceptions, the bound does not decrease as K, Γ, W, l_f or
    l_c increases, and it decreases as δ or n increases. The first exception is the boundary between the
    regimes: there, the class-wise formula gives a smaller value than the shared one, because it
    contains ``log(x)`` instead of ``log(1 + x)``. The second is the start of the class-wise regime if there
    are many classes: the bound can then increase with n, at most up to ``n = e/(64 Γ² l_f² l_c²)``.

    Parameters
    ----------
    n : int
        Number of validation rows.
    n_classes : int
        K, the number of classes.
    gamma : float
        Γ, the largest distance of a class's α from the shared α₀; at most ``W/2``.
    alpha_range : (float, float) or float
        Either ``(α₋, α₊)``, the lower and upper bound of α, or their distance W.
    l_f : float
        Largest norm of a row of logits.
    l_c : float
        Lipschitz constant of the loss in the probabilities.
    delta : float
        Probability, in (0, 1), with which the bound may fail.
    boundary : {"theorem", "text"}
        Largest Γ of the shared regime: ``1/(8 s)`` for "theorem", as in the theorem and its proof, or ``8/s``
        for "text", as in the text after the theorem. The proof does not support the latter.

    Returns
    -------
    float
        The bound. The loss lies in [0, 1], so a bound of 1 or more is vacuous.

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
    """Return the terms of :func:`cts_bound` and the regime that applies.

    Examples
    --------
    >>> cts_bound_terms(5000, 100, 1.0, alpha_range=(0, 10), l_f=10.0, l_c=1.0, delta=0.05).regime
    'class-wise'
    """
    n = check_integer(n, "n", minimum=1, remedy=_N)
    n_classes = check_integer(n_classes, "n_classes", minimum=1, remedy=_N_CLASSES)
    width, lipschitz = _check_alpha_range(alpha_range), _check_lipschitz(l_f, l_c)
    gamma = _check_gamma(gamma, width)
    s = math.sqrt(n) * lipschitz
    gamma_boundary = choose(_BOUNDARIES, boundary, "boundary") / s
    if gamma <= gamma_boundary:
        regime: Regime = "shared"
        log_cover = _log1p_product(4.0, width, s)
    else:
        regime = "class-wise"
        log_cover = math.log(width / (2 * gamma)) + (n_classes + 1) * _log_product(8.0, gamma, s)
    # Just above the boundary and for Γ = W/2, rounding can turn a `log_cover` of 0 into a negative number.
    complexity = 4 * math.sqrt(max(log_cover, 0.0) / n)
    confidence = 8 * math.sqrt(math.log(2 / _check_delta(delta)) / n)
    return BoundTerms(regime, complexity, confidence, complexity + confidence, gamma_boundary)


def classwise_bound(
    n: int, p_min: float, *, alpha_range: AlphaRange, l_f: float, l_c: float, delta: float
) -> float:
    """Bound of Corollary 4.2 on the excess loss of every class, if each class is calibrated separately.

    The excess loss of a class is defined as in :func:`cts_bound`, but over the rows that are predicted as the
    class. Let ``W = α₊ − α₋``. With probability at least ``1 − K (δ + exp(−p_min n/8))`` (see
    :func:`classwise_confidence`), the excess loss of every predicted class is at most::

        6 √(log(1 + 4 W √n l_f l_c) / (p_min n)) + 12 √(log(2/δ) / (p_min n))

    The bound decreases with n, p_min and δ and increases with W, l_f and l_c.

    Parameters
    ----------
    n : int
        Number of validation rows, over all classes.
    p_min : float
        Probability, in (0, 1], with which the least frequently predicted class is predicted. With K classes,
        it is at most 1/K.
    alpha_range, l_f, l_c, delta
        As in :func:`cts_bound`, except that `delta` applies to each class.

    Returns
    -------
    float
        The bound. The loss lies in [0, 1], so a bound of 1 or more is vacuous.

    Examples
    --------
    >>> round(classwise_bound(5000, 0.01, alpha_range=(0, 10), l_f=10.0, l_c=1.0, delta=0.0005), 3)
    7.604
    """
    return classwise_bound_terms(n, p_min, alpha_range=alpha_range, l_f=l_f, l_c=l_c, delta=delta).total


def classwise_bound_terms(
    n: int, p_min: float, *, alpha_range: AlphaRange, l_f: float, l_c: float, delta: float
) -> BoundTerms:
    """Return the terms of :func:`classwise_bound`; the regime is always "separate"."""
    n = check_integer(n, "n", minimum=1, remedy=_N)
    expected_rows = _check_p_min(p_min) * n
    width = _check_alpha_range(alpha_range)
    log_cover = _log1p_product(4.0, width, math.sqrt(n), _check_lipschitz(l_f, l_c))
    complexity = 6 * math.sqrt(log_cover / expected_rows)
    confidence = 12 * math.sqrt(math.log(2 / _check_delta(delta)) / expected_rows)
    return BoundTerms("separate", complexity, confidence, complexity + confidence, None)


def classwise_confidence(n: int, p_min: float, n_classes: int, *, delta: float) -> float:
    """Minimum probability with which Corollary 4.2 holds: ``max(0, 1 − K (δ + exp(−p_min n/8)))``.

    Examples
    --------
    >>> round(classwise_confidence(50_000, 0.01, 100, delta=0.0005), 3)
    0.95
    >>> classwise_confidence(2000, 0.01, 100, delta=0.0005)
    0.0
    """
    n = check_integer(n, "n", minimum=1, remedy=_N)
    n_classes = check_integer(n_classes, "n_classes", minimum=1, remedy=_N_CLASSES)
    p_min, delta = _check_p_min(p_min), _check_delta(delta)
    if p_min * n_classes > 1 + 1e-9:
        raise ValueError(f"p_min must be at most 1/n_classes = {1 / n_classes:.4g}, got {p_min}; {_P_MIN}")
    return max(0.0, 1 - n_classes * (delta + math.exp(-p_min * n / 8)))


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
    """Smallest n such that a bound is at most `epsilon` for n and for any larger number of validation rows.

    Pass `n_classes` and `gamma` to use Theorem 4.1, or `p_min` to use Corollary 4.2. The other arguments are
    those of :func:`cts_bound`; `boundary` affects only Theorem 4.1.

    The result n satisfies ``bound(m) ≤ epsilon`` for every ``m ≥ n`` and, if n > 1,
    ``epsilon < bound(n − 1)``. The bound of Theorem 4.1 can increase with n at the start of the class-wise
    regime. A number of rows before this increase is returned only if the bound does not exceed `epsilon`
    afterwards. If more than 10¹² rows are needed, a ValueError is raised.

    Examples
    --------
    >>> setup = dict(alpha_range=(0, 10), l_f=10.0, l_c=1.0, delta=0.05)
    >>> n = samples_needed(0.1, n_classes=10, gamma=1.0, **setup)
    >>> n, cts_bound(n, 10, 1.0, **setup) <= 0.1 < cts_bound(n - 1, 10, 1.0, **setup)
    (350324, True)
    >>> samples_needed(0.1, p_min=0.1, **setup)
    2014903
    """
    check_number(epsilon, "epsilon", above=0, remedy="pass the excess loss to allow, for example 0.1")
    if (n_classes is None) != (gamma is None) or (n_classes is None) == (p_min is None):
        raise ValueError(
            "n_classes and gamma, or p_min alone, must be given, "
            f"got n_classes={n_classes}, gamma={gamma}, p_min={p_min}; "
            "n_classes and gamma select Theorem 4.1, p_min selects Corollary 4.2"
        )

    def terms(n: int) -> BoundTerms:
        if n_classes is None or gamma is None:
            p = _check_p_min(p_min)
            return classwise_bound_terms(n, p, alpha_range=alpha_range, l_f=l_f, l_c=l_c, delta=delta)
        return cts_bound_terms(
            n, n_classes, gamma, alpha_range=alpha_range, l_f=l_f, l_c=l_c, delta=delta, boundary=boundary
        )

    n_rows = _smallest_sufficient(terms, epsilon)
    if n_rows is None:
        raise ValueError(
            f"epsilon must be attainable with {_MAX_ROWS:.0e} rows, got {epsilon}; increase epsilon"
        )
    return n_rows


def _smallest_sufficient(terms: Callable[[int], BoundTerms], epsilon: float) -> int | None:
    """Smallest n such that the bound is at most `epsilon` for n rows and for any larger number of rows.

    If n is beyond the search range, the result is None.

    In the shared and in the separate regime, the bound decreases with n. In the class-wise regime, it
    increases up to a single peak, which is often at the start of the regime, and then decreases.
    """

    def is_sufficient(n: int) -> bool:
        return terms(n).total <= epsilon

    switch = _first(lambda n: terms(n).regime == "class-wise", 1)
    if switch is None:
        return _first(is_sufficient, 1)
    peak = _first(lambda n: terms(n + 1).total < terms(n).total, switch)
    if peak is None or not is_sufficient(peak):
        return _first(is_sufficient, peak or switch)
    return _first(is_sufficient, 1)


def _first(condition: Callable[[int], bool], low: int) -> int | None:
    """Smallest n ≥ `low` at which `condition` is true; None if n is beyond the search range.

    If the condition is true for some n, it must be true for all larger n.
    """
    if condition(low):
        return low
    high = min(2 * low, _MAX_ROWS)
    while not condition(high):
        if high == _MAX_ROWS:
            return None
        low, high = high, min(2 * high, _MAX_ROWS)
    return low + 1 + bisect.bisect_left(range(low + 1, high), True, key=condition)


def _check_alpha_range(alpha_range: object) -> float:
    """Return the width ``α₊ − α₋``, given the pair ``(α₋, α₊)`` or the width itself."""
    remedy = "pass the pair (alpha_minus, alpha_plus) or its width"
    if not isinstance(alpha_range, tuple | list | np.ndarray):
        return check_number(alpha_range, "alpha_range", minimum=0, remedy=remedy)
    if len(alpha_range) != 2:
        raise ValueError(f"alpha_range must have two entries, got {len(alpha_range)}; {remedy}")
    low, high = (check_number(end, f"alpha_range[{i}]", remedy=remedy) for i, end in enumerate(alpha_range))
    if low > high:
        raise ValueError(f"alpha_range must be in ascending order, got ({low:g}, {high:g}); swap its entries")
    return high - low


def _check_lipschitz(l_f: object, l_c: object) -> float:
    norm = check_number(l_f, "l_f", above=0, remedy="pass the largest norm of a row of logits")
    product = norm * check_number(l_c, "l_c", above=0, remedy="pass the Lipschitz constant of the loss")
    return check_number(
        product,
        "l_f times l_c",
        above=0,
        remedy="pass numbers whose product neither overflows nor underflows",
    )


def _check_delta(delta: object) -> float:
    remedy = "pass the probability that the bound fails, for example 0.05"
    return check_number(delta, "delta", above=0, below=1, remedy=remedy)


def _check_p_min(p_min: object) -> float:
    return check_number(p_min, "p_min", above=0, maximum=1, remedy=_P_MIN)


def _check_gamma(gamma: object, width: float) -> float:
    remedy = "pass at most half the width of alpha_range; for an infinite gamma, use classwise_bound"
    number = check_number(gamma, "gamma", minimum=0, remedy=remedy)
    if 2 * number > width:
        raise ValueError(
            f"gamma must be at most half the width of alpha_range ({width / 2:g}), as Theorem 4.1 assumes, "
            f"got {gamma}; widen alpha_range, or use classwise_bound for separately calibrated classes"
        )
    return number


def _log_product(*factors: float) -> float:
    """Logarithm of a product that may overflow or underflow."""
    product = math.prod(factors)
    return math.log(product) if 0 < product < math.inf else sum(map(math.log, factors))


def _log1p_product(*factors: float) -> float:
    """``log(1 + product)`` for non-negative factors whose product may overflow."""
    product = math.prod(factors)
    return math.log1p(product) if product < math.inf else sum(map(math.log, factors))
