"""Atomic file writing and folder locks."""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

__all__ = ["locked", "write_atomic", "write_text"]

fcntl: Any
try:
    fcntl = importlib.import_module("fcntl")
except ImportError:  # Windows cannot lock folders
    fcntl = None


def write_atomic(path: str | Path, write: Callable[[IO[bytes]], object], *, durable: bool = True) -> None:
    """Write a file completely or not at all.

    `write` fills a temporary file in the same folder. The temporary file then replaces `path`. A killed
    process may leave a hidden ``.part`` file behind; nothing reads it.

    Parameters
    ----------
    path : path
        File to write. Its folder must exist.
    write : callable
        Called with the open binary file.
    durable : bool
        Whether to flush the content to disk, so that it survives a power failure.
    """
    target = Path(path)
    try:
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
        try:
            with temporary.open("xb") as file:
                write(file)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            temporary.replace(target)
            if durable:
                _sync_folder(target.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        if error.errno is None:  # raised by `write`, not by the disk
            raise
        raise OSError(
            error.errno,
            f"{target} must be writable, got: {error.strerror}; free space or choose another folder",
        ) from error


def _sync_folder(folder: Path) -> None:
    """Flush a folder to disk, so that a renamed file keeps its new name after a power failure."""
    with contextlib.suppress(OSError):  # Windows cannot open folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: str | Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    write_atomic(path, lambda file: file.write(text.encode()))


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder; other callers wait until it is released.

    The operating system releases the lock when the process ends, even if it is killed. On Windows, and on
    file systems without locks, nothing is locked.
    """
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems do not support locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
