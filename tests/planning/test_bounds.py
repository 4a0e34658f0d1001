"""Theorem 4.1 for the NLL, and its comparison with data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from hetcal import examples
from hetcal.calibrators import ClassWiseTemperatureScaling, PlattScaling, TemperatureScaling
from hetcal.planning import bound_check
from hetcal.planning.bounds import NllBound, gamma_of, logit_norm
from hetcal.theory import cts_bound


def test_nll_bound_rescales_the_theorem() -> None:
    bound = NllBound(10, 0.5, 20.0, (0.1, 10.0), 0.05)
    scale = math.log(10) + math.sqrt(2) * 10 * 20
    assert bound.scale == pytest.approx(scale)
    plain = cts_bound(5000, 10, 0.5, alpha_range=(0.1, 10), l_f=20, l_c=math.sqrt(2) / scale, delta=0.05)
    assert bound.excess(5000) == pytest.approx(scale * plain)
    free = NllBound(10, math.inf, 20.0, (0.1, 10.0), 0.05)
    assert free.excess(5000) == NllBound(10, 4.95, 20.0, (0.1, 10.0), 0.05).excess(5000)


@pytest.mark.parametrize("excess", [10.0, 0.1, 0.02, 0.005])
def test_rows_invert_the_bound(excess: float) -> None:
    bound = NllBound(10, math.inf, 20.0, (0.1, 10.0), 0.05)
    rows = int(bound.rows(excess))
    assert bound.excess(rows) <= excess < bound.excess(round(0.998 * rows))


def test_theorem_applies_to_fixed_gamma_only() -> None:
    assert gamma_of(TemperatureScaling()) == 0
    assert gamma_of(ClassWiseTemperatureScaling(0.1)) == 0.1
    assert gamma_of(ClassWiseTemperatureScaling()) == math.inf
    for calibrator in (
        ClassWiseTemperatureScaling("bayes"),
        ClassWiseTemperatureScaling("cv"),
        PlattScaling(),
    ):
        assert gamma_of(calibrator) is None


def test_logit_norm_of_centred_rows() -> None:
    assert logit_norm(np.array([[3.0, 5.0], [7.0, 7.0]])) == pytest.approx(math.sqrt(2))


def test_norm_of_huge_logits_does_not_overflow() -> None:
    z = np.array([[3e37, -4e37], [0.0, 0.0]], np.float32)
    (check,) = bound_check(z, [0, 1], z, [0, 1], gammas=[0.1])
    assert check.l_f == pytest.approx(np.sqrt(2) * 3.5e37)


def test_measured_excess_is_below_the_bound() -> None:
    data = examples.load_example("cifar10-noisy")
    assert data.test is not None
    checks = bound_check(data.val.logits, data.val.labels, data.test.logits, data.test.labels)
    assert [c.gamma for c in checks] == [0.0, 0.1, math.inf]
    assert [c.regime for c in checks] == ["shared", "class-wise", "class-wise"]
    for c in checks:
        assert 0 <= c.excess <= c.bound
        assert c.holds
        assert c.ratio > 1e4
        assert (c.n, c.n_judged) == (5000, 10000)
    assert checks[2].excess < 0.005
    assert checks[2].to_dict()["ratio"] == checks[2].bound / checks[2].excess


@pytest.mark.parametrize(
    ("name", "value"),
    [("gammas", 3), ("gammas", "a"), ("gammas", [-1.0]), ("alpha_range", 3), ("alpha_range", [1])],
)
def test_invalid_arguments(name: str, value: Any) -> None:
    z = np.eye(2) * 3
    with pytest.raises((TypeError, ValueError), match=rf"^{name} must "):
        bound_check(z, [0, 1], z, [0, 1], **{name: value})


def test_constant_logits_have_no_bound() -> None:
    z = np.ones((4, 2))
    with pytest.raises(ValueError, match="logits must"):
        bound_check(z, [0, 1, 0, 1], z, [0, 1, 0, 1])
