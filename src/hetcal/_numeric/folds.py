"""Folds for cross-validation, from the content of rows alone: the same on every route and in every order.

Rows with equal scores are ties. They are dealt out evenly over the folds, and labels play no part in which
row goes where: they only fix an order from which the deal is drawn with a constant seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetcal._numeric.acceleration import LARGE
from hetcal._numeric.hashing import SALT, Keys, hash_mix, ordered_keys
from hetcal._numeric.passes import top_margin
from hetcal._numeric.rows import Rows
from hetcal._typing import CodeArray, Float, IntArray

__all__ = ["RowContent", "are_few", "count_repeats", "deal_by_keys", "deal_groups", "deal_rows"]


_FEW = 1 << 17  # rows that are put in order
_EXPECTED = 30.0  # labels that differ among ties, by chance, from which their absence shows copies
_AGREE = 0.02  # share of these that copies may have all the same
_SALT = np.uint64(SALT)


def deal_rows(
    rows: Rows,
    ids: CodeArray,
    n_slices: int,
    n_folds: int,
    fold_groups: IntArray | None = None,
    *,
    salt: int = 0,
) -> IntArray:
    """Fold of each row.

    Parameters
    ----------
    rows, ids, n_slices : rows and the slice of each
    n_folds : number of folds
    fold_groups : (n,) integers
        Rows of the same number go to the same fold.
    salt : draws that differ in it are independent of each other

    Notes
    -----
    Few rows (up to 131,072, and fewer than 4 million logits) are put in the order of their content within
    each slice, shuffled tie by tie, and dealt out in turn, so that every fold has its share of every slice.
    Right and wrong rows are not dealt apart: a fold that repeats each slice's accuracy would repeat its
    sampling error too, and a fit to that error would look like a gain. Many rows are dealt by the hash of
    their content, and only ties in turn.
    """
    if fold_groups is not None:
        return deal_groups(rows.keys, fold_groups, n_folds)
    if not are_few(len(rows), rows.z.shape[1]):
        return deal_by_keys(rows.keys, RowContent.of(rows), n_folds, salt)
    return _deal_in_turn(rows, ids, n_slices, n_folds, salt)


def are_few(n_rows: int, n_classes: int) -> bool:
    """Whether rows are dealt out in the order of their content; the size of the data alone decides."""
    return n_rows <= _FEW and n_rows * n_classes < LARGE


class RowContent(NamedTuple):
    """What puts tied rows in an order that does not depend on where they stand, (n,) each."""

    guess: CodeArray
    d_true: Float
    labels: CodeArray
    weight: Float | None
    columns: Callable[[IntArray], Keys]  # hash of some rows in which the order of the columns counts

    @classmethod
    def of(cls, rows: Rows) -> RowContent:
        """Return the content of rows in memory."""
        columns = lambda index: ordered_keys(rows.z[index])  # noqa: E731
        return cls(rows.guess, rows.d_true, rows.y, rows.given_weight, columns)


def deal_by_keys(keys: Keys, content: RowContent, n_folds: int, salt: int = 0) -> IntArray:
    """Fold of each row from its key; rows whose keys are equal are dealt out in turn, class by class."""
    draw = hash_mix(keys + np.uint64((salt + 1) * SALT % 2**64))
    fold = (draw % np.uint64(n_folds)).astype(np.int64)
    ordered = np.sort(keys)
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if repeated.size:
        place = np.minimum(np.searchsorted(repeated, keys), len(repeated) - 1)
        tied = np.flatnonzero(repeated[place] == keys)
        guess = content.guess[tied]
        parts = (content.weight, content.labels, content.d_true)
        others = [part[tied] for part in parts if part is not None]
        order = np.lexsort((content.columns(tied), *others, guess, place[tied]))
        group = place[tied][order]
        shuffled = np.lexsort((_random(len(tied), salt), guess[order], group))
        rank = np.arange(len(tied)) - np.searchsorted(group, group)
        fold[tied[order[shuffled]]] = (rank + fold[tied[order]]) % n_folds
    return fold


def deal_groups(keys: Keys, fold_groups: IntArray, n_folds: int) -> IntArray:
    """Fold of each row: groups go, the largest first, to the fold with the fewest rows so far.

    Groups of one size come in the order of their content, not of their names.
    """
    names, group = np.unique(fold_groups, return_inverse=True)
    size, content = np.bincount(group), np.zeros(len(names), np.uint64)
    np.add.at(content, group, keys)
    filled, fold = np.zeros(min(n_folds, len(names)), np.int64), np.empty(len(names), np.int64)
    for k in np.lexsort((hash_mix(content), -size)):
        fold[k] = filled.argmin()
        filled[fold[k]] += size[k]
    return fold[group]


def count_repeats(rows: Rows, alpha: float) -> int:
    """Rows that are copies of others, 0 where equal rows may be ties of a coarse score.

    Copies have the label of the original, whereas the labels of ties differ as often as two draws from the
    predicted probabilities, here ``softmax(α z)``, do. Copies are reported where the labels of equal rows
    should differ 30 times or more and hardly ever do.
    """
    keys = rows.keys ^ hash_mix(rows.guess.astype(np.uint64) + _SALT)
    _, first, group, size = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    repeated = np.flatnonzero(size > 1)
    if not repeated.size:
        return 0
    n_classes = rows.z.shape[1]
    _, pair, count = np.unique(
        group.astype(np.int64) * n_classes + rows.y, return_inverse=True, return_counts=True
    )
    agree = np.zeros(len(size))
    np.add.at(agree, group, (count[pair] - 1).astype(np.float64))  # of each row, how many others agree
    differ = (size - 1) - agree / size
    below = rows.below_top(first[repeated]).astype(np.float64)
    top = 1 / np.exp(alpha * below).sum(axis=1)
    expected = (size[repeated] - 1) * 2 * top * (1 - top)
    if expected.sum() < _EXPECTED or differ[repeated].sum() > _AGREE * expected.sum():
        return 0
    return int((size[repeated] - 1).sum())


def _deal_in_turn(rows: Rows, ids: CodeArray, n_slices: int, n_folds: int, salt: int) -> IntArray:
    margin, _ = top_margin(rows.z)
    keys = rows.keys
    place = _by_content(ids, margin, keys, n_slices)
    weights = [] if rows.given_weight is None else [rows.given_weight]
    order = np.lexsort((rows.y, *weights, rows.d_true, keys, margin, place))
    if not _changes(keys[order]).all():  # the order of the columns may still tell tied rows apart
        columns = ordered_keys(rows.z)
        order = np.lexsort((columns, rows.y, *weights, rows.d_true, keys, margin, place))
    group = np.cumsum(_changes(place[order]) | _changes(keys[order])) - 1
    draw = _random(int(group[-1]) + 1, salt)[group]
    within = _random(len(rows), salt + 1)
    order = order[np.lexsort((within, draw, place[order]))]
    fold = np.empty(len(rows), np.int64)
    fold[order] = np.arange(len(rows)) % n_folds
    return fold


def _by_content(ids: CodeArray, margin: Float, keys: Keys, n_slices: int) -> IntArray:
    """Slices numbered by their size, largest margin and content, whatever their numbers were."""
    largest, content = np.full(n_slices, -np.inf), np.zeros(n_slices, np.uint64)
    np.maximum.at(largest, ids, margin)
    np.add.at(content, ids, keys)
    place = np.empty(n_slices, np.int64)
    place[np.lexsort((content, largest, np.bincount(ids, minlength=n_slices)))] = np.arange(n_slices)
    return np.asarray(place[ids])


def _changes(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a value differs from the one before it; so does the first."""
    return np.asarray(np.r_[True, values[1:] != values[:-1]])


def _random(n: int, salt: int) -> Float:
    return np.random.default_rng(salt).random(n)
