"""How many small faults in the source the tests notice: `make mutation`.

    python tools/mutation.py [--mutants 200 | --mutants all] [--workers 2] [--again]

Every mutant (see tools/mutants.py) runs in a process of its own, forked off one that has the libraries
loaded, against the tests that reach its line, the quickest first. Time is processor time, so that a busy
machine makes no timeouts. Tests and what they reach are measured first. The folder mutation-output/ keeps
that map, all results, and the survivors as differences to read. --again runs the last run's survivors alone,
with the tests that have been added since.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import mutants as making
from mutation_tests import Swap, forked, in_session, load_libraries, map_tests, passes, passes_from_scratch

OUT = Path("mutation-output")
MAP, RESULTS, SURVIVORS = OUT / "tests.json", OUT / "results.json", OUT / "survivors.diff"
SEED = 20260101
SLOWEST = 3.0  # seconds: a test that takes longer is not for thousands of runs
GRACE = 10  # seconds on top of three times what the tests need
UNSURE = 77  # exit status of a process that could not make its mutant
OUTCOMES = ("killed", "survived", "timeout", "untested")


def main() -> None:
    """Map the tests, run the mutants, print the table."""
    options = _parse()
    OUT.mkdir(exist_ok=True)
    load_libraries()
    names = [name for some in making.PACKAGES.values() for name in some]
    map_tests(MAP, [making.path_of(name) for name in names])
    known = json.loads(MAP.read_text("utf-8"))
    last = json.loads(RESULTS.read_text("utf-8")) if options.again else {}
    made = {name: making.all_mutants(name) for name in names}
    chosen = []
    for package, modules in making.PACKAGES.items():
        if package.startswith(options.package):
            everything = [mutant for name in modules for mutant in made[name]]
            chosen += making.sample(everything, options.mutants, options.seed)
    if options.again:
        chosen = [mutant for mutant in chosen if last[mutant.name] != "killed"]
    found = last | _judge_all(chosen, known, options)
    RESULTS.write_text(json.dumps(found, indent=0), "utf-8")
    left = [mutant for mutant in chosen if found[mutant.name] != "killed"]
    text = [f"# {mutant.name} line {mutant.line}: {found[mutant.name]}\n{mutant.diff()}\n" for mutant in left]
    SURVIVORS.write_text("\n".join(text), "utf-8")
    _print_table(found, {name: len(some) for name, some in made.items()})


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutants", type=_number, default=200, help="per package: a number, or all")
    parser.add_argument("--package", default="", help="only packages whose name begins so")
    parser.add_argument("--seed", type=int, default=SEED, help="of the sample")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20, help="of tests for one mutant at most")
    parser.add_argument("--again", action="store_true", help="only what was not killed last time")
    return parser.parse_args()


def _number(text: str) -> int | None:
    return None if text == "all" else int(text)


def _judge_all(chosen: list[Any], known: dict[str, Any], options: argparse.Namespace) -> dict[str, str]:
    """Outcome of every mutant by its name."""
    work = [(mutant, _tests_for(mutant, known, options.seconds)) for mutant in chosen]
    found = {mutant.name: "untested" for mutant, tests in work if not tests}
    work = [(mutant, tests) for mutant, tests in work if tests]
    kept = OUT / "part.json"

    def in_functions(items: list[Any]) -> None:
        by_name = {item.nodeid: item for item in items}
        swap = Swap([making.path_of(name) for names in making.PACKAGES.values() for name in names])
        if not options.again:
            _check_control(by_name, known)
        judge = partial(_swapped, swap, by_name)
        kept.write_text(
            json.dumps(_run([w for w in work if not w[0].at_load], judge, known, options)), "utf-8"
        )

    in_session(in_functions)
    found |= {name: outcome for name, outcome in json.loads(kept.read_text()).items() if outcome != "unsure"}
    kept.unlink()
    rest = [(mutant, tests) for mutant, tests in work if mutant.name not in found]
    return found | _run(rest, _from_scratch, known, options)


def _check_control(by_name: dict[str, Any], known: dict[str, Any]) -> None:
    """Tests must pass without a fault, in the order and the kind of process that mutants see."""
    quick = [name for name in _by_time(known["seconds"], known) if known["seconds"][name] <= SLOWEST]
    pid = forked(lambda: 0 if passes([by_name[name] for name in quick]) else 1)
    if os.waitpid(pid, 0)[1]:
        raise SystemExit("the tests must pass in order of time, too; see above")


def _by_time(names: Iterable[str], known: dict[str, Any]) -> list[str]:
    return sorted(names, key=lambda name: (known["seconds"][name], name))


def _swapped(swap: Swap, by_name: dict[str, Any], mutant: Any, tests: list[str]) -> int:
    try:
        swap.apply(making.path_of(mutant.module), mutant.source())
    except ValueError:
        return UNSURE
    return 0 if passes([by_name[name] for name in tests]) else 1


def _from_scratch(mutant: Any, tests: list[str]) -> int:
    return passes_from_scratch(
        f"hetcal.{mutant.module}", mutant.source(), making.path_of(mutant.module), tests
    )


def _run(
    work: list[tuple[Any, list[str]]],
    judge: Callable[[Any, list[str]], int],
    known: dict[str, Any],
    options: argparse.Namespace,
) -> dict[str, str]:
    """Outcome of mutants, each in a process of its own."""
    found: dict[str, str] = {}
    running: dict[int, Any] = {}
    waiting = list(reversed(work))
    while waiting or running:
        if waiting and len(running) < options.workers:
            mutant, tests = waiting.pop()
            limit = GRACE + 3 * sum(known["seconds"][name] for name in tests)
            running[forked(partial(judge, mutant, tests), limit)] = mutant
            continue
        pid, status = os.wait()
        mutant = running.pop(pid)
        found[mutant.name] = _outcome(status)
        print(f"{len(found)}/{len(work)} {mutant.name} {found[mutant.name]}", file=sys.stderr, flush=True)
    return found


def _outcome(status: int) -> str:
    if os.WIFSIGNALED(status):
        return "timeout" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGALRM) else "killed"
    return {0: "survived", UNSURE: "unsure"}.get(os.WEXITSTATUS(status), "killed")


def _tests_for(mutant: Any, known: dict[str, Any], most: float) -> list[str]:
    """Tests that reach the line, quickest first, as many as fit; those of its module for a constant."""
    reached = known["lines"].get(mutant.module, {})
    names: set[str] = set()
    for lines in mutant.reach or [[int(line) for line in reached]]:
        names = {name for line in lines for name in reached.get(str(line), ())}
        if names:
            break
    seconds, total, tests = known["seconds"], 0.0, []
    for name in _by_time(names, known):
        total += seconds[name]
        if tests and (total > most or seconds[name] > SLOWEST):
            break
        tests.append(name)
    return tests


def _print_table(found: dict[str, str], made: dict[str, int]) -> None:
    """Score: killed of all that ran; a timeout is no kill, nor is a line that no test reaches."""
    print(
        f"{'module':<24}{'mutants':>9}{'run':>6}" + "".join(f"{name:>10}" for name in OUTCOMES) + "   score"
    )
    for package, modules in making.PACKAGES.items():
        total: dict[str, int] = defaultdict(int)
        for module in modules:
            counts = {
                outcome: sum(found[name] == outcome for name in found if name.startswith(f"{module}:"))
                for outcome in OUTCOMES
            }
            for outcome in OUTCOMES:
                total[outcome] += counts[outcome]
            _print_line(module, made[module], counts)
        _print_line(f"{package}: all", sum(made[module] for module in modules), total)


def _print_line(title: str, made: int, counts: dict[str, int]) -> None:
    n = sum(counts.values())
    if not n:
        return
    line = f"{title:<24}{made:>9}{n:>6}" + "".join(f"{counts[name]:>10}" for name in OUTCOMES)
    line += f"{counts['killed'] / n:>8.1%}"
    if title.endswith(": all") and n < made:
        low, high = _interval(counts["killed"], n)
        line += f"  (95%: {low:.1%} to {high:.1%})"
    print(line)


def _interval(k: int, n: int) -> tuple[float, float]:
    from scipy.stats import binomtest

    found = binomtest(k, n).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


if __name__ == "__main__":
    start = time.monotonic()
    main()
    print(f"{(time.monotonic() - start) / 60:.0f} minutes; survivors to read: {SURVIVORS}")
