"""Redistribution of probabilities so that no class overtakes the predicted one."""

from __future__ import annotations

import numpy as np

from hetcal._typing import Float

__all__ = ["level", "pool"]


def level(share: Float, c: Float, n_classes: int) -> Float:
    """Make the shares of the other classes just uniform enough that none overtakes the predicted class.

    The shares are mixed with the uniform distribution over the other classes until ``(1 − c) max(share) ≤ c``
    holds up to rounding. Rows that already satisfy this condition are unchanged.

    Parameters
    ----------
    share : (n, K) shares of the other classes in the remaining probability ``1 − c``; rows sum to 1
        The share of the predicted class is zero.
    c : (n,) confidence in the predicted class, at least 1/K
    n_classes : K

    Returns
    -------
    (n, K) new shares of the other classes; the entries of the predicted class are meaningless
    """
    largest = share.max(axis=1)
    odds = np.divide(c, 1 - c, out=np.full_like(c, np.inf), where=c < 1)
    uniform = 1 / (n_classes - 1)
    over = largest > odds
    if not over.any():
        return share
    excess = np.where(over, largest - uniform, 1)
    mix = np.clip(np.where(over, (largest - odds) / np.where(excess > 0, excess, 1), 0), 0, 1)
    return np.asarray((1 - mix)[:, None] * share + mix[:, None] * uniform)


def pool(others: Float, c: Float) -> Float:
    """Average the probabilities of the predicted class and of some of the most probable other classes.

    The average includes as many other classes as necessary so that none overtakes the predicted one. Let
    q_1 ≥ q_2 ≥ … be the probabilities of the other classes in descending order. The new confidence is the
    maximum over m = 0, 1, … of the mean of c, q_1, …, q_m.

    Parameters
    ----------
    others : (n, K) probabilities of the other classes, zero for the predicted one
        Entries above the new confidence are lowered to it in place.
    c : (n,) confidence in the predicted class

    Returns
    -------
    (n,) new confidence in the predicted class
    """
    over = np.flatnonzero(others.max(axis=1) > c)
    if not over.size:
        return c
    descending = -np.sort(-others[over], axis=1)[:, :-1]
    means = (c[over, None] + np.cumsum(descending, axis=1)) / np.arange(2, descending.shape[1] + 2)
    shared = c.copy()
    shared[over] = means.max(axis=1)
    others[over] = np.minimum(others[over], shared[over, None])
    return shared
