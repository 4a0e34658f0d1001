"""Figures in the style of the paper.

Each method has the same colour in all figures. Error bars are standard deviations over the seeds, except in
panels of confidence − accuracy and of differences between methods, where they are 95% intervals. Dashes and
dashed lines are noise floors: the calibration errors to expect of a perfectly calibrated model. In
reliability diagrams, however, the dashed line is the diagonal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hetcal.plots import reliability_diagram
from hetcal_paper.claims import Comparison, paired_difference
from hetcal_paper.evaluate_run import BINS
from hetcal_paper.files import write_atomic
from hetcal_paper.published import AVERAGES, ITEMS
from hetcal_paper.rows import METHODS, Row, Selection, class_names, first_row
from hetcal_paper.tables import LABELS, count_seeds, few_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "class_figure",
    "draw_halves",
    "drawn_methods",
    "example_figure",
    "half_figure",
    "sampling_figure",
    "save_figure",
    "sweep_figure",
    "table_figure",
    "training_figure",
]

#: The palette of Okabe and Ito, which is safe for colour-blind readers.
_COLOURS = {
    "Uncal": "#888888",
    "VS": "#e69f00",
    "TS": "#0072b2",
    "CTS": "#009e73",
    "CTS-cv": "#56b4e9",
    "CTS-bayes": "#d55e00",
    "Auto": "#cc79a7",
}
_MARKS = {"Uncal": "o", "VS": "^", "TS": "s", "CTS": "D", "CTS-cv": "P", "CTS-bayes": "X", "Auto": "v"}
_INK, _GREY, _LIGHT_GREY = "#222222", "#888888", "#d9d9d9"
_BAR = "#555555"
#: Methods that are left out to keep figures legible: ``_NOT_IN_SWEEPS`` from figures with several noise or
#: sampling rates, and ``_NOT_IN_CLASSES`` from figures of individual classes.
_NOT_IN_SWEEPS = ("CTS-bayes",)
_NOT_IN_CLASSES = ("CTS-cv", "CTS-bayes")
_LEVEL_LABELS = 5  # a panel with more methods than this has slanted labels
_LARGE, _SMALL = 10, 8.5
_LABELS_PER_INCH = 14  # approximate number of characters in one inch of the legend
_LABEL_MARGIN = 5  # approximate width, in characters, of the mark and the space next to a label
_DASHES = (0, (4, 2.5))
_ABOVE = 1.13  # top of the histogram above a reliability diagram, as a multiple of the height of the axes
_FLOOR = "noise floor"
_DASH: dict[str, Any] = {
    "color": _INK,
    "marker": "_",
    "markersize": 9,
    "markeredgewidth": 1.2,
    "linestyle": "none",
}


def draw_halves(name: str, selection: Selection) -> Figure:
    """Draw the reliability of the uncalibrated model for the two halves of the classes, by true label."""
    (point,) = selection.present
    printed = AVERAGES.get(name, {})
    halves = ("low", "high")
    return _reliability(
        selection,
        [_Panel(getattr(ITEMS[name], half), point.runs, half, printed.get(half)) for half in halves],
    )


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Save a figure reproducibly: equal figures give identical files. Return the path."""
    from matplotlib import rc_context

    target = Path(path)
    kind = target.suffix[1:]
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with rc_context({"svg.hashsalt": "hetcal"}):
        write_atomic(target, lambda file: figure.savefig(file, format=kind, dpi=150, metadata=metadata))
    return target


def table_figure(name: str, rows: Sequence[Row], selection: Selection | None) -> Figure:  # noqa: ARG001
    """Draw the methods of a table, one panel per metric."""
    metrics = ("accuracy", "ece", "max_ece", "avg_ece")
    figure = _figure((9.6, 3.5))
    methods = [m for m in METHODS if first_row(rows, method=m)]
    for ax, metric in zip(figure.subplots(1, len(metrics)), metrics, strict=True):
        for x, method in enumerate(methods):
            by_bins = [first_row(rows, method=method, metric=metric, bins=bins, half=None) for bins in BINS]
            shown = [row for row in by_bins if row is not None][: 1 if metric == "accuracy" else None]
            shifts = (0.0,) if metric == "accuracy" else (-0.14, 0.12)
            for row, shift in zip(shown, shifts, strict=False):
                hollow = row["bins"] == BINS[-1]
                _mark(ax, x + shift, row, _COLOURS[method], "o", hollow=hollow)
                if row["floor"] is not None:
                    _dash(ax, x + shift, row["floor"], 0.12)
            if shown and shown[0]["paper"] is not None:
                _paper_mark(ax, x + 0.32, shown[0])
        many: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
        ax.set_xticks(range(len(methods)), methods, **(many if len(methods) > _LEVEL_LABELS else {}))
        ax.set_xlim(-0.5, len(methods) - 0.4)
        ax.set_title(LABELS[metric], fontsize=_LARGE, color=_INK)
        if metric != "accuracy":
            ax.set_ylim(bottom=0)
        _percent_axis(ax)
        _tidy(ax)
    marks = {
        f"ours, {BINS[0]} bins": {"marker": "o", "color": _GREY, "linestyle": "none"},
        f"ours, {BINS[1]} bins": {
            "marker": "o",
            "color": _GREY,
            "markerfacecolor": "white",
            "linestyle": "none",
        },
        "paper": {"marker": "x", "color": _INK, "linestyle": "none"},
        _FLOOR: _DASH,
    }
    _draw_legend(figure, marks)
    return figure


def training_figure(name: str, rows: Sequence[Row], selection: Selection | None) -> Figure:  # noqa: ARG001
    """Draw reliability diagrams of networks trained on clean, noisy and small training sets."""
    titles = {"clean": "clean data", "noise": "30% label noise", "few": few_label(name)}
    runs = _require(selection)
    return _reliability(runs, [_Panel(titles[point.training], point.runs) for point in runs.present])


def sampling_figure(name: str, rows: Sequence[Row], selection: Selection | None) -> Figure:  # noqa: ARG001
    """Draw reliability diagrams of networks trained on training sets of different sizes."""
    selected = _require(selection)
    rates = sorted((point.rate("size"), point.runs) for point in selected.present)
    printed = AVERAGES[name]
    return _reliability(
        selected,
        [_Panel(f"{100 * rate:g}% of the samples", runs, "all", printed.get(rate)) for rate, runs in rates],
    )


def half_figure(name: str, rows: Sequence[Row], selection: Selection | None) -> Figure:  # noqa: ARG001
    """Draw reliability diagrams of the two halves of the classes, by true label."""
    return draw_halves(name, _require(selection))


@dataclass(frozen=True)
class _Panel:
    """One reliability diagram; `paper` is the published mean confidence and accuracy, if there are any."""

    title: str
    runs: tuple[str, ...]
    half: str = "all"
    paper: tuple[float, float] | None = None


def _reliability(selection: Selection, panels: Sequence[_Panel]) -> Figure:
    """Draw reliability diagrams, each pooled over the seeds, with one legend."""
    figure = _figure((3.1 * len(panels) + 0.3, 4.2))
    axes = np.atleast_1d(figure.subplots(1, len(panels)))
    for ax, letter, panel in zip(axes, "abcdefgh", panels, strict=False):
        curve = selection.results.curve(panel.runs, BINS[-1], panel.half, selection.choice)
        reliability_diagram(curve, ax, legend=False)
        # The box with statistics would cover the bars. The title contains the confidence and the accuracy.
        for text in list(ax.texts):
            text.remove()
        lines = [f"({letter}) {panel.title}, {count_seeds(len(panel.runs))}"]
        lines.append(_averages((curve.mean_confidence, curve.mean_accuracy)))
        lines += [] if panel.paper is None else [f"paper: {_averages(panel.paper)}"]
        style: dict[str, Any] = {"fontsize": _SMALL, "color": _INK, "va": "bottom", "linespacing": 1.35}
        position: dict[str, Any] = {
            "xycoords": "axes fraction",
            "textcoords": "offset points",
            "xytext": (0, 5),
        }
        ax.annotate("\n".join(lines), (0, _ABOVE), **position, **style)
        if ax is not axes[0]:
            ax.set_ylabel("")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper left", ncols=3, fontsize=_SMALL, frameon=False, handlelength=1.3
    )
    return figure


def _averages(pair: tuple[float, float]) -> str:
    confidence, accuracy = pair
    return f"confidence {100 * confidence:.1f}, accuracy {100 * accuracy:.1f}"


def sweep_figure(name: str, rows: Sequence[Row], selection: Selection | None) -> Figure:
    """Draw the metrics over noise or sampling rates.

    There is a second row of panels if the figure includes methods that the paper does not have, and
    `selection` is not None. It shows the differences of these methods and of CTS from TS, computed within
    each run.
    """
    noisy = ITEMS[name].kind == "noise"
    points = () if selection is None else selection.points  # the axis also shows rates without runs
    rates = sorted({row["rate"] for row in rows} | {point.rate(ITEMS[name].kind) for point in points})
    metrics = ("ece", "max_ece") if noisy else ("max_ece", "ece", "avg_ece")
    title: dict[str, Any] = {"fontsize": _LARGE, "color": _INK, "loc": "left"}
    methods = drawn_methods(name, rows)
    compared = [m for m in methods if m not in ("Uncal", "VS", "TS")]
    n_rows = 1 + (selection is not None and not {*compared} <= {"CTS"})
    figure = _figure((3.3 * len(metrics) + 0.4, 3.3 * n_rows + 0.2))
    panels = figure.subplots(n_rows, len(metrics), squeeze=False)
    for ax, letter, metric in zip(panels[0], "abc", metrics, strict=False):
        shown = [r for r in rows if r["metric"] == metric and r["bins"] == BINS[-1] and "half" not in r]
        for i, method in enumerate(methods):
            shift = (i - (len(methods) - 1) / 2) / 1.5
            _line(ax, [r for r in shown if r["method"] == method], method, shift, log=not noisy)
        _floor_line(ax, [r for r in shown if r["method"] == "CTS"])
        if not noisy:
            ax.set_xscale("log")
            ax.minorticks_off()
        ax.set_xticks(rates, [f"{100 * rate:g}" for rate in rates])
        ax.set_xlabel(f"{'noise' if noisy else 'sampling'} rate (%)", fontsize=_LARGE, color=_INK)
        ax.set_title(f"({letter}) {LABELS[metric]}, {BINS[-1]} bins", **title)
        ax.set_ylim(bottom=0)
        _percent_axis(ax)
        _tidy(ax)
    if selection is not None and n_rows == 2:
        for ax, letter, metric in zip(panels[1], "abcdef"[len(metrics) :], metrics, strict=False):
            _ts_differences(ax, selection, metric, compared)
            ax.set_xlabel(f"{'noise' if noisy else 'sampling'} rate (%)", fontsize=_LARGE, color=_INK)
            ax.set_title(f"({letter}) {LABELS[metric]} − {LABELS[metric]} of TS", **title)
    seeds = {m: _seeds_by_rate(rows, m) for m in methods}
    most = max(max(seeds[m].values()) for m in methods)
    marks = {
        f"{m}{_fewer_seeds(seeds[m], most)}": {
            "color": _COLOURS[m],
            "marker": _MARKS[m],
            "linewidth": 1.4,
            "markersize": 5,
        }
        for m in methods
    }
    _draw_legend(
        figure, {**marks, f"{_FLOOR} (CTS)": {"color": _INK, "linestyle": _DASHES, "linewidth": 1.1}}
    )
    return figure


def class_figure(name: str, rows: Sequence[Row], selection: Selection | None) -> Figure:  # noqa: ARG001
    """Draw the ECE and confidence − accuracy of classes and, with label noise, their classification error."""
    panels = {"class_ece": "ECE, by predicted class"}
    if ITEMS[name].halves.corruption == "noise":
        panels["class_error"] = "Classification error, by predicted class"
    figure = _figure((8.6, 2.6 * len(panels) + 2.6))
    names = class_names(name)
    methods = drawn_methods(name, rows)
    axes = figure.subplots(len(panels) + 1, 1, sharex=True)
    for ax, letter, (metric, title) in zip(axes, "ab", panels.items(), strict=False):
        _bars(ax, rows, metric, methods, list(names))
        _percent_axis(ax)
        _class_axis(ax, len(names), f"({letter}) {title}")
    _gaps(axes[-1], rows, list(names))
    has_intervals = any(row.get("low") is not None for row in rows)
    title = (
        f"Confidence − accuracy by true class, uncalibrated{', with 95% intervals' if has_intervals else ''}"
    )
    _class_axis(axes[-1], len(names), f"({'abc'[len(panels)]}) {title}")
    for x, label in ((0.25, ITEMS[name].low), (0.75, ITEMS[name].high)):
        style: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": _SMALL, "color": _GREY}
        axes[0].text(x, 1.13, label, transform=axes[0].transAxes, **style)
    axes[-1].set_ylabel("points", fontsize=_LARGE)
    slanted: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    axes[-1].set_xticks(range(len(names)), list(names.values()), **slanted)
    marks: dict[str, dict[str, Any]] = {m: _patch(_COLOURS[m]) for m in methods}
    _draw_legend(figure, {**marks, _FLOOR: _DASH})
    return figure


def example_figure(name: str, rows: Sequence[Row], selection: Selection | None) -> Figure:  # noqa: ARG001
    """Draw the example of Section 5.4."""
    figure = _figure((5.2, 3.3))
    ax = figure.subplots()
    groups: dict[str, dict[str, Any]] = {
        "ECE of class 1": {"class": 0},
        "ECE of class 2": {"class": 1},
        "ECE over both": {"metric": "ece"},
    }
    for i, method in enumerate(("TS", "CTS")):
        for x, key in enumerate(groups.values()):
            row = first_row(rows, method=method, **key)
            value = 0.0 if row is None else row["mean"]
            position = x + (i - 0.5) * 0.38
            ax.bar(position, value, 0.34, color=_COLOURS[method], zorder=2)
            style: dict[str, Any] = {"ha": "center", "fontsize": _SMALL, "color": _INK}
            ax.annotate(f"{value:.2f}", (position, value), (0, 3), textcoords="offset points", **style)
    ax.set_xticks(range(len(groups)), list(groups))
    ax.set_ylabel("calibration error", fontsize=_LARGE)
    ax.margins(y=0.12)
    _tidy(ax)
    _draw_legend(figure, {m: _patch(_COLOURS[m]) for m in ("TS", "CTS")})
    return figure


def drawn_methods(name: str, rows: Sequence[Row]) -> list[str]:
    """Return the methods that a figure with several rates or a figure of individual classes shows.

    A figure with several rates shows only methods that were evaluated at every rate.
    """
    if ITEMS[name].kind == "classes":
        present = [m for m in METHODS if first_row(rows, method=m, metric="class_ece")]
        return [m for m in present if m not in _NOT_IN_CLASSES]
    rates = {row["rate"] for row in rows}
    return [m for m in METHODS if m not in _NOT_IN_SWEEPS and _seeds_by_rate(rows, m).keys() == rates]


def _ts_differences(ax: Axes, selection: Selection, metric: str, methods: Sequence[str]) -> None:
    """Draw the paired differences of methods from TS in percentage points, with 95% intervals over seeds."""
    rates = sorted(point.rate(selection.kind) for point in selection.present)
    for i, method in enumerate(methods):
        for x, rate in enumerate(rates):
            interval = paired_difference(
                selection, Comparison(metric, method, "TS", bins=BINS[-1], rate=rate)
            )
            if interval is None:
                continue
            position, mean = x + 0.2 * (i - (len(methods) - 1) / 2), 100 * interval.mean
            style: dict[str, Any] = {"color": _COLOURS[method], "zorder": 3}
            ax.plot(position, mean, marker=_MARKS[method], markersize=4.5, **style)
            if interval.low is not None and interval.high is not None:
                ax.vlines(position, 100 * interval.low, 100 * interval.high, linewidth=1.4, **style)
    ax.axhline(0, color=_INK, linewidth=0.8, zorder=2)
    ax.set_xticks(range(len(rates)), [f"{100 * rate:g}" for rate in rates])
    ax.set_ylabel("points, with 95% intervals", fontsize=_SMALL, color=_INK)
    _tidy(ax)


def _seeds_by_rate(rows: Sequence[Row], method: str) -> dict[float, int]:
    """Return the number of seeds of a method at each rate at which it was measured."""
    return {r["rate"]: r["n"] for r in rows if (r["method"], r["metric"]) == (method, "ece")}


def _fewer_seeds(seeds: Mapping[float, int], most: int) -> str:
    """Return the numbers of seeds in parentheses if any is below ``most``; otherwise, an empty string."""
    fewest = min(seeds.values())
    if fewest == most:
        return ""
    largest = max(seeds.values())
    return f" ({count_seeds(fewest) if fewest == largest else f'{fewest} to {largest} seeds'})"


def _line(ax: Axes, rows: Sequence[Row], method: str, shift: float, *, log: bool) -> None:
    """Draw one method, slightly shifted so that error bars do not overlap."""
    rows = sorted(rows, key=lambda row: float(row["rate"]))
    style: dict[str, Any] = {"color": _COLOURS[method], "linewidth": 1.4, "zorder": 3}
    if method in ("Uncal", "VS"):
        style["alpha"] = 0.75  # paler than TS and CTS, which the figure compares
    ax.errorbar(
        [row["rate"] * 1.03**shift if log else row["rate"] + 0.006 * shift for row in rows],
        [row["mean"] for row in rows],
        [row["std"] or 0.0 for row in rows],
        marker=_MARKS[method],
        markersize=5,
        capsize=2.5,
        **style,
    )


def _floor_line(ax: Axes, rows: Sequence[Row]) -> None:
    rows = sorted(rows, key=lambda row: float(row["rate"]))
    rates = [row["rate"] for row in rows]
    style: dict[str, Any] = {"color": _INK, "linestyle": _DASHES, "linewidth": 1.1, "zorder": 2}
    mark = "_" if len(rows) == 1 else ""  # a line through a single point would be invisible
    ax.plot(rates, [row["floor"] for row in rows], marker=mark, markersize=22, **style)


def _bars(ax: Axes, rows: Sequence[Row], metric: str, methods: Sequence[str], classes: Sequence[int]) -> None:
    width = 0.84 / len(methods)
    for i, method in enumerate(methods):
        for x, k in enumerate(classes):
            row = first_row(rows, method=method, metric=metric, bins=BINS[-1], **{"class": k})
            if row is None or row["mean"] is None:
                continue
            position = x + (i - (len(methods) - 1) / 2) * width
            ax.bar(position, row["mean"], 0.92 * width, color=_COLOURS[method], zorder=2)
            if row["std"] is not None:
                style: dict[str, Any] = {"color": _INK, "linewidth": 0.7, "zorder": 4}
                ax.vlines(position, row["mean"] - row["std"], row["mean"] + row["std"], **style)
            if row["floor"] is not None:
                _dash(ax, position, row["floor"], 0.46 * width)


def _gaps(ax: Axes, rows: Sequence[Row], classes: Sequence[int]) -> None:
    for x, k in enumerate(classes):
        row = first_row(rows, metric="class_gap", **{"class": k})
        if row is None or row["mean"] is None:
            continue
        gap = 100 * row["mean"]
        ax.bar(x, gap, 0.5, color=_BAR, alpha=0.55, zorder=2)
        if row["low"] is not None:
            ax.vlines(x, 100 * row["low"], 100 * row["high"], color=_INK, linewidth=1.1, zorder=4)
    ax.axhline(0, color=_INK, linewidth=0.8, zorder=3)


def _class_axis(ax: Axes, n: int, title: str) -> None:
    """Set the title and the limits of a panel, and draw a line between the halves of the classes."""
    ax.axvline(n / 2 - 0.5, color=_GREY, linestyle=":", linewidth=1, zorder=1)
    ax.set_xlim(-0.6, n - 0.4)
    ax.set_title(title, fontsize=_LARGE, color=_INK, loc="left")
    _tidy(ax)


def _mark(ax: Axes, x: float, row: Mapping[str, Any], colour: str, marker: str, *, hollow: bool) -> None:
    style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 6, "capsize": 2.5, "zorder": 3}
    ax.errorbar(x, row["mean"], row["std"], markerfacecolor="white" if hollow else colour, **style)


def _paper_mark(ax: Axes, x: float, row: Mapping[str, Any]) -> None:
    style: dict[str, Any] = {"color": _INK, "marker": "x", "markersize": 5, "capsize": 2, "zorder": 3}
    ax.errorbar(x, row["paper"], row.get("paper_std"), linewidth=0.9, **style)


def _dash(ax: Axes, x: float, floor: float, reach: float) -> None:
    """Draw a noise floor across one bar or mark, with a white outline."""
    ax.hlines(floor, x - reach, x + reach, color="white", linewidth=2.6, zorder=4)
    ax.hlines(floor, x - reach, x + reach, color=_INK, linewidth=1.1, zorder=5)


def _figure(size: tuple[float, float]) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib; install it with: pip install matplotlib") from error
    return Figure(figsize=size, layout="constrained")


def _tidy(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(_GREY)
    ax.tick_params(labelsize=_SMALL, color=_GREY, labelcolor=_INK)
    ax.grid(axis="y", color=_LIGHT_GREY, linewidth=0.6)
    ax.set_axisbelow(True)


def _percent_axis(ax: Axes) -> None:
    ax.yaxis.set_major_formatter(lambda value, _: f"{round(100 * value, 6):g}%")


def _patch(colour: str) -> dict[str, Any]:
    return {"color": colour, "marker": "s", "markersize": 8, "linestyle": "none"}


def _draw_legend(figure: Figure, marks: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw one legend above all panels, in two lines if it is wider than the figure."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **style) for style in marks.values()]
    is_wide = sum(len(label) + _LABEL_MARGIN for label in marks) > _LABELS_PER_INCH * figure.get_figwidth()
    figure.legend(
        handles,
        list(marks),
        loc="outside upper left",
        ncols=(len(marks) + 1) // 2 if is_wide else len(marks),
        fontsize=_SMALL,
        frameon=False,
        columnspacing=1.4,
        handlelength=1.6,
        handletextpad=0.5,
    )


def _require(selection: Selection | None) -> Selection:
    if selection is None:
        raise ValueError("selection must be a Selection, got None; create one with rows.select")
    return selection
