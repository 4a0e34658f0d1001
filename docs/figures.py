"""Draw the figures of the README, the concept pages and the scikit-learn page: `python docs/figures.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

import hetcal
from hetcal._palette import GREY, INK, PALETTE
from hetcal.plots import ClassCalibrationDisplay

IMAGES = Path(__file__).parent / "images"
UNDER, OVER, GREEN = PALETTE["blue"], PALETTE["vermilion"], PALETTE["green"]
EXAMPLE = hetcal.load_example("cifar10-noisy")


def what_ece_hides() -> Figure:
    """Draw the gap of every class: uncalibrated, with one temperature, and with AutoCalibrator."""
    val, test = EXAMPLE.val, EXAMPLE.test
    calibrators = {
        "Uncalibrated": hetcal.Identity(),
        "One temperature": hetcal.TemperatureScaling(),
        "hetcal": hetcal.AutoCalibrator(),
    }
    figure = Figure(figsize=(8.6, 4.2), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    axes = figure.subplots(1, 3, sharex=True, sharey=True)
    for ax, (title, cal) in zip(axes, calibrators.items(), strict=True):
        probs = cal.fit(val.logits, val.labels).predict_proba(test.logits)
        evaluation = hetcal.evaluate(probs, test.labels, EXAMPLE.class_names)
        gap = 100 * evaluation.classes.signed_gap
        _gap_bars(ax, gap)
        ax.set_title(title, fontsize=14, fontweight="bold", loc="left", pad=42)
        ax.annotate(
            f"worst class off by {np.abs(gap).max():.0f} points",
            (0, 1), (0, 26), xycoords="axes fraction", textcoords="offset points", fontsize=11, color=INK,
        )  # fmt: skip
    axes[0].set_yticks(range(10), evaluation.classes.name)
    axes[0].invert_yaxis()
    for first, text in ((0, "30% random\ntraining labels"), (5, "correct\ntraining labels")):
        axes[0].annotate(
            text, (0, first + 2), (-82, 0), xycoords=axes[0].get_yaxis_transform(), fontsize=11,
            textcoords="offset points", rotation=90, ha="center", va="center", linespacing=1.3,
        )  # fmt: skip
    figure.supxlabel("confidence − accuracy, in percentage points", fontsize=11)
    return figure


def _gap_bars(ax: Any, gap: Any) -> None:
    """Draw one horizontal bar per class, labelled with its gap."""
    ax.barh(range(len(gap)), gap, height=0.74, color=np.where(gap < 0, UNDER, OVER))
    for k, value in enumerate(gap):
        side = -1 if value < 0 else 1
        text = f"{round(value):+d}".replace("-", "−") if round(value) else "0"
        ax.annotate(
            text, (value, k), (3 * side, 0), textcoords="offset points",
            ha="right" if side < 0 else "left", va="center", fontsize=10,
        )  # fmt: skip
    ax.axvline(0, color=INK, lw=1)
    ax.axhline(4.5, color=GREY, lw=0.8, ls=(0, (4, 3)))
    ax.set_xlim(-29, 15)
    ax.set_xticks([])
    ax.tick_params(axis="y", length=0, labelsize=11)
    ax.spines[:].set_visible(False)
    for x, side, text, colour in ((-1, "right", "too unsure", UNDER), (1, "left", "too sure", OVER)):
        ax.annotate(
            text, (x, 1), (0, 6), xycoords=ax.get_xaxis_transform(), textcoords="offset points",
            ha=side, color=colour, fontsize=11, fontweight="bold",
        )  # fmt: skip


def noise_floors() -> Figure:
    """Draw the ECE of a perfectly calibrated model, and its noise floor, by number of rows."""
    probs = hetcal.Identity().fit(*_first_rows(10)).predict_proba(EXAMPLE.test.logits)
    sizes, rng = [50, 100, 200, 500, 1000, 2000, 5000, 10_000], np.random.default_rng(0)
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    ax = figure.subplots()
    for metric, colour, name in (("max_ece", OVER, "worst class"), ("ece", UNDER, "all rows")):
        floors = []
        for n in sizes:
            sample = probs[rng.permutation(len(probs))[:n]]
            floors.append(100 * hetcal.noise_floor(sample, rng=1).mean[metric])
            for _ in range(8):
                labels = (sample.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
                error = 100 * getattr(hetcal.metrics, metric)(sample, labels)
                ax.plot(n, error, ".", ms=4, color=colour, alpha=0.35)
        ax.plot(sizes, floors, color=colour, label=f"{name}: noise floor (line), eight draws (dots)")
    ax.set(
        xscale="log",
        xlabel="number of rows",
        ylabel="ECE of a perfectly calibrated model (%)",
        ylim=(0, None),
    )
    ax.set_xticks(sizes, [f"{n:,}" for n in sizes])
    ax.minorticks_off()
    ax.legend(frameon=False, fontsize=9)
    _hide_spines(ax)
    return figure


def gamma() -> Figure:
    """Draw the temperatures of the classes and the test NLL as functions of Γ."""
    gammas = np.concatenate([[0], np.geomspace(0.02, 2, 30)])
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    alphas = np.array([_fit(g, 500).alpha_ for g in gammas])
    for k in range(10):
        left.plot(gammas, alphas[:, k], color=UNDER if k < 5 else OVER, lw=1.2)
    left.plot([], [], color=UNDER, label="noisy training labels")
    left.plot([], [], color=OVER, label="clean training labels")
    left.set(xlabel="Γ", ylabel="α of the class", title="Temperatures by Γ (fitted on 5,000 rows)")
    left.legend(frameon=False, fontsize=9)
    for n_per_class, colour in ((500, GREEN), (5, GREY)):
        nll = [_test_nll(_fit(g, n_per_class)) for g in gammas]
        right.plot(gammas, nll, color=colour, label=f"fitted on {n_per_class * 10:,} rows")
        right.axhline(_test_nll(_fit("bayes", n_per_class)), color=colour, ls=":", lw=1)
    right.plot([], [], color=GREY, ls=":", lw=1, label='with gamma="bayes"')
    right.set(xlabel="Γ", ylabel="NLL on 10,000 test rows", title="With few rows, a large Γ overfits")
    right.legend(frameon=False, fontsize=9)
    for ax in (left, right):
        ax.title.set_fontsize(10)
        _hide_spines(ax)
    return figure


def class_display() -> Figure:
    """Draw the gap of every digit for the random forest of the scikit-learn page."""
    X, X_test, y, y_test = train_test_split(*load_digits(return_X_y=True), test_size=0.5, random_state=0)
    forest = RandomForestClassifier(50, random_state=0).fit(X, y)
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    ClassCalibrationDisplay.from_estimator(forest, X_test, y_test, ax=figure.subplots())
    return figure


def _first_rows(n_per_class: int) -> tuple[Any, Any]:
    """Return the first `n_per_class` validation rows of every class."""
    labels = EXAMPLE.val.labels
    rows = np.concatenate([np.flatnonzero(labels == k)[:n_per_class] for k in range(10)])
    return EXAMPLE.val.logits[rows], labels[rows]


def _fit(gamma: float | str, n_per_class: int) -> hetcal.ClassWiseTemperatureScaling:
    cal = hetcal.ClassWiseTemperatureScaling(gamma, alpha_bounds=(0.05, 5))
    return cal.fit(*_first_rows(n_per_class))


def _test_nll(cal: hetcal.ClassWiseTemperatureScaling) -> float:
    return hetcal.metrics.nll(cal.predict_proba(EXAMPLE.test.logits), EXAMPLE.test.labels)


def _hide_spines(ax: Any) -> None:
    ax.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Write all figures to docs/images/. Repeated runs give identical files."""
    with mpl.rc_context({"svg.hashsalt": "hetcal", "font.size": 9}):
        for name, figure in {
            "what-ece-hides": what_ece_hides(),
            "noise-floors": noise_floors(),
            "gamma": gamma(),
            "class-display": class_display(),
        }.items():
            figure.savefig(IMAGES / f"{name}.svg", metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
