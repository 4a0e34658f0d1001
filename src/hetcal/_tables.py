"""Tables of results, which terminals show with Rich and notebooks as HTML.

A result describes its tables once, as plain text. Their HTML sets no background and inherits the text colour
of the page, so it fits light and dark notebooks. It loads nothing from the network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from html import escape
from itertools import compress
from typing import TYPE_CHECKING

from hetcal._palette import GREY, PALETTE

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group, RenderableType
    from rich.table import Table as RichTable
    from rich.text import Text

__all__ = ["Cell", "Note", "Table", "TableDisplay", "Tone", "as_html", "as_rich", "hidden_classes"]


class Tone(Enum):
    """Meaning of a cell, shown as a colour or, for `SECONDARY`, as fainter text."""

    OVER = auto()
    UNDER = auto()
    GOOD = auto()
    UNCERTAIN = auto()
    SECONDARY = auto()


_RICH_STYLES = {
    Tone.OVER: "red",
    Tone.UNDER: "blue",
    Tone.GOOD: "green",
    Tone.UNCERTAIN: "yellow",
    Tone.SECONDARY: "dim",
}
# Colours of the dots before cells in HTML. Their contrast ratio is at least 3 on white and on black.
_DOT_COLOURS = {
    Tone.OVER: PALETTE["vermilion"],
    Tone.UNDER: PALETTE["blue"],
    Tone.GOOD: PALETTE["green"],
    Tone.UNCERTAIN: GREY,
}
_UNLIMITED = 10_000  # width at which Rich wraps no cell
_CSS = """
.hetcal-result {overflow-x: auto; font-variant-numeric: tabular-nums}
.hetcal-result table {border-collapse: collapse; border: 0; margin: 0.3em 0 0.6em; color: inherit}
.hetcal-result caption {caption-side: top; text-align: left; padding: 0.3em 0.6em; font-weight: 600;
  color: inherit}
.hetcal-result th, .hetcal-result td {padding: 0.2em 0.6em; border: 0; text-align: right; white-space: nowrap;
  border-bottom: 1px solid rgba(128, 128, 128, 0.35); color: inherit}
.hetcal-result .hetcal-left {text-align: left}
.hetcal-result .hetcal-secondary {opacity: 0.75}
.hetcal-result p {margin: 0.2em 0.6em; color: inherit}
"""


@dataclass(frozen=True)
class Cell:
    """Text of a cell, and a tone that determines how the text is shown."""

    text: str
    tone: Tone


@dataclass(frozen=True)
class Note:
    """Line below a table. It has a label, which is less prominent, and a text; either may be empty."""

    label: str = ""
    text: str = ""


@dataclass(frozen=True)
class Table:
    """Table of plain text, with notes below it and, if `lead` is not empty, a sentence above it.

    The first column and those in `left` are left-aligned. `optional` contains groups of columns, the most
    important group first. A terminal that is too narrow for all columns leaves out the last groups.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str | Cell]]
    notes: tuple[Note, ...] = ()
    left: tuple[str, ...] = ()
    optional: tuple[tuple[str, ...], ...] = ()
    lead: str = ""

    def is_left(self, column: int) -> bool:
        """Whether a column is left-aligned."""
        return column == 0 or self.columns[column] in self.left

    def without(self, hidden: Sequence[str]) -> Table:
        """Return the table without some of its columns."""
        is_shown = [name not in hidden for name in self.columns]
        rows = [list(compress(row, is_shown)) for row in self.rows]
        return replace(self, columns=tuple(compress(self.columns, is_shown)), rows=rows)


class TableDisplay:
    """Base class of results that Rich and notebooks show as tables."""

    def _tables(self) -> tuple[Table, ...]:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return as_html(self._tables())

    def __rich__(self) -> Group:
        return as_rich(self._tables())


def hidden_classes(n_hidden: int, remedy: str) -> tuple[Note, ...]:
    """Return a tuple with a note on how many classes a table leaves out; empty if the table shows all."""
    if n_hidden <= 0:
        return ()
    return (Note(f"{n_hidden} more class{'' if n_hidden == 1 else 'es'}; {remedy}"),)


def as_rich(tables: Iterable[Table]) -> Group:
    """Tables and notes as a group of Rich renderables."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for table in tables:
        parts += [Text(table.lead)] if table.lead else []
        parts.append(_FittedTable(table) if table.optional else _rich_table(table))
        parts += [_rich_note(note) for note in table.notes]
    return Group(*parts)


def as_html(tables: Iterable[Table]) -> str:
    """Tables and notes as an HTML fragment."""
    parts = "".join(_html_table(table) for table in tables)
    return f'<div class="hetcal-result"><style>{_CSS}</style>{parts}</div>'


@dataclass(frozen=True)
class _FittedTable:
    """Rich renderable of a table without the optional columns for which the console is too narrow."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        unlimited = options.update_width(_UNLIMITED)
        hidden: list[str] = []
        shown = self._without(hidden)
        for group in reversed(self.table.optional):
            if console.measure(shown, options=unlimited).maximum <= options.max_width:
                break
            hidden = [*group, *hidden]
            shown = self._without(hidden)
        yield shown
        if hidden:
            yield _rich_note(Note(f"In a wider terminal, the table also shows: {', '.join(hidden)}"))

    def _without(self, hidden: Sequence[str]) -> RichTable:
        result = _rich_table(self.table.without(hidden))
        for column in result.columns[1:]:
            column.no_wrap = True  # if the table is still too wide, only its first column is wrapped
        return result


def _rich_note(note: Note) -> Text:
    from rich.text import Text

    label = Text(note.label, _RICH_STYLES[Tone.SECONDARY])
    return Text(" ").join(text for text in (label, Text(note.text)) if text)


def _rich_table(table: Table) -> RichTable:
    from rich.table import Table as RichTable
    from rich.text import Text

    result = RichTable(title=Text(table.title, "table.title"), title_justify="left", header_style="bold")
    for i, name in enumerate(table.columns):
        result.add_column(Text(name), justify="left" if table.is_left(i) else "right")
    for row in table.rows:
        cells = (Text(c.text, _RICH_STYLES[c.tone]) if isinstance(c, Cell) else Text(c) for c in row)
        result.add_row(*cells)
    return result


def _html_table(table: Table) -> str:
    head = "".join(f"<th{_html_class(table, i)}>{escape(name)}</th>" for i, name in enumerate(table.columns))
    body = "".join(f"<tr>{_html_row(table, row)}</tr>" for row in table.rows)
    notes = "".join(
        f'<p><span class="hetcal-secondary">{escape(note.label)}</span> {escape(note.text)}</p>'
        for note in table.notes
    )
    caption = f"<caption>{escape(table.title)}</caption>"
    lead = f"<p>{escape(table.lead)}</p>" if table.lead else ""
    return f"{lead}<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"


def _html_row(table: Table, row: Sequence[str | Cell]) -> str:
    missing = [""] * (len(table.columns) - len(row))
    return "".join(
        f"<td{_html_class(table, i)}>{_html_cell(cell)}</td>" for i, cell in enumerate([*row, *missing])
    )


def _html_class(table: Table, column: int) -> str:
    return ' class="hetcal-left"' if table.is_left(column) else ""


def _html_cell(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return escape(cell)
    if cell.tone is Tone.SECONDARY:
        return f'<span class="hetcal-secondary">{escape(cell.text)}</span>'
    dot = f'<span style="color: {_DOT_COLOURS[cell.tone]}" aria-hidden="true">●</span>'
    return f"{dot} {escape(cell.text)}"
