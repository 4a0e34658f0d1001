"""Agreement of predictions with noisy or soft labels, and its distribution under perfect calibration.

With hard labels, the correctness of a prediction is 1 or 0. If the model is calibrated, the correctness is
distributed as Bernoulli(p̂), where p̂ is the confidence. For noisy and soft labels, this module defines a
correctness whose expectation is also p̂ if the model is calibrated. Its deviation from p̂ is modelled as the
deviation of a Bernoulli variable from its mean, multiplied by a scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from hetcal._typing import Float, FloatArray, IntArray

__all__ = ["Agreement", "LabelKind", "noisy_agreement", "observed_probs", "soft_agreement"]

_CHUNK_ELEMENTS = 1 << 18  # probabilities processed at a time
_MIN_SHARE = 1e-12  # lower bound of the variance for soft labels, relative to that for hard labels


class LabelKind(StrEnum):
    """Kind of the labels on which a result is based."""

    HARD = "hard"
    NOISY = "noisy"
    SOFT = "soft"

    @property
    def note(self) -> str:
        """Phrase at the end of a title that states the kind of the labels; empty for hard labels."""
        return {LabelKind.NOISY: ", corrected for label noise", LabelKind.SOFT: ", soft labels"}.get(self, "")


@dataclass(frozen=True, eq=False)
class Agreement:
    """Agreement of predictions with noisy or soft labels.

    If the model is calibrated, ``confidence − correctness`` of a row is distributed as
    ``spread·(expected − B)`` with ``B ~ Bernoulli(expected)``. For noisy labels, this is exact. For soft
    labels, it is an approximation: the mean is exact, and the spread is estimated for every predicted class.

    Attributes
    ----------
    kind : LabelKind
    observed : (n,) array
        For noisy labels, 1 if the observed label is the predicted class, otherwise 0. For soft labels, the
        probability of the predicted class under the soft label.
    expected : (n,) array
        Expectation of `observed` if the model is calibrated.
    spread : (n,) array
        Scale of the deviations of the correctness from the confidence.
    """

    kind: LabelKind
    observed: Float
    expected: Float
    spread: Float

    @property
    def variance(self) -> Float:
        """Variance of ``confidence − correctness`` of every row if the model is calibrated, (n,)."""
        return self.spread**2 * (self.expected * (1 - self.expected))

    @property
    def standardised(self) -> Float:
        """Agreement of every row, standardised for comparison with ``Bernoulli(expected)``, (n,).

        If the model is calibrated and the labels are noisy, the result has exactly this distribution. For
        soft labels, it has the same mean as this distribution, and approximately the same variance.
        """
        if self.kind is LabelKind.NOISY:
            return self.observed
        scaled = self.expected + (self.observed - self.expected) / self.spread
        return np.where(self.spread < 1, scaled, self.observed)


def noisy_agreement(
    p: FloatArray, confidence: FloatArray, guess: IntArray, labels: IntArray, transition: Float
) -> tuple[Agreement, Float]:
    """Return the agreement with noisy labels, and the correctness (n,) corrected for the noise.

    Let p be the probabilities of a row, g its predicted class and T the matrix `transition`. If g is the true
    class, the observed label is g with probability ``A = T[g, g]``. Otherwise, it is g with probability
    ``b = Σ_{j≠g} p_j T[j, g] / (1 − p_g)``. Let B be 1 if the observed label is g, and 0 otherwise. If the
    model is calibrated, the expectation of B is ``π = p_g A + (1 − p_g) b``. The expectation of the
    correctness ``(B − b)/(A − b)`` is then ``p_g``. If p_g is 1, b is the mean of ``T[j, g]`` over the other
    classes.

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
    """Return the agreement with soft labels, and the correctness (n,).

    The correctness of a row is the probability ``q_g`` that its soft label q gives to the predicted class g.
    If the model is calibrated, its expectation is ``E[q_g | p] = p_g``. Its variance is then
    ``p_g (1 − p_g) − E[q_g (1 − q_g) | p]``: the variance for a hard label, minus the uncertainty within the
    soft label.

    The sum of these variances over the rows predicted as a class has two unbiased estimates. The sum of
    ``p_g (1 − p_g) − q_g (1 − q_g)`` is reliable if the soft labels are close to one-hot, and the sum of
    ``(p_g − q_g)²`` is reliable if they are not. The larger estimate is used, but at most the variance for
    hard labels. One-hot labels therefore give the same results as hard labels.

    Parameters
    ----------
    confidence, guess : (n,) largest probability and its class
    labels : (n, K) soft labels
    n_classes : K
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
