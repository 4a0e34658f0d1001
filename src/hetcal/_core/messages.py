"""Warnings that name what they are about."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable

from hetcal._core.arrays import IntArray

__all__ = ["CalibrationWarning", "warn_at_bound", "warn_never_predicted", "warn_separable", "warn_thin_data"]


class CalibrationWarning(UserWarning):
    """The fit is valid, but the data leave part of it undecided."""


def warn_thin_data(y: IntArray, n_classes: int) -> None:
    """Say that there are fewer rows than classes, or labels of one class only."""
    if len(y) < n_classes:
        _warn(
            f"logits should have at least one row per class, got {len(y)} rows for {n_classes} classes; "
            "most classes will share one fit"
        )
    if len(y) > 1 and y.min() == y.max():
        _warn(
            f"labels should hold more than one class, got only class {y[0]}; "
            "the fit says nothing about the others"
        )


def warn_never_predicted(slices: IntArray, name: Callable[[int], str]) -> None:
    """Say which slices have no rows and take the shared parameters."""
    if slices.size:
        _warn(f"no row is predicted as {_list(slices, name)}: the shared parameters are used there")


def warn_at_bound(slices: IntArray, name: Callable[[int], str], bounds: str) -> None:
    """Say which slices have their optimum at a bound."""
    if slices.size:
        _warn(
            f"the best temperature lies at a bound {bounds} for {_list(slices, name)}: all predictions there "
            "are right, or none is better than chance; a finite gamma, gamma='cv' or gamma='bayes' borrows "
            "strength from the others"
        )


def warn_separable(slices: IntArray, name: Callable[[int], str]) -> None:
    """Say which slices are fitted without error, so that their parameters have no finite best value."""
    if slices.size:
        _warn(
            f"the fit makes no error on {_list(slices, name)}, so that the best parameters are infinite and "
            "those kept only very large; more rows, fewer parameters or a finite gamma (a ridge for vector "
            "scaling) would settle them"
        )


def _warn(text: str) -> None:
    """Warn at the line that called hetcal, however deep the warning arose."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("hetcal."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, CalibrationWarning, stacklevel=level)


def _list(slices: IntArray, name: Callable[[int], str], most: int = 8) -> str:
    shown = ", ".join(name(int(k)) for k in slices[:most])
    return shown if len(slices) <= most else f"{shown} and {len(slices) - most} more"
