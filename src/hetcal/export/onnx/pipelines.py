"""A :class:`hetcal.CalibratedClassifier` as one ONNX model: skl2onnx's graph followed by the calibrator's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, checker, compose, helper, numpy_helper
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import check_is_fitted

from hetcal.export.onnx.graph import GROUPS
from hetcal.export.onnx.model import OPSET, append, rename
from hetcal.sklearn import CalibratedClassifier

__all__ = ["classifier_model"]

_LOGITS = "hetcal_logits"
# For each row, the largest difference between the probabilities in ONNX and in Python is computed. The median
# of these differences over the rows must not exceed this number. Single rows may differ more, since rounding
# to float32 can send them down another branch of a decision tree.
_TOLERANCE = 1e-2


def classifier_model(
    classifier: CalibratedClassifier, example: Any, *, many_rows: bool = False
) -> ModelProto:
    """ONNX model of a fitted classifier, with the outputs ``probabilities`` and ``label``."""
    check_is_fitted(classifier)
    if example is None:
        raise ValueError(
            "example must be rows of the classifier's input, got None; pass a few, such as X[:5], from which "
            "skl2onnx infers the types of the columns"
        )
    if len(classifier.estimators_) > 1:
        raise ValueError(
            "classifier must be fitted with ensemble=False for ONNX, got ensemble=True; fit it again with "
            "ensemble=False"
        )
    member = classifier._members[0]
    n_classes = len(classifier.classes_)
    if len(member.columns) != n_classes:
        raise ValueError(
            f"estimator must know all {n_classes} classes for ONNX, got one that knows "
            f"{len(member.columns)}; train it on rows of every class"
        )
    rows = example.astype(np.float32) if _is_floating(example) else example
    body = _estimator_model(member, rows, n_classes)
    combined = append(member.calibrator, body, _LOGITS, many_rows=many_rows)
    _replace_labels(combined, classifier.classes_)
    checker.check_model(combined)
    _compare(combined, classifier, rows)
    return combined


def _is_floating(example: Any) -> bool:
    return isinstance(example, np.ndarray) and example.dtype.kind == "f"


def _estimator_model(member: Any, example: Any, n_classes: int) -> ModelProto:
    """Convert the estimator with skl2onnx, to a model whose only output is the input of the calibrator."""
    uses_scores = member.method == "decision_function"
    converted = _convert(_unwrap(member.estimator), example, uses_scores)
    scores = f"estimator_{converted.graph.output[-1].name}"
    body = compose.add_prefix(converted, "estimator_", rename_inputs=False)
    graph = body.graph
    del graph.output[:]
    if uses_scores and n_classes == 2:
        # The last or only column of the scores is the logit of class 1. The logit of class 0 is 0.
        _add_constant(graph, "hetcal_last", np.array([-1]))
        _add_constant(graph, "hetcal_zero_one", np.array([[0, 1]], np.float32))
        graph.node.append(helper.make_node("Gather", [scores, "hetcal_last"], ["hetcal_score"], axis=1))
        graph.node.append(helper.make_node("Mul", ["hetcal_score", "hetcal_zero_one"], [_LOGITS]))
    elif uses_scores:
        graph.node.append(helper.make_node("Identity", [scores], [_LOGITS]))
    else:
        _add_constant(graph, "hetcal_floor", np.array(member.floor, np.float32))
        graph.node.append(helper.make_node("Max", [scores, "hetcal_floor"], ["hetcal_positive"]))
        graph.node.append(helper.make_node("Log", ["hetcal_positive"], [_LOGITS]))
    graph.output.append(helper.make_tensor_value_info(_LOGITS, TensorProto.FLOAT, [None, n_classes]))
    return body


def _convert(estimator: Any, example: Any, uses_scores: bool) -> ModelProto:
    try:
        from skl2onnx import to_onnx
    except ImportError as error:
        raise ImportError(
            "exporting a CalibratedClassifier needs skl2onnx; install it with: pip install skl2onnx"
        ) from error

    def convert(**options: bool) -> ModelProto:
        last_step = {id(_last_step(estimator)): {"zipmap": False, **options}}
        opset = {"": OPSET, "ai.onnx.ml": 3}
        return to_onnx(estimator, example[:1], options=last_step, target_opset=opset)

    try:
        return convert(raw_scores=True) if uses_scores else convert()
    except Exception as error:  # skl2onnx raises exceptions of many types
        remedy = "; convert it with another tool, and export calibrators_[0] with model="
        if uses_scores and _succeeds(convert):  # skl2onnx can convert the probabilities, but not the scores
            remedy = "; fit with response_method='predict_proba'"
        raise ValueError(
            f"estimator must be one that skl2onnx can convert, got {type(estimator).__name__} "
            f"({type(error).__name__}: {str(error).strip()[:300]}){remedy}"
        ) from error


def _succeeds(convert: Any) -> bool:
    try:
        convert()
    except Exception:
        return False
    return True


def _unwrap(estimator: Any) -> Any:
    """The fitted estimator inside a FrozenEstimator or a parameter search; other estimators unchanged."""
    while True:
        if isinstance(estimator, FrozenEstimator):
            estimator = estimator.estimator
        elif hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        else:
            return estimator


def _last_step(estimator: Any) -> Any:
    """The last step of `estimator` if it is a pipeline, otherwise `estimator` itself.

    The options of skl2onnx refer to this object.
    """
    return _last_step(_unwrap(estimator.steps[-1][1])) if hasattr(estimator, "steps") else estimator


def _add_constant(graph: Any, name: str, value: NDArray[Any]) -> None:
    graph.initializer.append(numpy_helper.from_array(value, name))


def _replace_labels(combined: ModelProto, classes: NDArray[Any]) -> None:
    """Replace the column numbers in the output ``label`` with the classifier's labels."""
    rename(combined, "label", "hetcal_column")
    graph = combined.graph
    labels = classes.astype(np.int64) if classes.dtype.kind in "iu" else classes
    _add_constant(graph, "hetcal_classes", labels.astype(object) if labels.dtype.kind in "UO" else labels)
    graph.node.append(helper.make_node("Gather", ["hetcal_classes", "hetcal_column"], ["label"], axis=0))
    element = next(c.data_type for c in graph.initializer if c.name == "hetcal_classes")
    index = [value.name for value in graph.output].index("hetcal_column")
    graph.output[index].CopyFrom(helper.make_tensor_value_info("label", element, ["n"]))


def _compare(combined: ModelProto, classifier: CalibratedClassifier, example: Any) -> None:
    """Raise an error if the model's probabilities for the example differ too much from the classifier's.

    The limit is `_TOLERANCE`. There is no comparison if ONNX Runtime is not installed or if the model needs
    groups.
    """
    try:
        import onnxruntime
    except ImportError:
        return
    if any(value.name == GROUPS for value in combined.graph.input):
        return
    session = onnxruntime.InferenceSession(combined.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = session.get_inputs()
    if len(inputs) == 1:
        feed = {inputs[0].name: np.asarray(example)}
    else:
        feed = {value.name: np.asarray(example[value.name]).reshape(-1, 1) for value in inputs}
    probs = session.run(["probabilities"], feed)[0]
    difference = float(np.median(np.abs(probs - classifier.predict_proba(example)).max(axis=1)))
    if difference > _TOLERANCE:
        raise ValueError(
            f"estimator must predict the same in ONNX, got probabilities that differ by {difference:.2g} in "
            f"skl2onnx's graph of {type(_unwrap(classifier.estimators_[0])).__name__}; convert the estimator "
            "with another tool, and export classifier.calibrators_[0] with model=, and from_probs=True if "
            "the converted model returns probabilities"
        )
