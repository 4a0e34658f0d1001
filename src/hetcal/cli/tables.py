"""Print results as Rich tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hetcal._display import display_name
from hetcal._format import share
from hetcal.compare import Comparison
from hetcal.diagnosis import ClassDiagnosis, Diagnosis, Verdict
from hetcal.metrics import Evaluation
from hetcal.report.data import FLOORED
from hetcal.report.describe_auto import FINAL_STEP, leading_candidates

__all__ = [
    "console",
    "show_candidates",
    "show_comparison",
    "show_diagnosis",
    "show_evaluation",
    "show_theory",
]

_COLOURS = {
    Verdict.OVER_CONFIDENT: "red",
    Verdict.UNDER_CONFIDENT: "blue",
    Verdict.CONSISTENT: "green",
    Verdict.TOO_FEW_ROWS: "yellow",
}
_LEFT = ("Verdict", "Holds")  # left-aligned columns, besides the first
_WIDTH = 160  # of the output if it does not go to a terminal
_COMPARISON = ("Method", "Accuracy", "NLL", "ECE", "(floor)", "max-ECE", "(floor)", "Avg-ECE", "(floor)")
# Columns of a diagnosis that are shown if there is room, the most important first. The columns of a group
# appear together.
_MORE_COLUMNS = (("95% interval",), ("Accuracy", "Confidence"), ("p (adj.)",), ("ECE", "Floor"))
_CELLS: dict[str, Callable[[ClassDiagnosis], str]] = {
    "Gap": lambda c: f"{c.signed_gap:+.3f}",
    "95% interval": lambda c: f"{c.gap_low:+.3f} … {c.gap_high:+.3f}",
    "Accuracy": lambda c: f"{c.accuracy:.3f}",
    "Confidence": lambda c: f"{c.confidence:.3f}",
    "p (adj.)": lambda c: f"{c.p_adjusted:.2g}",
    "ECE": lambda c: f"{c.ece:.3f}",
    "Floor": lambda c: f"{c.floor:.3f}",
}
_UNLIMITED = 10_000  # width at which no cell is wrapped
_CLASSES = ("Class", "Rows", "Accuracy", "Confidence", "Gap", "ECE", "Floor")


def console() -> Console:
    """Return a console on standard output; without a terminal, it is wide enough for the tables."""
    terminal = Console(highlight=False)
    return terminal if terminal.is_terminal else Console(highlight=False, width=_WIDTH)


def show_comparison(result: Comparison, title: str) -> None:
    """Print the metrics of each method and the noise floors of its calibration errors.

    All numbers except the NLL are in percent.
    """
    table = _table(title, *_COMPARISON, "Decisions changed")
    for row in result.rows:
        e = row.evaluation
        cells = [f"{100 * e.accuracy:.2f}", f"{e.nll:.4f}"]
        for metric in FLOORED:
            cells += [f"{100 * getattr(e, metric):.2f}", f"[dim]{100 * e.floor[metric]:.2f}[/]"]
        table.add_row(escape(display_name(row.name)), *cells, f"{100 * row.changed:.2f}%")
    console().print(table)


def show_evaluation(result: Evaluation, max_classes: int = 40) -> None:
    """Print the metrics of the model and of its classes, the class with the largest excess of ECE first."""
    out = console()
    title = f"{result.n} rows, {result.n_classes} classes, {result.n_bins} bins"
    table = _table(title, "Metric", "Value", "Noise floor", "Excess")
    for name in ("accuracy", "nll", "brier"):
        table.add_row(name, f"{getattr(result, name):.4f}")
    if result.n_zero:
        table.add_row("labels with p = 0", f"{result.n_zero:,}")
    for name in FLOORED:
        value, floor = getattr(result, name), result.floor[name]
        table.add_row(name, f"{value:.4f}", f"{floor:.4f}", f"{value - floor:+.4f}")
    for name in ("smooth_ece", "debiased_ece"):
        table.add_row(name, f"{getattr(result, name):.4f}")
    out.print(table)
    rows = sorted(result.classes.rows(), key=lambda row: row["floor"] - row["ece"] if row["n"] else math.inf)
    classes = _table("By predicted class, largest excess of ECE over its floor first", *_CLASSES)
    for row in rows[:max_classes]:
        keys = ("accuracy", "confidence", "signed_gap", "ece", "floor")
        values = (f"{row[key]:.3f}" if row["n"] else "" for key in keys)
        classes.add_row(escape(display_name(str(row["name"]))), str(row["n"]), *values)
    out.print(classes)
    _note_hidden(out, len(rows) - max_classes)


def show_diagnosis(result: Diagnosis, max_classes: int = 60) -> None:
    """Print the verdicts on the classes, smallest p-value first, and the hints.

    The class, its verdict, its gap and its rows are always shown, the other columns if there is room.
    """
    out = console()
    classes = sorted(result.classes, key=lambda c: c.p_adjusted if c.n else math.inf)
    n_groups, table = len(_MORE_COLUMNS), _diagnosis_table(classes[:max_classes], len(_MORE_COLUMNS))
    while n_groups and out.measure(table, options=out.options.update_width(_UNLIMITED)).maximum > out.width:
        n_groups -= 1
        table = _diagnosis_table(classes[:max_classes], n_groups)
    out.print(table)
    hidden = [name for group in _MORE_COLUMNS[n_groups:] for name in group]
    if hidden:
        out.print(f"[dim]In a wider terminal, the table also shows: {', '.join(hidden)}[/]")
    _note_hidden(out, len(classes) - max_classes)
    for verdict, hint in dict.fromkeys((c.verdict, c.hint) for c in classes if c.hint):
        out.print(f"[dim]Hint ({escape(verdict)}):[/] {escape(hint)}")


def show_candidates(candidates: Sequence[Mapping[str, Any]], *, final_step: bool) -> None:
    """Print the candidates of an AutoCalibrator, with those that have a non-negligible weight in bold."""
    out = console()
    table = _table(
        "Candidates and their cross-validated NLL",
        "Candidate",
        "NLL",
        "s.e. of difference from best",
        "Weight",
    )
    leading = leading_candidates(candidates)
    for c in candidates:
        numbers = (f"{c['nll']:.5f}", f"{c['error']:.5f}", share(c["weight"]))
        table.add_row(escape(c["name"]), *numbers, style="bold" if c in leading else "")
    out.print(table)
    preserved = all(c["preserves_decision"] for c in candidates if c["weight"] > 0)
    decisions = "No decision changes." if preserved else "Decisions may change."
    out.print(f"Auto is their weighted mean{FINAL_STEP if final_step else ''}. {decisions}")


def show_theory(rows: Iterable[Any]) -> None:
    """Print the promised, exact and simulated value of each claim of the paper."""
    table = _table("Claims of the paper", "Claim", "Promised", "Exact", "Simulated", "Holds")
    for row in rows:
        numbers = ("–" if v is None else f"{v:.4g}" for v in (row.promised, row.exact, row.simulated))
        table.add_row(escape(row.claim), *numbers, "[green]yes[/]" if row.holds else "[red]no[/]")
    console().print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 or name in _LEFT else "right")
    return table


def _diagnosis_table(classes: Sequence[ClassDiagnosis], n_groups: int) -> Table:
    """Table of the diagnosis with the first `n_groups` groups of `_MORE_COLUMNS`."""
    columns = [name for group in _MORE_COLUMNS[:n_groups] for name in group]
    table = _table("By predicted class", "Class", "Verdict", "Gap", "Rows", *columns)
    for column in table.columns[1:]:
        column.no_wrap = True  # if even the first columns do not fit, class names are wrapped
    for c in classes:
        verdict = f"[{_COLOURS[c.kind]}]{c.verdict}[/]"
        gap, *numbers = (_CELLS[name](c) if c.n else "" for name in ("Gap", *columns))
        table.add_row(escape(display_name(c.name)), verdict, gap, f"{c.n:,}", *numbers)
    return table


def _note_hidden(out: Console, n_hidden: int) -> None:
    if n_hidden > 0:
        out.print(f"[dim]{n_hidden} more classes; use --json to print all[/]")
