from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hetcal.calibrators import AutoCalibrator, Chain, PlattScaling, TemperatureScaling
from hetcal.report.describe_auto import FINAL_STEP, describe_auto, leading_candidates


def fitted(*, final_step: bool = False, **weights: float) -> Any:
    """Object with the attributes of a fitted AutoCalibrator."""
    candidates = [{"name": name.replace("_", ", "), "weight": weight} for name, weight in weights.items()]
    return SimpleNamespace(candidates_=candidates, has_final_step_=final_step)


def test_one_candidate_is_named_alone() -> None:
    text = describe_auto(fitted(Identity=0.0, TS=1.0))
    assert text.startswith("TS")
    assert "%" not in text


@pytest.mark.parametrize("final_step", [False, True])
def test_members_are_listed_by_weight(final_step: bool) -> None:
    text = describe_auto(fitted(final_step=final_step, Identity=0.006, TS=0.0, C=0.4, V_P=0.594))
    assert "59% V + P, 40% C, 1% Identity" in text
    assert "three" in text
    assert (FINAL_STEP in text) == final_step


def test_negligible_members_do_not_count() -> None:
    assert "single" in describe_auto(fitted(Identity=0.004, TS=0.996))
    candidates = fitted(a=0.014, b=0.2, c=0.0, d=0.786).candidates_
    assert [c["name"] for c in leading_candidates(candidates)] == ["d", "b"]


def test_final_step_of_a_fitted_calibrator() -> None:
    rng = np.random.default_rng(5)
    z = rng.normal(size=(300, 3)) * 3
    y = np.where(rng.random(300) < 0.75, z.argmax(axis=1), rng.integers(0, 3, 300))
    assert AutoCalibrator().fit(z, y).has_final_step_
    chain = Chain([TemperatureScaling(), PlattScaling()])
    assert not AutoCalibrator({"TS, Platt": chain}).fit(z, y).has_final_step_
