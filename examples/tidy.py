"""Results as one tidy table, a line for one metric of one method in one run; files are written whole."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["Line", "Table", "read_lines", "write_lines", "write_whole"]

_FLOATS = ("value", "floor")


@dataclass(frozen=True)
class Line:
    """One number: what it is of (`keys`, in the order of the columns), the value and its noise floor."""

    keys: tuple[str, ...]
    value: float
    floor: float = math.nan


class Table:
    """Lines of a tidy file, looked up by keys; the seed is what means and deviations run over."""

    def __init__(self, columns: Sequence[str], lines: Iterable[Line]) -> None:
        self.columns = tuple(columns)
        self.lines = list(lines)
        seed = self.columns.index("seed")
        self._found: dict[tuple[str, ...], dict[str, Line]] = {}
        for line in self.lines:
            key = line.keys[:seed] + line.keys[seed + 1 :]
            self._found.setdefault(key, {})[line.keys[seed]] = line

    def has(self, *key: str) -> bool:
        """Whether there is such a number; `key` leaves the seed out."""
        return key in self._found

    def names(self, column: str, **fixed: str) -> list[str]:
        """Distinct entries of a column, in the order of the file, among lines with the `fixed` entries."""
        at, wanted = self.columns.index(column), [(self.columns.index(c), v) for c, v in fixed.items()]
        kept = (line.keys for line in self.lines)
        return list(dict.fromkeys(keys[at] for keys in kept if all(keys[i] == v for i, v in wanted)))

    def values(self, *key: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """The number for every seed."""
        return np.array([line.value for line in self._found[key].values()])

    def mean(self, *key: str) -> float:
        """Mean over the seeds; nan where no seed has a number."""
        values = self.values(*key)
        return float(np.nanmean(values)) if not np.isnan(values).all() else math.nan

    def std(self, *key: str) -> float:
        """Standard deviation over the seeds, 0 for one seed."""
        values = self.values(*key)
        return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0

    def floor(self, *key: str) -> float:
        """Mean of the noise floors."""
        return float(np.mean([line.floor for line in self._found[key].values()]))


def write_lines(path: Path, columns: Sequence[str], lines: Iterable[Line]) -> None:
    """Write a tidy file, six digits a number, nothing where there is none."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*columns, *_FLOATS])
    for line in lines:
        writer.writerow([*line.keys, _text(line.value), _text(line.floor)])
    write_whole(path, out.getvalue())


def read_lines(path: Path) -> Table:
    """Read a tidy file."""
    with path.open(encoding="utf-8", newline="") as source:
        rows = csv.reader(source)
        columns = next(rows)[: -len(_FLOATS)]
        lines = [Line(tuple(row[:-2]), _number(row[-2]), _number(row[-1])) for row in rows]
    return Table(columns, lines)


def write_whole(path: Path, text: str) -> None:
    """Write beside the file and rename, so that an interrupted run leaves the old file as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _text(number: float) -> str:
    return "" if math.isnan(number) else f"{number:.6g}"


def _number(text: str) -> float:
    return float(text) if text else math.nan
