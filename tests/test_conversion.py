"""Logits from probabilities and from binary scores."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

from hetcal import binary_logits, to_logits
from hetcal._numeric.probabilities import probability_floor, softmax


def test_to_logits():
    p = scipy.special.softmax(np.random.default_rng(0).normal(size=(20, 5)), axis=1)
    np.testing.assert_allclose(scipy.special.softmax(to_logits(p), axis=1), p)
    assert to_logits(np.float32([[0.0, 1.0]])).dtype == np.float32
    with pytest.raises(ValueError, match="probs must"):
        to_logits([[3.0, -2.0]])


def test_to_logits_preserves_differences_in_the_last_bit():
    first = np.linspace(0.18, 0.22, 200)
    second = np.nextafter(first, 1)
    rest = np.repeat(((1 - first - second) / 4)[:, None], 4, axis=1)
    p = np.column_stack([first, second, rest])
    assert (np.log(p).argmax(axis=1) == 0).any()  # the logarithm alone loses some differences
    np.testing.assert_array_equal(to_logits(p).argmax(axis=1), 1)


@pytest.mark.parametrize(
    ("probs", "floor"),
    [
        ([[0.2, 0.8], [0.0, 1.0]], 0.1),  # half of the smallest positive probability
        ([[0.25, 0.5, 0.25], [0.0, 0.5, 0.5]], 0.125),
        ([[0.0, 1.0], [1.0, 0.0]], 0.25),  # the floor is at most 1/(2K) to preserve decisions
        ([[5e-324, 1.0], [0.0, 1.0]], np.finfo(np.float32).tiny),  # at least the smallest normal float32
        ([[1e-30, 1.0], [0.3, 0.7]], 5e-31),
    ],
)
def test_a_zero_counts_as_half_of_the_smallest_positive_probability(probs, floor):
    assert probability_floor(np.array(probs)) == pytest.approx(floor, rel=1e-12)
    z = to_logits(probs)
    np.testing.assert_allclose(z, np.log(np.maximum(probs, floor)))
    np.testing.assert_array_equal(z.argmax(axis=1), np.argmax(probs, axis=1))


def test_floor():
    np.testing.assert_allclose(to_logits([[0.0, 1.0]], floor=0.01), np.log([[0.01, 1.0]]))
    for bad in (0, 0.5, -1, True, np.nan, "x"):
        with pytest.raises(ValueError, match="floor must"):
            to_logits([[0.0, 1.0]], floor=bad)


def test_binary_logits():
    s = np.array([-3.0, 0.0, 2.5])
    np.testing.assert_allclose(softmax(binary_logits(s))[:, 1], scipy.special.expit(s))
    np.testing.assert_array_equal(binary_logits(s[:, None]), binary_logits(s))
    assert binary_logits(s.astype(np.float16)).dtype == np.float32
    with pytest.raises(ValueError, match=r"scores must .*got shape \(3, 2\)"):
        binary_logits(np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"scores must .*got NaN at row 1"):
        binary_logits([0.0, np.nan])
    with pytest.raises(TypeError, match="scores must"):
        binary_logits(["a"])
