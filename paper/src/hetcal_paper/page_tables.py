"""The tables of the page of the reproduction that say why numbers are what they are.

Each takes an item and returns Markdown, or nothing where there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal_paper.judging import BINS
from hetcal_paper.paper import Reproduction, reproduce_from
from hetcal_paper.paper_numbers import AVERAGES, ITEMS
from hetcal_paper.paper_rows import Point, Row, Selection, first_row, fitted, shown_classes
from hetcal_paper.paper_tables import grid, in_words
from hetcal_paper.paper_texts import ALL_CLASSES, BOTH, CHECKED, CHOICES, FLOORS, OTHER_EPOCHS, STOPPED
from hetcal_paper.results import Results
from hetcal_paper.runs import Run, parse, usual

__all__ = ["all_classes", "both", "checked", "choices", "floors", "other_epochs"]


def other_epochs(item: Reproduction) -> str:
    """Confidence and accuracy at the last epoch, and with other weight decays."""
    selection = item.selection
    if selection is None or item.name != "fig2":
        return ""
    lines = [line for point in selection.present for line in _epochs_of(selection, point)]
    head = ["Rows", "Weight decay", "Epoch kept", "seeds", "Confidence", "Accuracy", "Confidence − accuracy"]
    return f"{OTHER_EPOCHS}\n\n{grid([*head, 'paper'], lines)}"


def _epochs_of(selection: Selection, point: Point) -> list[list[str]]:
    """Lines of one point: the epoch that stands for it, the last one, and what other decays give."""
    results = selection.results
    paper = AVERAGES[selection.name].get(point.rate("size"))
    printed = "–" if paper is None else f"{100 * (paper[0] - paper[1]):+.1f}"
    to_the_end = [run for run in point.runs if not _ended(results, run)]
    cases = [(selection.choice, list(point.runs)), ("last", to_the_end)]
    for decay in sorted({parse(name).weight_decay for name in results.runs} - {point.run.weight_decay}):
        wanted = replace(point.run, weight_decay=decay)
        same = [name for name in results.runs if replace(parse(name), seed=0) == wanted]
        cases.append((wanted.choice, [name for name in same if wanted.choice in results.choices(name)]))
    lines = []
    for choice, runs in cases:
        if runs:
            values = [
                [results.value(r, m, choice=choice)[0] for r in runs] for m in ("confidence", "accuracy")
            ]
            sure, right = (100 * float(np.mean(column)) for column in values)
            words = [f"{100 * point.rate('size'):g}%", f"{parse(runs[0]).weight_decay:g}"]
            words += ["last" if choice == "last" else "as above", str(len(runs))]
            lines.append([*words, f"{sure:.1f}", f"{right:.1f}", f"{sure - right:+.1f}", printed])
    return lines


def all_classes(item: Reproduction) -> str:
    """In how many of all classes a method has the lower ECE, where the figure shows some of them."""
    selection = item.selection
    if selection is None or selection.kind != "classes":
        return ""
    (point,) = selection.present
    bins, choice = BINS[-1], selection.choice
    tables = {
        method: [selection.results.classes(run, method, bins, choice) for run in point.runs]
        for method in fitted(selection, point)
    }
    ece = {method: np.mean([table.ece for table in found], axis=0) for method, found in tables.items()}
    counts = np.mean([table.n for table in tables["Uncal"]], axis=0)
    if len(counts) <= len(shown_classes(item.name)):
        return ""
    better = [(m, other) for other in ("Uncal", "TS") for m in ("VS", "CTS", "Auto") if m in ece]
    middle, names = len(counts) // 2, ITEMS[item.name]
    lines = []
    for label, part in ((names.low, slice(None, middle)), (names.high, slice(middle, None))):
        wins = [str(_lower(ece[m][part], ece[other][part])) for m, other in better]
        lines.append([label, str(len(counts[part])), f"{np.median(counts[part]):.0f}", *wins])
    head = ["Half", "classes", "test rows a class", *(f"{m} below {other}" for m, other in better)]
    return f"{ALL_CLASSES.format(bins=bins)}\n\n{grid(head, lines)}"


def _lower(these: NDArray[np.float64], those: NDArray[np.float64]) -> int:
    """In how many classes the first is lower; a class that is never predicted has no ECE and no vote."""
    return int(np.sum(these < those))


def _in_full(results: Results, run: Run) -> list[str]:
    """Names of the runs with the same training rows and the usual recipe, if this one has another."""
    wanted = usual(run)
    same = [name for name in results.runs if replace(parse(name), seed=run.seed) == wanted]
    return [] if wanted == run else same


def checked(item: Reproduction) -> str:
    """Points of another recipe beside those of the usual one, where both were trained."""
    if item.selection is None:
        return ""
    results, lines = item.selection.results, []
    for point in item.selection.present:
        full = _in_full(results, point.run)
        for recipe, runs in (("this", point.runs), ("usual", full)) if full else ():
            rate = f"{100 * point.rate(item.selection.kind):g}%"
            numbers = _means(results, runs, parse(runs[0]).choice, ("ece", "max_ece"))
            lines.append([rate, recipe, str(len(runs)), *numbers])
    if not lines:
        return ""
    low, high = ITEMS[item.name].low, ITEMS[item.name].high
    head = [
        "Rate",
        "Recipe",
        "seeds",
        "accuracy",
        low,
        high,
        "ECE Uncal",
        "TS",
        "CTS",
        "max-ECE Uncal",
        "TS",
        "CTS",
    ]
    return f"{CHECKED.format(bins=BINS[-1])}\n\n{grid(head, lines)}"


def choices(item: Reproduction) -> str:
    """Confidence − accuracy and ECE of the same runs at other epochs."""
    if item.selection is None:
        return ""
    results, (point,) = item.selection.results, item.selection.present
    known = [_trained(results, run) for run in point.runs]
    shared = [choice for choice in CHOICES if all(choice in epochs for epochs in known)]
    names = ITEMS[item.name]
    head = ["Epoch kept", "number", "accuracy", names.low, names.high, "ECE Uncal", "TS", "CTS"]
    lines = []
    for choice in shared:
        rows = reproduce_from(results, item.name, choice=choice).rows
        epochs = [of_run[choice] for of_run in known]
        number = f"{min(epochs)}" if len(set(epochs)) == 1 else f"{min(epochs)} to {max(epochs)}"
        accuracy = first_row(rows, method="Uncal", metric="accuracy", half=None)
        gaps = [_gap(rows, half) for half in ("low", "high")]
        errors = [first_row(rows, method=m, metric="ece", bins=BINS[-1]) for m in ("Uncal", "TS", "CTS")]
        lines.append([CHOICES[choice], number, in_words(accuracy), *gaps, *map(in_words, errors)])
    note = f"{names.low.capitalize()} and {names.high}: confidence − accuracy in points, with its interval."
    ended = [run for run in point.runs if _ended(results, run)]
    more = STOPPED.format(n=len(ended), of=len(point.runs)) if ended else ""
    return f"{grid(head, lines)}\n\n{note} ECE at {BINS[-1]} bins.{more}"


def _ended(results: Results, run: str) -> bool:
    """Whether training was ended when patience was, so that later epochs are not known."""
    return results.choices(run)["last"] < int(results.runs[run]["epochs"])


def _trained(results: Results, run: str) -> dict[str, int]:
    """Epoch by choice, without those that a run that was ended early cannot tell."""
    epochs = results.choices(run)
    if not _ended(results, run):
        return epochs
    last = parse(run).phase(epochs["last"])[0]
    return {c: e for c, e in epochs.items() if c not in ("best", "last", f"phase{last}")}


def both(item: Reproduction) -> str:
    """An early epoch beside the best of all, on runs of other weight decays that were trained to the end."""
    if item.selection is None:
        return ""
    results, (point,) = item.selection.results, item.selection.present
    names = [
        name
        for name in results.runs
        if replace(parse(name), seed=0, weight_decay=point.run.weight_decay) == point.run
        and name not in point.runs
        and {"phase2", "best"} <= results.choices(name).keys()
        and not _ended(results, name)
    ]
    lines = [
        [
            f"{parse(name).weight_decay:g}",
            CHOICES[choice].split(" (")[0],
            str(results.choices(name)[choice]),
            *_means(results, [name], choice),
        ]
        for name in names
        for choice in ("phase2", "best")
    ]
    if not lines:
        return ""
    low, high = ITEMS[item.name].low, ITEMS[item.name].high
    head = ["Weight decay", "Epoch kept", "number", "accuracy", low, high, "ECE Uncal", "TS", "CTS"]
    return f"{BOTH}\n\n{grid(head, lines)}"


def _means(
    results: Results, runs: Sequence[str], choice: str, metrics: Sequence[str] = ("ece",)
) -> list[str]:
    """Means over runs in per cent: accuracy, confidence − accuracy by half, errors of three methods."""

    def mean(metric: str, **key: Any) -> float:
        return 100 * float(np.mean([results.value(run, metric, choice=choice, **key)[0] for run in runs]))

    errors = [
        mean(metric, method=method, bins=BINS[-1]) for metric in metrics for method in ("Uncal", "TS", "CTS")
    ]
    gaps = [f"{mean('gap', half=half):+.1f}" for half in ("low", "high")]
    return [f"{mean('accuracy'):.2f}", *gaps, *(f"{error:.2f}" for error in errors)]


def _gap(rows: Sequence[Row], half: str) -> str:
    row = first_row(rows, metric="gap", half=half)
    if row is None:
        return "–"
    ends = "" if row["low"] is None else f" ({100 * row['low']:+.1f} to {100 * row['high']:+.1f})"
    return f"{100 * row['mean']:+.1f}{ends}"


def floors(item: Reproduction) -> str:
    """Say how much of a table's max-ECE chance alone makes."""
    if item.selection is None:
        return ""
    (point,) = item.selection.present
    table = item.selection.results.classes(point.runs[0], "CTS", BINS[0], item.choice)
    found = [
        first_row(item.rows, method="CTS", metric=m, bins=BINS[0], half=None) for m in ("max_ece", "ece")
    ]
    worst, whole = (row or {} for row in found)
    return FLOORS.format(
        name=item.name,
        rows=round(float(np.nanmean(table.n_true))),
        bins=BINS[0],
        floor=100 * worst["floor"],
        share=100 * worst["floor"] / worst["mean"],
        value=100 * worst["mean"],
        paper=100 * worst["paper"],
        ece_floor=100 * whole["floor"],
        ece=100 * whole["mean"],
    )
