"""SIGKILL at random moments of `hetcal fit` and `hetcal report`.

Half of the moments are drawn from the duration of a complete run, the others from its system calls (write,
fsync, rename, ...) after the first temporary file is opened. ``HETCAL_FAULTS`` sets the total number of
kills; ``make faults`` sets it to 100.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetcal

N_KILLS = int(os.environ.get("HETCAL_FAULTS", "4"))
FORMAT = "html" if N_KILLS >= 100 else "md"  # the charts of the HTML report take seconds
MODULES = ("hetcal.cli", "hetcal.calibrators", "hetcal.report")
CHARTS = ("altair", "vl_convert", "jinja2")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd")


class ForkServer:
    """Client of fork_server.py."""

    def __init__(self) -> None:
        modules = (*MODULES, *(CHARTS if FORMAT == "html" else ()))
        path = os.pathsep.join(sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(Path(__file__).with_name("fork_server.py")), *modules],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip

    def _ask(self, text: str) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def run(
        self,
        arguments: list[str],
        *,
        after: float = 600,
        at_call: int | None = None,
        tally: Path | None = None,
    ) -> tuple[int, float]:
        """Run a command, kill it after a time or at a system call; return its exit code and duration."""
        child = os.pidfd_open(self._ask(json.dumps([arguments, at_call, str(tally)])))
        start = time.monotonic()
        try:
            select.select([child], [], [], after)
            signal.pidfd_send_signal(child, signal.SIGKILL)
            return self._ask(""), time.monotonic() - start
        finally:
            os.close(child)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


class Command:
    """A command that replaces the file `output`, which initially contains `before`."""

    def __init__(self, folder: Path, kind: str) -> None:
        rng = np.random.default_rng(5)
        z = rng.normal(size=(80, 2)) * 3
        y = np.where(rng.random(80) < 0.75, z.argmax(1), rng.integers(0, 2, 80))
        logits = folder / "logits.npz"
        np.savez(logits, val_logits=z[:40], val_labels=y[:40], test_logits=z[40:], test_labels=y[40:])
        hetcal.save(hetcal.Identity().fit(z, y), folder / "before.json")
        self.kind = kind
        self.before = (folder / "before.json").read_bytes()
        self.output = folder / "output" / "result"
        options = ["-m", "cts"] if kind == "fit" else ["--format", FORMAT]
        self.arguments = [kind, str(logits), *options, "-o", str(self.output)]

    def reset(self) -> None:
        shutil.rmtree(self.output.parent, ignore_errors=True)
        self.output.parent.mkdir()
        self.output.write_bytes(self.before)

    def leftovers(self) -> list[str]:
        """Names in the output folder other than the output, without their random part."""
        names = [path.name for path in self.output.parent.iterdir() if path != self.output]
        return sorted(re.sub(r"^\.(.*?)(\.[0-9a-f]{16})?\.part$", r"draft of \1", name) for name in names)


def kill_repeatedly(server: ForkServer, command: Command, n_kills: int, folder: Path) -> Counter[str]:
    """Kill the command `n_kills` times and check the output after each; count what was left behind."""
    command.reset()
    code, seconds = server.run(command.arguments, at_call=0, tally=folder / "tally")
    assert code == 0
    n_calls = int((folder / "tally").read_text())
    after = command.output.read_bytes()
    assert after != command.before
    rng = np.random.default_rng(n_kills)
    outcomes: Counter[str] = Counter()
    for attempt in range(5 * n_kills):
        if outcomes.total() == n_kills:
            break
        command.reset()
        at_call = attempt % 2 == 0
        moment: dict[str, Any] = (
            {"at_call": int(rng.integers(1, n_calls + 1))} if at_call else {"after": rng.uniform(0, seconds)}
        )
        code, _ = server.run(command.arguments, **moment)
        content = command.output.read_bytes()
        assert content in (command.before, after), "the output must be the old or the new file"
        if code == -signal.SIGKILL:
            left = ", ".join(["old file" if content == command.before else "new file", *command.leftovers()])
            outcomes[f"{'at a system call' if at_call else 'at a random time'}: {left}"] += 1
        assert server.run(command.arguments)[0] == 0, "the next run must succeed"
        assert command.output.read_bytes() == after, "the next run must give the complete result"
        assert not command.leftovers(), "the next run must remove leftover files"
    return outcomes


@pytest.mark.parametrize("kind", ["fit", "report"])
def test_a_killed_command_leaves_the_old_or_the_new_file(
    kind: str, server: ForkServer, tmp_path: Path
) -> None:
    command = Command(tmp_path, kind)
    n_kills = N_KILLS // 2
    outcomes = kill_repeatedly(server, command, n_kills, tmp_path)
    assert outcomes.total() == n_kills
    if kind == "fit":
        hetcal.load(command.output)
    sys.stdout.write(f"\n{n_kills} kills of hetcal {kind}:\n")
    sys.stdout.writelines(f"{count:4d}  {outcome}\n" for outcome, count in outcomes.most_common())
