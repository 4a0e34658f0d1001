"""Generate logits and labels for the benchmarks, in blocks to save memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["make_rows", "mean_nll", "name_of", "save_problem", "softmax", "tiles"]

Logits = NDArray[np.float32]
Labels = NDArray[np.int64]
_BLOCK = 1 << 22  # elements per block


def name_of(n: int, k: int) -> str:
    """Return the name of a problem in tables."""
    return f"{n:,} × {k:,}"


def make_rows(n: int, k: int, seed: int = 0) -> tuple[Logits, Labels]:
    """Generate logits that are over-confident for half of the classes and under-confident for the others."""
    rng = np.random.default_rng(seed)
    z, y = np.empty((n, k), np.float32), np.empty(n, np.int64)
    alpha = np.where(np.arange(k) < k // 2, 0.6, 1.5).astype(np.float32)
    for start in range(0, n, step := max(1, _BLOCK // k)):
        part = z[start : start + step]
        rng.standard_normal(out=part, dtype=np.float32)
        part *= np.float32(2.5)
        cumulative = softmax(alpha[part.argmax(axis=1), None] * part).cumsum(axis=1)
        threshold = rng.random((len(part), 1), dtype=np.float32) * cumulative[:, -1:]
        y[start : start + step] = np.minimum((cumulative < threshold).sum(axis=1), k - 1)
    return z, y


def tiles(z: Logits, y: Labels, n_tiles: int) -> Iterator[tuple[Logits, Labels]]:
    """Yield copies of the rows, each rotated by another offset and with a constant added to all logits.

    The constant does not change the softmax, so the optimal temperatures of all copies are those of one copy.
    """
    for tile in range(n_tiles):
        offset = tile * 4099 % len(z)
        yield np.roll(z, offset, axis=0) + np.float32(tile % 16 / 8), np.roll(y, offset)


def save_problem(folder: Path, n: int, k: int) -> None:
    """Save the rows as two files for a fresh process."""
    z, y = make_rows(n, k)
    np.save(folder / "logits.npy", z)
    np.save(folder / "labels.npy", y)


def softmax(z: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return probabilities in the dtype of the logits."""
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return p


def mean_nll(z: Logits, y: Labels, scale: NDArray[np.floating] | float, bias: float | NDArray = 0.0) -> float:
    """Return the mean NLL of ``softmax(scale · z + bias)``, computed in float64."""
    total = 0.0
    for start in range(0, len(z), step := max(1, _BLOCK // z.shape[1])):
        u = z[start : start + step].astype(np.float64) * scale + bias
        u -= u.max(axis=1, keepdims=True)
        true = u[np.arange(len(u)), y[start : start + step]]
        total += float((np.log(np.exp(u).sum(axis=1)) - true).sum())
    return total / len(z)
