"""Exact minimiser of the NLL under ``‖a‖ ≤ R`` on the three atoms of Theorem 3.1, for many data sets at once.

The labels (1 at v, 0 at −v and at v') can be separated by a line, so the loss falls along every separating
direction and the constraint is active. With ``g`` the derivative of each atom's share of the loss, the
conditions of optimality are

    g(v) = g(−v) + g(v')                          (intercept b)
    a    = R · direction of (2 − r) v − r v',     r = g(v') / g(v) in [0, 1].

The problem is convex, so whoever meets both is the minimiser. For a given r the first is an equation in b
whose logarithm has a slope between 1 and 2: Newton. The second is then an equation in r that has opposite
signs at 0 and 1: bisection, which cannot fail.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

__all__ = ["ATOMS", "minimise_nll"]

Floats = NDArray[np.float64]

# Rows v, −v and v' = (u + v)/√2, in the basis (v, u).
ATOMS: Floats = np.array([[1.0, 0.0], [-1.0, 0.0], [np.sqrt(0.5), np.sqrt(0.5)]])
_SIGNS: Floats = np.array([1.0, -1.0, -1.0])  # labels 1, 0, 0
_BISECTIONS = 54  # halvings of [0, 1] that exhaust a float64
_NEWTON_STEPS = 100


def minimise_nll(counts: NDArray[np.int64], radius: float) -> tuple[Floats, Floats]:
    """Weights (m, 2) in the basis (v, u) and intercepts (m,) for counts (m, 3) of the atoms v, −v, v'.

    nan where only one label occurs: the loss then falls for ever with the intercept and has no minimiser.
    """
    distinct, back = np.unique(counts, axis=0, return_inverse=True)
    weight = np.full((len(distinct), 2), np.nan)
    bias = np.full(len(distinct), np.nan)
    both = (distinct[:, 0] > 0) & (distinct[:, 1:].sum(axis=1) > 0)
    weight[both], bias[both] = _solve(distinct[both], radius)
    back = back.reshape(-1)  # numpy 2.0 kept the axis
    return weight[back], bias[back]


def _solve(counts: NDArray[np.int64], radius: float) -> tuple[Floats, Floats]:
    with np.errstate(divide="ignore"):
        log_counts: Floats = np.log(counts.astype(np.float64))
    low, high = np.zeros(len(counts)), np.ones(len(counts))
    bias = np.zeros(len(counts))
    for _ in range(_BISECTIONS):
        ratio = (low + high) / 2
        margins = _SIGNS * (_weight(ratio, radius) @ ATOMS.T)
        bias = _intercept(log_counts, margins, bias)
        log_g = _log_gradients(log_counts, margins, bias)
        short = log_g[:, 2] - log_g[:, 0] > np.log(ratio)
        low, high = np.where(short, ratio, low), np.where(short, high, ratio)
    ratio = np.where(counts[:, 2] == 0, 0.0, np.where(counts[:, 1] == 0, 1.0, (low + high) / 2))
    weight = _weight(ratio, radius)
    return weight, _intercept(log_counts, _SIGNS * (weight @ ATOMS.T), bias)


def _weight(ratio: Floats, radius: float) -> Floats:
    direction = np.outer(2 - ratio, ATOMS[0]) - np.outer(ratio, ATOMS[2])
    weight: Floats = radius * direction / np.linalg.norm(direction, axis=1, keepdims=True)
    return weight


def _log_gradients(log_counts: Floats, margins: Floats, bias: Floats) -> Floats:
    log_g: Floats = log_counts + special.log_expit(-(margins + _SIGNS * bias[:, None]))
    return log_g


def _intercept(log_counts: Floats, margins: Floats, start: Floats) -> Floats:
    """Root in b of ``log g(v) − log(g(−v) + g(v'))``, falling with a slope between −1 and −2."""
    bias = start
    tolerance = 1e-14 * (1 + np.abs(margins).max(initial=0) + np.abs(log_counts[:, 0]).max(initial=0))
    for _ in range(_NEWTON_STEPS):
        log_g = _log_gradients(log_counts, margins, bias)
        log_zero = np.logaddexp(log_g[:, 1], log_g[:, 2])
        excess = log_g[:, 0] - log_zero
        if np.abs(excess).max(initial=0) <= tolerance:
            return bias
        sigma = special.expit(margins + _SIGNS * bias[:, None])
        share = np.exp(log_g[:, 1:] - log_zero[:, None])
        bias = bias + excess / (sigma[:, 0] + (share * sigma[:, 1:]).sum(axis=1))
    worst = np.abs(excess).max()
    raise RuntimeError(
        f"the intercept must be found in {_NEWTON_STEPS} steps, got a residue of {worst:.2g}; lower radius"
    )
