"""Columns of tables: class names and numbers, column order, and the columns of a data frame's index."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._coerce import as_array, is_text
from hetcal._display import printable

__all__ = [
    "LABEL_COLUMNS",
    "PREDICTION_COLUMNS",
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
    "refuse_other_columns",
    "refuse_reordered",
    "refuse_repeated",
]

# Names, in lower case, of columns that contain no scores of a class
LABEL_COLUMNS = ("label", "labels", "y", "y_true", "target")
PREDICTION_COLUMNS = ("predicted", "prediction", "pred", "y_pred", "confidence")

# Names that pandas and Dask give an unnamed index, and that pandas gives an unnamed column of a CSV file
_INDEX = re.compile(r"__index_level_\d+__|__null_dask_index__|Unnamed: \d+(\.\d+|_level_\d+)*")
_PREFIX = r"(?:(?i:logits?|probs?)|z|class)?"
# A number, perhaps after a prefix. Between a prefix and a negative number, a separator is required: logit_-3
# matches, logit-3 does not.
_NUMBERED = re.compile(rf"{_PREFIX}[_ ]?(\d+)(?:\.0*)?|(?:{_PREFIX}[_ ])?(-\d+)(?:\.0*)?")
_PREFIXED = re.compile(r"(?:(logit)|prob)s?_(.+)", re.IGNORECASE)
_WHOLE = re.compile(r"\s*([+-]?\d+)(?:\.0*)?\s*")
_MAX_DIGITS = 18  # every number with at most this many digits fits in an int64
_MAX_SHOWN = 8  # an error lists at most this many names, followed by the last name if there are more


def column_names(table: Any) -> list[str] | None:
    """Names of the columns of a data frame or table, as strings; None for input without named columns."""
    columns = getattr(table, "column_names", None)  # a table of PyArrow
    if columns is None or callable(columns):
        columns = getattr(table, "columns", None)  # a data frame of pandas or polars
    if columns is None or callable(columns) or isinstance(table, np.ndarray):
        return None
    return [str(name) for name in columns]


def class_names_of(columns: Sequence[object]) -> list[str]:
    """Class names from column names.

    If all columns are numbered, such as ``3`` or ``logit_3``, the class names are the numbers as text.
    Otherwise they are the column names, without the prefix ``logit_`` or ``prob_`` if all columns have one.
    """
    numbers = class_numbers(columns)
    if numbers is not None:
        return [str(number) for number in numbers]
    matches = [_PREFIXED.fullmatch(str(name)) for name in columns]
    return [m[2] for m in matches if m] if all(matches) else [str(name) for name in columns]


def counted_names(n_classes: int) -> list[str]:
    """Class names "0", "1", …, which are the positions of the columns."""
    return [str(k) for k in range(n_classes)]


def column_order(
    fit_names: Sequence[str] | None, names: Sequence[str] | None, name: str = "logits"
) -> NDArray[np.int64] | None:
    """Return the position in this input of each column of the fit, or None if no reordering is needed.

    Columns are compared by name. If `fit_names` is None, they are compared only if the columns of this input
    are named "0", "1", … in some order; the columns of the fit then count as "0", "1", … in order. If the
    columns of this input are named "0", "1", … in order, and those of the fit have other names, the input
    counts as an array without names.

    Parameters
    ----------
    fit_names : names of the columns in fit, in order; None if they had no names, or the names "0", "1", …
    names : names of the columns of this input, or None for an array
    name : name of the argument in error messages
    """
    if names is None:
        return None
    counted = counted_names(len(names))
    if fit_names is None and sorted(names) == sorted(counted):
        fit_names = counted
    only_counts = list(names) == counted and fit_names is not None and sorted(fit_names) != sorted(counted)
    return None if fit_names is None or only_counts else align_columns(fit_names, names, name)


def align_columns(
    fit_names: Sequence[str], names: Sequence[str], name: str = "logits"
) -> NDArray[np.int64] | None:
    """Return the position of each of `fit_names` in `names`, or None if both have the same order.

    If the two lists are not equal, repeated names and names that only one of the lists contains raise an
    error.
    """
    if list(fit_names) == list(names):
        return None
    for origin, columns in (("fit", fit_names), ("this input", names)):
        repeated = next((text for text, count in Counter(columns).items() if count > 1), None)
        if repeated is not None:
            raise ValueError(
                f"{name} must have distinct column names if the columns or their order differ from those in "
                f"fit, got {repeated!r} more than once in {origin}; give every class a distinct name"
            )
    missing = [text for text in fit_names if text not in set(names)]
    unknown = [text for text in names if text not in set(fit_names)]
    if missing or unknown:
        problems = [f"no {missing[0]!r}"] if missing else []
        problems += [f"{unknown[0]!r}, which fit did not have"] if unknown else []
        raise ValueError(
            f"{name} must have the same columns as in fit ({_list_names(fit_names)}), got "
            f"{' and '.join(problems)}; rename, add or drop columns until the names agree"
        )
    position = {text: k for k, text in enumerate(names)}
    return np.array([position[text] for text in fit_names], np.int64)


def is_index(name: object) -> bool:
    """Whether a column has a name that pandas or Dask gives to an unnamed index or column."""
    return _INDEX.fullmatch(str(name)) is not None


def index_columns(schema: Any) -> set[str]:
    """Names of the columns of an Arrow schema that store the index of a data frame."""
    unnamed = {name for name in schema.names if is_index(name)}
    try:
        metadata = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
        stored = {c for c in metadata["index_columns"] if isinstance(c, str)}  # a range index is a dict
    except (ValueError, KeyError, TypeError, RecursionError):  # the metadata of pandas is missing or damaged
        return unnamed
    return unnamed | stored


def refuse_repeated(schema: Any, name: str = "columns") -> None:
    """Raise an error if columns of an Arrow schema share a name, since columns are read by name."""
    for column, count in Counter(schema.names).items():
        if count > 1:
            raise ValueError(
                f"{name} must have distinct names, got {count} named {_shorten(column)}; rename all but one"
            )


def refuse_reordered(columns: Sequence[str], names: Sequence[str]) -> None:
    """Raise an error if the class names `names` are the names of the columns in another order."""
    if list(columns) != list(names) and sorted(columns) == sorted(names):
        raise ValueError(
            f"class_names must be in the order of the columns ({', '.join(map(printable, columns[:9]))}), "
            f"got {', '.join(map(printable, names[:9]))}; leave out class_names, since the columns already "
            "have names"
        )


def refuse_other_columns(table: Any, name: str) -> None:
    """Raise an error if a table has columns that do not belong to a class.

    If some columns have the prefix ``logit_`` or ``prob_``, columns without a prefix are refused, and so is a
    mixture of both prefixes. If none has one, the usual names of labels and predictions are refused. Tables
    whose columns are all numbered are accepted.
    """
    columns = column_names(table)
    if columns is None or class_numbers(columns) is not None:
        return
    matches = [_PREFIXED.fullmatch(column) for column in columns]
    if any(matches):
        other, remedy = [column for column, match in zip(columns, matches, strict=True) if not match], ""
    else:
        other = [column for column in columns if column.lower() in (*LABEL_COLUMNS, *PREDICTION_COLUMNS)]
        remedy = ", or, if they belong to classes, rename all columns to logit_<class> or prob_<class>"
    if other:
        shown = other if len(other) <= _MAX_SHOWN else other[:1]
        raise ValueError(
            f"{name} must have only the columns of the classes, got also {_list_names(map(repr, other))}; "
            f"leave them out, for example with .drop(columns={shown}) in pandas or .drop({shown}) in polars"
            f"{remedy}"
        )
    if len({match[1] is None for match in matches if match}) > 1:
        raise ValueError(
            f"{name} must have one column per class, got columns of logits and of probabilities "
            f"({_list_names(columns)}); leave out those of one kind"
        )


def class_numbers(columns: Sequence[object], name: str = "columns") -> list[int] | None:
    """Whole numbers in the names of the columns, or None if some columns have other names.

    A prefix such as ``logit_`` is ignored.
    """
    matches = [_NUMBERED.fullmatch(str(c)) for c in columns]
    texts = [m[1] or m[2] for m in matches if m]
    if len(texts) < len(columns):
        return None
    digits = (len(text.lstrip("-")) for text in texts)
    if long := next((c for c, n in zip(columns, digits, strict=True) if n > _MAX_DIGITS), None):
        raise ValueError(
            f"{name} must be numbered with at most {_MAX_DIGITS} digits, got {_shorten(long)}; "
            "give the column a shorter name"
        )
    return [int(text) for text in texts]


def class_positions(columns: Sequence[object], name: str = "columns") -> dict[int, int] | None:
    """Map the number of each column to its position; None if numeric labels are themselves positions.

    They are positions if the columns are numbered 0, 1, 2, … in order, or if the names of some columns are
    not numbers. Otherwise labels refer to the numbers: label 10 is the column named 10.
    """
    numbers = class_numbers(columns, name)
    if numbers is None or numbers == list(range(len(numbers))):
        return None
    positions: dict[int, int] = {}
    for i, number in enumerate(numbers):
        if number in positions:
            first = columns[positions[number]]
            raise ValueError(
                f"{name} must have distinct numbers, got {_shorten(first)} and {_shorten(columns[i])}, "
                f"both of class {number}; rename or remove one"
            )
        positions[number] = i
    return positions


def labels_by_number(labels: Any, columns: Sequence[object] | None, class_names: Any = None) -> Any:
    """Convert labels that refer to classes by number to positions of columns.

    By default, labels refer to the numbers in the names of the columns, as in :func:`class_positions`. If
    `class_names` are passed and differ from the names of the columns, the class names are used instead. If
    all of them are whole numbers, labels refer to them. Otherwise numeric labels are positions. Labels that
    need no conversion are returned unchanged.
    """
    if labels is None:
        return None
    if class_names is not None:
        names = np.asarray(class_names, dtype=object).ravel().tolist()
        if columns is not None:
            refuse_reordered(class_names_of(columns), class_names_of(names))
        repeats = columns is not None and class_names_of(columns) == class_names_of(names)
        if not repeats:
            columns = names if are_numbers(class_names) else None
    if columns is None:
        return labels
    array, numbers = as_array(labels, "labels"), class_numbers(columns)
    if numbers is None:
        numeric_name = next((name for name in map(str, columns) if name.isdecimal()), None)
        if numeric_name is not None and not is_text(array):
            raise ValueError(
                "labels must identify one column, got numbers, which could be names or positions of columns, "
                f"because one column is named {numeric_name!r} and others by words; rename that column to a "
                "word"
            )
        return labels
    positions = class_positions(columns)
    if positions is None:
        return label_positions(array, {k: k for k in numbers}) if is_text(array) else labels
    return label_positions(array, positions)


def are_numbers(class_names: Any) -> bool:
    """Whether class names are whole numbers rather than text, so that numeric labels refer to them."""
    return all(map(_is_whole, np.asarray(class_names, dtype=object).ravel().tolist()))


def _is_whole(value: object) -> bool:
    """Whether a class name is a whole number rather than text or a boolean."""
    if isinstance(value, bool | np.bool_):
        return False
    return isinstance(value, int | np.integer) or (
        isinstance(value, float | np.floating) and float(value).is_integer()
    )


def label_positions(labels: Any, positions: Mapping[int, int], name: str = "labels") -> NDArray[np.int64]:
    """Return the position of the column that each label refers to.

    `positions` maps the number of each column to its position. Labels are these numbers, as integers, floats
    or text; other labels raise an error.
    """
    array = np.asarray(labels)
    if array.dtype.kind == "O":
        array = np.array([str(v) for v in array.ravel()], dtype=str)
    values, inverse = np.unique(array, return_inverse=True)
    unique_positions = [
        -1 if (number := _parse_whole(v)) is None else positions.get(number, -1) for v in values.tolist()
    ]
    result = np.array(unique_positions, np.int64)[inverse.ravel()]
    if (result < 0).any():
        row = int(np.argmax(result < 0))
        raise ValueError(
            f"{name} must be among the numbers of the columns ({_list_names(positions)}), "
            f"got {_shorten(array.flat[row])} at row {row}; if labels are positions, name the columns "
            "0, 1, 2, … in order"
        )
    return result


def _parse_whole(value: object) -> int | None:
    """Whole number that a label represents, or None if it represents none."""
    if isinstance(value, str):
        match = _WHOLE.fullmatch(value) or _NUMBERED.fullmatch(value)
        if match is not None:
            text = match[1] or match[2]
            return int(text) if len(text) <= _MAX_DIGITS + 1 else None
        try:
            value = float(value)  # accepts text such as 1e1
        except ValueError:
            return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return int(value) if isinstance(value, int) else None


def _list_names(names: Iterable[object]) -> str:
    shown = [printable(name) for name in names]
    return ", ".join(shown[:_MAX_SHOWN]) + (f", … {shown[-1]}" if len(shown) > _MAX_SHOWN else "")


def _shorten(value: object) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 60 else text[:59] + "…"
