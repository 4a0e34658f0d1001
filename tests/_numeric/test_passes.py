"""Passes over logits agree with naive implementations for every chunk size."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, log_softmax, logit, logsumexp, softmax

from hetcal._numeric import passes as kernels
from hetcal._numeric import rows as rows_module
from hetcal._numeric.passes import (
    flat_rows,
    nll_pass,
    scaled_softmax,
    slope_pass,
    spread,
    sum_slices,
    tempered_nll,
    top_margin,
)
from hetcal._numeric.probabilities import keep_decision
from hetcal._numeric.rows import prepare

LOOSE = {np.float32: {"rtol": 3e-5, "atol": 1e-4}, np.float64: {"rtol": 1e-11, "atol": 1e-11}}


def naive(z, y, w, ids, alpha):
    """Loss, slope and curvature of every slice, computed from their definitions in float64."""
    z = z.astype(np.float64)
    a = alpha[ids][:, None]
    log_p = log_softmax(a * z, axis=1)
    p = np.exp(log_p)
    index = np.arange(len(z))
    mean = (p * z).sum(axis=1)
    rows = (
        -log_p[index, y],
        mean - z[index, y],
        (p * (z - mean[:, None]) ** 2).sum(axis=1),
    )
    return [np.bincount(ids, w * r, len(alpha)) for r in rows]


@pytest.fixture(params=[np.float32, np.float64])
def case(request):
    rng = np.random.default_rng(0)
    n, n_classes, n_slices = 137, 6, 4
    z = (3 * rng.normal(size=(n, n_classes))).astype(request.param)
    y = rng.integers(0, n_classes, size=n)
    w = rng.uniform(0.5, 2, size=n)
    ids = rng.integers(0, n_slices - 1, size=n)  # the last slice is empty
    return z, y, w, ids, np.array([0.1, 0.7, 2.5, 1.0])


# Elements per chunk: part of a row, one row, a few rows, all rows, all but one row, more than all rows.
@pytest.mark.parametrize("chunk", [1, 6, 20, 137 * 6, 136 * 6, 1 << 17])
def test_nll_pass_agrees_with_naive_sums(case, monkeypatch, chunk):
    z, y, w, ids, alpha = case
    monkeypatch.setattr(kernels, "_CHUNK", chunk)
    ours = nll_pass(prepare(z, y, w), ids, alpha)
    for a, b in zip(ours, naive(z, y, w, ids, alpha), strict=True):
        np.testing.assert_allclose(a, b, **LOOSE[z.dtype.type])
        assert a.dtype == np.float64
        assert a[-1] == 0


@pytest.mark.parametrize("chunk", [6, 25, 1 << 17])
def test_nll_pass_uses_only_the_given_rows(case, monkeypatch, chunk):
    z, y, w, ids, alpha = case
    monkeypatch.setattr(kernels, "_CHUNK", chunk)
    index = np.flatnonzero(np.random.default_rng(1).random(len(z)) < 0.4)
    ours = nll_pass(prepare(z, y, w), ids, alpha, index)
    for a, b in zip(ours, naive(z[index], y[index], w[index], ids[index], alpha), strict=True):
        np.testing.assert_allclose(a, b, **LOOSE[z.dtype.type])


def test_nll_pass_of_no_rows(case):
    z, y, w, ids, alpha = case
    for sums in nll_pass(prepare(z, y, w), ids, alpha, np.array([], np.int64)):
        assert not sums.any()


@pytest.mark.parametrize("chunk", [20, 1 << 17])
def test_cached_distances_give_identical_results(case, monkeypatch, chunk):
    z, y, w, ids, alpha = case
    z[0, 1:] = -np.finfo(z.dtype).max / 2  # a mask, which is replaced by a smaller distance
    monkeypatch.setattr(kernels, "_CHUNK", chunk)
    active = np.array([True, False, True, True])
    results = []
    for large in (1 << 60, 0):
        monkeypatch.setattr(rows_module, "LARGE", large)
        rows = prepare(z, y, w)
        before = rows.below_top(slice(None)).copy()
        results.append([
            *slope_pass(rows, ids, alpha, np.ones(4, bool)),
            *slope_pass(rows, ids, alpha, active),
            *nll_pass(rows, ids, alpha),
            tempered_nll(rows, alpha[ids]),
        ])  # fmt: skip
        np.testing.assert_array_equal(rows.below_top(slice(None)), before)
        assert ("_below" in vars(rows)) == (large > 0)
    for cached, computed in zip(*results, strict=True):
        np.testing.assert_array_equal(cached, computed)
    empty = prepare(z[:0], y[:0], None)
    assert [sums.tolist() for sums in slope_pass(empty, ids[:0], alpha, active)] == [[0.0] * 4] * 3


def test_derivatives_are_those_of_the_loss(case):
    z, y, w, ids, alpha = case
    rows = prepare(z.astype(np.float64), y, w)
    h = 1e-5
    _, slope, bend = nll_pass(rows, ids, alpha)
    up, down = nll_pass(rows, ids, alpha + h), nll_pass(rows, ids, alpha - h)
    np.testing.assert_allclose((up[0] - down[0]) / (2 * h), slope, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose((up[1] - down[1]) / (2 * h), bend, rtol=1e-6, atol=1e-6)
    assert np.all(bend >= 0)


@pytest.mark.parametrize("chunk", [6, 25, 1 << 17])
def test_tempered_nll(case, monkeypatch, chunk):
    z, y, w, ids, alpha = case
    monkeypatch.setattr(kernels, "_CHUNK", chunk)
    u = z.astype(float) * alpha[ids][:, None]
    expected = logsumexp(u, axis=1) - u[np.arange(len(y)), y]
    np.testing.assert_allclose(tempered_nll(prepare(z, y, w), alpha[ids]), expected, **LOOSE[z.dtype.type])


@pytest.mark.parametrize("chunk", [1, 6, 25, 1 << 17])
def test_scaled_softmax(case, monkeypatch, chunk):
    z, _, _, ids, alpha = case
    monkeypatch.setattr(kernels, "_CHUNK", chunk)
    p = scaled_softmax(z, alpha[ids])
    assert p.dtype == z.dtype
    np.testing.assert_allclose(
        p, softmax(z.astype(float) * alpha[ids][:, None], axis=1), **LOOSE[z.dtype.type]
    )


@pytest.mark.parametrize("chunk", [1, 6, 25, 1 << 17])
def test_top_margin(case, monkeypatch, chunk):
    z = case[0]
    monkeypatch.setattr(kernels, "_CHUNK", chunk)
    margin, guess = top_margin(z)
    np.testing.assert_array_equal(guess, z.argmax(axis=1))
    np.testing.assert_allclose(
        expit(margin), softmax(z.astype(float), axis=1).max(axis=1), **LOOSE[z.dtype.type]
    )


def test_top_margin_if_confidence_rounds_to_one():
    z = np.array([[800.0, 0.0, 0.0], [0.0, 0.0, 1e4]])
    np.testing.assert_allclose(top_margin(z)[0], [800 - np.log(2), 1e4 - np.log(2)])
    np.testing.assert_allclose(top_margin(np.array([[1.0, 1.0, 1.0]]))[0], -np.log(2))


@pytest.mark.parametrize("chunk", [1, 6, 25, 1 << 17])
def test_spread_sets_the_confidence_and_keeps_the_other_proportions(case, monkeypatch, chunk):
    z = case[0]
    monkeypatch.setattr(kernels, "_CHUNK", chunk)
    confidence = np.random.default_rng(0).uniform(0.5, 1, size=len(z))
    p = spread(z, confidence)
    np.testing.assert_allclose(p.max(axis=1), confidence, rtol=1e-6)
    np.testing.assert_array_equal(p.argmax(axis=1), z.argmax(axis=1))
    q = softmax(z.astype(float), axis=1)
    is_other = np.arange(6) != z.argmax(axis=1)[:, None]
    spread_rest, softmax_rest = (a[is_other].reshape(len(z), 5) for a in (p, q))
    np.testing.assert_allclose(
        spread_rest / spread_rest.sum(axis=1, keepdims=True),
        softmax_rest / softmax_rest.sum(axis=1, keepdims=True),
        rtol=1e-3,
    )


def test_spread_mixes_with_uniform_as_little_as_necessary():
    z = np.array([[2.0, 1.9, -3.0]])
    p = spread(z, np.array([0.4]))  # the second class would receive nearly all of the remaining 0.6
    np.testing.assert_allclose(p, [[0.4, 0.4, 0.2]], atol=1e-12)
    assert p.argmax() == 0
    # The top probability cannot be below 1/K.
    np.testing.assert_allclose(spread(z, np.array([0.1])), np.full((1, 3), 1 / 3), atol=1e-12)
    assert spread(z, np.array([0.1])).argmax() == 0
    np.testing.assert_allclose(spread(z, np.array([1.0])), [[1, 0, 0]])
    np.testing.assert_allclose(spread(np.array([[0.0, 2.0]]), np.array([0.2])), [[0.5, 0.5]])
    assert spread(np.array([[0.0, 2.0]]), np.array([0.2])).argmax() == 1


def test_keep_decision_moves_one_unit_in_the_last_place():
    p = np.array([[0.4, 0.4, 0.2], [0.4, 0.4, 0.2]])
    adjusted = keep_decision(p.copy(), np.array([0, 1]))
    np.testing.assert_array_equal(adjusted[0], p[0])
    assert adjusted[1, 1] == np.nextafter(0.4, 1)
    np.testing.assert_array_equal(adjusted[1, [0, 2]], p[1, [0, 2]])


def test_prepare_drops_rows_of_weight_zero():
    z = np.array([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 5.0]])
    rows = prepare(z, np.array([1, 0, 0]), np.array([0.0, 2.0, 1.0]))
    assert len(rows) == 2
    np.testing.assert_array_equal(rows.z, z[1:])
    np.testing.assert_array_equal(rows.y, [0, 0])
    np.testing.assert_array_equal(rows.top, [3, 5])
    np.testing.assert_array_equal(rows.guess, [0, 2])
    np.testing.assert_array_equal(rows.d_true, [0, -5])
    np.testing.assert_array_equal(rows.right, [True, False])
    np.testing.assert_array_equal(rows.weight, [2, 1])
    np.testing.assert_array_equal(prepare(z, np.array([1, 0, 0]), None).weight, 1)


@pytest.mark.parametrize("chunk", [1, 3, 7, 1 << 17])
def test_flat_rows(monkeypatch, chunk):
    monkeypatch.setattr(kernels, "_CHUNK", chunk)
    z = np.array([[1.0, 1.0, 1.0], [1.0, 1.0, 2.0], [0.0, 0.0, 0.0], [3.0, 1.0, 2.0]])
    rows = prepare(z, np.zeros(4, np.int64), None)
    np.testing.assert_array_equal(flat_rows(rows, np.arange(4)), [True, False, True, False])
    np.testing.assert_array_equal(flat_rows(rows, np.array([2, 1])), [True, False])


def test_sum_slices():
    np.testing.assert_array_equal(sum_slices(np.array([0, 2, 0]), np.array([1, 5, 2]), 4), [3, 0, 5, 0])
    assert sum_slices(np.array([], np.int64), np.array([]), 2).dtype == np.float64


def test_float32_logits_are_summed_in_float64():
    # For a million rows, the error of sums in float32 would be far above the tolerance.
    z = np.tile(np.float32([[1.0, 0.0]]), (1_000_000, 1))
    loss, slope, bend = nll_pass(
        prepare(z, np.zeros(len(z), np.int64), None), np.zeros(len(z), np.int64), np.ones(1)
    )
    p = expit(-1.0)
    np.testing.assert_allclose(
        [loss[0], -slope[0], bend[0]], 1e6 * np.array([-np.log1p(-p), p, p * (1 - p)]), rtol=1e-6
    )
    assert logit(p) == pytest.approx(-1)
