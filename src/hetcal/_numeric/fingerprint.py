"""Fingerprint of the rows of a fit, to warn if a calibrator is evaluated on the same rows.

Rows with continuous logits are identified by their content. The fingerprint contains the hashes of a
sample, and the fraction of these hashes among the rows of an evaluation estimates the overlap. Coarse scores
coincide by chance, so for them only the identical set of rows is recognised, by the sum of all hashes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hetcal._numeric.hashing import SALT, Keys, hash_mix
from hetcal._numeric.rows import Rows

__all__ = ["fingerprint", "share_fitted"]

_SAMPLE_ROWS = 1024  # rows that are hashed
_SAMPLE_HASHES = 64  # hashes that are stored
_RARE, _NEARLY_ALL = 0.05, 0.9  # expected chance matches, and overlap that outweighs them
_MAX_COPIES = 1e-3  # fraction of copies up to which logits count as continuous


def fingerprint(rows: Rows, *, complete: bool = True) -> dict[str, Any]:
    """Fingerprint of rows, ready for JSON; `complete` states whether these are all rows of the fit."""
    step = max(1, len(rows) // _SAMPLE_ROWS)
    hashes = _hash_rows(rows.take(slice(None, None, step)))
    distinct = np.unique(hashes)
    sample = distinct[:: max(1, len(distinct) // _SAMPLE_HASHES)][:_SAMPLE_HASHES]
    if len(hashes) - len(distinct) > _MAX_COPIES * len(hashes):
        sample = sample[:0]
    return {
        "n": len(rows) if complete else None,
        "sum": _sum(_hash_rows(rows)) if complete and not sample.size else None,
        "looked_at": len(hashes),
        "sample": [f"{int(h):016x}" for h in sample],
    }


def share_fitted(fitted_on: Mapping[str, Any] | None, rows: Rows) -> float:
    """Estimated fraction of the rows of a fingerprint that are among `rows`."""
    if fitted_on is None:
        return 0.0
    hashes = _hash_rows(rows)
    sample = np.array([int(text, 16) for text in fitted_on["sample"]], np.uint64)
    if sample.size:
        share = float(np.isin(sample, hashes).mean())
        # Scores may be coarse even if a small sample has no copies; they then match other rows by chance.
        chance = 2 * len(rows) / fitted_on.get("looked_at", _SAMPLE_ROWS) ** 2
        return share if chance < _RARE or share > _NEARLY_ALL else 0.0
    return float(fitted_on.get("n") == len(rows) and fitted_on.get("sum") == _sum(hashes))


def _sum(hashes: Keys) -> str:
    return f"{int(hashes.sum(dtype=np.uint64)):016x}"


def _hash_rows(rows: Rows) -> Keys:
    """Hash of each row from its label and the differences of three of its logits."""
    n, k = rows.z.shape
    index, state = np.arange(n), rows.y.astype(np.uint64)
    guess = rows.guess.astype(np.int64)
    top = rows.z[index, guess].astype(np.float64)
    with np.errstate(over="ignore"):
        for step in (1, 2):
            below = (rows.z[index, (guess + step) % k] - top).astype(np.float32)
            state += (below + np.float32(0)).view(np.uint32)  # adding zero turns −0 into 0
            state *= np.uint64(SALT)
            state ^= guess.astype(np.uint64)
            hash_mix(state)
    return state
