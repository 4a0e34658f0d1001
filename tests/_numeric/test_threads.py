"""The limit on BLAS threads is lifted when the last of several overlapping calls ends."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import threading
from hetcal._numeric import threads
from hetcal._numeric.threads import one_blas_thread

def blas_threads():
    return [part["num_threads"] for part in threads._blas().info() if part["user_api"] == "blas"]

before = blas_threads()
if max(before, default=1) > 1:
    inside, done = threading.Event(), threading.Event()

    def hold():
        with one_blas_thread():
            inside.set()
            done.wait(10)

    other = threading.Thread(target=hold)
    with one_blas_thread():
        other.start()
        assert inside.wait(10)
    assert set(blas_threads()) == {1}, "the other thread still needs the limit"
    done.set()
    other.join()
    assert blas_threads() == before, "the last call lifts the limit"
    with one_blas_thread():
        assert set(blas_threads()) == {1}, "a later call sets the limit again"
    assert blas_threads() == before
"""


def test_overlapping_limits_restore_the_number_of_threads():
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert process.returncode == 0, process.stderr
