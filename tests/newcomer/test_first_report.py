"""From a model to a report: docs/get-your-logits.md, then docs/five-minutes.md, as they are written.

Every section gives the scores of the model, with the real packages. With the file that it writes, a reader
goes on to the first report. Since every section and every file takes seconds, `make test` runs only a few of
the sections that need no more packages, and goes on only from the file with one probability per row. `make
docs` runs everything.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from readers import READERS, check_report, commands_of_five_minutes, sections

import hetcal
from hetcal.__main__ import main

READERS_SCRIPT = Path(__file__).with_name("readers.py")
SLOW = bool(os.environ.get("HETCAL_SLOW_DOCS"))
QUICK = ("one-probability-per-row", "onnx", "only-the-confidence-of-the-prediction", "pytorch")


@pytest.mark.parametrize("section", READERS)
def test_from_a_model_to_a_report(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    packages = READERS[section].packages
    if packages and not SLOW:
        pytest.skip(f"needs {', '.join(packages)}, which `make docs` installs")
    if section not in QUICK and not SLOW:
        pytest.skip("slow; `make docs` runs it")
    monkeypatch.chdir(tmp_path)
    for name, value in {"HF_HUB_OFFLINE": "1", "KERAS_BACKEND": "torch", "PYTHONUTF8": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COLUMNS", "120")
    done = subprocess.run(
        [sys.executable, str(READERS_SCRIPT), section],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    for file in READERS[section].files if SLOW or section == "one-probability-per-row" else ():
        follow_five_minutes(file, capsys)


def follow_five_minutes(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the commands of the tutorial on a file, and check what they print and write."""
    Path("report.html").unlink()  # from the section
    printed = {}
    for command in commands_of_five_minutes():
        words = shlex.split(command.replace("mine.csv", file))
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            assert main(words[1:]) == 0, capsys.readouterr().err
        output = capsys.readouterr()
        assert output.err == ""
        printed[words[1]] = output.out

    contents = hetcal.load_logits(file)
    rows, names = contents.val, contents.class_names
    assert names is not None
    assert f"{len(rows.labels)} rows, {len(names)} classes" in printed["evaluate"]
    shown = re.search(r"accuracy\D+([\d.]+)", printed["evaluate"])
    assert shown is not None
    accuracy = (rows.logits.argmax(axis=1) == rows.labels).mean()
    assert float(shown[1]) == pytest.approx(accuracy, abs=5e-5)
    assert [name for name in names if name not in printed["diagnose"]] == []
    check_report(len(rows.labels), names)

    uncalibrated = hetcal.Identity().fit(**rows.scores, labels=rows.labels).predict_proba(**rows.scores)
    calibrated = hetcal.load("cal.json").predict_proba(**rows.scores)
    np.testing.assert_allclose(np.load("calibrated.npz")["probs"], calibrated)
    np.testing.assert_array_equal(calibrated.argmax(axis=1), uncalibrated.argmax(axis=1))
    assert hetcal.evaluate(calibrated, rows.labels).nll < hetcal.evaluate(uncalibrated, rows.labels).nll


def test_every_section_with_code_has_a_reader() -> None:
    assert set(sections()) == set(READERS)


@pytest.mark.parametrize("command", ["evaluate", "diagnose", "fit", "report"])
def test_commands_refer_a_log_of_confidences_to_python(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    READERS["only-the-confidence-of-the-prediction"].start()
    output = {"fit": ["-o", "cal.json"], "report": ["-o", "report.html"]}.get(command, [])
    assert main([command, "top1.csv", *output]) == 2
    assert "hetcal.evaluate(confidence, labels, predicted=...)" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["top1.csv"]
