"""The store of finished runs: two files per run in one folder, written whole or not at all.

``NAME.json`` holds the run, its history and where it was trained; ``NAME.npz`` holds the logits.
Both are written to a temporary file and renamed, the JSON last: its presence means finished. While
a run is under way ``NAME.ckpt`` lets it resume.

Epochs are counted from 1. ``epochs`` in the JSON maps a choice of epoch (``best`` validation
accuracy, ``phase1``, ``phase2``, ... the best within a learning-rate phase, ``last``) to its
number, and ``keys`` maps it to the pair of arrays in the npz, so that choices that coincide are
stored once.
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
from hetcal._write import discard, locked, write_atomic
from hetcal.logits_files import read_arrays

__all__ = ["Result", "checkpoint_path", "finished", "forget_checkpoints", "provenance", "read", "write"]

SCHEMA = 1


@dataclass(frozen=True)
class Result:
    """One finished run as read from the store.

    Attributes
    ----------
    record : dict
        Content of the JSON file.
    val_logits, test_logits : ndarray of float32, shape (n, K)
        Logits of the clean validation and test rows at the chosen epoch.
    val_labels, test_labels : ndarray of int64, shape (n,)
        Their classes.
    """

    record: dict[str, Any]
    val_logits: NDArray[np.float32]
    val_labels: NDArray[np.int64]
    test_logits: NDArray[np.float32]
    test_labels: NDArray[np.int64]


def finished(folder: str | Path) -> set[str]:
    """Return the names of the runs that a folder holds; none if there is no such folder."""
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
        Whose epoch's logits: ``best``, ``phase1``, ``phase2``, ..., ``last``.

    Returns
    -------
    Result
    """
    path = Path(folder) / f"{name}.json"
    if not path.is_file():
        raise FileNotFoundError(f"name must be a finished run of {folder}, got {name}; train it first")
    record = _record(path)
    if choice not in record["keys"]:
        raise ValueError(f'choice must be one of {", ".join(record["keys"])}, got "{choice}"; see epochs')
    val, test = record["keys"][choice]
    arrays = read_arrays(path.with_name(f"{name}.npz"))
    return Result(
        record,
        val_logits=_numbers(arrays, val, path).astype(np.float32),
        val_labels=_numbers(arrays, "val_labels", path).astype(np.int64),
        test_logits=_numbers(arrays, test, path).astype(np.float32),
        test_labels=_numbers(arrays, "test_labels", path).astype(np.int64),
    )


def _record(path: Path) -> dict[str, Any]:
    """JSON of a run, with a pair of arrays for every choice of epoch."""
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be the JSON of a run, got: {error}; train it again") from None
    schema = record.get("schema") if isinstance(record, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"{path} must have schema {SCHEMA}, got {schema!r}; use the version that wrote it")
    keys = record.get("keys")
    if not isinstance(keys, dict) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(key, str) for key in pair)
        for pair in keys.values()
    ):
        raise ValueError(f"{path} must name two arrays for every choice, got {keys!r}; train it again")
    return record


def _numbers(arrays: Mapping[str, NDArray[Any]], key: str, path: Path) -> NDArray[Any]:
    """Array of real numbers by its name."""
    found = arrays.get(key)
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "fiu":
        kind = getattr(found, "dtype", type(found).__name__)
        raise ValueError(f"{path.stem}.npz must hold numbers under {key!r}, got {kind}; train it again")
    return found


def write(
    folder: str | Path, name: str, record: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Write one finished run: the arrays, then the record; its checkpoint is no longer needed."""
    folder = Path(folder)
    text = _one_line_per_key({"schema": SCHEMA, "name": name, **record})
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):  # or two processes with the same run could leave one's arrays and the other's record
        write_atomic(
            folder / f"{name}.npz", lambda sink: np.savez_compressed(sink, allow_pickle=False, **arrays)
        )
        write_atomic(folder / f"{name}.json", lambda sink: sink.write(text.encode()))
    forget_checkpoints(folder, [name])


def forget_checkpoints(folder: str | Path, names: Iterable[str]) -> None:
    """Remove what finished runs no longer need; a process may be killed before it has."""
    for name in names:
        discard(checkpoint_path(folder, name))


def _one_line_per_key(record: Mapping[str, Any]) -> str:
    """JSON that people can read although it holds long lists."""
    lines = (f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in record.items())
    return "{\n " + ",\n ".join(lines) + "\n}\n"


def provenance() -> dict[str, Any]:
    """Versions and commit that a result carries.

    The commit is that of the source tree this file lies in, or ``$HETCAL_GIT_HASH`` where it is
    not in a repository, or None.
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
    """Return where the checkpoint of a run lies."""
    return Path(folder) / f"{name}.ckpt"
