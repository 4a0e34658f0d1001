"""Training steps of any network, computed with autograd and PyTorch's optimisers."""

from __future__ import annotations

import torch
from torch import Tensor

from hetcal_paper.runs import RECIPES, Run
from hetcal_paper.weights import Functions, Weights

__all__ = ["AutogradSteps", "largest_divisor"]

_EVALUATION_BATCH = 1000


class AutogradSteps:
    """Training steps of one run, computed with autograd.

    The images, the labels, the weights and the state of the optimiser stay at fixed addresses, as CUDA graphs
    require.
    :class:`~hetcal_paper.kernels.FusedSteps` has the same public members and some more, so a trainer can use
    either class.

    Parameters
    ----------
    run : Run
    functions : Functions
    weights : Weights
    inputs, targets : Tensor
        Images (n, 32, 32, 3) and labels (n,) of an epoch, in training order.
    next_row : Tensor
        Index of the first row of the next batch. Each step increases it by ``batch``.
    report : Tensor, shape (2,)
        Each step adds the mean loss of its batch to the first element. Evaluation adds the number of
        correctly classified rows to the second element.
    batch : int
        Batch size.
    """

    def __init__(
        self,
        run: Run,
        functions: Functions,
        weights: Weights,
        inputs: Tensor,
        targets: Tensor,
        next_row: Tensor,
        report: Tensor,
        *,
        batch: int,
    ) -> None:
        self._functions, self._weights = functions, weights
        self._inputs, self._targets, self._next, self._report = inputs, targets, next_row, report
        self._batch = batch
        self._offsets = torch.arange(batch, device=inputs.device)
        self._optimiser = _optimiser(run, weights.flat)

    @property
    def memory(self) -> dict[str, Tensor]:
        """State tensors of the optimiser by name; empty before the first step."""
        return dict(self._optimiser.state[self._weights.flat])

    def set_rate(self, rate: float) -> None:
        """Set the learning rate; on CUDA in place, because CUDA graphs read it from a fixed address."""
        group = self._optimiser.param_groups[0]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate

    def step(self) -> None:
        """Run one optimiser step on the next batch."""
        rows = self._next + self._offsets
        x = self._inputs.index_select(0, rows).permute(0, 3, 1, 2)
        y = self._targets.index_select(0, rows)
        loss = self._functions.loss(self._weights.leaves, self._weights.stats, x, y)
        gradients = torch.autograd.grad(loss, self._weights.leaves)
        with torch.no_grad():
            self._weights.set_gradients(gradients)
            self._optimiser.step()
            self._weights.refresh()
            self._report[0].add_(loss)
            self._next.add_(self._batch)

    @torch.no_grad()
    def evaluate(self, images: Tensor, labels: Tensor) -> None:
        """Add the number of correctly classified rows to the second element of ``report``."""
        size = largest_divisor(len(images), _EVALUATION_BATCH)
        for start in range(0, len(images), size):
            x = images[start : start + size].permute(0, 3, 1, 2)
            logits = self._functions.logits(self._weights.leaves, self._weights.stats, x)
            self._report[1].add_((logits.argmax(1) == labels[start : start + size]).sum())


def largest_divisor(n: int, limit: int) -> int:
    """Return the largest divisor of ``n`` that is at most ``limit``.

    As a batch size, this divisor gives all batches the same shape, so the network is compiled only once.
    """
    return max(d for d in range(1, min(n, limit) + 1) if n % d == 0)


def _optimiser(run: Run, flat: Tensor) -> torch.optim.Optimizer:
    """Create the optimiser of a run; on CUDA it is fused and reads the learning rate from the device."""
    fused = flat.is_cuda
    first_rate = RECIPES[run.recipe].rates[0]
    lr = torch.tensor(first_rate, device=flat.device) if fused else first_rate
    if run.recipe == "adam":
        return torch.optim.Adam([flat], lr=lr, weight_decay=run.weight_decay, fused=fused, capturable=fused)
    return torch.optim.SGD(
        [flat], lr=lr, momentum=0.9, nesterov=True, weight_decay=run.weight_decay, fused=fused
    )
