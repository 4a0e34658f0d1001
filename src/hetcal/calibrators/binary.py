"""Calibration of two-class models by a function of the log-odds."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
from scipy.special import logit
from sklearn.isotonic import isotonic_regression

from hetcal._numeric.binary import Basis, LogOdds, MergedRows, fit_basis, merge_rows
from hetcal._numeric.clipping import fit_clipped
from hetcal._numeric.passes import sum_slices
from hetcal._numeric.source import Source
from hetcal._typing import Float, IntArray
from hetcal._validate import check_choice, check_flag
from hetcal.calibrators.base import Calibrator
from hetcal.export import maps

__all__ = ["BinaryScaling"]

_Features = Literal["linear", "quadratic", "beta", "spline", "isotonic"]

# The widths for "isotonic" are in standard deviations of x.
_CELL_WIDTH = 0.01  # all x in a cell of this width are merged, so that f cannot rise too steeply
_BEND_WIDTH = 1e-6  # width of the bends of f at the knots; so small that they are practically sharp


class BinaryScaling(Calibrator):
    """``sigmoid(f(x))`` for class 1 of two classes, where f is a function of the log-odds x.

    For the logits z of a row, x is ``α (z₁ − z₀)``, where α is the best single inverse temperature. x is
    clipped to ±`limit_`, so that probabilities of exactly 0 and 1 do not dominate the fit.

    Unless `features` is "isotonic", f is the identity plus a weighted sum of features with penalised weights.
    The penalties are chosen from the data (empirical Bayes). Therefore f stays close to the identity if there
    are few rows, and the parameters are finite even if the rows are separable or all have the same label.

    Decisions may change unless `keep_decision` is True. Exchanging the two classes only exchanges their
    probabilities.

    Parameters
    ----------
    features : "linear", "quadratic", "beta", "spline" or "isotonic"
        The features of f besides a bias, or "isotonic".

        "linear": x, as in Platt scaling of a two-class model.

        "quadratic": x and x².

        "beta": x and ``log(1 + e^x) + log(1 + e^−x)``. With p = sigmoid(x), these span the same functions as
        log p and log(1 − p), the features of beta calibration (Kull et al., 2017).

        "spline": those of "beta", and smooth versions of ``|x − κ|`` with knots κ at quantiles of x. Up to 8
        of them are broad and up to 12 are fine. Their widths are 0.7 and 0.2 standard deviations of x, but at
        least 0.07 and 0.02.

        "isotonic": f never decreases, which the other features do not ensure, and has no penalty. Isotonic
        regression divides the rows into blocks. The probability of a block is ``(k + 1) / (n + 2)``, where k
        of its n rows have the label 1 (Laplace's rule), so it is never 0 or 1. Weights count as numbers of
        rows. Neighbouring blocks whose probabilities would decrease are averaged. f interpolates linearly
        between blocks.
    keep_decision : bool
        Whether to preserve the predicted class. If f(x) would give it a probability below 1/2, f(x) is
        replaced with 0, so that both classes have the probability 1/2.

    Attributes
    ----------
    alpha_ : float, α
    limit_ : float, the largest absolute value of x after clipping
        At most ``log(2n + 1)``, where n is the number of rows, or their effective sample size if they have
        weights. It can be smaller if the logits give probabilities below about 1e-12, and clipping such
        logits clearly lowers the NLL of temperature scaling; α is then the best inverse temperature of the
        clipped logits.
    coefficients_ : dict, coefficients of f by feature
        The keys are "linear" and "bias" and, depending on `features`, "quadratic", "beta", "broad" and
        "fine", or "isotonic". The coefficients of features without a key are zero.

        Let ``s(x, κ, h) = h log(1 + e^t) + h log(1 + e^−t)`` with ``t = (x − κ)/h``, a smooth version of
        ``|x − κ|``. The values of "bias", "linear", "quadratic" and "beta" are numbers, and contribute
        ``bias + linear · x + quadratic · x² + beta · s(x, 0, 1)`` to f(x). The values of "broad", "fine" and
        "isotonic" are arrays c (m,). Each of them adds ``Σ_j c_j · s(x, κ_j, h)``, where κ and h are the
        knots and the width with the same key in `knots_` and `widths_`.
    knots_, widths_ : dict with the keys "broad" and "fine", or "isotonic"; empty for other features
        The knots κ, (m,) each, and the widths h.
    scales_ : dict with the keys of `coefficients_`: standard deviations of normal priors
        The priors have mean 0 and apply to the coefficients of ``f(x) − x``, after all features except the
        constant are scaled to mean 0 and standard deviation 1. Empty if `features` is "isotonic".

    Notes
    -----
    Since f depends on a single number per row, rows with the same label and nearly equal x are merged before
    f is fitted. The x of merged rows differ by at most about 6e-5 standard deviations near the mean of x, and
    by about 1/2000 of the distance from the mean far from it. This makes fits fast: once `alpha_` and
    `limit_` are known, rows in batches are read only twice. Up to rounding errors, the result is the same for
    arrays, batches and Dask.

    Examples
    --------
    Probabilities that are too extreme on one side only:

    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(scale=2, size=4000)
    >>> y = rng.random(4000) < 1 / (1 + np.exp(-np.where(x > 0, x, x / 4)))
    >>> cal = BinaryScaling().fit(np.stack([-x, x], axis=1) / 2, y.astype(int))
    >>> cal.predict_proba([[1.0, -1.0], [-1.0, 1.0]])[:, 1].round(2)  # ideally 0.38 and 0.88
    array([0.38, 0.88])
    """

    _required_classes: ClassVar[int | None] = 2

    def __init__(
        self,
        features: _Features = "spline",
        *,
        keep_decision: bool = False,
    ) -> None:
        self.features = features
        self.keep_decision = keep_decision

    @property
    def preserves_decision(self) -> bool:
        """Whether the argmax is preserved."""
        return bool(self.keep_decision)

    def _fit(self, source: Source) -> None:
        family = check_choice(self.features, "features", get_args(_Features))
        check_flag(self.keep_decision, "keep_decision")
        if source.n_classes != self._required_classes:
            raise ValueError(
                f"logits must have 2 columns for BinaryScaling, got {source.n_classes}; "
                "use MatrixScaling or VectorScaling"
            )
        self.alpha_, clip = fit_clipped(source)
        self.limit_ = min(clip, float(np.log(2 * source.slice_weights().sum() + 1)))
        rows = merge_rows(source, LogOdds(self.alpha_, self.limit_))
        if family == "isotonic":
            self._set_isotonic(rows)
            return
        basis = Basis.of(rows, family)
        coefficients, fit = fit_basis(basis, rows)
        by_group = (coefficients[basis.groups == group] for group in range(len(basis.names)))
        self.coefficients_ = {
            name: values if name in basis.knots else float(values[0])
            for name, values in zip(basis.names, by_group, strict=True)
        }
        self.knots_, self.widths_ = dict(basis.knots), dict(basis.widths)
        self.scales_ = dict(zip(basis.names, (fit.precision**-0.5).tolist(), strict=True))

    def _set_isotonic(self, rows: MergedRows) -> None:
        """Fit f by isotonic regression, and set the attributes that describe it."""
        deviation = float(np.sqrt(rows.mean((rows.x - rows.mean(rows.x)) ** 2))) or 1.0
        knots, values = _isotonic_knots(rows, _CELL_WIDTH * deviation)
        slopes = np.diff(values) / np.diff(knots)
        # A piecewise linear f that is flat outside the knots is a constant plus a weighted sum of |x − κ|.
        # The weight of a knot κ is half of the change of the slope of f at κ.
        weights = np.diff(slopes, prepend=0.0, append=0.0) / 2 if len(knots) > 1 else np.zeros(1)
        bias = values[0] - weights @ (knots - knots[0])
        self.coefficients_ = {"linear": 0.0, "isotonic": weights, "bias": float(bias)}
        self.knots_, self.widths_ = {"isotonic": knots}, {"isotonic": _BEND_WIDTH * deviation}
        self.scales_ = {}

    def _map(self) -> maps.Map:
        coefficients: dict[str, Any] = self.coefficients_
        polynomial = [coefficients.get(name, 0.0) for name in ("bias", "linear", "quadratic")]
        # (knot, width, coefficient) of every smooth version of |x − κ|
        terms = [(0.0, 1.0, coefficients["beta"])] if "beta" in coefficients else []
        for kind, knots in self.knots_.items():
            terms += [(k, self.widths_[kind], c) for k, c in zip(knots, coefficients[kind], strict=True)]
        knots, widths, weights = np.array(terms, np.float64).reshape(-1, 3).T
        return maps.Binary(
            self.alpha_,
            self.limit_,
            np.array(polynomial, np.float64),
            knots,
            widths,
            weights,
            bool(self.keep_decision),
        )

    @classmethod
    def _examples(cls) -> list[Self]:
        return [cls(name, keep_decision=keep) for name in get_args(_Features)[::-1] for keep in (False, True)]


def _isotonic_knots(rows: MergedRows, cell_width: float) -> tuple[Float, Float]:
    """Knots of f in increasing order, and the values of f there, (m,) each."""
    mean = rows.mean(rows.x)
    cell, member = np.unique(np.rint((rows.x - mean) / cell_width), return_inverse=True)
    x = mean + cell_width * cell
    n = sum_slices(member, rows.weight, len(cell))
    hits = sum_slices(member, rows.weight * rows.shares, len(cell))
    block = _isotonic_blocks(hits / n, n)
    n, hits = (sum_slices(block, values, block[-1] + 1) for values in (n, hits))
    # With noisy labels, `hits` is an estimate that may lie outside [0, n].
    size, hits = n + 2, np.clip(hits, 0, n) + 1
    outer = _isotonic_blocks(hits / size, size)  # Laplace's rule may make the values decrease
    size, hits = (sum_slices(outer, values, outer[-1] + 1) for values in (size, hits))
    value = np.asarray(logit(hits / size))
    block = outer[block]
    is_edge = (np.diff(block, prepend=-1) > 0) | (np.diff(block, append=block[-1] + 1) > 0)
    return x[is_edge], value[block[is_edge]]


def _isotonic_blocks(values: Float, weight: Float) -> IntArray:
    """Number of the block to which isotonic regression assigns each value, (n,)."""
    fitted = isotonic_regression(values, sample_weight=weight)
    return np.cumsum(np.diff(fitted, prepend=fitted[0]) > 0).astype(np.int64)
