from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats

from hetcal.metrics import avg_ece, class_ece, ece, max_ece, noise_floor
from hetcal.metrics import floors as module


def confident(n: int, k: int, seed: int = 0) -> np.ndarray:
    """Probabilities like those of a network: mean confidence about 0.8."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k))
    z[np.arange(n), rng.integers(k, size=n)] += rng.gamma(4, 2, size=n)
    p = np.exp(z)
    return p / p.sum(axis=1, keepdims=True)


def test_one_bin_is_a_binomial_by_hand() -> None:
    floor = noise_floor(np.full(50, 0.8), predicted=np.zeros(50, int), n_redraws=4000)
    right = np.arange(51)
    chance, error = stats.binom(50, 0.8).pmf(right), np.abs(right / 50 - 0.8)
    mean = chance @ error
    assert floor.mean["ece"] == pytest.approx(mean, rel=0.05)
    assert floor.std["ece"] == pytest.approx(np.sqrt(chance @ (error - mean) ** 2), rel=0.05)
    for metric in ("max_ece", "avg_ece"):
        assert np.array_equal(floor.samples[metric], floor.samples["ece"])
    assert set(np.round(floor.samples["ece"], 6)) <= set(np.round(error, 6))


def test_max_ece_of_100_classes_with_100_rows_is_near_018() -> None:
    confidence = np.random.default_rng(0).uniform(0.3, 1, 10_000)
    floor = noise_floor(confidence, predicted=np.arange(10_000) % 100)
    assert floor.mean["max_ece"] == pytest.approx(0.18, abs=0.01)
    assert floor.mean["ece"] < 0.015


@pytest.mark.parametrize("binning", ["width", "mass"])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_floor_agrees_with_a_loop_over_the_metrics(binning: str, norm: str) -> None:
    probs = confident(600, 5)
    confidence, predicted = probs.max(axis=1), probs.argmax(axis=1)
    floor = noise_floor(probs, n_redraws=600, binning=binning, norm=norm)
    rng, draws = np.random.default_rng(1), {"ece": [], "max_ece": [], "avg_ece": [], "class_ece": []}
    options = {"predicted": predicted, "binning": binning, "norm": norm}
    for _ in range(300):
        labels = np.where(rng.random(600) < confidence, predicted, (predicted + 1) % 5)
        for name, score in zip(draws, (ece, max_ece, avg_ece, class_ece), strict=True):
            draws[name].append(score(confidence, labels, **options))
    for name, values in draws.items():
        error = 5 * np.std(values, axis=0) / np.sqrt(300)
        assert np.all(np.abs(np.mean(values, axis=0) - floor.mean[name]) < error)
        assert np.mean(values, axis=0) == pytest.approx(floor.mean[name], rel=0.2)


def test_a_calibrated_model_lies_inside_its_floor_and_a_bad_one_above() -> None:
    rng = np.random.default_rng(0)
    probs = confident(3000, 10)
    confidence, predicted = probs.max(axis=1), probs.argmax(axis=1)
    floor = noise_floor(probs)
    p_values = []
    for _ in range(200):
        labels = np.where(rng.random(3000) < confidence, predicted, (predicted + 1) % 10)
        p_values.append(floor.p_value("max_ece", max_ece(probs, labels)))
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3
    labels = np.where(rng.random(3000) < confidence - 0.1, predicted, (predicted + 1) % 10)
    assert floor.p_value("ece", ece(probs, labels)) == pytest.approx(1 / 201)
    assert (floor.p_value("class_ece", class_ece(probs, labels)) <= 0.06).mean() > 0.5


def test_full_and_top1_forms_agree() -> None:
    probs = confident(300, 4)
    full = noise_floor(probs, n_redraws=20)
    top1 = noise_floor(probs.max(axis=1), predicted=probs.argmax(axis=1), n_classes=4, n_redraws=20)
    assert np.array_equal(full.samples["class_ece"], top1.samples["class_ece"])


def test_the_seed_decides_and_nothing_else() -> None:
    probs = confident(300, 4)
    again = [noise_floor(probs, n_redraws=10, rng=7).samples["ece"] for _ in range(2)]
    assert np.array_equal(*again)
    assert np.array_equal(
        again[0], noise_floor(probs, n_redraws=10, rng=np.random.default_rng(7)).samples["ece"]
    )
    assert not np.array_equal(again[0], noise_floor(probs, n_redraws=10, rng=8).samples["ece"])


def test_order_of_rows_does_not_matter_for_the_distribution() -> None:
    probs = confident(1000, 4)
    order = np.random.default_rng(0).permutation(1000)
    a, b = noise_floor(probs, n_redraws=500), noise_floor(probs[order], n_redraws=500)
    assert a.mean["avg_ece"] == pytest.approx(b.mean["avg_ece"], rel=0.03)


def test_blocks_of_rows_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    probs = confident(2000, 6)
    whole = noise_floor(probs, n_redraws=400)
    monkeypatch.setattr(module, "_BLOCK", 700)  # fewer than the rows: redraws one by one, rows in three parts
    parts = noise_floor(probs, n_redraws=400)
    assert parts.samples["class_ece"].shape == (400, 6)
    assert parts.mean["ece"] == pytest.approx(whole.mean["ece"], rel=0.1)
    assert parts.mean["class_ece"] == pytest.approx(whole.mean["class_ece"], rel=0.1)


def test_classes_never_predicted_are_nan_and_do_not_count() -> None:
    floor = noise_floor([0.8, 0.9, 0.7], predicted=[0, 2, 2], n_classes=4, n_redraws=30)
    assert np.isnan(floor.mean["class_ece"]).tolist() == [False, True, False, True]
    assert np.isnan(floor.quantile("class_ece", 0.5)).tolist() == [False, True, False, True]
    p = floor.p_value("class_ece", [0.1, np.nan, 0.2, np.nan])
    assert np.isnan(p).tolist() == [False, True, False, True]
    assert np.isfinite(floor.mean["max_ece"])


def test_certain_confidences_have_no_noise() -> None:
    floor = noise_floor([1.0, 1.0, 0.0], predicted=[0, 1, 1], n_redraws=20)
    assert floor.mean["ece"] == floor.mean["max_ece"] == 0.0


def test_quantiles_are_those_of_the_samples_and_the_result_is_frozen() -> None:
    floor = noise_floor(confident(200, 3), n_redraws=50, quantiles=(0.1, 0.9))
    assert floor.levels == (0.1, 0.9)
    assert floor.quantiles["class_ece"].shape == (2, 3)
    assert floor.quantiles["ece"][1] == pytest.approx(floor.quantile("ece", 0.9))
    assert "samples" not in repr(floor)
    with pytest.raises(dataclasses.FrozenInstanceError):
        floor.mean = {}  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"n_redraws": 0}, ValueError, "n_redraws must be a positive integer"),
        ({"n_redraws": 2.0}, ValueError, "n_redraws must be a positive integer"),
        ({"n_bins": 0}, ValueError, "n_bins must be"),
        ({"binning": "no"}, ValueError, "binning must be"),
        ({"norm": "no"}, ValueError, "norm must be"),
        ({"quantiles": (0.5, 1.5)}, ValueError, r"quantiles must lie in \[0, 1\]"),
        ({"n_classes": 1}, ValueError, "n_classes must fit the 2 classes"),
        ({"rng": -1}, TypeError, "rng must be"),
        ({"predicted": [0]}, ValueError, "predicted must have one entry per row"),
    ],
)
def test_errors(options: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        noise_floor([0.8, 0.9], **({"predicted": [0, 1]} | options))  # type: ignore[arg-type]


def test_n_classes_must_be_the_columns() -> None:
    with pytest.raises(ValueError, match="n_classes must fit the 2 classes"):
        noise_floor([[0.4, 0.6]], n_classes=3)
