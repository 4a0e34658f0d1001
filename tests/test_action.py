"""The GitHub Action: its inputs exist, and its shell steps work with files that stand in for GitHub's."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import hetcal

yaml = pytest.importorskip("yaml")
typer = pytest.importorskip("typer")

from hetcal.cli.application import app  # noqa: E402

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
PAGE = ROOT / "docs" / "ci-gate.md"
EXPRESSION = re.compile(r"\$\{\{ *(.+?) *\}\}")
NOT_OPTIONS = {"file", "artifact", "python-version", "install"}


class Result(NamedTuple):
    """What a step did."""

    code: int
    log: str
    summary: str
    outputs: dict[str, str]


def evaluate(expression: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
    """Value of an expression that is the name of an input or of an output of the step `report`."""
    kind, _, name = expression.rpartition(".")
    known = {"inputs": inputs, "steps.report.outputs": outputs}
    return known[kind].get(name, "")


def read_outputs(text: str) -> dict[str, str]:
    """Outputs of a step, in the format of the file GITHUB_OUTPUT."""
    outputs, lines = {}, iter(text.splitlines())
    for line in lines:
        name, multiline, end = line.partition("<<")
        if multiline:
            outputs[name] = "\n".join(itertools.takewhile(end.__ne__, lines))
        else:
            name, _, outputs[name] = line.partition("=")
    return outputs


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a job, where hetcal is already installed, with logits that are and are not calibrated."""
    example = hetcal.load_example("cifar10-noisy")
    rng = np.random.default_rng(0)
    logits = example.test.logits[:1500].astype(float)
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    np.savez(tmp_path / "good.npz", logits=logits, labels=labels)
    np.savez(tmp_path / "bad.npz", logits=4 * logits, labels=labels)
    program = tmp_path / "runner" / "hetcal" / "bin" / "hetcal"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hetcal "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("RUNNER_TEMP", str(tmp_path / "runner"))
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_step(name: str, folder: Path, given: dict[str, str], outputs: dict[str, str] | None = None) -> Result:
    """Run the command of a step as GitHub does."""
    inputs = {key: str(value.get("default", "")) for key, value in ACTION["inputs"].items()} | given
    step = STEPS[name]
    variables = {
        key: EXPRESSION.sub(lambda match: evaluate(match[1], inputs, outputs or {}), value)
        for key, value in step["env"].items()
    }
    for file in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
        (folder / file).write_text("")
    script = folder / "step.sh"
    script.write_text(step["run"], encoding="utf-8")
    process = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],  # noqa: S607
        capture_output=True, text=True, cwd=folder, env=os.environ | variables, check=False,
    )  # fmt: skip
    summary, written = ((folder / file).read_text() for file in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"))
    return Result(process.returncode, process.stdout + process.stderr, summary, read_outputs(written))


def test_good_logits_pass(workspace: Path) -> None:
    given = {"file": "good.npz", "fail-over": "\n  max_ece_excess=0.05 \nuncal_ece=0.04\n"}
    result = run_step("Write the report", workspace, given)
    assert result.code == 0, result.log
    assert result.outputs == {"report": "calibration-report.html", "verdict": "passed", "exceeded": ""}
    assert (workspace / "calibration-report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert result.summary.startswith("# good")
    assert "::error" not in result.log
    assert run_step("Check the limits", workspace, given, result.outputs).code == 0


def test_bad_logits_fail_after_the_report_is_written(workspace: Path) -> None:
    limits = "uncal_ece=0.01\nuncal_max_ece_excess=0.02\nece=1"
    given = {"file": "bad.npz", "fail-over": limits, "output": "a report.html", "bins": "10"}
    result = run_step("Write the report", workspace, given)
    assert result.code == 0, result.log
    assert result.outputs["verdict"] == "failed"
    exceeded = result.outputs["exceeded"].splitlines()
    assert [line.split()[0] for line in exceeded] == ["uncal_ece", "uncal_max_ece_excess"]
    assert [f"::error title=Calibration::{line}" in result.log for line in exceeded] == [True, True]
    assert (workspace / result.outputs["report"]).is_file()
    assert "--bins 10" in result.summary
    assert run_step("Check the limits", workspace, given, result.outputs).code == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"file": "missing.npz"}, "missing.npz"),
        ({"file": "good.npz", "fail-over": "ece"}, "--fail-over must be NAME=VALUE"),
        ({"file": "good.npz", "classes": "100%.txt"}, "100%25.txt"),
        ({"file": "--help"}, "--help"),
    ],
)
def test_invalid_input_is_annotated(workspace: Path, given: dict[str, str], message: str) -> None:
    result = run_step("Write the report", workspace, given)
    assert result.code == 2
    (annotation,) = re.findall("^::error title=Calibration::(.+)$", result.log, re.MULTILINE)
    assert message in annotation
    assert (result.summary, result.outputs) == ("", {})


def test_inputs_are_options_of_the_command() -> None:
    command = typer.main.get_command(app).commands["report"]
    options = {name.removeprefix("--") for parameter in command.params for name in parameter.opts}
    assert ACTION["inputs"].keys() - NOT_OPTIONS <= options
    used = {name for step in STEPS.values() for name in re.findall(r"inputs\.([\w-]+)", yaml.safe_dump(step))}
    assert used == set(ACTION["inputs"])


def test_inputs_are_never_part_of_a_script() -> None:
    scripts = [step["run"] for step in STEPS.values() if "run" in step]
    assert len(scripts) == 3
    assert not [script for script in scripts if EXPRESSION.search(script)]
    assert all(step["shell"] == "bash" for step in STEPS.values() if "run" in step)


def test_outputs_come_from_the_report() -> None:
    written = set(re.findall(r'echo "(\w+)(?:=|<<)', STEPS["Write the report"]["run"]))
    assert {output["value"] for output in ACTION["outputs"].values()} == {
        f"${{{{ steps.report.outputs.{name} }}}}" for name in written
    }


def test_the_default_installs_existing_extras() -> None:
    (extras,) = re.findall(r"GITHUB_ACTION_PATH\}\[([\w,]+)\]", STEPS["Install hetcal"]["run"])
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(re.search(rf"^{extra} = \[", pyproject, re.MULTILINE) for extra in extras.split(","))


def test_workflows_in_the_documentation_use_existing_inputs() -> None:
    blocks = re.findall(r"```yaml\n(.+?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    workflows = [workflow for workflow in map(yaml.safe_load, blocks) if "jobs" in workflow]
    steps = [step for w in workflows for job in w["jobs"].values() for step in job["steps"]]
    ours = [step for step in steps if "hetcal" in step.get("uses", "")]
    assert ours
    for step in ours:
        assert {name for name, value in ACTION["inputs"].items() if value.get("required")} <= set(
            step["with"]
        )
        assert set(step["with"]) <= set(ACTION["inputs"])
    references = re.findall(r"steps\.calibration\.outputs\.(\w+)", "".join(blocks))
    assert set(references) <= set(ACTION["outputs"])
