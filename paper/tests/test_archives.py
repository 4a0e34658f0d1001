"""Malicious and damaged archives, and downloads."""

from __future__ import annotations

import gzip
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from hetcal_paper import archives

LIMIT = 1 << 20


def packed(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, **fields: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    for key, value in fields.items():
        setattr(info, key, value)
    return info


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "inner" / "folder"
    path.mkdir(parents=True)
    return path


def test_files_and_folders_are_unpacked(tmp_path: Path, folder: Path) -> None:
    archive = packed(tmp_path / "a.tar.gz", member("d", tarfile.DIRTYPE), member("d/file", size=5))
    archives.unpack(archive, folder, LIMIT)
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*")) == ["d", "d/file"]
    assert (folder / "d" / "file").read_bytes() == b"xxxxx"


@pytest.mark.parametrize(
    "hostile",
    [
        member("../outside", size=3),
        member("d/../../outside", size=3),
        member("link", tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("link", tarfile.SYMTYPE, linkname="d"),
        member("link", tarfile.LNKTYPE, linkname="../outside"),
        member("pipe", tarfile.FIFOTYPE),
        member("disk", tarfile.BLKTYPE, devmajor=8),
        member("terminal", tarfile.CHRTYPE, devmajor=5),
    ],
    ids=lambda m: f"{m.name} {m.type.decode()} {m.linkname}",
)
def test_paths_outside_the_folder_are_refused(tmp_path: Path, folder: Path, hostile: tarfile.TarInfo) -> None:
    before = {p for p in tmp_path.rglob("*") if folder not in p.parents}
    archive = packed(tmp_path / "a.tar.gz", hostile)
    with pytest.raises(ValueError, match=r"a\.tar\.gz must"):
        archives.unpack(archive, folder, LIMIT)
    assert {p for p in tmp_path.rglob("*") if folder not in p.parents} == before | {archive}
    assert [p.name for p in folder.iterdir()] == ["archive.tar"]


def test_absolute_names_stay_inside(tmp_path: Path, folder: Path) -> None:
    archives.unpack(packed(tmp_path / "a.tar.gz", member("/hetcal-test/file", size=3)), folder, LIMIT)
    assert (folder / "hetcal-test" / "file").read_bytes() == b"xxx"
    assert not Path("/hetcal-test").exists()


def test_files_are_never_left_executable_by_all_or_owned_by_others(tmp_path: Path, folder: Path) -> None:
    archives.unpack(packed(tmp_path / "a.tar.gz", member("f", size=1, mode=0o6777, uid=4711)), folder, LIMIT)
    status = (folder / "f").stat()
    assert status.st_mode & 0o7022 == 0
    assert status.st_uid != 4711


def test_unpacking_stops_at_the_size_limit(tmp_path: Path, folder: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(gzip.compress(bytes(50 * LIMIT)))
    assert archive.stat().st_size < LIMIT / 10
    with pytest.raises(ValueError, match=f"no larger than {LIMIT} bytes"):
        archives.unpack(archive, folder, LIMIT)
    assert sum(p.stat().st_size for p in folder.rglob("*")) <= LIMIT


def test_a_sparse_file_cannot_claim_more_than_the_limit(tmp_path: Path, folder: Path) -> None:
    header = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "f"}
    huge = member("f", size=512, pax_headers=header | {"GNU.sparse.realsize": str(1 << 40)})
    block = b"1\n%d\n1\n" % ((1 << 40) - 1)
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(huge, io.BytesIO(block.ljust(512, b"\0")))
    with pytest.raises(ValueError, match="size limit when unpacked, got 1099511627776"):
        archives.unpack(tmp_path / "a.tar.gz", folder, LIMIT)


@pytest.mark.parametrize(
    "content", [b"", b"no archive", gzip.compress(b"no archive" * 99)], ids=["empty", "text", "packed text"]
)
def test_damaged_archives_are_refused(tmp_path: Path, folder: Path, content: bytes) -> None:
    (tmp_path / "a.tar.gz").write_bytes(content)
    with pytest.raises(ValueError, match=r"must be a valid \.tar\.gz"):
        archives.unpack(tmp_path / "a.tar.gz", folder, LIMIT)
    valid = packed(tmp_path / "b.tar.gz", member("f", size=9999)).read_bytes()
    (tmp_path / "b.tar.gz").write_bytes(valid[: len(valid) // 2])
    with pytest.raises(ValueError, match=r"must be a valid \.tar\.gz"):
        archives.unpack(tmp_path / "b.tar.gz", folder, LIMIT)


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.startswith("/to?"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to?"))
            self.end_headers()
        else:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"x" * 5000)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("scheme", ["http", "ftp", "file", "data", ""])
def test_only_https_is_fetched(tmp_path: Path, scheme: str) -> None:
    with pytest.raises(ValueError, match="url must begin with https://"):
        archives.fetch(f"{scheme}://example.invalid/a", tmp_path / "a", LIMIT)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["http://127.0.0.1:1/a", "ftp://127.0.0.1/a", "file:///etc/passwd", "/a"])
def test_a_redirect_away_from_https_is_refused(address: str, target: str) -> None:
    with pytest.raises((ValueError, OSError), match=r"url must begin with https://|not allowed"):
        archives._opener().open(f"{address}/to?{target}")


def test_downloads_are_atomic(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_check_https", lambda _: None)  # the server here has no certificate
    archives.fetch(address, tmp_path / "a", 5000)
    assert (tmp_path / "a").read_bytes() == b"x" * 5000
    with pytest.raises(ValueError, match="no larger than 4999 bytes"):
        archives.fetch(address, tmp_path / "b", 4999)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
