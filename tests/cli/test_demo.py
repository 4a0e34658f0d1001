"""The demo on the embedded example, run once, and what the example shows."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetcal
from hetcal import examples
from hetcal.cli import demo

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, dict[str, Any]]:
    """Folder, printed text and result of the demo."""
    folder, out = tmp_path_factory.mktemp("demo") / "out", io.StringIO()
    with contextlib.redirect_stdout(out):
        result = demo.run_demo(folder)
    return folder, out.getvalue(), result


def test_writes_figures_summary_and_report(demo_run: tuple[Path, str, dict[str, Any]]) -> None:
    folder, text, _ = demo_run
    figures = {"reliability.png", "class-ece.png", "methods.png", "gaps.png"}
    assert {path.name for path in folder.iterdir()} == figures | {"summary.md", "report.html"}
    assert "max-ECE" in text
    assert "report.html" in text
    summary = (folder / "summary.md").read_text(encoding="utf-8")
    assert all(f"| {name} |" in summary for name in ("Uncal", "TS", "VS", "CTS", "Auto"))
    description = next(line for line in summary.splitlines() if line.startswith("Auto is"))
    assert "%" in description
    assert description in " ".join(text.split())


def test_result(demo_run: tuple[Path, str, dict[str, Any]]) -> None:
    result = demo_run[2]
    rows = {row["method"]: row for row in result["comparison"]["rows"]}
    assert rows["CTS"]["accuracy"] == rows["Uncal"]["accuracy"]
    assert np.isfinite(rows["CTS"]["max_ece_floor"])
    assert sum(c["weight"] for c in result["candidates"]) == pytest.approx(1)
    assert rows["Auto"]["nll"] < min(rows[name]["nll"] for name in ("Uncal", "TS", "CTS"))
    assert rows["Auto"]["decisions_changed"] == 0


def test_the_table_of_the_readme(demo_run: tuple[Path, str, dict[str, Any]]) -> None:
    readme = README.read_text(encoding="utf-8")
    for row in demo_run[2]["comparison"]["rows"]:
        metrics = [
            f"{100 * row[key]:.2f}"
            for metric in ("ece", "max_ece", "avg_ece")
            for key in (metric, f"{metric}_floor")
        ]
        cells = [row["method"], f"{100 * row['accuracy']:.2f}", *metrics, f"{row['nll']:.4f}"]
        assert "| " + " | ".join(cells) + f" | {row['decisions_changed']:.2%} |" in readme


def test_json(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = []
    monkeypatch.setattr(demo, "run_demo", lambda path, quiet: calls.append((path, quiet)) or {"page": "x"})
    code, out, _ = run("demo", "-o", tmp_path, "--json")
    assert (code, json.loads(out), calls) == (0, {"page": "x"}, [(tmp_path, True)])


def test_the_noisy_classes_are_under_confident() -> None:
    example = examples.load_example("cifar10-noisy")
    test = example.judged
    model = hetcal.Identity().fit(example.val.logits, example.val.labels)
    probs = model.predict_proba(test.logits)
    confidence, correct = probs.max(axis=1), probs.argmax(axis=1) == test.labels
    noisy = test.labels < 5
    assert confidence[noisy].mean() < correct[noisy].mean()
    assert confidence[~noisy].mean() > correct[~noisy].mean()
    assert example.about["kept"]["run"]["rate"] == 0.3


def test_class_wise_temperatures_beat_a_shared_one() -> None:
    example = examples.load_example()
    test, scores = example.judged, []
    for model in (hetcal.TemperatureScaling(), hetcal.ClassWiseTemperatureScaling()):
        probs = model.fit(example.val.logits, example.val.labels).predict_proba(test.logits)
        scores.append(hetcal.metrics.max_ece(probs, test.labels))
    assert scores[1] < scores[0] / 1.5


def test_an_unknown_example_is_rejected() -> None:
    assert examples.names() == ["cifar10-noisy", "cifar100-noisy"]
    with pytest.raises(ValueError, match=r"name must .*cifar10-noisy"):
        examples.load_example("mnist")
