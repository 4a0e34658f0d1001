from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize, special, stats

import hetcal
from hetcal._numeric import agreement, dawid_skene, trusted_rows
from hetcal.diagnosis import Verdict
from hetcal.label_noise import AmbiguousNoiseError, Method, estimate_transition, sensitivity

Array = NDArray[np.float64]


def draw(p: Array, rng: np.random.Generator) -> NDArray[np.int64]:
    """One class per row of probabilities."""
    return (p.cumsum(axis=1) > rng.random(len(p))[:, None]).argmax(axis=1)


def uniform_noise(rates: Any) -> Array:
    rates = np.asarray(rates, float)
    return np.diag(1 - rates) + rates[:, None] / len(rates)


def simulate(
    transition: Array, n: int = 3000, alpha: float = 0.8, seed: int = 0
) -> tuple[Array, NDArray[np.int64], NDArray[np.int64]]:
    """Logits whose softmax is calibrated after multiplication by `alpha`, observed labels and true labels."""
    rng = np.random.default_rng(seed)
    n_classes = len(transition)
    logits = 1.5 * rng.normal(size=(n, n_classes)) + 4 * np.eye(n_classes)[rng.integers(0, n_classes, n)]
    true = draw(special.softmax(alpha * logits, axis=1), rng)
    return logits, draw(transition[true], rng), true


def hide(true: NDArray[np.int64], n_trusted: int, seed: int = 1) -> NDArray[np.int64]:
    """True labels of a few random rows, -1 elsewhere."""
    rows = np.random.default_rng(seed).choice(len(true), n_trusted, replace=False)
    trusted = np.full(len(true), -1)
    trusted[rows] = true[rows]
    return trusted


RATES = np.array([0.3, 0.0, 0.2, 0.0, 0.1])
LOGITS, OBSERVED, TRUE = simulate(uniform_noise(RATES))
TRUSTED = hide(TRUE, 100)
ESTIMATE = estimate_transition(LOGITS, OBSERVED, trusted=TRUSTED)
NAMES = ["a", "b", "c", "d", "e"]


# --- trusted rows ----------------------------------------------------------------------------------------


def test_derivatives_of_the_likelihood_match_finite_differences() -> None:
    rng = np.random.default_rng(0)
    n, k = 60, 4
    z = 3 * rng.normal(size=(n, k))
    true = np.where(rng.random(n) < 0.3, rng.integers(0, k, n), -1)
    predicted = z.argmax(axis=1)
    rows = trusted_rows._Rows(z - z.max(axis=1, keepdims=True), predicted, rng.integers(0, k, n), true)
    shares = rng.random((k, k)) * (1 - np.eye(k))
    shares /= shares.sum(axis=1, keepdims=True)
    theta = rng.normal(size=3 * k) / 2
    value = trusted_rows._evaluate(rows, theta, shares)
    for i, step in enumerate(1e-5 * np.eye(3 * k)):
        above = trusted_rows._evaluate(rows, theta + step, shares)
        below = trusted_rows._evaluate(rows, theta - step, shares)
        assert value.gradient[i] == pytest.approx((above.loss - below.loss) / 2e-5, abs=1e-6)
        np.testing.assert_allclose(value.hessian[i], (above.gradient - below.gradient) / 2e-5, atol=1e-6)


def test_many_trusted_rows_give_the_observed_frequencies() -> None:
    # Of 1000 rows of class 0, 100 are labelled 1; of 1000 of class 1, 200 are labelled 0.
    true = np.repeat([0, 1], 1000)
    observed = np.where(np.arange(2000) % 1000 < np.where(true == 0, 100, 200), 1 - true, true)
    logits = np.random.default_rng(0).normal(size=(2000, 2))
    estimate = estimate_transition(logits, observed, trusted=true)
    np.testing.assert_allclose(estimate.transition, [[0.9, 0.1], [0.2, 0.8]], atol=0.005)
    np.testing.assert_allclose(estimate.rates, [0.2, 0.4], atol=0.01)
    assert estimate.share_wrong == pytest.approx(0.15, abs=0.003)


def test_intervals_of_trusted_counts_match_the_binomial_distribution() -> None:
    true = np.repeat([0, 1], 1000)
    observed = np.where(np.arange(2000) % 1000 < np.where(true == 0, 100, 200), 1 - true, true)
    estimate = estimate_transition(np.random.default_rng(0).normal(size=(2000, 2)), observed, trusted=true)
    for k, n_wrong in enumerate((100, 200)):
        exact = stats.binomtest(n_wrong, 1000).proportion_ci(method="wilson")
        np.testing.assert_allclose(
            [estimate.rates_low[k] / 2, estimate.rates_high[k] / 2], [exact.low, exact.high], atol=0.01
        )


def test_rates_are_recovered_although_the_model_is_overconfident() -> None:
    assert np.abs(ESTIMATE.rates - RATES).max() < 0.07
    assert ((ESTIMATE.rates_low <= RATES) & (ESTIMATE.rates_high >= RATES)).all()
    assert np.abs(ESTIMATE.transition - uniform_noise(RATES)).max() < 0.05
    assert ESTIMATE.share_wrong == pytest.approx(np.mean(OBSERVED != TRUE), abs=0.02)
    assert ESTIMATE.method is Method.TRUSTED
    assert (ESTIMATE.n, ESTIMATE.n_trusted) == (3000, 100)


def test_untrusted_rows_add_information() -> None:
    known = TRUSTED >= 0
    alone = estimate_transition(LOGITS[known], OBSERVED[known], trusted=TRUE[known])
    assert np.mean(ESTIMATE.rates_high - ESTIMATE.rates_low) < 0.5 * np.mean(
        alone.rates_high - alone.rates_low
    )


def test_clean_labels_give_rates_near_zero() -> None:
    estimate = estimate_transition(LOGITS, TRUE, trusted=TRUSTED)
    assert estimate.rates.max() < 0.01
    assert (estimate.rates_low == 0).all()
    assert estimate.rates_high.max() < 0.2


def test_calibration_with_the_estimate_is_close_to_that_with_clean_labels() -> None:
    alpha = {}
    for name, labels, transition in (
        ("clean", TRUE, None),
        ("noisy", OBSERVED, None),
        ("estimate", OBSERVED, ESTIMATE),
    ):
        cal = hetcal.TemperatureScaling().fit(LOGITS, labels, transition=transition)
        alpha[name] = cal.alpha_
    assert alpha["noisy"] < 0.65
    assert alpha["estimate"] == pytest.approx(alpha["clean"], rel=0.1)


def test_frequent_confusions_are_found() -> None:
    transition = 0.75 * np.eye(5) + 0.25 * np.eye(5)[[1, 0, 3, 2, 4]]
    logits, observed, true = simulate(transition)
    trusted = hide(true, 100)
    full = estimate_transition(logits, observed, trusted=trusted)
    classwise = estimate_transition(logits, observed, trusted=trusted, model="classwise")
    assert np.abs(full.transition - transition).max() < 0.1
    assert np.abs(classwise.transition - transition).max() > 0.1
    np.testing.assert_allclose(classwise.transition, uniform_noise(classwise.rates))
    assert "b (2" in str(estimate_transition(logits, observed, trusted=trusted, class_names=NAMES))


def test_trusted_rows_may_be_chosen_by_their_observed_label() -> None:
    errors = []
    for seed in range(4):
        logits, observed, true = simulate(uniform_noise(RATES), seed=seed)
        rng, trusted = np.random.default_rng(seed), np.full(len(true), -1)
        for k, n_chosen in enumerate((200, 25, 25, 25, 25)):
            rows = rng.choice(np.flatnonzero(observed == k), n_chosen, replace=False)
            trusted[rows] = true[rows]
        errors.append(estimate_transition(logits, observed, trusted=trusted).rates - RATES)
    assert np.abs(np.mean(errors, axis=0)).max() < 0.05


def test_permuted_classes_give_permuted_estimates() -> None:
    order = np.array([3, 0, 4, 1, 2])
    position = np.argsort(order)
    trusted = np.where(TRUSTED >= 0, position[TRUSTED], -1)
    permuted = estimate_transition(LOGITS[:, order], position[OBSERVED], trusted=trusted)
    np.testing.assert_allclose(permuted.transition, ESTIMATE.transition[np.ix_(order, order)], atol=1e-8)
    np.testing.assert_allclose(permuted.rates_high, ESTIMATE.rates_high[order], atol=1e-8)


def test_shifts_and_scales_of_the_logits_do_not_matter() -> None:
    shifted = estimate_transition(LOGITS + np.arange(3000)[:, None], OBSERVED, trusted=TRUSTED)
    np.testing.assert_allclose(shifted.transition, ESTIMATE.transition, atol=1e-8)
    scaled = estimate_transition(20 * LOGITS, OBSERVED, trusted=TRUSTED)
    np.testing.assert_allclose(scaled.transition, ESTIMATE.transition, atol=2e-3)


def test_probabilities_equal_their_logits() -> None:
    from_probs = estimate_transition(probs=special.softmax(LOGITS, axis=1), labels=OBSERVED, trusted=TRUSTED)
    np.testing.assert_allclose(from_probs.transition, ESTIMATE.transition, atol=1e-6)


def test_forms_of_trusted_labels() -> None:
    rows = np.flatnonzero(TRUSTED >= 0)
    with_nan = np.where(TRUSTED >= 0, TRUSTED, np.nan)
    with_none = np.where(TRUSTED >= 0, TRUSTED.astype(object), None)
    for trusted in (
        TRUSTED.tolist(),
        with_nan,
        with_none,
        (rows, TRUE[rows]),
        (rows[::-1], TRUE[rows][::-1]),
    ):
        same = estimate_transition(LOGITS, OBSERVED, trusted=trusted)
        np.testing.assert_array_equal(same.transition, ESTIMATE.transition)
    text = np.where(TRUSTED >= 0, np.array(NAMES)[TRUSTED], "").astype(object)
    named = estimate_transition(LOGITS, np.array(NAMES)[OBSERVED], trusted=text, class_names=NAMES)
    np.testing.assert_array_equal(named.transition, ESTIMATE.transition)
    assert named.class_names == tuple(NAMES)


def test_data_frames_and_nullable_series() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(LOGITS, columns=NAMES)
    trusted = pd.Series(TRUSTED).mask(TRUSTED < 0).astype("Int64")
    same = estimate_transition(frame, np.array(NAMES)[OBSERVED], trusted=trusted)
    np.testing.assert_array_equal(same.transition, ESTIMATE.transition)
    assert same.class_names == tuple(NAMES)
    numbered = pd.DataFrame(LOGITS, columns=[10, 20, 30, 40, 50])
    labels = 10 * (OBSERVED + 1)
    same = estimate_transition(numbered, labels, trusted=np.where(TRUSTED >= 0, 10 * (TRUSTED + 1), -1))
    np.testing.assert_array_equal(same.transition, ESTIMATE.transition)


def test_result_is_usable_as_a_transition() -> None:
    np.testing.assert_array_equal(np.asarray(ESTIMATE), ESTIMATE.transition)
    by_result = hetcal.TemperatureScaling().fit(LOGITS, OBSERVED, transition=ESTIMATE)
    by_matrix = hetcal.TemperatureScaling().fit(LOGITS, OBSERVED, transition=ESTIMATE.transition)
    assert by_result.alpha_ == by_matrix.alpha_


def test_result_as_text_and_json() -> None:
    values = json.loads(json.dumps(ESTIMATE.to_dict()))
    assert values["rates"] == ESTIMATE.rates.tolist()
    assert values["method"] == "trusted rows"
    assert "0.3" in str(ESTIMATE)
    assert "<table>" in ESTIMATE._repr_html_()


# --- annotators ------------------------------------------------------------------------------------------


def annotate(n: int = 600, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
    """Votes (n, 4), true labels and the transitions of the annotators."""
    rng = np.random.default_rng(seed)
    matrices = np.stack(
        [
            uniform_noise([0.1, 0.1, 0.1]),
            uniform_noise([0.5, 0.2, 0.1]),
            np.array([[0.9, 0.1, 0.0], [0.4, 0.6, 0.0], [0.0, 0.1, 0.9]]),
            uniform_noise([0.3, 0.3, 0.3]),
        ]
    )
    true = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    votes = np.stack([draw(m[true], rng) for m in matrices], axis=1)
    votes[rng.random(votes.shape) < 0.2] = -1
    return votes, true, matrices


def literal_em(votes: NDArray[np.int64], n_classes: int, n_rounds: int) -> tuple[Array, Array]:
    """Equations 2.3 to 2.5 of Dawid and Skene (1979), with loops."""
    n, n_annotators = votes.shape
    t = np.zeros((n, n_classes))
    for i in range(n):
        counts = [np.sum(votes[i] == k) for k in range(n_classes)]
        t[i] = (np.array(counts) + 1 / n_classes) / (np.sum(counts) + 1)
    for _ in range(n_rounds):
        pi = np.zeros((n_annotators, n_classes, n_classes))
        for a in range(n_annotators):
            for i in range(n):
                if votes[i, a] >= 0:
                    pi[a, :, votes[i, a]] += t[i]
            pi[a] /= pi[a].sum(axis=1, keepdims=True)
        p = t.mean(axis=0)
        for i in range(n):
            t[i] = p * np.prod(
                [pi[a, :, votes[i, a]] for a in range(n_annotators) if votes[i, a] >= 0], axis=0
            )
            t[i] /= t[i].sum()
    return pi, t


VOTES, VOTES_TRUE, MATRICES = annotate()


def test_dawid_and_skene_as_in_a_literal_implementation() -> None:
    votes = VOTES[:120]
    estimate = estimate_transition(annotators=votes, smoothing=0)
    matrices, posterior = literal_em(votes, 3, 1000)
    assert estimate.annotators is not None
    np.testing.assert_allclose(estimate.annotators, matrices, atol=1e-4)
    np.testing.assert_allclose(estimate.posterior, posterior, atol=1e-4)


def test_annotators_are_recovered() -> None:
    votes, true, matrices = annotate(5000)
    estimate = estimate_transition(annotators=votes)
    assert estimate.annotators is not None
    assert estimate.posterior is not None
    assert np.abs(estimate.annotators - matrices).max() < 0.06
    assert np.abs(estimate.transition - matrices.mean(axis=0)).max() < 0.03
    rates = (1 - np.diag(matrices.mean(axis=0))) * 1.5
    assert ((estimate.rates_low <= rates) & (rates <= estimate.rates_high)).all()
    assert np.mean(estimate.posterior.argmax(axis=1) == true) > 0.9
    assert estimate.method is Method.ANNOTATORS
    assert estimate.share_wrong == pytest.approx(np.mean((votes != true[:, None])[votes >= 0]), abs=0.02)


def test_calibration_with_annotators() -> None:
    rng = np.random.default_rng(0)
    votes, true, _ = annotate(3000)
    logits = 2 * rng.normal(size=(3000, 3)) + 3 * np.eye(3)[true]
    clean = hetcal.TemperatureScaling().fit(logits, true).alpha_
    estimate = estimate_transition(logits, annotators=votes)
    row, annotator = np.nonzero(votes >= 0)
    ts = hetcal.TemperatureScaling().fit(logits[row], votes[row, annotator], transition=estimate)
    assert ts.alpha_ == pytest.approx(clean, rel=0.1)
    assert hetcal.TemperatureScaling().fit(logits, estimate.posterior).alpha_ == pytest.approx(
        clean, rel=0.05
    )


def test_a_classifier_stands_in_for_missing_annotators() -> None:
    rng = np.random.default_rng(0)
    votes, true, matrices = annotate(3000)
    logits = 3 * (2 * rng.normal(size=(3000, 3)) + 3 * np.eye(3)[true])  # over-confident
    estimate = estimate_transition(logits, annotators=votes[:, :2])
    assert estimate.annotators is not None
    assert np.abs(estimate.annotators - matrices[:2]).max() < 0.06


def test_trusted_rows_identify_a_single_annotator() -> None:
    estimate = estimate_transition(annotators=VOTES[:, [2]], trusted=VOTES_TRUE)
    rows = VOTES[:, 2] >= 0
    count = np.zeros((3, 3))
    np.add.at(count, (VOTES_TRUE[rows], VOTES[rows, 2]), 1)
    np.testing.assert_allclose(estimate.transition, count / count.sum(axis=1, keepdims=True), atol=0.01)
    np.testing.assert_array_equal(estimate.posterior, np.eye(3)[VOTES_TRUE])


def test_permuted_classes_and_annotators_give_permuted_estimates() -> None:
    first = estimate_transition(annotators=VOTES)
    order, people = np.array([2, 0, 1]), np.array([3, 1, 0, 2])
    permuted = np.where(VOTES >= 0, np.argsort(order)[VOTES], -1)[:, people]
    second = estimate_transition(annotators=permuted)
    assert first.annotators is not None
    assert second.annotators is not None
    np.testing.assert_allclose(second.annotators, first.annotators[people][:, order][:, :, order], atol=1e-5)
    np.testing.assert_allclose(second.rates_low, first.rates_low[order], atol=1e-5)


def test_smoothing_shrinks_an_annotator_with_few_labels_to_the_others() -> None:
    votes = VOTES.copy()
    votes[5:, 1] = -1
    estimate = estimate_transition(annotators=votes, smoothing=100)
    assert estimate.annotators is not None
    np.testing.assert_allclose(estimate.annotators[1], estimate.transition, atol=0.1)


def test_named_labels_of_annotators() -> None:
    names = np.array(["x", "y", "z"])
    text = np.where(VOTES >= 0, names[VOTES], None)
    named = estimate_transition(annotators=text, class_names=names)
    np.testing.assert_array_equal(named.transition, estimate_transition(annotators=VOTES).transition)
    assert "4 annotators" in str(named)


def test_classwise_annotators() -> None:
    estimate = estimate_transition(annotators=VOTES, model="classwise")
    assert estimate.annotators is not None
    wrong = estimate.annotators[:, ~np.eye(3, dtype=bool)].reshape(4, 3, 2)
    np.testing.assert_allclose(wrong[..., 0], wrong[..., 1])


# --- predictions alone -----------------------------------------------------------------------------------


def agreeing(
    confidence: Array, accuracy: Array, rate: float, seed: int = 0
) -> tuple[Array, NDArray[np.int64]]:
    """Logits of two classes with these confidences, and labels with noise."""
    rng = np.random.default_rng(seed)
    n = len(confidence)
    guess = np.arange(n) % 2
    logits = np.zeros((n, 2))
    logits[np.arange(n), guess] = special.logit(confidence)
    true = np.where(rng.random(n) < accuracy, guess, 1 - guess)
    return logits, draw(uniform_noise([rate, rate])[true], rng)


def test_anchored_predictions_reveal_the_noise() -> None:
    confidence = special.expit(np.random.default_rng(1).uniform(0, 12, 20_000))
    accuracy = special.expit(0.7 * special.logit(confidence))
    for rate in (0.0, 0.2):
        logits, labels = agreeing(confidence, accuracy, rate)
        estimate = estimate_transition(logits, labels)
        assert np.abs(estimate.rates - rate).max() < 0.03
        assert ((estimate.rates_low <= rate) & (rate <= estimate.rates_high)).all()
        assert estimate.method is Method.PREDICTIONS
        assert estimate.posterior is None
        assert estimate.share_wrong == pytest.approx(rate / 2, abs=0.02)


def test_ambiguous_noise_is_refused() -> None:
    # Confidences of at most 0.9 that agree with the labels in too few rows: noise or over-confidence
    confidence = np.random.default_rng(1).uniform(0.6, 0.9, 4000)
    logits, labels = agreeing(confidence, confidence, 0.2)
    with pytest.raises(AmbiguousNoiseError, match="trusted=") as caught:
        estimate_transition(logits, labels)
    assert (caught.value.rates_low < 0.2).all()
    assert (caught.value.rates_high > 0.2).all()
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    np.testing.assert_array_equal(copy.rates_high, caught.value.rates_high)
    result = sensitivity(logits, labels)  # the remedies work
    assert result.verdicts[0] == (Verdict.OVER_CONFIDENT,) * 2
    trusted = np.where(np.arange(4000) < 200, labels, -1)
    assert estimate_transition(logits, labels, trusted=trusted).n_trusted == 200


def test_classes_without_predictions_are_refused() -> None:
    logits, labels = agreeing(np.full(400, 0.999), np.full(400, 1.0), 0.0)
    logits = np.column_stack([logits, np.full(400, -20.0)])
    with pytest.raises(AmbiguousNoiseError, match="never predicted"):
        estimate_transition(logits, labels)


def test_profile_likelihood_as_by_a_general_optimiser() -> None:
    rng = np.random.default_rng(0)
    x, predicted = rng.uniform(0, 6, 300), np.zeros(300, np.int64)
    agrees = rng.random(300) < 0.85 * special.expit(x)
    rates = np.array([0.0, 0.1, 0.3])
    profile = agreement.profile_rates(x, predicted, agrees, rates, 4, np.zeros(4))[:, 0]

    def loss(theta: Array, rate: float, centre: Array | None) -> float:
        q = (1 - 0.75 * rate) * special.expit(np.exp(theta[0]) * x + theta[1])
        offset = theta - (0 if centre is None else centre)
        prior = (offset[0] ** 2 + (offset[1] / 1.5) ** 2) / 2
        return prior - float(np.log(np.where(agrees, q, 1 - q)).sum())

    start = np.zeros(2)
    centre = optimize.minimize(loss, start, (0.0, None), method="Nelder-Mead", options={"xatol": 1e-8}).x
    for rate, value in zip(rates, profile, strict=True):
        best = optimize.minimize(loss, centre, (rate, centre), method="Nelder-Mead", options={"fatol": 1e-10})
        assert value == pytest.approx(best.fun, abs=1e-5)


# --- sensitivity -----------------------------------------------------------------------------------------


def test_verdicts_without_noise_are_those_of_diagnose() -> None:
    result = sensitivity(LOGITS, OBSERVED, n_rates=3, class_names=NAMES)
    diagnosis = hetcal.diagnose(LOGITS, OBSERVED)
    assert result.verdicts[0] == tuple(c.kind for c in diagnosis.classes)
    np.testing.assert_allclose(result.rates, [0, 0.2, 0.4])
    assert [s.split(":")[0] for s in result.sentences] == NAMES


def test_verdicts_flip_where_an_exact_test_loses_significance() -> None:
    # 400 rows per class with confidence 0.9; 80% of class 0 and 97% of class 1 agree
    labels = np.concatenate([np.arange(400) >= 320, np.arange(400) >= 12]).astype(int)
    labels[400:] = np.where(np.arange(400) < 12, 0, 1)
    logits = np.repeat(special.logit(0.9) * np.eye(2), 400, axis=0)
    result = sensitivity(logits, labels, max_rate=0.5, n_rates=6)
    assert result.verdicts[0] == (Verdict.OVER_CONFIDENT, Verdict.UNDER_CONFIDENT)
    assert result.verdicts[-1] == (Verdict.UNDER_CONFIDENT, Verdict.UNDER_CONFIDENT)
    assert np.isnan(result.flip_rate[1])

    def p_value(rate: float) -> float:  # the other p-value is smaller, so this one is not adjusted
        return float(2 * stats.binom.cdf(320, 400, 0.9 * (1 - rate) + rate / 2))

    assert p_value(float(result.flip_rate[0]) - 0.004) <= 0.05 < p_value(float(result.flip_rate[0]) + 1e-9)
    assert "unless more than" in result.sentences[0]
    assert "even if 25.0%" in result.sentences[1]


def test_calibrated_classes_become_under_confident() -> None:
    confidence = np.full(6000, 0.9)
    logits, labels = agreeing(confidence, confidence, 0.0)
    result = sensitivity(logits, labels)
    assert result.verdicts[0] == (Verdict.CONSISTENT,) * 2
    assert result.verdicts[-1] == (Verdict.UNDER_CONFIDENT,) * 2
    assert (result.flip_rate > 0).all()
    assert "but under-confident if more than" in result.sentences[0]


def test_temperatures_for_a_noise_rate_as_by_direct_minimisation() -> None:
    result = sensitivity(LOGITS, OBSERVED, n_rates=3, max_rate=0.2)
    predicted = LOGITS.argmax(axis=1)
    for i, rate in enumerate(result.rates):
        shared = hetcal.TemperatureScaling().fit(LOGITS, OBSERVED, transition=float(rate)).alpha_
        target = special.softmax(shared * LOGITS, axis=1)
        for k in range(5):
            rows = predicted == k
            weight = min(1.0, float(rows.sum() * rate * 4 / 5))  # of the pseudo-observation

            def loss(
                alpha: float, rows: Any = rows, rate: float = float(rate), w: float = weight, q: Any = target
            ) -> float:
                log_p = special.log_softmax(alpha * LOGITS[rows], axis=1)
                p = np.exp(log_p[np.arange(rows.sum()), OBSERVED[rows]])
                pseudo = -float((q[rows] * log_p).sum(axis=1).mean())
                return -float(np.log((1 - rate) * p + rate / 5).sum()) + w * pseudo

            best = optimize.minimize_scalar(
                loss, bounds=(0.05, 10), method="bounded", options={"xatol": 1e-8}
            )
            assert result.alpha[i, k] == pytest.approx(best.x, rel=1e-4)


def test_sensitivity_with_probabilities_and_a_class_without_predictions() -> None:
    probs = special.softmax(np.column_stack([LOGITS, np.full(len(LOGITS), -9.0)]), axis=1)
    result = sensitivity(probs=probs, labels=OBSERVED, n_rates=2)
    assert np.isnan(result.alpha[:, 5]).all()
    assert result.verdicts[0][5] is Verdict.TOO_FEW_ROWS
    values = json.loads(json.dumps(result.to_dict()))
    assert values["alpha"][0][5] is None
    assert len(values["sentences"]) == 6
    assert str(result).count("\n") == 7
    assert "<table>" in result._repr_html_()


# --- errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trusted": TRUSTED[:-1]}, "trusted must have one entry per row"),
        ({"trusted": np.full(3000, -1)}, "at least one row"),
        ({"trusted": np.where(TRUSTED >= 0, 7, -1)}, r"trusted must lie in 0\.\.4, got 7"),
        ({"trusted": ([0, 3000], [1, 1])}, "distinct row numbers"),
        ({"trusted": ([0, 0], [1, 1])}, "distinct row numbers"),
        ({"trusted": ([0, 1], [1])}, "trusted must have one entry per row"),
        ({"trusted": TRUSTED, "model": "other"}, "model must be one of"),
        ({"model": "full"}, "model must be 'classwise'"),
        ({"trusted": TRUSTED, "level": 0}, "level must"),
        ({"annotators": VOTES}, "labels must be left out"),
    ],
)
def test_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimate_transition(LOGITS, OBSERVED, **options)


@pytest.mark.parametrize(
    ("votes", "options", "message"),
    [
        (VOTES[:, :2], {}, "at least 3 labels"),
        (VOTES[:, 0], {}, r"annotators must have shape \(n, A\)"),
        (VOTES[:, :1], {"logits": np.random.default_rng(0).normal(size=(600, 3))}, "at least 2 labels"),
        (VOTES, {"logits": LOGITS}, "annotators must have as many rows"),
        (np.where(VOTES >= 0, 0, -1), {}, "at least two classes"),
        (VOTES, {"class_names": ["a", "b"]}, "column 0 of annotators must lie in"),
        (VOTES, {"smoothing": -1}, "smoothing must"),
        (VOTES[:, :1], {"trusted": (VOTES_TRUE + 1) % 3}, "of its own class"),
    ],
)
def test_errors_of_annotators(votes: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimate_transition(annotators=votes, **options)


@pytest.mark.parametrize(
    "options", [{"max_rate": 1.0}, {"n_rates": 1}, {"min_gap": 0}, {"alpha_bounds": (2, 1)}]
)
def test_errors_of_sensitivity(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        sensitivity(LOGITS, OBSERVED, **options)


def test_annotators_who_agree_on_few_rows_may_still_be_wrong() -> None:
    """Three rows per class with three labels each: the interval is that of 0 errors in 9 labels."""
    estimate = estimate_transition(annotators=np.tile(np.arange(2)[:, None], (3, 3)))
    np.testing.assert_array_equal(estimate.rates_low, 0)
    np.testing.assert_allclose(estimate.rates_high, 2 * stats.beta.ppf(0.975, 1, 9), rtol=1e-3)


@pytest.mark.parametrize("third", [1.0, 0.2])
def test_coverage_of_intervals_from_annotators(third: float) -> None:
    """The last of three annotators labels only some of the rows."""
    transition = np.array([[0.8, 0.15, 0.05], [0.02, 0.9, 0.08], [0.1, 0.02, 0.88]])
    rates, covered = 1.5 * (1 - np.diag(transition)), []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        true = rng.integers(3, size=600)
        votes = np.stack([draw(transition[true], rng) for _ in range(3)], axis=1)
        votes[rng.random(600) >= third, 2] = -1
        estimate = estimate_transition(annotators=votes)
        covered.append((estimate.rates_low <= rates) & (rates <= estimate.rates_high))
    assert np.mean(covered) > 0.85


def test_an_estimate_for_classes_in_another_order_is_refused() -> None:
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    z = pd.DataFrame(3 * rng.normal(size=(500, 3)), columns=["a", "b", "c"])
    y = z.columns.to_numpy()[draw(special.softmax(0.5 * z.to_numpy(), axis=1), rng)]
    estimate = estimate_transition(z, y, trusted=(np.arange(100), y[:100]))
    hetcal.TemperatureScaling().fit(z, y, transition=estimate)
    other = z[["c", "b", "a"]]
    with pytest.raises(ValueError, match=r"transition must be estimated for the same classes.*c, b, a, got"):
        hetcal.TemperatureScaling().fit(other, y, transition=estimate)
    with pytest.raises(ValueError, match="transition must be estimated for the same classes"):
        hetcal.diagnose(other, y, transition=estimate)


def test_verdicts_that_differ_without_significance() -> None:
    """At 20% noise, the rows are too few for a verdict on classes that are consistent without noise."""
    margin, n = np.log(4.0), 126
    z = np.tile([[margin, 0], [0, margin]], (n, 1))
    labels = np.where(np.arange(2 * n) % 2 == 0, np.arange(2 * n) // 2 >= 95, np.arange(2 * n) // 2 < 95)
    result = sensitivity(z, labels.astype(int), max_rate=0.4, n_rates=5)
    assert len({row[0] for row in result.verdicts}) == 2
    assert "neither over- nor under-confident even if 20.0% of the labels" in result.sentences[0]
    assert "too few rows at some rates" in result._repr_html_()


def test_intervals_from_annotators_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    transition = uniform_noise([0.3, 0.1])[rng.integers(2, size=300)]
    votes = np.stack([draw(transition, rng) for _ in range(3)], axis=1)
    expected = estimate_transition(annotators=votes)
    monkeypatch.setattr(dawid_skene, "_BLOCK", 100)
    blocks = estimate_transition(annotators=votes)
    np.testing.assert_allclose(blocks.rates_high, expected.rates_high)
