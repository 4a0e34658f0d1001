"""Models that MLflow loads and serves give the probabilities of the calibrator or classifier."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import hetcal

mlflow = pytest.importorskip("mlflow")
pd = pytest.importorskip("pandas")

from mlflow.exceptions import MlflowException  # noqa: E402

from hetcal.mlflow import default_requirements, load_model, log_model, save_model  # noqa: E402

# MLflow uses deprecated interfaces of SQLAlchemy and pandas, and warns about its own type hints.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*AnyType:UserWarning")

NAMES = ["ant", "bee", "cat"]


@pytest.fixture(scope="module")
def sample(make_sample: Any) -> Any:
    return make_sample(600, 3, seed=0)


@pytest.fixture(scope="module")
def unnamed(sample: Any) -> Any:
    return hetcal.AutoCalibrator().fit(sample.z, sample.y)


@pytest.fixture(scope="module")
def named(sample: Any) -> Any:
    return hetcal.ClassWiseTemperatureScaling().fit(sample.z, sample.y, class_names=NAMES)


def reload(model: Any, folder: Path, **options: Any) -> Any:
    """Save a model, and load it as MLflow's servers do."""
    save_model(model, folder / "model", **options)
    return mlflow.pyfunc.load_model(str(folder / "model"))


# --- calibrators -----------------------------------------------------------------------------------------


def test_arrays(sample: Any, unnamed: Any, tmp_path: Path) -> None:
    served = reload(unnamed, tmp_path)
    expected = unnamed.predict_proba(sample.z)
    assert np.abs(served.predict(sample.z) - expected).max() <= 1e-12
    assert np.abs(served.predict({"logits": sample.z}) - expected).max() <= 1e-12
    assert served.metadata.signature.inputs.input_names() == ["logits"]
    loaded = load_model(tmp_path / "model")
    assert isinstance(loaded, hetcal.AutoCalibrator)
    assert np.array_equal(loaded.predict_proba(sample.z), expected)
    assert served.get_raw_model().get_params() == loaded.get_params()


def test_tables_are_matched_by_name(sample: Any, named: Any, tmp_path: Path) -> None:
    served = reload(named, tmp_path)
    frame = pd.DataFrame(sample.z, columns=NAMES, index=np.arange(600) + 7)
    for table in (frame, frame[NAMES[::-1]], frame.astype(np.float32).astype(float), frame.assign(id=1)):
        p = served.predict(table)
        assert np.array_equal(p.index, frame.index)
        expected = named.predict_proba(table[NAMES])
        assert np.abs(p[NAMES].to_numpy() - expected).max() <= 1e-12
    signature = served.metadata.signature
    assert signature.inputs.input_names() == signature.outputs.input_names() == NAMES


def test_columns_of_the_fit(sample: Any, tmp_path: Path) -> None:
    frame = pd.DataFrame(sample.z, columns=[f"logit_{name}" for name in NAMES])
    cal = hetcal.TemperatureScaling().fit(frame, sample.y)
    p = reload(cal, tmp_path).predict(frame)
    assert p.columns.tolist() == NAMES
    assert np.abs(p.to_numpy() - cal.predict_proba(frame)).max() <= 1e-12


def test_probabilities(sample: Any, named: Any, tmp_path: Path) -> None:
    probs = hetcal.Identity().fit(sample.z, sample.y).predict_proba(sample.z)
    probs[:50] = np.eye(3)[sample.y[:50]]  # zeros are raised to the calibrator's floor
    cal = hetcal.TemperatureScaling().fit(probs=probs, labels=sample.y)
    served = reload(cal, tmp_path, from_probs=True)
    assert np.abs(served.predict(probs) - cal.predict_proba(probs=probs)).max() <= 1e-12
    with pytest.raises(ValueError, match="from_probs=True"):
        reload(cal, tmp_path / "logits").predict(probs)
    with pytest.raises(ValueError, match="probs must"):
        served.predict(sample.z)


@pytest.mark.parametrize("groups", [np.arange(600) % 2, np.array(["x", "yy", "z"])[np.arange(600) % 3]])
def test_groups(sample: Any, tmp_path: Path, groups: Any) -> None:
    cal = hetcal.ClassWiseTemperatureScaling().fit(sample.z, sample.y, groups=groups)
    served = reload(cal, tmp_path)
    expected = cal.predict_proba(sample.z, groups=groups)
    assert np.abs(served.predict({"logits": sample.z, "groups": groups}) - expected).max() <= 1e-12
    with pytest.raises(MlflowException, match="groups"):
        served.predict({"logits": sample.z})


def test_input_that_could_give_wrong_numbers_is_refused(
    sample: Any, unnamed: Any, named: Any, tmp_path: Path
) -> None:
    arrays, table = reload(unnamed, tmp_path), reload(named, tmp_path / "named")
    wide = np.column_stack([sample.z, sample.z[:, 0]])
    reversed_columns = pd.DataFrame(sample.z, columns=["logit_2", "logit_1", "logit_0"])
    for bad in (wide, sample.z[:, :2], reversed_columns):
        with pytest.raises(MlflowException, match="enforce schema"):
            arrays.predict(bad)
    frame = pd.DataFrame(sample.z, columns=NAMES)
    for bad in (sample.z, frame.drop(columns="bee"), frame.rename(columns={"bee": "dog"})):
        with pytest.raises(MlflowException, match="Model is missing inputs"):
            table.predict(bad)


def test_without_a_signature_hetcal_checks_the_input(sample: Any, unnamed: Any, tmp_path: Path) -> None:
    served = reload(unnamed, tmp_path, signature=False)
    expected = unnamed.predict_proba(sample.z)
    assert served.metadata.signature is None
    assert np.abs(served.predict(sample.z.astype(np.float32)) - expected).max() < 1e-5
    reversed_columns = pd.DataFrame(sample.z[:, ::-1], columns=["logit_2", "logit_1", "logit_0"])
    p = served.predict(reversed_columns)
    assert np.abs(p[["0", "1", "2"]].to_numpy() - expected).max() <= 1e-12
    with pytest.raises(ValueError, match="must have 3 columns"):
        served.predict(sample.z[:, :2])
    with pytest.raises(ValueError, match=r"must have the keys \['logits'\], got \['scores'\]"):
        served.predict({"scores": sample.z})


def test_files(named: Any, tmp_path: Path) -> None:
    reload(named, tmp_path, extra_pip_requirements=["my-package==1.0"])
    folder = tmp_path / "model"
    assert hetcal.load(folder / "data" / "hetcal" / "calibrator.json").class_names_ == NAMES
    assert {path.suffix for path in folder.rglob("*") if path.is_file()} <= {"", ".json", ".yaml", ".txt"}
    requirements = (folder / "requirements.txt").read_text().split()
    assert {"my-package==1.0", f"hetcal=={hetcal.__version__}", f"numpy=={np.__version__}"} <= set(
        requirements
    )
    assert set(default_requirements()) <= set(requirements)
    assert all("==" in line for line in requirements)


# --- classifiers -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wine() -> Any:
    X, y = load_wine(return_X_y=True, as_frame=True)
    return X, np.array(["red", "white", "rosé"])[y]


@pytest.mark.parametrize(
    ("estimator", "options"),
    [
        (make_pipeline(StandardScaler(), LogisticRegression()), {"ensemble": False}),
        (GaussianNB(), {"ensemble": True, "calibrator": hetcal.TemperatureScaling()}),
    ],
)
def test_classifier(wine: Any, tmp_path: Path, estimator: Any, options: Any) -> None:
    X, y = wine
    clf = hetcal.CalibratedClassifier(estimator, cv=3, **options).fit(X, y)
    served = reload(clf, tmp_path, input_example=X[:2])
    expected = clf.predict_proba(X)
    p = served.predict(X[X.columns[::-1]])  # the signature has names, so MLflow orders the columns
    assert p.columns.tolist() == clf.classes_.tolist()
    assert np.abs(p.to_numpy() - expected).max() <= 1e-12
    loaded = load_model(tmp_path / "model")
    assert np.abs(loaded.predict_proba(X) - expected).max() <= 1e-12
    assert loaded.predict(X).tolist() == clf.predict(X).tolist()
    assert loaded.n_features_in_ == clf.n_features_in_
    assert loaded.ensemble is clf.ensemble
    n_files = len(list((tmp_path / "model").rglob("calibrator.json")))
    assert n_files == (3 if clf.ensemble else 1)


def test_classifier_of_arrays_with_a_frozen_estimator(wine: Any, tmp_path: Path) -> None:
    X, y = wine[0].to_numpy(), wine[1] == "red"
    clf = hetcal.CalibratedClassifier(FrozenEstimator(GaussianNB().fit(X[::2], y[::2]))).fit(X[1::2], y[1::2])
    served = reload(clf, tmp_path, input_example=X[:2])
    assert np.abs(served.predict(X) - clf.predict_proba(X)).max() <= 1e-12
    assert load_model(tmp_path / "model").classes_.tolist() == [False, True]


def test_format_of_the_estimator(wine: Any, tmp_path: Path) -> None:
    clf = hetcal.CalibratedClassifier(GaussianNB(), cv=2).fit(*wine)
    save_model(clf, tmp_path / "model", estimator_options={"serialization_format": "cloudpickle"})
    requirements = (tmp_path / "model" / "requirements.txt").read_text()
    assert "cloudpickle==" in requirements
    assert "skops" not in requirements
    assert np.allclose(load_model(tmp_path / "model").predict_proba(wine[0]), clf.predict_proba(wine[0]))


# --- runs, the registry, and a server --------------------------------------------------------------------


def test_logged_and_registered(experiment: str, sample: Any, unnamed: Any) -> None:
    pytest.importorskip("sqlalchemy")
    with mlflow.start_run() as run:
        info = log_model(unnamed, "calibrator", registered_model_name="c", tags={"kind": "auto"})
    expected = unnamed.predict_proba(sample.z)
    for uri in (info.model_uri, f"runs:/{run.info.run_id}/calibrator", "models:/c/1"):
        assert np.abs(mlflow.pyfunc.load_model(uri).predict(sample.z) - expected).max() <= 1e-12
        assert np.array_equal(load_model(uri).predict_proba(sample.z), expected)


@contextlib.contextmanager
def server(model: Any) -> Iterator[str]:
    """Address of MLflow's scoring server, on a free port of this machine."""
    uvicorn = pytest.importorskip("uvicorn")
    from mlflow.pyfunc import scoring_server

    config = uvicorn.Config(scoring_server.init(model), port=0, log_level="warning")
    web = uvicorn.Server(config)
    thread = threading.Thread(target=web.run)
    thread.start()
    try:
        while not web.started and thread.is_alive():
            thread.join(0.01)
        yield f"http://127.0.0.1:{web.servers[0].sockets[0].getsockname()[1]}"
    finally:
        web.should_exit = True
        thread.join(20)


def post(address: str, content: Any) -> Any:
    request = urllib.request.Request(  # noqa: S310
        f"{address}/invocations", json.dumps(content).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:  # noqa: S310
        return json.loads(response.read())["predictions"]


def test_server(
    sample: Any, named: Any, unnamed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("__MLFLOW_IS_IN_SERVING_ENVIRONMENT", "false")  # the server sets it
    z = sample.z[:5]
    with server(reload(unnamed, tmp_path)) as address:
        answer = post(address, {"inputs": z.tolist()})
        assert np.abs(np.array(answer) - unnamed.predict_proba(z)).max() <= 1e-12
        with pytest.raises(urllib.error.HTTPError, match="400"):
            post(address, {"inputs": z[:, :2].tolist()})
    with server(reload(named, tmp_path / "named")) as address:
        content = {"columns": NAMES[::-1], "data": z[:, ::-1].tolist()}
        answer = post(address, {"dataframe_split": content})
        expected = named.predict_proba(z)
        assert np.abs(pd.DataFrame(answer)[NAMES].to_numpy() - expected).max() <= 1e-12


# --- errors ----------------------------------------------------------------------------------------------


def test_errors_of_models(sample: Any, wine: Any, unnamed: Any, tmp_path: Path) -> None:
    path = tmp_path / "model"
    with pytest.raises(TypeError, match=r"model must be a fitted calibrator .* got GaussianNB"):
        save_model(GaussianNB().fit(*wine), path)
    with pytest.raises(NotFittedError):
        save_model(hetcal.TemperatureScaling(), path)
    X, y = wine
    clf = hetcal.CalibratedClassifier(GaussianNB(), hetcal.ClassWiseTemperatureScaling(gamma=1.0), cv=2)
    groups = np.arange(len(y)) % 2
    with pytest.raises(ValueError, match="model must predict without calibration_groups"):
        save_model(clf.fit(X, y, calibration_groups=groups), path)
    clf.fit(X, y)
    with pytest.raises(ValueError, match="from_probs must be False"):
        save_model(clf, path, from_probs=True)
    clf.classes_ = np.array([("a",), ("b",), None], dtype=object)
    with pytest.raises(TypeError, match="classes of a saved classifier must be numbers or text"):
        save_model(clf, path)
    assert not path.exists()


def test_models_of_other_flavors_are_refused(wine: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    mlflow.sklearn.save_model(GaussianNB().fit(*wine), str(folder), pip_requirements=["scikit-learn"])
    with pytest.raises(ValueError, match=r"model_uri must .* got one of .*sklearn"):
        load_model(folder)
