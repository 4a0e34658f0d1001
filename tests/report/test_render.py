from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from typing import Any

import pytest

from hetcal.logits_files import LogitsFile
from hetcal.report import ReportData, make_report, render_report


@pytest.mark.parametrize("format_", ["html", "md", "json"])
def test_identical_input_gives_identical_text(
    logits_file: LogitsFile, report_data: ReportData, report_options: dict[str, Any], format_: str
) -> None:
    text = render_report(report_data, format_)
    assert render_report(report_data, format_) == text
    if format_ == "json":  # compute the numbers once more
        assert make_report(logits_file, **report_options, format=format_) == text


def test_json_lists_all_classes(report_data: ReportData, hostile_names: tuple[str, ...]) -> None:
    value = json.loads(render_report(report_data, "json"))
    assert [row["name"] for row in value["classes"]] == list(hostile_names)
    worst, before = value["worst_class"], value["methods"][0]
    assert before["method"] == "Uncal"
    assert (worst["ece"], worst["floor"]) == (before["max_ece"], before["max_ece_floor"])
    assert worst["ece"] == max(row["ece"] for row in value["classes"])
    assert worst["floor_q95"] == report_data.before.floor_q95["max_ece"] > worst["floor"]
    assert worst["name"] == hostile_names[worst["index"]] == report_data.before.worst_class
    assert value["gamma_path"]["gamma"][-1] == "inf"
    assert value["settings"]["n_bins"] == 15


def test_json_lists_the_weights(report_data: ReportData) -> None:
    recommended = json.loads(render_report(report_data, "json"))["recommended"]
    assert recommended["decisions_changed"] == 0
    weights = list(recommended["members"].values())
    assert weights == sorted(weights, reverse=True) == [c["weight"] for c in report_data.members]


def test_advice_is_in_every_format(report_data: ReportData) -> None:
    cost = {"changed": 0.25, "nll": 0.9, "free_nll": 0.7, "accuracy": 0.5, "free_accuracy": 0.6}
    costly, cheap = (
        dataclasses.replace(report_data, decision_cost=cost | {"is_large": is_large})
        for is_large in (True, False)
    )
    for format_ in ("html", "md"):
        assert "--change-decisions" in render_report(costly, format_)
        assert render_report(cheap, format_) == render_report(report_data, format_)
    recommended = json.loads(render_report(costly, "json"))["recommended"]
    assert recommended["decision_cost"] == cost | {"is_large": True}
    assert "25.0%" in recommended["advice"]
    assert json.loads(render_report(cheap, "json"))["recommended"]["advice"] is None


def test_json_has_null_for_missing_numbers(thin_data: ReportData) -> None:
    value = json.loads(render_report(thin_data, "json"), parse_constant=pytest.fail)
    assert value["classes"][2]["ece"] is None
    assert value["training"] == {"correlation": None, "p_value": None}


def test_markdown_tables_keep_their_columns(report_data: ReportData) -> None:
    text = render_report(report_data, "md")
    assert text.startswith("# A \\<i\\>title\\</i\\>\n")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    width = {len(re.findall(r"(?<!\\)\|", row)) for row in rows}
    assert width == {4, 11, 5, 10}  # overall; methods and classes; candidates; groups
    assert "<script>" not in text


def test_a_file_name_cannot_close_the_code_block(report_data: ReportData) -> None:
    _, code, after = render_report(report_data, "md").split("\n````\n")
    assert code.startswith("hetcal report 'my logits ```\n<img src=x>?.npz' --bins 15")
    assert "--train-counts counts.csv --groups groups.txt -o report.html" in code
    assert not after


def test_markdown_without_groups(thin_data: ReportData) -> None:
    assert "Group" not in render_report(thin_data, "md")


def test_markdown_marks_the_members(report_data: ReportData) -> None:
    text = render_report(report_data, "md")
    for c in report_data.candidates:
        bold = "**" if c in report_data.members else ""
        assert f"| {bold}{c['name']}{bold} | {bold}" in text


def test_importing_the_report_loads_no_optional_package() -> None:
    code = "import hetcal.report, sys; print({'altair', 'vl_convert', 'jinja2'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert out.stdout.strip() == "set()"


def test_sensitivity_to_wrong_labels_is_in_every_format(
    noise_data: ReportData, report_data: ReportData
) -> None:
    assert noise_data.sensitivity is not None
    worst = noise_data.overconfident[0]
    condition = noise_data.sensitivity.condition(worst.index)
    classes = json.loads(render_report(noise_data, "json"))["classes"]
    assert condition in classes[worst.index]["wrong_labels"]
    assert classes[worst.index]["flip_rate"] == noise_data.sensitivity.flip_rate[worst.index]
    assert sum(row["wrong_labels"] is not None for row in classes) == len(noise_data.overconfident)
    for format_ in ("md", "html"):
        text = render_report(noise_data, format_)
        assert text.count(condition) >= 2  # in the summary and for the class
        assert condition not in render_report(report_data, format_)
