"""Whether logits are known to be logits, so that a part of them is not taken for probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["are_known_logits", "known_logits"]

_known: ContextVar[bool] = ContextVar("hetcal_known_logits", default=False)


@contextmanager
def known_logits() -> Iterator[None]:
    """Inside, rows of an array that was checked as a whole go to calibrators in parts.

    A few rows of whole-number scores, or a slice of them, may lie in [0, 1] and sum to 1; the whole did not.
    """
    token = _known.set(True)
    try:
        yield
    finally:
        _known.reset(token)


def are_known_logits() -> bool:
    """Whether the present call is inside :func:`known_logits`."""
    return _known.get()
