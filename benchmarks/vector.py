"""Benchmark vector scaling against other libraries, with the training loss of each."""

from __future__ import annotations

import tempfile
from pathlib import Path

import peers
from methods import METHODS
from problems import make_rows, mean_nll, name_of, save_problem
from timing import Row, compare, fresh, speeds

__all__ = ["measure_vectors"]

OURS = "hetcal VS"
_NOTES = {
    OURS: "scale and bias",
    "probmetrics": "scale and bias, BFGS until convergence",
    "torch-uncertainty": "scale only, L-BFGS, at most 200 steps (its default)",
    "torch-uncertainty, 2,000 steps": "scale only, max_iter=2000",
    "netcal": "scale and bias of log-probabilities, L-BFGS-B with numerical gradients, float64",
}


def measure_vectors(
    n: int, k: int, *, small: tuple[int, int], repeats: int, patience: float, limit: float
) -> list[Row]:
    """Measure one problem without netcal, which needs one pass per parameter, and a smaller one with it."""
    return [
        *_vectors(n, k, repeats, patience, None),
        *_vectors(*small, repeats, patience, limit),
    ]


def _vectors(n: int, k: int, repeats: int, patience: float, limit: float | None) -> list[Row]:
    problem = name_of(n, k)
    print(f"  {problem}", flush=True)
    z, y = make_rows(n, k)
    with peers.quiet():
        theirs = peers.vectors(z, y)
        ours = {OURS: lambda: METHODS[OURS](z, y)}
        times = compare({**ours, **theirs}, repeats=repeats, patience=patience)
    seconds = {name: time.seconds for name, time in times.items()}
    losses = {}
    for name, time in times.items():
        scale, bias = (time.value.scale_, time.value.bias_) if name == OURS else time.value
        losses[name] = mean_nll(z, y, scale, bias)
    rows = [
        Row(
            *("vector", problem, name, seconds[name], ratio, _NOTES.get(name, "")),
            {"nll": losses[name], **times[name].spread()},
        )
        for name, ratio in speeds(seconds, theirs).items()
    ]
    if limit is not None and peers.is_installed("netcal"):
        rows.append(_netcal(n, k, problem, limit, min(seconds[name] for name in theirs)))
    return rows


def _netcal(n: int, k: int, problem: str, limit: float, fastest: float) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        save_problem(Path(folder), n, k)
        try:
            result = fresh("netcal_vector", limit=limit, folder=folder)
        except TimeoutError:
            return Row(
                "vector", problem, "netcal", note=f"not finished after {limit:g} s; {_NOTES['netcal']}"
            )
    print(f"    netcal: {result['seconds']:.4g} s", flush=True)
    ratio = fastest / result["seconds"]
    return Row(
        "vector", problem, "netcal", result["seconds"], ratio, _NOTES["netcal"], {"nll": result["nll"]}
    )
