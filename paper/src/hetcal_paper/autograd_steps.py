"""Training steps of any network by autograd and PyTorch's own optimisers."""

from __future__ import annotations

import torch
from torch import Tensor

from hetcal_paper.functional import Functions, Weights
from hetcal_paper.runs import RECIPES, Run

__all__ = ["AutogradSteps", "largest_divisor"]

_EVALUATION_BATCH = 1000


class AutogradSteps:
    """Steps of one run on buffers that never move; see :class:`~hetcal_paper.fused.FusedSteps`.

    Parameters
    ----------
    run : Run
        Gives the recipe.
    functions : Functions
        The network.
    weights : Weights
        Of the run.
    inputs, targets : Tensor
        Images (n, 32, 32, 3) and labels (n,) of an epoch, in the order of training.
    next_row : Tensor
        Where the next batch starts; each step moves it on.
    report : Tensor, shape (2,)
        Steps add their mean loss to the first element, evaluation its hits to the second.
    batch : int
        Rows in a step.
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
        self._within = torch.arange(batch, device=inputs.device)
        self._optimiser = _optimiser(run, weights.flat)

    @property
    def memory(self) -> dict[str, Tensor]:
        """State of the optimiser; there after the first step, all zero at the start of a run."""
        return dict(self._optimiser.state[self._weights.flat])

    def set_rate(self, rate: float) -> None:
        """Change the learning rate, in place where a graph reads it."""
        group = self._optimiser.param_groups[0]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate

    def step(self) -> None:
        """Take the next batch of the epoch's buffer and make one step of the optimiser."""
        rows = self._next + self._within
        x = self._inputs.index_select(0, rows).permute(0, 3, 1, 2)
        y = self._targets.index_select(0, rows)
        loss = self._functions.loss(self._weights.leaves, self._weights.stats, x, y)
        gradients = torch.autograd.grad(loss, self._weights.leaves)
        with torch.no_grad():
            self._weights.take(gradients)
            self._optimiser.step()
            self._weights.refresh()
            self._report[0].add_(loss)
            self._next.add_(self._batch)

    @torch.no_grad()
    def evaluate(self, images: Tensor, labels: Tensor) -> None:
        """Count the rows that are classified right."""
        size = largest_divisor(len(images), _EVALUATION_BATCH)
        for start in range(0, len(images), size):
            x = images[start : start + size].permute(0, 3, 1, 2)
            logits = self._functions.logits(self._weights.leaves, self._weights.stats, x)
            self._report[1].add_((logits.argmax(1) == labels[start : start + size]).sum())


def largest_divisor(n: int, limit: int) -> int:
    """Largest divisor of ``n`` up to ``limit``: batches of one size need one compilation."""
    return max(d for d in range(1, min(n, limit) + 1) if n % d == 0)


def _optimiser(run: Run, flat: Tensor) -> torch.optim.Optimizer:
    """Make the optimiser of a recipe; on CUDA fused, with a learning rate that lives there."""
    fused = flat.is_cuda
    first = RECIPES[run.recipe].rates[0]
    lr = torch.tensor(first, device=flat.device) if fused else first
    if run.recipe == "adam":
        return torch.optim.Adam([flat], lr=lr, weight_decay=run.weight_decay, fused=fused, capturable=fused)
    return torch.optim.SGD(
        [flat], lr=lr, momentum=0.9, nesterov=True, weight_decay=run.weight_decay, fused=fused
    )
