"""Find the missing runs, order them by importance, and train them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetcal_paper import store
from hetcal_paper.results import summarised
from hetcal_paper.runs import SEEDS, Run, paper_grid, parse, runs_for

__all__ = ["missing_runs", "resolve", "train_missing"]

#: Training order: all runs of a table, then the runs of figures on the same data set, seed by seed. Figures
#: that use only the runs of a table are not listed.
_ORDER = {
    "table2": ("fig10", "fig12", "fig13", "fig14", "fig9"),
    "table1": ("fig4", "fig7", "fig1", "fig2", "fig5", "fig8"),
}


def resolve(names: Sequence[str]) -> list[Run]:
    """Return the runs with these names; the name of a table or figure stands for all its runs."""
    grid = paper_grid()
    return [run for name in names for run in (runs_for(name) if name in grid else (parse(name),))]


def missing_runs(
    names: Sequence[str], out_dir: str | Path, results_dir: str | Path | None = None, only: str | None = None
) -> list[Run]:
    """Return the runs that still need training.

    Parameters
    ----------
    names : sequence of str
        Runs, tables or figures. If empty, the runs of all tables and figures in order of importance.
    out_dir : path
        The store of finished runs. Runs that it contains are not missing.
    results_dir : path, optional
        Folder of results, used only if `names` is empty. Runs that it contains are then not missing either.
    only : {"c10", "c100"}, optional
        Restrict the runs to one data set.

    Returns
    -------
    list of Run
    """
    if only not in (None, "c10", "c100"):
        raise ValueError(f"only must be 'c10' or 'c100', got {only!r}; omit it for both data sets")
    runs = resolve(names) if names else _ordered_grid()
    done = store.finished(out_dir)
    if not names and results_dir is not None:
        done |= summarised(results_dir)
    return [run for run in runs if run.name not in done and only in (None, run.data)]


def train_missing(
    names: Sequence[str],
    data_dir: str | Path | None,
    out_dir: str | Path,
    *,
    results_dir: str | Path | None = None,
    only: str | None = None,
    engine: str = "local",
    **options: Any,
) -> dict[str, list[str]]:
    """Train the runs of :func:`missing_runs`.

    Parameters
    ----------
    names, out_dir, results_dir, only
        See :func:`missing_runs`.
    data_dir : path or None
        Folder with CIFAR; None for ``$HETCAL_DATA``.
    engine : {"local", "dask"}
        Train on this machine or on the workers of a Dask cluster.
    **options
        Passed to :func:`hetcal_paper.training.train_runs` or :func:`hetcal_paper.cluster.train_on_cluster`.

    Returns
    -------
    dict
        Names of the runs under ``finished``, ``skipped``, ``unfinished`` and ``failed``.
    """
    if engine not in ("local", "dask"):
        raise ValueError(
            f"engine must be 'local' or 'dask', got {engine!r}; omit it to train on this machine"
        )
    runs = missing_runs(names, out_dir, results_dir, only)
    if engine == "dask":
        from hetcal_paper.cluster import train_on_cluster

        summary = train_on_cluster(runs, data_dir, out_dir, **options)
    else:
        from hetcal_paper.training import train_runs

        summary = train_runs(runs, data_dir, out_dir, **options)
    return {name: list(getattr(summary, name)) for name in ("finished", "skipped", "unfinished", "failed")}


def _ordered_grid() -> list[Run]:
    """Return the runs of all tables and figures, each once, the most important first (see ``_ORDER``)."""
    grid = paper_grid()
    runs: list[Run] = []
    for table, figures in _ORDER.items():
        runs += grid[table]
        runs += [run for seed in SEEDS for figure in figures for run in grid[figure] if run.seed == seed]
    return list(dict.fromkeys(runs))
