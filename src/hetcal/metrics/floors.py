"""Noise floors: the distribution of a calibration error under perfect calibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcal._numeric.threads import in_order
from hetcal._typing import Float, IntArray
from hetcal._validate import (
    GIVE_PREDICTED,
    as_generator,
    check_integer,
    check_observed_labels,
    check_probs,
    refuse_transition,
)
from hetcal.metrics.binning import (
    Binning,
    FineBins,
    FineCells,
    Norm,
    TopLabel,
    calibration_error,
    cell_index,
    check_binning,
    chunk_ranges,
    fine_cells,
    group_sum,
    reduce_to_top_label,
    top_label_of,
)

__all__ = ["NoiseFloor", "floor_of", "floor_of_fine_cells", "noise_floor", "uses_fine_cells"]

_METRICS = ("ece", "max_ece", "avg_ece", "class_ece")
_BLOCK_DRAWS = 1 << 20  # random numbers drawn at a time: 4 MiB of float32
# A fine cell contains the rows of one predicted class whose confidences lie in one fine bin (see `FineBins`).
# `uses_fine_cells` decides whether the number of correct predictions in it is redrawn as one binomial
# variate. The total number of rows times the number of redraws must exceed _MIN_FINE_DRAWS, and there must be
# at least _MIN_ROWS_PER_CELL rows per fine cell on average. Otherwise, redrawing the correctness of every row
# individually is fast enough or faster.
_MIN_FINE_DRAWS = 1 << 22
_MIN_ROWS_PER_CELL = 8
_BLOCK_BINOMIALS = 1 << 18  # approximate number of binomial variates drawn at a time


@dataclass(frozen=True, eq=False)
class NoiseFloor:
    """Distribution of each metric for a perfectly calibrated model with the same confidences.

    The metrics are ``ece``, ``max_ece``, ``avg_ece`` and, with one value per class, ``class_ece``.

    Attributes
    ----------
    levels : tuple of float
        Levels of the quantiles.
    mean, std : mapping of metric to float, or to (K,) array
    quantiles : mapping of metric to (L,) array, or to (L, K) array, for L levels
    samples : mapping of metric to (R,) or (R, K) array
        The values of the metric in R simulations, each of which redraws the correctness of all rows.
    """

    levels: tuple[float, ...]
    mean: Mapping[str, float | Float]
    std: Mapping[str, float | Float]
    quantiles: Mapping[str, Float]
    samples: Mapping[str, Float] = field(repr=False)

    def quantile(self, metric: str, level: float) -> float | Float:
        """Quantile of a metric over the redraws, at any level; nan for classes that are never predicted."""
        return _plain(np.quantile(self.samples[metric], level, axis=0))

    def p_value(self, metric: str, observed: ArrayLike) -> float | Float:
        """One-sided p-value ``(1 + c) / (1 + R)``, where c of the R redraws are at least `observed`.

        The p-value of a class that is never predicted is nan.
        """
        draws, value = self.samples[metric], np.asarray(observed, dtype=np.float64)
        p = (1 + (draws >= value).sum(axis=0)) / (1 + len(draws))
        return _plain(np.where(np.isnan(value) | np.isnan(draws[0]), np.nan, p))


def noise_floor(
    probs: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    n_classes: int | None = None,
    labels: ArrayLike | None = None,
    transition: ArrayLike | None = None,
    n_bins: int = 15,
    binning: Binning = "width",
    norm: Norm = "l1",
    n_redraws: int = 200,
    quantiles: Sequence[float] = (0.05, 0.5, 0.95),
    rng: np.random.Generator | int = 0,
) -> NoiseFloor:
    """Compute the calibration errors that these confidences would show under perfect calibration.

    If the model is perfectly calibrated, the correctness of a row with the confidence p̂ is distributed as
    ``Bernoulli(p̂)``. The correctness of all rows is redrawn from this distribution `n_redraws` times, and
    ECE, max-ECE, Avg-ECE and the ECE of every class are computed from each redraw. Chance alone is unlikely
    to explain an observed value above the 95% quantile of the floor.

    Large inputs are redrawn in groups. Among `m` rows of the same predicted class and nearly equal
    confidence, the number of correct predictions is drawn from ``Binomial(m, mean p̂)``. The number of correct
    predictions in a bin keeps its expectation, and its standard deviation increases by at most 0.031%. With
    200 redraws, inputs of more than about 20,000 rows are large; with many classes, the limit is higher. With
    bins of equal mass, every row is redrawn individually.

    For noisy labels, the agreement of the prediction with the observed label is redrawn from
    ``Bernoulli(π)``, where π is the probability of agreement under `transition`. The redrawn agreement is
    then corrected for the noise like the observed one. The floor is therefore higher than without noise.

    For soft labels, the difference of confidence and correctness usually varies less than for hard labels. It
    is redrawn as ``√v·(p̂ − Bernoulli(p̂))``, where v is the ratio of its variance for soft labels to its
    variance for hard labels. This ratio is estimated for every predicted class. For noisy and soft labels,
    every row is redrawn individually.

    Parameters
    ----------
    probs : (n, K) probabilities, or the (n,) confidences together with `predicted`
    predicted : (n,) predicted classes, for data that contain only the top label
    n_classes : number of classes K
        By default the number of columns or, with `predicted`, one more than the largest class in
        `predicted` and `labels`.
    labels : (n, K) soft labels or counts, optional
        Hard labels affect only the default of `n_classes`.
    transition : (K, K) matrix or noise rates of the labels, see :mod:`hetcal.metrics.scores`
    n_bins, binning, norm : as in :func:`~hetcal.metrics.ece`
        With ``binning="mass"``, ECE is computed from other redraws than the per-class metrics.
    n_redraws : number of redraws R
    quantiles : levels of the quantiles to compute
    rng : generator or seed

    Examples
    --------
    >>> import numpy as np
    >>> confidence, predicted = np.full(10_000, 0.8), np.arange(10_000) % 100
    >>> floor = noise_floor(confidence, predicted=predicted)
    >>> bool(floor.mean["ece"] < 0.01), bool(floor.mean["max_ece"] > 0.09)
    (True, True)
    """
    check_binning(n_bins, binning, norm)
    check_integer(n_redraws, "n_redraws", minimum=1)
    return floor_of(
        _check_confidences(probs, predicted, n_classes, labels, transition),
        n_bins=n_bins,
        binning=binning,
        norm=norm,
        n_redraws=n_redraws,
        quantiles=_check_quantiles(quantiles),
        rng=as_generator(rng),
    )


def floor_of(
    top: TopLabel,
    *,
    n_bins: int = 15,
    binning: Binning = "width",
    norm: Norm = "l1",
    n_redraws: int = 200,
    quantiles: Sequence[float] = (0.05, 0.5, 0.95),
    rng: np.random.Generator | int = 0,
) -> NoiseFloor:
    """:func:`noise_floor` for a :class:`TopLabel` and validated options; `top.correct` is not used."""
    generator, bins = np.random.default_rng(rng), FineBins(n_bins)
    in_groups = binning == "width" and top.agreement is None
    if in_groups and uses_fine_cells(len(top.confidence), top.n_classes, bins, n_redraws):
        return floor_of_fine_cells(
            fine_cells(top, bins), norm=norm, n_redraws=n_redraws, quantiles=quantiles, rng=generator
        )
    by_class, pooled = _sort(top, n_bins, binning, by_class=True), None
    if binning != "width":  # the bins of classes differ from those of all rows, so ECE needs its own redraws
        pooled = _sort(top, n_bins, binning, by_class=False)
    ece: list[Float] = []
    class_ece: list[Float] = []
    for r in _chunk_redraws(n_redraws, max(len(top.confidence), by_class.count.size)):
        residual = _redraw(by_class, r, generator)
        class_ece.append(calibration_error(by_class.count, residual, norm))
        if pooled is None:
            ece.append(calibration_error(by_class.count.sum(axis=0), residual.sum(axis=1), norm))
        else:
            ece.append(calibration_error(pooled.count, _redraw(pooled, r, generator), norm)[:, 0])
    return _summarise(quantiles, np.concatenate(ece), np.concatenate(class_ece))


def uses_fine_cells(n_rows: int, n_classes: int, bins: FineBins, n_redraws: int) -> bool:
    """Whether an input with bins of equal width is so large that rows are redrawn in groups."""
    large = n_rows * n_redraws > _MIN_FINE_DRAWS
    return large and n_rows >= _MIN_ROWS_PER_CELL * n_classes * bins.size


def floor_of_fine_cells(
    cells: FineCells,
    *,
    norm: Norm = "l1",
    n_redraws: int = 200,
    quantiles: Sequence[float] = (0.05, 0.5, 0.95),
    rng: np.random.Generator | int = 0,
) -> NoiseFloor:
    """:func:`noise_floor` from the number of rows and the sum of confidences per class and fine bin."""
    key = int(np.random.default_rng(rng).integers(1 << 62))
    count = cells.bins.merged(cells.count)

    def redraw_classes(start: int, stop: int) -> tuple[Float, Float]:
        # Every range of classes has its own generator, so the number of threads does not affect the result.
        residual = _redraw_fine_cells(cells, start, stop, n_redraws, np.random.default_rng([key, start]))
        return calibration_error(count[start:stop], residual, norm), residual.sum(axis=1)

    step = max(1, _BLOCK_BINOMIALS // (cells.bins.size * n_redraws))
    parts = in_order(redraw_classes, list(chunk_ranges(len(count), step)))
    pooled = sum((residual for _, residual in parts), np.zeros((n_redraws, count.shape[1])))
    ece = calibration_error(count.sum(axis=0), pooled, norm)
    return _summarise(quantiles, ece, np.concatenate([errors for errors, _ in parts], axis=1))


def _check_confidences(
    probs: ArrayLike,
    predicted: ArrayLike | None,
    n_classes: int | None,
    labels: ArrayLike | None,
    transition: ArrayLike | None,
) -> TopLabel:
    """Validate the input of :func:`noise_floor` and reduce it to the top label.

    If `labels` is None, `correct` of the result is meaningless. The noise floor does not use it.
    """
    if n_classes is not None:
        check_integer(n_classes, "n_classes", minimum=1)
    if predicted is None:
        p = check_probs(probs, shape_remedy=GIVE_PREDICTED)
        options: dict[str, Any] = {"n_rows": len(p), "n_classes": p.shape[1], "table": probs}
        any_labels = np.zeros(len(p), np.int64)
        y, t = check_observed_labels(any_labels if labels is None else labels, transition, **options)
        top = top_label_of(p, y, t)
        if n_classes not in (None, p.shape[1]):
            raise ValueError(
                f"n_classes must be the number of columns, {p.shape[1]}, got {n_classes!r}; omit n_classes"
            )
    else:
        refuse_transition(
            transition, "if predicted is passed, got both; pass the probabilities of all classes"
        )
        top = reduce_to_top_label(probs, predicted if labels is None else labels, predicted)
        if n_classes is not None and n_classes < top.n_classes:
            largest = top.n_classes - 1
            raise ValueError(
                f"n_classes must exceed {largest}, the largest class number, got {n_classes!r}; "
                "omit n_classes"
            )
    return replace(top, n_classes=n_classes or top.n_classes)


def _check_quantiles(quantiles: Sequence[float]) -> tuple[float, ...]:
    try:
        levels = tuple(float(q) for q in quantiles)
    except (TypeError, ValueError):
        raise TypeError(
            f"quantiles must be a list of numbers, got {quantiles!r}; pass a list such as [0.5, 0.95]"
        ) from None
    if not all(0 <= q <= 1 for q in levels):
        raise ValueError(f"quantiles must lie in [0, 1], got {levels}; pass 0.95 for the 95% quantile")
    return levels


def _summarise(quantiles: Sequence[float], ece: Float, class_ece: Float) -> NoiseFloor:
    """Compute the noise floor from redraws of ECE (R,) and of the ECE of every class (R, K)."""
    levels = tuple(quantiles)
    over_classes = np.nanmax(class_ece, axis=1), np.nanmean(class_ece, axis=1)
    samples = dict(zip(_METRICS, (ece, *over_classes, class_ece), strict=True))
    return NoiseFloor(
        levels,
        {name: _plain(a.mean(axis=0)) for name, a in samples.items()},
        {name: _plain(a.std(axis=0)) for name, a in samples.items()},
        {name: _quantiles(a, levels) for name, a in samples.items()},
        samples,
    )


def _quantiles(samples: Float, levels: tuple[float, ...]) -> Float:
    """Quantiles over the redraws, (L, ...).

    Without levels, the result is empty. This saves time if hundreds of floors are computed and only their
    means are used.
    """
    return np.quantile(samples, levels, axis=0) if levels else np.empty((0, *samples.shape[1:]))


@dataclass(frozen=True, eq=False)
class _SortedRows:
    """Rows sorted by cell, so that the sum over a cell is a sum over adjacent rows.

    A cell is one of the M bins of one slice. The slices are the S predicted classes, or all rows together
    (S = 1). The residual of a row is redrawn as ``spread · (chance − Bernoulli(chance))``.

    Attributes
    ----------
    chance, cell : (n,) arrays
        Success probability of every row's Bernoulli variable, and number of the row's cell. The rows are in
        ascending order of the cells.
    spread : (n,) array in the same order, or None if it is 1 for all rows
    count, expected : (S, M) arrays
        Number of rows and sum of ``spread · chance`` in every cell.
    """

    chance: NDArray[np.float32]
    spread: NDArray[np.float32] | None
    cell: IntArray
    count: Float
    expected: Float


def _sort(top: TopLabel, n_bins: int, binning: Binning, *, by_class: bool) -> _SortedRows:
    slices, n_slices = (top.predicted, top.n_classes) if by_class else (None, 1)
    cell = cell_index(top.confidence, n_bins=n_bins, binning=binning, slices=slices)
    order = np.argsort(cell, kind="stable")
    size, shape = n_slices * n_bins, (n_slices, n_bins)
    count = np.bincount(cell, minlength=size).astype(np.float64).reshape(shape)
    if top.agreement is None:
        chance, spread, mean = top.confidence, None, top.confidence
    else:
        chance, spread = top.agreement.expected, top.agreement.spread[order].astype(np.float32)
        mean = chance * top.agreement.spread
    expected = group_sum(cell, mean, size).reshape(shape)
    return _SortedRows(chance[order].astype(np.float32), spread, cell[order], count, expected)


def _redraw(rows: _SortedRows, n_redraws: int, rng: np.random.Generator) -> Float:
    """Sum of ``confidence - correct`` per cell for `n_redraws` redraws of correctness, (R, S, M)."""
    correct = np.zeros((n_redraws, rows.count.size))
    step = max(1, _BLOCK_DRAWS // n_redraws)
    for start in range(0, len(rows.cell), step):
        part = slice(start, start + step)
        block, cell = rows.chance[part], rows.cell[part]
        first = np.flatnonzero(np.r_[True, cell[1:] != cell[:-1]])
        is_correct = rng.random((n_redraws, len(block)), dtype=np.float32) < block
        hits = is_correct if rows.spread is None else is_correct * rows.spread[part]
        correct[:, cell[first]] += np.add.reduceat(hits, first, axis=1, dtype=np.float64)
    return rows.expected - correct.reshape(n_redraws, *rows.count.shape)


def _redraw_fine_cells(
    cells: FineCells, start: int, stop: int, n_redraws: int, rng: np.random.Generator
) -> Float:
    """Sum of ``confidence - correct`` per redraw, class and bin, for the classes start..stop-1.

    The shape of the result is (R, stop - start, M).
    """
    count, total = cells.count[start:stop], cells.confidence[start:stop]
    used = count > 0
    n, mean = count[used].astype(np.int64), np.minimum(total[used] / count[used], 1)
    correct = np.zeros((*count.shape, n_redraws))
    # The redraws of a fine cell are adjacent, so that NumPy sets up each binomial distribution only once.
    correct[used] = rng.binomial(n[:, None], mean[:, None], size=(len(n), n_redraws))
    per_cell = np.add.reduceat(correct, cells.bins.first, axis=1)
    return np.moveaxis(cells.bins.merged(total)[:, :, None] - per_cell, -1, 0)


def _chunk_redraws(n_redraws: int, width: int) -> Iterator[int]:
    """Split the redraws into chunks, and yield the number of redraws in each chunk.

    A chunk needs at most `_BLOCK_DRAWS` random numbers, unless it consists of a single redraw.
    """
    step = max(1, _BLOCK_DRAWS // width)
    yield from (stop - start for start, stop in chunk_ranges(n_redraws, step))


def _plain(value: Float) -> float | Float:
    return value if np.ndim(value) else float(value)
