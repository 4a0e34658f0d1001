from __future__ import annotations

import io
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetcal
from hetcal_paper import evaluate_run, notes, pages, training
from hetcal_paper.pages import write_pages
from hetcal_paper.published import AVERAGES, ITEMS, TABLES
from hetcal_paper.reproduction import (
    NAMES,
    MissingRunsError,
    Reproduction,
    complete_results,
    find_results,
    reproduce,
    reproduce_many,
)
from hetcal_paper.results import read_results, summarise
from hetcal_paper.rows import class_names, first_row, shown_classes
from hetcal_paper.runs import noise, paper_grid, runs_for
from hetcal_paper.sweeps import compare_networks
from hetcal_paper.tables import differences, largest_distances, markdown_table
from hetcal_paper.training_page import EPOCHS

KEYS = {"method", "metric", "bins", "mean", "std", "n", "floor", "paper"}
METHODS = {"Uncal", "TS", "VS", "CTS", "Auto"}  # of the synthetic results


@pytest.fixture(scope="session")
def items(grid_results: Path) -> dict[str, Reproduction]:
    return {name: reproduce(name, grid_results) for name in NAMES}


def check_tables(text: str) -> int:
    """Check that all Markdown tables have a rule, full lines and no missing values; return their number."""
    blocks = [b.splitlines() for b in text.split("\n\n") if b.startswith("|")]
    for head, rule, *lines in blocks:
        n = head.count("|")
        assert re.fullmatch(r"(\| -+:? )+\|", rule)
        assert all(line.count("|") == n for line in (rule, *lines))
        assert lines
        cells = {cell.strip() for line in lines for cell in line.split("|")}
        assert not cells & {"nan", "None"}
    return len(blocks)


@pytest.mark.usefixtures("quick")
def test_sweeps_show_all_methods_of_the_results(make_store: Any, tmp_path: Path, monkeypatch: Any) -> None:
    methods = {"Uncal": hetcal.Identity, "TS": hetcal.TemperatureScaling, "VS": hetcal.Identity}
    methods |= dict.fromkeys(("CTS", "CTS-cv", "CTS-bayes", "Auto"), hetcal.ClassWiseTemperatureScaling)
    with monkeypatch.context() as patch:
        patch.setattr(evaluate_run, "METHODS", {name: make() for name, make in methods.items()})
        summarise(make_store([noise("c10", (0, 4), 0.1, 0)]), tmp_path)
    item = reproduce("fig10", tmp_path)
    assert {row["method"] for row in item.rows} == set(methods)
    assert "CTS-bayes max-ECE" in item.to_markdown()
    assert len(item.figure().axes) == 4  # the metrics, and their differences from TS
    assert set(methods) - {"CTS-bayes"} <= labels(item)
    # Methods that some runs lack are in the tables, with their number of seeds.
    summarise(make_store([noise("c10", (0, 4), 0.1, 1)]), tmp_path)
    item = reproduce("fig10", tmp_path)
    assert {row["n"] for row in item.rows if row["method"] == "CTS-cv"} == {1}
    assert {row["n"] for row in item.rows if row["method"] == "CTS"} == {2}
    assert "seeds (CTS-cv, CTS-bayes)" in item.to_markdown()
    assert {"CTS", "CTS-cv (one seed)"} <= labels(item)
    # The figure shows only methods that were measured at every rate.
    summarise(make_store([noise("c10", (0, 4), 0.3, 0)]), tmp_path)
    item = reproduce("fig10", tmp_path)
    assert {row["rate"] for row in item.rows if row["method"] == "CTS-cv"} == {0.1}
    assert not any(label.startswith("CTS-cv") for label in labels(item))
    check_tables(item.to_markdown())


def labels(item: Reproduction) -> set[str]:
    """Labels in the legend of the figure."""
    (legend,) = item.figure().legends
    return {text.get_text() for text in legend.get_texts()}


def test_all_items_are_there() -> None:
    assert set(NAMES) == {"table1", "table2", "example", *(f"fig{i}" for i in range(1, 15))}
    assert set(paper_grid()) == set(NAMES) - {"example"}


def test_the_papers_numbers() -> None:
    assert TABLES["table1"]["VS"]["max_ece"] == (0.1830, 0.0131)
    assert TABLES["table2"]["CTS"]["ece"] == (0.0119, 0.0025)
    assert TABLES["table2"]["Uncal"]["accuracy"] == TABLES["table2"]["TS"]["accuracy"] == (0.8698, 0.0045)
    assert AVERAGES["fig2"][0.05] == (0.658, 0.295)
    assert AVERAGES["fig3"] == {"low": (0.627, 0.689), "high": (0.781, 0.768)}
    assert AVERAGES["fig4"]["low"] == (0.728, 0.396)
    assert AVERAGES["fig12"][1.0] == (0.960, 0.915)


@pytest.mark.parametrize("name", NAMES)
def test_rows_follow_the_schema(items: dict[str, Reproduction], name: str) -> None:
    item = json.loads(json.dumps(items[name].to_dict(), allow_nan=False))
    assert item["name"] == name
    assert item["rows"]
    for row in item["rows"]:
        assert row.keys() >= KEYS
        assert row["method"] in METHODS
        assert row["bins"] in (None, 3, 10, 15)
        assert (row["std"] is None) == (row["n"] < 2)
        assert row["mean"] is None or abs(row["mean"]) <= 1
        assert row["std"] is None or row["std"] >= 0
        assert (row["floor"] is None) == (not row["metric"].endswith("ece") or name == "example")
    identities = [
        tuple(row.get(k) for k in ("method", "metric", "bins", "rate", "half", "training", "class"))
        for row in item["rows"]
    ]
    assert len(set(identities)) == len(identities)


@pytest.mark.parametrize("name", NAMES)
def test_markdown_and_figure(items: dict[str, Reproduction], name: str) -> None:
    text = items[name].to_markdown()
    assert text.startswith(f"## {name}: {ITEMS[name].title}\n")
    assert check_tables(text) >= 2
    assert items[name].claims
    picture = io.BytesIO()
    items[name].figure().savefig(picture, format="png", dpi=30)
    assert picture.getvalue().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["table1", "table2"])
def test_tables_contain_the_published_numbers(items: dict[str, Reproduction], name: str) -> None:
    rows = items[name].rows
    for bins in (10, 15):
        for method, cells in TABLES[name].items():
            for metric, (mean, std) in cells.items():
                row = first_row(rows, method=method, metric=metric, bins=bins, half=None)
                assert row is not None
                assert (row["paper"], row["paper_std"]) == (mean, std)
        auto = first_row(rows, method="Auto", metric="ece", bins=bins)
        assert auto is not None
        assert auto["paper"] is None
    accuracies = {m: first_row(rows, method=m, metric="accuracy", bins=10) for m in ("Uncal", "TS", "CTS")}
    assert len({row["mean"] for row in accuracies.values() if row}) == 1


def test_mean_and_standard_deviation_are_over_seeds(
    items: dict[str, Reproduction], grid_results: Path
) -> None:
    stored = read_results(grid_results)
    names = [noise("c10", (0, 4), 0.3, seed).name for seed in (0, 1)]
    pairs = [stored.value(name, "max_ece", method="TS", bins=15) for name in names]
    row = first_row(items["table2"].rows, method="TS", metric="max_ece", bins=15)
    assert row is not None
    assert row["mean"] == pytest.approx(np.mean([v for v, _ in pairs]), abs=1e-6)
    assert row["std"] == pytest.approx(np.std([v for v, _ in pairs], ddof=1), abs=1e-6)
    assert row["floor"] == pytest.approx(np.mean([f for _, f in pairs]), abs=1e-6)
    gap = first_row(items["table2"].rows, metric="gap", half="low")
    assert gap is not None
    values = [stored.value(name, "gap", half="low")[0] for name in names]
    margin = 12.7062 * np.std(values, ddof=1) / math.sqrt(2)  # Student's t, one degree of freedom
    assert gap["high"] - gap["low"] == pytest.approx(2 * margin, abs=1e-5)


def test_sweeps_have_a_row_per_rate(items: dict[str, Reproduction]) -> None:
    rates = {
        "fig10": {0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9},
        "fig14": {0.01, 0.03, 0.06, 0.1, 0.3, 0.6, 1.0},
        "fig8": {0.05, 0.1, 0.3, 0.6, 1.0},
    }
    for name, expected in rates.items():
        rows = items[name].rows
        assert {row["rate"] for row in rows} == expected
        assert {row["metric"] for row in rows} >= {"ece", "max_ece"}
    assert first_row(items["fig14"].rows, metric="avg_ece", method="CTS", rate=0.06, bins=15)


def test_captions_of_figure_12(items: dict[str, Reproduction]) -> None:
    printed = {
        row["rate"]: row["paper"]
        for row in items["fig12"].rows
        if row["metric"] == "confidence" and row["paper"]
    }
    assert printed == {0.02: 0.805, 0.1: 0.905, 0.4: 0.947, 1.0: 0.960}
    gap = first_row(items["fig12"].rows, metric="gap", rate=0.02)
    assert gap is not None
    assert gap["paper"] == pytest.approx(0.805 - 0.538)


def test_claims_are_checked(items: dict[str, Reproduction]) -> None:
    for claim, kind in zip(items["fig1"].claims, ("clean", "noise"), strict=False):
        gap = first_row(items["fig1"].rows, metric="gap", training=kind)
        assert gap is not None
        assert gap["low"] is None  # with one seed, the value decides
        assert claim.holds == (gap["mean"] > 0 if kind == "clean" else gap["mean"] < 0)
        assert f"{100 * gap['mean']:+.1f}" in claim.evidence
    assert items["fig1"].claims[2].holds
    noisy = items["fig9"].claims[1]
    gap = first_row(items["fig9"].rows, metric="gap", training="noise")
    assert gap is not None
    assert noisy.holds == (gap["high"] < 0)  # the whole interval must be negative
    assert f"{100 * gap['low']:+.1f} to {100 * gap['high']:+.1f}" in noisy.evidence
    (growth,) = items["fig12"].claims
    assert growth.holds
    accuracy = items["table2"].claims[0]
    assert accuracy.holds == (_mean(items["table2"], "Uncal") != _mean(items["table2"], "VS"))


def _mean(item: Reproduction, method: str) -> float:
    row = first_row(item.rows, method=method, metric="accuracy")
    assert row is not None
    return float(row["mean"])


def test_the_example_is_exact() -> None:
    rows = reproduce("example").rows
    stored = {(r["method"], r["metric"], r.get("class")): r["mean"] for r in rows}
    assert stored[("TS", "class_ece", 0)] == stored[("TS", "class_ece", 1)] == 0.08
    assert stored[("CTS", "class_ece", 0)] == stored[("CTS", "class_ece", 1)] == 0.02
    assert stored[("TS", "ece", None)] == 0.0
    assert stored[("CTS", "ece", None)] == 0.02
    assert all(row["mean"] == row["paper"] for row in rows)
    assert all(claim.holds for claim in reproduce("example").claims)


def test_shown_classes() -> None:
    assert shown_classes("fig11") == tuple(range(10))
    ours = shown_classes("fig6")
    assert ours == shown_classes("fig7")
    assert len(set(ours)) == 10
    assert sum(k < 50 for k in ours) == 5
    assert class_names("fig13")[3] == "cat"
    assert all(name and not name.isdigit() for name in class_names("fig6").values())


def test_another_epoch_gives_other_numbers(items: dict[str, Reproduction], grid_results: Path) -> None:
    last = reproduce("table2", grid_results, choice="last")
    assert last.choice == "last"
    assert {row["method"] for row in last.rows} == {"Uncal", "VS", "TS", "CTS"}
    ours, best = (first_row(m.rows, metric="gap", half="low") for m in (last, items["table2"]))
    assert ours is not None
    assert best is not None
    assert ours["mean"] > best["mean"] + 0.05
    for name in ("fig3", "fig12"):
        reproduce(name, grid_results, choice="phase1").figure()


def test_missing_runs_are_named(items: dict[str, Reproduction], make_store: Any, tmp_path: Path) -> None:
    assert items["table2"].missing == tuple(noise("c10", (0, 4), 0.3, seed).name for seed in (2, 3, 4))
    assert "Runs: 2 of 5. Missing: c10-noise-0-4-r0.30-s2, " in items["table2"].to_markdown()
    assert "`hetcal reproduce table2 --train`" in items["table2"].to_markdown()
    summarise(make_store([noise("c10", (0, 4), 0.1, 0)]), tmp_path)
    with pytest.raises(
        MissingRunsError, match=r"got none of c10-under-all-r0.02-s0, .* and \d+ more .*; train them with"
    ):
        reproduce("fig12", tmp_path)
    partial = reproduce("fig10", tmp_path)
    assert {row["rate"] for row in partial.rows} == {0.1}
    assert len(partial.missing) == len(runs_for("fig10")) - 1
    assert check_tables(partial.to_markdown())
    partial.figure().savefig(io.BytesIO(), format="png", dpi=30)


def test_the_folder_of_results_is_found(
    grid_results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HETCAL_RESULTS", raising=False)
    with pytest.raises(FileNotFoundError, match=r"HETCAL_RESULTS .* `hetcal reproduce fig9 --train`"):
        reproduce("fig9")
    monkeypatch.setenv("HETCAL_RESULTS", str(grid_results))
    assert find_results() == grid_results
    assert find_results(grid_results) == grid_results
    monkeypatch.delenv("HETCAL_RESULTS")
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "results").symlink_to(grid_results)
    assert find_results() == Path("paper/results")


def test_bad_arguments_are_refused(grid_results: Path) -> None:
    with pytest.raises(ValueError, match=r"name must be one of fig1, .* got 'fig15'"):
        reproduce("fig15", grid_results)
    with pytest.raises(ValueError, match="name must be one of"):
        complete_results(["tabel2"], grid_results)
    with pytest.raises(TypeError, match="options must be omitted without train, got parallel"):
        reproduce("fig9", grid_results, parallel=2)
    with pytest.raises(TypeError, match="options must be omitted without train, got parallel"):
        reproduce_many("all", grid_results, parallel=2)
    with pytest.raises(ValueError, match="choice must be one of"):
        reproduce("table2", grid_results, choice="first")


def test_missing_runs_are_trained_first(
    make_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = make_store([noise("c10", (0, 4), 0.1, 0)])
    trained: list[str] = []

    def fake_train_runs(runs: Any, data_dir: Any, out_dir: Any, **options: Any) -> training.Summary:
        trained.extend(run.name for run in runs)
        assert (data_dir, options) == ("data", {"parallel": 3})
        for path in make_store([noise("c10", (0, 4), 0.3, 0)]).iterdir():
            (Path(out_dir) / path.name).write_bytes(path.read_bytes())
        return training.Summary((), (), (), ())

    monkeypatch.setattr(training, "train_runs", fake_train_runs)
    options: dict[str, Any] = {"data_dir": "data", "store_dir": raw, "parallel": 3}
    done = reproduce("fig10", tmp_path / "new", train=True, **options)
    assert len(trained) == len(runs_for("fig10")) - 1
    assert "c10-noise-0-4-r0.10-s0" not in trained
    assert {row["rate"] for row in done.rows} == {0.1, 0.3}
    trained.clear()
    assert complete_results(["example"], tmp_path / "new", store_dir=raw) == tmp_path / "new"
    assert trained == []


def test_saved_files_are_reproducible(tmp_path: Path) -> None:
    pages_ = [reproduce("example").save(tmp_path / part) for part in "ab"]
    files = [sorted(page.parent.iterdir()) for page in pages_]
    assert [path.name for path in files[0]] == ["example.json", "example.md", "example.svg"]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(*files, strict=True))
    assert json.loads(files[0][0].read_text())["name"] == "example"
    assert pages_[0].read_text().endswith("(example.svg)\n")


def test_all_items_at_once(
    grid_results: Path, make_store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert [item.name for item in reproduce_many("all", grid_results)] == list(NAMES)
    assert [item.name for item in reproduce_many("fig9", grid_results)] == ["fig9"]
    assert not caplog.messages
    summarise(make_store([noise("c10", (0, 4), 0.1, 0)]), tmp_path)
    assert [item.name for item in reproduce_many("all", tmp_path)] == ["fig10", "example"]
    (message,) = caplog.messages
    assert "table1" in message


def test_large_differences_are_listed() -> None:
    row = {"method": "TS", "metric": "ece", "bins": 15, "mean": 0.03, "std": 0.001, "n": 5, "floor": 0.01}
    assert "TS ECE, 15 bins (-1.00)" in differences([{**row, "paper": 0.04, "paper_std": 0.001}])
    near = differences([{**row, "paper": 0.031, "paper_std": 0.001}])
    assert "0.1 in ECE" in near
    assert "TS" not in near
    assert differences([{**row, "paper": None}]) == ""


def test_lines_of_a_table_have_equal_length() -> None:
    assert markdown_table(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |"
    with pytest.raises(ValueError, match="lines must have 2 cells"):
        markdown_table(["a", "b"], [["x"]])


def test_the_pages(grid_results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reproduction, "figure", lambda _: None)  # drawn in another test
    monkeypatch.setattr(pages, "save_figure", lambda _, path: path)
    files = write_pages(grid_results, tmp_path / "new" / "docs")
    pictures = {path.stem for path in files if path.suffix == ".svg"}
    texts = {path.stem: path.read_text() for path in files if path.suffix == ".md"}
    assert pictures == {*NAMES, "table2-halves"}
    assert texts.keys() == {*NAMES, "training", "index"}
    for text in texts.values():
        check_tables(text)
        assert text.startswith("# ")
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
            assert link.partition(".")[0] in (pictures if link.endswith(".svg") else texts)
    for name in NAMES:
        assert f"]({name}.svg)" in texts[name]
        assert f"[{name}]({name}.md)" in texts["index"]
    anchors = {
        f"training.md#{re.sub(' ', '-', h.lower())}" for h in re.findall(r"\n## (.+)", texts["training"])
    }
    linked = {link for text in texts.values() for link in re.findall(r"\((training\.md#[\w-]+)\)", text)}
    assert linked <= anchors
    assert check_tables(texts["index"]) == 1
    recipe = texts["fig5"]
    for part in ("ResNet-20", "0.001 → 0.0001 after 40", "100 epochs", "weight decay 0.0002"):
        assert part in recipe


def test_the_index_has_a_line_per_result(items: dict[str, Reproduction]) -> None:
    _, _, *lines = pages._overview(list(items.values())).splitlines()
    assert len(lines) == len(NAMES)
    for name, line in zip(NAMES, lines, strict=True):
        _, runs, claims, distance, _ = line.strip("| ").split(" | ")
        n = len(runs_for(name)) if ITEMS[name].data else 0
        assert runs == (f"{n - len(items[name].missing)} of {n}" if n else "computed")
        assert claims == f"{sum(c.holds for c in items[name].claims)} of {len(items[name].claims)}"
        distances = largest_distances(items[name].rows)
        assert distance.startswith(f"{100 * max(distances.values()):.1f} " if distances else "–")


@pytest.mark.usefixtures("quick")
def test_the_default_recipe_replaces_missing_runs(make_store: Any, tmp_path: Path) -> None:
    full = noise("c100", (0, 49), 0.3, 0)
    short = replace(full, network="resnet20", recipe="adam", epochs=100, weight_decay=2e-4)
    summarise(make_store([full]), tmp_path / "results")
    item = reproduce("fig5", tmp_path / "results")
    assert {row["rate"] for row in item.rows} == {0.3}
    assert (item.choice, len(item.missing)) == ("early", 35)
    assert short.name in item.missing
    assert item.uses_default_recipe
    assert notes.count_claims(item) == "–"
    assert notes.failed_claims(item) == ""
    assert "| 0 of 35 | – |" in pages._overview([item])
    summarise(make_store([short]), tmp_path / "results")
    item = reproduce("fig5", tmp_path / "results")
    assert (item.choice, len(item.missing)) == ("best", 34)
    assert item.selection is not None
    assert [point.runs for point in item.selection.present] == [(short.name,)]
    assert not item.uses_default_recipe


def test_a_special_recipe_is_compared_with_the_default(grid_results: Path) -> None:
    item, stored = reproduce("fig5", grid_results), read_results(grid_results)
    short = noise("c100", (0, 49), 0.3, 0, network="resnet20", recipe="adam", epochs=100)
    full = [noise("c100", (0, 49), 0.3, seed) for seed in (0, 1)]
    lines = [line.strip("| ").split(" | ") for line in compare_networks(item).splitlines()]
    ours, default = (
        next(line for line in lines if line[:2] == ["30%", name])
        for name in ("ResNet-20", "WideResNet-28-10")
    )
    assert float(ours[3]) == pytest.approx(100 * stored.value(short.name, "accuracy")[0], abs=0.0051)
    means = {
        (3, 0.0051): ("accuracy", {}),
        (4, 0.051): ("gap", {"half": "low"}),
        (8, 0.0051): ("ece", {"method": "CTS", "bins": 15}),
        (11, 0.0051): ("max_ece", {"method": "CTS", "bins": 15}),
    }
    for (column, tolerance), (metric, key) in means.items():
        values = [stored.value(run.name, metric, choice="early", **key)[0] for run in full]
        assert float(default[column]) == pytest.approx(100 * np.mean(values), abs=tolerance)


@pytest.mark.usefixtures("quick")
def test_pages_exist_only_for_items_with_runs(make_store: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"runs\.csv"):
        write_pages(tmp_path / "results", tmp_path / "docs")
    summarise(make_store([noise("c10", (0, 4), 0.1, 0)]), tmp_path / "results")
    names = {path.name for path in write_pages(tmp_path / "results", tmp_path / "docs")}
    files = {f"{name}.{kind}" for name in ("fig10", "example") for kind in ("svg", "md")}
    assert names == {*files, "training.md", "index.md"}
    assert re.search(r"\| table2: .* \| 0 of 5 \| – \| – \|", (tmp_path / "docs" / "index.md").read_text())
    assert "WideResNet" not in (tmp_path / "docs" / "training.md").read_text()


@pytest.mark.usefixtures("quick")
def test_the_training_page_reports_early_stopping(
    make_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reproduction, "figure", lambda _: None)
    monkeypatch.setattr(pages, "save_figure", lambda _, path: path)
    run = noise("c100", (0, 49), 0.3, 0)
    raw = make_store([run, replace(run, seed=1), replace(run, weight_decay=1e-3)])
    path = raw / f"{run.name}.json"
    record = json.loads(path.read_text())
    record["epochs"]["last"] = 141
    record["history"]["val_accuracy"] = record["history"]["val_accuracy"][:141]
    path.write_text(json.dumps(record))
    summarise(raw, tmp_path / "results")
    write_pages(tmp_path / "results", tmp_path / "docs")
    text = (tmp_path / "docs" / "training.md").read_text()
    check_tables(text)
    chosen = text.partition("## The choice of the epoch")[2].partition("\n## ")[0]
    ours, other = (block.splitlines()[2:] for block in chosen.split("\n\n") if block.startswith("|"))
    epochs = {line.strip("| ").split(" | ")[0]: line.strip("| ").split(" | ")[1] for line in ours}
    assert epochs[EPOCHS["early"]] == epochs[EPOCHS["phase2"]] == "81"
    assert EPOCHS["last"] not in epochs
    assert "1 of the 2 runs" in chosen
    cells = [line.strip("| ").split(" | ") for line in other]
    # The run of the table that was trained to the end, and the run with another weight decay.
    assert [(decay, seed, epoch) for decay, seed, _, epoch, *_ in cells] == [
        *[("0.0005", "1", "81")] * 2,
        *[("0.001", "0", "81")] * 2,
    ]


def test_no_torch_and_no_matplotlib_for_rows(grid_results: Path) -> None:
    code = (
        "import sys; from hetcal_paper.reproduction import reproduce; "
        f"reproduce('table2', {str(grid_results)!r}).to_markdown(); "
        "print(sorted({'torch', 'matplotlib.figure'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
