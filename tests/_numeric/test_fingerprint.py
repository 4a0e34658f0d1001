"""Evaluating a calibrator on the rows that it was fitted on gives a warning."""

from __future__ import annotations

import json

import numpy as np
import pytest

import hetcal
from hetcal.__main__ import main
from hetcal._numeric.fingerprint import fingerprint, share_fitted
from hetcal._numeric.rows import prepare


def test_share_of_fitted_rows(make_sample):
    z, y, _ = make_sample(2000, 4, 0)
    rows = prepare(z, y, None)
    fitted_rows = fingerprint(rows.take(slice(1000)))
    assert share_fitted(fitted_rows, rows.take(slice(1000))) == 1
    assert share_fitted(fitted_rows, rows) == 1
    assert share_fitted(fitted_rows, rows.take(slice(1000, 2000))) == 0
    assert share_fitted(fitted_rows, rows.take(slice(500, 2000))) == pytest.approx(0.5, abs=0.2)
    assert share_fitted(None, rows) == 0
    assert share_fitted(json.loads(json.dumps(fitted_rows)), rows) == 1


def test_few_rows_of_a_large_fit(make_sample):
    """The overlap is relative to the smaller set, so evaluating a few of many fitted rows is recognised."""
    z, y, _ = make_sample(25_000, 4, 0)
    rows = prepare(z, y, None)
    fitted_rows = fingerprint(rows.take(slice(20_000)))
    shares = [share_fitted(fitted_rows, rows.take(slice(i, i + 1000))) for i in range(0, 25_000, 1000)]
    assert np.mean(np.array(shares[:20]) > 0.05) > 0.8  # the 64 hashes may miss 5% of the rows
    assert np.mean(shares[:20]) == pytest.approx(1, abs=0.3)
    assert shares[20:] == [0] * 5
    unknown = fitted_rows | {"n": None}  # as after a fit on batches
    assert max(share_fitted(unknown, rows.take(slice(i, i + 1000))) for i in range(0, 20_000, 1000)) < 0.2


def test_order_shift_and_dtype_do_not_matter(make_sample):
    z, y, _ = make_sample(500, 4, 0, dtype=np.float32)
    fitted_rows = fingerprint(prepare(z, y, None))
    mixed = np.random.default_rng(0).permutation(500)
    assert share_fitted(fitted_rows, prepare(z[mixed], y[mixed], None)) == 1
    assert share_fitted(fitted_rows, prepare(z.astype(np.float64), y, None)) == 1
    integers = np.round(z)  # adding 8 to integers is exact
    assert share_fitted(fingerprint(prepare(integers, y, None)), prepare(integers + 8, y, None)) == 1


def test_equal_scores_of_other_rows_do_not_match():
    rng = np.random.default_rng(0)
    score, labels = rng.integers(20, size=4000) / 20 + 0.025, rng.integers(2, size=4000)
    z = np.log(np.stack([1 - score, score], axis=1))
    fitted_rows = fingerprint(prepare(z[:2000], labels[:2000], None))
    assert share_fitted(fitted_rows, prepare(z[2000:], labels[2000:], None)) == 0
    assert share_fitted(fitted_rows, prepare(z[:2000], labels[:2000], None)) == 1


def test_few_coarse_rows_cause_no_false_alarm():
    rng = np.random.default_rng(0)
    alarms = 0
    for n in (5, 10, 20, 40, 60, 200):
        for _ in range(50):
            votes = rng.multinomial(20, rng.dirichlet(np.ones(3), size=2 * n)) / 20
            labels = votes.argmax(axis=1)
            z = hetcal.to_logits(votes)
            fitted_rows = fingerprint(prepare(z[:n], labels[:n], None))
            alarms += share_fitted(fitted_rows, prepare(z[n:], labels[n:], None)) > 0.05
            assert share_fitted(fitted_rows, prepare(z[:n], labels[:n], None)) == 1
    assert alarms <= 3


@pytest.mark.parametrize("route", ["array", "probs", "batches", "weights"])
def test_evaluate_warns(route, make_sample):
    z, y, _ = make_sample(600, 3, 0)
    same_rows = {"logits": z[:400]}
    cal = hetcal.TemperatureScaling()
    if route == "probs":
        p = np.round(hetcal.Identity().fit(z, y).predict_proba(z), 3)
        p /= p.sum(axis=1, keepdims=True)
        cal.fit(probs=p[:400], labels=y[:400])
        same_rows = {"probs": p[:400]}
    elif route == "batches":
        cal.fit(hetcal.Batches(z[:400], y[:400], batch_rows=100))
    else:
        cal.fit(z[:400], y[:400], sample_weight=None if route == "array" else np.arange(400) % 2)
    with pytest.warns(hetcal.CalibrationWarning, match="fitted on"):
        hetcal.evaluate(labels=y[:400], calibrator=cal, **same_rows)
    hetcal.evaluate(logits=z[400:], labels=y[400:], calibrator=cal)  # warnings are errors here


@pytest.mark.parametrize("fitted_in_batches", [False, True])
def test_evaluate_in_batches_warns(fitted_in_batches, make_sample):
    z, y, _ = make_sample(800, 3, 0)
    same, other = (hetcal.Batches(z[rows], y[rows], batch_rows=100) for rows in (slice(400), slice(400, 800)))
    cal = hetcal.TemperatureScaling()
    cal = cal.fit(same) if fitted_in_batches else cal.fit(z[:400], y[:400])
    with pytest.warns(hetcal.CalibrationWarning, match="fitted on"):
        hetcal.evaluate(logits=same, calibrator=cal)
    hetcal.evaluate(logits=other, calibrator=cal)  # warnings are errors here


def test_columns_of_batches_are_compared_by_name(make_sample):
    z, y, _ = make_sample(400, 3, 0)
    cal = hetcal.TemperatureScaling().fit(z, y, class_names=["a", "b", "c"])
    turned = hetcal.Batches(z[:, ::-1], 2 - y, batch_rows=100, class_names=["c", "b", "a"])
    with pytest.warns(hetcal.CalibrationWarning, match="fitted on"):
        hetcal.evaluate(logits=turned, calibrator=cal)


@pytest.mark.filterwarnings("default::hetcal.CalibrationWarning")
def test_command_line_and_report(make_sample, tmp_path, capsys):
    z, y, _ = make_sample(900, 3, 0)
    np.savez(tmp_path / "a.npz", logits=z[:500], labels=y[:500])
    np.savez(tmp_path / "b.npz", logits=z[500:], labels=y[500:])
    np.savez(
        tmp_path / "same.npz",
        val_logits=z[:500],
        val_labels=y[:500],
        test_logits=z[300:],
        test_labels=y[300:],
    )
    cal = str(tmp_path / "c.json")
    assert main(["fit", str(tmp_path / "a.npz"), "-m", "ts", "-o", cal]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "a.npz"), "-c", cal]) == 0
    assert "fitted on" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "b.npz"), "-c", cal]) == 0
    assert "fitted on" not in capsys.readouterr().err
    report = json.loads(hetcal.make_report(hetcal.load_logits(tmp_path / "same.npz"), format="json"))
    assert any("fitted on" in note for note in report["notes"])
