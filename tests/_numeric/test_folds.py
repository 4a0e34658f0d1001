"""Folds depend only on the content of rows, split ties evenly and keep groups together."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import hetcal
from hetcal._numeric import device as tensors
from hetcal._numeric import folds
from hetcal._numeric.folds import (
    RowContent,
    count_repeats,
    deal_by_keys,
    deal_groups,
    is_among,
    repeated_keys,
)
from hetcal._numeric.hashing import row_keys
from hetcal._numeric.rows import prepare
from hetcal._numeric.source import MemorySource
from hetcal.calibrators import base

ROUTES = ["memory", "mapped", "batches", "all but one row", "dask", "tensors"]


def coarse(n, levels=20, seed=0):
    """Binary scores with few distinct values, like those of a small forest, and random labels."""
    rng = np.random.default_rng(seed)
    score = rng.integers(1, levels, size=n) / levels
    labels = (rng.random(n) < 0.2 + 0.6 * score).astype(np.int64)
    return np.log(np.stack([1 - score, score], axis=1)), labels


def deal(z, y, n_folds=5, fold_groups=None, **options):
    return MemorySource(prepare(z, y, None), fold_groups=fold_groups).folds(n_folds, **options)


@pytest.fixture(params=["few rows", "many rows"])
def regime(request, monkeypatch):
    if request.param == "many rows":
        monkeypatch.setattr(folds, "_FEW_ROWS", 0)
    return request.param


def test_ties_are_split_evenly(regime):
    z, y = coarse(4000)
    fold = deal(z, y)
    for level in np.unique(z[:, 1]):
        counts = np.bincount(fold[z[:, 1] == level], minlength=5)
        assert np.ptp(counts) <= 1


def test_labels_do_not_influence_the_folds(regime):
    # Among tied rows, the label frequency varies between folds as in a random split.
    z, y = np.zeros((2000, 2)), np.arange(2000) % 2
    z[:, 0] = 1.0
    share = [y[deal(z, y) == f].mean() for f in range(5)]
    assert 0.001 < np.std(share) < 0.06


def same_deal(z, y, mixed):
    """Whether the order of rows leaves the folds unchanged, up to swaps of identical rows."""
    first, reordered = deal(z, y), deal(z[mixed], y[mixed])
    cells = np.unique(np.column_stack([z, y]), axis=0, return_inverse=True)[1].ravel()
    n = cells.max() + 1
    return all(
        np.array_equal(
            np.bincount(cells[first == f], minlength=n),
            np.bincount(cells[mixed][reordered == f], minlength=n),
        )
        for f in range(5)
    )


def test_the_order_of_rows_does_not_matter(regime):
    assert same_deal(*coarse(3000), np.random.default_rng(1).permutation(3000))


def test_the_order_of_rows_with_tied_margins_does_not_matter():
    rng = np.random.default_rng(0)
    other_logits = rng.permuted(np.tile([0.0, -1.0, -2.0, -3.0], (400, 1)), axis=1)
    z = np.column_stack([np.full(400, 1.0), other_logits])
    z[::2, 1:] *= 1.5
    assert same_deal(z, rng.integers(5, size=400), rng.permutation(400))


def test_rows_with_swapped_columns_keep_their_folds(regime):
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(3000, 3)).round(0), rng.integers(3, size=3000)
    assert same_deal(z, y, rng.permutation(3000))


def test_keys_do_not_depend_on_the_order_of_columns_or_a_shift():
    z = np.random.default_rng(0).integers(-8, 8, size=(50, 4)).astype(float)
    np.testing.assert_array_equal(row_keys(z), row_keys(z[:, [2, 0, 3, 1]]))
    np.testing.assert_array_equal(row_keys(z), row_keys(z + 64))
    assert len(np.unique(row_keys(np.random.default_rng(1).normal(size=(50, 4))))) == 50


def test_folds_with_different_salts_are_independent(regime):
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(4000, 3)), rng.integers(3, size=4000)
    without_salt, with_salt = deal(z, y, 4), deal(z, y, 4, salt=7)
    table = np.histogram2d(without_salt, with_salt, bins=4)[0]
    assert table.min() / 250 > 0.8
    assert table.max() / 250 < 1.2


def test_groups_stay_together_and_folds_stay_even(regime):
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(1000, 3)), rng.integers(3, size=1000)
    together = rng.integers(60, size=1000)
    fold = deal(z, y, fold_groups=together)
    assert all(len(np.unique(fold[together == g])) == 1 for g in range(60))
    assert np.ptp(np.bincount(fold, minlength=5)) < 40
    mixed = rng.permutation(1000)
    renamed = rng.permutation(60)[together]
    np.testing.assert_array_equal(deal(z[mixed], y[mixed], fold_groups=renamed[mixed]), fold[mixed])


def test_fewer_groups_than_folds():
    assert sorted(set(deal_groups(np.arange(9, dtype=np.uint64), np.arange(9) % 3, 5))) == [0, 1, 2]


def test_deal_by_keys_by_hand():
    keys = np.array([7, 7, 7, 7, 7, 7, 1, 2], np.uint64)
    alike = np.zeros(8, np.uint8)
    fold = deal_by_keys(keys, RowContent(alike, np.zeros(8), alike, None, keys.__getitem__), 3)
    assert np.bincount(fold[:6]).tolist() == [2, 2, 2]


def test_repeated_keys_by_hand():
    keys = np.array([9, 3, 9, 0, 5, 3, 9], np.uint64)
    np.testing.assert_array_equal(repeated_keys(keys), [3, 9])
    np.testing.assert_array_equal(is_among(keys, repeated_keys(keys)), [1, 1, 1, 0, 0, 1, 1])
    assert not is_among(keys, repeated_keys(keys[:2])).any()


@pytest.mark.parametrize("n_rows", [600, 3000])
def test_copies_are_distinguished_from_ties(n_rows, make_sample):
    z, y, _ = make_sample(n_rows // 10, 4, 0)
    assert count_repeats(prepare(z, y, None), lambda: 1.0) == 0
    copies = prepare(np.tile(z, (10, 1)), np.tile(y, 10), None)
    assert count_repeats(copies, lambda: 1.0) == n_rows - n_rows // 10
    assert count_repeats(prepare(*coarse(n_rows), None), lambda: 1.0) == 0


def test_scores_of_a_forest_are_ties_and_not_copies():
    """Most rows are equal to other rows, confident and correct, but they do not count as copies."""
    rng = np.random.default_rng(0)
    votes = rng.multinomial(10, rng.dirichlet(np.full(4, 0.15), size=5000)) / 10
    y = np.array([rng.choice(4, p=0.9 * p + 0.025) for p in votes])
    rows = prepare(hetcal.to_logits(votes), y, None)
    assert len(np.unique(row_keys(rows.z))) < 1000
    alpha = hetcal.TemperatureScaling().fit(rows.z, y).alpha_
    assert count_repeats(rows, lambda: alpha) == 0


def source_of(route, z, y, w, tmp_path, monkeypatch):
    """Positional and keyword arguments of `fit` that pass the rows by the given route."""
    weight = {} if w is None else {"sample_weight": w}
    if route == "memory":
        return (z, y), weight
    if route == "mapped":
        monkeypatch.setattr(base, "_LARGE", 1)
        np.save(tmp_path / "z.npy", z)
        return (np.load(tmp_path / "z.npy", mmap_mode="r"), y), weight
    if route == "tensors":
        torch = pytest.importorskip("torch")
        for module in (base, tensors):
            monkeypatch.setattr(module, "on_device", tensors.is_tensor)
        return (torch.from_numpy(z), torch.from_numpy(y)), weight
    if route == "dask":
        da = pytest.importorskip("dask.array")
        return (
            importlib.import_module("hetcal.dask").rows(da.from_array(z, chunks=(700, -1)), y, **weight),
        ), {}
    size = {"batches": 900, "all but one row": len(z) - 1}[route]
    return (hetcal.Batches(z, y, **weight, batch_rows=size),), {}


@pytest.mark.parametrize(("kind", "weighted"), [("continuous", False), ("coarse", True)])
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")
def test_cross_validated_gamma_is_equal_for_all_sources(
    route, kind, weighted, regime, make_sample, tmp_path, monkeypatch
):
    if kind == "coarse":
        z, y = coarse(4000)
    else:
        z, y, _ = make_sample(4000, 5, 0, alpha=np.array([0.5, 1.0, 1.5, 0.8, 1.2]))
    w = np.random.default_rng(0).integers(0, 3, size=len(y)).astype(float) if weighted else None
    expected = hetcal.ClassWiseTemperatureScaling("cv").fit(z, y, sample_weight=w)
    arguments, options = source_of(route, z, y, w, tmp_path, monkeypatch)
    calibrator = hetcal.ClassWiseTemperatureScaling("cv").fit(*arguments, **options)
    np.testing.assert_allclose(calibrator.choice_["nll"], expected.choice_["nll"], rtol=1e-7)
    np.testing.assert_allclose(calibrator.alpha_, expected.alpha_, rtol=1e-6)
    assert calibrator.gamma_ == pytest.approx(expected.gamma_, rel=1e-6)
    assert calibrator.choice_["gamma"] == pytest.approx(expected.choice_["gamma"], rel=1e-6)


@pytest.mark.filterwarnings("ignore:no row is predicted")
@pytest.mark.parametrize("levels", [2, 5, 20])
def test_auto_on_a_coarse_score_of_many_rows(levels, monkeypatch):
    """The fit would be useless if ties shared a fold, or if correct and wrong ties were separated."""
    from hetcal.calibrators import auto

    monkeypatch.setattr(folds, "_FEW_ROWS", 0)
    monkeypatch.setattr(auto, "_MAX_CV_ROWS", 2000)
    monkeypatch.setattr(auto, "_MAX_CV_ROWS_PER_CLASS", 500)
    z, y = coarse(30_000, levels)
    pooled_probs = hetcal.TemperatureScaling().fit(z, y).predict_proba(z)
    auto_probs = hetcal.AutoCalibrator().fit(z, y).predict_proba(z)
    assert hetcal.metrics.nll(auto_probs, y) < hetcal.metrics.nll(pooled_probs, y) + 1e-3


def test_copies_cause_a_warning_that_fold_groups_avoid(make_sample):
    z, y, _ = make_sample(300, 5, 0, alpha=0.7)
    fresh_z, fresh_y, _ = make_sample(20_000, 5, 1, alpha=0.7)
    copies, labels, person = np.tile(z, (10, 1)), np.tile(y, 10), np.tile(np.arange(300), 10)
    for cal in (hetcal.AutoCalibrator(), hetcal.ClassWiseTemperatureScaling("cv")):
        with pytest.warns(hetcal.CalibrationWarning, match=r"2700.*fold_groups"):
            cal.fit(copies, labels)
    with_groups = hetcal.AutoCalibrator().fit(copies, labels, fold_groups=person)
    without_copies = hetcal.TemperatureScaling().fit(z, y)
    score = [hetcal.metrics.nll(c.predict_proba(fresh_z), fresh_y) for c in (with_groups, without_copies)]
    assert score[0] < score[1] + 6e-3


def test_invalid_fold_groups(make_sample):
    z, y, _ = make_sample(100, 3, 0)
    with pytest.raises(ValueError, match=r"fold_groups must .*got only 'a'"):
        hetcal.AutoCalibrator().fit(z, y, fold_groups=["a"] * 100)
    with pytest.raises(ValueError, match="fold_groups must"):
        hetcal.AutoCalibrator().fit(z, y, fold_groups=["a", "b"])
    with pytest.raises(ValueError, match="fold_groups must"):
        hetcal.ClassWiseTemperatureScaling("cv").fit(hetcal.Batches(z, y), fold_groups=np.arange(100))
