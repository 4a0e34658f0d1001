"""The hand-written kernels: where they are used, how they are launched, and what they compute.

Numbers are checked in Triton's interpreter, which needs no GPU. It must be enabled before Triton is
imported, so it runs in a separate process, which executes this file as a script.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from hetcal_paper import cifar
from hetcal_paper import trainer as trainer_module
from hetcal_paper.autograd import AutogradSteps
from hetcal_paper.batches import DeviceImages
from hetcal_paper.kernels import FusedSteps, available
from hetcal_paper.kernels import steps as kernel_steps
from hetcal_paper.kernels.launch import CONFIGS, grid_of
from hetcal_paper.runs import clean, few
from hetcal_paper.trainer import Trainer
from hetcal_paper.weights import Functions, Weights

CPU = torch.device("cpu")
BATCH, SIDE, N_CLASSES, DECAY, RATE = 3, 8, 10, 1e-2, 1e-3
N_UPDATES = 3


class Problem(NamedTuple):
    """A network and two batches of small images. ``next_row`` points to the second batch."""

    functions: Functions
    weights: Weights
    inputs: Tensor
    targets: Tensor
    next_row: Tensor
    report: Tensor

    def steps(self) -> FusedSteps:
        steps = FusedSteps(self.functions.layout, *self[1:], batch=BATCH, weight_decay=DECAY)
        steps.set_rate(RATE)
        return steps


def problem(dtype: torch.dtype = torch.float32) -> Problem:
    functions = Functions("resnet20", N_CLASSES, compiled=False)
    draw = torch.Generator().manual_seed(0)
    weights = Weights(functions.layout, CPU, dtype)
    weights.load(*functions.initial(draw))
    for name, view in zip(functions.layout.names, functions.layout.views(weights.flat), strict=True):
        if "norm" in name:  # with the initial values 1 and 0, some errors would stay hidden
            view += 0.2 * torch.randn(view.shape, generator=draw)
    weights.refresh()
    inputs = torch.randn((2 * BATCH, SIDE, SIDE, 3), generator=draw).to(dtype)
    targets = torch.randint(0, N_CLASSES, (2 * BATCH,), generator=draw)
    return Problem(functions, weights, inputs, targets, torch.tensor(BATCH), torch.zeros(2))


# -- choice ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "recipe", "device", "triton", "expected"),
    [
        ("resnet20", "adam", "cuda", True, True),
        ("resnet20", "adam", "cuda", False, False),
        ("resnet20", "adam", "cpu", True, False),
        ("resnet20", "sgd", "cuda", True, False),
        ("tiny", "adam", "cuda", True, False),
        ("wrn28x10", "adam", "cuda", True, False),
    ],
)
def test_kernels_are_used_where_available(
    network: str, recipe: str, device: str, triton: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object() if triton else None)
    assert available(network, recipe, torch.device(device)) is expected


def test_the_engine_can_be_imported_without_triton() -> None:
    code = "import sys; sys.modules['triton'] = None; import hetcal_paper.trainer"
    subprocess.run([sys.executable, "-c", code], env=environment(), check=True)


@pytest.mark.parametrize("compiled", [True, False])
def test_failures_disable_kernels_then_compilation(
    compiled: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    functions = Functions("tiny", 10, compiled=compiled)
    assert functions.fused
    with caplog.at_level(logging.WARNING):
        assert functions.simplify(RuntimeError("no kernel"), fused=True)
    assert "no kernel" in caplog.text
    assert not functions.fused
    assert functions.compiled is compiled
    assert functions.simplify(RuntimeError("no compiler"), fused=False) is compiled
    assert not functions.compiled
    assert not functions.simplify(RuntimeError("no way"), fused=False)


def test_training_continues_without_failing_kernels(cifar10: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no kernel")

    run = few("c10", 2, 0, epochs=1, batch_size=10)
    images = DeviceImages(cifar.load("c10", cifar10, strict_size=False), CPU)
    monkeypatch.setattr(trainer_module, "available", lambda *_: True)
    monkeypatch.setattr(kernel_steps, "launch", fails)
    losses = []
    for fused in (True, False):
        functions = Functions("resnet20", 10, compiled=False, fused=fused)
        trainer = Trainer(run, images, functions)
        assert trainer.path == "eager"
        assert not functions.fused
        trainer.start_epoch()
        trainer.finish_epoch()
        losses += trainer.history.train_loss
    assert losses[0] == losses[1]


# -- launches -------------------------------------------------------------------------------------

Launch = tuple[str, tuple[int, int], int | None, tuple[Any, ...], dict[str, Any]]


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def launches(request: pytest.FixtureRequest) -> list[Launch]:
    """All launches of one step and one evaluation."""
    launched: list[Launch] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            kernel_steps,
            "launch",
            lambda name, key, items, *args, **kw: launched.append((name, key, items, args, kw)),
        )
        case = problem(request.param)
        steps = case.steps()
        steps.step()
        steps.evaluate(case.inputs, case.targets)
    return launched


def kernel_arguments() -> dict[str, list[str]]:
    """Names of the arguments of every kernel, read from the source, because importing it needs Triton."""
    folder = Path(inspect.getfile(kernel_steps)).parent
    trees = [ast.parse((folder / f"{name}.py").read_text()) for name in ("forward", "backward")]
    functions = [node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {node.name: [arg.arg for arg in node.args.args] for node in functions if node.name[0] != "_"}


def test_every_launch_has_its_configuration_and_every_configuration_a_launch(launches: list[Launch]) -> None:
    expected = {(name, key) for name, keys in CONFIGS.items() for key in keys}
    assert {(name, key) for name, key, *_ in launches} == expected
    assert set(CONFIGS) == set(kernel_arguments())


def test_launches_give_every_argument_once(launches: list[Launch]) -> None:
    arguments = kernel_arguments()
    for name, key, _, args, constants in launches:
        options = set(CONFIGS[name][key]) - {"num_warps", "num_stages", "shares"}
        assert arguments[name][len(args) :] == [n for n in arguments[name] if n in options | set(constants)]
        assert not options & set(constants)
        assert len(arguments[name]) == len(args) + len(constants) + len(options)


def test_images_have_one_dtype_and_no_gaps(launches: list[Launch]) -> None:
    images = [a for *_, args, _ in launches for a in args if isinstance(a, Tensor) and a.ndim == 4]
    assert len({a.dtype for a in images}) == 1
    assert all(a.is_contiguous() for a in images)


@pytest.mark.parametrize(
    ("name", "key", "items", "grid"),
    [
        ("conv_forward", (16, 16), 129, (2,)),
        ("head", (64, 0), 128, (128,)),
        ("conv_backward_strided", (32, 64), 640, (10, 4)),
        ("weight_gradient", (16, 16), None, (1, 264)),
        ("weight_gradient", (32, 32), None, (3, 88)),
        ("weight_gradient", (64, 64), None, (9, 28)),
        ("projection_gradient", (16, 32), None, (64,)),
    ],
)
def test_grids_cover_the_work(
    name: str, key: tuple[int, int], items: int | None, grid: tuple[int, ...]
) -> None:
    assert grid_of(name, key, items) == grid


def test_kernels_and_autograd_share_their_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_steps, "launch", lambda *_, **__: None)
    run = clean("c10", 0)
    after, alone = problem(), problem()
    after.steps().step()
    for case in (after, alone):
        AutogradSteps(run, *case, batch=BATCH).step()
    assert torch.equal(after.weights.flat, alone.weights.flat)
    assert not torch.equal(after.weights.flat, problem().weights.flat)


# -- numbers --------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def evaluation_set(case: Problem) -> tuple[Tensor, Tensor]:
    """Four images with labels: the network's prediction for all images except the first."""
    x = case.inputs[:4]
    logits = case.functions.exact_logits(case.weights.leaves, case.weights.stats, x.permute(0, 3, 1, 2))
    labels = logits.argmax(1)
    labels[0] = (labels[0] + 1) % N_CLASSES
    return x, labels


def random_gradients(size: int) -> Tensor:
    return torch.randn((N_UPDATES, size), generator=torch.Generator().manual_seed(2))


def interpret(path: str) -> None:
    """Differentiate, update and evaluate with the kernels, and save the results for the tests."""
    torch.set_num_threads(1)
    for name in ("weight_gradient", "projection_gradient", "stem_gradient"):
        for config in CONFIGS[name].values():
            config["shares"] = 2  # the images are too small for more
    CONFIGS["adam"][0, 0]["BLOCK"] = 2**15  # the interpreter runs programs one by one, so fewer are faster
    kernel_steps._EVALUATION_BATCH = 2
    case = problem()
    steps, weights = case.steps(), case.weights
    steps.differentiate()
    results = {
        "gradient": steps.gradient.clone(),
        "stats": torch.cat(weights.stats),
        "report": case.report.clone(),
    }
    steps.update()
    results |= {
        "flat": weights.flat.clone(),
        "next_row": case.next_row.clone(),
        "pool": steps._layers.pool.clone(),
    }
    results |= {key: value.clone() for key, value in steps.memory.items()}
    x, labels = evaluation_set(case)
    steps.evaluate(x, labels)
    results["hits"] = case.report[1].clone()
    for gradient in random_gradients(steps.gradient.numel()):
        steps.memory["step"] += 1  # normally done by the first kernel of a step
        steps.gradient.copy_(gradient)
        steps.update()
    results |= {"updated": weights.flat, "updated_stats": torch.cat(weights.stats)}
    torch.save(results, path)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """Results of the kernels in Triton's interpreter, in float32, because it cannot multiply bfloat16."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed; it comes with GPU builds of torch")
    path = tmp_path_factory.mktemp("fused") / "results.pt"
    env = {**environment(), "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, __file__, str(path)], env=env, check=True)
    return torch.load(path, weights_only=True)


@pytest.fixture(scope="module")
def reference() -> tuple[Problem, Tensor]:
    """The problem after one backward pass with autograd, and the loss."""
    case = problem()
    weights, rows = case.weights, slice(BATCH, 2 * BATCH)
    x = case.inputs[rows].permute(0, 3, 1, 2)
    loss = case.functions.loss(weights.leaves, weights.stats, x, case.targets[rows])
    weights.set_gradients([g.detach() for g in torch.autograd.grad(loss, weights.leaves)])
    return case, loss.detach()


def distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def test_loss_and_gradients_agree_with_autograd(
    interpreted: dict[str, Tensor], reference: tuple[Problem, Tensor]
) -> None:
    case, loss = reference
    layout, gradient = case.functions.layout, case.weights.flat.grad
    assert gradient is not None
    assert float(interpreted["report"][0]) == pytest.approx(float(loss), rel=1e-5)
    pairs = zip(layout.views(interpreted["gradient"]), layout.views(gradient), strict=True)
    distances = {name: distance(*pair) for name, pair in zip(layout.names, pairs, strict=True)}
    assert max(distances.values()) < 1e-4, distances


def test_running_statistics_agree_with_batch_norm(
    interpreted: dict[str, Tensor], reference: tuple[Problem, Tensor]
) -> None:
    theirs = torch.cat(reference[0].weights.stats)
    assert distance(interpreted["stats"], theirs) < 1e-5
    assert distance(torch.cat(problem().weights.stats), theirs) > 1e-3
    assert torch.equal(interpreted["updated_stats"], interpreted["stats"])  # evaluation does not change them


def test_updates_agree_with_adam(interpreted: dict[str, Tensor]) -> None:
    case = problem()
    flat = case.weights.flat
    optimiser = torch.optim.Adam([flat], lr=RATE, weight_decay=DECAY)
    flat.grad = interpreted["gradient"]
    optimiser.step()
    torch.testing.assert_close(interpreted["flat"], flat, rtol=1e-6, atol=1e-7)
    for key, value in optimiser.state[flat].items():
        torch.testing.assert_close(interpreted[key], value, rtol=1e-5, atol=1e-10)
    for gradient in random_gradients(flat.numel()):
        flat.grad = gradient
        optimiser.step()
    torch.testing.assert_close(interpreted["updated"], flat, rtol=1e-6, atol=5e-7)


def test_a_step_resets_all_accumulators(interpreted: dict[str, Tensor]) -> None:
    assert int(interpreted["next_row"]) == 2 * BATCH
    assert not interpreted["pool"].any()


def test_evaluation_counts_correct_rows(interpreted: dict[str, Tensor]) -> None:
    assert int(interpreted["hits"]) == 3


if __name__ == "__main__":
    interpret(sys.argv[1])
