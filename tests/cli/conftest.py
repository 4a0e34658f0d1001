"""The command line in this process: its exit code, output and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from hetcal.__main__ import main


class Sample(NamedTuple):
    """A file with validation and test rows, and the test rows themselves."""

    path: Path
    logits: Any
    labels: Any


@pytest.fixture(scope="session")
def rows() -> tuple[Any, Any]:
    """Logits (400, 3) and labels, three quarters of which are predicted."""
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(400, 3)) * 3
    labels = np.where(rng.random(400) < 0.75, logits.argmax(axis=1), rng.integers(0, 3, 400))
    return logits, labels


@pytest.fixture
def sample(tmp_path: Path, rows: tuple[Any, Any]) -> Sample:
    logits, labels = rows
    path = tmp_path / "logits.npz"
    np.savez(
        path,
        val_logits=logits[:200],
        val_labels=labels[:200],
        test_logits=logits[200:],
        test_labels=labels[200:],
    )
    return Sample(path, logits[200:], labels[200:])


Run = Callable[..., tuple[int, str, str]]
RunJson = Callable[..., Any]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command; returns the exit code, standard output and standard error."""

    def run_command(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        return code, output.out, output.err

    return run_command


@pytest.fixture
def run_json(run: Run) -> RunJson:
    """Run a command with ``--json``; returns the parsed output."""

    def run_command(*arguments: object) -> Any:
        code, out, err = run(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return run_command
