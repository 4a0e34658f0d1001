"""Fits to rows in batches agree with fits in memory, for every kind of source."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import hetcal
from hetcal import Batches
from hetcal._numeric import folds
from hetcal.calibrators import auto, base


@pytest.fixture
def sample(make_sample):
    z, y, _ = make_sample(3000, 6, 0, dtype=np.float32)
    rng = np.random.default_rng(5)
    return z, y, rng.uniform(0.2, 3, size=3000), rng.choice(["a", "b", "c"], size=3000)


def as_batches(
    *arrays, bounds=(0, 1, 700, 701, 2200, 3000), names=("logits", "labels", "sample_weight", "groups")
):
    """The arrays as a list of batches of different sizes."""
    return [
        {name: array[a:b] for name, array in zip(names, arrays, strict=False) if array is not None}
        for a, b in pairwise(bounds)
    ]


CALIBRATORS = {
    "TS": lambda: hetcal.TemperatureScaling(),
    "CTS": lambda: hetcal.ClassWiseTemperatureScaling(),
    "CTS 0.1": lambda: hetcal.ClassWiseTemperatureScaling(0.1),
    "CTS bayes": lambda: hetcal.ClassWiseTemperatureScaling("bayes"),
    "CTS bundles": lambda: hetcal.ClassWiseTemperatureScaling(bundles=3),
    "CTS table": lambda: hetcal.ClassWiseTemperatureScaling(bundles=[0, 0, 1, 1, 2, 2]),
    "VS": lambda: hetcal.VectorScaling(),
    "VS ridge": lambda: hetcal.VectorScaling(ridge=0.1),
    "VS centred": lambda: hetcal.VectorScaling(ridge=0.1, center=True),
    "Platt": lambda: hetcal.PlattScaling(),
    "ClassWise TS": lambda: hetcal.ClassWise(hetcal.TemperatureScaling(), 0.2),
    "ClassWise Platt": lambda: hetcal.ClassWise(hetcal.PlattScaling(), 0.5),
    "ClassWise VS": lambda: hetcal.ClassWise(hetcal.VectorScaling(ridge=0.1)),
    "Identity": lambda: hetcal.Identity(),
    "Chain": lambda: hetcal.Chain(
        [hetcal.VectorScaling(0.1, center=True, keep_decision=True), platt_bayes()]
    ),
    "Mixture": lambda: hetcal.Mixture([hetcal.PlattScaling(), hetcal.VectorScaling(0.1)], [1, 3]),
    "Auto": lambda: hetcal.AutoCalibrator(cv=3),
    "Auto free": lambda: hetcal.AutoCalibrator(cv=3, keep_decision=False),
}


def platt_bayes():
    return hetcal.ClassWise(hetcal.PlattScaling(pool=True), gamma="bayes")


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", CALIBRATORS)
def test_same_as_in_memory(sample, name, weighted):
    z, y, w, _ = sample
    w = w if weighted else None
    in_memory = CALIBRATORS[name]().fit(z, y, sample_weight=w)
    batched = CALIBRATORS[name]().fit(Batches(as_batches(z, y, w)))
    np.testing.assert_allclose(batched.predict_proba(z), in_memory.predict_proba(z), atol=2e-6)
    assert batched.n_features_in_ == 6
    for attribute in ("alpha_", "n_samples_", "parameters_"):
        if hasattr(in_memory, attribute):
            np.testing.assert_allclose(getattr(batched, attribute), getattr(in_memory, attribute), rtol=2e-5)


@pytest.mark.parametrize("name", ["CTS", "CTS 0.1", "ClassWise Platt", "Chain", "Auto"])
def test_groups_are_part_of_the_batches(sample, name):
    z, y, w, g = sample
    in_memory = CALIBRATORS[name]().fit(z, y, sample_weight=w, groups=g)
    source = Batches(as_batches(z, y, w, g))
    batched = CALIBRATORS[name]().fit(source)
    expected = in_memory.predict_proba(z, groups=g)
    np.testing.assert_allclose(batched.predict_proba(z, groups=g), expected, atol=2e-6)
    probs = np.concatenate([p for p, _, _, _ in batched.predict_proba(source)])
    np.testing.assert_allclose(probs, expected, atol=2e-6)
    with pytest.raises(ValueError, match="groups must"):
        next(iter(batched.predict_proba(Batches(as_batches(z, y)))))


def test_cross_validated_gamma(sample):
    z, y, _, _ = sample
    in_batches = hetcal.ClassWiseTemperatureScaling("cv").fit(Batches(as_batches(z, y)))
    repeated = hetcal.ClassWiseTemperatureScaling("cv").fit(Batches(as_batches(z, y)))
    in_memory = hetcal.ClassWiseTemperatureScaling("cv").fit(z, y)
    assert in_batches.gamma_ == repeated.gamma_
    # _numeric/test_folds.py compares the folds of all sources more strictly.
    np.testing.assert_allclose(in_batches.choice_["nll"], in_memory.choice_["nll"], rtol=0.01)
    np.testing.assert_allclose(in_batches.choice_["gamma"][:-1], in_memory.choice_["gamma"][:-1], rtol=1e-4)


def biased_sample(n_classes):
    """Logits with a bias that depends on the class, labels, weights (some of them zero) and groups."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(3000, n_classes)) * 2
    y = (0.7 * z + rng.gumbel(size=z.shape)).argmax(axis=1)
    weight = rng.uniform(0.2, 3, size=3000) * (rng.random(3000) < 0.9)
    return z + np.linspace(0, 1, n_classes), y, weight, rng.choice(["a", "b"], size=3000)


@pytest.fixture
def cross_validate_few_rows(monkeypatch):
    """Let `AutoCalibrator` cross-validate a sample of about 500 rows, drawn as for very many rows."""
    monkeypatch.setattr(auto, "_MAX_CV_ROWS", 500)
    monkeypatch.setattr(auto, "_MAX_CV_ROWS_PER_CLASS", 100)
    monkeypatch.setattr(folds, "_FEW_ROWS", 0)


@pytest.mark.usefixtures("cross_validate_few_rows")
@pytest.mark.parametrize("options", [{}, {"sample_weight"}, {"groups"}])
@pytest.mark.parametrize(("n_classes", "keep"), [(2, True), (2, False), (5, True), (5, False)])
def test_auto_fits_members_to_all_batches(n_classes, keep, options):
    z, y, w, g = biased_sample(n_classes)
    arrays = {name: array for name, array in (("sample_weight", w), ("groups", g)) if name in options}
    in_memory = hetcal.AutoCalibrator(keep_decision=keep).fit(z, y, **arrays)
    batches = as_batches(z, y, arrays.get("sample_weight"), arrays.get("groups"))
    batched = hetcal.AutoCalibrator(keep_decision=keep).fit(Batches(batches))
    assert batched.best_name_ == in_memory.best_name_
    for table in zip(batched.candidates_, in_memory.candidates_, strict=True):
        assert table[0]["weight"] == pytest.approx(table[1]["weight"], abs=1e-9)
    groups = {name: array for name, array in arrays.items() if name == "groups"}
    expected = in_memory.predict_proba(z, **groups)
    np.testing.assert_allclose(batched.predict_proba(z, **groups), expected, atol=1e-8)


@pytest.mark.usefixtures("cross_validate_few_rows")
def test_auto_does_not_depend_on_the_order_of_rows_in_batches():
    z, y, _, _ = biased_sample(4)
    order = np.random.default_rng(1).permutation(3000)
    first = hetcal.AutoCalibrator(cv=3).fit(Batches(as_batches(z, y)))
    mixed = hetcal.AutoCalibrator(cv=3).fit(Batches(z[order], y[order], batch_rows=999))
    np.testing.assert_allclose(mixed.predict_proba(z), first.predict_proba(z), atol=1e-8)


@pytest.mark.usefixtures("cross_validate_few_rows")
@pytest.mark.filterwarnings("ignore:the optimal inverse temperature:hetcal.CalibrationWarning")
def test_auto_limits_the_confidence_of_batches_without_errors():
    z, _, _, _ = biased_sample(3)
    y = z.argmax(axis=1)
    z[np.arange(3000), y] += 1
    in_memory = hetcal.AutoCalibrator().fit(z, y)
    batched = hetcal.AutoCalibrator().fit(Batches(as_batches(z, y)))
    assert {c["name"] for c in batched.candidates_} == {"Identity", "TS"}
    assert 0.99 < batched.predict_proba(z).max(axis=1).mean() < 0.05 ** (1 / 3000)
    np.testing.assert_allclose(batched.predict_proba(z), in_memory.predict_proba(z), atol=1e-8)


def test_auto_warns_about_copies_in_batches(sample):
    z, y, _, _ = sample
    with pytest.warns(hetcal.CalibrationWarning, match="3000 copies"):
        hetcal.AutoCalibrator({"TS": hetcal.TemperatureScaling()}).fit(Batches([(z, y), (z, y)]))


def test_a_memory_mapped_file(sample, tmp_path, monkeypatch):
    z, y, _, groups = sample
    np.save(tmp_path / "z.npy", z)
    np.save(tmp_path / "y.npy", y)
    logits, labels = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("z", "y"))
    expected = hetcal.ClassWiseTemperatureScaling().fit(z, y).alpha_
    calibrator = hetcal.ClassWiseTemperatureScaling().fit(Batches(logits, labels, batch_rows=171))
    np.testing.assert_allclose(calibrator.alpha_, expected, rtol=1e-6)
    # A large mapped file is read in batches automatically. A slice of it is treated like any array.
    calls = []
    monkeypatch.setattr(base, "_LARGE", 1)
    monkeypatch.setattr(base, "Batches", lambda *a, **k: calls.append(1) or Batches(*a, **k))
    calibrator = hetcal.ClassWiseTemperatureScaling().fit(logits, labels)
    np.testing.assert_allclose(calibrator.alpha_, expected, rtol=1e-6)
    assert len(calls) == 1
    hetcal.ClassWiseTemperatureScaling().fit(logits[:2000], labels[:2000])
    assert len(calls) == 1
    by_group = hetcal.ClassWiseTemperatureScaling().fit(logits, labels, groups=groups)
    assert len(calls) == 2
    np.testing.assert_array_equal(by_group.groups_, np.unique(groups))


def test_rows_of_a_mapped_file_are_read_into_memory(sample, tmp_path):
    z, y, _, _ = sample
    np.save(tmp_path / "z.npy", z)
    logits = np.load(tmp_path / "z.npy", mmap_mode="r")
    pieces = [(a, isinstance(a, np.memmap)) for a, _, _, _ in Batches(logits, y, batch_rows=999)]
    assert not any(mapped for _, mapped in pieces)
    np.testing.assert_array_equal(np.concatenate([a for a, _ in pieces]), z)
    # Fortran order cannot be read row by row.
    np.save(tmp_path / "f.npy", np.asfortranarray(z))
    wide = np.load(tmp_path / "f.npy", mmap_mode="r")
    np.testing.assert_array_equal(np.concatenate([a for a, _, _, _ in Batches(wide, y, batch_rows=999)]), z)


@pytest.mark.parametrize("lists", [False, True])
def test_parquet(sample, tmp_path, lists):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    z, y, w, g = sample
    columns = (
        {"logits": pa.FixedSizeListArray.from_arrays(z.ravel(), 6)}
        if lists
        else {f"class_{j}": z[:, j] for j in range(6)}
    )
    table = pa.table({"label": y, **columns, "w": w, "site": g})
    pq.write_table(table.slice(0, 1111), tmp_path / "a.parquet", row_group_size=100)
    pq.write_table(table.slice(1111), tmp_path / "b.parquet")
    source = Batches.from_parquet(tmp_path, sample_weight="w", groups="site", batch_rows=250)
    from_parquet = hetcal.ClassWiseTemperatureScaling().fit(source)
    in_memory = hetcal.ClassWiseTemperatureScaling().fit(z, y, sample_weight=w, groups=g)
    np.testing.assert_allclose(from_parquet.alpha_, in_memory.alpha_, rtol=1e-6)
    columns_of_logits = "logits" if lists else [f"class_{j}" for j in range(6)]
    named = Batches.from_parquet(tmp_path / "b.parquet", logits=columns_of_logits)
    assert named.n_classes == 6
    with pytest.raises(ValueError, match=r"column 'nope' must .*got label"):
        Batches.from_parquet(tmp_path, labels="nope")


def test_parquet_that_cannot_be_read(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    (tmp_path / "x.parquet").write_text("no parquet")
    with pytest.raises(ValueError, match="path must"):
        Batches.from_parquet(tmp_path / "x.parquet")
    pq.write_table(pa.table({"label": [0, 1], "z": [[1.0, 2.0], [1.0]]}), tmp_path / "ragged.parquet")
    with pytest.raises(ValueError, match="column 'z' must"):
        next(iter(Batches.from_parquet(tmp_path / "ragged.parquet")))
    pq.write_table(
        pa.table({"label": [0, None], "a": [1.0, 2.0], "b": [0.0, 1.0]}), tmp_path / "null.parquet"
    )
    with pytest.raises(ValueError, match=r"column 'label' must .*got 1"):
        next(iter(Batches.from_parquet(tmp_path / "null.parquet")))
    with pytest.raises(TypeError, match=r"path must .*got 3"):
        Batches.from_parquet(3)


def test_a_function_that_returns_a_generator(sample):
    z, y, _, _ = sample

    def batches():
        for part in np.array_split(np.arange(3000), 7):
            yield z[part], y[part]

    calibrator = hetcal.TemperatureScaling().fit(Batches(batches))
    assert calibrator.alpha_ == pytest.approx(hetcal.TemperatureScaling().fit(z, y).alpha_, rel=1e-6)
    with pytest.raises(TypeError, match="generator"):
        Batches(batches())


def test_predictions_are_batches(sample):
    z, y, _, _ = sample
    source = Batches(as_batches(z, y))
    cal = hetcal.ClassWiseTemperatureScaling().fit(source)
    predictions = cal.predict_proba(source)
    assert isinstance(predictions, Batches)
    np.testing.assert_array_equal(np.concatenate([p for p, _, _, _ in predictions]), cal.predict_proba(z))
    np.testing.assert_array_equal(np.concatenate([labels for _, labels, _, _ in predictions]), y)


def test_rows_of_weight_zero_do_not_count(sample):
    z, y, w, g = sample
    w = np.where(np.arange(3000) % 3 == 0, 0.0, w)
    positive = w > 0
    batched = hetcal.ClassWiseTemperatureScaling().fit(
        Batches(as_batches(z, y, w, g, bounds=(0, 1000, 3000)))
    )
    in_memory = hetcal.ClassWiseTemperatureScaling().fit(
        z[positive], y[positive], sample_weight=w[positive], groups=g[positive]
    )
    np.testing.assert_allclose(batched.alpha_, in_memory.alpha_, rtol=1e-6)


@pytest.mark.parametrize(
    "calibrator",
    [
        hetcal.TopLabelIsotonic(),
        hetcal.TopLabelHistogram(),
        hetcal.ClassWise(hetcal.TopLabelIsotonic()),
        hetcal.Chain([hetcal.TemperatureScaling(), hetcal.TopLabelIsotonic()]),
        hetcal.Mixture([hetcal.TemperatureScaling(), LogisticRegression()]),
        hetcal.AutoCalibrator({"isotonic": hetcal.TopLabelIsotonic()}),
    ],
)
def test_calibrators_that_need_all_rows_refuse_batches(sample, calibrator):
    z, y, _, _ = sample
    with pytest.raises(TypeError, match="logits must"):
        calibrator.fit(Batches(as_batches(z, y)))


def test_losses_that_need_all_rows_refuse_batches(sample):
    z, y, _, _ = sample
    with pytest.raises(TypeError, match=r"logits must .*loss='ece'"):
        hetcal.ClassWiseTemperatureScaling(loss="ece").fit(Batches(as_batches(z, y)))


def test_probabilities_are_refused(sample):
    z, y, _, _ = sample
    p = hetcal.Identity().fit(z, y).predict_proba(z)
    with pytest.raises(ValueError, match="logits must"):
        hetcal.TemperatureScaling().fit(Batches(as_batches(p, y)))


BAD = {
    "different number of columns": (lambda z, y: [(z, y), (z[:, :5], y)], "batch 1: .*must .*6"),
    "NaN": (lambda z, y: [(z, y), (z * np.nan, y)], "batch 1: logits must .*got NaN at row 0"),
    "label too large": (lambda z, y: [(z, y + 6)], "batch 0: labels must"),
    "no labels": (lambda z, _: [{"logits": z}], "a batch must"),
    "unknown key": (
        lambda z, y: [{"logits": z, "labels": y, "w": y}],
        "a batch must",
    ),
    "no batches": (lambda *_: [], "at least one row"),
    "tuple of four": (lambda z, y: [(z, y, y, y)], "a batch must"),
    "array instead of a tuple": (lambda z, _: [z], "a batch must"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_batches(sample, case):
    z, y, _, _ = sample
    make, message = BAD[case]
    with pytest.raises((TypeError, ValueError), match=message):
        hetcal.TemperatureScaling().fit(Batches(make(z, y)))


def test_bad_arguments(sample):
    z, y, w, _ = sample
    with pytest.raises(ValueError, match="labels must"):
        hetcal.TemperatureScaling().fit(Batches([(z, y)]), y)
    with pytest.raises(ValueError, match="groups must"):
        hetcal.ClassWiseTemperatureScaling().fit(Batches(z, y), groups=y)
    with pytest.raises(ValueError, match="labels must"):
        Batches(z)
    with pytest.raises(ValueError, match=r"logits must .*got shape \(3000,\)"):
        Batches(z[:, 0], y)
    with pytest.raises(ValueError, match="sample_weight must"):
        Batches([(z, y)], sample_weight=w)
    with pytest.raises(ValueError, match=r"labels must .*got shape \(2999,\)"):
        Batches(z, y[1:])
    with pytest.raises(ValueError, match=r"batch_rows must .*got 0"):
        Batches(z, y, batch_rows=0)
    with pytest.raises(TypeError, match="source must"):
        Batches("z.npy")
    with pytest.raises(ValueError, match=r"labels must .*got None"):
        hetcal.TemperatureScaling().fit(z)


def test_missing_weights_are_refused(sample):
    z, y, _, _ = sample
    with pytest.raises(ValueError, match="batch 0: sample_weight"):
        hetcal.TemperatureScaling().fit(Batches([(z, y, np.full(3000, None)), (z, y, np.ones(3000))]))


@pytest.mark.parametrize("name", ["sample_weight", "groups"])
def test_a_part_is_in_every_batch_or_in_none(sample, name):
    z, y, w, _ = sample
    with_part, without = {"logits": z, "labels": y, name: np.ceil(w).astype(int)}, {"logits": z, "labels": y}
    for batches in ([with_part, without], [without, with_part]):
        with pytest.raises(ValueError, match=f"batch 1: {name} must"):
            hetcal.TemperatureScaling().fit(Batches(batches))


def test_all_weights_of_a_batch_may_be_zero(sample):
    z, y, w, _ = sample
    w = w.copy()
    w[:701] = 0
    batched = hetcal.ClassWiseTemperatureScaling().fit(Batches(as_batches(z, y, w)))
    in_memory = hetcal.ClassWiseTemperatureScaling().fit(z[701:], y[701:], sample_weight=w[701:])
    np.testing.assert_allclose(batched.alpha_, in_memory.alpha_, rtol=1e-6)
    with pytest.raises(ValueError, match="sample_weight must"):
        hetcal.TemperatureScaling().fit(Batches(as_batches(z, y, 0 * w)))
    with pytest.raises(ValueError, match="sample_weight must"):
        Batches(as_batches(z, y, 0 * w)).reduce(lambda block: (block.rows.z,))


def test_groups_of_two_types(sample):
    z, y, _, g = sample
    batches = [{"logits": z, "labels": y, "groups": g}, {"logits": z, "labels": y, "groups": y}]
    with pytest.raises(TypeError, match="groups must"):
        hetcal.ClassWiseTemperatureScaling().fit(Batches(batches))


def test_lists_of_different_lengths(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(
        pa.table({"label": [0, 1], "z": [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0]]}), tmp_path / "x.parquet"
    )
    with pytest.raises(ValueError, match="column 'z' must"):
        next(iter(Batches.from_parquet(tmp_path / "x.parquet")))


@pytest.mark.parametrize("rows", [0, 1.5, "a", True])
def test_batch_rows_must_be_a_positive_integer(rows):
    with pytest.raises(ValueError, match="batch_rows must"):
        Batches(np.zeros((2, 2)), [0, 1], batch_rows=rows)


def test_changes_to_a_copy_on_write_map_are_read(sample, tmp_path):
    np.save(tmp_path / "z.npy", sample[0])
    mapped = np.load(tmp_path / "z.npy", mmap_mode="c")
    mapped *= 2
    (batch, *_), *_ = Batches(mapped, sample[1])
    np.testing.assert_array_equal(batch, 2 * sample[0][: len(batch)])


def test_groups_without_weight_are_left_out(sample):
    z, y, _, _ = sample
    g, w = np.resize(["a", "b"], len(y)), np.resize([1.0, 0.0], len(y))
    batches = Batches(z, y, groups=g, sample_weight=w, batch_rows=200)
    from_batches = hetcal.ClassWiseTemperatureScaling().fit(batches)
    from_arrays = hetcal.ClassWiseTemperatureScaling().fit(z, y, groups=g, sample_weight=w)
    assert from_batches.groups_ == from_arrays.groups_ == ["a"]


def test_batch_rows_need_an_array():
    with pytest.raises(ValueError, match=r"batch_rows must .*unless source is an array, got 7; "):
        Batches(lambda: iter([]), batch_rows=7)


def test_ragged_weights_are_refused():
    with pytest.raises(ValueError, match="sample_weight must"):
        Batches(np.zeros((2, 2)), [0, 1], sample_weight=[[1.0], [1.0, 2.0]])


@pytest.mark.parametrize("name", ["logits", "labels", "sample_weight", "groups"])
def test_masked_entries_are_refused(name):
    arrays = {
        "logits": np.eye(3)[[0, 1, 2, 0]] * 2,
        "labels": np.array([0, 1, 2, 0]),
        "sample_weight": np.zeros(4),
        "groups": np.array([1, 1, 2, 2]),
    }
    mask = np.zeros(arrays[name].shape, bool)
    mask[3] = True
    arrays[name] = np.ma.array(arrays[name], mask=mask)
    with pytest.raises(ValueError, match=rf"{name} must .*masked.* at row 3"):
        hetcal.Batches(arrays["logits"], **{k: v for k, v in arrays.items() if k != "logits"}, batch_rows=2)
    with pytest.raises(ValueError, match=rf"batch 0: {name} must .*masked.* at row 3"):
        list(hetcal.Batches([arrays]))


@pytest.mark.parametrize("scale", [1e-170, 1e-3, 1e60])
@pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")
def test_the_scale_of_weights_in_batches(make_sample, scale):
    z, y, _ = make_sample(900, 3, 0)
    w = np.random.default_rng(0).uniform(0.1, 2, size=900)
    for make in (hetcal.TemperatureScaling, lambda: hetcal.ClassWiseTemperatureScaling("bayes")):
        expected = make().fit(z, y, sample_weight=w)
        batched = make().fit(Batches(z, y, sample_weight=scale * w, batch_rows=200))
        np.testing.assert_allclose(batched.alpha_, expected.alpha_, rtol=1e-6)
        np.testing.assert_allclose(batched.alpha_std_, expected.alpha_std_, rtol=1e-6)
