"""Tables on terminals of several widths, and progress on a terminal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FIRST = ["Class", "Verdict", "Gap", "Rows"]
MORE = ["95% interval", "Accuracy", "Confidence", "p (adj.)", "ECE", "Floor"]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the commands print as on a terminal; returns a function that sets its width."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    return lambda width: monkeypatch.setenv("COLUMNS", str(width))


@pytest.fixture
def unseen_class(tmp_path: Path) -> Path:
    """A file with four classes, the last of which is never predicted."""
    rng = np.random.default_rng(0)
    logits = np.column_stack([rng.normal(size=(90, 3)), np.full(90, -9.0)])
    np.savez(tmp_path / "rows.npz", logits=logits, labels=logits.argmax(axis=1) * (np.arange(90) % 3 > 0))
    return tmp_path / "rows.npz"


def lines_of(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).splitlines()


def cells_of(text: str) -> list[list[str]]:
    """Cells of the header and of the rows of the last table."""
    lines = [re.split("[┃│]", line)[1:-1] for line in lines_of(text) if line.startswith(("┃", "│"))]
    return [[cell.strip() for cell in line] for line in lines]


def test_a_narrow_terminal_shows_the_verdicts_first(run: Any, unseen_class: Path, terminal: Any) -> None:
    headers = []
    for width in (80, 100, 120, 160):
        terminal(width)
        code, out, _ = run("diagnose", unseen_class)
        assert code == 0
        assert all(len(line) <= width for line in lines_of(out))
        header, *rows = cells_of(out)
        headers.append(header)
        assert len(rows) == 4  # no cell is wrapped
        note = " ".join(lines_of(out)).partition("also shows: ")[2]
        assert all((name in note) == (name not in header) for name in MORE)
    assert headers[0] == FIRST
    assert all(header == (FIRST + MORE)[: len(header)] for header in headers)
    assert [len(header) for header in headers] == sorted({len(header) for header in headers})
    assert headers[-1] == FIRST + MORE


def test_long_names_are_wrapped_and_numbers_are_not(
    run: Any, unseen_class: Path, terminal: Any, tmp_path: Path
) -> None:
    names = tmp_path / "names.txt"
    names.write_text("".join(f"class {k} with a rather long name\n" for k in "abcd"), encoding="utf-8")
    terminal(80)
    code, out, _ = run("diagnose", unseen_class, "--classes", names)
    assert code == 0
    assert all(len(line) <= 80 for line in lines_of(out))
    rows = cells_of(out)[1:]
    assert sum(bool(re.fullmatch(r"[+-]0\.\d{3}", cells[2])) for cells in rows) == 3
    assert all("…" not in cell for cells in rows for cell in cells)


@pytest.mark.parametrize("command", ["diagnose", "evaluate"])
def test_classes_without_rows_have_empty_cells(run: Any, unseen_class: Path, command: str) -> None:
    code, out, _ = run(command, unseen_class)
    assert code == 0
    assert "nan" not in out
    unseen = next(cells for cells in cells_of(out) if cells[0] == "3")
    assert [cell for cell in unseen if cell and not cell.startswith("too few rows")] == ["3", "0"]


@pytest.mark.parametrize("command", ["fit", "report", "diagnose", "evaluate"])
def test_progress_appears_on_terminals_only(
    run: Any,
    sample: Any,
    terminal: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    output = {"fit": ("-m", "ts", "-o", tmp_path / "c.json"), "report": ("-o", tmp_path / "r.md")}
    arguments = (command, sample.path, *output.get(command, ()))
    if command == "report":
        arguments = (*arguments, "--format", "md")
    terminal(80)
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    code, _, err = run(*arguments)
    assert code == 0
    assert "━" in err
    assert "\x1b[?25h" in err  # the cursor is visible again
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JPY_PARENT_PID", "1")  # in a notebook
        assert run(*arguments)[2] == ""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FORCE_COLOR")
        assert run(*arguments)[2] == ""
