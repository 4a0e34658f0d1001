"""The commands ``hetcal train``, ``hetcal reproduce`` and ``hetcal pages``.

hetcal finds them through the entry-point group ``hetcal.commands``. Slow imports are inside the functions,
so that the other commands of hetcal start quickly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["pages", "reproduce", "train"]

_Data = Annotated[
    Path | None,
    typer.Option("--data", envvar="HETCAL_DATA", help="Folder with the binary version of CIFAR"),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text")]
_RESULTS = Path("paper/results")


def train(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="RUN", help="Runs, tables or figures, such as table2")
    ] = None,
    data: _Data = None,
    out: Annotated[Path, typer.Option(help="Folder for the runs; finished runs are skipped")] = Path("runs"),
    next_: Annotated[
        bool, typer.Option("--next", help="Train the missing runs in order of importance")
    ] = False,
    pending: Annotated[bool, typer.Option("--pending", help="List the missing runs and exit")] = False,
    only: Annotated[str | None, typer.Option(help="Only runs on this data set: c10 or c100")] = None,
    results: Annotated[
        Path, typer.Option(help="Folder of results; runs in it are skipped if no RUN is named")
    ] = _RESULTS,
    summary: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Evaluate the finished runs and write the results to this folder"),
    ] = None,
    time_limit: Annotated[
        float | None, typer.Option(help="Write checkpoints and stop after this many seconds")
    ] = None,
    parallel: Annotated[int, typer.Option(help="Number of runs trained at the same time")] = 8,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; default: cuda if available")] = None,
    stop_early: Annotated[
        bool, typer.Option("--stop-early", help="Stop runs that no longer improve, if their recipe allows it")
    ] = False,
    engine: Annotated[str, typer.Option(help="local, or dask to train on a Dask cluster")] = "local",
    scheduler: Annotated[str | None, typer.Option(help="Address of the Dask scheduler")] = None,
    no_compile: Annotated[bool, typer.Option("--no-compile", help="Do not use torch.compile")] = False,
    no_fused: Annotated[bool, typer.Option("--no-fused", help="Do not use the hand-written kernels")] = False,
    checkpoint_every: Annotated[int, typer.Option(help="Epochs between checkpoints")] = 1,
    checkpoint_large: Annotated[
        bool, typer.Option("--checkpoint-large", help="Also write checkpoints of large networks")
    ] = False,
    any_size: Annotated[
        bool, typer.Option("--any-size", help="Accept data sets that do not have the official size")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress")] = False,
    as_json: _Json = False,
) -> None:
    """Train the networks of the paper on CIFAR; interrupted runs resume from their checkpoints."""
    from hetcal_paper.queue import missing_runs, train_missing

    names = runs or []
    if pending:
        missing = [run.name for run in missing_runs(names, out, results, only)]
        _print_json(missing) if as_json else typer.echo("\n".join(missing))
        return
    if not names and not next_:
        raise ValueError(
            "RUN must name at least one run, table or figure, got none; name one, or pass --next or --pending"
        )
    outcome = train_missing(
        names,
        data,
        out,
        results_dir=results,
        only=only,
        engine=engine,
        **({"address": scheduler} if engine == "dask" else {}),
        time_limit=time_limit,
        parallel=parallel,
        device=device,
        compile=not no_compile,
        fused=not no_fused,
        progress=not (quiet or as_json),
        checkpoint_every=checkpoint_every,
        checkpoint_large=checkpoint_large,
        stop_early=stop_early,
        strict_size=not any_size,
    )
    if summary is not None:
        from hetcal_paper.results import summarise

        outcome["summarised"] = list(summarise(out, summary))
    counts = ", ".join(f"{len(names)} {key}" for key, names in outcome.items())
    _print_json(outcome) if as_json else typer.echo(counts)
    if outcome["failed"]:
        raise typer.Exit(1)


def reproduce(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="table1, table2, fig1 to fig14, example, or all")
    ],
    train: Annotated[
        bool, typer.Option("--train", help="Train missing runs first (very slow without a GPU)")
    ] = False,
    results: Annotated[Path | None, typer.Option(envvar="HETCAL_RESULTS", help="Folder of results")] = None,
    data: _Data = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for tables and figures")
    ] = None,
    as_json: _Json = False,
) -> None:
    """Compare our tables and figures with those of the paper."""
    from hetcal_paper.reproduction import reproduce_many

    items = reproduce_many(name, results_dir=results, train=train, data_dir=data)
    if as_json:
        _print_json([item.to_dict() for item in items] if name == "all" else items[0].to_dict())
        return
    for item in items:
        typer.echo(item.to_markdown())
        if output is not None:
            typer.echo(f"wrote {item.save(output)}")


def pages(
    add: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR", help="Add the results that train --summary wrote to this folder; may be repeated"
        ),
    ] = None,
    store: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Evaluate the runs in this folder and add them; may be repeated"),
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder of results")] = _RESULTS,
    docs: Annotated[Path, typer.Option(help="Folder for the pages")] = Path("docs/reproduction"),
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace runs that the results already contain"),
    ] = False,
    as_json: _Json = False,
) -> None:
    """Add new results, if any, and write the reproduction pages."""
    from hetcal_paper.pages import write_pages
    from hetcal_paper.results import merge, summarise

    added = {str(folder): list(merge(folder, results, force=force)) for folder in add or []}
    added |= {str(folder): list(summarise(folder, results, force=force)) for folder in store or []}
    paths = [str(path) for path in write_pages(results, docs)]
    if as_json:
        _print_json({"added": added, "files": paths})
        return
    for folder, names in added.items():
        typer.echo(f"added {len(names)} runs from {folder}")
    typer.echo(f"wrote {len(paths)} files to {docs}")


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False))
