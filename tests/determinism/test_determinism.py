"""Results do not depend on the number of threads; see docs/determinism.md."""

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

Results = dict[str, NDArray[np.float64]]
THREADS = (
    "HETCAL_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


def results_with(n_threads: int, folder: Path) -> Results:
    target = folder / f"{n_threads}.npz"
    environment = {**os.environ, "PYTHONPATH": str(Path(hetcal.__file__).parents[1])}
    environment |= dict.fromkeys(THREADS, str(n_threads))
    script = str(Path(__file__).with_name("results.py"))
    subprocess.run([sys.executable, script, str(target)], env=environment, check=True)
    with np.load(target) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def one_thread(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return results_with(1, tmp_path_factory.mktemp("results"))


def test_results_are_bit_identical_for_any_number_of_threads(one_thread: Results, tmp_path: Path) -> None:
    two_threads = results_with(2, tmp_path)
    assert len(one_thread) > 40
    assert min(values.size for values in one_thread.values()) >= 10
    different = [
        name
        for name, values in one_thread.items()
        if not np.array_equal(values, two_threads[name], equal_nan=True)
    ]
    assert different == []


def test_compiled_code_agrees_with_numpy(one_thread: Results) -> None:
    """Up to the accuracy of float32 logits, since sums are taken in a different order."""
    names = [name.removeprefix("compiled/") for name in one_thread if name.startswith("compiled/")]
    assert len(names) > 15
    for name in names:
        compiled, numpy = one_thread[f"compiled/{name}"], one_thread[f"numpy/{name}"]
        np.testing.assert_allclose(compiled, numpy, rtol=0, atol=2e-6, err_msg=name)
