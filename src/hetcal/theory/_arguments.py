"""Checks of scalar arguments that the distributions and the bounds share."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["finite_number", "fraction", "positive_int", "positive_number", "width_of"]


def positive_int(value: object, name: str, remedy: str) -> int:
    """`value` as an int of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {value!r}; {remedy}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}; {remedy}")
    return int(value)


def finite_number(value: object, name: str, remedy: str) -> float:
    """`value` as a finite float."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} must be a number, got {value!r}; {remedy}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}; {remedy}")
    return float(value)


def positive_number(value: object, name: str, remedy: str) -> float:
    """`value` as a finite float above 0."""
    number = finite_number(value, name, remedy)
    if number <= 0:
        raise ValueError(f"{name} must be positive, got {value}; {remedy}")
    return number


def fraction(
    value: object, name: str, remedy: str, *, low: float = 0.0, high: float = 1.0, closed: str = ""
) -> float:
    """`value` as a float between `low` and `high`; `closed` names the ends that count as inside."""
    number = finite_number(value, name, remedy)
    above = number >= low if "low" in closed else number > low
    below = number <= high if "high" in closed else number < high
    if not (above and below):
        interval = f"{'[' if 'low' in closed else '('}{low:g}, {high:g}{']' if 'high' in closed else ')'}"
        raise ValueError(f"{name} must lie in {interval}, got {value}; {remedy}")
    return number


def width_of(alpha_range: object) -> float:
    """``α₊ − α₋``, from the pair ``(α₋, α₊)`` or from the width itself."""
    remedy = "pass the pair (alpha_minus, alpha_plus) or its width"
    if isinstance(alpha_range, tuple | list | np.ndarray):
        if len(alpha_range) != 2:
            raise ValueError(f"alpha_range must have two entries, got {len(alpha_range)}; {remedy}")
        low = finite_number(alpha_range[0], "alpha_range[0]", remedy)
        high = finite_number(alpha_range[1], "alpha_range[1]", remedy)
        if low > high:
            raise ValueError(
                f"alpha_range must be in ascending order, got ({low:g}, {high:g}); swap its entries"
            )
        return high - low
    width = finite_number(alpha_range, "alpha_range", remedy)
    if width < 0:
        raise ValueError(f"alpha_range must not be negative, got {width:g}; {remedy}")
    return width
