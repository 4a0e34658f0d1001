"""Columns of tables: which are no class, what classes they name, and columns in another order."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._coerce import as_array
from hetcal._display import printable

__all__ = [
    "align_columns",
    "are_numbers",
    "class_names_of",
    "class_numbers",
    "class_positions",
    "column_names",
    "column_order",
    "counted_names",
    "index_columns",
    "is_index",
    "label_positions",
    "labels_by_number",
    "refuse_repeated",
]

# As pandas and Dask write an index that has no name, and as pandas reads an unnamed column of a CSV
_INDEX = re.compile(r"__index_level_\d+__|__null_dask_index__|Unnamed: \d+(\.\d+|_level_\d+)*")
_PREFIX = r"(?:(?i:logits?|probs?)|z|class)?"
# A number with or without a prefix; a minus is one only where no prefix stands right before it
_NUMBERED = re.compile(rf"{_PREFIX}[_ ]?(\d+)(?:\.0*)?|(?:{_PREFIX}[_ ])?(-\d+)(?:\.0*)?")
_PREFIXED = re.compile(r"(?:logit|prob)s?_(.+)", re.IGNORECASE)
_WHOLE = re.compile(r"\s*([+-]?\d+)(?:\.0*)?\s*")
_LONGEST = 18  # digits that an int64 always holds
_SHOWN = 8  # names in an error


def column_names(table: Any) -> list[str] | None:
    """Names that the columns of a data frame or table have, None for an array."""
    columns = getattr(table, "column_names", None)  # PyArrow
    if columns is None or callable(columns):
        columns = getattr(table, "columns", None)  # pandas, polars
    if columns is None or callable(columns) or isinstance(table, np.ndarray):
        return None
    return [str(name) for name in columns]


def class_names_of(columns: Sequence[object]) -> list[str]:
    """Class names that columns stand for, without ``logit_`` or ``prob_``; numbers of numbered columns."""
    numbers = class_numbers(columns)
    if numbers is not None:
        return [str(number) for number in numbers]
    matched = [_PREFIXED.fullmatch(str(name)) for name in columns]
    return [m[1] for m in matched if m] if all(matched) else [str(name) for name in columns]


def counted_names(n_classes: int) -> list[str]:
    """Names of columns that only count up: they say no more than the position does."""
    return [str(k) for k in range(n_classes)]


def column_order(
    known: Sequence[str] | None, given: Sequence[str] | None, name: str = "logits"
) -> NDArray[np.int64] | None:
    """Places of the columns of a fit among those given; None where they go by position.

    Parameters
    ----------
    known : names in the order of the fit, or None where its columns had none, or only counted up
    given : names of the columns given, or None for an array
    """
    if given is None:
        return None
    counted = counted_names(len(given))
    if known is None and sorted(given) == sorted(counted):
        known = counted
    only_counts = list(given) == counted and known is not None and sorted(known) != sorted(counted)
    return None if known is None or only_counts else align_columns(known, given, name)


def align_columns(
    known: Sequence[str], given: Sequence[str], name: str = "logits"
) -> NDArray[np.int64] | None:
    """Places of the columns `known` among those `given`; None where the order is the same."""
    if list(known) == list(given):
        return None
    for which, names in (("fitted", known), ("given", given)):
        twice = next((text for text, times in Counter(names).items() if times > 1), None)
        if twice is not None:
            raise ValueError(
                f"{name} must have columns in the order of fit, got another order and the name {twice!r} "
                f"twice among those {which}; give every class a name of its own"
            )
    missing = [text for text in known if text not in set(given)]
    strange = [text for text in given if text not in set(known)]
    if missing or strange:
        problems = [f"no {missing[0]!r}"] if missing else []
        problems += [f"{strange[0]!r}, which fit did not have"] if strange else []
        raise ValueError(
            f"{name} must have a column for each class of fit ({_some(known)}), got "
            f"{' and '.join(problems)}; rename, add or drop columns until the names agree"
        )
    place = {text: k for k, text in enumerate(given)}
    return np.array([place[text] for text in known], np.int64)


def is_index(name: object) -> bool:
    """Whether a column has the name of an index that was written without one."""
    return _INDEX.fullmatch(str(name)) is not None


def index_columns(schema: Any) -> set[str]:
    """Columns of an Arrow schema that were the index of a data frame."""
    unnamed = {name for name in schema.names if is_index(name)}
    try:
        about = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
        stored = {c for c in about["index_columns"] if isinstance(c, str)}  # a range is no column
    except (ValueError, KeyError, TypeError, RecursionError):  # other writers, or damaged
        return unnamed
    return unnamed | stored


def refuse_repeated(schema: Any, name: str = "columns") -> None:
    """Raise an error where columns of an Arrow schema share a name, since they are read by their names."""
    for column, times in Counter(schema.names).items():
        if times > 1:
            raise ValueError(
                f"{name} must have a name each, got {times} named {_cut(column)}; rename all but one"
            )


def class_numbers(columns: Sequence[object], name: str = "columns") -> list[int] | None:
    """Whole numbers that the columns are named with, or None where some have other names.

    A prefix such as ``logit_`` does not count.
    """
    matches = [_NUMBERED.fullmatch(str(c)) for c in columns]
    texts = [m[1] or m[2] for m in matches if m]
    if len(texts) < len(columns):
        return None
    if long := next((c for c, text in zip(columns, texts, strict=True) if len(text) > _LONGEST), None):
        raise ValueError(
            f"{name} must be numbered with at most {_LONGEST} digits, got {_cut(long)}; "
            "give the column a shorter name"
        )
    return [int(text) for text in texts]


def class_positions(columns: Sequence[object], name: str = "columns") -> dict[int, int] | None:
    """Position of every column by its number, where numeric labels go by these numbers, and None elsewhere.

    Numbers other than 0, 1, 2, … in order are names of classes: label 10 is the column named 10.
    """
    numbers = class_numbers(columns, name)
    if numbers is None or numbers == list(range(len(numbers))):
        return None
    positions: dict[int, int] = {}
    for i, number in enumerate(numbers):
        if number in positions:
            first = columns[positions[number]]
            raise ValueError(
                f"{name} must have a number each, got {_cut(first)} and {_cut(columns[i])}, "
                f"both of class {number}; rename or remove one"
            )
        positions[number] = i
    return positions


def labels_by_number(labels: Any, columns: Sequence[object] | None, class_names: Any = None) -> Any:
    """Positions of labels where classes are numbered, by the columns of a table or by `class_names`.

    `class_names` number the classes where all of them are whole numbers, not texts: beside names that are
    texts, integers are positions. Labels that need no change are returned as they are.
    """
    if labels is None:
        return None
    if class_names is not None:
        names = np.asarray(class_names, dtype=object).ravel().tolist()
        repeats = columns is not None and class_names_of(columns) == class_names_of(names)
        if not repeats:
            columns = names if are_numbers(class_names) else None
    if columns is None:
        return labels
    given, numbers = as_array(labels, "labels"), class_numbers(columns)
    text = given.dtype.kind == "U" or (given.dtype.kind == "O" and all(isinstance(v, str) for v in given))
    if numbers is None:
        numbered = next((name for name in map(str, columns) if name.isdecimal()), None)
        if numbered is not None and not text:
            raise ValueError(
                f"labels must say which column they mean, got numbers where {numbered!r} is a column's name "
                "and other names are no numbers; rename that column to a word"
            )
        return labels
    positions = class_positions(columns)
    if positions is None:
        return label_positions(given, {k: k for k in numbers}) if text else labels
    return label_positions(given, positions)


def are_numbers(class_names: Any) -> bool:
    """Whether class names are whole numbers, and not texts: then labels that are numbers go by them."""
    return all(map(_is_whole, np.asarray(class_names, dtype=object).ravel().tolist()))


def _is_whole(value: object) -> bool:
    """Whether a class name is a whole number, not a text or a truth value."""
    if isinstance(value, bool | np.bool_):
        return False
    return isinstance(value, int | np.integer) or (
        isinstance(value, float | np.floating) and float(value).is_integer()
    )


def label_positions(labels: Any, positions: Mapping[int, int], name: str = "labels") -> NDArray[np.int64]:
    """Columns of labels that name them by number; integers, floats or text."""
    given = np.asarray(labels)
    if given.dtype.kind == "O":
        given = np.array([str(v) for v in given.ravel()], dtype=str)
    values, inverse = np.unique(given, return_inverse=True)
    found = [positions.get(number, -1) if (number := _whole(v)) is not None else -1 for v in values.tolist()]
    out = np.array(found, np.int64)[inverse.ravel()]
    if (out < 0).any():
        row = int(np.argmax(out < 0))
        raise ValueError(
            f"{name} must be the number of a column ({_some(positions)}), got {_cut(given.flat[row])} "
            f"at row {row}; if labels count the columns from 0, name these 0, 1, 2, … in their order"
        )
    return out


def _whole(value: object) -> int | None:
    """Whole number that a label stands for, or None."""
    if isinstance(value, str):
        match = _WHOLE.fullmatch(value) or _NUMBERED.fullmatch(value)
        if match is not None:
            text = match[1] or match[2]
            return int(text) if len(text) <= _LONGEST + 1 else None
        try:
            value = float(value)  # as in 1e1
        except ValueError:
            return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return int(value) if isinstance(value, int) else None


def _some(names: Iterable[object]) -> str:
    shown = [printable(name) for name in names]
    return ", ".join(shown[:_SHOWN]) + (f", … {shown[-1]}" if len(shown) > _SHOWN else "")


def _cut(value: object) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 60 else text[:59] + "…"
