"""Which passes run compiled: those over arrays so large that compiling, or loading what was, pays."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from hetcal._warnings import emit

__all__ = ["LARGE", "SpeedHint", "compiled_for"]

LARGE = 1 << 22  # elements from which compiled passes are used: below, numpy is done before numba is loaded
_LOUD = 1 << 25  # elements from which their absence is worth a word
_state: dict[str, Any] = {}


class SpeedHint(UserWarning):
    """Something that would make a large computation faster."""


def compiled_for(n_elements: int) -> ModuleType | None:
    """Return the compiled passes for an array of this size, or None where numpy is to do it.

    The size alone decides, so that the same call always goes the same way; ``HETCAL_NUMBA=off`` forbids them.
    """
    if n_elements < LARGE or os.environ.get("HETCAL_NUMBA", "").lower() in ("off", "0", "no"):
        return None
    if "kernels" not in _state:
        _state["kernels"] = _load()
    if _state["kernels"] is None and n_elements >= _LOUD and not _state.get("said"):
        _state["said"] = True
        emit(
            "large arrays are several times as fast with numba, which cannot be loaded "
            f'({_state["reason"]}); pip install "hetcal[fast]"',
            SpeedHint,
        )
    kernels: ModuleType | None = _state["kernels"]
    return kernels


def _load() -> ModuleType | None:
    try:
        from hetcal._numeric import compiled as numba_kernels
    except ImportError as error:  # not there, or not made for this numpy
        _state["reason"] = str(error)
        return None
    return numba_kernels
