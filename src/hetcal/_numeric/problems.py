"""Rows dealt into slices, and what fits of temperatures ask of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hetcal._numeric.acceleration import LARGE, compiled_for
from hetcal._numeric.folds import deal_rows
from hetcal._numeric.passes import count_slices, flat_rows, slope_pass, sum_slices, tempered_nll
from hetcal._numeric.rows import Rows, code_type
from hetcal._numeric.scalar_solver import Derivatives
from hetcal._numeric.threads import with_one_blas_thread
from hetcal._typing import CodeArray, Float, IntArray

__all__ = ["Heldout", "Problem", "TemperatureProblem", "folds_of"]


_SAMPLE = 1 << 15  # elements of the rows that give the first guess, where there are many more
_FEW = 256  # rows that it needs at least
_SCORED = 1 << 16  # rows whose losses are held together


@dataclass(frozen=True)
class Heldout:
    """NLL of rows under several choices, as sums that can be added up.

    Attributes
    ----------
    loss : (G,) Σ w · NLL
    product : (G, G) Σ w² · NLL_g · NLL_h, for the errors of differences
    n, weight : number of rows and the sum of their weights
    """

    loss: Float
    product: Float
    n: float
    weight: float

    def __add__(self, other: Heldout) -> Heldout:
        return Heldout(
            self.loss + other.loss, self.product + other.product, self.n + other.n, self.weight + other.weight
        )

    def means(self) -> Float:
        """Weighted mean of every choice, (G,)."""
        return self.loss / self.weight

    def errors(self, chosen: int) -> Float:
        """Standard error of each mean's difference to the chosen one's, rows being paired, (G,)."""
        m = self.product
        square = np.maximum(np.diag(m) - 2 * m[:, chosen] + m[chosen, chosen], 0)
        spread = square - (self.loss - self.loss[chosen]) ** 2 / self.n
        return np.asarray(np.sqrt(np.maximum(spread, 0)) / self.weight)


class Problem(Protocol):
    """Rows dealt into slices, wherever the rows may be: in memory, on a device, on disk, on a cluster."""

    @property
    def n_slices(self) -> int:
        """Number of slices S."""

    def evaluate(self, alpha: Float, active: IntArray) -> Derivatives:
        """Derivatives of the losses of the slices `active`; one pass over their rows."""

    def counts(self) -> IntArray:
        """Rows in every slice."""

    def class_counts(self, n_classes: int) -> IntArray:
        """Rows predicted as each class."""

    def weights(self) -> tuple[float, float]:
        """Sum of the rows' weights, and the least of them (0 where it is not known)."""

    def slice_weights(self) -> Float:
        """Sum of the weights in every slice."""

    def endless(self) -> NDArray[np.bool_]:
        """Slices whose loss falls for ever as α grows."""

    def held(self) -> NDArray[np.bool_]:
        """Slices with a label below the top of its row, whose loss rises in the end."""

    def sample(self) -> Problem | None:
        """Return a small part for a first guess, or None where the whole is small."""

    def split(self, n_folds: int) -> Iterator[tuple[Problem, Problem]]:
        """Rows outside and inside of every fold that leaves rows on both sides."""

    def heldout(self, alphas: Float) -> Heldout:
        """NLL of the rows under each line of `alphas` (G, S)."""


@dataclass(frozen=True, eq=False)
class TemperatureProblem:
    """Rows in memory and the slice that each belongs to; rows of slice ``n_slices`` are left out.

    Rows that have the same number in `fold_groups` stay together in cross-validation.
    """

    rows: Rows
    ids: CodeArray
    n_slices: int
    fold_groups: IntArray | None = None

    def evaluate(self, alpha: Float, active: IntArray) -> Derivatives:
        """Derivatives of the losses of the slices `active`; one pass over their rows."""
        wanted = np.zeros(self._width, bool)
        wanted[active] = True
        full = alpha if self._width == self.n_slices else np.append(alpha, 1.0)
        first, second, third = slope_pass(self.rows, self.ids, full, wanted)
        return first[active], second[active], third[active]

    def pooled(self) -> TemperatureProblem:
        """Return the same rows as one slice."""
        return TemperatureProblem(self.rows, np.zeros(len(self.ids), np.uint8), 1)

    def take(self, index: IntArray | slice) -> TemperatureProblem:
        """Return the problem on some of the rows."""
        together = None if self.fold_groups is None else self.fold_groups[index]
        return TemperatureProblem(self.rows.take(index), self.ids[index], self.n_slices, together)

    def sample(self) -> TemperatureProblem | None:
        """Return every so many-th row for a first guess, or None where there are few."""
        step = len(self.rows) // max(_FEW, _SAMPLE // self.rows.z.shape[1])
        return self.take(np.arange(0, len(self.rows), step)) if step > 3 else None

    def counts(self) -> IntArray:
        """Rows in every slice."""
        return self._counts

    def class_counts(self, n_classes: int) -> IntArray:
        """Rows predicted as each class."""
        return count_slices(self.rows.guess, n_classes)

    def weights(self) -> tuple[float, float]:
        """Sum of the rows' weights, and the least of them."""
        given = self.rows.given_weight
        return self.rows.total_weight, 1.0 if given is None else float(given.min())

    def slice_weights(self) -> Float:
        """Sum of the weights in every slice."""
        if self.rows.given_weight is None:
            return self._counts.astype(np.float64)
        return sum_slices(self.ids, self.rows.given_weight, self.n_slices)[: self.n_slices]

    def endless(self) -> NDArray[np.bool_]:
        """Slices whose loss falls for ever as α grows: no label lies below the top of its row.

        The gradient cannot tell, since it underflows to zero long before the bound. Slices of flat rows only
        are left out: their loss does not change at all.
        """
        falling = np.zeros(self._width, bool)
        falling[: self.n_slices] = ~self._held & (self._counts > 0)
        index = np.flatnonzero(falling[self.ids]) if falling.any() else np.empty(0, np.int64)
        uneven = np.bincount(self.ids[index], ~flat_rows(self.rows, index), self._width) > 0
        return np.asarray((falling & uneven)[: self.n_slices])

    def held(self) -> NDArray[np.bool_]:
        """Slices with a label below the top of its row."""
        return self._held

    def split(self, n_folds: int) -> Iterator[tuple[TemperatureProblem, TemperatureProblem]]:
        """Rows outside and inside of every fold."""
        fold = folds_of(self, n_folds).astype(np.uint8 if n_folds < 256 else np.int64)
        for f in range(n_folds):
            inside = np.flatnonzero(fold == f)
            if inside.size and inside.size < len(fold):
                yield self._without(inside), self.take(inside)

    @with_one_blas_thread
    def heldout(self, alphas: Float) -> Heldout:
        """NLL of the rows under each line of `alphas` (G, S)."""
        total = Heldout(np.zeros(len(alphas)), np.zeros((len(alphas),) * 2), 0, 0)
        step = max(_SCORED, 1 + LARGE // self.rows.z.shape[1])
        for start in range(0, len(self.rows), step):
            part = self.take(slice(start, start + step))
            w = part.rows.weight
            loss = w * np.stack([tempered_nll(part.rows, alpha[part.ids]) for alpha in alphas])
            total += Heldout(loss.sum(axis=1), loss @ loss.T, len(w), float(w.sum()))
        return total

    @cached_property
    def _held(self) -> NDArray[np.bool_]:
        rows, held = self.rows, np.zeros(self._width, bool)
        for start in range(0, len(rows), _SCORED):
            part = slice(start, start + _SCORED)
            wrong = start + np.flatnonzero(rows.guess[part] != rows.y[part])
            below = rows.z[wrong, rows.y[wrong]] < rows.z[wrong, rows.guess[wrong]]
            held[self.ids[wrong[below]]] = True
        return held[: self.n_slices]

    @cached_property
    def _counts(self) -> IntArray:
        return count_slices(self.ids, self.n_slices)

    @cached_property
    def _width(self) -> int:
        """Slices with the one that is left out, if any row is in it."""
        return self.n_slices + int(self._counts.sum() < len(self.ids))

    def _without(self, index: IntArray) -> TemperatureProblem:
        """Return the problem without some rows; large arrays are not copied for it."""
        if compiled_for(self.rows.z.size) is None:
            kept = np.ones(len(self.ids), bool)
            kept[index] = False
            return self.take(np.flatnonzero(kept))
        ids = self.ids.astype(code_type(self.n_slices))
        ids[index] = self.n_slices
        return TemperatureProblem(self.rows, ids, self.n_slices)


def folds_of(problem: TemperatureProblem, n_folds: int, *, salt: int = 0) -> IntArray:
    """Fold of each row of a problem, by :func:`hetcal._numeric.folds.deal_rows`."""
    return deal_rows(problem.rows, problem.ids, problem.n_slices, n_folds, problem.fold_groups, salt=salt)
