from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

import hetcal
from hetcal import MatrixScaling, TemperatureScaling
from hetcal._numeric import matrix as matrix_numeric
from hetcal._warnings import CalibrationWarning
from hetcal.calibrators import matrix as matrix_calibrator
from hetcal.metrics import nll

OPTIONS = [{"center": "logsumexp"}, {"center": "mean"}, {"features": "spline"}]


def confused(n: int, n_classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits in which every class is also supported by the logit of its neighbour."""
    rng = np.random.default_rng(seed)
    z = 2 * rng.normal(size=(n, n_classes))
    p = softmax(0.6 * z + 0.4 * np.roll(z, 1, axis=1), axis=1)
    y = (p.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return z, np.minimum(y, n_classes - 1)


def inputs(model: MatrixScaling, z: np.ndarray) -> np.ndarray:
    x = np.maximum(model.alpha_ * (z - z.max(axis=1, keepdims=True)), -model.limit_)
    constant = x.mean(axis=1) if model.center == "mean" else np.log(np.exp(x).sum(axis=1))
    return x - constant[:, None]


@pytest.mark.parametrize(("n_classes", "center"), [(3, "logsumexp"), (4, "mean"), (25, "mean")])
def test_a_generic_solver_finds_the_same_minimum(n_classes: int, center: str) -> None:
    z, y = confused(400, n_classes, 0)
    weight = np.random.default_rng(1).uniform(0.5, 2, 400)
    penalty = np.array([0.02, 0.1, 0.01])
    model = MatrixScaling(tuple(penalty), center=center).fit(z, y, sample_weight=weight)
    x, share, diagonal = inputs(model, z), weight / weight.sum(), np.eye(n_classes, dtype=bool)
    strength = np.where(diagonal, penalty[0], penalty[1])

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        d, b = theta[:-n_classes].reshape(n_classes, n_classes), theta[-n_classes:]
        log_p = log_softmax(x + x @ d.T + b, axis=1)
        value = -share @ log_p[np.arange(400), y]
        residual = np.exp(log_p)
        residual[np.arange(400), y] -= 1
        residual *= share[:, None]
        slope = np.r_[(residual.T @ x + strength * d).ravel(), residual.sum(axis=0) + penalty[2] * b]
        return value + (strength * d**2).sum() / 2 + penalty[2] * (b @ b) / 2, slope

    start = np.zeros(n_classes * (n_classes + 1))
    options = {"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-10}
    best = minimize(objective, start, jac=True, method="L-BFGS-B", options=options).fun
    assert objective(np.r_[model.change_.ravel(), model.bias_])[0] == pytest.approx(best, abs=1e-6)


def log_odds(p: np.ndarray, limit: float) -> np.ndarray:
    others = np.array([[np.delete(row, k).sum() for k in range(len(row))] for row in p])
    return np.clip(np.log(p) - np.log(others), -limit, limit)


def smooth_distance(t: np.ndarray, knot: np.ndarray, width: np.ndarray) -> np.ndarray:
    return width * (np.logaddexp(0, (t - knot) / width) + np.logaddexp(0, (knot - t) / width))


@pytest.mark.parametrize(("n_classes", "center"), [(3, "logsumexp"), (4, "mean"), (22, "logsumexp")])
def test_a_generic_solver_finds_the_same_curves(n_classes: int, center: str) -> None:
    z, y = confused(300, n_classes, 0)
    weight = np.random.default_rng(1).uniform(0.5, 2, 300)
    penalty = np.array([0.02, 0.1, 0.01, 0.03, 0.05, 0.08])
    model = MatrixScaling(tuple(penalty), center=center, features="spline").fit(z, y, sample_weight=weight)
    x, share, diagonal = inputs(model, z), weight / weight.sum(), np.eye(n_classes, dtype=bool)
    t = log_odds(softmax(x, axis=1), model.limit_)
    knots, widths = model.curves_["knots"], model.curves_["widths"]
    features = smooth_distance(t[..., None], knots, widths)
    # The weights of the features are determined up to the scaling, whose exact statistics are those of a
    # histogram; the scale is recovered to about its accuracy.
    information = share[:, None] * (np.exp(-np.logaddexp(0, t) - np.logaddexp(0, -t)))
    information += 1e-3 * information.sum(axis=0) * share[:, None]
    information /= information.sum(axis=0)
    mean = (information[..., None] * features).sum(axis=0)
    scale = np.sqrt((information[..., None] * (features - mean) ** 2).sum(axis=0))
    features = (features - mean) / scale
    strength = np.where(diagonal, penalty[0], penalty[1])
    shape = (n_classes, knots.shape[1])
    by_feature = np.broadcast_to(np.repeat(penalty[3:], [1, 4, 8]), shape)
    n_d = n_classes**2

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        d, b = theta[:n_d].reshape(n_classes, -1), theta[n_d : n_d + n_classes]
        c = theta[n_d + n_classes :].reshape(shape)
        log_p = log_softmax(x + x @ d.T + b + (features * c).sum(axis=2), axis=1)
        value = -share @ log_p[np.arange(300), y]
        residual = np.exp(log_p)
        residual[np.arange(300), y] -= 1
        residual *= share[:, None]
        slopes = (
            residual.T @ x + strength * d,
            residual.sum(axis=0) + penalty[2] * b,
            np.einsum("nk,nkm->km", residual, features) + by_feature * c,
        )
        value += ((strength * d**2).sum() + penalty[2] * (b @ b) + (by_feature * c**2).sum()) / 2
        return value, np.concatenate([slope.ravel() for slope in slopes])

    start = np.zeros(n_d + n_classes + by_feature.size)
    options = {"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-10}
    best = minimize(objective, start, jac=True, method="L-BFGS-B", options=options).fun
    coefficients = model.curves_["weights"] * scale
    bias = model.bias_ + (model.curves_["weights"] * mean).sum(axis=1)
    fitted = np.concatenate([model.change_.ravel(), bias, coefficients.ravel()])
    assert objective(fitted)[0] == pytest.approx(best, abs=1e-5)


def test_curves_correct_what_no_matrix_can() -> None:
    def draw(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        z = 2 * rng.normal(size=(n, 4))
        t = log_odds(softmax(z, axis=1), 50)
        p = softmax(2 * np.tanh(t), axis=1)  # large and small probabilities are both too extreme
        y = (p.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
        return z, np.minimum(y, 3)

    z, y = draw(2000, 0)
    test = draw(20_000, 1)
    loss = {
        name: nll(MatrixScaling(features=name).fit(z, y).predict_proba(test[0]), test[1])
        for name in ("linear", "spline")
    }
    assert loss["spline"] < loss["linear"] - 0.05


def test_infinite_penalties_give_matrix_scaling_without_curves() -> None:
    z, y = confused(500, 4, 0)
    linear = MatrixScaling((0.1, 0.2, 0.1)).fit(z, y)
    spline = MatrixScaling((0.1, 0.2, 0.1, np.inf, np.inf, np.inf), features="spline").fit(z, y)
    np.testing.assert_allclose(spline.predict_proba(z), linear.predict_proba(z), atol=1e-8)


@pytest.mark.parametrize("n_classes", [5, 30])
def test_confusion_between_classes_is_corrected(n_classes: int) -> None:
    z, y = confused(4000, n_classes, 0)
    test = confused(4000, n_classes, 1)
    simple = nll(TemperatureScaling().fit(z, y).predict_proba(test[0]), test[1])
    for center in ("logsumexp", "mean"):
        matrix = nll(MatrixScaling(center=center).fit(z, y).predict_proba(test[0]), test[1])
        assert matrix < simple - 0.01


def test_rows_without_confusion_give_one_temperature(make_sample) -> None:
    z, y, _ = make_sample(3000, 6, 0)
    test_z, test_y, _ = make_sample(3000, 6, 1)
    model = MatrixScaling().fit(z, y)
    simple = nll(TemperatureScaling().fit(z, y).predict_proba(test_z), test_y)
    assert nll(model.predict_proba(test_z), test_y) < simple + 0.005
    assert np.abs(model.change_).max() < 0.2


def test_infinite_penalties_give_temperature_scaling(make_sample) -> None:
    z, y, _ = make_sample(500, 4, 0)
    model = MatrixScaling(np.inf).fit(z, y)
    assert not model.change_.any()
    expected = TemperatureScaling().fit(z, y).predict_proba(z)
    np.testing.assert_allclose(model.predict_proba(z), expected, atol=1e-6)


def test_constants_and_units_of_weight_do_not_matter(make_sample) -> None:
    z, y, _ = make_sample(600, 4, 0)
    offset, weight = np.random.default_rng(0).normal(size=(600, 1)) * 50, np.arange(1, 601) / 7
    for options in OPTIONS:
        model = MatrixScaling(**options).fit(z, y, sample_weight=weight)
        other = MatrixScaling(**options).fit(z + offset, y, sample_weight=1e6 * weight)
        np.testing.assert_allclose(other.predict_proba(z), model.predict_proba(z), atol=1e-5)


def test_classes_can_be_permuted() -> None:
    z, y = confused(1000, 4, 0)
    order = np.array([2, 0, 3, 1])
    for options in OPTIONS:
        p = MatrixScaling(**options).fit(z, y).predict_proba(z)
        permuted = MatrixScaling(**options).fit(z[:, order], np.argsort(order)[y]).predict_proba(z[:, order])
        np.testing.assert_allclose(permuted, p[:, order], atol=1e-5)


def test_decisions_are_kept_on_request() -> None:
    z, y = confused(2000, 5, 0)
    free, kept = (MatrixScaling(keep_decision=keep).fit(z, y) for keep in (False, True))
    assert (free.predict_proba(z).argmax(axis=1) != z.argmax(axis=1)).any()
    assert (kept.predict_proba(z).argmax(axis=1) == z.argmax(axis=1)).all()
    assert kept.preserves_decision
    assert not free.preserves_decision


@pytest.mark.parametrize("features", ["linear", "spline"])
@pytest.mark.parametrize("n_classes", [4, 30])
def test_batches_agree_with_arrays(n_classes: int, features: str) -> None:
    z, y = confused(900, n_classes, 0)
    weight = np.random.default_rng(1).uniform(0.5, 2, 900)
    penalty = (0.05, 0.2, 0.05) if features == "linear" else (0.05, 0.2, 0.05, 0.1, 0.1, 0.2)
    whole = MatrixScaling(penalty, features=features).fit(z, y, sample_weight=weight)
    batches = hetcal.Batches(z, y, sample_weight=weight, batch_rows=250)
    parts = MatrixScaling(penalty, features=features).fit(batches)
    np.testing.assert_allclose(parts.predict_proba(z), whole.predict_proba(z), atol=1e-5)


def test_cross_validation_chooses_penalties() -> None:
    z, y = confused(800, 4, 0)
    bayes, cv = MatrixScaling().fit(z, y), MatrixScaling("cv", cv=3).fit(z, y)
    ratio = cv.penalty_ / bayes.penalty_
    np.testing.assert_allclose(np.log2(ratio), np.round(np.log2(ratio)), atol=1e-6)
    test = confused(4000, 4, 1)
    assert nll(cv.predict_proba(test[0]), test[1]) < nll(bayes.predict_proba(test[0]), test[1]) + 0.01


def test_many_classes_use_the_classes_they_are_confused_with() -> None:
    z, y = confused(3000, 160, 0)
    model = MatrixScaling((0.1, 0.1, 0.1)).fit(z, y)
    used = model.change_ != 0
    assert (used.sum(axis=1) <= 17).all()
    assert used.diagonal().all()


@pytest.mark.parametrize("n_classes", [160, 410])
def test_the_gradient_vanishes_with_many_classes(n_classes: int) -> None:
    z, y = confused(600, n_classes, 0)
    model = MatrixScaling((0.002, 0.001, 0.003)).fit(z, y)
    residual = model.predict_proba(z)
    residual[np.arange(600), y] -= 1
    x, used = inputs(model, z), model.change_ != 0
    slope = residual.T @ x / 600 + np.where(np.eye(n_classes), 0.002, 0.001) * model.change_
    assert np.abs(slope[used]).max() < 1e-5
    assert np.abs(residual.mean(axis=0) + 0.003 * model.bias_).max() < 1e-5


@pytest.mark.parametrize("features", ["linear", "spline"])
@pytest.mark.parametrize("n_classes", [4, 30])
def test_stored_inputs_do_not_change_the_result(n_classes: int, features: str, monkeypatch) -> None:
    z, y = confused(700, n_classes, 0)
    stored = MatrixScaling(0.05, features=features).fit(z, y)
    monkeypatch.setattr(matrix_numeric, "_MAX_STORED", 0)
    monkeypatch.setattr(matrix_numeric, "_HESSIAN_BLOCK", 2000)
    monkeypatch.setattr(matrix_numeric, "_BLOCK", 3000)
    again = MatrixScaling(0.05, features=features).fit(z, y)
    np.testing.assert_allclose(again.predict_proba(z), stored.predict_proba(z), atol=1e-6)


def test_a_start_from_a_sample_leads_to_the_same_penalties(monkeypatch) -> None:
    z, y = confused(2000, 5, 0)
    model = MatrixScaling().fit(z, y)
    monkeypatch.setattr(matrix_calibrator, "_SAMPLE", 300)
    sampled = MatrixScaling().fit(z, y)
    assert not np.array_equal(sampled.penalty_, model.penalty_)  # it took another way
    np.testing.assert_allclose(sampled.penalty_, model.penalty_, rtol=1e-3)
    np.testing.assert_allclose(sampled.predict_proba(z), model.predict_proba(z), atol=1e-4)


@pytest.mark.parametrize("penalty", ["bayes", 0.0])
@pytest.mark.parametrize("n_classes", [4, 30])
def test_a_masked_class_stays_impossible(n_classes: int, penalty) -> None:
    z, y = confused(800, n_classes, 0)
    z = np.hstack([z, np.full((800, 1), -1e30)])
    for options in OPTIONS if penalty else OPTIONS[:2]:  # without a penalty, curves of few rows diverge
        p = MatrixScaling(penalty, **options).fit(z, y).predict_proba(z)
        assert (p[:, -1] == 0).all()
        assert np.isfinite(p).all()


@pytest.mark.filterwarnings("ignore::hetcal._warnings.CalibrationWarning")
@pytest.mark.parametrize("features", ["linear", "spline"])
@pytest.mark.parametrize("penalty", ["bayes", "cv", 0.0])
def test_little_and_strange_data(penalty, features: str) -> None:
    rng = np.random.default_rng(0)
    z = 3 * rng.normal(size=(60, 3))
    certain = np.where(np.eye(3)[z.argmax(axis=1)], 0.0, -87.0)
    rows = {
        "one row": (z[:1], np.array([1])),
        "one class": (z, np.zeros(60, int)),
        "no error": (z, z.argmax(axis=1)),
        "equal logits": (np.zeros((60, 3)), rng.integers(0, 3, 60)),
        "more classes than rows": (rng.normal(size=(6, 30)), rng.integers(0, 30, 6)),
        "probabilities of 0 and 1": (certain, rng.integers(0, 3, 60)),
    }
    for logits, labels in rows.values():
        p = MatrixScaling(penalty, features=features).fit(logits, labels).predict_proba(logits)
        assert np.isfinite(p).all()
        np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-6)


def test_separable_rows_without_a_penalty_cause_a_warning() -> None:
    z = 3 * np.random.default_rng(0).normal(size=(60, 3))
    with pytest.warns(CalibrationWarning, match="no error"):
        MatrixScaling(0.0).fit(z, z.argmax(axis=1))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"penalty": "ridge"}, ValueError, "penalty must .*'ridge'"),
        ({"penalty": -1.0}, ValueError, "penalty must .*-1"),
        ({"penalty": (1.0, 2.0)}, ValueError, "penalty must .*three"),
        ({"penalty": (1.0, 2.0, 3.0), "features": "spline"}, ValueError, "penalty must .*six"),
        ({"features": "beta"}, ValueError, "features must .*'beta'"),
        ({"penalty": None}, TypeError, "penalty must"),
        ({"center": "max"}, ValueError, "center must .*'max'"),
        ({"keep_decision": 1}, TypeError, "keep_decision must"),
        ({"cv": 1}, ValueError, "cv must"),
    ],
)
def test_bad_options(make_sample, options, error, message) -> None:
    z, y, _ = make_sample(50, 3, 0)
    with pytest.raises(error, match=message):
        MatrixScaling(**options).fit(z, y)
