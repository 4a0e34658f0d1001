"""Slices by predicted class, group and bundle of classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetcal.partition import Slices, bundle_classes, by_groups, by_predicted_class, learn_slices


def test_by_predicted_class_breaks_ties_low():
    assert by_predicted_class([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [0.0, 0.0, 9.0]]).tolist() == [1, 0, 2]
    with pytest.raises(ValueError, match=r"hetcal\.binary_logits"):
        by_predicted_class([1.0, 2.0])


def test_by_groups():
    ids, names = by_groups(["b", "a", "b", "c"])
    assert ids.tolist() == [1, 0, 1, 2]
    assert names.tolist() == ["a", "b", "c"]
    ids, names = by_groups(np.array([10, -3, 10]))
    assert ids.tolist() == [1, 0, 1]
    assert names.tolist() == [-3, 10]
    for groups in ("a", np.zeros((2, 2), int), [[1], [1, 2]]):
        with pytest.raises(ValueError, match="groups must"):
            by_groups(groups)


def test_learned_slices():
    assert learn_slices(4, None, None) == Slices(4)
    assert learn_slices(4, None, np.array([0, 1, 1, 2])).n_slices == 3
    by_name = learn_slices(4, ["x", "y", "x"], None)
    assert by_name.n_slices == 2
    assert by_name.assign(np.zeros(2, int), ["y", "x"]).tolist() == [1, 0]
    assert [by_name.name(0), Slices(3).name(2), Slices(2, bundles=np.array([0, 1])).name(1)] == [
        "group 'x'",
        "class 2",
        "bundle 1",
    ]


def test_longer_group_names_are_not_truncated():
    slices = learn_slices(4, ["ab", "cd"], None)
    with pytest.raises(ValueError, match="'abc' at row 0"):
        slices.assign(np.zeros(1, int), ["abc"])


def test_groups_must_be_those_of_the_fit():
    by_group, by_class = learn_slices(2, ["a", "b"], None), learn_slices(2, None, None)
    with pytest.raises(ValueError, match="groups must"):
        by_group.assign(np.zeros(2, int), None)
    with pytest.raises(ValueError, match="groups must"):
        by_class.assign(np.zeros(2, int), ["a", "b"])
    with pytest.raises(TypeError, match="groups must"):
        by_group.assign(np.zeros(2, int), [1, 2])
    with pytest.raises(ValueError, match="groups must"):
        learn_slices(2, ["a", "b"], np.array([0, 1]))


def sample_by_counts(counts, seed=0):
    """Logits that predict class k for counts[k] rows, and labels with a random accuracy per class."""
    rng = np.random.default_rng(seed)
    guess = np.repeat(np.arange(len(counts)), counts)
    z = rng.normal(size=(len(guess), len(counts)))
    z[np.arange(len(guess)), guess] = z.max(axis=1) + rng.uniform(0.1, 3, size=len(guess))
    y = np.where(
        rng.random(len(guess)) < rng.random(len(counts))[guess],
        guess,
        rng.integers(len(counts), size=len(guess)),
    )
    return z, y


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 40), min_size=2, max_size=15).filter(lambda c: sum(c) > 4),
    share=st.floats(0, 1),
    by=st.sampled_from(["gap", "size"]),
)
def test_bundles(counts, share, by):
    n_classes, total = len(counts), sum(counts)
    n_bundles = 1 + int(share * (n_classes - 1))
    z, y = sample_by_counts(counts)
    bundles = bundle_classes(z, y, n_bundles, by)
    assert bundles.shape == (n_classes,)
    assert np.unique(bundles).tolist() == list(range(n_bundles))  # none is empty
    rows = np.bincount(bundles, counts, n_bundles)
    # A bundle exceeds its share by at most one class.
    assert rows.max() <= total / n_bundles + max(counts)
    if by == "size":
        order = np.argsort(counts, kind="stable")
        assert np.all(np.diff(bundles[order]) >= 0)


def test_bundles_of_equal_classes_are_equal():
    z, y = sample_by_counts([30] * 12)
    for by in ("gap", "size"):
        for n_bundles in (1, 3, 12):
            assert np.bincount(bundle_classes(z, y, n_bundles, by)).tolist() == [12 // n_bundles] * n_bundles


def test_one_large_class_does_not_empty_a_bundle():
    z, y = sample_by_counts([1, 1, 1, 200, 1, 1, 1])
    assert len(np.unique(bundle_classes(z, y, 5, "size"))) == 5


def test_bundles_by_gap_group_similar_gaps():
    z = np.repeat(np.eye(6) * 3, 50, axis=0)
    guess = z.argmax(axis=1)
    # Even classes are always correct, odd ones half of the time.
    right = np.where(guess % 2 == 0, True, np.arange(300) % 2 == 0)
    bundles = bundle_classes(z, np.where(right, guess, (guess + 1) % 6), 2)
    assert bundles.tolist() == [0, 1, 0, 1, 0, 1]


def test_a_class_never_predicted_has_the_average_gap():
    z, _ = sample_by_counts([40, 40, 0])
    guess = z.argmax(axis=1)
    y = np.where(guess == 0, 2, 1)  # class 0 always wrong, class 1 always right
    assert bundle_classes(z, y, 3, "gap").tolist() == [2, 0, 1]
    assert bundle_classes(z, y, 3, "size")[2] == 0


def test_weights_act_like_repeated_rows():
    z, y = sample_by_counts([20, 50, 10, 30, 40])
    w = np.random.default_rng(0).integers(0, 4, size=len(y))
    for by in ("gap", "size"):
        np.testing.assert_array_equal(
            bundle_classes(z, y, 3, by, sample_weight=w),
            bundle_classes(np.repeat(z, w, axis=0), np.repeat(y, w), 3, by),
        )


@pytest.mark.parametrize("n_bundles", [0, 4, 1.5, "2", None])
def test_number_of_bundles_is_validated(n_bundles):
    with pytest.raises(ValueError, match="n_bundles must"):
        bundle_classes(np.eye(3) * 2, [0, 1, 2], n_bundles)


@pytest.mark.parametrize("by", ["name", []])
def test_statistic_is_validated(by):
    with pytest.raises(ValueError, match="by must"):
        bundle_classes(np.eye(3) * 2, [0, 1, 2], 2, by)
