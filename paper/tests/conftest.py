from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

Records = tuple[NDArray[np.uint8], NDArray[np.int64]]


def records(n: int, n_classes: int, seed: int) -> Records:
    """Noise whose brightness tells the class."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % n_classes
    pixels = rng.integers(0, 120, (n, 3072)) + (labels * 130 // n_classes)[:, None]
    return pixels.astype(np.uint8), labels


def write_binary10(root: Path, n: int = 100, n_test: int = 30) -> Path:
    """CIFAR-10 in the official binary layout, with ``n`` instead of 10,000 images a file."""
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    files = [(f"data_batch_{i}.bin", n, i) for i in range(1, 6)] + [("test_batch.bin", n_test, 6)]
    for name, count, seed in files:
        pixels, labels = records(count, 10, seed)
        np.column_stack([labels.astype(np.uint8), pixels]).tofile(folder / name)
    return root


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Networks this small gain nothing from threads, and on a busy machine lose much."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def cifar10(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a small CIFAR-10: 500 training and 30 test images."""
    return write_binary10(tmp_path_factory.mktemp("data"))
