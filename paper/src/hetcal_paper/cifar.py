"""CIFAR-10 and CIFAR-100 from the official binary files.

The data sets are distributed in several versions. Only the *binary version* (``cifar-10-batches-bin``,
``cifar-100-binary``) is read: the Python version consists of pickles, which can execute code.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetcal_paper.archives import check_sha256, fetch, unpack
from hetcal_paper.files import locked

__all__ = ["DATA_SETS", "Cifar", "data_dir", "download", "load"]

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE
_N_TRAIN, _N_TEST = 50_000, 10_000  # the official sizes of both data sets
_LIMIT = 200_000_000  # maximum bytes of an archive or its content; the official ones need at most 185 million


class _Layout(NamedTuple):
    """Files of one data set, and the archive that contains them."""

    n_classes: int
    folder: str
    train: tuple[str, ...]
    test: str
    label_bytes: int  # the last of these bytes is the class; CIFAR-100 stores a coarse label before it
    url: str
    sha256: str


DATA_SETS: dict[str, _Layout] = {
    "c10": _Layout(
        n_classes=10,
        folder="cifar-10-batches-bin",
        train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        test="test_batch.bin",
        label_bytes=1,
        url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
    "c100": _Layout(
        n_classes=100,
        folder="cifar-100-binary",
        train=("train.bin",),
        test="test.bin",
        label_bytes=2,
        url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    ),
}


@dataclass(frozen=True)
class Cifar:
    """One data set in memory.

    Attributes
    ----------
    name : {"c10", "c100"}
    n_classes : int
    train_images, test_images : ndarray of uint8, shape (n, 32, 32, 3)
        Pixels, channels last, in the official order.
    train_labels, test_labels : ndarray of int64, shape (n,)
        Classes; the fine labels of CIFAR-100.
    """

    name: str
    n_classes: int
    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]


def data_dir(folder: str | Path | None = None) -> Path:
    """Return the folder that contains the data sets: the argument or ``$HETCAL_DATA``."""
    path = folder if folder is not None else os.environ.get("HETCAL_DATA")
    if not path:
        raise ValueError(f"data_dir must name a folder, got {path!r}; pass --data DIR or set $HETCAL_DATA")
    return Path(path)


def load(name: str, folder: str | Path | None = None, *, strict_size: bool = True) -> Cifar:
    """Read a data set from the official binary files.

    Parameters
    ----------
    name : {"c10", "c100"}
    folder : path, optional
        Folder that contains ``cifar-10-batches-bin`` or ``cifar-100-binary``; default ``$HETCAL_DATA``.
    strict_size : bool
        Whether to require 50,000 training and 10,000 test images.

    Returns
    -------
    Cifar
    """
    layout = _layout(name)
    base = data_dir(folder) / layout.folder
    if not base.is_dir():
        raise FileNotFoundError(
            f"data_dir must contain {layout.folder}/, the binary version of the data set, got {base.parent}; "
            f"unpack {layout.url} there"
        )
    train_images, train_labels = _concatenate([_read(base / file, layout) for file in layout.train])
    test_images, test_labels = _concatenate([_read(base / layout.test, layout)])
    if strict_size and (len(train_labels), len(test_labels)) != (_N_TRAIN, _N_TEST):
        raise ValueError(
            f"{base} must contain {_N_TRAIN} training and {_N_TEST} test images, "
            f"got {len(train_labels)} and {len(test_labels)}; delete the folder and download the data again"
        )
    return Cifar(name, layout.n_classes, train_images, train_labels, test_images, test_labels)


def download(name: str, folder: str | Path) -> Path:
    """Download, verify and unpack the official binary archive.

    Parameters
    ----------
    name : {"c10", "c100"}
    folder : path
        Where to unpack; created if needed. Pass it to :func:`load`.

    Returns
    -------
    Path
        The unpacked folder. If it exists, nothing is downloaded.
    """
    layout = _layout(name)
    folder = Path(folder)
    target = folder / layout.folder
    scratch = folder / f".{layout.folder}.part"
    if target.is_dir() and not scratch.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):  # a second process waits here until the download is complete
        try:
            if not target.is_dir():
                scratch.mkdir(exist_ok=True)
                _download_to(scratch, layout).replace(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


def _download_to(scratch: Path, layout: _Layout) -> Path:
    """Download and unpack into a scratch folder; flush the files to disk and return the unpacked folder."""
    archive, unpacked = scratch / layout.url.rsplit("/", 1)[-1], scratch / "unpacked"
    if not archive.exists():
        fetch(layout.url, archive, _LIMIT)
    check_sha256(archive, layout.sha256)
    shutil.rmtree(unpacked, ignore_errors=True)  # files that a killed process left behind
    unpacked.mkdir()
    unpack(archive, unpacked, _LIMIT)
    if not (unpacked / layout.folder).is_dir():
        raise ValueError(
            f"{archive.name} must contain the folder {layout.folder}, got an archive without it; "
            "download it again"
        )
    for path in unpacked.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    return unpacked / layout.folder


def _layout(name: str) -> _Layout:
    if name not in DATA_SETS:
        raise ValueError(
            f'name must be one of {", ".join(DATA_SETS)}, got "{name}"; '
            'pass "c10" for CIFAR-10 or "c100" for CIFAR-100'
        )
    return DATA_SETS[name]


_Part = tuple[NDArray[np.uint8], NDArray[np.int64]]


def _concatenate(parts: list[_Part]) -> _Part:
    """Join the files of one split and move the channels last."""
    pixels = np.concatenate([images for images, _ in parts])
    images = pixels.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), np.concatenate([labels for _, labels in parts])


def _read(path: Path, layout: _Layout) -> _Part:
    """Read one file, in which each image has one or two label bytes followed by 3072 pixel bytes."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} must be a file, got none; delete its folder and download the data again"
        )
    record = layout.label_bytes + _PIXELS
    content = np.fromfile(path, dtype=np.uint8)
    if content.size == 0 or content.size % record:
        raise ValueError(
            f"{path} must be a whole number of {record}-byte records and not empty, "
            f"got {content.size} bytes; the file is damaged, delete its folder and download the data again"
        )
    rows = content.reshape(-1, record)
    labels = rows[:, layout.label_bytes - 1].astype(np.int64)
    invalid = np.flatnonzero(labels >= layout.n_classes)
    if invalid.size:
        row = int(invalid[0])
        raise ValueError(
            f"{path} must have labels below {layout.n_classes}, got {labels[row]} at row {row}; "
            "the file is damaged, delete its folder and download the data again"
        )
    return rows[:, layout.label_bytes :], labels
