"""kill -9 at random moments of a report and a fit.

Moments are drawn over the time that a whole run takes and over its calls of the system (write, fsync, rename)
from the first draft of a file on. ``HETCAL_FAULTS`` is the number of kills, both together; a hundred
in ``make faults``.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetcal

KILLS = int(os.environ.get("HETCAL_FAULTS", "4"))
PAGE = "html" if KILLS >= 100 else "md"  # drawing the page takes seconds

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd")


class Forks:
    """Processes that begin with everything imported."""

    def __init__(self, *modules: str) -> None:
        source = os.pathsep.join(sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(Path(__file__).with_name("forks.py")), *modules],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
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


def again(victim: Victim) -> dict[str, Any]:
    shutil.rmtree(victim.folder, ignore_errors=True)
    shutil.copytree(victim.start, victim.folder)
    return victim.content()


def state(victim: Victim) -> str:
    """What a killed process left: names without what differs from run to run."""
    found = []
    for path in victim.folder.rglob("*"):
        draft = re.sub(r"^\.(.*?)(\.[0-9a-f]{16})?\.part$", r"draft of \1", path.name)
        empty = path.is_file() and not path.stat().st_size
        found.append(f"empty {draft}" if empty else draft)
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


@pytest.mark.parametrize("kind", [Fit, Report])
def test_killed_at_any_moment(kind: type[Victim], tmp_path: Path) -> None:
    victim = kind(tmp_path)
    n_kills = KILLS // 2
    try:
        hit = kill(victim, n_kills, seed=KILLS)
    finally:
        victim.forks.close()
    assert hit.total() == n_kills
    sys.stdout.write(f"\n{n_kills} kills of {kind.__name__}, by moment and by what was there afterwards:\n")
    sys.stdout.writelines(f"{count:4d}  {phase}\n" for phase, count in hit.most_common())
