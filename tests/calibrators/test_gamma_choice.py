"""Choice of Γ by cross-validation (gamma="cv") and by shrinkage (gamma="bayes")."""

from __future__ import annotations

import numpy as np
import pytest

from hetcal import ClassWiseTemperatureScaling, TemperatureScaling

quiet = pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")
SEEDS = range(6)
WIDE = np.array([0.2, 0.4, 0.8, 1.6, 2.5])


def heldout_nll(cal, z, y):
    return -np.log(cal.predict_proba(z)[np.arange(len(y)), y]).mean()


def farthest_class(z, y):
    """Largest distance of a class's own α from the pooled α."""
    free = ClassWiseTemperatureScaling().fit(z, y)
    return np.abs(free.alpha_ - free.alpha0_).max()


def test_cv_records_grid_and_scores(make_sample):
    z, y, _ = make_sample(600, 4, 0)
    cal = ClassWiseTemperatureScaling(gamma="cv").fit(z, y)
    grid, scores, errors = (np.array(cal.choice_[name]) for name in ("gamma", "nll", "error"))
    assert grid[0] == 0
    assert grid[-1] == np.inf
    assert np.all(np.diff(grid) > 0)
    assert len(grid) == len(scores) == len(errors)
    assert cal.gamma_ == grid[np.argmin(scores)]
    assert errors[np.argmin(scores)] == 0
    assert np.all(errors >= 0)
    chosen = ClassWiseTemperatureScaling(gamma=cal.gamma_).fit(z, y)
    np.testing.assert_allclose(cal.alpha_, chosen.alpha_, rtol=1e-12)


def test_cv_scores_are_out_of_fold_losses(make_sample):
    # For Γ = 0, the score is the loss of temperature scaling fitted without the row. Folds of one row
    # make the split unique.
    z, y, _ = make_sample(120, 3, 1)
    cal = ClassWiseTemperatureScaling(gamma="cv", cv=len(y)).fit(z, y)
    total = 0.0
    for i in range(len(y)):
        rest = np.arange(len(y)) != i
        total += heldout_nll(TemperatureScaling().fit(z[rest], y[rest]), z[[i]], y[[i]])
    assert cal.choice_["nll"][0] == pytest.approx(total / len(y), rel=1e-7)


@pytest.mark.parametrize("seed", SEEDS)
def test_cv_chooses_a_large_gamma_for_different_classes(make_sample, seed):
    z, y, _ = make_sample(4000, 5, seed, alpha=WIDE)
    cal = ClassWiseTemperatureScaling(gamma="cv").fit(z, y)
    free = ClassWiseTemperatureScaling().fit(z, y)
    np.testing.assert_allclose(cal.alpha_, free.alpha_, rtol=0.05)


@pytest.mark.parametrize("seed", SEEDS)
def test_cv_chooses_a_small_gamma_for_equal_classes(make_sample, seed):
    z, y, _ = make_sample(2000, 10, seed, alpha=0.6)
    cal = ClassWiseTemperatureScaling(gamma="cv").fit(z, y)
    assert cal.gamma_ <= 0.4 * farthest_class(z, y)


def test_cv_often_chooses_gamma_zero_for_equal_classes(make_sample):
    zero = [
        ClassWiseTemperatureScaling(gamma="cv").fit(*make_sample(1000, 10, seed, alpha=0.6)[:2]).gamma_ == 0
        for seed in range(12)
    ]
    assert np.mean(zero) >= 0.4  # a random choice among 11 values would give 0.09


@quiet
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_cv_does_not_depend_on_the_order_of_rows(make_sample, dtype):
    z, y, _ = make_sample(500, 5, 3, dtype=dtype)
    z[:100] *= 50  # many confidences of exactly 1
    z[100:150] = np.round(z[100:150])  # ties
    w = np.random.default_rng(0).integers(1, 4, size=len(y))
    first = ClassWiseTemperatureScaling(gamma="cv").fit(z, y, sample_weight=w)
    for seed in range(3):
        mixed = np.random.default_rng(seed).permutation(len(y))
        reordered = ClassWiseTemperatureScaling(gamma="cv").fit(z[mixed], y[mixed], sample_weight=w[mixed])
        assert reordered.gamma_ == pytest.approx(first.gamma_, rel=1e-9)
        np.testing.assert_allclose(reordered.alpha_, first.alpha_, rtol=1e-9)
        np.testing.assert_allclose(reordered.choice_["nll"], first.choice_["nll"], rtol=1e-6)


@quiet
@pytest.mark.parametrize("gamma", ["cv", "bayes"])
def test_single_row(gamma):
    cal = ClassWiseTemperatureScaling(gamma=gamma).fit([[0.0, 2.0, 1.0]], [2])
    assert np.all(np.isfinite(cal.alpha_))


@quiet
@pytest.mark.parametrize("seed", SEEDS)
def test_bayes_lies_between_the_mean_and_each_class(make_sample, seed):
    z, y, _ = make_sample(40 * 12, 12, seed)
    shrunk = ClassWiseTemperatureScaling(gamma="bayes").fit(z, y)
    free = ClassWiseTemperatureScaling().fit(z, y)
    low, high = np.minimum(free.alpha_, shrunk.alpha0_), np.maximum(free.alpha_, shrunk.alpha0_)
    assert np.all((shrunk.alpha_ >= low * (1 - 1e-6)) & (shrunk.alpha_ <= high * (1 + 1e-6)))
    assert np.all(shrunk.alpha_ != free.alpha_)
    assert np.std(np.log(shrunk.alpha_)) < np.std(np.log(free.alpha_))
    assert np.abs(shrunk.alpha_ - shrunk.alpha0_).max() == pytest.approx(shrunk.gamma_)


@quiet
@pytest.mark.parametrize(("n_classes", "rows"), [(40, 20), (100, 20), (40, 10)])
def test_bayes_beats_both_extremes_for_small_classes(make_sample, n_classes, rows):
    excess = []
    for seed in range(8):
        z, y, truth = make_sample(n_classes * rows + 10_000, n_classes, seed)
        fit, test = slice(n_classes * rows), slice(n_classes * rows, None)
        truth_cal = ClassWiseTemperatureScaling(gamma=0).fit(z[fit], y[fit])
        truth_cal.alpha_ = truth
        best = heldout_nll(truth_cal, z[test], y[test])
        fits = (ClassWiseTemperatureScaling(gamma=g).fit(z[fit], y[fit]) for g in (0, "bayes", np.inf))
        excess.append([heldout_nll(cal, z[test], y[test]) - best for cal in fits])
    pooled, shrunk, free = np.mean(excess, axis=0)
    assert shrunk < 0.85 * free
    assert shrunk < 0.6 * pooled


def test_bayes_recovers_mean_and_spread(make_sample):
    rng = np.random.default_rng(0)
    truth = 0.7 * np.exp(0.5 * rng.normal(size=60))
    z, y, _ = make_sample(60 * 400, 60, 0, alpha=truth)
    cal = ClassWiseTemperatureScaling(gamma="bayes").fit(z, y)
    assert cal.choice_["mu"] == pytest.approx(np.log(truth).mean(), abs=0.05)
    assert cal.choice_["tau"] == pytest.approx(np.log(truth).std(), rel=0.15)
    assert cal.alpha0_ == pytest.approx(np.exp(cal.choice_["mu"]))
    np.testing.assert_allclose(np.log(cal.alpha_), np.log(truth), atol=0.3)


def test_bayes_shrinks_small_classes_more(make_sample):
    z, y, _ = make_sample(6000, 6, 2, alpha=np.geomspace(0.2, 2.0, 6))
    guess = z.argmax(axis=1)
    thin = np.concatenate([np.flatnonzero(guess == k)[: 30 if k < 3 else None] for k in range(6)])
    free = ClassWiseTemperatureScaling().fit(z[thin], y[thin])
    shrunk = ClassWiseTemperatureScaling(gamma="bayes").fit(z[thin], y[thin])
    share_kept = np.log(shrunk.alpha_ / shrunk.alpha0_) / np.log(free.alpha_ / shrunk.alpha0_)
    assert share_kept[[0, 1]].max() < share_kept[[3, 5]].min()
    assert share_kept[[3, 5]].min() > 0.9


@pytest.mark.parametrize("seed", SEEDS)
def test_bayes_pools_equal_classes(make_sample, seed):
    z, y, _ = make_sample(3000, 10, seed, alpha=0.6)
    cal = ClassWiseTemperatureScaling(gamma="bayes").fit(z, y)
    assert cal.gamma_ <= 0.6 * farthest_class(z, y)
    np.testing.assert_allclose(cal.alpha_, 0.6, rtol=0.15)


def test_bayes_shrinks_a_separable_class_to_the_mean(make_sample):
    z, y, _ = make_sample(800, 8, 0)
    guess = z.argmax(axis=1)
    subset = np.flatnonzero((guess != 3) | (np.cumsum(guess == 3) <= 10))
    z, y, guess = z[subset], y[subset], guess[subset]
    y[guess == 3] = 3
    cal = ClassWiseTemperatureScaling(gamma="bayes").fit(z, y)  # a warning would be an error
    spread = cal.choice_["tau"]
    assert spread > 0
    assert 0 < np.log(cal.alpha_[3] / cal.alpha0_) < 3 * spread
    assert cal.alpha_[3] < 5


def test_bayes_with_one_predicted_class_equals_temperature_scaling(make_sample):
    z, y, _ = make_sample(300, 3, 0)
    only = z.argmax(axis=1) == 1
    with pytest.warns(match="class 0, class 2"):
        cal = ClassWiseTemperatureScaling(gamma="bayes").fit(z[only], y[only])
    np.testing.assert_allclose(cal.alpha_, TemperatureScaling().fit(z[only], y[only]).alpha_)
