"""Limits on a report's metrics, for pipelines that should fail when calibration gets worse."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hetcal.metrics import Evaluation
from hetcal.report.data import FLOORED, ReportData

__all__ = ["GATES", "check_gates", "parse_gates"]


def _value(metric: str) -> Callable[[Evaluation], float]:
    return lambda e: float(getattr(e, metric))


def _excess(metric: str) -> Callable[[Evaluation], float]:
    return lambda e: e.excess[metric]


_METRICS: dict[str, Callable[[Evaluation], float]] = {
    **{name: _value(name) for name in (*FLOORED, "nll")},
    **{f"{name}_excess": _excess(name) for name in FLOORED},
}
# Name of a metric that can have a limit -> function that returns its value
GATES: dict[str, Callable[[ReportData], float]] = {
    **{name: lambda data, f=f: f(data.after) for name, f in _METRICS.items()},  # type: ignore[misc]
    **{f"uncal_{name}": lambda data, f=f: f(data.before) for name, f in _METRICS.items()},  # type: ignore[misc]
}


def check_gates(report_data: ReportData, limits: Sequence[str]) -> list[str]:
    """Describe the limits that a report exceeds.

    Parameters
    ----------
    report_data : ReportData
    limits : sequence of ``"NAME=VALUE"``
        Upper limits; a calibration error of 5% is 0.05. The names are ``ece``, ``max_ece``, ``avg_ece``,
        ``nll``, ``ece_excess``, ``max_ece_excess`` and ``avg_ece_excess``. The last three are the errors
        minus their means under perfect calibration, which suits small data sets. All names refer to the
        recommended calibrator or, with the prefix ``uncal_``, to the uncalibrated model.

    Returns
    -------
    list of str
        One line per exceeded limit; empty if there is none.
    """
    exceeded = []
    for name, limit in parse_gates(limits):
        value = GATES[name](report_data)
        if not value <= limit:
            exceeded.append(f"{name} is {value:.4f}, which exceeds the limit of {limit:g}")
    return exceeded


def parse_gates(limits: Sequence[str]) -> list[tuple[str, float]]:
    """Split each ``"NAME=VALUE"`` into its name and value, or raise an error."""
    return [_parse(limit) for limit in limits]


def _parse(limit: str) -> tuple[str, float]:
    name, equals, text = str(limit).partition("=")
    name = name.strip()
    if not equals:
        raise ValueError(
            f"--fail-over must be NAME=VALUE, got {limit!r}; write, for example, max_ece_excess=0.05"
        )
    if name not in GATES:
        raise ValueError(
            f"--fail-over must name one of {', '.join(_METRICS)}, with the prefix uncal_ if the limit is for "
            f"the uncalibrated model, got {name!r}; correct the name"
        )
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise ValueError(
            f"--fail-over must set {name} to a number, got {text.strip()!r}; write, for example, {name}=0.05"
        )
    return name, value
