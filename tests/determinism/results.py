"""Write results of hetcal for fixed data and seeds to a file, computed with NumPy and with compiled code."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import numpy as np

import hetcal
from hetcal._numeric import acceleration, threads
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
    "MatrixScaling": hetcal.MatrixScaling(),
    "MatrixScaling, spline": hetcal.MatrixScaling(features="spline"),
    "AutoCalibrator": hetcal.AutoCalibrator(cv=2),
}
FOR_TWO_CLASSES: dict[str, Any] = {
    f"BinaryScaling, {features}": hetcal.BinaryScaling(features)
    for features in ("linear", "quadratic", "beta", "spline", "isotonic")
}


def make_rows(n: int, n_classes: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(n, n_classes)) * 1.5
    z[np.arange(n), np.arange(n) % n_classes] += rng.uniform(1, 8, size=n)
    z = z.astype(np.float32)
    alpha = 0.6 * np.exp(0.4 * rng.normal(size=n_classes))
    return z, (z * alpha[z.argmax(axis=1)][:, None] + rng.gumbel(size=z.shape)).argmax(axis=1)


def fits_and_metrics() -> dict[str, Any]:
    """Results that depend on passes over the logits."""
    z, y = make_rows(10_500, 4)  # OpenBLAS uses several threads for vectors of more than 10,000 elements
    results: dict[str, Any] = {}
    for name, calibrator in CALIBRATORS.items():
        if name == "AutoCalibrator" and acceleration.LARGE == 1:
            continue  # slow, and composed of the other calibrators
        results[name] = calibrator.fit(z, y).predict_proba(z)
    pairs, answers = make_rows(10_500, 2)
    for name, calibrator in FOR_TWO_CLASSES.items():
        results[name] = calibrator.fit(pairs, answers).predict_proba(pairs)
    probs = results["VectorScaling"]
    results["evaluate"] = hetcal.evaluate(probs, y).to_dict()
    results["bootstrap"] = vars(hetcal.bootstrap(probs, y, n_resamples=50))
    results["noise_floor"] = vars(hetcal.noise_floor(probs, n_redraws=50))
    results["diagnose"] = hetcal.diagnose(z, y).to_dict()
    return results


def plan_and_report() -> dict[str, Any]:
    z, y = make_rows(1000, 4)
    plan = hetcal.plan_validation_size(z, y, n_repeats=5, sizes=[20, 100, 500])
    rows = LogitsFile(Split(z[:600], y[:600]), Split(z[600:], y[600:]), None, "rows")
    report = json.loads(hetcal.make_report(rows, format="json"))
    return {"plan_validation_size": plan.to_dict(), "report": report}


def main(path: str) -> None:
    warnings.simplefilter("ignore")
    threads._BLOCK = 2000  # many blocks, which the threads share
    results = plan_and_report()
    for implementation, large in (("numpy", 1 << 60), ("compiled", 1)):
        acceleration.LARGE = large
        results |= {f"{implementation}/{name}": value for name, value in fits_and_metrics().items()}
    np.savez(path, **{name: as_array(value) for name, value in results.items()})


def as_array(value: Any) -> Any:
    """All numbers of a nested result in one array."""
    return value if isinstance(value, np.ndarray) else np.array(numbers(value), np.float64)


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [x for part in value.values() for x in numbers(part)]
    if isinstance(value, list | tuple | np.ndarray):
        return [x for part in value for x in numbers(part)]
    return [float(value)] if isinstance(value, int | float | np.number) else []


if __name__ == "__main__":
    main(sys.argv[1])
