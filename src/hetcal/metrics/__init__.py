"""Calibration metrics with noise floors and intervals, for probabilities or for confidences alone.

The noise floor of a calibration error is the error that a calibrated model with the same confidences has by
chance.

The metrics that use confidence bins share the binning code in :mod:`hetcal.metrics.binning`.
"""

from hetcal.metrics.binning import ReliabilityCurve, reliability_by_class, reliability_curve
from hetcal.metrics.evaluation import ClassTable, Evaluation, evaluate
from hetcal.metrics.floors import NoiseFloor, noise_floor
from hetcal.metrics.intervals import Intervals, bootstrap, gap_intervals
from hetcal.metrics.scores import (
    accuracy,
    avg_ece,
    brier,
    class_ece,
    debiased_ece,
    ece,
    max_ece,
    nll,
    signed_gap,
    smooth_ece,
)

__all__ = [
    "ClassTable",
    "Evaluation",
    "Intervals",
    "NoiseFloor",
    "ReliabilityCurve",
    "accuracy",
    "avg_ece",
    "bootstrap",
    "brier",
    "class_ece",
    "debiased_ece",
    "ece",
    "evaluate",
    "gap_intervals",
    "max_ece",
    "nll",
    "noise_floor",
    "reliability_by_class",
    "reliability_curve",
    "signed_gap",
    "smooth_ece",
]
