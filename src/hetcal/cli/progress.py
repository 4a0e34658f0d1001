"""Progress bars on standard error."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

__all__ = ["progress"]


@contextmanager
def progress(title: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar if standard error is a terminal; yield a function ``update(completed, total)``.

    A command starts the bar before it imports NumPy and similar packages, because the imports can take a
    second. The bar is hidden if `quiet` is True. It is also hidden in notebooks, because they would show
    every update on a new line.
    """
    stderr = Console(stderr=True)
    in_notebook = "JPY_PARENT_PID" in os.environ
    if quiet or in_notebook or not stderr.is_terminal:
        yield lambda completed, total: None  # noqa: ARG005
        return
    with Progress(console=stderr, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda completed, total: bar.update(task, completed=completed, total=total)
