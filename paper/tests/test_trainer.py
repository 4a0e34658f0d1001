from __future__ import annotations

import copy
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from hetcal_paper import cifar, networks
from hetcal_paper import trainer as trainer_module
from hetcal_paper.batches import DeviceImages, choose_rows, draw_epoch, weight_generator
from hetcal_paper.runs import Run, clean, noise, sample
from hetcal_paper.trainer import Trainer
from hetcal_paper.weights import Functions, Layout, Weights

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def images(cifar10: Path) -> DeviceImages:
    return DeviceImages(cifar.load("c10", cifar10, strict_size=False), CPU)


def tiny(seed: int = 0, epochs: int = 3, recipe: str = "adam") -> Run:
    return noise("c10", (0, 4), 0.3, seed, network="tiny", epochs=epochs, batch_size=32, recipe=recipe)


def functions() -> Functions:
    return Functions("tiny", 10, compiled=False)


def trained(run: Run, images: DeviceImages, **options: torch.dtype) -> Trainer:
    trainer = Trainer(run, images, functions(), **options)
    while not trainer.done:
        trainer.start_epoch()
        trainer.finish_epoch()
    return trainer


def by_hand(run: Run, images: DeviceImages) -> tuple[list[float], np.ndarray]:
    """The same training with an ordinary module and optimiser."""
    cifar = images.cifar
    rows = choose_rows(run, cifar.train_labels, 10)
    scale = images.scale(rows.train)
    network = networks.build("tiny", 10, weight_generator(run))
    parameters = list(network.parameters())
    optimiser: torch.optim.Optimizer = (
        torch.optim.Adam(parameters, weight_decay=run.weight_decay)
        if run.recipe == "adam"
        else torch.optim.SGD(parameters, lr=1, momentum=0.9, nesterov=True, weight_decay=run.weight_decay)
    )
    losses = []
    for epoch in range(1, run.epochs + 1):
        drawn = draw_epoch(run, epoch, rows.train.size)
        out = torch.empty((rows.train.size, 32, 32, 3))
        images.fill(out, torch.from_numpy(rows.train[drawn[0]]), torch.from_numpy(drawn[1:]), scale)
        labels = torch.from_numpy(rows.labels[drawn[0]])
        optimiser.param_groups[0]["lr"] = run.phase(epoch)[1]
        total = []
        for step in range(rows.train.size // 32):
            batch = slice(32 * step, 32 * step + 32)
            loss = cross_entropy(network(out[batch].permute(0, 3, 1, 2)), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total.append(loss.item())
        losses.append(float(np.mean(total)))
    network.eval()
    with torch.no_grad():
        test = network(images.test(0, len(cifar.test_labels), scale).permute(0, 3, 1, 2))
    return losses, test.numpy()


@pytest.mark.parametrize("recipe", ["adam", "sgd"])
def test_training_agrees_with_an_ordinary_loop(images: DeviceImages, recipe: str) -> None:
    run = tiny(recipe=recipe)
    trainer = trained(run, images)
    losses, test = by_hand(run, images)
    np.testing.assert_allclose(trainer.history.train_loss, losses, rtol=1e-4)
    _, logits = trainer.logits(trainer.choices()["last"])
    np.testing.assert_allclose(logits, test, rtol=1e-2, atol=1e-3)


def test_low_precision_stays_close(images: DeviceImages) -> None:
    exact, low = trained(tiny(), images), trained(tiny(), images, dtype=torch.bfloat16)
    np.testing.assert_allclose(low.history.train_loss, exact.history.train_loss, rtol=5e-3)
    assert low.history.train_loss != exact.history.train_loss


def test_the_task_is_learnt(images: DeviceImages) -> None:
    trainer = trained(clean("c10", 0, network="tiny", epochs=20, batch_size=32), images)
    loss = trainer.history.train_loss
    assert loss[-1] < 0.75 * loss[0]
    assert max(trainer.history.val_accuracy) > 0.25
    val, _ = trainer.logits(trainer.choices()["best"])
    accuracy = (val.argmax(1) == trainer.validation_labels).mean()
    assert accuracy == pytest.approx(max(trainer.history.val_accuracy))


def test_choices_are_the_best_epochs_of_their_phase(images: DeviceImages) -> None:
    run = tiny(epochs=8, recipe="sgd")
    trainer = trained(run, images)
    choices = trainer.choices()
    accuracy = np.array(trainer.history.val_accuracy)
    phases = np.array([run.phase(epoch)[0] for epoch in range(1, 9)])
    assert sorted(choices) == ["best", "last", "phase1", "phase2", "phase3", "phase4"]
    assert choices["best"].epoch == accuracy.argmax() + 1
    assert choices["last"].epoch == 8
    for phase in (1, 2, 3, 4):
        masked = np.where(phases == phase, accuracy, -1)
        assert choices[f"phase{phase}"].epoch == masked.argmax() + 1
    for state in choices.values():
        val, _ = trainer.logits(state)
        assert (val.argmax(1) == trainer.validation_labels).mean() == pytest.approx(state.accuracy)


@pytest.mark.parametrize(("stops_early", "epochs"), [(False, 8), (True, 5)])
def test_early_stopping_ends_training(images: DeviceImages, stops_early: bool, epochs: int) -> None:
    trainer = Trainer(tiny(epochs=8, recipe="sgd"), images, functions(), stops_early=stops_early)
    accuracies = iter([0.1, 0.2, 0.3, 0.3, 0.2, 0.1, 0.1, 0.2])  # patience is two epochs
    assert not trainer.done
    while not trainer.done:
        trainer.start_epoch()
        trainer.finish_epoch()
        trainer.history.val_accuracy[-1] = next(accuracies)
    assert trainer.epoch == epochs


def test_snapshots_resume_exactly(images: DeviceImages) -> None:
    whole = trained(tiny(epochs=4), images)
    first = Trainer(tiny(epochs=4), images, functions())
    for _ in range(2):
        first.start_epoch()
        first.finish_epoch()
    state = copy.deepcopy(first.snapshot())
    first.start_epoch()
    first.finish_epoch()  # further training must not change the snapshot
    second = Trainer(tiny(epochs=4), images, functions(), state)
    assert second.epoch == 2
    while not second.done:
        second.start_epoch()
        second.finish_epoch()
    assert second.history == whole.history
    for choice, expected in whole.choices().items():
        assert second.choices()[choice].epoch == expected.epoch
        for ours, theirs in zip(second.logits(second.choices()[choice]), whole.logits(expected), strict=True):
            assert np.array_equal(ours, theirs)


def test_small_runs_use_all_their_rows_at_once(images: DeviceImages) -> None:
    run = sample("c10", 0.05, 0, network="tiny", epochs=1)
    trainer = trained(run, images)
    assert trainer.n_train == 20
    assert len(trainer.history.train_loss) == 1


def test_parallel_runs_are_independent(images: DeviceImages) -> None:
    shared = functions()
    pair = [Trainer(tiny(seed), images, shared) for seed in (0, 1)]
    for _ in range(3):
        for trainer in pair:
            trainer.start_epoch()
        while not all([trainer.ready() for trainer in pair]):  # noqa: C419 - every trainer must advance
            continue
        for trainer in pair:
            trainer.finish_epoch()
    for trainer, seed in zip(pair, (0, 1), strict=True):
        assert trainer.history == trained(tiny(seed), images).history


def test_a_non_finite_loss_raises(images: DeviceImages) -> None:
    broken = functions()
    loss = broken.loss
    trainer = Trainer(tiny(), images, broken)
    broken.loss = lambda *arguments: loss(*arguments) * float("nan")
    trainer.start_epoch()
    with pytest.raises(FloatingPointError, match="must stay finite, got nan in epoch 1 of c10-noise"):
        trainer.finish_epoch()


def test_training_continues_without_a_failing_compiler(
    images: DeviceImages, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> torch.Tensor:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: fails)
    broken = Functions("tiny", 10, compiled=True)
    with caplog.at_level(logging.WARNING):
        trainer = Trainer(tiny(), images, broken)
    assert "torch.compile failed for tiny" in caplog.text
    assert trainer.path == "eager"
    trainer.start_epoch()
    trainer.finish_epoch()
    assert trainer.history.train_loss[0] == trained(tiny(), images).history.train_loss[0]


def test_errors_of_the_network_itself_are_not_hidden(images: DeviceImages) -> None:
    broken = functions()
    broken.loss = lambda *_: (_ for _ in ()).throw(RuntimeError("real"))
    with pytest.raises(RuntimeError, match="real"):
        Trainer(tiny(), images, broken)


def test_layout_views_cover_the_parameters_and_are_aligned() -> None:
    layout = Layout.of(networks.build("resnet20", 10))
    flat = torch.arange(layout.size, dtype=torch.float64)
    views = layout.views(flat)
    assert [view.shape for view in views] == list(layout.shapes)
    assert len(set(torch.cat([view.flatten() for view in views]).tolist())) == 272_282
    assert all(start % 64 == 0 for start in layout.starts)
    stem = views[layout.names.index("stem.weight")]
    assert stem.is_contiguous(memory_format=torch.channels_last)


def test_weights_share_memory_with_the_flat_tensor() -> None:
    net = functions()
    weights = Weights(net.layout, CPU, torch.float32)
    flat, stats = net.initial(torch.Generator().manual_seed(1))
    weights.load(flat, stats)
    reference = networks.build("tiny", 10, torch.Generator().manual_seed(1))
    for leaf, parameter in zip(weights.leaves, reference.parameters(), strict=True):
        assert torch.equal(leaf, parameter)
    for ours, theirs in zip(weights.copies(), (flat, stats), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(("steps", "expected"), [(351, 13), (7, 7), (1, 1), (177, 16), (350, 14), (32, 16)])
def test_steps_per_launch(steps: int, expected: int) -> None:
    assert trainer_module._steps_per_launch(steps) == expected
