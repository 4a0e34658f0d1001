"""The learning curves of a plan as a chart. matplotlib loads when used."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hetcal._validate import choose
from hetcal.planning.curve import Curve, interval_of
from hetcal.planning.plan import MethodPlan, ValidationPlan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plan_figure"]

# Okabe and Ito's palette, which colour-blind readers can tell apart.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999")
_MARKS = "osD^vPX"
_INK, _GREY, _FAINT = "#222222", "#888888", "#d9d9d9"
_LARGE, _SMALL = 10, 8.5
_AHEAD = 8  # times the rows at hand that the curves are drawn on to

_LABELS = {"nll": "held-out NLL", "max_ece": "max-ECE over its noise floor"}


def plan_figure(
    plan: ValidationPlan, ax: Axes | None = None, *, metric: Literal["nll", "max_ece"] = "nll"
) -> Axes:
    """Learning curves with their intervals: measured points, the fitted curve, and where it leads.

    Bands leave out the luck of the rows at hand, which moves all curves together. Points far above the rest,
    where fits on few rows went wrong, leave the chart at the top.

    Parameters
    ----------
    plan : ValidationPlan
    ax : axes to draw on; a new figure by default
    metric : ``"nll"`` or ``"max_ece"``
    """
    choose(_LABELS, metric, "metric")
    ax = _axes(ax)
    m = np.geomspace(plan.methods[0].sizes[0], _AHEAD * plan.n, 200)
    for i, method in enumerate(plan.methods):
        _draw(ax, plan, method, metric, m, i)
    ax.set_xscale("log")
    ax.set_xlim(m[0] / 1.15, m[-1] * 1.3)
    ax.set_ylim(*_room(plan, metric))
    ax.axvline(plan.n, color=_GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    note: dict[str, Any] = {"fontsize": _SMALL, "color": _GREY, "ha": "right", "va": "top"}
    ax.text(plan.n / 1.06, 0.985, f"{plan.n:,} rows at hand", transform=ax.get_xaxis_transform(), **note)
    if metric == "nll":
        _goal_lines(ax, plan, float(m[-1]))
    else:
        ax.axhline(0, color=_INK, linewidth=0.8, zorder=1)
    ax.set_xlabel("validation rows", fontsize=_LARGE)
    ax.set_ylabel(_LABELS[metric], fontsize=_LARGE)
    _tidy(ax)
    return ax


def _draw(ax: Axes, plan: ValidationPlan, method: MethodPlan, metric: str, m: Any, i: int) -> None:
    colour, mark = _COLOURS[i % len(_COLOURS)], _MARKS[i % len(_MARKS)]
    curve, points, errors, shift = _series(plan, method, metric)
    height, draws = shift + curve.at(m), shift + curve.sample(m)
    ends = np.array([interval_of(*pair, plan.level) for pair in zip(height, draws.T, strict=True)])
    ax.fill_between(m, ends[:, 1], ends[:, 2], color=colour, alpha=0.13, linewidth=0, zorder=1)
    for part, style in ((m <= plan.n, "-"), (m >= plan.n, (0, (3, 2)))):
        ax.plot(m[part], height[part], color=colour, linewidth=1.5, linestyle=style, zorder=2)
    look: dict[str, Any] = {"fmt": mark, "color": colour, "markersize": 4.5, "linewidth": 1, "zorder": 3}
    ax.errorbar(method.sizes, points, errors, label=method.name, **look)


def _series(plan: ValidationPlan, method: MethodPlan, metric: str) -> tuple[Curve, Any, Any, float]:
    if metric == "nll":
        return method.curve, method.nll, method.nll_error, plan.reference
    return method.max_ece_curve, method.max_ece_excess, method.max_ece_error, 0.0


def _room(plan: ValidationPlan, metric: str) -> tuple[float, float]:
    """Bottom and top of the axis: all that happens in the larger half of the sizes, and some room."""
    late = len(plan.methods[0].sizes) // 2
    values = np.concatenate([_series(plan, m, metric)[1][late:] for m in plan.methods])
    limits = [_series(plan, m, metric)[0].limit + _series(plan, m, metric)[3] for m in plan.methods]
    low = float(min(values.min(), min(limits)))
    # A class that ran off can lift a mean without end: three times the usual height has to do.
    high = float(min(values.max(), low + 3 * (np.median(values) - low) + 3 * (max(limits) - low)))
    pad = max(0.08 * (high - low), 0.5 * plan.tolerance)
    return low - pad, high + 2 * pad


def _goal_lines(ax: Axes, plan: ValidationPlan, right: float) -> None:
    ax.axhline(plan.target, color=_INK, linewidth=0.8, linestyle=":", zorder=1)
    look: dict[str, Any] = {"fontsize": _SMALL, "color": _INK, "zorder": 4}
    ax.text(right * 1.2, plan.target, f"target {plan.target:.4f} ", ha="right", va="bottom", **look)
    for i, method in enumerate(plan.methods):
        rows = method.rows_to_target.value
        if math.isfinite(rows) and rows <= right:
            ax.plot(rows, plan.target, "|", color=_COLOURS[i % len(_COLOURS)], markersize=14, zorder=4)


def _axes(ax: Axes | None) -> Axes:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError('plots need matplotlib; install it with pip install "hetcal[plot]"') from error
    return pyplot.subplots(figsize=(7.2, 4.4), layout="constrained")[1] if ax is None else ax


def _tidy(ax: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(_GREY)
    ax.tick_params(labelsize=_SMALL, color=_GREY, labelcolor=_INK)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.grid(color=_FAINT, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, fontsize=_SMALL, frameon=False)
