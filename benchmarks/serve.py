"""Benchmark the latency of predictions: ONNX Runtime, torch and NumPy compared with the softmax alone.

    python benchmarks/serve.py          (prints the results; `run.py` stores them)

The benchmark uses one thread per call, as servers with many concurrent requests do. The models take turns and
return probabilities only.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import peers
from problems import make_rows, name_of
from timing import Others, Row, wait_for_quiet

import hetcal

__all__ = ["measure_serving"]

SOFTMAX = "ONNX Runtime, softmax only"
_ROUND = 0.02  # seconds per model and round


def measure_serving(sizes: list[int], k: int, *, rounds: int) -> list[Row]:
    """Measure CTS on batches of the given sizes, in every runtime."""
    z, y = make_rows(20 * k, k)
    with peers.quiet():
        calibrator = hetcal.ClassWiseTemperatureScaling(0.3).fit(z, y)
    routes = {**_onnx(calibrator, k), **_torch(calibrator), "numpy": calibrator.predict_proba}
    rows = []
    for n in sizes:
        wait_for_quiet()
        batch = np.ascontiguousarray(z[:n])
        expected = calibrator.predict_proba(batch)
        for name, route in routes.items():
            if name not in _SOFTMAX_ONLY:
                np.testing.assert_allclose(np.asarray(route(batch)), expected, atol=1e-5)
        with Others() as other:
            times = _alternate({name: partial(route, batch) for name, route in routes.items()}, rounds)
        softmax_time = times.get(SOFTMAX, float("nan"))
        rows += [
            Row(
                *("serving", name_of(n, k), name, seconds, None, ""),
                {"softmaxes": seconds / softmax_time, "others": round(other.share, 3)},
            )
            for name, seconds in times.items()
        ]
    return rows


def _alternate(works: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the median over rounds of the mean time of a call."""
    calls, means = {}, {name: [] for name in works}
    for name, work in works.items():
        work()
        started = time.perf_counter()
        work()
        calls[name] = max(3, int(_ROUND / (time.perf_counter() - started)))
    for _ in range(rounds):
        for name, work in works.items():
            started = time.perf_counter()
            for _ in range(calls[name]):
                work()
            means[name].append((time.perf_counter() - started) / calls[name])
    return {name: statistics.median(times) for name, times in means.items()}


def _onnx(calibrator: Any, k: int) -> dict[str, Callable[[Any], Any]]:
    if not (peers.is_installed("onnx") and peers.is_installed("onnxruntime")):
        return {}
    import onnxruntime
    from onnx import TensorProto, helper

    import hetcal.onnx

    graph = helper.make_graph(
        [helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1)],
        "softmax",
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", k])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", k])],
    )
    bare = helper.make_model(graph, opset_imports=[helper.make_opsetid("", hetcal.onnx.OPSET)], ir_version=9)

    def runner(model: Any) -> Callable[[Any], Any]:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return lambda z: session.run(["probabilities"], {"logits": z})[0]

    return {
        SOFTMAX: runner(bare),
        "ONNX Runtime, CTS": runner(hetcal.onnx.to_model(calibrator)),
        "ONNX Runtime, CTS, many_rows=True": runner(hetcal.onnx.to_model(calibrator, many_rows=True)),
    }


def _torch(calibrator: Any) -> dict[str, Callable[[Any], Any]]:
    if not peers.is_installed("torch"):
        return {}
    import torch

    import hetcal.torch

    model = hetcal.torch.CalibratedModel(torch.nn.Identity(), calibrator)

    def run(z: Any) -> Any:
        with torch.inference_mode():
            return model.predict_proba(torch.from_numpy(z)).numpy()

    def bare(z: Any) -> Any:
        with torch.inference_mode():
            return torch.softmax(torch.from_numpy(z), 1).numpy()

    return {"torch, softmax only": bare, "torch, CTS": run}


_SOFTMAX_ONLY = {SOFTMAX, "torch, softmax only"}


def main() -> None:
    """Measure and print the results."""
    for row in measure_serving([1, 256], 1000, rounds=30):
        print(
            f"{row.problem:>12}  {row.library:<36}{1e6 * (row.seconds or 0):10.1f} µs "
            f"{row.more['softmaxes']:6.2f} softmaxes"
        )


if __name__ == "__main__":
    main()
