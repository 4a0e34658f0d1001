"""Shrinkage of the parameters of many slices towards their common mean."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from hetcal._numeric.shrinkage import fit_hierarchy
from hetcal._numeric.trust_region import minimise_in_ball


def slices(n, theta, seed=0):
    """Loss and derivatives of logistic regression on ``n[k]`` rows drawn with ``theta[k]``, per slice k."""
    rng = np.random.default_rng(seed)
    x = [rng.normal(1, 1.5, size=m) for m in n]
    right = [rng.random(m) < expit(t[0] * a + t[1]) for m, t, a in zip(n, theta, x, strict=True)]

    def evaluate(params, active):
        parts = []
        for k in active:
            p = expit(params[k, 0] * x[k] + params[k, 1])
            features = np.stack([x[k], np.ones_like(x[k])], axis=1)
            u = features @ params[k]
            loss = (np.logaddexp(0, u) - right[k] * u).sum()
            curve = (features * (p * (1 - p))[:, None]).T @ features
            parts.append((loss, features.T @ (p - right[k]), curve))
        loss, gradient, hessian = zip(*parts, strict=True)
        return np.array(loss), np.stack(gradient), np.stack(hessian)

    return evaluate, np.asarray(n, float)


def test_small_slices_are_shrunk_more():
    rng = np.random.default_rng(1)
    truth = np.array([1.0, 0.5]) + rng.normal(size=(12, 2)) * [0.3, 0.6]
    n = [8000] * 6 + [8] * 6
    evaluate, mass = slices(n, truth)
    fit = fit_hierarchy(evaluate, mass, np.array([1.0, 0.0]))
    separate = minimise_in_ball(evaluate, mass, np.tile(fit.centre, (12, 1)), fit.centre, np.inf)
    np.testing.assert_allclose(fit.theta[:6], separate[:6], atol=0.03)
    shrunk_distance, separate_distance = (
        np.linalg.norm(a - fit.centre, axis=1) for a in (fit.theta[6:], separate[6:])
    )
    assert shrunk_distance.mean() < 0.6 * separate_distance.mean()
    separate_error, shrunk_error = (
        np.linalg.norm(a[6:] - truth[6:], axis=1).mean() for a in (separate, fit.theta)
    )
    assert shrunk_error < separate_error


def test_spread_is_recovered():
    rng = np.random.default_rng(2)
    truth = np.array([0.8, 0.3]) + rng.normal(size=(60, 2)) * [0.2, 0.7]
    evaluate, mass = slices([400] * 60, truth)
    fit = fit_hierarchy(evaluate, mass, np.array([1.0, 0.0]))
    np.testing.assert_allclose(fit.centre, [0.8, 0.3], atol=0.25)
    np.testing.assert_allclose(np.sqrt(np.diag(fit.spread)), [0.2, 0.7], rtol=0.4)
    # The standardised errors of the estimates have a standard deviation of about 1.
    z = (fit.theta - truth) / np.sqrt(np.einsum("spp->sp", fit.errors))
    assert 0.7 < z.std() < 1.4


def test_centre_and_slices_balance_data_spread_and_start():
    rng = np.random.default_rng(3)
    evaluate, mass = slices([60] * 4, np.array([1.0, 0.5]) + rng.normal(size=(4, 2)) * [0.3, 0.6])
    start = np.array([4.0, -3.0])  # so far from the data that its effect on the centre is visible
    fit = fit_hierarchy(evaluate, mass, start)
    pull = np.linalg.inv(fit.spread)
    _, gradient, hessian = evaluate(fit.theta, np.arange(4))
    np.testing.assert_allclose(gradient + (fit.theta - fit.centre) @ pull, 0, atol=0.02)
    to_slices, to_start = pull @ (fit.theta - fit.centre).sum(axis=0), (start - fit.centre) / 2.0**2
    np.testing.assert_allclose(to_slices, -to_start, atol=0.02)
    np.testing.assert_allclose(fit.errors, np.linalg.inv(hessian + pull), rtol=0.01)


def test_equal_slices_are_pooled():
    evaluate, mass = slices([150] * 30, np.tile([0.7, 0.4], (30, 1)))
    fit = fit_hierarchy(evaluate, mass, np.array([1.0, 0.0]))
    assert np.abs(fit.theta - fit.centre).max() < 0.15


@pytest.mark.parametrize("n", [1, 5])
def test_separable_rows_have_finite_parameters(n):
    def evaluate(theta, active):  # every row is correct and has the same log-odds
        x = np.array([2.0, 1.0])
        u = theta[active] @ x
        p = expit(u)
        return (
            n * np.logaddexp(0, -u),
            n * (p - 1)[:, None] * x,
            n * (p * (1 - p))[:, None, None] * np.outer(x, x),
        )

    fit = fit_hierarchy(evaluate, np.full(3, float(n)), np.array([1.0, 0.0]))
    assert np.all(np.abs(fit.theta) < 10)
    assert np.all(fit.theta @ [2.0, 1.0] > 0)
