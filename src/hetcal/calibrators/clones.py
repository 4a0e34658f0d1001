"""A calibrator of its own for every slice: for bases that have no parameters to tie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.base import clone

from hetcal._core.arrays import CodeArray, FloatArray, IntArray
from hetcal._core.kernels import Rows, top_margin
from hetcal._core.messages import quiet
from hetcal.calibrators.base import FitData, fit_step, predict_step
from hetcal.calibrators.toplabel import TopLabelHistogram, TopLabelIsotonic, fit_confidence

__all__ = ["fit_clones", "predict_clones"]


def fit_clones(base: Any, rows: Rows, ids: CodeArray, own: NDArray[np.bool_]) -> list[Any]:
    """Fit a copy of `base` on the rows of every slice in `own`, and one on all rows for the other slices."""
    fit = _fitter(base, rows)
    pooled = None if own.all() else fit(np.arange(len(rows)))  # copies: a base may write to them
    parts = _split(ids, len(own))
    with quiet():  # a slice has few rows by nature
        return [fit(part) if alone else pooled for part, alone in zip(parts, own, strict=True)]


def predict_clones(calibrators: list[Any], z: FloatArray, ids: CodeArray) -> FloatArray:
    """Probabilities (n, K) of rows, each from the calibrator of its slice."""
    out: FloatArray = np.empty_like(z)
    used = ((k, part) for k, part in enumerate(_split(ids, len(calibrators))) if len(part))
    for i, (k, part) in enumerate(used):
        p = predict_step(calibrators[k], z[part], None)
        if i == 0:
            out = np.empty(z.shape, p.dtype)
        out[part] = p
    return out


def _fitter(base: Any, rows: Rows) -> Callable[[IntArray], Any]:
    """Return a function from row numbers to a calibrator that was fitted on them."""
    if type(base) in (TopLabelIsotonic, TopLabelHistogram):  # all that they need of a row is computed once
        confidence = expit(top_margin(rows.z)[0])

        def fit_top(index: IntArray) -> Any:
            fitted = clone(base)
            fit_confidence(fitted, confidence[index], rows.right[index], rows.weight[index])
            fitted.n_features_in_ = rows.z.shape[1]
            return fitted

        return fit_top

    return lambda index: fit_step(base, FitData(rows.take(index)))


def _split(ids: CodeArray, n_slices: int) -> list[IntArray]:
    """Row numbers of every slice, in order; those of no slice are left out."""
    order = np.argsort(ids, kind="stable")
    return np.split(order, np.searchsorted(ids[order], np.arange(1, n_slices + 1)))[:n_slices]
