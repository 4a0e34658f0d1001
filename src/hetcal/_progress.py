"""Progress reports from long fits to an interface that shows them, such as the command line.

The listener is the function that receives the reports. It is stored in a context variable, so that fits need
no argument for it. Without a listener, reports are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["listen_to_progress", "report_progress"]

_listener: ContextVar[Callable[[int, int], None] | None] = ContextVar("hetcal_progress", default=None)


@contextmanager
def listen_to_progress(update: Callable[[int, int], None]) -> Iterator[None]:
    """Call ``update(completed, total)`` whenever a fit in this context reports its progress."""
    token = _listener.set(update)
    try:
        yield
    finally:
        _listener.reset(token)


def report_progress(completed: int, total: int) -> None:
    """Tell the listener, if any, how many of a fit's steps are completed."""
    update = _listener.get()
    if update is not None:
        update(completed, total)
