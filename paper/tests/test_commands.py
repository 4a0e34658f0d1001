from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from hetcal.__main__ import main
from hetcal_paper import commands, evaluate_run
from hetcal_paper.results import read_results
from hetcal_paper.runs import noise, runs_for

APP = typer.Typer()
for command in (commands.train, commands.reproduce, commands.pages):
    APP.command()(command)
RUNS = [noise("c10", (0, 4), 0.3, seed, network="tiny", epochs=3, batch_size=32).name for seed in (0, 1)]


def run(*words: object) -> Any:
    result = CliRunner().invoke(APP, [str(word) for word in words])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_two_commands_add_runs(cifar10: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate_run, "_N_REDRAWS", 20)
    new, home = tmp_path / "new", tmp_path / "results"
    options = ["--data", cifar10, "--out", tmp_path / "runs", "--device", "cpu", "--any-size", "--json"]
    for name in RUNS:
        outcome = json.loads(run("train", name, *options, "--summary", new).stdout)
        assert outcome["finished"] == outcome["summarised"] == [name]
    assert json.loads(run("train", *RUNS, *options).stdout)["skipped"] == []  # finished runs are not queued
    output = run("pages", "--add", new, "--results", home, "--docs", tmp_path / "docs").stdout
    assert "added 2 runs" in output
    assert set(read_results(home).runs) == set(RUNS)
    assert (tmp_path / "docs" / "index.md").exists()


def test_pending_lists_missing_runs(tmp_path: Path) -> None:
    result = run("train", "table2", "--pending", "--out", tmp_path, "--json")
    assert json.loads(result.stdout) == [item.name for item in runs_for("table2")]
    lines = run(
        "train", "--pending", "--out", tmp_path, "--results", tmp_path, "--only", "c10"
    ).stdout.split()
    assert lines[0] == runs_for("table2")[0].name
    assert all(line.startswith("c10-") for line in lines)


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--next"):
        run("train", "--out", tmp_path)
    with pytest.raises(ValueError, match="name must look like"):
        run("train", "no-such-run", "--out", tmp_path)
    with pytest.raises(FileNotFoundError, match="cifar-10-batches-bin"):
        run("train", "table2", "--data", tmp_path, "--out", tmp_path)


def test_failed_runs_give_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = {"finished": [], "skipped": [], "unfinished": [], "failed": ["a"]}
    monkeypatch.setattr("hetcal_paper.queue.train_missing", lambda *_, **__: dict(outcome))
    result = run("train", "table2", "--out", tmp_path)
    assert result.exit_code == 1
    assert "1 failed" in result.stdout


def test_reproduce_prints_json_and_writes_files(tmp_path: Path) -> None:
    item = json.loads(run("reproduce", "example", "--json").stdout)
    assert item["name"] == "example"
    assert {"method", "metric", "bins", "mean", "std", "n", "floor", "paper"} <= item["rows"][0].keys()
    run("reproduce", "example", "-o", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"example.json", "example.md", "example.svg"}


@pytest.mark.skipif(
    not metadata.entry_points(group="hetcal.commands"), reason="hetcal-paper is not installed"
)
def test_hetcal_finds_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "example", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "example"
    assert main(["reproduce", "nothing"]) == 2
    assert capsys.readouterr().err.startswith("hetcal: name must be one of")
