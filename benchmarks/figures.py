"""The two figures of the page: speeds beside the fastest peer, and cost against rows and classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

__all__ = ["draw_growth", "draw_speeds", "times"]

mpl.use("Agg")
Found = list[dict[str, Any]]

_OURS, _THEIRS, _INK, _FAINT = "#0072b2", "#a6a6a6", "#222222", "#dddddd"
_LINES = ("#0072b2", "#d55e00", "#009e73")
_COMPILED = 1 << 22  # logits from which hetcal uses compiled passes; smaller problems have hollow marks
_HIDDEN = ("one read of the logits", "hetcal CTS, Γ by cv")
_STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "savefig.dpi": 150,
    "text.color": _INK,
}


def times(ratio: float) -> str:
    """A ratio as text."""
    return f"{ratio:.0f}×" if ratio >= 9.95 else f"{ratio:.2g}×"


def draw_speeds(rows: Found, path: Path) -> None:
    """Bars of speed, a panel for each problem, the fastest peer at 1."""
    panels = [
        (f"{title}, {problem}", [row for row in some if row["problem"] == problem])
        for title, some in (("Temperatures", _of(rows, "fit")), ("Vector scaling", _of(rows, "vector")))
        for problem in dict.fromkeys(row["problem"] for row in some)
    ]
    if not panels:
        return
    with plt.rc_context(_STYLE):
        heights = [max(len(_shown(some)) for _, some in panels[i : i + 2]) for i in range(0, len(panels), 2)]
        fig, axes = plt.subplots(
            len(heights), 2, figsize=(11, 1.3 * len(heights) + 0.32 * sum(heights)), height_ratios=heights,
            layout="constrained", squeeze=False,
        )  # fmt: skip
        for ax in axes.flat[len(panels) :]:
            ax.remove()
        for ax, (title, some) in zip(axes.flat, panels, strict=False):
            _bars(ax, title, _shown(some))
        fig.supxlabel("speed beside the fastest peer (longer is faster; logarithmic)", fontsize=10)
        fig.savefig(path)
        plt.close(fig)


def draw_growth(rows: Found, path: Path) -> None:
    """Time against rows, and against classes."""
    lines = [
        (name, _of(rows, "growth", note=name))
        for name in dict.fromkeys(r["note"] for r in _of(rows, "growth"))
    ]
    if not lines:
        return
    with plt.rc_context(_STYLE):
        fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained", sharey=True)
        for colour, (name, some) in zip(_LINES, lines, strict=False):
            by_rows = name.startswith("rows")
            _line(left if by_rows else right, "n" if by_rows else "k", name, some, colour)
        left.set(xlabel="rows", ylabel="seconds", title="Cost against rows")
        right.set(xlabel="classes", title="Cost against classes")
        for ax in (left, right):
            ax.legend(frameon=False, loc="upper left", fontsize=9.5)
            ax.grid(True, color=_FAINT, linewidth=0.7)
            ax.set_axisbelow(True)
        low, high = left.get_ylim()
        left.set_ylim(low, high * 4)  # room for the legends
        fig.savefig(path)
        plt.close(fig)


def _of(rows: Found, benchmark: str, **wanted: str) -> Found:
    return [
        row
        for row in rows
        if row["benchmark"] == benchmark and all(row[name] == value for name, value in wanted.items())
    ]


def _shown(some: Found) -> Found:
    kept = [row for row in some if row["ratio"] and row["library"] not in _HIDDEN]
    return sorted(kept, key=lambda row: row["ratio"])


def _bars(ax: Axes, title: str, some: Found) -> None:
    ratios = np.array([row["ratio"] for row in some])
    ours = [row["library"].startswith("hetcal") for row in some]
    at = np.arange(len(some))
    least = min(0.5, ratios.min() / 1.6)
    ax.barh(at, ratios - least, left=least, color=[_OURS if own else _THEIRS for own in ours], height=0.72)
    ax.set_xscale("log")
    ax.set_xlim(least, ratios.max() * 2.2)
    ax.axvline(1, color=_INK, linewidth=1, linestyle=(0, (3, 3)), zorder=0)
    for place, ratio, own in zip(at, ratios, ours, strict=True):
        ax.annotate(
            times(ratio), (ratio, place), (4, 0), textcoords="offset points", va="center", fontsize=9.5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
            fontweight="bold" if own else "normal",
        )  # fmt: skip
    ax.set_yticks(at, [row["library"] for row in some])
    ax.tick_params(axis="y", length=0)
    ax.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 3.0) if np.ptp(np.log10(ratios)) < 2 else (1.0,)))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_title(title, loc="left")


def _line(ax: Axes, what: str, name: str, some: Found, colour: str) -> None:
    size = np.array([row["more"][what] for row in some], float)
    seconds = np.array([row["seconds"] for row in some])
    slope, later = (some[0]["more"][which] for which in ("slope", "slope_compiled"))
    shift = np.log(seconds).mean() - slope * np.log(size).mean()
    label = f"{name}: power {slope:.2f}" + ("" if later is None else f", {later:.2f} when compiled")
    label = label.replace("-", "\N{MINUS SIGN}")
    ax.loglog(size, np.exp(shift) * size**slope, color=colour, linewidth=1, linestyle=(0, (4, 3)), alpha=0.8)
    ax.loglog(size, seconds, "o-", color=colour, markersize=6, linewidth=1.8, label=label)
    small = np.array([row["more"]["n"] * row["more"]["k"] < _COMPILED for row in some])
    ax.loglog(size[small], seconds[small], "o", color=colour, markersize=6, markerfacecolor="white", zorder=3)
