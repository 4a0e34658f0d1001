"""Temperature scaling: one temperature for all rows, or one per predicted class or group."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from hetcal._numeric.blocks import is_source
from hetcal._numeric.device import is_tensor
from hetcal._numeric.passes import temperature_errors
from hetcal._numeric.probabilities import LEAST_FLOOR
from hetcal._numeric.rows import decide
from hetcal._numeric.source import Source
from hetcal._numeric.temperatures import (
    TemperatureFit,
    fit_bayes,
    fit_coupled,
    fit_cross_validated,
    fit_one_temperature,
)
from hetcal._typing import BoolArray, Float, FloatArray
from hetcal._validate import check_bounds, check_gamma, check_integer, one_of
from hetcal._warnings import warn_at_bound, warn_never_predicted, warn_repeats
from hetcal.calibrators.base import Calibrator
from hetcal.calibrators.losses import LossName, check_loss, search_temperatures
from hetcal.export import maps
from hetcal.partition import Slices, slice_source

__all__ = [
    "ClassWiseTemperatureScaling",
    "Gamma",
    "Identity",
    "TemperatureScaling",
    "fit_temperatures",
    "name_whole_data",
    "refuse_std",
    "warn_slices_at_bound",
]

Gamma = float | Literal["cv", "bayes"]


class Identity(Calibrator):
    """``softmax(z)`` of the logits z: no calibration. If `probs` are passed, they are returned unchanged.

    Examples
    --------
    >>> Identity().fit([[0.0, 2.0], [1.0, -1.0]], [1, 0]).predict_proba([[3.0, 3.0]])
    array([[0.5, 0.5]])
    """

    preserves_decision = True

    def _fit(self, source: Source) -> None:
        """Do nothing, since the identity has no parameters."""

    def _map(self) -> maps.Map:
        return maps.Temperature(np.ones((1, 1)))

    def _predict_probs(self, p: FloatArray, groups: ArrayLike | None) -> FloatArray:  # noqa: ARG002
        return p.copy()

    def _export_floor(self) -> float:
        return LEAST_FLOOR


class _WithStandardErrors(Calibrator, register=False):
    """A calibrator whose ``_predict_with_std`` returns probabilities and their standard errors."""

    def predict_proba(
        self,
        logits: Any = None,
        *,
        probs: Any = None,
        groups: ArrayLike | None = None,
        class_names: ArrayLike | None = None,
        return_std: bool = False,
    ) -> Any:
        """Calibrated probabilities (n, K); with `return_std`, also their standard errors (n, K).

        With ``return_std=True``, the result is a tuple of two arrays, and the input must not be a tensor or
        batches. The standard errors reflect only the uncertainty of the temperatures.

        The arguments other than `return_std` are those of ``predict_proba`` of any calibrator.
        """
        predict = self._predict
        if return_std:
            refuse_std(*one_of(logits, probs))
            predict = self._predict_with_std
        return self._respond(predict, logits, probs, groups, class_names)

    def _predict_with_std(self, z: FloatArray, groups: ArrayLike | None) -> Any:
        raise NotImplementedError


class TemperatureScaling(_WithStandardErrors):
    """``softmax(α z)`` of the logits z, with one inverse temperature α for all rows.

    Parameters
    ----------
    alpha_bounds : (lower, upper), the range of α; both positive and finite
    loss : "nll", "brier" or "ece"
        "brier" and "ece" are minimised by a grid search with refinement.

    Attributes
    ----------
    alpha_ : float, the inverse temperature; ``T = 1 / alpha_``
    alpha_std_ : float, standard error of `alpha_`; nan if the loss is not "nll"
        Infinite if `alpha_` is at a bound, or if no row has two different logits. With `transition`,
        `alpha_` combines two estimates; see the notes of `fit`. If both have a positive weight, `alpha_std_`
        includes an estimate of the bias of `alpha_`.

    Examples
    --------
    >>> z = np.array([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    >>> cal = TemperatureScaling().fit(z, [0, 0, 1, 1])
    >>> round(cal.alpha_, 4)  # three of four are correct: sigmoid(2α) = 3/4
    0.5493
    """

    preserves_decision = True

    def __init__(self, alpha_bounds: tuple[float, float] = (0.01, 100.0), *, loss: LossName = "nll") -> None:
        self.alpha_bounds = alpha_bounds
        self.loss = loss

    def _fits_on_device(self) -> bool:
        return self.loss == "nll"

    def _fit(self, source: Source) -> None:
        bounds = check_bounds(self.alpha_bounds)
        if check_loss(self.loss) == "nll":
            self.alpha_, at_bound, self.alpha_std_ = fit_one_temperature(source, bounds)
        else:
            self.alpha_, at_bound = search_temperatures(source, self.loss, 0.0, bounds).alpha0, False
            self.alpha_std_ = float("nan")
        warn_at_bound(np.flatnonzero([at_bound]), name_whole_data, str(bounds))

    def _map(self) -> maps.Map:
        return self._map_by_slice(np.array([[float(self.alpha_)]]))

    def _map_by_slice(self, theta: Float, slices: Slices | None = None) -> maps.Map:
        return maps.Temperature(theta, slices)

    def _predict_with_std(self, z: FloatArray, groups: ArrayLike | None) -> Any:
        p = self._predict(z, groups)
        return p, temperature_errors(z, p, np.full(len(z), self.alpha_std_))


class ClassWiseTemperatureScaling(_WithStandardErrors):
    """``softmax(α_ŷ z)`` of the logits z, with one inverse temperature per predicted class ŷ.

    This is class-wise temperature scaling (CTS) of Zhao, Chen and Oymak (2020). For a numeric `gamma`, the
    NLL and labels without noise, the solution is exact: it minimises ``Σ_i NLL(softmax(α_{ŷ_i} z_i), y_i)``
    over all α_k and a shared centre α_0, subject to ``|α_k − α_0| ≤ Γ`` and the bounds. If `groups` are
    passed to `fit`, there is one temperature per group instead.

    Parameters
    ----------
    gamma : float, "cv" or "bayes"
        Γ: 0 is temperature scaling, inf calibrates each class separately. "cv" chooses Γ by cross-validated
        NLL. "bayes" shrinks log α_k towards a common mean, more strongly if the rows of class k determine α_k
        less precisely.
    alpha_bounds : (lower, upper)
        Range of every α; both bounds are positive and finite.
    bundles : int or (K,) integers, optional
        Bundles of classes that share a temperature: either the number of bundles, which
        :func:`hetcal.partition.bundle_classes` then forms, or the bundle of every class.
    loss : "nll", "brier" or "ece"
        "brier" and "ece" are minimised by a grid search and need a numeric `gamma`.
    cv : int
        Number of folds for ``gamma="cv"``.

    Attributes
    ----------
    alpha_ : (K,) inverse temperature of every class, or of every group
    alpha_std_ : (K,) standard errors of `alpha_`
        Infinite at a bound; nan if the loss is not "nll". Classes whose temperature is limited by Γ, and
        classes that were never predicted, have the standard error of a single temperature for all rows. With
        ``gamma="bayes"``, the values are posterior standard deviations.
    alpha0_ : float, the centre α_0, which is also used for classes that were never predicted
    gamma_ : float, the Γ that was used; with "bayes", the largest ``|α_k − α_0|``
    n_samples_ : (K,) number of rows predicted as each class, or of each group
    groups_ : group names in the order of `alpha_`, or None
    choice_ : dict, or None if `gamma` is a number
        With "cv", the values of Γ that were tried and their scores. With "bayes", the mean and the standard
        deviation of the prior of log α_k.

    Notes
    -----
    With `transition`, noise may explain all errors in a class, and its labels then hardly limit α. For
    Γ > 0, the loss of every class with noise therefore includes a pseudo-observation. It stands for an
    average row of the class, whose soft label is its vector of probabilities at the best single temperature.
    It counts as one row, or less if fewer than one wrong label is expected among the rows of the class. With
    "bayes", there are no pseudo-observations.

    Examples
    --------
    >>> z = np.array([[2.0, 0.0]] * 4 + [[0.0, 2.0]] * 5)
    >>> cal = ClassWiseTemperatureScaling().fit(z, [0, 0, 0, 1] + [1, 1, 1, 0, 0])
    >>> cal.predict_proba([[2.0, 0.0], [0.0, 2.0]]).round(4)  # class 0: 3 of 4 correct, class 1: 3 of 5
    array([[0.75, 0.25],
           [0.4 , 0.6 ]])
    """

    preserves_decision = True

    def __init__(
        self,
        gamma: Gamma = np.inf,
        alpha_bounds: tuple[float, float] = (0.01, 100.0),
        *,
        bundles: int | ArrayLike | None = None,
        loss: LossName = "nll",
        cv: int = 5,
    ) -> None:
        self.gamma = gamma
        self.alpha_bounds = alpha_bounds
        self.bundles = bundles
        self.loss = loss
        self.cv = cv

    def _fits_on_device(self) -> bool:
        return self.loss == "nll"

    def _fit(self, source: Source) -> None:
        bounds = check_bounds(self.alpha_bounds)
        slices, source = slice_source(source, self.bundles)
        fit = fit_temperatures(source, self.gamma, self.loss, bounds, self.cv)
        counts = source.counts()
        warn_never_predicted(np.flatnonzero(counts == 0), slices.name)
        warn_slices_at_bound(fit, counts > 0, slices, bounds)
        self.alpha_, self.alpha_std_, self.n_samples_ = fit.alpha, fit.error, counts
        if slices.bundles is not None:
            self.alpha_, self.alpha_std_ = fit.alpha[slices.bundles], fit.error[slices.bundles]
            self.n_samples_ = source.class_counts()
        self.alpha0_, self.gamma_, self.choice_ = fit.alpha0, fit.gamma, fit.choice
        self.groups_ = slices.groups

    def _map(self) -> maps.Temperature:
        alpha = np.asarray(self.alpha_, np.float64)
        return maps.Temperature(alpha[:, None], self._slices())

    @classmethod
    def _examples(cls) -> list[Self]:
        return [cls(), cls("cv", cv=2), cls("bayes", bundles=2)]

    def _predict_with_std(self, z: FloatArray, groups: ArrayLike | None) -> Any:
        guess = decide(z)
        p = self._map().predict(z, groups, guess)
        return p, temperature_errors(z, p, self.alpha_std_[self._slices().assign(guess, groups)])

    def _slices(self) -> Slices:
        return Slices(len(self.alpha_), groups=self.groups_)


def fit_temperatures(
    source: Source, gamma: Gamma, loss: LossName, bounds: tuple[float, float], cv: int
) -> TemperatureFit:
    """Fit the inverse temperatures of all slices (predicted classes, groups or bundles of classes).

    `gamma` is a number, "cv" or "bayes".
    """
    check_loss(loss)
    if not isinstance(gamma, str):
        number = check_gamma(gamma)
        if loss == "nll":
            return fit_coupled(source, number, bounds)
        return search_temperatures(source, loss, number, bounds)
    if gamma not in ("cv", "bayes"):
        raise ValueError(f"gamma must be a number, 'cv' or 'bayes', got {gamma!r}; pass one of them")
    if loss != "nll":
        raise ValueError(
            f"gamma must be a number for loss={loss!r}, got {gamma!r}; 'cv' and 'bayes' need loss='nll'"
        )
    if gamma == "bayes":
        return fit_bayes(source, bounds)
    fit = fit_cross_validated(source, bounds, check_integer(cv, "cv", minimum=2))
    warn_repeats(source.count_repeats(fit.alpha0))
    return fit


def warn_slices_at_bound(fit: TemperatureFit, fitted: BoolArray, slices: Slices, bounds: Any) -> None:
    """Warn about slices whose optimal α is at a bound; `fitted` (S,) marks the slices to consider."""
    at_bound = fit.at_bound & fitted
    can_tie = bool(np.isinf(fit.gamma) and (fitted & ~at_bound).any())
    warn_at_bound(np.flatnonzero(at_bound), slices.name, str(bounds), can_tie=can_tie)


def refuse_std(rows: Any, name: str) -> None:
    """Raise an error for batches and tensors, for which standard errors are not implemented."""
    if is_source(rows) or is_tensor(rows):
        raise TypeError(
            f"{name} must be an array for return_std, got {type(rows).__name__}; convert the rows to an array"
        )


def name_whole_data(_: int) -> str:
    """Name of the rows in warnings of calibrators that do not divide them into slices."""
    return "the whole data set"
