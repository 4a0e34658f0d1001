"""Benchmark fits against other libraries, and the first call in a process."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peers
from methods import CTS, FITS, METHODS
from problems import make_rows, mean_nll, name_of, save_problem
from timing import Row, Timing, compare, fresh, speeds

import hetcal

__all__ = ["measure_first_calls", "measure_fits", "measure_isotonic"]

READ = "one read of the logits"
ONE_THREAD = "hetcal CTS, Γ = ∞, one thread"


def measure_fits(problems: list[tuple[int, int]], *, repeats: int, patience: float) -> list[Row]:
    """Compare hetcal's temperatures with the single temperature of other libraries, in one process."""
    return [row for n, k in problems for row in _fits(n, k, repeats, patience)]


def measure_isotonic(n: int, k: int, *, repeats: int, patience: float) -> list[Row]:
    """Compare isotonic regression within each predicted class."""
    z, y = make_rows(n, k)
    ours = {
        "hetcal ClassWise(TopLabelIsotonic())": lambda: hetcal.ClassWise(hetcal.TopLabelIsotonic()).fit(z, y)
    }
    theirs = peers.isotonic(z, y)
    with peers.quiet():
        times = compare({**theirs, **ours}, repeats=repeats, patience=patience)
    ratios = speeds({name: time.seconds for name, time in times.items()}, theirs)
    notes = {"MAPIE": "TopLabelCalibrator, on precomputed probabilities"}
    return [
        _row("isotonic", name_of(n, k), name, time, ratios[name], notes.get(name, "on logits"))
        for name, time in times.items()
    ]


def measure_first_calls(large: tuple[int, int], small: tuple[int, int], *, repeats: int) -> list[Row]:
    """Measure the time from the first line of a new process to a fitted calibrator."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        save_problem(Path(folder), *large)
        uncached = [_first_call(folder) for _ in range(repeats)]
        with tempfile.TemporaryDirectory() as cache:
            _first_call(folder, cache)
            cached = [_first_call(folder, cache) for _ in range(repeats)]
        save_problem(Path(folder), *small)
        small_calls = [_first_call(folder) for _ in range(repeats)]
    for problem, state, calls in (
        (large, "nothing compiled yet", uncached),
        (large, "compiled by an earlier process", cached),
        (small, "nothing compiled yet", small_calls),
    ):
        loads = "loads numba" if calls[0]["numba"] else "does not load numba"
        seconds = statistics.median(call["seconds"] for call in calls)
        rows.append(Row("first call", name_of(*problem), CTS, seconds, note=f"{state}; {loads}"))
    return rows


def _fits(n: int, k: int, repeats: int, patience: float) -> list[Row]:
    problem = name_of(n, k)
    print(f"  {problem}", flush=True)
    z, y = make_rows(n, k)
    works: dict[str, Callable[[], Any]] = {READ: lambda: z.sum()}
    works |= {name: lambda fit=METHODS[name]: fit(z, y) for name in FITS}
    works[ONE_THREAD] = lambda: _on_one_thread(METHODS[CTS], z, y)
    with peers.quiet():
        theirs = peers.temperatures(z, y)
        times = compare({**works, **theirs}, repeats=repeats, patience=patience)
    ratios = speeds({name: time.seconds for name, time in times.items()}, theirs)
    minimum = mean_nll(z, y, times["hetcal TS"].value.alpha_)
    rows = []
    for name, time in times.items():
        more = {"reads": time.seconds / times[READ].seconds}
        if name in theirs:
            more |= {"alpha": time.value, "nll_above": mean_nll(z, y, time.value) - minimum}
        elif name == "hetcal TS":
            more |= {"alpha": time.value.alpha_, "nll_above": 0.0}
        ratio = None if name == READ else ratios[name]
        rows.append(_row("fit", problem, name, time, ratio, peers.NOTES.get(name, ""), more))
    return rows


def _row(
    benchmark: str,
    problem: str,
    name: str,
    time: Timing,
    ratio: float | None,
    note: str,
    more: dict | None = None,
) -> Row:
    return Row(benchmark, problem, name, time.seconds, ratio, note, {**time.spread(), **(more or {})})


def _on_one_thread(fit: Callable[[Any, Any], Any], z: np.ndarray, y: np.ndarray) -> Any:
    before = os.environ.get("HETCAL_THREADS")
    os.environ["HETCAL_THREADS"] = "1"
    try:
        return fit(z, y)
    finally:
        if before is None:
            del os.environ["HETCAL_THREADS"]
        else:
            os.environ["HETCAL_THREADS"] = before


def _first_call(folder: str, cache: str | None = None) -> dict[str, Any]:
    """Measure a first call in a new process. By default, its cache of compiled code is empty."""
    with tempfile.TemporaryDirectory() as empty:
        return dict(fresh("first_call", env={"NUMBA_CACHE_DIR": cache or empty}, folder=folder))
