"""Problems in CalArena's HDF5 layout.

A file has the arrays ``probas_cal``, ``labels_cal``, ``probas_test`` and ``labels_test`` for every
``{dataset}/{model}``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from arena_methods import two_columns
from arena_problems import Split

__all__ = ["FixedProblem", "read_hdf5"]


@dataclass(frozen=True)
class FixedProblem:
    """Predictions of one model, already divided into rows to fit on and rows to score."""

    name: str
    family: str
    dataset: str
    half: str
    split: Split

    def splits(self) -> Iterator[tuple[int, Split]]:
        """Yield the only split."""
        yield 0, self.split


def read_hdf5(path: Path) -> Iterator[FixedProblem]:
    """Yield the problems of a file of CalArena, one at a time to save memory.

    Binary problems may have the probability of class 1 only.
    """
    import h5py

    with h5py.File(path, "r") as file:
        for dataset in sorted(file):
            for model in sorted(file[dataset]):
                yield FixedProblem(
                    f"{dataset}, {model}", path.stem, dataset, "", _read_split(file[dataset][model])
                )


def _read_split(group: Any) -> Split:
    def labels(name: str) -> Any:
        return np.asarray(group[name][:]).ravel().astype(np.int64)

    return Split(
        two_columns(group["probas_cal"][:]),
        labels("labels_cal"),
        two_columns(group["probas_test"][:]),
        labels("labels_test"),
    )
