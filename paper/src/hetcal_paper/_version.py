"""The version of hetcal-paper, which equals that of hetcal."""

__version__ = "0.2.0"
