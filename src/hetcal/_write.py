"""The one way files are written: whole or not at all, whatever happens in between.

The content goes to a draft beside the file, ``.NAME.<16 hex digits>.part``, which is renamed once complete. A
process that is killed leaves its draft behind; nothing reads such names, and the next to write the same
file removes it. That the writer of a draft is alive shows in the lock that it holds.
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
except ImportError:  # on Windows, where drafts of killed processes stay
    fcntl = None

__all__ = ["discard", "locked", "write_atomic"]


def write_atomic(
    path: str | os.PathLike[str], write: Callable[[IO[bytes]], object], *, durable: bool = True
) -> None:
    """Let `write` fill a draft beside `path`, then rename it: what was there stays until all is written.

    Parameters
    ----------
    path : file to write; a link stays a link, a device or pipe is written to
    write : called with a binary file
    durable : whether to force the content to disk first, so that it outlives a loss of power, too
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"the folder of the output file must exist, got {str(target.parent)!r}; make it first"
        )
    if target.is_dir():
        raise IsADirectoryError(
            f"the output file must not be a folder, got {str(target)!r}; name a file in it"
        )
    try:
        if target.exists() and not target.is_file():
            _pour(target, write)
        else:
            _replace(Path(os.path.realpath(target)), write, durable)
    except OSError as error:
        if error.errno is None:  # not of the disk, but of what `write` reads from
            raise
        told = type(error)(
            f"the output file must be writable, got {str(target)!r}: {error.strerror}; it was left as it was"
        )
        told.errno = error.errno
        raise told from error


def discard(path: Path) -> None:
    """Remove a file, and what killed processes left of it."""
    path.unlink(missing_ok=True)
    _sweep(path)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Inside, no other process that asks for it is at work in this folder; one that is killed lets go."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network disks know no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _pour(target: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write to what cannot be replaced, such as /dev/stdout."""
    content = io.BytesIO()
    write(content)
    with target.open("wb") as file:
        file.write(content.getbuffer())


def _replace(target: Path, write: Callable[[IO[bytes]], object], durable: bool) -> None:
    old = target.exists()
    if old and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "the file is read-only")
    _sweep(target)
    file, draft = _new_draft(target)
    lock = None if fcntl is None else os.dup(file.fileno())  # outlives the file, until the rename
    try:
        with file:
            write(file)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        if old:
            shutil.copymode(target, draft)
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    finally:
        if lock is not None:
            os.close(lock)
    if durable:
        _sync(target.parent)


def _new_draft(target: Path) -> tuple[IO[bytes], Path]:
    while True:
        draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
        file: Any = draft.open("xb")
        if fcntl is None:
            return file, draft
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        if draft.exists():
            return file, draft
        file.close()  # another process saw it before it was locked, and swept it away


def _sweep(target: Path) -> None:
    """Remove drafts whose writer is no more."""
    if fcntl is None:
        return
    for draft in target.parent.glob(f".{glob.escape(target.name)}.{'[0-9a-f]' * 16}.part"):
        with contextlib.suppress(OSError), draft.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.unlink()


def _sync(folder: Path) -> None:
    """Force a rename to disk, where the system can do that for a folder."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
