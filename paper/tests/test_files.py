from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from hetcal_paper.files import locked, write_atomic, write_text


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "old")

    def fail(file: object) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_atomic(path, fail)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"]


def test_files_are_replaced_and_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    for text in ("first", "second"):
        write_text(path, text)
        assert path.read_text() == text
    assert path.stat().st_mode & 0o044


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="must be writable"):
        write_text(tmp_path / "none" / "file.txt", "text")


def test_a_lock_excludes_others(tmp_path: Path) -> None:
    active: list[int] = []
    overlaps: list[int] = []

    def work() -> None:
        with locked(tmp_path):
            active.append(1)
            overlaps.append(len(active))
            time.sleep(0.01)
            active.pop()

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(overlaps) == {1}
