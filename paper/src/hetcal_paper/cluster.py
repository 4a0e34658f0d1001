"""Runs on a Dask cluster: each task trains a few runs side by side and sends their result files back.

Workers need the data sets in a folder of the same name and PyTorch; they need not share a disk with the
caller, who writes the files. A worker that offers the resource ``GPU`` gets one task per GPU at a time
(``dask worker ADDRESS --resources "GPU=1"``). A task whose worker dies is sent to another one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hetcal._write import write_atomic
from hetcal_paper import store
from hetcal_paper.progress import Progress
from hetcal_paper.runs import Run
from hetcal_paper.train import Summary, train_runs

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
    """Train runs on the workers of a Dask cluster and write their results here.

    Parameters
    ----------
    runs : iterable of Run
        What to train; runs that `out_dir` holds are skipped.
    data_dir : path or None
        Folder with the data sets, as the workers see it; None for their ``$HETCAL_DATA``.
    out_dir : path
        The store of results, on this machine.
    address : str, optional
        Of the scheduler, such as ``tcp://host:8786``; without it a cluster of this machine's own is started.
    client : distributed.Client, optional
        In place of `address`.
    parallel : int
        Runs in a task, side by side on one device.
    progress : bool
        Whether to show progress.
    **options
        Passed on to :func:`~hetcal_paper.train.train_runs` on the worker.
    """
    if parallel < 1:
        raise ValueError(f"parallel must be 1 or more, got {parallel}; pass a count")
    done = store.finished(out_dir)
    unique = list({run.name: run for run in runs}.values())
    missing = [run for run in unique if run.name not in done]
    parts = [missing[i : i + parallel] for i in range(0, len(missing), parallel)]
    finished: list[str] = []
    failed: list[str] = []
    shown = Progress(len(missing), sum(run.epochs for run in missing), shown=progress)
    with _connected(address, client) as cluster:
        tasks = _submit(cluster, parts, data_dir, parallel, options)
        for files, summary in _results(tasks):
            for name, content in files.items():  # the JSON, which says finished, comes last
                _write(Path(out_dir, name), content)
            finished += summary.finished
            failed += summary.failed
            shown.runs_done = len(finished)
            shown.say(f"finished {', '.join(summary.finished) or 'none'}")
    shown.close()
    return Summary(
        finished=tuple(finished),
        skipped=tuple(run.name for run in unique if run.name in done),
        unfinished=tuple(run.name for run in missing if run.name not in {*finished, *failed}),
        failed=tuple(failed),
    )


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, lambda sink: sink.write(content))


@contextmanager
def _connected(address: str | None, client: Any) -> Iterator[Any]:
    if client is not None:
        yield client
        return
    try:
        from distributed import Client
    except ImportError:
        raise ImportError(
            'the Dask engine needs distributed; install it with: pip install "hetcal[dask]"'
        ) from None
    with Client(address) if address else Client(n_workers=1, threads_per_worker=1) as made:
        yield made


def _submit(
    client: Any, parts: list[list[Run]], data_dir: Any, parallel: int, options: dict[str, Any]
) -> list[Any]:
    workers = client.scheduler_info()["workers"].values()
    on_gpu = any(worker["resources"].get("GPU") for worker in workers)
    place = None if data_dir is None else str(data_dir)
    return [
        client.submit(
            _train_part, part, place, {**options, "parallel": parallel}, pure=False, retries=_RETRIES,
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
    """What a worker does: train in a folder of its own, and return the result files."""
    with tempfile.TemporaryDirectory() as folder:
        summary = train_runs(part, data_dir, folder, progress=False, **options)
        found = sorted(Path(folder).glob("*.npz")) + sorted(Path(folder).glob("*.json"))
        return {path.name: path.read_bytes() for path in found}, summary
