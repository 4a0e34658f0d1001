"""Rows that are read in blocks, for example from disk or from several machines.

Most steps of a fit need only small arrays that are summed over the blocks. A function that computes such
arrays from one block is called a statistic. A :class:`RowSource` reads the blocks, possibly on other
machines, applies a statistic to each block, and sums or collects the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hetcal._numeric.families import Family, vector_gradient
from hetcal._numeric.folds import (
    RowContent,
    are_few,
    deal_by_keys,
    deal_folds,
    draw_folds,
    is_among,
    repeated_keys,
)
from hetcal._numeric.hashing import Keys, ordered_keys
from hetcal._numeric.passes import count_slices, gap_sums
from hetcal._numeric.rows import Rows
from hetcal._numeric.scalar_solver import Derivatives
from hetcal._numeric.source import (
    Assign,
    HeldoutLoss,
    LogitsFunction,
    MemorySource,
    NotInMemory,
    RowStatistic,
    Source,
    drop_unassigned,
)
from hetcal._numeric.trust_region import EvaluateVector
from hetcal._typing import BoolArray, CodeArray, Float, IntArray

__all__ = [
    "Block",
    "BlockSource",
    "RowSource",
    "ScaledWeights",
    "Statistic",
    "is_source",
    "with_normalised_weights",
]

_KEYS_PER_PASS = 1 << 24  # row hashes compared at once: 128 MiB, and about 256 MiB for temporary arrays


@dataclass(frozen=True, eq=False)
class Block:
    """A block of the rows of a source.

    Attributes
    ----------
    rows : Rows, all of which have positive weights
    groups : (n,) group of every row, or None
    number : position of the block in its source
    """

    rows: Rows
    groups: NDArray[Any] | None = None
    number: int = 0


# Function that computes arrays from one block, for `RowSource.reduce` or `gather`; it must be picklable
Statistic = Callable[[Block], tuple[NDArray[Any], ...]]


class RowSource(Protocol):
    """Blocks of logits and labels that can be read as often as a fit needs."""

    @property
    def n_classes(self) -> int:
        """Number of columns K."""

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes in the order of the columns, or None if the columns have no names."""

    def reduce(self, statistic: Statistic) -> tuple[NDArray[Any], ...]:
        """Return the arrays of a statistic, summed over all blocks in a fixed order."""

    def gather(self, statistic: Statistic) -> list[tuple[int, tuple[NDArray[Any], ...]]]:
        """Return ``(block.number, statistic(block))`` for every block with rows of positive weight.

        The results are in the order of the blocks.
        """

    def first(self) -> Block:
        """Return the first block with rows of positive weight, or a sample of it, for initial values."""

    def group_names(self) -> NDArray[Any] | None:
        """Sorted names of the groups, or None if the rows have no groups."""

    def transform(self, function: LogitsFunction) -> RowSource:
        """Return a source of the same rows with the logits ``function(logits, groups)``.

        The function is called whenever a block is read.
        """


def is_source(rows: Any) -> bool:
    """Whether the type of `rows` has the methods of a `RowSource` and the attribute `n_classes`.

    The object itself is not inspected, since reading one of its properties may read data.
    """
    members = ("n_classes", "reduce", "gather", "first", "group_names", "transform")
    return all(hasattr(type(rows), member) for member in members)


@dataclass(frozen=True, eq=False)
class ScaledWeights:
    """A source with the rows of `source`, whose weights, if any, are multiplied by `factor`."""

    source: RowSource
    factor: float

    @property
    def n_classes(self) -> int:
        """Number of columns K."""
        return self.source.n_classes

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes, or None if the columns have no names."""
        return self.source.class_names

    def reduce(self, statistic: Statistic) -> tuple[NDArray[Any], ...]:
        """Return the arrays of a statistic, summed over all blocks with scaled weights."""
        return self.source.reduce(_ScaledStatistic(statistic, self.factor))

    def gather(self, statistic: Statistic) -> list[tuple[int, tuple[NDArray[Any], ...]]]:
        """Return the numbers and statistics of the blocks, with scaled weights; see `RowSource.gather`."""
        return self.source.gather(_ScaledStatistic(statistic, self.factor))

    def first(self) -> Block:
        """Return the result of `source.first()` with its weights scaled; see `RowSource.first`."""
        return _scale(self.source.first(), self.factor)

    def group_names(self) -> NDArray[Any] | None:
        """Sorted names of the groups, or None if the rows have no groups."""
        return self.source.group_names()

    def transform(self, function: LogitsFunction) -> RowSource:
        """Return a source of the same rows with the logits ``function(logits, groups)``."""
        return ScaledWeights(self.source.transform(function), self.factor)


def with_normalised_weights(source: RowSource) -> RowSource:
    """Scale the weights of a source to sum to the effective sample size ``(Σw)² / Σw²``.

    A source without weights is returned unchanged.
    """
    weight = source.first().rows.given_weight
    if weight is None:
        return source
    unit = float(weight.max())  # dividing the weights by it keeps their squares from underflow and overflow
    total, squares = source.reduce(_WeightSums(unit))
    return ScaledWeights(source, float(total / squares) / unit)


@dataclass(frozen=True)
class _WeightSums:
    unit: float

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        w = block.rows.weight / self.unit
        return np.array(w.sum()), np.array(w @ w)


@dataclass(frozen=True)
class _ScaledStatistic:
    """A statistic of blocks whose weights are first multiplied by a factor."""

    statistic: Statistic
    factor: float

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        return self.statistic(_scale(block, self.factor))


def _scale(block: Block, factor: float) -> Block:
    weight = block.rows.given_weight
    rows = block.rows if weight is None else replace(block.rows, given_weight=factor * weight)
    return replace(block, rows=rows)


@dataclass(frozen=True, eq=False)
class BlockSource:
    """Rows that are read in blocks, and divided into slices, which are disjoint sets of rows.

    By default, each slice contains the rows of one predicted class.

    Attributes
    ----------
    source : RowSource that reads the blocks
    assign : function that returns the slice of every row; if None, it is the predicted class
    slice_count : number of slices; if None, it is the number of classes
    fold : which rows to use; if None, all of them
    """

    source: RowSource
    assign: Assign | None = None
    slice_count: int | None = None
    fold: Fold | None = None

    prefers_few_passes = True
    has_hessians = True
    label_model = None

    def __len__(self) -> int:
        return int(self.counts().sum())

    @property
    def n_classes(self) -> int:
        """Number of columns K."""
        return int(self.source.n_classes)

    @property
    def n_slices(self) -> int:
        """Number of slices S."""
        return self.n_classes if self.slice_count is None else self.slice_count

    def group_names(self) -> NDArray[Any] | None:
        """Sorted names of the rows' groups, or None if the rows have no groups."""
        return None if self.source.first().groups is None else self.source.group_names()

    def slice_by(self, assign: Assign, n_slices: int) -> BlockSource:
        """Return the same rows, divided into slices by `assign`."""
        return BlockSource(self.source, assign, n_slices, self.fold)

    def transform(self, function: LogitsFunction) -> BlockSource:
        """Return the same rows with the logits ``function(logits, groups)``; see `Source.transform`."""
        return BlockSource(self.source.transform(function), fold=self.fold)

    def in_memory(self, purpose: str) -> MemorySource:
        """Raise `NotInMemory`, since the rows are read in blocks."""
        raise NotInMemory(
            f"logits must be an array in memory for {purpose}, got rows that are read in batches; "
            "fit on an array of sampled rows"
        )

    def counts(self) -> IntArray:
        """Number of rows in every slice, (S,)."""
        return self._description[0]

    def class_counts(self) -> IntArray:
        """Number of rows predicted as each class, (K,)."""
        return self.source.reduce(_ClassCounts(self._selection, self.n_classes))[0]

    def weights(self) -> tuple[float, float]:
        """Sum of the rows' weights, and the smallest weight.

        The latter is 1 if the rows have no weights. Otherwise it is not computed, and 0 stands for unknown.
        """
        total, weighted = self._weights
        return float(total), 0.0 if weighted else 1.0

    def slice_weights(self) -> Float:
        """Sum of the weights in every slice, (S,)."""
        return self._description[3]

    def gap_sums(self) -> tuple[Float, Float]:
        """Sums of the weights, and of weight · (confidence − correctness), by predicted class, (K,) each."""
        weight, gap = self.source.reduce(_GapSums(self._selection))
        return weight, gap

    def is_separable(self) -> BoolArray:
        """Whether each slice is separable, (S,); see `Source.is_separable`."""
        return np.asarray(~self.has_finite_optimum() & (self._description[2] > 0))

    def has_finite_optimum(self) -> BoolArray:
        """Whether each slice has a row whose label does not have the largest logit, (S,); see `Source`."""
        return np.asarray(self._description[1] > 0)

    def count_repeats(self, alpha: float) -> int:  # noqa: ARG002
        """Return 0, which means unknown: copies of rows are not searched for in blocks."""
        return 0

    def evaluate(self, alpha: Float, active: IntArray) -> Derivatives:
        """First three derivatives of the NLL of each slice in `active`.

        They are derivatives with respect to the inverse temperature of the slice. They are evaluated at
        `alpha` (S,), which contains an inverse temperature for every slice. Every call reads all blocks.
        """
        first, second, third = self.source.reduce(_Slopes(self._selection, alpha, active))
        return first[active], second[active], third[active]

    def heldout_loss(self, alphas: Float) -> HeldoutLoss:
        """NLL summed over the rows, for each of G choices of the inverse temperatures, `alphas` (G, S)."""
        loss, product, n, weight = self.source.reduce(_HeldoutSums(self._selection, alphas))
        return HeldoutLoss(loss, product, float(n), float(weight))

    def sum_rows(self, statistic: RowStatistic) -> tuple[NDArray[Any], ...]:
        """Read all blocks and sum `statistic` over them; rows that belong to no slice are left out."""
        return self.source.reduce(_RowSums(self._selection, statistic))

    def vector_gradient(self, theta: Float) -> tuple[float, Float]:
        """Summed NLL of ``softmax(scale ⊙ z + bias)`` and its gradient (2K,) in θ = (scale, bias)."""
        loss, gradient = self.source.reduce(_VectorGradient(self._selection, theta))
        return float(loss), gradient

    def family_evaluator(self, family: Family, family_slice: IntArray) -> EvaluateVector:
        """Return a function that computes the loss, gradient and Hessian of `family` by slice.

        Every call of that function reads all blocks. See `Source.family_evaluator`.
        """

        def evaluate(theta: Float, active: IntArray) -> tuple[Float, Float, Float]:
            sums = self.source.reduce(_FamilySums(self._selection, family, family_slice, theta, active))
            return sums[0], sums[1], sums[2]

        return evaluate

    def sample(self) -> MemorySource | None:
        """Return the rows of `source.first()` for an initial guess, including those outside the fold."""
        return replace(self._selection, fold=None).apply(self.source.first())

    def sample_rows(self, n_rows: int) -> Rows:  # noqa: ARG002
        """Return the rows of `source.first()` that are in the fold, whatever `n_rows` is."""
        return self._selection.rows(self.source.first())

    def draw_sample(self, n_parts: int, *, salt: int) -> MemorySource:
        """Return about one in `n_parts` rows, or all rows if `n_parts` is 1; see `Source.draw_sample`."""
        self._refuse_fold()
        if n_parts == 1 or are_few(len(self), self.n_classes):
            return self._gather(self._selection).draw_sample(n_parts, salt=salt)
        positions = self._sample_positions(n_parts, salt)
        return self._gather(replace(self._selection, fold=positions))

    def split(self, n_folds: int) -> Iterator[tuple[Source, Source]]:
        """Yield the training and test rows of every fold, unless one of the two is empty."""
        self._refuse_fold()
        if are_few(len(self), self.n_classes):  # the rows fit in memory, where every pass is faster
            rows, ids = self.gathered()
            yield from MemorySource(rows, ids=ids, n_slices=self.n_slices).split(n_folds)
            return
        table = self._folds_by_block(n_folds)
        for f in range(n_folds):
            train, test = (replace(self, fold=Fold(table, f, inside)) for inside in (False, True))
            if train.counts().any() and test.counts().any():
                yield train, test

    def gathered(self) -> tuple[Rows, CodeArray]:
        """Read all rows into memory and return them with their slices; only for few rows."""
        return self._gather(self._selection).gathered()

    def _gather(self, selection: _Selection) -> MemorySource:
        """Read the selected rows of all blocks into memory."""
        blocks = [arrays for _, arrays in self.source.gather(_AllArrays(selection))]
        z, y, guess, ids, weight, groups = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        rows = Rows(z, y, guess, weight if len(weight) else None)
        return MemorySource(rows, groups if len(groups) else None, ids=ids, n_slices=self.n_slices)

    def _sample_positions(self, n_parts: int, salt: int) -> Positions:
        """For every block, the positions of its rows that are in fold 0 if there are `n_parts` folds.

        The key of a row is a hash of its logits. If no other row has this key, `draw_folds` alone determines
        the fold of the row. To save memory, only the rows that `draw_folds` assigns to fold 0 and those whose
        keys occur several times are examined further.
        """
        n_passes = -(-len(self) // _KEYS_PER_PASS)
        repeated = [self._repeated_keys(number, n_passes) for number in range(n_passes)]
        tied = np.sort(np.concatenate(repeated))
        blocks = self.source.gather(_SampleColumns(tied, n_parts, salt))
        position, *columns = (np.concatenate(parts) for parts in zip(*(a for _, a in blocks), strict=True))
        rows = _BlockFoldRows(self, columns)
        is_drawn = deal_by_keys(rows.row_keys(), rows.row_content(), n_parts, salt) == 0
        ends = np.cumsum([len(arrays[0]) for _, arrays in blocks])[:-1]
        by_block = zip(np.split(position, ends), np.split(is_drawn, ends), strict=True)
        return Positions(
            {number: part[drawn] for (number, _), (part, drawn) in zip(blocks, by_block, strict=True)}
        )

    def _repeated_keys(self, number: int, n_passes: int) -> Keys:
        """Keys that occur in several rows, among the keys with ``key % n_passes == number``."""
        blocks = self.source.gather(_Keys(number, n_passes))
        return repeated_keys(np.concatenate([keys for _, (keys,) in blocks]))

    def _refuse_fold(self) -> None:
        if self.fold is not None:
            raise NotImplementedError(
                "fold must be None to split or sample rows, got a Fold; use the source of all rows"
            )

    def _folds_by_block(self, n_folds: int) -> dict[int, NDArray[Any]]:
        """Fold of every row, as a dictionary from block numbers to arrays.

        The result takes 1 byte per row (8 bytes if there are more than 255 folds). Computing it takes about
        80 bytes per row.
        """
        blocks = self.source.gather(_FoldColumns())
        columns = [np.concatenate(parts) for parts in zip(*(arrays for _, arrays in blocks), strict=True)]
        fold = deal_folds(_BlockFoldRows(self, columns), n_folds)
        ends = np.cumsum([len(arrays[0]) for _, arrays in blocks])[:-1]
        by_block = np.split(fold.astype(np.uint8 if n_folds < 256 else np.int64), ends)
        return {number: part for (number, _), part in zip(blocks, by_block, strict=True)}

    @property
    def _selection(self) -> _Selection:
        return _Selection(self.assign, self.n_slices, self.fold)

    @cached_property
    def _weights(self) -> tuple[NDArray[Any], ...]:
        return self.source.reduce(_Weights(self._selection))

    @cached_property
    def _description(self) -> tuple[NDArray[Any], ...]:
        return self.source.reduce(_Description(self._selection))


class _BlockFoldRows:
    """Rows in blocks, as an input of `deal_folds`.

    `columns` are the results of `_fold_columns`, concatenated over the blocks.
    """

    fold_groups: IntArray | None = None

    def __init__(self, source: BlockSource, columns: list[NDArray[Any]]) -> None:
        self.n_classes, self.n_slices, self.gathered = source.n_classes, source.n_slices, source.gathered
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def row_keys(self) -> Keys:
        return self.columns[0]

    def row_content(self) -> RowContent:
        _, guess, d_true, labels, ordered, *weight = self.columns
        return RowContent(guess, d_true, labels, weight[0] if weight else None, ordered.__getitem__)


@dataclass(frozen=True)
class Fold:
    """The rows of one fold, or all rows outside it.

    Attributes
    ----------
    table : for every block number, an array with the fold of every row of the block
    fold : number of the fold
    inside : True selects the rows of the fold, False all other rows
    """

    table: dict[int, NDArray[Any]]
    fold: int
    inside: bool

    def positions(self, block: Block) -> IntArray:
        """Positions of the selected rows in a block."""
        return np.flatnonzero((self.table[block.number] == self.fold) == self.inside)


@dataclass(frozen=True)
class Positions:
    """Selected rows: `table` maps the number of each block to the positions of its selected rows."""

    table: dict[int, IntArray]

    def positions(self, block: Block) -> IntArray:
        """Positions of the selected rows in a block."""
        return self.table[block.number]


# -- Statistics. They are sent to the machines that read the blocks, so they must not contain the source. --


@dataclass(frozen=True)
class _Selection:
    """Selects the rows of `fold`, or all rows if it is None, from a block, and assigns them to slices."""

    assign: Assign | None
    n_slices: int
    fold: Fold | Positions | None

    def rows(self, block: Block) -> Rows:
        return block.rows if self.fold is None else block.rows.take(self.fold.positions(block))

    def apply(self, block: Block) -> MemorySource:
        groups = block.groups
        ids = block.rows.guess if self.assign is None else self.assign(block.rows.guess, groups)
        if self.fold is not None:
            positions = self.fold.positions(block)
            ids, groups = ids[positions], None if groups is None else groups[positions]
        return MemorySource(self.rows(block), groups, ids=ids, n_slices=self.n_slices)


@dataclass(frozen=True)
class _AllArrays:
    """Logits, labels, predicted classes, slices, weights and groups of the selected rows of a block.

    If the rows have no weights or no groups, the corresponding array is empty.
    """

    selection: _Selection

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        source = self.selection.apply(block)
        rows = source.rows
        weight = np.empty(0) if rows.given_weight is None else rows.given_weight
        groups = np.empty(0, np.int64) if source.groups is None else source.groups
        return rows.z, rows.y, rows.guess, source.ids, weight, groups


@dataclass(frozen=True)
class _FoldColumns:
    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        return _fold_columns(block.rows, block.rows.keys)


def _fold_columns(rows: Rows, keys: Keys) -> tuple[NDArray[Any], ...]:
    arrays = (keys, rows.guess, rows.d_true, rows.y, ordered_keys(rows.z))
    return arrays if rows.given_weight is None else (*arrays, rows.given_weight)


@dataclass(frozen=True)
class _Keys:
    """Row keys that are compared in pass `number`: those with ``key % n_passes == number``."""

    number: int
    n_passes: int

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        keys = block.rows.keys
        return (keys[keys % np.uint64(self.n_passes) == self.number],)


@dataclass(frozen=True)
class _SampleColumns:
    """Positions and `_fold_columns` of the rows that may be in fold 0.

    They are the rows that `draw_folds` assigns to fold 0, and those whose key is in `tied`. This array
    contains the keys that several rows share, in increasing order.
    """

    tied: Keys
    n_parts: int
    salt: int

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        keys = block.rows.keys
        is_candidate = (draw_folds(keys, self.n_parts, self.salt) == 0) | is_among(keys, self.tied)
        positions = np.flatnonzero(is_candidate)
        return positions, *_fold_columns(block.rows.take(positions), keys[positions])


@dataclass(frozen=True)
class _Slopes:
    selection: _Selection
    alpha: Float
    active: IntArray

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        sums = np.zeros((3, self.selection.n_slices))
        sums[:, self.active] = self.selection.apply(block).evaluate(self.alpha, self.active)
        return tuple(sums)


@dataclass(frozen=True)
class _FamilySums:
    selection: _Selection
    family: Family
    family_slice: IntArray
    theta: Float
    active: IntArray

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        source = self.selection.apply(block)
        rows, ids = drop_unassigned(source.rows, self.family_slice[source.ids])
        return self.family.evaluator(rows, ids, int(self.family_slice.max()) + 1)(self.theta, self.active)


@dataclass(frozen=True)
class _RowSums:
    selection: _Selection
    statistic: RowStatistic

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        return self.selection.apply(block).sum_rows(self.statistic)


@dataclass(frozen=True)
class _VectorGradient:
    selection: _Selection
    theta: Float

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        loss, gradient = vector_gradient(self.selection.rows(block), self.theta)
        return np.array(loss), gradient


@dataclass(frozen=True)
class _GapSums:
    selection: _Selection

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        return gap_sums(self.selection.rows(block))


@dataclass(frozen=True)
class _ClassCounts:
    selection: _Selection
    n_classes: int

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        return (count_slices(self.selection.rows(block).guess, self.n_classes),)


@dataclass(frozen=True)
class _Weights:
    selection: _Selection

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        rows = self.selection.rows(block)
        return np.array(rows.total_weight), np.array(int(rows.given_weight is not None))


@dataclass(frozen=True)
class _Description:
    """Number of rows, `has_finite_optimum`, `is_separable` and total weight of every slice, (S,) each.

    The second and third arrays contain 0 for False and 1 for True.
    """

    selection: _Selection

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        source = self.selection.apply(block)
        finite, separable = source.has_finite_optimum(), source.is_separable()
        return source.counts(), finite.astype(np.int64), separable.astype(np.int64), source.slice_weights()


@dataclass(frozen=True)
class _HeldoutSums:
    selection: _Selection
    alphas: Float

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        sums = self.selection.apply(block).heldout_loss(self.alphas)
        return sums.loss, sums.product, np.array(sums.n), np.array(sums.weight)
