"""Predictions of a plan from a quarter of the rows, compared with all rows."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hetcal import examples
from hetcal.calibrators import ClassWiseTemperatureScaling, TemperatureScaling
from hetcal.planning import check_quarter


@pytest.mark.parametrize("name", examples.names())
def test_prediction_from_a_quarter_of_the_rows(name: str) -> None:
    """Uses one quarter per example. benchmarks/quarters.py measures the coverage over many quarters."""
    data = examples.load_example(name)
    assert data.test is not None
    check = check_quarter(
        data.val.logits, data.val.labels, data.test.logits, data.test.labels, n_repeats=5, rng=0
    )
    assert check.holds
    assert sum(line.gain_inside for line in check.lines) >= 3
    assert check.n_part == round(0.25 * check.n)
    assert all(line.method in str(check) for line in check.lines)
    assert json.loads(json.dumps(check.to_dict(), allow_nan=False))["holds"]


def test_without_test_rows_some_rows_are_held_out(rows: Any) -> None:
    methods = {"TS": TemperatureScaling(), "CTS": ClassWiseTemperatureScaling()}
    check = check_quarter(rows.z, rows.y, share=0.5, methods=methods, n_repeats=5)
    assert (check.n_part, check.n, check.n_judged) == (1200, 2400, 600)
    assert check.holds


def test_gain_needs_a_pooled_temperature(rows: Any) -> None:
    check = check_quarter(rows.z, rows.y, methods={"CTS": ClassWiseTemperatureScaling()}, n_repeats=5)
    assert check.lines[0].gain is None
    assert check.to_dict()["lines"][0]["measured_gain"] is None


def test_invalid_share(rows: Any) -> None:
    with pytest.raises(ValueError, match="share must "):
        check_quarter(rows.z, rows.y, share=1)


@pytest.mark.parametrize("missing", ["test_logits", "test_labels"])
def test_test_rows_need_logits_and_labels(missing: str) -> None:
    rows = {"test_logits": np.eye(2)[[0, 1] * 30] * 3, "test_labels": np.arange(60) % 2}
    with pytest.raises((TypeError, ValueError), match=missing):
        check_quarter(rows["test_logits"], rows["test_labels"], **rows | {missing: None})
