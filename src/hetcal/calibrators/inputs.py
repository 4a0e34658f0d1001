"""What every calibrator does with its input before it computes anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted, validate_data

from hetcal._core.arrays import FloatArray, IntArray, check_labels, check_logits, check_weights
from hetcal._core.batches import Batches, is_mapped
from hetcal._core.blocks import RowSource, is_source
from hetcal._core.messages import warn_thin_data
from hetcal._core.raw import as_array
from hetcal._core.tensors import is_tensor, on_device, scaled_softmax_tensor

__all__ = [
    "as_source",
    "check_bounds",
    "check_fit",
    "check_predict",
    "check_ridge",
    "in_memory",
    "remember_columns",
    "wherever",
]

_LARGE = 1 << 25  # elements from which a mapped file is read in batches


def as_source(
    logits: Any, labels: Any = None, sample_weight: Any = None, groups: Any = None
) -> RowSource | None:
    """Rows that come in blocks, or None where they are in memory."""
    if is_source(logits):
        beside = {"labels": labels, "sample_weight": sample_weight, "groups": groups}
        extra = [name for name, value in beside.items() if value is not None]
        if extra:
            raise ValueError(
                f"{extra[0]} must be left out beside rows in batches, which hold their own; "
                "make it part of the batches"
            )
        source: RowSource = logits
        return source
    if is_mapped(logits) and logits.ndim == 2 and logits.size >= _LARGE and labels is not None:
        return Batches(logits, labels, sample_weight=sample_weight, groups=groups)
    return None


def in_memory(model: Any, logits: Any) -> None:
    """Refuse rows in batches, for calibrators that need all rows at once."""
    if is_source(logits):
        raise TypeError(
            f"logits must be an array for {type(model).__name__}, which needs all rows at once, "
            f"got {type(logits).__name__}; fit on a sample, or use a calibrator with parameters"
        )


@dataclass(frozen=True)
class _Prediction:
    """What a fitted calibrator makes of a block."""

    model: Any

    def __call__(self, logits: FloatArray, groups: Any) -> FloatArray:
        takes = groups is not None and groups_of(self.model) is not None
        return np.asarray(self.model.predict_proba(logits, **({"groups": groups} if takes else {})))


def groups_of(model: Any) -> NDArray[Any] | None:
    """Names of the groups that a fitted calibrator, or a part of it, slices rows by, or None."""
    slices = getattr(model, "slices_", None)
    found: NDArray[Any] | None = getattr(model, "groups_", None) if slices is None else slices.groups
    if found is not None:
        return found
    parts = [model.best_] if hasattr(model, "best_") else []
    parts += [*getattr(model, "steps_", []), *(getattr(model, "calibrators_", None) or [])]
    return next((names for part in parts if (names := groups_of(part)) is not None), None)


def check_flag(value: Any, name: str) -> bool:
    """True or False, and nothing that only counts as one of them."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def wherever(predict: Callable[..., FloatArray]) -> Callable[..., Any]:
    """Let a ``predict_proba`` take rows in batches and tensors, too, and return the like."""

    @wraps(predict)
    def predict_proba(self: Any, logits: Any, *, groups: ArrayLike | None = None, **options: Any) -> Any:
        if options.get("return_std") and (is_source(logits) or is_tensor(logits)):
            raise TypeError(
                f"logits must be an array for return_std, got {type(logits).__name__}; take some rows"
            )
        if is_source(logits):
            check_is_fitted(self)
            return logits.transform(_Prediction(self))
        if is_tensor(logits):
            return _predict_tensor(self, predict, logits, groups)
        return predict(self, logits, groups=groups, **options)

    return predict_proba


def _predict_tensor(
    model: Any, predict: Callable[..., FloatArray], logits: Any, groups: ArrayLike | None
) -> Any:
    """Probabilities as a tensor on the device of the logits."""
    check_is_fitted(model)
    alpha = getattr(model, "alpha_", None)
    plain = groups is None and getattr(model, "groups_", None) is None
    fits = logits.ndim == 2 and logits.shape[1] == model.n_features_in_
    if on_device(logits) and plain and alpha is not None and fits:
        return scaled_softmax_tensor(logits, alpha)
    import torch

    found = predict(model, as_array(logits, "logits"), groups=groups)
    return torch.from_numpy(np.ascontiguousarray(found)).to(logits.device)


def check_fit(
    logits: ArrayLike, labels: ArrayLike | None, sample_weight: ArrayLike | None
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
    if is_tensor(logits):
        logits = np.empty((0, logits.shape[1]))  # type: ignore[union-attr]
    if is_source(logits):
        model.n_features_in_ = logits.n_classes  # type: ignore[union-attr]
        vars(model).pop("feature_names_in_", None)
    else:
        validate_data(model, logits, reset=True, skip_check_array=True)


def check_bounds(bounds: Any, name: str = "alpha_bounds") -> tuple[float, float]:
    """Two positive finite numbers in order."""
    try:
        lower, upper = (float(b) for b in bounds)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a pair (lower, upper), got {bounds!r}") from None
    if not 0 < lower < upper < np.inf:
        raise ValueError(
            f"{name} must be positive, finite and in order, got {bounds!r}; the default is (0.01, 100)"
        )
    return lower, upper


def check_ridge(ridge: Any) -> float:
    """Return a finite number, zero or more."""
    if isinstance(ridge, bool) or not isinstance(ridge, int | float | np.number):
        raise TypeError(f"ridge must be a number, got {ridge!r}")
    if not 0 <= ridge < np.inf:
        raise ValueError(f"ridge must be finite and zero or more, got {ridge!r}")
    return float(ridge)
