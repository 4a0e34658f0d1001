"""Numbers formatted for people: percentages, percentage points, shares and rounded counts."""

from __future__ import annotations

import math

__all__ = ["count_word", "number", "percent", "points", "round_up", "share"]

_MISSING = "–"
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def percent(value: float | None, digits: int = 1) -> str:
    """``0.0123`` as ``1.2%``; a dash for None and nan."""
    return _MISSING if value is None or math.isnan(value) else f"{100 * value:.{digits}f}%"


def points(value: float | None, digits: int = 1) -> str:
    """``-0.04`` as ``−4.0``: percentage points with their sign; a dash for None and nan."""
    if value is None or math.isnan(value):
        return _MISSING
    rounded = round(100 * value, digits)
    return f"{rounded:+.{digits}f}".replace("-", "−") if rounded else f"{0:.{digits}f}"


def number(value: float | None, digits: int = 3) -> str:
    """Number with a fixed number of decimals; a dash for None and nan."""
    return _MISSING if value is None or math.isnan(value) else f"{value:.{digits}f}"


def share(weight: float) -> str:
    """``0.513`` as ``51%``; ``<1%`` for a small positive weight, a dash for zero."""
    return f"{weight:.0%}" if round(100 * weight) else "<1%" if weight > 0 else _MISSING


def count_word(n: int) -> str:
    """Small counts as words, larger ones with thousands separators."""
    return _WORDS[n] if n < len(_WORDS) else f"{n:,}"


def round_up(n: float) -> int:
    """Round up to the next whole number that has at most two significant digits."""
    step = 10 ** max(0, len(str(int(n))) - 2)
    return int(-(-n // step) * step)
