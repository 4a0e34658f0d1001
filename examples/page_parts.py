"""Paragraphs, bullets and tables of a Markdown page, wrapped like the other pages."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

__all__ = ["bullets", "paragraph", "points", "table"]

_WIDTH = 118


def paragraph(text: str) -> str:
    """Text in lines of equal length, whatever its line breaks were."""
    return _filled(text) + "\n"


def bullets(texts: Iterable[str]) -> str:
    """A list, each entry wrapped on its own."""
    return "\n".join(_filled(text, "- ", "  ") for text in texts) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def points(share: float) -> str:
    """A difference of shares in points, with its sign."""
    return f"{100 * share:+.1f}".replace("-", "−")


def _filled(text: str, first: str = "", rest: str = "") -> str:
    plain = " ".join(text.split())
    made = textwrap.TextWrapper(_WIDTH, first, rest, break_on_hyphens=False, break_long_words=False)
    return made.fill(plain)
