"""Two intent classifiers on words weighted by TF-IDF: logistic regression and a small network, on the CPU.

Both are trained several times over or for many epochs, and the paper's rule picks the one that stands: best
accuracy on the validation rows. What the last one would have given is kept beside it.
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
Try = tuple[float, Floats, Callable[[], Floats]]  # the choice, validation logits, and how to get test logits

STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)  # scikit-learn's C: a large one is a weak penalty
EPOCHS, BATCH, RATE = 30, 256, 3e-3
WIDTH, DROPOUT = 128, 0.3


@dataclass(frozen=True)
class Trained:
    """Logits of the model that stands and of the last one.

    Attributes
    ----------
    val, test : (n, K) logits of the best model by validation accuracy
    last : (n, K) test logits of the last model: last epoch, or weakest penalty
    choice : the epoch or the C that was chosen
    """

    val: Floats
    test: Floats
    last: Floats
    choice: float


def train_logistic(train: Split, val: Split, test: list[str], n_classes: int, seed: int) -> Trained:  # noqa: ARG001
    """Logistic regression for every C of the grid; nothing in it is random."""
    _, (seen, judged, unseen) = _weigh(train.texts, val.texts, test)

    def tries() -> Iterator[Try]:
        for c in STRENGTHS:
            model = LogisticRegression(C=c, max_iter=1000).fit(seen, train.labels)
            yield c, _all_columns(model, judged, n_classes), partial(_all_columns, model, unseen, n_classes)

    return _best(tries(), val.labels)


def train_network(train: Split, val: Split, test: list[str], n_classes: int, seed: int) -> Trained:
    """Embedding bag and one hidden layer, by Adam; `seed` draws the weights, the dropout and the order."""
    n_words, (seen, judged, unseen) = _weigh(train.texts, val.texts, test)
    torch.set_num_threads(1)  # runs share the cores, and one thread repeats its sums
    torch.manual_seed(seed)
    net = _Network(n_words, n_classes)
    steps = torch.optim.Adam(net.parameters(), lr=RATE, fused=True)
    labels, val_bags, test_bags = torch.from_numpy(train.labels), _bags(judged), _bags(unseen)

    def tries() -> Iterator[Try]:
        for epoch in range(1, EPOCHS + 1):
            _one_epoch(net, steps, seen, labels)
            yield epoch, net.logits(val_bags), partial(net.logits, test_bags)

    return _best(tries(), val.labels)


def _best(tries: Iterator[Try], labels: NDArray[np.int64]) -> Trained:
    """The first of the models that are most often right on the validation rows."""
    most, kept = -1, None
    for choice, val, judge in tries:
        right = int((val.argmax(axis=1) == labels).sum())
        if right > most:
            most, kept = right, (val, judge(), choice)
    if kept is None:
        raise ValueError("tries must hold at least one model, got none")
    return Trained(kept[0], kept[1], judge(), kept[2])


class _Network(nn.Module):
    """Sum of word vectors, two rectified layers, one logit per class."""

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
        """Logits without dropout, as an array."""
        self.eval()
        return np.asarray(self(bags).numpy())


def _one_epoch(net: _Network, steps: torch.optim.Optimizer, rows: Any, labels: torch.Tensor) -> None:
    net.train()
    for batch in torch.randperm(len(labels)).split(BATCH):
        steps.zero_grad()
        functional.cross_entropy(net(_bags(rows[batch.numpy()])), labels[batch]).backward()
        steps.step()


def _weigh(*texts: list[str]) -> tuple[int, list[Any]]:
    """Number of words, and sparse TF-IDF rows of each list; words and weights are those of the first list."""
    vectors = TfidfVectorizer(sublinear_tf=True, dtype=np.float32).fit(texts[0])
    return len(vectors.vocabulary_), [vectors.transform(some) for some in texts]


def _bags(rows: Any) -> Bags:
    """Word numbers of all rows in a line, where each row starts, and the weights."""
    return (
        torch.from_numpy(rows.indices.astype(np.int64)),
        torch.from_numpy(rows.indptr[:-1].astype(np.int64)),
        torch.from_numpy(rows.data),
    )


def _all_columns(model: LogisticRegression, rows: Any, n_classes: int) -> Floats:
    """Logits with a column per class, far below the rest for a class that was not in the training rows."""
    scores = model.decision_function(rows)
    out = np.full((len(scores), n_classes), scores.min() - 10, dtype=np.float32)
    out[:, model.classes_] = scores
    return out


MODELS: dict[str, Callable[[Split, Split, list[str], int, int], Trained]] = {
    "network": train_network,
    "logistic": train_logistic,
}
