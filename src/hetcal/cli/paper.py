"""Commands of the paper's reproduction: `reproduce` and `train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hetcal.cli.application import Json, app
from hetcal.cli.application import print_json as _print_json

__all__ = ["reproduce", "train"]

Data = Annotated[
    Path | None, typer.Option("--data", envvar="HETCAL_DATA", help="Folder with CIFAR in its official layout")
]


@app.command()
def reproduce(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="table1, table2, fig1 … fig14, example, or all")
    ],
    train: Annotated[
        bool, typer.Option("--train", help="Train the missing runs first (needs a GPU to be quick)")
    ] = False,
    results: Annotated[Path | None, typer.Option(envvar="HETCAL_RESULTS", help="Folder of results")] = None,
    data: Data = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for tables and figures")
    ] = None,
    as_json: Json = False,
) -> None:
    """Set our tables and figures beside the paper's."""
    from hetcal_paper import paper

    made = paper.reproduce_many(name, results_dir=results, train=train, data_dir=data)
    if as_json:
        _print_json(made[0].to_dict() if name != "all" else [m.to_dict() for m in made])
        return
    for one in made:
        typer.echo(one.to_markdown())
        if output is not None:
            typer.echo(f"wrote {one.save(output)}")


@app.command()
def train(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="RUN", help="Runs, tables or figures, such as table2")
    ] = None,
    data: Data = None,
    out: Annotated[Path, typer.Option(help="Folder for results; runs there are skipped")] = Path("runs"),
    next_: Annotated[bool, typer.Option("--next", help="Train what is missing, in order of worth")] = False,
    pending: Annotated[bool, typer.Option("--pending", help="List what is missing; train nothing")] = False,
    time_limit: Annotated[float | None, typer.Option(help="Stop cleanly after this many seconds")] = None,
    parallel: Annotated[int, typer.Option(help="Runs side by side on the device")] = 8,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; default: cuda where there is one")] = None,
    stop_early: Annotated[
        bool, typer.Option("--stop-early", help="Stop once accuracy rises no more")
    ] = False,
    only: Annotated[str | None, typer.Option(help="Only runs on c10 or c100")] = None,
    engine: Annotated[str, typer.Option(help="local, or dask for the workers of a cluster")] = "local",
    scheduler: Annotated[str | None, typer.Option(help="Address of the Dask scheduler")] = None,
    results: Annotated[Path, typer.Option(help="Runs summarised here are not missing")] = Path(
        "paper/results"
    ),
    summary: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for a small summary of the finished runs, to carry home"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train the paper's networks on CIFAR; an interrupted run goes on where it was."""
    from hetcal_paper.missing import list_pending, train_missing

    if pending:
        names = list_pending(runs or [], out, results, only)
        _print_json(names) if as_json else typer.echo("\n".join(names))
        return
    if not runs and not next_:
        raise ValueError("RUN must be given, got none; name runs or figures, or pass --next or --pending")
    outcome = train_missing(
        runs or [],
        data,
        out,
        results_dir=results,
        only=only,
        engine=engine,
        **({"address": scheduler} if engine == "dask" else {}),
        time_limit=time_limit,
        parallel=parallel,
        device=device,
        stop_early=stop_early,
        progress=not as_json,
    )
    if summary is not None:
        from hetcal_paper.results import summarise

        outcome["summarised"] = list(summarise(out, summary))
    _print_json(outcome) if as_json else typer.echo(", ".join(f"{len(v)} {k}" for k, v in outcome.items()))
    if outcome["failed"]:
        raise typer.Exit(1)
