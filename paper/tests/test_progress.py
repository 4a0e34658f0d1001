from __future__ import annotations

import pytest

from hetcal_paper.progress import Progress


def test_lines_come_at_once_and_no_oftener_than_asked(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(2, 10, every=3600)
    progress.tick(["a 0/5"])
    assert capsys.readouterr().out == ""
    progress.epochs_done += 3  # from checkpoints
    progress.epoch_done()
    progress.tick(["a 1/5", "b 3/5"], now=True)
    line = capsys.readouterr().out
    assert line.startswith("0/2 runs, 4/10 epochs; ")
    assert "s/epoch/model, ETA 0:00:0" in line
    assert line.endswith("a 1/5; b 3/5\n")
    progress.close()


def test_pace_counts_only_epochs_trained_here() -> None:
    progress = Progress(1, 10, shown=False)
    progress.epochs_done = 8
    progress.epoch_done()
    assert progress.seconds_per_epoch(progress._started + 5.0) == pytest.approx(5.0)


def test_nothing_is_shown_when_not_asked(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(1, 1, shown=False)
    progress.tick([], now=True)
    progress.say("hello")
    assert capsys.readouterr().out == ""


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    progress = Progress(1, 4, every=0)
    progress.epoch_done()
    progress.tick(["a 1/4"])
    progress.say("finished a")
    progress.close()
    shown = capsys.readouterr().out
    assert "finished a" in shown
    assert "1/4 epochs" in shown
