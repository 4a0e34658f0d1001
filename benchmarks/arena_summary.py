"""Statistics of the arena's results: win rates, differences, ranks and worst cases.

A pair is one split of one problem. A method that failed or exceeded the time limit loses against every method
that did not. Intervals resample data sets instead of pairs, because pairs of one data set are similar.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from arena_run import problems_path
from scipy.stats import studentized_range

__all__ = [
    "SUBSETS",
    "Ranks",
    "Rate",
    "WorstCase",
    "compare_with_baseline",
    "log_losses",
    "mean_ranks",
    "read_results",
    "subset",
    "summary_text",
    "win_rates",
    "worst_case",
]

#: Conditions on the lines of the results, by the names of the subsets.
SUBSETS: dict[str, Callable[[pd.DataFrame], pd.Series]] = {
    "all": lambda results: results["classes"] >= 2,
    "2 classes": lambda results: results["classes"] == 2,
    "3 to 20 classes": lambda results: results["classes"].between(3, 20),
    "more than 20 classes": lambda results: results["classes"] > 20,
    "no zeros": lambda results: results["zeros"] == 0,
}
_TIE = 1e-9
_RELEVANT = 1e-3
_N_RESAMPLES = 2000


@dataclass(frozen=True)
class Rate:
    """How often a method has a lower log-loss than another one; ties count half.

    `mean` and `median` summarise the differences in log-loss over the pairs where both methods succeeded.
    """

    other: str
    n_pairs: int
    rate: float
    low: float
    high: float
    mean: float
    median: float


@dataclass(frozen=True)
class WorstCase:
    """The pair where a method is worst compared with one temperature, in paired standard errors.

    `n_significant` counts the pairs where it is worse by more than two standard errors, and `n_relevant`
    those among them where the difference in log-loss exceeds 0.001.
    """

    problem: str
    split: int
    difference: float
    standard_errors: float
    n_significant: int
    n_relevant: int


@dataclass(frozen=True)
class Ranks:
    """Mean ranks of the methods, averaged within data sets first, and the critical difference at 5%."""

    ranks: pd.Series
    n_datasets: int
    critical_difference: float


def read_results(path: Path) -> pd.DataFrame:
    """Read a file of results and the file that describes its problems."""
    problems = pd.read_csv(problems_path(path))
    return pd.read_csv(path).merge(problems, on=["problem", "split"], validate="many_to_one")


def subset(results: pd.DataFrame, name: str) -> pd.DataFrame:
    """Select the lines of one of `SUBSETS`."""
    return results[SUBSETS[name](results)]


def log_losses(results: pd.DataFrame) -> pd.DataFrame:
    """Return log-losses with one line per pair and one column per method.

    Failures are infinite. Methods that are not defined for a problem are missing.
    """
    losses = results.assign(log_loss=results["log_loss"].where(results["status"] == "ok", math.inf))
    return losses.set_index(["dataset", "problem", "split", "method"])["log_loss"].unstack("method")


def win_rates(results: pd.DataFrame, method: str, *, rng: int = 0) -> list[Rate]:
    """Compare a method with every other one, in the order of the win rates."""
    losses = log_losses(results)
    if method not in losses:
        return []
    others = [other for other in losses if other != method]
    return sorted((_rate(losses, method, other, rng) for other in others), key=lambda rate: rate.rate)


def worst_case(results: pd.DataFrame, method: str) -> WorstCase | None:
    """Return the worst case of a method compared with one temperature."""
    lines = results[(results["method"] == method) & (results["status"] == "ok")]
    if lines.empty:
        return None
    errors = lines["difference"] / lines["difference_se"].where(lines["difference_se"] > 0, math.inf)
    worst = lines.loc[errors.idxmax()]
    return WorstCase(
        str(worst["problem"]),
        int(worst["split"]),
        float(worst["difference"]),
        float(errors.max()),
        int((errors > 2).sum()),
        int(((errors > 2) & (lines["difference"] > _RELEVANT)).sum()),
    )


def mean_ranks(results: pd.DataFrame) -> Ranks:
    """Rank the methods that are defined for all problems; failures rank last."""
    losses = log_losses(results).dropna(axis=1)
    ranks = losses.rank(axis=1).groupby(level="dataset").mean()
    n_methods, n_datasets = ranks.shape[1], len(ranks)
    quantile = studentized_range.ppf(0.95, n_methods, np.inf) / math.sqrt(2)
    critical = quantile * math.sqrt(n_methods * (n_methods + 1) / (6 * n_datasets))
    return Ranks(ranks.mean().sort_values(), n_datasets, critical)


def compare_with_baseline(results: pd.DataFrame) -> pd.DataFrame:
    """Return one line per method: differences to one temperature, other scores, times and failures."""
    ok = results[results["status"] == "ok"]
    by_method = ok.groupby("method")
    table = pd.DataFrame(
        {
            "pairs": results.groupby("method").size(),
            "failed": results.groupby("method").size() - by_method.size(),
            **{name: subset(ok, name).groupby("method")["difference"].mean() for name in SUBSETS},
            "median": by_method["difference"].median(),
            "brier": by_method["brier"].mean(),
            "ece": by_method["ece"].mean(),
            "smooth_ece": by_method["smooth_ece"].mean(),
            "accuracy": by_method["accuracy"].mean(),
            "changed": by_method["changed"].mean(),
            "fit_seconds": by_method["fit_seconds"].median(),
            "predict_seconds": by_method["predict_seconds"].median(),
            "peak_mb": by_method["peak_mb"].max(),
        }
    )
    table["failed"] = table["failed"].fillna(table["pairs"]).astype(int)
    return table.sort_values("all")


def summary_text(results: pd.DataFrame) -> str:
    """Return the table of differences to one temperature as text."""
    with pd.option_context("display.width", 250, "display.max_columns", 30, "display.max_rows", 99):
        return compare_with_baseline(results).to_string(float_format="{:.4f}".format)


def _rate(losses: pd.DataFrame, method: str, other: str, rng: int) -> Rate:
    pairs = losses[[method, other]].dropna()
    difference = pairs[method].to_numpy() - pairs[other].to_numpy()
    with np.errstate(invalid="ignore"):
        wins = np.where(np.isnan(difference) | (np.abs(difference) <= _TIE), 0.5, difference < 0)
    low, high = _interval(wins, pairs.index.get_level_values("dataset"), rng)
    finite = difference[np.isfinite(difference)]
    mean, median = (float(finite.mean()), float(np.median(finite))) if len(finite) else (math.nan, math.nan)
    return Rate(other, len(wins), float(wins.mean()), low, high, mean, median)


def _interval(wins: Any, datasets: Any, rng: int) -> tuple[float, float]:
    """Return a 95% interval of the mean by resampling data sets."""
    _, code = np.unique(datasets, return_inverse=True)
    total, count = np.bincount(code, wins), np.bincount(code)
    drawn = np.random.default_rng(rng).multinomial(
        len(count), np.full(len(count), 1 / len(count)), _N_RESAMPLES
    )
    low, high = np.quantile((drawn @ total) / (drawn @ count), [0.025, 0.975])
    return float(low), float(high)
