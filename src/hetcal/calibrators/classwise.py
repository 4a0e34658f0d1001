"""Algorithm 1 of the paper: a calibrator per slice, tied together by Γ; class-wise temperatures above all."""

from __future__ import annotations

import copy
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from hetcal._core.arrays import FloatArray, IntArray, check_logits
from hetcal._core.balls import minimise_coupled, minimise_pooled
from hetcal._core.kernels import decide, prepare, scaled_softmax
from hetcal._core.messages import warn_at_bound, warn_never_predicted
from hetcal._core.temperature import (
    TemperatureFit,
    TemperatureProblem,
    fit_bayes,
    fit_coupled,
    fit_cross_validated,
)
from hetcal.calibrators.families import PlattFamily, VectorFamily
from hetcal.calibrators.scaling import PlattScaling, TemperatureScaling, VectorScaling, check_bounds, check_fit
from hetcal.calibrators.search import LossName, check_loss, search_temperatures
from hetcal.partition import Slices, bundle_classes, learn_slices

__all__ = ["ClassWise", "ClassWiseTemperatureScaling"]

Gamma = float | Literal["cv", "bayes"]

_FEW = 20  # rows under which a slice of a base without parameters takes the pooled fit


class ClassWiseTemperatureScaling(BaseEstimator):  # type: ignore[misc]
    """``softmax(α_ŷ z)``: an inverse temperature for every predicted class, the paper's CTS.

    Minimises ``Σ_i NLL(softmax(α_{ŷ_i} z_i), y_i)`` subject to ``|α_k − α_0| ≤ Γ`` and to the bounds, exactly.
    With `groups` given to `fit`, a temperature for every group instead.

    Parameters
    ----------
    gamma : float, "cv" or "bayes"
        Γ: 0 gives temperature scaling, inf calibrates each class alone. "cv" picks Γ by cross-validated NLL;
        "bayes" shrinks log α_k to a common mean by how much each class knows about its own.
    alpha_bounds : (lower, upper)
        Range of every α; the paper's is (0, ∞).
    bundles : int or (K,) integers, optional
        Bundles of classes that share a temperature: how many (see :func:`hetcal.partition.bundle_classes`), or
        the bundle of every class.
    loss : "nll", "brier" or "ece"
        The latter two are searched on a grid and take a numeric `gamma` only.
    cv : int
        Folds for ``gamma="cv"``.

    Attributes
    ----------
    alpha_ : (K,) inverse temperature of every class, or of every group
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

    def fit(self, logits: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None) -> Self:
        """Find the inverse temperatures; `groups` (n,) slices the rows by group instead of by predicted class."""
        z, y, w = check_fit(logits, labels, sample_weight)
        bounds = check_bounds(self.alpha_bounds)
        slices, problem = _temperature_problem(z, y, w, groups, self.bundles)
        fit = _fit_temperatures(problem, self.gamma, self.loss, bounds, self.cv)
        counts = problem.counts()
        warn_never_predicted(np.flatnonzero(counts == 0), slices.name)
        warn_at_bound(np.flatnonzero(fit.at_bound & (counts > 0)), slices.name, str(bounds))
        self.alpha_, self.n_samples_ = fit.alpha, counts
        if slices.bundles is not None:
            self.alpha_ = fit.alpha[slices.bundles]
            self.n_samples_ = np.bincount(problem.rows.guess, minlength=z.shape[1])
        self.alpha0_, self.gamma_, self.choice_ = fit.alpha0, fit.gamma, fit.choice
        self.groups_ = slices.groups
        self.n_features_in_ = z.shape[1]
        return self

    def predict_proba(self, logits: ArrayLike, *, groups: ArrayLike | None = None) -> FloatArray:
        """Calibrated probabilities (n, K); `groups` where they were given to `fit`."""
        check_is_fitted(self)
        z = check_logits(logits, n_classes=self.n_features_in_)
        ids = Slices(len(self.alpha_), groups=self.groups_).assign(decide(z)[1], groups)
        return scaled_softmax(z, self.alpha_[ids])


class ClassWise(BaseEstimator):  # type: ignore[misc]
    """Algorithm 1 for any base: one calibrator per slice, kept within Γ of a shared one.

    Parameters
    ----------
    base : calibrator
        :class:`TemperatureScaling`, :class:`PlattScaling` and :class:`VectorScaling` have parameters, and
        ``‖C_k − C_0‖₂ ≤ Γ`` is solved to optimality. Any other object with ``fit(logits, labels)`` and
        ``predict_proba(logits)`` is fitted on each slice alone, which needs ``gamma=inf``, or pooled (0).
    gamma : float, or "cv" and "bayes" for :class:`TemperatureScaling`
    loss : "nll"; "brier" and "ece" for :class:`TemperatureScaling`
    min_samples : int, optional
        Slices with fewer rows take the pooled fit. Default: 1 for bases with parameters, 20 for others.
    bundles : int or (K,) integers, optional
        As in :class:`ClassWiseTemperatureScaling`.

    Attributes
    ----------
    parameters_ : (S, p) of every slice, or None for a base without parameters
    center_ : (p,) the shared parameters, or None
    calibrators_ : one fitted base per slice (the pooled one where rows were few), or None
    n_samples_ : (S,) rows of every slice
    slices_ : :class:`hetcal.partition.Slices`
    """

    def __init__(
        self,
        base: Any,
        gamma: Gamma = np.inf,
        loss: LossName = "nll",
        min_samples: int | None = None,
        *,
        bundles: int | ArrayLike | None = None,
    ) -> None:
        self.base = base
        self.gamma = gamma
        self.loss = loss
        self.min_samples = min_samples
        self.bundles = bundles

    @property
    def preserves_decision(self) -> bool:
        """Whether the argmax stays, which is up to the base."""
        return bool(getattr(self.base, "preserves_decision", False))

    def fit(self, logits: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None) -> Self:
        """Fit the base on every slice; `groups` (n,) slices the rows by group instead of by predicted class."""
        for needed in ("fit", "predict_proba"):
            if not callable(getattr(self.base, needed, None)):
                raise TypeError(f"base must have fit and predict_proba, got {self.base!r}; pass a calibrator object, not a class or a name")
        check_loss(self.loss)
        z, y, w = check_fit(logits, labels, sample_weight)
        self.slices_, problem = _temperature_problem(z, y, w, groups, self.bundles)
        self.n_samples_ = problem.counts()
        self.parameters_ = self.center_ = self.calibrators_ = None
        fitter = _FITTERS.get(type(self.base), _fit_clones)
        fitter(self, problem, y if w is None else y[w > 0])
        warn_never_predicted(np.flatnonzero(self.n_samples_ == 0), self.slices_.name)
        self.n_features_in_ = z.shape[1]
        return self

    def predict_proba(self, logits: ArrayLike, *, groups: ArrayLike | None = None) -> FloatArray:
        """Calibrated probabilities (n, K); `groups` where they were given to `fit`."""
        check_is_fitted(self)
        z = check_logits(logits, n_classes=self.n_features_in_)
        ids = self.slices_.assign(decide(z)[1], groups)
        if self.parameters_ is None:
            return _predict_clones(self.calibrators_, z, ids)
        if isinstance(self.base, TemperatureScaling):
            return scaled_softmax(z, self.parameters_[ids, 0])
        return _FAMILIES[type(self.base)].predict(z, self.parameters_, ids)

    def _few(self, default: int) -> NDArray[np.bool_]:
        least = default if self.min_samples is None else self.min_samples
        if not isinstance(least, int | np.integer) or least < 1:
            raise ValueError(f"min_samples must be a positive integer, got {self.min_samples!r}")
        return np.asarray(self.n_samples_ < least)


def _temperature_problem(
    z: FloatArray, y: IntArray, w: NDArray[np.float64] | None, groups: ArrayLike | None, bundles: int | ArrayLike | None
) -> tuple[Slices, TemperatureProblem]:
    table = _bundle_table(z, y, bundles)
    slices = learn_slices(z.shape[1], groups, len(z), table)
    rows = prepare(z, y, w)
    kept = None if groups is None or w is None else np.asarray(groups)[w > 0]
    ids = slices.assign(rows.guess, groups if kept is None else kept)
    return slices, TemperatureProblem(rows, ids, slices.n_slices)


def _bundle_table(z: FloatArray, y: IntArray, bundles: int | ArrayLike | None) -> IntArray | None:
    if bundles is None:
        return None
    table = np.asarray(bundles)
    if table.ndim == 0:
        return bundle_classes(z, y, table.item())
    if table.shape != (z.shape[1],) or table.dtype.kind not in "iu" or table.min() < 0:
        raise ValueError(f"bundles must be a number of bundles or one integer per class ({z.shape[1]}), got {bundles!r}")
    return np.unique(table, return_inverse=True)[1].astype(np.int64)


def _fit_temperatures(
    problem: TemperatureProblem, gamma: Gamma, loss: LossName, bounds: tuple[float, float], cv: int
) -> TemperatureFit:
    if isinstance(gamma, str):
        if gamma not in ("cv", "bayes"):
            raise ValueError(f"gamma must be a number, 'cv' or 'bayes', got {gamma!r}")
        if loss != "nll":
            raise ValueError(f"gamma must be a number for loss={loss!r}, got {gamma!r}; 'cv' and 'bayes' need loss='nll'")
        if gamma == "bayes":
            return fit_bayes(problem, bounds)
        if not isinstance(cv, int | np.integer) or cv < 2:
            raise ValueError(f"cv must be an integer, 2 or more, got {cv!r}")
        return fit_cross_validated(problem, bounds, int(cv))
    number = _check_gamma(gamma)
    if check_loss(loss) == "nll":
        return fit_coupled(problem, number, bounds)
    return search_temperatures(problem, loss, number, bounds)


def _check_gamma(gamma: Any) -> float:
    if isinstance(gamma, bool) or not isinstance(gamma, int | float | np.number) or np.isnan(gamma) or gamma < 0:
        raise ValueError(f"gamma must be zero or more (inf allowed), got {gamma!r}")
    return float(gamma)


def _fit_by_temperature(model: ClassWise, problem: TemperatureProblem, y: IntArray) -> None:  # noqa: ARG001
    bounds = check_bounds(model.base.alpha_bounds)
    fit = _fit_temperatures(problem, model.gamma, model.loss, bounds, 5)
    alpha = np.where(model._few(1), fit.alpha0, fit.alpha)
    warn_at_bound(np.flatnonzero(fit.at_bound & (alpha == fit.alpha) & (model.n_samples_ > 0)), model.slices_.name, str(bounds))
    model.parameters_, model.center_, model.gamma_ = alpha[:, None], np.array([fit.alpha0]), fit.gamma


def _fit_by_family(model: ClassWise, problem: TemperatureProblem, y: IntArray) -> None:
    family = _FAMILIES[type(model.base)]
    if isinstance(model.base, VectorScaling):
        family = VectorFamily(ridge=float(model.base.ridge))
    if model.loss != "nll":
        raise ValueError(f"loss must be 'nll' for {type(model.base).__name__}, got {model.loss!r}; other losses need TemperatureScaling")
    if isinstance(model.gamma, str):
        raise ValueError(f"gamma must be a number for {type(model.base).__name__}, got {model.gamma!r}; 'cv' and 'bayes' need TemperatureScaling")
    gamma = _check_gamma(model.gamma)
    rows, few = problem.rows, model._few(1)
    # Thin slices lie in the first problem, which finds the pooled fit, and not in the second.
    start = family.start(rows.z.shape[1])
    everything = family.evaluator(rows.z, y, rows.weight, np.zeros(len(rows), np.int64), 1)
    pooled = minimise_pooled(everything, 1, start)
    own = np.flatnonzero(~few & (model.n_samples_ > 0))
    place = np.full(problem.n_slices, -1)
    place[own] = np.arange(len(own))
    kept = place[problem.ids] >= 0
    evaluate = family.evaluator(rows.z[kept], y[kept], rows.weight[kept], place[problem.ids[kept]], len(own))
    centre, theta = minimise_coupled(evaluate, len(own), pooled, gamma) if own.size else (pooled, pooled[None][:0])
    model.parameters_ = np.tile(centre, (problem.n_slices, 1))
    model.parameters_[own] = theta
    model.center_, model.gamma_ = centre, gamma


def _fit_clones(model: ClassWise, problem: TemperatureProblem, y: IntArray) -> None:
    gamma = None if isinstance(model.gamma, str) else _check_gamma(model.gamma)
    if gamma not in (0.0, np.inf):
        raise ValueError(
            f"gamma must be inf or 0 for {type(model.base).__name__}, which has no parameters to tie, got {model.gamma!r}"
        )
    if model.loss != "nll":
        raise ValueError(f"loss must be 'nll' for {type(model.base).__name__}, which fits by a rule of its own, got {model.loss!r}")
    rows = problem.rows
    plain = bool(np.all(rows.weight == 1))

    def fitted(index: IntArray | slice) -> Any:
        made = _copy(model.base)
        weight = {} if plain else {"sample_weight": rows.weight[index]}
        made.fit(rows.z[index], y[index], **weight)
        return made

    pooled = fitted(slice(None))
    own = (model.n_samples_ > 0) & ~model._few(_FEW) & bool(gamma)
    model.calibrators_ = [
        fitted(np.flatnonzero(problem.ids == k)) if own[k] else pooled for k in range(problem.n_slices)
    ]
    model.gamma_ = gamma


def _copy(base: Any) -> Any:
    return clone(base) if hasattr(base, "get_params") else copy.deepcopy(base)


def _predict_clones(calibrators: list[Any], z: FloatArray, ids: IntArray) -> FloatArray:
    out = np.empty_like(z)
    for k in np.unique(ids):
        rows = np.flatnonzero(ids == k)
        out[rows] = calibrators[k].predict_proba(z[rows])
    return out


_FAMILIES: dict[type, Any] = {PlattScaling: PlattFamily(), VectorScaling: VectorFamily()}
_FITTERS: dict[type, Any] = {
    TemperatureScaling: _fit_by_temperature,
    PlattScaling: _fit_by_family,
    VectorScaling: _fit_by_family,
}
