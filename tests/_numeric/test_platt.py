"""Platt scaling of noisy labels by all rows together."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from hetcal._numeric.label_models import NoisyLabels, SoftLabels
from hetcal._numeric.passes import top_margin
from hetcal._numeric.platt import fit_platt
from hetcal._numeric.rows import prepare
from hetcal._numeric.source import MemorySource

NOISE = np.array([[0.6, 0.2, 0.2], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])


def noisy_rows(n: int, seed: int) -> MemorySource:
    """Rows that are over-confident in class 0, which is also the only class with noise."""
    rng = np.random.default_rng(seed)
    true = rng.integers(3, size=n)
    z = rng.normal(size=(n, 3)) + 2 * np.eye(3)[true]
    z[z.argmax(axis=1) == 0] *= 2.5
    observed = (rng.random((n, 1)) > NOISE[true].cumsum(axis=1)[:, :-1]).sum(axis=1)
    return MemorySource(prepare(z, observed, None, NoisyLabels(observed, NOISE)))


def test_the_fit_lies_between_the_likelihood_and_the_unbiased_loss():
    source = noisy_rows(30_000, 0)
    rows = source.rows
    x, _ = top_margin(rows.z, rows.guess)
    correct = np.linalg.inv(NOISE)[rows.y, rows.guess]  # its expectation is the correctness
    known = rows.label_model.correctness(rows.z, rows.guess)

    def unbiased(theta: np.ndarray) -> float:
        u = theta[0] * x + theta[1]
        return float(np.mean(np.logaddexp(0, u) - correct * u))

    def noisy(theta: np.ndarray) -> float:
        u = theta[0] * x + theta[1]
        return float(np.mean(np.logaddexp(0, u) - known.pull(u)[0]))

    options = {"method": "Nelder-Mead", "options": {"xatol": 1e-9, "fatol": 1e-14}}
    robust, likely = (minimize(loss, [1.0, 0.0], **options).x for loss in (unbiased, noisy))
    theta, _ = fit_platt(source)
    share = (theta - robust) / (likely - robust)
    assert share[0] == pytest.approx(share[1], rel=1e-3)
    assert 0 < share[0] < 0.2


def test_rows_without_noise_have_the_usual_fit():
    rows = noisy_rows(500, 1).rows
    certain = MemorySource(prepare(rows.z, rows.y, None))
    soft = MemorySource(prepare(rows.z, rows.y, None, SoftLabels(np.eye(3)[rows.y])))
    noiseless = MemorySource(prepare(rows.z, rows.y, None, NoisyLabels(rows.y, np.eye(3))))
    expected, _ = fit_platt(certain)
    for source in (soft, noiseless):
        np.testing.assert_allclose(fit_platt(source)[0], expected, rtol=1e-5)


def test_few_rows_give_a_finite_fit():
    for seed in range(30):
        assert np.isfinite(fit_platt(noisy_rows(6, seed))[0]).all()
