"""Calibrated PyTorch models: a fitted calibrator as a module, alone or after a network.

The modules store the calibrator's parameters as buffers, so ``state_dict``, ``to(device)``, ``torch.compile``
and ``torch.export`` treat them as part of the model.
"""

from hetcal.export.torch import (
    CalibratedModel,
    Calibration,
    collect_logits,
    fit_from_loader,
    logits_of,
    probabilities,
)

__all__ = [
    "CalibratedModel",
    "Calibration",
    "collect_logits",
    "fit_from_loader",
    "logits_of",
    "probabilities",
]
