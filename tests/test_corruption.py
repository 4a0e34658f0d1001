from __future__ import annotations

import numpy as np
import pytest

from hetcal.corruption import noisy_labels, stratified_split, undersample

LABELS = np.repeat(np.arange(10), 1000)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_noise_changes_the_expected_fraction() -> None:
    noisy = noisy_labels(LABELS, range(5), 0.3, 10, rng())
    changed = noisy != LABELS
    assert changed[:5000].mean() == pytest.approx(0.3 * 0.9, abs=4 * np.sqrt(0.27 * 0.73 / 5000))
    assert not changed[5000:].any()


def test_noise_is_uniform_over_all_classes() -> None:
    noisy = noisy_labels(LABELS, range(5), 1.0, 10, rng())[:5000]
    counts = np.bincount(noisy, minlength=10)
    chi_square = ((counts - 500) ** 2 / 500).sum()
    assert chi_square < 27.9  # 0.999 quantile at 9 degrees of freedom


def test_no_noise_for_rate_zero_or_no_classes() -> None:
    assert np.array_equal(noisy_labels(LABELS, range(10), 0.0, 10, rng()), LABELS)
    assert np.array_equal(noisy_labels(LABELS, [], 1.0, 10, rng()), LABELS)


def test_noise_is_reproducible_and_does_not_modify_its_input() -> None:
    labels = LABELS.copy()
    first = noisy_labels(labels, range(5), 0.5, 10, rng(3))
    assert np.array_equal(first, noisy_labels(labels, range(5), 0.5, 10, rng(3)))
    assert not np.array_equal(first, noisy_labels(labels, range(5), 0.5, 10, rng(4)))
    assert np.array_equal(labels, LABELS)


def test_a_higher_rate_corrupts_a_superset() -> None:
    little = noisy_labels(LABELS, range(10), 0.2, 10, rng()) != LABELS
    much = noisy_labels(LABELS, range(10), 0.6, 10, rng()) != LABELS
    assert np.all(much[little])


@pytest.mark.parametrize(("rate", "count"), [(0.0, 0), (0.0001, 1), (0.05, 23), (0.1, 45), (1.0, 450)])
def test_undersampling_keeps_the_rounded_number(rate: float, count: int) -> None:
    labels = np.repeat(np.arange(4), 450)
    remaining = undersample(labels, [0, 1], rate, rng())
    assert np.bincount(labels[remaining], minlength=4).tolist() == [count, count, 450, 450]
    assert np.all(np.diff(remaining) > 0)


def test_undersampling_is_random_within_the_class() -> None:
    remaining = undersample(np.zeros(1000, dtype=int), [0], 0.5, rng())
    assert 400 < remaining.mean() < 600
    assert not np.array_equal(remaining, undersample(np.zeros(1000, dtype=int), [0], 0.5, rng(1)))


def test_split_sets_aside_the_same_number_of_each_class() -> None:
    train, validation = stratified_split(LABELS, 100, rng())
    assert np.bincount(LABELS[validation]).tolist() == [100] * 10
    assert np.array_equal(np.sort(np.concatenate([train, validation])), np.arange(LABELS.size))
    assert np.all(np.diff(train) > 0)
    assert np.all(np.diff(validation) > 0)


def test_empty_labels() -> None:
    assert noisy_labels([], [0], 0.5, 2, rng()).size == 0
    assert undersample([], [0], 0.5, rng()).size == 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"labels": [[0, 1]]}, ValueError),
        ({"labels": [0.5]}, TypeError),
        ({"labels": [0, -1]}, ValueError),
        ({"classes": 3}, TypeError),
        ({"classes": [[]]}, ValueError),
        ({"classes": [0.5]}, TypeError),
        ({"classes": [-1]}, ValueError),
        ({"rate": "a"}, TypeError),
        ({"rate": -0.1}, ValueError),
        ({"rate": float("nan")}, ValueError),
        ({"rng": "seed"}, TypeError),
    ],
)
def test_input_is_validated(options: dict[str, object], error: type[Exception]) -> None:
    valid = {"labels": [0, 1], "classes": [0], "rate": 0.5, "rng": rng()}
    with pytest.raises(error, match=rf"{next(iter(options))} must"):
        undersample(**(valid | options))  # type: ignore[arg-type]
    with pytest.raises(error, match=rf"{next(iter(options))} must"):
        noisy_labels(**(valid | {"n_classes": 2} | options))  # type: ignore[arg-type]


def test_number_of_classes_is_validated() -> None:
    with pytest.raises(ValueError, match="n_classes must"):
        noisy_labels(LABELS, [0], 0.5, 9, rng())
    with pytest.raises(TypeError, match="n_classes must"):
        noisy_labels([0, 1], [0], 0.5, 2.5, rng())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="classes must"):
        noisy_labels(LABELS, [10], 0.5, 10, rng())


@pytest.mark.parametrize(("per_class", "error"), [(2, ValueError), (-1, ValueError), (None, TypeError)])
def test_rows_per_class_are_validated(per_class: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="per_class must"):
        stratified_split([0, 0, 1], per_class, rng())  # type: ignore[arg-type]
