"""Train runs on a Dask cluster.

Each task trains a few runs in parallel and returns the content of their result files, which the caller
writes. Every worker needs PyTorch, and the data sets in the folder `data_dir` or in its own ``$HETCAL_DATA``.
A shared disk is not needed. If a worker dies, its task is sent to another worker.

If any worker offers the resource ``GPU``, as with ``dask worker ADDRESS --resources "GPU=1"``, all tasks run
on such workers, one task per GPU at a time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from hetcal_paper import store
from hetcal_paper.files import write_atomic
from hetcal_paper.runs import Run
from hetcal_paper.training import Summary, train_runs

__all__ = ["train_on_cluster"]

_RETRIES = 3


def train_on_cluster(
    runs: Iterable[Run],
    data_dir: str | Path | None,
    out_dir: str | Path,
    *,
    address: str | None = None,
    client: Any = None,
    parallel: int = 8,
    progress: bool = True,
    **options: Any,
) -> Summary:
    """Train runs on the workers of a Dask cluster and write their results on this machine.

    Parameters
    ----------
    runs : iterable of Run
        Runs to train. Runs that `out_dir` contains are skipped.
    data_dir : path or None
        Folder with the data sets on the workers; None for the ``$HETCAL_DATA`` of each worker.
    out_dir : path
        The store of results on this machine.
    address : str, optional
        Address of the scheduler, such as ``tcp://host:8786``; by default a local cluster is started.
    client : distributed.Client, optional
        A connected client to use instead of `address`.
    parallel : int
        Number of runs per task, trained at the same time on one device.
    progress : bool
        Whether to show a progress bar.
    **options
        Passed to :func:`~hetcal_paper.training.train_runs` on the workers.

    Returns
    -------
    Summary
        Names of the runs by outcome.
    """
    if parallel < 1:
        raise ValueError(f"parallel must be 1 or more, got {parallel}; pass a positive number of runs")
    done = store.finished(out_dir)
    unique = list({run.name: run for run in runs}.values())
    missing = [run for run in unique if run.name not in done]
    parts = [missing[i : i + parallel] for i in range(0, len(missing), parallel)]
    finished: list[str] = []
    failed: list[str] = []
    Path(out_dir).mkdir(parents=True, exist_ok=True)
    with (
        _connected(address, client) as cluster,
        tqdm(total=len(missing), unit="run", disable=not progress) as bar,
    ):
        for files, summary in _results(_submit(cluster, parts, data_dir, parallel, options)):
            for name, content in files.items():  # the JSON, which marks a run as finished, comes last
                _write(Path(out_dir, name), content)
            finished += summary.finished
            failed += summary.failed
            bar.update(len(summary.finished))
    return Summary(
        finished=tuple(finished),
        skipped=tuple(run.name for run in unique if run.name in done),
        unfinished=tuple(run.name for run in missing if run.name not in {*finished, *failed}),
        failed=tuple(failed),
    )


def _write(path: Path, content: bytes) -> None:
    write_atomic(path, lambda file: file.write(content))


@contextmanager
def _connected(address: str | None, client: Any) -> Iterator[Any]:
    if client is not None:
        yield client
        return
    try:
        from distributed import Client
    except ImportError:
        raise ImportError(
            "the Dask engine needs distributed; install it with: pip install distributed"
        ) from None
    with Client(address) if address else Client(n_workers=1, threads_per_worker=1) as new_client:
        yield new_client


def _submit(
    client: Any, parts: list[list[Run]], data_dir: Any, parallel: int, options: dict[str, Any]
) -> list[Any]:
    workers = client.scheduler_info()["workers"].values()
    on_gpu = any(worker["resources"].get("GPU") for worker in workers)
    folder = None if data_dir is None else str(data_dir)
    return [
        client.submit(
            _train_part, part, folder, {**options, "parallel": parallel}, pure=False, retries=_RETRIES,
            resources={"GPU": 1} if on_gpu else None,
        )
        for part in parts
    ]  # fmt: skip


def _results(tasks: list[Any]) -> Iterator[tuple[dict[str, bytes], Summary]]:
    from distributed import as_completed

    for task in as_completed(tasks):
        yield task.result()


def _train_part(
    part: list[Run], data_dir: str | None, options: dict[str, Any]
) -> tuple[dict[str, bytes], Summary]:
    """Train on a worker in a temporary folder; return the result files by name, and the summary."""
    with tempfile.TemporaryDirectory() as folder:
        summary = train_runs(part, data_dir, folder, progress=False, **options)
        paths = sorted(Path(folder).glob("*.npz")) + sorted(Path(folder).glob("*.json"))
        return {path.name: path.read_bytes() for path in paths}, summary
