"""Choice between numpy and numba for a computation, by the size of its array."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from hetcal._extras import install_command
from hetcal._warnings import emit

__all__ = ["LARGE", "SpeedHint", "compiled_for"]

LARGE = 1 << 22  # arrays with fewer elements are processed by numpy, since loading numba takes time
_WARN = 1 << 25  # arrays with at least this many elements cause a warning if numba cannot be imported
_state: dict[str, Any] = {}


class SpeedHint(UserWarning):
    """Warning that a large computation would be faster with numba, which cannot be imported."""


def compiled_for(n_elements: int) -> ModuleType | None:
    """Return the module of numba kernels, or None if numpy should process an array of this size.

    The result is None if the array has fewer than `LARGE` elements, if numba cannot be imported, or if the
    environment variable ``HETCAL_NUMBA`` is ``off``, ``0`` or ``no``. The choice depends on nothing else, so
    equal calls in the same environment give equal results. If the variable allows numba but numba cannot be
    imported, the first call for an array of at least 33,554,432 elements emits a `SpeedHint`.
    """
    if n_elements < LARGE or os.environ.get("HETCAL_NUMBA", "").lower() in ("off", "0", "no"):
        return None
    if "kernels" not in _state:
        _state["kernels"] = _load()
    if _state["kernels"] is None and n_elements >= _WARN and not _state.get("warned"):
        _state["warned"] = True
        emit(
            "numba would process large arrays several times faster, but it cannot be imported "
            f"({_state['reason']}); install it with: {install_command('fast')}",
            SpeedHint,
        )
    kernels: ModuleType | None = _state["kernels"]
    return kernels


def _load() -> ModuleType | None:
    try:
        from hetcal._numeric import compiled as numba_kernels
    except ImportError as error:  # numba is not installed, or is incompatible with this numpy
        _state["reason"] = str(error)
        return None
    return numba_kernels
