"""Held-out logits for the calibrator study: trained networks, real text, small tables and synthetic data.

``design`` marks the problems that were used to design AutoCalibrator. All others were evaluated afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

__all__ = ["Pool", "pools"]

ROOT = Path(__file__).parent.parent
_DESIGN = ("c10-noise-0-4", "c10-under-0-4", "c10-clean", "c100-noise-0-49-r0.30-s0-wd0.0003")


@dataclass(frozen=True)
class Pool:
    """Rows that the model was not trained on, from which the study draws its splits."""

    name: str
    family: str
    logits: np.ndarray
    labels: np.ndarray
    design: bool
    groups: np.ndarray | None = None

    @property
    def n_classes(self) -> int:
        """Number of columns of the logits."""
        return self.logits.shape[1]


def pools(text: Path | None) -> Iterator[Pool]:
    """Yield every problem. `text` is the folder that contains clinc150/; without it, text is skipped."""
    yield from _networks()
    yield from _tables()
    yield from _synthetic()
    yield from _grouped()
    if text is not None:
        yield from _clinc(text)


def _networks() -> Iterator[Pool]:
    files = {path.stem: path for path in sorted((ROOT / "paper" / "results" / "logits").glob("*.npz"))}
    for name, path in files.items():
        with np.load(path, allow_pickle=False) as archive:
            yield _pool(name, "CIFAR", *(archive[k] for k in _KEYS))


_KEYS = ("val_logits", "val_labels", "test_logits", "test_labels")


def _pool(name: str, family: str, z: Any, y: Any, z2: Any, y2: Any) -> Pool:
    logits = np.concatenate([z, z2]).astype(np.float32)
    labels = np.concatenate([y, y2]).astype(np.int64)
    return Pool(name, family, logits, labels, name.startswith(_DESIGN))


def _tables() -> Iterator[Pool]:
    """Yield scikit-learn's small data sets; models are trained on two fifths of the rows."""
    for name, load in (("digits", load_digits), ("cancer", load_breast_cancer), ("wine", load_wine)):
        X, y = load(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(y))
        train, rest = np.split(order, [2 * len(y) // 5])
        noisy = y[train].copy()
        is_noisy = np.random.default_rng(1).random(len(train)) < 0.2 * (noisy < (y.max() + 1) / 2)
        noisy[is_noisy] = np.random.default_rng(2).integers(0, y.max() + 1, is_noisy.sum())
        for kind, model in _models().items():
            p = model.fit(X[train], noisy).predict_proba(X[rest])
            z = np.log(np.clip(p, 1e-6, None)).astype(np.float32)
            yield Pool(f"{name}, {kind}", "tables", z, y[rest], False)


def _models() -> dict[str, Any]:
    return {
        "bayes": GaussianNB(),
        "logistic": make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
        "forest": RandomForestClassifier(50, random_state=0),
        "network": make_pipeline(StandardScaler(), MLPClassifier((64,), max_iter=300, random_state=0)),
    }


def _synthetic() -> Iterator[Pool]:
    """Yield logits whose labels are drawn from a known map, so that the best calibrator is known."""
    for k in (5, 50):
        rng = np.random.default_rng(k)
        z = (rng.standard_normal((20_000, k)) * rng.uniform(1.5, 3, k)).astype(np.float32)
        top = z.argmax(axis=1)
        alpha = np.exp(0.5 * rng.standard_normal(k))
        maps = {
            "already calibrated": z,
            "one temperature": 0.6 * z,
            "one temperature per class": alpha[top, None] * z,
            "scale and bias per class": 0.8 * alpha * z + 0.7 * rng.standard_normal(k),
        }
        for map_name, truth in maps.items():
            yield Pool(f"{map_name}, K = {k}", "synthetic", z, _draw_labels(truth, rng), False)


def _grouped() -> Iterator[Pool]:
    """Yield problems with known groups: synthetic logits, and handwritten digits by the amount of ink.

    The digits are split into thirds by their ink. The training labels of the third with the least ink are
    noisy, and few training rows of the third with the most ink are kept.
    """
    for k in (5, 50):
        rng = np.random.default_rng([k, 1])
        z = (rng.standard_normal((20_000, k)) * rng.uniform(1.5, 3, k)).astype(np.float32)
        groups = rng.integers(0, 4, len(z))
        truth = np.array([0.4, 0.7, 1.0, 1.6])[groups, None] * z
        yield Pool(
            f"one temperature per group, K = {k}", "groups", z, _draw_labels(truth, rng), False, groups
        )
    X, y = load_digits(return_X_y=True)
    ink = np.digitize(X.sum(axis=1), np.quantile(X.sum(axis=1), [1 / 3, 2 / 3]))
    rng = np.random.default_rng(0)
    train, rest = np.split(rng.permutation(len(y)), [2 * len(y) // 5])
    noisy = y.copy()
    is_noisy = (ink == 0) & (rng.random(len(y)) < 0.4)
    noisy[is_noisy] = rng.integers(0, 10, is_noisy.sum())
    train = train[(ink[train] < 2) | (rng.random(len(train)) < 0.3)]
    for kind, model in _models().items():
        p = model.fit(X[train], noisy[train]).predict_proba(X[rest])
        z = np.log(np.clip(p, 1e-6, None)).astype(np.float32)
        yield Pool(f"digits by ink, {kind}", "groups", z, y[rest], False, ink[rest])


def _draw_labels(truth: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw labels from the softmax of logits."""
    p = np.exp(truth - truth.max(axis=1, keepdims=True))
    cumulative = (p / p.sum(axis=1, keepdims=True)).cumsum(axis=1)
    return np.minimum((cumulative < rng.random((len(p), 1))).sum(axis=1), p.shape[1] - 1)


def _clinc(folder: Path) -> Iterator[Pool]:
    """Yield CLINC150 with one-vs-rest logistic regression on words.

    Noise replaces 30% of the training labels of half of the intents by random labels. The full variant is
    used with and without noise, the others only with noise.
    """
    for variant in ("data_full", "data_small", "data_imbalanced"):
        path = folder / "clinc150" / f"{variant}.json"
        parts = json.loads(path.read_text(encoding="utf-8"))
        names = sorted({intent for _, intent in parts["train"]})
        code = {intent: i for i, intent in enumerate(names)}
        texts = {part: [t for t, _ in parts[part]] for part in ("train", "val", "test")}
        labels = {part: np.array([code[i] for _, i in parts[part]]) for part in texts}
        words = TfidfVectorizer(sublinear_tf=True)
        X = words.fit_transform(texts["train"])
        rng = np.random.default_rng(0)
        for noise in (0.0, 0.3) if variant == "data_full" else (0.3,):
            y = labels["train"].copy()
            is_noisy = (rng.random(len(y)) < noise) & (y < len(names) // 2)
            y[is_noisy] = rng.integers(0, len(names), is_noisy.sum())
            model = SGDClassifier(loss="log_loss", alpha=1e-5, max_iter=20, tol=None, random_state=0).fit(
                X, y
            )
            z, z2 = (model.decision_function(words.transform(texts[part])) for part in ("val", "test"))
            name = f"clinc150 {variant.removeprefix('data_')}, noise {noise:g}"
            yield _pool(name, "text", z, labels["val"], z2, labels["test"])
