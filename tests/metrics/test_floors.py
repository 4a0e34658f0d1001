from __future__ import annotations

import dataclasses
from collections.abc import Callable

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


@pytest.mark.parametrize(("binning", "norm"), [("width", "l1"), ("mass", "l2")])
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


def test_calibrated_models_are_within_the_floor_and_others_above() -> None:
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


def test_top_labels_give_the_same_as_all_probabilities() -> None:
    probs = confident(300, 4)
    full = noise_floor(probs, n_redraws=20)
    top_label = noise_floor(probs.max(axis=1), predicted=probs.argmax(axis=1), n_classes=4, n_redraws=20)
    assert np.array_equal(full.samples["class_ece"], top_label.samples["class_ece"])


def test_floor_is_reproducible() -> None:
    probs = confident(300, 4)
    repeated = [noise_floor(probs, n_redraws=10, rng=7).samples["ece"] for _ in range(2)]
    assert np.array_equal(*repeated)
    assert np.array_equal(
        repeated[0], noise_floor(probs, n_redraws=10, rng=np.random.default_rng(7)).samples["ece"]
    )
    assert not np.array_equal(repeated[0], noise_floor(probs, n_redraws=10, rng=8).samples["ece"])


def test_order_of_rows_does_not_matter_for_the_distribution() -> None:
    probs = confident(1000, 4)
    order = np.random.default_rng(0).permutation(1000)
    a, b = noise_floor(probs, n_redraws=500), noise_floor(probs[order], n_redraws=500)
    assert a.mean["avg_ece"] == pytest.approx(b.mean["avg_ece"], rel=0.03)


def test_blocks_of_rows_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    probs = confident(2000, 6)
    one_block = noise_floor(probs, n_redraws=400)
    monkeypatch.setattr(module, "_BLOCK_DRAWS", 700)  # one redraw at a time, in three blocks of rows
    three_blocks = noise_floor(probs, n_redraws=400)
    assert three_blocks.samples["class_ece"].shape == (400, 6)
    assert three_blocks.mean["ece"] == pytest.approx(one_block.mean["ece"], rel=0.1)
    assert three_blocks.mean["class_ece"] == pytest.approx(one_block.mean["class_ece"], rel=0.1)


def test_classes_never_predicted_are_nan_and_are_ignored() -> None:
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
    ("options", "error"),
    [
        ({"n_redraws": 0}, ValueError),
        ({"norm": "no"}, ValueError),
        ({"quantiles": (0.5, 1.5)}, ValueError),
        ({"quantiles": 0.5}, TypeError),
        ({"quantiles": [None]}, TypeError),
        ({"n_classes": 1}, ValueError),
        ({"n_classes": 2.5}, ValueError),
        ({"rng": -1}, TypeError),
        ({"predicted": [0]}, ValueError),
    ],
)
def test_options_are_validated(options: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"{next(iter(options))} must"):
        noise_floor([0.8, 0.9], **({"predicted": [0, 1]} | options))  # type: ignore[arg-type]


def test_n_classes_must_be_the_number_of_columns() -> None:
    with pytest.raises(ValueError, match="n_classes must"):
        noise_floor([[0.4, 0.6]], n_classes=3)


def network_like() -> tuple[np.ndarray, np.ndarray, int]:
    probs = confident(12_000, 10)
    return probs.max(axis=1), probs.argmax(axis=1), 10


def nearly_certain() -> tuple[np.ndarray, np.ndarray, int]:
    rng = np.random.default_rng(1)
    confidence = rng.choice([0.9999, 1.0, 0.99, 0.6], p=[0.5, 0.3, 0.1, 0.1], size=20_000)
    return confidence.astype(np.float32), rng.integers(5, size=20_000), 6


def thousand_classes() -> tuple[np.ndarray, np.ndarray, int]:
    rng = np.random.default_rng(2)
    return rng.beta(4, 1, 8000), rng.integers(1000, size=8000), 1000


def two_classes() -> tuple[np.ndarray, np.ndarray, int]:
    rng = np.random.default_rng(3)
    return 0.5 + rng.random(6000) / 2, rng.integers(2, size=6000), 2


def both_floors(
    monkeypatch: pytest.MonkeyPatch,
    data: tuple[np.ndarray, np.ndarray, int],
    n_redraws: int,
    **options: object,
) -> tuple[module.NoiseFloor, module.NoiseFloor]:
    """Floors redrawn by fine cell and by row, regardless of the size."""
    confidence, predicted, n_classes = data
    floors = []
    for many, few in ((0, 0), (1 << 60, 8)):
        monkeypatch.setattr(module, "_MIN_FINE_DRAWS", many)
        monkeypatch.setattr(module, "_MIN_ROWS_PER_CELL", few)
        floors.append(
            noise_floor(confidence, predicted=predicted, n_classes=n_classes, n_redraws=n_redraws, **options)
        )
    return floors[0], floors[1]


@pytest.mark.parametrize(
    ("data", "norm"),
    [(network_like, "l1"), (nearly_certain, "l2"), (thousand_classes, "l1"), (two_classes, "l2")],
)
def test_redraws_by_fine_cell_have_the_distribution_of_redraws_by_row(
    monkeypatch: pytest.MonkeyPatch, data: Callable[[], tuple[np.ndarray, np.ndarray, int]], norm: str
) -> None:
    n = 1000
    cells, rows = both_floors(monkeypatch, data(), n, norm=norm)
    assert not np.array_equal(cells.samples["ece"], rows.samples["ece"])
    for metric in ("ece", "max_ece", "avg_ece", "class_ece"):
        a, b = cells.samples[metric], rows.samples[metric]
        assert np.array_equal(np.isnan(a), np.isnan(b))
        error = np.sqrt((a.var(axis=0) + b.var(axis=0)) / n) + 1e-15
        assert np.nanmax(np.abs(a.mean(axis=0) - b.mean(axis=0)) / error) < 5
        fourth = ((b - b.mean(axis=0)) ** 4).mean(axis=0)
        # Standard error of the difference of the variances.
        error = np.sqrt(np.maximum(fourth - b.var(axis=0) ** 2, 0) / n * 2) + 1e-15
        assert np.nanmax(np.abs(a.var(axis=0) - b.var(axis=0)) / error) < 6
        if metric != "class_ece":
            assert stats.ks_2samp(a, b).pvalue > 1e-4
            for level in (0.05, 0.5, 0.95):
                share = (b <= cells.quantile(metric, level)).mean()
                assert abs(share - level) < 5 * np.sqrt(2 * level * (1 - level) / n)


def test_one_cell_of_many_rows_is_a_binomial_by_hand() -> None:
    floor = noise_floor(np.full(30_000, 0.8), predicted=np.zeros(30_000, int), n_redraws=2000)
    spread = stats.binom(30_000, 0.8).std() / 30_000
    assert floor.mean["ece"] == pytest.approx(spread * np.sqrt(2 / np.pi), rel=0.1)
    assert floor.quantile("ece", 0.95) == pytest.approx(1.96 * spread, rel=0.1)
    steps = floor.samples["ece"] * 30_000
    assert steps == pytest.approx(steps.round(), abs=1e-6)


def test_many_certain_rows_have_no_noise() -> None:
    confidence = np.ones(30_000, np.float32)
    confidence[:10_000] = 0
    floor = noise_floor(confidence, predicted=np.arange(30_000) % 3)
    assert floor.mean["ece"] == floor.mean["max_ece"] == 0.0


def test_large_inputs_are_redrawn_by_fine_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    def redrawn_by_fine_cell(n: int, k: int, **options: object) -> bool:
        calls = []
        original = module.floor_of_fine_cells
        monkeypatch.setattr(
            module, "floor_of_fine_cells", lambda *a, **o: calls.append(1) or original(*a, **o)
        )
        noise_floor(np.linspace(0.5, 1, n), predicted=np.arange(n) % k, **options)
        monkeypatch.setattr(module, "floor_of_fine_cells", original)
        return bool(calls)

    assert not redrawn_by_fine_cell(20_971, 10)  # 200 redraws of them are just below 2^22
    assert redrawn_by_fine_cell(20_972, 10)
    assert not redrawn_by_fine_cell(20_972, 10, n_redraws=199)
    assert not redrawn_by_fine_cell(20_972, 10, binning="mass")
    assert not redrawn_by_fine_cell(30_000, 100)  # 6,900 fine cells are too many


def test_result_does_not_depend_on_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    confidence, predicted = np.random.default_rng(0).random(60_000), np.arange(60_000) % 50
    samples = []
    for threads in ("1", "3"):
        monkeypatch.setenv("HETCAL_THREADS", threads)
        samples.append(noise_floor(confidence, predicted=predicted, rng=5).samples["class_ece"])
    assert np.array_equal(*samples)
    other_seed = noise_floor(confidence, predicted=predicted, rng=6).samples["class_ece"]
    assert not np.array_equal(samples[0], other_seed)


def test_classes_of_many_rows_that_are_never_predicted_are_nan() -> None:
    floor = noise_floor(np.full(40_000, 0.9), predicted=np.arange(40_000) % 2 * 2, n_classes=4)
    assert np.isnan(floor.mean["class_ece"]).tolist() == [False, True, False, True]
    assert np.isfinite(floor.mean["max_ece"])


def test_redraws_by_row_by_hand() -> None:
    floor = noise_floor([0.5, 0.75, 0.9], predicted=[0, 1, 1], n_redraws=4, n_bins=1)
    hits = np.random.default_rng(0).random((4, 3), dtype=np.float32) < np.array([0.5, 0.75, 0.9], np.float32)
    assert floor.samples["ece"] == pytest.approx(np.abs(2.15 - hits.sum(axis=1)) / 3)
