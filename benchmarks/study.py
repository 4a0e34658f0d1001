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
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import peers
import study_page
from study_data import ROOT, Pool, pools
from study_methods import Method, methods

import hetcal

SIZES = (10, 20, 50, 200, 500)  # rows a class to fit on
SPLITS = 3
MOST_JUDGED = 5000
RESULTS = ROOT / "results" / "study.csv"
COLUMNS = (
    *("problem", "family", "design", "classes", "rows_per_class", "split", "method"),
    *("nll", "brier", "ece", "max_ece", "avg_ece", "ece_floor", "max_ece_floor", "avg_ece_floor"),
    *("worst_group", "changed", "seconds"),
)


def judge(pool: Pool, size: int, split: int, wanted: dict[str, Method]) -> list[dict[str, Any]]:
    """All methods on one split."""
    rng = np.random.default_rng([split, size])
    order = rng.permutation(len(pool.labels))
    n = size * pool.n_classes
    fit, rest = order[:n], order[max(n, len(order) // 2) :][:MOST_JUDGED]
    decided, lines = pool.logits[rest].argmax(axis=1), []
    for name, method in wanted.items():
        if not method.suits(pool.n_classes, pool.groups, split):
            continue
        try:
            p, seconds = _probabilities(pool, method, fit, rest)
        except Exception as error:  # a peer that cannot do it must not end the study
            print(f"    {pool.name}, {size} rows a class: {name} failed ({type(error).__name__}: {error})")
            continue
        lines.append(
            {
                "problem": pool.name,
                "family": pool.family,
                "design": int(pool.design),
                "classes": pool.n_classes,
                "rows_per_class": size,
                "split": split,
                "method": name,
                **_scores(p, pool.labels[rest], None if pool.groups is None else pool.groups[rest]),
                "changed": f"{np.mean(p.argmax(axis=1) != decided):.4g}",
                "seconds": f"{seconds:.3g}",
            }
        )
    return lines


def _probabilities(pool: Pool, method: Method, fit: Any, rest: Any) -> tuple[Any, float]:
    """Of the rows left over, and the processor time of the fit, which other work on the machine leaves be."""
    groups = pool.groups if pool.groups is not None else np.zeros(len(pool.labels), np.int64)
    started = time.process_time()
    predict = method.fit(pool.logits[fit], pool.labels[fit], groups[fit])
    seconds = time.process_time() - started
    p = np.maximum(np.asarray(predict(pool.logits[rest], groups[rest]), np.float64), 1e-12)
    return p / p.sum(axis=1, keepdims=True), seconds


def _scores(p: Any, y: Any, groups: Any) -> dict[str, str]:
    found = hetcal.evaluate(p, y, n_redraws=30, rng=0)
    scores = {key: f"{getattr(found, key):.5g}" for key in ("nll", "brier", "ece", "max_ece", "avg_ece")}
    floors = {f"{key}_floor": f"{value:.4g}" for key, value in found.floor.items()}
    return scores | floors | {"worst_group": _worst_group(p, y, groups)}


def _worst_group(p: Any, y: Any, groups: Any) -> str:
    """Largest excess of a group's ECE over its floor; nothing without groups."""
    if groups is None:
        return ""
    parts = [hetcal.evaluate(p[groups == g], y[groups == g], n_redraws=30, rng=0) for g in np.unique(groups)]
    return f"{max(part.ece - part.floor['ece'] for part in parts):.4g}"


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


def run(
    text: Path | None, *, quick: bool, jobs: int, only: list[str] | None = None, problems: str = ""
) -> list[dict[str, Any]]:
    """Every problem with these letters in its name, several at a time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = [pool for pool in pools(text) if problems in pool.name][:: 12 if quick else 1]
    lines, done = [], 0
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as workers:
        tasks = [workers.submit(study, pool, quick=quick, only=only) for pool in chosen]
        for pool, task in zip(chosen, tasks, strict=True):
            lines += task.result()
            done += 1
            print(f"{done}/{len(chosen)} {pool.name}", flush=True)
    return lines


def _others(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows measured before, of other problems or methods."""
    again = {(line["problem"], line["method"]) for line in lines}
    with RESULTS.open(encoding="utf-8", newline="") as file:
        return [line for line in csv.DictReader(file) if (line["problem"], line["method"]) not in again]


def main() -> None:
    """Measure, write the table, draw the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, help="folder with clinc150/ in it")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--only", help="methods to measure again, with semicolons; the other rows stay")
    parser.add_argument("--problems", default="", help="letters in the names of those to measure again")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if not options.page:
        only = options.only.split(";") if options.only else None
        chosen = {"only": only, "problems": options.problems}
        lines = run(options.text, quick=options.quick, jobs=options.jobs, **chosen)
        if options.quick:
            print(len(lines), "rows")
            return
        if only or options.problems:
            lines = _others(lines) + lines
        with RESULTS.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(lines)
    study_page.write(RESULTS)


if __name__ == "__main__":
    main()
