"""Script of the metric, which ``evaluate.load(hetcal.huggingface.METRIC)`` copies and runs."""

from hetcal.huggingface.metric import Calibration

__all__ = ["Calibration"]
