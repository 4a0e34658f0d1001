from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import special, stats

from hetcal.metrics import avg_ece, bootstrap, class_ece, ece, gap_intervals, max_ece, signed_gap
from hetcal.metrics import intervals as module

ALL = ("ece", "max_ece", "avg_ece", "class_ece", "signed_gap")


def draw(n: int, seed: int, gap: float = 0.15, k: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Class 0 is over-confident by `gap`, the other classes are calibrated."""
    rng = np.random.default_rng(seed)
    predicted, confidence = rng.integers(k, size=n), rng.uniform(0.5, 1, n)
    right = rng.random(n) < confidence - gap * (predicted == 0)
    return confidence, predicted, np.where(right, predicted, (predicted + 1) % k)


# --- bootstrap -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("binning", "norm"), [("width", "l2"), ("mass", "l1")])
def test_estimates_are_the_metrics(binning: str, norm: str) -> None:
    confidence, predicted, labels = draw(800, 0)
    options = {"predicted": predicted, "binning": binning, "norm": norm, "n_bins": 7}
    result = bootstrap(confidence, labels, metrics=ALL, n_resamples=20, **options)
    for name, score in zip(ALL, (ece, max_ece, avg_ece, class_ece), strict=False):
        assert result.estimate[name] == pytest.approx(score(confidence, labels, **options))
    assert result.estimate["signed_gap"] == pytest.approx(signed_gap(confidence, labels, predicted=predicted))
    assert isinstance(result.low["ece"], float)
    assert result.low["class_ece"].shape == (4,)
    for name in ALL:
        assert np.all(np.asarray(result.low[name]) <= np.asarray(result.high[name]))


def test_resamples_agree_with_a_loop() -> None:
    confidence, predicted, labels = draw(300, 1)
    result = bootstrap(
        confidence, labels, predicted=predicted, metrics=ALL, method="percentile", n_resamples=2000
    )
    rng, loop = np.random.default_rng(5), []
    for _ in range(1000):
        i = rng.integers(300, size=300)
        loop.append([f(confidence[i], labels[i], predicted=predicted[i]) for f in (ece, max_ece, avg_ece)])
    low, high = np.quantile(loop, [0.025, 0.975], axis=0)
    assert [result.low[m] for m in ALL[:3]] == pytest.approx(low, abs=0.01)
    assert [result.high[m] for m in ALL[:3]] == pytest.approx(high, abs=0.01)


def test_signed_gap_interval_agrees_with_the_normal_one() -> None:
    confidence, labels = np.full(2000, 0.9), (np.arange(2000) % 5 > 0).astype(int)
    result = bootstrap(
        confidence, labels, predicted=np.ones(2000, int), metrics=["signed_gap"], n_resamples=4000
    )
    half = 1.96 * np.sqrt(0.8 * 0.2 / 2000)
    assert result.low["signed_gap"][1] == pytest.approx(0.1 - half, abs=0.002)
    assert result.high["signed_gap"][1] == pytest.approx(0.1 + half, abs=0.002)


def test_centred_intervals_cover_the_mean_metric_of_their_size() -> None:
    estimates, inside = [], []
    for seed in range(100):
        confidence, predicted, labels = draw(800, seed)
        result = bootstrap(confidence, labels, predicted=predicted, n_resamples=200, rng=seed)
        estimates.append([result.estimate[m] for m in ALL[:3]])
        inside.append([(result.low[m], result.high[m]) for m in ALL[:3]])
    mean, ends = np.mean(estimates, axis=0), np.array(inside)
    covered = ((ends[..., 0] <= mean) & (mean <= ends[..., 1])).mean(axis=0)
    assert np.all(covered > 0.86)


@pytest.mark.parametrize(("gap", "norm"), [(0.0, "l1"), (0.15, "l2")])
def test_population_intervals_cover_the_metric_of_a_large_test_set(gap: float, norm: str) -> None:
    """One of 4 classes has a gap; the ECE of all rows is a quarter of it in either norm."""
    truth = {"ece": gap / 4, "max_ece": gap, "avg_ece": gap / 4}
    inside = []
    for seed in range(100):
        confidence, predicted, labels = draw(800, seed, gap=gap)
        options = {"predicted": predicted, "norm": norm, "n_resamples": 200, "rng": seed}
        result = bootstrap(confidence, labels, method="population", **options)
        inside.append([result.low[m] <= value <= result.high[m] for m, value in truth.items()])
    assert np.all(np.mean(inside, axis=0) > 0.89)


def test_lower_population_limit_by_hand() -> None:
    """With one bin, the ECE of a resample differs from that of the sample by the difference of the gaps."""
    labels = np.arange(1000) % 10 < 7
    options = {"predicted": np.ones(1000, int), "metrics": ["ece"], "n_resamples": 4000}
    result = bootstrap(np.full(1000, 0.9), labels, method="population", **options)
    half = 1.96 * np.sqrt(0.7 * 0.3 / 1000)
    # Quantile of the absolute value of a normal variable.
    distance = stats.norm.ppf(0.9875) * np.sqrt(0.7 * 0.3 / 1000)
    assert result.high["ece"] == pytest.approx(0.2 + half, abs=0.003)
    assert result.low["ece"] == pytest.approx(0.2 - distance, abs=0.003)


def test_methods_are_related_as_documented() -> None:
    confidence, predicted, labels = draw(500, 2)
    options = {"predicted": predicted, "metrics": ["avg_ece"]}
    intervals = {
        m: bootstrap(confidence, labels, method=m, **options) for m in ("centred", "basic", "percentile")
    }
    theta = intervals["basic"].estimate["avg_ece"]
    basic, plain = intervals["basic"], intervals["percentile"]
    assert basic.low["avg_ece"] == pytest.approx(2 * theta - plain.high["avg_ece"])
    assert basic.high["avg_ece"] == pytest.approx(2 * theta - plain.low["avg_ece"])
    assert (
        intervals["centred"].low["avg_ece"]
        < theta
        < intervals["centred"].high["avg_ece"]
        < plain.high["avg_ece"]
    )


def test_width_falls_with_the_rows_and_grows_with_the_level() -> None:
    def width(n: int, level: float) -> float:
        confidence, predicted, labels = draw(n, 3, gap=0.3, k=2)
        result = bootstrap(confidence, labels, predicted=predicted, metrics=["max_ece"], level=level)
        return float(result.high["max_ece"]) - float(result.low["max_ece"])

    assert width(16_000, 0.9) < 0.5 * width(1000, 0.9)
    assert width(1000, 0.5) < width(1000, 0.99)


def test_classes_missing_from_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_ROWS", 64)
    confidence, predicted = np.full(40, 0.7), np.r_[np.zeros(39, int), 2]
    labels = np.r_[np.zeros(20, int), np.ones(20, int)]
    result = bootstrap(confidence, labels, predicted=predicted, metrics=ALL, n_resamples=50)
    assert np.isnan(result.low["class_ece"]).tolist() == [False, True, False]  # 1 is never predicted, 2 once
    assert np.isfinite([result.low["max_ece"], result.high["avg_ece"]]).all()


def test_chunks_add_up_to_all_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_ROWS", 1000)
    assert list(module._chunk_resamples(300, 10)) == [3, 3, 3, 1]
    assert list(module._chunk_resamples(2000, 2)) == [1, 1]
    monkeypatch.setattr(module, "_DRAWN_ROWS", 21)
    drawn = list(module._draw_rows(8, 7, np.random.default_rng(0)))
    assert [len(numbers) for numbers in drawn] == [21, 21, 14]  # at most three rows of all seven resamples
    assert set(np.concatenate(drawn)) == set(range(8))


def test_bootstrap_is_reproducible() -> None:
    confidence, predicted, labels = draw(200, 4)
    a, b, c = (
        bootstrap(confidence, labels, predicted=predicted, n_resamples=30, rng=r).low for r in (1, 1, 2)
    )
    assert a == b
    assert a != c


@pytest.mark.parametrize(
    "options",
    [
        {"metrics": ["mce"]},
        {"n_resamples": 0},
        {"level": 1.0},
        {"method": "bca"},
        {"norm": "no"},
    ],
)
def test_bootstrap_validates_its_options(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(options))} must"):
        bootstrap([0.8, 0.9], [0, 1], predicted=[0, 1], **options)  # type: ignore[arg-type]


# --- signed gap -----------------------------------------------------------------------------------------


def test_equal_confidences_give_the_mid_p_interval_of_the_accuracy() -> None:
    labels = [0] * 35 + [1] * 15
    result = gap_intervals([0.7] * 50, labels, predicted=[0] * 50)
    assert result.estimate["signed_gap"][0] == pytest.approx(0.0)
    least, most = 0.7 - result.high["signed_gap"][0], 0.7 - result.low["signed_gap"][0]
    at_least, at_most = stats.binom(50, least), stats.binom(50, most)
    assert at_least.sf(35) + at_least.pmf(35) / 2 == pytest.approx(0.025)
    assert at_most.cdf(34) + at_most.pmf(35) / 2 == pytest.approx(0.025)


def test_ten_correct_rows_by_hand() -> None:
    """The accuracy is 1, its maximum, so the lower limit depends only on the mean confidence."""
    p = np.r_[np.full(5, 0.9), np.full(5, 0.7)]
    result = gap_intervals(p, np.ones(10, int), predicted=np.ones(10, int))
    half = stats.t(9).ppf(0.975) * np.std(p, ddof=1) / np.sqrt(10) / (0.8 * 0.2)
    low, high = special.expit(np.log(4) - half), special.expit(np.log(4) + half)
    least_accuracy = (2 * 0.025) ** (1 / 10)
    assert result.low["signed_gap"][1] == pytest.approx(low - 1)
    assert result.high["signed_gap"][1] == pytest.approx(-0.2 + np.hypot(high - 0.8, 1 - least_accuracy))


def test_confidences_that_predict_correctness_narrow_the_interval() -> None:
    # half of the rows are certain and correct: only the other half is noisy
    labels = [0] * 50 + [0, 1] * 25
    spread = gap_intervals([1.0] * 50 + [0.5] * 50, labels, predicted=[0] * 100)
    alike = gap_intervals([0.75] * 100, labels, predicted=[0] * 100)
    width = [float(r.high["signed_gap"][0] - r.low["signed_gap"][0]) for r in (spread, alike)]
    assert width[0] == pytest.approx(width[1] * np.sqrt(0.125 / 0.1875), rel=0.05)


def test_many_rows_give_the_interval_of_the_mean_residual() -> None:
    """The interval accounts for the correlation of confidence and correctness."""
    rng = np.random.default_rng(0)
    p = rng.uniform(0.1, 1, 100_000)
    right = rng.random(100_000) < p
    result = gap_intervals(p, right.astype(int), predicted=np.ones(100_000, int), level=0.9)
    half = stats.norm.ppf(0.95) * np.std(p - right) / np.sqrt(100_000)
    assert result.low["signed_gap"][1] == pytest.approx((p - right).mean() - half, abs=0.01 * half)
    assert result.high["signed_gap"][1] == pytest.approx((p - right).mean() + half, abs=0.01 * half)


@pytest.mark.parametrize(
    ("n", "shape", "chance"),
    [
        (5, (5, 1), lambda p: p),
        (200, (5, 1), lambda p: p),
        (20, (5, 1), lambda p: p - 0.1),
        (20, (5, 1), np.ones_like),
        (200, (50, 1), np.ones_like),
        (5, (2, 2), lambda p: np.full_like(p, 0.7)),
    ],
)
def test_intervals_cover_the_gap_of_the_population(
    n: int, shape: tuple[float, float], chance: Callable[[np.ndarray], np.ndarray]
) -> None:
    rng, repeats = np.random.default_rng(n), 1500
    p = rng.beta(*shape, repeats * n)
    right = rng.random(repeats * n) < chance(p)
    # every class is a separate sample
    predicted = np.repeat(np.arange(repeats), n)
    labels = np.where(right, predicted, (predicted + 1) % repeats)
    result = gap_intervals(p, labels, predicted=predicted)
    many = rng.beta(*shape, 400_000)
    truth = (many - np.clip(chance(many), 0, 1)).mean()
    inside = (result.low["signed_gap"] <= truth) & (truth <= result.high["signed_gap"])
    assert inside.mean() > 0.93 - 3 * np.sqrt(0.93 * 0.07 / repeats)


@pytest.mark.parametrize("level", [1e-300, 0.95, 1 - 1e-16])
def test_intervals_contain_the_estimate_and_stay_in_range(level: float) -> None:
    for p in ([0.0], [0.7], [1.0], [0.7] * 5, [1.0] * 4, [0.2, 1.0], [1.0, np.nextafter(1, 0)]):
        for n_correct in range(len(p) + 1):
            labels = (np.arange(len(p)) < n_correct).astype(int)
            result = gap_intervals(p, labels, predicted=[1] * len(p), level=level)
            low, estimate, high = (a["signed_gap"][1] for a in (result.low, result.estimate, result.high))
            assert -1 <= low <= estimate <= high <= 1


def test_rows_of_other_classes_do_not_matter() -> None:
    confidence, predicted, labels = draw(300, 5)
    both, rows = gap_intervals(confidence, labels, predicted=predicted), predicted == 2
    separate = gap_intervals(confidence[rows], labels[rows], predicted=predicted[rows])
    assert both.low["signed_gap"][2] == pytest.approx(separate.low["signed_gap"][2], rel=1e-12)
    assert both.high["signed_gap"][2] == pytest.approx(separate.high["signed_gap"][2], rel=1e-12)


def test_certain_rows_and_missing_classes() -> None:
    result = gap_intervals([1.0, 1.0], [0, 2], predicted=[0, 0])
    assert result.estimate["signed_gap"][0] == pytest.approx(0.5)
    assert 0 <= result.low["signed_gap"][0] < 0.5 < result.high["signed_gap"][0] <= 1
    assert np.isnan(result.low["signed_gap"][1:]).all()


def test_level_is_checked() -> None:
    with pytest.raises(ValueError, match="level must"):
        gap_intervals([0.5], [0], predicted=[0], level=0)


@pytest.mark.parametrize("metrics", [3, None, "ece"])
def test_metrics_must_be_a_list(metrics: object) -> None:
    with pytest.raises(TypeError, match="metrics must"):
        bootstrap([[0.6, 0.4]], [0], metrics=metrics)  # type: ignore[arg-type]


def test_a_level_near_zero_gives_the_gap_itself() -> None:
    result = gap_intervals([[0.6, 0.4]], [0], level=1e-300)
    assert result.low["signed_gap"][0] == result.high["signed_gap"][0] == pytest.approx(-0.4)
