"""Information of rows in matrix scaling."""

from __future__ import annotations

import numpy as np
from scipy.special import softmax

from hetcal._numeric.label_models import NoisyLabels
from hetcal._numeric.matrix import _Block, _Predictions


def information(p: np.ndarray, transition: np.ndarray) -> np.ndarray:
    n = p.shape[1]
    labels = NoisyLabels(np.zeros(n, np.int64), transition)
    block = _Block(labels.y, np.ones(n), p, p, labels)
    return block.information(_Predictions(p, np.zeros(n), p))


def test_information_of_noisy_labels_is_the_variance_of_the_posterior() -> None:
    rng = np.random.default_rng(0)
    p = softmax(3 * rng.normal(size=(4, 6)), axis=0)
    transition = rng.dirichlet(np.ones(4), size=4)
    expected = np.zeros_like(p)
    for label in range(4):
        joint = p * transition[:, [label]]
        probability = joint.sum(axis=0)
        expected += probability * (joint / probability - p) ** 2
    np.testing.assert_allclose(information(p, transition), expected, atol=1e-12)


def test_information_of_certain_and_useless_labels() -> None:
    p = np.array([[0.7, 1.0], [0.3, 0.0]])
    np.testing.assert_allclose(information(p, np.eye(2)), p * (1 - p), atol=1e-15)
    np.testing.assert_allclose(information(p, np.full((2, 2), 0.5)), 0, atol=1e-15)
