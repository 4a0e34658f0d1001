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
def results_dir(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
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
def test_numbers_agree_with_evaluate(raw: Path, results_dir: Path, choice: str, bins: int) -> None:
    stored = read_results(results_dir)
    for name, method in (("Uncal", hetcal.Identity()), ("CTS", hetcal.ClassWiseTemperatureScaling())):
        probs, labels = probs_of(raw, TABLE2, method, choice)
        expected = evaluate(probs, labels, n_bins=bins)
        for metric in ("accuracy", "nll", "ece", "max_ece", "avg_ece"):
            value, floor = stored.value(
                TABLE2.name, metric, method=name, bins=bins if "ece" in metric else None, choice=choice
            )
            assert value == pytest.approx(getattr(expected, metric), rel=1e-5)
            assert np.isnan(floor) or floor == pytest.approx(expected.floor[metric], rel=1e-5)


def test_halves_are_by_true_label(raw: Path, results_dir: Path) -> None:
    probs, labels = probs_of(raw, TABLE2, hetcal.Identity())
    stored = read_results(results_dir)
    for half, rows in (("low", labels < 5), ("high", labels >= 5)):
        right = probs.argmax(axis=1)[rows] == labels[rows]
        gap, _ = stored.value(TABLE2.name, "gap", half=half)
        assert gap == pytest.approx(probs.max(axis=1)[rows].mean() - right.mean(), abs=2e-6)
        curve = stored.curve([TABLE2.name], 15, half)
        expected = reliability_curve(probs, labels, rows=rows)
        np.testing.assert_array_equal(curve.count, expected.count)
        np.testing.assert_allclose(curve.gap, expected.gap, atol=1e-4)
        assert stored.value(TABLE2.name, "ece", bins=15, half=half)[0] == pytest.approx(
            expected.ece, abs=1e-6
        )


def test_classes_are_by_prediction_and_by_label(raw: Path, results_dir: Path) -> None:
    probs, labels = probs_of(raw, TABLE2, hetcal.Identity())
    table = read_results(results_dir).classes(TABLE2.name, "Uncal", 15)
    expected = evaluate(probs, labels).classes
    np.testing.assert_array_equal(table.n, expected.n)
    np.testing.assert_allclose(table.ece, expected.ece, rtol=1e-5)
    np.testing.assert_allclose(table.error, 1 - expected.accuracy, rtol=1e-5, atol=1e-9)
    is_cat = labels == 3
    assert table.n_true[3] == is_cat.sum()
    assert table.error_true[3] == pytest.approx((probs.argmax(axis=1) != labels)[is_cat].mean(), rel=1e-5)
    assert table.confidence_true[3] == pytest.approx(probs.max(axis=1)[is_cat].mean(), rel=1e-5)


@pytest.mark.usefixtures("quick")
def test_curves_of_several_runs_add_up(results_dir: Path, make_store: Any, tmp_path: Path) -> None:
    runs = [clean("c10", seed) for seed in (0, 1)]
    summarise(make_store(runs), tmp_path)
    stored = read_results(tmp_path)
    both, one = (stored.curve([run.name for run in part], 10) for part in (runs, runs[:1]))
    assert both.n == 2 * one.n == 800
    assert both.mean_accuracy == pytest.approx(np.mean([stored.value(r.name, "accuracy")[0] for r in runs]))


def test_choices_that_coincide_are_stored_once(results_dir: Path) -> None:
    choices = {line["choice"] for line in lines(results_dir / "metrics.csv")}
    assert choices == {"best", "phase1", "last"}
    stored = read_results(results_dir)
    assert stored.choices(TABLE2.name) == {"best": 81, "phase1": 60, "phase2": 81, "last": 200}
    second, best, last = (stored.value(TABLE2.name, "nll", choice=c) for c in ("phase2", "best", "last"))
    assert second == best != last
    with pytest.raises(ValueError, match="choice must be one of best, phase1, phase2, last"):
        stored.value(TABLE2.name, "nll", choice="phase9")


def test_only_necessary_tables_and_logits_are_stored(results_dir: Path) -> None:
    all_noisy = noise("c10", None, 0.3, 0).name
    assert {line["run"] for line in lines(results_dir / "classes.csv")} == {TABLE2.name}
    assert {line["run"] for line in lines(results_dir / "curves.csv")} == {TABLE2.name, all_noisy}
    with_logits = {TABLE2.name, all_noisy}  # the study of calibrators uses the second run
    assert {path.stem for path in (results_dir / "logits").iterdir()} == with_logits


def test_stored_logits_are_from_the_best_epoch(raw: Path, results_dir: Path) -> None:
    logits = hetcal.load_logits(results_dir / "logits" / f"{TABLE2.name}.npz")
    result = store.read(raw, TABLE2.name)
    np.testing.assert_array_equal(logits.val.logits, result.val_logits)
    assert logits.test is not None
    np.testing.assert_array_equal(logits.test.labels, result.test_labels)


@pytest.mark.usefixtures("quick")
def test_early_stopping_is_a_choice_of_its_own(make_store: Any) -> None:
    run = noise("c100", None, 0.3, 0)
    folder = make_store([run])
    path = folder / f"{run.name}.json"
    record = json.loads(path.read_text())
    # No epoch is better for sixty epochs after the best of the first phase; later epochs are.
    record["history"]["val_accuracy"] = [*[0.1] * 59, 0.5, *[0.4] * 60, *[0.6] * 80]
    path.write_text(json.dumps(record))
    assert evaluate_run.stored_choice(record) == "phase1"
    assert evaluate_run.stored_choice(record, "best") == "best"
    tables = evaluate_run.evaluate_run(folder, run.name)
    assert tables["runs"]["chosen"].item() == "best=81 early=60 phase1=60 phase2=81 last=200"
    assert set(tables["metrics"]["choice"]) == {"best", "early", "last"}  # coinciding choices are stored once


def test_an_empty_cell_is_nan(results_dir: Path, tmp_path: Path) -> None:
    for path in results_dir.glob("*.csv"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    table = lines(tmp_path / "metrics.csv")
    name = table[0]["run"]
    table[0]["value"] = ""
    with (tmp_path / "metrics.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    assert np.isnan(read_results(tmp_path).value(name, table[0]["metric"])[0])


def test_a_second_call_changes_nothing(raw: Path, results_dir: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in results_dir.rglob("*.*")}
    assert summarise(raw, results_dir) == ()
    assert {path: path.stat().st_mtime_ns for path in results_dir.rglob("*.*")} == before


def test_force_gives_the_same_bytes(raw: Path, results_dir: Path) -> None:
    before = {path: path.read_bytes() for path in results_dir.rglob("*.*")}
    assert len(summarise(raw, results_dir, force=True)) == 2
    assert {path: path.read_bytes() for path in results_dir.rglob("*.*")} == before


@pytest.mark.usefixtures("quick")
def test_the_first_training_of_a_run_is_kept(make_store: Any, tmp_path: Path) -> None:
    raw, target, new = make_store([TABLE2, clean("c10", 0)]), tmp_path / "target", tmp_path / "new"
    summarise(raw, target)
    before = read_results(target)
    values = {run: before.value(run, "ece", bins=10) for run in before.runs}
    assert not before.trained_twice
    for seconds, n_test in ((2.5, 380), (3.5, 360)):  # a second and a third training
        again = make_store([TABLE2], n_test=n_test)
        path = again / f"{TABLE2.name}.json"
        path.write_text(path.read_text().replace('"seconds": 1.5', f'"seconds": {seconds}'))
        summarise(again, new, force=True)
        assert merge(new, target) == ()
        assert merge(new, target, force=True) == (TABLE2.name,)
        after = read_results(target)
        assert after.value(TABLE2.name, "ece", bins=10) == read_results(new).value(
            TABLE2.name, "ece", bins=10
        )
        assert after.value(TABLE2.name, "ece", bins=10) != values[TABLE2.name]
        assert after.trained_twice.keys() == {TABLE2.name}
        first = read_results(target, first_trainings=True)
        assert {run: first.value(run, "ece", bins=10) for run in first.runs} == values
        assert first.runs[TABLE2.name]["seconds"] == "1.5"


def test_the_temperatures_are_described(raw: Path, results_dir: Path) -> None:
    result = store.read(raw, TABLE2.name)
    model = hetcal.ClassWiseTemperatureScaling().fit(result.val_logits, result.val_labels)
    error, _ = read_results(results_dir).value(TABLE2.name, "log_t_error", method="CTS")
    assert error == pytest.approx(np.median(model.alpha_std_ / model.alpha_), rel=1e-5)
    n_at_bound, _ = read_results(results_dir).value(TABLE2.name, "n_at_bound", method="CTS")
    assert n_at_bound == np.isinf(model.alpha_std_).sum()
    bayes = evaluate_run.evaluate_method(TABLE2, result, "best", "CTS-bayes")["metrics"]
    (line,) = bayes[bayes["metric"] == "log_t_spread"].to_dict("records")
    shrunk = hetcal.ClassWiseTemperatureScaling("bayes").fit(result.val_logits, result.val_labels)
    assert float(line["value"]) == pytest.approx(shrunk.choice_["tau"], rel=1e-5)


@pytest.mark.usefixtures("quick")
def test_a_new_run_adds_lines_only(raw: Path, results_dir: Path, make_store: Any, tmp_path: Path) -> None:
    for path in results_dir.glob("*.csv"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    seen: list[str] = []
    assert summarise(make_store([clean("c10", 0)]), tmp_path, on_run=seen.append) == ("c10-clean-s0",)
    assert seen == ["c10-clean-s0"]
    for path in results_dir.glob("*.csv"):
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
    """Calibrator whose fit takes a while and then warns, so that fits in two threads overlap."""

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


def test_every_run_is_evaluated_with_all_methods(results_dir: Path) -> None:
    stored = read_results(results_dir)
    methods = ("Uncal", "VS", "TS", "CTS", "CTS-cv", "CTS-bayes", "Auto")
    assert all(stored.has(run, method) for run in stored.runs for method in methods)
    # Slow methods are fitted only at the epochs that represent a run.
    assert stored.has(TABLE2.name, "CTS", "last")
    assert not stored.has(TABLE2.name, "Auto", "last")


def test_runs_are_described(results_dir: Path) -> None:
    line = read_results(results_dir).runs[TABLE2.name]
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
    with pytest.raises(ValueError, match=r"runs\.csv must begin with the line run,dataset"):
        summarise(raw, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"results must contain metrics\.csv"):
        _ = read_results(tmp_path)._metrics


def test_missing_lines_are_named(results_dir: Path) -> None:
    stored = read_results(results_dir)
    with pytest.raises(ValueError, match=r"metrics\.csv must have a line for .*Platt, ece, 15, all"):
        stored.value(TABLE2.name, "ece", method="Platt", bins=15)
    with pytest.raises(ValueError, match=r"classes\.csv must have a line"):
        stored.classes(TABLE2.name, "CTS", 15, "last")
    with pytest.raises(ValueError, match=r"curves\.csv must have a line"):
        stored.curve([TABLE2.name], 7)


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
        (lambda text: text.replace("run,", "ran,", 1), "must begin with the line run,"),
        (lambda text: text[:-20], "must end with a complete line"),
        (lambda text: text.replace("=", ":"), "chosen"),
        (lambda text: text + "\udcff\n", "must be a CSV table"),
    ],
)
def test_damaged_tables_are_refused(results_dir: Path, tmp_path: Path, change: Any, words: str) -> None:
    text = change((results_dir / "runs.csv").read_text())
    (tmp_path / "runs.csv").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=words):
        read_results(tmp_path).choices(TABLE2.name)


def test_merging_adds_runs_once(results_dir: Path, tmp_path: Path) -> None:
    names = tuple(sorted(read_results(results_dir).runs))
    assert merge(results_dir, tmp_path) == names
    for file in results_dir.glob("*.csv"):
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()
    files = sorted(path.name for path in (results_dir / "logits").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "logits").iterdir())
    before = (tmp_path / "runs.csv").read_bytes()
    assert merge(results_dir, tmp_path) == ()
    assert (tmp_path / "runs.csv").read_bytes() == before


def test_damaged_results_are_not_merged(results_dir: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in results_dir.glob("*.csv"):
        text = file.read_text()
        (damaged / file.name).write_text(text[:-40] if file.name == "metrics.csv" else text)
    with pytest.raises(ValueError, match=r"metrics\.csv must"):
        merge(damaged, tmp_path / "target")
    assert not (tmp_path / "target").exists()
