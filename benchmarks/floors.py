"""Compare floors that replace probabilities of zero, by the log-loss on fresh rows.

    python benchmarks/floors.py [--data DIR]

The classifiers produce zeros (forests, trees, nearest neighbours, naive Bayes). The data sets come from
scikit-learn, and Banking77 is included if DIR (or HETCAL_DATA) contains it. Half of the rows train the
classifier, a quarter fits the calibrator, and a quarter evaluates it. In the names of the floors, `s` is the
smallest positive probability in the rows to fit on, and K is the number of classes.
"""

from __future__ import annotations

import argparse
import csv
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

import hetcal

FLOORS: dict[str, Callable[[float, int], float]] = {
    "s/2": lambda s, _: s / 2,
    "s/K": lambda s, k: s / k,
    "s/K²": lambda s, k: s / k**2,
    "1e-6": lambda s, k: 1e-6,  # noqa: ARG005
    "1e-38": lambda s, k: 1.2e-38,  # noqa: ARG005
}
MODELS: dict[str, Any] = {
    "forest of 20": RandomForestClassifier(20, random_state=0),
    "forest of 200": RandomForestClassifier(200, random_state=0),
    "forest, 5 per leaf": RandomForestClassifier(100, min_samples_leaf=5, random_state=0),
    "5 neighbours": KNeighborsClassifier(5),
    "naive Bayes": GaussianNB(),
    "tree": DecisionTreeClassifier(random_state=0),
    "tree, 20 per leaf": DecisionTreeClassifier(min_samples_leaf=20, random_state=0),
}


def data_sets(folder: Path | None) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, features and labels of each data set."""
    yield ("digits", *load_digits(return_X_y=True))
    yield ("cancer", *load_breast_cancer(return_X_y=True))
    options = {"n_samples": 6000, "random_state": 0}
    yield ("two noisy classes", *make_classification(n_features=20, n_informative=8, flip_y=0.2, **options))
    yield ("eight classes", *make_classification(n_features=30, n_informative=12, n_classes=8, **options))
    path = None if folder is None else folder / "banking77" / "train.csv"
    if path is not None and path.is_file():
        with path.open(newline="", encoding="utf-8") as file:
            texts, intents = zip(*list(csv.reader(file))[1:], strict=True)
        features = TfidfVectorizer(max_features=400).fit_transform(texts).toarray()
        yield "Banking77", features, np.unique(intents, return_inverse=True)[1]


def log_losses(probs: Any, labels: Any, fresh: Any, truth: Any) -> dict[str, float]:
    """Return the log-loss of temperature scaling on fresh rows for every floor."""
    k = probs.shape[1]
    smallest = float(probs[probs > 0].min())
    out = {}
    for name, rule in FLOORS.items():
        floor = float(np.clip(rule(smallest, k), 1.2e-38, 1 / (2 * k)))
        cal = hetcal.TemperatureScaling().fit(np.log(np.maximum(probs, floor)), labels)
        p = cal.predict_proba(np.log(np.maximum(fresh, floor)))
        out[name] = float(-np.log(np.maximum(p[np.arange(len(truth)), truth], 1e-300)).mean())
    return out


def main() -> None:
    """Print one row per data set and classifier."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("HETCAL_DATA"))
    folder = parser.parse_args().data
    warnings.simplefilter("ignore", hetcal.CalibrationWarning)
    print("| data | classifier | K | zeros |", " | ".join(FLOORS), "|")
    print("|---" * (4 + len(FLOORS)) + "|")
    best = dict.fromkeys(FLOORS, 0)
    for name, features, labels in data_sets(None if folder is None else Path(folder)):
        train, rest, y_train, y_rest = train_test_split(
            features, labels, test_size=0.5, random_state=0, stratify=labels
        )
        fit, evaluate = train_test_split(np.arange(len(y_rest)), test_size=0.5, random_state=1)
        for kind, model in MODELS.items():
            p = model.fit(train, y_train).predict_proba(rest)
            losses = log_losses(p[fit], y_rest[fit], p[evaluate], y_rest[evaluate])
            lowest = min(losses.values())
            for floor, loss in losses.items():
                best[floor] += loss <= lowest + 5e-4
            cells = " | ".join(f"{loss:.3f}" for loss in losses.values())
            print(f"| {name} | {kind} | {p.shape[1]} | {np.mean(p == 0):.0%} | {cells} |", flush=True)
    print("best, or within 0.0005 of the best:", ", ".join(f"{floor} {n}" for floor, n in best.items()))


if __name__ == "__main__":
    main()
