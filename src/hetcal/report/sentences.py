"""Sentences that the page, the Markdown and the JSON share."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping

from hetcal._display import display_name
from hetcal._format import count_word, number, percent, points, share
from hetcal.calibrators.auto import decision_advice
from hetcal.diagnosis import Verdict
from hetcal.report.data import MISCALIBRATED, ReportData
from hetcal.report.describe_auto import FINAL_STEP

__all__ = [
    "advice",
    "caveats",
    "commands",
    "headline",
    "more_rows",
    "recommendation",
    "suggestions",
    "summary",
]

_DEMO = ("cifar10-noisy", 15, 0)  # example, bins and seed of hetcal demo
_CAUSES = {
    Verdict.UNDER_CONFIDENT: "Label noise in the training data can cause this.",
    Verdict.OVER_CONFIDENT: "Too few training samples can cause this.",
}


def headline(data: ReportData) -> str:
    """Overall result in one line."""
    if data.overall.low > 0:
        return "The model is over-confident."
    if data.overall.high < 0:
        return "The model is under-confident."
    if data.n_wrong:
        return "The model is calibrated on average, but not for every class."
    if data.before.ece > data.before.floor_q95["ece"]:
        return "The model is calibrated on average, but not at every confidence level."
    return "No miscalibration was detected."


def summary(data: ReportData) -> list[str]:
    """Sentences about the whole model, its classes and its most clearly miscalibrated class."""
    overall = data.overall
    model = (
        f"The model is correct on {percent(overall.accuracy)} of {data.settings.n_judged:,} rows, with a "
        f"mean confidence of {percent(overall.confidence)}: a gap of {points(overall.gap)} percentage points."
    )
    return [model, _classes(data), *_clearest(data)]


def recommendation(data: ReportData) -> str:
    """Description of the recommended calibrator and its effect, with advice if there is any."""
    return " ".join(filter(None, (_effect(data), advice(data))))


def advice(data: ReportData) -> str | None:
    """Advice to allow changes of decisions if keeping them is costly, or None."""
    settings = data.settings
    has_file = settings.from_file and not settings.embedded
    option = "hetcal fit --change-decisions" if has_file else "AutoCalibrator(keep_decision=False)"
    text = decision_advice(data.decision_cost, f"use {option}")
    return None if text is None else f"{text}."


def suggestions(data: ReportData) -> list[tuple[str, list[int]]]:
    """Possible causes of miscalibration, each with the classes it applies to, largest gap first."""
    result = []
    for kind, cause in _CAUSES.items():
        classes = sorted(
            (c for c in data.diagnosis.classes if c.kind == kind), key=lambda c: -abs(c.signed_gap)
        )
        if classes:
            subject = "One class is" if len(classes) == 1 else f"{len(classes):,} classes are"
            result.append((f"{subject} {kind}. {cause}", [c.index for c in classes]))
    return result


def caveats(data: ReportData) -> list[str]:
    """Limits of the suggestions."""
    hints = (
        "These are hints from theory, not findings. Model capacity, regularisation, data augmentation and "
        "distribution shift also affect confidence."
    )
    predicted = (
        "Rows are grouped by predicted class, so label noise in one class can also show up in the classes it "
        "is confused with."
    )
    return [hints, predicted, _training_counts(data)]


def more_rows(data: ReportData) -> list[str]:
    """Number of additional rows needed for a verdict on the undecided classes."""
    settling = data.settling
    gap = f"{100 * data.diagnosis.min_gap:g} percentage points"
    if not settling.undecided:
        return [f"Every class has a verdict: a significant gap, or enough rows to detect a gap of {gap}."]
    have = "class has" if settling.undecided == 1 else "classes have"
    result = [
        f"{settling.undecided:,} of {len(data.names):,} {have} too few rows to rule out a gap of {gap}."
    ]
    if settling.rows:
        is_single = settling.undecided - settling.unseen == 1
        shares = {settling.rows["all"]: "it"} if is_single else _shares(settling.rows)
        result.append(f"About {_steps(shares)}.")
        result.append("Far fewer rows suffice if all of them are predicted as these classes.")
    if settling.unseen:
        are, them = ("is", "it") if settling.unseen == 1 else ("are", "them")
        result.append(
            f"{settling.unseen:,} {are} never predicted in these rows, so no estimate is possible for {them}."
        )
    return result


def commands(data: ReportData) -> list[str]:
    """Command or Python call that reproduces the report.

    For a user's file, commands that fit and evaluate a calibrator follow.
    """
    settings = data.settings
    options = f"n_bins={settings.n_bins}, rng={settings.seed}"
    if settings.embedded:
        name = settings.source.removesuffix(".npz")
        if (name, settings.n_bins, settings.seed) == _DEMO:
            return ["hetcal demo"]
        return [f'hetcal.make_report(hetcal.load_example("{name}"), {options})']
    if not settings.from_file:
        return [f"hetcal.make_report(logits, labels, {options})"]
    columns = [
        f"--{argument.replace('_', '-')} {shlex.quote(column)}"
        for argument, column in settings.named_columns.items()
    ]
    name = " ".join([shlex.quote(settings.source), *columns])
    report = " ".join(
        ["hetcal report", name, f"--bins {settings.n_bins}", *settings.options, "-o report.html"]
    )
    if settings.seed:  # the command line always uses seed 0
        arguments = [f"{argument}={column!r}" for argument, column in settings.named_columns.items()]
        source = f"hetcal.load_logits({', '.join([repr(settings.source), *arguments])})"
        report = f"hetcal.make_report({source}, {options})"
    return [
        report,
        f"hetcal fit {name} --method auto -o calibrator.json",
        f"hetcal evaluate {name} --calibrator calibrator.json --bins {settings.n_bins}",
    ]


def _effect(data: ReportData) -> str:
    """Effect of the recommended calibrator on the evaluated rows."""
    before, after, settings = data.before, data.after, data.settings
    if data.identity_is_best:
        return (
            "Keep the model uncalibrated. No calibrator had a better cross-validated likelihood, and their "
            f"weighted mean has an NLL of {number(after.nll)} on the evaluated rows, compared with "
            f"{number(before.nll)} without calibration."
        )
    rows = "In five-fold cross-fitting" if settings.cross_fitted else f"Fitted on {settings.n_fit:,} rows"
    floor = f"(noise floor {percent(after.floor['ece'])})"
    if after.ece >= before.ece:
        return (
            f"The calibrator with the best cross-validated likelihood is {_recommended(data)} {rows}, it "
            f"does not reduce ECE: {percent(before.ece)} before, {percent(after.ece)} after {floor}. Keep "
            "the model uncalibrated until more rows are available."
        )
    n_wrong_after = sum(data.diagnosis_after.summary[kind] for kind in MISCALIBRATED)
    return (
        f"Recommended: {_recommended(data)} {rows}, it reduces ECE from {percent(before.ece)} to "
        f"{percent(after.ece)} {floor}. The number of miscalibrated classes is {data.n_wrong:,} before and "
        f"{n_wrong_after:,} after calibration. {_decisions(data)}"
    )


def _classes(data: ReportData) -> str:
    undecided = data.counts[Verdict.TOO_FEW_ROWS]
    too_few = f"{undecided:,} {'has' if undecided == 1 else 'have'} too few rows to decide"
    if not data.n_wrong:
        rest = f"; {too_few}" if undecided else ""
        return f"No class is miscalibrated beyond what chance explains{rest}."
    wrong = " and ".join(_count_classes(data, kind) for kind in _CAUSES if data.counts[kind])
    consistent = [_count_classes(data, Verdict.CONSISTENT)] if data.counts[Verdict.CONSISTENT] else []
    others = [*consistent, *([too_few] if undecided else [])]
    rest = f"; {' and '.join(others)}" if others else ""
    return f"Of {len(data.names):,} classes, {wrong} beyond what chance explains{rest}."


def _count_classes(data: ReportData, kind: Verdict) -> str:
    """Number of classes with a verdict, such as "3 are over-confident"."""
    n = data.counts[kind]
    return f"{n:,} {'is' if n == 1 else 'are'} {kind}"


def _clearest(data: ReportData) -> list[str]:
    clearest = data.clearest
    if clearest is None:
        return []
    name = display_name(data.labels[clearest.index])
    accuracy, confidence = percent(clearest.accuracy), percent(clearest.confidence)
    return [
        f"The clearest case is {name}: accuracy {accuracy}, confidence {confidence}, {clearest.n:,} rows."
    ]


def _recommended(data: ReportData) -> str:
    """Recommended calibrator and, for a mean, the name of its largest member; ends with a full stop."""
    largest, *others = data.members
    name = largest["meaning"] or largest["name"]
    final = FINAL_STEP if data.has_final_step else ""
    if not others:
        return f"{name}{final}."
    count = count_word(sum(c["weight"] > 0 for c in data.candidates))
    mean = f"a mean of {count} calibrators, weighted to maximise the cross-validated likelihood{final}"
    return f"{mean}. The largest weight, {share(largest['weight'])}, goes to {name}."


def _decisions(data: ReportData) -> str:
    changed = data.methods[-1].changed
    return f"It changes {percent(changed)} of the decisions." if changed else "It changes no decision."


def _shares(rows: Mapping[str, int]) -> dict[int, str]:
    """Fraction of the classes that each number of rows decides; for equal numbers, the largest fraction."""
    return {rows["half"]: "half of them", rows["most"]: "nine in ten", rows["all"]: "all"}


def _steps(shares: Mapping[int, str]) -> str:
    (first, name), *rest = shares.items()
    start = f"{first:,} additional rows from the same distribution would decide {name}"
    steps = [start, *(f"{n:,} would decide {name}" for n, name in rest)]
    return start if not rest else f"{', '.join(steps[:-1])} and {steps[-1]}"


def _training_counts(data: ReportData) -> str:
    """Relation between training rows and gaps: theory predicts that rare classes are over-confident."""
    if data.training is None:
        return (
            "No training counts were passed. Pass them as --train-counts, or as train_counts in Python, to "
            "compare them with the gaps."
        )
    rho, p = data.training.correlation, data.training.p_value
    if math.isnan(rho):
        return "The training counts or the gaps do not vary enough to be compared."
    text = f"Training rows and gaps have a rank correlation of {rho:.2f} over the classes".replace("-", "−")
    if p > data.diagnosis.level:
        return f"{text} (p = {p:.2g}), which chance can explain."
    if rho < 0:
        return f"{text} (p = {p:.1g}): classes with fewer training rows have larger gaps, as theory predicts."
    return f"{text} (p = {p:.1g}): classes with more training rows have larger gaps, contrary to theory."
