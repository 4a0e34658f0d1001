"""Rows in memory, divided into slices and folds."""

from __future__ import annotations

import numpy as np
import pytest

from hetcal import Batches
from hetcal._numeric import blocks, folds, source
from hetcal._numeric.blocks import BlockSource
from hetcal._numeric.families import PlattFamily
from hetcal._numeric.rows import prepare
from hetcal._numeric.source import HeldoutLoss, MemorySource, NotInMemory
from hetcal._numeric.temperatures import fit_coupled, fit_pooled

BOUNDS = (0.01, 100.0)


def source_of(z, y, ids=None, n_slices=None, weight=None):
    rows = prepare(np.asarray(z, float), np.asarray(y), weight)
    return MemorySource(rows, ids=None if ids is None else np.asarray(ids), n_slices=n_slices)


def test_folds_are_even_in_every_slice(make_sample):
    z, y, _ = make_sample(503, 7, 0)
    sliced = source_of(z, y)
    fold = sliced.folds(5)
    sizes = np.bincount(fold, minlength=5)
    assert sizes.max() - sizes.min() <= 1
    for k in range(7):
        sizes = np.bincount(fold[sliced.ids == k], minlength=5)
        assert sizes.max() - sizes.min() <= 1


def test_folds_do_not_depend_on_the_order_of_rows(make_sample):
    z, y, _ = make_sample(300, 4, 0)
    first = source_of(z, y).folds(5)
    mixed = np.random.default_rng(0).permutation(300)
    np.testing.assert_array_equal(source_of(z[mixed], y[mixed]).folds(5), first[mixed])


def test_folds_do_not_repeat_the_sampling_error(make_sample):
    # In random folds the accuracy varies like a binomial share, so χ² is about its degrees of freedom.
    # If correct and wrong rows were distributed separately, χ² would be close to zero.
    statistic, freedom = 0.0, 0
    for seed in range(10):
        z, y, _ = make_sample(1000, 5, seed)
        sliced = source_of(z, y)
        fold = sliced.folds(5)
        for k in range(5):
            r = sliced.ids == k
            share = sliced.rows.right[r].mean()
            counts = np.bincount(fold[r], minlength=5)
            right = np.bincount(fold[r], sliced.rows.right[r], 5)
            statistic += np.sum((right - counts * share) ** 2 / (counts * share * (1 - share)))
            freedom += 4
    assert statistic == pytest.approx(freedom, rel=0.35)


def test_folds_of_equal_rows():
    z, y = np.tile([[2.0, 0.0]], (100, 1)), np.arange(100) % 2
    sliced = source_of(z, y)
    fold = sliced.folds(4)
    shares = [sliced.rows.right[fold == f].mean() for f in range(4)]
    assert np.std(shares) > 0.01  # correct and wrong rows are not distributed separately


def test_separable_slices():
    z = np.array(
        [
            *([3.0, 1.0, 0.0], [9.0, 0.0, 0.0]),  # slice 0: all correct
            *([0.0, 2.0, 1.0], [0.0, 2.0, 1.0]),  # slice 1: one wrong
            [1.0, 1.0, 1.0],  # slice 2: flat
            [
                5.0,
                5.0,
                0.0,
            ],  # slice 3: wrong because of a tie, which no α breaks; a larger α still lowers the third class
        ]
    )
    y = np.array([0, 0, 1, 2, 0, 1])
    sliced = source_of(z, y, ids=[0, 0, 1, 1, 2, 3], n_slices=5)
    np.testing.assert_array_equal(sliced.is_separable(), [True, False, False, True, False])
    np.testing.assert_array_equal(sliced.counts(), [2, 2, 1, 1, 0])


def test_evaluate_active_slices(make_sample):
    z, y, _ = make_sample(200, 4, 0)
    sliced = source_of(z, y)
    alpha = np.array([0.3, 0.6, 1.0, 2.0])
    slope, bend, skew = sliced.evaluate(alpha, np.arange(4))
    for active in ([1, 3], [2], [0, 1, 2]):
        part = sliced.evaluate(alpha, np.array(active))
        np.testing.assert_allclose(part[0], slope[active], rtol=1e-12)
        np.testing.assert_allclose(part[1], bend[active], rtol=1e-12)
        np.testing.assert_allclose(part[2], skew[active], rtol=1e-12)


def test_pooled_is_one_slice(make_sample):
    z, y, _ = make_sample(200, 4, 0)
    sliced = source_of(z, y)
    alpha, at_bound = fit_pooled(sliced, BOUNDS)
    slope, _, _ = sliced.evaluate(np.full(4, alpha), np.arange(4))
    assert abs(slope.sum()) < 1e-6
    assert not at_bound


def test_take(make_sample):
    z, y, _ = make_sample(200, 4, 0)
    index = np.arange(0, 200, 3)
    taken, expected = source_of(z, y).take(index), source_of(z[index], y[index])
    np.testing.assert_array_equal(taken.ids, expected.ids)
    np.testing.assert_array_equal(taken.rows.d_true, expected.rows.d_true)
    assert fit_coupled(taken, 0.1, BOUNDS).alpha0 == fit_coupled(expected, 0.1, BOUNDS).alpha0


def test_folds_of_large_arrays_depend_on_content(make_sample, monkeypatch):
    z, y, _ = make_sample(5000, 4, 0)
    w = np.random.default_rng(0).uniform(0.5, 2, size=5000)
    monkeypatch.setattr(source, "LARGE", 1)
    first = source_of(z, y, weight=w).folds(5)
    mixed = np.random.default_rng(0).permutation(5000)
    np.testing.assert_array_equal(source_of(z[mixed], y[mixed], weight=w[mixed]).folds(5), first[mixed])
    sizes = np.bincount(first, minlength=5)
    assert np.sum((sizes - 1000) ** 2 / 1000) < 18  # 0.999 quantile of χ² with 4 degrees of freedom


def test_rows_without_a_slice_are_ignored(make_sample):
    z, y, _ = make_sample(200, 4, 0)
    weight = np.random.default_rng(0).uniform(0.5, 2, size=200)
    all_slices = source_of(z, y, weight=weight)
    three_slices = source_of(z, y, weight=weight, n_slices=3)  # rows with id 3 belong to no slice
    without_rest = three_slices.take(np.flatnonzero(three_slices.ids < 3))
    alpha = np.array([0.3, 0.6, 1.0])
    for ours, theirs in zip(
        three_slices.evaluate(alpha, np.array([0, 2])),
        without_rest.evaluate(alpha, np.array([0, 2])),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    for name in ("counts", "slice_weights", "is_separable", "has_finite_optimum"):
        np.testing.assert_allclose(getattr(three_slices, name)(), getattr(without_rest, name)(), rtol=1e-12)
        np.testing.assert_allclose(getattr(three_slices, name)(), getattr(all_slices, name)()[:3], rtol=1e-12)


def test_first_guess_uses_evenly_spaced_rows(make_sample):
    z, y, _ = make_sample(1100, 128, 0)
    sliced = source_of(z, y)
    sample = sliced.sample()
    np.testing.assert_array_equal(sample.rows.z, z[::4])  # about 256 rows, hence every fourth row
    np.testing.assert_array_equal(sample.ids, sliced.ids[::4])
    assert sliced.take(np.arange(1000)).sample() is None


def test_large_arrays_are_not_copied_for_folds(make_sample, monkeypatch):
    z, y, _ = make_sample(200, 4, 0)
    sliced, alpha = source_of(z, y), np.array([0.3, 0.6, 1.0, 2.0])
    copied = list(sliced.split(3))
    monkeypatch.setattr(source, "compiled_for", lambda _: object())
    for (copied_train, copied_test), (train, test) in zip(copied, sliced.split(3), strict=True):
        assert train.rows is sliced.rows
        assert train.weights() == copied_train.weights()
        np.testing.assert_array_equal(train.class_counts(), copied_train.class_counts())
        np.testing.assert_array_equal(train.gap_sums(), copied_train.gap_sums())
        assert len(train.sample_rows(1)) == len(copied_train.sample_rows(1))
        np.testing.assert_array_equal(train.counts(), copied_train.counts())
        np.testing.assert_array_equal(test.ids, copied_test.ids)
        np.testing.assert_allclose(
            train.evaluate(alpha, np.arange(4)), copied_train.evaluate(alpha, np.arange(4)), rtol=1e-12
        )


def test_heldout_means_and_errors_by_hand():
    loss, weight = np.array([[1.0, 2.0, 6.0], [2.0, 2.0, 2.0]]), np.array([1.0, 1.0, 2.0])
    parts = [(weight[rows] * loss[:, rows], weight[rows]) for rows in (slice(0, 2), slice(2, 3))]
    first, second = (HeldoutLoss(wl.sum(axis=1), wl @ wl.T, len(w), w.sum()) for wl, w in parts)
    total = first + second
    np.testing.assert_allclose(total.means(), [15 / 4, 8 / 4])
    away = weight * (loss[0] - loss[1])
    expected = np.sqrt(np.sum((away - away.mean()) ** 2)) / 4
    np.testing.assert_allclose(total.errors(1), [expected, 0])


def test_weights_of_rows(make_sample):
    z, y, _ = make_sample(50, 3, 0)
    weight = np.random.default_rng(0).uniform(0.5, 2, size=50)
    assert source_of(z, y).weights() == (50, 1)
    assert source_of(z, y, weight=weight).weights() == pytest.approx((weight.sum(), weight.min()))


def test_heldout_losses_add_up_over_chunks(make_sample, monkeypatch):
    z, y, _ = make_sample(50, 3, 0)
    sliced, alphas = source_of(z, y), np.array([[0.5, 1.0, 2.0], [1.0, 1.0, 1.0]])
    one_chunk = sliced.heldout_loss(alphas)
    monkeypatch.setattr(source, "_CHUNK_ROWS", 7)
    monkeypatch.setattr(source, "LARGE", 1)
    many_chunks = sliced.heldout_loss(alphas)
    np.testing.assert_allclose(many_chunks.loss, one_chunk.loss, rtol=1e-12)
    np.testing.assert_allclose(many_chunks.product, one_chunk.product, rtol=1e-12)
    assert (many_chunks.n, many_chunks.weight) == (50, 50)


def test_only_rows_in_memory_are_available_in_memory(make_sample):
    z, y, _ = make_sample(50, 3, 0)
    memory = source_of(z, y)
    assert memory.in_memory("a test") is memory
    with pytest.raises(NotInMemory, match=r"logits must .*a test"):
        BlockSource(Batches(z, y)).in_memory("a test")


def test_sources_agree(make_sample):
    """Rows in memory and in blocks give the same sums."""
    z, y, _ = make_sample(400, 4, 0)
    weight = np.random.default_rng(0).uniform(0.5, 2, size=400)
    memory = source_of(z, y, weight=weight)
    batches = BlockSource(Batches(z, y, sample_weight=weight, batch_rows=90))
    assert (memory.n_classes, memory.n_slices) == (batches.n_classes, batches.n_slices)
    assert batches.prefers_few_passes
    assert not memory.prefers_few_passes
    for name in ("counts", "class_counts", "slice_weights", "is_separable", "has_finite_optimum", "gap_sums"):
        np.testing.assert_allclose(getattr(batches, name)(), getattr(memory, name)(), rtol=1e-12)
    theta, alpha = np.linspace(0.5, 1.5, 8), np.linspace(0.5, 2, 4)
    for from_blocks, from_memory in zip(
        batches.vector_gradient(theta), memory.vector_gradient(theta), strict=True
    ):
        np.testing.assert_allclose(from_blocks, from_memory, rtol=1e-10)
    for from_blocks, from_memory in zip(
        batches.evaluate(alpha, np.arange(4)), memory.evaluate(alpha, np.arange(4)), strict=True
    ):
        np.testing.assert_allclose(from_blocks, from_memory, rtol=1e-10)


def test_the_training_and_test_rows_of_blocks_add_up_to_all_rows(make_sample, monkeypatch):
    monkeypatch.setattr(blocks, "are_few", lambda *_: False)
    z, y, _ = make_sample(300, 4, 0)
    weight = np.random.default_rng(0).uniform(0.5, 2, size=300)
    whole = BlockSource(Batches(z, y, sample_weight=weight, batch_rows=3))  # blocks without test rows occur
    theta = np.array([[0.8, 0.1]])
    families = PlattFamily(), np.zeros(4, np.int64)

    def sums(rows):
        yield from (rows.counts(), rows.class_counts(), rows.slice_weights(), rows.weights()[0])
        yield from rows.gap_sums()
        yield from rows.vector_gradient(np.linspace(0.5, 1.5, 8))
        yield from rows.family_evaluator(*families)(theta, np.arange(1))

    for train, test in whole.split(3):
        assert len(train.gathered()[0]) + len(test.gathered()[0]) == 300
        for left, right, both in zip(sums(train), sums(test), sums(whole), strict=True):
            np.testing.assert_allclose(left + right, both, rtol=1e-10)
    with pytest.raises(NotImplementedError, match="fold must be None"):
        next(train.split(2))
    with pytest.raises(NotImplementedError, match="fold must be None"):
        train.draw_sample(2, salt=0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["continuous", "coarse"])
@pytest.mark.parametrize("keys_per_pass", [1 << 24, 700])
def test_samples_are_equal_for_all_sources(make_sample, monkeypatch, weighted, kind, keys_per_pass):
    z, y, _ = make_sample(2000, 3, 0)
    z = z.round() if kind == "coarse" else z
    rng = np.random.default_rng(0)
    weight, groups = rng.uniform(0.5, 2, size=2000) if weighted else None, rng.choice(["a", "bc"], size=2000)
    monkeypatch.setattr(folds, "_FEW_ROWS", 0)
    monkeypatch.setattr(blocks, "_KEYS_PER_PASS", keys_per_pass)
    memory = MemorySource(prepare(z, y, weight), groups, fold_groups=np.arange(2000) % 7)
    batches = Batches(z, y, sample_weight=weight, groups=groups, batch_rows=300)
    for n_parts in (1, 4):
        expected = memory.draw_sample(n_parts, salt=7)
        sample = BlockSource(batches).draw_sample(n_parts, salt=7)
        assert len(sample) == pytest.approx(2000 / n_parts, rel=0.15)
        np.testing.assert_array_equal(sample.rows.z, expected.rows.z)
        np.testing.assert_array_equal(sample.rows.y, expected.rows.y)
        np.testing.assert_array_equal(sample.rows.weight, expected.rows.weight)
        np.testing.assert_array_equal(sample.groups, expected.groups)


def test_transformed_sources_agree(make_sample):
    z, y, _ = make_sample(400, 4, 0)
    groups = np.arange(400) % 2
    memory = MemorySource(prepare(z, y, None), groups)
    batches = BlockSource(Batches(z, y, groups=groups, batch_rows=90))

    def swap(logits, group):
        return logits[:, [1, 0, 2, 3]] * (1 + group[:, None])

    expected, alpha = source_of(swap(z, groups) / 2, y), np.linspace(0.5, 2, 4)
    for rows in (memory, batches):
        twice = rows.slice_by(lambda _, g: g, 2).transform(swap).transform(lambda logits, _: logits / 2)
        np.testing.assert_array_equal(twice.counts(), expected.counts())
        np.testing.assert_array_equal(twice.group_names(), [0, 1])
        np.testing.assert_allclose(
            twice.evaluate(alpha, np.arange(4)), expected.evaluate(alpha, np.arange(4)), rtol=1e-10
        )


def test_slices_can_be_changed(make_sample):
    z, y, _ = make_sample(100, 3, 0)
    groups = np.arange(100) % 2
    by_group = MemorySource(prepare(z, y, None), groups).slice_by(lambda _, g: g, 2)
    np.testing.assert_array_equal(by_group.counts(), [50, 50])
    np.testing.assert_array_equal(by_group.group_names(), [0, 1])
    assert by_group.class_counts().sum() == 100
