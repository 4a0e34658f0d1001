"""Conversion of user input to arrays, the first step of validation."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcal._typing import FloatArray

__all__ = [
    "as_array",
    "is_text",
    "name_number",
    "real_array",
    "refuse_masked",
    "refuse_non_finite",
    "working_dtype",
]

_CHUNK = 1 << 18  # elements that `refuse_non_finite` checks at once: 2 MiB of float64, which fit in the cache


def as_array(values: ArrayLike, name: str) -> NDArray[Any]:
    """Convert array-like input, including torch tensors on any device, to a NumPy array.

    None, sparse matrices, masked arrays with masked entries, and lists of rows of different lengths raise an
    error.
    """
    if values is None:
        raise TypeError(f"{name} must be an array, got None; pass an array or a list")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(values, torch.Tensor):
        host = values.detach().cpu()
        return np.asarray((host.float() if host.dtype == torch.bfloat16 else host).numpy())
    if hasattr(values, "toarray"):
        raise TypeError(
            f"{name} must be a dense array, got a sparse {type(values).__name__}; call .toarray() first"
        )
    refuse_masked(values, name)
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(
            f"{name} must be a rectangular array, got values that NumPy cannot convert ({error}); "
            "pass the same number of values in every row"
        ) from None


def is_text(array: NDArray[Any]) -> bool:
    """Whether all entries are strings."""
    return array.dtype.kind == "U" or (
        array.dtype.kind == "O" and all(isinstance(value, str) for value in array.flat)
    )


def refuse_masked(values: Any, name: str) -> None:
    """Raise an error if a NumPy array has masked entries, which conversion to a plain array would unmask."""
    if not isinstance(values, np.ma.MaskedArray) or not np.ma.is_masked(values):
        return
    if values.ndim == 0:
        raise ValueError(f"{name} must have no masked entries, got a masked value; pass a number")
    mask = np.ma.getmaskarray(values)
    row = int(np.argmax(mask.reshape(len(mask), -1).any(axis=1)))
    axes = "1" if mask.ndim == 2 else str(tuple(range(1, mask.ndim)))
    rows = f"np.ma.getmaskarray({name})" + (f".any(axis={axes})" if mask.ndim > 1 else "")
    raise ValueError(
        f"{name} must have no masked entries, got one at row {row}; "
        f"keep only the rows ~{rows} of this argument and of all others"
    )


def real_array(values: ArrayLike, name: str) -> NDArray[Any]:
    """Convert input of any shape to an array of real numbers: floats, integers or booleans."""
    array = as_array(values, name)
    if array.dtype.kind == "c":
        raise ValueError(
            f"{name} must be real, got {array.dtype} (Complex data not supported); take the real part"
        )
    if array.dtype.kind == "O":
        try:
            return array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"{name} must be numbers, got other objects ({error}); convert the values to numbers"
            ) from None
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must be numbers, got dtype {array.dtype}; convert the values to numbers")
    return array


def working_dtype(array: NDArray[Any]) -> FloatArray:
    """Convert float16 to float32, and everything else except float32 to float64."""
    if array.dtype in (np.float32, np.float64):
        return array
    return array.astype(np.float32 if array.dtype == np.float16 else np.float64)


def refuse_non_finite(array: FloatArray, name: str) -> None:
    """If any entry is NaN or infinite, raise an error that names the first row with such an entry."""
    # If the sum is finite, so are all entries. Otherwise each row is checked, because a sum of finite entries
    # may overflow.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum(dtype=np.float64)):
            return
    flat = array.reshape(len(array), -1)
    step = max(1, _CHUNK // max(1, flat.shape[1]))
    for start in range(0, len(flat), step):
        bad = ~np.isfinite(flat[start : start + step]).all(axis=1)
        if bad.any():
            row = start + int(np.argmax(bad))
            value = name_number(flat[row][~np.isfinite(flat[row])][0])
            raise ValueError(
                f"{name} must be finite, got {value} at row {row}; "
                "drop the row or fix the model that produced it"
            )


def name_number(value: Any) -> str:
    """Format a number for an error message."""
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "infinity (inf)" if value > 0 else "-infinity (-inf)"
    return f"{value}"
