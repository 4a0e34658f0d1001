"""Maps from logits to calibrated probabilities."""

from hetcal.calibrators.auto import AutoCalibrator
from hetcal.calibrators.chain import Chain
from hetcal.calibrators.classwise import ClassWise, ClassWiseTemperatureScaling
from hetcal.calibrators.mixture import Mixture
from hetcal.calibrators.scaling import Identity, PlattScaling, TemperatureScaling, VectorScaling
from hetcal.calibrators.toplabel import TopLabelHistogram, TopLabelIsotonic

__all__ = [
    "AutoCalibrator",
    "Chain",
    "ClassWise",
    "ClassWiseTemperatureScaling",
    "Identity",
    "Mixture",
    "PlattScaling",
    "TemperatureScaling",
    "TopLabelHistogram",
    "TopLabelIsotonic",
    "VectorScaling",
]
