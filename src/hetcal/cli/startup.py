"""Import scikit-learn without the packages that it imports but that hetcal's commands rarely use."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

__all__ = ["import_scikit_learn"]

_POSTPONED = ("pandas", "scipy.stats")  # together, importing them takes longer than everything else


def import_scikit_learn() -> None:
    """Import ``sklearn.base``, but pandas and scipy.stats only when something uses them.

    While scikit-learn is imported, placeholders take the place of the two packages. scikit-learn keeps the
    placeholders, which import the package on the first use. All other code imports the packages as usual.
    """
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
