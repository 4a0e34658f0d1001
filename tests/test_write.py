"""Files are replaced completely or left unchanged."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from hetcal import _write
from hetcal._write import discard, locked, write_atomic

ABANDONED = ".out.json.0123456789abcdef.part"  # temporary file of a killed process


def write_file(path: Path, content: bytes = b"new") -> None:
    write_atomic(path, lambda file: file.write(content))


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "a", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_file(link)
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    write_file(pipe)
    reader.join()
    assert received == [b"new"]
    assert pipe.is_fifo()


def test_a_private_file_stays_private(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_bytes(b"old")
    target.chmod(0o600)
    write_file(target)
    assert target.stat().st_mode & 0o777 == 0o600


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="must not be a folder"):
        write_file(tmp_path)


def test_disk_errors_name_the_file_and_keep_their_errno(tmp_path: Path) -> None:
    def fail(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"'.*a': No space left") as caught:
        write_atomic(tmp_path / "a", fail)
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_writer_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("old")

    def fail(_: object) -> None:
        raise OSError("connection lost")

    with pytest.raises(OSError, match=r"^connection lost$"):
        write_atomic(target, fail)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="folder"):
        write_file(tmp_path / "no" / "x.json")


def test_new_files_follow_the_umask(tmp_path: Path) -> None:
    write_file(tmp_path / "a")
    (tmp_path / "b").write_text("x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any file")
def test_a_read_only_file_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_bytes(b"old")
    target.chmod(0o400)
    with pytest.raises(PermissionError, match="read-only"):
        write_file(target)
    assert target.read_bytes() == b"old"


def test_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_write, "fcntl", None)  # as on Windows
    (tmp_path / ABANDONED).write_bytes(b"half")
    with locked(tmp_path):
        write_file(tmp_path / "out.json")
    assert (tmp_path / "out.json").read_bytes() == b"new"
    assert (tmp_path / ABANDONED).exists()


def test_only_abandoned_temporary_files_are_removed(tmp_path: Path) -> None:
    others = {".out.json.mine.part", ".other.json.0123456789abcdef.part", "out.json.part"}
    for name in (ABANDONED, *others):
        (tmp_path / name).write_bytes(b"half")
    write_file(tmp_path / "out.json")
    assert {path.name for path in tmp_path.iterdir()} == {"out.json", *others}
    (tmp_path / ABANDONED).write_bytes(b"half")
    discard(tmp_path / "out.json")
    assert {path.name for path in tmp_path.iterdir()} == others


def test_temporary_files_of_running_writers_are_kept(tmp_path: Path) -> None:
    target = tmp_path / "out.json"

    def write_during_another_write(file: object) -> None:
        write_file(target, b"another")
        file.write(b"the last")  # type: ignore[attr-defined]

    write_atomic(target, write_during_another_write)
    assert target.read_bytes() == b"the last"
    assert list(tmp_path.iterdir()) == [target]


def test_concurrent_writers_leave_one_complete_file(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    contents = {bytes([65 + i]) * 100_000 for i in range(6)}
    write_file(target, min(contents))
    writers = [
        threading.Thread(target=lambda text=text: [write_file(target, text) for _ in range(10)])
        for text in contents
    ]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert target.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [target]


def test_a_locked_folder_is_used_by_one_thread_at_a_time(tmp_path: Path) -> None:
    count = tmp_path / "count"
    count.write_text("0")

    def add() -> None:
        for _ in range(20):
            with locked(tmp_path):
                before = int(count.read_text())
                threading.Event().wait(0.0002)
                count.write_text(str(before + 1))

    adders = [threading.Thread(target=add) for _ in range(4)]
    for adder in adders:
        adder.start()
    for adder in adders:
        adder.join()
    assert count.read_text() == "80"
