"""Data of lower quality, made on purpose: label noise, under-sampling, splits.

Pure functions of the labels and an explicit random generator; images are never touched. The
experiments corrupt the training rows only, after :func:`stratified_split` has set aside the
validation rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcal._coerce import as_array
from hetcal._validate import as_generator

__all__ = ["noisy_labels", "stratified_split", "undersample"]


def noisy_labels(
    labels: ArrayLike,
    classes: Iterable[int],
    rate: float,
    n_classes: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Labels in which those of some classes are partly random.

    With probability ``rate`` a label of ``classes`` is redrawn uniformly from all ``n_classes``
    classes. It may be drawn as it was, so a share ``rate * (1 - 1 / n_classes)`` changes.

    Parameters
    ----------
    labels : array_like of int, shape (n,)
        Class of each row, 0 to ``n_classes - 1``. Not modified.
    classes : iterable of int
        The classes whose labels are noisy.
    rate : float
        Probability in [0, 1] that such a label is redrawn.
    n_classes : int
        Number of classes to draw from.
    rng : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    ndarray of int64, shape (n,)

    Examples
    --------
    >>> noisy_labels([0, 0, 1], classes=[0], rate=0.0, n_classes=2, rng=np.random.default_rng(0))
    array([0, 0, 1])
    """
    y = _checked_labels(labels)
    _check_rate(rate)
    _check_whole(n_classes, "n_classes")
    rng = as_generator(rng)
    if n_classes < 1 or (y.size and int(y.max()) >= n_classes):
        largest = int(y.max()) if y.size else 0
        raise ValueError(
            f"n_classes must exceed the largest label {largest}, got {n_classes}; "
            "pass the number of classes of the whole data set"
        )
    # Both draws cover every row: which rows change then depends on the generator alone, so a
    # higher rate corrupts a superset of the rows that a lower one does.
    redrawn = rng.random(y.size) < rate
    replacement = rng.integers(0, n_classes, size=y.size)
    affected = redrawn & np.isin(y, _checked_classes(classes, n_classes))
    return np.where(affected, replacement, y)


def undersample(
    labels: ArrayLike,
    classes: Iterable[int],
    rate: float,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Rows that remain when some classes are thinned out.

    Of the ``n_k`` rows of each class in ``classes``, ``round(n_k * rate)`` are kept (half up, at
    least one where ``rate > 0``); the rows of other classes are all kept.

    Parameters
    ----------
    labels : array_like of int, shape (n,)
        Class of each row.
    classes : iterable of int
        The classes to thin out.
    rate : float
        Share in [0, 1] of their rows to keep.
    rng : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    ndarray of int64
        Kept row indices, ascending.

    Examples
    --------
    >>> undersample([0, 1, 1, 1], classes=[0], rate=0.0, rng=np.random.default_rng(0))
    array([1, 2, 3])
    """
    y = _checked_labels(labels)
    _check_rate(rate)
    thinned, rng = _checked_classes(classes, None), as_generator(rng)
    kept = [np.flatnonzero(~np.isin(y, thinned))]
    for label in np.unique(thinned):
        rows = np.flatnonzero(y == label)
        count = math.floor(rows.size * rate + 0.5)
        if rate > 0:
            count = max(count, min(1, rows.size))
        kept.append(rng.permutation(rows)[:count])
    return np.sort(np.concatenate(kept)).astype(np.int64)


def stratified_split(
    labels: ArrayLike,
    per_class: int,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Set aside the same number of rows of every class.

    Parameters
    ----------
    labels : array_like of int, shape (n,)
        Class of each row.
    per_class : int
        Rows of each class to set aside.
    rng : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    train, validation : ndarray of int64
        Row indices, ascending and disjoint; together they are all rows.

    Examples
    --------
    >>> train, validation = stratified_split([0, 1, 0, 1], 1, np.random.default_rng(0))
    >>> len(train), len(validation)
    (2, 2)
    """
    y, rng = _checked_labels(labels), as_generator(rng)
    _check_whole(per_class, "per_class")
    if per_class < 0:
        raise ValueError(f"per_class must be 0 or more, got {per_class}; pass the rows to set aside")
    held = np.zeros(y.size, dtype=bool)
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        if rows.size < per_class:
            raise ValueError(
                f"per_class must be at most the rows of the smallest class, got {per_class} "
                f"where class {label} has {rows.size}; pass a smaller number"
            )
        held[rng.permutation(rows)[:per_class]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def _checked_labels(labels: ArrayLike) -> NDArray[np.int64]:
    """Labels as a one-dimensional int64 array; the caller's array is not modified."""
    y = as_array(labels, "labels")
    if y.ndim != 1:
        raise ValueError(f"labels must have one dimension, got shape {y.shape}; pass one class per row")
    if y.size and not np.issubdtype(y.dtype, np.integer):
        raise TypeError(f"labels must be integers, got dtype {y.dtype}; pass class numbers from 0")
    if y.size and int(y.min()) < 0:
        row = int(np.argmin(y))
        raise ValueError(f"labels must be 0 or more, got {int(y[row])} at row {row}; number classes from 0")
    return y.astype(np.int64)


def _checked_classes(classes: Iterable[int], n_classes: int | None) -> NDArray[np.int64]:
    """Class numbers as an array, refused where they cannot occur."""
    try:
        chosen = np.asarray(list(classes))
    except (TypeError, ValueError):
        raise TypeError(f"classes must be a list of class numbers, got {classes!r}") from None
    if chosen.ndim != 1:
        raise ValueError(f"classes must have one dimension, got shape {chosen.shape}; pass class numbers")
    if chosen.size and not np.issubdtype(chosen.dtype, np.integer):
        raise TypeError(f"classes must be integers, got dtype {chosen.dtype}; pass class numbers from 0")
    outside = chosen[(chosen < 0) | (chosen >= n_classes)] if n_classes is not None else chosen[chosen < 0]
    if outside.size:
        limit = "0 or more" if n_classes is None else f"in 0..{n_classes - 1}"
        raise ValueError(f"classes must be {limit}, got {int(outside[0])}; number classes from 0")
    return chosen.astype(np.int64)


def _check_rate(rate: float) -> None:
    """Refuse a rate that is not a probability."""
    if isinstance(rate, bool) or not isinstance(rate, int | float | np.integer | np.floating):
        raise TypeError(f"rate must be a number in [0, 1], got {rate!r}; pass a fraction, 0.3 for 30 percent")
    if not 0.0 <= rate <= 1.0:
        raise ValueError(f"rate must be in [0, 1], got {rate}; pass a fraction, 0.3 for 30 percent")


def _check_whole(value: object, name: str) -> None:
    """Refuse what is not an integer."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {value!r}; pass a whole number")
