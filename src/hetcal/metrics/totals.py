"""Sums over rows from which :func:`~hetcal.metrics.evaluate` can compute its result.

The sums over disjoint sets of rows can be added. They are computed chunk by chunk for arrays in memory, and
block by block for rows that are read in batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._numeric.blocks import Block, RowSource
from hetcal._numeric.probabilities import probability_floor, top_label
from hetcal._numeric.threads import in_order
from hetcal._typing import CodeArray, Float, FloatArray, IntArray
from hetcal._validate import check_probs
from hetcal.metrics.binning import Cells, FineBins, FineCells, chunk_ranges
from hetcal.metrics.scores import add_residuals, residual_grid, split_residuals, sum_brier

__all__ = ["BlockTotals", "Totals", "fine_bins_of", "totals_of", "totals_of_source"]

_CHUNK_ELEMENTS = 1 << 18  # probabilities processed at a time: few enough to fit into the caches
_GROUP_ROWS = 1 << 18  # rows whose results are in memory at once, before they are added up
_TABLE_SIZE = 1 << 20  # if a (K, T) table would have more entries than about this, wider fine bins are used
_MIN_RESOLUTION = 8  # minimum of `FineBins.resolution`, even with very many classes


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums over rows.

    Attributes
    ----------
    count, confidence, correct : (K, T) arrays
        Number of rows, sum of confidences and number of correct predictions per predicted class and fine bin.
    grid : (G,) array
        Sums of the residuals, confidence minus correctness, in the cells of the grid that is used to compute
        :func:`~hetcal.metrics.smooth_ece`.
    scores : (3,) array
        Sum of ``−log p[y]`` over the labels with positive probability, sum of the squared distances to the
        one-hot labels, and number of labels with probability 0.
    bins : FineBins
        The T fine bins, which subdivide the M confidence bins.
    floor : float or None
        Probability that replaces 0 in the log-likelihood; None if no label has probability 0.
    """

    count: Float
    confidence: Float
    correct: Float
    grid: Float
    scores: Float
    bins: FineBins
    floor: float | None = None

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.count.sum())

    @property
    def nll(self) -> float:
        """Mean negative log-likelihood."""
        total, _, n_zero = self.scores.tolist()
        return float((total - (0 if self.floor is None else n_zero * np.log(self.floor))) / self.n)

    @property
    def brier(self) -> float:
        """Mean squared distance to the one-hot labels."""
        return max(0.0, float(self.scores[1]) / self.n)

    @property
    def n_zero(self) -> int:
        """Number of labels with probability 0."""
        return int(self.scores[2])

    def cells(self) -> Cells:
        """Cells per predicted class and bin, (K, M)."""
        return Cells(*(self.bins.merged(a) for a in (self.count, self.confidence, self.correct)))

    def fine_cells(self) -> FineCells:
        """Cells per predicted class and fine bin, for the noise floor."""
        return FineCells(self.count, self.confidence, self.bins)


@dataclass(frozen=True)
class BlockTotals:
    """Callable that computes the totals of one block.

    It is a class instead of a closure, because a row source may pickle it to run it on another machine.
    """

    bins: FineBins

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        """Return `count`, `confidence`, `correct`, `grid` and `scores` of :class:`Totals`."""
        rows = block.rows
        if rows.given_weight is not None:
            raise ValueError(
                f"sample_weight must be left out for evaluation, got weights in batch {block.number}; "
                "create the batches without weights, because every row counts once"
            )
        try:
            p = check_probs(rows.z) if len(rows) else rows.z
        except ValueError as error:
            raise ValueError(f"batch {block.number}: {error}") from error
        totals = totals_of(p, rows.y, self.bins, rows.guess)
        return totals.count, totals.confidence, totals.correct, totals.grid, totals.scores


def totals_of(p: FloatArray, y: CodeArray, bins: FineBins, guess: CodeArray | None = None) -> Totals:
    """Compute the totals of validated probabilities and labels, in parallel chunks of rows.

    Parameters
    ----------
    p : (n, K) probabilities
    y : (n,) labels
    bins : FineBins
    guess : (n,) predicted classes, if they are already known
    """
    n, k = p.shape
    count, confidence, correct = (np.zeros(k * bins.size) for _ in range(3))
    grid, scores = residual_grid(), np.zeros(3)

    def reduce_rows(start: int, stop: int) -> _Chunk:
        return _reduce(p[start:stop], y[start:stop], bins, None if guess is None else guess[start:stop])

    step = max(1, _CHUNK_ELEMENTS // k)
    for first, last in chunk_ranges(n, max(step, _GROUP_ROWS // step * step)):
        ranges = [(first + a, first + b) for a, b in chunk_ranges(last - first, step)]
        for chunk in in_order(reduce_rows, ranges):
            np.add.at(count, chunk.cell, 1.0)
            np.add.at(confidence, chunk.cell, chunk.confidence)
            np.add.at(correct, chunk.cell, chunk.correct)
            add_residuals(grid, *chunk.residuals)
            scores += chunk.scores
    tables = [table.reshape(k, bins.size) for table in (count, confidence, correct)]
    floor = probability_floor(p) if scores[2] else None
    return Totals(tables[0], tables[1], tables[2], grid, scores, bins, floor)


def fine_bins_of(n_classes: int, n_bins: int) -> FineBins:
    """Fine bins for tables with one row per class.

    With many classes, the fine bins are wider, which limits the size of the tables.
    """
    return FineBins(n_bins, max(_MIN_RESOLUTION, min(FineBins.resolution, _TABLE_SIZE // n_classes)))


def totals_of_source(source: RowSource, n_bins: int) -> Totals:
    """Compute the totals of a source of probabilities, in one pass, or two if a label has probability 0.

    Every block has its own tables, with an entry per class and fine bin. `fine_bins_of` limits their size.
    """
    bins = fine_bins_of(source.n_classes, n_bins)
    count, confidence, correct, grid, scores = source.reduce(BlockTotals(bins))
    floor = None
    if scores[2]:  # the replacement for zeros depends on all rows
        floor = min(float(value[0]) for _, value in source.gather(_BlockFloor()))
    totals = Totals(count, confidence, correct, grid, scores, bins, floor)
    if totals.n == 0:
        raise ValueError("the batches must contain at least one row, got none; check their source")
    return totals


@dataclass(frozen=True)
class _BlockFloor:
    """Function that computes the replacement for zeros from the probabilities of one block."""

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        return (np.array(probability_floor(block.rows.z)),)


@dataclass(frozen=True, eq=False)
class _Chunk:
    """Contribution of a chunk of rows to :class:`Totals`."""

    cell: IntArray
    confidence: Float
    correct: Float
    residuals: tuple[IntArray, Float, Float]
    scores: Float


def _reduce(p: FloatArray, y: CodeArray, bins: FineBins, guess: CodeArray | None) -> _Chunk:
    flat, row_start = np.ascontiguousarray(p).reshape(-1), np.arange(len(p)) * p.shape[1]
    labels = y.astype(np.int64, copy=False)
    if guess is None:
        confidence, predicted = top_label(p)
    else:
        predicted = guess.astype(np.int64)
        confidence = np.minimum(flat.take(row_start + predicted), 1)
    p_label = flat.take(row_start + labels)
    n_zero = np.count_nonzero(p_label == 0)
    log_score = -np.log(p_label[p_label > 0] if n_zero else p_label, dtype=np.float64).sum()
    square_score = sum_brier(flat, row_start + labels)
    correct, confidence64 = predicted == labels, confidence.astype(np.float64)
    return _Chunk(
        cell=predicted * bins.size + bins.index(confidence),
        confidence=confidence64,
        correct=correct.astype(np.float64),
        residuals=split_residuals(confidence64, correct),
        scores=np.array([log_score, square_score, n_zero]),
    )
