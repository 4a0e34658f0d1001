"""Inverse temperatures of slices under the NLL: pooled, alone, coupled by Γ, Γ cross-validated, shrunk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hetcal._core.arrays import CodeArray, IntArray
from hetcal._core.fast import compiled_for
from hetcal._core.kernels import (
    Rows,
    code_type,
    count_slices,
    flat_rows,
    slope_pass,
    sum_slices,
    tempered_nll,
    top_margin,
)
from hetcal._core.solvers import Derivatives, couple, minimise_slices

__all__ = [
    "Heldout",
    "Problem",
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

_SAMPLE = 1 << 15  # elements of the rows that give the first guess, where there are many more
_FEW = 256  # rows that it needs at least
_SCORED = 1 << 16  # rows whose losses are held together


@dataclass(frozen=True)
class Heldout:
    """NLL of rows under several choices, as sums that can be added up.

    Attributes
    ----------
    loss : (G,) Σ w · NLL
    product : (G, G) Σ w² · NLL_g · NLL_h, for the errors of differences
    n, weight : number of rows and the sum of their weights
    """

    loss: Float
    product: Float
    n: float
    weight: float

    def __add__(self, other: Heldout) -> Heldout:
        return Heldout(
            self.loss + other.loss, self.product + other.product, self.n + other.n, self.weight + other.weight
        )

    def means(self) -> Float:
        """Weighted mean of every choice, (G,)."""
        return self.loss / self.weight

    def errors(self, chosen: int) -> Float:
        """Standard error of each mean's difference to the chosen one's, rows being paired, (G,)."""
        m = self.product
        square = np.maximum(np.diag(m) - 2 * m[:, chosen] + m[chosen, chosen], 0)
        spread = square - (self.loss - self.loss[chosen]) ** 2 / self.n
        return np.asarray(np.sqrt(np.maximum(spread, 0)) / self.weight)


class Problem(Protocol):
    """Rows dealt into slices, wherever the rows may be: in memory, on a device, on disk, on a cluster."""

    @property
    def n_slices(self) -> int:
        """Number of slices S."""

    def evaluate(self, alpha: Float, active: IntArray) -> Derivatives:
        """Derivatives of the losses of the slices `active`; one pass over their rows."""

    def counts(self) -> IntArray:
        """Rows in every slice."""

    def class_counts(self, n_classes: int) -> IntArray:
        """Rows predicted as each class."""

    def weights(self) -> tuple[float, float]:
        """Sum of the rows' weights, and the least of them (0 where it is not known)."""

    def slice_weights(self) -> Float:
        """Sum of the weights in every slice."""

    def endless(self) -> NDArray[np.bool_]:
        """Slices whose loss falls for ever as α grows."""

    def held(self) -> NDArray[np.bool_]:
        """Slices with a label below the top of its row, whose loss rises in the end."""

    def sample(self) -> Problem | None:
        """Return a small part for a first guess, or None where the whole is small."""

    def split(self, n_folds: int) -> Iterator[tuple[Problem, Problem]]:
        """Rows outside and inside of every fold that leaves rows on both sides."""

    def heldout(self, alphas: Float) -> Heldout:
        """NLL of the rows under each line of `alphas` (G, S)."""


@dataclass(frozen=True, eq=False)
class TemperatureProblem:
    """Rows in memory and the slice that each belongs to; rows of slice ``n_slices`` are left out."""

    rows: Rows
    ids: CodeArray
    n_slices: int

    def evaluate(self, alpha: Float, active: IntArray) -> Derivatives:
        """Derivatives of the losses of the slices `active`; one pass over their rows."""
        wanted = np.zeros(self._width, bool)
        wanted[active] = True
        full = alpha if self._width == self.n_slices else np.append(alpha, 1.0)
        first, second, third = slope_pass(self.rows, self.ids, full, wanted)
        return first[active], second[active], third[active]

    def pooled(self) -> TemperatureProblem:
        """Return the same rows as one slice."""
        return TemperatureProblem(self.rows, np.zeros(len(self.ids), np.uint8), 1)

    def take(self, index: IntArray) -> TemperatureProblem:
        """Return the problem on some of the rows."""
        return TemperatureProblem(self.rows.take(index), self.ids[index], self.n_slices)

    def sample(self) -> TemperatureProblem | None:
        """Return every so many-th row for a first guess, or None where there are few."""
        step = len(self.rows) // max(_FEW, _SAMPLE // self.rows.z.shape[1])
        return self.take(np.arange(0, len(self.rows), step)) if step > 3 else None

    def counts(self) -> IntArray:
        """Rows in every slice."""
        return self._counts

    def class_counts(self, n_classes: int) -> IntArray:
        """Rows predicted as each class."""
        return count_slices(self.rows.guess, n_classes)

    def weights(self) -> tuple[float, float]:
        """Sum of the rows' weights, and the least of them."""
        given = self.rows.given_weight
        return self.rows.total_weight, 1.0 if given is None else float(given.min())

    def slice_weights(self) -> Float:
        """Sum of the weights in every slice."""
        if self.rows.given_weight is None:
            return self._counts.astype(np.float64)
        return sum_slices(self.ids, self.rows.given_weight, self.n_slices)[: self.n_slices]

    def endless(self) -> NDArray[np.bool_]:
        """Slices whose loss falls for ever as α grows: no label lies below the top of its row.

        The gradient cannot tell, since it underflows to zero long before the bound. Slices of flat rows only
        are left out: their loss does not change at all.
        """
        falling = np.zeros(self._width, bool)
        falling[: self.n_slices] = ~self._held & (self._counts > 0)
        index = np.flatnonzero(falling[self.ids]) if falling.any() else np.empty(0, np.int64)
        uneven = np.bincount(self.ids[index], ~flat_rows(self.rows, index), self._width) > 0
        return np.asarray((falling & uneven)[: self.n_slices])

    def held(self) -> NDArray[np.bool_]:
        """Slices with a label below the top of its row."""
        return self._held

    def split(self, n_folds: int) -> Iterator[tuple[TemperatureProblem, TemperatureProblem]]:
        """Rows outside and inside of every fold."""
        fold = folds_of(self, n_folds).astype(np.uint8 if n_folds < 256 else np.int64)
        for f in range(n_folds):
            inside = np.flatnonzero(fold == f)
            if inside.size and inside.size < len(fold):
                yield self._without(inside), self.take(inside)

    def heldout(self, alphas: Float) -> Heldout:
        """NLL of the rows under each line of `alphas` (G, S)."""
        total = Heldout(np.zeros(len(alphas)), np.zeros((len(alphas),) * 2), 0, 0)
        for start in range(0, len(self.rows), _SCORED):
            part = self.take(np.arange(start, min(start + _SCORED, len(self.rows))))
            w = part.rows.weight
            loss = w * np.stack([tempered_nll(part.rows, alpha[part.ids]) for alpha in alphas])
            total += Heldout(loss.sum(axis=1), loss @ loss.T, len(w), float(w.sum()))
        return total

    @cached_property
    def _held(self) -> NDArray[np.bool_]:
        rows, held = self.rows, np.zeros(self._width, bool)
        for start in range(0, len(rows), _SCORED):
            part = slice(start, start + _SCORED)
            wrong = start + np.flatnonzero(rows.guess[part] != rows.y[part])
            below = rows.z[wrong, rows.y[wrong]] < rows.z[wrong, rows.guess[wrong]]
            held[self.ids[wrong[below]]] = True
        return held[: self.n_slices]

    @cached_property
    def _counts(self) -> IntArray:
        return count_slices(self.ids, self.n_slices)

    @cached_property
    def _width(self) -> int:
        """Slices with the one that is left out, if any row is in it."""
        return self.n_slices + int(self._counts.sum() < len(self.ids))

    def _without(self, index: IntArray) -> TemperatureProblem:
        """Return the problem without some rows; large arrays are not copied for it."""
        if compiled_for(self.rows.z.size) is None:
            kept = np.ones(len(self.ids), bool)
            kept[index] = False
            return self.take(np.flatnonzero(kept))
        ids = self.ids.astype(code_type(self.n_slices))
        ids[index] = self.n_slices
        return TemperatureProblem(self.rows, ids, self.n_slices)


@dataclass(frozen=True)
class TemperatureFit:
    """Inverse temperatures (S,), their centre, the Γ used, slices at a bound, and how Γ was chosen."""

    alpha: Float
    alpha0: float
    gamma: float
    at_bound: NDArray[np.bool_]
    choice: dict[str, Any] | None = None


@dataclass(frozen=True)
class _Alone:
    """Every slice's own minimiser, and the one of all rows together."""

    pooled: float
    pooled_at_bound: bool
    best: Float
    at_bound: NDArray[np.bool_]


def fit_pooled(problem: Problem, bounds: Bounds) -> tuple[float, bool]:
    """One inverse temperature for all rows, and whether it stands at a bound."""
    pooled, at_bound, _ = _fit_pooled(problem, bounds, problem.endless())
    return pooled, at_bound


def fit_coupled(problem: Problem, gamma: float, bounds: Bounds) -> TemperatureFit:
    """Exact optimum for a given Γ; slices without rows take the centre."""
    if gamma == 0:
        pooled, at_bound = fit_pooled(problem, bounds)
        full = np.full(problem.n_slices, pooled)
        return TemperatureFit(full, pooled, 0.0, np.full(problem.n_slices, at_bound))
    return _couple(problem, _fit_alone(problem, bounds), gamma)


def fit_cross_validated(problem: Problem, bounds: Bounds, n_folds: int) -> TemperatureFit:
    """Γ with the least cross-validated NLL on an automatic grid from 0 to inf; ties go to the smaller Γ."""
    alone = _fit_alone(problem, bounds)
    grid = _gamma_grid(alone.best[~alone.at_bound & (problem.counts() > 0)], alone.pooled)
    total = Heldout(np.zeros(len(grid)), np.zeros((len(grid),) * 2), 0, 0)
    for train, test in problem.split(n_folds):
        there = _fit_alone(train, bounds)
        total += test.heldout(np.stack([_couple(train, there, float(g)).alpha for g in grid]))
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
    _, curvature, _ = problem.evaluate(best, np.arange(problem.n_slices))
    information = best**2 * curvature
    own = np.flatnonzero((problem.counts() > 0) & ~at_bound & (information > 0))
    mu, tau2 = _between(np.log(best[own]), 1 / information[own])
    if tau2 == 0:
        mu = float(np.log(alone.pooled))
        alpha = np.full(problem.n_slices, alone.pooled)
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


def _fit_pooled(
    problem: Problem, bounds: Bounds, endless: NDArray[np.bool_]
) -> tuple[float, bool, tuple[float, Derivatives] | None]:
    """Pooled minimiser, whether it is at a bound, and the last α looked at with its slices' derivatives."""
    if endless.any() and not problem.held().any():
        return bounds[1], True, None
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
    return float(solution.alpha[0]), bool(solution.at_bound[0]), last[0]


def _fit_alone(problem: Problem, bounds: Bounds) -> _Alone:
    endless = problem.endless()
    pooled, pooled_at_bound, last = _fit_pooled(problem, bounds, endless)
    start, known = (pooled, None) if last is None else last
    alpha = np.where(endless, bounds[1], start)
    going = np.flatnonzero(~endless)
    solution = minimise_slices(problem.evaluate, alpha, bounds, active=going, known=known)
    best = solution.alpha
    best[~endless & ~problem.held()] = pooled  # no rows, or flat ones, which any temperature suits
    return _Alone(pooled, pooled_at_bound, best, solution.at_bound | endless)


def _couple(problem: Problem, alone: _Alone, gamma: float) -> TemperatureFit:
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

        centre, alpha[present] = couple(evaluate, best[present], gamma, pooled)
    alpha[problem.counts() == 0] = centre
    return TemperatureFit(alpha, centre, gamma, alone.at_bound & (alpha == best))


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


def _posterior_mode(problem: Problem, start: Float, mu: float, tau2: float, bounds: Bounds) -> Float:
    def penalised(alpha: Float, active: IntArray) -> Derivatives:
        gradient, curvature, _ = problem.evaluate(alpha, active)
        a = alpha[active]
        slope = a * gradient + (np.log(a) - mu) / tau2  # derivative in log α
        bend = a * a * curvature + np.maximum(a * gradient, 0) + 1 / tau2
        return slope / a, bend / (a * a), -bend / a**3  # so that the step is Newton's

    inner = (max(bounds[0], float(np.exp(mu)) * 1e-3), min(bounds[1], float(np.exp(mu)) * 1e3))
    return minimise_slices(penalised, np.clip(start, *inner), bounds).alpha
