"""Draw the figures of the concept pages and of the scikit-learn page: `python docs/figures.py`."""

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
    """Draw the gap of every class: uncalibrated, with one temperature, and with one per class."""
    val, test = EXAMPLE.val, EXAMPLE.test
    calibrators = {
        "uncalibrated": hetcal.Identity(),
        "one temperature": hetcal.TemperatureScaling(),
        "one temperature per class": hetcal.ClassWiseTemperatureScaling("bayes"),
    }
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, 3, sharex=True, sharey=True)
    for ax, (title, cal) in zip(axes, calibrators.items(), strict=True):
        probs = cal.fit(val.logits, val.labels).predict_proba(test.logits)
        evaluation = hetcal.evaluate(probs, test.labels, EXAMPLE.class_names)
        gap = 100 * evaluation.classes.signed_gap
        ax.barh(evaluation.classes.name, gap, color=np.where(gap < 0, UNDER, OVER))
        ax.axvline(0, color=INK, lw=0.8)
        ax.set_title(f"{title}\nECE {evaluation.ece:.1%}, worst class {evaluation.max_ece:.1%}", fontsize=10)
        ax.set_xlabel("confidence − accuracy (points)")
        _hide_spines(ax)
    figure.axes[0].invert_yaxis()
    return figure


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
