from __future__ import annotations

import numpy as np
import pytest

from hetcal.metrics.reliability import TopLabel, bin_index
from hetcal.metrics.subcells import SubBins, parts, sub_cells

BINS = [(1, 64), (2, 64), (15, 64), (15, 8), (15, 1), (100, 64), (1000, 64), (50_000, 64)]


def awkward(bins: SubBins, dtype: type) -> np.ndarray:
    """Confidences everywhere, near 1 above all, on edges and beside them."""
    rng = np.random.default_rng(0)
    edges = bins.edges(np.dtype(dtype))
    beside = [np.nextafter(edges, dtype(0)), np.nextafter(edges, dtype(1))]
    spread = [rng.random(5000), 1 - 10 ** rng.uniform(-9, 0, 5000), np.arange(8193) / 8192]
    return np.concatenate([*spread, edges, *beside]).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n_bins", "finest"), BINS)
def test_sub_bins_are_found_as_by_a_search_and_lie_inside_their_bin(
    n_bins: int, finest: int, dtype: type
) -> None:
    bins = SubBins(n_bins, finest)
    confidence = awkward(bins, dtype)
    found = bins.index(confidence)
    assert np.array_equal(found, np.searchsorted(bins.edges(np.dtype(dtype))[1:-1], confidence, side="left"))
    inside = np.searchsorted(bins.first, found, side="right") - 1
    assert np.array_equal(inside, bin_index(confidence, n_bins=n_bins))


def test_two_bins_by_hand() -> None:
    bins = SubBins(2, 4)  # θ in eighths of π: half of them below p = 1/2
    assert bins.pieces.tolist() == [2, 2]
    assert bins.edges(np.dtype(np.float64)) == pytest.approx([0, np.sin(np.pi / 8) ** 2, 0.5, 0.853553, 1])
    assert bins.index(np.array([0.0, 0.1464, 0.1465, 0.5, 0.51, 0.86, 1.0])).tolist() == [0, 0, 1, 1, 2, 3, 3]
    assert bins.merged(np.array([[1, 2, 3, 4]])).tolist() == [[3, 7]]


@pytest.mark.parametrize(("n_bins", "finest"), BINS[:3])
def test_variance_of_a_binomial_is_off_by_no_more_than_was_promised(n_bins: int, finest: int) -> None:
    bins, rng = SubBins(n_bins, finest), np.random.default_rng(0)
    edges = bins.edges(np.dtype(np.float64))
    low, high = edges[:-1], edges[1:]
    share = rng.random((500, 1)) ** 3  # rows at both ends of the sub-bin are the worst there can be
    mean = low + share * (high - low)
    binomial, rows = mean * (1 - mean), (1 - share) * low * (1 - low) + share * high * (1 - high)
    assert (binomial >= rows).all()
    assert ((binomial - rows) / binomial).max() < 6.1e-4


def test_rows_are_counted_by_class_and_sub_bin() -> None:
    rng, bins = np.random.default_rng(1), SubBins(15)
    top = TopLabel(rng.random(150_000), rng.integers(3, size=150_000), np.ones(150_000, bool), 4)
    found = sub_cells(top, bins)
    for k in range(4):
        rows = top.confidence[top.predicted == k]
        assert found.count[k].tolist() == np.bincount(bins.index(rows), minlength=bins.size).tolist()
        assert found.confidence[k] == pytest.approx(
            np.bincount(bins.index(rows), weights=rows, minlength=bins.size)
        )


def test_parts_cover_everything_once() -> None:
    assert list(parts(7, 3)) == [(0, 3), (3, 6), (6, 7)]
    assert list(parts(0, 3)) == []
