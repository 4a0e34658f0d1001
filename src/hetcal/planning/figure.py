"""Figure of the learning curves of a plan. matplotlib is imported on first use."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hetcal._axes import LARGE, SMALL, axes_or_new, style_axes
from hetcal._palette import GREY, INK, PALETTE
from hetcal._validate import choose
from hetcal.planning.learning_curve import Curve, interval_of
from hetcal.planning.plan import MethodPlan, ValidationPlan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plan_figure"]

_COLOURS = tuple(PALETTE[name] for name in ("blue", "orange", "green", "purple", "sky", "vermilion", "grey"))
_MARKERS = "osD^vPX"
_EXTRAPOLATION = 8  # the curves extend to this multiple of the available rows

_LABELS = {"nll": "held-out NLL", "max_ece": "max-ECE minus its noise floor"}


def plan_figure(
    plan: ValidationPlan, ax: Axes | None = None, *, metric: Literal["nll", "max_ece"] = "nll"
) -> Axes:
    """Plot the learning curves of the methods: measured points, fitted curves and their extrapolation.

    Shaded bands show the intervals of the curves, without the sampling error that is common to all methods.
    Points of fits on few rows that are far above the other points may lie outside the range of the y axis.

    Parameters
    ----------
    plan : ValidationPlan
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default a new figure is created.
    metric : {"nll", "max_ece"}
        Plot the held-out NLL, or max-ECE minus its noise floor.

    Returns
    -------
    matplotlib.axes.Axes
    """
    choose(_LABELS, metric, "metric")
    ax = axes_or_new(ax, (7.2, 4.4))
    m = np.geomspace(plan.methods[0].sizes[0], _EXTRAPOLATION * plan.n, 200)
    for i, method in enumerate(plan.methods):
        _draw_method(ax, plan, method, metric, m, i)
    ax.set_xscale("log")
    ax.set_xlim(m[0] / 1.15, m[-1] * 1.3)
    ax.set_ylim(*_y_limits(plan, metric))
    ax.axvline(plan.n, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    note: dict[str, Any] = {"fontsize": SMALL, "color": GREY, "ha": "right", "va": "top"}
    ax.text(plan.n / 1.06, 0.985, f"{plan.n:,} rows available", transform=ax.get_xaxis_transform(), **note)
    if metric == "nll":
        _draw_target(ax, plan, float(m[-1]))
    else:
        ax.axhline(0, color=INK, linewidth=0.8, zorder=1)
    ax.set_xlabel("validation rows", fontsize=LARGE)
    ax.set_ylabel(_LABELS[metric], fontsize=LARGE)
    _style_axes(ax)
    return ax


def _draw_method(ax: Axes, plan: ValidationPlan, method: MethodPlan, metric: str, m: Any, i: int) -> None:
    colour, marker = _COLOURS[i % len(_COLOURS)], _MARKERS[i % len(_MARKERS)]
    curve, points, errors, offset = _series(plan, method, metric)
    height, draws = offset + curve.at(m), offset + curve.sample(m)
    bands = np.array([interval_of(*pair, plan.level) for pair in zip(height, draws.T, strict=True)])
    ax.fill_between(m, bands[:, 1], bands[:, 2], color=colour, alpha=0.13, linewidth=0, zorder=1)
    for part, dashes in ((m <= plan.n, "-"), (m >= plan.n, (0, (3, 2)))):
        ax.plot(m[part], height[part], color=colour, linewidth=1.5, linestyle=dashes, zorder=2)
    style: dict[str, Any] = {"fmt": marker, "color": colour, "markersize": 4.5, "linewidth": 1, "zorder": 3}
    ax.errorbar(method.sizes, points, errors, label=method.name, **style)


def _series(plan: ValidationPlan, method: MethodPlan, metric: str) -> tuple[Curve, Any, Any, float]:
    if metric == "nll":
        return method.curve, method.nll, method.nll_error, plan.reference
    return method.max_ece_curve, method.max_ece_excess, method.max_ece_error, 0.0


def _y_limits(plan: ValidationPlan, metric: str) -> tuple[float, float]:
    """Range of the y axis, chosen from the points at the larger half of the sizes and from the asymptotes."""
    half = len(plan.methods[0].sizes) // 2
    series = [_series(plan, m, metric) for m in plan.methods]
    values = np.concatenate([points[half:] for _, points, _, _ in series])
    limits = [curve.limit + offset for curve, _, _, offset in series]
    low = float(min(values.min(), min(limits)))
    # Fits with extreme temperatures can make the mean NLL at a size very large. The upper limit is therefore
    # capped, based on the median of the points and on the asymptotes.
    high = float(min(values.max(), low + 3 * (np.median(values) - low) + 3 * (max(limits) - low)))
    pad = max(0.08 * (high - low), 0.5 * plan.tolerance)
    return low - pad, high + 2 * pad


def _draw_target(ax: Axes, plan: ValidationPlan, right: float) -> None:
    ax.axhline(plan.target, color=INK, linewidth=0.8, linestyle=":", zorder=1)
    style: dict[str, Any] = {"fontsize": SMALL, "color": INK, "zorder": 4}
    ax.text(right * 1.2, plan.target, f"target {plan.target:.4f} ", ha="right", va="bottom", **style)
    for i, method in enumerate(plan.methods):
        rows = method.rows_to_target.value
        if math.isfinite(rows) and rows <= right:
            ax.plot(rows, plan.target, "|", color=_COLOURS[i % len(_COLOURS)], markersize=14, zorder=4)


def _style_axes(ax: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    style_axes(ax)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, fontsize=SMALL, frameon=False)
