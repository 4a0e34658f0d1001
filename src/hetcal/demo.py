"""The main job on the embedded example: what `hetcal demo` does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from hetcal import examples, plots, tables
from hetcal._write import write_atomic
from hetcal.compare import Comparison, compare
from hetcal.diagnosis import Diagnosis, diagnose
from hetcal.metrics import reliability_curve
from hetcal.report import make_report
from hetcal.stacks import describe_stack

__all__ = ["run_demo"]


def run_demo(output: Path, *, quiet: bool = False) -> dict[str, Any]:
    """Diagnose, fit, compare, draw; everything lands in the folder `output`."""
    output.mkdir(parents=True, exist_ok=True)
    example = examples.load_example("cifar10-noisy")
    test = example.judged
    with Progress(transient=True, disable=quiet) as progress:
        task = progress.add_task("diagnosing", total=8)

        def step(text: str) -> None:
            progress.update(task, advance=1, description=text)

        diagnosis = diagnose(test.logits, test.labels, class_names=example.class_names)
        comparison = compare(
            example.val.logits, example.val.labels, test.logits, test.labels,
            class_names=example.class_names, on_step=lambda name: step(f"fitting {name}"),
        )  # fmt: skip
        step("drawing")
        figures = _draw(example, diagnosis, comparison, output)
        step("writing the page")
        page = output / "report.html"
        text = make_report(example, class_names=example.class_names)
        write_atomic(page, lambda file: file.write(text.encode()))
        write_atomic(output / "summary.md", lambda file: file.write(_summary(example, comparison).encode()))
    if not quiet:
        _say(example, diagnosis, comparison, [*figures, output / "summary.md"], page)
    return {
        "comparison": comparison.to_dict(),
        "candidates": comparison["Auto"].calibrator.candidates_,
        "diagnosis": diagnosis.to_dict(),
        "page": str(page),
    }


def _draw(example: Any, diagnosis: Diagnosis, comparison: Comparison, output: Path) -> list[Path]:
    test = example.judged
    evaluations = comparison.evaluations()
    probs = {row.name: row.calibrator.predict_proba(test.logits) for row in comparison.rows}

    def reliability(axes: Any) -> None:
        noisy = np.flatnonzero(test.labels < 5)
        clean = np.flatnonzero(test.labels >= 5)
        for ax, rows, title in zip(
            axes, (noisy, clean), ("classes with label noise", "clean classes"), strict=True
        ):
            curve = reliability_curve(probs["Uncal"], test.labels, rows=rows)
            plots.reliability_diagram(curve, ax=ax, title=f"Uncalibrated, {title}")

    def classes(axes: Any) -> None:
        shown = {k: v for k, v in evaluations.items() if k in ("Uncal", "TS", "CTS")}
        plots.class_ece_bars(shown, ax=axes[0])

    drawings: dict[str, tuple[int, tuple[float, float], Callable[[Any], object]]] = {
        "reliability.png": (2, (10, 5), reliability),
        "class-ece.png": (1, (10, 4.5), classes),
        "methods.png": (1, (9, 4.5), lambda axes: plots.method_comparison(evaluations, ax=axes[0])),
        "gaps.png": (1, (8, 4.5), lambda axes: plots.gap_chart(diagnosis, ax=axes[0])),
    }
    return [_figure(output / name, *how) for name, how in drawings.items()]


def _figure(path: Path, n_axes: int, size: tuple[float, float], draw: Callable[[Any], object]) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    draw([figure.add_subplot(1, n_axes, i + 1) for i in range(n_axes)])
    write_atomic(path, lambda file: figure.savefig(file, format=path.suffix[1:], dpi=130))
    return path


def _summary(example: Any, comparison: Comparison) -> str:
    titles = (
        "Method",
        "Accuracy",
        "ECE",
        "floor",
        "max-ECE",
        "floor",
        "Avg-ECE",
        "floor",
        "NLL",
        "decisions changed",
    )
    head = "| " + " | ".join(titles) + " |"
    lines = [f"# {example.about['title']}", "", head, "|---" * 10 + "|"]
    for row in comparison.rows:
        e = row.evaluation
        pairs = " | ".join(
            f"{100 * getattr(e, m):.2f} | {100 * e.floor[m]:.2f}" for m in ("ece", "max_ece", "avg_ece")
        )
        lines.append(
            f"| {row.name} | {100 * e.accuracy:.2f} | {pairs} | {e.nll:.4f} | {100 * row.changed:.2f}% |"
        )
    return "\n".join([*lines, "", _auto(comparison), "", example.about["text"], ""])


def _auto(comparison: Comparison) -> str:
    auto = comparison["Auto"]
    decisions = "No decision changes." if not auto.changed else f"{auto.changed:.2%} of decisions change."
    made_of = describe_stack(auto.calibrator.candidates_, auto.calibrator.best_name_)
    return f"Auto is {made_of}. {decisions}"


def _say(example: Any, diagnosis: Diagnosis, comparison: Comparison, made: list[Path], page: Path) -> None:
    out = tables.console()
    out.print(f"[bold]{example.about['title']}[/]\n{example.about['text']}\n")
    tables.show_diagnosis(diagnosis)
    out.print()
    tables.show_comparison(
        comparison, f"Fitted on {comparison.n_fit} rows, judged on {comparison.n_judged} (per cent, 15 bins)"
    )
    out.print("The floor is what a perfectly calibrated model would score.")
    out.print(_auto(comparison), markup=False)
    out.print("\nFigures and summary: " + ", ".join(str(p) for p in made), soft_wrap=True)
    out.print(f"[bold]The page:[/] {page.resolve()}", soft_wrap=True)
