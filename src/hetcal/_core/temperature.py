"""Inverse temperatures of slices under the NLL: pooled, alone, coupled by Γ, Γ by cross-validation, shrunk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._core.arrays import IntArray
from hetcal._core.kernels import Rows, nll_pass, tempered_nll
from hetcal._core.solvers import couple, minimise_slices

__all__ = [
    "TemperatureFit",
    "TemperatureProblem",
    "fit_bayes",
    "fit_coupled",
    "fit_cross_validated",
    "fit_pooled",
    "folds_of",
]

Float = NDArray[np.float64]
Bounds = tuple[float, float]


@dataclass(frozen=True)
class TemperatureProblem:
    """Rows and the slice that each belongs to."""

    rows: Rows
    ids: IntArray
    n_slices: int

    def evaluate(self, alpha: Float, active: IntArray) -> tuple[Float, Float]:
        """Gradient and curvature of the slices `active`; one pass over their rows."""
        index = None
        if len(active) < self.n_slices:
            wanted = np.zeros(self.n_slices, bool)
            wanted[active] = True
            index = np.flatnonzero(wanted[self.ids])
        _, gradient, curvature = nll_pass(self.rows, self.ids, alpha, index)
        return gradient[active], curvature[active]

    def pooled(self) -> TemperatureProblem:
        """The same rows as one slice."""
        return TemperatureProblem(self.rows, np.zeros_like(self.ids), 1)

    def take(self, index: IntArray) -> TemperatureProblem:
        """The problem on some of the rows."""
        r = self.rows
        part = Rows(r.z[index], r.top[index], r.guess[index], r.d_true[index], r.right[index], r.weight[index])
        return replace(self, rows=part, ids=self.ids[index])

    def counts(self) -> IntArray:
        """Rows in every slice."""
        return np.bincount(self.ids, minlength=self.n_slices)


@dataclass(frozen=True)
class TemperatureFit:
    """Inverse temperatures (S,), their centre, the Γ used, slices at a bound, and how Γ was chosen."""

    alpha: Float
    alpha0: float
    gamma: float
    at_bound: NDArray[np.bool_]
    choice: dict[str, Any] | None = None


def fit_pooled(problem: TemperatureProblem, bounds: Bounds) -> tuple[float, bool]:
    """One inverse temperature for all rows, and whether it stands at a bound."""
    solution = minimise_slices(problem.pooled().evaluate, np.ones(1), bounds)
    return float(solution.alpha[0]), bool(solution.at_bound[0])


def fit_coupled(problem: TemperatureProblem, gamma: float, bounds: Bounds) -> TemperatureFit:
    """Exact optimum for a given Γ; slices without rows take the centre."""
    pooled, pooled_at_bound = fit_pooled(problem, bounds)
    if gamma == 0:
        full = np.full(problem.n_slices, pooled)
        return TemperatureFit(full, pooled, 0.0, np.full(problem.n_slices, pooled_at_bound))
    best, at_bound = _fit_alone(problem, pooled, bounds)
    return _couple(problem, best, at_bound, gamma, pooled)


def fit_cross_validated(problem: TemperatureProblem, bounds: Bounds, n_folds: int) -> TemperatureFit:
    """Γ with the least cross-validated NLL on an automatic grid from 0 to inf; ties go to the smaller Γ."""
    pooled, _ = fit_pooled(problem, bounds)
    best, at_bound = _fit_alone(problem, pooled, bounds)
    grid = _gamma_grid(best[~at_bound & (problem.counts() > 0)], pooled)
    fold = folds_of(problem, n_folds)
    heldout = np.empty((len(grid), len(problem.rows)))
    for f in range(n_folds):
        inside = np.flatnonzero(fold == f)
        if inside.size and inside.size < len(fold):
            heldout[:, inside] = _heldout(problem, np.flatnonzero(fold != f), inside, grid, bounds)
        else:
            heldout[:, inside] = 0
    w = problem.rows.weight / problem.rows.weight.sum()
    score = heldout @ w
    chosen = int(np.argmin(score))
    # The error of the difference to the best, not of the score: rows are paired.
    difference = (heldout - heldout[chosen]) * w
    error = np.sqrt(len(w)) * difference.std(axis=1)
    fit = _couple(problem, best, at_bound, float(grid[chosen]), pooled)
    table = {"gamma": grid.tolist(), "nll": score.tolist(), "error": error.tolist()}
    return replace(fit, choice=table)


def fit_bayes(problem: TemperatureProblem, bounds: Bounds) -> TemperatureFit:
    """Shrink log α_k to a common mean: ``log α_k ~ N(μ, τ²)``, the posterior mode of each slice.

    τ² comes from the spread of the slices' own estimates beyond their sampling error (Paule and Mandel's
    moment estimator, with variances from the Fisher information ``α² L''(α)``).
    """
    pooled, _ = fit_pooled(problem, bounds)
    best, at_bound = _fit_alone(problem, pooled, bounds)
    _, curvature = problem.evaluate(best, np.arange(problem.n_slices))
    information = best**2 * curvature
    own = np.flatnonzero((problem.counts() > 0) & ~at_bound & (information > 0))
    mu, tau2 = _between(np.log(best[own]), 1 / information[own])
    if tau2 == 0:
        mu = float(np.log(pooled))
        alpha = np.full(problem.n_slices, pooled)
    else:
        alpha = _posterior_mode(problem, best, mu, tau2, bounds)
    centre = float(np.exp(mu))
    alpha[problem.counts() == 0] = centre
    gamma = float(np.abs(alpha - centre).max())
    return TemperatureFit(alpha, centre, gamma, np.zeros_like(at_bound), {"mu": mu, "tau": float(np.sqrt(tau2))})


def folds_of(problem: TemperatureProblem, n_folds: int) -> IntArray:
    """Fold of each row: dealt out in turn within each slice, right and wrong rows apart, by confidence.

    The order of the rows does not matter, no random numbers are needed, and every fold looks alike.
    """
    rows = problem.rows
    confidence = -tempered_nll(replace(rows, d_true=np.zeros(len(rows))), np.ones(len(rows)))
    order = np.lexsort((confidence, rows.right, problem.ids))
    fold = np.empty(len(rows), np.int64)
    fold[order] = np.arange(len(rows)) % n_folds
    return fold


def _fit_alone(problem: TemperatureProblem, pooled: float, bounds: Bounds) -> tuple[Float, NDArray[np.bool_]]:
    solution = minimise_slices(problem.evaluate, np.full(problem.n_slices, pooled), bounds)
    return solution.alpha, solution.at_bound


def _couple(
    problem: TemperatureProblem, best: Float, at_bound: NDArray[np.bool_], gamma: float, pooled: float
) -> TemperatureFit:
    present = np.flatnonzero(problem.counts() > 0)
    alpha, centre = best.copy(), pooled
    if gamma == 0:
        alpha[:] = pooled
    elif np.isfinite(gamma):

        def evaluate(some: Float, active: IntArray) -> tuple[Float, Float]:
            full = best.copy()
            full[present] = some
            return problem.evaluate(full, present[active])

        centre, alpha[present] = couple(evaluate, best[present], gamma, pooled)
    alpha[problem.counts() == 0] = centre
    return TemperatureFit(alpha, centre, gamma, at_bound & (alpha == best))


def _gamma_grid(best: Float, pooled: float) -> Float:
    reach = float(np.abs(best - pooled).max()) if best.size else 0.0
    if reach == 0:
        return np.array([0.0, np.inf])
    return np.concatenate([[0.0], reach * np.geomspace(0.02, 1.0, 9), [np.inf]])


def _heldout(
    problem: TemperatureProblem, train: IntArray, test: IntArray, grid: Float, bounds: Bounds
) -> Float:
    part, rest = problem.take(train), problem.take(test)
    pooled, _ = fit_pooled(part, bounds)
    best, at_bound = _fit_alone(part, pooled, bounds)
    fits = (_couple(part, best, at_bound, float(gamma), pooled) for gamma in grid)
    return np.stack([tempered_nll(rest.rows, fit.alpha[rest.ids]) for fit in fits])


def _between(t: Float, variance: Float) -> tuple[float, float]:
    """Mean and variance between slices from estimates `t` with their sampling variances."""
    if t.size == 0:
        return 0.0, 0.0

    def mean_and_excess(tau2: float) -> tuple[float, float]:
        weight = 1 / (variance + tau2)
        mu = float(np.sum(weight * t) / weight.sum())
        return mu, float(np.sum(weight * (t - mu) ** 2)) - (t.size - 1)

    low, high = 0.0, float(np.var(t) * t.size + 1e-12)
    mu, excess = mean_and_excess(low)
    if excess <= 0 or t.size == 1:
        return mu, 0.0
    for _ in range(100):
        middle = (low + high) / 2
        mu, excess = mean_and_excess(middle)
        low, high = (middle, high) if excess > 0 else (low, middle)
    return mu, (low + high) / 2


def _posterior_mode(
    problem: TemperatureProblem, start: Float, mu: float, tau2: float, bounds: Bounds
) -> Float:
    def penalised(alpha: Float, active: IntArray) -> tuple[Float, Float]:
        gradient, curvature = problem.evaluate(alpha, active)
        a = alpha[active]
        slope = a * gradient + (np.log(a) - mu) / tau2  # derivative in log α
        bend = a * a * curvature + np.maximum(a * gradient, 0) + 1 / tau2
        return slope / a, bend / (a * a)

    inner = (max(bounds[0], float(np.exp(mu)) * 1e-3), min(bounds[1], float(np.exp(mu)) * 1e3))
    return minimise_slices(penalised, np.clip(start, *inner), bounds).alpha
