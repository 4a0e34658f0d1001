"""Markdown elements: escaped text, tables and code blocks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["code_block", "escape", "table"]

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&])")


def escape(text: str) -> str:
    """Put a backslash before the characters that Markdown would interpret within a line."""
    return _SPECIAL.sub(r"\\\1", text)


def table(header: Sequence[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Lines of a table and a blank line. The first column is left-aligned, all others are right-aligned."""
    rule = "| --- |" + " ---: |" * (len(header) - 1)
    return [f"| {' | '.join(header)} |", rule, *(f"| {' | '.join(row)} |" for row in rows), ""]


def code_block(lines: Sequence[str]) -> list[str]:
    """Fenced lines; the fence is longer than any run of backticks inside."""
    longest = max((len(ticks) for line in lines for ticks in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence, *lines, fence]
