"""What the class-wise calibrators share: rows to slices, and slices to temperatures."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcal._core.arrays import FloatArray, IntArray, check_groups
from hetcal._core.kernels import prepare
from hetcal._core.temperature import (
    TemperatureFit,
    TemperatureProblem,
    fit_bayes,
    fit_coupled,
    fit_cross_validated,
)
from hetcal.calibrators.search import LossName, check_loss, search_temperatures
from hetcal.partition import Slices, bundle_classes, learn_slices

__all__ = ["Gamma", "check_gamma", "fit_temperatures", "slice_rows"]

Gamma = float | Literal["cv", "bayes"]


def slice_rows(
    z: FloatArray,
    y: IntArray,
    weight: NDArray[np.float64] | None,
    groups: ArrayLike | None,
    bundles: int | ArrayLike | None,
) -> tuple[Slices, TemperatureProblem]:
    """Slices of a fit and the rows of positive weight in them."""
    slices = learn_slices(z.shape[1], groups, len(z), _bundle_table(z, y, weight, bundles))
    rows = prepare(z, y, weight)
    kept = None if groups is None else check_groups(groups, n_rows=len(z))
    if kept is not None and weight is not None:
        kept = kept[weight > 0]
    return slices, TemperatureProblem(rows, slices.assign(rows.guess, kept), slices.n_slices)


def fit_temperatures(
    problem: TemperatureProblem, gamma: Gamma, loss: LossName, bounds: tuple[float, float], cv: int
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
    return fit_cross_validated(problem, bounds, int(cv))


def check_gamma(gamma: Any) -> float:
    """Return a number, zero or more, inf allowed."""
    number = isinstance(gamma, int | float | np.integer | np.floating) and not isinstance(gamma, bool)
    if not number or np.isnan(gamma) or gamma < 0:
        raise ValueError(f"gamma must be zero or more (inf allowed), got {gamma!r}")
    return float(gamma)


def _bundle_table(
    z: FloatArray, y: IntArray, weight: NDArray[np.float64] | None, bundles: int | ArrayLike | None
) -> IntArray | None:
    if bundles is None:
        return None
    table = np.asarray(bundles)
    if table.ndim == 0 and table.dtype.kind in "iu":
        return bundle_classes(z, y, table.item(), sample_weight=weight)
    if table.shape != (z.shape[1],) or table.dtype.kind not in "iu" or table.min() < 0:
        raise ValueError(
            f"bundles must be a number of bundles or one integer per class ({z.shape[1]}), got {bundles!r}"
        )
    return np.unique(table, return_inverse=True)[1].astype(np.int64)
