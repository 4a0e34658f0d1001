"""Solvers on problems whose answers are known in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from hetcal._numeric import scalar_solver as solvers
from hetcal._numeric.scalar_solver import couple, minimise_slices

BOUNDS = (0.01, 100.0)


def squares(centre, weight):
    """L_k = w (α − c)²/2, with a note of which slices were asked for."""
    asked = []

    def evaluate(alpha, active):
        asked.append(active.copy())
        w = weight[active]
        return w * (alpha[active] - centre[active]), w.copy(), np.zeros(len(w))

    return evaluate, asked


def test_minimisers_inside_and_outside_the_bounds():
    centre = np.array([0.5, 3.0, 1e-4, 500.0, 0.01, 100.0])
    evaluate, _ = squares(centre, np.ones(6))
    found = minimise_slices(evaluate, np.ones(6), BOUNDS)
    np.testing.assert_allclose(found.alpha, np.clip(centre, *BOUNDS), rtol=1e-9)
    np.testing.assert_array_equal(found.at_bound[:4], [False, False, True, True])


@pytest.mark.parametrize("start", [0.01, 0.3, 1.0, 7.0, 100.0, 1e5])
def test_start_does_not_matter(start):
    centre = np.array([0.011, 0.4, 1.0, 9.0, 99.0])
    evaluate, _ = squares(centre, np.array([1e-6, 1.0, 1e6, 2.0, 3.0]))
    np.testing.assert_allclose(minimise_slices(evaluate, np.full(5, start), BOUNDS).alpha, centre, rtol=1e-9)


def test_steep_and_flat_losses():
    # L = cosh(s (log α − m)): Newton alone would leap; brackets must hold it.
    m, s = np.log([0.02, 0.5, 3.0, 60.0]), np.array([8.0, 0.1, 5.0, 2.0])

    def evaluate(alpha, active):
        u = s[active] * (np.log(alpha[active]) - m[active])
        slope = s[active] * np.sinh(u) / alpha[active]
        bend = np.maximum((s[active] ** 2 * np.cosh(u) - s[active] * np.sinh(u)) / alpha[active] ** 2, 1e-12)
        return slope, bend, np.zeros(len(bend))

    found = minimise_slices(evaluate, np.ones(4), BOUNDS)
    np.testing.assert_allclose(np.log(found.alpha), m, atol=1e-6)


def test_converged_slices_are_not_evaluated_again():
    evaluate, asked = squares(np.array([1.0, 50.0]), np.ones(2))
    minimise_slices(evaluate, np.ones(2), BOUNDS)
    np.testing.assert_array_equal(asked[0], [0, 1])
    assert all(a.tolist() == [1] for a in asked[1:])


def test_slice_without_slope_does_not_move():
    found = minimise_slices(lambda _, active: (np.zeros(len(active)),) * 3, np.array([0.7, 3.0]), BOUNDS)
    np.testing.assert_array_equal(found.alpha, [0.7, 3.0])
    assert not found.at_bound.any()


def test_slope_without_curvature_leads_to_the_bound():
    def evaluate(alpha, active):
        return np.array([-1.0, 1.0])[active], np.zeros(len(active)), np.zeros(len(active))

    found = minimise_slices(evaluate, np.ones(2), BOUNDS)
    np.testing.assert_array_equal(found.alpha, [100.0, 0.01])
    assert found.at_bound.all()


def test_slope_within_rounding_does_not_move_a_slice():
    evaluate, asked = squares(np.array([1.0]), np.ones(1))
    found = minimise_slices(lambda a, k: (evaluate(a, k)[0] + 1e-17, *evaluate(a, k)[1:]), np.ones(1), BOUNDS)
    assert found.alpha[0] == 1.0
    assert len(asked) == 2  # one look, in two calls


def test_no_warning_if_the_last_step_converges(monkeypatch):
    evaluate, asked = squares(np.array([3.0]), np.array([2.0]))
    whole = minimise_slices(evaluate, np.ones(1), BOUNDS)
    monkeypatch.setattr(solvers, "_MAX_STEPS", len(asked))
    last = minimise_slices(evaluate, np.ones(1), BOUNDS)
    assert last.alpha[0] == whole.alpha[0] == pytest.approx(3)
    assert not last.at_bound[0]
    assert last.curvature[0] == 2


def test_known_derivatives_save_a_pass():
    evaluate, asked = squares(np.array([3.0, 5.0, 7.0]), np.ones(3))
    start, some = np.ones(3), np.array([0, 2])
    known = evaluate(start, np.arange(3))
    asked.clear()
    plain = minimise_slices(evaluate, start, BOUNDS, active=some)
    passes = len(asked)
    told = minimise_slices(evaluate, start, BOUNDS, active=some, known=known)
    assert len(asked) - passes == passes - 1
    np.testing.assert_array_equal(told.alpha, plain.alpha)
    assert told.alpha[1] == 1  # not among those to minimise


def test_warning_without_convergence(monkeypatch):
    monkeypatch.setattr(solvers, "_MAX_STEPS", 2)
    evaluate, _ = squares(np.array([1.0, 80.0]), np.ones(2))
    with pytest.warns(RuntimeWarning, match="did not converge in 2 steps"):
        found = minimise_slices(evaluate, np.ones(2), BOUNDS)
    assert found.curvature.tolist() == [1, 1]
    monkeypatch.setattr(solvers, "_MAX_STEPS", 1)
    with pytest.warns(RuntimeWarning, match="the centre did not converge in 1 steps"):
        couple(squares(np.array([1.0, 5.0]), np.ones(2))[0], np.array([1.0, 5.0]), 0.5, 4.0)


def test_couple_two_squares_by_hand():
    # Minima 1 and 5, weights 1 and 3, Γ = 0.5: both are clipped, slope (c + .5 − 1)·1 … with α = c ± .5
    best, weight = np.array([1.0, 5.0]), np.array([1.0, 3.0])
    evaluate, _ = squares(best, weight)
    centre, alpha = couple(evaluate, best, 0.5, 2.0)
    # (c − .5 − 1) + 3 (c + .5 − 5) = 0
    assert centre == pytest.approx((1.5 + 13.5) / 4)
    np.testing.assert_allclose(alpha, [centre - 0.5, centre + 0.5])


def test_last_step_is_taken_with_a_loose_tolerance():
    best, weight = np.array([1.0, 5.0]), np.array([1.0, 3.0])
    evaluate, asked = squares(best, weight)
    centre, _ = couple(evaluate, best, 0.5, 2.0, last_step=1.0)
    assert centre == pytest.approx(15 / 4, rel=1e-12)  # one step is enough for squares
    assert len(asked) == 1


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("gamma", [0.0, 0.01, 0.3, 1.0, 3.0])
def test_couple_many_squares(seed, gamma):
    rng = np.random.default_rng(seed)
    best, weight = rng.uniform(0.5, 6, size=12), rng.uniform(0.01, 10, size=12)
    evaluate, _ = squares(best, weight)
    pooled = np.average(best, weights=weight)
    centre, alpha = couple(evaluate, best, gamma, pooled)
    assert np.abs(alpha - centre).max() <= gamma + 1e-12

    def worth(c):
        return ((np.clip(best, c - gamma, c + gamma) - best) ** 2) @ weight

    assert worth(centre) <= worth(np.linspace(best.min(), best.max(), 20_001)[:, None]).min() + 1e-12
    slope = np.sum(weight * (alpha - best))
    assert abs(slope) <= 1e-7 * weight.sum()


@pytest.mark.parametrize("n_slices", [3, 30, 1000])
@pytest.mark.parametrize("gamma", [1e-3, 0.05, 0.4])
@pytest.mark.parametrize("last_step", [None, 5e-3])
def test_couple_slices_of_different_curvature(n_slices, gamma, last_step):
    # L = w (exp(u) − u) / s² with u = s (α − c): a third derivative as large as the second.
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
        off = slope[alpha != c].sum() / curvature[alpha != c].sum()  # what is left of the way
        assert abs(off) < (1e-9 if last_step is None else 1e-6)


def test_couple_returns_the_optimal_centre_nearest_to_the_pooled_fit():
    best = np.array([1.0, 2.0])
    evaluate, asked = squares(best, np.ones(2))
    for pooled, expected in ((1.4, 1.4), (0.2, 0.5), (9.0, 2.5)):
        centre, alpha = couple(evaluate, best, 1.5, pooled)
        assert centre == pytest.approx(expected)
        np.testing.assert_array_equal(alpha, best)
    assert not asked  # nothing to solve


def test_couple_of_one_slice():
    evaluate, _ = squares(np.array([3.0]), np.ones(1))
    centre, alpha = couple(evaluate, np.array([3.0]), 0.25, 1.0)
    assert alpha.tolist() == [3.0]
    assert centre == pytest.approx(2.75)
