"""The version, equal to that of hetcal."""

__version__ = "0.2.0"
