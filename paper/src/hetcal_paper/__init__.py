"""Train the networks of the paper behind hetcal and reproduce its tables and figures.

The logits files that training writes separate the package in two. `cifar`, `networks`, `trainer` and
`training` produce them and know nothing about calibration. `evaluate_run`, `results` and everything after
them read the files and never import PyTorch.
"""

from hetcal_paper._version import __version__

__all__ = ["__version__"]
