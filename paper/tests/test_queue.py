from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hetcal_paper import training
from hetcal_paper.evaluate_run import COLUMNS
from hetcal_paper.queue import missing_runs, resolve, train_missing
from hetcal_paper.runs import paper_grid, runs_for


def names(*arguments: Any) -> list[str]:
    return [run.name for run in missing_runs(*arguments)]


def test_names_of_runs_and_figures_are_resolved() -> None:
    assert resolve(["table2"]) == list(runs_for("table2"))
    assert [run.name for run in resolve(["c10-clean-s3"])] == ["c10-clean-s3"]


def test_the_queue_contains_the_grid_in_order_of_importance(tmp_path: Path) -> None:
    missing = missing_runs([], tmp_path / "nothing")
    assert len(missing) == len(set(missing))
    assert set(missing) == {run for runs in paper_grid().values() for run in runs}
    assert missing[:5] == list(runs_for("table2"))
    n10 = sum(run.data == "c10" for run in missing)
    assert all(run.data == "c10" for run in missing[:n10])
    assert missing[n10 : n10 + 5] == list(runs_for("table1"))
    seeds = [run.seed for run in missing[5:n10]]
    assert seeds == sorted(seeds)


def test_finished_and_summarised_runs_are_not_missing(tmp_path: Path) -> None:
    first, second, third, *_ = (run.name for run in runs_for("table2"))
    (tmp_path / f"{first}.json").write_text("{}")
    (tmp_path / f"{third}.ckpt").write_text("")
    columns = COLUMNS["runs"]
    (tmp_path / "runs.csv").write_text(f"{','.join(columns)}\n{second}{',' * (len(columns) - 1)}\n")
    assert names([], tmp_path, tmp_path)[0] == third
    # A run given by name is missing unless the store contains it.
    assert names(["table2"], tmp_path, tmp_path)[:2] == [second, third]


def test_runs_can_be_restricted_to_one_data_set(tmp_path: Path) -> None:
    assert all(name.startswith("c100-") for name in names([], tmp_path, None, "c100"))
    with pytest.raises(ValueError, match="only must be"):
        missing_runs([], tmp_path, None, "mnist")


def test_missing_runs_are_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def train_runs(runs: Any, *arguments: Any, **options: Any) -> training.Summary:
        seen.append(([run.name for run in runs], arguments, options))
        return training.Summary(("a",), (), (), ("b",))

    monkeypatch.setattr(training, "train_runs", train_runs)
    outcome = train_missing(["table2"], "data", tmp_path, parallel=3)
    assert outcome == {"finished": ["a"], "skipped": [], "unfinished": [], "failed": ["b"]}
    assert seen == [([run.name for run in runs_for("table2")], ("data", tmp_path), {"parallel": 3})]
    with pytest.raises(ValueError, match="engine must be"):
        train_missing([], None, tmp_path, engine="cloud")
