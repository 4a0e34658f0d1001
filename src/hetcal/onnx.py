"""Calibrators as ONNX graphs, alone or behind a classifier's own graph.

The graph of a calibrator has the input ``logits`` (n, K), the input ``groups`` (n,) of int64 where it slices
by group (the place of the group in the metadata's ``groups``), and the outputs ``probabilities`` (n, K) and
``label`` (n,), the predicted class. The label comes from the logits where the calibrator keeps decisions, so
that not even rounding can change it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hetcal._version import __version__
from hetcal._write import write_atomic
from hetcal.maps import floor_of, leaves, tree_of
from hetcal.sklearn import CalibratedClassifier

try:
    import onnx
    from onnx import TensorProto, compose, helper

    from hetcal.onnx_graphs import Builder, Whole, argmax_of, graph_of
except ImportError as error:
    raise ImportError('hetcal.onnx needs onnx; install it with: pip install "hetcal[onnx]"') from error

__all__ = ["OPSET", "append", "export", "to_model"]

OPSET = 18  # version of ONNX's operators that the graphs are written in
_IR = 9  # version of the file format; ONNX Runtime 1.17 and later read it
_DTYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}


def export(
    calibrator: Any,
    path: str | os.PathLike[str],
    model: str | os.PathLike[str] | onnx.ModelProto | None = None,
    *,
    output: str | None = None,
    from_probs: bool = False,
    dtype: str = "float32",
    many_rows: bool = False,
    example: Any = None,
) -> None:
    """Write a calibrator as an ONNX file, alone or appended to a classifier's.

    Parameters
    ----------
    calibrator : fitted calibrator, or fitted :class:`hetcal.CalibratedClassifier`
        Of a classifier, the whole is written, its estimator or pipeline converted by skl2onnx.
    path : file to write; it appears whole or not at all
    model : classifier's ONNX file or model, optional
        Its output of logits becomes the calibrator's input; its other outputs stay.
    output : name of that output; may be left out where the model has one output of numbers (n, K)
    from_probs : whether the model gives probabilities, whose logarithm is then taken
        Smaller ones count as the calibrator's `prob_floor_`. A calibrator alone then has the input ``probs``.
    dtype : "float32" or "float64", of a calibrator alone; an appended one takes the model's
    many_rows : whether calls will have many rows and classes
        The predicted class is then found in two steps: faster for hundreds of rows, slower for one.
    example : a row or more of the input of a `CalibratedClassifier`, which tells skl2onnx its columns' types
    """
    target = Path(path)
    if isinstance(calibrator, CalibratedClassifier):
        if model is not None or output is not None or from_probs:
            raise ValueError(
                "model, output and from_probs must be left out for a CalibratedClassifier, "
                "which has an estimator of its own"
            )
        from hetcal.onnx_pipelines import whole_model

        made = whole_model(calibrator, example, many_rows=many_rows)
    elif model is not None:
        made = append(calibrator, model, output, from_probs=from_probs, many_rows=many_rows)
    elif output is not None:
        raise ValueError(f"output must be left out for a calibrator alone, got {output!r}; pass model=, too")
    else:
        made = to_model(calibrator, dtype=dtype, from_probs=from_probs, many_rows=many_rows)
    write_atomic(target, lambda file: file.write(made.SerializeToString()))


def to_model(
    calibrator: Any, *, dtype: str = "float32", from_probs: bool = False, many_rows: bool = False
) -> onnx.ModelProto:
    """Graph of a calibrator alone."""
    if dtype not in _DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}")
    tree = tree_of(calibrator)
    build = Builder(dtype)
    given = logits = "probs" if from_probs else "logits"
    if from_probs:
        logits = build.node("Log", build.node("Max", given, build.constant(floor_of(calibrator))))
    made = Whole(leaves(tree))
    guess = argmax_of(build, logits, made.n_classes, in_steps=many_rows)
    probs = graph_of(build, tree, logits, guess)
    label = guess if made.keeps_decision else build.node("ArgMax", probs, axis=1, keepdims=0)
    build.rename({probs: "probabilities", label: "label"})
    graph = helper.make_graph(
        build.nodes,
        "hetcal",
        _inputs(made, given, dtype),
        _outputs(made, dtype),
        list(build.constants.values()),
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR, producer_name="hetcal",
        producer_version=__version__,
    )  # fmt: skip
    _describe(model, calibrator, made)
    onnx.checker.check_model(model, full_check=True)
    return model


def _inputs(made: Whole, given: str, dtype: str) -> list[Any]:
    inputs = [helper.make_tensor_value_info(given, _DTYPES[dtype], ["n", made.n_classes])]
    if made.groups is not None:
        inputs.append(helper.make_tensor_value_info("groups", TensorProto.INT64, ["n"]))
    return inputs


def _outputs(made: Whole, dtype: str) -> list[Any]:
    return [
        helper.make_tensor_value_info("probabilities", _DTYPES[dtype], ["n", made.n_classes]),
        helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]),
    ]


def _describe(model: onnx.ModelProto, calibrator: Any, made: Whole) -> None:
    facts = {"hetcal": __version__, "calibrator": type(calibrator).__name__, "classes": str(made.n_classes)}
    facts["prob_floor"] = repr(floor_of(calibrator))
    if getattr(calibrator, "class_names_", None) is not None:
        facts["class_names"] = json.dumps(calibrator.class_names_)
    if made.groups is not None:
        facts["groups"] = json.dumps([g.item() if hasattr(g, "item") else g for g in made.groups])
    helper.set_model_props(model, facts)


# -- behind a model -------------------------------------------------------------------------------


def append(
    calibrator: Any,
    model: str | os.PathLike[str] | onnx.ModelProto,
    output: str | None = None,
    *,
    from_probs: bool = False,
    many_rows: bool = False,
) -> onnx.ModelProto:
    """The classifier's graph with the calibrator's behind it."""
    body = model if isinstance(model, onnx.ModelProto) else _read(model)
    found = _output_of(body, output, leaves(tree_of(calibrator))[0].n_classes)
    kinds = {code: name for name, code in _DTYPES.items()}
    code = found.type.tensor_type.elem_type
    if code not in kinds:
        raise ValueError(
            f"output must be of float32 or float64, got {TensorProto.DataType.Name(code)} "
            f"for {found.name!r}; cast it in the model"
        )
    tail = to_model(calibrator, dtype=kinds[code], from_probs=from_probs, many_rows=many_rows)
    body, tail = _same_opset(body, tail)
    tail = compose.add_prefix(tail, "calibrated_", rename_inputs=False, rename_outputs=False)
    for value, taken in (("probabilities", _names(body)), ("label", _names(body))):
        if value in taken:
            rename(tail, value, f"calibrated_{value}")
    rename(tail, "probs" if from_probs else "logits", "calibrated_logits")
    kept = [o.name for o in body.graph.output if o.name != found.name]
    order = [*(o.name for o in tail.graph.output), *kept]
    whole = _merged(body, tail, found.name, order)
    facts = {p.key: p.value for part in (body, tail) for p in part.metadata_props}
    helper.set_model_props(whole, facts)
    return whole


def _merged(body: onnx.ModelProto, tail: onnx.ModelProto, logits: str, order: list[str]) -> onnx.ModelProto:
    """Both graphs as one, with outputs in this order."""
    try:
        whole = compose.merge_models(body, tail, io_map=[(logits, "calibrated_logits")], outputs=order)
        by_name = {o.name: o for o in whole.graph.output}
        del whole.graph.output[:]
        whole.graph.output.extend(by_name[name] for name in order)
        onnx.checker.check_model(whole, full_check=False)
    except Exception as error:  # the checker's errors are of many kinds
        raise ValueError(
            f"model must be a valid ONNX graph, got one that fails ({type(error).__name__}: {error}); "
            "export it anew"
        ) from None
    return whole


def _read(path: str | os.PathLike[str]) -> onnx.ModelProto:
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"model must be an ONNX file, got {str(source)!r}, which does not exist")
    try:
        return onnx.load(str(source))
    except Exception as error:  # protobuf's own errors are of many kinds
        raise ValueError(
            f"model must be an ONNX file, got {source.name!r} ({type(error).__name__}: {str(error)[:200]})"
        ) from None


def _output_of(body: onnx.ModelProto, output: str | None, n_classes: int) -> Any:
    """The output that holds the logits."""
    names = [o.name for o in body.graph.output]
    if not all(isinstance(name, str) for name in _names(body)):  # protobuf leaves such text as bytes
        raise ValueError("model must have names in UTF-8, got other bytes; export it anew")
    if output is not None:
        if output not in names:
            raise ValueError(f"output must be one of the model's ({', '.join(names)}), got {output!r}")
        return next(o for o in body.graph.output if o.name == output)
    fits = [o for o in body.graph.output if _width(o) in (n_classes, None) and _is_real(o)]
    if len(fits) != 1:
        raise ValueError(
            f"output must name the model's logits (n, {n_classes}), got None and outputs {', '.join(names)}"
        )
    return fits[0]


def _width(value: Any) -> int | None:
    """Columns of an output, 0 for one that has none, None where they are not told."""
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return None
    if len(kind.shape.dim) != 2:
        return 0
    last = kind.shape.dim[1]
    return int(last.dim_value) if last.HasField("dim_value") else None


def _is_real(value: Any) -> bool:
    return value.type.tensor_type.elem_type in _DTYPES.values()


def _same_opset(body: onnx.ModelProto, tail: onnx.ModelProto) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Both in one version of the operators, and of the file format."""
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
                f"model must be convertible to operators of version {OPSET}, got version {version} "
                f"({type(error).__name__}: {error}); export it anew"
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


def rename(model: onnx.ModelProto, old: str, new: str) -> None:
    """Give a value of a graph another name."""
    graph = model.graph
    for value in (*graph.input, *graph.output):
        if value.name == old:
            value.name = new
    for node in graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                if name == old:
                    names[i] = new
