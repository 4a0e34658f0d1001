"""The metric of `evaluate` returns the numbers of `hetcal.evaluate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetcal

evaluate = pytest.importorskip("evaluate")

from hetcal.huggingface import METRIC, Calibration  # noqa: E402

FLOORED = ("ece", "max_ece", "avg_ece")
SCORES = ("accuracy", "nll", "brier", "smooth_ece", "debiased_ece", *FLOORED)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let evaluate write its files into a temporary folder, and use no network."""
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", str(tmp_path / "metrics"))
    monkeypatch.setattr(evaluate.config, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(evaluate.config, "HF_EVALUATE_OFFLINE", True)
    monkeypatch.setattr(sys, "path", sys.path[:])


@pytest.fixture(scope="module")
def sample(make_sample: Any) -> Any:
    return make_sample(500, 3, seed=0)


def assert_values(values: dict[str, Any], expected: hetcal.Evaluation) -> None:
    for name in SCORES:
        assert values[name] == pytest.approx(getattr(expected, name), rel=1e-12), name
    for name in FLOORED:
        assert values[f"{name}_floor"] == pytest.approx(expected.floor[name], rel=1e-12), name


def test_loaded_from_its_folder(sample: Any) -> None:
    metric = evaluate.load(METRIC)
    values = metric.compute(predictions=sample.z, references=sample.y)
    assert_values(values, hetcal.evaluate(logits=sample.z, labels=sample.y))
    assert len(values) == len(SCORES) + len(FLOORED)
    assert all(isinstance(value, float) for value in values.values())


def test_batches_and_probabilities(sample: Any) -> None:
    probs = hetcal.Identity().fit(sample.z, sample.y).predict_proba(sample.z)
    metric = Calibration()
    for part in (slice(0, 200), slice(200, None)):
        metric.add_batch(predictions=probs[part], references=sample.y[part])
    options = {"n_bins": 8, "n_redraws": 50, "seed": 3}
    values = metric.compute(from_probs=True, **options)
    assert_values(values, hetcal.evaluate(probs, sample.y, n_bins=8, n_redraws=50, rng=3))


def test_numbers_of_each_class(sample: Any) -> None:
    z = np.column_stack([sample.z, np.full(500, -1e3)])  # the last class is never predicted
    values = Calibration().compute(predictions=z, references=sample.y, per_class=True)
    expected = hetcal.evaluate(logits=z, labels=sample.y).classes
    for name in ("ece", "floor", "signed_gap"):
        *numbers, last = values[f"class_{name}"]
        assert numbers == pytest.approx(getattr(expected, name)[:3].tolist(), rel=1e-12)
        assert last is None


def test_combined_with_another_metric(sample: Any) -> None:
    class Top1(evaluate.Metric):  # type: ignore[misc]
        def _info(self) -> Any:
            return Calibration()._info()

        def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
            return {"top1": float(np.mean(np.argmax(predictions, axis=1) == references))}

    values = evaluate.combine([Calibration(), Top1()]).compute(predictions=sample.z, references=sample.y)
    assert values["top1"] == pytest.approx(values["accuracy"])


def test_errors(sample: Any) -> None:
    probs = hetcal.Identity().fit(sample.z, sample.y).predict_proba(sample.z)
    with pytest.raises(ValueError, match=r"predictions must be unnormalised .* pass from_probs=True"):
        Calibration().compute(predictions=probs, references=sample.y)
    with pytest.raises(ValueError, match=r"predictions must lie in \[0, 1\], .* leave out from_probs"):
        Calibration().compute(predictions=sample.z, references=sample.y, from_probs=True)
    with pytest.raises(ValueError, match="references must"):
        Calibration().compute(predictions=sample.z, references=sample.y + 1)


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "evaluate", None)
    monkeypatch.delitem(sys.modules, "hetcal.huggingface.metric")
    with pytest.raises(ImportError, match=r"hetcal\[huggingface\]"):
        hetcal.huggingface.Calibration  # noqa: B018
