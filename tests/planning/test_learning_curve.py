"""Fits of learning curves: recovery of known curves, constraints, crossings and intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from hetcal.planning.learning_curve import _least_squares, far_sizes, fit_curve, interval_of, last_above

SIZES = np.array([20.0, 50, 120, 300, 700, 1600, 4000])


def fitted(values: NDArray[np.float64], **options: Any) -> Any:
    """Fit to values (S,) with a little noise over ten repeats."""
    noise = np.random.default_rng(0).normal(scale=1e-4, size=(len(values), 10))
    repeats = values[:, None] + noise - noise.mean(axis=1, keepdims=True)
    return fit_curve(SIZES, repeats, values[:, None] + noise, np.random.default_rng(0), **options)


def test_curve_recovers_each_shape() -> None:
    for truth in (
        lambda m: 0.4 + 2 / m,
        lambda m: 0.4 + 30 / (m + 200),
        lambda m: 0.4 + 5 / m + 3 * np.exp(-m / 60),
    ):
        curve = fitted(truth(SIZES))
        assert curve.limit == pytest.approx(0.4, abs=2e-3)
        far = np.array([8000.0, 1e5])
        assert curve.at(far) == pytest.approx(truth(far), abs=2e-3)


def test_a_slow_start_may_exceed_the_measured_sizes() -> None:
    curve = fitted(0.4 + 3000 / (SIZES + 8000))  # m₀ is twice the largest size
    assert curve.at(np.array([16000.0]))[0] == pytest.approx(0.4 + 3000 / 24000, abs=0.03)


def test_the_simplest_shape_is_chosen_if_it_fits() -> None:
    c, a, m0, d, _ = fitted(0.4 + 2 / SIZES).fit
    assert (m0, d) == (0, 0)
    assert (c, a) == (pytest.approx(0.4, abs=1e-6), pytest.approx(2, abs=1e-4))


def test_curve_never_increases_and_respects_the_floor() -> None:
    curve = fitted(0.4 - 2 / SIZES)  # increasing points
    assert (np.diff(curve.at(far_sizes(20))) <= 1e-12).all()
    assert fitted(0.4 + 2 / SIZES, floor=0.41, floors=np.full(10, 0.41)).limit == 0.41


def test_least_squares_agrees_with_scipy() -> None:
    rng = np.random.default_rng(0)
    design = np.stack([np.ones(7), 1 / SIZES, np.exp(-SIZES / 100)], axis=1)
    values, weight, floors = rng.normal(size=(7, 40)), rng.uniform(0.1, 5, 7), rng.normal(size=40)
    solution, rss = _least_squares(design, values, weight, floors)
    root = np.sqrt(weight)
    for b in range(40):
        low = np.array([floors[b], 0, 0])
        best = lsq_linear(design * root[:, None], values[:, b] * root, bounds=(low, np.inf), tol=1e-14)
        assert rss[b] == pytest.approx(2 * best.cost, rel=1e-5)
        assert (solution[:, b] >= low - 1e-12).all()


def test_interpolated_curve_passes_through_the_points() -> None:
    values = 0.4 + 5 / SIZES + np.array([0, 0.3, 0, 0, 0.02, 0, 0])
    curve = fitted(values)
    assert curve.interpolated(SIZES)[0] == pytest.approx(values, abs=1e-9)
    assert curve.interpolated(np.array([1e7]))[0] == pytest.approx(curve.limit, abs=1e-4)


def test_last_above_worked_example() -> None:
    sizes = np.array([10.0, 100, 1000])
    heights = np.array([[2.0, 1, -1], [-1, -1, -1], [1, 1, 1], [-1, 1, -1]])
    # The sign changes halfway between 100 and 1000 in log m.
    assert last_above(heights, sizes) == pytest.approx([316.23, 10, np.inf, 316.23], abs=0.01)


def test_interval_with_infinite_draws() -> None:
    draws = np.concatenate([np.arange(90.0), np.full(10, np.inf)])
    assert interval_of(50.0, draws, 0.9) == (50.0, 4.0, np.inf)
    assert interval_of(-1.0, np.arange(100.0), 0.9).low == -1.0
