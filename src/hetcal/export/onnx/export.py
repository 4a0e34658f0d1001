"""Export of calibrators and calibrated classifiers to ONNX files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hetcal._write import write_atomic
from hetcal.export.onnx.model import OPSET, append, to_model
from hetcal.export.onnx.pipelines import classifier_model
from hetcal.sklearn import CalibratedClassifier

__all__ = ["OPSET", "append", "export", "to_model"]


def export(
    calibrator: Any,
    path: str | os.PathLike[str],
    model: Any = None,
    *,
    output: str | None = None,
    from_probs: bool = False,
    dtype: str = "float32",
    many_rows: bool = False,
    example: Any = None,
) -> None:
    """Write a calibrator to an ONNX file, alone or appended to a classifier's model.

    Parameters
    ----------
    calibrator : fitted calibrator, or fitted :class:`hetcal.CalibratedClassifier`
        A classifier is written as a whole: skl2onnx converts its estimator or pipeline.
    path : file to write; it is written atomically
    model : ONNX file or ``onnx.ModelProto`` of a classifier, optional
        Its output of logits becomes the calibrator's input; its other outputs stay.
    output : name of that output; optional if the model has only one floating-point output (n, K)
    from_probs : whether the model outputs probabilities, whose logarithm is then taken
        Probabilities below the calibrator's `prob_floor_` are raised to it. A calibrator alone has the input
        ``probs``.
    dtype : "float32" or "float64", for a calibrator alone; an appended one has that of the model
    many_rows : whether calls will have many rows and classes
        The predicted class is then found in two steps: faster for hundreds of rows, slower for one.
    example : one or more input rows of a `CalibratedClassifier`, from which skl2onnx infers the column types
    """
    if isinstance(calibrator, CalibratedClassifier):
        if model is not None or output is not None or from_probs:
            raise ValueError(
                "model, output and from_probs must be left out for a CalibratedClassifier, "
                "which has an estimator of its own"
            )
        onnx_model = classifier_model(calibrator, example, many_rows=many_rows)
    elif model is not None:
        onnx_model = append(calibrator, model, output, from_probs=from_probs, many_rows=many_rows)
    elif output is not None:
        raise ValueError(
            f"output must be left out for a calibrator alone, got {output!r}; pass model= as well"
        )
    else:
        onnx_model = to_model(calibrator, dtype=dtype, from_probs=from_probs, many_rows=many_rows)
    write_atomic(Path(path), lambda file: file.write(onnx_model.SerializeToString()))
