"""Empirical Bayes: parameters of many slices, shrunk towards a common centre.

Slices are disjoint sets of rows. The parameters of every slice have the same normal prior. Its mean, the
centre, and its covariance are estimated from all slices by EM with Laplace's approximation. Every slice
receives its posterior mode. This mode is close to the optimum of the slice's own loss if the slice has many
rows, and close to the centre if it has few. The centre itself has a weak prior around the identity map, which
has a noticeable effect only if there are few rows or hardly any misclassified rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hetcal._numeric.threads import with_one_blas_thread
from hetcal._numeric.trust_region import EvaluateVector, LastEvaluation, minimise_in_ball, minimise_pooled
from hetcal._typing import Float, IntArray
from hetcal._warnings import quiet

__all__ = ["Hierarchy", "fit_hierarchy"]


_INITIAL_VARIANCE = 0.05  # initial variance between slices, on the scale of log-odds
_INITIAL_SLICES = 2.0  # in every update, the initial variance has the weight of this many slices
_MIN_VARIANCE = 1e-6
_MAX_ROUNDS = 200
_INNER_TOLERANCE = 1e3  # factor that loosens the tolerances of the optimisation within a round of EM
_CENTRE_STD = 2.0  # prior standard deviation of the centre around the identity map
_CONVERGED = 1e-4


class Hierarchy(NamedTuple):
    """Result of `fit_hierarchy`.

    Attributes
    ----------
    centre : (p,) mean of the prior
    theta : (S, p) parameters of every slice
    spread : (p, p) covariance of the prior
    errors : (S, p, p) posterior covariance of every slice
    """

    centre: Float
    theta: Float
    spread: Float
    errors: Float


@with_one_blas_thread
def fit_hierarchy(evaluate: EvaluateVector, mass: Float, start: Float) -> Hierarchy:
    """Fit the common prior and the parameters of every slice.

    Parameters
    ----------
    evaluate : function that computes the loss, gradient and Hessian of slices
    mass : (S,) total weight of the rows of every slice
    start : (p,) parameters of the identity map
    """
    n, p = len(mass), len(start)
    evaluate = LastEvaluation(evaluate, n, p)  # stores the last results, which are needed again
    all_slices = np.arange(n)
    weak = np.eye(p) / _CENTRE_STD**2  # precision of the weak prior of the centre
    # The optimisation within a round of EM may stop early because of rounding or overflow. No warning is
    # needed then, as the next round continues from there.
    with quiet(RuntimeWarning), np.errstate(all="ignore"):
        centre, _ = minimise_pooled(_penalised(evaluate, start, weak / n), _INNER_TOLERANCE * mass, start)
        theta = np.tile(centre, (n, 1))
        # Parameters with the covariance `unit` change the log-odds about as much as an intercept with
        # variance 1. The intercept is the last parameter.
        curvature = evaluate(theta, all_slices)[2].sum(axis=0) + weak
        unit = _inverse(curvature / curvature[-1, -1])
        initial, least = _INITIAL_VARIANCE * unit, _MIN_VARIANCE * unit
        spread = initial
        for _ in range(_MAX_ROUNDS):
            precision = _inverse(spread)
            penalised = _penalised(evaluate, centre, precision)
            theta = minimise_in_ball(penalised, _INNER_TOLERANCE * mass, theta, centre, np.inf)
            errors = _inverse(evaluate(theta, all_slices)[2] + precision)
            old_centre, old_spread = centre, spread
            centre = np.linalg.solve(n * precision + weak, precision @ theta.sum(axis=0) + weak @ start)
            offset = theta - centre
            scatter = offset.T @ offset + errors.sum(axis=0) + _INITIAL_SLICES * initial
            spread = scatter / (n + _INITIAL_SLICES) + least
            change, shift = np.linalg.solve(unit, spread - old_spread), centre - old_centre
            if np.abs(change).max() < _CONVERGED and shift @ np.linalg.solve(unit, shift) < _CONVERGED**2:
                break
    return Hierarchy(centre, theta, spread, errors)


def _inverse(a: Float) -> Float:
    """Inverse of matrices (..., p, p) whose diagonals are increased by a tiny fraction.

    Without this increase, a matrix could be singular due to rounding, for example if all rows are equal.
    """
    regularised = a * (1 + 1e-12 * np.eye(a.shape[-1]))
    return np.asarray(np.linalg.inv(regularised), float)


def _penalised(evaluate: EvaluateVector, centre: Float, precision: Float) -> EvaluateVector:
    """Return an evaluator of each slice's loss plus ``½ (θ − centre)ᵀ precision (θ − centre)``."""

    def penalised(theta: Float, active: IntArray) -> tuple[Float, Float, Float]:
        loss, gradient, hessian = evaluate(theta, active)
        offset = theta[active] - centre
        force = offset @ precision
        return loss + np.einsum("sp,sp->s", offset, force) / 2, gradient + force, hessian + precision

    return penalised
