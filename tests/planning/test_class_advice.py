"""Advice per class: decisions worked by hand, clear cases, and error rates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp

from hetcal.calibrators import TemperatureScaling
from hetcal.planning.class_advice import Advice, _decide, advise

Z95 = 1.6448536269514722


def test_decisions_worked_by_hand() -> None:
    """At 95%, z = 1.645 and a likelihood ratio above 2.645² = 6.996 justifies a separate temperature."""
    own = _decide(100, 16.0, 1.0, 0.05, Z95)
    assert (own.kind, own.more_rows) == (Advice.OWN, 0)
    assert (own.gain, own.cost) == (pytest.approx(15 / 200), pytest.approx(1 / 200))
    assert own.gain_low == pytest.approx((4 - Z95) ** 2 / 200)
    assert own.gain_high == pytest.approx((4 + Z95) ** 2 / 200)
    assert _decide(100, 0.0, 1.0, 0.05, Z95).kind is Advice.POOL  # the gain is at most 1.645²/200 = 0.0135
    # λ = 3 on 10 rows: 6.996/0.3 = 23.3 rows justify a separate temperature.
    towards_own = _decide(10, 4.0, 1.0, 0.01, Z95)
    assert (towards_own.kind, towards_own.more_rows) == (Advice.MORE_ROWS, 14)
    # No evidence on 50 rows: 1.645²/(2·0.01) = 135.3 rows rule out a gain of 0.01.
    towards_pool = _decide(50, 0.5, 1.0, 0.01, Z95)
    assert (towards_pool.kind, towards_pool.more_rows) == (Advice.MORE_ROWS, 86)


@pytest.mark.parametrize(("n", "null_mean"), [(0, 1.0), (50, 0.0)])
def test_a_class_without_rows_or_without_competitors_is_pooled(n: int, null_mean: float) -> None:
    assert _decide(n, 0.0, null_mean, 0.01, Z95).kind is Advice.POOL


def test_gain_scales_with_the_noise() -> None:
    one, two = (_decide(100, 8.0 * noise, noise, 0.01, Z95) for noise in (1.0, 2.0))
    assert one.kind is two.kind is Advice.OWN
    assert two.gain == pytest.approx(2 * one.gain)


def test_advice_in_clear_cases(draw_rows: Any) -> None:
    """Classes 0 and 1 differ, the others share a temperature, and class 7 is predicted only 30 times."""
    alpha = np.array([0.3, 2.5, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8])
    z, y, _ = draw_rows(12000, alpha, 2)
    rare = np.flatnonzero(z.argmax(axis=1) == 7)
    keep = np.setdiff1d(np.arange(12000), rare[30:])
    advice = advise(z[keep], y[keep], list("abcdefgh"), min_gain=0.01, level=0.95)
    assert [c.kind for c in advice[:2]] == [Advice.OWN, Advice.OWN]
    assert [c.kind for c in advice[2:7]].count(Advice.POOL) >= 4
    assert (advice[7].n, advice[7].kind) == (30, Advice.MORE_ROWS)
    assert 20 <= advice[7].more_rows <= 600
    assert str(advice[7].more_rows) in advice[7].advice
    assert [c.name for c in advice] == list("abcdefgh")
    assert advice[0].alpha == pytest.approx(0.3, abs=0.05)
    assert all(c.gain_low <= c.gain <= c.gain_high for c in advice)


def test_gain_is_unbiased(draw_rows: Any) -> None:
    """The mean of the estimates is the NLL with the best shared temperature minus that with the true one."""
    alpha, estimates, true = np.array([0.4, 0.7, 1.0, 1.3]), [], []
    shared = TemperatureScaling().fit(*draw_rows(100_000, alpha, 90)[:2]).alpha_
    for seed in range(30):
        z, y, _ = draw_rows(1500, alpha, seed)
        estimates.append([c.gain for c in advise(z, y, list("abcd"), min_gain=0.01, level=0.95)])
    z, y, _ = draw_rows(100_000, alpha, 91)
    guess = z.argmax(axis=1)
    for k in range(4):
        u, v = (a * z[guess == k] for a in (shared, alpha[k]))
        label_index = np.arange(len(u)), y[guess == k]
        true.append(
            float(np.mean((logsumexp(u, axis=1) - u[label_index]) - (logsumexp(v, axis=1) - v[label_index])))
        )
    assert np.mean(estimates, axis=0) == pytest.approx(true, abs=0.012)


def test_separate_temperatures_are_rarely_advised_for_equal_classes(draw_rows: Any) -> None:
    kinds: list[Advice] = []
    for seed in range(5):
        z, y, _ = draw_rows(3000, np.full(10, 0.8), seed)
        kinds += [c.kind for c in advise(z, y, [str(k) for k in range(10)], min_gain=0.01, level=0.95)]
    assert kinds.count(Advice.OWN) <= 3  # the error rate is about 1% per class


def test_more_rows_lower_the_cost_and_confirm_advice(rows: Any) -> None:
    few = advise(rows.z[:300], rows.y[:300], list("abcd"), min_gain=0.01, level=0.95)
    many = advise(
        np.tile(rows.z[:300], (10, 1)), np.tile(rows.y[:300], 10), list("abcd"), min_gain=0.01, level=0.95
    )
    for a, b in zip(few, many, strict=True):
        assert b.cost < a.cost
        assert b.kind is Advice.OWN or a.kind is not Advice.OWN


def test_one_predicted_class_or_constant_logits_are_pooled() -> None:
    z = np.array([[2.0, 0.0, 0.0], [1.0, 0.5, 0.0], [3.0, 1.0, 0.0]] * 20)
    only = advise(z, np.array([0, 1, 0] * 20), list("abc"), min_gain=0.01, level=0.95)
    assert [c.kind for c in only] == [Advice.POOL] * 3
    assert math.isnan(only[1].gain)
    flat = advise(np.zeros((30, 2)), np.arange(30) % 2, list("ab"), min_gain=0.01, level=0.95)
    assert [c.kind for c in flat] == [Advice.POOL] * 2
