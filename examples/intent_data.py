"""Intent data sets from a folder, in the layouts their authors publish: CLINC150 (JSON) and Banking77 (CSV).

Nothing is downloaded. The folder is `--data DIR` or the environment variable HETCAL_DATA, and holds
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
    "numbered",
    "read_banking77",
    "read_clinc150",
    "read_domains",
]

Ints = NDArray[np.int64]
Pairs = list[tuple[str, str]]
_SPLITS = ("train", "val", "test")


class DataError(Exception):
    """The data are not where they should be, or not what they should be; one line says what to do."""


@dataclass(frozen=True)
class Split:
    """Texts and the number of the intent of each."""

    texts: list[str]
    labels: Ints


@dataclass(frozen=True)
class Intents:
    """One data set: names of the intents and three splits."""

    names: tuple[str, ...]
    train: Split
    val: Split
    test: Split


def data_folder(given: str | None, needed: str) -> Path:
    """Folder of one data set inside `--data DIR`, or inside $HETCAL_DATA."""
    root = given or os.environ.get("HETCAL_DATA")
    remedy = f"pass --data DIR or set the environment variable HETCAL_DATA to the folder that holds {needed}/"
    if not root:
        raise DataError(f"--data must name a folder, got nothing; {remedy}")
    folder = Path(root, needed)
    if not folder.is_dir():
        raise DataError(f"--data must name a folder with {needed}/ in it, got {root}; {remedy}")
    return folder


def read_clinc150(folder: Path, variant: str) -> dict[str, Pairs]:
    """Text and intent of every row of `data_VARIANT.json`, by split; out-of-scope rows are left out."""
    path = _existing(folder / f"data_{variant}.json")
    content = json.loads(path.read_text(encoding="utf-8"))
    missing = [split for split in _SPLITS if split not in content]
    if missing:
        raise DataError(
            f"{path.name} must hold train, val and test, got no {missing[0]}; fetch the file again"
        )
    return {split: [(text, intent) for text, intent in content[split]] for split in _SPLITS}


def read_domains(folder: Path) -> dict[str, list[str]]:
    """Intents of every domain of CLINC150, from `domains.json`."""
    found: dict[str, list[str]] = json.loads(_existing(folder / "domains.json").read_text(encoding="utf-8"))
    return found


def read_banking77(folder: Path) -> dict[str, Pairs]:
    """Text and intent of every row of `train.csv` and `test.csv`, by split."""
    found = {}
    for split in ("train", "test"):
        with _existing(folder / f"{split}.csv").open(encoding="utf-8", newline="") as lines:
            found[split] = [(row["text"], row["category"]) for row in csv.DictReader(lines)]
    return found


def numbered(splits: dict[str, Pairs]) -> Intents:
    """Intents in alphabetical order, numbered from 0."""
    names = tuple(sorted({intent for _, intent in splits["train"]}))
    number = {name: i for i, name in enumerate(names)}
    strange = {intent for split in ("val", "test") for _, intent in splits[split]} - number.keys()
    if strange:
        raise DataError(
            f"val and test must have the intents of train, got {min(strange)!r}; fetch the data again"
        )

    def split(pairs: Pairs) -> Split:
        return Split(
            [text for text, _ in pairs], np.array([number[name] for _, name in pairs], dtype=np.int64)
        )

    return Intents(names, *(split(splits[name]) for name in _SPLITS))


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise DataError(
            f"--data must name a folder with {path.parent.name}/{path.name} in it, got no such file; "
            "pass --data DIR or set the environment variable HETCAL_DATA"
        )
    return path
