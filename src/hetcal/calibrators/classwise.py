"""Algorithm 1 of the paper: a calibrator per slice, tied together by Γ; class-wise temperatures above all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from sklearn.base import clone

from hetcal._numeric.families import PlattFamily, family_evaluator
from hetcal._numeric.passes import top_margin
from hetcal._numeric.problems import Problem, TemperatureProblem
from hetcal._numeric.rows import Rows
from hetcal._numeric.shrinkage import fit_hierarchy
from hetcal._numeric.trust_region import minimise_coupled, minimise_pooled, without_error
from hetcal._typing import CodeArray, Float, IntArray
from hetcal._validate import check_bounds, check_flag, check_gamma
from hetcal._warnings import quiet, warn_never_predicted, warn_separable
from hetcal.calibrators.affine import PlattScaling, VectorScaling, anchored_family
from hetcal.calibrators.base import Calibrator, FitData, fit_step, map_of_step
from hetcal.calibrators.losses import LossName, check_loss
from hetcal.calibrators.slicing import Gamma, fit_temperatures, open_problem, warn_slices_at_bound
from hetcal.calibrators.temperature import TemperatureScaling
from hetcal.calibrators.toplabel import TopLabelHistogram, TopLabelIsotonic, fit_confidence
from hetcal.export import maps
from hetcal.export.maps import rows_by_slice
from hetcal.partition import Slices

__all__ = [
    "ClassWise",
]


_FEW = 20  # rows under which a slice of a base without parameters takes the pooled fit
_MOST_BYTES = 1 << 31  # of Hessians held at once


class ClassWise(Calibrator):
    """Algorithm 1 for any base: one calibrator per slice, kept within Γ of a shared one.

    Parameters
    ----------
    base : calibrator
        :class:`TemperatureScaling`, :class:`PlattScaling` and :class:`VectorScaling` have parameters, and
        ``‖C_k − C_0‖₂ ≤ Γ`` is solved to optimality. Any other object with ``fit(logits, labels)`` and
        ``predict_proba(logits)`` is fitted on each slice alone, which needs ``gamma=inf``, or pooled (0).
    gamma : float, or "cv" and "bayes" for :class:`TemperatureScaling`, "bayes" for :class:`PlattScaling`
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
    gamma_ : float, the Γ used
    choice_ : how Γ was chosen (grid and scores, or mean and spread), or None
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

    def _fits_on_device(self) -> bool:
        return isinstance(self.base, TemperatureScaling) and self.loss == "nll"

    def _needs_memory(self) -> bool:
        return type(self.base) not in _FITTERS and hasattr(self.base, "predict_proba")

    def _fit(self, data: FitData) -> None:
        if isinstance(self.base, type) or not all(
            callable(getattr(self.base, needed, None)) for needed in ("fit", "predict_proba")
        ):
            raise TypeError(
                f"base must have fit and predict_proba, got {self.base!r}; "
                "pass a calibrator object, not a class or a name"
            )
        check_loss(self.loss)
        slices, problem = open_problem(data, self.bundles)
        learned = _FITTERS.get(type(self.base), _fit_clones)(self, problem, slices, data.n_classes)
        counts = problem.counts()
        warn_never_predicted(np.flatnonzero(counts == 0), slices.name)
        self.slices_, self.n_samples_ = slices, counts
        self.parameters_, self.center_ = learned.parameters, learned.center
        self.calibrators_ = learned.calibrators
        self.gamma_, self.choice_ = learned.gamma, learned.choice

    def _map(self) -> maps.Map:
        if self.parameters_ is None:
            return maps.PerSlice(tuple(map(map_of_step, self.calibrators_ or [])), self.slices_)
        by_slice: maps.Map = self.base._map_by_slice(np.asarray(self.parameters_, np.float64), self.slices_)
        return by_slice

    @classmethod
    def _examples(cls) -> list[Self]:
        platt = [cls(PlattScaling(), 1.0), cls(PlattScaling(pool=True), "bayes", bundles=2)]
        vector = cls(VectorScaling(0.1, keep_decision=True), bundles=2)
        return [cls(TemperatureScaling(), 0.3), *platt, vector, cls(TopLabelIsotonic())]


@dataclass(frozen=True)
class _Learned:
    """What a fit leaves: parameters of every slice and their centre, or a calibrator for every slice."""

    gamma: float
    parameters: Float | None = None
    center: Float | None = None
    calibrators: list[Any] | None = None
    choice: dict[str, Any] | None = None


def _fit_by_temperature(model: ClassWise, problem: Problem, slices: Slices, n_classes: int) -> _Learned:  # noqa: ARG001
    bounds = check_bounds(model.base.alpha_bounds)
    if model.base.loss not in ("nll", model.loss):
        raise ValueError(
            f"loss must be that of the base ({model.base.loss!r}), got {model.loss!r}; "
            "set it on ClassWise, which does the fitting"
        )
    few = _thin(model, problem, 1)
    fit = fit_temperatures(problem, model.gamma, model.loss, bounds, 5)
    alpha = np.where(few, fit.alpha0, fit.alpha)
    warn_slices_at_bound(fit, ~few & (problem.counts() > 0), slices, bounds)
    return _Learned(fit.gamma, alpha[:, None], np.array([fit.alpha0]), choice=fit.choice)


def _fit_by_family(model: ClassWise, problem: Problem, slices: Slices, n_classes: int) -> _Learned:
    vector = isinstance(model.base, VectorScaling)
    _check_base(model.base, vector)
    shrunk = isinstance(model.gamma, str) and model.gamma == "bayes" and not vector
    gamma = np.inf if shrunk else _plain_gamma(model, "has no such fit; use TemperatureScaling")
    family = anchored_family(problem, model.base.ridge) if vector else PlattFamily()
    # Thin slices lie in the first problem, which finds the pooled fit, and not in the second.
    start = family.start(n_classes)
    own = np.flatnonzero(~_thin(model, problem, 1))
    if len(own) * start.size**2 * 8 > _MOST_BYTES:
        raise ValueError(
            f"base must have fewer parameters, got {len(own)} slices with {start.size} each, whose Hessians "
            "do not fit; use bundles, or a base with two parameters such as PlattScaling()"
        )
    can_shrink = vector and not model.base.ridge
    everything = family_evaluator(family, problem, np.zeros(problem.n_slices, np.int64))
    total, least = problem.weights()
    pooled, loss = minimise_pooled(everything, np.array([total]), start)
    if np.isfinite(gamma):
        whole = np.flatnonzero([without_error(loss, least)])
        warn_separable(whole, lambda _: "the whole data set", can_shrink=can_shrink)
    parameters, centre, choice = np.tile(pooled, (problem.n_slices, 1)), pooled, None
    if own.size:
        place = np.full(problem.n_slices, -1)
        place[own] = np.arange(len(own))
        evaluate = family_evaluator(family, problem, place)
        mass = problem.slice_weights()[own]
        if shrunk:
            found = fit_hierarchy(evaluate, mass, start)
            centre, theta = found.centre, found.theta
            gamma = float(np.linalg.norm(theta - centre, axis=1).max())
            choice = {"mean": centre.tolist(), "spread": found.spread.tolist()}
        else:
            centre, theta = minimise_coupled(evaluate, mass, pooled, gamma)
        parameters[:], parameters[own] = centre, theta
        if np.isinf(gamma):
            losses = evaluate(theta, np.arange(len(own)))[0]
            perfect = np.array([without_error(value, least) for value in losses])
            can_tie = not perfect.all()
            warn_separable(own[perfect], slices.name, can_tie=can_tie, can_shrink=can_shrink)
    return _Learned(gamma, parameters, centre, choice=choice)


def _check_base(base: Any, vector: bool) -> None:
    for name in ("keep_decision", "center") if vector else ("pool",):
        check_flag(getattr(base, name), name)
    if vector and base.center:
        raise ValueError(
            "base must be VectorScaling(center=False), got center=True; centre the logits yourself"
        )


def _fit_clones(model: ClassWise, problem: Problem, slices: Slices, n_classes: int) -> _Learned:  # noqa: ARG001
    problem = cast("TemperatureProblem", problem)  # since such a fit needs its rows in memory
    gamma = _plain_gamma(model, "fits by a rule of its own")
    if gamma not in (0.0, np.inf):
        raise ValueError(
            f"gamma must be inf or 0 for {type(model.base).__name__}, which has no parameters to tie, "
            f"got {model.gamma!r}"
        )
    own = ~_thin(model, problem, _FEW) & bool(gamma)
    return _Learned(gamma, calibrators=fit_clones(model.base, problem.rows, problem.ids, own))


def _plain_gamma(model: ClassWise, why: str) -> float:
    """Γ as a number, for a base that knows no other loss than its own."""
    name = type(model.base).__name__
    if model.loss != "nll":
        raise ValueError(f"loss must be 'nll' for {name}, which {why}, got {model.loss!r}")
    if isinstance(model.gamma, str):
        raise ValueError(
            f"gamma must be a number for {name}, got {model.gamma!r}; TemperatureScaling (--method cts) "
            "takes 'cv' and 'bayes', PlattScaling (--method classwise-platt) takes 'bayes'"
        )
    return check_gamma(model.gamma)


def _thin(model: ClassWise, problem: Problem, default: int) -> NDArray[np.bool_]:
    """Slices with too few rows for a fit of their own."""
    least = default if model.min_samples is None else model.min_samples
    if isinstance(least, bool) or not isinstance(least, int | np.integer) or least < 1:
        raise ValueError(f"min_samples must be a positive integer, got {model.min_samples!r}")
    return np.asarray(problem.counts() < least)


def fit_clones(base: Any, rows: Rows, ids: CodeArray, own: NDArray[np.bool_]) -> list[Any]:
    """Fit a copy of `base` on the rows of every slice in `own`, and one on all rows for the other slices."""
    fit = _fitter(base, rows)
    pooled = None if own.all() else fit(np.arange(len(rows)))  # copies: a base may write to them
    parts = rows_by_slice(ids, len(own))
    with quiet():  # a slice has few rows by nature
        return [fit(part) if alone else pooled for part, alone in zip(parts, own, strict=True)]


def _fitter(base: Any, rows: Rows) -> Callable[[IntArray], Any]:
    """Return a function from row numbers to a calibrator that was fitted on them."""
    if type(base) in (TopLabelIsotonic, TopLabelHistogram):  # all that they need of a row is computed once
        confidence = expit(top_margin(rows.z)[0])

        def fit_top(index: IntArray) -> Any:
            fitted = clone(base)
            fit_confidence(fitted, confidence[index], rows.right[index], rows.weight[index])
            fitted.n_features_in_ = rows.z.shape[1]
            return fitted

        return fit_top

    return lambda index: fit_step(base, FitData(rows.take(index)))


_FITTERS: dict[type, Callable[[ClassWise, Problem, Slices, int], _Learned]] = {
    TemperatureScaling: _fit_by_temperature,
    PlattScaling: _fit_by_family,
    VectorScaling: _fit_by_family,
}
