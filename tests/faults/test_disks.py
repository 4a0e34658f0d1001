"""Disks that are full or read-only, no home, two at the same file, clocks that are wrong.

Commands end with the right result, or with one line and exit code 2; what was there before stays.
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
#: Runs commands one after the other in one process, which has imported everything once.
COMMANDS = """
    import contextlib, io, json, sys
    from hetcal.__main__ import main
    from pathlib import Path

    told = []
    for words in json.loads(sys.argv[1]):
        err = io.StringIO()
        with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
            told.append([main(words)])
        told[-1].append(err.getvalue())
    found = {str(path): path.read_bytes().hex() for path in Path(sys.argv[2]).glob("*/*")}
    print(json.dumps([told, found]))
"""


def in_namespace(mount: str, code: str, *words: str, **environment: str) -> str:
    """Run Python where `mount` has been done, which nobody else sees; its output."""
    space = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    if subprocess.run([*space, "sh", "-ec", mount], capture_output=True, check=False).returncode:
        if THOROUGH:
            pytest.fail("mounts are refused here")
        pytest.skip("mounts are refused here")
    python = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), *words]
    keep = {key: value for key, value in os.environ.items() if key != "HOME"}
    done = subprocess.run(
        [*space, "sh", "-ec", f'{mount}; exec "$@"', "sh", *python],
        env={**keep, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Folder with logits, a calibrator, and a folder `disk` to mount on."""
    rng = np.random.default_rng(5)
    z = rng.normal(size=(400, 2)) * 3
    y = np.where(rng.random(400) < 0.75, z.argmax(1), rng.integers(0, 2, 400))
    np.savez(tmp_path / "logits.npz", logits=z, labels=y)
    hetcal.save(hetcal.Identity().fit(z, y), tmp_path / "cal.json")
    (tmp_path / "disk").mkdir()
    return tmp_path


def commands_for(place: Path, disk: Path) -> list[list[str]]:
    """What writes to a folder that holds old.json; what takes long only in ``make faults``."""
    logits = str(place / "logits.npz")
    apply = ["apply", str(place / "cal.json"), logits, "-o"]
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


def test_full_and_read_only_disks(place: Path) -> None:
    """Every command ends with one line that says why, and leaves the disk as it was."""
    disks = {"full": "No space left on device", "closed": "[Rr]ead-only"}
    full, closed, old = place / "disk" / "full", place / "disk" / "closed", place / "cal.json"
    mount = (
        f"mkdir -p {full} {closed}; mount -t tmpfs -o size=64k tmpfs {full}; mount -t tmpfs tmpfs {closed}"
    )
    mount += f"; cp {old} {full}/old.json; cp {old} {closed}/old.json; mount -o remount,ro {closed}"
    mount += f"; dd if=/dev/zero of={full}/fill bs=1k 2>/dev/null || true"
    commands = {disk: commands_for(place, place / "disk" / disk) for disk in disks}
    every = json.dumps([words for some in commands.values() for words in some])
    told, found = json.loads(in_namespace(mount, COMMANDS, every, str(place / "disk")))
    found.pop(str(full / "fill"))
    assert found == dict.fromkeys((str(full / "old.json"), str(closed / "old.json")), old.read_bytes().hex())
    answers = iter(told)
    for disk, reason in disks.items():
        for words in commands[disk]:
            status, text = next(answers)
            assert status == 2, (words, text)
            assert re.fullmatch(rf"hetcal: .*{reason}.*\n", text), (words, text)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_nowhere_to_print(place: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hetcal", "evaluate", str(place / "logits.npz")],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert re.fullmatch(r"hetcal: .*No space left on device\n", done.stderr)


@pytest.mark.parametrize("home", ["read-only", "missing", "none"] if THOROUGH else ["read-only"])
def test_no_home_and_a_package_that_cannot_be_written(place: Path, home: str) -> None:
    """Where numba and matplotlib would keep what they make there is no room; the numbers are the same."""
    code = """
        import sys
        import numpy as np
        from hetcal._numeric import acceleration as fast
        fast.LARGE = 1
        import hetcal
        from hetcal.__main__ import main
        with np.load(sys.argv[1]) as d:
            cal = hetcal.TemperatureScaling().fit(d["logits"], d["labels"])
        assert "numba" in sys.modules
        if sys.argv[2]:
            from matplotlib.figure import Figure
            Figure().savefig(sys.argv[2])
        print(cal.alpha_.hex())
    """
    mount = f"mount -t tmpfs tmpfs {place}/disk; mount -o remount,ro {place}/disk"
    mount += f"; mount -o bind,ro {PACKAGE} {PACKAGE}"
    homes = {"read-only": {"HOME": str(place / "disk")}, "missing": {"HOME": "/nowhere"}}.get(home, {})
    figure = str(place / "a.png") if THOROUGH else ""
    out = in_namespace(mount, code, str(place / "logits.npz"), figure, **homes)
    with np.load(place / "logits.npz") as data:
        expected = hetcal.TemperatureScaling().fit(data["logits"], data["labels"]).alpha_
    assert float.fromhex(out.split()[-1]) == pytest.approx(expected, rel=1e-9)


def test_compiled_passes_need_no_room_to_be_kept(place: Path) -> None:
    code = """
        import sys
        import numpy as np
        from hetcal._numeric import passes as kernels; from hetcal._numeric import compiled as numba_kernels
        z = np.eye(8, 4, dtype=np.float32)
        guess = np.empty(8, np.uint8)
        numba_kernels.decide(z, guess, 0, 8)
        print(guess.tolist() == z.argmax(1).tolist())
    """
    fill = f"dd if=/dev/zero of={place}/disk/fill bs=1k 2>/dev/null || true"
    mount = f"mount -t tmpfs -o size=64k tmpfs {place}/disk; {fill}"
    assert in_namespace(mount, code, NUMBA_CACHE_DIR=str(place / "disk")) == "True\n"


def test_two_processes_at_one_file(place: Path) -> None:
    """Two fits and two reports write to one file: one complete result each."""
    code = """
        import json, os, sys
        os.dup2(2, 1)
        from hetcal import cli
        from hetcal.__main__ import main
        for pair in json.loads(sys.argv[1]):
            children = []
            for words in pair:
                child = os.fork()
                if child == 0:
                    code = 70
                    try:
                        code = main(words)
                    finally:
                        os._exit(code)
                children.append(child)
            for child in children:
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """
    fit, *_, last = commands_for(place, place / "disk")
    other = [*fit[:3], "ts", *fit[4:]]
    pairs = [[fit, other], *([[last, last]] if THOROUGH else [])]
    python = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), json.dumps(pairs)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    subprocess.run(python, env=environment, check=True, capture_output=True)
    disk = place / "disk"
    assert {p.name for p in disk.iterdir()} == {"old.json", *(["page.md"] if THOROUGH else [])}
    assert type(hetcal.load(disk / "old.json")).__name__.endswith("TemperatureScaling")


def test_files_from_the_future_are_files_like_others(place: Path) -> None:
    """After the clock is set back, what was written before it bears a later time than now."""
    later = time.time() + 1e8
    disk = place / "disk"
    draft = disk / ".cal.json.0123456789abcdef.part"
    for path in (disk / "cal.json", draft, place / "logits.npz"):
        path.touch()
        os.utime(path, (later, later))
    assert main(["fit", str(place / "logits.npz"), "-m", "ts", "-o", str(disk / "cal.json")]) == 0
    hetcal.load(disk / "cal.json")
    assert not draft.exists()


def test_nothing_asks_what_time_it_is() -> None:
    """Durations come from a clock that cannot be set, and no file is judged by its time."""
    asks = re.compile(r"time\.time\(|datetime\.now|utcnow|\.today\(|st_mtime|getmtime")
    assert not [p.name for p in PACKAGE.rglob("*.py") if asks.search(p.read_text(encoding="utf-8"))]
