"""Softmax, the top label and normalised weights."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

from hetcal._numeric.probabilities import normalise_weights, softmax, top_label


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_softmax(dtype):
    z = np.random.default_rng(0).normal(size=(20, 5)).astype(dtype)
    np.testing.assert_allclose(softmax(z), scipy.special.softmax(z, axis=1), rtol=1e-5)
    assert softmax(z).dtype == dtype
    largest = np.finfo(dtype).max
    np.testing.assert_array_equal(
        softmax(np.array([[largest, -largest], [largest, largest], [-largest, -largest]])),
        [[1, 0], [0.5, 0.5], [0.5, 0.5]],
    )


def test_top_label_ties_and_range():
    confidence, predicted = top_label(np.array([[0.4, 0.4, 0.2], [0.1, 0.2, 0.7]]))
    assert predicted.tolist() == [0, 2]
    assert confidence.tolist() == [0.4, 0.7]
    assert top_label(np.array([[1.0 + 1e-9, 0.0]]))[0][0] == 1


def test_normalised_weights_sum_to_the_effective_sample_size():
    w = np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(normalise_weights(w).sum(), 36 / 14)
    for scale in (1e-300, 1e-9, 1e90):
        np.testing.assert_allclose(normalise_weights(scale * w), normalise_weights(w), rtol=1e-12)
