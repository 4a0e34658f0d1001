"""Training rows of a run, and the augmented images of each epoch on the device.

The split, the corruption, the order of the rows and the augmentation are drawn with NumPy. They depend only
on the run and the number of the epoch, not on the device, on other runs, or on interruptions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hetcal.corruption import noisy_labels, stratified_split, undersample
from hetcal_paper.cifar import Cifar
from hetcal_paper.runs import Run

__all__ = ["DeviceImages", "Rows", "choose_rows", "draw_epoch", "weight_generator"]

_PAD = 4
_SIDE = 32
_CHUNK = 8192  # images augmented at once, which bounds the memory for indices

#: Spawn keys of the independent random streams of a run.
_SPLIT, _CORRUPTION, _WEIGHTS, _ORDER = range(4)


@dataclass(frozen=True)
class Rows:
    """Rows of the official training set used by a run.

    Attributes
    ----------
    train : ndarray of int64, shape (n,)
        Training rows.
    labels : ndarray of int64, shape (n,)
        Labels of the training rows, including label noise.
    validation : ndarray of int64, shape (m,)
        Validation rows: a tenth of each class, never corrupted.
    """

    train: NDArray[np.int64]
    labels: NDArray[np.int64]
    validation: NDArray[np.int64]


def choose_rows(run: Run, labels: NDArray[np.int64], n_classes: int) -> Rows:
    """Split the official training set, and apply the corruption of the run, if any, to the training rows."""
    train, validation = stratified_split(labels, labels.size // n_classes // 10, _rng(run.seed, _SPLIT))
    rng = _rng(run.seed, _CORRUPTION)
    first, last = run.classes or (0, n_classes - 1)
    classes = range(first, last + 1)
    train_labels = labels[train]
    if run.kind == "noise":
        return Rows(train, noisy_labels(train_labels, classes, run.rate or 0.0, n_classes, rng), validation)
    if run.kind == "under":
        subset = undersample(train_labels, classes, run.rate or 0.0, rng)
    elif run.kind == "few":
        _, subset = stratified_split(train_labels, run.per_class or 0, rng)
    else:
        subset = np.arange(train.size)
    return Rows(train[subset], train_labels[subset], validation)


def draw_epoch(run: Run, epoch: int, n: int) -> NDArray[np.int64]:
    """Draw the order and the augmentation of one epoch over ``n`` rows.

    Returns
    -------
    ndarray of int64, shape (4, n)
        The order (positions in ``Rows.train``), the top edge and the left edge (0 to 8) of the 32 by 32 crop
        in the zero-padded image, and whether the crop is mirrored (0 or 1).
    """
    rng = _rng(run.seed, _ORDER, epoch)
    shifts = rng.integers(0, 2 * _PAD + 1, size=(2, n))
    return np.stack([rng.permutation(n), *shifts, rng.integers(0, 2, size=n)])


def weight_generator(run: Run) -> torch.Generator:
    """Return the generator of the initial weights."""
    return torch.Generator().manual_seed(int(_rng(run.seed, _WEIGHTS).integers(0, 2**63)))


class DeviceImages:
    """Images of one data set on a device, as uint8. All runs on this data set share them.

    Parameters
    ----------
    cifar : Cifar
    device : torch.device
    """

    def __init__(self, cifar: Cifar, device: torch.device) -> None:
        self.cifar = cifar
        self.device = device
        margin = ((0, 0), (_PAD, _PAD), (_PAD, _PAD), (0, 0))
        self._train = torch.from_numpy(np.pad(cifar.train_images, margin)).to(device)
        self._test = torch.from_numpy(cifar.test_images).to(device)
        # With the sums of each image, the mean and standard deviation of any subset are cheap to compute.
        # The sums are integers, which float64 represents exactly.
        sums = [_sums(part.double()) for part in torch.split(self._train, _CHUNK)]
        self._sums, self._squares = torch.cat(sums, dim=1).cpu().numpy()

    def scale(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of each channel over the images ``rows``, both of shape (3,).

        Standard deviations below 0.001 are replaced by 0.001, because pixels are divided by them.
        """
        n = rows.size * _SIDE * _SIDE
        mean = self._sums[rows].sum(0) / n
        std = np.sqrt(np.maximum(self._squares[rows].sum(0) / n - mean**2, 1e-6))
        on_device = [torch.tensor(v, dtype=torch.float32, device=self.device) for v in (mean, std)]
        return on_device[0], on_device[1]

    def validation(self, rows: NDArray[np.int64], scale: tuple[Tensor, Tensor]) -> Tensor:
        """Return the training images ``rows`` normalised, not augmented; float32, shape (n, 32, 32, 3)."""
        inner = self._train[torch.from_numpy(rows).to(self.device)][:, _PAD:-_PAD, _PAD:-_PAD]
        return (inner.float() - scale[0]) / scale[1]

    def test(self, start: int, stop: int, scale: tuple[Tensor, Tensor]) -> Tensor:
        """Return the test images ``start`` to ``stop - 1`` normalised; float32, shape (n, 32, 32, 3)."""
        return (self._test[start:stop].float() - scale[0]) / scale[1]

    def fill(self, out: Tensor, rows: Tensor, drawn: Tensor, scale: tuple[Tensor, Tensor]) -> None:
        """Write augmented, normalised training images into ``out``, shape (n, 32, 32, 3).

        ``rows`` (n,) are rows of the official training set; ``drawn`` (3, n) contains the crop edges and the
        mirror bit from :func:`draw_epoch`.
        """
        side = torch.arange(_SIDE, device=self.device)
        width = _SIDE + 2 * _PAD
        pixels = self._train.view(-1, 3)
        for start in range(0, len(out), _CHUNK):
            part = slice(start, start + _CHUNK)
            top, left, mirror = drawn[:, part, None]
            y = top + side
            x = left + torch.where(mirror == 1, _SIDE - 1 - side, side)
            index = (rows[part, None] * width + y)[:, :, None] * width + x[:, None, :]
            window = pixels.index_select(0, index.flatten()).view(-1, _SIDE, _SIDE, 3)
            out[part].copy_((window.float() - scale[0]) / scale[1])


def _sums(pixels: Tensor) -> Tensor:
    """Return the sum and the sum of squares of each channel of each image, shape (2, n, 3)."""
    return torch.stack([pixels.sum((1, 2)), pixels.square().sum((1, 2))])


def _rng(seed: int, *key: int) -> np.random.Generator:
    """Return the generator of one random stream; ``key`` is its spawn key."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
