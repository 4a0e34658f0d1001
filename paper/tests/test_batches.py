from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hetcal_paper import batches, cifar
from hetcal_paper.batches import DeviceImages, choose_rows, draw_epoch
from hetcal_paper.runs import Run, clean, few, noise, sample, under

LABELS = np.tile(np.arange(10), 500)
OFFICIAL = np.repeat(np.arange(10), 5000)


def test_a_tenth_of_each_class_is_set_aside() -> None:
    rows = choose_rows(clean("c10", 0), OFFICIAL, 10)
    assert rows.train.size == 45_000
    assert np.bincount(OFFICIAL[rows.validation]).tolist() == [500] * 10
    assert np.intersect1d(rows.train, rows.validation).size == 0
    assert np.array_equal(rows.labels, OFFICIAL[rows.train])


@pytest.mark.parametrize(
    ("run", "counts"),
    [
        (noise("c10", (0, 4), 0.3, 0), [450] * 10),
        (under("c10", (0, 4), 0.1, 0), [45] * 5 + [450] * 5),
        (sample("c10", 0.02, 0), [9] * 10),
        (few("c10", 100, 0), [100] * 10),
    ],
    ids=lambda value: value.name if isinstance(value, Run) else "",
)
def test_only_training_rows_are_corrupted(run: Run, counts: list[int]) -> None:
    reference = choose_rows(clean("c10", 0), LABELS, 10)
    rows = choose_rows(run, LABELS, 10)
    assert np.array_equal(rows.validation, reference.validation)
    assert np.all(np.isin(rows.train, reference.train))
    assert np.bincount(LABELS[rows.train]).tolist() == counts


def test_noise_affects_only_its_classes() -> None:
    rows = choose_rows(noise("c10", (0, 4), 0.3, 0), OFFICIAL, 10)
    true = OFFICIAL[rows.train]
    changed = rows.labels != true
    assert changed[true <= 4].mean() == pytest.approx(0.27, abs=0.012)
    assert not changed[true > 4].any()


def test_rows_depend_only_on_the_seed() -> None:
    first, again, other = (choose_rows(noise("c10", None, 0.5, s), LABELS, 10) for s in (0, 0, 1))
    assert np.array_equal(first.validation, again.validation)
    assert np.array_equal(first.labels, again.labels)
    assert not np.array_equal(first.validation, other.validation)
    weights = [batches.weight_generator(clean("c10", s)).initial_seed() for s in (0, 0, 1)]
    assert weights[0] == weights[1] != weights[2]


def test_epochs_are_drawn_from_seed_and_number() -> None:
    run = clean("c10", 0)
    first = draw_epoch(run, 1, 1000)
    assert np.array_equal(first, draw_epoch(run, 1, 1000))
    assert not np.array_equal(first, draw_epoch(run, 2, 1000))
    assert np.array_equal(np.sort(first[0]), np.arange(1000))
    assert set(first[1]) == set(first[2]) == set(range(9))
    assert 400 < first[3].sum() < 600


def test_augmentation_agrees_with_a_plain_loop(cifar10: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_CHUNK", 64)  # several chunks, the last one shorter
    data = cifar.load("c10", cifar10, strict_size=False)
    images = DeviceImages(data, torch.device("cpu"))
    rows = np.arange(0, 450, 3)
    drawn = draw_epoch(clean("c10", 0), 1, rows.size)
    scale = images.scale(rows)
    out = torch.empty((rows.size, 32, 32, 3))
    images.fill(out, torch.from_numpy(rows[drawn[0]]), torch.from_numpy(drawn[1:]), scale)
    mean, std = (v.numpy() for v in scale)
    for position, (order, top, left, mirror) in enumerate(drawn.T):
        padded = np.pad(data.train_images[rows[order]], ((4, 4), (4, 4), (0, 0)))
        window = padded[top : top + 32, left : left + 32]
        window = window[:, ::-1] if mirror else window
        np.testing.assert_allclose(out[position].numpy(), (window - mean) / std, rtol=1e-5, atol=1e-5)


def test_scale_is_computed_from_the_given_rows(cifar10: Path) -> None:
    data = cifar.load("c10", cifar10, strict_size=False)
    images = DeviceImages(data, torch.device("cpu"))
    rows = np.arange(50)
    pixels = data.train_images[rows].reshape(-1, 3)
    mean, std = images.scale(rows)
    np.testing.assert_allclose(mean.numpy(), pixels.mean(0), rtol=1e-6)
    np.testing.assert_allclose(std.numpy(), pixels.std(0), rtol=1e-6)
    normal = images.validation(rows, (mean, std)).numpy().reshape(-1, 3)
    np.testing.assert_allclose(normal.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(normal.std(0), 1, atol=1e-4)
    np.testing.assert_allclose(
        images.test(5, 7, (mean, std)).numpy(),
        (data.test_images[5:7] - mean.numpy()) / std.numpy(),
        rtol=1e-5,
    )
