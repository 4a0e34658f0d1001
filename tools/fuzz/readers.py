"""Coverage-guided fuzzing of file readers: every input must give a valid result or an error in our format.

`python tools/fuzz/readers.py NAME CORPUS [libFuzzer options]` fuzzes one reader until it fails;
`tools/fuzz/run.py` fuzzes all of them. `seeds.py` generates valid files to start from.
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
from typing import Any

import atheris
import numpy as np

with atheris.instrument_imports(include=["hetcal", "hetcal_paper"]):  # also those that `seeds` imports
    import seeds

    import hetcal
    from hetcal import artefact, onnx
    from hetcal._warnings import CalibrationWarning
    from hetcal.logits_files import load_unlabelled
    from hetcal_paper import cifar, results, store

ERRORS = (ValueError, TypeError, FileNotFoundError)


def fuzz_npz(content: bytes, folder: Path) -> None:
    """An archive of arrays."""
    _logits(content, folder / "rows.npz")


def fuzz_npz_member(content: bytes, folder: Path) -> None:
    """An array inside a valid archive. Random changes of the archive itself rarely get past its checksums."""
    members = {"logits": seeds.LOGITS, "labels": seeds.LABELS, "class_names": seeds.NAMES, "provenance": b""}
    members[list(members)[content[0] % 4 if content else 0]] = content[1:]
    path = folder / "rows.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name, member in members.items():
            if member:
                archive.writestr(f"{name}.npy", member)
    _check_logits(hetcal.load_logits(path))


def fuzz_npy(content: bytes, folder: Path) -> None:
    """An array of logits with valid labels."""
    (folder / "labels.npy").write_bytes(seeds.LABELS)
    _logits(content, folder / "logits.npy")


def fuzz_npy_labels(content: bytes, folder: Path) -> None:
    """An array of labels with valid logits."""
    (folder / "logits.npy").write_bytes(seeds.LOGITS)
    (folder / "labels.npy").write_bytes(content)
    _check_logits(hetcal.load_logits(folder / "logits.npy"))


def fuzz_csv(content: bytes, folder: Path) -> None:
    """A CSV table."""
    _logits(content, folder / "rows.csv")


def fuzz_parquet(content: bytes, folder: Path) -> None:
    """A Parquet table."""
    _logits(content, folder / "rows.parquet")


def fuzz_calibrator(content: bytes, folder: Path) -> None:
    """A saved calibrator with its checksum, which rejects most changes."""
    path = folder / "cal.json"
    path.write_bytes(content)
    _predict(hetcal.load(path))


def fuzz_calibrator_body(content: bytes, folder: Path) -> None:  # noqa: ARG001 - nothing is written
    """The body of a saved calibrator, with a valid checksum."""
    try:
        body = json.loads(content)
        checksum = artefact._checksum(body)
    except (ValueError, RecursionError):
        return
    whole = {"format": "hetcal.calibrator", "schema": 1, "checksum": checksum, "calibrator": body}
    _predict(artefact.decode(json.dumps(whole), "cal.json"))


def fuzz_cifar_binary(content: bytes, folder: Path) -> None:
    """CIFAR in the binary layout, with the same bytes in every file."""
    for name, layout in cifar.DATA_SETS.items():
        _cifar(name, folder, layout.folder, (*layout.train, layout.test), content)


def fuzz_cifar_archive(content: bytes, folder: Path) -> None:
    """An archive of CIFAR-10 with a valid checksum; if it cannot be unpacked, no folder may remain."""
    layout = cifar.DATA_SETS["c10"]
    cifar.DATA_SETS["c10"] = layout._replace(sha256=hashlib.sha256(content).hexdigest())
    fetched = folder / f".{layout.folder}.part"  # the folder that an interrupted download leaves
    fetched.mkdir()
    (fetched / layout.url.rsplit("/", 1)[-1]).write_bytes(content)
    try:
        target = cifar.download("c10", folder)
    except ERRORS:
        left = [path.name for path in folder.iterdir()]
        if left:
            raise AssertionError(f"an invalid archive left {left}") from None
        raise
    finally:
        cifar.DATA_SETS["c10"] = layout
    if not target.is_dir():
        raise AssertionError("nothing was unpacked")


def fuzz_store_record(content: bytes, folder: Path) -> None:
    """The record of a finished run, with valid logits."""
    (folder / "run.npz").write_bytes(seeds.RUN_ARRAYS)
    (folder / "run.json").write_bytes(content)
    store.read(folder, "run")


def fuzz_store_arrays(content: bytes, folder: Path) -> None:
    """The logits of a finished run, with a valid record."""
    (folder / "run.npz").write_bytes(content)
    (folder / "run.json").write_bytes(seeds.RUN_RECORD)
    run = store.read(folder, "run")
    if run.val_logits.dtype != np.float32 or run.test_labels.dtype != np.int64:
        raise AssertionError("arrays of the wrong type")


def fuzz_results(content: bytes, folder: Path) -> None:
    """Tables of results: one is the fuzzed text, the others are valid."""
    valid = seeds.seeds_of("results")
    for name in results.COLUMNS:
        for file, text in zip(results.COLUMNS, valid, strict=True):
            (folder / f"{file}.csv").write_bytes(content if file == name else text)
        try:
            _use_results(results.read_results(folder))
        except ERRORS as error:
            _check_message(error)


def fuzz_onnx(content: bytes, folder: Path) -> None:
    """An ONNX classifier to which a calibrator is appended; after an error, no file may remain."""
    (folder / "model.onnx").write_bytes(content)
    target = folder / "whole.onnx"
    try:
        onnx.export(seeds.CALIBRATOR, target, folder / "model.onnx")
    except ERRORS:
        if target.exists():
            raise AssertionError("an invalid graph left a file") from None
        raise


TARGETS: dict[str, Callable[[bytes, Path], None]] = {
    name.removeprefix("fuzz_"): value for name, value in globals().items() if name.startswith("fuzz_")
}


def _use_results(tables: results.Results) -> None:
    for run in tables.runs:
        tables.choices(run)
        tables.has(run, "Uncal")
        tables.value(run, "accuracy")
        tables.classes(run, "Uncal", 15)
        tables.curve([run], 15)


def _logits(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    try:
        load_unlabelled(path)
    except ERRORS as error:
        _check_message(error)
    _check_logits(hetcal.load_logits(path))


def _check_logits(file: hetcal.logits_files.LogitsFile) -> None:
    for split in filter(None, (file.val, file.test)):
        n, n_classes = split.logits.shape
        valid = np.isfinite(split.logits).all() and len(split.labels) == n
        if not valid or split.labels.min() < 0 or split.labels.max() >= n_classes:
            raise AssertionError("invalid rows were accepted")


def _predict(calibrator: Any) -> None:
    """Use a loaded calibrator on random rows."""
    n_classes = calibrator.n_features_in_
    if n_classes > 1000 or artefact.uses_groups(calibrator):
        return
    p = calibrator.predict_proba(np.random.default_rng(0).normal(size=(3, n_classes)))
    if not np.isfinite(p).all() or p.min() < 0 or np.abs(p.sum(axis=1) - 1).max() > 1e-5:
        raise AssertionError(f"invalid probabilities: {p}")


def _cifar(name: str, folder: Path, base: str, files: tuple[str, ...], content: bytes) -> None:
    (folder / base).mkdir(exist_ok=True)
    for file in files:
        (folder / base / file).write_bytes(content)
    try:
        data = cifar.load(name, folder, strict_size=False)
    except ERRORS as error:
        _check_message(error)
        return
    if data.train_images.shape[1:] != (32, 32, 3) or data.train_labels.max() >= data.n_classes:
        raise AssertionError("invalid images were accepted")


def _check_message(error: Exception) -> None:
    """Fail unless the error contains `<argument> must`, as all errors of hetcal do."""
    if not re.search(r"\S must ", str(error)):
        raise AssertionError(f"not in the format of our errors: {type(error).__name__}: {error}") from error


def _run(target: Callable[[bytes, Path], None], content: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        try:
            target(content, Path(folder))
        except ERRORS as error:
            _check_message(error)


SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - keeps many small files in memory


def main() -> None:
    """Fuzz the reader named on the command line."""
    target = TARGETS[sys.argv.pop(1)]
    warnings.simplefilter("ignore")  # warnings of other packages are irrelevant
    warnings.filterwarnings("error", module=r"hetcal\.")
    warnings.simplefilter("ignore", CalibrationWarning)
    warnings.filterwarnings("ignore", "Reading `.npy`")  # NumPy's warning about files from Python 2
    atheris.Setup(sys.argv, lambda content: _run(target, content))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
