"""The function for a `Trainer` returns the numbers of `hetcal.evaluate`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import hetcal
from hetcal.huggingface import make_compute_metrics

FLOORED = ("ece", "max_ece", "avg_ece")
SCORES = ("accuracy", "nll", "brier", "smooth_ece", "debiased_ece", *FLOORED)


class Prediction(NamedTuple):
    """The attributes of ``transformers.EvalPrediction``."""

    predictions: Any
    label_ids: Any


@pytest.fixture(scope="module")
def sample(make_sample: Any) -> Any:
    return make_sample(600, 3, seed=0, dtype=np.float32)


def assert_values(values: dict[str, Any], expected: hetcal.Evaluation) -> None:
    assert values == {name: getattr(expected, name) for name in SCORES} | {
        f"{name}_floor": expected.floor[name] for name in FLOORED
    }


def test_rows(sample: Any) -> None:
    compute_metrics = make_compute_metrics(n_bins=8)
    expected = hetcal.evaluate(logits=sample.z, labels=sample.y, n_bins=8)
    assert_values(compute_metrics(Prediction(sample.z, sample.y)), expected)
    hidden = np.zeros((600, 7))
    assert_values(compute_metrics(Prediction((sample.z, hidden), sample.y)), expected)


def test_tokens(sample: Any) -> None:
    labels = sample.y.copy()
    labels[::5] = -100
    values = make_compute_metrics()(Prediction(sample.z.reshape(60, 10, 3), labels.reshape(60, 10)))
    used = labels != -100
    assert_values(values, hetcal.evaluate(logits=sample.z[used], labels=sample.y[used]))


def test_probabilities(sample: Any) -> None:
    probs = hetcal.Identity().fit(sample.z, sample.y).predict_proba(sample.z)
    values = make_compute_metrics(from_probs=True, seed=4)(Prediction(probs, sample.y))
    assert_values(values, hetcal.evaluate(probs, sample.y, rng=4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda z, y: (z, y[:-1]), r"predictions must have the shape of the labels .* got \(600, 3\)"),
        (lambda z, y: (z[:, 0], y), "predictions must have the shape of the labels"),
        (lambda z, y: (z, np.full_like(y, -100)), "labels must contain values other than -100"),
        (lambda z, y: (z, (y, y)), "set label_names"),
        (lambda z, y: (z, y + 1), "labels must"),
    ],
    ids=["length", "one dimension", "ignored", "several labels", "range"],
)
def test_errors(sample: Any, change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_compute_metrics()(Prediction(*change(sample.z, sample.y)))


@pytest.mark.parametrize("option", ["n_bins", "n_redraws", "seed", "ignore_index", "from_probs"])
def test_errors_of_options(option: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"{option} must"):
        make_compute_metrics(**{option: "a"})


@pytest.mark.filterwarnings("ignore")  # of transformers and PyTorch
@pytest.mark.parametrize("tokens", [False, True], ids=["rows", "tokens"])
def test_a_trainer_logs_the_numbers(tmp_path: Any, tokens: bool) -> None:
    reason = (
        "transformers is too large to be a dependency of the tests; install it with accelerate and datasets"
    )
    transformers = pytest.importorskip("transformers", reason=reason)
    pytest.importorskip("accelerate", reason=reason)
    datasets = pytest.importorskip("datasets", reason=reason)
    rng = np.random.default_rng(0)
    labels = rng.integers(-1, 3, (64, 8)) if tokens else rng.integers(0, 3, 64)
    labels[labels < 0] = -100
    ids = rng.integers(0, 50, (64, 8))
    rows = datasets.Dataset.from_dict({"input_ids": ids.tolist(), "labels": labels.tolist()})
    kind = "Token" if tokens else "Sequence"
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        num_labels=3,
    )  # fmt: skip
    trainer = transformers.Trainer(
        getattr(transformers, f"BertFor{kind}Classification")(config),
        transformers.TrainingArguments(str(tmp_path), report_to=[], use_cpu=True, disable_tqdm=True),
        eval_dataset=rows,
        compute_metrics=make_compute_metrics(),
    )
    logged = trainer.evaluate()
    output = trainer.predict(rows)
    used = output.label_ids != -100
    expected = hetcal.evaluate(logits=output.predictions[used], labels=output.label_ids[used])
    assert logged["eval_max_ece"] == expected.max_ece
    assert logged["eval_max_ece_floor"] == expected.floor["max_ece"]
