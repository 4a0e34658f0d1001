"""Held-out scores of calibrators that are fitted on subsamples of several sizes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._numeric.probabilities import top_label
from hetcal._numeric.rows import Rows, prepare
from hetcal._numeric.source import MemorySource
from hetcal._numeric.threads import with_one_blas_thread
from hetcal._typing import Float, FloatArray, IntArray
from hetcal._warnings import quiet
from hetcal.calibrators import TemperatureScaling
from hetcal.calibrators.base import fit_step, predict_step
from hetcal.metrics.binning import TopLabel, calibration_error, class_cells
from hetcal.metrics.floors import floor_of

__all__ = ["HELD_OUT", "MIN_REPEATS", "OnStep", "Samples", "fit_quietly", "row_losses", "take_samples"]

OnStep = Callable[[int, int], None]

HELD_OUT = 0.2  # each repeat holds out this fraction of the rows from all its fits, to measure max-ECE
MIN_REPEATS = 5  # the fewest repeats that together hold out every row
_N_DRAWS = 400  # number of bootstrap draws
_MAX_BLOCKS = 8192  # the bootstrap resamples at most this many random blocks of rows
_N_REDRAWS = 20  # simulations for each noise floor of max-ECE; few suffice, since repeats are averaged


@dataclass(frozen=True, eq=False)
class Samples:
    """Held-out scores of every method, size and repeat, with bootstrap draws.

    The NLL is stored as the difference from the reference, the NLL of one temperature fitted on all rows.
    This removes most of the variation that is due to the choice of held-out rows. It also separates the
    sampling error that all methods share from the other sources of variation.

    S, R and B are the numbers of sizes, repeats and bootstrap draws.

    Attributes
    ----------
    sizes : array of shape (S,)
    nll : array of shape (methods, S, R)
        Mean NLL of all rows not fitted on, minus the reference on the same rows.
    nll_draws : array of shape (methods, S, B)
        Means of this difference under bootstrap weights of rows and repeats.
    max_ece : array of shape (methods, S, R)
        Largest ECE of any class (max-ECE), minus its noise floor. It is measured on the fifth of the rows
        that a repeat holds out from its fits of all sizes. The noise floor is the mean of max-ECE for a
        calibrated model with the same confidences.
    max_ece_draws : array of shape (methods, S, B)
        Means of `max_ece` over resampled repeats.
    reference : float
        Mean of the reference over all rows.
    reference_draws : array of shape (B,)
        The reference under the bootstrap weights.
    floor : float
        Lowest NLL of any method when fitted and evaluated on all rows, minus the reference.
    floor_draws : array of shape (B,)
        The floor under the bootstrap weights.
    """

    sizes: Float
    nll: Float
    nll_draws: Float
    max_ece: Float
    max_ece_draws: Float
    reference: float
    reference_draws: Float
    floor: float
    floor_draws: Float


def take_samples(
    z: FloatArray,
    y: IntArray,
    methods: Mapping[str, Any],
    sizes: IntArray,
    *,
    n_repeats: int,
    n_bins: int,
    rng: np.random.Generator,
    max_seconds: float | None,
    on_step: OnStep | None,
) -> Samples:
    """Shuffle the rows `n_repeats` times; for each size m, fit on the first m rows and score the rest.

    If one more repeat is expected to exceed `max_seconds`, there are fewer repeats, but at least five.
    """
    start = time.perf_counter()
    rows = prepare(z, y, None)
    reference = row_losses(fit_quietly(TemperatureScaling(), rows), z, y)
    weights = _BootstrapWeights.draw(len(z), rng)
    scores, nll_draws = [], []
    for repeat, order in zip(range(n_repeats), _orders(len(z), rng), strict=False):
        splits = []
        for i, m in enumerate(sizes):
            splits.append(_score_split(z, y, methods, order, int(m), reference, n_bins, rng))
            if on_step is not None:
                on_step(repeat * len(sizes) + i + 1, n_repeats * len(sizes))
        scores.append(np.stack([split.scores for split in splits], axis=2))  # shape (2, methods, S)
        nll_draws.append(weights.mean(np.stack([split.nll_difference for split in splits], axis=1)))
        n_done = repeat + 1
        expected = (time.perf_counter() - start) * (n_done + 1) / n_done
        if max_seconds is not None and n_done >= MIN_REPEATS and expected > max_seconds:
            break
    in_sample = np.stack([row_losses(fit_quietly(c, rows), z, y) - reference for c in methods.values()])
    lowest = in_sample[in_sample.mean(axis=1).argmin()]
    n_done = len(scores)
    repeat_weights = rng.multinomial(n_done, np.full(n_done, 1 / n_done), _N_DRAWS) / n_done
    nll, max_ece = np.stack(scores, axis=-1)
    return Samples(
        sizes=sizes.astype(np.float64),
        nll=nll,
        nll_draws=np.einsum("rmsb,br->msb", np.stack(nll_draws), repeat_weights),
        max_ece=max_ece,
        max_ece_draws=np.einsum("msr,br->msb", max_ece, repeat_weights),
        reference=float(reference.mean()),
        reference_draws=weights.mean(reference[None])[0],
        floor=float(lowest.mean()),
        floor_draws=weights.mean(lowest[None])[0],
    )


def row_losses(calibrator: Any, z: FloatArray, y: IntArray) -> Float:
    """NLL of each row under a fitted calibrator, (n,)."""
    return _nll(predict_step(calibrator, z, None), y)


def fit_quietly(method: Any, rows: Rows) -> Any:
    """Fit a copy of `method` without calibration warnings, which are expected in fits on few rows."""
    with quiet():
        return fit_step(method, MemorySource(rows))


def _nll(p: FloatArray, y: IntArray) -> Float:
    return -np.log(np.maximum(p[np.arange(len(y)), y].astype(np.float64), np.finfo(np.float32).tiny))


def _orders(n_rows: int, rng: np.random.Generator) -> Iterator[IntArray]:
    """Yield permutations of the rows; the last fifth of each permutation is held out.

    The first five permutations hold out every row once, and so do the next five, and so on.
    """
    while True:
        for held_out in np.array_split(rng.permutation(n_rows), round(1 / HELD_OUT)):
            rest = np.setdiff1d(np.arange(n_rows), held_out, assume_unique=True)
            yield np.concatenate([rng.permutation(rest), held_out])


@dataclass(frozen=True, eq=False)
class _Split:
    """Scores of all methods for one size in one repeat.

    Attributes
    ----------
    scores : array of shape (2, methods)
        Mean of `nll_difference` over all rows not fitted on, and `max_ece` as in :class:`Samples`.
    nll_difference : array of shape (methods, n)
        NLL of each row minus the reference (see :class:`Samples`); nan for the rows fitted on.
    """

    scores: Float
    nll_difference: Float


def _score_split(
    z: FloatArray,
    y: IntArray,
    methods: Mapping[str, Any],
    order: IntArray,
    m: int,
    reference: Float,
    n_bins: int,
    rng: np.random.Generator,
) -> _Split:
    train, rest = order[:m], order[m:]
    rows, z_rest, y_rest = prepare(z[train], y[train], None), z[rest], y[rest]
    n_held_out = int(HELD_OUT * len(z))
    difference = np.full((len(methods), len(z)), np.nan)
    scores = np.empty((2, len(methods)))
    for k, method in enumerate(methods.values()):
        p = predict_step(fit_quietly(method, rows), z_rest, None)
        difference[k, rest] = _nll(p, y_rest) - reference[rest]
        # The bias of max-ECE depends on the number of rows, so all sizes m are evaluated on the same rows.
        max_ece = _max_ece_excess(p[-n_held_out:], y_rest[-n_held_out:], n_bins, rng)
        scores[:, k] = difference[k, rest].mean(), max_ece
    return _Split(scores, difference)


def _max_ece_excess(p: FloatArray, y: IntArray, n_bins: int, rng: np.random.Generator) -> float:
    confidence, predicted = top_label(p)
    top = TopLabel(confidence, predicted, predicted == y, p.shape[1])
    table = class_cells(top, n_bins, "width")
    floor = floor_of(top, n_bins=n_bins, n_redraws=_N_REDRAWS, quantiles=(), rng=rng)
    max_ece = np.nanmax(calibration_error(table.count, table.residual))
    return float(max_ece - np.asarray(floor.mean["max_ece"]))


@dataclass(frozen=True, eq=False)
class _BootstrapWeights:
    """Poisson bootstrap weights of blocks of rows, to which the rows are assigned at random.

    Attributes
    ----------
    block : array of shape (n,)
        Block of every row.
    weight : array of shape (blocks, B)
        Weight that each bootstrap draw gives to every row of a block.
    """

    block: IntArray
    weight: NDArray[np.float32]

    @classmethod
    def draw(cls, n_rows: int, rng: np.random.Generator) -> _BootstrapWeights:
        n_blocks = min(n_rows, _MAX_BLOCKS)
        block = rng.permutation(n_rows) % n_blocks
        return cls(block, rng.poisson(1.0, (n_blocks, _N_DRAWS)).astype(np.float32))

    @with_one_blas_thread
    def mean(self, values: Float) -> Float:
        """Weighted means (..., B) over the last axis of `values` (..., n), ignoring nan."""
        n_blocks, n_draws = self.weight.shape
        flat = values.reshape(-1, values.shape[-1])
        is_finite = np.isfinite(flat)
        sums = [np.bincount(self.block, row, n_blocks) for row in np.where(is_finite, flat, 0.0)]
        counts = [np.bincount(self.block, row, n_blocks) for row in is_finite]
        # Sums and counts share one matrix product, so the large weight matrix is read only once.
        totals = np.asarray([*sums, *counts], np.float32) @ self.weight
        means = totals[: len(flat)] / np.maximum(totals[len(flat) :], 1e-9)
        return np.asarray(means.reshape(*values.shape[:-1], n_draws), np.float64)
