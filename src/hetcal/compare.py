"""Comparison of calibration methods: fit each on one set of rows and evaluate it on another."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcal._display import display_name
from hetcal._numeric.probabilities import softmax
from hetcal._numeric.rows import prepare
from hetcal._numeric.source import MemorySource
from hetcal._tables import Cell, Table, TableDisplay, Tone
from hetcal._typing import FloatArray
from hetcal._validate import check_fold_groups, check_groups, check_labelled, check_test_rows
from hetcal._warnings import quiet
from hetcal.calibrators import (
    AutoCalibrator,
    BinaryScaling,
    ClassWise,
    ClassWiseTemperatureScaling,
    Identity,
    MatrixScaling,
    PlattScaling,
    TemperatureScaling,
    TopLabelHistogram,
    TopLabelIsotonic,
    VectorScaling,
)
from hetcal.calibrators.base import fit_step, predict_step
from hetcal.metrics import Evaluation, evaluate

__all__ = [
    "METHODS",
    "Comparison",
    "MethodResult",
    "compare",
    "comparison_tables",
    "cross_fit",
    "make_method",
    "paper_methods",
]

# Names of the calibrators on the command line, and functions that create them. The argument of a function is
# the value of the option --gamma, or None if the option is not passed.
METHODS: dict[str, Callable[[Any], Any]] = {
    "identity": lambda gamma: _without_gamma(Identity(), gamma),
    "ts": lambda gamma: _without_gamma(TemperatureScaling(), gamma),
    "vs": lambda gamma: _without_gamma(VectorScaling(), gamma),
    "ms": lambda gamma: _without_gamma(MatrixScaling(), gamma),
    "binary": lambda gamma: _without_gamma(BinaryScaling(), gamma),
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
    """Result of one method on the evaluated rows.

    Attributes
    ----------
    name : str
    calibrator : the fitted calibrator
    evaluation : :class:`hetcal.Evaluation`
    changed : fraction of rows whose predicted class differs from the uncalibrated one
    seconds : duration of the fit
    """

    name: str
    calibrator: Any
    evaluation: Evaluation
    changed: float
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the name and the main numbers of this result as a dictionary that is ready for JSON."""
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
class Comparison(TableDisplay):
    """Results of several methods on the same rows; Rich and notebooks show them as a table.

    Attributes
    ----------
    rows : tuple of MethodResult, in the order of the methods
    n_fit, n_judged : number of rows used to fit and to evaluate
    cross_fitted : bool
        True if there were no test rows, so the rows of the fit were evaluated with out-of-fold predictions.
    """

    rows: tuple[MethodResult, ...]
    n_fit: int
    n_judged: int
    cross_fitted: bool

    def __getitem__(self, name: str) -> MethodResult:
        return next(row for row in self.rows if row.name == name)

    def evaluations(self) -> dict[str, Evaluation]:
        """Evaluations by method name."""
        return {row.name: row.evaluation for row in self.rows}

    def to_dict(self) -> dict[str, Any]:
        """Return the results, without the calibrators, as a dictionary that is ready for JSON."""
        return {
            "rows": [row.to_dict() for row in self.rows],
            "n_fit": self.n_fit,
            "n_judged": self.n_judged,
            "cross_fitted": self.cross_fitted,
        }

    def _tables(self) -> tuple[Table, ...]:
        rows = f"{self.n_fit:,} rows" + (" in five folds" if self.cross_fitted else "")
        judged = "" if self.cross_fitted else f", evaluated on {self.n_judged:,} rows"
        return comparison_tables(self, f"Fitted on {rows}{judged}; all but NLL in percent")


def comparison_tables(result: Comparison, title: str) -> tuple[Table, ...]:
    """Table of the metrics of each method and of the noise floors of its calibration errors.

    The noise floor of a calibration error is its expected value for a perfectly calibrated model with the
    same confidences. All numbers except the NLL are in percent.
    """
    floored = {"ece": "ECE", "max_ece": "max-ECE", "avg_ece": "Avg-ECE"}
    errors = (column for name in floored.values() for column in (name, "(floor)"))
    rows: list[list[str | Cell]] = []
    for row in result.rows:
        e = row.evaluation
        cells: list[str | Cell] = [f"{100 * e.accuracy:.2f}", f"{e.nll:.4f}"]
        for metric in floored:
            floor = Cell(f"{100 * e.floor[metric]:.2f}", Tone.SECONDARY)
            cells += [f"{100 * getattr(e, metric):.2f}", floor]
        rows.append([display_name(row.name), *cells, f"{100 * row.changed:.2f}%"])
    return (Table(title, ("Method", "Accuracy", "NLL", *errors, "Decisions changed"), rows),)


def paper_methods() -> dict[str, Any]:
    """Unfitted calibrators by name: the methods in the tables of the paper, and AutoCalibrator.

    The paper is Zhao, Chen and Oymak, "On the Role of Dataset Quality and Heterogeneity in Model Confidence"
    (2020).
    """
    return {
        "Uncal": Identity(),
        "TS": TemperatureScaling(),
        "VS": VectorScaling(),
        "CTS": ClassWiseTemperatureScaling(),
        "Auto": AutoCalibrator(),
    }


def make_method(name: str, gamma: float | str | None = None) -> Any:
    """Create a calibrator from its name on the command line."""
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
    """Fit every method on ``(logits, labels)`` and evaluate it on the test rows.

    Without test rows, the rows of the fit are evaluated by five-fold cross-fitting: each row is predicted by
    a calibrator that was fitted on the other four folds. The calibrators in the result are fitted on all
    rows.

    Parameters
    ----------
    logits, test_logits : (n, K) and (m, K) unnormalised scores
    labels, test_labels : (n,) and (m,) true classes, as integers or class names
    methods : mapping of name to calibrator; by default those of :func:`paper_methods`
    groups, test_groups : (n,) and (m,) group of every row, for calibrators that are fitted by group
    fold_groups : (n,) names
        Rows with the same name stay in one fold of the cross-fitting and of a calibrator's cross-validation.
    uncalibrated : (m, K) probabilities that the model predicted for the evaluated rows, optional
        They replace the predictions of :class:`Identity`, which are the softmax of the logits. Pass them if
        the logits were computed from probabilities that contain zeros: the softmax then contains small
        positive numbers instead of the zeros. Without test rows, the shape is (n, K).
    class_names : K strings; by default the column names of a data frame, or the class numbers
    n_bins, n_redraws, rng : as in :func:`hetcal.evaluate`
    on_step : called with the name of each method before it is fitted, for progress bars
    """
    z, y, names = check_labelled(logits, labels, class_names)
    g = None if groups is None else check_groups(groups, n_rows=len(z))
    cross_fitted = test_logits is None
    z_test, y_test = z, y
    g_test: ArrayLike | None = g
    if test_logits is not None:
        z_test, y_test = check_test_rows(test_logits, test_labels, logits, class_names, z.shape[1])
        g_test = (
            None if test_groups is None else check_groups(test_groups, n_rows=len(z_test), name="test_groups")
        )
    source = MemorySource(prepare(z, y, None), g, check_fold_groups(fold_groups, len(z), slice(None)))
    uncalibrated_decision = z_test.argmax(axis=1)
    rows = []
    for name, method in (paper_methods() if methods is None else methods).items():
        if on_step is not None:
            on_step(name)
        start = time.perf_counter()
        calibrator = fit_step(method, source)
        seconds = time.perf_counter() - start
        if uncalibrated is not None and isinstance(method, Identity):
            probs = uncalibrated
        else:
            probs = cross_fit(method, source) if cross_fitted else predict_step(calibrator, z_test, g_test)
        evaluation = evaluate(probs, y_test, names, n_bins=n_bins, n_redraws=n_redraws, rng=rng)
        changed = float(np.mean(probs.argmax(axis=1) != uncalibrated_decision))
        rows.append(MethodResult(name, calibrator, evaluation, changed, seconds))
    return Comparison(tuple(rows), len(z), len(z_test), cross_fitted)


def cross_fit(method: Any, source: MemorySource, n_folds: int = 5) -> FloatArray:
    """Out-of-fold probabilities (n, K): every row is predicted by a fit on the other folds.

    A row remains uncalibrated if the other folds contain no row, or no row of its group.
    """
    rows, g = source.rows, source.groups
    fold = source.folds(min(n_folds, max(2, len(rows))))
    probs = softmax(rows.z)
    for f in np.unique(fold):
        test, train = np.flatnonzero(fold == f), np.flatnonzero(fold != f)
        if g is not None:
            test = test[np.isin(g[test], g[train])]
        if train.size and test.size:
            with quiet():  # the caller also fits on all rows, and that fit issues the warnings
                calibrator = fit_step(method, source.take(train))
            probs[test] = predict_step(calibrator, rows.z[test], None if g is None else g[test])
    return probs


def _without_gamma(calibrator: Any, gamma: object) -> Any:
    if gamma is not None:
        raise ValueError(
            f"--gamma must be left out for {type(calibrator).__name__}, which does not use it, "
            f"got {gamma!r}; use --gamma with methods such as cts and classwise-platt"
        )
    return calibrator
