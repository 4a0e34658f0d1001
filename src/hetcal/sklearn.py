"""Any scikit-learn classifier with calibrated probabilities, by any of hetcal's calibrators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
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
from hetcal._validate import check_fold_groups, check_groups, check_logits, check_probs, check_weights
from hetcal._warnings import emit, warn_thin_data
from hetcal.artefact import uses_groups
from hetcal.calibrators import ClassWiseTemperatureScaling
from hetcal.calibrators.base import FitInput, fit_and_record, predict_step
from hetcal.conversion import binary_logits

__all__ = ["CalibratedClassifier"]

_SCORES, _PROBS = "decision_function", "predict_proba"
_METHODS = {"auto": (_SCORES, _PROBS), _SCORES: (_SCORES,), _PROBS: (_PROBS,)}


class CalibratedClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier with calibrated probabilities, class by class unless another calibrator is given.

    The calibrator learns from rows that the estimator was not trained on: those left out in cross-validation,
    or all rows where the estimator is fitted already and wrapped in :class:`sklearn.frozen.FrozenEstimator`.

    Parameters
    ----------
    estimator : classifier with ``decision_function`` or ``predict_proba``
    calibrator : calibrator, by default ``ClassWiseTemperatureScaling(gamma="cv")``
    cv : int, splitter, iterable of (train, test), or None for 5
        A number gives stratified folds. Splits need not cover all rows; a row tested twice counts twice.
    ensemble : bool
        False: the estimator is fitted again on all rows, with one calibrator for the left-out rows of all
        folds; predictions are the estimator's own where the calibrator keeps decisions. True: an estimator
        and a calibrator per fold, probabilities averaged; the argmax of the average may differ from members'.
    response_method : "auto", "decision_function" or "predict_proba"
        Where logits come from. "auto" takes ``decision_function`` where it has a column per class, or one
        score for two classes, else the logarithm of ``predict_proba``.
    n_jobs : int, optional, how many folds are fitted at the same time

    Attributes
    ----------
    classes_ : (K,) labels in the order of the columns; those that a frozen estimator knows
    estimators_, calibrators_ : lists of one, or of one per fold
    n_features_in_, feature_names_in_ : of the estimator, where it has them

    Notes
    -----
    A probability of 0 (trees, neighbours) counts as half the smallest positive one among the left-out rows. A
    class missing where an estimator is trained has its logit below
    all others, by the mean step between a row's logits; folds that train on one class only are left out. So
    are rows of weight zero, but for the training of an estimator that takes no weights.

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
        """Fit estimator and calibrator on `X`, as the estimator takes it, and labels (n,) of any type.

        Parameters
        ----------
        sample_weight : (n,) for the calibrator, and for the estimator where it takes weights
        calibration_groups : (n,) groups to calibrate apart; `predict_proba` needs them, too
        fold_groups : (n,) names of what belongs together (a patient, a user)
            Their rows stay in one fold, of the calibrator's own cross-validation and, where `cv` is a number,
            of this one.
        **fit_params
            For the estimator, entries per row cut into folds; with metadata routing, for who requests them.
        """
        _check_options(self)
        rows = _check_rows(self, X, y, sample_weight, calibration_groups, fold_groups, fit_params)
        self._members = _fit_members(self, rows)
        self.classes_ = rows.classes
        self.estimators_ = [member.estimator for member in self._members]
        self.calibrators_ = [member.calibrator for member in self._members]
        for name in ("n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
            if hasattr(self.estimators_[0], name):
                setattr(self, name, getattr(self.estimators_[0], name))
        return self

    def logits(self, X: Any) -> FloatArray:
        """Logits (n, K) that the calibrator is given: for diagnosis, reports and saved calibrators."""
        check_is_fitted(self)
        if len(self._members) > 1:
            raise ValueError("ensemble must be False for logits, got True; members differ in theirs")
        return self._members[0].logits(X, len(self.classes_))

    def predict_proba(self, X: Any, *, calibration_groups: ArrayLike | None = None) -> FloatArray:
        """Calibrated probabilities (n, K); `calibration_groups` where they were given to `fit`."""
        check_is_fitted(self)
        parts = [member.predict_proba(X, len(self.classes_), calibration_groups) for member in self._members]
        return parts[0] if len(parts) == 1 else np.asarray(np.mean(parts, axis=0))

    def predict(self, X: Any, *, calibration_groups: ArrayLike | None = None) -> NDArray[Any]:
        """Label of the largest probability; groups can be left out where they cannot change it."""
        check_is_fitted(self)
        settled = len(self._members) == 1 and getattr(self.calibrators_[0], "preserves_decision", False)
        if settled and calibration_groups is None and uses_groups(self.calibrators_[0]):
            return np.asarray(self.classes_[self.logits(X).argmax(axis=1)])
        p = self.predict_proba(X, calibration_groups=calibration_groups)
        return np.asarray(self.classes_[p.argmax(axis=1)])

    def get_metadata_routing(self) -> Any:
        """Who takes which metadata in `fit`: the estimator, the splitter, and this object."""
        router = MetadataRouter(owner=type(self).__name__).add_self_request(self)
        if isinstance(self.estimator, FrozenEstimator):
            return router
        router.add(estimator=self.estimator, method_mapping=MethodMapping().add(caller="fit", callee="fit"))
        return router.add(splitter=self.cv, method_mapping=MethodMapping().add(caller="fit", callee="split"))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        with contextlib.suppress(AttributeError):  # a frozen object of another library has none
            inner = get_tags(self.estimator)
            tags.input_tags, tags.non_deterministic = inner.input_tags, inner.non_deterministic
            tags.classifier_tags.multi_class = getattr(inner.classifier_tags, "multi_class", True)
        return tags


@dataclass(frozen=True)
class _Rows:
    """What `fit` was given, checked, with the metadata of the estimator and of the splitter."""

    X: Any
    y: NDArray[Any]
    classes: NDArray[Any]
    codes: IntArray
    weight: NDArray[np.float64] | None
    weighed: NDArray[np.bool_]  # where weight is positive
    groups: NDArray[Any] | None
    fold_groups: IntArray | None
    fit_params: dict[str, Any]
    split_params: dict[str, Any]


@dataclass(frozen=True)
class _Member:
    """An estimator, how its response becomes logits (n, K), and the calibrator of those."""

    estimator: Any
    columns: IntArray
    method: str
    floor: float | None = None  # what smaller probabilities count as; None where there are scores
    calibrator: Any = None

    def logits(self, X: Any, n_classes: int) -> FloatArray:
        values = _respond(self.estimator, X, self.method, len(self.columns))[1]
        return self.place(values, self.floor, n_classes)

    def place(self, values: FloatArray, floor: float | None, n_classes: int) -> FloatArray:
        """Logits (n, K) from scores or probabilities (n, seen)."""
        z = log_probs(values, floor) if self.method == _PROBS else values
        return _place(z, self.columns, n_classes)

    def predict_proba(self, X: Any, n_classes: int, groups: ArrayLike | None) -> FloatArray:
        z = check_logits(self.logits(X, n_classes), probs_remedy=None)
        g = None if groups is None else check_groups(groups, n_rows=len(z), name="calibration_groups")
        return predict_step(self.calibrator, z, g)


_Answer = tuple[_Member, IntArray, FloatArray]  # scores or probabilities that a member gives to some rows


def _fit_members(model: CalibratedClassifier, rows: _Rows) -> list[_Member]:
    """One member, or one per fold."""
    calibrator = ClassWiseTemperatureScaling(gamma="cv") if model.calibrator is None else model.calibrator
    method, weighed = str(model.response_method), rows.weighed
    if isinstance(model.estimator, FrozenEstimator):
        at = np.flatnonzero(weighed)
        member, z = _ask(model.estimator, rows, at, _safe_indexing(rows.X, at), method)
        return [_calibrate(calibrator, member, [(member, at, z)], rows)]
    # An estimator that is given weights does without the rows of none, unless its columns stand for rows.
    drops = "sample_weight" in rows.fit_params and not get_tags(model.estimator).input_tags.pairwise
    kept = weighed if drops else np.ones(len(rows.y), bool)
    final = None
    if not model.ensemble:  # what the estimator for all rows has, those of the folds are asked for
        at = np.flatnonzero(kept)
        whole = _fit_estimator(model.estimator, rows, at)
        final, _ = _ask(whole, rows, at, _safe_indexing(rows.X, [0]), method)
        method = final.method
    answers = Parallel(n_jobs=model.n_jobs)(
        delayed(_fit_fold)(model.estimator, rows, train, test[weighed[test]], method, final is None)
        for train, test in _splits(model.cv, rows, kept)
        if len(np.unique(rows.codes[train])) > 1 and weighed[test].any()
    )
    if not answers:
        raise ValueError(f"cv must train on two classes in some split, got {model.cv!r}; shuffle the rows")
    if final is not None:
        return [_calibrate(calibrator, final, answers, rows)]
    return [_calibrate(calibrator, answer[0], [answer], rows) for answer in answers]


def _splits(cv: Any, rows: _Rows, kept: NDArray[np.bool_]) -> Iterator[tuple[IntArray, IntArray]]:
    """Rows to train on, all of them `kept`, and rows to test on."""
    everything = np.arange(len(rows.y))
    if cv is None or isinstance(cv, int | np.integer):
        everything, n_folds = everything[kept], 5 if cv is None else int(cv)
        most = np.bincount(rows.codes[everything]).max()
        if not 2 <= n_folds <= most:
            raise ValueError(f"cv must be in 2..{most}, the rows of the largest class, got {cv!r}")
        if rows.fold_groups is None:
            fold = _stratified_folds(rows.codes[everything], n_folds)
        else:
            fold = _group_folds(rows.fold_groups[everything], n_folds)
            n_folds = int(fold.max()) + 1
        pairs = ((np.flatnonzero(fold != f), np.flatnonzero(fold == f)) for f in range(n_folds))
    else:
        pairs = check_cv(cv, rows.codes, classifier=True).split(rows.X, rows.y, **rows.split_params)
    for train, test in pairs:
        at = everything[train]
        yield at[kept[at]], everything[test]


def _stratified_folds(codes: IntArray, n_folds: int) -> IntArray:
    """Fold of every row, as scikit-learn's ``StratifiedKFold(n_folds)`` assigns it.

    That class warns about classes with fewer rows than folds. Here they may be missing from a fold.
    """
    _, first, code = np.unique(codes, return_index=True, return_inverse=True)
    code = first.argsort().argsort()[code]  # classes in the order in which they appear
    by_class = np.argsort(code, kind="stable")
    turns = np.arange(len(code)) % n_folds  # sizes of folds, and of a class in them, differ by one at most
    fold = np.empty_like(code)
    fold[by_class] = turns[np.lexsort((turns, code[by_class]))]  # neighbours of a class stay together
    return fold


def _group_folds(groups: IntArray, n_folds: int) -> IntArray:
    """Fold of every row, all rows of a group in the same one."""
    n_folds = min(n_folds, len(np.unique(groups)))
    fold = np.empty(len(groups), np.int64)
    for f, (_, test) in enumerate(GroupKFold(n_folds).split(groups, groups=groups)):
        fold[test] = f
    return fold


def _fit_fold(base: Any, rows: _Rows, train: IntArray, test: IntArray, method: str, keep: bool) -> _Answer:
    X, _ = _safe_split(base, rows.X, None, test, train)
    member, z = _ask(_fit_estimator(base, rows, train), rows, train, X, method)
    return member if keep else replace(member, estimator=None), test, z


def _fit_estimator(estimator: Any, rows: _Rows, at: IntArray) -> Any:
    whole = np.array_equal(at, np.arange(len(rows.y)))
    X, y = (rows.X, rows.y) if whole else _safe_split(estimator, rows.X, rows.y, at)
    return clone(estimator).fit(X, y, **_check_method_params(rows.X, rows.fit_params, None if whole else at))


def _ask(fitted: Any, rows: _Rows, train: IntArray, X: Any, method: str) -> tuple[_Member, FloatArray]:
    """A member without its calibrator, and the logits that it gives to `X`."""
    known = np.asarray(getattr(fitted, "classes_", np.unique(rows.y[train])))
    columns = _encode(known, rows.classes, "y must hold every class that the estimator knows")
    used, z = _respond(fitted, X, method, len(columns))
    return _Member(fitted, columns, used), z


def _respond(estimator: Any, X: Any, method: str, n_seen: int) -> tuple[str, FloatArray]:
    """Method that was used, and its scores or probabilities (n, seen)."""
    values: NDArray[Any] = np.empty(0)
    for name in (name for name in _METHODS[method] if hasattr(estimator, name)):
        values, scores = np.asarray(getattr(estimator, name)(X)), name == _SCORES
        if scores and n_seen == 2 and values.size == len(values):
            return name, binary_logits(values)
        fits = values.shape[1:] == (n_seen,)
        if fits and not scores:
            return name, check_probs(values, name="predict_proba")
        if fits and not (n_seen == 3 and _is_one_vs_one(estimator)):
            return name, values
    raise ValueError(
        f"estimator must give a column per class in {' or '.join(_METHODS[method])}, got {values.shape} for "
        f"{n_seen} classes; set decision_function_shape='ovr' in an SVC"
    )


def _is_one_vs_one(estimator: Any) -> bool:
    """Whether an SVC inside gives a score per pair of classes; of three classes there are three pairs."""
    inner = estimator.estimator if isinstance(estimator, FrozenEstimator) else estimator
    params: dict[str, Any] = getattr(getattr(inner, "best_estimator_", inner), "get_params", dict)()
    return any(name.endswith("decision_function_shape") and v == "ovo" for name, v in params.items())


def _place(z: FloatArray, columns: IntArray, n_classes: int) -> FloatArray:
    """Logits (n, K), classes that the estimator does not know below all others."""
    if len(columns) == n_classes:
        return z
    low = z.min(axis=1)
    step = (z.max(axis=1) - low) / max(len(columns) - 1, 1)
    fill = np.minimum(low - np.where(step > 0, step, 1), np.nextafter(low, -np.inf))
    wide = np.repeat(fill[:, None], n_classes, axis=1).astype(z.dtype)
    wide[:, columns] = z
    return wide


def _calibrate(calibrator: Any, member: _Member, answers: list[_Answer], rows: _Rows) -> _Member:
    """Fit a calibrator for a member on the answers to left-out rows, in the order of the rows."""
    n_classes, floor = len(rows.classes), None
    if member.method == _PROBS:
        floor = min(probability_floor(p) for _, _, p in answers)
    z = np.concatenate([m.place(values, floor, n_classes) for m, _, values in answers])
    at = np.concatenate([at for _, at, _ in answers])
    order = np.argsort(at, kind="stable")
    at = at[order]
    z = check_logits(z[order], name=member.method, probs_remedy=None)
    warn_thin_data(rows.codes[at], n_classes)
    weight, groups, together = (
        None if part is None else part[at] for part in (rows.weight, rows.groups, rows.fold_groups)
    )
    fitted_rows = prepare(z, rows.codes[at], None if weight is None else normalise_weights(weight))
    source = MemorySource(fitted_rows, groups, together)
    names = [str(int(c) if isinstance(c, float) and c.is_integer() else c) for c in rows.classes.tolist()]
    fitted = fit_and_record(calibrator, FitInput(source, names, fingerprint(fitted_rows), floor))
    known = rows.groups if uses_groups(fitted) else None
    if known is not None and (never := np.setdiff1d(known[rows.weighed], known[at]).tolist()):
        remedy = "use splits that test rows of every group, as fewer folds or ensemble=False may"
        raise ValueError(f"calibration_groups must all be tested, got none of {never}; {remedy}")
    return replace(member, floor=floor, calibrator=fitted)


def _encode(labels: NDArray[Any], classes: NDArray[Any], rule: str) -> IntArray:
    order = np.argsort(classes, kind="stable")
    codes = order[np.minimum(np.searchsorted(classes, labels, sorter=order), len(classes) - 1)]
    strange = classes[codes] != labels
    if strange.any():
        row = int(np.argmax(strange))
        raise ValueError(f"{rule}, got {labels.tolist()[row]!r} at row {row}; known: {classes[:9].tolist()}")
    return codes


def _check_options(model: CalibratedClassifier) -> None:
    if model.response_method not in _METHODS:
        raise ValueError(f"response_method must be one of {list(_METHODS)}, got {model.response_method!r}")
    if not isinstance(model.ensemble, bool | np.bool_):
        raise TypeError(f"ensemble must be True or False, got {model.ensemble!r}")
    if isinstance(model.cv, bool | str):
        raise TypeError(f"cv must be a number or splits, got {model.cv!r}; a FrozenEstimator needs none")
    methods = _METHODS[model.response_method]
    if isinstance(model.estimator, type) or not any(hasattr(model.estimator, name) for name in methods):
        raise TypeError(
            f"estimator must have {' or '.join(methods)}, got {model.estimator!r}; "
            "pass a classifier object that gives scores or probabilities"
        )
    given = model.calibrator
    whole = not isinstance(given, type) and all(hasattr(given, name) for name in ("fit", "predict_proba"))
    if given is not None and not whole:
        raise TypeError(f"calibrator must have fit and predict_proba, got {given!r}; pass an object")


def _check_rows(
    model: CalibratedClassifier,
    X: Any,
    y: Any,
    sample_weight: Any,
    groups: Any,
    fold_groups: Any,
    fit_params: dict[str, Any],
) -> _Rows:
    if y is None:
        raise ValueError("y must be given, got None: requires y to be passed, but the target y is None")
    X, y = indexable(X, y)
    y = column_or_1d(y, warn=True)
    assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    weight = check_weights(sample_weight, n_rows=len(y))
    weighed = np.ones(len(y), bool) if weight is None else weight > 0
    if groups is not None:
        groups = check_groups(groups, n_rows=len(y), name="calibration_groups")
    frozen = isinstance(model.estimator, FrozenEstimator)
    classes = np.asarray(getattr(model.estimator, "classes_", np.unique(y))) if frozen else np.unique(y)
    codes = _encode(y, classes, "y must hold classes that the frozen estimator knows")
    seen = classes if frozen else np.unique(y[weighed])
    if len(seen) < 2:
        raise ValueError(f"y must hold two classes or more, got {len(seen)} class in rows with weight")
    together = check_fold_groups(fold_groups, len(y), slice(None))
    return _Rows(X, y, classes, codes, weight, weighed, groups, together, *_route(model, weight, fit_params))


def _route(
    model: CalibratedClassifier, weight: NDArray[np.float64] | None, fit_params: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the estimator's `fit` and the splitter are given."""
    if isinstance(model.estimator, FrozenEstimator):
        if fit_params:
            raise TypeError(f"fit_params must be left out for a frozen estimator, got {sorted(fit_params)}")
        return {}, {}
    if get_config()["enable_metadata_routing"]:
        routed = process_routing(model, "fit", sample_weight=weight, **fit_params)
        return dict(routed.estimator.fit), dict(routed.splitter.split)
    if weight is not None and has_fit_parameter(model.estimator, "sample_weight"):
        fit_params = {**fit_params, "sample_weight": weight}
    elif weight is not None:
        text = f"sample_weight should reach the estimator, got {model.estimator!r} that takes none"
        emit(f"{text}; only the calibrator is weighted")
    return fit_params, {}
