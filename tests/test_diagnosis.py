from __future__ import annotations

import dataclasses
import json
import pickle
import sys

import numpy as np
import pytest
from scipy import stats

from hetcal._numeric.probabilities import softmax
from hetcal.diagnosis import Diagnosis, Verdict, _poisson_binomial, _round_up, _two_sided, diagnose
from hetcal.metrics import class_ece, noise_floor, signed_gap


def classes_with_gap(n: int, gaps: list[float], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """`n` rows predicted as each class, with confidences around 0.8 that exceed the accuracy by the gap."""
    rng, k = np.random.default_rng(seed), len(gaps)
    guess = np.repeat(np.arange(k), n)
    confidence = rng.uniform(0.65, 0.95, len(guess))
    logits = np.zeros((len(guess), k))
    logits[np.arange(len(guess)), guess] = np.log(confidence / (1 - confidence)) + np.log(k - 1)
    right = rng.random(len(guess)) < np.clip(confidence - np.array(gaps)[guess], 0, 1)
    return logits, np.where(right, guess, (guess + 1) % k)


def convolved(p: np.ndarray, degree: int) -> np.ndarray:
    """P(S = 0..degree) of a sum of Bernoulli(p_i), row by row."""
    mass = np.zeros(degree + 1)
    mass[0] = 1
    for q in p:
        mass[1:] = mass[1:] * (1 - q) + mass[:-1] * q
        mass[0] *= 1 - q
    return mass


# --- the null distribution -------------------------------------------------------------------------------


def test_two_rows_by_hand() -> None:
    mass = _poisson_binomial(np.array([0.9, 0.6]))
    assert mass == pytest.approx([0.04, 0.42, 0.54])
    assert _two_sided(np.array([0.9, 0.6]), 0) == pytest.approx(0.08)
    assert _two_sided(np.array([0.9, 0.6]), 1) == pytest.approx(0.92)
    assert _two_sided(np.array([0.9, 0.6]), 2) == 1.0


@pytest.mark.parametrize("n", [1, 3, 17, 2000])
def test_poisson_binomial_agrees_with_the_recursion_and_scipy(n: int) -> None:
    p = np.random.default_rng(n).beta(5, 1, n)
    assert np.abs(_poisson_binomial(p) - convolved(p, n)).max() < 1e-13
    if hasattr(stats, "poisson_binom"):
        assert np.abs(_poisson_binomial(p) - stats.poisson_binom(p).pmf(np.arange(n + 1))).max() < 1e-13


def test_equal_confidences_are_binomial() -> None:
    assert _poisson_binomial(np.full(100, 0.7)) == pytest.approx(stats.binom(100, 0.7).pmf(np.arange(101)))


def test_dropping_high_powers_does_not_change_the_others() -> None:
    p = np.random.default_rng(0).beta(1, 50, 3000)
    assert _poisson_binomial(p, 130) == pytest.approx(_poisson_binomial(p)[:131], rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(("a", "b", "n"), [(5, 1, 3000), (1, 1, 8000), (30, 1, 40_000)])
def test_p_values_agree_with_the_recursion_in_the_tails(a: float, b: float, n: int) -> None:
    """Variances from 400 to 1,300 cover the exact computation and the saddlepoint approximation."""
    q = np.random.default_rng(n).beta(b, a, n)
    mean, spread = q.sum(), np.sqrt((q * (1 - q)).sum())
    mass = convolved(q, int(mean + 9 * spread))
    for z in (-5.5, -4.4, -2, -0.5, -0.01, 0, 0.01, 0.5, 2, 4.4, 5.5):
        wrong = round(mean + z * spread)
        two_sided = min(1, 2 * min(mass[: wrong + 1].sum(), mass[wrong:].sum()))
        assert _two_sided(1 - q, n - wrong) == pytest.approx(two_sided, rel=1e-4)
        assert _two_sided(q, wrong) == pytest.approx(two_sided, rel=1e-4)


def test_nearly_certain_rows_have_a_skewed_distribution() -> None:
    """Three errors where 0.25 are expected: p is 0.0043; a normal approximation would give 0.000007."""
    p_value = _two_sided(np.full(2500, 0.9999), 2497)
    assert p_value == pytest.approx(2 * stats.binom(2500, 0.0001).sf(2), rel=1e-9)
    many = np.full(1_000_000, 1 - 3e-6)
    assert _two_sided(many, 1_000_000 - 10) == pytest.approx(2 * stats.poisson(3).sf(9), rel=1e-3)


@pytest.mark.parametrize("confidence", [0.9999, 0.9])
def test_false_discovery_rate_is_controlled(confidence: float) -> None:
    """In at most about 5% of 400 samples of 100 calibrated classes, a class is flagged."""
    rights = np.random.default_rng(0).binomial(2500, confidence, size=(400, 100))
    values = {right: _two_sided(np.full(2500, confidence), right) for right in set(rights.ravel().tolist())}
    p_values = np.vectorize(values.get)(rights)
    flagged = (stats.false_discovery_control(p_values, axis=1) <= 0.05).any(axis=1)
    assert flagged.mean() < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)


def test_certain_rows() -> None:
    for n in (1, 100, 3000):
        assert _two_sided(np.ones(n), n) == _two_sided(np.zeros(n), 0) == 1.0
        assert _two_sided(np.ones(n), n - 1) == _two_sided(np.zeros(n), 1) == 0.0
    mixed = np.r_[np.ones(50), np.zeros(20), 0.9, 0.6]
    assert [_two_sided(mixed, right) for right in (49, 50, 51, 52, 53)] == pytest.approx(
        [0, 0.08, 0.92, 1, 0]
    )


def test_extreme_outcomes_have_the_smallest_p_value() -> None:
    for n in (1000, 1_000_000):
        assert 0 < _two_sided(np.full(n, 0.5), n) == _two_sided(np.full(n, 0.5), 0) < 1e-12


@pytest.mark.parametrize("n", [800, 8000])  # exact, and the saddlepoint approximation
def test_p_values_are_uniform_under_the_null(n: int) -> None:
    rng = np.random.default_rng(n)
    p = rng.uniform(0.3, 1, n)
    rights = np.array([(rng.random(n) < p).sum() for _ in range(1500)])
    values = {right: _two_sided(p, right) for right in set(rights.tolist())}
    p_values = np.array([values[right] for right in rights.tolist()])
    assert abs(p_values.mean() - 0.5) < 0.05
    for level in (0.02, 0.05, 0.1, 0.25, 0.5):
        share = (p_values <= level).mean()
        assert share < level + 3 * np.sqrt(level * (1 - level) / 1500)  # not too many
        # The test is not too conservative.
        assert share > 0.75 * level - 3 * np.sqrt(level * (1 - level) / 1500)


def test_few_rows_never_give_too_many_small_p_values() -> None:
    p = np.array([0.9, 0.8, 0.6, 0.95, 0.7])
    chance = _poisson_binomial(p)
    values = np.array([_two_sided(p, right) for right in range(6)])
    for level in (0.01, 0.05, 0.2, 0.5):
        assert chance[values <= level].sum() <= level


# --- verdicts --------------------------------------------------------------------------------------------


def test_known_gaps_are_recovered() -> None:
    logits, labels = classes_with_gap(600, [0.2, -0.15, 0.0, 0.0])
    result = diagnose(logits, labels, class_names=["cat", "dog", "owl", "elk"])
    assert [c.kind for c in result.classes] == [
        Verdict.OVER_CONFIDENT,
        Verdict.UNDER_CONFIDENT,
        Verdict.CONSISTENT,
        Verdict.CONSISTENT,
    ]
    for c, truth in zip(result.classes, [0.2, -0.15, 0.0, 0.0], strict=True):
        assert c.gap_low < truth < c.gap_high
        assert c.gap_low < c.signed_gap < c.gap_high
    assert result.worst is not None
    assert result.worst.name == "cat"
    assert result.summary == {
        "over-confident": 1,
        "under-confident": 1,
        "consistent with calibrated": 2,
        "too few rows": 0,
    }


def test_numbers_are_those_of_the_metrics() -> None:
    logits, labels = classes_with_gap(200, [0.1, 0.0, -0.1])
    probs = softmax(logits)
    result = diagnose(logits, labels)
    floor = noise_floor(probs)
    columns = {
        f: [getattr(c, f) for c in result.classes] for f in ("signed_gap", "ece", "floor", "floor_q95")
    }
    assert columns["signed_gap"] == pytest.approx(signed_gap(probs, labels))
    assert columns["ece"] == pytest.approx(class_ece(probs, labels))
    assert columns["floor"] == pytest.approx(floor.mean["class_ece"])
    assert columns["floor_q95"] == pytest.approx(floor.quantile("class_ece", 0.95))
    p_values = [c.p_value for c in result.classes]
    assert [c.p_adjusted for c in result.classes] == pytest.approx(stats.false_discovery_control(p_values))
    for c in result.classes:
        assert c.signed_gap == pytest.approx(c.confidence - c.accuracy)
        assert (c.n, c.index) == (200, int(c.name))


def test_order_of_rows_does_not_matter() -> None:
    logits, labels = classes_with_gap(150, [0.2, 0.0, 0.0])
    order = np.random.default_rng(0).permutation(len(labels))
    a, b = diagnose(logits, labels), diagnose(logits[order], labels[order])
    assert [c.verdict for c in a.classes] == [c.verdict for c in b.classes]
    assert [c.p_value for c in a.classes] == pytest.approx([c.p_value for c in b.classes])


def test_shifted_logits_give_the_same() -> None:
    logits, labels = classes_with_gap(150, [0.2, 0.0, 0.0])
    a, b = diagnose(logits, labels), diagnose(logits + 7.5, labels)
    assert [c.p_value for c in a.classes] == pytest.approx([c.p_value for c in b.classes])


def test_calibrated_classes_are_rarely_flagged() -> None:
    n_flagged = 0
    for seed in range(20):
        result = diagnose(*classes_with_gap(150, [0.0] * 20, seed=seed), n_redraws=5)
        n_flagged += result.summary["over-confident"] + result.summary["under-confident"] > 0
    assert n_flagged <= 4  # the false discovery rate is 5%, so 1 of 20 is expected


def test_too_few_rows_states_how_many_are_needed() -> None:
    logits, labels = classes_with_gap(20, [0.0, 0.0, 0.0], seed=1)
    result = diagnose(logits, labels)
    for k, c in enumerate(result.classes):
        p = softmax(logits)[logits.argmax(axis=1) == k].max(axis=1)
        needed = np.ceil(((1.959964 + 0.8416212) / 0.1) ** 2 * (p * (1 - p)).mean()) - 20
        assert c.rows_needed == _round_up(int(needed))
        assert c.kind is Verdict.TOO_FEW_ROWS
        assert str(c.rows_needed) in c.verdict
    wide = diagnose(logits, labels, min_gap=0.4)
    assert all(c.kind is Verdict.CONSISTENT and c.rows_needed == 0 for c in wide.classes)


def test_rows_required_give_the_documented_power() -> None:
    p = np.random.default_rng(0).uniform(0.65, 0.95, 150)
    n_required = ((1.959964 + 0.8416212) / 0.1) ** 2 * (p * (1 - p)).mean()
    assert 110 < n_required < 150
    n, rng = int(np.ceil(n_required)), np.random.default_rng(1)
    p = p[:n]
    detected = [_two_sided(p, int((rng.random(n) < p - 0.1).sum())) <= 0.05 for _ in range(600)]
    assert 0.65 < np.mean(detected) < 0.9


@pytest.mark.parametrize(
    ("n", "rounded"), [(1, 5), (7, 10), (23, 25), (50, 50), (51, 60), (100, 100), (137, 140), (1234, 1300)]
)
def test_numbers_are_rounded_up(n: int, rounded: int) -> None:
    assert _round_up(n) == rounded


def test_a_class_never_predicted() -> None:
    logits, labels = classes_with_gap(300, [0.0, 0.0, 0.0])
    logits = np.c_[logits, np.full(len(logits), -30.0)]
    never = diagnose(logits, labels).classes[3]
    assert never.n == 0
    assert np.isnan([never.accuracy, never.signed_gap, never.gap_low, never.ece, never.p_value]).all()
    assert np.isnan([never.floor, never.floor_q95, never.p_adjusted]).all()
    assert never.kind is Verdict.TOO_FEW_ROWS
    p = softmax(logits).max(axis=1)
    assert never.rows_needed == _round_up(int(np.ceil(784.888 * (p * (1 - p)).mean())))
    assert "predicted" in never.hint


def test_a_few_certain_rows_are_not_called_consistent() -> None:
    logits = np.tile([12.0, 0.0], (4, 1))
    few = diagnose(logits, [0] * 4).classes[0]
    assert (few.kind, few.rows_needed) == (Verdict.TOO_FEW_ROWS, 10)
    assert diagnose(np.tile(logits, (3, 1)), [0] * 12).classes[0].kind is Verdict.CONSISTENT


# --- hints -----------------------------------------------------------------------------------------------


def test_hints_name_the_cause_suggested_by_the_theory() -> None:
    logits, labels = classes_with_gap(600, [0.2, -0.15, 0.0])
    over, under, fine = diagnose(logits, labels).classes
    assert "few training samples" in over.hint
    assert "label noise" in under.hint
    assert fine.hint == ""


def test_hints_compare_train_counts_with_their_median() -> None:
    logits, labels = classes_with_gap(600, [0.2, -0.15, 0.2])
    few, noisy, many = diagnose(logits, labels, train_counts=[45, 4500, 5000]).classes
    assert all(text in few.hint for text in ("45", "4,500", ", fewer"))
    assert "not fewer" in noisy.hint
    assert all(text in many.hint for text in ("5,000", "4,500", "not fewer"))


def test_hint_about_gaps_that_cancel() -> None:
    # over-confident at high confidence, under-confident at low confidence
    confidence = np.repeat([0.95, 0.6], 500)
    logits = np.c_[np.log(confidence / (1 - confidence)), np.zeros(1000)]
    right = np.r_[np.arange(500) < 375, np.arange(500) < 400]
    result = diagnose(logits, np.where(right, 0, 1)).classes[0]
    assert result.kind is Verdict.CONSISTENT
    assert "cancel" in result.hint


# --- results ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed() -> Diagnosis:
    logits, labels = classes_with_gap(120, [0.25, -0.15, 0.0, 0.3])
    logits = np.c_[logits, np.full(len(logits), -30.0)]
    return diagnose(logits, labels, class_names=["cat", "dog", "owl", "elk", "yak"])


def test_verdicts_compare_equal_to_their_text(mixed: Diagnosis) -> None:
    texts = ["over-confident", "under-confident", "consistent with calibrated", "too few rows"]
    assert list(Verdict) == list(mixed.summary) == texts
    assert sum(mixed.summary.values()) == len(mixed.classes)
    for c in mixed.classes:
        assert c.verdict.startswith(c.kind)


def test_to_dict_is_plain_json(mixed: Diagnosis) -> None:
    record = json.loads(json.dumps(mixed.to_dict(), allow_nan=False))
    assert record == mixed.to_dict()
    assert record["classes"][4]["signed_gap"] is None
    assert record["summary"]["over-confident"] == 2
    assert record["classes"][0]["verdict"] == mixed.classes[0].verdict


def test_p_values_are_adjusted_over_the_predicted_classes(mixed: Diagnosis) -> None:
    predicted = [c for c in mixed.classes if c.n]
    expected = stats.false_discovery_control([c.p_value for c in predicted])
    assert [c.p_adjusted for c in predicted] == pytest.approx(expected)
    assert all(np.isnan(c.p_adjusted) for c in mixed.classes if not c.n)


def test_to_frame(mixed: Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = mixed.to_frame()
    assert frame["name"].tolist() == ["cat", "dog", "owl", "elk", "yak"]
    assert frame["n"].tolist() == [120, 120, 120, 120, 0]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"hetcal\[files\]"):
        mixed.to_frame()


def test_text_shows_the_flagged_classes_and_the_hints(mixed: Diagnosis) -> None:
    text = str(mixed)
    for word in (
        "480 rows",
        "5 classes",
        "2 over-confident",
        "1 under-confident",
        "cat",
        "dog",
        "elk",
        "hint",
    ):
        assert word in text
    assert "owl" not in text
    header = next(line for line in text.splitlines() if line.startswith("class"))
    assert header.split()[:4] == ["class", "verdict", "gap", "rows"]
    assert all(len(line) <= 80 for line in text.splitlines()[2:])
    calibrated = diagnose(*classes_with_gap(300, [0.0, 0.0, 0.0], seed=3))
    assert "no class" in str(calibrated)
    assert calibrated.worst is None


def test_long_lists_are_shortened() -> None:
    result = diagnose(*classes_with_gap(80, [0.4] * 20), n_redraws=5)
    assert "and 5 more" in str(result)


def test_frozen_and_picklable(mixed: Diagnosis) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        mixed.level = 0.1  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        mixed.classes[0].n = 1  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(mixed)).to_dict() == mixed.to_dict()  # noqa: S301


# --- noisy and soft labels -------------------------------------------------------------------------------


def classes_with_noise(
    n: int, gaps: list[float], transition: np.ndarray, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Like `classes_with_gap`, with labels that are observed through a transition matrix."""
    logits, labels = classes_with_gap(n, gaps, seed)
    total = transition.cumsum(axis=1)[labels]
    return logits, (total < np.random.default_rng(seed + 1).random((len(labels), 1))).sum(axis=1)


def half_noisy(k: int, rate: float) -> np.ndarray:
    rates = np.where(np.arange(k) < k // 2, rate, 0)
    return np.diag(1 - rates) + rates[:, None] / k


def test_p_value_of_noisy_labels_by_hand() -> None:
    """Two rows with confidence 0.8 and b = 0.1, so π = 0.8·0.9 + 0.2·0.1 = 0.74; both labels disagree."""
    result = diagnose(probs=[[0.8, 0.2]] * 2, labels=[1, 1], transition=[[0.9, 0.1], [0.1, 0.9]])
    first = result.classes[0]
    assert first.p_value == pytest.approx(2 * 0.26**2)
    assert first.accuracy == pytest.approx(-0.1 / 0.8)
    assert first.signed_gap == pytest.approx(0.74 / 0.8)
    assert result.labels == "noisy"


@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_calibrated_classes_are_rarely_flagged_if_label_noise_is_known(rate: float) -> None:
    transition, flagged, naive = half_noisy(10, rate), 0, 0
    for seed in range(40):
        logits, labels = classes_with_noise(300, [0.0] * 10, transition, seed)
        flagged += diagnose(logits, labels, transition=transition, n_redraws=2).worst is not None
        naive += diagnose(logits, labels, n_redraws=2).worst is not None
    assert flagged <= 6  # 2 expected at most; P(more than 6) is below 0.4%
    assert naive >= 35


def test_p_values_of_noisy_labels_are_uniform_under_the_null() -> None:
    transition = np.array([[0.7, 0.3, 0.0], [0.1, 0.9, 0.0], [0.0, 0.2, 0.8]])
    values = []
    for seed in range(150):
        logits, labels = classes_with_noise(400, [0.0] * 3, transition, seed)
        values += [c.p_value for c in diagnose(logits, labels, transition=transition, n_redraws=2).classes]
    assert stats.kstest(values, "uniform").pvalue > 0.001


def test_gaps_are_found_in_spite_of_label_noise() -> None:
    transition = half_noisy(4, 0.3)
    logits, labels = classes_with_noise(4000, [0.1, -0.1, 0.1, 0.0], transition)
    result = diagnose(logits, labels, transition=transition, n_redraws=20)
    assert [c.kind for c in result.classes] == [
        Verdict.OVER_CONFIDENT, Verdict.UNDER_CONFIDENT, Verdict.OVER_CONFIDENT, Verdict.CONSISTENT,
    ]  # fmt: skip
    assert [c.signed_gap for c in result.classes] == pytest.approx([0.1, -0.1, 0.1, 0.0], abs=0.04)
    assert all(
        c.gap_low < gap < c.gap_high for c, gap in zip(result.classes, [0.1, -0.1, 0.1, 0], strict=True)
    )


def test_noisy_labels_need_more_rows() -> None:
    """With slope 0.5 and π = 0.65, the variance of a row is 0.65·0.35/0.25 instead of 0.16."""
    probs = np.tile([0.8, 0.2], (20, 1))
    few = diagnose(probs=probs, labels=np.arange(20) % 5 == 0)
    noisy = diagnose(probs=probs, labels=np.arange(20) % 20 < 7, transition=[[0.75, 0.25], [0.25, 0.75]])
    z = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    for result, variance in ((few, 0.16), (noisy, 0.65 * 0.35 / 0.25)):
        assert result.classes[0].kind is Verdict.TOO_FEW_ROWS
        assert result.classes[0].rows_needed == _round_up(int(np.ceil((z / 0.1) ** 2 * variance) - 20))


def test_without_noise_the_correction_changes_nothing() -> None:
    logits, labels = classes_with_gap(60, [0.2, 0.0, -0.1])
    plain, noisy = diagnose(logits, labels), diagnose(logits, labels, transition=0)
    soft = diagnose(logits, np.eye(3)[labels])
    for a, b, c in zip(plain.classes, noisy.classes, soft.classes, strict=True):
        for name in (
            "signed_gap",
            "gap_low",
            "gap_high",
            "ece",
            "floor",
            "p_value",
            "p_adjusted",
            "rows_needed",
        ):
            assert getattr(a, name) == pytest.approx(getattr(b, name), rel=1e-9), name
            assert getattr(a, name) == pytest.approx(getattr(c, name), rel=1e-9), name
        assert a.verdict == b.verdict == c.verdict


@pytest.mark.parametrize("spread", [0, 0.3, np.inf])
def test_calibrated_classes_are_rarely_flagged_on_soft_labels(spread: float) -> None:
    """Confidences near 1 and few rows: rows that all agree must not be taken for certain evidence."""
    flagged, rng = 0, np.random.default_rng(0)
    for _ in range(60):
        z = rng.normal(size=(300, 10))
        z[np.arange(300), rng.integers(10, size=300)] += rng.gamma(2.0, 4.0, size=300)
        p = softmax(z) + 1e-9
        q = p if spread == 0 else rng.gamma(p / min(spread, 1e9) + 1e-12)
        if spread == np.inf:
            votes = np.eye(10)[(p.cumsum(axis=1) < rng.random((300, 1))).sum(axis=1).clip(max=9)]
        else:
            votes = rng.multinomial(20, q / q.sum(axis=1, keepdims=True))
        flagged += diagnose(z, votes, n_redraws=2).worst is not None
    assert flagged <= 9  # 3 expected at most; P(more than 9) is below 0.2%


def test_many_votes_reveal_smaller_gaps() -> None:
    rng = np.random.default_rng(1)
    probs, truth = np.tile([0.8, 0.2], (60, 1)), np.tile([0.7, 0.3], (60, 1))
    single = diagnose(probs=probs, labels=rng.multinomial(1, truth))
    many = diagnose(probs=probs, labels=rng.multinomial(20, truth))
    assert many.classes[0].kind is Verdict.OVER_CONFIDENT
    assert many.classes[0].p_value < 1e-3 < single.classes[0].p_value
    low, high = many.classes[0].gap_low, many.classes[0].gap_high
    assert high - low < 0.6 * (single.classes[0].gap_high - single.classes[0].gap_low)
    assert many.labels == "soft"


def test_rounding_is_no_evidence() -> None:
    probs = softmax(classes_with_gap(100, [0.0] * 3)[0])
    result = diagnose(probs=probs, labels=probs * 7)
    assert all(c.p_value > 0.5 for c in result.classes)


def test_tails_between_integers_are_interpolated() -> None:
    p = np.array([0.9, 0.6])  # P(S = 0, 1, 2) is 0.04, 0.42, 0.54
    assert _two_sided(p, 0.5) == pytest.approx(2 * (0.04 + 0.5 * 0.42))
    assert _two_sided(p, 1 + 1e-12) == _two_sided(p, 1)
    q = np.random.default_rng(0).beta(1, 1, 8000)  # saddlepoint
    low, middle, high = (_two_sided(q, s) for s in (3900, 3900.5, 3901))
    assert low < middle < high


def test_text_states_that_labels_are_corrected() -> None:
    logits, labels = classes_with_gap(60, [0.2, 0.0])
    result = diagnose(logits, labels, transition=0.1)
    assert result.labels.note in str(result).splitlines()[0]
    assert result.to_dict()["labels"] == "noisy"
    assert diagnose(logits, labels).to_dict()["labels"] == "hard"


# --- errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"level": 0}, ValueError),
        ({"level": "a"}, ValueError),
        ({"min_gap": 1.0}, ValueError),
        ({"min_gap": np.nan}, ValueError),
        ({"train_counts": [1]}, ValueError),
        ({"train_counts": [1, -1]}, ValueError),
        ({"train_counts": [1, np.nan]}, ValueError),
        ({"train_counts": ["x", "y"]}, TypeError),
        ({"class_names": ["a"]}, ValueError),
        ({"n_bins": 0}, ValueError),
        ({"n_redraws": 0}, ValueError),
        ({"rng": -1}, TypeError),
        ({"labels": [0, 5]}, ValueError),
        ({"labels": [[0, 1, 0], [1, 0, 0]]}, ValueError),
        ({"transition": np.eye(3)}, ValueError),
        ({"transition": 0.1, "labels": [[1, 0], [0, 1]]}, ValueError),
        ({"logits": [[0.5, 0.5], [0.1, 0.9]]}, ValueError),
    ],
)
def test_input_is_validated(options: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        diagnose(**({"logits": [[2.0, 0.0], [0.0, 3.0]], "labels": [0, 1]} | options))  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"level": 1e-300}, {"min_gap": 1e-300}])
def test_tiny_levels_and_gaps_need_many_rows(options: dict[str, float]) -> None:
    result = diagnose(np.eye(2) * 3, [0, 1], n_redraws=5, **options)
    assert all(np.isfinite(c.gap_low) and c.rows_needed > 0 for c in result.classes)


def test_data_frames_and_probabilities() -> None:
    pandas = pytest.importorskip("pandas")
    logits, labels = classes_with_gap(60, [0.2, 0.0])
    frame = pandas.DataFrame(softmax(logits), columns=["cat", "dog"])
    result = diagnose(probs=frame, labels=np.array(["cat", "dog"])[labels])
    assert [c.name for c in result.classes] == ["cat", "dog"]
    expected = [c.p_value for c in diagnose(logits, labels).classes]
    assert [c.p_value for c in result.classes] == pytest.approx(expected)


def test_predicted_class_is_that_of_the_logits() -> None:
    """Logits that differ in the last bit can have equal probabilities, so the argmax of the logits counts."""
    z = np.tile([[1.0, np.nextafter(1.0, 2.0), 0.0]], (40, 1))
    result = diagnose(z, np.ones(40, int))
    assert [row.n for row in result.classes] == [0, 40, 0]
