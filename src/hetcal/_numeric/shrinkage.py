"""Parameters of many slices drawn to a common mean by how much each slice knows about its own.

A slice's parameters are taken to be drawn from a normal distribution around a centre. Its mean and
covariance are learned from all slices (empirical Bayes, by EM with Laplace's approximation), and every slice
then has its posterior mode: a slice with many rows its own optimum, one with few nearly the centre. The
centre itself is drawn, weakly, to parameters that change nothing, which counts only where there are few rows
or no errors among them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hetcal._numeric.threads import with_one_blas_thread
from hetcal._numeric.trust_region import EvaluateVector, minimise_in_ball, minimise_pooled
from hetcal._typing import Float, IntArray
from hetcal._warnings import quiet

__all__ = ["Hierarchy", "fit_hierarchy"]


_FIRST = 0.05  # variance to begin with, of log-odds at the mean
_BELIEF = 2.0  # slices that this first guess counts as much as
_LEAST = 1e-6
_ROUNDS = 200
_EASE = 1e3  # rounds need not be solved to the last bit
_WIDE = 2.0  # standard deviation of the centre around parameters that change nothing
_SETTLED = 1e-4


class Hierarchy(NamedTuple):
    """Centre (p,), parameters (S, p), their spread (p, p), and the posterior covariance of each (S, p, p)."""

    centre: Float
    theta: Float
    spread: Float
    errors: Float


@with_one_blas_thread
def fit_hierarchy(evaluate: EvaluateVector, mass: Float, start: Float) -> Hierarchy:
    """Fit slices of weights `mass` (S,); `start` (p,) are the parameters that change nothing."""
    n, p = len(mass), len(start)
    everyone = np.arange(n)
    weak = np.eye(p) / _WIDE**2
    # A round that ends early by rounding or overflow is no worse for it: the next one goes on from there.
    with quiet(RuntimeWarning), np.errstate(all="ignore"):
        centre, _ = minimise_pooled(_drawn(evaluate, start, weak / n), _EASE * mass, start)
        theta = np.tile(centre, (n, 1))
        # One unit of every parameter as large as it is for the log-odds, whose own unit is the last one.
        bend = evaluate(theta, everyone)[2].sum(axis=0) + weak
        unit = _inverse(bend / bend[-1, -1])
        first, least = _FIRST * unit, _LEAST * unit
        spread = first
        for _ in range(_ROUNDS):
            pull = _inverse(spread)
            theta = minimise_in_ball(_drawn(evaluate, centre, pull), _EASE * mass, theta, centre, np.inf)
            errors = _inverse(evaluate(theta, everyone)[2] + pull)
            before = centre, spread
            centre = np.linalg.solve(n * pull + weak, pull @ theta.sum(axis=0) + weak @ start)
            away = theta - centre
            spread = (away.T @ away + errors.sum(axis=0) + _BELIEF * first) / (n + _BELIEF) + least
            moved, shift = np.linalg.solve(unit, spread - before[1]), centre - before[0]
            if np.abs(moved).max() < _SETTLED and shift @ np.linalg.solve(unit, shift) < _SETTLED**2:
                break
    return Hierarchy(centre, theta, spread, errors)


def _inverse(a: Float) -> Float:
    """Inverse of curvatures (..., p, p), made to exist where equal rows bend in one direction only."""
    slightly = 1 + 1e-12 * np.eye(a.shape[-1])
    return np.asarray(np.linalg.inv(a * slightly), float)


def _drawn(evaluate: EvaluateVector, centre: Float, pull: Float) -> EvaluateVector:
    """The loss with ``½ (θ − centre)ᵀ pull (θ − centre)`` added."""

    def drawn(theta: Float, active: IntArray) -> tuple[Float, Float, Float]:
        loss, gradient, hessian = evaluate(theta, active)
        away = theta[active] - centre
        force = away @ pull
        return loss + np.einsum("sp,sp->s", away, force) / 2, gradient + force, hessian + pull

    return drawn
