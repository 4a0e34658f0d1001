"""Rows that come block by block, from a disk or from many machines: fits as sums of small statistics.

A statistic is a function of one block; the sums over all blocks of what it returns are all that a fit needs.
Whoever holds the blocks (see :class:`RowSource`) decides where they are read and how the sums are formed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hetcal._core.arrays import CodeArray, FloatArray, IntArray
from hetcal._core.kernels import Rows, count_slices
from hetcal._core.problems import Heldout, TemperatureProblem
from hetcal._core.solvers import Derivatives

__all__ = ["Assign", "Block", "BlockProblem", "RowSource", "Statistic", "is_source"]

Float = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows, prepared for the passes.

    Attributes
    ----------
    rows : Rows, logits with labels; rows of weight zero are left out
    groups : (n,) group of every row, or None
    number : which block of its source this is; folds are drawn from it
    """

    rows: Rows
    groups: NDArray[Any] | None = None
    number: int = 0


# Arrays of one block, to be summed over the blocks
Statistic = Callable[[Block], tuple[NDArray[Any], ...]]
# Slice of every row, from its predicted class or its group
Assign = Callable[[CodeArray, NDArray[Any] | None], CodeArray]


class RowSource(Protocol):
    """Logits and labels that can be gone over as often as a fit needs."""

    @property
    def n_classes(self) -> int:
        """Number of columns K."""

    def reduce(self, statistic: Statistic) -> tuple[NDArray[Any], ...]:
        """Sums of a statistic over all blocks, always in the same order."""

    def first(self) -> Block:
        """Return the first block, for a first guess."""

    def group_names(self) -> NDArray[Any] | None:
        """Sorted names of the groups, or None where there are none."""

    def transform(self, function: Callable[[FloatArray, Any], FloatArray]) -> RowSource:
        """Return the same rows with ``function(logits, groups)`` in place of the logits, made when needed."""


def is_source(rows: Any) -> bool:
    """Whether rows come in blocks, not as an array; asks the type alone, since properties may read data."""
    parts = ("n_classes", "reduce", "first", "group_names", "transform")
    return all(hasattr(type(rows), part) for part in parts)


@dataclass(frozen=True, eq=False)
class BlockProblem:
    """Inverse temperatures of slices of a source: what `TemperatureProblem` is for rows in memory."""

    source: RowSource
    assign: Assign
    n_slices: int
    fold: Fold | None = None

    def evaluate(self, alpha: Float, active: IntArray) -> Derivatives:
        """Derivatives of the losses of the slices `active`; one pass over all blocks."""
        first, second, third = self.source.reduce(
            _Slopes(self.assign, self.n_slices, self.fold, alpha, active)
        )
        return first[active], second[active], third[active]

    def counts(self) -> IntArray:
        """Rows in every slice."""
        return self._described[0]

    def class_counts(self, n_classes: int) -> IntArray:
        """Rows predicted as each class."""
        return self.source.reduce(_ClassCounts(n_classes))[0]

    def weights(self) -> tuple[float, float]:
        """Sum of the rows' weights, and the least of them, which is not known where there are weights."""
        total, weighted = self.source.reduce(_Weights())
        return float(total), 0.0 if weighted else 1.0

    def slice_weights(self) -> Float:
        """Sum of the weights in every slice."""
        return self._described[3]

    def endless(self) -> NDArray[np.bool_]:
        """Slices whose loss falls for ever as α grows: no label below its top, and some row not flat."""
        return np.asarray(~self.held() & (self._described[2] > 0))

    def held(self) -> NDArray[np.bool_]:
        """Slices with a label below the top of its row."""
        return np.asarray(self._described[1] > 0)

    def sample(self) -> TemperatureProblem | None:
        """Return the first block, for a first guess."""
        return _problem(self.source.first(), self.assign, self.n_slices, self.fold)

    def split(self, n_folds: int) -> Iterator[tuple[BlockProblem, BlockProblem]]:
        """Rows outside and inside of every fold; folds are drawn by block and place in it."""
        for f in range(n_folds):
            parts = [replace(self, fold=Fold(n_folds, f, inside)) for inside in (False, True)]
            if all(part.counts().any() for part in parts):
                yield parts[0], parts[1]

    def heldout(self, alphas: Float) -> Heldout:
        """NLL of the rows under each line of `alphas` (G, S)."""
        loss, product, n, weight = self.source.reduce(
            _HeldoutSums(self.assign, self.n_slices, self.fold, alphas)
        )
        return Heldout(loss, product, float(n), float(weight))

    @cached_property
    def _described(self) -> tuple[NDArray[Any], ...]:
        return self.source.reduce(_Description(self.assign, self.n_slices, self.fold))


@dataclass(frozen=True)
class Fold:
    """Rows inside of one fold, or all others."""

    n_folds: int
    fold: int
    inside: bool

    def of(self, n_rows: int, number: int) -> IntArray:
        """Places of the fold's rows in block `number`."""
        drawn = np.random.default_rng([0, number]).integers(self.n_folds, size=n_rows)
        return np.flatnonzero((drawn == self.fold) == self.inside)


def _problem(block: Block, assign: Assign, n_slices: int, fold: Fold | None) -> TemperatureProblem:
    problem = TemperatureProblem(block.rows, assign(block.rows.guess, block.groups), n_slices)
    return problem if fold is None else problem.take(fold.of(len(block.rows), block.number))


@dataclass(frozen=True)
class _Slopes:
    assign: Assign
    n_slices: int
    fold: Fold | None
    alpha: Float
    active: IntArray

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        problem = _problem(block, self.assign, self.n_slices, self.fold)
        sums = np.zeros((3, self.n_slices))
        sums[:, self.active] = problem.evaluate(self.alpha, self.active)
        return tuple(sums)


@dataclass(frozen=True)
class _ClassCounts:
    n_classes: int

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        return (count_slices(block.rows.guess, self.n_classes),)


@dataclass(frozen=True)
class _Weights:
    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        return np.array(block.rows.total_weight), np.array(int(block.rows.given_weight is not None))


@dataclass(frozen=True)
class _Description:
    """Rows of every slice, rows held down by their label, and rows that are not flat where none is held."""

    assign: Assign
    n_slices: int
    fold: Fold | None

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        problem = _problem(block, self.assign, self.n_slices, self.fold)
        held, endless = (found.astype(np.int64) for found in (problem.held(), problem.endless()))
        return problem.counts(), held, endless, problem.slice_weights()


@dataclass(frozen=True)
class _HeldoutSums:
    assign: Assign
    n_slices: int
    fold: Fold | None
    alphas: Float

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        sums = _problem(block, self.assign, self.n_slices, self.fold).heldout(self.alphas)
        return sums.loss, sums.product, np.array(sums.n), np.array(sums.weight)
