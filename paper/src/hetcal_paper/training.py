"""Train runs in parallel on one device and write their results to a store.

Finished runs are skipped and interrupted runs resume from their last checkpoint. The last batch of an epoch
is dropped if it is incomplete; a run with fewer rows than the batch size uses all of them in one batch.
"""

from __future__ import annotations

import io
import logging
import os
import platform
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from hetcal_paper import store
from hetcal_paper.batches import DeviceImages
from hetcal_paper.cifar import load
from hetcal_paper.files import write_atomic
from hetcal_paper.runs import Run
from hetcal_paper.trainer import Trainer
from hetcal_paper.weights import Functions

__all__ = ["Summary", "read_checkpoint", "train_runs", "write_checkpoint"]

_LOG = logging.getLogger(__name__)
_LARGE = 5_000_000  # networks with this many parameters or more are checkpointed only on request
_POLL = 0.0005  # seconds between polls of the device


@dataclass(frozen=True)
class Summary:
    """Names of the runs by outcome."""

    finished: tuple[str, ...]
    skipped: tuple[str, ...]
    unfinished: tuple[str, ...]
    failed: tuple[str, ...]


def train_runs(
    runs: Iterable[Run],
    data_dir: str | Path | None,
    out_dir: str | Path,
    *,
    parallel: int = 8,
    time_limit: float | None = None,
    device: str | None = None,
    compile: bool = True,  # noqa: A002 - as in torch.compile
    fused: bool = True,
    progress: bool = True,
    checkpoint_every: int = 1,
    checkpoint_large: bool = False,
    stop_early: bool = False,
    strict_size: bool = True,
) -> Summary:
    """Train runs in parallel and write their results.

    Parameters
    ----------
    runs : iterable of Run
        Runs to train, in this order.
    data_dir : path or None
        Folder with the data sets; None for ``$HETCAL_DATA``.
    out_dir : path
        The store of results. Runs that it contains are skipped.
    parallel : int
        Largest number of runs trained at the same time.
    time_limit : float, optional
        Seconds after which no new epoch starts. Runs in progress are checkpointed, large networks only with
        `checkpoint_large`.
    device : str, optional
        ``"cuda"`` or ``"cpu"``; by default CUDA if available.
    compile : bool
        Whether to use ``torch.compile``; ignored on a CPU.
    fused : bool
        Whether to use the hand-written kernels where they apply: ResNet-20 with Adam on CUDA.
    progress : bool
        Whether to show a progress bar.
    checkpoint_every : int
        Epochs between checkpoints.
    checkpoint_large : bool
        Whether to checkpoint networks with five million parameters or more as well. A checkpoint of
        WideResNet-28-10 takes up to almost a gigabyte.
    stop_early : bool
        Whether to apply the early stopping of the recipe, if it has one.
    strict_size : bool
        Whether data sets must have their official size.

    Returns
    -------
    Summary
        Names of the runs by outcome.
    """
    settings = _Settings(
        parallel, time_limit, compile, progress, checkpoint_every, checkpoint_large, fused, stop_early
    )
    done = store.finished(out_dir)
    unique = list({run.name: run for run in runs}.values())
    missing = [run for run in unique if run.name not in done]
    store.remove_checkpoints(out_dir, [run.name for run in unique if run.name in done])
    target = _set_up(device)
    images = {
        name: _on_device(name, data_dir, target, strict_size) for name in sorted({r.data for r in missing})
    }
    session = _Session(Path(out_dir), settings, images, target, deque(missing))
    session.run()
    ended = {*session.finished, *session.failed}
    return Summary(
        finished=tuple(session.finished),
        skipped=tuple(run.name for run in unique if run.name in done),
        unfinished=tuple(run.name for run in missing if run.name not in ended),
        failed=tuple(session.failed),
    )


@dataclass(frozen=True)
class _Settings:
    """Validated arguments of :func:`train_runs`."""

    parallel: int
    time_limit: float | None
    compile: bool
    progress: bool
    checkpoint_every: int
    checkpoint_large: bool
    fused: bool
    stop_early: bool

    def __post_init__(self) -> None:
        for name in ("parallel", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"{name} must be 1 or more, got {getattr(self, name)}; pass a positive number"
                )
        if self.time_limit is not None and not self.time_limit >= 0:
            raise ValueError(
                f"time_limit must be 0 or more, got {self.time_limit}; pass seconds, or omit it for no limit"
            )


def _set_up(device: str | None) -> torch.device:
    """Choose the device and set the global options of its libraries."""
    # With the default of eight hardware queues, streams could wait for each other. This variable sets the
    # number of queues and must be set before the first use of CUDA.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if target.type == "cuda":
        torch.backends.cudnn.benchmark = True
    return target


def _on_device(
    name: str, data_dir: str | Path | None, device: torch.device, strict_size: bool
) -> DeviceImages:
    """Read one data set and copy it to the device."""
    images = DeviceImages(load(name, data_dir, strict_size=strict_size), device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return images


@dataclass
class _Session:
    """One call of :func:`train_runs`: the queue of runs and the active trainers."""

    out_dir: Path
    settings: _Settings
    images: dict[str, DeviceImages]
    device: torch.device
    queue: deque[Run]
    functions: dict[tuple[str, int], Functions] = field(default_factory=dict)
    trainers: list[Trainer] = field(default_factory=list)
    streams: list[torch.cuda.Stream] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Train until all runs have ended or the time is up."""
        limit = self.settings.time_limit
        self.deadline = float("inf") if limit is None else time.monotonic() + limit
        n_epochs = sum(run.epochs for run in self.queue)
        with tqdm(total=n_epochs, unit="epoch", disable=not self.settings.progress) as self.progress:
            while self._refill():
                ready = [trainer for trainer in self.trainers if trainer.ready()]
                for trainer in ready:
                    self._advance(trainer)
                if not ready:
                    time.sleep(_POLL)

    def _refill(self) -> bool:
        """Start runs while there are free slots. Return whether any run is active."""
        while self.queue and len(self.trainers) < self.settings.parallel and not self._time_is_up():
            trainer = self._open(self.queue.popleft())
            self.trainers.append(trainer)
            self.progress.update(trainer.epoch)
            # A run may already be complete if early stopping was off when its checkpoint was written.
            if trainer.done:
                self._finish(trainer)
            else:
                trainer.start_epoch()
        return bool(self.trainers)

    def _open(self, run: Run) -> Trainer:
        """Prepare a run on the device, from its checkpoint if there is one."""
        images = self.images[run.data]
        key = (run.network, images.cifar.n_classes)
        if key not in self.functions:
            compiled = self.settings.compile and self.device.type == "cuda"
            self.functions[key] = Functions(*key, compiled=compiled, fused=self.settings.fused)
        # PyTorch takes new streams from a small pool in turn, so a new stream could belong to an active run.
        # Streams of finished runs are therefore reused.
        stream = self.streams.pop() if self.streams else None
        state, early = read_checkpoint(self.out_dir, run), self.settings.stop_early
        return Trainer(run, images, self.functions[key], state, stream=stream, stops_early=early)

    def _advance(self, trainer: Trainer) -> None:
        """Record a finished epoch, and then continue or end the run; write a checkpoint if one is due."""
        try:
            trainer.finish_epoch()
        except FloatingPointError as error:
            _LOG.error("%s", error)
            self._release(trainer, self.failed)
            return
        self.progress.update()
        if trainer.done:
            self._finish(trainer)
            return
        stopping = self._time_is_up()
        due = stopping or trainer.epoch % self.settings.checkpoint_every == 0
        can_checkpoint = self.settings.checkpoint_large or trainer.n_parameters < _LARGE
        state = trainer.snapshot() if due and can_checkpoint else None
        if not stopping:
            trainer.start_epoch()  # a GPU computes the next epoch while the checkpoint is written
        if state is not None:
            write_checkpoint(self.out_dir, trainer.run.name, state)
        if stopping:
            if state is None:
                _LOG.warning(
                    "%s was stopped without a checkpoint; pass --checkpoint-large for large networks",
                    trainer.label,
                )
            self._release(trainer, [])

    def _finish(self, trainer: Trainer) -> None:
        """Write the result of a completed run."""
        summary = _write_result(self.out_dir, trainer, self.settings.parallel)
        self.progress.update(trainer.run.epochs - trainer.epoch)  # epochs skipped by early stopping
        if self.settings.progress:
            self.progress.write(f"finished {trainer.run.name}: {summary}")
        self._release(trainer, self.finished)

    def _release(self, trainer: Trainer, names: list[str]) -> None:
        """Release the slot of a run and add its name to ``names``."""
        names.append(trainer.run.name)
        self.trainers.remove(trainer)
        trainer.close()
        if trainer.stream is not None:
            self.streams.append(trainer.stream)

    def _time_is_up(self) -> bool:
        return time.monotonic() >= self.deadline


def _write_result(out_dir: Path, trainer: Trainer, parallel: int) -> str:
    """Write the record and the logits of a run; return its test accuracy as text.

    The record contains the number of the epoch that each choice, such as ``best`` or ``last``, selects. If
    two choices select the same epoch, its logits are written only once.
    """
    labels = {"val": trainer.validation_labels, "test": trainer.test_labels}
    arrays: dict[str, NDArray[Any]] = {f"{k}_labels": v.astype(np.uint8) for k, v in labels.items()}
    choices = trainer.choices()
    stored: dict[int, tuple[str, str]] = {}
    for choice, state in choices.items():
        if state.epoch not in stored:
            suffix = "" if choice == "best" else f"_{choice}"
            stored[state.epoch] = (f"val_logits{suffix}", f"test_logits{suffix}")
            for key, logits in zip(stored[state.epoch], trainer.logits(state), strict=True):
                arrays[key] = logits.astype(np.float16)
    keys = {choice: stored[state.epoch] for choice, state in choices.items()}
    accuracy = {
        choice: {split: _accuracy(arrays[k], labels[split]) for split, k in zip(labels, pair, strict=True)}
        for choice, pair in keys.items()
    }
    record = {
        **_description(trainer),
        "parallel": parallel,
        "history": vars(trainer.history),
        "epochs": {choice: state.epoch for choice, state in choices.items()},
        "keys": keys,
        "accuracy": accuracy,
    }
    store.write(out_dir, trainer.run.name, record, arrays)
    return f"test accuracy {accuracy['best']['test']:.4f} at epoch {choices['best'].epoch}"


def _accuracy(logits: NDArray[Any], labels: NDArray[np.int64]) -> float:
    return float((logits.argmax(1) == labels).mean())


def _description(trainer: Trainer) -> dict[str, Any]:
    """Return the part of the record that says what was trained, how, where and for how long."""
    cuda = trainer.device.type == "cuda"
    return {
        "run": trainer.run.to_dict(),
        "seed": trainer.run.seed,
        "schedule": trainer.run.schedule,
        "n_train": trainer.n_train,
        "n_validation": trainer.n_validation,
        "seconds": round(trainer.seconds, 3),
        "compiled": trainer.path == "compiled",
        "path": trainer.path,
        "device": torch.cuda.get_device_name(trainer.device) if cuda else platform.processor() or "cpu",
        "threads": torch.get_num_threads(),  # on a CPU, the number of threads affects rounding
        **store.provenance(),
    }


def write_checkpoint(folder: Path, name: str, state: dict[str, Any]) -> None:
    """Write the state of a run to ``NAME.ckpt``.

    The file is not flushed to disk, because losing it costs only time.
    """
    path = store.checkpoint_path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()  # torch.save to a file would hide the cause of a disk error
    torch.save(state, content)
    write_atomic(path, lambda file: file.write(content.getbuffer()), durable=False)


def read_checkpoint(folder: Path, run: Run) -> dict[str, Any] | None:
    """Return the state in the checkpoint of a run; None if there is no readable checkpoint.

    A checkpoint of another run raises an error.
    """
    path = store.checkpoint_path(folder, run.name)
    if not path.is_file():
        return None
    content = io.BytesIO(path.read_bytes())
    try:
        state: dict[str, Any] = torch.load(content, map_location="cpu", weights_only=True)
        owner = state["run"]
    except Exception:  # PyTorch raises many types of errors for truncated files
        _LOG.warning("%s is damaged; %s starts from the beginning", path, run.name)
        return None
    if owner != run.to_dict():
        raise ValueError(f"{path} must belong to {run.name}, got {owner}; delete the file")
    return state
