"""Commands for planning and theory: `plan` and `theory`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hetcal._write import write_atomic
from hetcal.cli.application import ClassNames, IdColumn, Json, LabelColumn, Labels, Logits, app, print_json
from hetcal.cli.progress import progress

__all__ = ["plan", "theory"]


@app.command()
def plan(
    logits: Logits,
    target: Annotated[
        float | None,
        typer.Option(help="NLL to reach; default: 0.01 above the lowest NLL expected with unlimited rows"),
    ] = None,
    labels: Labels = None,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    classes: ClassNames = None,
    check_quarter: Annotated[
        bool,
        typer.Option(
            "--check-quarter",
            help="Predict the NLL of a fit on all rows from a quarter of them, and compare it with the "
            "measured NLL",
        ),
    ] = False,
    theory: Annotated[
        bool, typer.Option("--theory", help="Also show what Theorem 4.1 of the paper guarantees")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File for a figure of the curves (.png, .svg or .pdf)"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Estimate how many validation rows class-wise calibration needs, by subsampling the available rows."""
    if check_quarter and (output is not None or theory):
        option, reason = (
            ("--theory", "prints no bounds") if output is None else ("--output", "draws no figure")
        )
        raise ValueError(
            f"{option} must not be combined with --check-quarter, which {reason}; omit one of them"
        )
    with progress("planning", quiet=as_json) as step:
        from hetcal import logits_files, planning
        from hetcal.cli import inputs

        data = logits_files.load_logits(logits, labels=labels, label_column=label_column, id_column=id_column)
        rows = (data.val.logits, data.val.labels)
        if check_quarter:
            test = () if data.test is None else (data.test.logits, data.test.labels)
            result: Any = planning.check_quarter(*rows, *test, on_step=step)
            text = str(result)
        else:
            names = inputs.select_class_names(classes, data)
            result = planning.plan_validation_size(*rows, target, class_names=names, on_step=step)
            text = result.to_text(theory=theory)
    print_json(result.to_dict()) if as_json else typer.echo(text)
    if output is not None:
        figure: Any = planning.plan_figure(result).figure
        write_atomic(output, lambda file: figure.savefig(file, format=output.suffix[1:]))
        typer.echo(f"wrote {output}", err=as_json)


@app.command()
def theory(
    draws: Annotated[int, typer.Option(min=1, help="Number of simulated data sets per claim")] = 2000,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for the figures")] = None,
    as_json: Json = False,
) -> None:
    """Check the claims of the paper by exact computation and by simulation.

    The paper is Zhao, Chen and Oymak, "On the Role of Dataset Quality and Heterogeneity in Model Confidence"
    (2020).
    """
    from hetcal.cli import tables
    from hetcal.theory import theory_checks

    rows = theory_checks(rng=0, draws=draws)
    print_json({"rows": [vars(row) for row in rows]}) if as_json else tables.show_theory(rows)
    if output is not None:
        from hetcal.theory.figures import write_theory_figures

        typer.echo(f"wrote {write_theory_figures(output)}", err=as_json)
