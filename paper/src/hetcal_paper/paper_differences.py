"""Differences between methods or halves of the classes, run by run, with their interval over the seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetcal_paper.paper_claims import Comparison
from hetcal_paper.paper_rows import Point, Selection
from hetcal_paper.seed_intervals import SeedInterval, seed_interval

__all__ = ["paired_difference"]

_BY_CLASS = {"class_ece": "ece", "avg_ece": "ece", "error": "error", "error_true": "error_true"}


def paired_difference(selection: Selection, comparison: Comparison) -> SeedInterval | None:
    """Return the mean difference over the seeds with its interval.

    Both sides of a difference come from the same runs, so that what a seed does to both cancels.

    Parameters
    ----------
    selection : Selection
    comparison : Comparison

    Returns
    -------
    SeedInterval or None
        None where no run has both sides.
    """
    return seed_interval([_difference(selection, run, comparison) for run in _runs(selection, comparison)])


def _runs(selection: Selection, comparison: Comparison) -> Sequence[str]:
    def fits(point: Point) -> bool:
        return (comparison.rate is None or point.rate(selection.kind) == comparison.rate) and (
            comparison.training is None or point.training == comparison.training
        )

    return [run for point in selection.present if fits(point) for run in point.runs]


def _difference(selection: Selection, run: str, comparison: Comparison) -> float:
    first = _value(selection, run, comparison, comparison.method, comparison.half)
    if comparison.other is None and comparison.other_half is None:
        return first
    second = _value(
        selection,
        run,
        comparison,
        comparison.other or comparison.method,
        comparison.other_half or comparison.half,
    )
    return first - second


def _value(selection: Selection, run: str, comparison: Comparison, method: str, half: str | None) -> float:
    """One metric of one run: of all rows, of half of the classes, or of a single class."""
    results, choice, metric = selection.results, selection.choice, comparison.metric
    if metric == "gap":
        return results.value(run, metric, method=method, half=half or "all", choice=choice)[0]
    if half is None and comparison.label is None:
        return results.value(run, metric, method=method, bins=comparison.bins, choice=choice)[0]
    table = results.classes(run, method, comparison.bins or 0, choice)
    values = getattr(table, _BY_CLASS[metric])
    if comparison.label is not None:
        return float(values[comparison.label])
    middle = len(values) // 2
    part = values[:middle] if half == "low" else values[middle:]
    return float(np.nanmean(part))
