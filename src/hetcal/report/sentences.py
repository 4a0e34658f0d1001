"""Sentences that the page, the Markdown and the JSON share."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from hetcal._display import display_name
from hetcal._format import number, percent, points, share
from hetcal.calibrators.auto import decision_advice
from hetcal.diagnosis import ClassDiagnosis, Verdict
from hetcal.report.data import MISCALIBRATED, Finding, ReportData, Settings
from hetcal.report.describe_auto import FINAL_STEP, count_members
from hetcal.report.residual import Deviation

__all__ = [
    "about_commands",
    "advice",
    "caveats",
    "commands",
    "explanation",
    "headline",
    "label_noise",
    "lead",
    "more_rows",
    "recommendation",
    "residual_shape",
    "suggestions",
    "summary",
    "wrong_labels",
]

# If a class is consistent although its ECE is at least this many times its noise floor, the report says why.
_LARGE_RATIO = 2
_MAX_NAMED = 2  # the headline names the miscalibrated classes if there are at most this many
#: Options of `hetcal report` that correspond to arguments of `make_report`, with names of files
_OPTIONS = {
    "class_names": "--classes names.txt",
    "train_counts": "--train-counts counts.csv",
    "groups": "--groups groups.txt",
}
_DEMO = ("cifar10-noisy", 15, 0)  # example, bins and seed of hetcal demo
_CAUSES = {
    Verdict.UNDER_CONFIDENT: "Label noise in the training data can cause this.",
    Verdict.OVER_CONFIDENT: "Too few training samples can cause this.",
}


def headline(data: ReportData) -> str:
    """Main finding in one line."""
    n_classes, undecided = len(data.names), data.settling.undecided
    if data.finding is Finding.FEW_ROWS:
        which = f"{undecided:,} of {n_classes:,} classes" if undecided < n_classes else "any class"
        is_average = data.average_kind in MISCALIBRATED
        found = f"{data.average_kind} on average" if is_average else _miscalibrated(data)
        rest = f"; {found}" if is_average or data.n_wrong else ""
        return f"{data.settings.n_judged:,} rows are too few to judge {which}{rest}."
    if data.finding is Finding.CLASSES:
        return f"{_sentence(_miscalibrated(data))}."
    if data.finding is Finding.AVERAGE:
        return f"{_sentence(data.average_kind)} on average, but no single class stands out."
    if data.finding is Finding.LEVELS:
        return "Calibrated on average, but not at every confidence level."
    have = "has" if undecided == 1 else "have"
    rest = f", but {undecided:,} of {n_classes:,} classes {have} too few rows" if undecided else ""
    return f"Nothing to fix: no miscalibration was detected{rest}."


def lead(data: ReportData) -> list[str]:
    """Sentences on the calibration error before and after calibration, and on changed decisions.

    If more than half of the classes have too few rows, an estimate of the additional rows needed comes first,
    if there is one. If the model is miscalibrated only at some confidence levels, the significant ones come
    first, if there are any.
    """
    rows, result = data.settling.rows, []
    if data.finding is Finding.FEW_ROWS and rows:
        is_all = rows["most"] == rows["all"] and not data.settling.unseen
        which = "all" if is_all else "most"
        result = [f"About {rows['most']:,} additional rows would give {which} of these classes a verdict."]
    if data.finding is Finding.LEVELS and data.deviations_before:
        result = [f"Confidence is {_describe_deviations(data.deviations_before)}."]
    return [*result, _before_and_after(data)]


def explanation(data: ReportData, c: ClassDiagnosis) -> str | None:
    """Why a class is called consistent although its ECE is at least twice its noise floor.

    None for other classes.
    """
    if c.kind is not Verdict.CONSISTENT or c.ece < _LARGE_RATIO * c.floor:
        return None
    if c.p_value <= data.diagnosis.level:
        n_tested = sum(other.n > 0 for other in data.diagnosis.classes)
        gap = f"the gap is significant for this class alone, but not among {n_tested:,} classes"
    elif c.gap_low <= 0 <= c.gap_high:
        gap = "the interval of the gap contains zero"
    else:
        gap = f"chance can explain the gap (p = {c.p_value:.2g})"
    if c.ece <= c.floor_q95:
        error = f"with only {c.n:,} rows, chance alone gives an ECE of up to {percent(c.floor_q95)}"
    elif c.ece >= _LARGE_RATIO * abs(c.signed_gap):
        error = "ECE is larger, because over- and under-confident bins cancel out in the gap"
    else:
        error = "the verdict depends on the gap, not on ECE"
    return f"{_sentence(gap)}; {error}."


def wrong_labels(data: ReportData, c: ClassDiagnosis) -> str | None:
    """How many wrong labels would explain that a class looks over-confident.

    None for classes with other verdicts, or if `data.sensitivity` is None.
    """
    if data.sensitivity is None or c.kind is not Verdict.OVER_CONFIDENT:
        return None
    return f"{data.sensitivity.describe(c.index)}."


def label_noise(data: ReportData) -> str | None:
    """What wrong labels mean for the over-confident classes, with the class of largest gap as an example.

    None if `data.sensitivity` is None.
    """
    if data.sensitivity is None:
        return None
    if not data.overconfident:
        return (
            "Wrong labels make calibrated classes look over-confident, but no class is over-confident beyond "
            "what chance explains."
        )
    worst = data.overconfident[0]
    return (
        "Wrong labels make calibrated classes look over-confident. The verdict on class "
        f"{display_name(data.labels[worst.index])}, the over-confident class with the largest gap, holds "
        f"{data.sensitivity.condition(worst.index)}, uniformly at random."
    )


def residual_shape(data: ReportData) -> str | None:
    """Where confidences still differ from accuracy after calibration; None if `data.deviations` is empty."""
    if not data.deviations:
        return None
    has_both_signs = len({deviation.gap > 0 for deviation in data.deviations}) == 2
    shape = " The errors have both signs: an S shape remains in the reliability curve." * has_both_signs
    return f"After calibration, confidence is still {_describe_deviations(data.deviations)}.{shape}"


def summary(data: ReportData) -> list[str]:
    """Sentences about the model, its classes, its most clearly miscalibrated class and wrong labels."""
    overall = data.overall
    model = (
        f"The model is correct on {percent(overall.accuracy)} of {data.settings.n_judged:,} rows, with a "
        f"mean confidence of {percent(overall.confidence)}: a gap of {points(overall.gap)} percentage points."
    )
    noise = label_noise(data)
    return [model, _classes(data), *_clearest(data), *([noise] if noise else [])]


def recommendation(data: ReportData) -> str:
    """Description of the recommended calibrator and its effect, with advice if there is any."""
    return " ".join(filter(None, (_effect(data), advice(data))))


def advice(data: ReportData) -> str | None:
    """Advice to allow changes of decisions, or None if keeping decisions is not known to be costly."""
    settings = data.settings
    has_file = settings.from_file and not settings.embedded
    option = "hetcal fit --change-decisions" if has_file else "AutoCalibrator(keep_decision=False)"
    text = decision_advice(data.decision_cost, f"use {option}")
    return None if text is None else f"{text}."


def suggestions(data: ReportData) -> list[tuple[str, list[int]]]:
    """Possible causes of miscalibration, each with the indices of its classes, largest gap first."""
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
    """Reasons why the suggested causes may be wrong, and what the numbers of training rows say about them."""
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
    """Sentences on the undecided classes and on the additional rows needed for a verdict on them."""
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

    The arguments of a Python call, and the files of a command's options, have names that the reader replaces.
    A command leaves out the title, for which it has no option.

    For a user's file, a command that fits a calibrator and one that evaluates it follow. If the file has only
    one set of rows, the calibrator is fitted on all of them and must be evaluated on another file.
    """
    settings = data.settings
    noise = "" if settings.max_noise is None else f"max_noise={settings.max_noise}, "
    passed = "".join(f"{name}={name}, " for name in settings.arguments)
    options = f"{passed}n_bins={settings.n_bins}, {noise}rng={settings.seed}"
    if settings.embedded:
        name = settings.source.removesuffix(".npz")
        if (name, settings.n_bins, settings.seed) == _DEMO and not noise and not passed:
            return ["hetcal demo"]
        return [f'hetcal.make_report(hetcal.load_example("{name}"), {options})']
    if not settings.from_file:
        scores = "logits, labels" if settings.scores == "logits" else "probs=probs, labels=labels"
        return [f"hetcal.make_report({scores}, {options})"]
    name = _file_and_options(settings.source, settings.file_arguments)
    files = [option for argument, option in _OPTIONS.items() if argument in settings.arguments]
    rate = [] if settings.max_noise is None else [f"--label-noise {settings.max_noise}"]
    report = " ".join(["hetcal report", name, f"--bins {settings.n_bins}", *files, *rate, "-o report.html"])
    if settings.seed:  # the command line always uses seed 0
        arguments = [f"{argument}={value!r}" for argument, value in settings.file_arguments.items()]
        source = f"hetcal.load_logits({', '.join([repr(settings.source), *arguments])})"
        report = f"hetcal.make_report({source}, {options})"
    other = _rows_to_evaluate(settings)
    return [
        report,
        f"hetcal fit {name} --method auto -o calibrator.json",
        f"hetcal evaluate {other} --calibrator calibrator.json --bins {settings.n_bins}",
    ]


def _rows_to_evaluate(settings: Settings) -> str:
    """The file itself if it has test rows; otherwise a placeholder for a file with other rows."""
    if not settings.cross_fitted:
        return _file_and_options(settings.source, settings.file_arguments)
    suffix = Path(settings.source).suffix
    labels = {"labels": f"new-labels{suffix}"} if "labels" in settings.file_arguments else {}
    return _file_and_options(f"new-rows{suffix}", {**settings.file_arguments, **labels})


def _file_and_options(file: str, arguments: Mapping[str, str]) -> str:
    """A file, and the options of the command line for arguments of `load_logits`."""
    options = [f"--{name.replace('_', '-')} {shlex.quote(value)}" for name, value in arguments.items()]
    return " ".join([shlex.quote(file), *options])


def about_commands(data: ReportData) -> str:
    """Introduction to the lines of `commands`, which ends with a colon."""
    if len(commands(data)) == 1:
        return "To reproduce this report:"
    source = display_name(data.settings.source)
    text = "Commands that reproduce this report, then fit and evaluate a calibrator"
    if data.settings.cross_fitted:
        return (
            f"{text}. The calibrator is fitted on all rows of {source}, so evaluate it on labelled rows that "
            "are not in this file:"
        )
    return f"{text}. It is fitted on the validation rows of {source} and evaluated on its test rows:"


def _miscalibrated(data: ReportData) -> str:
    """Over- and under-confident classes, by name if there are at most `_MAX_NAMED` of them, else counted.

    The more frequent verdict comes first.
    """
    kinds = sorted((kind for kind in MISCALIBRATED if data.counts[kind]), key=lambda kind: -data.counts[kind])
    if data.n_wrong <= _MAX_NAMED:
        return ", ".join(f"{kind} on {_names(data, kind)}" for kind in kinds)
    n_classes = len(data.names)
    if data.counts[kinds[0]] == n_classes:
        return f"{kinds[0]} on all {n_classes:,} classes"
    first, *others = (f"{kind} on {data.counts[kind]:,}" for kind in kinds)
    return ", ".join([f"{first} of {n_classes:,} classes", *others])


def _names(data: ReportData, kind: Verdict) -> str:
    names = [display_name(data.labels[c.index], 30) for c in data.by_gap if c.kind == kind]
    return f"{'class' if len(names) == 1 else 'classes'} {' and '.join(names)}"


def _before_and_after(data: ReportData) -> str:
    before, after = percent(data.before.ece), percent(data.after.ece)
    floor = f"(expected from chance alone: {percent(data.after.floor['ece'])})"
    if data.finding is Finding.NOTHING or not data.calibration_helps:
        opening = "Calibration does not help: the" if data.finding is not Finding.NOTHING else "The"
        return (
            f"{opening} calibration error (ECE) is {before} before and {after} after calibration {floor}, "
            f"which {_decisions(data)}."
        )
    fewer = f" and the number of miscalibrated classes from {data.n_wrong:,} to {data.n_wrong_after:,}"
    classes = fewer if data.n_wrong > data.n_wrong_after else ""
    return (
        f"Calibration reduces the calibration error (ECE) from {before} to {after} {floor}{classes}; it "
        f"{_decisions(data)}."
    )


def _sentence(text: str) -> str:
    """Text with its first letter in upper case."""
    return text[0].upper() + text[1:]


def _describe_deviations(deviations: Sequence[Deviation]) -> str:
    ranges = [_describe_deviation(deviation) for deviation in deviations]
    return ranges[0] if len(ranges) == 1 else f"{', '.join(ranges[:-1])} and {ranges[-1]}"


def _describe_deviation(deviation: Deviation) -> str:
    side = "high" if deviation.gap > 0 else "low"
    size = f"{100 * abs(deviation.gap):.1f} points, {deviation.n:,} rows"
    return f"too {side} between {percent(deviation.low, 0)} and {percent(deviation.high, 0)} ({size})"


def _effect(data: ReportData) -> str:
    """Effect of the recommended calibrator on the evaluated rows."""
    before, after, settings = data.before, data.after, data.settings
    if data.identity_is_best:
        return (
            "Keep the model uncalibrated. No calibrator had a better cross-validated likelihood, and their "
            f"weighted mean has an NLL of {number(after.nll)} on the evaluated rows, compared with "
            f"{number(before.nll)} without calibration."
        )
    if data.finding is Finding.NOTHING:
        return (
            f"No calibrator is needed. The best one by cross-validated likelihood is {_recommended(data)} It "
            f"has an NLL of {number(after.nll)} on the evaluated rows, compared with {number(before.nll)} "
            "without calibration."
        )
    rows = "In five-fold cross-fitting" if settings.cross_fitted else f"Fitted on {settings.n_fit:,} rows"
    floor = f"(noise floor {percent(after.floor['ece'])})"
    if after.ece >= before.ece:
        return (
            f"The calibrator with the best cross-validated likelihood is {_recommended(data)} {rows}, it "
            f"does not reduce ECE: {percent(before.ece)} before, {percent(after.ece)} after {floor}. Keep "
            "the model uncalibrated until more rows are available."
        )
    return (
        f"Recommended: {_recommended(data)} {rows}, it reduces ECE from {percent(before.ece)} to "
        f"{percent(after.ece)} {floor}. The number of miscalibrated classes is {data.n_wrong:,} before and "
        f"{data.n_wrong_after:,} after calibration. It {_decisions(data)}."
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
    """Number of classes with the verdict `kind` as text, such as "3 are over-confident"."""
    n = data.counts[kind]
    return f"{n:,} {'is' if n == 1 else 'are'} {kind}"


def _clearest(data: ReportData) -> list[str]:
    clearest = data.clearest
    if clearest is None:
        return []
    name = display_name(data.labels[clearest.index])
    accuracy, confidence = percent(clearest.accuracy), percent(clearest.confidence)
    numbers = f"accuracy {accuracy}, confidence {confidence}, {clearest.n:,} rows"
    return [f"The clearest case is class {name}: {numbers}."]


def _recommended(data: ReportData) -> str:
    """Describe the recommended calibrator, ending with a full stop.

    If several candidates have a non-negligible weight, the description names the one with the largest weight.
    """
    largest, *others = data.members
    name = largest["meaning"] or largest["name"]
    final = FINAL_STEP if data.has_final_step else ""
    if not others:
        return f"{name}{final}."
    count = count_members(data.candidates)
    mean = f"a mean of {count} calibrators, weighted to maximise the cross-validated likelihood{final}"
    return f"{mean}. The largest weight, {share(largest['weight'])}, goes to {name}."


def _decisions(data: ReportData) -> str:
    changed = data.methods[-1].changed
    return f"changes {percent(changed)} of the decisions" if changed else "changes no decision"


def _shares(rows: Mapping[str, int]) -> dict[int, str]:
    """Map each number of additional rows to the fraction of the classes that it decides, in words.

    If a number of rows decides several of these fractions, the result contains the largest.
    """
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
