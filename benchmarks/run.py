"""Run all benchmarks, write ``benchmarks/results.json`` and generate ``docs/performance.md``.

    make bench                                      (or: python benchmarks/run.py)
    python benchmarks/run.py --only fit,vector      run some sections again and keep the rest
    python benchmarks/run.py --quick                small problems, as a smoke test; writes no files
    python benchmarks/run.py --wait 300             on a shared machine: wait up to 300 s for it to be idle

hetcal and the other libraries are measured in the same run. Sections on large files are skipped if the folder
for temporary files (TMPDIR) has less than 10 GB of free space.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import evaluate
import fit
import large
import page
import scaling
import serve
import vector
from methods import CTS
from timing import RESULTS, WAIT, Row, describe_machine, save_rows

_FEW = [CTS, "hetcal TS", "hetcal CTS, Γ = 0.3", "hetcal CTS, Γ = bayes"]
_ALL = [*_FEW, "hetcal CTS, Γ = cv", "hetcal VS"]
Sections = dict[str, Callable[[], list[Row]]]


def sections() -> Sections:
    """Return the benchmarks by name."""
    pace = {"repeats": 7, "patience": 10.0}
    fits = [(50_000, 1000), (1_000_000, 10), (5000, 100)]
    lines = {
        "rows, K = 10": [(n, 10) for n in (10_000, 100_000, 1_000_000, 3_000_000, 10_000_000)],
        "classes, n = 20,000": [(20_000, k) for k in (2, 10, 100, 1000, 3000, 10_000)],
        "classes, n · K = 20,000,000": [(20_000_000 // k, k) for k in (2, 10, 100, 1000, 10_000)],
    }
    # _FEW omits cross-validation, and vector scaling, which would fit 20,000 parameters to 10,000 classes.
    memory = {(10_000_000, 2): _FEW, (10_000_000, 10): _ALL, (1_000_000, 100): _ALL}
    memory |= {(50_000, 1000): _ALL, (10_000, 10_000): _FEW}
    return {
        "fit": lambda: fit.measure_fits(fits, **pace),
        "isotonic": lambda: fit.measure_isotonic(1_000_000, 10, **pace),
        "first call": lambda: fit.measure_first_calls((50_000, 1000), (5000, 100), repeats=3),
        "vector": lambda: vector.measure_vectors(50_000, 100, small=(5000, 100), limit=300, **pace),
        "evaluation": lambda: evaluate.measure_evaluation(1_000_000, 10, **pace),
        "serving": lambda: serve.measure_serving([1, 256], 1000, rounds=30),
        "growth": lambda: scaling.measure_growth(lines, **pace),
        "memory": lambda: scaling.measure_memory(memory),
        "out of core": lambda: large.measure_mapped(100_000_000, 10, pattern=1_000_000),
        "dask": lambda: large.measure_cluster(10_000_000, 100, pattern=100_000),
    }


def quick_sections() -> Sections:
    """Return the same benchmarks on small problems."""
    pace = {"repeats": 2, "patience": 1.0}
    lines = {
        "rows, K = 10": [(10**e, 10) for e in (3, 4, 5)],
        "classes, n = 20,000": [(2000, k) for k in (2, 10, 100)],
        "classes, n · K = 20,000,000": [(200_000 // k, k) for k in (2, 10, 100)],
    }
    return {
        "fit": lambda: fit.measure_fits([(2000, 20), (1000, 100)], **pace),
        "isotonic": lambda: fit.measure_isotonic(5000, 10, **pace),
        "first call": lambda: fit.measure_first_calls((50_000, 100), (500, 10), repeats=1),
        "vector": lambda: vector.measure_vectors(2000, 20, small=(500, 5), limit=20, **pace),
        "evaluation": lambda: evaluate.measure_evaluation(20_000, 10, **pace),
        "serving": lambda: serve.measure_serving([1, 16], 100, rounds=3),
        "growth": lambda: scaling.measure_growth(lines, **pace),
        "memory": lambda: scaling.measure_memory({(60_000, 100): [CTS, "hetcal VS"]}),
        "out of core": lambda: large.measure_mapped(1_000_000, 10, pattern=100_000),
        "dask": lambda: large.measure_cluster(100_000, 20, pattern=50_000),
    }


def measure(selected: Sections, results: Path) -> list[str]:
    """Run the sections, save the rows of each, and return the names of those that failed."""
    machine, failed = describe_machine(), []
    print(f"{machine['processor']}, {machine['cores']} cores, load {machine['load']}", flush=True)
    for name, section in selected.items():
        started = time.perf_counter()
        print(name, flush=True)
        try:
            rows = section()
        except Exception:  # continue with the other sections
            traceback.print_exc()
            failed.append(name)
            continue
        save_rows(rows, "cpu", machine, results)
        print(f"  {time.perf_counter() - started:.0f} s", flush=True)
    return failed


def main() -> None:
    """Run the selected benchmarks and generate the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="run small problems; write no files")
    parser.add_argument("--only", help="names of sections, separated by commas: " + ", ".join(sections()))
    parser.add_argument(
        "--wait",
        type=float,
        default=0.0,
        help="seconds to wait for a quiet machine before each measurement",
    )
    options = parser.parse_args()
    WAIT["seconds"] = options.wait
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that temporary files are deleted
    selected = quick_sections() if options.quick else sections()
    if options.only:
        names = [name.strip() for name in options.only.split(",")]
        if unknown := [name for name in names if name not in selected]:
            parser.error(f"--only must name sections, got {unknown[0]!r}; choose from {', '.join(selected)}")
        selected = {name: selected[name] for name in names}
    if options.quick:
        with tempfile.TemporaryDirectory() as folder:
            failed = measure(selected, Path(folder) / "results.json")
            page.write(Path(folder) / "results.json", Path(folder) / "docs")
            print((Path(folder) / "docs" / "performance.md").read_text(encoding="utf-8"))
    else:
        failed = measure(selected, RESULTS)
        page.write()
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
