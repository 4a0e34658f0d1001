"""What is missing from a store of runs, and training it: what `hetcal train` calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetcal.experiments import store
from hetcal.experiments.runs import Run, paper_grid, parse, pending, runs_for

__all__ = ["list_pending", "resolve", "train_missing"]


def resolve(words: Sequence[str]) -> list[Run]:
    """Turn names of runs, tables and figures into runs."""
    grid = paper_grid()
    return [run for word in words for run in (runs_for(word) if word in grid else (parse(word),))]


def list_pending(words: Sequence[str], out_dir: Path) -> list[str]:
    """Names of the runs that the store lacks, of those named or of the whole grid, in order of worth."""
    runs = resolve(words) if words else pending(out_dir)
    done = store.finished(out_dir)
    return [run.name for run in runs if run.name not in done]


def train_missing(
    words: Sequence[str], data_dir: Path | None, out_dir: Path, **options: Any
) -> dict[str, list[str]]:
    """Train what is named, or what is missing from the grid; names of runs by what became of them."""
    try:
        from hetcal.experiments.train import train_runs
    except ImportError as error:
        if error.name != "torch":
            raise
        raise ImportError('training needs PyTorch; install it with: pip install "hetcal[train]"') from None
    runs = resolve(words) if words else pending(out_dir)
    summary = train_runs(runs, data_dir, out_dir, **options)
    return {name: list(getattr(summary, name)) for name in ("finished", "skipped", "unfinished", "failed")}
