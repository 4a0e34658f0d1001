"""A calibrator chosen by cross-validated NLL, with the whole table of candidates kept."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from hetcal._core.arrays import FloatArray, IntArray, check_groups, check_logits
from hetcal._core.kernels import prepare
from hetcal._core.messages import CalibrationWarning
from hetcal._core.temperature import TemperatureProblem, folds_of
from hetcal.calibrators.classwise import ClassWise, ClassWiseTemperatureScaling
from hetcal.calibrators.scaling import Identity, PlattScaling, TemperatureScaling, check_fit

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
        In order of preference where scores tie. Default: identity, temperature, Platt, class-wise temperatures
        (shrunk, cross-validated Γ, free) and class-wise Platt, none of which changes a decision.
    cv : int, number of folds

    Attributes
    ----------
    best_ : the fitted calibrator
    best_name_ : str
    candidates_ : list of dict
        ``name``, ``nll``, ``error`` (standard error of its difference to the best) and ``preserves_decision``.
    """

    def __init__(self, candidates: Mapping[str, Any] | None = None, *, cv: int = 5) -> None:
        self.candidates = candidates
        self.cv = cv

    @property
    def preserves_decision(self) -> bool:
        """Whether the argmax stays: of the chosen calibrator once fitted, of all candidates before."""
        if hasattr(self, "best_"):
            return bool(self.best_.preserves_decision)
        return all(getattr(c, "preserves_decision", False) for c in self._candidates().values())

    def fit(self, logits: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None) -> Self:
        """Score every candidate by cross-validation and fit the best on all rows."""
        z, y, w = check_fit(logits, labels, sample_weight)
        if not isinstance(self.cv, int | np.integer) or self.cv < 2:
            raise ValueError(f"cv must be an integer, 2 or more, got {self.cv!r}")
        candidates = self._candidates()
        g = None if groups is None else check_groups(groups, n_rows=len(z))
        if w is not None:
            kept = w > 0
            z, y, w, g = z[kept], y[kept], w[kept], None if g is None else g[kept]
        heldout = _cross_validate(candidates, z, y, w, g, int(self.cv))
        share = np.full(len(z), 1 / len(z)) if w is None else w / w.sum()
        score = heldout @ share
        chosen = int(np.argmin(score))
        error = np.sqrt(len(z)) * ((heldout - heldout[chosen]) * share).std(axis=1)
        names = list(candidates)
        self.candidates_ = [
            {"name": name, "nll": float(s), "error": float(e), "preserves_decision": bool(getattr(c, "preserves_decision", False))}
            for (name, c), s, e in zip(candidates.items(), score, error, strict=True)
        ]
        self.best_name_ = names[chosen]
        self.best_ = _fit(candidates[self.best_name_], z, y, w, g)
        self.n_features_in_ = z.shape[1]
        return self

    def predict_proba(self, logits: ArrayLike, *, groups: ArrayLike | None = None) -> FloatArray:
        """Calibrated probabilities (n, K) of the chosen calibrator."""
        check_is_fitted(self)
        z = check_logits(logits, n_classes=self.n_features_in_)
        return np.asarray(self.best_.predict_proba(z, groups=groups))

    def _candidates(self) -> dict[str, Any]:
        candidates = default_candidates() if self.candidates is None else dict(self.candidates)
        if not candidates:
            raise ValueError("candidates must hold at least one calibrator, got none")
        return candidates


def _cross_validate(
    candidates: dict[str, Any], z: FloatArray, y: IntArray, w: Any, g: Any, n_folds: int
) -> NDArray[np.float64]:
    """NLL of every row by every candidate fitted without that row's fold, (candidates, n)."""
    rows = prepare(z, y, None)
    fold = folds_of(TemperatureProblem(rows, rows.guess, z.shape[1]), n_folds)
    out = np.zeros((len(candidates), len(z)))
    for f in np.unique(fold):
        test = np.flatnonzero(fold == f)
        # One row, or one group with all its rows in this fold: nothing to learn from, so judge on what there is.
        train = np.flatnonzero(fold != f) if len(test) < len(z) else test
        if g is not None:
            test = test[np.isin(g[test], g[train])]
        for i, candidate in enumerate(candidates.values()):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CalibrationWarning)  # the final fit speaks for itself
                made = _fit(candidate, z[train], y[train], None if w is None else w[train], None if g is None else g[train])
            p = made.predict_proba(z[test], **({} if g is None else {"groups": g[test]}))
            p_true = np.asarray(p, np.float64)[np.arange(len(test)), y[test]]
            out[i, test] = -np.log(np.maximum(p_true, np.finfo(np.float32).tiny))
    return out


def _fit(candidate: Any, z: FloatArray, y: IntArray, w: Any, g: Any) -> Any:
    made = clone(candidate) if hasattr(candidate, "get_params") else copy.deepcopy(candidate)
    options = {"sample_weight": w, "groups": g}
    made.fit(z, y, **{name: value for name, value in options.items() if value is not None})
    return made
