"""Build hetcal, install it afresh with its lowest and its newest dependencies, and test what was installed.

    python tools/compatibility.py                                    # this Python
    python tools/compatibility.py python3.11 python3.12 python3.13   # lowest versions on the first of them
    python tools/compatibility.py --write-lowest                     # tools/lowest.txt from pyproject.toml

The source distribution is built from the tree, the wheel from the source distribution. Each environment gets
the wheel alone, in which `import hetcal` is timed, and then the extras and the tests of the source
distribution, run from a folder that has no source. PyTorch is installed only where `--torch` asks for it: it
is by far the largest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOWEST = ROOT / "tools" / "lowest.txt"
EXTRAS = ("cli", "fast", "plot", "files", "report", "onnx", "dask")
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "jsonschema", "skl2onnx")
# What a user of the installed package leans on: fits, metrics, files, commands, adapters, the report. Long
# statistical tests are left out: they ask whether the method is right, not whether it runs.
TESTS = (
    "test_validate.py", "test_batches.py", "_numeric/test_passes.py", "_numeric/test_scalar_solver.py",
    "calibrators/test_chain.py", "calibrators/test_classwise.py", "calibrators/test_errors.py",
    "calibrators/test_scaling.py", "calibrators/test_toplabel.py", "metrics/test_evaluation.py",
    "metrics/test_reliability.py", "metrics/test_scores.py", "report/test_gates.py", "report/test_render.py",
    "test_artefact.py", "test_cli.py", "test_comparison.py", "test_dask.py", "test_diagnosis.py",
    "test_files.py", "test_imports.py", "test_onnx.py", "test_partition.py", "test_plots.py",
    "test_security.py",
)  # fmt: skip
WITH_TORCH = ("test_torch.py",)
SHOWN = ("numpy", "scipy", "scikit-learn", "pandas", "numba", "torch")
_IMPORT = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"
_STATEMENTS = ("import hetcal", "from hetcal import ClassWiseTemperatureScaling")


@dataclass
class Row:
    """One environment and what was seen in it."""

    python: str
    versions: str
    packages: dict[str, str]
    seconds: dict[str, float]
    outcome: str


def lower_bounds(project: dict[str, object]) -> dict[str, str]:
    """Lowest version of each package that the core and the extras for users name."""
    extras = {k: v for k, v in project["optional-dependencies"].items() if k not in ("dev", "docs")}
    found: dict[str, str] = {}
    for line in [*project["dependencies"], *(d for deps in extras.values() for d in deps)]:
        if line.startswith("hetcal["):
            continue
        match = re.fullmatch(r"([A-Za-z0-9._-]+)(?:\[[a-z,]+\])?>=([0-9][0-9a-z.]*)", line)
        if match is None:
            raise ValueError(f"pyproject.toml must give each dependency as name>=version, got {line!r}")
        found[match[1]] = match[2]
    return found


def lowest_text() -> str:
    """The text of tools/lowest.txt."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = sorted(f"{name}=={version}" for name, version in lower_bounds(project).items())
    head = "# Lower bounds of pyproject.toml, written by `python tools/compatibility.py --write-lowest`."
    return "\n".join([head, *pins, ""])


def main() -> int:
    """Run every environment, print the table, and say by the exit code whether all passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pythons", nargs="*", default=[sys.executable])
    parser.add_argument("--versions", nargs="*", choices=("lowest", "newest"), default=("lowest", "newest"))
    parser.add_argument("--torch", help="requirement such as torch==2.13.0, to test the PyTorch extra, too")
    parser.add_argument("--keep", type=Path, help="folder for the environments, which is kept")
    parser.add_argument("--write-lowest", action="store_true")
    asked = parser.parse_args()
    if asked.write_lowest:
        LOWEST.write_text(lowest_text(), encoding="utf-8")
        return 0
    with contextlib.ExitStack() as stack:
        work = asked.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hetcal-")))
        wheel, tests = build(work)
        rows = []
        for place, python in enumerate(asked.pythons):
            for versions in asked.versions:
                if versions == "newest" or place == 0:
                    rows.append(tried(work, python, versions, wheel, tests, asked.torch))
                    print(table(rows[-1:]), flush=True)
    print("\n" + table(rows))
    return int(any(not row.outcome.endswith("passed") for row in rows))


def build(work: Path) -> tuple[Path, Path]:
    """Wheel, by way of the source distribution, and a folder with that distribution's tests but no source."""
    dist = work / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    _run([sys.executable, "-m", "build", "--outdir", str(dist), str(ROOT)], cwd=work)
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with tarfile.open(sdist) as tar:
        tar.extractall(dist, filter="data")
    source = dist / sdist.name.removesuffix(".tar.gz")
    tests = work / "tests-only"
    shutil.rmtree(tests, ignore_errors=True)
    shutil.copytree(source / "tests", tests / "tests")
    shutil.copy(source / "pyproject.toml", tests)
    return wheel, tests


def tried(work: Path, python: str, versions: str, wheel: Path, tests: Path, torch: str | None) -> Row:
    """Install into a fresh environment, time the import, run the tests."""
    found = shutil.which(python)
    if found is None:
        return Row(python, versions, {}, {}, "no such Python here")
    name = _run([found, "-c", "import platform; print(platform.python_version())"], cwd=work)
    home = work / f"{name}-{versions}"
    _run([found, "-m", "venv", "--clear", str(home)], cwd=work)
    inside = home / "bin" / "python"
    pins = ["-c", str(LOWEST)] if versions == "lowest" else []
    torch = torch if versions == "newest" else None  # one version at a time is large enough
    install = [str(inside), "-m", "pip", "--disable-pip-version-check", "install", "-q", *pins]
    try:
        _run([*install, str(wheel)], cwd=work)
        seconds = import_times(inside, work)
        wanted = [*EXTRAS, *(["torch"] if torch else [])]
        _run([*install, f"{wheel}[{','.join(wanted)}]", *TOOLS, *([torch] if torch else [])], cwd=work)
    except subprocess.CalledProcessError:
        return Row(name, versions, {}, {}, "not installed")
    return Row(name, versions, _installed(inside), seconds, _tested(inside, tests, versions, bool(torch)))


def import_times(python: Path, work: Path, repeats: int = 10) -> dict[str, float]:
    """Median seconds of an import in a new process, with the files out of the disk's cache and in it."""
    os.sync()  # only what is on the disk can be dropped from its cache
    out = {}
    for statement in _STATEMENTS:
        for state in ("cold", "warm"):
            taken = []
            for _ in range(repeats):
                if state == "cold":
                    _forget(python.parent.parent / "lib")
                taken.append(float(_run([str(python), "-c", _IMPORT.format(statement)], cwd=work)))
            out[f"{statement}, {state}"] = statistics.median(taken)
    return out


def _forget(folder: Path) -> None:
    """Ask the system to drop these files from its cache, where it can be asked."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _tested(python: Path, tests: Path, versions: str, torch: bool) -> str:
    where = _run([str(python), "-c", "import hetcal; print(hetcal.__file__)"], cwd=tests)
    if not Path(where).is_relative_to(python.parent.parent):
        return f"imported from {where}"
    chosen = [f"tests/{name}" for name in (*TESTS, *(WITH_TORCH if torch else ()))]
    # Old packages warn of each other, which is none of our doing; with new ones a warning is an error.
    chosen += ["-W", "default"] if versions == "lowest" else []
    start = time.perf_counter()
    done = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=short", *chosen],
        capture_output=True, text=True, cwd=tests, check=False,
    )  # fmt: skip
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr.strip()[-200:]
    if done.returncode:
        print(done.stdout[-100_000:], done.stderr[-4000:], file=sys.stderr)
        return f"FAILED: {last}"
    counts = re.findall(r"(\d+) (passed|skipped)", last)
    skipped = ", ".join(f"{n} {what}" for n, what in counts if what != "passed")
    passed = next(n for n, what in counts if what == "passed")
    lead = f"{skipped}, " if skipped else ""
    return f"{time.perf_counter() - start:.0f} s: {lead}{passed} passed"


def _installed(python: Path) -> dict[str, str]:
    listed = _run([str(python), "-m", "pip", "list", "--format=json"], cwd=python.parent)
    return {entry["name"]: entry["version"] for entry in json.loads(listed)}


def table(rows: list[Row]) -> str:
    """Markdown."""
    heads = ["Python", "versions", *SHOWN, "import hetcal, warm (cold)", "with a calibrator", "tests"]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for row in rows:
        times = [_times(row.seconds, statement) for statement in _STATEMENTS]
        packages = [row.packages.get(name, "–") for name in SHOWN]
        lines.append(f"| {' | '.join([row.python, row.versions, *packages, *times, row.outcome])} |")
    return "\n".join(lines)


def _times(seconds: dict[str, float], statement: str) -> str:
    warm, cold = (seconds.get(f"{statement}, {state}") for state in ("warm", "cold"))
    return "–" if warm is None or cold is None else f"{warm:.2f} s ({cold:.2f} s)"


def _run(command: list[str], cwd: Path) -> str:
    return subprocess.run(command, check=True, cwd=cwd, stdout=subprocess.PIPE, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
