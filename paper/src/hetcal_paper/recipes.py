"""How networks are trained: learning rates, weight decay, length, and when to stop waiting.

What the paper leaves open is fixed here: batch size 128; weight decay 2e-4 with Adam and 5e-4 with SGD,
added to the gradient of every parameter; momentum 0.9 (Nesterov).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RECIPES", "Recipe"]


@dataclass(frozen=True)
class Recipe:
    """How a network is trained; the rate drops at shares of the whole run.

    ``patience`` is a share of it, too: without a better validation accuracy for so long, a run has had its
    best epoch as far as early stopping is concerned. Zero means that it waits for the end.
    """

    rates: tuple[float, ...]
    drops: tuple[float, ...]
    weight_decay: float
    patience: float = 0.0
    epochs: int = 200
    batch_size: int = 128


RECIPES: dict[str, Recipe] = {
    "adam": Recipe(rates=(1e-3, 1e-4), drops=(80 / 200,), weight_decay=2e-4),
    "sgd": Recipe(
        rates=(0.1, 0.02, 0.004, 0.0008),
        drops=(60 / 200, 120 / 200, 160 / 200),
        weight_decay=5e-4,
        patience=60 / 200,  # the longest phase
    ),
}
