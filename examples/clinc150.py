"""CLINC150, real text with 150 intents: label noise, few samples, and what mends them.

    python examples/clinc150.py --data DIR                  one seed of the network, about a minute
    python examples/clinc150.py --data DIR --seeds 5 --models network,logistic --output .
                                                            the committed table, figures and page
    python examples/clinc150.py --page --output .           the page again, from the table

Only training rows are spoilt. The calibrators are fitted on `val` (20 rows of every intent) and judged on
`test` (30 rows of every intent). Written under the output folder: `results/clinc150.csv`,
`docs/text-example.md`, `docs/images/clinc150-*.svg`.
"""

# ruff: noqa: T201 - a script prints its table
from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from clinc150_page import COLUMNS, text_table, write_page
from intent_data import DataError, Intents, Split, data_folder, numbered, read_clinc150
from numpy.typing import NDArray
from tidy import Line, read_lines, write_lines

import hetcal
from hetcal import corruption

NOISE, KEPT = 0.3, 0.1  # share of labels redrawn, share of rows kept
CASES = (
    ("full", "none"), ("full", "noise"), ("full", "few"),
    ("small", "none"), ("small", "noise"), ("small", "few"),
    ("imbalanced", "none"), ("imbalanced", "noise"),
)  # fmt: skip
Ints = NDArray[np.int64]
Probs = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Run:
    """One model trained on one variant, spoilt in one way, with one seed."""

    model: str
    variant: str
    corruption: str
    seed: int

    def keys(self, method: str, metric: str) -> tuple[str, ...]:
        """First columns of a line of the table."""
        return self.model, self.variant, self.corruption, str(self.seed), method, metric


def methods(n_classes: int) -> dict[str, Any]:
    """Calibrators by the names of the table."""
    cts = hetcal.ClassWiseTemperatureScaling
    return {
        "Uncal": hetcal.Identity(),
        "TS": hetcal.TemperatureScaling(),
        "VS": hetcal.VectorScaling(),
        "VS, ridge": hetcal.VectorScaling(ridge=1e-3),
        "CTS, Γ = inf": cts(),
        "CTS, cv": cts(gamma="cv"),
        "CTS, bayes": cts(gamma="bayes"),
        "CTS, bundles": cts(bundles=min(10, n_classes)),
        "Auto": hetcal.AutoCalibrator(),
    }


def spoil(labels: Ints, how: str, seed: int, n_classes: int) -> tuple[Ints, Ints]:
    """Kept training rows and their labels; half of the intents, every second by name, are hit."""
    rng, hit = np.random.default_rng(seed), range(0, n_classes, 2)
    rows = np.arange(len(labels))
    if how == "noise":
        return rows, corruption.noisy_labels(labels, hit, NOISE, n_classes, rng)
    if how == "few":
        rows = corruption.undersample(labels, hit, KEPT, rng)
    return rows, labels[rows]


def affected(run: Run, train: Ints, n_classes: int) -> NDArray[np.bool_]:
    """Intents that are spoilt; of the imbalanced variant as it is, those with few rows."""
    if run.variant == "imbalanced" and run.corruption == "none":
        counts = np.bincount(train, minlength=n_classes)
        return np.asarray(counts <= counts.max() / 2)
    return np.asarray(np.arange(n_classes) % 2 == 0)


def do(run: Run, folder: Path) -> list[Line]:
    """Train, calibrate and judge."""
    import intent_models
    from threadpoolctl import threadpool_limits

    data = numbered(read_clinc150(folder, run.variant))
    rows, labels = spoil(data.train.labels, run.corruption, run.seed, len(data.names))
    train = Split([data.train.texts[i] for i in rows], labels)
    with threadpool_limits(1):  # runs share the cores
        made = intent_models.MODELS[run.model](train, data.val, data.test.texts, len(data.names), run.seed)
        hit = affected(run, data.train.labels, len(data.names))
        lines = [Line(run.keys("Uncal", "choice"), made.choice)]
        raw = hetcal.Identity().fit(made.val, data.val.labels)
        lines += _judged(run, "Uncal, last", raw, made.last, data, hit)
        for name, method in methods(len(data.names)).items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # with 20 rows a class there are many; see "at_bound" below
                fitted = method.fit(made.val, data.val.labels)
            lines += _judged(run, name, fitted, made.test, data, hit)
            lines += [Line(run.keys(name, metric), value) for metric, value in _learned(fitted)]
    return lines


def _judged(
    run: Run, name: str, fitted: Any, logits: Probs, data: Intents, hit: NDArray[np.bool_]
) -> Iterator[Line]:
    """Metrics on the test rows, then confidence − accuracy of the spoilt intents and of the rest."""
    probs, labels = fitted.predict_proba(logits), data.test.labels
    found = hetcal.evaluate(probs, labels)
    for metric in ("accuracy", "nll"):
        yield Line(run.keys(name, metric), getattr(found, metric))
    for metric in ("ece", "max_ece", "avg_ece"):
        yield Line(run.keys(name, metric), getattr(found, metric), found.floor[metric])
    guess = probs.argmax(axis=1)
    yield Line(run.keys(name, "changed"), float(np.mean(guess != logits.argmax(axis=1))))
    for by, intents in (("true", labels), ("predicted", guess)):
        for part, rows in (("affected", hit[intents]), ("rest", ~hit[intents])):
            right, confidence = (guess == labels)[rows], probs.max(axis=1)[rows]
            gap = float(confidence.mean() - right.mean()) if rows.any() else np.nan
            yield Line(run.keys(name, f"gap_{by}_{part}"), gap)
            if name.startswith("Uncal"):
                yield Line(
                    run.keys(name, f"accuracy_{by}_{part}"), float(right.mean()) if rows.any() else np.nan
                )


def _learned(fitted: Any) -> Iterator[tuple[str, float]]:
    """What a calibrator says about itself, as numbers."""
    if isinstance(fitted, hetcal.ClassWiseTemperatureScaling):
        yield "gamma", fitted.gamma_
        low, high = fitted.alpha_bounds
        alone = (fitted.alpha_ <= low * 1.001) | (fitted.alpha_ >= high * 0.999)
        yield "at_bound", float(alone.sum())
    if isinstance(fitted, hetcal.AutoCalibrator):
        for candidate in fitted.candidates_:
            yield f"weight of {candidate['name']}", candidate["weight"]


def wanted(models: Iterable[str], seeds: int) -> list[Run]:
    """All runs; logistic regression on rows as they are is the same for every seed and runs once."""
    return [
        Run(model, variant, how, seed)
        for model in models
        for variant, how in CASES
        for seed in range(seeds if (model, how) != ("logistic", "none") else 1)
    ]


def done(runs: list[Run], folder: Path, jobs: int) -> list[Line]:
    """Lines of all runs, in the order of the runs."""
    if jobs == 1:
        return [line for run in runs for line in _told(run, do(run, folder))]
    found = {}
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(do, run, folder): run for run in runs}
        for future in as_completed(waiting):
            found[waiting[future]] = _told(waiting[future], future.result())
    return [line for run in runs for line in found[run]]


def _told(run: Run, lines: list[Line]) -> list[Line]:
    print(f"{run.model}, {run.variant}, {run.corruption}, seed {run.seed}: done", file=sys.stderr)
    return lines


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Options of the command."""
    parser = argparse.ArgumentParser("clinc150.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", metavar="DIR", help="folder with clinc150/ in it; default $HETCAL_DATA")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds (default 1)")
    parser.add_argument("--models", default="network", help="network, logistic or both with a comma")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="default demo-output")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: all cores")
    parser.add_argument("--page", action="store_true", help="draw the page from the table; train nothing")
    options = parser.parse_args(argv)
    options.models = options.models.split(",")
    if not set(options.models) <= {"network", "logistic"}:
        parser.error("--models must be network, logistic or network,logistic")
    if min(options.seeds, options.jobs) < 1:
        parser.error("--seeds and --jobs must be 1 or more")
    return options


def main(argv: list[str] | None = None) -> int:
    """Run what the options ask for; return the exit code."""
    options = parse(argv)
    table = options.output / "results" / "clinc150.csv"
    started = time.perf_counter()
    if not options.page:
        try:
            folder = data_folder(options.data, "clinc150")
            for variant in dict.fromkeys(variant for variant, _ in CASES):
                numbered(read_clinc150(folder, variant))  # nothing is trained before all files are in order
            lines = done(wanted(options.models, options.seeds), folder, options.jobs)
        except DataError as error:
            print(f"clinc150.py: {error}", file=sys.stderr)
            return 2
        write_lines(table, COLUMNS, lines)
    found = read_lines(table)
    page = write_page(found, options.output / "docs")
    print(text_table(found))
    print(f"wrote {table}, {page} and its figures in {time.perf_counter() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
