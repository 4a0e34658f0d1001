"""Inverse temperatures that minimise the Brier score or the ECE: a grid search in log α, then refinement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np

from hetcal._numeric.passes import scaled_softmax, sum_slices
from hetcal._numeric.source import MemorySource, Source
from hetcal._numeric.temperatures import TemperatureFit, fit_coupled
from hetcal._typing import Float, FloatArray, IntArray
from hetcal._validate import check_choice
from hetcal.metrics.binning import bin_index

__all__ = ["LossName", "check_loss", "search_temperatures"]

LossName = Literal["nll", "brier", "ece"]
_LOSS_NAMES: tuple[LossName, ...] = get_args(LossName)
Bounds = tuple[float, float]
# (source, α of every slice) -> loss of every slice
Loss = Callable[[MemorySource, Float], Float]

_GRID_POINTS = 81  # number of values of α between the bounds
_WINDOW_POINTS = 21  # number of values of α within Γ of a centre
_REFINEMENTS = 6
_REFINEMENT_POINTS = 9
_BINS = 15


def search_temperatures(source: Source, loss: LossName, gamma: float, bounds: Bounds) -> TemperatureFit:
    """Best inverse temperature of every slice within Γ of a common centre.

    A slice contains the rows of one predicted class, of one group or of one bundle of classes. Its loss is
    the total weight of its rows times its Brier score or ECE, so the losses of slices add up. If Γ is 0, all
    rows are treated as one slice. The search also tries the inverse temperatures that minimise the NLL, so
    the loss of the result is at most theirs.
    """
    value = _LOSSES[check_loss(loss)]
    source = source.in_memory(f"loss={loss!r}")
    convex = fit_coupled(source, gamma, bounds)
    pooled = float(_search(source.pooled(), value, bounds, np.full(1, convex.alpha0))[0])
    present = source.counts() > 0
    if gamma == 0:
        alpha, centre = np.full(source.n_slices, pooled), pooled
    elif np.isinf(gamma):
        alpha, centre = _search(source, value, bounds, convex.alpha), pooled
    else:
        alpha, centre = _search_coupled(source, value, gamma, bounds, pooled, convex)
    alpha = np.where(present, alpha, centre)
    at_bound, error = np.zeros(source.n_slices, bool), np.full(source.n_slices, np.nan)
    return TemperatureFit(alpha, centre, gamma, at_bound, error)


def check_loss(loss: str) -> LossName:
    """Return `loss` if it is valid; otherwise raise an error that lists the valid losses."""
    return check_choice(loss, "loss", _LOSS_NAMES)


def _search(
    source: MemorySource, value: Loss, bounds: Bounds, start: Float, size: int = _GRID_POINTS
) -> Float:
    """Inverse temperature within `bounds` with the lowest loss, for every slice, (S,).

    The search refines the best point of a grid, or `start` (S,) if its loss is lower. Of grid points with the
    same loss, the one nearest to α = 1 is preferred.
    """
    grid = np.geomspace(*bounds, size)
    alpha = grid[_nearest_best(_tabulate(source, value, grid), np.abs(np.log(grid)))]
    width = float(np.log(grid[1] / grid[0]))
    return _refine(source, value, _better(source, value, alpha, start), width, bounds)


def _search_coupled(
    source: MemorySource,
    value: Loss,
    gamma: float,
    bounds: Bounds,
    pooled: float,
    convex: TemperatureFit,
) -> tuple[Float, float]:
    """Best α of every slice (S,), and the centre from which none of them differs by more than Γ.

    Three centres are tried: the best one of a grid, the optimum of all rows together (`pooled`), and the
    centre of the fit that minimises the NLL (`convex`).
    """
    grid = np.geomspace(*bounds, _GRID_POINTS)
    table = _tabulate(source, value, grid)
    inside = np.abs(grid[:, None] - grid[None, :]) <= gamma  # a row per centre, a column per candidate
    best_inside = np.where(inside[:, :, None], table[None], np.inf).min(axis=1)
    coarse = float(grid[_nearest_best(best_inside.sum(axis=1, keepdims=True), np.abs(np.log(grid)))[0]])
    trials = []
    for centre, candidate in ((coarse, None), (pooled, None), (convex.alpha0, convex.alpha)):
        window = (max(bounds[0], centre - gamma), min(bounds[1], centre + gamma))
        start = np.full(source.n_slices, centre) if candidate is None else np.clip(candidate, *window)
        alpha = _search(source, value, window, start, _WINDOW_POINTS)
        trials.append((float(value(source, alpha).sum()), centre, alpha))
    _, centre, alpha = min(trials, key=lambda trial: trial[0])
    return alpha, centre


def _tabulate(source: MemorySource, value: Loss, grid: Float) -> Float:
    """Loss of every slice at every α of the grid, (G, S)."""
    return np.stack([value(source, np.full(source.n_slices, a)) for a in grid])


def _better(source: MemorySource, value: Loss, first: Float, second: Float) -> Float:
    """For every slice, the α with the lower loss, `first` or `second`, (S,) each."""
    return np.where(value(source, second) < value(source, first), second, first)


def _refine(source: MemorySource, value: Loss, alpha: Float, width: float, bounds: Bounds) -> Float:
    """Improve every α on ever finer grids around it.

    The first grid extends from ``log α − width`` to ``log α + width``.
    """
    best = value(source, alpha)
    for _ in range(_REFINEMENTS):
        middle = alpha.copy()
        for shift in np.linspace(-width, width, _REFINEMENT_POINTS):
            trial = np.clip(middle * np.exp(shift), *bounds)
            loss = value(source, trial)
            better = loss < best
            alpha, best = np.where(better, trial, alpha), np.where(better, loss, best)
        width *= 2 / (_REFINEMENT_POINTS - 1)
    return alpha


def _nearest_best(table: Float, distance: Float) -> IntArray:
    """Row of the smallest value in every column; ties go to the row with the smallest `distance`."""
    tied = table <= table.min(axis=0) * (1 + 1e-12)
    return np.asarray(np.where(tied, distance[:, None], np.inf).argmin(axis=0))


def _brier(source: MemorySource, alpha: Float) -> Float:
    rows = source.rows
    p, p_true = _probabilities(source, alpha)
    square = np.einsum("ij,ij->i", p, p, dtype=np.float64) - 2 * p_true + 1
    return sum_slices(source.ids, rows.weight * square, source.n_slices)


def _ece(source: MemorySource, alpha: Float) -> Float:
    rows = source.rows
    p, _ = _probabilities(source, alpha)
    confidence = p[np.arange(len(p)), rows.guess]
    cell = source.ids * _BINS + bin_index(confidence, n_bins=_BINS)
    gap = sum_slices(cell, rows.weight * (confidence - rows.correctness), source.n_slices * _BINS)
    return np.asarray(np.abs(gap).reshape(-1, _BINS).sum(axis=1))


def _probabilities(source: MemorySource, alpha: Float) -> tuple[FloatArray, Float]:
    rows = source.rows
    a = alpha[source.ids]
    p = scaled_softmax(rows.z, a, rows.guess)
    if rows.label_model is not None:
        return p, np.einsum("ij,ij->i", rows.unbiased, p)
    p_top = p[np.arange(len(p)), rows.guess].astype(np.float64)
    return p, p_top * np.exp(a * rows.d_true)


_LOSSES: dict[str, Loss] = {"brier": _brier, "ece": _ece}
