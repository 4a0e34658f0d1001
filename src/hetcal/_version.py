"""The version of hetcal; tools/release.py lists the other files that state it."""

__version__ = "0.2.0"
