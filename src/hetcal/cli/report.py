"""Commands that write a report: `report` and `demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hetcal._write import write_atomic
from hetcal.cli.application import (
    Bins,
    ClassNames,
    IdColumn,
    Json,
    LabelColumn,
    Labels,
    Logits,
    TrainCounts,
    app,
    print_json,
)
from hetcal.cli.progress import progress

__all__ = ["demo", "report"]


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the figures and the report")
    ] = Path("demo-output"),
    as_json: Json = False,
) -> None:
    """Diagnose a model and compare calibration methods on an example that comes with the package."""
    from hetcal.cli.demo import run_demo

    result = run_demo(output, quiet=as_json)
    if as_json:
        print_json(result)


@app.command()
def report(
    logits: Logits,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="File to write; default: report.html for html, else standard output"
        ),
    ] = None,
    labels: Labels = None,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    classes: ClassNames = None,
    train_counts: TrainCounts = None,
    groups: Annotated[
        Path | None, typer.Option(help="Text file with the group of each evaluated row, one per line")
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="Format of the report: html, md or json")] = "html",
    fail_over: Annotated[
        list[str] | None,
        typer.Option(help="Limit such as max_ece_excess=0.05; exit code 1 if exceeded. Can be repeated"),
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Also write the report as Markdown to this file")
    ] = None,
    bins: Bins = 15,
    label_noise: Annotated[
        float | None,
        typer.Option(
            metavar="MAX_RATE",
            help="Show how many wrong labels would change the verdict on over-confident classes, for noise "
            "rates up to this one, such as 0.4",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Same as --format json")] = False,
) -> None:
    """Write a report, by default one HTML file, on how a model is miscalibrated and how to fix it."""
    format_, limits = "json" if as_json else format_, fail_over or []
    with progress("computing the report"):
        from hetcal import logits_files
        from hetcal.cli import inputs
        from hetcal.report import check_gates, check_request, collect_report, render_report

        check_request(format_, limits)
        if label_noise is not None and not 0 < label_noise < 1:
            raise ValueError(
                f"--label-noise must lie in (0, 1), got {label_noise:g}; pass the largest rate to consider"
            )
        if markdown is not None and output is not None and markdown.absolute() == output.absolute():
            raise ValueError(
                f"--markdown must be a different file from --output, got {str(output)!r} for both; rename one"
            )
        for option, path in (("--output", output), ("--markdown", markdown)):
            if path is not None and not path.absolute().parent.is_dir():
                raise ValueError(
                    f"{option} must be in a folder that exists, got {str(path)!r}; create the folder"
                )
        data = logits_files.load_logits(logits, labels=labels, label_column=label_column, id_column=id_column)
        result = collect_report(
            data,
            class_names=inputs.select_class_names(classes, data),
            train_counts=None if train_counts is None else inputs.read_counts(train_counts),
            groups=None if groups is None else inputs.read_groups(groups),
            n_bins=bins,
            max_noise=label_noise,
        )
        text = render_report(result, format_)
        markdown_text = "" if markdown is None else render_report(result, "md")
    if output is None and format_ != "html":
        typer.echo(text)
    else:
        path = output or Path("report.html")
        write_atomic(path, lambda file: file.write(text.encode()))
        typer.echo(f"wrote {path}")
    if markdown is not None:
        write_atomic(markdown, lambda file: file.write(markdown_text.encode()))
    exceeded = check_gates(result, limits)
    for line in exceeded:
        typer.echo(f"hetcal: {line}", err=True)
    if exceeded:
        raise typer.Exit(1)
