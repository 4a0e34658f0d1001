"""The main job: fit the methods on some rows, judge them on others, side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcal._numeric.probabilities import softmax
from hetcal._numeric.rows import prepare
from hetcal._numeric.source import MemorySource
from hetcal._typing import FloatArray
from hetcal._validate import CONVERT_PROBS, check_fold_groups, check_groups, check_labels, check_logits
from hetcal._warnings import quiet
from hetcal.calibrators import (
    AutoCalibrator,
    ClassWise,
    ClassWiseTemperatureScaling,
    Identity,
    PlattScaling,
    TemperatureScaling,
    TopLabelHistogram,
    TopLabelIsotonic,
    VectorScaling,
)
from hetcal.calibrators.base import fit_step, predict_step
from hetcal.metrics import Evaluation, evaluate

__all__ = ["METHODS", "Comparison", "MethodResult", "compare", "cross_fit", "make_method", "paper_methods"]

# Name on the command line -> calibrator with a given Γ (None: its own default)
METHODS: dict[str, Callable[[Any], Any]] = {
    "identity": lambda gamma: _without_gamma(Identity(), gamma),
    "ts": lambda gamma: _without_gamma(TemperatureScaling(), gamma),
    "vs": lambda gamma: _without_gamma(VectorScaling(), gamma),
    "platt": lambda gamma: _without_gamma(PlattScaling(), gamma),
    "isotonic": lambda gamma: _without_gamma(TopLabelIsotonic(), gamma),
    "histogram": lambda gamma: _without_gamma(TopLabelHistogram(), gamma),
    "cts": lambda gamma: ClassWiseTemperatureScaling(np.inf if gamma is None else gamma),
    "classwise-platt": lambda gamma: ClassWise(PlattScaling(), np.inf if gamma is None else gamma),
    "classwise-vs": lambda gamma: ClassWise(VectorScaling(ridge=1e-3), np.inf if gamma is None else gamma),
    "classwise-isotonic": lambda gamma: ClassWise(TopLabelIsotonic(), np.inf if gamma is None else gamma),
    "classwise-histogram": lambda gamma: ClassWise(TopLabelHistogram(), np.inf if gamma is None else gamma),
    "auto": lambda gamma: _without_gamma(AutoCalibrator(), gamma),
}


@dataclass(frozen=True)
class MethodResult:
    """One method on the judged rows.

    Attributes
    ----------
    name : str
    calibrator : the fitted calibrator
    evaluation : :class:`hetcal.Evaluation`
    changed : share of rows whose decision differs from the uncalibrated one
    seconds : time of the fit
    """

    name: str
    calibrator: Any
    evaluation: Evaluation
    changed: float
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The numbers of one row of the table, JSON-ready."""
        e = self.evaluation
        return {
            "method": self.name,
            "accuracy": e.accuracy,
            "nll": e.nll,
            "brier": e.brier,
            "ece": e.ece,
            "max_ece": e.max_ece,
            "avg_ece": e.avg_ece,
            "ece_floor": e.floor["ece"],
            "max_ece_floor": e.floor["max_ece"],
            "avg_ece_floor": e.floor["avg_ece"],
            "decisions_changed": self.changed,
            "fit_seconds": self.seconds,
        }


@dataclass(frozen=True)
class Comparison:
    """Methods side by side; `rows` in the order they were given."""

    rows: tuple[MethodResult, ...]
    n_fit: int
    n_judged: int
    cross_fitted: bool

    def __getitem__(self, name: str) -> MethodResult:
        return next(row for row in self.rows if row.name == name)

    def evaluations(self) -> dict[str, Evaluation]:
        """Evaluation by method name."""
        return {row.name: row.evaluation for row in self.rows}

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "rows": [row.to_dict() for row in self.rows],
            "n_fit": self.n_fit,
            "n_judged": self.n_judged,
            "cross_fitted": self.cross_fitted,
        }


def paper_methods() -> dict[str, Any]:
    """The rows of the paper's tables and the automatic choice."""
    return {
        "Uncal": Identity(),
        "TS": TemperatureScaling(),
        "VS": VectorScaling(),
        "CTS": ClassWiseTemperatureScaling(),
        "Auto": AutoCalibrator(),
    }


def make_method(name: str, gamma: float | str | None = None) -> Any:
    """Calibrator by its name on the command line."""
    if name not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {name!r}")
    return METHODS[name](gamma)


def compare(
    logits: ArrayLike,
    labels: ArrayLike,
    test_logits: ArrayLike | None = None,
    test_labels: ArrayLike | None = None,
    *,
    methods: Mapping[str, Any] | None = None,
    groups: ArrayLike | None = None,
    test_groups: ArrayLike | None = None,
    fold_groups: NDArray[Any] | None = None,
    uncalibrated: FloatArray | None = None,
    class_names: ArrayLike | None = None,
    n_bins: int = 15,
    n_redraws: int = 200,
    rng: np.random.Generator | int = 0,
    on_step: Callable[[str], None] | None = None,
) -> Comparison:
    """Fit every method on ``(logits, labels)`` and judge it on the test rows.

    Without test rows each row is judged by a fit on the other four fifths (five-fold cross-fitting), and the
    calibrators returned are fitted on all rows.

    Parameters
    ----------
    methods : mapping of name to calibrator; default: Uncal, TS, VS, CTS, Auto
    fold_groups : (n,) names of what stays together in cross-fitting
    uncalibrated : (n, K) probabilities of the judged rows as the model gave them
        By default the softmax of their logits; they differ where exact zeros have been raised.
    on_step : called with the name of each method before it is fitted, for progress bars
    """
    z = check_logits(logits, probs_remedy=CONVERT_PROBS)
    y = check_labels(labels, n_rows=len(z), n_classes=z.shape[1], table=logits)
    g = None if groups is None else check_groups(groups, n_rows=len(z))
    cross = test_logits is None
    zt, yt = z, y
    if test_logits is not None:
        named: dict[str, Any] = {"name": "test_logits", "probs_remedy": CONVERT_PROBS}
        zt = check_logits(test_logits, n_classes=z.shape[1], **named)
        yt = check_labels(test_labels, n_rows=len(zt), n_classes=z.shape[1], name="test_labels")
    gt = g if cross or test_groups is None else check_groups(test_groups, n_rows=len(zt))
    data = MemorySource(prepare(z, y, None), g, check_fold_groups(fold_groups, len(z), slice(None)))
    decided = zt.argmax(axis=1)
    rows = []
    for name, method in (paper_methods() if methods is None else methods).items():
        if on_step is not None:
            on_step(name)
        started = time.perf_counter()
        fitted = fit_step(method, data)
        seconds = time.perf_counter() - started
        if uncalibrated is not None and isinstance(method, Identity):
            probs = uncalibrated
        else:
            probs = cross_fit(method, data) if cross else predict_step(fitted, zt, gt)
        judged = evaluate(probs, yt, class_names, n_bins=n_bins, n_redraws=n_redraws, rng=rng)
        rows.append(
            MethodResult(name, fitted, judged, float(np.mean(probs.argmax(axis=1) != decided)), seconds)
        )
    return Comparison(tuple(rows), len(z), len(zt), cross)


def _without_gamma(calibrator: Any, gamma: object) -> Any:
    if gamma is not None:
        raise ValueError(
            f"--gamma must be left out for {type(calibrator).__name__}, which has no slices to tie, "
            f"got {gamma!r}; the methods cts and classwise-platt take it"
        )
    return calibrator


def cross_fit(method: Any, data: MemorySource, n_folds: int = 5) -> FloatArray:
    """Probabilities (n, K) in which every row is judged by a fit on the other folds."""
    rows, g = data.rows, data.groups
    fold = data.folds(min(n_folds, max(2, len(rows))))
    out = softmax(rows.z)
    for f in np.unique(fold):
        test, train = np.flatnonzero(fold == f), np.flatnonzero(fold != f)
        if g is not None:
            test = test[np.isin(g[test], g[train])]
        if train.size and test.size:
            with quiet():  # the fit on all rows warns
                part = fit_step(method, data.take(train))
            out[test] = predict_step(part, rows.z[test], None if g is None else g[test])
    return out
