"""What every calibrator does with its input before it computes anything."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted, validate_data

from hetcal._core.arrays import FloatArray, IntArray, check_labels, check_logits, check_weights
from hetcal._core.messages import warn_thin_data

__all__ = ["check_bounds", "check_fit", "check_predict", "check_ridge", "remember_columns"]


def check_fit(
    logits: ArrayLike, labels: ArrayLike, sample_weight: ArrayLike | None
) -> tuple[FloatArray, IntArray, NDArray[np.float64] | None]:
    """Check what every `fit` takes; warn where the data are thin."""
    z = check_logits(logits)
    y = check_labels(labels, n_rows=len(z), n_classes=z.shape[1])
    w = check_weights(sample_weight, n_rows=len(z))
    warn_thin_data(y if w is None else y[w > 0], z.shape[1])
    return z, y, w


def check_predict(model: Any, logits: ArrayLike) -> FloatArray:
    """Check that `model` is fitted and the logits have the columns it was fitted on."""
    check_is_fitted(model)
    frame = hasattr(logits, "columns")
    if frame:  # the names of columns say more about what is wrong than their number
        validate_data(model, logits, reset=False, skip_check_array=True)
    z = check_logits(logits, n_classes=model.n_features_in_)
    if not frame:
        validate_data(model, logits, reset=False, skip_check_array=True)
    return z


def remember_columns(model: Any, logits: ArrayLike) -> None:
    """Set `n_features_in_`, and `feature_names_in_` where logits came as a data frame; ends a fit."""
    validate_data(model, logits, reset=True, skip_check_array=True)


def check_bounds(alpha_bounds: Any) -> tuple[float, float]:
    """Two positive finite numbers in order."""
    try:
        lower, upper = (float(b) for b in alpha_bounds)
    except (TypeError, ValueError):
        raise TypeError(f"alpha_bounds must be a pair (lower, upper), got {alpha_bounds!r}") from None
    if not 0 < lower < upper < np.inf:
        raise ValueError(
            f"alpha_bounds must be positive, finite and in order, got {alpha_bounds!r}; "
            "the default is (0.01, 100)"
        )
    return lower, upper


def check_ridge(ridge: Any) -> float:
    """Return a finite number, zero or more."""
    if isinstance(ridge, bool) or not isinstance(ridge, int | float | np.number):
        raise TypeError(f"ridge must be a number, got {ridge!r}")
    if not 0 <= ridge < np.inf:
        raise ValueError(f"ridge must be finite and zero or more, got {ridge!r}")
    return float(ridge)
