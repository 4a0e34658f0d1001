"""Times of functions side by side, and work in fresh processes: what every benchmark here measures with."""

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
_ROUNDS, _SHORT = 8, 0.2  # of functions that take less than so many seconds; of others two
QUIET = 0.1  # share of the machine that others may take
WAIT = {"seconds": 0.0}  # how long to wait for that before each measurement
Work = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """One line of the results.

    Attributes
    ----------
    benchmark, problem, library : what was measured, on what, and whose
    seconds : median time, None where there is none
    ratio : speed beside the fastest peer on the same problem, above 1 where this is faster
    note : conditions that a reader should know
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
    """Median and least time of several calls, what one returned, and the share of the machine others took."""

    seconds: float
    best: float
    repeats: int
    value: Any
    others: float

    def spread(self) -> dict[str, float]:
        """What a reader of the median should know."""
        return {"best": self.best, "repeats": self.repeats, "others": round(self.others, 3)}


def compare(works: Mapping[str, Work], *, repeats: int = 7, patience: float = 20.0) -> dict[str, Timing]:
    """Time functions in two rounds, so that a disturbance does not hit one of them alone (eight for short).

    Each gets a call that does not count before each round, unless one takes longer than `patience`; one that
    does is called once a round, and once at all if it takes three times as long.
    """
    rounds: dict[str, list[tuple[float, list[float]]]] = {name: [] for name in works}
    values: dict[str, Any] = {}
    for turn in range(_ROUNDS):
        for name, work in works.items():
            times = [seconds for _, found in rounds[name] for seconds in found]
            if (turn and times[0] > 3 * patience) or (turn > 1 and min(times) > _SHORT):
                continue
            found, values[name], share = _settled(work, (repeats + 1 - turn % 2) // 2, patience)
            rounds[name].append((share, found))
            print(f"    {name}: {min(found):.4g} s, others {share:.0%}", flush=True)
    return {name: _summary(found, values[name]) for name, found in rounds.items()}


def _summary(rounds: list[tuple[float, list[float]]], value: Any) -> Timing:
    """Put the rounds together, without those that others disturbed if two are left."""
    quiet = [one for one in rounds if one[0] < QUIET]
    used = quiet if len(quiet) > 1 else rounds
    times = [seconds for _, found in used for seconds in found]
    return Timing(statistics.median(times), min(times), len(times), value, max(share for share, _ in used))


def speeds(seconds: Mapping[str, float], peers: Mapping[str, Any]) -> dict[str, float]:
    """Speed of each beside the fastest of those that are peers."""
    fastest = min((seconds[name] for name in seconds if name in peers), default=float("nan"))
    return {name: fastest / value for name, value in seconds.items()}


def fresh(
    job: str, *, limit: float | None = None, env: Mapping[str, str] | None = None, **options: Any
) -> Any:
    """Do a job of `jobs.py` in a new process and return what it found; TimeoutError past the limit."""
    wait_for_quiet()
    command = [sys.executable, str(HERE / "jobs.py"), job, json.dumps(options)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, env={**os.environ, **(env or {})}
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{job} was stopped after {limit:g} s") from None
    if done.returncode:
        raise RuntimeError(f"{job} failed: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def describe_machine() -> dict[str, Any]:
    """Processor, memory, load and versions."""
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
    """What was measured before; nothing where there is no file."""
    if not path.exists():
        return {"machines": {}, "rows": []}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def save_rows(rows: list[Row], machine: str, described: Mapping[str, Any], path: Path = RESULTS) -> None:
    """Put rows in place of those of the same benchmarks."""
    found = load_results(path)
    measured = {row.benchmark for row in rows}
    found["machines"][machine] = dict(described)
    found["rows"] = [row for row in found["rows"] if row["benchmark"] not in measured]
    found["rows"] += [asdict(row) | {"begun": described["begun"]} for row in rows]
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


class Others:
    """Share of the machine that other processes take inside a ``with``; 0 where the system does not tell."""

    share = 0.0

    def __enter__(self) -> Others:
        self.before = _busy_seconds(), _own_seconds(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        busy, own, wall = _busy_seconds(), _own_seconds(), time.perf_counter()
        spent = (busy - self.before[0]) - (own - self.before[1])
        all_cores = (wall - self.before[2]) * (os.cpu_count() or 1)
        if all_cores > 0.2:  # the system counts in hundredths of a second
            self.share = min(max(spent / all_cores, 0.0), 1.0)


def _own_seconds() -> float:
    """Processor time of this process and of those that it started and that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _busy_seconds() -> float:
    try:
        with Path("/proc/stat").open(encoding="ascii") as file:
            user, nice, system, _, _, irq, soft, steal = (int(x) for x in file.readline().split()[1:9])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def _settled(work: Work, repeats: int, patience: float) -> tuple[list[float], Any, float]:
    """Times, a value and the share of others; disturbed calls are made again where there is time to wait."""
    tries = []
    for _ in range(3 if WAIT["seconds"] else 1):
        wait_for_quiet()
        with Others() as other:
            first, value = _clock(work)
            found = [first] if first > patience else _repeat(work, repeats, patience)
        tries.append((other.share, found, value))
        if other.share < QUIET:
            break
    share, found, value = min(tries, key=lambda tried: tried[0])
    return found, value, share


def wait_for_quiet() -> None:
    """Wait until other processes leave the machine alone, for as long as was allowed."""
    end = time.perf_counter() + WAIT["seconds"]
    while time.perf_counter() < end:
        with Others() as other:
            time.sleep(1)
        if other.share < QUIET:
            return


def _repeat(work: Work, repeats: int, patience: float) -> list[float]:
    started, found = time.perf_counter(), []
    while not found or (len(found) < repeats and time.perf_counter() - started < patience):
        found.append(_clock(work)[0])
    return found


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
