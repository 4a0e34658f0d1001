"""Limits that a report must keep, for pipelines that should stop when calibration gets worse."""

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
# Name of a gate -> its value
GATES: dict[str, Callable[[ReportData], float]] = {
    **{name: lambda data, f=f: f(data.after) for name, f in _METRICS.items()},  # type: ignore[misc]
    **{f"uncal_{name}": lambda data, f=f: f(data.before) for name, f in _METRICS.items()},  # type: ignore[misc]
}


def check_gates(report_data: ReportData, limits: Sequence[str]) -> list[str]:
    """Say which limits a report breaks; an empty list when it keeps them all.

    Parameters
    ----------
    report_data : ReportData
    limits : texts ``NAME=VALUE``
        The metric must not be over the value, as a fraction. Names: ``ece``, ``max_ece``, ``avg_ece``,
        ``nll``, and ``ece_excess``, ``max_ece_excess``, ``avg_ece_excess`` for what is left after the noise
        floor, which is the fair limit where rows are few. They are of the recommended calibrator, since its
        output is what would be used; with ``uncal_`` in front they are of the model as it is.

    Returns
    -------
    list of str, one line per broken limit
    """
    out = []
    for name, most in parse_gates(limits):
        value = GATES[name](report_data)
        if not value <= most:
            out.append(f"{name} is {value:.4f}, over the limit of {most:g}")
    return out


def parse_gates(limits: Sequence[str]) -> list[tuple[str, float]]:
    """Names and values of texts ``NAME=VALUE``, or an error; good to call before a long computation."""
    return [_parse(limit) for limit in limits]


def _parse(limit: str) -> tuple[str, float]:
    name, equals, text = str(limit).partition("=")
    name = name.strip()
    if not equals:
        raise ValueError(f"--fail-over must be NAME=VALUE, got {limit!r}; for example max_ece_excess=0.05")
    if name not in GATES:
        raise ValueError(
            f"--fail-over must name one of {', '.join(_METRICS)}, got {name!r}; "
            "put uncal_ in front for the model as it is"
        )
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise ValueError(
            f"--fail-over must give {name} a number, got {text.strip()!r}; for example {name}=0.05"
        )
    return name, value
