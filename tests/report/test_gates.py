from __future__ import annotations

import pytest

from hetcal.report import ReportData, check_gates, check_request


def test_no_limit_is_exceeded(report_data: ReportData) -> None:
    assert check_gates(report_data, []) == []
    assert check_gates(report_data, ["ece=0.9", "max_ece_excess = 0.9", "nll=9"]) == []


def test_an_exceeded_limit_is_named_with_its_value(report_data: ReportData) -> None:
    value = report_data.after.excess["max_ece"]
    lines = check_gates(report_data, ["max_ece_excess=-1", "avg_ece=1"])
    assert len(lines) == 1
    assert all(text in lines[0] for text in ("max_ece_excess", f"{value:.4f}", "-1"))


def test_a_value_at_its_limit_passes(report_data: ReportData) -> None:
    assert check_gates(report_data, [f"ece={report_data.after.ece!r}"]) == []


def test_limits_on_the_uncalibrated_model(report_data: ReportData) -> None:
    between = (report_data.before.ece + report_data.after.ece) / 2
    assert check_gates(report_data, [f"ece={between}"]) == []
    assert len(check_gates(report_data, [f"uncal_ece={between}"])) == 1


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("max_ece_excess", "--fail-over must .*got 'max_ece_excess'"),
        (
            "accuracy=1",
            "--fail-over must .*got 'accuracy'",
        ),
        ("ece=low", "--fail-over must .*got 'low'"),
        ("ece=", "--fail-over must"),
        ("ece=nan", "--fail-over must .*got 'nan'"),
    ],
)
def test_bad_limits_raise(report_data: ReportData, limit: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_gates(report_data, ["ece=1", limit])
    with pytest.raises(ValueError, match=message):
        check_request("md", [limit])
