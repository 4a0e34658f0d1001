"""Numbers formatted for people: percentages, percentage points, shares and rounded counts."""

from __future__ import annotations

import math

__all__ = ["count_word", "number", "percent", "points", "round_up", "share"]

_MISSING = "–"
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def percent(value: float | None, digits: int = 1) -> str:
    """Format a fraction as a percentage, such as ``0.0123`` as ``1.2%``; None and nan give a dash."""
    return _MISSING if value is None or math.isnan(value) else f"{100 * value:.{digits}f}%"


def points(value: float | None, digits: int = 1) -> str:
    """Format a fraction as signed percentage points, such as ``-0.04`` as ``−4.0``.

    A value that rounds to zero has no sign. None and nan give a dash.
    """
    if value is None or math.isnan(value):
        return _MISSING
    rounded = round(100 * value, digits)
    return f"{rounded:+.{digits}f}".replace("-", "−") if rounded else f"{0:.{digits}f}"


def number(value: float | None, digits: int = 3) -> str:
    """Format a number with `digits` decimals; None and nan give a dash."""
    return _MISSING if value is None or math.isnan(value) else f"{value:.{digits}f}"


def share(weight: float) -> str:
    """Format a weight as a whole percentage, such as ``0.513`` as ``51%``.

    A positive weight that rounds to zero gives ``<1%``, and zero gives a dash.
    """
    return f"{weight:.0%}" if round(100 * weight) else "<1%" if weight > 0 else _MISSING


def count_word(n: int) -> str:
    """Format counts up to ten as words, with "no" for zero, and larger ones with thousands separators."""
    return _WORDS[n] if n < len(_WORDS) else f"{n:,}"


def round_up(n: float) -> int:
    """Round up to the nearest whole number with at most two significant digits, such as 123 to 130."""
    step = 10 ** max(0, len(str(int(n))) - 2)
    return int(-(-n // step) * step)
