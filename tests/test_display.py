"""Names are displayed on one line and cannot control the text around them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hetcal
from hetcal import planning
from hetcal.__main__ import main
from hetcal._display import display_name, printable
from hetcal.cli.tables import show_diagnosis, show_evaluation
from hetcal.logits_files import save_table

HOSTILE = ["two\nlines", "red\x1b[31m", "\u202eover", "iso\u2066late", "line\u2028end"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", "plain"),
        ("two\nlines\t", "two lines"),
        ("x" * 60, "x" * 47 + "…"),
        ("שלום", "\u2068שלום\u2069"),
        ("👩‍👧", "👩‍👧"),
        ("\u202eevil", "evil"),
        ("", "(no name)"),
    ],
)
def test_display_names(name: str, expected: str) -> None:
    assert display_name(name) == expected


@pytest.mark.parametrize("name", HOSTILE)
def test_control_characters_are_replaced(name: str) -> None:
    assert printable(name) == "".join(c if c.isprintable() else "\ufffd" for c in name)
    assert printable("שלום 👩‍👧 é") == "שלום 👩‍👧 é"


def test_hostile_class_names_do_not_change_tables(capsys: pytest.CaptureFixture[str]) -> None:
    k = len(HOSTILE)
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(300, k))
    labels = rng.integers(0, k, size=300)  # every class is overconfident, and therefore shown
    harmless = [f"name{i}" for i in range(k)]

    def texts(names: list[str]) -> list[str]:
        diagnosis = hetcal.diagnose(logits, labels, class_names=names)
        evaluation = hetcal.evaluate(
            hetcal.Identity().fit(logits, labels).predict_proba(logits), labels, names
        )
        show_diagnosis(diagnosis)
        show_evaluation(evaluation)
        plan = planning.plan_validation_size(logits, labels, class_names=names, n_repeats=5)
        return [str(diagnosis), str(evaluation), str(plan), capsys.readouterr().out]

    for text, expected in zip(texts(HOSTILE), texts(harmless), strict=True):
        assert len(text.splitlines()) == len(expected.splitlines())
        assert not [c for c in text if not c.isprintable() and c != "\n"]
        assert "two lines" in text


def test_errors_of_the_command_line_contain_no_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_table(tmp_path / "a.parquet", {f"{name}{i}": np.ones(3) for i, name in enumerate(HOSTILE)})
    assert main(["fit", str(tmp_path / "a.parquet"), "--in-batches", "-o", str(tmp_path / "c.json")]) == 2
    message = capsys.readouterr().err
    assert "'label'" in message
    assert not [c for c in message.removesuffix("\n") if not c.isprintable()]
