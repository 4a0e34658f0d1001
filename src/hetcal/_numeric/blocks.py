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

from hetcal._numeric.folds import RowContent, are_few, deal_by_keys
from hetcal._numeric.hashing import ordered_keys
from hetcal._numeric.passes import count_slices
from hetcal._numeric.problems import Heldout, Problem, TemperatureProblem
from hetcal._numeric.rows import Rows
from hetcal._numeric.scalar_solver import Derivatives
from hetcal._typing import CodeArray, Float, FloatArray, IntArray

__all__ = [
    "Assign",
    "Block",
    "BlockProblem",
    "RowSource",
    "ScaledWeights",
    "Statistic",
    "is_source",
    "with_normalised_weights",
]


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows, prepared for the passes.

    Attributes
    ----------
    rows : Rows, logits with labels; rows of weight zero are left out
    groups : (n,) group of every row, or None
    number : which block of its source this is
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

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes in the order of the columns, where the columns have names."""

    def reduce(self, statistic: Statistic) -> tuple[NDArray[Any], ...]:
        """Sums of a statistic over all blocks, always in the same order."""

    def gather(self, statistic: Statistic) -> list[tuple[int, tuple[NDArray[Any], ...]]]:
        """Number of each block and what the statistic makes of it, in the order of the blocks."""

    def first(self) -> Block:
        """Return the first block, for a first guess."""

    def group_names(self) -> NDArray[Any] | None:
        """Sorted names of the groups, or None where there are none."""

    def transform(self, function: Callable[[FloatArray, Any], FloatArray]) -> RowSource:
        """Return the same rows with ``function(logits, groups)`` in place of the logits, made when needed."""


def is_source(rows: Any) -> bool:
    """Whether rows come in blocks, not as an array; asks the type alone, since properties may read data."""
    parts = ("n_classes", "reduce", "gather", "first", "group_names", "transform")
    return all(hasattr(type(rows), part) for part in parts)


@dataclass(frozen=True, eq=False)
class ScaledWeights:
    """A source whose weights are multiplied by a number."""

    source: RowSource
    factor: float

    @property
    def n_classes(self) -> int:
        """Number of columns K."""
        return self.source.n_classes

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes, where the columns have names."""
        return self.source.class_names

    def reduce(self, statistic: Statistic) -> tuple[NDArray[Any], ...]:
        """Sums of a statistic over all blocks."""
        return self.source.reduce(_Scaled(statistic, self.factor))

    def gather(self, statistic: Statistic) -> list[tuple[int, tuple[NDArray[Any], ...]]]:
        """Number of each block and what the statistic makes of it."""
        return self.source.gather(_Scaled(statistic, self.factor))

    def first(self) -> Block:
        """Return the first block."""
        return _scale(self.source.first(), self.factor)

    def group_names(self) -> NDArray[Any] | None:
        """Sorted names of the groups, or None where there are none."""
        return self.source.group_names()

    def transform(self, function: Callable[[FloatArray, Any], FloatArray]) -> RowSource:
        """Return the same rows with ``function(logits, groups)`` in place of the logits."""
        return ScaledWeights(self.source.transform(function), self.factor)


def with_normalised_weights(source: RowSource) -> RowSource:
    """Scale a source's weights, if it has any, to sum to the effective sample size, ``(Σw)² / Σw²``."""
    weight = source.first().rows.given_weight
    if weight is None:
        return source
    unit = float(weight.max())  # squares of very small or large weights would leave the range of a float
    total, squares = source.reduce(_WeightSums(unit))
    return ScaledWeights(source, float(total / squares) / unit)


@dataclass(frozen=True)
class _WeightSums:
    unit: float

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        w = block.rows.weight / self.unit
        return np.array(w.sum()), np.array(w @ w)


@dataclass(frozen=True)
class _Scaled:
    """A statistic of blocks whose weights are scaled first; runs wherever the block is."""

    statistic: Statistic
    factor: float

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        return self.statistic(_scale(block, self.factor))


def _scale(block: Block, factor: float) -> Block:
    weight = block.rows.given_weight
    rows = block.rows if weight is None else replace(block.rows, given_weight=factor * weight)
    return replace(block, rows=rows)


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
        """Return the first block, for a first guess; rows of all folds, since it is no more than that."""
        return _problem(self.source.first(), self.assign, self.n_slices, None)

    def split(self, n_folds: int) -> Iterator[tuple[Problem, Problem]]:
        """Rows outside and inside of every fold, by the same rule as in memory."""
        if are_few(int(self.counts().sum()), self.source.n_classes):
            yield from self._in_memory().split(n_folds)
            return
        table = self._deal(n_folds)
        for f in range(n_folds):
            parts = [replace(self, fold=Fold(table, f, inside)) for inside in (False, True)]
            if all(part.counts().any() for part in parts):
                yield parts[0], parts[1]

    def _in_memory(self) -> TemperatureProblem:
        """All rows at once, where they are few."""
        found = [arrays for _, arrays in self.source.gather(_Everything(self.assign))]
        z, y, guess, ids = (np.concatenate(parts) for parts in zip(*(a[:4] for a in found), strict=True))
        weight = np.concatenate([a[4] for a in found]) if len(found[0]) > 4 else None
        return TemperatureProblem(Rows(z, y, guess, weight), ids, self.n_slices)

    def _deal(self, n_folds: int) -> dict[int, NDArray[np.uint8]]:
        """Fold of every row of every block; needs some 30 bytes a row while it is made, and 1 afterwards."""
        found = self.source.gather(_Keys())
        keys, *content = (np.concatenate(parts) for parts in zip(*(a for _, a in found), strict=True))
        guess, d_true, labels, columns, *weight = content
        rows = RowContent(guess, d_true, labels, weight[0] if weight else None, columns.__getitem__)
        fold = deal_by_keys(keys, rows, n_folds)
        ends = np.cumsum([len(arrays[0]) for _, arrays in found])[:-1]
        by_block = np.split(fold.astype(np.uint8 if n_folds < 256 else np.int64), ends)
        return {number: part for (number, _), part in zip(found, by_block, strict=True)}

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
    """Rows inside of one fold, or all others; `table` has the fold of every row, by block."""

    table: dict[int, NDArray[Any]]
    fold: int
    inside: bool

    def of(self, block: Block) -> IntArray:
        """Places of the fold's rows in a block."""
        return np.flatnonzero((self.table[block.number] == self.fold) == self.inside)


@dataclass(frozen=True)
class _Everything:
    assign: Assign

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        rows = block.rows
        arrays = (rows.z, rows.y, rows.guess, self.assign(rows.guess, block.groups))
        return arrays if rows.given_weight is None else (*arrays, rows.given_weight)


@dataclass(frozen=True)
class _Keys:
    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        rows = block.rows
        arrays = (rows.keys, rows.guess, rows.d_true, rows.y, ordered_keys(rows.z))
        return arrays if rows.given_weight is None else (*arrays, rows.given_weight)


def _problem(block: Block, assign: Assign, n_slices: int, fold: Fold | None) -> TemperatureProblem:
    problem = TemperatureProblem(block.rows, assign(block.rows.guess, block.groups), n_slices)
    return problem if fold is None else problem.take(fold.of(block))


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
