"""Every refusal and every warning of the calibrators, by its words."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse

from hetcal import (
    AutoCalibrator,
    CalibrationWarning,
    ClassWise,
    ClassWiseTemperatureScaling,
    Identity,
    Mixture,
    PlattScaling,
    TemperatureScaling,
    TopLabelHistogram,
    TopLabelIsotonic,
    VectorScaling,
)

ALL = [
    Identity(),
    TemperatureScaling(),
    ClassWiseTemperatureScaling(),
    VectorScaling(),
    PlattScaling(),
    TopLabelIsotonic(),
    TopLabelHistogram(),
    ClassWise(PlattScaling()),
    ClassWise(TopLabelIsotonic()),
    AutoCalibrator({"TS": TemperatureScaling()}, cv=2),
]
every = pytest.mark.parametrize("cal", ALL, ids=repr)

N, K = 90, 3


@pytest.fixture(scope="module")
def good(make_sample):
    z, y, _ = make_sample(N, K, 0)
    return z, y


def put(a, where, value):
    a = np.array(a)
    a[where] = value
    return a


# what is changed in (z, y), the error, its words
LOGITS = {
    "nan": (
        lambda z: put(z, (7, 1), np.nan),
        ValueError,
        r"logits must be finite, got NaN at row 7; drop the row",
    ),
    "inf": (
        lambda z: put(z, (8, 0), np.inf),
        ValueError,
        r"logits must be finite, got infinity \(inf\) at row 8",
    ),
    "minus inf": (
        lambda z: put(z, (9, 2), -np.inf),
        ValueError,
        r"must be finite, got -infinity \(-inf\) at row 9",
    ),
    "probabilities": (
        lambda z: np.exp(z) / np.exp(z).sum(axis=1, keepdims=True),
        ValueError,
        r"unnormalised scores, got rows in \[0, 1\] that sum to 1 \(row 0: \[.*pass probabilities as probs=",
    ),
    "float32 probabilities": (
        lambda z: (np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)).astype(np.float32),
        ValueError,
        r"pass probabilities as probs=",
    ),
    "float16 probabilities": (
        lambda z: (np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)).astype(np.float16),
        ValueError,
        r"pass probabilities as probs=",
    ),
    "one-dimensional": (
        lambda z: z[:, 0],
        ValueError,
        r"logits must be two-dimensional \(n, K\), got shape \(90,\); .*hetcal\.binary_logits\(scores\)",
    ),
    "three-dimensional": (
        lambda z: z[None],
        ValueError,
        r"two-dimensional .*got shape \(1, 90, 3\); Reshape",
    ),
    "scalar": (lambda _: 3.0, ValueError, r"two-dimensional .*got shape \(\)"),
    "no rows": (lambda z: z[:0], ValueError, r"logits must have at least one row, got 0 sample"),
    "no columns": (
        lambda z: z[:, :0],
        ValueError,
        r"logits must have at least 2 columns, one per class, got 0 feature",
    ),
    "one column": (
        lambda z: z[:, :1],
        ValueError,
        r"at least 2 columns, .* got 1 feature\(s\) .* minimum of 2 .*; .*hetcal\.binary_logits\(scores\)",
    ),
    "empty list": (lambda _: [], ValueError, r"two-dimensional .*got shape \(0,\)"),
    "sparse": (
        scipy.sparse.csr_array,
        TypeError,
        r"logits must be a dense array, got a sparse csr_array.*\.toarray",
    ),
    "complex": (
        lambda z: z + 0j,
        ValueError,
        r"logits must be real, got complex128: Complex data not supported",
    ),
    "objects": (
        lambda z: put(z.astype(object), (0, 0), {}),
        TypeError,
        r"logits must be numbers: argument must be",
    ),
    "text": (lambda z: z.astype(str), TypeError, r"logits must be numbers, got dtype <U"),
    "dates": (lambda z: z.astype("M8[s]"), TypeError, r"logits must be numbers, got dtype datetime64\[s\]"),
    "ragged": (
        lambda _: [[1.0, 2.0], [1.0]],
        ValueError,
        r"logits must be a rectangular array .* different lengths",
    ),
    "None": (lambda _: None, ValueError, r"logits must be given, got None; .*probs="),
}


@every
@pytest.mark.parametrize("what", LOGITS)
def test_logits_refused(cal, what, good):
    change, error, words = LOGITS[what]
    with pytest.raises(error, match=words):
        cal.fit(change(good[0]), good[1])


@pytest.mark.parametrize("what", [k for k in LOGITS if k not in ("no columns", "one column")])
@every
def test_logits_refused_at_prediction(cal, what, good):
    cal.fit(*good)
    change, error, words = LOGITS[what]
    with pytest.raises(error, match=words):
        cal.predict_proba(change(good[0]))


LABELS = {
    "too large": (
        lambda y: put(y, 4, K),
        ValueError,
        r"labels must lie in 0\.\.2, got 3 at row 4; number the classes",
    ),
    "negative": (lambda y: put(y, 5, -1), ValueError, r"labels must lie in 0\.\.2, got -1 at row 5"),
    "too large a float": (
        lambda y: put(y, 4, K) * 1.0,
        ValueError,
        r"labels must lie in 0\.\.2, got 3\.0 at row 4",
    ),
    "fractions": (
        lambda y: put(y * 1.0, 6, 0.5),
        ValueError,
        r"labels must be integers 0\.\.2, got 0\.5 at row 6",
    ),
    "nan": (
        lambda y: put(y * 1.0, 3, np.nan),
        ValueError,
        r"labels must be integers 0\.\.2, got NaN at row 3",
    ),
    "inf": (lambda y: put(y * 1.0, 3, np.inf), ValueError, r"labels must be integers 0\.\.2, got infinity"),
    "text": (
        lambda y: y.astype(str),
        TypeError,
        r"labels must be integers 0\.\.2, got .*at row 0; pass class_names=",
    ),
    "names": (
        lambda y: np.array(["cat"] * len(y), object),
        TypeError,
        r"got 'cat' at row 0; pass class_names=",
    ),
    "complex": (lambda y: y + 0j, TypeError, r"labels must be integers 0\.\.2, got dtype complex128"),
    "None": (lambda _: None, ValueError, r"labels must be given, got None"),
    "too few": (lambda y: y[:-1], ValueError, r"labels must have one entry per row of logits \(90\), got 89"),
    "one-hot": (
        lambda y: np.eye(K)[y],
        ValueError,
        r"labels must be one-dimensional, got shape \(90, 3\); pass the",
    ),
    "ragged": (lambda _: [[0], [0, 1]], ValueError, r"labels must be a rectangular array"),
    "scalar": (lambda _: 1, ValueError, r"labels must be one-dimensional, got shape \(\)"),
    "sparse": (lambda y: scipy.sparse.csr_array(y[None]), TypeError, r"labels must be a dense array"),
}


@every
@pytest.mark.parametrize("what", LABELS)
def test_labels_refused(cal, what, good):
    change, error, words = LABELS[what]
    with pytest.raises(error, match=words):
        cal.fit(good[0], change(good[1]))


@pytest.mark.parametrize(
    "kind", [np.int8, np.uint8, np.uint64, np.float32, np.float64, object, "column", list]
)
def test_labels_accepted(kind, good):
    z, y = good
    given = y[:, None] if kind == "column" else y.tolist() if kind is list else y.astype(kind)
    assert TemperatureScaling().fit(z, given).alpha_ == TemperatureScaling().fit(z, y).alpha_


def test_bool_labels_are_zero_and_one():
    z = np.array([[2.0, 0.0], [0.0, 1.5], [0.0, 3.0], [1.0, 0.0]])
    y = np.array([False, True, True, True])
    assert TemperatureScaling().fit(z, y).alpha_ == TemperatureScaling().fit(z, y.astype(int)).alpha_


WEIGHTS = {
    "negative": (
        lambda w: put(w, 2, -0.5),
        ValueError,
        r"sample_weight must be finite and not negative, got -0\.5 at row 2",
    ),
    "nan": (
        lambda w: put(w, 3, np.nan),
        ValueError,
        r"sample_weight must be finite and not negative, got NaN at row 3",
    ),
    "inf": (
        lambda w: put(w, 3, np.inf),
        ValueError,
        r"sample_weight must be finite .*got infinity \(inf\) at row 3",
    ),
    "all zero": (
        lambda w: w * 0,
        ValueError,
        r"sample_weight must have a positive entry, got only zeros; leave it out",
    ),
    "too few": (lambda w: w[1:], ValueError, r"sample_weight must have one entry per row \(90\), got 89"),
    "two-dimensional": (
        lambda w: w[:, None],
        ValueError,
        r"sample_weight must be one-dimensional, got shape \(90, 1\)",
    ),
    "text": (lambda w: w.astype(str), TypeError, r"sample_weight must be numbers, got dtype <U"),
}


@every
@pytest.mark.parametrize("what", WEIGHTS)
def test_weights_refused(cal, what, good):
    change, error, words = WEIGHTS[what]
    with pytest.raises(error, match=words):
        cal.fit(*good, sample_weight=change(np.ones(N)))


GROUPS = {
    "too few": (
        lambda g: g[1:],
        ValueError,
        r"groups must be one-dimensional with one entry per row \(90\), got shape \(89,\)",
    ),
    "two-dimensional": (
        lambda g: g[:, None],
        ValueError,
        r"groups must be one-dimensional .*got shape \(90, 1\)",
    ),
    "scalar": (lambda _: "a", ValueError, r"groups must be one-dimensional .*got shape \(\)"),
    "nan": (
        lambda g: put(g * 1.0, 2, np.nan),
        ValueError,
        r"groups must not be missing, got nan at row 2; give such rows",
    ),
    "fractions": (
        lambda g: g + 0.5,
        ValueError,
        r"groups must be integers or strings, got 0\.5; cut numbers",
    ),
    "None in it": (
        lambda g: put(g.astype(object), 4, None),
        TypeError,
        r"groups must be all integers or all strings",
    ),
    "complex": (lambda g: g + 0j, TypeError, r"groups must be integers or strings, got dtype complex128"),
}
BY_GROUP = [ClassWiseTemperatureScaling(), ClassWise(PlattScaling()), ClassWise(TopLabelIsotonic())]


@pytest.mark.parametrize("cal", [*BY_GROUP, AutoCalibrator({"CTS": ClassWiseTemperatureScaling()})], ids=repr)
@pytest.mark.parametrize("what", GROUPS)
def test_groups_refused(cal, what, good):
    change, error, words = GROUPS[what]
    groups = np.arange(N) % 2
    with pytest.raises(error, match=words):
        cal.fit(*good, groups=change(groups))
    cal.fit(*good, groups=groups)
    with pytest.raises(error, match=words):
        cal.predict_proba(good[0], groups=change(groups))


@pytest.mark.parametrize("cal", BY_GROUP, ids=repr)
def test_groups_at_prediction(cal, good):
    z, y = good
    cal.fit(z, y, groups=np.array(["a", "b"])[np.arange(N) % 2])
    with pytest.raises(
        ValueError, match="groups must be given, as they were to fit; pass the group of every row"
    ):
        cal.predict_proba(z)
    with pytest.raises(
        ValueError, match=r"groups must be among those seen in fit \('a', 'b'\), got 'c' at row 3"
    ):
        cal.predict_proba(z, groups=["a", "b", "a", "c"] + ["a"] * (N - 4))
    with pytest.raises(ValueError, match=r"got 'A' at row 0"):
        cal.predict_proba(z, groups=["A"] * N)
    with pytest.raises(TypeError, match="groups must be strings, as in fit, got integers"):
        cal.predict_proba(z, groups=np.zeros(N, int))
    cal.fit(z, y)
    with pytest.raises(
        ValueError, match=r"groups must be left out, since fit was called without them; fit with groups"
    ):
        cal.predict_proba(z, groups=["a"] * N)


def test_an_unseen_number_of_a_group(good):
    cal = ClassWiseTemperatureScaling(gamma=0.1).fit(*good, groups=np.arange(N) % 7)
    with pytest.raises(
        ValueError, match=re.escape("(0, 1, 2, 3, 4, …), got -1 at row 0; fit again with rows of that")
    ):
        cal.predict_proba(good[0], groups=np.arange(N) % 7 - 1)


def test_groups_of_every_accepted_kind(good):
    z, y = good
    ids = np.arange(N) % 2
    first = ClassWiseTemperatureScaling().fit(z, y, groups=ids).alpha_
    kinds = (ids.astype(np.float32), ids.astype(bool), ids.astype(np.uint8), ids.astype(object), ids.tolist())
    texts = (np.array(["x", "y"])[ids], np.array([b"x", b"y"])[ids], np.array(["x", "y"], object)[ids])
    for groups in (*kinds, *texts):
        cal = ClassWiseTemperatureScaling().fit(z, y, groups=groups)
        np.testing.assert_array_equal(cal.alpha_, first)
        cal.predict_proba(z, groups=groups)


@every
def test_columns_at_prediction(cal, good):
    z, y = good
    cal.fit(z, y)
    for wrong in (z[:, :2], z[:, :1], np.hstack([z, z])):
        words = rf"logits must have 3 columns, one per class as in fit, got {wrong.shape[1]}: X has"
        with pytest.raises(ValueError, match=words):
            cal.predict_proba(wrong)


def takes(**options):
    return [
        (ClassWiseTemperatureScaling(**options), "cts"),
        (ClassWise(TemperatureScaling(), **options), "classwise"),
    ]


@pytest.mark.parametrize("gamma", [-0.1, np.nan, True, None, 1j, [0.1], -np.inf])
def test_bad_gamma(gamma, good):
    for cal, _ in takes(gamma=gamma):
        with pytest.raises(ValueError, match=r"gamma must be zero or more \(inf allowed\), got "):
            cal.fit(*good)


def test_gamma_by_an_unknown_name(good):
    for cal, _ in takes(gamma="auto"):
        with pytest.raises(ValueError, match="gamma must be a number, 'cv' or 'bayes', got 'auto'"):
            cal.fit(*good)
    for cal, _ in takes(gamma="cv", loss="ece"):
        with pytest.raises(
            ValueError, match="gamma must be a number for loss='ece', got 'cv'; 'cv' and 'bayes' need"
        ):
            cal.fit(*good)


@pytest.mark.parametrize("base", [PlattScaling(), VectorScaling(), TopLabelIsotonic()], ids=repr)
def test_gamma_and_loss_that_the_base_cannot_have(base, good):
    with pytest.raises(ValueError, match=rf"gamma must be a number for {type(base).__name__}, got 'cv'"):
        ClassWise(base, gamma="cv").fit(*good)
    with pytest.raises(
        ValueError, match=rf"loss must be 'nll' for {type(base).__name__}, which .*, got 'brier'"
    ):
        ClassWise(base, loss="brier").fit(*good)


def test_finite_gamma_without_parameters(good):
    with pytest.raises(ValueError, match=r"gamma must be inf or 0 for TopLabelIsotonic, .* got 0\.1"):
        ClassWise(TopLabelIsotonic(), gamma=0.1).fit(*good)


def test_loss_of_base_and_of_class_wise(good):
    with pytest.raises(
        ValueError, match=r"loss must be that of the base \('brier'\), got 'nll'; set it on ClassWise"
    ):
        ClassWise(TemperatureScaling(loss="brier")).fit(*good)


@pytest.mark.parametrize(
    ("bounds", "error", "words"),
    [
        (
            (0, 1),
            ValueError,
            r"alpha_bounds must be positive, finite and in order, got \(0, 1\); the default",
        ),
        ((2, 1), ValueError, r"in order, got \(2, 1\)"),
        ((1, 1), ValueError, r"in order, got \(1, 1\)"),
        ((0.1, np.inf), ValueError, r"finite and in order"),
        ((np.nan, 1), ValueError, r"finite and in order"),
        ((1,), TypeError, r"alpha_bounds must be a pair \(lower, upper\), got \(1,\)"),
        (3, TypeError, r"alpha_bounds must be a pair \(lower, upper\), got 3"),
        (("a", "b"), TypeError, r"alpha_bounds must be a pair"),
    ],
)
def test_bad_alpha_bounds(bounds, error, words, good):
    for cal in (
        TemperatureScaling(bounds),
        ClassWiseTemperatureScaling(alpha_bounds=bounds),
        ClassWise(TemperatureScaling(bounds)),
    ):
        with pytest.raises(error, match=words):
            cal.fit(*good)


def test_bad_loss(good):
    cals = (
        TemperatureScaling(loss="mse"),
        ClassWiseTemperatureScaling(loss="mse"),
        ClassWise(TemperatureScaling(), loss="mse"),
    )
    for cal in cals:
        with pytest.raises(ValueError, match=r"loss must be one of 'nll', 'brier', 'ece', got 'mse'"):
            cal.fit(*good)


@pytest.mark.parametrize(
    ("bundles", "words"),
    [
        (0, r"n_bundles must be an integer in 1\.\.3"),
        (4, r"n_bundles must be an integer in 1\.\.3, the classes, got 4"),
        (1.5, r"bundles must be a number of bundles or one integer per class \(3\), got 1\.5"),
        ("two", r"bundles must be a number of bundles or one integer per class \(3\), got 'two'"),
        ([0, 1], r"one integer per class \(3\), got \[0, 1\]"),
        ([0, 1, -1], r"one integer per class \(3\), got \[0, 1, -1\]"),
        ([0.0, 1.0, 1.0], r"one integer per class \(3\)"),
        ([[0, 1, 1]], r"one integer per class \(3\)"),
    ],
)
def test_bad_bundles(bundles, words, good):
    for cal, _ in takes(bundles=bundles):
        with pytest.raises(ValueError, match=words):
            cal.fit(*good)


def test_groups_and_bundles_exclude_each_other(good):
    for cal, _ in takes(bundles=2):
        with pytest.raises(ValueError, match="groups must be left out where bundles are set"):
            cal.fit(*good, groups=np.zeros(N, int))


@pytest.mark.parametrize("cv", [1, 0, 2.5, "3", True, None])
def test_bad_cv(cv, good):
    for cal in (ClassWiseTemperatureScaling(gamma="cv", cv=cv), AutoCalibrator(cv=cv)):
        with pytest.raises(ValueError, match="cv must be an integer, 2 or more, got"):
            cal.fit(*good)


@pytest.mark.parametrize("least", [0, -1, 2.5, "3", True])
def test_bad_min_samples(least, good):
    for base in (TemperatureScaling(), PlattScaling(), TopLabelIsotonic()):
        with pytest.raises(ValueError, match="min_samples must be a positive integer, got"):
            ClassWise(base, min_samples=least).fit(*good)


@pytest.mark.parametrize("base", [None, "ts", PlattScaling, object(), 3])
def test_bad_base(base, good):
    with pytest.raises(
        TypeError, match=r"base must have fit and predict_proba, got .*; pass a calibrator object"
    ):
        ClassWise(base).fit(*good)


@pytest.mark.parametrize(
    ("ridge", "error"),
    [(-1, ValueError), (np.nan, ValueError), (np.inf, ValueError), ("1", TypeError), (None, TypeError)],
)
def test_bad_ridge(ridge, error, good):
    for cal in (VectorScaling(ridge), ClassWise(VectorScaling(ridge))):
        with pytest.raises(error, match=r"ridge must be (a number|finite and zero or more), got "):
            cal.fit(*good)


def test_bad_bins(good):
    with pytest.raises(ValueError, match="n_bins must be a positive integer, got 0"):
        TopLabelHistogram(n_bins=0).fit(*good)
    with pytest.raises(ValueError, match="binning must be one of 'width', 'mass', got 'area'"):
        TopLabelHistogram(binning="area").fit(*good)


def test_bad_candidates(good):
    with pytest.raises(ValueError, match="candidates must contain at least one calibrator"):
        AutoCalibrator({}).fit(*good)
    with pytest.raises(TypeError, match="candidates must be a mapping of name to calibrator"):
        AutoCalibrator([TemperatureScaling()]).fit(*good)


@every
def test_fewer_rows_than_classes(cal):
    z = np.array([[3.0, 1.0, 0.0, -1.0], [0.0, 2.0, 1.0, 0.0]])
    with pytest.warns(CalibrationWarning) as caught:
        p = cal.fit(z, [0, 2]).predict_proba(z)
    words = "logits should have at least one row per class, got 2 rows for 4 classes; most classes will share"
    assert any(str(w.message).startswith(words) for w in caught)
    assert np.all(np.isfinite(p))


@every
def test_all_rows_of_one_class(cal, good):
    with pytest.warns(CalibrationWarning) as caught:
        p = cal.fit(good[0], np.full(N, 1)).predict_proba(good[0])
    words = "labels should hold more than one class, got only class 1; the fit says nothing about the others"
    assert any(str(w.message) == words for w in caught)
    assert np.all(np.isfinite(p))


def test_weights_leave_one_class(good):
    z, y = good
    with pytest.warns(CalibrationWarning, match="got only class 2"):
        Identity().fit(z, y, sample_weight=(y == 2).astype(float))


def test_a_long_list_of_classes_is_cut_short(make_sample):
    z, y, _ = make_sample(300, 30, 0)
    few = z.argmax(axis=1) < 4
    with pytest.warns(CalibrationWarning) as caught:
        ClassWiseTemperatureScaling(gamma=0.1).fit(z[few], y[few])
    said = [str(w.message) for w in caught if "no row" in str(w.message)]
    names = ", ".join(f"class {k}" for k in range(4, 12))
    assert said == [f"no row is predicted as {names} and 18 more: the shared parameters are used there"]


@every
@pytest.mark.parametrize(("n", "one_class"), [(30, True), (2, False)])
def test_warnings_point_at_the_caller(cal, good, n, one_class):
    z = good[0][:n]
    with pytest.warns(CalibrationWarning) as caught:
        cal.fit(z, np.zeros(n, int) if one_class else z.argmax(axis=1))
    assert all(w.filename == __file__ for w in caught)


@pytest.mark.parametrize("wrong", [3, "TS", TemperatureScaling])
def test_candidates_must_be_calibrators(wrong, good):
    with pytest.raises(TypeError, match="candidates must have fit and predict_proba"):
        AutoCalibrator({"a": wrong}).fit(*good)


@pytest.mark.parametrize("weights", ["a", [[], 1], {}, [1, "x"], [0, 0]])
def test_weights_of_a_mixture_must_be_numbers(weights, good):
    with pytest.raises((TypeError, ValueError), match="weights must be 2 numbers"):
        Mixture([Identity(), PlattScaling()], weights).fit(*good)


@pytest.mark.parametrize("option", [[], ["nll"], np.array(["nll", "ece"])])
def test_names_of_options_must_be_text(option, good):
    with pytest.raises(ValueError, match="loss must be one of"):
        TemperatureScaling(loss=option).fit(*good)
    with pytest.raises(ValueError, match="combine must be"):
        AutoCalibrator({"a": Identity()}, combine=option).fit(*good)


def test_a_gamma_beyond_all_parameters_is_free(good):
    far, free = (ClassWise(PlattScaling(), gamma).fit(*good).parameters_ for gamma in (1e300, np.inf))
    np.testing.assert_allclose(far, free, rtol=1e-3)


@pytest.mark.parametrize("groups", [np.array([1e300, 1.0, 2.0]), [[1], [1, 2], [3]]])
def test_groups_that_are_no_integers_are_refused(groups):
    with pytest.raises(ValueError, match="groups must be"):
        ClassWiseTemperatureScaling().fit(np.eye(3) * 2, [0, 1, 2], groups=groups)
