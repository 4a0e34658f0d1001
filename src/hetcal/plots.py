"""Charts of evaluations and diagnoses.

Each function draws a result on the given axes, or on a new figure, and returns the axes. matplotlib is
imported on first use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from hetcal._axes import LARGE, SMALL, axes_or_new, style_axes
from hetcal._palette import FAINT, GREY, INK, PALETTE
from hetcal._typing import Float, IntArray
from hetcal.diagnosis import Diagnosis, Verdict
from hetcal.metrics import ClassTable, Evaluation, ReliabilityCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection

__all__ = ["class_ece_bars", "class_map", "gap_chart", "method_comparison", "reliability_diagram"]

# The colours of the reliability diagrams in the paper.
_RED, _YELLOW, _ORANGE = "#d7301f", "#ffd92f", "#fd8d3c"
_METHOD_COLOURS = tuple(PALETTE.values())
_SINGLE_COLOUR = "#6aa9d4"  # bars of a chart with one method
_NEUTRAL_COLOUR = "#9a9a9a"
_VERDICT_COLOURS = {
    Verdict.OVER_CONFIDENT: PALETTE["vermilion"],
    Verdict.UNDER_CONFIDENT: PALETTE["blue"],
    Verdict.CONSISTENT: PALETTE["green"],
    Verdict.TOO_FEW_ROWS: _NEUTRAL_COLOUR,
}
_METRIC_NAMES = {"ece": "ECE", "max_ece": "max-ECE", "avg_ece": "Avg-ECE"}
_FLOOR_LABEL = "noise floor (mean to 95%)"
_TINY = 5.0  # smallest font size of class names; if they still do not fit, only some are drawn
_MIN_BAR_WIDTH = 5.0  # in 1/72 inch; class_ece_bars draws dots instead of narrower bars


def reliability_diagram(
    curve: ReliabilityCurve,
    ax: Axes | None = None,
    *,
    title: str | None = None,
    histogram: bool = True,
    legend: bool = True,
) -> Axes:
    """Draw confidence (red), accuracy (yellow) and their overlap (orange) per confidence bin.

    Red above orange means over-confidence, yellow above orange under-confidence. For bins of equal width, a
    small histogram at the top shows the number of rows per bin.

    Parameters
    ----------
    curve : ReliabilityCurve
    ax : axes to draw on; a new figure by default
    title : text above the diagram
    histogram : whether to draw the histogram
    legend : whether to draw the legend
    """
    ax = axes_or_new(ax, (4.2, 4.6))
    used = curve.count > 0
    left, width = curve.edges[:-1][used], np.diff(curve.edges)[used]
    confidence, accuracy = curve.confidence[used], curve.accuracy[used]
    overlap = np.minimum(confidence, accuracy)
    style: dict[str, Any] = {"align": "edge", "edgecolor": "white", "linewidth": 0.6, "zorder": 2}
    ax.bar(left, confidence - overlap, width, bottom=overlap, color=_RED, label="confidence", **style)
    ax.bar(left, accuracy - overlap, width, bottom=overlap, color=_YELLOW, label="accuracy", **style)
    ax.bar(left, overlap, width, color=_ORANGE, label="overlap", **style)
    _diagonal(ax)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    ax.set_xlabel("confidence", fontsize=LARGE)
    ax.set_ylabel("mean of the bin", fontsize=LARGE)
    style_axes(ax, grid="y")
    _statistics_box(ax, curve)
    height = 1.0
    if histogram and np.ptp(np.diff(curve.edges)) < 1e-6:
        _histogram(ax, curve)
        height = 1.13
    if legend:
        _legend(ax, height=height, columns=3)
    if title is not None:
        pad = (height - 1) * _points_per_item(ax, "y", 1) + (22 if legend else 6)
        ax.set_title(title, fontsize=LARGE + 1, color=INK, pad=pad, loc="left")
    return ax


def class_ece_bars(
    evaluations: Evaluation | Mapping[str, Evaluation],
    ax: Axes | None = None,
    *,
    classes: Sequence[str | int] | None = None,
) -> Axes:
    """Draw the ECE of every class as a bar, with its noise floor from the mean to the 95% quantile.

    If the bars would be too narrow to see, points are drawn instead, over a band that shows the floor
    averaged over the methods.

    Parameters
    ----------
    evaluations : an Evaluation, or a mapping of method name to Evaluation for bars side by side
    ax : axes to draw on; a new figure by default
    classes : names or numbers of the classes to show
        By default all classes that were predicted, in descending order of the ECE of the first method.
    """
    methods = _check_methods(evaluations)
    first = next(iter(methods.values())).classes
    selection = _select_classes(first, classes)
    ax = axes_or_new(ax, (min(15.0, 2.5 + 0.22 * len(selection) * (1 + 0.6 * len(methods))), 3.8))
    positions, width = np.arange(len(selection)), 0.82 / len(methods)
    narrow = width * _points_per_item(ax, "x", len(selection)) < _MIN_BAR_WIDTH
    marks: LineCollection | None = None
    for i, (name, evaluation) in enumerate(methods.items()):
        table, colour = evaluation.classes, _method_colour(i, len(methods))
        if narrow:
            ax.scatter(positions, table.ece[selection], 15, color=colour, label=name, zorder=3, linewidth=0)
            continue
        x = positions + (i - (len(methods) - 1) / 2) * width
        ax.bar(x, table.ece[selection], width * 0.94, color=colour, label=name, zorder=2)
        marks = _floor_marks(ax, x, width, table.floor[selection], table.floor_q95[selection])
    if narrow:
        tables = [e.classes for e in methods.values()]
        mean_floor = np.mean([t.floor[selection] for t in tables], 0)
        _floor_band(ax, positions, mean_floor, np.mean([t.floor_q95[selection] for t in tables], 0))
        ax.set_ylim(bottom=0)
    ax.set_ylabel("ECE of the class", fontsize=LARGE)
    ax.set_xlim(-0.6, len(selection) - 0.4)
    style_axes(ax, grid="y")
    _class_ticks(ax, [first.name[k] for k in selection], axis="x")
    _legend(ax, floor=marks)
    return ax


def method_comparison(
    evaluations: Mapping[str, Evaluation],
    ax: Axes | None = None,
    *,
    metrics: Sequence[str] = ("ece", "max_ece", "avg_ece"),
) -> Axes:
    """Draw the calibration errors of several methods side by side, each with its noise floor.

    Parameters
    ----------
    evaluations : mapping of method name to Evaluation
    ax : axes to draw on; a new figure by default
    metrics : any of ``ece``, ``max_ece``, ``avg_ece``
    """
    if not metrics or any(m not in _METRIC_NAMES for m in metrics):
        names = ", ".join(map(repr, _METRIC_NAMES))
        raise ValueError(f"metrics must be a list of one or more of {names}, got {metrics!r}")
    methods = _check_methods(evaluations)
    ax = axes_or_new(ax, (2.2 + 0.5 * len(metrics) * len(methods), 3.8))
    positions, width = np.arange(len(metrics)), 0.84 / len(methods)
    marks: LineCollection | None = None
    for i, (name, evaluation) in enumerate(methods.items()):
        values = np.array([getattr(evaluation, m) for m in metrics])
        floors, tops = (np.array([f[m] for m in metrics]) for f in (evaluation.floor, evaluation.floor_q95))
        x = positions + (i - (len(methods) - 1) / 2) * width
        ax.bar(x, values, width * 0.92, color=_method_colour(i, len(methods)), label=name, zorder=2)
        marks = _floor_marks(ax, x, width, floors, tops)
        size = min(7.5, 0.42 * width * _points_per_item(ax, "x", len(metrics)))
        style: dict[str, Any] = {"ha": "center", "fontsize": size, "visible": size >= _TINY, "color": INK}
        for centre, value, top in zip(x, values, tops, strict=True):
            anchor = (centre, max(value, top))
            ax.annotate(f"{100 * value:.1f}", anchor, (0, 2), textcoords="offset points", **style)
    ax.set_xticks(positions, [_METRIC_NAMES[m] for m in metrics])
    ax.set_ylabel("calibration error (labels in %)", fontsize=LARGE)
    ax.margins(y=0.12)
    style_axes(ax, grid="y")
    ax.tick_params(axis="x", length=0, labelsize=LARGE)
    _legend(ax, floor=marks)
    return ax


def class_map(evaluation: Evaluation, ax: Axes | None = None, *, n_names: int = 6) -> Axes:
    """Draw accuracy against confidence, one point per class; the area grows with the number of rows.

    Classes whose ECE exceeds the 95% quantile of its noise floor are coloured by the direction of their
    error. Those with the largest gaps are labelled with their names.

    Parameters
    ----------
    evaluation : Evaluation
    ax : axes to draw on; a new figure by default
    n_names : maximum number of classes to label
    """
    ax = axes_or_new(ax, (4.8, 4.9))
    table = evaluation.classes
    predicted = table.n > 0
    exceeds_floor = predicted & (table.ece > table.floor_q95)
    area = 14 + 90 * table.n / table.n.max()
    over, under = Verdict.OVER_CONFIDENT, Verdict.UNDER_CONFIDENT
    groups = [
        (over.value, exceeds_floor & (table.signed_gap > 0), _VERDICT_COLOURS[over]),
        (under.value, exceeds_floor & (table.signed_gap <= 0), _VERDICT_COLOURS[under]),
        ("within noise floor", predicted & ~exceeds_floor, _NEUTRAL_COLOUR),
    ]
    for label, members, colour in groups:
        if not members.any():
            continue
        style: dict[str, Any] = {"color": colour, "alpha": 0.72, "edgecolor": "white", "linewidth": 0.6}
        style |= {"label": f"{label} ({members.sum()})", "zorder": 3}
        ax.scatter(table.confidence[members], table.accuracy[members], area[members], **style)
    _diagonal(ax)
    low = min(table.confidence[predicted].min(), table.accuracy[predicted].min())
    low = max(-0.02, np.floor(low * 20) / 20 - 0.03)
    ax.set(xlim=(low, 1.02), ylim=(low, 1.02), aspect="equal")
    ax.set_xlabel("mean confidence of the class (area: rows)", fontsize=LARGE)
    ax.set_ylabel("accuracy of the class", fontsize=LARGE)
    style_axes(ax, grid="both")
    _legend(ax)
    error = np.where(exceeds_floor, np.abs(table.signed_gap), -1.0)
    largest = np.argsort(-error, kind="stable")[:n_names]
    _label_points(ax, [int(k) for k in largest if exceeds_floor[k]], table)
    return ax


def gap_chart(diagnosis: Diagnosis, ax: Axes | None = None) -> Axes:
    """Draw the signed gap of every class with its interval, sorted, coloured by verdict.

    To the right of zero, confidence exceeds accuracy; to the left, accuracy exceeds confidence. The intervals
    refer to the gap in the population. Classes that were never predicted are left out.

    Parameters
    ----------
    diagnosis : Diagnosis
    ax : axes to draw on; a new figure by default
    """
    classes = sorted((c for c in diagnosis.classes if c.n > 0), key=lambda c: c.signed_gap)
    ax = axes_or_new(ax, (6.4, float(np.clip(1.4 + 0.26 * len(classes), 2.6, 12.5))))
    space = _points_per_item(ax, "y", max(1, len(classes)))
    for kind, colour in _VERDICT_COLOURS.items():
        y = [i for i, c in enumerate(classes) if c.kind is kind]
        if not y:
            continue
        gap, low, high = ([getattr(classes[i], f) for i in y] for f in ("signed_gap", "gap_low", "gap_high"))
        ax.hlines(y, low, high, color=colour, linewidth=min(1.6, 0.3 * space), alpha=0.65, zorder=2)
        face = "white" if kind is Verdict.TOO_FEW_ROWS else colour
        style: dict[str, Any] = {"facecolor": face, "edgecolor": colour, "linewidth": 1.1, "zorder": 3}
        ax.scatter(gap, y, min(22, space**2 / 3), label=f"{kind} ({len(y)})", **style)
    ax.axvline(0, color=INK, linewidth=1, zorder=1)
    ax.set_ylim(-0.8, len(classes) - 0.2)
    n_never = len(diagnosis.classes) - len(classes)
    note = f"; {n_never} never predicted" if n_never else ""
    level = f"{100 * (1 - diagnosis.level):g}%"
    ax.set_xlabel(f"confidence − accuracy, with {level} interval{note}", fontsize=LARGE)
    style_axes(ax, grid="x")
    _class_ticks(ax, [c.name for c in classes], axis="y")
    _legend(ax, columns=2)
    return ax


def _check_methods(evaluations: Evaluation | Mapping[str, Evaluation]) -> Mapping[str, Evaluation]:
    methods = evaluations if isinstance(evaluations, Mapping) else {"ECE": evaluations}
    if not methods:
        raise ValueError("evaluations must contain at least one Evaluation, got an empty mapping")
    if len({e.classes.name for e in methods.values()}) > 1:
        raise ValueError(
            "evaluations must have the same classes, got different class names; evaluate all methods with "
            "the same class_names"
        )
    return methods


def _select_classes(table: ClassTable, classes: Sequence[str | int] | None) -> IntArray:
    if classes is None:
        order = np.argsort(-np.where(table.n > 0, table.ece, -1), kind="stable")
        return order[: int((table.n > 0).sum())]
    numbers = {name: k for k, name in enumerate(table.name)}
    selection = [numbers.get(c, -1) if isinstance(c, str) else int(c) for c in classes]
    for requested, k in zip(classes, selection, strict=True):
        if not 0 <= k < len(table.name):
            raise ValueError(
                f"classes must be names or numbers of the {len(table.name)} classes, got {requested!r}"
            )
    if not selection:
        raise ValueError("classes must name at least one class, got none")
    return np.array(selection)


def _method_colour(i: int, n_methods: int) -> str:
    return _METHOD_COLOURS[i % len(_METHOD_COLOURS)] if n_methods > 1 else _SINGLE_COLOUR


def _diagonal(ax: Axes) -> None:
    ax.plot([0, 1], [0, 1], color=INK, linestyle=(0, (4, 3)), linewidth=1, zorder=2.5)


def _statistics_box(ax: Axes, curve: ReliabilityCurve) -> None:
    lines = [
        f"confidence {curve.mean_confidence:.3f}",
        f"accuracy {curve.mean_accuracy:.3f}",
        f"ECE {curve.ece:.3f}",
        f"{curve.n:,} rows",
    ]
    box = {"boxstyle": "round,pad=0.45", "facecolor": "white", "edgecolor": FAINT, "alpha": 0.94}
    style: dict[str, Any] = {"fontsize": SMALL, "color": INK, "linespacing": 1.4, "bbox": box, "zorder": 4}
    ax.text(0.965, 0.045, "\n".join(lines), transform=ax.transAxes, ha="right", va="bottom", **style)


def _histogram(ax: Axes, curve: ReliabilityCurve) -> None:
    inset = ax.inset_axes((0, 1.02, 1, 0.11))
    style: dict[str, Any] = {"align": "edge", "color": "#b5b5b5", "edgecolor": "white", "linewidth": 0.6}
    inset.bar(curve.edges[:-1], curve.count, np.diff(curve.edges), **style)
    inset.set(xlim=(0, 1), xticks=[], yticks=[])
    inset.spines[["top", "right", "left"]].set_visible(False)
    inset.spines["bottom"].set_color(FAINT)


def _floor_marks(ax: Axes, x: NDArray[Any], width: float, floor: Float, top: Float) -> LineCollection:
    """Draw a dash at the mean of the floor and a line up to `top`, with a white outline."""
    left, right = x - 0.34 * width, x + 0.34 * width
    ax.vlines(x, floor, top, color="white", linewidth=2.6, zorder=4)
    ax.hlines(floor, left, right, color="white", linewidth=3.2, zorder=4)
    ax.vlines(x, floor, top, color=INK, linewidth=0.9, zorder=5)
    return ax.hlines(floor, left, right, color=INK, linewidth=1.6, zorder=5)


def _floor_band(ax: Axes, positions: NDArray[Any], floor: Float, top: Float) -> None:
    style: dict[str, Any] = {"color": "#e3e3e3", "linewidth": 0, "zorder": 1}
    ax.bar(positions, top - floor, 1.0, bottom=floor, label=_FLOOR_LABEL, **style)


def _legend(
    ax: Axes, *, height: float = 1.0, columns: int | None = None, floor: LineCollection | None = None
) -> None:
    """Draw the legend above the axes, where it hides nothing. The entry of `floor` comes last."""
    handles, labels = ax.get_legend_handles_labels()
    if floor is not None:
        handles, labels = [*handles, floor], [*labels, _FLOOR_LABEL]
    # Approximate width of all entries in one row, in points.
    width = sum(0.55 * SMALL * len(label) + 30 for label in labels)
    n_rows = int(np.ceil(width / _points_per_item(ax, "x", 1)))
    legend = ax.legend(
        handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(0, height),
        ncols=columns or -(-len(labels) // n_rows),
        fontsize=SMALL,
        frameon=False,
        borderaxespad=0.3,
        columnspacing=1.4,
        handlelength=1.3,
        handletextpad=0.5,
    )
    legend.set_zorder(6)


def _points_per_item(ax: Axes, axis: Literal["x", "y"], n: int) -> float:
    """Length of an axis in points (1/72 inch), divided by `n`."""
    box = ax.get_window_extent()
    return float(72 * (box.width if axis == "x" else box.height) / ax.figure.dpi / n)


def _class_ticks(ax: Axes, names: Sequence[str], axis: Literal["x", "y"]) -> None:
    """Write class names along an axis, as large as possible; if space is short, skip some of them."""
    space = _points_per_item(ax, axis, len(names))
    size = float(np.clip(0.82 * space, _TINY, SMALL))
    step = max(1, int(np.ceil(1.2 * size / space)))
    positions = list(range(0, len(names), step))
    texts = [names[i] for i in positions]
    fits = axis == "y" or max(map(len, texts)) * 0.62 * size < 0.9 * space * step
    rotated = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if space > 14 else {"rotation": 90}
    set_ticks = ax.set_xticks if axis == "x" else ax.set_yticks
    set_ticks(positions, texts, fontsize=size, **({} if fits else rotated))
    ax.tick_params(axis=axis, length=0 if step == 1 else 2)


def _label_points(ax: Axes, classes: Sequence[int], table: ClassTable) -> None:
    """Write class names in a column next to their points, away from the diagonal and without overlap.

    If the names would not fit into the axes, they are placed on the other side of the points.
    """
    from matplotlib import patheffects

    low, high = ax.get_xlim()
    point = (high - low) / _points_per_item(ax, "x", 1)  # 1/72 inch in data units, the same on both axes
    style: dict[str, Any] = {"fontsize": SMALL, "color": INK, "va": "center", "zorder": 6}
    style["path_effects"] = [patheffects.withStroke(linewidth=2.5, foreground="white")]
    style["arrowprops"] = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 2}
    # Names of over-confident classes (1) are placed to the right of the points and moved down if they would
    # overlap; those of under-confident classes (-1) are placed to the left and moved up.
    for side in (1, -1):
        members = [(side * float(table.accuracy[k]), k) for k in classes if side * table.signed_gap[k] > 0]
        if not members:
            continue
        x = np.array([table.confidence[k] for _, k in members])
        width = max(0.5 * SMALL * len(table.name[k]) for _, k in members) * point
        edge, outermost = (high, x.max()) if side > 0 else (low, x.min())
        direction = side if abs(edge - outermost) > width + 12 * point else -side
        column = (x.max() if direction > 0 else x.min()) + 12 * direction * point
        members.sort(reverse=True)
        heights = [np.inf]
        for height, _ in members:
            heights.append(min(heights[-1] - 1.35 * SMALL * point, height))
        lift = max(0.0, (low if side > 0 else -high) + SMALL * point - heights[-1])
        align = "left" if direction > 0 else "right"
        for height, (_, k) in zip(heights[1:], members, strict=True):
            target, position = (table.confidence[k], table.accuracy[k]), (column, side * (height + lift))
            ax.annotate(table.name[k], target, xytext=position, ha=align, **style)
