"""Training steps of ResNet-20 with hand-written kernels, without autograd.

Each run has its own :class:`FusedSteps` object. It owns the activations, the sums that batch norm needs and
the state of the optimiser, all at fixed addresses. It launches all kernels on the current stream, so several
runs can proceed in parallel on different streams. The first step and the first evaluation allocate buffers.
Later steps and evaluations allocate no memory and can therefore be captured in CUDA graphs.
"""

from __future__ import annotations

import importlib.util
import math

import torch
from torch import Tensor

from hetcal_paper.autograd import largest_divisor
from hetcal_paper.kernels.launch import launch
from hetcal_paper.kernels.layers import Conv, Layers, Norm
from hetcal_paper.weights import Layout, Weights

__all__ = ["FusedSteps", "available"]

_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8
_EVALUATION_BATCH = 256


def available(network: str, recipe: str, device: torch.device) -> bool:
    """Whether the kernels can train a network with a recipe on a device."""
    supported = network == "resnet20" and recipe == "adam" and device.type == "cuda"
    return supported and importlib.util.find_spec("triton") is not None


class FusedSteps:
    """Training steps of one run, computed with the hand-written kernels.

    Parameters
    ----------
    layout : Layout
    weights : Weights
        Weights of the run. ``weights.flat.grad`` is not used.
    inputs, targets : Tensor
        Images (n, side, side, 3) and int64 labels (n,) of an epoch, in training order.
    next_row : Tensor
        Index of the first row of the next batch. Each step increases it by ``batch``.
    report : Tensor of float32, shape (2,)
        Each step adds the mean loss of its batch to the first element. Evaluation adds the number of
        correctly classified rows to the second element.
    batch : int
        Batch size.
    weight_decay : float
        ``weight_decay * weight`` is added to the gradient.

    Attributes
    ----------
    gradient : Tensor of float32, shape (layout.size,)
        Gradient of the flat weights; zero between steps.
    memory : dict
        State of Adam, with the keys of ``torch.optim.Adam``.
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
        self._inputs, self._targets, self._next, self._report = inputs, targets, next_row, report
        self._batch, self._decay = batch, weight_decay
        self._device, self._dtype = inputs.device, inputs.dtype
        self._side = inputs.shape[1]
        self._zero = torch.zeros((), dtype=torch.int64, device=self._device)
        self._layers = Layers(layout, weights, self._side)
        self._buffers: dict[str, Tensor] = {}
        self.gradient = self._layers.pool[: layout.size]
        self.rate = torch.zeros((), device=self._device)
        self.memory = {
            "step": torch.zeros((), device=self._device),
            "exp_avg": torch.zeros_like(weights.flat),
            "exp_avg_sq": torch.zeros_like(weights.flat),
        }

    def _buffer(self, name: str, images: int, side: int, width: int) -> Tensor:
        """Return the buffer with this name and shape; it is allocated at first use."""
        shape = (images, side, side, width)
        key = f"{name} {shape}"
        if key not in self._buffers:
            self._buffers[key] = torch.zeros(shape, dtype=self._dtype, device=self._device)
        return self._buffers[key]

    def set_rate(self, rate: float) -> None:
        """Set the learning rate."""
        self.rate.fill_(rate)

    def step(self) -> None:
        """Run one optimiser step on the next batch."""
        self.differentiate()
        self.update()

    def update(self) -> None:
        """Update the weights, reset the gradient and all sums, and advance to the next batch."""
        layers, memory = self._layers, self.memory
        launch(
            "adam", (0, 0), layers.size + layers.n_sums,
            layers.flat, layers.low, layers.pool, memory["exp_avg"], memory["exp_avg_sq"],
            self.rate, memory["step"], self._next, self._batch, layers.size, layers.n_sums, self._decay,
            LOG_BETA1=math.log(_BETA1), LOG_BETA2=math.log(_BETA2), BETA1=_BETA1, BETA2=_BETA2, EPS=_EPS,
        )  # fmt: skip

    def differentiate(self) -> None:
        """Write the gradient of the next batch to :attr:`gradient`; add the mean loss to ``report``."""
        n, blocks = self._batch, self._layers.blocks
        inputs = self._forward(self._inputs, self._next, n, train=True)
        back = self._buffer("back", n, blocks[-1].side, blocks[-1].width)
        self._head(inputs, back, self._targets, self._next, n, train=True)
        for i in reversed(range(len(blocks))):
            self._block_backward(i, n)
        self._stem_backward(n)

    def evaluate(self, images: Tensor, labels: Tensor) -> None:
        """Add the number of correctly classified rows to the second element of ``report``."""
        size = largest_divisor(len(images), _EVALUATION_BATCH)
        for start in range(0, len(images), size):
            rows = slice(start, start + size)
            inputs = self._forward(images[rows], self._zero, size, train=False)
            self._head(inputs, inputs[0], labels[rows], self._zero, size, train=False)

    def _forward(self, x: Tensor, first: Tensor, n: int, *, train: bool) -> tuple[Tensor, Tensor]:
        """Run all layers before the last batch norm.

        Return the input of that batch norm, and the shortcut that :meth:`_head` adds to its output.
        """
        a = self._stem_forward(x, first, n, train=train)
        last = len(self._layers.blocks) - 1
        for i, block in enumerate(self._layers.blocks):
            name = i if train else 0  # without a backward pass, layers of equal size share buffers
            y1, y2, out, short = (
                self._buffer(f"{kind} {name}", n, block.side, block.width)
                for kind in ("y1", "y2", "a" if train or i % 2 else "b", "short")
            )
            shortcut = a if block.project is None else short
            self._conv_forward(block.conv1, a, y1, None, n, block.project, short, train=train)
            self._conv_forward(block.conv2, y1, y2, block.conv1.norm, n, None, short, train=train)
            if i < last:
                self._apply(y2, shortcut, out, block.conv2.norm, train=train)
            a = out
        return y2, shortcut

    def _stem_forward(self, x: Tensor, first: Tensor, n: int, *, train: bool) -> Tensor:
        """Run the first convolution with batch norm and ReLU."""
        stem, side = self._layers.stem, self._side
        y, a = (self._buffer(f"{kind} stem", n, side, stem.n_out) for kind in ("y", "a"))
        launch(
            "stem_forward", stem.key, n * side * side,
            x, first, self.memory["step"], stem.weight, y, stem.norm.sums, n,
            SIDE=side, COUT=stem.n_out, TRAIN=train,
        )  # fmt: skip
        self._apply(y, None, a, stem.norm, train=train)
        return a

    def _conv_forward(
        self,
        conv: Conv,
        x: Tensor,
        y: Tensor,
        input_norm: Norm | None,
        n: int,
        project: tuple[Tensor, Tensor] | None,
        short: Tensor,
        *,
        train: bool,
    ) -> None:
        """Convolve ``x`` into ``y``; with ``project``, also write the projected shortcut to ``short``.

        If ``input_norm`` is not None, this batch norm and a ReLU are applied to ``x`` first.
        """
        launch(
            "conv_forward", conv.key, y.numel() // y.shape[-1],
            x, conv.weight, y, conv.norm.sums, *(input_norm or conv.norm).forward,
            project[0] if project else conv.weight, short, n,
            **conv.shape, STRIDE=conv.stride,
            NORM=input_norm is not None, PROJECT=project is not None, TRAIN=train,
        )  # fmt: skip

    def _apply(self, y: Tensor, short: Tensor | None, out: Tensor, norm: Norm, *, train: bool) -> None:
        """Apply the batch norm to ``y``, add the shortcut if there is one, and apply the ReLU."""
        width = y.shape[-1]
        pixels = y.numel() // width
        launch(
            "add_shortcut", (width, width), pixels,
            y, y if short is None else short, out, *norm.forward, pixels,
            CHANNELS=width, SHORTCUT=short is not None, TRAIN=train,
        )  # fmt: skip

    def _head(
        self,
        inputs: tuple[Tensor, Tensor],
        back: Tensor,
        labels: Tensor,
        first: Tensor,
        n: int,
        *,
        train: bool,
    ) -> None:
        """Run the last batch norm, the shortcut, ReLU, pooling and the linear layer.

        In training, add the mean loss to ``report``, compute the gradients of the linear layer, and write the
        gradient of the ReLU's input to ``back``. Otherwise, add the number of correctly classified rows.
        """
        last, n_classes = self._layers.blocks[-1], self._layers.n_classes
        norm = last.conv2.norm
        launch(
            "head", (last.width, 0), n,
            *inputs, back, norm.sums, norm.back_sums, *norm.forward[1:], *self._layers.head,
            labels, first, self._report, n,
            PIXELS=last.side**2, CHANNELS=last.width, CLASSES=n_classes,
            PADDED=max(16, 1 << (n_classes - 1).bit_length()), TRAIN=train,
        )  # fmt: skip

    def _block_backward(self, i: int, n: int) -> None:
        """Run the backward pass of block ``i``.

        There is one buffer ``back`` for each shape of activations. Before the call, the buffer with the shape
        of the block's output contains the gradient of the input of the block's last ReLU. After the call, the
        buffer with the shape of the block's input contains the gradient of the input of the ReLU before the
        block.
        """
        block = self._layers.blocks[i]
        conv1, conv2 = block.conv1, block.conv2
        back, inner, dy, y1, y2 = (
            self._buffer(name, n, block.side, block.width)
            for name in ("back", "inner", "dy", f"y1 {i}", f"y2 {i}")
        )
        self._weight_gradient(conv2, y1, back, y2, dy, conv1.norm, n)
        launch(
            "conv_backward", conv2.key, n * block.side**2,
            dy, conv2.weight, inner, back, back, y1, *conv1.norm.middle, n,
            **conv2.shape, ADD=False, ACTIVE=False,
        )  # fmt: skip
        x = self._buffer(f"a {i - 1}" if i else "a stem", n, conv1.side, conv1.n_in)
        self._weight_gradient(conv1, x, inner, y1, dy, None, n)
        self._leave_block(i, x, back, dy, n)

    def _leave_block(self, i: int, x: Tensor, back: Tensor, dy: Tensor, n: int) -> None:
        """Run the backward pass through the first convolution of a block and through its shortcut."""
        block = self._layers.blocks[i]
        conv = block.conv1
        y = self._buffer(f"y2 {i - 1}" if i else "y stem", n, conv.side, conv.n_in)
        input_norm = self._layers.blocks[i - 1].conv2.norm if i else self._layers.stem.norm
        if block.project is None:
            launch(
                "conv_backward", conv.key, n * conv.side**2,
                dy, conv.weight, back, back, x, y, *input_norm.middle, n,
                **conv.shape, ADD=True, ACTIVE=True,
            )  # fmt: skip
            return
        weights, gradient = block.project
        launch("projection_gradient", conv.key, None, x, back, gradient, n, **conv.shape)
        launch(
            "conv_backward_strided", conv.key, n * block.side**2,
            dy, conv.weight, self._buffer("back", n, conv.side, conv.n_in), back, weights, x, y,
            *input_norm.middle, n, **conv.shape,
        )  # fmt: skip

    def _weight_gradient(
        self, conv: Conv, x: Tensor, back: Tensor, y: Tensor, dy: Tensor, input_norm: Norm | None, n: int
    ) -> None:
        """Compute the gradients of the parameters of a convolution and of its batch norm.

        ``back`` is the gradient of the batch norm's output. The gradient of its input ``y`` is written to
        ``dy``.
        """
        launch(
            "weight_gradient", conv.key, None,
            x, back, y, dy, conv.gradient, *conv.norm.backward, *(input_norm or conv.norm).forward[:3], n,
            **conv.shape, STRIDE=conv.stride, NORM=input_norm is not None,
        )  # fmt: skip

    def _stem_backward(self, n: int) -> None:
        """Compute the gradients of the parameters of the first convolution and of its batch norm."""
        stem = self._layers.stem
        back, y = (self._buffer(name, n, self._side, stem.n_out) for name in ("back", "y stem"))
        launch(
            "stem_gradient", stem.key, None,
            self._inputs, self._next, back, y, stem.gradient, *stem.norm.backward, n,
            SIDE=self._side, COUT=stem.n_out,
        )  # fmt: skip
