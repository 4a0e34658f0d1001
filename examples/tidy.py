"""Tidy tables of results: one line per run, method and metric. Files are written atomically."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["Line", "Table", "read_lines", "write_atomic", "write_lines"]

_FLOATS = ("value", "floor")


@dataclass(frozen=True)
class Line:
    """One number: its keys (in the order of the columns), its value and its noise floor."""

    keys: tuple[str, ...]
    value: float
    floor: float = math.nan


class Table:
    """The lines of a tidy file by their keys. Means and standard deviations are taken over the seeds."""

    def __init__(self, columns: Sequence[str], lines: Iterable[Line]) -> None:
        self.columns = tuple(columns)
        self.lines = list(lines)
        seed = self.columns.index("seed")
        self._lines_by_key: dict[tuple[str, ...], dict[str, Line]] = {}
        for line in self.lines:
            key = line.keys[:seed] + line.keys[seed + 1 :]
            self._lines_by_key.setdefault(key, {})[line.keys[seed]] = line

    def has(self, *key: str) -> bool:
        """Return whether there is a number with this key, which omits the seed."""
        return key in self._lines_by_key

    def names(self, column: str, **fixed: str) -> list[str]:
        """Return the distinct entries of a column, in order, of the lines with the `fixed` entries."""
        position = self.columns.index(column)
        conditions = [(self.columns.index(name), value) for name, value in fixed.items()]
        all_keys = (line.keys for line in self.lines)
        selected = (keys for keys in all_keys if all(keys[i] == value for i, value in conditions))
        return list(dict.fromkeys(keys[position] for keys in selected))

    def values(self, *key: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return the values of all seeds."""
        return np.array([line.value for line in self._lines_by_key[key].values()])

    def mean(self, *key: str) -> float:
        """Return the mean over the seeds, or nan if no seed has a value."""
        values = self.values(*key)
        return float(np.nanmean(values)) if not np.isnan(values).all() else math.nan

    def std(self, *key: str) -> float:
        """Return the standard deviation over the seeds, or 0 for a single seed."""
        values = self.values(*key)
        return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0

    def floor(self, *key: str) -> float:
        """Return the mean of the noise floors."""
        return float(np.mean([line.floor for line in self._lines_by_key[key].values()]))


def write_lines(path: Path, columns: Sequence[str], lines: Iterable[Line]) -> None:
    """Write a tidy file with six significant digits. Missing numbers are empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*columns, *_FLOATS])
    for line in lines:
        writer.writerow([*line.keys, _text(line.value), _text(line.floor)])
    write_atomic(path, out.getvalue())


def read_lines(path: Path) -> Table:
    """Read a tidy file."""
    with path.open(encoding="utf-8", newline="") as source:
        rows = csv.reader(source)
        columns = next(rows)[: -len(_FLOATS)]
        lines = [Line(tuple(row[:-2]), _number(row[-2]), _number(row[-1])) for row in rows]
    return Table(columns, lines)


def write_atomic(path: Path, text: str) -> None:
    """Write a temporary file and rename it, so that an interrupted run does not damage the old file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _text(number: float) -> str:
    return "" if math.isnan(number) else f"{number:.6g}"


def _number(text: str) -> float:
    return float(text) if text else math.nan
