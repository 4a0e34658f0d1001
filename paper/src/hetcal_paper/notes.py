"""Notes on the tables and figures: which claims of the paper fail, by how much, and for what likely reason.

Where a note depends on our results, its numbers are computed from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hetcal_paper.claims import Claim, Comparison, paired_difference
from hetcal_paper.evaluate_run import BINS
from hetcal_paper.figures import drawn_methods
from hetcal_paper.intervals import SeedInterval, seed_interval
from hetcal_paper.published import AVERAGES, ITEMS
from hetcal_paper.reproduction import Reproduction, reproduce_from
from hetcal_paper.results import REEVALUATE, read_results
from hetcal_paper.rows import (
    METHODS,
    Point,
    Selection,
    all_class_names,
    class_names,
    evaluated,
    first_row,
    fitted,
    shown_classes,
)
from hetcal_paper.runs import parse
from hetcal_paper.tables import METRIC_NAMES, NONE, join_words, markdown_table, percent
from hetcal_paper.training_page import EPOCHS, differing_settings, stopped_early

__all__ = ["count_claims", "failed_claims", "likely_reason", "notes", "summarise_claims", "validation_rows"]

_SWEEPS = ("noise", "size")
_HALVES = ("low", "high")
_FEW_ROWS = 100  # with at most this many validation rows per class, class-wise temperatures are uncertain
_SMALL_GAP = 0.02  # if |confidence − accuracy| is smaller, a single temperature has little to correct


def count_claims(item: Reproduction) -> str:
    """Return the number of claims that hold, such as ``6 of 7``, or a dash if no claims are counted."""
    if item.uses_default_recipe or not item.claims:
        return NONE
    return f"{sum(claim.holds for claim in item.claims)} of {len(item.claims)}"


def summarise_claims(item: Reproduction) -> str:
    """Return a sentence that says on which claims our results agree with the paper and on which they differ.

    If the claims cannot be checked or are not counted, the sentence says why.
    """
    if item.uses_default_recipe:
        return "The claims are not counted, because runs with the default recipe replace the missing runs."
    if not item.claims:
        return "The available runs are not sufficient to check the claims."
    agree = [claim.topic for claim in item.claims if claim.holds]
    differ = [f"{claim.topic}{_where_it_fails(item.name, claim)}" for claim in item.claims if not claim.holds]
    parts = [f"agrees on {join_words(agree)}"] if agree else []
    parts += [f"differs on {join_words(differ)}"] if differ else []
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def failed_claims(item: Reproduction) -> str:
    """Return the section on the claims that do not hold.

    It is empty if all claims hold, or if runs with the default recipe replace those of the table or figure.
    """
    failed = [claim for claim in item.claims if not claim.holds]
    if item.uses_default_recipe or not failed:
        return ""
    lines = "\n".join(f"- {_statement(item, claim)}" for claim in failed)
    parts = ["## Claims that do not hold", lines, likely_reason(item)]
    return "\n\n".join(part for part in parts if part)


def likely_reason(item: Reproduction) -> str:
    """Explain why CTS is not better than TS at some rates of a sweep, if the results support an explanation.

    A sweep is a figure with several noise or sampling rates. A rate fails if a claim does not hold there.
    There are two possible explanations. The first is that TS leaves little error to correct. It is given for
    the failing rates at which TS leaves less error than at every rate that does not fail. The second is that
    max-ECE is noisy; :func:`_noisy_maximum` selects the rates for which it is given.
    """
    selection = item.selection
    if selection is None or selection.kind not in _SWEEPS:
        return ""
    failures = [failure for claim in item.claims for failure in claim.failures]
    failing = sorted({failure.rate for failure in failures if failure.rate is not None})
    checked = {point.rate(selection.kind) for point in selection.present}
    checked -= {0.0} if selection.kind == "noise" else set()  # the claims are about rates above 0
    holding = sorted(checked - set(failing))
    if not failing or not holding:
        return ""
    parts = [
        _little_to_correct(selection, failing, holding),
        _noisy_maximum(item, selection, failures, holding),
    ]
    return " ".join(part for part in parts if part)


def notes(item: Reproduction) -> str:
    """Return the section of notes on a table or figure; empty if there are none."""
    parts = [
        _omitted_methods(item),
        _settings(item),
        _first_trainings(item),
        _missing_methods(item),
        _other_epochs(item),
        _all_classes(item),
        _NOTES[item.name](item.selection) if item.name in _NOTES else "",
        _errors_by_class(item),
    ]
    text = "\n\n".join(part for part in parts if part)
    return f"## Notes\n\n{text}" if text else ""


def _little_to_correct(selection: Selection, failing: Sequence[float], holding: Sequence[float]) -> str:
    """Name the rates in ``failing`` at which TS leaves less error than at every rate in ``holding``.

    The error is the Avg-ECE of TS minus its noise floor, the value to expect of a perfectly calibrated model.
    The text is empty if there are no such rates.
    """
    remaining = {rate: _ts_excess(selection, rate) for rate in (*failing, *holding)}
    least = min(remaining[rate].mean for rate in holding)
    little = [rate for rate in failing if remaining[rate].mean < least]
    if not little:
        return ""
    first = remaining[little[0]]
    cells = join_words([f"{_points(remaining[rate], first=first)} at {percent(rate)}" for rate in little])
    rows = validation_rows(selection)
    few = f", while the temperature of a class is fitted on only {rows} validation rows on average"
    return (
        f"At {join_words([percent(rate) for rate in little])}, a likely reason is that there is little for "
        f"CTS to correct{few if rows <= _FEW_ROWS else ''}. With {BINS[0]} bins, the Avg-ECE of TS (the mean "
        f"of its ECE over the classes) exceeds its noise floor by {cells}. At the rates where all claims "
        f"hold, this excess is {100 * least:+.2f} points or more."
    )


def _ts_excess(selection: Selection, rate: float) -> SeedInterval:
    """Return by how much the Avg-ECE of TS exceeds its noise floor at a rate, as a mean over the seeds.

    The noise floor is the Avg-ECE to expect of a perfectly calibrated model with the same confidences.
    """
    (point,) = (point for point in selection.present if point.rate(selection.kind) == rate)
    pairs = [
        selection.results.value(run, "avg_ece", method="TS", bins=BINS[0], choice=selection.choice)
        for run in point.runs
    ]
    interval = seed_interval([value - floor for value, floor in pairs])
    if interval is None:
        raise ValueError(f"results must contain the Avg-ECE of TS at rate {rate:g}, got none; {REEVALUATE}")
    return interval


def _noisy_maximum(
    item: Reproduction, selection: Selection, failures: Sequence[Comparison], holding: Sequence[float]
) -> str:
    """Name the rates in ``failures`` at which max-ECE is noisier than at every rate in ``holding``.

    Noisier means that chance alone would give a higher max-ECE. Only failures in max-ECE count. A failure
    does not count if the interval of the difference between CTS and TS excludes zero, because noise does not
    explain such a difference. The text is empty if there are no such rates.
    """
    uncertain = [f for f in failures if f.metric == "max_ece" and _includes_zero(selection, f)]
    rates = sorted({f.rate for f in uncertain if f.rate is not None})
    largest = max(_floor(item, rate) for rate in holding)
    noisy = [rate for rate in rates if _floor(item, rate) > largest]
    if not noisy:
        return ""
    cells = join_words([f"{100 * _floor(item, rate):.1f} points at {percent(rate)}" for rate in noisy])
    return (
        f"At {join_words([percent(rate) for rate in noisy])}, a likely reason is that max-ECE is dominated "
        "by noise: a perfectly calibrated model with the confidences of CTS would have a max-ECE of "
        f"{cells} by chance alone, compared with {100 * largest:.1f} or less at the rates where the claims "
        f"hold ({BINS[0]} bins)."
    )


def _includes_zero(selection: Selection, comparison: Comparison) -> bool:
    """Whether the interval of a difference includes zero; True if there is no interval."""
    interval = paired_difference(selection, comparison)
    return interval is None or interval.low is None or interval.includes_zero


def _floor(item: Reproduction, rate: float) -> float:
    """Return the max-ECE that CTS would have by chance alone at a rate (the noise floor); 0 if unknown."""
    row = first_row(item.rows, method="CTS", metric="max_ece", rate=rate, bins=BINS[0], half=None)
    return 0.0 if row is None or row["floor"] is None else float(row["floor"])


@dataclass(frozen=True)
class _Measured:
    """A comparison with its interval over the seeds."""

    comparison: Comparison
    interval: SeedInterval

    @property
    def is_difference(self) -> bool:
        """Whether the comparison is a difference between two values.

        A failed claim is reported with its differences only, because its evidence already contains single
        values.
        """
        return self.comparison.other is not None or self.comparison.other_half is not None

    @property
    def label(self) -> str:
        """Name of the difference, such as ``CTS − TS in ECE``."""
        comparison, metric = self.comparison, METRIC_NAMES[self.comparison.metric]
        if comparison.other_half is not None:
            return f"The difference between the halves in {metric}"
        return f"{comparison.method} − {comparison.other} in {metric}"


def _statement(item: Reproduction, claim: Claim) -> str:
    """Return the claim, its evidence, and the intervals of the differences that contradict it, as text."""
    head = f"“{claim.text}” does not hold: {claim.evidence}"
    if item.selection is None:
        return f"{head}."
    pairs = [(failure, paired_difference(item.selection, failure)) for failure in claim.failures]
    measured = [_Measured(failure, interval) for failure, interval in pairs if interval is not None]
    n_zero = sum(entry.interval.includes_zero for entry in measured)
    differences = [entry for entry in measured if entry.is_difference]
    parts = [head]
    for label in dict.fromkeys(entry.label for entry in differences):
        cells = [
            f"{_points(entry.interval, first=differences[0].interval)}{_where(item.name, entry.comparison)}"
            for entry in differences
            if entry.label == label
        ]
        parts.append(f"{label} is {join_words(cells)}")
    if n_zero and n_zero == len(measured):
        parts.append("The interval includes zero" if n_zero == 1 else "All these intervals include zero")
    elif n_zero:
        verb = "includes" if n_zero == 1 else "include"
        parts.append(f"{n_zero} of the {len(measured)} intervals {verb} zero")
    return ". ".join(parts) + "."


def _where(name: str, comparison: Comparison) -> str:
    """Return the rate, class, half and number of bins of a comparison as text.

    Attributes that are None are left out. The number of bins is also left out if there is a class or a half.
    The halves of a difference between two halves are left out as well.
    """
    parts = []
    if comparison.rate is not None:
        parts.append(f" at {percent(comparison.rate)}")
    if comparison.label is not None:
        parts.append(f" for {class_names(name)[comparison.label]}")
    if comparison.half is not None and comparison.other_half is None:
        parts.append(f" on {getattr(ITEMS[name], comparison.half)}")
    if comparison.bins is not None and comparison.half is None and comparison.label is None:
        parts.append(f" with {comparison.bins} bins")
    return "".join(parts)


def _where_it_fails(name: str, claim: Claim) -> str:
    """Return the rates or classes for which a claim fails, in parentheses; empty if there are none."""
    rates = sorted({failure.rate for failure in claim.failures if failure.rate is not None})
    labels = sorted({failure.label for failure in claim.failures if failure.label is not None})
    if rates:
        return f" (at {join_words([percent(rate) for rate in rates])})"
    if labels:
        return f" (in {join_words([class_names(name)[label] for label in labels])})"
    return ""


def _points(interval: SeedInterval, *, first: SeedInterval) -> str:
    """Format a mean and its interval in percentage points.

    ``first`` is the first interval of the sentence. Later intervals over the same number of seeds omit the
    unit and the number of seeds.
    """
    brief = interval is not first and interval.n == first.n
    mean = f"{100 * interval.mean:+.2f}" + ("" if brief else " points")
    if interval.low is None or interval.high is None:
        return mean if brief else f"{mean} (one seed)"
    ends = f"{100 * interval.low:+.2f} to {100 * interval.high:+.2f}"
    return f"{mean} ({ends})" if brief else f"{mean} (95% interval over {interval.n} seeds: {ends})"


def validation_rows(selection: Selection) -> int:
    """Return the average number of validation rows per class in the first run, rounded down."""
    point = selection.present[0]
    return int(selection.results.runs[point.runs[0]]["n_validation"]) // point.run.n_classes


def _settings(item: Reproduction) -> str:
    """Describe the settings in which the runs differ from the default recipe; empty if there are none."""
    if item.selection is None:
        return ""
    settings = [text for point in item.selection.present for text in differing_settings(point.run)]
    if not settings:
        return ""
    return (
        "The runs behind the figure differ from [the default recipe](training.md). They use "
        f"{join_words(list(dict.fromkeys(settings)))}."
    )


def _omitted_methods(item: Reproduction) -> str:
    """Name the methods that are in the tables but not in the figure of a sweep or of individual classes."""
    kind = ITEMS[item.name].kind
    if kind not in (*_SWEEPS, "classes"):
        return ""
    drawn = drawn_methods(item.name, item.rows)
    omitted = [f"`{m}`" for m in METHODS if m not in drawn and first_row(item.rows, method=m)]
    return f"The tables also contain {join_words(omitted)}, which the figure omits." if omitted else ""


def _first_trainings(item: Reproduction) -> str:
    """State whether the claims hold with the first training of the runs that were trained twice."""
    selection = item.selection
    if selection is None or selection.results.first_trainings:
        return ""
    runs = [run for point in selection.present for run in point.runs]
    twice = [run for run in runs if run in selection.results.trained_twice]
    if not twice:
        return ""
    first = reproduce_from(read_results(selection.results.folder, first_trainings=True), item.name)
    lines = "\n".join(
        f"- “{claim.text}” {'holds' if claim.holds else 'does not hold'}: {claim.evidence}."
        for claim in first.claims
    )
    return (
        f"{len(twice)} of the {len(runs)} runs were trained twice with the same seeds. The two trainings "
        "gave different networks, because a GPU does not always add numbers in the same order. This page "
        "uses the second training. With the first training of these runs, the results for the claims of the "
        f"paper are:\n\n{lines}"
    )


def _missing_methods(item: Reproduction) -> str:
    """Name the methods that were not evaluated on all runs of a sweep, and count the runs that have them."""
    selection = item.selection
    if selection is None or selection.kind not in _SWEEPS:
        return ""
    runs = [run for point in selection.present for run in point.runs]
    groups: dict[tuple[str, ...], list[str]] = {}
    for method in METHODS:
        having = tuple(run for point in selection.present for run in evaluated(selection, point, method))
        if len(having) < len(runs):
            groups.setdefault(having, []).append(f"`{method}`")
    if not groups:
        return ""
    cells = [
        f"{join_words(methods)} {'was' if len(methods) == 1 else 'were'} evaluated on "
        f"{len(having) or 'none'} of the {len(runs)} runs"
        for having, methods in groups.items()
    ]
    lacking = [run for run in runs if not all(run in having for having in groups)]
    logits = selection.results.folder / "logits"
    n_lost = sum(not (logits / f"{run}.npz").is_file() for run in lacking)
    count, verb = (n_lost, "have no") if n_lost < len(lacking) else ("None", "has")
    lost = (
        f" {count} of the {len(lacking)} runs that lack a method {verb} stored logits. To evaluate the "
        "method, these runs must be trained again."
    )
    text = f"{'; '.join(cells)}.{lost if n_lost else ''} New runs are evaluated with all methods."
    return " ".join(filter(None, (text, _former_auto(selection))))


def _former_auto(selection: Selection) -> str:
    """Name the recorded commits of the runs of a sweep that have results of `Auto` but no stored logits."""
    logits = selection.results.folder / "logits"
    having = [run for point in selection.present for run in evaluated(selection, point, "Auto")]
    lost = [run for run in having if not (logits / f"{run}.npz").is_file()]
    commits = sorted({selection.results.runs[run]["git"][:7] for run in lost} - {""})
    if not commits:
        return ""
    count = "The" if len(lost) == len(having) else f"{len(lost)} of the"
    return (
        f"{count} {len(having)} runs with `Auto` have no stored logits either. Their `Auto` is that of "
        f"commit {join_words(commits)}, without later changes to its default candidates."
    )


def _other_epochs(item: Reproduction) -> str:
    """Return a table that adds the last epoch and other weight decays to fig2; empty for other figures."""
    selection = item.selection
    if selection is None or item.name != "fig2":
        return ""
    lines = [line for point in selection.present for line in _epoch_lines(selection, point)]
    decay = f"{selection.present[0].run.weight_decay:g}"
    others = {line[1] for line in lines} - {decay}
    variants = []
    if any(line[2] == "last" for line in lines):
        variants.append("the last epoch of the runs that were trained to the end")
    if others:
        variants.append(f"runs with {'another weight decay' if len(others) == 1 else 'other weight decays'}")
    head = ["Training rows", "Weight decay", "Epoch used", "seeds", "Confidence", "Accuracy"]
    head += ["Confidence − accuracy", "paper"]
    return (
        f"The first table uses runs with weight decay {decay}, at the epoch with the "
        f"{EPOCHS[selection.choice]}. The paper also uses the epoch with the best validation accuracy, but "
        "it does not state the weight decay. The following table repeats these results"
        f"{' and adds ' + ', and '.join(variants) if variants else ''}. The last column is the confidence − "
        f"accuracy of the paper.\n\n{markdown_table(head, lines)}"
    )


def _epoch_lines(selection: Selection, point: Point) -> list[list[str]]:
    """Return the lines of the table of :func:`_other_epochs` for one point.

    A point has one sampling rate. The first line shows its runs at the epoch that the figure uses. The second
    shows the last epoch of those runs that were not stopped early. One line follows for each other weight
    decay. Lines without runs are left out.
    """
    results = selection.results
    paper = AVERAGES[selection.name].get(point.rate("size"))
    printed = NONE if paper is None else f"{100 * (paper[0] - paper[1]):+.1f}"
    complete = [run for run in point.runs if not stopped_early(results, run)]
    cases = [(selection.choice, list(point.runs)), ("last", complete)]
    for decay in sorted({parse(name).weight_decay for name in results.runs} - {point.run.weight_decay}):
        variant = replace(point.run, weight_decay=decay)
        same = [name for name in results.runs if replace(parse(name), seed=0) == variant]
        cases.append((variant.choice, [name for name in same if variant.choice in results.choices(name)]))
    lines = []
    for choice, runs in cases:
        if runs:
            confidence, accuracy = (
                100 * float(np.mean([results.value(run, metric, choice=choice)[0] for run in runs]))
                for metric in ("confidence", "accuracy")
            )
            cells = [percent(point.rate("size")), f"{parse(runs[0]).weight_decay:g}"]
            cells += ["last" if choice == "last" else "best validation", str(len(runs))]
            cells += [f"{confidence:.1f}", f"{accuracy:.1f}", f"{confidence - accuracy:+.1f}", printed]
            lines.append(cells)
    return lines


def _all_classes(item: Reproduction) -> str:
    """Count the classes in which one method has lower ECE than another, if the figure omits classes."""
    selection = item.selection
    if selection is None or selection.kind != "classes":
        return ""
    (point,) = selection.present
    tables = {
        method: [selection.results.classes(run, method, BINS[-1], selection.choice) for run in point.runs]
        for method in fitted(selection)
    }
    ece = {method: np.mean([table.ece for table in runs], axis=0) for method, runs in tables.items()}
    counts = np.mean([table.n for table in tables["Uncal"]], axis=0)
    if len(counts) <= len(shown_classes(item.name)):
        return ""
    pairs = [
        (m, other) for other in ("Uncal", "TS") for m in METHODS if m in ece and m not in ("Uncal", "TS")
    ]
    middle, names = len(counts) // 2, ITEMS[item.name]
    lines = []
    for label, part in ((names.low, slice(None, middle)), (names.high, slice(middle, None))):
        wins = [str(_count_lower(ece[m][part], ece[other][part])) for m, other in pairs]
        lines.append([label, str(len(counts[part])), f"{np.median(counts[part]):.0f}", *wins])
    head = ["Half", "classes", "test rows per class", *(f"{m} below {other}" for m, other in pairs)]
    return (
        "The figure shows ten classes. The following table considers all classes. It counts the classes in "
        f"which one method has lower ECE than another ({BINS[-1]} bins, mean over seeds), and gives the "
        f"median number of test rows predicted as a class.\n\n{markdown_table(head, lines)}"
    )


def _count_lower(first: NDArray[np.float64], second: NDArray[np.float64]) -> int:
    """Count classes with ``first < second``. A class that is never predicted has nan and is not counted."""
    return int(np.sum(first < second))


def _weight_decay(selection: Selection | None) -> str:
    """Return a note and a table of confidence − accuracy on each half of the classes, by weight decay."""
    if selection is None:
        return ""
    (point,) = selection.present
    names, results = ITEMS[selection.name], selection.results
    gaps = {half: _gaps(selection, point, half) for half in _HALVES}
    n_under = sum(gap < 0 for gap in gaps["low"])
    cells = [f"{100 * np.mean(gaps[half]):+.1f}" for half in _HALVES]
    lines = [[f"{point.run.weight_decay:g}", str(len(point.runs)), *cells]]
    for name in _other_decays(selection, point):
        cells = [f"{100 * results.value(name, 'gap', half=h, choice='phase2')[0]:+.1f}" for h in _HALVES]
        lines.append([f"{parse(name).weight_decay:g}", "1", *cells])
    averages = (AVERAGES["fig3"][half] for half in _HALVES)
    lines.append(["paper", NONE, *(f"{100 * (conf - accuracy):+.1f}" for conf, accuracy in averages)])
    text = (
        f"Confidence − accuracy on the {names.low} is negative for {n_under} of {len(point.runs)} seeds. Its "
        "value depends on the weight decay, which the paper does not state. The following table shows it by "
        "true class, in points."
    )
    if len(lines) > 2:
        text += (
            " Runs with other weight decays are evaluated at the best epoch of the second learning-rate "
            "phase (see [the choice of the epoch](training.md#the-choice-of-the-epoch))."
        )
    return f"{text}\n\n{markdown_table(['Weight decay', 'seeds', names.low, names.high], lines)}"


def _gaps(selection: Selection, point: Point, half: str) -> list[float]:
    """Return confidence − accuracy of each run of a point on one half of the classes."""
    results, choice = selection.results, selection.choice
    return [results.value(run, "gap", half=half, choice=choice)[0] for run in point.runs]


def _other_decays(selection: Selection, point: Point) -> list[str]:
    """Return runs that differ from those of `point` only in the weight decay.

    There is one run per weight decay: among those that reached the second learning-rate phase, the one with
    the smallest seed.
    """
    results = selection.results
    first: dict[float, str] = {}
    for name in sorted(results.runs, key=lambda name: parse(name).seed):
        run = parse(name)
        same = replace(run, seed=0, weight_decay=point.run.weight_decay) == point.run
        if same and run.weight_decay != point.run.weight_decay and "phase2" in results.choices(name):
            first.setdefault(run.weight_decay, name)
    return [first[decay] for decay in sorted(first)]


def _overall_gap(selection: Selection | None) -> str:
    """State confidence − accuracy over all classes if it is so small that TS has little to correct."""
    if selection is None:
        return ""
    (point,) = selection.present
    gaps = [selection.results.value(run, "gap", choice=selection.choice)[0] for run in point.runs]
    mean = float(np.mean(gaps))
    if abs(mean) >= _SMALL_GAP:
        return ""
    return (
        f"Over all classes, confidence − accuracy is {100 * mean:+.1f} points, so a single temperature has "
        "little to correct."
    )


def _class_floors(selection: Selection | None) -> str:
    """State how much of the class-wise ECE of CTS is due to chance."""
    if selection is None:
        return ""
    (point,) = selection.present
    tables = [selection.results.classes(run, "CTS", BINS[-1], selection.choice) for run in point.runs]
    names, middle = ITEMS[selection.name], len(tables[0].n) // 2
    parts = []
    for label, part in ((names.low, slice(None, middle)), (names.high, slice(middle, None))):
        floor, ece = (sum(np.nansum(getattr(t, column)[part]) for t in tables) for column in ("floor", "ece"))
        parts.append(f"{100 * floor / ece:.0f}% of the ECE of the {label}")
    text = f"With CTS and {BINS[-1]} bins, the noise floor amounts to {join_words(parts)}."
    certain = sorted({int(k) for table in tables for k in np.flatnonzero(table.floor < 1e-6)})
    if not certain:
        return text
    classes = join_words([all_class_names(selection.name)[k] for k in certain])
    seeds = "" if len(tables) == 1 else " for at least one seed"
    return (
        f"{text} CTS predicts {classes} with a confidence of practically 1{seeds}, so the floor of "
        f"{'this class' if len(certain) == 1 else 'these classes'} is zero. This happens if the predictions "
        "of a class are correct for all validation rows: the smallest allowed temperature then fits best."
    )


def _errors_by_class(item: Reproduction) -> str:
    """Explain why VS has opposite effects on the errors by predicted and by true class, if it does."""
    claims = {claim.classes_by: claim for claim in item.claims}
    predicted, true = claims.get("predicted"), claims.get("true")
    if predicted is None or true is None:
        return ""
    is_opposite = {failure.half for failure in true.failures} == set(_HALVES)
    return _VS_BY_CLASS if predicted.holds and is_opposite else ""


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


_VS_BY_CLASS = """\
The paper does not say whether its classification error refers to the predicted or the true class. By
predicted class the claim holds: VS raises the error of the noisy classes and lowers that of the clean
classes. By true class the opposite is true. VS shifts decisions towards the noisy classes. It therefore
recognises more of their images, but also assigns more images of other classes to them. The noisy classes
gain recall and lose precision, and the clean classes gain precision and lose recall."""
_SAMPLED = (
    "The paper samples from 50,000 training rows and we sample from 45,000, so our networks are trained on "
    "about 10% fewer rows."
)
_DRAWN = (
    "The paper shows five random classes of each half without naming them. We drew five classes of each half "
    "at random and show the same ones in fig6 and fig7."
)
_SAMPLES = (
    "The paper states 23 samples for each under-sampled class in one place and 27 in another. Our "
    "under-sampled classes have 5% of 450 rows, which is 22.5, rounded up to 23."
)
_EXAMPLE = """\
No network is trained for this result. `hetcal.metrics` evaluates two classes of 100 rows each with the
accuracies and confidences of the paper. All confidences lie in one bin, (1/3, 2/3]. One of them, that of TS
in class 2, is 0.4. The confidence is the largest probability, which is at least 0.5 if there are only two
classes. So the example must show two of at least three classes."""

_NOTES: dict[str, Callable[[Selection | None], str]] = {
    "fig2": lambda _: _SAMPLED,
    "fig12": lambda _: _SAMPLED,
    "fig3": _weight_decay,
    "table1": lambda selection: f"{_weight_decay(selection)}\n\n{_overall_gap(selection)}".strip(),
    "fig6": lambda selection: _join(_DRAWN, _class_floors(selection)),
    "fig7": lambda selection: _join(_DRAWN, _SAMPLES, _class_floors(selection)),
    "example": lambda _: _EXAMPLE,
}
