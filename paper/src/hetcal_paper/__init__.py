"""Train the networks of the paper behind hetcal and reproduce its tables and figures.

The package has two parts. `cifar`, `networks`, `trainer` and `training` write files of logits and know
nothing about calibration. `evaluate_run`, `results` and the modules that use them read these files; they need
PyTorch only to train missing runs.
"""

from hetcal_paper._version import __version__

__all__ = ["__version__"]
