"""Charts: each function takes results and axes, draws, and returns the axes. matplotlib loads when used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from hetcal._palette import FAINT, GREY, INK, PALETTE
from hetcal.diagnosis import CONSISTENT, OVER, TOO_FEW, UNDER, Diagnosis
from hetcal.metrics import ClassTable, Evaluation, ReliabilityCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["class_ece_bars", "class_map", "gap_chart", "method_comparison", "reliability_diagram"]

# The paper's colours of a reliability diagram.
_RED, _YELLOW, _ORANGE = "#d7301f", "#ffd92f", "#fd8d3c"
_METHODS = tuple(PALETTE.values())
_VERDICTS = {
    OVER: PALETTE["vermilion"],
    UNDER: PALETTE["blue"],
    CONSISTENT: PALETTE["green"],
    TOO_FEW: "#9a9a9a",
}
_NAMES = {"ece": "ECE", "max_ece": "max-ECE", "avg_ece": "Avg-ECE"}
_FLOOR = "noise floor (mean to 95%)"
_LARGE, _SMALL, _TINY = 10, 8.5, 5.0  # font sizes; names of classes shrink to the last and are then thinned
_NARROW = 5.0  # points per bar below which class_ece_bars draws points


def reliability_diagram(
    curve: ReliabilityCurve,
    ax: Axes | None = None,
    *,
    title: str | None = None,
    histogram: bool = True,
    legend: bool = True,
) -> Axes:
    """Confidence (red), accuracy (yellow) and their overlap (orange) per confidence bin.

    Red above orange is over-confidence, yellow above orange under-confidence. For bins of equal width a
    small histogram on top says how the rows spread over them.

    Parameters
    ----------
    curve : ReliabilityCurve
    ax : axes to draw on; a new figure by default
    title : text above the diagram
    histogram : draw the histogram
    legend : draw the legend
    """
    ax = _axes(ax, (4.2, 4.6))
    used = curve.count > 0
    left, width = curve.edges[:-1][used], np.diff(curve.edges)[used]
    confidence, accuracy = curve.confidence[used], curve.accuracy[used]
    both = np.minimum(confidence, accuracy)
    look: dict[str, Any] = {"align": "edge", "edgecolor": "white", "linewidth": 0.6, "zorder": 2}
    ax.bar(left, confidence - both, width, bottom=both, color=_RED, label="confidence", **look)
    ax.bar(left, accuracy - both, width, bottom=both, color=_YELLOW, label="accuracy", **look)
    ax.bar(left, both, width, color=_ORANGE, label="overlap", **look)
    _diagonal(ax)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    ax.set_xlabel("confidence", fontsize=_LARGE)
    ax.set_ylabel("mean of the bin", fontsize=_LARGE)
    _tidy(ax, grid="y")
    _numbers(ax, curve)
    height = 1.0
    if histogram and np.ptp(np.diff(curve.edges)) < 1e-6:
        _histogram(ax, curve)
        height = 1.13
    if legend:
        _legend(ax, height=height, columns=3)
    if title is not None:
        up = (height - 1) * _room(ax, "y", 1) + (22 if legend else 6)
        ax.set_title(title, fontsize=_LARGE + 1, color=INK, pad=up, loc="left")
    return ax


def class_ece_bars(
    evaluations: Evaluation | Mapping[str, Evaluation],
    ax: Axes | None = None,
    *,
    classes: Sequence[str | int] | None = None,
) -> Axes:
    """ECE of every class as a bar, with its noise floor as a mark: mean, and a line up to the 95% quantile.

    Where bars would be too narrow to see they become points over a band, the floor averaged over the methods.

    Parameters
    ----------
    evaluations : an Evaluation, or a mapping of method name to Evaluation for bars side by side
    ax : axes to draw on; a new figure by default
    classes : names or numbers of the classes to show
        By default all that were predicted, those with the largest ECE (of the first method) first.
    """
    methods = _methods(evaluations)
    first = next(iter(methods.values())).classes
    chosen = _chosen(first, classes)
    ax = _axes(ax, (min(15.0, 2.5 + 0.22 * len(chosen) * (1 + 0.6 * len(methods))), 3.8))
    at, width = np.arange(len(chosen)), 0.82 / len(methods)
    narrow = width * _room(ax, "x", len(chosen)) < _NARROW
    for i, (name, evaluation) in enumerate(methods.items()):
        table, colour = evaluation.classes, _colour(i, methods)
        if narrow:
            ax.scatter(at, table.ece[chosen], 15, color=colour, label=name, zorder=3, linewidth=0)
            continue
        x = at + (i - (len(methods) - 1) / 2) * width
        ax.bar(x, table.ece[chosen], width * 0.94, color=colour, label=name, zorder=2)
        _floor_marks(ax, x, width, table.floor[chosen], table.floor_q95[chosen])
    if narrow:
        tables = [e.classes for e in methods.values()]
        _floor_band(ax, at, *(np.mean([getattr(t, key)[chosen] for t in tables], 0) for key in _BAND))
        ax.set_ylim(bottom=0)
    ax.set_ylabel("ECE of the class", fontsize=_LARGE)
    ax.set_xlim(-0.6, len(chosen) - 0.4)
    _tidy(ax, grid="y")
    _class_ticks(ax, [first.name[k] for k in chosen], axis="x")
    _legend(ax)
    return ax


def method_comparison(
    evaluations: Mapping[str, Evaluation],
    ax: Axes | None = None,
    *,
    metrics: Sequence[str] = ("ece", "max_ece", "avg_ece"),
) -> Axes:
    """Calibration errors of several methods side by side, each with its noise floor.

    Parameters
    ----------
    evaluations : mapping of method name to Evaluation
    ax : axes to draw on; a new figure by default
    metrics : any of ``ece``, ``max_ece``, ``avg_ece``
    """
    if not metrics or any(m not in _NAMES for m in metrics):
        raise ValueError(f"metrics must be among {', '.join(_NAMES)}, got {metrics!r}")
    methods = _methods(evaluations)
    ax = _axes(ax, (2.2 + 0.5 * len(metrics) * len(methods), 3.8))
    at, width = np.arange(len(metrics)), 0.84 / len(methods)
    for i, (name, evaluation) in enumerate(methods.items()):
        values = np.array([getattr(evaluation, m) for m in metrics])
        floors, tops = (np.array([f[m] for m in metrics]) for f in (evaluation.floor, evaluation.floor_q95))
        x = at + (i - (len(methods) - 1) / 2) * width
        ax.bar(x, values, width * 0.92, color=_colour(i, methods), label=name, zorder=2)
        _floor_marks(ax, x, width, floors, tops)
        size = min(7.5, 0.42 * width * _room(ax, "x", len(metrics)))
        look: dict[str, Any] = {"ha": "center", "fontsize": size, "visible": size >= _TINY, "color": INK}
        for where, value, top in zip(x, values, tops, strict=True):
            spot = (where, max(value, top))
            ax.annotate(f"{100 * value:.1f}", spot, (0, 2), textcoords="offset points", **look)
    ax.set_xticks(at, [_NAMES[m] for m in metrics])
    ax.set_ylabel("calibration error (labels in %)", fontsize=_LARGE)
    ax.margins(y=0.12)
    _tidy(ax, grid="y")
    ax.tick_params(axis="x", length=0, labelsize=_LARGE)
    _legend(ax)
    return ax


def class_map(evaluation: Evaluation, ax: Axes | None = None, *, n_names: int = 6) -> Axes:
    """Confidence against accuracy, a point per class with an area that grows with its rows.

    Classes whose ECE is above the 95% quantile of its floor are coloured by the side they err to; those with
    the largest gaps are named.

    Parameters
    ----------
    evaluation : Evaluation
    ax : axes to draw on; a new figure by default
    n_names : number of classes to name at most
    """
    ax = _axes(ax, (4.8, 4.9))
    table = evaluation.classes
    seen = table.n > 0
    beyond = seen & (table.ece > table.floor_q95)
    area = 14 + 90 * table.n / table.n.max()
    groups = {
        OVER: (beyond & (table.signed_gap > 0), _VERDICTS[OVER]),
        UNDER: (beyond & (table.signed_gap <= 0), _VERDICTS[UNDER]),
        "within noise floor": (seen & ~beyond, _VERDICTS[TOO_FEW]),
    }
    for label, (rows, colour) in groups.items():
        if not rows.any():
            continue
        look: dict[str, Any] = {"color": colour, "alpha": 0.72, "edgecolor": "white", "linewidth": 0.6}
        text = f"{label} ({rows.sum()})"
        ax.scatter(table.confidence[rows], table.accuracy[rows], area[rows], label=text, zorder=3, **look)
    _diagonal(ax)
    low = min(table.confidence[seen].min(), table.accuracy[seen].min())
    low = max(-0.02, np.floor(low * 20) / 20 - 0.03)
    ax.set(xlim=(low, 1.02), ylim=(low, 1.02), aspect="equal")
    ax.set_xlabel("mean confidence of the class (area: rows)", fontsize=_LARGE)
    ax.set_ylabel("accuracy of the class", fontsize=_LARGE)
    _tidy(ax, grid="both")
    _legend(ax)
    size = np.where(beyond, np.abs(table.signed_gap), -1.0)
    _name_points(ax, [int(k) for k in np.argsort(-size, kind="stable")[:n_names] if beyond[k]], table)
    return ax


def gap_chart(diagnosis: Diagnosis, ax: Axes | None = None) -> Axes:
    """Signed gap of every class with its interval, sorted, coloured by verdict.

    Right of zero is over-confident, left under-confident. The intervals are for the gap that very many rows
    of the class would show. Classes that were never predicted are left out.

    Parameters
    ----------
    diagnosis : Diagnosis
    ax : axes to draw on; a new figure by default
    """
    rows = sorted((c for c in diagnosis.classes if c.n > 0), key=lambda c: c.signed_gap)
    ax = _axes(ax, (6.4, float(np.clip(1.4 + 0.26 * len(rows), 2.6, 12.5))))
    room = _room(ax, "y", max(1, len(rows)))
    for kind, colour in _VERDICTS.items():
        at = [i for i, c in enumerate(rows) if c.kind == kind]
        if not at:
            continue
        ends = [[rows[i].gap_low for i in at], [rows[i].gap_high for i in at]]
        ax.hlines(at, *ends, color=colour, linewidth=min(1.6, 0.3 * room), alpha=0.65, zorder=2)
        face = "white" if kind == TOO_FEW else colour
        look: dict[str, Any] = {"facecolor": face, "edgecolor": colour, "linewidth": 1.1, "zorder": 3}
        ax.scatter(
            [rows[i].signed_gap for i in at], at, min(22, room**2 / 3), label=f"{kind} ({len(at)})", **look
        )
    ax.axvline(0, color=INK, linewidth=1, zorder=1)
    ax.set_ylim(-0.8, len(rows) - 0.2)
    never = len(diagnosis.classes) - len(rows)
    note = f"; {never} never predicted" if never else ""
    level = f"{100 * (1 - diagnosis.level):g}%"
    ax.set_xlabel(f"confidence − accuracy, with {level} interval{note}", fontsize=_LARGE)
    _tidy(ax, grid="x")
    _class_ticks(ax, [c.name for c in rows], axis="y")
    _legend(ax, columns=2)
    return ax


def _axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError('plots need matplotlib; install it with pip install "hetcal[plot]"') from error
    return pyplot.subplots(figsize=size, layout="constrained")[1] if ax is None else ax


def _tidy(ax: Axes, grid: Literal["x", "y", "both"]) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(GREY)
    ax.tick_params(labelsize=_SMALL, color=GREY, labelcolor=INK)
    ax.grid(axis=grid, color=FAINT, linewidth=0.6)
    ax.set_axisbelow(True)


def _diagonal(ax: Axes) -> None:
    ax.plot([0, 1], [0, 1], color=INK, linestyle=(0, (4, 3)), linewidth=1, zorder=2.5)


def _numbers(ax: Axes, curve: ReliabilityCurve) -> None:
    lines = [
        f"confidence {curve.mean_confidence:.3f}",
        f"accuracy {curve.mean_accuracy:.3f}",
        f"ECE {curve.ece:.3f}",
        f"{curve.n:,} rows",
    ]
    box = {"boxstyle": "round,pad=0.45", "facecolor": "white", "edgecolor": FAINT, "alpha": 0.94}
    look: dict[str, Any] = {"fontsize": _SMALL, "color": INK, "linespacing": 1.4, "bbox": box, "zorder": 4}
    ax.text(0.965, 0.045, "\n".join(lines), transform=ax.transAxes, ha="right", va="bottom", **look)


def _histogram(ax: Axes, curve: ReliabilityCurve) -> None:
    top = ax.inset_axes((0, 1.02, 1, 0.11))
    look: dict[str, Any] = {"align": "edge", "color": "#b5b5b5", "edgecolor": "white", "linewidth": 0.6}
    top.bar(curve.edges[:-1], curve.count, np.diff(curve.edges), **look)
    top.set(xlim=(0, 1), xticks=[], yticks=[])
    top.spines[["top", "right", "left"]].set_visible(False)
    top.spines["bottom"].set_color(FAINT)


def _methods(evaluations: Evaluation | Mapping[str, Evaluation]) -> Mapping[str, Evaluation]:
    methods = evaluations if isinstance(evaluations, Mapping) else {"ECE": evaluations}
    if not methods:
        raise ValueError("evaluations must hold at least one Evaluation, got an empty mapping")
    if len({e.classes.name for e in methods.values()}) > 1:
        raise ValueError("evaluations must be of the same classes, got different class names")
    return methods


def _chosen(table: ClassTable, classes: Sequence[str | int] | None) -> NDArray[np.int64]:
    if classes is None:
        order = np.argsort(-np.where(table.n > 0, table.ece, -1), kind="stable")
        return order[: int((table.n > 0).sum())]
    numbers = {name: k for k, name in enumerate(table.name)}
    chosen = [numbers.get(c, -1) if isinstance(c, str) else int(c) for c in classes]
    for asked, k in zip(classes, chosen, strict=True):
        if not 0 <= k < len(table.name):
            raise ValueError(
                f"classes must be names or numbers of the {len(table.name)} classes, got {asked!r}"
            )
    if not chosen:
        raise ValueError("classes must name at least one class, got none")
    return np.array(chosen)


def _colour(i: int, methods: Mapping[str, Evaluation]) -> str:
    return _METHODS[i % len(_METHODS)] if len(methods) > 1 else "#6aa9d4"


def _floor_marks(
    ax: Axes, x: NDArray[Any], width: float, floor: NDArray[np.float64], top: NDArray[np.float64]
) -> None:
    """Draw a dash at the mean and a line up to the 95% quantile, with a white rim to stand out."""
    label = "_hidden" if _FLOOR in ax.get_legend_handles_labels()[1] else _FLOOR
    ends = x - 0.34 * width, x + 0.34 * width
    ax.vlines(x, floor, top, color="white", linewidth=2.6, zorder=4)
    ax.hlines(floor, *ends, color="white", linewidth=3.2, zorder=4)
    ax.vlines(x, floor, top, color=INK, linewidth=0.9, zorder=5)
    ax.hlines(floor, *ends, color=INK, linewidth=1.6, zorder=5, label=label)


def _floor_band(ax: Axes, at: NDArray[Any], floor: NDArray[np.float64], top: NDArray[np.float64]) -> None:
    look: dict[str, Any] = {"color": "#e3e3e3", "linewidth": 0, "zorder": 1}
    ax.bar(at, top - floor, 1.0, bottom=floor, label=_FLOOR, **look)


def _legend(ax: Axes, *, height: float = 1.0, columns: int | None = None) -> None:
    """Above the axes, where it hides nothing; the floor comes last."""
    handles, labels = ax.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: labels[i] == _FLOOR)
    needed = sum(0.55 * _SMALL * len(label) + 30 for label in labels)  # points, in one row
    rows = int(np.ceil(needed / _room(ax, "x", 1)))
    marks = ax.legend(
        [handles[i] for i in order],
        [labels[i] for i in order],
        loc="lower left",
        bbox_to_anchor=(0, height),
        ncols=columns or -(-len(labels) // rows),
        fontsize=_SMALL,
        frameon=False,
        borderaxespad=0.3,
        columnspacing=1.4,
        handlelength=1.3,
        handletextpad=0.5,
    )
    marks.set_zorder(6)


def _room(ax: Axes, axis: Literal["x", "y"], n: int) -> float:
    """Points that each of `n` classes has along an axis."""
    box = ax.get_window_extent()
    return float(72 * (box.width if axis == "x" else box.height) / ax.figure.dpi / n)


def _class_ticks(ax: Axes, names: Sequence[str], axis: Literal["x", "y"]) -> None:
    """Names along an axis, as large as there is room; every second, third, ... where there is too little."""
    room = _room(ax, axis, len(names))
    size = float(np.clip(0.82 * room, _TINY, _SMALL))
    step = max(1, int(np.ceil(1.2 * size / room)))
    at = list(range(0, len(names), step))
    shown = [names[i] for i in at]
    flat = axis == "y" or max(map(len, shown)) * 0.62 * size < 0.9 * room * step
    slanted = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if room > 14 else {"rotation": 90}
    place = ax.set_xticks if axis == "x" else ax.set_yticks
    place(at, shown, fontsize=size, **({} if flat else slanted))
    ax.tick_params(axis=axis, length=0 if step == 1 else 2)


def _name_points(ax: Axes, chosen: Sequence[int], table: ClassTable) -> None:
    """Names in a column on the side of the points that faces away from the diagonal, kept apart.

    Where the names would leave the axes, they go to the other side of their points.
    """
    from matplotlib import patheffects

    low, high = ax.get_xlim()
    point = (high - low) / _room(ax, "x", 1)  # one point in data units, alike along both axes
    look: dict[str, Any] = {"fontsize": _SMALL, "color": INK, "va": "center", "zorder": 6}
    look["path_effects"] = [patheffects.withStroke(linewidth=2.5, foreground="white")]
    look["arrowprops"] = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 2}
    for side in (1, -1):  # right and downwards: over-confident; left and upwards: under-confident
        mine = [(side * float(table.accuracy[k]), k) for k in chosen if side * table.signed_gap[k] > 0]
        if not mine:
            continue
        x = np.array([table.confidence[k] for _, k in mine])
        width = max(0.5 * _SMALL * len(table.name[k]) for _, k in mine) * point
        edge, column = (high, x.max()) if side > 0 else (low, x.min())
        away = side if abs(edge - column) > width + 12 * point else -side
        column = (x.max() if away > 0 else x.min()) + 12 * away * point
        heights, names = [np.inf], sorted(mine, reverse=True)
        for height, _ in names:
            heights.append(min(heights[-1] - 1.35 * _SMALL * point, height))
        lift = max(0.0, (low if side > 0 else -high) + _SMALL * point - heights[-1])
        for height, (_, k) in zip(heights[1:], names, strict=True):
            spot, where = (table.confidence[k], table.accuracy[k]), (column, side * (height + lift))
            ax.annotate(table.name[k], spot, xytext=where, ha="left" if away > 0 else "right", **look)


_BAND = ("floor", "floor_q95")
