"""Seconds per epoch and model of the training engine, with runs side by side.

``python benchmarks/train.py`` trains 1, 8 and 16 ResNet-20s for a few epochs on random images of
CIFAR's shape and size (45,000 rows, batch 128), with and without ``torch.compile``, and prints a
table. Validation and augmentation are included, set-up and compilation are shown apart. On a CPU
use ``--rows 2000 --models 1 --network tiny``.
"""

from __future__ import annotations

import argparse
import os
import time

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from hetcal.experiments.batches import DeviceImages
from hetcal.experiments.data import DATA_SETS, Cifar
from hetcal.experiments.engine import Trainer
from hetcal.experiments.functional import Functions
from hetcal.experiments.models import NETWORKS
from hetcal.experiments.runs import clean


def random_images(name: str, n: int) -> Cifar:
    """Images of the right shape that mean nothing."""
    rng = np.random.default_rng(0)
    n_classes = DATA_SETS[name].n_classes
    pixels = rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(n) % n_classes
    return Cifar(name, n_classes, pixels, labels, pixels[:1000], labels[:1000])


def drive(trainers: list[Trainer], epochs: int) -> float:
    """Train all side by side, each at its own pace; return the seconds it took."""
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
    """Operations of one image, forward and backward (multiply and add count as two)."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        NETWORKS[network](n_classes)(torch.zeros(2, 3, 32, 32)).sum().backward()
    return float(counter.get_total_flops()) / 2


def measure(options: argparse.Namespace, images: DeviceImages, n: int, functions: Functions) -> str:
    """One row of the table."""
    start = time.perf_counter()
    runs = [clean(options.data, seed, network=options.network) for seed in range(n)]
    trainers = [Trainer(run, images, functions) for run in runs]
    set_up = time.perf_counter() - start
    drive(trainers, 1)
    seconds = drive(trainers, options.epochs) / options.epochs / n
    rows = trainers[0].n_train + trainers[0].n_validation / 3  # a forward pass is a third of a step
    rate = rows * flops_per_image(options.network, images.cifar.n_classes) / seconds / 1e12
    memory = torch.cuda.max_memory_allocated() / 2**30 if images.device.type == "cuda" else float("nan")
    done = "yes" if functions.compiled else "no"
    for trainer in trainers:
        trainer.close()
    return f"{n:>6} {done:>8} {seconds:>14.4f} {rate:>8.1f} {set_up:>8.1f} {memory:>7.1f}"


def main() -> None:
    """Print the table."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # before the first use of the device
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--network", choices=sorted(NETWORKS), default="resnet20")
    parser.add_argument("--data", choices=sorted(DATA_SETS), default="c10")
    parser.add_argument("--rows", type=int, default=50_000, help="training and validation rows together")
    parser.add_argument("--compile", choices=["both", "yes", "no"], default="both")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    device = torch.device(options.device)
    images = DeviceImages(random_images(options.data, options.rows), device)
    place = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{options.network} on {place}, torch {torch.__version__}, {options.rows} rows", flush=True)
    print(
        f"{'models':>6} {'compiled':>8} {'s/epoch/model':>14} {'TFLOP/s':>8} {'set-up s':>8} {'GiB':>7}",
        flush=True,
    )
    choices = {"both": [False, True], "yes": [True], "no": [False]}[options.compile]
    for compiled in choices if device.type == "cuda" else [False]:
        functions = Functions(options.network, images.cifar.n_classes, compiled=compiled)
        for n in options.models:
            print(measure(options, images, n, functions), flush=True)


if __name__ == "__main__":
    main()
