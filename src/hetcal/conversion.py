"""Conversion of probabilities and binary scores to logits."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hetcal._binary_probs import two_columns
from hetcal._coerce import real_array, refuse_non_finite, working_dtype
from hetcal._numeric.probabilities import log_probs, probability_floor
from hetcal._typing import FloatArray
from hetcal._validate import check_number, check_probs

__all__ = ["binary_logits", "to_logits"]


def to_logits(probs: ArrayLike, *, floor: float | None = None) -> FloatArray:
    """Return the logarithms of probabilities, which are logits whose softmax is `probs`.

    Probabilities below `floor` are first raised to it, since zero has no logarithm. The rows for `fit` and
    for `predict_proba` need the same floor. ``fit(probs=...)`` and ``predict_proba(probs=...)`` ensure this.

    Parameters
    ----------
    probs : (n, K) probabilities, or (n,) probabilities of class 1
    floor : float in (0, 1/K), optional
        By default half of the smallest positive probability of any class, but at least 1.2e-38 and at most
        ``1/(2K)``.

    Returns
    -------
    logits : (n, K) array

    Examples
    --------
    >>> import numpy as np
    >>> to_logits([[0.25, 0.75]]).round(3)
    array([[-1.386, -0.288]])
    >>> to_logits([[0.2, 0.8], [0.0, 1.0]]).round(3)  # 0 is raised to 0.1
    array([[-1.609, -0.223],
           [-2.303,  0.   ]])
    """
    p = check_probs(two_columns(probs))
    if floor is None:
        return log_probs(p, probability_floor(p))
    check_number(floor, "floor", above=0, below=1 / p.shape[1], remedy="leave it out for the default")
    return log_probs(p, floor)


def binary_logits(scores: ArrayLike) -> FloatArray:
    """Return logits ``(0, score)`` for one score per row, so that class 1 has probability ``sigmoid(score)``.

    Parameters
    ----------
    scores : (n,) or (n, 1) log-odds of class 1

    Returns
    -------
    logits : (n, 2) array

    Examples
    --------
    >>> binary_logits([2.0, -1.0])
    array([[ 0.,  2.],
           [ 0., -1.]])
    """
    s = working_dtype(real_array(scores, "scores"))
    if s.ndim == 2 and s.shape[1] == 1:
        s = s[:, 0]
    if s.ndim != 1:
        raise ValueError(
            f"scores must have shape (n,) or (n, 1), got shape {s.shape}; "
            "calibrators accept logits (n, K) directly"
        )
    refuse_non_finite(s, "scores")
    return np.stack([np.zeros_like(s), s], axis=1)
