"""Standard errors of temperatures and of probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from hetcal import Batches, ClassWiseTemperatureScaling, TemperatureScaling

pytestmark = pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")


def redraws(make, make_sample, n=1500, k=4, times=80):
    """Temperatures, probabilities of fixed rows, and their standard errors, for fits to new samples."""
    fixed = np.random.default_rng(99).normal(size=(20, k)) * 2
    draws = []
    for seed in range(times):
        z, y, _ = make_sample(n, k, 1000 + seed, alpha=np.array([0.5, 1.0, 1.5, 0.8]))
        cal = make().fit(z, y)
        draws.append((cal.alpha_, cal.alpha_std_, *cal.predict_proba(fixed, return_std=True)))
    return [np.stack(part) for part in zip(*draws, strict=True)]


@pytest.mark.parametrize(
    "make", [TemperatureScaling, ClassWiseTemperatureScaling, lambda: ClassWiseTemperatureScaling("bayes")]
)
def test_standard_errors_agree_with_the_spread_over_samples(make, make_sample):
    alpha, error, p, p_error = redraws(make, make_sample)
    np.testing.assert_allclose(error.mean(axis=0), alpha.std(axis=0), rtol=0.25)
    observed = p.std(axis=0)
    moves = observed > 1e-3
    np.testing.assert_allclose(p_error.mean(axis=0)[moves], observed[moves], rtol=0.35)


def test_tied_classes_share_the_standard_error_of_all_rows(make_sample):
    z, y, _ = make_sample(2000, 4, 0)
    pooled = TemperatureScaling().fit(z, y)
    tied = ClassWiseTemperatureScaling(0).fit(z, y)
    np.testing.assert_allclose(tied.alpha_std_, pooled.alpha_std_, rtol=1e-6)
    near = ClassWiseTemperatureScaling(1e-3).fit(z, y)
    at_limit = np.isclose(np.abs(near.alpha_ - near.alpha0_), 1e-3)
    np.testing.assert_allclose(near.alpha_std_[at_limit], pooled.alpha_std_, rtol=1e-3)
    free = ClassWiseTemperatureScaling().fit(z, y)
    assert (free.alpha_std_ > pooled.alpha_std_).all()


def test_a_separable_class_has_an_infinite_standard_error():
    z = np.array([[2.0, 0.0]] * 6 + [[0.0, 2.0]] * 6)
    cal = ClassWiseTemperatureScaling().fit(z, [0] * 6 + [1, 1, 1, 1, 0, 0])
    assert cal.alpha_std_[0] == np.inf
    assert np.isfinite(cal.alpha_std_[1])
    p, error = cal.predict_proba(z, return_std=True)
    assert np.isfinite(error).all()
    assert error.shape == p.shape
    assert np.isnan(TemperatureScaling(loss="brier").fit(z, [0] * 6 + [1] * 6).alpha_std_)


def test_batches_have_no_standard_errors(make_sample):
    z, y, _ = make_sample(100, 3, 0)
    cal = TemperatureScaling().fit(z, y)
    with pytest.raises(TypeError, match=r"logits must .*return_std"):
        cal.predict_proba(Batches([(z, y)]), return_std=True)
