"""Comparison of methods that are fitted on one set of rows and evaluated on another."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

import hetcal
from hetcal._numeric.rows import prepare
from hetcal._numeric.source import MemorySource
from hetcal.compare import METHODS, compare, cross_fit, make_method, paper_methods

RNG = np.random.default_rng(11)
LOGITS = RNG.normal(size=(600, 4)) * 3
LABELS = np.where(RNG.random(600) < 0.7, LOGITS.argmax(axis=1), RNG.integers(0, 4, 600))
FEW = {"Uncal": hetcal.Identity(), "TS": hetcal.TemperatureScaling(), "VS": hetcal.VectorScaling()}


def test_results_agree_with_fit_and_evaluate() -> None:
    result = compare(LOGITS[:400], LABELS[:400], LOGITS[400:], LABELS[400:], methods=FEW)
    probs = hetcal.TemperatureScaling().fit(LOGITS[:400], LABELS[:400]).predict_proba(LOGITS[400:])
    assert [row.name for row in result.rows] == ["Uncal", "TS", "VS"]
    assert result["TS"].evaluation.nll == pytest.approx(hetcal.metrics.nll(probs, LABELS[400:]))
    assert (result.n_fit, result.n_judged, result.cross_fitted) == (400, 200, False)
    assert result["TS"].changed == 0
    json.dumps(result.to_dict(), allow_nan=False)


def test_without_test_rows_predictions_are_out_of_fold() -> None:
    result = compare(LOGITS, LABELS, methods={"TS": hetcal.TemperatureScaling()})
    assert result.cross_fitted
    probs = cross_fit(hetcal.TemperatureScaling(), MemorySource(prepare(LOGITS, LABELS, None)))
    assert result["TS"].evaluation.nll == pytest.approx(hetcal.metrics.nll(probs, LABELS))
    # The five fits differ slightly from the fit on all rows.
    fitted_on_all = hetcal.TemperatureScaling().fit(LOGITS, LABELS).predict_proba(LOGITS)
    assert 0 < np.abs(probs - fitted_on_all).max() < 0.05


def test_a_group_in_a_single_fold_remains_uncalibrated() -> None:
    groups = np.array(["a", "b"] * 300, dtype="U8")
    groups[0] = "alone"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hetcal.CalibrationWarning)
        probs = cross_fit(
            hetcal.ClassWiseTemperatureScaling(), MemorySource(prepare(LOGITS, LABELS, None), groups)
        )
    plain = hetcal.Identity().fit(LOGITS, LABELS).predict_proba(LOGITS)
    np.testing.assert_allclose(probs[0], plain[0])
    assert np.abs(probs[1:] - plain[1:]).max() > 0.01


def test_on_step_receives_the_names() -> None:
    seen: list[str] = []
    compare(LOGITS[:400], LABELS[:400], LOGITS[400:], LABELS[400:], methods=FEW, on_step=seen.append)
    assert seen == ["Uncal", "TS", "VS"]


def test_default_methods_are_those_of_the_paper() -> None:
    assert list(paper_methods()) == ["Uncal", "TS", "VS", "CTS", "Auto"]


def test_uncalibrated_probabilities_replace_the_softmax() -> None:
    probs = np.full((200, 4), 0.25)
    result = compare(LOGITS[:400], LABELS[:400], LOGITS[400:], LABELS[400:], methods=FEW, uncalibrated=probs)
    assert result.evaluations()["Uncal"].nll == pytest.approx(np.log(4))
    assert result.evaluations()["TS"].nll < np.log(4)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_fitted(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hetcal.CalibrationWarning)
        method = make_method(name)
        n_classes = method._required_classes or LOGITS.shape[1]
        logits, labels = LOGITS[:, :n_classes], LABELS % n_classes
        probs = method.fit(logits, labels).predict_proba(logits)
    np.testing.assert_allclose(probs.sum(axis=1), 1)


def test_method_and_gamma_are_validated() -> None:
    with pytest.raises(ValueError, match="method must"):
        make_method("nope")
    with pytest.raises(ValueError, match="gamma must"):
        make_method("platt", 1.0)


def test_test_rows_are_validated() -> None:
    with pytest.raises(ValueError, match="test_logits must"):
        compare(LOGITS, LABELS, LOGITS[:, :3], LABELS)
