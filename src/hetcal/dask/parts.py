"""Where blocks come from: chunks of arrays, partitions of dataframes, row groups of Parquet files."""

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

_ELEMENTS = 1 << 24  # logits of a block that we cut ourselves: 64 MiB of float32
_DRAFT = re.compile(r"\.[0-9a-f]{32}\.part")  # what a caller that was killed leaves behind
_EVERYTHING = 1 << 30  # rows: more than a row group holds


@dataclass(frozen=True, eq=False)
class Part:
    """One block that is yet to be read.

    Attributes
    ----------
    read : function that returns logits, labels and what else there is of the block, by name
    keys : keys in Dask's graph of what it takes
    n_rows : rows of the block, nan where only reading would tell
    """

    read: Callable[..., dict[str, NDArray[Any]]]
    keys: list[Any]
    n_rows: float


@dataclass(frozen=True, eq=False)
class Parts:
    """All blocks that are yet to be read.

    Attributes
    ----------
    blocks : in their order
    n_classes : columns of the logits, None where only reading would tell
    has_groups : whether the rows have groups
    collections : of Dask, whose graphs have the keys; chunks of an array share one graph
    class_names : names of the classes in the order of the columns, where the columns have names
    """

    blocks: list[Part]
    n_classes: int | None
    has_groups: bool
    collections: list[Any]
    class_names: list[str] | None = None


def load_dask() -> Any:
    """Return the package, or say how to get it."""
    try:
        import dask
        import dask.array
    except ImportError:
        raise ImportError('hetcal.dask needs dask; install it with: pip install "hetcal[dask]"') from None
    return dask


def is_frame(value: Any) -> bool:
    """Whether this is a Dask dataframe; told without loading what dataframes need."""
    return bool(load_dask().is_dask_collection(value) and hasattr(value, "columns") and value.ndim == 2)


def array_parts(logits: Any, beside: Mapping[str, Any]) -> Parts:
    """Blocks of a Dask array, with arrays beside it."""
    if not isinstance(logits, load_dask().array.Array):
        raise TypeError(
            f"logits must be a Dask array or dataframe, got {type(logits).__name__}; "
            "hetcal.Batches takes arrays that are on this machine"
        )
    if logits.ndim != 2:
        raise ValueError(f"logits must be two-dimensional (n, K), got shape {logits.shape}")
    z = logits.rechunk({1: -1}) if logits.numblocks[1] > 1 else logits
    aligned = {name: _aligned(value, z, name) for name, value in beside.items()}
    arrays = [list(array.to_delayed().ravel()) for array in (z, *aligned.values())]
    read = partial(_of_arrays, ("logits", *aligned))
    blocks = [
        Part(read, [chunk.key for chunk in chunks], n_rows)
        for *chunks, n_rows in zip(*arrays, z.chunks[0], strict=True)
    ]
    n_classes = None if np.isnan(z.shape[1]) else int(z.shape[1])
    return Parts(blocks, n_classes, "groups" in beside, [chunks[0] for chunks in arrays])


def frame_parts(frame: Any, columns: str | list[str] | None, beside: Mapping[str, Any]) -> Parts:
    """Blocks of a Dask dataframe."""
    for name, column in beside.items():
        if not isinstance(column, str) or column not in frame.columns:
            shown = repr(column) if isinstance(column, str) else type(column).__name__
            raise ValueError(
                f"{name} must be a column of the dataframe ({_some(frame.columns)}), got {shown}; "
                "pass its name"
            )
    chosen = _frame_columns(frame, columns, list(beside.values()))
    pieces = frame[[*chosen, *beside.values()]].to_delayed()
    positions = class_positions(chosen) if columns is None and len(chosen) > 1 else None
    read = partial(_of_frame, chosen, dict(beside), positions)
    blocks = [Part(read, [piece.key], np.nan) for piece in pieces]
    several = len(chosen) > 1
    names = class_names_of([str(name) for name in chosen]) if several else None
    return Parts(blocks, len(chosen) if several else None, "groups" in beside, pieces[:1], names)


def parquet_parts(
    path: Any, logits: str | list[str] | None, beside: Mapping[str, str | None], block_rows: int | None
) -> Parts:
    """Blocks of a Parquet dataset."""
    if block_rows is not None and (isinstance(block_rows, bool) or block_rows < 1):
        raise ValueError(f"block_rows must be a positive integer, got {block_rows!r}")
    if isinstance(path, str | os.PathLike) and Path(path).exists():
        path = str(Path(path).resolve())  # workers may stand in another folder
    whole = ParquetBatches(path, logits, beside, block_rows, _ELEMENTS)
    columns, named = whole.logits, whole.beside
    blocks = [
        Part(partial(_of_parquet, columns, named, whole.positions is not None, piece), [], n_rows)
        for piece, n_rows in _pieces(whole.dataset, whole.batch_rows)
    ]
    if not blocks:
        raise ValueError(f"path must hold at least one row, got none in {path!s}")
    size = getattr(whole.dataset.schema.field(columns[0]).type, "list_size", None)
    several = len(columns) > 1
    names = class_names_of(columns) if several else None
    return Parts(blocks, len(columns) if several else size, "groups" in named, [], names)


@contextlib.contextmanager
def new_folder(folder: Any) -> Iterator[str]:
    """Make a folder for a dataset, on a disk or behind an address such as s3://, and say where parts go.

    On a disk they are moved to the folder when all are written, so that nobody reads some for all.
    """
    from pyarrow.fs import FileSelector, FileSystem, LocalFileSystem

    place = str(folder) if "://" in str(folder) else str(Path(folder).resolve())
    try:
        system, base = FileSystem.from_uri(place)
        found = system.get_file_info(FileSelector(base, allow_not_found=True))
    except (ValueError, NotADirectoryError) as error:  # pyarrow's errors of addresses are ValueErrors
        raise ValueError(f"folder must be a folder or its address, got {str(folder)!r}: {error}") from None
    if any(not _DRAFT.fullmatch(info.base_name) for info in found):
        raise ValueError(f"folder must be new or empty, got {str(folder)!r}; name another one")
    system.create_dir(base, recursive=True)
    if not isinstance(system, LocalFileSystem):
        yield place
        return
    draft = Path(base, f".{uuid4().hex}.part")  # readers pass over such names
    draft.mkdir()
    try:
        yield str(draft)
        for part in sorted(draft.glob("part-*.parquet")):
            part.rename(Path(base, part.name))
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_part(place: str, number: int, values: NDArray[Any], name: str, beside: Mapping[str, Any]) -> None:
    """Write a block as one file, lists `name` and columns beside them; it is there whole or not at all."""
    import pyarrow as pa
    from pyarrow import fs, parquet

    lists = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
    table = pa.table({name: lists} | {key: pa.array(value) for key, value in beside.items()})
    system, base = fs.FileSystem.from_uri(place)
    draft = f"{base}/.{uuid4().hex}"  # a worker may die; readers pass over such names
    try:
        parquet.write_table(table, draft, filesystem=system)
        system.move(draft, f"{base}/part-{number:06d}.parquet")
    except OSError:
        with contextlib.suppress(OSError):
            system.delete_file(draft)
        raise


def _aligned(value: Any, z: Any, name: str) -> Any:
    """Return `value` as a Dask array whose chunks are those of the rows of `z`."""
    da = load_dask().array
    spread = isinstance(value, da.Array)
    array: Any = value if spread else as_array(value, name)
    if array.ndim != 1:
        raise ValueError(
            f"{name} must be one-dimensional (n,), an array of Dask or numpy, got shape {array.shape}"
        )
    sizes = (*z.chunks[0], *(array.chunks[0] if spread else ()))
    if np.isnan(sizes).any():
        if spread and array.numblocks == z.numblocks[:1]:
            return array  # the workers see whether sizes match
        shown = f"{array.numblocks[0]} chunks" if spread else "a numpy array"
        raise ValueError(
            f"{name} must have as many chunks as logits ({z.numblocks[0]}) where sizes are unknown, "
            f"got {shown}; call compute_chunk_sizes() on each Dask array first"
        )
    if array.shape[0] != z.shape[0]:
        raise ValueError(f"{name} must have one entry per row of logits ({z.shape[0]}), got {array.shape[0]}")
    if not spread:
        return da.from_array(array, chunks=z.chunks[:1])
    return array if array.chunks == z.chunks[:1] else array.rechunk(z.chunks[:1])


def _of_arrays(names: tuple[str, ...], *arrays: Any) -> dict[str, NDArray[Any]]:
    return dict(zip(names, arrays, strict=True))


def _frame_columns(frame: Any, columns: str | list[str] | None, others: list[str]) -> list[str]:
    """Columns of the logits: those named, or all columns of numbers, or the only one."""
    if columns is not None:
        named = [columns] if isinstance(columns, str) else list(columns)
        missing = [c for c in named if c not in frame.columns]
        if missing or not named:
            raise ValueError(
                f"columns must name columns of the dataframe ({_some(frame.columns)}), got {missing or named}"
            )
        return named
    free = [c for c in frame.columns if c not in others and not is_index(c)]
    numbers = [c for c in free if getattr(frame.dtypes[c], "kind", "O") in "fiu"]
    if len(numbers) < 2 and len(free) != 1:
        raise ValueError(
            f"logits must be one column of lists or several of numbers, got {_some(free)}; "
            "name the columns with columns="
        )
    return numbers if len(numbers) > 1 else free


def _of_frame(
    columns: list[str], beside: Mapping[str, str], positions: Mapping[int, int] | None, frame: Any
) -> dict[str, NDArray[Any]]:
    several = len(columns) > 1
    z = frame[columns].to_numpy() if several else _of_lists(frame[columns[0]].to_numpy(), columns[0])
    parts = {name: frame[column].to_numpy() for name, column in beside.items()}
    if positions is not None:
        parts["labels"] = label_positions(parts["labels"], positions)
    return {"logits": z} | parts


def _of_lists(values: NDArray[Any], name: str) -> NDArray[Any]:
    shapes = {np.shape(value) for value in values}
    if not shapes:
        return np.empty((0, 0))
    if len(shapes) > 1 or len(next(iter(shapes))) != 1:
        odd = next((v for v in values if np.ndim(v) != 1), None)
        got = f"lengths {sorted(map(len, values))[:: len(values) - 1]}" if odd is None else repr(odd)
        raise ValueError(
            f"column {name!r} must hold lists of one length, got {got}; Dask turns lists into text unless "
            "dask.config.set({'dataframe.convert-string': False})"
        )
    return np.stack(list(values))


def _pieces(dataset: Any, most_rows: int) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Row groups to be read together, as parts of files, and their rows."""
    found: list[tuple[Any, list[int]]] = []
    n_rows = 0
    for file in dataset.get_fragments():
        if not hasattr(file, "row_groups"):
            raise TypeError(f"path must be a dataset of Parquet files, got {type(file).__name__}")
        for group in file.row_groups:
            if n_rows and n_rows + group.num_rows > most_rows:
                yield _cut(found), n_rows
                found, n_rows = [], 0
            if group.num_rows:
                if not found or found[-1][0] is not file:
                    found.append((file, []))
                found[-1][1].append(group.id)
                n_rows += group.num_rows
    if n_rows:
        yield _cut(found), n_rows


def _cut(found: list[tuple[Any, list[int]]]) -> tuple[Any, ...]:
    return tuple(file.subset(row_group_ids=ids) for file, ids in found)


def _of_parquet(
    columns: list[str], beside: Mapping[str, str], by_number: bool, files: tuple[Any, ...]
) -> dict[str, NDArray[Any]]:
    from pyarrow.dataset import FileSystemDataset

    found: list[dict[str, NDArray[Any]]] = []
    for file in files:  # each with its own schema, so that what differs is seen and not cast
        alone = FileSystemDataset([file], file.physical_schema, file.format, filesystem=file.filesystem)
        found += ParquetBatches(alone, columns, beside, _EVERYTHING, 1, by_number=by_number)()
    widths = sorted({some["logits"].shape[1] for some in found})
    if len(widths) > 1:
        raise ValueError(f"logits must have as many columns in every file, got {widths[0]} and {widths[-1]}")
    # A copy even of a single part: arrays of Arrow can be read only, and would be compiled for once more.
    return {name: np.concatenate([some[name] for some in found]) for name in found[0]}


def _some(names: Any) -> str:
    shown = ", ".join(map(str, list(names)[:8]))
    return shown + (", …" if len(names) > 8 else "")
