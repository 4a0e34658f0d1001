"""Compare all calibrators on many problems, with 10 to 500 rows per class, over random splits.

    python benchmarks/study.py --text DIR        (DIR contains clinc150/; without it, text is skipped)
    python benchmarks/study.py --page            write docs/choosing.md from results/study.csv
    python benchmarks/study.py --quick           a few problems, one split; writes no files

All methods are fitted and evaluated on the same rows of a split, so differences are paired. Libraries that
are not installed are skipped.
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

SIZES = (10, 20, 50, 200, 500)  # rows per class to fit on
SPLITS = 3
MAX_TEST_ROWS = 5000
RESULTS = ROOT / "results" / "study.csv"
COLUMNS = (
    *("problem", "family", "design", "classes", "rows_per_class", "split", "method"),
    *("nll", "brier", "ece", "max_ece", "avg_ece", "ece_floor", "max_ece_floor", "avg_ece_floor"),
    *("worst_group", "changed", "seconds"),
)


def evaluate(pool: Pool, size: int, split: int, selected: dict[str, Method]) -> list[dict[str, Any]]:
    """Evaluate the methods on one split."""
    rng = np.random.default_rng([split, size])
    order = rng.permutation(len(pool.labels))
    n = size * pool.n_classes
    fit, rest = order[:n], order[max(n, len(order) // 2) :][:MAX_TEST_ROWS]
    predicted, lines = pool.logits[rest].argmax(axis=1), []
    for name, method in selected.items():
        if not method.suits(pool.n_classes, pool.groups, split):
            continue
        try:
            p, seconds = _probabilities(pool, method, fit, rest)
        except Exception as error:  # a failing library must not stop the study
            print(f"    {pool.name}, {size} rows per class: {name} failed ({type(error).__name__}: {error})")
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
                "changed": f"{np.mean(p.argmax(axis=1) != predicted):.4g}",
                "seconds": f"{seconds:.3g}",
            }
        )
    return lines


def _probabilities(pool: Pool, method: Method, fit: Any, rest: Any) -> tuple[Any, float]:
    """Return the probabilities of the remaining rows and the CPU time of the fit."""
    groups = pool.groups if pool.groups is not None else np.zeros(len(pool.labels), np.int64)
    started = time.process_time()
    predict = method.fit(pool.logits[fit], pool.labels[fit], groups[fit])
    seconds = time.process_time() - started
    p = np.maximum(np.asarray(predict(pool.logits[rest], groups[rest]), np.float64), 1e-12)
    return p / p.sum(axis=1, keepdims=True), seconds


def _scores(p: Any, y: Any, groups: Any) -> dict[str, str]:
    evaluation = hetcal.evaluate(p, y, n_redraws=30, rng=0)
    scores = {key: f"{getattr(evaluation, key):.5g}" for key in ("nll", "brier", "ece", "max_ece", "avg_ece")}
    floors = {f"{key}_floor": f"{value:.4g}" for key, value in evaluation.floor.items()}
    return scores | floors | {"worst_group": _worst_group(p, y, groups)}


def _worst_group(p: Any, y: Any, groups: Any) -> str:
    """Return the largest excess of a group's ECE over its floor, or an empty string without groups."""
    if groups is None:
        return ""
    parts = [hetcal.evaluate(p[groups == g], y[groups == g], n_redraws=30, rng=0) for g in np.unique(groups)]
    return f"{max(part.ece - part.floor['ece'] for part in parts):.4g}"


def study(pool: Pool, *, quick: bool, only: list[str] | None) -> list[dict[str, Any]]:
    """Evaluate the methods on every size and split of a problem."""
    selected, lines = methods(), []
    if only:
        selected = {name: selected[name] for name in only}
    if quick:
        selected = {k: v for k, v in selected.items() if "CTS" in k or k in ("TS", "Auto")}
    sizes = [size for size in SIZES if size * pool.n_classes <= len(pool.labels) // 2]
    with warnings.catch_warnings(), peers.quiet():
        warnings.simplefilter("ignore")
        for size in sizes[:2] if quick else sizes:
            for split in range(1 if quick else SPLITS):
                lines += evaluate(pool, size, split, selected)
    return lines


def run(
    text: Path | None, *, quick: bool, jobs: int, only: list[str] | None = None, problems: str = ""
) -> list[dict[str, Any]]:
    """Run the study in parallel on the problems whose names contain `problems`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        selected = [pool for pool in pools(text) if problems in pool.name][:: 12 if quick else 1]
    lines, done = [], 0
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as workers:
        tasks = [workers.submit(study, pool, quick=quick, only=only) for pool in selected]
        for pool, task in zip(selected, tasks, strict=True):
            lines += task.result()
            done += 1
            print(f"{done}/{len(selected)} {pool.name}", flush=True)
    return lines


def _update_stored_rows(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace the stored rows of the problems and methods in `lines`; other problems are not added."""
    with RESULTS.open(encoding="utf-8", newline="") as file:
        stored = list(csv.DictReader(file))
    replaced = {(line["problem"], line["method"]) for line in lines}
    problems = {line["problem"] for line in stored}
    kept = [line for line in stored if (line["problem"], line["method"]) not in replaced]
    return kept + [line for line in lines if line["problem"] in problems]


def main() -> None:
    """Run the study and write the table and the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, help="folder that contains clinc150/")
    parser.add_argument("--quick", action="store_true", help="run a few problems; write no files")
    parser.add_argument("--page", action="store_true", help="only write the page from stored results")
    parser.add_argument("--only", help="methods to run again, separated by semicolons; other rows are kept")
    parser.add_argument(
        "--problems", default="", help="run again only the problems whose names contain this text"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of processes")
    options = parser.parse_args()
    if not options.page:
        only = options.only.split(";") if options.only else None
        chosen = {"only": only, "problems": options.problems}
        lines = run(options.text, quick=options.quick, jobs=options.jobs, **chosen)
        if options.quick:
            print(len(lines), "rows")
            return
        if only or options.problems:
            lines = _update_stored_rows(lines)
        with RESULTS.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(lines)
    study_page.write(RESULTS)


if __name__ == "__main__":
    main()
