"""Files with results: written from a store of finished runs, and read to reproduce tables and figures.

:func:`summarise` evaluates the finished runs of a store and adds them to four CSV files:

``runs.csv``     one line per run: what was trained, where, and which epochs were chosen
``metrics.csv``  accuracy, confidence, NLL and calibration errors by method, with noise floors
``classes.csv``  ECE, error and confidence by class, for the runs of tables and figures that need them
``curves.csv``   reliability bins of the uncalibrated model, for the runs shown in reliability diagrams

The noise floor of a calibration error is its expected value for a perfectly calibrated model with the same
confidences. ``metrics.csv`` also contains statistics of fitted class-wise temperatures. Computed numbers
are rounded to six significant digits. Lines are sorted by run, so adding a run changes no existing line.

:func:`summarise` also copies the logits of some runs to ``logits/``: those of the two tables and of the study
of calibrators (``benchmarks/study.py``).

If a run is trained again with the same seed and added with ``force=True``, its new lines replace those of the
first training. The lines of the first training move to the folder ``first-trainings``, so that both trainings
can be compared.

The column ``half`` tells which test rows a number refers to: ``all``, or those whose true class is in the
half ``low`` or ``high``. The half ``low`` consists of the corrupted classes or, if the corruption affects all
classes or none, of the first half of the classes. The half ``high`` consists of the other classes. Max-ECE
and Avg-ECE are computed by predicted class and only over all rows.

A run has results at several epochs, such as ``best`` and ``last``. If two of these names select the same
epoch, its results are stored once, under the first name.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hetcal.metrics import ReliabilityCurve
from hetcal_paper import store
from hetcal_paper.evaluate_run import COLUMNS, evaluate_run, stored_choice
from hetcal_paper.files import locked, write_atomic, write_text
from hetcal_paper.runs import items_of

__all__ = ["REEVALUATE", "ClassRows", "Results", "merge", "read_results", "summarise", "summarised"]

#: Remedy in errors about missing values. An older version of this package may not have computed them.
REEVALUATE = "evaluate the runs again with `hetcal pages --store RUNS --force`"

#: Tables whose runs are stored with logits.
_TABLES_WITH_LOGITS = {"table1", "table2"}
#: Other runs whose logits are stored, for the study of calibrators (``benchmarks/study.py``).
_RUNS_WITH_LOGITS = (
    *("c10-clean-s0", "c10-clean-s1", "c10-under-0-4-r0.06-s0", "c10-under-0-4-r0.06-s1"),
    *("c10-few-n100-s0", "c10-noise-all-r0.30-s0", "c100-noise-0-49-r0.30-s0-wd0.0003"),
)
_NUMBERS = {
    "metrics": ("value", "floor"),
    "classes": ("n", "ece", "floor", "error", "n_true", "error_true", "confidence_true"),
    "curves": ("bin", "count", "confidence", "correct"),
    "runs": (),
}
_FIRST = "first-trainings"  # folder with the first training of runs that were trained twice
_LAST = "runs"  # this file is written last, so a run that it lists is complete in all files
_FILES = sorted(COLUMNS, key=lambda file: file == _LAST)
#: Columns of ``runs.csv`` that distinguish two trainings of the same run.
_TRAINING = ("chosen", "val_accuracy", "test_accuracy", "seconds")


@dataclass(frozen=True, eq=False)
class ClassRows:
    """Results of one run and method by class.

    All arrays have shape (K,). Metrics are nan for classes without rows.

    Attributes
    ----------
    n, ece, floor, error
        Number, ECE, noise floor of the ECE, and classification error of the rows predicted as the class.
    n_true, error_true, confidence_true
        Number, classification error and mean confidence of the rows whose true label is the class.
    """

    n: NDArray[np.float64]
    ece: NDArray[np.float64]
    floor: NDArray[np.float64]
    error: NDArray[np.float64]
    n_true: NDArray[np.float64]
    error_true: NDArray[np.float64]
    confidence_true: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Results:
    """A folder of results. Each file is read when it is first needed.

    Attributes
    ----------
    folder : Path
    first_trainings : bool
        Whether runs that were trained twice are represented by the first training.
    """

    folder: Path
    first_trainings: bool = False

    @cached_property
    def runs(self) -> dict[str, dict[str, str]]:
        """Lines of ``runs.csv`` by name of the run."""
        return {line["run"]: line for line in self._table("runs").to_dict("records")}

    @cached_property
    def trained_twice(self) -> dict[str, dict[str, str]]:
        """Lines about the first training of each run that was trained twice, by name of the run."""
        lines = _lines(self.folder / _FIRST, "runs").to_dict("records")
        return {line["run"]: line for line in lines}

    def choices(self, run: str) -> dict[str, int]:
        """Return the number of the epoch that each choice selects.

        The choices are ``best``, ``phase1``, ``phase2``, ..., ``last`` and, with early stopping, ``early``.
        """
        return self._choices[run]

    def value(
        self,
        run: str,
        metric: str,
        *,
        method: str = "Uncal",
        bins: int | None = None,
        half: str = "all",
        choice: str = "best",
    ) -> tuple[float, float]:
        """Return the value and the noise floor of a metric; the floor is nan if the metric has none.

        The noise floor of a calibration error is its expected value for a perfectly calibrated model with the
        same confidences. ``gap`` is mean confidence − accuracy.
        """
        if metric == "gap":
            confidence, accuracy = (
                self.value(run, name, method=method, half=half, choice=choice)[0]
                for name in ("confidence", "accuracy")
            )
            return confidence - accuracy, float("nan")
        key = (run, self._stored(run, choice), method, metric, "" if bins is None else str(bins), half)
        if key not in self._metrics:
            raise ValueError(_missing("metrics", *key))
        return self._metrics[key]

    def has(self, run: str, method: str, choice: str = "best", metric: str = "accuracy") -> bool:
        """Whether the results of a run include a metric of a method; the metric must not depend on bins."""
        return (run, self._stored(run, choice), method, metric, "", "all") in self._metrics

    def classes(self, run: str, method: str, bins: int, choice: str = "best") -> ClassRows:
        """Return the results of one method on one run, by class."""
        key = (run, self._stored(run, choice), method, str(bins))
        if key not in self._classes:
            raise ValueError(_missing("classes", *key))
        return self._classes[key]

    def curve(
        self, runs: Iterable[str], bins: int, half: str = "all", choice: str = "best"
    ) -> ReliabilityCurve:
        """Return the reliability curve of the uncalibrated model, pooled over the test rows of these runs."""
        sums = np.zeros((3, bins))
        for run in runs:
            key = (run, self._stored(run, choice), str(bins), half)
            if key not in self._curves:
                raise ValueError(_missing("curves", *key))
            index, *columns = self._curves[key]
            sums[:, index.astype(np.int64)] += columns
        count, confidence, correct = sums
        divisor = np.where(count > 0, count, np.nan)
        edges = np.arange(bins + 1) / bins
        return ReliabilityCurve(edges, count.astype(np.int64), confidence / divisor, correct / divisor)

    def _stored(self, run: str, choice: str) -> str:
        """Return the first choice with the same epoch as `choice`; the results are stored under that name."""
        epochs = self.choices(run)
        if choice not in epochs:
            raise ValueError(
                f"choice must be one of {', '.join(epochs)}, got {choice!r}; pass one that {run} has"
            )
        return next(name for name, epoch in epochs.items() if epoch == epochs[choice])

    @cached_property
    def _choices(self) -> dict[str, dict[str, int]]:
        chosen = {name: line["chosen"].split() for name, line in self.runs.items()}
        try:
            return {
                name: {choice: int(epoch) for choice, epoch in (pair.split("=") for pair in pairs)}
                for name, pairs in chosen.items()
            }
        except ValueError:
            path = self.folder / "runs.csv"
            raise ValueError(
                f"{path} must list epochs such as best=3 in the column 'chosen', got other text; {_REPAIR}"
            ) from None

    def _table(self, file: str) -> pd.DataFrame:
        """Return the lines of a file.

        With `first_trainings`, runs that were trained twice are represented by their first training.
        """
        lines = _read(self.folder, file)
        if not self.first_trainings or not self.trained_twice:
            return lines
        unchanged = lines[~lines["run"].isin(self.trained_twice)]
        return pd.concat([unchanged, _read(self.folder / _FIRST, file)])

    @cached_property
    def _metrics(self) -> dict[tuple[str, ...], tuple[float, float]]:
        table = self._table("metrics")
        keys = zip(
            *(table[key] for key in ("run", "choice", "method", "metric", "bins", "half")), strict=True
        )
        return dict(zip(keys, zip(table["value"], table["floor"], strict=True), strict=True))

    @cached_property
    def _classes(self) -> dict[tuple[str, ...], ClassRows]:
        groups = self._table("classes").groupby(["run", "choice", "method", "bins"], sort=False)
        columns = list(_NUMBERS["classes"])
        return {key: ClassRows(*lines[columns].to_numpy(np.float64).T) for key, lines in groups}

    @cached_property
    def _curves(self) -> dict[tuple[str, ...], NDArray[np.float64]]:
        groups = self._table("curves").groupby(["run", "choice", "bins", "half"], sort=False)
        columns = list(_NUMBERS["curves"])
        return {key: lines[columns].to_numpy(np.float64).T for key, lines in groups}


def read_results(folder: str | Path, *, first_trainings: bool = False) -> Results:
    """Open a folder of results written by :func:`summarise`; see :class:`Results`."""
    folder = Path(folder)
    if not (folder / "runs.csv").is_file():
        raise FileNotFoundError(
            f"results must be a folder with runs.csv, got {str(folder)!r}; "
            "write one with `hetcal train NAME --summary DIR`"
        )
    return Results(folder, first_trainings)


def summarised(folder: str | Path) -> set[str]:
    """Return the names of the runs in a folder of results; an empty set if there are none."""
    return set(_lines(Path(folder), _LAST)["run"])


def summarise(
    store_dir: str | Path,
    results_dir: str | Path,
    *,
    force: bool = False,
    on_run: Callable[[str], object] | None = None,
) -> tuple[str, ...]:
    """Evaluate the finished runs of a store and add them to a folder of results.

    Runs that the folder already contains are skipped unless ``force`` is true.

    Parameters
    ----------
    store_dir : path
        The store written by training.
    results_dir : path
        Folder of results; created if needed.
    force : bool
        Whether to evaluate all runs again, including those that the folder already contains. If such a run
        has been trained again, the results of its first training move to the folder ``first-trainings``.
    on_run : callable, optional
        Called with the name of each run before its evaluation.

    Returns
    -------
    tuple of str
        Names of the runs that were added or replaced.
    """
    folder = Path(results_dir)
    present = summarised(folder)
    names = [name for name in sorted(store.finished(store_dir)) if force or name not in present]
    if not names:
        return ()
    folder.mkdir(parents=True, exist_ok=True)
    tables = []
    for name in names:
        if on_run is not None:
            on_run(name)
        tables.append(evaluate_run(store_dir, name))
        if name in _RUNS_WITH_LOGITS or items_of(name) & _TABLES_WITH_LOGITS:
            _write_logits(Path(store_dir), folder, name)
    _add(folder, {file: pd.concat([table[file] for table in tables]) for file in COLUMNS})
    return tuple(names)


def merge(source_dir: str | Path, results_dir: str | Path, *, force: bool = False) -> tuple[str, ...]:
    """Add the runs of another folder of results.

    Parameters
    ----------
    source_dir : path
        Folder of results, such as one written on a machine with a GPU.
    results_dir : path
        Folder to which the runs are added; created if needed.
    force : bool
        Whether to replace runs that the folder already contains, as in :func:`summarise`. Otherwise they stay
        unchanged.

    Returns
    -------
    tuple of str
        Names of the runs that were added or replaced.
    """
    source, folder = Path(source_dir), Path(results_dir)
    for file in COLUMNS:
        _read(source, file)  # reject damaged files before writing anything
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(summarised(source) - (set() if force else summarised(folder)))
    for name in names:
        _copy_logits(source, folder, name)
    tables = {file: _lines(source, file) for file in COLUMNS}
    _add(folder, {file: table[table["run"].isin(names)] for file, table in tables.items()})
    return tuple(names)


def _copy_logits(source: Path, folder: Path, name: str) -> None:
    path = source / "logits" / f"{name}.npz"
    if path.is_file():
        content = path.read_bytes()
        (folder / "logits").mkdir(exist_ok=True)
        write_atomic(folder / "logits" / path.name, lambda file: file.write(content))


def _write_logits(store_dir: Path, folder: Path, name: str) -> None:
    """Write the logits of the epoch that represents a run, for ``hetcal.load_logits``."""
    result = store.read(store_dir, name, stored_choice(store.read_record(store_dir, name)))
    arrays: dict[str, Any] = {
        "val_logits": result.val_logits.astype(np.float16),
        "val_labels": result.val_labels.astype(np.uint8),
        "test_logits": result.test_logits.astype(np.float16),
        "test_labels": result.test_labels.astype(np.uint8),
    }
    (folder / "logits").mkdir(exist_ok=True)
    path = folder / "logits" / f"{name}.npz"
    write_atomic(path, lambda file: np.savez_compressed(file, allow_pickle=False, **arrays))


def _add(folder: Path, new: Mapping[str, pd.DataFrame]) -> None:
    """Add the lines of new runs to all files, sorted by run; existing lines of these runs are replaced."""
    names = new[_LAST]["run"]
    with locked(folder):  # other processes may add runs at the same time
        _keep_first_trainings(folder, new[_LAST])
        for file in _FILES:
            old = _lines(folder, file)
            _write_lines(folder, file, pd.concat([old[~old["run"].isin(names)], new[file]]))


def _keep_first_trainings(folder: Path, new: pd.DataFrame) -> None:
    """Copy the lines of runs that were trained again to the folder ``first-trainings``.

    `new` contains the lines of the second trainings, which will replace the copied lines. Runs that
    ``first-trainings`` already contains are left unchanged.
    """
    first, before, after = folder / _FIRST, _trainings(_lines(folder, _LAST)), _trainings(new)
    names = {run for run, training in after.items() if before.get(run, training) != training}
    names -= summarised(first)
    if not names:
        return
    first.mkdir(exist_ok=True)
    for file in _FILES:
        kept, old = (table[table["run"].isin(names)] for table in (_lines(folder, file), _lines(first, file)))
        _write_lines(first, file, pd.concat([_lines(first, file).drop(old.index), kept]))


def _trainings(lines: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    """Return, for each run, the values that distinguish two trainings."""
    return {run: tuple(values) for run, *values in lines[["run", *_TRAINING]].itertuples(index=False)}


def _write_lines(folder: Path, file: str, lines: pd.DataFrame) -> None:
    text = lines.sort_values("run", kind="stable").to_csv(index=False, lineterminator="\n")
    write_text(folder / f"{file}.csv", text)


_REPAIR = "restore it from version control, or delete it and run `hetcal pages --store RUNS --force`"


def _missing(file: str, *key: str) -> str:
    return f"{file}.csv must have a line for {', '.join(filter(None, key))}, got none; {REEVALUATE}"


def _lines(folder: Path, file: str) -> pd.DataFrame:
    """Return the lines of a file as text; an empty table if the file does not exist."""
    path, columns = folder / f"{file}.csv", list(COLUMNS[file])
    if not path.is_file():
        return pd.DataFrame(columns=columns, dtype=str)
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        raise ValueError(f"{path} must end with a complete line, got a truncated file; {_REPAIR}")
    try:
        lines = pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False)
    except (ValueError, OverflowError) as error:  # ParserError and UnicodeDecodeError are ValueErrors
        raise ValueError(f"{path} must be a CSV table, got: {error}; {_REPAIR}") from None
    if list(lines.columns) != columns:
        header = ",".join(map(str, lines.columns))
        raise ValueError(f"{path} must begin with the line {','.join(columns)}, got {header}; {_REPAIR}")
    return lines


def _read(folder: Path, file: str) -> pd.DataFrame:
    """Return the lines of a file, with its numeric columns as float64 and their empty cells as nan.

    A file that does not exist raises an error.
    """
    if not (folder / f"{file}.csv").is_file():
        raise FileNotFoundError(
            f"results must contain {file}.csv, got {str(folder)!r} without it; copy the whole folder"
        )
    lines = _lines(folder, file)
    for column in _NUMBERS[file]:
        try:
            lines[column] = pd.to_numeric(lines[column].where(lines[column] != "")).astype(np.float64)
        except ValueError as error:
            path = folder / f"{file}.csv"
            raise ValueError(
                f"{path} must have numbers in the column {column!r}, got: {error}; {_REPAIR}"
            ) from None
    return lines
