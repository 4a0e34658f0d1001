"""Temperatures that minimise the Brier score or the calibration error."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import softmax

from hetcal import CalibrationWarning, ClassWiseTemperatureScaling, TemperatureScaling
from hetcal.metrics import ece

quiet = pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")


def brier_of(p, y, w=None):
    return np.average(((p - np.eye(p.shape[1])[y]) ** 2).sum(axis=1), weights=w)


def classwise_ece(p, y):
    """Σ_k n_k/n · ECE of the rows predicted as class k, which the class-wise search minimises."""
    guess = p.argmax(axis=1)
    parts = [(np.mean(guess == k), ece(p[guess == k], y[guess == k])) for k in np.unique(guess)]
    return sum(share * value for share, value in parts)


SCORES = {"brier": (brier_of, brier_of), "ece": (ece, classwise_ece)}


@pytest.mark.parametrize("loss", ["brier", "ece"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("n", "n_classes"), [(200, 3), (600, 10)])
def test_loss_is_at_most_that_of_the_nll_solution(make_sample, loss, seed, n, n_classes):
    z, y, _ = make_sample(n, n_classes, seed)
    loss_fit, nll_fit = TemperatureScaling(loss=loss).fit(z, y), TemperatureScaling().fit(z, y)
    score = SCORES[loss][0]
    assert score(loss_fit.predict_proba(z), y) <= score(nll_fit.predict_proba(z), y) + 1e-12


@quiet
@pytest.mark.parametrize("loss", ["brier", "ece"])
@pytest.mark.parametrize("gamma", [0, 0.01, 0.1, 0.5, np.inf])
@pytest.mark.parametrize("seed", range(3))
def test_loss_is_at_most_that_of_the_nll_solution_within_gamma(make_sample, loss, gamma, seed):
    z, y, _ = make_sample(500, 4, seed, alpha=np.geomspace(0.25, 1.5, 4))
    loss_fit = ClassWiseTemperatureScaling(gamma=gamma, loss=loss).fit(z, y)
    nll_fit = ClassWiseTemperatureScaling(gamma=gamma).fit(z, y)
    score = SCORES[loss][1 if gamma else 0]
    assert score(loss_fit.predict_proba(z), y) <= score(nll_fit.predict_proba(z), y) + 1e-12
    assert np.abs(loss_fit.alpha_ - loss_fit.alpha0_).max() <= gamma + 1e-9
    assert loss_fit.gamma_ == gamma


@pytest.mark.parametrize("loss", ["brier", "ece"])
def test_wider_gamma_never_fits_worse(make_sample, loss):
    z, y, _ = make_sample(500, 4, 5, alpha=np.geomspace(0.25, 1.5, 4))
    score = SCORES[loss][1]
    values = [
        score(ClassWiseTemperatureScaling(gamma=g, loss=loss).fit(z, y).predict_proba(z), y)
        for g in (0, 0.05, 0.3, 1.0, np.inf)
    ]
    assert values[-1] < values[0]
    # The tolerance is the resolution of the search.
    assert values[-1] <= min(values) + (1e-6 if loss == "brier" else 1e-3)
    assert values[1] <= values[0] + 1e-6  # a small positive Γ is never worse than zero


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_brier_finds_the_optimum(make_sample, seed, weighted):
    z, y, _ = make_sample(400, 4, seed)
    w = np.random.default_rng(seed).uniform(0.1, 2, size=400) if weighted else None
    cal = TemperatureScaling(loss="brier").fit(z, y, sample_weight=w)
    solution = minimize_scalar(
        lambda t: brier_of(softmax(np.exp(t) * z, axis=1), y, w),
        bounds=(-3, 3),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assert cal.alpha_ == pytest.approx(np.exp(solution.x), rel=1e-4)
    assert brier_of(cal.predict_proba(z), y, w) <= solution.fun * (1 + 1e-8)


def test_brier_per_class_finds_each_optimum(make_sample):
    z, y, _ = make_sample(900, 3, 0)
    cal = ClassWiseTemperatureScaling(loss="brier").fit(z, y)
    for k in range(3):
        r = z.argmax(axis=1) == k
        assert cal.alpha_[k] == pytest.approx(
            TemperatureScaling(loss="brier").fit(z[r], y[r]).alpha_, rel=1e-6
        )


def test_known_truth_is_recovered(make_sample):
    z, y, truth = make_sample(20_000, 4, 0, alpha=np.array([0.4, 0.6, 1.0, 1.5]))
    for loss in ("brier", "ece"):
        np.testing.assert_allclose(ClassWiseTemperatureScaling(loss=loss).fit(z, y).alpha_, truth, rtol=0.15)


def test_classes_that_are_never_predicted_have_the_centre(make_sample):
    z, y, _ = make_sample(300, 3, 0)
    rows = (z.argmax(axis=1) != 2) & (y != 2)
    for gamma in (0.1, np.inf):
        with pytest.warns(CalibrationWarning, match="class 2"):
            cal = ClassWiseTemperatureScaling(gamma=gamma, loss="brier").fit(z[rows], y[rows])
        assert cal.alpha_[2] == cal.alpha0_


def test_ties_go_to_the_temperature_nearest_to_one():
    # Any α gives these rows a confidence of 1/2.
    z, y = np.ones((10, 2)), np.array([0, 1] * 5)
    assert TemperatureScaling(loss="ece").fit(z, y).alpha_ == pytest.approx(1.0)
