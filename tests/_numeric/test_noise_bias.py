"""The combination of two estimates from noisy labels."""

from __future__ import annotations

import numpy as np
import pytest

from hetcal._numeric.label_models import NoisyLabels
from hetcal._numeric.noise_bias import Estimate, combine
from hetcal._numeric.passes import nll_pass, row_slopes
from hetcal._numeric.rows import prepare

TRANSITION = np.array([[0.8, 0.15, 0.05], [0.1, 0.85, 0.05], [0.0, 0.3, 0.7]])


def estimate(theta: float, slopes: list[float], hessian: float = 2.0) -> Estimate:
    return Estimate(np.array([theta]), np.array(slopes)[:, None], np.array([[hessian]]))


def test_combination_by_hand():
    # The influences of the rows are ∓0.1 and ±0.2, so the variance of the difference is 2 · 0.3² = 0.18, and
    # that of the distance 1 is counted twice.
    likelihood, unbiased = estimate(0.0, [0.2, -0.2]), estimate(1.0, [-0.4, 0.4])
    result = combine(likelihood, unbiased)
    assert result.likelihood_weight == pytest.approx(0.36)
    np.testing.assert_allclose(result.theta, [0.64])
    # The influence of the first row is 0.36 · (−0.1) + 0.64 · 0.2 = 0.092. The squared bias is 1 − 0.18.
    np.testing.assert_allclose(result.squared_error, [[2 * 0.092**2 + 0.36**2 * 0.82]])


def test_close_estimates_give_the_maximum_of_the_likelihood():
    likelihood, unbiased = estimate(0.0, [0.2, -0.2]), estimate(0.5, [-0.4, 0.4])
    result = combine(likelihood, unbiased)
    assert result.likelihood_weight == 1
    np.testing.assert_array_equal(result.theta, [0.0])
    np.testing.assert_allclose(result.squared_error, [[2 * 0.1**2]])


def test_a_distant_estimate_is_nearly_the_unbiased_one():
    result = combine(estimate(0.0, [0.2, -0.2]), estimate(10.0, [-0.4, 0.4]))
    np.testing.assert_allclose(result.theta, [10.0], rtol=0.01)


def test_parameters_can_be_changed_linearly():
    rng = np.random.default_rng(0)
    change = np.array([[2.0, 0.5], [0.0, 3.0]])  # new parameters are change @ old parameters
    inverse = np.linalg.inv(change)
    pair, changed = [], []
    for theta in ([0.0, 1.0], [1.0, -0.5]):
        slopes, root = rng.normal(size=(30, 2)), rng.normal(size=(9, 2))
        hessian = root.T @ root
        pair.append(Estimate(np.array(theta), slopes, hessian))
        changed.append(Estimate(change @ theta, slopes @ inverse, inverse.T @ hessian @ inverse))
    first, second = combine(*pair), combine(*changed)
    assert second.likelihood_weight == pytest.approx(first.likelihood_weight)
    np.testing.assert_allclose(second.theta, change @ first.theta)
    np.testing.assert_allclose(second.squared_error, change @ first.squared_error @ change.T)


def test_slopes_of_rows_sum_to_those_of_a_pass(make_sample):
    z, y, _ = make_sample(300, 3, 0)
    for labels in (None, NoisyLabels(y, TRANSITION)):
        rows = prepare(z, y, None, labels)
        slopes, curvatures = row_slopes(rows, 0.7)
        _, first, second = nll_pass(rows, np.zeros(len(y), np.int64), np.array([0.7]))
        np.testing.assert_allclose([slopes.sum(), curvatures.sum()], [first[0], second[0]])


def test_unbiased_logits_of_labels_have_the_mean_of_those_of_the_true_classes():
    z, true = np.array([[2.0, 0.5, -1.0]] * 9), np.repeat([0, 1, 2], 3)
    observed = np.tile([0, 1, 2], 3)  # every observed label, weighted by its probability
    rows = prepare(z, observed, None, NoisyLabels(observed, TRANSITION))
    mean = (rows.d_unbiased * TRANSITION[true, observed]).reshape(3, 3).sum(axis=1)
    np.testing.assert_allclose(mean, [0.0, -1.5, -3.0], atol=1e-12)
