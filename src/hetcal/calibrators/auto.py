"""A mixture of candidate calibrators, or the best one, chosen by cross-validated NLL."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from hetcal._numeric.families import PlattFamily
from hetcal._numeric.folds import count_repeats
from hetcal._numeric.label_models import NoisyLabels, noisy_correctness
from hetcal._numeric.passes import sum_slices
from hetcal._numeric.rows import Rows
from hetcal._numeric.source import MemorySource, Source
from hetcal._numeric.temperatures import DEFAULT_BOUNDS, fit_pooled
from hetcal._numeric.threads import one_blas_thread
from hetcal._progress import report_progress
from hetcal._typing import Float, FloatArray, IntArray
from hetcal._validate import check_choice, check_flag, check_integer
from hetcal._warnings import quiet, warn_repeats
from hetcal.calibrators.affine import PlattScaling, VectorScaling
from hetcal.calibrators.base import (
    Calibrator,
    NextStep,
    fit_step,
    log_for_next_step,
    map_of_step,
    needs_memory,
    predict_step,
)
from hetcal.calibrators.binary import BinaryScaling
from hetcal.calibrators.classwise import ClassWise
from hetcal.calibrators.compose import Chain, Mixture, check_steps, normalise_shares
from hetcal.calibrators.matrix import MatrixScaling
from hetcal.calibrators.temperature import ClassWiseTemperatureScaling, Identity, TemperatureScaling
from hetcal.export import maps

__all__ = ["THEN", "AutoCalibrator", "decision_advice", "default_candidates", "free_candidates"]


THEN = "; then class-wise Platt"  # end of `best_name_` if there is a final class-wise Platt step
_FINAL_STRENGTH = 0.25  # `strength` in `_fit_final_step` if `_trust` returns 1, its maximum
_MIN_WEIGHT = 0.03  # candidates with less weight are dropped
_MIN_FREE_WEIGHT = 0.1  # replaces `_MIN_WEIGHT` for the default candidates if decisions may change
# Number of rows that the prior of "TS" counts as; only for the default candidates if decisions are kept.
_SIMPLE_ROWS = 2.0
_MIN_SHOWN_WEIGHT = 0.005  # candidates with less weight are not shown in `best_name_`
_MIN_PROB = float(np.finfo(np.float32).tiny)  # smaller probabilities are raised to this
_MAX_CV_ROWS, _MAX_CV_ROWS_PER_CLASS = 100_000, 2_000  # more rows would hardly change the weights
_SAMPLE_SALT = 7  # salt of the hashes that draw the sample of `_sample_for_weights`
_NEWTON_STEPS, _CONVERGED = 50, 1e-12
_MANY_CLASSES = 20  # with more classes, matrix scaling with curves takes too long
_MAX_MATRIX_CLASSES = 150  # with more classes, `free_candidates` contains no matrix scaling
_LARGE_COST = 0.02  # the cost of keeping decisions is large only if it exceeds this fraction of the log-loss
_NO_ERRORS = 1e-6  # fewer expected errors count as none, since soft labels cause rounding errors
# `_error_free_candidates` bounds the mean confidence by the accuracy at which all rows are correct with this
# probability.
_CHANCE = 0.05


def default_candidates(n_classes: int, n_rows: float) -> dict[str, Any]:
    """Default candidates if decisions are kept; the first one is the identity."""
    temperature, shrunk = TemperatureScaling(), ClassWiseTemperatureScaling(gamma="bayes")
    platt = ClassWise(PlattScaling(pool=True), gamma="bayes")
    vector = _vector_scaling(n_rows, keep_decision=True)
    candidates: dict[str, Any] = {"Identity": Identity(), "TS": temperature, "CTS bayes": shrunk}
    if n_classes > _MANY_CLASSES:
        return {
            **candidates,
            "VS, CTS bayes": Chain([vector, shrunk]),
            "TS, class-wise Platt": Chain([temperature, platt]),
            "TS, class-wise Platt, VS, class-wise Platt": Chain([temperature, platt, vector, platt]),
        }
    candidates["VS, class-wise Platt"] = Chain([vector, platt])
    if n_classes == 2:
        return candidates | {name: BinaryScaling(name, keep_decision=True) for name in ("spline", "isotonic")}
    matrix = MatrixScaling(center="mean", features="spline", keep_decision=True)
    return {**candidates, "MS with curves": matrix}


def free_candidates(source: Source) -> dict[str, Any]:
    """Default candidates if decisions may change; the first one is the identity."""
    n_classes, temperature = source.n_classes, TemperatureScaling()
    platt = ClassWise(PlattScaling(pool=True), gamma="bayes")
    vector = _vector_scaling(source.weights()[0], keep_decision=False)
    candidates: dict[str, Any] = {"Identity": Identity(), "TS": temperature}
    if n_classes > _MANY_CLASSES:
        candidates["TS, class-wise Platt"] = Chain([temperature, platt])
        chain = Chain([temperature, platt, vector, platt])
        candidates["TS, class-wise Platt, VS, class-wise Platt"] = chain
        if n_classes <= _MAX_MATRIX_CLASSES:
            # Choosing the penalties takes most of the time of a fit. They are therefore chosen once, on all
            # rows, instead of in every fold.
            with quiet(Warning):
                penalty = fit_step(MatrixScaling(center="mean"), source).penalty_
            candidates["MS"] = MatrixScaling(tuple(map(float, penalty)), center="mean")
        return candidates
    candidates["VS, class-wise Platt"] = Chain([vector, platt])
    if n_classes == 2:
        binary = {name: BinaryScaling(name) for name in ("linear", "spline", "isotonic")}
        return {**candidates, **binary, "MS of log-probabilities": MatrixScaling()}
    return {
        **candidates,
        "TS, class-wise Platt": Chain([temperature, platt]),
        "MS of log-probabilities": MatrixScaling(),
        "MS with curves": MatrixScaling(center="mean", features="spline"),
    }


def _vector_scaling(n_rows: float, *, keep_decision: bool) -> VectorScaling:
    """Vector scaling whose ridge amounts to normal priors on scales and biases with standard deviation 1."""
    return VectorScaling(1 / n_rows, center=True, keep_decision=keep_decision)


def decision_advice(cost: Mapping[str, Any] | None, remedy: str) -> str | None:
    """Sentence that recommends `remedy` if keeping decisions is costly, otherwise None.

    Parameters
    ----------
    cost : ``AutoCalibrator.decision_cost_``
    remedy : how to allow changes of decisions, in the words of the interface that shows the advice
    """
    if cost is None or not cost["is_large"]:
        return None
    return (
        "Keeping decisions is costly: on left-out rows, a calibrator without this restriction changes "
        f"{cost['changed']:.1%} of the decisions; the log-loss falls from {cost['nll']:.3f} to "
        f"{cost['free_nll']:.3f}, and the accuracy goes from {cost['accuracy']:.1%} to "
        f"{cost['free_accuracy']:.1%}; {remedy}"
    )


class AutoCalibrator(Calibrator):
    """A mixture of candidate calibrators that minimises the cross-validated NLL, or the best candidate.

    Parameters
    ----------
    candidates : mapping of name to calibrator, optional
        The notes below describe the default candidates, which depend on `keep_decision`.
    cv : int, number of folds
        About 100,000 rows (or 2,000 per class, if that is more) suffice to determine the weights. With at
        least twice as many rows, only a sample of them is cross-validated. The candidates with positive
        weight are then fitted on all rows. If the rows are in batches or on Dask, those to cross-validate are
        read into memory; the sample is the same as for arrays.
    combine : "stack" or "best"
        "stack" averages the candidates' probabilities, with weights chosen to minimise the cross-validated
        NLL. The average preserves decisions if all candidates preserve them. "best" uses the candidate with
        the lowest cross-validated NLL, or the first of several with equal NLL.
    keep_decision : bool
        Whether the default candidates preserve decisions. With False, some of them may change decisions,
        which lowers the NLL if many decisions are wrong in a systematic way. Not used with `candidates`.

    Attributes
    ----------
    best_ : the fitted calibrator, a :class:`Mixture` if several candidates have positive weight
        With a final step, a :class:`Chain` of this calibrator and class-wise Platt scaling.
    best_name_ : str for display: the members of `best_` by decreasing weight, and the final step if any
        Members with a weight below 0.5% are left out.
    has_final_step_ : bool, whether `best_` ends with the final class-wise Platt step described in the notes
    candidates_ : list of dict with the keys ``name``, ``nll``, ``error``, ``weight``, ``preserves_decision``
        ``nll`` is the cross-validated NLL, and ``error`` is the standard error of its difference from the
        lowest one. ``weight`` is the weight in the mixture; with ``combine="best"``, it is 1 for the best
        candidate and 0 for all others.
    decision_cost_ : dict, or None
        What it costs to keep decisions, measured on left-out rows. The mixture or best candidate (without a
        final step), which keeps decisions, is compared with a single calibrator that may change them. This
        calibrator is binary scaling with a spline for two classes, matrix scaling with curves for 3 to 20
        classes, and vector scaling for more. ``changed`` is the share of decisions that it changes, and
        ``free_nll`` and ``free_accuracy`` are its NLL and accuracy. ``nll`` and ``accuracy`` are those with
        decisions kept. ``is_large`` says whether ``free_nll`` is lower than ``nll`` by more than two standard
        errors and by more than 2%. The attribute is None if the cost was not measured: with `candidates`,
        with ``keep_decision=False``, if no row is misclassified, or if no row could be left out.

    Notes
    -----
    If no row is misclassified (with `transition`: if the estimated number of errors is not positive), the
    default candidates are only the identity and one temperature. Otherwise, with ``keep_decision=True``, they
    are the identity, one temperature, shrunk class-wise temperatures, and the following, all of which
    preserve decisions:

    - For two classes: vector scaling followed by class-wise Platt scaling, binary scaling with a spline, and
      binary scaling by isotonic regression.
    - For 3 to 20 classes: vector scaling followed by class-wise Platt scaling, and matrix scaling with a
      curve per class.
    - For more classes, where matrix scaling with curves would be too slow: vector scaling followed by shrunk
      class-wise temperatures, one temperature followed by class-wise Platt scaling, and these two steps
      followed by vector scaling and class-wise Platt scaling.

    With ``keep_decision=False``, they are the identity, one temperature, and the following:

    - For two classes: vector scaling followed by class-wise Platt scaling, matrix scaling of
      log-probabilities, and binary scaling with linear features, with a spline, and by isotonic regression.
    - For 3 to 20 classes: vector scaling followed by class-wise Platt scaling, one temperature followed by
      class-wise Platt scaling, matrix scaling of log-probabilities, and matrix scaling with a curve per
      class.
    - For more classes: one temperature followed by class-wise Platt scaling, and these two steps followed by
      vector scaling and class-wise Platt scaling. For up to 150 classes, also matrix scaling of centred
      logits.

    With ``combine="stack"``, a Dirichlet prior counts as one row for each candidate. With
    ``keep_decision=True``, it counts as two rows for the default candidate with one temperature. Candidates
    with a weight below 3% are dropped; for the default candidates with ``keep_decision=False``, the limit is
    10%. If the candidates are the default ones, the identity then receives the weight of about one additional
    row, as insurance against errors that do not occur in the data.

    With default candidates, ``combine="stack"`` and ``keep_decision=True``, a final class-wise Platt step
    corrects the mixture if the gain over one temperature exceeds its standard error. This step is fitted on
    out-of-fold predictions and shrunk towards the identity. It is left out if there are no out-of-fold
    predictions or, with `groups`, if one of the groups has none.
    """

    _unsaved = ("candidates",)  # predictions need only `best_`

    def __init__(
        self,
        candidates: Mapping[str, Any] | None = None,
        *,
        cv: int = 5,
        combine: Literal["stack", "best"] = "stack",
        keep_decision: bool = True,
    ) -> None:
        self.candidates = candidates
        self.cv = cv
        self.combine = combine
        self.keep_decision = keep_decision

    @property
    def preserves_decision(self) -> bool:
        """Whether the argmax is preserved by the fitted calibrator or, before `fit`, by every candidate."""
        if hasattr(self, "best_"):
            return _preserves(self.best_)
        if self.candidates is None:
            return bool(self.keep_decision)
        return all(_preserves(c) for c in _check_candidates(self.candidates).values())

    # `fit` sets the attributes `has_final_step_` and `decision_cost_`. These properties provide them for
    # calibrators that earlier versions of hetcal saved without these attributes.
    @functools.cached_property
    def has_final_step_(self) -> bool:
        """Whether the mixture of the default candidates is followed by a final class-wise Platt step."""
        return isinstance(self.best_, Chain) and isinstance(self.best_.steps_[0], Mixture)

    @functools.cached_property
    def decision_cost_(self) -> dict[str, Any] | None:
        """What it costs to keep decisions, or None if it was not measured."""
        check_is_fitted(self)
        return None

    @property
    def advice_(self) -> str | None:
        """Sentence that recommends ``keep_decision=False`` if keeping decisions is costly, otherwise None."""
        return decision_advice(self.decision_cost_, "pass keep_decision=False")

    def _needs_memory(self) -> bool:
        return self.candidates is not None and any(
            map(needs_memory, _check_candidates(self.candidates).values())
        )

    def _fit(self, source: Source) -> None:
        _check_options(self)
        n_rows = int(source.counts().sum())
        sample = _sample_for_weights(source, n_rows)
        if len(sample) == n_rows:
            source = sample  # all rows are in memory, where every pass is faster
        candidates = _candidates(self, source)
        sample = sample.with_certain_labels()
        if sample.fold_groups is None:
            _warn_about_copies(sample)
        is_default = self.candidates is None and self.keep_decision
        restricted = _restricted_step(candidates) if is_default else None
        trial = _cross_validate(candidates, sample, int(self.cv), restricted, source.group_names())
        with one_blas_thread():  # results must not depend on the number of cores
            score = trial.nll @ trial.share
            best = int(np.argmin(score))
            weights, strength = _weigh(self, trial, best, candidates)
        error = np.sqrt(len(trial.share)) * ((trial.nll - trial.nll[best]) * trial.share).std(axis=1)
        preserves = map(_preserves, candidates.values())
        self.candidates_ = [
            {"name": name, "nll": float(s), "error": float(e), "weight": float(v), "preserves_decision": k}
            for name, s, e, v, k in zip(candidates, score, error, weights, preserves, strict=True)
        ]
        self.decision_cost_ = _decision_cost(trial, weights)
        order = [int(i) for i in np.argsort(-weights, kind="stable") if weights[i] > 0]
        members = [list(candidates.values())[i] for i in order]
        self.best_ = _fit_members(members, weights[order], source)
        self.best_name_ = _name(list(candidates), weights, order)
        final = _fit_final_step(trial, weights, strength) if strength > 0 else None
        self.has_final_step_ = final is not None
        if final is not None:
            self.best_, self.best_name_ = _join(self.best_, final), self.best_name_ + THEN

    def _map(self) -> maps.Map:
        return map_of_step(self.best_)

    @classmethod
    def _examples(cls) -> list[Self]:
        return [cls(cv=2), cls(cv=2, keep_decision=False)]


def _error_free_candidates(source: Source) -> dict[str, Any]:
    """Candidates for rows that are all predicted correctly: the identity and one temperature.

    Such rows favour ever sharper probabilities. But a classifier with an accuracy of only ``0.05^(1/n)``
    also predicts all n rows correctly with probability 0.05. Temperature scaling is therefore bounded so that
    it cannot raise the mean confidence above this accuracy.
    """
    supported = float(_CHANCE ** (1 / source.weights()[0]))

    def excess(alpha: float) -> float:
        confidence, total = source.sum_rows(_Confidence(alpha))
        return float(confidence / total - supported)

    low, high = TemperatureScaling().alpha_bounds
    sharpest = 1.0 if excess(1.0) >= 0 else high
    if sharpest > 1 and excess(high) > 0:
        sharpest = float(brentq(excess, 1.0, high))
    return {"Identity": Identity(), "TS": TemperatureScaling((low, sharpest))}


@dataclass(frozen=True)
class _Confidence:
    """Function that sums the weighted confidences ``max softmax(α z)`` of rows, and their weights."""

    alpha: float

    def __call__(self, rows: Rows) -> tuple[NDArray[Any], ...]:
        below = rows.below_top(slice(None)).astype(np.float64)
        confidence = 1 / np.exp(self.alpha * below).sum(axis=1)
        return np.array((rows.weight * confidence).sum()), np.array(rows.weight.sum())


def _count_errors(rows: Rows) -> tuple[NDArray[Any], ...]:
    if rows.label_model is None:
        return (np.array(float(np.count_nonzero(~rows.right))),)
    return (np.array(np.sum(1 - rows.correctness)),)


def _warn_about_copies(memory: MemorySource) -> None:
    """Warn about copies of rows, which may be among both the training and the test rows of a fold."""

    def pooled_alpha() -> float:
        with quiet(Warning):  # the fits of the candidates emit the same warnings later
            return fit_pooled(memory, DEFAULT_BOUNDS)[0]

    warn_repeats(count_repeats(memory.rows, pooled_alpha))


def _check_options(model: AutoCalibrator) -> None:
    if model.candidates is not None:
        _check_candidates(model.candidates)
    check_flag(model.keep_decision, "keep_decision")
    check_integer(model.cv, "cv", minimum=2)
    check_choice(model.combine, "combine", ("stack", "best"))


def _weigh(
    model: AutoCalibrator, trial: _Trial, best: int, candidates: Mapping[str, Any]
) -> tuple[Float, float]:
    """Weights (M,) of the candidates, and the strength of the final step (0 if there is none)."""
    nll, share, n = trial.nll, trial.share, trial.n_independent
    weights: Float = np.zeros(len(candidates))
    weights[best] = 1
    if model.combine == "best":
        return weights, 0.0
    prior: Float = np.ones(len(candidates))
    if model.candidates is not None:
        return _stack(nll, share, weights, prior / n, _MIN_WEIGHT), 0.0
    if not model.keep_decision:
        return _insure(_stack(nll, share, weights, prior / n, _MIN_FREE_WEIGHT), n), 0.0
    is_simple = [isinstance(candidate, TemperatureScaling) for candidate in candidates.values()]
    simple = is_simple.index(True)
    prior[simple] = _SIMPLE_ROWS
    weights = _stack(nll, share, weights, prior / n, _MIN_WEIGHT)
    return _insure(weights, n), _FINAL_STRENGTH * _trust(trial, weights, simple)


def _candidates(model: AutoCalibrator, source: Source) -> dict[str, Any]:
    if model.candidates is not None:
        return _check_candidates(model.candidates)
    (n_errors,) = source.sum_rows(_count_errors)
    if n_errors < _NO_ERRORS:  # with noisy labels, this number is an estimate that may be negative
        return _error_free_candidates(source)
    if not model.keep_decision:
        return free_candidates(source)
    return default_candidates(source.n_classes, source.weights()[0])


def _restricted_step(candidates: Mapping[str, Any]) -> Any:
    """Return the binary, matrix or vector scaling with which a candidate begins, or None.

    If there are several, the kinds are preferred in this order.
    """
    steps = [_steps_of(candidate)[0] for candidate in candidates.values()]
    kinds = (BinaryScaling, MatrixScaling, VectorScaling)
    return next((step for kind in kinds for step in steps if isinstance(step, kind)), None)


def _check_candidates(candidates: Any) -> dict[str, Any]:
    if not isinstance(candidates, Mapping):
        raise TypeError(
            f"candidates must be a mapping of name to calibrator, got {candidates!r}; pass a dictionary"
        )
    if not candidates:
        raise ValueError(
            "candidates must contain at least one calibrator, got none; leave it out for the default ones"
        )
    check_steps(list(candidates.values()), "candidates")
    return dict(candidates)


@dataclass(frozen=True)
class _Trial:
    """Out-of-fold predictions of the candidates.

    Attributes
    ----------
    nll : (M, n) NLL of every candidate in every row
    confidence, rest : (M, n) probability of the predicted class, and of all other classes together
        Like `nll`, both are zero for rows that were not predicted.
    source : the n rows, which may be a sample of those of the fit
    group_names : names of the groups of all rows of the fit, or None
    free_nll, free_guess : (n,) NLL and decisions of a calibrator that may change decisions
        None if no such calibrator was tried.
    """

    nll: Float
    confidence: Float
    rest: Float
    source: MemorySource
    group_names: NDArray[Any] | None
    free_nll: Float | None = None
    free_guess: IntArray | None = None

    @property
    def share(self) -> Float:
        """Weight of every row as a fraction of the total, (n,)."""
        weight = self.source.rows.weight
        return np.asarray(weight / weight.sum())

    @property
    def n_independent(self) -> float:
        """Effective number of independent observations: fold groups if there are any, otherwise rows."""
        if self.source.fold_groups is None:
            return self.source.rows.total_weight
        group_share = np.bincount(self.source.fold_groups, self.share)
        return float(1 / (group_share @ group_share))

    def standard_error(self, gain: Float) -> float:
        """Standard error of the mean of `gain` (n,), where rows of the same fold group may be correlated."""
        deviation = np.asarray(self.share * (gain - gain @ self.share))
        fold_groups = self.source.fold_groups
        if fold_groups is not None:
            deviation = sum_slices(fold_groups, deviation, int(fold_groups.max()) + 1)
        return float(np.sqrt(np.sum(deviation**2)))


class _SharedFits:
    """Fits of candidates on the same rows; steps with which several chains begin are fitted only once.

    Steps of two chains count as the same only if they are the same object.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._fitted: dict[int, Any] = {}
        self._after: dict[int, _SharedFits] = {}

    def fit(self, candidate: Any) -> Any:
        """Return the fitted candidate."""
        steps = _steps_of(candidate)
        if len(steps) == 1:
            return self.fit_step(candidate)
        chain, fits = clone(candidate), self
        chain.steps_ = []
        for i, step in enumerate(steps):
            fits = fits if i == 0 else fits.after(steps[i - 1])
            chain.steps_.append(fits.fit_step(step))
        chain.n_features_in_ = self.source.n_classes
        return chain

    def fit_step(self, step: Any) -> Any:
        """Return the fitted step; each step is fitted at most once."""
        if id(step) not in self._fitted:
            self._fitted[id(step)] = fit_step(step, self.source)
        return self._fitted[id(step)]

    def after(self, step: Any) -> _SharedFits:
        """Return the fits of the steps after `step`, on the logarithms of the probabilities of `step`."""
        if id(step) not in self._after:
            self._after[id(step)] = _SharedFits(self.source.transform(NextStep(self.fit_step(step))))
        return self._after[id(step)]


class _SharedPredictions:
    """Predictions for held-out logits (n, K) by candidates that share fits."""

    def __init__(self, fits: _SharedFits, z: FloatArray, groups: NDArray[Any] | None) -> None:
        self.fits, self.z, self.groups = fits, z, groups
        self._probs: dict[int, FloatArray] = {}
        self._after: dict[int, _SharedPredictions] = {}

    def predict(self, candidate: Any) -> FloatArray:
        """Probabilities of a candidate; the array is shared and must not be modified."""
        *first, last = _steps_of(candidate)
        predictions = self
        for step in first:
            predictions = predictions.after(step)
        return predictions.predict_step(last)

    def predict_step(self, step: Any) -> FloatArray:
        """Probabilities of a step, computed at most once."""
        if id(step) not in self._probs:
            self._probs[id(step)] = predict_step(self.fits.fit_step(step), self.z, self.groups)
        return self._probs[id(step)]

    def after(self, step: Any) -> _SharedPredictions:
        """Return the predictions of the steps after `step`, from the log-probabilities of `step`."""
        if id(step) not in self._after:
            z = log_for_next_step(self.predict_step(step))
            self._after[id(step)] = _SharedPredictions(self.fits.after(step), z, self.groups)
        return self._after[id(step)]


def _steps_of(candidate: Any) -> list[Any]:
    """Steps of a chain, or the candidate itself."""
    return check_steps(candidate.steps, "steps") if type(candidate) is Chain else [candidate]


def _fit_members(members: list[Any], weights: Float, source: Source) -> Any:
    """Fit the candidates `members` on all rows, and return their mixture, or the fit if there is only one."""
    fits = _SharedFits(source)
    fitted = [fits.fit(member) for member in members]
    if len(fitted) == 1:
        return fitted[0]
    mixture = clone(Mixture(members, weights))
    mixture.calibrators_, mixture.weights_ = fitted, normalise_shares(weights, len(members))
    mixture.n_features_in_ = source.n_classes
    return mixture


def _fit_final_step(trial: _Trial, weights: Float, strength: float) -> Any:
    """Class-wise Platt scaling for a mixture, fitted on its out-of-fold confidence.

    The step corrects the underconfidence of a mean of calibrated probabilities, and errors that the members
    share. Members that are fitted on all rows have smaller errors than those of the cross-validation, so the
    parameters move only the fraction `strength` of the way from the identity to the fit. Returns None if
    there are no out-of-fold predictions, or none for some group.
    """
    predicted = np.flatnonzero(trial.confidence[0] > 0)
    rows, groups = trial.source.rows, trial.source.groups
    g = None if groups is None else groups[predicted]
    names = trial.group_names
    lacks_groups = g is not None and names is not None and not np.isin(names, g).all()
    if not predicted.size or lacks_groups:
        return None
    with one_blas_thread():
        odds = np.log(weights @ trial.confidence[:, predicted]) - np.log(weights @ trial.rest[:, predicted])
    # The fit depends only on the log-odds of the predicted class, so the other logits can be zero.
    n_classes, guess = rows.z.shape[1], rows.guess[predicted]
    z = np.zeros((len(predicted), n_classes), rows.z.dtype)
    z[np.arange(len(predicted)), guess] = np.maximum(odds + np.log(max(n_classes - 1, 1)), 1e-6)
    weight = None if rows.given_weight is None else rows.given_weight[predicted]
    labels = _labels_of_mixture(trial, weights, predicted)
    with quiet():  # the fit of the members has warned already
        model = ClassWise(PlattScaling(pool=True), gamma="bayes")
        final = fit_step(model, MemorySource(Rows(z, rows.y[predicted], guess, weight, labels), g))
    identity = PlattFamily().start(n_classes)
    final.parameters_, final.center_ = (
        identity + strength * (theta - identity) for theta in (final.parameters_, final.center_)
    )
    final.gamma_, final.choice_ = strength * final.gamma_, None
    return final


def _labels_of_mixture(trial: _Trial, weights: Float, predicted: IntArray) -> NoisyLabels | None:
    """Noisy labels of the rows `predicted`, with two likelihoods of every label; None for other labels.

    One is the likelihood of the label if the decision is correct, and the other if it is wrong. The latter is
    computed from the probabilities of the mixture.
    """
    labels = trial.source.rows.label_model
    if not isinstance(labels, NoisyLabels):
        return None
    guess = trial.source.rows.guess[predicted]
    y = labels.y[predicted]
    if_correct = labels.transition[guess, y]
    confidence, rest = (weights @ part[:, predicted] for part in (trial.confidence, trial.rest))
    likelihood = weights @ np.exp(-trial.nll[:, predicted])
    if_wrong = (likelihood - confidence * if_correct) / rest
    return NoisyLabels(y, labels.transition, noisy_correctness(if_correct, if_wrong))


def _join(first: Any, last: Any) -> Chain:
    """Return the chain of two fitted calibrators."""
    chain = Chain([first, last])
    chain.steps_ = [first, last]
    chain.n_features_in_ = last.n_features_in_
    return chain


def _sample_for_weights(source: Source, n_rows: int) -> MemorySource:
    """Rows to cross-validate: all `n_rows` of them, or a sample if there are very many.

    The sample does not depend on the order of the rows.
    """
    parts = n_rows // max(_MAX_CV_ROWS, _MAX_CV_ROWS_PER_CLASS * source.n_classes)
    # The salt makes the hashes that draw the sample differ from those that draw the folds. With the same
    # hashes, all sampled rows could fall into one fold, for example with 5 parts and 5 folds.
    return source.draw_sample(max(parts, 1), salt=_SAMPLE_SALT)


def _cross_validate(
    candidates: dict[str, Any],
    source: MemorySource,
    n_folds: int,
    restricted: Any,
    group_names: NDArray[Any] | None,
) -> _Trial:
    """Out-of-fold predictions of every candidate for the rows of `source`.

    `group_names` are the names of the groups of all rows of the fit. `restricted`, if not None, is a step
    that keeps decisions only because its `keep_decision` is True. For `free_nll` and `free_guess`, each fit
    of this step also predicts without keeping decisions.
    """
    rows, g = source.rows, source.groups
    nll, confidence, rest = np.zeros((3, len(candidates), len(source)))
    free_nll, free_guess = np.zeros(len(source)), rows.guess.astype(np.int64)
    for done, (train, test) in enumerate(_split(source, n_folds), 1):
        with quiet(Warning):  # the fit on all rows warns instead
            fits = _SharedFits(source.take(train))
            predictions = _SharedPredictions(fits, rows.z[test], None if g is None else g[test])
            for i, candidate in enumerate(candidates.values()):
                p = predictions.predict(candidate)
                p_true, confidence[i, test], rest[i, test] = _summarise(p, rows.take(test))
                nll[i, test] = -np.log(np.maximum(p_true, _MIN_PROB))
            if restricted is not None:
                free = copy.copy(fits.fit_step(restricted))
                free.keep_decision = False
                p = predict_step(free, rows.z[test], None)
                free_guess[test] = p.argmax(axis=1)
                free_nll[test] = -np.log(np.maximum(_likelihood(p, rows.take(test)), _MIN_PROB))
        report_progress(done, n_folds + 1)
    if restricted is None:
        return _Trial(nll, confidence, rest, source, group_names)
    return _Trial(nll, confidence, rest, source, group_names, free_nll, free_guess)


def _split(source: MemorySource, n_folds: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield the training and test rows of every fold, without test rows whose group has no training row."""
    g, fold = source.groups, source.folds(n_folds)
    for f in np.unique(fold):
        test = np.flatnonzero(fold == f)
        # If all rows are in one fold, they are used for both training and testing.
        train = np.flatnonzero(fold != f) if len(test) < len(source) else test
        if g is not None:
            test = test[np.isin(g[test], g[train])]
        if test.size:
            yield train, test


def _summarise(p: FloatArray, rows: Rows) -> tuple[Float, Float, Float]:
    """Probability (n,) of the label, of the predicted class, and of all classes but the predicted one.

    The last one is computed as a sum, which is more accurate than 1 minus the second.
    """
    row, others = np.arange(len(p)), p.astype(np.float64)  # a copy, since `p` may be shared
    p_true, confidence = _likelihood(others, rows), others[row, rows.guess]
    others[row, rows.guess] = 0
    return p_true, confidence, np.maximum(others.sum(axis=1), _MIN_PROB)


def _likelihood(p: FloatArray, rows: Rows) -> Float:
    """Probability (n,) of the observed labels if the true classes have the probabilities `p`."""
    if rows.label_model is None:
        return np.asarray(p[np.arange(len(p)), rows.y], np.float64)
    return np.exp(-rows.label_model.posterior(np.log(np.maximum(p, _MIN_PROB)))[1])


def _trust(trial: _Trial, weights: Float, simple: int) -> float:
    """How clearly the mixture is better than temperature scaling, from 0 (not at all) to 1.

    This is the James-Stein factor ``1 − (error / gain)²``, or 0 if it is negative or there is no gain. The
    gain is the mean improvement in NLL over temperature scaling (candidate number `simple`), minus a
    correction because the weights were fitted to the same rows. The error is the standard error of the gain.
    """
    if weights[simple] == 1:
        return 0.0  # the mixture is temperature scaling itself, so any gain is a rounding error
    gain = trial.nll[simple] + np.log(weights @ np.exp(-trial.nll))
    mean = float(gain @ trial.share) - (np.count_nonzero(weights) - 1) / trial.n_independent
    error = trial.standard_error(gain)
    return max(0.0, 1 - (error / mean) ** 2) if mean > 0 else 0.0


def _insure(weights: Float, n: float) -> Float:
    """Give the identity (the first candidate) about as much weight as one row has among `n`.

    This is insurance against errors that do not occur in these rows.
    """
    insured = weights * (1 - 1 / (n + 2))
    insured[0] += 1 / (n + 2)
    return np.asarray(insured)


def _decision_cost(trial: _Trial, weights: Float) -> dict[str, Any] | None:
    """Value of `decision_cost_`: the mixture compared with a calibrator that may change decisions."""
    if trial.free_nll is None or trial.free_guess is None:
        return None
    rows, predicted = trial.source.rows, trial.confidence[0] > 0
    if not predicted.any():
        return None
    free_correctness: NDArray[Any] = trial.free_guess == rows.y
    if rows.label_model is not None:
        free_correctness = rows.unbiased[np.arange(len(rows)), trial.free_guess]
    share = np.where(predicted, trial.share, 0) / trial.share[predicted].sum()
    kept = -np.log(weights @ np.exp(-trial.nll))
    gain = kept - trial.free_nll
    nll, free_nll = float(kept @ share), float(trial.free_nll @ share)
    is_large = nll - free_nll > max(2 * trial.standard_error(gain), _LARGE_COST * nll)
    return {
        "changed": float((trial.free_guess != rows.guess) @ share),
        "nll": nll,
        "free_nll": free_nll,
        "accuracy": float(rows.correctness @ share),
        "free_accuracy": float(free_correctness @ share),
        "is_large": bool(is_large),
    }


def _stack(nll: Float, share: Float, best: Float, prior: Float, min_weight: float) -> Float:
    """Weights (M,) of the mixture with the lowest NLL on out-of-fold rows.

    A Dirichlet prior prevents an arbitrary choice between nearly equal candidates. For each candidate,
    `prior` (M,) is the number of rows that this prior is worth, divided by the number of independent rows.
    Candidates with a weight below `min_weight` are dropped; if none is left, the weights `best` are returned.
    """
    likelihood = np.exp(-(nll - nll.min(axis=0)))
    n_members = len(nll)

    def value(w: Float) -> tuple[float, Float]:
        w = np.maximum(w, 1e-12)
        mixed = w @ likelihood
        loss = -float(share @ np.log(mixed)) - float(prior @ np.log(w))
        return loss, -(likelihood / mixed) @ share - prior / w

    solution = minimize(
        value,
        np.full(n_members, 1 / n_members),
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * n_members,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        options={"maxiter": 300, "ftol": 1e-12},
    )
    optimum = _polish(np.maximum(solution.x, 1e-9), likelihood, share, prior)
    weights = np.where(optimum < min_weight, 0, optimum)
    return np.asarray(weights / weights.sum()) if weights.any() else best


def _polish(w: Float, likelihood: Float, share: Float, prior: Float) -> Float:
    """Take Newton steps to the optimum of the strictly convex problem in :func:`_stack`.

    SLSQP stops where the loss is constant up to rounding, so its solution depends on the order of the rows.
    """
    w = w / w.sum()
    for _ in range(_NEWTON_STEPS):
        ratio = likelihood / (w @ likelihood)
        slope = -(ratio @ share) - prior / w
        hessian = (ratio * share) @ ratio.T + np.diag(prior / w**2)
        newton, ones = np.linalg.solve(hessian, np.stack([slope, np.ones_like(w)], axis=1)).T
        step = newton - ones * (newton.sum() / ones.sum())  # keeps the sum of the weights at 1
        decreasing = step > 0
        length = 1.0
        if decreasing.any():  # the weights must stay positive
            length = min(1.0, 0.5 * float((w[decreasing] / step[decreasing]).min()))
        w = w - length * step
        if np.abs(step).max() < _CONVERGED:
            break
    return np.asarray(w)


def _name(names: list[str], weights: Float, order: list[int]) -> str:
    """Names of the members with their weights; members with very small weights are left out.

    If one member remains, its name is shown without a weight.
    """
    shown = [i for i in order if weights[i] >= _MIN_SHOWN_WEIGHT]
    if len(shown) == 1:
        return str(names[shown[0]])
    return "; ".join(f"{weights[i]:.0%} {names[i]}" for i in shown)


def _preserves(calibrator: Any) -> bool:
    return bool(getattr(calibrator, "preserves_decision", False))
