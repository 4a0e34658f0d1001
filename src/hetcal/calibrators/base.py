"""The base class of all calibrators: input is validated here, once, and nothing below validates again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from hetcal._coerce import as_array
from hetcal._columns import (
    are_numbers,
    class_names_of,
    column_names,
    column_order,
    counted_names,
    labels_by_number,
)
from hetcal._display import printable
from hetcal._numeric.blocks import RowSource, is_source, with_normalised_weights
from hetcal._numeric.device import (
    TensorProblem,
    is_tensor,
    on_device,
    prepare_tensors,
)
from hetcal._numeric.fingerprint import fingerprint, share_fitted
from hetcal._numeric.probabilities import LEAST_FLOOR, log_probs, normalise_weights, probability_floor
from hetcal._numeric.rows import Rows, decide, prepare
from hetcal._typing import FloatArray, IntArray
from hetcal._validate import (
    NAME_COLUMNS,
    check_fold_groups,
    check_groups,
    check_labels,
    check_logits,
    check_names,
    check_probs,
    check_weights,
    one_of,
)
from hetcal._warnings import warn_thin_data
from hetcal.batches import Batches, is_mapped
from hetcal.export.maps import External, Map, group_names, logits_from

__all__ = [
    "REGISTRY",
    "Calibrator",
    "FitData",
    "Opened",
    "fit_opened",
    "fit_step",
    "groups_of",
    "map_of_step",
    "pass_on",
    "predict_step",
]

#: Every calibrator class that has been imported, by name: what `hetcal.load` can rebuild.
REGISTRY: dict[str, type[Calibrator]] = {}

_LARGE = 1 << 25  # elements from which a mapped file is read in batches
_SAMPLED = 1 << 12  # rows of a tensor behind its fingerprint


@dataclass(frozen=True, eq=False)
class FitData:
    """Validated rows of positive weight, ready to fit on.

    Attributes
    ----------
    rows : rows in memory, in blocks, or on a device
        Weights are scaled to sum to the effective sample size.
    groups : (n,) group of every row in memory or on a device, or None
    fold_groups : (n,) integers, or None
        Rows of the same number stay in one fold of a cross-validation.
    """

    rows: Rows | RowSource | TensorProblem
    groups: NDArray[Any] | None = None
    fold_groups: IntArray | None = None

    @property
    def n_classes(self) -> int:
        """Number of columns K."""
        if isinstance(self.rows, Rows):
            return int(self.rows.z.shape[1])
        return int(self.rows.z.shape[1] if isinstance(self.rows, TensorProblem) else self.rows.n_classes)

    @property
    def in_memory(self) -> Rows:
        """The rows, for a calibrator that needs them in memory and therefore has them there."""
        return cast("Rows", self.rows)

    def take(self, index: IntArray | slice) -> FitData:
        """Return some of the rows, which must be in memory."""
        g, f = (None if part is None else part[index] for part in (self.groups, self.fold_groups))
        return FitData(self.in_memory.take(index), g, f)

    def with_logits(self, z: FloatArray) -> FitData:
        """Return the same rows with other logits."""
        rows = self.in_memory
        return replace(self, rows=Rows(z, rows.y, decide(z), rows.given_weight))


class Calibrator(BaseEstimator):  # type: ignore[misc]
    """A map from logits to calibrated probabilities.

    A calibrator implements ``_fit(data)`` on validated rows, states in ``_map()`` what the fitted calibrator
    does to logits, and says in `preserves_decision` whether the argmax can change. Prediction, JSON, PyTorch,
    ONNX and the generic tests follow from that.

    Attributes
    ----------
    n_features_in_ : int, number of classes K
    class_names_ : list of K texts, or None
        Columns that have names are put in this order before they are used.
    prob_floor_ : float, or None
        What smaller probabilities count as; None where the calibrator was fitted on logits.
    fitted_on_ : dict, a fingerprint of the rows
        With it, `hetcal.evaluate` warns where a calibrator is judged on rows that it was fitted on.
    """

    #: Constructor arguments that a saved file leaves out.
    _unsaved: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        known = REGISTRY.get(cls.__name__)
        if known is None or not known.__module__.startswith("hetcal."):  # ours cannot be replaced
            REGISTRY[cls.__name__] = cls

    @property
    def preserves_decision(self) -> bool:
        """Whether the argmax stays."""
        raise NotImplementedError

    def fit(
        self,
        logits: Any = None,
        labels: ArrayLike | None = None,
        *,
        probs: Any = None,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        class_names: ArrayLike | None = None,
        fold_groups: ArrayLike | None = None,
    ) -> Self:
        """Fit to rows with known labels.

        Parameters
        ----------
        logits : (n, K) unnormalised scores, or rows in batches
        labels : (n,) integers 0..K-1, or texts where the columns have names
        probs : (n, K) probabilities, in place of `logits`
            Their logarithms are the logits. An exact zero counts as half of the smallest positive
            probability; that number is kept as `prob_floor_`.
        sample_weight : (n,) importance of every row; a common factor has no effect
            Weights are scaled to sum to the effective sample size ``(Σw)² / Σw²``. Repeat rows that stand
            for several.
        groups : (n,) integers or texts, to calibrate by group instead of by predicted class
        class_names : K texts in the order of the columns; by default the names of a data frame's columns
        fold_groups : (n,) integers or texts
            Rows that belong together (a patient, a user, copies) stay in one fold of a cross-validation.
        """
        opened = _open_fit(self, logits, labels, probs, sample_weight, groups, class_names, fold_groups)
        self._fit(opened.data)
        self._remember(opened)
        return self

    def predict_proba(
        self,
        logits: Any = None,
        *,
        probs: Any = None,
        groups: ArrayLike | None = None,
        class_names: ArrayLike | None = None,
    ) -> Any:
        """Calibrated probabilities (n, K), a column for each column given.

        Parameters
        ----------
        logits : (n, K) scores, rows in batches, or a tensor; the result is of the same kind
        probs : (n, K) probabilities, in place of `logits`
        groups : (n,) group of every row, where `fit` was given groups
        class_names : K texts, names of the columns where they stand in another order than in `fit`
        """
        return self._respond(self._predict, logits, probs, groups, class_names)

    def _remember(self, opened: Opened) -> None:
        """Keep what is known of the input beside what was learned from it."""
        self.n_features_in_ = opened.data.n_classes
        self.class_names_, self.prob_floor_ = opened.class_names, opened.prob_floor
        self.fitted_on_ = opened.fingerprint
        self.__dict__.pop("feature_names_in_", None)
        if opened.columns is not None and opened.class_names is not None:
            self.feature_names_in_ = np.array(opened.columns, dtype=object)

    def _fit(self, data: FitData) -> None:
        """Learn from validated rows."""
        raise NotImplementedError

    def _map(self) -> Map:
        """What the fitted calibrator does to logits, as one of the maps that every runtime implements."""
        if type(self)._predict is Calibrator._predict:
            raise NotImplementedError(f"{type(self).__name__} must define _map()")
        return _external(self, self._predict)

    @classmethod
    def _examples(cls) -> list[Self]:
        """Unfitted instances for the generic tests, one for each kind of map that the options select."""
        return [cls()]

    def _predict(self, z: FloatArray, groups: ArrayLike | None) -> Any:
        """Probabilities of validated logits."""
        return self._map().predict(z, groups)

    def _predict_probs(self, p: FloatArray, groups: ArrayLike | None) -> FloatArray:
        """Probabilities of validated probabilities."""
        return np.asarray(self._predict(log_probs(p, getattr(self, "prob_floor_", None)), groups))

    def _export_floor(self) -> float:
        """What smaller probabilities count as in other runtimes."""
        floor = getattr(self, "prob_floor_", None)
        return LEAST_FLOOR if floor is None else float(floor)

    def _needs_memory(self) -> bool:
        """Whether a fit needs all rows at once."""
        return False

    def _fits_on_device(self) -> bool:
        """Whether a fit can leave a tensor on its device."""
        return False

    def _respond(
        self,
        predict: Callable[[FloatArray, ArrayLike | None], Any],
        logits: Any,
        probs: Any,
        groups: ArrayLike | None,
        class_names: ArrayLike | None,
    ) -> Any:
        """Answer `predict` for input of any kind, with columns in the order of the input."""
        check_is_fitted(self)
        given, name = one_of(logits, probs)
        names = _names_of(given, class_names)[0]
        order = column_order(getattr(self, "class_names_", None), names, name)
        if is_source(given):
            if probs is not None:
                raise TypeError(_NO_PROBS.format(type(given).__name__))
            check_logits(given.first().rows.z, probs_remedy=_BATCH_REMEDY)
            return given.transform(_Prediction(self, order))
        if is_tensor(given) and probs is None:
            fast = self._predict_on_device(given, groups, order)
            if fast is not None:
                return fast
        values = as_array(given, name) if is_tensor(given) else given
        if probs is None:
            z = check_logits(values, n_classes=self.n_features_in_)
        else:
            z = _check_probs(values, self.n_features_in_)
            if predict == self._predict:
                predict = self._predict_probs
            else:
                z = log_probs(z, getattr(self, "prob_floor_", None))
        found = predict(z if order is None else np.ascontiguousarray(z[:, order]), groups)
        if order is not None:
            back = np.argsort(order)
            found = tuple(p[:, back] for p in found) if isinstance(found, tuple) else found[:, back]
        if is_tensor(given):
            import torch

            return torch.from_numpy(np.ascontiguousarray(found)).to(given.device)
        return found

    def _fitted_share(self, logits: Any, probs: Any, labels: Any, class_names: Any) -> float:
        """Share of the rows of `fit` that are among these, as far as their fingerprint can tell."""
        given, _ = one_of(logits, probs)
        if is_source(given) or getattr(self, "fitted_on_", None) is None:
            return 0.0
        values, names = as_array(given, "logits"), _names_of(given, class_names)[0]
        z = check_logits(values) if probs is None else log_probs(check_probs(values), self.prob_floor_)
        y = check_labels(labels, n_rows=len(z), n_classes=z.shape[1], class_names=names)
        order = column_order(self.class_names_, names)
        if order is not None:
            z, y = z[:, order], np.argsort(order)[y]
        return share_fitted(self.fitted_on_, prepare(z, y, None))

    def _predict_on_device(self, logits: Any, groups: ArrayLike | None, order: IntArray | None) -> Any:
        """Probabilities that need no copy to this computer's memory; None where there are none."""
        fits = logits.ndim == 2 and logits.shape[1] == self.n_features_in_
        if on_device(logits) and groups is None and order is None and fits:
            return self._map().predict_on_device(logits)
        return None


@dataclass(frozen=True)
class _Prediction:
    """What a fitted calibrator makes of a block, whose columns stand in the given order."""

    model: Calibrator
    order: IntArray | None = None

    def __call__(self, logits: FloatArray, groups: Any) -> FloatArray:
        by_group = groups if groups_of(self.model) is not None else None
        if self.order is None:
            return np.asarray(self.model._predict(logits, by_group))
        p = self.model._predict(np.ascontiguousarray(logits[:, self.order]), by_group)
        return np.asarray(p[:, np.argsort(self.order)])


@dataclass(frozen=True)
class Opened:
    """Validated input of a fit, and what is remembered of it."""

    data: FitData
    class_names: list[str] | None
    fingerprint: dict[str, Any]
    prob_floor: float | None = None
    columns: list[str] | None = None


_BATCH_REMEDY = "write their logarithms instead"
_NO_PROBS = "probs must be an array, got {}; pass batches of hetcal.to_logits(probs, floor=...) as logits"


def _open_fit(
    model: Calibrator,
    logits: Any,
    labels: Any,
    probs: Any,
    sample_weight: Any,
    groups: Any,
    class_names: Any,
    fold_groups: Any,
) -> Opened:
    given, name = one_of(logits, probs)
    source = None
    if probs is None and fold_groups is None:
        source = _as_source(given, labels, sample_weight, groups, class_names)
    if source is not None or is_source(given):
        told = class_names if is_source(given) else None  # else the batches that were made of it know them
        return _open_source(model, source or given, told, probs, fold_groups)
    if probs is None and on_device(given) and model._fits_on_device():
        return _open_tensors(given, labels, sample_weight, groups, class_names, fold_groups)
    floor = None
    if probs is None:
        z = check_logits(given)
    else:
        p = check_probs(as_array(given, name))
        floor = probability_floor(p)
        z = log_probs(p, floor)
    names, columns = _names_of(given, class_names)
    labels = labels_by_number(labels, columns, class_names)
    y = check_labels(
        labels, n_rows=len(z), n_classes=z.shape[1], class_names=names, names_remedy=NAME_COLUMNS
    )
    w = check_weights(sample_weight, n_rows=len(z))
    kept = slice(None) if w is None else np.flatnonzero(w)
    warn_thin_data(y[kept], z.shape[1])
    rows = prepare(z, y, None if w is None else normalise_weights(w))
    g = None if groups is None else check_groups(groups, n_rows=len(z))[kept]
    data = FitData(rows, g, check_fold_groups(fold_groups, len(z), kept))
    return Opened(data, _unless_counted(names), fingerprint(rows), floor, columns)


def _open_source(
    model: Calibrator, source: RowSource, class_names: Any, probs: Any, fold_groups: Any
) -> Opened:
    kind = type(source).__name__
    if probs is not None:
        raise TypeError(_NO_PROBS.format(kind))
    if fold_groups is not None:
        raise ValueError(f"fold_groups must be left out beside rows in batches, got {kind}; fit on arrays")
    if model._needs_memory():
        raise TypeError(
            f"logits must be an array for {type(model).__name__}, which needs all rows at once, got {kind}; "
            "fit on an array of some rows, or use another calibrator, such as ClassWiseTemperatureScaling()"
        )
    if class_names is not None and are_numbers(class_names):
        raise ValueError(
            f"class_names must be texts beside rows in batches, got {class_names!r}; turn them into texts, "
            "and let labels be positions of columns"
        )
    first = source.first()
    check_logits(first.rows.z, probs_remedy=_BATCH_REMEDY)
    names = _names_of(source, class_names)[0]
    data = FitData(with_normalised_weights(source))
    return Opened(data, _unless_counted(names), fingerprint(first.rows, whole=False))


def _open_tensors(
    logits: Any, labels: Any, sample_weight: Any, groups: Any, class_names: Any, fold_groups: Any
) -> Opened:
    if class_names is not None:  # labels may be names, or numbers that are names
        labels = check_labels(
            labels_by_number(labels, None, class_names), n_rows=len(logits), n_classes=int(logits.shape[-1]),
            class_names=check_names(class_names, int(logits.shape[-1])),
        )  # fmt: skip
    problem = prepare_tensors(logits, labels, sample_weight)
    kept: Any = slice(None) if problem.kept is None else np.flatnonzero(problem.kept)
    n, names = problem.n_given, None
    if class_names is not None:
        names = class_names_of(check_names(class_names, int(problem.z.shape[1])))
    g = None if groups is None else check_groups(as_array(groups, "groups"), n_rows=n)[kept]
    problem.fold_groups = check_fold_groups(fold_groups, n, kept)
    some = problem.some_rows(_SAMPLED)
    data = FitData(problem, g, problem.fold_groups)
    return Opened(data, _unless_counted(names), fingerprint(some, whole=False))


def _as_source(
    logits: Any, labels: Any, sample_weight: Any, groups: Any, class_names: Any
) -> RowSource | None:
    """Rows that come in blocks, or None where they are in memory."""
    if is_source(logits):
        beside = {"labels": labels, "sample_weight": sample_weight, "groups": groups}
        extra = [name for name, value in beside.items() if value is not None]
        if extra:
            raise ValueError(
                f"{extra[0]} must be left out beside rows in batches, which hold their own; "
                "make it part of the batches"
            )
        source: RowSource = logits
        return source
    if is_mapped(logits) and logits.ndim == 2 and logits.size >= _LARGE and labels is not None:
        return Batches(logits, labels, sample_weight=sample_weight, groups=groups, class_names=class_names)
    return None


def _names_of(given: Any, class_names: Any) -> tuple[list[str] | None, list[str] | None]:
    """Class names, from the argument or else from the columns, and the columns where there are any."""
    if is_source(given):
        columns, n_classes = None, int(given.n_classes)
        own = None if given.class_names is None else check_names(given.class_names, n_classes)
    else:
        columns = column_names(given)
        own = None if columns is None else class_names_of(columns)
        n_classes = 0 if class_names is None else int(np.atleast_1d(as_array(given, "logits")).shape[-1])
    if class_names is None:
        return own, columns
    names = class_names_of(check_names(class_names, n_classes))
    if own is not None and own != names and sorted(own) == sorted(names):
        raise ValueError(
            f"class_names must be in the order of the columns ({', '.join(map(printable, own[:9]))}), got "
            f"{', '.join(map(printable, names[:9]))}; leave it out, since the columns have these names"
        )
    return names, columns


def _unless_counted(names: list[str] | None) -> list[str] | None:
    """Names that say more than the position of a column does."""
    return None if names is None or names == counted_names(len(names)) else names


def _check_probs(probs: Any, n_classes: int) -> FloatArray:
    p = check_probs(probs)
    if p.shape[1] != n_classes:
        raise ValueError(f"probs must have {n_classes} columns, one per class as in fit, got {p.shape[1]}")
    return p


# -- parts of composite calibrators ---------------------------------------------------------------


def fit_opened(step: Any, opened: Opened) -> Any:
    """A fitted copy of a calibrator that also remembers what is known of its input."""
    fitted = fit_step(step, opened.data)
    if _is_own(fitted):
        fitted._remember(opened)
    return fitted


def fit_step(step: Any, data: FitData) -> Any:
    """A fitted copy of a calibrator, hetcal's or another object with ``fit`` and ``predict_proba``."""
    fitted = clone(step) if hasattr(step, "get_params") else copy.deepcopy(step)
    if _is_own(fitted):
        fitted._fit(data)
        fitted.n_features_in_ = data.n_classes
        return fitted
    rows = data.in_memory
    weighted = rows.given_weight is not None and not np.all(rows.given_weight == 1)
    options: dict[str, Any] = {"sample_weight": rows.weight} if weighted else {}
    if data.groups is not None and has_fit_parameter(fitted, "groups"):
        options["groups"] = data.groups
    fitted.fit(rows.z, rows.y.astype(np.int64), **options)
    return fitted


def predict_step(step: Any, z: FloatArray, groups: ArrayLike | None) -> FloatArray:
    """Probabilities of a fitted calibrator; `groups` where it takes them."""
    if _is_own(step):
        return np.asarray(step._predict(z, groups))
    options = {"groups": groups} if groups is not None and has_fit_parameter(step, "groups") else {}
    return _all_columns(step, np.asarray(step.predict_proba(z, **options)), z.shape[1])


def _all_columns(step: Any, p: FloatArray, n_classes: int) -> FloatArray:
    """Probabilities (n, K) from a foreign classifier, which may have seen some of the classes only."""
    seen = getattr(step, "classes_", None)
    if seen is not None and p.ndim == 2 and len(seen) == p.shape[1] and np.asarray(seen).dtype.kind in "iu":
        place = np.asarray(seen, np.int64)
        if p.shape[1] < n_classes or not np.array_equal(place, np.arange(n_classes)):
            wide = np.zeros((len(p), n_classes), p.dtype)
            wide[:, place] = p
            return wide
    if p.ndim != 2 or p.shape[1] != n_classes:
        raise ValueError(
            f"base must give probabilities (n, {n_classes}), got shape {p.shape} "
            f"from {type(step).__name__}.predict_proba; add the missing columns there"
        )
    return p


def pass_on(step: Any, z: FloatArray, groups: ArrayLike | None) -> FloatArray:
    """Logits for the next step: the logarithm of the probabilities, with the decision kept."""
    p = predict_step(step, z, groups)
    return logits_from(p, p.argmax(axis=1))


def map_of_step(step: Any) -> Map:
    """Map of a fitted part, hetcal's or another object with ``predict_proba``."""
    if _is_own(step) and type(step)._predict is Calibrator._predict:
        return cast("Map", step._map())
    return _external(step, lambda z, groups: predict_step(step, z, groups))


def _external(step: Any, predict: Callable[[FloatArray, ArrayLike | None], Any]) -> External:
    name = f"{type(step).__module__}.{type(step).__name__}"
    return External(name, predict, bool(getattr(step, "preserves_decision", False)))


def _is_own(step: Any) -> bool:
    """Whether validation may be skipped: a calibrator of ours whose public methods nobody has replaced."""
    return isinstance(step, Calibrator) and type(step).fit is Calibrator.fit


def groups_of(model: Any) -> NDArray[Any] | None:
    """Names of the groups that a fitted calibrator, or a part of it, slices rows by, or None."""
    return group_names(map_of_step(model))


# -- options --------------------------------------------------------------------------------------
