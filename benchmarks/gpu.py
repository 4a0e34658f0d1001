"""Benchmark fits on a tensor on a GPU against other libraries and one read of the tensor.

    python benchmarks/gpu.py                                        (1,000,000 x 1,000 float32 on CUDA)
    python benchmarks/gpu.py --device cpu --rows 20000 --classes 50 --dry    (smoke test)

The results are stored in ``benchmarks/results.json`` unless ``--dry`` is passed. A time is the median of
several calls after a warm-up call, or of one or two calls if they take longer than ``--patience``. The device
is synchronised at the end of each call.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import peers
import torch
from problems import name_of
from timing import RESULTS, Row, compare, describe_machine, save_rows, speeds

import hetcal

READ = "one read of the logits"
_OURS = {
    "hetcal TS": lambda: hetcal.TemperatureScaling(),
    "hetcal CTS, Γ = ∞": lambda: hetcal.ClassWiseTemperatureScaling(),
    "hetcal CTS, Γ = 0.3": lambda: hetcal.ClassWiseTemperatureScaling(0.3),
    "hetcal CTS, Γ = bayes": lambda: hetcal.ClassWiseTemperatureScaling("bayes"),
}


def make_tensors(n: int, k: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Generate rows like `problems.make_rows`, on the device."""
    generator = torch.Generator(device).manual_seed(0)
    z, y = torch.empty((n, k), device=device), torch.empty(n, dtype=torch.int64, device=device)
    alpha = torch.where(torch.arange(k, device=device) < k // 2, 0.6, 1.5)
    for start in range(0, n, step := max(1, (1 << 26) // k)):
        part = z[start : start + step].normal_(generator=generator).mul_(2.5)
        probs = torch.softmax(alpha[part.argmax(dim=1), None] * part, dim=1)
        y[start : start + step] = torch.multinomial(probs, 1, generator=generator)[:, 0]
    return z, y


def measure_gpu(n: int, k: int, device: str, *, repeats: int, patience: float) -> list[Row]:
    """Measure all fits. A fit that fails becomes a row with the reason."""
    z, y = make_tensors(n, k, device)
    theirs = _peers(z, y)
    fits = {name: lambda make=make: make().fit(z, y) for name, make in _OURS.items()}
    works = {READ: lambda: float(z.sum()), **fits, **theirs}
    problem, timings, failed = name_of(n, k), {}, {}
    with peers.quiet():
        for name, work in works.items():
            try:
                timings |= compare({name: _synchronised(work, device)}, repeats=repeats, patience=patience)
            except Exception as error:  # a failing library must not stop the others
                failed[name] = f"failed: {type(error).__name__}: {error}"[:300]
                print(f"    {name} {failed[name]}", flush=True)
    seconds = {name: time.seconds for name, time in timings.items()}
    ratios = speeds(seconds, theirs)
    rows = [
        Row(
            *("gpu", problem, name, time.seconds, ratios[name], peers.NOTES.get(name, "")),
            {"reads": time.seconds / seconds[READ], **time.spread(), "alpha": _alpha(time.value)},
        )
        for name, time in timings.items()
    ]
    return rows + [Row("gpu", problem, name, note=note) for name, note in failed.items()]


def _alpha(value: Any) -> float | None:
    """Return the inverse temperature if it is a single number."""
    value = getattr(value, "alpha_", value)
    return float(value) if getattr(value, "ndim", 0) == 0 else None


def _peers(z: torch.Tensor, y: torch.Tensor) -> dict[str, Callable[[], Any]]:
    fits: dict[str, Callable[[], Any]] = {}
    for name, module, make in (
        ("probmetrics", "probmetrics", peers.probmetrics),
        ("torch-uncertainty", "torch_uncertainty", peers.uncertainty),
    ):
        try:
            if peers.is_installed(module):
                fits[name] = make(z, y)
            else:
                print(f"    {name} is not installed and is skipped", flush=True)
        except ImportError as error:
            print(f"    {name} is skipped: {error}", flush=True)
    return fits


def _synchronised(work: Callable[[], Any], device: str) -> Callable[[], Any]:
    def run() -> Any:
        value = work()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        return value

    return run


def main() -> None:
    """Measure, print and store the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", type=int, default=9, help="calls per fit; short fits run more often")
    parser.add_argument(
        "--patience", type=float, default=10.0, help="seconds after which a fit is not repeated"
    )
    parser.add_argument("--dry", action="store_true", help="print the results without storing them")
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(
            f"--device must be a device that PyTorch can use, got {options.device} without a CUDA device; "
            "use --device cpu with few rows for a smoke test"
        )
    rows = measure_gpu(
        options.rows, options.classes, options.device, repeats=options.repeats, patience=options.patience
    )
    for row in rows:
        time = "-" if row.seconds is None else f"{1000 * row.seconds:.3f} ms"
        ratio = "" if row.ratio is None else f"{row.ratio:.1f} times as fast as the fastest other library"
        reads = f"{row.more['reads']:.1f} reads" if "reads" in row.more else ""
        print(f"{row.library:<28}{time:>14}{reads:>16}  {ratio}  {row.note}")
    if not options.dry:
        machine = describe_machine()
        if options.device.startswith("cuda"):
            machine["gpu"] = torch.cuda.get_device_name()
        save_rows(rows, "gpu", machine, RESULTS)


if __name__ == "__main__":
    main()
