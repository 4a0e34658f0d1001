"""A report as Markdown, for pull requests and logs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hetcal._display import display_name
from hetcal.diagnosis import TOO_FEW
from hetcal.report import words
from hetcal.report.data import ReportData
from hetcal.stacks import share_text

__all__ = ["to_markdown"]

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&])")
_MOST = 50  # classes in the table; the JSON has all
_HEAD = (
    "Method",
    "Accuracy",
    "NLL",
    "ECE",
    "floor",
    "max-ECE",
    "floor",
    "Avg-ECE",
    "floor",
    "Decisions changed",
)


def to_markdown(data: ReportData) -> str:
    """Verdict, comparison, classes, temperatures, hints, and how it was computed."""
    lines = [f"# {_escape(display_name(data.title, 120))}", "", f"**{words.headline(data)}**", ""]
    lines += [_escape(" ".join([*words.lead(data), words.mend(data)])), ""]
    lines += _verdict(data) + _methods(data) + _classes(data) + _groups(data)
    lines += ["## What the data suggest about training", ""]
    lines += [f"- {_escape(text)}" for text, _ in words.suggestions(data)]
    lines += [f"- {_escape(text)}" for text in words.caveats(data)] + [""]
    lines += ["## What is undecided", "", _escape(" ".join(words.settling(data))), ""]
    return "\n".join(lines + _how(data))


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    rule = "| --- |" + " ---: |" * (len(head) - 1)
    return [f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(row)} |" for row in rows), ""]


def _verdict(data: ReportData) -> list[str]:
    worst, e = data.worst, data.before
    name = f"worst class (max-ECE), {_escape(display_name(data.labels[worst.index]))}"
    rows = [
        ["accuracy", words.percent(e.accuracy), ""],
        ["ECE", words.percent(e.ece), words.percent(e.floor["ece"])],
        [name, words.percent(e.max_ece), words.percent(e.floor["max_ece"])],
    ]
    return _table(["", "Value", "Noise floor"], rows)


def _methods(data: ReportData) -> list[str]:
    rows = []
    for row in data.methods:
        e = row.evaluation
        errors = (
            words.percent(v, 2) for m in ("ece", "max_ece", "avg_ece") for v in (getattr(e, m), e.floor[m])
        )
        name = f"**{row.name}**" if row is data.methods[-1] else row.name
        rows.append(
            [name, words.percent(e.accuracy, 2), f"{e.nll:.4f}", *errors, words.percent(row.changed, 2)]
        )
    note = f"Auto is {_escape(data.methods[-1].meaning)}."
    return ["## Methods", "", *_table(_HEAD, rows), note, "", *_candidates(data)]


def _candidates(data: ReportData) -> list[str]:
    """What Auto is made of, beside what it could have been made of."""
    rows = []
    for c in data.candidates:
        mark = "**" if c in data.members else ""
        name = f"{mark}{_escape(c['name'])}{mark}"
        rows.append(
            [name, f"{mark}{share_text(c['weight'])}{mark}", f"{c['nll']:.4f}", _escape(c["meaning"])]
        )
    return _table(["Candidate", "Weight in Auto", "Cross-validated NLL", "What it is"], rows)


def _classes(data: ReportData) -> list[str]:
    head = [
        "Class",
        "Rows",
        "Accuracy",
        "Confidence",
        "Gap (points)",
        "95% interval",
        "ECE",
        "floor",
        "ECE after",
        "Verdict",
    ]
    after = data.diagnosis_after.classes
    chosen = sorted((c for c in data.diagnosis.classes if c.n), key=lambda c: -abs(c.signed_gap))
    decided = sorted(chosen, key=lambda c: c.kind == TOO_FEW)
    rows = [
        [
            _escape(display_name(data.labels[c.index])),
            f"{c.n:,}", words.percent(c.accuracy), words.percent(c.confidence),
            words.signed(c.signed_gap), f"{words.signed(c.gap_low)} to {words.signed(c.gap_high)}",
            words.percent(c.ece), words.percent(c.floor), words.percent(after[c.index].ece), c.verdict,
        ]
        for c in decided[:_MOST]
    ]  # fmt: skip
    rest = len(data.names) - len(rows)
    note = [f"{rest:,} not shown; the JSON has all classes.", ""] if rest else []
    return ["## Classes", "", *_table(head, rows), *note]


def _groups(data: ReportData) -> list[str]:
    if not data.groups:
        return []
    head = ["Group", "Rows", "Accuracy", "Confidence", "Gap (points)", "ECE", "floor", "ECE after", "floor"]
    rows = [
        [
            _escape(display_name(g.name)),
            f"{g.n:,}",
            words.percent(g.accuracy),
            words.percent(g.confidence),
            words.signed(g.signed_gap),
        ]
        + [words.percent(v) for v in (g.ece, g.floor, g.ece_after, g.floor_after)]
        for g in data.groups
    ]
    return ["## Groups", "", *_table(head, rows)]


def _how(data: ReportData) -> list[str]:
    s = data.settings
    judged = (
        "five-fold cross-fitting"
        if s.cross_fitted
        else f"fitted on {s.n_fit:,} rows, judged on {s.n_judged:,} others"
    )
    versions = ", ".join(f"{name} {version}" for name, version in s.versions.items())
    lines = ["## How it was computed", "", f"- {s.n_judged:,} rows, {len(data.names):,} classes; {judged}"]
    lines += [f"- {s.n_bins} bins of equal width, seed {s.seed}, 200 redraws for the floors", f"- {versions}"]
    lines += [f"- note: {_escape(note)}" for note in data.notes]
    return [*lines, "", *_fenced(words.commands(data)), ""]


def _fenced(lines: list[str]) -> list[str]:
    """Code within a fence that no name of a file can close."""
    longest = max((len(ticks) for line in lines for ticks in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence, *lines, fence]
