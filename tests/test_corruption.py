from __future__ import annotations

import numpy as np
import pytest

from hetcal.corruption import noisy_labels, stratified_split, undersample

LABELS = np.repeat(np.arange(10), 1000)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_noise_changes_the_share_the_formula_gives() -> None:
    noisy = noisy_labels(LABELS, range(5), 0.3, 10, rng())
    changed = noisy != LABELS
    assert changed[:5000].mean() == pytest.approx(0.3 * 0.9, abs=4 * np.sqrt(0.27 * 0.73 / 5000))
    assert not changed[5000:].any()


def test_noise_is_uniform_over_all_classes() -> None:
    noisy = noisy_labels(LABELS, range(5), 1.0, 10, rng())[:5000]
    counts = np.bincount(noisy, minlength=10)
    chi_square = ((counts - 500) ** 2 / 500).sum()
    assert chi_square < 27.9  # 0.999 quantile at 9 degrees of freedom


def test_noise_of_rate_zero_and_of_no_class_change_nothing() -> None:
    assert np.array_equal(noisy_labels(LABELS, range(10), 0.0, 10, rng()), LABELS)
    assert np.array_equal(noisy_labels(LABELS, [], 1.0, 10, rng()), LABELS)


def test_noise_repeats_with_its_seed_and_leaves_its_input_alone() -> None:
    given = LABELS.copy()
    first = noisy_labels(given, range(5), 0.5, 10, rng(3))
    assert np.array_equal(first, noisy_labels(given, range(5), 0.5, 10, rng(3)))
    assert not np.array_equal(first, noisy_labels(given, range(5), 0.5, 10, rng(4)))
    assert np.array_equal(given, LABELS)


def test_more_noise_corrupts_a_superset() -> None:
    little = noisy_labels(LABELS, range(10), 0.2, 10, rng()) != LABELS
    much = noisy_labels(LABELS, range(10), 0.6, 10, rng()) != LABELS
    assert np.all(much[little])


@pytest.mark.parametrize(("rate", "count"), [(0.0, 0), (0.0001, 1), (0.05, 23), (0.1, 45), (1.0, 450)])
def test_undersampling_keeps_the_rounded_share(rate: float, count: int) -> None:
    labels = np.repeat(np.arange(4), 450)
    kept = undersample(labels, [0, 1], rate, rng())
    assert np.bincount(labels[kept], minlength=4).tolist() == [count, count, 450, 450]
    assert np.all(np.diff(kept) > 0)


def test_undersampling_is_random_within_the_class() -> None:
    kept = undersample(np.zeros(1000, dtype=int), [0], 0.5, rng())
    assert 400 < kept.mean() < 600
    assert not np.array_equal(kept, undersample(np.zeros(1000, dtype=int), [0], 0.5, rng(1)))


def test_split_sets_aside_the_same_number_of_each_class() -> None:
    train, validation = stratified_split(LABELS, 100, rng())
    assert np.bincount(LABELS[validation]).tolist() == [100] * 10
    assert np.array_equal(np.sort(np.concatenate([train, validation])), np.arange(LABELS.size))
    assert np.all(np.diff(train) > 0)
    assert np.all(np.diff(validation) > 0)


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_rate_must_be_a_fraction(rate: float) -> None:
    with pytest.raises(ValueError, match=r"rate must be in \[0, 1\], got"):
        noisy_labels(LABELS, [0], rate, 10, rng())
    with pytest.raises(ValueError, match=r"rate must be in \[0, 1\], got"):
        undersample(LABELS, [0], rate, rng())


def test_bad_labels_and_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="one dimension"):
        undersample([[0, 1]], [0], 0.5, rng())
    with pytest.raises(TypeError, match="labels must be integers"):
        undersample([0.5], [0], 0.5, rng())
    with pytest.raises(ValueError, match="got -1 at row 1"):
        undersample([0, -1], [0], 0.5, rng())
    with pytest.raises(ValueError, match="n_classes must exceed the largest label 9, got 9"):
        noisy_labels(LABELS, [0], 0.5, 9, rng())
    with pytest.raises(ValueError, match=r"classes must be in 0\.\.9, got 10"):
        noisy_labels(LABELS, [10], 0.5, 10, rng())
    with pytest.raises(ValueError, match="classes must be 0 or more, got -1"):
        undersample(LABELS, [-1], 0.5, rng())
    with pytest.raises(TypeError, match="classes must be integers"):
        undersample(LABELS, [0.5], 0.5, rng())  # type: ignore[list-item]


def test_split_refuses_more_rows_than_a_class_has() -> None:
    with pytest.raises(ValueError, match="class 1 has 1"):
        stratified_split([0, 0, 1], 2, rng())
    with pytest.raises(ValueError, match="per_class must be 0 or more"):
        stratified_split([0, 0, 1], -1, rng())


def test_empty_labels_pass_through() -> None:
    assert noisy_labels([], [0], 0.5, 2, rng()).size == 0
    assert undersample([], [0], 0.5, rng()).size == 0


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(TypeError, match="rate must be a number"):
        noisy_labels([0, 1], [0], "a", 2, rng())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"n_classes must be an integer, got 2\.5"):
        noisy_labels([0, 1], [0], 0.5, 2.5, rng())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="per_class must be an integer, got None"):
        stratified_split([0, 1], None, rng())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="classes must be a list of class numbers, got 3"):
        undersample([0, 1], 3, 0.5, rng())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"classes must have one dimension, got shape \(1, 0\)"):
        undersample([0, 1], [[]], 0.5, rng())  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"rng must be a numpy\.random\.Generator"):
        stratified_split([0, 1], 1, "seed")  # type: ignore[arg-type]
