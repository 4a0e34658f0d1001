"""Rows in batches: any iterable that can be gone over again, arrays on disk, Parquet."""

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
from hetcal._validate import check_groups, check_labels, check_logits, check_names, check_weights

__all__ = ["Batches", "is_mapped"]

_ELEMENTS = 1 << 23  # of a batch that we cut ourselves: 32 MiB of float32
_PARTS = ("logits", "labels", "sample_weight", "groups")


class Batches:
    """Logits and labels that do not fit in memory, or should not be there at once.

    Goes to any calibrator's ``fit`` and ``predict_proba`` and to :func:`hetcal.evaluate` in place of arrays.
    A fit goes over the batches some ten times and holds no more than two of them.

    Parameters
    ----------
    source : iterable of batches, function that returns one, or array
        A batch is ``(logits, labels)``, ``(logits, labels, sample_weight)``, or a mapping with ``logits``,
        ``labels`` and, if wanted, ``sample_weight`` and ``groups``. A generator can be gone over only once:
        pass the function that makes it. An array (a memory-mapped ``.npy`` above all) is cut into batches.
    labels, sample_weight, groups : (n,) arrays
        For a source that is an array; they may be memory-mapped, too.
    class_names : K texts, optional
        Names of the columns. A calibrator that knows its classes puts the columns in its own order by them.
    batch_rows : int, optional
        Rows of a batch where we cut it.

    Examples
    --------
    >>> import numpy as np
    >>> import hetcal
    >>> z, y = np.eye(3)[[0, 1, 2, 0]] * 2, np.array([0, 1, 0, 2])
    >>> batches = hetcal.Batches([(z[:2], y[:2]), (z[2:], y[2:])])
    >>> round(hetcal.TemperatureScaling().fit(batches).alpha_, 4)  # two of four right
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
        whole = isinstance(batch_rows, int | np.integer) and not isinstance(batch_rows, bool)
        if batch_rows is not None and (not whole or batch_rows < 1):
            raise ValueError(f"batch_rows must be a positive integer, got {batch_rows!r}")
        beside = {"labels": labels, "sample_weight": sample_weight, "groups": groups}
        given = {name: value for name, value in beside.items() if value is not None}
        if isinstance(source, np.ndarray):
            self._make: Callable[[], Iterable[Any]] = _Cut(source, given, batch_rows)
        else:
            if given:
                raise ValueError(
                    f"{next(iter(given))} must be part of every batch, got an array beside an iterable; "
                    "let the iterable yield (logits, labels) or mappings"
                )
            self._make = _again(source)
        self._change: Callable[[FloatArray, Any], FloatArray] | None = None
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
        labels : column of the class numbers
        logits : columns in the order of the classes, or one column of lists
            By default all columns of numbers, or the one column of lists, that no other argument names and
            that are no index of a data frame. If these columns are named with whole numbers other than
            0, 1, 2, … in order, labels go by these names: label 10 is the column named 10.
        sample_weight, groups : columns
        batch_rows : rows read together
        """
        from hetcal._arrow import ParquetBatches

        beside = {"labels": labels, "sample_weight": sample_weight, "groups": groups}
        batches = ParquetBatches(path, logits, beside, batch_rows)
        named = batches.logits if len(batches.logits) > 1 else None
        return cls(batches, class_names=None if named is None else class_names_of(named))

    @cached_property
    def class_names(self) -> list[str] | None:
        """Names of the classes in the order of the columns: as given, or those of the first batch."""
        if self._names is not None:
            return class_names_of(check_names(self._names, len(self._names)))
        if isinstance(self._make, _Cut):
            return None
        first = next(iter(self._make()), None)
        columns = None if first is None else column_names(_named(first)["logits"])
        return None if columns is None else class_names_of(columns)

    @cached_property
    def n_classes(self) -> int:
        """Number of columns K."""
        return int(self._first[0].shape[1])

    def __iter__(self) -> Iterator[tuple[FloatArray, NDArray[Any], NDArray[np.float64] | None, Any]]:
        """Yield ``(logits, labels, sample_weight, groups)`` of every batch, checked; the last may be None."""
        n_classes, weighted = None, None
        empty = True
        for number, batch in enumerate(_ahead(self._make())):
            try:
                checked = self._check(batch, n_classes)
            except (TypeError, ValueError) as error:
                kind = TypeError if isinstance(error, TypeError) else ValueError
                raise kind(f"batch {number}: {error}") from error
            n_classes, has_weights = checked[0].shape[1], checked[2] is not None
            if weighted not in (None, has_weights):
                raise ValueError(
                    f"batch {number}: sample_weight must be given in every batch or in none, got batches "
                    "with and without it; weigh the rows of the others 1"
                )
            weighted, empty = has_weights, False
            yield checked
        if empty:
            raise ValueError(
                "the batches must hold at least one row, got none; "
                "a function must return a new iterable at every call"
            )

    def reduce(self, statistic: Statistic) -> tuple[NDArray[Any], ...]:
        """Sums of a statistic over all batches, in their order."""
        total: tuple[NDArray[Any], ...] | None = None
        for number, batch in enumerate(self):
            block = _block(batch, number)
            if not len(block.rows):  # all of weight zero
                continue
            found = statistic(block)
            total = found if total is None else tuple(a + b for a, b in zip(total, found, strict=True))
        if total is None:
            raise ValueError("sample_weight must have a positive entry in some batch, got only zeros")
        return total

    def gather(self, statistic: Statistic) -> list[tuple[int, tuple[NDArray[Any], ...]]]:
        """Number of each batch that has weight and what the statistic makes of it, in their order."""
        blocks = (_block(batch, number) for number, batch in enumerate(self))
        return [(block.number, statistic(block)) for block in blocks if len(block.rows)]

    def first(self) -> Block:
        """Return the first batch that has weight, for a first guess."""
        for number, batch in enumerate(self):
            block = _block(batch, number)
            if len(block.rows):
                return block
        raise ValueError("sample_weight must have a positive entry in some batch, got only zeros")

    def group_names(self) -> NDArray[Any] | None:
        """Sorted names of the groups, or None where there are none."""
        names: NDArray[Any] | None = None
        for _, _, _, groups in self:
            if groups is not None:
                new = np.unique(groups)
                if names is not None and (new.dtype.kind == "U") != (names.dtype.kind == "U"):
                    raise TypeError(
                        "groups must be all integers or all strings, got both in different batches; "
                        "turn all of them into strings"
                    )
                names = new if names is None else np.union1d(names, new)
        return names

    def transform(self, function: Callable[[FloatArray, Any], FloatArray]) -> Batches:
        """Return the same rows with ``function(logits, groups)`` in place of the logits, made when needed."""
        changed = Batches(self._make, class_names=self._names)
        before = self._change
        changed._change = function if before is None else lambda z, g: function(before(z, g), g)
        return changed

    @cached_property
    def _first(self) -> tuple[FloatArray, NDArray[Any], NDArray[np.float64] | None, Any]:
        return next(iter(self))

    def _check(self, batch: Any, n_classes: int | None) -> tuple[FloatArray, NDArray[Any], Any, Any]:
        parts = _named(batch)
        columns, expected = column_names(parts["logits"]), self.class_names
        own = None if columns is None else class_names_of(columns)
        renamed = self._names is not None and own is not None and sorted(own) != sorted(expected or [])
        if own is not None and expected is not None and own != expected and not renamed:
            raise ValueError(
                f"logits must have the same columns in the same order in every batch "
                f"({', '.join(expected[:9])}), got {', '.join(own[:9])}; reorder the columns"
            )
        z = check_logits(parts["logits"], n_classes=n_classes, probs_remedy=None)  # `fit` looks at the whole
        labels = labels_by_number(parts["labels"], columns, self._names)
        y = check_labels(labels, n_rows=len(z), n_classes=z.shape[1], class_names=expected)
        w = parts.get("sample_weight")
        if w is not None:
            w = as_array(w, "sample_weight")
            zero = np.ndim(w) == 1 and not np.any(w)  # a batch may weigh nothing, if others do not
            w = np.zeros(len(z)) if zero and np.size(w) == len(z) else check_weights(w, n_rows=len(z))
        g = parts.get("groups")
        g = None if g is None else check_groups(g, n_rows=len(z))
        return (z if self._change is None else self._change(z, g)), y, w, g


class _Cut:
    """Batches of an array; a memory-mapped one is read by the file, so that memory holds a batch only."""

    def __init__(self, logits: NDArray[Any], beside: Mapping[str, ArrayLike], batch_rows: int | None) -> None:
        if logits.ndim != 2:
            raise ValueError(f"logits must be two-dimensional (n, K), got shape {logits.shape}")
        if "labels" not in beside:
            raise ValueError("labels must be given beside an array of logits, got None")
        self.parts = {"logits": logits} | {
            name: value if isinstance(value, np.ndarray) else as_array(value, name)  # a mapped file stays one
            for name, value in beside.items()
        }
        for name, part in self.parts.items():
            refuse_masked(part, name)
            if part.ndim < 1 or len(part) != len(logits):
                raise ValueError(
                    f"{name} must have one entry per row ({len(logits)}), got shape {part.shape}"
                )
        self.step = batch_rows or max(1, _ELEMENTS // max(1, logits.shape[1]))

    def __call__(self) -> Iterator[dict[str, NDArray[Any]]]:
        for start in range(0, len(self.parts["logits"]), self.step):
            rows = slice(start, start + self.step)
            yield {name: _read(part, rows) for name, part in self.parts.items()}


def _read(array: NDArray[Any], rows: slice) -> NDArray[Any]:
    """Some rows of an array; of a mapped file by reading, since mapped pages would stay in memory."""
    if not is_mapped(array):
        return array[rows]
    row_bytes = array.strides[0]
    n = len(range(*rows.indices(len(array))))
    at = array.offset + rows.start * row_bytes  # type: ignore[attr-defined]
    count = n * row_bytes // array.itemsize
    return np.fromfile(array.filename, array.dtype, count, offset=at).reshape(n, *array.shape[1:])  # type: ignore[attr-defined]


def is_mapped(array: Any) -> bool:
    """Whether an array is a whole file mapped into memory, rows one after the other, and no part of one."""
    whole = isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap)
    return bool(whole and array.flags.c_contiguous and array.filename is not None)


def _again(source: Any) -> Callable[[], Iterable[Any]]:
    """Return a function that starts the source anew each time."""
    if callable(source):
        return lambda: iter(source())
    if isinstance(source, Iterator):
        raise TypeError(
            f"source must be iterable more than once, got {type(source).__name__}, which ends after a pass; "
            "pass the function that makes it, or a list"
        )
    if not isinstance(source, Iterable) or isinstance(source, str | bytes | Mapping):
        raise TypeError(f"source must be an iterable of batches, a function or an array, got {source!r}")
    return lambda: iter(source)


def _named(batch: Any) -> dict[str, Any]:
    if isinstance(batch, Mapping):
        strange = sorted(set(batch) - set(_PARTS))
        if strange or "logits" not in batch or "labels" not in batch:
            raise ValueError(
                f"a batch must have logits and labels ({', '.join(_PARTS)} known), got {list(batch)}"
            )
        return dict(batch)
    if isinstance(batch, tuple | list) and 2 <= len(batch) <= 3:
        return dict(zip(_PARTS, batch, strict=False))
    raise TypeError(
        "a batch must be (logits, labels), (logits, labels, sample_weight) or a mapping, "
        f"got {type(batch).__name__}"
    )


def _block(batch: tuple[FloatArray, NDArray[Any], Any, Any], number: int) -> Block:
    z, y, w, g = batch
    if g is not None and w is not None:
        g = g[w > 0]
    return Block(prepare(z, y, w), g, number)


def _ahead(source: Iterable[Any]) -> Iterator[Any]:
    """The items of a source, each fetched while the one before is worked on."""
    items = iter(source)
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="hetcal-read") as reader:
        coming = reader.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = reader.submit(next, items, end)
            yield item
