"""The two figures of `hetcal theory`, which illustrate Lemma 3.3 and the bound of Theorem 4.1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetcal._extras import missing_package
from hetcal._palette import FAINT, GREY, PALETTE
from hetcal._write import write_atomic
from hetcal.theory.checks import BoundLine, LemmaCurve, bound_curve, lemma_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["bound_figure", "lemma_figure", "write_theory_figures"]

_COLOURS = tuple(PALETTE[name] for name in ("blue", "vermilion", "green", "purple"))
_DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)))


def lemma_figure(curve: LemmaCurve, ax: Axes) -> Axes:
    """Plot confidence and accuracy against training noise: lines from Lemma 3.3, points from simulation."""
    series = (
        ("confidence", curve.confidence, curve.simulated_confidence, curve.simulated_confidence_error),
        ("test accuracy", curve.accuracy, curve.simulated_accuracy, curve.simulated_accuracy_error),
    )
    for (name, line, points, error), colour in zip(series, _COLOURS, strict=False):
        ax.plot(curve.noise, line, color=colour, label=f"{name}, Lemma 3.3")
        ax.errorbar(
            curve.noise, points, yerr=[2 * e for e in error], fmt="o", markersize=4, color=colour,
            label=f"{name}, simulated (±2 s.e.)",
        )  # fmt: skip
    ax.set(
        xlabel="label noise in training",
        ylabel="probability",
        title="Label noise lowers confidence but not accuracy",
    )
    return _tidy(ax)


def bound_figure(lines: Sequence[BoundLine], ax: Axes) -> Axes:
    """Plot the bound of Theorem 4.1 against the number of validation rows, one line for each K and Γ."""
    classes = sorted({line.n_classes for line in lines})
    gammas = sorted({line.gamma for line in lines})
    for line in lines:
        style: dict[str, Any] = {
            "color": _COLOURS[classes.index(line.n_classes) % len(_COLOURS)],
            "linestyle": _DASHES[gammas.index(line.gamma) % len(_DASHES)],
        }
        ax.plot(line.n, line.bound, label=f"K = {line.n_classes}, Γ = {line.gamma:g}", **style)
    ax.axhline(1, color=GREY, linewidth=0.8)
    ax.text(
        max(lines[0].n),
        1.03,
        "a loss in [0, 1] cannot exceed this",
        ha="right",
        va="bottom",
        fontsize=8,
    )
    ax.set(xscale="log", yscale="log", xlabel="validation rows", ylabel="bound on the excess loss")
    ax.set_title("Bound of Theorem 4.1")
    return _tidy(ax)


def write_theory_figures(folder: Path, name: str = "theory.png") -> Path:
    """Write both figures, side by side, to one file in `folder`, and return the path of this file."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_package("plots need matplotlib", "plot") from error
    folder.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(12, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    lemma_figure(lemma_curve(), left)
    bound_figure(bound_curve(), right)
    path = folder / name
    write_atomic(path, lambda file: figure.savefig(file, format=path.suffix[1:], dpi=130))
    return path


def _tidy(ax: Axes) -> Axes:
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(color=FAINT, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.legend(fontsize=8, frameon=False)
    return ax
