"""Benchmark a complete evaluation against one calibration error of torchmetrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peers
from problems import make_rows, name_of, softmax
from timing import Row, compare, speeds

import hetcal

__all__ = ["measure_evaluation"]

_NOTES = {
    "torchmetrics": "multiclass_calibration_error, 15 bins, l1",
    "hetcal ece": "the same metric",
    "hetcal evaluate": "scores, five calibration errors, a table per class, floors from 200 simulations",
}


def measure_evaluation(n: int, k: int, *, repeats: int, patience: float) -> list[Row]:
    """Measure all metrics of hetcal with noise floors, its ECE alone, and the ECE of torchmetrics."""
    z, y = make_rows(n, k)
    p = softmax(z)
    works: dict[str, Callable[[], Any]] = {
        "hetcal evaluate": lambda: hetcal.evaluate(p, y),
        "hetcal ece": lambda: hetcal.metrics.ece(p, y),
    }
    theirs = _torchmetrics(p, y, k)
    with peers.quiet():
        times = compare({**theirs, **works}, repeats=repeats, patience=patience)
    ratios = speeds({name: time.seconds for name, time in times.items()}, theirs)
    values = {name: getattr(time.value, "ece", time.value) for name, time in times.items()}
    return [
        Row(
            *("evaluation", name_of(n, k), name, time.seconds, ratios[name], _NOTES[name]),
            {"ece": float(values[name]), **time.spread()},
        )
        for name, time in times.items()
    ]


def _torchmetrics(p: Any, y: Any, k: int) -> dict[str, Callable[[], Any]]:
    if not peers.is_installed("torchmetrics"):
        return {}
    import torch
    from torchmetrics.functional.classification import multiclass_calibration_error

    probs, labels = torch.from_numpy(p), torch.from_numpy(y)
    return {
        "torchmetrics": lambda: float(
            multiclass_calibration_error(probs, labels, num_classes=k, n_bins=15, norm="l1")
        )
    }
