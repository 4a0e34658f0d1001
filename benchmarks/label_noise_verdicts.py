"""Measure verdicts, intervals and floors of calibrated models on rows with noisy or soft labels.

    python benchmarks/label_noise_verdicts.py                     (about ten minutes)
    python benchmarks/label_noise_verdicts.py --simulations 20

The models are calibrated by construction: true labels are drawn from their probabilities, and observed labels
from the true ones through a known transition matrix T. Every flagged class is then a false discovery. The
tables compare `hetcal.diagnose` with and without ``transition=T``:

- any: share of simulations in which a class is flagged; it should be at most the level, 5%
- classes: mean share of the classes that are flagged
- cover: share of 95% intervals of the gap that contain the true gap, 0
- floor: mean floor divided by the mean of the metric over the simulations, for ECE and max-ECE; ideally 1
- power: share of simulations in which class 0 is found over-confident if it is, by 10 points

The last table is about soft labels. It compares `hetcal.diagnose` with a t-test of ``p̂ − q`` for every class,
which fails if all confidences are close to 1: if every vote agrees with the prediction, the variance is far
too small.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

import hetcal
from hetcal.diagnosis import Diagnosis, Verdict
from hetcal.metrics import ece, max_ece, noise_floor

Array = NDArray[np.float64]
LEVEL, GAP, REDRAWS = 0.05, 0.1, 50
SIZES = ((10, 100), (10, 1000), (100, 100))  # classes, rows per class


def confidences(n: int, k: int, rng: np.random.Generator) -> Array:
    """Return probabilities like those of a network, with a mean confidence of 0.79 (K = 10) or 0.67 (100)."""
    z = rng.normal(size=(n, k))
    z[np.arange(n), rng.integers(k, size=n)] += rng.gamma(2.0, 2.0 + np.log(k) / 2, size=n)
    p = np.exp(z - z.max(axis=1, keepdims=True)) + 1e-9
    return p / p.sum(axis=1, keepdims=True)


def nearly_certain(n: int, k: int, rng: np.random.Generator) -> Array:
    """Return probabilities with confidences between 0.985 and 0.995."""
    top, p = rng.uniform(0.985, 0.995, n), np.empty((n, k))
    p[:] = (1 - top[:, None]) / (k - 1)
    p[np.arange(n), rng.integers(k, size=n)] = top
    return p


def overconfident(p: Array) -> Array:
    """Return the true probabilities if the rows predicted as class 0 are over-confident by `GAP`."""
    truth, rows = p.copy(), p.argmax(axis=1) == 0
    top = np.maximum(p[rows, 0] - GAP, 0)
    truth[rows] *= ((1 - top) / (1 - p[rows, 0]))[:, None]
    truth[rows, 0] = top
    return truth


def draw(p: Array, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw one class per row."""
    total = p.cumsum(axis=1)
    return (total < rng.random((len(p), 1)) * total[:, -1:]).sum(axis=1)


def uniform(rate: float) -> Callable[[int], Array]:
    """Return a function of K: labels of the first half of the classes are redrawn with this rate."""
    return lambda k: np.eye(k) + np.where(np.arange(k)[:, None] < k // 2, rate, 0) * (1 / k - np.eye(k))


def asymmetric(k: int) -> Array:
    """Return the matrix that gives 30% of the labels of an even class to the next class."""
    t = np.eye(k)
    even = np.arange(0, k - 1, 2)
    t[even, even], t[even, even + 1] = 0.7, 0.3
    return t


NOISE = {"none": uniform(0), "10%": uniform(0.1), "30%": uniform(0.3), "to next class": asymmetric}


def flagged(result: Diagnosis) -> list[bool]:
    """Return for every predicted class whether it is flagged."""
    kinds = [c.kind for c in result.classes if c.n]
    return [kind in (Verdict.OVER_CONFIDENT, Verdict.UNDER_CONFIDENT) for kind in kinds]


def covered(result: Diagnosis) -> float:
    """Return the share of the intervals that contain 0."""
    return float(np.mean([c.gap_low <= 0 <= c.gap_high for c in result.classes if c.n]))


def judge_noise(k: int, rows: int, t: Array, given: Array | None, simulations: int) -> list[float]:
    """Return the columns of a row of the table, for labels noised by `t` and the argument `given`."""
    rng, n = np.random.default_rng(0), k * rows
    any_flag, share, cover, power, values, floors = [], [], [], [], [], []
    for seed in range(simulations):
        p = confidences(n, k, rng)
        labels = draw(t[draw(p, rng)], rng)
        options = {"transition": given, "n_redraws": 1}
        result = hetcal.diagnose(probs=p, labels=labels, **options)
        any_flag.append(any(flagged(result)))
        share.append(np.mean(flagged(result)))
        cover.append(covered(result))
        values.append([metric(p, labels, transition=given) for metric in (ece, max_ece)])
        floor = noise_floor(p, transition=given, n_redraws=REDRAWS, rng=seed)
        floors.append([floor.mean["ece"], floor.mean["max_ece"]])
        wrong = draw(t[draw(overconfident(p), rng)], rng)
        power.append(
            hetcal.diagnose(probs=p, labels=wrong, **options).classes[0].kind is Verdict.OVER_CONFIDENT
        )
    ratio = np.mean(floors, axis=0) / np.mean(values, axis=0)
    return [*(float(np.mean(a)) for a in (any_flag, share, cover)), *ratio.tolist(), float(np.mean(power))]


def votes(n_votes: int, spread: float) -> Callable[[Array, np.random.Generator], Array]:
    """Return a function that draws the votes of raters.

    The raters of a row agree on a distribution over the classes, which deviates from the model's by `spread`:
    they vote independently for 0, and all for the same class for infinity.
    """

    def draw_votes(p: Array, rng: np.random.Generator) -> Array:
        if spread == np.inf:
            return np.eye(p.shape[1])[draw(p, rng)] * n_votes
        q = p if spread == 0 else rng.gamma(p / spread + 1e-12)
        return rng.multinomial(n_votes, q / q.sum(axis=1, keepdims=True)).astype(np.float64)

    return draw_votes


SOFT = {
    "one vote": votes(1, 0),
    "3 independent votes": votes(3, 0),
    "50 independent votes": votes(50, 0),
    "50 votes, similar": votes(50, 3),
    "50 votes, one class": votes(50, np.inf),
}


def t_tests(p: Array, soft: Array) -> bool:
    """Return whether t-tests of ``p̂ − q`` flag a class."""
    guess, index = p.argmax(axis=1), np.arange(len(p))
    q = soft[index, guess] / soft.sum(axis=1)
    groups = [(p[index, guess] - q)[guess == k] for k in range(p.shape[1])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nearly equal residuals
        values = np.array([stats.ttest_1samp(group, 0).pvalue for group in groups if len(group) > 1])
    return bool((stats.false_discovery_control(np.nan_to_num(values, nan=1.0)) <= LEVEL).any())


def judge_soft(
    model: Callable[..., Array], k: int, rows: int, rate: Callable[..., Array], simulations: int
) -> list[float]:
    """Return the columns of a row of the table of soft labels."""
    rng, n = np.random.default_rng(0), k * rows
    any_flag, naive, cover, power, values, floors = [], [], [], [], [], []
    for seed in range(simulations):
        p = model(n, k, rng)
        soft = rate(p, rng)
        result = hetcal.diagnose(probs=p, labels=soft, n_redraws=1)
        any_flag.append(any(flagged(result)))
        naive.append(t_tests(p, soft))
        cover.append(covered(result))
        values.append([metric(p, soft) for metric in (ece, max_ece)])
        floor = noise_floor(p, labels=soft, n_redraws=REDRAWS, rng=seed)
        floors.append([floor.mean["ece"], floor.mean["max_ece"]])
        wrong = hetcal.diagnose(probs=p, labels=rate(overconfident(p), rng), n_redraws=1)
        power.append(wrong.classes[0].kind is Verdict.OVER_CONFIDENT)
    ratio = np.mean(floors, axis=0) / np.mean(values, axis=0)
    return [*(float(np.mean(a)) for a in (any_flag, naive, cover)), *ratio.tolist(), float(np.mean(power))]


def print_row(names: list[str], values: list[float]) -> None:
    """Print a row; floors are ratios, the other columns shares."""
    cells = [f"{v:.2f}" if i in (3, 4) else f"{v:.1%}" for i, v in enumerate(values)]
    print("| " + " | ".join([*names, *cells]) + " |", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulations", type=int, default=200)
    n_simulations = parser.parse_args().simulations
    print(f"Noisy labels, {n_simulations} simulations\n")
    print(
        "| classes | rows per class | noise | transition | any | classes | cover | floor ECE | floor max-ECE "
        "| power |"
    )
    print("| --- " * 10 + "|")
    for k, rows in SIZES:
        for name, matrix in NOISE.items():
            for is_given in (False, True):
                t = matrix(k)
                values = judge_noise(k, rows, t, t if is_given else None, n_simulations)
                print_row([str(k), f"{rows:,}", name, "yes" if is_given else "no"], values)
    print(f"\nSoft labels, {n_simulations} simulations\n")
    print(
        "| confidence | classes | rows per class | labels | any | any (t-test) | cover | floor ECE "
        "| floor max-ECE | power |"
    )
    print("| --- " * 10 + "|")
    for confidence, model, k, rows in (
        ("mixed", confidences, 10, 30),
        ("mixed", confidences, 10, 1000),
        ("mixed", confidences, 100, 100),
        ("about 0.99", nearly_certain, 10, 100),
    ):
        for name, rate in SOFT.items():
            values = judge_soft(model, k, rows, rate, n_simulations)
            print_row([confidence, str(k), f"{rows:,}", name], values)


if __name__ == "__main__":
    main()
