"""Draw the figures of the performance page: relative speeds, and scaling with rows and classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from hetcal._palette import FAINT, GREY, INK, PALETTE

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
    "savefig.dpi": 200,
    "text.color": INK,
}


def times(ratio: float) -> str:
    """Format a speed ratio, such as 12× or 0.94×."""
    return f"{ratio:.0f}×" if ratio >= 9.95 else f"{ratio:.2g}×"


def draw_speeds(rows: Rows, path: Path) -> None:
    """Draw the speeds relative to the fastest other library: one column per problem, one bar per method."""
    kinds = {
        "Temperatures": _visible(_select(rows, "fit")),
        "Vector scaling": _visible(_select(rows, "vector")),
    }
    kinds = {title: group for title, group in kinds.items() if group}
    if not kinds:
        return
    methods = {title: _methods(group) for title, group in kinds.items()}
    n_columns = max(len(_problems(group)) for group in kinds.values())
    heights = [len(names) for names in methods.values()]
    with plt.rc_context(_STYLE):
        fig, axes = plt.subplots(
            len(kinds), n_columns, figsize=(9, 1.1 * len(kinds) + 0.29 * sum(heights)), height_ratios=heights,
            sharex="row", sharey="row", layout="constrained", squeeze=False,
        )  # fmt: skip
        for row, (title, group) in zip(axes, kinds.items(), strict=True):
            problems = _problems(group)
            for ax, problem in zip(row, problems, strict=False):
                _bars(ax, [r for r in group if r["problem"] == problem], methods[title])
                ax.set_title(f"{problem} logits", loc="left", fontsize=10.5, fontweight="normal")
            for ax in row[len(problems) :]:
                ax.axis("off")
            row[0].annotate(
                title, (0, 1), (-8, 7), xycoords="axes fraction", textcoords="offset points", ha="right",
                fontsize=12, fontweight="bold",
            )  # fmt: skip
            ratios = [r["ratio"] for r in group]
            row[0].set_xlim(min(0.5, min(ratios) / 1.6), max(ratios) * 6)
        fig.supxlabel(
            "speed relative to the fastest other library (log scale; longer is faster)", fontsize=11
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
        fig, (left, right) = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained", sharey=True)
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
        left.set_ylim(low, high * 12)  # space for the legends
        fig.savefig(path)
        plt.close(fig)


def _select(rows: Rows, benchmark: str, **wanted: str) -> Rows:
    return [
        row
        for row in rows
        if row["benchmark"] == benchmark and all(row[name] == value for name, value in wanted.items())
    ]


def _visible(rows: Rows) -> Rows:
    return [row for row in rows if np.isfinite(row["ratio"] or np.nan) and row["library"] not in _HIDDEN]


def _problems(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["problem"] for row in rows))


def _methods(rows: Rows) -> list[str]:
    """Return the methods: those of other libraries first, each by increasing mean speed."""

    def rank(name: str) -> tuple[bool, float]:
        ratios = [row["ratio"] for row in rows if row["library"] == name]
        return _is_ours(name), float(np.log(ratios).mean())

    return sorted({row["library"] for row in rows}, key=rank)


def _is_ours(name: str) -> bool:
    return name.startswith("hetcal")


def _bars(ax: Axes, rows: Rows, methods: list[str]) -> None:
    ratio = {row["library"]: row["ratio"] for row in rows}
    for position, name in enumerate(methods):
        if name not in ratio:
            place = {"xycoords": ax.get_yaxis_transform(), "xytext": (4, 0), "textcoords": "offset points"}
            ax.annotate("not measured", (0, position), va="center", color=GREY, **place)
            continue
        own = _is_ours(name)
        ax.barh(position, ratio[name], color=_OURS if own else _THEIRS, height=0.72)
        ax.annotate(
            times(ratio[name]), (ratio[name], position), (4, 0), textcoords="offset points", va="center",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8}, zorder=3, fontsize=10,
            fontweight="bold" if own else "normal",
        )  # fmt: skip
    ax.set_xscale("log")
    ax.axvline(1, color=INK, linewidth=1, linestyle=(0, (3, 3)), zorder=0)
    ax.set_yticks(range(len(methods)), methods)
    ax.tick_params(axis="y", length=0)
    ax.xaxis.set_major_locator(LogLocator(10))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    ax.xaxis.set_minor_formatter(NullFormatter())


def _line(ax: Axes, key: str, name: str, rows: Rows, colour: str) -> None:
    size = np.array([row["more"][key] for row in rows], float)
    seconds = np.array([row["seconds"] for row in rows])
    slope, compiled = (rows[0]["more"][slope_key] for slope_key in ("slope", "slope_compiled"))
    shift = np.log(seconds).mean() - slope * np.log(size).mean()
    label = f"{name}:\nexponent {slope:.2f}" + ("" if compiled is None else f", {compiled:.2f} when compiled")
    label = label.replace("-", "\N{MINUS SIGN}")
    ax.loglog(size, np.exp(shift) * size**slope, color=colour, linewidth=1, linestyle=(0, (4, 3)), alpha=0.8)
    ax.loglog(size, seconds, "o-", color=colour, markersize=6, linewidth=1.8, label=label)
    small = np.array([row["more"]["n"] * row["more"]["k"] < _COMPILED for row in rows])
    ax.loglog(size[small], seconds[small], "o", color=colour, markersize=6, markerfacecolor="white", zorder=3)
