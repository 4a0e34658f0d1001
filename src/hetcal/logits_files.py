"""Logits files: reading ``.npz``, ``.npy``, ``.csv`` and ``.parquet``, and writing tables of probabilities.

Pickled objects are never loaded, and files are written atomically.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import os
import re
import sys
import tokenize
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcal._arrow import ParquetBatches, is_list, open_dataset
from hetcal._binary_probs import binary_names, both_columns, fitted_names, positive_name
from hetcal._columns import (
    LABEL_COLUMNS,
    PREDICTION_COLUMNS,
    class_names_of,
    class_numbers,
    class_positions,
    index_columns,
    is_index,
    label_positions,
    labels_by_number,
    refuse_repeated,
)
from hetcal._display import printable
from hetcal._extras import missing_package
from hetcal._numeric.probabilities import log_probs, probability_floor
from hetcal._typing import FloatArray, IntArray
from hetcal._validate import check_groups, check_labels, check_logits, check_probs
from hetcal._write import write_atomic
from hetcal.batches import Batches

__all__ = [
    "LogitsFile",
    "Split",
    "load_logits",
    "load_unlabelled",
    "open_batches",
    "read_arrays",
    "save_table",
]

# Accepted names, in lower case, of columns that contain neither scores nor labels
_GROUP_COLUMNS = ("group", "groups")
_SPLIT_COLUMNS = ("split",)
_FOLD_GROUP_COLUMNS = ("fold_group", "fold_groups")

_SPLITS = {"val": "val", "valid": "val", "validation": "val", "calibration": "val", "test": "test"}
_CLASS_COLUMN = re.compile(r"(logit|prob)s?_(.+)", re.IGNORECASE)

# A compressed file may unpack to this many bytes or to this multiple of its own size, whichever is larger.
# Logits rarely compress a hundredfold; a decompression bomb does.
_MAX_UNPACKED_BYTES, _MAX_EXPANSION = 1 << 30, 100

# Delimiters of a CSV file; if several divide it into equally many columns, the first of them is used.
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars", " ": "spaces"}
_DELIMITER_ROWS = 50  # number of rows in which a delimiter must give as many fields as in the header
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+([eE][+-]?\d+)?\s*")

_MAX_REASON = 200  # maximum number of characters to quote from another library's error message

_ONE_SCORE = "if each row has one score s, write two columns of logits, 0 for class 0 and s for class 1"
_ONE_PROB = "if each row has one probability of class 1, name its column prob_<class>"
_ALL_PROBS = "write a column prob_<class> for each class"

# Exceptions that the readers raise for files that are truncated, damaged or of another format
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, csv.Error, EOFError, KeyError, MemoryError, NotImplementedError, OSError,
    OverflowError, RuntimeError, SyntaxError, SystemError, TypeError, UnicodeError, ValueError,
    tokenize.TokenError,
)  # fmt: skip


@dataclass(frozen=True)
class Split:
    """Validated rows of a file.

    Attributes
    ----------
    logits : (n, K) scores, or the logarithms of the probabilities
    labels : (n,) true classes; empty if the file was read without labels
    groups : (n,) group of each row, or None
    fold_groups : (n,) integers or strings, or None
        Rows with the same value stay in one fold of a cross-validation.
    ids : (n,) contents of the column `id_column` or of an array ``ids``; None if there is neither
    probs : (n, K) probabilities from the file, or None if it contains logits
    prob_floor : float, or None if the file contains logits
        Smaller probabilities were raised to this value before taking logarithms. It is computed from the rows
        to fit on, or from these rows if the file was read without labels.
    """

    logits: FloatArray
    labels: IntArray
    groups: NDArray[Any] | None = None
    fold_groups: NDArray[Any] | None = None
    probs: FloatArray | None = None
    prob_floor: float | None = None
    ids: NDArray[Any] | None = None

    @property
    def scores(self) -> dict[str, FloatArray]:
        """Keyword argument for a calibrator: `probs` if the file contains probabilities, else `logits`."""
        return {"logits": self.logits} if self.probs is None else {"probs": self.probs}


@dataclass(frozen=True)
class LogitsFile:
    """Contents of a logits file.

    Attributes
    ----------
    val : rows to fit on
    test : rows to evaluate on, or None if the file has a single set
    class_names : K names from the file, or None
    path : where the file was read from
    about : origin of the logits (JSON under ``provenance`` in an ``.npz``), or an empty mapping
    labels_by_name : whether the labels are names of columns, so that the order of the columns does not matter
    has_one_column : whether the file is a table with a single class column, the probabilities of class 1
        The name of class 0 is then the other name in the labels. If there is none, it is "0" or
        "not <class 1>".
    passed : the arguments `labels` (without its folder), `label_column` and `id_column` that were passed
    """

    val: Split
    test: Split | None
    class_names: list[str] | None
    path: str
    about: Mapping[str, Any] = field(default_factory=dict)
    labels_by_name: bool = False
    has_one_column: bool = False
    passed: Mapping[str, str] = field(default_factory=dict)

    @property
    def judged(self) -> Split:
        """The rows to evaluate on: the test rows if there are any, otherwise all rows."""
        return self.val if self.test is None else self.test


def load_logits(
    path: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str] | None = None,
    label_column: str | None = None,
    id_column: str | None = None,
) -> LogitsFile:
    """Read logits and labels from ``.npz``, ``.npy``, ``.csv`` or ``.parquet``.

    Parameters
    ----------
    path : file
        ``.npz`` with ``logits`` and ``labels``, or with ``val_logits``, ``val_labels``, ``test_logits`` and
        ``test_labels``; optional ``groups``, ``fold_groups`` (``val_groups``, …) and ``class_names``.

        ``.npy`` with the logits; the labels are in a second file.

        ``.csv`` and ``.parquet`` with a column of labels, optional columns ``group``, ``fold_group`` and
        ``split`` (val or test), and one numeric column per class, named after the class. If at least two
        columns start with ``logit_``, only these are class columns. The index of a data frame is not a class
        column. Labels are class names or class numbers. If the columns are named by number, such as ``10``
        or ``logit_10``, and the numbers are not 0, 1, 2, … in order, labels refer to these numbers. Label 10
        is then the column ``10`` or ``logit_10``. The fields of a ``.csv`` file are separated by commas,
        semicolons, tabs, vertical bars or spaces, and its numbers have decimal points. The name of such a
        file may also end in ``.tsv``.

        Probabilities are stored under ``probs`` (``val_probs``, …) or in columns that start with ``prob_``.
        Their logarithms are the logits. Probabilities below a floor are first raised to it. This floor is
        the default `floor` of :func:`hetcal.to_logits` for the rows to fit on. A single column that starts
        with ``prob_``, or a one-dimensional array of probabilities, contains the probabilities of class 1.
    labels : file of labels, only for ``.npy``
        By default the path of the logits with "logits" in the file name replaced with "labels".
    label_column : name of the column of labels, only for ``.csv`` and ``.parquet``
        By default ``label``, ``labels``, ``y``, ``y_true`` or ``target``.
    id_column : name of a column that identifies the rows, only for ``.csv`` and ``.parquet``
        It is not a class column.
    """
    source = Path(path)
    if labels is not None and source.suffix.lower() != ".npy":
        raise ValueError(
            f"labels must be left out unless path ends in .npy, got {str(labels)!r}; files of other formats "
            "contain their labels"
        )
    named = _NamedColumns(label_column, id_column)
    contents = _read_contents(source, named)
    if source.suffix.lower() == ".npy":
        contents.arrays["labels"] = _load_npy(_labels_path(source, labels))
    passed = {argument: column for argument, column in vars(named).items() if column is not None}
    if labels is not None:
        passed["labels"] = Path(labels).name
    return replace(_assemble(contents, str(source)), passed=passed)


def load_unlabelled(
    path: str | os.PathLike[str],
    *,
    label_column: str | None = None,
    id_column: str | None = None,
    fit_names: Sequence[str] | None = None,
) -> tuple[dict[str, Split], list[str] | None]:
    """Read the rows of a file; labels in the file are not returned.

    Parameters
    ----------
    path : file
    label_column, id_column : columns of a table that are not class columns, as in :func:`load_logits`
    fit_names : class names with which a calibrator was fitted, or None
        Suppose that a table has a column for class 1 only, and that the calibrator was fitted with two names,
        one of which is that of class 1. The other is then the name of class 0.

    Returns
    -------
    splits : rows of each set in the file, by the prefix of its arrays, which is "", "val_" or "test_"
    class_names : K names from the file, or None
    """
    contents = _read_contents(Path(path), _NamedColumns(label_column, id_column))
    arrays = contents.arrays
    prefixes = [prefix for prefix in ("", "val_", "test_") if _has_scores(arrays, prefix)]
    if not prefixes:
        raise ValueError(
            f"{Path(path).name} must contain an array named logits, val_logits, test_logits, probs, "
            f"val_probs or test_probs, got {sorted(arrays)}; rename the array"
        )
    names = _class_names(arrays)
    if contents.has_one_column and names is not None:
        names = fitted_names(names, fit_names)
    return {prefix: _check_scores(arrays, prefix, None) for prefix in prefixes}, names


def open_batches(
    path: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str] | None = None,
    groups: bool = False,
    label_column: str | None = None,
    id_column: str | None = None,
) -> Batches:
    """Open a ``.npy`` file, a ``.parquet`` file or a folder of ``.parquet`` files for reading in batches.

    Parameters
    ----------
    path : ``.npy`` with the logits, or Parquet with logits, a column of labels and optionally one of groups
    labels : file of labels, only for ``.npy``
        By default the path of the logits with "logits" in the file name replaced with "labels".
    groups : whether to read the group of each row
    label_column, id_column : columns of a Parquet file, as in :func:`load_logits`
    """
    source, named = Path(path), _NamedColumns(label_column, id_column)
    if source.suffix.lower() == ".npy":
        if groups:
            raise ValueError(
                f"path must be a Parquet file to read groups in batches, got {source.name!r}; write the rows "
                "as Parquet with a column 'group'"
            )
        _refuse_named(named, source)
        return _open_npy_batches(source, labels)
    if source.suffix.lower() != ".parquet" and not source.is_dir():
        raise ValueError(
            "path must be .npy, .parquet or a folder of .parquet to be read in batches, "
            f"got {source.name!r}; leave out --in-batches"
        )
    if labels is not None:
        raise ValueError(
            f"labels must be left out for Parquet, which contains its labels, got {str(labels)!r}"
        )
    logits, other_columns = _parquet_columns(source, groups, named)
    names = class_names_of(logits) if len(logits) > 1 else None
    return Batches(ParquetBatches(source, logits, other_columns, None, by_number=True), class_names=names)


def read_arrays(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a file of any supported format and return its arrays by name.

    The arrays of ``.npz`` and ``.npy`` files are returned as they are stored. The columns of tables are
    combined into arrays as in :func:`load_logits`.
    """
    return _read_contents(Path(path), _NamedColumns()).arrays


def save_table(
    path: str | os.PathLike[str],
    columns: Mapping[str, ArrayLike],
    class_names: list[str] | None = None,
    ids: Mapping[str, ArrayLike] | None = None,
) -> None:
    """Write named arrays as ``.npz``, ``.npy``, ``.csv`` or ``.parquet``.

    A ``.npy`` file contains only the first two-dimensional array, or the first array if there is none.

    With `class_names`, the columns of a table of probabilities are named ``prob_<class>``, as
    :func:`load_logits` reads them. If two classes share a name, or if there are several arrays, the columns
    are numbered instead. An ``.npz`` file stores the names as an array ``class_names``.

    `ids` are named columns that identify the rows. They come first. A ``.npy`` file leaves them out.
    """
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix not in _WRITERS:
        raise ValueError(f"the output file must end in one of {', '.join(_WRITERS)}, got {target.name!r}")
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    if class_names is not None:
        if any(array.shape[1:] != (len(class_names),) for array in arrays.values()):
            shapes = ", ".join(str(array.shape) for array in arrays.values())
            raise ValueError(
                f"class_names must have one entry per column of every array, got {len(class_names)} for "
                f"arrays of shape {shapes}; list every class once, in the order of the columns"
            )
        has_columns = suffix in (".csv", ".parquet")
        if has_columns and len(arrays) == 1 and len(set(class_names)) == len(class_names):
            (p,) = arrays.values()
            arrays = {f"prob_{c}": p[:, k] for k, c in enumerate(class_names)}
        elif suffix == ".npz":
            arrays["class_names"] = np.array(class_names)
    if ids is not None and suffix != ".npy":
        arrays = _with_ids(ids, arrays, as_text=suffix == ".npz")
    write_atomic(target, lambda file: _WRITERS[suffix](file, arrays))


# -- from arrays to validated rows ------------------------------------------------------------------


@dataclass(frozen=True)
class _NamedColumns:
    """Names that the user passed for the label column and for the column that identifies the rows."""

    label_column: str | None = None
    id_column: str | None = None


@dataclass(frozen=True)
class _Contents:
    """Arrays of a file.

    Attributes
    ----------
    arrays : mapping from the names of the arrays to their values
    is_table : whether the file is a table, whose labels have been converted to positions of columns
    labels_by_name : whether the labels of a table are names of its columns
    has_one_column : whether a table has a single class column, with the probabilities of class 1
    """

    arrays: dict[str, Any]
    is_table: bool = False
    labels_by_name: bool = False
    has_one_column: bool = False


def _assemble(contents: _Contents, path: str) -> LogitsFile:
    arrays = contents.arrays
    prefix = "" if _has_scores(arrays, "") else "val_"
    if not _has_scores(arrays, prefix):
        raise ValueError(
            f"{path} must contain 'labels' with 'logits' or 'probs', or 'val_labels' with 'val_logits' or "
            f"'val_probs', got {sorted(arrays)}; rename the arrays"
        )
    names = _class_names(arrays)
    val, by_name = _check_split(contents, prefix, None)
    n_classes = val.logits.shape[1]
    test = None
    if prefix and _has_scores(arrays, "test_"):
        test, test_by_name = _check_split(contents, "test_", val.prob_floor)
        by_name &= test_by_name
        if test.logits.shape[1] != n_classes:
            name = "test_logits" if test.probs is None else "test_probs"
            raise ValueError(
                f"{path}: {name} must have {n_classes} columns, as the validation rows have, "
                f"got {test.logits.shape[1]}; write the same classes in the same order"
            )
    if names is not None and len(names) != n_classes:
        raise ValueError(
            f"{path}: class_names must have {n_classes} entries, one per column, got {len(names)}; "
            "list every class once, in the order of the columns"
        )
    return LogitsFile(val, test, names, path, _provenance(arrays), by_name, contents.has_one_column)


def _provenance(arrays: dict[str, Any]) -> dict[str, Any]:
    try:
        provenance = json.loads(str(arrays.get("provenance", "{}")))
    except (ValueError, RecursionError):
        return {}
    return provenance if isinstance(provenance, dict) else {}


def _class_names(arrays: dict[str, Any]) -> list[str] | None:
    names = arrays.get("class_names")
    return None if names is None else [printable(name) for name in np.ravel(names)]


def _has_scores(arrays: dict[str, Any], prefix: str) -> bool:
    return f"{prefix}logits" in arrays or f"{prefix}probs" in arrays


def _check_split(contents: _Contents, prefix: str, floor: float | None) -> tuple[Split, bool]:
    """Validate rows with labels; also return whether the labels are names of columns."""
    arrays = contents.arrays
    if f"{prefix}labels" not in arrays:
        raise ValueError(
            f"the file must contain {prefix}labels for its {prefix}logits or {prefix}probs, "
            f"got {sorted(arrays)}; "
            f"in a table, name the label column {_any_of(LABEL_COLUMNS)}, or pass its name as "
            "--label-column, or as `label_column` in Python"
        )
    rows, labels = _check_scores(arrays, prefix, floor), np.asarray(arrays[f"{prefix}labels"])
    by_name = contents.labels_by_name
    if not contents.is_table:
        positions = np.asarray(labels_by_number(labels, None, arrays.get("class_names")))
        by_name = labels.dtype.kind in "UO" or positions is not labels
        labels = positions
    names = [str(name) for name in np.ravel(arrays["class_names"])] if "class_names" in arrays else None
    y = check_labels(
        labels,
        n_rows=len(rows.logits),
        n_classes=rows.logits.shape[1],
        class_names=names,
        name=f"{prefix}labels",
        names_remedy="add an array 'class_names' to an .npz file, or",
    )
    return replace(rows, labels=y), by_name


def _check_scores(arrays: dict[str, Any], prefix: str, floor: float | None) -> Split:
    """Validate logits or probabilities, and groups.

    For probabilities, `floor` is the `prob_floor` of the result; None determines it from these rows.
    """
    name, probs = f"{prefix}logits", None
    if name in arrays:
        remedy = f"name probabilities prob_<class> (columns) or {prefix}probs (.npz)"
        z = check_logits(arrays[name], name=name, probs_remedy=remedy, binary_remedy=_ONE_SCORE)
        floor = None
    else:
        remedy = f"name unnormalised scores logit_<class> (columns) or {prefix}logits (.npz)"
        values = np.asarray(arrays[f"{prefix}probs"])
        if values.ndim == 1 or values.shape[1:] == (1,):
            values = both_columns(values, f"{prefix}probs", _ONE_SCORE)
        rescaled = _correct_rounded_sums(values)
        probs = check_probs(rescaled, name=f"{prefix}probs", scores_remedy=remedy)
        floor = probability_floor(probs) if floor is None else floor
        z = log_probs(probs, floor)
    groups, fold_groups = (
        check_groups(arrays[key], n_rows=len(z), name=key) if key in arrays else None
        for key in (f"{prefix}groups", f"{prefix}fold_groups")
    )
    ids = np.asarray(arrays[f"{prefix}ids"]) if f"{prefix}ids" in arrays else None
    return Split(z, np.empty(0, np.int64), groups, fold_groups, probs, floor, ids)


def _correct_rounded_sums(probs: ArrayLike) -> NDArray[Any]:
    """Normalise the rows of K numbers whose sum differs from 1 by at most 0.005·K, and at most 0.05.

    Rounding the numbers to two decimals changes their sum by at most 0.005·K.
    """
    p = np.asarray(probs)
    if p.ndim != 2 or p.dtype.kind != "f":
        return p
    sums = p.sum(axis=1, keepdims=True)
    is_close = np.abs(sums - 1) <= min(0.005 * p.shape[1], 0.05)
    return np.asarray(np.divide(p, sums, out=p.copy(), where=is_close))


# -- columns of tables ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _TableLayout:
    """Roles of the columns of a table.

    Attributes
    ----------
    label, group, split, fold_group, id : position of the column, or None
    kind : whether the class columns contain logits or probabilities
    classes : positions of the class columns
    class_names : names of the class columns, without ``logit_`` or ``prob_``
    """

    label: int | None
    group: int | None
    split: int | None
    fold_group: int | None
    id: int | None
    kind: Literal["logits", "probs"]
    classes: list[int]
    class_names: list[str]

    @property
    def has_one_column(self) -> bool:
        """Whether there is a single class column, which has the probabilities of class 1."""
        return self.kind == "probs" and len(self.classes) == 1


def _table_layout(names: list[str], index: set[int], named: _NamedColumns, file: str) -> _TableLayout:
    """Assign a role to each column; `index` contains the positions of the columns of a data frame's index."""
    label, id_ = (
        _named_position(names, column, argument, file)
        for argument, column in (("label_column", named.label_column), ("id_column", named.id_column))
    )
    if id_ is not None and id_ == label:
        raise ValueError(
            f"id_column must differ from the column of the labels, got {names[id_]!r} for both; leave it out "
            "if no column identifies the rows"
        )
    label = _recognised_label(names, id_, file) if label is None else label
    group, split, fold_group = (
        next((i for i, name in enumerate(names) if name.lower() in accepted and i not in (label, id_)), None)
        for accepted in (_GROUP_COLUMNS, _SPLIT_COLUMNS, _FOLD_GROUP_COLUMNS)
    )
    roles = (label, group, split, fold_group, id_)
    for i in roles:
        if i is not None and names.count(names[i]) > 1:
            raise ValueError(
                f"{file} must have one column {names[i]!r}, got {names.count(names[i])}; remove all but one"
            )
    unassigned = [i for i in range(len(names)) if i not in roles and i not in index]
    kind, classes = _class_columns(names, unassigned)
    _refuse_predictions(names, classes, file)
    return _TableLayout(*roles, kind, list(classes), list(classes.values()))


def _named_position(names: list[str], column: str | None, argument: str, file: str) -> int | None:
    """Position of a column that the user named, or None."""
    if column is None:
        return None
    if column not in names:
        shown = ", ".join(printable(name) for name in names[:9]) + (", …" if len(names) > 9 else "")
        raise ValueError(
            f"{argument} must be the name of a column of {file}, got {column!r}; choose one of {shown}"
        )
    return names.index(column)


def _recognised_label(names: list[str], id_: int | None, file: str) -> int | None:
    """Position of the column with one of the usual names of labels, or None if there is none.

    Several such columns with different names raise an error.
    """
    found = [i for i, name in enumerate(names) if name.lower() in LABEL_COLUMNS and i != id_]
    if len({names[i] for i in found}) > 1:
        raise ValueError(
            f"{file} must have one column of labels, got {' and '.join(repr(names[i]) for i in found)}; pass "
            "the name of the right one as --label-column, or as `label_column` in Python"
        )
    return found[0] if found else None


def _class_columns(
    names: list[str], candidates: list[int]
) -> tuple[Literal["logits", "probs"], dict[int, str]]:
    """Whether the class columns contain logits or probabilities, and their class names by position.

    The class columns are those that start with ``logit_`` if there are at least two of them. Otherwise the
    same rule applies to ``prob_``. If only one column starts with ``prob_`` and none with ``logit_``, it has
    the probabilities of class 1. If nothing applies, all candidates are class columns of logits.
    """
    matches = {i: match for i in candidates if (match := _CLASS_COLUMN.fullmatch(names[i]))}
    kinds: tuple[Literal["logits", "probs"], ...] = ("logits", "probs")
    for kind in kinds:
        prefixed = {i: match[2] for i, match in matches.items() if f"{match[1].lower()}s" == kind}
        if len(prefixed) > 1 or (len(prefixed) == len(matches) == 1 and kind == "probs"):
            return kind, prefixed
    return "logits", {i: names[i] for i in candidates}


def _refuse_predictions(names: list[str], classes: dict[int, str], file: str) -> None:
    """Raise an error if a class column without a prefix has a name that is usual for predictions."""
    for i, class_name in classes.items():
        if names[i] == class_name and class_name.lower() in PREDICTION_COLUMNS:
            raise ValueError(
                f"{file} must have a column of scores for each class, got the column {class_name!r}; name "
                "the columns of the classes logit_<class> or prob_<class>, so that others are ignored; if "
                "there are only predictions and their confidences, use "
                "hetcal.evaluate(confidence, labels, predicted=...) in Python"
            )


def _read_columns(
    names: list[str], columns: list[Any], index: set[int], named: _NamedColumns, file: str
) -> _Contents:
    """Arrays of a table, from the names and values of its columns."""
    layout = _table_layout(names, index, named, file)
    headers = [names[i] for i in layout.classes]
    numbers = class_numbers(layout.class_names, f"{file}: columns")
    class_positions(layout.class_names, f"{file}: columns")  # called only to refuse repeated numbers
    is_prefixed = layout.class_names != headers
    scores = _score_matrix(headers, [columns[i] for i in layout.classes], file, is_prefixed=is_prefixed)
    if len(headers) < 2 and not layout.has_one_column:
        raise ValueError(
            f"{file} must have a column for each class, 2 or more, got {len(headers)}; {_ONE_SCORE}; "
            f"{_ONE_PROB}"
        )
    parts: dict[str, Any] = {layout.kind: scores}
    labels = None if layout.label is None else columns[layout.label]
    class_names = layout.class_names if numbers is None else [str(number) for number in numbers]
    by_name = False
    if layout.has_one_column:
        class_names, positions, by_name = _binary_labels(headers[0], labels, file)
        if positions is not None:
            parts["labels"] = positions
    elif labels is not None:
        parts["labels"], by_name = _table_labels(labels, headers, layout.class_names, file)
    if layout.id is not None:
        parts["ids"] = np.asarray(columns[layout.id])
    for key, i in (("groups", layout.group), ("fold_groups", layout.fold_group)):
        if i is not None:
            parts[key] = np.asarray(columns[i], dtype=str)
    if layout.split is not None:
        parts = _divide(parts, np.asarray(columns[layout.split], dtype=str), file)
    parts["class_names"] = class_names
    return _Contents(parts, True, by_name, layout.has_one_column)


def _score_matrix(
    headers: list[str], columns: list[Any], file: str, *, is_prefixed: bool
) -> NDArray[np.float64]:
    """Class columns as one array (n, K).

    Text that is not a number is refused. A column of three or more values that increase by 1 from row to row
    is refused, too, because it probably contains row numbers. It is accepted if the names of the class
    columns have prefixes such as ``logit_``.
    """
    remedy = (
        "name the column of the labels 'label', or pass its name as --label-column; pass the name of a "
        "column that identifies the rows as --id-column (`label_column` and `id_column` in Python); or name "
        "the columns of the classes logit_<class> or prob_<class>, so that all others are ignored"
    )
    arrays = []
    for header, values in zip(headers, columns, strict=True):
        try:
            numbers = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            numbers = np.empty((0, 0))
        if numbers.ndim != 1:
            row = next((i for i, value in enumerate(values) if not _is_number(value)), 0)
            if isinstance(values[row], str) and _DECIMAL_COMMA.fullmatch(values[row]):
                raise ValueError(
                    f"{file} must have numbers with decimal points, got {values[row]!r} in column {header!r} "
                    f"at row {row}; write the file again with points instead of decimal commas"
                )
            raise ValueError(
                f"{file} must have numbers in the columns of the classes, got {values[row]!r} in column "
                f"{header!r} at row {row}; {remedy}"
            )
        is_counter = len(numbers) > 2 and np.array_equal(numbers, numbers[0] + np.arange(len(numbers)))
        if is_counter and not is_prefixed:
            raise ValueError(
                f"{file} must have the scores of a class in every column, got row numbers in column "
                f"{header!r}; {remedy}"
            )
        arrays.append(numbers)
    return np.stack(arrays, axis=1) if arrays else np.empty((0, 0))


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return np.ndim(value) == 0


def _are_numbers(values: ArrayLike) -> bool:
    try:
        np.asarray(values).astype(np.float64)
    except (ValueError, TypeError, OverflowError):
        return False
    return True


def _table_labels(
    labels: Any, headers: list[str], class_names: list[str], file: str
) -> tuple[NDArray[Any], bool]:
    """Return the labels as positions of class columns, and whether they are names of columns in the file.

    The numbers in the names of columns count as names.
    """
    numbers, positions = class_numbers(class_names), class_positions(class_names)
    is_numeric = _are_numbers(labels)
    if positions is None and numbers is not None and not is_numeric:  # labels are headers such as logit_0
        positions = {number: k for k, number in enumerate(numbers)}
    if positions is not None:
        return label_positions(labels, positions, f"{file}: label"), True
    if is_numeric:
        if numbers is None:
            _refuse_ambiguous_numbers(class_names, file)
        return np.asarray(labels).astype(np.float64), False
    return _positions_by_name(labels, headers, class_names, file), True


def _binary_labels(header: str, labels: Any, file: str) -> tuple[list[str], NDArray[Any] | None, bool]:
    """Class names and labels of a table with one column of probabilities.

    The labels in the file are 0 and 1, or the name of class 1 and one other name. In both cases, they are
    returned as 0 and 1. If the file has no labels, None is returned instead. The third result is whether the
    labels in the file are names.
    """
    positive = positive_name(header, file)
    if labels is None or _are_numbers(labels):
        y = None if labels is None else np.asarray(labels).astype(np.float64)
        if y is not None and (y > 1).any():
            row = int(np.argmax(y > 1))
            raise ValueError(
                f"{file}: label must be 0 or 1 if there is only the column {header!r}, got {labels[row]} "
                f"at row {row}; {_ALL_PROBS}"
            )
        names = ["0", "1"] if positive is None else [f"not {positive}", positive]
        return names, y, False
    texts = np.array(["" if label is None else str(label) for label in labels])
    if positive is None:
        row = int(np.argmax(~np.isin(texts, ["0", "1"])))
        raise ValueError(
            f"{file}: label must be 0 or 1 if there is only the column {header!r}, got {texts[row].item()!r} "
            f"at row {row}; rename the column to prob_<class>, where <class> is the name of class 1"
        )
    names = binary_names(positive, texts, name=f"{file}: label", remedy=_ALL_PROBS)
    return names, (texts == positive).astype(np.int64), True


def _refuse_ambiguous_numbers(class_names: list[str], file: str) -> None:
    """Raise an error if numeric labels could be positions as well as names of columns."""
    numeric_name = next((name for name in class_names if name.isdecimal()), None)
    if numeric_name is not None:
        raise ValueError(
            f"{file}: label must identify one column, got numbers, which could be names or positions of "
            f"columns, because one column is named {numeric_name!r} and others by words; rename that column "
            "to a word, and also its labels if they are names"
        )


def _positions_by_name(
    labels: ArrayLike, headers: list[str], class_names: list[str], file: str
) -> NDArray[np.int64]:
    """Positions of the columns to which the labels refer, by class name or by header."""
    texts = [str(label) for label in np.asarray(labels)]
    positions = {text: k for k, text in (*enumerate(headers), *enumerate(class_names))}
    repeated = {text for text, count in Counter(class_names).items() if count > 1}
    for row, text in enumerate(texts):
        if text in repeated:
            raise ValueError(
                f"{file}: label must name one column, got {text!r} at row {row}, which is the class of "
                f"{class_names.count(text)} columns; rename all but one of them"
            )
        if text not in positions:
            raise ValueError(
                f"{file}: label must be the name of a class column, or a class number in every row, got "
                f"{text!r} at row {row}; correct the label or drop the row"
            )
    return np.array([positions[text] for text in texts], np.int64)


def _divide(parts: dict[str, Any], split: NDArray[Any], file: str) -> dict[str, Any]:
    """Divide arrays into validation and test rows, with the prefixes ``val_`` and ``test_``."""
    assigned = np.array([_SPLITS.get(text.strip().lower(), "") for text in split])
    if (assigned == "").any():
        row = int(np.argmax(assigned == ""))
        raise ValueError(
            f"{file}: split must be one of {', '.join(_SPLITS)}, got {str(split[row])!r} at row {row}; "
            "correct the entry or drop the row"
        )
    if not (assigned == "val").any():
        raise ValueError(
            f"{file}: split must be 'val' in at least one row, got only 'test'; mark the rows for the fit as "
            "'val'"
        )
    present = [name for name in ("val", "test") if (assigned == name).any()]
    return {f"{name}_{key}": value[assigned == name] for name in present for key, value in parts.items()}


def _parquet_columns(
    source: Path, groups: bool, named: _NamedColumns
) -> tuple[list[str], dict[str, str | None]]:
    """Arguments `logits` and `other_columns` of `ParquetBatches`: the names of the columns."""
    schema = open_dataset(source).schema
    names = list(schema.names)
    index = index_columns(schema)
    layout = _table_layout(names, {i for i, name in enumerate(names) if name in index}, named, source.name)
    for role, i in (("split", layout.split), ("fold_group", layout.fold_group)):
        if i is not None:
            raise ValueError(
                f"{source.name} must have no column {role!r} to be read in batches, got {names[i]!r}; "
                "save the rows for the fit in a separate file without this column"
            )
    if layout.label is None:
        raise ValueError(
            f"{source.name} must have a column of labels, got the columns {', '.join(names)}; rename the one "
            f"with the labels to {LABEL_COLUMNS[0]!r}, or pass its name as --label-column, or as "
            "`label_column` in Python"
        )
    if groups and layout.group is None:
        raise ValueError(
            f"{source.name} must have a column of groups, got the columns {', '.join(names)}; rename the one "
            f"with the groups to {_GROUP_COLUMNS[0]!r}"
        )
    classes = [names[i] for i in layout.classes]
    if (
        len(classes) < 2
        and layout.kind == "logits"
        and not any(is_list(schema.field(i).type) for i in layout.classes)
    ):
        raise ValueError(
            f"{source.name} must have a column for each class, 2 or more, got {len(classes)}; {_ONE_SCORE}"
        )
    if layout.kind == "probs":
        raise ValueError(
            f"{source.name} must contain logits to be read in batches, got probabilities ({classes[0]}, …); "
            "leave out --in-batches, or write their logarithms as logit_<class>"
        )
    group = names[layout.group] if groups and layout.group is not None else None
    return classes, {"labels": names[layout.label], "groups": group}


# -- formats ----------------------------------------------------------------------------------------


class _PickledObjectsError(Exception):
    """A NumPy file contains Python objects, which are stored as pickles."""


def _require_file(source: Path) -> None:
    if not source.is_file():
        other = "is not a regular file" if source.exists() else "does not exist"
        problem = "is a folder" if source.is_dir() else other
        raise FileNotFoundError(f"path must be a file, got {str(source)!r}, which {problem}")


def _read_contents(source: Path, named: _NamedColumns) -> _Contents:
    _require_file(source)
    suffix = source.suffix.lower()
    if suffix in _TABLE_READERS:
        return _TABLE_READERS[suffix](source, named)
    if suffix not in _ARRAY_READERS:
        known = ", ".join((*_ARRAY_READERS, *_TABLE_READERS))
        raise ValueError(f"path must end in one of {known}, got {source.name!r}")
    _refuse_named(named, source)
    return _ARRAY_READERS[suffix](source)


def _refuse_named(named: _NamedColumns, source: Path) -> None:
    """Raise an error if `label_column` or `id_column` was passed for a file that is not a table."""
    for argument, column in vars(named).items():
        if column is not None:
            raise ValueError(
                f"{argument} must be left out for {source.suffix} files, which have no named columns, got "
                f"{column!r}; write the rows as .csv or .parquet to use it"
            )


def _read_npz(source: Path) -> _Contents:
    with contextlib.ExitStack() as stack:
        with _explain_damage(source):
            file = stack.enter_context(source.open("rb"))
            is_array = _has_npy_header(file)
        if is_array:
            raise ValueError(f"{source.name} must be an .npz archive, got a single array; name it .npy")
        with _explain_damage(source):
            archive = stack.enter_context(np.load(file, allow_pickle=False))
        parts = archive.zip.infolist()
        _refuse_bomb(source, sum(part.file_size for part in parts))
        with _explain_damage(source):
            for part in parts:
                with archive.zip.open(part) as member:
                    _refuse_objects(member, f" in {printable(part.filename.removesuffix('.npy'))!r}")
            return _Contents({name: _check_text(archive[name]) for name in archive.files})


def _read_npy(source: Path) -> _Contents:
    return _Contents({"logits": _load_npy(source)})


def _load_npy(source: Path, *, mmap_mode: Literal["r"] | None = None) -> NDArray[Any]:
    with _explain_damage(source):
        with source.open("rb") as file:
            if not _has_npy_header(file):
                raise ValueError("a file without the header of a .npy file")
            _refuse_objects(file)
        return np.asanyarray(_check_text(np.load(source, mmap_mode=mmap_mode, allow_pickle=False)))


def _open_npy_batches(source: Path, labels: str | os.PathLike[str] | None) -> Batches:
    _require_file(source)
    z = _load_npy(source, mmap_mode="r")
    if z.ndim != 2 or z.shape[1] < 2:
        raise ValueError(
            f"{source.name} must have shape (n, K) with K at least 2, got {z.shape}; {_ONE_SCORE}"
        )
    return Batches(z, _load_npy(_labels_path(source, labels), mmap_mode="r"))


def _labels_path(source: Path, labels: str | os.PathLike[str] | None) -> Path:
    """Path of the labels of a ``.npy`` file of logits."""
    path = Path(labels) if labels is not None else source.with_name(source.name.replace("logits", "labels"))
    if path == source or not path.is_file():
        other = "is not a regular file" if path.exists() else "does not exist"
        problem = "is a folder" if path.is_dir() else other
        if path == source:
            problem = "is the file of logits"
        raise FileNotFoundError(
            f"labels must be a second .npy file, got {str(path)!r}, which {problem}; pass the path of the "
            "labels as --labels, or as `labels` in Python"
        )
    return path


def _has_npy_header(file: IO[bytes]) -> bool:
    """Whether a file starts with the header of a ``.npy`` file.

    Raise an error if its first byte shows that it is neither a ``.npy`` nor a ZIP file; np.load would report
    any such file as pickled data.
    """
    start = file.read(len(np.lib.format.MAGIC_PREFIX))
    file.seek(0)
    if start[:1] == b"\x80":  # first byte of a pickle
        raise _PickledObjectsError
    if start[:1] not in (b"P", b"\x93", b""):
        raise ValueError("a file that is neither .npy nor .npz")
    return start == np.lib.format.MAGIC_PREFIX


def _refuse_objects(file: IO[bytes], where: str = "") -> None:
    """Raise an error if the header of a ``.npy`` stream announces Python objects.

    The message contains `where`, the place of the array in the file.
    """
    if file.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
        return  # not an array, so there is no header to check
    major = file.read(2)[:1]
    readers = {b"\1": np.lib.format.read_array_header_1_0, b"\2": np.lib.format.read_array_header_2_0}
    if major in readers and readers[major](file)[2].hasobject:
        raise _PickledObjectsError(where)


def _check_text(array: Any) -> Any:
    """Return an array, or raise an error if it contains invalid Unicode, which cannot be displayed."""
    if isinstance(array, np.ndarray) and array.dtype.kind == "U":
        codes = np.ascontiguousarray(array).view(array.dtype.str[0] + "u4")
        if codes.size and codes.max() > sys.maxunicode:
            raise ValueError("text with invalid Unicode characters")
    return array


def _refuse_bomb(source: Path, unpacked: int) -> None:
    limit = max(_MAX_UNPACKED_BYTES, _MAX_EXPANSION * source.stat().st_size)
    if unpacked > limit:
        raise ValueError(
            f"{source.name} must unpack to {limit} bytes or less, got {unpacked}; "
            "if you trust the file, save the array as .npy"
        )


def _read_csv(source: Path, named: _NamedColumns) -> _Contents:
    with source.open(newline="", encoding="utf-8-sig") as file, _explain_damage(source):
        delimiter = _delimiter_of(file)
        lines = csv.reader(file, delimiter=delimiter, skipinitialspace=delimiter == " ")
        header = [name.strip() for name in next(lines, [])]
        rows = [row for row in lines if row]
    if not rows:
        raise ValueError(
            f"{source.name} must have a header and at least one row, got {len(header)} columns and no rows"
        )
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise ValueError(
                f"{source.name} must have {len(header)} fields in every row, got {len(row)} at row {number}; "
                f"quote fields that contain {_DELIMITERS[delimiter]}, and write numbers with decimal points"
            )
    n_unnamed = next((i for i, name in enumerate(header) if name), len(header))
    index = {i for i, name in enumerate(header) if i < n_unnamed or is_index(name)}
    columns = [[row[i] for row in rows] for i in range(len(header))]
    return _read_columns(header, columns, index, named, source.name)


def _delimiter_of(file: IO[str]) -> str:
    """Delimiter that divides each of the first rows into the same number of fields.

    If several delimiters do so, the one that gives the most fields is returned. If none gives at least two
    fields, the result is a comma. `csv.Sniffer` is not used, because it misreads some headers in which only a
    few names are quoted.
    """
    best, n_fields = ",", 1
    for delimiter in _DELIMITERS:
        lines = csv.reader(file, delimiter=delimiter, skipinitialspace=delimiter == " ")
        try:
            counts = {len(line) for line in itertools.islice(lines, 1 + _DELIMITER_ROWS) if line}
        except csv.Error:  # a field exceeds the limit of `csv`: this is not the delimiter
            counts = set()
        file.seek(0)
        if len(counts) == 1 and max(counts) > n_fields:
            best, n_fields = delimiter, max(counts)
    return best


def _read_parquet(source: Path, named: _NamedColumns) -> _Contents:
    pyarrow = _import_pyarrow("reading")
    try:
        _check_row_counts(source, pyarrow.parquet.read_metadata(source))
        refuse_repeated(pyarrow.parquet.read_schema(source), f"{source.name}: columns")
        table = pyarrow.parquet.read_table(source)
        columns = [column.to_numpy() for column in table.columns]
        index_names = index_columns(table.schema)
    except (pyarrow.ArrowException, LookupError, MemoryError, OSError, TypeError, UnicodeError) as error:
        raise ValueError(
            f"{source.name} must be a readable parquet file, got: {error}; write it again"
        ) from None
    index = {i for i, name in enumerate(table.column_names) if name in index_names}
    return _read_columns(table.column_names, columns, index, named, source.name)


def _check_row_counts(source: Path, metadata: Any) -> None:
    """Raise an error if the row counts of a Parquet file are inconsistent or show a decompression bomb."""
    counts = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    if sum(counts) != metadata.num_rows or min(counts, default=0) < 0:
        raise ValueError(
            f"{source.name} must be a readable parquet file, got {metadata.num_rows} rows in its header but "
            f"{counts} in its row groups; write it again"
        )
    _refuse_bomb(source, 8 * metadata.num_rows * metadata.num_columns)


def _import_pyarrow(purpose: str) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise missing_package(f"{purpose} .parquet needs pyarrow", "files") from None
    return pyarrow


@contextlib.contextmanager
def _explain_damage(source: Path) -> Iterator[None]:
    """Convert exceptions of a reader to a ValueError that names the file."""
    try:
        yield
    except _PickledObjectsError as error:
        raise ValueError(
            f"{source.name} must contain numbers or text, got pickled objects{error}, which could run code; "
            "save text as a string array (dtype str), and numbers as a numeric array"
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{source.name} must be text in UTF-8, got the byte 0x{error.object[error.start]:02x} in another "
            "encoding; save it with the encoding UTF-8"
        ) from None
    except _DAMAGE as error:
        # Shortened, because the messages of some readers quote the whole file.
        reason = str(error)[:_MAX_REASON] or type(error).__name__
        raise ValueError(
            f"{source.name} must be a complete {source.suffix} file, got: {reason}; write it again"
        ) from None


def _write_npy(file: IO[bytes], arrays: dict[str, NDArray[Any]]) -> None:
    tables = [array for array in arrays.values() if array.ndim == 2]
    np.save(file, tables[0] if tables else next(iter(arrays.values())), allow_pickle=False)


def _write_npz(file: IO[bytes], arrays: dict[str, NDArray[Any]]) -> None:
    np.savez_compressed(file, allow_pickle=False, **arrays)


def _write_csv(file: IO[bytes], arrays: dict[str, NDArray[Any]]) -> None:
    columns = _as_columns(arrays)
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    values = (column.astype(str) if column.dtype.kind == "M" else column for column in columns.values())
    writer.writerows(zip(*(column.tolist() for column in values), strict=True))
    text.flush()
    text.detach()


def _write_parquet(file: IO[bytes], arrays: dict[str, NDArray[Any]]) -> None:
    pyarrow = _import_pyarrow("writing")
    pyarrow.parquet.write_table(pyarrow.table(_as_columns(arrays)), file)


def _as_columns(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """One-dimensional arrays by name. Each column j of a two-dimensional array becomes ``<name>_<j>``."""
    columns: dict[str, NDArray[Any]] = {}
    for name, array in arrays.items():
        if array.ndim == 1:
            columns[name] = array
        else:
            columns |= {f"{name}_{j}": array[:, j] for j in range(array.shape[1])}
    return columns


def _with_ids(
    ids: Mapping[str, ArrayLike], arrays: dict[str, NDArray[Any]], *, as_text: bool
) -> dict[str, NDArray[Any]]:
    """`ids` as arrays, followed by `arrays`; with `as_text`, ids that are Python objects become text."""
    for name in ids:
        if name in _as_columns(arrays):
            raise ValueError(
                f"id_column must differ from the columns of the output, got {name!r}; rename the column"
            )
    columns = {name: np.asarray(values) for name, values in ids.items()}
    if as_text:
        columns = {name: c.astype(str) if c.dtype.kind == "O" else c for name, c in columns.items()}
    return columns | arrays


def _any_of(names: Sequence[str]) -> str:
    return f"{', '.join(map(repr, names[:-1]))} or {names[-1]!r}"


_ARRAY_READERS = {".npz": _read_npz, ".npy": _read_npy}
_TABLE_READERS = {".csv": _read_csv, ".tsv": _read_csv, ".parquet": _read_parquet}
_WRITERS = {".npz": _write_npz, ".npy": _write_npy, ".csv": _write_csv, ".parquet": _write_parquet}
