"""The numbers that the metric and the function for a `Trainer` return."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._validate import check_flag, check_labels, check_logits, check_probs
from hetcal.metrics import evaluate
from hetcal.metrics.evaluation import as_plain

__all__ = ["score_predictions", "select_rows"]

_SCORES = ("accuracy", "nll", "brier", "ece", "max_ece", "avg_ece", "smooth_ece", "debiased_ece")
_PER_CLASS = ("ece", "floor", "signed_gap")  # attributes of `classes` in the result of hetcal.evaluate


def score_predictions(
    predictions: Any,
    labels: Any,
    *,
    labels_name: str = "labels",
    from_probs: bool = False,
    per_class: bool = False,
    n_bins: int = 15,
    n_redraws: int = 200,
    seed: int = 0,
) -> dict[str, Any]:
    """Scores and noise floors as plain numbers.

    The noise floor of a calibration error is the error that a calibrated model with the same confidences has
    by chance. `per_class` adds lists with one number per class, or None for a class that is never predicted.
    """
    # The inputs are checked here, so that errors name the arguments of Hugging Face instead of those of
    # hetcal.evaluate.
    inputs: dict[str, Any]
    if check_flag(from_probs, "from_probs"):
        scores = check_probs(predictions, name="predictions", scores_remedy="leave out from_probs for logits")
        inputs = {"probs": scores}
    else:
        scores = check_logits(predictions, name="predictions", probs_remedy="pass from_probs=True")
        inputs = {"logits": scores}
    y = check_labels(labels, n_rows=len(scores), n_classes=scores.shape[1], name=labels_name)
    result = evaluate(labels=y, n_bins=n_bins, n_redraws=n_redraws, rng=seed, **inputs)
    values: dict[str, Any] = {name: getattr(result, name) for name in _SCORES}
    values |= {f"{name}_floor": floor for name, floor in result.floor.items()}
    if per_class:
        values |= {f"class_{name}": as_plain(getattr(result.classes, name)) for name in _PER_CLASS}
    return values


def select_rows(predictions: Any, labels: Any, ignore_index: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Predictions (m, K) and labels (m,) of the rows, or tokens, whose label is not `ignore_index`."""
    z, y = np.asarray(predictions), np.asarray(labels)
    if z.ndim < 2 or y.shape != z.shape[:-1]:
        raise ValueError(
            "predictions must have the shape of the labels and one more dimension for the classes, got "
            f"{z.shape} for labels of shape {y.shape}; use a model for classification"
        )
    is_used = y != ignore_index
    if not is_used.any():
        raise ValueError(
            f"labels must contain values other than {ignore_index}, got none; check the data set"
        )
    return z[is_used], y[is_used]
