"""The callback logs the numbers of `evaluate` and fits a calibrator to the logits of the current weights."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetcal

torch = pytest.importorskip("torch")
pytest.importorskip("torchmetrics")
pytest.importorskip("lightning")

import lightning.pytorch as pl  # noqa: E402

from hetcal.lightning import CalibrationCallback  # noqa: E402

# Lightning warns about the number of workers, and uses interfaces of PyTorch that are deprecated.
pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning",
    "ignore::FutureWarning",
    "ignore::DeprecationWarning",
    "error::hetcal.CalibrationWarning",
)

FLOORED = ("ece", "max_ece", "avg_ece")
NAMES = ["ant", "bee", "cat"]


def rows(n: int, seed: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    inputs = 3 * torch.randn(n, 3, generator=generator)
    labels = torch.multinomial((inputs / 2).softmax(dim=1), 1, generator=generator)[:, 0]
    return inputs, labels


def loader(n: int, seed: int) -> Any:
    data = torch.utils.data.TensorDataset(*rows(n, seed))
    return torch.utils.data.DataLoader(data, batch_size=150)


def one_batch(batch: Any) -> Any:
    return torch.utils.data.DataLoader([batch], batch_size=None)


class Classifier(pl.LightningModule):
    """A linear classifier that starts as the identity."""

    def __init__(self, output: Any = None) -> None:
        super().__init__()
        self.net = torch.nn.Linear(3, 3)
        self.output = output
        with torch.no_grad():
            self.net.weight.copy_(torch.eye(3))
            self.net.bias.zero_()

    def training_step(self, batch: Any, _: int) -> Any:
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, _: int, dataloader_idx: int = 0) -> Any:
        logits = self.net(batch[0]) * (1 + dataloader_idx)
        return {"logits": logits, "labels": batch[1]} if self.output is None else self.output(logits)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(folder: Path, callback: Any, package: Any = pl, **options: Any) -> Any:
    defaults = {"max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    settings = defaults | quiet | {"default_root_dir": folder, "callbacks": [callback]} | options
    return package.Trainer(**settings)


def logits_of(model: Any, inputs: Any) -> Any:
    with torch.no_grad():
        return model.net(inputs)


def test_logged_values_are_those_of_the_last_epoch(tmp_path: Path) -> None:
    callback, model = CalibrationCallback(3, class_names=NAMES, n_bins=10), Classifier()
    runner = trainer(tmp_path, callback)
    runner.fit(model, loader(600, 0), loader(500, 1))
    inputs, labels = rows(500, 1)
    expected = hetcal.evaluate(logits=logits_of(model, inputs), labels=labels, class_names=NAMES, n_bins=10)
    for name in ("nll", *FLOORED):
        logged = float(runner.callback_metrics[f"val_{name}"])
        assert logged == pytest.approx(getattr(expected, name), rel=1e-5), name
    for name in FLOORED:
        floor = callback.evaluation_.floor[name]
        assert float(runner.callback_metrics[f"val_{name}_floor"]) == pytest.approx(floor, rel=1e-6)
    assert callback.evaluation_.n == 500
    assert callback.evaluation_.worst_class == expected.worst_class
    assert callback.calibrator_ is None
    assert callback._rows == []


def test_the_calibrator_is_fitted_to_the_final_weights(tmp_path: Path) -> None:
    callback = CalibrationCallback(3, calibrator=hetcal.TemperatureScaling(), class_names=NAMES)
    model, runner = Classifier(), trainer(tmp_path, callback)
    runner.fit(model, loader(600, 0), loader(500, 1))
    inputs, labels = rows(500, 1)
    expected = hetcal.TemperatureScaling().fit(logits_of(model, inputs), labels)
    assert callback.path_ == tmp_path / "calibrator.json"
    saved = hetcal.load(callback.path_)
    assert saved.alpha_ == callback.calibrator_.alpha_ == pytest.approx(expected.alpha_, rel=1e-5)
    assert saved.class_names_ == NAMES
    assert not hasattr(callback.calibrator, "alpha_")


def test_validate_fits_to_the_weights_of_the_best_checkpoint(tmp_path: Path) -> None:
    callback = CalibrationCallback(
        3, calibrator=hetcal.TemperatureScaling(), path=tmp_path / "a" / "cal.json"
    )
    best = pl.callbacks.ModelCheckpoint(tmp_path / "checkpoints", monitor="val_nll", mode="max")  # the first
    model = Classifier()
    runner = trainer(tmp_path, callback, enable_checkpointing=True, callbacks=[callback, best], max_epochs=3)
    runner.fit(model, loader(600, 0), loader(500, 1))
    last = callback.calibrator_.alpha_
    runner.validate(model, loader(500, 1), ckpt_path="best", verbose=False)
    expected = hetcal.TemperatureScaling().fit(
        *map(np.asarray, (logits_of(model, rows(500, 1)[0]), rows(500, 1)[1]))
    )
    assert hetcal.load(tmp_path / "a" / "cal.json").alpha_ == pytest.approx(expected.alpha_, rel=1e-5)
    assert abs(expected.alpha_ - last) > 1e-4


def test_a_calibrator_of_outdated_weights_is_not_fitted(tmp_path: Path) -> None:
    callback = CalibrationCallback(3, calibrator=hetcal.TemperatureScaling())
    model, runner = Classifier(), trainer(tmp_path, callback, max_epochs=3, check_val_every_n_epoch=2)
    with pytest.warns(
        hetcal.CalibrationWarning, match=r"got logits of step 8 after 12 steps; call trainer\.validate"
    ):
        runner.fit(model, loader(600, 0), loader(500, 1))
    assert callback.calibrator_ is None
    assert not (tmp_path / "calibrator.json").exists()
    runner.validate(model, loader(500, 1), verbose=False)  # the remedy
    assert callback.calibrator_ is not None


def test_trial_runs_save_nothing(tmp_path: Path) -> None:
    callback = CalibrationCallback(3, calibrator=hetcal.TemperatureScaling())
    trainer(tmp_path, callback, fast_dev_run=True).fit(Classifier(), loader(600, 0), loader(500, 1))
    assert callback.evaluation_.n == 150
    assert not (tmp_path / "calibrator.json").exists()


def test_one_of_several_loaders(tmp_path: Path) -> None:
    callback = CalibrationCallback(3, dataloader_idx=1, prefix="second_")
    runner = trainer(tmp_path, callback)
    runner.validate(Classifier(), [loader(500, 1), loader(300, 2)], verbose=False)
    inputs, labels = rows(300, 2)
    expected = hetcal.evaluate(logits=2 * inputs, labels=labels)
    assert float(runner.callback_metrics["second_ece"]) == pytest.approx(expected.ece, rel=1e-5)


@pytest.mark.parametrize("as_mapping", [False, True])
def test_labels_of_the_batch_and_probabilities(tmp_path: Path, as_mapping: bool) -> None:
    inputs, labels = rows(300, 3)
    cal = hetcal.TemperatureScaling()
    callback = CalibrationCallback(
        3, calibrator=cal, from_probs=True, logits_key="probs", labels_key="target"
    )

    class Mapped(Classifier):
        def validation_step(self, batch: Any, _: int) -> Any:
            x = batch["x"] if as_mapping else batch[0]
            return {"probs": self.net(x).softmax(dim=1)}

    batch = {"x": inputs, "target": labels} if as_mapping else (inputs, labels)
    trainer(tmp_path, callback).validate(Mapped(), one_batch(batch), verbose=False)
    expected = hetcal.TemperatureScaling().fit(probs=inputs.softmax(dim=1), labels=labels)
    assert hetcal.load(callback.path_).alpha_ == pytest.approx(expected.alpha_, rel=1e-5)
    assert callback.calibrator_.prob_floor_ is not None


def test_ignored_rows_are_not_fitted(tmp_path: Path) -> None:
    inputs, labels = rows(300, 3)
    target = labels.clone()
    target[:100] = -100
    callback = CalibrationCallback(3, calibrator=hetcal.TemperatureScaling(), ignore_index=-100)
    trainer(tmp_path, callback).validate(Classifier(), one_batch((inputs, target)), verbose=False)
    expected = hetcal.TemperatureScaling().fit(inputs[100:], labels[100:])
    assert callback.calibrator_.alpha_ == pytest.approx(expected.alpha_, rel=1e-5)


def test_works_with_the_trainer_of_pytorch_lightning(tmp_path: Path) -> None:
    package = importlib.import_module("pytorch_lightning")

    class Other(package.LightningModule):  # type: ignore[name-defined, misc]
        def validation_step(self, batch: Any, _: int) -> Any:
            return {"logits": batch[0]}

    callback = CalibrationCallback(3, calibrator=hetcal.TemperatureScaling())
    trainer(tmp_path, callback, package).validate(Other(), loader(500, 1), verbose=False)
    expected = hetcal.TemperatureScaling().fit(*rows(500, 1))
    assert callback.calibrator_.alpha_ == pytest.approx(expected.alpha_, rel=1e-5)


SCRIPT = """
import sys
import lightning.pytorch as pl
import torch
import hetcal
from hetcal.lightning import CalibrationCallback

inputs, labels = torch.load(sys.argv[1] + "/rows.pt")


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Identity()

    def validation_step(self, batch, _):
        return {"logits": self.net(batch[0])}


if __name__ == "__main__":
    data = torch.utils.data.TensorDataset(inputs, labels)
    callback = CalibrationCallback(3, calibrator=hetcal.TemperatureScaling())
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", logger=False, default_root_dir=sys.argv[1],
        callbacks=[callback], enable_progress_bar=False,
    )
    trainer.validate(Module(), torch.utils.data.DataLoader(data, batch_size=100), verbose=False)
    torch.save(
        {"n": callback.evaluation_.n, "ece": float(trainer.callback_metrics["val_ece"]),
         "alpha": callback.calibrator_.alpha_},
        f"{sys.argv[1]}/{trainer.global_rank}.pt",
    )
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
def test_two_processes_use_the_rows_of_both(tmp_path: Path) -> None:
    inputs, labels = rows(600, 4)
    torch.save((inputs, labels), tmp_path / "rows.pt")
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert process.returncode == 0, process.stderr
    expected = hetcal.TemperatureScaling().fit(inputs, labels)
    for rank in range(2):
        result = torch.load(tmp_path / f"{rank}.pt")
        assert result["n"] == 600
        assert result["ece"] == pytest.approx(hetcal.evaluate(logits=inputs, labels=labels).ece, rel=1e-5)
        assert result["alpha"] == pytest.approx(expected.alpha_, rel=1e-6)
    assert hetcal.load(tmp_path / "calibrator.json").alpha_ == pytest.approx(expected.alpha_, rel=1e-6)


# --- errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda logits: logits.sum(), r"validation_step must return .* 'logits', got Tensor"),
        (lambda logits: {"scores": logits}, "got the keys scores"),
        (lambda logits: {"logits": logits[:, :2]}, r"preds must be floats of shape \(n, 3\)"),
        (lambda logits: {"logits": logits.softmax(dim=1)}, "from_probs=True"),
    ],
    ids=["tensor", "other key", "other shape", "probabilities"],
)
def test_errors_of_validation_step(tmp_path: Path, output: Any, message: str) -> None:
    runner = trainer(tmp_path, CalibrationCallback(3))
    with pytest.raises(ValueError, match=message):
        runner.validate(Classifier(output), loader(300, 1), verbose=False)


def test_labels_that_are_missing(tmp_path: Path) -> None:
    class Unlabelled(Classifier):
        def validation_step(self, batch: Any, _: int) -> Any:
            return {"logits": self.net(batch)}

    runner = trainer(tmp_path, CalibrationCallback(3))
    with pytest.raises(ValueError, match="validation_step must return the labels"):
        runner.validate(Unlabelled(), one_batch(torch.zeros(2, 3)), verbose=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"calibrator": "auto"}, "calibrator must be a calibrator"),
        ({"dataloader_idx": -1}, "dataloader_idx must"),
        ({"n_bins": 0}, "n_bins must"),
    ],
)
def test_errors_of_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        CalibrationCallback(3, **options)


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "hetcal.lightning")
    with pytest.raises(ImportError, match=r"hetcal\[lightning\]"):
        import hetcal.lightning  # noqa: F401
