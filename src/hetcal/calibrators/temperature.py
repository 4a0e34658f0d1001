"""Temperature scaling: for all rows alike, and class by class."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from hetcal._numeric.blocks import is_source
from hetcal._numeric.device import is_tensor
from hetcal._numeric.passes import temperature_errors
from hetcal._numeric.probabilities import LEAST_FLOOR
from hetcal._numeric.rows import decide
from hetcal._numeric.temperatures import fit_pooled_with_error
from hetcal._typing import Float, FloatArray
from hetcal._validate import check_bounds
from hetcal._warnings import warn_at_bound, warn_never_predicted
from hetcal.calibrators.base import Calibrator, FitData
from hetcal.calibrators.losses import LossName, check_loss, search_temperatures
from hetcal.calibrators.slicing import Gamma, fit_temperatures, open_problem, warn_slices_at_bound
from hetcal.export import maps
from hetcal.partition import Slices

__all__ = ["ClassWiseTemperatureScaling", "Identity", "TemperatureScaling", "everything", "refuse_std"]


class Identity(Calibrator):
    """``softmax(z)``: the uncalibrated row of every table. Probabilities stay as they are.

    Examples
    --------
    >>> Identity().fit([[0.0, 2.0], [1.0, -1.0]], [1, 0]).predict_proba([[3.0, 3.0]])
    array([[0.5, 0.5]])
    """

    preserves_decision = True

    def _fit(self, data: FitData) -> None:
        """Learn nothing."""

    def _map(self) -> maps.Map:
        return maps.Temperature(np.ones((1, 1)))

    def _predict_probs(self, p: FloatArray, groups: ArrayLike | None) -> FloatArray:  # noqa: ARG002
        return p.copy()

    def _export_floor(self) -> float:
        return LEAST_FLOOR


class TemperatureScaling(Calibrator):
    """``softmax(α z)`` with one inverse temperature for all rows.

    Parameters
    ----------
    alpha_bounds : (lower, upper), both positive
    loss : "nll", or "brier" and "ece", which are searched on a grid and refined

    Attributes
    ----------
    alpha_ : float, the inverse temperature; ``T = 1 / alpha_``
    alpha_std_ : float, its standard error (infinite at a bound, nan for losses other than "nll")

    Examples
    --------
    >>> z = np.array([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    >>> cal = TemperatureScaling().fit(z, [0, 0, 1, 1])
    >>> round(cal.alpha_, 4)  # three of four are right: sigmoid(2α) = 3/4
    0.5493
    """

    preserves_decision = True

    def __init__(self, alpha_bounds: tuple[float, float] = (0.01, 100.0), *, loss: LossName = "nll") -> None:
        self.alpha_bounds = alpha_bounds
        self.loss = loss

    def _fits_on_device(self) -> bool:
        return self.loss == "nll"

    def _fit(self, data: FitData) -> None:
        bounds = check_bounds(self.alpha_bounds)
        nll = check_loss(self.loss) == "nll"
        _, problem = open_problem(data, sliced=False)
        if nll:
            self.alpha_, at_bound, self.alpha_std_ = fit_pooled_with_error(problem, bounds)
        else:
            self.alpha_, at_bound = search_temperatures(problem, self.loss, 0.0, bounds).alpha0, False
            self.alpha_std_ = float("nan")
        warn_at_bound(np.flatnonzero([at_bound]), everything, str(bounds))

    def predict_proba(
        self,
        logits: Any = None,
        *,
        probs: Any = None,
        groups: ArrayLike | None = None,
        class_names: ArrayLike | None = None,
        return_std: bool = False,
    ) -> Any:
        """Calibrated probabilities (n, K); with `return_std` also their standard errors (n, K).

        Other parameters are those of all calibrators.
        """
        predict = self._predict
        if return_std:
            refuse_std(probs if logits is None else logits)
            predict = self._predict_with_std
        return self._respond(predict, logits, probs, groups, class_names)

    def _map(self) -> maps.Map:
        return self._map_by_slice(np.array([[float(self.alpha_)]]))

    def _map_by_slice(self, theta: Float, slices: Slices | None = None) -> maps.Map:
        return maps.Temperature(theta, slices)

    def _predict_with_std(self, z: FloatArray, groups: ArrayLike | None) -> Any:
        p = self._predict(z, groups)
        return p, temperature_errors(z, p, np.full(len(z), self.alpha_std_))


class ClassWiseTemperatureScaling(Calibrator):
    """``softmax(α_ŷ z)``: an inverse temperature for every predicted class, the paper's CTS.

    Minimises ``Σ_i NLL(softmax(α_{ŷ_i} z_i), y_i)`` subject to ``|α_k − α_0| ≤ Γ`` and the bounds, exactly.
    With `groups` given to `fit`, a temperature for every group instead.

    Parameters
    ----------
    gamma : float, "cv" or "bayes"
        Γ: 0 gives temperature scaling, inf calibrates each class alone. "cv" picks Γ by cross-validated NLL;
        "bayes" shrinks log α_k to a common mean by how much each class knows about its own.
    alpha_bounds : (lower, upper)
        Range of every α; the paper's is (0, ∞).
    bundles : int or (K,) integers, optional
        Bundles of classes that share a temperature: how many (see :func:`hetcal.partition.bundle_classes`),
        or the bundle of every class.
    loss : "nll", "brier" or "ece"
        The latter two are searched on a grid and take a numeric `gamma` only.
    cv : int
        Folds for ``gamma="cv"``.

    Attributes
    ----------
    alpha_ : (K,) inverse temperature of every class, or of every group
    alpha_std_ : (K,) their standard errors (infinite at a bound), of the posterior with ``gamma="bayes"``;
        where Γ holds a class back, that of all rows together; nan for losses other than "nll"
    alpha0_ : float, the centre; classes that were never predicted have it
    gamma_ : float, the Γ used
    n_samples_ : (K,) rows behind each entry of `alpha_`
    groups_ : group names in the order of `alpha_`, or None
    choice_ : how Γ was chosen (grid and scores, or mean and spread), or None

    Examples
    --------
    >>> z = np.array([[2.0, 0.0]] * 4 + [[0.0, 2.0]] * 5)
    >>> cal = ClassWiseTemperatureScaling().fit(z, [0, 0, 0, 1] + [1, 1, 1, 0, 0])
    >>> cal.predict_proba([[2.0, 0.0], [0.0, 2.0]]).round(4)  # class 0: 3 of 4 right, class 1: 3 of 5
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

    def _fit(self, data: FitData) -> None:
        bounds = check_bounds(self.alpha_bounds)
        slices, problem = open_problem(data, self.bundles)
        fit = fit_temperatures(problem, self.gamma, self.loss, bounds, self.cv)
        counts = problem.counts()
        warn_never_predicted(np.flatnonzero(counts == 0), slices.name)
        warn_slices_at_bound(fit, counts > 0, slices, bounds)
        self.alpha_, self.alpha_std_, self.n_samples_ = fit.alpha, fit.error, counts
        if slices.bundles is not None:
            self.alpha_, self.alpha_std_ = fit.alpha[slices.bundles], fit.error[slices.bundles]
            self.n_samples_ = problem.class_counts(len(slices.bundles))
        self.alpha0_, self.gamma_, self.choice_ = fit.alpha0, fit.gamma, fit.choice
        self.groups_ = slices.groups

    def predict_proba(
        self,
        logits: Any = None,
        *,
        probs: Any = None,
        groups: ArrayLike | None = None,
        class_names: ArrayLike | None = None,
        return_std: bool = False,
    ) -> Any:
        """Calibrated probabilities (n, K); `groups` where they were given to `fit`.

        With `return_std` also their standard errors (n, K), from those of the temperatures alone. Other
        parameters are those of all calibrators.
        """
        predict = self._predict
        if return_std:
            refuse_std(probs if logits is None else logits)
            predict = self._predict_with_std
        return self._respond(predict, logits, probs, groups, class_names)

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


def refuse_std(rows: Any) -> None:
    """Refuse rows that are no array, for which there are no standard errors."""
    if is_source(rows) or is_tensor(rows):
        raise TypeError(
            f"logits must be an array for return_std, got {type(rows).__name__}; take some rows as an array"
        )


def everything(_: int) -> str:
    """Name of the only slice of a calibrator that treats all rows alike."""
    return "the whole data set"
