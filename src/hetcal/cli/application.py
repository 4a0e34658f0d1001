"""The Typer application, and the options and output that its commands share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hetcal import _version

__all__ = [
    "Bins",
    "ClassNames",
    "IdColumn",
    "Json",
    "LabelColumn",
    "Labels",
    "Logits",
    "NoiseRate",
    "TrainCounts",
    "Transition",
    "app",
    "print_json",
]

app = typer.Typer(
    name="hetcal",
    help="Calibrate a classifier's confidence for every class and group, not only on average.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_LOGITS = """File with logits and labels: .npz, .npy, .csv, .tsv or .parquet. A table needs a column 'label'
and one column per class; name the columns prob_<class> if they contain probabilities. For two classes, one
column prob_<class> is enough"""
Logits = Annotated[Path, typer.Argument(metavar="LOGITS", help=_LOGITS)]
Labels = Annotated[Path | None, typer.Option(help="File with the labels, if LOGITS is a .npy file")]
LabelColumn = Annotated[
    str | None,
    typer.Option(
        "--label-column",
        metavar="NAME",
        help="Column of a table with the labels; default: label, labels, y, y_true or target",
    ),
]
IdColumn = Annotated[
    str | None,
    typer.Option(
        "--id-column", metavar="NAME", help="Column of a table that identifies the rows and is not a class"
    ),
]
ClassNames = Annotated[Path | None, typer.Option("--classes", help="Text file with one class name per line")]
TrainCounts = Annotated[
    Path | None,
    typer.Option("--train-counts", help="Training rows per class: one number per line, in class order"),
]
NoiseRate = Annotated[
    str | None,
    typer.Option(
        "--noise-rate",
        metavar="R",
        help="Share of labels that were replaced by a random one of all classes, such as 0.1, or one share "
        "per class, separated by commas",
    ),
]
Transition = Annotated[
    Path | None,
    typer.Option(
        help="File with the probabilities of the recorded label given the true one: a line per true class, "
        "with a number per recorded class, separated by commas"
    ),
]
Bins = Annotated[int, typer.Option("--bins", min=1, help="Number of confidence bins")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables")]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit")] = False,
) -> None:
    if version:
        typer.echo(f"hetcal {_version.__version__}")
        raise typer.Exit


def print_json(value: Any) -> None:
    """Print a result as JSON; numbers that are not finite become null."""
    typer.echo(json.dumps(_plain(value), indent=1, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    import numpy as np

    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
