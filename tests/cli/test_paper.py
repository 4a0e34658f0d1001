"""`hetcal train` and `hetcal reproduce`, which need hetcal-paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hetcal_paper")


@pytest.mark.parametrize("command", ["reproduce", "train"])
def test_help(run: Any, command: str) -> None:
    code, out, _ = run(command, "--help")
    assert code == 0
    assert "Usage" in out


@pytest.mark.parametrize(("arguments", "message"), [(["reproduce", "fig99"], "fig99"), (["train"], "RUN")])
def test_bad_input(run: Any, arguments: list[str], message: str) -> None:
    code, _, err = run(*arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_train_passes_its_options_on(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def train_missing(runs: list[str], *_: Any, **options: Any) -> dict[str, list[str]]:
        seen.update(options, runs=runs)
        return {"finished": runs, "failed": []}

    monkeypatch.setattr("hetcal_paper.missing.train_missing", train_missing)
    code, out, _ = run("train", "table1", "--stop-early", "--out", tmp_path, "--parallel", "3")
    assert (code, out) == (0, "1 finished, 0 failed\n")
    assert (seen["runs"], seen["stop_early"], seen["parallel"]) == (["table1"], True, 3)
