"""Measure the coverage of the confidence intervals in `hetcal.metrics`.

    python benchmarks/interval_coverage.py                   (about three minutes)
    python benchmarks/interval_coverage.py --only gap
    python benchmarks/interval_coverage.py --simulations 20  (faster and less precise)

Every simulation draws rows from a population with a known signed gap or ECE and computes 95% intervals. The
docstrings of `hetcal.metrics` and docs/noise-floors.md quote the results.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

import hetcal
from hetcal.metrics.binning import TopLabel
from hetcal.metrics.intervals import gap_bounds

Array = NDArray[np.float64]

LEVEL = 0.95
GAP_ROWS = (5, 10, 20, 50, 200, 1000)
MAX_ROWS = 1_000_000  # of all simulations of one population together; large classes get fewer simulations
SHAPES = (  # parameters of Beta-distributed confidences; small samples often miss the tails of the last three
    *((5, 1), (2, 2), (10, 2), (0.5, 0.5), (50, 1), (500, 1), (200, 5), (1, 0.3)),
    *((20, 0.5), (3, 0.2), (100, 0.3)),
)
LAWS: dict[str, Callable[[Array], Array]] = {  # probability of being right, given the confidence
    "calibrated": lambda p: p,
    "over by 0.1": lambda p: np.maximum(p - 0.1, 0),
    "over, p²": lambda p: p**2,
    "under, 1 − (1 − p)²": lambda p: 1 - (1 - p) ** 2,
    "accuracy 1": np.ones_like,
    "accuracy 0.99": lambda p: np.full_like(p, 0.99),
    "accuracy 0.7": lambda p: np.full_like(p, 0.7),
    "misleading, 1 − p": lambda p: 1 - p,
}

ECE_ROWS, BINS = (500, 2000), 15
GAPS = {  # confidence − probability of being right, by predicted class
    "calibrated": (0.0, 0.0, 0.0, 0.0),
    "all over by 0.02": (0.02, 0.02, 0.02, 0.02),
    "all over by 0.1": (0.1, 0.1, 0.1, 0.1),
    "one class over by 0.15": (0.15, 0.0, 0.0, 0.0),
    "calibrated, 50 classes": (0.0,) * 50,
    "25 of 50 classes over by 0.1": (0.0, 0.1) * 25,
}
METRICS = ("ece", "max_ece", "avg_ece")
METHODS = ("centred", "population", "basic", "percentile")


def gap_coverage(law: Callable[[Array], Array], n: int, simulations: int) -> list[tuple[float, float]]:
    """Return the coverage and mean width of the interval for each shape, with classes of `n` rows."""
    results = []
    for a, b in SHAPES:
        grid = stats.beta(a, b).ppf((np.arange(200_000) + 0.5) / 200_000)
        truth = float((grid - law(grid)).mean())
        rng = np.random.default_rng([n, round(10 * a), round(10 * b)])
        simulations = min(simulations, MAX_ROWS // n)
        p = rng.beta(a, b, simulations * n)
        simulation = np.repeat(np.arange(simulations), n)
        _, low, high = gap_bounds(TopLabel(p, simulation, rng.random(len(p)) < law(p), simulations), LEVEL)
        inside = (low <= truth + 1e-12) & (truth - 1e-12 <= high)
        results.append((float(inside.mean()), float((high - low).mean())))
    return results


def print_gaps(simulations: int) -> None:
    """Print the lowest coverage over the shapes, and the mean width, by number of rows and population."""
    print(f"Signed gap: lowest coverage over {len(SHAPES)} shapes of confidences (mean width)\n")
    print("| population | " + " | ".join(f"{n:,} rows" for n in GAP_ROWS) + " |")
    print("| --- " * (1 + len(GAP_ROWS)) + "|")
    coverages: dict[int, list[float]] = {n: [] for n in GAP_ROWS}
    for name, law in LAWS.items():
        cells = []
        for n in GAP_ROWS:
            results = gap_coverage(law, n, simulations)
            coverages[n] += [coverage for coverage, _ in results]
            cells.append(f"{min(results)[0]:.1%} ({np.mean([width for _, width in results]):.3f})")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print(
        "| lowest, mean | "
        + " | ".join(f"{min(c):.1%}, {np.mean(c):.1%}" for c in coverages.values())
        + " |\n"
    )


def draw(gaps: tuple[float, ...], n: int, rng: np.random.Generator) -> tuple[Array, NDArray[np.int64], Array]:
    """Draw confidences and predicted classes, and return the probabilities of being right."""
    predicted, p = rng.integers(len(gaps), size=n), 1 - 0.5 * rng.beta(1, 2, n)
    return p, predicted, p - np.array(gaps)[predicted]


def large_value(gaps: tuple[float, ...]) -> dict[str, float]:
    """Return the metrics of a very large test set."""
    p, predicted, prob_right = draw(gaps, 4_000_000, np.random.default_rng(1))
    bins = predicted * BINS + np.ceil(p * BINS).astype(np.int64) - 1
    table = np.bincount(bins, weights=p - prob_right, minlength=len(gaps) * BINS).reshape(-1, BINS)
    by_class = np.abs(table).sum(axis=1) / np.bincount(predicted)
    overall = np.abs(table.sum(axis=0)).sum() / len(p)
    return {"ece": float(overall), "max_ece": float(by_class.max()), "avg_ece": float(by_class.mean())}


def print_bootstrap(simulations: int) -> None:
    """Print the coverage of each method for a very large test set and for the mean at this size."""
    print(
        "Bootstrap: coverage of the value on a very large test set / of the mean over test sets of this size"
    )
    print("(mean width)\n")
    print("| population | rows | metric | large | mean | " + " | ".join(METHODS) + " |")
    print("| --- " * (5 + len(METHODS)) + "|")
    lowest = {method: [1.0, 1.0] for method in METHODS}
    for name, gaps in GAPS.items():
        truth = large_value(gaps)
        for n in ECE_ROWS:
            intervals: dict[str, list[Array]] = {method: [] for method in METHODS}
            estimates = []
            for seed in range(simulations):
                rng = np.random.default_rng([seed, n])
                p, predicted, prob_right = draw(gaps, n, rng)
                labels = np.where(rng.random(n) < prob_right, predicted, (predicted + 1) % len(gaps))
                for method in METHODS:
                    result = hetcal.bootstrap(
                        *(p, labels),
                        predicted=predicted,
                        n_bins=BINS,
                        n_resamples=200,
                        method=method,
                        rng=seed,
                    )
                    intervals[method].append(
                        np.array([[result.low[m], result.high[m]] for m in METRICS], float)
                    )
                estimates.append([result.estimate[m] for m in METRICS])
            mean = np.mean(estimates, axis=0)
            for i, metric in enumerate(METRICS):
                cells = []
                for method in METHODS:
                    low, high = np.array(intervals[method])[:, i].T
                    covered = [float(((low <= v) & (v <= high)).mean()) for v in (truth[metric], mean[i])]
                    lowest[method] = [min(pair) for pair in zip(lowest[method], covered, strict=True)]
                    cells.append(f"{covered[0]:.0%} / {covered[1]:.0%} ({(high - low).mean():.3f})")
                head = (name, f"{n:,}", metric, f"{truth[metric]:.3f}", f"{mean[i]:.3f}")
                print("| " + " | ".join([*head, *cells]) + " |", flush=True)
    cells = [f"{large:.0%} / {same:.0%}" for large, same in lowest.values()]
    print("| lowest | | | | | " + " | ".join(cells) + " |")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=["gap", "bootstrap"], help="print only one of the two tables")
    parser.add_argument(
        "--simulations",
        type=int,
        default=200,
        help="number of bootstrap simulations; up to 15 times as many for the gap",
    )
    options = parser.parse_args()
    if options.only != "bootstrap":
        print_gaps(15 * options.simulations)
    if options.only != "gap":
        print_bootstrap(options.simulations)


if __name__ == "__main__":
    main()
