"""How far a metric may be off because the rows are a sample: bootstrap and closed-form intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from hetcal._core.arrays import IntArray, as_generator, choose
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

__all__ = [
    "IntervalMethod",
    "Intervals",
    "bootstrap",
    "check_level",
    "gap_bounds",
    "gap_intervals",
    "normal_quantile",
]

IntervalMethod = Literal["centred", "basic", "percentile"]

_BLOCK = 1 << 20  # row numbers of the resamples that are summed together
_FAR_OUT = 40.0  # standard deviations beyond which a float64 knows no probability
_DRAWN = 1 << 16  # row numbers drawn together: they stay in the caches


@dataclass(frozen=True, eq=False)
class Intervals:
    """Estimates with confidence intervals.

    Attributes
    ----------
    level : float
        Confidence level, such as 0.95.
    estimate, low, high : mapping of metric to float, or to (K,) array for the per-class metrics
    """

    level: float
    estimate: Mapping[str, float | NDArray[np.float64]]
    low: Mapping[str, float | NDArray[np.float64]]
    high: Mapping[str, float | NDArray[np.float64]]


def bootstrap(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    metrics: Sequence[str] = ("ece", "max_ece", "avg_ece"),
    n_bins: int = 15,
    binning: Binning = "width",
    norm: Norm = "l1",
    n_resamples: int = 500,
    level: float = 0.95,
    method: IntervalMethod = "centred",
    rng: np.random.Generator | int = 0,
) -> Intervals:
    """Intervals for the metrics by resampling rows with replacement.

    Sampling adds to an ECE, and resampling adds about as much again, so that quantiles of resamples lie above
    the estimate θ. With their mean μ and quantiles ``q_low``, ``q_high``, `method` says what is wanted:

    - ``"centred"``, ``[θ + q_low − μ, θ + q_high − μ]``: where the metric would lie on average over test sets
      of this size. Compare it with :func:`~hetcal.metrics.noise_floor`, which is for this size, too.
    - ``"basic"``, ``[2θ − q_high, 2θ − q_low]``: takes off what sampling added, for the value that a very
      large test set would show. Good where that is well above the floor; rough below, and without θ inside.
    - ``"percentile"``, ``[q_low, q_high]``: the plain quantiles.

    Ends of what cannot be negative stop at 0. Bins stay those of the whole sample; a resample without rows of
    a class does not count for that class.

    Parameters
    ----------
    probs : (n, K) probabilities, or the (n,) confidence together with `predicted`
    labels : (n,) true classes
    predicted : (n,) predicted classes, for top-1 dumps
    metrics : any of ``ece, max_ece, avg_ece, class_ece, signed_gap``; the last two have a value per class
    n_bins, binning, norm : as in :func:`~hetcal.metrics.ece`
    n_resamples : number of resamples R
    level : confidence level
    method : ``"centred"``, ``"basic"`` or ``"percentile"``
    rng : generator or seed

    Examples
    --------
    >>> import numpy as np
    >>> labels = np.arange(5000) % 10 < 7  # right in 7 of 10 rows, at a confidence of 0.9
    >>> result = bootstrap(np.full(5000, 0.9), labels, predicted=np.ones(5000, int), metrics=["ece"])
    >>> bool(0.18 < result.low["ece"] < 0.2 < result.high["ece"] < 0.22)
    True
    """
    if isinstance(metrics, str) or not isinstance(metrics, Iterable):
        raise TypeError(f"metrics must be a list of names, got {metrics!r}")
    functions = {name: choose(_METRICS, name, "metrics") for name in metrics}
    check_positive(n_resamples, "n_resamples")
    check_level(level)
    ends, generator = choose(_ENDS, method, "method"), as_generator(rng)
    top = reduce_to_top_label(probs, labels, predicted)
    rows, n = _rows(top, n_bins, binning, norm), len(top.confidence)
    observed = rows.sums([np.arange(n)], 1)
    estimate = {name: f(observed)[0] for name, f in functions.items()}
    draws: dict[str, list[NDArray[np.float64]]] = {name: [] for name in functions}
    for r in _together(n, n_resamples):
        resampled = rows.sums(_drawn(n, r, generator), r)
        for name, f in functions.items():
            draws[name].append(f(resampled))
    low, high = {}, {}
    for name, theta in estimate.items():
        summary = _summary(np.concatenate(draws[name]), level)
        bound = -1.0 if name == "signed_gap" else 0.0
        low[name], high[name] = (_plain(np.clip(end, bound, 1.0)) for end in ends(theta, *summary))
    return Intervals(level, {name: _plain(theta) for name, theta in estimate.items()}, low, high)


def gap_intervals(
    probs: ArrayLike, labels: ArrayLike, *, predicted: ArrayLike | None = None, level: float = 0.95
) -> Intervals:
    """Intervals of the signed gap of every class in closed form, under the metric name ``"signed_gap"``.

    ``mean confidence − Wilson interval of the accuracy``, with the rows counted as ``n/φ``. ``φ ≤ 1`` is the
    part of the binomial variance that is left when rows differ in their chance of being right: the larger of
    what the confidences imply, ``mean p̂(1−p̂) / (c(1−c))`` with ``c`` their mean, and what the residuals
    ``p̂ − correct`` show. nan for a class that is never predicted.

    Examples
    --------
    >>> result = gap_intervals([0.9] * 50, [1] * 35 + [0] * 15, predicted=[1] * 50)
    >>> [round(float(a["signed_gap"][1]), 3) for a in (result.low, result.estimate, result.high)]
    [0.091, 0.2, 0.338]
    """
    check_level(level)
    estimate, low, high = gap_bounds(reduce_to_top_label(probs, labels, predicted), level)
    return Intervals(level, {"signed_gap": estimate}, {"signed_gap": low}, {"signed_gap": high})


def gap_bounds(
    top: TopLabel, level: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Signed gap of every class and the ends of :func:`gap_intervals`, (K,) each."""
    n = np.bincount(top.predicted, minlength=top.n_classes).astype(np.float64)
    safe = np.where(n > 0, n, np.nan)

    def mean(values: NDArray[Any]) -> NDArray[np.float64]:
        return group_sum(top.predicted, values, top.n_classes) / safe

    p, z2 = top.confidence.astype(np.float64), normal_quantile((1 + level) / 2) ** 2
    c, a, residual = mean(p), mean(top.correct), p - top.correct
    prior = (n * a + z2 / 2) / (n + z2)  # an accuracy that is never 0 or 1
    spread = np.maximum(mean(residual**2) - mean(residual) ** 2, 0) * n / np.maximum(n - 1, 1)
    implied = np.divide(mean(p * (1 - p)), c * (1 - c), out=np.ones_like(c), where=c * (1 - c) > 0)
    room = prior * (1 - prior)  # none where the level is all but 0 and all rows are right, or all wrong
    shown = np.divide(spread, room, out=np.zeros_like(room), where=room > 0)
    phi = np.clip(np.maximum(implied, shown), 1e-9, 1)
    t = z2 * phi / safe
    middle, half = (a + t / 2) / (1 + t), np.sqrt(t * a * (1 - a) + t**2 / 4) / (1 + t)
    return c - a, c - (middle + half), c - (middle - half)


def normal_quantile(level: float) -> float:
    """Quantile of the normal distribution; finite for levels that round to 1, too."""
    return min(float(special.ndtri(level)), _FAR_OUT)


def check_level(level: float, name: str = "level") -> None:
    """Refuse a confidence level, or another share, outside (0, 1)."""
    number = isinstance(level, int | float | np.integer | np.floating)
    if not number or not 0 < level < 1:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {level!r}")


@dataclass(frozen=True, eq=False)
class _Sums:
    """Weight and weighted residual per cell: (R, K, M) by class and (R, 1, M) for all rows together."""

    by_class: tuple[NDArray[np.float64], NDArray[np.float64]]
    pooled: tuple[NDArray[np.float64], NDArray[np.float64]]
    norm: Norm


@dataclass(frozen=True, eq=False)
class _Rows:
    """Residual and cell of every row, side by side in memory, since rows are picked at random.

    Cells are those of a class and, where bins are not shared by the classes, of all rows together.
    """

    columns: NDArray[np.float64]
    n_classes: int
    n_bins: int
    norm: Norm

    def sums(self, drawn: Iterable[IntArray], n_resamples: int) -> _Sums:
        """Sums over drawn row numbers, of which every R-th belongs to the same resample."""
        sizes = (self.n_classes, 1)[: self.columns.shape[1] - 1]
        tables = [np.zeros((2, n * self.n_bins * n_resamples)) for n in sizes]
        which = np.empty(0, dtype=np.int64)
        for numbers in drawn:
            residual, *cells = self.columns.take(numbers, axis=0).T
            if len(which) < len(numbers):
                which = np.arange(len(numbers)) % n_resamples
            for cell, (count, total) in zip(cells, tables, strict=True):
                at = cell.astype(np.int64) * n_resamples + which[: len(numbers)]
                np.add.at(count, at, 1.0)
                np.add.at(total, at, residual)
        found = [np.moveaxis(t.reshape(2, -1, self.n_bins, n_resamples), -1, 1) for t in tables]
        whole = found[-1] if len(found) > 1 else found[0].sum(axis=2, keepdims=True)
        return _Sums((found[0][0], found[0][1]), (whole[0], whole[1]), self.norm)


def _rows(top: TopLabel, n_bins: int, binning: Binning, norm: Norm) -> _Rows:
    within = bin_index(top.confidence, n_bins=n_bins, binning=binning, slices=top.predicted)
    columns = [top.confidence.astype(np.float64) - top.correct, top.predicted * n_bins + within]
    if binning != "width":
        columns.append(bin_index(top.confidence, n_bins=n_bins, binning=binning))
    return _Rows(np.stack(columns, axis=1), top.n_classes, n_bins, norm)


def _together(n: int, n_resamples: int) -> Iterator[int]:
    """Split the resamples so that each part draws about `_BLOCK` row numbers."""
    step = max(1, _BLOCK // n)
    return (min(step, n_resamples - done) for done in range(0, n_resamples, step))


def _drawn(n: int, n_resamples: int, rng: np.random.Generator) -> Iterator[IntArray]:
    """Row numbers of the resamples, some rows of all of them at a time."""
    step = max(1, _DRAWN // n_resamples)
    return (rng.integers(0, n, size=min(step, n - start) * n_resamples) for start in range(0, n, step))


def _ece(sums: _Sums) -> NDArray[np.float64]:
    return calibration_error(*sums.pooled, sums.norm)[:, 0]


def _class_ece(sums: _Sums) -> NDArray[np.float64]:
    return calibration_error(*sums.by_class, sums.norm)


def _max_ece(sums: _Sums) -> NDArray[np.float64]:
    return np.asarray(np.nanmax(_class_ece(sums), axis=1))


def _avg_ece(sums: _Sums) -> NDArray[np.float64]:
    return np.asarray(np.nanmean(_class_ece(sums), axis=1))


def _signed_gap(sums: _Sums) -> NDArray[np.float64]:
    count, residual = (a.sum(axis=2) for a in sums.by_class)
    return np.asarray(residual / np.where(count > 0, count, np.nan))


def _summary(draws: NDArray[np.float64], level: float) -> list[NDArray[np.float64]]:
    """Mean, lower and upper quantile over the first axis that leave out nan; nan where nothing is left."""
    empty = np.isnan(draws).all(axis=0)
    draws = np.where(empty, 0.0, draws)
    low, high = np.nanquantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return [np.where(empty, np.nan, a) for a in (np.nanmean(draws, axis=0), low, high)]


def _plain(value: Any) -> float | NDArray[np.float64]:
    return np.asarray(value) if np.ndim(value) else float(value)


_METRICS: dict[str, Callable[[_Sums], NDArray[np.float64]]] = {
    "ece": _ece,
    "max_ece": _max_ece,
    "avg_ece": _avg_ece,
    "class_ece": _class_ece,
    "signed_gap": _signed_gap,
}
_ENDS: dict[str, Callable[..., tuple[Any, Any]]] = {
    "centred": lambda theta, mean, low, high: (theta + low - mean, theta + high - mean),
    "basic": lambda theta, mean, low, high: (2 * theta - high, 2 * theta - low),  # noqa: ARG005
    "percentile": lambda theta, mean, low, high: (low, high),  # noqa: ARG005
}
