from __future__ import annotations

import dataclasses
import json
import pickle
import re
import sys

import numpy as np
import pytest
from scipy import stats

from hetcal._numeric.probabilities import softmax
from hetcal.diagnosis import Diagnosis, _poisson_binomial, _round_up, _two_sided, diagnose
from hetcal.metrics import class_ece, noise_floor, signed_gap

VERDICTS = re.compile(
    r"over-confident|under-confident|consistent with calibrated|too few rows: about [\d,]+ more needed"
)


def classes_with_gap(n: int, gaps: list[float], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """`n` rows predicted as each class, with confidences around 0.8 that are off by the gap of the class."""
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


@pytest.mark.parametrize("n", [1, 2, 3, 17, 500, 2000])
def test_poisson_binomial_agrees_with_the_recursion_and_scipy(n: int) -> None:
    p = np.random.default_rng(n).beta(5, 1, n)
    assert np.abs(_poisson_binomial(p) - convolved(p, n)).max() < 1e-13
    if hasattr(stats, "poisson_binom"):
        assert np.abs(_poisson_binomial(p) - stats.poisson_binom(p).pmf(np.arange(n + 1))).max() < 1e-13


def test_equal_confidences_are_binomial() -> None:
    assert _poisson_binomial(np.full(100, 0.7)) == pytest.approx(stats.binom(100, 0.7).pmf(np.arange(101)))


def test_dropping_high_powers_leaves_the_others_as_they_are() -> None:
    p = np.random.default_rng(0).beta(1, 50, 3000)
    assert _poisson_binomial(p, 130) == pytest.approx(_poisson_binomial(p)[:131], rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(("a", "b", "n"), [(5, 1, 3000), (200, 1, 20_000), (1, 1, 8000), (30, 1, 40_000)])
def test_p_values_agree_with_the_recursion_in_the_tails(a: float, b: float, n: int) -> None:
    """Variances of 100 to 1,300, on both sides of where the saddlepoint approximation takes over."""
    q = np.random.default_rng(n).beta(b, a, n)
    mean, spread = q.sum(), np.sqrt((q * (1 - q)).sum())
    mass = convolved(q, int(mean + 9 * spread))
    for z in (-5.5, -4.4, -2, -0.5, -0.01, 0, 0.01, 0.5, 2, 4.4, 5.5):
        wrong = round(mean + z * spread)
        two_sided = min(1, 2 * min(mass[: wrong + 1].sum(), mass[wrong:].sum()))
        assert _two_sided(1 - q, n - wrong) == pytest.approx(two_sided, rel=1e-4)
        assert _two_sided(q, wrong) == pytest.approx(two_sided, rel=1e-4)


def test_sure_rows_follow_their_skewed_distribution_however_many_they_are() -> None:
    """Three wrong rows where 0.25 are expected: p is 0.0043, which the normal law takes for 0.000007."""
    p_value = _two_sided(np.full(2500, 0.9999), 2497)
    assert p_value == pytest.approx(2 * stats.binom(2500, 0.0001).sf(2), rel=1e-9)
    many = np.full(1_000_000, 1 - 3e-6)
    assert _two_sided(many, 1_000_000 - 10) == pytest.approx(2 * stats.poisson(3).sf(9), rel=1e-3)


@pytest.mark.parametrize("confidence", [0.9999, 0.999, 0.9])
def test_the_false_discovery_rate_holds_for_many_sure_rows(confidence: float) -> None:
    """100 calibrated classes of 2,500 rows, 400 times: some class is flagged in about 5% at most."""
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


def test_outcomes_out_of_reach_have_the_smallest_p_value() -> None:
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
        assert share < level + 3 * np.sqrt(level * (1 - level) / 1500)  # never too many
        assert share > 0.75 * level - 3 * np.sqrt(level * (1 - level) / 1500)  # nor far too few


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
    assert [c.verdict for c in result.classes] == [
        "over-confident",
        "under-confident",
        "consistent with calibrated",
        "consistent with calibrated",
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


def test_logits_may_be_shifted() -> None:
    logits, labels = classes_with_gap(150, [0.2, 0.0, 0.0])
    a, b = diagnose(logits, labels), diagnose(logits + 7.5, labels)
    assert [c.p_value for c in a.classes] == pytest.approx([c.p_value for c in b.classes])


def test_calibrated_classes_are_rarely_accused() -> None:
    accused = 0
    for seed in range(20):
        result = diagnose(*classes_with_gap(150, [0.0] * 20, seed=seed), n_redraws=5)
        accused += result.summary["over-confident"] + result.summary["under-confident"] > 0
    assert accused <= 4  # the false discovery rate is 5%, so 1 of 20 is expected


def test_too_few_rows_says_how_many_are_missing() -> None:
    logits, labels = classes_with_gap(20, [0.0, 0.0, 0.0], seed=1)
    result = diagnose(logits, labels)
    for k, c in enumerate(result.classes):
        p = softmax(logits)[logits.argmax(axis=1) == k].max(axis=1)
        needed = np.ceil(((1.959964 + 0.8416212) / 0.1) ** 2 * (p * (1 - p)).mean()) - 20
        assert c.rows_needed == _round_up(int(needed))
        assert c.verdict == f"too few rows: about {c.rows_needed} more needed"
    wide = diagnose(logits, labels, min_gap=0.4)
    assert all(c.verdict == "consistent with calibrated" for c in wide.classes)


def test_rows_required_give_the_promised_power() -> None:
    p = np.random.default_rng(0).uniform(0.65, 0.95, 150)
    n_required = ((1.959964 + 0.8416212) / 0.1) ** 2 * (p * (1 - p)).mean()
    assert 110 < n_required < 150
    n, rng = int(np.ceil(n_required)), np.random.default_rng(1)
    p = p[:n]
    found = [_two_sided(p, int((rng.random(n) < p - 0.1).sum())) <= 0.05 for _ in range(600)]
    assert 0.65 < np.mean(found) < 0.9


@pytest.mark.parametrize(
    ("n", "friendly"), [(1, 5), (7, 10), (23, 25), (50, 50), (51, 60), (100, 100), (137, 140), (1234, 1300)]
)
def test_numbers_are_rounded_up_to_friendly_ones(n: int, friendly: int) -> None:
    assert _round_up(n) == friendly


def test_a_class_never_predicted() -> None:
    logits, labels = classes_with_gap(300, [0.0, 0.0, 0.0])
    logits = np.c_[logits, np.full(len(logits), -30.0)]
    never = diagnose(logits, labels).classes[3]
    assert never.n == 0
    assert np.isnan([never.accuracy, never.signed_gap, never.gap_low, never.ece, never.p_value]).all()
    assert np.isnan([never.floor, never.floor_q95, never.p_adjusted]).all()
    assert re.fullmatch(r"too few rows: about \d+ more needed", never.verdict)
    p = softmax(logits).max(axis=1)
    assert never.rows_needed == _round_up(int(np.ceil(784.888 * (p * (1 - p)).mean())))
    assert never.hint == "no row is predicted as this class"


def test_a_handful_of_sure_rows_is_not_called_consistent() -> None:
    logits = np.tile([12.0, 0.0], (4, 1))
    assert diagnose(logits, [0] * 4).classes[0].verdict == "too few rows: about 10 more needed"
    assert diagnose(np.tile(logits, (3, 1)), [0] * 12).classes[0].verdict == "consistent with calibrated"


# --- hints -----------------------------------------------------------------------------------------------


def test_hints_name_the_cause_that_the_theory_suggests() -> None:
    logits, labels = classes_with_gap(600, [0.2, -0.15, 0.0])
    over, under, fine = diagnose(logits, labels).classes
    assert over.hint == "few training samples can cause this"
    assert under.hint == "label noise in training can cause this"
    assert fine.hint == ""


def test_hints_compare_train_counts_with_their_median() -> None:
    logits, labels = classes_with_gap(600, [0.2, -0.15, 0.2])
    few, noisy, many = diagnose(logits, labels, train_counts=[45, 4500, 5000]).classes
    assert "train_counts: 45 against a median of 4,500 (fewer)" in few.hint
    assert "train_counts: 4,500 against a median of 4,500 (not fewer)" in noisy.hint
    assert "train_counts: 5,000 against a median of 4,500 (not fewer)" in many.hint


def test_gaps_that_cancel_are_hinted_at() -> None:
    # sure rows are too sure, unsure rows not sure enough
    confidence = np.repeat([0.95, 0.6], 500)
    logits = np.c_[np.log(confidence / (1 - confidence)), np.zeros(1000)]
    right = np.r_[np.arange(500) < 375, np.arange(500) < 400]
    result = diagnose(logits, np.where(right, 0, 1)).classes[0]
    assert result.verdict == "consistent with calibrated"
    assert "cancel" in result.hint


# --- results ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed() -> Diagnosis:
    logits, labels = classes_with_gap(120, [0.25, -0.15, 0.0, 0.3])
    logits = np.c_[logits, np.full(len(logits), -30.0)]
    return diagnose(logits, labels, class_names=["cat", "dog", "owl", "elk", "yak"])


def test_verdicts_are_exactly_these(mixed: Diagnosis) -> None:
    assert all(VERDICTS.fullmatch(c.verdict) for c in mixed.classes)
    assert sum(mixed.summary.values()) == 5


def test_to_dict_is_plain_json(mixed: Diagnosis) -> None:
    record = json.loads(json.dumps(mixed.to_dict(), allow_nan=False))
    assert record == mixed.to_dict()
    assert record["classes"][4]["signed_gap"] is None
    assert record["summary"]["over-confident"] == 2
    assert record["classes"][0]["verdict"] == mixed.classes[0].verdict


def test_to_frame(mixed: Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = mixed.to_frame()
    assert frame["name"].tolist() == ["cat", "dog", "owl", "elk", "yak"]
    assert frame["n"].tolist() == [120, 120, 120, 120, 0]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r'pip install "hetcal\[files\]"'):
        mixed.to_frame()


def test_text_shows_the_flagged_classes_and_the_hints(mixed: Diagnosis) -> None:
    text = str(mixed)
    assert text.splitlines()[0].startswith("480 rows, 5 classes: 2 over-confident, 1 under-confident")
    assert "hint: over-confident: few training samples can cause this" in text
    assert "owl" not in text
    fine = diagnose(*classes_with_gap(300, [0.0, 0.0, 0.0], seed=3))
    assert "no class differs from calibrated at a false discovery rate of 0.05" in str(fine)
    assert fine.worst is None


def test_long_lists_are_cut() -> None:
    result = diagnose(*classes_with_gap(80, [0.4] * 20), n_redraws=5)
    assert "and 5 more" in str(result)


def test_frozen_and_picklable(mixed: Diagnosis) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        mixed.level = 0.1  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        mixed.classes[0].n = 1  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(mixed)).to_dict() == mixed.to_dict()  # noqa: S301


# --- errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"level": 0}, "level must lie strictly between 0 and 1"),
        ({"min_gap": 1.0}, "min_gap must lie strictly between 0 and 1"),
        ({"train_counts": [1]}, r"train_counts must have one entry per class \(2\)"),
        ({"train_counts": [1, -1]}, "train_counts must be finite and not negative, got -1.0 for class 1"),
        ({"train_counts": [1, np.nan]}, "train_counts must be finite"),
        ({"class_names": ["a"]}, "class_names must have one entry per class"),
        ({"n_bins": 0}, "n_bins must be"),
        ({"n_redraws": 0}, "n_redraws must be"),
        ({"labels": [0, 5]}, "labels must lie in"),
        ({"logits": [[0.5, 0.5], [0.1, 0.9]]}, "pass probabilities as probs="),
    ],
)
def test_errors(options: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        diagnose(**({"logits": [[2.0, 0.0], [0.0, 3.0]], "labels": [0, 1]} | options))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["a", None, [], 1j, 0, 1, np.nan])
def test_shares_must_be_numbers(wrong):
    for name in ("level", "min_gap"):
        with pytest.raises(ValueError, match=f"{name} must lie strictly between 0 and 1"):
            diagnose(np.eye(2) * 3, [0, 1], **{name: wrong})


def test_shares_next_to_nothing_ask_for_many_rows():
    for options in ({"level": 1e-300}, {"min_gap": 1e-300}):
        found = diagnose(np.eye(2) * 3, [0, 1], n_redraws=5, **options)
        assert all(np.isfinite(c.gap_low) and c.rows_needed > 0 for c in found.classes)


@pytest.mark.parametrize("wrong", ["a", {}, ["x", "y"]])
def test_training_counts_must_be_numbers(wrong):
    with pytest.raises(TypeError, match="train_counts must be numbers"):
        diagnose(np.eye(2) * 3, [0, 1], wrong)


def test_a_decision_that_the_softmax_loses_is_kept() -> None:
    """Logits that differ in the last bit have equal probabilities; the calibrators go by the logits."""
    z = np.tile([[1.0, np.nextafter(1.0, 2.0), 0.0]], (40, 1))
    result = diagnose(z, np.ones(40, int))
    assert [row.n for row in result.classes] == [0, 40, 0]
