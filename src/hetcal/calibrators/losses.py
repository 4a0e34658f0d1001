"""Inverse temperatures under losses that are not convex (Brier, ECE): a grid in log α, then refinement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from hetcal._numeric.passes import scaled_softmax, sum_slices
from hetcal._numeric.problems import Problem, TemperatureProblem
from hetcal._numeric.temperatures import TemperatureFit, fit_coupled
from hetcal._typing import Float, FloatArray, IntArray
from hetcal.metrics.binning import bin_index

__all__ = ["LossName", "check_loss", "search_temperatures"]

LossName = Literal["nll", "brier", "ece"]
Bounds = tuple[float, float]
# (problem, α of every slice) -> loss of every slice
Loss = Callable[[TemperatureProblem, Float], Float]

_GRID = 81  # points between the bounds
_WINDOW = 21  # points within Γ of a centre
_ROUNDS = 6
_FINE = 9
_BINS = 15


def search_temperatures(problem: Problem, loss: LossName, gamma: float, bounds: Bounds) -> TemperatureFit:
    """Best inverse temperature of every slice, within Γ of a common centre, to the resolution of the search.

    A slice's loss is the sum over its rows (for ECE: rows times ECE), so that slices add up. The optimum of
    the NLL is among the candidates, so that the result is never worse than it.
    """
    value = _LOSSES[check_loss(loss)]
    if not isinstance(problem, TemperatureProblem):
        raise ValueError(f"loss must be 'nll' for rows that are not in memory, got {loss!r}; fit on a sample")
    convex = fit_coupled(problem, gamma, bounds)
    pooled = float(_search(problem.pooled(), value, bounds, np.full(1, convex.alpha0))[0])
    present = problem.counts() > 0
    if gamma == 0:
        alpha, centre = np.full(problem.n_slices, pooled), pooled
    elif np.isinf(gamma):
        alpha, centre = _search(problem, value, bounds, convex.alpha), pooled
    else:
        alpha, centre = _search_coupled(problem, value, gamma, bounds, pooled, convex)
    alpha = np.where(present, alpha, centre)
    nothing, unknown = np.zeros(problem.n_slices, bool), np.full(problem.n_slices, np.nan)
    return TemperatureFit(alpha, centre, gamma, nothing, unknown)


def check_loss(loss: str) -> LossName:
    """One of the losses, or an error that lists them."""
    if not isinstance(loss, str) or loss not in ("nll", *_LOSSES):
        raise ValueError(f"loss must be one of 'nll', {', '.join(map(repr, _LOSSES))}, got {loss!r}")
    return loss  # type: ignore[return-value]


def _search(
    problem: TemperatureProblem, value: Loss, bounds: Bounds, known: Float, size: int = _GRID
) -> Float:
    """Minimise every slice over `bounds`; of equal values the one nearest to 1 in log α; `known` competes."""
    grid = np.geomspace(*bounds, size)
    alpha = grid[_nearest_best(_tabulate(problem, value, grid), np.abs(np.log(grid)))]
    width = float(np.log(grid[1] / grid[0]))
    return _refine(problem, value, _better(problem, value, alpha, known), width, bounds)


def _search_coupled(
    problem: TemperatureProblem,
    value: Loss,
    gamma: float,
    bounds: Bounds,
    pooled: float,
    convex: TemperatureFit,
) -> tuple[Float, float]:
    """Try a few centres, each with the best of its window: the grid's best, the pooled one, the NLL's."""
    grid = np.geomspace(*bounds, _GRID)
    table = _tabulate(problem, value, grid)
    inside = (
        np.abs(grid[:, None] - grid[None, :]) <= gamma
    )  # [centre, candidate]; a centre is its own candidate
    reach = np.where(inside[:, :, None], table[None], np.inf).min(axis=1)
    coarse = float(grid[_nearest_best(reach.sum(axis=1, keepdims=True), np.abs(np.log(grid)))[0]])
    tried = []
    for centre, known in ((coarse, None), (pooled, None), (convex.alpha0, convex.alpha)):
        window = (max(bounds[0], centre - gamma), min(bounds[1], centre + gamma))
        start = np.full(problem.n_slices, centre) if known is None else np.clip(known, *window)
        alpha = _search(problem, value, window, start, _WINDOW)
        tried.append((float(value(problem, alpha).sum()), centre, alpha))
    _, centre, alpha = min(tried, key=lambda t: t[0])
    return alpha, centre


def _tabulate(problem: TemperatureProblem, value: Loss, grid: Float) -> Float:
    """Loss of every slice at every α of the grid, (G, S)."""
    return np.stack([value(problem, np.full(problem.n_slices, a)) for a in grid])


def _better(problem: TemperatureProblem, value: Loss, one: Float, other: Float) -> Float:
    return np.where(value(problem, other) < value(problem, one), other, one)


def _refine(problem: TemperatureProblem, value: Loss, alpha: Float, width: float, bounds: Bounds) -> Float:
    best = value(problem, alpha)
    for _ in range(_ROUNDS):
        middle = alpha.copy()
        for shift in np.linspace(-width, width, _FINE):
            trial = np.clip(middle * np.exp(shift), *bounds)
            loss = value(problem, trial)
            better = loss < best
            alpha, best = np.where(better, trial, alpha), np.where(better, loss, best)
        width *= 2 / (_FINE - 1)
    return alpha


def _nearest_best(table: Float, distance: Float) -> IntArray:
    """Row of the least value in every column; of equal ones the row with the least `distance`."""
    tied = table <= table.min(axis=0) * (1 + 1e-12)
    return np.asarray(np.where(tied, distance[:, None], np.inf).argmin(axis=0))


def _brier(problem: TemperatureProblem, alpha: Float) -> Float:
    rows = problem.rows
    p, p_true = _probabilities(problem, alpha)
    square = np.einsum("ij,ij->i", p, p, dtype=np.float64) - 2 * p_true + 1
    return sum_slices(problem.ids, rows.weight * square, problem.n_slices)


def _ece(problem: TemperatureProblem, alpha: Float) -> Float:
    rows = problem.rows
    p, _ = _probabilities(problem, alpha)
    confidence = p[np.arange(len(p)), rows.guess]
    cell = problem.ids * _BINS + bin_index(confidence, n_bins=_BINS)
    gap = sum_slices(cell, rows.weight * (confidence - rows.right), problem.n_slices * _BINS)
    return np.asarray(np.abs(gap).reshape(-1, _BINS).sum(axis=1))


def _probabilities(problem: TemperatureProblem, alpha: Float) -> tuple[FloatArray, Float]:
    rows = problem.rows
    a = alpha[problem.ids]
    p = scaled_softmax(rows.z, a)
    p_top = p[np.arange(len(p)), rows.guess].astype(np.float64)
    return p, p_top * np.exp(a * rows.d_true)


_LOSSES: dict[str, Loss] = {"brier": _brier, "ece": _ece}
