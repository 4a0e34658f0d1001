"""Other libraries' fits on the same rows. Those that are not installed are left out.

Every function takes logits and labels and returns what was learned: one inverse temperature, or the scale and
bias of vector scaling. What a library wants its input to be (tensors, probabilities) is made outside of the
clock, to its advantage.
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
    "netcal": "on float64 probabilities; in float32 its numerical gradient is zero and it stays at 1",
}


class Passes(ClassifierMixin, BaseEstimator):
    """A classifier whose output is its input, so that peers calibrate given logits or probabilities."""

    def __init__(self, n_classes: int = 2) -> None:
        self.n_classes = n_classes
        self.classes_ = np.arange(n_classes)
        self.n_features_in_ = n_classes

    def fit(self, X: Any, y: Any) -> Passes:  # noqa: ARG002
        """Nothing to learn."""
        return self

    def decision_function(self, X: Any) -> Any:
        """The logits themselves."""
        return X

    def predict_proba(self, X: Any) -> Any:
        """The probabilities themselves."""
        return X

    def predict(self, X: Any) -> Any:
        """Argmax."""
        return np.asarray(X).argmax(axis=1)


class Logits(Passes):
    """The same for one that has logits only."""

    predict_proba = property()  # type: ignore[assignment]  # scikit-learn must not find it


def temperatures(z: np.ndarray, y: np.ndarray) -> dict[str, Fit]:
    """Single temperatures; each function returns the inverse temperature found."""
    found: dict[str, Fit] = {"scikit-learn": lambda: _sklearn(z, y)}
    if is_installed("probmetrics"):
        found["probmetrics"] = probmetrics(*_tensors(z, y))
    if is_installed("torch_uncertainty"):
        found["torch-uncertainty"] = uncertainty(*_tensors(z, y))
    if is_installed("netcal"):
        found["netcal"] = _netcal(z, y)
    return found


def vectors(z: np.ndarray, y: np.ndarray) -> dict[str, Fit]:
    """Vector scalings; each function returns scale and bias, the last of which may be 0.

    torch-uncertainty's has no bias. It stops after 200 steps by default, and may go on here a second time.
    """
    found: dict[str, Fit] = {}
    if is_installed("probmetrics"):
        from probmetrics.calibrators import VectorScalingCalibrator
        from probmetrics.distributions import CategoricalLogits

        tensor, labels = _tensors(z, y)

        def of_probmetrics() -> tuple[Any, Any]:
            model = VectorScalingCalibrator().fit_torch(CategoricalLogits(tensor), labels)
            return 1 / model.temp_.double().numpy(), model.bias_.double().numpy()

        found["probmetrics"] = of_probmetrics
    if is_installed("torch_uncertainty"):
        for name, steps in (("torch-uncertainty", 200), ("torch-uncertainty, 2,000 steps", 2000)):
            found[name] = _uncertainty_vector(*_tensors(z, y), steps)
    return found


def netcal_vector(z: np.ndarray, y: np.ndarray) -> Fit:
    """Vector scaling of netcal, which may take very long: its slopes are numerical, one call per parameter.

    It scales the logarithms of probabilities, which are the logits less a number for each row; for vector
    scaling that is another family. Returns a function that gives the probabilities.
    """
    from netcal.scaling import LogisticCalibration

    p = softmax(z.astype(np.float64))

    def fit() -> Callable[[], Any]:
        model = LogisticCalibration()
        model.fit(p, y, tensorboard=False)
        return lambda: model.transform(p)

    return fit


def isotonic(z: np.ndarray, y: np.ndarray) -> dict[str, Fit]:
    """Isotonic regression of the confidence within each predicted class."""
    if not is_installed("mapie"):
        return {}
    from mapie.calibration import TopLabelCalibrator

    p, estimator = softmax(z), Passes(z.shape[1])
    return {"MAPIE": lambda: TopLabelCalibrator(estimator, calibrator="isotonic", cv="prefit").fit(p, y)}


def uncertainty(z: Any, y: Any) -> Fit:
    """Return torch-uncertainty's single temperature on tensors, where they lie."""
    scalers = _scalers()

    def fit() -> float:
        model = scalers.TemperatureScaler(device=z.device)
        model.fit([(z, y)], progress=False)
        return float(model.inv_temp.item())

    return fit


def is_installed(module: str) -> bool:
    """Whether a module could be imported, without doing so."""
    return find_spec(module) is not None


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings and no log lines, of which some libraries write many."""
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
    """Return the single temperature of probmetrics on tensors, where they lie."""
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
    """Load torch-uncertainty's calibration as it is, without the package around it.

    ``import torch_uncertainty`` needs Lightning and torchvision, whose wheels do not load beside a CPU build
    of torch; the scalers use neither.
    """
    name = "torch_uncertainty.post_processing"
    if name not in sys.modules:
        for package in ("torch_uncertainty", name):
            spec = find_spec(package)
            if spec is None:
                raise ImportError("torch-uncertainty is not installed")
            sys.modules[package] = module_from_spec(spec)  # made, not run
        base = importlib.import_module(f"{name}.abstract")
        sys.modules[name].PostProcessing = base.PostProcessing  # type: ignore[attr-defined]
    return importlib.import_module(f"{name}.calibration")
