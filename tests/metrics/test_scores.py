from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss

from hetcal import metrics
from hetcal.metrics import (
    accuracy,
    avg_ece,
    brier,
    class_ece,
    debiased_ece,
    ece,
    max_ece,
    nll,
    signed_gap,
    smooth_ece,
)
from hetcal.metrics.scores import residual_grid, smooth_error_of_grid

BINNED = ("ece", "class_ece", "max_ece", "avg_ece", "debiased_ece")
SCORES = (*BINNED, "accuracy", "nll", "brier", "signed_gap", "smooth_ece")


def sample(n: int = 2000, k: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels drawn from the probabilities: a perfectly calibrated model."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(k, 0.5), size=n)
    labels = (probs.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return probs, np.minimum(labels, k - 1)


def brute_class_ece(confidence, predicted, labels, k, n_bins=15, norm="l1"):
    out = []
    for c in range(k):
        rows = [i for i in range(len(confidence)) if predicted[i] == c]
        total = 0.0
        for b in range(n_bins):
            cell = [i for i in rows if b / n_bins < confidence[i] <= (b + 1) / n_bins]
            if cell:
                gap = abs(np.mean([confidence[i] for i in cell]) - np.mean([labels[i] == c for i in cell]))
                total += len(cell) / len(rows) * (gap if norm == "l1" else gap**2)
        out.append((total if norm == "l1" else np.sqrt(total)) if rows else np.nan)
    return out


# --- worked by hand --------------------------------------------------------------------------------------


def test_calibration_errors_by_hand() -> None:
    probs = [[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]]
    assert max_ece(probs, [0, 1, 1], n_bins=10) == pytest.approx(0.4)  # class 0: |0.5 - 0.9|
    assert avg_ece(probs, [0, 1, 1], n_bins=10) == pytest.approx(0.3)
    assert ece(probs, [0, 1, 1], n_bins=10) == pytest.approx((2 * 0.4 + 0.2) / 3)
    assert ece(probs, [0, 1, 1], n_bins=10, norm="l2") == pytest.approx(np.sqrt((2 * 0.16 + 0.04) / 3))
    assert signed_gap(probs, [0, 1, 1]) == pytest.approx([0.4, -0.2])


@pytest.mark.parametrize("n_bins", [1, 3])  # all confidences are in one bin, [0, 1] or (1/3, 2/3]
def test_example_of_section_5_4(n_bins: int) -> None:
    predicted = np.repeat([0, 1], 100)
    right = np.r_[np.arange(100) < 52, np.arange(100) < 48]
    labels = np.where(right, predicted, 1 - predicted)
    expected = {"TS": (0.6, 0.4, 0.08, 0.0), "CTS": (0.54, 0.5, 0.02, 0.02)}
    for first, second, per_class, merged in expected.values():
        confidence = np.repeat([first, second], 100)
        options = {"predicted": predicted, "n_bins": n_bins}
        assert class_ece(confidence, labels, **options) == pytest.approx([per_class] * 2, abs=1e-12)
        assert max_ece(confidence, labels, **options) == pytest.approx(per_class, abs=1e-12)
        assert avg_ece(confidence, labels, **options) == pytest.approx(per_class, abs=1e-12)
        assert ece(confidence, labels, **options) == pytest.approx(merged, abs=1e-12)


def test_accuracy_nll_and_brier_by_hand() -> None:
    probs, labels = [[0.5, 0.5], [0.25, 0.75]], [1, 1]
    assert accuracy(probs, labels) == 0.5  # a tie goes to the lowest class
    assert nll(probs, labels) == pytest.approx(-(np.log(0.5) + np.log(0.75)) / 2)
    assert brier(probs, labels) == pytest.approx((0.5 + 0.125) / 2)


def test_top_label_nll_and_brier_score_a_correct_prediction() -> None:
    confidence, predicted, labels = [0.8, 0.6], [3, 1], [3, 0]
    assert nll(confidence, labels, predicted=predicted) == pytest.approx(-(np.log(0.8) + np.log(0.4)) / 2)
    assert brier(confidence, labels, predicted=predicted) == pytest.approx((0.04 + 0.36) / 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_label_of_probability_zero_counts_as_half_the_smallest_probability(dtype: type) -> None:
    probs = np.array([[1, 0], [0.25, 0.75]], dtype=dtype)
    assert nll(probs, [1, 1]) == pytest.approx(-np.log([0.125, 0.75]).mean())
    assert nll(probs.max(axis=1), [1, 1], predicted=[0, 1]) == pytest.approx(-np.log([0.125, 0.75]).mean())
    assert nll(probs, [0, 1]) == pytest.approx(-np.log(0.75) / 2)  # zeros of other classes change nothing
    probs = np.array([[1, 0]], dtype=dtype)
    assert nll(probs, [0]) == 0.0
    assert brier(probs, [0]) == 0.0
    assert brier(probs, [1]) == 2.0


def test_a_class_never_predicted_is_nan_and_does_not_count() -> None:
    probs = np.array([[0.9, 0.1, 0.0], [0.3, 0.7, 0.0]])
    assert class_ece(probs, [0, 2]) == pytest.approx([0.1, 0.7, np.nan], nan_ok=True)
    assert signed_gap(probs, [0, 2]) == pytest.approx([-0.1, 0.7, np.nan], nan_ok=True)
    assert avg_ece(probs, [0, 2]) == pytest.approx(0.4)


def test_debiased_l2_by_hand() -> None:
    # one bin, accuracy 0.5, gap 0.4, 10 rows: 0.16 - 0.25 / 9
    confidence, labels, predicted = [0.9] * 10, [0] * 5 + [1] * 5, [0] * 10
    value = debiased_ece(confidence, labels, predicted=predicted, norm="l2")
    assert value == pytest.approx(np.sqrt(0.16 - 0.25 / 9))
    assert debiased_ece([0.9], [1], predicted=[0], norm="l2") == 0.0  # a single row is not informative


def test_smooth_ece_of_errors_of_one_sign_is_the_gap() -> None:
    assert smooth_ece([0.9] * 10, [0] * 5 + [1] * 5, predicted=[0] * 10) == pytest.approx(0.4, abs=1e-6)
    assert smooth_ece([1.0, 1.0], [0, 0], predicted=[0, 0]) == 0.0


# --- invariances -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCORES)
def test_order_of_rows_does_not_matter(name: str) -> None:
    probs, labels = sample(500)
    order = np.random.default_rng(1).permutation(500)
    score = getattr(metrics, name)
    assert np.allclose(score(probs, labels), score(probs[order], labels[order]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [s for s in SCORES if s not in ("nll", "brier")])
def test_top_labels_give_the_same_as_all_probabilities(name: str) -> None:
    probs, labels = sample(500)
    labels[0], score = 5, getattr(metrics, name)
    top_label = score(probs.max(axis=1), labels, predicted=probs.argmax(axis=1))
    assert np.array_equal(score(probs, labels), top_label, equal_nan=True)


@pytest.mark.parametrize("options", [{"binning": "mass"}, {"norm": "l2"}])
def test_repeating_all_rows_changes_nothing(options: dict[str, str]) -> None:
    probs, labels = sample(300)
    for score in (ece, class_ece, max_ece, avg_ece):
        twice = score(np.repeat(probs, 2, axis=0), np.repeat(labels, 2), **options)
        assert np.allclose(score(probs, labels, **options), twice)


def test_l2_is_never_below_l1() -> None:
    probs, labels = sample()
    assert ece(probs, labels, norm="l2") >= ece(probs, labels)


def test_renaming_classes_permutes_the_class_errors() -> None:
    probs, labels = sample()
    order = np.random.default_rng(2).permutation(6)
    renamed = class_ece(probs[:, order], np.argsort(order)[labels])
    assert np.allclose(renamed, class_ece(probs, labels)[order])


# --- recovery of a known truth ---------------------------------------------------------------------------


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_known_gap_is_recovered(binning: str) -> None:
    rng = np.random.default_rng(0)
    confidence, predicted = rng.uniform(0.5, 1, 400_000), rng.integers(2, size=400_000)
    gap = np.array([0.2, -0.1])[predicted] * 2 * (1 - confidence)  # 0.2 and -0.1 times a mean of 1/2
    labels = np.where(rng.random(400_000) < confidence - gap, predicted, 1 - predicted)
    options = {"predicted": predicted, "binning": binning}
    assert class_ece(confidence, labels, **options) == pytest.approx([0.1, 0.05], abs=0.004)
    assert signed_gap(confidence, labels, predicted=predicted) == pytest.approx([0.1, -0.05], abs=0.004)
    assert ece(confidence, labels, **options) == pytest.approx(0.025, abs=0.004)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_debiasing_reduces_the_error_of_a_calibrated_model(norm: str) -> None:
    plain, debiased = [], []
    for seed in range(20):
        probs, labels = sample(400, seed=seed)
        plain.append(ece(probs, labels, norm=norm))
        debiased.append(debiased_ece(probs, labels, norm=norm))
    assert np.mean(debiased) < 0.7 * np.mean(plain)


def test_debiased_l2_square_is_unbiased() -> None:
    rng = np.random.default_rng(0)
    confidence, truth = np.full(50, 0.9), 0.6
    squares = []
    for _ in range(2000):
        labels = (rng.random(50) >= truth).astype(int)
        squares.append(debiased_ece(confidence, labels, predicted=np.zeros(50, int), norm="l2") ** 2)
    assert np.mean(squares) == pytest.approx(0.3**2, abs=0.003)


# --- independent implementations -------------------------------------------------------------------------


@pytest.mark.parametrize(("n_bins", "norm"), [(10, "l1"), (15, "l2")])
def test_ece_agrees_with_torchmetrics(n_bins: int, norm: str) -> None:
    torch = pytest.importorskip("torch")
    peers = pytest.importorskip("torchmetrics.functional.classification")
    probs, labels = sample(5000)
    theirs = peers.multiclass_calibration_error(
        torch.tensor(probs), torch.tensor(labels), num_classes=6, n_bins=n_bins, norm=norm
    )
    assert ece(probs, labels, n_bins=n_bins, norm=norm) == pytest.approx(float(theirs), abs=1e-6)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 20), st.sampled_from(["l1", "l2"]))
def test_class_metrics_agree_with_loops(seed: int, n_bins: int, norm: str) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    confidence, predicted, labels = rng.random(n), rng.integers(4, size=n), rng.integers(4, size=n)
    k = max(predicted.max(), labels.max()) + 1
    truth = brute_class_ece(confidence, predicted, labels, k, n_bins, norm)
    options = {"predicted": predicted, "n_bins": n_bins, "norm": norm}
    assert class_ece(confidence, labels, **options) == pytest.approx(truth, nan_ok=True, abs=1e-12)
    assert max_ece(confidence, labels, **options) == pytest.approx(np.nanmax(truth), abs=1e-12)
    assert avg_ece(confidence, labels, **options) == pytest.approx(np.nanmean(truth), abs=1e-12)


def test_mass_binning_agrees_with_array_split() -> None:
    probs, labels = sample(1500)
    order = np.argsort(probs.max(axis=1))
    residual = (probs.max(axis=1) - (probs.argmax(axis=1) == labels))[order]
    truth = sum(abs(part.sum()) for part in np.array_split(residual, 15)) / 1500
    assert ece(probs, labels, binning="mass") == pytest.approx(truth)


def test_nll_and_brier_agree_with_scikit_learn_and_numpy() -> None:
    probs, labels = sample()
    assert nll(probs, labels) == pytest.approx(log_loss(labels, probs, labels=range(6)))
    assert brier(probs, labels) == pytest.approx(((probs - np.eye(6)[labels]) ** 2).sum(axis=1).mean())
    single = probs.astype(np.float32)
    assert brier(single, labels) == pytest.approx(brier(probs, labels), abs=1e-6)


def test_debiased_l1_agrees_with_resampling() -> None:
    probs, labels = sample(800, seed=3)
    curve = metrics.reliability_curve(probs, labels)
    used = curve.count > 0
    n, c, a = curve.count[used], curve.confidence[used], curve.accuracy[used]
    draws = np.random.default_rng(0).normal(a, np.sqrt(a * (1 - a) / n), size=(200_000, len(n)))
    resampled = (np.abs(draws - c) @ n).mean() / n.sum()
    assert debiased_ece(probs, labels) == pytest.approx(2 * ece(probs, labels) - resampled, abs=2e-4)


@pytest.mark.filterwarnings("ignore")  # relplot's imports warn
@pytest.mark.parametrize(("n", "power"), [(60, 0.6), (3000, 1.0), (3000, 1.7)])
def test_smooth_ece_agrees_with_relplot(n: int, power: float) -> None:
    relplot = pytest.importorskip("relplot")
    rng = np.random.default_rng(n)
    confidence = rng.beta(4, 1, n)
    right = rng.random(n) < confidence**power
    ours = smooth_ece(confidence, right.astype(int), predicted=np.ones(n, dtype=int))
    assert ours == pytest.approx(relplot.smECE(confidence, right.astype(float)), abs=1e-3)


def test_smooth_ece_agrees_with_its_integral() -> None:
    rng = np.random.default_rng(5)
    confidence, right = rng.uniform(0.3, 1, 40), rng.random(40) < 0.7
    sigma = smooth_ece(confidence, right.astype(int), predicted=np.ones(40, dtype=int))
    t = (np.arange(20_000) + 0.5) / 20_000
    images = [s * confidence + 2 * m for m in range(-3, 4) for s in (1, -1)]
    kernel = sum(np.exp(-0.5 * ((t[:, None] - x) / sigma) ** 2) for x in images)
    field = (kernel * (confidence - right)).sum(axis=1) / (40 * sigma * np.sqrt(2 * np.pi))
    assert np.abs(field).mean() == pytest.approx(sigma, abs=1e-4)


# --- dtypes and errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_narrow_dtypes_are_summed_in_float64(dtype: type) -> None:
    confidence = np.full(200_000, 0.75, dtype=dtype)
    labels = (np.arange(200_000) % 4 == 0).astype(int)
    assert ece(confidence, labels, predicted=np.zeros(200_000, int)) == 0.0


@pytest.mark.parametrize("name", SCORES)
def test_scores_validate_their_input(name: str) -> None:
    score = getattr(metrics, name)
    with pytest.raises(ValueError, match="labels must"):
        score([[0.5, 0.5]], [2])
    with pytest.raises(ValueError, match="predicted="):
        score([0.5, 0.5], [0, 0])


@pytest.mark.parametrize("name", BINNED)
def test_binned_scores_validate_their_options(name: str) -> None:
    with pytest.raises(ValueError, match="norm must"):
        getattr(metrics, name)([0.5], [0], predicted=[0], norm="max")


def test_smooth_ece_of_certain_errors_is_one() -> None:
    assert smooth_ece([[1.0, 0.0]], [1]) == 1.0  # no σ below 1 solves smECE_σ = σ


def test_cells_beyond_the_ends_of_the_grid_are_added_to_the_outermost() -> None:
    for beyond, end in ((0, 1), (-1, -2)):
        outside, inside = residual_grid(), residual_grid()
        outside[beyond] = inside[end] = 3.0
        outside[4000] = inside[4000] = -1.0
        assert smooth_error_of_grid(outside, 10) == smooth_error_of_grid(inside, 10) > 0.05


def test_brier_of_nearly_perfect_predictions_keeps_its_digits() -> None:
    probs = np.tile([1 - 1e-9, 1e-9], (1000, 1))
    labels = np.zeros(1000, int)
    exact = (1 - probs[0, 0]) ** 2 + probs[0, 1] ** 2
    assert metrics.brier(probs, labels) == pytest.approx(exact, rel=1e-9)
    assert metrics.evaluate(probs, labels).brier == pytest.approx(exact, rel=1e-9)
