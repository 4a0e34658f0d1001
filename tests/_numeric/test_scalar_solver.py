"""Solvers for problems whose solutions are known in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from hetcal._numeric import scalar_solver as solvers
from hetcal._numeric.scalar_solver import couple, minimise_slices

BOUNDS = (0.01, 100.0)


def squares(centre, weight):
    """Derivatives of L_k = w (α − c)²/2, and a list of the active slices of every call."""
    calls = []

    def evaluate(alpha, active):
        calls.append(active.copy())
        w = weight[active]
        return w * (alpha[active] - centre[active]), w.copy(), np.zeros(len(w))

    return evaluate, calls


def test_minimisers_inside_and_outside_the_bounds():
    centre = np.array([0.5, 3.0, 1e-4, 500.0, 0.01, 100.0])
    evaluate, _ = squares(centre, np.ones(6))
    solution = minimise_slices(evaluate, np.ones(6), BOUNDS)
    np.testing.assert_allclose(solution.alpha, np.clip(centre, *BOUNDS), rtol=1e-9)
    np.testing.assert_array_equal(solution.at_bound[:4], [False, False, True, True])


@pytest.mark.parametrize("start", [0.01, 0.3, 1.0, 7.0, 100.0, 1e5])
def test_start_does_not_matter(start):
    centre = np.array([0.011, 0.4, 1.0, 9.0, 99.0])
    evaluate, _ = squares(centre, np.array([1e-6, 1.0, 1e6, 2.0, 3.0]))
    np.testing.assert_allclose(minimise_slices(evaluate, np.full(5, start), BOUNDS).alpha, centre, rtol=1e-9)


def test_steep_and_flat_losses():
    # L = cosh(s (log α − m)): Newton steps alone would overshoot, so bracketing is needed.
    m, s = np.log([0.02, 0.5, 3.0, 60.0]), np.array([8.0, 0.1, 5.0, 2.0])

    def evaluate(alpha, active):
        u = s[active] * (np.log(alpha[active]) - m[active])
        slope = s[active] * np.sinh(u) / alpha[active]
        bend = np.maximum((s[active] ** 2 * np.cosh(u) - s[active] * np.sinh(u)) / alpha[active] ** 2, 1e-12)
        return slope, bend, np.zeros(len(bend))

    solution = minimise_slices(evaluate, np.ones(4), BOUNDS)
    np.testing.assert_allclose(np.log(solution.alpha), m, atol=1e-6)


def test_converged_slices_are_not_evaluated_again():
    evaluate, calls = squares(np.array([1.0, 50.0]), np.ones(2))
    minimise_slices(evaluate, np.ones(2), BOUNDS)
    np.testing.assert_array_equal(calls[0], [0, 1])
    assert all(a.tolist() == [1] for a in calls[1:])


def test_slice_without_slope_does_not_move():
    solution = minimise_slices(lambda _, active: (np.zeros(len(active)),) * 3, np.array([0.7, 3.0]), BOUNDS)
    np.testing.assert_array_equal(solution.alpha, [0.7, 3.0])
    assert not solution.at_bound.any()


def test_slope_without_curvature_leads_to_the_bound():
    def evaluate(alpha, active):
        return np.array([-1.0, 1.0])[active], np.zeros(len(active)), np.zeros(len(active))

    solution = minimise_slices(evaluate, np.ones(2), BOUNDS)
    np.testing.assert_array_equal(solution.alpha, [100.0, 0.01])
    assert solution.at_bound.all()


def test_slope_within_rounding_does_not_move_a_slice():
    evaluate, calls = squares(np.array([1.0]), np.ones(1))
    solution = minimise_slices(
        lambda a, k: (evaluate(a, k)[0] + 1e-17, *evaluate(a, k)[1:]), np.ones(1), BOUNDS
    )
    assert solution.alpha[0] == 1.0
    assert len(calls) == 2  # one evaluation, which calls the function twice


def test_no_warning_if_the_last_step_converges(monkeypatch):
    evaluate, calls = squares(np.array([3.0]), np.array([2.0]))
    unlimited = minimise_slices(evaluate, np.ones(1), BOUNDS)
    monkeypatch.setattr(solvers, "_MAX_STEPS", len(calls))
    limited = minimise_slices(evaluate, np.ones(1), BOUNDS)
    assert limited.alpha[0] == unlimited.alpha[0] == pytest.approx(3)
    assert not limited.at_bound[0]
    assert limited.curvature[0] == 2


def test_known_derivatives_save_a_pass():
    evaluate, calls = squares(np.array([3.0, 5.0, 7.0]), np.ones(3))
    start, subset = np.ones(3), np.array([0, 2])
    derivatives = evaluate(start, np.arange(3))
    calls.clear()
    solution = minimise_slices(evaluate, start, BOUNDS, active=subset)
    passes = len(calls)
    with_derivatives = minimise_slices(evaluate, start, BOUNDS, active=subset, known=derivatives)
    assert len(calls) - passes == passes - 1
    np.testing.assert_array_equal(with_derivatives.alpha, solution.alpha)
    assert with_derivatives.alpha[1] == 1  # slice 1 is not active


def test_warning_without_convergence(monkeypatch):
    monkeypatch.setattr(solvers, "_MAX_STEPS", 2)
    evaluate, _ = squares(np.array([1.0, 80.0]), np.ones(2))
    with pytest.warns(RuntimeWarning, match="did not converge"):
        solution = minimise_slices(evaluate, np.ones(2), BOUNDS)
    assert solution.curvature.tolist() == [1, 1]
    monkeypatch.setattr(solvers, "_MAX_STEPS", 1)
    with pytest.warns(RuntimeWarning, match="shared temperature"):
        couple(squares(np.array([1.0, 5.0]), np.ones(2))[0], np.array([1.0, 5.0]), 0.5, 4.0)


def test_couple_two_squares_by_hand():
    # Minima 1 and 5, weights 1 and 3, Γ = 0.5: both slices are clipped, α = (c − 0.5, c + 0.5).
    best, weight = np.array([1.0, 5.0]), np.array([1.0, 3.0])
    evaluate, _ = squares(best, weight)
    centre, alpha = couple(evaluate, best, 0.5, 2.0)
    # The slopes sum to zero: (c − 0.5 − 1) + 3 (c + 0.5 − 5) = 0.
    assert centre == pytest.approx((1.5 + 13.5) / 4)
    np.testing.assert_allclose(alpha, [centre - 0.5, centre + 0.5])


def test_a_loose_tolerance_allows_one_step():
    best, weight = np.array([1.0, 5.0]), np.array([1.0, 3.0])
    evaluate, calls = squares(best, weight)
    centre, _ = couple(evaluate, best, 0.5, 2.0, last_step=1.0)
    assert centre == pytest.approx(15 / 4, rel=1e-12)  # one step is enough for squares
    assert len(calls) == 1


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("gamma", [0.0, 0.01, 0.3, 1.0, 3.0])
def test_couple_many_squares(seed, gamma):
    rng = np.random.default_rng(seed)
    best, weight = rng.uniform(0.5, 6, size=12), rng.uniform(0.01, 10, size=12)
    evaluate, _ = squares(best, weight)
    pooled = np.average(best, weights=weight)
    centre, alpha = couple(evaluate, best, gamma, pooled)
    assert np.abs(alpha - centre).max() <= gamma + 1e-12

    def loss(c):
        return ((np.clip(best, c - gamma, c + gamma) - best) ** 2) @ weight

    assert loss(centre) <= loss(np.linspace(best.min(), best.max(), 20_001)[:, None]).min() + 1e-12
    slope = np.sum(weight * (alpha - best))
    assert abs(slope) <= 1e-7 * weight.sum()


@pytest.mark.parametrize("n_slices", [3, 30, 1000])
@pytest.mark.parametrize("gamma", [1e-3, 0.05, 0.4])
@pytest.mark.parametrize("last_step", [None, 5e-3])
def test_couple_slices_of_different_curvature(n_slices, gamma, last_step):
    # L = w (exp(u) − u) / s² with u = s (α − c): the third derivative is as large as the second.
    rng = np.random.default_rng(n_slices)
    c, w, s = rng.uniform(0.5, 2, n_slices), rng.uniform(0.01, 100, n_slices), rng.uniform(-3, 3, n_slices)

    def evaluate(alpha, active):
        e = np.exp(s[active] * (alpha[active] - c[active]))
        return w[active] * (e - 1) / s[active], w[active] * e, w[active] * s[active] * e

    everywhere = np.arange(n_slices)
    for start in (0.5, 1.1, 2.0):
        centre, alpha = couple(evaluate, c, gamma, start, last_step=last_step)
        np.testing.assert_array_equal(alpha, np.clip(c, centre - gamma, centre + gamma))
        slope, curvature, _ = evaluate(alpha, everywhere)
        off = slope[alpha != c].sum() / curvature[alpha != c].sum()  # remaining Newton step of the centre
        assert abs(off) < (1e-9 if last_step is None else 1e-6)


def test_couple_returns_the_optimal_centre_nearest_to_the_pooled_fit():
    best = np.array([1.0, 2.0])
    evaluate, calls = squares(best, np.ones(2))
    for pooled, expected in ((1.4, 1.4), (0.2, 0.5), (9.0, 2.5)):
        centre, alpha = couple(evaluate, best, 1.5, pooled)
        assert centre == pytest.approx(expected)
        np.testing.assert_array_equal(alpha, best)
    assert not calls  # nothing to solve


def test_couple_of_one_slice():
    evaluate, _ = squares(np.array([3.0]), np.ones(1))
    centre, alpha = couple(evaluate, np.array([3.0]), 0.25, 1.0)
    assert alpha.tolist() == [3.0]
    assert centre == pytest.approx(2.75)
