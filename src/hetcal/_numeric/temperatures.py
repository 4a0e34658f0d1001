"""Inverse temperatures of slices under the NLL: pooled, alone, coupled by Γ, Γ cross-validated, shrunk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._numeric.problems import Heldout, Problem
from hetcal._numeric.scalar_solver import Derivatives, SliceSolution, couple, minimise_slices
from hetcal._typing import Float, IntArray

__all__ = [
    "TemperatureFit",
    "fit_bayes",
    "fit_coupled",
    "fit_cross_validated",
    "fit_pooled",
    "fit_pooled_with_error",
]

Bounds = tuple[float, float]

_ROUGH = 5e-3  # relative step after which a centre is near enough: its error is about the third power


@dataclass(frozen=True)
class TemperatureFit:
    """Inverse temperatures (S,) with their errors, the centre, Γ, slices at a bound, how Γ was chosen."""

    alpha: Float
    alpha0: float
    gamma: float
    at_bound: NDArray[np.bool_]
    error: Float
    choice: dict[str, Any] | None = None


@dataclass(frozen=True)
class _Alone:
    """Every slice's own minimiser, and the one of all rows together."""

    pooled: float
    pooled_at_bound: bool
    best: Float
    at_bound: NDArray[np.bool_]
    pooled_error: float
    error: Float


def fit_pooled(problem: Problem, bounds: Bounds) -> tuple[float, bool]:
    """One inverse temperature for all rows, and whether it stands at a bound."""
    pooled, at_bound, _ = fit_pooled_with_error(problem, bounds)
    return pooled, at_bound


def fit_pooled_with_error(problem: Problem, bounds: Bounds) -> tuple[float, bool, float]:
    """The same with its standard error."""
    pooled, at_bound, _, error = _fit_pooled(problem, bounds, problem.endless())
    return pooled, at_bound, error


def fit_coupled(problem: Problem, gamma: float, bounds: Bounds) -> TemperatureFit:
    """Exact optimum for a given Γ; slices without rows take the centre."""
    if gamma == 0:
        pooled, at_bound, error = fit_pooled_with_error(problem, bounds)
        full = np.full(problem.n_slices, pooled)
        return TemperatureFit(
            full, pooled, 0.0, np.full(problem.n_slices, at_bound), np.full(problem.n_slices, error)
        )
    return _couple(problem, _fit_alone(problem, bounds), gamma)


def fit_cross_validated(problem: Problem, bounds: Bounds, n_folds: int) -> TemperatureFit:
    """Γ with the least cross-validated NLL on an automatic grid from 0 to inf; ties go to the smaller Γ.

    A slice without an error would go to its bound with Γ = inf, and the left-out rows, without an error
    either, would praise it. Where there is one, the grid ends at the farthest of the others.
    """
    alone = _fit_alone(problem, bounds)
    filled = problem.counts() > 0
    grid = _gamma_grid(alone.best[~alone.at_bound & filled], alone.pooled)
    if (alone.at_bound & filled).any():
        grid = grid[np.isfinite(grid)]
    total = Heldout(np.zeros(len(grid)), np.zeros((len(grid),) * 2), 0, 0)
    for train, test in problem.split(n_folds):
        total += test.heldout(_path(train, _fit_alone(train, bounds), grid))
    if total.n == 0:  # one row: nothing to judge by
        total = Heldout(total.loss, total.product, 1, 1)
    score = total.means()
    chosen = int(np.argmin(score))
    fit = _couple(problem, alone, float(grid[chosen]))
    table = {"gamma": grid.tolist(), "nll": score.tolist(), "error": total.errors(chosen).tolist()}
    return replace(fit, choice=table)


def fit_bayes(problem: Problem, bounds: Bounds) -> TemperatureFit:
    """Shrink log α_k to a common mean: ``log α_k ~ N(μ, τ²)``, the posterior mode of each slice.

    τ² comes from the spread of the slices' own estimates beyond their sampling error (Paule and Mandel's
    moment estimator, with variances from the Fisher information ``α² L''(α)``).
    """
    alone = _fit_alone(problem, bounds)
    best, at_bound = alone.best, alone.at_bound
    derivatives = problem.evaluate(best, np.arange(problem.n_slices))
    information = best**2 * derivatives[1]
    own = np.flatnonzero((problem.counts() > 0) & ~at_bound & (information > 0))
    mu, tau2 = _between(np.log(best[own]), 1 / information[own])
    if tau2 == 0:
        mu = float(np.log(alone.pooled))
        alpha = np.full(problem.n_slices, alone.pooled)
        error = np.full(problem.n_slices, alone.pooled_error)
    else:
        alpha, error = _posterior_mode(problem, best, derivatives, mu, tau2, bounds)
    centre, tau = float(np.exp(mu)), float(np.sqrt(tau2))
    empty = problem.counts() == 0
    alpha[empty], error[empty] = centre, max(centre * tau, alone.pooled_error)
    gamma = float(np.abs(alpha - centre).max())
    return TemperatureFit(alpha, centre, gamma, np.zeros_like(at_bound), error, {"mu": mu, "tau": tau})


def _fit_pooled(
    problem: Problem, bounds: Bounds, endless: NDArray[np.bool_]
) -> tuple[float, bool, tuple[float, Derivatives] | None, float]:
    """Pooled minimiser, whether at a bound, the last α seen with its slices' derivatives, and its error."""
    if endless.any() and not problem.held().any():
        return bounds[1], True, None, np.inf
    sample, start = problem.sample(), 1.0
    if sample is not None:
        start, _ = fit_pooled(sample, bounds)
    last: list[tuple[float, Derivatives]] = []

    def together(alpha: Float, _: IntArray) -> Derivatives:
        full = np.full(problem.n_slices, alpha[0])
        found = problem.evaluate(full, np.arange(problem.n_slices))
        last[:] = [(float(alpha[0]), found)]
        first, second, third = (values.sum(keepdims=True) for values in found)
        return first, second, third

    solution = minimise_slices(together, np.array([start]), bounds)
    at_bound = bool(solution.at_bound[0])
    return float(solution.alpha[0]), at_bound, last[0], float(_errors(solution)[0])


def _errors(solution: SliceSolution) -> Float:
    """Standard errors from the observed information; infinite where a slice says nothing, or all too much."""
    told = ~solution.at_bound & (solution.curvature > 0)
    return np.where(told, 1 / np.sqrt(np.where(told, solution.curvature, 1.0)), np.inf)


def _fit_alone(problem: Problem, bounds: Bounds) -> _Alone:
    endless = problem.endless()
    pooled, pooled_at_bound, last, pooled_error = _fit_pooled(problem, bounds, endless)
    start, known = (pooled, None) if last is None else last
    alpha = np.where(endless, bounds[1], start)
    going = np.flatnonzero(~endless)
    solution = minimise_slices(problem.evaluate, alpha, bounds, active=going, known=known)
    best, error = solution.alpha, _errors(solution)
    loose = ~endless & ~problem.held()  # no rows, or flat ones, which any temperature suits
    best[loose], error[loose] = pooled, pooled_error
    return _Alone(pooled, pooled_at_bound, best, solution.at_bound | endless, pooled_error, error)


def _path(problem: Problem, alone: _Alone, grid: Float) -> Float:
    """Inverse temperatures (G, S) for every Γ of a rising grid, each centre sought from the one before."""
    lines, at = [], alone
    for gamma in grid:
        fit = _couple(problem, at, float(gamma), settled=_ROUGH)
        lines.append(fit.alpha)
        if np.isfinite(gamma):
            at = replace(alone, pooled=fit.alpha0)
    return np.stack(lines)


def _couple(problem: Problem, alone: _Alone, gamma: float, *, settled: float | None = None) -> TemperatureFit:
    best, pooled = alone.best, alone.pooled
    present = np.flatnonzero(problem.counts() > 0)
    alpha, centre = best.copy(), pooled
    if gamma == 0:
        alpha[:] = pooled
    elif np.isfinite(gamma):

        def evaluate(some: Float, active: IntArray) -> Derivatives:
            full = best.copy()
            full[present] = some
            return problem.evaluate(full, present[active])

        centre, alpha[present] = couple(evaluate, best[present], gamma, pooled, settled=settled)
    empty = problem.counts() == 0
    alpha[empty] = centre
    # A slice that Γ holds back stands and falls with the centre.
    error = np.where((alpha != best) | empty, alone.pooled_error, alone.error)
    return TemperatureFit(alpha, centre, gamma, alone.at_bound & (alpha == best), error)


def _gamma_grid(best: Float, pooled: float) -> Float:
    reach = float(np.abs(best - pooled).max()) if best.size else 0.0
    if reach == 0:
        return np.array([0.0, np.inf])
    return np.concatenate([[0.0], reach * np.geomspace(0.02, 1.0, 9), [np.inf]])


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
    problem: Problem, best: Float, derivatives: Derivatives, mu: float, tau2: float, bounds: Bounds
) -> tuple[Float, Float]:
    """Mode and standard deviation of every slice's posterior, from the derivatives of the loss at `best`."""

    def penalise(a: Float, loss: Derivatives) -> Derivatives:
        first, second, third = (a**power * values for power, values in enumerate(loss, start=1))
        slope = first + (np.log(a) - mu) / tau2  # derivative in log α
        bend, safe = second + first + 1 / tau2, second + np.maximum(first, 0) + 1 / tau2
        convex = bend > safe / 2  # far below the minimiser the loss is not, in log α
        bend = np.where(convex, bend, safe)
        turn = np.where(convex, third + 3 * second + first, 0.0)
        return slope / a, bend / a**2, (turn - bend) / a**3  # so that steps in log α come out right

    def penalised(alpha: Float, active: IntArray) -> Derivatives:
        return penalise(alpha[active], problem.evaluate(alpha, active))

    inner = (max(bounds[0], float(np.exp(mu)) * 1e-3), min(bounds[1], float(np.exp(mu)) * 1e3))
    start = np.clip(best, *inner)
    known = penalise(best, derivatives) if np.array_equal(start, best) else None
    solution = minimise_slices(penalised, start, bounds, known=known)
    return solution.alpha, _errors(solution)


def fit_path(problem: Problem, gammas: Iterable[float], bounds: Bounds) -> list[TemperatureFit]:
    """Exact optimum for each Γ; the slices are fitted separately only once."""
    separate = _fit_alone(problem, bounds)
    return [_couple(problem, separate, float(gamma)) for gamma in gammas]
