"""The main job: methods fitted on some rows, judged on others."""

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


def test_rows_are_what_fit_and_evaluate_give() -> None:
    made = compare(LOGITS[:400], LABELS[:400], LOGITS[400:], LABELS[400:], methods=FEW)
    probs = hetcal.TemperatureScaling().fit(LOGITS[:400], LABELS[:400]).predict_proba(LOGITS[400:])
    assert [row.name for row in made.rows] == ["Uncal", "TS", "VS"]
    assert made["TS"].evaluation.nll == pytest.approx(hetcal.metrics.nll(probs, LABELS[400:]))
    assert (made.n_fit, made.n_judged, made.cross_fitted) == (400, 200, False)
    assert made["TS"].changed == 0
    json.dumps(made.to_dict(), allow_nan=False)


def test_without_test_rows_no_row_is_judged_by_its_own_fit() -> None:
    made = compare(LOGITS, LABELS, methods={"TS": hetcal.TemperatureScaling()})
    assert made.cross_fitted
    probs = cross_fit(hetcal.TemperatureScaling(), MemorySource(prepare(LOGITS, LABELS, None)))
    assert made["TS"].evaluation.nll == pytest.approx(hetcal.metrics.nll(probs, LABELS))
    # Five fits, each a little different: not the probabilities of the fit on all rows.
    whole = hetcal.TemperatureScaling().fit(LOGITS, LABELS).predict_proba(LOGITS)
    assert 0 < np.abs(probs - whole).max() < 0.05


def test_cross_fitting_by_group_leaves_a_group_seen_once_uncalibrated() -> None:
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


def test_steps_are_announced() -> None:
    seen: list[str] = []
    compare(LOGITS[:400], LABELS[:400], LOGITS[400:], LABELS[400:], methods=FEW, on_step=seen.append)
    assert seen == ["Uncal", "TS", "VS"]


def test_the_papers_rows_come_first() -> None:
    assert list(paper_methods()) == ["Uncal", "TS", "VS", "CTS", "Auto"]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_the_command_line_fits(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hetcal.CalibrationWarning)
        probs = make_method(name).fit(LOGITS, LABELS).predict_proba(LOGITS)
    np.testing.assert_allclose(probs.sum(axis=1), 1)


def test_unknown_method_and_gamma_without_slices() -> None:
    with pytest.raises(ValueError, match="method must be one of identity, ts"):
        make_method("nope")
    with pytest.raises(ValueError, match="gamma must be left out for PlattScaling"):
        make_method("platt", 1.0)


def test_test_rows_are_checked() -> None:
    with pytest.raises(ValueError, match="test_logits must have 4 columns"):
        compare(LOGITS, LABELS, LOGITS[:, :3], LABELS)
