"""Markdown paragraphs, bullets and tables, wrapped like the other pages."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

__all__ = ["bullets", "paragraph", "points", "table"]

_WIDTH = 118


def paragraph(text: str) -> str:
    """Rewrap a paragraph."""
    return _fill(text) + "\n"


def bullets(texts: Iterable[str]) -> str:
    """Return a bulleted list of wrapped texts."""
    return "\n".join(_fill(text, "- ", "  ") for text in texts) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def points(difference: float) -> str:
    """Format a difference of fractions in percentage points, with its sign."""
    return f"{100 * difference:+.1f}".replace("-", "−")


def _fill(text: str, first: str = "", rest: str = "") -> str:
    plain = " ".join(text.split())
    wrapper = textwrap.TextWrapper(_WIDTH, first, rest, break_on_hyphens=False, break_long_words=False)
    return wrapper.fill(plain)
