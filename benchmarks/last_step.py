"""How far AutoCalibrator's last step, class-wise Platt scaling behind the mixture, should go.

    python benchmarks/last_step.py           on the problems that Auto was designed on (about three minutes)
    python benchmarks/last_step.py --others  on the others, without text

One fit is judged with the last step taken 0 to 1 of the way; the trust in the weights counts in all of them.
"""

from __future__ import annotations

import argparse
import os
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
from study import MOST_JUDGED, SIZES
from study_data import Pool, pools

import hetcal
from hetcal.calibrators import auto

WAYS = (0.0, 0.25, 1 / 3, 0.5, 0.75, 1.0)
SAME = np.array([1.0, 0.0])  # slope and intercept that change nothing


def judge(pool: Pool, size: int, split: int) -> list[tuple[float, ...]]:
    """NLL and excess of ECE, max-ECE and Avg-ECE for every way."""
    warnings.simplefilter("ignore")
    auto._FINAL_STRENGTH = 1.0
    order = np.random.default_rng([split, size, 7]).permutation(len(pool.labels))
    n = size * pool.n_classes
    fit, rest = order[:n], order[max(n, len(order) // 2) :][:MOST_JUDGED]
    model = hetcal.AutoCalibrator().fit(pool.logits[fit], pool.labels[fit])
    last = model.best_.steps_[1] if model.best_name_.endswith(auto.THEN) else None
    whole = None if last is None else last.parameters_
    found = []
    for way in WAYS:
        if last is not None and whole is not None:
            last.parameters_ = SAME + way * (whole - SAME)
        e = hetcal.evaluate(model.predict_proba(pool.logits[rest]), pool.labels[rest], n_redraws=30, rng=0)
        found.append((e.nll, *(getattr(e, m) - e.floor[m] for m in ("ece", "max_ece", "avg_ece"))))
    return found


def main() -> None:
    """Print a line per way: NLL less that of no last step, and what is left over the floors, by size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--others", action="store_true")
    parser.add_argument("--splits", type=int, default=5)
    options = parser.parse_args()
    chosen = [pool for pool in pools(None) if pool.design != options.others]
    tasks: list[tuple[Any, ...]] = [
        (pool, size, split)
        for pool in chosen
        for size in SIZES
        if size * pool.n_classes <= len(pool.labels) // 2
        for split in range(options.splits)
    ]
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        found = np.array(list(workers.map(judge, *zip(*tasks, strict=True))))
    sizes = np.array([size for _, size, _ in tasks])
    print(f"{len(chosen)} problems; NLL less none in thousandths (excess of ECE, max-ECE, Avg-ECE in points)")
    for i, way in enumerate(WAYS):
        cells = []
        for size in np.unique(sizes):
            mine = found[sizes == size]
            nll = 1000 * (mine[:, i, 0] - mine[:, 0, 0]).mean()
            cells.append(f"{nll:+6.2f} ({', '.join(f'{v:.2f}' for v in 100 * mine[:, i, 1:].mean(axis=0))})")
        print(f"{way:.2f} of the way: " + "  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
