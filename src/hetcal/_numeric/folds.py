"""Folds for cross-validation that do not depend on the order of the rows.

They are also the same for rows in memory, in blocks and on a device.

Without fold groups, the folds are derived from the content of the rows. Rows with equal logits (in any order
of the columns), called tied rows, are spread evenly over the folds. Labels are used only to sort tied rows
before these are shuffled. The seed of the shuffling does not depend on the data, so a row's label says
nothing about its fold.

If fold groups are given, all rows of a group are in the same fold. The folds then depend on the sizes of the
groups and on the logits of their rows, but not on labels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hetcal._numeric.acceleration import LARGE
from hetcal._numeric.hashing import SALT, Keys, hash_mix, ordered_keys
from hetcal._numeric.passes import top_margin
from hetcal._numeric.rows import Rows
from hetcal._typing import BoolArray, CodeArray, Float, IntArray

__all__ = [
    "FoldRows",
    "RowContent",
    "are_few",
    "count_repeats",
    "deal_by_keys",
    "deal_folds",
    "deal_groups",
    "draw_folds",
    "is_among",
    "repeated_keys",
]


_FEW_ROWS = 1 << 17  # more rows than this are assigned to folds by a hash and are not sorted; see `are_few`
# Rows with equal logits are either copies, which have equal labels, or different samples, whose labels often
# differ. They are considered copies if two conditions hold. If they were different samples, at least
# _MIN_EXPECTED differences between labels would be expected. The number of actual differences is at most
# _MAX_DIFFERENT times the expected number.
_MIN_EXPECTED = 30.0
_MAX_DIFFERENT = 0.02
_SALT = np.uint64(SALT)


class FoldRows(Protocol):
    """The attributes and methods of a source that `deal_folds` needs.

    The rows of a source are divided into slices. By default, a slice contains the rows with one predicted
    class.
    """

    fold_groups: IntArray | None
    n_slices: int

    @property
    def n_classes(self) -> int:
        """Number of classes K."""

    def __len__(self) -> int: ...

    def gathered(self) -> tuple[Rows, CodeArray]:
        """Return the rows in memory and the slice of each row; called only if `are_few` returns True."""

    def row_keys(self) -> Keys:
        """Hash of every row's logits, (n,)."""

    def row_content(self) -> RowContent:
        """Return the values by which rows with equal keys are sorted."""


def deal_folds(rows: FoldRows, n_folds: int, *, salt: int = 0) -> IntArray:
    """Fold of each row, (n,).

    Parameters
    ----------
    rows : source of the rows
        Rows with the same number in `fold_groups` go to the same fold.
    n_folds : number of folds
    salt : seed; different values give independent folds. Not used if there are fold groups.

    Notes
    -----
    The following applies if there are no fold groups; otherwise see `deal_groups`. Rows are called tied if
    they have equal logits (in any order of the columns). By default, a slice contains the rows with one
    predicted class.

    If there are few rows (up to 131,072, with fewer than 4,194,304 logits), the rows of each slice are sorted
    by content and shuffled, but tied rows stay together. All rows are then dealt out to the folds in turn, so
    that every slice is spread evenly over the folds. If there are more rows, the fold of a row is determined
    by a hash of its logits, and only tied rows are dealt out in turn.

    Folds are not stratified by correctness. If a slice had the same accuracy in every fold, the test rows
    would share the sampling error of the training rows, and a fit to that error would seem to improve the
    predictions.
    """
    if rows.fold_groups is not None:
        return deal_groups(rows.row_keys(), rows.fold_groups, n_folds)
    if not are_few(len(rows), rows.n_classes):
        return deal_by_keys(rows.row_keys(), rows.row_content(), n_folds, salt)
    return _deal_in_turn(*rows.gathered(), rows.n_slices, n_folds, salt)


def are_few(n_rows: int, n_classes: int) -> bool:
    """Whether there are so few rows that `deal_folds` sorts them by content instead of using hashes."""
    return n_rows <= _FEW_ROWS and n_rows * n_classes < LARGE


class RowContent(NamedTuple):
    """Values by which tied rows are sorted, so that the order of the rows does not affect the folds."""

    guess: CodeArray
    d_true: Float
    labels: CodeArray
    weight: Float | None
    # Maps indices of rows to hashes of these rows. Unlike the keys, they depend on the order of the columns.
    columns: Callable[[IntArray], Keys]

    @classmethod
    def of(cls, rows: Rows) -> RowContent:
        """Return the content of rows in memory."""
        columns = lambda index: ordered_keys(rows.z[index])  # noqa: E731
        return cls(rows.guess, rows.d_true, rows.y, rows.given_weight, columns)


def deal_by_keys(keys: Keys, content: RowContent, n_folds: int, salt: int = 0) -> IntArray:
    """Fold of each row from its key (a hash of its logits), (n,).

    A row whose key is unique gets the fold from `draw_folds`. Several rows with the same key are dealt out to
    the folds in turn, one predicted class after the other. The first of them gets the fold from `draw_folds`.
    """
    fold = draw_folds(keys, n_folds, salt)
    repeated = repeated_keys(keys)
    if repeated.size:
        tied = np.flatnonzero(is_among(keys, repeated))
        key_index = np.searchsorted(repeated, keys[tied])
        guess = content.guess[tied]
        parts = (content.weight, content.labels, content.d_true)
        tie_breakers = [part[tied] for part in parts if part is not None]
        order = np.lexsort((content.columns(tied), *tie_breakers, guess, key_index))
        group = key_index[order]
        shuffled = np.lexsort((_random(len(tied), salt), guess[order], group))
        rank = np.arange(len(tied)) - np.searchsorted(group, group)
        fold[tied[order[shuffled]]] = (rank + fold[tied[order]]) % n_folds
    return fold


def draw_folds(keys: Keys, n_folds: int, salt: int = 0) -> IntArray:
    """Draw the fold of each row from a hash of its key, (n,); rows with equal keys get the same fold."""
    draw = hash_mix(keys + np.uint64((salt + 1) * SALT % 2**64))
    return (draw % np.uint64(n_folds)).astype(np.int64)


def repeated_keys(keys: Keys) -> Keys:
    """Keys that occur more than once, sorted."""
    ordered = np.sort(keys)
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])


def is_among(keys: Keys, ordered: Keys) -> BoolArray:
    """Whether each key is among the sorted keys `ordered`, (n,)."""
    position = np.searchsorted(ordered, keys)
    return np.asarray(np.append(ordered, np.uint64(0))[position] == keys) & (position < len(ordered))


def deal_groups(keys: Keys, fold_groups: IntArray, n_folds: int) -> IntArray:
    """Fold of each row, (n,), such that groups stay together.

    The groups are assigned from the largest to the smallest, each to the fold with the fewest rows so far.
    Groups of equal size are ordered by a hash of the logits of their rows.
    """
    names, group = np.unique(fold_groups, return_inverse=True)
    size, content = np.bincount(group), np.zeros(len(names), np.uint64)
    np.add.at(content, group, keys)
    fold_size, fold = np.zeros(min(n_folds, len(names)), np.int64), np.empty(len(names), np.int64)
    for k in np.lexsort((hash_mix(content), -size)):
        fold[k] = fold_size.argmin()
        fold_size[fold[k]] += size[k]
    return fold[group]


def count_repeats(rows: Rows, alpha: Callable[[], float]) -> int:
    """Number of rows that are copies of others, or 0 if rows with equal logits may be different samples.

    A copy has the same label as the original. The labels of different samples with equal logits differ about
    as often as two draws from the predicted probabilities ``softmax(α z)``. These probabilities give a lower
    bound on the number of differences to be expected if all rows were different samples. Rows with equal
    logits are considered copies if this bound is at least 30 and the actual number of differences is at most
    2% of the bound. `alpha` is a function that returns the inverse temperature α. It is called only if some
    rows have equal logits.
    """
    keys = rows.keys ^ hash_mix(rows.guess.astype(np.uint64) + _SALT)
    repeated = repeated_keys(keys)
    if not repeated.size:
        return 0
    index = np.flatnonzero(is_among(keys, repeated))
    _, first, group, size = np.unique(keys[index], return_index=True, return_inverse=True, return_counts=True)
    n_classes = rows.z.shape[1]
    _, pair, count = np.unique(
        group.astype(np.int64) * n_classes + rows.y[index], return_inverse=True, return_counts=True
    )
    same_label = count[pair] - 1  # for each row, the number of other rows with the same key and label
    agree = np.zeros(len(size))
    np.add.at(agree, group, same_label.astype(np.float64))
    differ = (size - 1) - agree / size
    below = rows.below_top(index[first]).astype(np.float64)
    top = 1 / np.exp(alpha() * below).sum(axis=1)
    expected = (size - 1) * 2 * top * (1 - top)
    if expected.sum() < _MIN_EXPECTED or differ.sum() > _MAX_DIFFERENT * expected.sum():
        return 0
    return int((size - 1).sum())


def _deal_in_turn(rows: Rows, ids: CodeArray, n_slices: int, n_folds: int, salt: int) -> IntArray:
    margin, _ = top_margin(rows.z, rows.guess)
    keys = rows.keys
    slice_rank = _by_content(ids, margin, keys, n_slices)
    weights = [] if rows.given_weight is None else [rows.given_weight]
    order = np.lexsort((rows.y, *weights, rows.d_true, keys, margin, slice_rank))
    if not _changes(keys[order]).all():  # rows with equal keys can differ in the order of the columns
        columns = ordered_keys(rows.z)
        order = np.lexsort((columns, rows.y, *weights, rows.d_true, keys, margin, slice_rank))
    group = np.cumsum(_changes(slice_rank[order]) | _changes(keys[order])) - 1
    draw = _random(int(group[-1]) + 1, salt)[group]
    within = _random(len(rows), salt + 1)
    order = order[np.lexsort((within, draw, slice_rank[order]))]
    fold = np.empty(len(rows), np.int64)
    fold[order] = np.arange(len(rows)) % n_folds
    return fold


def _by_content(ids: CodeArray, margin: Float, keys: Keys, n_slices: int) -> IntArray:
    """Rank of each row's slice, (n,); slices are sorted by size, then by largest margin, then by content.

    The margin of a row is the log-odds of its predicted class.
    """
    largest, content = np.full(n_slices, -np.inf), np.zeros(n_slices, np.uint64)
    np.maximum.at(largest, ids, margin)
    np.add.at(content, ids, keys)
    rank = np.empty(n_slices, np.int64)
    rank[np.lexsort((content, largest, np.bincount(ids, minlength=n_slices)))] = np.arange(n_slices)
    return np.asarray(rank[ids])


def _changes(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each value differs from its predecessor; True for the first one."""
    return np.asarray(np.r_[True, values[1:] != values[:-1]])


def _random(n: int, salt: int) -> Float:
    return np.random.default_rng(salt).random(n)
