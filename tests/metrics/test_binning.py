from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hetcal.metrics import reliability_by_class, reliability_curve
from hetcal.metrics.binning import (
    FineBins,
    TopLabel,
    bin_edges,
    bin_index,
    calibration_error,
    cells,
    check_binning,
    chunk_ranges,
    fine_cells,
    reduce_to_top_label,
)

UNIT = st.floats(0, 1, width=32)
# One bin, several bins, bins that are not subdivided, and too many bins for the lookup table.
FINE_BINS = [(1, 64), (15, 64), (15, 1), (100, 64), (50_000, 64)]


def top1(n: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.random(n), rng.integers(k, size=n), rng.integers(k, size=n)


# --- bins of equal width ---------------------------------------------------------------------------------


def test_bins_are_open_below_and_closed_above() -> None:
    confidence = np.array([0.0, 1e-12, 0.2, 0.2000001, 0.4, 1.0])
    assert bin_index(confidence, n_bins=5).tolist() == [0, 0, 0, 1, 1, 4]


def test_007_with_100_bins_lands_in_bin_6() -> None:
    assert 0.07 * 100 > 7  # the product rounds up, so ceil() would give bin 7
    assert bin_index(np.array([0.07]), n_bins=100)[0] == 6


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_width_bins_agree_with_a_search(dtype: type) -> None:
    drawn = np.random.default_rng(0).random(2000).astype(dtype)
    for n_bins in (1, 3, 15, 49, 100, 1000, 1024, 1025, 5000):
        edges = np.arange(n_bins + 1, dtype=dtype) / dtype(n_bins)
        near = np.concatenate([edges, np.nextafter(edges, dtype(0)), np.nextafter(edges, dtype(2)), drawn])
        assert np.array_equal(bin_index(near, n_bins=n_bins), np.searchsorted(edges[1:-1], near, side="left"))


def test_float32_06_lands_below_the_edge() -> None:
    for dtype in (np.float32, np.float64):
        assert bin_index(np.array([0.6], dtype=dtype), n_bins=10)[0] == 5
        assert bin_index(np.array([0.6], dtype=dtype), n_bins=15)[0] == 8


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_edge_is_exact(dtype: type) -> None:
    for n_bins in range(1, 120):
        edges = np.array([i / n_bins for i in range(n_bins + 1)], dtype=dtype)
        assert bin_index(edges, n_bins=n_bins).tolist() == [0, *range(n_bins)]
        above = np.nextafter(edges[:-1], dtype(2))
        assert bin_index(above, n_bins=n_bins).tolist() == list(range(n_bins))


@given(hnp.arrays(np.float32, st.integers(1, 30), elements=UNIT), st.integers(1, 40))
def test_width_bins_contain_their_rows(confidence: np.ndarray, n_bins: int) -> None:
    index = bin_index(confidence, n_bins=n_bins)
    edges = (np.arange(n_bins + 1) / n_bins).astype(np.float32)
    assert np.all((confidence > edges[index]) | (index == 0))
    assert np.all(confidence <= edges[index + 1])


# --- bins of equal mass ----------------------------------------------------------------------------------


def test_mass_bins_by_hand() -> None:
    confidence = np.array([0.9, 0.1, 0.5, 0.5, 0.5, 0.8])
    # ranks 0 | 1 1 1 | 4 5, times 3 over 6
    assert bin_index(confidence, n_bins=3, binning="mass").tolist() == [2, 0, 0, 0, 0, 2]
    assert bin_edges(confidence, n_bins=3, binning="mass").tolist() == [0, 0.5, 0.5, 1.0]


def test_mass_bins_have_equal_counts_without_ties() -> None:
    confidence = np.random.default_rng(0).permutation(np.linspace(0, 1, 150))
    assert np.bincount(bin_index(confidence, n_bins=15, binning="mass")).tolist() == [10] * 15


@given(
    hnp.arrays(np.float64, st.integers(1, 40), elements=st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9, 1.0])),
    st.integers(1, 8),
)
def test_mass_bins_keep_ties_together_and_fit_their_edges(confidence: np.ndarray, n_bins: int) -> None:
    index = bin_index(confidence, n_bins=n_bins, binning="mass")
    for value in np.unique(confidence):
        assert len(set(index[confidence == value])) == 1
    edges = bin_edges(confidence, n_bins=n_bins, binning="mass")
    assert np.all(np.diff(edges) >= 0)
    assert np.all((confidence > edges[index]) | (index == 0))
    assert np.all(confidence <= edges[index + 1])


def test_mass_bins_rank_within_each_slice() -> None:
    confidence, slices, _ = top1(500, 4, 0)
    together = bin_index(confidence, n_bins=7, binning="mass", slices=slices)
    for k in range(4):
        separate = bin_index(confidence[slices == k], n_bins=7, binning="mass")
        assert np.array_equal(together[slices == k], separate)


# --- cells and curves ------------------------------------------------------------------------------------


def test_cells_agree_with_a_loop() -> None:
    confidence, predicted, labels = top1(300, 5, 1)
    table = cells(confidence, predicted == labels, slices=predicted, n_slices=5, n_bins=6)
    for k in range(5):
        for b in range(6):
            rows = (predicted == k) & (confidence > b / 6) & (confidence <= (b + 1) / 6)
            assert table.count[k, b] == rows.sum()
            assert table.confidence[k, b] == pytest.approx(confidence[rows].sum())
            assert table.correct[k, b] == (labels[rows] == k).sum()
    all_classes = cells(confidence, predicted == labels, n_bins=6)
    assert np.allclose(table.merged().residual, all_classes.residual)


def test_calibration_error_by_hand() -> None:
    count, residual = np.array([[2.0, 2.0], [0.0, 0.0]]), np.array([[0.8, -0.4], [0.0, 0.0]])
    assert calibration_error(count, residual) == pytest.approx([0.3, np.nan], nan_ok=True)
    l2 = np.sqrt((0.4**2 + 0.2**2) / 2)
    assert calibration_error(count, residual, "l2") == pytest.approx([l2, np.nan], nan_ok=True)


def test_curve_by_hand() -> None:
    curve = reliability_curve([0.55, 0.65, 0.95, 1.0], [0, 1, 1, 1], predicted=[0, 0, 1, 1], n_bins=2)
    assert curve.edges.tolist() == [0, 0.5, 1]
    assert curve.count.tolist() == [0, 4]
    assert curve.confidence[1] == pytest.approx(0.7875)
    assert curve.accuracy[1] == pytest.approx(0.75)
    assert np.isnan(curve.gap[0])
    assert (curve.n, curve.mean_accuracy) == (4, 0.75)
    assert curve.ece == pytest.approx(0.0375)


def test_curve_does_not_depend_on_the_order_of_rows() -> None:
    confidence, predicted, labels = top1(400, 3, 2)
    order = np.random.default_rng(3).permutation(400)
    a = reliability_curve(confidence, labels, predicted=predicted)
    b = reliability_curve(confidence[order], labels[order], predicted=predicted[order])
    assert np.allclose(a.gap, b.gap, equal_nan=True)


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from(["width", "mass"]))
def test_curves_by_class_are_curves_of_the_rows_of_the_class(seed: int, binning: str) -> None:
    confidence, predicted, labels = top1(60, 3, seed)
    labels[0] = 3  # a class that is never predicted
    curves = reliability_by_class(confidence, labels, predicted=predicted, n_bins=4, binning=binning)
    assert len(curves) == 4
    assert curves[3].n == 0
    assert np.isnan([curves[3].ece, curves[3].mean_confidence, curves[3].mean_accuracy]).all()
    for k in set(predicted.tolist()):
        separate = reliability_curve(
            confidence, labels, predicted=predicted, n_bins=4, binning=binning, rows=predicted == k
        )
        assert np.allclose(curves[k].gap, separate.gap, equal_nan=True)
        assert np.array_equal(curves[k].edges, separate.edges)


def test_rows_may_be_numbers_or_a_mask() -> None:
    confidence, predicted, labels = top1(50, 3, 4)
    mask = confidence > 0.5
    a = reliability_curve(confidence, labels, predicted=predicted, rows=mask)
    b = reliability_curve(confidence, labels, predicted=predicted, rows=np.flatnonzero(mask))
    assert np.array_equal(a.count, b.count)


def test_curve_is_frozen_and_ready_for_json() -> None:
    curve = reliability_curve([0.9, 0.8], [0, 1], predicted=[0, 0], n_bins=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        curve.n_bins = 3  # type: ignore[attr-defined]
    record = json.loads(json.dumps(curve.to_dict(), allow_nan=False))
    assert record["confidence"] == [None, pytest.approx(0.85)]
    assert record["count"] == [0, 2]


def test_number_of_classes_is_that_of_the_columns_or_the_largest_class() -> None:
    assert reduce_to_top_label([[0.5, 0.3, 0.2]], [1]).n_classes == 3
    assert reduce_to_top_label([0.5, 0.6], [1, 6], [2, 0]).n_classes == 7


# --- fine bins -----------------------------------------------------------------------------------------


def confidences_near_edges(bins: FineBins, dtype: type) -> np.ndarray:
    """Confidences all over [0, 1], most of them near 1, on edges and next to edges."""
    rng = np.random.default_rng(0)
    edges = bins.edges(np.dtype(dtype))
    neighbours = [np.nextafter(edges, dtype(0)), np.nextafter(edges, dtype(1))]
    spread = [rng.random(5000), 1 - 10 ** rng.uniform(-9, 0, 5000), np.arange(8193) / 8192]
    return np.concatenate([*spread, edges, *neighbours]).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n_bins", "resolution"), FINE_BINS)
def test_fine_bins_agree_with_a_search_and_lie_inside_their_bin(
    n_bins: int, resolution: int, dtype: type
) -> None:
    bins = FineBins(n_bins, resolution)
    confidence = confidences_near_edges(bins, dtype)
    index = bins.index(confidence)
    assert np.array_equal(index, np.searchsorted(bins.edges(np.dtype(dtype))[1:-1], confidence, side="left"))
    inside = np.searchsorted(bins.first, index, side="right") - 1
    assert np.array_equal(inside, bin_index(confidence, n_bins=n_bins))


def test_fine_bins_by_hand() -> None:
    bins = FineBins(2, 4)  # θ in eighths of π: half of them below p = 1/2
    assert bins.pieces.tolist() == [2, 2]
    assert bins.edges(np.dtype(np.float64)) == pytest.approx([0, np.sin(np.pi / 8) ** 2, 0.5, 0.853553, 1])
    assert bins.index(np.array([0.0, 0.1464, 0.1465, 0.5, 0.51, 0.86, 1.0])).tolist() == [0, 0, 1, 1, 2, 3, 3]
    assert bins.merged(np.array([[1, 2, 3, 4]])).tolist() == [[3, 7]]


@pytest.mark.parametrize("n_bins", [1, 15])
def test_binomial_variance_is_at_most_006_percent_too_large(n_bins: int) -> None:
    bins, rng = FineBins(n_bins), np.random.default_rng(0)
    edges = bins.edges(np.dtype(np.float64))
    low, high = edges[:-1], edges[1:]
    share = rng.random((500, 1)) ** 3  # rows at both ends of the fine bin are the worst case
    mean = low + share * (high - low)
    binomial, rows = mean * (1 - mean), (1 - share) * low * (1 - low) + share * high * (1 - high)
    assert (binomial >= rows).all()
    assert ((binomial - rows) / binomial).max() < 6.1e-4


def test_rows_are_counted_by_class_and_fine_bin() -> None:
    rng, bins = np.random.default_rng(1), FineBins(15)
    top = TopLabel(rng.random(150_000), rng.integers(3, size=150_000), np.ones(150_000, bool), 4)
    table = fine_cells(top, bins)
    for k in range(4):
        rows = top.confidence[top.predicted == k]
        assert table.count[k].tolist() == np.bincount(bins.index(rows), minlength=bins.size).tolist()
        assert table.confidence[k] == pytest.approx(
            np.bincount(bins.index(rows), weights=rows, minlength=bins.size)
        )


def test_chunks_cover_everything_once() -> None:
    assert list(chunk_ranges(7, 3)) == [(0, 3), (3, 6), (6, 7)]
    assert list(chunk_ranges(0, 3)) == []


# --- errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_bins", [0, -1, 2.5, "10", None, True])
def test_n_bins_must_be_a_positive_integer(n_bins: object) -> None:
    with pytest.raises(ValueError, match="n_bins must"):
        check_binning(n_bins, "width")  # type: ignore[arg-type]


@pytest.mark.parametrize(("binning", "norm", "name"), [("equal", "l1", "binning"), ("mass", [], "norm")])
def test_options_must_be_known(binning: str, norm: object, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must"):
        check_binning(5, binning, norm)  # type: ignore[arg-type]


@pytest.mark.parametrize("curves", [reliability_curve, reliability_by_class])
def test_curves_validate_their_options(curves: Callable[..., object]) -> None:
    with pytest.raises(ValueError, match="n_bins"):
        curves([0.5], [0], predicted=[0], n_bins=0)


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([True], ValueError),
        ([[0]], ValueError),
        ([0.5, 1.0], TypeError),
        ([False, False], ValueError),
        (np.array([], dtype=int), ValueError),
        ([2], ValueError),
        ([-1], ValueError),
    ],
)
def test_rows_must_be_a_mask_or_row_numbers(rows: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="rows must"):
        reliability_curve([0.5, 0.6], [0, 0], predicted=[0, 0], rows=rows)  # type: ignore[arg-type]


def test_labels_that_are_not_class_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="labels and predicted must"):
        reduce_to_top_label([0.5], [20240101000000], [0])
