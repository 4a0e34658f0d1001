"""Isotonic regression and histogram binning of the confidence."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.isotonic import IsotonicRegression

from hetcal import TopLabelHistogram, TopLabelIsotonic
from hetcal.metrics.binning import bin_edges, bin_index


def confidence_of(z):
    return softmax(z, axis=1).max(axis=1)


@pytest.mark.parametrize("weighted", [False, True])
def test_isotonic_agrees_with_scikit_learn(make_sample, weighted):
    z, y, _ = make_sample(800, 3, 0)
    is_distinct = np.r_[True, np.diff(np.sort(confidence_of(z))) > 1e-6]  # closer confidences are merged
    rows = np.argsort(confidence_of(z))[is_distinct]
    z, y = z[rows], y[rows]
    w = np.random.default_rng(0).uniform(0.1, 2, size=len(z)) if weighted else None
    cal = TopLabelIsotonic().fit(z, y, sample_weight=w)
    c, right = confidence_of(z), z.argmax(axis=1) == y
    peer = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(c, right, sample_weight=w)
    fresh, _, _ = make_sample(500, 3, 1)
    expected = np.maximum(peer.predict(confidence_of(fresh)), 1 / 3)
    np.testing.assert_allclose(cal.predict_proba(fresh).max(axis=1), expected, atol=1e-9)


def test_isotonic_distinguishes_very_confident_rows():
    rng = np.random.default_rng(0)
    margin = rng.uniform(5, 30, size=20_000)
    z = np.column_stack([margin, np.zeros(20_000)])
    y = (rng.random(20_000) > 0.6 + 0.39 * (margin - 5) / 25).astype(int)
    peer = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(confidence_of(z), y == 0)
    confidence = TopLabelIsotonic().fit(z, y).predict_proba(z)[:, 0]
    assert np.abs(confidence - np.maximum(peer.predict(confidence_of(z)), 0.5)).mean() < 2e-3


def test_isotonic_is_non_decreasing(make_sample):
    z, y, _ = make_sample(500, 4, 0)
    p = TopLabelIsotonic().fit(z, y).predict_proba(z).max(axis=1)
    assert np.all(np.diff(p[np.argsort(confidence_of(z))]) >= -1e-12)


@pytest.mark.parametrize("binning", ["mass", "width"])
@pytest.mark.parametrize("n_bins", [1, 4, 15])
def test_histogram_is_the_accuracy_of_each_bin(make_sample, binning, n_bins):
    z, y, _ = make_sample(600, 3, 0)
    c, right = confidence_of(z), z.argmax(axis=1) == y
    cal = TopLabelHistogram(n_bins=n_bins, binning=binning).fit(z, y)
    p = cal.predict_proba(z).max(axis=1)
    cell = bin_index(c, n_bins=n_bins, binning=binning)
    for b in np.unique(cell):
        np.testing.assert_allclose(p[cell == b], max(right[cell == b].mean(), 1 / 3), atol=1e-9)
    assert len(cal.values_) == len(cal.edges_) - 1


@pytest.mark.parametrize("n_bins", [1, 2, 5, 15, 100])
def test_bins_of_equal_mass_agree_with_the_metrics(make_sample, n_bins):
    z, y, _ = make_sample(600, 3, 0)
    z[::4] = z[0]  # many equal rows
    cal = TopLabelHistogram(n_bins=n_bins).fit(z, y)
    values = np.unique(confidence_of(z))
    expected = np.unique(bin_edges(confidence_of(z), n_bins=n_bins, binning="mass"))
    # The bins contain the same rows. Edges lie midway between neighbouring confidences.
    counts = [np.histogram(values, edges)[0] for edges in (cal.edges_, np.nextafter(expected, 2))]
    np.testing.assert_array_equal(*counts)
    assert all(np.abs(values - edge).min() > 1e-9 for edge in cal.edges_[1:-1])


def test_bins_of_equal_mass_use_weights():
    z = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 0.0]])
    y = np.array([0, 1, 0, 0])
    edges = TopLabelHistogram(n_bins=2).fit(z, y).edges_
    assert edges[1] == pytest.approx(confidence_of(z)[1:3].mean())  # two rows per bin
    edges = TopLabelHistogram(n_bins=2).fit(z, y, sample_weight=[3, 1, 1, 1]).edges_
    assert edges[1] == pytest.approx(confidence_of(z)[:2].mean())  # weight three per bin


def test_empty_bin_has_its_midpoint():
    z = np.array([[3.0, 0.0], [3.0, 0.0], [0.1, 0.0], [0.1, 0.0]])
    cal = TopLabelHistogram(n_bins=10, binning="width").fit(z, [0, 1, 0, 1])
    assert cal.values_[7] == pytest.approx(0.75)
    np.testing.assert_allclose(cal.predict_proba([[np.log(3), 0.0]]), [[0.75, 0.25]])


def test_by_hand():
    z = np.array([[2.0, 0.0]] * 4 + [[5.0, 0.0]] * 4)
    y = np.array([0, 1, 0, 0, 0, 0, 0, 0])
    for cal in (TopLabelIsotonic(), TopLabelHistogram(n_bins=2)):
        np.testing.assert_allclose(cal.fit(z, y).predict_proba(z[[0, 4]]), [[0.75, 0.25], [1.0, 0.0]])


def test_accuracy_below_chance_is_clipped():
    z = np.array([[2.0, 0.0, -1.0]] * 10)
    p = TopLabelHistogram(n_bins=1).fit(z, [0] + [1] * 9).predict_proba(z)
    np.testing.assert_allclose(p[0], [1 / 3, 1 / 3, 1 / 3], atol=1e-12)
    assert p[0].argmax() == 0


def test_histogram_has_fifteen_bins_of_equal_mass_by_default(make_sample):
    z, y, _ = make_sample(300, 2, 0)
    cal = TopLabelHistogram().fit(z, y)
    confidence = confidence_of(z)
    np.testing.assert_array_equal(np.histogram(confidence, cal.edges_ + 1e-12)[0], 20)
    assert len(cal.values_) == 15


@pytest.mark.parametrize("kind", [TopLabelHistogram, TopLabelIsotonic])
def test_decisions_are_preserved(make_sample, kind):
    z, y, _ = make_sample(300, 3, 0)
    cal = kind().fit(z, y)
    assert cal.preserves_decision is True
    np.testing.assert_array_equal(cal.predict_proba(z).argmax(axis=1), z.argmax(axis=1))
