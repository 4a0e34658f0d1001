"""Rows to fit on, divided into slices: one protocol for rows in memory, in blocks and on a device.

Solvers and calibrators use a :class:`Source` without knowing its kind. The implementations are
:class:`MemorySource` here, :class:`hetcal._numeric.blocks.BlockSource` (batches and Dask) and
:class:`hetcal._numeric.device.TensorSource`. All of them assign rows to folds by
:func:`hetcal._numeric.folds.deal_folds`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from hetcal._numeric.acceleration import LARGE, compiled_for
from hetcal._numeric.families import Family, vector_gradient
from hetcal._numeric.folds import RowContent, count_repeats, deal_folds
from hetcal._numeric.hashing import Keys
from hetcal._numeric.label_models import LabelModel, SoftLabels
from hetcal._numeric.passes import count_slices, flat_rows, gap_sums, slope_pass, sum_slices, tempered_nll
from hetcal._numeric.rows import Rows, code_type
from hetcal._numeric.scalar_solver import Derivatives
from hetcal._numeric.threads import in_order, with_one_blas_thread
from hetcal._numeric.trust_region import EvaluateVector
from hetcal._typing import BoolArray, CodeArray, Float, FloatArray, IntArray

__all__ = [
    "Assign",
    "HeldoutLoss",
    "LogitsFunction",
    "MemorySource",
    "NotInMemory",
    "RowStatistic",
    "Source",
    "drop_unassigned",
]

# (predicted class of every row, group of every row or None) -> slice of every row
Assign = Callable[[CodeArray, NDArray[Any] | None], CodeArray]

# (logits (n, K), group of every row or None) -> new logits (n, K); must be picklable
LogitsFunction = Callable[[FloatArray, Any], FloatArray]

# Function that computes arrays from rows, to be summed over blocks of rows; must be picklable
RowStatistic = Callable[[Rows], tuple[NDArray[Any], ...]]

_SAMPLE_ELEMENTS = 1 << 15  # logits in the sample for the initial guess
_SAMPLE_ROWS = 256  # minimum number of rows in that sample
_STATISTIC_ELEMENTS = 1 << 17  # logits per block in `sum_rows`, or more to limit the number of blocks
_MAX_STATISTICS = 32  # maximum number of blocks in `sum_rows`
_FLAT = 1e-11  # slopes and curvatures below this per unit of weight are rounding errors
_LEAST_SHARE = 0.01  # `with_certain_labels` usually leaves out classes with a smaller probability
_CHUNK_ROWS = 1 << 16  # number of rows processed at once; `heldout_loss` uses more if there are few classes


class NotInMemory(TypeError, ValueError):  # noqa: N818
    """Raised if a computation needs all rows in memory, but they are read in blocks or stored on a device."""


@dataclass(frozen=True)
class HeldoutLoss:
    """NLL of held-out rows for each of G choices of parameters, as sums over the rows.

    Attributes
    ----------
    loss : (G,) Σ w · NLL for each choice
    product : (G, G) Σ w² · NLL_g · NLL_h for each pair of choices g and h
        The standard errors of differences are computed from these sums.
    n, weight : number of rows and sum of their weights
    """

    loss: Float
    product: Float
    n: float
    weight: float

    @classmethod
    def zero(cls, n_choices: int) -> HeldoutLoss:
        """Return sums of zero, to which the results of rows can be added."""
        return cls(np.zeros(n_choices), np.zeros((n_choices, n_choices)), 0, 0)

    def __add__(self, other: HeldoutLoss) -> HeldoutLoss:
        return HeldoutLoss(
            self.loss + other.loss, self.product + other.product, self.n + other.n, self.weight + other.weight
        )

    def means(self) -> Float:
        """Weighted mean NLL of every choice, (G,)."""
        return self.loss / self.weight

    def errors(self, chosen: int) -> Float:
        """Standard error of the difference in mean NLL between each choice and the choice `chosen`, (G,)."""
        m = self.product
        square = np.maximum(np.diag(m) - 2 * m[:, chosen] + m[chosen, chosen], 0)
        spread = square - (self.loss - self.loss[chosen]) ** 2 / self.n
        return np.asarray(np.sqrt(np.maximum(spread, 0)) / self.weight)


class Source(Protocol):
    """Validated rows with positive weights, divided into slices.

    By default, the slices are the predicted classes; `slice_by` defines other slices. In a fit, the weights
    are scaled so that their sum over all rows is the effective sample size.
    """

    @property
    def n_classes(self) -> int:
        """Number of columns K."""

    @property
    def n_slices(self) -> int:
        """Number of slices S."""

    @property
    def prefers_few_passes(self) -> bool:
        """Whether a pass over the rows is expensive because the rows have to be read again."""

    @property
    def has_hessians(self) -> bool:
        """Whether `family_evaluator` is available."""

    @property
    def label_model(self) -> LabelModel | None:
        """Model of soft or noisy labels, or None if the labels are the true classes."""

    def group_names(self) -> NDArray[Any] | None:
        """Sorted unique names of the rows' groups, or None if the rows have no groups."""

    def slice_by(self, assign: Assign, n_slices: int) -> Source:
        """Return the same rows, divided into slices by `assign`."""

    def transform(self, function: LogitsFunction) -> Source:
        """Return the same rows with the logits ``function(logits, groups)``.

        The slices of the result are the classes that the new logits predict. For rows in blocks, the function
        is called whenever a block is read, possibly on another machine. For rows on a device, `NotInMemory`
        is raised.
        """

    def in_memory(self, purpose: str) -> MemorySource:
        """Return the rows in memory, or raise `NotInMemory` with a message that names the `purpose`."""

    def counts(self) -> IntArray:
        """Number of rows in every slice, (S,)."""

    def class_counts(self) -> IntArray:
        """Number of rows predicted as each class, (K,)."""

    def weights(self) -> tuple[float, float]:
        """Sum of the rows' weights, and the smallest weight (0 if unknown)."""

    def slice_weights(self) -> Float:
        """Sum of the weights in every slice, (S,)."""

    def gap_sums(self) -> tuple[Float, Float]:
        """Sums of ``weight`` and of ``weight · (confidence − correctness)`` by predicted class, (K,) each."""

    def is_separable(self) -> BoolArray:
        """Whether each slice is separable, (S,).

        In a separable slice, every label has the largest logit of its row, and in some row the logits are not
        all equal. Without label noise, its loss then decreases as α grows, however large α is.
        """

    def has_finite_optimum(self) -> BoolArray:
        """For each slice, whether the logit of some row's label is below the maximum of the row, (S,).

        Without label noise, the loss of such a slice grows for large α, so its best α is finite. The loss of
        any other slice decreases for all α or is constant. Every class with a positive probability under a
        soft label counts as a label.
        """

    def count_repeats(self, alpha: float) -> int:
        """Number of rows that are copies of other rows; 0 if it is unknown or if there are fold groups.

        The inverse temperature `alpha` helps to distinguish copies from different samples with equal logits;
        see :func:`hetcal._numeric.folds.count_repeats`.
        """

    def evaluate(self, alpha: Float, active: IntArray) -> Derivatives:
        """First three derivatives in α of the NLL of each slice in `active`, at `alpha` (S,), in one pass."""

    def heldout_loss(self, alphas: Float) -> HeldoutLoss:
        """NLL of the rows for each of G choices of inverse temperatures, `alphas` (G, S)."""

    def sum_rows(self, statistic: RowStatistic) -> tuple[NDArray[Any], ...]:
        """Sum `statistic` over blocks of rows; rows that belong to no slice are left out."""

    def vector_gradient(self, theta: Float) -> tuple[float, Float]:
        """Summed NLL of ``softmax(scale ⊙ z + bias)`` and its gradient (2K,) in θ = (scale, bias)."""

    def family_evaluator(self, family: Family, family_slice: IntArray) -> EvaluateVector:
        """Return a function that computes the loss, gradient and Hessian of `family` by slice.

        The slices of the function may differ from those of the source: `family_slice` (S,) contains the new
        number of each slice of the source, or −1 to leave the slice out.
        """

    def sample(self) -> Source | None:
        """Return a small sample of the rows for an initial guess, or None if there are few rows."""

    def sample_rows(self, n_rows: int) -> Rows:
        """Return some of the rows, in memory: about `n_rows`, or the number that is easiest to provide."""

    def draw_sample(self, n_parts: int, *, salt: int) -> MemorySource:
        """Return about one in `n_parts` rows, or all rows if `n_parts` is 1, as rows in memory.

        The sample is one of `n_parts` folds of :func:`hetcal._numeric.folds.deal_folds` without fold groups.
        It is the same for rows in memory and in blocks, and for every order of the rows. For rows on a
        device, `NotInMemory` is raised.
        """

    def split(self, n_folds: int) -> Iterator[tuple[Source, Source]]:
        """Yield the training and test rows of every fold; skip folds in which one of the two is empty."""


class MemorySource:
    """Rows in memory.

    Parameters
    ----------
    rows : Rows
    groups : (n,) group of every row, or None
    fold_groups : (n,) integers, or None
        In a cross-validation, rows with the same integer are in the same fold.
    ids : (n,) slice of every row; by default the predicted class
        Rows with the id `n_slices` belong to no slice, and sums over slices leave them out.
    n_slices : int; by default the number of classes
    """

    prefers_few_passes = False
    has_hessians = True

    def __init__(
        self,
        rows: Rows,
        groups: NDArray[Any] | None = None,
        fold_groups: IntArray | None = None,
        *,
        ids: CodeArray | None = None,
        n_slices: int | None = None,
    ) -> None:
        self.rows, self.groups, self.fold_groups = rows, groups, fold_groups
        self.ids = rows.guess if ids is None else ids
        self.n_slices = rows.z.shape[1] if n_slices is None else n_slices

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def n_classes(self) -> int:
        """Number of columns K."""
        return int(self.rows.z.shape[1])

    @property
    def label_model(self) -> LabelModel | None:
        """Model of soft or noisy labels, or None if the labels are the true classes."""
        return self.rows.label_model

    def group_names(self) -> NDArray[Any] | None:
        """Sorted unique names of the rows' groups, or None if the rows have no groups."""
        return None if self.groups is None else np.unique(self.groups)

    def slice_by(self, assign: Assign, n_slices: int) -> Self:
        """Return the same rows, divided into slices by `assign`."""
        ids = assign(self.rows.guess, self.groups)
        return type(self)(self.rows, self.groups, self.fold_groups, ids=ids, n_slices=n_slices)

    def pooled(self) -> MemorySource:
        """Return all rows as one slice, without their groups and fold groups."""
        return MemorySource(self.rows, ids=np.zeros(len(self.ids), np.uint8), n_slices=1)

    def transform(self, function: LogitsFunction) -> MemorySource:
        """Return the same rows with the logits ``function(logits, groups)``; see `Source.transform`."""
        z = function(self.rows.z, self.groups)
        return MemorySource(self.rows.with_logits(z), self.groups, self.fold_groups)

    def with_certain_labels(self) -> MemorySource:
        """Replace soft labels with certain labels: one row per class, weighted by its probability.

        Classes with a probability below ``min(0.01, m/2)`` are left out, where m is the row's largest
        probability. The other probabilities of the row are rescaled to sum to 1. The rows that replace one
        row stay in the same fold. If the labels are not soft, this source itself is returned.
        """
        labels = self.rows.label_model
        if not isinstance(labels, SoftLabels):
            return self
        least = np.minimum(_LEAST_SHARE, labels.q.max(axis=1, keepdims=True) / 2)
        q = np.where(labels.q < least, 0.0, labels.q)
        row, y = np.nonzero(q)
        share = q[row, y] / q.sum(axis=1)[row]
        part = self.take(row)
        y = y.astype(part.rows.y.dtype)
        if len(row) == len(self):
            rows = Rows(part.rows.z, y, part.rows.guess, part.rows.given_weight)
            return MemorySource(rows, part.groups, part.fold_groups, ids=part.ids, n_slices=self.n_slices)
        rows = Rows(part.rows.z, y, part.rows.guess, part.rows.weight * share)
        together = row if part.fold_groups is None else part.fold_groups
        return MemorySource(rows, part.groups, together, ids=part.ids, n_slices=self.n_slices)

    def take(self, index: IntArray | slice) -> MemorySource:
        """Return the rows at `index`."""
        groups, folds = (None if part is None else part[index] for part in (self.groups, self.fold_groups))
        return MemorySource(self.rows.take(index), groups, folds, ids=self.ids[index], n_slices=self.n_slices)

    def in_memory(self, purpose: str) -> MemorySource:  # noqa: ARG002
        """Return this source, whose rows are in memory."""
        return self

    def counts(self) -> IntArray:
        """Number of rows in every slice, (S,)."""
        return self._counts

    def class_counts(self) -> IntArray:
        """Number of rows predicted as each class, (K,)."""
        return count_slices(self.rows_in_slices().guess, self.n_classes)

    def weights(self) -> tuple[float, float]:
        """Sum of the rows' weights, and the smallest weight."""
        weight = self.rows.given_weight
        if self._width == self.n_slices:
            return self.rows.total_weight, 1.0 if weight is None else float(weight.min())
        smallest = 1.0 if weight is None else float(weight[self.ids < self.n_slices].min())
        return float(self.slice_weights().sum()), smallest

    def slice_weights(self) -> Float:
        """Sum of the weights in every slice, (S,)."""
        if self.rows.given_weight is None:
            return self._counts.astype(np.float64)
        return sum_slices(self.ids, self.rows.given_weight, self.n_slices)[: self.n_slices]

    def gap_sums(self) -> tuple[Float, Float]:
        """Sums of ``weight`` and of ``weight · (confidence − correctness)`` by predicted class, (K,) each."""
        return gap_sums(self.rows_in_slices())

    def is_separable(self) -> BoolArray:
        """Whether each slice is separable, (S,); see `Source.is_separable`.

        Labels and logits are compared directly, because the gradient can underflow to zero before α reaches
        its bound. A slice in which the logits of every row are all equal is not separable: its loss is
        constant.
        """
        decreasing = np.zeros(self._width, bool)
        decreasing[: self.n_slices] = ~self._has_finite_optimum & (self._counts > 0)
        index = np.flatnonzero(decreasing[self.ids]) if decreasing.any() else np.empty(0, np.int64)
        uneven = np.bincount(self.ids[index], ~flat_rows(self.rows, index), self._width) > 0
        return np.asarray((decreasing & uneven)[: self.n_slices])

    def has_finite_optimum(self) -> BoolArray:
        """For each slice, whether some label has a logit below the row maximum, (S,); see `Source`."""
        return self._has_finite_optimum

    def count_repeats(self, alpha: float) -> int:
        """Number of rows that are copies of other rows, or 0 if there are fold groups; see `Source`."""
        return 0 if self.fold_groups is not None else count_repeats(self.rows, lambda: alpha)

    def evaluate(self, alpha: Float, active: IntArray) -> Derivatives:
        """First three derivatives in α of the NLL of each slice in `active`, at `alpha` (S,), in one pass."""
        visited = np.zeros(self._width, bool)
        visited[active] = True
        full = alpha if self._width == self.n_slices else np.append(alpha, 1.0)
        first, second, third = slope_pass(self.rows, self.ids, full, visited)
        if self.rows.label_model is not None and self.rows.label_model.is_noisy:
            # For large α, the loss of noisy labels approaches a constant, and the computed slope and
            # curvature are only rounding errors. They are replaced with those of a slightly decreasing line.
            weight = np.append(self.slice_weights(), 1)[: self._width]
            is_flat = (np.abs(first) + np.abs(second) * full < _FLAT * weight) & self._is_uneven
            first, second = np.where(is_flat & visited, -_FLAT, first), np.where(is_flat, 0.0, second)
        return first[active], second[active], third[active]

    @with_one_blas_thread
    def heldout_loss(self, alphas: Float) -> HeldoutLoss:
        """NLL of the rows for each of G choices of inverse temperatures, `alphas` (G, S)."""
        total = HeldoutLoss.zero(len(alphas))
        step = max(_CHUNK_ROWS, 1 + LARGE // self.n_classes)
        for start in range(0, len(self.rows), step):
            chunk = self.take(slice(start, start + step))
            w = chunk.rows.weight
            loss = w * np.stack([tempered_nll(chunk.rows, alpha[chunk.ids]) for alpha in alphas])
            total += HeldoutLoss(loss.sum(axis=1), loss @ loss.T, len(w), float(w.sum()))
        return total

    @with_one_blas_thread
    def sum_rows(self, statistic: RowStatistic) -> tuple[NDArray[Any], ...]:
        """Sum `statistic` over blocks of rows, in parallel; rows that belong to no slice are left out."""
        rows = self.rows_in_slices()
        n_blocks = int(np.clip(rows.z.size // _STATISTIC_ELEMENTS, 1, _MAX_STATISTICS))
        edges = [len(rows) * b // n_blocks for b in range(n_blocks + 1)]
        blocks = in_order(lambda start, stop: statistic(rows.take(slice(start, stop))), list(pairwise(edges)))
        return tuple(np.sum(parts, axis=0) for parts in zip(*blocks, strict=True))

    def vector_gradient(self, theta: Float) -> tuple[float, Float]:
        """Summed NLL of ``softmax(scale ⊙ z + bias)`` and its gradient (2K,) in θ = (scale, bias)."""
        return vector_gradient(self.rows_in_slices(), theta)

    def family_evaluator(self, family: Family, family_slice: IntArray) -> EvaluateVector:
        """Return a function that computes loss, gradient and Hessian of `family` by slice; see `Source`."""
        rows, ids = drop_unassigned(self.rows, family_slice[self.ids])
        return family.evaluator(rows, ids, int(family_slice.max()) + 1)

    def sample(self) -> MemorySource | None:
        """Return an evenly spaced sample of the rows for an initial guess, or None if there are few rows."""
        step = len(self.rows) // max(_SAMPLE_ROWS, _SAMPLE_ELEMENTS // self.n_classes)
        return self.take(np.arange(0, len(self.rows), step)) if step > 3 else None

    def sample_rows(self, n_rows: int) -> Rows:  # noqa: ARG002
        """Return all rows that belong to a slice, whatever `n_rows` is."""
        return self.rows_in_slices()

    def draw_sample(self, n_parts: int, *, salt: int) -> MemorySource:
        """Return about one in `n_parts` rows, or all rows if `n_parts` is 1; see `Source.draw_sample`."""
        if n_parts == 1:
            return self
        ungrouped = MemorySource(self.rows)
        return self.take(np.flatnonzero(ungrouped.folds(n_parts, salt=salt) == 0))

    def folds(self, n_folds: int, *, salt: int = 0) -> IntArray:
        """Fold of every row, (n,); see :func:`hetcal._numeric.folds.deal_folds`."""
        return deal_folds(self, n_folds, salt=salt)

    def split(self, n_folds: int) -> Iterator[tuple[MemorySource, MemorySource]]:
        """Yield the training and test rows of every fold; skip folds in which one of the two is empty."""
        fold = self.folds(n_folds).astype(np.uint8 if n_folds < 256 else np.int64)
        for f in range(n_folds):
            test = np.flatnonzero(fold == f)
            if test.size and test.size < len(fold):
                yield self._without(test), self.take(test)

    def gathered(self) -> tuple[Rows, CodeArray]:
        """Return the rows and the slice of each row."""
        return self.rows, self.ids

    def rows_in_slices(self) -> Rows:
        """Return the rows that belong to a slice; see `ids` in the description of this class."""
        if self._width == self.n_slices:
            return self.rows
        return self.rows.take(np.flatnonzero(self.ids < self.n_slices))

    def row_keys(self) -> Keys:
        """Hash of every row's logits, (n,)."""
        return self.rows.keys

    def row_content(self) -> RowContent:
        """Return the values by which rows with equal keys (see `row_keys`) are sorted."""
        return RowContent.of(self.rows)

    @cached_property
    def _has_finite_optimum(self) -> BoolArray:
        rows, finite = self.rows, np.zeros(self._width, bool)
        if rows.label_model is not None and not rows.label_model.is_noisy:
            wrong = np.flatnonzero(
                rows.label_model.moments(rows.below_top(slice(None)), np.ones(len(rows)))[1]
            )
            finite[self.ids[wrong]] = True
            return finite[: self.n_slices]
        for start in range(0, len(rows), _CHUNK_ROWS):
            chunk = slice(start, start + _CHUNK_ROWS)
            wrong = start + np.flatnonzero(rows.guess[chunk] != rows.y[chunk])
            below = rows.z[wrong, rows.y[wrong]] < rows.z[wrong, rows.guess[wrong]]
            finite[self.ids[wrong[below]]] = True
        return finite[: self.n_slices]

    @cached_property
    def _is_uneven(self) -> BoolArray:
        """Whether each slice contains a row with unequal logits; otherwise, the slice's loss is constant."""
        uneven = ~flat_rows(self.rows, np.arange(len(self.rows)))
        return np.asarray(np.bincount(self.ids, uneven, self._width) > 0)

    @cached_property
    def _counts(self) -> IntArray:
        return count_slices(self.ids, self.n_slices)

    @cached_property
    def _width(self) -> int:
        """Number of slices, plus one if there are rows with the id `n_slices`, which belong to no slice."""
        return self.n_slices + int(self._counts.sum() < len(self.ids))

    def _without(self, index: IntArray) -> MemorySource:
        """Return all rows except those at `index`.

        If numba is used, the result shares the logits of this source instead of copying them, and the rows at
        `index` are only removed from their slices.
        """
        if compiled_for(self.rows.z.size) is None:
            remaining = np.ones(len(self.ids), bool)
            remaining[index] = False
            return self.take(np.flatnonzero(remaining))
        ids = self.ids.astype(code_type(self.n_slices))
        ids[index] = self.n_slices
        return MemorySource(self.rows, ids=ids, n_slices=self.n_slices)


def drop_unassigned(rows: Rows, ids: IntArray) -> tuple[Rows, IntArray]:
    """Drop rows with a negative slice; return the remaining rows and the slice of each."""
    if (ids >= 0).all():
        return rows, ids
    index = np.flatnonzero(ids >= 0)
    return rows.take(index), ids[index]
