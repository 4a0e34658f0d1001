"""Public methods validate their input once, and decisions are computed once."""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import pytest

import hetcal
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

VALIDATORS = ("check_logits", "check_probs", "check_labels", "check_weights", "check_groups")
CALIBRATORS = {
    "identity": Identity(),
    "temperature": TemperatureScaling(),
    "class-wise temperatures": ClassWiseTemperatureScaling("cv"),
    "vector": VectorScaling(0.01),
    "Platt": PlattScaling(),
    "isotonic": TopLabelIsotonic(),
    "histogram": TopLabelHistogram(),
    "class-wise Platt": ClassWise(PlattScaling(), "bayes"),
    "class-wise isotonic": ClassWise(TopLabelIsotonic()),
    "class-wise chain": ClassWise(Chain([TemperatureScaling(), PlattScaling()])),
    "chain": Chain([VectorScaling(0.01), ClassWiseTemperatureScaling(), PlattScaling()]),
    "mixture": Mixture([TemperatureScaling(), ClassWiseTemperatureScaling()]),
    "auto": AutoCalibrator(),
    "auto, custom": AutoCalibrator({"a": TemperatureScaling(), "b": ClassWiseTemperatureScaling()}),
}


def replace_everywhere(monkeypatch, name, wrap):
    """Replace a function in all modules of hetcal that import it."""
    for module in [m for key, m in sys.modules.items() if key.split(".")[0] == "hetcal"]:
        if callable(vars(module).get(name)):
            monkeypatch.setattr(module, name, wrap(vars(module)[name]))


@pytest.fixture
def validations(monkeypatch):
    """Number of calls by validator and argument."""
    counts = Counter()

    def counting(name):
        def wrap(function):
            def call(*args, **kwargs):
                counts[name, kwargs.get("name", "default")] += 1
                return function(*args, **kwargs)

            return call

        return wrap

    for name in VALIDATORS:
        replace_everywhere(monkeypatch, name, counting(name))
    return counts


@pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")
@pytest.mark.parametrize("name", CALIBRATORS)
def test_input_is_validated_once(name, make_sample, validations):
    z, y, _ = make_sample(300, 4, 0)
    groups, weight = np.where(np.arange(300) % 2, "a", "b"), np.linspace(0.5, 2, 300)
    calibrator = CALIBRATORS[name]
    calibrator.fit(z, y, sample_weight=weight, groups=groups, fold_groups=np.arange(300) // 2)
    assert set(validations.values()) == {1}
    assert {validator for validator, _ in validations} == set(VALIDATORS) - {"check_probs"}
    validations.clear()
    calibrator.predict_proba(z, groups=groups)
    assert validations == {("check_logits", "default"): 1, ("check_groups", "default"): 1}


@pytest.mark.parametrize("name", ["temperature", "chain", "mixture", "auto"])
def test_probabilities_are_validated_once(name, make_sample, validations):
    z, y, _ = make_sample(300, 4, 0)
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    calibrator = CALIBRATORS[name].fit(probs=p, labels=y)
    assert set(validations.values()) == {1}
    assert "check_logits" not in {validator for validator, _ in validations}
    validations.clear()
    calibrator.predict_proba(probs=p)
    assert validations == {("check_probs", "default"): 1}


@pytest.mark.parametrize(
    "calibrator", [ClassWiseTemperatureScaling(), ClassWise(TemperatureScaling()), ClassWise(PlattScaling())]
)
def test_class_wise_predictions_decide_once(calibrator, make_sample, monkeypatch):
    z, y, _ = make_sample(2000, 4, 0)
    calibrator.fit(z, y)
    expected, decisions = calibrator.predict_proba(z), []

    def wrap(function):
        def call(logits):
            decisions.append(len(logits))
            return function(logits)

        return call

    replace_everywhere(monkeypatch, "decide", wrap)
    np.testing.assert_array_equal(calibrator.predict_proba(z), expected)
    assert decisions == [2000]


def test_groups_are_validated_by_predict_proba(make_sample):
    z, y, _ = make_sample(100, 3, 0)
    calibrator = hetcal.ClassWiseTemperatureScaling().fit(z, y, groups=np.arange(100) % 2)
    with pytest.raises(ValueError, match="groups must"):
        calibrator.predict_proba(z, groups=[0, 1])
