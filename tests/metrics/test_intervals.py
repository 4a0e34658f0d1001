from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hetcal.metrics import avg_ece, bootstrap, class_ece, ece, gap_intervals, max_ece, signed_gap
from hetcal.metrics import intervals as module

ALL = ("ece", "max_ece", "avg_ece", "class_ece", "signed_gap")


def draw(n: int, seed: int, gap: float = 0.15, k: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Class 0 is over-confident by `gap`, the others are right."""
    rng = np.random.default_rng(seed)
    predicted, confidence = rng.integers(k, size=n), rng.uniform(0.5, 1, n)
    right = rng.random(n) < confidence - gap * (predicted == 0)
    return confidence, predicted, np.where(right, predicted, (predicted + 1) % k)


# --- bootstrap -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("binning", ["width", "mass"])
@pytest.mark.parametrize("norm", ["l1", "l2"])
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
        confidence, labels, predicted=predicted, metrics=ALL, method="percentile", n_resamples=3000
    )
    rng, loop = np.random.default_rng(5), []
    for _ in range(1500):
        i = rng.integers(300, size=300)
        loop.append([f(confidence[i], labels[i], predicted=predicted[i]) for f in (ece, max_ece, avg_ece)])
    low, high = np.quantile(loop, [0.025, 0.975], axis=0)
    assert [result.low[m] for m in ALL[:3]] == pytest.approx(low, abs=0.008)
    assert [result.high[m] for m in ALL[:3]] == pytest.approx(high, abs=0.008)


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
    for seed in range(150):
        confidence, predicted, labels = draw(800, seed)
        result = bootstrap(confidence, labels, predicted=predicted, n_resamples=200, rng=seed)
        estimates.append([result.estimate[m] for m in ALL[:3]])
        inside.append([(result.low[m], result.high[m]) for m in ALL[:3]])
    mean, ends = np.mean(estimates, axis=0), np.array(inside)
    covered = ((ends[..., 0] <= mean) & (mean <= ends[..., 1])).mean(axis=0)
    assert np.all(covered > 0.86)


def test_methods_place_the_interval_as_they_say() -> None:
    confidence, predicted, labels = draw(500, 2)
    options = {"predicted": predicted, "metrics": ["avg_ece"]}
    found = {
        m: bootstrap(confidence, labels, method=m, **options) for m in ("centred", "basic", "percentile")
    }
    theta = found["basic"].estimate["avg_ece"]
    basic, plain = found["basic"], found["percentile"]
    assert basic.low["avg_ece"] == pytest.approx(2 * theta - plain.high["avg_ece"])
    assert basic.high["avg_ece"] == pytest.approx(2 * theta - plain.low["avg_ece"])
    assert found["centred"].low["avg_ece"] < theta < found["centred"].high["avg_ece"] < plain.high["avg_ece"]


def test_more_rows_make_it_narrower_and_the_level_wider() -> None:
    def width(n: int, level: float) -> float:
        confidence, predicted, labels = draw(n, 3, gap=0.3, k=2)
        result = bootstrap(confidence, labels, predicted=predicted, metrics=["max_ece"], level=level)
        return float(result.high["max_ece"]) - float(result.low["max_ece"])

    assert width(16_000, 0.9) < 0.5 * width(1000, 0.9)
    assert width(1000, 0.5) < width(1000, 0.99)


def test_blocks_and_rare_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK", 64)
    confidence, predicted = np.full(40, 0.7), np.r_[np.zeros(39, int), 2]
    labels = np.r_[np.zeros(20, int), np.ones(20, int)]
    result = bootstrap(confidence, labels, predicted=predicted, metrics=ALL, n_resamples=50)
    assert np.isnan(result.low["class_ece"]).tolist() == [False, True, False]  # 1 is never predicted, 2 once
    assert np.isfinite([result.low["max_ece"], result.high["avg_ece"]]).all()


def test_parts_add_up_to_all_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK", 1000)
    assert list(module._together(300, 10)) == [3, 3, 3, 1]
    assert list(module._together(2000, 2)) == [1, 1]
    monkeypatch.setattr(module, "_DRAWN", 21)
    drawn = list(module._drawn(8, 7, np.random.default_rng(0)))
    assert [len(numbers) for numbers in drawn] == [21, 21, 14]  # three rows of seven resamples at a time
    assert set(np.concatenate(drawn)) == set(range(8))


def test_bootstrap_is_reproducible() -> None:
    confidence, predicted, labels = draw(200, 4)
    a, b, c = (
        bootstrap(confidence, labels, predicted=predicted, n_resamples=30, rng=r).low for r in (1, 1, 2)
    )
    assert a == b
    assert a != c


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"metrics": ["mce"]}, "metrics must be one of 'ece', 'max_ece'"),
        ({"n_resamples": 0}, "n_resamples must be a positive integer"),
        ({"level": 1.0}, "level must lie strictly between 0 and 1"),
        ({"method": "bca"}, "method must be one of 'centred', 'basic', 'percentile'"),
        ({"binning": "no"}, "binning must be"),
        ({"norm": "no"}, "norm must be"),
        ({"n_bins": -3}, "n_bins must be"),
    ],
)
def test_bootstrap_errors(options: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        bootstrap([0.8, 0.9], [0, 1], **({"predicted": [0, 1]} | options))  # type: ignore[arg-type]


# --- closed form -----------------------------------------------------------------------------------------


def test_equal_confidences_give_the_wilson_interval() -> None:
    labels = [0] * 35 + [1] * 15
    result = gap_intervals([0.7] * 50, labels, predicted=[0] * 50)
    wilson = stats.binomtest(35, 50).proportion_ci(method="wilson")
    assert result.estimate["signed_gap"][0] == pytest.approx(0.0)
    assert result.low["signed_gap"][0] == pytest.approx(0.7 - wilson.high)
    assert result.high["signed_gap"][0] == pytest.approx(0.7 - wilson.low)


def test_rows_that_differ_in_confidence_make_it_narrower() -> None:
    # half of the rows are sure and right: only the other half is noisy
    labels = [0] * 50 + [0, 1] * 25
    spread = gap_intervals([1.0] * 50 + [0.5] * 50, labels, predicted=[0] * 100)
    alike = gap_intervals([0.75] * 100, labels, predicted=[0] * 100)
    width = [float(r.high["signed_gap"][0] - r.low["signed_gap"][0]) for r in (spread, alike)]
    assert width[0] == pytest.approx(width[1] * np.sqrt(0.125 / 0.1875), rel=0.05)


def test_residuals_say_how_many_rows_count() -> None:
    rng = np.random.default_rng(0)
    p = 1 - 0.6 * rng.beta(1, 1, 300)
    right = rng.random(300) < 0.5 * p + 0.3
    result = gap_intervals(p, right.astype(int), predicted=np.ones(300, int), level=0.9)
    n, c, a, z2 = 300, p.mean(), right.mean(), stats.norm.ppf(0.95) ** 2
    prior = (n * a + z2 / 2) / (n + z2)
    implied, shown = (p * (1 - p)).mean() / (c * (1 - c)), np.var(p - right, ddof=1) / (prior * (1 - prior))
    assert implied < shown < 1
    m = n / shown  # rows that count, in Wilson's interval
    middle = (a + z2 / (2 * m)) / (1 + z2 / m)
    half = np.sqrt(z2 * (a * (1 - a) / m + z2 / (4 * m**2))) / (1 + z2 / m)
    assert result.low["signed_gap"][1] == pytest.approx(c - middle - half)
    assert result.high["signed_gap"][1] == pytest.approx(c - middle + half)


@pytest.mark.parametrize("informative", [True, False])
@pytest.mark.parametrize("n", [40, 400])
def test_closed_form_covers_the_true_gap(informative: bool, n: int) -> None:
    rng, covered = np.random.default_rng(n), 0
    for _ in range(400):
        confidence = 1 - 0.6 * rng.beta(1, 3, n)
        chance = confidence - 0.1 if informative else np.full(n, 0.7)
        labels = (rng.random(n) < chance).astype(int)
        result = gap_intervals(confidence, labels, predicted=np.ones(n, int))
        truth = (confidence - chance).mean()
        covered += bool(result.low["signed_gap"][1] <= truth <= result.high["signed_gap"][1])
    assert 0.915 < covered / 400 < 0.99


def test_certain_rows_and_missing_classes() -> None:
    result = gap_intervals([1.0, 1.0], [0, 2], predicted=[0, 0])
    assert result.estimate["signed_gap"][0] == pytest.approx(0.5)
    assert 0 <= result.low["signed_gap"][0] < 0.5 < result.high["signed_gap"][0] <= 1
    assert np.isnan(result.low["signed_gap"][1:]).all()


def test_level_is_checked() -> None:
    with pytest.raises(ValueError, match="level must lie strictly"):
        gap_intervals([0.5], [0], predicted=[0], level=0)


@pytest.mark.parametrize("metrics", [3, None, "ece"])
def test_metrics_must_be_a_list(metrics):
    with pytest.raises(TypeError, match="metrics must be a list of names"):
        bootstrap([[0.6, 0.4]], [0], metrics=metrics)


def test_a_level_of_next_to_nothing_gives_the_gap_itself():
    found = gap_intervals([[0.6, 0.4]], [0], level=1e-300)
    assert found.low["signed_gap"][0] == found.high["signed_gap"][0] == pytest.approx(-0.4)
