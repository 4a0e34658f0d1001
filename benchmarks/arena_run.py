"""Evaluation of the arena's methods: time-limited fits, scores on test rows, and the table of results."""

from __future__ import annotations

import csv
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import peers
from arena_hdf5 import FixedProblem
from arena_methods import Method
from arena_problems import Problem, Split
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from hetcal import metrics

__all__ = ["Evaluable", "Results", "evaluate", "problems_path", "use_one_thread", "warm_up"]

_PROBLEM_COLUMNS = ("problem", "split", "family", "dataset", "half", "classes", "rows")  # rows to fit on
# `zeros` is the share of test rows that contain a probability of zero; `difference` is the log-loss minus
# that of one temperature, with its paired standard error.
_COLUMNS = (
    *("problem", "split", "zeros", "method", "library", "status"),
    *("log_loss", "brier", "ece", "smooth_ece", "accuracy", "changed", "difference", "difference_se"),
    *("fit_seconds", "predict_seconds", "peak_mb", "note"),
)
Key = tuple[str, str, str]
Line = dict[str, Any]
Evaluable = Problem | FixedProblem

_TINY = float(np.finfo(np.float32).tiny)  # smaller probabilities count as this in all scores
_N_BINS = 15


class Results:
    """Two CSV files, which a later run continues.

    The first has one line per problem, split and method. The second, at :func:`problems_path`, describes each
    split of a problem once. With `read_only`, added lines stay in memory.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path, self.read_only = path, read_only
        self.lines: dict[Key, Line] = {}
        self._problems: dict[tuple[str, str], Line] = {}
        if path.exists():
            self._problems = {_key(line)[:2]: line for line in _read(problems_path(path))}
            self.lines = {_key(line): self._problems[_key(line)[:2]] | line for line in _read(path)}

    def discard(self, methods: Iterable[str]) -> None:
        """Forget the lines of these methods, so that they run again."""
        selected = set(methods)
        self.lines = {key: line for key, line in self.lines.items() if key[2] not in selected}
        self.add([])

    def add(self, lines: Iterable[Line]) -> None:
        """Add lines and write the files."""
        self.lines |= {_key(line): line for line in lines}
        if self.read_only:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Descriptions of problems are kept, so that the files agree even if only the first is written.
        self._problems |= {key[:2]: line for key, line in self.lines.items()}
        _write(problems_path(self.path), _PROBLEM_COLUMNS, self._problems.values())
        _write(self.path, _COLUMNS, self.lines.values())

    def missing(self, problem: str, split: int, methods: dict[str, Method]) -> dict[str, Method]:
        """Return the methods that have no line for a split."""
        return {k: v for k, v in methods.items() if (problem, str(split), k) not in self.lines}

    def exceeded_limit(self, problem: str, method: str) -> bool:
        """Return whether the method exceeded the time limit on another split of the problem."""
        return any(
            line["status"] == "timeout" and (line["problem"], line["method"]) == (problem, method)
            for line in self.lines.values()
        )


def problems_path(path: Path) -> Path:
    """Return the path of the file that describes the problems of a file of results."""
    return path.with_name(f"{path.stem}-problems.csv")


def evaluate(
    problem: Evaluable, methods: dict[str, Method], baseline: Method, results: Results, limit: float
) -> None:
    """Evaluate the methods on the splits of a problem for which `results` lacks them.

    A method that fails, or that needs more than `limit` seconds to fit and predict, gets a line that says so.
    """
    for number, split in problem.splits():
        n_rows, n_classes = split.probs_cal.shape
        pending = results.missing(problem.name, number, methods)
        pending = {name: method for name, method in pending.items() if method.suits(n_classes)}
        if not pending:
            continue
        reference = _row_losses(_fit_and_predict(baseline, split, limit)[0], split.labels_test)
        lines = []
        for name, method in pending.items():
            line: Line = {
                "problem": problem.name,
                "family": problem.family,
                "dataset": problem.dataset,
                "half": problem.half,
                "classes": n_classes,
                "rows": n_rows,
                "zeros": f"{(split.probs_test == 0).any(axis=1).mean():.4g}",
                "split": number,
                "method": name,
                "library": method.library,
            }
            if results.exceeded_limit(problem.name, name):
                outcome: Line = {"status": "timeout", "note": "exceeded the limit on another split"}
            else:
                outcome = _outcome(method, split, reference, limit)
            lines.append(line | outcome)
        results.add(lines)


def use_one_thread() -> None:
    """Limit all libraries to one thread, and hide their progress bars."""
    os.environ |= {"HETCAL_THREADS": "1", "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    threadpool_limits(1)
    if peers.is_installed("torch"):
        import torch

        torch.set_num_threads(1)


def warm_up(methods: dict[str, Method]) -> None:
    """Run every method on small problems, so that imports and compilation are not timed."""
    rng = np.random.default_rng(0)
    for n_classes in (2, 3):
        p = rng.dirichlet(np.ones(n_classes), 90)
        split = Split(p, np.arange(90) % n_classes, p, np.arange(90) % n_classes)
        for method in methods.values():
            if method.suits(n_classes):
                _outcome(method, split, np.zeros(90), 120)


def _key(line: Line) -> Key:
    return line["problem"], str(line["split"]), line.get("method", "")


def _read(path: Path) -> list[Line]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _write(path: Path, columns: Sequence[str], lines: Iterable[Line]) -> None:
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(lines)
    part.replace(path)


def _outcome(method: Method, split: Split, reference: NDArray[np.float64], limit: float) -> Line:
    try:
        p, measures = _fit_and_predict(method, split, limit)
    except TimeoutError:
        return {"status": "timeout", "note": f"needs more than {limit:g} s"}
    except Exception as error:  # a failing library must not stop the arena
        return {"status": "failed", "note": f"{type(error).__name__}: {error}"[:200].replace("\n", " ")}
    return {"status": "ok"} | _scores(p, split, reference) | measures


def _fit_and_predict(method: Method, split: Split, limit: float) -> tuple[NDArray[np.float64], Line]:
    """Return the probabilities of the test rows, and times in seconds and memory in MB."""
    with peers.quiet(), _silence(), _time_limit(limit), np.errstate(all="ignore"):
        resident = _reset_peak()
        started = time.perf_counter()
        predict = method.fit(split.probs_cal, split.labels_cal)
        fitted = time.perf_counter()
        p = np.asarray(predict(split.probs_test), np.float64)
        predicted = time.perf_counter()
        peak = _memory("VmHWM")
    if predicted - started > limit:  # compiled code cannot be interrupted
        raise TimeoutError
    if p.shape != split.probs_test.shape:
        raise ValueError(f"probabilities have shape {p.shape} instead of {split.probs_test.shape}")
    if not np.isfinite(p).all():
        raise ValueError("probabilities are not finite")
    p = np.maximum(p, _TINY)
    return p / p.sum(axis=1, keepdims=True), {
        "fit_seconds": f"{fitted - started:.4g}",
        "predict_seconds": f"{predicted - fitted:.4g}",
        "peak_mb": "" if resident is None or peak is None else f"{max(peak - resident, 0):.4g}",
    }


def _scores(p: NDArray[np.float64], split: Split, reference: NDArray[np.float64]) -> Line:
    y = split.labels_test
    losses = _row_losses(p, y)
    difference = losses - reference
    scores = {
        "log_loss": losses.mean(),
        "brier": metrics.brier(p, y),
        "ece": metrics.ece(p, y, n_bins=_N_BINS),
        "smooth_ece": metrics.smooth_ece(p, y),
        "accuracy": metrics.accuracy(p, y),
        "changed": np.mean(p.argmax(axis=1) != split.probs_test.argmax(axis=1)),
        "difference": difference.mean(),
        "difference_se": difference.std(ddof=1) / np.sqrt(len(y)),
    }
    return {name: f"{value:.8g}" for name, value in scores.items()}


def _row_losses(p: NDArray[np.float64], y: NDArray[np.int64]) -> NDArray[np.float64]:
    return -np.log(np.maximum(p[np.arange(len(y)), y], _TINY))


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after some seconds, where the system has such signals."""

    def interrupt(*_: Any) -> None:
        raise TimeoutError

    if not hasattr(signal, "setitimer"):
        yield
        return
    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@contextmanager
def _silence() -> Iterator[None]:
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def _reset_peak() -> float | None:
    """Reset the peak of the resident memory and return the current one in MB; None except on Linux."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _memory("VmRSS")


def _memory(field: str) -> float | None:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith(field)), None)
