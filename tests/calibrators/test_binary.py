"""Binary scaling: its optimum, symmetry, edge cases and agreement between kinds of input."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

import hetcal
from hetcal import Batches, BinaryScaling, ClassWise, TemperatureScaling, VectorScaling
from hetcal._numeric.binary import MergedRows, smooth_distance
from hetcal.export import maps

PENALISED = ("linear", "quadratic", "beta", "spline")
FAMILIES = (*PENALISED, "isotonic")
every_family = pytest.mark.parametrize("features", FAMILIES)


def curved(n, seed=0, scale=2.5):
    """Logits whose log-odds are too extreme for negative values only, labels and true probabilities."""
    rng = np.random.default_rng(seed)
    x = rng.normal(scale=scale, size=n)
    p = expit(np.where(x > 0, x, x / 4) + 0.3)
    return np.stack([-x, x], axis=1) / 2, (rng.random(n) < p).astype(int), p


def mean_nll(p, y, w=None):
    return np.average(-np.log(p[np.arange(len(y)), y]), weights=w)


def weighted_moments(values, w):
    mean = np.average(values, axis=0, weights=w)
    return mean, np.sqrt(np.average((values - mean) ** 2, axis=0, weights=w))


def standardised(cal, z, w):
    """Log-odds, features with mean 0 and standard deviation 1, and the prior precision of each."""
    x = np.clip(cal.alpha_ * (z[:, 1] - z[:, 0]), -cal.limit_, cal.limit_)

    def distance(knot, width):
        t = (x - knot) / width
        return width * (np.logaddexp(0, t) + np.logaddexp(0, -t))

    columns = {
        "linear": [x],
        "quadratic": [x**2],
        "beta": [distance(0, 1)],
    }
    columns |= {kind: [distance(k, cal.widths_[kind]) for k in knots] for kind, knots in cal.knots_.items()}
    names = [name for name in cal.scales_ if name != "bias" for _ in columns[name]]
    raw = np.stack([column for name in cal.scales_ if name != "bias" for column in columns[name]], axis=1)
    mean, deviation = weighted_moments(raw, w)
    features = np.c_[(raw - mean) / deviation, np.ones(len(x))]
    return x, features, np.array([cal.scales_[name] for name in [*names, "bias"]]) ** -2


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("features", PENALISED)
def test_the_fit_minimises_the_penalised_loss(features, weighted):
    z, y, _ = curved(1500)
    w = np.random.default_rng(1).uniform(0.2, 3, size=len(y)) if weighted else np.ones(len(y))
    cal = BinaryScaling(features).fit(z, y, sample_weight=w if weighted else None)
    weight = w * w.sum() / (w @ w)
    x, phi, precision = standardised(cal, z, weight)

    def objective(theta):
        u = x + phi @ theta
        loss = weight @ (np.logaddexp(0, u) - y * u) + precision @ theta**2 / 2
        return loss, phi.T @ (weight * (expit(u) - y)) + precision * theta

    solution = minimize(objective, np.zeros(phi.shape[1]), jac=True, method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(cal.predict_proba(z)[:, 1], expit(x + phi @ solution.x), atol=1e-6)


def test_a_long_fit_with_linear_features_is_logistic_regression():
    z, y, _ = curved(100_000)
    cal = BinaryScaling("linear").fit(z, y)
    x = np.clip(z[:, 1] - z[:, 0], -cal.limit_ / cal.alpha_, cal.limit_ / cal.alpha_)[:, None]
    peer = LogisticRegression(C=np.inf).fit(x, y)
    assert cal.coefficients_["linear"] * cal.alpha_ == pytest.approx(peer.coef_[0, 0], rel=2e-3)
    assert cal.coefficients_["bias"] == pytest.approx(peer.intercept_[0], abs=2e-3)


def test_the_map_is_the_documented_formula():
    z, y, _ = curved(800)
    for features in FAMILIES:
        cal = BinaryScaling(features).fit(z, y)
        x = np.clip(cal.alpha_ * (z[:, 1] - z[:, 0]), -cal.limit_, cal.limit_)
        c = {"quadratic": 0.0, "beta": 0.0, **cal.coefficients_}
        u = c["bias"] + c["linear"] * x + c["quadratic"] * x**2 + c["beta"] * smooth_distance(x, 0, 1)
        for kind, knots in cal.knots_.items():
            for knot, coefficient in zip(knots, c[kind], strict=True):
                u += coefficient * smooth_distance(x, knot, cal.widths_[kind])
        np.testing.assert_allclose(cal.predict_proba(z)[:, 1], expit(u), atol=1e-12)
        assert cal.limit_ == pytest.approx(np.log(1601))
        assert cal.scales_.keys() == (cal.coefficients_.keys() if features in PENALISED else set())


def test_isotonic_regression_by_hand():
    # Scores of a classifier with three distinct values; the second and third are in the wrong order.
    x = np.repeat([-2.0, 0.5, 1.5], [4, 6, 2])
    y = np.array([0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 1, 0])
    z = np.stack([-x, x], axis=1)
    cal = BinaryScaling("isotonic").fit(z, y)
    first, last = 2 / 6, (6 + 1) / (8 + 2)
    scores = np.array([-2.0, 0.5, 1.5, -9.0, 9.0])
    p = cal.predict_proba(np.stack([-scores, scores], axis=1))[:, 1]
    np.testing.assert_allclose(p, [first, last, last, first, last], atol=5e-3)


def test_isotonic_regression_increases_and_finds_steps():
    rng = np.random.default_rng(0)
    x = rng.normal(scale=2, size=20_000)
    truth = np.where(x < -1, 0.1, np.where(x < 1, 0.4, 0.9))
    y = (rng.random(len(x)) < truth).astype(int)
    z = np.stack([-x, x], axis=1) / 2
    cal = BinaryScaling("isotonic").fit(z, y)
    p = cal.predict_proba(z)[:, 1]
    assert (np.diff(p[np.argsort(x)]) >= -1e-9).all()
    assert np.abs(p - truth).mean() < 0.02
    knots = cal.knots_["isotonic"]
    assert np.diff(knots).min() > 0.009 * np.std(cal.alpha_ * x)


def test_isotonic_regression_corrects_known_label_noise():
    z, y, truth = curved(20_000)
    rng = np.random.default_rng(0)
    transition = np.array([[0.9, 0.1], [0.3, 0.7]])
    noisy = (rng.random(len(y)) < transition[y, 1]).astype(int)
    naive, corrected = (
        BinaryScaling("isotonic").fit(z, noisy, transition=t).predict_proba(z)[:, 1]
        for t in (None, transition)
    )
    assert np.abs(corrected - truth).mean() < 0.03
    assert np.abs(naive - truth).mean() > 0.1


def test_smooth_distance_by_hand():
    np.testing.assert_allclose(smooth_distance(np.array([3.0]), 3.0, 0.5), np.log(2))
    np.testing.assert_allclose(smooth_distance(np.array([-50.0, 54.0]), 2.0, 0.5), 52)
    np.testing.assert_allclose(
        smooth_distance(np.array([1.0]), 0.0, 1.0), np.log(1 + np.e) + np.log(1 + 1 / np.e)
    )


def test_quantiles_of_merged_rows_by_hand():
    x, y, weight = np.array([-1.0, 0.0, 4.0]), np.array([0, 1, 0]), np.array([1.0, 1.0, 2.0])
    rows = MergedRows(x, y, weight, np.arange(3))
    levels = np.array([0.0, 0.125, 0.25, 0.375, 0.75, 1.0])
    expected = [-1, -1, -0.5, 0, 4, 4]
    np.testing.assert_allclose(rows.quantiles(levels), expected)
    x, y, weight = np.array([-1.0, 0.0, 0.0, 4.0]), np.array([0, 1, 0, 0]), np.array([1.0, 0.5, 0.5, 2.0])
    rows = MergedRows(x, y, weight, np.array([0, 1, 1, 2]))
    np.testing.assert_allclose(rows.quantiles(levels), expected)


@pytest.mark.parametrize("keep_decision", [False, True])
@every_family
def test_the_classes_are_treated_alike(features, keep_decision):
    z, y, _ = curved(700, seed=3)
    w = np.random.default_rng(0).uniform(0.5, 2, size=len(y))
    cal = BinaryScaling(features, keep_decision=keep_decision).fit(z, y, sample_weight=w)
    swapped = BinaryScaling(features, keep_decision=keep_decision).fit(z[:, ::-1], 1 - y, sample_weight=w)
    np.testing.assert_allclose(swapped.predict_proba(z[:, ::-1])[:, ::-1], cal.predict_proba(z), atol=1e-9)


def test_larger_families_fit_many_rows_better():
    z, y, _ = curved(20_000)
    loss = {name: mean_nll(BinaryScaling(name).fit(z, y).predict_proba(z), y) for name in FAMILIES}
    single = mean_nll(TemperatureScaling().fit(z, y).predict_proba(z), y)
    assert loss["spline"] < loss["beta"] < loss["linear"] < single
    assert loss["quadratic"] < loss["linear"]


def test_a_curved_reliability_is_recovered():
    z, y, _ = curved(5000)
    test, labels, truth = curved(20_000, seed=1)
    cal = BinaryScaling().fit(z, y)
    best = mean_nll(np.stack([1 - truth, truth], axis=1), labels)
    single = mean_nll(TemperatureScaling().fit(z, y).predict_proba(test), labels)
    vector = mean_nll(VectorScaling().fit(z, y).predict_proba(test), labels)
    ours = mean_nll(cal.predict_proba(test), labels)
    assert ours - best < 0.15 * min(single - best, vector - best)
    assert np.abs(cal.predict_proba(test)[:, 1] - truth).mean() < 0.02


def test_calibrated_models_are_left_alone():
    rng = np.random.default_rng(0)
    x = rng.normal(scale=2, size=400)
    y = (rng.random(400) < expit(x)).astype(int)
    z = np.stack([np.zeros(400), x], axis=1)
    grid = np.stack([np.zeros(41), np.linspace(-4, 4, 41)], axis=1)
    p = BinaryScaling().fit(z, y).predict_proba(grid)[:, 1]
    assert np.abs(p - expit(grid[:, 1])).max() < 0.06


@every_family
def test_a_common_factor_of_the_weights_has_no_effect(features):
    z, y, _ = curved(300)
    w = np.random.default_rng(0).uniform(0.1, 2, size=300)
    p, scaled = (BinaryScaling(features).fit(z, y, sample_weight=c * w).predict_proba(z) for c in (1, 1e6))
    np.testing.assert_allclose(scaled, p, atol=1e-9)
    ones = BinaryScaling(features).fit(z, y, sample_weight=np.full(300, 7.0)).predict_proba(z)
    np.testing.assert_allclose(ones, BinaryScaling(features).fit(z, y).predict_proba(z), atol=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
@every_family
def test_batches_and_dask_give_the_same_result(features, weighted):
    dask = pytest.importorskip("dask.array")
    z, y, _ = curved(3000)
    w = np.random.default_rng(0).uniform(0.1, 2, size=3000) if weighted else None
    expected = BinaryScaling(features).fit(z, y, sample_weight=w).predict_proba(z)
    in_batches = BinaryScaling(features).fit(Batches(z, y, sample_weight=w, batch_rows=700))
    np.testing.assert_allclose(in_batches.predict_proba(z), expected, atol=1e-6)
    arrays = (None if a is None else dask.from_array(a, chunks=(900, 2)[: a.ndim]) for a in (z, y, w))
    logits, labels, weights = arrays
    on_cluster = BinaryScaling(features).fit(
        hetcal.dask.rows(logits, labels, sample_weight=weights, client=None)
    )
    np.testing.assert_allclose(on_cluster.predict_proba(z), expected, atol=1e-6)


def test_tensors_give_the_same_result():
    torch = pytest.importorskip("torch")
    z, y, _ = curved(500)
    cal = BinaryScaling().fit(torch.from_numpy(z), torch.from_numpy(y))
    p = cal.predict_proba(torch.from_numpy(z))
    np.testing.assert_allclose(p.numpy(), BinaryScaling().fit(z, y).predict_proba(z), atol=1e-9)


@pytest.mark.parametrize("keep_decision", [False, True])
@every_family
def test_float32_and_float64_agree(features, keep_decision):
    z, y, _ = curved(500)
    cal = BinaryScaling(features, keep_decision=keep_decision).fit(z, y)
    narrow = cal.predict_proba(z.astype(np.float32))
    assert narrow.dtype == np.float32
    np.testing.assert_allclose(narrow, cal.predict_proba(z), atol=1e-6)


EDGE_CASES = {
    "one row": ([[1.0, -2.0]], [0]),
    "one wrong row": ([[1.0, -2.0]], [1]),
    "two rows": ([[1.0, -2.0], [0.5, 3.0]], [1, 1]),
    "equal logits": ([[2.0, 2.0]] * 5, [0, 1, 1, 1, 1]),
    "constant rows": ([[2.0, 1.0]] * 6, [0, 0, 0, 1, 1, 0]),
    "one label": (np.random.default_rng(0).normal(size=(50, 2)) * 3, [1] * 50),
    "separable": (np.repeat([[3.0, -3.0], [-3.0, 3.0]], 20, axis=0), [0] * 20 + [1] * 20),
    "all wrong": (np.repeat([[3.0, -3.0], [-3.0, 3.0]], 20, axis=0), [1] * 20 + [0] * 20),
    "masks": ([[1e30, -1e30], [-1e30, 1e30], [0, -1e30], [1, 2.0]] * 9, [0, 1, 0, 0] * 9),
    "huge": ([[1e308, -1e308], [-1e308, 1e308], [3.0, 1.0]] * 9, [0, 1, 1] * 9),
    "tiny": (np.random.default_rng(0).normal(size=(50, 2)) * 1e-9, np.arange(50) % 2),
}


@pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")
@pytest.mark.parametrize("keep_decision", [False, True])
@pytest.mark.parametrize("case", EDGE_CASES)
@every_family
def test_edge_cases_give_finite_probabilities(features, case, keep_decision):
    z, y = (np.array(part) for part in EDGE_CASES[case])
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        cal = BinaryScaling(features, keep_decision=keep_decision).fit(z, y)
        far = np.array([[0.0, 0.0], [1e30, -1e30], [-1e30, 1e30], [1e308, -1e308], [-7.0, 2.0]])
        rows = np.concatenate([z, far])
        p = cal.predict_proba(rows)
    assert np.isfinite([*cal.scales_.values(), cal.alpha_, cal.limit_]).all()
    cal._map().check()
    assert p.min() >= 0
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-12)
    if keep_decision:
        np.testing.assert_array_equal(p.argmax(axis=1), rows.argmax(axis=1))
        assert p.max(axis=1).min() >= 0.5


@pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")
def test_exact_zeros_and_ones():
    p = np.repeat([[1.0, 0.0], [0.0, 1.0], [0.3, 0.7]], 30, axis=0)
    y = np.r_[np.zeros(29, int), 1, np.ones(30, int), np.zeros(10, int), np.ones(20, int)]
    q = BinaryScaling().fit(probs=p, labels=y).predict_proba(probs=p)
    assert 0.01 < q[0, 1] < 0.1  # 1 of 30
    assert 0 < q[30, 0] < 0.05  # 0 of 30
    assert q[60, 0] == pytest.approx(1 / 3, abs=0.05)


def test_keep_decision_clips_at_one_half():
    z, y, _ = curved(2000)
    free, kept = (BinaryScaling(keep_decision=keep).fit(z, y) for keep in (False, True))
    p, q, guess = free.predict_proba(z), kept.predict_proba(z), z.argmax(axis=1)
    changed = p.argmax(axis=1) != guess
    assert changed.any()
    np.testing.assert_allclose(q[changed], 0.5, atol=1e-12)
    np.testing.assert_array_equal(q[~changed], p[~changed])
    np.testing.assert_array_equal(q.argmax(axis=1), guess)
    assert (free.preserves_decision, kept.preserves_decision) == (False, True)


@pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@every_family
def test_decisions_are_preserved_on_hard_rows(features, dtype):
    rng = np.random.default_rng(0)
    z = (rng.normal(size=(30_000, 2)) * 10.0 ** rng.integers(-4, 4, size=(30_000, 1))).astype(dtype)
    z[::5, 1] = z[::5, 0]  # ties
    z[1::5, 1] = np.nextafter(z[1::5, 0], dtype(np.inf))
    fit_rows, y, _ = curved(200)
    for labels in (y, 1 - y, np.ones_like(y)):
        p = BinaryScaling(features, keep_decision=True).fit(fit_rows, labels).predict_proba(z)
        np.testing.assert_array_equal(p.argmax(axis=1), z.argmax(axis=1))
        assert p.max() <= 1
        np.testing.assert_allclose(p.sum(axis=1, dtype=float), 1, atol=1e-6)


def test_it_can_be_a_part_of_other_calibrators():
    z, y, _ = curved(600)
    for cal in (
        ClassWise(BinaryScaling("linear")),
        hetcal.Chain([BinaryScaling(), hetcal.PlattScaling()]),
        hetcal.Mixture([BinaryScaling(keep_decision=True), TemperatureScaling()]),
    ):
        p = cal.fit(z, y).predict_proba(z)
        assert mean_nll(p, y) < mean_nll(TemperatureScaling().fit(z, y).predict_proba(z), y)


@pytest.mark.parametrize("wrap", [lambda z, y: (z, y), lambda z, y: (Batches(z, y),)])
def test_more_than_two_classes_are_refused(make_sample, wrap):
    z, y, _ = make_sample(60, 3, 0)
    with pytest.raises(ValueError, match=r"logits must have 2 columns.*got 3; use .*VectorScaling"):
        BinaryScaling().fit(*wrap(z, y))


def test_options_are_checked():
    z, y, _ = curved(20)
    with pytest.raises(ValueError, match="features must be one of"):
        BinaryScaling("cubic").fit(z, y)
    with pytest.raises(TypeError, match="keep_decision must"):
        BinaryScaling(keep_decision=1).fit(z, y)


@pytest.mark.parametrize(
    "change",
    [
        {"alpha": 0.0},
        {"limit": np.inf},
        {"widths": np.array([0.0])},
        {"polynomial": np.array([np.nan, 1, 0])},
        {"weights": np.array([1.0, 2.0])},
        {"knots": np.array([np.inf])},
    ],
)
def test_impossible_maps_are_refused(change):
    valid = {
        "alpha": 1.0,
        "limit": 5.0,
        "polynomial": np.array([0.1, 1.0, 0.0]),
        "knots": np.array([0.5]),
        "widths": np.array([0.7]),
        "weights": np.array([0.2]),
    }
    maps.Binary(**valid).check()
    with pytest.raises(ValueError, match="must"):
        maps.Binary(**{**valid, **change}).check()


@every_family
def test_order_of_rows_with_tied_scores_does_not_matter(features):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        z = rng.integers(-2, 3, size=(267, 2)).astype(float)
        y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
        order = rng.permutation(267)
        first, second = (BinaryScaling(features).fit(z[i], y[i]) for i in (np.arange(267), order))
        np.testing.assert_allclose(second.predict_proba(z), first.predict_proba(z), atol=1e-9)
