"""The store of finished runs: two files per run in one folder.

``NAME.json`` contains the run, its history and its provenance; ``NAME.npz`` contains the logits and the true
labels. Both are written atomically, the JSON last, so its presence means that the run is complete. During
training, checkpoints are written to ``NAME.ckpt``.

The logits are stored for several choices of epoch: ``best`` (best validation accuracy), ``phase1``,
``phase2``, ... (best of a learning-rate phase) and ``last``. In the JSON, ``epochs`` maps each choice to its
epoch, counted from 1. ``keys`` maps each choice to two names of arrays in the npz file: the validation logits
and the test logits. Choices of the same epoch share their arrays.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal import __version__
from hetcal_paper.files import locked, write_atomic, write_text

__all__ = [
    "Result",
    "checkpoint_path",
    "finished",
    "provenance",
    "read",
    "read_record",
    "remove_checkpoints",
    "write",
]

SCHEMA = 1
_MAX_UNPACKED = 1 << 30  # limit in bytes for all arrays of a run; runs of the paper have less than 20 million
_AGAIN = "delete the .json file and train the run again"


@dataclass(frozen=True)
class Result:
    """One finished run at one chosen epoch.

    Attributes
    ----------
    record : dict
        Content of the JSON file.
    val_logits, test_logits : ndarray of float32, shape (n, K)
        Logits of the uncorrupted validation and test rows.
    val_labels, test_labels : ndarray of int64, shape (n,)
        True classes.
    """

    record: dict[str, Any]
    val_logits: NDArray[np.float32]
    val_labels: NDArray[np.int64]
    test_logits: NDArray[np.float32]
    test_labels: NDArray[np.int64]


def finished(folder: str | Path) -> set[str]:
    """Return the names of the finished runs in a folder; an empty set if the folder does not exist."""
    return {path.name.removesuffix(".json") for path in Path(folder).glob("*.json")}


def read(folder: str | Path, name: str, choice: str = "best") -> Result:
    """Read one finished run.

    Parameters
    ----------
    folder : path
        The store.
    name : str
        Name of the run.
    choice : str
        Choice of epoch: ``best``, ``phase1``, ``phase2``, ..., ``last``.

    Returns
    -------
    Result
    """
    path = Path(folder) / f"{name}.json"
    record = read_record(folder, name)
    if choice not in record["keys"]:
        choices = ", ".join(record["keys"])
        raise ValueError(f'choice must be one of {choices}, got "{choice}"; see "epochs" in {path}')
    val, test = record["keys"][choice]
    arrays = _arrays(path.with_name(f"{name}.npz"))
    return Result(
        record,
        val_logits=_numbers(arrays, val, path).astype(np.float32),
        val_labels=_numbers(arrays, "val_labels", path).astype(np.int64),
        test_logits=_numbers(arrays, test, path).astype(np.float32),
        test_labels=_numbers(arrays, "test_labels", path).astype(np.int64),
    )


def read_record(folder: str | Path, name: str) -> dict[str, Any]:
    """Return the content of the JSON file of a finished run."""
    path = Path(folder) / f"{name}.json"
    if not path.is_file():
        raise FileNotFoundError(f"name must be a finished run of {folder}, got {name}; train it first")
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be the JSON record of a run, got: {error}; {_AGAIN}") from None
    schema = record.get("schema") if isinstance(record, dict) else None
    if schema != SCHEMA:
        raise ValueError(
            f"{path} must have schema {SCHEMA}, got {schema!r}; "
            f"read it with the version of hetcal-paper that wrote it, or {_AGAIN}"
        )
    keys = record.get("keys")
    if not isinstance(keys, dict) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(key, str) for key in pair)
        for pair in keys.values()
    ):
        raise ValueError(
            f"'keys' in {path} must map each choice of epoch to two array names, got {keys!r}; {_AGAIN}"
        )
    return record


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return all arrays of an npz file by name; raise an error if they are larger than the limit."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            unpacked = sum(member.file_size for member in archive.zip.infolist())
            if unpacked <= _MAX_UNPACKED:
                return {key: archive[key] for key in archive.files}
    except FileNotFoundError:
        raise
    except Exception as error:  # NumPy and zipfile raise many types of errors for damaged files
        raise ValueError(f"{path} must be a valid .npz file, got: {error}; {_AGAIN}") from None
    raise ValueError(f"{path} must contain at most {_MAX_UNPACKED} bytes of arrays, got {unpacked}; {_AGAIN}")


def _numbers(arrays: Mapping[str, NDArray[Any]], key: str, path: Path) -> NDArray[Any]:
    """Return the array with this name; raise an error if it does not exist or is not numeric."""
    array = arrays.get(key)
    if array is None or array.dtype.kind not in "fiu":
        dtype = "no such array" if array is None else array.dtype
        raise ValueError(f"{path.stem}.npz must contain numbers under {key!r}, got {dtype}; {_AGAIN}")
    return array


def write(
    folder: str | Path, name: str, record: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Write one finished run, first the arrays and then the record, and remove its checkpoint."""
    folder = Path(folder)
    text = _one_line_per_key({"schema": SCHEMA, "name": name, **record})
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):  # another process may be writing the same run
        write_atomic(
            folder / f"{name}.npz", lambda file: np.savez_compressed(file, allow_pickle=False, **arrays)
        )
        write_text(folder / f"{name}.json", text)
    remove_checkpoints(folder, [name])


def remove_checkpoints(folder: str | Path, names: Iterable[str]) -> None:
    """Remove the checkpoints of the runs with these names, where they exist."""
    for name in names:
        checkpoint_path(folder, name).unlink(missing_ok=True)


def _one_line_per_key(record: Mapping[str, Any]) -> str:
    """Format JSON with one line per key of ``record``, so that long lists stay readable."""
    lines = (f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in record.items())
    return "{\n " + ",\n ".join(lines) + "\n}\n"


def provenance() -> dict[str, Any]:
    """Return the versions of Python and of packages, and the git commit.

    The commit is that of the repository that contains this file. Outside a repository, or without git, it is
    ``$HETCAL_GIT_HASH``, or None if the variable is not set.
    """
    versions = {"hetcal": __version__, "python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in ("numpy", "torch")}
    commit = os.environ.get("HETCAL_GIT_HASH")
    if (git := shutil.which("git")) is not None:
        command = [git, "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed
        commit = answer.stdout.strip() if answer.returncode == 0 else commit
    return {"versions": versions, "git": commit}


def checkpoint_path(folder: str | Path, name: str) -> Path:
    """Return the path of the checkpoint of a run."""
    return Path(folder) / f"{name}.ckpt"
