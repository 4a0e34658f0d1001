"""Numbers to plain words: the sentences that the page and the Markdown share."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping

from hetcal._display import display_name
from hetcal.diagnosis import CONSISTENT, OVER, TOO_FEW, UNDER
from hetcal.report.data import ReportData
from hetcal.stacks import behind, count_text, share_text

__all__ = [
    "caveats",
    "commands",
    "headline",
    "helps",
    "lead",
    "mend",
    "number",
    "percent",
    "settling",
    "signed",
    "suggestions",
]

_DEMO = ("cifar10-noisy", 15, 0)  # the example, bins and seed of hetcal demo
_NOISE = "Label noise in training can do this: a model that learned from wrong labels hedges on right ones."
_SCARCE = "Few training samples can do this: a model fits the little it has seen too well."
# Kind of verdict -> what is said of one class, of many, and why
_CAUSES = {
    UNDER: ("is right more often than it claims.", "are right more often than they claim.", _NOISE),
    OVER: ("claims more than it keeps.", "claim more than they keep.", _SCARCE),
}


def percent(value: float | None, digits: int = 1) -> str:
    """``0.0123`` as ``1.2%``; a dash for what is not a number."""
    return "–" if value is None or math.isnan(value) else f"{100 * value:.{digits}f}%"


def signed(value: float | None, digits: int = 1) -> str:
    """Percentage points with their sign, and a true minus."""
    if value is None or math.isnan(value):
        return "–"
    rounded = round(100 * value, digits)
    return f"{rounded:+.{digits}f}".replace("-", "−") if rounded else f"{0:.{digits}f}"


def number(value: float | None, digits: int = 3) -> str:
    """Plain number, or a dash."""
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def headline(data: ReportData) -> str:
    """Verdict in one line."""
    if data.overall.low > 0:
        return "The model is more confident than it is right."
    if data.overall.high < 0:
        return "The model is right more often than it says."
    if data.n_wrong:
        return "Right on average, wrong class by class."
    if data.before.ece > data.before.floor_q95["ece"]:
        return "Right on average, but not at every level of confidence."
    return "No miscalibration that these rows can show."


def lead(data: ReportData) -> list[str]:
    """Verdict in sentences: the whole model, its classes, the clearest case among them."""
    o = data.overall
    first = (
        f"It is right on {percent(o.accuracy)} of {data.settings.n_judged:,} rows and claims "
        f"{percent(o.confidence)} on average, a gap of {signed(o.gap)} points."
    )
    return [first, _classes(data), *_clearest(data)]


def helps(data: ReportData) -> bool:
    """Whether the recommended calibrator lowers ECE, and likelihood does not speak for the model as it is."""
    return data.after.ece < data.before.ece and not _best_as_it_is(data)


def mend(data: ReportData) -> str:
    """What the recommended calibrator is and does, in a few sentences."""
    before, after, s = data.before, data.after, data.settings
    if _best_as_it_is(data):
        return (
            "By cross-validated likelihood no calibrator does better than the model as it is, nor does their "
            f"mean on the rows judged: NLL {number(before.nll)} before, {number(after.nll)} after. "
            "Keep the model as it is."
        )
    rows = "fitted on four fifths of the rows in turn" if s.cross_fitted else f"fitted on {s.n_fit:,} rows"
    still = data.diagnosis_after.summary[OVER] + data.diagnosis_after.summary[UNDER]
    chance = f"where chance alone gives {percent(after.floor['ece'])}"
    it = "the mean" if len(data.members) > 1 else "it"
    if after.ece >= before.ece:
        return (
            f"By cross-validated likelihood the best is {_recommended(data)} But, {rows}, {it} does not "
            f"lower ECE: {percent(before.ece)} before, {percent(after.ece)} after, {chance}. "
            "Keep the model as it is until there are more rows."
        )
    return (
        f"Recommended: {_recommended(data)} {it.capitalize()} was {rows} and brings ECE from "
        f"{percent(before.ece)} to {percent(after.ece)}, {chance}, and the number of classes that are off "
        f"from {data.n_wrong:,} to {still:,}. {_decisions(data)}"
    )


def suggestions(data: ReportData) -> list[tuple[str, list[int]]]:
    """Sentences on what the data suggest about training, each with its classes, the largest gap first."""
    out = []
    for kind, (one, many, cause) in _CAUSES.items():
        found = [c for c in data.diagnosis.classes if c.kind == kind]
        if found:
            head = f"One class {one}" if len(found) == 1 else f"{len(found):,} classes {many}"
            found.sort(key=lambda c: -abs(c.signed_gap))
            out.append((f"{head} {cause}", [c.index for c in found]))
    return out


def caveats(data: ReportData) -> list[str]:
    """Why a suggestion is no finding."""
    hints = (
        "These are hints from theory, not findings: capacity, regularisation, augmentation and a shift "
        "between training and these rows move confidence as well."
    )
    confused = "Classes are predicted classes. Noise in one class can show in those it is confused with."
    return [hints, confused, _counted(data)]


def settling(data: ReportData) -> list[str]:
    """How many more rows would settle the undecided classes."""
    s = data.settling
    gap = f"{100 * data.diagnosis.min_gap:g} points"
    if not s.undecided:
        return [f"No class is undecided: each has enough rows to show a gap of {gap}, or shows one already."]
    many = "class has" if s.undecided == 1 else "classes have"
    out = [f"{s.undecided:,} of {len(data.names):,} {many} too few rows to rule out a gap of {gap}."]
    if s.rows and s.undecided - s.unseen > 1:
        out.append(f"With rows drawn like these, about {_steps(s.rows)}.")
    elif s.rows:
        out.append(f"With rows drawn like these, about {s.rows['all']:,} more would settle it.")
    if s.rows:
        out.append(
            "Rows picked because the model predicts those classes do it with far fewer; see the table."
        )
    if s.unseen:
        are, them = ("is", "it") if s.unseen == 1 else ("are", "them")
        out.append(f"{s.unseen:,} {are} never predicted here, so that nothing can be said of {them}.")
    return out


def commands(data: ReportData) -> list[str]:
    """Commands that reproduce the page and go on from it."""
    s = data.settings
    if s.embedded:
        name = s.source.removesuffix(".npz")
        again = f'hetcal.make_report(hetcal.load_example("{name}"), n_bins={s.n_bins}, rng={s.seed})'
        return ["hetcal demo"] if (name, s.n_bins, s.seed) == _DEMO else [again]
    if not s.from_file:
        return [f"hetcal.make_report(logits, labels, n_bins={s.n_bins}, rng={s.seed})"]
    name = shlex.quote(s.source)
    again = " ".join(["hetcal report", name, f"--bins {s.n_bins}", *s.options, "-o report.html"])
    if s.seed:  # the command line has one seed
        again = f"hetcal.make_report(hetcal.load_logits({s.source!r}), n_bins={s.n_bins}, rng={s.seed})"
    return [
        again,
        f"hetcal fit {name} --method auto -o calibrator.json",
        f"hetcal evaluate {name} --calibrator calibrator.json --bins {s.n_bins}",
    ]


def _best_as_it_is(data: ReportData) -> bool:
    """Whether the uncalibrated model beats every candidate in cross-validation and their mean when judged."""
    best = min(data.candidates, key=lambda c: float(c["nll"]))
    return best["name"] == "Identity" and data.after.nll >= data.before.nll


def _recommended(data: ReportData) -> str:
    """The recommended calibrator and its heaviest member, as the end of a sentence."""
    first, *others = data.members
    heaviest = first["meaning"] or first["name"]
    if not others:
        return f"{heaviest}."
    mean = f"a mean of {count_text(len(data.members))} calibrators, weighted by cross-validated likelihood"
    return f"{mean}{behind(data.chosen)}. The heaviest, at {share_text(first['weight'])}, is {heaviest}."


def _decisions(data: ReportData) -> str:
    changed = data.methods[-1].changed
    if changed:
        return f"It changes {percent(changed)} of the decisions."
    if len(data.members) > 1 and all(c["preserves_decision"] for c in data.members):
        return "Neither the mean nor any of its members changes a decision."
    return "It changes no decision."


def _steps(rows: Mapping[str, int]) -> str:
    """Further rows and what they settle; of equal numbers only what is settled last is said."""
    shares = {rows["half"]: "half", rows["most"]: "nine in ten", rows["all"]: "all"}
    (first, share), *rest = shares.items()
    steps = [f"{first:,} more would settle {share} of them", *(f"{n:,} {share}" for n, share in rest)]
    return steps[0] if not rest else f"{', '.join(steps[:-1])}, and {steps[-1]}"


def _classes(data: ReportData) -> str:
    total, counts = len(data.names), data.counts
    few = f"{counts[TOO_FEW]:,} {'has' if counts[TOO_FEW] == 1 else 'have'} too few rows to tell"
    if not data.n_wrong:
        return "No class is off by more than chance explains" + (f"; {few}." if counts[TOO_FEW] else ".")
    numbers = {kind: counts[kind] for kind in (UNDER, OVER) if counts[kind]}
    wrong = " and ".join(f"{n:,} {'is' if n == 1 else 'are'} {kind}" for kind, n in numbers.items())
    rest = [f"{counts[CONSISTENT]:,} may be calibrated"] if counts[CONSISTENT] else []
    rest += [few] if counts[TOO_FEW] else []
    tail = f"; {' and '.join(rest)}" if rest else ""
    return f"Of its {total:,} classes, {wrong}, more than chance explains{tail}."


def _clearest(data: ReportData) -> list[str]:
    clearest = data.clearest
    if clearest is None:
        return []
    rows = f"right in {percent(clearest.accuracy)} of its {clearest.n:,} rows at a mean confidence of"
    name = display_name(data.labels[clearest.index])
    return [f"The clearest case is {name}: {rows} {percent(clearest.confidence)}."]


def _counted(data: ReportData) -> str:
    """Whether the classes with few training rows are the over-confident ones."""
    if data.training is None:
        return "Training counts were not given; with --train-counts the page sets the gaps against them."
    rho, p = data.training.correlation, data.training.p_value
    if math.isnan(rho):
        return "Training counts and gaps do not vary enough over the classes to be compared."
    said = f"Over the classes, training rows and gap have a rank correlation of {rho:.2f}".replace("-", "−")
    if p > data.diagnosis.level:
        return f"{said} (p = {p:.2g}), no more than chance explains."
    if rho < 0:
        return f"{said} (p = {p:.1g}): the smaller classes claim more, as few training samples would have it."
    return f"{said} (p = {p:.1g}): the larger classes claim more, which few training samples do not explain."
