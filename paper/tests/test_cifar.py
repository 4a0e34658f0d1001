from __future__ import annotations

import hashlib
import io
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetcal_paper import data


def write_binary100(root: Path, n: int = 200) -> None:
    folder = root / "cifar-100-binary"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in ("train.bin", "test.bin"):
        fine = np.arange(n) % 100
        pixels = rng.integers(0, 256, (n, 3072))
        np.column_stack([fine // 5, fine, pixels]).astype(np.uint8).tofile(folder / name)


def write_python(root: Path, name: str, files: list[str], key: bytes, n: int = 20) -> list[dict[bytes, Any]]:
    folder = root / name
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    contents: list[dict[bytes, Any]] = []
    for file in files:
        pixels = rng.integers(0, 256, (n, 3072), dtype=np.uint8)
        contents.append({b"data": pixels, key: [i % 10 for i in range(n)], b"batch_label": b"x"})
        (folder / file).write_bytes(pickle.dumps(contents[-1], protocol=2))
    return contents


def test_binary_layout_of_cifar10(cifar10: Path) -> None:
    found = data.load("c10", cifar10, strict_size=False)
    raw = np.fromfile(cifar10 / "cifar-10-batches-bin" / "data_batch_2.bin", dtype=np.uint8).reshape(-1, 3073)
    assert found.train_images.shape == (500, 32, 32, 3)
    assert found.test_images.shape == (30, 32, 32, 3)
    assert found.n_classes == 10
    assert np.array_equal(found.train_labels[100:200], raw[:, 0])
    # Official records hold the red plane, then green, then blue, each row by row.
    assert found.train_images[103, 5, 7, 1] == raw[3, 1 + 1024 + 5 * 32 + 7]


def test_binary_layout_of_cifar100_takes_the_fine_label(tmp_path: Path) -> None:
    write_binary100(tmp_path)
    found = data.load("c100", tmp_path, strict_size=False)
    assert found.n_classes == 100
    assert np.array_equal(found.train_labels, np.arange(200) % 100)


def test_python_layouts_give_the_same_as_binary_ones(tmp_path: Path) -> None:
    files = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    contents = write_python(tmp_path, "cifar-10-batches-py", files, b"labels")
    found = data.load("c10", tmp_path, strict_size=False)
    expected = contents[1][b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    assert np.array_equal(found.train_images[20:40], expected)
    write_python(tmp_path, "cifar-100-python", ["train", "test"], b"fine_labels")
    assert data.load("c100", tmp_path, strict_size=False).train_labels.tolist() == [i % 10 for i in range(20)]


def test_old_name_of_numpy_is_understood(tmp_path: Path) -> None:
    """The official files were pickled when numpy's core module had another name."""
    files = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    write_python(tmp_path, "cifar-10-batches-py", files, b"labels")
    for path in (tmp_path / "cifar-10-batches-py").iterdir():
        path.write_bytes(path.read_bytes().replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert len(data.load("c10", tmp_path, strict_size=False).train_labels) == 100


class Payload:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.what = (function, arguments)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.what


@pytest.mark.parametrize(
    "function",
    [os.system, eval, exec, getattr, __import__, np.load, np.save, os.remove],
    ids=lambda f: f.__name__,
)
def test_pickles_that_would_run_code_are_refused(tmp_path: Path, function: Any) -> None:
    files = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    write_python(tmp_path, "cifar-10-batches-py", files, b"labels")
    trap = tmp_path / "trap"
    bad = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    bad.write_bytes(pickle.dumps({b"data": Payload(function, f"touch {trap}")}))
    with pytest.raises(ValueError, match="must contain only arrays"):
        data.load("c10", tmp_path, strict_size=False)
    assert not trap.exists()


def test_python_layout_of_the_wrong_shape_is_refused(tmp_path: Path) -> None:
    files = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    write_python(tmp_path, "cifar-10-batches-py", files, b"labels")
    bad = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    bad.write_bytes(pickle.dumps({b"data": np.zeros((2, 5), dtype=np.uint8), b"labels": [0, 1]}))
    with pytest.raises(ValueError, match="3072 bytes per image"):
        data.load("c10", tmp_path, strict_size=False)
    bad.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(ValueError, match="must hold a dictionary"):
        data.load("c10", tmp_path, strict_size=False)


def test_sizes_are_checked(cifar10: Path) -> None:
    with pytest.raises(ValueError, match="50000 training and 10000 test images, got 500 and 30"):
        data.load("c10", cifar10)


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    write_binary100(tmp_path)
    path = tmp_path / "cifar-100-binary" / "test.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=r"test\.bin must be a whole number of 3074-byte records"):
        data.load("c100", tmp_path, strict_size=False)
    path.write_bytes(bytes([0, 200]) + whole[2:])
    with pytest.raises(ValueError, match="labels below 100, got 200 at row 0"):
        data.load("c100", tmp_path, strict_size=False)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"test\.bin must exist"):
        data.load("c100", tmp_path, strict_size=False)


def test_folder_comes_from_the_environment(cifar10: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETCAL_DATA", str(cifar10))
    assert len(data.load("c10", strict_size=False).test_labels) == 30
    monkeypatch.delenv("HETCAL_DATA")
    with pytest.raises(ValueError, match="HETCAL_DATA"):
        data.load("c10")


def test_unknown_names_and_empty_folders_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='name must be one of c10, c100, got "cifar"'):
        data.load("cifar", tmp_path)
    with pytest.raises(FileNotFoundError, match="download"):
        data.load("c10", tmp_path)


def place_archive(
    monkeypatch: pytest.MonkeyPatch, dest: Path, member: str = "cifar-100-binary/train.bin", **changes: Any
) -> Path:
    """An archive where a finished transfer would have left it, expected with its own checksum."""
    path = dest / ".cifar-100-binary.part" / "cifar-100-binary.tar.gz"
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w:gz") as tar:
        info = tarfile.TarInfo(member)
        info.size = 4
        tar.addfile(info, io.BytesIO(b"data"))
    known = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()} | changes
    monkeypatch.setitem(data.DATA_SETS, "c100", data.DATA_SETS["c100"]._replace(**known))
    return dest


def test_download_checks_unpacks_and_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dest = place_archive(monkeypatch, tmp_path / "dest")
    folder = data.download("c100", dest)
    assert (folder / "train.bin").read_bytes() == b"data"
    assert [p.name for p in dest.iterdir()] == ["cifar-100-binary"]
    monkeypatch.setitem(data.DATA_SETS, "c100", data.DATA_SETS["c100"]._replace(sha256="0"))
    assert data.download("c100", dest) == folder


def test_download_refuses_a_wrong_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dest = place_archive(monkeypatch, tmp_path / "dest", sha256="0" * 64)
    with pytest.raises(ValueError, match="must have the SHA-256 checksum 0000"):
        data.download("c100", dest)
    assert list(dest.iterdir()) == []


def test_download_refuses_paths_outside_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dest = place_archive(monkeypatch, tmp_path / "dest", member="../../outside")
    with pytest.raises(ValueError, match="files inside its folder"):
        data.download("c100", dest)
    assert not (tmp_path / "outside").exists()
    assert list(dest.iterdir()) == []


def test_download_fetches_over_https_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = data.DATA_SETS["c100"]
    assert {d.url.split("://")[0] for d in data.DATA_SETS.values()} == {"https"}
    plain = layout.url.replace("https", "http")
    monkeypatch.setitem(data.DATA_SETS, "c100", layout._replace(url=plain))
    with pytest.raises(ValueError, match="url must begin with https://"):
        data.download("c100", tmp_path / "dest")
    assert list((tmp_path / "dest").iterdir()) == []


def test_archives_without_the_folder_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dest = place_archive(monkeypatch, tmp_path / "dest", member="elsewhere/train.bin")
    with pytest.raises(ValueError, match="must hold a folder cifar-100-binary, got none"):
        data.download("c100", dest)
    assert list(dest.iterdir()) == []
