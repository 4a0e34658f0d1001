"""Figures of the concept pages, from the embedded CIFAR-10 logits: `python docs/figures.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

import hetcal

IMAGES = Path(__file__).parent / "images"
UNDER, OVER, GREY, GREEN = "#0072b2", "#d55e00", "#888888", "#009e73"
EXAMPLE = hetcal.load_example("cifar10-noisy")


def what_ece_hides() -> Figure:
    """Gap of every class before calibration, after one temperature, and after one for every class."""
    val, test = EXAMPLE.val, EXAMPLE.test
    fits = {
        "the model as it is": hetcal.Identity(),
        "one temperature": hetcal.TemperatureScaling(),
        "one for every class": hetcal.ClassWiseTemperatureScaling("bayes"),
    }
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for ax, (title, cal) in zip(figure.subplots(1, 3, sharex=True, sharey=True), fits.items(), strict=True):
        probs = cal.fit(val.logits, val.labels).predict_proba(test.logits)
        found = hetcal.evaluate(probs, test.labels, EXAMPLE.class_names)
        gap = 100 * found.classes.signed_gap
        ax.barh(found.classes.name, gap, color=np.where(gap < 0, UNDER, OVER))
        ax.axvline(0, color="#222222", lw=0.8)
        ax.set_title(f"{title}\nECE {found.ece:.1%}, worst class {found.max_ece:.1%}", fontsize=10)
        ax.set_xlabel("confidence − accuracy, points")
        _bare(ax)
    figure.axes[0].invert_yaxis()
    return figure


def noise_floors() -> Figure:
    """ECE of a model that is perfectly calibrated, by number of rows, and the floor that foretells it."""
    probs = hetcal.Identity().fit(*_first(10)).predict_proba(EXAMPLE.test.logits)
    sizes, rng = [50, 100, 200, 500, 1000, 2000, 5000, 10_000], np.random.default_rng(0)
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    ax = figure.subplots()
    for metric, colour, name in (("max_ece", OVER, "worst class"), ("ece", UNDER, "all rows")):
        floors = []
        for n in sizes:
            some = probs[rng.permutation(len(probs))[:n]]
            floors.append(100 * hetcal.noise_floor(some, rng=1).mean[metric])
            for _ in range(8):
                labels = (some.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)  # as the model says
                seen = 100 * getattr(hetcal.metrics, metric)(some, labels)
                ax.plot(n, seen, ".", ms=4, color=colour, alpha=0.35)
        ax.plot(sizes, floors, color=colour, label=f"{name}: noise floor (line), eight draws (dots)")
    ax.set(xscale="log", xlabel="rows to judge on", ylabel="ECE of a perfect model, %", ylim=(0, None))
    ax.set_xticks(sizes, [f"{n:,}" for n in sizes])
    ax.minorticks_off()
    ax.legend(frameon=False, fontsize=9)
    _bare(ax)
    return figure


def gamma() -> Figure:
    """Temperatures of the classes as Γ grows, and what they are worth on other rows."""
    gammas = np.concatenate([[0], np.geomspace(0.02, 2, 30)])
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    paths, worth = figure.subplots(1, 2)
    alphas = np.array([_fit(g, 500).alpha_ for g in gammas])
    for k in range(10):
        paths.plot(gammas, alphas[:, k], color=UNDER if k < 5 else OVER, lw=1.2)
    paths.plot([], [], color=UNDER, label="noisy training labels")
    paths.plot([], [], color=OVER, label="clean training labels")
    paths.set(xlabel="Γ", ylabel="α of the class", title="Γ lets the classes part (5,000 rows to fit on)")
    paths.legend(frameon=False, fontsize=9)
    for rows, colour in ((500, GREEN), (5, GREY)):
        nll = [_test_nll(_fit(g, rows)) for g in gammas]
        worth.plot(gammas, nll, color=colour, label=f"fitted on {rows * 10:,} rows")
        worth.axhline(_test_nll(_fit("bayes", rows)), color=colour, ls=":", lw=1)
    worth.plot([], [], color=GREY, ls=":", lw=1, label='the same with gamma="bayes"')
    worth.set(xlabel="Γ", ylabel="NLL on 10,000 other rows", title="With few rows a wide Γ costs")
    worth.legend(frameon=False, fontsize=9)
    for ax in (paths, worth):
        ax.title.set_fontsize(10)
        _bare(ax)
    return figure


def _first(rows_a_class: int) -> tuple[Any, Any]:
    """So many validation rows of every class."""
    labels = EXAMPLE.val.labels
    at = np.concatenate([np.flatnonzero(labels == k)[:rows_a_class] for k in range(10)])
    return EXAMPLE.val.logits[at], labels[at]


def _fit(gamma_: float | str, rows_a_class: int) -> hetcal.ClassWiseTemperatureScaling:
    cal = hetcal.ClassWiseTemperatureScaling(gamma_, alpha_bounds=(0.05, 5))
    return cal.fit(*_first(rows_a_class))


def _test_nll(cal: hetcal.ClassWiseTemperatureScaling) -> float:
    return hetcal.metrics.nll(cal.predict_proba(EXAMPLE.test.logits), EXAMPLE.test.labels)


def _bare(ax: Any) -> None:
    ax.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Draw all of them into docs/images/, the same bytes every time."""
    with mpl.rc_context({"svg.hashsalt": "hetcal", "font.size": 9}):
        for name, figure in {
            "what-ece-hides": what_ece_hides(),
            "noise-floors": noise_floors(),
            "gamma": gamma(),
        }.items():
            figure.savefig(IMAGES / f"{name}.svg", metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
