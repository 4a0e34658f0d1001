"""Parallel processing of blocks of rows.

The blocks depend only on the shape of the array, and their results are combined in order. The results
therefore do not depend on the number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import cache, wraps
from itertools import pairwise
from threading import Lock, Thread, current_thread
from typing import Any, TypeVar

import threadpoolctl
from threadpoolctl import ThreadpoolController

__all__ = ["in_order", "n_threads", "on_one_thread", "one_blas_thread", "over_blocks", "with_one_blas_thread"]

T = TypeVar("T")

_BLOCK = 1 << 20  # a block has at least about this many array elements; a smaller array is one block
_MAX_BLOCKS = 32  # maximum number of blocks; it limits memory, since the results of all blocks are stored
_pools: dict[int, ThreadPoolExecutor] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)  # the threads of a pool do not survive a fork
_on_one_thread: ContextVar[bool] = ContextVar("hetcal_on_one_thread", default=False)


def n_threads() -> int:
    """Number of threads for large arrays.

    This is the value of the environment variable ``HETCAL_THREADS``. If that is not set, it is the number of
    available cores, but at most 16. Within :func:`on_one_thread`, it is always 1.
    """
    if _on_one_thread.get():
        return 1
    setting = os.environ.get("HETCAL_THREADS", "")
    if not setting:
        return min(_cores(), 16)
    if not setting.isdecimal() or int(setting) < 1:
        raise ValueError(
            f"HETCAL_THREADS must be a positive integer, got {setting!r}; unset it to use the available cores"
        )
    return int(setting)


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Process blocks of rows only on the calling thread within this context.

    Workers that already run in parallel use this context.
    """
    token = _on_one_thread.set(True)
    try:
        yield
    finally:
        _on_one_thread.reset(token)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let BLAS use one thread within this context.

    Idle BLAS threads busy-wait and compete with the threads of hetcal. With one BLAS thread, the last digit
    of a sum is also independent of the number of cores. The limit applies to the whole process: the first of
    several concurrent calls sets it, and the last one to finish removes it.
    """
    _limit.enter()
    try:
        yield
    finally:
        _limit.leave()


def with_one_blas_thread(work: Callable[..., T]) -> Callable[..., T]:
    """Decorate a function so that it runs in :func:`one_blas_thread`.

    This makes functions with many operations on small matrices faster.
    """

    @wraps(work)
    def limited(*arguments: Any, **named: Any) -> T:
        with one_blas_thread():
            return work(*arguments, **named)

    return limited


class _BlasLimit:
    """The limit of BLAS to one thread, and the number of active calls that need it."""

    def __init__(self) -> None:
        self.lock, self.n_active = Lock(), 0
        self.limiter: Any = None
        self.set_by: Thread | None = None

    def enter(self) -> None:
        """Count a call that needs the limit; the first one sets the limit."""
        with self.lock:
            if self.n_active == 0:
                self.limiter, self.set_by = _blas().limit(limits=1, user_api="blas"), current_thread()
                self.limiter.__enter__()
            self.n_active += 1

    def leave(self) -> None:
        """End a call that needs the limit; the last one removes the limit."""
        with self.lock:
            self.n_active -= 1
            if self.n_active == 0:
                if self.set_by is not current_thread():
                    _let_other_threads_remove_limit()
                self.limiter.__exit__(None, None, None)


def _let_other_threads_remove_limit() -> None:
    """Allow any thread to remove the limit, not only the thread that set it.

    Since threadpoolctl 3.8, only the thread that set a limit for OpenBLAS may remove it, unless this
    restriction is lifted.
    """
    openblas = getattr(threadpoolctl, "OpenBLASController", None)
    clear = getattr(openblas, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)


_limit = _BlasLimit()


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def over_blocks(work: Callable[[int, int], T], n_rows: int, n_columns: int) -> list[T]:
    """Results of ``work(start, stop)`` for every block of rows, in order.

    Blocks are processed in parallel, so `work` should release the GIL.
    """
    n_blocks = max(1, min(_MAX_BLOCKS, n_rows, n_rows * n_columns // _BLOCK))
    edges = [n_rows * b // n_blocks for b in range(n_blocks + 1)]
    return in_order(work, list(pairwise(edges)))


def in_order(work: Callable[..., T], arguments: Sequence[tuple[Any, ...]], min_parallel: int = 2) -> list[T]:
    """Results of `work` for every tuple of arguments, in order.

    The calls run in parallel if there are at least `min_parallel` tuples and `n_threads` is not 1.
    """
    threads = n_threads()
    if threads == 1 or len(arguments) < min_parallel:
        return [work(*args) for args in arguments]
    pool = _pools.get(threads)
    if pool is None:
        pool = _pools[threads] = ThreadPoolExecutor(threads, thread_name_prefix="hetcal")
    # A task that waited for other tasks of the same pool could deadlock. Tasks therefore use one thread: if a
    # task itself calls `in_order`, the inner tasks run one after the other on its own thread. Every task runs
    # in a copy of the caller's context, since the context stores whether warnings are silenced.
    tasks = [pool.submit(copy_context().run, _run_on_one_thread, work, args) for args in arguments]
    return [task.result() for task in tasks]


def _run_on_one_thread(work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    with on_one_thread():
        return work(*arguments)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
