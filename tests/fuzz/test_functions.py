"""Functions other than calibrators and metrics: conversion, slices, corruption, theory, planning, reports."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from strategies import (
    BAD_NUMBERS,
    FLOATS,
    INTEGERS,
    MAY_NOT_CONVERGE,
    MODERATE,
    cases,
    corrupt,
    fuzzed,
    label_forms,
    result_or_error,
    seeds,
)

import hetcal as h
from hetcal import corruption, partition, planning, theory

pytestmark = MAY_NOT_CONVERGE
rates = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1.0, 1e-300]))


@fuzzed(case=cases(wide=1000), scores=st.sampled_from(FLOATS + INTEGERS))
def test_logits_from_probabilities_and_scores(case, scores):
    p = h.Identity().fit(case.z, case.y).predict_proba(case.z)
    recovered = h.Identity().fit(case.z, case.y).predict_proba(h.to_logits(p, floor=1e-30))
    np.testing.assert_allclose(recovered, p, atol=1e-5 if p.dtype == np.float32 else 1e-12)
    s = case.z[:, 0].astype(np.float64).clip(-100, 100).astype(scores)
    two = h.binary_logits(s)
    assert two.shape == (len(s), 2)
    np.testing.assert_array_equal(two[:, 1], s)


@fuzzed(case=cases(wide=100), form=label_forms, by=st.sampled_from(["gap", "size"]), weighed=st.booleans())
def test_slices_cover_all_rows(case, form, by, weighed):
    np.testing.assert_array_equal(partition.by_predicted_class(case.z), case.z.argmax(axis=1))
    k = case.z.shape[1]
    n_bundles = int(case.rng.integers(1, k + 1))
    w = case.rng.random(len(case.y)) + 0.01 if weighed else None
    bundles = partition.bundle_classes(case.z, form(case.y), n_bundles, by, sample_weight=w)
    assert set(bundles) == set(range(n_bundles))
    ids, names = partition.by_groups(case.y.astype(str))
    np.testing.assert_array_equal(names[ids], case.y.astype(str))


@fuzzed(
    share=2,
    case=cases(max_n=20, wide=5),
    seed=seeds,
    what=st.sampled_from(["z", "y", "g", "n", "by"]),
    value=BAD_NUMBERS,
)
def test_invalid_slices_raise_our_errors(case, seed, what, value):
    rng = np.random.default_rng(seed)
    z, y = (corrupt(rng, a) if what == name else a for name, a in (("z", case.z), ("y", case.y)))
    result_or_error(lambda: partition.by_predicted_class(z))
    options = (value if what == "n" else 2, value if what == "by" else "gap")
    result_or_error(lambda: partition.bundle_classes(z, y, *options))
    if what == "g":
        result_or_error(lambda: partition.by_groups(corrupt(rng, case.y)))


@fuzzed(
    share=2,
    y=st.lists(st.integers(0, 6), max_size=60),
    rate=rates,
    classes=st.sets(st.integers(0, 6)),
    seed=seeds,
)
def test_corruption_changes_only_the_chosen_classes(y, rate, classes, seed):
    labels = np.array(y, np.int64)
    noisy = corruption.noisy_labels(labels, classes, rate, 7, np.random.default_rng(seed))
    others = ~np.isin(labels, list(classes))
    np.testing.assert_array_equal(noisy[others], labels[others])
    assert len(noisy) == 0 or (noisy.min() >= 0 and noisy.max() < 7)
    remaining = corruption.undersample(labels, classes, rate, np.random.default_rng(seed))
    assert set(np.flatnonzero(others)) <= set(remaining)
    assert (np.diff(remaining) > 0).all()
    least = min((y.count(k) for k in set(y)), default=0)
    train, test = corruption.stratified_split(labels, least, np.random.default_rng(seed))
    assert sorted([*train, *test]) == list(range(len(y)))
    assert all((labels[test] == k).sum() == least for k in set(y))


@fuzzed(
    share=2,
    value=BAD_NUMBERS,
    seed=seeds,
    what=st.sampled_from(["labels", "classes", "class", "rate", "n_classes", "per_class", "rng"]),
)
def test_invalid_corruption_raises_our_errors(value, seed, what):
    rng = np.random.default_rng(seed)
    labels = corrupt(rng, rng.integers(3, size=9)) if what == "labels" else [0, 1, 2, 0, 1, 2]
    classes = value if what == "classes" else [value] if what == "class" else [0]
    rate = value if what == "rate" else 0.5
    draws = value if what == "rng" else rng
    n_classes = value if what == "n_classes" else 3
    result_or_error(lambda: corruption.noisy_labels(labels, classes, rate, n_classes, draws))
    result_or_error(lambda: corruption.undersample(labels, classes, rate, draws))
    result_or_error(lambda: corruption.stratified_split(labels, value if what == "per_class" else 1, draws))


NUMBERS = st.one_of(st.floats(1e-6, 1e6), BAD_NUMBERS, st.integers(1, 10**6))
BOUND = ("n", "n_classes", "gamma", "alpha_range", "l_f", "l_c", "delta", "p_min", "epsilon")
GOOD = {
    "n": 500,
    "n_classes": 10,
    "gamma": 0.1,
    "alpha_range": (0.1, 10.0),
    "l_f": 5.0,
    "l_c": 1.0,
    "delta": 0.05,
    "p_min": 0.05,
    "epsilon": 0.5,
}


@fuzzed(share=3, changed=st.dictionaries(st.sampled_from(BOUND), NUMBERS, max_size=2))
def test_bounds_are_finite_or_raise_our_errors(changed):
    v = GOOD | changed
    common = {name: v[name] for name in ("alpha_range", "l_f", "l_c", "delta")}
    for bound in (
        result_or_error(lambda: theory.cts_bound(v["n"], v["n_classes"], v["gamma"], **common)),
        result_or_error(lambda: theory.classwise_bound(v["n"], v["p_min"], **common)),
        result_or_error(
            lambda: theory.classwise_confidence(v["n"], v["p_min"], v["n_classes"], delta=v["delta"])
        ),
    ):
        assert bound is None or (math.isfinite(bound) and bound >= 0)
    result_or_error(lambda: theory.samples_needed(v["epsilon"], p_min=v["p_min"], **common))
    needed = {"n_classes": v["n_classes"], "gamma": v["gamma"]}
    result_or_error(lambda: theory.samples_needed(v["epsilon"], **needed, **common))


@fuzzed(
    share=2,
    a=st.one_of(st.floats(0, 0.5), BAD_NUMBERS),
    b=st.floats(0, 0.5),
    size=st.integers(1, 200),
    seed=seeds,
)
def test_noisy_binary(a, b, size, seed):
    model = result_or_error(lambda: theory.NoisyBinary(a, b))
    if model is None:
        return
    x, y = model.sample(size, seed)
    fit = result_or_error(lambda: model.fit(x, y))
    assert fit is None or 0 <= fit.prob_plus <= 1
    exact = model.fit_population()
    assert exact.prob_plus == pytest.approx(1 - a, abs=1e-6)
    draws = model.simulate(size, draws=5, rng=seed, p_test=0.1)
    assert np.all((draws.accuracy >= 0) & (draws.accuracy <= 1) | np.isnan(draws.accuracy))


@fuzzed(
    share=0.5,
    n=st.one_of(st.integers(1, 30), BAD_NUMBERS),
    size=st.integers(1, 100),
    seed=seeds,
    epsilon=NUMBERS,
)
def test_rare_feature(n, size, seed, epsilon):
    model = result_or_error(lambda: theory.RareFeature(n))
    if model is None:
        return
    result_or_error(lambda: model.statement_radius(epsilon))
    x, y = model.sample(size, seed)
    fit = model.fit(x, y, 5.0)
    assert np.isnan(fit.weight).any() or np.linalg.norm(fit.weight) <= 5 * (1 + 1e-6)
    event_rates = result_or_error(lambda: model.simulate(size, draws=5, epsilon=epsilon, rng=seed))
    assert event_rates is None or 0 <= event_rates.seen <= 1


@fuzzed(
    share=0.5, case=cases(contents=(*MODERATE, "huge"), max_n=100), gamma=st.sampled_from([0, 0.1, np.inf])
)
def test_bound_check(case, gamma):
    assume((case.z != case.z[:, :1]).any())
    (check,) = planning.bound_check(case.z, case.y, case.z, case.y, gammas=[gamma])
    assert check.excess <= check.bound
    assert abs(check.excess) <= 1e-9 + 1e-6 * check.l_f  # fitted and evaluated on the same rows


@fuzzed(share=0.02, case=cases(contents=("tame", "tied"), max_n=300, wide=3), level=st.floats(0.5, 0.99))
def test_plans(case, level):
    methods = {"TS": h.TemperatureScaling(), "CTS": h.ClassWiseTemperatureScaling()}
    plan = result_or_error(
        lambda: h.plan_validation_size(case.z, case.y, methods=methods, n_repeats=5, level=level)
    )
    if plan is not None:
        assert str(plan)
        assert plan.best.limit.low <= plan.best.limit.high


@fuzzed(
    share=0.1,
    value=BAD_NUMBERS,
    what=st.sampled_from(
        [
            "target",
            "methods",
            "sizes",
            "n_repeats",
            "tolerance",
            "level",
            "class_names",
            "alpha_range",
            "delta",
            "n_bins",
            "rng",
            "max_seconds",
        ]
    ),
)
def test_invalid_plans_raise_our_errors(value, what):
    z = np.random.default_rng(0).normal(size=(60, 2)) * 3
    options = {"methods": {"TS": h.TemperatureScaling()}, "n_repeats": 5, "sizes": [10, 20, 40]}
    result_or_error(lambda: h.plan_validation_size(z, np.arange(60) % 2, **(options | {what: value})))


@fuzzed(
    case=cases(max_n=20, wide=5),
    seed=seeds,
    what=st.sampled_from(["z", "y", "w", "g", "rows"]),
    value=BAD_NUMBERS,
)
def test_invalid_batches_raise_our_errors(case, seed, what, value):
    rng = np.random.default_rng(seed)
    n = len(case.y)
    arrays = {"z": case.z, "y": case.y, "w": np.ones(n), "g": rng.integers(2, size=n)}
    if what in arrays:
        arrays[what] = corrupt(rng, arrays[what])
    options = {
        "sample_weight": arrays["w"],
        "groups": arrays["g"],
        "batch_rows": value if what == "rows" else 3,
    }
    batches = result_or_error(lambda: h.Batches(arrays["z"], arrays["y"], **options))
    if batches is not None:
        result_or_error(lambda: h.TemperatureScaling().fit(batches))
        result_or_error(lambda: h.ClassWiseTemperatureScaling().fit(batches))


@fuzzed(
    share=0.02,
    case=cases(max_n=60, wide=4),
    style=st.sampled_from(["md", "json", "html"]),
    grouped=st.booleans(),
)
def test_reports(case, style, grouped):
    groups = case.rng.choice(["a", "<b>"], size=len(case.y)) if grouped else None
    text = result_or_error(lambda: h.make_report(case.z, case.y, groups=groups, format=style, title="<t>"))
    assert text is None or len(text) > 100
    assert text is None or style != "html" or "<t>" not in text


@fuzzed(
    share=0.05, case=cases(contents=MODERATE, max_n=60, wide=4), named=st.booleans(), ensemble=st.booleans()
)
@pytest.mark.filterwarnings("ignore:The least populated class:UserWarning")
def test_classifiers(case, named, ensemble):
    y = np.array(["ant", "bee", "cow", "dog"])[case.y] if named else case.y
    classifier = h.CalibratedClassifier(LogisticRegression(), h.TemperatureScaling(), cv=2, ensemble=ensemble)
    fitted = result_or_error(lambda: classifier.fit(case.z.astype(float), y))
    if fitted is not None:
        p = fitted.predict_proba(case.z.astype(float))
        assert np.abs(p.sum(axis=1) - 1).max() < 1e-9
        assert set(fitted.predict(case.z.astype(float))) <= set(y)
