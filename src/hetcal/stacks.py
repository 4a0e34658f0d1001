"""What an AutoCalibrator is made of, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hetcal.calibrators.auto import THEN

__all__ = ["behind", "count_text", "describe_stack", "leading", "share_text"]

_TRACE = 0.02  # less than this is a trace: the identity, and the caution of the weights
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def describe_stack(candidates: Iterable[Mapping[str, Any]], name: str = "") -> str:
    """What ``AutoCalibrator.candidates_`` came to, as the end of a sentence that begins with "Auto is".

    `name` is its ``best_name_``, which says what stands behind the mean.

    >>> table = [("Identity", 0.001), ("TS", 0.0), ("CTS", 0.33), ("VS, CTS", 0.669)]
    >>> describe_stack({"name": name, "weight": weight} for name, weight in table)
    'a mean of two calibrators, weighted by cross-validated likelihood: 67% VS + CTS, 33% CTS, <1% Identity'
    """
    found = sorted((c for c in candidates if c["weight"] > 0), key=lambda c: -c["weight"])
    names = [c["name"].replace(", ", " + ") for c in found]
    if len(found) == 1:
        return f"{names[0]}, which has the best cross-validated likelihood"
    n = len(leading(found))
    parts = ", ".join(f"{share_text(c['weight'])} {name}" for c, name in zip(found, names, strict=True))
    kind = f"a mean of {count_text(n)} calibrators" if n > 1 else "nearly one calibrator alone"
    return f"{kind}, weighted by cross-validated likelihood{behind(name)}: {parts}"


def behind(name: str) -> str:
    """What stands behind the mean by ``AutoCalibrator.best_name_``, to follow its description."""
    return ", with class-wise Platt scaling behind it" if name.endswith(THEN) else ""


def leading(candidates: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Candidates that have more than a trace of the weight, the heaviest first."""
    return sorted((c for c in candidates if c["weight"] >= _TRACE), key=lambda c: -c["weight"])


def share_text(weight: float) -> str:
    """``0.513`` as ``51%``; ``<1%`` for a trace, a dash for nothing."""
    return f"{weight:.0%}" if round(100 * weight) else "<1%" if weight > 0 else "–"


def count_text(n: int) -> str:
    """Small numbers as words."""
    return _WORDS[n] if n < len(_WORDS) else f"{n:,}"
