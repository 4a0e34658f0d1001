"""Layers of ResNet-20 for the kernels: views of weights, gradients and sums at fixed addresses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hetcal_paper.kernels.launch import COPIES
from hetcal_paper.weights import Layout, Weights

__all__ = ["Block", "Conv", "Layers", "Norm"]

_WIDTHS = (16, 32, 64)
_DEPTH = 3


@dataclass(frozen=True)
class Norm:
    """Batch norm of one layer, with the sums that its forward and backward pass need.

    Most of these tensors are views that extend to the end of a larger tensor. Only their first elements
    belong to the layer; kernels use only these.
    """

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
        """Arguments of kernels that apply the batch norm."""
        return self.sums, self.gamma, self.beta, self.mean, self.var

    @property
    def middle(self) -> tuple[Tensor, ...]:
        """Arguments of kernels that compute the gradient of the output of the batch norm."""
        return self.sums, self.back_sums, self.gamma, self.beta

    @property
    def backward(self) -> tuple[Tensor, ...]:
        """Arguments of kernels that compute the gradients of the batch norm's input and parameters."""
        return self.sums, self.back_sums, self.gamma, self.d_gamma, self.d_beta


@dataclass(frozen=True)
class Conv:
    """Convolution of one layer and the batch norm after it."""

    side: int  # height and width of the input
    n_in: int
    n_out: int
    stride: int
    weight: Tensor
    gradient: Tensor
    norm: Norm

    @property
    def key(self) -> tuple[int, int]:
        """Input and output channels, the key of the launch parameters."""
        return self.n_in, self.n_out

    @property
    def shape(self) -> dict[str, int]:
        """Sizes that kernels receive as constants: side of the input, input and output channels."""
        return {"SIDE": self.side, "CIN": self.n_in, "COUT": self.n_out}


@dataclass(frozen=True)
class Block:
    """Two convolutions and the optional 1 by 1 convolution of the shortcut."""

    conv1: Conv
    conv2: Conv
    project: tuple[Tensor, Tensor] | None  # weights and gradient of the 1 by 1 convolution
    side: int  # height and width of the output
    width: int


class Layers:
    """All layers of the ResNet-20 of one run.

    Parameters
    ----------
    layout : Layout
    weights : Weights
    side : int
        Height and width of the images.

    Attributes
    ----------
    pool : Tensor of float32, shape (size + n_sums,)
        Gradients of all weights, followed by all sums of the batch norms. It is zero at the start of a step.
    size, n_sums : int
        Lengths of the two parts of ``pool``.
    flat, low : Tensor
        The weights, and their copy in the type of the convolutions (``flat`` itself if that is float32).
    stem : Conv
        First convolution.
    blocks : list of Block
    head : tuple of Tensor
        Weights and bias of the last layer, and the gradients of both.
    n_classes : int
    """

    def __init__(self, layout: Layout, weights: Weights, side: int) -> None:
        norms = [
            shape.numel()
            for name, shape in zip(layout.stat_names, layout.stat_shapes, strict=True)
            if name.endswith("running_mean")
        ]
        self.size, self.n_sums = layout.size, 4 * COPIES * sum(norms)
        self.pool = torch.zeros(self.size + self.n_sums, device=weights.flat.device)
        self.flat = weights.flat
        self.low = weights.low if weights.low is not None else weights.flat
        self._starts = dict(zip(layout.names, layout.starts, strict=True))
        self._stats = dict(zip(layout.stat_names, weights.stats, strict=True))
        self._free_sums = layout.size
        self.stem = self._conv("stem", "norm", side, 3, _WIDTHS[0], 1)
        self.blocks = self._stages(side)
        w, b = self._starts["head.weight"], self._starts["head.bias"]
        self.head = self.flat[w:], self.flat[b:], self.pool[w:], self.pool[b:]
        self.n_classes: int = layout.shapes[layout.names.index("head.weight")][0]

    def _stages(self, side: int) -> list[Block]:
        blocks: list[Block] = []
        previous_width = _WIDTHS[0]
        for width in _WIDTHS:
            for _ in range(_DEPTH):
                stride = 1 if width == previous_width else 2
                blocks.append(self._block(f"stages.{len(blocks)}", side, previous_width, width, stride))
                side, previous_width = side // stride, width
        return blocks

    def _block(self, name: str, side: int, n_in: int, n_out: int, stride: int) -> Block:
        start = self._starts.get(f"{name}.project.weight")
        out = side // stride
        return Block(
            conv1=self._conv(f"{name}.conv1", f"{name}.norm1", side, n_in, n_out, stride),
            conv2=self._conv(f"{name}.conv2", f"{name}.norm2", out, n_out, n_out, 1),
            project=None if start is None else (self.low[start:], self.pool[start:]),
            side=out,
            width=n_out,
        )

    def _conv(self, conv: str, norm: str, side: int, n_in: int, n_out: int, stride: int) -> Conv:
        start = self._starts[f"{conv}.weight"]
        return Conv(side, n_in, n_out, stride, self.low[start:], self.pool[start:], self._norm(norm, n_out))

    def _norm(self, name: str, width: int) -> Norm:
        gamma, beta = self._starts[f"{name}.weight"], self._starts[f"{name}.bias"]
        sums, n = self._free_sums, 2 * COPIES * width
        self._free_sums += 2 * n
        return Norm(
            gamma=self.flat[gamma:],
            beta=self.flat[beta:],
            mean=self._stats[f"{name}.running_mean"],
            var=self._stats[f"{name}.running_var"],
            sums=self.pool[sums:],
            back_sums=self.pool[sums + n :],
            d_gamma=self.pool[gamma:],
            d_beta=self.pool[beta:],
        )
