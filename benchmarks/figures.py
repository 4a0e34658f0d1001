"""Draw the figures of the performance page: relative speeds, and scaling with rows and classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from hetcal._palette import FAINT, INK, PALETTE

__all__ = ["draw_growth", "draw_speeds", "times"]

mpl.use("Agg")
Rows = list[dict[str, Any]]

_OURS, _THEIRS = PALETTE["blue"], PALETTE["grey"]
_LINES = (PALETTE["blue"], PALETTE["vermilion"], PALETTE["green"])
_COMPILED = 1 << 22  # hetcal uses compiled code from this many logits on
_HIDDEN = ("one read of the logits", "hetcal CTS, Γ = cv")
_STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "savefig.dpi": 150,
    "text.color": INK,
}


def times(ratio: float) -> str:
    """Format a speed ratio, such as 12× or 0.94×."""
    return f"{ratio:.0f}×" if ratio >= 9.95 else f"{ratio:.2g}×"


def draw_speeds(rows: Rows, path: Path) -> None:
    """Draw the speeds relative to the fastest other library, one panel per problem."""
    panels = [
        (f"{title}, {problem}", [row for row in group if row["problem"] == problem])
        for title, group in (
            ("Temperatures", _select(rows, "fit")),
            ("Vector scaling", _select(rows, "vector")),
        )
        for problem in dict.fromkeys(row["problem"] for row in group)
    ]
    panels = [(title, visible) for title, group in panels if (visible := _visible(group))]
    if not panels:
        return
    with plt.rc_context(_STYLE):
        heights = [max(len(group) for _, group in panels[i : i + 2]) for i in range(0, len(panels), 2)]
        fig, axes = plt.subplots(
            len(heights), 2, figsize=(11, 1.3 * len(heights) + 0.32 * sum(heights)), height_ratios=heights,
            layout="constrained", squeeze=False,
        )  # fmt: skip
        for ax in axes.flat[len(panels) :]:
            ax.remove()
        for ax, (title, group) in zip(axes.flat, panels, strict=False):
            _bars(ax, title, group)
        fig.supxlabel(
            "speed relative to the fastest other library (log scale; longer is faster)", fontsize=10
        )
        fig.savefig(path)
        plt.close(fig)


def draw_growth(rows: Rows, path: Path) -> None:
    """Draw the time of a fit against the number of rows and of classes."""
    lines = [
        (name, _select(rows, "growth", note=name))
        for name in dict.fromkeys(r["note"] for r in _select(rows, "growth"))
    ]
    if not lines:
        return
    with plt.rc_context(_STYLE):
        fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained", sharey=True)
        for colour, (name, group) in zip(_LINES, lines, strict=False):
            by_rows = name.startswith("rows")
            _line(left if by_rows else right, "n" if by_rows else "k", name, group, colour)
        left.set(xlabel="rows", ylabel="seconds", title="Scaling with rows")
        right.set(xlabel="classes", title="Scaling with classes")
        for ax in (left, right):
            ax.legend(frameon=False, loc="upper left", fontsize=9.5)
            ax.grid(True, color=FAINT, linewidth=0.7)
            ax.set_axisbelow(True)
        low, high = left.get_ylim()
        left.set_ylim(low, high * 4)  # space for the legends
        fig.savefig(path)
        plt.close(fig)


def _select(rows: Rows, benchmark: str, **wanted: str) -> Rows:
    return [
        row
        for row in rows
        if row["benchmark"] == benchmark and all(row[name] == value for name, value in wanted.items())
    ]


def _visible(rows: Rows) -> Rows:
    visible = [row for row in rows if np.isfinite(row["ratio"] or np.nan) and row["library"] not in _HIDDEN]
    return sorted(visible, key=lambda row: row["ratio"])


def _bars(ax: Axes, title: str, rows: Rows) -> None:
    ratios = np.array([row["ratio"] for row in rows])
    is_hetcal = [row["library"].startswith("hetcal") for row in rows]
    positions = np.arange(len(rows))
    lower = min(0.5, ratios.min() / 1.6)
    ax.barh(
        positions,
        ratios - lower,
        left=lower,
        color=[_OURS if own else _THEIRS for own in is_hetcal],
        height=0.72,
    )
    ax.set_xscale("log")
    ax.set_xlim(lower, ratios.max() * 2.2)
    ax.axvline(1, color=INK, linewidth=1, linestyle=(0, (3, 3)), zorder=0)
    for position, ratio, own in zip(positions, ratios, is_hetcal, strict=True):
        ax.annotate(
            times(ratio), (ratio, position), (4, 0), textcoords="offset points", va="center", fontsize=9.5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
            fontweight="bold" if own else "normal",
        )  # fmt: skip
    ax.set_yticks(positions, [row["library"] for row in rows])
    ax.tick_params(axis="y", length=0)
    ax.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 3.0) if np.ptp(np.log10(ratios)) < 2 else (1.0,)))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_title(title, loc="left")


def _line(ax: Axes, key: str, name: str, rows: Rows, colour: str) -> None:
    size = np.array([row["more"][key] for row in rows], float)
    seconds = np.array([row["seconds"] for row in rows])
    slope, compiled = (rows[0]["more"][slope_key] for slope_key in ("slope", "slope_compiled"))
    shift = np.log(seconds).mean() - slope * np.log(size).mean()
    label = f"{name}: exponent {slope:.2f}" + ("" if compiled is None else f", {compiled:.2f} when compiled")
    label = label.replace("-", "\N{MINUS SIGN}")
    ax.loglog(size, np.exp(shift) * size**slope, color=colour, linewidth=1, linestyle=(0, (4, 3)), alpha=0.8)
    ax.loglog(size, seconds, "o-", color=colour, markersize=6, linewidth=1.8, label=label)
    small = np.array([row["more"]["n"] * row["more"]["k"] < _COMPILED for row in rows])
    ax.loglog(size[small], seconds[small], "o", color=colour, markersize=6, markerfacecolor="white", zorder=3)
