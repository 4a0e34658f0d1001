"""Entry point of the command `hetcal`. Invalid input gives a one-line error and exit code 2."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from hetcal._display import printable
from hetcal._extras import missing_package

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    try:
        import typer

        from hetcal.cli import app
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("typer", "rich"):
            raise
        return _fail(str(missing_package(f"the command line needs {error.name}", "cli")), 2)
    # `usage_error` is ClickException, the base class of all errors in command-line arguments. It cannot be
    # imported from click, because newer versions of Typer contain their own copy of Click.
    usage_error: Any = typer.BadParameter.__mro__[2]
    warnings.showwarning = _show_warning
    try:
        code = app(args=argv, prog_name="hetcal", standalone_mode=False)
    except usage_error as error:
        message = error.format_message()  # empty if no command was given; Typer has then printed the help
        return _fail(f"{message} (see hetcal --help)", error.exit_code) if message else error.exit_code
    except (ValueError, TypeError, OSError, ImportError) as error:
        return _fail(str(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"hetcal: {printable(' '.join(message.split()))}\n")
    return code


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    if issubclass(category, UserWarning | RuntimeWarning):
        sys.stderr.write(f"hetcal: warning: {printable(message)}\n")


if __name__ == "__main__":
    sys.exit(main())
