"""kill -9 at random moments of a training run, a report, a fit and a download.

Moments are drawn over the time that a whole run takes and over its calls of the system (write, fsync, rename)
from the first draft of a file on. ``HETCAL_FAULTS`` is the number of kills, all four together; a hundred
in ``make faults``.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetcal

KILLS = int(os.environ.get("HETCAL_FAULTS", "4"))
PAGE = "html" if KILLS >= 100 else "md"  # drawing the page takes seconds
TRAIN = ("--any-size", "--device", "cpu", "--quiet", "--data")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd")


class Forks:
    """Processes that begin with everything imported."""

    def __init__(self, *modules: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(Path(__file__).with_name("forks.py")), *modules],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip

    def _ask(self, text: str) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def run(
        self, words: list[str], *, after: float = 600, at_call: int | None = None, tally: Path | None = None
    ) -> tuple[int, float]:
        """Run, and kill after so many seconds or calls of the system; exit code and seconds."""
        process = os.pidfd_open(self._ask(json.dumps([words, at_call, str(tally)])))
        start = time.monotonic()
        try:
            select.select([process], [], [], after)
            signal.pidfd_send_signal(process, signal.SIGKILL)
            return self._ask(""), time.monotonic() - start
        finally:
            os.close(process)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Victim:
    """Something to be killed, at work in `folder`, which begins as a copy of `start`."""

    modules: tuple[str, ...] = ()
    url = ""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.start = place / "start"
        self.folder = place / "folder"
        self.start.mkdir()
        self.forks = Forks(*self.modules)
        self.prepare()

    def prepare(self) -> None: ...

    def words(self) -> list[str]:
        raise NotImplementedError

    def content(self) -> dict[str, Any]:
        """What lies in the folder under its final name; fails where a file is not whole."""
        return {path.name: path.read_bytes() for path in self.folder.iterdir() if path.name[0] != "."}

    def check(self, found: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
        """Whether the folder of a killed process is right: each file as before, or as it is to be."""
        assert found.keys() <= before.keys() | after.keys()
        assert found.keys() >= before.keys()
        for name, value in found.items():
            assert value in (before.get(name), after.get(name)), name


def write_logits(path: Path) -> None:
    rng = np.random.default_rng(5)
    z = rng.normal(size=(80, 2)) * 3
    y = np.where(rng.random(80) < 0.75, z.argmax(1), rng.integers(0, 2, 80))
    np.savez(path, val_logits=z[:40], val_labels=y[:40], test_logits=z[40:], test_labels=y[40:])


class Fit(Victim):
    modules = ("hetcal.cli", "hetcal.calibrators")

    def prepare(self) -> None:
        write_logits(self.place / "logits.npz")
        cal = hetcal.Identity().fit([[2.0, 0.0]] * 4, [0, 0, 0, 1])
        hetcal.save(cal, self.start / "cal.json")  # a calibrator from before, which must not be lost

    def words(self) -> list[str]:
        out = str(self.folder / "cal.json")
        return ["cli", "fit", str(self.place / "logits.npz"), "-m", "cts", "-o", out]

    def content(self) -> dict[str, Any]:
        hetcal.load(self.folder / "cal.json")
        return super().content()


class Report(Victim):
    modules = ("hetcal.cli", "hetcal.report", *(("vl_convert", "jinja2") if PAGE == "html" else ()))

    def prepare(self) -> None:
        write_logits(self.place / "logits.npz")
        (self.start / "page").write_text("the page of yesterday")

    def words(self) -> list[str]:
        out = str(self.folder / "page")
        return ["cli", "report", str(self.place / "logits.npz"), "--format", PAGE, "-o", out]


class Train(Victim):
    modules = ("hetcal_paper.train", "torch._dynamo")  # which torch would import in every fork
    name, other = (f"c10-noise-0-4-r0.30-s{seed}-net_tiny-e6-b32" for seed in (0, 1))

    def prepare(self) -> None:
        write_cifar(self.place / "cifar-10-batches-bin")
        words = ["train", self.other, *TRAIN, str(self.place), "--out", str(self.start)]
        assert self.forks.run(words)[0] == 0  # a run from before, which must be kept

    def words(self) -> list[str]:
        return ["train", self.name, *TRAIN, str(self.place), "--out", str(self.folder)]

    def content(self) -> dict[str, Any]:
        return {path.name: parse(path) for path in self.folder.iterdir() if path.name[0] != "."}

    def check(self, found: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
        found.pop(f"{self.name}.ckpt", None)
        super().check(found, before, after)
        assert f"{self.name}.npz" in found or f"{self.name}.json" not in found


class Download(Victim):
    modules = ("hetcal_paper.data",)

    def prepare(self) -> None:
        write_cifar(self.place / "cifar-10-batches-bin")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
            tar.add(self.place / "cifar-10-batches-bin", "cifar-10-batches-bin")
        self.archive = packed.getvalue()

    def words(self) -> list[str]:
        digest = hashlib.sha256(self.archive).hexdigest()
        return ["download", self.url, digest, str(self.folder)]

    def content(self) -> dict[str, Any]:
        folders = [path for path in self.folder.iterdir() if path.name[0] != "."]
        return {path.name: {file.name: file.read_bytes() for file in path.iterdir()} for path in folders}


def write_cifar(folder: Path) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        labels = np.arange(40) % 10
        pixels = rng.integers(0, 120, (40, 3072)) + labels[:, None] * 13
        np.column_stack([labels, pixels]).astype(np.uint8).tofile(folder / name)


def parse(path: Path) -> Any:
    """Content of a file of the store without the time that it took; fails where it is not whole."""
    if path.suffix == ".json":
        return {k: v for k, v in json.loads(path.read_text()).items() if k != "seconds"}
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {name: (array.shape, array.tobytes()) for name, array in arrays.items()}
    import torch

    return torch.load(path, weights_only=True)["run"]


@contextmanager
def slow_server(victim: Victim) -> Iterator[None]:
    """Serve the archive of a download bit by bit, in about a tenth of a second."""
    if not isinstance(victim, Download):
        yield
        return

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(victim.archive)))
            self.end_headers()
            step = len(victim.archive) // 20
            for at in range(0, len(victim.archive), step):
                try:
                    self.wfile.write(victim.archive[at : at + step])
                except OSError:
                    return  # killed
                time.sleep(0.005)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        victim.url = f"http://127.0.0.1:{server.server_port}/cifar-10-binary.tar.gz"
        yield
        server.shutdown()


def again(victim: Victim) -> dict[str, Any]:
    shutil.rmtree(victim.folder, ignore_errors=True)
    shutil.copytree(victim.start, victim.folder)
    return victim.content()


def state(victim: Victim) -> str:
    """What a killed process left: names without what differs from run to run."""
    found = []
    for path in (p for p in victim.folder.rglob("*") if p.suffix != ".bin"):
        name = path.name.replace(Train.name, "NAME")
        draft = re.sub(r"^\.(.*?)(\.[0-9a-f]{16})?\.part$", r"draft of \1", name)
        empty = path.is_file() and not path.stat().st_size
        found += [f"empty {draft}" if empty else draft] * (Train.other not in name)
    return ", ".join(sorted(found)) or "nothing"


def kill(victim: Victim, n_kills: int, seed: int) -> Counter[str]:
    """Kill so many times, and look after each; counts what was there after a kill."""
    forks, tally = victim.forks, victim.place / "tally"
    before = again(victim)
    code, seconds = forks.run(victim.words(), at_call=0, tally=tally)
    assert code == 0
    n_calls = int(tally.read_text())
    after = victim.content()
    assert after != before
    rng = np.random.default_rng(seed)
    hit: Counter[str] = Counter()
    for attempt in range(5 * n_kills):
        if hit.total() == n_kills:
            break
        again(victim)
        in_call = attempt % 2 == 0
        if in_call:
            moment: dict[str, Any] = {"at_call": int(rng.integers(1, n_calls + 1))}
        else:
            moment = {"after": rng.uniform(0, seconds)}
        code, _ = forks.run(victim.words(), **moment)
        victim.check(victim.content(), before, after)
        if code == -signal.SIGKILL:
            hit[f"{'in a call' if in_call else 'by time'}: {state(victim)}"] += 1
        assert forks.run(victim.words())[0] == 0, "the next run must go through"
        assert victim.content() == after, "and give what an uninterrupted run gives"
        litter = {path.name for path in victim.folder.iterdir()} - after.keys()
        assert not litter, "and clear away what the killed one left"
    return hit


@pytest.mark.parametrize("kind", [Fit, Report, Train, Download])
def test_killed_at_any_moment(kind: type[Victim], tmp_path: Path) -> None:
    victim = kind(tmp_path)
    n_kills = KILLS // 4
    try:
        with slow_server(victim):
            hit = kill(victim, n_kills, seed=KILLS)
    finally:
        victim.forks.close()
    assert hit.total() == n_kills
    sys.stdout.write(f"\n{n_kills} kills of {kind.__name__}, by moment and by what was there afterwards:\n")
    sys.stdout.writelines(f"{count:4d}  {phase}\n" for phase, count in hit.most_common())
