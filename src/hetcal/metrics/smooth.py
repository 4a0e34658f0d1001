"""Smooth ECE from residuals on a grid, which add up over any parts of the rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import fft, optimize

from hetcal._typing import Float, IntArray

__all__ = ["add_residuals", "empty_grid", "residual_shares", "smooth_error_on"]


_GRID = 1 << 13  # places of the grid: finer than any bandwidth that smooth_ece settles on


def empty_grid() -> Float:
    """Grid of [0, 1] that residuals are added up on, with a place beyond either end."""
    return np.zeros(_GRID + 2)


def residual_shares(confidence: Float, correct: NDArray[np.bool_]) -> tuple[IntArray, Float, Float]:
    """Place on the grid below every confidence, and the parts of its residual for that and the next one."""
    position = confidence * _GRID + 0.5
    place = position.astype(np.int64)
    residual = confidence - correct
    position -= place
    position *= residual
    return place, np.subtract(residual, position, out=residual), position


def add_residuals(grid: Float, place: IntArray, low: Float, high: Float) -> None:
    """Add what :func:`residual_shares` found to a grid."""
    np.add.at(grid, place, low)
    np.add.at(grid[1:], place, high)


def smooth_error_on(grid: Float, n_rows: int) -> float:
    """:func:`smooth_ece` from residuals on the grid, each shared by the two places beside its confidence."""
    inside = grid[1:-1] / n_rows
    inside[[0, -1]] += grid[[0, -1]] / n_rows
    # A Gaussian reflected at both ends is the heat kernel of [0, 1]: the cosine transform diagonalises it.
    spectrum = fft.dct(inside, norm="ortho")
    decay = -0.5 * (np.pi * np.arange(_GRID)) ** 2

    def excess(sigma: float) -> float:
        return float(np.abs(fft.idct(spectrum * np.exp(decay * sigma**2), norm="ortho")).sum() - sigma)

    if excess(0.0) <= 0 or excess(1.0) >= 0:  # all right, or certain and always wrong
        return 0.0 if excess(0.0) <= 0 else 1.0
    return float(optimize.brentq(excess, 0.0, 1.0, xtol=1e-13))
