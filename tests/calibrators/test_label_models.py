"""Fits to labels that may be wrong (`transition`) and to soft labels."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from tests.export.route_checks import examples, suitable

import hetcal
from hetcal._numeric import families, matrix
from hetcal._numeric.label_models import Correctness, NoisyLabels, SoftLabels, positive_or
from hetcal._numeric.rows import prepare
from hetcal._numeric.source import MemorySource
from hetcal._numeric.trust_region import minimise_pooled

EXAMPLES = examples()
TRANSITION = np.array([[0.8, 0.15, 0.05], [0.1, 0.85, 0.05], [0.0, 0.3, 0.7]])


def observe(y: Any, transition: Any, seed: int) -> Any:
    """Labels drawn from the rows of a transition matrix."""
    rng = np.random.default_rng(seed)
    return (rng.random(len(y))[:, None] > np.cumsum(np.asarray(transition)[y], axis=1)[:, :-1]).sum(axis=1)


def fit(calibrator: Any, *args: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hetcal.CalibrationWarning)
        return clone(calibrator).fit(*args, **options)


@pytest.fixture(scope="module")
def sample(make_sample):
    return make_sample(600, 3, 5)


# -- Noisy labels ------------------------------------------------------------------------------------


def test_temperature_by_hand():
    z = np.array([[2.0, 0.0]] * 10)
    # With 20% of the labels redrawn, a label is right with probability 0.9 and wrong with 0.1. If 7 of 10
    # labels agree with the prediction, the probability of class 0 is (0.7 - 0.1) / (0.9 - 0.1) = 0.75.
    cal = hetcal.TemperatureScaling().fit(z, [0] * 7 + [1] * 3, transition=0.2)
    np.testing.assert_allclose(cal.predict_proba(z[:1]), [[0.75, 0.25]], atol=1e-6)


@pytest.mark.parametrize("name", EXAMPLES)
def test_certain_labels_give_the_usual_fit(name, sample):
    y, z = suitable(EXAMPLES[name], sample.y, sample.z)
    expected = fit(EXAMPLES[name], z, y).predict_proba(z)
    identity = np.eye(z.shape[1])
    # "bayes" and cross-validated penalties stop at a relative tolerance
    np.testing.assert_allclose(
        fit(EXAMPLES[name], z, y, transition=identity).predict_proba(z), expected, atol=2e-4
    )
    np.testing.assert_allclose(fit(EXAMPLES[name], z, identity[y]).predict_proba(z), expected, atol=2e-4)


@pytest.mark.parametrize("name", EXAMPLES)
def test_correction_is_closer_to_the_clean_fit(name, make_sample):
    z, y, _ = make_sample(3000, 3, 8)
    y, z = suitable(EXAMPLES[name], y, z)
    rates = np.where(np.arange(z.shape[1]) == 0, 0.4, 0.1)
    observed = observe(y, np.diag(1 - rates) + rates[:, None] / len(rates), 3)
    clean = fit(EXAMPLES[name], z, y).predict_proba(z)
    naive, corrected = (
        np.abs(fit(EXAMPLES[name], z, observed, **options).predict_proba(z) - clean).mean()
        for options in ({}, {"transition": rates})
    )
    assert corrected < naive / 2 or naive == 0  # the identity is never fitted


@pytest.mark.parametrize("name", EXAMPLES)
def test_order_of_rows_does_not_matter(name, sample):
    y, z = suitable(EXAMPLES[name], sample.y, sample.z)
    observed = observe(y, np.full((z.shape[1],) * 2, 0.1) + 0.7 * np.eye(z.shape[1]), 4)
    order = np.random.default_rng(0).permutation(len(z))
    first, second = (
        fit(EXAMPLES[name], z[index], observed[index], transition=0.2).predict_proba(z)
        for index in (slice(None), order)
    )
    np.testing.assert_allclose(first, second, atol=1e-5)


def test_rates_are_a_short_form_of_a_matrix(sample):
    rates = np.array([0.3, 0.0, 0.1])
    full = np.diag(1 - rates) + rates[:, None] / 3
    first, second = (
        hetcal.ClassWiseTemperatureScaling().fit(sample.z, sample.y, transition=t) for t in (rates, full)
    )
    np.testing.assert_allclose(first.alpha_, second.alpha_, rtol=1e-12)


def objective(z: Any, y: Any, transition: Any) -> float:
    """NLL of the observed labels for calibrated logits, computed directly."""
    return float(-np.log((softmax(z, axis=1) * transition[:, y].T).sum(axis=1)).sum())


def pseudo_row(z: Any, shared: Any) -> float:
    """Loss of the additional row of a class with noisy labels, which has the shared fit as its label."""
    return float(-np.mean((softmax(shared, axis=1) * log_softmax(z, axis=1)).sum(axis=1)))


def test_fits_are_the_maximum_of_the_likelihood(sample):
    """Compare with a generic optimiser of SciPy."""
    z, y = sample.z, observe(sample.y, TRANSITION, 1)

    def nll_of(theta: Any) -> float:
        return objective(z * theta[:3] + theta[3:], y, TRANSITION)

    ours = hetcal.TemperatureScaling().fit(z, y, transition=TRANSITION).alpha_
    best = minimize(lambda a: objective(a * z, y, TRANSITION), [ours * 1.3], method="Nelder-Mead", tol=1e-10)
    np.testing.assert_allclose(ours, best.x[0], rtol=1e-5)
    classwise = hetcal.ClassWiseTemperatureScaling().fit(z, y, transition=TRANSITION)
    for k in range(3):
        part = z.argmax(axis=1) == k
        best = minimize(
            lambda a, part=part: (
                objective(a * z[part], y[part], TRANSITION) + pseudo_row(a * z[part], ours * z[part])
            ),
            [ours],
            method="Nelder-Mead",
        )
        np.testing.assert_allclose(classwise.alpha_[k], best.x[0], rtol=1e-4)
    vector = hetcal.VectorScaling().fit(z, y, transition=TRANSITION)
    best = minimize(nll_of, np.r_[np.ones(3), np.zeros(3)], method="BFGS", options={"gtol": 1e-7})
    assert nll_of(np.r_[vector.scale_, vector.bias_]) <= best.fun + 1e-6


def test_matrix_scaling_is_the_maximum_of_the_penalised_likelihood(sample):
    z, y = sample.z, observe(sample.y, TRANSITION, 1)
    model = hetcal.MatrixScaling(0.05).fit(z, y, transition=TRANSITION)
    x = log_softmax(model.alpha_ * z, axis=1)

    def value(theta: Any) -> float:
        change, bias = theta[:9].reshape(3, 3), theta[9:]
        penalty = 0.05 / 2 * len(z) * float(theta @ theta)
        return objective(x + x @ change.T + bias, y, TRANSITION) + penalty

    best = minimize(value, np.zeros(12), method="BFGS", options={"gtol": 1e-6})
    ours = value(np.r_[model.change_.ravel(), model.bias_])
    assert abs(ours - best.fun) <= 1e-6 * best.fun


def test_fewer_wrong_labels_than_expected_have_no_finite_optimum():
    z = np.repeat([[2.0, 0.0], [0.0, 2.0]], 20, axis=0)
    y = np.repeat([0, 1], 20)
    y[0] = 1  # 2.5% of the labels disagree, but 10% are wrong if all predictions are right
    with pytest.warns(hetcal.CalibrationWarning, match="at one of the bounds") as caught:
        cal = hetcal.TemperatureScaling().fit(z, y, transition=0.2)
    assert cal.alpha_ == 100
    assert len(caught) == 1  # no warning about convergence


def test_temperature_is_recovered(make_sample):
    z, y, alpha = make_sample(40_000, 4, 2)
    rates = np.array([0.4, 0.3, 0.0, 0.1])
    observed = observe(y, np.diag(1 - rates) + rates[:, None] / 4, 6)
    cal = hetcal.ClassWiseTemperatureScaling().fit(z, observed, transition=rates)
    assert (np.abs(cal.alpha_ - alpha) < 4 * cal.alpha_std_).all()
    naive = hetcal.ClassWiseTemperatureScaling().fit(z, observed)
    assert (np.abs(naive.alpha_ - alpha) > 4 * naive.alpha_std_).any()


def test_standard_errors_are_those_of_repeated_samples(make_sample):
    z, _, _ = make_sample(500, 3, 2)
    rng, estimates, errors = np.random.default_rng(0), [], []
    for seed in range(60):
        y = (0.7 * z + rng.gumbel(size=z.shape)).argmax(axis=1)
        cal = hetcal.TemperatureScaling().fit(z, observe(y, TRANSITION, seed), transition=TRANSITION)
        estimates.append(cal.alpha_)
        errors.append(cal.alpha_std_)
    assert 0.75 < np.mean(errors) / np.std(estimates) < 1.33


def two_temperatures(n: int, seed: int) -> tuple[Any, Any]:
    """Logits and labels of a classifier that is over-confident in class 0 only."""
    rng = np.random.default_rng(seed)
    true = rng.integers(3, size=n)
    z = rng.normal(size=(n, 3)) + 2 * np.eye(3)[true]
    return np.where(z.argmax(axis=1) == 0, 2.5, 1.0)[:, None] * z, true


NOISE = np.array(
    [[0.8, 0.1, 0.1], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
)  # 30% of the labels of class 0 are random


def test_one_temperature_is_that_of_clean_labels_although_classes_need_different_ones():
    z, y = two_temperatures(20_000, 0)
    observed = observe(y, NOISE, 1)
    clean = hetcal.TemperatureScaling().fit(z, y)
    ours = hetcal.TemperatureScaling().fit(z, observed, transition=NOISE)
    assert abs(ours.alpha_ - clean.alpha_) < 3 * ours.alpha_std_
    likely = minimize(lambda a: objective(a * z, observed, NOISE), [1.0], method="Nelder-Mead").x[0]
    assert abs(likely - clean.alpha_) > 6 * ours.alpha_std_  # the maximum of the likelihood is biased


def test_platt_scaling_is_that_of_clean_labels_although_classes_need_different_ones():
    z, y = two_temperatures(20_000, 0)
    observed = observe(y, NOISE, 1)
    clean, ours = hetcal.PlattScaling().fit(z, y), hetcal.PlattScaling().fit(z, observed, transition=NOISE)
    source = MemorySource(prepare(z, observed, None, NoisyLabels(observed, NOISE)))
    evaluate = source.family_evaluator(families.PlattFamily(), np.zeros(3, np.int64))
    likely, _ = minimise_pooled(evaluate, np.array([float(len(z))]), np.array([1.0, 0.0]))
    distance, biased = (
        np.abs(np.array(theta) - [clean.slope_, clean.intercept_]).max()
        for theta in ((ours.slope_, ours.intercept_), likely)
    )
    assert distance < biased / 3


def test_standard_errors_are_those_of_repeated_samples_although_classes_need_different_temperatures():
    estimates, errors = [], []
    for seed in range(60):
        z, y = two_temperatures(10_000, seed)
        cal = hetcal.TemperatureScaling().fit(z, observe(y, NOISE, seed), transition=NOISE)
        estimates.append(cal.alpha_)
        errors.append(cal.alpha_std_)
    assert 0.7 < np.mean(errors) / np.std(estimates) < 1.4


def test_gamma_zero_shares_the_unbiased_fit():
    z, y = two_temperatures(4000, 0)
    observed = observe(y, NOISE, 1)
    alpha = hetcal.TemperatureScaling().fit(z, observed, transition=NOISE).alpha_
    shared = hetcal.ClassWiseTemperatureScaling(0).fit(z, observed, transition=NOISE)
    np.testing.assert_array_equal(shared.alpha_, [alpha] * 3)
    vector = hetcal.VectorScaling(1e6).fit(z, observed, transition=NOISE)
    np.testing.assert_allclose(vector.scale_, alpha, rtol=1e-5)
    platt = hetcal.PlattScaling().fit(z, observed, transition=NOISE)
    shared = hetcal.ClassWise(hetcal.PlattScaling(), 0).fit(z, observed, transition=NOISE)
    np.testing.assert_array_equal(shared.parameters_, [[platt.slope_, platt.intercept_]] * 3)


def test_scale_of_weights_does_not_matter_for_noisy_labels():
    z, y = two_temperatures(4000, 0)
    observed, weight = observe(y, NOISE, 1), np.random.default_rng(0).uniform(0.5, 2, size=4000)
    first, second = (
        hetcal.TemperatureScaling().fit(z, observed, transition=NOISE, sample_weight=w)
        for w in (weight, 100 * weight)
    )
    assert (first.alpha_, first.alpha_std_) == pytest.approx((second.alpha_, second.alpha_std_))


def test_one_estimate_replaces_the_other_at_a_bound():
    """With few rows, the likelihood may have no maximum although the unbiased loss has a minimum."""
    rng = np.random.default_rng(0)
    rates = np.full(10, 0.3)
    for seed in range(200):
        z = rng.normal(size=(60, 10)) * 2
        y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
        observed = observe(y, np.diag(1 - rates) + rates[:, None] / 10, seed)
        best = min(
            np.geomspace(0.01, 100, 200), key=lambda a: objective(a * z, observed, 0.7 * np.eye(10) + 0.03)
        )
        if best == 100:
            break
    cal = hetcal.TemperatureScaling().fit(z, observed, transition=rates)
    assert cal.alpha_ < 10
    assert np.isfinite(cal.alpha_std_)


def test_noise_that_explains_all_errors_of_a_class_gives_a_finite_temperature(make_sample):
    z, y, _ = make_sample(400, 3, 5)
    guess = z.argmax(axis=1)
    observed = y.copy()
    first = np.flatnonzero(guess == 0)
    observed[first] = 0
    observed[first[:3]] = 1  # far fewer errors than there are wrong labels
    rates = np.array([0.3, 0.0, 0.0])
    cal = fit(hetcal.ClassWiseTemperatureScaling(), z, observed, transition=rates)
    shared = cal.alpha0_
    part = guess == 0
    transition = np.diag(1 - rates) + rates[:, None] / 3
    best = minimize(
        lambda a: (
            objective(a * z[part], observed[part], transition) + pseudo_row(a * z[part], shared * z[part])
        ),
        [shared],
        method="Nelder-Mead",
    )
    np.testing.assert_allclose(cal.alpha_[0], best.x[0], rtol=1e-4)
    assert shared < cal.alpha_[0] < 100
    # The other classes have no noise, so rows that are predicted as one of them have no additional row.
    hard = fit(hetcal.ClassWiseTemperatureScaling(), z[~part], observed[~part], transition=rates)
    np.testing.assert_allclose(cal.alpha_[1:], hard.alpha_[1:], rtol=1e-6)


def test_all_labels_right_despite_noise_give_a_finite_temperature(make_sample):
    z, y, _ = make_sample(400, 3, 5)
    observed = np.where(z.argmax(axis=1) == 0, 0, y)
    cal = fit(hetcal.ClassWiseTemperatureScaling(), z, observed, transition=[0.3, 0.0, 0.0])
    assert cal.alpha0_ < cal.alpha_[0] < 100
    # Without noise, the optimum is at the bound, as for certain labels.
    cal = fit(hetcal.ClassWiseTemperatureScaling(), z, observed, transition=0.0)
    assert cal.alpha_[0] == 100


def test_flat_rows_determine_no_temperature():
    for model in (hetcal.TemperatureScaling(), hetcal.ClassWiseTemperatureScaling()):
        cal = fit(model, np.zeros((20, 3)), [0, 1] * 10, transition=0.2)
        np.testing.assert_array_equal(cal.alpha_, 1)


@pytest.mark.parametrize("kind", [hetcal.TemperatureScaling, hetcal.ClassWiseTemperatureScaling])
def test_temperatures_of_very_large_logits(kind):
    rng = np.random.default_rng(0)
    z = 3 * rng.normal(size=(2000, 4))
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    y = np.where(rng.random(2000) < 0.2, rng.integers(4, size=2000), y)
    small, large = (
        fit(kind(alpha_bounds=(1e-8, 100)), scale * z, y, transition=0.2).alpha_ for scale in (1, 1e5)
    )
    np.testing.assert_allclose(1e5 * large, small, rtol=1e-6)


def test_classes_can_be_renumbered(sample):
    y, order = observe(sample.y, TRANSITION, 1), np.array([2, 0, 1])
    number = np.argsort(order)
    first = hetcal.VectorScaling(0.01).fit(sample.z, y, transition=TRANSITION)
    second = hetcal.VectorScaling(0.01).fit(
        sample.z[:, order], number[y], transition=TRANSITION[np.ix_(order, order)]
    )
    np.testing.assert_allclose(first.scale_[order], second.scale_, atol=1e-6)


def test_gradients_of_vector_scaling(sample):
    labels = NoisyLabels(observe(sample.y, TRANSITION, 1), TRANSITION)
    rows, theta = prepare(sample.z, sample.y, None, labels), np.array([0.5, 0.8, 0.6, 0.1, -0.2, 0.3])
    loss, gradient, _ = families.vector_sums(rows, theta)
    for value, slope in ((families.vector_sums(rows, theta)[:2]), families.vector_gradient(rows, theta)):
        np.testing.assert_allclose(value, loss)
        np.testing.assert_allclose(slope, gradient, atol=1e-8)
    step = 1e-6 * np.eye(6)
    numeric = [
        (families.vector_sums(rows, theta + s)[0] - families.vector_sums(rows, theta - s)[0]) / 2e-6
        for s in step
    ]
    np.testing.assert_allclose(gradient, numeric, atol=1e-4)


def test_many_classes_of_matrix_scaling_have_the_same_gradient(make_sample, monkeypatch):
    z, y, _ = make_sample(400, 5, 3)
    transition = 0.7 * np.eye(5) + 0.06
    newton = hetcal.MatrixScaling(0.02).fit(z, y, transition=transition)
    monkeypatch.setattr(matrix, "_MAX_DENSE", 2)
    search = hetcal.MatrixScaling(0.02).fit(z, y, transition=transition)
    np.testing.assert_allclose(search.change_, newton.change_, atol=1e-4)


# -- Soft labels -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in EXAMPLES if "Auto" not in n and "cv" not in n])
def test_soft_labels_equal_weighted_rows(name, sample):
    """A row with soft labels equals one row per class, weighted by the probability of the class."""
    y, z = suitable(EXAMPLES[name], sample.y, sample.z)
    k = z.shape[1]
    q = 0.7 * np.eye(k)[y] + 0.3 * softmax(z / 2, axis=1)
    weight = q.ravel() / q.sum()
    soft = fit(EXAMPLES[name], z, q).predict_proba(z)
    calibrator = EXAMPLES[name]
    repeated = MemorySource(
        prepare(np.repeat(z, k, axis=0), np.tile(np.arange(k), len(z)), weight * len(z)), None
    )
    expanded = clone(calibrator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hetcal.CalibrationWarning)
        expanded._fit(repeated)
    if "ClassWiseTemperatureScaling-1" in name:
        pytest.skip("copies of a row fall into different folds, so that cross-validation chooses another Γ")
    np.testing.assert_allclose(soft, expanded._predict(z, None), atol=2e-4)


def test_counts_are_divided_by_their_sum(sample):
    counts = np.random.default_rng(0).multinomial(20, softmax(sample.z / 2, axis=1))
    first, second = (hetcal.TemperatureScaling().fit(sample.z, q).alpha_ for q in (counts, counts / 20))
    assert first == pytest.approx(second, rel=1e-12)


@pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")
def test_soft_labels_that_are_spread_over_many_classes():
    """No class of these rows has a probability of 1%."""
    rng = np.random.default_rng(0)
    z, q = rng.normal(size=(200, 150)), rng.dirichlet(np.full(150, 500.0), size=200)
    p = hetcal.AutoCalibrator(cv=2).fit(z, q).predict_proba(z)
    assert -(q * np.log(p)).sum(axis=1).mean() < 1.01 * np.log(150)


def test_mixture_is_fitted_to_soft_labels(make_sample):
    z, _, _ = make_sample(2000, 3, 3)
    q = softmax(0.5 * z, axis=1)
    cal = fit(hetcal.AutoCalibrator(), z, q)
    assert np.abs(cal.predict_proba(z) - q).mean() < 0.01


def test_named_columns_of_soft_labels_are_aligned():
    pd = pytest.importorskip("pandas")
    z = pd.DataFrame({"cat": [2.0, 0.0, 1.0, 3.0], "dog": [0.0, 2.0, 0.0, 0.0]})
    q = pd.DataFrame({"dog": [0.2, 0.7, 0.4, 0.1], "cat": [0.8, 0.3, 0.6, 0.9]})
    first = hetcal.TemperatureScaling().fit(z, q)
    second = hetcal.TemperatureScaling().fit(z, q[["cat", "dog"]])
    assert first.alpha_ == second.alpha_


def test_named_transitions_must_have_the_order_of_the_classes():
    pd = pytest.importorskip("pandas")
    z = pd.DataFrame({"cat": [2.0, 0.0, 1.0, 3.0], "dog": [0.0, 2.0, 0.0, 0.0]})
    matrix = [[0.9, 0.1], [0.2, 0.8]]
    y = ["cat", "dog", "dog", "cat"]
    names = ["cat", "dog"]
    expected = hetcal.TemperatureScaling().fit(z, y, transition=matrix).alpha_
    for index in (None, names):
        named = pd.DataFrame(matrix, index=index, columns=names)
        assert hetcal.TemperatureScaling().fit(z, y, transition=named).alpha_ == expected
    for index, columns, kind in ((names, names[::-1], "columns"), (names[::-1], names, "rows")):
        named = pd.DataFrame(matrix, index=index, columns=columns)
        with pytest.raises(ValueError, match=f"{kind} in the order of the classes, cat, dog, got dog, cat"):
            hetcal.TemperatureScaling().fit(z, y, transition=named)
        with pytest.raises(ValueError, match="in the order of the classes"):
            hetcal.diagnose(z, y, transition=named)


def test_named_rates_must_have_the_order_of_the_classes():
    pd = pytest.importorskip("pandas")
    z = pd.DataFrame({"cat": [2.0, 0.0, 1.0, 3.0], "dog": [0.0, 2.0, 0.0, 0.0]})
    y, probs = ["cat", "dog", "dog", "cat"], pd.DataFrame([[0.4, 0.6]] * 4, columns=["cat", "dog"])
    expected = hetcal.TemperatureScaling().fit(z, y, transition=[0.3, 0.1]).alpha_
    for index in (None, ["cat", "dog"]):
        rates = pd.Series([0.3, 0.1], index=index)
        assert hetcal.TemperatureScaling().fit(z, y, transition=rates).alpha_ == expected
    rates = pd.Series([0.1, 0.3], index=["dog", "cat"])
    for use in (
        lambda: hetcal.TemperatureScaling().fit(z, y, transition=rates),
        lambda: hetcal.metrics.ece(probs, y, transition=rates),
        lambda: hetcal.diagnose(z, y, transition=rates),
    ):
        with pytest.raises(ValueError, match="index in the order of the classes, cat, dog, got dog, cat"):
            use()


# -- Label models ------------------------------------------------------------------------------------


def test_posterior_by_hand():
    labels = NoisyLabels(np.array([1]), TRANSITION)
    q, nll = labels.posterior(np.log([[0.5, 0.3, 0.2]]))
    joint = np.array([0.5 * 0.15, 0.3 * 0.85, 0.2 * 0.3])
    np.testing.assert_allclose(q, [joint / joint.sum()])
    np.testing.assert_allclose(nll, [-np.log(joint.sum())])


def test_derivatives_of_the_pull(sample):
    d = sample.z - sample.z.max(axis=1, keepdims=True)
    for labels in (NoisyLabels(sample.y, TRANSITION), SoftLabels(softmax(sample.z[::-1], axis=1))):
        alpha, h = np.full(len(d), 0.8), 1e-4
        values = [labels.moments(d, alpha + step)[0] for step in (-h, 0, h)]
        _, first, second, _ = labels.moments(d, alpha)
        np.testing.assert_allclose(first, (values[2] - values[0]) / (2 * h), atol=1e-5)
        np.testing.assert_allclose(second, (values[2] - 2 * values[1] + values[0]) / h**2, atol=1e-4)


def test_unbiased_numbers_have_the_expected_mean():
    y = np.repeat([0, 1, 2], 30_000)
    numbers = NoisyLabels(observe(y, TRANSITION, 0), TRANSITION).unbiased()
    np.testing.assert_allclose([numbers[y == k].mean(axis=0) for k in range(3)], np.eye(3), atol=0.03)


def test_impossible_labels_keep_losses_finite():
    certain = NoisyLabels(np.array([1, 0]), np.eye(2)).correctness(
        np.array([[5.0, 0], [5.0, 0]]), np.zeros(2, int)
    )
    pull, slope = certain.pull(np.array([3.0, 3.0]))
    assert np.isfinite(pull).all()
    np.testing.assert_allclose(slope, [0, 1], atol=1e-12)
    np.testing.assert_allclose(Correctness(share=np.array([0.3])).pull(np.array([2.0])), [[0.6], [0.3]])


def test_hessians_that_are_not_positive_are_replaced():
    h, pulled = np.diag([2.0, 3.0]), np.diag([1.0, 4.0])
    np.testing.assert_array_equal(positive_or(h, pulled / 2), h - pulled / 2)
    np.testing.assert_array_equal(positive_or(h, pulled), h)


# -- Errors ------------------------------------------------------------------------------------------


def test_transition_and_soft_labels_exclude_each_other(sample):
    with pytest.raises(ValueError, match="transition must be left out for soft labels"):
        hetcal.TemperatureScaling().fit(sample.z, np.eye(3)[sample.y], transition=0.1)


def test_singular_transitions_are_refused():
    """A label can be most probable for its own class although the labels do not determine the classes."""
    transition = np.stack([np.roll([0.35, 0.3, 0.15, 0.2], shift) for shift in range(4)])
    z, y = np.eye(4) * 2, np.arange(4)
    for use in (
        lambda: hetcal.TemperatureScaling().fit(z, y, transition=transition),
        lambda: hetcal.metrics.accuracy(softmax(z, axis=1), y, transition=transition),
        lambda: hetcal.diagnose(z, y, transition=transition),
    ):
        with pytest.raises(ValueError, match="transition must be invertible"):
            use()


def test_batches_and_external_calibrators_are_refused(sample):
    with pytest.raises(ValueError, match="transition must be left out for rows in batches"):
        hetcal.TemperatureScaling().fit(hetcal.Batches(sample.z, sample.y), transition=0.1)
    for options in ({"transition": 0.1}, {}):
        labels = sample.y if options else np.eye(3)[sample.y]
        with pytest.raises(TypeError, match="need calibrators of hetcal, got LogisticRegression"):
            hetcal.Chain([hetcal.TemperatureScaling(), LogisticRegression()]).fit(sample.z, labels, **options)


def test_noise_hardly_changes_the_penalty_of_many_entries():
    """With more than 20 classes, the penalty of the off-diagonal entries was far too small."""
    rng = np.random.default_rng(0)
    change = 0.05 * rng.normal(size=(40, 40))
    z = 5 * rng.normal(size=(1500, 40))
    y = (z + z @ change.T + rng.gumbel(size=z.shape)).argmax(axis=1)
    noisy = np.where(rng.random(1500) < 0.3, rng.integers(40, size=1500), y)
    model = hetcal.MatrixScaling(center="mean")
    clean, corrected = fit(model, z, y), fit(model, z, noisy, transition=0.3)
    assert corrected.penalty_[1] > 0.6 * clean.penalty_[1]
