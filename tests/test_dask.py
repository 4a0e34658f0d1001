"""Fits on a Dask cluster agree with fits in memory, and are identical for any number of workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import hetcal
from hetcal._numeric import folds
from hetcal._numeric.blocks import Block, BlockSource, RowSource, is_source
from hetcal._numeric.rows import prepare
from hetcal._numeric.source import MemorySource
from hetcal._numeric.temperatures import TemperatureFit, fit_coupled
from hetcal.calibrators import auto
from hetcal.dask import read_parquet, rows
from hetcal.dask.parts import write_part
from hetcal.partition import Slices

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
dd = pytest.importorskip("dask.dataframe")
distributed = pytest.importorskip("distributed")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pd = pytest.importorskip("pandas")

pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword:Warning")  # Dask's use of pandas
K = 5
BOUNDS = (0.01, 100.0)
CUTS = (700, 300, 1, 999, 1000)
GROUPS = np.array(["east", "north", "south"])


def cluster(n_workers: int, processes: bool = False) -> Any:
    return distributed.LocalCluster(
        n_workers=n_workers, threads_per_worker=1, processes=processes, dashboard_address=":0",
        memory_limit=0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with cluster(2) as local, distributed.Client(local, set_as_default=False) as dask_client:
        yield dask_client


@pytest.fixture(scope="module")
def sample(make_sample: Any) -> Any:
    return make_sample(sum(CUTS), K, 3)


@pytest.fixture(scope="module")
def groups(sample: Any) -> NDArray[Any]:
    return GROUPS[np.random.default_rng(0).integers(3, size=len(sample.y))]


def array(z: NDArray[Any]) -> Any:
    return da.from_array(z, chunks=(CUTS, (2, K - 2)))  # the columns are in two chunks


def write(folder: Path, z: NDArray[Any], y: NDArray[Any], **columns: Any) -> Path:
    """Write two Parquet files with row groups of 300 rows and one column per class."""
    table = pa.table({f"z{k}": z[:, k] for k in range(z.shape[1])} | {"label": y, **columns})
    folder.mkdir()
    pq.write_table(table[:1400], folder / "a.parquet", row_group_size=300)
    pq.write_table(table[1400:], folder / "b.parquet", row_group_size=300)
    return folder


def fitted(source: RowSource, gamma: float, names: NDArray[Any] | None = None) -> TemperatureFit:
    slices = Slices(source.n_classes if names is None else len(names), names)
    return fit_coupled(BlockSource(source, slices.assign, slices.n_slices), gamma, BOUNDS)


def fitted_in_memory(sample: Any, gamma: float, groups: Any = None, weight: Any = None) -> TemperatureFit:
    prepared = prepare(sample.z, sample.y, weight)
    slices = Slices(K) if groups is None else Slices(3, np.unique(groups))
    return fit_coupled(MemorySource(prepared, groups).slice_by(slices.assign, slices.n_slices), gamma, BOUNDS)


def counted(block: Block) -> tuple[NDArray[Any], ...]:
    return (np.bincount(block.rows.y, minlength=block.rows.z.shape[1]),)


# --- agreement with fits in memory


@pytest.mark.parametrize("gamma", [np.inf, 0.3, 0.0])
@pytest.mark.parametrize("route", ["array", "frame", "lists", "parquet", "no client"])
def test_fits_agree_with_rows_in_memory(
    client: Any, sample: Any, tmp_path: Path, route: str, gamma: float
) -> None:
    z, y = sample.z, sample.y
    names = [f"z{k}" for k in range(K)]
    if route == "frame":
        frame = dd.from_pandas(pd.DataFrame(z, columns=names).assign(y=y), npartitions=4)
        source = rows(frame, "y", client=client)
    elif route == "lists":
        path = tmp_path / "lists.parquet"
        pq.write_table(pa.table({"z": list(z), "y": y}), path, row_group_size=800)
        source = rows(dd.read_parquet(path, split_row_groups=True), "y", columns="z", client=client)
    elif route == "parquet":
        source = read_parquet(write(tmp_path / "data", z, y), block_rows=700, client=client)
    else:
        source = rows(array(z), y, client=client if route == "array" else None)
    assert is_source(source)
    in_memory, on_dask = fitted_in_memory(sample, gamma), fitted(source, gamma)
    np.testing.assert_allclose(on_dask.alpha, in_memory.alpha, atol=1e-6, rtol=0)
    assert on_dask.alpha0 == pytest.approx(in_memory.alpha0, abs=1e-6)


@pytest.mark.parametrize("route", ["array", "frame", "parquet"])
def test_groups_and_weights(
    client: Any, sample: Any, groups: NDArray[Any], tmp_path: Path, route: str
) -> None:
    z, y = sample.z, sample.y
    w = np.random.default_rng(1).integers(3, size=len(y)).astype(float)
    w[: CUTS[0]] = 0  # all weights of a block are zero
    if route == "array":
        source = rows(array(z), y, sample_weight=da.from_array(w, chunks=800), groups=groups, client=client)
    elif route == "frame":
        frame = pd.DataFrame(z, columns=[f"z{k}" for k in range(K)]).assign(y=y, w=w, g=groups)
        several = dd.from_pandas(frame, npartitions=4)
        source = rows(several, "y", sample_weight="w", groups="g", client=client)
    else:
        folder = write(tmp_path / "data", z, y, w=w, g=groups)
        source = read_parquet(folder, sample_weight="w", groups="g", block_rows=600, client=client)
    np.testing.assert_array_equal(source.reduce(counted)[0], np.bincount(y[w > 0]))
    names = source.group_names()
    assert names is not None
    np.testing.assert_array_equal(names, GROUPS)
    in_memory = fitted_in_memory(sample._replace(z=z[w > 0], y=y[w > 0]), 0.1, groups[w > 0], w[w > 0])
    np.testing.assert_allclose(fitted(source, 0.1, names).alpha, in_memory.alpha, atol=1e-6, rtol=0)


def test_calibrators_and_evaluate_accept_dask_rows(
    client: Any, sample: Any, groups: NDArray[Any], tmp_path: Path
) -> None:
    z, y = sample.z, sample.y
    source = rows(array(z), y, client=client)
    in_memory, on_dask = (hetcal.ClassWiseTemperatureScaling(gamma=0.3).fit(*a) for a in ((z, y), (source,)))
    np.testing.assert_allclose(on_dask.alpha_, in_memory.alpha_, atol=1e-6, rtol=0)
    single = hetcal.TemperatureScaling().fit(source)
    assert single.alpha_ == pytest.approx(hetcal.TemperatureScaling().fit(z, y).alpha_, abs=1e-6)
    by_group = hetcal.ClassWiseTemperatureScaling().fit(rows(array(z), y, groups=groups, client=client))
    expected = hetcal.ClassWiseTemperatureScaling().fit(z, y, groups=groups)
    np.testing.assert_allclose(by_group.alpha_, expected.alpha_, atol=1e-6, rtol=0)
    evaluations = hetcal.evaluate(on_dask.predict_proba(source)), hetcal.evaluate(on_dask.predict_proba(z), y)
    assert evaluations[0].ece == pytest.approx(evaluations[1].ece, abs=1e-9)
    assert evaluations[0].accuracy == evaluations[1].accuracy
    probs = on_dask.predict_proba(source).to_dask_array()
    assert probs.chunks == (CUTS, (K,))
    np.testing.assert_allclose(client.compute(probs).result(), on_dask.predict_proba(z), atol=1e-12)


@pytest.mark.parametrize("keep", [True, False])
def test_auto_on_dask_agrees_with_rows_in_memory(
    client: Any, sample: Any, groups: NDArray[Any], monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    monkeypatch.setattr(auto, "_MAX_CV_ROWS", 500)
    monkeypatch.setattr(auto, "_MAX_CV_ROWS_PER_CLASS", 100)
    monkeypatch.setattr(folds, "_FEW_ROWS", 0)  # the sample is drawn as for very many rows
    z, y = sample.z + np.linspace(0, 1, K), sample.y
    for options in ({}, {"groups": groups}):
        in_memory = hetcal.AutoCalibrator(cv=3, keep_decision=keep).fit(z, y, **options)
        source = rows(array(z), y, client=client, **options)
        on_dask = hetcal.AutoCalibrator(cv=3, keep_decision=keep).fit(source)
        assert on_dask.best_name_ == in_memory.best_name_
        expected = in_memory.predict_proba(z, **options)
        np.testing.assert_allclose(on_dask.predict_proba(z, **options), expected, atol=1e-8)


def test_chains_are_fitted_on_other_processes(sample: Any) -> None:
    """The functions that transform the logits can be sent to workers."""
    steps = [hetcal.VectorScaling(0.1, center=True), hetcal.PlattScaling(pool=True)]
    in_memory = hetcal.Chain(steps).fit(sample.z, sample.y).predict_proba(sample.z)
    with cluster(1, processes=True) as local, distributed.Client(local, set_as_default=False) as client:
        on_dask = hetcal.Chain(steps).fit(rows(array(sample.z), sample.y, client=client))
    np.testing.assert_allclose(on_dask.predict_proba(sample.z), in_memory, atol=1e-8)


# --- reproducibility


def test_fits_do_not_depend_on_the_number_of_workers(sample: Any, tmp_path: Path) -> None:
    folder = write(tmp_path / "data", sample.z.astype(np.float32), sample.y)
    fits = []
    for n_workers in (1, 3):
        with cluster(n_workers) as local, distributed.Client(local, set_as_default=False) as client:
            for persist in (True, False):
                source = read_parquet(folder, block_rows=300, client=client, persist=persist)
                fits.append(fitted(source, 0.3).alpha.tobytes())
    assert len(set(fits)) == 1


def test_sums_have_a_fixed_order(client: Any) -> None:
    """Blocks are added in groups of eight, in order. Rounding makes other orders give other sums."""
    values = np.random.default_rng(0).normal(size=70)
    z = np.stack([values, np.zeros(70)], axis=1)
    source = rows(da.from_array(z, chunks=(1, 2)), np.zeros(70, int), client=client)
    level = list(values)
    while len(level) > 1:
        level = [np.cumsum(level[s : s + 8])[-1] for s in range(0, len(level), 8)]
    assert level[0] != np.cumsum(values)[-1]
    assert source.reduce(lambda block: (block.rows.z[:, 0],))[0] == level[0]


@pytest.mark.parametrize("persist", [True, False])
def test_killing_a_worker_does_not_change_the_fit(sample: Any, tmp_path: Path, persist: bool) -> None:
    folder = write(tmp_path / "data", sample.z, sample.y)
    expected = fitted(read_parquet(folder, block_rows=300), 0.3)  # on this machine, without a cluster
    slices, calls, killed, main_pid = Slices(K), tmp_path / "calls", tmp_path / "killed", os.getpid()

    def kill_in_third_pass(guess: Any, groups: Any) -> Any:
        """Return the slices of a block, and kill one worker in the third pass."""
        with calls.open("a") as file:
            file.write(".")
        if calls.stat().st_size > 25 and os.getpid() != main_pid:
            with suppress(FileExistsError), killed.open("x") as file:
                file.write(str(os.getpid()))
                file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
        return slices.assign(guess, groups)

    quick = {"distributed.comm.timeouts.connect": "1s"}  # notice soon that a worker does not respond
    with (
        dask.config.set(quick),
        cluster(2, processes=True) as local,
        distributed.Client(local, set_as_default=False) as client,
    ):
        before = set(client.run(os.getpid).values())
        source = read_parquet(folder, block_rows=300, client=client, persist=persist)
        fit = fit_coupled(BlockSource(source, kill_in_third_pass, K), 0.3, BOUNDS)
        after = set(client.run(os.getpid).values())
    dead = int(killed.read_text())
    assert dead in before - after
    assert calls.stat().st_size > 50  # the fit continued for several passes
    np.testing.assert_array_equal(fit.alpha, expected.alpha)


def test_a_read_that_fails_once_is_repeated(client: Any, sample: Any, tmp_path: Path) -> None:
    marker = tmp_path / "seen"

    def fail_once(z: NDArray[Any]) -> NDArray[Any]:
        if z.size and not marker.exists():
            marker.touch()
            raise OSError("the store is busy")
        return z

    source = rows(array(sample.z).map_blocks(fail_once, dtype=float), sample.y, client=client)
    assert source.reduce(counted)[0].sum() == len(sample.y)
    assert marker.exists()


def test_a_source_that_failed_can_be_used_again(client: Any, sample: Any, tmp_path: Path) -> None:
    folder = write(tmp_path / "data", sample.z, sample.y)
    source = read_parquet(folder, client=client, block_rows=900)
    (folder / "b.parquet").rename(tmp_path / "b.parquet")
    with pytest.raises(OSError, match=r"block \d must .*b\.parquet"):
        source.reduce(counted)
    (tmp_path / "b.parquet").rename(folder / "b.parquet")
    assert source.reduce(counted)[0].sum() == len(sample.y)


# --- reading and storing blocks


@pytest.mark.parametrize(("persist", "reads"), [(True, 1), (False, 3)])
def test_blocks_are_read_once_or_in_every_pass(
    client: Any, sample: Any, tmp_path: Path, persist: bool, reads: int
) -> None:
    log = tmp_path / "log"

    def log_read(z: NDArray[Any]) -> NDArray[Any]:
        if z.size:
            with log.open("a") as file:
                file.write(".")
        return z

    logits = da.from_array(sample.z, chunks=(1000, K)).map_blocks(
        log_read, dtype=float, meta=np.empty((0, 0))
    )
    source = rows(logits, sample.y, client=client, persist=persist)
    for _ in range(3):
        source.reduce(counted)
    assert log.stat().st_size == 3 * reads


def test_blocks_are_released_with_the_source(client: Any, sample: Any) -> None:
    source = rows(array(sample.z), sample.y, client=client)
    source.reduce(counted)
    keys = source._store._persisted.__dask_keys__()

    def sizes(dask_scheduler: Any) -> list[int]:
        return [dask_scheduler.tasks[key].nbytes for key in keys if key in dask_scheduler.tasks]

    assert sum(client.run_on_scheduler(sizes)) > sample.z.nbytes  # Dask needs the sizes to schedule and spill
    del source
    end = time.monotonic() + 10
    while client.run_on_scheduler(sizes):
        assert time.monotonic() < end


def test_first_is_a_sample_of_the_first_block_with_rows(client: Any) -> None:
    z = np.random.default_rng(0).normal(size=(2000, 1000)).astype(np.float32)
    w = np.ones(2000)
    w[:10] = 0
    chunks = ((10, 1600, 390), (1000,))
    source = rows(da.from_array(z, chunks=chunks), z.argmax(axis=1), sample_weight=w, client=client)
    first = source.first()
    assert first.number == 1
    np.testing.assert_array_equal(first.rows.z, z[10:1610:2])


def test_empty_partitions_are_skipped(client: Any, sample: Any) -> None:
    names = [f"z{k}" for k in range(K)]
    frame = pd.DataFrame(sample.z, columns=names).assign(y=sample.y, position=np.arange(len(sample.y)))
    frame = dd.from_pandas(frame, npartitions=6)
    source = rows(frame[frame["y"] == 2], "y", columns=names, client=client)
    last_rows = frame[frame["position"] > 1500]  # the first partitions are empty
    np.testing.assert_array_equal(source.reduce(counted)[0], np.bincount(sample.y)[2] * (np.arange(K) == 2))
    late = rows(last_rows, "y", columns=names, client=client)
    np.testing.assert_array_equal(late.reduce(counted)[0], np.bincount(sample.y[1501:], minlength=K))
    doubled = client.compute(late.transform(lambda z, _: z * 2).to_dask_array()).result()
    np.testing.assert_array_equal(doubled, sample.z[1501:] * 2)
    with pytest.raises(ValueError, match="weight"):
        rows(frame[frame["y"] < 0], "y", client=client).reduce(counted)


def test_unknown_chunk_sizes_where_partitions_match(client: Any, sample: Any) -> None:
    names = [f"z{k}" for k in range(K)]
    frame = dd.from_pandas(pd.DataFrame(sample.z, columns=names).assign(y=sample.y), npartitions=3)
    source = rows(frame[names].to_dask_array(), frame["y"].to_dask_array(), client=client)
    np.testing.assert_array_equal(source.reduce(counted)[0], np.bincount(sample.y))


def test_transform_applies_to_statistics_and_files(
    client: Any, sample: Any, groups: NDArray[Any], tmp_path: Path
) -> None:
    z, y = sample.z, sample.y
    w = (np.arange(len(y)) % 3).astype(float)
    source = rows(array(z), y, sample_weight=w, groups=groups, client=client)
    transformed = source.transform(lambda z, g: -z * (g == "east")[:, None]).transform(lambda z, _: z + 1)
    expected = -z * (groups == "east")[:, None] + 1
    total, guesses = transformed.reduce(
        lambda block: (block.rows.z.sum(axis=0), np.bincount(block.rows.guess, minlength=5))
    )
    np.testing.assert_allclose(total, expected[w > 0].sum(axis=0))
    np.testing.assert_array_equal(guesses, np.bincount(expected[w > 0].argmax(axis=1), minlength=5))
    all_rows = client.compute(transformed.to_dask_array()).result()  # includes rows of weight zero
    np.testing.assert_array_equal(all_rows, expected)
    transformed.to_parquet(tmp_path / "out", column="scores")
    table = pq.read_table(tmp_path / "out")
    np.testing.assert_array_equal(np.stack(table["scores"].to_numpy()), expected)
    np.testing.assert_array_equal(table["label"], y)
    np.testing.assert_array_equal(table["group"].to_pylist(), groups)
    assert len(list((tmp_path / "out").iterdir())) == len(CUTS)
    with pytest.raises(ValueError, match="folder must"):
        transformed.to_parquet(tmp_path / "out")


@pytest.mark.parametrize("column", ["", "label", "sample_weight", "group"])
def test_reserved_column_names_are_refused(sample: Any, tmp_path: Path, column: str) -> None:
    with pytest.raises(ValueError, match=rf"column must .*got '{column}'"):
        rows(array(sample.z), sample.y).to_parquet(tmp_path / "out", column=column)
    assert not (tmp_path / "out").exists()


def test_invalid_folders_are_refused(sample: Any, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    for folder in (file, "gopher://nowhere/out"):
        with pytest.raises(ValueError, match="folder must"):
            rows(array(sample.z), sample.y).to_parquet(folder)
    assert file.read_text() == "kept"


def test_files_appear_once_all_are_written(client: Any, sample: Any, tmp_path: Path) -> None:
    out, source = tmp_path / "out", rows(array(sample.z), sample.y, client=client)

    def fails_at_last(z: Any, _: Any) -> Any:
        end = time.monotonic() + 10
        while (
            not list(out.glob(".*.part/part-*.parquet")) and time.monotonic() < end
        ):  # wait for another file
            time.sleep(0.01)
        raise ValueError("no more")

    last = sample.z[-1]
    failing = source.transform(lambda z, g: fails_at_last(z, g) if (z[-1] == last).all() else z)
    with pytest.raises(ValueError, match="no more"):
        failing.to_parquet(out)
    assert list(out.iterdir()) == []
    left = out / f".{'0' * 32}.part"  # left by a killed process
    left.mkdir()
    pq.write_table(
        pa.table({"probs": list(sample.z[:5]), "label": sample.y[:5]}), left / "part-000000.parquet"
    )
    source.to_parquet(out)
    assert sorted(path.name for path in out.iterdir() if path != left) == [
        f"part-{number:06d}.parquet" for number in range(len(CUTS))
    ]
    np.testing.assert_array_equal(np.stack(pq.read_table(out)["probs"].to_numpy()), sample.z)
    written = read_parquet(out, logits="probs", labels="label", client=client)
    np.testing.assert_array_equal(client.compute(written.to_dask_array()).result(), sample.z)


def test_a_column_of_lists_in_parquet(client: Any, sample: Any, tmp_path: Path) -> None:
    lists = pa.array(list(sample.z))
    pq.write_table(pa.table({"z": lists, "label": sample.y}), tmp_path / "z.parquet", row_group_size=1000)
    source = read_parquet(tmp_path / "z.parquet", client=client, block_rows=1)
    assert repr(source) == "DaskRows(3 blocks)"
    assert source.n_classes == K
    np.testing.assert_array_equal(client.compute(source.to_dask_array()).result(), sample.z)


def test_the_current_client_is_used(client: Any, sample: Any) -> None:
    with client.as_current():
        assert rows(array(sample.z), sample.y)._store.client is client


# --- errors


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"logits": np.zeros((9, 2))}, TypeError, "logits must .*got ndarray"),
        ({"logits": da.zeros((9, 2, 2))}, ValueError, "logits must .*got shape"),
        ({"labels": np.zeros(8)}, ValueError, "labels must .*got 8"),
        ({"labels": da.zeros((9, 2))}, ValueError, "labels must .*one-dimensional"),
        ({"labels": "label"}, ValueError, "labels must .*one-dimensional"),
        ({"sample_weight": np.ones(3)}, ValueError, "sample_weight must"),
        ({"columns": ["a"]}, ValueError, "columns must"),
        ({"client": "tcp://here"}, TypeError, "client must .*got 'tcp://here'"),
    ],
)
def test_bad_arguments(change: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = {"logits": da.zeros((9, 2)), "labels": np.zeros(9, int), **change}
    with pytest.raises(error, match=message):
        rows(arguments.pop("logits"), arguments.pop("labels"), **arguments)


def test_unknown_sizes_need_matching_chunks() -> None:
    z = da.zeros((9, 2), chunks=(3, 2))
    z = z[z[:, 0] == 0]
    with pytest.raises(ValueError, match=r"\(3\).*NumPy array.*compute_chunk_sizes"):
        rows(z, np.zeros(9))
    with pytest.raises(ValueError, match="got 1 chunks"):
        rows(z, da.zeros(9, dtype=int))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": "nothing"}, "labels must .*got 'nothing'"),
        ({"labels": np.zeros(3)}, "labels must .*got ndarray"),
        (
            {"labels": "y", "columns": ["a", "c"]},
            r"columns must .*got \['c'\]",
        ),
        (
            {"labels": "y", "groups": "a", "sample_weight": "b"},
            "logits must",
        ),
    ],
)
def test_bad_columns(options: dict[str, Any], message: str) -> None:
    frame = dd.from_pandas(pd.DataFrame({"a": [1.0, 2.0], "b": [2.0, 1.0], "y": [0, 1]}), npartitions=1)
    with pytest.raises(ValueError, match=message):
        rows(frame, **options)


def test_lists_of_different_lengths() -> None:
    with dask.config.set({"dataframe.convert-string": False}):
        frame = pd.DataFrame({"z": [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0]], "y": [0, 1]})
        source = rows(dd.from_pandas(frame, npartitions=1), "y")
    with pytest.raises(ValueError, match=r"block 0: column 'z' must .*, got lengths \[2, 4\]"):
        source.reduce(counted)


def test_groups_without_weight_are_left_out(client: Any, sample: Any) -> None:
    z, y, *_ = sample
    g, w = np.resize(["a", "b"], len(y)), np.resize([1.0, 0.0], len(y))
    blocks = [da.from_array(part, chunks=(500, *part.shape[1:])) for part in (z, y, g, w)]
    source = rows(blocks[0], blocks[1], groups=blocks[2], sample_weight=blocks[3], client=client)
    assert list(hetcal.ClassWiseTemperatureScaling().fit(source).groups_) == ["a"]


def test_errors_name_the_block(client: Any, sample: Any, groups: NDArray[Any]) -> None:
    y = sample.y.copy()
    y[1005] = K
    with pytest.raises(ValueError, match=r"block 3: labels must .*got 5 at row 4"):
        rows(array(sample.z), y, client=client).reduce(counted)
    z = sample.z.copy()
    z[700, 2] = np.nan
    with pytest.raises(ValueError, match="block 1: logits must"):
        rows(array(z), sample.y).reduce(counted)  # no client
    source = rows(array(sample.z), sample.y, groups=groups, client=client)
    with pytest.raises(ValueError, match=r"block \d: groups must"):
        fitted(source, np.inf, GROUPS[:1])
    mixed = da.concatenate([da.from_array(GROUPS[:2]), da.from_array(np.arange(2)).astype(object)])
    source = rows(da.zeros((4, 2), chunks=(2, 2)), np.zeros(4, int), groups=mixed, client=client)
    with pytest.raises(TypeError, match="groups must"):
        source.group_names()


def test_blocks_must_have_the_same_classes(client: Any, tmp_path: Path) -> None:
    for i, k in enumerate((3, 4)):
        lists = pa.FixedSizeListArray.from_arrays(np.arange(4.0 * k), k)
        pq.write_table(pa.table({"z": lists, "label": [0, 1, 2, 0]}), tmp_path / f"{i}.parquet")
    with pytest.raises(ValueError, match="block 1: logits must"):
        read_parquet(tmp_path, client=client, block_rows=4).reduce(counted)
    with pytest.raises(ValueError, match=r"block 0: logits must .*got 3 and 4"):
        read_parquet(tmp_path, client=client).reduce(counted)


def test_bad_parquet(client: Any, tmp_path: Path, sample: Any) -> None:
    folder = write(tmp_path / "data", sample.z, sample.y)
    with pytest.raises(ValueError, match="column 'y' must"):
        read_parquet(folder, labels="y", client=client)
    with pytest.raises(ValueError, match=r"block_rows must .*got 0"):
        read_parquet(folder, block_rows=0, client=client)
    with pytest.raises(ValueError, match="path must"):
        read_parquet(tmp_path / "none", client=client)
    pq.write_table(pq.read_table(folder)[:0], tmp_path / "empty.parquet")
    with pytest.raises(ValueError, match="at least one row"):
        read_parquet(tmp_path / "empty.parquet", client=client)


def test_a_relative_path_works_for_workers_in_another_folder(
    sample: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "data", sample.z, sample.y)
    monkeypatch.chdir(tmp_path)
    source = read_parquet("data")
    monkeypatch.chdir("/")
    assert source.reduce(counted)[0].sum() == len(sample.y)


def test_without_dask_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dask", None)
    for call in (lambda: rows(None, []), lambda: read_parquet("x")):
        with pytest.raises(ImportError, match=r"hetcal\[dask\]"):
            call()


def test_importing_the_module_does_not_load_dask() -> None:
    code = "import sys, hetcal.dask; sys.exit('dask' in sys.modules or 'pyarrow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["logits", "labels", "sample_weight", "groups"])
def test_masked_entries_are_refused(name: str) -> None:
    parts: dict[str, Any] = {
        "logits": np.eye(3)[[0, 1, 2, 0]] * 2,
        "labels": np.array([0, 1, 2, 0]),
        "sample_weight": np.zeros(4),
        "groups": np.array([1, 1, 2, 2]),
    }
    mask = np.zeros(parts[name].shape, bool)
    mask[3] = True
    parts[name] = np.ma.array(parts[name], mask=mask)
    blocks = {key: da.from_array(value, chunks=2) for key, value in parts.items()}
    with pytest.raises(ValueError, match=rf"block 1: {name} must .*masked.* at row 1"):
        hetcal.TemperatureScaling().fit(rows(blocks.pop("logits"), **blocks))
    if name != "logits":
        with pytest.raises(ValueError, match=rf"{name} must .*masked.* at row 3"):
            rows(da.from_array(parts.pop("logits"), chunks=2), **parts)


def numbered_frame() -> Any:
    """Data frame of a model that is always correct, with an index and columns named 10, 2 and 1."""
    rng = np.random.default_rng(0)
    position = rng.integers(0, 3, 50)
    z = rng.normal(size=(50, 3))
    z[np.arange(50), position] += 20
    frame = pd.DataFrame(z, columns=["10", "2", "1"], index=rng.permutation(50))
    return frame.assign(label=np.array([10, 2, 1])[position])


def accuracy_of(source: Any) -> float:
    return hetcal.evaluate(hetcal.Identity().fit(source).predict_proba(source), n_redraws=2).accuracy


@pytest.mark.parametrize("writer", ["pandas", "dask"])
def test_columns_named_by_numbers_and_an_index_in_parquet(tmp_path: Path, writer: str) -> None:
    frame = numbered_frame()
    if writer == "pandas":
        frame.to_parquet(tmp_path / "a.parquet")
    else:
        dd.from_pandas(frame, npartitions=2, sort=False).to_parquet(tmp_path / "a.parquet")
    source = read_parquet(tmp_path / "a.parquet")
    assert source.n_classes == 3
    assert accuracy_of(source) == 1
    with pytest.raises(ValueError, match=r"labels must .*got 10 at row"):  # labels are positions in `logits`
        accuracy_of(read_parquet(tmp_path / "a.parquet", logits=["10", "2", "1"]))


@pytest.mark.parametrize("names", [str, int])
def test_columns_named_by_numbers_in_a_dataframe(names: type) -> None:
    frame = numbered_frame().rename(columns={c: names(c) for c in ("10", "2", "1")})
    frame.insert(0, "Unnamed: 0", np.random.default_rng(1).normal(size=50))
    spread = dd.from_pandas(frame, npartitions=2, sort=False)
    source = rows(spread, "label")
    assert source.n_classes == 3
    assert accuracy_of(source) == 1
    with pytest.raises(ValueError, match=r"block \d: labels must .*\(10, 2, 1\), got 3 at"):
        accuracy_of(rows(spread.assign(label=3), "label"))


def test_a_dataset_in_memory_is_refused(sample: Any) -> None:
    table = pa.table({"label": sample.y, "a": sample.z[:, 0], "b": sample.z[:, 1]})
    with pytest.raises(TypeError, match="path must"):
        read_parquet(pytest.importorskip("pyarrow.dataset").dataset(table))


def test_a_part_that_cannot_be_moved_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "part-000000.parquet" / "in the way").mkdir(parents=True)
    with pytest.raises(OSError, match="part-000000"):
        write_part(str(tmp_path), 0, np.eye(2), "probs", {"label": np.array([0, 1])})
    assert [path.name for path in tmp_path.iterdir()] == ["part-000000.parquet"]


def test_class_names_of_a_dataframe(sample: Any) -> None:
    frame = pd.DataFrame(sample.z[:6, :2], columns=["logit_cat", "logit_dog"]).assign(label=[0, 1] * 3)
    source = rows(dd.from_pandas(frame, npartitions=1), "label")
    assert source.class_names == ["cat", "dog"]
    assert source.n_classes == 2


def test_empty_lists_are_skipped(sample: Any) -> None:
    with dask.config.set({"dataframe.convert-string": False}):
        frame = pd.DataFrame({"z": [list(row) for row in sample.z[:6]], "label": sample.y[:6]})
        parts = dd.concat(
            [dd.from_pandas(frame.iloc[:0], npartitions=1), dd.from_pandas(frame, npartitions=1)]
        )
        source = rows(parts, "label")
        assert source.n_classes == K
        np.testing.assert_array_equal(source.to_dask_array().compute(), sample.z[:6])
