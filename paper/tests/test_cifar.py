from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetcal_paper import cifar


def write_binary100(root: Path, n: int = 200) -> None:
    folder = root / "cifar-100-binary"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in ("train.bin", "test.bin"):
        fine = np.arange(n) % 100
        pixels = rng.integers(0, 256, (n, 3072))
        np.column_stack([fine // 5, fine, pixels]).astype(np.uint8).tofile(folder / name)


def test_binary_layout_of_cifar10(cifar10: Path) -> None:
    data = cifar.load("c10", cifar10, strict_size=False)
    raw = np.fromfile(cifar10 / "cifar-10-batches-bin" / "data_batch_2.bin", dtype=np.uint8).reshape(-1, 3073)
    assert data.train_images.shape == (500, 32, 32, 3)
    assert data.test_images.shape == (30, 32, 32, 3)
    assert data.n_classes == 10
    assert np.array_equal(data.train_labels[100:200], raw[:, 0])
    # Official records contain the red, green and blue planes in this order, each row by row.
    assert data.train_images[103, 5, 7, 1] == raw[3, 1 + 1024 + 5 * 32 + 7]


def test_binary_layout_of_cifar100_takes_the_fine_label(tmp_path: Path) -> None:
    write_binary100(tmp_path)
    data = cifar.load("c100", tmp_path, strict_size=False)
    assert data.n_classes == 100
    assert np.array_equal(data.train_labels, np.arange(200) % 100)


def test_sizes_are_checked(cifar10: Path) -> None:
    with pytest.raises(ValueError, match="50000 training and 10000 test images, got 500 and 30"):
        cifar.load("c10", cifar10)


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    write_binary100(tmp_path)
    path = tmp_path / "cifar-100-binary" / "test.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=r"test\.bin must be a whole number of 3074-byte records"):
        cifar.load("c100", tmp_path, strict_size=False)
    path.write_bytes(bytes([0, 200]) + whole[2:])
    with pytest.raises(ValueError, match="labels below 100, got 200 at row 0"):
        cifar.load("c100", tmp_path, strict_size=False)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"test\.bin must be a file"):
        cifar.load("c100", tmp_path, strict_size=False)


def test_folder_comes_from_the_environment(cifar10: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETCAL_DATA", str(cifar10))
    assert len(cifar.load("c10", strict_size=False).test_labels) == 30
    monkeypatch.delenv("HETCAL_DATA")
    with pytest.raises(ValueError, match="HETCAL_DATA"):
        cifar.load("c10")


def test_unknown_names_and_empty_folders_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='name must be one of c10, c100, got "cifar"'):
        cifar.load("cifar", tmp_path)
    (tmp_path / "cifar-10-batches-py").mkdir()  # the Python version is not read
    with pytest.raises(FileNotFoundError, match="binary version"):
        cifar.load("c10", tmp_path)


def place_archive(
    monkeypatch: pytest.MonkeyPatch, dest: Path, member: str = "cifar-100-binary/train.bin", **changes: Any
) -> Path:
    """Write an archive to the path of a finished download, and expect the checksum of this archive."""
    path = dest / ".cifar-100-binary.part" / "cifar-100-binary.tar.gz"
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w:gz") as tar:
        info = tarfile.TarInfo(member)
        info.size = 4
        tar.addfile(info, io.BytesIO(b"data"))
    fields = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()} | changes
    monkeypatch.setitem(cifar.DATA_SETS, "c100", cifar.DATA_SETS["c100"]._replace(**fields))
    return dest


def test_download_checks_unpacks_and_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dest = place_archive(monkeypatch, tmp_path / "dest")
    folder = cifar.download("c100", dest)
    assert (folder / "train.bin").read_bytes() == b"data"
    assert [p.name for p in dest.iterdir()] == ["cifar-100-binary"]
    monkeypatch.setitem(cifar.DATA_SETS, "c100", cifar.DATA_SETS["c100"]._replace(sha256="0"))
    assert cifar.download("c100", dest) == folder


def test_download_refuses_a_wrong_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dest = place_archive(monkeypatch, tmp_path / "dest", sha256="0" * 64)
    with pytest.raises(ValueError, match="must have the SHA-256 checksum 0000"):
        cifar.download("c100", dest)
    assert list(dest.iterdir()) == []


def test_download_refuses_paths_outside_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dest = place_archive(monkeypatch, tmp_path / "dest", member="../../outside")
    with pytest.raises(ValueError, match="stay inside their folder"):
        cifar.download("c100", dest)
    assert not (tmp_path / "outside").exists()
    assert list(dest.iterdir()) == []


def test_download_fetches_over_https_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = cifar.DATA_SETS["c100"]
    assert {d.url.split("://")[0] for d in cifar.DATA_SETS.values()} == {"https"}
    plain = layout.url.replace("https", "http")
    monkeypatch.setitem(cifar.DATA_SETS, "c100", layout._replace(url=plain))
    with pytest.raises(ValueError, match="url must begin with https://"):
        cifar.download("c100", tmp_path / "dest")
    assert list((tmp_path / "dest").iterdir()) == []


def test_archives_without_the_folder_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dest = place_archive(monkeypatch, tmp_path / "dest", member="elsewhere/train.bin")
    with pytest.raises(ValueError, match="must contain the folder cifar-100-binary"):
        cifar.download("c100", dest)
    assert list(dest.iterdir()) == []
