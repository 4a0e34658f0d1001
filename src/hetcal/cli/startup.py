"""Fast imports for commands: without garbage collection and without packages that are rarely used."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

__all__ = ["fast_imports"]

_POSTPONED = ("pandas", "scipy.stats")  # scikit-learn imports them, which takes longer than all other imports


@contextmanager
def fast_imports() -> Iterator[None]:
    """Import scikit-learn, but pandas and scipy.stats only when something uses them; then run the block.

    Placeholders take the place of the two packages while scikit-learn is imported. scikit-learn keeps the
    placeholders, which import the package on the first use. All other code imports the packages as usual.
    The garbage collector is paused: imports create many objects and hardly any garbage.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        _import_scikit_learn()
        yield
    finally:
        if enabled:
            gc.enable()


def _import_scikit_learn() -> None:
    placeholders = {name: _Placeholder(name) for name in _POSTPONED if name not in sys.modules}
    sys.modules.update(placeholders)
    try:
        import sklearn.base  # noqa: F401
    finally:
        for name, placeholder in placeholders.items():
            if sys.modules.get(name) is placeholder:
                del sys.modules[name]


class _Placeholder(ModuleType):
    """A module that imports the package of the same name when an attribute is looked up."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)
