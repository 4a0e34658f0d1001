"""Likelihood of the noise rates of labels, from how often the labels agree with predictions.

In the model, a row of true class k keeps the label k with probability ``1 − ρ_k``, where ρ_k is called the
noise rate. Otherwise, its label is drawn uniformly from all K classes. If class k is predicted correctly, the
label therefore agrees with the prediction with probability ``1 − ρ_k + ρ_k/K``. If class k is predicted
wrongly, this probability is ``ρ'/K``, where ρ' is the mean noise rate of the true classes of the rows that
are wrongly predicted as k. How the classifier divides probability among the classes other than the predicted
one matters only for ρ'.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import special

from hetcal._typing import BoolArray, Float, FloatArray, IntArray

__all__ = ["log_odds", "profile_rates"]

_MAX_STEPS = 100
_MAX_HALVINGS = 20
_CONVERGED = 1e-6
_LEAST = 1e-12
# Standard deviations of the normal priors of a (the logarithm of a slope) and b (an intercept); see
# `profile_rates`. A joint fit to all classes uses priors with mean 0. Its a and b are the means of the priors
# for each class.
_SLOPE_STD, _INTERCEPT_STD = 1.0, 1.5

Evaluate = Callable[[Float], tuple[Float, Float, Float]]


def log_odds(z: FloatArray, predicted: IntArray) -> Float:
    """Log-odds ``log(p̂ / (1 − p̂))`` of the predicted class of every row, (n,).

    `predicted` (n,) is the argmax of every row of the logits `z` (n, K).
    """
    others = (z - z.max(axis=1, keepdims=True)).astype(np.float64)
    others[np.arange(len(z)), predicted] = -np.inf
    return np.asarray(-special.logsumexp(others, axis=1))


def profile_rates(
    x: Float, predicted: IntArray, agrees: BoolArray, rates: Float, n_classes: int, other_rate: Float
) -> Float:
    """Negative logarithm of the profile likelihood of R noise rates for every predicted class, (R, K).

    The calibrated confidence is ``sigmoid(exp(a) x + b)``. For each class and noise rate, a and b maximise
    the product of the likelihood and their prior density. The result is the negative logarithm of this
    maximum, up to a constant.

    Parameters
    ----------
    x : (n,) log-odds of the predicted classes
    predicted, agrees : (n,) predicted class, and whether the observed label agrees with it
    rates : (R,) noise rates
        A fit to all classes together, with the first of these rates, gives the means of the priors.
    n_classes : K
    other_rate : (K,) mean noise rate of the true classes of the rows that are wrongly predicted as each class
    """
    everything = np.zeros(len(x), np.int64)
    pooled = _platt(x, everything, agrees, float(rates[0]), n_classes, other_rate.mean(keepdims=True), None)
    centre = _minimise(pooled, np.zeros((1, 2)))[0][0]
    theta = np.tile(centre, (n_classes, 1))
    losses = np.empty((len(rates), n_classes))
    for i, rate in enumerate(rates):
        evaluate = _platt(x, predicted, agrees, float(rate), n_classes, other_rate, centre)
        theta, losses[i] = _minimise(evaluate, theta)
    return losses


def _platt(
    x: Float,
    group: IntArray,
    agrees: BoolArray,
    rate: float,
    n_classes: int,
    other_rate: Float,
    centre: Float | None,
) -> Evaluate:
    """Return a function that computes the loss of S groups of rows from their parameters (a, b), (S, 2).

    The function returns the loss (S,), its gradient (S, 2) and its Hessian (S, 2, 2). The loss is the
    negative log-likelihood of `agrees` minus the logarithm of the prior density of a and b, up to a constant.
    The priors have the mean `centre` (2,), or 0 if it is None. `group` (n,) is the group of every row.
    """
    n_groups = len(other_rate)
    chance = (other_rate / n_classes)[group]
    # How much higher P(agreement) is for a correct prediction than for a wrong one
    gain = 1 - rate * (1 - 1 / n_classes) - chance
    middle = np.zeros(2) if centre is None else centre
    precision = np.array([_SLOPE_STD**-2, _INTERCEPT_STD**-2])

    def sums(values: Float) -> Float:
        return np.asarray(np.bincount(group, values, n_groups), np.float64)

    def evaluate(theta: Float) -> tuple[Float, Float, Float]:
        steep = np.exp(theta[group, 0]) * x
        s = special.expit(steep + theta[group, 1])
        q = np.where(agrees, chance + gain * s, 1 - chance - gain * s)
        q = np.maximum(q, _LEAST)
        slope = np.where(agrees, 1.0, -1.0) * gain * s * (1 - s) / q  # d log q / d(calibrated log-odds)
        bend = slope * slope - slope * (1 - 2 * s)
        offset = theta - middle
        loss = sums(-np.log(q)) + (precision * offset**2).sum(axis=1) / 2
        gradient = np.stack([sums(-slope * steep), sums(-slope)], axis=1) + precision * offset
        hessian = np.empty((n_groups, 2, 2))
        hessian[:, 0, 0] = sums(bend * steep * steep - slope * steep) + precision[0]
        hessian[:, 0, 1] = hessian[:, 1, 0] = sums(bend * steep)
        hessian[:, 1, 1] = sums(bend) + precision[1]
        return loss, gradient, hessian

    return evaluate


def _minimise(evaluate: Evaluate, theta: Float) -> tuple[Float, Float]:
    """Minimise S independent functions at once by Newton steps that change no parameter by more than 1.

    Steps that increase a function are halved. Returns the parameters (S, p) and the minima (S,).
    """
    loss, gradient, hessian = evaluate(theta)
    for _ in range(_MAX_STEPS):
        values, vectors = np.linalg.eigh(hessian)
        values = np.maximum(np.abs(values), _LEAST)
        step = -np.einsum("spq,sq->sp", vectors, np.einsum("spq,sp->sq", vectors, gradient) / values)
        step /= np.maximum(1, np.abs(step).max(axis=1, keepdims=True))
        new = theta + step
        for _ in range(_MAX_HALVINGS):
            value = evaluate(new)
            is_worse = value[0] > loss + 1e-10 * np.abs(loss)
            if not is_worse.any():
                break
            new = np.where(is_worse[:, None], (theta + new) / 2, new)
        else:
            new = np.where(is_worse[:, None], theta, new)
            value = evaluate(new)
        change = float(np.abs(new - theta).max())
        theta, (loss, gradient, hessian) = new, value
        if change < _CONVERGED:
            break
    return theta, loss
