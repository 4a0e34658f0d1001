"""Calibrators as ONNX graphs, alone or appended to a classifier's graph.

The graph of a calibrator has the input ``logits`` (n, K), or ``probs`` with ``from_probs=True``, and the
outputs ``probabilities`` (n, K) and ``label`` (n,), the predicted class. A calibrator that slices by group
has a second input ``groups`` (n,) of int64: the position of each row's group in the list ``groups`` of the
model's metadata. If the calibrator keeps decisions, the label is the argmax of the logits, so rounding cannot
change it.
"""

from hetcal.export.onnx.export import OPSET, append, export, to_model

__all__ = ["OPSET", "append", "export", "to_model"]
