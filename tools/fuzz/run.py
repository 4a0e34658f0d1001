"""`make fuzz`: many examples of the property tests, then every reader of files under coverage-guided fuzzing.

Prints a line per test and reader with the examples tried and the errors found; ends with status 1 where there
are any. An input that a reader fell over lies under `.fuzz/NAME/`, from where
`python tools/fuzz/readers.py NAME FILE` repeats it; Hypothesis keeps its own under `.hypothesis/`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1] / "tests" / "fuzz"


class Line(NamedTuple):
    """One line of the summary."""

    target: str
    examples: int
    errors: int


def main() -> int:
    """Fuzz everything, or what is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each reader")
    parser.add_argument("--output", type=Path, default=Path(".fuzz"), help="where inputs and logs are kept")
    parser.add_argument("--only", choices=("properties", "readers"))
    parser.add_argument("readers", nargs="*", help="names of readers; all of them by default")
    options = parser.parse_args()
    options.output.mkdir(exist_ok=True)
    lines: list[Line] = []
    if options.only != "readers":
        for file in sorted(TESTS.glob("test_*.py")):
            lines += fuzz_properties(file, options.output)
    if options.only != "properties":
        import seeds

        for name in options.readers or seeds.READERS:
            lines.append(fuzz_reader(name, options.output, options.seconds))
    show(lines)
    return int(any(line.errors for line in lines))


def fuzz_properties(file: Path, output: Path) -> list[Line]:
    """Run a file of property tests with the nightly profile."""
    counts = (output / f"{file.stem}.json").resolve()
    counts.unlink(missing_ok=True)
    settings = {"HETCAL_FUZZ": "nightly", "HETCAL_FUZZ_COUNTS": str(counts), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", str(file)]
    ended = subprocess.run(command, env=os.environ | settings, check=False)
    if not counts.is_file():
        return [Line(file.stem, 0, 1)]
    table = json.loads(counts.read_text(encoding="utf-8"))
    lines = [Line(f"{file.stem}: {name}", *numbers) for name, numbers in table.items() if numbers[0]]
    unseen = ended.returncode and not any(line.errors for line in lines)
    return [*lines, Line(file.stem, 0, 1)] if unseen else lines


def fuzz_reader(name: str, output: Path, seconds: int) -> Line:
    """Fuzz one reader from valid files; what was learned before is built upon."""
    import seeds

    corpus = output / name / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for i, content in enumerate(seeds.seeds_of(name)):
        (corpus / f"seed{i}").write_bytes(content)
    limits = [f"-max_total_time={seconds}", "-timeout=60", "-rss_limit_mb=4096", "-max_len=8192"]
    place = [f"-artifact_prefix={output / name}/", "-print_final_stats=1"]
    command = [sys.executable, str(HERE / "readers.py"), name, str(corpus), *limits, *place]
    log = output / name / "log.txt"
    with log.open("wb") as sink:
        settings = {"OPENBLAS_NUM_THREADS": "1"}
        ended = subprocess.run(command, env=os.environ | settings, stdout=sink, stderr=sink, check=False)
    text = log.read_text(encoding="utf-8", errors="replace")
    if ended.returncode:
        sys.stdout.write(f"{name}: status {ended.returncode}\n{text[-3000:]}\n")
    found = re.search(r"stat::number_of_executed_units:\s*(\d+)", text)
    return Line(f"reader: {name}", int(found[1]) if found else 0, int(ended.returncode != 0))


def show(lines: list[Line]) -> None:
    """Print the table."""
    total = Line("all", sum(line.examples for line in lines), sum(line.errors for line in lines))
    width = max(len(line.target) for line in [*lines, total])
    sys.stdout.write(f"\n{'target':<{width}}{'examples':>12}{'errors':>8}\n")
    for line in [*lines, total]:
        sys.stdout.write(f"{line.target:<{width}}{line.examples:>12,}{line.errors:>8}\n")


if __name__ == "__main__":
    sys.exit(main())
