"""Descriptions of what an :class:`~hetcal.AutoCalibrator` selected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hetcal._format import count_word, share
from hetcal.calibrators import AutoCalibrator

__all__ = ["FINAL_STEP", "count_members", "describe_auto", "leading_candidates"]

FINAL_STEP = ", followed by class-wise Platt scaling"
# `leading_candidates` leaves out candidates with less weight than this. Among the default candidates, the
# identity receives a small weight even if it does not help.
_NEGLIGIBLE = 0.02


def describe_auto(model: AutoCalibrator) -> str:
    """Describe a fitted calibrator as the end of a sentence that starts with "Auto is".

    Examples
    --------
    >>> import numpy as np
    >>> from hetcal import AutoCalibrator, TemperatureScaling
    >>> z = np.array([[2.0, 0.0], [0.0, 2.0]] * 10)
    >>> model = AutoCalibrator({"TS": TemperatureScaling()}).fit(z, np.arange(20) // 7 % 2)
    >>> describe_auto(model)
    'TS, which has the best cross-validated likelihood'
    """
    candidates: list[dict[str, Any]] = model.candidates_
    members = sorted((c for c in candidates if c["weight"] > 0), key=lambda c: -c["weight"])
    names = [c["name"].replace(", ", " + ") for c in members]
    final = FINAL_STEP if model.has_final_step_ else ""
    if len(members) == 1:
        return f"{names[0]}, which has the best cross-validated likelihood{final}"
    is_mixed = len(leading_candidates(members)) > 1
    kind = f"a mean of {count_members(members)} calibrators" if is_mixed else "almost a single calibrator"
    parts = ", ".join(f"{share(c['weight'])} {name}" for c, name in zip(members, names, strict=True))
    return f"{kind}, weighted to maximise the cross-validated likelihood{final}: {parts}"


def count_members(candidates: Iterable[Mapping[str, Any]]) -> str:
    """Number of candidates with positive weight, as a word."""
    return count_word(sum(c["weight"] > 0 for c in candidates))


def leading_candidates(candidates: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Candidates with a weight of at least 2%, the largest weight first."""
    return sorted((c for c in candidates if c["weight"] >= _NEGLIGIBLE), key=lambda c: -c["weight"])
