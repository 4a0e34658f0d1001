"""Which calibrator when: every method on many problems, from ten rows a class on, over random splits.

    python benchmarks/study.py --text DIR        (DIR holds clinc150/; left out without it)
    python benchmarks/study.py --page            draw docs/choosing.md from results/study.csv
    python benchmarks/study.py --quick           a few problems, one split; no files

Every split fits all methods on the same rows and judges them on the same others, so that differences are
paired. Peers that are not installed are left out.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import peers
import study_page
from study_data import ROOT, Pool, pools

import hetcal
from hetcal import (
    ClassWise,
    ClassWiseTemperatureScaling,
    PlattScaling,
    TopLabelIsotonic,
    VectorScaling,
)

SIZES = (10, 20, 50, 200)  # rows a class to fit on
SPLITS = 3
MOST_JUDGED = 5000
RESULTS = ROOT / "results" / "study.csv"
COLUMNS = (
    *("problem", "family", "design", "classes", "rows_per_class", "split", "method"),
    *("nll", "brier", "ece", "max_ece", "avg_ece", "ece_floor", "max_ece_floor", "avg_ece_floor"),
    *("changed", "seconds"),
)
Method = Callable[[Any, Any], Any]

OURS: dict[str, Callable[[], Any]] = {
    "Identity": lambda: hetcal.Identity(),
    "TS": lambda: hetcal.TemperatureScaling(),
    "Platt": lambda: PlattScaling(),
    "VS": lambda: VectorScaling(),
    "VS, ridge": lambda: VectorScaling(0.01),
    "VS, kept": lambda: VectorScaling(0.01, center=True, keep_decision=True),
    "CTS": lambda: ClassWiseTemperatureScaling(),
    "CTS cv": lambda: ClassWiseTemperatureScaling("cv"),
    "CTS bayes": lambda: ClassWiseTemperatureScaling("bayes"),
    "CTS, 5 bundles": lambda: ClassWiseTemperatureScaling(bundles=5),
    "CTS, Brier loss": lambda: ClassWiseTemperatureScaling(loss="brier"),
    "CTS, ECE loss": lambda: ClassWiseTemperatureScaling(loss="ece"),
    "class-wise Platt, Γ = 1": lambda: ClassWise(PlattScaling(), 1.0),
    "class-wise Platt bayes": lambda: ClassWise(PlattScaling(), "bayes"),
    "class-wise isotonic": lambda: ClassWise(TopLabelIsotonic()),
    "Auto": lambda: hetcal.AutoCalibrator(),
}
_SLOW = {
    "CTS, Brier loss": 20,
    "CTS, ECE loss": 20,
    "probmetrics SMS": 20,
}  # most classes that these are tried on


def methods() -> dict[str, Method]:
    """Fit and return a function from logits to probabilities, by name."""

    def own(make: Callable[[], Any]) -> Method:
        return lambda z, y: make().fit(z, y).predict_proba

    return {name: own(make) for name, make in OURS.items()} | _peers()


def _peers() -> dict[str, Method]:
    found: dict[str, Method] = {"scikit-learn, isotonic": _sklearn_isotonic}
    if peers.is_installed("probmetrics"):
        from probmetrics import calibrators

        for name, make in (
            ("probmetrics SVS", calibrators.SVSCalibrator),
            ("probmetrics SMS", calibrators.SMSCalibrator),
        ):
            found[name] = _probmetrics(make)
    return found


def _probmetrics(make: Callable[[], Any]) -> Method:
    import torch
    from probmetrics.distributions import CategoricalLogits

    def fit(z: Any, y: Any) -> Any:
        model = make().fit_torch(CategoricalLogits(torch.from_numpy(z)), torch.from_numpy(y))

        def predict(z: Any) -> Any:
            with torch.no_grad():
                return model.predict_proba_torch(CategoricalLogits(torch.from_numpy(z))).get_probs().numpy()

        return predict

    return fit


def _sklearn_isotonic(z: Any, y: Any) -> Any:
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    rows = np.arange(len(y))
    model = CalibratedClassifierCV(
        FrozenEstimator(peers.Logits(z.shape[1])), method="isotonic", cv=[(rows, rows)], ensemble=False
    ).fit(z, y)

    def predict(z: Any) -> Any:
        p = np.full((len(z), z.shape[1]), 1e-9)
        p[:, model.classes_] = np.maximum(model.predict_proba(z), 1e-9)
        return p / p.sum(axis=1, keepdims=True)

    return predict


def judge(pool: Pool, size: int, split: int, wanted: dict[str, Method]) -> list[dict[str, Any]]:
    """All methods on one split."""
    rng = np.random.default_rng([split, size])
    order = rng.permutation(len(pool.labels))
    n = size * pool.n_classes
    fit, rest = order[:n], order[max(n, len(order) // 2) :][:MOST_JUDGED]
    z, y, unseen, truth = pool.logits[fit], pool.labels[fit], pool.logits[rest], pool.labels[rest]
    decided, lines = unseen.argmax(axis=1), []
    for name, method in wanted.items():
        if pool.n_classes > _SLOW.get(name, pool.n_classes) or (name == "probmetrics SMS" and split > 0):
            continue
        started = time.perf_counter()
        try:
            predict = method(z, y)
            seconds = time.perf_counter() - started
            p = np.asarray(predict(unseen), np.float64)
        except Exception as error:  # a peer that cannot do it must not end the study
            print(f"    {pool.name}, {size} rows a class: {name} failed ({type(error).__name__}: {error})")
            continue
        p = np.maximum(p, 1e-12)
        p /= p.sum(axis=1, keepdims=True)
        found = hetcal.evaluate(p, truth, n_redraws=30, rng=0)
        lines.append(
            {
                "problem": pool.name,
                "family": pool.family,
                "design": int(pool.design),
                "classes": pool.n_classes,
                "rows_per_class": size,
                "split": split,
                "method": name,
                **{
                    key: f"{getattr(found, key):.5g}" for key in ("nll", "brier", "ece", "max_ece", "avg_ece")
                },
                **{f"{key}_floor": f"{value:.4g}" for key, value in found.floor.items()},
                "changed": f"{np.mean(p.argmax(axis=1) != decided):.4g}",
                "seconds": f"{seconds:.3g}",
            }
        )
    return lines


def study(pool: Pool, *, quick: bool, only: list[str] | None) -> list[dict[str, Any]]:
    """Every size and split of a problem."""
    wanted, lines = methods(), []
    if only:
        wanted = {name: wanted[name] for name in only}
    if quick:
        wanted = {k: v for k, v in wanted.items() if "CTS" in k or k in ("TS", "Auto")}
    sizes = [size for size in SIZES if size * pool.n_classes <= len(pool.labels) // 2]
    with warnings.catch_warnings(), peers.quiet():
        warnings.simplefilter("ignore")
        for size in sizes[:2] if quick else sizes:
            for split in range(1 if quick else SPLITS):
                lines += judge(pool, size, split, wanted)
    return lines


def run(text: Path | None, *, quick: bool, jobs: int, only: list[str] | None = None) -> list[dict[str, Any]]:
    """Every problem, several at a time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = list(pools(text))[:: 12 if quick else 1]
    lines, done = [], 0
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as workers:
        tasks = [workers.submit(study, pool, quick=quick, only=only) for pool in chosen]
        for pool, task in zip(chosen, tasks, strict=True):
            lines += task.result()
            done += 1
            print(f"{done}/{len(chosen)} {pool.name}", flush=True)
    return lines


def main() -> None:
    """Measure, write the table, draw the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, help="folder with clinc150/ in it")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--only", help="methods to measure again, with semicolons; the other rows stay")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if not options.page:
        only = options.only.split(";") if options.only else None
        lines = run(options.text, quick=options.quick, jobs=options.jobs, only=only)
        if options.quick:
            print(len(lines), "rows")
            return
        if only:
            with RESULTS.open(encoding="utf-8", newline="") as file:
                lines = [line for line in csv.DictReader(file) if line["method"] not in only] + lines
        with RESULTS.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(lines)
    study_page.write(RESULTS)


if __name__ == "__main__":
    main()
