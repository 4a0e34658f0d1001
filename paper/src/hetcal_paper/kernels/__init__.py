"""Hand-written Triton kernels for training ResNet-20; README.md describes them and their speed."""

from hetcal_paper.kernels.steps import FusedSteps, available

__all__ = ["FusedSteps", "available"]
