"""Small real logits that come with the package."""

from __future__ import annotations

from importlib import resources

from hetcal.logits_files import LogitsFile, load_logits

__all__ = ["load_example", "names"]

_FILES = {"cifar10-noisy": "cifar10-noisy.npz", "cifar100-noisy": "cifar100-noisy.npz"}


def names() -> list[str]:
    """Names that :func:`load_example` takes."""
    return list(_FILES)


def load_example(name: str = "cifar10-noisy") -> LogitsFile:
    """Embedded validation and test logits; ``about`` says where they come from.

    ``"cifar10-noisy"`` has 10 classes and 500 validation rows of each, ``"cifar100-noisy"`` 100 classes and
    50 of each: the case in which class-wise calibration must pool. Both were trained with 30% label noise on
    the first half of the classes; validation and test labels are clean.

    Examples
    --------
    >>> example = load_example("cifar10-noisy")
    >>> example.val.logits.shape, example.judged.logits.shape
    ((5000, 10), (10000, 10))
    """
    if not isinstance(name, str) or name not in _FILES:
        raise ValueError(f"name must be one of {', '.join(map(repr, _FILES))}, got {name!r}")
    with resources.as_file(resources.files(__package__) / _FILES[name]) as path:
        return load_logits(path)
