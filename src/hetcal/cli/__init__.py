"""The command line: each command parses its options, calls the library and prints the result."""

from __future__ import annotations

# Importing a module registers its commands; help lists them in this order.
from hetcal.cli import report, data, planning  # isort: skip
from hetcal.cli.application import app
from hetcal.cli.plugins import add_installed_commands

__all__ = ["app", "data", "planning", "report"]

add_installed_commands()
