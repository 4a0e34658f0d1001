"""Measure how well `estimate_transition` recovers label noise, and the calibration that results.

    python benchmarks/label_noise_estimates.py              (about five minutes)
    python benchmarks/label_noise_estimates.py --seeds 1 --only c10
    python benchmarks/label_noise_estimates.py --coverage   (intervals on simulated data, two minutes)

Noise is injected into the validation labels of real networks. The true labels of 20 validation rows per
observed class are known. Class-wise temperatures are then fitted with the clean labels, with the noisy
ones, with the true transition, with the estimated one, and with the trusted rows alone. All of them are
evaluated on clean test labels.

"uniform" replaces the labels of every second class by uniform ones, with the given probability; "pairs" swaps
the labels of classes 0 and 1, 2 and 3, and so on. The column "RMSE" is that of the noise rates, then of the
transition.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hetcal
from hetcal.label_noise import AmbiguousNoiseError, estimate_transition

ROOT = Path(__file__).parent.parent / "paper" / "results" / "logits"
FILES = (
    *("c10-clean-s0", "c10-noise-0-4-r0.30-s0", "c10-noise-all-r0.30-s0", "c10-under-0-4-r0.06-s0"),
    *("c10-few-n100-s0", "c100-noise-0-49-r0.30-s0", "c100-noise-0-49-r0.30-s1"),
)
SETTINGS = (("uniform", 0.0), ("uniform", 0.1), ("uniform", 0.2), ("uniform", 0.3), ("pairs", 0.2))
PER_CLASS = 20
METHODS = ("clean", "noisy", "known T", "estimated T", "trusted rows only")


def transition_of(kind: str, rate: float, n_classes: int) -> NDArray[np.float64]:
    """Transition matrix of one kind of noise."""
    if kind == "uniform":
        rates = np.where(np.arange(n_classes) % 2 == 0, rate, 0.0)
        return np.diag(1 - rates) + rates[:, None] / n_classes
    swapped = np.eye(n_classes)[np.arange(n_classes) ^ 1]
    return (1 - rate) * np.eye(n_classes) + rate * swapped


def redraw(
    labels: NDArray[np.int64], transition: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Observed labels for the true ones."""
    return (transition[labels].cumsum(axis=1) > rng.random(len(labels))[:, None]).argmax(axis=1)


def choose_trusted(
    true: NDArray[np.int64], observed: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """True labels of `PER_CLASS` rows with each observed label, and -1 for all others."""
    trusted = np.full(len(true), -1)
    for k in np.unique(observed):
        rows = rng.permutation(np.flatnonzero(observed == k))[:PER_CLASS]
        trusted[rows] = true[rows]
    return trusted


def score(logits: Any, labels: Any, transition: Any, test: Any, gamma: Any) -> tuple[float, float]:
    """ECE in percent and NLL on clean test rows of class-wise temperatures."""
    cal = hetcal.ClassWiseTemperatureScaling(gamma).fit(logits, labels, transition=transition)
    result = hetcal.evaluate(cal.predict_proba(test.logits), test.labels, n_redraws=1)
    return 100 * result.ece, result.nll


def noise_rates(transition: NDArray[np.float64]) -> NDArray[np.float64]:
    """Noise rates of the classes."""
    return (1 - np.diag(transition)) * len(transition) / (len(transition) - 1)


def rmse(difference: NDArray[np.float64]) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(difference**2)))


def measure(name: str, kind: str, rate: float, n_seeds: int, gamma: Any) -> None:
    """Print the results on one file with one kind of noise."""
    data = hetcal.load_logits(ROOT / f"{name}.npz")
    logits, true, test = data.val.logits, data.val.labels, data.test
    n_classes = logits.shape[1]
    scores, errors, seconds, outcomes = defaultdict(list), [], [], []
    for seed in range(n_seeds):
        rng = np.random.default_rng(seed)
        t = transition_of(kind, rate, n_classes)
        observed = redraw(true, t, rng)
        trusted = choose_trusted(true, observed, rng)
        start = time.perf_counter()
        estimate = estimate_transition(logits, observed, trusted=trusted)
        seconds.append(time.perf_counter() - start)
        errors.append((rmse(estimate.rates - noise_rates(t)), rmse(estimate.transition - t)))
        known = trusted >= 0
        fits = (
            (logits, true, None),
            (logits, observed, None),
            (logits, observed, t),
            (logits, observed, estimate),
        )
        for method, fit in zip(METHODS, (*fits, (logits[known], true[known], None)), strict=True):
            scores[method].append(score(*fit, test, gamma))
        try:
            alone = estimate_transition(logits, observed)
            outcomes.append(f"RMSE {rmse(alone.rates - noise_rates(t)):.3f}")
        except AmbiguousNoiseError:
            outcomes.append("refused")
    rate_error, t_error = np.mean(errors, axis=0)
    cells = [f"{ece:5.2f} {nll:.4f}" for ece, nll in (np.mean(scores[m], axis=0) for m in METHODS)]
    print(
        f"{name:<25}{kind:<8}{rate:>4.1f}  {rate_error:.3f} {t_error:.4f} | {' | '.join(cells)} | "
        f"{np.mean(seconds):.2f} s | {', '.join(outcomes)}",
        flush=True,
    )


def coverage(n_simulations: int) -> None:
    """Print the coverage of the 95% intervals of the noise rates, on data from the assumed model."""
    print(f"{'K':>4}{'rows':>7}{'trusted':>9}   coverage   mean width   RMSE")
    for n_classes, n, n_trusted in ((2, 1000, 40), (10, 2000, 200), (10, 10_000, 200), (100, 5000, 2000)):
        inside, width, error = [], [], []
        for seed in range(n_simulations if n_classes <= 10 else max(1, n_simulations // 10)):
            rng = np.random.default_rng(seed)
            logits = (
                2.5 * rng.normal(size=(n, n_classes)) + 4 * np.eye(n_classes)[rng.integers(0, n_classes, n)]
            )
            scale = np.exp(rng.normal(-0.2, 0.2, n_classes))[logits.argmax(axis=1), None]
            p = np.exp(scale * (logits - logits.max(axis=1, keepdims=True)))
            true = redraw(np.arange(n), p / p.sum(axis=1, keepdims=True), rng)
            rates = rng.choice([0.05, 0.2, 0.3], n_classes)
            t = np.diag(1 - rates) + rates[:, None] / n_classes
            observed = redraw(true, t, rng)
            rows = rng.choice(n, n_trusted, replace=False)
            estimate = estimate_transition(logits, observed, trusted=(rows, true[rows]))
            inside.append(np.mean((estimate.rates_low <= rates) & (rates <= estimate.rates_high)))
            width.append(np.mean(estimate.rates_high - estimate.rates_low))
            error.append(np.mean((estimate.rates - rates) ** 2))
        print(
            f"{n_classes:>4}{n:>7}{n_trusted:>9}{np.mean(inside):>11.3f}{np.mean(width):>13.3f}"
            f"{np.sqrt(np.mean(error)):>7.3f}",
            flush=True,
        )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="files whose names start with this")
    parser.add_argument("--bayes", action="store_true", help="shrink the temperatures of the classes")
    parser.add_argument("--coverage", action="store_true", help="measure the coverage of the intervals")
    options = parser.parse_args()
    warnings.simplefilter("ignore", hetcal.CalibrationWarning)
    if options.coverage:
        coverage(100)
        return
    gamma = "bayes" if options.bayes else np.inf
    head = " | ".join(f"{m:<12}" for m in METHODS)
    print(f"{'file':<25}{'noise':<12}  {'RMSE':<12} | {head} | time | predictions alone")
    print(f"{'':<51} | {' | '.join(['ECE %  NLL  '] * len(METHODS))} |")
    for name in FILES:
        if name.startswith(options.only):
            for kind, rate in SETTINGS:
                measure(name, kind, rate, options.seeds, gamma)


if __name__ == "__main__":
    main()
