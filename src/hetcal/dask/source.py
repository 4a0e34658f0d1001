"""Blocks on a cluster, and passes over them."""

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

from hetcal._coerce import as_array
from hetcal._numeric.blocks import Block, Statistic
from hetcal._numeric.rows import Rows, decide
from hetcal._numeric.threads import on_one_thread
from hetcal._typing import CodeArray, FloatArray
from hetcal._validate import check_groups, check_labels, check_logits, check_weights
from hetcal.dask.parts import Parts, load_dask, new_folder, write_part

__all__ = ["DaskRows", "Store", "client_or_current"]

# What a worker holds of a block: logits, labels, guess, weights, groups. A tuple, since Dask knows its size.
Held = tuple[FloatArray, CodeArray, CodeArray, NDArray[np.float64] | None, NDArray[Any] | None]
Change = Callable[[FloatArray, Any], FloatArray]
# What a task makes of a block, from its number, what is to be done and what is held of it
Leaf = Callable[[int, Any, Any], Any]

_RETRIES = 3  # of a task that fails; one whose worker dies is always sent to another
_TOGETHER = 8  # results added up in one task
_EMPTY = "the blocks must hold a row of positive weight, got none; check the data they are read from"
_BESIDE = ("label", "sample_weight", "group")  # columns of what is written, beside the lists
_GUESS = 1 << 20  # logits that are enough for a first guess


class DaskRows:
    """Logits and labels in blocks on a Dask cluster; made by :func:`rows` and :func:`read_parquet`.

    Goes to any calibrator's ``fit`` and ``predict_proba`` and to :func:`hetcal.evaluate` in place of arrays.
    """

    def __init__(self, store: Store, changes: tuple[Change, ...] = ()) -> None:
        self._store = store
        self._changes = changes

    def __repr__(self) -> str:
        return f"DaskRows({len(self._store.parts.blocks)} blocks)"

    @property
    def n_classes(self) -> int:
        """Number of columns K."""
        return self._store.n_classes

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes in the order of the columns, where the columns have names."""
        return self._store.parts.class_names

    def reduce(self, statistic: Statistic) -> tuple[NDArray[Any], ...]:
        """Sums of a statistic over all blocks, always in the same order; only the sums come here."""
        found: tuple[NDArray[Any], ...] | None = self._store.combine(
            _reduce, _Work(self._changes, statistic), _add
        )
        if found is None:
            raise ValueError(_EMPTY)
        return found

    def gather(self, statistic: Statistic) -> list[tuple[int, tuple[NDArray[Any], ...]]]:
        """Number of each block that has rows of weight and what the statistic makes of it, in their order."""
        found: list[tuple[int, tuple[NDArray[Any], ...]]] = self._store.combine(
            _gather, _Work(self._changes, statistic), _listed
        )
        return found

    def first(self) -> Block:
        """Return some rows of the first block that has any, for a first guess."""
        return self._first

    def group_names(self) -> NDArray[Any] | None:
        """Sorted names of the groups, or None where there are none."""
        return self._store.group_names

    def transform(self, function: Change) -> DaskRows:
        """Return the same rows with ``function(logits, groups)`` in place of the logits, made when needed."""
        return DaskRows(self._store, (*self._changes, function))

    def to_dask_array(self) -> Any:
        """Dask array (n, K) of the logits, or of what `transform` made of them; all rows, in their order."""
        k, dtype = self.n_classes, self._sample(keep=False).rows.z.dtype
        name = f"hetcal-values-{uuid4().hex}"
        graph = self._store.graph(name, partial(_values, k, dtype), _Work(self._changes), keep=False)
        chunks = tuple(block.n_rows for block in self._store.parts.blocks), (k,)
        return load_dask().array.Array(graph, name, chunks, dtype=dtype)

    def to_parquet(self, folder: str | Path, *, column: str = "probs") -> None:
        """Write all rows to a folder that the workers share, one file per block.

        On a disk the files appear when all are written; behind an address such as ``s3://``, each when it is.

        Parameters
        ----------
        folder : path or address, new or empty
        column : name of the column of lists; `label`, `sample_weight` and `group` stand beside it
        """
        if not column or column in _BESIDE:
            raise ValueError(f"column must be a name other than {', '.join(_BESIDE)}, got {column!r}")
        with new_folder(folder) as place:
            work = _Work(self._changes, place=place, column=column)
            self._store.combine(_write, work, _nothing, keep=False)

    @cached_property
    def _first(self) -> Block:
        return self._sample(keep=True)

    def _sample(self, *, keep: bool) -> Block:
        for number in range(len(self._store.parts.blocks)):
            found: Block | None = self._store.visit(_some_rows, _Work(self._changes), number, keep=keep)
            if found is not None:
                return found
        raise ValueError(_EMPTY)


class Store:
    """Blocks that are read when first needed and, if wanted, stay on the cluster.

    Graphs are written out, and not made of `dask.delayed`, which takes seconds for thousands of blocks. Two
    sources share no key: no block is taken for one of other data, or of a file that has changed since.

    Parameters
    ----------
    parts : blocks to be read
    client : distributed.Client, or None for Dask's own scheduler
    persist : whether blocks stay on the cluster
    """

    def __init__(self, parts: Parts, client: Any, persist: bool) -> None:
        self.parts = parts
        self.client = client
        self.persist = persist and client is not None

    @cached_property
    def n_classes(self) -> int:
        """Number of columns K, read from the first block that has rows where nothing else tells it."""
        if self.parts.n_classes is not None:
            return self.parts.n_classes
        for number, part in enumerate(self.parts.blocks):
            name = f"hetcal-width-{uuid4().hex}"
            graph = {name: (_width, number, part.read, *part.keys)}
            found = self._get(_delayed(name, _joined(name, graph, self.parts.collections)))
            if found is not None:
                return int(found)
        raise ValueError(_EMPTY)

    @cached_property
    def group_names(self) -> NDArray[Any] | None:
        """Sorted names of the groups, or None where there are none."""
        names: NDArray[Any] | None = None
        if self.parts.has_groups:
            names = self.combine(_group_names, _Work(), _unite)
        return names

    def combine(
        self, leaf: Leaf, work: _Work, merge: Callable[[list[Any]], Any], *, keep: bool = True
    ) -> Any:
        """Apply `leaf` to every block and merge the results, some at a time: a tree of fixed shape."""
        token = uuid4().hex
        passed, name = f"hetcal-pass-{token}", f"hetcal-sum-{token}"
        level: list[Any] = [(passed, i, 0) for i in range(len(self.parts.blocks))]
        graph: dict[Any, Any] = {}
        height = 0
        while height == 0 or len(level) > 1:
            some = [level[s : s + _TOGETHER] for s in range(0, len(level), _TOGETHER)]
            level = [(name, height, i) for i in range(len(some))]
            graph |= {key: (merge, keys) for key, keys in zip(level, some, strict=True)}
            height += 1
        below = self.graph(passed, leaf, work, keep=keep)
        return self._get(_delayed(level[0], _joined(name, graph, [_delayed((passed, 0, 0), below)])))

    def visit(self, leaf: Leaf, work: _Work, number: int, *, keep: bool) -> Any:
        """Apply `leaf` to one block."""
        name = f"hetcal-look-{uuid4().hex}"
        return self._get(_delayed((name, number, 0), self.graph(name, leaf, work, keep=keep)))

    def graph(self, name: str, leaf: Leaf, work: _Work, *, keep: bool) -> Any:
        """Graph whose keys ``(name, i, 0)`` are `leaf` of block i; what it does is in it once, not in each.

        Blocks that are used once need not be kept, unless they are already.
        """
        blocks = self._kept if keep or "_kept" in self.__dict__ else self._lazy()
        sent = name.replace("hetcal-", "hetcal-work-", 1)
        tasks: dict[Any, Any] = {
            (name, i, 0): (leaf, i, sent, (blocks.name, i)) for i in range(blocks.npartitions)
        }
        return _joined(name, tasks | {sent: work}, [blocks])

    @cached_property
    def _kept(self) -> Any:
        lazy = self._lazy()
        return self.client.persist(lazy, retries=_RETRIES) if self.persist else lazy

    def _lazy(self) -> Any:
        """Checked blocks as partitions of a bag: Dask's collection of what is no array and no frame."""
        from dask.bag import Bag

        name, k = f"hetcal-block-{uuid4().hex}", self.n_classes
        tasks = {(name, i): (_load, k, i, b.read, *b.keys) for i, b in enumerate(self.parts.blocks)}
        return Bag(_joined(name, tasks, self.parts.collections), name, len(tasks))

    def _get(self, value: Any) -> Any:
        if self.client is None:
            return value.compute()
        future = self.client.compute(value, retries=_RETRIES)
        try:
            return future.result()
        except BaseException:
            self.__dict__.pop("_kept", None)  # one that failed would fail for ever
            raise
        finally:
            future.release()


def client_or_current(client: Any) -> Any:
    """Return the client given or the current one, None where there is none."""
    if client is None:
        distributed = sys.modules.get("distributed")  # not loaded: nobody has made a client
        try:
            return None if distributed is None else distributed.default_client()
        except ValueError:
            return None
    if not callable(getattr(client, "persist", None)) or not callable(getattr(client, "compute", None)):
        raise TypeError(f"client must be a distributed.Client, got {client!r}")
    if client.asynchronous:
        raise ValueError("client must be synchronous, got one with asynchronous=True; pass another client")
    return client


@dataclass(frozen=True)
class _Work:
    """What a pass does to every block: change its logits, then sum them up or write them."""

    changes: tuple[Change, ...] = ()
    statistic: Statistic | None = None
    place: str = ""
    column: str = ""


def _joined(name: str, tasks: dict[Any, Any], collections: list[Any]) -> Any:
    """Return a graph of the tasks and of all that they need."""
    from dask.highlevelgraph import HighLevelGraph

    return HighLevelGraph.from_collections(name, tasks, dependencies=collections)


def _delayed(key: Any, graph: Any) -> Any:
    from dask.delayed import Delayed

    return Delayed(key, graph, layer=key if isinstance(key, str) else key[0])


@contextmanager
def _inside(number: int) -> Iterator[None]:
    """On a worker: one thread, and errors that name the block."""
    try:
        with on_one_thread():
            yield
    except OSError as error:
        raise OSError(
            f"block {number} must be within reach of every worker, got {error}; use a store that all share"
        ) from error
    except (TypeError, ValueError) as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"block {number}: {error}") from error


def _load(n_classes: int, number: int, read: Callable[..., Any], *arguments: Any) -> Held | None:
    """Read and check a block; None where it is empty."""
    with _inside(number):
        parts = read(*arguments)
        if all(np.shape(value)[:1] == (0,) for value in parts.values()):
            return None
        z = check_logits(parts["logits"], n_classes=n_classes, probs_remedy=None)  # `fit` looks at the whole
        y = check_labels(parts["labels"], n_rows=len(z), n_classes=n_classes)
        w, g = parts.get("sample_weight"), parts.get("groups")
        if w is not None:  # a block may weigh nothing
            w, nothing = as_array(w, "sample_weight"), np.zeros(len(z))
            w = nothing if np.array_equal(w, nothing) else check_weights(w, n_rows=len(z))
        guess = decide(z)
        return z, y.astype(guess.dtype), guess, w, None if g is None else check_groups(g, n_rows=len(z))


def _width(number: int, read: Callable[..., Any], *arguments: Any) -> int | None:
    with _inside(number):
        z = read(*arguments)["logits"]
        return int(z.shape[1]) if len(z) else None


def _block(number: int, work: _Work, held: Held | None, most: int | None = None) -> Block | None:
    """Rows of positive weight with changed logits, thinned to `most` logits; None where there are none."""
    if held is None:
        return None
    z, y, guess, w, g = held
    rows, index = Rows(z, y, guess, w), np.arange(len(z)) if w is None else np.flatnonzero(w)
    if most is not None:
        index = index[:: max(1, -(-z.size // most))]
    if len(index) < len(z):
        rows, g = rows.take(index), None if g is None else g[index]
    if not len(rows):
        return None
    if work.changes:
        z = _change(work, rows.z, g)
        rows = Rows(z, rows.y, decide(z), rows.given_weight)
    return Block(rows, g, number)


def _change(work: _Work, z: FloatArray, groups: NDArray[Any] | None) -> FloatArray:
    for change in work.changes:
        z = change(z, groups)
    return z


def _reduce(number: int, work: _Work, held: Held | None) -> tuple[NDArray[Any], ...] | None:
    with _inside(number):
        block = _block(number, work, held)
        return None if block is None or work.statistic is None else work.statistic(block)


def _add(some: list[tuple[NDArray[Any], ...] | None]) -> tuple[NDArray[Any], ...] | None:
    total = None
    for found in some:
        if found is not None:
            total = found if total is None else tuple(a + b for a, b in zip(total, found, strict=True))
    return total


def _gather(number: int, work: _Work, held: Held | None) -> list[tuple[int, tuple[NDArray[Any], ...]]]:
    found = _reduce(number, work, held)
    return [] if found is None else [(number, found)]


def _listed(some: list[list[Any]]) -> list[Any]:
    return [item for part in some for item in part]


def _some_rows(number: int, work: _Work, held: Held | None) -> Block | None:
    with _inside(number):
        return _block(number, work, held, _GUESS)


def _group_names(number: int, work: _Work, held: Held | None) -> NDArray[Any] | None:  # noqa: ARG001
    return None if held is None or held[4] is None else np.unique(held[4])


def _unite(some: list[NDArray[Any] | None]) -> NDArray[Any] | None:
    names = [found for found in some if found is not None]
    if not names:
        return None
    if len({found.dtype.kind == "U" for found in names}) > 1:
        raise TypeError("groups must be all integers or all strings, got both; turn all of them into strings")
    return np.unique(np.concatenate(names))


def _values(n_classes: int, dtype: Any, number: int, work: _Work, held: Held | None) -> FloatArray:
    """Changed logits of all rows, those of weight zero too."""
    with _inside(number):
        if held is None:
            return np.empty((0, n_classes), dtype)
        return _change(work, held[0], held[4]).astype(dtype, copy=False)


def _write(number: int, work: _Work, held: Held | None) -> None:
    with _inside(number):
        if held is not None:
            z, y, _, w, g = held
            beside = dict(zip(_BESIDE, (y.astype(np.int64), w, g), strict=True))
            there = {name: value for name, value in beside.items() if value is not None}
            write_part(work.place, number, _change(work, z, g), work.column, there)


def _nothing(some: list[None]) -> None:
    """Nothing is left to say when all blocks are written."""
