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

import numpy as np

from hetcal._core.arrays import FAR
from hetcal._version import __version__
from hetcal.files import write_atomic
from hetcal.maps import SURE, Map, Mixed, Tree, leaves, tree_of
from hetcal.sklearn import CalibratedClassifier

try:
    import onnx
    from onnx import TensorProto, compose, helper, numpy_helper
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
    elif output is not None or from_probs:
        raise ValueError("model must be given where output or from_probs is; a calibrator alone takes logits")
    else:
        made = to_model(calibrator, dtype=dtype, many_rows=many_rows)
    write_atomic(target, lambda file: file.write(made.SerializeToString()))


def to_model(
    calibrator: Any, *, dtype: str = "float32", from_probs: bool = False, many_rows: bool = False
) -> onnx.ModelProto:
    """Graph of a calibrator alone."""
    if dtype not in _DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}")
    tree = tree_of(calibrator)
    build = _Builder(dtype)
    logits = "logits"
    if from_probs:
        tiny = build.constant(np.finfo(dtype).tiny)
        logits = build.node("Log", build.node("Max", "logits", tiny))
    made = _Whole(leaves(tree))
    guess = _argmax(build, logits, made.n_classes, in_steps=many_rows)
    probs = _graph(build, tree, logits, guess)
    label = guess if made.keeps_decision else build.node("ArgMax", probs, axis=1, keepdims=0)
    build.rename({probs: "probabilities", label: "label"})
    graph = helper.make_graph(
        build.nodes, "hetcal", _inputs(made, dtype), _outputs(made, dtype), list(build.constants.values())
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR, producer_name="hetcal",
        producer_version=__version__,
    )  # fmt: skip
    _describe(model, calibrator, made)
    onnx.checker.check_model(model, full_check=True)
    return model


class _Whole:
    """What the maps of a calibrator have in common."""

    def __init__(self, parts: list[Map]) -> None:
        self.n_classes = parts[0].n_classes
        self.keeps_decision = all(part.keeps_decision for part in parts)
        self.groups = next((part.groups for part in parts if part.groups is not None), None)


def _graph(build: _Builder, tree: Tree, logits: str, guess: str) -> str:
    """Probabilities of a tree of maps."""
    if isinstance(tree, Map):
        return _KINDS[tree.kind](build, tree, logits, guess)
    if isinstance(tree, Mixed):
        parts = [
            build.node("Mul", _graph(build, member, logits, guess), build.constant(weight))
            for weight, member in zip(tree.weights, tree.members, strict=True)
        ]
        probs = parts[0] if len(parts) == 1 else build.node("Sum", *parts)
        kept = all(part.keeps_decision for part in leaves(tree))
        return _led(build, probs, guess, leaves(tree)[0].n_classes) if kept else probs
    probs, kept = "", True
    for step in tree.steps:
        if probs:
            tiny = build.constant(np.finfo(build.dtype).tiny)
            logits = build.node("Log", build.node("Max", probs, tiny))
            if not kept:
                guess = build.node("ArgMax", logits, axis=1, keepdims=0)
        probs = _graph(build, step, logits, guess)
        kept = all(part.keeps_decision for part in leaves(step))
    return probs


class _Builder:
    """Nodes and constants of a graph under way; every node has one output, named by its number."""

    def __init__(self, dtype: str) -> None:
        self.dtype = np.dtype(dtype)
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"hetcal_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def rename(self, names: dict[str, str]) -> None:
        """Give values other names, which costs a runtime less than a node that copies them."""
        for node in self.nodes:
            for ends in (node.input, node.output):
                ends[:] = [names.get(end, end) for end in ends]

    def constant(self, values: Any, dtype: Any = None) -> str:
        name = f"hetcal_c{len(self.constants)}"
        array = np.asarray(values, dtype=self.dtype if dtype is None else dtype)
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def axes(self) -> str:
        return self.constant([1], np.int64)


def _rows(build: _Builder, made: Map, guess: str, columns: slice, *, keep: bool) -> str:
    """Parameters of every row: (n, p), or (n,) where not `keep`; the shared ones as they are."""
    theta = made.theta[:, columns]
    if not made.sliced:
        return build.constant(theta if keep else theta[0, 0])
    at = guess if made.groups is None else "groups"
    return build.node("Gather", build.constant(theta if keep else theta[:, 0]), at, axis=0)


def _argmax(build: _Builder, logits: str, n_classes: int, *, in_steps: bool) -> str:
    """Column (n,) of the largest entry, the first of equals.

    In steps: the largest entry of each block of columns, the first block that has the largest of these, and
    the first place in it. ONNX Runtime takes the largest many times faster than it finds its place.
    """
    width = _block_width(n_classes) if in_steps else None
    if width is None:
        return build.node("ArgMax", logits, axis=1, keepdims=0)
    shape = build.constant([-1, n_classes // width, width], np.int64)
    blocks = build.node("Reshape", logits, shape)
    tops = build.node("ReduceMax", blocks, build.constant([2], np.int64), keepdims=0)
    block = build.node("ArgMax", tops, axis=1, keepdims=1)
    place = build.node("ArgMax", build.node("GatherND", blocks, block, batch_dims=1), axis=1, keepdims=1)
    column = build.node("Add", build.node("Mul", block, build.constant(width, np.int64)), place)
    return build.node("Squeeze", column, build.axes())


def _block_width(n_classes: int) -> int | None:
    """Columns of a block: near 100, and at least four blocks of them; None where none divides the columns."""
    fits = [width for width in range(40, 201) if n_classes % width == 0 and n_classes >= 4 * width]
    return min(fits, key=lambda width: abs(width - 100), default=None)


def _temperature(build: _Builder, made: Map, logits: str, guess: str) -> str:
    alpha = _rows(build, made, guess, slice(0, 1), keep=True)
    return build.node("Softmax", build.node("Mul", logits, alpha), axis=1)


def _vector(build: _Builder, made: Map, logits: str, guess: str) -> str:
    k = made.n_classes
    scale = _rows(build, made, guess, slice(0, k), keep=True)
    bias = _rows(build, made, guess, slice(k, 2 * k), keep=True)
    if made.center:
        least = build.node(
            "Sub", build.node("ReduceMax", logits, build.axes(), keepdims=1), build.constant(FAR)
        )
        mean = build.node("ReduceMean", build.node("Max", logits, least), build.axes(), keepdims=1)
        logits = build.node("Sub", logits, mean)
    scaled = build.node("Add", build.node("Mul", logits, scale), bias)
    if made.keeps_decision:  # no class passes the predicted one
        column = build.node("Unsqueeze", guess, build.axes())
        scaled = build.node("Min", scaled, build.node("GatherElements", scaled, column, axis=1))
        return _led(build, build.node("Softmax", scaled, axis=1), guess, k)
    return build.node("Softmax", scaled, axis=1)


def _led(build: _Builder, probs: str, guess: str, k: int) -> str:
    """Let no other class reach the predicted one, not even by rounding."""
    column = build.node("Unsqueeze", guess, build.axes())
    mine = build.node("Equal", build.constant(np.arange(k)[None], np.int64), column)
    top = build.node("GatherElements", probs, column, axis=1)
    below = build.node("Mul", top, build.constant(1 - 2 * np.finfo(build.dtype).eps))
    return build.node("Where", mine, probs, build.node("Min", probs, below))


def _by_confidence(build: _Builder, made: Map, logits: str, guess: str) -> str:
    """Set the predicted class's confidence and share out the rest as `kernels.spread` does."""
    axes, k = build.axes(), made.n_classes
    columns = build.constant(np.arange(k)[None], np.int64)
    mine = build.node("Equal", columns, build.node("Unsqueeze", guess, axes))
    lowest = build.constant(-np.inf)
    others = build.node("Where", mine, lowest, logits)
    top = build.node("ReduceMax", logits, axes, keepdims=0)
    odds = build.node("Sub", top, build.node("ReduceLogSumExp", others, axes, keepdims=0))
    odds = build.node("Min", odds, build.constant(SURE))
    raw = _CONFIDENCES[made.kind](build, made, odds, guess)
    if made.pool:
        return _led(build, _pooled(build, mine, build.node("Softmax", others, axis=1), raw, k), guess, k)
    c = build.node("Max", raw, build.constant(1 / k))
    share = build.node("Softmax", others, axis=1)
    wide = build.node("Unsqueeze", c, axes)
    rest = build.node("Sub", build.constant(1.0), wide)
    level = _levelled(build, share, wide, rest, k)
    # No other class may reach the predicted one, not even by rounding.
    below = build.node("Mul", wide, build.constant(1 - 2 * np.finfo(build.dtype).eps))
    return build.node("Where", mine, wide, build.node("Min", build.node("Mul", level, rest), below))


def _pooled(build: _Builder, mine: str, share: str, c: str, k: int) -> str:
    """Let classes that would overtake the predicted one share with it: `kernels._pool`."""
    wide = build.node("Unsqueeze", c, build.axes())
    rest = build.node("Mul", share, build.node("Sub", build.constant(1.0), wide))
    count = build.constant([k - 1], np.int64)
    down = f"hetcal_{len(build.nodes)}_sorted"
    build.nodes.append(helper.make_node("TopK", [rest, count], [down, f"{down}_places"], axis=1))
    sums = build.node("CumSum", down, build.constant(1, np.int64))
    means = build.node("Div", build.node("Add", sums, wide), build.constant(np.arange(2, k + 1)[None]))
    level = build.node("Max", wide, build.node("ReduceMax", means, build.axes(), keepdims=1))
    return build.node("Where", mine, level, build.node("Min", rest, level))


def _levelled(build: _Builder, share: str, c: str, rest: str, k: int) -> str:
    """Mix `share` with the uniform distribution just enough that no other class overtakes."""
    largest = build.node("ReduceMax", share, build.axes(), keepdims=1)
    uniform = build.constant(1 / (k - 1))
    tiny = build.constant(np.finfo(build.dtype).tiny)
    odds = build.node("Div", c, build.node("Max", rest, tiny))
    room = build.node("Max", build.node("Sub", largest, uniform), tiny)
    mix = build.node("Div", build.node("Sub", largest, odds), room)
    mix = build.node("Max", build.node("Min", mix, build.constant(1.0)), build.constant(0.0))
    kept = build.node("Mul", build.node("Sub", build.constant(1.0), mix), share)
    return build.node("Add", kept, build.node("Mul", mix, uniform))


def _platt(build: _Builder, made: Map, odds: str, guess: str) -> str:
    slope = _rows(build, made, guess, slice(0, 1), keep=False)
    intercept = _rows(build, made, guess, slice(1, 2), keep=False)
    return build.node("Sigmoid", build.node("Add", build.node("Mul", odds, slope), intercept))


def _place(build: _Builder, edges: Any, c: str, last: int) -> str:
    """Number of edges below each confidence, less one, within 0..last: what `searchsorted` finds."""
    wide = build.node("Unsqueeze", c, build.axes())
    below = build.node("Cast", build.node("Less", build.constant(edges[None]), wide), to=TensorProto.INT64)
    count = build.node("ReduceSum", below, build.axes(), keepdims=0)
    at = build.node("Sub", count, build.constant(1, np.int64))
    return build.node(
        "Min", build.node("Max", at, build.constant(0, np.int64)), build.constant(last, np.int64)
    )


def _curve(build: _Builder, made: Map, odds: str, guess: str) -> str:  # noqa: ARG001
    x, y = np.asarray(made.x), np.asarray(made.y)
    if len(x) == 1:
        x, y = np.array([0.0, 1.0]), np.repeat(y, 2)
    c = build.node("Sigmoid", odds)
    at = _place(build, x, c, len(x) - 2)
    slope = np.divide(np.diff(y), np.diff(x), out=np.zeros(len(x) - 1), where=np.diff(x) > 0)
    start, low, high = (
        build.node("Gather", build.constant(a), at) for a in (x[:-1], y[:-1], np.maximum(y[1:], y[:-1]))
    )
    rise = build.node("Mul", build.node("Sub", c, start), build.node("Gather", build.constant(slope), at))
    line = build.node("Add", low, build.node("Max", rise, build.constant(0.0)))
    return build.node("Min", line, high)


def _steps(build: _Builder, made: Map, odds: str, guess: str) -> str:  # noqa: ARG001
    y = np.asarray(made.y)
    at = _place(build, np.asarray(made.x), build.node("Sigmoid", odds), len(y) - 1)
    return build.node("Gather", build.constant(y), at)


_KINDS = {
    "temperature": _temperature,
    "vector": _vector,
    "platt": _by_confidence,
    "curve": _by_confidence,
    "steps": _by_confidence,
}
_CONFIDENCES = {"platt": _platt, "curve": _curve, "steps": _steps}


def _inputs(made: _Whole, dtype: str) -> list[Any]:
    inputs = [helper.make_tensor_value_info("logits", _DTYPES[dtype], ["n", made.n_classes])]
    if made.groups is not None:
        inputs.append(helper.make_tensor_value_info("groups", TensorProto.INT64, ["n"]))
    return inputs


def _outputs(made: _Whole, dtype: str) -> list[Any]:
    return [
        helper.make_tensor_value_info("probabilities", _DTYPES[dtype], ["n", made.n_classes]),
        helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]),
    ]


def _describe(model: onnx.ModelProto, calibrator: Any, made: _Whole) -> None:
    facts = {"hetcal": __version__, "calibrator": type(calibrator).__name__, "classes": str(made.n_classes)}
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
    inputs = {i.name for i in tail.graph.input}
    rename(tail, "logits", "calibrated_logits")
    kept = [o.name for o in body.graph.output if o.name != found.name]
    order = [*(o.name for o in tail.graph.output), *kept]
    whole = compose.merge_models(body, tail, io_map=[(found.name, "calibrated_logits")], outputs=order)
    by_name = {o.name: o for o in whole.graph.output}
    del whole.graph.output[:]
    whole.graph.output.extend(by_name[name] for name in order)
    if "groups" in inputs:
        helper.set_model_props(whole, {p.key: p.value for p in tail.metadata_props})
    onnx.checker.check_model(whole, full_check=False)
    return whole


def _read(path: str | os.PathLike[str]) -> onnx.ModelProto:
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"model must be an ONNX file, got {str(source)!r}, which does not exist")
    try:
        return onnx.load(str(source))
    except Exception as error:  # protobuf's own errors are of many kinds
        raise ValueError(
            f"model must be an ONNX file, got {source.name!r} ({type(error).__name__})"
        ) from None


def _output_of(body: onnx.ModelProto, output: str | None, n_classes: int) -> Any:
    """The output that holds the logits."""
    names = [o.name for o in body.graph.output]
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
