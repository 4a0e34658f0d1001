"""Small example files of real logits that come with the package."""

from __future__ import annotations

from importlib import resources

from hetcal._validate import choose
from hetcal.logits_files import LogitsFile, load_logits

__all__ = ["load_example", "names"]

_FILES = {"cifar10-noisy": "cifar10-noisy.npz", "cifar100-noisy": "cifar100-noisy.npz"}


def names() -> list[str]:
    """Return the names that :func:`load_example` accepts."""
    return list(_FILES)


def load_example(name: str = "cifar10-noisy") -> LogitsFile:
    """Load the validation and test logits of an example; ``about`` of the result describes their origin.

    ``"cifar10-noisy"`` has 10 classes with 500 validation rows each. ``"cifar100-noisy"`` has 100 classes
    with 50 validation rows each. The logits of each example come from a model that was trained with 30% label
    noise on the first half of the classes. Validation and test labels are clean.

    Examples
    --------
    >>> example = load_example("cifar10-noisy")
    >>> example.val.logits.shape, example.judged.logits.shape
    ((5000, 10), (10000, 10))
    """
    file = choose(_FILES, name, "name")
    with resources.as_file(resources.files(__package__) / file) as path:
        return load_logits(path)
