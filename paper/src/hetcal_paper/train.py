"""Train runs side by side on one device: set-up, data, network, loop, evaluation.

``python -m hetcal_paper.train table2 --data DIR --out DIR --time-limit 1500 --parallel 8``

trains every run behind a table or figure (or named runs, or with ``--next`` whatever is missing, by
worth) and writes each result as soon as it is there. Finished runs are skipped, interrupted ones go on
from their last epoch. The last batch of an epoch is dropped if it is not full; a run with fewer rows than
the batch size trains on all of them at once.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hetcal_paper import store
from hetcal_paper.batches import DeviceImages
from hetcal_paper.checkpoints import read_checkpoint, write_checkpoint
from hetcal_paper.data import DATA_SETS, load
from hetcal_paper.engine import Trainer
from hetcal_paper.functional import Functions
from hetcal_paper.missing import chosen_runs
from hetcal_paper.progress import Progress
from hetcal_paper.runs import Run

__all__ = ["Summary", "main", "train_runs"]

_LOG = logging.getLogger(__name__)
_LARGE = 5_000_000  # parameters from which checkpoints are written on request only
_POLL = 0.0005  # seconds to rest when no run on the device has ended its epoch


@dataclass(frozen=True)
class Summary:
    """Names of the runs by what became of them."""

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
    compile: bool = True,  # noqa: A002 - the name that torch gives it
    fused: bool = True,
    progress: bool = True,
    checkpoint_every: int = 1,
    checkpoint_large: bool = False,
    stop_early: bool = False,
    strict_size: bool = True,
) -> Summary:
    """Train runs side by side and write their results.

    Parameters
    ----------
    runs : iterable of Run
        What to train, in this order.
    data_dir : path or None
        Folder with the data sets; None for ``$HETCAL_DATA``.
    out_dir : path
        The store of results; runs that it holds are skipped.
    parallel : int
        Runs side by side.
    time_limit : float, optional
        Seconds after which no epoch is started; runs under way are checkpointed.
    device : str, optional
        ``"cuda"`` or ``"cpu"``; by default CUDA where there is one.
    compile : bool
        Whether to use ``torch.compile``; on CUDA only.
    fused : bool
        Whether to use hand-written kernels where there are any: ResNet-20 on CUDA.
    progress : bool
        Whether to show progress.
    checkpoint_every : int
        Epochs between checkpoints.
    checkpoint_large : bool
        Whether to checkpoint networks of more than five million parameters, too: near a gigabyte
        for WideResNet-28-10.
    stop_early : bool
        Whether to end a run when the recipe's patience ends; only what its later epochs would be is lost.
    strict_size : bool
        Whether data sets must have their official size.

    Returns
    -------
    Summary
    """
    settings = _Settings(
        parallel, time_limit, compile, progress, checkpoint_every, checkpoint_large, fused, stop_early
    )
    done = store.finished(out_dir)
    unique = list({run.name: run for run in runs}.values())
    missing = [run for run in unique if run.name not in done]
    store.forget_checkpoints(out_dir, [run.name for run in unique if run.name in done])
    place = _set_up(device)
    images = {
        name: _on_device(name, data_dir, place, strict_size) for name in sorted({r.data for r in missing})
    }
    session = _Session(Path(out_dir), settings, images, place, deque(missing))
    session.run()
    ended = {*session.finished, *session.failed}
    return Summary(
        finished=tuple(session.finished),
        skipped=tuple(run.name for run in unique if run.name in done),
        unfinished=tuple(run.name for run in missing if run.name not in ended),
        failed=tuple(session.failed),
    )


# -- set-up and data ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Settings:
    """Arguments of :func:`train_runs`, checked."""

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
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}; pass a count")
        if self.time_limit is not None and not self.time_limit >= 0:
            raise ValueError(f"time_limit must be 0 or more, got {self.time_limit}; pass seconds, or None")


def _set_up(device: str | None) -> torch.device:
    """Choose the device and the global switches of its libraries."""
    # More hardware queues than eight, or streams would wait for each other; counts before the first use only.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if place.type == "cuda":
        torch.backends.cudnn.benchmark = True
    return place


def _on_device(
    name: str, data_dir: str | Path | None, device: torch.device, strict_size: bool
) -> DeviceImages:
    """Read one data set and put it on the device, for all streams to see."""
    images = DeviceImages(load(name, data_dir, strict_size=strict_size), device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return images


# -- the loop -------------------------------------------------------------------------------------


@dataclass
class _Session:
    """One call of :func:`train_runs`: a queue of runs and the trainers under way."""

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
        """Keep the slots busy until the queue is empty or the time is up."""
        limit = self.settings.time_limit
        self.deadline = float("inf") if limit is None else time.monotonic() + limit
        n_epochs = sum(run.epochs for run in self.queue)
        self.progress = Progress(len(self.queue), n_epochs, shown=self.settings.progress)
        try:
            while self._refill():
                # Whoever has ended its epoch is served; the others go on undisturbed.
                ended = [trainer for trainer in self.trainers if trainer.ready()]
                for trainer in ended:
                    self._advance(trainer)
                self.progress.tick([trainer.label for trainer in self.trainers])
                if not ended:
                    time.sleep(_POLL)
            self.progress.tick([], now=True)
        finally:
            self.progress.close()

    def _refill(self) -> bool:
        """Start runs in free slots; tell whether anything is under way."""
        while self.queue and len(self.trainers) < self.settings.parallel and not self._time_is_up():
            trainer = self._open(self.queue.popleft())
            self.trainers.append(trainer)
            self.progress.epochs_done += trainer.epoch
            if trainer.done:  # interrupted between its last epoch and its result
                self._finish(trainer)
            else:
                trainer.start_epoch()
        return bool(self.trainers)

    def _open(self, run: Run) -> Trainer:
        """Set a run up on the device, from its checkpoint if there is one."""
        images = self.images[run.data]
        key = (run.network, images.cifar.n_classes)
        if key not in self.functions:
            compiled = self.settings.compile and self.device.type == "cuda"
            self.functions[key] = Functions(*key, compiled=compiled, fused=self.settings.fused)
        # Streams come from a small pool that torch hands out in turn: pass on the one that is free.
        stream = self.streams.pop() if self.streams else None
        state, early = read_checkpoint(self.out_dir, run), self.settings.stop_early
        return Trainer(run, images, self.functions[key], state, stream=stream, stops_early=early)

    def _advance(self, trainer: Trainer) -> None:
        """Take in an epoch that has ended, and start the next unless it was the last."""
        try:
            trainer.finish_epoch()
        except FloatingPointError as error:
            _LOG.error("%s", error)
            self._leave(trainer, self.failed)
            return
        self.progress.epoch_done()
        if trainer.done:
            self._finish(trainer)
            return
        stops = self._time_is_up()
        due = stops or trainer.epoch % self.settings.checkpoint_every == 0
        keeps = self.settings.checkpoint_large or trainer.n_parameters < _LARGE
        state = trainer.snapshot() if due and keeps else None
        if not stops:
            trainer.start_epoch()  # before the file is written: the device need not wait for it
        if state is not None:
            write_checkpoint(self.out_dir, trainer.run.name, state)
        if stops:
            if state is None:
                _LOG.warning(
                    "%s was stopped without a checkpoint; large networks need one asked for", trainer.label
                )
            self._leave(trainer, [])

    def _finish(self, trainer: Trainer) -> None:
        """Write the result of a run that is done."""
        verdict = _write_result(self.out_dir, trainer, self.settings.parallel)
        self.progress.runs_done += 1
        self.progress.epochs_done += trainer.run.epochs - trainer.epoch  # those that patience spared
        self.progress.say(f"finished {trainer.run.name}: {verdict}")
        self._leave(trainer, self.finished)

    def _leave(self, trainer: Trainer, names: list[str]) -> None:
        """Free the slot of a run."""
        names.append(trainer.run.name)
        self.trainers.remove(trainer)
        trainer.close()
        if trainer.stream is not None:
            self.streams.append(trainer.stream)

    def _time_is_up(self) -> bool:
        return time.monotonic() >= self.deadline


# -- evaluation -----------------------------------------------------------------------------------


def _write_result(out_dir: Path, trainer: Trainer, parallel: int) -> str:
    """Write the logits of every choice of epoch, each epoch once, and the record of the run."""
    labels = {"val": trainer.validation_labels, "test": trainer.test_labels}
    arrays: dict[str, NDArray[Any]] = {f"{k}_labels": v.astype(np.uint8) for k, v in labels.items()}
    choices = trainer.choices()
    stored: dict[int, tuple[str, str]] = {}
    for choice, kept in choices.items():
        if kept.epoch not in stored:
            suffix = "" if choice == "best" else f"_{choice}"
            stored[kept.epoch] = (f"val_logits{suffix}", f"test_logits{suffix}")
            for key, logits in zip(stored[kept.epoch], trainer.logits(kept), strict=True):
                arrays[key] = logits.astype(np.float16)
    keys = {choice: stored[kept.epoch] for choice, kept in choices.items()}
    accuracy = {
        choice: {split: _accuracy(arrays[k], labels[split]) for split, k in zip(labels, pair, strict=True)}
        for choice, pair in keys.items()
    }
    record = {
        **_description(trainer),
        "parallel": parallel,
        "history": vars(trainer.history),
        "epochs": {choice: kept.epoch for choice, kept in choices.items()},
        "keys": keys,
        "accuracy": accuracy,
    }
    store.write(out_dir, trainer.run.name, record, arrays)
    return f"test accuracy {accuracy['best']['test']:.4f} at epoch {choices['best'].epoch}"


def _accuracy(logits: NDArray[Any], labels: NDArray[np.int64]) -> float:
    return float((logits.argmax(1) == labels).mean())


def _description(trainer: Trainer) -> dict[str, Any]:
    """Tell what was trained, with what, where and for how long."""
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
        "threads": torch.get_num_threads(),  # on a CPU they decide the order of sums
        **store.provenance(),
    }


# -- command line ---------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Train from the command line; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        runs = chosen_runs(options.runs, options.out, options.results, options.only)
        if options.pending:
            done = store.finished(options.out)
            sys.stdout.writelines(f"{run.name}\n" for run in runs if run.name not in done)
            return 0
        if not options.runs and not options.next:
            parser.error("RUN must be given, got none; name runs or figures, or pass --next or --pending")
        summary = train_runs(
            *(runs, options.data, options.out),
            parallel=options.parallel,
            time_limit=options.time_limit,
            device=options.device,
            compile=not options.no_compile,
            fused=not options.no_fused,
            progress=not options.quiet,
            checkpoint_every=options.checkpoint_every,
            checkpoint_large=options.checkpoint_large,
            stop_early=options.stop_early,
            strict_size=not options.any_size,
        )
    except (ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    counts = {name: len(getattr(summary, name)) for name in ("finished", "skipped", "unfinished", "failed")}
    sys.stdout.write(", ".join(f"{count} {name}" for name, count in counts.items()) + "\n")
    return 1 if summary.failed else 0


def _parser() -> argparse.ArgumentParser:
    """Options of the command line."""
    parser = argparse.ArgumentParser(prog="hetcal_paper.train", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("runs", nargs="*", metavar="RUN", help="names of runs, tables or figures")
    add("--next", action="store_true", help="train what is missing from the paper's grid, in order of worth")
    add("--pending", action="store_true", help="list what is missing, and train nothing")
    add("--only", choices=sorted(DATA_SETS), help="only runs on this data set")
    add("--data", metavar="DIR", help="folder with the data sets (default: $HETCAL_DATA)")
    add("--out", metavar="DIR", default="runs", help="folder for results (default: runs)")
    add("--results", metavar="DIR", help="results whose runs are not missing either")
    add("--time-limit", type=float, metavar="S", help="stop cleanly after this many seconds")
    add("--parallel", type=int, default=8, metavar="N", help="runs side by side (default: 8)")
    add("--device", help="cuda or cpu (default: cuda where there is one)")
    add("--no-compile", action="store_true", help="do without torch.compile")
    add("--no-fused", action="store_true", help="do without hand-written kernels")
    add("--checkpoint-every", type=int, default=1, metavar="N", help="epochs between checkpoints")
    add("--checkpoint-large", action="store_true", help="checkpoint large networks, too")
    add("--stop-early", action="store_true", help="end a run when the recipe's patience ends")
    add("--any-size", action="store_true", help="accept data sets of other than the official size")
    add("--quiet", action="store_true", help="show no progress")
    return parser


if __name__ == "__main__":
    sys.exit(main())
