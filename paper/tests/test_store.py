from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hetcal_paper import store

NAME = "c10-noise-0-4-r0.30-s0"
ARRAYS = {
    "val_logits": np.array([[1.5, 2.0]], dtype=np.float16),
    "val_labels": np.array([1], dtype=np.uint8),
    "test_logits": np.array([[0.25, -1.0]], dtype=np.float16),
    "test_logits_last": np.array([[4.0, 5.0]], dtype=np.float16),
    "val_logits_last": np.array([[6.0, 7.0]], dtype=np.float16),
    "test_labels": np.array([0], dtype=np.uint8),
}
RECORD = {
    "keys": {"best": ("val_logits", "test_logits"), "last": ("val_logits_last", "test_logits_last")},
    "history": {"train_loss": [1.0, 0.5]},
}


def test_results_round_trip(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "store"
    store.write(folder, NAME, RECORD, ARRAYS)
    assert store.finished(folder) == {NAME}
    best = store.read(folder, NAME)
    assert best.record["name"] == NAME
    assert best.val_logits.dtype == np.float32
    assert best.test_logits.tolist() == [[0.25, -1.0]]
    assert best.test_labels.tolist() == [0]
    assert store.read(folder, NAME, "last").val_logits.tolist() == [[6.0, 7.0]]


def test_records_are_readable(tmp_path: Path) -> None:
    store.write(tmp_path, NAME, RECORD, ARRAYS)
    text = (tmp_path / f"{NAME}.json").read_text()
    assert len(text.splitlines()) == 2 + 4
    assert json.loads(text)["schema"] == 1


def test_a_run_is_finished_only_when_its_record_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        assert (tmp_path / f"{NAME}.npz").exists()
        raise OSError("no space")

    checkpoint = store.checkpoint_path(tmp_path, NAME)
    checkpoint.write_bytes(b"state")
    with monkeypatch.context() as patch:
        patch.setattr(store, "write_text", fail)
        with pytest.raises(OSError, match="no space"):
            store.write(tmp_path, NAME, RECORD, ARRAYS)
    assert store.finished(tmp_path) == set()
    assert checkpoint.exists()
    store.write(tmp_path, NAME, RECORD, ARRAYS)
    assert store.finished(tmp_path) == {NAME}
    assert not checkpoint.exists()


def test_nan_is_refused_in_records(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        store.write(tmp_path, NAME, {"loss": float("nan")}, ARRAYS)
    assert list(tmp_path.iterdir()) == []


def test_missing_runs_choices_and_schemas_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="train it first"):
        store.read(tmp_path, NAME)
    store.write(tmp_path, NAME, RECORD, ARRAYS)
    with pytest.raises(ValueError, match='choice must be one of best, last, got "phase9"'):
        store.read(tmp_path, NAME, "phase9")
    path = tmp_path / f"{NAME}.json"
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 99'))
    with pytest.raises(ValueError, match="must have schema 1, got 99"):
        store.read(tmp_path, NAME)


def test_provenance_without_a_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.shutil, "which", lambda _: None)
    monkeypatch.setenv("HETCAL_GIT_HASH", "abc")
    record = store.provenance()
    assert record["git"] == "abc"
    assert set(record["versions"]) == {"hetcal", "python", "numpy", "torch"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "\xff",
        '{"schema": 1}',
        '{"schema": 1, "keys": []}',
        '{"schema": 1, "keys": {"best": "ab"}}',
    ],
)
def test_damaged_records_are_refused(tmp_path: Path, text: str) -> None:
    store.write(tmp_path, NAME, RECORD, ARRAYS)
    (tmp_path / f"{NAME}.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=rf"{NAME}\.json must .*got"):
        store.read(tmp_path, NAME)


def test_damaged_and_oversized_arrays_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(tmp_path, NAME, RECORD, ARRAYS)
    path = tmp_path / f"{NAME}.npz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"npz must be a valid \.npz file"):
        store.read(tmp_path, NAME)
    np.savez_compressed(path, val_logits=np.zeros(1000))
    with monkeypatch.context() as patch:
        patch.setattr(store, "_MAX_UNPACKED", 5000)
        with pytest.raises(ValueError, match="at most 5000 bytes"):
            store.read(tmp_path, NAME)
    np.savez(path, val_labels=np.array(["a"]))
    with pytest.raises(ValueError, match=r"npz must contain numbers under"):
        store.read(tmp_path, NAME)
