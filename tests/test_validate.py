"""Validation of user input: accepted and refused values, and errors with argument, value and row."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import scipy.special

from hetcal import _coerce
from hetcal._validate import (
    ProbabilitiesGiven,
    as_generator,
    check_bounds,
    check_choice,
    check_flag,
    check_fold_groups,
    check_gamma,
    check_groups,
    check_integer,
    check_labels,
    check_logits,
    check_names,
    check_number,
    check_probs,
    check_ridge,
    check_soft_labels,
    check_top_label,
    check_transition,
    check_weights,
    one_of,
)

N, K = 90, 3
RNG = np.random.default_rng(0)
Z = RNG.normal(size=(N, K))
P = scipy.special.softmax(Z, axis=1)
Y = RNG.integers(0, K, N)
W = np.ones(N)
G = np.arange(N) % 2


def replace(array, index, value):
    array = np.array(array)
    array[index] = value
    return array


def refuse(check, cases):
    """Parametrize a test by the cases of a table of (input, error type, keywords of the message)."""
    return pytest.mark.parametrize(
        ("check", "value", "error", "message"),
        [pytest.param(check, *case, id=name) for name, case in cases.items()],
    )


def assert_refused(check, value, error, message):
    with pytest.raises(error, match=message):
        check(value)


# Logits

BAD_LOGITS = {
    "nan": (replace(Z, (7, 1), np.nan), ValueError, "logits must .*got NaN at row 7"),
    "inf": (replace(Z, (8, 0), np.inf), ValueError, r"got infinity \(inf\) at row 8"),
    "minus inf": (replace(Z, (9, 2), -np.inf), ValueError, r"got -infinity \(-inf\) at row 9"),
    "probabilities": (P, ValueError, r"row 0: \[.*pass probabilities as probs="),
    "float32 probabilities": (P.astype(np.float32), ValueError, "probs="),
    "float16 probabilities": (P.astype(np.float16), ValueError, "probs="),
    "rounded probabilities": (P.astype(np.float16).astype(np.float32), ValueError, "probs="),
    "one-dimensional": (Z[:, 0], ValueError, r"got shape \(90,\); .*binary_logits"),
    "three-dimensional": (Z[None], ValueError, r"got shape \(1, 90, 3\); Reshape"),
    "scalar": (3.0, ValueError, r"two-dimensional .*got shape \(\)"),
    "no rows": (Z[:0], ValueError, "at least one row, got 0"),
    "no columns": (Z[:, :0], ValueError, "at least 2 columns, .*got 0"),
    "one column": (Z[:, :1], ValueError, r"at least 2 columns, .*got 1 .*binary_logits"),
    "empty list": ([], ValueError, r"got shape \(0,\)"),
    "sparse": (scipy.sparse.csr_array(Z), TypeError, r"got a sparse csr_array.*\.toarray"),
    "complex": (Z + 0j, ValueError, "must be real, got complex128"),
    "objects": (replace(Z.astype(object), (0, 0), {}), TypeError, "logits must"),
    "text": (Z.astype(str), TypeError, "logits must .*got dtype <U"),
    "dates": (Z.astype("M8[s]"), TypeError, "logits must .*got dtype datetime64"),
    "ragged": ([[1.0, 2.0], [1.0]], ValueError, "rectangular"),
    "None": (None, TypeError, "logits must .*got None"),
}


@refuse(check_logits, BAD_LOGITS)
def test_logits_refused(check, value, error, message):
    assert_refused(check, value, error, message)


def test_number_of_columns_of_logits():
    with pytest.raises(ValueError, match=r"logits must .*got 3"):
        check_logits(Z, n_classes=4)


def test_logits_keep_or_widen_their_type():
    for dtype, expected in ((np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float64)):
        assert check_logits(np.full((2, 3), 2, dtype)).dtype == expected
    assert check_logits([[1, 2], [3, 4]]).dtype == np.float64
    assert check_logits(np.full((2, 3), 2, np.longdouble)).dtype == np.float64
    assert check_logits(np.asfortranarray(np.ones((4, 3)))).flags.c_contiguous
    z = np.ones((3, 3))
    assert check_logits(z) is z  # copies only if necessary


@pytest.mark.parametrize("n", [1, 2, 3, 10, 100])
def test_any_number_of_rows_of_probabilities_is_refused(n):
    p = scipy.special.softmax(np.random.default_rng(0).normal(size=(n, 3)), axis=1)
    for dtype in (np.float32, np.float64):
        with pytest.raises(ProbabilitiesGiven, match="probs="):
            check_logits(p.astype(dtype))


@pytest.mark.parametrize("decimals", [2, 3, 5])
def test_rounded_probabilities_are_refused_as_logits(decimals):
    p = scipy.special.softmax(np.random.default_rng(0).normal(size=(60, 3)), axis=1).round(decimals)
    for dtype in (np.float32, np.float64):
        with pytest.raises(ProbabilitiesGiven, match="probs="):
            check_logits(p.astype(dtype))
    p[30] *= 0.9  # one row suffices
    assert len(check_logits(p)) == 60


def test_logits_that_resemble_probabilities_are_accepted():
    assert len(check_logits(np.float32([[0.0, 0.9995]]))) == 1
    assert len(check_logits(np.array([[0.0, 1 - 1e-7]]))) == 1
    p = scipy.special.softmax(np.random.default_rng(0).normal(size=(200, 3)), axis=1)
    p[150, 0] += 0.5  # one row suffices
    assert len(check_logits(p)) == 200


def test_callers_can_pass_their_own_remedy():
    p = [[0.5, 0.5], [1.0, 0.0]]
    assert len(check_logits(p, probs_remedy=None)) == 2
    with pytest.raises(ProbabilitiesGiven, match=r"row 0: .*; write logits$"):
        check_logits(p, probs_remedy="write logits")
    with pytest.raises(ValueError, match="write two columns"):
        check_logits([0.5, 2.0], binary_remedy="write two columns")


def test_the_row_number_is_correct_beyond_the_first_chunk(monkeypatch):
    monkeypatch.setattr(_coerce, "_CHUNK", 6)
    with pytest.raises(ValueError, match="got NaN at row 13"):
        check_logits(replace(np.ones((20, 3)), (13, 1), np.nan))


def test_finite_logits_whose_sum_overflows_are_accepted():
    assert check_logits(np.full((4, 3), 1.7e308)).max() == 1.7e308


# Labels


def labels(value):
    return check_labels(value, n_rows=N, n_classes=K, names_remedy="pass class_names= or")


BAD_LABELS = {
    "too large": (replace(Y, 4, K), ValueError, "labels must .*got 3 at row 4"),
    "negative": (replace(Y, 5, -1), ValueError, "labels must .*got -1 at row 5"),
    "too large a float": (replace(Y * 1.0, 4, K), ValueError, r"0\.\.2, got 3\.0 at row 4"),
    "fraction": (replace(Y * 1.0, 6, 0.5), ValueError, r"integers 0\.\.2, got 0\.5 at row 6"),
    "nan": (replace(Y * 1.0, 3, np.nan), ValueError, r"integers 0\.\.2, got NaN at row 3"),
    "inf": (replace(Y * 1.0, 3, np.inf), ValueError, r"integers 0\.\.2, got infinity"),
    "minus inf": (replace(Y * 1.0, 1, -np.inf), ValueError, r"got -infinity \(-inf\) at row 1"),
    "text": (Y.astype(str), TypeError, "at row 0; pass class_names="),
    "names": (np.array(["cat"] * N, object), TypeError, "got 'cat' at row 0; pass class_names="),
    "complex": (Y + 0j, TypeError, "got dtype complex128"),
    "None": (None, ValueError, "labels must .*got None"),
    "too few": (Y[:-1], ValueError, r"one entry per row \(90\), got 89"),
    "one-hot": (np.eye(K)[Y], ValueError, r"one-dimensional, got shape \(90, 3\)"),
    "ragged": ([[0], [0, 1]], ValueError, "labels must"),
    "scalar": (1, ValueError, r"one-dimensional, got shape \(\)"),
    "sparse": (scipy.sparse.csr_array(Y[None]), TypeError, "labels must"),
}


@refuse(labels, BAD_LABELS)
def test_labels_refused(check, value, error, message):
    assert_refused(check, value, error, message)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint64, np.float32, np.float64, object])
def test_labels_of_any_numeric_type(dtype):
    y = labels(Y.astype(dtype))
    assert y.dtype == np.int64
    np.testing.assert_array_equal(y, Y)


def test_labels_as_lists_columns_and_booleans():
    np.testing.assert_array_equal(labels(Y.tolist()), Y)
    np.testing.assert_array_equal(labels(Y[:, None]), Y)
    assert check_labels([False, True], n_rows=2, n_classes=2).tolist() == [0, 1]


def test_labels_without_a_number_of_classes():
    assert check_labels([5, 1], n_rows=2, n_classes=None).tolist() == [5, 1]
    with pytest.raises(ValueError, match=r"labels must .*got -1 at row 1"):
        check_labels([5, -1], n_rows=2, n_classes=None)


def test_text_labels():
    names = ["dog", "cat", "owl"]  # not sorted
    y = check_labels(["owl", "dog", "cat"], n_rows=3, n_classes=3, class_names=names)
    assert y.tolist() == [2, 0, 1]
    with pytest.raises(ValueError, match=r"labels must .*\(dog, cat, owl\), got 'emu' at row 1"):
        check_labels(["owl", "emu"], n_rows=2, n_classes=3, class_names=names)
    with pytest.raises(ValueError, match=r"class_names must .*got 'dog' twice"):
        check_labels(["dog"], n_rows=1, n_classes=3, class_names=["dog", "cat", "dog"])


# Weights


def weights(value):
    return check_weights(value, n_rows=N)


BAD_WEIGHTS = {
    "negative": (replace(W, 2, -0.5), ValueError, r"sample_weight must .*got -0\.5 at row 2"),
    "nan": (replace(W, 3, np.nan), ValueError, "sample_weight must .*got NaN at row 3"),
    "inf": (replace(W, 3, np.inf), ValueError, r"got infinity \(inf\) at row 3"),
    "minus inf": (replace(W, 0, -np.inf), ValueError, r"got -infinity \(-inf\) at row 0"),
    "huge": (W * 1e101, ValueError, "sample_weight must"),
    "all zero": (W * 0, ValueError, "positive entry, got only zeros"),
    "too few": (W[1:], ValueError, r"one entry per row \(90\), got 89"),
    "two-dimensional": (W[:, None], ValueError, r"one-dimensional, got shape \(90, 1\)"),
    "text": (W.astype(str), TypeError, "sample_weight must .*got dtype <U"),
}


@refuse(weights, BAD_WEIGHTS)
def test_weights_refused(check, value, error, message):
    assert_refused(check, value, error, message)


def test_weights():
    assert check_weights(None, n_rows=3) is None
    np.testing.assert_array_equal(check_weights(2, n_rows=3), [2, 2, 2])
    assert check_weights([1, 0, 2], n_rows=3).dtype == np.float64


def test_weights_of_a_part_may_all_be_zero():
    np.testing.assert_array_equal(check_weights([0, 0], n_rows=2, allow_all_zero=True), [0, 0])
    with pytest.raises(ValueError, match=r"sample_weight must .*got NaN at row 0"):
        check_weights([None, None], n_rows=2, allow_all_zero=True)


# Groups


def groups(value):
    return check_groups(value, n_rows=N)


BAD_GROUPS = {
    "too few": (G[1:], ValueError, r"groups must .*\(90\), got shape \(89,\)"),
    "two-dimensional": (G[:, None], ValueError, r"got shape \(90, 1\)"),
    "scalar": ("a", ValueError, r"got shape \(\)"),
    "ragged": ([[1], [1, 2], [3]], ValueError, "groups must"),
    "nan": (replace(G * 1.0, 2, np.nan), ValueError, "groups must .*got nan at row 2"),
    "inf": (replace(G * 1.0, 1, np.inf), ValueError, "groups must .*got inf at row 1"),
    "fractions": (replace(G * 1.0, 3, 0.5), ValueError, r"groups must be .*, got 0\.5 at row 3"),
    "huge": (replace(G * 1.0, 3, 1e300), ValueError, r"integers \(up to 2\*\*53 .*, got 1e\+300 at row 3"),
    "None": (replace(G.astype(object), 4, None), TypeError, "all integers or all strings"),
    "mixed": (replace(G.astype(str).astype(object), 1, 3), TypeError, "got 3 at row 1"),
    "complex": (G + 0j, TypeError, "integers or strings, got dtype complex128"),
}


@refuse(groups, BAD_GROUPS)
def test_groups_refused(check, value, error, message):
    assert_refused(check, value, error, message)


def test_groups_of_any_type():
    for dtype in (np.float32, np.float64, np.uint8, object):
        np.testing.assert_array_equal(groups(G.astype(dtype)), G)
    assert check_groups(np.array([1.0, 2.0]), n_rows=2).dtype == np.int64
    assert check_groups([True, False], n_rows=2).tolist() == [True, False]
    for names in (["a", "b"], [b"a", b"b"], np.array(["a", "b"], object)):
        assert check_groups(names, n_rows=2).tolist() == ["a", "b"]


def test_fold_groups():
    assert check_fold_groups(None, 3, slice(None)) is None
    assert check_fold_groups(["b", "a", "b"], 3, slice(None)).tolist() == [1, 0, 1]
    assert check_fold_groups(["b", "a", "c"], 3, [0, 2]).tolist() == [0, 1]
    with pytest.raises(ValueError, match=r"fold_groups must .*got only 'a'"):
        check_fold_groups(["a", "a"], 2, slice(None))


# Probabilities

BAD_PROBS = {
    "one-dimensional": ([0.2, 0.8], ValueError, r"probs must .*got shape \(2,\)"),
    "one column": ([[1.0]], ValueError, r"K at least 2, got shape \(1, 1\)"),
    "no rows": (np.empty((0, 3)), ValueError, r"at least one row, got shape \(0, 3\)"),
    "nan": ([[0.5, 0.5], [np.nan, 1]], ValueError, "probs must .*got NaN at row 1"),
    "scores": ([[0.5, 0.5], [-0.1, 1.1]], ValueError, r"lie in \[0, 1\], got \[-0.1, 1.1\] at row 1"),
    "sums": ([[0.5, 0.5], [0.5, 0.4]], ValueError, "sum to 1 in every row, got 0.9 at row 1"),
    "sums of many columns": (np.full((3, 1000), 1.01e-3), ValueError, "got 1.01 at row 0"),
}


@refuse(check_probs, BAD_PROBS)
def test_probs_refused(check, value, error, message):
    assert_refused(check, value, error, message)


def test_rounded_probabilities_are_accepted():
    p = scipy.special.softmax(RNG.normal(size=(50, 1000)), axis=1).astype(np.float16)
    assert check_probs(p).dtype == np.float32
    # Within the tolerance, but outside that of the fast check.
    nearly = np.full((1, 1000), 1.00495 / 1000, np.float32)
    np.testing.assert_array_equal(check_probs(nearly), nearly)


def test_one_of_logits_and_probs():
    assert one_of(Z, None) == (Z, "logits")
    assert one_of(None, P)[1] == "probs"
    with pytest.raises(ValueError, match="logits must"):
        one_of(None, None)
    with pytest.raises(ValueError, match="probs must"):
        one_of(Z, P)


def test_top_label_from_probabilities_and_from_confidences():
    for arguments in (([[0.3, 0.7], [0.6, 0.4]], [1, 1]), ([0.7, 0.6], [1, 1], [1, 0])):
        confidence, predicted, y = check_top_label(*arguments)
        assert (confidence.tolist(), predicted.tolist(), y.tolist()) == ([0.7, 0.6], [1, 0], [1, 1])


@pytest.mark.parametrize(
    ("confidence", "labels", "predicted", "error", "message"),
    [
        ([[0.7, 0.3]], [1], [1], ValueError, "probs must"),
        ([], [], [], ValueError, "probs must"),
        ([0.5, 1.2], [0, 0], [0, 0], ValueError, "probs must .*got 1.2 at row 1"),
        ([0.5, np.nan], [0, 0], [0, 0], ValueError, "probs must .*got NaN at row 1"),
        ([0.5], [0], [-2], ValueError, "predicted must .*got -2 at row 0"),
        ([0.5], [0], [0.5], ValueError, "predicted must .*got 0.5 at row 0"),
        ([0.5], ["a"], [0], TypeError, "labels must .*'a'.* at row 0"),
        ([0.5], [0, 1], [0], ValueError, r"labels must .*\(1\), got 2"),
    ],
)
def test_top_label_refused(confidence, labels, predicted, error, message):
    with pytest.raises(error, match=message):
        check_top_label(confidence, labels, predicted=predicted)


# Label noise


def test_rows_of_a_transition_matrix_are_normalised_before_they_are_compared():
    t = np.array([[0.402, 0.301, 0.301], [0.4015, 0.5, 0.0985], [0.1, 0.2, 0.7]])  # row 0 sums to 1.004
    with pytest.raises(ValueError, match=r"got 0\.4004 for true class 0 and 0\.4015 for true class 1"):
        check_transition(t, 3)
    t[1] = [0.4, 0.5, 0.1]
    np.testing.assert_allclose(check_transition(t, 3).sum(axis=1), 1)


# Masked arrays

MASK = np.array([False, False, True, False])
MASKED = {
    "logits": lambda: check_logits(np.ma.array(np.eye(4) * 3, mask=np.outer(MASK, [0, 1, 0, 0]))),
    "probs": lambda: check_probs(np.ma.array(np.eye(4), mask=np.outer(MASK, [0, 1, 0, 0]))),
    "labels": lambda: check_labels(np.ma.array([0, 1, 2, 3], mask=MASK), n_rows=4, n_classes=4),
    "sample_weight": lambda: check_weights(np.ma.array([1.0, 1, 1, 1], mask=MASK), n_rows=4),
    "groups": lambda: check_groups(np.ma.array(list("abcd"), mask=MASK), n_rows=4),
}


@pytest.mark.parametrize("name", MASKED)
def test_masked_entries_are_refused(name):
    with pytest.raises(ValueError, match=rf"{name} must .*masked.* at row 2"):
        MASKED[name]()


def test_masked_arrays_are_accepted_without_their_masked_rows():
    logits = np.ma.array(np.eye(4) * 3, mask=np.outer(MASK, [0, 1, 0, 0]))
    keep = ~np.ma.getmaskarray(logits).any(axis=1)
    np.testing.assert_array_equal(check_logits(logits[keep]), np.eye(4)[[0, 1, 3]] * 3)
    with pytest.raises(ValueError, match=r"sample_weight must .*masked"):
        check_weights(np.ma.masked, n_rows=4)


def test_the_remedy_for_masked_entries_works_in_any_dimension():
    images = np.ma.zeros((3, 2, 4, 4))
    images[1, 0, 2, 3] = np.ma.masked
    with pytest.raises(ValueError, match=r"x must .*masked.* at row 1; .*any\(axis=\(1, 2, 3\)\)"):
        _coerce.refuse_masked(images, "x")
    _coerce.refuse_masked(images[~np.ma.getmaskarray(images).any(axis=(1, 2, 3))], "x")


# Scalars and names


def test_names():
    assert check_names(None, 3) == ["0", "1", "2"]
    assert check_names(np.array(["a", "b"]), 2) == ["a", "b"]
    assert check_names([1.0, 2.5], 2) == ["1", "2.5"]
    with pytest.raises(ValueError, match=r"class_names must .*\(3\), got 2"):
        check_names(["a", "b"], 3)


def test_generators():
    rng = np.random.default_rng(5)
    assert as_generator(rng) is rng
    assert as_generator(5).random() == np.random.default_rng(5).random()
    assert as_generator(np.int64(5)).random() == np.random.default_rng(5).random()
    for bad in (-1, None, True, "5", 1.5, np.random.RandomState(0)):
        with pytest.raises(TypeError, match="rng must"):
            as_generator(bad)


@pytest.mark.parametrize("gamma", [-0.1, np.nan, True, None, 1j, [0.1], -np.inf])
def test_bad_gamma(gamma):
    with pytest.raises(ValueError, match="gamma must"):
        check_gamma(gamma)


def test_gamma_and_ridge():
    assert check_gamma(np.inf) == np.inf
    assert check_ridge(0) == 0
    for bad, error in ((-1, ValueError), (np.nan, ValueError), (np.inf, ValueError), ("1", TypeError)):
        with pytest.raises(error, match="ridge must"):
            check_ridge(bad)


def test_bounds():
    assert check_bounds([0.1, 2]) == (0.1, 2.0)
    for bad in ((0, 1), (2, 1), (1, 1), (0.1, np.inf), (np.nan, 1)):
        with pytest.raises(ValueError, match="alpha_bounds must"):
            check_bounds(bad)
    for bad in ((1,), 3, ("a", "b")):
        with pytest.raises(TypeError, match="alpha_bounds must"):
            check_bounds(bad)


def test_integers():
    assert check_integer(np.int32(3), "cv", minimum=2) == 3
    assert type(check_integer(np.int32(3), "cv")) is int
    assert check_integer(5, "cv", minimum=5, maximum=5) == 5
    for bad in (True, np.bool_(True), 2.0, "2", None, np.array(2)):
        for kind in (TypeError, ValueError):  # the error is both
            with pytest.raises(kind, match="cv must"):
                check_integer(bad, "cv", minimum=2)
    with pytest.raises(ValueError, match=r"cv must be an integer of at least 2, got 1; use 5") as raised:
        check_integer(1, "cv", minimum=2, remedy="use 5")
    assert not isinstance(raised.value, TypeError)
    with pytest.raises(ValueError, match=r"n must be an integer in 1\.\.4, got 5"):
        check_integer(5, "n", minimum=1, maximum=4)
    with pytest.raises(ValueError, match=r"n must be an integer of at most 4, got 5"):
        check_integer(5, "n", maximum=4)
    with pytest.raises(ValueError, match=r"n must be a positive integer, got 0"):
        check_integer(0, "n", minimum=1)


def test_numbers():
    assert check_number(np.float32(0.5), "rate", minimum=0, maximum=1) == 0.5
    assert type(check_number(1, "rate", minimum=0, maximum=1)) is float
    assert check_number(np.inf, "gamma", minimum=0, allow_infinite=True) == np.inf
    for bad in (True, "1", None, 1j, np.complex128(1), np.array(1.0)):
        for kind in (TypeError, ValueError):
            with pytest.raises(kind, match="rate must"):
                check_number(bad, "rate")
    limits = [
        ({"minimum": 0, "maximum": 1}, 1.5, r"lie in \[0, 1\]"),
        ({"above": 0, "below": 1}, 0, r"lie in \(0, 1\)"),
        ({"above": 0, "below": 1}, 1.0, r"lie in \(0, 1\)"),
        ({"minimum": 0}, -1, "at least 0"),
        ({"above": 0}, 0.0, "above 0"),
        ({"maximum": 1}, 2, "at most 1"),
        ({"below": 1}, 1, "below 1"),
        ({}, np.inf, "finite"),
        ({}, np.nan, "finite"),
        ({"allow_infinite": True}, np.nan, "number"),
    ]
    for options, bad, rule in limits:
        with pytest.raises(ValueError, match=rf"rate must .*{rule}.*, got .*; pass a fraction"):
            check_number(bad, "rate", **options, remedy="pass a fraction")


def test_choices():
    assert check_choice("b", "by", ("a", "b")) == "b"
    for bad in ("c", None, ["a"], np.array(["a"])):
        with pytest.raises(ValueError, match=r"by must .*'a', 'b', got"):
            check_choice(bad, "by", ("a", "b"))


def test_flags():
    assert check_flag(np.bool_(True), "ensemble") is True
    for bad in (1, 0, None, "yes"):
        with pytest.raises(TypeError, match="ensemble must"):
            check_flag(bad, "ensemble")


@pytest.mark.parametrize("order", [[2, 1, 0], [0, 2, 1]])
def test_numbered_classes_of_a_transition_must_be_in_order(order):
    pd = pytest.importorskip("pandas")
    matrix = pd.DataFrame([[0.6, 0.4, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert check_transition(matrix, 3) is not None
    rates = pd.Series([0.1, 0.2, 0.3])
    for wrong in (matrix.loc[order, order], matrix[order], matrix.loc[order], rates[order]):
        with pytest.raises(ValueError, match=r"transition must have its .* in the order .*, 0, 1, 2"):
            check_transition(wrong, 3)


def test_a_class_may_have_the_name_of_an_attribute():
    pd = pytest.importorskip("pandas")
    names = ["class_names", "b"]
    for transition in (pd.DataFrame(np.eye(2), names, names), pd.Series([0.0, 0.0], names)):
        np.testing.assert_array_equal(check_transition(transition, 2, names), np.eye(2))


def test_sums_of_label_counts_must_be_finite():
    with pytest.raises(ValueError, match="every row sum of labels must be finite"):
        check_soft_labels(np.full((2, 3), 1e308), n_rows=2, n_classes=3)
