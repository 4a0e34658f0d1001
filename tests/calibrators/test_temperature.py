"""Class-wise temperature scaling agrees with generic optimisers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from scipy.special import logsumexp

from hetcal import (
    CalibrationWarning,
    ClassWise,
    ClassWiseTemperatureScaling,
    PlattScaling,
    TemperatureScaling,
)

BOUNDS = (0.01, 100.0)
quiet = pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")


def rows_nll(z, y, alpha, w):
    """NLL of each row from its definition, with inverse temperatures alpha (n,)."""
    u = z.astype(float) * alpha[:, None]
    return w * (logsumexp(u, axis=1) - u[np.arange(len(y)), y])


def slope_nll(z, y, alpha, w):
    """Derivative of the NLL of each row with respect to its alpha."""
    u = z.astype(float) * alpha[:, None]
    p = np.exp(u - logsumexp(u, axis=1, keepdims=True))
    return w * ((p * z).sum(axis=1) - z[np.arange(len(y)), y])


def weights(n, weighted, seed):
    return np.random.default_rng(seed).uniform(0.1, 3, size=n) if weighted else np.ones(n)


def separate_search(z, y, w, ids, n_slices):
    """One bounded scalar search per slice."""
    best = np.full(n_slices, np.nan)
    for k in np.unique(ids):
        r = ids == k

        def loss(log_a, r=r):
            return rows_nll(z[r], y[r], np.full(r.sum(), np.exp(log_a)), w[r]).sum()

        solution = minimize_scalar(loss, bounds=np.log(BOUNDS), method="bounded", options={"xatol": 1e-11})
        best[k] = np.exp(solution.x)
    return best


def objective(z, y, w, ids, alpha):
    return rows_nll(z, y, alpha[ids], w).sum()


def outer_search(z, y, w, ids, best, gamma):
    """Minimisers of the slices clipped to an interval around the centre, which a scalar search finds."""
    present = np.unique(ids)

    def clipped(centre):
        alpha = best.copy()
        alpha[present] = np.clip(best[present], centre - gamma, centre + gamma)
        return alpha

    low, high = np.nanmin(best), np.nanmax(best)
    solution = minimize_scalar(
        lambda c: objective(z, y, w, ids, clipped(c)),
        bounds=(low, high),
        method="bounded",
        options={"xatol": 1e-12, "maxiter": 500},
    )
    return objective(z, y, w, ids, clipped(solution.x))


def slsqp(z, y, w, ids, n_slices, gamma, start):
    """Joint problem in (α_0, α_1, …) solved by SLSQP and projected onto the constraints."""
    total = w.sum()

    def value(x):
        slope = np.bincount(ids, slope_nll(z, y, x[1:][ids], w), n_slices)
        return objective(z, y, w, ids, x[1:]) / total, np.concatenate([[0.0], slope / total])

    eye, ones = np.eye(n_slices), np.ones((n_slices, 1))
    pull = np.block([[-ones, eye], [ones, -eye]])  # ±(α_k − α_0) ≤ Γ
    solution = minimize(
        value,
        np.full(n_slices + 1, start),
        jac=True,
        method="SLSQP",
        bounds=[BOUNDS] * (n_slices + 1),
        constraints={"type": "ineq", "fun": lambda x: gamma - pull @ x, "jac": lambda _: -pull},
        options={"maxiter": 1000, "ftol": 1e-15},
    )
    alpha = np.clip(solution.x[1:], solution.x[0] - gamma, solution.x[0] + gamma)
    return objective(z, y, w, ids, alpha)


SIZES = [(300, 3), (1500, 10), (6000, 100)]


@quiet
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("n", "n_classes"), SIZES)
def test_gamma_inf_equals_a_scalar_search_per_class(make_sample, n, n_classes, seed, weighted):
    z, y, _ = make_sample(n, n_classes, seed)
    w = weights(n, weighted, seed)
    cal = ClassWiseTemperatureScaling().fit(z, y, sample_weight=w if weighted else None)
    best = separate_search(z, y, w, z.argmax(axis=1), n_classes)
    interior = (best > 1.01 * BOUNDS[0]) & (best < 0.5 * BOUNDS[1])
    assert interior.mean() > 0.8
    np.testing.assert_allclose(cal.alpha_[interior], best[interior], rtol=1e-5)
    assert np.all(np.isin(cal.alpha_[~interior], BOUNDS))
    np.testing.assert_array_equal(cal.n_samples_, np.bincount(z.argmax(axis=1), minlength=n_classes))


@quiet
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("n", "n_classes"), SIZES)
def test_gamma_zero_equals_temperature_scaling(make_sample, n, n_classes, seed, weighted):
    z, y, _ = make_sample(n, n_classes, seed)
    w = weights(n, True, seed) if weighted else None
    cal = ClassWiseTemperatureScaling(gamma=0.0).fit(z, y, sample_weight=w)
    single = TemperatureScaling().fit(z, y, sample_weight=w)
    np.testing.assert_allclose(cal.alpha_, single.alpha_, rtol=1e-6)
    np.testing.assert_allclose(cal.predict_proba(z), single.predict_proba(z), atol=1e-6)
    assert cal.alpha0_ == pytest.approx(single.alpha_, rel=1e-6)
    pooled = separate_search(z, y, np.ones(n) if w is None else w, np.zeros(n, int), 1)[0]
    assert single.alpha_ == pytest.approx(pooled, rel=1e-6)


@quiet
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("gamma", [0.05, 0.3])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("n", "n_classes"), SIZES)
def test_coupled_optimum_agrees_with_generic_optimisers(make_sample, n, n_classes, seed, gamma, weighted):
    z, y, _ = make_sample(n, n_classes, seed, alpha=np.geomspace(0.2, 2.5, n_classes))
    w, ids = weights(n, weighted, seed), z.argmax(axis=1)
    cal = ClassWiseTemperatureScaling(gamma=gamma).fit(z, y, sample_weight=w if weighted else None)
    ours = objective(z, y, w, ids, cal.alpha_)
    assert np.abs(cal.alpha_ - cal.alpha0_).max() <= gamma + 1e-9
    assert cal.alpha_.min() >= BOUNDS[0]
    assert cal.alpha_.max() <= BOUNDS[1]
    best = separate_search(z, y, w, ids, n_classes)
    single = np.full(n_classes, TemperatureScaling().fit(z, y, sample_weight=w).alpha_)
    # The constraint must be active, otherwise the comparison below would be trivial.
    assert objective(z, y, w, ids, best) < ours < objective(z, y, w, ids, single)
    references = [outer_search(z, y, w, ids, best, gamma)]
    if n_classes <= 10:
        references.append(slsqp(z, y, w, ids, n_classes, gamma, cal.alpha0_))
    for reference in references:
        assert ours <= reference * (1 + 1e-12)
        assert ours == pytest.approx(reference, rel=1e-9)


@quiet
@pytest.mark.parametrize("gamma", [0.05, 0.3])
def test_coupled_optimum_beats_every_feasible_neighbour(make_sample, gamma):
    z, y, _ = make_sample(1000, 10, 5)
    ids, rng = z.argmax(axis=1), np.random.default_rng(0)
    cal = ClassWiseTemperatureScaling(gamma=gamma).fit(z, y)
    ours = objective(z, y, np.ones(len(y)), ids, cal.alpha_)
    for size in (1e-6, 1e-4, 1e-2, 1.0):
        for _ in range(20):
            centre = cal.alpha0_ + size * rng.normal()
            alpha = np.clip(cal.alpha_ + size * rng.normal(size=10), centre - gamma, centre + gamma)
            assert ours <= objective(z, y, np.ones(len(y)), ids, np.clip(alpha, *BOUNDS)) * (1 + 1e-13)


@quiet
@pytest.mark.parametrize("gamma", [0.0, 0.05, 0.3, np.inf, "bayes"])
@pytest.mark.parametrize(("n", "n_classes"), SIZES)
def test_float32_and_float64_agree(make_sample, n, n_classes, gamma):
    z, y, _ = make_sample(n, n_classes, 3, dtype=np.float32)
    narrow = ClassWiseTemperatureScaling(gamma=gamma).fit(z, y)
    wide = ClassWiseTemperatureScaling(gamma=gamma).fit(z.astype(np.float64), y)
    np.testing.assert_allclose(narrow.alpha_, wide.alpha_, rtol=1e-4)
    p, q = narrow.predict_proba(z), wide.predict_proba(z.astype(np.float64))
    assert p.dtype == np.float32
    assert q.dtype == np.float64
    np.testing.assert_allclose(p, q, atol=1e-4)


@quiet
@pytest.mark.parametrize("gamma", [0.0, 0.1, np.inf, "cv", "bayes"])
def test_bundles_are_groups_of_predicted_classes(make_sample, gamma):
    z, y, _ = make_sample(2000, 6, 0)
    bundles = np.array([0, 2, 0, 1, 2, 1])
    bundled = ClassWiseTemperatureScaling(gamma=gamma, bundles=bundles).fit(z, y)
    grouped = ClassWiseTemperatureScaling(gamma=gamma).fit(z, y, groups=bundles[z.argmax(axis=1)])
    np.testing.assert_allclose(bundled.alpha_, grouped.alpha_[bundles], rtol=1e-12)
    np.testing.assert_array_equal(bundled.n_samples_, np.bincount(z.argmax(axis=1), minlength=6))
    np.testing.assert_allclose(
        bundled.predict_proba(z), grouped.predict_proba(z, groups=bundles[z.argmax(axis=1)]), atol=1e-12
    )


def test_number_of_bundles_is_the_number_of_temperatures(make_sample):
    z, y, _ = make_sample(4000, 20, 0)
    cal = ClassWiseTemperatureScaling(bundles=4).fit(z, y)
    assert len(np.unique(cal.alpha_)) == 4


@pytest.mark.parametrize("names", [np.array(["b", "a", "c"]), np.array([7, -1, 3])])
def test_groups_at_gamma_inf_are_separate_fits(make_sample, names):
    z, y, _ = make_sample(1200, 4, 1)
    groups = names[np.random.default_rng(0).integers(0, 3, size=len(y))]
    cal = ClassWiseTemperatureScaling().fit(z, y, groups=groups)
    assert cal.groups_.tolist() == sorted(names.tolist())
    for g, alpha, count in zip(cal.groups_, cal.alpha_, cal.n_samples_, strict=True):
        separate = TemperatureScaling().fit(z[groups == g], y[groups == g])
        assert alpha == pytest.approx(separate.alpha_, rel=1e-8)
        assert count == np.count_nonzero(groups == g)
        np.testing.assert_allclose(
            cal.predict_proba(z[groups == g], groups=groups[groups == g]),
            separate.predict_proba(z[groups == g]),
        )


@pytest.mark.parametrize("gamma", [0.05, 0.3])
def test_coupled_groups_reach_the_optimum(make_sample, gamma):
    z, y, _ = make_sample(2500, 5, 2)
    ids = np.random.default_rng(1).integers(0, 7, size=len(y))
    ids[z.argmax(axis=1) == 0] = 0  # makes the groups different
    cal = ClassWiseTemperatureScaling(gamma=gamma).fit(z, y, groups=ids)
    w = np.ones(len(y))
    reference = slsqp(z, y, w, ids, 7, gamma, 1.0)
    assert objective(z, y, w, ids, cal.alpha_) == pytest.approx(reference, rel=1e-9)
    assert objective(z, y, w, ids, cal.alpha_) <= reference * (1 + 1e-12)
    assert np.abs(cal.alpha_ - cal.alpha0_).max() <= gamma + 1e-9


@quiet
def test_class_with_a_single_row_has_its_own_temperature(make_sample):
    z, y, _ = make_sample(200, 3, 0)
    z = np.r_[z[z.argmax(axis=1) < 2], [[0.0, 1.0, 2.0]]]
    y = np.r_[y[: len(z) - 1] % 2, 0]
    class_wise, general = ClassWiseTemperatureScaling().fit(z, y), ClassWise(TemperatureScaling()).fit(z, y)
    assert class_wise.n_samples_[2] == 1
    np.testing.assert_array_equal(general.parameters_[:, 0], class_wise.alpha_)
    limited = ClassWise(TemperatureScaling(), min_samples=2).fit(z, y)
    assert limited.parameters_[2, 0] == limited.center_[0] != class_wise.alpha_[2]
    platt = [ClassWise(PlattScaling(), 0.5, min_samples=least).fit(z, y) for least in (None, 1, 2)]
    np.testing.assert_array_equal(platt[0].parameters_, platt[1].parameters_)
    assert (platt[1].parameters_[2] != platt[1].center_).any()
    assert (platt[2].parameters_[2] == platt[2].center_).all()


@quiet
@pytest.mark.parametrize("gamma", [0.0, 0.2, np.inf, "cv", "bayes"])
def test_class_wise_temperature_scaling_gives_equal_results(make_sample, gamma):
    z, y, _ = make_sample(900, 5, 4)
    special = ClassWiseTemperatureScaling(gamma=gamma).fit(z, y)
    general = ClassWise(TemperatureScaling(), gamma=gamma).fit(z, y)
    np.testing.assert_array_equal(general.parameters_[:, 0], special.alpha_)
    assert general.gamma_ == special.gamma_
    assert general.choice_ == special.choice_
    np.testing.assert_array_equal(general.predict_proba(z), special.predict_proba(z))


def test_case_worked_by_hand():
    # Two classes with a logit difference of 2: sigmoid(2 α) must equal the accuracy.
    z = np.array([[2.0, 0.0]] * 10 + [[0.0, 2.0]] * 10)
    y = np.array([0] * 9 + [1] + [1] * 6 + [0] * 4)
    cal = ClassWiseTemperatureScaling().fit(z, y)
    np.testing.assert_allclose(cal.alpha_, [np.log(9) / 2, np.log(1.5) / 2], rtol=1e-9)
    np.testing.assert_allclose(cal.predict_proba(z[[0, 10]]), [[0.9, 0.1], [0.4, 0.6]], rtol=1e-9)


def test_known_truth_is_recovered(make_sample):
    truth = np.array([0.3, 0.6, 1.0, 1.5])
    z, y, _ = make_sample(40_000, 4, 0, alpha=truth)
    cal = ClassWiseTemperatureScaling().fit(z, y)
    np.testing.assert_allclose(cal.alpha_, truth, rtol=0.06)


def test_wider_gamma_never_fits_worse(make_sample):
    z, y, _ = make_sample(800, 6, 8)
    ids, w = z.argmax(axis=1), np.ones(800)
    gammas = [0.0, 1e-3, 0.01, 0.05, 0.1, 0.3, 1.0, 5.0, np.inf]
    losses = []
    for gamma in gammas:
        cal = ClassWiseTemperatureScaling(gamma=gamma).fit(z, y)
        losses.append(objective(z, y, w, ids, cal.alpha_))
    assert np.all(np.diff(losses) <= 1e-10 * losses[0])


def test_inactive_gamma_gives_the_unconstrained_solution(make_sample):
    z, y, _ = make_sample(800, 4, 8)
    free = ClassWiseTemperatureScaling().fit(z, y)
    wide = ClassWiseTemperatureScaling(gamma=50.0).fit(z, y)
    np.testing.assert_array_equal(wide.alpha_, free.alpha_)
    # The centre is the optimal one that is nearest to the pooled fit.
    assert wide.alpha0_ == pytest.approx(free.alpha0_)


def test_class_that_is_never_predicted_has_the_centre(make_sample):
    z, y, _ = make_sample(500, 4, 0)
    z, y = z[(z.argmax(axis=1) != 2) & (y != 2)], y[(z.argmax(axis=1) != 2) & (y != 2)]
    for gamma in (0.1, np.inf, "bayes", "cv"):
        with pytest.warns(CalibrationWarning, match="class 2"):
            cal = ClassWiseTemperatureScaling(gamma=gamma).fit(z, y)
        assert cal.alpha_[2] == cal.alpha0_
        assert cal.n_samples_[2] == 0


@pytest.mark.parametrize("scale", [0.5, 1.0, 40.0, 1e4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_separable_class_is_at_the_upper_bound(make_sample, scale, dtype):
    # For large logits, the gradient underflows long before the bound.
    z, y, _ = make_sample(600, 3, 0, dtype=dtype)
    guess = z.argmax(axis=1)
    y[guess == 1] = 1
    z[guess == 1] *= scale
    with pytest.warns(CalibrationWarning, match=r"\(0\.01, 100\.0\) .*class 1"):
        cal = ClassWiseTemperatureScaling().fit(z, y)
    assert cal.alpha_[1] == 100.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_separable_data_reach_the_upper_bound(make_sample, dtype):
    z, _, _ = make_sample(600, 3, 0, dtype=dtype)
    with pytest.warns(CalibrationWarning, match=r"\(0\.01, 100\.0\) .*whole data set"):
        cal = TemperatureScaling().fit(z, z.argmax(axis=1))
    assert cal.alpha_ == 100.0


def test_class_that_is_always_wrong_is_at_the_lower_bound(make_sample):
    z, y, _ = make_sample(600, 3, 0)
    guess = z.argmax(axis=1)
    y[guess == 1] = z[guess == 1].argmin(axis=1)
    with pytest.warns(CalibrationWarning, match="class 1"):
        cal = ClassWiseTemperatureScaling().fit(z, y)
    assert cal.alpha_[1] == 0.01


def test_no_warning_if_gamma_limits_a_separable_class(make_sample):
    z, y, _ = make_sample(600, 3, 0)
    y[z.argmax(axis=1) == 1] = 1
    cal = ClassWiseTemperatureScaling(gamma=0.1).fit(z, y)  # warnings are errors
    assert cal.alpha_[1] == pytest.approx(cal.alpha0_ + 0.1)


def test_alpha_stays_within_its_bounds(make_sample):
    z, y, _ = make_sample(800, 4, 0, alpha=np.array([0.2, 0.5, 1.0, 2.0]))
    with pytest.warns(CalibrationWarning, match=r"\(0\.4, 1\.2\) .*class 0, class 3"):
        cal = ClassWiseTemperatureScaling(alpha_bounds=(0.4, 1.2)).fit(z, y)
    assert cal.alpha_[[0, 3]].tolist() == [0.4, 1.2]
    assert np.all((cal.alpha_[1:3] > 0.4) & (cal.alpha_[1:3] < 1.2))
