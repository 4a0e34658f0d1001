"""Disks that are full or read-only, no home, two at the same file, clocks that are wrong.

Commands end with the right result, or with one line and exit code 2; what was there before stays.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetcal
from hetcal.__main__ import main

PACKAGE = Path(hetcal.__file__).parent
THOROUGH = "HETCAL_FAULTS" in os.environ
RUN = "c10-noise-0-4-r0.30-s0-net_tiny-e2-b32"
#: Runs commands one after the other in one process, which has imported everything once.
COMMANDS = """
    import contextlib, io, json, sys
    from hetcal.__main__ import main
    from pathlib import Path

    def run(kind, *words):
        if kind == "train":
            from hetcal_paper.training import main as train
            return train(words)
        return main([kind, *words])

    told = []
    for words in json.loads(sys.argv[1]):
        err = io.StringIO()
        with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
            told.append([run(*words)])
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
    """Folder with logits, a calibrator, CIFAR, and a folder `disk` to mount on."""
    rng = np.random.default_rng(5)
    z = rng.normal(size=(400, 2)) * 3
    y = np.where(rng.random(400) < 0.75, z.argmax(1), rng.integers(0, 2, 400))
    np.savez(tmp_path / "logits.npz", logits=z, labels=y)
    hetcal.save(hetcal.Identity().fit(z, y), tmp_path / "cal.json")
    (tmp_path / "cifar-10-batches-bin").mkdir()
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        rows = np.column_stack([np.arange(40) % 10, rng.integers(0, 255, (40, 3072))])
        rows.astype(np.uint8).tofile(tmp_path / "cifar-10-batches-bin" / name)
    (tmp_path / "disk").mkdir()
    return tmp_path


def commands_for(place: Path, disk: Path) -> list[list[str]]:
    """What writes to a folder that holds old.json; what takes long only in ``make faults``."""
    logits = str(place / "logits.npz")
    apply = ["apply", str(place / "cal.json"), logits, "-o"]
    train = [
        "train",
        RUN,
        "--any-size",
        "--device",
        "cpu",
        "--quiet",
        "--data",
        str(place),
        "--out",
        str(disk),
    ]
    quick = [
        ["fit", logits, "-m", "cts", "-o", str(disk / "old.json")],
        *([*apply, str(disk / f"probs.{kind}")] for kind in ("npy", "npz", "csv")),
    ]
    slow = [
        [*apply, str(disk / "probs.parquet")],
        ["theory", "--draws", "1", "-o", str(disk)],
        ["report", logits, "--format", "md", "-o", str(disk / "page.md")],
        train,
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
            assert re.fullmatch(rf"(hetcal|error): .*{reason}.*\n", text), (words, text)


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
        from hetcal._core import fast
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
        from hetcal._core import kernels, numba_kernels
        z = np.eye(8, 4, dtype=np.float32)
        guess = np.empty(8, np.uint8)
        numba_kernels.decide(z, guess, 0, 8)
        print(guess.tolist() == z.argmax(1).tolist())
    """
    fill = f"dd if=/dev/zero of={place}/disk/fill bs=1k 2>/dev/null || true"
    mount = f"mount -t tmpfs -o size=64k tmpfs {place}/disk; {fill}"
    assert in_namespace(mount, code, NUMBA_CACHE_DIR=str(place / "disk")) == "True\n"


def test_two_processes_at_one_file_and_one_store(place: Path) -> None:
    """Two fits and two reports to one file, two trainings of one run in one store: one whole result each."""
    code = """
        import json, os, sys
        os.dup2(2, 1)
        from hetcal import cli
        from hetcal.__main__ import main
        if "train" in sys.argv[1]:
            from hetcal_paper import train
            import torch._dynamo
        for pair in json.loads(sys.argv[1]):
            children = []
            for words in pair:
                child = os.fork()
                if child == 0:
                    code = 70
                    try:
                        code = train.main(words[1:]) if words[0] == "train" else main(words)
                    finally:
                        os._exit(code)
                children.append(child)
            for child in children:
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """
    fit, *_, report, train = commands_for(place, place / "disk")
    other = [*fit[:3], "ts", *fit[4:]]
    alone = [*train[:-1], str(place / "alone")]
    pairs = [[fit, other], *([[report, report], [train, train], [alone]] if THOROUGH else [])]
    python = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), json.dumps(pairs)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    subprocess.run(python, env=environment, check=True, capture_output=True)
    disk = place / "disk"
    runs = {f"{RUN}.json", f"{RUN}.npz"} if THOROUGH else set()
    assert {p.name for p in disk.iterdir()} == {"old.json", *runs, *(["page.md"] if THOROUGH else [])}
    assert type(hetcal.load(disk / "old.json")).__name__.endswith("TemperatureScaling")
    for name in runs:
        assert content(disk / name) == content(place / "alone" / name)


def content(path: Path) -> Any:
    if path.suffix == ".json":
        return {k: v for k, v in json.loads(path.read_text()).items() if k != "seconds"}
    with np.load(path) as arrays:
        return {name: array.tobytes() for name, array in arrays.items()}


def test_results_that_several_add_to_lose_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hetcal_paper import results

    def judge(_: Path, name: str, __: object) -> dict[str, list[str]]:
        return {file: [f"{name}{',' * (len(columns) - 1)}"] for file, columns in results.COLUMNS.items()}

    monkeypatch.setattr(results, "judge", judge)  # fits take long, and are not the matter here
    for i in range(8):
        (tmp_path / f"store{i}").mkdir()
        (tmp_path / f"store{i}" / f"run{i}.json").write_text("{}")
    adders = [
        threading.Thread(target=results.summarise, args=(tmp_path / f"store{i}", tmp_path / "results"))
        for i in range(8)
    ]
    for adder in adders:
        adder.start()
    for adder in adders:
        adder.join()
    for file in results.COLUMNS:
        lines = (tmp_path / "results" / f"{file}.csv").read_text().splitlines()[1:]
        assert [line.split(",")[0] for line in lines] == [f"run{i}" for i in range(8)]


def test_files_from_the_future_are_files_like_others(place: Path) -> None:
    """After the clock is set back, what was written before it bears a later time than now."""
    from hetcal_paper import store

    later = time.time() + 1e8
    disk = place / "disk"
    draft = disk / ".cal.json.0123456789abcdef.part"
    for path in (disk / "cal.json", draft, place / "logits.npz"):
        path.touch()
        os.utime(path, (later, later))
    assert main(["fit", str(place / "logits.npz"), "-m", "ts", "-o", str(disk / "cal.json")]) == 0
    hetcal.load(disk / "cal.json")
    assert not draft.exists()
    store.write(disk, RUN, {"keys": {"best": ("a", "b")}}, {"a": np.zeros(1), "b": np.zeros(1)})
    os.utime(disk / f"{RUN}.json", (later, later))
    assert RUN in store.finished(disk)


def test_nothing_asks_what_time_it_is() -> None:
    """Durations come from a clock that cannot be set, and no file is judged by its time."""
    asks = re.compile(r"time\.time\(|datetime\.now|utcnow|\.today\(|st_mtime|getmtime")
    assert not [p.name for p in PACKAGE.rglob("*.py") if asks.search(p.read_text(encoding="utf-8"))]


def test_a_damaged_checkpoint_costs_time_only(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Checkpoints are not forced to disk: a loss of power can leave one empty or cut short."""
    import torch

    from hetcal_paper.checkpoints import read_checkpoint
    from hetcal_paper.runs import parse

    whole = io.BytesIO()
    torch.save({"run": {}, "weights": torch.zeros(1000)}, whole)
    for content_ in (b"", b"\0" * 5000, whole.getvalue()[:2000], whole.getvalue()[:-30]):
        (place / f"{RUN}.ckpt").write_bytes(content_)
        caplog.clear()
        assert read_checkpoint(place, parse(RUN)) is None
        assert "is damaged" in caplog.text
    (place / f"{RUN}.ckpt").write_bytes(whole.getvalue())
    with pytest.raises(ValueError, match="must belong to"):
        read_checkpoint(place, parse(RUN))
