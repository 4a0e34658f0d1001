"""ResNet-20 and WideResNet-28-10 for 32 by 32 images, and a tiny network for tests.

All networks map images of shape (n, 3, 32, 32) to logits of shape (n, n_classes). Convolutions have no bias.
The weights of convolutions and of linear layers use He initialisation (normal, variance 2 / fan-in). Batch
norms use momentum 0.1 and epsilon 1e-5. Global average pooling and the last layer are computed in float32, so
that logits are not rounded to bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the conventional name

__all__ = ["NETWORKS", "build", "network_class"]


def build(name: str, n_classes: int, generator: torch.Generator | None = None) -> nn.Module:
    """Create a network with random weights, on the CPU, in training mode.

    Parameters
    ----------
    name : {"resnet20", "wrn28x10", "tiny"}
    n_classes : int
        Number of logits.
    generator : torch.Generator, optional
        Source of randomness; by default a generator with seed 0.

    Returns
    -------
    torch.nn.Module
    """
    make = network_class(name)
    if n_classes < 2:
        raise ValueError(f"n_classes must be 2 or more, got {n_classes}; pass the number of classes")
    # The meta device skips PyTorch's own initialisation, which would use the global generator.
    with torch.device("meta"):
        network = make(n_classes)
    network.to_empty(device="cpu")
    _initialise(network, generator if generator is not None else torch.Generator().manual_seed(0))
    return network


def network_class(name: str) -> Callable[[int], nn.Module]:
    """Return the class of the network with this name."""
    if name not in NETWORKS:
        raise ValueError(f'network must be one of {", ".join(NETWORKS)}, got "{name}"; check the spelling')
    return NETWORKS[name]


class BasicBlock(nn.Module):
    """Two 3 by 3 convolutions and a shortcut (He et al., 2016).

    Where the shape changes, the shortcut is a 1 by 1 convolution without batch norm, as in the ResNet example
    of Keras.
    """

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv(n_in, n_out, 3, stride), _norm(n_out)
        self.conv2, self.norm2 = _conv(n_out, n_out, 3), _norm(n_out)
        self.project = _conv(n_in, n_out, 1, stride) if stride != 1 or n_in != n_out else None

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, n_in, h, w) to (n, n_out, h / stride, w / stride)."""
        shortcut = x if self.project is None else self.project(x)
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(h)) + shortcut)


class ResNet20(nn.Module):
    """Three stages of three blocks with 16, 32 and 64 channels; 0.27 million parameters for 10 classes."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.stem, self.norm = _conv(3, 16, 3), _norm(16)
        self.stages = nn.Sequential(
            *_stage(BasicBlock, 16, 16, 3, stride=1),
            *_stage(BasicBlock, 16, 32, 3, stride=2),
            *_stage(BasicBlock, 32, 64, 3, stride=2),
        )
        self.head = nn.Linear(64, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (n, n_classes) of images (n, 3, 32, 32)."""
        return _classify(self.stages(F.relu(self.norm(self.stem(x)))), self.head)


class WideBlock(nn.Module):
    """Pre-activation block of Zagoruyko and Komodakis (2016), without dropout."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = _norm(n_in), _conv(n_in, n_out, 3, stride)
        self.norm2, self.conv2 = _norm(n_out), _conv(n_out, n_out, 3)
        self.project = _conv(n_in, n_out, 1, stride) if stride != 1 or n_in != n_out else None

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, n_in, h, w) to (n, n_out, h / stride, w / stride)."""
        h = F.relu(self.norm1(x))
        shortcut = x if self.project is None else self.project(h)
        h = F.relu(self.norm2(self.conv1(h)))
        return self.conv2(h) + shortcut  # type: ignore[no-any-return]


class WideResNet28x10(nn.Module):
    """Three stages of four blocks with 160, 320 and 640 channels; 36.5 million parameters."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.stem = _conv(3, 16, 3)
        self.stages = nn.Sequential(
            *_stage(WideBlock, 16, 160, 4, stride=1),
            *_stage(WideBlock, 160, 320, 4, stride=2),
            *_stage(WideBlock, 320, 640, 4, stride=2),
        )
        self.norm = _norm(640)
        self.head = nn.Linear(640, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (n, n_classes) of images (n, 3, 32, 32)."""
        return _classify(F.relu(self.norm(self.stages(self.stem(x)))), self.head)


class Tiny(nn.Module):
    """Two strided convolutions with batch norm, for tests; training takes seconds on a CPU."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv(3, 8, 3, 4), _norm(8)
        self.conv2, self.norm2 = _conv(8, 16, 3, 2), _norm(16)
        self.head = nn.Linear(16, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (n, n_classes) of images (n, 3, 32, 32)."""
        h = F.relu(self.norm1(self.conv1(x)))
        return _classify(F.relu(self.norm2(self.conv2(h))), self.head)


#: All networks by name.
NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "resnet20": ResNet20,
    "wrn28x10": WideResNet28x10,
    "tiny": Tiny,
}


def _conv(n_in: int, n_out: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Return a convolution without bias; with stride 1, its padding preserves height and width."""
    return nn.Conv2d(n_in, n_out, size, stride=stride, padding=size // 2, bias=False)


def _norm(n: int) -> nn.BatchNorm2d:
    """Return a batch norm without the batch counter, which would cost a kernel launch per step."""
    norm = nn.BatchNorm2d(n, eps=1e-5, momentum=0.1)
    norm.num_batches_tracked = None
    return norm


def _stage(block: Any, n_in: int, n_out: int, depth: int, *, stride: int) -> list[nn.Module]:
    """Return the blocks of one stage; only the first block can change the shape."""
    return [block(n_in, n_out, stride), *(block(n_out, n_out, 1) for _ in range(depth - 1))]


def _classify(features: Tensor, head: nn.Linear) -> Tensor:
    """Apply global average pooling and the last layer, in float32."""
    return head(features.float().mean((2, 3)))  # type: ignore[no-any-return]


@torch.no_grad()
def _initialise(network: nn.Module, generator: torch.Generator) -> None:
    """Initialise all parameters and running statistics, in the order of the modules."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu", generator=generator)
        if isinstance(module, nn.Linear):
            module.bias.zero_()
        if isinstance(module, nn.BatchNorm2d):
            for key, value in module.state_dict(keep_vars=True).items():
                value.fill_(1.0 if key in ("weight", "running_var") else 0.0)
