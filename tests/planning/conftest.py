"""Rows with known class-wise temperatures, and plans for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logsumexp

from hetcal.planning import ValidationPlan, plan_validation_size


class Rows(NamedTuple):
    z: NDArray[np.float64]
    y: NDArray[np.int64]
    nll: float  # NLL of the true probabilities on these rows


def _draw(n: int, alpha: NDArray[np.float64], seed: int) -> Rows:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, len(alpha)))
    z[np.arange(n), rng.integers(len(alpha), size=n)] += rng.uniform(0.5, 3, size=n)
    u = alpha[z.argmax(axis=1)][:, None] * z
    y = (u + rng.gumbel(size=u.shape)).argmax(axis=1)
    return Rows(z, y, float(np.mean(logsumexp(u, axis=1) - u[np.arange(n), y])))


@pytest.fixture(scope="session")
def draw_rows() -> Callable[[int, NDArray[np.float64], int], Rows]:
    """Function of (n, alpha, seed) that draws labels from softmax(α_ŷ z)."""
    return _draw


@pytest.fixture(scope="session")
def alpha() -> NDArray[np.float64]:
    return np.array([0.5, 0.5, 1.6, 1.0])


@pytest.fixture(scope="session")
def rows(alpha: NDArray[np.float64]) -> Rows:
    """3,000 rows of four classes with different temperatures."""
    return _draw(3000, alpha, seed=0)


@pytest.fixture(scope="session")
def plan(rows: Rows) -> ValidationPlan:
    return plan_validation_size(rows.z, rows.y, n_repeats=10, class_names=["a", "b", "c", "d"])


@pytest.fixture(scope="session")
def equal_classes_plan() -> ValidationPlan:
    """Plan for classes that share one temperature."""
    z, y, _ = _draw(2000, np.full(4, 0.8), seed=1)
    return plan_validation_size(z, y, n_repeats=5)
