"""Metrics, floors, intervals and diagnoses of arbitrary probabilities."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import strategies as st
from strategies import BAD_NUMBERS, FLOATS, cases, corrupt, fuzzed, label_forms, result_or_error, seeds

import hetcal as h
from hetcal import metrics

pytestmark = pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")

SCORES = ("accuracy", "nll", "brier", "ece", "max_ece", "avg_ece", "debiased_ece", "smooth_ece")
BY_CLASS = ("class_ece", "signed_gap")
BINNED = ("ece", "class_ece", "max_ece", "avg_ece", "debiased_ece")
binned = {
    "n_bins": st.sampled_from([1, 2, 15, 100]),
    "binning": st.sampled_from(["width", "mass"]),
    "norm": st.sampled_from(["l1", "l2"]),
}


def probabilities(case, sharp):
    """Softmax of the logits of a case; with `sharp`, some rows are one-hot and some uniform."""
    z = case.z.astype(np.float64)
    below = np.clip(z - z.max(axis=1, keepdims=True), -1e4, 0)
    p = np.exp(below)
    p /= p.sum(axis=1, keepdims=True)
    rows = case.rng.random(len(p))
    if sharp:
        p[rows < 0.3] = np.eye(p.shape[1])[case.rng.integers(p.shape[1], size=(rows < 0.3).sum())]
        p[rows > 0.8] = 1 / p.shape[1]
    return p.astype(case.z.dtype if case.z.dtype.kind == "f" else np.float64)


@fuzzed(share=2, case=cases(wide=1000), sharp=st.booleans(), form=label_forms, **binned)
def test_scores(case, sharp, form, n_bins, binning, norm):
    p, y = probabilities(case, sharp), form(case.y)
    options = {"n_bins": n_bins, "binning": binning, "norm": norm}
    result = {name: getattr(metrics, name)(p, y, **(options if name in BINNED else {})) for name in SCORES}
    assert all(math.isfinite(v) and v >= 0 for v in result.values()), result
    assert all(v <= 1 + 1e-6 for name, v in result.items() if name not in ("nll", "brier")), result
    assert result["brier"] <= 2 + 1e-6
    assert result["avg_ece"] <= result["max_ece"] + 1e-12
    if binning == "width" and norm == "l1":
        assert result["ece"] <= result["max_ece"] + 1e-6  # signs can cancel
    for name in BY_CLASS:
        values = getattr(metrics, name)(p, y)
        assert values.shape == (p.shape[1],)
        np.testing.assert_array_equal(
            np.isnan(values), np.bincount(p.argmax(axis=1), minlength=len(values)) == 0
        )


@fuzzed(case=cases(), sharp=st.booleans())
def test_order_of_rows_and_top_labels(case, sharp):
    p = probabilities(case, sharp)
    order = case.rng.permutation(len(p))
    guess, top = p.argmax(axis=1), np.minimum(p.max(axis=1), 1)
    for name in (*SCORES, *BY_CLASS):
        score = getattr(metrics, name)
        np.testing.assert_allclose(score(p[order], case.y[order]), score(p, case.y), atol=1e-5, rtol=1e-5)
        if name not in ("nll", "brier"):
            short = np.atleast_1d(score(top, case.y, predicted=guess))
            from_probs = np.atleast_1d(score(p, case.y))[: len(short)]
            np.testing.assert_allclose(short, from_probs, atol=1e-6)


@fuzzed(case=cases(max_n=200), sharp=st.booleans(), n_bins=st.sampled_from([1, 15]), top1=st.booleans())
def test_evaluate(case, sharp, n_bins, top1):
    p = probabilities(case, sharp)
    data = (np.minimum(p.max(axis=1), 1), case.y) if top1 else (p, case.y)
    options = {"predicted": p.argmax(axis=1)} if top1 else {}
    result = h.evaluate(*data, n_bins=n_bins, n_redraws=20, **options)
    json.dumps(result.to_dict(), allow_nan=False)
    assert result.ece == pytest.approx(metrics.ece(*data, n_bins=n_bins, **options), abs=1e-9)
    assert 0 <= result.floor["ece"] <= result.floor["max_ece"] + 1e-6
    assert result.classes.n.sum() == len(case.y)
    assert len(result.to_frame()) == result.n_classes
    assert str(result)


@fuzzed(case=cases(max_n=200), sharp=st.booleans(), **binned)
def test_noise_floor(case, sharp, n_bins, binning, norm):
    p = probabilities(case, sharp)
    floor = h.noise_floor(p, n_bins=n_bins, binning=binning, norm=norm, n_redraws=20)
    low, middle, high = floor.quantiles["ece"]
    assert 0 <= low <= middle <= high <= 1 + 1e-6
    is_predicted = np.bincount(p.argmax(axis=1), minlength=p.shape[1]) > 0
    assert np.isfinite(floor.mean["class_ece"][is_predicted]).all()
    assert np.isnan(floor.mean["class_ece"][~is_predicted]).all()
    assert 0 < floor.p_value("ece", metrics.ece(p, case.y)) <= 1


@fuzzed(
    case=cases(max_n=200),
    sharp=st.booleans(),
    method=st.sampled_from(["centred", "population", "basic", "percentile"]),
    **binned,
)
def test_intervals(case, sharp, method, n_bins, binning, norm):
    p = probabilities(case, sharp)
    every = ("ece", "max_ece", "avg_ece", "class_ece", "signed_gap")
    options = {"n_bins": n_bins, "binning": binning, "norm": norm}
    result = h.bootstrap(p, case.y, metrics=every, method=method, n_resamples=20, **options)
    gaps = metrics.gap_intervals(p, case.y)
    for low, high in [(result.low[name], result.high[name]) for name in every] + [
        (gaps.low["signed_gap"], gaps.high["signed_gap"])
    ]:
        assert np.all((low <= high + 1e-12) | np.isnan(low))
    curves = metrics.reliability_by_class(p, case.y, n_bins=n_bins, binning=binning)
    assert sum(curve.count.sum() for curve in curves) == len(case.y)
    assert metrics.reliability_curve(p, case.y, n_bins=n_bins, binning=binning).count.sum() == len(case.y)


@fuzzed(case=cases(max_n=200, wide=100), form=label_forms, counted=st.booleans())
def test_diagnose(case, form, counted):
    k = case.z.shape[1]
    counts = case.rng.integers(0, 1000, size=k) if counted else None
    result = h.diagnose(case.z, form(case.y), counts, [f"c{i}" for i in range(k)], n_redraws=20)
    assert all((c.rows_needed > 0) == (c.kind == "too few rows") for c in result.classes)
    assert sum(result.summary.values()) == k
    assert all(0 <= c.p_value <= c.p_adjusted + 1e-12 <= 1 + 1e-9 for c in result.classes if c.n)
    assert all(
        c.gap_low <= c.signed_gap + 1e-9 and c.signed_gap <= c.gap_high + 1e-9 for c in result.classes if c.n
    )
    json.dumps(result.to_dict(), allow_nan=False)
    assert str(result)


@fuzzed(case=cases(max_n=200, wide=100), sharp=st.booleans(), votes=st.sampled_from([0, 1, 3, 50]), **binned)
def test_noisy_and_soft_labels(case, sharp, votes, n_bins, binning, norm):
    """Without votes, labels are hard and have a random transition matrix."""
    p, (n, k) = probabilities(case, sharp), case.z.shape
    transition = None
    if votes:
        labels = case.rng.multinomial(votes, case.rng.dirichlet(np.ones(k), size=n))
    else:
        labels, rate = case.y, case.rng.uniform(0, 0.95)
        others = case.rng.dirichlet(np.ones(k), size=k)
        transition = (1 - rate) * np.eye(k) + rate * others
        if np.any(transition + 1e-6 * (1 - np.eye(k)) > np.diag(transition) + 1e-9 * np.eye(k)):
            transition = np.full(k, rate)
    options = {"n_bins": n_bins, "binning": binning, "norm": norm}
    for name in SCORES:
        value = getattr(metrics, name)(
            p, labels, transition=transition, **(options if name in BINNED else {})
        )
        assert math.isfinite(value), name
    floor = h.noise_floor(p, labels=labels, transition=transition, n_redraws=10, **options)
    assert 0 <= floor.mean["ece"] < np.inf
    result = h.diagnose(probs=p, labels=labels, transition=transition, n_redraws=5)
    assert all(0 <= c.p_value <= c.p_adjusted + 1e-12 <= 1 + 1e-9 for c in result.classes if c.n)
    assert all(c.gap_low <= c.signed_gap <= c.gap_high for c in result.classes if c.n)
    json.dumps(result.to_dict(), allow_nan=False)
    evaluation = h.evaluate(p, labels, transition=transition, n_redraws=5)
    json.dumps(evaluation.to_dict(), allow_nan=False)


CALLS = {
    **{name: getattr(metrics, name) for name in (*SCORES, *BY_CLASS, "gap_intervals", "reliability_curve")},
    "evaluate": lambda p, y: h.evaluate(p, y, n_redraws=5),
    "bootstrap": lambda p, y: h.bootstrap(p, y, n_resamples=5),
    "noise_floor": lambda p, y: h.noise_floor(p, predicted=y if isinstance(p, str) else None, n_redraws=5),
    "diagnose": lambda p, y: h.diagnose(p, y, n_redraws=5),
    "to_logits": lambda p, _: h.to_logits(p),
    "binary_logits": lambda p, _: h.binary_logits(p),
}


@fuzzed(
    share=3,
    call=st.sampled_from(list(CALLS)),
    case=cases(max_n=20, wide=5, dtypes=FLOATS),
    what=st.sampled_from(["p", "y", "none"]),
    seed=seeds,
)
def test_corrupted_probabilities_are_refused_or_scored(call, case, what, seed):
    rng = np.random.default_rng(seed)
    p = probabilities(case, sharp=False)
    arguments = [corrupt(rng, p) if what == "p" else p, corrupt(rng, case.y) if what == "y" else case.y]
    result = result_or_error(lambda: CALLS[call](*arguments))
    if isinstance(result, float):
        assert math.isfinite(result)


@fuzzed(
    share=2,
    case=cases(max_n=20, wide=5, dtypes=FLOATS),
    what=st.sampled_from(["p", "y", "predicted"]),
    seed=seeds,
    call=st.sampled_from(
        ["accuracy", "nll", "brier", "ece", "max_ece", "debiased_ece", "smooth_ece", "signed_gap"]
    ),
)
def test_corrupted_top_labels_are_refused_or_scored(case, what, seed, call):
    p = probabilities(case, sharp=False)
    arguments = {"p": np.minimum(p.max(axis=1), 1), "y": case.y, "predicted": p.argmax(axis=1)}
    arguments[what] = corrupt(np.random.default_rng(seed), arguments[what])
    result_or_error(
        lambda: getattr(metrics, call)(arguments["p"], arguments["y"], predicted=arguments["predicted"])
    )


OPTIONS = {
    "ece n_bins": lambda p, y, v: h.metrics.ece(p, y, n_bins=v),
    "ece binning": lambda p, y, v: h.metrics.ece(p, y, binning=v),
    "ece norm": lambda p, y, v: h.metrics.ece(p, y, norm=v),
    "evaluate n_bins": lambda p, y, v: h.evaluate(p, y, n_bins=v, n_redraws=5),
    "evaluate n_redraws": lambda p, y, v: h.evaluate(p, y, n_redraws=v),
    "evaluate rng": lambda p, y, v: h.evaluate(p, y, n_redraws=5, rng=v),
    "evaluate class_names": lambda p, y, v: h.evaluate(p, y, v, n_redraws=5),
    "floor quantiles": lambda p, _, v: h.noise_floor(p, quantiles=v, n_redraws=5),
    "floor one quantile": lambda p, _, v: h.noise_floor(p, quantiles=(v,), n_redraws=5),
    "floor n_classes": lambda p, _, v: h.noise_floor(p, n_classes=v, n_redraws=5),
    "floor n_redraws": lambda p, _, v: h.noise_floor(p, n_redraws=v),
    "floor top-1 n_classes": lambda p, y, v: h.noise_floor(
        p.max(axis=1), predicted=y, n_classes=v, n_redraws=5
    ),
    "bootstrap level": lambda p, y, v: h.bootstrap(p, y, level=v, n_resamples=5),
    "bootstrap n_resamples": lambda p, y, v: h.bootstrap(p, y, n_resamples=v),
    "bootstrap metrics": lambda p, y, v: h.bootstrap(p, y, metrics=v, n_resamples=5),
    "bootstrap one metric": lambda p, y, v: h.bootstrap(p, y, metrics=[v], n_resamples=5),
    "bootstrap method": lambda p, y, v: h.bootstrap(p, y, method=v, n_resamples=5),
    "bootstrap rng": lambda p, y, v: h.bootstrap(p, y, rng=v, n_resamples=5),
    "gap_intervals level": lambda p, y, v: h.metrics.gap_intervals(p, y, level=v),
    "curve rows": lambda p, y, v: h.metrics.reliability_curve(p, y, rows=v),
    "diagnose level": lambda p, y, v: h.diagnose(h.to_logits(p), y, level=v, n_redraws=5),
    "diagnose min_gap": lambda p, y, v: h.diagnose(h.to_logits(p), y, min_gap=v, n_redraws=5),
    "diagnose train_counts": lambda p, y, v: h.diagnose(h.to_logits(p), y, v, n_redraws=5),
    "diagnose n_bins": lambda p, y, v: h.diagnose(h.to_logits(p), y, n_bins=v, n_redraws=5),
    "diagnose class_names": lambda p, y, v: h.diagnose(h.to_logits(p), y, None, v, n_redraws=5),
}


@fuzzed(
    share=3,
    option=st.sampled_from(list(OPTIONS)),
    value=BAD_NUMBERS,
    case=cases(contents=("tame",), max_n=20, wide=5),
)
def test_unusual_options_are_refused_or_used(option, value, case):
    result_or_error(lambda: OPTIONS[option](probabilities(case, sharp=False), case.y, value))
