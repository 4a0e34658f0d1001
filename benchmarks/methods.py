"""The hetcal methods that the benchmarks measure, by their names in tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hetcal

__all__ = ["CTS", "FITS", "METHODS"]

CTS = "hetcal CTS, Γ = ∞"

METHODS: dict[str, Callable[[Any, Any], Any]] = {
    "hetcal TS": lambda z, y: hetcal.TemperatureScaling().fit(z, y),
    CTS: lambda z, y: hetcal.ClassWiseTemperatureScaling().fit(z, y),
    "hetcal CTS, Γ = 0.3": lambda z, y: hetcal.ClassWiseTemperatureScaling(0.3).fit(z, y),
    "hetcal CTS, Γ = bayes": lambda z, y: hetcal.ClassWiseTemperatureScaling("bayes").fit(z, y),
    "hetcal CTS, Γ = cv": lambda z, y: hetcal.ClassWiseTemperatureScaling("cv").fit(z, y),
    "hetcal VS": lambda z, y: hetcal.VectorScaling().fit(z, y),
}
FITS = tuple(name for name in METHODS if "VS" not in name)
