"""Fit on a Dask cluster of two worker processes that read Parquet files. One of them may be killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["fit_on_cluster", "write_parquet"]

_GROUP_ROWS = 100_000


def write_parquet(folder: Path, number: int, z: np.ndarray, y: np.ndarray) -> None:
    """Write one uncompressed file with a list column of logits and a column of labels."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    lists = pa.FixedSizeListArray.from_arrays(pa.array(z.reshape(-1)), z.shape[1])
    table = pa.table({"logits": lists, "label": pa.array(y)})
    pq.write_table(
        table,
        folder / f"{number:04}.parquet",
        row_group_size=_GROUP_ROWS,
        compression="none",
        use_dictionary=False,
    )


def fit_on_cluster(folder: str, kill: bool, delay: float) -> dict[str, Any]:
    """Return times and temperatures.

    With `kill`, one worker is killed `delay` seconds after the start of the only fit. Otherwise there are two
    fits: the first reads the files, and the second uses the rows that the workers keep in memory.
    """
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=0
        ) as cluster,
        Client(cluster) as client,
    ):
        client.run(_warm_up, str(next(Path(folder).iterdir())))
        return _fit_with_loss(client, folder, delay) if kill else _fit_twice(client, folder)


def _warm_up(file: str) -> None:
    """Fit on one file on the worker, so that the measured time includes no imports."""
    import hetcal

    hetcal.ClassWiseTemperatureScaling().fit(hetcal.Batches.from_parquet(file))


def _fit(client: Any, folder: str) -> tuple[float, Any, Any]:
    import hetcal

    started = time.perf_counter()
    rows = hetcal.dask.read_parquet(folder, client=client)
    model = hetcal.ClassWiseTemperatureScaling().fit(rows)
    return time.perf_counter() - started, model, rows


def _fit_twice(client: Any, folder: str) -> dict[str, Any]:
    import hetcal

    seconds, model, rows = _fit(client, folder)
    started = time.perf_counter()
    hetcal.ClassWiseTemperatureScaling().fit(rows)
    again = time.perf_counter() - started
    return {"seconds": seconds, "again": again, "alpha": model.alpha_.tolist()}


def _fit_with_loss(client: Any, folder: str, delay: float) -> dict[str, Any]:
    victim = sorted(client.run(os.getpid).items())[0][1]  # process id of one worker
    running, killed_during_fit = threading.Event(), []

    def kill() -> None:
        time.sleep(delay)
        killed_during_fit.append(running.is_set())
        os.kill(victim, signal.SIGKILL)

    running.set()
    killer = threading.Thread(target=kill)
    killer.start()
    seconds, model, _ = _fit(client, folder)
    running.clear()
    killer.join()
    return {"seconds": seconds, "during": killed_during_fit[0], "alpha": model.alpha_.tolist()}
