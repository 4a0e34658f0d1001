"""Every remedy that an error or a warning names works when it is followed."""

from __future__ import annotations

import json
import re
import sys
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Perceptron
from sklearn.model_selection import KFold, ShuffleSplit
from sklearn.svm import SVC

import hetcal
from hetcal import corruption, files, planning
from hetcal.__main__ import main
from hetcal._numeric.threads import n_threads
from hetcal.calibrators import classwise
from hetcal.compare import compare
from hetcal.partition import bundle_classes, by_predicted_class

RNG = np.random.default_rng(7)
Z = RNG.normal(size=(300, 3)) * 3
Y = np.where(RNG.random(300) < 0.75, Z.argmax(axis=1), RNG.integers(0, 3, 300))
P = np.exp(Z - Z.max(axis=1, keepdims=True))
P /= P.sum(axis=1, keepdims=True)
Y2 = (Z[:, 0] + RNG.logistic(size=300) > 0).astype(int)  # of the first score alone
NAMES = ["a", "b", "c"]
TEXTS = np.array(NAMES)[Y]
GROUPS = np.array(["x", "y"])[np.arange(300) % 2]
NUMBERED = np.arange(300) % 2
X4 = RNG.normal(size=(120, 4))
Y3 = (X4[:, 0] > 0).astype(int) + (X4[:, 1] > 0)
NAN = np.where(np.arange(300)[:, None] == 5, np.nan, Z)
RIGHT_IN_0 = np.where(Z.argmax(axis=1) == 0, 0, Y)  # every prediction of class 0 is right
SHIFTED = Z + np.array([0, 0, 9])  # of which only a bias per class gets every label right
MASKED = np.ma.masked_array(Z, mask=NAN != NAN)
Do = Callable[[], Any]


def ts() -> Any:
    return hetcal.TemperatureScaling()


def cts(gamma: Any = np.inf, **options: Any) -> Any:
    return hetcal.ClassWiseTemperatureScaling(gamma, **options)


def batches(**options: Any) -> Any:
    return hetcal.Batches([(Z[:150], Y[:150]), (Z[150:], Y[150:])], **options)


def frame(values: Any, names: list[str]) -> Any:
    return pytest.importorskip("pandas").DataFrame(values, columns=names)


def rows_of(**change: Any) -> Any:
    """Batches of mappings, with one part of each changed."""
    return hetcal.Batches([{"logits": Z, "labels": Y} | {name: part} for name, part in change.items()])


def sequence(*items: Any) -> Callable[[], Any]:
    """A function that gives the same iterator at every call."""
    once = iter(items)
    return lambda: once


def by_group(groups: Any = GROUPS) -> Any:
    return cts().fit(Z, Y, groups=groups)


def same_map(one: Any, other: Any, probs: Any = P) -> bool:
    return bool(np.allclose(one.predict_proba(Z), other.predict_proba(probs=probs), atol=1e-6))


def case(name: str, bad: Do, remedy: str, *good: Do) -> Any:
    """What fails, the remedy it names, and what follows it."""
    return pytest.param(bad, remedy, good, id=name)


def follow(bad: Do, remedy: str, good: tuple[Do, ...]) -> None:
    with pytest.raises((ValueError, TypeError, OSError, KeyError), match=remedy) as caught:
        bad()
    assert "\n" not in str(caught.value)
    for call in good:
        result = call()
        assert result is not False


ARRAYS = [
    case(
        "one-score",
        lambda: ts().fit(Z[:, 0], Y2),
        r"use hetcal\.binary_logits\(scores\)",
        lambda: ts().fit(hetcal.binary_logits(Z[:, 0]), Y2),
    ),
    case(
        "one-column",
        lambda: ts().fit(Z[:, :1], Y2),
        r"use hetcal\.binary_logits\(scores\)",
        lambda: ts().fit(hetcal.binary_logits(Z[:, :1]), Y2),
    ),
    case(
        "three-dimensions",
        lambda: ts().fit(Z[:, :, None], Y),
        "Reshape your data to one row per sample",
        lambda: ts().fit(Z.reshape(300, -1), Y),
    ),
    case(
        "scores-as-matrix", lambda: hetcal.binary_logits(Z), "calibrators take logits", lambda: ts().fit(Z, Y)
    ),
    case(
        "probabilities",
        lambda: ts().fit(P, Y),
        "pass probabilities as probs=",
        lambda: same_map(ts().fit(Z, Y), ts().fit(probs=P, labels=Y)),
    ),
    case(
        "probabilities-to-predict",
        lambda: ts().fit(Z, Y).predict_proba(P),
        "pass probabilities as probs=",
        lambda: same_map(ts().fit(Z, Y), ts().fit(Z, Y)),
    ),
    case(
        "probabilities-to-judge",
        lambda: hetcal.evaluate(logits=P, labels=Y),
        "pass probabilities as probs=",
        lambda: hetcal.evaluate(probs=P, labels=Y),
    ),
    case(
        "probabilities-to-diagnose",
        lambda: hetcal.diagnose(P, Y),
        "pass probabilities as probs=",
        lambda: hetcal.diagnose(probs=P, labels=Y),
    ),
    case(
        "probabilities-to-compare",
        lambda: compare(P, Y, methods={"TS": ts()}),
        r"hetcal\.to_logits\(probs\)",
        lambda: compare(hetcal.to_logits(P), Y, methods={"TS": ts()}),
    ),
    case(
        "probabilities-to-bundle",
        lambda: bundle_classes(P, Y, 2),
        r"hetcal\.to_logits\(probs\)",
        lambda: bundle_classes(hetcal.to_logits(P), Y, 2).tolist() == bundle_classes(Z, Y, 2).tolist(),
    ),
    case(
        "probabilities-to-slice",
        lambda: by_predicted_class(P),
        r"hetcal\.to_logits\(probs\)",
        lambda: by_predicted_class(hetcal.to_logits(P)).tolist() == P.argmax(axis=1).tolist(),
    ),
    case(
        "probabilities-to-plan",
        lambda: planning.bound_check(P, Y, Z, Y),
        r"hetcal\.to_logits\(probs\)",
        lambda: planning.bound_check(hetcal.to_logits(P), Y, Z, Y),
    ),
    case(
        "probabilities-in-batches",
        lambda: ts().fit(hetcal.Batches([(P, Y)])),
        "write their logarithms",
        lambda: ts().fit(hetcal.Batches([(np.log(P), Y)])),
    ),
    case(
        "batches-as-probs",
        lambda: ts().fit(probs=batches()),
        r"hetcal\.to_logits\(probs, floor=",
        lambda: ts().fit(hetcal.Batches([(hetcal.to_logits(P, floor=1e-9), Y)])),
    ),
    case("logits-and-probs", lambda: ts().fit(Z, Y, probs=P), "pass one of them", lambda: ts().fit(Z, Y)),
    case(
        "neither",
        lambda: ts().fit(labels=Y),
        "pass logits, or probabilities as probs=",
        lambda: ts().fit(Z, Y),
        lambda: ts().fit(probs=P, labels=Y),
    ),
    case(
        "nan",
        lambda: ts().fit(NAN, Y),
        "drop the row",
        lambda: ts().fit(np.delete(NAN, 5, 0), np.delete(Y, 5)),
    ),
    case("complex", lambda: ts().fit(Z + 0j, Y), "take the real part", lambda: ts().fit((Z + 0j).real, Y)),
    case(
        "masked",
        lambda: ts().fit(MASKED, Y),
        r"keep the rows ~np\.ma\.getmaskarray\(logits\)\.any\(axis=1\)",
        lambda: ts().fit(MASKED[kept := ~np.ma.getmaskarray(MASKED).any(axis=1)], Y[kept]),
    ),
    case(
        "masked-number",
        lambda: ts().fit(Z, Y, sample_weight=np.ma.masked),
        "pass a number",
        lambda: ts().fit(Z, Y, sample_weight=1.0),
    ),
    case(
        "sparse",
        lambda: ts().fit(sparse(Z), Y),
        r"call \.toarray\(\)",
        lambda: ts().fit(sparse(Z).toarray(), Y),
    ),
    case(
        "one-hot",
        lambda: ts().fit(Z, np.eye(3)[Y]),
        "pass the class index of each row",
        lambda: ts().fit(Z, np.eye(3)[Y].argmax(axis=1)),
    ),
    case(
        "labels-from-1", lambda: ts().fit(Z, Y + 1), "number the classes in the order", lambda: ts().fit(Z, Y)
    ),
    case(
        "text-labels",
        lambda: ts().fit(Z, TEXTS),
        "pass class_names=.* or number the classes in the order",
        lambda: ts().fit(Z, TEXTS, class_names=NAMES).alpha_ == ts().fit(Z, Y).alpha_,
    ),
    case(
        "text-labels-judged",
        lambda: hetcal.evaluate(P, TEXTS),
        "pass class_names=",
        lambda: hetcal.evaluate(P, TEXTS, NAMES),
    ),
    case(
        "text-labels-diagnosed",
        lambda: hetcal.diagnose(Z, TEXTS),
        "pass class_names=",
        lambda: hetcal.diagnose(Z, TEXTS, class_names=NAMES),
    ),
    case(
        "text-labels-reported",
        lambda: files_of(Z, TEXTS),
        "pass class_names=",
        lambda: files_of(Z, TEXTS, class_names=NAMES).val.labels.tolist() == Y.tolist(),
    ),
    case(
        "text-labels-in-batches",
        lambda: ts().fit(hetcal.Batches([(Z, TEXTS)])),
        "row 0; number the classes in the order",
        lambda: ts().fit(hetcal.Batches([(Z, Y)])),
    ),
    case(
        "text-labels-compared",
        lambda: compare(Z, TEXTS, class_names=NAMES),
        "row 0; number the classes",
        lambda: compare(Z, Y, methods={"TS": ts()}, class_names=NAMES),
    ),
    case(
        "unknown-name",
        lambda: ts().fit(Z[:4], list("abdc"), class_names=NAMES),
        "correct the label or drop",
        lambda: ts().fit(Z, TEXTS, class_names=NAMES),
        lambda: hetcal.Identity().fit(Z[[0, 1, 3]], list("abc"), class_names=NAMES),
    ),
    case(
        "name-twice",
        lambda: ts().fit(Z, TEXTS, class_names=list("abb")),
        "rename one",
        lambda: ts().fit(Z, TEXTS, class_names=NAMES),
    ),
    case(
        "negative-weight",
        lambda: ts().fit(Z, Y, sample_weight=-1.0 * (Y == 0)),
        "drop the row or correct its weight",
        lambda: ts().fit(Z[Y > 0], Y[Y > 0], sample_weight=np.ones((Y > 0).sum())),
        lambda: ts().fit(Z, Y, sample_weight=np.ones(300)),
    ),
    case(
        "huge-weights",
        lambda: ts().fit(Z, Y, sample_weight=np.full(300, 1e200)),
        "divide all weights",
        lambda: ts().fit(Z, Y, sample_weight=np.full(300, 1e200) / 1e200),
    ),
    case(
        "zero-weights",
        lambda: ts().fit(Z, Y, sample_weight=np.zeros(300)),
        "leave it out",
        lambda: ts().fit(Z, Y),
    ),
    case(
        "missing-groups",
        lambda: by_group(np.where(Y > 0, 1.0, np.nan)),
        "a group of their own",
        lambda: by_group(np.where(Y > 0, 1, 0)),
    ),
    case(
        "real-groups",
        lambda: by_group(Z[:, 0]),
        "cut numbers into ranges",
        lambda: by_group(np.digitize(Z[:, 0], [0])),
    ),
    case(
        "mixed-groups",
        lambda: by_group(mixed()),
        "turn all of them into strings",
        lambda: by_group([str(g) for g in mixed()]),
    ),
    case(
        "none-among-groups",
        lambda: by_group(np.where(Y > 0, 1, None)),
        "got None .* into strings",
        lambda: by_group(np.where(Y > 0, 1, None).astype(str)),
    ),
    case(
        "confidences",
        lambda: hetcal.evaluate(P.max(axis=1), Y),
        "pass predicted= as well",
        lambda: hetcal.evaluate(P.max(axis=1), Y, predicted=P.argmax(axis=1)),
    ),
    case(
        "confidences-scored",
        lambda: hetcal.metrics.nll(P.max(axis=1), Y),
        "pass predicted= as well",
        lambda: hetcal.metrics.nll(P.max(axis=1), Y, predicted=P.argmax(axis=1)),
    ),
    case(
        "floor-of-confidences",
        lambda: hetcal.noise_floor(P.max(axis=1)),
        "pass predicted= as well",
        lambda: hetcal.noise_floor(P.max(axis=1), predicted=P.argmax(axis=1), n_redraws=5),
    ),
    case(
        "one-probability",
        lambda: ts().fit(probs=P[:, 0], labels=Y),
        "pass a column for each class",
        lambda: ts().fit(probs=np.stack([P[:, 0], 1 - P[:, 0]], axis=1), labels=np.minimum(Y, 1)),
    ),
    case(
        "matrix-and-predicted",
        lambda: hetcal.metrics.ece(P, Y, predicted=Y),
        "leave predicted out",
        lambda: hetcal.metrics.ece(P, Y),
    ),
    case(
        "predicted-and-logits",
        lambda: hetcal.evaluate(logits=Z, labels=Y, predicted=Y),
        "goes with confidences",
        lambda: hetcal.evaluate(P.max(axis=1), Y, predicted=P.argmax(axis=1)),
    ),
    case(
        "nothing-to-judge",
        lambda: hetcal.evaluate(labels=Y),
        "scores as logits=",
        lambda: hetcal.evaluate(logits=Z, labels=Y),
        lambda: hetcal.evaluate(P, Y),
    ),
    case("scores-as-probs", lambda: hetcal.evaluate(Z, Y), "apply a softmax", lambda: hetcal.evaluate(P, Y)),
    case(
        "sums",
        lambda: hetcal.evaluate(P * 0.8, Y),
        "normalise the rows",
        lambda: hetcal.evaluate(P * 0.8 / (P * 0.8).sum(axis=1, keepdims=True), Y),
    ),
    case(
        "far-classes",
        lambda: hetcal.metrics.ece([0.9], [1 << 30], predicted=[0]),
        "number the classes from 0",
        lambda: hetcal.metrics.ece([0.9], [1], predicted=[0]),
    ),
    case(
        "fitted-columns-renamed",
        lambda: named_fit().predict_proba(frame(Z, ["a", "b", "d"])),
        "rename, add or drop columns",
        lambda: named_fit().predict_proba(frame(Z, NAMES)),
    ),
    case(
        "column-twice",
        lambda: named_fit().predict_proba(frame(Z, ["a", "c", "c"])),
        "a name of its own",
        lambda: named_fit().predict_proba(frame(Z, ["a", "c", "b"])),
    ),
    case(
        "names-in-another-order",
        lambda: ts().fit(frame(Z, NAMES), Y, class_names=list("cba")),
        "leave it out",
        lambda: ts().fit(frame(Z, NAMES), Y),
    ),
    case(
        "labels-count-columns",
        lambda: ts().fit(frame(Z, ["10", "20", "30"]), Y),
        "name these 0, 1, 2",
        lambda: ts().fit(frame(Z, ["0", "1", "2"]), Y),
    ),
    case(
        "number-twice",
        lambda: ts().fit(frame(Z, ["1", "logit_1", "2"]), Y),
        "rename or remove one",
        lambda: ts().fit(frame(Z, ["0", "logit_1", "2"]), Y),
    ),
    case(
        "long-number",
        lambda: ts().fit(frame(Z, ["0", "1", "2" * 30]), Y),
        "a shorter name",
        lambda: ts().fit(frame(Z, ["0", "1", "2"]), Y),
    ),
]

CALIBRATORS = [
    case(
        "gamma-of-vector-scaling",
        lambda: hetcal.ClassWise(hetcal.VectorScaling(), "cv").fit(Z, Y),
        "takes 'cv' and 'bayes'.*takes 'bayes'",
        lambda: hetcal.ClassWise(ts(), "cv").fit(Z, Y),
        lambda: hetcal.ClassWise(ts(), "bayes").fit(Z, Y),
        lambda: hetcal.ClassWise(hetcal.PlattScaling(), "bayes").fit(Z, Y),
    ),
    case(
        "gamma-and-loss",
        lambda: cts("cv", loss="brier").fit(Z, Y),
        "need loss='nll'",
        lambda: cts("cv").fit(Z, Y),
    ),
    case(
        "loss-of-base",
        lambda: hetcal.ClassWise(hetcal.TemperatureScaling(loss="brier")).fit(Z, Y),
        "set it on ClassWise",
        lambda: hetcal.ClassWise(ts(), loss="brier").fit(Z, Y),
    ),
    case(
        "base-class",
        lambda: hetcal.ClassWise(hetcal.PlattScaling).fit(Z, Y),
        "pass a calibrator object",
        lambda: hetcal.ClassWise(hetcal.PlattScaling()).fit(Z, Y),
    ),
    case(
        "centred-base",
        lambda: hetcal.ClassWise(hetcal.VectorScaling(center=True), 0.1).fit(Z, Y),
        "centre the logits yourself",
        lambda: hetcal.ClassWise(hetcal.VectorScaling(), 0.1).fit(Z - Z.mean(axis=1, keepdims=True), Y),
    ),
    case(
        "steps-of-classes",
        lambda: hetcal.Chain([hetcal.PlattScaling]).fit(Z, Y),
        "pass objects",
        lambda: hetcal.Chain([hetcal.PlattScaling()]).fit(Z, Y),
    ),
    case(
        "bounds",
        lambda: hetcal.TemperatureScaling((1, 0)).fit(Z, Y),
        r"default is \(0.01, 100\)",
        lambda: hetcal.TemperatureScaling((0.01, 100)).fit(Z, Y),
    ),
    case(
        "groups-forgotten",
        lambda: by_group().predict_proba(Z),
        "pass the group of every row",
        lambda: by_group().predict_proba(Z, groups=GROUPS),
    ),
    case(
        "groups-not-fitted",
        lambda: cts().fit(Z, Y).predict_proba(Z, groups=GROUPS),
        "fit with groups",
        lambda: by_group().predict_proba(Z, groups=GROUPS),
    ),
    case(
        "new-group",
        lambda: by_group().predict_proba(Z[:1], groups=["z"]),
        "fit again with rows of that group",
        lambda: by_group(np.where(Y == 0, "z", GROUPS)).predict_proba(Z[:1], groups=["z"]),
    ),
    case(
        "other-type-of-groups",
        lambda: by_group().predict_proba(Z, groups=NUMBERED),
        "use one type for both",
        lambda: by_group(NUMBERED).predict_proba(Z, groups=NUMBERED),
    ),
    case(
        "one-fold-group",
        lambda: cts("cv").fit(Z, Y, fold_groups=np.zeros(300)),
        "leave it out",
        lambda: cts("cv").fit(Z, Y),
    ),
    case(
        "errors-of-batches",
        lambda: ts().fit(Z, Y).predict_proba(batches(), return_std=True),
        "take some rows",
        lambda: ts().fit(Z, Y).predict_proba(Z[:9], return_std=True),
    ),
    case(
        "fit-in-batches",
        lambda: hetcal.TopLabelIsotonic().fit(batches()),
        "array of some rows, or use another",
        lambda: hetcal.TopLabelIsotonic().fit(Z[:200], Y[:200]),
        lambda: cts().fit(batches()),
    ),
    case(
        "slices-in-batches",
        lambda: hetcal.ClassWise(hetcal.TopLabelIsotonic()).fit(batches()),
        "array of some rows, or use another",
        lambda: hetcal.ClassWise(hetcal.TopLabelIsotonic()).fit(Z[:200], Y[:200]),
    ),
    case(
        "loss-in-batches",
        lambda: hetcal.TemperatureScaling(loss="ece").fit(batches()),
        "array of some rows",
        lambda: hetcal.TemperatureScaling(loss="ece").fit(Z[:200], Y[:200]),
    ),
    case(
        "fold-groups-in-batches",
        lambda: cts("cv").fit(batches(), fold_groups=GROUPS),
        "fit on arrays",
        lambda: cts("cv").fit(Z, Y, fold_groups=NUMBERED + 2 * (np.arange(300) // 10)),
    ),
    case(
        "labels-beside-batches",
        lambda: ts().fit(batches(), Y),
        "make it part of the batches",
        lambda: ts().fit(batches()),
    ),
    case(
        "array-beside-iterable",
        lambda: hetcal.Batches([Z], Y),
        r"yield \(logits, labels\) or mappings",
        lambda: ts().fit(hetcal.Batches([(Z, Y)])),
        lambda: ts().fit(rows_of(labels=Y)),
    ),
    case(
        "used-up",
        lambda: [*hetcal.Batches(sequence())],
        "return a new iterable at every call",
        lambda: ts().fit(hetcal.Batches(lambda: iter([(Z, Y)]))),
    ),
    case(
        "iterator",
        lambda: hetcal.Batches(iter([(Z, Y)])),
        "pass the function that makes it, or a list",
        lambda: ts().fit(hetcal.Batches(lambda: iter([(Z, Y)]))),
        lambda: ts().fit(hetcal.Batches([(Z, Y)])),
    ),
    case(
        "groups-of-two-types",
        lambda: cts().fit(grouped(GROUPS, NUMBERED)),
        "turn all of them into strings",
        lambda: cts().fit(grouped(GROUPS, NUMBERED.astype(str))),
    ),
    case(
        "not-fitted",
        lambda: hetcal.save(ts(), "cal.json"),
        "call fit first",
        lambda: files.encode(ts().fit(Z, Y)),
    ),
    case("threads", lambda: with_threads("many"), "unset it", lambda: with_threads(None)),
]

OTHERS = [
    case(
        "few-classes-to-draw",
        lambda: corruption.noisy_labels([0, 5], [0], 0.5, 2, 0),
        "of the whole data set",
        lambda: corruption.noisy_labels([0, 5], [0], 0.5, 6, 0),
    ),
    case(
        "negative-split",
        lambda: corruption.stratified_split(Y, -1, 0),
        "pass the rows to set aside",
        lambda: corruption.stratified_split(Y, 1, 0),
    ),
    case(
        "large-split",
        lambda: corruption.stratified_split([0, 1, 1], 2, 0),
        "pass a smaller number",
        lambda: corruption.stratified_split([0, 1, 1], 1, 0),
    ),
    case(
        "labels-as-table",
        lambda: corruption.undersample([[0]], [0], 0.5, 0),
        "pass one class per row",
        lambda: corruption.undersample([0], [0], 0.5, 0),
    ),
    case(
        "labels-as-text",
        lambda: corruption.undersample(["a"], [0], 0.5, 0),
        "pass class numbers from 0",
        lambda: corruption.undersample([0], [0], 0.5, 0),
    ),
    case(
        "negative-label",
        lambda: corruption.undersample([-1], [0], 0.5, 0),
        "number classes from 0",
        lambda: corruption.undersample([0], [0], 0.5, 0),
    ),
    case(
        "rate-in-percent",
        lambda: corruption.undersample([0], [0], 30, 0),
        "0.3 for 30 percent",
        lambda: corruption.undersample([0], [0], 0.3, 0),
    ),
    case(
        "whole-number",
        lambda: corruption.stratified_split(Y, 1.5, 0),
        "pass a whole number",
        lambda: corruption.stratified_split(Y, 1, 0),
    ),
    case(
        "classes-as-table",
        lambda: corruption.undersample([0], [[0]], 0.5, 0),
        "pass class numbers",
        lambda: corruption.undersample([0], [0], 0.5, 0),
    ),
    case(
        "few-rows-to-plan",
        lambda: hetcal.plan_validation_size(Z[:20], Y[:20]),
        "collect more rows",
        lambda: quick_plan(),
    ),
    case(
        "low-target",
        lambda: quick_plan(target=1e-4),
        "choose a higher target",
        lambda: quick_plan(target=1.0),
    ),
    case("few-repeats", lambda: quick_plan(n_repeats=1), "20 is the default", lambda: quick_plan()),
    case(
        "sizes",
        lambda: quick_plan(sizes=[100, 200, 300]),
        "a fifth of the rows is kept",
        lambda: quick_plan(sizes=[60, 120, 240]),
    ),
    case(
        "small-forecast",
        lambda: quick_plan().predict("TS", 10),
        "plan with smaller sizes=",
        lambda: quick_plan(sizes=[10, 40, 200]).predict("TS", 10),
    ),
    case(
        "estimator-class",
        lambda: classifier(LogisticRegression),
        "pass a classifier object",
        lambda: classifier(LogisticRegression()),
    ),
    case(
        "calibrator-class",
        lambda: classifier(Perceptron(), calibrator=hetcal.PlattScaling),
        "pass an object",
        lambda: classifier(Perceptron(), calibrator=hetcal.PlattScaling()),
    ),
    case(
        "prefit",
        lambda: classifier(LogisticRegression(), cv="prefit"),
        "a FrozenEstimator needs none",
        lambda: classifier(FrozenEstimator(LogisticRegression().fit(X4, Y3))),
    ),
    case(
        "one-vs-one",
        lambda: classifier(SVC(decision_function_shape="ovo")),
        "decision_function_shape='ovr'",
        lambda: classifier(SVC(decision_function_shape="ovr")),
    ),
    case(
        "sorted-rows",
        lambda: two_classes(np.arange(120) >= 60),
        "shuffle the rows",
        lambda: two_classes(np.random.default_rng(0).permutation(np.arange(120) >= 60)),
    ),
    case(
        "untested-group",
        lambda: grouped_classifier(ShuffleSplit(1, test_size=0.1, random_state=0)),
        "use splits that test rows of every group",
        lambda: grouped_classifier(5),
    ),
    case(
        "group-of-few-folds",
        lambda: grouped_classifier(5, ensemble=True),
        "fewer folds or ensemble=False",
        lambda: grouped_classifier(5),
        lambda: grouped_classifier(2, ensemble=True),
    ),
]


@pytest.mark.parametrize(("bad", "remedy", "good"), [*ARRAYS, *CALIBRATORS, *OTHERS])
def test_remedy_of_an_error(bad: Do, remedy: str, good: tuple[Do, ...]) -> None:
    follow(bad, remedy, good)


def test_remedies_for_parameters_that_do_not_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classwise, "_MAX_HESSIAN_BYTES", 2 * 6**2 * 8)
    with pytest.raises(ValueError, match=r"use bundles, or a base .* such as PlattScaling\(\)"):
        hetcal.ClassWise(hetcal.VectorScaling(), 0.1).fit(Z, Y)
    hetcal.ClassWise(hetcal.VectorScaling(), 0.1, bundles=2).fit(Z, Y)
    hetcal.ClassWise(hetcal.PlattScaling(), 0.1).fit(Z, Y)


WARNINGS = [
    case(
        "class-at-bound",
        lambda: cts().fit(Z, RIGHT_IN_0),
        "more rows, or set gamma .* to a finite number",
        lambda: cts(0.3).fit(Z, RIGHT_IN_0),
        lambda: cts().fit(np.tile(Z, (2, 1)), np.append(RIGHT_IN_0, Y)),
    ),
    case(
        "all-at-bound", lambda: cts().fit(Z, Z.argmax(axis=1)), "fit on more rows$", lambda: cts().fit(Z, Y)
    ),
    case(
        "tied-at-bound",
        lambda: cts("cv").fit(Z, Z.argmax(axis=1)),
        "fit on more rows$",
        lambda: cts("cv").fit(Z, Y),
    ),
    case(
        "temperature-at-bound",
        lambda: ts().fit(Z, Z.argmax(axis=1)),
        "fit on more rows$",
        lambda: ts().fit(Z, Y),
    ),
    case(
        "separable",
        lambda: hetcal.PlattScaling().fit(Z, Z.argmax(axis=1)),
        "fit on more rows$",
        lambda: hetcal.PlattScaling().fit(Z, Y),
    ),
    case(
        "separable-class",
        lambda: hetcal.ClassWise(hetcal.PlattScaling()).fit(Z, RIGHT_IN_0),
        "more rows, or set gamma .* to a finite number",
        lambda: hetcal.ClassWise(hetcal.PlattScaling(), 0.5).fit(Z, RIGHT_IN_0),
    ),
    case(
        "separable-vectors",
        lambda: hetcal.VectorScaling().fit(SHIFTED, Z.argmax(axis=1)),
        "fit on more rows, or in Python set a ridge",
        lambda: hetcal.VectorScaling().fit(SHIFTED, Y),
        lambda: hetcal.VectorScaling(ridge=1e-3).fit(SHIFTED, Z.argmax(axis=1)),
    ),
    case(
        "copies",
        lambda: cts("cv").fit(np.repeat(Z, 2, axis=0), np.repeat(Y, 2)),
        "drop the copies, or .* fold_groups",
        lambda: cts("cv").fit(Z, Y),
        lambda: cts("cv").fit(
            np.repeat(Z, 2, axis=0), np.repeat(Y, 2), fold_groups=np.repeat(np.arange(300), 2)
        ),
    ),
    case(
        "judged-on-fitted-rows",
        lambda: hetcal.evaluate(logits=Z, labels=Y, calibrator=ts().fit(Z, Y)),
        "keep some labelled rows apart",
        lambda: hetcal.evaluate(logits=Z[200:], labels=Y[200:], calibrator=ts().fit(Z[:200], Y[:200])),
    ),
]


@pytest.mark.parametrize(("bad", "remedy", "good"), WARNINGS)
def test_remedy_of_a_warning(bad: Do, remedy: str, good: tuple[Do, ...]) -> None:
    with pytest.warns(hetcal.CalibrationWarning, match=remedy):
        bad()
    for call in good:  # where a warning would be an error
        call()


def sparse(values: Any) -> Any:
    from scipy.sparse import csr_array

    return csr_array(values)


def mixed() -> Any:
    return np.array([7 if y else "x" for y in Y], object)


def named_fit() -> Any:
    return ts().fit(frame(Z, NAMES), Y)


def files_of(logits: Any, labels: Any, **options: Any) -> files.LogitsFile:
    from hetcal.report.gather import as_logits_file

    return as_logits_file(logits, labels, None, **options)


def grouped(*groups: Any) -> Any:
    return hetcal.Batches([{"logits": Z, "labels": Y, "groups": g} for g in groups])


def with_threads(value: str | None) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HETCAL_THREADS", value) if value else patch.delenv("HETCAL_THREADS", raising=False)
        return n_threads()


def quick_plan(**options: Any) -> Any:
    given = {"methods": {"TS": ts()}, "n_repeats": 5} | options
    return hetcal.plan_validation_size(Z, Y, **given)


def classifier(estimator: Any, **options: Any) -> Any:
    given: dict[str, Any] = {"calibrator": ts(), "cv": 3} | options
    return hetcal.CalibratedClassifier(estimator, **given).fit(X4, Y3)


def two_classes(y: Any) -> Any:
    return hetcal.CalibratedClassifier(LogisticRegression(), hetcal.Identity(), cv=KFold(2)).fit(X4, y)


def grouped_classifier(cv: Any, **options: Any) -> Any:
    groups = np.where(np.isin(np.arange(120), [0, 1, 118, 119]), "rare", "common")
    model = hetcal.CalibratedClassifier(LogisticRegression(), cts(0.1), cv=cv, **options)
    return model.fit(X4, Y3, calibration_groups=groups)


# -- files and the command line -------------------------------------------------------------------

LABELLED = {"logits": Z, "labels": Y}
PYTHON = re.compile(
    r"hetcal\.(?!json|npz)|\bnp\.|numpy|\bimport\b|\(\)|x\[~|\.toarray|astype|"
    r"\b(logits|probs|labels|groups|class_names|predicted|sizes|gamma|loss|cv|ridge|floor|model)="
)


def table(names: str, *columns: Any) -> str:
    """Text of a CSV file."""
    lines = zip(*(np.asarray(c).tolist() for c in columns), strict=True)
    return "\n".join([names, *(",".join(map(str, line)) for line in lines), ""])


def write(folder: Path, content: Any, name: str) -> Path:
    """A file of logits: .csv from text, .npz from a mapping, .npy from an array."""
    kind = {str: "csv", dict: "npz", np.ndarray: "npy", bytes: "npz"}[type(content)]
    path = folder / f"{name}.{kind}"
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


COLUMNS = [*Z.T]
BAD_FILES: dict[str, tuple[Any, str, tuple[Any, ...]]] = {
    "one-score": (
        table("label,score", Y2, Z[:, 0]),
        "0 and s",
        (table("label,no,yes", Y2, 0 * Z[:, 0], Z[:, 0]),),
    ),
    "one-numbered-score": (
        table("label,logit_1", Y2, Z[:, 0]),
        "0 and s",
        (table("label,logit_0,logit_1", Y2, 0 * Z[:, 0], Z[:, 0]),),
    ),
    "one-prob": (
        table("label,prob_1", Y2, P[:, 0]),
        "1 - p and p",
        (table("label,prob_0,prob_1", Y2, 1 - P[:, 0], P[:, 0]),),
    ),
    "score-array": (
        {"logits": Z[:, 0], "labels": Y2},
        "0 and s",
        ({"logits": np.stack([0 * Z[:, 0], Z[:, 0]], 1), "labels": Y2},),
    ),
    "prob-array": (
        {"probs": P[:, 0], "labels": Y2},
        "1 - p and p",
        ({"probs": np.stack([1 - P[:, 0], P[:, 0]], 1), "labels": Y2},),
    ),
    "three-dimensions": ({"logits": Z[:, :, None], "labels": Y}, "one row per sample", (LABELLED,)),
    "probs-as-logits": (
        {"logits": P, "labels": Y},
        "prob_<class> .columns. or probs .\\.npz",
        ({"probs": P, "labels": Y}, table("label,prob_a,prob_b,prob_c", TEXTS, *P.T)),
    ),
    "logits-as-probs": (
        {"probs": Z, "labels": Y},
        "logit_<class> .columns. or logits .\\.npz",
        (LABELLED, table("label,logit_a,logit_b,logit_c", TEXTS, *COLUMNS)),
    ),
    "sums": ({"probs": P * 0.8, "labels": Y}, "normalise the rows", ({"probs": P, "labels": Y},)),
    "nan": (
        {"logits": NAN, "labels": Y},
        "drop the row",
        ({"logits": np.delete(NAN, 5, 0), "labels": np.delete(Y, 5)},),
    ),
    "text-labels": (
        {"logits": Z, "labels": TEXTS},
        "'class_names' .* or number the classes",
        ({**LABELLED, "labels": TEXTS, "class_names": NAMES}, LABELLED),
    ),
    "unknown-label": (
        {**LABELLED, "labels": np.where(Y == 1, "d", TEXTS), "class_names": NAMES},
        "correct the label or drop",
        ({**LABELLED, "labels": TEXTS, "class_names": NAMES},),
    ),
    "labels-from-1": ({"logits": Z, "labels": Y + 1}, "in the order of the logits' columns", (LABELLED,)),
    "one-hot": ({"logits": Z, "labels": np.eye(3)[Y]}, "the class index of each row", (LABELLED,)),
    "no-labels": ({"logits": Z}, "a column 'label'", (LABELLED, table("label,a,b,c", TEXTS, *COLUMNS))),
    "missing-groups": (
        {**LABELLED, "groups": np.full(300, np.nan)},
        "a group of their own",
        ({**LABELLED, "groups": NUMBERED},),
    ),
    "real-groups": (
        {**LABELLED, "groups": Z[:, 0]},
        "cut numbers into ranges",
        ({**LABELLED, "groups": np.digitize(Z[:, 0], [0])},),
    ),
    "row-numbers": (
        table("id,label,a,b,c", np.arange(300), TEXTS, *COLUMNS),
        "logit_<class> or prob_<class>, and all others",
        (table("id,label,logit_a,logit_b,logit_c", np.arange(300), TEXTS, *COLUMNS),),
    ),
    "text-column": (
        table("who,label,a,b,c", GROUPS, TEXTS, *COLUMNS),
        "logit_<class> or prob_<class>, and all others",
        (table("who,label,logit_a,logit_b,logit_c", GROUPS, TEXTS, *COLUMNS),),
    ),
    "label-counts": (
        table("label,10,20,30", Y, *COLUMNS),
        "name these 0, 1, 2",
        (table("label,0,1,2", Y, *COLUMNS),),
    ),
    "class-twice": (
        table("label,a,a,c", np.where(Y > 0, "c", "a"), *COLUMNS),
        "rename all but one",
        (table("label,a,b,c", TEXTS, *COLUMNS),),
    ),
    "label-twice": (
        table("label,label,b,c", Y, *COLUMNS),
        "rename all but one",
        (table("label,a,b,c", Y, *COLUMNS),),
    ),
    "number-twice": (
        table("label,1,logit1,2", Y, *COLUMNS),
        "rename or remove one",
        (table("label,0,logit1,2", Y, *COLUMNS),),
    ),
    "long-number": (
        table(f"label,0,1,{'2' * 30}", Y, *COLUMNS),
        "a shorter name",
        (table("label,0,1,2", Y, *COLUMNS),),
    ),
    "objects": ({"logits": Z.astype(object), "labels": Y}, "save a numeric array", (LABELLED,)),
    "damaged": (b"PK\3\4damaged", "write it again", (LABELLED,)),
    "no-classes": (table("label", Y), "a column for each class", (table("label,0,1,2", Y, *COLUMNS),)),
    "complex": ({"logits": Z + 0j, "labels": Y}, "take the real part", (LABELLED,)),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_remedy_for_a_file(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, remedy, good = BAD_FILES[name]
    code, said = run(capsys, "evaluate", write(tmp_path, content, "bad"))
    assert code == 2
    assert re.search(remedy, said), said
    for i, other in enumerate(good):
        assert run(capsys, "evaluate", write(tmp_path, other, f"good{i}")) == (0, "")


# Files that are read, but give warnings or are refused by some commands only
ODD_FILES: dict[str, Any] = {
    "copies": {"logits": np.repeat(Z[:60], 2, axis=0), "labels": np.repeat(Y[:60], 2)},
    "right": {"logits": Z, "labels": Z.argmax(axis=1)},
    "right-in-one": {"logits": Z, "labels": RIGHT_IN_0},
    "few": {"logits": Z[:2], "labels": Y[:2]},
    "one-fold-group": {**LABELLED, "fold_groups": np.zeros(300)},
    "text-groups": {**LABELLED, "groups": GROUPS},
    "wide-test": {f"val_{k}": v for k, v in LABELLED.items()}
    | {"test_logits": P @ np.ones((3, 4)), "test_labels": Y},
    "names": {**LABELLED, "class_names": NAMES[:2]},
    "array": Z,
    "empty": {"logits": Z[:0], "labels": Y[:0]},
    "nothing": {"values": Z},
}
COMMANDS = [
    ["evaluate", "FILE"],
    ["evaluate", "FILE", "-c", "ts.json"],
    ["evaluate", "FILE", "-c", "groups.json"],
    ["diagnose", "FILE"],
    *(
        ["fit", "FILE", "-o", "out.json", "-m", *words]
        for words in (
            ["ts"],
            ["vs"],
            ["platt"],
            ["cts"],
            ["cts", "--gamma", "cv"],
            ["cts", "--by-group"],
            ["classwise-platt"],
            ["classwise-vs", "--gamma", "cv"],
            ["classwise-isotonic", "--gamma", "0.5"],
            ["ts", "--gamma", "1"],
            ["isotonic", "--in-batches"],
            ["ts", "--in-batches"],
        )
    ),
    ["apply", "ts.json", "FILE", "-o", "out.npz"],
    ["apply", "groups.json", "FILE", "-o", "out.npz"],
    ["report", "FILE", "--format", "sheet"],
    ["report", "FILE", "--fail-over", "max_ece"],
    ["plan", "FILE", "--target", "-1"],
    ["plan", "FILE", "--check-quarter", "--target", "-1"],
]
FAST = {"copies", "right", "right-in-one", "few"}


@pytest.mark.parametrize("name", [*BAD_FILES, *ODD_FILES])
def test_command_line_gives_no_advice_for_python(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hetcal.save(ts().fit(Z, Y), "ts.json")
    hetcal.save(by_group(NUMBERED), "groups.json")
    content = BAD_FILES[name][0] if name in BAD_FILES else ODD_FILES[name]
    path = write(tmp_path, content, "bad")
    more = [["report", "FILE"], ["plan", "FILE"]] if name in BAD_FILES else []
    more += [["fit", "FILE", "-o", "out.json"]] if name not in FAST - {"copies"} else []
    messages = set()
    for command in [*COMMANDS, *more]:
        if "--check-quarter" in command and name in ODD_FILES:
            continue
        messages |= set(run(capsys, *(path if word == "FILE" else word for word in command))[1].splitlines())
    assert messages
    assert [text for text in messages if PYTHON.search(text)] == []


def test_remedies_of_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = write(tmp_path, LABELLED, "rows")
    grouped_rows = write(tmp_path, {**LABELLED, "groups": GROUPS}, "grouped")
    sheet = write(tmp_path, table("label,group,a,b,c", TEXTS, GROUPS, *COLUMNS), "sheet")
    array, ordered = (
        write(tmp_path, Z, "scores"),
        write(tmp_path, table("label,c,a,b", Y, *COLUMNS), "ordered"),
    )
    np.save("truth.npy", Y)
    fit: list[Any] = ["fit", "-o", "cal.json", "-m"]

    def check(bad: list[Any], remedy: str, *good: list[Any]) -> None:
        code, said = run(capsys, *bad)
        assert code == 2
        assert re.search(remedy, said), said
        for words in good:
            assert run(capsys, *words) == (0, "")

    check(
        [*fit, "cts", "--by-group", rows],
        "add a column 'group' .* or an array 'groups'",
        [*fit, "cts", "--by-group", sheet],
        [*fit, "cts", "--by-group", grouped_rows],
    )
    apply = ["apply", "cal.json", "-o", "out.csv"]
    check(
        [*apply, rows],
        "add a column 'group' .* or an array 'groups'",
        [*apply, sheet],
        [*apply, grouped_rows],
    )
    numbered = write(tmp_path, {**LABELLED, "groups": NUMBERED}, "numbered")
    check(
        [*apply, numbered], "use one type for both", [*fit, "cts", "--by-group", numbered], [*apply, numbered]
    )
    check(
        [*fit, "ts", "--gamma", "1", rows],
        "cts and classwise-platt take it",
        [*fit, "cts", "--gamma", "1", rows],
        [*fit, "classwise-platt", "--gamma", "1", rows],
    )
    check(
        [*fit, "classwise-vs", "--gamma", "bayes", rows],
        "--method cts.*--method classwise-platt",
        [*fit, "cts", "--gamma", "cv", rows],
        [*fit, "classwise-platt", "--gamma", "bayes", rows],
    )
    check([*fit, "ts", array], "name it with --labels", [*fit, "ts", array, "--labels", "truth.npy"])
    truth = ["--labels", "truth.npy", "--in-batches"]
    check(
        [*fit, "isotonic", array, *truth],
        "ts, vs, .* cts.* leave out --in-batches or use one of these",
        [*fit, "isotonic", array, *truth[:2]],
        *([*fit, m, array, *truth] for m in ("ts", "vs", "cts")),
    )
    check([*fit, "ts", rows, "--in-batches"], "leave out --in-batches", [*fit, "ts", rows])
    flat = write(tmp_path, Z[:, 0], "flat")
    check([*fit, "ts", flat, *truth], "0 and s", [*fit, "ts", array, *truth])
    run(capsys, *fit, "ts", sheet)
    check(
        ["evaluate", ordered, "-c", "cal.json"],
        "write names, or put the columns in the order a, b, c",
        [
            "evaluate",
            write(tmp_path, table("label,c,a,b", np.array(list("cab"))[Y], *1.1 * Z.T), "new"),
            "-c",
            "cal.json",
        ],
        ["evaluate", write(tmp_path, table("label,a,b,c", Y, *1.1 * Z.T), "new"), "-c", "cal.json"],
    )
    check([*fit[:1], "-o", "no/cal.json", rows, "-m", "ts"], "make it first")
    Path("no").mkdir()
    check(
        [*fit[:1], "-o", "no", rows, "-m", "ts"],
        "name a file in it",
        [*fit[:1], "-o", "no/cal.json", rows, "-m", "ts"],
    )
    check(["plan", write(tmp_path, {"logits": Z[:20], "labels": Y[:20]}, "few")], "collect more rows")
    check(["plan", rows, "--target", "0.001"], "choose a higher target")


def test_remedies_for_parquet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.chdir(tmp_path)

    def save(name: str, what: str = "logit_", values: Any = Z, **more: Any) -> str:
        columns = {f"{what}{c}": values[:, k] for k, c in enumerate(NAMES[: values.shape[1]])}
        parquet.write_table(pa.table({"label": Y, **columns, **more}), name)
        return name

    fit = ["fit", "-m", "ts", "-o", "cal.json", "--in-batches"]
    good = save("good.parquet")
    cases = [
        (save("split.parquet", split=["val"] * 300), "without it, to a file of their own", fit, good),
        (
            save("probs.parquet", "prob_", P),
            "leave out --in-batches, or write their logarithms",
            fit[:-1],
            "probs.parquet",
        ),
        (
            save("probs.parquet", "prob_", P),
            "leave out --in-batches, or write their logarithms",
            fit,
            save("logs.parquet", values=np.log(P)),
        ),
        (save("bare.parquet", "", P), "write their logarithms", fit, "logs.parquet"),
        (
            save("one.parquet", "", Z[:, :1]),
            "0 and s",
            fit,
            save("two.parquet", "", np.stack([0 * Z[:, 0], Z[:, 0]], 1)),
        ),
    ]
    parquet.write_table(pa.table({"label": Y2, "a": 0 * Z[:, 0], "b": Z[:, 0]}), "two.parquet")
    for bad, remedy, command, other in cases:
        code, said = run(capsys, *fit, bad)
        assert code == 2
        assert re.search(remedy, said), said
        assert not PYTHON.search(said)
        assert run(capsys, *command, other) == (0, "")
    open_batches = hetcal.Batches.from_parquet
    follow(
        lambda: open_batches(good, labels="y"), "name another", (lambda: open_batches(good, labels="label"),)
    )
    text = pa.table({"label": Y, "a": Z[:, 0], "b": TEXTS})
    parquet.write_table(text, "text.parquet")
    follow(
        lambda: open_batches("text.parquet"),
        "name the columns with logits=",
        (lambda: open_batches(good, logits=["logit_a", "logit_b"]),),
    )


def test_remedies_for_archives(tmp_path: Path) -> None:
    with (tmp_path / "array.npz").open("wb") as file:
        np.save(file, Z)
    np.save(tmp_path / "truth.npy", Y)
    with pytest.raises(ValueError, match=r"name it \.npy"):
        hetcal.load_logits(tmp_path / "array.npz")
    renamed = (tmp_path / "array.npz").rename(tmp_path / "array.npy")
    assert hetcal.load_logits(renamed, labels=tmp_path / "truth.npy").val.logits.shape == (300, 3)


def test_remedy_for_an_archive_that_unpacks_to_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hetcal import formats

    monkeypatch.setattr(formats, "_ROOM", 1000)
    monkeypatch.setattr(formats, "_GROWTH", 1)
    np.savez_compressed(tmp_path / "a.npz", logits=np.zeros((300, 3)), labels=Y)
    with pytest.raises(ValueError, match=r"save the array as \.npy$"):
        hetcal.load_logits(tmp_path / "a.npz")
    np.save(tmp_path / "logits.npy", Z)
    np.save(tmp_path / "labels.npy", Y)
    hetcal.load_logits(tmp_path / "logits.npy")


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

    with pytest.raises(ValueError, match=r"for example max_ece_excess=0.05|put uncal_ in front"):
        check_request("html", [limit])
    check_request("html", ["max_ece_excess=0.05", "uncal_max_ece=0.05"])


def test_extras_that_messages_name_exist() -> None:
    root = Path(__file__).parents[1]
    known = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    source = [path.read_text(encoding="utf-8") for path in (root / "src" / "hetcal").rglob("*.py")]
    named = {name for text in source for name in re.findall(r"hetcal\[(\w+)\]", text)}
    assert named
    assert named <= set(known)


# -- optional packages ----------------------------------------------------------------------------


def test_remedies_of_dask() -> None:
    pytest.importorskip("distributed")
    da = pytest.importorskip("dask.array")
    dd, dask = pytest.importorskip("dask.dataframe"), sys.modules["dask"]
    from hetcal.dask import rows

    z, y = da.from_array(Z, chunks=(100, 3)), da.from_array(Y, chunks=100)
    unknown = z[da.from_array(np.ones(300, bool), chunks=100)]
    numbers = dd.from_pandas(frame(Z, NAMES).assign(label=Y), npartitions=2)
    texts = dd.from_pandas(frame(Z, NAMES)[["a"]].assign(label=Y, t=TEXTS), npartitions=1)
    follow(lambda: rows(Z, Y), "hetcal.Batches takes", (lambda: ts().fit(hetcal.Batches(Z, Y)),))
    follow(
        lambda: rows(unknown, Y),
        r"call compute_chunk_sizes\(\) on each Dask array",
        (lambda: ts().fit(rows(unknown.compute_chunk_sizes(), Y)),),
    )
    follow(lambda: rows(numbers, Y), "pass its name", (lambda: ts().fit(rows(numbers, "label")),))
    follow(
        lambda: rows(texts, "label"),
        "name the columns with columns=",
        (lambda: rows(numbers, "label", columns=["a", "b"]),),
    )
    follow(
        lambda: two_types(rows, z, y),
        "turn all of them into strings",
        (lambda: cts().fit(rows(z, y, groups=da.from_array(GROUPS, chunks=100))),),
    )
    pandas = pytest.importorskip("pandas")
    lists = pandas.DataFrame({"z": [list(row) for row in Z], "label": Y})

    def fit_lists() -> Any:
        return ts().fit(rows(dd.from_pandas(lists, npartitions=1), "label"))

    with dask.config.set({"dataframe.convert-string": True}):
        follow(fit_lists, r"'dataframe\.convert-string': False", ())
    with dask.config.set({"dataframe.convert-string": False}):
        fit_lists()


def two_types(rows: Any, z: Any, y: Any) -> Any:
    from dask import array, delayed

    parts = [GROUPS[:100], NUMBERED[100:200], GROUPS[200:]]
    groups = [array.from_delayed(delayed(part), (100,), dtype=object) for part in parts]
    return cts().fit(rows(z, y, groups=array.concatenate(groups)))


def test_remedy_for_an_asynchronous_client() -> None:
    da, distributed = pytest.importorskip("dask.array"), pytest.importorskip("distributed")
    from hetcal.dask import rows

    class Client:
        asynchronous = True
        persist = compute = print

    class Synchronous(Client):
        asynchronous = False

    assert hasattr(distributed.Client, "asynchronous")
    z = da.from_array(Z, chunks=(100, 3))
    follow(
        lambda: rows(z, Y, client=Client()),
        "pass another client",
        (lambda: rows(z, Y, client=Synchronous()),),
    )


def test_remedy_for_a_folder_in_use(tmp_path: Path) -> None:
    da = pytest.importorskip("dask.array")
    pytest.importorskip("pyarrow")
    from hetcal.dask import rows

    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").touch()
    source = rows(da.from_array(Z, chunks=(100, 3)), Y)
    follow(
        lambda: source.to_parquet(tmp_path / "old"),
        "name another one",
        (lambda: source.to_parquet(tmp_path / "new"),),
    )


def test_remedies_of_torch() -> None:
    torch = pytest.importorskip("torch")
    from hetcal._validate import check_tensors as prepare_tensors
    from hetcal.torch import Calibration, collect_logits

    z, groups = torch.from_numpy(Z).float(), torch.from_numpy(NUMBERED)
    module, grouped_module = Calibration(ts().fit(Z, Y)), Calibration(by_group())
    follow(lambda: module(z[0]), "one row per sample", (lambda: module(z[0].reshape(1, -1)),))
    follow(
        lambda: grouped_module(z),
        "its place in group_names",
        (lambda: grouped_module(z, groups).shape == (300, 3),),
    )

    y, bad = torch.from_numpy(Y), torch.from_numpy(NAN)
    follow(
        lambda: prepare_tensors(bad, y, None),
        "drop the row",
        (lambda: prepare_tensors(bad[6:], y[6:], None),),
    )
    follow(
        lambda: prepare_tensors(z, y, torch.zeros(300)),
        "leave it out",
        (lambda: prepare_tensors(z, y, None),),
    )
    follow(
        lambda: prepare_tensors(z, y + 0.5, None), "correct its label", (lambda: prepare_tensors(z, y, None),)
    )
    follow(
        lambda: prepare_tensors(z, y, -torch.ones(300)),
        "correct its weight",
        (lambda: prepare_tensors(z, y, torch.ones(300)),),
    )

    class Odd(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return {"scores": x}

    class Wrapped(Odd):
        def forward(self, x: Any) -> Any:
            return super().forward(x)["scores"]

    loader = [(z, torch.from_numpy(Y))]
    follow(
        lambda: collect_logits(Odd(), loader, progress=False),
        "wrap it in a module",
        (lambda: collect_logits(Wrapped(), loader, progress=False),),
    )


def test_remedies_of_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    from hetcal.onnx import append, export

    def model(kind: int, *casts: Any) -> Any:
        ends = [
            helper.make_tensor_value_info(n, t, ["n", 3])
            for n, t in (("x", kind), ("z", casts[0] if casts else kind))
        ]
        node = (
            helper.make_node("Cast", ["x"], ["z"], to=casts[0])
            if casts
            else helper.make_node("Identity", ["x"], ["z"])
        )
        graph = helper.make_graph([node], "net", ends[:1], ends[1:])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    fitted, half, single = ts().fit(Z, Y), TensorProto.FLOAT16, TensorProto.FLOAT
    path = tmp_path / "cal.onnx"
    follow(
        lambda: export(fitted, path, output="z"),
        "pass model=",
        (lambda: export(fitted, path, model(single), output="z"),),
    )
    follow(
        lambda: append(fitted, model(half), "z"),
        "cast it in the model",
        (lambda: append(fitted, model(half, single), "z"),),
    )


def test_remedies_of_whole_classifiers_in_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("skl2onnx")
    from hetcal.onnx import export

    fitted, path = classifier(LogisticRegression()), tmp_path / "whole.onnx"
    follow(lambda: export(fitted, path), r"such as X\[:5\]", (lambda: export(fitted, path, example=X4[:5]),))
