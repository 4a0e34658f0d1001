"""Show the effects of label noise and few samples on CLINC150 (text, 150 intents), and how to correct them.

    python examples/clinc150.py --data DIR                  one seed of the network, about a minute
    python examples/clinc150.py --data DIR --seeds 5 --models network,logistic --output .
                                                            write the committed table, figures and page
    python examples/clinc150.py --page --output .           write the page again, from the table

Only training rows are corrupted. Calibrators are fitted on `val` (20 rows per intent) and evaluated on `test`
(30 rows per intent). The script writes `results/clinc150.csv`, `docs/text-example.md` and
`docs/images/clinc150-*.svg` into the output folder.
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
from intent_data import DataError, Intents, Split, data_folder, encode_labels, read_clinc150
from numpy.typing import NDArray
from tidy import Line, read_lines, write_lines

import hetcal
from hetcal import corruption

NOISE_RATE = 0.3  # fraction of labels that are redrawn
SAMPLING_RATE = 0.1  # fraction of rows that are kept
CASES = (
    ("full", "none"), ("full", "noise"), ("full", "few"),
    ("small", "none"), ("small", "noise"), ("small", "few"),
    ("imbalanced", "none"), ("imbalanced", "noise"),
)  # fmt: skip
Ints = NDArray[np.int64]
Probs = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Run:
    """One model, variant, corruption and seed."""

    model: str
    variant: str
    corruption: str
    seed: int

    def keys(self, method: str, metric: str) -> tuple[str, ...]:
        """Return the key columns of a line of the table."""
        return self.model, self.variant, self.corruption, str(self.seed), method, metric


def methods(n_classes: int) -> dict[str, Any]:
    """Return the calibrators by their names in the table."""
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


def corrupt(labels: Ints, how: str, seed: int, n_classes: int) -> tuple[Ints, Ints]:
    """Return the indices and labels of the training rows after corrupting every second intent."""
    rng, affected = np.random.default_rng(seed), range(0, n_classes, 2)
    rows = np.arange(len(labels))
    if how == "noise":
        return rows, corruption.noisy_labels(labels, affected, NOISE_RATE, n_classes, rng)
    if how == "few":
        rows = corruption.undersample(labels, affected, SAMPLING_RATE, rng)
    return rows, labels[rows]


def affected_intents(run: Run, train: Ints, n_classes: int) -> NDArray[np.bool_]:
    """Return a mask of the intents that the page calls affected.

    They are those that `corrupt` changes, or the small ones in the unmodified imbalanced variant.
    """
    if run.variant == "imbalanced" and run.corruption == "none":
        counts = np.bincount(train, minlength=n_classes)
        return np.asarray(counts <= counts.max() / 2)
    return np.asarray(np.arange(n_classes) % 2 == 0)


def run_one(run: Run, folder: Path) -> list[Line]:
    """Train, calibrate and evaluate."""
    import intent_models
    from threadpoolctl import threadpool_limits

    data = encode_labels(read_clinc150(folder, run.variant))
    rows, labels = corrupt(data.train.labels, run.corruption, run.seed, len(data.names))
    train = Split([data.train.texts[i] for i in rows], labels)
    with threadpool_limits(1):  # runs share the cores
        trained = intent_models.MODELS[run.model](train, data.val, data.test.texts, len(data.names), run.seed)
        affected = affected_intents(run, data.train.labels, len(data.names))
        lines = [Line(run.keys("Uncal", "choice"), trained.choice)]
        identity = hetcal.Identity().fit(trained.val, data.val.labels)
        lines += _evaluate(run, "Uncal, last", identity, trained.last, data, affected)
        for name, calibrator in methods(len(data.names)).items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # temperatures at a bound, which `_parameters` counts
                calibrator.fit(trained.val, data.val.labels)
            lines += _evaluate(run, name, calibrator, trained.test, data, affected)
            lines += [Line(run.keys(name, metric), value) for metric, value in _parameters(calibrator)]
    return lines


def _evaluate(
    run: Run, name: str, calibrator: Any, logits: Probs, data: Intents, affected: NDArray[np.bool_]
) -> Iterator[Line]:
    """Yield the test metrics and the confidence − accuracy of the affected and other intents."""
    probs, labels = calibrator.predict_proba(logits), data.test.labels
    evaluation = hetcal.evaluate(probs, labels)
    for metric in ("accuracy", "nll"):
        yield Line(run.keys(name, metric), getattr(evaluation, metric))
    for metric in ("ece", "max_ece", "avg_ece"):
        yield Line(run.keys(name, metric), getattr(evaluation, metric), evaluation.floor[metric])
    predicted = probs.argmax(axis=1)
    yield Line(run.keys(name, "changed"), float(np.mean(predicted != logits.argmax(axis=1))))
    for by, intents in (("true", labels), ("predicted", predicted)):
        for part, rows in (("affected", affected[intents]), ("rest", ~affected[intents])):
            correct, confidence = (predicted == labels)[rows], probs.max(axis=1)[rows]
            gap = float(confidence.mean() - correct.mean()) if rows.any() else np.nan
            yield Line(run.keys(name, f"gap_{by}_{part}"), gap)
            if name.startswith("Uncal"):
                yield Line(
                    run.keys(name, f"accuracy_{by}_{part}"), float(correct.mean()) if rows.any() else np.nan
                )


def _parameters(calibrator: Any) -> Iterator[tuple[str, float]]:
    """Yield numbers that describe a fitted calibrator."""
    if isinstance(calibrator, hetcal.ClassWiseTemperatureScaling):
        yield "gamma", calibrator.gamma_
        low, high = calibrator.alpha_bounds
        at_bound = (calibrator.alpha_ <= low * 1.001) | (calibrator.alpha_ >= high * 0.999)
        yield "at_bound", float(at_bound.sum())
    if isinstance(calibrator, hetcal.AutoCalibrator):
        for candidate in calibrator.candidates_:
            yield f"weight of {candidate['name']}", candidate["weight"]


def list_runs(models: Iterable[str], seeds: int) -> list[Run]:
    """Return all runs. Logistic regression on unmodified rows is deterministic and runs once."""
    return [
        Run(model, variant, how, seed)
        for model in models
        for variant, how in CASES
        for seed in range(seeds if (model, how) != ("logistic", "none") else 1)
    ]


def run_all(runs: list[Run], folder: Path, jobs: int) -> list[Line]:
    """Return the lines of all runs, in the order of the runs."""
    if jobs == 1:
        return [line for run in runs for line in _report(run, run_one(run, folder))]
    lines = {}
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        pending = {pool.submit(run_one, run, folder): run for run in runs}
        for future in as_completed(pending):
            lines[pending[future]] = _report(pending[future], future.result())
    return [line for run in runs for line in lines[run]]


def _report(run: Run, lines: list[Line]) -> list[Line]:
    print(f"{run.model}, {run.variant}, {run.corruption}, seed {run.seed}: done", file=sys.stderr)
    return lines


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the options of the command."""
    parser = argparse.ArgumentParser("clinc150.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", metavar="DIR", help="folder that contains clinc150/; default $HETCAL_DATA")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds (default 1)")
    parser.add_argument("--models", default="network", help="network, logistic, or both separated by a comma")
    parser.add_argument(
        "--output", type=Path, default=Path("demo-output"), help="folder to write to; default demo-output"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: all cores")
    parser.add_argument(
        "--page", action="store_true", help="write the page from the stored table, without training"
    )
    options = parser.parse_args(argv)
    options.models = options.models.split(",")
    if not set(options.models) <= {"network", "logistic"}:
        parser.error(
            f"--models must be network, logistic or network,logistic, got {','.join(options.models)}"
        )
    if min(options.seeds, options.jobs) < 1:
        parser.error(f"--seeds and --jobs must be 1 or more, got {options.seeds} and {options.jobs}")
    return options


def main(argv: list[str] | None = None) -> int:
    """Run the command and return the exit code."""
    options = parse(argv)
    table = options.output / "results" / "clinc150.csv"
    started = time.perf_counter()
    if not options.page:
        try:
            folder = data_folder(options.data, "clinc150")
            for variant in dict.fromkeys(variant for variant, _ in CASES):
                encode_labels(read_clinc150(folder, variant))  # check all files before training
            lines = run_all(list_runs(options.models, options.seeds), folder, options.jobs)
        except DataError as error:
            print(f"clinc150.py: {error}", file=sys.stderr)
            return 2
        write_lines(table, COLUMNS, lines)
    results = read_lines(table)
    page = write_page(results, options.output / "docs")
    print(text_table(results))
    print(f"wrote {table}, {page} and its figures in {time.perf_counter() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
