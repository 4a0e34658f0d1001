"""Results in terminals and notebooks: the same tables, in which names are only text."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import hetcal
from hetcal._tables import _DOT_COLOURS, Cell, Note, Table, TableDisplay, Tone, as_html, as_rich
from hetcal.compare import compare
from hetcal.planning import plan_validation_size

HOSTILE = (
    "<script>alert(1)</script>",
    "a & b",
    '"><img src=x onerror=alert(1)>',
    "[red]tags[/red]",
    "two\nlines",
)
BACKGROUNDS = ("#ffffff", "#111111", "#1e1e1e")  # of JupyterLab and Visual Studio Code


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Rows of five over-confident classes."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(400, 5))
    return logits, (logits / 4 + rng.gumbel(size=logits.shape)).argmax(axis=1)


@pytest.fixture(scope="module", params=["evaluation", "diagnosis", "comparison", "plan"])
def result(request: pytest.FixtureRequest, rows: tuple[np.ndarray, np.ndarray]) -> Any:
    logits, labels = rows
    methods = {HOSTILE[0]: hetcal.Identity(), "[b]TS": hetcal.TemperatureScaling()}
    return {
        "evaluation": lambda: hetcal.evaluate(logits=logits, labels=labels, class_names=HOSTILE),
        "diagnosis": lambda: hetcal.diagnose(logits, labels, class_names=HOSTILE),
        "comparison": lambda: compare(logits, labels, methods=methods),
        "plan": lambda: plan_validation_size(logits, labels, class_names=HOSTILE, n_repeats=5),
    }[request.param]()


class Reader(HTMLParser):
    """Collects the tags, attributes and texts of the cells of a fragment."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.cells: list[list[str]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "tr":
            self.cells.append([])
        elif tag in ("td", "th"):
            self.cells[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.open) and "style" not in self.open:
            self.cells[-1][-1] += data


def test_html_contains_every_cell_as_text(result: TableDisplay) -> None:
    page = Reader(result._repr_html_())
    assert page.open == []
    expected = []
    for table in result._tables():
        expected.append(list(table.columns))
        for row in table.rows:
            texts = [cell if isinstance(cell, str) else cell.text for cell in row]
            expected.append(texts + [""] * (len(table.columns) - len(texts)))
    assert [[cell.removeprefix("● ") for cell in row] for row in page.cells] == expected
    first = {row[0] for row in page.cells}
    assert {HOSTILE[0], "[b]TS"} <= first or {HOSTILE[0], HOSTILE[2], "two lines"} <= first


def test_html_loads_and_runs_nothing(result: TableDisplay) -> None:
    text = result._repr_html_()
    page = Reader(text)
    assert set(page.tags) <= {
        "div",
        "style",
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "p",
        "span",
    }
    assert page.attributes <= {"class", "style", "aria-hidden"}
    assert not re.search(r"url\(|@import|https?:", text)


def test_html_inherits_the_colours_of_the_notebook(result: TableDisplay) -> None:
    text = result._repr_html_()
    assert "background" not in text
    assert set(re.findall(r"(?<![-\w])color: ([^;}\"]+)", text)) <= {"inherit", *_DOT_COLOURS.values()}


def luminance(colour: str) -> float:
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("background", BACKGROUNDS)
@pytest.mark.parametrize("colour", _DOT_COLOURS.values())
def test_dots_are_visible_on_light_and_dark_backgrounds(colour: str, background: str) -> None:
    low, high = sorted((luminance(colour), luminance(background)))
    assert (high + 0.05) / (low + 0.05) >= 3


def test_rich_shows_every_cell_as_text(result: TableDisplay) -> None:
    console = pytest.importorskip("rich.console").Console(file=io.StringIO(), width=400)
    console.print(result)
    text = console.file.getvalue()
    for table in result._tables():
        assert table.title in " ".join(text.split())  # Rich wraps titles that are wider than the table
        for row in table.rows:
            texts = [cell if isinstance(cell, str) else cell.text for cell in row]
            cells = [cell for cell in texts if cell]
            lines = [[part.strip() for part in re.split("[│┃]", line)] for line in text.splitlines()]
            assert any([part for part in line if part] == cells for line in lines), cells


def test_diagnosis_names_its_level_and_hints(rows: tuple[np.ndarray, np.ndarray]) -> None:
    (table,) = hetcal.diagnose(*rows, level=0.1)._tables()
    assert "90% interval" in table.columns
    assert Note("Hint (over-confident):", "few training samples can cause this") in table.notes
    assert {row[1].tone for row in table.rows} == {Tone.OVER}


def test_many_classes_are_left_out() -> None:
    rng = np.random.default_rng(0)
    logits, labels = 3 * rng.normal(size=(2000, 100)), rng.integers(0, 100, size=2000)
    for result, n_shown in (
        (hetcal.evaluate(logits=logits, labels=labels, n_redraws=5), 40),
        (hetcal.diagnose(logits, labels, n_redraws=5), 60),
    ):
        table = result._tables()[-1]
        assert len(table.rows) == n_shown
        assert table.notes[0] == Note(f"{100 - n_shown} more classes; to_frame() returns all")
        assert len(result.to_frame()) == 100


def test_table_by_hand() -> None:
    html = as_html([Table("a < b", ("x", "y"), [["1", "2"], ["3"]], (Note("label", "t&t"),), left=("y",))])
    assert "<caption>a &lt; b</caption>" in html
    assert '<td class="hetcal-left">1</td><td class="hetcal-left">2</td>' in html
    assert '<td class="hetcal-left">3</td><td class="hetcal-left"></td>' in html
    assert '<p><span class="hetcal-secondary">label</span> t&amp;t</p>' in html


OPTIONAL = Table(
    "title",
    ("name", "first", "a", "b", "c"),
    [["row", Cell("1", Tone.GOOD), "2" * 9, "3" * 9, "4" * 9], ["short", "5"]],
    optional=(("a",), ("b", "c")),
    lead="A <sentence>.",
)


@pytest.mark.parametrize(
    ("width", "hidden"), [(80, []), (53, []), (52, ["b", "c"]), (29, ["b", "c"]), (28, ["a", "b", "c"])]
)
def test_narrow_consoles_leave_out_the_last_groups(width: int, hidden: list[str]) -> None:
    console = pytest.importorskip("rich.console").Console(file=io.StringIO(), width=width)
    console.print(as_rich([OPTIONAL]))
    text = console.file.getvalue()
    header = next(line for line in text.splitlines() if line.startswith("┃"))
    assert header.replace("┃", " ").split() == [name for name in OPTIONAL.columns if name not in hidden]
    assert text.startswith("A <sentence>.")
    note = "In a wider terminal, the table also shows: "
    assert " ".join(text.split()).partition(note)[2] == ", ".join(hidden)


def test_html_shows_optional_columns() -> None:
    html = as_html([OPTIONAL])
    assert Reader(html).cells[0] == list(OPTIONAL.columns)
    assert "<p>A &lt;sentence&gt;.</p><table>" in html


def test_plans_show_their_summary_first(rows: tuple[np.ndarray, np.ndarray]) -> None:
    plan = plan_validation_size(*rows, n_repeats=5)
    assert [table.lead for table in plan._tables()] == [plan.summary, ""]


def test_classes_without_rows_have_empty_cells(rows: tuple[np.ndarray, np.ndarray]) -> None:
    logits, labels = rows
    logits = np.column_stack([logits, np.full(len(logits), -99.0)])
    for result in (hetcal.evaluate(logits=logits, labels=labels), hetcal.diagnose(logits, labels)):
        *_, unseen = result._tables()[-1].rows
        texts = [cell for cell in unseen if isinstance(cell, str) and cell]
        assert texts == ["5", "0"]
