"""One intent classifier, two sources of text: confidence that is right for each source.

python examples/groups.py --data DIR five seeds, under a minute on two cores python examples/groups.py
    --data DIR --output . the committed table, figure and page python examples/groups.py --page --output .
    the page again, from the table

A bank's assistant reads messages from two sources: Banking77 (customers who write) and the banking and
credit-card intents of CLINC150 (people who were asked for short commands). Both sources' rows train one
network, once as they are and once spoilt: 30% of the labels of one source redrawn, 10% of the rows of the
other kept. The source of a message is known when it comes in, so Algorithm 1 may slice by it:
`fit(logits, labels, groups=source)`.
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
    numbered,
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
NOISE, KEPT = 0.3, 0.1  # share of Banking77's labels redrawn, share of CLINC150's rows kept
HELD = 15  # validation rows of every intent of Banking77, which comes without; CLINC150 has 20
Names = NDArray[np.str_]
Floats = NDArray[np.floating[Any]]
Number = tuple[str, str, float, float]  # group, metric, value, floor


@dataclass(frozen=True)
class Sources:
    """Rows of both sources together, with the source of every row."""

    intents: Intents
    train: Names
    val: Names
    test: Names


def methods() -> dict[str, tuple[Any, bool]]:
    """Calibrators by the names of the table, and whether they are told the sources."""
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
    """Both data sets; an intent is called by its source and its name."""
    banking, clinc = (data_folder(folder, name) for name in SOURCES)
    domains = read_domains(clinc)
    chosen = {intent for domain in DOMAINS for intent in domains[domain]}
    short = {
        split: [(text, name) for text, name in pairs if name in chosen]
        for split, pairs in read_clinc150(clinc, "full").items()
    }
    parts = (_with_val(read_banking77(banking)), short)
    splits = {
        split: [
            (text, f"{source}: {name}")
            for source, part in zip(SOURCES, parts, strict=True)
            for text, name in part[split]
        ]
        for split in ("train", "val", "test")
    }
    sources = {split: np.array([name.split(":")[0] for _, name in pairs]) for split, pairs in splits.items()}
    return Sources(numbered(splits), **sources)


def _with_val(found: dict[str, Pairs]) -> dict[str, Pairs]:
    """Set validation rows aside from the training rows, the same for every seed."""
    _, labels, counts = np.unique(
        [name for _, name in found["train"]], return_inverse=True, return_counts=True
    )
    held = min(HELD, int(counts.min()) // 2)
    train, val = corruption.stratified_split(labels, held, np.random.default_rng(0))
    return {
        "train": [found["train"][i] for i in train],
        "val": [found["train"][i] for i in val],
        "test": found["test"],
    }


def spoil(data: Sources, seed: int) -> Split:
    """Training rows with noise in the labels of the first source and few rows of the second."""
    rng, train, n_classes = np.random.default_rng(seed), data.intents.train, len(data.intents.names)
    noisy, rare = (np.unique(train.labels[data.train == source]) for source in SOURCES)
    rows = corruption.undersample(train.labels, rare, KEPT, rng)
    labels = corruption.noisy_labels(train.labels[rows], noisy, NOISE, n_classes, rng)
    return Split([train.texts[i] for i in rows], labels)


def do(training: str, seed: int, folder: str | None) -> list[Line]:
    """Train, calibrate and judge."""
    import intent_models
    from threadpoolctl import threadpool_limits

    data = read(folder)
    train = data.intents.train if training == "as they are" else spoil(data, seed)
    val, test = data.intents.val, data.intents.test
    lines = []
    with threadpool_limits(1):  # runs share the cores
        made = intent_models.train_network(train, val, test.texts, len(data.intents.names), seed)
        for name, (method, told) in methods().items():
            of_val, of_test = ({"groups": rows} if told else {} for rows in (data.val, data.test))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", hetcal.CalibrationWarning)  # many classes lie at a bound
                method.fit(made.val, val.labels, **of_val)
            probs = method.predict_proba(made.test, **of_test)
            found = [*_whole(probs, made.test, test.labels), *_by_source(probs, test.labels, data.test)]
            found += _as_fitted(method.predict_proba(made.val, **of_val), val.labels, data.val)
            found += _crossed(made.test, data) if name == "Uncal" else []
            for group, metric, value, floor in found:
                lines.append(Line((training, str(seed), name, group, metric), value, floor))
    return lines


def _whole(probs: Floats, logits: Floats, labels: NDArray[np.int64]) -> Iterator[Number]:
    """Numbers of all rows together."""
    yield "all", "nll", hetcal.metrics.nll(probs, labels), np.nan
    yield "all", "changed", float(np.mean(probs.argmax(axis=1) != logits.argmax(axis=1))), np.nan


def _by_source(probs: Floats, labels: NDArray[np.int64], sources: Names) -> Iterator[Number]:
    """With sources in the place of classes, max-ECE is the ECE of the worst source, beside its floor."""
    source = np.searchsorted(SOURCES, sources)
    right = np.where(probs.argmax(axis=1) == labels, source, 1 - source)
    found = hetcal.evaluate(probs.max(axis=1), right, SOURCES, predicted=source)
    yield "all", "accuracy", found.accuracy, np.nan
    yield "all", "ece", found.ece, found.floor["ece"]
    yield "worst", "ece", found.max_ece, found.floor["max_ece"]
    table = found.classes
    for i, group in enumerate(SOURCES):
        yield group, "accuracy", float(table.accuracy[i]), np.nan
        yield group, "gap", float(table.signed_gap[i]), np.nan
        yield group, "ece", float(table.ece[i]), float(table.floor[i])


def _as_fitted(probs: Floats, labels: NDArray[np.int64], sources: Names) -> Iterator[Number]:
    """Gap of each source on the very rows of the fit."""
    for group, metric, value, floor in _by_source(probs, labels, sources):
        if metric == "gap":
            yield group, "val_gap", value, floor


def _crossed(logits: Floats, data: Sources) -> Iterator[Number]:
    """Share of each source's messages that the model gives to an intent of the other source."""
    of_intent = np.array([name.split(":")[0] for name in data.intents.names])
    other = of_intent[logits.argmax(axis=1)] != data.test
    for group in SOURCES:
        yield group, "crossed", float(other[data.test == group].mean()), np.nan


def done(seeds: int, folder: str | None, jobs: int) -> list[Line]:
    """Lines of all runs, in order."""
    runs = [(training, seed) for training in ("as they are", "spoilt") for seed in range(seeds)]
    trainings, numbers = zip(*runs, strict=True)
    if jobs == 1:
        return [line for run in runs for line in do(*run, folder)]
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        return [line for lines in pool.map(do, trainings, numbers, repeat(folder)) for line in lines]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Options of the command."""
    parser = argparse.ArgumentParser("groups.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--data", metavar="DIR", help="folder with banking77/ and clinc150/; default $HETCAL_DATA"
    )
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (default 5)")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="default demo-output")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: all cores")
    parser.add_argument("--page", action="store_true", help="draw the page from the table; train nothing")
    options = parser.parse_args(argv)
    if min(options.seeds, options.jobs) < 1:
        parser.error("--seeds and --jobs must be 1 or more")
    return options


def main(argv: list[str] | None = None) -> int:
    """Run what the options ask for; return the exit code."""
    options = parse(argv)
    table = options.output / "results" / "groups.csv"
    started = time.perf_counter()
    if not options.page:
        try:
            read(options.data)  # nothing is trained before all files are in order
            lines = done(options.seeds, options.data, options.jobs)
        except DataError as error:
            print(f"groups.py: {error}", file=sys.stderr)
            return 2
        write_lines(table, COLUMNS, lines)
    found = read_lines(table)
    page = write_page(found, options.output / "docs")
    print(text_table(found))
    print(f"wrote {table}, {page} and its figure in {time.perf_counter() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
