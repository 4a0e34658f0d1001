"""Training of tiny networks on a local Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetcal_paper import cluster, store
from hetcal_paper.cluster import train_on_cluster
from hetcal_paper.runs import Run, noise
from hetcal_paper.training import train_runs

distributed = pytest.importorskip("distributed")

pytestmark = pytest.mark.filterwarnings("ignore")  # Dask emits warnings that this package cannot avoid
OPTIONS: dict[str, Any] = {"device": "cpu", "strict_size": False, "progress": False}


def tiny(seed: int) -> Run:
    return noise("c10", (0, 4), 0.3, seed, network="tiny", epochs=2, batch_size=32)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    local = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None, resources={"GPU": 1}
    )
    with local, distributed.Client(local) as connected:
        yield connected


def test_results_agree_with_local_training(client: Any, cifar10: Path, tmp_path: Path) -> None:
    runs = [tiny(seed) for seed in range(3)]
    summary = train_on_cluster(runs, cifar10, tmp_path / "there", client=client, parallel=2, **OPTIONS)
    assert set(summary.finished) == {run.name for run in runs}
    assert summary.unfinished == summary.failed == ()
    train_runs(runs, cifar10, tmp_path / "here", **OPTIONS)
    for run in runs:
        local, remote = (store.read(tmp_path / folder, run.name) for folder in ("here", "there"))
        np.testing.assert_array_equal(local.test_logits, remote.test_logits)
    again = train_on_cluster(runs, cifar10, tmp_path / "there", client=client, **OPTIONS)
    assert set(again.skipped) == {run.name for run in runs}


def test_a_task_that_fails_is_tried_again(
    client: Any, cifar10: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def fail_once(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("the worker was lost")
        return train_runs(*args, **options)

    monkeypatch.setattr(cluster, "train_runs", fail_once)
    summary = train_on_cluster([tiny(7)], cifar10, tmp_path, client=client, **OPTIONS)
    assert summary.finished == (tiny(7).name,)
    assert len(calls) == 2


def test_bad_data_reaches_the_caller(client: Any, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="none"):
        train_on_cluster([tiny(8)], tmp_path / "none", tmp_path / "out", client=client, **OPTIONS)
    assert not list((tmp_path / "out").iterdir())


def test_parallel_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="parallel must be 1 or more, got 0"):
        train_on_cluster([], None, tmp_path, parallel=0)
