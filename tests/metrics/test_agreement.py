"""Metrics, floors and intervals for noisy labels (`transition`) and for soft labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

import hetcal
from hetcal import metrics
from hetcal.metrics import bootstrap, evaluate, gap_intervals, noise_floor, reliability_by_class
from hetcal.metrics.agreement import LabelKind, noisy_agreement, soft_agreement
from hetcal.metrics.binning import reduce_to_top_label
from hetcal.metrics.evaluation import as_plain

SCORES = (
    "accuracy", "nll", "brier", "ece", "class_ece", "max_ece", "avg_ece", "signed_gap", "debiased_ece",
    "smooth_ece",
)  # fmt: skip
FLOORS = ("ece", "max_ece", "avg_ece", "class_ece")
ASYMMETRIC = np.array([[0.7, 0.3, 0.0, 0.0], [0.1, 0.8, 0.1, 0.0], [0, 0, 1.0, 0], [0.05, 0.15, 0.2, 0.6]])


def confident(n: int, k: int, seed: int, dtype: type = np.float64) -> Any:
    """Probabilities like those of a network."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k))
    z[np.arange(n), rng.integers(k, size=n)] += rng.gamma(2.0, 2.0, size=n)
    p = np.exp(z)
    return (p / p.sum(axis=1, keepdims=True)).astype(dtype)


def draw(p: Any, rng: np.random.Generator) -> Any:
    """One class per row."""
    total = p.cumsum(axis=1)
    return (total < rng.random((len(p), 1)) * total[:, -1:]).sum(axis=1)


def everything(p: Any, labels: Any, **options: Any) -> dict[str, Any]:
    """Results of all public functions."""
    results = {name: getattr(metrics, name)(p, labels, **options) for name in SCORES}
    results["curves"] = [curve.to_dict() for curve in reliability_by_class(p, labels, **options)]
    floor = noise_floor(p, labels=labels, n_redraws=20, **options)
    results |= {f"floor of {name}": floor.samples[name] for name in FLOORS}
    for name, result in (
        ("bootstrap", bootstrap(p, labels, metrics=FLOORS, n_resamples=20, method="population", **options)),
        ("gaps", gap_intervals(p, labels, **options)),
    ):
        results |= {f"{name} {end}": dict(getattr(result, end)) for end in ("low", "estimate", "high")}
    return results


# --- worked by hand --------------------------------------------------------------------------------------


def test_correction_of_noisy_labels_by_hand() -> None:
    """Class 0 is predicted with 0.8: A = 0.9, b = (0.1·0.2 + 0.1·0.4)/0.2 = 0.3, π = 0.72 + 0.06."""
    t = np.array([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.4, 0.0, 0.6]])
    p = np.array([[0.8, 0.1, 0.1], [0.8, 0.1, 0.1], [1.0, 0.0, 0.0]])
    agreement, correct = noisy_agreement(p, p[:, 0], np.zeros(3, int), np.array([0, 1, 0]), t)
    assert agreement.observed.tolist() == [1, 0, 1]
    assert agreement.expected == pytest.approx([0.78, 0.78, 0.9])
    assert agreement.spread == pytest.approx([1 / 0.6] * 3)  # b is the mean of 0.2 and 0.4 in the last row
    assert correct == pytest.approx([0.7 / 0.6, -0.3 / 0.6, 0.7 / 0.6])
    assert agreement.variance == pytest.approx([0.78 * 0.22 / 0.36] * 2 + [0.09 / 0.36])
    options = {"transition": t}
    assert metrics.accuracy(p, [0, 1, 0], **options) == pytest.approx(1.1 / 1.8)
    assert metrics.signed_gap(p, [0, 1, 0], **options)[0] == pytest.approx((2.6 - 1.1 / 0.6) / 3)
    observed = [[0.8 * 0.9 + 0.02 + 0.04, 0.08 + 0.08, 0.06]] * 2 + [[0.9, 0.1, 0]]
    assert metrics.nll(p, [0, 1, 0], **options) == pytest.approx(-np.log([0.78, 0.16, 0.9]).mean())
    assert metrics.brier(p, [0, 1, 0], **options) == pytest.approx(
        ((np.array(observed) - np.eye(3)[[0, 1, 0]]) ** 2).sum() / 3
    )


def test_noise_rates_are_a_matrix() -> None:
    p = confident(300, 4, 0)
    labels = draw(p, np.random.default_rng(0))
    rates = np.array([0.3, 0.0, 0.1, 0.2])
    matrix = np.diag(1 - rates) + rates[:, None] / 4
    for name in SCORES:
        score = getattr(metrics, name)
        assert score(p, labels, transition=rates) == pytest.approx(score(p, labels, transition=matrix)), name
    assert metrics.ece(p, labels, transition=0.2) == metrics.ece(p, labels, transition=[0.2] * 4)


def test_soft_labels_by_hand() -> None:
    p, q = np.array([[0.8, 0.2], [0.6, 0.4]]), np.array([[0.9, 0.1], [0.0, 1.0]])
    assert metrics.accuracy(p, q) == pytest.approx(0.45)
    assert metrics.signed_gap(p, q)[0] == pytest.approx(0.25)
    assert metrics.nll(p, q) == pytest.approx(-(0.9 * np.log(0.8) + 0.1 * np.log(0.2) + np.log(0.4)) / 2)
    expected = 0.9 * (0.04 + 0.04) + 0.1 * (0.64 + 0.64) + (0.36 + 0.36)
    assert metrics.brier(p, q) == pytest.approx(expected / 2)
    agreement, _ = soft_agreement(p[:, 0], np.zeros(2, int), q, 2)
    # 0.16 + 0.24 − 0.09 of 0.16 + 0.24; the sum of squares, 0.01 + 0.36, is larger
    assert agreement.spread == pytest.approx([np.sqrt(0.37 / 0.4)] * 2)
    assert agreement.standardised == pytest.approx(p[:, 0] + (q[:, 0] - p[:, 0]) / np.sqrt(0.37 / 0.4))


def test_soft_labels_equal_to_the_probabilities_have_no_noise() -> None:
    p = confident(500, 4, 0)
    result = evaluate(p, p)
    assert [result.ece, result.floor["ece"], result.floor["max_ece"]] == pytest.approx([0] * 3, abs=1e-6)
    assert metrics.accuracy(p, p) == pytest.approx(p.max(axis=1).mean())


def test_a_possible_class_of_probability_zero_is_replaced() -> None:
    p, q = np.array([[1.0, 0.0], [0.25, 0.75]]), np.array([[0.5, 0.5], [0.0, 1.0]])
    assert metrics.nll(p, q) == pytest.approx(-(0.5 * np.log(0.125) + np.log(0.75)) / 2)
    assert evaluate(p, q).n_zero == 1
    assert evaluate(p, [1, 1]).n_zero == 1
    assert evaluate(p, [1, 1], transition=0.1).n_zero == 0  # a wrong label is possible


# --- invariances -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_labels_without_noise_are_not_corrected(dtype: type) -> None:
    p = confident(800, 4, 1, dtype)
    p[:5] = np.eye(4)[[0, 1, 2, 3, 0]]
    labels = draw(p, np.random.default_rng(1))
    plain, corrected = everything(p, labels), everything(p, labels, transition=np.eye(4))
    for name, value in plain.items():
        if "gaps" in name or name == "debiased_ece":
            continue
        np.testing.assert_equal(as_plain(corrected[name]), as_plain(value), err_msg=name)
    assert corrected["debiased_ece"] == pytest.approx(plain["debiased_ece"], rel=1e-9)
    for end in ("low", "estimate", "high"):
        expected = plain[f"gaps {end}"]["signed_gap"]
        np.testing.assert_allclose(corrected[f"gaps {end}"]["signed_gap"], expected, rtol=1e-9, atol=1e-12)
    without = evaluate(p, labels).to_dict() | {"labels": "noisy", "debiased_ece": None}
    assert evaluate(p, labels, transition=0).to_dict() | {"debiased_ece": None} == without


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_hot_soft_labels_are_hard_labels(dtype: type) -> None:
    p = confident(800, 4, 2, dtype)
    p[:5] = np.eye(4)[[0, 1, 2, 3, 0]]
    labels = draw(p, np.random.default_rng(2))
    hard, soft = everything(p, labels), everything(p, np.eye(4)[labels])
    for name, value in hard.items():
        if isinstance(value, dict):
            for metric, numbers in value.items():
                np.testing.assert_allclose(soft[name][metric], numbers, rtol=1e-9, atol=1e-12, err_msg=name)
        elif name == "debiased_ece":
            assert soft[name] == pytest.approx(value, rel=1e-9)
        else:
            np.testing.assert_equal(as_plain(soft[name]), as_plain(value), err_msg=name)


def test_counts_are_divided_by_their_sum() -> None:
    rng = np.random.default_rng(3)
    p = confident(200, 4, 3)
    counts = rng.multinomial(8, p)
    assert evaluate(p, counts).to_dict() == evaluate(p, counts / 8).to_dict()
    assert evaluate(p, 4 * counts).to_dict() == evaluate(p, counts).to_dict()


@pytest.mark.parametrize("kind", ["noisy", "soft"])
def test_order_of_classes_and_rows_does_not_matter(kind: str) -> None:
    rng = np.random.default_rng(4)
    p = confident(500, 4, 4)
    classes, rows = rng.permutation(4), rng.permutation(500)
    if kind == "noisy":
        labels = draw(ASYMMETRIC[draw(p, rng)], rng)
        permuted, options = np.argsort(classes)[labels], {"transition": ASYMMETRIC}
        other = {"transition": ASYMMETRIC[classes][:, classes]}
    else:
        labels = rng.multinomial(5, p)
        permuted, options, other = labels[:, classes], {}, {}
    for name in SCORES:
        score = getattr(metrics, name)
        value = np.asarray(score(p, labels, **options))
        by_class = value[classes] if value.ndim else value
        assert score(p[:, classes], permuted, **other) == pytest.approx(by_class, abs=1e-9), name
        assert score(p[rows], labels[rows], **options) == pytest.approx(value, abs=1e-9), name


# --- recovery of a known truth ---------------------------------------------------------------------------


@pytest.mark.parametrize("transition", [ASYMMETRIC, np.array([0.3, 0.3, 0.0, 0.0])])
def test_scores_of_noisy_labels_recover_those_of_the_true_labels(transition: Any) -> None:
    """Class 0 is over-confident; without the correction, every class looks over-confident."""
    rng = np.random.default_rng(5)
    p = confident(200_000, 4, 5)
    rows = p.argmax(axis=1) == 0
    shift = np.where(rows, 0.1 * p.max(axis=1), 0)
    truth = p * ((1 - p.max(axis=1) + shift) / (1 - p.max(axis=1)))[:, None]
    truth[np.arange(len(p)), p.argmax(axis=1)] = p.max(axis=1) - shift
    y = draw(truth, rng)
    matrix = transition if transition.ndim == 2 else np.diag(1 - transition) + transition[:, None] / 4
    noisy = draw(matrix[y], rng)
    for name in ("accuracy", "ece", "max_ece", "avg_ece", "signed_gap", "smooth_ece"):
        score = getattr(metrics, name)
        clean = score(p, y)
        assert score(p, noisy, transition=transition) == pytest.approx(clean, abs=0.015), name
    assert metrics.signed_gap(p, noisy)[1] > 0.05


def test_true_probabilities_have_the_best_score_under_noise() -> None:
    rng = np.random.default_rng(6)
    p = confident(20_000, 4, 6)
    noisy = draw(ASYMMETRIC[draw(p, rng)], rng)
    sharper = p**1.2 / (p**1.2).sum(axis=1, keepdims=True)
    flatter = p**0.8 / (p**0.8).sum(axis=1, keepdims=True)
    for score in (metrics.nll, metrics.brier):
        best = score(p, noisy, transition=ASYMMETRIC)
        assert best < score(sharper, noisy, transition=ASYMMETRIC)
        assert best < score(flatter, noisy, transition=ASYMMETRIC)
        assert score(flatter, noisy) < score(p, noisy)  # without the correction, the flatter model wins


def votes(n_votes: int) -> Callable[[Any, np.random.Generator], Any]:
    return lambda p, rng: rng.multinomial(n_votes, p / p.sum(axis=1, keepdims=True))


def one_class(p: Any, rng: np.random.Generator) -> Any:
    """Votes of raters who all agree."""
    return 20 * np.eye(p.shape[1], dtype=int)[draw(p, rng)]


def mixed(p: Any, rng: np.random.Generator) -> Any:
    """Raters agree on half of the rows."""
    return np.where(rng.random((len(p), 1)) < 0.5, one_class(p, rng), votes(20)(p, rng))


NOISE: dict[str, tuple[Callable[..., Any], Any]] = {
    "rates": (lambda p, rng: draw((0.7 * np.eye(4) + 0.3 / 4)[draw(p, rng)], rng), 0.3),
    "matrix": (lambda p, rng: draw(ASYMMETRIC[draw(p, rng)], rng), ASYMMETRIC),
    "votes": (votes(3), None),
    "one class": (one_class, None),
    "mixed": (mixed, None),
}


@pytest.mark.parametrize("name", NOISE)
def test_floors_are_the_mean_of_a_calibrated_model(name: str) -> None:
    observe, transition = NOISE[name]
    rng, floors, values = np.random.default_rng(7), [], []
    p = confident(1000, 4, 7)
    for seed in range(60):
        labels = observe(p, rng)
        floor = noise_floor(p, labels=labels, transition=transition, n_redraws=30, rng=seed)
        floors.append([floor.mean[m] for m in FLOORS[:3]])
        values.append([getattr(metrics, m)(p, labels, transition=transition) for m in FLOORS[:3]])
    assert np.mean(floors, axis=0) == pytest.approx(np.mean(values, axis=0), rel=0.15)


@pytest.mark.parametrize("name", NOISE)
@pytest.mark.parametrize("n", [60, 1000])
def test_gap_intervals_cover_the_gap(name: str, n: int) -> None:
    """Class 0 is over-confident by 0.1; the intervals are for 95%."""
    observe, transition = NOISE[name]
    rng, inside = np.random.default_rng(8), []
    for seed in range(150):
        p = confident(n, 4, 1000 + seed)
        guess = p.argmax(axis=1)
        p = p[(guess < 2) & (p.max(axis=1) > 0.3)]
        top, guess = p.max(axis=1), p.argmax(axis=1)
        target = np.where(guess == 0, np.maximum(top - 0.1, 0), top)
        truth = p * ((1 - target) / (1 - top))[:, None]
        truth[np.arange(len(p)), guess] = target
        result = gap_intervals(p, observe(truth, rng), transition=transition)
        low, high = (a["signed_gap"][:2] for a in (result.low, result.high))
        inside.append((low <= [0.1, 0]) & (high >= [0.1, 0]))
    assert np.all(np.mean(inside, axis=0) > 0.9)


def test_noise_widens_intervals_by_the_slope() -> None:
    """With uniform noise, the correctness is a linear function of the agreement."""
    n, rate = 4000, 0.4
    p = np.tile([0.8, 0.2], (n, 1))
    labels = (np.arange(n) % 25 >= 17).astype(int)  # 0.8·0.8 + 0.2·0.2 = 0.68 agree
    result = gap_intervals(p, labels, transition=rate)
    half = stats.norm.ppf(0.975) * np.sqrt(0.68 * 0.32 / n) / 0.6
    assert result.estimate["signed_gap"][0] == pytest.approx(0, abs=1e-12)
    assert result.high["signed_gap"][0] == pytest.approx(half, rel=0.01)
    assert result.low["signed_gap"][0] == pytest.approx(-half, rel=0.01)


def test_debiased_ece_of_noisy_labels_is_nearly_unbiased() -> None:
    rng, squares = np.random.default_rng(9), []
    p = np.tile([0.9, 0.1], (50, 1))
    for _ in range(2000):
        true = rng.random(50) >= 0.6
        labels = np.where(rng.random(50) < 0.2, ~true, true).astype(int)
        value = metrics.debiased_ece(p, labels, norm="l2", transition=[[0.8, 0.2], [0.2, 0.8]])
        squares.append(value**2)
    assert np.mean(squares) == pytest.approx(0.3**2, abs=0.01)


def test_noise_raises_the_floor() -> None:
    p = confident(1000, 4, 10)
    floors = [noise_floor(p, transition=rate).mean for rate in (None, 0.2, 0.5)]
    for metric in FLOORS[:3]:
        assert floors[0][metric] < floors[1][metric] < floors[2][metric]


# --- evaluate --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [LabelKind.NOISY, LabelKind.SOFT])
def test_evaluation_agrees_with_the_single_metrics(kind: LabelKind) -> None:
    rng = np.random.default_rng(11)
    p = confident(30_000, 4, 11)  # hard labels would be redrawn in groups
    labels, options = (rng.multinomial(3, p), {}) if kind == "soft" else (draw(p, rng), {"transition": 0.1})
    result = evaluate(p, labels, list("abcd"), n_redraws=20, **options)
    for name in ("accuracy", "nll", "brier", "ece", "max_ece", "avg_ece", "smooth_ece", "debiased_ece"):
        assert getattr(result, name) == pytest.approx(getattr(metrics, name)(p, labels, **options)), name
    assert result.classes.signed_gap == pytest.approx(metrics.signed_gap(p, labels, **options))
    floor = noise_floor(p, labels=labels, n_redraws=20, **options)
    assert result.floor["max_ece"] == pytest.approx(floor.mean["max_ece"])
    assert result.labels is kind
    assert result.to_dict()["labels"] == kind.value
    assert kind.note in str(result).splitlines()[0]
    assert evaluate(p, draw(p, rng), n_redraws=20).labels is LabelKind.HARD


def test_a_calibrator_is_evaluated_on_noisy_and_soft_labels() -> None:
    rng = np.random.default_rng(12)
    z = np.log(confident(2000, 3, 12))
    y = draw(np.exp(z), rng)
    calibrator = hetcal.TemperatureScaling().fit(z[:1000], y[:1000])
    p = calibrator.predict_proba(z[1000:])
    for labels, options in ((y[1000:], {"transition": 0.2}), (np.eye(3)[y[1000:]], {})):
        result = evaluate(logits=z[1000:], calibrator=calibrator, labels=labels, **options)
        assert result.to_dict() == evaluate(p, labels, **options).to_dict()
    with pytest.warns(hetcal.CalibrationWarning):
        evaluate(logits=z[:1000], calibrator=calibrator, labels=np.eye(3)[y[:1000]])


def test_columns_of_soft_labels_are_matched_by_name() -> None:
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(13)
    p = confident(100, 3, 13)
    q = rng.multinomial(3, p)
    names = ["cat", "dog", "cow"]
    probs = pandas.DataFrame(p, columns=[f"prob_{name}" for name in names])
    soft = pandas.DataFrame(q[:, [2, 0, 1]], columns=["cow", "cat", "dog"])
    expected = evaluate(p, q, names).brier
    assert evaluate(probs, soft).brier == pytest.approx(expected)
    assert evaluate(p, soft, names).brier == pytest.approx(expected)
    assert metrics.nll(probs, soft) == pytest.approx(metrics.nll(p, q))
    assert metrics.ece(probs, pandas.DataFrame(q)) == metrics.ece(p, q)  # numbered columns are positions
    with pytest.raises(ValueError, match="labels must have the columns cat, dog, cow, got cow, cat, pig"):
        evaluate(probs, soft.rename(columns={"dog": "pig"}))


def test_text_labels_may_be_noisy() -> None:
    p = confident(100, 3, 14)
    y = draw(p, np.random.default_rng(14))
    names = np.array(["cat", "dog", "cow"])
    named = evaluate(p, names[y], names, transition=0.1)
    assert named.ece == evaluate(p, y, transition=0.1).ece


def test_one_probability_per_row() -> None:
    p = confident(100, 2, 15)
    y = draw(p, np.random.default_rng(15))
    assert evaluate(p[:, 1], y, transition=0.1).ece == pytest.approx(evaluate(p, y, transition=0.1).ece)
    assert evaluate(p[:, 1], np.eye(2)[y]).ece == pytest.approx(evaluate(p, y).ece)


# --- errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [*SCORES, "reliability_curve", "reliability_by_class", "bootstrap", "gap_intervals"]
)
def test_every_function_refuses_what_it_cannot_use(name: str) -> None:
    function = getattr(metrics, name)
    with pytest.raises(ValueError, match="transition must be left out if predicted is passed"):
        function([0.7], [0], predicted=[0], transition=0.1)
    with pytest.raises(ValueError, match="transition must be left out for soft labels"):
        function([[0.7, 0.3]], [[1, 0]], transition=0.1)
    with pytest.raises(ValueError, match=r"transition must have shape \(2, 2\)"):
        function([[0.7, 0.3]], [0], transition=np.eye(3))
    with pytest.raises(ValueError, match=r"labels must have shape \(1,\) or, for soft labels"):
        function([[0.7, 0.3]], [[1, 0, 0]])
    with pytest.raises(ValueError, match="labels must be one-dimensional"):
        function([0.7], [[0, 1]], predicted=[0])


def test_floors_and_evaluations_refuse_what_they_cannot_use() -> None:
    for function in (lambda **o: noise_floor([0.7], **o), lambda **o: evaluate([0.7], [0], **o)):
        with pytest.raises(ValueError, match="transition must be left out if predicted is passed"):
            function(predicted=[0], transition=0.1)
    with pytest.raises(ValueError, match="transition must be left out for soft labels"):
        noise_floor([[0.7, 0.3]], labels=[[1, 0]], transition=0.1)
    batches = hetcal.Batches(np.array([[0.7, 0.3], [0.2, 0.8]]), np.array([0, 1]))
    with pytest.raises(ValueError, match="transition must be left out for batches"):
        evaluate(batches, transition=0.1)


def test_hard_labels_do_not_affect_the_floor() -> None:
    p = confident(100, 3, 16)
    top, guess = p.max(axis=1), p.argmax(axis=1)
    plain = noise_floor(p)
    assert np.array_equal(plain.samples["ece"], noise_floor(p, labels=guess).samples["ece"])
    named = noise_floor(top, predicted=guess, labels=guess)
    assert np.array_equal(plain.samples["ece"], named.samples["ece"])
    assert reduce_to_top_label(p, guess).labels is LabelKind.HARD
