"""`make fuzz`: property tests with many examples, then coverage-guided fuzzing of every file reader.

Prints the number of examples and errors for each test and reader; the exit code is 1 if there are any errors.
An input that makes a reader fail is stored in `.fuzz/NAME/`; `python tools/fuzz/readers.py NAME FILE`
reproduces the failure. Hypothesis stores its failing examples in `.hypothesis/`.
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
    """Run the property tests and fuzz the readers, as selected on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="seconds of fuzzing per reader")
    parser.add_argument("--output", type=Path, default=Path(".fuzz"), help="folder for inputs and logs")
    parser.add_argument("--only", choices=("properties", "readers"), help="skip the other kind of fuzzing")
    parser.add_argument("readers", nargs="*", help="readers to fuzz; by default all")
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
    """Run a file of property tests with many examples (the nightly profile)."""
    counts = (output / f"{file.stem}.json").resolve()
    counts.unlink(missing_ok=True)
    settings = {"HETCAL_FUZZ": "nightly", "HETCAL_FUZZ_COUNTS": str(counts), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", str(file)]
    process = subprocess.run(command, env=os.environ | settings, check=False)
    if not counts.is_file():
        return [Line(file.stem, 0, 1)]
    table = json.loads(counts.read_text(encoding="utf-8"))
    lines = [Line(f"{file.stem}: {name}", *numbers) for name, numbers in table.items() if numbers[0]]
    other_failure = process.returncode and not any(line.errors for line in lines)
    return [*lines, Line(file.stem, 0, 1)] if other_failure else lines


def fuzz_reader(name: str, output: Path, seconds: int) -> Line:
    """Fuzz one reader, starting from valid files and the corpus of earlier runs."""
    import seeds

    corpus = output / name / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for i, content in enumerate(seeds.seeds_of(name)):
        (corpus / f"seed{i}").write_bytes(content)
    limits = [f"-max_total_time={seconds}", "-timeout=60", "-rss_limit_mb=4096", "-max_len=8192"]
    output_options = [f"-artifact_prefix={output / name}/", "-print_final_stats=1"]
    command = [sys.executable, str(HERE / "readers.py"), name, str(corpus), *limits, *output_options]
    log = output / name / "log.txt"
    with log.open("wb") as sink:
        settings = {"OPENBLAS_NUM_THREADS": "1"}
        process = subprocess.run(command, env=os.environ | settings, stdout=sink, stderr=sink, check=False)
    text = log.read_text(encoding="utf-8", errors="replace")
    if process.returncode:
        sys.stdout.write(f"{name}: exit code {process.returncode}\n{text[-3000:]}\n")
    units = re.search(r"stat::number_of_executed_units:\s*(\d+)", text)
    return Line(f"reader: {name}", int(units[1]) if units else 0, int(process.returncode != 0))


def show(lines: list[Line]) -> None:
    """Print the table."""
    total = Line("all", sum(line.examples for line in lines), sum(line.errors for line in lines))
    width = max(len(line.target) for line in [*lines, total])
    sys.stdout.write(f"\n{'target':<{width}}{'examples':>12}{'errors':>8}\n")
    for line in [*lines, total]:
        sys.stdout.write(f"{line.target:<{width}}{line.examples:>12,}{line.errors:>8}\n")


if __name__ == "__main__":
    sys.exit(main())
