"""Coverage-guided fuzzing of everything that reads a file: a reader gives a sound result or one clear error.

`python tools/fuzz/readers.py NAME CORPUS [libFuzzer options]` fuzzes one reader until an input is neither
read nor refused as the documentation says; `tools/fuzz/run.py` goes over them all. Valid files to start from
are made by `seeds.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import atheris
import numpy as np

with atheris.instrument_imports(include=["hetcal", "hetcal_paper"]):  # also what the seeds import
    import seeds

    import hetcal
    from hetcal import artefact, onnx
    from hetcal._warnings import CalibrationWarning
    from hetcal.files import load_unlabelled
    from hetcal_paper import cifar, results, store

REFUSALS = (ValueError, TypeError, FileNotFoundError)


def fuzz_npz(content: bytes, folder: Path) -> None:
    """An archive of arrays."""
    _logits(content, folder / "rows.npz")


def fuzz_npz_member(content: bytes, folder: Path) -> None:
    """An array within an archive that is whole: fuzzing an archive seldom gets past its checksums."""
    members = {"logits": seeds.LOGITS, "labels": seeds.LABELS, "class_names": seeds.NAMES, "provenance": b""}
    members[list(members)[content[0] % 4 if content else 0]] = content[1:]
    path = folder / "rows.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name, member in members.items():
            if member:
                archive.writestr(f"{name}.npy", member)
    _sound(hetcal.load_logits(path))


def fuzz_npy(content: bytes, folder: Path) -> None:
    """One array of logits, its labels beside it."""
    (folder / "labels.npy").write_bytes(seeds.LABELS)
    _logits(content, folder / "logits.npy")


def fuzz_npy_labels(content: bytes, folder: Path) -> None:
    """One array of labels, beside the logits."""
    (folder / "logits.npy").write_bytes(seeds.LOGITS)
    (folder / "labels.npy").write_bytes(content)
    _sound(hetcal.load_logits(folder / "logits.npy"))


def fuzz_csv(content: bytes, folder: Path) -> None:
    """A table as text."""
    _logits(content, folder / "rows.csv")


def fuzz_parquet(content: bytes, folder: Path) -> None:
    """A table as columns."""
    _logits(content, folder / "rows.parquet")


def fuzz_calibrator(content: bytes, folder: Path) -> None:
    """A saved calibrator as it lies on the disk; the checksum stops most of what is changed."""
    path = folder / "cal.json"
    path.write_bytes(content)
    _predict(hetcal.load(path))


def fuzz_calibrator_body(content: bytes, folder: Path) -> None:  # noqa: ARG001 - nothing is written
    """What a saved calibrator describes, with a checksum that is right."""
    try:
        body = json.loads(content)
        checksum = artefact._checksum(body)
    except (ValueError, RecursionError):
        return
    whole = {"format": "hetcal.calibrator", "schema": 1, "checksum": checksum, "calibrator": body}
    _predict(artefact.decode(json.dumps(whole), "cal.json"))


def fuzz_cifar_binary(content: bytes, folder: Path) -> None:
    """CIFAR in the binary layout, the same bytes as every file of it."""
    for name, layout in cifar.DATA_SETS.items():
        _cifar(name, folder, layout.folder, (*layout.train, layout.test), content)


def fuzz_cifar_archive(content: bytes, folder: Path) -> None:
    """An archive whose checksum is taken to be right; what cannot be unpacked leaves no folder behind."""
    layout = cifar.DATA_SETS["c10"]
    cifar.DATA_SETS["c10"] = layout._replace(sha256=hashlib.sha256(content).hexdigest())
    fetched = folder / f".{layout.folder}.part"  # where a download that was cut short has left it
    fetched.mkdir()
    (fetched / layout.url.rsplit("/", 1)[-1]).write_bytes(content)
    try:
        target = cifar.download("c10", folder)
    except REFUSALS:
        left = [path.name for path in folder.iterdir()]
        if left:
            raise AssertionError(f"a refused archive left {left}") from None
        raise
    finally:
        cifar.DATA_SETS["c10"] = layout
    if not target.is_dir():
        raise AssertionError("nothing was unpacked")


def fuzz_store_record(content: bytes, folder: Path) -> None:
    """The record of a finished run, its logits beside it."""
    (folder / "run.npz").write_bytes(seeds.RUN_ARRAYS)
    (folder / "run.json").write_bytes(content)
    store.read(folder, "run")


def fuzz_store_arrays(content: bytes, folder: Path) -> None:
    """The logits of a finished run, its record beside them."""
    (folder / "run.npz").write_bytes(content)
    (folder / "run.json").write_bytes(seeds.RUN_RECORD)
    found = store.read(folder, "run")
    if found.val_logits.dtype != np.float32 or found.test_labels.dtype != np.int64:
        raise AssertionError("arrays of another type")


def fuzz_results(content: bytes, folder: Path) -> None:
    """Tables of results: one is the fuzzed text, the others are valid."""
    valid = seeds.seeds_of("results")
    for name in results.COLUMNS:
        for file, text in zip(results.COLUMNS, valid, strict=True):
            (folder / f"{file}.csv").write_bytes(content if file == name else text)
        try:
            _use_results(results.read_results(folder))
        except REFUSALS as error:
            _documented(error)


def fuzz_onnx(content: bytes, folder: Path) -> None:
    """A classifier's graph that a calibrator is put behind; refused, it leaves no file."""
    (folder / "model.onnx").write_bytes(content)
    target = folder / "whole.onnx"
    try:
        onnx.export(seeds.CALIBRATOR, target, folder / "model.onnx")
    except REFUSALS:
        if target.exists():
            raise AssertionError("a refused graph left a file") from None
        raise


TARGETS: dict[str, Callable[[bytes, Path], None]] = {
    name.removeprefix("fuzz_"): value for name, value in globals().items() if name.startswith("fuzz_")
}


def _use_results(found: results.Results) -> None:
    for run in found.runs:
        found.choices(run)
        found.has(run, "Uncal")
        found.value(run, "accuracy")
        found.classes(run, "Uncal", 15)
        found.curve([run], 15)


def _logits(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    try:
        load_unlabelled(path)
    except REFUSALS as error:
        _documented(error)
    _sound(hetcal.load_logits(path))


def _sound(found: hetcal.files.LogitsFile) -> None:
    for split in filter(None, (found.val, found.test)):
        n, n_classes = split.logits.shape
        good = np.isfinite(split.logits).all() and len(split.labels) == n
        if not good or split.labels.min() < 0 or split.labels.max() >= n_classes:
            raise AssertionError("rows that should have been refused")


def _predict(made: object) -> None:
    """Use a calibrator that was loaded on rows like those it was tried on."""
    n_classes = made.n_features_in_  # type: ignore[attr-defined]
    if n_classes > 1000 or artefact.uses_groups(made):
        return
    p = made.predict_proba(np.random.default_rng(0).normal(size=(3, n_classes)))  # type: ignore[attr-defined]
    if not np.isfinite(p).all() or p.min() < 0 or np.abs(p.sum(axis=1) - 1).max() > 1e-5:
        raise AssertionError(f"probabilities that are none: {p}")


def _cifar(name: str, folder: Path, base: str, files: tuple[str, ...], content: bytes) -> None:
    (folder / base).mkdir(exist_ok=True)
    for file in files:
        (folder / base / file).write_bytes(content)
    try:
        found = cifar.load(name, folder, strict_size=False)
    except REFUSALS as error:
        _documented(error)
        return
    if found.train_images.shape[1:] != (32, 32, 3) or found.train_labels.max() >= found.n_classes:
        raise AssertionError("images that should have been refused")


def _documented(error: Exception) -> None:
    """Pass on what is not an error of ours: `<argument> must <rule>, got <value>`."""
    if not re.search(r"\S must ", str(error)):
        raise AssertionError(f"not one of our errors: {type(error).__name__}: {error}") from error


def _one(target: Callable[[bytes, Path], None], content: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        try:
            target(content, Path(folder))
        except REFUSALS as error:
            _documented(error)


SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - many small files, in memory


def main() -> None:
    """Fuzz the reader that the command line names."""
    target = TARGETS[sys.argv.pop(1)]
    warnings.simplefilter("ignore")  # what numpy thinks of a header is its own affair
    warnings.filterwarnings("error", module=r"hetcal\.")
    warnings.simplefilter("ignore", CalibrationWarning)
    warnings.filterwarnings("ignore", "Reading `.npy`")  # numpy's advice about files from Python 2
    atheris.Setup(sys.argv, lambda content: _one(target, content))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
