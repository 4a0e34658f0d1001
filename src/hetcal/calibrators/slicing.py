"""What the calibrators share: rows to slices wherever the rows are, and slices to temperatures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcal._numeric.blocks import Block, BlockProblem, RowSource
from hetcal._numeric.device import TensorProblem
from hetcal._numeric.folds import count_repeats
from hetcal._numeric.problems import Problem, TemperatureProblem
from hetcal._numeric.rows import Rows
from hetcal._numeric.temperatures import TemperatureFit, fit_bayes, fit_coupled, fit_cross_validated
from hetcal._typing import IntArray
from hetcal._validate import check_gamma
from hetcal._warnings import warn_at_bound, warn_repeats
from hetcal.calibrators.base import FitData
from hetcal.calibrators.losses import LossName, check_loss, search_temperatures
from hetcal.partition import Slices, bundle_by_sums, gap_sums, learn_slices

__all__ = ["Gamma", "fit_temperatures", "open_problem", "warn_slices_at_bound"]

Gamma = float | Literal["cv", "bayes"]


def open_problem(
    data: FitData, bundles: int | ArrayLike | None = None, *, sliced: bool = True
) -> tuple[Slices, Problem]:
    """Slices of a fit and the rows in them, wherever they are; by class alone where not `sliced`."""
    rows = data.rows
    if isinstance(rows, TensorProblem):
        return _open_tensors(rows, data.groups, bundles, sliced)
    if not isinstance(rows, Rows):
        return _open_source(rows, bundles, sliced)
    n_classes = data.n_classes
    if not sliced:
        return Slices(n_classes), TemperatureProblem(rows, rows.guess, n_classes, data.fold_groups)
    table = None if bundles is None else _bundle_table(bundles, n_classes, lambda: gap_sums(rows))
    slices = learn_slices(n_classes, data.groups, len(rows), table)
    ids = slices.assign(rows.guess, data.groups)
    return slices, TemperatureProblem(rows, ids, slices.n_slices, data.fold_groups)


def fit_temperatures(
    problem: Problem, gamma: Gamma, loss: LossName, bounds: tuple[float, float], cv: int
) -> TemperatureFit:
    """Inverse temperatures of all slices, tied by Γ or by the way `gamma` names."""
    check_loss(loss)
    if not isinstance(gamma, str):
        number = check_gamma(gamma)
        if loss == "nll":
            return fit_coupled(problem, number, bounds)
        return search_temperatures(problem, loss, number, bounds)
    if gamma not in ("cv", "bayes"):
        raise ValueError(f"gamma must be a number, 'cv' or 'bayes', got {gamma!r}")
    if loss != "nll":
        raise ValueError(
            f"gamma must be a number for loss={loss!r}, got {gamma!r}; 'cv' and 'bayes' need loss='nll'"
        )
    if gamma == "bayes":
        return fit_bayes(problem, bounds)
    if isinstance(cv, bool) or not isinstance(cv, int | np.integer) or cv < 2:
        raise ValueError(f"cv must be an integer, 2 or more, got {cv!r}")
    fit = fit_cross_validated(problem, bounds, int(cv))
    if isinstance(problem, TemperatureProblem) and problem.fold_groups is None:
        warn_repeats(count_repeats(problem.rows, fit.alpha0))
    return fit


def _open_tensors(
    problem: TensorProblem, groups: NDArray[Any] | None, bundles: int | ArrayLike | None, sliced: bool
) -> tuple[Slices, TensorProblem]:
    n_classes = int(problem.z.shape[1])
    if not sliced or (groups is None and bundles is None):
        return Slices(n_classes), problem
    table = None
    if bundles is not None:
        table = _bundle_table(bundles, n_classes, lambda: gap_sums(problem.some_rows(problem.n_given)))
    slices = learn_slices(n_classes, groups, len(problem.z), table)
    ids = slices.assign(problem.guess.cpu().numpy(), groups)
    return slices, problem.sliced(ids, slices.n_slices)


def _open_source(
    source: RowSource, bundles: int | ArrayLike | None, sliced: bool
) -> tuple[Slices, BlockProblem]:
    n_classes = source.n_classes
    slices = Slices(n_classes)
    if sliced:
        names = None if source.first().groups is None else source.group_names()
        table = None
        if bundles is not None:
            table = _bundle_table(bundles, n_classes, lambda: source.reduce(_GapSums()))
        slices = learn_slices(n_classes, names, 0 if names is None else len(names), table)
    return slices, BlockProblem(source, _Assign(slices), slices.n_slices)


@dataclass(frozen=True)
class _Assign:
    """Slices of a block's rows; groups are passed on only where slices are groups."""

    slices: Slices

    def __call__(self, guess: Any, groups: Any) -> Any:
        return self.slices.assign(guess, None if self.slices.groups is None else groups)


@dataclass(frozen=True)
class _GapSums:
    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        return gap_sums(block.rows)


def _bundle_table(bundles: int | ArrayLike, n_classes: int, sums: Any) -> IntArray:
    table = np.asarray(bundles)
    if table.ndim == 0 and table.dtype.kind in "iu":
        rows, error = sums()
        return bundle_by_sums(rows, error, table.item())
    if table.shape != (n_classes,) or table.dtype.kind not in "iu" or table.min() < 0:
        raise ValueError(
            f"bundles must be a number of bundles or one integer per class ({n_classes}), got {bundles!r}"
        )
    return np.unique(table, return_inverse=True)[1].astype(np.int64)


def warn_slices_at_bound(fit: TemperatureFit, own: NDArray[np.bool_], slices: Slices, bounds: Any) -> None:
    """Warn about slices with a fit of their own whose best temperature lies at a bound."""
    at_bound = fit.at_bound & own
    can_tie = bool(np.isinf(fit.gamma) and (own & ~at_bound).any())
    warn_at_bound(np.flatnonzero(at_bound), slices.name, str(bounds), can_tie=can_tie)
