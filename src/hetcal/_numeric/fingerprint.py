"""What a calibrator remembers of the rows that it was fitted on, to warn where it is judged on them.

Rows of continuous logits are told apart by their content: hashes of some of them are kept, and the share of
these that turns up in other rows estimates the share of rows that both have. Coarse scores repeat by chance,
so that for these only the very same set of rows counts, by the sum of all hashes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hetcal._numeric.hashing import SALT, Keys, hash_mix
from hetcal._numeric.rows import Rows

__all__ = ["fingerprint", "share_fitted"]

_LOOKED_AT = 1024  # rows
_KEPT = 64  # hashes of theirs
_RARE, _NEARLY_ALL = 0.05, 0.9
_COPIES = 1e-3  # share of copies among these rows up to which logits count as continuous


def fingerprint(rows: Rows, *, whole: bool = True) -> dict[str, Any]:
    """Fingerprint of rows, ready for JSON; `whole` says whether these are all rows of the fit."""
    step = max(1, len(rows) // _LOOKED_AT)
    some = _hash_rows(rows.take(slice(None, None, step)))
    distinct = np.unique(some)
    sample = distinct[:: max(1, len(distinct) // _KEPT)][:_KEPT]
    if len(some) - len(distinct) > _COPIES * len(some):
        sample = sample[:0]
    return {
        "n": len(rows) if whole else None,
        "sum": _sum(_hash_rows(rows)) if whole and not sample.size else None,
        "looked_at": len(some),
        "sample": [f"{int(h):016x}" for h in sample],
    }


def share_fitted(fitted_on: Mapping[str, Any] | None, rows: Rows) -> float:
    """Share of the rows behind a fingerprint that are among `rows`, as far as it can tell."""
    if fitted_on is None:
        return 0.0
    hashes = _hash_rows(rows)
    sample = np.array([int(text, 16) for text in fitted_on["sample"]], np.uint64)
    if sample.size:
        share = float(np.isin(sample, hashes).mean())
        # Few rows without a copy may still be coarse: then some of them turn up in others by chance.
        chance = 2 * len(rows) / fitted_on.get("looked_at", _LOOKED_AT) ** 2
        return share if chance < _RARE or share > _NEARLY_ALL else 0.0
    return float(fitted_on.get("n") == len(rows) and fitted_on.get("sum") == _sum(hashes))


def _sum(hashes: Keys) -> str:
    return f"{int(hashes.sum(dtype=np.uint64)):016x}"


def _hash_rows(rows: Rows) -> Keys:
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
