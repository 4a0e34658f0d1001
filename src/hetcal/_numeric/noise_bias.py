"""Correction of the bias in fits of one or two parameters to noisy labels.

One temperature cannot suit all classes. Fitted to clean labels, it is the best compromise for all rows. The
maximum of the likelihood of noisy labels is a different compromise: the labels of very noisy classes contain
little information, so these classes have little influence.

From noisy labels, the loss for the true labels can be estimated without bias. Let ``T[j, y]`` be the
probability of the observed label y given the true class j. The estimate, called the unbiased loss, replaces
the one-hot vector of the observed label y with row y of T⁻¹. The minimiser of the unbiased loss converges to
the best compromise for all rows. However, it has a larger variance than the maximum of the likelihood,
sometimes a much larger one. `combine` therefore mixes this minimiser and the maximum of the likelihood, with
weights that depend on how clearly they differ.

References
----------
Natarajan, Dhillon, Ravikumar and Tewari, "Learning with noisy labels", NeurIPS 2013.
Patrini, Rozza, Menon, Nock and Qu, "Making deep neural networks robust to label noise", CVPR 2017.
Hausman, "Specification tests in econometrics", Econometrica 1978.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetcal._typing import Float

__all__ = ["Combination", "Estimate", "combine"]

# A squared difference of at most this many variances does not count as a bias, as in Akaike's criterion.
_THRESHOLD = 2.0


@dataclass(frozen=True, eq=False)
class Estimate:
    """Parameters that minimise a sum of losses over n rows.

    Attributes
    ----------
    theta : (p,) parameters
    slopes : (n, p) gradient of the weighted loss of every row at `theta`
    hessian : (p, p) Hessian of the sum at `theta`, positive definite
    """

    theta: Float
    slopes: Float
    hessian: Float

    def influence(self) -> Float:
        """Change of `theta` that each row causes, to first order, (n, p)."""
        return np.asarray(-np.linalg.solve(self.hessian, self.slopes.T).T)


@dataclass(frozen=True, eq=False)
class Combination:
    """Result of `combine`.

    Attributes
    ----------
    theta : (p,) parameters
    squared_error : (p, p) covariance of `theta`, plus an estimate of the squared bias that remains
        The squared bias is the outer product of the bias with itself.
    likelihood_weight : weight of the maximum of the likelihood, from 0 to 1
    """

    theta: Float
    squared_error: Float
    likelihood_weight: float


def combine(likelihood: Estimate, unbiased: Estimate) -> Combination:
    """Combine the maximum of the likelihood with the minimiser of the unbiased loss.

    The maximum of the likelihood has the smaller variance, and the minimiser of the unbiased loss has the
    smaller bias. Their distance d estimates the bias of the maximum of the likelihood. The variance V of this
    estimate follows from the influence of every row on both. Distances are measured with the Hessian of the
    unbiased loss.

    The mean squared error is smallest if the maximum of the likelihood has the weight ``V / (bias² + V)``. On
    average, d² is about ``bias² + V``, so ``V / d²`` estimates this weight. The weight used here is twice as
    large, but at most 1. The result is therefore the maximum of the likelihood itself unless d² exceeds 2 V.
    """
    step = unbiased.theta - likelihood.theta
    efficient, robust = likelihood.influence(), unbiased.influence()
    deviation = robust - efficient
    variance = float(np.einsum("ip,pq,iq->", deviation, unbiased.hessian, deviation))
    distance = float(step @ unbiased.hessian @ step)
    weight = 1.0 if distance <= _THRESHOLD * variance else _THRESHOLD * variance / distance
    mixed = weight * efficient + (1 - weight) * robust
    squared_error = mixed.T @ mixed
    if weight < 1:
        squared_error += weight**2 * (1 - variance / distance) * np.outer(step, step)
    return Combination(unbiased.theta - weight * step, squared_error, weight)
