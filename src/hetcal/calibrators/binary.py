"""Calibration of two-class models by a smooth function of the log-odds."""

from __future__ import annotations

from typing import ClassVar, Literal, Self, get_args

import numpy as np

from hetcal._numeric.binary import FEATURES, Basis, LogOdds, fit_basis, merge_rows
from hetcal._numeric.clipping import fit_clipped
from hetcal._numeric.source import Source
from hetcal._typing import Float
from hetcal._validate import check_choice, check_flag
from hetcal.calibrators.base import Calibrator
from hetcal.export import maps

__all__ = ["BinaryScaling"]

_Features = Literal["linear", "quadratic", "beta", "spline"]


class BinaryScaling(Calibrator):
    """``sigmoid(f(x))`` for class 1 of two classes, where f is a smooth function of the log-odds x.

    x is ``α (z₁ − z₀)``, where α is the best single inverse temperature. It is clipped to
    ``±log(2n + 1)``, where n is the number of rows (the effective sample size if they have weights), so that
    probabilities of exactly 0 and 1 do not dominate the fit. f is the identity plus penalised features. The
    penalties are chosen from the data (empirical Bayes), so f stays close to the identity if there are few
    rows, and rows that are separable or have only one label give finite parameters. Decisions may change
    unless `keep_decision` is True. The two classes are treated alike.

    Parameters
    ----------
    features : "linear", "quadratic", "beta" or "spline"
        The features of f besides a bias.

        "linear": x, as in Platt scaling of a two-class model.

        "quadratic": x and x².

        "beta": x and ``log(1 + e^x) + log(1 + e^−x)``. These are the features of beta calibration (Kull et
        al., 2017): they span the same functions as log p and log(1 − p).

        "spline": those of "beta", and smooth versions of ``|x − κ|`` with up to 8 knots κ at quantiles of x.
    keep_decision : bool
        Whether to preserve the predicted class by clipping f(x) at 0. The probability of the predicted class
        is then at least 1/2.

    Attributes
    ----------
    alpha_ : float, α
    limit_ : float, x is clipped to ±limit
        It is smaller than ``log(2n + 1)`` if some probabilities are below about 1e-12 and clipping them
        lowers the NLL of one temperature clearly.
    coefficients_ : dict, coefficients of f by feature
        The keys are "linear" and "bias" and, depending on `features`, "quadratic", "beta" and "spline":
        ``f(x) = bias + linear · x + quadratic · x² + beta · s(x, 0, 1) + Σ_j spline_j · s(x, κ_j, h)`` with
        ``s(x, κ, h) = h log(1 + e^t) + h log(1 + e^−t)``, ``t = (x − κ)/h``. "spline" is an array (m,).
    knots_ : (m,) array, the knots κ; empty unless `features` is "spline"
    width_ : float, the width h of the spline's features
    scales_ : dict with the keys of `coefficients_`: standard deviations of the coefficients' normal priors
        They refer to features that are scaled to mean 0 and standard deviation 1 (except the constant). The
        priors are centred at the identity.

    Notes
    -----
    Since f depends on a single number per row, rows with the same label and nearly equal x are merged before
    f is fitted. Near the mean of x, rows are merged if their x differ by at most about 1e-4 standard
    deviations. The knots are quantiles of the merged rows. This makes fits fast: rows in batches are read
    only two more times than for one temperature. Up to rounding errors, the result is the same for arrays,
    batches and Dask.

    Examples
    --------
    Probabilities that are too extreme on one side only:

    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(scale=2, size=4000)
    >>> y = rng.random(4000) < 1 / (1 + np.exp(-np.where(x > 0, x, x / 4)))
    >>> cal = BinaryScaling().fit(np.stack([-x, x], axis=1) / 2, y.astype(int))
    >>> cal.predict_proba([[1.0, -1.0], [-1.0, 1.0]])[:, 1].round(2)  # ideally 0.38 and 0.88
    array([0.37, 0.87])
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
        family = check_choice(self.features, "features", FEATURES)
        check_flag(self.keep_decision, "keep_decision")
        if source.n_classes != self._required_classes:
            raise ValueError(
                f"logits must have 2 columns for BinaryScaling, got {source.n_classes}; "
                "use MatrixScaling or VectorScaling"
            )
        self.alpha_, clip = fit_clipped(source)
        self.limit_ = min(clip, float(np.log(2 * source.slice_weights().sum() + 1)))
        rows = merge_rows(source, LogOdds(self.alpha_, self.limit_))
        basis = Basis.of(rows, family)
        coefficients, fit = fit_basis(basis, rows)
        by_group = (coefficients[basis.groups == group] for group in range(len(basis.names)))
        self.coefficients_ = {
            name: values if name == "spline" else float(values[0])
            for name, values in zip(basis.names, by_group, strict=True)
        }
        self.knots_, self.width_ = basis.knots, basis.width
        self.scales_ = dict(zip(basis.names, (fit.precision**-0.5).tolist(), strict=True))

    def _map(self) -> maps.Map:
        coefficients = self.coefficients_
        polynomial = [coefficients.get(name, 0.0) for name in ("bias", "linear", "quadratic")]
        knots, widths = np.asarray(self.knots_, np.float64), np.full(len(self.knots_), self.width_)
        weights: Float = np.asarray(coefficients.get("spline", np.empty(0)), np.float64)
        if "beta" in coefficients:
            knots, widths = np.append(0.0, knots), np.append(1.0, widths)
            weights = np.append(coefficients["beta"], weights)
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
