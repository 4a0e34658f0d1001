"""Agreement of predictions with noisy or soft labels, and its distribution under perfect calibration.

With hard labels, a prediction is correct (1) or wrong (0), and this number is distributed as Bernoulli(p̂)
if the confidence p̂ is calibrated. Noisy and soft labels are reduced to a similar form: every row has a
number, its correctness, whose mean is p̂ if the confidences are calibrated. The deviation of the correctness
from p̂ then behaves like that of a Bernoulli variable from its mean, times a scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from hetcal._typing import Float, FloatArray, IntArray

__all__ = ["Agreement", "LabelKind", "noisy_agreement", "observed_probs", "soft_agreement"]

_CHUNK_ELEMENTS = 1 << 18  # probabilities processed at a time
_MIN_SHARE = 1e-12  # lower bound of the relative variance of soft labels; larger than rounding errors


class LabelKind(StrEnum):
    """Kind of the labels on which a result is based."""

    HARD = "hard"
    NOISY = "noisy"
    SOFT = "soft"

    @property
    def note(self) -> str:
        """Text that ends the title of a result; empty for hard labels."""
        return {LabelKind.NOISY: ", corrected for label noise", LabelKind.SOFT: ", soft labels"}.get(self, "")


@dataclass(frozen=True, eq=False)
class Agreement:
    """Agreement of predictions with noisy or soft labels.

    If the confidences are calibrated, ``confidence − correctness`` of a row is distributed as
    ``spread·(expected − B)`` with ``B ~ Bernoulli(expected)``. For noisy labels, this is exact. For soft
    labels, it is an approximation with the same mean and, over the rows of a class, the same variance.

    Attributes
    ----------
    kind : LabelKind
    observed : (n,) array
        Whether the observed label is the predicted class, as 0 or 1, or the probability that a soft label
        gives to the predicted class.
    expected : (n,) array
        Expectation of `observed` if the confidences are calibrated.
    spread : (n,) array
        Scale of the deviations of the correctness from the confidence.
    """

    kind: LabelKind
    observed: Float
    expected: Float
    spread: Float

    @property
    def variance(self) -> Float:
        """Variance of ``confidence − correctness`` if the confidences are calibrated, (n,)."""
        return self.spread**2 * (self.expected * (1 - self.expected))

    @property
    def standardised(self) -> Float:
        """Numbers that are distributed as Bernoulli(expected) if the confidences are calibrated, (n,).

        For soft labels, only their mean and variance are those of the Bernoulli variable.
        """
        if self.kind is LabelKind.NOISY:
            return self.observed
        scaled = self.expected + (self.observed - self.expected) / self.spread
        return np.where(self.spread < 1, scaled, self.observed)


def noisy_agreement(
    p: FloatArray, confidence: FloatArray, guess: IntArray, labels: IntArray, transition: Float
) -> tuple[Agreement, Float]:
    """Agreement with labels that are observed through `transition`, and the corrected correctness (n,).

    Let g be the predicted class of a row, and p its probabilities. The observed label is g with probability
    ``A = T[g, g]`` if g is the true class, and with probability ``b = Σ_{j≠g} p_j T[j, g] / (1 − p_g)`` if it
    is not. The agreement B of the observed label with g (0 or 1) has the expectation
    ``π = p_g A + (1 − p_g) b``, and ``(B − b)/(A − b)`` has the expectation ``p_g``. If p_g is 1, b is the
    mean of ``T[j, g]`` over the other classes.

    Parameters
    ----------
    p : (n, K) probabilities
    confidence, guess : (n,) largest probability and its class
    labels : (n,) observed labels
    transition : (K, K) probabilities of the observed label (columns) given the true one (rows)
    """
    n, k = p.shape
    kept = np.diag(transition)
    to_class = np.ascontiguousarray(transition.T)
    by_mistake = (to_class.sum(axis=1) - kept) / (k - 1)
    b, step = np.empty(n), max(1, _CHUNK_ELEMENTS // k)
    for start in range(0, n, step):
        rows = slice(start, start + step)
        others, g = p[rows].astype(np.float64), guess[rows]
        others[np.arange(len(g)), g] = 0
        rest = others.sum(axis=1)
        weighted = np.einsum("ij,ij->i", others, to_class[g])
        b[rows] = np.divide(weighted, rest, out=by_mistake[g].copy(), where=rest > 0)
    c, a = confidence.astype(np.float64), kept[guess]
    slope = a - b
    agrees = (guess == labels).astype(np.float64)
    expected = np.clip(c * a + (1 - c) * b, 0, 1)
    return Agreement(LabelKind.NOISY, agrees, expected, 1 / slope), (agrees - b) / slope


def soft_agreement(
    confidence: FloatArray, guess: IntArray, labels: Float, n_classes: int
) -> tuple[Agreement, Float]:
    """Agreement with soft labels (n, K), and the correctness (n,), which is ``q_g`` of the predicted class g.

    If the model is calibrated, ``E[q_g | p] = p_g``. The variance of ``q_g`` is then
    ``p_g (1 − p_g) − E[q_g (1 − q_g) | p]``: that of a hard label, less the uncertainty within the soft
    label. The sum of this variance over the rows of a class has two unbiased estimates: the sum of
    ``p_g (1 − p_g) − q_g (1 − q_g)``, which is reliable if the soft labels are close to one-hot, and the sum
    of ``(p_g − q_g)²``, which is reliable if they are not. The larger estimate is used, up to the variance
    of hard labels. One-hot labels therefore give the same results as hard labels.
    """
    c, q = confidence.astype(np.float64), labels[np.arange(len(labels)), guess]
    hard, within, square = (
        np.bincount(guess, weights=values, minlength=n_classes)
        for values in (c * (1 - c), q * (1 - q), (c - q) ** 2)
    )
    variance = np.clip(np.maximum(hard - within, square), _MIN_SHARE * hard, hard)
    share = np.divide(variance, hard, out=np.ones(n_classes), where=hard > 0)
    return Agreement(LabelKind.SOFT, q, c, np.sqrt(share)[guess]), q


def observed_probs(p: FloatArray, transition: Float | None) -> FloatArray:
    """Probabilities (n, K) of the observed labels; the same as `p` if `transition` is None."""
    return p if transition is None else np.asarray(p @ transition)
