"""Read intent data sets in the published formats: CLINC150 (JSON) and Banking77 (CSV).

Nothing is downloaded. The folder is `--data DIR` or the environment variable HETCAL_DATA. It contains
`clinc150/` (the files of https://github.com/clinc/oos-eval, folder `data`) and `banking77/` (those of
https://github.com/PolyAI-LDN/task-specific-datasets, folder `banking_data`).
"""

from __future__ import annotations

import csv
import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "DataError",
    "Intents",
    "Pairs",
    "Split",
    "data_folder",
    "encode_labels",
    "read_banking77",
    "read_clinc150",
    "read_domains",
]

Ints = NDArray[np.int64]
Pairs = list[tuple[str, str]]
_SPLITS = ("train", "val", "test")


class DataError(Exception):
    """The data are missing or invalid. The message is one line that says what to do."""


@dataclass(frozen=True)
class Split:
    """Texts and their labels."""

    texts: list[str]
    labels: Ints


@dataclass(frozen=True)
class Intents:
    """A data set: the names of the intents and three splits."""

    names: tuple[str, ...]
    train: Split
    val: Split
    test: Split


def data_folder(root: str | None, name: str) -> Path:
    """Return the folder of a data set inside `--data DIR` or $HETCAL_DATA."""
    root = root or os.environ.get("HETCAL_DATA")
    remedy = (
        f"pass --data DIR or set the environment variable HETCAL_DATA to the folder that contains {name}/"
    )
    if not root:
        raise DataError(f"--data or HETCAL_DATA must be a folder, got neither; {remedy}")
    folder = Path(root, name)
    if not folder.is_dir():
        raise DataError(f"--data or HETCAL_DATA must be a folder that contains {name}/, got {root}; {remedy}")
    return folder


def read_clinc150(folder: Path, variant: str) -> dict[str, Pairs]:
    """Return the text and intent of every row of `data_VARIANT.json`, by split, without out-of-scope rows."""
    path = _existing(folder / f"data_{variant}.json")
    content = json.loads(path.read_text(encoding="utf-8"))
    missing = [split for split in _SPLITS if split not in content]
    if missing:
        raise DataError(
            f"{path.name} must contain train, val and test, got no {missing[0]}; download the file again"
        )
    return {split: [(text, intent) for text, intent in content[split]] for split in _SPLITS}


def read_domains(folder: Path) -> dict[str, list[str]]:
    """Return the intents of every domain of CLINC150, from `domains.json`."""
    domains: dict[str, list[str]] = json.loads(_existing(folder / "domains.json").read_text(encoding="utf-8"))
    return domains


def read_banking77(folder: Path) -> dict[str, Pairs]:
    """Return the text and intent of every row of `train.csv` and `test.csv`, by split."""
    splits = {}
    for split in ("train", "test"):
        with _existing(folder / f"{split}.csv").open(encoding="utf-8", newline="") as lines:
            splits[split] = [(row["text"], row["category"]) for row in csv.DictReader(lines)]
    return splits


def encode_labels(splits: dict[str, Pairs]) -> Intents:
    """Convert intents to integer labels, in alphabetical order."""
    names = tuple(sorted({intent for _, intent in splits["train"]}))
    index = {name: i for i, name in enumerate(names)}
    unknown = {intent for split in ("val", "test") for _, intent in splits[split]} - index.keys()
    if unknown:
        raise DataError(
            f"val and test must contain only intents of train, got {min(unknown)!r}; download the data again"
        )

    def split(pairs: Pairs) -> Split:
        return Split(
            [text for text, _ in pairs], np.array([index[name] for _, name in pairs], dtype=np.int64)
        )

    return Intents(names, *(split(splits[name]) for name in _SPLITS))


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise DataError(
            f"{path.parent} must contain the file {path.name}, got no such file; download it, or pass "
            "another folder as --data DIR"
        )
    return path
