"""Atomic file writing: a file is replaced completely or left unchanged.

The content is written to a temporary file in the same folder, ``.NAME.<16 hex digits>.part``, which is
renamed once it is complete. A process that is killed leaves its temporary file behind. The next write to the
same target removes such files, except on Windows and on file systems without locks. A writer locks its
temporary file, so that other processes do not remove it before it is renamed.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import importlib
import io
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

fcntl: Any
try:
    fcntl = importlib.import_module("fcntl")
except ImportError:  # Windows; without locks, temporary files of killed processes are not removed
    fcntl = None

__all__ = ["discard", "locked", "write_atomic"]


def write_atomic(
    path: str | os.PathLike[str], write: Callable[[IO[bytes]], object], *, durable: bool = True
) -> None:
    """Write a file through a temporary file, so that the old content is kept until the new one is complete.

    Parameters
    ----------
    path : file to write
        A symbolic link stays a link. A device or pipe is written to directly.
    write : function that is called once with a binary file and writes the content to it
    durable : whether to flush the content to disk before renaming, so that it survives a power failure
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"the folder of the output file must exist, got {str(target.parent)!r}; create it first"
        )
    if target.is_dir():
        raise IsADirectoryError(
            f"the output file must not be a folder, got {str(target)!r}; name a file in it"
        )
    is_device = target.exists() and not target.is_file()
    try:
        if is_device:
            _write_to_device(target, write)
        else:
            _replace(Path(os.path.realpath(target)), write, durable)
    except OSError as error:
        if error.errno is None:  # not an error of the operating system: `write` raised it
            raise
        explained = type(error)(
            f"the output file must be writable, got {str(target)!r}: {error.strerror}"
            f"{'' if is_device else '; the file is unchanged'}"
        )
        explained.errno = error.errno
        raise explained from error


def discard(path: Path) -> None:
    """Remove a file, and the temporary files for it that killed processes left behind."""
    path.unlink(missing_ok=True)
    _remove_abandoned(path)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder, if the system supports locks.

    The lock is released even if the process is killed.
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


def _write_to_device(target: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write to something that cannot be replaced, such as /dev/stdout."""
    content = io.BytesIO()
    write(content)
    with target.open("wb") as file:
        file.write(content.getbuffer())


def _replace(target: Path, write: Callable[[IO[bytes]], object], durable: bool) -> None:
    exists = target.exists()
    if exists and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "the file is read-only")
    _remove_abandoned(target)
    file, temporary = _open_temporary(target)
    # Closing `file` would release its lock, so this duplicate of its descriptor holds the lock until the
    # temporary file has been renamed.
    lock = None if fcntl is None else os.dup(file.fileno())
    try:
        with file:
            write(file)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        if exists:
            shutil.copymode(target, temporary)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        if lock is not None:
            os.close(lock)
    if durable:
        _sync(target.parent)


def _open_temporary(target: Path) -> tuple[IO[bytes], Path]:
    while True:
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
        file: Any = temporary.open("xb")
        if fcntl is None:
            return file, temporary
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        if temporary.exists():
            return file, temporary
        file.close()  # another process removed the file before it was locked


def _remove_abandoned(target: Path) -> None:
    """Remove the temporary files of writers that are no longer running; without locks, do nothing."""
    if fcntl is None:
        return
    for temporary in target.parent.glob(f".{glob.escape(target.name)}.{'[0-9a-f]' * 16}.part"):
        with contextlib.suppress(OSError), temporary.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            temporary.unlink()


def _sync(folder: Path) -> None:
    """Flush a rename to disk, if the operating system supports that for a folder."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
