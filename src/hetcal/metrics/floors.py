"""What chance alone makes of a calibration error: its distribution under perfect calibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcal._numeric.probabilities import top_label
from hetcal._numeric.threads import in_order
from hetcal._typing import IntArray
from hetcal._validate import GIVE_PREDICTED, as_generator, check_probs
from hetcal.metrics.reliability import (
    Binning,
    Norm,
    TopLabel,
    bin_index,
    calibration_error,
    check_positive,
    group_sum,
    reduce_to_top_label,
)
from hetcal.metrics.subcells import SubBins, SubCells, parts, sub_cells

__all__ = ["NoiseFloor", "by_sub_cells", "floor_of", "floor_of_sub_cells", "noise_floor"]

_METRICS = ("ece", "max_ece", "avg_ece", "class_ece")
_BLOCK = 1 << 20  # random numbers drawn together: 4 MiB of float32
_MANY = 1 << 22  # rows times redraws above which sub-cells are redrawn, where they are few
_FEW = 8  # rows for each sub-cell there can be: a binomial takes as long as some rows
_DRAWS = 1 << 18  # binomials drawn together


@dataclass(frozen=True, eq=False)
class NoiseFloor:
    """The values each metric takes for a perfectly calibrated model with the given confidences.

    Metrics are ``ece``, ``max_ece``, ``avg_ece`` and, with a value per class, ``class_ece``.

    Attributes
    ----------
    levels : tuple of float
        Of the quantiles.
    mean, std : mapping of metric to float, or to (K,) array
    quantiles : mapping of metric to array with one entry, or one row of K, per level
    samples : mapping of metric to (R,) or (R, K) array
        The R redraws themselves.
    """

    levels: tuple[float, ...]
    mean: Mapping[str, float | NDArray[np.float64]]
    std: Mapping[str, float | NDArray[np.float64]]
    quantiles: Mapping[str, NDArray[np.float64]]
    samples: Mapping[str, NDArray[np.float64]] = field(repr=False)

    def quantile(self, metric: str, level: float) -> float | NDArray[np.float64]:
        """Quantile of a metric's redraws at any level; nan for classes that are never predicted."""
        return _plain(np.quantile(self.samples[metric], level, axis=0))

    def p_value(self, metric: str, observed: ArrayLike) -> float | NDArray[np.float64]:
        """Share of redraws, the observation counted among them, that reach `observed`; one-sided."""
        draws, value = self.samples[metric], np.asarray(observed, dtype=np.float64)
        p = (1 + (draws >= value).sum(axis=0)) / (1 + len(draws))
        return _plain(np.where(np.isnan(value) | np.isnan(draws[0]), np.nan, p))


def noise_floor(
    probs: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    n_classes: int | None = None,
    n_bins: int = 15,
    binning: Binning = "width",
    norm: Norm = "l1",
    n_redraws: int = 200,
    quantiles: Sequence[float] = (0.05, 0.5, 0.95),
    rng: np.random.Generator | int = 0,
) -> NoiseFloor:
    """Calibration errors that these confidences would show if every one of them were right.

    Redraws ``correct_i ~ Bernoulli(p̂_i)`` independently `n_redraws` times and recomputes ECE, max-ECE,
    Avg-ECE and ECE_k. An observed value above the floor's 95% quantile is more than chance explains.

    Many rows (some 20,000 at 200 redraws, and more where there are many classes) are redrawn together: the
    right ones among `m` rows of a class and a narrow range of confidences are ``Binomial(m, mean p̂)``. That
    leaves the mean as it is and adds at most 0.03 % to the standard deviation in a bin. Bins of like mass are
    always redrawn row by row.

    Parameters
    ----------
    probs : (n, K) probabilities, or the (n,) confidence together with `predicted`
    predicted : (n,) predicted classes, for top-1 dumps
    n_classes : K, where `predicted` does not reach the last class
    n_bins, binning, norm : as in :func:`~hetcal.metrics.ece`
        With ``binning="mass"`` the redraws of ECE and those of the class-wise metrics are independent.
    n_redraws : number of redraws R
    quantiles : levels of the quantiles to keep
    rng : generator or seed

    Examples
    --------
    >>> import numpy as np
    >>> confidence, predicted = np.full(10_000, 0.8), np.arange(10_000) % 100
    >>> floor = noise_floor(confidence, predicted=predicted)
    >>> bool(floor.mean["ece"] < 0.01), bool(floor.mean["max_ece"] > 0.09)
    (True, True)
    """
    if n_classes is not None:
        check_positive(n_classes, "n_classes")
    if predicted is None:
        p = check_probs(probs, shape_remedy=GIVE_PREDICTED)
        confidence, guess = top_label(p)
        top = TopLabel(confidence, guess, np.ones(len(p), dtype=bool), p.shape[1])
        right_size = n_classes in (None, p.shape[1])
    else:
        top = reduce_to_top_label(probs, predicted, predicted)
        right_size = n_classes is None or n_classes >= top.n_classes
    if not right_size:
        raise ValueError(f"n_classes must fit the {top.n_classes} classes of the input, got {n_classes!r}")
    return floor_of(
        replace(top, n_classes=n_classes or top.n_classes),
        n_bins=n_bins,
        binning=binning,
        norm=norm,
        n_redraws=n_redraws,
        quantiles=quantiles,
        rng=rng,
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
    """:func:`noise_floor` of a reduced prediction, whose correctness is not looked at."""
    levels, generator = _check(quantiles, n_redraws), as_generator(rng)
    check_positive(n_bins, "n_bins")
    bins = SubBins(n_bins)
    if binning == "width" and by_sub_cells(len(top.confidence), top.n_classes, bins, n_redraws):
        return floor_of_sub_cells(
            sub_cells(top, bins), norm=norm, n_redraws=n_redraws, quantiles=levels, rng=generator
        )
    by_class, pooled = _sort(top, n_bins, binning, by_class=True), None
    if binning != "width":  # bins of equal width are shared by the classes: their sum is the pool
        pooled = _sort(top, n_bins, binning, by_class=False)
    ece: list[NDArray[np.float64]] = []
    class_ece: list[NDArray[np.float64]] = []
    for r in _chunks(n_redraws, max(len(top.confidence), by_class.count.size)):
        residual = _redraw(by_class, r, generator)
        class_ece.append(calibration_error(by_class.count, residual, norm))
        if pooled is None:
            ece.append(calibration_error(by_class.count.sum(axis=0), residual.sum(axis=1), norm))
        else:
            ece.append(calibration_error(pooled.count, _redraw(pooled, r, generator), norm)[:, 0])
    return _floor(levels, np.concatenate(ece), np.concatenate(class_ece))


def by_sub_cells(n_rows: int, n_classes: int, bins: SubBins, n_redraws: int) -> bool:
    """Whether the floor of so many rows is redrawn by sub-cells; sizes alone decide."""
    return n_rows * n_redraws > _MANY and n_rows >= _FEW * n_classes * bins.size


def floor_of_sub_cells(
    cells: SubCells,
    *,
    norm: Norm = "l1",
    n_redraws: int = 200,
    quantiles: Sequence[float] = (0.05, 0.5, 0.95),
    rng: np.random.Generator | int = 0,
) -> NoiseFloor:
    """:func:`noise_floor` of rows that were counted by class and sub-bin."""
    levels, key = _check(quantiles, n_redraws), int(as_generator(rng).integers(1 << 62))
    count = cells.bins.merged(cells.count)

    def some(start: int, stop: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        # Classes have generators of their own, so that threads change nothing.
        residual = _redraw_sub_cells(cells, start, stop, n_redraws, np.random.default_rng([key, start]))
        return calibration_error(count[start:stop], residual, norm), residual.sum(axis=1)

    step = max(1, _DRAWS // (cells.bins.size * n_redraws))
    found = in_order(some, list(parts(len(count), step)))
    whole = sum((residual for _, residual in found), np.zeros((n_redraws, count.shape[1])))
    ece = calibration_error(count.sum(axis=0), whole, norm)
    return _floor(levels, ece, np.concatenate([errors for errors, _ in found], axis=1))


def _check(quantiles: Sequence[float], n_redraws: int) -> tuple[float, ...]:
    try:
        levels = tuple(float(q) for q in quantiles)
    except (TypeError, ValueError):
        raise TypeError(f"quantiles must be a list of numbers, got {quantiles!r}") from None
    if not all(0 <= q <= 1 for q in levels):
        raise ValueError(f"quantiles must lie in [0, 1], got {levels}")
    check_positive(n_redraws, "n_redraws")
    return levels


def _floor(levels: tuple[float, ...], ece: NDArray[np.float64], class_ece: NDArray[np.float64]) -> NoiseFloor:
    """Sum up redraws of ECE (R,) and ECE_k (R, K)."""
    extremes = np.nanmax(class_ece, axis=1), np.nanmean(class_ece, axis=1)
    samples = dict(zip(_METRICS, (ece, *extremes, class_ece), strict=True))
    return NoiseFloor(
        levels,
        {name: _plain(a.mean(axis=0)) for name, a in samples.items()},
        {name: _plain(a.std(axis=0)) for name, a in samples.items()},
        {name: np.quantile(a, levels, axis=0) for name, a in samples.items()},
        samples,
    )


@dataclass(frozen=True, eq=False)
class _SortedCells:
    """Rows in the order of their cells, so that the sum over a cell is a sum over neighbours."""

    confidence: NDArray[np.float32]  # (n,)
    cell: IntArray  # (n,) ascending
    count: NDArray[np.float64]  # (S, M)
    expected: NDArray[np.float64]  # (S, M): sum of confidences


def _sort(top: TopLabel, n_bins: int, binning: Binning, *, by_class: bool) -> _SortedCells:
    slices, n_slices = (top.predicted, top.n_classes) if by_class else (None, 1)
    cell = bin_index(top.confidence, n_bins=n_bins, binning=binning, slices=slices)
    if slices is not None:
        cell = slices * n_bins + cell
    order = np.argsort(cell, kind="stable")
    size, shape = n_slices * n_bins, (n_slices, n_bins)
    count = np.bincount(cell, minlength=size).astype(np.float64).reshape(shape)
    expected = group_sum(cell, top.confidence, size).reshape(shape)
    return _SortedCells(top.confidence[order].astype(np.float32), cell[order], count, expected)


def _redraw(rows: _SortedCells, n_redraws: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Sum of ``confidence - correct`` per cell for `n_redraws` redraws of correctness, (R, S, M)."""
    correct = np.zeros((n_redraws, rows.count.size))
    step = max(1, _BLOCK // n_redraws)
    for start in range(0, len(rows.cell), step):
        block, cell = rows.confidence[start : start + step], rows.cell[start : start + step]
        first = np.flatnonzero(np.r_[True, cell[1:] != cell[:-1]])
        hit = rng.random((n_redraws, len(block)), dtype=np.float32) < block
        correct[:, cell[first]] += np.add.reduceat(hit, first, axis=1, dtype=np.float64)
    return rows.expected - correct.reshape(n_redraws, *rows.count.shape)


def _redraw_sub_cells(
    cells: SubCells, start: int, stop: int, n_redraws: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Sum of ``confidence - correct`` per cell of some classes, (R, stop - start, M)."""
    count, total = cells.count[start:stop], cells.confidence[start:stop]
    used = count > 0
    n, mean = count[used].astype(np.int64), np.minimum(total[used] / count[used], 1)
    correct = np.zeros((*count.shape, n_redraws))
    # The redraws of a sub-cell are neighbours: a binomial is set up once for all of them.
    correct[used] = rng.binomial(n[:, None], mean[:, None], size=(len(n), n_redraws))
    per_cell = np.add.reduceat(correct, cells.bins.first, axis=1)
    return np.moveaxis(cells.bins.merged(total)[:, :, None] - per_cell, -1, 0)


def _chunks(n_redraws: int, width: int) -> Iterator[int]:
    """Split the redraws so that each part needs about `_BLOCK` numbers."""
    step = max(1, _BLOCK // width)
    yield from (min(step, n_redraws - done) for done in range(0, n_redraws, step))


def _plain(value: NDArray[np.float64]) -> float | NDArray[np.float64]:
    return value if np.ndim(value) else float(value)
