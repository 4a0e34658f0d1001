from __future__ import annotations

import io
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hetcal_paper import store, training
from hetcal_paper.runs import Run, clean, noise, parse
from hetcal_paper.trainer import Trainer
from hetcal_paper.training import Summary, read_checkpoint, train_runs


def tiny(seed: int = 0, epochs: int = 3) -> Run:
    return noise("c10", (0, 4), 0.3, seed, network="tiny", epochs=epochs, batch_size=32)


def train(runs: list[Run], data: Path, out: Path, **options: Any) -> Summary:
    return train_runs(
        runs, data, out, **{"device": "cpu", "progress": False, "strict_size": False, **options}
    )


def arrays(folder: Path, run: Run) -> dict[str, np.ndarray]:
    with np.load(folder / f"{run.name}.npz", allow_pickle=False) as archive:
        return dict(archive)


def same(first: Path, second: Path, run: Run) -> bool:
    ours, theirs = arrays(first, run), arrays(second, run)
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[key], theirs[key]) for key in ours)


def test_the_same_seed_gives_the_same_logits_twice(cifar10: Path, tmp_path: Path) -> None:
    train([tiny(0), tiny(1)], cifar10, tmp_path / "a")
    train([tiny(1), tiny(0)], cifar10, tmp_path / "b", parallel=1)
    assert same(tmp_path / "a", tmp_path / "b", tiny(0))
    assert same(tmp_path / "a", tmp_path / "b", tiny(1))
    assert not np.array_equal(
        arrays(tmp_path / "a", tiny(0))["test_logits"], arrays(tmp_path / "a", tiny(1))["test_logits"]
    )


def test_results_are_complete(cifar10: Path, tmp_path: Path) -> None:
    run = tiny(epochs=5)
    summary = train([run], cifar10, tmp_path)
    assert summary == Summary((run.name,), (), (), ())
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".npz"]
    result = store.read(tmp_path, run.name)
    record = result.record
    assert Run.from_dict(record["run"]) == run
    assert record["n_train"], record["n_validation"] == (450, 50)
    assert [len(values) for values in record["history"].values()] == [5, 5, 5]
    assert record["history"]["learning_rate"] == [1e-3, 1e-3, 1e-4, 1e-4, 1e-4]
    assert record["epochs"]["last"] == 5
    assert set(record["epochs"]) == set(record["keys"]) == {"best", "phase1", "phase2", "last"}
    assert record["versions"]["torch"] == torch.__version__
    assert result.val_logits.shape == (50, 10)
    assert result.test_logits.shape == (30, 10)
    stored = arrays(tmp_path, run)
    assert stored["test_logits"].dtype == np.float16
    assert stored["test_labels"].dtype == np.uint8
    assert len(stored) == 2 + 2 * len(set(record["epochs"].values()))
    for choice, pair in record["accuracy"].items():
        chosen = store.read(tmp_path, run.name, choice)
        assert pair["test"] == pytest.approx((chosen.test_logits.argmax(1) == chosen.test_labels).mean())


def test_finished_runs_are_skipped(cifar10: Path, tmp_path: Path) -> None:
    train([tiny()], cifar10, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    summary = train([tiny(), tiny(), tiny(1)], cifar10, tmp_path)
    assert summary == Summary((tiny(1).name,), (tiny().name,), (), ())
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())


def test_nothing_to_do_needs_no_data(cifar10: Path, tmp_path: Path) -> None:
    train([tiny()], cifar10, tmp_path)
    assert train([tiny()], tmp_path / "nowhere", tmp_path).skipped == (tiny().name,)


def test_an_interrupted_run_resumes_exactly(
    cifar10: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny(epochs=5)
    train([run], cifar10, tmp_path / "whole")
    finish = Trainer.finish_epoch

    def interrupt(self: Trainer) -> None:
        if self.epoch == 3:
            raise KeyboardInterrupt
        finish(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "finish_epoch", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train([run], cifar10, tmp_path / "broken")
    assert [path.name for path in (tmp_path / "broken").iterdir()] == [f"{run.name}.ckpt"]
    train([run], cifar10, tmp_path / "broken")
    assert same(tmp_path / "whole", tmp_path / "broken", run)
    histories = [store.read(tmp_path / name, run.name).record["history"] for name in ("whole", "broken")]
    assert histories[0] == histories[1]


def test_a_completed_checkpoint_only_writes_the_result(
    cifar10: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with a checkpoint of its last epoch is not trained any further."""
    run = tiny()
    train([run], cifar10, tmp_path / "whole")
    snapshots: list[dict[str, Any]] = []
    write = training._write_result

    def keep(out: Path, trainer: Trainer, parallel: int) -> str:
        snapshots.append(trainer.snapshot())
        return write(out, trainer, parallel)

    monkeypatch.setattr(training, "_write_result", keep)
    train([run], cifar10, tmp_path / "other")
    (tmp_path / "other" / f"{run.name}.json").unlink()
    torch.save(snapshots[0], tmp_path / "other" / f"{run.name}.ckpt")
    assert train([run], cifar10, tmp_path / "other").finished == (run.name,)
    assert same(tmp_path / "whole", tmp_path / "other", run)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_run_resumes_exactly(cifar10: Path, tmp_path: Path) -> None:
    run = tiny(epochs=30)
    out = tmp_path / "killed"
    code = "import sys; from hetcal_paper.runs import parse; from hetcal_paper.training import train_runs; "
    code += "train_runs([parse(sys.argv[1])], *sys.argv[2:], device='cpu', strict_size=False, progress=False)"
    command = [sys.executable, "-c", code, run.name, str(cifar10), str(out)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    checkpoint = store.checkpoint_path(out, run.name)
    deadline = time.monotonic() + 300
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.kill()
    process.wait()
    assert checkpoint.exists()
    assert store.finished(out) == set()
    assert train([run], cifar10, out).finished == (run.name,)
    train([run], cifar10, tmp_path / "whole")
    assert same(tmp_path / "whole", out, run)


def test_runs_resume_after_the_time_limit(
    cifar10: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [tiny(seed, epochs=4) for seed in range(3)]
    train(runs, cifar10, tmp_path / "whole")
    out = tmp_path / "limited"
    clock = iter(range(1_000_000))
    with monkeypatch.context() as patch:
        patch.setattr(training._Session, "_time_is_up", lambda _: next(clock) > 4)
        summary = train(runs, cifar10, out, parallel=2)
    assert summary.finished == ()
    assert summary.unfinished == tuple(run.name for run in runs)
    assert sorted(path.name for path in out.iterdir()) == [f"{run.name}.ckpt" for run in runs[:2]]
    assert train(runs, cifar10, out, parallel=2).finished == tuple(run.name for run in runs)
    assert all(same(tmp_path / "whole", out, run) for run in runs)


def test_a_time_limit_of_zero_starts_nothing(cifar10: Path, tmp_path: Path) -> None:
    assert train([tiny()], cifar10, tmp_path, time_limit=0).unfinished == (tiny().name,)
    assert list(tmp_path.iterdir()) == []


def test_large_networks_are_checkpointed_only_on_request(
    cifar10: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(training, "_LARGE", 10)
    for requested, count in ((False, 0), (True, 1)):
        clock = iter(range(1_000_000))
        out = tmp_path / str(requested)
        out.mkdir()
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr(training._Session, "_time_is_up", lambda _, clock=clock: next(clock) > 1)
            train([tiny()], cifar10, out, checkpoint_large=requested)
        assert len(list(out.iterdir())) == count
    assert caplog.text.count("stopped without a checkpoint") == 1


def test_checkpoint_interval(cifar10: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epochs: list[int] = []
    snapshot = Trainer.snapshot

    def spy(self: Trainer) -> dict[str, Any]:
        epochs.append(self.epoch)
        return snapshot(self)

    monkeypatch.setattr(Trainer, "snapshot", spy)
    train([tiny(epochs=7)], cifar10, tmp_path, checkpoint_every=3)
    assert epochs == [3, 6]


def test_checkpoints_of_another_run_are_refused(cifar10: Path, tmp_path: Path) -> None:
    torch.save({"run": clean("c10", 0).to_dict()}, store.checkpoint_path(tmp_path, tiny().name))
    with pytest.raises(ValueError, match=r"must belong to c10-noise.*; delete the file"):
        train([tiny()], cifar10, tmp_path)


def test_a_run_that_diverges_does_not_stop_the_others(
    cifar10: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = Trainer.finish_epoch

    def diverges(self: Trainer) -> None:
        finish(self)
        if self.run.seed == 0:
            raise FloatingPointError("the training loss must stay finite")

    monkeypatch.setattr(Trainer, "finish_epoch", diverges)
    summary = train([tiny(0), tiny(1)], cifar10, tmp_path)
    assert (summary.failed, summary.finished) == ((tiny(0).name,), (tiny(1).name,))


def test_slots_are_refilled(cifar10: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy: list[tuple[int, int]] = []
    refill = training._Session._refill

    def spy(self: training._Session) -> bool:
        active = refill(self)
        busy.append((len(self.queue), len(self.trainers)))
        return active

    monkeypatch.setattr(training._Session, "_refill", spy)
    summary = train([tiny(seed, epochs=seed + 1) for seed in range(5)], cifar10, tmp_path, parallel=2)
    assert len(summary.finished) == 5
    assert {slots for waiting, slots in busy if waiting} == {2}
    assert busy[-1] == (0, 0)


@pytest.mark.parametrize("options", [{"parallel": 0}, {"checkpoint_every": 0}, {"time_limit": -1.0}])
def test_invalid_settings_are_refused(cifar10: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        train([tiny()], cifar10, tmp_path, **options)


def test_damaged_checkpoints_are_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Checkpoints are not flushed to disk, so a power failure can leave a truncated file."""
    name, content = tiny().name, io.BytesIO()
    torch.save({"run": {}, "weights": torch.zeros(1000)}, content)
    path = store.checkpoint_path(tmp_path, name)
    for damaged in (b"", b"\0" * 5000, content.getvalue()[:2000]):
        path.write_bytes(damaged)
        caplog.clear()
        assert read_checkpoint(tmp_path, parse(name)) is None
        assert "damaged" in caplog.text


def test_progress_is_shown_on_request(
    cifar10: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train([tiny(0)], cifar10, tmp_path)
    assert capsys.readouterr() == ("", "")
    train([tiny(1)], cifar10, tmp_path, progress=True)
    captured = capsys.readouterr()
    assert tiny(1).name in captured.out
    assert "3/3" in captured.err
