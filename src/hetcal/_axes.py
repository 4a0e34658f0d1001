"""Axes of charts: creation and common style. matplotlib is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from hetcal._extras import missing_package
from hetcal._palette import FAINT, GREY, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["LARGE", "SMALL", "axes_or_new", "style_axes"]

LARGE, SMALL = 10, 8.5  # font sizes: LARGE for the names of axes, SMALL for most other text


def axes_or_new(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """Return `ax`, or if it is None, the axes of a new figure with `size` = (width, height) in inches."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise missing_package("plots need matplotlib", "plot") from error
    return pyplot.subplots(figsize=size, layout="constrained")[1] if ax is None else ax


def style_axes(ax: Axes, grid: Literal["x", "y", "both"] = "both") -> None:
    """Remove the top and right spines and draw a faint grid behind the data."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(GREY)
    ax.tick_params(labelsize=SMALL, color=GREY, labelcolor=INK)
    ax.grid(axis=grid, color=FAINT, linewidth=0.6)
    ax.set_axisbelow(True)
