"""Reports in MLflow runs: the HTML page, the metrics, and the verdict on every class."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from hetcal._extras import missing_package
from hetcal._validate import check_integer
from hetcal.artefact import uses_groups
from hetcal.calibrators.base import Calibrator
from hetcal.diagnosis import Diagnosis, diagnose
from hetcal.logits_files import LogitsFile
from hetcal.metrics import Evaluation, evaluate
from hetcal.metrics.evaluation import as_frame
from hetcal.report import ReportData, collect_report, render_report
from hetcal.report.collect import as_logits_file
from hetcal.report.data import FLOORED, MISCALIBRATED

try:
    import mlflow
except ImportError as error:
    raise missing_package("hetcal.mlflow needs MLflow", "mlflow") from error

__all__ = ["log_report"]

_AFTER = "_after"  # end of the names of metrics and columns that describe the calibrated probabilities
_SCORES = ("accuracy", "nll", "brier")
_COMPARED = ("signed_gap", "ece", "floor", "verdict")  # columns that a calibrator adds again, with _AFTER


def log_report(
    data: LogitsFile | ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    calibrator: Any = None,
    probs: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    train_counts: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    n_bins: int = 15,
    title: str | None = None,
    rng: np.random.Generator | int = 0,
    run_id: str | None = None,
    step: int | None = None,
    prefix: str = "calibration/",
    artifact_path: str = "calibration",
) -> ReportData:
    """Log a report, metrics with their noise floors, and a verdict on every class to an MLflow run.

    Parameters
    ----------
    data, labels, probs, class_names, train_counts : as in :func:`hetcal.make_report`
    groups, n_bins, title, rng : as in :func:`hetcal.make_report`
    calibrator : fitted calibrator, optional
        Also log the metrics and verdicts of its probabilities, with names that end in ``_after``. If `data`
        is a LogitsFile with test rows, only these are evaluated. A warning is emitted if the evaluated rows
        and those that the calibrator was fitted on overlap by more than 5% of the smaller set.

        The logged report does not describe this calibrator. It compares calibrators that
        :func:`hetcal.make_report` fits.
    run_id : str, optional
        By default the active run; if there is none, MLflow starts one.
    step : int, optional
        Step of the metrics, for example the epoch.
    prefix : start of the names of the metrics
    artifact_path : folder of the artefacts in the run
        Artefacts of an earlier call with the same folder are replaced.

    Returns
    -------
    hetcal.report.ReportData
        The numbers of the report, for example for :func:`hetcal.report.check_gates`.

    Notes
    -----
    The metrics are ``accuracy``, ``nll``, ``brier``, ``ece``, ``max_ece``, ``avg_ece``, the floors
    ``ece_floor``, ``max_ece_floor`` and ``avg_ece_floor``, and ``miscalibrated_classes``, the number of
    classes that are over- or under-confident. With `calibrator`, ``decisions_changed`` is the fraction of
    rows whose predicted class changes. The artefacts are ``report.html`` and ``classes.json``, a table for
    ``mlflow.load_table``.
    """
    step = None if step is None else check_integer(step, "step")
    if calibrator is not None:
        _check_calibrator(calibrator)
    source = as_logits_file(data, labels, groups, probs, class_names)
    report = collect_report(
        source, class_names=class_names, train_counts=train_counts, n_bins=n_bins, title=title, rng=rng
    )
    metrics = _metrics(report.before, report.diagnosis)
    table = [c.to_dict() for c in report.diagnosis.classes]
    if calibrator is not None:
        after, diagnosis, changed = _calibrated(source, calibrator, class_names, report)
        metrics |= {f"{name}{_AFTER}": value for name, value in _metrics(after, diagnosis).items()}
        metrics["decisions_changed"] = changed
        for row, c in zip(table, diagnosis.classes, strict=True):
            row |= {f"{name}{_AFTER}": c.to_dict()[name] for name in _COMPARED}
    page = render_report(report)
    run_id = _active_run() if run_id is None else run_id
    mlflow.log_metrics({f"{prefix}{k}": float(v) for k, v in metrics.items()}, step=step, run_id=run_id)
    mlflow.log_text(page, f"{artifact_path}/report.html", run_id=run_id)
    _log_table(table, f"{artifact_path}/classes.json", run_id)
    return report


def _check_calibrator(calibrator: Any) -> None:
    if not isinstance(calibrator, Calibrator):
        raise TypeError(
            f"calibrator must be a fitted calibrator of hetcal, got {calibrator!r:.60}; pass the "
            "probabilities of other models as probs="
        )
    check_is_fitted(calibrator)


def _metrics(evaluation: Evaluation, diagnosis: Diagnosis) -> dict[str, float]:
    values = {name: getattr(evaluation, name) for name in (*_SCORES, *FLOORED)}
    floors = {f"{name}_floor": evaluation.floor[name] for name in FLOORED}
    return values | floors | {"miscalibrated_classes": sum(diagnosis.summary[kind] for kind in MISCALIBRATED)}


def _calibrated(
    source: LogitsFile, calibrator: Any, class_names: ArrayLike | None, report: ReportData
) -> tuple[Evaluation, Diagnosis, float]:
    """Evaluation and diagnosis of the calibrated probabilities, and the fraction of changed decisions."""
    judged, settings = source.judged, report.settings
    names = source.class_names if class_names is None else class_names
    options: dict[str, Any] = {
        "n_bins": settings.n_bins, "n_redraws": settings.n_redraws, "rng": settings.seed,
    }  # fmt: skip
    inputs: dict[str, Any] = dict(judged.scores)
    if judged.groups is not None and uses_groups(calibrator):
        inputs["groups"] = judged.groups
    evaluation = evaluate(labels=judged.labels, class_names=names, calibrator=calibrator, **inputs, **options)
    probs = np.asarray(calibrator.predict_proba(class_names=names, **inputs))
    diagnosis = diagnose(probs=probs, labels=judged.labels, class_names=report.names, **options)
    changed = float(np.mean(probs.argmax(axis=1) != judged.logits.argmax(axis=1)))
    return evaluation, diagnosis, changed


def _active_run() -> str:
    run = mlflow.active_run() or mlflow.start_run()
    return str(run.info.run_id)


def _log_table(rows: list[dict[str, Any]], path: str, run_id: str) -> None:
    frame = as_frame(rows)
    folder = path.rpartition("/")[0]
    artifacts = mlflow.MlflowClient().list_artifacts(run_id, folder)
    if any(artifact.path == path for artifact in artifacts):  # log_table would append to the table
        mlflow.log_text(frame.to_json(orient="split", index=False), path, run_id=run_id)
    else:
        mlflow.log_table(frame, path, run_id=run_id)
