"""What `log_report` logs to a run agrees with `evaluate`, `diagnose` and `make_report`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import hetcal

mlflow = pytest.importorskip("mlflow")
pytest.importorskip("sqlalchemy")
pd = pytest.importorskip("pandas")

from hetcal.mlflow import log_report  # noqa: E402

# MLflow uses interfaces of SQLAlchemy and pandas that are deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

FLOORED = ("ece", "max_ece", "avg_ece")
SCORES = ("accuracy", "nll", "brier", *FLOORED)


ALPHA = np.array([0.4, 0.7, 1.3])


@pytest.fixture(scope="module")
def rows(make_sample: Any) -> Any:
    return make_sample(600, 3, seed=1, alpha=ALPHA)


@pytest.fixture(scope="module")
def calibrator(make_sample: Any) -> Any:
    sample = make_sample(600, 3, seed=2, alpha=ALPHA)
    return hetcal.ClassWiseTemperatureScaling().fit(sample.z, sample.y, class_names=["a", "b", "c"])


def logged(run: Any, prefix: str = "calibration/") -> dict[str, float]:
    metrics = mlflow.get_run(run.info.run_id).data.metrics
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}


def assert_logged(metrics: dict[str, float], expected: Any, end: str = "") -> None:
    for name in SCORES:
        assert metrics[name + end] == pytest.approx(getattr(expected, name), rel=1e-12), name
    for name in FLOORED:
        assert metrics[f"{name}_floor{end}"] == pytest.approx(expected.floor[name], rel=1e-12), name


def test_metrics_page_and_table(run: Any, rows: Any) -> None:
    names = ["a", "b", "c"]
    report = log_report(rows.z, rows.y, class_names=names, title="Three classes", rng=5)
    metrics = logged(run)
    assert_logged(metrics, hetcal.evaluate(logits=rows.z, labels=rows.y, rng=5))
    diagnosis = hetcal.diagnose(rows.z, rows.y, class_names=names, rng=5)
    n_flagged = diagnosis.summary["over-confident"] + diagnosis.summary["under-confident"]
    assert metrics["miscalibrated_classes"] == n_flagged > 0
    assert report.n_wrong == n_flagged
    assert not [name for name in metrics if name.endswith("_after")]
    page = mlflow.artifacts.load_text(f"{run.info.artifact_uri}/calibration/report.html")
    assert page == hetcal.make_report(rows.z, rows.y, class_names=names, title="Three classes", rng=5)
    table = mlflow.load_table("calibration/classes.json", run_ids=[run.info.run_id])
    assert table["name"].tolist() == names
    assert table["verdict"].tolist() == [c.verdict for c in diagnosis.classes]
    assert table["signed_gap"].tolist() == pytest.approx([c.signed_gap for c in diagnosis.classes])
    assert table["floor"].tolist() == pytest.approx([c.floor for c in diagnosis.classes])


def test_before_and_after_a_calibrator(run: Any, rows: Any, calibrator: Any) -> None:
    names = ["a", "b", "c"]
    log_report(rows.z, rows.y, calibrator=calibrator, class_names=names, n_bins=7)
    metrics = logged(run)
    probs = calibrator.predict_proba(rows.z)
    assert_logged(metrics, hetcal.evaluate(logits=rows.z, labels=rows.y, n_bins=7))
    assert_logged(metrics, hetcal.evaluate(probs, rows.y, n_bins=7), "_after")
    assert metrics["nll_after"] < metrics["nll"]
    assert metrics["decisions_changed"] == 0
    table = mlflow.load_table("calibration/classes.json", run_ids=[run.info.run_id])
    after = hetcal.diagnose(probs=probs, labels=rows.y, class_names=names, n_bins=7)
    assert table["verdict_after"].tolist() == [c.verdict for c in after.classes]
    assert table["ece_after"].tolist() == pytest.approx([c.ece for c in after.classes])


def test_columns_in_another_order_are_matched_by_name(run: Any, rows: Any, calibrator: Any) -> None:
    frame = pd.DataFrame(rows.z, columns=["a", "b", "c"])[["c", "a", "b"]]
    labels = np.array(["a", "b", "c"])[rows.y]
    log_report(frame, labels, calibrator=calibrator)
    expected = hetcal.evaluate(calibrator.predict_proba(frame), labels, ["c", "a", "b"])
    assert_logged(logged(run), expected, "_after")
    assert expected.nll == pytest.approx(hetcal.evaluate(calibrator.predict_proba(rows.z), rows.y).nll)


def test_probabilities_and_decisions_that_change(run: Any, make_sample: Any) -> None:
    val, test = make_sample(500, 3, seed=3), make_sample(500, 3, seed=4)
    probs, test_probs = (hetcal.Identity().fit(s.z, s.y).predict_proba(s.z) for s in (val, test))
    cal = hetcal.VectorScaling().fit(probs=probs, labels=val.y + 0)
    log_report(probs=test_probs, labels=test.y, calibrator=cal, prefix="test_")
    metrics = logged(run, "test_")
    expected = cal.predict_proba(probs=test_probs)
    assert_logged(metrics, hetcal.evaluate(expected, test.y), "_after")
    changed = np.mean(expected.argmax(axis=1) != test_probs.argmax(axis=1))
    assert metrics["decisions_changed"] == pytest.approx(changed)


def test_calibrator_by_group(run: Any, rows: Any, make_sample: Any) -> None:
    val = make_sample(600, 3, seed=6)
    groups = np.arange(600) % 2
    cal = hetcal.ClassWiseTemperatureScaling().fit(val.z, val.y, groups=groups)
    log_report(rows.z, rows.y, calibrator=cal, groups=groups)
    expected = hetcal.evaluate(cal.predict_proba(rows.z, groups=groups), rows.y)
    assert_logged(logged(run), expected, "_after")


def test_test_rows_of_a_file_are_evaluated(run: Any) -> None:
    example = hetcal.load_example("cifar10-noisy")
    cal = hetcal.TemperatureScaling().fit(example.val.logits, example.val.labels)
    log_report(example, calibrator=cal)
    probs = cal.predict_proba(example.test.logits)
    assert_logged(logged(run), hetcal.evaluate(probs, example.test.labels), "_after")


def test_rows_of_the_fit_cause_a_warning(run: Any, rows: Any) -> None:
    cal = hetcal.TemperatureScaling().fit(rows.z, rows.y)
    with pytest.warns(hetcal.CalibrationWarning, match="fitted on"):
        log_report(rows.z, rows.y, calibrator=cal)


def test_a_second_call_replaces_the_artefacts(run: Any, rows: Any) -> None:
    for step, part in enumerate((slice(0, 300), slice(300, None))):
        log_report(rows.z[part], rows.y[part], step=step)
    table = mlflow.load_table("calibration/classes.json", run_ids=[run.info.run_id])
    expected = hetcal.diagnose(rows.z[300:], rows.y[300:])
    assert table["n"].tolist() == [c.n for c in expected.classes]
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "calibration/accuracy")
    assert [(m.step, m.value) for m in history] == [
        (step, pytest.approx(np.mean(rows.z[part].argmax(axis=1) == rows.y[part])))
        for step, part in enumerate((slice(0, 300), slice(300, None)))
    ]


def test_a_given_run(experiment: str, rows: Any) -> None:
    other = mlflow.MlflowClient().create_run(experiment)
    log_report(rows.z, rows.y, run_id=other.info.run_id, artifact_path="audit/calibration")
    assert mlflow.active_run() is None
    assert logged(other)["accuracy"] == pytest.approx(np.mean(rows.z.argmax(axis=1) == rows.y))
    folder = mlflow.MlflowClient().list_artifacts(other.info.run_id, "audit/calibration")
    assert {file.path for file in folder} == {
        f"audit/calibration/{n}" for n in ("classes.json", "report.html")
    }


def test_without_a_run_one_is_started(experiment: str, rows: Any) -> None:
    log_report(rows.z, rows.y)
    assert logged(mlflow.active_run())["accuracy"] > 0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"calibrator": "cts"}, TypeError, "calibrator must be a fitted calibrator"),
        ({"calibrator": hetcal.TemperatureScaling()}, ValueError, "not fitted"),
        ({"step": 0.5}, TypeError, "step must"),
    ],
)
def test_errors_leave_the_run_empty(
    run: Any, rows: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        log_report(rows.z, rows.y, **options)
    assert logged(run) == {}


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("hetcal.mlflow")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ImportError, match=r"hetcal\[mlflow\]"):
        import hetcal.mlflow  # noqa: F401
