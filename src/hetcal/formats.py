"""How tables of logits are laid out in `.npz`, `.npy`, `.csv` and `.parquet`, read and written."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import sys
import tokenize
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcal._columns import (
    class_numbers,
    class_positions,
    index_columns,
    is_index,
    label_positions,
    refuse_repeated,
)

__all__ = [
    "beside_npy",
    "labels_beside",
    "map_npy",
    "parquet_columns",
    "read_arrays",
    "writer_for",
]

_LABEL_COLUMNS = ("label", "labels", "y", "target")
_GROUP_COLUMNS = ("group", "groups")
_SPLIT_COLUMNS = ("split",)
_FOLD_COLUMNS = ("fold_group", "fold_groups")
_CLASS_COLUMN = re.compile(r"(logit|prob)s?_(.+)", re.IGNORECASE)  # says what it holds, and of which class
# A compressed file may unpack to this many bytes, or this many times its own, whichever is more: zeros by the
# thousandfold are no logits, but a bomb.
_ROOM, _GROWTH = 1 << 30, 100
_SPLITS = {"val": "val", "valid": "val", "validation": "val", "calibration": "val", "test": "test"}


def read_arrays(source: Path) -> dict[str, Any]:
    """Arrays of a file by name, whatever its layout."""
    if not source.is_file():
        raise FileNotFoundError(f"LOGITS must be a file, got {str(source)!r}, which does not exist")
    reader = _READERS.get(source.suffix.lower())
    if reader is None:
        raise ValueError(f"LOGITS must end in {', '.join(_READERS)}, got {source.name!r}")
    return reader(source)


def _read_npz(source: Path) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        with _clear_errors(source):
            archive = np.load(stack.enter_context(source.open("rb")), allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError(f"{source.name} must be an .npz archive, got a single array; name it .npy")
        stack.enter_context(archive)
        sizes = [part.file_size for part in archive.zip.infolist()] if archive.zip else []
        _check_growth(source, sum(sizes))
        with _clear_errors(source):
            return {name: _readable(archive[name]) for name in archive.files}


def _check_growth(source: Path, unpacked: int) -> None:
    most = max(_ROOM, _GROWTH * source.stat().st_size)
    if unpacked > most:
        raise ValueError(
            f"{source.name} must unpack to {most} bytes or less, got {unpacked}; "
            "if the file is your own, save the array as .npy"
        )


def _read_npy(source: Path) -> dict[str, Any]:
    with _clear_errors(source), source.open("rb") as file:
        return {"logits": _readable(np.load(file, allow_pickle=False))}


def beside_npy(source: Path, labels: str | os.PathLike[str] | None) -> Path:
    """Path of the labels that belong to a ``.npy`` file of logits."""
    beside = Path(labels) if labels is not None else source.with_name(source.name.replace("logits", "labels"))
    if beside == source or not beside.is_file():
        raise FileNotFoundError(
            f"labels must be in a second .npy file, got {str(beside)!r}, which is not one; "
            "name it with --labels"
        )
    return beside


def map_npy(source: Path) -> NDArray[Any]:
    """Array of a ``.npy`` file, left on the disk."""
    with _clear_errors(source):
        return np.asanyarray(np.load(source, mmap_mode="r", allow_pickle=False))


def parquet_columns(source: Path, groups: bool) -> tuple[list[str], dict[str, str | None]]:
    """Columns of logits, and those of labels and, where wanted, groups, as `ParquetBatches` takes them."""
    from hetcal._arrow import is_list, open_dataset

    schema = open_dataset(source).schema
    names = list(schema.names)
    label, group, split, fold = taken = [
        _named(names, wanted) for wanted in (_LABEL_COLUMNS, _GROUP_COLUMNS, _SPLIT_COLUMNS, _FOLD_COLUMNS)
    ]
    for what, place in (("split", split), ("fold_group", fold)):
        if place is not None:
            raise ValueError(
                f"{source.name} must have no column {what!r} to be read in batches, got {names[place]!r}; "
                "write the rows to fit on, without it, to a file of their own"
            )
    if label is None:
        raise ValueError(f"{source.name} must have a column {_LABEL_COLUMNS[0]!r}, got {', '.join(names)}")
    if groups and group is None:
        raise ValueError(f"{source.name} must have a column {_GROUP_COLUMNS[0]!r}, got {', '.join(names)}")
    index = index_columns(schema)
    free = [i for i, c in enumerate(names) if i not in taken and c not in index]
    what, chosen, _ = _class_columns(names, free)
    classes = [names[i] for i in chosen]
    if len(classes) < 2 and not any(is_list(schema.field(i).type) for i in chosen):
        raise ValueError(
            f"{source.name} must have a column for each class, 2 or more, got {len(classes)}; "
            "for one score s per row write two columns, 0 and s"
        )
    if what != "logits":
        raise ValueError(
            f"{source.name} must hold logits to be read in batches, got probabilities ({classes[0]}, …); "
            "leave out --in-batches, or write their logarithms as logit_<class>"
        )
    beside = {"labels": names[label], "groups": names[group] if groups and group is not None else None}
    return classes, beside


def labels_beside(source: Path, labels: str | os.PathLike[str] | None) -> NDArray[Any]:
    """Labels of a ``.npy`` file of logits, from a second file."""
    beside = beside_npy(source, labels)
    with _clear_errors(beside), beside.open("rb") as file:
        return np.asarray(_readable(np.load(file, allow_pickle=False)))


def _readable(array: Any) -> Any:
    """Return an array whose text, if any, is text: damaged bytes would fail wherever they are shown."""
    if isinstance(array, np.ndarray) and array.dtype.kind == "U":  # other members come as bytes
        codes = np.ascontiguousarray(array).view(array.dtype.str[0] + "u4")
        if codes.size and codes.max() > sys.maxunicode:
            raise ValueError("text with characters that do not exist")
    return array


def _read_csv(source: Path) -> dict[str, Any]:
    with source.open(newline="", encoding="utf-8-sig") as file, _clear_errors(source):
        lines = csv.reader(file)
        header = [name.strip() for name in next(lines, [])]
        rows = [row for row in lines if row]
    if not rows:
        raise ValueError(
            f"{source.name} must have a header and at least one row, got {len(header)} columns and no rows"
        )
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise ValueError(
                f"{source.name} must have {len(header)} fields in every row, got {len(row)} at row {number}"
            )
    n_unnamed = next((i for i, name in enumerate(header) if name), len(header))  # an index has no name
    index = {i for i, name in enumerate(header) if i < n_unnamed or is_index(name)}
    return _from_columns(header, [[row[i] for row in rows] for i in range(len(header))], index, source.name)


def _read_parquet(source: Path) -> dict[str, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ImportError(
            'reading .parquet needs pyarrow; install it with: pip install "hetcal[files]"'
        ) from None
    try:
        _check_counts(source, pyarrow.parquet.read_metadata(source))
        refuse_repeated(pyarrow.parquet.read_schema(source), f"{source.name}: columns")
        table = pyarrow.parquet.read_table(source)
        columns = [column.to_numpy() for column in table.columns]
        stored = index_columns(table.schema)
    except (pyarrow.ArrowException, LookupError, MemoryError, OSError, TypeError, UnicodeError) as error:
        raise ValueError(f"{source.name} must be a readable parquet file, got: {error}") from None
    index = {i for i, name in enumerate(table.column_names) if name in stored}
    return _from_columns(table.column_names, columns, index, source.name)


def _check_counts(source: Path, about: Any) -> None:
    """Refuse Parquet that claims more than it can hold: room for it is made before anything is read."""
    rows = [about.row_group(i).num_rows for i in range(about.num_row_groups)]
    if sum(rows) != about.num_rows or min(rows, default=0) < 0:
        raise ValueError(
            f"{source.name} must be a readable parquet file, got parts of {sum(rows)} rows "
            f"where it claims {about.num_rows}"
        )
    _check_growth(source, 8 * about.num_rows * about.num_columns)


def _from_columns(names: list[str], columns: list[Any], index: set[int], file: str) -> dict[str, Any]:
    label, group, split, fold = taken = [
        _named(names, wanted) for wanted in (_LABEL_COLUMNS, _GROUP_COLUMNS, _SPLIT_COLUMNS, _FOLD_COLUMNS)
    ]
    for i in taken:
        if i is not None and names.count(names[i]) > 1:
            raise ValueError(
                f"{file} must have one column {names[i]!r}, got {names.count(names[i])}; rename all but one"
            )
    free = [i for i in range(len(names)) if i not in taken and i not in index]
    what, classes, short = _class_columns(names, free)
    headers = [names[i] for i in classes]
    numbers = class_numbers(short, f"{file}: columns")
    positions = class_positions(short, f"{file}: columns")
    parts: dict[str, Any] = {
        what: _numbers(headers, [columns[i] for i in classes], file, named=short != headers)
    }
    if len(classes) < 2:
        raise ValueError(
            f"{file} must have a column for each class, 2 or more, got {len(classes)}; for one score s per "
            "row write two columns, 0 and s, for one probability p, 1 - p and p"
        )
    if label is not None and positions is None and numbers is not None and not _are_numbers(columns[label]):
        positions = {number: k for k, number in enumerate(numbers)}
    if label is not None and positions is not None:
        parts["labels"] = label_positions(columns[label], positions, f"{file}: label")
    elif label is not None:
        parts["labels"] = _label_numbers(columns[label], headers, short if numbers is None else [], file)
    if group is not None:
        parts["groups"] = np.asarray(columns[group], dtype=str)
    if fold is not None:
        parts["fold_groups"] = np.asarray(columns[fold], dtype=str)
    out = parts if split is None else _by_split(parts, np.asarray(columns[split], dtype=str), file)
    by_name = label is not None and (positions is not None or not _are_numbers(columns[label]))
    out["labels_by_name"] = np.array(by_name)
    return {**out, "class_names": short if numbers is None else [str(number) for number in numbers]}


def _class_columns(names: list[str], free: list[int]) -> tuple[str, list[int], list[str]]:
    """What the columns of the classes hold ("logits" or "probs"), which they are, and their classes' names.

    Columns that begin with ``logit_`` or ``prob_`` say so themselves, and what else is in the table is left
    alone. Without them every column that is free of another meaning is a class's logits.
    """
    for what in ("logit", "prob"):
        found = {i: m[2] for i in free if (m := _CLASS_COLUMN.fullmatch(names[i])) and m[1].lower() == what}
        if len(found) > 1:
            return f"{what}s", list(found), list(found.values())
    return "logits", free, [names[i] for i in free]


def _numbers(headers: list[str], columns: list[Any], name: str, *, named: bool) -> NDArray[np.float64]:
    """Columns as one array (n, K); text, and counted rows unless the columns are named, are refused."""
    remedy = "labels belong in a column 'label'; name the classes' columns logit_<class> or prob_<class>, "
    remedy += "and all others are left alone"
    arrays = []
    for column, values in zip(headers, columns, strict=True):
        try:
            numbers = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            numbers = np.empty((0, 0))
        if numbers.ndim != 1:
            row = next((i for i, value in enumerate(values) if not _is_number(value)), 0)
            raise ValueError(
                f"{name} must have numbers in the columns of logits, got {values[row]!r} in column "
                f"{column!r} at row {row}; {remedy}"
            )
        if not named and len(numbers) > 2 and np.array_equal(numbers, numbers[0] + np.arange(len(numbers))):
            raise ValueError(
                f"{name} must have a class's scores in every column, got row numbers in column {column!r}; "
                f"{remedy}"
            )
        arrays.append(numbers)
    return np.stack(arrays, axis=1) if arrays else np.empty((0, 0))


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return np.ndim(value) == 0


def _named(names: list[str], wanted: tuple[str, ...]) -> int | None:
    return next((i for i, name in enumerate(names) if name.lower() in wanted), None)


def _are_numbers(values: ArrayLike) -> bool:
    try:
        np.asarray(values).astype(np.float64)
    except (ValueError, TypeError, OverflowError):
        return False
    return True


def _label_numbers(values: ArrayLike, headers: list[str], names: list[str], file: str) -> NDArray[Any]:
    """Labels as numbers: written as such, or as names of classes or whole headers of their columns."""
    given = np.asarray(values)
    if _are_numbers(given):
        numbered = next((name for name in names if name.isdecimal()), None)
        if numbered is not None:
            raise ValueError(
                f"{file}: label must say which column it means, got numbers where {numbered!r} is a column's "
                "name and other names are no numbers; rename that column, and its labels, to a word"
            )
        return given.astype(np.float64)
    known = {text: i for i, text in (*enumerate(headers), *enumerate(names))} if names else {}
    repeated = {text for text, times in Counter(names).items() if times > 1}
    strange = next((i for i, v in enumerate(given) if str(v) not in known or str(v) in repeated), None)
    if strange is None:
        return np.array([known[str(v)] for v in given])
    text = str(given[strange])
    if text in repeated:
        raise ValueError(
            f"{file}: label must name one column, got {text!r} at row {strange}, which is the class of "
            f"{names.count(text)} columns; rename all but one of them"
        )
    raise ValueError(
        f"{file}: label must be a class number or the name of a logits column, got {text!r} at row {strange}"
    )


def _by_split(parts: dict[str, Any], split: NDArray[Any], name: str) -> dict[str, Any]:
    which = np.array([_SPLITS.get(s.strip().lower(), "") for s in split])
    if (which == "").any():
        row = int(np.argmax(which == ""))
        raise ValueError(
            f"{name}: split must be one of {', '.join(_SPLITS)}, got {str(split[row])!r} at row {row}"
        )
    if not (which == "val").any():
        raise ValueError(f"{name}: split must name some rows 'val' to fit on, got only 'test'")
    present = [s for s in ("val", "test") if (which == s).any()]
    return {f"{s}_{key}": value[which == s] for s in present for key, value in parts.items()}


# What the readers raise on files that are cut off, damaged or not what their name says.
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, csv.Error, EOFError, KeyError, MemoryError, NotImplementedError, OSError,
    OverflowError, RuntimeError, SyntaxError, SystemError, TypeError, UnicodeError, ValueError,
    tokenize.TokenError,
)  # fmt: skip


@contextlib.contextmanager
def _clear_errors(source: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        text = str(error)
        if "allow_pickle" in text or "pickle" in text.lower():
            raise ValueError(
                f"{source.name} must hold plain numbers, got pickled objects, which could run code; "
                "save a numeric array"
            ) from None
        raise ValueError(
            f"{source.name} must be a complete {source.suffix} file, got: {text or type(error).__name__}; "
            "write it again"
        ) from None


def _write_npy(file: IO[bytes], arrays: dict[str, NDArray[Any]]) -> None:
    tables = [a for a in arrays.values() if a.ndim == 2]
    np.save(file, tables[0] if tables else next(iter(arrays.values())), allow_pickle=False)


def _write_npz(file: IO[bytes], arrays: dict[str, NDArray[Any]]) -> None:
    np.savez_compressed(file, allow_pickle=False, **arrays)


def _write_csv(file: IO[bytes], arrays: dict[str, NDArray[Any]]) -> None:
    flat = _flat(arrays)
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow(flat)
    writer.writerows(zip(*(column.tolist() for column in flat.values()), strict=True))
    text.flush()
    text.detach()


def _write_parquet(file: IO[bytes], arrays: dict[str, NDArray[Any]]) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ImportError(
            'writing .parquet needs pyarrow; install it with: pip install "hetcal[files]"'
        ) from None
    pyarrow.parquet.write_table(pyarrow.table(_flat(arrays)), file)


def _flat(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Two-dimensional arrays as one column per class."""
    out: dict[str, NDArray[Any]] = {}
    for name, array in arrays.items():
        columns = (
            {name: array} if array.ndim == 1 else {f"{name}_{j}": array[:, j] for j in range(array.shape[1])}
        )
        out.update(columns)
    return out


_READERS = {".npz": _read_npz, ".npy": _read_npy, ".csv": _read_csv, ".parquet": _read_parquet}
_WRITERS = {".npz": _write_npz, ".npy": _write_npy, ".csv": _write_csv, ".parquet": _write_parquet}


def writer_for(target: Path) -> Any:
    """Function that writes named arrays to an open file in the layout that the name asks for."""
    writer = _WRITERS.get(target.suffix.lower())
    if writer is None:
        raise ValueError(f"the output file must end in {', '.join(_WRITERS)}, got {target.name!r}")
    return writer
