"""Batches of a Parquet dataset, read with PyArrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._columns import class_positions, index_columns, label_positions, refuse_repeated
from hetcal._extras import missing_package

__all__ = ["ParquetBatches", "is_list", "logits_columns", "matrix_of", "open_dataset"]

_BATCH_ELEMENTS = 1 << 23  # logits per batch by default: 32 MiB of float32
_GUESSED_CLASSES = 1000  # number of classes assumed for lists of variable length, to choose the batch size


class ParquetBatches:
    """Callable that returns a new iterator over the batches of a Parquet dataset at every call.

    Parameters
    ----------
    path : file, folder or `pyarrow.dataset.Dataset`
    logits : columns of the classes, one column of lists, or None to infer them
    other_columns : mapping of ``labels``, ``sample_weight`` and ``groups`` to a column or None
    batch_rows : rows per batch, or None
    elements : approximate number of logits per batch if `batch_rows` is None
    by_number : whether labels refer to the numbers in the column names
        If True, label 10 is converted to the position of the column named ``10`` or ``logit_10``. If False,
        or if not all columns are numbered, labels are not converted. By default True if `logits` is None, and
        False otherwise.
    """

    def __init__(
        self,
        path: Any,
        logits: str | list[str] | None,
        other_columns: Mapping[str, str | None],
        batch_rows: int | None,
        elements: int = _BATCH_ELEMENTS,
        *,
        by_number: bool | None = None,
    ) -> None:
        self.dataset = open_dataset(path)
        self.other_columns = {name: column for name, column in other_columns.items() if column is not None}
        self.logits = logits_columns(self.dataset.schema, logits, list(self.other_columns.values()))
        by_number = logits is None if by_number is None else by_number
        self.positions = class_positions(self.logits) if by_number and len(self.logits) > 1 else None
        self.batch_rows = batch_rows or max(1, elements // self._n_classes())

    def __call__(self) -> Iterator[dict[str, NDArray[Any]]]:
        columns = [*self.logits, *self.other_columns.values()]
        for batch in self.dataset.to_batches(columns=columns, batch_size=self.batch_rows):
            if batch.num_rows:
                z = matrix_of([batch.column(c) for c in self.logits], self.logits)
                parts = {name: _to_numpy(batch.column(c), c) for name, c in self.other_columns.items()}
                if self.positions is not None and "labels" in parts:
                    parts["labels"] = label_positions(parts["labels"], self.positions)
                yield {"logits": z, **parts}

    def _n_classes(self) -> int:
        if len(self.logits) > 1:
            return len(self.logits)
        arrow_type = self.dataset.schema.field(self.logits[0]).type
        return max(1, getattr(arrow_type, "list_size", _GUESSED_CLASSES))


def logits_columns(schema: Any, logits: str | list[str] | None, other_columns: list[str]) -> list[str]:
    """Return the names of the columns that contain the logits.

    If `logits` is None, the names are inferred from all columns except `other_columns` and the index of a
    data frame. If there are several numeric columns ``logit_<class>``, the logits are in these columns.
    Otherwise they are in the only column of lists or, if there are no lists, in all numeric columns.

    Without several ``logit_`` columns, an error is raised if there are several ``prob_`` columns, several
    columns of lists, or neither lists nor two numeric columns.
    """
    refuse_repeated(schema)
    named = [logits] if isinstance(logits, str) else list(logits or [])
    missing = [column for column in (*named, *other_columns) if column not in schema.names]
    if missing:
        raise ValueError(
            f"column {missing[0]!r} must be in the dataset, got {', '.join(schema.names[:8]) or 'no columns'}"
            f"{', …' if len(schema.names) > 8 else ''}; name a column of the dataset"
        )
    return named if logits is not None else _infer_logits_columns(schema, other_columns)


def _infer_logits_columns(schema: Any, other_columns: list[str]) -> list[str]:
    import pyarrow as pa

    index = index_columns(schema)
    candidates = [f for f in schema if f.name not in other_columns and f.name not in index]
    lists = [f.name for f in candidates if is_list(f.type)]
    numeric = [f.name for f in candidates if pa.types.is_floating(f.type) or pa.types.is_integer(f.type)]
    logit_columns, prob_columns = (
        [name for name in numeric if name.lower().startswith(prefix)] for prefix in ("logit_", "prob_")
    )
    if len(logit_columns) > 1:
        return logit_columns
    if len(prob_columns) > 1:
        raise ValueError(
            f"logits must not be probabilities, got the columns {prob_columns[0]}, …; "
            "convert them with hetcal.to_logits and name the columns logit_<class>"
        )
    if len(lists) == 1:
        return lists
    if lists:
        raise ValueError(
            f"logits must be one column of lists, got {', '.join(lists)}; name one of them with logits="
        )
    if len(numeric) < 2:
        raise ValueError(
            "logits must be one column of lists or several columns of numbers, "
            f"got {', '.join(numeric) or 'none'}; pass the names of the logit columns as logits=, or write a "
            "dataset with one numeric column per class"
        )
    return numeric


def matrix_of(columns: list[Any], names: list[str]) -> NDArray[Any]:
    """Logits (n, K) from one column of lists or K numeric columns."""
    from pyarrow import compute

    if len(columns) > 1:
        return np.stack([_to_numpy(c, name) for c, name in zip(columns, names, strict=True)], axis=1)
    column = columns[0].combine_chunks() if hasattr(columns[0], "combine_chunks") else columns[0]
    if not is_list(column.type):
        return _to_numpy(column, names[0])[:, None]
    if column.null_count:
        raise ValueError(
            f"column {names[0]!r} must have no missing lists, got {column.null_count}; drop these rows"
        )
    values = _to_numpy(column.flatten(), names[0])
    lengths = compute.min_max(compute.list_value_length(column)).as_py()
    if lengths["min"] != lengths["max"]:
        raise ValueError(
            f"column {names[0]!r} must have lists of equal length, "
            f"got lengths from {lengths['min']} to {lengths['max']}; write one logit per class in every row"
        )
    return values.reshape(len(column), -1)


def _to_numpy(column: Any, name: str) -> NDArray[Any]:
    if column.null_count:
        raise ValueError(
            f"column {name!r} must have no missing values, got {column.null_count}; drop these rows"
        )
    return np.asarray(column.to_numpy(zero_copy_only=False))


def is_list(arrow_type: Any) -> bool:
    """Whether an Arrow type is a list of fixed or variable size."""
    import pyarrow as pa

    return bool(
        pa.types.is_fixed_size_list(arrow_type)
        or pa.types.is_list(arrow_type)
        or pa.types.is_large_list(arrow_type)
    )


def open_dataset(path: Any) -> Any:
    """Open a Parquet file or folder as a `pyarrow.dataset.Dataset`; a dataset is returned unchanged."""
    try:
        import pyarrow
        from pyarrow import dataset
    except ImportError:
        raise missing_package("reading .parquet needs pyarrow", "files") from None
    if isinstance(path, dataset.Dataset):
        return path
    if not isinstance(path, str | PathLike):
        raise TypeError(f"path must be a file, a folder or a pyarrow dataset, got {path!r}; pass one of them")
    try:
        return dataset.dataset(path, format="parquet")
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(
            f"path must be a readable Parquet file or folder, got {str(path)!r} ({error}); check the path"
        ) from None
