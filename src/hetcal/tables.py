"""Results as tables in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from hetcal._display import display_name
from hetcal.compare import Comparison
from hetcal.diagnosis import Diagnosis, Verdict
from hetcal.metrics import Evaluation
from hetcal.stacks import behind, leading, share_text

__all__ = [
    "console",
    "progress",
    "show_comparison",
    "show_diagnosis",
    "show_evaluation",
    "show_fit",
    "show_theory",
]

_COLOURS = {Verdict.OVER_CONFIDENT: "red", Verdict.UNDER_CONFIDENT: "blue", Verdict.CONSISTENT: "green"}


def console() -> Console:
    """Terminal on standard output; wide enough for a table where output goes to a file."""
    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=130)


@contextmanager
def progress(title: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal's standard error, as a function of what is done and how much there is."""
    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=quiet or not screen.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show_comparison(result: Comparison, title: str) -> None:
    """Methods against metrics, in per cent as the paper has them, each with its noise floor."""
    table = _table(
        title,
        "Method",
        "Accuracy",
        "NLL",
        "ECE",
        "(floor)",
        "max-ECE",
        "(floor)",
        "Avg-ECE",
        "(floor)",
        "decisions changed",
    )
    for row in result.rows:
        e = row.evaluation
        cells = [f"{100 * e.accuracy:.2f}", f"{e.nll:.4f}"]
        for metric in ("ece", "max_ece", "avg_ece"):
            cells += [f"{100 * getattr(e, metric):.2f}", f"[dim]{100 * e.floor[metric]:.2f}[/]"]
        table.add_row(escape(display_name(row.name)), *cells, f"{100 * row.changed:.2f}%")
    console().print(table)


def show_evaluation(result: Evaluation, most: int = 40) -> None:
    """The whole model, then its classes, the worst first."""
    out = console()
    table = _table(
        f"{result.n} rows, {result.n_classes} classes, {result.n_bins} bins",
        "Metric",
        "Value",
        "Noise floor",
        "Excess",
    )
    for name in ("accuracy", "nll", "brier"):
        table.add_row(name, f"{getattr(result, name):.4f}", "", "")
    if result.n_zero:
        table.add_row("labels with p = 0", f"{result.n_zero:,}", "", "")
    for name in ("ece", "max_ece", "avg_ece"):
        floor = result.floor[name]
        table.add_row(
            name, f"{getattr(result, name):.4f}", f"{floor:.4f}", f"{getattr(result, name) - floor:+.4f}"
        )
    for name in ("smooth_ece", "debiased_ece"):
        table.add_row(name, f"{getattr(result, name):.4f}", "", "")
    out.print(table)
    rows = sorted(result.classes.rows(), key=lambda r: -_number(r["ece"]) + _number(r["floor"]))
    detail = _table(
        "Classes, largest excess first; floors of single classes",
        "Class",
        "Rows",
        "Accuracy",
        "Confidence",
        "Gap",
        "ECE",
        "Floor",
    )
    for r in rows[:most]:
        values = (
            f"{_number(r[key]):.3f}" for key in ("accuracy", "confidence", "signed_gap", "ece", "floor")
        )
        detail.add_row(escape(display_name(str(r["name"]))), str(r["n"]), *values)
    out.print(detail)
    _say_cut(out, len(rows), most)


def show_diagnosis(result: Diagnosis, most: int = 60) -> None:
    """A row per class with its verdict, the surest first, and the hints once."""
    out = console()
    table = _table(
        "By predicted class",
        "Class",
        "Rows",
        "Accuracy",
        "Confidence",
        "Gap",
        "95% interval",
        "ECE",
        "Floor",
        "p (adj.)",
        "Verdict",
    )
    rows = sorted(result.classes, key=lambda r: _number(r.p_adjusted))
    for r in rows[:most]:
        colour = _COLOURS.get(r.kind, "yellow")
        table.add_row(
            escape(display_name(r.name)),
            str(r.n), f"{r.accuracy:.3f}", f"{r.confidence:.3f}", f"{r.signed_gap:+.3f}",
            f"{r.gap_low:+.3f} … {r.gap_high:+.3f}", f"{r.ece:.3f}", f"{r.floor:.3f}", f"{r.p_adjusted:.2g}",
            f"[{colour}]{r.verdict}[/]",
        )  # fmt: skip
    out.print(table)
    _say_cut(out, len(rows), most)
    for verdict, hint in dict.fromkeys((r.verdict, r.hint) for r in rows if r.hint):
        out.print(f"[dim]hint, {escape(verdict)}:[/] {escape(hint)}")


def show_fit(summary: dict[str, Any]) -> None:
    """What was fitted and where it is."""
    out = console()
    if "candidates" in summary:
        table = _table("Candidates by cross-validated NLL", "Candidate", "NLL", "± to the best", "Weight")
        found = leading(summary["candidates"])
        for c in summary["candidates"]:
            numbers = (f"{c['nll']:.5f}", f"{c['error']:.5f}", share_text(c["weight"]))
            table.add_row(escape(c["name"]), *numbers, style="bold" if c in found else "")
        out.print(table)
        kept = all(c["preserves_decision"] for c in summary["candidates"] if c["weight"] > 0)
        decisions = "No decision changes." if kept else "Decisions may change."
        after = behind(summary.get("chosen", ""))
        out.print(f"Auto is the mean of their probabilities by weight{after}. {decisions}")
    out.print(
        f"wrote {summary['file']}: {summary['method']} on {summary['rows']} rows "
        f"of {summary['classes']} classes",
        markup=False,
    )


def show_theory(rows: Iterable[Any]) -> None:
    """Claims beside what holds."""
    table = _table("The paper's claims, checked", "Claim", "Promised", "Exact", "Simulated", "Holds")
    for r in rows:
        numbers = ("–" if v is None else f"{v:.4g}" for v in (r.promised, r.exact, r.simulated))
        table.add_row(escape(r.claim), *numbers, "[green]yes[/]" if r.holds else "[red]no[/]")
    console().print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 or name in ("Verdict", "Holds") else "right")
    return table


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _say_cut(out: Console, total: int, most: int) -> None:
    if total > most:
        out.print(f"[dim]{total - most} more classes; --json prints all[/]")
