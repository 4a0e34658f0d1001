"""Commands that other packages add through the entry-point group `hetcal.commands`."""

from importlib import metadata

import pytest
import typer
from typer.testing import CliRunner

from hetcal.cli import plugins


def commands(monkeypatch: pytest.MonkeyPatch, *entry_points: metadata.EntryPoint) -> typer.Typer:
    monkeypatch.setattr(plugins.metadata, "entry_points", lambda **_: metadata.EntryPoints(entry_points))
    app = typer.Typer(pretty_exceptions_enable=False)
    plugins.add_installed_commands(app)
    return app


@pytest.mark.parametrize("words", [["train", "table1", "--next"], ["reproduce", "table2", "--json"]])
def test_missing_commands_of_the_paper_name_the_installation(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = CliRunner().invoke(commands(monkeypatch), words)
    assert isinstance(result.exception, ImportError)
    assert words[0] in str(result.exception)
    assert "pip install ./paper" in str(result.exception)


def test_installed_packages_add_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    entry_point = metadata.EntryPoint("version", "platform:python_version", "hetcal.commands")
    app = commands(monkeypatch, entry_point)
    assert CliRunner().invoke(app, ["version"]).exit_code == 0
