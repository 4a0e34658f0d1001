"""Choose the step size of AutoCalibrator's final class-wise Platt scaling.

    python benchmarks/last_step.py           on the design problems (about three minutes)
    python benchmarks/last_step.py --others  on the other problems, without text

Every fit is evaluated with step sizes from 0 (no final step) to 1 (the full step). In addition, the step is
always shrunk by the same factor as the weights of the mixture.
"""

from __future__ import annotations

import argparse
import os
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
from study import MAX_TEST_ROWS, SIZES
from study_data import Pool, pools

import hetcal
from hetcal.calibrators import auto

STEP_SIZES = (0.0, 0.25, 1 / 3, 0.5, 0.75, 1.0)
IDENTITY = np.array([1.0, 0.0])  # slope and intercept of the identity


def evaluate(pool: Pool, size: int, split: int) -> list[tuple[float, ...]]:
    """Return NLL and the excess of ECE, max-ECE and Avg-ECE for every step size."""
    warnings.simplefilter("ignore")
    auto._FINAL_STRENGTH = 1.0
    order = np.random.default_rng([split, size, 7]).permutation(len(pool.labels))
    n = size * pool.n_classes
    fit, rest = order[:n], order[max(n, len(order) // 2) :][:MAX_TEST_ROWS]
    model = hetcal.AutoCalibrator().fit(pool.logits[fit], pool.labels[fit])
    last = model.best_.steps_[1] if model.has_final_step_ else None
    parameters = None if last is None else last.parameters_
    scores = []
    for step_size in STEP_SIZES:
        if last is not None and parameters is not None:
            last.parameters_ = IDENTITY + step_size * (parameters - IDENTITY)
        e = hetcal.evaluate(model.predict_proba(pool.logits[rest]), pool.labels[rest], n_redraws=30, rng=0)
        scores.append((e.nll, *(getattr(e, m) - e.floor[m] for m in ("ece", "max_ece", "avg_ece"))))
    return scores


def main() -> None:
    """Print one line per step size: NLL relative to step size 0, and excesses, by rows per class."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--others", action="store_true", help="use the other problems, without text")
    parser.add_argument("--splits", type=int, default=5, help="random splits per problem and size")
    options = parser.parse_args()
    selected_pools = [pool for pool in pools(None) if pool.design != options.others]
    tasks: list[tuple[Any, ...]] = [
        (pool, size, split)
        for pool in selected_pools
        for size in SIZES
        if size * pool.n_classes <= len(pool.labels) // 2
        for split in range(options.splits)
    ]
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        scores = np.array(list(workers.map(evaluate, *zip(*tasks, strict=True))))
    sizes = np.array([size for _, size, _ in tasks])
    print(
        f"{len(selected_pools)} problems; 1000 × NLL difference (excess of ECE, max-ECE, Avg-ECE in points)"
    )
    for i, step_size in enumerate(STEP_SIZES):
        cells = []
        for size in np.unique(sizes):
            selected = scores[sizes == size]
            nll = 1000 * (selected[:, i, 0] - selected[:, 0, 0]).mean()
            cells.append(
                f"{nll:+6.2f} ({', '.join(f'{v:.2f}' for v in 100 * selected[:, i, 1:].mean(axis=0))})"
            )
        print(f"step size {step_size:.2f}: " + "  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
