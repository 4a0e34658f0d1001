"""Safe display of names of classes and groups: on one line, without control characters."""

from __future__ import annotations

import unicodedata

__all__ = ["display_name", "printable"]

_MAX_LENGTH = 48  # maximum number of characters of a name in tables and running text
_ZERO_WIDTH_JOINER = "\u200d"  # kept in names, because it joins the parts of an emoji
_BIDIRECTIONAL_CONTROLS = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}


def printable(text: object) -> str:
    """Put U+FFFD in place of characters that break lines, control a terminal, or cannot be encoded.

    Characters that control the direction of text are replaced, too.
    """
    return "".join("\ufffd" if _is_unsafe(c) else c for c in str(text))


def display_name(name: str, max_length: int = _MAX_LENGTH) -> str:
    """Shorten a name to one line of at most `max_length` characters, for tables and text.

    Right-to-left text is enclosed in two additional invisible characters, so that it does not reorder the
    text around it. An empty name is shown as "(no name)".
    """
    visible = (c if unicodedata.category(c)[0] != "C" or c == _ZERO_WIDTH_JOINER else " " for c in name)
    text = " ".join("".join(visible).split())
    if len(text) > max_length:
        text = text[: max_length - 1].rstrip() + "…"
    if any(unicodedata.bidirectional(c) in ("R", "AL", "AN") for c in text):
        text = f"\u2068{text}\u2069"
    return text or "(no name)"


def _is_unsafe(character: str) -> bool:
    """Whether a character breaks the line, moves the cursor, reorders text or cannot be encoded."""
    is_control = unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
    return is_control or ord(character) in _BIDIRECTIONAL_CONTROLS
