"""Run the text examples on tiny data, and compare the committed pages with the committed results."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = ("clinc150", "groups")
PAGES = {"clinc150": "text-example.md", "groups": "groups.md", "label_noise": "label-noise.md"}
METHODS = {
    "clinc150": {
        "Uncal", "Uncal, last", "TS", "VS", "VS, ridge",
        "CTS, Γ = inf", "CTS, cv", "CTS, bayes", "CTS, bundles", "Auto",
    },
    "groups": {
        "Uncal", "TS", "CTS by class, Γ = inf", "CTS by class, cv",
        "CTS by source, Γ = inf", "CTS by source, cv", "Platt by source, Γ = inf",
    },
}  # fmt: skip
DOMAINS = {"banking": ["pay", "pin"], "credit_cards": ["lost", "rate"], "home": ["music", "order"]}
INTENTS = [name for names in DOMAINS.values() for name in names]


def run(script: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "HETCAL_DATA"}
    command = [sys.executable, str(ROOT / "examples" / f"{script}.py"), *options]
    return subprocess.run(command, env=environ | environment, capture_output=True, text=True, check=False)


def texts(intents: list[str], counts: list[int], rng: np.random.Generator) -> list[list[str]]:
    """Return rows with words that are mostly typical of their own intent."""
    rows = []
    for i, (intent, count) in enumerate(zip(intents, counts, strict=True)):
        for _ in range(count):
            source = [intent, intents[(i + 1) % len(intents)]][int(rng.random() < 0.2)]
            rows.append([f"please {source}{rng.integers(4)} {source}{rng.integers(4)} now", intent])
    return rows


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    clinc, banking = folder / "clinc150", folder / "banking77"
    clinc.mkdir()
    banking.mkdir()
    (clinc / "domains.json").write_text(json.dumps(DOMAINS))
    for variant, counts in {"full": [20] * 6, "small": [10] * 6, "imbalanced": [20, 5] * 3}.items():
        content = {"train": texts(INTENTS, counts, rng), "oos_train": [["what", "oos"]]}
        content |= {"val": texts(INTENTS, [8] * 6, rng), "test": texts(INTENTS, [8] * 6, rng)}
        (clinc / f"data_{variant}.json").write_text(json.dumps(content))
    for split, n in {"train": 16, "test": 8}.items():
        with (banking / f"{split}.csv").open("w", newline="") as out:
            csv.writer(out).writerows(
                [["text", "category"], *texts(["card", "cash", "top_up?"], [n] * 3, rng)]
            )
    return folder


def check_files(output: Path, script: str) -> None:
    with (output / "results" / f"{script}.csv").open(encoding="utf-8", newline="") as source:
        rows = list(csv.DictReader(source))
    assert {row["method"] for row in rows} == METHODS[script]
    page = (output / "docs" / PAGES[script]).read_text(encoding="utf-8")
    assert all(f"| {name} |" in page for name in METHODS[script] - {"Uncal, last"})
    figures = list((output / "docs" / "images").glob(f"{script}*.svg"))
    assert len(figures) == {"clinc150": 2, "groups": 1}[script]
    for figure in figures:
        drawing = figure.read_text(encoding="utf-8")
        assert drawing.startswith("<?xml")
        assert drawing.endswith("</svg>\n")
        assert f"images/{figure.name}" in page
    assert not list(output.rglob("*.part"))


def test_clinc150_writes_table_page_and_figures(data: Path, tmp_path: Path) -> None:
    options = ("--models", "network,logistic", "--jobs", "1", "--output", str(tmp_path))
    result = run("clinc150", *options, HETCAL_DATA=str(data))
    assert result.returncode == 0, result.stderr
    check_files(tmp_path, "clinc150")
    assert "CTS, bundles" in result.stdout
    with (tmp_path / "results" / "clinc150.csv").open(encoding="utf-8", newline="") as source:
        rows = list(csv.DictReader(source))
    assert {(r["model"], r["variant"], r["corruption"]) for r in rows} == {
        (model, variant, how)
        for model in ("network", "logistic")
        for variant in ("full", "small", "imbalanced")
        for how in ("none", "noise", "few")
        if (variant, how) != ("imbalanced", "few")
    }
    errors = [r for r in rows if r["metric"] in ("ece", "max_ece", "avg_ece")]
    assert all(0 < float(r["floor"]) < 1 for r in errors)
    changed = [r for r in rows if r["metric"] == "changed" and not r["method"].startswith("VS")]
    assert all(float(r["value"]) == 0 for r in changed)


def test_groups_writes_table_page_and_figure(data: Path, tmp_path: Path) -> None:
    result = run("groups", "--data", str(data), "--seeds", "2", "--jobs", "1", "--output", str(tmp_path))
    assert result.returncode == 0, result.stderr
    check_files(tmp_path, "groups")
    with (tmp_path / "results" / "groups.csv").open(encoding="utf-8", newline="") as source:
        rows = list(csv.DictReader(source))
    assert {r["seed"] for r in rows} == {"0", "1"}
    value = {
        (r["training"], r["seed"], r["method"], r["group"], r["metric"]): float(r["value"]) for r in rows
    }
    for (training, seed, method, group, metric), number in value.items():
        if (group, metric) == ("worst", "ece"):
            source_errors = [value[training, seed, method, name, "ece"] for name in ("banking77", "clinc150")]
            assert number == pytest.approx(max(source_errors), rel=1e-5)
        if metric == "changed":
            assert number == 0


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("options", [(), ("--data", "nowhere")])
def test_missing_data_gives_a_one_line_error(script: str, options: tuple[str, ...], tmp_path: Path) -> None:
    result = run(script, *options, "--output", str(tmp_path))
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert "--data" in result.stderr
    assert "HETCAL_DATA" in result.stderr
    assert not list(tmp_path.iterdir())


def test_error_names_the_missing_file(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "data")
    (tmp_path / "data" / "clinc150" / "data_small.json").unlink()
    result = run(
        "clinc150", "--data", str(tmp_path / "data"), "--jobs", "1", "--output", str(tmp_path / "out")
    )
    assert result.returncode == 2
    assert "data_small.json" in result.stderr.splitlines()[-1]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("script", PAGES)
def test_committed_page_agrees_with_committed_results(script: str, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    shutil.copy(ROOT / "results" / f"{script}.csv", tmp_path / "results")
    result = run(script, "--page", "--output", str(tmp_path))
    assert result.returncode == 0, result.stderr
    page = Path("docs", PAGES[script])
    assert (tmp_path / page).read_text(encoding="utf-8") == (ROOT / page).read_text(encoding="utf-8")
