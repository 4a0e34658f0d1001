"""Plans: curves and limits of known truth, advice where it is clear, bounds, the quarter check, errors."""

from __future__ import annotations

import doctest
import json
import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import lsq_linear
from scipy.special import logsumexp

from hetcal import examples
from hetcal.calibrators import (
    AutoCalibrator,
    ClassWiseTemperatureScaling,
    PlattScaling,
    TemperatureScaling,
)
from hetcal.planning import ValidationPlan, bound_check, check_quarter, plan_figure, plan_validation_size
from hetcal.planning.advice import MORE_ROWS, OWN, POOL, _weigh, advise
from hetcal.planning.bound import NllBound, gamma_of, logit_norm
from hetcal.planning.curve import _least_squares, far_sizes, fit_curve, interval_of, last_above
from hetcal.planning.sampling import _orders, _Weights
from hetcal.planning.text import count_text
from hetcal.theory import cts_bound

SIZES = np.array([20.0, 50, 120, 300, 700, 1600, 4000])
ALPHA = np.array([0.5, 0.5, 1.6, 1.0])


class Made(NamedTuple):
    z: NDArray[np.float64]
    y: NDArray[np.int64]
    nll: float  # of the truth on these very rows


def make(n: int, alpha: NDArray[np.float64], seed: int, spread: float = 1.0) -> Made:
    """Labels drawn from softmax(α_ŷ z)."""
    rng = np.random.default_rng(seed)
    k = len(alpha)
    z = rng.normal(scale=spread, size=(n, k))
    z[np.arange(n), rng.integers(k, size=n)] += rng.uniform(0.5, 3, size=n)
    u = alpha[z.argmax(axis=1)][:, None] * z
    y = (u + rng.gumbel(size=u.shape)).argmax(axis=1)
    return Made(z, y, float(np.mean(logsumexp(u, axis=1) - u[np.arange(n), y])))


@pytest.fixture(scope="module")
def mixed() -> Made:
    return make(3000, ALPHA, seed=0)


@pytest.fixture(scope="module")
def plan(mixed: Made) -> ValidationPlan:
    return plan_validation_size(mixed.z, mixed.y, n_repeats=10, class_names=["a", "b", "c", "d"])


@pytest.fixture(scope="module")
def alike() -> ValidationPlan:
    z, y, _ = make(2000, np.full(4, 0.8), seed=1)
    return plan_validation_size(z, y, n_repeats=5)


def fitted(values: NDArray[np.float64], **options: Any) -> Any:
    """Fit to values (S,) with a little noise of known size over ten repeats."""
    noise = np.random.default_rng(0).normal(scale=1e-4, size=(len(values), 10))
    repeats = values[:, None] + noise - noise.mean(axis=1, keepdims=True)
    return fit_curve(SIZES, repeats, values[:, None] + noise, np.random.default_rng(0), **options)


# --- curves ----------------------------------------------------------------------------------------------


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


def test_a_slow_start_need_not_be_seen_to_end() -> None:
    curve = fitted(0.4 + 3000 / (SIZES + 8000))  # m₀ is twice the largest size
    assert curve.at(np.array([16000.0]))[0] == pytest.approx(0.4 + 3000 / 24000, abs=0.03)


def test_simple_shape_is_kept_where_it_fits() -> None:
    c, a, m0, d, _ = fitted(0.4 + 2 / SIZES).fit
    assert (m0, d) == (0, 0)
    assert (c, a) == (pytest.approx(0.4, abs=1e-6), pytest.approx(2, abs=1e-4))


def test_curve_never_rises_and_stays_above_the_floor() -> None:
    curve = fitted(0.4 - 2 / SIZES)  # a rising line of points
    assert (np.diff(curve.at(far_sizes(20))) <= 1e-12).all()
    assert fitted(0.4 + 2 / SIZES, floor=0.41, floors=np.full(10, 0.41)).limit == 0.41


def test_least_squares_agrees_with_scipy() -> None:
    rng = np.random.default_rng(0)
    design = np.stack([np.ones(7), 1 / SIZES, np.exp(-SIZES / 100)], axis=1)
    values, weight, floors = rng.normal(size=(7, 40)), rng.uniform(0.1, 5, 7), rng.normal(size=40)
    found, rss = _least_squares(design, values, weight, floors)
    root = np.sqrt(weight)
    for b in range(40):
        low = np.array([floors[b], 0, 0])
        best = lsq_linear(design * root[:, None], values[:, b] * root, bounds=(low, np.inf), tol=1e-14)
        assert rss[b] == pytest.approx(2 * best.cost, rel=1e-5)
        assert (found[:, b] >= low - 1e-12).all()


def test_traced_curve_goes_through_the_points() -> None:
    values = 0.4 + 5 / SIZES + np.array([0, 0.3, 0, 0, 0.02, 0, 0])
    curve = fitted(values)
    assert curve.traced(SIZES)[0] == pytest.approx(values, abs=1e-9)
    assert curve.traced(np.array([1e7]))[0] == pytest.approx(curve.limit, abs=1e-4)


def test_last_above_by_hand() -> None:
    sizes = np.array([10.0, 100, 1000])
    heights = np.array([[2.0, 1, -1], [-1, -1, -1], [1, 1, 1], [-1, 1, -1]])
    # 1 → −1 between 100 and 1000: half way in log m.
    assert last_above(heights, sizes) == pytest.approx([316.23, 10, np.inf, 316.23], abs=0.01)


def test_interval_holds_infinite_draws() -> None:
    draws = np.concatenate([np.arange(90.0), np.full(10, np.inf)])
    assert interval_of(50.0, draws, 0.9) == (50.0, 4.0, np.inf)
    assert interval_of(-1.0, np.arange(100.0), 0.9).low == -1.0


# --- sampling --------------------------------------------------------------------------------------------


def test_five_repeats_hold_out_every_row() -> None:
    orders = _orders(23, np.random.default_rng(0))
    first = [next(orders) for _ in range(5)]
    assert all(sorted(order) == list(range(23)) for order in first)
    ends = np.concatenate([order[-(5 if i < 3 else 4) :] for i, order in enumerate(first)])
    assert sorted(ends) == list(range(23))


def test_bootstrap_means_are_weighted_means_of_known_rows() -> None:
    weights = _Weights.draw(50, np.random.default_rng(0))
    values = np.random.default_rng(1).normal(size=(1, 50))
    values[0, :10] = np.nan
    w = weights.weight[weights.block][10:]
    assert weights.mean(values)[0] == pytest.approx((w * values[0, 10:, None]).sum(0) / w.sum(0), abs=1e-5)


# --- plans: known truth ----------------------------------------------------------------------------------


def test_limits_and_costs_of_a_known_truth(plan: ValidationPlan, mixed: Made) -> None:
    """The limit of CTS is the NLL of the truth; its excess is K/2 nats over the number of rows."""
    cts = plan["CTS"]
    assert cts.limit.value == pytest.approx(mixed.nll, abs=2 / 3000)
    assert cts.limit.low < mixed.nll < cts.limit.high
    excess = 1000 * (cts.curve.at(np.array([1000.0]))[0] - cts.curve.limit)
    assert 1 < excess < 4  # K/2 = 2
    assert 100 < cts.rows_to_limit.value < 450  # K/2/0.01 = 200
    ts = plan["TS"].curve
    assert 0.1 < 1000 * (ts.at(np.array([1000.0]))[0] - ts.limit) < 1.5  # 1/2


def test_forecast_of_a_larger_size_meets_a_fresh_experiment(plan: ValidationPlan) -> None:
    fresh, judged = make(12000, ALPHA, seed=5), make(60000, ALPHA, seed=6)
    for name, method in (("TS", TemperatureScaling()), ("CTS", ClassWiseTemperatureScaling())):
        p = method.fit(fresh.z, fresh.y).predict_proba(judged.z)
        nll = float(-np.log(p[np.arange(60000), judged.y]).mean())
        forecast = plan.predict(name, 12000)
        assert forecast.nll.low < nll < forecast.nll.high
        assert forecast.nll.high - forecast.nll.low < 0.12


def test_gain_is_known_better_than_the_nll(plan: ValidationPlan) -> None:
    forecast = plan.predict("CTS", 3000)
    assert forecast.gain is not None
    width = forecast.gain.high - forecast.gain.low
    assert width < 0.6 * (forecast.nll.high - forecast.nll.low)
    assert forecast.gain.low > 0
    zero = plan.predict("TS", 3000).gain
    assert zero == (0, 0, 0)


def test_class_wise_beats_pooled_only_where_classes_differ(
    plan: ValidationPlan, alike: ValidationPlan
) -> None:
    beats = plan["CTS"].beats_pooled_from
    assert beats is not None
    assert beats.high < 3000
    assert plan["TS"].beats_pooled_from is None
    same = alike["CTS"].beats_pooled_from
    assert same is not None
    assert same.high == math.inf
    assert alike["TS"].rows_to_target.value < 1000
    gain = alike.predict("CTS", 2000).gain
    assert gain is not None
    assert gain.low < 0 < gain.high + 1e-3


def test_pooled_limit_is_out_of_reach_where_classes_differ(plan: ValidationPlan) -> None:
    assert plan["TS"].rows_to_target.value == math.inf
    assert plan.best.name in ("CTS", "CTS bayes")
    assert plan.target == pytest.approx(plan.best.limit.value + 0.01)


def test_max_ece_excess_falls_to_nothing_where_temperatures_are_right(plan: ValidationPlan) -> None:
    cts, ts = (plan.predict(name, 3000).max_ece_excess for name in ("CTS", "TS"))
    assert abs(cts.value) < 0.02
    assert ts.value > 0.02
    assert plan["CTS"].max_ece_excess[0] > plan["CTS"].max_ece_excess[-1]


# --- plans: behaviour ------------------------------------------------------------------------------------


def test_curves_fall_and_intervals_hold_their_estimates(plan: ValidationPlan) -> None:
    for m in plan.methods:
        nll = [plan.predict(m.name, rows).nll.value for rows in (20, 100, 1000, 10**4, 10**6)]
        assert all(a >= b for a, b in pairwise(nll))
        assert nll[-1] == pytest.approx(m.limit.value, abs=1e-3)
        for interval in (m.limit, m.rows_to_target, m.rows_to_limit):
            assert interval.low <= interval.value <= interval.high


def test_closer_targets_take_more_rows(mixed: Made) -> None:
    def rows(target: float) -> float:
        small = {"CTS": ClassWiseTemperatureScaling()}
        made = plan_validation_size(mixed.z, mixed.y, target, methods=small, n_repeats=5)
        assert made.target == target
        assert made.pooled is None
        assert made["CTS"].beats_pooled_from is None
        return made["CTS"].rows_to_target.value

    needed = [rows(mixed.nll + more) for more in (0.05, 0.02, 0.008)]
    assert needed == sorted(needed)
    assert needed[0] < needed[-1] < math.inf


def test_same_seed_same_plan(mixed: Made) -> None:
    def run(seed: Any) -> str:
        few = {"TS": TemperatureScaling(), "CTS": ClassWiseTemperatureScaling()}
        z, y = mixed.z[:600], mixed.y[:600]
        made = plan_validation_size(z, y, methods=few, n_repeats=5, sizes=[20, 100, 400], rng=seed)
        return json.dumps(made.to_dict())

    assert run(3) == run(3) == run(np.random.default_rng(3))
    assert run(3) != run(4)


def test_shifted_rows_make_the_same_plan(mixed: Made) -> None:
    """Adding a constant to a row changes no probability, so it changes no plan."""
    few = {"CTS": ClassWiseTemperatureScaling()}
    shift = np.random.default_rng(0).normal(size=(3000, 1))
    plans = [
        plan_validation_size(z, mixed.y, methods=few, n_repeats=5, sizes=[50, 300, 2000])
        for z in (mixed.z, mixed.z + shift)
    ]
    assert plans[0]["CTS"].limit == pytest.approx(plans[1]["CTS"].limit, abs=1e-6)
    bounds = [p["CTS"].bound for p in plans]
    assert bounds[0] is not None
    assert bounds[1] is not None
    assert bounds[0].l_f == pytest.approx(bounds[1].l_f)


def test_any_calibrator_can_be_planned_for(mixed: Made) -> None:
    class Plain:
        """Not a scikit-learn estimator."""

        def fit(self, logits: Any, labels: Any) -> Plain:
            self.inner = PlattScaling().fit(logits, labels)
            return self

        def predict_proba(self, logits: Any) -> Any:
            return self.inner.predict_proba(logits)

    made = plan_validation_size(
        mixed.z, mixed.y, methods={"mine": Plain()}, n_repeats=5, sizes=[50, 300, 2000]
    )
    assert made["mine"].bound is None
    assert "Theorem" not in str(made)
    assert "beats" not in str(made)


def test_auto_can_be_planned_for(mixed: Made) -> None:
    """Where all it could need is class-wise temperatures, the mean of many calibrators tends to them."""
    methods = {"TS": TemperatureScaling(), "CTS": ClassWiseTemperatureScaling(), "Auto": AutoCalibrator()}
    sizes = [60, 150, 500]
    made = plan_validation_size(mixed.z[:650], mixed.y[:650], methods=methods, n_repeats=5, sizes=sizes)
    assert made["Auto"].bound is None
    gain = made.predict("Auto", 650).gain
    assert gain is not None
    assert gain.low > 0
    assert made["Auto"].nll[-1] == pytest.approx(made["CTS"].nll[-1], abs=0.01)
    assert "Auto" in str(made)


def test_progress_and_a_limit_of_time(mixed: Made) -> None:
    steps: list[tuple[int, int]] = []
    made = plan_validation_size(
        mixed.z, mixed.y, methods={"TS": TemperatureScaling()}, sizes=[50, 300, 2000], n_repeats=30,
        max_seconds=1e-6, on_step=lambda done, total: steps.append((done, total)),
    )  # fmt: skip
    assert made.n_repeats == 5
    assert steps == [(i + 1, 90) for i in range(15)]


def test_plan_as_text_and_json(plan: ValidationPlan) -> None:
    shown = str(plan)
    for part in ("CTS bayes", "never", "Theorem 4.1", "own temperature", "beats TS from", "rows to"):
        assert part in shown
    data = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
    assert [m["method"] for m in data["methods"]] == ["TS", "CTS Γ=0.1", "CTS bayes", "CTS"]
    assert data["methods"][0]["rows_to_target"]["value"] is None
    assert data["methods"][0]["beats_pooled_from"] is None
    assert data["methods"][2]["bound"] is None
    assert data["methods"][3]["bound"]["gamma"] is None
    assert len(data["classes"]) == 4
    assert data["best"] == plan.best.name


def test_counts_as_text() -> None:
    shown = [count_text(rows) for rows in (3.2, 999.5, 1234.0, 123_456.0, 3.4e12, math.inf)]
    assert shown == ["4", "1,000", "1,230", "123,000", "3e12", "never"]


# --- advice ----------------------------------------------------------------------------------------------


def test_advice_by_hand() -> None:
    """One-sided 95%: z = 1.645; an own temperature takes a likelihood ratio above 2.645² = 6.996."""
    z = 1.6448536269514722
    gain, low, high, cost, kind, text, more = _weigh(100, 16.0, 1.0, 0.05, z)
    assert (kind, text, more) == (OWN, OWN, 0)
    assert (gain, cost) == (pytest.approx(15 / 200), pytest.approx(1 / 200))
    assert (low, high) == (pytest.approx((4 - z) ** 2 / 200), pytest.approx((4 + z) ** 2 / 200))
    assert _weigh(100, 0.0, 1.0, 0.05, z)[4] == POOL  # at most 1.645²/200 = 0.0135
    # λ = 3 from 10 rows; 6.996/0.3 = 23.3 rows in all make an own temperature pay.
    assert _weigh(10, 4.0, 1.0, 0.01, z)[4:] == (MORE_ROWS, "about 14 more rows", 14)
    # Nothing seen in 50 rows; 1.645²/(2·0.01) = 135.3 rule a gain of 0.01 out.
    assert _weigh(50, 0.5, 1.0, 0.01, z)[4:] == (MORE_ROWS, "about 86 more rows", 86)
    assert _weigh(0, 0.0, 1.0, 0.01, z)[4:] == (POOL, POOL, 0)
    assert _weigh(50, 0.0, 0.0, 0.01, z)[4] == POOL


def test_twice_the_noise_halves_the_evidence() -> None:
    one, two = (_weigh(100, 8.0 * noise, noise, 0.01, 1.6448536269514722) for noise in (1.0, 2.0))
    assert one[4] == two[4] == OWN
    assert two[0] == pytest.approx(2 * one[0])


def test_advice_where_it_is_clear() -> None:
    """Classes 0 and 1 are off, the other six share a temperature; class 7 is predicted 30 times only."""
    alpha = np.array([0.3, 2.5, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8])
    z, y, _ = make(12000, alpha, seed=2)
    rare = np.flatnonzero(z.argmax(axis=1) == 7)
    keep = np.setdiff1d(np.arange(12000), rare[30:])
    found = advise(z[keep], y[keep], list("abcdefgh"), min_gain=0.01, level=0.95)
    assert [c.kind for c in found[:2]] == [OWN, OWN]
    assert [c.kind for c in found[2:7]].count(POOL) >= 4
    assert (found[7].n, found[7].kind) == (30, MORE_ROWS)
    assert 20 <= found[7].more_rows <= 600
    assert found[7].advice == f"about {found[7].more_rows:,} more rows"
    assert [c.name for c in found] == list("abcdefgh")
    assert found[0].alpha == pytest.approx(0.3, abs=0.05)
    assert all(c.gain_low <= c.gain <= c.gain_high for c in found)


def test_estimated_gain_is_the_true_one() -> None:
    """Averaged over data sets, the gain is the NLL saved by the truth over the best shared temperature."""
    alpha, found, true = np.array([0.4, 0.7, 1.0, 1.3]), [], []
    shared = TemperatureScaling().fit(*make(100_000, alpha, seed=90)[:2]).alpha_
    for seed in range(30):
        z, y, _ = make(1500, alpha, seed=seed)
        found.append([c.gain for c in advise(z, y, list("abcd"), min_gain=0.01, level=0.95)])
    z, y, _ = make(100_000, alpha, seed=91)
    guess = z.argmax(axis=1)
    for k in range(4):
        u, v = (a * z[guess == k] for a in (shared, alpha[k]))
        at = np.arange(len(u)), y[guess == k]
        true.append(float(np.mean((logsumexp(u, axis=1) - u[at]) - (logsumexp(v, axis=1) - v[at]))))
    assert np.mean(found, axis=0) == pytest.approx(true, abs=0.012)


def test_own_temperatures_are_rare_where_classes_are_alike() -> None:
    kinds: list[str] = []
    for seed in range(5):
        z, y, _ = make(3000, np.full(10, 0.8), seed=seed)
        kinds += [c.kind for c in advise(z, y, [str(k) for k in range(10)], min_gain=0.01, level=0.95)]
    assert kinds.count(OWN) <= 3  # 1% each


def test_more_rows_never_take_advice_back(mixed: Made) -> None:
    few = advise(mixed.z[:300], mixed.y[:300], list("abcd"), min_gain=0.01, level=0.95)
    many = advise(
        np.tile(mixed.z[:300], (10, 1)), np.tile(mixed.y[:300], 10), list("abcd"), min_gain=0.01, level=0.95
    )
    for a, b in zip(few, many, strict=True):
        assert b.cost < a.cost
        assert b.kind == OWN or a.kind != OWN


def test_advice_without_a_choice() -> None:
    z = np.array([[2.0, 0.0, 0.0], [1.0, 0.5, 0.0], [3.0, 1.0, 0.0]] * 20)
    only = advise(z, np.array([0, 1, 0] * 20), list("abc"), min_gain=0.01, level=0.95)
    assert [c.kind for c in only] == [POOL] * 3
    assert math.isnan(only[1].gain)
    flat = advise(np.zeros((30, 2)), np.arange(30) % 2, list("ab"), min_gain=0.01, level=0.95)
    assert [c.kind for c in flat] == [POOL] * 2


# --- the bound -------------------------------------------------------------------------------------------


def test_nll_bound_is_the_rescaled_theorem() -> None:
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


def test_theorem_speaks_about_some_methods_only() -> None:
    assert gamma_of(TemperatureScaling()) == 0
    assert gamma_of(ClassWiseTemperatureScaling(0.1)) == 0.1
    assert gamma_of(ClassWiseTemperatureScaling()) == math.inf
    for other in (ClassWiseTemperatureScaling("bayes"), ClassWiseTemperatureScaling("cv"), PlattScaling()):
        assert gamma_of(other) is None


def test_logit_norm_of_centred_rows() -> None:
    assert logit_norm(np.array([[3.0, 5.0], [7.0, 7.0]])) == pytest.approx(math.sqrt(2))


def test_excess_on_cifar_stays_under_the_bound() -> None:
    data = examples.load_example("cifar10-noisy")
    assert data.test is not None
    found = bound_check(data.val.logits, data.val.labels, data.test.logits, data.test.labels)
    assert [c.gamma for c in found] == [0.0, 0.1, math.inf]
    assert [c.regime for c in found] == ["shared", "class-wise", "class-wise"]
    for c in found:
        assert 0 <= c.excess <= c.bound
        assert c.holds
        assert c.ratio > 1e4
        assert (c.n, c.n_judged) == (5000, 10000)
    assert found[2].excess < 0.005
    assert found[2].to_dict()["ratio"] == found[2].bound / found[2].excess


# --- foretelling from a quarter --------------------------------------------------------------------------


@pytest.mark.parametrize("name", examples.names())
def test_a_quarter_foretells_the_whole(name: str) -> None:
    """Eight quarters at 95%: the NLLs of one are in or out together, three out of eight have p = 0.006."""
    data = examples.load_example(name)
    assert data.test is not None
    rows = (data.val.logits, data.val.labels, data.test.logits, data.test.labels)
    found = [check_quarter(*rows, n_repeats=5, rng=seed) for seed in range(8)]
    assert found[0].holds  # the seed of the command line
    assert sum(quarter.holds for quarter in found) >= 6
    assert sum(line.gain_inside for quarter in found for line in quarter.lines) >= 29  # of 32
    assert found[0].n_part == round(0.25 * found[0].n)
    assert "inside" in str(found[0])
    assert json.loads(json.dumps(found[0].to_dict(), allow_nan=False))["holds"]


def test_a_part_foretells_the_whole_without_test_rows(mixed: Made) -> None:
    few = {"TS": TemperatureScaling(), "CTS": ClassWiseTemperatureScaling()}
    found = check_quarter(mixed.z, mixed.y, share=0.5, methods=few, n_repeats=5)
    assert (found.n_part, found.n, found.n_judged) == (1200, 2400, 600)
    assert found.holds
    with pytest.raises(ValueError, match="share must lie strictly between 0 and 1, got 1"):
        check_quarter(mixed.z, mixed.y, share=1)


def test_the_page_shows_what_the_code_gives() -> None:
    page = Path(__file__).parents[1] / "docs" / "planning.md"
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    failed, tried = doctest.testfile(str(page), module_relative=False, optionflags=flags, encoding="utf-8")
    assert tried > 10
    assert failed == 0


# --- the figure ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["nll", "max_ece"])
def test_figure(plan: ValidationPlan, metric: Any) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    before = dict(matplotlib.rcParams)
    _, given = plt.subplots()
    ax = plan_figure(plan, given, metric=metric)
    assert ax is given
    assert [t.get_text() for t in ax.get_legend().get_texts()] == [m.name for m in plan.methods]
    low, high = ax.get_ylim()
    late = [(m.nll if metric == "nll" else m.max_ece_excess)[-1] for m in plan.methods]
    assert low < min(late) <= max(late) < high
    assert plan_figure(plan).figure is not given.figure
    plt.close("all")
    assert dict(matplotlib.rcParams) == before
    with pytest.raises(ValueError, match="metric must be one of 'nll', 'max_ece', got 'ece'"):
        plan_figure(plan, metric="ece")  # type: ignore[arg-type]


def test_matplotlib_loads_only_for_a_figure() -> None:
    code = "import sys, hetcal.planning; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"target": -1.0}, ValueError, "target must be a positive number, got -1.0"),
        ({"target": math.nan}, ValueError, "target must be a positive number, got nan"),
        ({"n_repeats": 4}, ValueError, "n_repeats must be an integer, 5 or more, got 4; 20 is the default"),
        ({"n_repeats": 7.5}, ValueError, "n_repeats must be an integer, 5 or more, got 7.5"),
        ({"tolerance": 0}, ValueError, "tolerance must be a positive number, got 0"),
        ({"tolerance": None}, ValueError, "tolerance must be a positive number, got None"),
        ({"max_seconds": "1"}, ValueError, "max_seconds must be a positive number, got '1'"),
        ({"level": 1.0}, ValueError, "level must"),
        ({"methods": [TemperatureScaling()]}, TypeError, "methods must be a mapping of name to calibrator"),
        ({"methods": {}}, ValueError, "methods must hold at least one calibrator, got none"),
        ({"sizes": [20, 40]}, ValueError, r"sizes must be three or more ascending integers, got \[20, 40\]"),
        ({"sizes": [20, 20, 40]}, ValueError, "sizes must be three or more ascending integers"),
        ({"sizes": [20.0, 30.0, 40.0]}, ValueError, "sizes must be three or more ascending integers"),
        ({"sizes": [1, 20, 40]}, ValueError, "sizes must lie in 2..2400, 80% of the 3000 rows, got 1..40"),
        ({"sizes": [20, 40, 2401]}, ValueError, "a fifth of the rows is kept to judge on"),
        ({"alpha_range": (2, 1)}, ValueError, "alpha_range must be in ascending order"),
        ({"delta": 2.0}, ValueError, "delta must lie in"),
        ({"class_names": ["a"]}, ValueError, "class_names must have one entry per class"),
        ({"rng": -1}, TypeError, "rng must be"),
    ],
)
def test_errors(mixed: Made, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        plan_validation_size(mixed.z, mixed.y, **options)


def test_too_few_rows_for_a_curve(mixed: Made) -> None:
    with pytest.raises(
        ValueError, match="logits must have at least 50 rows for a learning curve of 4 classes, got 40"
    ):
        plan_validation_size(mixed.z[:40], mixed.y[:40])
    few = {"TS": TemperatureScaling()}
    assert plan_validation_size(mixed.z[:50], mixed.y[:50], methods=few, n_repeats=5).n == 50
    assert (
        plan_validation_size(mixed.z[:40], mixed.y[:40], methods=few, n_repeats=5, sizes=[8, 16, 32]).n == 40
    )


def test_target_below_every_limit(mixed: Made) -> None:
    with pytest.raises(
        ValueError, match=r"target must be at least .* that CTS tends to .* got 0\.1; choose a higher"
    ):
        plan_validation_size(
            mixed.z,
            mixed.y,
            0.1,
            methods={"CTS": ClassWiseTemperatureScaling()},
            n_repeats=5,
            sizes=[50, 300, 2000],
        )


def test_questions_a_plan_cannot_answer(plan: ValidationPlan) -> None:
    with pytest.raises(KeyError, match=r"method must be one of TS, CTS Γ=0\.1, CTS bayes, CTS, got 'VS'"):
        plan.predict("VS", 1000)
    for rows in (19, 20.5, True):
        with pytest.raises(
            ValueError, match="rows must be an integer, 20 or more, the smallest size measured"
        ):
            plan.predict("TS", rows)  # type: ignore[arg-type]


def test_logits_of_any_size_have_a_norm() -> None:
    z = np.array([[3e37, -4e37], [0.0, 0.0]], np.float32)
    (found,) = bound_check(z, [0, 1], z, [0, 1], gammas=[0.1])
    assert found.l_f == pytest.approx(np.sqrt(2) * 3.5e37)


@pytest.mark.parametrize("wrong", [3, None, "a", [1], {}])
def test_a_range_must_be_a_pair(wrong: Any) -> None:
    z = np.eye(2) * 3
    with pytest.raises(TypeError, match="alpha_range must be a pair"):
        bound_check(z, [0, 1], z, [0, 1], alpha_range=wrong)
    with pytest.raises(TypeError, match="alpha_range must be a pair"):
        plan_validation_size(np.tile(z, (50, 1)), [0, 1] * 50, alpha_range=wrong)


@pytest.mark.parametrize("wrong", [3, None, "a", [None], [-1.0]])
def test_gammas_must_be_numbers(wrong: Any) -> None:
    z = np.eye(2) * 3
    with pytest.raises((TypeError, ValueError), match="gammas must be"):
        bound_check(z, [0, 1], z, [0, 1], gammas=wrong)


def test_equal_logits_have_no_bound() -> None:
    z = np.ones((4, 2))
    with pytest.raises(ValueError, match="logits must differ within some row"):
        bound_check(z, [0, 1, 0, 1], z, [0, 1, 0, 1])
