"""Class-wise calibration with any base calibrator: one calibrator per slice of the rows.

A slice contains the rows of one predicted class, of one group or of one bundle of classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit
from sklearn.base import clone

from hetcal._numeric.families import Family, PlattFamily
from hetcal._numeric.passes import top_margin
from hetcal._numeric.platt import fit_platt
from hetcal._numeric.rows import Rows
from hetcal._numeric.shrinkage import fit_hierarchy
from hetcal._numeric.source import MemorySource, Source
from hetcal._numeric.trust_region import is_error_free, minimise_coupled, minimise_pooled
from hetcal._typing import BoolArray, CodeArray, Float, IntArray
from hetcal._validate import check_bounds, check_flag, check_gamma, check_integer
from hetcal._warnings import quiet, warn_never_predicted, warn_separable
from hetcal.calibrators.affine import PlattScaling, VectorScaling, anchored_family
from hetcal.calibrators.base import Calibrator, fit_step, map_of_step
from hetcal.calibrators.losses import LossName, check_loss
from hetcal.calibrators.temperature import (
    Gamma,
    TemperatureScaling,
    fit_temperatures,
    name_whole_data,
    warn_slices_at_bound,
)
from hetcal.calibrators.toplabel import TopLabelHistogram, TopLabelIsotonic
from hetcal.export import maps
from hetcal.export.maps import rows_by_slice
from hetcal.partition import Slices, slice_source

__all__ = ["ClassWise"]

_MIN_ROWS = 20  # default of `min_samples` for bases whose class is not in `_FITTERS`
_MAX_HESSIAN_BYTES = 1 << 31


class ClassWise(Calibrator):
    """One calibrator per slice of the rows, for any base calibrator.

    The slices are the predicted classes, the groups that are passed to `fit`, or bundles of classes. This is
    Algorithm 1 of Zhao, Chen and Oymak (2020).

    Parameters
    ----------
    base : calibrator
        For :class:`TemperatureScaling`, :class:`PlattScaling` and :class:`VectorScaling`, the loss is
        minimised over the parameters C_k of all slices and shared parameters C_0, subject to
        ``‖C_k − C_0‖₂ ≤ Γ`` (unless `gamma` is "bayes"). Any other object with ``fit(logits, labels)`` and
        ``predict_proba(logits)`` is fitted on each slice separately (``gamma=inf``) or on all rows
        (``gamma=0``).
    gamma : float, "cv" or "bayes"
        Γ, or how to choose it, as in :class:`ClassWiseTemperatureScaling`. "cv" needs the base
        :class:`TemperatureScaling`; "bayes" needs :class:`TemperatureScaling` or :class:`PlattScaling`.
    loss : "nll", "brier" or "ece"
        "brier" and "ece" need the base :class:`TemperatureScaling`.
    min_samples : int, optional
        Slices with fewer rows use the shared parameters, or the base fitted on all rows. The default is 1
        for the three classes named under `base` and 20 for others.
    bundles : int or (K,) integers, optional
        As in :class:`ClassWiseTemperatureScaling`.

    Attributes
    ----------
    parameters_ : (S, p) array, or None
        Parameters of every slice if the base is one of the three classes named under `base`, otherwise None.
    center_ : (p,) the shared parameters, or None if `parameters_` is None
    calibrators_ : one fitted base per slice, or None if `parameters_` is not None
        Slices with fewer rows than `min_samples`, and all slices if Γ is 0, have the base fitted on all rows.
    gamma_ : float, the Γ that was used; with "bayes", an upper bound of ``‖C_k − C_0‖₂``
    choice_ : dict or None
        With "cv", the values of Γ that were tried and their scores. With "bayes", the mean and the
        standard deviation of the prior of log α or, for :class:`PlattScaling`, the mean and the covariance
        matrix of the prior of the parameters. None if `gamma` is a number or, for :class:`PlattScaling`, if
        all slices have too few rows.
    n_samples_ : (S,) number of rows of every slice
    slices_ : :class:`hetcal.partition.Slices`, which assigns rows to slices
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
        """Whether the base preserves the argmax."""
        return bool(getattr(self.base, "preserves_decision", False))

    def _fits_on_device(self) -> bool:
        return isinstance(self.base, TemperatureScaling) and self.loss == "nll"

    def _needs_memory(self) -> bool:
        return type(self.base) not in _FITTERS and hasattr(self.base, "predict_proba")

    def _fit(self, source: Source) -> None:
        if isinstance(self.base, type) or not all(
            callable(getattr(self.base, method, None)) for method in ("fit", "predict_proba")
        ):
            raise TypeError(
                f"base must have fit and predict_proba, got {self.base!r}; "
                "pass a calibrator object, not a class or a name"
            )
        check_loss(self.loss)
        slices, source = slice_source(source, self.bundles)
        fit = _FITTERS.get(type(self.base), _fit_clones)(self, source, slices)
        counts = source.counts()
        warn_never_predicted(np.flatnonzero(counts == 0), slices.name)
        self.slices_, self.n_samples_ = slices, counts
        self.parameters_, self.center_ = fit.parameters, fit.center
        self.calibrators_ = fit.calibrators
        self.gamma_, self.choice_ = fit.gamma, fit.choice

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
class _SliceFit:
    """Result of a fit: either the parameters of every slice and their centre, or a calibrator per slice."""

    gamma: float
    parameters: Float | None = None
    center: Float | None = None
    calibrators: list[Any] | None = None
    choice: dict[str, Any] | None = None


def _fit_temperature(model: ClassWise, source: Source, slices: Slices) -> _SliceFit:
    bounds = check_bounds(model.base.alpha_bounds)
    if check_loss(model.base.loss) not in ("nll", model.loss):
        raise ValueError(
            f"loss must be that of the base ({model.base.loss!r}), got {model.loss!r}; "
            f"pass loss={model.base.loss!r} to ClassWise"
        )
    thin = _is_thin(model, source, 1)
    fit = fit_temperatures(source, model.gamma, model.loss, bounds, 5)
    alpha = np.where(thin, fit.alpha0, fit.alpha)
    warn_slices_at_bound(fit, ~thin & (source.counts() > 0), slices, bounds)
    return _SliceFit(fit.gamma, alpha[:, None], np.array([fit.alpha0]), choice=fit.choice)


def _fit_platt(model: ClassWise, source: Source, slices: Slices) -> _SliceFit:
    check_flag(model.base.pool, "pool")
    if isinstance(model.gamma, str) and model.gamma == "bayes":
        return _fit_platt_bayes(model, source)
    gamma = _numeric_gamma(model, "supports no other loss", "; use TemperatureScaling for other losses")
    return _fit_coupled(model, source, slices, PlattFamily(), gamma, can_shrink=False)


def _fit_vector(model: ClassWise, source: Source, slices: Slices) -> _SliceFit:
    for name in ("keep_decision", "center"):
        check_flag(getattr(model.base, name), name)
    if model.base.center:
        raise ValueError(
            "base must be VectorScaling(center=False), got center=True; "
            "subtract the mean of each row of logits yourself"
        )
    gamma = _numeric_gamma(model, "supports no other loss", "; use TemperatureScaling for other losses")
    family = anchored_family(source, model.base.ridge)
    return _fit_coupled(model, source, slices, family, gamma, can_shrink=not model.base.ridge)


def _fit_platt_bayes(model: ClassWise, source: Source) -> _SliceFit:
    family = PlattFamily()
    separate = np.flatnonzero(~_is_thin(model, source, 1))
    if not separate.size:
        pooled, _ = _fit_pooled(source, family)
        return _SliceFit(np.inf, np.tile(pooled, (source.n_slices, 1)), pooled)
    evaluate = source.family_evaluator(family, _positions(separate, source.n_slices))
    fit = fit_hierarchy(evaluate, source.slice_weights()[separate], family.start(source.n_classes))
    parameters = np.tile(fit.centre, (source.n_slices, 1))
    parameters[separate] = fit.theta
    gamma = float(np.linalg.norm(fit.theta - fit.centre, axis=1).max())
    choice = {"mean": fit.centre.tolist(), "spread": fit.spread.tolist()}
    return _SliceFit(gamma, parameters, fit.centre, choice=choice)


def _fit_coupled(
    model: ClassWise, source: Source, slices: Slices, family: Family, gamma: float, *, can_shrink: bool
) -> _SliceFit:
    """Fit each slice that has enough rows, within Γ of a shared centre; other slices receive the centre."""
    n_parameters = family.start(source.n_classes).size
    separate = np.flatnonzero(~_is_thin(model, source, 1))
    if len(separate) * n_parameters**2 * 8 > _MAX_HESSIAN_BYTES:
        raise ValueError(
            f"base must have fewer parameters, got {len(separate)} slices with {n_parameters} each, whose "
            "Hessians need more than 2 GiB; use bundles of classes, or PlattScaling() as base"
        )
    pooled, loss = _fit_pooled(source, family)
    _, min_weight = source.weights()
    if np.isfinite(gamma):
        separable = np.flatnonzero([is_error_free(loss, min_weight)])
        warn_separable(separable, name_whole_data, can_shrink=can_shrink)
    if not separate.size:
        return _SliceFit(gamma, np.tile(pooled, (source.n_slices, 1)), pooled)
    evaluate = source.family_evaluator(family, _positions(separate, source.n_slices))
    centre, theta = minimise_coupled(evaluate, source.slice_weights()[separate], pooled, gamma)
    parameters = np.tile(centre, (source.n_slices, 1))
    parameters[separate] = theta
    if np.isinf(gamma):
        losses = evaluate(theta, np.arange(len(separate)))[0]
        error_free = np.array([is_error_free(value, min_weight) for value in losses])
        can_tie = not error_free.all()
        warn_separable(separate[error_free], slices.name, can_tie=can_tie, can_shrink=can_shrink)
    return _SliceFit(gamma, parameters, centre)


def _fit_pooled(source: Source, family: Family) -> tuple[Float, float]:
    """Parameters (p,) fitted to all rows together, and the loss summed over the rows."""
    if isinstance(family, PlattFamily):
        return fit_platt(source)
    evaluate = source.family_evaluator(family, np.zeros(source.n_slices, np.int64))
    total, _ = source.weights()
    return minimise_pooled(evaluate, np.array([total]), family.start(source.n_classes))


def _positions(separate: IntArray, n_slices: int) -> IntArray:
    """Position of every slice in `separate`, (S,); −1 for slices that are not in it."""
    positions = np.full(n_slices, -1)
    positions[separate] = np.arange(len(separate))
    return positions


def _fit_clones(model: ClassWise, source: Source, slices: Slices) -> _SliceFit:  # noqa: ARG001
    memory = source.in_memory(f"ClassWise({type(model.base).__name__}())")
    gamma = _numeric_gamma(model, "has its own loss", "; leave loss out")
    if gamma not in (0.0, np.inf):
        raise ValueError(
            f"gamma must be inf or 0 for {type(model.base).__name__}, which supports no other value, "
            f"got {model.gamma!r}; inf fits every slice separately, 0 fits all rows together"
        )
    separate = ~_is_thin(model, source, _MIN_ROWS) & bool(gamma)
    return _SliceFit(gamma, calibrators=fit_clones(model.base, memory.rows, memory.ids, separate))


def _numeric_gamma(model: ClassWise, reason: str, remedy: str = "") -> float:
    """Return Γ as a number, or raise an error if Γ is a string or the loss is not "nll"."""
    name = type(model.base).__name__
    if model.loss != "nll":
        raise ValueError(f"loss must be 'nll' for {name}, which {reason}, got {model.loss!r}{remedy}")
    if isinstance(model.gamma, str):
        allowed = "a number or 'bayes'" if type(model.base) is PlattScaling else "a number"
        raise ValueError(
            f"gamma must be {allowed} for {name}, got {model.gamma!r}; TemperatureScaling (--method cts) "
            "also takes 'cv' and 'bayes', PlattScaling (--method classwise-platt) also takes 'bayes'"
        )
    return check_gamma(model.gamma)


def _is_thin(model: ClassWise, source: Source, default: int) -> BoolArray:
    """Whether each slice has too few rows to be fitted separately, (S,)."""
    min_samples = default if model.min_samples is None else model.min_samples
    return np.asarray(source.counts() < check_integer(min_samples, "min_samples", minimum=1))


def fit_clones(base: Any, rows: Rows, ids: CodeArray, separate: BoolArray) -> list[Any]:
    """Return a fitted copy of `base` for every slice.

    It is fitted on the slice if `separate` (S,) is True there, otherwise on all rows.
    """
    fit = _fitter(base, rows)
    # Indexing with an array copies the rows. The originals stay intact even if a base modifies its input.
    pooled = None if separate.all() else fit(np.arange(len(rows)))
    parts = rows_by_slice(ids, len(separate))
    with quiet():  # slices with few rows would cause many warnings
        return [
            fit(part) if is_separate else pooled for part, is_separate in zip(parts, separate, strict=True)
        ]


def _fitter(base: Any, rows: Rows) -> Callable[[IntArray], Any]:
    """Return a function that fits a copy of `base` on the rows with the given indices."""
    if type(base) in (TopLabelIsotonic, TopLabelHistogram):  # these need confidences, not logits
        confidence = expit(top_margin(rows.z, rows.guess)[0])

        def fit_top(index: IntArray) -> Any:
            fitted = clone(base)
            fitted._fit_confidence(confidence[index], rows.correctness[index], rows.weight[index])
            fitted.n_features_in_ = rows.z.shape[1]
            return fitted

        return fit_top

    return lambda index: fit_step(base, MemorySource(rows.take(index)))


_FITTERS: dict[type, Callable[[ClassWise, Source, Slices], _SliceFit]] = {
    TemperatureScaling: _fit_temperature,
    PlattScaling: _fit_platt,
    VectorScaling: _fit_vector,
}
