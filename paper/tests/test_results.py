from __future__ import annotations

import csv
import json
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import hetcal
from hetcal.metrics import evaluate, reliability_curve
from hetcal_paper import evaluate_run, results, store
from hetcal_paper.results import merge, read_results, summarise
from hetcal_paper.runs import Run, clean, noise, under

TABLE2 = noise("c10", (0, 4), 0.3, 0)


@pytest.fixture(scope="module")
def raw(make_store: Any) -> Path:
    folder: Path = make_store([TABLE2, noise("c10", None, 0.3, 0)], n_val=600, n_test=900)
    return folder


@pytest.fixture(scope="module")
def made(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    summarise(raw, folder)
    return folder


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as source:
        return list(csv.DictReader(source))


def probs_of(raw: Path, run: Run, method: Any, choice: str = "best") -> tuple[NDArray[Any], NDArray[Any]]:
    result = store.read(raw, run.name, choice)
    fitted = method.fit(result.val_logits, result.val_labels)
    return fitted.predict_proba(result.test_logits), result.test_labels


@pytest.mark.parametrize("choice", ["best", "last"])
@pytest.mark.parametrize("bins", [10, 15])
def test_numbers_agree_with_evaluate(raw: Path, made: Path, choice: str, bins: int) -> None:
    found = read_results(made)
    for name, method in (("Uncal", hetcal.Identity()), ("CTS", hetcal.ClassWiseTemperatureScaling())):
        probs, labels = probs_of(raw, TABLE2, method, choice)
        wanted = evaluate(probs, labels, n_bins=bins)
        for metric in ("accuracy", "nll", "ece", "max_ece", "avg_ece"):
            value, floor = found.value(
                TABLE2.name, metric, method=name, bins=bins if "ece" in metric else None, choice=choice
            )
            assert value == pytest.approx(getattr(wanted, metric), rel=1e-5)
            assert np.isnan(floor) or floor == pytest.approx(wanted.floor[metric], rel=1e-5)


def test_halves_are_by_true_label(raw: Path, made: Path) -> None:
    probs, labels = probs_of(raw, TABLE2, hetcal.Identity())
    found = read_results(made)
    for half, rows in (("low", labels < 5), ("high", labels >= 5)):
        right = probs.argmax(axis=1)[rows] == labels[rows]
        gap, _ = found.value(TABLE2.name, "gap", half=half)
        assert gap == pytest.approx(probs.max(axis=1)[rows].mean() - right.mean(), abs=2e-6)
        curve = found.curve([TABLE2.name], 15, half)
        wanted = reliability_curve(probs, labels, rows=rows)
        np.testing.assert_array_equal(curve.count, wanted.count)
        np.testing.assert_allclose(curve.gap, wanted.gap, atol=1e-4)
        assert found.value(TABLE2.name, "ece", bins=15, half=half)[0] == pytest.approx(wanted.ece, abs=1e-6)


def test_classes_are_by_prediction_and_by_label(raw: Path, made: Path) -> None:
    probs, labels = probs_of(raw, TABLE2, hetcal.Identity())
    table = read_results(made).classes(TABLE2.name, "Uncal", 15)
    wanted = evaluate(probs, labels).classes
    np.testing.assert_array_equal(table.n, wanted.n)
    np.testing.assert_allclose(table.ece, wanted.ece, rtol=1e-5)
    np.testing.assert_allclose(table.error, 1 - wanted.accuracy, rtol=1e-5, atol=1e-9)
    of_cat = labels == 3
    assert table.n_true[3] == of_cat.sum()
    assert table.error_true[3] == pytest.approx((probs.argmax(axis=1) != labels)[of_cat].mean(), rel=1e-5)
    assert table.confidence_true[3] == pytest.approx(probs.max(axis=1)[of_cat].mean(), rel=1e-5)


@pytest.mark.usefixtures("quick")
def test_curves_of_several_runs_add_up(made: Path, make_store: Any, tmp_path: Path) -> None:
    runs = [clean("c10", seed) for seed in (0, 1)]
    summarise(make_store(runs), tmp_path)
    found = read_results(tmp_path)
    both, one = (found.curve([run.name for run in part], 10) for part in (runs, runs[:1]))
    assert both.n == 2 * one.n == 800
    assert both.mean_accuracy == pytest.approx(np.mean([found.value(r.name, "accuracy")[0] for r in runs]))


def test_choices_that_coincide_are_stored_once(made: Path) -> None:
    stored = {line["choice"] for line in lines(made / "metrics.csv")}
    assert stored == {"best", "phase1", "last"}
    found = read_results(made)
    assert found.choices(TABLE2.name) == {"best": 81, "phase1": 60, "phase2": 81, "last": 200}
    second, best, last = (found.value(TABLE2.name, "nll", choice=c) for c in ("phase2", "best", "last"))
    assert second == best != last
    with pytest.raises(ValueError, match="choice must be one of best, phase1, phase2, last"):
        found.value(TABLE2.name, "nll", choice="phase9")


def test_only_necessary_tables_and_logits_are_stored(made: Path) -> None:
    all_noisy = noise("c10", None, 0.3, 0).name
    assert {line["run"] for line in lines(made / "classes.csv")} == {TABLE2.name}
    assert {line["run"] for line in lines(made / "curves.csv")} == {TABLE2.name, all_noisy}
    studied = {TABLE2.name, all_noisy}  # the second for the study of calibrators
    assert {path.stem for path in (made / "logits").iterdir()} == studied


def test_stored_logits_are_from_the_best_epoch(raw: Path, made: Path) -> None:
    kept = hetcal.load_logits(made / "logits" / f"{TABLE2.name}.npz")
    result = store.read(raw, TABLE2.name)
    np.testing.assert_array_equal(kept.val.logits, result.val_logits)
    assert kept.test is not None
    np.testing.assert_array_equal(kept.test.labels, result.test_labels)


@pytest.mark.usefixtures("quick")
def test_early_stopping_is_a_choice_of_its_own(make_store: Any) -> None:
    run = noise("c100", None, 0.3, 0)
    folder = make_store([run])
    path = folder / f"{run.name}.json"
    record = json.loads(path.read_text())
    # The best of the first phase stays the best for sixty epochs, then the later ones win.
    record["history"]["val_accuracy"] = [*[0.1] * 59, 0.5, *[0.4] * 60, *[0.6] * 80]
    path.write_text(json.dumps(record))
    assert evaluate_run.stored_choice(record) == "phase1"
    assert evaluate_run.stored_choice(record, "best") == "best"
    tables = evaluate_run.evaluate_run(folder, run.name)
    assert tables["runs"]["chosen"].item() == "best=81 early=60 phase1=60 phase2=81 last=200"
    assert set(tables["metrics"]["choice"]) == {"best", "early", "last"}  # coinciding choices are stored once


def test_an_empty_cell_is_nan(made: Path, tmp_path: Path) -> None:
    for path in made.glob("*.csv"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    found = lines(tmp_path / "metrics.csv")
    name = found[0]["run"]
    found[0]["value"] = ""
    with (tmp_path / "metrics.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(found)
    assert np.isnan(read_results(tmp_path).value(name, found[0]["metric"])[0])


def test_a_second_call_changes_nothing(raw: Path, made: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*.*")}
    assert summarise(raw, made) == ()
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*.*")} == before


def test_force_gives_the_same_bytes(raw: Path, made: Path) -> None:
    before = {path: path.read_bytes() for path in made.rglob("*.*")}
    assert len(summarise(raw, made, force=True)) == 2
    assert {path: path.read_bytes() for path in made.rglob("*.*")} == before


@pytest.mark.usefixtures("quick")
def test_a_new_run_adds_lines_only(raw: Path, made: Path, make_store: Any, tmp_path: Path) -> None:
    for path in made.glob("*.csv"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    seen: list[str] = []
    assert summarise(make_store([clean("c10", 0)]), tmp_path, on_run=seen.append) == ("c10-clean-s0",)
    assert seen == ["c10-clean-s0"]
    for path in made.glob("*.csv"):
        old, new = (p.read_text().splitlines() for p in (path, tmp_path / path.name))
        assert [line for line in new if not line.startswith("c10-clean-s0")] == old
        assert [line.split(",")[0] for line in new[1:]] == sorted(line.split(",")[0] for line in new[1:])
    assert read_results(tmp_path).value("c10-clean-s0", "accuracy")[0] > 0.5


@pytest.mark.usefixtures("quick")
def test_interrupted_summaries_are_repeated(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_before_the_last_file(path: Path, text: str) -> None:
        if path.stem == "runs":
            raise KeyboardInterrupt
        path.write_text(text)

    with monkeypatch.context() as patch:
        patch.setattr(results, "write_text", stop_before_the_last_file)
        with pytest.raises(KeyboardInterrupt):
            summarise(raw, tmp_path)
    assert len(summarise(raw, tmp_path)) == 2
    keys = [tuple(line.values())[:11] for line in lines(tmp_path / "metrics.csv")]
    assert len(keys) == len(set(keys))


@pytest.mark.usefixtures("quick")
def test_concurrent_summaries_lose_no_lines(make_store: Any, tmp_path: Path) -> None:
    stores = [make_store([clean("c10", seed)], n_val=60, n_test=60) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        added = list(pool.map(lambda folder: summarise(folder, tmp_path), stores))
    assert added == [(f"c10-clean-s{seed}",) for seed in range(4)]
    assert set(read_results(tmp_path).runs) == {f"c10-clean-s{seed}" for seed in range(4)}


class SlowToWarn:
    """Calibrator that warns after a while; the fits of two threads overlap."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def fit(self, *_rows: Any) -> None:
        time.sleep(self.seconds)
        warnings.warn("few rows", UserWarning, stacklevel=2)

    def predict_proba(self, logits: Any) -> Any:
        return logits


def test_warnings_of_concurrent_fits_are_caught(make_store: Any) -> None:
    run = clean("c10", 0)
    result = store.read(make_store([run], n_val=60, n_test=60), run.name)
    filters = list(warnings.filters)
    with ThreadPoolExecutor(2) as pool:
        fits = []
        for seconds in (0.1, 0.2):  # the second fit starts during the first and ends after it
            fits.append(pool.submit(evaluate_run._predict, SlowToWarn(seconds), result, "test"))
            time.sleep(0.05)
        for fit in fits:
            assert fit.result().shape == (60, 10)
    assert warnings.filters == filters


def test_every_run_is_evaluated_with_all_methods(made: Path) -> None:
    found = read_results(made)
    methods = ("Uncal", "VS", "TS", "CTS", "CTS-cv", "CTS-bayes", "Auto")
    assert all(found.has(run, method) for run in found.runs for method in methods)
    # Slow methods are fitted only at the epochs that represent a run.
    assert found.has(TABLE2.name, "CTS", "last")
    assert not found.has(TABLE2.name, "Auto", "last")


def test_runs_are_described(made: Path) -> None:
    line = read_results(made).runs[TABLE2.name]
    assert (line["classes"], line["rate"], line["network"], line["epochs"]) == (
        "0-4",
        "0.3",
        "resnet20",
        "200",
    )
    assert line["device"] == "synthetic, for tests"
    assert line["git"] == ""


def test_bad_folders_are_refused(tmp_path: Path, raw: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"results must be a folder with runs\.csv"):
        read_results(tmp_path)
    (tmp_path / "runs.csv").write_text("run,what\n")
    with pytest.raises(ValueError, match=r"runs\.csv must begin with run,dataset"):
        summarise(raw, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"results must contain metrics\.csv"):
        _ = read_results(tmp_path)._metrics


def test_missing_lines_are_named(made: Path) -> None:
    found = read_results(made)
    with pytest.raises(ValueError, match=r"metrics\.csv must contain .*Platt, ece, 15, all"):
        found.value(TABLE2.name, "ece", method="Platt", bins=15)
    with pytest.raises(ValueError, match=r"classes\.csv must contain"):
        found.classes(TABLE2.name, "CTS", 15, "last")
    with pytest.raises(ValueError, match=r"curves\.csv must contain"):
        found.curve([TABLE2.name], 7)


@pytest.mark.usefixtures("quick")
def test_warnings_of_a_fit_are_logged(
    make_store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="hetcal_paper.evaluate_run"):
        summarise(make_store([under("c100", (0, 49), 0.1, 0)], n_val=120, n_test=120), tmp_path)
    assert any("CTS: no row is predicted as" in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace("run,", "ran,", 1), "must begin with run,"),
        (lambda text: text[:-20], "must end with a complete line"),
        (lambda text: text.replace("=", ":"), "chosen"),
        (lambda text: text + "\udcff\n", "must be a CSV table"),
    ],
)
def test_damaged_tables_are_refused(made: Path, tmp_path: Path, change: Any, words: str) -> None:
    text = change((made / "runs.csv").read_text())
    (tmp_path / "runs.csv").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=words):
        read_results(tmp_path).choices(TABLE2.name)


def test_merging_adds_runs_once(made: Path, tmp_path: Path) -> None:
    names = tuple(sorted(read_results(made).runs))
    assert merge(made, tmp_path) == names
    for file in made.glob("*.csv"):
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()
    kept = sorted(path.name for path in (made / "logits").iterdir())
    assert kept == sorted(path.name for path in (tmp_path / "logits").iterdir())
    before = (tmp_path / "runs.csv").read_bytes()
    assert merge(made, tmp_path) == ()
    assert (tmp_path / "runs.csv").read_bytes() == before


def test_damaged_results_are_not_merged(made: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in made.glob("*.csv"):
        text = file.read_text()
        (damaged / file.name).write_text(text[:-40] if file.name == "metrics.csv" else text)
    with pytest.raises(ValueError, match=r"metrics\.csv must"):
        merge(damaged, tmp_path / "target")
    assert not (tmp_path / "target").exists()
