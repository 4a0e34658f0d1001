"""One temperature for logits of which very low ones are raised.

Naive Bayes, nearest neighbours and random forests return probabilities of 0 or 1e-100. In a map that is
linear in the logits, such values have far more influence than they deserve: a single temperature that suits
them compresses all other logits.
"""

from __future__ import annotations

import numpy as np

from hetcal._numeric.matrix import MASK
from hetcal._numeric.rows import Rows, decide
from hetcal._numeric.source import MemorySource, Source
from hetcal._numeric.temperatures import DEFAULT_BOUNDS, fit_pooled
from hetcal._typing import Float

__all__ = ["fit_clipped"]

_LEVELS = (28.0, 20.0, 14.0, 10.0, 7.0, 5.0)  # distances below the maximum at which logits may be clipped
_MIN_GAIN = 10.0  # decrease of the summed NLL without which logits are not clipped
_MAX_ROWS = 50_000  # rows on which the level is chosen


def fit_clipped(source: Source) -> tuple[float, float]:
    """Inverse temperature α, and the distance below the maximum at which α z should be clipped.

    The distance is infinite unless logits are more than 28 below the maximum (a probability of about 1e-12)
    and one temperature fits clipped logits clearly better. It is chosen on at
    most about 50,000 rows; of rows in blocks, on those of the first block.
    """
    alpha, _ = fit_pooled(source, DEFAULT_BOUNDS)
    rows = source.sample_rows(_MAX_ROWS)
    rows = rows.take(slice(None, None, max(1, len(rows) // _MAX_ROWS)))
    below = rows.below_top(slice(None)).astype(np.float64)
    result = alpha, np.inf
    if not ((below < -_LEVELS[0]) & (below > -MASK)).any():
        return result
    best = _loss(rows, below, alpha) - _MIN_GAIN
    for level in _LEVELS:
        clipped = np.where(below < -MASK, below, np.maximum(below, -level))
        candidate = Rows(clipped, rows.y, decide(clipped), rows.given_weight)
        scale, _ = fit_pooled(MemorySource(candidate), DEFAULT_BOUNDS)
        loss = _loss(rows, clipped, scale)
        if loss < best:
            best, result = loss, (scale, scale * level)
    return result


def _loss(rows: Rows, below: Float, alpha: float) -> float:
    """Summed NLL of one temperature for logits whose maximum is 0."""
    scaled = alpha * below
    label = scaled[np.arange(len(rows)), rows.y]
    return float(rows.weight @ (np.log(np.exp(scaled).sum(axis=1)) - label))
