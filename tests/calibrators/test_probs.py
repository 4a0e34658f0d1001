"""Probabilities instead of logits: the floor for zeros, and equal results for every kind of input."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.base import clone

import hetcal
from hetcal import metrics
from hetcal.__main__ import main

pytestmark = pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")

CALIBRATORS = {
    "TS": hetcal.TemperatureScaling(),
    "CTS cv": hetcal.ClassWiseTemperatureScaling("cv"),
    "CTS bayes": hetcal.ClassWiseTemperatureScaling("bayes"),
    "VS": hetcal.VectorScaling(1e-2),
    "Platt": hetcal.PlattScaling(),
    "Isotonic": hetcal.TopLabelIsotonic(),
    "Chain": hetcal.Chain([hetcal.TemperatureScaling(), hetcal.PlattScaling()]),
    "Auto": hetcal.AutoCalibrator(cv=2),
}


def forest(n, seed, k=4, trees=20):
    """Votes of a few trees, with many zeros and ones, and labels that they predict imperfectly."""
    rng = np.random.default_rng(seed)
    votes = rng.multinomial(trees, rng.dirichlet(np.full(k, 0.4), size=n)) / trees
    labels = np.array([rng.choice(k, p=0.8 * p + 0.2 / k) for p in votes])
    return votes, labels


@pytest.fixture(scope="module")
def rows():
    return *forest(1500, 0), *forest(1500, 1)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_probabilities_are_clipped_at_a_floor(name, rows):
    p, y, unseen, _ = rows
    floor = 0.5 / 20  # half a vote
    cal = clone(CALIBRATORS[name]).fit(probs=p, labels=y)
    assert cal.prob_floor_ == pytest.approx(floor)
    by_hand = clone(CALIBRATORS[name]).fit(np.log(np.maximum(p, floor)), y)
    assert by_hand.prob_floor_ is None
    expected = by_hand.predict_proba(np.log(np.maximum(unseen, floor)))
    np.testing.assert_allclose(cal.predict_proba(probs=unseen), expected, rtol=1e-9)
    if cal.preserves_decision:
        np.testing.assert_array_equal(cal.predict_proba(probs=unseen).argmax(axis=1), unseen.argmax(axis=1))


def test_the_floor_comes_from_the_rows_of_the_fit(rows):
    p, y, *_ = rows
    cal = hetcal.TemperatureScaling().fit(probs=p, labels=y)
    few = np.array([[0.0, 0.5, 0.5, 0.0], [1e-9, 0.5, 0.5 - 1e-9, 0.0]])
    out = cal.predict_proba(probs=few)
    np.testing.assert_array_equal(out[:, 0], out[:, 3])  # values below the floor are equal
    np.testing.assert_allclose(cal.predict_proba(probs=few[:1]), out[:1])


def test_file_and_api_agree(rows, tmp_path, capsys):
    p, y, unseen, labels = rows
    names = ["d", "a", "c", "b"]

    def table(path, probs, truth):
        lines = [
            ",".join([*map(repr, map(float, row)), names[k]]) for row, k in zip(probs, truth, strict=True)
        ]
        path.write_text("\n".join([",".join([*(f"prob_{c}" for c in names), "label"]), *lines]))

    table(tmp_path / "val.csv", p, y)
    table(tmp_path / "test.csv", unseen, labels)
    assert main(["fit", str(tmp_path / "val.csv"), "-m", "ts", "-o", str(tmp_path / "c.json")]) == 0
    from_api = hetcal.TemperatureScaling().fit(probs=p, labels=y)
    from_file = hetcal.load(tmp_path / "c.json")
    assert from_file.alpha_ == pytest.approx(from_api.alpha_, rel=1e-12)
    assert from_file.prob_floor_ == from_api.prob_floor_
    np.testing.assert_allclose(from_file.predict_proba(probs=unseen), from_api.predict_proba(probs=unseen))
    capsys.readouterr()
    for words, result in (
        ((), hetcal.evaluate(unseen, labels)),
        (("-c", str(tmp_path / "c.json")), hetcal.evaluate(from_api.predict_proba(probs=unseen), labels)),
    ):
        assert main(["evaluate", str(tmp_path / "test.csv"), *words, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        for metric in ("nll", "ece", "max_ece", "accuracy", "n_zero"):
            assert shown[metric] == pytest.approx(getattr(result, metric), rel=1e-9)


def test_uncalibrated_probabilities_are_evaluated_unchanged(rows):
    p, y, *_ = rows
    result = hetcal.evaluate(p, y)
    assert result.ece == pytest.approx(metrics.ece(p, y), rel=1e-12)
    np.testing.assert_array_equal(hetcal.Identity().fit(probs=p, labels=y).predict_proba(probs=p), p)
    assert result.n_zero == np.count_nonzero(p[np.arange(len(y)), y] == 0) > 0
    report = json.loads(hetcal.make_report(probs=p, labels=y, format="json"))
    assert report["ece"] == pytest.approx(result.ece)
    assert report["methods"][0]["nll"] == pytest.approx(result.nll)


def test_the_temperature_of_a_forest_is_inside_its_bounds(rows):
    p, y, unseen, labels = rows
    cal = hetcal.TemperatureScaling().fit(probs=p, labels=y)
    assert 0.1 < cal.alpha_ < 10
    assert metrics.nll(cal.predict_proba(probs=unseen), labels) < 1.02  # 1.9 if zeros were clipped at 1e-308


def test_evaluate_and_diagnose_take_logits_and_probs(rows, make_sample):
    z, y, _ = make_sample(600, 3, 0)
    p = hetcal.Identity().fit(z, y).predict_proba(z)
    assert hetcal.evaluate(logits=z, labels=y).to_dict() == hetcal.evaluate(p, y).to_dict()
    from_logits, from_probs = hetcal.diagnose(z, y), hetcal.diagnose(probs=p, labels=y)
    assert from_logits.to_dict() == from_probs.to_dict()
    forest_p, labels, *_ = rows
    by_hand = {c.index: c.confidence for c in hetcal.diagnose(probs=forest_p, labels=labels).classes}
    guess = forest_p.argmax(axis=1)
    assert by_hand[1] == pytest.approx(forest_p[guess == 1].max(axis=1).mean())  # without a floor


def test_evaluate_with_a_calibrator(make_sample):
    z, y, _ = make_sample(900, 3, 0)
    cal = hetcal.TemperatureScaling().fit(z[:400], y[:400])
    result = hetcal.evaluate(logits=z[400:], labels=y[400:], calibrator=cal)
    assert result.nll == hetcal.evaluate(cal.predict_proba(z[400:]), y[400:]).nll
    batches = hetcal.Batches(z[400:], y[400:])
    assert hetcal.evaluate(logits=batches, calibrator=cal).nll == pytest.approx(result.nll)
    assert hetcal.evaluate(logits=batches).accuracy == result.accuracy


def test_standard_errors_of_probabilities(rows):
    p, y, unseen, _ = rows
    for cal in (hetcal.TemperatureScaling(), hetcal.ClassWiseTemperatureScaling()):
        cal.fit(probs=p, labels=y)
        z = hetcal.to_logits(unseen, floor=cal.prob_floor_)
        for actual, expected in zip(
            cal.predict_proba(probs=unseen, return_std=True),
            cal.predict_proba(z, return_std=True),
            strict=True,
        ):
            np.testing.assert_allclose(actual, expected)


def test_batches_of_probabilities_are_refused_as_logits(rows):
    p, y, *_ = rows
    cal = hetcal.TemperatureScaling().fit(probs=p, labels=y)
    batches = hetcal.Batches([(p, y)])
    for call in (
        lambda: cal.predict_proba(batches),
        lambda: hetcal.evaluate(logits=batches),
        lambda: hetcal.TemperatureScaling().fit(batches),
    ):
        with pytest.raises(ValueError, match="logits must"):
            call()


def test_invalid_arguments(make_sample):
    z, y, _ = make_sample(100, 3, 0)
    p = hetcal.Identity().fit(z, y).predict_proba(z)
    cal = hetcal.TemperatureScaling().fit(z, y)
    two = p[:, :2] + p[:, 2:] / 2
    for call, words in (
        (lambda: hetcal.TemperatureScaling().fit(z, y, probs=p), "probs must"),
        (lambda: hetcal.TemperatureScaling().fit(labels=y), "logits must .*got None"),
        (lambda: hetcal.TemperatureScaling().fit(p, y), "probs="),
        (lambda: hetcal.TemperatureScaling().fit(probs=z, labels=y), "probs must"),
        (lambda: hetcal.TemperatureScaling().fit(probs=hetcal.Batches(z, y)), "probs must"),
        (lambda: cal.predict_proba(z, probs=p), "probs must"),
        (lambda: cal.predict_proba(probs=two), "probs must .*got 2"),
        (lambda: hetcal.evaluate(p, y, logits=z), "probs must"),
        (lambda: hetcal.evaluate(labels=y), "probs must .*got None"),
        (lambda: hetcal.evaluate(logits=z, labels=y, predicted=y), "predicted must"),
        (lambda: hetcal.diagnose(labels=y), "logits must .*got None"),
        (lambda: hetcal.evaluate(p, y, calibrator="x"), "calibrator must"),
        (lambda: hetcal.to_logits(p, floor="x"), "floor must"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            call()
