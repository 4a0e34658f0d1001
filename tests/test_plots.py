from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.collections import PathCollection  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.text import Text  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.svm import LinearSVC  # noqa: E402

from hetcal import plots  # noqa: E402
from hetcal._numeric.probabilities import softmax  # noqa: E402
from hetcal.diagnosis import diagnose  # noqa: E402
from hetcal.metrics import Evaluation, evaluate, reliability_by_class, reliability_curve  # noqa: E402


def make(k: int, scale: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(k, size=40 * k)
    logits = rng.normal(size=(40 * k, k))
    logits[np.arange(40 * k), labels] += 3
    return scale * logits, labels


def evaluation(k: int, scale: float = 1.0) -> Evaluation:
    logits, labels = make(k, scale)
    return evaluate(softmax(logits), labels, [f"a name of class {i}" for i in range(k)], n_redraws=20)


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    before = dict(matplotlib.rcParams)
    yield
    plt.close("all")
    assert dict(matplotlib.rcParams) == before  # charts do not change global settings


def overlapping(texts: list[Text], figure: Figure) -> bool:
    """Whether neighbouring texts overlap. For rotated texts, compares the distance of their baselines."""
    texts, renderer = [t for t in texts if t.get_text()], figure.canvas.get_renderer()
    boxes = [Text.get_window_extent(t, renderer) for t in texts]  # excludes the arrow of an annotation
    if texts and texts[0].get_rotation() % 90:
        distance = (boxes[1].x1 - boxes[0].x1) * np.sin(np.radians(texts[0].get_rotation()))
        return bool(distance < texts[0].get_fontsize() * figure.dpi / 72)
    return any(a.overlaps(b) for a, b in pairwise(boxes))


# --- reliability diagram ---------------------------------------------------------------------------------


def test_bars_are_the_bins() -> None:
    logits, labels = make(10, 2.0)
    curve = reliability_curve(softmax(logits), labels)
    ax = plots.reliability_diagram(curve, title="two", legend=True)
    red, yellow, orange = ax.containers
    used = curve.count > 0
    top = np.fmax(curve.confidence, curve.accuracy)[used]
    assert [bar.get_height() for bar in orange] == pytest.approx(
        np.fmin(curve.confidence, curve.accuracy)[used]
    )
    heights = [
        r.get_height() + y.get_height() + o.get_height() for r, y, o in zip(red, yellow, orange, strict=True)
    ]
    assert heights == pytest.approx(top)
    text = ax.texts[0].get_text()
    assert f"confidence {curve.mean_confidence:.3f}" in text
    assert f"accuracy {curve.mean_accuracy:.3f}" in text
    assert f"ECE {curve.ece:.3f}" in text
    ax.figure.draw_without_rendering()


@pytest.mark.parametrize(
    ("binning", "histogram", "n_insets"), [("width", True, 1), ("width", False, 0), ("mass", True, 0)]
)
def test_diagram_on_given_axes(binning: str, histogram: bool, n_insets: int) -> None:
    logits, labels = make(10)
    curve = reliability_curve(softmax(logits), labels, binning=binning)
    _, ax = plt.subplots()
    assert plots.reliability_diagram(curve, ax, histogram=histogram, legend=False, title="t") is ax
    assert ax.get_legend() is None
    assert len(ax.child_axes) == n_insets


def test_a_class_without_rows_draws_nothing() -> None:
    curve = reliability_by_class([0.9], [1], predicted=[0])[1]
    ax = plots.reliability_diagram(curve)
    ax.figure.draw_without_rendering()
    assert [len(bars) for bars in ax.containers] == [0, 0, 0]
    assert [bar.get_height() for bar in ax.child_axes[0].patches] == [0] * 15


# --- classes and methods ---------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [10, 100])
def test_class_bars(k: int) -> None:
    result = evaluation(k)
    ax = plots.class_ece_bars(result)
    heights = [bar.get_height() for bar in ax.containers[0]]
    assert heights == pytest.approx(sorted(result.classes.ece, reverse=True))
    ax.figure.draw_without_rendering()
    assert not overlapping(ax.get_xticklabels(), ax.figure)


@pytest.mark.parametrize("k", [10, 100])  # bars, and points over a band
def test_class_bars_of_methods(k: int) -> None:
    methods = {"Uncal": evaluation(k), "TS": evaluation(k, 0.8), "CTS": evaluation(k, 0.7)}
    _, ax = plt.subplots(figsize=(9, 4))
    assert plots.class_ece_bars(methods, ax) is ax
    *labels, last = [t.get_text() for t in ax.get_legend().get_texts()]
    assert labels == list(methods)
    assert "floor" in last
    ax.figure.draw_without_rendering()
    assert not overlapping(ax.get_xticklabels(), ax.figure)


def test_class_bars_of_selected_classes() -> None:
    result = evaluation(10)
    ax = plots.class_ece_bars(result, classes=["a name of class 7", 2])
    assert [t.get_text() for t in ax.get_xticklabels()] == ["a name of class 7", "a name of class 2"]
    assert [bar.get_height() for bar in ax.containers[0]] == pytest.approx(result.classes.ece[[7, 2]])


def test_method_comparison_shows_values_and_floors() -> None:
    methods = {"Uncal": evaluation(10), "TS": evaluation(10, 0.8)}
    ax = plots.method_comparison(methods, metrics=("max_ece", "ece"))
    assert [t.get_text() for t in ax.get_xticklabels()] == ["max-ECE", "ECE"]
    for container, result in zip(ax.containers, methods.values(), strict=True):
        assert [bar.get_height() for bar in container] == pytest.approx([result.max_ece, result.ece])
    assert ax.texts[0].get_text() == f"{100 * methods['Uncal'].max_ece:.1f}"
    segments = [s for c in ax.collections for s in c.get_segments()]
    assert any(s[0][1] == s[1][1] == pytest.approx(methods["TS"].floor["ece"]) for s in segments)
    ax.figure.draw_without_rendering()


def test_small_axes_omit_the_numbers() -> None:
    _, ax = plt.subplots(figsize=(2, 2))
    plots.method_comparison({str(i): evaluation(10) for i in range(6)}, ax)
    assert not any(t.get_visible() for t in ax.texts)


@pytest.mark.parametrize(("k", "scale"), [(10, 0.3), (100, 1.0), (100, 4.0)])  # under-, over-confident
def test_class_map(k: int, scale: float) -> None:
    result = evaluation(k, scale)
    ax = plots.class_map(result, n_names=3)
    points = np.concatenate([c.get_offsets() for c in ax.collections])
    assert len(points) == k
    assert sorted(points[:, 0]) == pytest.approx(sorted(result.classes.confidence))
    assert len(ax.texts) <= 3
    ax.figure.draw_without_rendering()
    assert not overlapping(ax.texts, ax.figure)


@pytest.mark.parametrize("k", [10, 100])
def test_gap_chart(k: int) -> None:
    logits, labels = make(k, 2.0)
    result = diagnose(logits, labels, class_names=[f"class {i}" for i in range(k)], n_redraws=5)
    ax = plots.gap_chart(result)
    shown = [t.get_text() for t in ax.get_yticklabels()]
    assert shown == [c.name for c in sorted(result.classes, key=lambda c: c.signed_gap)]
    counts = [t.get_text() for t in ax.get_legend().get_texts()]
    assert counts == [f"{kind} ({count})" for kind, count in result.summary.items() if count]
    ax.figure.draw_without_rendering()
    assert not overlapping(ax.get_yticklabels(), ax.figure)


def test_gap_chart_thins_names_in_small_axes_and_counts_missing_classes() -> None:
    logits, labels = make(100)
    logits = np.c_[logits, np.full(len(logits), -40.0)]
    _, ax = plt.subplots(figsize=(3, 2))
    plots.gap_chart(diagnose(logits, labels, n_redraws=5), ax)
    assert 10 < len(ax.get_yticks()) < 60
    assert "1 never predicted" in ax.get_xlabel()


# --- display of classes ----------------------------------------------------------------------------------


def test_display_of_predictions_draws_the_diagnosis() -> None:
    logits, labels = make(10, 2.0)
    names = [f"class {i}" for i in range(10)]
    display = plots.ClassCalibrationDisplay.from_predictions(
        np.array(names)[labels], softmax(logits), class_names=names, name="a model"
    )
    expected = diagnose(probs=softmax(logits), labels=labels, class_names=names)
    assert display.diagnosis == expected
    assert display.figure_ is display.ax_.figure
    assert display.ax_.get_title("left") == "a model"
    scatters = [c for c in display.ax_.collections if isinstance(c, PathCollection)]
    points = np.concatenate([c.get_offsets() for c in scatters])
    assert sorted(points[:, 0]) == pytest.approx(sorted(c.signed_gap for c in expected.classes))
    bars = {round(bar.get_y() + 0.4): bar.get_width() / 2 for bar in display.ax_.patches}
    order = sorted(expected.classes, key=lambda c: c.signed_gap)
    assert [bars[i] for i in range(10)] == pytest.approx([display.gap_floor[c.index] for c in order])
    display.figure_.draw_without_rendering()
    legend, title = display.ax_.get_legend(), display.ax_._left_title
    assert not legend.get_window_extent().overlaps(title.get_window_extent())


def test_gap_floor_is_the_quantile_of_the_gap_under_perfect_calibration() -> None:
    # The number of correct predictions of a class is Binomial(100, 0.8): |gap| is 0.08 or less in 96.7%.
    probs = np.tile([[0.8, 0.2], [0.2, 0.8]], (100, 1))
    display = plots.ClassCalibrationDisplay.from_predictions(np.arange(200) % 2, probs, n_redraws=20_000)
    assert display.gap_floor == pytest.approx([0.08, 0.08])


def test_display_can_be_drawn_again() -> None:
    logits, labels = make(3)
    display = plots.ClassCalibrationDisplay.from_predictions(labels, softmax(logits), n_redraws=5)
    first = display.ax_
    _, ax = plt.subplots()
    assert display.plot(ax, name="again") is display
    assert display.ax_ is ax is not first
    assert ax.get_title("left") == "again"
    assert not first.get_title("left")


@pytest.mark.parametrize("classes", [["ape", "bee", "cow"], [3, 7, 9], [0, 1, 2]])
def test_display_of_an_estimator(classes: list[str] | list[int]) -> None:
    features, labels = make(3)
    y = np.array(classes)[labels]
    model = LogisticRegression().fit(features, y)
    _, ax = plt.subplots()
    display = plots.ClassCalibrationDisplay.from_estimator(model, features, y, ax=ax)
    expected = diagnose(
        probs=model.predict_proba(features), labels=labels, class_names=list(map(str, classes))
    )
    assert display.diagnosis == expected
    assert display.ax_ is ax
    assert ax.get_title("left") == "LogisticRegression"
    renamed = plots.ClassCalibrationDisplay.from_estimator(model, features, y, class_names=["x", "y", "z"])
    assert [c.name for c in renamed.diagnosis.classes] == ["x", "y", "z"]
    assert [c.ece for c in renamed.diagnosis.classes] == [c.ece for c in expected.classes]


def test_errors_of_the_display() -> None:
    features, labels = make(2)
    display = plots.ClassCalibrationDisplay
    with pytest.raises(ValueError, match=r"y_prob must .*got 1\.5"):
        display.from_predictions(labels, 1.5 * np.ones(len(labels)))
    with pytest.raises(ValueError, match=r"y_true must lie in 0\.\.1, got 2"):
        display.from_predictions(labels + 1, softmax(features))
    model = LogisticRegression().fit(features, np.array(["a", "b"])[labels])
    with pytest.raises(ValueError, match=r"y must be among class_names \(a, b\), got 'c'"):
        display.from_estimator(model, features, np.array(["a", "c"])[labels])
    with pytest.raises(TypeError, match="estimator must have predict_proba, got LinearSVC"):
        display.from_estimator(LinearSVC().fit(features, labels), features, labels)
    result = diagnose(features, labels, n_redraws=5)
    with pytest.raises(ValueError, match=r"gap_floor must have shape \(2,\)"):
        plots.gap_chart(result, gap_floor=[0.1])


# --- errors ----------------------------------------------------------------------------------------------


def test_errors() -> None:
    result = evaluation(10)
    for metrics in (["nll"], []):
        with pytest.raises(ValueError, match="metrics must"):
            plots.method_comparison({"a": result}, metrics=metrics)
    for evaluations in ({}, {"a": result, "b": evaluation(11)}):
        with pytest.raises(ValueError, match="evaluations must"):
            plots.class_ece_bars(evaluations)
    for classes in (["no such class"], [10], [-1], []):
        with pytest.raises(ValueError, match="classes must"):
            plots.class_ece_bars(result, classes=classes)


def test_missing_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"hetcal\[plot\]"):
        plots.class_map(evaluation(10))
