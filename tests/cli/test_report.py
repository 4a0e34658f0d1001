"""`hetcal report`: formats, output and limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hetcal import report


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reuse the numbers of one report in all tests, and render a short page."""
    monkeypatch.setattr(
        report.render, "RENDERERS", report.render.RENDERERS | {"html": lambda _: "<p>page</p>"}
    )


def test_json_goes_to_standard_output(run: Any, sample: Any) -> None:
    code, out, err = run("report", sample.path, "--json", "--bins", 10)
    assert (code, err) == (0, "")
    value = json.loads(out)
    assert value["settings"]["n_bins"] == 10
    assert value["settings"]["n_judged"] == 200


def test_html_goes_to_a_file(run: Any, sample: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("report", sample.path)
    assert code == 0
    assert "report.html" in out
    assert (tmp_path / "report.html").read_text() == "<p>page</p>"


def test_markdown_is_written_as_well(run: Any, sample: Any, tmp_path: Path) -> None:
    target = tmp_path / "report.md"
    code, out, _ = run("report", sample.path, "--json", "--markdown", target)
    assert code == 0
    assert json.loads(out)["title"] in target.read_text(encoding="utf-8")
    assert target.read_text(encoding="utf-8") + "\n" == run("report", sample.path, "--format", "md")[1]
    code, _, err = run("report", sample.path, "-o", target, "--markdown", target)
    assert code == 2
    assert "--markdown must" in err


def test_nothing_is_written_if_one_of_the_folders_is_missing(run: Any, sample: Any, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    code, _, err = run("report", sample.path, "-o", page, "--markdown", tmp_path / "missing" / "report.md")
    assert code == 2
    assert "--markdown must be in a folder that exists" in err
    assert not page.exists()


def test_label_noise(run: Any, sample: Any) -> None:
    code, out, _ = run("report", sample.path, "--json", "--label-noise", 0.3)
    assert code == 0
    assert json.loads(out)["settings"]["max_noise"] == 0.3
    assert all("flip_rate" in row for row in json.loads(out)["classes"])


def test_blank_lines_in_the_groups_file(run: Any, sample: Any, tmp_path: Path) -> None:
    groups = tmp_path / "groups.txt"
    options = ("--groups", groups, "--format", "json", "-o", tmp_path / "report.json")
    groups.write_text("day\n\n" + "night\n" * 199)  # 200 groups, but the second line has none
    code, _, err = run("report", sample.path, *options)
    assert code == 2
    assert "blank line 2" in err
    groups.write_text("day\n" + "night\n" * 199 + "\n")
    assert run("report", sample.path, *options)[0] == 0


def test_options_and_limits(run: Any, sample: Any, tmp_path: Path) -> None:
    (tmp_path / "groups.txt").write_text("day\nnight\n" * 100)
    (tmp_path / "counts.txt").write_text("10\n20\n30\n")
    options = ("--groups", tmp_path / "groups.txt", "--train-counts", tmp_path / "counts.txt")
    limits = ("--fail-over", "ece=1", "--fail-over", "uncal_ece=0")
    target = tmp_path / "report.json"
    code, _, err = run("report", sample.path, *options, *limits, "--format", "json", "-o", target)
    assert code == 1
    assert err.startswith("hetcal: uncal_ece ")
    value = json.loads(target.read_text(encoding="utf-8"))
    assert [group["name"] for group in value["groups"]] == ["day", "night"]
    assert value["training"] is not None


def test_the_commands_in_a_report_name_the_columns(run: Any, rows: tuple[Any, Any], tmp_path: Path) -> None:
    path = tmp_path / "cases.csv"
    lines = [f"{i};{y};{';'.join(map(str, z))}" for i, (z, y) in enumerate(zip(*rows, strict=True))]
    path.write_text("\n".join(["the case;outcome;a;b;c", *lines]), encoding="utf-8")
    options = ("--label-column", "outcome", "--id-column", "the case")
    code, out, err = run("report", path, *options, "--format", "md")
    assert code == 0, err
    commands = [line for line in out.splitlines() if line.strip().startswith("hetcal ")]
    assert len(commands) == 3
    assert all("csv --label-column outcome --id-column 'the case' " in line for line in commands)
