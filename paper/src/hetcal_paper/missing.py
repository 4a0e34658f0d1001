"""What is missing from a store of runs, and training it: what `hetcal train` calls."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetcal_paper import store
from hetcal_paper.runs import Run, paper_grid, parse, pending, runs_for

__all__ = ["chosen_runs", "list_pending", "missing_runs", "resolve", "train_missing"]


def resolve(words: Sequence[str]) -> list[Run]:
    """Turn names of runs, tables and figures into runs."""
    grid = paper_grid()
    return [run for word in words for run in (runs_for(word) if word in grid else (parse(word),))]


def list_pending(
    words: Sequence[str], out_dir: Path, results_dir: Path, only: str | None = None
) -> list[str]:
    """Names of the runs that are missing, of those named or of the whole grid, in order of worth."""
    return [run.name for run in missing_runs(words, out_dir, results_dir, only)]


def train_missing(
    words: Sequence[str],
    data_dir: Path | None,
    out_dir: Path,
    *,
    results_dir: Path | None = None,
    only: str | None = None,
    engine: str = "local",
    **options: Any,
) -> dict[str, list[str]]:
    """Train what is named, or what is missing from the grid; names of runs by what became of them.

    A run that is named is trained unless `out_dir` holds it; the queue also passes over runs that are
    summarised in `results_dir`. `engine` is "local", or "dask" for the workers of a cluster.
    """
    if engine not in ("local", "dask"):
        raise ValueError(f"engine must be 'local' or 'dask', got {engine!r}")
    try:
        from hetcal_paper.train import train_runs
    except ImportError as error:
        if error.name != "torch":
            raise
        raise ImportError('training needs PyTorch; install it with: pip install "hetcal[train]"') from None
    runs = missing_runs(words, out_dir, results_dir, only)
    if engine == "dask":
        from hetcal_paper.cluster import train_on_cluster as train_runs
    summary = train_runs(runs, data_dir, out_dir, **options)
    return {name: list(getattr(summary, name)) for name in ("finished", "skipped", "unfinished", "failed")}


def missing_runs(
    words: Sequence[str], out_dir: Path, results_dir: Path | None = None, only: str | None = None
) -> list[Run]:
    """Runs of those named, or of the whole grid, that neither the store nor the results hold."""
    if words:
        runs, done = resolve(words), set[str]()
    else:
        runs, done = pending(out_dir), _summarised(results_dir)
    done |= store.finished(out_dir)
    return [run for run in runs if run.name not in done and only in (None, run.data)]


def chosen_runs(
    words: Sequence[str], out_dir: str, results_dir: str | None = None, only: str | None = None
) -> list[Run]:
    """Runs that are named, finished or not; without names, what is missing."""
    if words:
        return [run for run in resolve(words) if only in (None, run.data)]
    return missing_runs([], Path(out_dir), None if results_dir is None else Path(results_dir), only)


def _summarised(results_dir: Path | None) -> set[str]:
    """Runs that a folder of results holds already."""
    table = None if results_dir is None else results_dir / "runs.csv"
    if table is None or not table.is_file():
        return set()
    with table.open(newline="", encoding="utf-8") as file:
        return {row["run"] for row in csv.DictReader(file)}
