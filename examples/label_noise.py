"""Calibrate on validation rows whose labels are wrong, too.

    python examples/label_noise.py --output .                  networks in paper/results; about ten minutes
    python examples/label_noise.py --data DIR --output .       also human labels: DIR/cifar10h-counts.npz
    python examples/label_noise.py --page --output .           write the page again, from the table

The networks were trained with 30% label noise in half of the classes. Here the validation labels of the same
classes are corrupted, too: each is redrawn from all classes with a probability of 10, 20 or 30%. Calibrators
are fitted to the clean labels, to the noisy labels, and to the noisy labels with a transition matrix, which
is either known or estimated from 20 rows per class whose true label is known. To see how much worse a fit
must be because noisy labels contain less information, they are also fitted to so few clean labels that these
contain the same information. All of them are evaluated on clean test rows.
"""

# ruff: noqa: T201 - a script prints its table
from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from label_noise_page import COLUMNS, RATES, text_table, write_page
from numpy.typing import NDArray
from tidy import Line, read_lines, write_lines

import hetcal
from hetcal import corruption, label_noise
from hetcal.metrics import ece, max_ece, nll, noise_floor

ROOT = Path(__file__).resolve().parent.parent
NETWORKS = {"CIFAR-10": "c10-noise-0-4-r0.30-s{}", "CIFAR-100": "c100-noise-0-49-r0.30-s{}"}
TRUSTED = 20  # rows per class whose true label is known
Labels = NDArray[np.int64]


def methods() -> dict[str, Any]:
    """Return the calibrators by name."""
    cts = hetcal.ClassWiseTemperatureScaling
    return {
        "TS": hetcal.TemperatureScaling(),
        "CTS": cts(),
        "CTS bayes": cts("bayes"),
        "VS": hetcal.VectorScaling(),
        "Auto": hetcal.AutoCalibrator(),
    }


def run_network(dataset: str, seed: int, data: Any) -> Iterator[Line]:
    """Yield the numbers of one network at all noise rates."""
    val, test = data.val, data.test
    n_classes = val.logits.shape[1]
    noisy_classes = np.arange(n_classes // 2)
    reference = _fit(hetcal.AutoCalibrator(), val.logits, val.labels)
    calibrated = reference.predict_proba(test.logits)
    for rate in RATES:
        rng = np.random.default_rng([seed, round(100 * rate)])
        rates = np.where(np.isin(np.arange(n_classes), noisy_classes), rate, 0.0)
        labels = corruption.noisy_labels(val.labels, noisy_classes, rate, n_classes, rng)
        trusted = np.full(len(labels), -1)
        _, rows = corruption.stratified_split(labels, TRUSTED, rng)  # by observed label
        trusted[rows] = val.labels[rows]
        estimate = label_noise.estimate_transition(val.logits, labels, trusted=trusted)
        yield from _estimate_lines(dataset, seed, rate, rates, estimate)
        fewer = informative_rows(
            val.logits, reference, rates, np.random.default_rng([seed, round(100 * rate), 1])
        )
        every = np.arange(len(labels))
        corrections: dict[str, tuple[Labels, Labels, dict[str, Any]]] = {
            "clean": (every, val.labels, {}),
            "uncorrected": (every, labels, {}),
            "known": (every, labels, {"transition": rates}),
            "estimated": (every, labels, {"transition": estimate}),
            "fewer": (fewer, val.labels[fewer], {}),
        }
        for method, calibrator in methods().items():
            for condition, (index, observed, options) in corrections.items():
                probs = _fit(calibrator, val.logits[index], observed, **options).predict_proba(test.logits)
                for metric, value, floor in _errors(probs, test.labels):
                    yield Line((dataset, str(seed), f"{rate:g}", method, condition, metric), value, floor)
        observed = corruption.noisy_labels(test.labels, noisy_classes, rate, n_classes, rng)
        for condition, options in (("uncorrected", {}), ("known", {"transition": rates})):
            verdicts = hetcal.diagnose(probs=calibrated, labels=observed, **options).summary
            flagged = verdicts["over-confident"] + verdicts["under-confident"]
            yield Line((dataset, str(seed), f"{rate:g}", "Auto", condition, "flagged"), flagged)


def informative_rows(
    logits: Any, reference: Any, rates: NDArray[np.float64], rng: np.random.Generator
) -> Labels:
    """Return random rows whose clean labels contain as much information as the noisy labels of all rows.

    The information about the calibrated logits is the trace of their Fisher information, ``1 − Σ_j p_j²`` for
    a clean label and ``Σ_j p_j² (Σ_l T[j, l]² / (p T)_l − 1)`` for a noisy one. It is summed over the rows of
    every predicted class. The probabilities p are those of the calibrator `reference`.
    """
    p = reference.predict_proba(logits).astype(float)
    transition = np.diag(1 - rates) + rates[:, None] / len(rates)
    clean = 1 - (p**2).sum(axis=1)
    noisy = np.einsum("ij,ij->i", p**2, (1 / (p @ transition)) @ (transition**2).T - 1)
    predicted = logits.argmax(axis=1)
    sums = [np.bincount(predicted, part, len(rates)) for part in (noisy, clean)]
    share = np.divide(*sums, out=np.ones(len(rates)), where=sums[1] > 0)
    return np.flatnonzero(rng.random(len(p)) < share[predicted])


def _estimate_lines(
    dataset: str, seed: int, rate: float, rates: NDArray[np.float64], estimate: Any
) -> Iterator[Line]:
    error = float(np.sqrt(np.mean((estimate.rates - rates) ** 2)))
    yield Line((dataset, str(seed), f"{rate:g}", "", "estimated", "rate_error"), error)


def _fit(calibrator: Any, logits: Any, labels: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hetcal.CalibrationWarning)  # temperatures at a bound
        return calibrator.fit(logits, labels, **options)


def _errors(probs: Any, labels: Any) -> Iterator[tuple[str, float, float]]:
    floor = noise_floor(probs, n_redraws=50, quantiles=()).mean
    yield "nll", nll(probs, labels), np.nan
    yield "ece", ece(probs, labels), float(floor["ece"])
    yield "max_ece", max_ece(probs, labels), float(floor["max_ece"])


def run_humans(seed: int, data: Any, counts: NDArray[Any]) -> Iterator[Line]:
    """Yield the errors of one CIFAR-10 network, measured against the labels of about 50 people per image.

    The calibrators are fitted to the validation rows, which have one label each, or to the votes on every
    second test image. All of them are evaluated on the votes on the other test images.
    """
    fitted, judged = slice(None, None, 2), slice(1, None, 2)
    for method, calibrator in {"Uncal": hetcal.Identity(), **methods()}.items():
        for condition, logits, labels in (
            ("labels", data.val.logits, data.val.labels),
            ("votes", data.test.logits[fitted], counts[fitted]),
        ):
            probs = _fit(calibrator, logits, labels).predict_proba(data.test.logits[judged])
            for metric, function in (("nll", nll), ("ece", ece)):
                value = float(function(probs, counts[judged]))
                yield Line(("CIFAR-10H", str(seed), "0", method, condition, metric), value)


def run_all(folder: Path | None) -> list[Line]:
    """Return the numbers of all networks in ``paper/results/logits``."""
    lines = []
    counts = None
    if folder is not None:
        with np.load(folder / "cifar10h-counts.npz") as file:
            counts = file[file.files[0]]
    for dataset, name in NETWORKS.items():
        for seed in range(5):
            path = ROOT / "paper" / "results" / "logits" / f"{name.format(seed)}.npz"
            if not path.exists():
                continue
            data = hetcal.load_logits(path)
            lines += run_network(dataset, seed, data)
            if counts is not None and dataset == "CIFAR-10":
                lines += run_humans(seed, data, counts)
            print(f"{path.stem} done", flush=True)
    return lines


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder with cifar10h-counts.npz (from cifar-10h)")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="root of the results")
    parser.add_argument("--page", action="store_true", help="write the page from the stored results")
    options = parser.parse_args()
    table = options.output / "results" / "label_noise.csv"
    if options.data is not None and not (options.data / "cifar10h-counts.npz").is_file():
        print(f"--data must contain cifar10h-counts.npz, got {options.data}", file=sys.stderr)
        raise SystemExit(2)
    if not options.page:
        write_lines(table, COLUMNS, run_all(options.data))
    results = read_lines(table)
    print(text_table(results))
    print(f"wrote {table} and {write_page(results, options.output / 'docs')}")


if __name__ == "__main__":
    main()
