"""Fits of other libraries on the same rows. Libraries that are not installed are skipped.

The functions take logits and labels, convert them (to tensors or probabilities) and return fits: functions
without arguments that the benchmarks time. The conversion is therefore not timed.
"""

from __future__ import annotations

import importlib
import logging
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from typing import Any

import numpy as np
from problems import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator

__all__ = [
    "NOTES",
    "is_installed",
    "isotonic",
    "netcal_vector",
    "probmetrics",
    "quiet",
    "temperatures",
    "uncertainty",
    "vectors",
]

Fit = Callable[[], Any]

NOTES = {
    "scikit-learn": "one thread",
    "probmetrics": "30 bisection steps",
    "torch-uncertainty": "L-BFGS, at most 100 steps",
    "netcal": "on float64 probabilities; in float32, its gradient is zero and the temperature stays at 1",
}


class PassThrough(ClassifierMixin, BaseEstimator):
    """A classifier that returns its input, so that other libraries can calibrate logits or probabilities."""

    def __init__(self, n_classes: int = 2) -> None:
        self.n_classes = n_classes
        self.classes_ = np.arange(n_classes)
        self.n_features_in_ = n_classes

    def fit(self, X: Any, y: Any) -> PassThrough:  # noqa: ARG002
        """Do nothing."""
        return self

    def decision_function(self, X: Any) -> Any:
        """Return the input."""
        return X

    def predict_proba(self, X: Any) -> Any:
        """Return the input."""
        return X

    def predict(self, X: Any) -> Any:
        """Return the argmax."""
        return np.asarray(X).argmax(axis=1)


class Logits(PassThrough):
    """A `PassThrough` without `predict_proba`, so that scikit-learn calls `decision_function`."""

    predict_proba = property()  # type: ignore[assignment]  # raises AttributeError


class Probabilities(PassThrough):
    """The same without `decision_function`."""

    decision_function = property()  # type: ignore[assignment]  # hide it from scikit-learn


def temperatures(z: np.ndarray, y: np.ndarray) -> dict[str, Fit]:
    """Return functions that fit a single temperature and return its inverse."""
    fits: dict[str, Fit] = {"scikit-learn": lambda: _sklearn(z, y)}
    if is_installed("probmetrics"):
        fits["probmetrics"] = probmetrics(*_tensors(z, y))
    if is_installed("torch_uncertainty"):
        fits["torch-uncertainty"] = uncertainty(*_tensors(z, y))
    if is_installed("netcal"):
        fits["netcal"] = _netcal(z, y)
    return fits


def vectors(z: np.ndarray, y: np.ndarray) -> dict[str, Fit]:
    """Return functions that fit vector scaling and return its scale and bias.

    torch-uncertainty has no bias, so we return 0. It runs twice: with at most 200 steps, its default, and
    with at most 2,000.
    """
    fits: dict[str, Fit] = {}
    if is_installed("probmetrics"):
        from probmetrics.calibrators import VectorScalingCalibrator
        from probmetrics.distributions import CategoricalLogits

        tensor, labels = _tensors(z, y)

        def fit_probmetrics() -> tuple[Any, Any]:
            model = VectorScalingCalibrator().fit_torch(CategoricalLogits(tensor), labels)
            return 1 / model.temp_.double().numpy(), model.bias_.double().numpy()

        fits["probmetrics"] = fit_probmetrics
    if is_installed("torch_uncertainty"):
        for name, steps in (("torch-uncertainty", 200), ("torch-uncertainty, 2,000 steps", 2000)):
            fits[name] = _uncertainty_vector(*_tensors(z, y), steps)
    return fits


def netcal_vector(z: np.ndarray, y: np.ndarray) -> Fit:
    """Return a function that fits netcal's vector scaling.

    It can take very long, because its numerical gradient needs one call per parameter. It scales
    log-probabilities, which gives a different family of maps from scaling logits. The fit returns a function
    that computes the probabilities.
    """
    from netcal.scaling import LogisticCalibration

    p = softmax(z.astype(np.float64))

    def fit() -> Callable[[], Any]:
        model = LogisticCalibration()
        model.fit(p, y, tensorboard=False)
        return lambda: model.transform(p)

    return fit


def isotonic(z: np.ndarray, y: np.ndarray) -> dict[str, Fit]:
    """Return functions that fit isotonic regression within each predicted class."""
    if not is_installed("mapie"):
        return {}
    from mapie.calibration import TopLabelCalibrator

    p, estimator = softmax(z), PassThrough(z.shape[1])
    return {"MAPIE": lambda: TopLabelCalibrator(estimator, calibrator="isotonic", cv="prefit").fit(p, y)}


def uncertainty(z: Any, y: Any) -> Fit:
    """Return a function that fits torch-uncertainty's temperature on the device of the tensors."""
    scalers = _scalers()

    def fit() -> float:
        model = scalers.TemperatureScaler(device=z.device)
        model.fit([(z, y)], progress=False)
        return float(model.inv_temp.item())

    return fit


def is_installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it."""
    return find_spec(module) is not None


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings and log messages."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _tensors(z: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    import torch

    return torch.from_numpy(z), torch.from_numpy(y)


def _sklearn(z: np.ndarray, y: np.ndarray) -> float:
    rows = np.arange(len(y))
    model = CalibratedClassifierCV(
        FrozenEstimator(Logits(z.shape[1])), method="temperature", cv=[(rows, rows)], ensemble=False
    ).fit(z, y)
    return float(model.calibrated_classifiers_[0].calibrators[0].beta_)


def probmetrics(z: Any, y: Any) -> Fit:
    """Return a function that fits probmetrics' temperature on the device of the tensors."""
    from probmetrics.calibrators import TemperatureScalingCalibrator
    from probmetrics.distributions import CategoricalLogits

    return lambda: float(TemperatureScalingCalibrator().fit_torch(CategoricalLogits(z), y).invtemp_)


def _uncertainty_vector(z: Any, y: Any, steps: int) -> Fit:
    scalers = _scalers()

    def fit() -> tuple[Any, Any]:
        model = scalers.VectorScaler(z.shape[1], max_iter=steps)
        model.fit([(z, y)], progress=False)
        return model.inv_temp.detach().double().numpy(), 0.0

    return fit


def _netcal(z: np.ndarray, y: np.ndarray) -> Fit:
    from netcal.scaling import TemperatureScaling

    p = softmax(z.astype(np.float64))

    def fit() -> float:
        model = TemperatureScaling()
        model.fit(p, y, tensorboard=False)
        return float(model.temperature[0])

    return fit


def _scalers() -> types.ModuleType:
    """Load torch-uncertainty's calibration module without the rest of the package.

    ``import torch_uncertainty`` needs Lightning and torchvision, whose wheels do not work with a CPU build of
    torch. The scalers use neither.
    """
    name = "torch_uncertainty.post_processing"
    if name not in sys.modules:
        for package in ("torch_uncertainty", name):
            spec = find_spec(package)
            if spec is None:
                raise ImportError("torch-uncertainty is not installed")
            sys.modules[package] = module_from_spec(spec)  # created but not executed
        base = importlib.import_module(f"{name}.abstract")
        sys.modules[name].PostProcessing = base.PostProcessing  # type: ignore[attr-defined]
    return importlib.import_module(f"{name}.calibration")
