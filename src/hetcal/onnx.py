"""Calibrators as ONNX graphs, alone or appended to a classifier's graph.

The graph of a calibrator has the input ``logits`` (n, K), or ``probs`` with ``from_probs=True``, and the
outputs ``probabilities`` (n, K) and ``label`` (n,), the number of the predicted class. A calibrator that was
fitted by group has a second input ``groups`` (n,) of int64: the position of each row's group in the list
``groups`` of the model's metadata. If the calibrator preserves the predicted class of every row, ``label`` is
the argmax of the input. The argmax of ``probabilities`` could differ from it, because rounding can give two
classes the same probability.
"""

from hetcal.export.onnx.export import OPSET, append, export, to_model

__all__ = ["OPSET", "append", "export", "to_model"]
