"""Batches of a Parquet dataset, read with PyArrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._columns import class_positions, index_columns, label_positions, refuse_repeated

__all__ = ["ParquetBatches", "is_list", "logits_columns", "matrix_of", "open_dataset"]

_ELEMENTS = 1 << 23  # logits of a batch by default: 32 MiB of float32


class ParquetBatches:
    """A function that reads a dataset from its beginning, batch by batch.

    Parameters
    ----------
    path : file, folder or `pyarrow.dataset.Dataset`
    logits : columns of the classes, one column of lists, or None for all that `beside` does not name
    beside : column of labels, weights and groups, None where there is none
    batch_rows : rows read together, or None
    elements : logits read together where `batch_rows` is None
    by_number : whether labels go by the numbers that the columns are named with, where these are not 0, 1, …
        in order; by default where `logits` is None, since columns that are named come in the order of the
        classes
    """

    def __init__(
        self,
        path: Any,
        logits: str | list[str] | None,
        beside: Mapping[str, str | None],
        batch_rows: int | None,
        elements: int = _ELEMENTS,
        *,
        by_number: bool | None = None,
    ) -> None:
        self.dataset = open_dataset(path)
        self.beside = {name: column for name, column in beside.items() if column is not None}
        self.logits = logits_columns(self.dataset.schema, logits, list(self.beside.values()))
        by_number = logits is None if by_number is None else by_number
        self.positions = class_positions(self.logits) if by_number and len(self.logits) > 1 else None
        self.batch_rows = batch_rows or max(1, elements // self._width())

    def __call__(self) -> Iterator[dict[str, NDArray[Any]]]:
        columns = [*self.logits, *self.beside.values()]
        for batch in self.dataset.to_batches(columns=columns, batch_size=self.batch_rows):
            if batch.num_rows:
                z = matrix_of([batch.column(c) for c in self.logits], self.logits)
                parts = {name: _plain(batch.column(c), c) for name, c in self.beside.items()}
                if self.positions is not None:
                    parts["labels"] = label_positions(parts["labels"], self.positions)
                yield {"logits": z, **parts}

    def _width(self) -> int:
        if len(self.logits) > 1:
            return len(self.logits)
        kind = self.dataset.schema.field(self.logits[0]).type
        return max(1, getattr(kind, "list_size", 1000))  # lists of any length: a guess will do


def logits_columns(schema: Any, logits: str | list[str] | None, others: list[str]) -> list[str]:
    """Columns of the logits: those named, those that begin with ``logit_``, one of lists, or all of numbers.

    The index of a data frame is no column of logits unless it is named.
    """
    import pyarrow as pa

    missing = [c for c in (*([logits] if isinstance(logits, str) else logits or []), *others)
               if c not in schema.names]  # fmt: skip
    refuse_repeated(schema)
    if missing:
        raise ValueError(
            f"column {missing[0]!r} must be in the dataset, got {', '.join(schema.names[:8])}; name another"
        )
    if logits is not None:
        return [logits] if isinstance(logits, str) else list(logits)
    index = index_columns(schema)
    free = [f for f in schema if f.name not in others and f.name not in index]
    lists = [f.name for f in free if is_list(f.type)]
    numbers = [f.name for f in free if pa.types.is_floating(f.type) or pa.types.is_integer(f.type)]
    prefixed = {kind: [c for c in numbers if c.lower().startswith(f"{kind}_")] for kind in ("logit", "prob")}
    if len(prefixed["logit"]) > 1:
        return prefixed["logit"]
    if len(prefixed["prob"]) > 1:
        raise ValueError(
            f"logits must be in columns that hold logits, got probabilities ({prefixed['prob'][0]}, …); "
            "write their logarithms as logit_<class>"
        )
    found = lists if len(lists) == 1 else numbers
    if (len(lists) != 1 and len(numbers) < 2) or len(lists) > 1:
        raise ValueError(
            "logits must be one column of lists or several of numbers, "
            f"got {', '.join(f.name for f in free)}; name the columns with logits="
        )
    return found


def matrix_of(columns: list[Any], names: list[str]) -> NDArray[Any]:
    """Logits (n, K) from one column of lists or K columns of numbers."""
    from pyarrow import compute

    if len(columns) > 1:
        return np.stack([_plain(c, name) for c, name in zip(columns, names, strict=True)], axis=1)
    column = columns[0].combine_chunks() if hasattr(columns[0], "combine_chunks") else columns[0]
    if not is_list(column.type):
        return _plain(column, names[0])[:, None]
    if column.null_count:
        raise ValueError(f"column {names[0]!r} must have no missing rows, got {column.null_count}")
    flat = _plain(column.flatten(), names[0])
    lengths = compute.min_max(compute.list_value_length(column)).as_py()
    if lengths["min"] != lengths["max"]:
        raise ValueError(f"column {names[0]!r} must have lists of one length, got rows of different lengths")
    return flat.reshape(len(column), -1)


def _plain(column: Any, name: str) -> NDArray[Any]:
    if column.null_count:
        raise ValueError(f"column {name!r} must have no missing values, got {column.null_count}")
    return np.asarray(column.to_numpy(zero_copy_only=False))


def is_list(kind: Any) -> bool:
    """Whether an Arrow type is one of lists."""
    import pyarrow as pa

    return bool(pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def open_dataset(path: Any) -> Any:
    """Parquet file, folder or dataset as a `pyarrow.dataset.Dataset`."""
    try:
        import pyarrow
        from pyarrow import dataset
    except ImportError:
        raise ImportError(
            'reading .parquet needs pyarrow; install it with: pip install "hetcal[files]"'
        ) from None
    if isinstance(path, dataset.Dataset):
        return path
    if not isinstance(path, str | PathLike):
        raise TypeError(f"path must be a file, a folder or a pyarrow dataset, got {path!r}")
    try:
        return dataset.dataset(path, format="parquet")
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"path must be a readable Parquet dataset, got {str(path)!r}: {error}") from None
