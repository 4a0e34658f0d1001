"""All that :func:`~hetcal.metrics.evaluate` needs as sums over rows, be they in memory or anywhere else."""

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
from hetcal.metrics.reliability import Cells
from hetcal.metrics.smooth import add_residuals, empty_grid, residual_shares
from hetcal.metrics.subcells import SubBins, SubCells, parts

__all__ = ["Totals", "TotalsOfBlock", "totals_of", "totals_of_source"]


_ELEMENTS = 1 << 18  # probabilities looked at together: they stay in the caches
_ROWS = 1 << 18  # reduced side by side before they are added up
_PLACES = 1 << 20  # of the table of a block, about
_COARSEST = 8  # sub-bins of [0, 1] that are left with very many classes


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums over rows; those of parts of the rows add up to those of all.

    Attributes
    ----------
    count, confidence, correct : (K, T) arrays
        Rows, sum of confidences and right predictions by predicted class and sub-bin.
    grid : residuals on the grid of :func:`~hetcal.metrics.smooth_ece`
    scores : (3,) array
        Sums of ``−log p[y]`` over labels of positive probability and of the squared distance to the one-hot
        label, and the number of labels that have probability 0.
    floor : float, or None
        What these count as, where there are any.
    bins : SubBins
    """

    count: Float
    confidence: Float
    correct: Float
    grid: Float
    scores: Float
    bins: SubBins
    floor: float | None = None

    @property
    def nll(self) -> float:
        """Mean negative log-likelihood."""
        total, _, n_zero = self.scores.tolist()
        return float((total - (0 if self.floor is None else n_zero * np.log(self.floor))) / self.n)

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.count.sum())

    def cells(self) -> Cells:
        """Cells per predicted class and bin, (K, M)."""
        return Cells(*(self.bins.merged(a) for a in (self.count, self.confidence, self.correct)))

    def sub_cells(self) -> SubCells:
        """What the floor needs."""
        return SubCells(self.count, self.confidence, self.bins)


def totals_of(p: FloatArray, y: CodeArray, bins: SubBins, guess: CodeArray | None = None) -> Totals:
    """Totals of checked probabilities and labels, in chunks on all cores.

    Parameters
    ----------
    p : (n, K) probabilities
    y : (n,) labels
    bins : SubBins
    guess : (n,) predicted classes, where they are known
    """
    n, k = p.shape
    count, confidence, correct = (np.zeros(k * bins.size) for _ in range(3))
    grid, scores = empty_grid(), np.zeros(3)

    def some(start: int, stop: int) -> _Part:
        return _reduce(p[start:stop], y[start:stop], bins, None if guess is None else guess[start:stop])

    step = max(1, _ELEMENTS // k)
    for first, last in parts(n, max(step, _ROWS // step * step)):
        for part in in_order(some, [(first + a, first + b) for a, b in parts(last - first, step)]):
            np.add.at(count, part.cell, 1.0)
            np.add.at(confidence, part.cell, part.confidence)
            np.add.at(correct, part.cell, part.correct)
            add_residuals(grid, *part.shares)
            scores += part.scores
    tables = [table.reshape(k, bins.size) for table in (count, confidence, correct)]
    floor = probability_floor(p) if scores[2] else None
    return Totals(tables[0], tables[1], tables[2], grid, scores, bins, floor)


def totals_of_source(source: RowSource, n_bins: int) -> Totals:
    """Totals of probabilities that come in blocks; one pass over them.

    A table is kept for every block, so that sub-bins are wider where there are very many classes.
    """
    bins = SubBins(n_bins, max(_COARSEST, min(SubBins.finest, _PLACES // source.n_classes)))
    count, confidence, correct, grid, scores = source.reduce(TotalsOfBlock(bins))
    floor = None
    if scores[2]:  # the floor is that of all rows together
        floor = min(float(found[0]) for _, found in source.gather(_FloorOfBlock()))
    totals = Totals(count, confidence, correct, grid, scores, bins, floor)
    if totals.n == 0:
        raise ValueError("the batches must hold at least one row, got none")
    return totals


@dataclass(frozen=True)
class TotalsOfBlock:
    """Totals of one block, as a statistic that goes to wherever the block is."""

    bins: SubBins

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        """Count, confidence, correct, grid and scores of :class:`Totals`."""
        rows = block.rows
        if rows.given_weight is not None:
            raise ValueError(
                "sample_weight must be left out of the batches for evaluate, which counts every row once, "
                f"got weights in batch {block.number}"
            )
        try:
            p = check_probs(rows.z) if len(rows) else rows.z
        except ValueError as error:
            raise ValueError(f"batch {block.number}: {error}") from error
        found = totals_of(p, rows.y, self.bins, rows.guess)
        return found.count, found.confidence, found.correct, found.grid, found.scores


@dataclass(frozen=True)
class _FloorOfBlock:
    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        return (np.array(probability_floor(block.rows.z)),)


@dataclass(frozen=True, eq=False)
class _Part:
    """Some rows, reduced to what is added up."""

    cell: IntArray
    confidence: Float
    correct: Float
    shares: tuple[IntArray, Float, Float]
    scores: Float


def _reduce(p: FloatArray, y: CodeArray, bins: SubBins, guess: CodeArray | None) -> _Part:
    flat, at = np.ascontiguousarray(p).reshape(-1), np.arange(len(p)) * p.shape[1]
    labels = y.astype(np.int64, copy=False)
    if guess is None:
        confidence, predicted = top_label(p)
    else:
        predicted = guess.astype(np.int64)
        confidence = np.minimum(flat.take(at + predicted), 1)
    at_label = flat.take(at + labels)
    n_zero = np.count_nonzero(at_label == 0)
    log_score = -np.log(at_label[at_label > 0] if n_zero else at_label, dtype=np.float64).sum()
    true = at_label.astype(np.float64)
    # (1 − p)² − p² instead of 1 − 2p keeps what a nearly perfect prediction leaves.
    square_score = np.square(flat, dtype=np.float64).sum() + ((1 - true) ** 2 - true**2).sum()
    correct, wide = predicted == labels, confidence.astype(np.float64)
    return _Part(
        cell=predicted * bins.size + bins.index(confidence),
        confidence=wide,
        correct=correct.astype(np.float64),
        shares=residual_shares(wide, correct),
        scores=np.array([log_score, square_score, n_zero]),
    )
