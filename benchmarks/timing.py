"""Measure the time of functions, and run jobs in fresh processes. All benchmarks use this module."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = [
    "Others",
    "Row",
    "Timing",
    "compare",
    "describe_machine",
    "fresh",
    "load_results",
    "save_rows",
    "speeds",
    "wait_for_quiet",
]

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
_PACKAGES = (
    *("hetcal", "numpy", "scipy", "scikit-learn", "numba", "torch", "probmetrics", "torch-uncertainty"),
    *("netcal", "MAPIE", "torchmetrics", "onnxruntime", "dask", "pyarrow"),
)
_ROUNDS, _SHORT = 8, 0.2  # rounds for functions that take less than _SHORT seconds; others have two
QUIET = 0.1  # fraction of the machine that other processes may use
WAIT = {"seconds": 0.0}  # how long to wait for a quiet machine before each measurement
Work = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """One line of the results.

    Attributes
    ----------
    benchmark, problem, library : what was measured, on which problem and with which library
    seconds : median time, or None
    ratio : speed relative to the fastest other library on the same problem; above 1 is faster
    note : conditions of the measurement
    more : other numbers (losses, bytes, slopes)
    """

    benchmark: str
    problem: str
    library: str
    seconds: float | None = None
    ratio: float | None = None
    note: str = ""
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Timing:
    """Median and minimum time of several calls, a return value, and the load by other processes."""

    seconds: float
    best: float
    repeats: int
    value: Any
    others: float

    def spread(self) -> dict[str, float]:
        """Return the shortest time, the number of calls and the load by other processes."""
        return {"best": self.best, "repeats": self.repeats, "others": round(self.others, 3)}


def compare(works: Mapping[str, Work], *, repeats: int = 7, patience: float = 20.0) -> dict[str, Timing]:
    """Time functions in alternating rounds, so that a disturbance does not affect only one of them.

    There are two rounds, or eight for short functions. Each round starts with a call that is not counted. If
    that call takes longer than `patience` seconds, it is counted and is the only call of the round. If it
    takes longer than three times `patience`, there is only one round.
    """
    rounds: dict[str, list[tuple[float, list[float]]]] = {name: [] for name in works}
    values: dict[str, Any] = {}
    for turn in range(_ROUNDS):
        for name, work in works.items():
            times = [seconds for _, round_times in rounds[name] for seconds in round_times]
            if (turn and times[0] > 3 * patience) or (turn > 1 and min(times) > _SHORT):
                continue
            times, values[name], load = _measure_round(work, (repeats + 1 - turn % 2) // 2, patience)
            rounds[name].append((load, times))
            print(f"    {name}: {min(times):.4g} s, others {load:.0%}", flush=True)
    return {name: _summarise(all_rounds, values[name]) for name, all_rounds in rounds.items()}


def _summarise(rounds: list[tuple[float, list[float]]], value: Any) -> Timing:
    """Combine the rounds, without those that other processes disturbed if at least two remain."""
    quiet = [(load, times) for load, times in rounds if load < QUIET]
    used = quiet if len(quiet) > 1 else rounds
    times = [seconds for _, round_times in used for seconds in round_times]
    return Timing(statistics.median(times), min(times), len(times), value, max(load for load, _ in used))


def speeds(seconds: Mapping[str, float], peers: Mapping[str, Any]) -> dict[str, float]:
    """Return the speed of each function relative to the fastest other library, which `peers` lists."""
    fastest = min((seconds[name] for name in seconds if name in peers), default=float("nan"))
    return {name: fastest / value for name, value in seconds.items()}


def fresh(
    job: str, *, limit: float | None = None, env: Mapping[str, str] | None = None, **options: Any
) -> Any:
    """Run a job of `jobs.py` in a new process. Raise TimeoutError after `limit` seconds."""
    wait_for_quiet()
    command = [sys.executable, str(HERE / "jobs.py"), job, json.dumps(options)]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, env={**os.environ, **(env or {})}
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{job} was stopped after {limit:g} s") from None
    if process.returncode:
        raise RuntimeError(f"{job} failed: {process.stderr.strip()[-2000:]}")
    return json.loads(process.stdout.strip().splitlines()[-1])


def describe_machine() -> dict[str, Any]:
    """Return the processor, memory, load and package versions."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version for name in _PACKAGES if (version := _version(name))},
        "date": time.strftime("%Y-%m-%d"),
        "begun": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }


def load_results(path: Path = RESULTS) -> dict[str, Any]:
    """Return the stored results, or empty results if there is no file."""
    if not path.exists():
        return {"machines": {}, "rows": []}
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return results


def save_rows(rows: list[Row], machine: str, described: Mapping[str, Any], path: Path = RESULTS) -> None:
    """Replace the stored rows of the same benchmarks."""
    results = load_results(path)
    measured = {row.benchmark for row in rows}
    results["machines"][machine] = dict(described)
    results["rows"] = [row for row in results["rows"] if row["benchmark"] not in measured]
    results["rows"] += [asdict(row) | {"begun": described["begun"]} for row in rows]
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


class Others:
    """Measure the load by other processes inside a ``with`` block.

    `share` is the fraction of the machine that they used. It is 0 if the system does not report it or if the
    block is too short to measure it.
    """

    share = 0.0

    def __enter__(self) -> Others:
        self.before = _busy_seconds(), _own_seconds(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        busy, own, wall = _busy_seconds(), _own_seconds(), time.perf_counter()
        spent = (busy - self.before[0]) - (own - self.before[1])
        all_cores = (wall - self.before[2]) * (os.cpu_count() or 1)
        if all_cores > 0.2:  # the system's clock has a resolution of a hundredth of a second
            self.share = min(max(spent / all_cores, 0.0), 1.0)


def _own_seconds() -> float:
    """Return the CPU time of this process and its finished child processes."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _busy_seconds() -> float:
    try:
        with Path("/proc/stat").open(encoding="ascii") as file:
            user, nice, system, _, _, irq, soft, steal = (int(x) for x in file.readline().split()[1:9])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def _measure_round(work: Work, repeats: int, patience: float) -> tuple[list[float], Any, float]:
    """Return times, a return value and the load by others. With `--wait`, repeat a disturbed round."""
    attempts = []
    for _ in range(3 if WAIT["seconds"] else 1):
        wait_for_quiet()
        with Others() as other:
            first, value = _clock(work)
            times = [first] if first > patience else _repeat(work, repeats, patience)
        attempts.append((other.share, times, value))
        if other.share < QUIET:
            break
    load, times, value = min(attempts, key=lambda attempt: attempt[0])
    return times, value, load


def wait_for_quiet() -> None:
    """Wait until other processes are quiet, for at most ``WAIT["seconds"]``."""
    end = time.perf_counter() + WAIT["seconds"]
    while time.perf_counter() < end:
        with Others() as other:
            time.sleep(1)
        if other.share < QUIET:
            return


def _repeat(work: Work, repeats: int, patience: float) -> list[float]:
    started, times = time.perf_counter(), []
    while not times or (len(times) < repeats and time.perf_counter() - started < patience):
        times.append(_clock(work)[0])
    return times


def _clock(work: Work) -> tuple[float, Any]:
    started = time.perf_counter()
    value = work()
    return time.perf_counter() - started, value


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("Model name")]
    return names[0] if names else platform.machine()
