"""Calibration errors and noise floors for Hugging Face: a metric for `evaluate`, a function for `Trainer`.

The noise floor of a calibration error is the error that a calibrated model with the same confidences has by
chance.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hetcal.huggingface.trainer import make_compute_metrics

__all__ = ["METRIC", "Calibration", "make_compute_metrics"]

#: Folder of the metric, an argument for ``evaluate.load``.
METRIC = str(Path(__file__).parent / "calibration")


def __getattr__(name: str) -> Any:
    if name == "Calibration":  # imported late, because only this class needs `evaluate`
        from hetcal.huggingface.metric import Calibration

        return Calibration
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
