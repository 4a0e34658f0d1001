"""Measure how the time of a fit grows with rows and classes, and how much memory it needs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from methods import CTS, METHODS
from peers import quiet
from problems import make_rows, name_of, save_problem
from timing import Row, Timing, compare, fresh

__all__ = ["measure_growth", "measure_memory"]

COMPILED = 1 << 22  # hetcal uses compiled code from this many logits on


def measure_growth(lines: dict[str, list[tuple[int, int]]], *, repeats: int, patience: float) -> list[Row]:
    """Measure series of problems; `lines` maps the name of a series to its problems."""
    times = {
        problem: _time(*problem, repeats, patience)
        for problem in dict.fromkeys(p for line in lines.values() for p in line)
    }
    rows = []
    for name, problems in lines.items():
        axis = 0 if len({n for n, _ in problems}) > 1 and len({k for _, k in problems}) == 1 else 1
        sizes = np.array([problem[axis] for problem in problems])
        seconds = np.array([times[problem].seconds for problem in problems])
        large = np.array([n * k >= COMPILED for n, k in problems])
        slopes = {"slope": _slope(sizes, seconds), "slope_compiled": _slope(sizes[large], seconds[large])}
        rows += [
            Row(
                *("growth", name_of(n, k), CTS, times[n, k].seconds),
                note=name,
                more={"n": n, "k": k, **slopes, **times[n, k].spread()},
            )
            for n, k in problems
        ]
    return rows


def measure_memory(methods: dict[tuple[int, int], list[str]]) -> list[Row]:
    """Measure the peak memory of each fit, not counting its input, in a fresh process."""
    rows = []
    for (n, k), names in methods.items():
        with tempfile.TemporaryDirectory() as folder:
            save_problem(Path(folder), n, k)
            for method in names:
                result = fresh("memory", folder=folder, method=method)
                share = result["bytes"] / result["input"]
                print(
                    f"    {name_of(n, k)} {method}: {result['bytes'] / 1e6:.1f} MB, {share:.1%}", flush=True
                )
                more = {"bytes": result["bytes"], "input": result["input"], "share": share}
                rows.append(Row("memory", name_of(n, k), method, result["seconds"], more=more))
    return rows


def _time(n: int, k: int, repeats: int, patience: float) -> Timing:
    z, y = make_rows(n, k)
    with quiet():
        work = {f"{CTS}, {name_of(n, k)}": lambda: METHODS[CTS](z, y)}
        time = compare(work, repeats=repeats, patience=patience)
    return next(iter(time.values()))


def _slope(sizes: np.ndarray, seconds: np.ndarray) -> float | None:
    """Return the slope of a least-squares fit on a log-log scale, or None with fewer than two points."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0]) if len(sizes) > 1 else None
