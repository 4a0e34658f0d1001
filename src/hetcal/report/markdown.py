"""A report as Markdown, for pull requests and logs."""

from __future__ import annotations

from hetcal._display import display_name
from hetcal._format import number, percent, points, share
from hetcal._markdown import code_block, escape, table
from hetcal.diagnosis import ClassDiagnosis
from hetcal.report import sentences
from hetcal.report.data import FLOORED, ReportData

__all__ = ["to_markdown"]

_MAX_CLASSES = 50  # maximum number of classes in the table; the JSON lists all
_METHODS = ("Method", "Accuracy", "NLL", "ECE", "floor", "max-ECE", "floor", "Avg-ECE", "floor")
_CLASSES = (
    "Class", "Verdict", "Gap (points)", "Rows", "95% interval", "Accuracy", "Confidence", "ECE", "floor",
    "ECE after",
)  # fmt: skip
_GROUPS = ("Group", "Gap (points)", "Rows", "Accuracy", "Confidence", "ECE", "floor", "ECE after", "floor")


def to_markdown(data: ReportData) -> str:
    """Return the report as Markdown; unlike the HTML page, it has no charts."""
    remedy = filter(None, (sentences.recommendation(data), sentences.residual_shape(data)))
    return "\n".join(
        [
            *(
                f"# {escape(display_name(data.title, 120))}",
                "",
                f"**{escape(sentences.headline(data))}**",
                "",
            ),
            *(escape(" ".join(sentences.lead(data))), ""),
            *_classes(data),
            *("## Summary", "", escape(" ".join(sentences.summary(data))), ""),
            *_overall(data),
            *(escape(" ".join(remedy)), ""),
            *_methods(data),
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
    """Table of the candidates of Auto, with those of non-negligible weight in bold."""
    rows = []
    for c in data.candidates:
        bold = "**" if c in data.members else ""
        cells = [f"{bold}{text}{bold}" for text in (escape(c["name"]), share(c["weight"]))]
        rows.append([*cells, number(c["nll"], 4), escape(c["meaning"])])
    return table(["Candidate", "Weight in Auto", "Cross-validated NLL", "Description"], rows)


def _classes(data: ReportData) -> list[str]:
    listed = [c for c in data.by_gap if c.n][:_MAX_CLASSES]
    rows = []
    for c in listed:
        gap = [points(c.signed_gap), f"{c.n:,}", f"{points(c.gap_low)} to {points(c.gap_high)}"]
        errors = [percent(e) for e in (c.ece, c.floor, data.diagnosis_after.classes[c.index].ece)]
        rows.append([_name(data, c), c.verdict, *gap, percent(c.accuracy), percent(c.confidence), *errors])
    n_hidden = len(data.names) - len(rows)
    notes = [f"Classes not shown: {n_hidden:,}. The JSON lists all.", ""] if n_hidden else []
    explanations = [(c, text) for c in listed if (text := sentences.explanation(data, c))]
    if explanations:
        notes += ["Classes with a large ECE that are nevertheless consistent with calibrated:", ""]
        notes += [*(f"- {_name(data, c)}: {escape(text)}" for c, text in explanations), ""]
    limits = [(c, text) for c in listed if (text := sentences.wrong_labels(data, c))]
    if limits:
        notes += ["How many wrong labels would explain the over-confidence of a class:", ""]
        notes += [*(f"- {_name(data, c)}: {escape(text)}" for c, text in limits), ""]
    return ["## Classes", "", *table(_CLASSES, rows), *notes]


def _name(data: ReportData, c: ClassDiagnosis) -> str:
    return escape(display_name(data.labels[c.index]))


def _groups(data: ReportData) -> list[str]:
    if not data.groups:
        return []
    rows = []
    for g in data.groups:
        errors = [percent(e) for e in (g.ece, g.floor, g.ece_after, g.floor_after)]
        means = [percent(g.accuracy), percent(g.confidence)]
        rows.append([escape(display_name(g.name)), points(g.signed_gap), f"{g.n:,}", *means, *errors])
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
        *("", escape(sentences.about_commands(data))),
        *("", *code_block(sentences.commands(data)), ""),
    ]
