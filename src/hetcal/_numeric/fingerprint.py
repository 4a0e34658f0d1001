"""Fingerprint of the rows of a fit, to warn if a calibrator is evaluated on the same rows.

If the logits are continuous, a row can be identified by a hash of its content. The fingerprint then contains
the hashes of a sample of the rows. The overlap is estimated from the fraction of these hashes that match rows
of an evaluation, and from the numbers of rows of the fit and of the evaluation.

If the logits take few values, different rows often have equal hashes. In this case, the fingerprint contains
the sum of all hashes instead, which recognises the rows only if exactly the same rows are evaluated. The sum
is left out if not all rows of the fit were available.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import special

from hetcal._numeric.hashing import SALT, Keys, hash_mix
from hetcal._numeric.rows import Rows

__all__ = ["fingerprint", "share_fitted"]

_SAMPLE_ROWS = 1024  # the sample has between one and two times this many rows, or all if there are fewer
_SAMPLE_HASHES = 64  # maximum number of hashes that are stored
_MAX_CHANCE = 0.05  # matches are evidence only if the probability that chance causes them is below this
_NEARLY_ALL = 0.9  # a larger fraction of matching hashes is evidence in any case
_MAX_COPIES = 1e-3  # logits count as continuous if at most this fraction of the sampled hashes is repeated


def fingerprint(rows: Rows, *, complete: bool = True) -> dict[str, Any]:
    """Fingerprint of `rows`, JSON-compatible; `complete` says whether these are all rows of the fit."""
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
    """Estimate the overlap of the rows of a fit with `rows`, as a fraction of the smaller of the two sets.

    `fitted_on` is the fingerprint of the rows of the fit. Without a fingerprint, the result is 0.

    If the fingerprint contains hashes of a sample, the estimate is based on the fraction of these hashes that
    match a hash of `rows`. If 5% or more of the hashes may match by chance, the result is 0 unless over 90%
    match. If the number of rows of the fit is unknown, or if chance may explain the observed number of
    matches, the result is a fraction of the rows of the fit, even if `rows` is the smaller set.

    If the fingerprint contains no hashes of a sample, the result is 1 if both sets have the same number of
    rows and the same sum of hashes, and 0 otherwise.
    """
    if fitted_on is None:
        return 0.0
    hashes = _hash_rows(rows)
    sample = np.array([int(text, 16) for text in fitted_on["sample"]], np.uint64)
    if sample.size:
        share = float(np.isin(sample, hashes).mean())
        # `chance` is a cautious, high estimate of the probability that a stored hash equals the hash of any
        # evaluated row by chance. The m sampled rows of the fit form about m² / 2 pairs, of which hardly any
        # have equal hashes (see `_MAX_COPIES`). We therefore assume that two rows have equal hashes with
        # probability 2 / m², and multiply this by the number of evaluated rows.
        chance = 2 * len(rows) / fitted_on.get("looked_at", _SAMPLE_ROWS) ** 2
        if chance >= _MAX_CHANCE and share <= _NEARLY_ALL:
            return 0.0
        # `share` is a fraction of the rows of the fit. If fewer rows are evaluated than were fitted, it is
        # converted to a fraction of the evaluated rows, but only if chance is unlikely to cause so many
        # matches. The number of matches by chance has approximately a Poisson distribution.
        tail = special.gammainc(share * len(sample), len(sample) * chance) if share else 1.0
        n_fitted = (fitted_on.get("n") or 0) if tail < _MAX_CHANCE else 0
        return min(1.0, share * max(1.0, n_fitted / len(rows)))
    return float(fitted_on.get("n") == len(rows) and fitted_on.get("sum") == _sum(hashes))


def _sum(hashes: Keys) -> str:
    return f"{int(hashes.sum(dtype=np.uint64)):016x}"


def _hash_rows(rows: Rows) -> Keys:
    """Hash of each row's label, predicted class and two logits, (n,).

    The logits are those of the two classes that follow the predicted class (after the last class comes the
    first), minus the largest logit of the row.
    """
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
