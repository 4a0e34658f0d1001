"""Chains and mixtures of calibrators."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

import hetcal
from hetcal import Chain, ClassWise, Identity, Mixture, PlattScaling, TemperatureScaling, VectorScaling
from hetcal._numeric.passes import spread
from hetcal.calibrators.base import groups_of

pytestmark = pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")


def nll(p, y):
    return -np.log(np.maximum(p[np.arange(len(y)), y], 1e-12)).mean()


def test_chain_is_fitted_step_by_step(make_sample):
    z, y, _ = make_sample(800, 4, 0)
    first = TemperatureScaling().fit(z, y)
    second = PlattScaling().fit(np.log(first.predict_proba(z)), y)
    chain = Chain([TemperatureScaling(), PlattScaling()]).fit(z, y)
    expected = second.predict_proba(np.log(first.predict_proba(z)))
    np.testing.assert_allclose(chain.predict_proba(z), expected, atol=1e-12)
    assert [type(step) for step in chain.steps_] == [TemperatureScaling, PlattScaling]
    assert chain.preserves_decision
    assert not Chain([VectorScaling(), PlattScaling()]).preserves_decision


def test_chain_passes_weights_and_groups_to_all_steps(make_sample):
    z, y, _ = make_sample(600, 3, 0)
    groups, w = np.arange(600) % 2, np.random.default_rng(0).uniform(0.5, 2, size=600)
    steps = [TemperatureScaling(), ClassWise(PlattScaling(), gamma="bayes")]
    chain = Chain(steps).fit(z, y, sample_weight=w, groups=groups)
    assert chain.steps_[0].alpha_ == TemperatureScaling().fit(z, y, sample_weight=w).alpha_
    assert chain.steps_[1].slices_.groups.tolist() == [0, 1]
    assert chain.predict_proba(z, groups=groups).shape == z.shape
    with pytest.raises(ValueError, match="groups must"):
        chain.predict_proba(z)


def test_mixture_is_the_weighted_mean(make_sample):
    z, y, _ = make_sample(500, 4, 0)
    mixture = Mixture([Identity(), TemperatureScaling(), PlattScaling()], [2, 1, 1]).fit(z, y)
    parts = [c.fit(z, y).predict_proba(z) for c in (Identity(), TemperatureScaling(), PlattScaling())]
    expected = parts[0] / 2 + parts[1] / 4 + parts[2] / 4
    np.testing.assert_allclose(mixture.predict_proba(z), expected, atol=1e-12)
    np.testing.assert_allclose(mixture.weights_, [0.5, 0.25, 0.25])
    assert mixture.preserves_decision


def test_mixture_of_certain_rows_does_not_exceed_one():
    rng = np.random.default_rng(0)
    z, y = np.array([[800.0, 0.0], [0.0, 800.0]]), [0, 1]
    for _ in range(50):
        w = rng.random(7)
        mixture = Mixture([Identity() for _ in w], w).fit(z, y)
        assert mixture.predict_proba(z).max() <= 1


@pytest.mark.parametrize("kind", [Chain, Mixture])
def test_groups_are_those_of_the_members(make_sample, kind):
    z, y, _ = make_sample(200, 3, 0)
    groups = np.where(np.arange(200) % 3, "b", "a")
    model = kind([TemperatureScaling(), ClassWise(TemperatureScaling(), 0.1)]).fit(z, y, groups=groups)
    np.testing.assert_array_equal(groups_of(model), ["a", "b"])
    assert groups_of(kind([Identity(), TemperatureScaling()]).fit(z, y)) is None


@pytest.mark.parametrize("kind", [Chain, Mixture])
@pytest.mark.parametrize(
    ("steps", "error"),
    [([], ValueError), ("TS", TypeError), ([TemperatureScaling], TypeError), ([3], TypeError)],
)
def test_bad_steps(kind, steps, error, make_sample):
    z, y, _ = make_sample(50, 3, 0)
    with pytest.raises(error, match=r"(steps|calibrators) must"):
        kind(steps).fit(z, y)


@pytest.mark.parametrize("weights", [[1], [1, -1], [0, 0], [1, np.nan]])
def test_bad_weights(weights, make_sample):
    z, y, _ = make_sample(50, 3, 0)
    with pytest.raises(ValueError, match="weights must"):
        Mixture([Identity(), TemperatureScaling()], weights).fit(z, y)


def test_vector_scaling_with_keep_decision(make_sample):
    z, y, _ = make_sample(3000, 5, 0)
    y = np.where(np.random.default_rng(0).random(3000) < 0.3, 0, y)
    plain, keeping = VectorScaling().fit(z, y), VectorScaling(keep_decision=True).fit(z, y)
    np.testing.assert_array_equal(keeping.scale_, plain.scale_)
    p, q = plain.predict_proba(z), keeping.predict_proba(z)
    same = p.argmax(axis=1) == z.argmax(axis=1)
    assert 0.5 < same.mean() < 1
    np.testing.assert_array_equal(q.argmax(axis=1), z.argmax(axis=1))
    np.testing.assert_allclose(q[same], p[same], atol=1e-12)
    changed = q[~same]
    ranked = np.sort(changed, axis=1)
    # The original class is tied with the class that would have overtaken it.
    np.testing.assert_allclose(ranked[:, -1], ranked[:, -2], rtol=1e-12)
    assert keeping.preserves_decision
    assert not plain.preserves_decision


def test_centred_vector_scaling_is_invariant_to_shifts(make_sample):
    z, y, _ = make_sample(1000, 4, 0)
    shift = np.random.default_rng(0).normal(size=(1000, 1)) * 50
    cal = VectorScaling(1e-3, center=True)
    first = cal.fit(z, y).predict_proba(z)
    np.testing.assert_allclose(cal.fit(z + shift, y).predict_proba(z + shift), first, atol=1e-9)
    masked = np.c_[z, np.full(1000, -1e30)]
    assert np.isfinite(cal.fit(masked, y).predict_proba(masked)).all()
    with pytest.raises(ValueError, match=r"base must .*center=False"):
        ClassWise(cal, 0.1).fit(z, y)


def test_pooling_is_the_nearest_distribution_that_preserves_the_decision():
    """Pooling minimises the KL divergence from the unconstrained probabilities; compared with SLSQP."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(30, 4)) * 2
    c = rng.uniform(0.05, 0.6, size=30)
    p = spread(z, c, pool=True)
    guess = z.argmax(axis=1)
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-12)
    np.testing.assert_array_equal(p.argmax(axis=1), guess)
    for i in range(30):
        target = np.exp(z[i])
        target[guess[i]] = 0
        target *= (1 - c[i]) / target.sum()
        target[guess[i]] = c[i]
        solution = minimize(
            lambda q, target=target: -(target @ np.log(np.maximum(q, 1e-12))),
            np.full(4, 0.25),
            method="SLSQP",
            bounds=[(1e-9, 1)] * 4,
            constraints=[
                {"type": "eq", "fun": lambda q: q.sum() - 1},
                {"type": "ineq", "fun": lambda q, k=guess[i]: q[k] - np.delete(q, k)},
            ],
            options={"ftol": 1e-14, "maxiter": 500},
        )
        np.testing.assert_allclose(p[i], solution.x, atol=2e-4)


def test_shrunk_platt_beats_separate_and_pooled_fits_of_small_classes(make_sample):
    """With 20 rows per class, separate fits overfit and one fit for all classes underfits."""
    free = pooled = shrunk = 0.0
    for seed in range(4):
        z, y, _ = make_sample(30_000, 30, seed, spread=0.8)
        fit, rest = slice(0, 600), slice(600, None)
        free += nll(ClassWise(PlattScaling(), np.inf).fit(z[fit], y[fit]).predict_proba(z[rest]), y[rest])
        pooled += nll(PlattScaling().fit(z[fit], y[fit]).predict_proba(z[rest]), y[rest])
        model = ClassWise(PlattScaling(), gamma="bayes").fit(z[fit], y[fit])
        shrunk += nll(model.predict_proba(z[rest]), y[rest])
        assert set(model.choice_) == {"mean", "spread"}
    assert shrunk < pooled
    assert shrunk < free


def test_bayes_records_mean_and_spread(make_sample):
    z, y, _ = make_sample(300, 3, 0)
    model = ClassWise(PlattScaling(), gamma="bayes").fit(z, y)
    np.testing.assert_array_equal(model.choice_["mean"], model.center_)
    spread = np.array(model.choice_["spread"])
    np.testing.assert_allclose(spread, spread.T)
    assert np.linalg.eigvalsh(spread).min() > 0
    assert model.gamma_ == pytest.approx(np.linalg.norm(model.parameters_ - model.center_, axis=1).max())


def test_unsupported_values_of_gamma(make_sample):
    z, y, _ = make_sample(200, 3, 0)
    with pytest.raises(ValueError, match=r"gamma must .*got 'bayes'"):
        ClassWise(VectorScaling(), "bayes").fit(z, y)
    with pytest.raises(ValueError, match=r"gamma must .*got 'cv'"):
        ClassWise(PlattScaling(), "cv").fit(z, y)


def test_auto_is_no_worse_than_temperature_scaling_with_twenty_rows_per_class(make_sample):
    for seed in range(3):
        z, y, _ = make_sample(10_200, 10, seed, spread=0.5)
        fit, rest = slice(0, 200), slice(200, None)
        auto = nll(hetcal.AutoCalibrator().fit(z[fit], y[fit]).predict_proba(z[rest]), y[rest])
        pooled = nll(TemperatureScaling().fit(z[fit], y[fit]).predict_proba(z[rest]), y[rest])
        assert auto < pooled + 0.005


@pytest.mark.parametrize(
    "cal",
    [
        VectorScaling(keep_decision="no"),
        VectorScaling(center=1),
        PlattScaling(pool=None),
        ClassWise(PlattScaling(pool="yes"), 1.0),
    ],
    ids=repr,
)
def test_flags_must_be_boolean(cal, make_sample):
    z, y, _ = make_sample(50, 3, 0)
    with pytest.raises(TypeError, match=r"(keep_decision|center|pool) must"):
        cal.fit(z, y)


@pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")
def test_member_of_another_library_that_misses_a_class():
    from sklearn.linear_model import LogisticRegression

    from hetcal import AutoCalibrator, Mixture, TemperatureScaling

    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(600, 4)), rng.choice([0, 1, 3], size=600)
    direct = LogisticRegression().fit(z, y).predict_proba(z)
    for cal in (
        Chain([LogisticRegression()]),
        Chain([LogisticRegression(), TemperatureScaling()]),
        Mixture([LogisticRegression(), TemperatureScaling()]),
        AutoCalibrator({"lr": LogisticRegression(), "ts": TemperatureScaling()}, cv=2),
    ):
        p = cal.fit(z, y).predict_proba(z)
        assert p.shape == (600, 4)
        np.testing.assert_allclose(p.sum(axis=1), 1)
    np.testing.assert_allclose(Chain([LogisticRegression()]).fit(z, y).predict_proba(z)[:, [0, 1, 3]], direct)
