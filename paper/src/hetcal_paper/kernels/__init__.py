"""Hand-written Triton kernels for training ResNet-20.

The file README.md in this folder describes the kernels and their speed.
"""

from hetcal_paper.kernels.steps import FusedSteps, available

__all__ = ["FusedSteps", "available"]
