"""Maps from logits to calibrated probabilities."""

from hetcal.calibrators.affine import PlattScaling, VectorScaling
from hetcal.calibrators.auto import AutoCalibrator
from hetcal.calibrators.classwise import ClassWise
from hetcal.calibrators.compose import Chain, Mixture
from hetcal.calibrators.temperature import ClassWiseTemperatureScaling, Identity, TemperatureScaling
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
