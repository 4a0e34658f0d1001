"""The comparison with other libraries: files, splits, failures and statistics."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetcal


def _draw(n: int, n_classes: int, seed: int = 0) -> tuple[Any, Any]:
    """Draw overconfident predictions and their labels."""
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, n_classes))
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    y = (np.exp(z / 2) / np.exp(z / 2).sum(axis=1, keepdims=True)).cumsum(axis=1)
    return p, (y < rng.random((n, 1))).sum(axis=1).clip(max=n_classes - 1)


def _problem(n_classes: int = 3, half: Any = "design") -> Any:
    from arena_problems import Problem

    return Problem("tabular", "some-data", "forest", half, *_draw(400, n_classes))


def test_halves_alternate_in_the_order_of_the_names() -> None:
    from arena_problems import assign_halves

    assert assign_halves(["c", "a", "b"]) == {"a": "design", "b": "judge", "c": "design"}


def test_a_split_uses_every_row_once() -> None:
    problem = _problem()
    for _, split in problem.splits():
        rows = np.concatenate([split.probs_cal, split.probs_test])
        assert np.array_equal(np.sort(rows[:, 0]), np.sort(problem.probs[:, 0]))


def test_stored_problems_are_loaded_by_half(tmp_path: Path) -> None:
    from arena_problems import load_problems, save_problem

    for half in ("design", "judge"):
        save_problem(_problem(half=half), tmp_path)
    (loaded,) = load_problems(tmp_path, "judge")
    assert (loaded.name, loaded.half) == ("some-data, forest", "judge")
    assert np.array_equal(loaded.probs, _problem().probs)


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_adapter_accepts_the_probability_of_class_1_alone(shape: tuple[int, ...]) -> None:
    from arena_methods import CalArenaAdapter

    p, y = _draw(300, 2)
    expected = hetcal.TemperatureScaling().fit(probs=p, labels=y).predict_proba(probs=p)
    adapter = CalArenaAdapter(hetcal.TemperatureScaling()).fit(p[:, 1].reshape(shape), y)
    assert adapter.predict_proba(p[:, 1].reshape(shape)) == pytest.approx(expected)
    both = CalArenaAdapter(hetcal.TemperatureScaling()).fit(p, y.reshape(-1, 1))
    assert both.predict_proba(p) == pytest.approx(expected)


def test_hdf5_file_in_the_layout_of_calarena(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    from arena_hdf5 import read_hdf5

    (p2, y2), (p5, y5) = _draw(60, 2), _draw(50, 5)
    with h5py.File(tmp_path / "small.h5", "w") as file:
        for name, p, y in (("adult/forest", p2[:, 1].astype(np.float32), y2), ("digits/net", p5, y5)):
            group = file.create_group(name)
            group["probas_cal"], group["labels_cal"] = p[:30], y[:30]
            group["probas_test"], group["labels_test"] = p[30:], y[30:]
    binary, several = read_hdf5(tmp_path / "small.h5")
    assert (binary.name, several.name) == ("adult, forest", "digits, net")
    ((_, split),) = binary.splits()
    assert split.probs_cal == pytest.approx(p2[:30], abs=1e-6)
    ((_, split),) = several.splits()
    assert np.array_equal(split.probs_test, p5[30:])
    assert np.array_equal(split.labels_test, y5[30:])


def _evaluate(entries: dict[str, Any], path: Path, limit: float = 30.0) -> Any:
    from arena_methods import BASELINE, methods
    from arena_run import Results, evaluate

    available, results = methods(), Results(path)
    selected = {name: available[name] for name in (BASELINE, "hetcal Identity")} | entries
    evaluate(_problem(), selected, available[BASELINE], results, limit)
    return results


def test_failures_and_timeouts_get_lines(tmp_path: Path) -> None:
    from arena_methods import Method

    def fail(p: Any, y: Any) -> Any:
        raise RuntimeError("no fit")

    def wait(p: Any, y: Any) -> Any:
        time.sleep(30)

    def return_nan(p: Any, y: Any) -> Any:
        return lambda p: p * math.nan

    entries = {
        "failing": Method(fail, "test"),
        "slow": Method(wait, "test"),
        "nan": Method(return_nan, "test"),
    }
    lines = _evaluate(entries, tmp_path / "design.csv", limit=1.0).lines
    status = {key[2]: line["status"] for key, line in lines.items()}
    assert status == {
        "hetcal TS": "ok", "hetcal Identity": "ok", "failing": "failed", "slow": "timeout", "nan": "failed",
    }  # fmt: skip
    assert sum("another split" in line.get("note", "") for line in lines.values()) == 1  # the second split


def test_scores_agree_with_the_library(tmp_path: Path) -> None:
    lines = _evaluate({}, tmp_path / "design.csv").lines
    split = _problem().split(1)
    line, baseline = (lines["some-data, forest", "1", name] for name in ("hetcal Identity", "hetcal TS"))
    for name, function in (("log_loss", hetcal.metrics.nll), ("brier", hetcal.metrics.brier)):
        assert float(line[name]) == pytest.approx(function(split.probs_test, split.labels_test), rel=1e-6)
    difference = float(line["log_loss"]) - float(baseline["log_loss"])
    assert float(line["difference"]) == pytest.approx(difference, abs=1e-6)
    assert float(baseline["difference"]) == 0


def test_a_later_run_keeps_lines_except_discarded_ones(tmp_path: Path) -> None:
    from arena_methods import Method
    from arena_run import Results

    calls = []

    def identity(p: Any, y: Any) -> Any:
        calls.append(len(y))
        return lambda p: p

    path, entries = tmp_path / "design.csv", {"counted": Method(identity, "test")}
    _evaluate(entries, path)
    _evaluate(entries, path)
    assert len(calls) == 2  # one per split
    Results(path).discard(["counted"])
    _evaluate(entries, path)
    assert len(calls) == 4


@pytest.mark.parametrize(("half", "n_looks"), [("design", 0), ("judge", 2)])
def test_every_evaluation_of_the_judge_half_is_logged(
    half: str, n_looks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import arena
    from arena_problems import save_problem

    save_problem(_problem(half=half), tmp_path)
    monkeypatch.setattr(arena, "LOOKS", tmp_path / "looks.csv")
    monkeypatch.setattr(arena, "use_one_thread", lambda: None)
    options = ["--half", half, "--cache", tmp_path, "--results", tmp_path, "--methods", "hetcal TS"]
    options += ["--reason", "a test"]
    monkeypatch.setattr("sys.argv", ["arena.py", *map(str, options)])
    for _ in range(2):
        arena.main()
    lines = (tmp_path / "looks.csv").read_text().splitlines()[1:] if n_looks else []
    assert len(lines) == n_looks
    assert (tmp_path / "looks.csv").exists() == bool(n_looks)
    assert (tmp_path / f"{half}.csv").exists()


def _table(losses: dict[str, list[float]], datasets: list[str]) -> Any:
    pd = pytest.importorskip("pandas")
    return pd.DataFrame(
        [
            {
                "problem": f"{dataset}, {i}", "dataset": dataset, "split": 0, "method": method, "classes": 3,
                "zeros": 0, "status": "ok" if math.isfinite(loss) else "failed", "log_loss": loss,
                "difference": loss - 1, "difference_se": 0.1,
            }
            for method, values in losses.items()
            for i, (dataset, loss) in enumerate(zip(datasets, values, strict=True))
            if not math.isnan(loss)
        ]
    )  # fmt: skip


def test_win_rates_count_ties_half_and_failures_as_losses() -> None:
    from arena_summary import win_rates

    table = _table(
        {"ours": [1.0, 1.0, 1.0, 1.0], "theirs": [1.0, 2.0, 0.5, math.inf], "few": [math.nan] * 3 + [0.9]},
        ["a", "a", "b", "c"],
    )
    few, theirs = win_rates(table, "ours")
    assert (few.other, few.n_pairs, few.rate) == ("few", 1, 0)
    assert (theirs.n_pairs, theirs.rate) == (4, 2.5 / 4)
    assert theirs.low < theirs.rate < theirs.high
    assert theirs.mean == pytest.approx((0 - 1 + 0.5) / 3)


def test_worst_case_is_measured_in_standard_errors() -> None:
    from arena_summary import worst_case

    worst = worst_case(_table({"ours": [0.9, 1.3, 1.05]}, ["a", "b", "c"]), "ours")
    assert worst is not None
    assert worst.problem == "b, 1"
    assert worst.standard_errors == pytest.approx(3)
    assert (worst.n_significant, worst.n_relevant) == (1, 1)


def test_critical_difference_of_a_published_example() -> None:
    """Demšar (2006), section 3.2.2: four methods on 14 data sets have a critical difference of 1.25."""
    from arena_summary import mean_ranks

    rng = np.random.default_rng(0)
    losses = {f"method {i}": list(i + rng.random(14)) for i in range(4)}
    ranks = mean_ranks(_table(losses, [f"data {i}" for i in range(14)]))
    assert list(ranks.ranks) == [1, 2, 3, 4]
    assert ranks.critical_difference == pytest.approx(1.25, abs=0.005)


def test_page_is_written_from_results(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    import arena_page
    from arena_methods import methods
    from arena_run import Results, evaluate

    available = methods()
    selected = {name: available[name] for name in ("hetcal TS", "hetcal Auto", "scikit-learn isotonic")}
    for n_classes in (2, 3):
        problem = _problem(n_classes)
        problem = type(problem)(
            "tabular", f"data-{n_classes}", "forest", "design", problem.probs, problem.labels
        )
        evaluate(problem, selected, available["hetcal TS"], Results(tmp_path / "design.csv"), 30.0)
    arena_page.write(tmp_path, tmp_path / "looks.csv", tmp_path)
    text = (tmp_path / "arena.md").read_text(encoding="utf-8")
    assert "data-3" in text
    assert "| scikit-learn isotonic |" in text
    assert (tmp_path / "images" / "arena-dark.svg").stat().st_size > 1000
