"""Curves: smooth functions of log-odds, which matrix scaling can add to the logits.

Every class has its own curve, which is added to the logit of the class. The curve is a weighted sum of smooth
versions of ``|t − κ|``, where t is the log-odds of the class against all others. One knot κ is 0. The other
knots are placed where the data tell most about the curve: at quantiles of t with the weights p (1 − p), where
p is the probability of the class. As in :mod:`hetcal._numeric.binary`, some of the summands (features) are
broad and some are fine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from hetcal._numeric.binary import RELATIVE_WIDTHS, knot_levels, smooth_distance
from hetcal._numeric.rows import Rows
from hetcal._numeric.source import Source
from hetcal._typing import Float, FloatArray

__all__ = ["CurveFeatures", "Curves", "log_odds_by_class"]

_N_KNOTS = {"broad": 4, "fine": 8}  # knots per class besides the one at 0
_MIN_SPREAD = 0.1  # smaller standard deviations of t are raised to this before widths are computed
_MIN_SCALE = 0.01  # smaller standard deviations are raised to this before features are divided by them
_FLOOR = 1e-3  # added to the weights p (1 − p), as a fraction of their mean
_N_BINS = 1000  # bins of the histograms of t
_BLOCK = 1 << 17  # logits processed at a time


@dataclass(frozen=True, eq=False)
class Curves:
    """The curves ``c_k(t) = Σ_j w_kj s(t, κ_kj, h_kj)`` of all classes k, where s is `smooth_distance`.

    Attributes
    ----------
    limit : the log-odds t are clipped to [−limit, limit]
    knots, widths, weights : κ, h and w, (K, m) each
    """

    limit: float
    knots: Float
    widths: Float
    weights: Float

    def __call__(self, x: Float) -> Float:
        """Values ``c_k(t_k)`` of the curves, (n, K), for logits `x` (n, K), whose log-odds are t."""
        t = log_odds_by_class(x.T, self.limit).T
        total = np.zeros_like(t)
        for knot, width, weight in zip(self.knots.T, self.widths.T, self.weights.T, strict=True):
            total += weight * smooth_distance(t, knot, width)
        return total


@dataclass(frozen=True, eq=False)
class CurveFeatures:
    """The features of the curves, scaled to mean 0 and standard deviation 1.

    With scaled features, the priors of the coefficients do not depend on the units of the features.

    Attributes
    ----------
    limit : log-odds are clipped to [−limit, limit]
    knots, widths : (K, m) each; the first feature of a class has knot 0 and width 1
    mean, scale : (K, m) each, means and standard deviations of the unscaled features
        The rows have the same weights as in the choice of the knots. A standard deviation below 0.01 is
        replaced with 0.01.
    """

    limit: float
    knots: Float
    widths: Float
    mean: Float
    scale: Float

    @classmethod
    def of(cls, source: Source, inputs: Callable[[FloatArray], tuple[Float, Float]], limit: float) -> Self:
        """Compute the knots, widths, means and scales from the rows of `source`.

        `inputs` converts logits to two arrays, of which only the second is used. It contains the inputs of
        the curves. Its entries of masked (practically impossible) classes have been raised to a limit.
        """
        weight, information = source.sum_rows(_Histograms(inputs, limit))
        by_bin = information + _FLOOR * weight * (information.sum(axis=1) / weight.sum(axis=1))[:, None]
        by_bin /= by_bin.sum(axis=1, keepdims=True)
        t = _bin_centres(limit)
        mean = by_bin @ t
        deviation = np.sqrt(np.maximum(by_bin @ t**2 - mean**2, 0))
        # Half of the weight of a bin counts as lying below its centre. The quantile of −t at level q is then
        # the negative of the quantile of t at level 1 − q.
        below = by_bin.cumsum(axis=1) - by_bin / 2
        levels = np.concatenate([knot_levels(n_knots) for n_knots in _N_KNOTS.values()])
        relative = [RELATIVE_WIDTHS[kind] for kind, n_knots in _N_KNOTS.items() for _ in range(n_knots)]
        knots = np.array([[0.0, *np.interp(levels, share, t)] for share in below])
        widths = np.array([[1.0, *np.multiply(relative, max(d, _MIN_SPREAD))] for d in deviation])
        features = smooth_distance(t, knots[..., None], widths[..., None])
        feature_mean = (features @ by_bin[..., None])[..., 0]
        variance = (features - feature_mean[..., None]) ** 2 @ by_bin[..., None]
        return cls(limit, knots, widths, feature_mean, np.maximum(np.sqrt(variance[..., 0]), _MIN_SCALE))

    @property
    def sizes(self) -> list[int]:
        """Numbers of features per class: the one with knot 0, the broad ones and the fine ones."""
        return [1, *_N_KNOTS.values()]

    def __call__(self, x: Float) -> Float:
        """Scaled features (K, m, n) for logits `x` (K, n)."""
        t = log_odds_by_class(x, self.limit)[:, None]
        out = smooth_distance(t, self.knots[..., None], self.widths[..., None])
        out -= self.mean[..., None]
        out /= self.scale[..., None]
        return out

    def curves(self, coefficients: Float) -> tuple[Curves, Float]:
        """Curves for the given coefficients (K, m) of the scaled features, and constants (K,) to add to them.

        The constants stem from the means that were subtracted to scale the features.
        """
        weights = coefficients / self.scale
        return Curves(self.limit, self.knots, self.widths, weights), -(weights * self.mean).sum(axis=1)


def log_odds_by_class(x: Float, limit: float) -> Float:
    """Log-odds of every class against all others, clipped to [−limit, limit], for logits x, (K, n) each."""
    likelihood = np.exp(x - x.max(axis=0))
    # If a class has nearly all the probability, subtracting its part from the sum would be inaccurate.
    others = (1 - np.eye(len(x))) @ likelihood
    with np.errstate(divide="ignore"):
        return np.asarray(np.clip(np.log(likelihood) - np.log(others), -limit, limit))


def _bin_centres(limit: float) -> Float:
    return np.asarray(limit * ((2 * np.arange(_N_BINS) + 1) / _N_BINS - 1))


@dataclass(frozen=True)
class _Histograms:
    """Computes two histograms (K, bins) of the log-odds of every class, weighted by w and by w p (1 − p).

    w is the weight of a row, and p the probability of the class. The object must be picklable, since it may
    be sent to other machines.
    """

    inputs: Callable[[FloatArray], tuple[Float, Float]]
    limit: float

    def __call__(self, rows: Rows) -> tuple[NDArray[np.float64], ...]:
        n_classes = rows.z.shape[1]
        size = n_classes * _N_BINS
        weight, information = np.zeros((2, size))
        step = max(1, _BLOCK // n_classes)
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            _, x = self.inputs(rows.z[part])
            t = log_odds_by_class(np.ascontiguousarray(x.T), self.limit)
            w = np.broadcast_to(rows.weight[part], t.shape)
            cell = np.minimum((t / self.limit + 1) * (_N_BINS / 2), _N_BINS - 1).astype(np.int64)
            cell += np.arange(n_classes)[:, None] * _N_BINS
            weight += np.bincount(cell.ravel(), w.ravel(), size)
            information += np.bincount(cell.ravel(), (w * expit(t) * expit(-t)).ravel(), size)
        return weight.reshape(n_classes, -1), information.reshape(n_classes, -1)
