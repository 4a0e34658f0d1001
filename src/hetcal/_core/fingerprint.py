"""What a calibrator remembers of the rows that it was fitted on, to warn where it is judged on them.

Rows of continuous logits are told apart by their content: the smallest hashes among them are kept, and the
share of these that turns up in other rows estimates the share of rows that both have. Coarse scores repeat by
chance, so that for these only the very same set of rows counts, by the sum of all hashes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._core.kernels import Rows

__all__ = ["LAST_SHIFT", "MIX", "SALT", "fingerprint", "hash_mix", "share_fitted"]

Hashes = NDArray[np.uint64]

_KEPT = 64  # hashes
_DISTINCT = 0.98  # share of rows without a copy from which logits count as continuous
# Numbers of splitmix64, which spreads the bits of 64-bit numbers.
SALT = 0x9E3779B97F4A7C15
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31


def fingerprint(rows: Rows, *, whole: bool = True) -> dict[str, Any]:
    """Fingerprint of rows, ready for JSON; `whole` says whether these are all rows of the fit."""
    hashes = _hash_rows(rows)
    distinct = np.unique(hashes)
    kept = distinct[:_KEPT] if len(distinct) >= _DISTINCT * len(hashes) else distinct[:0]
    total = f"{int(hashes.sum(dtype=np.uint64)):016x}" if whole else None
    return {"n": len(rows) if whole else None, "sum": total, "sample": [f"{int(h):016x}" for h in kept]}


def share_fitted(fitted_on: Mapping[str, Any] | None, rows: Rows) -> float:
    """Share of the rows behind a fingerprint that are among `rows`, as far as it can tell."""
    if fitted_on is None:
        return 0.0
    hashes = _hash_rows(rows)
    same_sum = fitted_on.get("sum") == f"{int(hashes.sum(dtype=np.uint64)):016x}"
    if same_sum and fitted_on.get("n") == len(rows):
        return 1.0
    sample = np.array([int(text, 16) for text in fitted_on["sample"]], np.uint64)
    return float(np.isin(sample, hashes).mean()) if sample.size else 0.0


def hash_mix(x: Hashes) -> Hashes:
    """Spread the bits of 64-bit numbers, as splitmix64 does; `x` is changed in place."""
    for shift, factor in MIX:
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    x ^= x >> np.uint64(LAST_SHIFT)
    return x


def _hash_rows(rows: Rows) -> Hashes:
    """Hash of each row from its label and three of its logits, of which only differences count."""
    n, k = rows.z.shape
    here, state = np.arange(n), rows.y.astype(np.uint64)
    guess = rows.guess.astype(np.int64)
    top = rows.z[here, guess].astype(np.float64)
    with np.errstate(over="ignore"):
        for step in (1, 2):
            below = (rows.z[here, (guess + step) % k] - top).astype(np.float32)
            state += (below + np.float32(0)).view(np.uint32)  # adding zero makes one of the two zeros
            state *= np.uint64(SALT)
            state ^= guess.astype(np.uint64)
            hash_mix(state)
    return state
