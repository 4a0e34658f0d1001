"""CalibratedClassifier: checks of scikit-learn, and many kinds of classifiers, folds, labels and input."""

from __future__ import annotations

import pickle

import joblib
import numpy as np
import pytest
import sklearn
from scipy.sparse import csr_matrix
from scipy.special import log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, make_classification
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    AdaBoostClassifier,
    GradientBoostingClassifier,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    LeaveOneOut,
    ShuffleSplit,
    StratifiedKFold,
    cross_val_predict,
    train_test_split,
)
from sklearn.multiclass import OneVsOneClassifier
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

import hetcal
from hetcal import (
    AutoCalibrator,
    ClassWise,
    ClassWiseTemperatureScaling,
    PlattScaling,
    TemperatureScaling,
    VectorScaling,
)
from hetcal.sklearn import CalibratedClassifier, _stratified_folds

pytestmark = pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")

BOTH = pytest.mark.parametrize("ensemble", [False, True])


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def hard():
    """Four overlapping classes of different sizes."""
    return make_classification(
        800, 12, n_informative=5, n_classes=4, weights=[0.4, 0.3, 0.2], flip_y=0.1, random_state=0
    )


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


class Echo(ClassifierMixin, BaseEstimator):
    """Returns its input as scores or probabilities."""

    def __init__(self, method="predict_proba"):
        self.method = method

    def fit(self, X, y, sample_weight=None, note=None):  # noqa: ARG002
        self.classes_, self.seen_ = np.unique(y), {"sample_weight": sample_weight, "note": note}
        return self

    def __getattr__(self, name):
        if name == self.__dict__.get("method"):
            return lambda X: X[:, 0] if X.shape[1] == 1 else X
        raise AttributeError(name)


class Nameless(BaseEstimator):
    """A nearest-mean classifier without the attribute `classes_`."""

    def fit(self, X, y):
        self.means_ = np.stack([X[y == k].mean(axis=0) for k in np.unique(y)])
        return self

    def decision_function(self, X):
        return -((X[:, None] - self.means_) ** 2).sum(axis=2)


@parametrize_with_checks(
    [
        CalibratedClassifier(RidgeClassifier(), ClassWiseTemperatureScaling(gamma="cv"), cv=3),
        CalibratedClassifier(GaussianNB(), VectorScaling(0.01), cv=3, ensemble=True),
        CalibratedClassifier(DecisionTreeClassifier(random_state=0), ClassWiseTemperatureScaling(), cv=3),
        CalibratedClassifier(
            make_pipeline(StandardScaler(), LinearSVC(random_state=0)),
            ClassWise(PlattScaling(), gamma=1.0),
            cv=3,
        ),
    ]
)
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


# Decisions


@pytest.mark.parametrize(
    "estimator",
    [
        LogisticRegression(max_iter=1000),
        SVC(break_ties=True),
        LinearDiscriminantAnalysis(),
        OneVsOneClassifier(LinearSVC()),
        GaussianNB(),
        KNeighborsClassifier(4),
        RandomForestClassifier(10, random_state=0),
        AdaBoostClassifier(n_estimators=5, random_state=0),
        GradientBoostingClassifier(n_estimators=3, random_state=0),
        VotingClassifier([("nb", GaussianNB()), ("lda", LinearDiscriminantAnalysis())], voting="soft"),
        make_pipeline(StandardScaler(), SVC(break_ties=True)),
    ],
    ids=lambda e: type(e).__name__,
)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_predictions_are_those_of_the_estimator(estimator, n_classes, hard):
    X, y = hard[0], hard[1] % n_classes
    clf = CalibratedClassifier(estimator, cv=3).fit(X[:400], y[:400])
    p = clf.predict_proba(X)
    np.testing.assert_array_equal(clf.predict(X), clone(estimator).fit(X[:400], y[:400]).predict(X))
    np.testing.assert_array_equal(clf.predict(X), p.argmax(axis=1))
    np.testing.assert_allclose(p.sum(axis=1), 1)


def test_the_last_bit_of_a_probability_decides():
    a = 1 / 3
    p = np.array([[a, np.nextafter(a, 1), a]] * 30)  # the logarithms of these are equal
    clf = CalibratedClassifier(FrozenEstimator(Echo().fit(p, [0, 1, 2] * 10))).fit(p, [0, 1, 2] * 10)
    assert (clf.predict(p) == 1).all()


def test_one_calibrator_is_fitted_to_out_of_fold_scores(hard):
    X, y = hard
    clf = CalibratedClassifier(LinearSVC(random_state=0), cv=3).fit(X, y)
    z = cross_val_predict(LinearSVC(random_state=0), X, y, cv=3, method="decision_function")
    cal = AutoCalibrator().fit(z, y)
    final = LinearSVC(random_state=0).fit(X, y).decision_function(X)
    np.testing.assert_allclose(clf.predict_proba(X), cal.predict_proba(final), rtol=1e-12)
    np.testing.assert_allclose(clf.logits(X), final)
    assert len(clf.estimators_) == len(clf.calibrators_) == 1


def test_an_ensemble_is_the_mean_of_its_members(hard):
    X, y = hard
    clf = CalibratedClassifier(GaussianNB(), TemperatureScaling(), cv=3, ensemble=True).fit(X, y)
    parts = []
    for train, test in StratifiedKFold(3).split(X, y):
        member = GaussianNB().fit(X[train], y[train])
        frozen = CalibratedClassifier(FrozenEstimator(member), TemperatureScaling()).fit(X[test], y[test])
        parts.append(frozen.predict_proba(X))
    np.testing.assert_allclose(clf.predict_proba(X), np.mean(parts, axis=0))
    np.testing.assert_array_equal(clf.predict(X), np.mean(parts, axis=0).argmax(axis=1))
    with pytest.raises(ValueError, match="ensemble must"):
        clf.logits(X)


def test_the_average_may_change_the_decision_of_a_member(hard):
    X, y = hard
    clf = CalibratedClassifier(DecisionTreeClassifier(max_depth=4, random_state=0), cv=3, ensemble=True)
    clf.fit(X, y)
    decisions = [member.predict(X) for member in clf.estimators_]
    assert any((clf.predict(X) != guess).any() for guess in decisions)


@pytest.mark.skipif(
    tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 8),
    reason="needs temperature scaling of scikit-learn 1.8",
)
@pytest.mark.parametrize("n_classes", [2, 4])
def test_temperature_scaling_agrees_with_scikit_learn(n_classes, hard):
    X, y = hard[0], hard[1] % n_classes
    ours = CalibratedClassifier(LinearSVC(random_state=0), TemperatureScaling(), cv=3).fit(X, y)
    theirs = CalibratedClassifierCV(LinearSVC(random_state=0), method="temperature", cv=3, ensemble=False)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.fit(X, y).predict_proba(X), atol=1e-4)


# Probabilities as logits


def test_zero_probabilities_do_not_dominate_the_loss():
    # One-hot probabilities, correct in 15 of 20 rows: the calibrated confidence is 3/4 for any floor.
    y = np.arange(20) % 2
    p = np.eye(2)[np.where(np.arange(20) < 5, 1 - y, y)]
    clf = CalibratedClassifier(FrozenEstimator(Echo().fit(p, y)), TemperatureScaling()).fit(p, y)
    np.testing.assert_allclose(clf.predict_proba(p).max(axis=1), 0.75, atol=1e-6)
    assert clf.logits(p).min() == pytest.approx(-np.log(4))  # the floor is at most 1/(2K) = 1/4


def test_zeros_are_replaced_by_half_the_smallest_probability():
    y = np.arange(40) % 2
    p = np.tile([[0.99, 0.01], [0.0, 1.0]], (20, 1))
    clf = CalibratedClassifier(FrozenEstimator(Echo().fit(p, y))).fit(p, y, sample_weight=[1, 1] * 20)
    assert clf.logits(p).min() == pytest.approx(np.log(0.005))
    assert clf.calibrators_[0].prob_floor_ == pytest.approx(0.005)
    p[0] = 1e-100, 1
    assert clf.fit(p, y).logits(p).min() == pytest.approx(np.log(np.finfo(np.float32).tiny))
    absent = np.arange(40) > 0
    assert clf.fit(p, y, sample_weight=absent).logits(p).min() == pytest.approx(np.log(0.005))


@pytest.mark.parametrize("method", ["predict_proba", "decision_function"])
def test_float32_is_kept(method):
    z = log_softmax(np.random.default_rng(0).normal(size=(60, 3)), axis=1).astype(np.float32)
    response = np.exp(z) if method == "predict_proba" else z
    y = np.arange(60) % 3
    clf = CalibratedClassifier(FrozenEstimator(Echo(method).fit(z, y)), TemperatureScaling()).fit(response, y)
    assert clf.logits(response).dtype == clf.predict_proba(response).dtype == np.float32
    np.testing.assert_allclose(clf.logits(response), z, atol=1e-5)


def test_a_score_of_one_is_not_a_probability():
    z = np.ones((30, 1))
    y = np.arange(30) % 3 > 0
    clf = CalibratedClassifier(FrozenEstimator(Echo("decision_function").fit(z, y))).fit(z, y)
    np.testing.assert_allclose(clf.predict_proba(z[:1]), [[1 / 3, 2 / 3]], atol=0.02)


def test_response_method(hard):
    X, y = hard
    logistic = LogisticRegression(max_iter=1000).fit(X, y)
    scores = CalibratedClassifier(FrozenEstimator(logistic), response_method="decision_function").fit(X, y)
    probs = CalibratedClassifier(FrozenEstimator(logistic), response_method="predict_proba").fit(X, y)
    np.testing.assert_allclose(scores.logits(X), logistic.decision_function(X))
    np.testing.assert_allclose(probs.logits(X), logistic.predict_log_proba(X))
    np.testing.assert_allclose(scores.predict_proba(X), probs.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("n_classes", [3, 4])  # three classes have three pairs, four have six
@pytest.mark.parametrize("wrap", [lambda e: e, lambda e: make_pipeline(StandardScaler(), e)])
def test_one_vs_one_scores_are_refused(n_classes, wrap, hard):
    X, y = hard[0][:200], hard[1][:200] % n_classes
    pairs = SVC(decision_function_shape="ovo")
    with pytest.raises(ValueError, match=rf"got shape \(1, .*{n_classes} classes"):
        CalibratedClassifier(wrap(pairs), cv=3).fit(X, y)
    with pytest.raises(ValueError, match="decision_function"):
        CalibratedClassifier(FrozenEstimator(wrap(pairs).fit(X, y)), response_method="decision_function").fit(
            X, y
        )


def test_probabilities_replace_one_vs_one_scores(hard):
    class Pairs(GaussianNB):
        def decision_function(self, X):
            return np.zeros((len(X), 6))

    X, y = hard
    for ensemble in (False, True):
        wrapped, nb = (
            CalibratedClassifier(e, cv=3, ensemble=ensemble).fit(X, y).predict_proba(X)
            for e in (Pairs(), GaussianNB())
        )
        np.testing.assert_array_equal(wrapped, nb)


def test_precomputed_kernels(hard):
    X, y = hard[0][:150], hard[1][:150]
    rows = CalibratedClassifier(SVC(kernel="linear"), cv=3).fit(X, y)
    pairs = CalibratedClassifier(SVC(kernel="precomputed"), cv=3).fit(X @ X.T, y)
    np.testing.assert_allclose(pairs.predict_proba(X @ X.T), rows.predict_proba(X), atol=1e-6)
    assert get_tags(pairs).input_tags.pairwise


# Classes and labels


@pytest.mark.parametrize(
    "names",
    [["ant", "bee", "cow"], [False, True], [10, -3, 7], [0.0, 2.0, 1.0], np.array(["b", "aa", "c"], object)],
    ids=str,
)
@BOTH
def test_labels_of_any_type(names, ensemble, iris):
    X, codes = iris[0][: 50 * len(names)], iris[1][: 50 * len(names)]
    X = X + np.random.default_rng(0).normal(size=X.shape)
    names = np.asarray(names)
    order = np.argsort(names)
    y = names[order][codes]
    clf = CalibratedClassifier(GaussianNB(), cv=3, ensemble=ensemble)
    p = clone(clf).fit(X, codes).predict_proba(X)
    clf.fit(X, y)
    np.testing.assert_array_equal(clf.classes_, names[order])
    np.testing.assert_array_equal(clf.predict_proba(X), p)
    np.testing.assert_array_equal(clf.predict(X), names[order][p.argmax(axis=1)])
    assert clf.predict(X).dtype == y.dtype
    assert clf.score(X, y) == pytest.approx((p.argmax(axis=1) == codes).mean())


@pytest.mark.parametrize("estimator", [GaussianNB(), RidgeClassifier(), LinearSVC(random_state=0)])
@BOTH
def test_classes_missing_from_a_fold(estimator, ensemble, hard):
    # The first fold contains all rows of class 0.
    X, y = (
        hard[0][:200],
        np.repeat(np.arange(4), [50, 60, 60, 30]),
    )
    clf = CalibratedClassifier(estimator, TemperatureScaling(), cv=KFold(3), ensemble=ensemble).fit(X, y)
    p = clf.predict_proba(X)
    assert p.shape == (200, 4)
    np.testing.assert_allclose(p.sum(axis=1), 1)
    if ensemble:
        assert [len(e.classes_) for e in clf.estimators_] == [3, 4, 3]


def test_a_missing_class_gets_a_logit_below_all_others():
    X = np.array([[0.0, 4.0], [5.0, 5.0], [1.0, -1.0]] * 10)
    y = np.array(["a", "c", "a"] * 9 + ["b"] * 3)  # the training rows have no "b"
    splits = [(np.arange(15), np.arange(15, 30))]
    clf = CalibratedClassifier(Echo("decision_function"), TemperatureScaling(), cv=splits, ensemble=True)
    clf.fit(X, y)
    np.testing.assert_array_equal(clf.logits(X[:3]), [[0, -4, 4], [5, 4, 5], [1, -3, -1]])


def test_a_class_of_one_row(hard):
    X, y = hard
    y = np.where(np.arange(800) == 17, 9, y)
    clf = CalibratedClassifier(RidgeClassifier()).fit(X, y)
    assert clf.classes_.tolist() == [0, 1, 2, 3, 9]
    without = CalibratedClassifier(RidgeClassifier()).fit(X[y < 9], y[y < 9])
    difference = np.abs(clf.predict_proba(X)[:, :4] - without.predict_proba(X))
    assert difference.mean() < 0.03
    assert difference.max() < 0.15


@BOTH
def test_folds_of_one_class_are_skipped(ensemble, iris):
    X, y = iris[0][:100], iris[1][:100]
    splits = [(np.arange(50), np.arange(50, 100)), *StratifiedKFold(2).split(X, y)]
    clf, same = (
        CalibratedClassifier(LogisticRegression(), TemperatureScaling(), cv=cv, ensemble=ensemble).fit(X, y)
        for cv in (splits, 2)
    )
    np.testing.assert_array_equal(clf.predict_proba(X), same.predict_proba(X))
    with pytest.raises(ValueError, match="cv must"):
        clf.set_params(cv=splits[:1]).fit(X, y)


@BOTH
def test_an_estimator_without_classes(ensemble, iris):
    X, y = iris[0], np.sort(iris[1])
    clf = CalibratedClassifier(Nameless(), cv=KFold(4), ensemble=ensemble).fit(X, y)
    assert clf.score(X, y) > 0.8


# Weights


@BOTH
@pytest.mark.parametrize("calibrator", [None, VectorScaling()])
def test_rows_of_weight_zero_are_ignored(ensemble, calibrator, hard):
    X, y = hard
    absent = np.random.default_rng(0).random(800) < 0.3
    clf = CalibratedClassifier(GaussianNB(), calibrator, cv=4, ensemble=ensemble)
    weighted = clone(clf).fit(X, y, sample_weight=~absent)
    np.testing.assert_allclose(
        weighted.predict_proba(X), clf.fit(X[~absent], y[~absent]).predict_proba(X), rtol=1e-7, atol=1e-12
    )


@BOTH
@pytest.mark.parametrize(
    "estimator", [GaussianNB(), DecisionTreeClassifier(max_depth=3, random_state=0), RidgeClassifier()]
)
def test_integer_weights_equal_repeated_rows(ensemble, estimator, hard):
    X, y = hard
    w = np.random.default_rng(0).integers(0, 4, 800)
    folds = np.arange(800) % 3
    copies = np.repeat(np.arange(800), w)
    splits = [
        [(np.flatnonzero(f != k), np.flatnonzero(f == k)) for k in range(3)] for f in (folds, folds[copies])
    ]
    weighted, repeated = (
        CalibratedClassifier(estimator, ClassWiseTemperatureScaling(gamma=0.1), cv=cv, ensemble=ensemble)
        for cv in splits
    )
    weighted.fit(X, y, sample_weight=w)
    repeated.fit(X[copies], y[copies])
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-5)


def test_weights_reach_estimator_and_calibrator(hard):
    X, y = hard
    w = np.random.default_rng(0).random(800) + 0.1
    clf = CalibratedClassifier(GaussianNB(), TemperatureScaling(), cv=3).fit(X, y, sample_weight=w)
    np.testing.assert_allclose(clf.estimators_[0].theta_, GaussianNB().fit(X, y, w).theta_)
    plain = CalibratedClassifier(FrozenEstimator(clf.estimators_[0]), TemperatureScaling())
    alphas = [plain.fit(X, y, sample_weight=v).calibrators_[0].alpha_ for v in (None, w, 2 * w)]
    assert alphas[0] != alphas[1]
    assert alphas[1] == pytest.approx(alphas[2])


@pytest.mark.filterwarnings("ignore:The least populated class:UserWarning")
@pytest.mark.parametrize("seed", range(8))
def test_folds_are_those_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    n_folds, y = int(rng.integers(2, 7)), rng.permutation(np.repeat(np.arange(6), [9, 3, 30, 1, 7, 12]))
    fold = _stratified_folds(y, n_folds)
    for f, (train, test) in enumerate(StratifiedKFold(n_folds).split(y, y)):
        np.testing.assert_array_equal(np.flatnonzero(fold != f), train)
        np.testing.assert_array_equal(np.flatnonzero(fold == f), test)


def test_rare_classes_need_no_warning(iris):
    X, y = iris
    rows = np.r_[0:53, 100:150]  # three rows of the second class
    clf = CalibratedClassifier(GaussianNB(), TemperatureScaling(), cv=5).fit(X[rows], y[rows])
    np.testing.assert_array_equal(clf.classes_, [0, 1, 2])


def test_an_estimator_without_weights_sees_all_rows(hard):
    X, y = hard
    w = np.arange(800) % 2
    clf = CalibratedClassifier(KNeighborsClassifier(), TemperatureScaling(), cv=3)
    with pytest.warns(hetcal.CalibrationWarning, match="KNeighborsClassifier"):
        clf.fit(X, y, sample_weight=w)
    assert clf.estimators_[0].n_samples_fit_ == 800
    assert clf.calibrators_[0].alpha_ != clone(clf).fit(X, y).calibrators_[0].alpha_


# Kinds of input


def test_data_frames_are_passed_to_the_estimator_unchanged(iris):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(iris[0], columns=["a", "b", "c", "d"], index=np.arange(150)[::-1])
    y = pd.Series(iris[1], index=frame.index).map({0: "x", 1: "y", 2: "z"}).astype("category")
    clf = CalibratedClassifier(RidgeClassifier(), cv=3)
    clf.fit(frame, y, sample_weight=pd.Series(np.ones(150)))
    assert clf.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    assert clf.n_features_in_ == 4
    plain = clone(clf).fit(iris[0], np.array(["x", "y", "z"])[iris[1]])
    np.testing.assert_allclose(clf.predict_proba(frame), plain.predict_proba(iris[0]))
    with pytest.raises(ValueError, match="feature names should match"):
        clf.predict_proba(frame[["b", "a", "c", "d"]])
    clf.fit(iris[0], iris[1])
    assert not hasattr(clf, "feature_names_in_")


@BOTH
def test_sparse(ensemble, hard):
    X, y = np.abs(hard[0]).round(), hard[1]
    clf = CalibratedClassifier(MultinomialNB(), cv=3, ensemble=ensemble)
    dense = clone(clf).fit(X, y, sample_weight=y + 1).predict_proba(X)
    sparse = clf.fit(csr_matrix(X), y, sample_weight=y + 1).predict_proba(csr_matrix(X))
    np.testing.assert_allclose(sparse, dense)
    assert get_tags(clf).input_tags.sparse
    assert not get_tags(CalibratedClassifier(GaussianNB())).input_tags.sparse


@BOTH
def test_input_that_is_not_a_table(ensemble):
    words, y = (
        ["good film", "bad film", "very good", "very bad", "bad bad", "good"] * 5,
        [1, 0, 1, 0, 0, 1] * 5,
    )
    texts = CalibratedClassifier(make_pipeline(CountVectorizer(), MultinomialNB()), cv=3, ensemble=ensemble)
    assert texts.fit(words, y).predict(["good very", "bad"]).tolist() == [1, 0]
    records = [{"word": text.split()[0]} for text in words]
    maps = CalibratedClassifier(
        make_pipeline(DictVectorizer(), DecisionTreeClassifier()), cv=3, ensemble=ensemble
    )
    assert maps.fit(records, y).predict([{"word": "good"}]).tolist() == [1]
    assert not hasattr(texts, "n_features_in_")
    cubes = np.random.default_rng(0).normal(size=(30, 2, 3))

    class Sum(Echo):
        def decision_function(self, X):
            return X.sum(axis=(1, 2))

    clf = CalibratedClassifier(Sum(), TemperatureScaling(), cv=3, ensemble=ensemble)
    assert clf.fit(cubes, y).predict_proba(cubes).shape == (30, 2)


def test_missing_values_are_handled_by_the_estimator(hard):
    X, y = hard[0].copy(), hard[1]
    X[::7, 0] = np.nan
    clf = CalibratedClassifier(make_pipeline(SimpleImputer(), GaussianNB()), cv=3).fit(X, y)
    assert np.isfinite(clf.predict_proba(X)).all()
    with pytest.raises(ValueError, match="contains NaN"):
        CalibratedClassifier(GaussianNB(), cv=3).fit(X, y)


# Frozen estimators


def test_a_frozen_estimator_is_neither_cloned_nor_fitted(hard):
    X, y = hard
    estimator = GaussianNB().fit(X[:300], y[:300])
    clf = CalibratedClassifier(FrozenEstimator(estimator), TemperatureScaling(), cv=None).fit(
        X[300:], y[300:]
    )
    assert clf.estimators_[0].estimator is estimator
    p = np.maximum(estimator.predict_proba(X[300:]), np.finfo(float).eps)
    cal = TemperatureScaling().fit(hetcal.to_logits(p / p.sum(axis=1, keepdims=True)), y[300:])
    assert clf.calibrators_[0].alpha_ == pytest.approx(cal.alpha_, rel=1e-4)
    refitted = clone(clf).fit(X[300:], y[300:])
    np.testing.assert_array_equal(refitted.predict_proba(X), clf.predict_proba(X))
    np.testing.assert_array_equal(clf.predict(X), estimator.predict(X))


def test_prefit_has_the_effect_of_a_frozen_estimator(hard):
    X, y = hard
    estimator = GaussianNB().fit(X[:300], y[:300])
    frozen = CalibratedClassifier(FrozenEstimator(estimator), TemperatureScaling()).fit(X[300:], y[300:])
    clf = CalibratedClassifier(estimator, TemperatureScaling(), cv="prefit")
    with pytest.warns(FutureWarning, match="FrozenEstimator"):
        clf.fit(X[300:], y[300:])
    np.testing.assert_array_equal(clf.predict_proba(X), frozen.predict_proba(X))
    assert clf.estimators_[0].estimator is estimator
    assert clf.get_params()["cv"] == "prefit"
    assert clf.estimator is estimator
    assert "splitter" not in str(clf.get_metadata_routing())
    with pytest.raises(NotFittedError, match=r"estimator must be fitted .* FrozenEstimator"):
        clone(clf).fit(X[300:], y[300:])


def test_classes_are_those_of_a_frozen_estimator(iris):
    X, y = iris
    names = np.array(["a", "b", "c"])[y]
    clf = CalibratedClassifier(FrozenEstimator(GaussianNB().fit(X, names)), TemperatureScaling())
    clf.fit(X[50:], names[50:])
    assert clf.classes_.tolist() == ["a", "b", "c"]
    assert clf.predict_proba(X).shape == (150, 3)
    with pytest.raises(ValueError, match=r"y must .*got 'd' at row 1"):
        clf.fit(X[:2], ["a", "d"])
    with pytest.raises(ValueError, match="X has 3 features, but GaussianNB is expecting 4"):
        clf.fit(X[:, :3], names)
    with pytest.raises(TypeError, match="fit_params must"):
        clf.fit(X, names, note=1)
    with pytest.raises(NotFittedError):
        CalibratedClassifier(FrozenEstimator(GaussianNB())).fit(X, y)


@pytest.mark.filterwarnings("ignore:The Foreign or classes:FutureWarning")
def test_a_frozen_object_of_another_library(hard):
    class Foreign:
        classes_ = np.arange(3)

        def decision_function(self, X):
            return X[:, :3]

    z, y = hard[0], hard[1] % 3
    clf = CalibratedClassifier(FrozenEstimator(Foreign()), TemperatureScaling()).fit(z, y)
    assert clf.calibrators_[0].alpha_ == TemperatureScaling().fit(z[:, :3], y).alpha_
    np.testing.assert_array_equal(clf.predict(z), z[:, :3].argmax(axis=1))


def test_a_frozen_estimator_with_weights(hard):
    X, y = hard
    positive = np.arange(800) % 3 > 0
    clf = CalibratedClassifier(FrozenEstimator(GaussianNB().fit(X, y)), TemperatureScaling())
    weighted = clone(clf).fit(X, y, sample_weight=positive)
    assert weighted.calibrators_[0].alpha_ == clf.fit(X[positive], y[positive]).calibrators_[0].alpha_


# Folds


MASKS = [(np.arange(800) % 4 != k, np.arange(800) % 4 == k) for k in (0, 1)]
INDICES = [tuple(map(np.flatnonzero, pair)) for pair in MASKS]


@pytest.mark.parametrize(
    ("cv", "n_splits"),
    [(2, 2), (None, 5), (KFold(3), 3), (ShuffleSplit(4, random_state=0), 4), (INDICES, 2), (MASKS, 2)],
)
@BOTH
def test_kinds_of_splitters(cv, n_splits, ensemble, hard):
    clf = CalibratedClassifier(GaussianNB(), TemperatureScaling(), cv=cv, ensemble=ensemble)
    assert len(clf.fit(*hard).calibrators_) == (n_splits if ensemble else 1)


def test_splits_as_masks_and_generators(hard):
    clf = CalibratedClassifier(GaussianNB())
    p = [clf.set_params(cv=cv).fit(*hard).predict_proba(hard[0]) for cv in (MASKS, INDICES, iter(INDICES))]
    np.testing.assert_array_equal(p[0], p[1])
    np.testing.assert_array_equal(p[0], p[2])


def test_a_row_tested_twice_counts_twice(hard):
    X, y = hard
    a, b = np.arange(400), np.arange(400, 800)
    twice = CalibratedClassifier(GaussianNB(), TemperatureScaling(), cv=[(a, b), (a, b), (b, a)]).fit(X, y)
    w = np.where(np.arange(800) < 400, 1, 2)
    splits = [(a, b), (b, a)]
    z = np.vstack(
        [GaussianNB().fit(X[train], y[train]).predict_proba(X[test]) for train, test in splits[::-1]]
    )
    cal = TemperatureScaling().fit(hetcal.to_logits(z), y, sample_weight=w)
    assert twice.calibrators_[0].alpha_ == pytest.approx(cal.alpha_, rel=1e-6)


def test_leave_one_out(iris):
    X, y = iris[0][30:70], iris[1][30:70]
    clf = CalibratedClassifier(GaussianNB(), TemperatureScaling(), cv=LeaveOneOut()).fit(X, y)
    p = cross_val_predict(GaussianNB(), X, y, cv=LeaveOneOut(), method="predict_proba")
    expected = TemperatureScaling().fit(probs=p, labels=y)
    assert clf.calibrators_[0].alpha_ == pytest.approx(expected.alpha_, rel=1e-6)


@BOTH
def test_folds_in_parallel(ensemble, hard):
    X, y = hard
    clf = CalibratedClassifier(GaussianNB(), cv=3, ensemble=ensemble)
    serial = clone(clf).fit(X, y).predict_proba(X)
    with joblib.parallel_config("threading"):
        np.testing.assert_array_equal(clf.set_params(n_jobs=2).fit(X, y).predict_proba(X), serial)


# Pipelines and searches


def test_search_over_estimator_and_calibrator(hard):
    X, y = hard
    clf = CalibratedClassifier(LinearSVC(random_state=0), ClassWiseTemperatureScaling(), cv=3)
    grid = {"estimator__C": [0.01, 1.0], "calibrator__gamma": [0.0, 0.2], "ensemble": [False]}
    search = GridSearchCV(clf, grid, scoring="neg_log_loss", cv=3).fit(X, y)
    assert set(search.best_params_) == set(grid)
    assert search.best_estimator_.calibrators_[0].gamma_ == search.best_params_["calibrator__gamma"]
    inside = CalibratedClassifier(GridSearchCV(LinearSVC(random_state=0), {"C": [0.1, 1.0]}), cv=3)
    assert inside.fit(X, y).score(X, y) == inside.estimators_[0].score(X, y)


def test_in_a_pipeline_and_in_cross_validation(hard):
    X, y = hard
    clf = make_pipeline(StandardScaler(), CalibratedClassifier(LinearSVC(), cv=3))
    p = cross_val_predict(clf, X, y, cv=3, method="predict_proba")
    assert log_loss(y, p) < log_loss(y, np.tile(np.bincount(y) / 800, (800, 1)))
    clf.fit(X, y, calibratedclassifier__calibration_groups=y % 2)
    assert clf.predict_proba(X, calibration_groups=y % 2).shape == (800, 4)


def test_pickles_and_files(hard, tmp_path):
    X, y = hard
    clf = CalibratedClassifier(RandomForestClassifier(10, random_state=0), cv=3).fit(X, y)
    p = clf.predict_proba(X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(clf)).predict_proba(X), p)  # noqa: S301
    hetcal.save(clf.calibrators_[0], tmp_path / "cal.json")
    np.testing.assert_allclose(hetcal.load(tmp_path / "cal.json").predict_proba(clf.logits(X)), p)


def test_a_scikit_learn_classifier_as_calibrator(hard):
    X, y = hard
    clf = CalibratedClassifier(LinearSVC(random_state=0), LogisticRegression(max_iter=1000), cv=3).fit(X, y)
    z = cross_val_predict(LinearSVC(random_state=0), X, y, cv=3, method="decision_function")
    logistic = LogisticRegression(max_iter=1000).fit(z, y)
    np.testing.assert_allclose(clf.predict_proba(X), logistic.predict_proba(clf.logits(X)), atol=1e-6)


# Groups


@pytest.fixture(scope="module")
def grouped():
    """Scores that are calibrated for group "a" and too large by a factor of 2 for group "b"."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(3000, 3)) * 2
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    groups = np.where(np.arange(3000) % 2, "a", "b")
    return np.where(groups[:, None] == "a", z, 2 * z), y, groups


@BOTH
def test_groups_are_calibrated_separately(ensemble, grouped):
    z, y, groups = grouped
    clf = CalibratedClassifier(
        Echo("decision_function"), ClassWiseTemperatureScaling(), cv=3, ensemble=ensemble
    ).fit(z, y, calibration_groups=groups)
    for cal in clf.calibrators_:
        np.testing.assert_allclose(cal.alpha_, [1.0, 0.5], rtol=0.25 if ensemble else 0.1)
    p = clf.predict_proba(z, calibration_groups=groups)
    np.testing.assert_allclose(p.max(axis=1).mean(), (p.argmax(axis=1) == y).mean(), atol=0.02)
    with pytest.raises(ValueError, match="groups must"):
        clf.predict_proba(z)
    with pytest.raises(ValueError, match="groups must"):
        clf.predict_proba(z, calibration_groups=np.full(3000, "c"))
    np.testing.assert_array_equal(clf.predict(z, calibration_groups=groups), p.argmax(axis=1))
    if not ensemble:  # calibration by group preserves decisions
        np.testing.assert_array_equal(clf.predict(z), p.argmax(axis=1))
        assert clf.score(z, y) == (p.argmax(axis=1) == y).mean()


def test_groups_that_are_missing_from_folds_or_have_no_weight(grouped):
    z, y, groups = grouped
    late = np.where(np.arange(3000) < 2500, groups, "c")
    clf = CalibratedClassifier(Echo("decision_function"), ClassWiseTemperatureScaling(), cv=KFold(3))
    clf.fit(z, y, calibration_groups=late)
    with pytest.raises(ValueError, match=r"calibration_groups must .*'c'"):
        clone(clf).set_params(ensemble=True).fit(z, y, calibration_groups=late)
    clf.fit(z, y, sample_weight=late != "c", calibration_groups=late)
    assert clf.calibrators_[0].groups_.tolist() == ["a", "b"]
    single = CalibratedClassifier(Echo("decision_function"), TemperatureScaling(), cv=KFold(3), ensemble=True)
    single.fit(z, y, calibration_groups=late)  # this calibrator ignores groups
    with pytest.raises(ValueError, match="calibration_groups must"):
        clf.fit(z, y, calibration_groups=late[:5])


# Metadata


def test_other_parameters_of_fit_go_to_the_estimator():
    z, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 3
    clf = CalibratedClassifier(Echo("decision_function"), TemperatureScaling(), cv=3, ensemble=True)
    clf.fit(z, y, note=np.arange(60))
    for (train, _), member in zip(StratifiedKFold(3).split(z, y), clf.estimators_, strict=True):
        np.testing.assert_array_equal(member.seen_["note"], train)
    clf.fit(z, y, note=[1, 2])
    assert clf.estimators_[0].seen_["note"] == [1, 2]
    with pytest.raises(TypeError, match="unexpected keyword"):
        clf.fit(z, y, nothing=1)


@pytest.mark.usefixtures("routing")
def test_metadata_are_routed_as_requested():
    z, y, w = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 3, np.arange(60) % 4
    estimator = Echo("decision_function")
    clf = CalibratedClassifier(estimator.set_fit_request(sample_weight=True, note="memo"), cv=3)
    clf.fit(z, y, sample_weight=w, memo="x")
    seen = clf.estimators_[0].seen_
    np.testing.assert_array_equal(seen["sample_weight"], w[w > 0])
    assert seen["note"] == "x"
    clf.set_params(estimator=clone(estimator).set_fit_request(sample_weight=False)).fit(z, y, sample_weight=w)
    assert clf.estimators_[0].seen_["sample_weight"] is None
    with pytest.raises(Exception, match="not explicitly set as requested or not"):
        clf.set_params(estimator=Echo("decision_function")).fit(z, y, sample_weight=w)
    with pytest.raises(TypeError, match="unexpected argument"):
        clf.fit(z, y, nothing=1)
    frozen = CalibratedClassifier(FrozenEstimator(estimator.fit(z, y))).fit(z, y, sample_weight=w)
    assert frozen.get_metadata_routing()


@pytest.mark.usefixtures("routing")
def test_groups_of_the_splitter(hard):
    X, y = hard
    groups = np.arange(800) // 10
    clf = CalibratedClassifier(GaussianNB(), TemperatureScaling(), cv=GroupKFold(4)).fit(X, y, groups=groups)
    splits = list(GroupKFold(4).split(X, y, groups))
    same = CalibratedClassifier(GaussianNB(), TemperatureScaling(), cv=splits).fit(X, y)
    np.testing.assert_array_equal(clf.predict_proba(X), same.predict_proba(X))


@pytest.mark.usefixtures("routing")
def test_metadata_requests_of_the_classifier(hard):
    X, y = hard
    clf = CalibratedClassifier(
        GaussianNB().set_fit_request(sample_weight=True), ClassWiseTemperatureScaling(gamma="bayes"), cv=3
    )
    clf.set_fit_request(calibration_groups=True, sample_weight=True).set_predict_proba_request(
        calibration_groups=True
    )
    pipe = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), clf)
    pipe.fit(X, y, calibration_groups=y % 2, sample_weight=y + 1)
    assert pipe.predict_proba(X, calibration_groups=y % 2).shape == (800, 4)
    clf.set_score_request(sample_weight=False)
    search = GridSearchCV(clf, {"estimator__var_smoothing": [1e-9, 1e-2]}, cv=2, refit=True)
    assert search.fit(X, y, sample_weight=y + 1).best_estimator_.score(X, y) > 0.5


# Quality


@pytest.mark.parametrize(
    ("load", "calibrator"),
    [(load_digits, None), (load_breast_cancer, ClassWiseTemperatureScaling(gamma="bayes"))],
)
@pytest.mark.parametrize(
    "estimator",
    [
        make_pipeline(StandardScaler(), RidgeClassifier()),
        GaussianNB(),
        RandomForestClassifier(10, random_state=0),
    ],
    ids=lambda e: type(e).__name__,
)
@BOTH
def test_likelihood_of_test_rows_is_not_significantly_worse(load, calibrator, estimator, ensemble):
    X, y = load(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.5, random_state=0, stratify=y)
    uncalibrated = clone(estimator).fit(X, y)
    if hasattr(uncalibrated, "predict_proba"):
        before = uncalibrated.predict_proba(X_test)
    else:  # the softmax of the scores
        z = uncalibrated.decision_function(X_test)
        before = softmax(np.stack([0 * z, z], axis=1) if z.ndim == 1 else z, axis=1)
    after = CalibratedClassifier(estimator, calibrator, ensemble=ensemble).fit(X, y).predict_proba(X_test)
    eps = np.finfo(float).eps
    gain = [np.log(np.maximum(p[np.arange(len(p)), y_test], eps)) for p in (after, before)]
    gain = gain[0] - gain[1]
    assert gain.mean() > -2 * gain.std() / np.sqrt(len(gain))


# Errors


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"estimator": LinearRegression()},
            TypeError,
            "estimator must",
        ),
        ({"estimator": GaussianNB}, TypeError, "estimator must"),
        ({"response_method": "decision_function"}, TypeError, "estimator must"),
        ({"response_method": "predict"}, ValueError, "response_method must"),
        ({"calibrator": "sigmoid"}, TypeError, "calibrator must .*got 'sigmoid'"),
        ({"calibrator": TemperatureScaling}, TypeError, "calibrator must"),
        ({"ensemble": "auto"}, TypeError, "ensemble must .*got 'auto'"),
        ({"cv": "loo"}, TypeError, "cv must .*got 'loo'"),
        ({"cv": 1}, ValueError, r"cv must .*2\.\.50, got 1"),
        ({"cv": 51}, ValueError, r"cv must .*2\.\.50, got 51"),
        ({"cv": []}, ValueError, "cv must"),
    ],
)
def test_options_that_are_refused(options, error, text, iris):
    with pytest.raises(error, match=text):
        CalibratedClassifier(**{"estimator": GaussianNB(), **options}).fit(*iris)


def test_rows_that_are_refused(iris):
    X, y = iris
    clf = CalibratedClassifier(GaussianNB(), cv=3)
    with pytest.raises(ValueError, match=r"y must .*got None"):
        clf.fit(X, None)
    with pytest.raises(ValueError, match="got 1 class"):
        clf.fit(X[:50], y[:50])
    with pytest.raises(ValueError, match="got 1 class"):
        clf.fit(X, y, sample_weight=y == 1)
    with pytest.raises(ValueError, match="sample_weight must"):
        clf.fit(X, y, sample_weight=-np.ones(150))
    with pytest.raises(ValueError, match="Unknown label type"):
        clf.fit(X, X[:, 0])
    with pytest.raises(ValueError, match="y should be a 1d array"):
        clf.fit(X, np.eye(3)[y])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        clf.fit(X, y[:9])
    with pytest.raises(NotFittedError):
        clf.predict_proba(X)
    with pytest.raises(NotFittedError):
        clf.predict(X)


def test_invalid_responses_are_refused():
    z, y = np.random.default_rng(0).normal(size=(30, 3)), np.arange(30) % 3
    frozen = FrozenEstimator(Echo("decision_function").fit(z, y))
    with pytest.raises(ValueError, match=r"got shape \(30, 4\)"):
        CalibratedClassifier(frozen).fit(np.hstack([z, z[:, :1]]), y)
    with pytest.raises(ValueError, match="decision_function must"):
        CalibratedClassifier(frozen).fit(np.where(z > 1, np.nan, z), y)
    with pytest.raises(ValueError, match="predict_proba must"):
        CalibratedClassifier(FrozenEstimator(Echo().fit(z, y))).fit(z, y)


def test_an_estimator_with_more_classes_than_the_labels(iris):
    class ExtraClass(GaussianNB):
        def fit(self, X, y, sample_weight=None):
            super().fit(X, y, sample_weight)
            self.classes_ = np.append(self.classes_, 9)
            return self

    with pytest.raises(ValueError, match=r"y must .*got 9"):
        CalibratedClassifier(ExtraClass()).fit(*iris)


def test_rows_of_a_fold_group_stay_in_one_fold(hard):
    X, y = hard
    copies, labels, groups = np.tile(X, (2, 1)), np.tile(y, 2), np.tile(np.arange(len(y)), 2)
    forest = RandomForestClassifier(5, bootstrap=False, random_state=0)  # memorises its training rows
    with_groups, without = (
        CalibratedClassifier(forest, TemperatureScaling(), cv=2).fit(copies, labels, fold_groups=fold_groups)
        for fold_groups in (groups, None)
    )
    assert with_groups.calibrators_[0].alpha_ < 0.5 * without.calibrators_[0].alpha_


def test_no_more_folds_than_fold_groups(hard):
    X, y = hard
    clf = CalibratedClassifier(GaussianNB(), TemperatureScaling(), cv=5, ensemble=True)
    assert len(clf.fit(X, y, fold_groups=np.arange(len(y)) % 3).estimators_) == 3
