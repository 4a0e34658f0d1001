from __future__ import annotations

import dataclasses
import json
import pickle
import sys

import numpy as np
import pytest

from hetcal import metrics
from hetcal.metrics import evaluate, noise_floor

PLAIN = ("accuracy", "nll", "brier", "ece", "max_ece", "avg_ece", "smooth_ece", "debiased_ece")


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([0.3, 0.3, 0.3, 1e-9], size=1500)
    probs[:, 3], probs = 0, probs / probs[:, :3].sum(axis=1, keepdims=True)
    probs[:, 3] = 0
    return probs, rng.integers(4, size=1500)


def test_every_number_is_that_of_its_function(data: tuple[np.ndarray, np.ndarray]) -> None:
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


@pytest.mark.parametrize("n_rows", [400, 30_000])  # redrawn row by row, and by sub-cells
def test_options_reach_the_floor(n_rows: int) -> None:
    rng = np.random.default_rng(0)
    probs, labels = rng.dirichlet(np.ones(3), size=n_rows), rng.integers(3, size=n_rows)
    options = {"n_bins": 7, "n_redraws": 150, "rng": 5}
    result, floor = evaluate(probs, labels, **options), noise_floor(probs, **options)
    assert result.floor == pytest.approx({name: floor.mean[name] for name in result.floor})
    assert result.floor_q95 == pytest.approx({name: floor.quantile(name, 0.95) for name in result.floor})


def test_classes_by_hand_with_one_row_and_with_none() -> None:
    table = evaluate([[0.9, 0.1, 0], [0.9, 0.1, 0], [0.2, 0.8, 0]], [0, 1, 1], n_redraws=5).classes
    assert table.accuracy == pytest.approx([0.5, 1, np.nan], nan_ok=True)
    assert table.confidence == pytest.approx([0.9, 0.8, np.nan], nan_ok=True)
    assert table.signed_gap == pytest.approx([0.4, -0.2, np.nan], nan_ok=True)


def test_top1_form(data: tuple[np.ndarray, np.ndarray]) -> None:
    probs, labels = data
    full = evaluate(probs, labels)
    top1 = evaluate(probs.max(axis=1), labels, predicted=probs.argmax(axis=1))
    for name in ("accuracy", "ece", "max_ece", "avg_ece", "smooth_ece", "debiased_ece", "floor"):
        assert getattr(full, name) == getattr(top1, name)
    for name in ("nll", "brier"):
        expected = getattr(metrics, name)(probs.max(axis=1), labels, predicted=probs.argmax(axis=1))
        assert getattr(top1, name) == pytest.approx(expected)
    assert evaluate([0.9], [0], list("abc"), predicted=[0]).n_classes == 3  # names say how many there are


def test_rows_in_another_order_give_the_same(data: tuple[np.ndarray, np.ndarray]) -> None:
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
    assert result.max_ece > 0.08  # which looks bad without its floor
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
    with pytest.raises(ImportError, match=r'pip install "hetcal\[files\]"'):
        evaluate(*data, n_redraws=10).to_frame()


def test_text_is_short_and_shows_the_floor(data: tuple[np.ndarray, np.ndarray]) -> None:
    text = str(evaluate(*data, ["a", "b", "a_name_that_is_rather_long", "d"], n_redraws=10))
    assert "1,500 rows, 4 classes, 15 bins" in text
    assert "floor 95%" in text
    assert "a_name_that_is_rather_long" in text
    rng = np.random.default_rng(0)
    many = evaluate(rng.dirichlet(np.ones(100), 500), rng.integers(100, size=500), n_redraws=5)
    assert len(str(many).splitlines()) == 17
    assert max(map(len, str(many).splitlines())) <= 80


def test_result_is_frozen_and_can_be_pickled(data: tuple[np.ndarray, np.ndarray]) -> None:
    result = evaluate(*data, n_redraws=5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.ece = 0.0  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(result)).to_dict() == result.to_dict()  # noqa: S301


def test_the_seed_decides(data: tuple[np.ndarray, np.ndarray]) -> None:
    a, b, c = (evaluate(*data, n_redraws=5, rng=r).floor for r in (0, np.random.default_rng(0), 1))
    assert a == b
    assert a != c


def test_errors() -> None:
    with pytest.raises(ValueError, match="class_names must have one entry per class"):
        evaluate([[0.4, 0.6]], [0], ["a"])
    with pytest.raises(ValueError, match="class_names must have one entry per class"):
        evaluate([0.6], [4], ["a"], predicted=[0])
    with pytest.raises(ValueError, match="n_bins must be"):
        evaluate([[0.4, 0.6]], [0], n_bins=0)
    with pytest.raises(ValueError, match="n_redraws must be"):
        evaluate([[0.4, 0.6]], [0], n_redraws=0)
    with pytest.raises(ValueError, match="probs must lie in"):
        evaluate([[1.4, -0.4]], [0])
