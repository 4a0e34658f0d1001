"""Full and read-only disks, missing home folders, concurrent writers, and wrong clocks.

A command succeeds, or it prints one line, exits with code 2 and leaves existing files unchanged.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import hetcal
from hetcal.__main__ import main

PACKAGE = Path(hetcal.__file__).parent
THOROUGH = "HETCAL_FAULTS" in os.environ
# Runs commands one after the other in one process, which imports everything once.
RUN_COMMANDS = """
    import contextlib, io, json, sys
    from hetcal.__main__ import main
    from pathlib import Path

    outcomes = []
    for arguments in json.loads(sys.argv[1]):
        err = io.StringIO()
        with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
            code = main(arguments)
        outcomes.append([code, err.getvalue()])
    contents = {str(path): path.read_bytes().hex() for path in Path(sys.argv[2]).glob("*/*")}
    print(json.dumps([outcomes, contents]))
"""
# Compiles one small function.
COMPILE = """
    import sys
    import numpy as np
    from hetcal._numeric import compiled
    z = np.eye(8, 4, dtype=np.float32)
    predicted = np.empty(8, np.uint8)
    compiled.decide(z, predicted, 0, 8)
    assert predicted.tolist() == z.argmax(1).tolist()
    print("compiled")
"""


def python_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


def in_namespace(mount: str, code: str, *arguments: str, **variables: str) -> str:
    """Output of Python, run without HOME in its own mount namespace after the shell commands `mount`."""
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    if subprocess.run([*unshare, "sh", "-ec", mount], capture_output=True, check=False).returncode:
        if THOROUGH:
            pytest.fail("mounting is not permitted")
        pytest.skip("mounting is not permitted")
    python = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), *arguments]
    without_home = {key: value for key, value in python_environment().items() if key != "HOME"}
    process = subprocess.run(
        [*unshare, "sh", "-ec", f'{mount}; exec "$@"', "sh", *python],
        env=without_home | variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder with logits, a calibrator, and a mount point `disk`."""
    rng = np.random.default_rng(5)
    z = rng.normal(size=(400, 2)) * 3
    y = np.where(rng.random(400) < 0.75, z.argmax(1), rng.integers(0, 2, 400))
    np.savez(tmp_path / "logits.npz", logits=z, labels=y)
    hetcal.save(hetcal.Identity().fit(z, y), tmp_path / "cal.json")
    (tmp_path / "disk").mkdir()
    return tmp_path


def commands_for(folder: Path, disk: Path) -> list[list[str]]:
    """Commands that write to `disk`; the slow ones only in ``make faults``."""
    logits = str(folder / "logits.npz")
    apply = ["apply", str(folder / "cal.json"), logits, "-o"]
    quick = [
        ["fit", logits, "-m", "cts", "-o", str(disk / "old.json")],
        *([*apply, str(disk / f"probs.{kind}")] for kind in ("npy", "npz", "csv")),
    ]
    slow = [
        [*apply, str(disk / "probs.parquet")],
        ["theory", "--draws", "1", "-o", str(disk)],
        ["report", logits, "--format", "md", "-o", str(disk / "page.md")],
    ]
    return [*quick, *slow] if THOROUGH else quick


def test_full_and_read_only_disks(folder: Path) -> None:
    reasons = {"full": "No space left on device", "closed": "[Rr]ead-only"}
    full, closed, old = folder / "disk" / "full", folder / "disk" / "closed", folder / "cal.json"
    mount = "; ".join(
        [
            f"mkdir -p {full} {closed}",
            f"mount -t tmpfs -o size=64k tmpfs {full}",
            f"mount -t tmpfs tmpfs {closed}",
            f"cp {old} {full}/old.json",
            f"cp {old} {closed}/old.json",
            f"mount -o remount,ro {closed}",
            f"dd if=/dev/zero of={full}/fill bs=1k 2>/dev/null || true",
        ]
    )
    commands = [(disk, words) for disk in reasons for words in commands_for(folder, folder / "disk" / disk)]
    arguments = json.dumps([words for _, words in commands])
    outcomes, contents = json.loads(in_namespace(mount, RUN_COMMANDS, arguments, str(folder / "disk")))
    contents.pop(str(full / "fill"))
    unchanged = (full / "old.json", closed / "old.json")
    assert contents == dict.fromkeys(map(str, unchanged), old.read_bytes().hex())
    for (disk, words), (code, message) in zip(commands, outcomes, strict=True):
        assert code == 2, (words, message)
        assert re.fullmatch(rf"hetcal: .*{reasons[disk]}.*\n", message), (words, message)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_standard_output(folder: Path) -> None:
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(
            [sys.executable, "-m", "hetcal", "evaluate", str(folder / "logits.npz")],
            env=python_environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert process.returncode == 2
    assert re.fullmatch(r"hetcal: .*No space left on device\n", process.stderr)


def test_compilation_without_a_writable_folder(folder: Path) -> None:
    """Neither the home folder nor the package can store compiled code."""
    assert in_namespace(read_only_package(folder), COMPILE, HOME=str(folder / "disk")) == "compiled\n"


def test_compilation_with_a_full_cache(folder: Path) -> None:
    fill = f"dd if=/dev/zero of={folder}/disk/fill bs=1k 2>/dev/null || true"
    mount = f"mount -t tmpfs -o size=64k tmpfs {folder}/disk; {fill}"
    assert in_namespace(mount, COMPILE, NUMBA_CACHE_DIR=str(folder / "disk")) == "compiled\n"


@pytest.mark.skipif(not THOROUGH, reason="compiling takes long; make faults runs it")
@pytest.mark.parametrize("home", ["read-only", "missing", None])
def test_fits_and_figures_without_a_home(folder: Path, home: str | None) -> None:
    code = """
        import sys
        import numpy as np
        import hetcal
        from hetcal._numeric import acceleration
        from matplotlib.figure import Figure
        acceleration.LARGE = 1
        with np.load(sys.argv[1]) as data:
            calibrator = hetcal.TemperatureScaling().fit(data["logits"], data["labels"])
        assert "numba" in sys.modules
        Figure().savefig(sys.argv[2])
        print(calibrator.alpha_.hex())
    """
    homes = {"read-only": {"HOME": str(folder / "disk")}, "missing": {"HOME": "/nowhere"}, None: {}}
    logits = folder / "logits.npz"
    output = in_namespace(
        read_only_package(folder), code, str(logits), str(folder / "figure.png"), **homes[home]
    )
    with np.load(logits) as data:
        expected = hetcal.TemperatureScaling().fit(data["logits"], data["labels"]).alpha_
    assert float.fromhex(output.split()[-1]) == pytest.approx(expected, rel=1e-9)


def read_only_package(folder: Path) -> str:
    return (
        f"mount -t tmpfs tmpfs {folder}/disk; mount -o remount,ro {folder}/disk; "
        f"mount -o bind,ro {PACKAGE} {PACKAGE}"
    )


def test_two_processes_write_one_file(folder: Path) -> None:
    code = """
        import json, os, sys
        os.dup2(2, 1)
        from hetcal import cli
        from hetcal.__main__ import main
        for commands in json.loads(sys.argv[1]):
            children = []
            for arguments in commands:
                child = os.fork()
                if child == 0:
                    code = 70
                    try:
                        code = main(arguments)
                    finally:
                        os._exit(code)
                children.append(child)
            for child in children:
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """
    disk = folder / "disk"
    fit, *_, report = commands_for(folder, disk)
    fit_ts = [*fit[:3], "ts", *fit[4:]]
    pairs = [[fit, fit_ts], *([[report, report]] if THOROUGH else [])]
    python = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), json.dumps(pairs)]
    subprocess.run(python, env=python_environment(), check=True, capture_output=True)
    assert {p.name for p in disk.iterdir()} == {"old.json", *(["page.md"] if THOROUGH else [])}
    assert type(hetcal.load(disk / "old.json")).__name__.endswith("TemperatureScaling")


def test_files_with_a_modification_time_in_the_future(folder: Path) -> None:
    """Such files exist after the clock was set back."""
    later = time.time() + 1e8
    output = folder / "disk" / "cal.json"
    draft = folder / "disk" / ".cal.json.0123456789abcdef.part"
    for path in (output, draft, folder / "logits.npz"):
        path.touch()
        os.utime(path, (later, later))
    assert main(["fit", str(folder / "logits.npz"), "-m", "ts", "-o", str(output)]) == 0
    hetcal.load(output)
    assert not draft.exists()


def test_no_code_depends_on_the_wall_clock() -> None:
    """Durations use a monotonic clock, and modification times are ignored."""
    wall_clock = re.compile(r"time\.time\(|datetime\.now|utcnow|\.today\(|st_mtime|getmtime")
    assert not [p.name for p in PACKAGE.rglob("*.py") if wall_clock.search(p.read_text(encoding="utf-8"))]
