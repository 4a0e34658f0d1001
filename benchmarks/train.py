"""Measure the training time of hetcal-paper in seconds per epoch and model, with several models in parallel.

``python benchmarks/train.py`` trains 1, 4, 8 and 16 ResNet-20s for a few epochs on random images with
the shape and size of CIFAR (45,000 rows, batch size 128) and prints a table. On a GPU it measures
three implementations, called paths: hand-written kernels, ``torch.compile`` and plain autograd. On a
CPU it measures plain autograd only. Times include validation and
augmentation; set-up and compilation are listed separately. On a CPU use
``--device cpu --rows 600 --network tiny --epochs 1 --models 1``.

On one NVIDIA H200 with PyTorch 2.11 (``--paths fused --models 1 8 16`` and, for the second network,
``--network wrn28x10 --data c100 --paths compiled --models 1 --epochs 1``) it printed

    network    models   path      s/epoch/model   ms/step   TFLOP/s   set-up s   GiB
    resnet20        1   fused            0.2550     0.726      44.7       42.7   1.1
    resnet20        8   fused            0.1809     0.515      62.9        0.8   4.9
    resnet20       16   fused            0.1871     0.533      60.9        1.9   9.3
    wrn28x10        1   compiled         3.9963    11.385     367.4       45.3   3.0

which agrees with whole runs: ``seconds / 200 / parallel`` of the runs with 45,000 rows in
``paper/results/runs.csv`` is 0.182 s with six runs in parallel. Without the kernels, an epoch of
ResNet-20 took 0.51 s compiled and 0.63 s with plain autograd.

The kernels of one ResNet-20 step take 0.63 ms with one model: ``weight_gradient`` 37 %, ``conv_forward`` 28 %
and ``conv_backward`` 22 %. More than four models in parallel gain almost nothing, so the device is busy,
although far from its peak. We read no hardware counters; address arithmetic and the L2 cache are the likely
bottleneck in the layers with 16 channels.
"""

from __future__ import annotations

import argparse
import os
import time

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from hetcal_paper.batches import DeviceImages
from hetcal_paper.cifar import DATA_SETS, Cifar
from hetcal_paper.kernels import available
from hetcal_paper.networks import NETWORKS
from hetcal_paper.runs import clean
from hetcal_paper.trainer import Trainer
from hetcal_paper.weights import Functions

PATHS = ["fused", "compiled", "eager"]


def random_images(name: str, n: int) -> Cifar:
    """Return random images with the shape of CIFAR."""
    rng = np.random.default_rng(0)
    n_classes = DATA_SETS[name].n_classes
    pixels = rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(n) % n_classes
    return Cifar(name, n_classes, pixels, labels, pixels[:1000], labels[:1000])


def drive(trainers: list[Trainer], epochs: int) -> float:
    """Train all models in parallel and return the time in seconds."""
    start = time.perf_counter()
    left = {id(trainer): epochs for trainer in trainers}
    for trainer in trainers:
        trainer.start_epoch()
    while left:
        for trainer in trainers:
            if id(trainer) not in left or not trainer.ready():
                continue
            trainer.finish_epoch()
            left[id(trainer)] -= 1
            if left[id(trainer)]:
                trainer.start_epoch()
            else:
                del left[id(trainer)]
    return time.perf_counter() - start


def flops_per_image(network: str, n_classes: int) -> float:
    """Return the floating-point operations of one image, forward and backward."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        NETWORKS[network](n_classes)(torch.zeros(2, 3, 32, 32)).sum().backward()
    return float(counter.get_total_flops()) / 2


def measure(options: argparse.Namespace, images: DeviceImages, n: int, functions: Functions) -> str:
    """Train `n` models and return their row of the table."""
    if images.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    runs = [clean(options.data, seed, network=options.network) for seed in range(n)]
    trainers = [Trainer(run, images, functions) for run in runs]
    set_up = time.perf_counter() - start
    drive(trainers, 1)
    seconds = drive(trainers, options.epochs) / options.epochs / n
    first = trainers[0]
    rows = (
        first.n_train + first.n_validation / 3
    )  # validation has no backward pass: a third of the operations
    rate = rows * flops_per_image(options.network, images.cifar.n_classes) / seconds / 1e12
    step = 1000 * seconds / (first.n_train // min(runs[0].batch_size, first.n_train))
    memory = torch.cuda.max_memory_allocated() / 2**30 if images.device.type == "cuda" else float("nan")
    path = first.path  # differs from the requested path if that one failed
    for trainer in trainers:
        trainer.close()
    return f"{n:>6} {path:>8} {seconds:>13.4f} {step:>8.3f} {rate:>8.3f} {set_up:>8.1f} {memory:>7.1f}"


def paths_of(options: argparse.Namespace, device: torch.device) -> list[str]:
    """Return the paths to measure: the requested ones, or by default those that suit the device."""
    wanted = options.paths or (PATHS if device.type == "cuda" else ["eager"])
    if "fused" in wanted and not available(options.network, "adam", device):
        print(f"no hand-written kernels for {options.network} on {device.type}")
        return [path for path in wanted if path != "fused"]
    return list(wanted)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--models", type=int, nargs="+", default=[1, 4, 8, 16])
    add("--epochs", type=int, default=3)
    add("--network", choices=sorted(NETWORKS), default="resnet20")
    add("--data", choices=sorted(DATA_SETS), default="c10")
    add("--rows", type=int, default=50_000, help="training and validation rows together")
    add("--paths", nargs="+", choices=PATHS, help="default: all on CUDA, eager elsewhere")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    """Print the table."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # before the first use of the device
    options = parse_options()
    torch.backends.cudnn.benchmark = True
    device = torch.device(options.device)
    images = DeviceImages(random_images(options.data, options.rows), device)
    place = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{options.network} on {place}, torch {torch.__version__}, {options.rows} rows")
    paths = paths_of(options, device)
    names = ("s/epoch/model", "ms/step", "TFLOP/s", "set-up s", "GiB")
    print(f"{'models':>6} {'path':>8} {names[0]:>13} {names[1]:>8} {names[2]:>8} {names[3]:>8} {names[4]:>7}")
    for path in paths:
        n_classes = images.cifar.n_classes
        functions = Functions(options.network, n_classes, compiled=path == "compiled", fused=path == "fused")
        for n in options.models:
            print(measure(options, images, n, functions), flush=True)


if __name__ == "__main__":
    main()
