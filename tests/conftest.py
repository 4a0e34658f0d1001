"""Synthetic data with known temperatures, for all tests."""

from __future__ import annotations

import os
from typing import Any, NamedTuple, Protocol

import numpy as np
import pytest
from numpy.typing import NDArray

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # tests use no network


class Sample(NamedTuple):
    """Logits, labels drawn from ``softmax(α_ŷ z)``, and that α."""

    z: NDArray[Any]
    y: NDArray[np.int64]
    alpha: NDArray[np.float64]


class MakeSample(Protocol):
    def __call__(
        self,
        n: int,
        n_classes: int,
        seed: int,
        *,
        alpha: float | NDArray[np.float64] | None = None,
        spread: float = 0.4,
        dtype: type = np.float64,
    ) -> Sample: ...


@pytest.fixture(scope="session")
def make_sample() -> MakeSample:
    """Function that draws a sample in which every class is predicted.

    α is the argument `alpha`, or log-normal around 0.6 with standard deviation `spread`.
    """

    def make(
        n: int,
        n_classes: int,
        seed: int,
        *,
        alpha: float | NDArray[np.float64] | None = None,
        spread: float = 0.4,
        dtype: type = np.float64,
    ) -> Sample:
        rng = np.random.default_rng(seed)
        z = rng.normal(scale=1.5, size=(n, n_classes))
        z[np.arange(n), np.arange(n) % n_classes] += rng.uniform(1, 8, size=n)
        if alpha is None:
            alpha = 0.6 * np.exp(spread * rng.normal(size=n_classes))
        truth = np.broadcast_to(np.asarray(alpha, float), (n_classes,))
        z = z.astype(dtype)
        u = z.astype(float) * truth[z.argmax(axis=1)][:, None]
        y = (u + rng.gumbel(size=u.shape)).argmax(axis=1)
        return Sample(z, y, truth)

    return make
