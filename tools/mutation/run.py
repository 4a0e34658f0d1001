"""Run Cosmic Ray on a random sample of mutants and print a score per module; see docs/mutation-testing.md.

python tools/mutation/run.py [--mutants 60] [--seed 0] [--modules REGEX] [solvers metrics calibrators]
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import WorkerOutcome, WorkItem, WorkResult

SESSIONS = Path("build/mutation").resolve()
TREE = SESSIONS / "tree"  # Cosmic Ray edits source files in place, so it works on a copy
BIN = Path(sys.executable).parent
THREADS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def main() -> None:
    """Sample and test the mutants of each configuration in this folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mutants", type=int, default=60, help="number of mutants per configuration")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument(
        "--modules", default="", help="regular expression: mutate only files whose path matches it"
    )
    parser.add_argument(
        "configs",
        nargs="*",
        default=["solvers", "metrics", "calibrators"],
        help="parts to mutate; default: all",
    )
    options = parser.parse_args()
    shutil.rmtree(TREE, ignore_errors=True)
    for folder in ("src", "tests", "tools"):
        shutil.copytree(folder, TREE / folder)
    shutil.copy("pyproject.toml", TREE)
    print(
        "| module | mutants | run | killed | survived | score |\n| --- | ---: | ---: | ---: | ---: | ---: |"
    )
    for name in options.configs:
        config, session = f"tools/mutation/{name}.toml", f"{SESSIONS / name}.sqlite"
        Path(session).unlink(missing_ok=True)
        call("cosmic-ray", "init", config, session)
        call("cr-filter-operators", session, config)
        with use_db(session, WorkDB.Mode.open) as db:
            mutants = sorted(db.pending_work_items, key=lambda item: str(item.mutations))
            sample = [item for item in mutants if re.search(options.modules, path_of(item))]
            random.Random(options.seed).shuffle(sample)  # noqa: S311
            skipped = {item.job_id for item in mutants} - {item.job_id for item in sample[: options.mutants]}
            db.set_multiple_results(skipped, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))
        call("cosmic-ray", "exec", config, session)
        with use_db(session, WorkDB.Mode.open) as db:
            finished = [pair for pair in db.completed_work_items if pair[0].job_id not in skipped]
            results = [(path_of(item), result.is_killed) for item, result in finished if result.test_outcome]
        available, run = Counter(map(path_of, mutants)), Counter(path for path, _ in results)
        killed = Counter(path for path, is_killed in results if is_killed)
        for path, n in sorted(run.items()):
            cells = (available[path], n, killed[path], n - killed[path], f"{killed[path] / n:.0%}")
            print(f"| `{path}` | {' | '.join(map(str, cells))} |", flush=True)


def call(program: str, *arguments: str) -> None:
    """Run one of Cosmic Ray's programs in the copy, with the copy's sources first on the path."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    settings = {"PATH": path, "PYTHONPATH": "src", "PYTHONDONTWRITEBYTECODE": "1"} | THREADS
    subprocess.run([BIN / program, *arguments], cwd=TREE, env=os.environ | settings, check=True)


def path_of(item: WorkItem) -> str:
    """Return the path of the mutated file."""
    return str(item.mutations[0].module_path)


if __name__ == "__main__":
    main()
