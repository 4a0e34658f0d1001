"""Download archives over HTTPS, verify them and unpack them within a size limit."""

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

from hetcal_paper.files import write_atomic

__all__ = ["check_sha256", "fetch", "unpack"]

_OFFICIAL = "check that it is the official archive"
_BLOCK = 1 << 20
_TIMEOUT = 60.0  # seconds to wait for more data


def fetch(url: str, target: Path, limit: int) -> None:
    """Download a file atomically; raise an error if it is larger than `limit` bytes."""
    _check_https(url)

    def fill(sink: IO[bytes]) -> None:
        try:
            with _opener().open(url, timeout=_TIMEOUT) as source:
                _copy(source, sink, limit, url)
        except (HTTPException, URLError, ConnectionError, TimeoutError) as error:
            raise OSError(
                f"{url} must be reachable, got: {str(error) or type(error).__name__}; "
                "check the connection and try again"
            ) from error

    write_atomic(target, fill)


def check_sha256(archive: Path, expected: str) -> None:
    """If the checksum of the archive is wrong, delete the archive and raise an error."""
    with archive.open("rb") as source:
        digest = hashlib.file_digest(source, "sha256").hexdigest()
    if digest != expected:
        archive.unlink()
        raise ValueError(
            f"{archive.name} must have the SHA-256 checksum {expected}, got {digest}; "
            "the file was deleted, so download it again"
        )


def unpack(archive: Path, folder: Path, limit: int) -> None:
    """Unpack a ``.tar.gz`` of regular files and folders into an empty folder.

    The whole archive is decompressed first, so the size limit holds even if the sizes in its headers are
    wrong.

    Parameters
    ----------
    archive : path
    folder : path
        An empty folder.
    limit : int
        Maximum size of the decompressed archive in bytes.
    """
    plain = folder / "archive.tar"
    try:
        with gzip.open(archive) as source, plain.open("wb") as sink:
            _copy(source, sink, limit, f"the content of {archive.name}")
        with tarfile.open(plain, "r:") as tar:
            remaining = limit
            for member in tar:
                remaining -= _checked_size(member, remaining, archive.name)
                tar.extract(member, folder, filter="data")
    except (gzip.BadGzipFile, EOFError, zlib.error, tarfile.TarError) as error:
        raise ValueError(
            f"{archive.name} must be a valid .tar.gz whose files stay inside their folder, got: {error}; "
            "download it again"
        ) from None
    plain.unlink()


def _checked_size(member: tarfile.TarInfo, remaining: int, name: str) -> int:
    """Return the size of an archive member.

    Links, special files and files of more than `remaining` bytes raise an error.
    """
    if not (member.isreg() or member.isdir()):
        raise ValueError(
            f"{name} must contain only files and folders, got a link or special file {member.name!r}; "
            f"{_OFFICIAL}"
        )
    if member.size > remaining:  # the header of a sparse file can claim more bytes than the archive contains
        raise ValueError(
            f"{name} must stay within the size limit when unpacked, got {member.size} bytes for "
            f"{member.name!r} with {remaining} bytes left; {_OFFICIAL}"
        )
    return member.size


def _copy(source: IO[bytes] | Any, sink: IO[bytes], limit: int, name: str) -> None:
    remaining = limit
    while block := source.read(_BLOCK):
        remaining -= len(block)
        if remaining < 0:
            raise ValueError(f"{name} must be no larger than {limit} bytes, got more; {_OFFICIAL}")
        sink.write(block)


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    """Follow redirects to HTTPS addresses and reject all other redirects."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Return the redirected request; raise an error unless it leads to an HTTPS address."""
        _check_https(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_HttpsOnly)


def _check_https(url: str) -> None:
    if urlsplit(url).scheme != "https":
        raise ValueError(
            f"url must begin with https://, got {url!r}; pass an HTTPS address that redirects only to HTTPS"
        )
