"""A function that the `Trainer` of the package transformers calls after each evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetcal._validate import check_flag, check_integer
from hetcal.huggingface.scores import score_predictions, select_rows

__all__ = ["make_compute_metrics"]


def make_compute_metrics(
    *,
    from_probs: bool = False,
    n_bins: int = 15,
    n_redraws: int = 200,
    seed: int = 0,
    ignore_index: int = -100,
) -> Callable[[Any], dict[str, float]]:
    """Return a function for the argument `compute_metrics` of ``transformers.Trainer``.

    The function computes accuracy, scores, calibration errors and noise floors. The noise floor of a
    calibration error is the error that a calibrated model with the same confidences has by chance.

    The model classifies rows, with logits (n, K), or tokens, with logits (n, length, K). If it returns
    several arrays, the first one contains the logits.

    Parameters
    ----------
    from_probs : whether the model returns probabilities instead of logits
    n_bins, n_redraws : as in :func:`hetcal.evaluate`
    seed : seed for the noise floors
    ignore_index : label of the rows or tokens to leave out

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> import numpy as np
    >>> compute_metrics = make_compute_metrics()
    >>> logits, labels = np.array([[2.0, 0.0], [0.0, 2.0]]), np.array([0, 0])
    >>> values = compute_metrics(SimpleNamespace(predictions=logits, label_ids=labels))
    >>> round(values["ece"], 3), round(values["max_ece"], 3)
    (0.381, 0.881)
    """
    check_flag(from_probs, "from_probs")
    check_integer(n_bins, "n_bins", minimum=1)
    check_integer(n_redraws, "n_redraws", minimum=1)
    check_integer(seed, "seed", minimum=0)
    check_integer(ignore_index, "ignore_index")

    def compute_metrics(prediction: Any) -> dict[str, float]:
        first = prediction.predictions
        logits = first[0] if isinstance(first, tuple) else first
        if isinstance(prediction.label_ids, tuple):
            raise ValueError(
                f"the model must have one array of labels, got {len(prediction.label_ids)}; set "
                "label_names in TrainingArguments to the name of one of them"
            )
        z, y = select_rows(logits, prediction.label_ids, ignore_index)
        return score_predictions(
            z,
            y,
            from_probs=from_probs,
            n_bins=n_bins,
            n_redraws=n_redraws,
            seed=seed,
        )

    return compute_metrics
