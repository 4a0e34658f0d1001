from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from hetcal._numeric.evidence import DenseHessian, NewtonProblem, fit_precisions, minimise_penalised


@pytest.fixture
def logistic():
    """Evaluator of a logistic regression in which only the first two of ten coefficients matter."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 10))
    y = rng.random(2000) < expit(x[:, 0] - 2 * x[:, 1])

    def evaluate(theta):
        u = x @ theta
        p = expit(u)
        hessian = (x * (p * (1 - p))[:, None]).T @ x
        return float((np.logaddexp(0, u) - y * u).sum()), x.T @ (p - y), DenseHessian(hessian)

    return evaluate


GROUPS = np.array([0] * 2 + [1] * 8)


def test_the_gradient_vanishes_at_the_minimum(logistic):
    precision = np.array([1.0, 50.0])
    fit = minimise_penalised(NewtonProblem(logistic), GROUPS, precision)
    _, gradient, _ = logistic(fit.theta)
    np.testing.assert_allclose(gradient + precision[GROUPS] * fit.theta, 0, atol=1e-4)


def test_an_infinite_precision_keeps_parameters_at_zero(logistic):
    fit = minimise_penalised(NewtonProblem(logistic), GROUPS, np.array([1.0, np.inf]))
    assert (fit.theta[2:] == 0).all()
    assert (np.abs(fit.theta[:2]) > 0.5).all()


def test_groups_without_effect_get_a_high_precision(logistic):
    fit = fit_precisions(NewtonProblem(logistic), GROUPS, np.array([1.0, 1.0]))
    assert fit.precision[0] < 2  # the true coefficients are 1 and −2
    assert fit.precision[1] > 5
    np.testing.assert_allclose(fit.theta[:2], [1, -2], atol=0.2)


def test_precisions_are_a_fixed_point(logistic):
    prior = np.array([1.0, 1.0])
    fit = fit_precisions(NewtonProblem(logistic), GROUPS, prior)
    _, variance = logistic(fit.theta)[2].solve_with_variances(fit.theta, fit.precision[GROUPS])
    for group in (0, 1):
        inside = group == GROUPS
        determined = inside.sum() - fit.precision[group] * variance[inside].sum()
        expected = (determined + 1) / ((fit.theta[inside] ** 2).sum() + 1 / prior[group])
        assert fit.precision[group] == pytest.approx(expected, rel=1e-4)


def test_separable_rows_stop_at_a_negligible_loss():
    x = np.array([[-1.0], [1.0]])

    def evaluate(theta):
        u = x * [[-1], [1]] @ theta  # the margin of every row
        p = expit(-u)
        hessian = DenseHessian(np.array([[float((p * (1 - p)).sum())]]))
        return float(np.logaddexp(0, -u).sum()), np.array([-float(p.sum())]), hessian

    fit = minimise_penalised(NewtonProblem(evaluate), np.zeros(1, np.int64), np.zeros(1), negligible=1e-6)
    assert fit.loss <= 1e-6
    assert np.isfinite(fit.theta).all()
