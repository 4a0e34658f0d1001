"""Blocks of rows before they are read: array chunks, dataframe partitions or Parquet row groups."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from hetcal._arrow import ParquetBatches
from hetcal._coerce import as_array
from hetcal._columns import class_names_of, class_positions, is_index, label_positions
from hetcal._extras import missing_package
from hetcal._validate import check_integer

__all__ = [
    "Parts",
    "array_parts",
    "frame_parts",
    "is_frame",
    "load_dask",
    "new_folder",
    "parquet_parts",
    "write_part",
]

# By default, row groups are combined into blocks of about this many logits or fewer, 64 MiB of float32. A
# larger row group is a block of its own.
_BLOCK_ELEMENTS = 1 << 24
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.part")  # names of the temporary folders that `new_folder` creates
_ALL_ROWS = 1 << 30  # batch size that is large enough to read a row group as one batch


@dataclass(frozen=True, eq=False)
class Part:
    """A block that has not been read yet.

    Attributes
    ----------
    read : function that returns the logits, labels and other arrays of the block by name
    keys : keys under which Dask's graph contains the arguments of `read`
    n_rows : number of rows, NaN if unknown before reading
    """

    read: Callable[..., dict[str, NDArray[Any]]]
    keys: list[Any]
    n_rows: float


@dataclass(frozen=True, eq=False)
class Parts:
    """All blocks of a data set, before they are read.

    Attributes
    ----------
    blocks : list of `Part`, in the order of the rows
    n_classes : number of columns of the logits, None if unknown before reading
    has_groups : whether the rows have groups
    collections : Dask collections whose graphs contain the keys of the blocks
        One chunk of an array suffices, since all chunks share its graph.
    class_names : class names in the order of the columns, None if the columns have no names
    """

    blocks: list[Part]
    n_classes: int | None
    has_groups: bool
    collections: list[Any]
    class_names: list[str] | None = None


def load_dask() -> Any:
    """Import and return dask, or raise an error that says how to install it."""
    try:
        import dask
        import dask.array
    except ImportError:
        raise missing_package("hetcal.dask needs dask", "dask") from None
    return dask


def is_frame(value: Any) -> bool:
    """Whether a value is a Dask dataframe; this check does not import the dataframe module."""
    return bool(load_dask().is_dask_collection(value) and hasattr(value, "columns") and value.ndim == 2)


def array_parts(logits: Any, other_arrays: Mapping[str, Any]) -> Parts:
    """Blocks of a Dask array of logits and of other arrays with one entry per row."""
    if not isinstance(logits, load_dask().array.Array):
        raise TypeError(
            f"logits must be a Dask array or dataframe, got {type(logits).__name__}; "
            "use hetcal.Batches for arrays on this machine"
        )
    if logits.ndim != 2:
        raise ValueError(
            f"logits must be two-dimensional (n, K), got shape {logits.shape}; "
            "pass one row per sample and one column per class"
        )
    z = logits.rechunk({1: -1}) if logits.numblocks[1] > 1 else logits
    aligned = {name: _align(value, z, name) for name, value in other_arrays.items()}
    arrays = [list(array.to_delayed().ravel()) for array in (z, *aligned.values())]
    read = partial(_read_arrays, ("logits", *aligned))
    blocks = [
        Part(read, [chunk.key for chunk in chunks], n_rows)
        for *chunks, n_rows in zip(*arrays, z.chunks[0], strict=True)
    ]
    n_classes = None if np.isnan(z.shape[1]) else int(z.shape[1])
    return Parts(blocks, n_classes, "groups" in other_arrays, [chunks[0] for chunks in arrays])


def frame_parts(frame: Any, columns: str | list[str] | None, other_columns: Mapping[str, Any]) -> Parts:
    """Blocks of a Dask dataframe; `other_columns` maps names of arguments of :func:`rows` to columns."""
    for name, column in other_columns.items():
        if not isinstance(column, str) or column not in frame.columns:
            shown = repr(column) if isinstance(column, str) else type(column).__name__
            raise ValueError(
                f"{name} must be a column of the dataframe ({_list_names(frame.columns)}), got {shown}; "
                "pass the name of one of these columns"
            )
    logits = _logits_columns(frame, columns, list(other_columns.values()))
    partitions = frame[[*logits, *other_columns.values()]].to_delayed()
    has_lists = len(logits) == 1
    positions = class_positions(logits) if columns is None and not has_lists else None
    read = partial(_read_frame, logits, dict(other_columns), positions)
    blocks = [Part(read, [partition.key], np.nan) for partition in partitions]
    names = None if has_lists else class_names_of([str(name) for name in logits])
    n_classes = None if has_lists else len(logits)
    return Parts(blocks, n_classes, "groups" in other_columns, partitions[:1], names)


def parquet_parts(
    path: Any,
    logits: str | list[str] | None,
    other_columns: Mapping[str, str | None],
    block_rows: int | None,
) -> Parts:
    """Blocks of a Parquet dataset; `other_columns` maps names of arguments of `read_parquet` to columns."""
    if block_rows is not None:
        block_rows = check_integer(block_rows, "block_rows", minimum=1)
    if isinstance(path, str | os.PathLike) and Path(path).exists():
        path = str(Path(path).resolve())  # workers may have a different current directory
    batches = ParquetBatches(path, logits, other_columns, block_rows, _BLOCK_ELEMENTS)
    by_number = batches.positions is not None
    blocks = [
        Part(
            partial(_read_row_groups, batches.logits, batches.other_columns, by_number, fragments), [], n_rows
        )
        for fragments, n_rows in _row_group_blocks(batches.dataset, batches.batch_rows)
    ]
    if not blocks:
        raise ValueError(f"path must contain at least one row, got none in {path!s}; check the path")
    has_groups = "groups" in batches.other_columns
    if len(batches.logits) > 1:
        return Parts(blocks, len(batches.logits), has_groups, [], class_names_of(batches.logits))
    list_size = getattr(batches.dataset.schema.field(batches.logits[0]).type, "list_size", None)
    return Parts(blocks, list_size, has_groups, [])


@contextlib.contextmanager
def new_folder(folder: Any) -> Iterator[str]:
    """Create a folder, locally or at an address such as s3://, and yield where its files must be written.

    Files of a local folder are written to a temporary subfolder and moved once all of them are complete.
    """
    from pyarrow.fs import FileSelector, FileSystem, LocalFileSystem

    address = str(folder) if "://" in str(folder) else str(Path(folder).resolve())
    try:
        system, base = FileSystem.from_uri(address)
        contents = system.get_file_info(FileSelector(base, allow_not_found=True))
    except (ValueError, NotADirectoryError) as error:  # pyarrow raises ValueError for invalid addresses
        raise ValueError(
            f"folder must be a path or an address such as s3://bucket/folder, got {str(folder)!r} ({error}); "
            "choose another one"
        ) from None
    if any(not _TEMPORARY.fullmatch(info.base_name) for info in contents):
        raise ValueError(f"folder must be new or empty, got {str(folder)!r}; choose another one")
    system.create_dir(base, recursive=True)
    if not isinstance(system, LocalFileSystem):
        yield address
        return
    temporary = Path(base, f".{uuid4().hex}.part")  # readers ignore names that start with a dot
    temporary.mkdir()
    try:
        yield str(temporary)
        for part in sorted(temporary.glob("part-*.parquet")):
            part.rename(Path(base, part.name))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_part(
    destination: str, number: int, values: NDArray[Any], column: str, other_columns: Mapping[str, Any]
) -> None:
    """Write a block atomically as one file, with a column of lists and other columns."""
    import pyarrow as pa
    from pyarrow import fs, parquet

    lists = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
    table = pa.table({column: lists} | {name: pa.array(value) for name, value in other_columns.items()})
    system, base = fs.FileSystem.from_uri(destination)
    # If a worker dies while writing, the incomplete file remains. Readers ignore it, because its name starts
    # with a dot.
    temporary = f"{base}/.{uuid4().hex}"
    try:
        parquet.write_table(table, temporary, filesystem=system)
        system.move(temporary, f"{base}/part-{number:06d}.parquet")
    except OSError:
        with contextlib.suppress(OSError):
            system.delete_file(temporary)
        raise


def _align(value: Any, z: Any, name: str) -> Any:
    """Return `value` as a Dask array with the same chunks as the rows of `z`."""
    da = load_dask().array
    is_dask = isinstance(value, da.Array)
    array: Any = value if is_dask else as_array(value, name)
    if array.ndim != 1:
        raise ValueError(
            f"{name} must be a one-dimensional Dask or NumPy array (n,), got shape {array.shape}; pass one "
            "entry per row"
        )
    sizes = (*z.chunks[0], *(array.chunks[0] if is_dask else ()))
    if np.isnan(sizes).any():
        if is_dask and array.numblocks == z.numblocks[:1]:
            return array  # the task of each block checks that its chunks have equal sizes
        shown = f"{array.numblocks[0]} chunks" if is_dask else "a NumPy array"
        raise ValueError(
            f"{name} must be a Dask array with as many chunks as logits ({z.numblocks[0]}) if chunk sizes "
            f"are unknown, got {shown}; call compute_chunk_sizes() on each Dask array first"
        )
    if array.shape[0] != z.shape[0]:
        raise ValueError(
            f"{name} must have one entry per row of logits ({z.shape[0]}), got {array.shape[0]}; pass the "
            "entries of the same rows"
        )
    if not is_dask:
        return da.from_array(array, chunks=z.chunks[:1])
    return array if array.chunks == z.chunks[:1] else array.rechunk(z.chunks[:1])


def _read_arrays(names: tuple[str, ...], *arrays: Any) -> dict[str, NDArray[Any]]:
    return dict(zip(names, arrays, strict=True))


def _logits_columns(frame: Any, columns: str | list[str] | None, other_columns: list[str]) -> list[str]:
    """Names of the columns with the logits: `columns`, or by default those that have no other role.

    The default leaves out `other_columns` and index columns. If several columns remain, it leaves out those
    that are not numeric.
    """
    if columns is not None:
        named = [columns] if isinstance(columns, str) else list(columns)
        missing = [c for c in named if c not in frame.columns]
        if missing or not named:
            raise ValueError(
                f"columns must name columns of the dataframe ({_list_names(frame.columns)}), "
                f"got {missing or named}; pass names of columns that it has"
            )
        return named
    candidates = [c for c in frame.columns if c not in other_columns and not is_index(c)]
    numeric = [c for c in candidates if getattr(frame.dtypes[c], "kind", "O") in "fiu"]
    if len(numeric) < 2 and len(candidates) != 1:
        raise ValueError(
            "logits must be one column of lists or several columns of numbers, "
            f"got {_list_names(candidates) or 'none'}; pass the names of the logit columns as columns=, or "
            "create a dataframe with one numeric column per class"
        )
    return numeric if len(numeric) > 1 else candidates


def _read_frame(
    logits: list[str], other_columns: Mapping[str, str], positions: Mapping[int, int] | None, frame: Any
) -> dict[str, NDArray[Any]]:
    has_lists = len(logits) == 1
    z = _stack_lists(frame[logits[0]].to_numpy(), logits[0]) if has_lists else frame[logits].to_numpy()
    parts = {name: frame[column].to_numpy() for name, column in other_columns.items()}
    if positions is not None:
        parts["labels"] = label_positions(parts["labels"], positions)
    return {"logits": z} | parts


def _stack_lists(values: NDArray[Any], name: str) -> NDArray[Any]:
    shapes = {np.shape(value) for value in values}
    if not shapes:
        return np.empty((0, 0))
    if len(shapes) > 1 or len(next(iter(shapes))) != 1:
        scalar = next((v for v in values if np.ndim(v) != 1), None)
        shown = f"lengths {sorted(map(len, values))[:: len(values) - 1]}" if scalar is None else repr(scalar)
        remedy = "write one logit per class in every row"
        if isinstance(scalar, str):
            remedy = (
                "call dask.config.set({'dataframe.convert-string': False}) before creating the dataframe, "
                "because Dask otherwise converts lists to text"
            )
        raise ValueError(f"column {name!r} must contain lists of equal length, got {shown}; {remedy}")
    return np.stack(list(values))


def _row_group_blocks(dataset: Any, max_rows: int) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Divide a dataset into blocks of whole row groups; yield the fragments and number of rows of each.

    A block has at most `max_rows` rows, unless it is a single row group. For every file from which a block
    takes row groups, the block has one fragment, which contains these row groups.
    """
    selected: list[tuple[Any, list[int]]] = []
    n_rows = 0
    for file in dataset.get_fragments():
        if not hasattr(file, "row_groups"):
            raise TypeError(
                f"path must be a dataset of Parquet files, got {type(file).__name__}; write Parquet files"
            )
        for group in file.row_groups:
            if n_rows and n_rows + group.num_rows > max_rows:
                yield _fragments(selected), n_rows
                selected, n_rows = [], 0
            if group.num_rows:
                if not selected or selected[-1][0] is not file:
                    selected.append((file, []))
                selected[-1][1].append(group.id)
                n_rows += group.num_rows
    if n_rows:
        yield _fragments(selected), n_rows


def _fragments(selected: list[tuple[Any, list[int]]]) -> tuple[Any, ...]:
    return tuple(file.subset(row_group_ids=ids) for file, ids in selected)


def _read_row_groups(
    logits: list[str], other_columns: Mapping[str, str], by_number: bool, fragments: tuple[Any, ...]
) -> dict[str, NDArray[Any]]:
    from pyarrow.dataset import FileSystemDataset

    batches: list[dict[str, NDArray[Any]]] = []
    # Every file is read with its own schema, so that later checks see the values as they are stored. With the
    # schema of the dataset, the values would be cast to the types of the first file.
    for file in fragments:
        dataset = FileSystemDataset([file], file.physical_schema, file.format, filesystem=file.filesystem)
        batches += ParquetBatches(dataset, logits, other_columns, _ALL_ROWS, 1, by_number=by_number)()
    widths = sorted({batch["logits"].shape[1] for batch in batches})
    if len(widths) > 1:
        raise ValueError(
            f"logits must have the same number of columns in every file, got {widths[0]} and {widths[-1]}; "
            "write files with the same classes"
        )
    # Concatenation copies even a single batch, so the result is writable. Arrow's arrays can be read-only,
    # and numba would compile its functions again for read-only arrays.
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def _list_names(names: Any) -> str:
    shown = ", ".join(map(str, list(names)[:8]))
    return shown + (", …" if len(names) > 8 else "")
