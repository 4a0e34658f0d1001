"""ONNX nodes of the maps in :mod:`hetcal.export.maps`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from hetcal._numeric.curves import Curves
from hetcal._numeric.matrix import MASK
from hetcal._numeric.probabilities import FAR
from hetcal._typing import Float
from hetcal.export import maps

__all__ = ["GROUPS", "Builder", "add_argmax", "add_map"]

GROUPS = "groups"  # name of the input with the position of every row's group in the sorted group names


class Builder:
    """Nodes and constants of a graph that is being built.

    Parameters
    ----------
    dtype : "float32" or "float64", of the logits and probabilities
    n_classes : number of columns K
    """

    def __init__(self, dtype: str, n_classes: int) -> None:
        self.dtype, self.n_classes = np.dtype(dtype), n_classes
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node that applies `operator`; returns the name of its output."""
        name = f"hetcal_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def sorted_descending(self, values: str, count: int) -> str:
        """Add a node for the `count` largest entries of every row, sorted; returns the name of its output."""
        name = f"hetcal_{len(self.nodes)}_sorted"
        inputs = [values, self.constant([count], np.int64)]
        self.nodes.append(helper.make_node("TopK", inputs, [name, f"{name}_places"], axis=1))
        return name

    def rename(self, names: dict[str, str]) -> None:
        """Give values new names; `names` maps the old names to the new ones.

        At run time, this is cheaper than nodes that copy values to the new names.
        """
        for node in self.nodes:
            for values in (node.input, node.output):
                values[:] = [names.get(value, value) for value in values]

    def constant(self, values: Any, dtype: Any = None) -> str:
        """Add a constant, by default in the graph's dtype; returns its name."""
        name = f"hetcal_c{len(self.constants)}"
        array = np.asarray(values, dtype=self.dtype if dtype is None else dtype)
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def axes(self) -> str:
        """Add a constant with the axis of the classes, [1]; returns its name."""
        return self.constant([1], np.int64)

    def as_column(self, values: str) -> str:
        """Add a node for ``values[:, None]``; returns the name of its output."""
        return self.node("Unsqueeze", values, self.axes())

    def is_predicted(self, guess: str) -> str:
        """Add nodes for a boolean mask (n, K) of the predicted class; returns the name of the mask."""
        columns = self.constant(np.arange(self.n_classes)[None], np.int64)
        return self.node("Equal", columns, self.as_column(guess))

    def predicted_entry(self, values: str, guess: str) -> str:
        """Add a node for the entries of the predicted class, (n, 1); returns the name of its output."""
        return self.node("GatherElements", values, self.as_column(guess), axis=1)


def add_map(build: Builder, part: maps.Map, logits: str, guess: str) -> str:
    """Add the nodes of a map; returns the name of its probabilities.

    `logits` and `guess` name the values that hold the logits (n, K) and their argmax (n,).
    """
    return _NODES[type(part)](build, part, logits, guess)


def add_argmax(build: Builder, logits: str, *, in_blocks: bool) -> str:
    """Add nodes for the argmax (n,) of every row, the first one if entries tie; returns the output's name.

    With `in_blocks`, the columns are divided into blocks if `_block_width` finds a width. The nodes compute
    the maximum of every block and search only the first block with the largest maximum, because ONNX Runtime
    computes a maximum many times faster than an argmax.
    """
    width = _block_width(build.n_classes) if in_blocks else None
    if width is None:
        return build.node("ArgMax", logits, axis=1, keepdims=0)
    shape = build.constant([-1, build.n_classes // width, width], np.int64)
    blocks = build.node("Reshape", logits, shape)
    maxima = build.node("ReduceMax", blocks, build.constant([2], np.int64), keepdims=0)
    block = build.node("ArgMax", maxima, axis=1, keepdims=1)
    offset = build.node("ArgMax", build.node("GatherND", blocks, block, batch_dims=1), axis=1, keepdims=1)
    column = build.node("Add", build.node("Mul", block, build.constant(width, np.int64)), offset)
    return build.node("Squeeze", column, build.axes())


def _block_width(n_classes: int) -> int | None:
    """Divisor of `n_classes` in 40..200 that is nearest to 100 and gives at least four blocks, or None."""
    widths = [width for width in range(40, 201) if n_classes % width == 0 and n_classes >= 4 * width]
    return min(widths, key=lambda width: abs(width - 100), default=None)


# -- maps -----------------------------------------------------------------------------------------


def _chain(build: Builder, chain: maps.Chain, logits: str, guess: str) -> str:
    first, *rest = chain.parts
    probs, previous = add_map(build, first, logits, guess), first
    for part in rest:
        tiny = build.constant(np.finfo(build.dtype).tiny)
        logits = build.node("Log", build.node("Max", probs, tiny))
        if not previous.keeps_decision:
            guess = build.node("ArgMax", logits, axis=1, keepdims=0)
        probs, previous = add_map(build, part, logits, guess), part
    return probs


def _mixture(build: Builder, mixture: maps.Mixture, logits: str, guess: str) -> str:
    terms = [
        build.node("Mul", add_map(build, part, logits, guess), build.constant(weight))
        for weight, part in zip(mixture.weights, mixture.parts, strict=True)
    ]
    total = terms[0] if len(terms) == 1 else build.node("Sum", *terms)
    probs = build.node("Min", total, build.constant(1.0))  # rounding may give more than 1
    return _keep_argmax(build, probs, guess) if mixture.keeps_decision else probs


def _temperature(build: Builder, temperature: maps.Temperature, logits: str, guess: str) -> str:
    alpha = _parameters(build, temperature, guess, slice(0, 1))
    below = build.node("Sub", logits, build.predicted_entry(logits, guess))
    return build.node("Softmax", build.node("Mul", below, alpha), axis=1)


def _vector(build: Builder, vector: maps.Vector, logits: str, guess: str) -> str:
    k = build.n_classes
    if vector.center:
        below = _below_top(build, logits)
        clipped = build.node("Max", below, build.constant(-FAR))
        logits = build.node("Sub", below, build.node("ReduceMean", clipped, build.axes(), keepdims=1))
    # Uncentred logits can be large, and float32 is too coarse for the differences of large numbers.
    in_float64 = not vector.center and build.dtype == np.float32
    dtype = np.float64 if in_float64 else build.dtype
    if in_float64:
        logits = build.node("Cast", logits, to=TensorProto.DOUBLE)
    scale = _parameters(build, vector, guess, slice(0, k), dtype)
    bias = _parameters(build, vector, guess, slice(k, 2 * k), dtype)
    scaled = build.node("Add", build.node("Mul", logits, scale), bias)
    if vector.keep_decision:
        scaled = build.node("Sub", scaled, build.predicted_entry(scaled, guess))
    elif in_float64:
        scaled = _below_top(build, scaled)
    if in_float64:
        scaled = build.node("Cast", scaled, to=TensorProto.FLOAT)
    if not vector.keep_decision:
        return build.node("Softmax", scaled, axis=1)
    clipped = build.node("Min", scaled, build.constant(0.0))
    return _keep_argmax(build, build.node("Softmax", clipped, axis=1), guess)


def _matrix(build: Builder, matrix: maps.Matrix, logits: str, guess: str) -> str:
    below, inputs = _below_top(build, logits), matrix.inputs
    unclipped = build.node("Mul", below, build.constant(inputs.alpha))
    scaled = build.node("Max", unclipped, build.constant(-inputs.limit))
    reduction = "ReduceMean" if inputs.center == "mean" else "ReduceLogSumExp"
    x = build.node("Sub", scaled, build.node(reduction, scaled, build.axes(), keepdims=1))
    change = build.node("MatMul", x, build.constant(np.ascontiguousarray(matrix.change.T)))
    own = build.node("Where", build.node("Less", below, build.constant(-MASK)), unclipped, x)
    moved = build.node("Add", own, change)
    u = build.node("Add", moved, build.constant(matrix.bias))
    if matrix.curves is not None:
        u = build.node("Add", u, _curves(build, matrix.curves, x))
    if not matrix.keep_decision:
        return build.node("Softmax", u, axis=1)
    clipped = build.node("Min", build.node("Sub", u, build.predicted_entry(u, guess)), build.constant(0.0))
    return _keep_argmax(build, build.node("Softmax", clipped, axis=1), guess)


def _curves(build: Builder, curves: Curves, x: str) -> str:
    """Add nodes for the curves of a `maps.Matrix`; returns the name of their values (n, K).

    `x` names the logits (n, K) from which the curves are computed.
    """
    likelihood = build.node("Exp", build.node("Sub", x, build.node("ReduceMax", x, build.axes(), keepdims=1)))
    others = build.node("MatMul", likelihood, build.constant(1 - np.eye(len(curves.knots))))
    t = build.node("Sub", build.node("Log", likelihood), build.node("Log", others))
    t = build.node("Max", build.node("Min", t, build.constant(curves.limit)), build.constant(-curves.limit))
    total = build.constant(0.0)
    for knot, width, weight in zip(curves.knots.T, curves.widths.T, curves.weights.T, strict=True):
        distance = build.node("Abs", build.node("Sub", t, build.constant(knot)))
        bend = build.node("Softplus", build.node("Mul", distance, build.constant(-1 / width)))
        smooth = build.node("Add", distance, build.node("Mul", bend, build.constant(2 * width)))
        total = build.node("Add", total, build.node("Mul", smooth, build.constant(weight)))
    return total


def _platt(build: Builder, platt: maps.Platt, logits: str, guess: str) -> str:
    top = _TopLabel(build, logits, guess)
    slope = _parameters(build, platt, guess, slice(0, 1))
    intercept = _parameters(build, platt, guess, slice(1, 2))
    u = build.node("Add", build.node("Mul", top.odds, slope), intercept)
    return top.spread(build.node("Sigmoid", u), pool=platt.pool)


def _binary(build: Builder, binary: maps.Binary, logits: str, guess: str) -> str:
    # A float32 model computes f of `maps.Binary` in float64, because rounding errors of its terms add up.
    in_float64 = build.dtype == np.float32
    if in_float64:
        logits = build.node("Cast", logits, to=TensorProto.DOUBLE)
    first, second = (build.node("Gather", logits, build.constant([k], np.int64), axis=1) for k in (0, 1))

    def number(value: Any) -> str:
        return build.constant(value, np.float64)

    x = build.node("Mul", build.node("Sub", second, first), number(binary.alpha))
    x = build.node("Max", build.node("Min", x, number(binary.limit)), number(-binary.limit))
    constant, slope, quadratic = (number(c) for c in binary.polynomial)
    line = build.node("Add", build.node("Mul", x, quadratic), slope)
    u = build.node("Add", build.node("Mul", x, line), constant)
    if len(binary.knots):
        distance = build.node("Abs", build.node("Sub", x, number(binary.knots[None])))
        bend = build.node("Softplus", build.node("Mul", distance, number(-1 / binary.widths[None])))
        smooth = build.node("Add", distance, build.node("Mul", bend, number(2 * binary.widths[None])))
        u = build.node("Add", u, build.node("MatMul", smooth, number(binary.weights[:, None])))
    if binary.keep_decision:
        is_second = build.node("Equal", build.as_column(guess), build.constant(1, np.int64))
        at_least, at_most = (build.node(operator, u, number(0.0)) for operator in ("Max", "Min"))
        u = build.node("Where", is_second, at_least, at_most)
    scores = _below_top(build, build.node("Mul", u, number([[0.0, 1.0]])))
    if in_float64:
        scores = build.node("Cast", scores, to=TensorProto.FLOAT)
    probs = build.node("Softmax", scores, axis=1)
    return _keep_argmax(build, probs, guess) if binary.keep_decision else probs


def _curve(build: Builder, curve: maps.Curve, logits: str, guess: str) -> str:
    top = _TopLabel(build, logits, guess)
    x, y = curve.x, curve.y
    if len(x) == 1:
        x, y = np.array([0.0, 1.0]), np.repeat(y, 2)
    if x[-1] == x[-2]:  # beyond the last knots, the value of the last one is used
        x, y = np.append(x, 2.0), np.append(y, y[-1])
    confidence = build.node("Sigmoid", top.odds)
    left = _interval(build, x, confidence, len(x) - 2)
    slope = np.divide(np.diff(y), np.diff(x), out=np.zeros(len(x) - 1), where=np.diff(x) > 0)
    start, low, high = (
        build.node("Gather", build.constant(knots), left)
        for knots in (x[:-1], y[:-1], np.maximum(y[1:], y[:-1]))
    )
    run = build.node("Sub", confidence, start)
    rise = build.node("Mul", run, build.node("Gather", build.constant(slope), left))
    line = build.node("Add", low, build.node("Max", rise, build.constant(0.0)))
    return top.spread(build.node("Min", line, high))


def _steps(build: Builder, steps: maps.Steps, logits: str, guess: str) -> str:
    top = _TopLabel(build, logits, guess)
    index = _interval(build, steps.edges, build.node("Sigmoid", top.odds), len(steps.values) - 1)
    return top.spread(build.node("Gather", build.constant(steps.values), index))


_NODES: dict[type[maps.Map], Callable[[Builder, Any, str, str], str]] = {
    maps.Binary: _binary,
    maps.Chain: _chain,
    maps.Curve: _curve,
    maps.Matrix: _matrix,
    maps.Mixture: _mixture,
    maps.Platt: _platt,
    maps.Steps: _steps,
    maps.Temperature: _temperature,
    maps.Vector: _vector,
}


# -- parts of maps --------------------------------------------------------------------------------


class _TopLabel:
    """Predicted class of every row, its log-odds, and the other probabilities, scaled to sum to 1."""

    def __init__(self, build: Builder, logits: str, guess: str) -> None:
        self.build, self.guess = build, guess
        axes = build.axes()
        self.predicted = build.is_predicted(guess)
        others = build.node("Where", self.predicted, build.constant(-np.inf), logits)
        self.share = build.node("Softmax", others, axis=1)
        self.largest = build.node("ReduceMax", self.share, axes, keepdims=1)
        # The log-odds are max(z) − logsumexp(others), and logsumexp(others) = max(others) − log(max(share)).
        # They are therefore computed from max(z) − max(others), which is accurate even for large logits.
        maxima = (build.node("ReduceMax", values, axes, keepdims=1) for values in (logits, others))
        odds = build.node("Add", build.node("Sub", *maxima), build.node("Log", self.largest))
        #: (n, 1) log-odds of the predicted class
        self.odds = build.node("Min", odds, build.constant(maps.MAX_LOG_ODDS))

    def spread(self, confidence: str, *, pool: bool = False) -> str:
        """Add nodes that compute the same as `_numeric.passes.spread`; returns the name of the probabilities.

        `confidence` names the confidences (n, 1).
        """
        if pool:
            return _keep_argmax(self.build, self._pooled(confidence), self.guess)
        return self._levelled(confidence)

    def _pooled(self, confidence: str) -> str:
        """Probabilities in which no other class overtakes the predicted class.

        If another class would overtake it, the predicted class and as many of the most probable other classes
        as necessary receive their mean probability.
        """
        build, k = self.build, self.build.n_classes
        others = build.node("Mul", self.share, build.node("Sub", build.constant(1.0), confidence))
        sums = build.node("CumSum", build.sorted_descending(others, k - 1), build.constant(1, np.int64))
        counts = build.constant(np.arange(2, k + 1)[None])
        means = build.node("Div", build.node("Add", sums, confidence), counts)
        level = build.node("Max", confidence, build.node("ReduceMax", means, build.axes(), keepdims=1))
        return build.node("Where", self.predicted, level, build.node("Min", others, level))

    def _levelled(self, confidence: str) -> str:
        """Probabilities in which no other class overtakes the predicted class.

        A confidence below 1/K is raised to 1/K. If another class would still overtake the predicted class,
        the shares of the other classes are mixed with the uniform distribution over these classes. The
        uniform distribution gets the smallest weight that suffices.
        """
        build, k = self.build, self.build.n_classes
        c = build.node("Max", confidence, build.constant(1 / k))
        rest = build.node("Sub", build.constant(1.0), c)
        uniform, one = build.constant(1 / (k - 1)), build.constant(1.0)
        tiny = build.constant(np.finfo(build.dtype).tiny)
        odds = build.node("Div", c, build.node("Max", rest, tiny))
        excess = build.node("Max", build.node("Sub", self.largest, uniform), tiny)
        mix = build.node("Div", build.node("Sub", self.largest, odds), excess)
        mix = build.node("Max", build.node("Min", mix, one), build.constant(0.0))
        share = build.node("Mul", build.node("Sub", one, mix), self.share)
        others = build.node("Mul", build.node("Add", share, build.node("Mul", mix, uniform)), rest)
        # Rounding must not make another class as likely as the predicted one.
        below = _slightly_below(build, c)
        return build.node("Where", self.predicted, c, build.node("Min", others, below))


def _parameters(
    build: Builder,
    sliced: maps.Temperature | maps.Vector | maps.Platt,
    guess: str,
    columns: slice,
    dtype: Any = None,
) -> str:
    """The given columns of θ for every row, (n, p), or (1, p) if all rows share the parameters."""
    theta = build.constant(maps.theta_by_class(sliced)[:, columns], dtype)
    if sliced.slices is None:
        return theta
    return build.node("Gather", theta, guess if sliced.slices.groups is None else GROUPS, axis=0)


def _below_top(build: Builder, logits: str) -> str:
    """Subtract the maximum of every row, so that rounding errors scale with the differences of the logits."""
    return build.node("Sub", logits, build.node("ReduceMax", logits, build.axes(), keepdims=1))


def _keep_argmax(build: Builder, probs: str, guess: str) -> str:
    """Make the predicted class the only argmax by limiting the others to slightly below its probability."""
    below = _slightly_below(build, build.predicted_entry(probs, guess))
    return build.node("Where", build.is_predicted(guess), probs, build.node("Min", probs, below))


def _slightly_below(build: Builder, probs: str) -> str:
    """Add nodes for ``p − 2ε p``; returns the output's name."""
    # ``(1 − 2ε) p`` would need one node less, but ONNX Runtime drops a product with a constant so close to 1.
    return build.node("Sub", probs, build.node("Mul", probs, build.constant(2 * np.finfo(build.dtype).eps)))


def _interval(build: Builder, edges: Float, confidence: str, last: int) -> str:
    """For each confidence, index i of the interval ``(edges[i], edges[i + 1]]`` that contains it, (n, 1).

    The index is clipped to 0..last.
    """
    is_below = build.node("Less", build.constant(edges[None]), confidence)
    count = build.node(
        "ReduceSum", build.node("Cast", is_below, to=TensorProto.INT64), build.axes(), keepdims=1
    )
    index = build.node("Sub", count, build.constant(1, np.int64))
    index = build.node("Max", index, build.constant(0, np.int64))
    return build.node("Min", index, build.constant(last, np.int64))
