"""Problems of the arena: predicted probabilities with labels, stored in a cache folder, and their splits.

Every family's data sets are sorted by name. Data sets at even positions belong to the design half and those
at odd positions to the judge half, together with all models trained on them. The rule was fixed before any
method was evaluated. The family "survey 2", which was added later, belongs to the judge half as a whole.
Methods may be tuned on the design half only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "SPLITS",
    "Half",
    "Problem",
    "Split",
    "assign_halves",
    "load_problem",
    "load_problems",
    "save_problem",
]

Half = Literal["design", "judge"]

SPLITS = (0, 1)
_MAX_CALIBRATION_ROWS = 5000


@dataclass(frozen=True)
class Split:
    """Rows to fit on and rows to score."""

    probs_cal: NDArray[np.float64]
    labels_cal: NDArray[np.int64]
    probs_test: NDArray[np.float64]
    labels_test: NDArray[np.int64]


@dataclass(frozen=True)
class Problem:
    """Predictions of one model on rows that it was not trained on.

    Attributes
    ----------
    family : str
        Where the predictions come from: "predictions", "tabular", "survey", "survey 2", "text" or "cifar".
    dataset, model : str
    half : "design" or "judge"
    probs : (n, K) array
    labels : (n,) array of integers below K
    """

    family: str
    dataset: str
    model: str
    half: Half
    probs: NDArray[np.float64]
    labels: NDArray[np.int64]

    @property
    def name(self) -> str:
        """Data set and model."""
        return f"{self.dataset}, {self.model}"

    @property
    def n_classes(self) -> int:
        """Number of columns of the probabilities."""
        return self.probs.shape[1]

    def splits(self) -> Iterator[tuple[int, Split]]:
        """Yield the splits with their seeds."""
        for seed in SPLITS:
            yield seed, self.split(seed)

    def split(self, seed: int) -> Split:
        """Divide the rows at random into two halves. At most 5,000 rows of the first are used to fit."""
        order = np.random.default_rng(seed).permutation(len(self.labels))
        middle = len(order) // 2
        cal, test = order[: min(middle, _MAX_CALIBRATION_ROWS)], order[middle:]
        return Split(self.probs[cal], self.labels[cal], self.probs[test], self.labels[test])


def assign_halves(datasets: list[str]) -> dict[str, Half]:
    """Return the half of each data set of a family."""
    return {name: "judge" if i % 2 else "design" for i, name in enumerate(sorted(datasets))}


def save_problem(problem: Problem, cache: Path) -> Path:
    """Store a problem as ``cache/half/family--dataset--model.npz`` and return the path."""
    path = cache / problem.half / f"{problem.family}--{problem.dataset}--{problem.model}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, probs=problem.probs, labels=problem.labels)
    return path


def load_problem(path: Path) -> Problem:
    """Load a problem that `save_problem` stored."""
    family, dataset, model = path.stem.split("--")
    half: Half = "judge" if path.parent.name == "judge" else "design"
    with np.load(path, allow_pickle=False) as archive:
        return Problem(family, dataset, model, half, archive["probs"], archive["labels"])


def load_problems(cache: str | Path, half: Half = "design") -> Iterator[Problem]:
    """Yield the stored problems of one half, sorted by file name."""
    for path in sorted((Path(cache) / half).glob("*.npz")):
        yield load_problem(path)
