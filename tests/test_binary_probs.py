"""One probability per row is P(class 1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hetcal

RNG = np.random.default_rng(3)
SCORES = RNG.normal(size=400) * 2
POSITIVE = 1 / (1 + np.exp(-2 * SCORES))  # over-confident
Y = (RNG.random(400) < 1 / (1 + np.exp(-SCORES))).astype(int)
BOTH = np.stack([1 - POSITIVE, POSITIVE], axis=1)
THREE = hetcal.Identity().fit(5 * np.eye(3), [0, 1, 2])
TEXTS = np.array(["ham", "spam"])[Y]


def ts() -> Any:
    return hetcal.TemperatureScaling()


@pytest.mark.parametrize("shape", [(400,), (400, 1)])
def test_one_probability_per_row_equals_two_columns(shape: tuple[int, ...]) -> None:
    p = POSITIVE.reshape(shape)
    one, two = ts().fit(probs=p, labels=Y), ts().fit(probs=BOTH, labels=Y)
    assert one.alpha_ == two.alpha_
    assert one.prob_floor_ == two.prob_floor_
    np.testing.assert_array_equal(one.predict_proba(probs=p), two.predict_proba(probs=BOTH))
    assert hetcal.evaluate(p, Y).to_dict() == hetcal.evaluate(BOTH, Y).to_dict()
    assert hetcal.diagnose(probs=p, labels=Y).to_dict() == hetcal.diagnose(probs=BOTH, labels=Y).to_dict()
    np.testing.assert_array_equal(hetcal.to_logits(p), hetcal.to_logits(BOTH))


def test_lists_series_and_tensors() -> None:
    pandas, torch = pytest.importorskip("pandas"), pytest.importorskip("torch")
    model = ts().fit(probs=pandas.Series(POSITIVE), labels=pandas.Series(Y))
    expected = model.predict_proba(probs=BOTH[:5])
    np.testing.assert_array_equal(model.predict_proba(probs=POSITIVE[:5].tolist()), expected)
    tensor = model.predict_proba(probs=torch.tensor(POSITIVE[:5]))
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-12)


def test_evaluation_of_a_calibrator() -> None:
    model = ts().fit(probs=POSITIVE[:200], labels=Y[:200])
    one = hetcal.evaluate(POSITIVE[200:], Y[200:], calibrator=model)
    two = hetcal.evaluate(BOTH[200:], Y[200:], calibrator=model)
    assert one.to_dict() == two.to_dict()


def test_a_named_column_names_class_1_and_text_labels_name_class_0() -> None:
    frame = pytest.importorskip("pandas").DataFrame({"prob_spam": POSITIVE})
    model = ts().fit(probs=frame, labels=TEXTS)
    assert model.class_names_ == ["ham", "spam"]
    assert model.alpha_ == ts().fit(probs=BOTH, labels=Y).alpha_
    np.testing.assert_array_equal(model.predict_proba(probs=frame), model.predict_proba(probs=BOTH))
    assert hetcal.evaluate(frame, TEXTS).classes.name == ("ham", "spam")
    assert [c.name for c in hetcal.diagnose(probs=frame, labels=Y).classes] == ["not spam", "spam"]
    named = ts().fit(probs=frame, labels=["no" if y == 0 else "yes" for y in Y], class_names=["no", "yes"])
    assert named.class_names_ == ["no", "yes"]


def test_the_type_of_the_numbers_is_kept() -> None:
    frame = pytest.importorskip("pandas").DataFrame({"prob_spam": POSITIVE.astype(np.float32)})
    model = ts().fit(probs=frame, labels=TEXTS)
    for probs in (frame, frame["prob_spam"], BOTH.astype(np.float32)):
        assert model.predict_proba(probs=probs).dtype == np.float32


def test_a_named_column_is_matched_with_the_classes_of_the_fit() -> None:
    frame = pytest.importorskip("pandas").DataFrame({"prob_spam": POSITIVE})
    for order in ([0, 1], [1, 0]):
        names = [["ham", "spam"][k] for k in order]
        model = hetcal.VectorScaling().fit(probs=BOTH[:, order], labels=TEXTS, class_names=names)
        expected = model.predict_proba(probs=BOTH[:, order])
        np.testing.assert_allclose(model.predict_proba(probs=frame), expected[:, order], rtol=1e-12)


@pytest.mark.parametrize("labels", [Y, Y[:, None], Y.astype(object)], ids=["flat", "column", "objects"])
def test_confidences_without_predicted_classes_cause_a_warning(labels: Any) -> None:
    with pytest.warns(hetcal.CalibrationWarning, match="P\\(class 1\\)"):
        hetcal.evaluate(BOTH.max(axis=1), labels)
    likely = np.linspace(0.8, 1, 400)
    hetcal.evaluate(likely, np.arange(400) % 10 > 0)  # class 1 is in fact frequent


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ts().fit(probs=POSITIVE, labels=Y * 2), "labels must be 0 or 1 .* got 2 at row"),
        (lambda: ts().fit(probs=POSITIVE, labels=2 * Y[:, None]), "labels must be 0 or 1 .* got 2 at row"),
        (lambda: hetcal.evaluate(SCORES, Y), "probs must lie in .*binary_logits"),
        (lambda: hetcal.evaluate(np.where(Y, np.nan, 0.5), Y), "probs must be finite, got NaN"),
        (lambda: ts().fit(BOTH[:, 1], Y), "logits must be two-dimensional"),
        (lambda: THREE.predict_proba(probs=POSITIVE), "column for each class"),
    ],
)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_errors_of_named_columns() -> None:
    frame = pytest.importorskip("pandas").DataFrame
    with pytest.raises(ValueError, match="got only 'prob_0'"):
        ts().fit(probs=frame({"prob_0": POSITIVE}), labels=Y)
    ts().fit(probs=frame({"prob_1": 1 - POSITIVE}), labels=1 - Y)
    ts().fit(probs=frame({"prob_0": POSITIVE, "prob_1": 1 - POSITIVE}), labels=1 - Y)
    three = np.where(np.arange(400) < 3, "eggs", TEXTS)
    with pytest.raises(ValueError, match=r"labels must be 'spam' or .* got the other names 'eggs', 'ham'"):
        ts().fit(probs=frame({"prob_spam": POSITIVE}), labels=three)


def test_names_in_the_wrong_order_are_refused() -> None:
    frame = pytest.importorskip("pandas").DataFrame({"prob_spam": POSITIVE})
    with pytest.raises(ValueError, match=r"class_names must list 'spam' second, .*; swap the names"):
        ts().fit(probs=frame, labels=Y, class_names=["spam", "ham"])
    ts().fit(probs=frame, labels=Y, class_names=["ham", "spam"])
