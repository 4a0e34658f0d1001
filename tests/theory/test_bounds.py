"""Theorem 4.1 and Corollary 4.2: worked examples, monotonicity, regimes, inversion and errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hetcal.theory import (
    classwise_bound,
    classwise_bound_terms,
    classwise_confidence,
    cts_bound,
    cts_bound_terms,
    samples_needed,
)

E = math.e
SETUP: dict[str, Any] = {"alpha_range": (0.0, 10.0), "l_f": 10.0, "l_c": 1.0, "delta": 0.05}

rows = st.integers(1, 10**7)
constants = st.floats(1e-2, 1e2)
deltas = st.floats(1e-6, 0.99)
factors = st.floats(1.0, 50.0)


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of cts_bound in which both regimes are common: Γ within a factor 100 of the boundary."""
    n, l_f, l_c = draw(rows), draw(constants), draw(constants)
    gamma = 10 ** draw(st.floats(-2, 2)) / (8 * math.sqrt(n) * l_f * l_c)
    width = 2 * gamma * draw(st.floats(1.001, 1e4))
    return {
        "n": n,
        "n_classes": draw(st.integers(1, 1000)),
        "gamma": gamma,
        "alpha_range": width,
        "l_f": l_f,
        "l_c": l_c,
        "delta": draw(deltas),
    }


def changed(problem: dict[str, Any], **new: Any) -> dict[str, Any]:
    return {**problem, **new}


def not_above(low: float, high: float) -> bool:
    return low <= high * (1 + 1e-12)


def test_small_gamma_worked_example() -> None:
    # √n = 10 and 1 + 4 W · 10 = e⁴: 4/10 · √4 + 8/10 · √1
    terms = cts_bound_terms(100, 7, 0.0, alpha_range=(1, 1 + (E**4 - 1) / 40), l_f=0.5, l_c=2.0, delta=2 / E)
    assert terms.regime == "shared"
    assert terms.complexity == pytest.approx(0.8)
    assert terms.confidence == pytest.approx(0.8)
    assert terms.total == pytest.approx(1.6)
    assert terms.gamma_boundary == pytest.approx(1 / 80)


def test_large_gamma_worked_example() -> None:
    # 8 Γ · 10 = e, W/(2Γ) = e and K = 2: 4/10 · √(1 + 3 · 1) + 8/10 · √4
    gamma = E / 80
    terms = cts_bound_terms(100, 2, gamma, alpha_range=2 * gamma * E, l_f=1.0, l_c=1.0, delta=2 / E**4)
    assert terms.regime == "class-wise"
    assert terms.complexity == pytest.approx(0.8)
    assert terms.confidence == pytest.approx(1.6)
    assert terms.total == pytest.approx(2.4)


def test_corollary_worked_example() -> None:
    # p_min n = 100, √n = 20 and 1 + 4 W · 20 = e⁴: 6/10 · √4 + 12/10 · √1
    terms = classwise_bound_terms(400, 0.25, alpha_range=(E**4 - 1) / 80, l_f=1.0, l_c=1.0, delta=2 / E)
    assert terms.regime == "separate"
    assert terms.complexity == pytest.approx(1.2)
    assert terms.confidence == pytest.approx(1.2)
    assert terms.total == pytest.approx(2.4)
    assert terms.gamma_boundary is None


def test_confidence_worked_example() -> None:
    assert classwise_confidence(800, 0.1, 10, delta=0.001) == pytest.approx(1 - 10 * (0.001 + math.exp(-10)))
    assert classwise_confidence(80, 0.1, 10, delta=0.001) == 0  # 1 − 10/e is negative


def test_bounds_equal_their_totals_for_a_width_or_a_pair() -> None:
    pair = cts_bound(1000, 10, 0.5, **SETUP)
    assert isinstance(pair, float)
    assert pair == cts_bound_terms(1000, 10, 0.5, **SETUP).total
    assert pair == cts_bound(1000, 10, 0.5, **changed(SETUP, alpha_range=10.0))
    assert pair == cts_bound(1000, 10, 0.5, **changed(SETUP, alpha_range=np.array([-3.0, 7.0])))
    class_bound = classwise_bound(1000, 0.1, **SETUP)
    assert isinstance(class_bound, float)
    assert class_bound == classwise_bound_terms(1000, 0.1, **SETUP).total


def test_corollary_follows_from_theorem_on_half_the_expected_rows() -> None:
    half = 1000  # p_min n / 2 rows of the class; the corollary rounds 4√2 and 8√2 up to 6 and 12
    theorem = cts_bound(half, 1, 0.0, **SETUP)
    assert theorem <= classwise_bound(20_000, 0.1, **SETUP) <= theorem * 6 / (4 * math.sqrt(2)) * 1.12


def test_zero_width() -> None:
    terms = cts_bound_terms(100, 3, 0.0, alpha_range=(1.0, 1.0), l_f=1.0, l_c=1.0, delta=2 / E)
    assert terms.total == pytest.approx(0.8)


def test_gamma_just_above_the_boundary() -> None:
    terms = cts_bound_terms(100, 5, 1 / 80, alpha_range=10.0, l_f=1.0, l_c=1.0, delta=0.1)
    above = cts_bound_terms(100, 5, math.nextafter(1 / 80, 1), alpha_range=10.0, l_f=1.0, l_c=1.0, delta=0.1)
    assert (terms.regime, above.regime) == ("shared", "class-wise")
    # The bound decreases in Γ only at the boundary, where log(1 + x) becomes log(x).
    assert terms.complexity == pytest.approx(0.4 * math.sqrt(math.log(401)))
    assert above.complexity == pytest.approx(0.4 * math.sqrt(math.log(400)))
    smallest = cts_bound_terms(
        100, 5, math.nextafter(1 / 80, 1), alpha_range=1 / 39, l_f=1.0, l_c=1.0, delta=0.1
    )
    assert smallest.complexity == pytest.approx(0.4 * math.sqrt(math.log(80 / 78)))


def test_text_boundary_is_64_times_the_theorem_boundary() -> None:
    gamma = 0.01  # above both boundaries, 0.000125 and 0.008; 0.005 lies between them
    theorem = cts_bound_terms(10_000, 100, gamma, **SETUP)
    text = cts_bound_terms(10_000, 100, 0.005, **SETUP, boundary="text")
    assert text.gamma_boundary == pytest.approx(64 * theorem.gamma_boundary)
    assert (theorem.regime, text.regime) == ("class-wise", "shared")
    assert cts_bound(10_000, 100, 0.005, **SETUP, boundary="text") < cts_bound(10_000, 100, 0.005, **SETUP)
    # Above both boundaries, the bounds are equal.
    assert cts_bound(10_000, 100, gamma, **SETUP, boundary="text") == theorem.total


@given(problems(), st.integers(1, 1000))
def test_bound_increases_with_n_classes(problem: dict[str, Any], more: int) -> None:
    assert not_above(
        cts_bound(**problem), cts_bound(**changed(problem, n_classes=problem["n_classes"] + more))
    )


@given(problems(), factors)
def test_bound_decreases_with_delta(problem: dict[str, Any], factor: float) -> None:
    assert not_above(cts_bound(**problem), cts_bound(**changed(problem, delta=problem["delta"] / factor)))


@given(problems(), factors)
def test_bound_increases_with_alpha_range(problem: dict[str, Any], factor: float) -> None:
    assert not_above(
        cts_bound(**problem), cts_bound(**changed(problem, alpha_range=problem["alpha_range"] * factor))
    )


@given(problems(), factors, st.sampled_from(["gamma", "l_f", "l_c"]))
def test_bound_increases_with_gamma_and_lipschitz_constants_within_a_regime(
    problem: dict[str, Any], factor: float, name: str
) -> None:
    larger = changed(problem, **{name: problem[name] * factor})
    assume(2 * larger["gamma"] <= larger["alpha_range"])
    small, large = cts_bound_terms(**problem), cts_bound_terms(**larger)
    if small.regime == large.regime:
        assert not_above(small.total, large.total)
    else:  # at the switch, log(1 + x) becomes log(x)
        s = math.sqrt(problem["n"]) * problem["l_f"] * problem["l_c"]
        lost = math.log1p(1 / (4 * problem["alpha_range"] * s))
        assert (small.regime, large.regime) == ("shared", "class-wise")
        assert not_above(small.complexity**2 - 16 * lost / problem["n"], large.complexity**2 + 1e-15)


@given(problems(), factors)
def test_bound_decreases_with_n_within_a_regime_after_its_peak(
    problem: dict[str, Any], factor: float
) -> None:
    larger = changed(problem, n=math.ceil(problem["n"] * factor))
    small, large = cts_bound_terms(**problem), cts_bound_terms(**larger)
    assume(small.regime == large.regime)
    past = problem["n"] >= E / (8 * problem["gamma"] * problem["l_f"] * problem["l_c"]) ** 2
    if small.regime == "shared" or past:
        assert not_above(large.total, small.total)


def test_bound_increases_with_n_after_the_switch_with_many_classes() -> None:
    problem = changed(SETUP, l_f=1.0)  # the switch is at n = 1/(8 Γ)² = 625
    values = [cts_bound(n, 1000, 0.005, **problem) for n in (600, 625, 700, 1000, 1250, 1698, 1710, 5000)]
    assert values[0] > values[1] < values[2] < values[3] < values[4]
    assert values[-3] > values[-2] > values[-1]


@given(rows, st.floats(1e-4, 1), constants, constants, constants, deltas, factors)
def test_corollary_is_monotone_in_every_argument(
    n: int, p_min: float, width: float, l_f: float, l_c: float, delta: float, factor: float
) -> None:
    problem = {"n": n, "p_min": p_min, "alpha_range": width, "l_f": l_f, "l_c": l_c, "delta": delta}
    bound = classwise_bound(**problem)
    for name in ("alpha_range", "l_f", "l_c"):
        assert not_above(bound, classwise_bound(**changed(problem, **{name: problem[name] * factor})))
    for name in ("p_min", "delta"):
        assert not_above(bound, classwise_bound(**changed(problem, **{name: problem[name] / factor})))
    assert not_above(classwise_bound(**changed(problem, n=math.ceil(n * factor))), bound)


@settings(deadline=None)
@given(problems(), st.floats(0.02, 5), st.sampled_from(["theorem", "text"]))
def test_samples_needed_inverts_the_theorem(problem: dict[str, Any], epsilon: float, boundary: str) -> None:
    rest = changed({k: v for k, v in problem.items() if k != "n"}, boundary=boundary)
    n = samples_needed(epsilon, **rest)
    assert cts_bound(n, **rest) <= epsilon
    assert n == 1 or cts_bound(n - 1, **rest) > epsilon
    assert all(cts_bound(math.ceil(n * f), **rest) <= epsilon for f in np.geomspace(1, 1e6, 200))


@settings(deadline=None)
@given(st.floats(1e-4, 1), constants, constants, deltas, st.floats(0.02, 5))
def test_samples_needed_inverts_the_corollary(
    p_min: float, width: float, l_f: float, delta: float, epsilon: float
) -> None:
    rest = {"alpha_range": width, "l_f": l_f, "l_c": 1.0, "delta": delta}
    n = samples_needed(epsilon, p_min=p_min, **rest)
    assert classwise_bound(n, p_min, **rest) <= epsilon
    assert n == 1 or classwise_bound(n - 1, p_min, **rest) > epsilon


@pytest.mark.parametrize(
    ("classes", "gamma", "boundary"),
    [(2, 0.0, "theorem"), (2, 0.005, "theorem"), (1000, 0.005, "theorem"), (1000, 0.005, "text")],
)
def test_samples_needed_agrees_with_exhaustive_search(classes: int, gamma: float, boundary: str) -> None:
    problem = changed(SETUP, l_f=1.0, boundary=boundary)
    totals = np.array([cts_bound(n, classes, gamma, **problem) for n in range(1, 30_001)])
    for epsilon in (1.03, 1.05, 1.12, 1.17, 1.2, 2.5, 2.56, 2.57, 3.0, 20.0):
        above = np.flatnonzero(totals > epsilon)
        full = 1 if above.size == 0 else int(above[-1]) + 2
        if full <= len(totals):
            assert samples_needed(epsilon, n_classes=classes, gamma=gamma, **problem) == full


def test_samples_needed_is_monotone() -> None:
    sizes = [samples_needed(e, n_classes=10, gamma=1.0, **SETUP) for e in (0.05, 0.1, 0.2, 0.4)]
    assert sizes == sorted(sizes, reverse=True)
    sizes = [samples_needed(0.1, n_classes=k, gamma=1.0, **SETUP) for k in (2, 10, 100)]
    assert sizes == sorted(sizes)
    assert samples_needed(0.1, p_min=0.1, **SETUP) > samples_needed(0.1, p_min=0.5, **SETUP)


CTS = {"n": 100, "n_classes": 10, "gamma": 1.0, **SETUP}
CLASSWISE = {"n": 100, "p_min": 0.1, **SETUP}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0),
        ("n_classes", 0),
        ("gamma", -1),
        ("gamma", math.inf),
        ("gamma", 5.1),  # more than half of alpha_range
        ("alpha_range", (1, 0)),
        ("alpha_range", (1, 2, 3)),
        ("alpha_range", (0, math.inf)),
        ("alpha_range", -2.0),
        ("l_f", 0),
        ("l_c", -1),
        ("delta", 0),
        ("delta", 1.0),
        ("boundary", "proof"),
    ],
)
def test_invalid_arguments_of_the_theorem(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{name}.* must "):
        cts_bound(**changed(CTS, **{name: value}))


@pytest.mark.parametrize(
    ("name", "value"), [("n", -5), ("p_min", 0), ("p_min", 1.5), ("l_f", math.nan), ("delta", 2)]
)
def test_invalid_arguments_of_the_corollary(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must "):
        classwise_bound(**changed(CLASSWISE, **{name: value}))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("p_min", (100, 0.2, 10)), ("n", (0, 0.1, 10)), ("n_classes", (100, 0.1, 0))],
)
def test_invalid_arguments_of_the_confidence(name: str, arguments: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must "):
        classwise_confidence(*arguments, delta=0.1)


@pytest.mark.parametrize(
    ("epsilon", "options", "name"),
    [
        (0, {"p_min": 0.1}, "epsilon"),
        (1e-7, {"p_min": 0.1}, "epsilon"),  # needs more rows than are searched
        (1e-7, {"n_classes": 3, "gamma": 1e-9}, "epsilon"),
        (0.1, {"n_classes": 3, "gamma": 9.0}, "gamma"),
        (0.1, {}, "n_classes and gamma, or p_min"),
        (0.1, {"n_classes": 3}, "n_classes and gamma, or p_min"),
        (0.1, {"gamma": 1.0, "p_min": 0.1}, "n_classes and gamma, or p_min"),
        (0.1, {"n_classes": 3, "gamma": 1.0, "p_min": 0.1}, "n_classes and gamma, or p_min"),
    ],
)
def test_invalid_arguments_of_samples_needed(epsilon: float, options: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}"):
        samples_needed(epsilon, **options, **SETUP)


def test_alpha_range_is_a_pair_or_a_width() -> None:
    terms = [cts_bound(100, 2, 0.5, **changed(SETUP, alpha_range=r)) for r in ((1, 3), [1, 3], 2)]
    assert terms[0] == terms[1] == terms[2]
    with pytest.raises(TypeError, match="alpha_range must"):
        cts_bound(100, 2, 0.5, **changed(SETUP, alpha_range="a"))


def test_overflowing_lipschitz_constants_raise() -> None:
    for constant in (1e-300, 1e300):
        with pytest.raises(ValueError, match="l_f times l_c must"):
            cts_bound(10, 2, 0.0, alpha_range=1.0, l_f=constant, l_c=constant, delta=0.1)


def test_huge_ranges_have_a_finite_bound() -> None:
    wide = {"alpha_range": 1e300, "l_f": 5.0, "l_c": 4e9, "delta": 0.05}
    for gamma in (0.0, 1e299):
        assert (
            cts_bound(5000, 10, 0.0, **wide | {"alpha_range": 10.0}) < cts_bound(5000, 10, gamma, **wide) < 20
        )
    assert (
        classwise_bound(5000, 0.05, **wide | {"alpha_range": 10.0}) < classwise_bound(5000, 0.05, **wide) < 20
    )
