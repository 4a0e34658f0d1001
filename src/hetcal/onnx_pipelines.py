"""A whole :class:`hetcal.CalibratedClassifier` as one ONNX graph: skl2onnx's graph, and the calibrator's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, checker, compose, helper, numpy_helper
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import check_is_fitted

from hetcal.onnx import OPSET, append, rename
from hetcal.sklearn import CalibratedClassifier

__all__ = ["whole_model"]

_LOGITS = "hetcal_logits"
_NEAR = 1e-2  # float32 may send a row down another branch of a tree, but not all rows of an example


def whole_model(classifier: CalibratedClassifier, example: Any, *, many_rows: bool = False) -> ModelProto:
    """Graph with the estimator's inputs and the outputs ``probabilities`` and ``label``."""
    check_is_fitted(classifier)
    if example is None:
        raise ValueError(
            "example must be rows of the classifier's input, got None; pass a few, such as X[:5], so that "
            "skl2onnx knows the types of the columns"
        )
    if len(classifier.estimators_) > 1:
        raise ValueError("classifier must be fitted with ensemble=False for ONNX, got ensemble=True")
    member = classifier._members[0]
    n_classes = len(classifier.classes_)
    if len(member.columns) != n_classes:
        raise ValueError(
            f"estimator must know all {n_classes} classes for ONNX, got one that knows {len(member.columns)}"
        )
    rows = example.astype(np.float32) if _is_real(example) else example
    body = _estimator_graph(member, rows, n_classes)
    whole = _with_labels(append(member.calibrator, body, _LOGITS, many_rows=many_rows), classifier.classes_)
    checker.check_model(whole)
    _compare(whole, classifier, rows)
    return whole


def _is_real(example: Any) -> bool:
    return isinstance(example, np.ndarray) and example.dtype.kind == "f"


def _estimator_graph(member: Any, example: Any, n_classes: int) -> ModelProto:
    """skl2onnx's graph of the estimator, its one output the logits that the calibrator takes."""
    try:
        from skl2onnx import to_onnx
    except ImportError as error:
        raise ImportError("a CalibratedClassifier as ONNX needs skl2onnx; pip install skl2onnx") from error
    estimator = _bare(member.estimator)
    scores = member.method == "decision_function"
    options = {id(_last(estimator)): {"zipmap": False, **({"raw_scores": True} if scores else {})}}
    try:
        made = to_onnx(estimator, example[:1], options=options, target_opset={"": OPSET, "ai.onnx.ml": 3})
    except Exception as error:  # skl2onnx has errors of its own, and Python's
        remedy = "; fit with response_method='predict_proba'" if scores and "raw_scores" in str(error) else ""
        raise ValueError(
            f"estimator must be one that skl2onnx can convert, got {type(estimator).__name__} "
            f"({type(error).__name__}: {str(error).strip()[:300]}){remedy}"
        ) from error
    answer = f"estimator_{made.graph.output[-1].name}"
    body = compose.add_prefix(made, "estimator_", rename_inputs=False)
    graph = body.graph
    del graph.output[:]
    if scores and n_classes == 2:  # the score of the second class, beside a zero
        _constant(graph, "hetcal_last", np.array([-1]))
        _constant(graph, "hetcal_zero_one", np.array([[0, 1]], np.float32))
        graph.node.append(helper.make_node("Gather", [answer, "hetcal_last"], ["hetcal_score"], axis=1))
        graph.node.append(helper.make_node("Mul", ["hetcal_score", "hetcal_zero_one"], ["hetcal_raw"]))
    elif scores:
        graph.node.append(helper.make_node("Identity", [answer], ["hetcal_raw"]))
    else:
        _constant(graph, "hetcal_floor", np.array(member.floor, np.float32))
        graph.node.append(helper.make_node("Max", [answer, "hetcal_floor"], ["hetcal_positive"]))
        graph.node.append(helper.make_node("Log", ["hetcal_positive"], ["hetcal_raw"]))
    graph.node.append(helper.make_node("Identity", ["hetcal_raw"], [_LOGITS]))
    graph.output.append(helper.make_tensor_value_info(_LOGITS, TensorProto.FLOAT, [None, n_classes]))
    return body


def _bare(estimator: Any) -> Any:
    """The estimator itself, out of its freezer and of a search for parameters."""
    while True:
        if isinstance(estimator, FrozenEstimator):
            estimator = estimator.estimator
        elif hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        else:
            return estimator


def _last(estimator: Any) -> Any:
    """The last step of a pipeline, which has the options."""
    return _last(_bare(estimator.steps[-1][1])) if hasattr(estimator, "steps") else estimator


def _constant(graph: Any, name: str, value: NDArray[Any]) -> None:
    graph.initializer.append(numpy_helper.from_array(value, name))


def _with_labels(whole: ModelProto, classes: NDArray[Any]) -> ModelProto:
    """The label is one of the classifier's own, not its column."""
    rename(whole, "label", "hetcal_column")
    graph = whole.graph
    names = classes.astype(np.int64) if classes.dtype.kind in "iu" else classes
    _constant(graph, "hetcal_classes", names.astype(object) if names.dtype.kind in "UO" else names)
    graph.node.append(helper.make_node("Gather", ["hetcal_classes", "hetcal_column"], ["label"], axis=0))
    kind = next(c.data_type for c in graph.initializer if c.name == "hetcal_classes")
    place = [value.name for value in graph.output].index("hetcal_column")
    graph.output[place].CopyFrom(helper.make_tensor_value_info("label", kind, ["n"]))
    return whole


def _compare(whole: ModelProto, classifier: CalibratedClassifier, example: Any) -> None:
    """See that the graph gives the classifier's numbers for the example, where a runtime is at hand."""
    try:
        import onnxruntime
    except ImportError:
        return
    if any(value.name == "groups" for value in whole.graph.input):
        return
    session = onnxruntime.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = session.get_inputs()
    if len(inputs) == 1:
        feed = {inputs[0].name: np.asarray(example)}
    else:
        feed = {value.name: np.asarray(example[value.name]).reshape(-1, 1) for value in inputs}
    found = session.run(["probabilities"], feed)[0]
    away = np.abs(found - classifier.predict_proba(example)).max(axis=1)
    if np.median(away) > _NEAR:
        raise ValueError(
            f"estimator must mean the same in ONNX, got probabilities off by {np.median(away):.2g} from "
            f"skl2onnx's graph of {type(_bare(classifier.estimators_[0])).__name__}; export it by other means"
        )
