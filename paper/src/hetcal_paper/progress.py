"""Progress of many runs: a bar where a terminal can show one, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

__all__ = ["Progress"]


class Progress:
    """Counts epochs and tells how far the runs are.

    Parameters
    ----------
    n_runs, n_epochs : int
        What there is to do.
    shown : bool
        Whether to write anything.
    every : float
        Seconds between plain lines.
    """

    def __init__(self, n_runs: int, n_epochs: int, *, shown: bool = True, every: float = 10.0) -> None:
        self.n_runs, self.n_epochs = n_runs, n_epochs
        self.runs_done = self.epochs_done = self.epochs_here = 0
        self._every = every
        self._shown = shown
        self._started = self._last = time.monotonic()
        self._bar = _rich_bar(n_epochs) if shown else None

    def epoch_done(self) -> None:
        """Count one epoch of one run, trained here and now."""
        self.epochs_done += 1
        self.epochs_here += 1

    def tick(self, under_way: Sequence[str], *, now: bool = False) -> None:
        """Show the state if it is time to, or if it must be ``now``."""
        moment = time.monotonic()
        if self._bar is not None:
            progress, task = self._bar
            progress.update(task, completed=self.epochs_done, description=self._runs())
        if not self._shown or not (now or moment - self._last >= self._every):
            return
        self._last = moment
        if self._bar is None:
            self.say("; ".join([self._runs(), self._pace(moment), *under_way]))

    def say(self, line: str) -> None:
        """Write one line at once."""
        if not self._shown:
            return
        if self._bar is not None:
            self._bar[0].console.print(line, markup=False, highlight=False)
            return
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar[0].stop()

    def seconds_per_epoch(self, moment: float | None = None) -> float:
        """Seconds per epoch and run since the start, with all runs side by side."""
        elapsed = (time.monotonic() if moment is None else moment) - self._started
        return elapsed / max(self.epochs_here, 1)

    def _runs(self) -> str:
        return f"{self.runs_done}/{self.n_runs} runs, {self.epochs_done}/{self.n_epochs} epochs"

    def _pace(self, moment: float) -> str:
        if not self.epochs_here:
            return "setting up"
        pace = self.seconds_per_epoch(moment)
        left = timedelta(seconds=round(pace * (self.n_epochs - self.epochs_done)))
        return f"{pace:.3f} s/epoch/model, ETA {left}"


def _rich_bar(total: int) -> tuple[Any, Any] | None:
    """Start a bar if there is a terminal and Rich is installed."""
    if not sys.stdout.isatty():
        return None
    try:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    except ImportError:
        return None
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    bar = Progress(*columns)
    bar.start()
    return bar, bar.add_task("", total=total)
