from __future__ import annotations

import dataclasses
import json
import pickle
import sys

import numpy as np
import pytest

import hetcal
from hetcal import metrics
from hetcal._numeric.probabilities import softmax
from hetcal.metrics import evaluate, noise_floor

PLAIN = ("accuracy", "nll", "brier", "ece", "max_ece", "avg_ece", "smooth_ece", "debiased_ece")


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([0.3, 0.3, 0.3, 1e-9], size=1500)
    probs[:, 3], probs = 0, probs / probs[:, :3].sum(axis=1, keepdims=True)
    probs[:, 3] = 0
    return probs, rng.integers(4, size=1500)


def test_numbers_agree_with_the_single_metrics(data: tuple[np.ndarray, np.ndarray]) -> None:
    probs, labels = data
    result = evaluate(probs, labels, list("abcd"))
    for name in PLAIN:
        assert getattr(result, name) == pytest.approx(getattr(metrics, name)(probs, labels)), name
    floor = noise_floor(probs)
    for name in ("ece", "max_ece", "avg_ece"):
        assert result.floor[name] == pytest.approx(floor.mean[name])
        assert result.floor_q95[name] == pytest.approx(floor.quantile(name, 0.95))
        assert result.excess[name] == pytest.approx(getattr(result, name) - floor.mean[name])
    table = result.classes
    assert table.name == ("a", "b", "c", "d")
    assert table.n.tolist() == np.bincount(probs.argmax(axis=1), minlength=4).tolist()
    for k in range(3):
        rows = probs.argmax(axis=1) == k
        assert table.accuracy[k] == pytest.approx((labels[rows] == k).mean())
        assert table.confidence[k] == pytest.approx(probs[rows].max(axis=1).mean())
    assert table.signed_gap == pytest.approx(metrics.signed_gap(probs, labels), nan_ok=True)
    assert table.ece == pytest.approx(metrics.class_ece(probs, labels), nan_ok=True)
    assert table.floor == pytest.approx(floor.mean["class_ece"], nan_ok=True)
    assert table.floor_q95 == pytest.approx(floor.quantile("class_ece", 0.95), nan_ok=True)
    assert result.worst_class == "abc"[int(np.argmax(table.ece[:3]))]
    assert (result.n, result.n_classes, result.n_bins) == (1500, 4, 15)


@pytest.mark.parametrize("n_rows", [400, 30_000])  # redrawn by row, and by fine cell
def test_options_reach_the_floor(n_rows: int) -> None:
    rng = np.random.default_rng(0)
    probs, labels = rng.dirichlet(np.ones(3), size=n_rows), rng.integers(3, size=n_rows)
    options = {"n_bins": 7, "n_redraws": 150, "rng": 5}
    result, floor = evaluate(probs, labels, **options), noise_floor(probs, **options)
    assert result.floor == pytest.approx({name: floor.mean[name] for name in result.floor})
    assert result.floor_q95 == pytest.approx({name: floor.quantile(name, 0.95) for name in result.floor})


def test_class_table_by_hand() -> None:
    table = evaluate([[0.9, 0.1, 0], [0.9, 0.1, 0], [0.2, 0.8, 0]], [0, 1, 1], n_redraws=5).classes
    assert table.accuracy == pytest.approx([0.5, 1, np.nan], nan_ok=True)
    assert table.confidence == pytest.approx([0.9, 0.8, np.nan], nan_ok=True)
    assert table.signed_gap == pytest.approx([0.4, -0.2, np.nan], nan_ok=True)


def test_top_labels(data: tuple[np.ndarray, np.ndarray]) -> None:
    probs, labels = data
    full = evaluate(probs, labels)
    top_label = evaluate(probs.max(axis=1), labels, predicted=probs.argmax(axis=1))
    for name in ("accuracy", "ece", "max_ece", "avg_ece", "smooth_ece", "debiased_ece", "floor"):
        assert getattr(full, name) == getattr(top_label, name)
    for name in ("nll", "brier"):
        expected = getattr(metrics, name)(probs.max(axis=1), labels, predicted=probs.argmax(axis=1))
        assert getattr(top_label, name) == pytest.approx(expected)
    assert evaluate([0.9], [0], list("abc"), predicted=[0]).n_classes == 3  # the names determine K


def test_order_of_rows_does_not_matter(data: tuple[np.ndarray, np.ndarray]) -> None:
    probs, labels = data
    order = np.random.default_rng(1).permutation(len(labels))
    a, b = evaluate(probs, labels), evaluate(probs[order], labels[order])
    assert [getattr(a, name) for name in PLAIN] == pytest.approx([getattr(b, name) for name in PLAIN])


def test_a_calibrated_model_has_no_excess() -> None:
    rng = np.random.default_rng(3)
    probs = rng.dirichlet(np.full(20, 0.1), size=4000)
    labels = np.minimum((probs.cumsum(axis=1) < rng.random((4000, 1))).sum(axis=1), 19)
    result = evaluate(probs, labels)
    assert all(abs(v) < 0.03 for v in result.excess.values())
    assert result.max_ece > 0.08  # large, but within its noise floor
    assert (result.classes.ece > result.classes.floor_q95).sum() <= 5


def test_to_dict_is_plain_json(data: tuple[np.ndarray, np.ndarray]) -> None:
    result = evaluate(*data, list("abcd"), n_redraws=10)
    record = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert record == result.to_dict()
    assert record["classes"][3] == {
        "name": "d",
        "n": 0,
        "accuracy": None,
        "confidence": None,
        "signed_gap": None,
        "ece": None,
        "floor": None,
        "floor_q95": None,
    }
    assert record["excess"]["ece"] == pytest.approx(result.ece - result.floor["ece"])


def test_to_frame_has_a_row_per_class(data: tuple[np.ndarray, np.ndarray]) -> None:
    frame = evaluate(*data, list("abcd"), n_redraws=10).to_frame()
    assert frame["name"].tolist() == list("abcd")
    assert frame["n"].sum() == 1500
    assert np.isnan(frame["ece"].iloc[3])


def test_to_frame_names_the_extra(
    data: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"hetcal\[files\]"):
        evaluate(*data, n_redraws=10).to_frame()


def test_text_is_short_and_shows_the_floor(data: tuple[np.ndarray, np.ndarray]) -> None:
    text = str(evaluate(*data, ["a", "b", "a_name_that_is_rather_long", "d"], n_redraws=10))
    for word in ("1,500 rows", "floor", "a_name_that_is_rather_long"):
        assert word in text
    rng = np.random.default_rng(0)
    many = evaluate(rng.dirichlet(np.ones(100), 500), rng.integers(100, size=500), n_redraws=5)
    assert len(str(many).splitlines()) < 25
    assert max(map(len, str(many).splitlines())) <= 80


def test_result_is_frozen_and_can_be_pickled(data: tuple[np.ndarray, np.ndarray]) -> None:
    result = evaluate(*data, n_redraws=5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.ece = 0.0  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(result)).to_dict() == result.to_dict()  # noqa: S301


def test_floor_is_reproducible(data: tuple[np.ndarray, np.ndarray]) -> None:
    a, b, c = (evaluate(*data, n_redraws=5, rng=r).floor for r in (0, np.random.default_rng(0), 1))
    assert a == b
    assert a != c


@pytest.fixture(scope="module")
def scores() -> tuple[np.ndarray, np.ndarray]:
    """Logits, and labels drawn from a softmax that is less sharp."""
    rng = np.random.default_rng(4)
    logits = 3 * rng.normal(size=(1200, 4))
    return logits, (0.5 * logits + rng.gumbel(size=logits.shape)).argmax(axis=1)


def test_logits_and_calibrators(scores: tuple[np.ndarray, np.ndarray]) -> None:
    logits, labels = (a[600:] for a in scores)
    calibrator = hetcal.TemperatureScaling().fit(*(a[:600] for a in scores))
    plain = evaluate(logits=logits, labels=labels, n_redraws=5)
    assert plain.nll == pytest.approx(metrics.nll(softmax(logits), labels))
    calibrated = evaluate(logits=logits, labels=labels, calibrator=calibrator, n_redraws=5)
    assert calibrated.nll == pytest.approx(metrics.nll(calibrator.predict_proba(logits), labels))
    batched = evaluate(logits=hetcal.Batches(logits, labels, batch_rows=200), n_redraws=5)
    assert batched.nll == pytest.approx(plain.nll)


def test_class_names_come_from_the_columns() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([[0.9, 0.1], [0.2, 0.8]], columns=["cat", "dog"])
    assert evaluate(frame, ["cat", "dog"], n_redraws=5).classes.name == ("cat", "dog")


def test_a_calibrator_warns_about_rows_of_its_fit(scores: tuple[np.ndarray, np.ndarray]) -> None:
    logits, labels = scores
    calibrator = hetcal.TemperatureScaling().fit(logits, labels)
    with pytest.warns(hetcal.CalibrationWarning, match="fitted"):
        evaluate(logits=logits, labels=labels, calibrator=calibrator, n_redraws=5)


@pytest.mark.parametrize(
    ("options", "error", "name"),
    [
        ({"class_names": ["a"]}, ValueError, "class_names"),
        ({"probs": [0.6], "predicted": [4], "class_names": ["a"]}, ValueError, "class_names"),
        ({"n_bins": 0}, ValueError, "n_bins"),
        ({"n_redraws": 0}, ValueError, "n_redraws"),
        ({"probs": [[1.4, -0.4]]}, ValueError, "probs"),
        ({"probs": None}, ValueError, "probs"),
        ({"logits": [[1.0, 2.0]]}, ValueError, "probs"),
        ({"probs": None, "logits": [[1.0, 2.0]], "predicted": [0]}, ValueError, "predicted"),
        ({"calibrator": "ts"}, TypeError, "calibrator"),
    ],
)
def test_input_is_validated(options: dict[str, object], error: type[Exception], name: str) -> None:
    with pytest.raises(error, match=f"{name} must"):
        evaluate(**({"probs": [[0.4, 0.6]], "labels": [0]} | options))  # type: ignore[arg-type]
