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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
    with _clear_errors(source), source.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError(f"{source.name} must be an .npz archive, got a single array; name it .npy")
        sizes = [part.file_size for part in archive.zip.infolist()] if archive.zip else []
        _check_growth(source, sum(sizes))
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


def parquet_columns(source: Path, groups: bool) -> dict[str, Any]:
    """Columns of logits, labels and, where wanted, groups, as arguments of `Batches.from_parquet`."""
    from hetcal._core.arrow import open_dataset

    names = dict.fromkeys(open_dataset(source).schema.names)
    label, group = (_named(names, wanted) for wanted in (_LABEL_COLUMNS, _GROUP_COLUMNS))
    if label is None:
        raise ValueError(f"{source.name} must have a column {_LABEL_COLUMNS[0]!r}, got {', '.join(names)}")
    if groups and group is None:
        raise ValueError(f"{source.name} must have a column {_GROUP_COLUMNS[0]!r}, got {', '.join(names)}")
    what, classes, _ = _class_columns(names, (label, group))
    if what != "logits":
        raise ValueError(
            f"{source.name} must hold logits to be read in batches, got probabilities ({classes[0]}, …); "
            "read it whole, or write their logarithms as logit_<class>"
        )
    return {"labels": label, "logits": classes} | ({"groups": group} if groups else {})


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
    return _from_columns({name: [row[i] for row in rows] for i, name in enumerate(header)}, source.name)


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
        table = pyarrow.parquet.read_table(source)
        columns = {name: table[name].to_numpy() for name in table.column_names}
    except (pyarrow.ArrowException, LookupError, MemoryError, OSError, TypeError, UnicodeError) as error:
        raise ValueError(f"{source.name} must be a readable parquet file, got: {error}") from None
    return _from_columns(columns, source.name)


def _check_counts(source: Path, about: Any) -> None:
    """Refuse Parquet that claims more than it can hold: room for it is made before anything is read."""
    rows = [about.row_group(i).num_rows for i in range(about.num_row_groups)]
    if sum(rows) != about.num_rows or min(rows, default=0) < 0:
        raise ValueError(
            f"{source.name} must be a readable parquet file, got parts of {sum(rows)} rows "
            f"where it claims {about.num_rows}"
        )
    _check_growth(source, 8 * about.num_rows * about.num_columns)


def _from_columns(columns: dict[str, Any], name: str) -> dict[str, Any]:
    label, group, split = (
        _named(columns, wanted) for wanted in (_LABEL_COLUMNS, _GROUP_COLUMNS, _SPLIT_COLUMNS)
    )
    what, classes, short = _class_columns(columns, (label, group, split))
    class_names = None if all(re.fullmatch(r"(logits?|z|class)?[_ ]?\d+", c) for c in short) else short
    parts: dict[str, Any] = {what: _numbers({c: columns[c] for c in classes}, name, named=short != classes)}
    if label is not None:
        named = (
            {} if class_names is None else {text: i for i, text in (*enumerate(classes), *enumerate(short))}
        )
        parts["labels"] = _label_numbers(columns[label], named, name)
    if group is not None:
        parts["groups"] = np.asarray(columns[group], dtype=str)
    out = parts if split is None else _by_split(parts, np.asarray(columns[split], dtype=str), name)
    return out if class_names is None else {**out, "class_names": class_names}


def _class_columns(
    columns: Iterable[str], others: tuple[str | None, ...]
) -> tuple[str, list[str], list[str]]:
    """What the columns of the classes hold ("logits" or "probs"), these columns, and their classes' names.

    Columns that begin with ``logit_`` or ``prob_`` say so themselves, and what else is in the table is left
    alone. Without them every column that has no other meaning is a class's logits.
    """
    rest = [c for c in columns if c not in others]
    for what in ("logit", "prob"):
        found = {c: m[2] for c in rest if (m := _CLASS_COLUMN.fullmatch(c)) and m[1].lower() == what}
        if len(found) > 1:
            return f"{what}s", list(found), list(found.values())
    return "logits", rest, rest


def _numbers(columns: dict[str, Any], name: str, *, named: bool) -> NDArray[np.float64]:
    """Columns as one array (n, K); text, and counted rows unless the columns are named, are refused."""
    remedy = "labels belong in a column 'label'; name the classes' columns logit_<class> or prob_<class>, "
    remedy += "and all others are left alone"
    arrays = []
    for column, values in columns.items():
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


def _named(columns: Iterable[str], wanted: tuple[str, ...]) -> str | None:
    return next((c for c in columns if c.lower() in wanted), None)


def _label_numbers(values: ArrayLike, known: dict[str, int], name: str) -> NDArray[Any]:
    """Labels as numbers: written as such, or as class names that head the columns."""
    given = np.asarray(values)
    try:
        return given.astype(np.float64)
    except (ValueError, TypeError, OverflowError):
        pass
    strange = next((i for i, v in enumerate(given) if str(v) not in known), None)
    if strange is not None:
        raise ValueError(
            f"{name}: label must be a class number or the name of a logits column, "
            f"got {str(given[strange])!r} at row {strange}"
        )
    return np.array([known[str(v)] for v in given])


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
