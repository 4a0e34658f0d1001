"""The queue: what is missing from a store and from the results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hetcal.__main__ import main
from hetcal_paper.queue import list_pending, resolve
from hetcal_paper.runs import paper_grid, runs_for


def finish(store: Path, name: str) -> None:
    (store / f"{name}.json").write_text("{}")


def test_figures_and_names_of_runs_are_both_understood() -> None:
    assert resolve(["table2"]) == list(runs_for("table2"))
    assert [run.name for run in resolve(["c10-clean-s3"])] == ["c10-clean-s3"]


def test_the_queue_starts_with_the_table_and_ends_with_the_grid(tmp_path: Path) -> None:
    names = list_pending([], tmp_path, tmp_path)
    assert names[:5] == [run.name for run in runs_for("table2")]
    assert set(names) == {run.name for runs in paper_grid().values() for run in runs}
    assert len(names) == len(set(names))


def test_finished_and_summarised_runs_are_not_missing(tmp_path: Path) -> None:
    first, second, third, *_ = (run.name for run in runs_for("table2"))
    finish(tmp_path, first)
    (tmp_path / "runs.csv").write_text(f"run,seed\n{second},1\n")
    assert list_pending([], tmp_path, tmp_path)[0] == third
    # A run that is asked for by name is missing unless the store itself holds it.
    assert list_pending(["table2"], tmp_path, tmp_path)[:2] == [second, third]


def test_only_one_data_set(tmp_path: Path) -> None:
    assert all(name.startswith("c100-") for name in list_pending([], tmp_path, tmp_path, "c100"))


def test_the_command_lists_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "table2", "--pending", "--out", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [run.name for run in runs_for("table2")]
    assert main(["train", "--out", str(tmp_path)]) == 2
    assert "--next" in capsys.readouterr().err
    assert main(["train", "table2", "--out", str(tmp_path), "--data", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith("hetcal: ")
