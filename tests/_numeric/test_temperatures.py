"""Inverse temperatures of slices: pooled, coupled, cross-validated and shrunk."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax

from hetcal._numeric import temperatures as temperature
from hetcal._numeric.hashing import hash_mix
from hetcal._numeric.rows import prepare
from hetcal._numeric.scalar_solver import SliceSolution
from hetcal._numeric.source import MemorySource
from hetcal._numeric.temperatures import fit_bayes, fit_coupled, fit_cross_validated, fit_pooled

BOUNDS = (0.01, 100.0)


def source_of(z, y, ids=None, n_slices=None, weight=None):
    rows = prepare(np.asarray(z, float), np.asarray(y), weight)
    return MemorySource(rows, ids=None if ids is None else np.asarray(ids), n_slices=n_slices)


@pytest.mark.parametrize(("n", "spread"), [(2000, 0.4), (150, 1.5)])
def test_bayes_agrees_with_a_numeric_posterior(make_sample, n, spread):
    z, y, _ = make_sample(n, 4, 0)
    # Make the temperatures of the classes differ widely.
    z = z * np.exp(spread * np.linspace(-1, 1, 4))[z.argmax(axis=1)][:, None]
    sliced = source_of(z, y)
    fit = fit_bayes(sliced, BOUNDS)
    mu, tau = fit.choice["mu"], fit.choice["tau"]
    assert tau > 0

    def losses(t):
        """Negative log posterior of every slice."""
        nll = -log_softmax(np.exp(t)[sliced.ids][:, None] * z, axis=1)[np.arange(n), y]
        return np.bincount(sliced.ids, nll, 4) + (t - mu) ** 2 / (2 * tau**2)

    t, h = np.log(fit.alpha), 1e-3
    below, middle, above = (losses(t + step) for step in (-h, 0, h))
    bend = (above - 2 * middle + below) / h**2
    np.testing.assert_allclose((above - below) / (2 * h) / bend, 0, atol=3e-6)
    np.testing.assert_allclose(fit.error, fit.alpha / np.sqrt(bend), rtol=1e-4)


def test_bayes_without_any_interior_slice(make_sample):
    z, _, _ = make_sample(60, 3, 0)
    sliced = source_of(z, z.argmax(axis=1))
    fit = fit_bayes(sliced, BOUNDS)
    assert fit.choice["tau"] == 0
    np.testing.assert_array_equal(fit.alpha, 100.0)


def test_hash_is_that_of_splitmix64():
    def mixed(state):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            state = (state ^ state >> shift) * factor % 2**64
        return state ^ state >> 31

    numbers = np.random.default_rng(0).normal(size=50).view(np.uint64)
    expected = [mixed(number) for number in numbers.tolist()]
    np.testing.assert_array_equal(hash_mix(numbers.copy()), np.array(expected, np.uint64))


def test_grid_of_gamma_ends_at_the_farthest_slice_and_inf(make_sample):
    z, y, _ = make_sample(400, 4, 0)
    sliced = source_of(z, y)
    separate, (pooled, _) = fit_coupled(sliced, np.inf, BOUNDS).alpha, fit_pooled(sliced, BOUNDS)
    grid = fit_cross_validated(sliced, BOUNDS, 3).choice["gamma"]
    assert (len(grid), grid[0], grid[-1]) == (11, 0, np.inf)
    assert grid[-2] == pytest.approx(np.abs(separate - pooled).max())
    # The smallest positive value is 1/50 of the largest finite one.
    np.testing.assert_allclose(np.diff(np.log(grid[1:-1])), np.log(50) / 8)


def test_between_slice_variance_excludes_sampling_error():
    t = np.array([-1.0, 0.5, 2.0, 3.5])
    mu, tau2 = temperature._mean_and_variance(t, np.full(4, 0.75))
    assert (mu, tau2) == pytest.approx((t.mean(), t.var(ddof=1) - 0.75))
    variance = np.array([0.1, 0.5, 1.0, 2.0])
    mu, tau2 = temperature._mean_and_variance(t, variance)
    weight = 1 / (variance + tau2)
    assert mu == pytest.approx(np.average(t, weights=weight))
    assert np.sum(weight * (t - mu) ** 2) == pytest.approx(3)  # χ² equals its degrees of freedom
    # The spread does not exceed the sampling error.
    assert temperature._mean_and_variance(t, np.full(4, 10.0)) == pytest.approx((t.mean(), 0))


def test_gamma_zero_is_one_temperature(make_sample):
    z, y, _ = make_sample(100, 3, 0)
    sliced = source_of(z, y)
    fit, (pooled, at_bound, error) = (
        fit_coupled(sliced, 0.0, BOUNDS),
        temperature.fit_one_temperature(sliced, BOUNDS),
    )
    assert (fit.gamma, fit.alpha0, *fit.alpha) == (0, *[pooled] * 4)
    assert fit.at_bound.tolist() == [at_bound] * 3
    assert fit.error.tolist() == [error] * 3


def test_grid_of_a_single_slice(make_sample):
    z, y, _ = make_sample(100, 3, 0)
    assert fit_cross_validated(source_of(z, y).pooled(), BOUNDS, 3).choice["gamma"] == [0, np.inf]


def test_errors_come_from_the_curvature():
    bend, at_bound = np.array([0.25, 4.0, 1.0, 0.0]), np.array([False, False, True, False])
    errors = temperature._errors(SliceSolution(np.ones(4), at_bound, bend))
    np.testing.assert_array_equal(errors, [2, 0.5, np.inf, np.inf])
