"""Errors about optional packages that are not installed."""

from __future__ import annotations

import re

__all__ = ["install_command", "missing_package"]


def missing_package(need: str, extra: str) -> ImportError:
    """Return the error for a missing package of an extra; `need` is, for example, "plots need matplotlib"."""
    command = install_command(extra)
    return ImportError(f"{need}, part of the extra hetcal[{extra}]; install it with: {command}")


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra.

    The command names the packages rather than hetcal, so that it works for an installation from any source.
    If the packages are unknown, for example because hetcal is not installed, the command installs the
    extra from a checkout.
    """
    from importlib import metadata  # imported here to keep `import hetcal` fast

    try:
        lines = metadata.requires("hetcal") or []
    except metadata.PackageNotFoundError:  # the source is on the path, but hetcal is not installed
        lines = []
    condition = re.compile(rf"""(.+?) *; *extra == ['"]{re.escape(extra)}['"]""")
    packages = [match[1] for line in lines if (match := condition.fullmatch(line))]
    if not packages:
        return f'pip install ".[{extra}]" (in a checkout of hetcal)'
    return " ".join(["pip install", *(f'"{package}"' for package in packages)])
