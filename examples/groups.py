"""Calibrate one intent classifier for two sources of text.

    python examples/groups.py --data DIR              five seeds, under a minute on two cores
    python examples/groups.py --data DIR --output .   write the committed table, figure and page
    python examples/groups.py --page --output .       write the page again, from the table

A bank's assistant reads messages from two sources: Banking77 (customers) and the banking and credit-card
intents of CLINC150 (short commands). One network is trained on both, once on unmodified rows and once on
corrupted rows: 30% of the labels of Banking77 are random, and only 10% of the rows of CLINC150 are kept. The
source of a message is known, so a calibrator can use it: `fit(logits, labels, groups=source)`.
"""

# ruff: noqa: T201 - a script prints its table
from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from groups_page import COLUMNS, text_table, write_page
from intent_data import (
    DataError,
    Intents,
    Pairs,
    Split,
    data_folder,
    encode_labels,
    read_banking77,
    read_clinc150,
    read_domains,
)
from numpy.typing import NDArray
from tidy import Line, read_lines, write_lines

import hetcal
from hetcal import corruption

SOURCES = ("banking77", "clinc150")
DOMAINS = ("banking", "credit_cards")
NOISE_RATE = 0.3  # fraction of Banking77's labels that are redrawn
SAMPLING_RATE = 0.1  # fraction of CLINC150's rows that are kept
VALIDATION_ROWS = 15  # per intent of Banking77, which has no validation split
Names = NDArray[np.str_]
Floats = NDArray[np.floating[Any]]
Number = tuple[str, str, float, float]  # group, metric, value, floor


@dataclass(frozen=True)
class Sources:
    """Rows of both sources, with the source of every row."""

    intents: Intents
    train: Names
    val: Names
    test: Names


def methods() -> dict[str, tuple[Any, bool]]:
    """Return the calibrators by name, and whether they use the source of each row."""
    cts = hetcal.ClassWiseTemperatureScaling
    return {
        "Uncal": (hetcal.Identity(), False),
        "TS": (hetcal.TemperatureScaling(), False),
        "CTS by class, Γ = inf": (cts(), False),
        "CTS by class, cv": (cts(gamma="cv"), False),
        "CTS by source, Γ = inf": (cts(), True),
        "CTS by source, cv": (cts(gamma="cv"), True),
        "Platt by source, Γ = inf": (hetcal.ClassWise(hetcal.PlattScaling()), True),
    }


def read(folder: str | None) -> Sources:
    """Read both data sets. The name of an intent starts with its source."""
    banking, clinc = (data_folder(folder, name) for name in SOURCES)
    domains = read_domains(clinc)
    selected = {intent for domain in DOMAINS for intent in domains[domain]}
    clinc_rows = {
        split: [(text, name) for text, name in pairs if name in selected]
        for split, pairs in read_clinc150(clinc, "full").items()
    }
    parts = (_with_validation(read_banking77(banking)), clinc_rows)
    splits = {
        split: [
            (text, f"{source}: {name}")
            for source, part in zip(SOURCES, parts, strict=True)
            for text, name in part[split]
        ]
        for split in ("train", "val", "test")
    }
    sources = {split: np.array([name.split(":")[0] for _, name in pairs]) for split, pairs in splits.items()}
    return Sources(encode_labels(splits), **sources)


def _with_validation(splits: dict[str, Pairs]) -> dict[str, Pairs]:
    """Move some training rows to a validation split. The split is the same for every seed."""
    _, labels, counts = np.unique(
        [name for _, name in splits["train"]], return_inverse=True, return_counts=True
    )
    n_validation = min(VALIDATION_ROWS, int(counts.min()) // 2)
    train, val = corruption.stratified_split(labels, n_validation, np.random.default_rng(0))
    return {
        "train": [splits["train"][i] for i in train],
        "val": [splits["train"][i] for i in val],
        "test": splits["test"],
    }


def corrupt(data: Sources, seed: int) -> Split:
    """Return training rows with label noise in the first source and few rows of the second."""
    rng, train, n_classes = np.random.default_rng(seed), data.intents.train, len(data.intents.names)
    noisy, rare = (np.unique(train.labels[data.train == source]) for source in SOURCES)
    rows = corruption.undersample(train.labels, rare, SAMPLING_RATE, rng)
    labels = corruption.noisy_labels(train.labels[rows], noisy, NOISE_RATE, n_classes, rng)
    return Split([train.texts[i] for i in rows], labels)


def run_one(training: str, seed: int, folder: str | None) -> list[Line]:
    """Train, calibrate and evaluate."""
    import intent_models
    from threadpoolctl import threadpool_limits

    data = read(folder)
    train = data.intents.train if training == "unmodified" else corrupt(data, seed)
    val, test = data.intents.val, data.intents.test
    lines = []
    with threadpool_limits(1):  # runs share the cores
        trained = intent_models.train_network(train, val, test.texts, len(data.intents.names), seed)
        for name, (calibrator, use_groups) in methods().items():
            val_groups, test_groups = ({"groups": g} if use_groups else {} for g in (data.val, data.test))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", hetcal.CalibrationWarning)  # temperatures at a bound
                calibrator.fit(trained.val, val.labels, **val_groups)
            probs = calibrator.predict_proba(trained.test, **test_groups)
            numbers = [
                *_overall(probs, trained.test, test.labels),
                *_by_source(probs, test.labels, data.test),
            ]
            numbers += _validation_gaps(
                calibrator.predict_proba(trained.val, **val_groups), val.labels, data.val
            )
            numbers += _crossed(trained.test, data) if name == "Uncal" else []
            for group, metric, value, floor in numbers:
                lines.append(Line((training, str(seed), name, group, metric), value, floor))
    return lines


def _overall(probs: Floats, logits: Floats, labels: NDArray[np.int64]) -> Iterator[Number]:
    """Yield the NLL and the fraction of changed predictions of all rows."""
    yield "all", "nll", hetcal.metrics.nll(probs, labels), np.nan
    yield "all", "changed", float(np.mean(probs.argmax(axis=1) != logits.argmax(axis=1))), np.nan


def _by_source(probs: Floats, labels: NDArray[np.int64], sources: Names) -> Iterator[Number]:
    """Yield accuracy, gap and ECE of each source and of all rows, and the ECE of the worst source.

    Sources take the place of classes, so max-ECE is the ECE of the worst source.
    """
    source = np.searchsorted(SOURCES, sources)
    correct = np.where(probs.argmax(axis=1) == labels, source, 1 - source)
    evaluation = hetcal.evaluate(probs.max(axis=1), correct, SOURCES, predicted=source)
    yield "all", "accuracy", evaluation.accuracy, np.nan
    yield "all", "ece", evaluation.ece, evaluation.floor["ece"]
    yield "worst", "ece", evaluation.max_ece, evaluation.floor["max_ece"]
    table = evaluation.classes
    for i, group in enumerate(SOURCES):
        yield group, "accuracy", float(table.accuracy[i]), np.nan
        yield group, "gap", float(table.signed_gap[i]), np.nan
        yield group, "ece", float(table.ece[i]), float(table.floor[i])


def _validation_gaps(probs: Floats, labels: NDArray[np.int64], sources: Names) -> Iterator[Number]:
    """Yield the gap of each source on the rows that the calibrator was fitted on."""
    for group, metric, value, floor in _by_source(probs, labels, sources):
        if metric == "gap":
            yield group, "val_gap", value, floor


def _crossed(logits: Floats, data: Sources) -> Iterator[Number]:
    """Yield the fraction of each source's messages that are assigned to an intent of the other source."""
    intent_sources = np.array([name.split(":")[0] for name in data.intents.names])
    crossed = intent_sources[logits.argmax(axis=1)] != data.test
    for group in SOURCES:
        yield group, "crossed", float(crossed[data.test == group].mean()), np.nan


def run_all(seeds: int, folder: str | None, jobs: int) -> list[Line]:
    """Return the lines of all runs, in order."""
    runs = [(training, seed) for training in ("unmodified", "corrupted") for seed in range(seeds)]
    trainings, numbers = zip(*runs, strict=True)
    if jobs == 1:
        return [line for run in runs for line in run_one(*run, folder)]
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        return [line for lines in pool.map(run_one, trainings, numbers, repeat(folder)) for line in lines]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the options of the command."""
    parser = argparse.ArgumentParser("groups.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--data", metavar="DIR", help="folder with banking77/ and clinc150/; default $HETCAL_DATA"
    )
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (default 5)")
    parser.add_argument(
        "--output", type=Path, default=Path("demo-output"), help="folder to write to; default demo-output"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: all cores")
    parser.add_argument(
        "--page", action="store_true", help="write the page from the stored table, without training"
    )
    options = parser.parse_args(argv)
    if min(options.seeds, options.jobs) < 1:
        parser.error(f"--seeds and --jobs must be 1 or more, got {options.seeds} and {options.jobs}")
    return options


def main(argv: list[str] | None = None) -> int:
    """Run the command and return the exit code."""
    options = parse(argv)
    table = options.output / "results" / "groups.csv"
    started = time.perf_counter()
    if not options.page:
        try:
            read(options.data)  # check all files before training
            lines = run_all(options.seeds, options.data, options.jobs)
        except DataError as error:
            print(f"groups.py: {error}", file=sys.stderr)
            return 2
        write_lines(table, COLUMNS, lines)
    results = read_lines(table)
    page = write_page(results, options.output / "docs")
    print(text_table(results))
    print(f"wrote {table}, {page} and its figure in {time.perf_counter() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
