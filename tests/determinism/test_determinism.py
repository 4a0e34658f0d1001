"""The same rows and seeds give the same numbers, however many cores there are; see docs/determinism.md."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import hetcal

pytest.importorskip("numba")

Found = dict[str, NDArray[np.float64]]
THREADS = (
    "HETCAL_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


def found_with(n_threads: int, folder: Path) -> Found:
    target = folder / f"{n_threads}.npz"
    environment = {**os.environ, "PYTHONPATH": str(Path(hetcal.__file__).parents[1])}
    environment |= dict.fromkeys(THREADS, str(n_threads))
    script = str(Path(__file__).with_name("results.py"))
    subprocess.run([sys.executable, script, str(target)], env=environment, check=True)
    with np.load(target) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def one_thread(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return found_with(1, tmp_path_factory.mktemp("found"))


def test_the_number_of_threads_changes_no_bit(one_thread: Found, tmp_path: Path) -> None:
    two = found_with(2, tmp_path)
    assert len(one_thread) > 40
    assert min(values.size for values in one_thread.values()) >= 10
    assert [n for n in one_thread if not np.array_equal(one_thread[n], two[n], equal_nan=True)] == []


def test_compiled_passes_agree_with_those_of_numpy(one_thread: Found) -> None:
    """To what float32 logits allow: other sums in another order."""
    pairs = {n.replace("compiled/", "numpy/"): n for n in one_thread if n.startswith("compiled/")}
    assert len(pairs) > 15
    for plain, compiled in pairs.items():
        np.testing.assert_allclose(one_thread[compiled], one_thread[plain], rtol=0, atol=2e-6, err_msg=plain)
