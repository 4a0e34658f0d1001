"""Networks as functions of flat weights.

All weights of a run are stored in one flat float32 tensor. One optimiser step therefore updates a single
tensor, and saving the weights copies a single tensor. Layers use views of the flat tensor, except that
convolutions on CUDA by default use views of its bfloat16 copy. The weights are arguments of the functions, so
runs with the same network share the compiled functions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812 - the conventional name

from hetcal_paper import networks

__all__ = ["Functions", "Layout", "Logits", "Loss", "Weights"]

_LOG = logging.getLogger(__name__)
_ALIGN = 64  # each parameter starts at an index divisible by this, because tensor cores need aligned data

Loss = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor, Tensor], Tensor]
Logits = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor], Tensor]


@dataclass(frozen=True)
class Layout:
    """Positions of the parameters of a network in one flat tensor.

    Attributes
    ----------
    names, shapes, starts : tuple
        Name, shape and index of the first element of each parameter, in the order of the module.
    size : int
        Length of the flat tensor. Padding between parameters stays zero.
    stat_names, stat_shapes : tuple
        Names and shapes of the running statistics of the batch norms.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    starts: tuple[int, ...]
    size: int
    stat_names: tuple[str, ...]
    stat_shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, network: nn.Module) -> Layout:
        """Return the layout of a module."""
        parameters, buffers = dict(network.named_parameters()), dict(network.named_buffers())
        starts, size = [], 0
        for parameter in parameters.values():
            starts.append(size)
            size += -(-parameter.numel() // _ALIGN) * _ALIGN
        return cls(
            names=tuple(parameters),
            shapes=tuple(p.shape for p in parameters.values()),
            starts=tuple(starts),
            size=size,
            stat_names=tuple(buffers),
            stat_shapes=tuple(b.shape for b in buffers.values()),
        )

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return the parameters as views of a flat tensor; weights of convolutions are channels-last."""
        views = []
        for shape, start in zip(self.shapes, self.starts, strict=True):
            piece = flat[start : start + shape.numel()]
            if len(shape) == 4:
                n_out, n_in, height, width = shape
                views.append(piece.view(n_out, height, width, n_in).permute(0, 3, 1, 2))
            else:
                views.append(piece.view(shape))
        return views

    def split_stats(self, stats: Tensor) -> list[Tensor]:
        """Return the running statistics as views of a flat tensor."""
        pieces = torch.split_with_sizes(stats, [shape.numel() for shape in self.stat_shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self.stat_shapes, strict=True)]


class Weights:
    """Weights of one run at fixed addresses, as used by the layers and by the optimiser.

    Parameters
    ----------
    layout : Layout
    device : torch.device
    dtype : torch.dtype
        Type of the convolutions. If it is not float32, convolutions use a copy of the weights in this type,
        which :meth:`refresh` updates.

    Attributes
    ----------
    flat : Tensor of float32, shape (layout.size,)
        All parameters. ``flat.grad`` has the same layout.
    low : Tensor or None
        Copy of ``flat`` in the type of the convolutions; None if that is float32.
    leaves : list of Tensor
        Parameters to differentiate: views of ``flat`` or, for convolutions, of ``low`` if it exists.
    stats : list of Tensor
        Running statistics of the batch norms.
    """

    def __init__(self, layout: Layout, device: torch.device, dtype: torch.dtype) -> None:
        self._layout = layout
        self.flat = torch.zeros(layout.size, device=device)
        self.flat.grad = torch.zeros(layout.size, device=device)
        self.stats = [torch.zeros(shape, device=device) for shape in layout.stat_shapes]
        leaves, gradients = layout.views(self.flat), layout.views(self.flat.grad)
        self.low = None if dtype == torch.float32 else torch.zeros(layout.size, dtype=dtype, device=device)
        if self.low is not None:
            lows = layout.views(self.low)
            leaves = [low if low.ndim == 4 else leaf for leaf, low in zip(leaves, lows, strict=True)]
        self.leaves = [leaf.detach().requires_grad_() for leaf in leaves]
        # Grouping gradients by type lets a single kernel copy each group to the gradient of the flat tensor.
        dtypes = dict.fromkeys(leaf.dtype for leaf in leaves)
        groups = [[i for i, leaf in enumerate(leaves) if leaf.dtype == dtype] for dtype in dtypes]
        self._groups = [(group, [gradients[i] for i in group]) for group in groups]

    def set_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Copy the gradients of the leaves into the gradient of the flat tensor."""
        for group, targets in self._groups:
            torch._foreach_copy_(targets, [gradients[i] for i in group])

    def refresh(self) -> None:
        """Update the low-precision copy after the flat tensor has changed."""
        if self.low is not None:
            self.low.copy_(self.flat)

    def copies(self) -> tuple[Tensor, Tensor]:
        """Return copies of the weights and of the running statistics, each as one flat tensor."""
        return self.flat.clone(), torch.cat([stat.flatten() for stat in self.stats])

    def load(self, flat: Tensor, stats: Tensor) -> None:
        """Overwrite the weights and the running statistics in place."""
        self.flat.copy_(flat)
        for target, source in zip(self.stats, self._layout.split_stats(stats), strict=True):
            target.copy_(source)
        self.refresh()


class Functions:
    """Loss and logits of one network, as functions that all its runs share.

    Parameters
    ----------
    name : str
        Key of ``networks.NETWORKS``.
    n_classes : int
    compiled : bool
        Whether to compile ``loss`` and ``logits`` with ``torch.compile``. ``exact_logits`` is never compiled.
    fused : bool
        Whether the hand-written kernels may replace ``loss`` and ``logits`` where they are available.
    """

    def __init__(self, name: str, n_classes: int, *, compiled: bool, fused: bool = True) -> None:
        self.name, self.n_classes, self.fused = name, n_classes, fused
        make = networks.network_class(name)
        with torch.device("meta"):
            training, evaluating = (make(n_classes) for _ in range(2))
        self.layout = Layout.of(training)
        self._loss = _loss_of(training.train(), self.layout)
        self.exact_logits = _logits_of(evaluating.eval(), self.layout)
        self.loss: Loss = self._loss
        self.logits: Logits = self.exact_logits
        if compiled:
            self.loss = torch.compile(self._loss, fullgraph=True, dynamic=False)
            self.logits = torch.compile(self.exact_logits, fullgraph=True, dynamic=False)
        self.compiled = compiled

    def simplify(self, error: Exception, *, fused: bool) -> bool:
        """After a failure, disable the hand-written kernels if ``fused`` is true, and compilation otherwise.

        Return whether there was anything to disable.
        """
        if fused:
            _LOG.warning("hand-written kernels failed for %s, continuing without them: %s", self.name, error)
            self.fused = False
            return True
        if self.compiled:
            _LOG.warning("torch.compile failed for %s, continuing without it: %s", self.name, error)
            self.loss, self.logits, self.compiled = self._loss, self.exact_logits, False
            return True
        return False

    def initial(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw initial weights; return the weights and the initial running statistics as flat CPU tensors."""
        network = networks.build(self.name, self.n_classes, generator)
        flat = torch.zeros(self.layout.size)
        with torch.no_grad():
            for view, parameter in zip(self.layout.views(flat), network.parameters(), strict=True):
                view.copy_(parameter)
        return flat, torch.cat([buffer.flatten() for buffer in network.buffers()])


def _loss_of(network: nn.Module, layout: Layout) -> Loss:
    """Return a function that computes the mean cross-entropy of a batch and updates running statistics."""

    def loss(weights: Sequence[Tensor], stats: Sequence[Tensor], x: Tensor, y: Tensor) -> Tensor:
        state = dict(zip(layout.names, weights, strict=True))
        state.update(zip(layout.stat_names, stats, strict=True))
        return F.cross_entropy(functional_call(network, state, (x,)), y)

    return loss


def _logits_of(network: nn.Module, layout: Layout) -> Logits:
    """Return a function that computes the logits of a batch with the running statistics."""

    def logits(weights: Sequence[Tensor], stats: Sequence[Tensor], x: Tensor) -> Tensor:
        state = dict(zip(layout.names, weights, strict=True))
        state.update(zip(layout.stat_names, stats, strict=True))
        return functional_call(network, state, (x,))  # type: ignore[no-any-return]

    return logits
