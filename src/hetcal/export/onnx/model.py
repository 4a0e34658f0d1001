"""ONNX models of calibrators, alone or appended to another model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hetcal._extras import missing_package
from hetcal._version import __version__
from hetcal.export import maps

try:
    import onnx
    from onnx import TensorProto, compose, helper

    from hetcal.export.onnx.graph import GROUPS, Builder, add_argmax, add_map
except ImportError as error:
    raise missing_package("hetcal.onnx needs onnx", "onnx") from error

__all__ = ["OPSET", "append", "rename", "to_model"]

OPSET = 18  # version of the ONNX operators in the graphs
_IR_VERSION = 9  # version of the file format; ONNX Runtime 1.17 and later read it
_ELEMENT_TYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}


def to_model(
    calibrator: Any, *, dtype: str = "float32", from_probs: bool = False, many_rows: bool = False
) -> onnx.ModelProto:
    """ONNX model of a calibrator alone; the parameters are those of :func:`export`."""
    if dtype not in _ELEMENT_TYPES:
        raise ValueError(f"dtype must be one of {', '.join(_ELEMENT_TYPES)}, got {dtype!r}; pass one of them")
    root = maps.exported_map(calibrator)
    n_classes, element = int(calibrator.n_features_in_), _ELEMENT_TYPES[dtype]
    build = Builder(dtype, n_classes)
    source = logits = "probs" if from_probs else "logits"
    if from_probs:
        floor = build.constant(calibrator._export_floor())
        logits = build.node("Log", build.node("Max", source, floor))
    # Rounding can give two probabilities the same logarithm, so the predicted class is found in the input.
    guess = add_argmax(build, source, in_blocks=many_rows)
    probs = add_map(build, root, logits, guess)
    label = guess if root.keeps_decision else build.node("ArgMax", probs, axis=1, keepdims=0)
    build.rename({probs: "probabilities", label: "label"})
    inputs = [helper.make_tensor_value_info(source, element, ["n", n_classes])]
    if maps.group_names(root) is not None:
        inputs.append(helper.make_tensor_value_info(GROUPS, TensorProto.INT64, ["n"]))
    outputs = [
        helper.make_tensor_value_info("probabilities", element, ["n", n_classes]),
        helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]),
    ]
    graph = helper.make_graph(build.nodes, "hetcal", inputs, outputs, list(build.constants.values()))
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=_IR_VERSION,
        producer_name="hetcal",
        producer_version=__version__,
    )
    helper.set_model_props(model, _metadata(calibrator, root))
    onnx.checker.check_model(model, full_check=True)
    return model


def append(
    calibrator: Any,
    model: str | os.PathLike[str] | onnx.ModelProto,
    output: str | None = None,
    *,
    from_probs: bool = False,
    many_rows: bool = False,
) -> onnx.ModelProto:
    """A classifier's model followed by the calibrator; the parameters are those of :func:`export`."""
    body = model if isinstance(model, onnx.ModelProto) else _read(model)
    maps.exported_map(calibrator)
    logits = _find_output(body, output, int(calibrator.n_features_in_))
    dtypes = {code: name for name, code in _ELEMENT_TYPES.items()}
    code = logits.type.tensor_type.elem_type
    if code not in dtypes:
        raise ValueError(
            f"output must be a tensor of float32 or float64, got {TensorProto.DataType.Name(code)} "
            f"for {logits.name!r}; cast it in the model"
        )
    tail = to_model(calibrator, dtype=dtypes[code], from_probs=from_probs, many_rows=many_rows)
    body, tail = _same_versions(body, tail)
    tail = compose.add_prefix(tail, "calibrated_", rename_inputs=False, rename_outputs=False)
    taken = _names(body)
    for name in ("probabilities", "label"):
        if name in taken:
            rename(tail, name, f"calibrated_{name}")
    rename(tail, "probs" if from_probs else "logits", "calibrated_logits")
    other_outputs = [o.name for o in body.graph.output if o.name != logits.name]
    combined = _merge(body, tail, logits.name, [*(o.name for o in tail.graph.output), *other_outputs])
    metadata = {entry.key: entry.value for part in (body, tail) for entry in part.metadata_props}
    helper.set_model_props(combined, metadata)
    return combined


def rename(model: onnx.ModelProto, old: str, new: str) -> None:
    """Rename an input, output or intermediate value of a graph."""
    graph = model.graph
    for value in (*graph.input, *graph.output):
        if value.name == old:
            value.name = new
    for node in graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                if name == old:
                    names[i] = new


def _metadata(calibrator: Any, root: maps.Map) -> dict[str, str]:
    metadata = {
        "hetcal": __version__,
        "calibrator": type(calibrator).__name__,
        "classes": str(calibrator.n_features_in_),
        "prob_floor": repr(calibrator._export_floor()),
    }
    if getattr(calibrator, "class_names_", None) is not None:
        metadata["class_names"] = json.dumps(calibrator.class_names_)
    groups = maps.group_names(root)
    if groups is not None:
        metadata["groups"] = json.dumps(groups.tolist())
    return metadata


def _merge(body: onnx.ModelProto, tail: onnx.ModelProto, logits: str, order: list[str]) -> onnx.ModelProto:
    """Connect the output `logits` of `body` to `tail`, and put the outputs in the order `order`."""
    try:
        combined = compose.merge_models(body, tail, io_map=[(logits, "calibrated_logits")], outputs=order)
        by_name = {o.name: o for o in combined.graph.output}
        del combined.graph.output[:]
        combined.graph.output.extend(by_name[name] for name in order)
        onnx.checker.check_model(combined, full_check=False)
    except Exception as error:  # the checker raises exceptions of many types
        raise ValueError(
            f"model must be a valid ONNX graph, got one that ONNX rejects ({type(error).__name__}: {error}); "
            "export it again"
        ) from None
    return combined


def _read(path: str | os.PathLike[str]) -> onnx.ModelProto:
    source = Path(path)
    if not source.is_file():
        other = "is not a regular file" if source.exists() else "does not exist"
        problem = "is a folder" if source.is_dir() else other
        raise FileNotFoundError(
            f"model must be an ONNX file, got {str(source)!r}, which {problem}; check the path"
        )
    try:
        return onnx.load(str(source))
    except Exception as error:  # protobuf raises exceptions of many types
        raise ValueError(
            f"model must be an ONNX file, got {source.name!r} ({type(error).__name__}: {str(error)[:200]}); "
            "export it again"
        ) from None


def _find_output(body: onnx.ModelProto, output: str | None, n_classes: int) -> Any:
    """The output named `output` or, if that is None, the only output that can contain logits (n, K)."""
    names = [o.name for o in body.graph.output]
    if not all(isinstance(name, str) for name in _names(body)):  # protobuf leaves invalid UTF-8 as bytes
        raise ValueError("model must have tensor names in UTF-8, got other bytes; export it again")
    if output is not None:
        if output not in names:
            raise ValueError(
                f"output must be one of the model's outputs ({', '.join(names)}), got {output!r}; "
                "pass one of them"
            )
        return next(o for o in body.graph.output if o.name == output)
    matching = [o for o in body.graph.output if _width(o) in (n_classes, None) and _is_floating(o)]
    if len(matching) != 1:
        raise ValueError(
            f"output must name the model's logits (n, {n_classes}), got None for a model with the outputs "
            f"{', '.join(names)}; pass one of them as output="
        )
    return matching[0]


def _width(value: Any) -> int | None:
    """Number of columns of an output; 0 if the output is not a matrix, None if the number is not stated."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    if len(tensor.shape.dim) != 2:
        return 0
    last = tensor.shape.dim[1]
    return int(last.dim_value) if last.HasField("dim_value") else None


def _is_floating(value: Any) -> bool:
    return value.type.tensor_type.elem_type in _ELEMENT_TYPES.values()


def _same_versions(body: onnx.ModelProto, tail: onnx.ModelProto) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Copies of both models, converted to the same versions of the operators and of the file format."""
    version = next((o.version for o in body.opset_import if o.domain in ("", "ai.onnx")), OPSET)
    if version != OPSET:
        from onnx import version_converter

        try:
            if version < OPSET:
                body = version_converter.convert_version(body, OPSET)
            else:
                tail = version_converter.convert_version(tail, version)
        except Exception as error:
            raise ValueError(
                f"model must use ONNX operators that can be combined with version {OPSET}, got version "
                f"{version} ({type(error).__name__}: {error}); export it with version {OPSET}"
            ) from None
    ir = max(body.ir_version, tail.ir_version)
    copies = []
    for part in (body, tail):
        copy = onnx.ModelProto()
        copy.CopyFrom(part)
        copy.ir_version = ir
        copies.append(copy)
    return copies[0], copies[1]


def _names(body: onnx.ModelProto) -> set[str]:
    graph = body.graph
    values = {v.name for part in (graph.input, graph.output, graph.initializer) for v in part}
    return values | {name for node in graph.node for name in (*node.input, *node.output)}
