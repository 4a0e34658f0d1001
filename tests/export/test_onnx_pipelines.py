"""An exported CalibratedClassifier gives the same probabilities as in scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC

import hetcal

pytest.importorskip("onnx")
pytest.importorskip("skl2onnx")
ort = pytest.importorskip("onnxruntime")

import hetcal.onnx  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    # skl2onnx reads attributes of an SVC that scikit-learn has deprecated.
    pytest.mark.filterwarnings("ignore:Attribute `prob[AB]_` was deprecated:FutureWarning"),
]
TS = hetcal.TemperatureScaling

CLASSIFIERS = {
    "logistic": lambda: LogisticRegression(max_iter=50),
    "pipeline": lambda: make_pipeline(StandardScaler(), LogisticRegression()),
    "forest": lambda: RandomForestClassifier(20, random_state=0),
    "boosting": lambda: GradientBoostingClassifier(n_estimators=5, max_depth=2, random_state=0),
    "bayes": lambda: make_pipeline(StandardScaler(), GaussianNB()),
    "network": lambda: make_pipeline(StandardScaler(), MLPClassifier((8,), max_iter=30, random_state=0)),
    "svc": lambda: make_pipeline(StandardScaler(), SVC(random_state=0)),
    "search": lambda: GridSearchCV(make_pipeline(StandardScaler(), LogisticRegression()), {}, cv=2),
}
DATA = {"wine": load_wine, "cancer": load_breast_cancer, "digits": load_digits}


def run(path, feed):
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [o.name for o in session.get_outputs()] == ["probabilities", "label"]
    if isinstance(feed, np.ndarray):
        feed = {session.get_inputs()[0].name: feed}
    return session.run(None, feed)


# Every classifier on one data set, and further data sets with two and with many classes.
MORE_CASES = [("svc", "cancer"), ("svc", "digits"), ("forest", "digits")]


@pytest.mark.parametrize(("name", "data"), [*((name, "wine") for name in CLASSIFIERS), *MORE_CASES])
def test_same_numbers(name, data, tmp_path):
    X, y = DATA[data](return_X_y=True)
    X = X.astype(np.float32)
    names = np.array([f"class {k}" for k in range(y.max() + 1)])
    clf = hetcal.CalibratedClassifier(CLASSIFIERS[name](), hetcal.ClassWiseTemperatureScaling(0.2), cv=2)
    clf.fit(X, names[y])
    hetcal.onnx.export(clf, tmp_path / "c.onnx", example=X[:5])
    p, label = run(tmp_path / "c.onnx", X)
    expected = clf.predict_proba(X)
    away = np.abs(p - expected).max(axis=1)
    # ONNX trees compare in float32, so a row may take another branch.
    assert np.quantile(away, 0.99) < 1e-4, away.max()
    sure = np.diff(np.sort(expected, axis=1)[:, -2:], axis=1)[:, 0] > 1e-3
    keep = sure & (away < 1e-3)
    assert keep.mean() > 0.97
    assert label[keep].tolist() == clf.predict(X)[keep].tolist()


def test_labels_keep_their_type(tmp_path):
    X, y = load_wine(return_X_y=True)
    for labels in (y * 10 + 5, y == 1):
        clf = hetcal.CalibratedClassifier(FrozenEstimator(GaussianNB().fit(X, labels)), TS()).fit(X, labels)
        hetcal.onnx.export(clf, tmp_path / "c.onnx", example=X[:5])
        label = run(tmp_path / "c.onnx", X.astype(np.float32))[1]
        assert (label == clf.predict(X)).mean() > 0.98
        assert label.dtype.kind == labels.dtype.kind


def test_tables_with_columns_of_different_types(tmp_path):
    pandas = pytest.importorskip("pandas")
    X, y = load_wine(return_X_y=True)
    table = pandas.DataFrame({"a": X[:, 0].astype(np.float32), "b": X[:, 6].astype(np.float32)})
    table["kind"] = np.where(X[:, 9] > 5, "dark", "light").astype(object)
    encode = make_column_transformer((OneHotEncoder(), ["kind"]), remainder="passthrough")
    clf = hetcal.CalibratedClassifier(make_pipeline(encode, LogisticRegression(max_iter=1000)), TS(), cv=3)
    clf.fit(table, y)
    hetcal.onnx.export(clf, tmp_path / "c.onnx", example=table[:5])
    p, label = run(tmp_path / "c.onnx", {name: table[[name]].to_numpy() for name in table})
    np.testing.assert_allclose(p, clf.predict_proba(table), atol=1e-5)
    assert (label == clf.predict(table)).all()


class Stranger(GaussianNB):
    """A classifier that skl2onnx does not know."""


def test_classifiers_that_cannot_be_exported(tmp_path):
    X, y = load_wine(return_X_y=True)
    fitted = hetcal.CalibratedClassifier(GaussianNB(), TS(), cv=2).fit(X, y)
    path = tmp_path / "c.onnx"
    with pytest.raises(ValueError, match=r"example must .*got None"):
        hetcal.onnx.export(fitted, path)
    with pytest.raises(ValueError, match="model, output and from_probs must"):
        hetcal.onnx.export(fitted, path, model="x.onnx", example=X)
    ensemble = hetcal.CalibratedClassifier(GaussianNB(), TS(), cv=2, ensemble=True).fit(X, y)
    with pytest.raises(ValueError, match="ensemble=False"):
        hetcal.onnx.export(ensemble, path, example=X)
    unsupported = hetcal.CalibratedClassifier(Stranger(), TS(), cv=2).fit(X, y)
    with pytest.raises(ValueError, match=r"estimator must .*got Stranger"):
        hetcal.onnx.export(unsupported, path, example=X)
    assert not path.exists()


def test_the_remedy_for_scores_that_skl2onnx_cannot_export_works(tmp_path):
    X, y = load_breast_cancer(return_X_y=True)
    X, path = X[:, :5].astype(np.float32), tmp_path / "c.onnx"
    analysis = QuadraticDiscriminantAnalysis(reg_param=0.5)
    scores = hetcal.CalibratedClassifier(analysis, TS(), cv=2, response_method="decision_function").fit(X, y)
    with pytest.raises(ValueError, match="response_method='predict_proba'"):
        hetcal.onnx.export(scores, path, example=X[:5])
    probs = hetcal.CalibratedClassifier(analysis, TS(), cv=2, response_method="predict_proba").fit(X, y)
    hetcal.onnx.export(probs, path, example=X[:5])
    assert path.exists()
