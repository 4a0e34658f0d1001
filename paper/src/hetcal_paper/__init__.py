"""Train the networks of the paper behind hetcal and reproduce its tables and figures.

The package has two parts. The first (`cifar`, `networks`, `trainer`, `training`) trains the networks and
writes their logits to files. The second (`evaluate_run`, `results` and the modules that use them) calibrates
these logits and reproduces the tables and figures. Only the first part needs PyTorch.
"""

from hetcal_paper._version import __version__

__all__ = ["__version__"]
