"""Invariance to the order of rows and classes, copies of all rows, and the scale of weights."""

from __future__ import annotations

import numpy as np
import pytest

from hetcal import (
    AutoCalibrator,
    Chain,
    ClassWise,
    ClassWiseTemperatureScaling,
    Identity,
    Mixture,
    PlattScaling,
    TemperatureScaling,
    TopLabelHistogram,
    TopLabelIsotonic,
    VectorScaling,
)

pytestmark = pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")

# These depend only on relative weights, so copying all rows does not change them.
BY_SHARE = {
    "identity": Identity(),
    "ts": TemperatureScaling(),
    "ts-brier": TemperatureScaling(loss="brier"),
    "ts-ece": TemperatureScaling(loss="ece"),
    "cts": ClassWiseTemperatureScaling(),
    "cts-0": ClassWiseTemperatureScaling(gamma=0),
    "cts-coupled": ClassWiseTemperatureScaling(gamma=0.1),
    "cts-brier": ClassWiseTemperatureScaling(gamma=0.1, loss="brier"),
    "cts-bundles": ClassWiseTemperatureScaling(bundles=2),
    "vector": VectorScaling(),
    "vector-ridge": VectorScaling(ridge=0.1),
    "vector-kept": VectorScaling(ridge=0.1, center=True, keep_decision=True),
    "platt": PlattScaling(),
    "platt-pooled": PlattScaling(pool=True),
    "chain": Chain([TemperatureScaling(), PlattScaling()]),
    "mixture": Mixture([TemperatureScaling(), PlattScaling()]),
    "isotonic": TopLabelIsotonic(),
    "histogram": TopLabelHistogram(n_bins=7),
    "histogram-width": TopLabelHistogram(n_bins=7, binning="width"),
    "classwise-ts": ClassWise(TemperatureScaling(), gamma=0.1),
    "classwise-platt": ClassWise(PlattScaling(), gamma=0.1),
    "classwise-vector": ClassWise(VectorScaling(), gamma=0.1),
    "classwise-isotonic": ClassWise(TopLabelIsotonic()),
}
# These also depend on the number of rows, or on the effective sample size of weighted rows.
BY_COUNT = {
    "cts-bayes": ClassWiseTemperatureScaling(gamma="bayes"),
    "classwise-platt-bayes": ClassWise(PlattScaling(pool=True), gamma="bayes"),
}
# These split rows into folds.
BY_FOLDS = {
    "cts-cv": ClassWiseTemperatureScaling(gamma="cv"),
    "auto": AutoCalibrator({"a": TemperatureScaling(), "b": ClassWiseTemperatureScaling()}, cv=3),
}
# Tolerances for iterative solvers, whose last step depends on the order of summation.
LOOSE = {
    "vector": 1e-6,
    "vector-ridge": 1e-7,
    "classwise-vector": 1e-6,
    "classwise-platt": 1e-7,
    "platt": 1e-8,
    "platt-pooled": 1e-8,
    "vector-kept": 1e-7,
    "classwise-platt-bayes": 1e-6,
    "chain": 1e-7,
    "mixture": 1e-7,
}


def close(name, p, q):
    np.testing.assert_allclose(p, q, rtol=0, atol=LOOSE.get(name, 1e-9))


@pytest.fixture(scope="module")
def sample(make_sample):
    z, y, _ = make_sample(400, 4, 0)
    return z, y


ALL = BY_SHARE | BY_COUNT | BY_FOLDS


@pytest.mark.parametrize("name", ALL)
def test_order_of_rows(sample, name):
    z, y = sample
    first = ALL[name].fit(z, y).predict_proba(z)
    for seed in range(2):
        mixed = np.random.default_rng(seed).permutation(len(y))
        close(name, ALL[name].fit(z[mixed], y[mixed]).predict_proba(z), first)


@pytest.mark.parametrize("name", BY_SHARE)
def test_copies_of_all_rows(sample, name):
    z, y = sample
    first = BY_SHARE[name].fit(z, y).predict_proba(z)
    close(name, BY_SHARE[name].fit(np.tile(z, (3, 1)), np.tile(y, 3)).predict_proba(z), first)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("scale", [1 / 400, 1e4])
def test_scale_of_weights(sample, name, scale):
    z, y = sample
    w = np.random.default_rng(0).integers(1, 4, size=len(y)).astype(float)
    first = ALL[name].fit(z, y, sample_weight=w).predict_proba(z)
    close(name, ALL[name].fit(z, y, sample_weight=scale * w).predict_proba(z), first)


@pytest.mark.parametrize("weighted", [False, True])
def test_scale_of_weights_does_not_change_auto_and_standard_errors(sample, weighted):
    z, y = sample
    w = np.random.default_rng(0).uniform(0.1, 2, size=len(y)) if weighted else np.ones(len(y))
    for scale in (1 / 400, 1e4):
        original, scaled = (
            ClassWiseTemperatureScaling("bayes").fit(z, y, sample_weight=v) for v in (w, scale * w)
        )
        np.testing.assert_allclose(scaled.alpha_std_, original.alpha_std_, rtol=1e-6)
        assert scaled.choice_["tau"] == pytest.approx(original.choice_["tau"])
        original, scaled = (AutoCalibrator(cv=2).fit(z, y, sample_weight=v) for v in (w, scale * w))
        np.testing.assert_allclose(
            [c["weight"] for c in scaled.candidates_], [c["weight"] for c in original.candidates_], atol=1e-4
        )
        np.testing.assert_allclose(scaled.predict_proba(z), original.predict_proba(z), atol=1e-5)


def test_standard_errors_follow_the_effective_sample_size(sample):
    z, y = sample
    unweighted = TemperatureScaling().fit(z, y).alpha_std_
    assert TemperatureScaling().fit(z, y, sample_weight=np.full(len(y), 7.0)).alpha_std_ == unweighted
    w = np.where(np.arange(len(y)) < 100, 1.0, 1e-6)  # equivalent to 100 rows
    assert TemperatureScaling().fit(z, y, sample_weight=w).alpha_std_ == pytest.approx(
        TemperatureScaling().fit(z[:100], y[:100]).alpha_std_, rel=1e-2
    )


@pytest.mark.parametrize("name", BY_SHARE)
def test_integer_weights_equal_repeated_rows(sample, name):
    z, y = sample
    cal = BY_SHARE[name]
    w = np.random.default_rng(1).integers(1, 5, size=len(y))
    weighted = cal.fit(z, y, sample_weight=w).predict_proba(z)
    close(name, cal.fit(np.repeat(z, w, axis=0), np.repeat(y, w)).predict_proba(z), weighted)
    insensitive = name in ("identity", "ts-ece")  # a search on a grid may find the same value
    assert np.abs(cal.fit(z, y).predict_proba(z) - weighted).max() > 1e-5 or insensitive


@pytest.mark.parametrize("name", ALL)
def test_zero_weight_equals_removal(sample, name):
    z, y = sample
    w = np.random.default_rng(2).choice([0.0, 1.0, 2.5], size=len(y))
    zero = w == 0
    bad = z.copy()
    bad[zero] = bad[zero, ::-1] * 30  # the content of these rows must not matter
    weighted = ALL[name].fit(bad, y, sample_weight=w).predict_proba(z)
    close(name, ALL[name].fit(z[~zero], y[~zero], sample_weight=w[~zero]).predict_proba(z), weighted)


@pytest.mark.parametrize("name", ALL)
def test_unit_weights_equal_no_weights(sample, name):
    z, y = sample
    first = ALL[name].fit(z, y).predict_proba(z)
    close(name, ALL[name].fit(z, y, sample_weight=np.ones(len(y))).predict_proba(z), first)
    close(name, ALL[name].fit(z, y, sample_weight=1).predict_proba(z), first)


@pytest.mark.parametrize("name", ALL)
def test_weights_and_groups_together(sample, name):
    z, y = sample
    rng = np.random.default_rng(3)
    groups, w = rng.choice(["a", "b"], size=len(y)), rng.choice([0.0, 1.0, 2.0], size=len(y))
    if "bundles" in name:
        pytest.skip("groups and bundles exclude each other")
    positive = w > 0
    first = ALL[name].fit(z, y, sample_weight=w, groups=groups).predict_proba(z, groups=groups)
    without_zeros = ALL[name].fit(
        z[positive], y[positive], sample_weight=w[positive], groups=groups[positive]
    )
    close(name, without_zeros.predict_proba(z, groups=groups), first)


@pytest.mark.parametrize("name", ALL)
def test_order_of_classes(sample, name):
    z, y = sample
    new_column = np.array([2, 0, 3, 1])
    permuted = np.empty_like(z)
    permuted[:, new_column] = z
    p = ALL[name].fit(z, y).predict_proba(z)
    q = ALL[name].fit(permuted, new_column[y]).predict_proba(permuted)
    close(name, q[:, new_column], p)


@pytest.mark.parametrize("gamma", [0, 0.1, np.inf, "cv", "bayes"])
def test_alpha_follows_the_order_of_classes(sample, gamma):
    z, y = sample
    new_column = np.array([2, 0, 3, 1])
    permuted = np.empty_like(z)
    permuted[:, new_column] = z
    cal = ClassWiseTemperatureScaling(gamma=gamma)
    alpha, counts = cal.fit(z, y).alpha_, cal.n_samples_
    cal.fit(permuted, new_column[y])
    np.testing.assert_allclose(cal.alpha_[new_column], alpha, rtol=1e-9)
    np.testing.assert_array_equal(cal.n_samples_[new_column], counts)


@pytest.mark.parametrize("gamma", [0, 0.1, np.inf, "cv", "bayes"])
def test_temperatures_are_invariant_to_shifts(sample, gamma):
    z, y = sample
    shift = np.random.default_rng(0).normal(scale=5, size=(len(y), 1))
    alpha = ClassWiseTemperatureScaling(gamma=gamma).fit(z, y).alpha_
    np.testing.assert_allclose(
        ClassWiseTemperatureScaling(gamma=gamma).fit(z + shift, y).alpha_, alpha, rtol=1e-9
    )


@pytest.mark.parametrize("gamma", [0, np.inf, "bayes"])
def test_temperatures_scale_with_the_logits(sample, gamma):
    z, y = sample
    alpha = ClassWiseTemperatureScaling(gamma=gamma).fit(z, y).alpha_
    np.testing.assert_allclose(
        ClassWiseTemperatureScaling(gamma=gamma).fit(4 * z, y).alpha_, alpha / 4, rtol=1e-6
    )


@pytest.mark.parametrize("name", ALL)
def test_second_fit_does_not_depend_on_the_first(sample, name):
    z, y = sample
    cal = ALL[name].fit(z[:200], y[:200])
    refitted = cal.fit(z, y).predict_proba(z)
    np.testing.assert_array_equal(cal.fit(z, y).predict_proba(z), refitted)


@pytest.mark.parametrize("name", ALL)
def test_input_is_not_modified(sample, name):
    z, y = sample
    w = np.ones(len(y))
    copies = [a.copy() for a in (z, y, w)]
    for a in copies:
        a.setflags(write=False)
    p = ALL[name].fit(copies[0], copies[1], sample_weight=copies[2]).predict_proba(copies[0])
    p[:] = 0
    for a, b in zip(copies, (z, y, w), strict=True):
        np.testing.assert_array_equal(a, b)
