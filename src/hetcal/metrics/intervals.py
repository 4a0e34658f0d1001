"""Confidence intervals that account for the sampling error of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from hetcal._typing import Float, IntArray
from hetcal._validate import as_generator, check_integer, check_number, choose
from hetcal.metrics.agreement import LabelKind
from hetcal.metrics.binning import (
    Binning,
    Norm,
    TopLabel,
    bin_index,
    calibration_error,
    cell_index,
    check_binning,
    chunk_ranges,
    group_sum,
    reduce_to_top_label,
)
from hetcal.metrics.floors import floor_of

__all__ = [
    "IntervalMethod",
    "Intervals",
    "bootstrap",
    "gap_bounds",
    "gap_intervals",
    "normal_quantile",
]

IntervalMethod = Literal["centred", "population", "basic", "percentile"]

_CHUNK_ROWS = 1 << 20  # row numbers per chunk of resamples
_DRAWN_ROWS = 1 << 16  # row numbers drawn at a time: they fit into the caches
_MAX_Z = 40.0  # upper bound of normal quantiles, which are infinite for a level that rounds to 1
_MIN_TAIL = 1e-17  # lower bound of tail probabilities, which are 0 for a level that rounds to 1
_MAX_T = 1e100  # upper bound of Student t quantiles, which can be infinite
_BISECTIONS = 40  # bisection steps in the search for a mid-P limit


@dataclass(frozen=True, eq=False)
class Intervals:
    """Estimates with confidence intervals.

    Attributes
    ----------
    level : float
        Confidence level, such as 0.95.
    estimate, low, high : mapping of metric to float, or to (K,) array for the per-class metrics
        Estimate, and lower and upper limit of its interval.
    """

    level: float
    estimate: Mapping[str, float | Float]
    low: Mapping[str, float | Float]
    high: Mapping[str, float | Float]


def bootstrap(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    transition: ArrayLike | None = None,
    metrics: Sequence[str] = ("ece", "max_ece", "avg_ece"),
    n_bins: int = 15,
    binning: Binning = "width",
    norm: Norm = "l1",
    n_resamples: int = 500,
    level: float = 0.95,
    method: IntervalMethod = "centred",
    rng: np.random.Generator | int = 0,
) -> Intervals:
    """Compute bootstrap confidence intervals of metrics, by resampling rows with replacement.

    Sampling noise biases ECE upwards: its mean over test sets of n rows is larger than its value on a very
    large test set. Resampling adds about the same bias again. An interval can be meant for either of two
    quantities: the mean over test sets of n rows, or the value on a very large test set. Let θ be the
    estimate, μ the mean of the resampled values, and ``q_low`` and ``q_high`` their quantiles. The methods
    are

    - ``"centred"``, ``[θ + q_low − μ, θ + q_high − μ]``: for the mean over test sets of this size. Compare it
      with :func:`~hetcal.metrics.noise_floor`, which refers to the same size.
    - ``"population"``, ``[θ − d, θ + max(q_high − μ, 0)]``: for the value on a very large test set. By the
      triangle inequality, sampling noise adds at most the distance between the observed and the true gaps of
      the bins. ``d`` is an upper limit of this distance: the upper quantile of the distance between the
      resampled and the observed gaps, or that of the noise floor if it is larger. The interval is
      conservative: it is wide, but its coverage is at least about `level`. For ``signed_gap``, ``d`` is the
      upper quantile of the differences between the resampled gaps and the estimated gap, but at least 0.
    - ``"basic"``, ``[2θ − q_high, 2θ − q_low]``, and ``"percentile"``, ``[q_low, q_high]``: the textbook
      intervals, for comparison. They are not reliable for either quantity.

    The table shows the lowest coverage of 95% intervals over 36 cases: ECE, max-ECE and Avg-ECE in each of 12
    simulations with 4 or 50 classes and 500 or 2,000 rows, calibrated or not
    (``benchmarks/interval_coverage.py``).

    ============== ======================= ================================
    method         very large test set     mean over test sets of this size
    ============== ======================= ================================
    ``centred``    0%                      91%
    ``population`` 96%                     94%
    ``basic``      0% (ECE alone: 62%)     0% (ECE alone: 66%)
    ``percentile`` 0%                      0% (ECE alone: 90%)
    ============== ======================= ================================

    Limits are clipped to [0, 1], or to [−1, 1] for ``signed_gap``. All resamples use the bins of the whole
    sample. For each class, resamples that contain no row predicted as the class are ignored.

    Parameters
    ----------
    probs : (n, K) probabilities, or the (n,) confidences together with `predicted`
    labels : (n,) classes as integers or class names, or (n, K) soft labels or counts
    predicted : (n,) predicted classes, for data that contain only the top label
    class_names : K strings; by default the column names of a data frame
    transition : (K, K) matrix or noise rates of the labels, see :mod:`hetcal.metrics.scores`
    metrics : any of ``ece, max_ece, avg_ece, class_ece, signed_gap``; the last two have one value per class
    n_bins, binning, norm : as in :func:`~hetcal.metrics.ece`
    n_resamples : number of resamples R
    level : confidence level
    method : ``"centred"``, ``"population"``, ``"basic"`` or ``"percentile"``
    rng : generator or seed

    Examples
    --------
    >>> import numpy as np
    >>> labels = np.arange(5000) % 10 < 7  # correct in 7 of 10 rows, with confidence 0.9
    >>> result = bootstrap(np.full(5000, 0.9), labels, predicted=np.ones(5000, int), metrics=["ece"])
    >>> bool(0.18 < result.low["ece"] < 0.2 < result.high["ece"] < 0.22)
    True
    """
    if isinstance(metrics, str) or not isinstance(metrics, Iterable):
        raise TypeError(f"metrics must be a list of names, got {metrics!r}; pass a list such as ['ece']")
    functions = {name: choose(_METRICS, name, "metrics") for name in metrics}
    check_integer(n_resamples, "n_resamples", minimum=1)
    level = check_number(level, "level", above=0, below=1)
    check_binning(n_bins, binning, norm)
    limits, generator = choose(_LIMITS, method, "method"), as_generator(rng)
    top = reduce_to_top_label(probs, labels, predicted, class_names, transition)
    rows, n = _bin_rows(top, n_bins, binning, norm), len(top.confidence)
    observed = rows.sums([np.arange(n)], 1)
    estimate = {name: f(observed)[0] for name, f in functions.items()}
    draws: dict[str, list[Float]] = {name: [] for name in functions}
    deviations: dict[str, list[Float]] = {name: [] for name in functions}
    for r in _chunk_resamples(n, n_resamples):
        resampled = rows.sums(_draw_rows(n, r, generator), r)
        for name, f in functions.items():
            draws[name].append(f(resampled))
            if method == "population":
                deviations[name].append(f(resampled.minus(observed)))
    noise: dict[str, Float] = {}
    if method == "population":
        options: dict[str, Any] = {"n_bins": n_bins, "binning": binning, "norm": norm}
        upper = (1 + level) / 2
        floor = floor_of(top, n_redraws=n_resamples, quantiles=(upper,), rng=generator, **options)
        noise = {name: _noise_bound(deviations[name], upper, floor.quantiles.get(name)) for name in functions}
    low, high = {}, {}
    for name, theta in estimate.items():
        summary = _summarise(np.concatenate(draws[name]), level)
        minimum = -1.0 if name == "signed_gap" else 0.0
        interval = limits(theta, *summary, noise.get(name))
        low[name], high[name] = (_plain(np.clip(limit, minimum, 1.0)) for limit in interval)
    return Intervals(level, {name: _plain(theta) for name, theta in estimate.items()}, low, high)


def gap_intervals(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    transition: ArrayLike | None = None,
    level: float = 0.95,
) -> Intervals:
    """Compute a confidence interval of the signed gap, confidence minus accuracy, for every class.

    The metric name in the result is ``"signed_gap"``. The intervals refer to the population gap
    ``E[p̂ − correct]`` over all rows that would be predicted as the class. The given rows are taken to be a
    random sample of these. Both the accuracy and the mean confidence have sampling errors. Their intervals
    are combined by the method of Zou and Donner (2008):

    - The interval of the accuracy is the mid-P binomial interval.
    - The interval of the mean confidence is a Student t interval on the logit scale, which accounts for the
      skewness of confidences near 1. It is clipped to the Wilson interval for the same mean and number of
      rows.
    - The correlation of the two errors is that of confidence and correctness over the rows, multiplied by
      ``n/(n + 1)``.

    The estimate and the limits are nan for a class that is never predicted.

    In simulations of 88 populations (``benchmarks/interval_coverage.py``), 95% intervals contained the gap in
    95 to 96% of the samples on average. The populations combine eleven distributions of confidences with
    eight relations between confidence and accuracy, such as perfect calibration or over-confidence. The
    lowest coverage was 87% with 5 rows, 90% with 10 rows, 92% with 20 rows and 93% with 50 rows or more.
    Coverage is lowest if nearly all confidences are close to 1 and all predictions are correct, because a few
    rows rarely include the lower confidences.

    With `transition` or soft labels (see :mod:`hetcal.metrics.scores`), the interval of the accuracy is
    derived from an agreement rate. This is the fraction of rows whose observed label is the predicted class,
    or the mean probability that the soft labels give to the predicted class. The distances between this rate
    and its mid-P limits are multiplied by a ratio: the standard deviation of the correctness, divided by that
    of a binary variable whose mean is the agreement rate. The ratio is shrunk towards 1 for soft labels, and
    towards its value under perfect calibration for noisy labels. The shrinkage matters if the agreement rate
    is close to 0 or 1, where the ratio is unreliable.

    References
    ----------
    Zou, G. Y. and Donner, A. (2008). Construction of confidence limits about effect measures: a general
    approach. Statistics in Medicine 27, 1693-1702.

    Examples
    --------
    >>> result = gap_intervals([0.9] * 50, [1] * 35 + [0] * 15, predicted=[1] * 50)
    >>> [round(float(a["signed_gap"][1]), 3) for a in (result.low, result.estimate, result.high)]
    [0.086, 0.2, 0.337]
    """
    level = check_number(level, "level", above=0, below=1)
    estimate, low, high = gap_bounds(
        reduce_to_top_label(probs, labels, predicted, class_names, transition), level
    )
    return Intervals(level, {"signed_gap": estimate}, {"signed_gap": low}, {"signed_gap": high})


def gap_bounds(top: TopLabel, level: float) -> tuple[Float, Float, Float]:
    """Signed gap of every class, and the lower and upper limits of :func:`gap_intervals`, (K,) each."""
    k = top.predicted
    n = np.bincount(k, minlength=top.n_classes).astype(np.float64)
    safe_n = np.where(n > 0, n, np.nan)

    def mean(values: NDArray[Any]) -> Float:
        return group_sum(k, values, top.n_classes) / safe_n

    p, y = top.confidence.astype(np.float64), top.correct.astype(np.float64)
    c, a = mean(p), mean(y)
    dc, da = p - c[k], y - a[k]
    variance = mean(dc**2)
    # Rate of agreement with the labels, and the factor that converts its error to that of the accuracy
    rate, scale = a, np.ones_like(a)
    if top.agreement is not None:
        rate = mean(top.agreement.observed)
        scale = _relative_spread(top, rate, mean(da**2), n)
    r = _ratio(mean(dc * da), np.sqrt(variance * rate * (1 - rate)) * scale) * n / (n + 1)
    c_low, c_high = _mean_confidence_limits(c, variance, n, level)
    rate_low, rate_high = _mid_p_limits(rate * n, n, level)
    low = c - a - _difference_error(c - c_low, (rate_high - rate) * scale, r)
    high = c - a + _difference_error(c_high - c, (rate - rate_low) * scale, r)
    return c - a, np.minimum(np.maximum(low, -1), c - a), np.maximum(np.minimum(high, 1), c - a)


def normal_quantile(level: float) -> float:
    """Quantile of the standard normal distribution at `level`, at most 40 even if the level rounds to 1."""
    return min(float(special.ndtri(level)), _MAX_Z)


def _relative_spread(top: TopLabel, rate: Float, variance: Float, n: Float) -> Float:
    """Standard deviation of the correctness relative to that of a binary variable with mean `rate`, (K,).

    The result is the root of a weighted average of an observed and a prior variance ratio. The prior ratio is
    1 for soft labels. For noisy labels, it is the ratio under perfect calibration. The weight of the observed
    ratio is the binomial variance of the number of rows that agree with the label, ``n · rate · (1 − rate)``.
    The weight of the prior ratio is 1, so it matters if `rate` is close to 0 or 1.
    """
    prior = np.ones_like(rate)
    if top.agreement is not None and top.agreement.kind is LabelKind.NOISY:
        pi = top.agreement.expected
        sums = (group_sum(top.predicted, a, top.n_classes) for a in (top.null_variance, pi * (1 - pi)))
        slope = group_sum(top.predicted, top.agreement.spread**2, top.n_classes) / np.maximum(n, 1)
        prior = _ratio(*sums)
        prior = np.where(prior > 0, prior, slope)
    events = n * rate * (1 - rate)
    ratio = _ratio(variance, rate * (1 - rate))
    return np.asarray(np.sqrt((events * ratio + prior) / (events + 1)))


def _difference_error(first: Float, second: Float, r: Float) -> Float:
    """Error of the difference of two estimates with the errors `first` and `second` and correlation `r`."""
    return np.asarray(np.sqrt(np.maximum(first**2 + second**2 - 2 * r * first * second, 0)))


def _mean_confidence_limits(c: Float, variance: Float, n: Float, level: float) -> tuple[Float, Float]:
    """Limits of the mean of `n` confidences: Student t on the logit scale, clipped to the Wilson interval."""
    t = -special.stdtrit(np.maximum(n - 1, 1), max((1 - level) / 2, _MIN_TAIL))
    error = np.sqrt(variance / np.maximum(n - 1, 1))
    half = np.where(n > 1, _ratio(np.minimum(t, _MAX_T) * error, c * (1 - c)), np.inf)
    w = normal_quantile((1 + level) / 2) ** 2 / np.maximum(n, 1)
    wilson, wilson_half = (c + w / 2) / (1 + w), np.sqrt(w * c * (1 - c) + w**2 / 4) / (1 + w)
    centre = special.logit(np.where(n > 1, c, 0.5))
    low = np.maximum(special.expit(centre - half), wilson - wilson_half)
    high = np.minimum(special.expit(centre + half), wilson + wilson_half)
    return np.minimum(low, c), np.maximum(high, c)


def _mid_p_limits(n_correct: Float, n: Float, level: float) -> tuple[Float, Float]:
    """Mid-P limits of an accuracy, extended to contain the estimate; nan for a class without rows."""
    tail = max((1 - level) / 2, _MIN_TAIL)
    low, high = _mid_p_low(n_correct, n, tail), 1 - _mid_p_low(n - n_correct, n, tail)
    estimate = n_correct / np.where(n > 0, n, np.nan)
    return np.minimum(low, estimate), np.maximum(high, estimate)


def _mid_p_low(n_correct: Float, n: Float, tail: float) -> Float:
    """Lower mid-P limit of the accuracy.

    This is the accuracy at which ``P(S > n_correct) + P(S = n_correct)/2`` equals `tail`, where S is the
    binomial number of correct predictions in n rows. If `n_correct` is 0, the limit is 0.
    """
    inside = (n_correct > 0) & (n_correct < n)
    x, m = np.where(inside, n_correct, 1.0), np.where(inside, n, 2.0)
    # The solution lies between the accuracies at which P(S ≥ x) and P(S > x) equal `tail`.
    low, high = special.betaincinv(x, m - x + 1, tail), special.betaincinv(x + 1, m - x, tail)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        above = special.betainc(x, m - x + 1, middle) + special.betainc(x + 1, m - x, middle) > 2 * tail
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    all_correct = (2 * tail) ** (1 / np.maximum(n, 1))
    return np.where(inside, (low + high) / 2, np.where(n_correct > 0, all_correct, 0.0))


def _ratio(numerator: Float, denominator: Float) -> Float:
    """Quotient, or 0 where the denominator is not positive."""
    return np.divide(numerator, denominator, out=np.zeros_like(denominator), where=denominator > 0)


@dataclass(frozen=True, eq=False)
class _Sums:
    """Number of rows and sum of residuals in every cell, for R resamples.

    A cell is one of the M bins of one predicted class (in `by_class`), or of all rows (in `pooled`). Each of
    these two attributes is a pair of arrays: the numbers of rows, and the sums. The arrays have the shape
    (R, K, M) in `by_class` and (R, 1, M) in `pooled`.
    """

    by_class: tuple[Float, Float]
    pooled: tuple[Float, Float]
    norm: Norm

    def minus(self, observed: _Sums) -> _Sums:
        """Return the deviations of these resampled sums from the observed ones.

        A calibration error of the result is the distance between the resampled and the observed gaps of the
        bins.
        """
        by_class = _deviation(*self.by_class, *observed.by_class)
        return _Sums(by_class, _deviation(*self.pooled, *observed.pooled), self.norm)


@dataclass(frozen=True, eq=False)
class _BinnedRows:
    """Residual and cells of every row.

    A cell is one bin of one predicted class. The array `columns` has shape (n, 2) or (n, 3). The first column
    contains the residuals ``confidence - correct``, and the second the numbers of the cells. With bins of
    equal mass, the third column contains the bins that result if all rows are binned together. The values of
    a row are adjacent in memory, because rows are accessed in random order.
    """

    columns: Float
    n_classes: int
    n_bins: int
    norm: Norm

    def sums(self, drawn: Iterable[IntArray], n_resamples: int) -> _Sums:
        """Count the drawn rows and sum their residuals in every cell, for each resample.

        Element ``i`` of each array of row numbers in `drawn` belongs to resample ``i % n_resamples``.
        """
        n_slices = (self.n_classes, 1)[: self.columns.shape[1] - 1]
        tables = [np.zeros((2, n * self.n_bins * n_resamples)) for n in n_slices]
        resample = np.empty(0, dtype=np.int64)
        for row_numbers in drawn:
            residual, *cells = self.columns.take(row_numbers, axis=0).T
            if len(resample) < len(row_numbers):
                resample = np.arange(len(row_numbers)) % n_resamples
            for cell, (count, total) in zip(cells, tables, strict=True):
                index = cell.astype(np.int64) * n_resamples + resample[: len(row_numbers)]
                np.add.at(count, index, 1.0)
                np.add.at(total, index, residual)
        by_slice = [np.moveaxis(t.reshape(2, -1, self.n_bins, n_resamples), -1, 1) for t in tables]
        pooled = by_slice[1] if len(by_slice) > 1 else by_slice[0].sum(axis=2, keepdims=True)
        return _Sums((by_slice[0][0], by_slice[0][1]), (pooled[0], pooled[1]), self.norm)


def _bin_rows(top: TopLabel, n_bins: int, binning: Binning, norm: Norm) -> _BinnedRows:
    cell = cell_index(top.confidence, n_bins=n_bins, binning=binning, slices=top.predicted)
    columns = [top.confidence.astype(np.float64) - top.correct, cell]
    if binning != "width":
        columns.append(bin_index(top.confidence, n_bins=n_bins, binning=binning))
    return _BinnedRows(np.stack(columns, axis=1), top.n_classes, n_bins, norm)


def _chunk_resamples(n: int, n_resamples: int) -> Iterator[int]:
    """Split the resamples into chunks, and yield the number of resamples in each chunk.

    A chunk draws at most `_CHUNK_ROWS` row numbers, unless it consists of a single resample.
    """
    step = max(1, _CHUNK_ROWS // n)
    return (stop - start for start, stop in chunk_ranges(n_resamples, step))


def _draw_rows(n: int, n_resamples: int, rng: np.random.Generator) -> Iterator[IntArray]:
    """Yield the row numbers of the resamples; each array contains equally many of every resample."""
    step = max(1, _DRAWN_ROWS // n_resamples)
    return (rng.integers(0, n, size=(stop - start) * n_resamples) for start, stop in chunk_ranges(n, step))


def _deviation(
    count: Float, residual: Float, observed_count: Float, observed_residual: Float
) -> tuple[Float, Float]:
    """Return the observed count of every cell, and the change of its sum of residuals.

    The change is the resampled sum minus the observed sum. A slice contains the rows of one predicted class,
    or all rows. Before the subtraction, the resampled sums of a slice are scaled from the resampled to the
    observed number of rows in the slice. If a resample contains no rows of a slice, the returned counts of
    the slice are 0.
    """
    n, n_observed = count.sum(axis=-1, keepdims=True), observed_count.sum(axis=-1, keepdims=True)
    difference = residual * n_observed / np.maximum(n, 1) - observed_residual
    return np.where(n > 0, observed_count, 0), difference


def _ece(sums: _Sums) -> Float:
    return calibration_error(*sums.pooled, sums.norm)[:, 0]


def _class_ece(sums: _Sums) -> Float:
    return calibration_error(*sums.by_class, sums.norm)


def _max_ece(sums: _Sums) -> Float:
    return np.asarray(np.nanmax(_class_ece(sums), axis=1))


def _avg_ece(sums: _Sums) -> Float:
    return np.asarray(np.nanmean(_class_ece(sums), axis=1))


def _signed_gap(sums: _Sums) -> Float:
    count, residual = (a.sum(axis=2) for a in sums.by_class)
    return np.asarray(residual / np.where(count > 0, count, np.nan))


def _summarise(draws: Float, level: float) -> list[Float]:
    """Mean, lower and upper quantile over the first axis, ignoring nan; nan if all values are nan."""
    empty = np.isnan(draws).all(axis=0)
    draws = np.where(empty, 0.0, draws)
    low, high = np.nanquantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return [np.where(empty, np.nan, a) for a in (np.nanmean(draws, axis=0), low, high)]


def _noise_bound(deviations: list[Float], upper: float, floor: Float | None) -> Float:
    """Bound on the contribution of sampling noise to a metric.

    It is the larger of two quantiles at the level `upper`: that of the deviations of the resamples, and
    `floor`, that of the noise floor (0 if `floor` is None). Resamples reproduce the noise of a miscalibrated
    model, but they underestimate it in bins with one or two rows.
    """
    stacked = np.concatenate(deviations)
    empty = np.isnan(stacked).all(axis=0)
    bound = np.where(empty, np.nan, np.nanquantile(np.where(empty, 0.0, stacked), upper, axis=0))
    return np.maximum(bound, 0 if floor is None else floor[0])


def _plain(value: Any) -> float | Float:
    return np.asarray(value) if np.ndim(value) else float(value)


_METRICS: dict[str, Callable[[_Sums], Float]] = {
    "ece": _ece,
    "max_ece": _max_ece,
    "avg_ece": _avg_ece,
    "class_ece": _class_ece,
    "signed_gap": _signed_gap,
}
_LIMITS: dict[str, Callable[..., tuple[Any, Any]]] = {
    "centred": lambda theta, mean, low, high, _: (theta + low - mean, theta + high - mean),
    "population": lambda theta, mean, low, high, noise: (  # noqa: ARG005
        theta - noise,
        theta + np.maximum(high - mean, 0),
    ),
    "basic": lambda theta, mean, low, high, _: (2 * theta - high, 2 * theta - low),  # noqa: ARG005
    "percentile": lambda theta, mean, low, high, _: (low, high),  # noqa: ARG005
}
