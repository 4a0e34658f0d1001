"""Algorithm 1 with bases other than temperature scaling, including those of other libraries."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, log_expit, log_softmax, logit, softmax
from sklearn.base import clone
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from hetcal import (
    CalibrationWarning,
    ClassWise,
    PlattScaling,
    TemperatureScaling,
    TopLabelHistogram,
    TopLabelIsotonic,
    VectorScaling,
)

quiet = pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")


def platt_loss(z, y, w, theta):
    """Summed binary NLL of the top label with parameters (a, b) per row, and its gradient per row."""
    x = logit(softmax(z, axis=1).max(axis=1))
    right = z.argmax(axis=1) == y
    u = theta[:, 0] * x + theta[:, 1]
    slope = w * (expit(u) - right)
    return -w @ log_expit(np.where(right, u, -u)), np.stack([slope * x, slope], axis=1)


def vector_loss(z, y, w, theta):
    """Summed NLL with scale and bias per row, and its gradient per row."""
    k = z.shape[1]
    log_p = log_softmax(theta[:, :k] * z + theta[:, k:], axis=1)
    slope = w[:, None] * (np.exp(log_p) - np.eye(k)[y])
    return -w @ log_p[np.arange(len(y)), y], np.concatenate([slope * z, slope], axis=1)


def joint_reference(loss, z, y, w, ids, gamma, start):
    """Smallest summed loss over (C_0, …, C_S) with ‖C_k − C_0‖ ≤ Γ, by SLSQP and a projection."""
    n_slices, p = ids.max() + 1, len(start)
    total = w.sum()

    def value(x):
        theta = x.reshape(n_slices + 1, p)
        total_loss, rows = loss(z, y, w, theta[1:][ids])
        slope = np.zeros((n_slices + 1, p))
        np.add.at(slope[1:], ids, rows)
        return total_loss / total, slope.ravel() / total

    def slack(x):
        theta = x.reshape(n_slices + 1, p)
        return gamma**2 - ((theta[1:] - theta[0]) ** 2).sum(axis=1)

    def slack_gradient(x):
        theta = x.reshape(n_slices + 1, p)
        out = np.zeros((n_slices, n_slices + 1, p))
        k = np.arange(n_slices)
        out[k, k + 1] = -2 * (theta[1:] - theta[0])
        out[:, 0] = 2 * (theta[1:] - theta[0])
        return out.reshape(n_slices, -1)

    solution = minimize(
        value,
        np.tile(start, n_slices + 1),
        jac=True,
        method="SLSQP",
        constraints={"type": "ineq", "fun": slack, "jac": slack_gradient},
        options={"maxiter": 3000, "ftol": 1e-14},
    )
    theta = solution.x.reshape(n_slices + 1, p)
    away = theta[1:] - theta[0]
    length = np.linalg.norm(away, axis=1, keepdims=True)
    away *= np.minimum(1, gamma / np.maximum(length, 1e-300))
    return loss(z, y, w, (theta[0] + away)[ids])[0]


CASES = [(PlattScaling, platt_loss, 4, 800), (VectorScaling, vector_loss, 3, 600)]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("gamma", [0.02, 0.15, 0.6])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("base", "loss", "n_classes", "n"), CASES)
def test_coupled_parameters_reach_the_joint_optimum(
    make_sample, base, loss, n_classes, n, seed, gamma, weighted
):
    z, y, _ = make_sample(n, n_classes, seed, alpha=np.geomspace(0.25, 1.5, n_classes))
    w = np.random.default_rng(seed).uniform(0.2, 2, size=n) if weighted else np.ones(n)
    ids = z.argmax(axis=1)
    cal = ClassWise(base(), gamma=gamma).fit(z, y, sample_weight=w if weighted else None)
    assert np.linalg.norm(cal.parameters_ - cal.center_, axis=1).max() <= gamma + 1e-9
    ours = loss(z, y, w, cal.parameters_[ids])[0]
    reference = joint_reference(loss, z, y, w, ids, gamma, cal.center_)
    assert ours == pytest.approx(reference, rel=1e-6)
    assert ours <= reference * (1 + 1e-9)


@pytest.mark.parametrize(("base", "loss", "n_classes", "n"), CASES)
def test_wider_gamma_never_fits_worse(make_sample, base, loss, n_classes, n):
    z, y, _ = make_sample(n, n_classes, 3)
    losses = []
    for gamma in (0.0, 0.01, 0.1, 0.5, 2.0, np.inf):
        cal = ClassWise(base(), gamma=gamma).fit(z, y)
        losses.append(loss(z, y, np.ones(n), cal.parameters_[z.argmax(axis=1)])[0])
    assert np.all(np.diff(losses) < 1e-8)
    assert losses[-1] < losses[0] - 1


@pytest.mark.parametrize(
    "base",
    [TemperatureScaling(), PlattScaling(), VectorScaling(), VectorScaling(ridge=0.05), TopLabelIsotonic()],
    ids=repr,
)
def test_gamma_zero_equals_the_pooled_base(make_sample, base):
    z, y, _ = make_sample(900, 4, 0)
    tied = ClassWise(base, gamma=0).fit(z, y)
    np.testing.assert_allclose(tied.predict_proba(z), base.fit(z, y).predict_proba(z), atol=1e-9)


@quiet
@pytest.mark.parametrize("by_group", [False, True])
@pytest.mark.parametrize(
    "base",
    [TemperatureScaling(), PlattScaling(), VectorScaling(), TopLabelIsotonic(), TopLabelHistogram(n_bins=5)],
    ids=repr,
)
def test_gamma_inf_equals_separate_fits(make_sample, base, by_group):
    z, y, _ = make_sample(1600, 4, 1)
    groups = np.array(["x", "y", "z"])[np.random.default_rng(0).integers(0, 3, size=len(y))]
    ids = groups if by_group else z.argmax(axis=1)
    options = {"groups": groups} if by_group else {}
    p = ClassWise(base).fit(z, y, **options).predict_proba(z, **options)
    for k in np.unique(ids):
        separate = base.fit(z[ids == k], y[ids == k]).predict_proba(z[ids == k])
        np.testing.assert_allclose(p[ids == k], separate, atol=2e-6)


def test_isotonic_per_class_agrees_with_scikit_learn(make_sample):
    z, y, _ = make_sample(2000, 3, 2)
    p = softmax(z, axis=1)
    cal = ClassWise(TopLabelIsotonic()).fit(z, y)
    ours = cal.predict_proba(z).max(axis=1)
    for k in range(3):
        r = z.argmax(axis=1) == k
        peer = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(p[r].max(axis=1), y[r] == k)
        np.testing.assert_allclose(ours[r], np.maximum(peer.predict(p[r].max(axis=1)), 1 / 3), atol=1e-9)


@pytest.mark.parametrize("base", [PlattScaling(), VectorScaling(), TemperatureScaling()], ids=repr)
def test_bundles_share_parameters(make_sample, base):
    z, y, _ = make_sample(1500, 5, 0)
    bundles = [3, 1, 3, 1, 3]
    cal = ClassWise(base, gamma=0.2, bundles=bundles).fit(z, y)
    assert len(cal.parameters_) == 2
    grouped = ClassWise(base, gamma=0.2).fit(z, y, groups=np.take(bundles, z.argmax(axis=1)))
    np.testing.assert_allclose(cal.parameters_, grouped.parameters_, rtol=1e-9)
    assert cal.n_samples_.sum() == len(y)


class Plain:
    """A calibrator of another library, without parameters and weights, that preserves decisions."""

    preserves_decision = True

    def fit(self, logits, labels):
        self.share = float(np.mean(np.argmax(logits, axis=1) == labels))
        self.rows = len(labels)
        return self

    def predict_proba(self, logits):
        logits = np.asarray(logits, np.float64)
        out = np.full(logits.shape, (1 - self.share) / (logits.shape[1] - 1))
        out[np.arange(len(out)), logits.argmax(axis=1)] = self.share
        return out


class Contrary:
    """Predicts the class after the top label with certainty, and accepts weights."""

    def fit(self, logits, labels, sample_weight=None):  # noqa: ARG002
        self.total = len(labels) if sample_weight is None else float(np.sum(sample_weight))
        return self

    def predict_proba(self, logits):
        return np.eye(np.shape(logits)[1])[(np.argmax(logits, axis=1) + 1) % np.shape(logits)[1]].tolist()


def test_base_of_another_library(make_sample):
    z, y, _ = make_sample(600, 3, 0, dtype=np.float32)
    base = Plain()
    cal = ClassWise(base).fit(z, y)
    assert cal.preserves_decision
    assert not hasattr(base, "share")  # the base is copied, not fitted
    guess = z.argmax(axis=1)
    p = cal.predict_proba(z)
    assert p.dtype == np.float64  # the dtype of the base
    for k in range(3):
        np.testing.assert_allclose(p[guess == k, k], np.mean(y[guess == k] == k))
        assert cal.calibrators_[k].rows == np.count_nonzero(guess == k)
    np.testing.assert_array_equal(p.argmax(axis=1), guess)
    pooled = ClassWise(Plain(), gamma=0).fit(z, y)
    np.testing.assert_allclose(pooled.predict_proba(z).max(axis=1), np.mean(y == guess))


def test_predictions_do_not_depend_on_uninitialised_memory(make_sample, monkeypatch):
    z, y, _ = make_sample(600, 3, 0, dtype=np.float32)
    cal = ClassWise(Plain()).fit(z, y)
    # A signalling NaN warns when it is cast.
    signalling = np.full(z.shape, 0x7FA00000, np.uint32).view(np.float32)
    monkeypatch.setattr(
        np, "empty_like", lambda like: signalling.copy() if like is z else np.zeros_like(like)
    )
    assert np.isfinite(cal.predict_proba(z)).all()


def test_base_that_changes_decisions(make_sample):
    z, y, _ = make_sample(600, 3, 0)
    w = np.full(600, 0.5)
    w[0] = 0.5 + 1e-9  # equal weights would not be passed to the base
    cal = ClassWise(Contrary()).fit(z, y, sample_weight=w)
    assert not cal.preserves_decision
    np.testing.assert_array_equal(cal.predict_proba(z).argmax(axis=1), (z.argmax(axis=1) + 1) % 3)
    # Normalised weights sum to the effective sample size, here 600.
    assert sum(c.total for c in cal.calibrators_) == pytest.approx(600)


def test_scikit_learn_classifier_as_base(make_sample):
    z, y, _ = make_sample(900, 4, 0)
    y[(z.argmax(axis=1) == 1) & (y == 3)] = 1  # slice 1 never sees class 3
    cal = ClassWise(LogisticRegression(max_iter=500)).fit(z, y)
    p = cal.predict_proba(z)
    np.testing.assert_allclose(p.sum(axis=1), 1)
    r = z.argmax(axis=1) == 1
    assert np.all(p[r, 3] == 0)
    separate = LogisticRegression(max_iter=500).fit(z[r], y[r])
    np.testing.assert_allclose(p[r][:, :3], separate.predict_proba(z[r]))


def test_base_with_too_few_columns_raises(make_sample):
    class OneColumn(Plain):
        def predict_proba(self, logits):
            return super().predict_proba(logits)[:, :1]

    z, y, _ = make_sample(200, 3, 0)
    with pytest.raises(ValueError, match="predict_proba must"):
        ClassWise(OneColumn()).fit(z, y).predict_proba(z)


@pytest.mark.parametrize("base", [TopLabelIsotonic(), TopLabelHistogram(5), TopLabelHistogram(5, "width")])
@pytest.mark.parametrize("weighted", [False, True])
def test_top_label_bases_equal_separate_fits(make_sample, base, weighted):
    z, y, _ = make_sample(900, 3, 0)
    w = np.random.default_rng(0).integers(0, 3, len(y)).astype(float) if weighted else None
    cal = ClassWise(base).fit(z, y, sample_weight=w)
    for k in range(3):
        rows = z.argmax(axis=1) == k
        separate = clone(base).fit(z[rows], y[rows], sample_weight=None if w is None else w[rows])
        input_attributes = {"class_names_", "prob_floor_", "fitted_on_"}  # stored by ClassWise itself
        learned = {name for name in vars(separate) if name.endswith("_")} - input_attributes
        for name in learned:
            value = getattr(separate, name)
            np.testing.assert_allclose(getattr(cal.calibrators_[k], name), value, rtol=1e-12, atol=1e-12)
        assert vars(cal.calibrators_[k]).keys() == vars(separate).keys() - input_attributes


def test_pooled_base_is_fitted_only_if_a_slice_needs_it(make_sample):
    sizes = []

    class Counts:
        def fit(self, logits, labels):
            assert len(logits) == len(labels)
            sizes.append(len(labels))
            return self

        def predict_proba(self, logits):
            return softmax(logits, axis=1)

    z, y, _ = make_sample(300, 3, 0)
    counts = np.bincount(z.argmax(axis=1), minlength=3)
    ClassWise(Counts()).fit(z, y)
    assert sizes == counts.tolist()
    sizes.clear()
    ClassWise(Counts(), min_samples=int(counts.min()) + 1).fit(z, y)
    assert sizes == [300, *(n for n in counts.tolist() if n > counts.min())]


def test_min_samples_for_a_base_without_parameters(make_sample):
    z, y, _ = make_sample(600, 3, 0)
    guess = z.argmax(axis=1)
    subset = np.flatnonzero((guess != 2) | (np.cumsum(guess == 2) <= 19))
    z, y, guess = z[subset], y[subset], guess[subset]
    overall = np.mean(y == guess)
    by_default = ClassWise(Plain()).fit(z, y)
    np.testing.assert_allclose(by_default.predict_proba(z)[guess == 2].max(axis=1), overall)
    eager = ClassWise(Plain(), min_samples=19).fit(z, y)
    np.testing.assert_allclose(eager.predict_proba(z)[guess == 2].max(axis=1), np.mean(y[guess == 2] == 2))
    assert by_default.n_samples_[2] == 19


@pytest.mark.parametrize("base", [TemperatureScaling(), PlattScaling(), VectorScaling()], ids=repr)
def test_min_samples_for_a_base_with_parameters(make_sample, base):
    z, y, _ = make_sample(600, 3, 0)
    guess = z.argmax(axis=1)
    subset = np.flatnonzero((guess != 2) | (np.cumsum(guess == 2) <= 30))
    z, y = z[subset], y[subset]
    cal = ClassWise(base, min_samples=31).fit(z, y)
    np.testing.assert_array_equal(cal.parameters_[2], cal.center_)
    pooled = base.fit(z, y).predict_proba(z)[z.argmax(axis=1) == 2]
    np.testing.assert_allclose(cal.predict_proba(z)[z.argmax(axis=1) == 2], pooled, atol=1e-9)
    all_pooled = ClassWise(base, min_samples=10_000).fit(z, y)
    np.testing.assert_allclose(all_pooled.predict_proba(z), base.fit(z, y).predict_proba(z), atol=1e-9)


def test_class_that_is_never_predicted_has_the_shared_parameters(make_sample):
    z, y, _ = make_sample(500, 3, 0)
    rows = (z.argmax(axis=1) != 1) & (y != 1)
    for base, gamma in ((PlattScaling(), 0.2), (PlattScaling(), np.inf), (TopLabelIsotonic(), np.inf)):
        with pytest.warns(CalibrationWarning, match="class 1"):
            cal = ClassWise(base, gamma=gamma).fit(z[rows], y[rows])
        assert cal.n_samples_[1] == 0
        assert np.all(np.isfinite(cal.predict_proba(z)))
    with pytest.warns(CalibrationWarning, match="class 1"):
        cal = ClassWise(PlattScaling(), gamma=0.2).fit(z[rows], y[rows])
    np.testing.assert_array_equal(cal.parameters_[1], cal.center_)


def test_warning_names_a_separable_class(make_sample):
    z, y, _ = make_sample(500, 3, 0)
    y[z.argmax(axis=1) == 1] = 1
    with pytest.warns(CalibrationWarning, match="class 1"):
        cal = ClassWise(PlattScaling()).fit(z, y)
    assert np.all(np.isfinite(cal.parameters_))
    ClassWise(PlattScaling(), gamma=1.0).fit(z, y)  # a finite Γ bounds the parameters, so there is no warning
    with pytest.warns(CalibrationWarning, match="whole data set"):
        ClassWise(PlattScaling(), gamma=1.0).fit(z, z.argmax(axis=1))


def test_too_many_parameters_raise(make_sample, monkeypatch):
    from hetcal.calibrators import classwise

    z, y, _ = make_sample(300, 3, 0)
    monkeypatch.setattr(classwise, "_MAX_HESSIAN_BYTES", 100)
    with pytest.raises(ValueError, match=r"base must .*3 .*6"):
        ClassWise(VectorScaling()).fit(z, y)


@pytest.mark.parametrize("base", [TopLabelHistogram(), TopLabelIsotonic()], ids=repr)
def test_slices_may_look_like_probabilities(base):
    # The rows of one predicted class lie in [0, 1] and sum to 1, the others do not.
    z = np.array([[1.0, 0.0], [0.0, 3.0], [0.0, 2.0]] * 40)
    y = np.array([0, 1, 0] * 40)
    y[::9] = 1 - y[::9]
    cal = ClassWise(base).fit(z, y)
    p = cal.predict_proba(z)
    np.testing.assert_array_equal(p.argmax(axis=1), z.argmax(axis=1))
    np.testing.assert_allclose(p[0], cal.predict_proba(z[:2])[0])
    with pytest.raises(ValueError, match="probs="):  # all rows look like probabilities
        cal.predict_proba(z[::3])
