"""Very low logits are clipped only if that clearly helps one temperature."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

import hetcal
from hetcal._numeric.clipping import fit_clipped
from hetcal._numeric.rows import prepare
from hetcal._numeric.source import MemorySource


@pytest.fixture(scope="module")
def extreme() -> tuple[np.ndarray, np.ndarray]:
    """Calibrated logits, of which every tenth is far too low, so that its label occurs too often."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(2000, 4)) * 2
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    z[rng.random(z.shape) < 0.1] -= 60
    return z, y


def fit(z: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    return fit_clipped(MemorySource(prepare(z, y, None)))


def test_the_temperature_is_the_best_one_for_the_clipped_logits(
    extreme: tuple[np.ndarray, np.ndarray],
) -> None:
    z, y = extreme
    alpha, limit = fit(z, y)
    level = limit / alpha
    assert level in (28, 20, 14, 10, 7, 5)
    clipped = np.maximum(z - z.max(axis=1, keepdims=True), -level)

    def loss(alpha: float) -> float:
        return -float(log_softmax(alpha * clipped, axis=1)[np.arange(len(y)), y].mean())

    def unclipped(alpha: float) -> float:
        return -float(log_softmax(alpha * z, axis=1)[np.arange(len(y)), y].mean())

    assert alpha == pytest.approx(minimize_scalar(loss, bounds=(0.01, 5), method="bounded").x, rel=1e-4)
    assert loss(alpha) < minimize_scalar(unclipped, bounds=(0.001, 5), method="bounded").fun - 0.1


def test_the_order_of_the_rows_and_batches_do_not_matter(extreme: tuple[np.ndarray, np.ndarray]) -> None:
    z, y = extreme
    order = np.random.default_rng(1).permutation(len(y))
    assert fit(z[order], y[order]) == pytest.approx(fit(z, y), rel=1e-9)
    batches = hetcal.Batches(lambda: ((z[i : i + 300], y[i : i + 300]) for i in range(0, len(y), 300)))
    in_batches, in_memory = hetcal.MatrixScaling().fit(batches), hetcal.MatrixScaling().fit(z, y)
    assert in_batches.limit_ == pytest.approx(in_memory.limit_, rel=1e-9)
    np.testing.assert_allclose(in_batches.predict_proba(z), in_memory.predict_proba(z), atol=1e-8)


def test_logits_are_not_clipped_without_need(extreme: tuple[np.ndarray, np.ndarray]) -> None:
    z, y = extreme
    assert np.isinf(fit(np.maximum(z, -10), y)[1])  # no extreme logits
    sharp = z.argmax(axis=1)  # every label has the largest logit, so low logits are right
    assert np.isinf(fit(z, sharp)[1])
    masked = np.where(z < -40, -np.inf, z)
    y = np.where(np.isinf(masked[np.arange(len(y)), y]), masked.argmax(axis=1), y)
    assert np.isinf(fit(np.nan_to_num(masked, neginf=-1e6), y)[1])  # masks are not low logits
