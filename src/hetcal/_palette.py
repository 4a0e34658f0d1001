"""Colours shared by all charts. Importing this module does not load matplotlib."""

from __future__ import annotations

from typing import Final

__all__ = ["FAINT", "GREY", "INK", "PALETTE"]

# The qualitative palette of Okabe and Ito (2008), whose colours readers with colour vision deficiencies can
# tell apart. Grey replaces their black, which is too similar to the colour of axes and text.
PALETTE: Final[dict[str, str]] = {
    "grey": "#999999",
    "blue": "#0072b2",
    "orange": "#e69f00",
    "green": "#009e73",
    "purple": "#cc79a7",
    "sky": "#56b4e9",
    "vermilion": "#d55e00",
    "yellow": "#f0e442",
}

INK: Final = "#222222"  # text and axes
GREY: Final = "#888888"  # secondary text and lines
FAINT: Final = "#d9d9d9"  # grids and frames
