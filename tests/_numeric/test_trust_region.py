"""Minimisation in balls: quadratics with closed-form solutions, and optimality conditions."""

from __future__ import annotations

import numpy as np
import pytest

from hetcal._numeric import trust_region
from hetcal._numeric.trust_region import (
    LastEvaluation,
    is_error_free,
    minimise_coupled,
    minimise_in_ball,
    minimise_pooled,
)


def quadratics(best, hessian, floor=1.0):
    """L_k = floor + (θ − b)ᵀ H (θ − b) / 2."""

    def evaluate(theta, active):
        away = theta[active] - best[active]
        push = np.einsum("spq,sq->sp", hessian[active], away)
        return floor + 0.5 * np.einsum("sp,sp->s", away, push), push, hessian[active].copy()

    return evaluate


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(5, 3, 3))
    return rng.normal(scale=2, size=(5, 3)), np.einsum("spq,srq->spr", root, root) + 0.1 * np.eye(3)


def test_unconstrained_minimisers(problem):
    best, hessian = problem
    theta = minimise_in_ball(quadratics(best, hessian), np.ones(5), np.zeros((5, 3)), np.zeros(3), np.inf)
    np.testing.assert_allclose(theta, best, atol=1e-7)


@pytest.mark.parametrize("radius", [1e-3, 0.3, 1.0, 2.5, 50.0])
def test_optimality_in_the_ball(problem, radius):
    best, hessian = problem
    centre = np.array([0.2, -0.1, 0.4])
    evaluate = quadratics(best, hessian)
    theta = minimise_in_ball(evaluate, np.ones(5), np.tile(centre, (5, 1)), centre, radius)
    away = theta - centre
    length = np.linalg.norm(away, axis=1)
    assert length.max() <= radius * (1 + 1e-12)
    slope = evaluate(theta, np.arange(5))[1]
    inside = length < radius * (1 - 1e-9)
    np.testing.assert_allclose(slope[inside], 0, atol=1e-5)
    # On the boundary, the negative gradient points outwards: −∇L = λ (θ − centre), λ ≥ 0.
    pull = -np.einsum("sp,sp->s", slope, away) / length**2
    assert np.all(pull[~inside] >= 0)
    np.testing.assert_allclose(
        -slope[~inside], (pull[:, None] * away)[~inside], atol=1e-5 * (1 + np.abs(slope).max())
    )


def test_identity_hessian_is_a_projection():
    best = np.array([[3.0, 4.0], [0.3, 0.4]])
    theta = minimise_in_ball(
        quadratics(best, np.tile(np.eye(2), (2, 1, 1))), np.ones(2), np.zeros((2, 2)), np.zeros(2), 1.0
    )
    np.testing.assert_allclose(theta, [[0.6, 0.8], [0.3, 0.4]], atol=1e-12)


def test_pooled_minimiser(problem):
    best, hessian = problem
    theta, loss = minimise_pooled(quadratics(best, hessian), np.ones(5), np.zeros(3))
    expected = np.linalg.solve(hessian.sum(axis=0), np.einsum("spq,sq->p", hessian, best))
    np.testing.assert_allclose(theta, expected, atol=1e-7)
    away = expected - best
    assert loss == pytest.approx(5 + 0.5 * np.einsum("sp,spq,sq->", away, hessian, away))


def test_two_balls_by_hand():
    # Identity Hessians, minima (0, 0) and (4, 0), Γ = 1: the centre lies halfway, and each slice one unit
    # closer to its minimum.
    best = np.array([[0.0, 0.0], [4.0, 0.0]])
    centre, theta = minimise_coupled(
        quadratics(best, np.tile(np.eye(2), (2, 1, 1))), np.ones(2), np.array([2.0, 0.0]), 1.0
    )
    np.testing.assert_allclose(centre, [2, 0], atol=1e-8)
    np.testing.assert_allclose(theta, [[1, 0], [3, 0]], atol=1e-8)


@pytest.mark.parametrize("gamma", [0.05, 0.5, 2.0])
def test_coupled_optimality(problem, gamma):
    best, hessian = problem
    evaluate = quadratics(best, hessian)
    pooled, _ = minimise_pooled(evaluate, np.ones(5), np.zeros(3))
    centre, theta = minimise_coupled(evaluate, np.ones(5), pooled, gamma)
    assert np.linalg.norm(theta - centre, axis=1).max() <= gamma * (1 + 1e-12)
    slope = evaluate(theta, np.arange(5))[1]
    np.testing.assert_allclose(slope.sum(axis=0), 0, atol=1e-5)  # the centre is stationary


def test_extremes(problem):
    best, hessian = problem
    evaluate = quadratics(best, hessian)
    pooled, _ = minimise_pooled(evaluate, np.ones(5), np.zeros(3))
    centre, theta = minimise_coupled(evaluate, np.ones(5), pooled, 0.0)
    np.testing.assert_array_equal(theta, np.tile(pooled, (5, 1)))
    centre, theta = minimise_coupled(evaluate, np.ones(5), pooled, np.inf)
    np.testing.assert_array_equal(centre, pooled)
    np.testing.assert_allclose(theta, best, atol=1e-7)


def test_loss_without_minimiser_stops_near_zero():
    def evaluate(theta, active):
        e = np.exp(-theta[active])
        return e[:, 0], -e, e[:, :, None]

    theta = minimise_in_ball(evaluate, np.ones(1), np.zeros((1, 1)), np.zeros(1), np.inf)
    assert 18 < theta[0, 0] < 25


def test_flat_direction_returns_to_the_centre():
    hessian = np.array([[[1.0, 0.0], [0.0, 0.0]]])
    evaluate, centre = quadratics(np.array([[2.0, 0.0]]), hessian), np.array([0.0, 3.0])
    theta = minimise_in_ball(evaluate, np.ones(1), np.array([[0.0, 7.0]]), centre, np.inf)
    np.testing.assert_allclose(theta, [[2.0, 3.0]], atol=1e-6)


def test_warning_without_convergence(monkeypatch):
    monkeypatch.setattr(trust_region, "_MAX_STEPS", 1)

    def evaluate(theta, active):
        t = theta[active]
        return np.cosh(t[:, 0]), np.sinh(t), np.cosh(t)[:, :, None]

    with pytest.warns(RuntimeWarning, match="did not converge"):
        minimise_in_ball(evaluate, np.ones(1), np.full((1, 1), 3.0), np.zeros(1), np.inf)


def test_is_error_free():
    assert is_error_free(0.69, 1.0)
    assert not is_error_free(0.70, 1.0)  # a loss above log 2 allows a wrong row of weight 1
    assert not is_error_free(0.69, 0.5)


def test_long_steps_are_shortened():
    hessian, gradient = np.tile(np.eye(2), (2, 1, 1)), np.array([[-300.0, -400.0], [-3.0, -4.0]])
    step = trust_region._model_step(np.zeros((2, 2)), gradient, hessian, np.inf, np.zeros(2))
    np.testing.assert_allclose(step, [[6.0, 8.0], [3.0, 4.0]])  # a step from the centre has length at most 10
    offset = np.array([[3.0, 4.0], [0.0, 0.0]])
    step = trust_region._model_step(offset, gradient, hessian, np.inf, np.zeros(2))
    # The limit for the first slice is 10 (1 + 5 + 4).
    np.testing.assert_allclose(step, [[60.0, 80.0], [3.0, 4.0]])


def test_slice_does_not_move_without_descent():
    start = np.array([[0.3, -0.7], [1.0, 2.0]])

    def evaluate(theta, active):
        moved = (theta[active] != start[active]).any(axis=1)
        return 1.0 + moved, np.ones((len(active), 2)), np.tile(np.eye(2), (len(active), 1, 1))

    theta = minimise_in_ball(evaluate, np.ones(2), start, np.zeros(2), np.inf)
    np.testing.assert_array_equal(theta, start)


def test_last_evaluation_is_reused():
    calls = []

    def evaluate(theta, active):
        calls.append(active.tolist())
        t = theta[active]
        return (t**2).sum(axis=1), 2 * t, np.tile(2 * np.eye(2), (len(active), 1, 1))

    cached, theta, every = LastEvaluation(evaluate, 3, 2), np.arange(6.0).reshape(3, 2), np.arange(3)
    first = cached(theta, every)
    first[0][:] = 0  # results are copies
    theta[1] += 1
    for from_cache, expected in zip(cached(theta, every), evaluate(theta, every), strict=True):
        np.testing.assert_array_equal(from_cache, expected)
    assert calls == [[0, 1, 2], [1], [0, 1, 2]]
    cached(theta, np.array([0, 2]))
    assert len(calls) == 3
