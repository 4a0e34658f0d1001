"""Draw the figures of the CLINC150 page: gaps before and after calibration, and NLL and max-ECE by method."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tidy import Table, write_atomic

from hetcal._palette import FAINT, GREY, INK, PALETTE

__all__ = ["METHODS", "SHOWN", "STYLE", "draw_gaps", "draw_methods", "save_svg"]

#: Cases in the figures, with their titles and the labels of their affected intents.
SHOWN = {
    ("full", "noise"): ("30% label noise in half of the intents", "noisy"),
    ("full", "few"): ("10% of the rows in half of the intents", "few rows"),
    ("imbalanced", "none"): ("unmodified imbalanced variant", "few rows"),
}
METHODS = (
    "Uncal", "TS", "VS", "VS, ridge", "CTS, Γ = inf", "CTS, cv", "CTS, bayes", "CTS, bundles", "Auto",
)  # fmt: skip
STYLE: dict[str, Any] = {
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "ytick.major.size": 0,
    "svg.hashsalt": "hetcal",
}
_AFFECTED, _REST = PALETTE["vermilion"], PALETTE["blue"]
_CASES = (PALETTE["vermilion"], PALETTE["blue"], PALETTE["green"])
_BEFORE_AFTER = ("Uncal", "TS", "CTS, Γ = inf", "CTS, cv", "VS, ridge")


def draw_gaps(table: Table, model: str, path: Path) -> None:
    """Draw confidence − accuracy of the affected and other intents, by true and by predicted intent."""
    cases = _present(table, model)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.4, 0.6 + 1.75 * len(cases)), layout="constrained")
        axes = figure.subplots(len(cases), 2, sharex=True, sharey=True, squeeze=False)
        for case, row in zip(cases, axes, strict=True):
            title, name = SHOWN[case]
            for ax, by in zip(row, ("true", "predicted"), strict=True):
                _dumbbells(ax, table, (model, *case), by, name)
            row[0].set_title(f"{title}\nby true intent", loc="left", color=INK)
            row[1].set_title("by predicted intent", loc="left", color=INK)
            row[1].legend(
                loc="lower right", bbox_to_anchor=(1, 1.02), ncols=2, frameon=False, borderaxespad=0
            )
        label = "under-confident  ←  confidence − accuracy (points)  →  over-confident"
        figure.supxlabel(label, fontsize=STYLE["font.size"])
        axes[0][0].invert_yaxis()
        save_svg(figure, path)


def draw_methods(table: Table, model: str, path: Path) -> None:
    """Draw the mean and standard deviation over the seeds of NLL and of max-ECE above its floor."""
    cases, names = _present(table, model), METHODS
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.4, 3.9), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        positions = np.arange(len(names))
        for i, (case, colour) in enumerate(zip(cases, _CASES, strict=False)):
            keys = [(model, *case, name) for name in names]
            y = positions + 0.22 * (i - (len(cases) - 1) / 2)
            style: dict[str, Any] = {"fmt": "o", "color": colour, "markersize": 5, "linewidth": 1.2}
            mean, std = ([f(*key, "nll") for key in keys] for f in (table.mean, table.std))
            left.errorbar(mean, y, xerr=std, label=SHOWN[case][0], **style)
            excess = [100 * (table.mean(*key, "max_ece") - table.floor(*key, "max_ece")) for key in keys]
            right.errorbar(excess, y, xerr=[100 * table.std(*key, "max_ece") for key in keys], **style)
        left.set_yticks(positions, names)
        left.invert_yaxis()
        for ax in (left, right):
            ax.hlines(
                positions[1:] - 0.5,
                0,
                1,
                transform=ax.get_yaxis_transform(),
                color=FAINT,
                linewidth=0.8,
                zorder=0,
            )
        left.set_xlabel("NLL on the test rows")
        right.axvline(0, color=INK, linewidth=0.9)
        right.set_xlabel("max-ECE above its noise floor (points)")
        figure.legend(loc="outside upper left", ncols=len(cases), frameon=False)
        save_svg(figure, path)


def save_svg(figure: Figure, path: Path) -> None:
    """Write a figure without a date, so that the same numbers give the same file."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    write_atomic(path, "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n")


def _present(table: Table, model: str) -> list[tuple[str, str]]:
    return [case for case in SHOWN if table.has(model, *case, "Uncal", "nll")]


def _dumbbells(ax: Axes, table: Table, case: tuple[str, ...], by: str, name: str) -> None:
    positions = np.arange(len(_BEFORE_AFTER))
    means = []
    for part, colour, label in (("affected", _AFFECTED, name), ("rest", _REST, "other intents")):
        keys = [(*case, method) for method in _BEFORE_AFTER]
        mean = np.array([100 * table.mean(*key, f"gap_{by}_{part}") for key in keys])
        std = np.array([100 * table.std(*key, f"gap_{by}_{part}") for key in keys])
        style: dict[str, Any] = {
            "fmt": "o",
            "color": colour,
            "markersize": 5.5,
            "linewidth": 1.2,
            "zorder": 3,
        }
        ax.errorbar(mean, positions, xerr=std, label=label, **style)
        means.append(mean)
    ax.hlines(positions, *means, color=PALETTE["grey"], linewidth=2, zorder=2)
    ax.axvline(0, color=INK, linewidth=0.9, zorder=1)
    ax.set_yticks(positions, _BEFORE_AFTER)
    ax.margins(y=0.12)
