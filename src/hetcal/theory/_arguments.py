"""Validation of scalar arguments, shared by the theory and planning modules."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["check_alpha_range", "check_integer", "check_number"]


def check_integer(
    value: object, name: str, *, minimum: int | None = None, maximum: int | None = None, remedy: str = ""
) -> int:
    """Return `value` as an int in ``[minimum, maximum]``; booleans are not integers here."""
    ending = f"; {remedy}" if remedy else ""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {value!r}{ending}")
    if minimum is not None and value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}{ending}")
    if maximum is not None and value > maximum:
        raise ValueError(f"{name} must be at most {maximum}, got {value}{ending}")
    return int(value)


def check_number(
    value: object,
    name: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
    remedy: str = "",
) -> float:
    """Return `value` as a finite float within the limits.

    `minimum` and `maximum` are inclusive, `above` and `below` exclusive.
    """
    ending = f"; {remedy}" if remedy else ""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} must be a number, got {value!r}{ending}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {value}{ending}")
    outside = (
        (minimum is not None and number < minimum)
        or (maximum is not None and number > maximum)
        or (above is not None and number <= above)
        or (below is not None and number >= below)
    )
    if outside:
        limits = {"at least": minimum, "at most": maximum, "above": above, "below": below}
        rule = " and ".join(f"{words} {limit:g}" for words, limit in limits.items() if limit is not None)
        raise ValueError(f"{name} must be {rule}, got {value}{ending}")
    return number


def check_alpha_range(alpha_range: object) -> float:
    """Return the width ``α₊ − α₋``, given the pair ``(α₋, α₊)`` or the width itself."""
    remedy = "pass the pair (alpha_minus, alpha_plus) or its width"
    if not isinstance(alpha_range, tuple | list | np.ndarray):
        return check_number(alpha_range, "alpha_range", minimum=0, remedy=remedy)
    if len(alpha_range) != 2:
        raise ValueError(f"alpha_range must have two entries, got {len(alpha_range)}; {remedy}")
    low, high = (check_number(end, f"alpha_range[{i}]", remedy=remedy) for i, end in enumerate(alpha_range))
    if low > high:
        raise ValueError(f"alpha_range must be in ascending order, got ({low:g}, {high:g}); swap its entries")
    return high - low
