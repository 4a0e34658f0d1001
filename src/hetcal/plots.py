"""Charts of reliability curves, evaluations and diagnoses.

Each function draws a result on the given axes, or on a new figure, and returns the axes.
:class:`ClassCalibrationDisplay` can also compute the result that it draws, like the displays of scikit-learn.
matplotlib is imported on first use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcal._axes import LARGE, SMALL, axes_or_new, style_axes
from hetcal._palette import FAINT, GREY, INK, PALETTE
from hetcal._typing import Float, IntArray
from hetcal._validate import as_generator, check_integer, check_names, check_number
from hetcal.diagnosis import Diagnosis, Verdict, check_predictions, diagnose_top_label
from hetcal.metrics import ClassTable, Evaluation, ReliabilityCurve
from hetcal.metrics.binning import TopLabel
from hetcal.metrics.floors import floor_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure, SubFigure

__all__ = [
    "ClassCalibrationDisplay",
    "class_ece_bars",
    "class_map",
    "gap_chart",
    "method_comparison",
    "reliability_diagram",
]

# The colours of the reliability diagrams in the paper that `hetcal.theory` cites.
_RED, _YELLOW, _ORANGE = "#d7301f", "#ffd92f", "#fd8d3c"
_METHOD_COLOURS = tuple(PALETTE.values())
_SINGLE_COLOUR = "#6aa9d4"  # colour of the bars in a chart of a single method
_NEUTRAL_COLOUR = "#9a9a9a"
_VERDICT_COLOURS = {
    Verdict.OVER_CONFIDENT: PALETTE["vermilion"],
    Verdict.UNDER_CONFIDENT: PALETTE["blue"],
    Verdict.CONSISTENT: PALETTE["green"],
    Verdict.TOO_FEW_ROWS: _NEUTRAL_COLOUR,
}
_METRIC_NAMES = {"ece": "ECE", "max_ece": "max-ECE", "avg_ece": "Avg-ECE"}
_FLOOR_LABEL = "noise floor (mean to 95%)"
_GAP_FLOOR_LABEL = "noise floor (95%)"
_FLOOR_COLOUR = "#e3e3e3"
_TINY = 5.0  # smallest font size; class names and values that do not fit in this size are left out
_MIN_BAR_WIDTH = 5.0  # in points (1/72 inch); instead of narrower bars, class_ece_bars draws round markers


def reliability_diagram(
    curve: ReliabilityCurve,
    ax: Axes | None = None,
    *,
    title: str | None = None,
    histogram: bool = True,
    legend: bool = True,
) -> Axes:
    """Draw the mean confidence (red), the accuracy (yellow) and their overlap (orange) in every bin.

    Red above orange means over-confidence, and yellow above orange means under-confidence. For bins of equal
    width, a small histogram at the top shows the number of rows per bin.

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
    """Draw the ECE of every class as a bar, with its noise floor.

    The noise floor is the distribution of the ECE for a calibrated model with the same confidences. It is
    drawn as a line from its mean to its 95% quantile. If the bars would be too narrow to see, points are
    drawn instead. A band behind them then shows the noise floor, averaged over the methods.

    Parameters
    ----------
    evaluations : an Evaluation, or a mapping of method name to Evaluation for bars side by side
    ax : axes to draw on; a new figure by default
    classes : names or numbers of the classes to show
        By default all classes that the first method predicts, by descending ECE of this method.
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

    The noise floor is the distribution of the error for a calibrated model with the same confidences. It is
    drawn as a line from its mean to its 95% quantile.

    Parameters
    ----------
    evaluations : mapping of method name to Evaluation
    ax : axes to draw on; a new figure by default
    metrics : any of ``ece``, ``max_ece``, ``avg_ece``
    """
    if not metrics or any(m not in _METRIC_NAMES for m in metrics):
        names = ", ".join(map(repr, _METRIC_NAMES))
        raise ValueError(
            f"metrics must be a list of one or more of {names}, got {metrics!r}; omit metrics for all of them"
        )
    from matplotlib.ticker import PercentFormatter

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
    ax.set_ylabel("calibration error", fontsize=LARGE)
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    ax.margins(y=0.12)
    style_axes(ax, grid="y")
    ax.tick_params(axis="x", length=0, labelsize=LARGE)
    _legend(ax, floor=marks)
    return ax


def class_map(evaluation: Evaluation, ax: Axes | None = None, *, n_names: int = 6) -> Axes:
    """Draw accuracy against confidence, with one point per predicted class.

    The area of a point grows with the number of rows of the class. A class whose ECE exceeds the 95% quantile
    of its noise floor is coloured by the sign of its gap (confidence minus accuracy), and other classes are
    grey. The noise floor is the distribution of the ECE for a calibrated model with the same confidences. The
    coloured classes with the largest absolute gaps are labelled with their names.

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


def gap_chart(
    diagnosis: Diagnosis,
    ax: Axes | None = None,
    *,
    gap_floor: ArrayLike | None = None,
    title: str | None = None,
) -> Axes:
    """Draw the gap of every class, which is confidence minus accuracy, with its interval.

    The classes are sorted by their gap and coloured by their verdict. To the right of zero, confidence
    exceeds accuracy; to the left, accuracy exceeds confidence. The intervals refer to the gap in the
    population. Classes that were never predicted are left out.

    Parameters
    ----------
    diagnosis : Diagnosis
    ax : axes to draw on; a new figure by default
    gap_floor : (K,) 95% quantiles of the absolute gap of every class under perfect calibration, optional
        They are drawn as a grey band around zero. :class:`ClassCalibrationDisplay` computes them.
    title : text above the chart
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
    if gap_floor is not None:
        floor = _check_gap_floor(gap_floor, len(diagnosis.classes))[[c.index for c in classes]]
        band: dict[str, Any] = {"color": _FLOOR_COLOUR, "linewidth": 0, "label": _GAP_FLOOR_LABEL}
        ax.barh(range(len(classes)), 2 * floor, 0.8, left=-floor, zorder=0.6, **band)
    ax.axvline(0, color=INK, linewidth=1, zorder=1)
    ax.set_ylim(-0.8, len(classes) - 0.2)
    n_never = len(diagnosis.classes) - len(classes)
    note = f"; {n_never} never predicted" if n_never else ""
    level = f"{100 * (1 - diagnosis.level):g}%"
    ax.set_xlabel(f"confidence − accuracy, with {level} interval{note}", fontsize=LARGE)
    style_axes(ax, grid="x")
    _class_ticks(ax, [c.name for c in classes], axis="y")
    _legend(ax, columns=2)
    if title is not None:
        n_entries = len(ax.get_legend_handles_labels()[1])
        ax.set_title(title, fontsize=LARGE + 1, color=INK, pad=8 + 14 * -(-n_entries // 2), loc="left")
    return ax


class ClassCalibrationDisplay:
    """Confidence minus accuracy of every class, with intervals, noise floors and verdicts.

    Use :meth:`from_estimator` or :meth:`from_predictions` to create a display. Like the displays of
    scikit-learn, it stores what it draws, so :meth:`plot` does not repeat the computation.

    The grey band of a class shows its noise floor: if the class is calibrated, its gap lies in the band with
    a probability of about 95%. Bands and intervals refer to one class alone. The verdicts, shown as colours,
    also account for the number of classes.

    Parameters
    ----------
    diagnosis : Diagnosis
        The gaps, intervals and verdicts of the classes.
    gap_floor : (K,) array, optional
        95% quantile of the absolute gap of every class under perfect calibration; nan for a class that was
        never predicted.
    name : title of the chart, optional

    Attributes
    ----------
    diagnosis, gap_floor, name : the parameters
    ax_ : matplotlib axes of the last plot
    figure_ : matplotlib figure of the last plot

    See Also
    --------
    gap_chart : Draws the chart.

    Examples
    --------
    >>> import numpy as np
    >>> y_prob = np.tile([[0.9, 0.1], [0.1, 0.9]], (200, 1))
    >>> y_true = np.where(np.arange(400) % 2, "dog", np.where(np.arange(400) % 4, "cat", "dog"))
    >>> display = ClassCalibrationDisplay.from_predictions(y_true, y_prob, class_names=["cat", "dog"])
    >>> [(c.name, round(c.signed_gap, 2), c.verdict) for c in display.diagnosis.classes]
    [('cat', 0.4, 'over-confident'), ('dog', -0.1, 'under-confident')]
    >>> display.figure_.savefig("classes.png")  # doctest: +SKIP
    """

    ax_: Axes
    figure_: Figure | SubFigure

    def __init__(
        self, diagnosis: Diagnosis, *, gap_floor: ArrayLike | None = None, name: str | None = None
    ) -> None:
        self.diagnosis = diagnosis
        self.gap_floor = gap_floor
        self.name = name

    def plot(self, ax: Axes | None = None, *, name: str | None = None) -> Self:
        """Draw the classes on `ax`, or on a new figure, and return the display.

        Parameters
        ----------
        ax : axes to draw on; a new figure by default
        name : title of the chart; by default that of the display
        """
        title = self.name if name is None else name
        self.ax_ = gap_chart(self.diagnosis, ax, gap_floor=self.gap_floor, title=title)
        self.figure_ = self.ax_.figure
        return self

    @classmethod
    def from_predictions(
        cls,
        y_true: ArrayLike,
        y_prob: Any,
        *,
        class_names: ArrayLike | None = None,
        level: float = 0.05,
        min_gap: float = 0.1,
        n_redraws: int = 200,
        rng: np.random.Generator | int = 0,
        name: str | None = None,
        ax: Axes | None = None,
    ) -> Self:
        """Compute and draw the display for probabilities of held-out rows.

        Parameters
        ----------
        y_true : (n,) true classes, as integers or class names
        y_prob : (n, K) probabilities, or (n,) probabilities of class 1 of two classes
        class_names : K names in the order of the columns, such as the ``classes_`` of an estimator
            By default the column names of a data frame, or the class numbers.
        level, min_gap, n_redraws, rng : as in :func:`hetcal.diagnose`
            The noise floors of the gaps are simulated with the same `n_redraws` and `rng`.
        name : title of the chart
        ax : axes to draw on; a new figure by default
        """
        options = {"level": level, "min_gap": min_gap, "n_redraws": n_redraws, "rng": rng}
        predictions = check_predictions(
            y_true, class_names, probs=y_prob, labels_name="y_true", probs_name="y_prob"
        )
        return cls._of(*predictions, name, options).plot(ax)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        *,
        class_names: ArrayLike | None = None,
        level: float = 0.05,
        min_gap: float = 0.1,
        n_redraws: int = 200,
        rng: np.random.Generator | int = 0,
        name: str | None = None,
        ax: Axes | None = None,
    ) -> Self:
        """Compute and draw the display for a fitted scikit-learn classifier and held-out rows.

        Parameters
        ----------
        estimator : fitted classifier with ``predict_proba`` and ``classes_``
        X : rows that the estimator was not fitted on
        y : (n,) true classes, as in ``estimator.classes_``
        class_names : K names to show instead of ``estimator.classes_``
        level, min_gap, n_redraws, rng : as in :func:`hetcal.diagnose`
            The noise floors of the gaps are simulated with the same `n_redraws` and `rng`.
        name : title of the chart; by default the name of the estimator's class
        ax : axes to draw on; a new figure by default
        """
        if isinstance(estimator, type) or not hasattr(estimator, "predict_proba"):
            raise TypeError(
                f"estimator must have predict_proba, got {estimator!r}; pass a fitted classifier, or if it "
                "has no predict_proba, wrap it in hetcal.CalibratedClassifier and fit the result"
            )
        options = {"level": level, "min_gap": min_gap, "n_redraws": n_redraws, "rng": rng}
        top, names = check_predictions(
            y, estimator.classes_, probs=estimator.predict_proba(X), labels_name="y"
        )
        if class_names is not None:
            names = check_names(class_names, len(names))
        title = type(estimator).__name__ if name is None else name
        return cls._of(top, names, title, options).plot(ax)

    @classmethod
    def _of(cls, top: TopLabel, names: Sequence[str], name: str | None, options: Mapping[str, Any]) -> Self:
        """Validate the options, and return the display of validated predictions."""
        level = check_number(options["level"], "level", above=0, below=1)
        min_gap = check_number(options["min_gap"], "min_gap", above=0, below=1)
        n_redraws = check_integer(options["n_redraws"], "n_redraws", minimum=1)
        diagnosis = diagnose_top_label(
            top, names, level=level, min_gap=min_gap, n_redraws=n_redraws, rng=as_generator(options["rng"])
        )
        # With a single bin, the ECE of a class is its absolute gap, so `floor` is the noise floor of the gap.
        rng = as_generator(options["rng"])
        floor = floor_of(top, n_bins=1, n_redraws=n_redraws, quantiles=(0.95,), rng=rng)
        return cls(diagnosis, gap_floor=floor.quantiles["class_ece"][0], name=name)


def _check_gap_floor(gap_floor: ArrayLike, n_classes: int) -> Float:
    floor = np.asarray(gap_floor, dtype=np.float64)
    if floor.shape != (n_classes,):
        raise ValueError(
            f"gap_floor must have shape ({n_classes},), one entry per class, got {floor.shape}; pass nan for "
            "classes that were never predicted"
        )
    return floor


def _check_methods(evaluations: Evaluation | Mapping[str, Evaluation]) -> Mapping[str, Evaluation]:
    methods = evaluations if isinstance(evaluations, Mapping) else {"ECE": evaluations}
    if not methods:
        raise ValueError(
            "evaluations must contain at least one Evaluation, got an empty mapping; add an Evaluation"
        )
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
                f"classes must be names or numbers of the {len(table.name)} classes, got {requested!r}; "
                "omit classes to show all predicted ones"
            )
    if not selection:
        raise ValueError(
            "classes must name at least one class, got none; omit classes to show all predicted ones"
        )
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
    """Draw a dash at the mean of the noise floor, and a line from there to its 95% quantile `top`."""
    left, right = x - 0.34 * width, x + 0.34 * width
    ax.vlines(x, floor, top, color="white", linewidth=2.6, zorder=4)
    ax.hlines(floor, left, right, color="white", linewidth=3.2, zorder=4)
    ax.vlines(x, floor, top, color=INK, linewidth=0.9, zorder=5)
    return ax.hlines(floor, left, right, color=INK, linewidth=1.6, zorder=5)


def _floor_band(ax: Axes, positions: NDArray[Any], floor: Float, top: Float) -> None:
    style: dict[str, Any] = {"color": _FLOOR_COLOUR, "linewidth": 0, "zorder": 1}
    ax.bar(positions, top - floor, 1.0, bottom=floor, label=_FLOOR_LABEL, **style)


def _legend(
    ax: Axes, *, height: float = 1.0, columns: int | None = None, floor: LineCollection | None = None
) -> None:
    """Draw the legend above the axes, where it hides nothing; the entry for the marks `floor` comes last."""
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
    """Write class names along an axis in the largest font size that fits, up to SMALL.

    Some names are skipped if space is short.
    """
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
    """Write class names next to their points, in one column for each side of the diagonal.

    The names of a column do not overlap. If a column would not fit into the axes, it is placed on the other
    side of its points.
    """
    from matplotlib import patheffects

    low, high = ax.get_xlim()
    point = (high - low) / _points_per_item(ax, "x", 1)  # 1/72 inch in data units, the same on both axes
    style: dict[str, Any] = {"fontsize": SMALL, "color": INK, "va": "center", "zorder": 6}
    style["path_effects"] = [patheffects.withStroke(linewidth=2.5, foreground="white")]
    style["arrowprops"] = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 2}
    # Names of over-confident classes (side 1) are placed to the right of the points and moved down if they
    # would overlap; those of under-confident classes (side -1) are placed to the left and moved up.
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
