"""Inverse temperatures that minimise the NLL, for all rows together or for each slice.

Those of the slices can be independent, within Γ of a common centre, or shrunk towards a common mean.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import brentq

from hetcal._numeric.label_models import NoisyLabels
from hetcal._numeric.noise_bias import Estimate, combine
from hetcal._numeric.passes import row_slopes, sum_slices
from hetcal._numeric.rows import Rows
from hetcal._numeric.scalar_solver import Derivatives, Evaluate, SliceSolution, couple, minimise_slices
from hetcal._numeric.source import HeldoutLoss, MemorySource, Source
from hetcal._typing import BoolArray, Float, IntArray

__all__ = [
    "DEFAULT_BOUNDS",
    "TemperatureFit",
    "fit_bayes",
    "fit_coupled",
    "fit_cross_validated",
    "fit_one_temperature",
    "fit_path",
    "fit_pooled",
]

Bounds = tuple[float, float]

DEFAULT_BOUNDS: Bounds = (0.01, 100.0)  # smallest and largest α, unless the user sets other bounds

_TINY, _EPS = float(np.finfo(float).tiny), float(np.finfo(float).eps)
_NO_SLOPE = 1e-9  # a smaller sum of slopes, relative to the sum of their absolute values, is a rounding error
_ROUGH_STEP = 5e-3  # fits in `_path` stop after a relative step this short; the error is about its cube


@dataclass(frozen=True)
class TemperatureFit:
    """The inverse temperatures of all slices.

    Attributes
    ----------
    alpha : (S,) inverse temperatures
    alpha0 : the centre α₀
    gamma : Γ; for `fit_bayes`, the largest ``|α_k − α₀|``
    at_bound : (S,) bool, whether the α of a slice is at a bound; always False for `fit_bayes`
    error : (S,) standard errors of `alpha`
    choice : None if Γ was given, otherwise JSON-compatible details of how Γ or the shrinkage was chosen
    """

    alpha: Float
    alpha0: float
    gamma: float
    at_bound: BoolArray
    error: Float
    choice: dict[str, Any] | None = None


@dataclass(frozen=True)
class _SeparateFit:
    """The best α of each slice and of all rows together (pooled), with standard errors.

    `evaluate` computes the derivatives of the loss of each slice.
    """

    pooled: float
    pooled_at_bound: bool
    best: Float
    at_bound: BoolArray
    pooled_error: float
    error: Float
    evaluate: Evaluate


def fit_pooled(source: Source, bounds: Bounds) -> tuple[float, bool]:
    """Inverse temperature that maximises the likelihood of all rows, and whether it is at a bound."""
    pooled, at_bound, _, _ = _fit_pooled(source, bounds, source.is_separable())
    return pooled, at_bound


def fit_one_temperature(source: Source, bounds: Bounds) -> tuple[float, bool, float]:
    """One inverse temperature for all rows, whether it is at a bound, and its standard error.

    For noisy labels, the maximum of the likelihood is corrected for its bias; see `noise_bias`.
    """
    pooled, at_bound, _, error = _fit_pooled(source, bounds, source.is_separable())
    if _is_noisy(source):
        return _reduce_bias(source, bounds, pooled, at_bound, error)
    return pooled, at_bound, error


def fit_coupled(source: Source, gamma: float, bounds: Bounds) -> TemperatureFit:
    """Inverse temperatures for a given Γ; slices without rows receive the centre."""
    if gamma == 0:
        pooled, at_bound, error = fit_one_temperature(source, bounds)
        full = np.full(source.n_slices, pooled)
        return TemperatureFit(
            full, pooled, 0.0, np.full(source.n_slices, at_bound), np.full(source.n_slices, error)
        )
    return _couple(source, _fit_separately(source, bounds), gamma)


def fit_path(source: Source, gammas: Iterable[float], bounds: Bounds) -> list[TemperatureFit]:
    """Inverse temperatures for each Γ; the unconstrained fits of the slices are computed only once."""
    separate = _fit_separately(source, bounds)
    return [_couple(source, separate, float(gamma)) for gamma in gammas]


def fit_cross_validated(source: Source, bounds: Bounds, n_folds: int) -> TemperatureFit:
    """Fit with the Γ of lowest cross-validated NLL on a grid from 0 to inf; ties go to the smaller Γ.

    A separable slice has no finite optimum: with Γ = inf, its α goes to the bound. Its held-out rows are
    separable too, so they favour Γ = inf. If any slice is at a bound, the grid therefore leaves out inf. It
    then ends at the largest ``|α_k − α|`` among the slices that are not at a bound, where α_k is the best
    inverse temperature of slice k, and α is that of all rows.
    """
    separate = _fit_separately(source, bounds)
    present = source.counts() > 0
    grid = _gamma_grid(separate.best[~separate.at_bound & present], separate.pooled)
    if (separate.at_bound & present).any():
        grid = grid[np.isfinite(grid)]
    total = HeldoutLoss.zero(len(grid))
    for train, test in source.split(n_folds):
        total += test.heldout_loss(_path(train, _fit_separately(train, bounds), grid))
    if total.n == 0:  # there are no folds, because there is only one row or one fold group
        total = HeldoutLoss(total.loss, total.product, 1, 1)
    score = total.means()
    chosen = int(np.argmin(score))
    fit = _couple(source, separate, float(grid[chosen]))
    table = {"gamma": grid.tolist(), "nll": score.tolist(), "error": total.errors(chosen).tolist()}
    return replace(fit, choice=table)


def fit_bayes(source: Source, bounds: Bounds) -> TemperatureFit:
    """Shrink log α_k towards a common mean: the posterior mode of each slice under ``log α_k ~ N(μ, τ²)``.

    τ² is the part of the variance of the separate estimates that their sampling errors do not explain. It is
    estimated by Paule and Mandel's method of moments. The sampling variance of the estimate of log α_k is the
    inverse of the information ``α² L''(α)``. If τ² is 0, all slices receive the inverse temperature of all
    rows together.
    """
    separate = _fit_separately(source, bounds, with_pseudo_rows=False)
    best, at_bound = separate.best, separate.at_bound
    derivatives = source.evaluate(best, np.arange(source.n_slices))
    information = best**2 * derivatives[1]
    informative = np.flatnonzero((source.counts() > 0) & ~at_bound & (information > 0))
    mu, tau2 = _mean_and_variance(np.log(best[informative]), 1 / information[informative])
    if tau2 == 0:
        mu = float(np.log(separate.pooled))
        alpha = np.full(source.n_slices, separate.pooled)
        error = np.full(source.n_slices, separate.pooled_error)
    else:
        alpha, error = _posterior_mode(source, best, derivatives, mu, tau2, bounds)
    centre, tau = float(np.exp(mu)), float(np.sqrt(tau2))
    empty = source.counts() == 0
    alpha[empty], error[empty] = centre, max(centre * tau, separate.pooled_error)
    gamma = float(np.abs(alpha - centre).max())
    return TemperatureFit(alpha, centre, gamma, np.zeros_like(at_bound), error, {"mu": mu, "tau": tau})


def _fit_pooled(
    source: Source, bounds: Bounds, separable: BoolArray
) -> tuple[float, bool, tuple[float, Derivatives] | None, float]:
    """Best α of all rows, whether it is at a bound, the last evaluation, and the standard error.

    The last evaluation is a pair: the α at which the loss was last evaluated, and its derivatives by slice.
    It is None if the rows are separable, since α is then the upper bound, without any evaluation.
    """
    if separable.any() and not source.has_finite_optimum().any():
        return bounds[1], True, None, np.inf
    sample, start = source.sample(), 1.0
    if sample is not None:
        start, _ = fit_pooled(sample, bounds)
    elif _is_noisy(source):
        start = _ignore_noise(source, bounds)
    last: tuple[float, Derivatives] | None = None

    def evaluate_sum(alpha: Float, _: IntArray) -> Derivatives:
        nonlocal last
        full = np.full(source.n_slices, alpha[0])
        by_slice = source.evaluate(full, np.arange(source.n_slices))
        last = float(alpha[0]), by_slice
        first, second, third = (values.sum(keepdims=True) for values in by_slice)
        return first, second, third

    solution = minimise_slices(evaluate_sum, np.array([start]), bounds)
    at_bound = bool(solution.at_bound[0])
    return float(solution.alpha[0]), at_bound, last, float(_errors(solution)[0])


def _ignore_noise(source: Source, bounds: Bounds) -> float:
    """Best α if the observed labels are treated as certain, or 1 if it is at a bound.

    The result is a starting point for the fit to noisy labels. With large logits, the loss of noisy labels
    can be flat at α = 1, so a search from there could fail. The loss of certain labels is convex.
    """
    rows = source.in_memory("noisy labels").rows_in_slices()
    certain = MemorySource(Rows(rows.z, rows.y, rows.guess, rows.given_weight)).pooled()
    alpha, at_bound = fit_pooled(certain, bounds)
    return 1.0 if at_bound else alpha


def _is_noisy(source: Source) -> bool:
    return source.label_model is not None and source.label_model.is_noisy


def _reduce_bias(
    source: Source, bounds: Bounds, likely: float, at_bound: bool, error: float
) -> tuple[float, bool, float]:
    """Combine the maximum of the likelihood `likely` with the minimiser of the unbiased loss.

    `at_bound` and `error` describe `likely`. Returns the new α, whether it is at a bound, and its standard
    error. If the unbiased loss has no minimum within the bounds, `likely` is returned. If it has one but
    `likely` is at a bound or has an infinite standard error, the minimiser is returned.
    """
    rows = source.in_memory("noisy labels").rows_in_slices()
    certain = Rows(rows.z, rows.y, rows.guess, rows.given_weight)
    shift = rows.d_true - rows.d_unbiased  # by row, slope of the unbiased loss minus that for certain labels
    total, size = float(rows.weight @ rows.d_unbiased), float(rows.weight @ np.abs(rows.d_unbiased))
    if total >= -_NO_SLOPE * size:  # the unbiased loss decreases as α grows, however large α is
        return likely, at_bound, error
    pooled = MemorySource(certain).pooled()

    def evaluate(alpha: Float, active: IntArray) -> Derivatives:
        first, second, third = pooled.evaluate(alpha, active)
        return first + rows.weight @ shift, second, third

    solution = minimise_slices(evaluate, np.array([1.0 if at_bound else likely]), bounds)
    if solution.at_bound[0]:
        return likely, at_bound, error
    unbiased = float(solution.alpha[0])
    slopes, curvatures = row_slopes(certain, unbiased)
    robust = _estimate(rows, unbiased, slopes + shift, curvatures)
    if at_bound or not np.isfinite(error):
        return unbiased, False, unbiased * float(np.linalg.norm(robust.influence()))
    result = combine(_estimate(rows, likely, *row_slopes(rows, likely)), robust)
    if result.likelihood_weight == 1:
        return likely, at_bound, error
    alpha = float(np.exp(result.theta[0]))
    return alpha, False, alpha * float(np.sqrt(result.squared_error[0, 0]))


def _estimate(rows: Rows, alpha: float, slopes: Float, curvatures: Float) -> Estimate:
    """Estimate of log α, given α and the first two derivatives in α of the loss of every row, (n,) each."""
    curvature = alpha**2 * float(rows.weight @ curvatures)
    return Estimate(np.log([alpha]), (alpha * rows.weight * slopes)[:, None], np.array([[curvature]]))


def _errors(solution: SliceSolution) -> Float:
    """Standard errors of α, (S,): ``1/√curvature``, or infinite at a bound or without positive curvature."""
    defined = ~solution.at_bound & (solution.curvature > 0)
    return np.where(defined, 1 / np.sqrt(np.where(defined, solution.curvature, 1.0)), np.inf)


def _fit_separately(source: Source, bounds: Bounds, *, with_pseudo_rows: bool = True) -> _SeparateFit:
    """Fit every slice without constraint.

    If `with_pseudo_rows` is true and the labels are noisy, the pseudo-rows of `_add_pseudo_rows` are
    included.
    """
    separable = source.is_separable()
    pooled, pooled_at_bound, last, pooled_error = _fit_pooled(source, bounds, separable)
    start, known = (pooled, None) if last is None else last
    if _is_noisy(source):
        pooled, pooled_at_bound, pooled_error = _reduce_bias(
            source, bounds, pooled, pooled_at_bound, pooled_error
        )
    # slices without rows, or in which the logits of every row are all equal
    constant = ~separable & ~source.has_finite_optimum()
    evaluate: Evaluate = source.evaluate
    if with_pseudo_rows and _is_noisy(source):
        evaluate, weight = _add_pseudo_rows(source, pooled)
        separable, known = separable & (weight == 0), None
    alpha = np.where(separable, bounds[1], start)
    active = np.flatnonzero(~separable)
    solution = minimise_slices(evaluate, alpha, bounds, active=active, known=known)
    best, error = solution.alpha, _errors(solution)
    best[constant], error[constant] = pooled, pooled_error
    at_bound = solution.at_bound | separable
    return _SeparateFit(pooled, pooled_at_bound, best, at_bound, pooled_error, error, evaluate)


def _add_pseudo_rows(source: Source, pooled: float) -> tuple[Evaluate, Float]:
    """Add a pseudo-row to each slice; return the evaluator of these slices and the pseudo-rows' weights.

    If noise can explain all errors in a slice, the likelihood of the slice hardly limits α. The pseudo-row
    represents the average row of the slice. Its soft label consists of the probabilities at the inverse
    temperature `pooled`. Its weight is the expected weight of the wrong labels if all predictions were
    correct, but at most 1. It is therefore 0 in slices without noise.
    """
    memory = source.in_memory("noisy labels")
    rows, n_slices = memory.rows, memory.n_slices
    wrong = np.zeros(len(rows))
    if isinstance(rows.label_model, NoisyLabels):
        wrong = rows.weight * (1 - np.diag(rows.label_model.transition)[rows.guess])
    total = sum_slices(memory.ids, rows.weight, n_slices + 1)[:n_slices]
    weight = np.minimum(sum_slices(memory.ids, wrong, n_slices + 1)[:n_slices], 1)
    share = weight / np.where(total > 0, total, 1)
    certain = Rows(rows.z, rows.y, rows.guess, rows.given_weight)
    sliced = MemorySource(certain, ids=memory.ids, n_slices=n_slices)
    centre = sliced.evaluate(np.full(n_slices, pooled), np.arange(n_slices))[0]

    def evaluate(alpha: Float, active: IntArray) -> Derivatives:
        loss, (first, second, third) = source.evaluate(alpha, active), sliced.evaluate(alpha, active)
        part = share[active]
        return (
            loss[0] + part * (first - centre[active]),
            loss[1] + part * second,
            loss[2] + part * third,
        )

    return evaluate, weight


def _path(source: Source, separate: _SeparateFit, grid: Float) -> Float:
    """Inverse temperatures (G, S) for a grid (G,) of increasing Γ; each fit starts at the previous centre."""
    alphas, start = [], separate
    for gamma in grid:
        fit = _couple(source, start, float(gamma), last_step=_ROUGH_STEP)
        alphas.append(fit.alpha)
        if np.isfinite(gamma):
            start = replace(separate, pooled=fit.alpha0)
    return np.stack(alphas)


def _couple(
    source: Source, separate: _SeparateFit, gamma: float, *, last_step: float | None = None
) -> TemperatureFit:
    """Inverse temperatures for a given Γ, computed from the unconstrained fits of the slices."""
    best, pooled = separate.best, separate.pooled
    present = np.flatnonzero(source.counts() > 0)
    alpha, centre = best.copy(), pooled
    if gamma == 0:
        alpha[:] = pooled
    elif np.isfinite(gamma):

        def evaluate(alpha_present: Float, active: IntArray) -> Derivatives:
            full = best.copy()
            full[present] = alpha_present
            return separate.evaluate(full, present[active])

        centre, alpha[present] = couple(evaluate, best[present], gamma, pooled, last_step=last_step)
    empty = source.counts() == 0
    alpha[empty] = centre
    # An α that Γ limits moves with the centre, so it receives the standard error of the pooled α. So does the
    # α of a slice without rows, which is the centre.
    error = np.where((alpha != best) | empty, separate.pooled_error, separate.error)
    return TemperatureFit(alpha, centre, gamma, separate.at_bound & (alpha == best), error)


def _gamma_grid(best: Float, pooled: float) -> Float:
    farthest = float(np.abs(best - pooled).max()) if best.size else 0.0
    if farthest == 0:
        return np.array([0.0, np.inf])
    return np.concatenate([[0.0], farthest * np.geomspace(0.02, 1.0, 9), [np.inf]])


def _mean_and_variance(t: Float, variance: Float) -> tuple[float, float]:
    """Mean μ and variance τ² of the true values of slices, given estimates `t` and their sampling variances.

    Both results are 0 if there are no estimates.
    """
    if t.size == 0:
        return 0.0, 0.0

    def mean_and_excess(tau2: float) -> tuple[float, float]:
        weight = 1 / (variance + tau2)
        mu = float(np.sum(weight * t) / weight.sum())
        return mu, float(np.sum(weight * (t - mu) ** 2)) - (t.size - 1)

    mu, excess = mean_and_excess(0.0)
    if excess <= 0 or t.size == 1:
        return mu, 0.0
    upper = 2 * float(np.var(t) * t.size + 1e-12)
    tau2 = float(brentq(lambda v: mean_and_excess(v)[1], 0.0, upper, xtol=_TINY, rtol=4 * _EPS))
    return mean_and_excess(tau2)[0], tau2


def _posterior_mode(
    source: Source, best: Float, derivatives: Derivatives, mu: float, tau2: float, bounds: Bounds
) -> tuple[Float, Float]:
    """Posterior mode and standard deviation of each slice; `derivatives` are those of the loss at `best`."""

    def penalise(a: Float, loss: Derivatives) -> Derivatives:
        first, second, third = (a**power * values for power, values in enumerate(loss, start=1))
        slope = first + (np.log(a) - mu) / tau2  # derivative in log α
        curvature, safe = second + first + 1 / tau2, second + np.maximum(first, 0) + 1 / tau2
        # Far below its minimiser, the loss may not be convex in log α, because `first` is negative there.
        # `safe` is the curvature without the negative `first`. It replaces `curvature` where `curvature` is
        # at most half as large as `safe`.
        convex = curvature > safe / 2
        curvature = np.where(convex, curvature, safe)
        change = np.where(convex, third + 3 * second + first, 0.0)
        # From the values returned here, the solver computes Halley steps for `slope` as a function of log α.
        return slope / a, curvature / a**2, (change - curvature) / a**3

    def penalised(alpha: Float, active: IntArray) -> Derivatives:
        return penalise(alpha[active], source.evaluate(alpha, active))

    inner = (max(bounds[0], float(np.exp(mu)) * 1e-3), min(bounds[1], float(np.exp(mu)) * 1e3))
    start = np.clip(best, *inner)
    known = penalise(best, derivatives) if np.array_equal(start, best) else None
    solution = minimise_slices(penalised, start, bounds, known=known)
    return solution.alpha, _errors(solution)
