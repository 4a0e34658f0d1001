"""64-bit hashes of rows, for folds and fingerprints; they are the same on a device and in memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hetcal._numeric.threads import over_blocks
from hetcal._typing import FloatArray

__all__ = ["LAST_SHIFT", "MIX", "SALT", "Keys", "hash_mix", "ordered_keys", "row_keys"]

Keys = NDArray[np.uint64]

# Constants of splitmix64, which mixes the bits of 64-bit integers.
SALT = 0x9E3779B97F4A7C15
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31

_CHUNK = 1 << 15  # logits hashed at a time: few enough to stay in the cache


def hash_mix(x: Keys) -> Keys:
    """Mix the bits of 64-bit integers as in splitmix64; `x` is modified in place and returned."""
    for shift, factor in MIX:
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    x ^= x >> np.uint64(LAST_SHIFT)
    return x


def row_keys(z: FloatArray) -> Keys:
    """Hash of each row's ``z − max z``, (n,). The order of the columns does not affect it."""
    keys = np.empty(len(z), np.uint64)
    (shift, factor), _ = MIX
    step = max(1, _CHUNK // z.shape[1])

    def hash_block(start: int, stop: int) -> None:
        for first in range(start, stop, step):
            part = z[first : min(first + step, stop)]
            with np.errstate(over="ignore"):
                below = part - part.max(axis=1, keepdims=True)
            below += 0  # turns −0 into 0
            x = _bits(below) * np.uint64(SALT)
            x ^= x >> np.uint64(shift)
            x *= np.uint64(factor)
            keys[first : first + len(part)] = x.sum(axis=1, dtype=np.uint64)

    over_blocks(hash_block, *z.shape)
    return keys


def ordered_keys(z: FloatArray) -> Keys:
    """Hash of each row's logits, (n,). The order of the columns affects it."""
    column = np.arange(1, z.shape[1] + 1, dtype=np.uint64) * np.uint64(SALT)
    return np.asarray(hash_mix(_bits(np.ascontiguousarray(z + 0)) ^ column).sum(axis=1, dtype=np.uint64))


def _bits(values: FloatArray) -> Keys:
    """Bits of floating-point numbers as unsigned 64-bit integers."""
    return np.asarray(values.view(np.uint32 if values.itemsize == 4 else np.uint64), np.uint64)
