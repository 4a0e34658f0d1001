"""Splits and bootstrap weights."""

from __future__ import annotations

import numpy as np
import pytest

from hetcal.planning.subsampling import _BootstrapWeights, _orders


def test_five_repeats_hold_out_every_row() -> None:
    orders = _orders(23, np.random.default_rng(0))
    first = [next(orders) for _ in range(5)]
    assert all(sorted(order) == list(range(23)) for order in first)
    ends = np.concatenate([order[-(5 if i < 3 else 4) :] for i, order in enumerate(first)])
    assert sorted(ends) == list(range(23))


def test_bootstrap_means_ignore_nan() -> None:
    weights = _BootstrapWeights.draw(50, np.random.default_rng(0))
    values = np.random.default_rng(1).normal(size=(1, 50))
    values[0, :10] = np.nan
    w = weights.weight[weights.block][10:]
    assert weights.mean(values)[0] == pytest.approx((w * values[0, 10:, None]).sum(0) / w.sum(0), abs=1e-5)
