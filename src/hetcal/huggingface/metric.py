"""A metric for the package `evaluate`."""

from __future__ import annotations

from typing import Any

from hetcal._extras import missing_package
from hetcal.huggingface.scores import score_predictions

try:
    import evaluate
    from datasets import Features, Sequence, Value
except ImportError as error:
    message = "hetcal.huggingface.Calibration needs the package evaluate"
    raise missing_package(message, "huggingface") from error

__all__ = ["Calibration"]

_DESCRIPTION = """\
Calibration errors of a classifier: ECE, and the ECE of every predicted class, its maximum (max-ECE) and its
mean (Avg-ECE), each with its noise floor: the error that a calibrated model with the same
confidences has by chance."""

_INPUTS = """\
Parameters
----------
predictions : (n, K) logits, or probabilities with from_probs=True
references : (n,) integers, the true classes
from_probs : bool
    Whether the predictions are probabilities.
per_class : bool
    Whether to return class_ece, class_floor and class_signed_gap, each a list with a number per class, or
    None for a class that is never predicted.
n_bins : int
    Number of equal-width confidence bins.
n_redraws, seed : int
    Number of redraws for the noise floors, and their seed.

Returns
-------
dict with accuracy, nll, brier, ece, max_ece, avg_ece, smooth_ece, debiased_ece, ece_floor, max_ece_floor and
avg_ece_floor"""

_CITATION = """\
@misc{zhao2020role,
  title={On the Role of Dataset Quality and Heterogeneity in Model Confidence},
  author={Zhao, Yuan and Chen, Jiasi and Oymak, Samet},
  year={2020}
}"""


class Calibration(evaluate.Metric):  # type: ignore[misc]
    """Calibration errors and noise floors, as a metric of ``evaluate``.

    The noise floor of a calibration error is the error that a calibrated model with the same confidences has
    by chance. ``compute(predictions=..., references=...)`` calls :func:`hetcal.evaluate` and returns its main
    numbers in a dictionary. The attribute `inputs_description` lists the other arguments of `compute` and the
    keys of the dictionary.

    ``evaluate.load(hetcal.huggingface.METRIC)`` returns an instance of this class.
    """

    def _info(self) -> Any:
        features = Features({"predictions": Sequence(Value("float64")), "references": Value("int64")})
        return evaluate.MetricInfo(
            description=_DESCRIPTION, citation=_CITATION, inputs_description=_INPUTS, features=features
        )

    def _compute(self, predictions: Any, references: Any, **options: Any) -> dict[str, Any]:
        return score_predictions(predictions, references, labels_name="references", **options)
