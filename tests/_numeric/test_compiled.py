"""Compiled passes agree with the NumPy passes, which have their own tests."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest

import hetcal
from hetcal._numeric import acceleration as fast
from hetcal._numeric import threads
from hetcal._numeric.label_models import NoisyLabels
from hetcal._numeric.passes import slope_pass, tempered_nll
from hetcal._numeric.rows import code_type, decide, prepare

pytest.importorskip("numba")

LOOSE = {np.float32: 2e-6, np.float64: 1e-12}


@pytest.fixture
def compiled(monkeypatch):
    """Use the compiled passes for arrays of any size, in many blocks."""
    monkeypatch.setattr(fast, "LARGE", 1)
    monkeypatch.setattr(threads, "_BLOCK", 500)


@pytest.fixture(params=[np.float32, np.float64])
def dtype(request):
    return request.param


def rows_of(n, k, dtype, seed=0, weighted=False):
    rng = np.random.default_rng(seed)
    z = (3 * rng.normal(size=(n, k))).astype(dtype)
    return prepare(z, rng.integers(0, k, size=n), rng.uniform(0.5, 2, size=n) if weighted else None)


def both(function, monkeypatch):
    """Results of a function with NumPy and with the compiled passes."""
    monkeypatch.setattr(fast, "LARGE", 1 << 60)
    with_numpy = function()
    monkeypatch.setattr(fast, "LARGE", 1)
    return with_numpy, function()


def noisy_rows_of(n, k, dtype):
    """Rows with noisy labels. Some labels are impossible for some classes, and some rows have a mask."""
    rng = np.random.default_rng(3)
    z = (3 * rng.normal(size=(n, k))).astype(dtype)
    z[: n // 4, 0] = -1e30
    rates = np.where(np.arange(k) < k / 2, 0.3, 0.0)
    transition = np.diag(1 - rates) + rates[:, None] / k
    labels = rng.integers(0, k, size=n)
    return prepare(z, labels, rng.uniform(0.5, 2, size=n), NoisyLabels(labels, transition))


@pytest.mark.parametrize(("n", "k"), [(300, 2), (333, 10), (90, 257)])
def test_noisy_labels(compiled, monkeypatch, dtype, n, k):
    rows = noisy_rows_of(n, k, dtype)
    alpha, active = np.random.default_rng(1).uniform(0.1, 3, size=k), np.ones(k, bool)
    with_numpy, with_numba = both(lambda: slope_pass(rows, rows.guess, alpha, active), monkeypatch)
    for a, b in zip(with_numba, with_numpy, strict=True):
        np.testing.assert_allclose(a, b, rtol=10 * LOOSE[dtype], atol=LOOSE[dtype] * n)
    with_numpy, with_numba = both(lambda: tempered_nll(rows, alpha[rows.guess]), monkeypatch)
    np.testing.assert_allclose(with_numba, with_numpy, rtol=10 * LOOSE[dtype], atol=10 * LOOSE[dtype])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("n", "k"), [(1, 2), (300, 2), (333, 10), (200, 63), (130, 64), (90, 257), (5, 3000)]
)
def test_slopes(compiled, monkeypatch, dtype, n, k, weighted):
    rows = rows_of(n, k, dtype, weighted=weighted)
    alpha = np.random.default_rng(1).uniform(0.1, 3, size=k)
    active = np.random.default_rng(2).random(k) < 0.7
    active[rows.guess[0]] = True
    with_numpy, with_numba = both(lambda: slope_pass(rows, rows.guess, alpha, active), monkeypatch)
    for a, b in zip(with_numba, with_numpy, strict=True):
        np.testing.assert_allclose(a, b, rtol=LOOSE[dtype], atol=LOOSE[dtype] * n)
        assert not a[~active].any()


@pytest.mark.parametrize("k", [3, 100])
def test_losses(compiled, monkeypatch, dtype, k):
    rows = rows_of(257, k, dtype)
    alpha = np.random.default_rng(1).uniform(0.01, 5, size=257)
    with_numpy, with_numba = both(lambda: tempered_nll(rows, alpha), monkeypatch)
    np.testing.assert_allclose(with_numba, with_numpy, rtol=LOOSE[dtype], atol=LOOSE[dtype])


@pytest.mark.parametrize("k", [5, 80])
def test_masks_and_ties(compiled, monkeypatch, dtype, k):
    rows = rows_of(64, k, dtype)
    z = rows.z.copy()
    z[:, 1] = np.finfo(dtype).min
    z[3] = 0
    z[4] = np.finfo(dtype).max / 2
    z[5, 2] = np.finfo(dtype).max
    y = np.arange(64) % k
    y[y == 1] = 0
    alpha, active = np.full(k, 0.8), np.ones(k, bool)

    def passes():
        rows_with_masks = prepare(z, y, None)
        return (
            *slope_pass(rows_with_masks, rows_with_masks.guess, alpha, active),
            tempered_nll(rows_with_masks, np.full(64, 0.8)),
        )

    with np.errstate(over="ignore"):
        with_numpy, with_numba = both(passes, monkeypatch)
    for a, b in zip(with_numba, with_numpy, strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_decisions_are_those_of_numpy(compiled, dtype):
    z = np.random.default_rng(0).integers(0, 4, size=(500, 7)).astype(dtype)  # many ties
    np.testing.assert_array_equal(decide(z), z.argmax(axis=1))


@pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")
@pytest.mark.parametrize("gamma", [np.inf, 0.2, "cv", "bayes"])
@pytest.mark.parametrize("k", [6, 70])
def test_same_temperatures(compiled, monkeypatch, make_sample, gamma, k, dtype):
    z, y, _ = make_sample(2000, k, 0, dtype=dtype)
    with_numpy, with_numba = both(
        lambda: hetcal.ClassWiseTemperatureScaling(gamma).fit(z, y).alpha_, monkeypatch
    )
    np.testing.assert_allclose(with_numba, with_numpy, rtol=2e-6 if dtype == np.float32 else 1e-8)


def test_same_vector_scaling(compiled, monkeypatch, make_sample, dtype):
    from hetcal.calibrators import affine

    monkeypatch.setattr(affine, "_suits_newton", lambda _: False)
    z, y, _ = make_sample(3000, 5, 0, dtype=dtype)
    with_numpy, with_numba = both(lambda: hetcal.VectorScaling().fit(z, y).predict_proba(z), monkeypatch)
    np.testing.assert_allclose(with_numba, with_numpy, atol=2e-4 if dtype == np.float32 else 2e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_platt_sums(compiled, monkeypatch, dtype, weighted):
    """Loss, gradient and Hessian agree, also for extreme log-odds and if only some slices are active."""
    from hetcal._numeric.families import PlattFamily

    rows = rows_of(700, 6, dtype, weighted=weighted)
    rows.z[:3, 0] = 1e6
    rows = prepare(rows.z, rows.y, rows.given_weight)
    ids = rows.guess.astype(np.int64)
    theta = np.random.default_rng(1).normal(size=(6, 2)) * 3
    active = np.array([0, 2, 5])
    with_numpy, with_numba = both(lambda: PlattFamily().evaluator(rows, ids, 6)(theta, active), monkeypatch)
    for a, b in zip(with_numba, with_numpy, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("gamma", [0.0, 0.3, np.inf, "bayes"])
def test_same_platt_scaling(compiled, monkeypatch, make_sample, gamma, dtype):
    z, y, _ = make_sample(3000, 5, 0, dtype=dtype)
    model = hetcal.ClassWise(hetcal.PlattScaling(), gamma)
    with_numpy, with_numba = both(lambda: model.fit(z, y).parameters_.copy(), monkeypatch)
    np.testing.assert_allclose(with_numba, with_numpy, rtol=1e-6, atol=1e-6)


def test_number_of_threads_changes_nothing(compiled, monkeypatch, make_sample):
    z, y, _ = make_sample(3000, 10, 0, dtype=np.float32)
    alphas = []
    for number in ("1", "2", "5"):
        monkeypatch.setenv("HETCAL_THREADS", number)
        alphas.append(hetcal.ClassWiseTemperatureScaling(0.3).fit(z, y).alpha_)
    np.testing.assert_array_equal(alphas[0], alphas[1])
    np.testing.assert_array_equal(alphas[0], alphas[2])


@pytest.mark.parametrize("text", ["0", "-1", "two"])
def test_bad_number_of_threads(monkeypatch, text):
    monkeypatch.setenv("HETCAL_THREADS", text)
    with pytest.raises(ValueError, match=rf"HETCAL_THREADS must .*got '{text}'"):
        threads.n_threads()


def test_small_problems_do_not_import_numba():
    code = """
        import sys, numpy as np, hetcal
        z = np.random.default_rng(0).normal(size=(5000, 100)).astype(np.float32)
        hetcal.ClassWiseTemperatureScaling().fit(z, z.argmax(1) * (np.arange(5000) % 3 > 0))
        assert "numba" not in sys.modules
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], check=True)


def test_numba_can_be_disabled(monkeypatch):
    monkeypatch.setenv("HETCAL_NUMBA", "off")
    assert fast.compiled_for(1 << 30) is None


def test_missing_numba_warns_once(monkeypatch):
    monkeypatch.setattr(fast, "_state", {"kernels": None, "reason": "No module named 'numba'"})
    with pytest.warns(hetcal.SpeedHint, match=r"No module named 'numba'.*pip install \"numba"):
        assert fast.compiled_for(1 << 26) is None
    assert fast.compiled_for(1 << 26) is None  # warns only once; another warning would be an error
    assert fast.compiled_for(1 << 23) is None


def test_threads_after_a_fork(compiled, make_sample):
    # The threads of a pool do not survive a fork, so a child process that waits for them would hang.
    code = """
        import os, sys, numpy as np, hetcal
        from hetcal._numeric import threads
        threads._BLOCK = 1000
        os.environ["HETCAL_THREADS"] = "2"
        z = np.random.default_rng(0).normal(size=(20000, 40)).astype(np.float32)
        y = np.random.default_rng(1).integers(0, 40, 20000)
        first = hetcal.Identity().fit(z, y).predict_proba(z)
        child = os.fork()
        if child == 0:
            same = np.array_equal(hetcal.Identity().fit(z, y).predict_proba(z), first)
            os._exit(0 if same else 1)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], check=True, timeout=60)


def test_code_type_is_the_smallest():
    assert code_type(10) is np.uint8
    assert code_type(255) is np.uint8
    assert code_type(256) is np.uint16
    assert code_type(70_000) is np.uint32
