"""Array types used throughout the package."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BoolArray", "CodeArray", "Float", "FloatArray", "IntArray"]

Float = NDArray[np.float64]
FloatArray = NDArray[np.floating[Any]]  # float32 or float64
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
CodeArray = NDArray[np.integer[Any]]  # integers of any width; narrow types save memory if there are many rows
