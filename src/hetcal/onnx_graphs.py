"""ONNX nodes of calibrators' maps: every kind of map, chains and mixtures of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from hetcal._numeric.probabilities import FAR
from hetcal.maps import SURE, Map, Mixed, Tree, leaves

__all__ = ["Builder", "Whole", "argmax_of", "graph_of"]


class Whole:
    """What the maps of a calibrator have in common."""

    def __init__(self, parts: list[Map]) -> None:
        self.n_classes = parts[0].n_classes
        self.keeps_decision = all(part.keeps_decision for part in parts)
        self.groups = next((part.groups for part in parts if part.groups is not None), None)


def graph_of(build: Builder, tree: Tree, logits: str, guess: str) -> str:
    """Probabilities of a tree of maps."""
    if isinstance(tree, Map):
        return _KINDS[tree.kind](build, tree, logits, guess)
    if isinstance(tree, Mixed):
        parts = [
            build.node("Mul", graph_of(build, member, logits, guess), build.constant(weight))
            for weight, member in zip(tree.weights, tree.members, strict=True)
        ]
        total = parts[0] if len(parts) == 1 else build.node("Sum", *parts)
        probs = build.node("Min", total, build.constant(1.0))  # rounding may exceed 1
        kept = all(part.keeps_decision for part in leaves(tree))
        return _led(build, probs, guess, leaves(tree)[0].n_classes) if kept else probs
    probs, kept = "", True
    for step in tree.steps:
        if probs:
            tiny = build.constant(np.finfo(build.dtype).tiny)
            logits = build.node("Log", build.node("Max", probs, tiny))
            if not kept:
                guess = build.node("ArgMax", logits, axis=1, keepdims=0)
        probs = graph_of(build, step, logits, guess)
        kept = all(part.keeps_decision for part in leaves(step))
    return probs


class Builder:
    """Nodes and constants of a graph under way; every node has one output, named by its number."""

    def __init__(self, dtype: str) -> None:
        self.dtype = np.dtype(dtype)
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add an operator; returns the name of its output."""
        name = f"hetcal_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def rename(self, names: dict[str, str]) -> None:
        """Give values other names, which costs a runtime less than a node that copies them."""
        for node in self.nodes:
            for ends in (node.input, node.output):
                ends[:] = [names.get(end, end) for end in ends]

    def constant(self, values: Any, dtype: Any = None) -> str:
        """Add a constant, in the graph's own dtype unless another is given; returns its name."""
        name = f"hetcal_c{len(self.constants)}"
        array = np.asarray(values, dtype=self.dtype if dtype is None else dtype)
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def axes(self) -> str:
        """The axis of the classes, as a constant."""
        return self.constant([1], np.int64)


def _rows(build: Builder, made: Map, guess: str, columns: slice, *, keep: bool, dtype: Any = None) -> str:
    """Parameters of every row: (n, p), or (n,) where not `keep`; the shared ones as they are."""
    theta = made.theta[:, columns]
    if not made.sliced:
        return build.constant(theta if keep else theta[0, 0], dtype)
    at = guess if made.groups is None else "groups"
    return build.node("Gather", build.constant(theta if keep else theta[:, 0], dtype), at, axis=0)


def _below_top(build: Builder, logits: str) -> str:
    """Subtract the maximum of every row, so that rounding is relative to differences, not to the logits."""
    return build.node("Sub", logits, build.node("ReduceMax", logits, build.axes(), keepdims=1))


def argmax_of(build: Builder, logits: str, n_classes: int, *, in_steps: bool) -> str:
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


def _temperature(build: Builder, made: Map, logits: str, guess: str) -> str:
    alpha = _rows(build, made, guess, slice(0, 1), keep=True)
    column = build.node("Unsqueeze", guess, build.axes())
    below = build.node("Sub", logits, build.node("GatherElements", logits, column, axis=1))
    return build.node("Softmax", build.node("Mul", below, alpha), axis=1)


def _vector(build: Builder, made: Map, logits: str, guess: str) -> str:
    k = made.n_classes
    if made.center:
        below = _below_top(build, logits)
        near = build.node("Max", below, build.constant(-FAR))
        logits = build.node("Sub", below, build.node("ReduceMean", near, build.axes(), keepdims=1))
    # Without centring, a constant added to a row matters, and float32 is too coarse for a large one.
    widened = not made.center and build.dtype == np.float32
    wide = np.float64 if widened else build.dtype
    if widened:
        logits = build.node("Cast", logits, to=TensorProto.DOUBLE)
    scale = _rows(build, made, guess, slice(0, k), keep=True, dtype=wide)
    bias = _rows(build, made, guess, slice(k, 2 * k), keep=True, dtype=wide)
    scaled = build.node("Add", build.node("Mul", logits, scale), bias)
    if made.keeps_decision:
        column = build.node("Unsqueeze", guess, build.axes())
        scaled = build.node("Sub", scaled, build.node("GatherElements", scaled, column, axis=1))
    elif widened:
        scaled = _below_top(build, scaled)
    if widened:
        scaled = build.node("Cast", scaled, to=TensorProto.FLOAT)
    if made.keeps_decision:  # no class passes the predicted one
        scaled = build.node("Min", scaled, build.constant(0.0))
        return _led(build, build.node("Softmax", scaled, axis=1), guess, k)
    return build.node("Softmax", scaled, axis=1)


def _led(build: Builder, probs: str, guess: str, k: int) -> str:
    """Let no other class reach the predicted one, not even by rounding."""
    column = build.node("Unsqueeze", guess, build.axes())
    mine = build.node("Equal", build.constant(np.arange(k)[None], np.int64), column)
    top = build.node("GatherElements", probs, column, axis=1)
    below = build.node("Mul", top, build.constant(1 - 2 * np.finfo(build.dtype).eps))
    return build.node("Where", mine, probs, build.node("Min", probs, below))


def _by_confidence(build: Builder, made: Map, logits: str, guess: str) -> str:
    """Set the predicted class's confidence and share out the rest as `kernels.spread` does."""
    axes, k = build.axes(), made.n_classes
    columns = build.constant(np.arange(k)[None], np.int64)
    mine = build.node("Equal", columns, build.node("Unsqueeze", guess, axes))
    lowest = build.constant(-np.inf)
    others = build.node("Where", mine, lowest, logits)
    share = build.node("Softmax", others, axis=1)
    largest = build.node("ReduceMax", share, axes, keepdims=1)
    # logsumexp(others) = max(others) − log(max(share)): differences stay accurate for large logits.
    lead = build.node("Sub", *(build.node("ReduceMax", part, axes, keepdims=1) for part in (logits, others)))
    odds = build.node("Squeeze", build.node("Add", lead, build.node("Log", largest)), axes)
    odds = build.node("Min", odds, build.constant(SURE))
    raw = _CONFIDENCES[made.kind](build, made, odds, guess)
    if made.pool:
        return _led(build, _pooled(build, mine, share, raw, k), guess, k)
    c = build.node("Max", raw, build.constant(1 / k))
    wide = build.node("Unsqueeze", c, axes)
    rest = build.node("Sub", build.constant(1.0), wide)
    level = _levelled(build, share, largest, wide, rest, k)
    # No other class may reach the predicted one, not even by rounding.
    below = build.node("Mul", wide, build.constant(1 - 2 * np.finfo(build.dtype).eps))
    return build.node("Where", mine, wide, build.node("Min", build.node("Mul", level, rest), below))


def _pooled(build: Builder, mine: str, share: str, c: str, k: int) -> str:
    """Let classes that would overtake the predicted one share with it: `shares.pool`."""
    wide = build.node("Unsqueeze", c, build.axes())
    rest = build.node("Mul", share, build.node("Sub", build.constant(1.0), wide))
    count = build.constant([k - 1], np.int64)
    down = f"hetcal_{len(build.nodes)}_sorted"
    build.nodes.append(helper.make_node("TopK", [rest, count], [down, f"{down}_places"], axis=1))
    sums = build.node("CumSum", down, build.constant(1, np.int64))
    means = build.node("Div", build.node("Add", sums, wide), build.constant(np.arange(2, k + 1)[None]))
    level = build.node("Max", wide, build.node("ReduceMax", means, build.axes(), keepdims=1))
    return build.node("Where", mine, level, build.node("Min", rest, level))


def _levelled(build: Builder, share: str, largest: str, c: str, rest: str, k: int) -> str:
    """Mix `share` with the uniform distribution just enough that no other class overtakes."""
    uniform = build.constant(1 / (k - 1))
    tiny = build.constant(np.finfo(build.dtype).tiny)
    odds = build.node("Div", c, build.node("Max", rest, tiny))
    room = build.node("Max", build.node("Sub", largest, uniform), tiny)
    mix = build.node("Div", build.node("Sub", largest, odds), room)
    mix = build.node("Max", build.node("Min", mix, build.constant(1.0)), build.constant(0.0))
    kept = build.node("Mul", build.node("Sub", build.constant(1.0), mix), share)
    return build.node("Add", kept, build.node("Mul", mix, uniform))


def _platt(build: Builder, made: Map, odds: str, guess: str) -> str:
    slope = _rows(build, made, guess, slice(0, 1), keep=False)
    intercept = _rows(build, made, guess, slice(1, 2), keep=False)
    return build.node("Sigmoid", build.node("Add", build.node("Mul", odds, slope), intercept))


def _place(build: Builder, edges: Any, c: str, last: int) -> str:
    """Number of edges below each confidence, less one, within 0..last: what `searchsorted` finds."""
    wide = build.node("Unsqueeze", c, build.axes())
    below = build.node("Cast", build.node("Less", build.constant(edges[None]), wide), to=TensorProto.INT64)
    count = build.node("ReduceSum", below, build.axes(), keepdims=0)
    at = build.node("Sub", count, build.constant(1, np.int64))
    return build.node(
        "Min", build.node("Max", at, build.constant(0, np.int64)), build.constant(last, np.int64)
    )


def _curve(build: Builder, made: Map, odds: str, guess: str) -> str:  # noqa: ARG001
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


def _steps(build: Builder, made: Map, odds: str, guess: str) -> str:  # noqa: ARG001
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
