"""Logits in; calibrators in and out. Nothing here unpickles, and nothing is half-written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcal._core.arrays import FloatArray, IntArray, check_groups, check_labels, check_logits, check_probs
from hetcal._core.arrow import ParquetBatches
from hetcal._core.atomic import write_atomic
from hetcal._core.batches import Batches
from hetcal._core.names import printable
from hetcal.artefact import decode, encode, uses_groups
from hetcal.formats import (
    beside_npy,
    labels_beside,
    map_npy,
    parquet_columns,
    read_arrays,
    writer_for,
)

__all__ = [
    "LogitsFile",
    "Split",
    "load",
    "load_logits",
    "load_unlabelled",
    "open_batches",
    "printable",
    "save",
    "save_table",
    "uses_groups",
    "write_atomic",
]

# Trees and rounded tables give exact zeros, whose logarithm no calibrator could use. One number for all
# files, so that rows to fit on and rows to apply to are read alike.
_LEAST_PROB = 1e-6


@dataclass(frozen=True)
class Split:
    """Checked logits (n, K) and labels (n,), with the group of every row where the file has one."""

    logits: FloatArray
    labels: IntArray
    groups: NDArray[Any] | None = None


@dataclass(frozen=True)
class LogitsFile:
    """What a file of logits holds.

    Attributes
    ----------
    val : rows to fit on
    test : rows to judge on, or None where the file has one set only
    class_names : from the file, or None
    path : where it was read from
    about : where the logits come from (JSON under ``provenance`` in an ``.npz``), or an empty mapping
    """

    val: Split
    test: Split | None
    class_names: list[str] | None
    path: str
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def judged(self) -> Split:
        """The rows to judge a model on: the test rows where there are any."""
        return self.val if self.test is None else self.test


def load_logits(path: str | os.PathLike[str], *, labels: str | os.PathLike[str] | None = None) -> LogitsFile:
    """Read logits and labels from ``.npz``, ``.npy``, ``.csv`` or ``.parquet``.

    Parameters
    ----------
    path : file
        ``.npz`` with ``logits`` and ``labels``, or ``val_logits``, ``val_labels``, ``test_logits``,
        ``test_labels``; optional ``groups`` (``val_groups``, …) and ``class_names``. ``.npy`` with the
        logits, the labels in a second file. ``.csv`` and ``.parquet`` with a column ``label``, optional
        ``group`` and ``split`` (val or test), and a numeric column per class in class order, whose names name
        the classes. Where such columns begin with ``logit_``, other columns are left alone, and so is the
        index of a data frame. Labels are class names or class numbers. If the columns are named with whole
        numbers other than 0, 1, 2, … in order, labels go by these names: label 10 is the column named 10.

        Probabilities go in ``probs`` (``val_probs``, …) or in columns that begin with ``prob_``. Their
        logarithms are the logits; a probability below 1e-6 counts as 1e-6.
    labels : file of labels, for ``.npy``; default: the same name with "logits" replaced by "labels"
    """
    source = Path(path)
    if labels is not None and source.suffix.lower() != ".npy":
        raise ValueError(
            f"labels must be left out for {source.suffix} files, which hold their own, got {str(labels)!r}"
        )
    arrays = read_arrays(source)
    if source.suffix.lower() == ".npy":
        arrays["labels"] = labels_beside(source, labels)
    return _assemble(arrays, str(source))


def open_batches(
    path: str | os.PathLike[str], *, labels: str | os.PathLike[str] | None = None, groups: bool = False
) -> Batches:
    """Open a ``.npy`` file, or a ``.parquet`` file or a folder of them, to be read batch by batch.

    Parameters
    ----------
    path : ``.npy`` with the logits, or Parquet with a column of labels and, if wanted, one of groups
    labels : file of labels, for ``.npy``; default: the same name with "logits" replaced by "labels"
    groups : whether to read the group of every row, too
    """
    source = Path(path)
    if source.suffix.lower() == ".npy":
        if groups:
            raise ValueError(f"groups must be in a Parquet file to be read in batches, got {source.name!r}")
        if not source.is_file():
            raise FileNotFoundError(f"LOGITS must be a file, got {str(source)!r}, which does not exist")
        return Batches(map_npy(source), map_npy(beside_npy(source, labels)))
    if source.suffix.lower() != ".parquet" and not source.is_dir():
        raise ValueError(
            f"LOGITS must be .npy, .parquet or a folder of .parquet to be read so, got {source.name!r}"
        )
    if labels is not None:
        raise ValueError(f"labels must be left out for Parquet, which holds its own, got {str(labels)!r}")
    logits, beside = parquet_columns(source, groups)
    return Batches(ParquetBatches(source, logits, beside, None, by_number=True))


def load_unlabelled(
    path: str | os.PathLike[str],
) -> dict[str, tuple[FloatArray, NDArray[Any] | None, list[str] | None]]:
    """Logits, groups and class names of every set in a file, by prefix: none, or ``val_`` and ``test_``."""
    arrays = read_arrays(Path(path))
    prefixes = [p for p in ("", "val_", "test_") if _holds(arrays, p)]
    if not prefixes:
        raise ValueError(
            f"{Path(path).name} must hold 'logits', 'val_logits' or 'test_logits', got {sorted(arrays)}"
        )
    out, names = {}, _class_names(arrays)
    for prefix in prefixes:
        z = _logits(arrays, prefix)
        groups = arrays.get(f"{prefix}groups")
        out[prefix] = (
            z,
            None if groups is None else check_groups(groups, n_rows=len(z), name=f"{prefix}groups"),
            names,
        )
    return out


def save(calibrator: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted calibrator as one small JSON file that :func:`load` reads back.

    Examples
    --------
    >>> import hetcal, tempfile, pathlib
    >>> cal = hetcal.TemperatureScaling().fit([[2.0, 0.0]] * 4, [0, 0, 0, 1])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     hetcal.save(cal, pathlib.Path(folder, "cal.json"))
    ...     hetcal.load(pathlib.Path(folder, "cal.json")).alpha_ == cal.alpha_
    True
    """
    text = encode(calibrator)
    write_atomic(path, lambda file: file.write(text.encode()))


def load(path: str | os.PathLike[str]) -> Any:
    """Read a calibrator that :func:`save` wrote; a file that is damaged or too new is refused."""
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"path must be a calibrator file, got {str(source)!r}, which does not exist")
    try:
        text = source.read_bytes().decode()
    except UnicodeDecodeError:
        raise ValueError(
            f"{source.name} must be a hetcal calibrator in JSON, got bytes that are not text"
        ) from None
    return decode(text, source.name)


def save_table(
    path: str | os.PathLike[str], columns: dict[str, ArrayLike], class_names: list[str] | None = None
) -> None:
    """Write named arrays as ``.npz``, ``.npy`` (a two-dimensional array), ``.csv`` or ``.parquet``.

    With class names a table of probabilities has columns ``prob_<class>``, as :func:`load_logits` reads them,
    unless two classes share a name: then their numbers tell the columns apart.
    """
    target = Path(path)
    writer = writer_for(target)
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    if class_names is not None and any(p.shape[1:] != (len(class_names),) for p in arrays.values()):
        raise ValueError(f"class_names must name every column, got {len(class_names)} names")
    told_apart = class_names is not None and len(set(class_names)) == len(class_names)
    if class_names is not None and told_apart and target.suffix.lower() in (".csv", ".parquet"):
        arrays = {f"prob_{c}": p[:, k] for p in arrays.values() for k, c in enumerate(class_names)}
    write_atomic(target, lambda file: writer(file, arrays))


def _assemble(arrays: dict[str, Any], path: str) -> LogitsFile:
    names = _class_names(arrays)
    if _holds(arrays, ""):
        val, test = _split(arrays, ""), None
    elif _holds(arrays, "val_"):
        val = _split(arrays, "val_")
        test = _split(arrays, "test_") if _holds(arrays, "test_") else None
    else:
        raise ValueError(
            f"{path} must hold 'logits' and 'labels', or 'val_logits', 'val_labels', 'test_logits' "
            f"and 'test_labels', got {sorted(arrays)}"
        )
    n_classes = val.logits.shape[1]
    if test is not None and test.logits.shape[1] != n_classes:
        raise ValueError(
            f"{path}: test_logits must have {n_classes} columns as val_logits, got {test.logits.shape[1]}"
        )
    if names is not None and len(names) != n_classes:
        raise ValueError(
            f"{path}: class_names must have {n_classes} entries, one per column, got {len(names)}"
        )
    return LogitsFile(val, test, names, path, _about(arrays))


def _about(arrays: dict[str, Any]) -> dict[str, Any]:
    try:
        about = json.loads(str(arrays.get("provenance", "{}")))
    except (ValueError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def _class_names(arrays: dict[str, Any]) -> list[str] | None:
    names = arrays.get("class_names")
    return None if names is None else [printable(n) for n in np.ravel(names)]


def _holds(arrays: dict[str, Any], prefix: str) -> bool:
    return f"{prefix}logits" in arrays or f"{prefix}probs" in arrays


def _logits(arrays: dict[str, Any], prefix: str) -> FloatArray:
    """Checked logits, or the logarithms of checked probabilities where the file says that it holds those."""
    if f"{prefix}logits" not in arrays:
        probs = check_probs(_rescaled(arrays[f"{prefix}probs"]), name=f"{prefix}probs")
        return np.log(np.maximum(probs, _LEAST_PROB))
    name = f"{prefix}logits"
    try:
        return check_logits(arrays[name], name=name)
    except ValueError as error:
        if "hetcal.to_logits" not in str(error):
            raise
        raise ValueError(
            f"{error}; in a file name them prob_<class> (columns) or {prefix}probs (.npz)"
        ) from None


def _rescaled(probs: ArrayLike) -> NDArray[Any]:
    """Rows that miss a sum of 1 by no more than two digits after the point can explain, made to sum to 1."""
    p = np.asarray(probs)
    if p.ndim != 2 or p.dtype.kind != "f":
        return p
    sums = p.sum(axis=1, keepdims=True)
    slight = np.abs(sums - 1) <= min(0.005 * p.shape[1], 0.05)
    return np.asarray(np.divide(p, sums, out=p.copy(), where=slight))


def _split(arrays: dict[str, Any], prefix: str) -> Split:
    if f"{prefix}labels" not in arrays:
        raise ValueError(
            f"the file must hold {prefix}labels beside {prefix}logits, got {sorted(arrays)}; "
            "in a table they are a column 'label', 'labels', 'y' or 'target'"
        )
    z = _logits(arrays, prefix)
    y = check_labels(arrays[f"{prefix}labels"], n_rows=len(z), n_classes=z.shape[1], name=f"{prefix}labels")
    groups = arrays.get(f"{prefix}groups")
    return Split(
        z, y, None if groups is None else check_groups(groups, n_rows=len(z), name=f"{prefix}groups")
    )
