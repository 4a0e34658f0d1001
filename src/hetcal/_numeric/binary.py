"""Binary scaling: ``P(class 1) = sigmoid(f(x))`` with the log-odds x of class 1 at the best temperature.

The family of f is "linear", "quadratic", "beta" or "spline". Quadratic functions are polynomials of degree 2.
In the other families, f is a polynomial of degree 1, to which "beta" and "spline" add smooth versions of
``|x − κ|``. The two classes are treated alike: exchanging them changes the signs of x and of the knots κ, and
exchanges the predicted probabilities.

Since f depends on a single number per row, rows with nearly equal x can be merged. Once the temperature is
known, this takes two passes over the rows. The function f is then fitted to the merged rows, of which there
are fewer than 100,000.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from hetcal._numeric.evidence import Curvature, DenseHessian, NewtonProblem, Penalised, fit_precisions
from hetcal._numeric.label_models import Correctness, NoisyLabels, SoftLabels, noisy_correctness
from hetcal._numeric.passes import sum_slices
from hetcal._numeric.rows import Rows
from hetcal._numeric.source import Source
from hetcal._typing import Float, FloatArray, IntArray

__all__ = [
    "FEATURES",
    "FINE_PRIOR",
    "RELATIVE_WIDTHS",
    "Basis",
    "LogOdds",
    "MergedRows",
    "fit_basis",
    "knot_levels",
    "merge_rows",
    "smooth_distance",
]

#: Groups of features in each family. Every group has its own penalty.
FEATURES = {
    "linear": ("linear", "bias"),
    "quadratic": ("linear", "quadratic", "bias"),
    "beta": ("linear", "beta", "bias"),
    "spline": ("linear", "beta", "broad", "fine", "bias"),
}
# Initial standard deviation of the coefficients' priors, by family; FINE_PRIOR times this for fine features
_PRIOR_SCALE = {"linear": 0.3, "quadratic": 0.3, "beta": 0.3, "spline": 1.0}
#: Initial standard deviation of the priors for fine features, as a multiple of that for broad features
FINE_PRIOR = 0.5
#: Widths of the broad and of the fine features of a spline, in standard deviations of the log-odds
RELATIVE_WIDTHS = {"broad": 0.7, "fine": 0.2}
_N_KNOTS = {"broad": 8, "fine": 12}  # maximum number of knots
_MIN_SPREAD = 0.1  # smaller standard deviations of x are raised to this before widths are computed
# Standard deviations below this are raised to it: that of x, from which bins are chosen, and those of the
# features, by which the features are divided.
_MIN_SCALE = 0.01

# Rows with the same label are merged if their x are in the same bin. Near the mean of x, bins are σ/16,000
# wide, where σ is the standard deviation of x, or 0.01 if that is larger. Far from the mean, their width is
# 1/2000 of the distance from the mean.
_BIN_WIDTH = 1 / 2000
_BINS_PER_SPREAD = 8.0


@dataclass(frozen=True)
class LogOdds:
    """The log-odds of class 1, ``x = α (z₁ − z₀)``, clipped to [−limit, limit].

    Clipping keeps rows with extreme probabilities, such as 0 and 1, from dominating a fit.
    """

    alpha: float
    limit: float

    def __call__(self, z: FloatArray) -> Float:
        """Log-odds x (n,) for the logits `z` (n, 2)."""
        with np.errstate(over="ignore"):
            x = self.alpha * (z[:, 1].astype(np.float64) - z[:, 0])
        return np.clip(x, -self.limit, self.limit)


@dataclass(frozen=True, eq=False)
class MergedRows:
    """Rows after merging those with the same label and nearly equal log-odds.

    Attributes
    ----------
    x : (m,) weighted mean of the log-odds of the rows that were merged, in increasing order
    y : (m,) labels
    weight : (m,) total weight of the rows that were merged
    cell : (m,) number of the cell, a narrow interval of log-odds, from which rows were merged
        The cells that contain rows are numbered from 0 in the order of x. Two merged rows, one for each
        label, may come from the same cell.
    transition : (2, 2) probability of each observed label (column) given the true class (row)
        None if the labels are not noisy.
    """

    x: Float
    y: IntArray
    weight: Float
    cell: IntArray
    transition: Float | None = None

    @property
    def is_class_1(self) -> Correctness:
        """What is known about whether the true class of each row is 1."""
        if self.transition is None:
            return Correctness(share=self.y.astype(np.float64))
        return noisy_correctness(self.transition[1, self.y], self.transition[0, self.y])

    @property
    def shares(self) -> Float:
        """Unbiased estimates (m,) of a number that is 1 if the true class is 1, and 0 otherwise.

        They are the labels y. If there is a transition matrix T, they are the entries ``T⁻¹[y, 1]`` instead,
        which may lie outside [0, 1].
        """
        if self.transition is None:
            return self.y.astype(np.float64)
        return np.asarray(np.linalg.inv(self.transition)[self.y, 1])

    def mean(self, values: Float) -> Float:
        """Mean of `values` (m, ...) over the rows, weighted by `weight`."""
        return np.asarray(np.average(values, axis=0, weights=self.weight))

    def quantiles(self, levels: Float) -> Float:
        """Weighted quantiles of x at the given levels, interpolated linearly between the cells."""
        # The merged rows of each cell are combined first, since rounding errors may determine their order.
        n_cells = int(self.cell.max()) + 1
        weight = sum_slices(self.cell, self.weight, n_cells)
        x = sum_slices(self.cell, self.weight * self.x, n_cells) / weight
        # Half of the weight of a cell counts as lying below its x. The quantile of −x at level q is then the
        # negative of the quantile of x at level 1 − q.
        return np.asarray(np.interp(levels * weight.sum(), np.cumsum(weight) - weight / 2, x))


@dataclass(frozen=True, eq=False)
class Basis:
    """Features of x: x itself, a constant, and in some families x² or smooth versions of ``|x − κ|``.

    Attributes
    ----------
    family : key of `FEATURES`
    knots : for a spline, the knots κ of the "broad" and of the "fine" features, (m,) each; otherwise empty
    widths : widths of the features, with the same keys as `knots`
    """

    family: str
    knots: Mapping[str, Float]
    widths: Mapping[str, float]

    @classmethod
    def of(cls, rows: MergedRows, family: str) -> Basis:
        """Return the basis of a family; for a spline, choose widths, and place knots at quantiles of x."""
        deviation = np.sqrt(rows.mean((rows.x - rows.mean(rows.x)) ** 2))
        kinds = [name for name in FEATURES[family] if name in RELATIVE_WIDTHS]
        widths = {kind: RELATIVE_WIDTHS[kind] * max(float(deviation), _MIN_SPREAD) for kind in kinds}
        knots = {kind: rows.quantiles(knot_levels(_N_KNOTS[kind])) for kind in kinds}
        for kind, x in knots.items():
            knots[kind] = x[np.diff(x, prepend=-np.inf) > 1e-6 * widths[kind]]  # drop nearly equal knots
        return cls(family, knots, widths)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the groups of features."""
        return FEATURES[self.family]

    @property
    def groups(self) -> IntArray:
        """Group of every parameter, as a position in `names`, (p,)."""
        sizes = [len(self.knots[name]) if name in self.knots else 1 for name in self.names]
        return np.repeat(np.arange(len(sizes)), sizes)

    def __call__(self, x: Float) -> Float:
        """Features (n, p) of x (n,); the last feature is the constant 1."""
        columns = {
            "linear": [x],
            "quadratic": [x**2],
            "beta": [smooth_distance(x, 0.0, 1.0)],
            "bias": [np.ones_like(x)],
        }
        for kind, knots in self.knots.items():
            columns[kind] = [smooth_distance(x, knot, self.widths[kind]) for knot in knots]
        return np.stack([column for name in self.names for column in columns[name]], axis=1)


def knot_levels(n_knots: int) -> Float:
    """Levels ``j / (n_knots + 1)`` of the quantiles at which knots are placed, for j = 1, …, n_knots."""
    return np.arange(1, n_knots + 1) / (n_knots + 1)


def smooth_distance(x: Float, knot: float | Float, width: float | Float) -> Float:
    """``h log(1 + e^t) + h log(1 + e^−t)`` with ``t = (x − κ)/h``: a smooth version of ``|x − κ|``.

    κ is `knot` and h is `width`; arrays are broadcast.
    """
    distance = np.abs(x - knot)
    return np.asarray(distance + 2 * width * np.log1p(np.exp(-distance / width)))


def merge_rows(source: Source, log_odds: LogOdds) -> MergedRows:
    """Merge rows that have the same label and nearly equal log-odds.

    A row with soft labels is first split into one row per class, weighted by the probability of the class.
    """
    total, first, second = source.sum_rows(_Moments(log_odds))
    mean = float(first / total)
    spread = max(float(np.sqrt(max(second / total - mean**2, 0))), _MIN_SCALE)
    weight, offset = source.sum_rows(_Bins(log_odds, mean, spread))
    y, present = np.nonzero(weight)
    weight = weight[y, present]
    x = mean + offset[y, present] / weight
    order = np.argsort(x, kind="stable")
    labels = source.label_model
    transition = labels.transition if isinstance(labels, NoisyLabels) else None
    cell = np.unique(present, return_inverse=True)[1]
    return MergedRows(x[order], y[order], weight[order], cell[order], transition)


def fit_basis(basis: Basis, rows: MergedRows) -> tuple[Float, Penalised]:
    """Fit f; return its coefficients (p,) for unscaled features, and the penalised fit for scaled features.

    For the fit, all features except the constant are centred and divided by their standard deviations (by
    0.01 if these are smaller), so that the initial priors do not depend on the units of the features. The
    parameters of the penalised fit are the coefficients of ``f(x) − x``. The penalties shrink them towards 0.
    """
    raw = basis(rows.x)
    mean = rows.mean(raw)
    scale = np.maximum(np.sqrt(rows.mean((raw - mean) ** 2)), _MIN_SCALE)
    mean[-1], scale[-1] = 0.0, 1.0  # the constant feature is not scaled
    features, w, labels = (raw - mean) / scale, rows.weight, rows.is_class_1

    def evaluate(theta: Float) -> tuple[float, Float, Curvature]:
        u = rows.x + features @ theta
        p = expit(u)
        pull, q = labels.pull(u)
        loss = float(w @ (np.logaddexp(0, u) - pull))
        hessian = features.T @ (features * (w * p * expit(-u))[:, None])
        curvature = DenseHessian(hessian)
        if rows.transition is not None:
            pulled = features.T @ (features * (w * labels.curvature(q))[:, None])
            curvature = DenseHessian(hessian - pulled, hessian)
        return loss, features.T @ (w * (p - q)), curvature

    prior = np.full(len(basis.names), _PRIOR_SCALE[basis.family] ** -2)
    prior[[name == "fine" for name in basis.names]] /= FINE_PRIOR**2
    fit = fit_precisions(NewtonProblem(evaluate), basis.groups, prior)
    coefficients = fit.theta / scale
    coefficients[-1] -= coefficients @ mean
    coefficients[0] += 1  # the fitted function is f(x) − x, and the first feature is x
    return coefficients, fit


# -- Functions of blocks of rows; they must be picklable, since they may be sent to other machines. --


@dataclass(frozen=True)
class _Moments:
    """Sum of the weights, and weighted sums of x and x²."""

    log_odds: LogOdds

    def __call__(self, rows: Rows) -> tuple[NDArray[Any], ...]:
        x, w = self.log_odds(rows.z), rows.weight
        return np.array(w.sum()), np.array(w @ x), np.array(w @ x**2)


@dataclass(frozen=True)
class _Bins:
    """Sums of the weights and weighted sums of ``x − mean``, by label and narrow bin of x, (2, B) each."""

    log_odds: LogOdds
    mean: float
    spread: float

    def __call__(self, rows: Rows) -> tuple[NDArray[Any], ...]:
        offset, w = self.log_odds(rows.z) - self.mean, rows.weight
        last = int(self._position(np.array(2 * self.log_odds.limit)))  # |x − mean| is at most 2 · limit
        n_bins = 2 * last + 1
        cell = self._position(offset) + last
        if isinstance(rows.label_model, SoftLabels):
            shares = rows.label_model.q.T
            sums = [[np.bincount(cell, s * v, n_bins) for s in shares] for v in (w, w * offset)]
            return np.array(sums[0]), np.array(sums[1])
        cell = cell + rows.y.astype(np.int64) * n_bins
        by_label = (np.bincount(cell, values, 2 * n_bins) for values in (w, w * offset))
        return tuple(values.reshape(2, n_bins) for values in by_label)

    def _position(self, offset: Float) -> IntArray:
        """Number of the bin of each offset from the mean; an offset of 0 has the number 0.

        Opposite offsets have opposite numbers.
        """
        scaled = np.arcsinh(_BINS_PER_SPREAD * offset / self.spread) / _BIN_WIDTH
        return np.rint(scaled).astype(np.int64)
