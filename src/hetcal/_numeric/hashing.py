"""Hashes of rows, for folds and fingerprints: 64-bit numbers that every route computes alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hetcal._numeric.threads import over_blocks
from hetcal._typing import FloatArray

__all__ = ["LAST_SHIFT", "MIX", "SALT", "Keys", "hash_mix", "ordered_keys", "row_keys"]

Keys = NDArray[np.uint64]

# Numbers of splitmix64, which spreads the bits of 64-bit numbers.
SALT = 0x9E3779B97F4A7C15
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31

_CHUNK = 1 << 15  # logits hashed together: they stay in the caches


def hash_mix(x: Keys) -> Keys:
    """Spread the bits of 64-bit numbers, as splitmix64 does; `x` is changed in place."""
    for shift, factor in MIX:
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    x ^= x >> np.uint64(LAST_SHIFT)
    return x


def row_keys(z: FloatArray) -> Keys:
    """Hash of each row's distances below its top logit, whatever the order of the columns."""
    keys = np.empty(len(z), np.uint64)
    (shift, factor), _ = MIX
    step = max(1, _CHUNK // z.shape[1])

    def some(start: int, stop: int) -> None:
        for at in range(start, stop, step):
            part = z[at : min(at + step, stop)]
            with np.errstate(over="ignore"):
                below = part - part.max(axis=1, keepdims=True)
            below += 0  # makes one of the two zeros
            x = _bits(below) * np.uint64(SALT)
            x ^= x >> np.uint64(shift)
            x *= np.uint64(factor)
            keys[at : at + len(part)] = x.sum(axis=1, dtype=np.uint64)

    over_blocks(some, *z.shape)
    return keys


def ordered_keys(z: FloatArray) -> Keys:
    """Hash of each row in which the order of the columns counts."""
    column = np.arange(1, z.shape[1] + 1, dtype=np.uint64) * np.uint64(SALT)
    return np.asarray(hash_mix(_bits(np.ascontiguousarray(z + 0)) ^ column).sum(axis=1, dtype=np.uint64))


def _bits(values: FloatArray) -> Keys:
    """Bits of floating-point numbers as integers of 64 bits."""
    return np.asarray(values.view(np.uint32 if values.itemsize == 4 else np.uint64), np.uint64)
