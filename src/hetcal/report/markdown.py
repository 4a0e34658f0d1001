"""A report as Markdown, for pull requests and logs."""

from __future__ import annotations

from hetcal._display import display_name
from hetcal._format import number, percent, points, share
from hetcal._markdown import code_block, escape, table
from hetcal.diagnosis import Verdict
from hetcal.report import sentences
from hetcal.report.data import FLOORED, ReportData

__all__ = ["to_markdown"]

_MAX_CLASSES = 50  # classes in the table; the JSON lists all
_METHODS = ("Method", "Accuracy", "NLL", "ECE", "floor", "max-ECE", "floor", "Avg-ECE", "floor")
_CLASSES = ("Class", "Verdict", "Gap (points)", "Rows", "95% interval", "Accuracy", "Confidence")
_GROUPS = ("Group", "Rows", "Accuracy", "Confidence", "Gap (points)", "ECE", "floor", "ECE after", "floor")


def to_markdown(data: ReportData) -> str:
    """Render the summary, methods, classes, groups, possible causes and computation as Markdown."""
    text = [*sentences.summary(data), sentences.recommendation(data)]
    return "\n".join(
        [
            *(f"# {escape(display_name(data.title, 120))}", "", f"**{sentences.headline(data)}**", ""),
            *(escape(" ".join(text)), ""),
            *_overall(data),
            *_methods(data),
            *_classes(data),
            *_groups(data),
            *("## Possible causes in training", ""),
            *(f"- {escape(text)}" for text, _ in sentences.suggestions(data)),
            *(f"- {escape(text)}" for text in sentences.caveats(data)),
            *("", "## Undecided classes", "", escape(" ".join(sentences.more_rows(data))), ""),
            *_computation(data),
        ]
    )


def _overall(data: ReportData) -> list[str]:
    worst, before = data.worst, data.before
    name = f"worst class (max-ECE), {escape(display_name(data.labels[worst.index]))}"
    rows = [
        ["accuracy", percent(before.accuracy), ""],
        ["ECE", percent(before.ece), percent(before.floor["ece"])],
        [name, percent(before.max_ece), percent(before.floor["max_ece"])],
    ]
    return table(["", "Value", "Noise floor"], rows)


def _methods(data: ReportData) -> list[str]:
    rows = []
    for row in data.methods:
        e = row.evaluation
        errors = [percent(v, 2) for m in FLOORED for v in (getattr(e, m), e.floor[m])]
        name = f"**{row.name}**" if row is data.methods[-1] else row.name
        rows.append([name, percent(e.accuracy, 2), number(e.nll, 4), *errors, percent(row.changed, 2)])
    note = f"Auto is {escape(data.methods[-1].meaning)}."
    return ["## Methods", "", *table([*_METHODS, "Decisions changed"], rows), note, "", *_candidates(data)]


def _candidates(data: ReportData) -> list[str]:
    """Candidates of Auto; those with more than a negligible weight in bold."""
    rows = []
    for c in data.candidates:
        bold = "**" if c in data.members else ""
        cells = [f"{bold}{text}{bold}" for text in (escape(c["name"]), share(c["weight"]))]
        rows.append([*cells, number(c["nll"], 4), escape(c["meaning"])])
    return table(["Candidate", "Weight in Auto", "Cross-validated NLL", "Description"], rows)


def _classes(data: ReportData) -> list[str]:
    predicted = sorted((c for c in data.diagnosis.classes if c.n), key=lambda c: -abs(c.signed_gap))
    decided_first = sorted(predicted, key=lambda c: c.kind == Verdict.TOO_FEW_ROWS)
    rows = []
    for c in decided_first[:_MAX_CLASSES]:
        name = escape(display_name(data.labels[c.index]))
        gap = [points(c.signed_gap), f"{c.n:,}", f"{points(c.gap_low)} to {points(c.gap_high)}"]
        errors = (c.ece, c.floor, data.diagnosis_after.classes[c.index].ece)
        shares = [percent(value) for value in (c.accuracy, c.confidence, *errors)]
        rows.append([name, c.verdict, *gap, *shares])
    n_hidden = len(data.names) - len(rows)
    note = [f"Classes not shown: {n_hidden:,}. The JSON lists all.", ""] if n_hidden else []
    return ["## Classes", "", *table([*_CLASSES, "ECE", "floor", "ECE after"], rows), *note]


def _groups(data: ReportData) -> list[str]:
    if not data.groups:
        return []
    rows = []
    for g in data.groups:
        errors = [percent(e) for e in (g.ece, g.floor, g.ece_after, g.floor_after)]
        means = [percent(g.accuracy), percent(g.confidence), points(g.signed_gap)]
        rows.append([escape(display_name(g.name)), f"{g.n:,}", *means, *errors])
    return ["## Groups", "", *table(_GROUPS, rows)]


def _computation(data: ReportData) -> list[str]:
    s = data.settings
    fitted = "five-fold cross-fitting" if s.cross_fitted else f"fitted on {s.n_fit:,} other rows"
    versions = ", ".join(f"{name} {version}" for name, version in s.versions.items())
    return [
        *("## How it was computed", ""),
        f"- {s.n_judged:,} rows, {len(data.names):,} classes; {fitted}",
        f"- {s.n_bins} equal-width bins, seed {s.seed}, {s.n_redraws} redraws for the noise floors",
        f"- {versions}",
        *(f"- note: {escape(note)}" for note in data.notes),
        *("", *code_block(sentences.commands(data)), ""),
    ]
