"""Test hetcal with the lowest and the newest versions of its dependencies, in new environments.

    python tools/compatibility.py                                    # test with the running Python
    python tools/compatibility.py python3.11 python3.12 python3.13   # newest versions on all, lowest on 3.11
    python tools/compatibility.py --write-lowest                     # write tools/lowest.txt

The wheel is built from the source distribution. Each environment first gets the wheel alone, to measure the
time of `import hetcal`. Then the extras are installed, and the tests of the source distribution run in a
folder without the source. PyTorch, by far the largest dependency, is installed only with `--torch`.
hetcal-paper is not tested.
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
# Tests of fits, metrics, files, commands, adapters and the report. Long statistical tests are omitted,
# because their results hardly depend on the versions of dependencies.
TESTS = (
    "test_validate.py", "test_batches.py", "_numeric/test_passes.py", "_numeric/test_scalar_solver.py",
    "calibrators/test_affine.py", "calibrators/test_classwise.py", "calibrators/test_compose.py",
    "calibrators/test_temperature.py", "calibrators/test_toplabel.py", "metrics/test_evaluation.py",
    "metrics/test_binning.py", "metrics/test_scores.py", "report/test_gates.py", "report/test_render.py",
    "cli/test_application.py", "cli/test_data.py", "test_artefact.py", "test_compare.py", "test_dask.py",
    "test_diagnosis.py",
    "test_logits_files.py", "test_imports.py", "export/test_onnx.py", "test_partition.py", "test_plots.py",
    "test_security.py",
)  # fmt: skip
WITH_TORCH = ("export/test_torch.py",)
SHOWN = ("numpy", "scipy", "scikit-learn", "pandas", "numba", "torch")
_IMPORT = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"
_STATEMENTS = ("import hetcal", "from hetcal import ClassWiseTemperatureScaling")


@dataclass
class Row:
    """One environment and its results."""

    python: str
    versions: str
    packages: dict[str, str]
    seconds: dict[str, float]
    outcome: str


def lower_bounds(project: dict[str, object]) -> dict[str, str]:
    """Return the lower bound of each dependency, including the extras except `dev` and `docs`."""
    extras = {k: v for k, v in project["optional-dependencies"].items() if k not in ("dev", "docs")}
    bounds: dict[str, str] = {}
    for line in [*project["dependencies"], *(d for deps in extras.values() for d in deps)]:
        if line.startswith("hetcal["):
            continue
        match = re.fullmatch(r"([A-Za-z0-9._-]+)(?:\[[a-z,]+\])?>=([0-9][0-9a-z.]*)", line)
        if match is None:
            raise ValueError(
                f"pyproject.toml must list each dependency as name>=version, got {line!r}; "
                "use a lower bound and no other condition"
            )
        bounds[match[1]] = match[2]
    return bounds


def lowest_text() -> str:
    """Return the content of tools/lowest.txt."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = sorted(f"{name}=={version}" for name, version in lower_bounds(project).items())
    head = "# Lower bounds of pyproject.toml, written by `python tools/compatibility.py --write-lowest`."
    return "\n".join([head, *pins, ""])


def main() -> int:
    """Test every environment and print a table; the exit code is 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pythons", nargs="*", default=[sys.executable], help="default: the running Python")
    parser.add_argument("--versions", nargs="*", choices=("lowest", "newest"), default=("lowest", "newest"))
    parser.add_argument(
        "--torch", help="requirement such as torch==2.13.0; also test PyTorch with the newest versions"
    )
    parser.add_argument("--keep", type=Path, help="folder for the environments, which is not deleted")
    parser.add_argument(
        "--write-lowest", action="store_true", help="only write tools/lowest.txt from pyproject.toml"
    )
    options = parser.parse_args()
    if options.write_lowest:
        LOWEST.write_text(lowest_text(), encoding="utf-8")
        return 0
    with contextlib.ExitStack() as stack:
        work = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hetcal-")))
        wheel, tests = build(work)
        rows = []
        for index, python in enumerate(options.pythons):
            for versions in options.versions:
                if versions == "newest" or index == 0:
                    rows.append(test_environment(work, python, versions, wheel, tests, options.torch))
                    print(table(rows[-1:]), flush=True)
    print("\n" + table(rows))
    return int(any(not row.outcome.endswith("passed") for row in rows))


def build(work: Path) -> tuple[Path, Path]:
    """Build the wheel from the source distribution; also return a folder with its tests but no source."""
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


def test_environment(
    work: Path, python: str, versions: str, wheel: Path, tests: Path, torch: str | None
) -> Row:
    """Install into a new environment, time the import, and run the tests."""
    executable = shutil.which(python)
    if executable is None:
        return Row(python, versions, {}, {}, "Python not found")
    name = _run([executable, "-c", "import platform; print(platform.python_version())"], cwd=work)
    home = work / f"{name}-{versions}"
    _run([executable, "-m", "venv", "--clear", str(home)], cwd=work)
    inside = home / "bin" / "python"
    pins = ["-c", str(LOWEST)] if versions == "lowest" else []
    torch = torch if versions == "newest" else None  # PyTorch is tested with the newest versions only
    install = [str(inside), "-m", "pip", "--disable-pip-version-check", "install", "-q", *pins]
    try:
        _run([*install, str(wheel)], cwd=work)
        seconds = import_times(inside, work)
        wanted = [*EXTRAS, *(["torch"] if torch else [])]
        _run([*install, f"{wheel}[{','.join(wanted)}]", *TOOLS, *([torch] if torch else [])], cwd=work)
    except subprocess.CalledProcessError:
        return Row(name, versions, {}, {}, "installation failed")
    return Row(name, versions, _installed(inside), seconds, _run_tests(inside, tests, versions, bool(torch)))


def import_times(python: Path, work: Path, repeats: int = 10) -> dict[str, float]:
    """Return the median seconds of imports in new processes, with and without the files in the page cache."""
    os.sync()  # only files that are written to disk can be dropped from the cache
    times = {}
    for statement in _STATEMENTS:
        for state in ("cold", "warm"):
            seconds = []
            for _ in range(repeats):
                if state == "cold":
                    _drop_cache(python.parent.parent / "lib")
                seconds.append(float(_run([str(python), "-c", _IMPORT.format(statement)], cwd=work)))
            times[f"{statement}, {state}"] = statistics.median(seconds)
    return times


def _drop_cache(folder: Path) -> None:
    """Drop the files from the page cache, if the system supports it."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _run_tests(python: Path, tests: Path, versions: str, torch: bool) -> str:
    imported = _run([str(python), "-c", "import hetcal; print(hetcal.__file__)"], cwd=tests)
    if not Path(imported).is_relative_to(python.parent.parent):
        return f"FAILED: hetcal was imported from {imported}"
    options = [f"tests/{name}" for name in (*TESTS, *(WITH_TORCH if torch else ()))]
    # Old packages emit warnings about each other. With the newest versions, warnings are errors.
    options += ["-W", "default"] if versions == "lowest" else []
    start = time.perf_counter()
    process = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=short", *options],
        capture_output=True, text=True, cwd=tests, check=False,
    )  # fmt: skip
    last = (
        process.stdout.strip().splitlines()[-1] if process.stdout.strip() else process.stderr.strip()[-200:]
    )
    if process.returncode:
        print(process.stdout[-100_000:], process.stderr[-4000:], file=sys.stderr)
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
    """Return the results as a Markdown table."""
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
