"""Checks, and the functions that make logits and probabilities."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

from hetcal import _coerce as raw
from hetcal import binary_logits, to_logits
from hetcal._numeric.probabilities import normalise_weights, probability_floor, softmax, top_label
from hetcal._validate import (
    ProbabilitiesGiven,
    as_generator,
    check_choice,
    check_flag,
    check_groups,
    check_integer,
    check_labels,
    check_logits,
    check_names,
    check_number,
    check_probs,
    check_top_label,
    check_weights,
)


def test_logits_keep_or_widen_their_type():
    for given, kept in ((np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float64)):
        assert check_logits(np.full((2, 3), 2, given)).dtype == kept
    assert check_logits([[1, 2], [3, 4]]).dtype == np.float64
    assert check_logits(np.full((2, 3), 2, np.longdouble)).dtype == np.float64
    assert check_logits(np.asfortranarray(np.ones((4, 3)))).flags.c_contiguous
    z = np.ones((3, 3))
    assert check_logits(z) is z  # nothing is copied that need not be


@pytest.mark.parametrize("n", [1, 2, 3, 10, 100])
def test_probabilities_are_refused_however_few(n):
    p = scipy.special.softmax(np.random.default_rng(0).normal(size=(n, 3)), axis=1)
    for dtype in (np.float32, np.float64):
        with pytest.raises(ValueError, match="pass probabilities as probs="):
            check_logits(p.astype(dtype))


def test_one_row_that_comes_near_is_not_taken_for_probabilities():
    assert len(check_logits(np.float32([[0.0, 0.9995]]))) == 1
    assert len(check_logits(np.array([[0.0, 1 - 1e-7]]))) == 1


def test_one_row_among_many_saves_the_matrix():
    p = scipy.special.softmax(np.random.default_rng(0).normal(size=(200, 3)), axis=1)
    p[150, 0] += 0.5
    assert len(check_logits(p)) == 200


def test_rounded_probabilities_are_refused():
    p = scipy.special.softmax(np.random.default_rng(0).normal(size=(50, 10)), axis=1)
    for rounded in (p.astype(np.float16), p.astype(np.float16).astype(np.float32)):
        with pytest.raises(ValueError, match=r"unnormalised scores"):
            check_logits(rounded)


def test_the_remedy_is_up_to_the_caller():
    p = [[0.5, 0.5], [1.0, 0.0]]
    assert len(check_logits(p, probs_remedy=None)) == 2  # a part of what was checked as a whole
    with pytest.raises(ProbabilitiesGiven, match=r"row 0: .*; write logits"):
        check_logits(p, probs_remedy="write logits")


def test_the_bad_row_is_found_beyond_the_first_chunk(monkeypatch):
    monkeypatch.setattr(raw, "_CHUNK", 6)
    z = np.ones((20, 3))
    z[13, 1] = np.nan
    with pytest.raises(ValueError, match="got NaN at row 13"):
        check_logits(z)


def test_finite_logits_whose_sum_is_not():
    assert check_logits(np.full((4, 3), 1.7e308)).max() == 1.7e308


def test_labels_without_a_number_of_classes():
    assert check_labels([5, 1], n_rows=2, n_classes=None).tolist() == [5, 1]
    with pytest.raises(ValueError, match=r"labels must lie in 0, 1, 2, …, got -1 at row 1"):
        check_labels([5, -1], n_rows=2, n_classes=None)


def test_weights():
    assert check_weights(None, n_rows=3) is None
    np.testing.assert_array_equal(check_weights(2, n_rows=3), [2, 2, 2])
    assert check_weights([1, 0, 2], n_rows=3).dtype == np.float64


def test_groups():
    assert check_groups([b"a", b"b"], n_rows=2).tolist() == ["a", "b"]
    assert check_groups(np.array([1.0, 2.0]), n_rows=2).dtype == np.int64
    with pytest.raises(TypeError, match=r"all integers or all strings, got 3 at row 1"):
        check_groups(np.array(["a", 3], object), n_rows=2)
    with pytest.raises(ValueError, match=r"groups must not be missing, got inf at row 1"):
        check_groups(np.array([1.0, np.inf]), n_rows=2)


PROBS = [
    ([0.2, 0.8], r"got shape \(2,\); pass a column"),
    ([[1.0]], r"K at least 2, got shape \(1, 1\)"),
    (np.empty((0, 3)), r"probs must have at least one row, got shape \(0, 3\)"),
    ([[0.5, 0.5], [np.nan, 1]], r"probs must be finite, got NaN at row 1"),
    ([[0.5, 0.5], [-0.1, 1.1]], r"probs must lie in \[0, 1\], got \[-0.1, 1.1\] at row 1; apply a softmax"),
    ([[0.5, 0.5], [0.5, 0.4]], r"probs must sum to 1 in every row, got 0.9 at row 1; normalise the rows"),
]


@pytest.mark.parametrize(("probs", "words"), PROBS)
def test_probs_refused(probs, words):
    with pytest.raises(ValueError, match=words):
        check_probs(probs)


def test_top_label_ties_and_range():
    confidence, guess = top_label(np.array([[0.4, 0.4, 0.2], [0.1, 0.2, 0.7]]))
    assert guess.tolist() == [0, 2]
    assert confidence.tolist() == [0.4, 0.7]
    assert top_label(np.array([[1.0 + 1e-9, 0.0]]))[0][0] == 1


def test_top_label_forms():
    confidence, guess, y = check_top_label([[0.3, 0.7], [0.6, 0.4]], [1, 1])
    assert (confidence.tolist(), guess.tolist(), y.tolist()) == ([0.7, 0.6], [1, 0], [1, 1])
    confidence, guess, y = check_top_label([0.7, 0.6], [1, 1], predicted=[1, 0])
    assert (confidence.tolist(), guess.tolist(), y.tolist()) == ([0.7, 0.6], [1, 0], [1, 1])


TOP = [
    (
        [[0.7, 0.3]],
        [1],
        [1],
        ValueError,
        r"confidence must be one-dimensional when predicted is given, got shape",
    ),
    ([], [], [], ValueError, r"confidence must have at least one row, got 0"),
    ([0.5, 1.2], [0, 0], [0, 0], ValueError, r"confidence must lie in \[0, 1\], got 1.2 at row 1"),
    ([0.5, np.nan], [0, 0], [0, 0], ValueError, r"confidence must be finite, got NaN at row 1"),
    ([0.5], [0], [-2], ValueError, r"predicted must lie in 0, 1, 2, …, got -2 at row 0"),
    ([0.5], [0], [0.5], ValueError, r"predicted must be integers 0, 1, 2, …, got 0.5 at row 0"),
    ([0.5], ["a"], [0], TypeError, r"labels must be integers 0, 1, 2, …, got .*'a'.* at row 0"),
    ([0.5], [0, 1], [0], ValueError, r"labels must have one entry per row of logits \(1\), got 2"),
]


@pytest.mark.parametrize(("confidence", "labels", "predicted", "error", "words"), TOP)
def test_top_label_refused(confidence, labels, predicted, error, words):
    with pytest.raises(error, match=words):
        check_top_label(confidence, labels, predicted=predicted)


def test_names():
    assert check_names(None, 3) == ["0", "1", "2"]
    assert check_names(np.array(["a", "b"]), 2) == ["a", "b"]
    with pytest.raises(ValueError, match=r"class_names must have one entry per class \(3\), got 2"):
        check_names(["a", "b"], 3)


def test_generators():
    rng = np.random.default_rng(5)
    assert as_generator(rng) is rng
    assert as_generator(5).random() == np.random.default_rng(5).random()
    assert as_generator(np.int64(5)).random() == np.random.default_rng(5).random()
    for bad in (-1, None, "5", 1.5, np.random.RandomState(0)):
        with pytest.raises(
            TypeError, match=r"rng must be a numpy.random.Generator or a non-negative seed, got "
        ):
            as_generator(bad)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_softmax(dtype):
    z = np.random.default_rng(0).normal(size=(20, 5)).astype(dtype)
    np.testing.assert_allclose(softmax(z), scipy.special.softmax(z, axis=1), rtol=1e-5)
    assert softmax(z).dtype == dtype
    end = np.finfo(dtype).max
    np.testing.assert_array_equal(
        softmax(np.array([[end, -end], [end, end], [-end, -end]])), [[1, 0], [0.5, 0.5], [0.5, 0.5]]
    )


def test_to_logits_keep_the_lead_of_the_last_bit():
    first = np.linspace(0.18, 0.22, 200)
    second = np.nextafter(first, 1)
    rest = np.repeat(((1 - first - second) / 4)[:, None], 4, axis=1)
    p = np.column_stack([first, second, rest])
    assert (np.log(p).argmax(axis=1) == 0).any()  # the logarithm alone loses some
    np.testing.assert_array_equal(to_logits(p).argmax(axis=1), 1)


def test_to_logits():
    p = scipy.special.softmax(np.random.default_rng(0).normal(size=(20, 5)), axis=1)
    np.testing.assert_allclose(scipy.special.softmax(to_logits(p), axis=1), p)
    assert to_logits(np.float32([[0.0, 1.0]])).dtype == np.float32
    with pytest.raises(ValueError, match="probs must lie in"):
        to_logits([[3.0, -2.0]])


@pytest.mark.parametrize(
    ("probs", "floor"),
    [
        ([[0.2, 0.8], [0.0, 1.0]], 0.1),  # half of the smallest positive one
        ([[0.25, 0.5, 0.25], [0.0, 0.5, 0.5]], 0.125),
        ([[0.0, 1.0], [1.0, 0.0]], 0.25),  # no more than 1/(2K): decisions stay
        ([[5e-324, 1.0], [0.0, 1.0]], np.finfo(np.float32).tiny),  # no less than a float32 holds
        ([[1e-30, 1.0], [0.3, 0.7]], 5e-31),
    ],
)
def test_a_zero_counts_as_half_of_the_smallest_positive_probability(probs, floor):
    assert probability_floor(np.array(probs)) == pytest.approx(floor, rel=1e-12)
    z = to_logits(probs)
    np.testing.assert_allclose(z, np.log(np.maximum(probs, floor)))
    np.testing.assert_array_equal(z.argmax(axis=1), np.argmax(probs, axis=1))


def test_a_floor_of_ones_own():
    np.testing.assert_allclose(to_logits([[0.0, 1.0]], floor=0.01), np.log([[0.01, 1.0]]))
    for bad in (0, 0.5, -1, True, np.nan):
        with pytest.raises(ValueError, match=r"floor must lie between 0 and 1/K \(0\.5\), got"):
            to_logits([[0.0, 1.0]], floor=bad)


def test_labels_that_are_text():
    names = ["dog", "cat", "owl"]  # not sorted
    y = check_labels(["owl", "dog", "cat"], n_rows=3, n_classes=3, class_names=names)
    assert y.tolist() == [2, 0, 1]
    with pytest.raises(
        ValueError, match=r"labels must be among class_names \(dog, cat, owl\), got 'emu' at row 1"
    ):
        check_labels(["owl", "emu"], n_rows=2, n_classes=3, class_names=names)
    with pytest.raises(ValueError, match=r"class_names must differ .*got 'dog' twice"):
        check_labels(["dog"], n_rows=1, n_classes=3, class_names=["dog", "cat", "dog"])


def test_normalised_weights():
    w = np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(normalise_weights(w).sum(), 36 / 14)  # the effective sample size
    for scale in (1e-300, 1e-9, 1e90):
        np.testing.assert_allclose(normalise_weights(scale * w), normalise_weights(w), rtol=1e-12)


def test_binary_logits():
    s = np.array([-3.0, 0.0, 2.5])
    np.testing.assert_allclose(softmax(binary_logits(s))[:, 1], scipy.special.expit(s))
    np.testing.assert_array_equal(binary_logits(s[:, None]), binary_logits(s))
    assert binary_logits(s.astype(np.float16)).dtype == np.float32
    with pytest.raises(
        ValueError, match=r"scores must be one-dimensional, got shape \(3, 2\); calibrators take"
    ):
        binary_logits(np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"scores must be finite, got NaN at row 1"):
        binary_logits([0.0, np.nan])
    with pytest.raises(TypeError, match=r"scores must be numbers"):
        binary_logits(["a"])


def test_minus_infinity_is_named_as_such():
    with pytest.raises(ValueError, match=r"logits must be finite, got -infinity \(-inf\) at row 1"):
        check_logits([[0.0, 1.0], [-np.inf, 2.0]])
    with pytest.raises(ValueError, match=r"sample_weight .* got -infinity \(-inf\) at row 0"):
        check_weights([-np.inf, 1.0], n_rows=2)
    with pytest.raises(ValueError, match=r"labels must be integers 0\.\.2, got -infinity \(-inf\) at row 1"):
        check_labels([0.0, -np.inf], n_rows=2, n_classes=3)


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
    with pytest.raises(ValueError, match=f"{name} must have no masked entries, got one at row 2; keep"):
        MASKED[name]()


def test_masked_arrays_can_be_used_once_their_masked_rows_are_left_out():
    logits = np.ma.array(np.eye(4) * 3, mask=np.outer(MASK, [0, 1, 0, 0]))
    keep = ~np.ma.getmaskarray(logits).any(axis=1)  # as the error says
    np.testing.assert_array_equal(check_logits(logits[keep]), np.eye(4)[[0, 1, 3]] * 3)
    labels = np.ma.array([0, 1, 2, 3], mask=MASK)
    assert check_labels(labels[~np.ma.getmaskarray(labels)], n_rows=3, n_classes=4).tolist() == [0, 1, 3]
    with pytest.raises(ValueError, match="sample_weight must have no masked entries, got a masked value"):
        check_weights(np.ma.masked, n_rows=4)


def test_integers():
    assert check_integer(np.int32(3), "cv", minimum=2) == 3
    assert type(check_integer(np.int32(3), "cv")) is int
    assert check_integer(5, "cv", minimum=5, maximum=5) == 5
    for bad in (True, np.bool_(True), 2.0, "2", None, np.array(2)):
        for kind in (TypeError, ValueError):  # either can be caught
            with pytest.raises(kind, match="cv must be an integer"):
                check_integer(bad, "cv", minimum=2)
    with pytest.raises(ValueError, match=r"cv must be an integer at least 2, got 1; use 5") as raised:
        check_integer(1, "cv", minimum=2, remedy="use 5")
    assert not isinstance(raised.value, TypeError)
    with pytest.raises(ValueError, match=r"n must be an integer in 1\.\.4, got 5"):
        check_integer(5, "n", minimum=1, maximum=4)
    with pytest.raises(ValueError, match=r"n must be an integer at most 4, got 5"):
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
        with pytest.raises(ValueError, match=f"rate must .*{rule}.*, got .*; pass a fraction"):
            check_number(bad, "rate", **options, remedy="pass a fraction")


def test_choices():
    assert check_choice("b", "by", ("a", "b")) == "b"
    for bad in ("c", None, ["a"], np.array(["a"])):
        with pytest.raises(ValueError, match=r"by must be one of 'a', 'b', got"):
            check_choice(bad, "by", ("a", "b"))


def test_flags():
    assert check_flag(np.bool_(True), "ensemble") is True
    for bad in (1, 0, None, "yes"):
        with pytest.raises(TypeError, match="ensemble must be True or False"):
            check_flag(bad, "ensemble")
