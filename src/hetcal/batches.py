"""Rows in batches: from an iterable, from arrays on disk, or from Parquet files."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcal._coerce import as_array, refuse_masked
from hetcal._columns import class_names_of, column_names, labels_by_number
from hetcal._numeric.blocks import Block, Statistic
from hetcal._numeric.rows import prepare
from hetcal._typing import FloatArray
from hetcal._validate import (
    check_groups,
    check_integer,
    check_labels,
    check_logits,
    check_names,
    check_weights,
)

__all__ = ["Batches", "is_mapped"]

_BATCH_ELEMENTS = 1 << 23  # logits per batch of an array: 32 MiB of float32
_PARTS = ("logits", "labels", "sample_weight", "groups")
_ADD_PART = {
    "sample_weight": "set the weights of the other rows to 1",
    "groups": "set the groups of the other rows too",
}
_NO_WEIGHT = (
    "sample_weight must have a positive entry in some batch, got only zeros; leave it out for equal weights"
)

# Validated logits, labels, weights and groups of a batch
_Batch = tuple[FloatArray, NDArray[Any], NDArray[np.float64] | None, NDArray[Any] | None]


class Batches:
    """Logits and labels that do not fit in memory, or should not be loaded at once.

    Every calibrator's ``predict_proba``, and :func:`hetcal.evaluate`, accept batches in place of arrays. So
    does ``fit``, except for the few calibrators that need all rows in memory, such as
    :class:`hetcal.TopLabelIsotonic`. A fit of temperatures iterates over the batches about ten times; other
    fits may iterate more often. Each batch is read while the previous one is processed.

    Parameters
    ----------
    source : iterable of batches, function that returns such an iterable, or array
        A batch is ``(logits, labels)``, ``(logits, labels, sample_weight)``, or a mapping with ``logits``,
        ``labels`` and optionally ``sample_weight`` and ``groups``. A generator can be iterated only once:
        pass the function that creates it. An array, typically a memory-mapped ``.npy`` file, is divided
        into batches.
    labels, sample_weight, groups : (n,) arrays
        Only for a source that is an array. They may be memory-mapped.
    class_names : K strings, optional
        Names of the columns. A calibrator that was fitted with class names finds its columns by these names.
    batch_rows : int, optional
        Rows per batch, only for a source that is an array.

    Examples
    --------
    >>> import numpy as np
    >>> import hetcal
    >>> z, y = np.eye(3)[[0, 1, 2, 0]] * 2, np.array([0, 1, 0, 2])
    >>> batches = hetcal.Batches([(z[:2], y[:2]), (z[2:], y[2:])])
    >>> round(hetcal.TemperatureScaling().fit(batches).alpha_, 4)  # two of four correct
    0.3466
    >>> hetcal.evaluate(hetcal.Identity().fit(batches).predict_proba(batches)).accuracy
    0.5
    """

    def __init__(
        self,
        source: Any,
        labels: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        class_names: ArrayLike | None = None,
        batch_rows: int | None = None,
    ) -> None:
        if batch_rows is not None:
            batch_rows = check_integer(batch_rows, "batch_rows", minimum=1)
        arguments = {"labels": labels, "sample_weight": sample_weight, "groups": groups}
        arrays = {name: value for name, value in arguments.items() if value is not None}
        if isinstance(source, np.ndarray):
            self._iterate: Callable[[], Iterable[Any]] = _ArrayBatches(source, arrays, batch_rows)
        else:
            if arrays:
                raise ValueError(
                    f"{next(iter(arrays))} must be part of every batch, got a separate array; "
                    "let the iterable yield (logits, labels) or mappings"
                )
            if batch_rows is not None:
                raise ValueError(
                    f"batch_rows must be omitted unless source is an array, got {batch_rows}; "
                    "let the iterable yield batches of this size"
                )
            self._iterate = _as_iterator_factory(source)
        self._transform: Callable[[FloatArray, Any], FloatArray] | None = None
        self._names = None if class_names is None else np.asarray(class_names, dtype=object).ravel().tolist()

    @classmethod
    def from_parquet(
        cls,
        path: str | Path | Any,
        *,
        labels: str = "label",
        logits: str | list[str] | None = None,
        sample_weight: str | None = None,
        groups: str | None = None,
        batch_rows: int | None = None,
    ) -> Batches:
        """Read a Parquet file, a folder of them or a `pyarrow.dataset.Dataset` batch by batch.

        Parameters
        ----------
        path : file, folder or dataset
        labels : column of the labels, which are class numbers or class names
        logits : columns in the order of the classes, or one column of lists
            By default the columns whose names start with ``logit_``, if there are two or more; else the only
            column of lists; else all numeric columns that no other argument names and that do not store the
            index of a data frame. If all columns that are found in this way have numbers, as in ``10`` or
            ``logit_10``, and the numbers are not 0, 1, 2, … in order, labels refer to the numbers: label 10
            means the column with number 10.
        sample_weight, groups : columns
        batch_rows : rows per batch
        """
        from hetcal._arrow import ParquetBatches

        if batch_rows is not None:
            batch_rows = check_integer(batch_rows, "batch_rows", minimum=1)
        other_columns = {"labels": labels, "sample_weight": sample_weight, "groups": groups}
        batches = ParquetBatches(path, logits, other_columns, batch_rows)
        return cls(batches, class_names=class_names_of(batches.logits) if len(batches.logits) > 1 else None)

    @cached_property
    def class_names(self) -> list[str] | None:
        """Class names in the order of the columns, as passed or from the first batch; None if unknown."""
        if self._names is not None:
            return class_names_of(check_names(self._names, len(self._names)))
        if isinstance(self._iterate, _ArrayBatches):
            return None
        first = next(iter(self._iterate()), None)
        columns = None if first is None else column_names(_as_mapping(first)["logits"])
        return None if columns is None else class_names_of(columns)

    @cached_property
    def n_classes(self) -> int:
        """Number of columns K."""
        return int(next(iter(self))[0].shape[1])

    def __iter__(self) -> Iterator[_Batch]:
        """Yield validated ``(logits, labels, sample_weight, groups)``; the last two may be None."""
        n_classes: int | None = None
        present: tuple[bool, bool] | None = None
        for number, batch in enumerate(_prefetch(self._iterate())):
            try:
                validated = self._validate(batch, n_classes)
            except (TypeError, ValueError) as error:
                kind = TypeError if isinstance(error, TypeError) else ValueError
                raise kind(f"batch {number}: {error}") from error
            z, _, w, g = validated
            first, present = present, (w is not None, g is not None)
            for name, now, before in zip(_PARTS[2:], present, first or present, strict=True):
                if now != before:
                    raise ValueError(
                        f"batch {number}: {name} must be given in every batch or in none, got batches with "
                        f"and without it; {_ADD_PART[name]}"
                    )
            n_classes = z.shape[1]
            yield validated
        if n_classes is None:
            raise ValueError(
                "the batches must contain at least one row, got no batches; "
                "if the source is a function, return a new iterable at every call"
            )

    def reduce(self, statistic: Statistic) -> tuple[NDArray[Any], ...]:
        """Sum the arrays that `statistic` computes from each batch, in the order of the batches.

        Rows without a positive weight are left out.
        """
        total: tuple[NDArray[Any], ...] | None = None
        for block in self._blocks():
            values = statistic(block)
            total = values if total is None else tuple(a + b for a, b in zip(total, values, strict=True))
        if total is None:
            raise ValueError(_NO_WEIGHT)
        return total

    def gather(self, statistic: Statistic) -> list[tuple[int, tuple[NDArray[Any], ...]]]:
        """Return ``(number, statistic(block))`` of each batch that has rows of positive weight.

        Batches are numbered from 0. `statistic` computes a tuple of arrays from the rows of a batch.
        """
        return [(block.number, statistic(block)) for block in self._blocks()]

    def first(self) -> Block:
        """Return the first batch that has rows of positive weight, from which fits take initial values."""
        for block in self._blocks():
            return block
        raise ValueError(_NO_WEIGHT)

    def group_names(self) -> NDArray[Any] | None:
        """Sorted names of the groups, or None if the rows have no groups."""
        names: NDArray[Any] | None = None
        for _, _, weight, groups in self:
            if groups is not None:
                unique = np.unique(groups if weight is None else groups[np.asarray(weight) > 0])
                if names is not None and (unique.dtype.kind == "U") != (names.dtype.kind == "U"):
                    raise TypeError(
                        "groups must be all integers or all strings, got both in different batches; "
                        "convert all of them to strings"
                    )
                names = unique if names is None else np.union1d(names, unique)
        return names

    def transform(self, function: Callable[[FloatArray, Any], FloatArray]) -> Batches:
        """Return the same rows with ``function(logits, groups)`` as their logits, computed on demand."""
        transformed = Batches(self._iterate, class_names=self._names)
        previous = self._transform
        transformed._transform = function if previous is None else lambda z, g: function(previous(z, g), g)
        return transformed

    def _blocks(self) -> Iterator[Block]:
        """Yield the rows of positive weight of each batch that has such rows."""
        for number, (z, y, w, g) in enumerate(self):
            groups = g[w > 0] if g is not None and w is not None else g
            block = Block(prepare(z, y, w), groups, number)
            if len(block.rows):
                yield block

    def _validate(self, batch: Any, n_classes: int | None) -> _Batch:
        parts = _as_mapping(batch)
        columns = column_names(parts["logits"])
        if columns is not None:
            self._check_columns(class_names_of(columns))
        # Callers check, on the first batch only, whether probabilities were passed as logits.
        z = check_logits(parts["logits"], n_classes=n_classes, probs_remedy=None)
        labels = labels_by_number(parts["labels"], columns, self._names)
        y = check_labels(labels, n_rows=len(z), n_classes=z.shape[1], class_names=self.class_names)
        w = check_weights(parts.get("sample_weight"), n_rows=len(z), allow_all_zero=True)
        g = None if parts.get("groups") is None else check_groups(parts["groups"], n_rows=len(z))
        return (z if self._transform is None else self._transform(z, g)), y, w, g

    def _check_columns(self, names: list[str]) -> None:
        """Raise an error if the columns have the wrong names or the wrong order.

        If the first batch has column names, those of later batches must be the same, in the same order. If
        `class_names` were passed, they replace all column names. An error is then raised only if the columns
        have these names in another order.
        """
        expected = self.class_names
        is_renamed = self._names is not None and sorted(names) != sorted(expected or [])
        if expected is not None and names != expected and not is_renamed:
            origin = "the first batch" if self._names is None else "class_names"
            raise ValueError(
                f"logits must have the columns of {origin} in the same order "
                f"({', '.join(expected[:9])}), got {', '.join(names[:9])}; use the same columns and order"
            )


class _ArrayBatches:
    """Batches of an array; those of a memory-mapped file are read from it one at a time."""

    def __init__(self, logits: NDArray[Any], arrays: Mapping[str, ArrayLike], batch_rows: int | None) -> None:
        if logits.ndim != 2:
            raise ValueError(
                f"logits must be two-dimensional (n, K), got shape {logits.shape}; "
                "pass one row per sample and one column per class"
            )
        if "labels" not in arrays:
            raise ValueError("labels must be given with an array of logits, got None; pass labels=")
        # Arrays are not converted, because as_array would lose the properties of a memory map.
        self.parts = {"logits": logits} | {
            name: value if isinstance(value, np.ndarray) else as_array(value, name)
            for name, value in arrays.items()
        }
        for name, part in self.parts.items():
            refuse_masked(part, name)
            if part.ndim < 1 or len(part) != len(logits):
                raise ValueError(
                    f"{name} must have one entry per row of logits ({len(logits)} rows), got shape "
                    f"{part.shape}; pass one entry for each row of logits, in the same order"
                )
        self.batch_rows = batch_rows or max(1, _BATCH_ELEMENTS // max(1, logits.shape[1]))

    def __call__(self) -> Iterator[dict[str, NDArray[Any]]]:
        n_rows = len(self.parts["logits"])
        for start in range(0, n_rows, self.batch_rows):
            stop = min(start + self.batch_rows, n_rows)
            yield {name: _read_rows(part, start, stop) for name, part in self.parts.items()}


def is_mapped(array: Any) -> bool:
    """Whether an array is a memory-mapped file in C order.

    The result is False for a view of such an array and for a copy-on-write map.
    """
    is_whole = isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap)
    # The file lacks the changes that were made to a copy-on-write map, whose mode is "c".
    return bool(is_whole and array.flags.c_contiguous and array.filename is not None and array.mode != "c")


def _read_rows(array: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
    """Read rows of an array.

    A memory-mapped file is read explicitly, since pages that are read through the map would stay in memory.
    """
    if not is_mapped(array):
        return array[start:stop]
    row_bytes = array.strides[0]
    offset = array.offset + start * row_bytes  # type: ignore[attr-defined]
    count = (stop - start) * row_bytes // array.itemsize
    values = np.fromfile(array.filename, array.dtype, count, offset=offset)  # type: ignore[attr-defined]
    return values.reshape(stop - start, *array.shape[1:])


def _as_iterator_factory(source: Any) -> Callable[[], Iterable[Any]]:
    """Return a function that starts a new iteration over the source at every call."""
    if callable(source):
        return lambda: iter(source())
    if isinstance(source, Iterator):
        raise TypeError(
            f"source must be iterable more than once, got {type(source).__name__}, "
            "which ends after one pass; pass the function that creates it, or a list"
        )
    if not isinstance(source, Iterable) or isinstance(source, str | bytes | Mapping):
        raise TypeError(
            "source must be an iterable of batches, a function that returns one, or an array, "
            f"got {source!r}; pass, for example, a list of batches"
        )
    return lambda: iter(source)


def _as_mapping(batch: Any) -> dict[str, Any]:
    """Return the parts of a batch in a dictionary with the keys ``logits``, ``labels`` and so on."""
    if isinstance(batch, Mapping):
        if set(batch) - set(_PARTS) or "logits" not in batch or "labels" not in batch:
            raise ValueError(
                "a batch must have the keys logits and labels, and no others except sample_weight and "
                f"groups, got {list(batch)}; add, rename or remove keys"
            )
        return dict(batch)
    if isinstance(batch, tuple | list) and 2 <= len(batch) <= 3:
        return dict(zip(_PARTS, batch, strict=False))
    length = f" of length {len(batch)}" if isinstance(batch, tuple | list) else ""
    raise TypeError(
        "a batch must be (logits, labels), (logits, labels, sample_weight) or a mapping, "
        f"got {type(batch).__name__}{length}; yield one of these"
    )


def _prefetch(source: Iterable[Any]) -> Iterator[Any]:
    """Yield the items of a source, each fetched while the previous one is processed."""
    items = iter(source)
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="hetcal-read") as reader:
        future = reader.submit(next, items, end)
        while (item := future.result()) is not end:
            future = reader.submit(next, items, end)
            yield item
