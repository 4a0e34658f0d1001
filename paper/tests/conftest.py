from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import hetcal
from hetcal_paper import evaluate_run, store
from hetcal_paper.results import summarise
from hetcal_paper.runs import Run, paper_grid

MakeStore = Callable[..., Path]
Records = tuple[NDArray[np.uint8], NDArray[np.int64]]


def records(n: int, n_classes: int, seed: int) -> Records:
    """Random images whose brightness depends on the class."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % n_classes
    pixels = rng.integers(0, 120, (n, 3072)) + (labels * 130 // n_classes)[:, None]
    return pixels.astype(np.uint8), labels


def write_binary10(root: Path, n: int = 100, n_test: int = 30) -> Path:
    """CIFAR-10 in the official binary layout, with ``n`` images per file."""
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    files = [(f"data_batch_{i}.bin", n, i) for i in range(1, 6)] + [("test_batch.bin", n_test, 6)]
    for name, count, seed in files:
        pixels, labels = records(count, 10, seed)
        np.column_stack([labels.astype(np.uint8), pixels]).tofile(folder / name)
    return root


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Use one thread, because small networks do not benefit from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def cifar10(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a small CIFAR-10: 500 training and 30 test images."""
    return write_binary10(tmp_path_factory.mktemp("data"))


# Synthetic runs: label noise shrinks the logits, and with few samples they predict the label less well.


def _quality(run: Run, n_classes: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Noise rate and sampling rate by class."""
    noise, sampling = np.zeros(n_classes), np.ones(n_classes)
    first, last = (0, n_classes - 1) if run.classes is None else run.classes
    affected = slice(first, last + 1)
    if run.kind == "noise":
        noise[affected] = run.rate
    if run.kind == "under":
        sampling[affected] = run.rate
    if run.kind == "few":
        sampling[:] = 0.02
    return noise, sampling


def _logits(
    run: Run, labels: NDArray[np.int64], n_classes: int, rng: np.random.Generator, factor: float
) -> NDArray[np.float16]:
    """Logits whose sharpness is multiplied by ``factor``."""
    noise, sampling = _quality(run, n_classes)
    z = rng.normal(size=(len(labels), n_classes))
    strength = (2.7 if n_classes == 10 else 3.3) * sampling**0.15 * (1 - 0.2 * noise)
    z[np.arange(len(labels)), labels] += strength[labels]
    sharpness = 3.5 * np.maximum(0.15, 1 - 1.5 * noise) * factor
    return (z * sharpness[z.argmax(axis=1)][:, None]).astype(np.float16)


def write_run(folder: Path, run: Run, n_val: int, n_test: int) -> None:
    """Write one run whose ``best`` epoch is that of ``phase2``; the logits of ``last`` are sharper."""
    n_classes = {"c10": 10, "c100": 100}[run.data]
    rng = np.random.default_rng([run.seed, *run.name.encode()])
    labels = {"val": np.arange(n_val) % n_classes, "test": np.arange(n_test) % n_classes}
    arrays: dict[str, NDArray[Any]] = {f"{k}_labels": y.astype(np.uint8) for k, y in labels.items()}
    for suffix, factor in (("", 1.0), ("_phase1", 0.8), ("_last", 1.8)):
        for split, y in labels.items():
            arrays[f"{split}_logits{suffix}"] = _logits(run, y, n_classes, rng, factor)
    keys = {"best": "", "phase1": "_phase1", "phase2": "", "last": "_last"}
    accuracy = float((arrays["test_logits"].argmax(1) == labels["test"]).mean())
    record = {
        "run": run.to_dict(),
        "seed": run.seed,
        "schedule": run.schedule,
        "n_train": 450,
        "n_validation": n_val,
        "seconds": 1.5,
        "compiled": False,
        "device": "synthetic, for tests",
        "versions": {"hetcal": "0", "python": "3", "numpy": "2", "torch": "2"},
        "git": None,
        "parallel": 1,
        "history": {
            "train_loss": [1.0, 0.5],
            "val_accuracy": [*[0.1] * 59, 0.5, *[0.4] * 20, 0.6, *[0.3] * 119],
        },
        "epochs": {"best": 81, "phase1": 60, "phase2": 81, "last": 200},
        "keys": {choice: (f"val_logits{s}", f"test_logits{s}") for choice, s in keys.items()},
        "accuracy": {choice: {"val": accuracy, "test": accuracy} for choice in keys},
    }
    store.write(folder, run.name, record, arrays)


@pytest.fixture(scope="session")
def make_store(tmp_path_factory: pytest.TempPathFactory) -> MakeStore:
    """Function that writes a store with the given runs."""

    def make(runs: Iterable[Run], n_val: int = 300, n_test: int = 400) -> Path:
        folder = tmp_path_factory.mktemp("store")
        for run in runs:
            write_run(folder, run, n_val, n_test)
        return folder

    return make


def quick_methods() -> dict[str, Any]:
    """Calibrators that are fast even with 100 classes."""
    return {
        "Uncal": hetcal.Identity(),
        "TS": hetcal.TemperatureScaling(),
        "VS": hetcal.PlattScaling(),
        "CTS": hetcal.ClassWiseTemperatureScaling(),
        "Auto": hetcal.ClassWiseTemperatureScaling(gamma=0.1),
    }


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make evaluation fast."""
    monkeypatch.setattr(evaluate_run, "METHODS", quick_methods())
    monkeypatch.setattr(evaluate_run, "_N_REDRAWS", 20)


@pytest.fixture(scope="session")
def grid_results(make_store: MakeStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the paper's whole grid: two seeds of the tables and Figure 9, one of the rest."""
    two_seeds = ("table1", "table2", "fig9")
    selected = [r for name, runs in paper_grid().items() for r in runs if r.seed < 1 + (name in two_seeds)]
    runs = {run.name: run for run in selected}
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate_run, "METHODS", quick_methods())
        patch.setattr(evaluate_run, "_N_REDRAWS", 20)
        summarise(make_store(runs.values(), n_val=200, n_test=400), folder)
    return folder
