"""Bins of :mod:`~hetcal.metrics.reliability` cut finer, so that a count and a mean stand for many rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._typing import FloatArray, IntArray
from hetcal.metrics.reliability import TopLabel, width_edges

__all__ = ["SubBins", "SubCells", "parts", "sub_cells"]

_FINEST = 64  # sub-bins of [0, 1], the edges of the bins aside
_GRID = 1 << 13  # places of the table that sub-bins are looked up in
_MOST_STEPS = 4  # edges from one place to the next that are still quicker passed one by one than searched
_ROWS = 1 << 16  # looked at together


@dataclass(frozen=True)
class SubBins:
    """Bins of equal width, each cut into sub-bins of about equal length in ``θ = arcsin √p``.

    For confidences between ``sin²θ`` and ``sin²(θ + δ)`` the sum of independent ``Bernoulli(p_i)`` and a
    binomial with their mean have the same mean; the binomial's variance is too large by at most
    ``sin²δ``, which is 0.06 % for 64 sub-bins, wherever in [0, 1] they lie.

    Attributes
    ----------
    n_bins : M
    finest : how many sub-bins [0, 1] has, about; 1 leaves the bins as they are
    """

    n_bins: int
    finest: int = _FINEST

    @cached_property
    def pieces(self) -> IntArray:
        """Sub-bins in every bin, (M,)."""
        return np.maximum(1, np.ceil(np.diff(self._angles) * self.finest - 1e-9)).astype(np.int64)

    @cached_property
    def first(self) -> IntArray:
        """First sub-bin of every bin, (M,)."""
        return np.asarray(np.cumsum(self.pieces) - self.pieces)

    @property
    def size(self) -> int:
        """Number of sub-bins T."""
        return int(self.pieces.sum())

    def edges(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Edges (T + 1,), among them those of the bins as :func:`~reliability.bin_index` rounds them."""
        cut = np.repeat(self._angles[:-1], self.pieces)
        step = np.repeat(np.diff(self._angles) / self.pieces, self.pieces)
        cut += step * (np.arange(self.size) - np.repeat(self.first, self.pieces))
        edges = np.append(np.sin(cut * (np.pi / 2)) ** 2, 1).astype(dtype)
        edges[self.first] = width_edges(self.n_bins, dtype)[:-1]
        return edges

    def index(self, confidence: FloatArray) -> IntArray:
        """Sub-bin ``(edges[t], edges[t + 1]]`` of every confidence in [0, 1], 0 in the first."""
        table, upper, n_steps = self._lookup(confidence.dtype)
        if n_steps > _MOST_STEPS:
            return np.searchsorted(upper[:-1], confidence, side="left")
        at = table[(confidence * confidence.dtype.type(_GRID)).astype(np.int64)]
        for _ in range(n_steps):
            at += confidence > upper[at]
        return at

    def merged(self, table: NDArray[Any]) -> NDArray[Any]:
        """Sums over the sub-bins of every bin: the last axis from T to M."""
        return np.asarray(np.add.reduceat(table, self.first, axis=-1))

    @cached_property
    def _angles(self) -> NDArray[np.float64]:
        # as parts of a right angle
        return np.asarray(np.arcsin(np.sqrt(width_edges(self.n_bins, np.dtype(np.float64)))) / (np.pi / 2))

    @cached_property
    def _tables(self) -> dict[np.dtype[Any], tuple[IntArray, NDArray[Any], int]]:
        return {}

    def _lookup(self, dtype: np.dtype[Any]) -> tuple[IntArray, NDArray[Any], int]:
        """Sub-bin of every multiple of 1/_GRID, upper edges, and most edges from one multiple to the next."""
        if dtype not in self._tables:
            inner = self.edges(dtype)[1:-1]
            table = np.searchsorted(inner, np.arange(_GRID + 1, dtype=dtype) / dtype.type(_GRID), side="left")
            n_steps = int(np.diff(table, append=len(inner)).max())
            self._tables[dtype] = table, np.append(inner, dtype.type(np.inf)), n_steps
        return self._tables[dtype]


@dataclass(frozen=True, eq=False)
class SubCells:
    """Rows by predicted class and sub-bin: all that a floor needs of them.

    Attributes
    ----------
    count, confidence : (K, T) float64 arrays
        Rows, and sum of their confidences.
    bins : SubBins
    """

    count: NDArray[np.float64]
    confidence: NDArray[np.float64]
    bins: SubBins


def sub_cells(top: TopLabel, bins: SubBins) -> SubCells:
    """Rows of a reduced prediction by class and sub-bin."""
    count, total = (np.zeros((top.n_classes, bins.size)) for _ in range(2))
    for start, stop in parts(len(top.confidence), _ROWS):
        confidence = top.confidence[start:stop]
        cell = top.predicted[start:stop] * bins.size + bins.index(confidence)
        np.add.at(count.reshape(-1), cell, 1.0)
        np.add.at(total.reshape(-1), cell, confidence.astype(np.float64))
    return SubCells(count, total, bins)


def parts(n: int, step: int) -> Iterator[tuple[int, int]]:
    """Split 0..n-1 into ranges of at most `step`."""
    return ((start, min(start + step, n)) for start in range(0, n, step))
