"""Training steps of ResNet-20 with hand-written kernels, forward and backward, without autograd.

A :class:`FusedSteps` belongs to one run: it owns the activations, the sums and the optimiser's
memory at fixed addresses, launches everything on the current stream and allocates nothing in a step,
so that steps can be captured in CUDA graphs and runs can go side by side on streams. Where it cannot
be used (:func:`available`) the engine differentiates the network with autograd instead; both compute
the same step.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hetcal.experiments.functional import Layout, Weights

__all__ = ["CONFIGS", "FusedSteps", "available"]

_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8
_WIDTHS = (16, 32, 64)
_DEPTH = 3
_EVALUATION_BATCH = 256

#: Launch parameters by kernel and (channels in, channels out), found by timing on an H200: pixels a
#: program and warps, and where it applies the window, rows and shares of the pixels.
CONFIGS: dict[str, dict[tuple[int, int], dict[str, int]]] = {
    "adam": {
        (0, 0): {"BLOCK": 512, "num_warps": 4},
    },
    "add_shortcut": {
        (16, 16): {"BLOCK": 128, "num_warps": 4},
        (32, 32): {"BLOCK": 64, "num_warps": 4},
        (64, 64): {"BLOCK": 16, "num_warps": 2},
    },
    "conv_backward": {
        (16, 16): {"BLOCK": 256, "num_warps": 4, "WINDOW": 4, "num_stages": 1},
        (32, 32): {"BLOCK": 128, "num_warps": 4, "WINDOW": 4, "num_stages": 1},
        (64, 64): {"BLOCK": 64, "num_warps": 4, "WINDOW": 1, "num_stages": 1},
    },
    "conv_backward_strided": {
        (16, 32): {"BLOCK": 128, "num_warps": 4},
        (32, 64): {"BLOCK": 64, "num_warps": 2},
    },
    "conv_forward": {
        (16, 16): {"BLOCK": 128, "num_warps": 4, "WINDOW": 1, "num_stages": 1},
        (16, 32): {"BLOCK": 128, "num_warps": 4, "WINDOW": 4, "num_stages": 1},
        (32, 32): {"BLOCK": 64, "num_warps": 4, "WINDOW": 1, "num_stages": 1},
        (32, 64): {"BLOCK": 64, "num_warps": 8, "WINDOW": 4, "num_stages": 1},
        (64, 64): {"BLOCK": 32, "num_warps": 4, "WINDOW": 1, "num_stages": 1},
    },
    "head": {
        (64, 0): {"num_warps": 4},
    },
    "projection_gradient": {
        (16, 32): {"BLOCK": 256, "num_warps": 4, "shares": 64, "num_stages": 1},
        (32, 64): {"BLOCK": 64, "num_warps": 4, "shares": 64, "num_stages": 1},
    },
    "stem_forward": {
        (3, 16): {"BLOCK": 256, "num_warps": 4},
    },
    "stem_gradient": {
        (3, 16): {"BLOCK": 256, "num_warps": 4, "shares": 264, "num_stages": 1},
    },
    "weight_gradient": {
        (16, 16): {"BLOCK": 128, "num_warps": 4, "WINDOW": 4, "ROWS": 3, "num_stages": 1, "shares": 264},
        (16, 32): {"BLOCK": 128, "num_warps": 4, "WINDOW": 4, "ROWS": 1, "num_stages": 1, "shares": 88},
        (32, 32): {"BLOCK": 128, "num_warps": 4, "WINDOW": 4, "ROWS": 1, "num_stages": 1, "shares": 88},
        (32, 64): {"BLOCK": 64, "num_warps": 8, "WINDOW": 4, "ROWS": 1, "num_stages": 1, "shares": 44},
        (64, 64): {"BLOCK": 128, "num_warps": 4, "WINDOW": 1, "ROWS": 1, "num_stages": 1, "shares": 28},
    },
}


def available(network: str, recipe: str, device: torch.device) -> bool:
    """Whether these kernels can train a network with a recipe on a device."""
    fits = network == "resnet20" and recipe == "adam" and device.type == "cuda"
    return fits and importlib.util.find_spec("triton") is not None


@dataclass(frozen=True)
class _Norm:
    """Batch norm of one layer, and both of its pairs of sums."""

    gamma: Tensor
    beta: Tensor
    mean: Tensor
    var: Tensor
    sums: Tensor
    back_sums: Tensor
    d_gamma: Tensor
    d_beta: Tensor

    @property
    def forward(self) -> tuple[Tensor, ...]:
        """What a kernel needs to apply it."""
        return self.sums, self.gamma, self.beta, self.mean, self.var

    @property
    def backward(self) -> tuple[Tensor, ...]:
        """What a kernel needs to differentiate it."""
        return self.sums, self.back_sums, self.gamma, self.d_gamma, self.d_beta


@dataclass(frozen=True)
class _Conv:
    """Convolution of one layer and the batch norm behind it."""

    name: str
    shape: dict[str, int]
    weight: Tensor
    gradient: Tensor
    norm: _Norm

    @property
    def key(self) -> tuple[int, int]:
        """Channels in and out."""
        return self.shape["CIN"], self.shape["COUT"]


@dataclass(frozen=True)
class _Block:
    """Two convolutions and the 1 by 1 convolution of the shortcut, if it has one."""

    conv1: _Conv
    conv2: _Conv
    project: tuple[Tensor, Tensor] | None  # weights and gradient
    side: int  # of its output
    width: int


class FusedSteps:
    """Steps of one run, on buffers that never move.

    Parameters
    ----------
    layout : Layout
        Of the network.
    weights : Weights
        Of the run; its flat gradient is replaced by one that the sums follow in memory.
    inputs, targets : Tensor
        Images (n, side, side, 3) and int64 labels of an epoch, in the order of training.
    next_row : Tensor
        Where the next batch starts; each step moves it on.
    report : Tensor of float32, shape (2,)
        Steps add the mean loss of their batch to the first element, evaluation its hits to the
        second.
    batch : int
        Rows in a step.
    weight_decay : float
        Added to the gradient, times the weight.

    Attributes
    ----------
    memory : dict
        State of Adam, with the keys that ``torch.optim.Adam`` uses.
    rate : Tensor
        The learning rate.
    """

    def __init__(
        self,
        layout: Layout,
        weights: Weights,
        inputs: Tensor,
        targets: Tensor,
        next_row: Tensor,
        report: Tensor,
        *,
        batch: int,
        weight_decay: float,
    ) -> None:
        self._layout, self._weights = layout, weights
        self._inputs, self._targets, self._next, self._report = inputs, targets, next_row, report
        self._batch, self._decay = batch, weight_decay
        self._device, self._dtype = inputs.device, inputs.dtype
        self._side = inputs.shape[1]
        self._first = torch.zeros((), dtype=torch.int64, device=self._device)
        self.rate = torch.zeros((), device=self._device)
        self.memory = {
            "step": torch.zeros((), device=self._device),
            "exp_avg": torch.zeros_like(weights.flat),
            "exp_avg_sq": torch.zeros_like(weights.flat),
        }
        self._build()
        self._buffers: dict[str, Tensor] = {}

    # -- set-up ---------------------------------------------------------------------------------

    def _build(self) -> None:
        """List the layers with views of weights, gradients and sums."""
        layout, weights = self._layout, self._weights
        copies = _kernels().COPIES
        widths = [shape.numel() for name, shape in zip(layout.stat_names, layout.stat_shapes, strict=True)
                  if name.endswith("running_mean")]  # fmt: skip
        self._n_sums = 4 * copies * sum(widths)
        self._pool = torch.zeros(layout.size + self._n_sums, device=self._device)
        weights.flat.grad = self._pool[: layout.size]
        self._at = dict(zip(layout.names, layout.starts, strict=True))
        self._stats = dict(zip(layout.stat_names, weights.stats, strict=True))
        self._low = weights.low if weights.low is not None else weights.flat
        self._free_sums = layout.size
        self._stem = self._conv("stem", "norm", self._side, 3, _WIDTHS[0], 1)
        self._blocks: list[_Block] = []
        side, before = self._side, _WIDTHS[0]
        for width in _WIDTHS:
            for _ in range(_DEPTH):
                stride = 1 if width == before else 2
                self._blocks.append(self._block(side, before, width, stride))
                side, before = side // stride, width
        self._n_classes = layout.shapes[layout.names.index("head.weight")][0]

    def _block(self, side: int, n_in: int, n_out: int, stride: int) -> _Block:
        name = f"stages.{len(self._blocks)}"
        at = self._at.get(f"{name}.project.weight")
        project = None if at is None else (self._low[at:], self._pool[at:])
        out = side // stride
        return _Block(
            self._conv(f"{name}.conv1", f"{name}.norm1", side, n_in, n_out, stride),
            self._conv(f"{name}.conv2", f"{name}.norm2", out, n_out, n_out, 1),
            project,
            out,
            n_out,
        )

    def _conv(self, conv: str, norm: str, side: int, n_in: int, n_out: int, stride: int) -> _Conv:
        at, gamma, beta = (self._at[f"{key}"] for key in (f"{conv}.weight", f"{norm}.weight", f"{norm}.bias"))
        n = 2 * _kernels().COPIES * n_out
        sums, self._free_sums = self._free_sums, self._free_sums + 2 * n
        flat, pool, stats = self._weights.flat, self._pool, self._stats
        return _Conv(
            conv,
            {"SIDE": side, "CIN": n_in, "COUT": n_out, "STRIDE": stride},
            self._low[at:],
            pool[at:],
            _Norm(
                flat[gamma:], flat[beta:], stats[f"{norm}.running_mean"], stats[f"{norm}.running_var"],
                pool[sums:], pool[sums + n :], pool[gamma:], pool[beta:],
            ),  # fmt: skip
        )

    def _buffer(self, name: str, images: int, side: int, width: int) -> Tensor:
        """Return a buffer by name; made at its first use, which is before any capture."""
        shape = (images, side, side, width)
        key = f"{name} {shape}"
        if key not in self._buffers:
            self._buffers[key] = torch.zeros(shape, dtype=self._dtype, device=self._device)
        return self._buffers[key]

    # -- steps ----------------------------------------------------------------------------------

    def set_rate(self, rate: float) -> None:
        """Change the learning rate."""
        self.rate.fill_(rate)

    def step(self) -> None:
        """Make one step of the optimiser with the next batch."""
        self.differentiate()
        size = self._layout.size
        _launch(
            "adam", (0, 0), size + self._n_sums,
            self._weights.flat, self._low, self._pool, self.memory["exp_avg"], self.memory["exp_avg_sq"],
            self.rate, self.memory["step"], self._next, self._batch, size, self._n_sums, self._decay,
            LOG_BETA1=math.log(_BETA1), LOG_BETA2=math.log(_BETA2), BETA1=_BETA1, BETA2=_BETA2, EPS=_EPS,
        )  # fmt: skip

    def differentiate(self) -> None:
        """Add the gradient of the next batch to that of the flat weights, and its loss to the report."""
        n = self._batch
        inputs = self._forward(self._inputs, self._next, n, train=True)
        last = self._blocks[-1]
        back = self._buffer("back", n, last.side, last.width)
        self._head(inputs, back, self._targets, self._next, n, train=True)
        for i in reversed(range(len(self._blocks))):
            self._block_backward(i, n)
        self._stem_backward(n)

    def evaluate(self, images: Tensor, labels: Tensor) -> None:
        """Add the number of rows that are classified right to the report."""
        size = max(d for d in range(1, min(len(images), _EVALUATION_BATCH) + 1) if len(images) % d == 0)
        for start in range(0, len(images), size):
            rows = slice(start, start + size)
            inputs = self._forward(images[rows], self._first, size, train=False)
            self._head(inputs, inputs[0], labels[rows], self._first, size, train=False)

    # -- forward --------------------------------------------------------------------------------

    def _forward(self, x: Tensor, first: Tensor, n: int, *, train: bool) -> tuple[Tensor, Tensor]:
        """Go through all layers; returns what the last ReLU adds up: convolution and shortcut."""
        stem, side = self._stem, self._side
        y = self._buffer("y stem", n, side, _WIDTHS[0])
        a = self._buffer("a stem", n, side, _WIDTHS[0])
        _launch(
            "stem_forward", stem.key, n * side * side,
            x, first, self.memory["step"], stem.weight, y, stem.norm.sums, n,
            SIDE=side, COUT=_WIDTHS[0], TRAIN=train,
        )  # fmt: skip
        self._apply(y, None, a, stem.norm, n, train=train)
        for i, block in enumerate(self._blocks):
            name = i if train else 0  # without a way back, layers of the same size share buffers
            y1, y2, out, short = (
                self._buffer(f"{kind} {name}", n, block.side, block.width)
                for kind in ("y1", "y2", "a" if train or i % 2 else "b", "short")
            )
            shortcut = a if block.project is None else short
            self._conv_forward(block.conv1, a, y1, None, n, (block.project, short), train=train)
            self._conv_forward(block.conv2, y1, y2, block.conv1.norm, n, (None, short), train=train)
            if i + 1 < len(self._blocks):
                self._apply(y2, shortcut, out, block.conv2.norm, n, train=train)
            a = out
        return y2, shortcut

    def _conv_forward(
        self, conv: _Conv, x: Tensor, y: Tensor, before: _Norm | None, n: int, project: Any, *, train: bool
    ) -> None:
        weights, short = project
        _launch(
            "conv_forward", conv.key, y.numel() // y.shape[-1],
            x, conv.weight, y, conv.norm.sums, *(before or conv.norm).forward,
            weights[0] if weights else conv.weight, short, n,
            **conv.shape, NORM=before is not None, PROJECT=weights is not None, TRAIN=train,
        )  # fmt: skip

    def _apply(self, y: Tensor, short: Tensor | None, out: Tensor, norm: _Norm, n: int, *, train: bool) -> None:
        width = y.shape[-1]
        pixels = y.numel() // width
        _launch(
            "add_shortcut", (width, width), pixels, y, y if short is None else short, out, *norm.forward, pixels,
            CHANNELS=width, SHORTCUT=short is not None, TRAIN=train,
        )  # fmt: skip

    def _head(
        self, inputs: tuple[Tensor, Tensor], back: Tensor, labels: Tensor, first: Tensor, n: int, *, train: bool
    ) -> None:
        last = self._blocks[-1]
        norm = last.conv2.norm
        w, b = self._at["head.weight"], self._at["head.bias"]
        flat, pool = self._weights.flat, self._pool
        _launch(
            "head", (64, 0), n,
            *inputs, back, norm.sums, norm.back_sums, *norm.forward[1:], flat[w:], flat[b:], pool[w:], pool[b:],
            labels, first, self._report, n,
            PIXELS=last.side**2, CHANNELS=last.width, CLASSES=self._n_classes,
            PADDED=max(16, 1 << (self._n_classes - 1).bit_length()), TRAIN=train,
        )  # fmt: skip

    # -- backward -------------------------------------------------------------------------------

    def _block_backward(self, i: int, n: int) -> None:
        """From the gradient before a block's last ReLU to that before the last ReLU of the block before."""
        block = self._blocks[i]
        buffers = {
            kind: self._buffer(name, n, block.side, block.width)
            for kind, name in [("back", "back"), ("inner", "inner"), ("dy", "dy"), ("y1", f"y1 {i}"), ("y2", f"y2 {i}")]
        }
        back, inner, dy = buffers["back"], buffers["inner"], buffers["dy"]
        conv1, conv2 = block.conv1, block.conv2
        side, width = conv1.shape["SIDE"], conv1.shape["CIN"]
        x = self._buffer(f"a {i - 1}" if i else "a stem", n, side, width)
        y_before = self._buffer(f"y2 {i - 1}" if i else "y stem", n, side, width)
        norm_before = self._blocks[i - 1].conv2.norm if i else self._stem.norm
        self._weight_gradient(conv2, buffers["y1"], back, buffers["y2"], dy, conv1.norm, n)
        _launch(
            "conv_backward", conv2.key, n * block.side**2,
            dy, conv2.weight, inner, back, back, buffers["y1"], *_middle(conv1.norm), n,
            **_square(conv2), ADD=False, ACTIVE=False,
        )  # fmt: skip
        self._weight_gradient(conv1, x, inner, buffers["y1"], dy, None, n)
        if block.project is None:
            _launch(
                "conv_backward", conv1.key, n * side**2,
                dy, conv1.weight, back, back, x, y_before, *_middle(norm_before), n,
                **_square(conv1), ADD=True, ACTIVE=True,
            )  # fmt: skip
            return
        weights, gradient = block.project
        _launch(
            "projection_gradient", conv1.key, None, x, back, gradient, n, **_square(conv1),
        )  # fmt: skip
        _launch(
            "conv_backward_strided", conv1.key, n * block.side**2,
            dy, conv1.weight, self._buffer("back", n, side, width), back, weights, x, y_before,
            *_middle(norm_before), n, **_square(conv1),
        )  # fmt: skip

    def _weight_gradient(
        self, conv: _Conv, x: Tensor, back: Tensor, y: Tensor, dy: Tensor, before: _Norm | None, n: int
    ) -> None:
        _launch(
            "weight_gradient", conv.key, None,
            x, back, y, dy, conv.gradient, *conv.norm.backward, *(before or conv.norm).forward[:3], n,
            **conv.shape, NORM=before is not None,
        )  # fmt: skip

    def _stem_backward(self, n: int) -> None:
        stem, side = self._stem, self._side
        _launch(
            "stem_gradient", stem.key, None,
            self._inputs, self._next, self._buffer("back", n, side, _WIDTHS[0]),
            self._buffer("y stem", n, side, _WIDTHS[0]), stem.gradient, *stem.norm.backward, n,
            SIDE=side, COUT=_WIDTHS[0],
        )  # fmt: skip


def _middle(norm: _Norm) -> tuple[Tensor, ...]:
    """What a kernel needs that makes the gradient behind a norm."""
    return norm.sums, norm.back_sums, norm.gamma, norm.beta


def _square(conv: _Conv) -> dict[str, int]:
    """Shape of a convolution without its stride."""
    return {key: value for key, value in conv.shape.items() if key != "STRIDE"}


def _kernels() -> Any:
    """Import the kernels when they are first needed: Triton is there only with a GPU build of torch."""
    from hetcal.experiments import fused_kernels

    return fused_kernels


def _launch(name: str, key: tuple[int, int], items: int | None, *args: Any, **constants: Any) -> None:
    """Launch a kernel over ``items`` (pixels, images or elements), or over shares of them."""
    config = dict(CONFIGS[name][key])
    shares = config.pop("shares", None)
    grid: tuple[int, ...] = (-(-items // config.get("BLOCK", 1)) if items is not None else shares or 1,)
    if name == "weight_gradient":
        windows = 1 if config["WINDOW"] == 4 else 3
        grid = (1 if config["ROWS"] == 3 else 3 * windows, *grid)
    if name == "conv_backward_strided":
        grid = (*grid, 4)
    getattr(_kernels(), name)[grid](*args, **constants, **config)
