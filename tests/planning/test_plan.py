"""Plans: recovery of a known truth, behaviour and errors."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hetcal.calibrators import (
    AutoCalibrator,
    ClassWiseTemperatureScaling,
    PlattScaling,
    TemperatureScaling,
)
from hetcal.planning import ValidationPlan, plan_validation_size


def test_limits_and_excess_of_a_known_truth(plan: ValidationPlan, rows: Any) -> None:
    """The limit of CTS is the NLL of the truth; its excess is K/2 nats over the number of rows."""
    cts = plan["CTS"]
    assert cts.limit.value == pytest.approx(rows.nll, abs=2 / 3000)
    assert cts.limit.low < rows.nll < cts.limit.high
    excess = 1000 * (cts.curve.at(np.array([1000.0]))[0] - cts.curve.limit)
    assert 1 < excess < 4  # expected: K/2 = 2
    assert 100 < cts.rows_to_limit.value < 450  # expected: K/2/0.01 = 200
    ts = plan["TS"].curve
    assert 0.1 < 1000 * (ts.at(np.array([1000.0]))[0] - ts.limit) < 1.5  # expected: 1/2


def test_forecast_of_a_larger_size_agrees_with_a_new_experiment(
    plan: ValidationPlan, draw_rows: Any, alpha: Any
) -> None:
    train, test = draw_rows(12000, alpha, 5), draw_rows(60000, alpha, 6)
    for name, method in (("TS", TemperatureScaling()), ("CTS", ClassWiseTemperatureScaling())):
        p = method.fit(train.z, train.y).predict_proba(test.z)
        nll = float(-np.log(p[np.arange(60000), test.y]).mean())
        forecast = plan.predict(name, 12000)
        assert forecast.nll.low < nll < forecast.nll.high
        assert forecast.nll.high - forecast.nll.low < 0.12


def test_gain_is_more_precise_than_the_nll(plan: ValidationPlan) -> None:
    forecast = plan.predict("CTS", 3000)
    assert forecast.gain is not None
    width = forecast.gain.high - forecast.gain.low
    assert width < 0.6 * (forecast.nll.high - forecast.nll.low)
    assert forecast.gain.low > 0
    zero = plan.predict("TS", 3000).gain
    assert zero == (0, 0, 0)


def test_class_wise_beats_pooled_only_if_classes_differ(
    plan: ValidationPlan, equal_classes_plan: ValidationPlan
) -> None:
    beats = plan["CTS"].beats_pooled_from
    assert beats is not None
    assert beats.high < 3000
    assert plan["TS"].beats_pooled_from is None
    same = equal_classes_plan["CTS"].beats_pooled_from
    assert same is not None
    assert same.high == math.inf
    assert equal_classes_plan["TS"].rows_to_target.value < 1000
    gain = equal_classes_plan.predict("CTS", 2000).gain
    assert gain is not None
    assert gain.low < 0 < gain.high + 1e-3


def test_pooled_never_reaches_the_target_if_classes_differ(plan: ValidationPlan) -> None:
    assert plan["TS"].rows_to_target.value == math.inf
    assert plan.best.name in ("CTS", "CTS bayes")
    assert plan.target == pytest.approx(plan.best.limit.value + 0.01)


def test_max_ece_excess_vanishes_for_the_correct_temperatures(plan: ValidationPlan) -> None:
    cts, ts = (plan.predict(name, 3000).max_ece_excess for name in ("CTS", "TS"))
    assert abs(cts.value) < 0.02
    assert ts.value > 0.02
    assert plan["CTS"].max_ece_excess[0] > plan["CTS"].max_ece_excess[-1]


def test_curves_decrease_and_intervals_contain_their_estimates(plan: ValidationPlan) -> None:
    for m in plan.methods:
        nll = [plan.predict(m.name, n).nll.value for n in (20, 100, 1000, 10**4, 10**6)]
        assert all(a >= b for a, b in pairwise(nll))
        assert nll[-1] == pytest.approx(m.limit.value, abs=1e-3)
        for interval in (m.limit, m.rows_to_target, m.rows_to_limit):
            assert interval.low <= interval.value <= interval.high


def test_lower_targets_need_more_rows(rows: Any) -> None:
    def rows_needed(target: float) -> float:
        methods = {"CTS": ClassWiseTemperatureScaling()}
        plan = plan_validation_size(rows.z, rows.y, target, methods=methods, n_repeats=5)
        assert plan.target == target
        assert plan.pooled is None
        assert plan["CTS"].beats_pooled_from is None
        return plan["CTS"].rows_to_target.value

    needed = [rows_needed(rows.nll + excess) for excess in (0.05, 0.02, 0.008)]
    assert needed == sorted(needed)
    assert needed[0] < needed[-1] < math.inf


def test_same_seed_gives_the_same_plan(rows: Any) -> None:
    def run(seed: Any) -> str:
        methods = {"TS": TemperatureScaling(), "CTS": ClassWiseTemperatureScaling()}
        z, y = rows.z[:600], rows.y[:600]
        result = plan_validation_size(z, y, methods=methods, n_repeats=5, sizes=[20, 100, 400], rng=seed)
        return json.dumps(result.to_dict())

    assert run(3) == run(3) == run(np.random.default_rng(3))
    assert run(3) != run(4)


def test_adding_a_constant_to_a_row_changes_nothing(rows: Any) -> None:
    methods = {"CTS": ClassWiseTemperatureScaling()}
    shift = np.random.default_rng(0).normal(size=(3000, 1))
    plans = [
        plan_validation_size(z, rows.y, methods=methods, n_repeats=5, sizes=[50, 300, 2000])
        for z in (rows.z, rows.z + shift)
    ]
    assert plans[0]["CTS"].limit == pytest.approx(plans[1]["CTS"].limit, abs=1e-6)
    bounds = [p["CTS"].bound for p in plans]
    assert bounds[0] is not None
    assert bounds[1] is not None
    assert bounds[0].l_f == pytest.approx(bounds[1].l_f)


def test_methods_may_be_any_object_with_fit_and_predict_proba(rows: Any) -> None:
    class Plain:
        """Not a scikit-learn estimator."""

        def fit(self, logits: Any, labels: Any) -> Plain:
            self.inner = PlattScaling().fit(logits, labels)
            return self

        def predict_proba(self, logits: Any) -> Any:
            return self.inner.predict_proba(logits)

    result = plan_validation_size(
        rows.z, rows.y, methods={"mine": Plain()}, n_repeats=5, sizes=[50, 300, 2000]
    )
    assert result["mine"].bound is None
    assert "Theorem" not in str(result)
    assert "beats" not in str(result)


def test_methods_may_include_auto(rows: Any) -> None:
    """If class-wise temperatures are the truth, Auto approaches them."""
    methods = {"TS": TemperatureScaling(), "CTS": ClassWiseTemperatureScaling(), "Auto": AutoCalibrator(cv=2)}
    sizes = [60, 150, 500]
    result = plan_validation_size(rows.z[:650], rows.y[:650], methods=methods, n_repeats=5, sizes=sizes)
    assert result["Auto"].bound is None
    gain = result.predict("Auto", 650).gain
    assert gain is not None
    assert gain.low > 0
    assert result["Auto"].nll[-1] == pytest.approx(result["CTS"].nll[-1], abs=0.01)
    assert "Auto" in str(result)


def test_progress_callback_and_time_limit(rows: Any) -> None:
    steps: list[tuple[int, int]] = []
    result = plan_validation_size(
        rows.z, rows.y, methods={"TS": TemperatureScaling()}, sizes=[50, 300, 2000], n_repeats=30,
        max_seconds=1e-6, on_step=lambda done, total: steps.append((done, total)),
    )  # fmt: skip
    assert result.n_repeats == 5
    assert steps == [(i + 1, 90) for i in range(15)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target", -1.0),
        ("n_repeats", 4),
        ("tolerance", 0),
        ("max_seconds", 0.0),
        ("level", 1.0),
        ("methods", {}),
        ("sizes", [20, 40]),
        ("sizes", [20, 20, 40]),
        ("sizes", [20.0, 30.0, 40.0]),
        ("sizes", [1, 20, 40]),
        ("sizes", [20, 40, 2401]),
        ("alpha_range", (2, 1)),
        ("delta", 2.0),
        ("class_names", ["a"]),
    ],
)
def test_invalid_arguments(rows: Any, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must "):
        plan_validation_size(rows.z, rows.y, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_repeats", 7.5),
        ("tolerance", None),
        ("methods", [TemperatureScaling()]),
        ("alpha_range", 3),
        ("rng", -1),
    ],
)
def test_arguments_of_the_wrong_type(rows: Any, name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{name} must "):
        plan_validation_size(rows.z, rows.y, **{name: value})


def test_too_few_rows_for_the_default_sizes(rows: Any) -> None:
    with pytest.raises(ValueError, match=r"logits must .*50"):
        plan_validation_size(rows.z[:40], rows.y[:40])
    methods = {"TS": TemperatureScaling()}
    assert plan_validation_size(rows.z[:50], rows.y[:50], methods=methods, n_repeats=5).n == 50
    assert (
        plan_validation_size(rows.z[:40], rows.y[:40], methods=methods, n_repeats=5, sizes=[8, 16, 32]).n
        == 40
    )


def test_few_rows_have_fewer_default_sizes(rows: Any) -> None:
    methods = {"TS": TemperatureScaling()}
    sizes = {
        n: plan_validation_size(rows.z[:n], rows.y[:n], methods=methods, n_repeats=5)["TS"].sizes
        for n in (60, 120, 1000)
    }
    assert {n: len(s) for n, s in sizes.items()} == {60: 5, 120: 8, 1000: 10}
    assert all(s[0] == 20 and s[-1] == 0.8 * n for n, s in sizes.items())


def test_target_below_every_limit(rows: Any) -> None:
    with pytest.raises(ValueError, match="target must"):
        plan_validation_size(
            rows.z,
            rows.y,
            0.1,
            methods={"CTS": ClassWiseTemperatureScaling()},
            n_repeats=5,
            sizes=[50, 300, 2000],
        )


def test_forecasts_that_a_plan_cannot_make(plan: ValidationPlan) -> None:
    with pytest.raises(KeyError, match="'VS'"):
        plan.predict("VS", 1000)
    with pytest.raises(ValueError, match=r"rows must .*20"):
        plan.predict("TS", 19)
