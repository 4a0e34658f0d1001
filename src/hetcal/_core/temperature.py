"""Inverse temperatures of slices under the NLL: pooled, alone, coupled by Γ, Γ cross-validated, shrunk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._core.arrays import IntArray
from hetcal._core.kernels import Rows, flat_rows, nll_pass, tempered_nll, top_margin
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
        """Return the same rows as one slice."""
        return TemperatureProblem(self.rows, np.zeros_like(self.ids), 1)

    def take(self, index: IntArray) -> TemperatureProblem:
        """Return the problem on some of the rows."""
        return replace(self, rows=self.rows.take(index), ids=self.ids[index])

    def counts(self) -> IntArray:
        """Rows in every slice."""
        return np.bincount(self.ids, minlength=self.n_slices)

    def endless(self) -> NDArray[np.bool_]:
        """Slices whose loss falls for ever as α grows: no label lies below the top of its row.

        The gradient cannot tell, since it underflows to zero long before the bound. Slices of flat rows only
        are left out: their loss does not change at all.
        """
        falling = (self.counts() > 0) & (np.bincount(self.ids, self.rows.d_true < 0, self.n_slices) == 0)
        index = np.flatnonzero(falling[self.ids])
        uneven = np.bincount(self.ids[index], ~flat_rows(self.rows, index), self.n_slices) > 0
        return np.asarray(falling & uneven)


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
    alpha, at_bound = _fit_alone(problem.pooled(), 1.0, bounds)
    return float(alpha[0]), bool(at_bound[0])


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
    return TemperatureFit(
        alpha, centre, gamma, np.zeros_like(at_bound), {"mu": mu, "tau": float(np.sqrt(tau2))}
    )


def folds_of(problem: TemperatureProblem, n_folds: int) -> IntArray:
    """Fold of each row: every slice is shuffled and dealt out in turn.

    The shuffle is always the same and starts from the rows in order of their content, so neither chance nor
    the order in which rows come matters. Right and wrong rows are not dealt apart: a fold that repeats each
    slice's accuracy would repeat its sampling error too, and a fit to that error would look like a gain.
    """
    rows = problem.rows
    margin, _ = top_margin(rows.z)
    order = np.lexsort((rows.weight, rows.d_true, margin, problem.ids))
    shuffle = np.random.default_rng(0).random(len(rows))
    order = order[np.lexsort((shuffle, problem.ids[order]))]
    fold = np.empty(len(rows), np.int64)
    fold[order] = np.arange(len(rows)) % n_folds
    return fold


def _fit_alone(problem: TemperatureProblem, start: float, bounds: Bounds) -> tuple[Float, NDArray[np.bool_]]:
    endless = problem.endless()
    solution = minimise_slices(problem.evaluate, np.where(endless, bounds[1], start), bounds)
    return solution.alpha, solution.at_bound | endless


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
