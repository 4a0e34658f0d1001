"""Write what hetcal computes from given rows and seeds to a file, by numpy's and by compiled passes."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import numpy as np

import hetcal
from hetcal._numeric import acceleration as fast
from hetcal._numeric import threads
from hetcal.logits_files import LogitsFile, Split

CALIBRATORS: dict[str, Any] = {
    "Identity": hetcal.Identity(),
    "TemperatureScaling": hetcal.TemperatureScaling(),
    "VectorScaling": hetcal.VectorScaling(),
    "VectorScaling, keep_decision": hetcal.VectorScaling(keep_decision=True),
    "PlattScaling": hetcal.PlattScaling(),
    "TopLabelIsotonic": hetcal.TopLabelIsotonic(),
    "TopLabelHistogram": hetcal.TopLabelHistogram(),
    "ClassWiseTemperatureScaling, inf": hetcal.ClassWiseTemperatureScaling(np.inf),
    "ClassWiseTemperatureScaling, 0.2": hetcal.ClassWiseTemperatureScaling(0.2),
    "ClassWiseTemperatureScaling, cv": hetcal.ClassWiseTemperatureScaling("cv"),
    "ClassWiseTemperatureScaling, bayes": hetcal.ClassWiseTemperatureScaling("bayes"),
    "ClassWise, Platt": hetcal.ClassWise(hetcal.PlattScaling(), gamma="bayes"),
    "ClassWise, isotonic": hetcal.ClassWise(hetcal.TopLabelIsotonic()),
    "Chain": hetcal.Chain([hetcal.TemperatureScaling(), hetcal.ClassWiseTemperatureScaling(0.1)]),
    "Mixture": hetcal.Mixture([hetcal.TemperatureScaling(), hetcal.PlattScaling()]),
    "AutoCalibrator": hetcal.AutoCalibrator(),
}


def make_rows(n: int, n_classes: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(n, n_classes)) * 1.5
    z[np.arange(n), np.arange(n) % n_classes] += rng.uniform(1, 8, size=n)
    z = z.astype(np.float32)
    alpha = 0.6 * np.exp(0.4 * rng.normal(size=n_classes))
    return z, (z * alpha[z.argmax(axis=1)][:, None] + rng.gumbel(size=z.shape)).argmax(axis=1)


def of_kernels() -> dict[str, Any]:
    """What the passes over the logits decide."""
    z, y = make_rows(10_500, 4)  # BLAS takes threads for vectors of more than 10,000
    found: dict[str, Any] = {}
    for name, calibrator in CALIBRATORS.items():
        if name == "AutoCalibrator" and fast.LARGE == 1:
            continue  # takes long, and has the others as its parts
        found[name] = calibrator.fit(z, y).predict_proba(z)
    probs = found["VectorScaling"]
    found["evaluate"] = hetcal.evaluate(probs, y).to_dict()
    found["bootstrap"] = vars(hetcal.bootstrap(probs, y, n_resamples=50))
    found["noise_floor"] = vars(hetcal.noise_floor(probs, n_redraws=50))
    found["diagnose"] = hetcal.diagnose(z, y).to_dict()
    return found


def of_many_fits() -> dict[str, Any]:
    z, y = make_rows(1000, 4)
    plan = hetcal.plan_validation_size(z, y, n_repeats=5)
    rows = LogitsFile(Split(z[:600], y[:600]), Split(z[600:], y[600:]), None, "rows")
    report = json.loads(hetcal.make_report(rows, format="json"))
    return {"plan_validation_size": plan.to_dict(), "report": report}


def main(path: str) -> None:
    warnings.simplefilter("ignore")
    threads._BLOCK = 2000  # so that there are many blocks for the threads to take
    found = of_many_fits()
    for passes, large in (("numpy", 1 << 60), ("compiled", 1)):
        fast.LARGE = large
        found |= {f"{passes}/{name}": value for name, value in of_kernels().items()}
    np.savez(path, **{name: as_array(value) for name, value in found.items()})


def as_array(value: Any) -> Any:
    """Numbers as they are, one after the other."""
    return value if isinstance(value, np.ndarray) else np.array(numbers(value), np.float64)


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [x for part in value.values() for x in numbers(part)]
    if isinstance(value, list | tuple | np.ndarray):
        return [x for part in value for x in numbers(part)]
    return [float(value)] if isinstance(value, int | float | np.number) else []


if __name__ == "__main__":
    main(sys.argv[1])
