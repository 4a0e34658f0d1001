"""Notes on single tables and figures: why ours may differ, with the numbers that support it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hetcal_paper.judging import BINS
from hetcal_paper.page_claims import join_words
from hetcal_paper.paper import Reproduction
from hetcal_paper.paper_numbers import AVERAGES, ITEMS
from hetcal_paper.paper_rows import Point, Selection, all_class_names
from hetcal_paper.paper_texts import CHOICES, DRAWN, EXAMPLE, SAMPLES, SHARES, VS_BY_CLASS
from hetcal_paper.runs import parse

__all__ = ["notes"]

_HALVES = ("low", "high")
_LITTLE = 0.02  # one temperature has little to correct below this confidence − accuracy


def notes(item: Reproduction) -> str:
    """Return the notes on an item, empty where there are none."""
    parts = [_NOTES[item.name](item.selection)] if item.name in _NOTES else []
    by = {claim.classes_by: claim.holds for claim in item.claims}
    if by.get("predicted") and not by.get("true"):
        parts.append(VS_BY_CLASS)
    return "\n\n".join(part for part in parts if part)


def _weight_decay(selection: Selection | None) -> str:
    """Confidence − accuracy of single seeds and with other weight decays, beside the paper's."""
    if selection is None:
        return ""
    (point,) = selection.present
    names, results = ITEMS[selection.name], selection.results
    under = sum(results.value(r, "gap", half="low", choice=selection.choice)[0] < 0 for r in point.runs)
    told = [f"{_gaps(selection, point)} with {point.run.weight_decay:g}"]
    for name in _other_decays(selection, point):
        low, high = (100 * results.value(name, "gap", half=half, choice="phase2")[0] for half in _HALVES)
        told.append(f"{low:+.1f} and {high:+.1f} with {parse(name).weight_decay:g}")
    paper = [100 * (sure - right) for sure, right in (AVERAGES["fig3"][half] for half in _HALVES)]
    text = (
        f"The network is under-confident on the {names.low} with {under} of {len(point.runs)} seeds. How "
        "far depends on the weight decay, which the paper does not give: confidence − accuracy of the "
        f"{names.low} and the {names.high} is {join_words(told)}; in the paper it is {paper[0]:+.1f} and "
        f"{paper[1]:+.1f}."
    )
    if len(told) == 1:
        return text
    return (
        f"{text} Other weight decays are single runs at the {CHOICES['phase2']} (see [the choice of the "
        "epoch](training.md#the-choice-of-the-epoch))."
    )


def _gaps(selection: Selection, point: Point) -> str:
    means = [
        100
        * np.mean([selection.results.value(r, "gap", half=h, choice=selection.choice)[0] for r in point.runs])
        for h in _HALVES
    ]
    return f"{means[0]:+.1f} and {means[1]:+.1f}"


def _other_decays(selection: Selection, point: Point) -> list[str]:
    """Runs of the same training with other weight decays, those with the smallest seed."""
    results = selection.results
    first: dict[float, str] = {}
    for name in sorted(results.runs, key=lambda name: parse(name).seed):
        run = parse(name)
        same = replace(run, seed=0, weight_decay=point.run.weight_decay) == point.run
        other = run.weight_decay != point.run.weight_decay
        if same and other and "phase2" in results.choices(name):
            first.setdefault(run.weight_decay, name)
    return [first[decay] for decay in sorted(first)]


def _whole_gap(selection: Selection | None) -> str:
    """Confidence − accuracy over all classes, which is all that one temperature can correct."""
    if selection is None:
        return ""
    (point,) = selection.present
    gaps = [selection.results.value(run, "gap", choice=selection.choice)[0] for run in point.runs]
    mean = float(np.mean(gaps))
    if abs(mean) >= _LITTLE:
        return ""
    return (
        f"Over all classes confidence − accuracy is {100 * mean:+.1f} points, so that one temperature has "
        "little to correct."
    )


def _class_floors(selection: Selection | None) -> str:
    """How much of the ECE of a class is its noise floor."""
    if selection is None:
        return ""
    (point,) = selection.present
    tables = [selection.results.classes(run, "CTS", BINS[-1], selection.choice) for run in point.runs]
    names, middle = ITEMS[selection.name], len(tables[0].n) // 2
    parts = []
    for label, part in ((names.low, slice(None, middle)), (names.high, slice(middle, None))):
        floor, ece = (sum(np.nansum(getattr(t, key)[part]) for t in tables) for key in ("floor", "ece"))
        parts.append(f"{100 * floor / ece:.0f}% of the ECE of the {label}")
    text = f"With CTS and {BINS[-1]} bins, the noise floor is {join_words(parts)}."
    sure = sorted({int(k) for table in tables for k in np.flatnonzero(table.floor < 1e-6)})
    if not sure:
        return text
    words = join_words([all_class_names(selection.name)[k] for k in sure])
    return (
        f"{text} CTS gives full confidence, which has no floor, to {words}: where all "
        "validation rows predicted as a class are right, the data do not bound its temperature."
    )


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


_NOTES: dict[str, Callable[[Selection | None], str]] = {
    "fig2": lambda _: SHARES,
    "fig12": lambda _: SHARES,
    "fig3": _weight_decay,
    "table1": lambda selection: _join(_weight_decay(selection), _whole_gap(selection)),
    "fig6": lambda selection: _join(DRAWN, _class_floors(selection)),
    "fig7": lambda selection: _join(DRAWN, SAMPLES, _class_floors(selection)),
    "example": lambda _: EXAMPLE,
}
