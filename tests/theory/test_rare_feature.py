"""Theorem 3.1: the constrained fit, exact probabilities, simulated frequencies and errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from hetcal.theory.rare_feature import ATOMS, RareFeature

SIGNS = np.array([1.0, -1.0, -1.0])
DRAWS = 2000


def total_nll(counts: np.ndarray, weight: np.ndarray, bias: float) -> float:
    return float(counts @ np.logaddexp(0, -SIGNS * (ATOMS @ weight + bias)))


@pytest.mark.parametrize("radius", [0.3, 2.0, 8.0])
@pytest.mark.parametrize("counts", [[50, 40, 3], [5, 0, 2], [5, 4, 0], [1, 100, 1], [100, 1, 7]])
def test_fit_agrees_with_a_general_constrained_optimiser(counts: list[int], radius: float) -> None:
    n = np.array(counts)
    fit = RareFeature.fit_counts([counts], radius)
    reference = minimize(
        lambda t: total_nll(n, t[:2], t[2]),
        [0.1 * radius, -0.1 * radius, 0.0],
        method="SLSQP",
        constraints=[{"type": "ineq", "fun": lambda t: radius**2 - t[:2] @ t[:2]}],
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert total_nll(n, fit.weight[0], fit.bias[0]) <= reference.fun + 1e-9
    assert np.r_[fit.weight[0], fit.bias] == pytest.approx(reference.x, abs=1e-4 * (1 + radius))


@settings(deadline=None)
@given(st.tuples(st.integers(1, 10**5), st.integers(0, 10**5), st.integers(0, 300)), st.floats(0.01, 500))
def test_fit_meets_the_conditions_of_optimality(counts: tuple[int, int, int], radius: float) -> None:
    if counts[1] + counts[2] == 0:
        counts = (counts[0], 1, 0)
    fit = RareFeature.fit_counts([counts], radius)
    margins = SIGNS * fit.scores[0]
    with np.errstate(divide="ignore"):
        log_g = np.log(np.array(counts, dtype=float)) - np.logaddexp(0, margins)
    g = np.exp(log_g - log_g.max())
    pull = (g * SIGNS) @ ATOMS  # the negative gradient with respect to a points along a
    assert np.linalg.norm(fit.weight[0]) == pytest.approx(radius)
    assert (g * SIGNS).sum() == pytest.approx(0, abs=1e-9 * (1 + radius))
    assert pull / np.linalg.norm(pull) == pytest.approx(fit.weight[0] / radius, abs=1e-7 * (1 + radius))


def test_two_point_data_by_hand() -> None:
    # Equal counts of v and −v: a = R v and b = 0 by symmetry, so the score at v' is R/√2.
    fit = RareFeature.fit_counts([[7, 7, 0]], 10.0)
    assert fit.weight[0] == pytest.approx([10, 0])
    assert fit.scores[0] == pytest.approx([10, -10, 10 / np.sqrt(2)])
    assert fit.right[0].tolist() == [True, True, False]
    assert fit.confident(1e-3)[0]
    assert not fit.confident(1e-4)[0]  # exp(−10/√2) is 8.5e-4


def test_one_label_has_no_minimiser_and_no_event() -> None:
    fit = RareFeature.fit_counts([[4, 0, 0], [0, 3, 1], [0, 0, 0]], 5.0)
    assert np.isnan(fit.weight).all()
    assert np.isnan(fit.bias).all()
    assert not fit.confident(0.4).any()
    rates = RareFeature(1).exact(1, epsilon=0.01)
    assert (rates.small_event, rates.large_event) == (0, 0)


def test_fit_to_rows_is_the_fit_to_their_counts() -> None:
    model = RareFeature(2)
    x, y = model.sample(200, rng=4)
    counts = [int((y == 1).sum()), int((x[:, 0] == -1).sum()), int((x[:, 1] > 0).sum())]
    from_rows, from_counts = model.fit(x, y, 20.0), model.fit_counts([counts, [1, 1, 1]], 20.0)
    assert np.array_equal(from_rows.weight, from_counts.weight[0])
    assert from_rows.bias == from_counts.bias[0]
    assert from_rows.scores.shape == (3,)
    assert np.linalg.norm(x, axis=1) == pytest.approx(1)


@pytest.mark.parametrize("n", [1, 7, 20, 1000])
def test_probability_that_the_rare_point_is_seen(n: int) -> None:
    model = RareFeature(n)
    for rows, low, high in ((n, 0.048, 0.0501), (30 * n, 0.776, 0.786), (50 * n, 0.917, 0.924)):
        assert model.seen_probability(rows) == pytest.approx(1 - (1 - 1 / (20 * n)) ** rows)
        assert low < model.seen_probability(rows) < high
    enough = model.rows_to_see(0.9)
    assert model.seen_probability(enough) >= 0.9 > model.seen_probability(enough - 1)
    assert 30 * n < enough <= 47 * n


def test_probabilities_and_promises_by_hand() -> None:
    model = RareFeature(100)
    assert model.probabilities == (0.5, 0.5 - 1 / 2000, 1 / 2000)
    assert (model.stated_small.rows, model.stated_large.rows, model.proved_large.rows) == (100, 3000, 5000)
    assert model.proved_small.probability == pytest.approx(0.95 - 2 / np.e)
    assert RareFeature(74).proved_small.probability == 0  # 0.95 < 2 exp(−0.74)
    assert RareFeature(368).proved_small.probability < 0.9 < RareFeature(369).proved_small.probability
    assert model.statement_radius(0.01) == pytest.approx(6 * np.log(5100))
    assert model.proof_radii(0.5) == pytest.approx((3 * np.log(6), 6 * np.log(5000)))


def test_exact_probabilities_by_hand_for_two_rows() -> None:
    # Two rows: v and −v in either order, 2 · 1/2 · (1/2 − 1/40); v and v' in either order, 2 · 1/2 · 1/40.
    rates = RareFeature(2).exact(2, epsilon=0.01)
    assert rates.small_event == pytest.approx(0.475)
    assert rates.large_event == pytest.approx(0.025)
    assert rates.seen == pytest.approx(1 - (39 / 40) ** 2)


@pytest.mark.parametrize(("n", "epsilon"), [(20, 0.1), (100, 1e-4), (400, 0.1)])
def test_the_corrected_theorem_holds(n: int, epsilon: float) -> None:
    model = RareFeature(n)
    for promise, radius, name in (
        (model.proved_small, model.proof_radii(epsilon)[0], "small_event"),
        (model.proved_large, model.proof_radii(epsilon)[1], "large_event"),
    ):
        exact = getattr(model.exact(promise.rows, epsilon=epsilon, radius=radius), name)
        simulated = model.simulate(promise.rows, draws=DRAWS, epsilon=epsilon, radius=radius, rng=n)
        assert exact >= promise.probability
        assert getattr(simulated, name) >= promise.probability
        assert abs(getattr(simulated, name) - exact) <= 4 * np.sqrt(exact * (1 - exact) / DRAWS)


@pytest.mark.parametrize("n", [5, 50, 500])
def test_thirty_n_rows_fall_short_of_nine_tenths(n: int) -> None:
    model = RareFeature(n)
    exact = model.exact(30 * n, epsilon=0.01)
    simulated = model.simulate(30 * n, draws=DRAWS, epsilon=0.01, rng=n)
    error = np.sqrt(0.777 * 0.223 / DRAWS)
    assert exact.large_event == pytest.approx(model.seen_probability(30 * n), abs=1e-6)
    assert exact.large_event < 0.786 < model.stated_large.probability
    assert abs(simulated.large_event - exact.large_event) <= 4 * error
    assert simulated.large_event < 0.9 - 4 * error


def test_the_small_data_claim_needs_six_rows() -> None:
    assert RareFeature(5).exact(5, epsilon=0.01).small_event < 0.9
    assert all(RareFeature(n).exact(n, epsilon=0.01).small_event > 0.9 for n in (*range(6, 40), 74, 100, 368))


def test_two_thousand_draws_use_the_cached_counts() -> None:
    model = RareFeature(50)
    counts = np.random.default_rng(0).multinomial(2500, model.probabilities, size=DRAWS)
    fit = model.fit_counts(counts, 40.0)
    for row in (0, 17, 1999):
        separate = model.fit_counts(counts[row : row + 1], 40.0)
        assert fit.scores[row] == pytest.approx(separate.scores[0], abs=1e-9)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: RareFeature(0), "n"),
        (lambda: RareFeature(2).statement_radius(0), "epsilon"),
        (lambda: RareFeature(2).proof_radii(1.0), "epsilon"),
        (lambda: RareFeature(2).seen_probability(0), "size"),
        (lambda: RareFeature(2).rows_to_see(1), "probability"),
        (lambda: RareFeature(2).sample(0, 0), "size"),
        (lambda: RareFeature(2).simulate(5, draws=0, epsilon=0.1, rng=0), "draws"),
        (lambda: RareFeature(2).simulate(0, draws=1, epsilon=0.1, rng=0), "size"),
        (lambda: RareFeature(2).simulate(5, draws=1, epsilon=2, rng=0), "epsilon"),
        (lambda: RareFeature(2).exact(0, epsilon=0.1), "size"),
        (lambda: RareFeature(2).exact(3, epsilon=0.1, radius=-1), "radius"),
        (lambda: RareFeature.fit_counts([[1, 2]], 1.0), "counts"),
        (lambda: RareFeature.fit_counts([[1, 2, -1]], 1.0), "counts"),
        (lambda: RareFeature.fit_counts([[1.0, 2, 1]], 1.0), "counts"),
        (lambda: RareFeature.fit_counts([[1, 2, 1]], np.inf), "radius"),
        (lambda: RareFeature.fit([[1, 0, 0]], [1], 1.0), "x and y"),
        (lambda: RareFeature.fit([[1, 0], [0, 1]], [1, 0], 1.0), "x"),
        (lambda: RareFeature.fit([[1, 0], [-1, 0]], [1, 1], 1.0), "y"),
        (lambda: RareFeature.fit_counts([[1, 2, 1]], 1.0).confident(0), "epsilon"),
    ],
)
def test_invalid_arguments(call, name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must "):
        call()


@pytest.mark.parametrize("radius", [1e-9, 1e-3, 1e4, 1e8])
def test_extreme_radii_are_solved(radius: float) -> None:
    fit = RareFeature.fit_counts([[50, 40, 3], [1, 10**9, 1], [10**9, 1, 10**6]], radius)
    assert np.linalg.norm(fit.weight, axis=1) == pytest.approx(radius)
    assert np.isfinite(fit.bias).all()


def test_a_fit_that_does_not_converge_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetcal.theory.rare_feature._NEWTON_STEPS", 1)
    with pytest.raises(RuntimeError, match="intercept must"):
        RareFeature.fit_counts([[3, 2, 1]], 5.0)
