"""Fit times of hetcal and its peers on the same rows in the same run, printed as ratios.

    make bench            (or: python benchmarks/fit.py [--rows 5000] [--classes 100])

Peers: scikit-learn's temperature scaling (CalibratedClassifierCV(method="temperature") on a frozen model that
returns the logits), and probmetrics' temperature scaling where it is installed. Every fit runs in
this process, single-threaded where the library lets us, the median of several repeats after one warm-up.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator

import hetcal


class Passes(ClassifierMixin, BaseEstimator):
    """A classifier whose decision function is its input, so that peers calibrate given logits."""

    def __init__(self, n_classes: int = 2) -> None:
        self.n_classes = n_classes
        self.classes_ = np.arange(n_classes)
        self.n_features_in_ = n_classes

    def fit(self, X: Any, y: Any) -> Passes:  # noqa: ARG002
        """Nothing to learn."""
        return self

    def decision_function(self, X: Any) -> Any:
        """The logits themselves."""
        return X

    def predict(self, X: Any) -> Any:
        """Argmax."""
        return np.asarray(X).argmax(axis=1)


def make_rows(n: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a classifier that is over-confident on half of its classes, under-confident on the rest."""
    rng = np.random.default_rng(seed)
    z = (rng.normal(size=(n, k)) * 2.5).astype(np.float32)
    truth = np.where(np.arange(k) < k // 2, 0.6, 1.5)[z.argmax(axis=1), None] * z
    p = np.exp(truth - truth.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return z, (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)


def peers(k: int) -> dict[str, Callable[[np.ndarray, np.ndarray], Any]]:
    """Single temperatures of other libraries; those that are not installed are left out."""
    out: dict[str, Callable[[np.ndarray, np.ndarray], Any]] = {
        "scikit-learn temperature": lambda z, y: CalibratedClassifierCV(
            FrozenEstimator(Passes(k)), method="temperature", cv=_whole(len(y)), ensemble=False
        ).fit(z, y)
    }
    try:
        from probmetrics.calibrators import TemperatureScalingCalibrator as Probmetrics
        from probmetrics.distributions import CategoricalLogits
    except ImportError:
        pass
    else:
        import torch

        out["probmetrics temperature"] = lambda z, y: Probmetrics().fit_torch(
            CategoricalLogits(torch.from_numpy(z)), torch.from_numpy(y)
        )
    return out


def _whole(n: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rows = np.arange(n)
    return [(rows, rows)]


def ours() -> dict[str, Callable[[np.ndarray, np.ndarray], Any]]:
    """What is measured."""
    return {
        "hetcal TS": lambda z, y: hetcal.TemperatureScaling().fit(z, y),
        "hetcal CTS, Γ = inf": lambda z, y: hetcal.ClassWiseTemperatureScaling().fit(z, y),
        "hetcal CTS, Γ = 0.3": lambda z, y: hetcal.ClassWiseTemperatureScaling(0.3).fit(z, y),
        "hetcal CTS, Γ by bayes": lambda z, y: hetcal.ClassWiseTemperatureScaling("bayes").fit(z, y),
        "hetcal CTS, Γ by cv": lambda z, y: hetcal.ClassWiseTemperatureScaling("cv").fit(z, y),
        "hetcal VS": lambda z, y: hetcal.VectorScaling().fit(z, y),
    }


def median_seconds(work: Callable[[], Any], repeats: int) -> float:
    """Median time after one warm-up."""
    work()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    z, y = make_rows(options.rows, options.classes)
    seconds = {
        name: median_seconds(lambda fit=fit: fit(z, y), options.repeats)
        for name, fit in {**peers(options.classes), **ours()}.items()
    }
    versions = f"hetcal {hetcal.__version__}, " + ", ".join(
        f"{p} {metadata.version(p)}" for p in ("numpy", "scikit-learn")
    )
    print(
        f"{options.rows} x {options.classes} float32; {platform.machine()}, "
        f"Python {platform.python_version()}, {versions}"
    )
    base = seconds["scikit-learn temperature"]
    print(f"{'fit':<28}{'median ms':>12}{'scikit-learn / this':>22}")
    for name, value in seconds.items():
        print(f"{name:<28}{1000 * value:>12.2f}{base / value:>22.2f}")


if __name__ == "__main__":
    main()
