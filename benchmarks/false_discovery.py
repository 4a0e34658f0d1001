"""Measure the false discovery rate of `hetcal.diagnose`, and compare its p-values with SciPy's.

    python benchmarks/false_discovery.py                     (about half a minute)
    python benchmarks/false_discovery.py --simulations 300

The simulated classes are calibrated, so every flagged class is a false discovery. The fraction of simulations
with a flagged class is the false discovery rate. It must not exceed the level, 5%, by more than chance.
"""

from __future__ import annotations

import argparse
from functools import cache

import numpy as np
from scipy import stats

from hetcal import diagnosis

CLASSES, LEVEL = 100, 0.05
ROWS = (500, 2500, 10_000, 100_000)
CONFIDENCES = (0.9, 0.99, 0.999, 0.9999)
SHAPES = {"Beta(2, 1)": (2, 1, 8000), "Beta(5, 1)": (5, 1, 10_000), "Beta(30, 1)": (30, 1, 40_000)}
TAILS = (1e-2, 1e-5, 1e-8)


@cache
def p_value(rows: int, confidence: float, right: int) -> float:
    """Return the p-value of a class whose rows all have the same confidence."""
    return diagnosis._two_sided(np.full(rows, confidence), right)


def flagged(rows: int, confidence: float, simulations: int, rng: np.random.Generator) -> float:
    """Return the fraction of simulations in which Benjamini-Hochberg rejects any class."""
    right = rng.binomial(rows, confidence, size=(simulations, CLASSES))
    p = np.array([[p_value(rows, confidence, r) for r in counts] for counts in right.tolist()])
    return float((stats.false_discovery_control(p, axis=1) <= LEVEL).any(axis=1).mean())


def tail_errors(a: float, b: float, n: int, rng: np.random.Generator) -> tuple[float, list[float]]:
    """Return the variance of the number of right predictions, and the error of our p-value near each tail."""
    p = rng.beta(a, b, n)
    exact, variance = stats.poisson_binom(p), float((p * (1 - p)).sum())
    errors = []
    for tail in TAILS:
        z = stats.norm.isf(tail / 2) * np.sqrt(variance)
        low, high = int(p.sum() - z), int(p.sum() + z)
        truth = {low: 2 * exact.cdf(low), high: 2 * exact.sf(high - 1)}
        errors.append(max(abs(diagnosis._two_sided(p, s) / value - 1) for s, value in truth.items()))
    return variance, errors


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulations", type=int, default=2000)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    print(f"{CLASSES} calibrated classes, level {LEVEL:g}: fraction of simulations with a flagged class\n")
    print("| rows per class | " + " | ".join(f"confidence {c:g}" for c in CONFIDENCES) + " |")
    print("| --- " * (1 + len(CONFIDENCES)) + "|")
    for rows in ROWS:
        shares = [flagged(rows, c, options.simulations, rng) for c in CONFIDENCES]
        print(f"| {rows:,} | " + " | ".join(f"{share:.1%}" for share in shares) + " |", flush=True)
    print("\nRelative error of the p-value against scipy.stats.poisson_binom\n")
    print("| confidences | rows | variance | " + " | ".join(f"p ≈ {tail:g}" for tail in TAILS) + " |")
    print("| --- " * (3 + len(TAILS)) + "|")
    for name, (a, b, n) in SHAPES.items():
        variance, errors = tail_errors(a, b, n, rng)
        cells = [name, f"{n:,}", f"{variance:,.0f}", *(f"{error:.0e}" for error in errors)]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
