"""Sub-sampling the rows at hand: what each method scores on the rest after a fit on m of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._numeric.probabilities import top_label
from hetcal._numeric.rows import prepare
from hetcal._numeric.source import MemorySource
from hetcal._numeric.threads import with_one_blas_thread
from hetcal._typing import Float, FloatArray, IntArray
from hetcal._warnings import quiet
from hetcal.calibrators import TemperatureScaling
from hetcal.calibrators.base import fit_step, predict_step
from hetcal.metrics.floors import floor_of
from hetcal.metrics.reliability import TopLabel, calibration_error
from hetcal.metrics.scores import class_cells

__all__ = ["FEWEST_REPEATS", "HELD_OUT", "OnStep", "Samples", "fit_quietly", "row_losses", "take_samples"]

OnStep = Callable[[int, int], None]

_DRAWS = 400  # bootstrap draws
_BLOCKS = 8192  # rows are weighted in at most this many random blocks
_REDRAWS = 20  # for the floor of max-ECE; their mean over the repeats is what counts
HELD_OUT = 0.2  # share of the rows that is never fitted on in a split, and that max-ECE is judged on
FEWEST_REPEATS = 5  # each holds out another fifth of the rows


@dataclass(frozen=True, eq=False)
class Samples:
    """Held-out scores of every method, size and repeat, with their bootstrap draws.

    NLL is kept as a difference to the `reference`, the pooled temperature fitted on all rows: which rows were
    held out then hardly matters, and the noise that all methods share is apart from the rest.

    Attributes
    ----------
    sizes : (S,) float
    nll : (methods, S, R) held-out NLL minus that of the reference on the same rows
    nll_draws : (methods, S, B) means under bootstrap weights of rows and repeats
    max_ece : (methods, S, R) held-out max-ECE minus its noise floor
    max_ece_draws : (methods, S, B) means of resampled repeats
    reference : NLL of the reference on all rows
    reference_draws : (B,) the same under the weights
    floor : least NLL that any method reaches on the very rows it was fitted on, minus the reference
    floor_draws : (B,) the same under the weights
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
    """Shuffle the rows `n_repeats` times; fit on the first m of them, judge on the rest."""
    started = time.perf_counter()
    reference = row_losses(fit_quietly(TemperatureScaling(), z, y), z, y)
    weights = _Weights.draw(len(z), rng)
    scores, drawn = [], []
    for r, order in zip(range(n_repeats), _orders(len(z), rng), strict=False):
        parts = []
        for s, m in enumerate(sizes):
            parts.append(_judge(z, y, methods, order, int(m), reference, n_bins, rng))
            if on_step is not None:
                on_step(r * len(sizes) + s + 1, n_repeats * len(sizes))
        scores.append(np.stack([part.scores for part in parts], axis=2))  # (2, methods, S)
        drawn.append(weights.mean(np.stack([part.difference for part in parts], axis=1)))
        spent = time.perf_counter() - started
        if max_seconds is not None and r + 1 >= FEWEST_REPEATS and spent * (r + 2) / (r + 1) > max_seconds:
            break
    in_sample = np.stack([row_losses(fit_quietly(c, z, y), z, y) - reference for c in methods.values()])
    lowest = in_sample[in_sample.mean(axis=1).argmin()]
    repeats = rng.multinomial(len(scores), np.full(len(scores), 1 / len(scores)), _DRAWS) / len(scores)
    nll, max_ece = np.stack(scores, axis=-1)
    return Samples(
        sizes=sizes.astype(np.float64),
        nll=nll,
        nll_draws=np.einsum("rmsb,br->msb", np.stack(drawn), repeats),
        max_ece=max_ece,
        max_ece_draws=np.einsum("msr,br->msb", max_ece, repeats),
        reference=float(reference.mean()),
        reference_draws=weights.mean(reference[None])[0],
        floor=float(lowest.mean()),
        floor_draws=weights.mean(lowest[None])[0],
    )


def row_losses(fitted: Any, z: FloatArray, y: IntArray) -> Float:
    """NLL of every row, (n,)."""
    return _losses(_predict(fitted, z), y)


def fit_quietly(method: Any, z: FloatArray, y: IntArray) -> Any:
    """Fit a fresh copy; thin data are the point here and need no warning."""
    with quiet():
        return fit_step(method, MemorySource(prepare(z, y, None)))


def _predict(fitted: Any, z: FloatArray) -> FloatArray:
    return predict_step(fitted, z, None)


def _losses(p: FloatArray, y: IntArray) -> Float:
    return -np.log(np.maximum(p[np.arange(len(y)), y].astype(np.float64), np.finfo(np.float32).tiny))


def _orders(n_rows: int, rng: np.random.Generator) -> Iterator[IntArray]:
    """Shuffled row numbers; the last fifth, never fitted on, takes turns: five repeats hold out every row."""
    while True:
        for last in np.array_split(rng.permutation(n_rows), round(1 / HELD_OUT)):
            rest = np.setdiff1d(np.arange(n_rows), last, assume_unique=True)
            yield np.concatenate([rng.permutation(rest), last])


@dataclass(frozen=True, eq=False)
class _Part:
    """One size in one split: (2, methods) NLL and max-ECE; (methods, n) NLL differences, nan if fitted on."""

    scores: Float
    difference: Float


def _judge(
    z: FloatArray,
    y: IntArray,
    methods: Mapping[str, Any],
    order: IntArray,
    m: int,
    reference: Float,
    n_bins: int,
    rng: np.random.Generator,
) -> _Part:
    fitted_on, rest = order[:m], order[m:]
    z_rest, y_rest = z[rest], y[rest]
    n_last = int(HELD_OUT * len(z))
    difference = np.full((len(methods), len(z)), np.nan)
    scores = np.empty((2, len(methods)))
    for k, method in enumerate(methods.values()):
        fitted = fit_quietly(method, z[fitted_on], y[fitted_on])
        p = _predict(fitted, z_rest)
        difference[k, rest] = _losses(p, y_rest) - reference[rest]
        # The same number of rows at every size: the excess of a maximum depends on how noisy its parts are.
        scores[:, k] = difference[k, rest].mean(), _max_ece_excess(p[-n_last:], y_rest[-n_last:], n_bins, rng)
    return _Part(scores, difference)


def _max_ece_excess(p: FloatArray, y: IntArray, n_bins: int, rng: np.random.Generator) -> float:
    confidence, guess = top_label(p)
    top = TopLabel(confidence, guess, guess == y, p.shape[1])
    table = class_cells(top, n_bins, "width")
    floor = floor_of(top, n_bins=n_bins, n_redraws=_REDRAWS, quantiles=(), rng=rng)
    worst = np.nanmax(calibration_error(table.count, table.residual))
    return float(worst - np.asarray(floor.mean["max_ece"]))


@dataclass(frozen=True, eq=False)
class _Weights:
    """Poisson weights of random blocks of rows: the bootstrap, with a single pass over the rows."""

    block: IntArray  # (n,)
    weight: NDArray[np.float32]  # (blocks, B)

    @classmethod
    def draw(cls, n_rows: int, rng: np.random.Generator) -> _Weights:
        n_blocks = min(n_rows, _BLOCKS)
        block = rng.permutation(n_rows) % n_blocks
        return cls(block, rng.poisson(1.0, (n_blocks, _DRAWS)).astype(np.float32))

    @with_one_blas_thread
    def mean(self, values: Float) -> Float:
        """Weighted means over the rows of `values` (..., n), nan left out, (..., B)."""
        n_blocks, n_draws = self.weight.shape
        flat = values.reshape(-1, values.shape[-1])
        known = np.isfinite(flat)
        sums = [np.bincount(self.block, row, n_blocks) for row in np.where(known, flat, 0.0)]
        counts = [np.bincount(self.block, row, n_blocks) for row in known]
        # One product for all: it reads the weights once.
        total = np.asarray([*sums, *counts], np.float32) @ self.weight
        means = total[: len(flat)] / np.maximum(total[len(flat) :], 1e-9)
        return np.asarray(means.reshape(*values.shape[:-1], n_draws), np.float64)
