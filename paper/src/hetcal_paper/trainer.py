"""Train one run on one device.

A :class:`Trainer` owns the device memory of one run and advances it epoch by epoch. On CUDA each trainer uses
its own stream. :meth:`Trainer.start_epoch` enqueues a whole epoch and returns immediately, and
:meth:`Trainer.ready` reports whether the epoch has finished, so one thread can drive many runs in parallel.
The training steps and the validation pass are captured in CUDA graphs, which work on fixed buffers. At the
start of an epoch, the learning rate, the images and the labels in these buffers are replaced. By default,
images, convolutions and activations are bfloat16 on CUDA. Sums are accumulated in float32, and the last layer
and the optimiser use float32. On a CPU, the same steps run directly and, by default, in float32.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hetcal_paper.autograd import AutogradSteps, largest_divisor
from hetcal_paper.batches import DeviceImages, choose_rows, draw_epoch, weight_generator
from hetcal_paper.kernels import FusedSteps, available
from hetcal_paper.runs import Run
from hetcal_paper.weights import Functions, Weights

__all__ = ["History", "Trainer"]

_STEPS_PER_GRAPH = 16
_EVALUATION_BATCH = 1000
_WARM_UP_STEPS = 3


@dataclass
class History:
    """Loss, validation accuracy and learning rate of each epoch."""

    train_loss: list[float] = field(default_factory=list)
    val_accuracy: list[float] = field(default_factory=list)
    learning_rate: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class _State:
    """Copy of the weights and running statistics after one epoch, with its validation accuracy."""

    epoch: int
    accuracy: float
    flat: Tensor
    stats: Tensor


class Trainer:
    """The training of one run.

    Parameters
    ----------
    run : Run
    images : DeviceImages
        The data set, on the device to train on.
    functions : Functions
        The network, shared by all runs that use it.
    state : dict, optional
        State to resume from, as returned by :meth:`snapshot`.
    stream : torch.cuda.Stream, optional
        CUDA stream, by default a new one. Active runs must not share a stream.
    dtype : torch.dtype, optional
        Type of the convolutions; by default bfloat16 on CUDA and float32 elsewhere.
    stops_early : bool
        Whether to apply the early stopping of the recipe.
    """

    def __init__(
        self,
        run: Run,
        images: DeviceImages,
        functions: Functions,
        state: dict[str, Any] | None = None,
        *,
        stream: torch.cuda.Stream | None = None,
        dtype: torch.dtype | None = None,
        stops_early: bool = False,
    ) -> None:
        self.run = run
        self._stops_early = stops_early
        self.epoch = 0
        self.seconds = 0.0
        self.history = History()
        self._images, self._functions = images, functions
        self.device = images.device
        self._on_cuda = self.device.type == "cuda"
        self._dtype = dtype or (torch.bfloat16 if self._on_cuda else torch.float32)
        self.stream = (stream or torch.cuda.Stream(self.device)) if self._on_cuda else None  # type: ignore[no-untyped-call]
        self._event = torch.cuda.Event() if self._on_cuda else None  # type: ignore[no-untyped-call]
        self._best: dict[int, _State] = {}
        self._waiting: deque[Callable[[], None]] = deque()
        with self._on_stream():
            self._place_data()
            self._weights = Weights(functions.layout, self.device, self._dtype)
            self._warm_up()
            self._prepare_launches()
            self._load(state)

    def _on_stream(self) -> AbstractContextManager[Any]:
        """Return a context in which CUDA work goes to the stream of this trainer."""
        return torch.cuda.stream(self.stream) if self.stream is not None else nullcontext()

    def _place_data(self) -> None:
        """Choose the rows and allocate the buffers of an epoch, at fixed addresses as CUDA graphs require."""
        cifar = self._images.cifar
        rows = choose_rows(self.run, cifar.train_labels, cifar.n_classes)
        self.n_train, self.n_validation = rows.train.size, rows.validation.size
        self._batch = min(self.run.batch_size, self.n_train)
        self._steps = self.n_train // self._batch
        self._scale = self._images.scale(rows.train)
        device, dtype = self.device, self._dtype
        self._rows, self._labels, self._val_labels = (
            torch.from_numpy(v).to(device)
            for v in (rows.train, rows.labels, cifar.train_labels[rows.validation])
        )
        self._val_images = self._images.validation(rows.validation, self._scale)
        self._val_inputs = self._val_images.to(dtype)
        used = self._steps * self._batch
        self._inputs = torch.zeros((used, 32, 32, 3), dtype=dtype, device=device)
        self._targets = torch.zeros(used, dtype=torch.int64, device=device)
        self._next = torch.zeros((), dtype=torch.int64, device=device)
        self._report = torch.zeros(2, device=device)  # sum of batch losses, number of correct validation rows
        self._host_report = torch.zeros(2, pin_memory=self._on_cuda)

    def _warm_up(self) -> None:
        """Run a few training steps (one on a CPU) and a validation pass before graphs are captured.

        They compile and tune kernels and make the optimiser allocate its state. The state that is loaded
        afterwards overwrites their effect on the weights and the optimiser. If the hand-written kernels or
        ``torch.compile`` fail, everything is repeated without them. A lack of memory raises an error instead.
        """
        while True:
            try:
                self._work = self._make_steps()
                self._run_warm_up_steps()
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # compilers raise many types of errors
                if not self._functions.simplify(error, fused=self._can_use_kernels()):
                    raise
            else:
                return

    def _can_use_kernels(self) -> bool:
        return self._functions.fused and available(self.run.network, self.run.recipe, self.device)

    def _make_steps(self) -> AutogradSteps | FusedSteps:
        """Return training steps with the hand-written kernels if these can be used, else with autograd."""
        run, batch = self.run, self._batch
        buffers = (self._inputs, self._targets, self._next, self._report)
        if self._can_use_kernels():
            layout, decay = self._functions.layout, run.weight_decay
            return FusedSteps(layout, self._weights, *buffers, batch=batch, weight_decay=decay)
        return AutogradSteps(run, self._functions, self._weights, *buffers, batch=batch)

    def _run_warm_up_steps(self) -> None:
        for _ in range(_WARM_UP_STEPS if self._on_cuda else 1):
            self._next.zero_()
            self._work.step()
        self._evaluate()
        if self.stream is not None:
            self.stream.synchronize()

    def _prepare_launches(self) -> None:
        """Prepare the functions that execute one epoch: they train, validate, and copy the results."""
        self._pool = torch.cuda.graph_pool_handle() if self._on_cuda else None
        per_launch = _steps_per_launch(self._steps)
        remaining = self._steps % per_launch
        launch_many = self._launch(lambda: self._train_steps(per_launch))
        self._launches = [launch_many] * (self._steps // per_launch)
        if remaining:
            self._launches += [self._launch(lambda: self._train_steps(remaining))]
        self._launches += [self._launch(self._evaluate), self._collect]

    def _launch(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return a function that replays a CUDA graph of ``work``; on a CPU, return ``work`` itself."""
        if self.stream is None:
            return work
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self.stream):
            work()
        return graph.replay

    def start_epoch(self) -> None:
        """Enqueue the next epoch. On a CPU, each call of :meth:`ready` executes a part of it."""
        self._started = time.monotonic()
        epoch = self.epoch + 1
        # The last batch is dropped if it is incomplete. Its rows differ from epoch to epoch.
        drawn = draw_epoch(self.run, epoch, self.n_train)[:, : len(self._inputs)]
        with self._on_stream():
            table = torch.from_numpy(drawn).to(self.device)
            self._images.fill(self._inputs, self._rows[table[0]], table[1:], self._scale)
            torch.index_select(self._labels, 0, table[0], out=self._targets)
            self._work.set_rate(self.run.phase(epoch)[1])
            self._next.zero_()
            self._report.zero_()
            self._waiting = deque(self._launches)
            while self._waiting and self._on_cuda:
                self._waiting.popleft()()

    def _train_steps(self, n: int) -> None:
        for _ in range(n):
            self._work.step()

    def _evaluate(self) -> None:
        """Count the correctly classified validation rows."""
        self._work.evaluate(self._val_inputs, self._val_labels)

    def _collect(self) -> None:
        """Copy the loss and the validation count to the host; on CUDA, record an event after the copy."""
        self._host_report.copy_(self._report, non_blocking=True)
        if self._event is not None:
            self._event.record()

    def ready(self) -> bool:
        """Whether the current epoch has finished. On a CPU, each call first executes a part of the epoch."""
        if self._waiting:
            self._waiting.popleft()()
        return not self._waiting and (self._event is None or bool(self._event.query()))  # type: ignore[no-untyped-call]

    def finish_epoch(self) -> None:
        """Wait for the epoch, record it, and copy the weights if they are the best of their phase so far.

        The best weights have the highest validation accuracy. A phase is a period of constant learning rate.
        A training loss that is not finite raises a FloatingPointError.
        """
        while not self.ready():
            continue
        self.epoch += 1
        loss, n_correct = float(self._host_report[0]) / self._steps, int(self._host_report[1])
        self.seconds += time.monotonic() - self._started
        if not np.isfinite(loss):
            larger_batch = replace(self.run, batch_size=2 * self.run.batch_size)
            raise FloatingPointError(
                f"the training loss must stay finite, got {loss} in epoch {self.epoch} of {self.run.name}; "
                f"train with a larger batch, as in run {larger_batch.name}, or with --no-fused --no-compile"
            )
        phase, rate = self.run.phase(self.epoch)
        accuracy = n_correct / self.n_validation
        self.history.train_loss.append(round(loss, 6))
        self.history.val_accuracy.append(accuracy)
        self.history.learning_rate.append(rate)
        if phase not in self._best or accuracy > self._best[phase].accuracy:
            self._best[phase] = self._copy_state(accuracy)

    @property
    def label(self) -> str:
        """Name of the run, its current epoch and its number of epochs, for messages."""
        return f"{self.run.name} {self.epoch}/{self.run.epochs}"

    @property
    def n_parameters(self) -> int:
        """Number of parameters, including the padding in the tensor that contains all of them."""
        return self._functions.layout.size

    @property
    def path(self) -> str:
        """How steps are computed: ``fused`` (hand-written kernels), ``compiled`` or ``eager``."""
        if isinstance(self._work, FusedSteps):
            return "fused"
        return "compiled" if self._functions.compiled else "eager"

    @property
    def done(self) -> bool:
        """Whether training is complete or has stopped early."""
        if self.epoch >= self.run.epochs:
            return True
        return self._stops_early and self.run.early_stop(self.history.val_accuracy)[1]

    def choices(self) -> dict[str, _State]:
        """Return the states whose logits are saved: the best, the best of each phase, and the last.

        The best state has the highest validation accuracy. A phase is a period of constant learning rate.
        """
        phases = {f"phase{phase}": state for phase, state in sorted(self._best.items())}
        best = max(phases.values(), key=lambda state: (state.accuracy, -state.epoch))
        return {"best": best, **phases, "last": self._copy_state(self.history.val_accuracy[-1])}

    def logits(self, state: _State) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the logits of the validation and of the test rows, computed in float32."""
        n_test = len(self._images.cifar.test_labels)
        with self._on_stream(), torch.no_grad():
            layout = self._functions.layout
            weights, stats = layout.views(state.flat), layout.split_stats(state.stats)

            def run_on(images: Tensor) -> Tensor:
                return self._functions.exact_logits(weights, stats, images.permute(0, 3, 1, 2))

            val = [run_on(images) for images in torch.split(self._val_images, _EVALUATION_BATCH)]
            test = [
                run_on(self._images.test(start, min(start + _EVALUATION_BATCH, n_test), self._scale))
                for start in range(0, n_test, _EVALUATION_BATCH)
            ]
            return torch.cat(val).cpu().numpy(), torch.cat(test).cpu().numpy()

    @property
    def validation_labels(self) -> NDArray[np.int64]:
        """True classes of the validation rows."""
        return self._val_labels.cpu().numpy()

    @property
    def test_labels(self) -> NDArray[np.int64]:
        """True classes of the test rows."""
        return self._images.cifar.test_labels

    def _copy_state(self, accuracy: float) -> _State:
        with self._on_stream():
            return _State(self.epoch, accuracy, *self._weights.copies())

    def snapshot(self) -> dict[str, Any]:
        """Return the complete state of the run as plain values and CPU tensors."""
        with self._on_stream():
            return {
                "run": self.run.to_dict(),
                "epoch": self.epoch,
                "seconds": self.seconds,
                "history": {key: list(values) for key, values in vars(self.history).items()},
                "weights": [copy.cpu() for copy in self._weights.copies()],
                "optimiser": {key: value.to("cpu", copy=True) for key, value in self._work.memory.items()},
                "best": {
                    phase: (best.epoch, best.accuracy, best.flat.cpu(), best.stats.cpu())
                    for phase, best in self._best.items()
                },
            }

    def _load(self, state: dict[str, Any] | None) -> None:
        """Load a snapshot or, if it is None, the initial state of the run.

        Weights and optimiser state are overwritten in place, since CUDA graphs use them at fixed addresses.
        """
        if state is None:
            self._weights.load(*self._functions.initial(weight_generator(self.run)))
            for value in self._work.memory.values():
                value.zero_()
        else:
            self._weights.load(*state["weights"])
            for key, value in self._work.memory.items():
                value.copy_(state["optimiser"][key])
            self.epoch, self.seconds = state["epoch"], state["seconds"]
            self.history = History(**{key: list(values) for key, values in state["history"].items()})
            for phase, (epoch, accuracy, flat, stats) in state["best"].items():
                self._best[phase] = _State(epoch, accuracy, flat.to(self.device), stats.to(self.device))
        if self.stream is not None:
            self.stream.synchronize()

    def close(self) -> None:
        """Release the graphs and their memory. The trainer cannot be used afterwards."""
        if self.stream is not None:
            self.stream.synchronize()
        self._launches = []
        self._best = {}


def _steps_per_launch(steps: int) -> int:
    """Return the number of training steps in one graph, at most ``_STEPS_PER_GRAPH``.

    ``steps`` is the number of steps of an epoch. Usually, the result is the largest divisor of ``steps`` up
    to this limit. An epoch then repeats one graph, and no second graph is needed for remaining steps. If that
    divisor is less than half of the limit, the result is the limit, which needs fewer launches.
    """
    limit = min(steps, _STEPS_PER_GRAPH)
    divisor = largest_divisor(steps, limit)
    return divisor if 2 * divisor >= limit else limit
