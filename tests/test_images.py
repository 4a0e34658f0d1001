"""Images give the same results as their flattened rows, and the positions of an image stay in one fold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import hetcal
from hetcal import AutoCalibrator, ClassWiseTemperatureScaling, TemperatureScaling
from hetcal._images import flatten_images, is_image
from hetcal.calibrators import base

B, K, H, W = 6, 4, 10, 12
IGNORED = 255


@pytest.fixture
def images() -> tuple[Any, Any]:
    """Logits (B, K, H, W) of an over-confident model, and labels (B, H, W) of which some are ignored."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(B, K, H, W)).astype(np.float32)
    p = np.exp(logits / 2)
    u = rng.random((B, 1, H, W)) * p.sum(axis=1, keepdims=True)
    labels = (u > p.cumsum(axis=1)).sum(axis=1).astype(np.uint8)
    labels[rng.random(labels.shape) < 0.2] = IGNORED
    return logits, labels


def flat(logits: Any, labels: Any, ignore_index: int | None = IGNORED) -> tuple[Any, Any, Any]:
    """Rows, labels and image numbers of the positions, one after the other."""
    rows = [
        (logits[b, :, i, j], labels[b, i, j], b)
        for b, i, j in np.ndindex(*labels.shape)
        if labels[b, i, j] != ignore_index
    ]
    z, y, image = zip(*rows, strict=True)
    return np.array(z), np.array(y), np.array(image)


def test_by_hand() -> None:
    logits = np.arange(8.0).reshape(2, 2, 2)  # two sequences of two positions
    rows = flatten_images(logits, None, np.array([[0, 1], [9, 1]]), 9, groups=["a", "b"])
    assert rows.logits.tolist() == [[0, 2], [1, 3], [5, 7]]
    assert rows.labels.tolist() == [0, 1, 1]
    assert rows.per_row["groups"].tolist() == ["a", "a", "b"]
    groups = rows.fold_groups()
    assert groups is not None
    assert groups.tolist() == [0, 0, 1]
    every = flatten_images(logits, None)
    assert every.logits.tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    np.testing.assert_array_equal(every.restore(every.logits), logits)


def test_only_more_than_two_axes_are_images() -> None:
    z = np.ones((3, 2))
    assert not is_image(z)
    assert not is_image(None)
    assert not is_image([[[1.0]]])
    assert is_image(z[None])
    rows = flatten_images(z, None, [0, 1, 1])
    assert rows.logits is z
    assert rows.labels == [0, 1, 1]
    assert rows.fold_groups() is None


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_one_copy_of_the_same_type(images: Any, dtype: Any) -> None:
    rows = flatten_images(images[0].astype(dtype), None)
    assert rows.logits.dtype == dtype
    assert rows.logits.flags.c_contiguous


@pytest.mark.parametrize(
    "calibrator", [TemperatureScaling(), ClassWiseTemperatureScaling("cv"), AutoCalibrator()]
)
def test_fit_and_predict_as_flattened(images: Any, calibrator: Any) -> None:
    logits, labels = images
    z, y, image = flat(logits, labels)
    expected = clone(calibrator).fit(z, y, fold_groups=image)
    calibrator.fit(logits, labels, ignore_index=IGNORED)
    every = np.moveaxis(logits, 1, -1).reshape(-1, K)
    probs = calibrator.predict_proba(logits)
    assert probs.shape == logits.shape
    assert probs.flags.c_contiguous
    np.testing.assert_array_equal(np.moveaxis(probs, 1, -1).reshape(-1, K), expected.predict_proba(every))
    assert calibrator.fitted_on_ == expected.fitted_on_


def test_fit_with_probs_and_soft_labels(images: Any) -> None:
    logits, labels = images
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    flat_p = np.moveaxis(p, 1, -1).reshape(-1, K)
    model = TemperatureScaling().fit(probs=p, labels=p)
    expected = TemperatureScaling().fit(probs=flat_p, labels=flat_p)
    assert model.alpha_ == expected.alpha_
    restored = np.moveaxis(model.predict_proba(probs=p), 1, -1).reshape(-1, K)
    np.testing.assert_array_equal(restored, expected.predict_proba(probs=flat_p))
    names = np.array(["a", "b", "c", "d"])
    labels = np.where(labels == IGNORED, 0, labels)
    named = TemperatureScaling().fit(logits, names[labels], class_names=names)
    assert named.alpha_ == TemperatureScaling().fit(logits, labels).alpha_


def test_standard_errors_have_the_shape_of_the_images(images: Any) -> None:
    model = TemperatureScaling().fit(*images, ignore_index=IGNORED)
    probs, std = model.predict_proba(images[0], return_std=True)
    expected = model.predict_proba(images[0][:, :, 3, 4], return_std=True)
    for part, rows in zip((probs, std), expected, strict=True):
        np.testing.assert_array_equal(part[:, :, 3, 4], rows)


def test_probability_of_class_1(images: Any) -> None:
    logits, labels = images[0][:, :2], np.minimum(images[1], 1)
    p = 1 / (1 + np.exp(logits[:, :1] - logits[:, 1:]))
    model = TemperatureScaling().fit(probs=p, labels=labels)
    both = np.concatenate([1 - p, p], axis=1)
    np.testing.assert_array_equal(model.predict_proba(probs=p), model.predict_proba(probs=both))


@pytest.mark.parametrize("per_image", [True, False])
def test_weights_and_groups_per_position_or_image(images: Any, per_image: bool) -> None:
    logits, labels = images
    z, y, image = flat(logits, labels)
    rng = np.random.default_rng(1)
    shape = (B,) if per_image else labels.shape
    weight, groups = rng.random(shape), rng.integers(0, 2, shape)
    positions = (weight, groups)
    if per_image:
        positions = tuple(np.broadcast_to(v[:, None, None], labels.shape) for v in positions)
    w, g = (v[labels != IGNORED] for v in positions)
    model = ClassWiseTemperatureScaling("cv")
    model.fit(logits, labels, sample_weight=weight, groups=groups, ignore_index=IGNORED)
    expected = ClassWiseTemperatureScaling("cv").fit(z, y, sample_weight=w, groups=g, fold_groups=image)
    np.testing.assert_array_equal(model.alpha_, expected.alpha_)
    probs = model.predict_proba(logits, groups=groups)
    np.testing.assert_array_equal(
        np.moveaxis(probs, 1, -1)[labels != IGNORED], expected.predict_proba(z, groups=g)
    )


def fold_groups_of(monkeypatch: Any, *arguments: Any, **options: Any) -> Any:
    """Return the fold groups that a fit receives."""
    received = []
    check = base.check_fold_groups
    monkeypatch.setattr(base, "check_fold_groups", lambda *a: received.append(check(*a)) or received[-1])
    TemperatureScaling().fit(*arguments, **options)
    return received[0]


def test_images_stay_in_one_fold(monkeypatch: Any, images: Any) -> None:
    groups = fold_groups_of(monkeypatch, *images, ignore_index=IGNORED)
    np.testing.assert_array_equal(groups, flat(*images)[2])


def test_fold_groups_of_the_user(monkeypatch: Any, images: Any) -> None:
    given = ["a", "a", "b", "b", "b", "c"]
    groups = fold_groups_of(monkeypatch, *images, ignore_index=IGNORED, fold_groups=given)
    np.testing.assert_array_equal(groups, np.array([0, 0, 1, 1, 1, 2])[flat(*images)[2]])


@pytest.mark.parametrize("case", ["one image", "one labelled image", "one weighted image", "one position"])
def test_no_fold_groups_for_unrelated_positions(monkeypatch: Any, images: Any, case: str) -> None:
    logits, labels = images
    options: dict[str, Any] = {"ignore_index": IGNORED}
    if case == "one image":
        logits, labels = logits[:1], labels[:1]
    elif case == "one labelled image":
        labels[1:] = IGNORED
    elif case == "one weighted image":
        options["sample_weight"] = np.eye(B)[2]
    else:
        logits, labels = np.array([[[2.0], [0.0]]] * B), np.arange(B)[:, None] % 3 // 2
    assert fold_groups_of(monkeypatch, logits, labels, **options) is None


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_cross_validation_of_correlated_positions(seed: int) -> None:
    """Similar positions of an image do not make cross-validation choose temperatures that differ more."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(90, 3))
    y = np.array([rng.choice(3, p=np.exp(row) / np.exp(row).sum()) for row in z])
    logits = z[:, :, None] + 0.01 * rng.normal(size=(90, 3, 20))
    labels = np.repeat(y[:, None], 20, axis=1)
    every = np.arange(labels.size).reshape(labels.shape)
    together = ClassWiseTemperatureScaling("cv").fit(logits, labels).choice_
    apart = ClassWiseTemperatureScaling("cv").fit(logits, labels, fold_groups=every).choice_
    gammas = [choice["gamma"][np.argmin(choice["nll"])] for choice in (together, apart)]
    assert gammas[0] < gammas[1]
    assert min(together["nll"]) > min(apart["nll"]) + 0.005


def test_evaluate_and_diagnose_as_flattened(images: Any) -> None:
    logits, labels = images
    z, y, _ = flat(logits, labels)
    expected = hetcal.evaluate(logits=z, labels=y)
    assert hetcal.evaluate(logits=logits, labels=labels, ignore_index=IGNORED).to_dict() == expected.to_dict()
    model = TemperatureScaling().fit(logits[:3], labels[:3], ignore_index=IGNORED)
    probs = model.predict_proba(logits[3:])
    rows = {"labels": labels[3:], "ignore_index": IGNORED}
    direct = hetcal.evaluate(logits=logits[3:], calibrator=model, **rows)
    assert hetcal.evaluate(probs, **rows).to_dict() == direct.to_dict()
    assert hetcal.diagnose(logits, labels, ignore_index=IGNORED) == hetcal.diagnose(z, y)
    flat_p = np.moveaxis(probs, 1, -1)[labels[3:] != IGNORED]
    assert hetcal.diagnose(probs=probs, **rows) == hetcal.diagnose(probs=flat_p, labels=y[-len(flat_p) :])


def test_evaluating_the_images_of_the_fit_warns(images: Any) -> None:
    model = TemperatureScaling().fit(*images, ignore_index=IGNORED)
    with pytest.warns(hetcal.CalibrationWarning, match="rows that it was fitted on"):
        hetcal.evaluate(logits=images[0], labels=images[1], calibrator=model, ignore_index=IGNORED)


# -- rows (n, K) -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["array", "list", "pandas", "polars", "pyarrow"])
def test_ignored_rows(images: Any, kind: str) -> None:
    z, y, _ = flat(*images, ignore_index=None)
    used = y != IGNORED
    names = [f"logit_{c}" for c in "abcd"]
    table: Any = z
    if kind == "list":
        table = z.tolist()
    elif kind == "pandas":
        table = pytest.importorskip("pandas").DataFrame(z, columns=names, index=np.arange(len(z)) + 7)
    elif kind == "polars":
        table = pytest.importorskip("polars").DataFrame(z, schema=names)
    elif kind == "pyarrow":
        table = pytest.importorskip("pyarrow").table(dict(zip(names, z.T, strict=True)))
    weight = np.linspace(1, 2, len(z))
    model = TemperatureScaling().fit(table, y, sample_weight=weight, ignore_index=IGNORED)
    expected = TemperatureScaling().fit(z[used], y[used], sample_weight=weight[used])
    assert model.alpha_ == pytest.approx(expected.alpha_, rel=1e-6)
    assert model.class_names_ == (None if kind in ("array", "list") else list("abcd"))
    result = hetcal.evaluate(logits=table, labels=y, ignore_index=IGNORED)
    assert result.n == used.sum()
    assert result.nll == pytest.approx(hetcal.evaluate(logits=z[used], labels=y[used]).nll, rel=1e-6)


def test_ignored_rows_of_confidences() -> None:
    confidence, predicted, labels = [0.9, 0.8, 0.7, 0.6], [0, 1, 1, 0], [0, -100, 1, 1]
    result = hetcal.evaluate(confidence, labels, predicted=predicted, ignore_index=-100)
    assert result.to_dict() == hetcal.evaluate([0.9, 0.7, 0.6], [0, 1, 1], predicted=[0, 1, 0]).to_dict()
    p = hetcal.evaluate([0.9, 0.2, 0.7], [1, 255, 0], ignore_index=255)  # probabilities of class 1
    assert p.to_dict() == hetcal.evaluate([0.9, 0.7], [1, 0]).to_dict()


def test_an_ignored_class(images: Any) -> None:
    """The label may be that of a class; its column remains."""
    z, y, _ = flat(*images)
    model = TemperatureScaling().fit(z, y, ignore_index=0)
    assert model.alpha_ == TemperatureScaling().fit(z[y != 0], y[y != 0]).alpha_


# -- tensors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tensors_as_arrays(images: Any, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    logits = torch.tensor(images[0]).to(getattr(torch, dtype))
    values, labels = logits.float().numpy(), images[1]
    expected = AutoCalibrator().fit(values, labels, ignore_index=IGNORED)
    for y in (labels, torch.tensor(labels), torch.tensor(labels).long()):
        model = AutoCalibrator().fit(logits, y, ignore_index=IGNORED)
        probs = model.predict_proba(logits)
        assert isinstance(probs, torch.Tensor)
        assert probs.is_contiguous()
        np.testing.assert_array_equal(probs.numpy(), expected.predict_proba(values))
    result = hetcal.evaluate(logits=logits, labels=torch.tensor(labels), ignore_index=IGNORED)
    assert result.n == (labels != IGNORED).sum()


def test_an_8_bit_tensor_does_not_wrap_the_ignored_label() -> None:
    torch = pytest.importorskip("torch")
    labels = torch.tensor([156, 2, 1], dtype=torch.uint8)  # 156 = −100 mod 256
    assert flatten_images(np.zeros((3, 3)), None, labels, -100).labels.tolist() == [156, 2, 1]


def test_images_on_a_device(images: Any) -> None:
    torch = pytest.importorskip("torch")
    logits = torch.empty(images[0].shape, device="meta")
    rows = flatten_images(logits, None, torch.tensor(images[1]))
    assert rows.logits.device.type == "meta"
    assert rows.logits.shape == (B * H * W, K)
    assert rows.restore(rows.logits).shape == images[0].shape


# -- errors ----------------------------------------------------------------------------------------

Z = np.random.default_rng(0).normal(size=(2, 3, 4, 5))
Y = np.where(np.arange(5) < 3, Z.argmax(axis=1), 1)


def fit(logits: Any = Z, labels: Any = Y, **options: Any) -> Any:
    return TemperatureScaling().fit(logits, labels, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fit(labels=Y[:, :3]), r"labels must have shape \(2, 4, 5\), .*got shape \(2, 3, 5\)"),
        (lambda: fit(labels=Y[:, None]), r"labels must have shape .*got shape \(2, 1, 4, 5\)"),
        (lambda: fit(labels=Y.ravel()), r"labels must have shape .*got shape \(40,\)"),
        (lambda: fit(np.moveaxis(Z, 1, -1)), r"labels must have shape .*np.moveaxis\(logits, -1, 1\)"),
        (lambda: fit(Z[:, :1]), r"logits must have at least 2 classes on axis 1, got shape \(2, 1, 4, 5\)"),
        (lambda: fit(Z[:0], Y[:0]), r"logits must have at least one row"),
        (lambda: fit(labels=None), "labels must be given"),
        (lambda: fit(labels=np.full_like(Y, 9), ignore_index=9), "labels must contain a class, got only"),
        (lambda: fit(labels=np.where(Y > 1, 255, Y)), "labels must lie in 0..2, got 255"),
        (lambda: fit(ignore_index=1.5), "ignore_index must be an integer"),
        (lambda: fit(labels=np.abs(Z), ignore_index=1), "ignore_index must be left out for soft labels"),
        (lambda: fit(labels=Y.astype(str), ignore_index=1), "ignore_index must be left out for labels that"),
        (lambda: fit(sample_weight=np.ones(40)), r"sample_weight must have shape \(2, 4, 5\) or \(2,\), got"),
        (lambda: fit(fold_groups=[0, 1, 2]), r"fold_groups must have shape .*got shape \(3,\)"),
        (lambda: fit(Z[:, :, 0, 0], [0, 1], groups=["a"], ignore_index=1), r"groups must have one entry per"),
        (lambda: fit(Z[:, :, 0, 0], [0], ignore_index=1), r"labels must have one entry per row \(2\), got 1"),
        (lambda: fit().predict_proba(np.moveaxis(Z, 1, -1)), r"3 classes on axis 1, .*moveaxis"),
        (lambda: fit().predict_proba(Z[:, [0, 1, 2, 2]]), r"3 classes on axis 1, .*one channel per class"),
        (lambda: fit(hetcal.Batches(Z[:, :, 0, 0], [0, 1]), None, ignore_index=1), "drop the rows with this"),
        (lambda: hetcal.evaluate(Y, Y, predicted=Y), r"probs must be confidences of shape \(n,\)"),
        (lambda: hetcal.evaluate(Y, Y, predicted=Y, ignore_index=1), r"probs must be confidences of shape"),
    ],
)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_remedies_work() -> None:
    assert fit(np.moveaxis(np.moveaxis(Z, 1, -1), -1, 1)).alpha_ == fit().alpha_
    score = Z[:, :1]
    both = np.concatenate([np.zeros_like(score), score], axis=1)
    labels = (score[:, 0] > 0) ^ (np.arange(5) == 0)
    assert fit(both, labels).predict_proba(both).shape == (2, 2, 4, 5)
