"""Archives from the network: fetched over HTTPS only, checked, and unpacked within bounds."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import urllib.request
import zlib
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.error import URLError
from urllib.parse import urlsplit

from hetcal._write import write_atomic

__all__ = ["check_sha256", "fetch", "unpack"]

_BLOCK = 1 << 20
_SILENCE = 60.0  # seconds without a byte after which a server is given up


def fetch(url: str, target: Path, limit: int) -> None:
    """Save what lies at a URL, whole or not at all; more than `limit` bytes are refused."""
    _check_https(url)

    def fill(sink: IO[bytes]) -> None:
        try:
            with _opener().open(url, timeout=_SILENCE) as source:
                _copy(source, sink, limit, url)
        except (HTTPException, URLError, ConnectionError, TimeoutError) as error:
            raise OSError(
                f"{url} must be reachable, got: {error or type(error).__name__}; try again"
            ) from error

    write_atomic(target, fill)


def check_sha256(archive: Path, expected: str) -> None:
    """Delete and refuse an archive whose checksum is another."""
    with archive.open("rb") as source:
        found = hashlib.file_digest(source, "sha256").hexdigest()
    if found != expected:
        archive.unlink()
        raise ValueError(
            f"{archive.name} must have the SHA-256 checksum {expected}, got {found}; "
            "the file was deleted, download it again"
        )


def unpack(archive: Path, folder: Path, limit: int) -> None:
    """Unpack a ``.tar.gz`` of plain files and folders into an empty folder, `limit` bytes at most.

    It is decompressed first, so that no header, true or false, can make it larger than the bytes counted.
    """
    plain = folder / "archive.tar"
    try:
        with gzip.open(archive) as source, plain.open("wb") as sink:
            _copy(source, sink, limit, archive.name)
        with tarfile.open(plain, "r:") as tar:
            left = limit
            for member in tar:
                left -= _checked_size(member, left, archive.name)
                tar.extract(member, folder, filter="data")
    except (gzip.BadGzipFile, EOFError, zlib.error, tarfile.TarError) as error:
        raise ValueError(
            f"{archive.name} must be a sound .tar.gz of files inside its folder, got: {error}; "
            "download it again"
        ) from None
    plain.unlink()


def _checked_size(member: tarfile.TarInfo, left: int, name: str) -> int:
    """Bytes of a plain file or folder; links, devices, and what does not fit are refused."""
    if not (member.isreg() or member.isdir()):
        raise ValueError(
            f"{name} must hold files and folders only, got {member.name!r}, a link or device; do not use it"
        )
    if member.size > left:  # a sparse file can claim what the archive does not hold
        raise ValueError(
            f"{name} must not grow so much when unpacked, got {member.size} bytes for {member.name!r}"
        )
    return member.size


def _copy(source: IO[bytes] | Any, sink: IO[bytes], limit: int, name: str) -> None:
    left = limit
    while block := source.read(_BLOCK):
        left -= len(block)
        if left < 0:
            raise ValueError(f"{name} must be no larger than {limit} bytes, got more; do not use it")
        sink.write(block)


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    """A handler that follows a redirect to HTTPS, and refuses any other."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Check where the redirect leads."""
        _check_https(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_HttpsOnly)


def _check_https(url: str) -> None:
    if urlsplit(url).scheme != "https":
        raise ValueError(f"url must begin with https://, got {url!r}; nothing else is fetched")
