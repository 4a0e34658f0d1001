"""Compare hetcal with the calibrators of other libraries on many problems, divided into two halves.

    python benchmarks/arena.py --generate --data DIR --text DIR    generate the problems of both halves
    python benchmarks/arena.py                                     evaluate the design half
    python benchmarks/arena.py --half judge --reason TEXT          evaluate the judge half; this is logged
    python benchmarks/arena.py --hdf5 FILE                         evaluate a file of CalArena
    python benchmarks/arena.py --page                              write docs/arena.md from the results

Results are one CSV file per half. A later run continues the file and keeps its lines, except with ``--force``
and for the methods that ``--methods`` names. Every library uses one thread. Libraries that are not installed
are skipped. Methods are tuned on the design half only.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import subprocess
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import arena_page
from arena_hdf5 import read_hdf5
from arena_methods import BASELINE, Method, methods
from arena_problems import load_problems
from arena_run import Evaluable, Results, evaluate, use_one_thread, warm_up
from arena_sources import generate
from arena_summary import read_results, summary_text

ROOT = Path(__file__).parent.parent
LOOKS = ROOT / "benchmarks" / "arena-looks.csv"
_LOOK_COLUMNS = ("date", "commit", "reason", "methods")


def main() -> None:
    """Evaluate the methods or write the page."""
    options = _options()
    if options.generate:
        for problem in generate(options.cache, options.data, options.text):
            n_rows, n_classes = problem.probs.shape
            print(f"{problem.half:6}  {n_classes:3} classes  {n_rows:5} rows  {problem.name}")
        return
    if options.page:
        arena_page.write(options.results, LOOKS, options.docs)
        return
    use_one_thread()
    selected = _select(options.methods)
    if options.hdf5 is not None:
        problems: Iterable[Evaluable] = read_hdf5(options.hdf5)
        path = options.results / f"{options.hdf5.stem}.csv"
    else:
        problems = [p for p in load_problems(options.cache, options.half) if options.problems in p.name]
        path = options.results / f"{options.half}.csv"
        if not problems:
            raise SystemExit(f"no problems in {options.cache}; generate them with --generate")
        if options.half == "judge":
            if not options.reason:
                raise SystemExit("--reason must say why the judge half is evaluated; the page shows it")
            _log_look(selected, options.reason)
    results = Results(path)
    if options.force or options.methods:
        results.discard(selected)
    started = time.perf_counter()
    _run(problems, selected, results, options.limit, options.jobs)
    print(f"{len(results.lines)} lines in {path}; this run took {time.perf_counter() - started:.0f} s")
    print(summary_text(read_results(path)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default_cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "hetcal" / "arena"
    )
    parser.add_argument("--cache", type=Path, default=default_cache, help="folder for generated problems")
    parser.add_argument("--data", type=Path, help="folder of public predictions, for --generate")
    parser.add_argument("--text", type=Path, help="folder of banking77/ and clinc150/, for --generate")
    parser.add_argument("--half", choices=("design", "judge"), default="design")
    parser.add_argument("--reason", help="why the judge half is evaluated; required for --half judge")
    parser.add_argument("--hdf5", type=Path, help="file in CalArena's layout, instead of a half")
    parser.add_argument("--generate", action="store_true", help="only generate the problems of both halves")
    parser.add_argument("--methods", help="methods to run again, separated by semicolons; other lines stay")
    parser.add_argument("--problems", default="", help="only problems whose names contain this text")
    parser.add_argument("--force", action="store_true", help="run all methods again")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that a method may take")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "arena", help="folder of results")
    parser.add_argument("--page", action="store_true", help="write the page")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder for the page")
    return parser.parse_args()


def _select(names: str | None) -> dict[str, Method]:
    available = methods()
    if not names:
        return available
    unknown = [name for name in names.split(";") if name not in available]
    if unknown:
        raise SystemExit(f"unknown methods {unknown}; available are {list(available)}")
    return {name: available[name] for name in names.split(";")}


def _log_look(selected: dict[str, Method], reason: str) -> None:
    """Append a line to the log of evaluations on the judge half."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    is_new = not LOOKS.exists()
    with LOOKS.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(_LOOK_COLUMNS)
        writer.writerow([datetime.now(UTC).isoformat(timespec="seconds"), commit, reason, ";".join(selected)])


def _run(
    problems: Iterable[Evaluable], selected: dict[str, Method], results: Results, limit: float, jobs: int
) -> None:
    """Evaluate problem by problem, in this process or in several."""
    if jobs == 1:
        warm_up(selected)
        for problem in problems:
            started = time.perf_counter()
            evaluate(problem, selected, methods()[BASELINE], results, limit)
            print(f"{time.perf_counter() - started:6.1f} s  {problem.name}", flush=True)
        return
    with ProcessPoolExecutor(
        jobs, multiprocessing.get_context("spawn"), initializer=_warm_up_worker, initargs=(list(selected),)
    ) as workers:
        arguments = (list(selected), results.path, limit)
        tasks = {problem.name: workers.submit(_evaluate_alone, problem, *arguments) for problem in problems}
        for name, task in tasks.items():
            results.add(task.result())
            print(name, flush=True)


def _warm_up_worker(names: list[str]) -> None:
    use_one_thread()
    warm_up({name: methods()[name] for name in names})


def _evaluate_alone(problem: Evaluable, names: list[str], path: Path, limit: float) -> list[dict[str, str]]:
    """Evaluate in a worker, which reads the file of results but does not write it."""
    results = Results(path, read_only=True)
    before = set(results.lines)
    available = methods()
    evaluate(problem, {name: available[name] for name in names}, available[BASELINE], results, limit)
    return [line for key, line in results.lines.items() if key not in before]


if __name__ == "__main__":
    main()
