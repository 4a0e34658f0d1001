"""The one way files are written."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from hetcal._write import discard, locked, write_atomic

DEAD = ".out.json.0123456789abcdef.part"  # what a killed process leaves


def put(path: Path, content: bytes = b"new") -> None:
    write_atomic(path, lambda file: file.write(content))


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "a", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    put(link)
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    put(pipe)
    reader.join()
    assert found == [b"new"]
    assert pipe.is_fifo()


def test_a_private_file_stays_private(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_bytes(b"old")
    target.chmod(0o600)
    put(target)
    assert target.stat().st_mode & 0o777 == 0o600


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=r"must not be a folder, got .*; name a file in it"):
        put(tmp_path)


def test_errors_of_the_disk_name_the_file_and_keep_their_number(tmp_path: Path) -> None:
    def fail(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(
        OSError, match=r"^the output file must be writable, got '.*a': No space left"
    ) as caught:
        write_atomic(tmp_path / "a", fail)
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_drafts_of_the_dead_are_swept_and_nothing_else(tmp_path: Path) -> None:
    others = {".out.json.mine.part", ".other.json.0123456789abcdef.part", "out.json.part"}
    for name in (DEAD, *others):
        (tmp_path / name).write_bytes(b"half")
    put(tmp_path / "out.json")
    assert {path.name for path in tmp_path.iterdir()} == {"out.json", *others}
    (tmp_path / DEAD).write_bytes(b"half")
    discard(tmp_path / "out.json")
    assert {path.name for path in tmp_path.iterdir()} == others


def test_drafts_of_the_living_are_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "out.json"

    def meanwhile_another_writes(file: object) -> None:
        put(target, b"another")
        file.write(b"the last")  # type: ignore[attr-defined]

    write_atomic(target, meanwhile_another_writes)
    assert target.read_bytes() == b"the last"
    assert list(tmp_path.iterdir()) == [target]


def test_many_writers_of_one_file_leave_one_whole_file(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    wholes = {bytes([65 + i]) * 100_000 for i in range(6)}
    put(target, min(wholes))
    writers = [
        threading.Thread(target=lambda text=text: [put(target, text) for _ in range(10)]) for text in wholes
    ]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert target.read_bytes() in wholes
    assert list(tmp_path.iterdir()) == [target]


def test_one_at_a_time_in_a_locked_folder(tmp_path: Path) -> None:
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
