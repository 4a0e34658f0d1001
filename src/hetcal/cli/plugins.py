"""Commands from other packages, such as `train` and `reproduce` from hetcal-paper."""

from __future__ import annotations

from importlib import metadata

import typer

from hetcal.cli.application import app

__all__ = ["add_installed_commands"]

_PAPER_COMMANDS = ("train", "reproduce", "pages")


def add_installed_commands(target: typer.Typer = app) -> None:
    """Add the commands of installed packages.

    For each command of hetcal-paper that is missing, add a command whose error says how to install
    hetcal-paper.
    """
    entry_points = metadata.entry_points(group="hetcal.commands")
    for entry_point in entry_points:
        target.command(entry_point.name)(entry_point.load())
    any_arguments = {"allow_extra_args": True, "ignore_unknown_options": True}
    for name in _PAPER_COMMANDS:
        if name not in entry_points.names:
            placeholder = target.command(
                name, help="Part of hetcal-paper, which is not installed.", context_settings=any_arguments
            )
            placeholder(_paper_is_missing)


def _paper_is_missing(context: typer.Context) -> None:
    raise ImportError(
        f"hetcal {context.info_name} needs hetcal-paper; install it from a checkout of the repository with: "
        "pip install ./paper"
    )
