"""Print results as Rich tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hetcal._format import share
from hetcal._tables import as_rich
from hetcal.compare import Comparison, comparison_tables
from hetcal.diagnosis import Diagnosis, diagnosis_tables
from hetcal.metrics import Evaluation
from hetcal.metrics.evaluation import evaluation_tables
from hetcal.report.describe_auto import FINAL_STEP, leading_candidates

__all__ = [
    "console",
    "show_candidates",
    "show_comparison",
    "show_diagnosis",
    "show_evaluation",
    "show_theory",
]

_LEFT = ("Holds",)  # left-aligned columns, besides the first
_WIDTH = 160  # characters per line if the output does not go to a terminal
_PRINT_ALL = "use --json to print all"


def console() -> Console:
    """Return a console on standard output; without a terminal, it is wide enough for the tables."""
    terminal = Console(highlight=False)
    return terminal if terminal.is_terminal else Console(highlight=False, width=_WIDTH)


def show_comparison(result: Comparison, title: str) -> None:
    """Print the metrics of each method and the noise floors of its calibration errors.

    The noise floor of a calibration error is its expected value for a perfectly calibrated model with the
    same confidences. All numbers except the NLL are in percent.
    """
    console().print(as_rich(comparison_tables(result, title)))


def show_evaluation(result: Evaluation, max_classes: int = 40) -> None:
    """Print the metrics of the model, and those of at most `max_classes` classes.

    The classes are sorted by the difference between their ECE and its noise floor, largest first. The noise
    floor is the expected ECE of a perfectly calibrated model with the same confidences.
    """
    console().print(as_rich(evaluation_tables(result, max_classes, _PRINT_ALL)))


def show_diagnosis(result: Diagnosis, max_classes: int = 60) -> None:
    """Print a table of the verdicts, smallest adjusted p-value first, and hints at possible causes.

    The columns Class, Verdict, Gap and Rows are always shown. The other columns are shown if they fit.
    """
    title = f"By predicted class{result.labels.note}"
    console().print(as_rich(diagnosis_tables(result, title, max_classes, _PRINT_ALL)))


def show_candidates(candidates: Sequence[Mapping[str, Any]], *, final_step: bool) -> None:
    """Print the candidates of an AutoCalibrator. Those with a weight of at least 2% are in bold."""
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
    """Print the claims that :mod:`hetcal.theory` checks: promised, exact and simulated value of each."""
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
