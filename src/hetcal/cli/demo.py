"""The steps of `hetcal demo`: diagnosis, comparison, figures and report for a bundled example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hetcal import _markdown, examples, plots
from hetcal._format import number, percent
from hetcal._write import write_atomic
from hetcal.cli import tables
from hetcal.cli.progress import progress
from hetcal.compare import Comparison, compare
from hetcal.diagnosis import Diagnosis, diagnose
from hetcal.logits_files import LogitsFile
from hetcal.metrics import reliability_curve
from hetcal.report import make_report
from hetcal.report.data import FLOORED
from hetcal.report.describe_auto import describe_auto

__all__ = ["run_demo"]

_N_STEPS = 8  # steps of the progress bar: the diagnosis, five methods, the figures and the report


def run_demo(output: Path, *, quiet: bool = False) -> dict[str, Any]:
    """Run the demo, write its figures, summary and report to the folder `output`, and return the results."""
    output.mkdir(parents=True, exist_ok=True)
    example = examples.load_example("cifar10-noisy")
    test = example.judged
    with progress("running the demo", quiet=quiet) as update:
        steps = iter(range(1, _N_STEPS + 1))

        def advance(_: str = "") -> None:
            update(next(steps), _N_STEPS)

        diagnosis = diagnose(test.logits, test.labels, class_names=example.class_names)
        comparison = compare(
            example.val.logits, example.val.labels, test.logits, test.labels,
            class_names=example.class_names, on_step=advance,
        )  # fmt: skip
        advance()
        figures = _draw(example, diagnosis, comparison, output)
        advance()
        page, summary = output / "report.html", output / "summary.md"
        _write(page, make_report(example, class_names=example.class_names))
        _write(summary, _summary(example, comparison))
        advance()
    if not quiet:
        _print_results(example, diagnosis, comparison, [*figures, summary], page)
    return {
        "comparison": comparison.to_dict(),
        "candidates": comparison["Auto"].calibrator.candidates_,
        "diagnosis": diagnosis.to_dict(),
        "page": str(page),
    }


def _write(path: Path, text: str) -> None:
    write_atomic(path, lambda file: file.write(text.encode()))


def _draw(example: LogitsFile, diagnosis: Diagnosis, comparison: Comparison, output: Path) -> list[Path]:
    test = example.judged
    evaluations = comparison.evaluations()
    uncalibrated = comparison["Uncal"].calibrator.predict_proba(test.logits)
    halves = {"classes with label noise": test.labels < 5, "clean classes": test.labels >= 5}

    def reliability(axes: Sequence[Any]) -> None:
        for ax, (title, rows) in zip(axes, halves.items(), strict=True):
            curve = reliability_curve(uncalibrated, test.labels, rows=np.flatnonzero(rows))
            plots.reliability_diagram(curve, ax=ax, title=f"Uncalibrated, {title}")

    def class_ece(axes: Sequence[Any]) -> None:
        plots.class_ece_bars({name: evaluations[name] for name in ("Uncal", "TS", "CTS")}, ax=axes[0])

    figures: dict[str, tuple[int, tuple[float, float], Callable[[Sequence[Any]], object]]] = {
        "reliability.png": (2, (10, 5), reliability),
        "class-ece.png": (1, (10, 4.5), class_ece),
        "methods.png": (1, (9, 4.5), lambda axes: plots.method_comparison(evaluations, ax=axes[0])),
        "gaps.png": (1, (8, 4.5), lambda axes: plots.gap_chart(diagnosis, ax=axes[0])),
    }
    return [_save_figure(output / name, *figure) for name, figure in figures.items()]


def _save_figure(
    path: Path, n_axes: int, size: tuple[float, float], draw: Callable[[Sequence[Any]], object]
) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    draw([figure.add_subplot(1, n_axes, i + 1) for i in range(n_axes)])
    write_atomic(path, lambda file: figure.savefig(file, format=path.suffix[1:], dpi=130))
    return path


def _summary(example: LogitsFile, comparison: Comparison) -> str:
    header = ("Method", "Accuracy", "ECE", "floor", "max-ECE", "floor", "Avg-ECE", "floor", "NLL")
    rows = []
    for row in comparison.rows:
        e = row.evaluation
        errors = [percent(v, 2) for m in FLOORED for v in (getattr(e, m), e.floor[m])]
        rows.append([row.name, percent(e.accuracy, 2), *errors, number(e.nll, 4), percent(row.changed, 2)])
    table = _markdown.table([*header, "Decisions changed"], rows)
    title, text = example.about["title"], example.about["text"]
    return "\n".join([f"# {title}", "", *table, _describe(comparison), "", text, ""])


def _describe(comparison: Comparison) -> str:
    auto = comparison["Auto"]
    changed = f"{percent(auto.changed, 2)} of the decisions change" if auto.changed else "No decision changes"
    return f"Auto is {describe_auto(auto.calibrator)}. {changed}."


def _print_results(
    example: LogitsFile, diagnosis: Diagnosis, comparison: Comparison, files: list[Path], page: Path
) -> None:
    out = tables.console()
    out.print(f"[bold]{example.about['title']}[/]\n{example.about['text']}\n")
    tables.show_diagnosis(diagnosis)
    out.print()
    n_bins = comparison.rows[0].evaluation.n_bins
    tables.show_comparison(
        comparison,
        f"Fitted on {comparison.n_fit} rows, evaluated on {comparison.n_judged} rows with {n_bins} bins; "
        "all but NLL in percent",
    )
    out.print("Each floor is the error that a perfectly calibrated model is expected to have by chance.")
    out.print(_describe(comparison), markup=False)
    out.print("\nFigures and summary: " + ", ".join(map(str, files)), soft_wrap=True)
    out.print(f"[bold]Report:[/] {page.resolve()}", soft_wrap=True)
