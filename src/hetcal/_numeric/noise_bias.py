"""Fits of one or two parameters to noisy labels, without a bias towards the classes with little noise.

One temperature cannot suit all classes. Fitted to clean labels, it is the best compromise between all rows.
The maximum of the likelihood of noisy labels is another compromise: labels of classes with much noise contain
little information, so these classes have little influence. An unbiased estimate of the loss of the true
labels exists: the one-hot vector of the label is replaced by the row of T⁻¹ that belongs to the observed
label. Its minimiser tends to the best compromise for all rows, but has a larger variance, sometimes much
larger. `combine` uses as much of it as the rows justify.

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

_THRESHOLD = 2.0  # as in Akaike's criterion: the variance that a difference must exceed to count as a bias


@dataclass(frozen=True, eq=False)
class Estimate:
    """Parameters that minimise a sum of losses.

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
        """Change of `theta` caused by every row, to first order, (n, p)."""
        return np.asarray(-np.linalg.solve(self.hessian, self.slopes.T).T)


@dataclass(frozen=True, eq=False)
class Combination:
    """Result of `combine`.

    Attributes
    ----------
    theta : (p,) parameters
    squared_error : (p, p) their covariance, plus the square of the estimated bias that remains
    likelihood_weight : weight of the maximum of the likelihood, from 0 to 1
    """

    theta: Float
    squared_error: Float
    likelihood_weight: float


def combine(likelihood: Estimate, unbiased: Estimate) -> Combination:
    """Combine the maximum of the likelihood with the minimiser of the unbiased loss.

    The maximum of the likelihood has the smaller variance, the other one no bias. The distance d between them
    estimates the bias, with a variance V that follows from the influence of every row on both. With the
    weight ``V / (bias² + V)`` for the maximum of the likelihood, the mean squared error is smallest. The
    weight here is ``min(1, 2 V / d²)``, so a distance that is not clearly larger than its standard error
    counts as no bias. Distances are measured by the loss of the true labels.
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
