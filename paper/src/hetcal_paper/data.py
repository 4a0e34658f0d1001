"""CIFAR-10 and CIFAR-100 from a folder, in either official layout.

The binary layout (``cifar-10-batches-bin``, ``cifar-100-binary``) is read directly. The python
layout (``cifar-10-batches-py``, ``cifar-100-python``) consists of pickles, which can run code
when unpickled; they are never unpickled, but read as data (:mod:`hetcal_paper.pickled`).
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetcal._write import locked
from hetcal_paper.archives import check_sha256, fetch, unpack
from hetcal_paper.pickled import read_plain

__all__ = ["DATA_SETS", "Cifar", "data_dir", "download", "load"]

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE


class _Layout(NamedTuple):
    """Where one data set lies and how large it is."""

    n_classes: int
    binary_dir: str
    binary_train: tuple[str, ...]
    binary_test: str
    label_bytes: int  # CIFAR-100 stores the coarse label first; the last one is the class
    python_dir: str
    python_train: tuple[str, ...]
    python_test: str
    python_key: bytes
    url: str
    sha256: str


#: The official sizes, the same for both data sets.
_N_TRAIN, _N_TEST = 50_000, 10_000
#: Bytes that an archive may have, packed or unpacked: the official ones have 170 and 185 million.
_LIMIT = 200_000_000

DATA_SETS: dict[str, _Layout] = {
    "c10": _Layout(
        n_classes=10,
        binary_dir="cifar-10-batches-bin",
        binary_train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        binary_test="test_batch.bin",
        label_bytes=1,
        python_dir="cifar-10-batches-py",
        python_train=tuple(f"data_batch_{i}" for i in range(1, 6)),
        python_test="test_batch",
        python_key=b"labels",
        url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
    "c100": _Layout(
        n_classes=100,
        binary_dir="cifar-100-binary",
        binary_train=("train.bin",),
        binary_test="test.bin",
        label_bytes=2,
        python_dir="cifar-100-python",
        python_train=("train",),
        python_test="test",
        python_key=b"fine_labels",
        url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    ),
}


@dataclass(frozen=True)
class Cifar:
    """One data set in memory.

    Attributes
    ----------
    name : str
        ``"c10"`` or ``"c100"``.
    n_classes : int
        10 or 100.
    train_images, test_images : ndarray of uint8, shape (n, 32, 32, 3)
        Pixels, channels last, in the official order.
    train_labels, test_labels : ndarray of int64, shape (n,)
        Classes (the fine ones of CIFAR-100).
    """

    name: str
    n_classes: int
    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]


def data_dir(folder: str | Path | None = None) -> Path:
    """Return the folder that holds the data sets: the argument, else ``$HETCAL_DATA``."""
    chosen = folder if folder is not None else os.environ.get("HETCAL_DATA")
    if not chosen:
        raise ValueError(
            "data_dir must name a folder, got None; pass it, or set the environment variable HETCAL_DATA"
        )
    return Path(chosen)


def load(name: str, folder: str | Path | None = None, *, strict_size: bool = True) -> Cifar:
    """Read a data set from its official files.

    Parameters
    ----------
    name : {"c10", "c100"}
        Which data set.
    folder : path, optional
        The folder that contains ``cifar-10-batches-bin`` or the like; default ``$HETCAL_DATA``.
        Where both layouts are present the binary one is read.
    strict_size : bool
        Refuse anything but 50,000 training and 10,000 test images.

    Returns
    -------
    Cifar
    """
    layout = _layout(name)
    root = data_dir(folder)
    if (root / layout.binary_dir).is_dir():
        base, train, test, read = root / layout.binary_dir, layout.binary_train, layout.binary_test, _binary
    elif (root / layout.python_dir).is_dir():
        base, train, test, read = root / layout.python_dir, layout.python_train, layout.python_test, _pickled
    else:
        raise FileNotFoundError(
            f"folder must contain {layout.binary_dir}/ or {layout.python_dir}/, got {root}; "
            f'fetch the data with hetcal_paper.data.download("{name}", folder)'
        )
    train_images, train_labels = _joined([read(base / part, layout) for part in train])
    test_images, test_labels = _joined([read(base / test, layout)])
    if strict_size and (len(train_labels), len(test_labels)) != (_N_TRAIN, _N_TEST):
        raise ValueError(
            f"{base} must hold {_N_TRAIN} training and {_N_TEST} test images, "
            f"got {len(train_labels)} and {len(test_labels)}; fetch the data again"
        )
    return Cifar(name, layout.n_classes, train_images, train_labels, test_images, test_labels)


def download(name: str, dest: str | Path) -> Path:
    """Fetch the official archive of the binary layout, check it and unpack it.

    Parameters
    ----------
    name : {"c10", "c100"}
        Which data set.
    dest : path
        Folder to unpack into; made if it does not exist. Pass it to :func:`load`.

    Returns
    -------
    Path
        The unpacked folder. If it exists already nothing is fetched.
    """
    layout = _layout(name)
    dest = Path(dest)
    target = dest / layout.binary_dir
    scratch = dest / f".{layout.binary_dir}.part"  # all that a call which is killed leaves behind
    if target.is_dir() and not scratch.exists():
        return target
    dest.mkdir(parents=True, exist_ok=True)
    with locked(dest):  # a second process waits, and then finds it done
        try:
            if not target.is_dir():
                scratch.mkdir(exist_ok=True)
                _make(layout, scratch).replace(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


def _make(layout: _Layout, scratch: Path) -> Path:
    """Fetch and unpack; the folder that is to be renamed, forced to disk."""
    archive, made = scratch / layout.url.rsplit("/", 1)[-1], scratch / "unpacked"
    if not archive.exists():
        fetch(layout.url, archive, _LIMIT)
    check_sha256(archive, layout.sha256)
    shutil.rmtree(made, ignore_errors=True)  # half of it, of a call that was killed
    made.mkdir()
    unpack(archive, made, _LIMIT)
    if not (made / layout.binary_dir).is_dir():
        raise ValueError(
            f"{archive.name} must hold a folder {layout.binary_dir}, got none; download it again"
        )
    for path in made.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    return made / layout.binary_dir


def _layout(name: str) -> _Layout:
    """Look a data set up by name."""
    if name not in DATA_SETS:
        raise ValueError(f'name must be one of {", ".join(DATA_SETS)}, got "{name}"; CIFAR-10 is "c10"')
    return DATA_SETS[name]


_Part = tuple[NDArray[np.uint8], NDArray[np.int64]]


def _joined(parts: list[_Part]) -> _Part:
    """Put the files of one split together, channels last."""
    pixels = np.concatenate([images for images, _ in parts])
    images = pixels.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), np.concatenate([labels for _, labels in parts])


def _binary(path: Path, layout: _Layout) -> _Part:
    """Read one file of the binary layout: label byte(s), then 3072 pixel bytes, per image."""
    record = layout.label_bytes + _PIXELS
    raw = np.fromfile(_existing(path), dtype=np.uint8)
    if raw.size == 0 or raw.size % record:
        raise ValueError(
            f"{path} must be a whole number of {record}-byte records, got {raw.size} bytes; "
            "the file is damaged, fetch the data again"
        )
    rows = raw.reshape(-1, record)
    labels = rows[:, layout.label_bytes - 1].astype(np.int64)
    return rows[:, layout.label_bytes :], _in_range(labels, path, layout)


def _pickled(path: Path, layout: _Layout) -> _Part:
    """Read one file of the python layout."""
    content = read_plain(_existing(path).read_bytes(), str(path))
    if not isinstance(content, dict) or not {b"data", layout.python_key} <= content.keys():
        raise ValueError(
            f"{path} must hold a dictionary with data and {layout.python_key.decode()}, "
            f"got {type(content).__name__}; fetch the data again"
        )
    pixels, given = content[b"data"], content[layout.python_key]
    if not isinstance(given, list) or not all(isinstance(label, int) for label in given):
        raise ValueError(f"{path} must hold a list of integers as labels, got others; fetch the data again")
    if not isinstance(pixels, np.ndarray) or pixels.shape != (len(given), _PIXELS):
        raise ValueError(
            f"{path} must hold {_PIXELS} bytes per image, got {np.shape(pixels)} for {len(given)} labels; "
            "fetch the data again"
        )
    return pixels, _in_range(np.array(given, dtype=np.int64), path, layout)


def _existing(path: Path) -> Path:
    """Refuse a missing file by name."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} must exist, got no such file; fetch the data again")
    return path


def _in_range(labels: NDArray[np.int64], path: Path, layout: _Layout) -> NDArray[np.int64]:
    """Refuse labels that the data set does not have."""
    outside = np.flatnonzero((labels < 0) | (labels >= layout.n_classes))
    if outside.size:
        row = int(outside[0])
        raise ValueError(
            f"{path} must hold labels below {layout.n_classes}, got {labels[row]} at row {row}; "
            "the file is damaged, fetch the data again"
        )
    return labels
