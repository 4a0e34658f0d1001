"""Two intent classifiers on TF-IDF features: logistic regression and a small network, on the CPU.

As in the paper, we select the model with the best validation accuracy, over all epochs of the network or all
penalties of logistic regression. We also return the test logits of the last model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from intent_data import Split
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.nn import functional

__all__ = ["MODELS", "Trained", "train_logistic", "train_network"]

Floats = NDArray[np.float32]
Bags = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
# Epoch or C, validation logits, and a function that returns the test logits
Candidate = tuple[float, Floats, Callable[[], Floats]]

STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)  # scikit-learn's C: large values mean a weak penalty
EPOCHS, BATCH, RATE = 30, 256, 3e-3
WIDTH, DROPOUT = 128, 0.3


@dataclass(frozen=True)
class Trained:
    """Logits of the selected model and of the last one.

    Attributes
    ----------
    val, test : (n, K) logits of the model with the best validation accuracy
    last : (n, K) test logits of the last model: last epoch, or weakest penalty
    choice : the selected epoch or C
    """

    val: Floats
    test: Floats
    last: Floats
    choice: float


def train_logistic(train: Split, val: Split, test: list[str], n_classes: int, seed: int) -> Trained:  # noqa: ARG001
    """Train logistic regression for every C. The result does not depend on the seed."""
    _, (train_rows, val_rows, test_rows) = _tf_idf(train.texts, val.texts, test)

    def candidates() -> Iterator[Candidate]:
        for c in STRENGTHS:
            model = LogisticRegression(C=c, max_iter=1000).fit(train_rows, train.labels)
            yield (
                c,
                _all_columns(model, val_rows, n_classes),
                partial(_all_columns, model, test_rows, n_classes),
            )

    return _best(candidates(), val.labels)


def train_network(train: Split, val: Split, test: list[str], n_classes: int, seed: int) -> Trained:
    """Train an embedding bag with two hidden layers by Adam. `seed` sets weights, dropout and row order."""
    n_words, (train_rows, val_rows, test_rows) = _tf_idf(train.texts, val.texts, test)
    torch.set_num_threads(1)  # runs share the cores, and one thread is deterministic
    torch.manual_seed(seed)
    net = _Network(n_words, n_classes)
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE, fused=True)
    labels, val_bags, test_bags = torch.from_numpy(train.labels), _bags(val_rows), _bags(test_rows)

    def candidates() -> Iterator[Candidate]:
        for epoch in range(1, EPOCHS + 1):
            _train_epoch(net, optimizer, train_rows, labels)
            yield epoch, net.logits(val_bags), partial(net.logits, test_bags)

    return _best(candidates(), val.labels)


def _best(candidates: Iterator[Candidate], labels: NDArray[np.int64]) -> Trained:
    """Return the model with the best validation accuracy, or the first one if several are equally good."""
    most, best = -1, None
    for choice, val, predict_test in candidates:
        n_correct = int((val.argmax(axis=1) == labels).sum())
        if n_correct > most:
            most, best = n_correct, (val, predict_test(), choice)
    if best is None:
        raise ValueError("candidates must contain at least one model, got none; train for at least one epoch")
    return Trained(best[0], best[1], predict_test(), best[2])


class _Network(nn.Module):
    """Sum of word vectors, two hidden layers with ReLU, one logit per class."""

    def __init__(self, n_words: int, n_classes: int) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(n_words, WIDTH, mode="sum")
        nn.init.normal_(self.words.weight, std=0.1)
        self.offset = nn.Parameter(torch.zeros(WIDTH))
        self.rest = nn.Sequential(
            nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(WIDTH, n_classes)
        )

    def forward(self, bags: Bags) -> torch.Tensor:
        words, starts, weights = bags
        out: torch.Tensor = self.rest(self.words(words, starts, per_sample_weights=weights) + self.offset)
        return out

    @torch.no_grad()
    def logits(self, bags: Bags) -> Floats:
        """Return the logits without dropout as an array."""
        self.eval()
        return np.asarray(self(bags).numpy())


def _train_epoch(net: _Network, optimizer: torch.optim.Optimizer, rows: Any, labels: torch.Tensor) -> None:
    net.train()
    for batch in torch.randperm(len(labels)).split(BATCH):
        optimizer.zero_grad()
        functional.cross_entropy(net(_bags(rows[batch.numpy()])), labels[batch]).backward()
        optimizer.step()


def _tf_idf(*texts: list[str]) -> tuple[int, list[Any]]:
    """Return the vocabulary size and sparse TF-IDF rows of each list, fitted on the first list."""
    vectorizer = TfidfVectorizer(sublinear_tf=True, dtype=np.float32).fit(texts[0])
    return len(vectorizer.vocabulary_), [vectorizer.transform(part) for part in texts]


def _bags(rows: Any) -> Bags:
    """Return the concatenated word indices, the start of each row, and the weights."""
    return (
        torch.from_numpy(rows.indices.astype(np.int64)),
        torch.from_numpy(rows.indptr[:-1].astype(np.int64)),
        torch.from_numpy(rows.data),
    )


def _all_columns(model: LogisticRegression, rows: Any, n_classes: int) -> Floats:
    """Return logits for all classes, with low values for classes without training rows."""
    scores = model.decision_function(rows)
    out = np.full((len(scores), n_classes), scores.min() - 10, dtype=np.float32)
    out[:, model.classes_] = scores
    return out


MODELS: dict[str, Callable[[Split, Split, list[str], int, int], Trained]] = {
    "network": train_network,
    "logistic": train_logistic,
}
