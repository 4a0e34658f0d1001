"""Edge cases: extreme logits and weights, very few rows, and separable slices."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

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
    binary_logits,
    to_logits,
)

pytestmark = pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")

ALL = [
    Identity(),
    TemperatureScaling(),
    TemperatureScaling(loss="brier"),
    TemperatureScaling(loss="ece"),
    ClassWiseTemperatureScaling(),
    ClassWiseTemperatureScaling(gamma=0.1),
    ClassWiseTemperatureScaling(gamma="cv"),
    ClassWiseTemperatureScaling(gamma="bayes"),
    ClassWiseTemperatureScaling(gamma=0.1, loss="ece"),
    ClassWiseTemperatureScaling(bundles=2),
    VectorScaling(),
    VectorScaling(ridge=1e-3),
    VectorScaling(ridge=1e-3, center=True, keep_decision=True),
    PlattScaling(),
    PlattScaling(pool=True),
    ClassWise(PlattScaling(pool=True), gamma="bayes"),
    Chain([TemperatureScaling(), ClassWise(PlattScaling(), gamma="bayes")]),
    Mixture([TemperatureScaling(), PlattScaling()], [1, 2]),
    TopLabelIsotonic(),
    TopLabelHistogram(),
    ClassWise(PlattScaling()),
    ClassWise(PlattScaling(), gamma=0.5),
    ClassWise(VectorScaling(ridge=1e-3)),
    ClassWise(TopLabelIsotonic(), min_samples=1),
    AutoCalibrator(cv=2),
]
every_calibrator = pytest.mark.parametrize("cal", ALL, ids=repr)


def assert_valid(cal, z):
    p = cal.predict_proba(z)
    assert np.all(np.isfinite(p))
    assert p.min() >= 0
    assert p.max() <= 1
    np.testing.assert_allclose(p.sum(axis=1, dtype=float), 1, atol=1e-5 if p.dtype == np.float32 else 1e-12)
    if cal.preserves_decision:
        np.testing.assert_array_equal(p.argmax(axis=1), np.argmax(z, axis=1))
    return p


@every_calibrator
@pytest.mark.parametrize("label", [0, 2])
def test_one_row(cal, label):
    assert_valid(cal.fit([[0.5, 2.0, -1.0]], [label]), np.array([[0.5, 2.0, -1.0], [9.0, 0.0, 0.0]]))


@every_calibrator
def test_two_rows(cal):
    z = np.array([[0.5, 2.0, -1.0], [3.0, 2.0, -1.0]])
    assert_valid(cal.fit(z, [1, 1]), z)


@every_calibrator
def test_two_classes(cal, make_sample):
    z, y, _ = make_sample(200, 2, 0)
    assert_valid(cal.fit(z, y), z)


@every_calibrator
def test_binary_scores(cal):
    rng = np.random.default_rng(0)
    s = rng.normal(scale=3, size=300)
    y = rng.random(300) < expit(0.5 * s)
    p = assert_valid(cal.fit(binary_logits(s), y), binary_logits(s))
    if type(cal) in (TemperatureScaling, PlattScaling):
        assert np.abs(p[:, 1] - expit(0.5 * s)).mean() < 0.05


@every_calibrator
def test_constant_rows(cal):
    z = np.tile([[3.0], [-2.0], [0.25]], (20, 4))
    y = np.arange(60) % 4
    assert_valid(cal.fit(z, y), z)


@every_calibrator
def test_some_constant_rows(cal, make_sample):
    z, y, _ = make_sample(200, 3, 0)
    z[::3] = 1.5
    assert_valid(cal.fit(z, y), z)


def test_constant_rows_do_not_change_a_temperature(make_sample):
    z, y, _ = make_sample(200, 3, 0)
    flat = np.zeros((50, 3))
    first = TemperatureScaling().fit(z, y).alpha_
    with_constant_rows = TemperatureScaling().fit(np.vstack([z, flat]), np.r_[y, np.arange(50) % 3]).alpha_
    assert with_constant_rows == pytest.approx(first, rel=1e-9)


def test_class_of_constant_rows_has_the_pooled_temperature(make_sample):
    z, y, _ = make_sample(300, 3, 0)
    z[z.argmax(axis=1) == 0] = 2.0  # ties go to class 0
    y[z.argmax(axis=1) == 0] = 0
    cal = ClassWiseTemperatureScaling().fit(z, y)
    assert cal.alpha_[0] == cal.alpha0_


HUGE = [(np.float32, 1e38), (np.float32, 3.4e38), (np.float64, 1e300), (np.float64, 1.7e308)]


@every_calibrator
@pytest.mark.parametrize(("dtype", "size"), HUGE)
def test_huge_logits(cal, dtype, size, make_sample):
    z, y, _ = make_sample(120, 3, 0)
    z = (z / np.abs(z).max() * size).astype(dtype)
    assert np.all(np.isfinite(z))
    assert_valid(cal.fit(z, y), z)


@every_calibrator
@pytest.mark.parametrize(("dtype", "size"), HUGE)
def test_masked_classes(cal, dtype, size, make_sample):
    # Masks are large negative numbers, as in language models. No label is masked.
    z, y, _ = make_sample(200, 4, 0, dtype=dtype)
    masked = (np.arange(200)[:, None] + np.arange(4)) % 5 == 0
    masked[np.arange(200), y] = False
    masked[np.arange(200), z.argmax(axis=1)] = False
    z[masked] = -size
    p = assert_valid(cal.fit(z, y), z)
    if type(cal) in (Identity, TemperatureScaling, ClassWiseTemperatureScaling):
        assert np.all(p[masked] == 0)


@pytest.mark.parametrize(("dtype", "size"), HUGE)
def test_masks_equal_minus_infinity(dtype, size, make_sample):
    z, y, _ = make_sample(300, 3, 0, dtype=dtype)
    wide = np.full((300, 4), -size, dtype)
    wide[:, :3] = z
    first = TemperatureScaling().fit(z, y)
    with_masks = TemperatureScaling().fit(wide, y)
    assert with_masks.alpha_ == pytest.approx(first.alpha_, rel=1e-6)
    np.testing.assert_allclose(with_masks.predict_proba(wide)[:, :3], first.predict_proba(z), atol=1e-6)


@every_calibrator
@pytest.mark.parametrize("size", [1e-38, 1e-300, 5e-324])
def test_tiny_logits(cal, size, make_sample):
    z, y, _ = make_sample(120, 3, 0)
    z = np.round(z / np.abs(z).max() * 100) * size
    assert_valid(cal.fit(z, y), z)


@every_calibrator
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extremely_confident_slices(cal, dtype, make_sample):
    z, y, _ = make_sample(400, 4, 0, dtype=dtype)
    guess = z.argmax(axis=1)
    z[guess == 1] *= 1e3  # some predictions are wrong
    z[guess == 2] *= 1e3
    y[guess == 2] = 2  # none is wrong
    assert_valid(cal.fit(z, y), z)


@every_calibrator
def test_large_shift(cal, make_sample):
    z, y, _ = make_sample(200, 3, 0)
    shift = 1e4 if "Vector" in repr(cal) else 1e8  # ill-conditioned for vector scaling
    assert_valid(cal.fit(z + shift, y), z + shift)


@every_calibrator
def test_weights_of_different_magnitude(cal, make_sample):
    z, y, _ = make_sample(200, 3, 0)
    assert_valid(cal.fit(z, y, sample_weight=np.geomspace(1e-12, 1e12, 200)), z)


@every_calibrator
def test_all_predictions_wrong(cal, make_sample):
    z, _, _ = make_sample(200, 3, 0)
    p = assert_valid(cal.fit(z, (z.argmax(axis=1) + 1) % 3), z)
    if type(cal) in (TemperatureScaling, TopLabelIsotonic, PlattScaling):
        assert p.max() < 0.5


@every_calibrator
def test_integer_and_non_contiguous_input(cal):
    rng = np.random.default_rng(0)
    z = rng.integers(-5, 6, size=(100, 3))
    y = rng.integers(0, 3, size=100)
    first = cal.fit(z.astype(float), y).predict_proba(z.astype(float))
    for variant in (
        z,
        z.astype(np.int8),
        z.astype(">f8"),
        np.asfortranarray(z * 1.0),
        (z * 1.0)[::-1][::-1],
        z.tolist(),
    ):
        np.testing.assert_array_equal(cal.fit(variant, y).predict_proba(variant), first)


def test_output_has_the_dtype_of_the_input(make_sample):
    z, y, _ = make_sample(100, 3, 0)
    cal = TemperatureScaling().fit(z, y)
    for dtype_in, dtype_out in (
        (np.float16, np.float32),
        (np.float32, np.float32),
        (np.float64, np.float64),
        (int, np.float64),
    ):
        assert cal.predict_proba(z.astype(dtype_in)).dtype == dtype_out


def test_log_probabilities_as_logits(make_sample):
    z, y, _ = make_sample(100, 3, 0)
    p = Identity().fit(z, y).predict_proba(z)
    np.testing.assert_allclose(Identity().fit(to_logits(p), y).predict_proba(to_logits(p)), p, rtol=1e-12)
    hard = np.eye(3)[y]
    np.testing.assert_array_equal(Identity().fit(z, y).predict_proba(probs=hard), hard)


@pytest.mark.parametrize("bounds", [(1e-6, 1e-3), (1e3, 1e9), (0.999, 1.001)])
def test_unusual_bounds(bounds, make_sample):
    z, y, _ = make_sample(200, 3, 0)
    for gamma in (0, 0.1, np.inf, "cv", "bayes"):
        cal = ClassWiseTemperatureScaling(gamma=gamma, alpha_bounds=bounds).fit(z, y)
        assert np.all((cal.alpha_ >= bounds[0]) & (cal.alpha_ <= bounds[1]))
        assert_valid(cal, z)


def test_vector_scaling_of_one_row_converges():
    # Once the loss is zero up to rounding, the solver must stop instead of exhausting its steps.
    z = np.array([[0.0, 1.0, 1.0, 2.0, -2.0, 2.0, -2.0, 0.0, -2.0]])
    cal = VectorScaling().fit(z, [1])
    assert assert_valid(cal, z)[0, 1] > 0.999
    assert np.abs(cal.scale_).max() < 100  # rounding along flat directions must not enlarge it


@pytest.mark.parametrize("upper", [1e9, 1e300])
def test_masks_with_a_large_alpha(upper):
    z = np.array([[-3e38, 5.6, 1.9], [1.2, 1.5, -3e38], [-3e38, 7.7, -1.4]], np.float32)
    cal = ClassWiseTemperatureScaling(alpha_bounds=(1e-6, upper)).fit(z, [1, 1, 1])
    np.testing.assert_array_equal(assert_valid(cal, z)[:, 1], 1)


def test_huge_slope_with_tiny_curvature():
    z = np.array([[-100.0, 0.0, 1.0], [1.0, 1.0, -100.0], [710.0, -1e38, 0.0]])
    assert_valid(ClassWiseTemperatureScaling("cv", cv=2).fit(z, [0, 0, 1]), z)


def test_weights_whose_squares_overflow_raise():
    with pytest.raises(ValueError, match=r"sample_weight must .*got 1e\+300 at row 1"):
        TemperatureScaling().fit([[2.0, 0.0], [0.0, 2.0]], [0, 1], sample_weight=[1, 1e300])


@pytest.mark.parametrize("weight", [1.0, 1e12, 1e100])
def test_shrunk_platt_scaling_of_equal_rows(weight):
    z, y = np.tile([-3.0, 0.0], (18, 1)), np.r_[np.zeros(4, int), np.ones(14, int)]
    p = ClassWise(PlattScaling(), gamma="bayes").fit(z, y, sample_weight=np.full(18, weight)).predict_proba(z)
    np.testing.assert_allclose(p, np.tile([4 / 18, 14 / 18], (18, 1)), atol=0.02)
