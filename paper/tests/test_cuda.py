"""CUDA graphs, streams and compiled kernels agree with plain steps. These tests need a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hetcal_paper import cifar
from hetcal_paper import trainer as trainer_module
from hetcal_paper.batches import DeviceImages
from hetcal_paper.runs import Run, noise
from hetcal_paper.trainer import Trainer
from hetcal_paper.weights import Functions

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module")
def images(cifar10: Path) -> DeviceImages:
    images = DeviceImages(cifar.load("c10", cifar10, strict_size=False), torch.device("cuda"))
    torch.cuda.synchronize()
    return images


def run_of(seed: int, recipe: str = "adam", network: str = "resnet20") -> Run:
    return noise("c10", (0, 4), 0.3, seed, network=network, epochs=4, batch_size=32, recipe=recipe)


def train(trainers: list[Trainer]) -> None:
    for _ in range(4):
        for trainer in trainers:
            trainer.start_epoch()
        for trainer in trainers:
            trainer.finish_epoch()


@pytest.mark.parametrize("recipe", ["adam", "sgd"])
def test_graphs_agree_with_plain_steps(
    images: DeviceImages, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions = Functions("resnet20", 10, compiled=False)
    captured = Trainer(run_of(0, recipe), images, functions)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_launch", lambda _, work: work)
        plain = Trainer(run_of(0, recipe), images, functions)
        train([plain])
    train([captured])
    np.testing.assert_allclose(captured.history.train_loss, plain.history.train_loss, rtol=0.02)


def test_low_precision_agrees_with_the_cpu(images: DeviceImages) -> None:
    functions = Functions("tiny", 10, compiled=False)
    on_cpu = DeviceImages(images.cifar, torch.device("cpu"))
    pair = [Trainer(run_of(0, network="tiny"), where, functions) for where in (images, on_cpu)]
    train(pair)
    np.testing.assert_allclose(pair[0].history.train_loss, pair[1].history.train_loss, rtol=0.01)


def test_compiled_runs_share_one_compilation(images: DeviceImages) -> None:
    counters = torch._dynamo.utils.counters["stats"]
    before = counters["unique_graphs"]
    functions = Functions("resnet20", 10, compiled=True)
    trainers = [Trainer(run_of(seed), images, functions) for seed in range(3)]
    assert functions.compiled
    assert counters["unique_graphs"] - before == 2
    train(trainers)
    eager = Trainer(run_of(0), images, Functions("resnet20", 10, compiled=False))
    train([eager])
    np.testing.assert_allclose(trainers[0].history.train_loss, eager.history.train_loss, rtol=0.02)


def test_parallel_runs_agree_with_single_runs(images: DeviceImages) -> None:
    functions = Functions("resnet20", 10, compiled=False)
    trainers = [Trainer(run_of(seed), images, functions) for seed in range(4)]
    train(trainers)
    for seed, trainer in enumerate(trainers):
        alone = Trainer(run_of(seed), images, functions)
        train([alone])
        np.testing.assert_allclose(trainer.history.train_loss, alone.history.train_loss, rtol=0.02)


def test_remaining_steps_are_run(images: DeviceImages, monkeypatch: pytest.MonkeyPatch) -> None:
    functions = Functions("tiny", 10, compiled=False)
    whole = Trainer(run_of(0, network="tiny"), images, functions)
    monkeypatch.setattr(trainer_module, "_steps_per_launch", lambda _: 5)  # 14 steps need a second graph
    split = Trainer(run_of(0, network="tiny"), images, functions)
    train([whole, split])
    np.testing.assert_allclose(split.history.train_loss, whole.history.train_loss, rtol=1e-3)


def test_snapshots_resume(images: DeviceImages) -> None:
    functions = Functions("tiny", 10, compiled=False)
    whole = Trainer(run_of(0, network="tiny"), images, functions)
    train([whole])
    first = Trainer(run_of(0, network="tiny"), images, functions)
    for _ in range(2):
        first.start_epoch()
        first.finish_epoch()
    second = Trainer(run_of(0, network="tiny"), images, functions, first.snapshot())
    while not second.done:
        second.start_epoch()
        second.finish_epoch()
    np.testing.assert_allclose(second.history.train_loss, whole.history.train_loss, rtol=1e-3)
    for state in second.choices().values():
        val, test = second.logits(state)
        assert np.isfinite(val).all()
        assert np.isfinite(test).all()
