"""Blocks of rows on a Dask cluster, and passes over them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from hetcal._numeric.blocks import Block, Statistic
from hetcal._numeric.rows import Rows, decide
from hetcal._numeric.threads import on_one_thread
from hetcal._typing import CodeArray, FloatArray
from hetcal._validate import check_groups, check_labels, check_logits, check_weights
from hetcal.dask.parts import Parts, load_dask, new_folder, write_part

__all__ = ["DaskRows", "Store", "client_or_current"]

# Logits, labels, predicted classes, weights and groups of a block, in a tuple, whose size Dask can measure
LoadedBlock = tuple[FloatArray, CodeArray, CodeArray, NDArray[np.float64] | None, NDArray[Any] | None]
Transform = Callable[[FloatArray, Any], FloatArray]
# A task on one block; its arguments are the number of the block, the `_Work` to do, and the loaded block,
# which is None for a block without rows
BlockTask = Callable[[int, Any, Any], Any]

_RETRIES = 3  # how often a task is repeated after errors, in addition to repetitions after a lost worker
_FAN_IN = 8  # maximum number of results that one task merges
_NO_ROWS = "the blocks must contain a row of positive weight, got none; check the data they are read from"
_OTHER_COLUMNS = ("label", "sample_weight", "group")  # columns that are written besides the column of lists
_INITIAL_ELEMENTS = 1 << 20  # approximate maximum number of logits in the result of `DaskRows.first`


class DaskRows:
    """Logits and labels in blocks on a Dask cluster, created by :func:`rows` and :func:`read_parquet`.

    Every calibrator's ``predict_proba``, and :func:`hetcal.evaluate`, accept DaskRows in place of arrays. So
    does ``fit``, unless the calibrator needs all rows in memory, as :class:`hetcal.TopLabelIsotonic` does.
    """

    def __init__(self, store: Store, transforms: tuple[Transform, ...] = ()) -> None:
        self._store = store
        self._transforms = transforms

    def __repr__(self) -> str:
        return f"DaskRows({len(self._store.parts.blocks)} blocks)"

    @property
    def n_classes(self) -> int:
        """Number of columns K."""
        return self._store.n_classes

    @property
    def class_names(self) -> list[str] | None:
        """Class names in the order of the columns, or None if the columns have no names."""
        return self._store.parts.class_names

    def reduce(self, statistic: Statistic) -> tuple[NDArray[Any], ...]:
        """Sum a statistic over all blocks, always in the same order; only the sums leave the cluster."""
        total: tuple[NDArray[Any], ...] | None = self._store.combine(
            _statistic, _Work(self._transforms, statistic), _add
        )
        if total is None:
            raise ValueError(_NO_ROWS)
        return total

    def gather(self, statistic: Statistic) -> list[tuple[int, tuple[NDArray[Any], ...]]]:
        """Number and statistic of each block that has rows of positive weight, in the order of the blocks."""
        results: list[tuple[int, tuple[NDArray[Any], ...]]] = self._store.combine(
            _numbered_statistic, _Work(self._transforms, statistic), _concatenate
        )
        return results

    def first(self) -> Block:
        """Return the first block with rows of positive weight, or a sample of it, to start a fit from."""
        return self._first

    def group_names(self) -> NDArray[Any] | None:
        """Sorted names of the groups, or None if the rows have no groups."""
        return self._store.group_names

    def transform(self, function: Transform) -> DaskRows:
        """Return the same rows with ``function(logits, groups)`` as their logits, computed on demand."""
        return DaskRows(self._store, (*self._transforms, function))

    def to_dask_array(self) -> Any:
        """Dask array (n, K) of the logits, or of the result of `transform`, with all rows in order."""
        k, dtype = self.n_classes, self._sample(persist=False).rows.z.dtype
        name = f"hetcal-values-{uuid4().hex}"
        graph = self._store.graph(name, partial(_values, k, dtype), _Work(self._transforms), persist=False)
        chunks = tuple(block.n_rows for block in self._store.parts.blocks), (k,)
        return load_dask().array.Array(graph, name, chunks, dtype=dtype)

    def to_parquet(self, folder: str | Path, *, column: str = "probs") -> None:
        """Write all rows to a folder that the workers share, one file per block that has rows.

        In a local folder, the files appear when all of them are complete. At an address such as ``s3://``,
        each file appears when it is complete.

        Parameters
        ----------
        folder : path or address, new or empty
        column : name of the column that contains the logits, or the result of `transform`, as lists
            The other columns are ``label`` and, if the rows have them, ``sample_weight`` and ``group``.
        """
        if not column or column in _OTHER_COLUMNS:
            raise ValueError(
                f"column must be a name other than {', '.join(_OTHER_COLUMNS)}, got {column!r}; choose "
                "another name"
            )
        with new_folder(folder) as destination:
            work = _Work(self._transforms, destination=destination, column=column)
            self._store.combine(_write, work, _discard, persist=False)

    @cached_property
    def _first(self) -> Block:
        return self._sample(persist=True)

    def _sample(self, *, persist: bool) -> Block:
        for number in range(len(self._store.parts.blocks)):
            block: Block | None = self._store.visit(
                _sampled_block, _Work(self._transforms), number, persist=persist
            )
            if block is not None:
                return block
        raise ValueError(_NO_ROWS)


class Store:
    """Blocks that are read when first needed and optionally stay in the memory of the cluster.

    Graphs are built directly rather than with `dask.delayed`, which takes seconds for thousands of blocks.
    Their keys contain a random number, so that Dask never confuses these blocks with those of other data or
    of an earlier version of a file.

    Parameters
    ----------
    parts : blocks to be read
    client : distributed.Client, or None for Dask's local scheduler
    persist : whether blocks stay in the memory of the cluster; ignored without a client
    """

    def __init__(self, parts: Parts, client: Any, persist: bool) -> None:
        self.parts = parts
        self.client = client
        self.persist = persist and client is not None

    @cached_property
    def n_classes(self) -> int:
        """Number of columns K; read from the first block with rows if it is not known beforehand."""
        if self.parts.n_classes is not None:
            return self.parts.n_classes
        for number, part in enumerate(self.parts.blocks):
            name = f"hetcal-width-{uuid4().hex}"
            tasks = {name: (_n_columns, number, part.read, *part.keys)}
            n_columns = self._compute(_as_delayed(name, _build_graph(name, tasks, self.parts.collections)))
            if n_columns is not None:
                return int(n_columns)
        raise ValueError(_NO_ROWS)

    @cached_property
    def group_names(self) -> NDArray[Any] | None:
        """Sorted names of the groups, or None if the rows have no groups."""
        names: NDArray[Any] | None = None
        if self.parts.has_groups:
            names = self.combine(_group_names, _Work(), _merge_group_names)
        return names

    def combine(
        self, task: BlockTask, work: _Work, merge: Callable[[list[Any]], Any], *, persist: bool = True
    ) -> Any:
        """Apply `task` to every block, merge the results and return the final one.

        The results are merged in a tree whose shape depends only on the number of blocks.
        """
        token = uuid4().hex
        task_name, merge_name = f"hetcal-pass-{token}", f"hetcal-sum-{token}"
        level: list[Any] = [(task_name, i, 0) for i in range(len(self.parts.blocks))]
        merges: dict[Any, Any] = {}
        height = 0
        while height == 0 or len(level) > 1:
            inputs = [level[start : start + _FAN_IN] for start in range(0, len(level), _FAN_IN)]
            level = [(merge_name, height, i) for i in range(len(inputs))]
            merges |= {key: (merge, keys) for key, keys in zip(level, inputs, strict=True)}
            height += 1
        tasks = _as_delayed((task_name, 0, 0), self.graph(task_name, task, work, persist=persist))
        return self._compute(_as_delayed(level[0], _build_graph(merge_name, merges, [tasks])))

    def visit(self, task: BlockTask, work: _Work, number: int, *, persist: bool) -> Any:
        """Apply `task` to block `number` and return the result."""
        name = f"hetcal-visit-{uuid4().hex}"
        return self._compute(_as_delayed((name, number, 0), self.graph(name, task, work, persist=persist)))

    def graph(self, name: str, task: BlockTask, work: _Work, *, persist: bool) -> Any:
        """Graph whose key ``(name, i, 0)`` applies `task` to block i; all tasks share one copy of `work`.

        `persist` should be False if the blocks are used only once. Blocks that are already persisted are used
        in either case.
        """
        blocks = self._persisted if persist or "_persisted" in self.__dict__ else self._lazy_blocks()
        work_key = name.replace("hetcal-", "hetcal-work-", 1)
        tasks: dict[Any, Any] = {
            (name, i, 0): (task, i, work_key, (blocks.name, i)) for i in range(blocks.npartitions)
        }
        return _build_graph(name, tasks | {work_key: work}, [blocks])

    @cached_property
    def _persisted(self) -> Any:
        lazy = self._lazy_blocks()
        return self.client.persist(lazy, retries=_RETRIES) if self.persist else lazy

    def _lazy_blocks(self) -> Any:
        """Validated blocks as partitions of a bag, Dask's collection of arbitrary objects."""
        from dask.bag import Bag

        name, k = f"hetcal-block-{uuid4().hex}", self.n_classes
        tasks = {(name, i): (_load, k, i, part.read, *part.keys) for i, part in enumerate(self.parts.blocks)}
        return Bag(_build_graph(name, tasks, self.parts.collections), name, len(tasks))

    def _compute(self, value: Any) -> Any:
        if self.client is None:
            return value.compute()
        future = self.client.compute(value, retries=_RETRIES)
        try:
            return future.result()
        except BaseException:
            # The error may come from a block in memory. The next pass therefore reads all blocks again.
            self.__dict__.pop("_persisted", None)
            raise
        finally:
            future.release()


def client_or_current(client: Any) -> Any:
    """Return `client` or, if it is None, the current Dask client; None if there is no client."""
    if client is None:
        distributed = sys.modules.get("distributed")  # if distributed was never imported, there is no client
        try:
            return None if distributed is None else distributed.default_client()
        except ValueError:
            return None
    if not callable(getattr(client, "persist", None)) or not callable(getattr(client, "compute", None)):
        raise TypeError(
            f"client must be a distributed.Client, got {client!r}; leave it out to use the current client"
        )
    if client.asynchronous:
        raise ValueError("client must be synchronous, got asynchronous=True; create it without this option")
    return client


@dataclass(frozen=True)
class _Work:
    """What a pass does with every block: transform the logits, then compute a statistic or write them."""

    transforms: tuple[Transform, ...] = ()
    statistic: Statistic | None = None
    destination: str = ""
    column: str = ""


def _build_graph(name: str, tasks: dict[Any, Any], collections: list[Any]) -> Any:
    """Graph of the tasks and of the collections that they depend on."""
    from dask.highlevelgraph import HighLevelGraph

    return HighLevelGraph.from_collections(name, tasks, dependencies=collections)


def _as_delayed(key: Any, graph: Any) -> Any:
    from dask.delayed import Delayed

    return Delayed(key, graph, layer=key if isinstance(key, str) else key[0])


# -- tasks that run on workers ----------------------------------------------------------------------


@contextmanager
def _on_worker(number: int) -> Iterator[None]:
    """Use a single thread, and add the number of the block to errors."""
    try:
        with on_one_thread():
            yield
    except OSError as error:
        raise OSError(
            f"block {number} must be on storage that its worker can read and write, got: {error}; if files "
            "are missing, use storage that all workers share"
        ) from error
    except (TypeError, ValueError) as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"block {number}: {error}") from error


def _load(n_classes: int, number: int, read: Callable[..., Any], *arguments: Any) -> LoadedBlock | None:
    """Read and validate a block; None if it has no rows."""
    with _on_worker(number):
        parts = read(*arguments)
        if all(np.shape(value)[:1] == (0,) for value in parts.values()):
            return None
        # With ``probs_remedy=None``, probabilities that were passed as logits are not detected here. Each
        # fit, prediction or evaluation checks for them once, in the result of `DaskRows.first`.
        z = check_logits(parts["logits"], n_classes=n_classes, probs_remedy=None)
        y = check_labels(parts["labels"], n_rows=len(z), n_classes=n_classes)
        w = check_weights(parts.get("sample_weight"), n_rows=len(z), allow_all_zero=True)
        g = None if parts.get("groups") is None else check_groups(parts["groups"], n_rows=len(z))
        predicted = decide(z)
        return z, y.astype(predicted.dtype), predicted, w, g


def _n_columns(number: int, read: Callable[..., Any], *arguments: Any) -> int | None:
    with _on_worker(number):
        z = read(*arguments)["logits"]
        return int(z.shape[1]) if len(z) else None


def _to_block(
    number: int, work: _Work, loaded: LoadedBlock | None, max_elements: int | None = None
) -> Block | None:
    """Rows of positive weight with transformed logits, or None if there are no such rows.

    If `max_elements` is given, the rows are thinned evenly to at most about that many logits.
    """
    if loaded is None:
        return None
    z, y, predicted, w, g = loaded
    rows, index = Rows(z, y, predicted, w), np.arange(len(z)) if w is None else np.flatnonzero(w)
    if max_elements is not None:
        index = index[:: max(1, -(-z.size // max_elements))]
    if len(index) < len(z):
        rows, g = rows.take(index), None if g is None else g[index]
    if not len(rows):
        return None
    if work.transforms:
        z = _transform(work, rows.z, g)
        rows = Rows(z, rows.y, decide(z), rows.given_weight)
    return Block(rows, g, number)


def _transform(work: _Work, z: FloatArray, groups: NDArray[Any] | None) -> FloatArray:
    for function in work.transforms:
        z = function(z, groups)
    return z


def _statistic(number: int, work: _Work, loaded: LoadedBlock | None) -> tuple[NDArray[Any], ...] | None:
    with _on_worker(number):
        block = _to_block(number, work, loaded)
        return None if block is None or work.statistic is None else work.statistic(block)


def _add(results: list[tuple[NDArray[Any], ...] | None]) -> tuple[NDArray[Any], ...] | None:
    total = None
    for result in results:
        if result is not None:
            total = result if total is None else tuple(a + b for a, b in zip(total, result, strict=True))
    return total


def _numbered_statistic(
    number: int, work: _Work, loaded: LoadedBlock | None
) -> list[tuple[int, tuple[NDArray[Any], ...]]]:
    result = _statistic(number, work, loaded)
    return [] if result is None else [(number, result)]


def _concatenate(lists: list[list[Any]]) -> list[Any]:
    return [item for items in lists for item in items]


def _sampled_block(number: int, work: _Work, loaded: LoadedBlock | None) -> Block | None:
    with _on_worker(number):
        return _to_block(number, work, loaded, _INITIAL_ELEMENTS)


def _group_names(number: int, work: _Work, loaded: LoadedBlock | None) -> NDArray[Any] | None:  # noqa: ARG001
    if loaded is None or loaded[4] is None:
        return None
    groups, weight = np.asarray(loaded[4]), loaded[3]
    return np.unique(groups if weight is None else groups[np.asarray(weight) > 0])


def _merge_group_names(results: list[NDArray[Any] | None]) -> NDArray[Any] | None:
    names = [result for result in results if result is not None]
    if not names:
        return None
    if len({array.dtype.kind == "U" for array in names}) > 1:
        raise TypeError(
            "groups must be all integers or all strings, got both; convert all of them to strings"
        )
    return np.unique(np.concatenate(names))


def _values(n_classes: int, dtype: Any, number: int, work: _Work, loaded: LoadedBlock | None) -> FloatArray:
    """Transformed logits of one block, including its rows of weight zero; no rows if `loaded` is None."""
    with _on_worker(number):
        if loaded is None:
            return np.empty((0, n_classes), dtype)
        return _transform(work, loaded[0], loaded[4]).astype(dtype, copy=False)


def _write(number: int, work: _Work, loaded: LoadedBlock | None) -> None:
    with _on_worker(number):
        if loaded is not None:
            z, y, _, w, g = loaded
            columns = dict(zip(_OTHER_COLUMNS, (y.astype(np.int64), w, g), strict=True))
            present = {name: value for name, value in columns.items() if value is not None}
            write_part(work.destination, number, _transform(work, z, g), work.column, present)


def _discard(results: list[None]) -> None:
    """Merge function for tasks that return None; it does nothing."""
