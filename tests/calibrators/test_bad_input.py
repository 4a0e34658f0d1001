"""Every calibrator refuses invalid arguments and options; the checks are tested in test_validate.py."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from sklearn.base import clone

from hetcal import (
    AutoCalibrator,
    CalibrationWarning,
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

CALIBRATORS = [
    Identity(),
    TemperatureScaling(),
    ClassWiseTemperatureScaling(),
    VectorScaling(),
    PlattScaling(),
    TopLabelIsotonic(),
    TopLabelHistogram(),
    ClassWise(PlattScaling()),
    ClassWise(TopLabelIsotonic()),
    Chain([TemperatureScaling(), PlattScaling()]),
    Mixture([TemperatureScaling(), PlattScaling()]),
    AutoCalibrator({"TS": TemperatureScaling()}, cv=2),
]
SLICED = [ClassWiseTemperatureScaling(), ClassWise(PlattScaling()), ClassWise(TopLabelIsotonic())]
every_calibrator = pytest.mark.parametrize("calibrator", CALIBRATORS, ids=repr)

N, K = 90, 3
RNG = np.random.default_rng(0)
Z = 2 * RNG.normal(size=(N, K))
Y = np.where(RNG.random(N) < 0.6, Z.argmax(axis=1), RNG.integers(0, K, N))
P = np.exp(Z) / np.exp(Z).sum(axis=1, keepdims=True)
GROUPS = np.array(["a", "b"])[np.arange(N) % 2]


@functools.cache
def fitted(index: int):
    return clone(CALIBRATORS[index]).fit(Z, Y)


# Name of an invalid argument, and the arguments of the call
BAD_FIT = {
    "logits": {"logits": np.where(np.arange(N)[:, None] == 7, np.nan, Z), "labels": Y},
    "probs": {"probs": P * 0.5, "labels": Y},
    "labels": {"logits": Z, "labels": Y + 1},
    "sample_weight": {"logits": Z, "labels": Y, "sample_weight": -np.ones(N)},
    "groups": {"logits": Z, "labels": Y, "groups": GROUPS[1:]},
    "class_names": {"logits": Z, "labels": Y, "class_names": ["a", "b"]},
    "fold_groups": {"logits": Z, "labels": Y, "fold_groups": np.zeros(N)},
}
BAD_PREDICT = {
    "logits": {"logits": np.where(np.arange(N)[:, None] == 7, np.nan, Z)},
    "probs": {"probs": P * 0.5},
    "class_names": {"logits": Z, "class_names": ["a", "b"]},
}


@every_calibrator
@pytest.mark.parametrize("argument", BAD_FIT)
def test_fit_validates(calibrator, argument):
    with pytest.raises(ValueError, match=rf"^{argument} must"):
        clone(calibrator).fit(**BAD_FIT[argument])


@every_calibrator
@pytest.mark.parametrize("argument", BAD_PREDICT)
def test_predict_proba_validates(calibrator, argument):
    with pytest.raises(ValueError, match=rf"^{argument} must"):
        fitted(CALIBRATORS.index(calibrator)).predict_proba(**BAD_PREDICT[argument])


@every_calibrator
def test_arguments_that_are_missing_or_contradict_each_other(calibrator):
    model = fitted(CALIBRATORS.index(calibrator))
    for call in (
        lambda: clone(calibrator).fit(labels=Y),
        lambda: clone(calibrator).fit(Z),
        lambda: clone(calibrator).fit(Z, Y, probs=P),
        lambda: model.predict_proba(),
        lambda: model.predict_proba(Z, probs=P),
        lambda: clone(calibrator).fit(P, Y),  # probabilities as logits
        lambda: model.predict_proba(P),
        lambda: model.predict_proba(Z[:, :2]),
        lambda: model.predict_proba(probs=np.full((5, 2), 0.5)),
    ):
        with pytest.raises(ValueError, match=r"^(logits|labels|probs) must"):
            call()


@pytest.mark.parametrize("calibrator", SLICED, ids=repr)
def test_groups_at_prediction(calibrator):
    calibrator.fit(Z, Y, groups=GROUPS)
    unknown = np.where(np.arange(N) == 3, "c", GROUPS)
    for groups, error, message in (
        (None, ValueError, "groups must"),
        (unknown, ValueError, "got 'c' at row 3"),
        (np.zeros(N, int), TypeError, "groups must"),
        (GROUPS[1:], ValueError, "groups must"),
    ):
        with pytest.raises(error, match=message):
            calibrator.predict_proba(Z, groups=groups)
    calibrator.fit(Z, Y)
    with pytest.raises(ValueError, match="groups must"):
        calibrator.predict_proba(Z, groups=GROUPS)


def test_unknown_group_numbers():
    numbers = np.arange(N) % 7
    calibrator = ClassWiseTemperatureScaling(gamma=0.1).fit(Z, Y, groups=numbers)
    with pytest.raises(ValueError, match="got -1 at row 0"):
        calibrator.predict_proba(Z, groups=numbers - 1)


BAD_OPTIONS = [
    (ClassWiseTemperatureScaling(gamma=-0.1), ValueError, "gamma"),
    (ClassWiseTemperatureScaling(gamma="auto"), ValueError, "gamma"),
    (ClassWiseTemperatureScaling(gamma="cv", loss="ece"), ValueError, "gamma"),
    (ClassWiseTemperatureScaling(loss="mse"), ValueError, "loss"),
    (ClassWiseTemperatureScaling(alpha_bounds=(2, 1)), ValueError, "alpha_bounds"),
    (ClassWiseTemperatureScaling(bundles=0), ValueError, "bundles"),
    (ClassWiseTemperatureScaling(bundles=K + 1), ValueError, "bundles"),
    (ClassWiseTemperatureScaling(bundles=1.5), ValueError, "bundles"),
    (ClassWiseTemperatureScaling(bundles="two"), ValueError, "bundles"),
    (ClassWiseTemperatureScaling(bundles=[0, 1]), ValueError, "bundles"),
    (ClassWiseTemperatureScaling(bundles=[0, 1, -1]), ValueError, "bundles"),
    (ClassWiseTemperatureScaling(bundles=[0.0, 1.0, 1.0]), ValueError, "bundles"),
    (ClassWiseTemperatureScaling(bundles=[[0, 1, 1]]), ValueError, "bundles"),
    (ClassWiseTemperatureScaling(gamma="cv", cv=1), ValueError, "cv"),
    (ClassWiseTemperatureScaling(gamma="cv", cv=True), ValueError, "cv"),
    (TemperatureScaling((0, 1)), ValueError, "alpha_bounds"),
    (TemperatureScaling(3), TypeError, "alpha_bounds"),
    (TemperatureScaling(loss="mse"), ValueError, "loss"),
    (TemperatureScaling(loss=["nll"]), ValueError, "loss"),
    (VectorScaling(ridge=-1), ValueError, "ridge"),
    (VectorScaling(ridge="1"), TypeError, "ridge"),
    (TopLabelHistogram(n_bins=0), ValueError, "n_bins"),
    (TopLabelHistogram(binning="area"), ValueError, "binning"),
    (ClassWise(TemperatureScaling(), gamma=-0.1), ValueError, "gamma"),
    (ClassWise(TemperatureScaling(), gamma="auto"), ValueError, "gamma"),
    (ClassWise(TemperatureScaling(), gamma="cv", loss="ece"), ValueError, "gamma"),
    (ClassWise(TemperatureScaling(), loss="mse"), ValueError, "loss"),
    (ClassWise(TemperatureScaling((1, 1))), ValueError, "alpha_bounds"),
    (ClassWise(TemperatureScaling(loss="brier")), ValueError, "loss"),
    (ClassWise(TemperatureScaling(), bundles=0), ValueError, "bundles"),
    (ClassWise(PlattScaling(), gamma="cv"), ValueError, "gamma"),
    (ClassWise(PlattScaling(), loss="brier"), ValueError, "loss"),
    (ClassWise(TopLabelIsotonic(), gamma="cv"), ValueError, "gamma"),
    (ClassWise(TopLabelIsotonic(), gamma=0.1), ValueError, "gamma"),
    (ClassWise(VectorScaling(ridge=-1)), ValueError, "ridge"),
    (ClassWise(TemperatureScaling(), min_samples=0), ValueError, "min_samples"),
    (ClassWise(PlattScaling(), min_samples=2.5), ValueError, "min_samples"),
    (ClassWise(TopLabelIsotonic(), min_samples=True), ValueError, "min_samples"),
    (ClassWise(None), TypeError, "base"),
    (ClassWise(PlattScaling), TypeError, "base"),
    (AutoCalibrator(cv=1), ValueError, "cv"),
    (AutoCalibrator(cv="3"), ValueError, "cv"),
    (AutoCalibrator({}), ValueError, "candidates"),
    (AutoCalibrator([TemperatureScaling()]), TypeError, "candidates"),
    (AutoCalibrator({"a": TemperatureScaling}), TypeError, "candidates"),
    (AutoCalibrator({"a": "TS"}), TypeError, "candidates"),
    (AutoCalibrator({"a": Identity()}, combine=[]), ValueError, "combine"),
    (Mixture([Identity(), PlattScaling()], "a"), (TypeError, ValueError), "weights"),
    (Mixture([Identity(), PlattScaling()], [1, "x"]), (TypeError, ValueError), "weights"),
    (Mixture([Identity(), PlattScaling()], [0, 0]), (TypeError, ValueError), "weights"),
    (Mixture([Identity(), PlattScaling()], {}), (TypeError, ValueError), "weights"),
]


@pytest.mark.parametrize(("calibrator", "error", "option"), BAD_OPTIONS)
def test_options_are_validated(calibrator, error, option):
    with pytest.raises(error, match=rf"^{option} must"):
        calibrator.fit(Z, Y)


@pytest.mark.parametrize("calibrator", SLICED, ids=repr)
def test_groups_and_bundles_exclude_each_other(calibrator):
    with pytest.raises(ValueError, match="groups must"):
        clone(calibrator).set_params(bundles=2).fit(Z, Y, groups=GROUPS)


def test_a_large_gamma_does_not_constrain():
    large, infinite = (ClassWise(PlattScaling(), gamma).fit(Z, Y).parameters_ for gamma in (1e300, np.inf))
    np.testing.assert_allclose(large, infinite, rtol=1e-3)


@every_calibrator
@pytest.mark.parametrize(
    ("logits", "labels", "argument"),
    [
        (np.array([[3.0, 1.0, 0.0, -1.0], [0.0, 2.0, 1.0, 0.0]]), [0, 2], "logits"),
        (Z, np.ones(N, int), "labels"),
    ],
    ids=["fewer rows than classes", "one class"],
)
def test_few_rows_or_classes_give_a_warning_at_the_line_of_the_caller(calibrator, logits, labels, argument):
    with pytest.warns(CalibrationWarning) as caught:
        probs = clone(calibrator).fit(logits, labels).predict_proba(logits)
    assert any(str(w.message).startswith(f"{argument} should") for w in caught)
    assert all(w.filename == __file__ for w in caught)
    assert np.all(np.isfinite(probs))


def test_rows_of_weight_zero_do_not_count_as_data():
    with pytest.warns(CalibrationWarning, match="class 2"):
        Identity().fit(Z, Y, sample_weight=(Y == 2).astype(float))


def test_a_long_list_of_classes_is_shortened(make_sample):
    z, y, _ = make_sample(300, 30, 0)
    is_predicted_low = z.argmax(axis=1) < 4
    with pytest.warns(CalibrationWarning) as caught:
        ClassWiseTemperatureScaling(gamma=0.1).fit(z[is_predicted_low], y[is_predicted_low])
    messages = [str(w.message) for w in caught if "class 4" in str(w.message)]
    assert len(messages) == 1
    assert "class 11 and 18 more" in messages[0]
    assert "class 12" not in messages[0]
