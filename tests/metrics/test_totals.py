from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from hetcal import Batches, metrics
from hetcal._numeric.blocks import Block
from hetcal._numeric.rows import Rows
from hetcal.metrics import Evaluation, evaluate, noise_floor
from hetcal.metrics import totals as module
from hetcal.metrics.binning import FineBins
from hetcal.metrics.totals import BlockTotals, totals_of

PLAIN = ("accuracy", "nll", "brier", "ece", "max_ece", "avg_ece", "smooth_ece", "debiased_ece")
COLUMNS = ("n", "accuracy", "confidence", "signed_gap", "ece")


def make_probs(n: int, k: int, dtype: type = np.float64, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, including zeros and ones, and labels that are mostly the predicted class."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(k, 0.3), size=n)
    labels = np.where(rng.random(n) < 0.7, probs.argmax(axis=1), rng.integers(k, size=n))
    n_certain = n // 100
    probs[:n_certain] = np.eye(k)[np.arange(n_certain) % k]
    return probs.astype(dtype), labels


def assert_same_numbers(a: Evaluation, b: Evaluation) -> None:
    for name in PLAIN:
        assert getattr(a, name) == pytest.approx(getattr(b, name), rel=1e-12, abs=1e-12), name
    for name in COLUMNS:
        column = getattr(b.classes, name)
        assert getattr(a.classes, name) == pytest.approx(column, rel=1e-12, abs=1e-12, nan_ok=True), name
    for name in ("n", "n_classes", "n_bins", "worst_class"):
        assert getattr(a, name) == getattr(b, name)


@pytest.mark.parametrize(("k", "dtype"), [(2, np.float32), (20, np.float64)])
def test_large_inputs_agree_with_the_single_metrics(k: int, dtype: type) -> None:
    probs, labels = make_probs(30_000, k, dtype)
    result = evaluate(probs, labels)
    for name in PLAIN:
        assert getattr(result, name) == pytest.approx(getattr(metrics, name)(probs, labels), rel=1e-12), name
    assert result.classes.ece == pytest.approx(metrics.class_ece(probs, labels), rel=1e-10)
    floor = noise_floor(probs)
    assert dict(result.floor) == {name: floor.mean[name] for name in result.floor}
    assert np.array_equal(result.classes.floor, floor.mean["class_ece"])
    assert np.array_equal(result.classes.floor_q95, floor.quantile("class_ece", 0.95))


def test_result_does_not_depend_on_memory_layout_or_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    probs, labels = make_probs(30_000, 10)
    result = evaluate(probs, labels)
    wide = np.zeros((30_000, 20))
    wide[:, ::2] = probs
    for layout in (np.asfortranarray(probs), wide[:, ::2]):
        assert_same_numbers(evaluate(layout, labels), result)
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", 999)
    monkeypatch.setattr(module, "_GROUP_ROWS", 5000)
    chunked = evaluate(probs, labels)
    assert_same_numbers(chunked, result)
    assert chunked.floor == pytest.approx(dict(result.floor))


def test_result_does_not_depend_on_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    probs, labels = make_probs(60_000, 10, np.float32)
    monkeypatch.setenv("HETCAL_THREADS", "1")
    single = evaluate(probs, labels).to_dict()
    monkeypatch.setenv("HETCAL_THREADS", "3")
    assert evaluate(probs, labels).to_dict() == single


def test_memory_grows_much_less_than_the_rows() -> None:
    probs, labels = make_probs(1 << 19, 10, np.float32)

    def peak_memory(n: int) -> int:
        tracemalloc.start()
        try:
            evaluate(probs[:n], labels[:n], n_redraws=10)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak_memory(1 << 18)
    assert peak_memory(1 << 19) - peak_memory(1 << 18) < 0.2 * probs[: 1 << 18].nbytes


@pytest.mark.parametrize(
    ("n", "k", "n_bins", "dtype"),
    [(4000, 200, 7, np.float32), (30_000, 10, 15, np.float64), (3, 2, 1, np.float64)],
)
def test_batches_agree_with_rows_in_memory(n: int, k: int, n_bins: int, dtype: type) -> None:
    probs, labels = make_probs(n, k, dtype)
    names = [f"class {i}" for i in range(k)]
    in_memory = evaluate(probs, labels, names, n_bins=n_bins, n_redraws=20)
    for rows in (max(1, n // 7), n):
        batched = evaluate(
            Batches(probs, labels, batch_rows=rows), class_names=names, n_bins=n_bins, n_redraws=20
        )
        assert_same_numbers(batched, in_memory)
        assert batched.classes.name == tuple(names)


def test_floor_of_batches_has_the_distribution_of_rows_in_memory() -> None:
    probs, labels = make_probs(2000, 5)
    in_memory, batched = (
        evaluate(*rows, n_redraws=2000, rng=1)
        for rows in ((probs, labels), (Batches(probs, labels, batch_rows=300),))
    )
    draws = noise_floor(probs, n_redraws=2000, rng=2)
    for name in ("ece", "max_ece", "avg_ece"):
        error = 5 * draws.std[name] / np.sqrt(1000)
        assert batched.floor[name] == pytest.approx(in_memory.floor[name], abs=error)
        assert (draws.samples[name] <= batched.floor_q95[name]).mean() == pytest.approx(0.95, abs=0.035)
    assert batched.classes.floor == pytest.approx(in_memory.classes.floor, rel=0.1)
    assert batched.classes.floor_q95 == pytest.approx(in_memory.classes.floor_q95, rel=0.1)
    probs, labels = make_probs(30_000, 5)  # inputs in memory of this size are redrawn in the same way
    assert evaluate(Batches(probs, labels)).floor == pytest.approx(dict(evaluate(probs, labels).floor))


def test_batches_can_be_an_iterable_or_files(tmp_path: Path) -> None:
    probs, labels = make_probs(900, 4, np.float32)

    def read() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return ((probs[i : i + 250], labels[i : i + 250]) for i in range(0, 900, 250))

    np.save(tmp_path / "probs.npy", probs)
    mapped = np.load(tmp_path / "probs.npy", mmap_mode="r")
    in_memory = evaluate(probs, labels, n_redraws=5)
    for source in (Batches(read), Batches(mapped, labels, batch_rows=100)):
        assert_same_numbers(evaluate(source, n_redraws=5), in_memory)


def test_transformed_batches_are_evaluated_after_the_transformation() -> None:
    probs, labels = make_probs(500, 4)
    transformed = Batches(probs, labels, batch_rows=90).transform(lambda p, _: p[:, ::-1])
    assert_same_numbers(evaluate(transformed, n_redraws=5), evaluate(probs[:, ::-1], labels, n_redraws=5))


def test_one_byte_labels_do_not_overflow() -> None:
    probs, labels = make_probs(2000, 250)
    guess = probs.argmax(axis=1)
    bins = FineBins(15)
    narrow = totals_of(probs, labels.astype(np.uint8), bins, guess.astype(np.uint8))
    wide = totals_of(probs, labels, bins)
    for name in ("count", "confidence", "correct", "grid", "scores"):
        assert getattr(narrow, name) == pytest.approx(getattr(wide, name))


def test_block_totals_can_be_pickled_and_add_up() -> None:
    probs, labels = make_probs(300, 3)
    guess = probs.argmax(axis=1).astype(np.uint8)
    statistic = pickle.loads(pickle.dumps(BlockTotals(FineBins(15))))  # noqa: S301
    totals = statistic(Block(Rows(probs, labels, guess)))
    cuts = (slice(0, 100), slice(100, 100), slice(100, 300))  # one of them empty
    blocks = [statistic(Block(Rows(probs[c], labels[c], guess[c]))) for c in cuts]
    for total, *block_totals in zip(totals, *blocks, strict=True):
        assert sum(block_totals) == pytest.approx(total)
    assert totals[0].sum() == 300
    assert totals[2].sum() == (guess == labels).sum()


def test_very_many_classes_have_wider_fine_bins(monkeypatch: pytest.MonkeyPatch) -> None:
    probs, labels = make_probs(2000, 30)
    fine = evaluate(Batches(probs, labels))
    monkeypatch.setattr(module, "_TABLE_SIZE", 100)
    sizes = []
    original = module.BlockTotals
    monkeypatch.setattr(module, "BlockTotals", lambda bins: sizes.append(bins.size) or original(bins))
    coarse = evaluate(Batches(probs, labels))
    assert sizes[0] < FineBins(15).size / 3
    assert_same_numbers(coarse, fine)
    assert coarse.floor == pytest.approx(dict(fine.floor), rel=0.05)


def test_labels_of_probability_zero_in_batches() -> None:
    probs, labels = make_probs(3000, 4)
    zero = np.arange(3000) % 7 == 0
    probs[zero] = np.eye(4)[(labels[zero] + 1) % 4]
    probs[2000, :] = [1e-7, 0.5, 0.5 - 1e-7, 0]
    in_memory = evaluate(probs, labels)
    assert in_memory.n_zero == np.count_nonzero(probs[np.arange(3000), labels] == 0) > 400
    # The smallest probability is in one batch only.
    batched = evaluate(Batches(probs, labels, batch_rows=400))
    assert batched.nll == pytest.approx(in_memory.nll, rel=1e-9)
    assert batched.n_zero == in_memory.n_zero
    assert f"{in_memory.n_zero:,} labels" in str(batched)


class EmptySource:
    """A source without rows."""

    n_classes = 3
    class_names = None

    def reduce(self, statistic: object) -> tuple[np.ndarray, ...]:
        empty = np.empty(0, np.uint8)
        return statistic(Block(Rows(np.empty((0, 3)), empty, empty)))

    def first(self) -> Block:
        raise NotImplementedError

    def group_names(self) -> None:
        return None

    def gather(self, _: object) -> list[object]:
        return []

    def transform(self, _: object) -> EmptySource:
        return self


def test_batches_are_validated() -> None:
    probs, labels = make_probs(50, 3)
    source = Batches(probs, labels, batch_rows=20)
    with pytest.raises(ValueError, match="labels must"):
        evaluate(source, labels)
    with pytest.raises(ValueError, match="predicted must"):
        evaluate(source, predicted=labels)
    with pytest.raises(ValueError, match=r"sample_weight must .* batch 0"):
        evaluate(Batches(probs, labels, sample_weight=np.ones(50)))
    with pytest.raises(ValueError, match="class_names must"):
        evaluate(source, class_names=["a", "b"])
    for option in ({"n_bins": 0}, {"n_redraws": 0}):
        with pytest.raises(ValueError, match="must"):
            evaluate(source, **option)
    with pytest.raises(TypeError, match="rng must"):
        evaluate(source, rng=-1)
    with pytest.raises(ValueError, match="at least one row"):
        evaluate(EmptySource())


@pytest.mark.parametrize(
    "change",
    [
        lambda p: np.log(p + 0.1),
        lambda p: p * 0.9,
    ],
)
def test_a_batch_without_probabilities_is_named(change: Callable[[np.ndarray], np.ndarray]) -> None:
    probs, labels = make_probs(60, 3)
    probs[20:40] = change(probs[20:40])
    with pytest.raises(ValueError, match=r"batch 1: probs must .* at row 0"):
        evaluate(Batches(probs, labels, batch_rows=20))


def test_arrays_need_labels() -> None:
    for options in ({}, {"predicted": [0]}):
        with pytest.raises(ValueError, match="labels must"):
            evaluate([0.9] if options else [[0.9, 0.1]], **options)


@pytest.mark.parametrize("value", [np.nan, -0.5, 0.5])
def test_an_invalid_row_among_many_is_named(value: float) -> None:
    probs, labels = make_probs(30_000, 10, np.float32)
    probs[12_345] = 0.1
    probs[12_345, 3] = value
    with pytest.raises(ValueError, match=r"probs must .* at row 12345"):
        evaluate(probs, labels)
