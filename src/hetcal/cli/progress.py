"""Progress bars on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

__all__ = ["progress"]


@contextmanager
def progress(title: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar if standard error is a terminal; yield its ``update(completed, total)``.

    A command starts the bar before it imports NumPy and similar packages, because the imports can take a
    second.
    """
    stderr = Console(stderr=True)
    with Progress(console=stderr, transient=True, disable=quiet or not stderr.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda completed, total: bar.update(task, completed=completed, total=total)
