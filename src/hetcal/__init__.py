"""Class-wise calibration of classifiers: confidences that match the accuracy of every class and group."""

from __future__ import annotations

import importlib
from typing import Any

from hetcal._version import __version__

# Public names and the modules that provide them. Modules are imported on first use, which makes
# `import hetcal` fast and independent of optional packages.
_NAMES = {
    "AutoCalibrator": "hetcal.calibrators",
    "Batches": "hetcal.batches",
    "BinaryScaling": "hetcal.calibrators",
    "CalibratedClassifier": "hetcal.sklearn",
    "CalibrationWarning": "hetcal._warnings",
    "Chain": "hetcal.calibrators",
    "ClassWise": "hetcal.calibrators",
    "ClassWiseTemperatureScaling": "hetcal.calibrators",
    "Diagnosis": "hetcal.diagnosis",
    "Evaluation": "hetcal.metrics",
    "Identity": "hetcal.calibrators",
    "MatrixScaling": "hetcal.calibrators",
    "Mixture": "hetcal.calibrators",
    "PlattScaling": "hetcal.calibrators",
    "SpeedHint": "hetcal._numeric.acceleration",
    "TemperatureScaling": "hetcal.calibrators",
    "TopLabelHistogram": "hetcal.calibrators",
    "TopLabelIsotonic": "hetcal.calibrators",
    "VectorScaling": "hetcal.calibrators",
    "binary_logits": "hetcal.conversion",
    "bootstrap": "hetcal.metrics",
    "diagnose": "hetcal.diagnosis",
    "evaluate": "hetcal.metrics",
    "load": "hetcal.artefact",
    "load_example": "hetcal.examples",
    "load_logits": "hetcal.logits_files",
    "make_report": "hetcal.report",
    "noise_floor": "hetcal.metrics",
    "plan_validation_size": "hetcal.planning",
    "save": "hetcal.artefact",
    "to_logits": "hetcal.conversion",
}
_MODULES = (
    "calibrators",
    "corruption",
    "dask",
    "huggingface",
    "label_noise",
    "lightning",
    "metrics",
    "mlflow",
    "onnx",
    "partition",
    "planning",
    "plots",
    "sklearn",
    "theory",
    "torch",
    "torchmetrics",
)

__all__ = ["__version__", *_NAMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(importlib.import_module(_NAMES[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"hetcal.{name}")
    else:
        raise AttributeError(f"module 'hetcal' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
