"""A calibrator chosen by cross-validated NLL, with the whole table of candidates kept."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import has_fit_parameter

from hetcal._core.arrays import FloatArray, check_groups
from hetcal._core.kernels import Rows, prepare
from hetcal._core.known import known_logits
from hetcal._core.messages import CalibrationWarning
from hetcal._core.problems import TemperatureProblem, folds_of
from hetcal.calibrators.classwise import ClassWise, ClassWiseTemperatureScaling
from hetcal.calibrators.inputs import check_fit, check_predict, in_memory, remember_columns, wherever
from hetcal.calibrators.scaling import Identity, PlattScaling, TemperatureScaling

__all__ = ["AutoCalibrator", "default_candidates"]


def default_candidates() -> dict[str, Any]:
    """Candidates from simple to rich; none of them changes a decision."""
    return {
        "Identity": Identity(),
        "TS": TemperatureScaling(),
        "Platt": PlattScaling(),
        "CTS bayes": ClassWiseTemperatureScaling(gamma="bayes"),
        "CTS cv": ClassWiseTemperatureScaling(gamma="cv"),
        "CTS": ClassWiseTemperatureScaling(),
        "Class-wise Platt": ClassWise(PlattScaling(), gamma=1.0),
    }


class AutoCalibrator(BaseEstimator):  # type: ignore[misc]
    """The candidate with the least cross-validated NLL, refitted on all rows.

    Parameters
    ----------
    candidates : mapping of name to calibrator, optional
        In order of preference where scores tie. Default: identity, temperature, Platt, class-wise
        temperatures (shrunk, cross-validated Γ, free) and class-wise Platt, none of which changes a decision.
    cv : int, number of folds

    Attributes
    ----------
    best_ : the fitted calibrator
    best_name_ : str
    candidates_ : list of dict
        ``name``, ``nll``, ``error`` (standard error of its difference to the best), ``preserves_decision``.
    """

    def __init__(self, candidates: Mapping[str, Any] | None = None, *, cv: int = 5) -> None:
        self.candidates = candidates
        self.cv = cv

    @property
    def preserves_decision(self) -> bool:
        """Whether the argmax stays: of the chosen calibrator once fitted, of all candidates before."""
        if hasattr(self, "best_"):
            return _preserves(self.best_)
        return all(_preserves(c) for c in _check_candidates(self.candidates).values())

    def fit(
        self,
        logits: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Score every candidate by cross-validation and fit the best on all rows."""
        candidates = _check_candidates(self.candidates)
        if isinstance(self.cv, bool) or not isinstance(self.cv, int | np.integer) or self.cv < 2:
            raise ValueError(f"cv must be an integer, 2 or more, got {self.cv!r}")
        in_memory(self, logits)
        z, y, w = check_fit(logits, labels, sample_weight)
        g = None if groups is None else check_groups(groups, n_rows=len(z))
        if g is not None and w is not None:
            g = g[w > 0]
        rows = prepare(z, y, w)
        heldout = _cross_validate(candidates, rows, w is not None, g, int(self.cv))
        share = rows.weight / rows.weight.sum()
        score = heldout @ share
        chosen = int(np.argmin(score))
        error = np.sqrt(len(rows)) * ((heldout - heldout[chosen]) * share).std(axis=1)
        self.candidates_ = [
            {"name": name, "nll": float(s), "error": float(e), "preserves_decision": _preserves(c)}
            for (name, c), s, e in zip(candidates.items(), score, error, strict=True)
        ]
        self.best_name_ = list(candidates)[chosen]
        self.best_ = _fit(candidates[self.best_name_], rows, w is not None, g)
        remember_columns(self, logits)
        return self

    @wherever
    def predict_proba(self, logits: ArrayLike, *, groups: ArrayLike | None = None) -> FloatArray:
        """Calibrated probabilities (n, K) of the chosen calibrator."""
        z = check_predict(self, logits)
        return _predict(self.best_, z, groups)


def _check_candidates(candidates: Mapping[str, Any] | None) -> dict[str, Any]:
    if candidates is None:
        return default_candidates()
    if not isinstance(candidates, Mapping):
        raise TypeError(f"candidates must be a mapping of name to calibrator, got {candidates!r}")
    if not candidates:
        raise ValueError("candidates must hold at least one calibrator, got none")
    return dict(candidates)


def _cross_validate(
    candidates: dict[str, Any], rows: Rows, weighted: bool, g: NDArray[Any] | None, n_folds: int
) -> NDArray[np.float64]:
    """NLL of every row by every candidate fitted without that row's fold, (candidates, n)."""
    fold = folds_of(TemperatureProblem(rows, rows.guess, rows.z.shape[1]), n_folds)
    out = np.zeros((len(candidates), len(rows)))
    for f in np.unique(fold):
        test = np.flatnonzero(fold == f)
        # A single row leaves nothing to learn from: judge on what there is.
        train = np.flatnonzero(fold != f) if len(test) < len(rows) else test
        if g is not None:  # a group with all its rows in this fold cannot be judged
            test = test[np.isin(g[test], g[train])]
        if not test.size:
            continue
        part, group = rows.take(train), None if g is None else g[train]
        for i, candidate in enumerate(candidates.values()):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CalibrationWarning)  # the final fit speaks for itself
                made = _fit(candidate, part, weighted, group)
            p = _predict(made, rows.z[test], None if g is None else g[test])
            p_true = p[np.arange(len(test)), rows.y[test]].astype(np.float64)
            out[i, test] = -np.log(np.maximum(p_true, np.finfo(np.float32).tiny))
    return out


def _fit(candidate: Any, rows: Rows, weighted: bool, groups: NDArray[Any] | None) -> Any:
    made = clone(candidate) if hasattr(candidate, "get_params") else copy.deepcopy(candidate)
    options: dict[str, Any] = {"sample_weight": rows.weight} if weighted else {}
    if groups is not None and has_fit_parameter(made, "groups"):
        options["groups"] = groups
    with known_logits():
        made.fit(rows.z, rows.y, **options)
    return made


def _predict(fitted: Any, z: FloatArray, groups: ArrayLike | None) -> FloatArray:
    takes = groups is not None and has_fit_parameter(fitted, "groups")
    with known_logits():
        return np.asarray(fitted.predict_proba(z, **({"groups": groups} if takes else {})))


def _preserves(calibrator: Any) -> bool:
    return bool(getattr(calibrator, "preserves_decision", False))
