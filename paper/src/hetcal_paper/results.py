"""Raw runs to small tidy files, and those files back to numbers.

``summarise`` reads finished runs from a store of logits, fits the paper's methods on the validation
rows, judges them on the test rows and adds what it finds to four tables in the results folder:

``runs.csv``     a line per run: what was trained, where, and which epochs were kept
``metrics.csv``  accuracy, confidence, NLL, ECE, max-ECE and Avg-ECE by method, with their noise floors
``classes.csv``  the same by class, for the runs whose classes the paper shows
``curves.csv``   reliability bins of the uncalibrated model, for the runs that the paper draws so

and, for the runs of the two tables and of the study, the logits under ``logits/``. Numbers have six digits
and lines are in order of run names, so that a new run adds lines and changes none. ``half`` is by true
label: ``low`` are the classes that noise or under-sampling applies to (the first half where it applies
to all or none), ``high`` the others. Max-ECE and Avg-ECE are about predicted classes and are given for
all rows only. Choices of epoch that coincide are stored once, under the first of their names.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._write import locked, write_atomic
from hetcal.metrics import ReliabilityCurve
from hetcal_paper import store
from hetcal_paper.judging import COLUMNS, judge, kept_as
from hetcal_paper.runs import paper_grid

__all__ = ["ClassRows", "Results", "merge", "read_results", "summarise"]

_LOGITS_OF = ("table1", "table2")
#: Other runs whose logits are kept, for the study of calibrators (``benchmarks/study.py``).
_LOGITS_TOO = (
    *("c10-clean-s0", "c10-clean-s1", "c10-under-0-4-r0.06-s0", "c10-under-0-4-r0.06-s1"),
    *("c10-few-n100-s0", "c10-noise-all-r0.30-s0", "c100-noise-0-49-r0.30-s0-wd0.0003"),
)
# What is read as numbers, and how they are written; nan and an empty field stand for none.
_PATTERNS = {
    "chosen": r"(\w+=\d+)( \w+=\d+)*",
    "bin": r"\d+",
    **dict.fromkeys(
        (
            "value",
            "floor",
            "n",
            "ece",
            "error",
            "n_true",
            "error_true",
            "confidence_true",
            "count",
            "correct",
        ),
        r"(nan|-?\d+(\.\d+)?(e[-+]?\d+)?)?",
    ),
}
_MARK = "runs"  # written last: a run that it lists is complete in all files


@dataclass(frozen=True, eq=False)
class ClassRows:
    """One run and method by class, (K,) arrays, nan where there is no row.

    Attributes
    ----------
    n, ece, floor, error : of the rows predicted as the class
    n_true, error_true, confidence_true : of the rows that are of the class
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
    """A results folder; each file is read when it is first needed."""

    folder: Path

    @cached_property
    def runs(self) -> dict[str, dict[str, str]]:
        """Lines of ``runs.csv`` by name of the run."""
        return {line["run"]: line for line in _read(self.folder, "runs")}

    def choices(self, run: str) -> dict[str, int]:
        """Epoch by choice: best validation accuracy of all epochs and of each phase, and the last."""
        pairs = (part.split("=") for part in self.runs[run]["chosen"].split())
        return {choice: int(epoch) for choice, epoch in pairs}

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
        """Value and noise floor of one metric; nan where the floor has no meaning.

        ``gap`` is mean confidence − accuracy.
        """
        if metric == "gap":
            confidence, accuracy = (
                self.value(run, name, method=method, half=half, choice=choice)[0]
                for name in ("confidence", "accuracy")
            )
            return confidence - accuracy, float("nan")
        key = (run, self._stored(run, choice), method, metric, "" if bins is None else str(bins), half)
        if key not in self._metrics:
            raise ValueError(
                f"metrics.csv must hold {', '.join(filter(None, key))}; summarise again with force"
            )
        return self._metrics[key]

    def has(self, run: str, method: str, choice: str = "best") -> bool:
        """Whether a method was fitted for this run."""
        return (run, self._stored(run, choice), method, "accuracy", "", "all") in self._metrics

    def classes(self, run: str, method: str, bins: int, choice: str = "best") -> ClassRows:
        """Return the run by class."""
        lines = self._classes.get((run, self._stored(run, choice), method, str(bins)))
        if lines is None:
            raise ValueError(f"classes.csv must hold {run}, {choice}, {method}; summarise again with force")
        first = COLUMNS["classes"].index("n")
        table = np.array([[float(v or "nan") for v in line[first:]] for line in lines])
        return ClassRows(*table.T)

    def curve(
        self, runs: Iterable[str], bins: int, half: str = "all", choice: str = "best"
    ) -> ReliabilityCurve:
        """Reliability of the uncalibrated model, the rows of all the runs together."""
        sums = np.zeros((3, bins))
        for run in runs:
            lines = self._curves.get((run, self._stored(run, choice), str(bins), half))
            if lines is None:
                raise ValueError(f"curves.csv must hold {run}, {choice}, {half}; summarise again with force")
            for at, *values in lines:
                sums[:, int(at)] += [float(v or "nan") for v in values]
        count, confidence, correct = sums
        safe = np.where(count > 0, count, np.nan)
        edges = np.arange(bins + 1) / bins
        return ReliabilityCurve(edges, count.astype(np.int64), confidence / safe, correct / safe)

    def _stored(self, run: str, choice: str) -> str:
        """Return the name under which a choice of epoch is stored."""
        epochs = self.choices(run)
        if choice not in epochs:
            raise ValueError(f"choice must be one of {', '.join(epochs)}, got {choice!r}")
        return next(name for name, epoch in epochs.items() if epoch == epochs[choice])

    @cached_property
    def _metrics(self) -> dict[tuple[str, ...], tuple[float, float]]:
        keys = ("run", "choice", "method", "metric", "bins", "half")
        return {
            tuple(line[key] for key in keys): (float(line["value"] or "nan"), float(line["floor"] or "nan"))
            for line in _read(self.folder, "metrics")
        }

    @cached_property
    def _classes(self) -> dict[tuple[str, ...], list[list[str]]]:
        found: dict[tuple[str, ...], list[list[str]]] = {}
        for line in _read(self.folder, "classes"):
            key = (line["run"], line["choice"], line["method"], line["bins"])
            found.setdefault(key, []).append(list(line.values()))
        return found

    @cached_property
    def _curves(self) -> dict[tuple[str, ...], list[list[str]]]:
        found: dict[tuple[str, ...], list[list[str]]] = {}
        for line in _read(self.folder, "curves"):
            key = (line["run"], line["choice"], line["bins"], line["half"])
            values = [line[name] for name in ("bin", "count", "confidence", "correct")]
            found.setdefault(key, []).append(values)
        return found


def read_results(folder: str | Path) -> Results:
    """Open a results folder that :func:`summarise` filled."""
    folder = Path(folder)
    if not (folder / "runs.csv").is_file():
        raise FileNotFoundError(f"results must be a folder with runs.csv, got {str(folder)!r}; see summarise")
    return Results(folder)


def summarise(
    store_dir: str | Path,
    results_dir: str | Path,
    *,
    force: bool = False,
    on_run: Callable[[str], object] | None = None,
) -> tuple[str, ...]:
    """Add the finished runs of a store to the results folder.

    Runs that the folder holds are left as they are, so that a second call does nothing.

    Parameters
    ----------
    store_dir : path
        Where training wrote its runs.
    results_dir : path
        Made where there is none.
    force : bool
        Whether to redo runs that the folder holds.
    on_run : callable, optional
        Called with the name of each run before it is read.

    Returns
    -------
    tuple of str
        Names of the runs that were added.
    """
    folder = Path(results_dir)
    known = _lines(folder, _MARK)
    names = [n for n in sorted(store.finished(store_dir)) if force or n not in known]
    if not names:
        return ()
    folder.mkdir(parents=True, exist_ok=True)
    used = {item: {run.name for run in runs} for item, runs in paper_grid().items()}
    judged: dict[str, dict[str, list[str]]] = {}
    for name in names:
        if on_run is not None:
            on_run(name)
        judged[name] = judge(Path(store_dir), name, used)
        if name in _LOGITS_TOO or any(name in used[item] for item in _LOGITS_OF):
            _keep_logits(Path(store_dir), folder, name)
    with locked(folder):  # lines that another process adds meanwhile must not be lost
        for file in sorted(COLUMNS, key=lambda file: file == _MARK):
            _add(folder, file, {name: found[file] for name, found in judged.items()})
    return tuple(names)


def merge(source_dir: str | Path, results_dir: str | Path) -> tuple[str, ...]:
    """Add runs that were summarised elsewhere: lines of their files, and logits where they were kept.

    Parameters
    ----------
    source_dir : path
        Another folder of results, such as one that was brought back from a machine with a GPU.
    results_dir : path
        Runs that it holds are left as they are.

    Returns
    -------
    tuple of str
        Names of the runs that were added.
    """
    source, folder = Path(source_dir), Path(results_dir)
    for file in COLUMNS:
        _read(source, file)  # refuses what is damaged before anything is written
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        known = _lines(folder, _MARK)
        names = sorted(name for name in _lines(source, _MARK) if name not in known)
        for name in names:
            _copy_logits(source, folder, name)
        for file in sorted(COLUMNS, key=lambda file: file == _MARK):
            lines = _lines(source, file)
            _add(folder, file, {name: lines.get(name, []) for name in names})
    return tuple(names)


def _copy_logits(source: Path, folder: Path, name: str) -> None:
    kept = source / "logits" / f"{name}.npz"
    if kept.is_file():
        content = kept.read_bytes()
        (folder / "logits").mkdir(exist_ok=True)
        write_atomic(folder / "logits" / kept.name, lambda sink: sink.write(content))


def _keep_logits(store_dir: Path, folder: Path, name: str) -> None:
    """Keep logits of the epoch that stands for a run, in the layout that ``hetcal.load_logits`` reads."""
    result = store.read(store_dir, name, kept_as(store.read(store_dir, name).record))
    arrays: dict[str, Any] = {
        "val_logits": result.val_logits.astype(np.float16),
        "val_labels": result.val_labels.astype(np.uint8),
        "test_logits": result.test_logits.astype(np.float16),
        "test_labels": result.test_labels.astype(np.uint8),
    }
    (folder / "logits").mkdir(exist_ok=True)
    path = folder / "logits" / f"{name}.npz"
    write_atomic(path, lambda file: np.savez_compressed(file, allow_pickle=False, **arrays))


def _add(folder: Path, file: str, new: Mapping[str, list[str]]) -> None:
    """Put lines of new runs among those that are there, in order of run names."""
    lines = {**_lines(folder, file), **new}
    text = "\n".join([",".join(COLUMNS[file]), *(line for run in sorted(lines) for line in lines[run])])
    write_atomic(folder / f"{file}.csv", lambda sink: sink.write(f"{text}\n".encode()))


def _lines(folder: Path, file: str) -> dict[str, list[str]]:
    """Return the lines of a file by run; none where there is no such file."""
    path = folder / f"{file}.csv"
    found: dict[str, list[str]] = {}
    if not path.is_file():
        return found
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    if head != ",".join(COLUMNS[file]):
        raise ValueError(
            f"{path} must begin with {','.join(COLUMNS[file])}, got {head}; delete it and summarise"
        )
    for line in lines:
        found.setdefault(line.split(",", 1)[0], []).append(line)
    return found


def _read(folder: Path, file: str) -> list[dict[str, str]]:
    path = folder / f"{file}.csv"
    if not path.is_file():
        raise FileNotFoundError(
            f"results must hold {file}.csv, got {str(folder)!r} without it; see summarise"
        )
    try:
        with path.open(newline="", encoding="utf-8") as source:
            lines = csv.DictReader(source)
            head, found = list(lines.fieldnames or []), list(lines)
    except (UnicodeError, csv.Error) as error:
        raise ValueError(f"{path} must be a table, got: {error}; delete it and summarise") from None
    if tuple(head) != COLUMNS[file]:
        raise ValueError(
            f"{path} must begin with {','.join(COLUMNS[file])}, got {','.join(head)}; delete it and summarise"
        )
    for number, line in enumerate(found):
        _check_line(line, f"{path}, line {number + 2},")
    return found


def _check_line(line: Mapping[str, str], name: str) -> None:
    """Refuse a line that was cut off or holds words where numbers belong."""
    if None in line or None in line.values():
        raise ValueError(f"{name} must have a field for every column, got others; delete it and summarise")
    for column, pattern in _PATTERNS.items():
        if not re.fullmatch(pattern, line.get(column, "0=0" if column == "chosen" else "0")):
            raise ValueError(f"{name} must hold a number as {column}, got {line[column]!r}; summarise again")
