"""Identity, vector and Platt scaling against independent implementations."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.optimize import OptimizeResult, minimize
from scipy.special import expit, log_softmax, logit
from scipy.special import softmax as scipy_softmax
from sklearn.linear_model import LogisticRegression

from hetcal import Batches, CalibrationWarning, Identity, PlattScaling, TemperatureScaling, VectorScaling
from hetcal._numeric import families, vector_solver
from hetcal._numeric.families import VectorFamily
from hetcal._numeric.rows import prepare
from hetcal.calibrators import affine


def mean_nll(p, y, w=None):
    return np.average(-np.log(p[np.arange(len(y)), y]), weights=w)


def bfgs_vector(z, y, w, ridge, anchor):
    """Smallest mean NLL plus ridge penalty of vector scaling, and its parameters, by a generic optimiser."""
    n_classes = z.shape[1]
    start = np.r_[np.full(n_classes, anchor), np.zeros(n_classes)]
    share = w / w.sum()
    hot = np.eye(n_classes)[y]

    def value(theta):
        log_p = log_softmax(z * theta[:n_classes] + theta[n_classes:], axis=1)
        residual = (np.exp(log_p) - hot) * share[:, None]
        gradient = np.r_[(residual * z).sum(axis=0), residual.sum(axis=0)] + ridge * (theta - start)
        away = theta - start
        return -share @ log_p[np.arange(len(y)), y] + ridge / 2 * away @ away, gradient

    solution = minimize(value, start, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 5000})
    return solution.fun, solution.x


def test_identity_is_the_softmax(make_sample):
    z, y, _ = make_sample(50, 5, 0)
    np.testing.assert_allclose(Identity().fit(z, y).predict_proba(z), scipy_softmax(z, axis=1), rtol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ridge", [0.0, 0.01])
@pytest.mark.parametrize(("n", "n_classes", "seed"), [(300, 3, 0), (500, 5, 1), (2000, 10, 2)])
def test_vector_scaling_reaches_the_bfgs_optimum(make_sample, n, n_classes, seed, ridge, weighted):
    z, y, _ = make_sample(n, n_classes, seed)
    w = np.random.default_rng(seed).uniform(0.2, 2, size=n) if weighted else np.ones(n)
    cal = VectorScaling(ridge=ridge).fit(z, y, sample_weight=w if weighted else None)
    anchor = TemperatureScaling().fit(z, y, sample_weight=w).alpha_
    best, theta = bfgs_vector(z, y, w, ridge, anchor)
    away = np.r_[cal.scale_ - anchor, cal.bias_]
    ours = mean_nll(cal.predict_proba(z), y, w) + ridge / 2 * away @ away
    assert ours == pytest.approx(best, abs=1e-8)
    assert ours <= best + 1e-12
    np.testing.assert_allclose(cal.scale_, theta[:n_classes], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(cal.bias_, theta[n_classes:] - theta[n_classes:].mean(), rtol=1e-3, atol=1e-3)
    assert cal.bias_.mean() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("ridge", [0.0, 0.01])
@pytest.mark.parametrize("weighted", [False, True])
def test_newton_and_lbfgs_agree(make_sample, monkeypatch, ridge, weighted):
    z, y, _ = make_sample(1500, 8, 0)
    w = np.random.default_rng(0).integers(0, 3, size=len(y)) if weighted else None
    newton = VectorScaling(ridge=ridge).fit(z, y, sample_weight=w)
    monkeypatch.setattr(affine, "_NEWTON_FEW_CLASSES", 2)
    monkeypatch.setattr(affine, "_NEWTON_WORK", 0)
    lbfgs = VectorScaling(ridge=ridge).fit(z, y, sample_weight=w)
    assert not np.array_equal(newton.scale_, lbfgs.scale_)  # different algorithms were used
    np.testing.assert_allclose(lbfgs.scale_, newton.scale_, atol=2e-4)
    np.testing.assert_allclose(lbfgs.bias_, newton.bias_, atol=2e-3)
    assert mean_nll(lbfgs.predict_proba(z), y, w) == pytest.approx(
        mean_nll(newton.predict_proba(z), y, w), abs=1e-8
    )


def test_vector_scaling_with_many_classes(make_sample):
    z, y, _ = make_sample(1500, 301, 0, alpha=0.7)
    cal = VectorScaling(ridge=1e-3).fit(z, y)
    assert mean_nll(cal.predict_proba(z), y) < mean_nll(TemperatureScaling().fit(z, y).predict_proba(z), y)


def test_a_large_ridge_gives_temperature_scaling(make_sample):
    z, y, _ = make_sample(800, 5, 0)
    single = TemperatureScaling().fit(z, y)
    previous = np.inf
    for ridge in (1e-1, 1e1, 1e3, 1e7):
        cal = VectorScaling(ridge=ridge).fit(z, y)
        distance = np.abs(cal.predict_proba(z) - single.predict_proba(z)).max()
        assert distance < previous
        previous = distance
    assert previous < 1e-6
    np.testing.assert_allclose(cal.scale_, single.alpha_, atol=1e-6)
    np.testing.assert_allclose(cal.bias_, 0, atol=1e-6)


def test_diagonal_preconditioner_and_batches_reach_the_same_optimum(make_sample, monkeypatch):
    z, y, _ = make_sample(600, 5, 0)
    newton = VectorScaling(0.01).fit(z, y)
    monkeypatch.setattr(affine, "_suits_newton", lambda _: False)
    in_batches = VectorScaling(0.01).fit(Batches(z, y, batch_rows=250))
    monkeypatch.setattr(vector_solver, "_MAX_FULL_HESSIAN", 1)
    by_diagonal = VectorScaling(0.01).fit(z, y)
    for cal in (in_batches, by_diagonal):
        np.testing.assert_allclose(cal.scale_, newton.scale_, atol=1e-5)
        np.testing.assert_allclose(cal.bias_, newton.bias_, atol=1e-5)


def test_preconditioner_inverts_the_hessian_of_every_class():
    z = np.log([[1.0, 4.0], [1.0, 1.0]])  # probabilities 0.2 and 0.8, and equal ones
    rows = prepare(z, np.array([0, 1]), None)
    to_theta, to_slope = vector_solver._precondition_by_class(VectorFamily(ridge=0.1), rows)
    variance = np.array([[0.16, 0.16], [0.25, 0.25]])
    entries = [(variance * z**power).mean(axis=0) for power in (2, 1, 0)]
    added = 0.1 + 1e-3 * (entries[0].mean() + entries[2].mean()) / 2
    for k in range(2):
        slope = np.zeros(4)
        slope[[k, k + 2]] = 1.0, -2.0
        scale, mixed, bias = (entry[k] for entry in entries)
        hessian = [[scale + added, mixed], [mixed, bias + added]]
        expected = np.zeros(4)
        expected[[k, k + 2]] = np.linalg.solve(hessian, [1.0, -2.0])
        np.testing.assert_allclose(to_theta(to_slope(slope)), expected)


def test_sums_of_vector_scaling_do_not_depend_on_blocks(make_sample, monkeypatch):
    z, y, _ = make_sample(50, 3, 0)
    weight, theta = (
        np.random.default_rng(0).uniform(0.5, 2, size=50),
        np.array([0.5, 1.0, 2.0, 0.3, 0.0, -0.3]),
    )
    rows = prepare(z, y, weight)
    one_block = families.vector_sums(rows, theta)
    monkeypatch.setattr(families, "_BLOCK", 21)
    monkeypatch.setattr(families, "_SMALL_BLOCK", 21)
    for in_blocks, expected in zip(families.vector_sums(rows, theta), one_block, strict=True):
        np.testing.assert_allclose(in_blocks, expected, rtol=1e-12)
    for in_blocks, expected in zip(families.vector_gradient(rows, theta), one_block[:2], strict=True):
        np.testing.assert_allclose(in_blocks, expected, rtol=1e-12)


def test_standard_errors_of_probabilities_follow_the_temperature(make_sample):
    z, y, _ = make_sample(200, 3, 0)
    cal = TemperatureScaling().fit(z, y)
    p, error = cal.predict_proba(z, return_std=True)
    np.testing.assert_array_equal(p, cal.predict_proba(z))
    steps = [scipy_softmax((cal.alpha_ + h) * z, axis=1) for h in (1e-5, -1e-5)]
    np.testing.assert_allclose(error, np.abs(steps[0] - steps[1]) / 2e-5 * cal.alpha_std_, atol=1e-8)


def test_vector_family_starts_at_the_identity():
    family, z = VectorFamily(), np.array([[2.0, 1.0, 0.5], [0.0, 3.0, 1.0]])
    np.testing.assert_allclose(
        family.predict(z, family.start(3)[None], np.zeros(2, int)), scipy_softmax(z, axis=1)
    )
    evaluate = family.evaluator(prepare(z, np.array([0, 2]), None), np.zeros(2, int), 1)
    theta = np.arange(6.0)
    log_p = log_softmax(z * theta[:3] + theta[3:], axis=1)
    # The loss contains no ridge penalty.
    assert evaluate(theta[None], np.array([0]))[0] == pytest.approx(-log_p[0, 0] - log_p[1, 2])


def test_polishing_stops_when_the_slope_increases():
    def bowl(x):
        return float((x - 1) @ (x - 1)), 2 * (x - 1)

    def result_with(guess):  # the first step covers 2 `guess` times the distance to the minimum
        return OptimizeResult(x=np.zeros(2), jac=bowl(np.zeros(2))[1], fun=2.0, hess_inv=guess * np.eye(2))

    x, slope, loss = vector_solver._polish(bowl, result_with(0.4))
    np.testing.assert_allclose(x, 1 - 0.2**4)
    assert (loss, *slope) == pytest.approx((2 * 0.2**8, -2 * 0.2**4, -2 * 0.2**4))
    x, slope, loss = vector_solver._polish(bowl, result_with(1.2))
    assert (loss, *slope, *x) == (2, -2, -2, 0, 0)


def test_preconditioner_is_finite_for_distant_rows():
    rows = prepare(np.array([[0.0, 1.0], [3000.0, 3001.0], [-3000.0, -3002.0]]), np.array([1, 0, 0]), None)
    to_theta, to_slope = vector_solver._precondition(VectorFamily(), rows)
    x = np.arange(1.0, 5.0)
    assert np.isfinite(to_theta(x)).all()
    assert to_slope(x) @ x == pytest.approx(x @ to_theta(x))  # to_slope is the transpose of to_theta


def test_vector_scaling_recovers_a_known_truth():
    rng = np.random.default_rng(0)
    z = rng.normal(scale=2, size=(60_000, 4))
    scale, bias = np.array([0.5, 1.0, 1.5, 0.8]), np.array([0.6, -0.4, 0.3, -0.5])
    y = (z * scale + bias + rng.gumbel(size=z.shape)).argmax(axis=1)
    cal = VectorScaling().fit(z, y)
    np.testing.assert_allclose(cal.scale_, scale, atol=0.03)
    np.testing.assert_allclose(cal.bias_, bias, atol=0.05)
    assert not cal.preserves_decision
    assert np.any(cal.predict_proba(z).argmax(axis=1) != z.argmax(axis=1))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("n_classes", "seed"), [(2, 0), (5, 1), (20, 2)])
def test_platt_is_logistic_regression_on_the_log_odds(make_sample, n_classes, seed, weighted):
    z, y, _ = make_sample(1000, n_classes, seed)
    w = np.random.default_rng(seed).uniform(0.2, 2, size=len(y)) if weighted else None
    cal = PlattScaling().fit(z, y, sample_weight=w)
    p = scipy_softmax(z, axis=1)
    x, right = logit(p.max(axis=1))[:, None], p.argmax(axis=1) == y
    peer = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(x, right, sample_weight=w)
    assert cal.slope_ == pytest.approx(peer.coef_[0, 0], rel=1e-5)
    assert cal.intercept_ == pytest.approx(peer.intercept_[0], abs=1e-5)


def test_platt_by_hand():
    z = np.array([[2.0, 0.0]] * 10 + [[4.0, 0.0]] * 10)  # log-odds 2 and 4
    y = np.array([0] * 6 + [1] * 4 + [0] * 9 + [1])
    cal = PlattScaling().fit(z, y)
    slope = (np.log(9) - np.log(1.5)) / 2
    assert cal.slope_ == pytest.approx(slope, rel=1e-8)
    assert cal.intercept_ == pytest.approx(np.log(1.5) - 2 * slope, rel=1e-8)
    np.testing.assert_allclose(cal.predict_proba(z[[0, 10]]), [[0.6, 0.4], [0.9, 0.1]], rtol=1e-8)


def test_platt_keeps_the_proportions_of_the_other_classes(make_sample):
    z, y, _ = make_sample(500, 5, 0)
    cal = PlattScaling().fit(z, y)
    p, q = cal.predict_proba(z), scipy_softmax(z, axis=1)
    top = q.argmax(axis=1)
    rest = np.ones_like(q, bool)
    rest[np.arange(len(q)), top] = False
    confidence = expit(cal.slope_ * logit(q.max(axis=1)) + cal.intercept_)
    easy = confidence > 0.5  # below, the other classes may change to preserve the decision
    assert easy.mean() > 0.5
    np.testing.assert_allclose(p.max(axis=1)[easy], confidence[easy], rtol=1e-9)
    np.testing.assert_allclose(
        (p / (1 - p.max(axis=1, keepdims=True)))[rest & easy[:, None]],
        (q / (1 - q.max(axis=1, keepdims=True)))[rest & easy[:, None]],
        rtol=1e-7,
    )


@pytest.mark.parametrize("make", [PlattScaling, VectorScaling])
def test_separable_data_cause_a_warning(make, make_sample):
    z, _, _ = make_sample(300, 3, 0)
    with pytest.warns(CalibrationWarning, match="whole data set"):
        cal = make().fit(z, z.argmax(axis=1))
    assert np.all(np.isfinite(cal.predict_proba(z)))
    np.testing.assert_allclose(cal.predict_proba(z).max(axis=1), 1, atol=1e-3)


def test_no_warning_if_one_row_is_wrong(make_sample):
    z, _, _ = make_sample(300, 3, 0)
    y = z.argmax(axis=1)
    middling = np.argsort(np.diff(np.sort(z, axis=1))[:, -1])[150]
    y[middling] = z[middling].argmin()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        PlattScaling().fit(z, y)
        VectorScaling(ridge=1e-6).fit(z, y)
    assert not caught


@pytest.mark.parametrize("make", [Identity, TemperatureScaling, VectorScaling, PlattScaling])
def test_groups_do_not_matter(make, make_sample):
    z, y, _ = make_sample(200, 3, 0)
    groups = np.arange(200) % 2
    with_groups = make().fit(z, y, groups=groups).predict_proba(z, groups=groups)
    np.testing.assert_array_equal(with_groups, make().fit(z, y).predict_proba(z))
