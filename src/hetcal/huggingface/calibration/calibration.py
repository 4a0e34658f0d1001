"""Script that ``evaluate.load(hetcal.huggingface.METRIC)`` copies and runs; it finds the class in it."""

from hetcal.huggingface.metric import Calibration

__all__ = ["Calibration"]
