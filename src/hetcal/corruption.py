"""Label noise and under-sampling, which degrade training data in a controlled way, and stratified splits.

All functions take the labels, which they do not modify, and an explicit random generator. To keep validation
rows clean, set them aside with :func:`stratified_split`, and corrupt only the training rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from hetcal._coerce import as_array
from hetcal._typing import IntArray
from hetcal._validate import as_generator, check_integer, check_number

__all__ = ["noisy_labels", "stratified_split", "undersample"]


def noisy_labels(
    labels: ArrayLike,
    classes: Iterable[int],
    rate: float,
    n_classes: int,
    rng: np.random.Generator,
) -> IntArray:
    """Replace some labels of the given classes by random ones.

    With probability ``rate``, a label in ``classes`` is redrawn uniformly from all ``n_classes`` classes. The
    new label can equal the old one, so on average a fraction ``rate * (1 - 1 / n_classes)`` of these labels
    changes.

    Parameters
    ----------
    labels : array_like of int, shape (n,)
        Class of each row, 0 to ``n_classes - 1``. The array is not modified.
    classes : iterable of int
        Classes whose labels become noisy.
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
    y = _check_labels(labels)
    rate = _check_rate(rate)
    check_integer(n_classes, "n_classes", minimum=1)
    rng = as_generator(rng)
    if y.size and int(y.max()) >= n_classes:
        raise ValueError(
            f"n_classes must exceed the largest label {int(y.max())}, got {n_classes}; "
            "pass the number of classes in the full data set"
        )
    # Random numbers are drawn for all rows. With the same seed, a higher rate therefore redraws the same
    # labels and some more.
    redrawn = rng.random(y.size) < rate
    replacement = rng.integers(0, n_classes, size=y.size)
    affected = redrawn & np.isin(y, _check_classes(classes, n_classes))
    return np.where(affected, replacement, y)


def undersample(
    labels: ArrayLike,
    classes: Iterable[int],
    rate: float,
    rng: np.random.Generator,
) -> IntArray:
    """Keep a random subset of the rows of the given classes.

    Of the ``n_k`` rows of each class in ``classes``, ``round(n_k * rate)`` are kept (rounding half up, and at
    least one if ``rate > 0``). All rows of other classes are kept.

    Parameters
    ----------
    labels : array_like of int, shape (n,)
        Class of each row.
    classes : iterable of int
        Classes to under-sample.
    rate : float
        Fraction in [0, 1] of their rows to keep.
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
    y = _check_labels(labels)
    rate = _check_rate(rate)
    reduced, rng = _check_classes(classes, None), as_generator(rng)
    parts = [np.flatnonzero(~np.isin(y, reduced))]
    for label in np.unique(reduced):
        rows = np.flatnonzero(y == label)
        count = math.floor(rows.size * rate + 0.5)
        if rate > 0:
            count = max(count, min(1, rows.size))
        parts.append(rng.permutation(rows)[:count])
    return np.sort(np.concatenate(parts)).astype(np.int64)


def stratified_split(
    labels: ArrayLike,
    per_class: int,
    rng: np.random.Generator,
) -> tuple[IntArray, IntArray]:
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
        Row indices in ascending order. Every row is in exactly one of the two.

    Examples
    --------
    >>> train, validation = stratified_split([0, 1, 0, 1], 1, np.random.default_rng(0))
    >>> len(train), len(validation)
    (2, 2)
    """
    y, rng = _check_labels(labels), as_generator(rng)
    check_integer(per_class, "per_class", minimum=0, remedy="pass the number of rows to set aside")
    is_validation = np.zeros(y.size, dtype=bool)
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        if rows.size < per_class:
            raise ValueError(
                f"per_class must be at most {rows.size}, the number of rows of class {label}, "
                f"got {per_class}; pass a smaller number"
            )
        is_validation[rng.permutation(rows)[:per_class]] = True
    return np.flatnonzero(~is_validation), np.flatnonzero(is_validation)


def _check_labels(labels: ArrayLike) -> IntArray:
    """Validate class numbers and return them as a new one-dimensional int64 array."""
    y = as_array(labels, "labels")
    if y.ndim != 1:
        raise ValueError(f"labels must have one dimension, got shape {y.shape}; pass one class per row")
    if y.size and not np.issubdtype(y.dtype, np.integer):
        raise TypeError(f"labels must be integers, got dtype {y.dtype}; pass class numbers from 0")
    if y.size and int(y.min()) < 0:
        row = int(np.argmin(y))
        raise ValueError(f"labels must be 0 or more, got {int(y[row])} at row {row}; number classes from 0")
    return y.astype(np.int64)


def _check_classes(classes: Iterable[int], n_classes: int | None) -> IntArray:
    """Validate the numbers of the affected classes and return them as a one-dimensional int64 array."""
    try:
        numbers = np.asarray(list(classes))
    except (TypeError, ValueError):
        raise TypeError(
            f"classes must be a list of class numbers, got {classes!r}; pass a list, such as [0, 1]"
        ) from None
    if numbers.ndim != 1:
        raise ValueError(f"classes must have one dimension, got shape {numbers.shape}; pass class numbers")
    if numbers.size and not np.issubdtype(numbers.dtype, np.integer):
        raise TypeError(f"classes must be integers, got dtype {numbers.dtype}; pass class numbers from 0")
    outside = (
        numbers[(numbers < 0) | (numbers >= n_classes)] if n_classes is not None else numbers[numbers < 0]
    )
    if outside.size:
        limit = "0 or more" if n_classes is None else f"in 0..{n_classes - 1}"
        raise ValueError(f"classes must be {limit}, got {int(outside[0])}; number classes from 0")
    return numbers.astype(np.int64)


def _check_rate(rate: float) -> float:
    return check_number(rate, "rate", minimum=0, maximum=1, remedy="pass a fraction, 0.3 for 30 percent")
