"""Checks of what a plan is asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hetcal._typing import IntArray
from hetcal._validate import check_level
from hetcal.calibrators import ClassWiseTemperatureScaling, TemperatureScaling
from hetcal.planning.sampling import FEWEST_REPEATS, HELD_OUT

__all__ = ["check_methods", "check_options", "check_range", "check_sizes"]

_SIZES = 10
_FEWEST_ROWS = 20  # of the smallest size


def check_methods(methods: Mapping[str, Any] | None) -> dict[str, Any]:
    """Calibrators by name; by default temperature scaling, and CTS tied closely, shrunk and free."""
    if methods is None:
        return {
            "TS": TemperatureScaling(),
            "CTS Γ=0.1": ClassWiseTemperatureScaling(0.1),
            "CTS bayes": ClassWiseTemperatureScaling("bayes"),
            "CTS": ClassWiseTemperatureScaling(),
        }
    if not isinstance(methods, Mapping):
        raise TypeError(f"methods must be a mapping of name to calibrator, got {methods!r}")
    if not methods:
        raise ValueError("methods must hold at least one calibrator, got none")
    return {str(name): method for name, method in methods.items()}


def check_options(
    target: float | None, n_repeats: int, tolerance: float, level: float, max_seconds: float | None
) -> None:
    """Refuse numbers that make no sense, before the long part."""
    check_level(level)
    whole = isinstance(n_repeats, int | np.integer) and not isinstance(n_repeats, bool)
    if not whole or n_repeats < FEWEST_REPEATS:
        raise ValueError(
            f"n_repeats must be an integer, {FEWEST_REPEATS} or more, got {n_repeats!r}; 20 is the default"
        )
    for name, value in (("target", target), ("tolerance", tolerance), ("max_seconds", max_seconds)):
        if value is None and name != "tolerance":
            continue
        number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if not number or not 0 < float(value) < math.inf:  # type: ignore[arg-type]
            raise ValueError(f"{name} must be a positive number, got {value!r}")


def check_range(alpha_range: Any) -> tuple[float, float]:
    """Two numbers; the bound itself says what they may be."""
    try:
        low, high = (float(a) for a in alpha_range)
    except (TypeError, ValueError):
        raise TypeError(f"alpha_range must be a pair (lower, upper), got {alpha_range!r}") from None
    return low, high


def check_sizes(sizes: ArrayLike | None, n_rows: int, n_classes: int) -> IntArray:
    """Sizes to fit on, ascending; geometric from two rows a class to 80% where none are given."""
    most = n_rows - math.ceil(HELD_OUT * n_rows)
    if sizes is None:
        least = max(2 * n_classes, _FEWEST_ROWS)
        if most < 2 * least:
            raise ValueError(
                f"logits must have at least {math.ceil(2 * least / (1 - HELD_OUT)):,} rows for a learning "
                f"curve of {n_classes} classes, got {n_rows:,}; collect more rows"
            )
        return np.unique(np.geomspace(least, most, _SIZES).round().astype(np.int64))
    given = np.asarray(sizes)
    if given.ndim != 1 or given.dtype.kind not in "iu" or len(given) < 3 or (np.diff(given) <= 0).any():
        raise ValueError(f"sizes must be three or more ascending integers, got {sizes!r}")
    if given[0] < 2 or given[-1] > most:
        raise ValueError(
            f"sizes must lie in 2..{most}, 80% of the {n_rows} rows, got {given[0]}..{given[-1]}; "
            "a fifth of the rows is kept to judge on"
        )
    return given.astype(np.int64)
