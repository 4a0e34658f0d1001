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
        A `CalibratedClassifier` is written with its estimator, which skl2onnx converts.
    path : file to write; it is written atomically
    model : ONNX file or ``onnx.ModelProto`` of a classifier, optional
        Its logits, or its probabilities if `from_probs` is true, become the calibrator's input. Its other
        outputs stay. If the model already uses the name ``probabilities`` or ``label``, the calibrator's
        output of this name gets the prefix ``calibrated_``.
    output : name of the model's output that contains these logits or probabilities
        Optional if exactly one output has dtype float32 or float64 and K columns. An unknown number of
        columns counts as K.
    from_probs : whether the calibrator's input consists of probabilities instead of logits
        Probabilities below the calibrator's `prob_floor_` are raised to it. If `prob_floor_` is None, the
        smallest normal float32 number is used in its place. The input of a calibrator that is written alone
        is named ``probs`` instead of ``logits``.
    dtype : "float32" or "float64", for a calibrator alone
        An appended calibrator uses the dtype of the model's output. A `CalibratedClassifier` uses float32.
    many_rows : whether the model will be run on many rows with many classes
        The predicted class is then found in two steps if the number of classes permits it. This is faster for
        hundreds of rows, but slower for a single one.
    example : one or more input rows, required for a `CalibratedClassifier`
        skl2onnx infers the types of the columns from them.
    """
    if isinstance(calibrator, CalibratedClassifier):
        if model is not None or output is not None or from_probs:
            raise ValueError(
                "model, output and from_probs must be left out for a CalibratedClassifier, got at least one "
                "of them; omit them, since the classifier's own estimator is written"
            )
        onnx_model = classifier_model(calibrator, example, many_rows=many_rows)
    elif model is not None:
        onnx_model = append(calibrator, model, output, from_probs=from_probs, many_rows=many_rows)
    elif output is not None:
        raise ValueError(f"output must be left out without a model, got {output!r}; pass the model as model=")
    else:
        onnx_model = to_model(calibrator, dtype=dtype, from_probs=from_probs, many_rows=many_rows)
    write_atomic(Path(path), lambda file: file.write(onnx_model.SerializeToString()))
