"""Names of classes and groups as they are shown: on one line, with nothing that acts on other text."""

from __future__ import annotations

import unicodedata

__all__ = ["display_name", "printable"]

_LONGEST = 48  # characters of a name in tables and running text
_JOINER = "\u200d"  # holds an emoji together
_REORDERING = {
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
}  # bidirectional embeddings, overrides, isolates


def printable(text: object) -> str:
    """Text without what a terminal obeys or no encoding can write: U+FFFD stands in its place."""
    return "".join("\ufffd" if _acts(c) else c for c in str(text))


def display_name(name: str, most: int = _LONGEST) -> str:
    """Name for tables and running text: one line, not too long, its direction kept to itself."""
    visible = (c if unicodedata.category(c)[0] != "C" or c == _JOINER else " " for c in name)
    text = " ".join("".join(visible).split())
    if len(text) > most:
        text = text[: most - 1].rstrip() + "…"
    if any(unicodedata.bidirectional(c) in ("R", "AL", "AN") for c in text):
        text = f"\u2068{text}\u2069"
    return text or "(no name)"


def _acts(character: str) -> bool:
    """Whether a character breaks the line, moves the cursor, reorders what follows, or cannot be encoded."""
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or ord(character) in _REORDERING
