"""The command `hetcal`: exit codes, and messages on one line."""

from __future__ import annotations

import sys

import pytest

from hetcal import __main__
from hetcal.__main__ import main

pytest.importorskip("typer")


def test_usage_errors_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("hetcal: ")
    assert message.count("\n") == 1


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    captured = capsys.readouterr()
    assert "Usage" in captured.out + captured.err


def test_an_interrupt_gives_code_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hetcal.cli.app", interrupt)
    assert main([]) == 130
    assert capsys.readouterr().err.startswith("hetcal: ")


@pytest.mark.parametrize("code", [3, None])
def test_the_exit_code_is_that_of_the_command(monkeypatch: pytest.MonkeyPatch, code: int | None) -> None:
    monkeypatch.setattr("hetcal.cli.app", lambda **_: code)
    assert main([]) == (code or 0)


def test_without_typer_the_error_names_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    assert main([]) == 2
    assert "hetcal[cli]" in capsys.readouterr().err


def test_other_import_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hetcal.cli", None)
    with pytest.raises(ImportError):
        main([])


def test_only_warnings_for_users_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    __main__._show_warning("hidden", DeprecationWarning)
    assert capsys.readouterr().err == ""
    __main__._show_warning("two\x1blines", UserWarning)
    assert capsys.readouterr().err == "hetcal: warning: two\ufffdlines\n"
