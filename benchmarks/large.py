"""Rows that are on disk: a file of 4 GB in batches, Parquet on a Dask cluster. Files are deleted after."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from methods import CTS
from numpy.lib.format import open_memmap
from on_dask import write_parquet
from problems import make_rows, name_of, tiles
from timing import Row, fresh

__all__ = ["measure_cluster", "measure_mapped"]


def measure_mapped(n: int, k: int, *, pattern: int) -> list[Row]:
    """Fit on a mapped file in a fresh process, beside the pattern that its rows repeat, fitted in memory."""
    problem, needed = name_of(n, k), n * (4 * k + 1)
    if (lacking := _lacking(needed)) is not None:
        return [Row("out of core", problem, CTS, note=lacking)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "one").mkdir()
        built = _build_mapped(folder, n, k, pattern)
        print(f"    files of {needed / 1e9:.1f} GB written in {built:.0f} s", flush=True)
        found = fresh("mapped", folder=name)
        here = fresh("in_memory", folder=str(folder / "one"))
    away = _apart(found, here)
    more = {"peak": found["peak"], "apart": away, "bytes": needed, "build_seconds": built}
    return [
        Row(
            "out of core",
            problem,
            CTS,
            found["seconds"],
            note="Batches of a memory-mapped .npy file",
            more=more,
        )
    ]


def measure_cluster(n: int, k: int, *, pattern: int) -> list[Row]:
    """Fit on Parquet with two workers, then with one of them killed half way, beside the fit in memory."""
    problem, needed = name_of(n, k), n * (4 * k + 8)
    if (lacking := _lacking(2 * needed)) is not None:
        return [Row("dask", problem, CTS, note=lacking)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("parquet", "whole"):
            (folder / part).mkdir()
        _build_both(folder, n, k, pattern)
        here = fresh("in_memory", folder=str(folder / "whole"))
        shutil.rmtree(folder / "whole")
        found = fresh("cluster", folder=str(folder / "parquet"))
        killed = fresh("cluster", folder=str(folder / "parquet"), kill=True, delay=found["seconds"] / 2)
    when = "halfway through" if killed["during"] else "too late, the fit had ended"
    rows = [
        ("in memory", here["seconds"], {}),
        ("two workers, reading Parquet", found["seconds"], {"apart": _apart(found, here)}),
        ("two workers, rows already in memory", found["again"], {}),
        (
            f"two workers, one killed {when}",
            killed["seconds"],
            {"apart": _apart(killed, here), "same": killed["alpha"] == found["alpha"]},
        ),
    ]
    return [
        Row("dask", problem, CTS, seconds, note=note, more={**more, "bytes": needed})
        for note, seconds, more in rows
    ]


def _build_mapped(folder: Path, n: int, k: int, pattern: int) -> float:
    started = time.perf_counter()
    z, y = make_rows(pattern, k)
    np.save(folder / "one" / "logits.npy", z)
    np.save(folder / "one" / "labels.npy", y)
    with (folder / "logits.npy").open("wb") as file, (folder / "labels.npy").open("wb") as labels:
        _header(file, (n, k), "<f4")
        _header(labels, (n,), "|u1")
        for some, classes in tiles(z, y, n // pattern):
            some.tofile(file)
            classes.astype(np.uint8).tofile(labels)
    return time.perf_counter() - started


def _build_both(folder: Path, n: int, k: int, pattern: int) -> None:
    """The same rows as Parquet and as arrays."""
    z, y = make_rows(pattern, k)
    logits = open_memmap(folder / "whole" / "logits.npy", "w+", np.float32, (n, k))
    labels = open_memmap(folder / "whole" / "labels.npy", "w+", np.int64, (n,))
    for number, (some, classes) in enumerate(tiles(z, y, n // pattern)):
        write_parquet(folder / "parquet", number, some, classes)
        place = slice(number * pattern, (number + 1) * pattern)
        logits[place], labels[place] = some, classes


def _header(file: Any, shape: tuple[int, ...], dtype: str) -> None:
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})


def _apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    return float(np.abs(np.subtract(one["alpha"], other["alpha"])).max())


def _lacking(needed: int) -> str | None:
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free > 1.1 * needed + 1e9:
        return None
    return f"left out: {needed / 1e9:.1f} GB of disk needed, {free / 1e9:.1f} GB free"
