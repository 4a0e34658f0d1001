"""Inverse temperatures under losses that are not convex (Brier, ECE): a grid in log α, then refinement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hetcal._core.arrays import FloatArray, IntArray
from hetcal._core.kernels import scaled_softmax
from hetcal._core.temperature import TemperatureFit, TemperatureProblem
from hetcal.metrics.reliability import bin_index

__all__ = ["LossName", "check_loss", "search_temperatures"]

LossName = Literal["nll", "brier", "ece"]
Float = NDArray[np.float64]

_GRID = 81
_ROUNDS = 6
_FINE = 9
_BINS = 15


def search_temperatures(
    problem: TemperatureProblem, loss: LossName, gamma: float, bounds: tuple[float, float]
) -> TemperatureFit:
    """Best inverse temperature of every slice, within Γ of a common centre, to the resolution of the search.

    A slice's loss is the sum over its rows (for ECE: rows times ECE), so that slices add up.
    """
    value = _LOSSES[check_loss(loss)]
    pooled_problem = problem.pooled()
    pooled = float(_search(pooled_problem, value, bounds)[0])
    present = problem.counts() > 0
    if gamma == 0 or not present.any():
        alpha = np.full(problem.n_slices, pooled)
        return TemperatureFit(alpha, pooled, gamma, np.zeros(problem.n_slices, bool))
    alpha, centre = _search(problem, value, bounds), pooled
    if np.isfinite(gamma):
        centre, alpha = _search_coupled(problem, value, gamma, bounds)
    alpha = np.where(present, alpha, centre)
    return TemperatureFit(alpha, centre, gamma, np.zeros(problem.n_slices, bool))


def check_loss(loss: str) -> LossName:
    """One of the losses, or an error that lists them."""
    if loss not in ("nll", *_LOSSES):
        raise ValueError(f"loss must be one of 'nll', {', '.join(map(repr, _LOSSES))}, got {loss!r}")
    return loss  # type: ignore[return-value]


def _search(problem: TemperatureProblem, value: Callable[..., Float], bounds: tuple[float, float]) -> Float:
    grid = np.geomspace(*bounds, _GRID)
    table = np.stack([value(problem, np.full(problem.n_slices, a)) for a in grid])
    alpha = grid[_nearest_best(table, np.abs(np.log(grid)))]
    width = np.log(grid[1] / grid[0])
    return _refine(problem, value, alpha, width, np.full_like(alpha, bounds[0]), np.full_like(alpha, bounds[1]))


def _search_coupled(
    problem: TemperatureProblem, value: Callable[..., Float], gamma: float, bounds: tuple[float, float]
) -> tuple[float, Float]:
    grid = np.geomspace(*bounds, _GRID)
    table = np.stack([value(problem, np.full(problem.n_slices, a)) for a in grid])
    inside = np.abs(grid[:, None] - grid[None, :]) <= gamma  # [centre, candidate]; a centre is its own candidate
    reach = np.where(inside[:, :, None], table[None], np.inf).min(axis=1)
    centre = float(grid[_nearest_best(reach.sum(axis=1, keepdims=True), np.abs(np.log(grid)))[0]])
    low, high = max(bounds[0], centre - gamma), min(bounds[1], centre + gamma)
    masked = np.where(((grid >= low) & (grid <= high))[:, None], table, np.inf)
    alpha = grid[_nearest_best(masked, np.abs(np.log(grid / centre)))]
    width = np.log(grid[1] / grid[0])
    full = np.full_like(alpha, low), np.full_like(alpha, high)
    return centre, _refine(problem, value, alpha, width, *full)


def _refine(
    problem: TemperatureProblem, value: Callable[..., Float], alpha: Float, width: float, low: Float, high: Float
) -> Float:
    best = value(problem, alpha)
    for _ in range(_ROUNDS):
        middle = alpha.copy()
        for shift in np.linspace(-width, width, _FINE):
            trial = np.clip(middle * np.exp(shift), low, high)
            loss = value(problem, trial)
            better = loss < best
            alpha, best = np.where(better, trial, alpha), np.where(better, loss, best)
        width *= 2 / (_FINE - 1)
    return alpha


def _nearest_best(table: Float, distance: Float) -> IntArray:
    """Row of the least value in every column; of equal ones the row with the least `distance`."""
    tied = table <= table.min(axis=0) * (1 + 1e-12)
    return np.where(tied, distance[:, None], np.inf).argmin(axis=0)


def _brier(problem: TemperatureProblem, alpha: Float) -> Float:
    rows = problem.rows
    p, p_true = _probabilities(problem, alpha)
    square = np.einsum("ij,ij->i", p, p, dtype=np.float64) - 2 * p_true + 1
    return np.bincount(problem.ids, rows.weight * square, problem.n_slices)


def _ece(problem: TemperatureProblem, alpha: Float) -> Float:
    rows = problem.rows
    p, _ = _probabilities(problem, alpha)
    confidence = p[np.arange(len(p)), rows.guess]
    cell = problem.ids * _BINS + bin_index(confidence, n_bins=_BINS)
    gap = np.bincount(cell, rows.weight * (confidence - rows.right), problem.n_slices * _BINS)
    return np.asarray(np.abs(gap).reshape(-1, _BINS).sum(axis=1))


def _probabilities(problem: TemperatureProblem, alpha: Float) -> tuple[FloatArray, Float]:
    rows = problem.rows
    a = alpha[problem.ids]
    p = scaled_softmax(rows.z, a)
    p_top = p[np.arange(len(p)), rows.guess].astype(np.float64)
    return p, p_top * np.exp(a * rows.d_true)


_LOSSES: dict[str, Callable[[TemperatureProblem, Float], Float]] = {"brier": _brier, "ece": _ece}
