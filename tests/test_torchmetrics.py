"""The streaming metric agrees with `hetcal.evaluate`, in one process and in two."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetcal
from hetcal.metrics import Evaluation

torch = pytest.importorskip("torch")
torchmetrics = pytest.importorskip("torchmetrics")

from hetcal.torchmetrics import CalibrationMetrics  # noqa: E402

SCORES = ("accuracy", "nll", "brier", "ece", "max_ece", "avg_ece", "smooth_ece", "debiased_ece")
FLOORED = ("ece", "max_ece", "avg_ece")
COLUMNS = ("n", "accuracy", "confidence", "signed_gap", "ece")


def make(n: int, k: int, seed: int = 0, dtype: Any = torch.float64) -> tuple[Any, Any]:
    """Logits and labels of a model that is over-confident by a factor of 1.5."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((logits / 1.5).softmax(dim=1), 1, generator=generator)[:, 0]
    return logits.to(dtype), labels


def stream(metric: Any, preds: Any, target: Any, size: int = 700) -> Any:
    for p, y in zip(preds.split(size), target.split(size), strict=True):
        metric.update(p, y)
    return metric


def assert_same(result: Evaluation, expected: Evaluation, rel: float = 1e-11) -> None:
    for name in SCORES:
        assert getattr(result, name) == pytest.approx(getattr(expected, name), rel=rel, abs=rel), name
    for name in COLUMNS:
        column = getattr(expected.classes, name)
        assert getattr(result.classes, name) == pytest.approx(column, rel=rel, abs=rel, nan_ok=True), name
    for name in ("n", "n_classes", "n_bins", "n_zero", "worst_class"):
        assert getattr(result, name) == getattr(expected, name), name


@pytest.mark.parametrize(("n", "k", "n_bins"), [(30_000, 10, 15), (3000, 200, 7), (5, 2, 1)])
def test_agrees_with_evaluate(n: int, k: int, n_bins: int) -> None:
    logits, labels = make(n, k)
    metric = stream(CalibrationMetrics(k, n_bins=n_bins), logits, labels)
    assert_same(metric.evaluation(), hetcal.evaluate(logits=logits, labels=labels, n_bins=n_bins))
    # The noise floors are those of batches.
    batches = hetcal.Batches(logits.softmax(dim=1).numpy(), labels.numpy(), batch_rows=n)
    expected = hetcal.evaluate(batches, n_bins=n_bins)
    assert metric.evaluation().floor == pytest.approx(expected.floor, rel=1e-9)
    assert metric.evaluation().classes.floor_q95 == pytest.approx(
        expected.classes.floor_q95, rel=1e-9, nan_ok=True
    )


def test_compute_returns_the_numbers_of_the_evaluation() -> None:
    logits, labels = make(2000, 5)
    metric = stream(CalibrationMetrics(5, per_class=True, class_names=list("abcde")), logits, labels)
    values, expected = metric.compute(), metric.evaluation()
    scalars = {name: value.item() for name, value in values.items() if value.ndim == 0}
    floors = {f"{name}_floor": expected.floor[name] for name in FLOORED}
    assert scalars == {name: getattr(expected, name) for name in SCORES} | floors
    assert values["class_ece"].tolist() == expected.classes.ece.tolist()
    assert values["class_floor"].tolist() == expected.classes.floor.tolist()
    assert values["class_signed_gap"].tolist() == expected.classes.signed_gap.tolist()
    assert expected.classes.name == tuple("abcde")
    assert all(value.ndim == 0 for value in stream(CalibrationMetrics(5), logits, labels).compute().values())


def test_two_rows_by_hand() -> None:
    metric = CalibrationMetrics(2, from_probs=True, n_bins=10)
    metric.update(torch.tensor([[0.9, 0.1], [0.25, 0.75]]), torch.tensor([1, 1]))
    values = metric.compute()
    assert float(values["ece"]) == pytest.approx((0.9 + 0.25) / 2)
    assert float(values["max_ece"]) == pytest.approx(0.9)
    assert float(values["nll"]) == pytest.approx(-(np.log(0.1) + np.log(0.75)) / 2)
    assert float(values["brier"]) == pytest.approx((2 * 0.9**2 + 2 * 0.25**2) / 2)


def test_ece_agrees_with_torchmetrics() -> None:
    logits, labels = make(4000, 6)
    peer = torchmetrics.classification.MulticlassCalibrationError(6, n_bins=15)
    value = stream(CalibrationMetrics(6), logits, labels).compute()["ece"]
    assert float(value) == pytest.approx(float(stream(peer, logits, labels).compute()), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_lower_precision(dtype: Any) -> None:
    logits, labels = make(3000, 4, dtype=dtype)
    metric = stream(CalibrationMetrics(4), logits, labels)
    assert_same(metric.evaluation(), hetcal.evaluate(logits=logits, labels=labels), rel=1e-5)


def test_probabilities_with_zeros() -> None:
    logits, labels = make(3000, 4)
    probs = logits.softmax(dim=1)
    probs = torch.where(probs < 0.05, 0, probs)
    probs /= probs.sum(dim=1, keepdim=True)
    metric = stream(CalibrationMetrics(4, from_probs=True), probs, labels)
    expected = hetcal.evaluate(probs, labels)
    assert expected.n_zero > 0
    assert_same(metric.evaluation(), expected)


def test_nearly_equal_logits_keep_the_decision() -> None:
    logits = torch.tensor([[0.0, 1e-20]] * 8, dtype=torch.float64)
    metric = CalibrationMetrics(2)
    metric.update(logits, torch.ones(8, dtype=torch.int64))
    assert metric.evaluation().accuracy == 1


def test_images_with_unlabelled_pixels() -> None:
    logits, labels = make(6 * 8 * 9, 5)
    images = logits.reshape(6, 8, 9, 5).permute(0, 3, 1, 2)
    target = labels.reshape(6, 8, 9).clone()
    target[:, 0] = 255
    metric = stream(CalibrationMetrics(5, ignore_index=255), images, target.to(torch.uint8), 2)
    used = target.reshape(-1) != 255
    assert_same(metric.evaluation(), hetcal.evaluate(logits=logits[used], labels=labels[used]))


def test_small_integers_are_not_taken_for_the_ignored_target() -> None:
    logits, labels = make(400, 200)
    labels[:5] = 156  # -100 modulo 256
    metric = CalibrationMetrics(200, ignore_index=-100)
    metric.update(logits, labels.to(torch.uint8))
    assert metric.evaluation().n == 400


def test_a_batch_without_labelled_pixels_changes_nothing() -> None:
    logits, labels = make(300, 3)
    metric = CalibrationMetrics(3, ignore_index=-100, per_class=True)
    batch = metric(logits, torch.full((300,), -100))  # forward returns the values of the batch
    assert all(value.isnan().all() for value in batch.values())
    assert batch["class_ece"].shape == (3,)
    with pytest.raises(ValueError, match="call update first"):
        metric.evaluation()
    metric.update(logits, labels)
    assert_same(metric.evaluation(), hetcal.evaluate(logits=logits, labels=labels))


def test_forward_reset_and_copies() -> None:
    logits, labels = make(600, 3)
    metric = CalibrationMetrics(3)
    batch = metric(logits[:200], labels[:200])
    assert float(batch["ece"]) == pytest.approx(hetcal.evaluate(logits=logits[:200], labels=labels[:200]).ece)
    metric(logits[200:], labels[200:])
    expected = hetcal.evaluate(logits=logits, labels=labels)
    assert_same(metric.evaluation(), expected)
    assert_same(pickle.loads(pickle.dumps(metric)).evaluation(), expected)  # noqa: S301
    clone = metric.clone()
    clone.merge_state(stream(CalibrationMetrics(3), logits, labels))
    assert clone.evaluation().n == 1200
    with torch.inference_mode():
        metric.reset()
        metric.update(logits[:300], labels[:300])
    metric.update(logits[300:], labels[300:])
    assert_same(metric.evaluation(), expected)


def test_state_does_not_grow() -> None:
    logits, labels = make(4000, 3)
    metric = CalibrationMetrics(3)
    metric.update(logits[:10], labels[:10])
    before = {name: state.shape for name, state in metric.metric_state.items()}
    stream(metric, logits, labels, 100)
    assert {name: state.shape for name, state in metric.metric_state.items()} == before


def test_works_in_a_collection() -> None:
    logits, labels = make(500, 3)
    peer = torchmetrics.classification.MulticlassAccuracy(3, average="micro")
    collection = torchmetrics.MetricCollection({"top1": peer, "hetcal": CalibrationMetrics(3)}, prefix="val_")
    collection.update(preds=logits, target=labels)
    values = collection.compute()
    assert float(values["val_accuracy"]) == pytest.approx(float(values["val_top1"]))
    assert float(values["val_ece"]) == pytest.approx(hetcal.evaluate(logits=logits, labels=labels).ece)


PROCESS = """
import sys
import torch
from hetcal.torchmetrics import CalibrationMetrics

folder, rank = sys.argv[1], int(sys.argv[2])
store = torch.distributed.FileStore(f"{folder}/store", 2)
torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
rows = torch.load(f"{folder}/rows.pt")
part = slice(0, 300) if rank == 0 else slice(300, None)
metric = CalibrationMetrics(4)
for logits, labels in zip(rows["logits"][part].split(150), rows["labels"][part].split(150)):
    metric.update(logits, labels)
result = {name: value.item() for name, value in metric.compute().items()}
counts = metric.evaluation().n, int(metric.count.sum())
torch.save({"result": result, "counts": counts}, f"{folder}/{rank}.pt")
torch.distributed.destroy_process_group()
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
def test_two_processes_add_their_rows(tmp_path: Path) -> None:
    logits, labels = make(1000, 4)
    torch.save({"logits": logits, "labels": labels}, tmp_path / "rows.pt")
    commands = ([sys.executable, "-c", PROCESS, str(tmp_path), str(rank)] for rank in range(2))
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    try:
        errors = [process.communicate(timeout=100)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], errors
    expected = stream(CalibrationMetrics(4), logits, labels).compute()
    for rank, n_local in enumerate((300, 700)):
        saved = torch.load(tmp_path / f"{rank}.pt")
        assert saved["result"] == pytest.approx({name: value.item() for name, value in expected.items()})
        assert saved["counts"] == (1000, n_local)


# --- errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda z, y: (z.numpy(), y), TypeError, "preds and target must be tensors"),
        (lambda z, y: (z[:, :2], y), ValueError, r"preds must be floats of shape \(n, 3\)"),
        (lambda z, y: (z.long(), y), ValueError, "preds must be floats"),
        (lambda z, y: (z, y[:-1]), ValueError, r"target must be integers of shape \(50,\)"),
        (lambda z, y: (z, y.double()), ValueError, "target must be integers"),
        (lambda z, y: (z, y - 1), ValueError, r"target must lie in 0\.\.2, got -1 at row .* ignore_index"),
        (lambda z, y: (z.log(), y), ValueError, "preds must be finite, got NaN at row"),
        (lambda z, y: (z.softmax(1), y), ValueError, "preds must be unnormalised .* from_probs=True"),
    ],
)
def test_errors_of_logits(change: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        CalibrationMetrics(3).update(*change(*make(50, 3)))


def test_errors_of_probabilities() -> None:
    logits, labels = make(50, 3)
    with pytest.raises(
        ValueError, match=r"preds must be probabilities that sum to 1, got .* from_probs=False"
    ):
        CalibrationMetrics(3, from_probs=True).update(logits, labels)
    CalibrationMetrics(3, from_probs=True).update(logits.softmax(dim=1).half(), labels)


def test_values_are_not_checked_on_request() -> None:
    logits, labels = make(50, 3)
    metric = CalibrationMetrics(3, validate_args=False)
    metric.update(logits.softmax(dim=1), labels)
    with pytest.raises(ValueError, match="preds must be floats of shape"):
        metric.update(logits[:, :2], labels)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"num_classes": 1}, "num_classes"),
        ({"num_classes": 3, "n_bins": 0}, "n_bins"),
        ({"num_classes": 3, "n_redraws": 0}, "n_redraws"),
        ({"num_classes": 3, "seed": 0.5}, "seed"),
        ({"num_classes": 3, "ignore_index": "none"}, "ignore_index"),
        ({"num_classes": 3, "class_names": ["a", "b"]}, "class_names"),
    ],
)
def test_errors_of_options(options: dict[str, Any], name: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"{name} must"):
        CalibrationMetrics(**options)


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    monkeypatch.delitem(sys.modules, "hetcal.torchmetrics")
    with pytest.raises(ImportError, match=r"hetcal\[torchmetrics\]"):
        import hetcal.torchmetrics  # noqa: F401
