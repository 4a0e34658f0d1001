"""Draw the arena's critical-difference plot for light and dark pages."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from arena_summary import Ranks
from matplotlib.axes import Axes

__all__ = ["draw"]

mpl.use("Agg")

_THEMES = {
    "light": {"ink": "#222222", "grid": "#dddddd", "ours": "#0072b2", "others": "#8a8a8a"},
    "dark": {"ink": "#dddddd", "grid": "#444444", "ours": "#56b4e9", "others": "#9a9a9a"},
}


def draw(panels: dict[str, Ranks], folder: Path) -> None:
    """Write ``arena-light.svg`` and ``arena-dark.svg``.

    Each panel shows mean ranks with bars as long as the critical difference: two methods whose bars do not
    overlap differ significantly.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for theme, colours in _THEMES.items():
        style = {
            "font.size": 9,
            "svg.hashsalt": "arena",
            "text.color": colours["ink"],
            "axes.labelcolor": colours["ink"],
            "axes.edgecolor": colours["ink"],
            "xtick.color": colours["ink"],
            "ytick.color": colours["ink"],
        }
        with plt.rc_context(style):
            height = 1.0 + 0.22 * max(len(ranks.ranks) for ranks in panels.values())
            fig, axes = plt.subplots(
                1, len(panels), figsize=(5.2 * len(panels), height), layout="constrained", squeeze=False
            )
            for ax, (title, ranks) in zip(axes[0], panels.items(), strict=True):
                _draw_panel(ax, title, ranks, colours)
            fig.savefig(folder / f"arena-{theme}.svg", transparent=True, metadata={"Date": None})
            plt.close(fig)


def _draw_panel(ax: Axes, title: str, ranks: Ranks, colours: dict[str, str]) -> None:
    half = ranks.critical_difference / 2
    for i, (method, rank) in enumerate(ranks.ranks.items()):
        colour = colours["ours" if str(method).startswith("hetcal") else "others"]
        ax.plot([rank - half, rank + half], [i, i], color=colour, linewidth=3, alpha=0.45)
        ax.plot(rank, i, "o", color=colour, markersize=5)
    ax.set_yticks(range(len(ranks.ranks)), list(ranks.ranks.index))
    ax.invert_yaxis()
    ax.set_title(f"{title}: {ranks.n_datasets} data sets", fontweight="bold", fontsize=10)
    ax.set_xlabel("mean rank by log-loss (lower is better)")
    ax.grid(axis="x", color=colours["grid"], linewidth=0.6)
    ax.set_axisbelow(True)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.tick_params(axis="y", length=0)
