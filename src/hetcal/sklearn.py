"""A scikit-learn classifier with calibrated probabilities."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GroupKFold, check_cv
from sklearn.utils import _safe_indexing, assert_all_finite, get_tags, indexable
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import _check_method_params, check_is_fitted, column_or_1d, has_fit_parameter

from hetcal._numeric.fingerprint import fingerprint
from hetcal._numeric.probabilities import log_probs, normalise_weights, probability_floor
from hetcal._numeric.rows import prepare
from hetcal._numeric.source import MemorySource
from hetcal._typing import FloatArray, IntArray
from hetcal._validate import (
    check_choice,
    check_flag,
    check_fold_groups,
    check_groups,
    check_integer,
    check_logits,
    check_probs,
    check_weights,
)
from hetcal._warnings import emit, warn_thin_data
from hetcal.artefact import uses_groups
from hetcal.calibrators import AutoCalibrator
from hetcal.calibrators.base import FitInput, fit_and_record, predict_step
from hetcal.conversion import binary_logits

__all__ = ["CalibratedClassifier", "Member", "members_of", "restore_classifier"]

_SCORES, _PROBS = "decision_function", "predict_proba"
# Methods of the estimator to try in this order, by `response_method`
_METHODS = {"auto": (_SCORES, _PROBS), _SCORES: (_SCORES,), _PROBS: (_PROBS,)}
_DEFAULT_CV = 5


class CalibratedClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that calibrates the probabilities of another classifier, by default with `AutoCalibrator`.

    The calibrator is fitted on out-of-fold predictions of a cross-validation. If the estimator is already
    fitted and wrapped in :class:`sklearn.frozen.FrozenEstimator`, the calibrator is fitted on all rows
    instead, so these should be rows that the estimator was not trained on.

    Parameters
    ----------
    estimator : classifier with ``decision_function`` or ``predict_proba``
    calibrator : calibrator, by default ``AutoCalibrator()``
    cv : int, splitter, iterable of (train, test), or None for 5 folds
        An integer gives stratified folds, or folds of whole groups if `fit` receives `fold_groups`. The
        splits of a splitter or iterable need not cover all rows, and a row that is tested in two splits
        counts twice. For code that was written for older versions of scikit-learn, "prefit" has the effect of
        a frozen estimator, with a warning.
    ensemble : bool
        If False, the estimator is refitted on all rows, and one calibrator is fitted on the out-of-fold
        predictions of all folds. The predicted label is then the class with the largest logit, provided that
        the calibrator preserves decisions. If True, each fold has its own estimator and calibrator, and their
        probabilities are averaged. The argmax of the average may differ from that of each fold. A frozen
        estimator always has a single calibrator.
    response_method : "auto", "decision_function" or "predict_proba"
        Method of the estimator that gives the logits. "auto" uses ``decision_function`` if it returns one
        column per class, or one score for two classes. Otherwise it uses the logarithm of ``predict_proba``.
    n_jobs : int, optional
        Number of folds that are fitted in parallel.

    Attributes
    ----------
    classes_ : (K,) labels in the order of the columns; for a frozen estimator, the labels that it knows
    estimators_, calibrators_ : lists of length one, or with one entry per fold
    n_features_in_, feature_names_in_ : those of the estimator, if it has them

    Notes
    -----
    Probabilities below a floor, such as the zeros of trees and nearest neighbours, are raised to this floor
    before their logarithms are taken. The floor is half of the smallest positive probability of the rows that
    the calibrator is fitted on, but at least 1.2e-38 and at most ``1/(2K)``.

    An estimator does not know classes that are missing from its training rows. In each row, the logits of
    these classes are set below the lowest other logit. The distance is the mean distance between neighbouring
    logits of the row in sorted order, or 1 if all logits of the row are equal.

    Folds whose training rows have a single class, or whose test rows all have weight zero, are skipped. No
    calibrator is fitted on rows of weight zero. An estimator is trained on such rows if it does not receive
    weights, or if its input is a kernel matrix; otherwise it is not.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = load_wine(return_X_y=True)
    >>> clf = CalibratedClassifier(GaussianNB(), cv=3).fit(X, y)
    >>> clf.predict_proba(X[:2]).shape
    (2, 3)
    >>> bool((clf.predict(X) == GaussianNB().fit(X, y).predict(X)).all())
    True
    """

    def __init__(
        self,
        estimator: Any,
        calibrator: Any = None,
        *,
        cv: Any = 5,
        ensemble: bool = False,
        response_method: Literal["auto", "decision_function", "predict_proba"] = "auto",
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.calibrator = calibrator
        self.cv = cv
        self.ensemble = ensemble
        self.response_method = response_method
        self.n_jobs = n_jobs

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        calibration_groups: ArrayLike | None = None,
        fold_groups: ArrayLike | None = None,
        **fit_params: Any,
    ) -> Self:
        """Fit the estimator and the calibrator.

        Parameters
        ----------
        X : input of the estimator, with n rows
        y : (n,) class labels, such as integers or strings
        sample_weight : (n,) weights for the calibrator, and for the estimator if it accepts weights
            With metadata routing, the estimator receives them if it requests them.
        calibration_groups : (n,) groups to calibrate separately; `predict_proba` needs them as well
        fold_groups : (n,) names of units such as patients or users
            If `cv` is an integer or None, its folds keep all rows of a unit together. The folds of a
            cross-validation inside the calibrator always do.
        **fit_params
            Arguments for the estimator's `fit`; arrays with one entry per row are divided into folds. With
            metadata routing, they go to the objects that request them.
        """
        _check_options(self)
        model = _frozen_copy(self) if _is_prefit(self.cv) else self
        data = _check_data(model, X, y, sample_weight, calibration_groups, fold_groups, fit_params)
        return self._set_members(_fit_members(model, data), data.classes)

    def logits(self, X: Any) -> FloatArray:
        """Logits (n, K) that the calibrator receives, for example for :func:`hetcal.diagnose`."""
        check_is_fitted(self)
        if len(self._members) > 1:
            raise ValueError(
                "ensemble must be False to call logits(), got True: every member then has its own logits; "
                "fit with ensemble=False"
            )
        return self._members[0].logits(X, len(self.classes_))

    def predict_proba(self, X: Any, *, calibration_groups: ArrayLike | None = None) -> FloatArray:
        """Calibrated probabilities (n, K); `calibration_groups` are needed if the calibrator uses groups."""
        check_is_fitted(self)
        parts = [member.predict_proba(X, len(self.classes_), calibration_groups) for member in self._members]
        return parts[0] if len(parts) == 1 else np.asarray(np.mean(parts, axis=0))

    def predict(self, X: Any, *, calibration_groups: ArrayLike | None = None) -> NDArray[Any]:
        """Labels (n,) with the largest probability.

        `calibration_groups` can be left out if there is only one calibrator and it preserves decisions.
        """
        check_is_fitted(self)
        keeps_label = len(self._members) == 1 and getattr(self.calibrators_[0], "preserves_decision", False)
        if keeps_label and calibration_groups is None and uses_groups(self.calibrators_[0]):
            return np.asarray(self.classes_[self.logits(X).argmax(axis=1)])
        p = self.predict_proba(X, calibration_groups=calibration_groups)
        return np.asarray(self.classes_[p.argmax(axis=1)])

    def _set_members(self, members: list[Member], classes: NDArray[Any]) -> Self:
        """Set the learned attributes."""
        self._members, self.classes_ = members, classes
        self.estimators_ = [member.estimator for member in members]
        self.calibrators_ = [member.calibrator for member in members]
        for name in ("n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
            if hasattr(self.estimators_[0], name):
                setattr(self, name, getattr(self.estimators_[0], name))
        return self

    def get_metadata_routing(self) -> Any:
        """Metadata that `fit` uses itself or passes to the estimator and the splitter."""
        router = MetadataRouter(owner=type(self).__name__).add_self_request(self)
        if isinstance(self.estimator, FrozenEstimator) or _is_prefit(self.cv):
            return router
        router.add(estimator=self.estimator, method_mapping=MethodMapping().add(caller="fit", callee="fit"))
        return router.add(splitter=self.cv, method_mapping=MethodMapping().add(caller="fit", callee="split"))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        with contextlib.suppress(AttributeError):  # a frozen estimator of another library may have no tags
            inner = get_tags(self.estimator)
            tags.input_tags, tags.non_deterministic = inner.input_tags, inner.non_deterministic
            tags.classifier_tags.multi_class = getattr(inner.classifier_tags, "multi_class", True)
        return tags


@dataclass(frozen=True)
class _Data:
    """Validated arguments of `fit`.

    Attributes
    ----------
    X : input of the estimator
    y : (n,) labels
    classes : (K,) distinct labels in the order of the columns
    codes : (n,) position of each label in `classes`
    weight : (n,) or None
    has_weight : (n,) whether the weight is positive
    groups, fold_groups : (n,) calibration group, and number of the fold group, of every row; each may be None
    fit_params, split_params : keyword arguments of the estimator's `fit` and of the splitter
    """

    X: Any
    y: NDArray[Any]
    classes: NDArray[Any]
    codes: IntArray
    weight: NDArray[np.float64] | None
    has_weight: NDArray[np.bool_]
    groups: NDArray[Any] | None
    fold_groups: IntArray | None
    fit_params: dict[str, Any]
    split_params: dict[str, Any]


def members_of(classifier: CalibratedClassifier) -> list[Member]:
    """Return the fitted estimators with their calibrators."""
    check_is_fitted(classifier)
    return list(classifier._members)


def restore_classifier(
    members: list[Member], classes: NDArray[Any], *, ensemble: bool, response_method: Any
) -> CalibratedClassifier:
    """Return a classifier that consists of fitted members, for example from a file.

    `fit` of the result would fit a new calibrator to the frozen estimator of the first member.
    """
    frozen = FrozenEstimator(members[0].estimator)
    model = CalibratedClassifier(frozen, ensemble=ensemble, response_method=response_method)
    return model._set_members(members, classes)


@dataclass(frozen=True)
class Member:
    """A fitted estimator and its calibrator.

    Attributes
    ----------
    estimator : fitted estimator, or None if only its responses are needed
    columns : positions of the estimator's classes among all classes
    method : name of the estimator's method that gives scores or probabilities
    floor : smaller probabilities are raised to this value; None for scores, or if there is no calibrator yet
    calibrator : fitted calibrator, or None if it is not fitted yet
    """

    estimator: Any
    columns: IntArray
    method: str
    floor: float | None = None
    calibrator: Any = None

    def logits(self, X: Any, n_classes: int) -> FloatArray:
        """Logits (n, K) that the calibrator receives."""
        _, responses = _respond(self.estimator, X, self.method, len(self.columns))
        return self.to_logits(responses, self.floor, n_classes)

    def to_logits(self, responses: FloatArray, floor: float | None, n_classes: int) -> FloatArray:
        """Logits (n, K) from scores or probabilities, which have a column per class of the estimator."""
        z = log_probs(responses, floor) if self.method == _PROBS else responses
        return _add_missing_classes(z, self.columns, n_classes)

    def predict_proba(self, X: Any, n_classes: int, groups: ArrayLike | None) -> FloatArray:
        """Calibrated probabilities (n, K)."""
        z = check_logits(self.logits(X, n_classes), probs_remedy=None)
        g = None if groups is None else check_groups(groups, n_rows=len(z), name="calibration_groups")
        return predict_step(self.calibrator, z, g)


@dataclass(frozen=True)
class _HeldOut:
    """Rows (`index`) that a member was not trained on, and the member's scores or probabilities for them."""

    member: Member
    index: IntArray
    responses: FloatArray


def _fit_members(model: CalibratedClassifier, data: _Data) -> list[Member]:
    """Fit one member per fold, or a single one if `ensemble` is False or the estimator is frozen."""
    calibrator = AutoCalibrator() if model.calibrator is None else model.calibrator
    method, has_weight = str(model.response_method), data.has_weight
    if isinstance(model.estimator, FrozenEstimator):
        index = np.flatnonzero(has_weight)
        member, responses = _first_response(
            model.estimator, data, index, _safe_indexing(data.X, index), method
        )
        return [_calibrate(calibrator, member, [_HeldOut(member, index, responses)], data)]
    # An estimator that receives weights is not trained on rows of weight zero. No rows are dropped from a
    # pairwise (kernel) matrix, whose columns would have to be dropped as well.
    drops_rows = "sample_weight" in data.fit_params and not get_tags(model.estimator).input_tags.pairwise
    is_trainable = has_weight if drops_rows else np.ones(len(data.y), bool)
    final = None
    if not model.ensemble:  # the estimators of the folds use the same method as the final one
        index = np.flatnonzero(is_trainable)
        estimator = _fit_estimator(model.estimator, data, index)
        final, _ = _first_response(estimator, data, index, _safe_indexing(data.X, [0]), method)
        method = final.method
    held_out = Parallel(n_jobs=model.n_jobs)(
        delayed(_fit_fold)(model.estimator, data, train, test[has_weight[test]], method, final is None)
        for train, test in _splits(model.cv, data, is_trainable)
        if len(np.unique(data.codes[train])) > 1 and has_weight[test].any()
    )
    if not held_out:
        raise ValueError(
            "cv must have a split that trains on two classes or more and tests rows of positive weight, "
            f"got {model.cv!r}; shuffle the rows, or add rows of the rarer classes"
        )
    if final is not None:
        return [_calibrate(calibrator, final, held_out, data)]
    return [_calibrate(calibrator, fold.member, [fold], data) for fold in held_out]


def _splits(cv: Any, data: _Data, is_trainable: NDArray[np.bool_]) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield the training and the test rows of every split; only rows with `is_trainable` are trained on."""
    index = np.arange(len(data.y))
    if cv is None or isinstance(cv, int | np.integer):
        index = index[is_trainable]
        largest_class = int(np.bincount(data.codes[index]).max())
        n_folds = _DEFAULT_CV if cv is None else cv
        n_folds = check_integer(
            n_folds,
            "cv",
            minimum=2,
            maximum=largest_class,
            remedy="the largest class must have at least one row per fold",
        )
        if data.fold_groups is None:
            fold = _stratified_folds(data.codes[index], n_folds)
        else:
            fold = _group_folds(data.fold_groups[index], n_folds)
            n_folds = int(fold.max()) + 1
        pairs = ((np.flatnonzero(fold != f), np.flatnonzero(fold == f)) for f in range(n_folds))
    else:
        pairs = check_cv(cv, data.codes, classifier=True).split(data.X, data.y, **data.split_params)
    for train, test in pairs:
        train_index = index[train]
        yield train_index[is_trainable[train_index]], index[test]


def _stratified_folds(codes: IntArray, n_folds: int) -> IntArray:
    """Fold of each row, the same as from scikit-learn's ``StratifiedKFold(n_folds)``.

    Unlike that class, this function does not warn about classes with fewer rows than folds.
    """
    _, first, code = np.unique(codes, return_index=True, return_inverse=True)
    code = first.argsort().argsort()[code]  # number the classes in order of appearance
    by_class = np.argsort(code, kind="stable")
    # Assigning the folds 0, 1, …, 0, 1, … to the rows sorted by class determines how many rows of each class
    # a fold gets. Fold sizes then differ by at most one, overall and within each class.
    dealt = np.arange(len(code)) % n_folds
    fold = np.empty_like(code)
    # Within a class, the first rows go to the lowest fold, the next rows to the next fold, and so on.
    fold[by_class] = dealt[np.lexsort((dealt, code[by_class]))]
    return fold


def _group_folds(groups: IntArray, n_folds: int) -> IntArray:
    """Fold of each row, with all rows of a group in the same fold."""
    n_folds = min(n_folds, len(np.unique(groups)))
    fold = np.empty(len(groups), np.int64)
    for f, (_, test) in enumerate(GroupKFold(n_folds).split(groups, groups=groups)):
        fold[test] = f
    return fold


def _fit_fold(
    base: Any, data: _Data, train: IntArray, test: IntArray, method: str, keep_estimator: bool
) -> _HeldOut:
    X, _ = _safe_split(base, data.X, None, test, train)
    member, responses = _first_response(_fit_estimator(base, data, train), data, train, X, method)
    return _HeldOut(member if keep_estimator else replace(member, estimator=None), test, responses)


def _fit_estimator(estimator: Any, data: _Data, index: IntArray) -> Any:
    uses_all = np.array_equal(index, np.arange(len(data.y)))
    X, y = (data.X, data.y) if uses_all else _safe_split(estimator, data.X, data.y, index)
    fit_params = _check_method_params(data.X, data.fit_params, None if uses_all else index)
    return clone(estimator).fit(X, y, **fit_params)


def _first_response(
    fitted: Any, data: _Data, train: IntArray, X: Any, method: str
) -> tuple[Member, FloatArray]:
    """A member that has no calibrator yet, and the scores or probabilities of its estimator for `X`."""
    classes = np.asarray(getattr(fitted, "classes_", np.unique(data.y[train])))
    columns, is_unknown = _encode(classes, data.classes)
    if is_unknown.any():
        raise ValueError(
            "y must contain every class that the estimator knows, "
            f"got {classes[is_unknown].tolist()[0]!r} only in the estimator; add rows of that class"
        )
    method, responses = _respond(fitted, X, method, len(columns))
    return Member(fitted, columns, method), responses


def _respond(estimator: Any, X: Any, method: str, n_columns: int) -> tuple[str, FloatArray]:
    """Name of the method that was used, and its scores or probabilities (n, n_columns)."""
    responses: NDArray[Any] = np.empty(0)
    for name in (name for name in _METHODS[method] if hasattr(estimator, name)):
        responses = np.asarray(getattr(estimator, name)(X))
        if name == _SCORES and n_columns == 2 and responses.size == len(responses):
            return name, binary_logits(responses)
        if responses.shape[1:] != (n_columns,):
            continue
        if name == _PROBS:
            return name, check_probs(responses, name="predict_proba")
        if not (n_columns == 3 and _is_one_vs_one(estimator)):
            return name, responses
    by_pair = ", a column per pair of classes," if responses.shape[1:] == (n_columns,) else ""
    raise ValueError(
        f"estimator must return one column per class from {' or '.join(_METHODS[method])}, got shape "
        f"{responses.shape}{by_pair} for {n_columns} classes; set decision_function_shape='ovr' in an SVC"
    )


def _is_one_vs_one(estimator: Any) -> bool:
    """Whether the estimator is or contains an SVC with a score per pair of classes.

    The number of columns does not show this for three classes, which have three pairs.
    """
    inner = estimator.estimator if isinstance(estimator, FrozenEstimator) else estimator
    params: dict[str, Any] = getattr(getattr(inner, "best_estimator_", inner), "get_params", dict)()
    return any(name.endswith("decision_function_shape") and v == "ovo" for name, v in params.items())


def _add_missing_classes(z: FloatArray, columns: IntArray, n_classes: int) -> FloatArray:
    """Logits (n, K); those of classes that the estimator does not know are below all others in their row."""
    if len(columns) == n_classes:
        return z
    low = z.min(axis=1)
    step = (z.max(axis=1) - low) / max(len(columns) - 1, 1)
    fill = np.minimum(low - np.where(step > 0, step, 1), np.nextafter(low, -np.inf))
    all_columns = np.repeat(fill[:, None], n_classes, axis=1).astype(z.dtype)
    all_columns[:, columns] = z
    return all_columns


def _calibrate(calibrator: Any, member: Member, held_out: list[_HeldOut], data: _Data) -> Member:
    """Fit the calibrator on the held-out rows, in the order of the data, and return `member` with it."""
    n_classes, floor = len(data.classes), None
    if member.method == _PROBS:
        floor = min(probability_floor(fold.responses) for fold in held_out)
    index = np.concatenate([fold.index for fold in held_out])
    z = np.concatenate([fold.member.to_logits(fold.responses, floor, n_classes) for fold in held_out])
    order = np.argsort(index, kind="stable")
    index = index[order]
    z = check_logits(z[order], name=member.method, probs_remedy=None)
    warn_thin_data(data.codes[index], n_classes)
    weight, groups, fold_groups = (
        None if part is None else part[index] for part in (data.weight, data.groups, data.fold_groups)
    )
    rows = prepare(z, data.codes[index], None if weight is None else normalise_weights(weight))
    names = [str(int(c) if isinstance(c, float) and c.is_integer() else c) for c in data.classes.tolist()]
    source = MemorySource(rows, groups, fold_groups)
    fitted = fit_and_record(calibrator, FitInput(source, names, fingerprint(rows), floor))
    if data.groups is not None and uses_groups(fitted):
        untested = np.setdiff1d(data.groups[data.has_weight], data.groups[index]).tolist()
        if untested:
            raise ValueError(
                f"calibration_groups must all occur in the test rows, got no test row of {untested}; use "
                "ensemble=False, fewer folds, or splits that test rows of every group"
            )
    return replace(member, floor=floor, calibrator=fitted)


def _encode(labels: NDArray[Any], classes: NDArray[Any]) -> tuple[IntArray, NDArray[np.bool_]]:
    """Position of each label in `classes`, and whether the label is missing from `classes`, (n,) each."""
    order = np.argsort(classes, kind="stable")
    codes = order[np.minimum(np.searchsorted(classes, labels, sorter=order), len(classes) - 1)]
    return codes, np.asarray(classes[codes] != labels)


# -- validation -------------------------------------------------------------------------------------


def _check_options(model: CalibratedClassifier) -> None:
    check_choice(model.response_method, "response_method", _METHODS)
    check_flag(model.ensemble, "ensemble")
    if isinstance(model.cv, bool | str) and not _is_prefit(model.cv):
        raise TypeError(
            f"cv must be an integer, a splitter or an iterable of splits, got {model.cv!r}; "
            "for a fitted estimator, leave cv out and wrap the estimator in FrozenEstimator"
        )
    methods = _METHODS[model.response_method]
    if isinstance(model.estimator, type) or not any(hasattr(model.estimator, name) for name in methods):
        raise TypeError(
            f"estimator must have {' or '.join(methods)}, got {model.estimator!r}; "
            "pass a classifier object that gives scores or probabilities"
        )
    calibrator = model.calibrator
    is_valid = not isinstance(calibrator, type) and all(
        hasattr(calibrator, name) for name in ("fit", "predict_proba")
    )
    if calibrator is not None and not is_valid:
        raise TypeError(
            f"calibrator must have fit and predict_proba, got {calibrator!r}; "
            "pass a calibrator object, not a class or a name"
        )


def _is_prefit(cv: Any) -> bool:
    return isinstance(cv, str) and cv == "prefit"


def _frozen_copy(model: CalibratedClassifier) -> CalibratedClassifier:
    """Copy of `model` with a FrozenEstimator, which has replaced ``cv="prefit"`` in scikit-learn."""
    try:
        if isinstance(model.estimator, BaseEstimator):  # other objects might not show whether they are fitted
            check_is_fitted(model.estimator)
    except NotFittedError:
        raise NotFittedError(
            f"estimator must be fitted if cv is 'prefit', got {model.estimator!r}; fit it, wrap it in "
            "FrozenEstimator, which clone() keeps fitted, and leave cv out"
        ) from None
    emit(
        "cv should be left out for a fitted estimator, got 'prefit', which scikit-learn no longer uses; pass "
        "FrozenEstimator(estimator) from sklearn.frozen instead of estimator",
        FutureWarning,
    )
    frozen = copy.copy(model)
    frozen.cv = _DEFAULT_CV
    if not isinstance(model.estimator, FrozenEstimator):
        frozen.estimator = FrozenEstimator(model.estimator)
    return frozen


def _check_data(
    model: CalibratedClassifier,
    X: Any,
    y: Any,
    sample_weight: Any,
    groups: Any,
    fold_groups: Any,
    fit_params: dict[str, Any],
) -> _Data:
    if y is None:  # scikit-learn's estimator checks expect the second sentence of this error
        raise ValueError(
            "y must be given. Expected array-like (array or non-string sequence), got None; pass the labels"
        )
    X, y = indexable(X, y)
    y = column_or_1d(y, warn=True)
    assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    weight = check_weights(sample_weight, n_rows=len(y))
    has_weight = np.ones(len(y), bool) if weight is None else weight > 0
    if groups is not None:
        groups = check_groups(groups, n_rows=len(y), name="calibration_groups")
    is_frozen = isinstance(model.estimator, FrozenEstimator)
    classes = np.asarray(getattr(model.estimator, "classes_", np.unique(y))) if is_frozen else np.unique(y)
    codes, is_unknown = _encode(y, classes)
    if is_unknown.any():
        row = int(np.argmax(is_unknown))
        raise ValueError(
            f"y must contain only classes that the frozen estimator knows ({classes[:9].tolist()}), "
            f"got {y.tolist()[row]!r} at row {row}; drop the rows of other classes"
        )
    n_seen = len(classes if is_frozen else np.unique(y[has_weight]))
    if n_seen < 2:
        knows_classes = is_frozen and hasattr(model.estimator, "classes_")
        subject = "the frozen estimator must know" if knows_classes else "y must contain"
        where = "" if is_frozen else " in rows of positive weight"
        remedy = "train it on more classes" if knows_classes else "add rows of other classes"
        raise ValueError(f"{subject} two classes or more, got {n_seen} class{where}; {remedy}")
    fold_groups = check_fold_groups(fold_groups, len(y), slice(None))
    params = _route_params(model, weight, fit_params)
    return _Data(X, y, classes, codes, weight, has_weight, groups, fold_groups, *params)


def _route_params(
    model: CalibratedClassifier, weight: NDArray[np.float64] | None, fit_params: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keyword arguments of the estimator's `fit` and of the splitter."""
    if isinstance(model.estimator, FrozenEstimator):
        if fit_params:
            raise TypeError(
                "fit_params must be left out for a frozen estimator, which is not fitted again, got "
                f"{sorted(fit_params)}; remove them"
            )
        return {}, {}
    if get_config()["enable_metadata_routing"]:
        routed = process_routing(model, "fit", sample_weight=weight, **fit_params)
        return dict(routed.estimator.fit), dict(routed.splitter.split)
    if weight is None:
        return fit_params, {}
    if has_fit_parameter(model.estimator, "sample_weight"):
        return {**fit_params, "sample_weight": weight}, {}
    emit(
        f"sample_weight should be accepted by the estimator, got {model.estimator!r}, which ignores weights; "
        "only the calibrator is weighted"
    )
    return fit_params, {}
