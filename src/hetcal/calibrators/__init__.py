"""Maps from logits to calibrated probabilities."""

from hetcal.calibrators.affine import PlattScaling as PlattScaling
from hetcal.calibrators.affine import VectorScaling as VectorScaling
from hetcal.calibrators.auto import AutoCalibrator as AutoCalibrator
from hetcal.calibrators.base import Calibrator
from hetcal.calibrators.binary import BinaryScaling as BinaryScaling
from hetcal.calibrators.classwise import ClassWise as ClassWise
from hetcal.calibrators.compose import Chain as Chain
from hetcal.calibrators.compose import Mixture as Mixture
from hetcal.calibrators.matrix import MatrixScaling as MatrixScaling
from hetcal.calibrators.temperature import ClassWiseTemperatureScaling as ClassWiseTemperatureScaling
from hetcal.calibrators.temperature import Identity as Identity
from hetcal.calibrators.temperature import TemperatureScaling as TemperatureScaling
from hetcal.calibrators.toplabel import TopLabelHistogram as TopLabelHistogram
from hetcal.calibrators.toplabel import TopLabelIsotonic as TopLabelIsotonic

# The public names are the imported calibrators, without their base class.
__all__ = sorted(
    name
    for name, value in globals().items()
    if isinstance(value, type) and issubclass(value, Calibrator) and value is not Calibrator
)
