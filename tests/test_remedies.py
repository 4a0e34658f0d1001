"""The remedies in errors and warnings work when they are followed."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Perceptron
from sklearn.model_selection import KFold, ShuffleSplit
from sklearn.svm import SVC

import hetcal
from hetcal import artefact, corruption, logits_files, planning
from hetcal.__main__ import main
from hetcal._extras import install_command, missing_package
from hetcal._numeric.threads import n_threads
from hetcal.calibrators import classwise
from hetcal.compare import compare
from hetcal.partition import bundle_classes, by_predicted_class

RNG = np.random.default_rng(7)
Z = RNG.normal(size=(300, 3)) * 3
Y = np.where(RNG.random(300) < 0.75, Z.argmax(axis=1), RNG.integers(0, 3, 300))
P = np.exp(Z - Z.max(axis=1, keepdims=True))
P /= P.sum(axis=1, keepdims=True)
Y2 = (Z[:, 0] + RNG.logistic(size=300) > 0).astype(int)  # binary labels that depend on the first score
NAMES = ["a", "b", "c"]
TEXTS = np.array(NAMES)[Y]
BINARY_PROBS = np.stack([1 - P[:, 0], P[:, 0]], axis=1)
GROUPS = np.array(["x", "y"])[np.arange(300) % 2]
NUMBERED = np.arange(300) % 2
MIXED = np.array([7 if y else "x" for y in Y], object)
X4 = RNG.normal(size=(120, 4))
Y3 = (X4[:, 0] > 0).astype(int) + (X4[:, 1] > 0)
IMAGES = np.moveaxis(Z.reshape(10, 30, -1), -1, 1)
IN_1 = (IMAGES[:, 0] > 0) ^ (np.arange(30) % 4 == 0)
NAN = np.where(np.arange(300)[:, None] == 5, np.nan, Z)
RIGHT_IN_0 = np.where(Z.argmax(axis=1) == 0, 0, Y)  # every prediction of class 0 is correct
SHIFTED = Z + np.array([0, 0, 9])  # separable only with a bias per class
MASKED = np.ma.masked_array(Z, mask=NAN != NAN)
EXHAUSTED = iter([])
Call = Callable[[], Any]


def ts() -> Any:
    return hetcal.TemperatureScaling()


def cts(gamma: Any = np.inf, **options: Any) -> Any:
    return hetcal.ClassWiseTemperatureScaling(gamma, **options)


def batches(**options: Any) -> Any:
    return hetcal.Batches([(Z[:150], Y[:150]), (Z[150:], Y[150:])], **options)


def batches_with_groups(*groups: Any) -> Any:
    return hetcal.Batches([{"logits": Z, "labels": Y, "groups": g} for g in groups])


def frame(values: Any, names: list[str]) -> Any:
    return pytest.importorskip("pandas").DataFrame(values, columns=names)


def fit_frame() -> Any:
    return ts().fit(frame(Z, NAMES), Y)


def fit_groups(groups: Any = GROUPS) -> Any:
    return cts().fit(Z, Y, groups=groups)


def same_predictions(from_logits: Any, from_probs: Any) -> bool:
    return bool(np.allclose(from_logits.predict_proba(Z), from_probs.predict_proba(probs=P), atol=1e-6))


def report_data(logits: Any, labels: Any, **options: Any) -> Any:
    from hetcal.report.collect import as_logits_file

    return as_logits_file(logits, labels, None, **options)


def threads_with(value: str | None) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HETCAL_THREADS", value) if value else patch.delenv("HETCAL_THREADS", raising=False)
        return n_threads()


def plan(**options: Any) -> Any:
    return hetcal.plan_validation_size(Z, Y, **{"methods": {"TS": ts()}, "n_repeats": 5} | options)


def classify(estimator: Any, **options: Any) -> Any:
    arguments: dict[str, Any] = {"calibrator": ts(), "cv": 3} | options
    return hetcal.CalibratedClassifier(estimator, **arguments).fit(X4, Y3)


def classify_two(y: Any) -> Any:
    return hetcal.CalibratedClassifier(LogisticRegression(), hetcal.Identity(), cv=KFold(2)).fit(X4, y)


def classify_groups(cv: Any, **options: Any) -> Any:
    groups = np.where(np.isin(np.arange(120), [0, 1, 118, 119]), "rare", "common")
    model = hetcal.CalibratedClassifier(LogisticRegression(), cts(0.1), cv=cv, **options)
    return model.fit(X4, Y3, calibration_groups=groups)


def follow(argument: str, keyword: str, invalid: Call, *corrected: Call) -> None:
    """Check that a call raises an error with argument and remedy, and that the corrected calls succeed."""
    pattern = rf"^((batch|block) \d+: )?{re.escape(argument)} must .*{re.escape(keyword)}"
    with pytest.raises((ValueError, TypeError, OSError), match=pattern) as caught:
        invalid()
    message = str(caught.value)
    assert ";" in message
    assert "\n" not in message
    for call in corrected:
        assert call() is not False


# Argument, keyword of the remedy, invalid call, and calls that follow the remedy
ARRAYS: list[tuple[Any, ...]] = [
    ("logits", "binary_logits", lambda: ts().fit(Z[:, 0], Y2),
     lambda: ts().fit(hetcal.binary_logits(Z[:, 0]), Y2)),
    ("logits", "binary_logits", lambda: ts().fit(Z[:, :1], Y2),
     lambda: ts().fit(hetcal.binary_logits(Z[:, :1]), Y2)),
    ("labels", "reshape logits", lambda: ts().fit(Z[:, :, None], Y), lambda: ts().fit(Z.reshape(300, -1), Y)),
    ("labels", "np.moveaxis(logits, -1, 1)", lambda: ts().fit(Z.reshape(10, 5, 6, -1), Y.reshape(10, 5, 6)),
     lambda: ts().fit(np.moveaxis(Z.reshape(10, 5, 6, -1), -1, 1), Y.reshape(10, 5, 6))),
    ("logits", "0 and s", lambda: ts().fit(IMAGES[:, :1], IN_1),
     lambda: ts().fit(np.stack([0 * IMAGES[:, 0], IMAGES[:, 0]], axis=1), IN_1)),
    ("labels", "unlabelled", lambda: ts().fit(Z, np.full(300, 255), ignore_index=255),
     lambda: ts().fit(Z, np.where(np.arange(300) < 9, 255, Y), ignore_index=255)),
    ("sample_weight", "per image", lambda: ts().fit(IMAGES, IMAGES.argmax(axis=1), sample_weight=np.ones(3)),
     lambda: ts().fit(IMAGES, IMAGES[::-1].argmax(axis=1), sample_weight=np.ones(len(IMAGES)))),
    ("scores", "", lambda: hetcal.binary_logits(Z), lambda: ts().fit(Z, Y)),
    ("logits", "probs=", lambda: ts().fit(P, Y),
     lambda: same_predictions(ts().fit(Z, Y), ts().fit(probs=P, labels=Y))),
    ("logits", "probs=", lambda: ts().fit(Z, Y).predict_proba(P),
     lambda: same_predictions(ts().fit(Z, Y), ts().fit(Z, Y))),
    ("logits", "probs=", lambda: hetcal.evaluate(logits=P, labels=Y),
     lambda: hetcal.evaluate(probs=P, labels=Y)),
    ("logits", "probs=", lambda: hetcal.diagnose(P, Y), lambda: hetcal.diagnose(probs=P, labels=Y)),
    ("logits", "to_logits", lambda: compare(P, Y, methods={"TS": ts()}),
     lambda: compare(hetcal.to_logits(P), Y, methods={"TS": ts()})),
    ("logits", "to_logits", lambda: bundle_classes(P, Y, 2),
     lambda: bundle_classes(hetcal.to_logits(P), Y, 2).tolist() == bundle_classes(Z, Y, 2).tolist()),
    ("logits", "to_logits", lambda: by_predicted_class(P),
     lambda: by_predicted_class(hetcal.to_logits(P)).tolist() == P.argmax(axis=1).tolist()),
    ("logits", "to_logits", lambda: planning.bound_check(P, Y, Z, Y),
     lambda: planning.bound_check(hetcal.to_logits(P), Y, Z, Y)),
    ("logits", "", lambda: ts().fit(hetcal.Batches([(P, Y)])),
     lambda: ts().fit(hetcal.Batches([(np.log(P), Y)]))),
    ("probs", "to_logits", lambda: ts().fit(probs=batches()),
     lambda: ts().fit(hetcal.Batches([(hetcal.to_logits(P, floor=1e-09), Y)]))),
    ("probs", "", lambda: ts().fit(Z, Y, probs=P), lambda: ts().fit(Z, Y)),
    ("logits", "probs=", lambda: ts().fit(labels=Y), lambda: ts().fit(Z, Y),
     lambda: ts().fit(probs=P, labels=Y)),
    ("logits", "", lambda: ts().fit(NAN, Y), lambda: ts().fit(np.delete(NAN, 5, 0), np.delete(Y, 5))),
    ("logits", "", lambda: ts().fit(Z + 0j, Y), lambda: ts().fit((Z + 0j).real, Y)),
    ("logits", "getmaskarray", lambda: ts().fit(MASKED, Y),
     lambda: ts().fit(MASKED[(kept := (~np.ma.getmaskarray(MASKED).any(axis=1)))], Y[kept])),
    ("sample_weight", "", lambda: ts().fit(Z, Y, sample_weight=np.ma.masked),
     lambda: ts().fit(Z, Y, sample_weight=1.0)),
    ("logits", ".toarray()", lambda: ts().fit(csr_array(Z), Y), lambda: ts().fit(csr_array(Z).toarray(), Y)),
    ("labels", "", lambda: ts().fit(Z, np.zeros((len(Y), 2))), lambda: ts().fit(Z, np.eye(3)[Y])),
    ("labels", "", lambda: ts().fit(Z, 0 * np.eye(3)[Y]), lambda: ts().fit(Z, np.eye(3)[Y])),
    ("transition", "", lambda: ts().fit(Z, Y, transition=np.eye(2)),
     lambda: ts().fit(Z, Y, transition=np.eye(3))),
    ("transition", "", lambda: ts().fit(Z, Y, transition=np.eye(3) / 2),
     lambda: ts().fit(Z, Y, transition=np.eye(3))),
    ("transition", "", lambda: ts().fit(Z, Y, transition=1.0), lambda: ts().fit(Z, Y, transition=0.05)),
    ("transition", "", lambda: ts().fit(Z, np.eye(3)[Y], transition=0.05),
     lambda: ts().fit(Z, Y, transition=0.05)),
    ("labels", "", lambda: ts().fit(Z, Y + 1), lambda: ts().fit(Z, Y)),
    ("labels", "array", lambda: hetcal.evaluate(P, frame(P, [*NAMES[:-1], "x"]), NAMES),
     lambda: hetcal.evaluate(P, P, NAMES), lambda: hetcal.evaluate(P, frame(P, NAMES), NAMES)),
    ("transition", "all classes",
     lambda: hetcal.metrics.ece(P.max(axis=1), Y, predicted=P.argmax(axis=1), transition=0.1),
     lambda: hetcal.metrics.ece(P, Y, transition=0.1)),
    ("transition", "leave out", lambda: hetcal.diagnose(Z, P, transition=0.1), lambda: hetcal.diagnose(Z, P),
     lambda: hetcal.diagnose(Z, Y, transition=0.1)),
    ("transition", "arrays", lambda: hetcal.evaluate(logits=batches(), transition=0.1),
     lambda: hetcal.evaluate(logits=Z, labels=Y, transition=0.1)),
    ("labels", "class_names=", lambda: ts().fit(Z, TEXTS),
     lambda: ts().fit(Z, TEXTS, class_names=NAMES).alpha_ == ts().fit(Z, Y).alpha_),
    ("labels", "class_names=", lambda: hetcal.evaluate(P, TEXTS), lambda: hetcal.evaluate(P, TEXTS, NAMES)),
    ("labels", "class_names=", lambda: hetcal.diagnose(Z, TEXTS),
     lambda: hetcal.diagnose(Z, TEXTS, class_names=NAMES)),
    ("labels", "class_names=", lambda: report_data(Z, TEXTS),
     lambda: report_data(Z, TEXTS, class_names=NAMES).val.labels.tolist() == Y.tolist()),
    ("labels", "", lambda: ts().fit(hetcal.Batches([(Z, TEXTS)])),
     lambda: ts().fit(hetcal.Batches([(Z, Y)]))),
    ("labels", "class_names=", lambda: compare(Z, TEXTS),
     lambda: compare(Z, TEXTS, methods={"TS": ts()}, class_names=NAMES)),
    ("labels", "class_names=", lambda: hetcal.metrics.ece(P, TEXTS),
     lambda: hetcal.metrics.ece(P, TEXTS, class_names=NAMES) == hetcal.metrics.ece(P, Y)),
    ("class_names", "", lambda: hetcal.evaluate(frame(P, NAMES), TEXTS, NAMES[::-1]),
     lambda: hetcal.evaluate(frame(P, NAMES), TEXTS)),
    ("labels", "", lambda: ts().fit(Z[:4], list("abdc"), class_names=NAMES),
     lambda: ts().fit(Z, TEXTS, class_names=NAMES),
     lambda: hetcal.Identity().fit(Z[[0, 1, 3]], list("abc"), class_names=NAMES)),
    ("class_names", "", lambda: ts().fit(Z, TEXTS, class_names=list("abb")),
     lambda: ts().fit(Z, TEXTS, class_names=NAMES)),
    ("sample_weight", "", lambda: ts().fit(Z, Y, sample_weight=-1.0 * (Y == 0)),
     lambda: ts().fit(Z[Y > 0], Y[Y > 0], sample_weight=np.ones((Y > 0).sum())),
     lambda: ts().fit(Z, Y, sample_weight=np.ones(300))),
    ("sample_weight", "", lambda: ts().fit(Z, Y, sample_weight=np.full(300, 1e200)),
     lambda: ts().fit(Z, Y, sample_weight=np.full(300, 1e200) / 1e200)),
    ("sample_weight", "", lambda: ts().fit(Z, Y, sample_weight=np.zeros(300)), lambda: ts().fit(Z, Y)),
    ("groups", "", lambda: fit_groups(np.where(Y > 0, 1.0, np.nan)),
     lambda: fit_groups(np.where(Y > 0, 1, 0))),
    ("groups", "", lambda: fit_groups(Z[:, 0]), lambda: fit_groups(np.digitize(Z[:, 0], [0]))),
    ("groups", "", lambda: fit_groups(MIXED), lambda: fit_groups([str(g) for g in MIXED])),
    ("groups", "", lambda: fit_groups(np.where(Y > 0, 1, None)),
     lambda: fit_groups(np.where(Y > 0, 1, None).astype(str))),
    ("labels", "predicted=", lambda: hetcal.evaluate(P.max(axis=1), Y), lambda: hetcal.evaluate(P, Y),
     lambda: hetcal.evaluate(P.max(axis=1), Y, predicted=P.argmax(axis=1))),
    ("probs", "predicted=", lambda: hetcal.metrics.nll(P.max(axis=1), Y),
     lambda: hetcal.metrics.nll(P.max(axis=1), Y, predicted=P.argmax(axis=1))),
    ("probs", "predicted=", lambda: hetcal.noise_floor(P.max(axis=1)),
     lambda: hetcal.noise_floor(P.max(axis=1), predicted=P.argmax(axis=1), n_redraws=5)),
    ("labels", "", lambda: ts().fit(probs=P[:, 0], labels=Y), lambda: ts().fit(probs=P, labels=Y)),
    ("probs", "binary_logits", lambda: hetcal.evaluate(Z[:, 0], Y2),
     lambda: hetcal.evaluate(logits=hetcal.binary_logits(Z[:, 0]), labels=Y2)),
    ("probs", "", lambda: ts().fit(probs=frame(P[:, :1], ["prob_0"]), labels=Y2),
     lambda: ts().fit(probs=frame(1 - P[:, :1], ["prob_1"]), labels=1 - Y2),
     lambda: ts().fit(probs=frame(BINARY_PROBS, ["prob_0", "prob_1"]), labels=Y2)),
    ("labels", "", lambda: ts().fit(probs=frame(P[:, :1], ["prob_a"]), labels=TEXTS),
     lambda: ts().fit(probs=frame(P, ["prob_a", "prob_b", "prob_c"]), labels=TEXTS)),
    ("probs", "1 - p and p", lambda: hetcal.metrics.ece(P[:, 0], Y2),
     lambda: hetcal.metrics.ece(BINARY_PROBS, Y2)),
    ("probs", "confidences", lambda: hetcal.metrics.ece(P, Y, predicted=Y), lambda: hetcal.metrics.ece(P, Y)),
    ("predicted", "", lambda: hetcal.evaluate(logits=Z, labels=Y, predicted=Y),
     lambda: hetcal.evaluate(P.max(axis=1), Y, predicted=P.argmax(axis=1))),
    ("probs", "logits=", lambda: hetcal.evaluate(labels=Y), lambda: hetcal.evaluate(logits=Z, labels=Y),
     lambda: hetcal.evaluate(P, Y)),
    ("probs", "", lambda: hetcal.evaluate(Z, Y), lambda: hetcal.evaluate(P, Y)),
    ("probs", "", lambda: hetcal.evaluate(P * 0.8, Y),
     lambda: hetcal.evaluate(P * 0.8 / (P * 0.8).sum(axis=1, keepdims=True), Y)),
    ("labels and predicted", "", lambda: hetcal.metrics.ece([0.9], [1 << 30], predicted=[0]),
     lambda: hetcal.metrics.ece([0.9], [1], predicted=[0])),
    ("logits", "", lambda: fit_frame().predict_proba(frame(Z, ["a", "b", "d"])),
     lambda: fit_frame().predict_proba(frame(Z, NAMES))),
    ("logits", "", lambda: fit_frame().predict_proba(frame(Z, ["a", "c", "c"])),
     lambda: fit_frame().predict_proba(frame(Z, ["a", "c", "b"]))),
    ("class_names", "", lambda: ts().fit(frame(Z, NAMES), Y, class_names=list("cba")),
     lambda: ts().fit(frame(Z, NAMES), Y)),
    ("labels", "0, 1, 2", lambda: ts().fit(frame(Z, ["10", "20", "30"]), Y),
     lambda: ts().fit(frame(Z, ["0", "1", "2"]), Y)),
    ("columns", "", lambda: ts().fit(frame(Z, ["1", "logit_1", "2"]), Y),
     lambda: ts().fit(frame(Z, ["0", "logit_1", "2"]), Y)),
    ("columns", "", lambda: ts().fit(frame(Z, ["0", "1", "2" * 30]), Y),
     lambda: ts().fit(frame(Z, ["0", "1", "2"]), Y)),
]  # fmt: skip

CALIBRATORS: list[tuple[Any, ...]] = [
    ("gamma", "'cv'", lambda: hetcal.ClassWise(hetcal.VectorScaling(), "cv").fit(Z, Y),
     lambda: hetcal.ClassWise(ts(), "cv").fit(Z, Y), lambda: hetcal.ClassWise(ts(), "bayes").fit(Z, Y),
     lambda: hetcal.ClassWise(hetcal.PlattScaling(), "bayes").fit(Z, Y)),
    ("gamma", "'nll'", lambda: cts("cv", loss="brier").fit(Z, Y), lambda: cts("cv").fit(Z, Y)),
    ("loss", "ClassWise", lambda: hetcal.ClassWise(hetcal.TemperatureScaling(loss="brier")).fit(Z, Y),
     lambda: hetcal.ClassWise(ts(), loss="brier").fit(Z, Y)),
    ("base", "", lambda: hetcal.ClassWise(hetcal.PlattScaling).fit(Z, Y),
     lambda: hetcal.ClassWise(hetcal.PlattScaling()).fit(Z, Y)),
    ("base", "center=False", lambda: hetcal.ClassWise(hetcal.VectorScaling(center=True), 0.1).fit(Z, Y),
     lambda: hetcal.ClassWise(hetcal.VectorScaling(), 0.1).fit(Z - Z.mean(axis=1, keepdims=True), Y)),
    ("logits", "VectorScaling", lambda: hetcal.BinaryScaling().fit(Z, Y),
     lambda: hetcal.VectorScaling().fit(Z, Y)),
    ("steps", "", lambda: hetcal.Chain([hetcal.PlattScaling]).fit(Z, Y),
     lambda: hetcal.Chain([hetcal.PlattScaling()]).fit(Z, Y)),
    ("alpha_bounds", "0.01", lambda: hetcal.TemperatureScaling((1, 0)).fit(Z, Y),
     lambda: hetcal.TemperatureScaling((0.01, 100)).fit(Z, Y)),
    ("groups", "", lambda: fit_groups().predict_proba(Z),
     lambda: fit_groups().predict_proba(Z, groups=GROUPS)),
    ("groups", "", lambda: cts().fit(Z, Y).predict_proba(Z, groups=GROUPS),
     lambda: fit_groups().predict_proba(Z, groups=GROUPS)),
    ("groups", "", lambda: fit_groups().predict_proba(Z[:1], groups=["z"]),
     lambda: fit_groups(np.where(Y == 0, "z", GROUPS)).predict_proba(Z[:1], groups=["z"])),
    ("groups", "", lambda: fit_groups().predict_proba(Z, groups=NUMBERED),
     lambda: fit_groups(NUMBERED).predict_proba(Z, groups=NUMBERED)),
    ("fold_groups", "", lambda: cts("cv").fit(Z, Y, fold_groups=np.zeros(300)), lambda: cts("cv").fit(Z, Y)),
    ("logits", "", lambda: ts().fit(Z, Y).predict_proba(batches(), return_std=True),
     lambda: ts().fit(Z, Y).predict_proba(Z[:9], return_std=True)),
    ("logits", "ClassWiseTemperatureScaling", lambda: hetcal.TopLabelIsotonic().fit(batches()),
     lambda: hetcal.TopLabelIsotonic().fit(Z[:200], Y[:200]), lambda: cts().fit(batches())),
    ("logits", "", lambda: hetcal.ClassWise(hetcal.TopLabelIsotonic()).fit(batches()),
     lambda: hetcal.ClassWise(hetcal.TopLabelIsotonic()).fit(Z[:200], Y[:200])),
    ("logits", "array", lambda: hetcal.TemperatureScaling(loss="ece").fit(batches()),
     lambda: hetcal.TemperatureScaling(loss="ece").fit(Z[:200], Y[:200])),
    ("fold_groups", "", lambda: cts("cv").fit(batches(), fold_groups=GROUPS),
     lambda: cts("cv").fit(Z, Y, fold_groups=NUMBERED + 2 * (np.arange(300) // 10))),
    ("labels", "", lambda: ts().fit(batches(), Y), lambda: ts().fit(batches())),
    ("labels", "", lambda: hetcal.Batches([Z], Y), lambda: ts().fit(hetcal.Batches([(Z, Y)])),
     lambda: ts().fit(hetcal.Batches([{"logits": Z, "labels": Y}]))),
    ("the batches", "", lambda: [*hetcal.Batches(lambda: EXHAUSTED)],
     lambda: ts().fit(hetcal.Batches(lambda: iter([(Z, Y)])))),
    ("source", "", lambda: hetcal.Batches(iter([(Z, Y)])),
     lambda: ts().fit(hetcal.Batches(lambda: iter([(Z, Y)]))), lambda: ts().fit(hetcal.Batches([(Z, Y)]))),
    ("groups", "", lambda: cts().fit(batches_with_groups(GROUPS, NUMBERED)),
     lambda: cts().fit(batches_with_groups(GROUPS, NUMBERED.astype(str)))),
    ("calibrator", "", lambda: hetcal.save(ts(), "cal.json"), lambda: artefact.encode(ts().fit(Z, Y))),
    ("HETCAL_THREADS", "unset", lambda: threads_with("many"), lambda: threads_with(None)),
]  # fmt: skip

OTHERS: list[tuple[Any, ...]] = [
    ("n_classes", "", lambda: corruption.noisy_labels([0, 5], [0], 0.5, 2, 0),
     lambda: corruption.noisy_labels([0, 5], [0], 0.5, 6, 0)),
    ("per_class", "", lambda: corruption.stratified_split(Y, -1, 0),
     lambda: corruption.stratified_split(Y, 1, 0)),
    ("per_class", "", lambda: corruption.stratified_split([0, 1, 1], 2, 0),
     lambda: corruption.stratified_split([0, 1, 1], 1, 0)),
    ("labels", "", lambda: corruption.undersample([[0]], [0], 0.5, 0),
     lambda: corruption.undersample([0], [0], 0.5, 0)),
    ("labels", "", lambda: corruption.undersample(["a"], [0], 0.5, 0),
     lambda: corruption.undersample([0], [0], 0.5, 0)),
    ("labels", "", lambda: corruption.undersample([-1], [0], 0.5, 0),
     lambda: corruption.undersample([0], [0], 0.5, 0)),
    ("rate", "0.3", lambda: corruption.undersample([0], [0], 30, 0),
     lambda: corruption.undersample([0], [0], 0.3, 0)),
    ("per_class", "", lambda: corruption.stratified_split(Y, 1.5, 0),
     lambda: corruption.stratified_split(Y, 1, 0)),
    ("classes", "", lambda: corruption.undersample([0], [[0]], 0.5, 0),
     lambda: corruption.undersample([0], [0], 0.5, 0)),
    ("logits", "", lambda: hetcal.plan_validation_size(Z[:20], Y[:20]), lambda: plan()),
    ("target", "", lambda: plan(target=0.0001), lambda: plan(target=1.0)),
    ("n_repeats", "20", lambda: plan(n_repeats=1), lambda: plan()),
    ("sizes", "", lambda: plan(sizes=[100, 200, 300]), lambda: plan(sizes=[60, 120, 240])),
    ("rows", "sizes=", lambda: plan().predict("TS", 10), lambda: plan(sizes=[10, 40, 200]).predict("TS", 10)),
    ("estimator", "", lambda: classify(LogisticRegression), lambda: classify(LogisticRegression())),
    ("calibrator", "", lambda: classify(Perceptron(), calibrator=hetcal.PlattScaling),
     lambda: classify(Perceptron(), calibrator=hetcal.PlattScaling())),
    ("cv", "FrozenEstimator", lambda: classify(LogisticRegression(), cv="frozen"),
     lambda: classify(FrozenEstimator(LogisticRegression().fit(X4, Y3)))),
    ("estimator", "FrozenEstimator", lambda: classify(LogisticRegression(), cv="prefit"),
     lambda: classify(FrozenEstimator(LogisticRegression().fit(X4, Y3)))),
    ("estimator", "'ovr'", lambda: classify(SVC(decision_function_shape="ovo")),
     lambda: classify(SVC(decision_function_shape="ovr"))),
    ("cv", "", lambda: classify_two(np.arange(120) >= 60),
     lambda: classify_two(np.random.default_rng(0).permutation(np.arange(120) >= 60))),
    ("calibration_groups", "", lambda: classify_groups(ShuffleSplit(1, test_size=0.1, random_state=0)),
     lambda: classify_groups(5)),
    ("calibration_groups", "ensemble=False", lambda: classify_groups(5, ensemble=True),
     lambda: classify_groups(5), lambda: classify_groups(2, ensemble=True)),
]  # fmt: skip


@pytest.mark.parametrize("case", [*ARRAYS, *CALIBRATORS, *OTHERS], ids=lambda case: "-".join(case[:2]))
def test_remedies_of_errors(case: tuple[Any, ...]) -> None:
    follow(*case)


def test_remedies_for_parameters_that_do_not_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classwise, "_MAX_HESSIAN_BYTES", 2 * 6**2 * 8)
    with pytest.raises(ValueError, match=r"bundles .*PlattScaling"):
        hetcal.ClassWise(hetcal.VectorScaling(), 0.1).fit(Z, Y)
    hetcal.ClassWise(hetcal.VectorScaling(), 0.1, bundles=2).fit(Z, Y)
    hetcal.ClassWise(hetcal.PlattScaling(), 0.1).fit(Z, Y)


# Keyword of the remedy, call that warns, and calls that follow the remedy
WARNINGS: list[tuple[Any, ...]] = [
    ("gamma", lambda: cts().fit(Z, RIGHT_IN_0), lambda: cts(0.3).fit(Z, RIGHT_IN_0),
     lambda: cts().fit(np.tile(Z, (2, 1)), np.append(RIGHT_IN_0, Y))),
    ("more rows", lambda: cts().fit(Z, Z.argmax(axis=1)), lambda: cts().fit(Z, Y)),
    ("more rows", lambda: cts("cv").fit(Z, Z.argmax(axis=1)), lambda: cts("cv").fit(Z, Y)),
    ("more rows", lambda: ts().fit(Z, Z.argmax(axis=1)), lambda: ts().fit(Z, Y)),
    ("more rows", lambda: hetcal.PlattScaling().fit(Z, Z.argmax(axis=1)),
     lambda: hetcal.PlattScaling().fit(Z, Y)),
    ("gamma", lambda: hetcal.ClassWise(hetcal.PlattScaling()).fit(Z, RIGHT_IN_0),
     lambda: hetcal.ClassWise(hetcal.PlattScaling(), 0.5).fit(Z, RIGHT_IN_0)),
    ("ridge", lambda: hetcal.VectorScaling().fit(SHIFTED, Z.argmax(axis=1)),
     lambda: hetcal.VectorScaling().fit(SHIFTED, Y),
     lambda: hetcal.VectorScaling(ridge=0.001).fit(SHIFTED, Z.argmax(axis=1))),
    ("fold_groups", lambda: cts("cv").fit(np.repeat(Z, 2, axis=0), np.repeat(Y, 2)),
     lambda: cts("cv").fit(Z, Y),
     lambda: cts("cv").fit(np.tile(Z, (2, 1)), np.tile(Y, 2), fold_groups=np.tile(np.arange(300), 2))),
    ("two columns", lambda: hetcal.evaluate(BINARY_PROBS.max(axis=1), Y2 & (np.arange(300) % 4 == 0)),
     lambda: hetcal.evaluate(BINARY_PROBS, Y2)),
    ("fitted on", lambda: hetcal.evaluate(logits=Z, labels=Y, calibrator=ts().fit(Z, Y)),
     lambda: hetcal.evaluate(logits=Z[200:], labels=Y[200:], calibrator=ts().fit(Z[:200], Y[:200]))),
]  # fmt: skip


@pytest.mark.parametrize("case", WARNINGS, ids=lambda case: case[0])
def test_remedies_of_warnings(case: tuple[Any, ...]) -> None:
    keyword, call, *corrected = case
    with pytest.warns(hetcal.CalibrationWarning, match=keyword):
        call()
    for corrected_call in corrected:  # a warning would be an error
        corrected_call()


# -- files and the command line -------------------------------------------------------------------

LABELLED = {"logits": Z, "labels": Y}
COLUMNS = [*Z.T]
PYTHON_ADVICE = re.compile(
    r"hetcal\.(?!json|npz)|\bnp\.|numpy|\bimport\b|\(\)|x\[~|\.toarray|astype|"
    r"\b(logits|probs|labels|groups|class_names|predicted|sizes|gamma|loss|cv|ridge|floor|model|keep_decision)="
)


def table(names: str, *columns: Any) -> str:
    """Text of a CSV file."""
    lines = zip(*(np.asarray(c).tolist() for c in columns), strict=True)
    return "\n".join([names, *(",".join(map(str, line)) for line in lines), ""])


def write(folder: Path, content: Any, name: str) -> Path:
    """Write a logits file: .csv from text, .npz from a mapping or bytes, .npy from an array."""
    suffix = {str: "csv", dict: "npz", np.ndarray: "npy", bytes: "npz"}[type(content)]
    path = folder / f"{name}.{suffix}"
    if isinstance(content, str):
        path.write_text(content, encoding="utf-8")
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    else:
        np.save(path, content)
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """Exit code and messages of a command."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        code = main([str(word) for word in words])
    return code, capsys.readouterr().err


ZERO = 0 * Z[:, 0]
SCORES = np.stack([ZERO, Z[:, 0]], axis=1)
NAMED = table("label,a,b,c", TEXTS, *COLUMNS)
LOGIT_COLUMNS = table("label,logit_a,logit_b,logit_c", TEXTS, *COLUMNS)
# Contents of an invalid file, keyword of the remedy, and contents of files that follow it
BAD_FILES: dict[str, tuple[Any, ...]] = {
    "one score": (table("label,score", Y2, Z[:, 0]), "0 and s", table("label,no,yes", Y2, *SCORES.T)),
    "one probability": (
        table("label,p", Y2, P[:, 0]),
        "prob_<class>",
        table("label,prob_1", Y2, P[:, 0]),
        table("label,prob_yes", Y2, P[:, 0]),
    ),
    "scores as probabilities": (
        table("label,prob_1", Y2, Z[:, 0]),
        "0 and s",
        table("label,logit_0,logit_1", Y2, *SCORES.T),
    ),
    "probability of class 0": (
        table("label,prob_0", Y2, 1 - P[:, 0]),
        "class 1",
        table("label,prob_1", Y2, P[:, 0]),
        table("label,prob_0,prob_1", Y2, *BINARY_PROBS.T),
    ),
    "three labels, one probability": (
        table("label,prob_1", Y, P[:, 1]),
        "each class",
        table("label,prob_0,prob_1,prob_2", Y, *P.T),
    ),
    "three names, one probability": (
        table("label,prob_a", TEXTS, P[:, 0]),
        "each class",
        table("label,prob_a,prob_b,prob_c", TEXTS, *P.T),
    ),
    "names, one numbered probability": (
        table("label,prob_1", np.array(["no", "yes"])[Y2], P[:, 0]),
        "prob_<class>",
        table("label,prob_yes", np.array(["no", "yes"])[Y2], P[:, 0]),
    ),
    "blank label, one probability": (
        table("label,prob_yes", np.where(np.arange(300) == 5, "", "yes"), P[:, 0]),
        "drop the row",
        table("label,prob_yes", np.array(["no", "yes"])[Y2], P[:, 0]),
    ),
    "decimal commas": (
        table("label,a,b,c", TEXTS, *COLUMNS).replace(",", ";").replace(".", ","),
        "points",
        table("label,a,b,c", TEXTS, *COLUMNS).replace(",", ";"),
    ),
    "decimal commas between commas": (
        table("label,a,b,c", TEXTS, *COLUMNS).replace(".", ","),
        "decimal points",
        NAMED,
    ),
    "array of scores": ({"logits": Z[:, 0], "labels": Y2}, "0 and s", {"logits": SCORES, "labels": Y2}),
    "array of scores as probabilities": (
        {"probs": Z[:, 0], "labels": Y2},
        "0 and s",
        {"logits": SCORES, "labels": Y2},
    ),
    "three dimensions": ({"logits": Z[:, :, None], "labels": Y}, "row per sample", LABELLED),
    "probabilities as logits": (
        {"logits": P, "labels": Y},
        "prob_<class>",
        {"probs": P, "labels": Y},
        table("label,prob_a,prob_b,prob_c", TEXTS, *P.T),
    ),
    "logits as probabilities": ({"probs": Z, "labels": Y}, "logit_<class>", LABELLED, LOGIT_COLUMNS),
    "sums": ({"probs": P * 0.8, "labels": Y}, "normalise", {"probs": P, "labels": Y}),
    "NaN": (
        {"logits": NAN, "labels": Y},
        "drop the row",
        {"logits": np.delete(NAN, 5, 0), "labels": np.delete(Y, 5)},
    ),
    "text labels": (
        {"logits": Z, "labels": TEXTS},
        "class_names",
        {**LABELLED, "labels": TEXTS, "class_names": NAMES},
        LABELLED,
    ),
    "unknown label": (
        {**LABELLED, "labels": np.where(Y == 1, "d", TEXTS), "class_names": NAMES},
        "drop the row",
        {**LABELLED, "labels": TEXTS, "class_names": NAMES},
    ),
    "labels from 1": ({"logits": Z, "labels": Y + 1}, "number the classes", LABELLED),
    "one-hot labels": ({"logits": Z, "labels": np.eye(3)[Y]}, "class index", LABELLED),
    "no labels": ({"logits": Z}, "'label'", LABELLED, NAMED),
    "missing groups": (
        {**LABELLED, "groups": np.full(300, np.nan)},
        "a group of their own",
        {**LABELLED, "groups": NUMBERED},
    ),
    "fractional groups": (
        {**LABELLED, "groups": Z[:, 0]},
        "bin the numbers",
        {**LABELLED, "groups": np.digitize(Z[:, 0], [0])},
    ),
    "row numbers": (
        table("id,label,a,b,c", np.arange(300), TEXTS, *COLUMNS),
        "logit_<class>",
        table("id,label,logit_a,logit_b,logit_c", np.arange(300), TEXTS, *COLUMNS),
    ),
    "text column": (
        table("who,label,a,b,c", GROUPS, TEXTS, *COLUMNS),
        "logit_<class>",
        table("who,label,logit_a,logit_b,logit_c", GROUPS, TEXTS, *COLUMNS),
    ),
    "positions as labels": (
        table("label,10,20,30", Y, *COLUMNS),
        "0, 1, 2",
        table("label,0,1,2", Y, *COLUMNS),
    ),
    "repeated class": (
        table("label,a,a,c", np.where(Y > 0, "c", "a"), *COLUMNS),
        "rename all but one",
        NAMED,
    ),
    "repeated label": (table("label,label,b,c", Y, *COLUMNS), "remove all but one", NAMED),
    "repeated number": (
        table("label,1,logit1,2", Y, *COLUMNS),
        "rename or remove one",
        table("label,0,logit1,2", Y, *COLUMNS),
    ),
    "long number": (
        table(f"label,0,1,{'2' * 30}", Y, *COLUMNS),
        "shorter name",
        table("label,0,1,2", Y, *COLUMNS),
    ),
    "objects": ({"logits": Z.astype(object), "labels": Y}, "numeric array", LABELLED),
    "damaged": (b"PK\3\4damaged", "write it again", LABELLED),
    "no classes": (table("label", Y), "a column for each class", table("label,0,1,2", Y, *COLUMNS)),
    "complex": ({"logits": Z + 0j, "labels": Y}, "real part", LABELLED),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_remedies_for_files(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, keyword, *corrected = BAD_FILES[name]
    bad = write(tmp_path, content, "bad")
    hetcal.save(ts().fit(Z, Y), tmp_path / "ts.json")
    code, message = run(capsys, "evaluate", bad)
    assert code == 2
    assert keyword in message
    _, applied = run(capsys, "apply", tmp_path / "ts.json", bad, "-o", tmp_path / "out.npz")
    assert not PYTHON_ADVICE.search(message + applied)
    for i, fixed in enumerate(corrected):
        assert run(capsys, "evaluate", write(tmp_path, fixed, f"good{i}")) == (0, "")


# Readable files for which some commands warn or raise an error
ODD_FILES: dict[str, Any] = {
    "copies": {"logits": np.repeat(Z[:60], 2, axis=0), "labels": np.repeat(Y[:60], 2)},
    "separable": {"logits": Z, "labels": Z.argmax(axis=1)},
    "separable in one class": {"logits": Z, "labels": RIGHT_IN_0},
    "few rows": {"logits": Z[:2], "labels": Y[:2]},
    "one fold group": {**LABELLED, "fold_groups": np.zeros(300)},
    "text groups": {**LABELLED, "groups": GROUPS},
    "wide test rows": {f"val_{k}": v for k, v in LABELLED.items()}
    | {"test_logits": P @ np.ones((3, 4)), "test_labels": Y},
    "names": {**LABELLED, "class_names": NAMES[:2]},
    "array": Z,
    "empty": {"logits": Z[:0], "labels": Y[:0]},
    "other arrays": {"values": Z},
}
FIT_OPTIONS = [
    "ts", "vs", "platt", "cts", "cts --gamma cv", "cts --by-group", "classwise-platt",
    "classwise-vs --gamma cv", "classwise-isotonic --gamma 0.5", "ts --gamma 1", "isotonic --in-batches",
    "ts --in-batches", "ms", "binary", "binary --in-batches", "auto", "auto --change-decisions",
    "vs --change-decisions",
]  # fmt: skip
COMMANDS = [
    "evaluate FILE",
    "evaluate FILE -c ts.json",
    "evaluate FILE -c groups.json",
    "diagnose FILE",
    *(f"fit FILE -o out.json -m {options}" for options in FIT_OPTIONS),
    "apply ts.json FILE -o out.npz",
    "apply groups.json FILE -o out.npz",
    "report FILE --format sheet",
    "report FILE --fail-over max_ece",
    "plan FILE --target -1",
]


@pytest.mark.parametrize("name", ODD_FILES)
def test_the_command_line_gives_no_python_advice(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hetcal.save(ts().fit(Z, Y), "ts.json")
    hetcal.save(fit_groups(NUMBERED), "groups.json")
    path = write(tmp_path, ODD_FILES[name], "odd")
    messages = "".join(
        run(capsys, *(path if word == "FILE" else word for word in command.split()))[1]
        for command in COMMANDS
    )
    assert messages
    assert PYTHON_ADVICE.search(messages) is None


def test_remedies_of_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = write(tmp_path, LABELLED, "rows")
    with_groups = write(tmp_path, {**LABELLED, "groups": GROUPS}, "grouped")
    sheet = write(tmp_path, table("label,group,a,b,c", TEXTS, GROUPS, *COLUMNS), "sheet")
    numbered = write(tmp_path, {**LABELLED, "groups": NUMBERED}, "numbered")
    array = write(tmp_path, Z, "scores")
    np.save("truth.npy", Y)
    fit: list[Any] = ["fit", "-o", "cal.json", "-m"]
    apply: list[Any] = ["apply", "cal.json", "-o", "out.csv"]
    truth = ["--labels", "truth.npy", "--in-batches"]

    def check(invalid: list[Any], keyword: str, *corrected: list[Any]) -> None:
        code, message = run(capsys, *invalid)
        assert code == 2
        assert re.search(keyword, message), message
        for words in corrected:
            assert run(capsys, *words) == (0, "")

    by_group = [*fit, "cts", "--by-group"]
    check([*by_group, rows], "'group'.*'groups'", [*by_group, sheet], [*by_group, with_groups])
    check([*apply, rows], "'group'.*'groups'", [*apply, sheet], [*apply, with_groups])
    check([*apply, numbered], "groups must", [*by_group, numbered], [*apply, numbered])
    check(
        [*fit, "ts", "--gamma", "1", rows],
        "cts and classwise-platt",
        [*fit, "cts", "--gamma", "1", rows],
        [*fit, "classwise-platt", "--gamma", "1", rows],
    )
    check(
        [*fit, "classwise-vs", "--gamma", "bayes", rows],
        "--method cts.*--method classwise-platt",
        [*fit, "cts", "--gamma", "cv", rows],
        [*fit, "classwise-platt", "--gamma", "bayes", rows],
    )
    check([*fit, "ts", array], "--labels", [*fit, "ts", array, *truth[:2]])
    check(
        [*fit, "isotonic", array, *truth],
        "ts, vs, .*cts.*--in-batches",
        [*fit, "isotonic", array, *truth[:2]],
        *([*fit, method, array, *truth] for method in ("ts", "vs", "cts")),
    )
    check([*fit, "ts", rows, "--in-batches"], "--in-batches", [*fit, "ts", rows])
    check([*fit, "ts", write(tmp_path, Z[:, 0], "flat"), *truth], "0 and s", [*fit, "ts", array, *truth])
    run(capsys, *fit, "ts", sheet)
    new_names = write(tmp_path, table("label,c,a,b", np.array(list("cab"))[Y], *1.1 * Z.T), "names")
    new_order = write(tmp_path, table("label,a,b,c", Y, *1.1 * Z.T), "order")
    check(
        ["evaluate", write(tmp_path, table("label,c,a,b", Y, *COLUMNS), "ordered"), "-c", "cal.json"],
        "names, .*order a, b, c",
        *(["evaluate", path, "-c", "cal.json"] for path in (new_names, new_order)),
    )
    check(["fit", "-o", "no/cal.json", rows, "-m", "ts"], "create it")
    Path("no").mkdir()
    check(["fit", "-o", "no", rows, "-m", "ts"], "file in it", ["fit", "-o", "no/cal.json", rows, "-m", "ts"])
    check(["plan", write(tmp_path, {"logits": Z[:20], "labels": Y[:20]}, "few")], "more rows")
    check(["plan", rows, "--target", "0.001"], "higher target")


def test_remedies_for_parquet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.chdir(tmp_path)

    def save(name: str, prefix: str = "logit_", values: Any = Z, labels: Any = Y, **more: Any) -> str:
        columns = {f"{prefix}{c}": values[:, k] for k, c in enumerate(NAMES[: values.shape[1]])}
        parquet.write_table(pa.table({"label": labels, **columns, **more}), name)
        return name

    fit = ["fit", "-m", "ts", "-o", "cal.json", "--in-batches"]
    good, logs = save("good.parquet"), save("logs.parquet", values=np.log(P))
    probs = save("probs.parquet", "prob_", P)
    for bad, keyword, command, corrected in (
        (save("split.parquet", split=["val"] * 300), "without this column", fit, good),
        (probs, "--in-batches", fit[:-1], probs),
        (probs, "logarithms", fit, logs),
        (save("bare.parquet", "", P), "logarithms", fit, logs),
        (save("one.parquet", "", Z[:, :1]), "0 and s", fit, save("two.parquet", "", SCORES, Y2)),
    ):
        code, message = run(capsys, *fit, bad)
        assert code == 2
        assert keyword in message
        assert not PYTHON_ADVICE.search(message)
        assert run(capsys, *command, corrected) == (0, "")
    parquet.write_table(pa.table({"label": Y, "a": Z[:, 0], "b": TEXTS}), "text.parquet")
    read = hetcal.Batches.from_parquet
    follow("column 'y'", "", lambda: read(good, labels="y"), lambda: read(good, labels="label"))
    follow(
        "logits",
        "logits=",
        lambda: read("text.parquet"),
        lambda: read(good, logits=["logit_a", "logit_b"]),
    )


def test_remedies_for_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "array.npz").open("wb") as file:
        np.save(file, Z)
    np.save(tmp_path / "truth.npy", Y)
    with pytest.raises(ValueError, match=r"name it \.npy"):
        hetcal.load_logits(tmp_path / "array.npz")
    renamed = (tmp_path / "array.npz").rename(tmp_path / "logits.npy")
    assert hetcal.load_logits(renamed, labels=tmp_path / "truth.npy").val.logits.shape == (300, 3)
    monkeypatch.setattr(logits_files, "_MAX_UNPACKED_BYTES", 1000)
    monkeypatch.setattr(logits_files, "_MAX_EXPANSION", 1)
    np.savez_compressed(tmp_path / "a.npz", logits=np.zeros((300, 3)), labels=Y)
    with pytest.raises(ValueError, match=r"as \.npy$"):
        hetcal.load_logits(tmp_path / "a.npz")
    hetcal.load_logits(renamed, labels=tmp_path / "truth.npy")


def test_remedy_for_a_damaged_calibrator(tmp_path: Path) -> None:
    path, fitted = tmp_path / "cal.json", ts().fit(Z, Y)
    hetcal.save(fitted, path)
    text = path.read_text(encoding="utf-8")
    for damaged in (text[:-9], json.dumps(json.loads(text) | {"checksum": "0"})):
        path.write_text(damaged, encoding="utf-8")
        with pytest.raises(ValueError, match="save it again"):
            hetcal.load(path)
    hetcal.save(fitted, path)
    assert hetcal.load(path).alpha_ == fitted.alpha_


@pytest.mark.parametrize("limit", ["max_ece", "max_ece_excess=", "max"])
def test_remedies_for_limits(limit: str) -> None:
    from hetcal.report import check_request

    with pytest.raises(ValueError, match=r"max_ece_excess=0.05|uncal_"):
        check_request("html", [limit])
    check_request("html", ["max_ece_excess=0.05", "uncal_max_ece=0.05"])


def test_messages_name_the_packages_of_existing_extras() -> None:
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    sources = [path.read_text(encoding="utf-8") for path in (root / "src" / "hetcal").rglob("*.py")]
    call = r"""(?:missing_package|install_command)\((?:f?"[^"]+", )?["'](\w+)["']\)"""
    named = {name for text in sources for name in re.findall(call, text)}
    assert len(named) > 5
    for name in named:
        words = shlex.split(install_command(name))
        assert words[:2] == ["pip", "install"]
        own = {line for line in extras[name] if not line.startswith("hetcal[")}
        assert own <= set(words[2:])  # the rest comes from the extras that this one includes
        assert not any(word.startswith("hetcal") for word in words)


def test_messages_without_metadata_name_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", not_installed)
    assert 'pip install ".[plot]"' in str(missing_package("plots need matplotlib", "plot"))


# -- optional packages ----------------------------------------------------------------------------


def test_remedies_of_dask(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    da, dd = pytest.importorskip("dask.array"), pytest.importorskip("dask.dataframe")
    dask = sys.modules["dask"]
    from hetcal.dask import rows

    def as_blocks(*parts: Any) -> Any:
        delayed = [da.from_delayed(dask.delayed(part), (100,), dtype=object) for part in parts]
        return da.concatenate(delayed)

    class Client:
        asynchronous = True
        persist = compute = print

    class SynchronousClient(Client):
        asynchronous = False

    z, y = da.from_array(Z, chunks=(100, 3)), da.from_array(Y, chunks=100)
    unknown = z[da.from_array(np.ones(300, bool), chunks=100)]
    numbers = dd.from_pandas(frame(Z, NAMES).assign(label=Y), npartitions=2)
    texts = dd.from_pandas(frame(Z, NAMES)[["a"]].assign(label=Y, t=TEXTS), npartitions=1)
    groups = as_blocks(GROUPS[:100], NUMBERED[100:200], GROUPS[200:])
    cases: list[tuple[Any, ...]] = [
        ("logits", "hetcal.Batches", lambda: rows(Z, Y), lambda: ts().fit(hetcal.Batches(Z, Y))),
        (
            "labels",
            "compute_chunk_sizes()",
            lambda: rows(unknown, Y),
            lambda: ts().fit(rows(unknown.compute_chunk_sizes(), Y)),
        ),
        ("labels", "name", lambda: rows(numbers, Y), lambda: ts().fit(rows(numbers, "label"))),
        (
            "logits",
            "columns=",
            lambda: rows(texts, "label"),
            lambda: rows(numbers, "label", columns=["a", "b"]),
        ),
        (
            "groups",
            "strings",
            lambda: cts().fit(rows(z, y, groups=groups)),
            lambda: cts().fit(rows(z, y, groups=da.from_array(GROUPS, chunks=100))),
        ),
        (
            "client",
            "create it without",
            lambda: rows(z, Y, client=Client()),
            lambda: rows(z, Y, client=SynchronousClient()),
        ),
    ]
    for case in cases:
        follow(*case)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").touch()
    follow(
        "folder",
        "another",
        lambda: rows(z, Y).to_parquet(tmp_path / "old"),
        lambda: rows(z, Y).to_parquet(tmp_path / "new"),
    )
    lists = pytest.importorskip("pandas").DataFrame({"z": [list(row) for row in Z], "label": Y})

    def fit_lists() -> Any:
        return ts().fit(rows(dd.from_pandas(lists, npartitions=1), "label"))

    with dask.config.set({"dataframe.convert-string": True}):
        follow("column 'z'", "'dataframe.convert-string': False", fit_lists)
    with dask.config.set({"dataframe.convert-string": False}):
        fit_lists()


def test_remedies_of_torch() -> None:
    torch = pytest.importorskip("torch")
    from hetcal._validate import check_tensors
    from hetcal.torch import Calibration, collect_logits

    class ReturnsDict(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return {"scores": x}

    class ReturnsTensor(ReturnsDict):
        def forward(self, x: Any) -> Any:
            return super().forward(x)["scores"]

    z, y, nan = torch.from_numpy(Z).float(), torch.from_numpy(Y), torch.from_numpy(NAN)
    module, module_by_group = Calibration(ts().fit(Z, Y)), Calibration(fit_groups())
    loader = [(z, y)]
    cases: list[tuple[Any, ...]] = [
        ("logits", "row per sample", lambda: module(z[0]), lambda: module(z[0].reshape(1, -1))),
        (
            "groups",
            "group_names",
            lambda: module_by_group(z),
            lambda: module_by_group(z, torch.from_numpy(NUMBERED)),
        ),
        (
            "logits",
            "drop the row",
            lambda: check_tensors(nan, y, None),
            lambda: check_tensors(nan[6:], y[6:], None),
        ),
        (
            "sample_weight",
            "leave it out",
            lambda: check_tensors(z, y, torch.zeros(300)),
            lambda: check_tensors(z, y, None),
        ),
        ("labels", "", lambda: check_tensors(z, y + 0.5, None), lambda: check_tensors(z, y, None)),
        (
            "sample_weight",
            "weight",
            lambda: check_tensors(z, y, -torch.ones(300)),
            lambda: check_tensors(z, y, torch.ones(300)),
        ),
        (
            "net",
            "module",
            lambda: collect_logits(ReturnsDict(), loader, progress=False),
            lambda: collect_logits(ReturnsTensor(), loader, progress=False),
        ),
    ]
    for case in cases:
        follow(*case)


def test_remedies_of_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    from hetcal.onnx import append, export

    half, single = TensorProto.FLOAT16, TensorProto.FLOAT

    def model(input_type: int, output_type: int) -> Any:
        types = (("x", input_type), ("z", output_type))
        ends = [helper.make_tensor_value_info(name, kind, ["n", 3]) for name, kind in types]
        node = helper.make_node("Cast", ["x"], ["z"], to=output_type)
        graph = helper.make_graph([node], "net", ends[:1], ends[1:])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    fitted, path = ts().fit(Z, Y), tmp_path / "cal.onnx"
    follow(
        "output",
        "model=",
        lambda: export(fitted, path, output="z"),
        lambda: export(fitted, path, model(single, single), output="z"),
    )
    follow(
        "output",
        "cast",
        lambda: append(fitted, model(half, half), "z"),
        lambda: append(fitted, model(half, single), "z"),
    )


def test_remedies_of_classifiers_in_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("skl2onnx")
    from hetcal.onnx import export

    fitted, path = classify(LogisticRegression()), tmp_path / "whole.onnx"
    follow(
        "example",
        "X[:5]",
        lambda: export(fitted, path),
        lambda: export(fitted, path, example=X4[:5]),
    )
