"""Probabilities of two classes from one probability per row, which is P(class 1)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._coerce import as_array, is_text, name_number, real_array, refuse_non_finite, working_dtype
from hetcal._columns import class_numbers, column_names
from hetcal._display import printable
from hetcal._numeric.device import is_tensor
from hetcal._typing import FloatArray
from hetcal._warnings import warn_confidences

__all__ = [
    "BinaryTable",
    "binary_names",
    "both_columns",
    "fitted_names",
    "positive_name",
    "refuse_swapped",
    "two_columns",
]

_PROB_COLUMN = re.compile(r"probs?_(.+)", re.IGNORECASE)
_MIN_ROWS = 20  # with fewer rows, all probabilities may be at least 0.5 by chance
_MAX_GAP = 0.1  # a mean probability is suspicious if it exceeds the frequency of class 1 by more than this
_SCORES = "pass log-odds as logits=hetcal.binary_logits(scores)"


@dataclass(frozen=True)
class BinaryTable:
    """Probabilities (n, 2) with names of both columns, from a table that has a column for class 1 only."""

    columns: tuple[str, str]
    values: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows and columns."""
        return self.values.shape

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = self.values if dtype is None else self.values.astype(dtype, copy=False)
        return values.copy() if copy else values


def two_columns(
    probs: Any,
    labels: Any = None,
    class_names: Any = None,
    *,
    fit_names: Sequence[str] | None = None,
    remedy: str = "pass a column for each class",
    name: str = "probs",
) -> Any:
    """Probabilities (n, 2) from the probabilities of class 1; any other input is returned unchanged.

    Parameters
    ----------
    probs : (n,) or (n, 1) array, tensor or table
        In a table, the column name ``prob_<class>`` gives the name of class 1. The name ``prob_1`` gives
        none.
    labels : (n,) labels, or None
        If the column names class 1 and the labels are text, the other name in the labels becomes the name of
        class 0. Numeric labels above 1 are refused. Labels are ignored if `probs` is a tensor or if
        `class_names` are passed.
    class_names : names of both classes, or None
        If the column names class 1, this name must not be the first of the two.
    fit_names : class names with which a calibrator was fitted, or None
        If these are two names and include that of class 1, the other becomes the name of class 0.
    remedy : end of the error for labels of more than two classes
    name : name of the argument `probs` in errors

    Returns
    -------
    probs : tensor for a tensor, `BinaryTable` if the column names class 1, otherwise an array
    """
    if not _has_one_column(probs):
        return probs
    if is_tensor(probs):
        import torch

        both_columns(as_array(probs, name), name)  # called only to raise errors for invalid input
        p = probs.reshape(-1)
        return torch.stack([1 - p, p], dim=1)
    columns = column_names(probs)
    positive = None if columns is None else positive_name(columns[0], name)
    p = both_columns(as_array(probs, name), name)
    y = None if labels is None or class_names is not None else as_array(labels, "labels")
    if y is not None and not is_text(y):
        _check_numeric(y, p, remedy, is_named=positive is not None)
    if positive is None:
        return p
    if class_names is not None:
        refuse_swapped(np.asarray(class_names, dtype=object).ravel().tolist(), positive, "class_names")
    names = fitted_names(binary_names(positive, y, remedy=remedy), fit_names)
    return BinaryTable((f"prob_{names[0]}", f"prob_{names[1]}"), p)


def both_columns(probs: Any, name: str = "probs", scores_remedy: str = _SCORES) -> FloatArray:
    """Two columns, 1 - p and p, from probabilities of shape (n,) or (n, 1)."""
    p = working_dtype(real_array(probs, name)).reshape(-1)
    refuse_non_finite(p, name)
    if p.size and (p.min() < 0 or p.max() > 1):
        row = int(np.argmax((p < 0) | (p > 1)))
        value = name_number(p[row])
        raise ValueError(f"{name} must lie in [0, 1], got {value} at row {row}; {scores_remedy}")
    return np.stack([1 - p, p], axis=1)


def positive_name(column: str, name: str) -> str | None:
    """Return the name of class 1 from the name ``prob_<class>`` of the only column.

    The result is None for ``prob_1`` and for names without ``prob_``. Any other number, as in ``prob_0``,
    raises an error.
    """
    match = _PROB_COLUMN.fullmatch(column)
    numbers = None if match is None else class_numbers([match[1]])
    if match is None or numbers == [1]:
        return None
    if numbers is not None:
        raise ValueError(
            f"{name} must have a column for each class, or a single column prob_1 or prob_<name of class 1>, "
            f"got only {printable(column)!r}; add the other column, or replace this one with a column prob_1 "
            "that contains the probability of class 1"
        )
    return match[1]


def binary_names(
    positive: str, labels: NDArray[Any] | None, *, name: str = "labels", remedy: str
) -> list[str]:
    """Return the names of class 0 and class 1; the latter is `positive`.

    If the labels are text and include another name, this is the name of class 0. Otherwise class 0 is called
    "not <positive>". Labels with several other names raise an error that ends with `remedy`.
    """
    others: list[str] = []
    if labels is not None and is_text(labels):
        texts = labels.astype(str)
        others = sorted(set(texts.tolist()) - {positive})
        blank = next((text for text in others if not text.strip()), None)
        if blank is not None:
            row = int(np.argmax(texts == blank))
            raise ValueError(
                f"{name} must name a class in every row, got {blank!r} at row {row}; drop the row or correct "
                "its label"
            )
    if len(others) > 1:
        shown = ", ".join(repr(printable(text)) for text in others[:3])
        raise ValueError(
            f"{name} must be {positive!r} or one other name, because the only column is that of "
            f"{positive!r}, got the other names {shown}{', …' if len(others) > 3 else ''}; {remedy}"
        )
    return [others[0] if others else f"not {positive}", positive]


def refuse_swapped(names: Sequence[object], positive: str, name: str) -> None:
    """Raise an error if `positive`, the class of the only column, is the first of two class names."""
    if len(names) == 2 and names[0] == positive != names[1]:
        raise ValueError(
            f"{name} must list {positive!r} second, because a single column contains the probabilities of "
            "the second class, got this name first; swap the names"
        )


def fitted_names(names: list[str], fit_names: Sequence[str] | None) -> list[str]:
    """Return the names of class 0 and class 1, with the name of class 0 from the fit if possible.

    If the fit had two classes, and one of them has the name of class 1 in `names`, the other is class 0.
    Otherwise `names` are returned unchanged.
    """
    if fit_names is None or len(fit_names) != 2 or names[1] not in fit_names:
        return names
    return [next((text for text in fit_names if text != names[1]), names[0]), names[1]]


def _plain_numbers(y: NDArray[Any]) -> NDArray[Any]:
    """Flatten labels (n, 1) to (n,). If they are objects that are all numbers, convert them to float64."""
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.dtype.kind == "O" and all(isinstance(value, int | float | np.number) for value in y.ravel()):
        return y.astype(np.float64)
    return y


def _has_one_column(probs: Any) -> bool:
    if probs is None or hasattr(probs, "n_classes"):  # batches have n_classes, and a column for each class
        return False
    shape = getattr(probs, "shape", None)
    shape = as_array(probs, "probs").shape if shape is None else tuple(shape)
    return len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)


def _check_numeric(y: NDArray[Any], p: FloatArray, remedy: str, *, is_named: bool) -> None:
    """Refuse labels above 1, and warn if `p` seems to contain confidences instead of P(class 1).

    There is no warning if `is_named` is true: then the column is named after class 1, as in ``prob_spam``.
    """
    y = _plain_numbers(y)
    if y.dtype.kind not in "iubf" or y.ndim != 1 or len(y) != len(p):
        return  # check_labels validates such labels later
    if (y > 1).any():
        row = int(np.argmax(y > 1))
        raise ValueError(
            "labels must be 0 or 1 if probs has one probability per row, which is P(class 1), got "
            f"{name_number(y[row])} at row {row}; {remedy}"
        )
    is_suspicious = len(p) >= _MIN_ROWS and p[:, 1].min() >= 0.5 and p[:, 1].mean() - y.mean() > _MAX_GAP
    if is_suspicious and not is_named:
        warn_confidences()
