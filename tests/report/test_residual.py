from __future__ import annotations

import numpy as np
import pytest

from hetcal.metrics.binning import Cells
from hetcal.report.residual import find_deviations


def make_cells(gaps: list[float], count: list[float] | float = 1000.0) -> Cells:
    """Cells of two classes with these gaps in every bin; the confidence is the centre of the bin."""
    n = np.broadcast_to(np.asarray(count, float), (2, len(gaps)))
    confidence = n * (np.arange(len(gaps)) + 0.5) / len(gaps)
    return Cells(n, confidence, confidence - n * np.array(gaps))


def test_neighbours_of_one_sign_are_joined() -> None:
    first, second = find_deviations(make_cells([0.05, 0.1, -0.1, 0.0, 0.0]), 0.05)
    assert (first.low, first.high, first.n) == (0, 0.4, 4000)
    assert first.gap == pytest.approx(0.075)
    assert (second.low, second.high, second.n) == (0.4, pytest.approx(0.6), 2000)
    assert second.gap == pytest.approx(-0.1)


def test_ranges_skip_empty_bins() -> None:
    (deviation,) = find_deviations(make_cells([0.1, 0.1, 0.1, 0.0], [500, 0, 500, 0]), 0.05)
    assert (deviation.low, deviation.high, deviation.n) == (0, 0.75, 2000)


@pytest.mark.parametrize(
    ("gap", "count"),
    [(0.05, 20), (0.005, 1e6)],  # may be chance; significant but tiny
)
def test_small_deviations_are_left_out(gap: float, count: float) -> None:
    assert find_deviations(make_cells([gap, gap], count), 0.05) == ()


def test_calibrated_rows_have_few_deviations() -> None:
    """Ranges are chosen by sign, so at level 0.05 chance lists about 8% of them."""
    rng = np.random.default_rng(0)
    centre = (np.arange(15) + 0.5) / 15
    count = np.full((1, 15), 200.0)
    listed = 0
    for _ in range(200):
        correct = rng.binomial(200, centre)[None].astype(float)
        listed += len(find_deviations(Cells(count, count * centre, correct), 0.05))
    assert listed < 0.11 * 200 * 8  # about eight ranges per sample
