"""Benchmark data on disk: a 4 GB file in batches, and Parquet files on a Dask cluster."""

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
    """Fit on memory-mapped copies of `pattern` rows, and compare with a fit in memory on one copy."""
    problem, needed = name_of(n, k), n * (4 * k + 1)
    if (shortage := _shortage(needed)) is not None:
        return [Row("out of core", problem, CTS, note=shortage)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "one").mkdir()
        built = _build_mapped(folder, n, k, pattern)
        print(f"    files of {needed / 1e9:.1f} GB written in {built:.0f} s", flush=True)
        result = fresh("mapped", folder=name)
        in_memory = fresh("in_memory", folder=str(folder / "one"))
    difference = _max_difference(result, in_memory)
    more = {"peak": result["peak"], "apart": difference, "bytes": needed, "build_seconds": built}
    return [
        Row(
            "out of core",
            problem,
            CTS,
            result["seconds"],
            note="Batches of a memory-mapped .npy file",
            more=more,
        )
    ]


def measure_cluster(n: int, k: int, *, pattern: int) -> list[Row]:
    """Time fits in memory, on two workers that read Parquet, and on two workers of which one is killed."""
    problem, needed = name_of(n, k), n * (4 * k + 8)
    if (shortage := _shortage(2 * needed)) is not None:
        return [Row("dask", problem, CTS, note=shortage)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("parquet", "whole"):
            (folder / part).mkdir()
        _build_both(folder, n, k, pattern)
        in_memory = fresh("in_memory", folder=str(folder / "whole"))
        shutil.rmtree(folder / "whole")
        result = fresh("cluster", folder=str(folder / "parquet"))
        killed = fresh("cluster", folder=str(folder / "parquet"), kill=True, delay=result["seconds"] / 2)
    when = "halfway through" if killed["during"] else "too late, after the fit"
    rows = [
        ("in memory", in_memory["seconds"], {}),
        ("two workers, reading Parquet", result["seconds"], {"apart": _max_difference(result, in_memory)}),
        ("two workers, rows already in memory", result["again"], {}),
        (
            f"two workers, one killed {when}",
            killed["seconds"],
            {"apart": _max_difference(killed, in_memory), "same": killed["alpha"] == result["alpha"]},
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
        for tile, classes in tiles(z, y, n // pattern):
            tile.tofile(file)
            classes.astype(np.uint8).tofile(labels)
    return time.perf_counter() - started


def _build_both(folder: Path, n: int, k: int, pattern: int) -> None:
    """Write the same rows as Parquet files and as arrays."""
    z, y = make_rows(pattern, k)
    logits = open_memmap(folder / "whole" / "logits.npy", "w+", np.float32, (n, k))
    labels = open_memmap(folder / "whole" / "labels.npy", "w+", np.int64, (n,))
    for number, (tile, classes) in enumerate(tiles(z, y, n // pattern)):
        write_parquet(folder / "parquet", number, tile, classes)
        rows = slice(number * pattern, (number + 1) * pattern)
        logits[rows], labels[rows] = tile, classes


def _header(file: Any, shape: tuple[int, ...], dtype: str) -> None:
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})


def _max_difference(first: dict[str, Any], second: dict[str, Any]) -> float:
    return float(np.abs(np.subtract(first["alpha"], second["alpha"])).max())


def _shortage(needed: int) -> str | None:
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free > 1.1 * needed + 1e9:
        return None
    return f"skipped: {needed / 1e9:.1f} GB of disk needed, {free / 1e9:.1f} GB free"
