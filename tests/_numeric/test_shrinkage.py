"""Shrinkage of many slices to a common mean."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from hetcal._numeric.shrinkage import fit_hierarchy
from hetcal._numeric.trust_region import minimise_in_ball


def slices(n, theta, seed=0):
    """Loss with derivatives of logistic rows, ``n[k]`` of them drawn with ``theta[k]``."""
    rng = np.random.default_rng(seed)
    x = [rng.normal(1, 1.5, size=m) for m in n]
    right = [rng.random(m) < expit(t[0] * a + t[1]) for m, t, a in zip(n, theta, x, strict=True)]

    def evaluate(at, active):
        parts = []
        for k in active:
            p = expit(at[k, 0] * x[k] + at[k, 1])
            features = np.stack([x[k], np.ones_like(x[k])], axis=1)
            u = features @ at[k]
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
    found = fit_hierarchy(evaluate, mass, np.array([1.0, 0.0]))
    alone = minimise_in_ball(evaluate, mass, np.tile(found.centre, (12, 1)), found.centre, np.inf)
    np.testing.assert_allclose(found.theta[:6], alone[:6], atol=0.03)
    near, far = (np.linalg.norm(a - found.centre, axis=1) for a in (found.theta[6:], alone[6:]))
    assert near.mean() < 0.6 * far.mean()
    own, shrunk = (np.linalg.norm(a[6:] - truth[6:], axis=1).mean() for a in (alone, found.theta))
    assert shrunk < own


def test_spread_is_recovered():
    rng = np.random.default_rng(2)
    truth = np.array([0.8, 0.3]) + rng.normal(size=(60, 2)) * [0.2, 0.7]
    evaluate, mass = slices([400] * 60, truth)
    found = fit_hierarchy(evaluate, mass, np.array([1.0, 0.0]))
    np.testing.assert_allclose(found.centre, [0.8, 0.3], atol=0.25)
    np.testing.assert_allclose(np.sqrt(np.diag(found.spread)), [0.2, 0.7], rtol=0.4)
    # Errors say how far the estimates are off.
    z = (found.theta - truth) / np.sqrt(np.einsum("spp->sp", found.errors))
    assert 0.7 < z.std() < 1.4


def test_centre_and_slices_balance_data_spread_and_start():
    rng = np.random.default_rng(3)
    evaluate, mass = slices([60] * 4, np.array([1.0, 0.5]) + rng.normal(size=(4, 2)) * [0.3, 0.6])
    start = np.array([4.0, -3.0])  # so far off that it can be seen to draw the centre
    found = fit_hierarchy(evaluate, mass, start)
    pull = np.linalg.inv(found.spread)
    _, gradient, hessian = evaluate(found.theta, np.arange(4))
    np.testing.assert_allclose(gradient + (found.theta - found.centre) @ pull, 0, atol=0.02)
    to_slices, to_start = pull @ (found.theta - found.centre).sum(axis=0), (start - found.centre) / 2.0**2
    np.testing.assert_allclose(to_slices, -to_start, atol=0.02)
    np.testing.assert_allclose(found.errors, np.linalg.inv(hessian + pull), rtol=0.01)


def test_equal_slices_are_pooled():
    evaluate, mass = slices([150] * 30, np.tile([0.7, 0.4], (30, 1)))
    found = fit_hierarchy(evaluate, mass, np.array([1.0, 0.0]))
    assert np.abs(found.theta - found.centre).max() < 0.15


@pytest.mark.parametrize("n", [1, 5])
def test_separable_rows_have_finite_parameters(n):
    def evaluate(theta, active):  # every row is right, at the same log-odds
        x = np.array([2.0, 1.0])
        u = theta[active] @ x
        p = expit(u)
        return (
            n * np.logaddexp(0, -u),
            n * (p - 1)[:, None] * x,
            n * (p * (1 - p))[:, None, None] * np.outer(x, x),
        )

    found = fit_hierarchy(evaluate, np.full(3, float(n)), np.array([1.0, 0.0]))
    assert np.all(np.abs(found.theta) < 10)
    assert np.all(found.theta @ [2.0, 1.0] > 0)
