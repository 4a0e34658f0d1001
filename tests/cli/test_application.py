"""Behaviour that all commands share: help, exit codes and one-line errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetcal
from hetcal.cli.application import print_json


def test_version(run: Any) -> None:
    assert run("--version") == (0, f"hetcal {hetcal.__version__}\n", "")


@pytest.mark.parametrize(
    "command",
    [[], *([name] for name in ("evaluate", "diagnose", "fit", "apply", "report", "demo", "plan", "theory"))],
)
def test_help(run: Any, command: list[str]) -> None:
    code, out, _ = run(*command, "--help")
    assert code == 0
    assert "Usage" in out


def test_no_command_shows_the_help(run: Any) -> None:
    code, out, err = run()
    assert (code, err) == (2, "")
    assert "Usage" in out


def test_runs_as_a_program(sample: Any) -> None:
    command = [sys.executable, "-m", "hetcal", "evaluate", str(sample.path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["n"] == 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("evaluate nothing.npz", "does not exist"),
        ("evaluate {data} --bins 0", "--bins"),
        ("evaluate {data} --calibrator {data}", "not UTF-8"),
        ("evaluate {data} --classes two.txt", "--classes"),
        ("diagnose {data} --train-counts words.txt", "--train-counts"),
        ("fit {data} -m nope -o x.json", "method"),
        ("fit {data} -m cts --gamma lots -o x.json", "--gamma"),
        ("fit {data} -m cts --gamma -1 -o x.json", "gamma"),
        ("fit {data} -m ts --gamma 1 -o x.json", "gamma"),
        ("fit {data} -m cts --by-group -o x.json", "--by-group"),
        ("fit {data} -o no/such/folder/x.json -m ts", "folder"),
        ("fit {data}", "--output"),
        ("apply {data} {data} -o p.npz", "not UTF-8"),
        ("report {data} --format pdf -o r.pdf", "format"),
        ("report {data} --fail-over ece=low", "--fail-over"),
        ("bogus", "bogus"),
    ],
)
def test_bad_input_gives_one_line_and_exit_code_2(
    run: Any, sample: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.txt").write_text("a\nb\n")
    (tmp_path / "words.txt").write_text("count\n10\nmany\n5\n")
    before = set(tmp_path.iterdir())
    code, _, err = run(*(word.replace("{data}", str(sample.path)) for word in arguments.split()))
    assert code == 2
    assert message in err
    assert err.startswith("hetcal: ")
    assert err.count("\n") == 1
    assert set(tmp_path.iterdir()) == before


@pytest.mark.filterwarnings("default::hetcal.CalibrationWarning")
def test_warnings_take_one_line_each(run: Any, tmp_path: Path) -> None:
    logits = 5 * np.eye(3)[np.arange(20) % 3]
    np.savez(tmp_path / "a.npz", logits=logits, labels=np.arange(20) % 3)
    code, _, err = run("fit", tmp_path / "a.npz", "-m", "cts", "-o", tmp_path / "cal.json")
    assert code == 0
    assert err
    assert all(line.startswith("hetcal: warning: ") for line in err.splitlines())


def test_json_has_no_infinite_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": np.array([1.0, np.nan]), "b": (np.float64(np.inf), np.int64(2))})
    assert json.loads(capsys.readouterr().out) == {"a": [1.0, None], "b": [None, 2]}
