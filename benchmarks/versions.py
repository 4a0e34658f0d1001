"""Compare the speed of this checkout with that of an earlier one.

    git worktree add ../hetcal-before COMMIT
    python benchmarks/versions.py ../hetcal-before --output docs/performance-versions.md

Each version runs in a process of its own that keeps its data and compiled code. The two processes take turns,
so that both see the same load on the machine. The table gives the shortest and the median time of each job.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Repeat a job for MIN_SECONDS, but at least MIN_REPEATS and at most MAX_REPEATS times.
MIN_SECONDS, MIN_REPEATS, MAX_REPEATS = 6.0, 5, 60


def _jobs() -> dict[str, Callable[[], Any]]:
    """Return the jobs that both versions can run; only called inside a worker process."""
    import numpy as np

    import hetcal

    def sample(n_rows: int, n_classes: int, seed: int = 0) -> tuple[Any, Any]:
        rng = np.random.default_rng(seed)
        z = rng.standard_normal((n_rows, n_classes), dtype=np.float32) * 2
        y = rng.integers(n_classes, size=n_rows)
        z[
            np.arange(n_rows), np.where(rng.random(n_rows) < 0.75, y, rng.integers(n_classes, size=n_rows))
        ] += 5
        return z, y

    small, narrow, wide = sample(5000, 100), sample(1_000_000, 10), sample(50_000, 1000)
    cts = hetcal.ClassWiseTemperatureScaling
    fitted = cts().fit(*small)
    fitted_narrow = cts().fit(*narrow)
    vector = hetcal.VectorScaling(1e-3).fit(*small)
    probs = fitted_narrow.predict_proba(narrow[0])
    example = hetcal.load_example("cifar100-noisy")
    return {
        "TS, 5,000 × 100": lambda: hetcal.TemperatureScaling().fit(*small),
        "CTS, 5,000 × 100": lambda: cts().fit(*small),
        "CTS, Γ by cv, 5,000 × 100": lambda: cts("cv").fit(*small),
        "CTS, Γ by bayes, 5,000 × 100": lambda: cts("bayes").fit(*small),
        "VS, 5,000 × 100": lambda: hetcal.VectorScaling().fit(*small),
        "AutoCalibrator, 5,000 × 100": lambda: hetcal.AutoCalibrator().fit(*small),
        "CTS, 1,000,000 × 10": lambda: cts().fit(*narrow),
        "CTS, 50,000 × 1,000": lambda: cts().fit(*wide),
        "predict CTS, 5,000 × 100": lambda: fitted.predict_proba(small[0]),
        "predict CTS, 1,000,000 × 10": lambda: fitted_narrow.predict_proba(narrow[0]),
        "predict CTS, one row × 100": lambda: fitted.predict_proba(small[0][:1]),
        "predict VS, 5,000 × 100": lambda: vector.predict_proba(small[0]),
        "evaluate, 1,000,000 × 10": lambda: hetcal.evaluate(probs, narrow[1]),
        "diagnose, CIFAR-100 example": lambda: hetcal.diagnose(example.test.logits, example.test.labels),
        "report, CIFAR-100 example": lambda: hetcal.make_report(example),
    }


def _serve() -> None:
    """Answer requests from standard input: the name of a job in, its seconds out."""
    import warnings

    warnings.simplefilter("ignore")
    jobs = _jobs()
    for job in jobs.values():
        job()  # compile and import before timing
    print(json.dumps(list(jobs)), flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        jobs[json.loads(line)]()
        print(json.dumps(time.perf_counter() - started), flush=True)


class _Version:
    """A process that runs jobs with the source of one checkout."""

    def __init__(self, checkout: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve"], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.jobs: list[str] = self._answer()

    def seconds(self, job: str) -> float:
        """Run a job once."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit("a worker process failed; its error is printed above")
        return json.loads(line)


def measure(before: Path, after: Path) -> list[tuple[str, list[float], list[float]]]:
    """Return the times of every job under both versions, which take turns."""
    old, new = _Version(before), _Version(after)
    rows = []
    for job in new.jobs:
        times: tuple[list[float], list[float]] = ([], [])
        while len(times[0]) < MIN_REPEATS or (sum(times[0]) < MIN_SECONDS and len(times[0]) < MAX_REPEATS):
            for version, seconds in zip((old, new), times, strict=True):
                seconds.append(version.seconds(job))
        rows.append((job, *times))
        print(f"{job}: {min(times[0]):.4f} -> {min(times[1]):.4f} s", file=sys.stderr, flush=True)
    return rows


def table(rows: list[tuple[str, list[float], list[float]]]) -> str:
    """Return a Markdown table of the shortest and median times in milliseconds."""
    lines = [
        "| job | before: shortest | median | now: shortest | median | speed-up: shortest | median |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for job, old, new in rows:
        low, middle = (min(old), min(new)), (statistics.median(old), statistics.median(new))
        cells = [*(f"{1000 * t:,.1f}" for t in (low[0], middle[0], low[1], middle[1]))]
        lines.append(f"| {job} | {' | '.join(cells)} | {low[0] / low[1]:.2f} | {middle[0] / middle[1]:.2f} |")
    return "\n".join(lines) + "\n"


_PAGE = """# Speed compared with the previous version

This page compares the speed of two versions of hetcal. `python benchmarks/versions.py BEFORE` runs the same
jobs with the previous version, which is checked out in the folder BEFORE, and with the current one. The two
versions take turns on the same machine ({cores} cores). The table shows the shortest and the median time of
several calls, in milliseconds. A speed-up above 1 means that the current version is faster.

5,000 × 100 means 5,000 rows and 100 classes. TS fits one temperature, CTS one temperature per class, and VS
is vector scaling. [Γ](gamma.md) limits how much the temperatures of the classes may differ. With *cv* and
*bayes*, the data determine how much; a job that does not name Γ has no limit. A job named *predict* applies a
fitted calibrator; the other jobs with TS, CTS, VS or AutoCalibrator fit one.

{table}"""


def main() -> None:
    """Measure and print, or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", nargs="?", type=Path, help="checkout of the earlier version")
    parser.add_argument("--output", type=Path, help="page to write; by default it is printed")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        _serve()
        return
    if options.before is None or not (options.before / "src" / "hetcal").is_dir():
        parser.error(
            f"before must be a folder that contains src/hetcal, got {options.before}; "
            "pass a checkout of an earlier version"
        )
    text = _PAGE.format(cores=os.cpu_count(), table=table(measure(options.before, HERE.parent)))
    if options.output is None:
        print(text)
    else:
        options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
