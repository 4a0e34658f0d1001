"""The demo, end to end on the embedded example."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import hetcal
from hetcal import examples
from hetcal.__main__ import main


def test_the_demo_writes_figures_summary_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "-o", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    made = {path.name for path in (tmp_path / "out").iterdir()}
    assert made == {
        "reliability.png",
        "class-ece.png",
        "methods.png",
        "gaps.png",
        "summary.md",
        "report.html",
    }
    assert "max-ECE" in shown
    assert "report.html" in shown
    summary = (tmp_path / "out" / "summary.md").read_text(encoding="utf-8")
    assert all(f"| {name} |" in summary for name in ("Uncal", "TS", "VS", "CTS", "Auto"))
    made_of = "Auto is a mean of five calibrators, weighted by cross-validated likelihood, "
    assert made_of in summary
    assert made_of in " ".join(shown.split())
    assert "<1% Identity. No decision changes." in " ".join(shown.split())


def test_the_embedded_logits_show_what_the_paper_says() -> None:
    example = examples.load_example("cifar10-noisy")
    assert example.test is not None
    uncalibrated = (
        hetcal.Identity().fit(example.val.logits, example.val.labels).predict_proba(example.test.logits)
    )
    confidence = uncalibrated.max(axis=1)
    right = uncalibrated.argmax(axis=1) == example.test.labels
    noisy = example.test.labels < 5
    assert confidence[noisy].mean() < right[noisy].mean()  # label noise: under-confident
    assert confidence[~noisy].mean() > right[~noisy].mean()  # the clean half: over-confident
    assert example.about["kept"]["run"]["rate"] == 0.3


def test_class_wise_beats_one_temperature_on_them() -> None:
    example = examples.load_example()
    assert example.test is not None
    scores = {}
    for name, model in {
        "TS": hetcal.TemperatureScaling(),
        "CTS": hetcal.ClassWiseTemperatureScaling(),
    }.items():
        probs = model.fit(example.val.logits, example.val.labels).predict_proba(example.test.logits)
        scores[name] = hetcal.metrics.max_ece(probs, example.test.labels)
    assert scores["CTS"] < scores["TS"] / 1.5


def test_examples_are_listed_and_an_unknown_one_is_refused() -> None:
    assert examples.names() == ["cifar10-noisy", "cifar100-noisy"]
    with pytest.raises(ValueError, match="name must be one of 'cifar10-noisy'"):
        examples.load_example("mnist")


def test_the_json_of_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "-o", str(tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    rows = {row["method"]: row for row in shown["comparison"]["rows"]}
    assert rows["CTS"]["accuracy"] == rows["Uncal"]["accuracy"]
    assert np.isfinite(rows["CTS"]["max_ece_floor"])
    assert sum(c["weight"] for c in shown["candidates"]) == pytest.approx(1)
    # The mean of the candidates beats every other method in the table that keeps decisions.
    assert rows["Auto"]["nll"] < min(rows[name]["nll"] for name in ("Uncal", "TS", "CTS"))
    assert rows["Auto"]["decisions_changed"] == 0
