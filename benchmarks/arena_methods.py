"""Calibrators that the arena compares: hetcal's, and those of other installed libraries.

Every method receives the same float64 probabilities and clips them in its own way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import peers
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

import hetcal

__all__ = ["BASELINE", "KEEP_DECISIONS", "OURS", "CalArenaAdapter", "Method", "methods", "two_columns"]

Probs = NDArray[np.float64]
Labels = NDArray[np.int64]
Predict = Callable[[Probs], Probs]

BASELINE = "hetcal TS"  # one temperature, with which every method is compared row by row
OURS = ("hetcal Auto, free", "hetcal Auto")  # the Auto methods of hetcal, best first
#: Methods that change the predicted class only if rounding produces a tie.
KEEP_DECISIONS = frozenset(
    {
        *("hetcal Identity", "hetcal TS", "hetcal CTS", "hetcal CTS bayes", "hetcal Platt", "hetcal Auto"),
        *("scikit-learn temperature", "probmetrics TS", "probmetrics TS mix", "probmetrics ETS"),
    }
)


@dataclass(frozen=True)
class Method:
    """A calibration method.

    Attributes
    ----------
    fit : callable
        Takes probabilities and labels and returns a function from probabilities to calibrated ones.
    library : str
    max_classes : int, optional
        The method is defined for problems with at most this number of classes.
    """

    fit: Callable[[Probs, Labels], Predict]
    library: str
    max_classes: int | None = None

    def suits(self, n_classes: int) -> bool:
        """Return whether the method is defined for this number of classes."""
        return self.max_classes is None or n_classes <= self.max_classes


class CalArenaAdapter:
    """A hetcal calibrator with the interface of CalArena.

    Register it in CalArena's ``custom_calibrators.py``::

        CUSTOM_CALIBRATORS = {"hetcal": lambda: CalArenaAdapter(hetcal.AutoCalibrator())}

    Parameters
    ----------
    calibrator : calibrator of hetcal
    """

    def __init__(self, calibrator: Any) -> None:
        self.calibrator = calibrator

    def fit(self, p: Any, y: Any) -> CalArenaAdapter:
        """Fit to probabilities (n, K), or to probabilities (n,) or (n, 1) of class 1, and labels."""
        self.calibrator.fit(probs=two_columns(p), labels=np.asarray(y).ravel().astype(np.int64))
        return self

    def predict_proba(self, p: Any) -> Any:
        """Return calibrated probabilities (n, K); for two classes, both columns."""
        return np.asarray(self.calibrator.predict_proba(probs=two_columns(p)))


def two_columns(p: Any) -> Probs:
    """Return probabilities as (n, K); one column is the probability of class 1."""
    p = np.asarray(p, np.float64)
    if p.ndim == 2 and p.shape[1] > 1:
        return p
    p = p.ravel()
    return np.stack([1 - p, p], axis=1)


def methods() -> dict[str, Method]:
    """Return the methods by their names in the results."""
    return {
        **_hetcal_methods(),
        **_scikit_learn_methods(),
        **(_probmetrics_methods() if peers.is_installed("probmetrics") else {}),
        **(_netcal_methods() if peers.is_installed("netcal") else {}),
        **(_venn_abers_methods() if peers.is_installed("venn_abers") else {}),
    }


def _hetcal_methods() -> dict[str, Method]:
    return {
        "hetcal Identity": _own(hetcal.Identity),
        "hetcal TS": _own(hetcal.TemperatureScaling),
        "hetcal CTS": _own(hetcal.ClassWiseTemperatureScaling),
        "hetcal CTS bayes": _own(lambda: hetcal.ClassWiseTemperatureScaling("bayes")),
        "hetcal Platt": _own(hetcal.PlattScaling),
        "hetcal VS": _own(hetcal.VectorScaling),
        "hetcal MS": _own(hetcal.MatrixScaling),
        "hetcal binary": _own(hetcal.BinaryScaling, max_classes=2),
        "hetcal Auto": _own(hetcal.AutoCalibrator),
        "hetcal Auto, free": _own(lambda: hetcal.AutoCalibrator(keep_decision=False)),
    }


def _own(make: Callable[[], Any], **properties: Any) -> Method:
    def fit(p: Probs, y: Labels) -> Predict:
        return CalArenaAdapter(make()).fit(p, y).predict_proba

    return Method(fit, "hetcal", **properties)


def _scikit_learn_methods() -> dict[str, Method]:
    return {
        "scikit-learn temperature": Method(_scikit_learn("temperature"), "scikit-learn"),
        "scikit-learn sigmoid": Method(_scikit_learn("sigmoid"), "scikit-learn"),
        "scikit-learn isotonic": Method(_scikit_learn("isotonic"), "scikit-learn"),
        "Dirichlet": Method(_dirichlet, "scikit-learn"),
    }


def _scikit_learn(method: str) -> Callable[[Probs, Labels], Predict]:
    """Fit ``CalibratedClassifierCV`` on the classes that have rows; others get probability zero."""

    def fit(p: Probs, y: Labels) -> Predict:
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.frozen import FrozenEstimator

        present, y = np.unique(y, return_inverse=True)
        estimator = FrozenEstimator(peers.Probabilities(len(present)))
        rows = np.arange(len(y))
        model = CalibratedClassifierCV(estimator, method=method, cv=[(rows, rows)], ensemble=False)
        model.fit(_columns(p, present), y)
        return lambda p: _fill(model.predict_proba(_columns(p, present)), present, p.shape[1])

    return fit


def _columns(p: Probs, columns: Any) -> Probs:
    """Select columns and normalise the rows; rows without probability in the columns become uniform."""
    p = p[:, columns]
    total = p.sum(axis=1, keepdims=True)
    return np.where(total > 0, p / np.where(total > 0, total, 1), 1 / p.shape[1])


def _fill(p: Probs, columns: Any, n_classes: int) -> Probs:
    """Add columns of zeros for the other classes."""
    result = np.zeros((len(p), n_classes))
    result[:, columns] = p
    return result


def _dirichlet(p: Probs, y: Labels) -> Predict:
    """Fit Dirichlet calibration: multinomial logistic regression on log-probabilities with a small penalty.

    pip cannot install the authors' package, dirichletcal, because its metadata are invalid.
    """

    def features(p: Probs) -> Probs:
        return np.log(np.maximum(p, 1e-12))

    model = LogisticRegression(C=1.0, max_iter=300).fit(features(p), y)
    return lambda p: _fill(model.predict_proba(features(p)), model.classes_, p.shape[1])


def _probmetrics_methods() -> dict[str, Method]:
    """Return the methods of probmetrics that CalArena ranks, except for trees, kernels and histograms."""
    entries = {
        "probmetrics TS": _probmetrics("TemperatureScalingCalibrator"),
        "probmetrics TS mix": _probmetrics("ts-mix"),
        "probmetrics ETS": _probmetrics("ETSCalibrator"),
        "probmetrics VS": _probmetrics("VectorScalingCalibrator"),
        "probmetrics SVS": _probmetrics("SVSCalibrator"),
        "probmetrics MS": _probmetrics("MatrixScalingCalibrator"),
        "probmetrics SMS": _probmetrics("SMSCalibrator"),
        "probmetrics logistic mix": _probmetrics("logistic-mix"),
        "probmetrics affine": _probmetrics("affine-scaling", max_classes=2),
        "probmetrics quadratic": _probmetrics("quadratic-scaling", max_classes=2),
    }
    if peers.is_installed("betacal"):
        entries["probmetrics beta"] = _probmetrics("beta", max_classes=2)
    if peers.is_installed("cir_model"):
        entries["probmetrics CIR"] = _probmetrics("cir")
    if peers.is_installed("splinecalib"):
        entries["probmetrics spline"] = _probmetrics("MLISplineCalibrator")
    return entries


def _probmetrics(name: str, **properties: Any) -> Method:
    """Return a class of ``probmetrics.calibrators`` or, for other names, a method of its factory."""

    def fit(p: Probs, y: Labels) -> Predict:
        from probmetrics import calibrators

        is_class = hasattr(calibrators, name)
        model = getattr(calibrators, name)() if is_class else calibrators.get_calibrator(name)
        model.fit(p, y)
        return model.predict_proba

    return Method(fit, "probmetrics", **properties)


def _netcal_methods() -> dict[str, Method]:
    return {
        "netcal temperature": _netcal("scaling", "TemperatureScaling"),  # may be negative
        "netcal beta": _netcal("scaling", "BetaCalibration", max_classes=20),  # minutes with 100 classes
        "netcal histogram": _netcal("binning", "HistogramBinning"),
        "netcal BBQ": _netcal("binning", "BBQ"),
    }


def _netcal(module: str, name: str, **properties: Any) -> Method:
    def fit(p: Probs, y: Labels) -> Predict:
        import importlib

        model = getattr(importlib.import_module(f"netcal.{module}"), name)()
        model.fit(p, y, **({"tensorboard": False} if module == "scaling" else {}))
        return lambda p: two_columns(model.transform(p))

    return Method(fit, "netcal", **properties)


def _venn_abers_methods() -> dict[str, Method]:
    def fit(p: Probs, y: Labels) -> Predict:
        from venn_abers import VennAbersCalibrator

        model = VennAbersCalibrator()
        return lambda test: model.predict_proba(p_cal=p, y_cal=y, p_test=test, va_type="one_vs_all")

    return {"Venn-Abers": Method(fit, "venn-abers")}
