"""Logits in; calibrators in and out. Nothing here unpickles, and nothing is half-written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcal._arrow import ParquetBatches
from hetcal._columns import class_names_of, labels_by_number
from hetcal._display import printable
from hetcal._numeric.probabilities import log_probs, probability_floor
from hetcal._typing import FloatArray, IntArray
from hetcal._validate import check_groups, check_labels, check_logits, check_probs
from hetcal._write import write_atomic
from hetcal.artefact import decode, encode, uses_groups
from hetcal.batches import Batches
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


_ONE_SCORE = "for one score s per row write two columns, 0 and s"
_ONE_PROB = "for one probability p per row write two columns, 1 - p and p"


@dataclass(frozen=True)
class Split:
    """Checked rows of a file.

    Attributes
    ----------
    logits : (n, K) scores, or the logarithms of the probabilities
    labels : (n,) true classes; none for a file that is read without them
    groups : (n,) group of every row, or None
    fold_groups : (n,) names of what stays together in cross-validation, or None
    probs : (n, K) probabilities as the file has them, or None where it has logits
    prob_floor : what smaller probabilities count as in `logits`, which is that of the rows to fit on
    """

    logits: FloatArray
    labels: IntArray
    groups: NDArray[Any] | None = None
    fold_groups: NDArray[Any] | None = None
    probs: FloatArray | None = None
    prob_floor: float | None = None

    @property
    def scores(self) -> dict[str, FloatArray]:
        """What the file holds, as the argument `logits` or `probs` of a calibrator."""
        return {"logits": self.logits} if self.probs is None else {"probs": self.probs}


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
    labels_by_name : whether labels were given as names, so that they hold for any order of the columns
    """

    val: Split
    test: Split | None
    class_names: list[str] | None
    path: str
    about: Mapping[str, Any] = field(default_factory=dict)
    labels_by_name: bool = False

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
        ``test_labels``; optional ``groups``, ``fold_groups`` (``val_groups``, …) and ``class_names``.
        ``.npy`` with the logits, the labels in a second file. ``.csv`` and ``.parquet`` with a column
        ``label``, optional ``group``, ``fold_group`` and ``split`` (val or test), and a numeric column per
        class, whose names name the classes. Where such columns begin with ``logit_``, other columns are left
        alone, and so is the index of a data frame. Labels are class names or class numbers. If the columns
        are named with whole numbers other than 0, 1, 2, … in order, labels go by these names: label 10 is
        the column named 10.

        Probabilities go in ``probs`` (``val_probs``, …) or in columns that begin with ``prob_``. Their
        logarithms are the logits; an exact zero counts as half of the smallest positive probability among
        the rows to fit on.
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
        z = map_npy(source)
        if z.ndim != 2 or z.shape[1] < 2:
            raise ValueError(
                f"{source.name} must be of shape (n, K), K at least 2, got {z.shape}; {_ONE_SCORE}"
            )
        return Batches(z, map_npy(beside_npy(source, labels)))
    if source.suffix.lower() != ".parquet" and not source.is_dir():
        raise ValueError(
            "LOGITS must be .npy, .parquet or a folder of .parquet to be read in batches, "
            f"got {source.name!r}; leave out --in-batches"
        )
    if labels is not None:
        raise ValueError(f"labels must be left out for Parquet, which holds its own, got {str(labels)!r}")
    logits, beside = parquet_columns(source, groups)
    names = class_names_of(logits) if len(logits) > 1 else None
    return Batches(ParquetBatches(source, logits, beside, None, by_number=True), class_names=names)


def load_unlabelled(path: str | os.PathLike[str]) -> tuple[dict[str, Split], list[str] | None]:
    """Rows of every set in a file, by prefix (none, or ``val_`` and ``test_``), and the class names."""
    arrays = read_arrays(Path(path))
    prefixes = [p for p in ("", "val_", "test_") if _holds(arrays, p)]
    if not prefixes:
        raise ValueError(
            f"{Path(path).name} must hold 'logits', 'val_logits' or 'test_logits', got {sorted(arrays)}"
        )
    return {prefix: _rows(arrays, prefix, None) for prefix in prefixes}, _class_names(arrays)


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
    path: str | os.PathLike[str], columns: Mapping[str, ArrayLike], class_names: list[str] | None = None
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
    elif class_names is not None and target.suffix.lower() == ".npz":
        arrays["class_names"] = np.array(class_names)
    write_atomic(target, lambda file: writer(file, arrays))


def _assemble(arrays: dict[str, Any], path: str) -> LogitsFile:
    names = _class_names(arrays)
    first = "" if _holds(arrays, "") else "val_"
    if not _holds(arrays, first):
        raise ValueError(
            f"{path} must hold 'logits' and 'labels', or 'val_logits', 'val_labels', 'test_logits' "
            f"and 'test_labels', got {sorted(arrays)}"
        )
    val, by_name = _split(arrays, first, None)
    n_classes = val.logits.shape[1]
    test = None
    if first and _holds(arrays, "test_"):
        test, also = _split(arrays, "test_", val.prob_floor)
        by_name &= also
    if test is not None and test.logits.shape[1] != n_classes:
        raise ValueError(
            f"{path}: test_logits must have {n_classes} columns as val_logits, got {test.logits.shape[1]}"
        )
    if names is not None and len(names) != n_classes:
        raise ValueError(
            f"{path}: class_names must have {n_classes} entries, one per column, got {len(names)}"
        )
    by_name |= bool(arrays.get("labels_by_name", False))
    return LogitsFile(val, test, names, path, _about(arrays), by_name)


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


def _rows(arrays: dict[str, Any], prefix: str, floor: float | None) -> Split:
    """Checked logits, or checked probabilities with their logarithms where the file holds those."""
    name, probs = f"{prefix}logits", None
    if name in arrays:
        remedy = f"name probabilities prob_<class> (columns) or {prefix}probs (.npz)"
        z = check_logits(arrays[name], name=name, probs_remedy=remedy, binary_remedy=_ONE_SCORE)
    else:
        remedy = f"name unnormalised scores logit_<class> (columns) or {prefix}logits (.npz)"
        given = _rescaled(arrays[f"{prefix}probs"])
        probs = check_probs(given, name=f"{prefix}probs", shape_remedy=_ONE_PROB, scores_remedy=remedy)
        floor = probability_floor(probs) if floor is None else floor
        z = log_probs(probs, floor)
    groups, together = (
        check_groups(arrays[key], n_rows=len(z), name=key) if key in arrays else None
        for key in (f"{prefix}groups", f"{prefix}fold_groups")
    )
    return Split(z, np.empty(0, np.int64), groups, together, probs, floor if probs is not None else None)


def _rescaled(probs: ArrayLike) -> NDArray[Any]:
    """Rows that miss a sum of 1 by no more than two digits after the point can explain, made to sum to 1."""
    p = np.asarray(probs)
    if p.ndim != 2 or p.dtype.kind != "f":
        return p
    sums = p.sum(axis=1, keepdims=True)
    slight = np.abs(sums - 1) <= min(0.005 * p.shape[1], 0.05)
    return np.asarray(np.divide(p, sums, out=p.copy(), where=slight))


def _split(arrays: dict[str, Any], prefix: str, floor: float | None) -> tuple[Split, bool]:
    """Rows with labels, and whether these were names."""
    if f"{prefix}labels" not in arrays:
        raise ValueError(
            f"the file must hold {prefix}labels beside {prefix}logits, "
            f"got {sorted(set(arrays) - {'labels_by_name'})}; "
            "in a table they are a column 'label', 'labels', 'y' or 'target'"
        )
    rows, labels = _rows(arrays, prefix, floor), np.asarray(arrays[f"{prefix}labels"])
    n, k = rows.logits.shape
    names = [str(name) for name in np.ravel(arrays["class_names"])] if "class_names" in arrays else None
    by_name, given = labels.dtype.kind in "UO", labels
    if "labels_by_name" not in arrays:  # labels of a table are positions already
        labels = np.asarray(labels_by_number(labels, None, arrays.get("class_names")))
        by_name |= labels is not given
    remedy = "add an array 'class_names' to an .npz file, or"
    y = check_labels(
        labels, n_rows=n, n_classes=k, class_names=names, name=f"{prefix}labels", names_remedy=remedy
    )
    return replace(rows, labels=y), by_name
