"""Calibrators on arbitrary rows: a valid result, or an error in our format."""

from __future__ import annotations

import copy
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st
from strategies import (
    BAD_NUMBERS,
    FLOATS,
    MAY_NOT_CONVERGE,
    MODERATE,
    calibrators,
    cases,
    check_probabilities,
    corrupt,
    fuzzed,
    label_forms,
    result_or_error,
    rows_of,
    seeds,
    two_class_calibrators,
)

import hetcal as h
from hetcal.artefact import decode, encode

pytestmark = MAY_NOT_CONVERGE


def has_bundles(cal):
    """Whether a calibrator or one of its parts uses bundles, which cannot be combined with groups."""
    parts = [*getattr(cal, "steps", []), *getattr(cal, "calibrators", []), cal]
    return any(getattr(part, "bundles", None) is not None for part in parts)


def predict_and_check(cal, z, **options):
    p = cal.predict_proba(z, **options)
    check_probabilities(p, z, keeps=cal.preserves_decision)
    return p


@fuzzed(share=3, cal=calibrators(), case=cases(), form=label_forms)
def test_probabilities_and_decisions(cal, case, form):
    original = case.z.copy()
    cal.fit(case.z, form(case.y))
    predict_and_check(cal, case.z)
    np.testing.assert_array_equal(case.z, original)
    seed, _, k, _, dtype, *_ = case.parameters
    for content in ("tame", "mixed_magnitudes"):
        predict_and_check(cal, rows_of(seed + 1, 7, k, content, dtype, np.ascontiguousarray, "random").z)


@fuzzed(share=2, cal=two_class_calibrators, case=cases(wide=2), weighed=st.booleans())
def test_two_classes(cal, case, weighed):
    w = case.rng.choice([0.0, 1e-12, 1.0, 2.5, 1e9], size=len(case.y)) if weighed else None
    if weighed:
        w[0] = 1
    cal.fit(case.z, case.y, sample_weight=w)
    p = predict_and_check(cal, case.z)
    np.testing.assert_array_equal(decode(encode(cal), "cal.json").predict_proba(case.z), p)


@fuzzed(share=2, cal=two_class_calibrators, case=cases(wide=2, contents=MODERATE, dtypes=(np.float64,)))
def test_the_order_of_rows_and_of_two_classes_does_not_matter(cal, case):
    p = cal.fit(case.z, case.y).predict_proba(case.z)
    order = case.rng.permutation(len(case.y))
    close(cal.fit(case.z[order], case.y[order]).predict_proba(case.z), p)
    swapped = np.ascontiguousarray(case.z[:, ::-1])
    q = cal.fit(swapped, 1 - case.y).predict_proba(swapped)[:, ::-1]
    tied = case.z[:, 0] == case.z[:, 1]
    close(q[~tied], p[~tied])


@fuzzed(
    share=0.1, cal=calibrators(), case=cases(wide=5000, max_n=300, contents=(*MODERATE, "huge", "masked"))
)
def test_many_classes(cal, case):
    k = case.z.shape[1]
    assume(k <= 100 or "ClassWise(base=VectorScaling" not in repr(cal))
    assume(k <= 1000 or "cv" not in repr(cal))
    predict_and_check(cal.fit(case.z, case.y), case.z)


@fuzzed(share=0.03, case=cases(max_n=40), combine=st.sampled_from(["stack", "best"]), weighed=st.booleans())
def test_auto(case, combine, weighed):
    w = case.rng.integers(0, 3, size=len(case.y)) + 0.5 if weighed else None
    cal = h.AutoCalibrator(cv=2, combine=combine).fit(case.z, case.y, sample_weight=w)
    assert cal.preserves_decision
    predict_and_check(cal, case.z)
    assert sum(c["weight"] for c in cal.candidates_) == pytest.approx(1)


@fuzzed(
    cal=calibrators(), case=cases(), kind=st.sampled_from(["int", "str", "bytes", "float", "object", "bool"])
)
def test_groups_and_weights(cal, case, kind):
    n = len(case.y)
    assume(not has_bundles(cal))
    ids = case.rng.integers(0, case.rng.integers(1, 5), size=n)
    groups = {
        "int": ids,
        "str": np.array(list("abcde"))[ids],
        "bytes": np.array([b"a", b"b", b"c", b"d", b"e"])[ids],
        "float": ids.astype(float),
        "object": np.array(list("abcde"), object)[ids],
        "bool": ids > 0,
    }[kind]
    w = case.rng.choice([0.0, 1e-12, 1.0, 2.5, 1e9], size=n)
    w[0] = 1
    cal.fit(case.z, case.y, sample_weight=w, groups=groups)
    rows = np.isin(ids, ids[w > 0])
    z = case.z[rows]
    assume(z.min() < 0 or z.max() > 1)  # would be rejected as probabilities
    predict_and_check(cal, z, groups=groups[rows])


def fitted_and_uncalibrated_nll(cal, case):
    """NLL on the training rows with and without calibration, in float64."""
    z = case.z.astype(np.float64)
    guess = z.argmax(axis=1)
    if isinstance(cal, h.VectorScaling):
        u = cal.scale_ * z + cal.bias_ if not cal.center else cal.scale_ * centred(z) + cal.bias_
    elif isinstance(cal, h.ClassWise):
        u = cal.parameters_[guess] * z
    else:
        u = np.broadcast_to(cal.alpha_, z.shape[1])[guess][:, None] * z
    return nll(u, case.y), nll(z, case.y)


def centred(z):
    below = z - z.max(axis=1, keepdims=True)
    return below - np.maximum(below, -100).mean(axis=1, keepdims=True)


def nll(u, y):
    below = u - u.max(axis=1, keepdims=True)
    return float((np.log(np.exp(below).sum(axis=1)) - below[np.arange(len(y)), y]).mean())


NLL_MINIMISERS = st.one_of(
    st.builds(h.TemperatureScaling),
    st.builds(h.ClassWiseTemperatureScaling, st.sampled_from([0, 0.1, 3.0, np.inf])),
    st.builds(h.ClassWise, st.just(h.TemperatureScaling()), st.sampled_from([0, 0.1, np.inf])),
    st.builds(h.VectorScaling, center=st.booleans()),
)


@fuzzed(share=2, cal=NLL_MINIMISERS, case=cases())
def test_fits_that_minimise_the_nll_do_not_increase_it(cal, case):
    # This does not hold with a penalty, cross-validation or another loss, nor for the top label alone.
    cal.fit(case.z, case.y)
    fitted, uncalibrated = fitted_and_uncalibrated_nll(cal, case)
    scale = max(1.0, float(np.abs(case.z.astype(np.float64)).max()))
    slack = np.finfo(np.float32 if case.z.dtype != np.float64 else np.float64).eps * 100 * scale
    assert fitted <= uncalibrated * (1 + 1e-6) + 1e-9 + slack


@fuzzed(case=cases())
def test_isotonic_regression_does_not_increase_the_squared_error(case):
    # The identity is monotone as well. A histogram may be worse, because it has fewer distinct confidences.
    is_correct = case.z.argmax(axis=1) == case.y
    maps = (h.Identity(), h.TopLabelIsotonic())
    before, after = (cal.fit(case.z, case.y).predict_proba(case.z).max(axis=1) for cal in maps)
    assert np.mean((after - is_correct) ** 2) <= np.mean((before - is_correct) ** 2) + 1e-6


def close(p, q, tolerance=1e-4):
    np.testing.assert_allclose(p, q, rtol=0, atol=tolerance)


# These have a unique optimum, thanks to ridges and bounds. Without one (separable classes, piecewise constant
# losses), equivalent data may give different fits.
UNIQUE = st.one_of(
    st.builds(h.Identity),
    st.builds(h.TemperatureScaling),
    st.builds(h.ClassWiseTemperatureScaling, st.sampled_from([0, 0.1, np.inf])),
    st.builds(
        h.VectorScaling, st.sampled_from([0.01, 1.0]), center=st.booleans(), keep_decision=st.booleans()
    ),
    st.builds(h.TopLabelIsotonic),
    st.builds(h.TopLabelHistogram, st.integers(1, 9), st.sampled_from(["width", "mass"])),
    st.builds(h.ClassWise, st.just(h.TopLabelIsotonic()), min_samples=st.just(1)),
    st.builds(lambda: h.Chain([h.TemperatureScaling(), h.TopLabelHistogram(3, "width")])),
    st.builds(lambda: h.Mixture([h.TemperatureScaling(), h.ClassWiseTemperatureScaling(0.1)], [1, 2])),
)
# These depend on the number of rows, so duplicating all rows changes them, but reordering does not.
SIZE_DEPENDENT = st.one_of(
    st.builds(h.ClassWiseTemperatureScaling, st.just("bayes")),
    st.builds(h.ClassWise, st.builds(h.PlattScaling, pool=st.booleans()), st.just("bayes")),
)
moderate = cases(contents=MODERATE, dtypes=(np.float64,))


@fuzzed(
    share=2,
    cal=calibrators(["VectorScaling", "PlattScaling", "ClassWise", "Platt bayes"]),
    case=cases(contents=MODERATE),
)
def test_moderate_logits_converge(cal, case):
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        predict_and_check(cal.fit(case.z, case.y), case.z)


@fuzzed(share=2, cal=st.one_of(UNIQUE, SIZE_DEPENDENT), case=moderate)
def test_row_order_does_not_matter(cal, case):
    p = cal.fit(case.z, case.y).predict_proba(case.z)
    order = case.rng.permutation(len(case.y))
    close(cal.fit(case.z[order], case.y[order]).predict_proba(case.z), p)


@fuzzed(share=2, cal=st.one_of(UNIQUE, SIZE_DEPENDENT), case=cases(contents=("tame",), dtypes=(np.float64,)))
def test_class_order_does_not_matter(cal, case):
    p = cal.fit(case.z, case.y).predict_proba(case.z)
    order = case.rng.permutation(case.z.shape[1])
    z = np.empty_like(case.z)
    z[:, order] = case.z
    close(cal.fit(z, order[case.y]).predict_proba(z)[:, order], p)


@fuzzed(share=2, cal=UNIQUE, case=moderate, copies=st.integers(2, 4))
def test_duplicating_all_rows_does_not_matter(cal, case, copies):
    p = cal.fit(case.z, case.y).predict_proba(case.z)
    close(cal.fit(np.tile(case.z, (copies, 1)), np.tile(case.y, copies)).predict_proba(case.z), p)


@fuzzed(share=2, cal=UNIQUE, case=moderate)
def test_integer_weights_equal_repeated_rows(cal, case):
    w = case.rng.integers(0, 4, size=len(case.y))
    w[0] += 1
    p = cal.fit(case.z, case.y, sample_weight=w).predict_proba(case.z)
    z = np.repeat(case.z, w, axis=0)
    assume(z.min() < 0 or z.max() > 1)  # would be rejected as probabilities
    close(cal.fit(z, np.repeat(case.y, w)).predict_proba(case.z), p)


@fuzzed(cal=calibrators(), case=cases(), grouped=st.booleans())
def test_save_and_load_round_trip(cal, case, grouped):
    groups = case.rng.choice(["a", "Ω", '"'], size=len(case.y)) if grouped and not has_bundles(cal) else None
    options = {} if groups is None else {"groups": groups}
    cal.fit(case.z, case.y, **options)
    with tempfile.TemporaryDirectory() as folder:
        h.save(cal, Path(folder, "cal.json"))
        loaded = h.load(Path(folder, "cal.json"))
    np.testing.assert_array_equal(
        loaded.predict_proba(case.z, **options), cal.predict_proba(case.z, **options)
    )
    assert loaded.preserves_decision == cal.preserves_decision


@fuzzed(
    share=0.5,
    cal=st.one_of(
        st.builds(h.Identity),
        st.builds(h.TemperatureScaling),
        st.builds(h.ClassWiseTemperatureScaling, st.sampled_from([0, 0.1, np.inf, "bayes"])),
        st.builds(h.VectorScaling, st.just(0.1)),
        st.builds(h.PlattScaling),
        st.just(h.Chain([h.VectorScaling(0.1, center=True), h.PlattScaling(pool=True)])),
    ),
    case=cases(contents=("tame",), dtypes=FLOATS),
    rows=st.integers(1, 50),
)
def test_batches_and_arrays_give_the_same_result(cal, case, rows):
    batches = h.Batches(np.ascontiguousarray(case.z), case.y, batch_rows=rows)
    in_memory = cal.fit(case.z, case.y).predict_proba(case.z)
    in_batches = copy.deepcopy(cal).fit(batches).predict_proba(case.z)
    close(in_batches, in_memory, 1e-3)


@fuzzed(
    share=2,
    cal=calibrators(),
    case=cases(max_n=20, wide=5),
    what=st.sampled_from(["z", "y", "w", "g"]),
    seed=seeds,
)
def test_invalid_rows_in_fit_raise_our_errors(cal, case, what, seed):
    rng = np.random.default_rng(seed)
    n = len(case.y)
    arrays = {"z": case.z, "y": case.y, "w": np.ones(n), "g": rng.integers(2, size=n)}
    arrays[what] = corrupt(rng, arrays[what])
    options = (
        {"sample_weight": arrays["w"]} if what == "w" else {"groups": arrays["g"]} if what == "g" else {}
    )
    fitted = result_or_error(lambda: cal.fit(arrays["z"], arrays["y"], **options))
    if fitted is not None and what != "g":
        predict_and_check(
            fitted, case.z if what != "z" or fitted.n_features_in_ == case.z.shape[1] else arrays["z"]
        )


@fuzzed(cal=calibrators(), case=cases(max_n=20, wide=5), seed=seeds)
def test_invalid_rows_in_predict_raise_our_errors(cal, case, seed):
    cal.fit(case.z, case.y)
    modified = corrupt(np.random.default_rng(seed), case.z)
    p = result_or_error(lambda: cal.predict_proba(modified))
    if p is not None:
        assert np.isfinite(p).all()


OPTIONS = [
    lambda v: h.TemperatureScaling((v, 2)),
    lambda v: h.TemperatureScaling(v),
    lambda v: h.TemperatureScaling(loss=v),
    lambda v: h.ClassWiseTemperatureScaling(v),
    lambda v: h.ClassWiseTemperatureScaling(bundles=v),
    lambda v: h.ClassWiseTemperatureScaling("cv", cv=v),
    lambda v: h.VectorScaling(v),
    lambda v: h.VectorScaling(center=v),
    lambda v: h.VectorScaling(keep_decision=v),
    lambda v: h.BinaryScaling(v),
    lambda v: h.BinaryScaling(keep_decision=v),
    lambda v: h.PlattScaling(pool=v),
    lambda v: h.TopLabelHistogram(v),
    lambda v: h.TopLabelHistogram(3, v),
    lambda v: h.ClassWise(v),
    lambda v: h.ClassWise(h.PlattScaling(), v),
    lambda v: h.ClassWise(h.TemperatureScaling(), loss=v),
    lambda v: h.ClassWise(h.PlattScaling(), min_samples=v),
    lambda v: h.ClassWise(h.TopLabelIsotonic(), v),
    lambda v: h.Chain(v),
    lambda v: h.Chain([v]),
    lambda v: h.Mixture(v),
    lambda v: h.Mixture([h.Identity()], v),
    lambda v: h.Mixture([h.Identity(), h.PlattScaling()], [v, 1]),
    lambda v: h.AutoCalibrator({"a": h.Identity()}, cv=v),
    lambda v: h.AutoCalibrator(v),
    lambda v: h.AutoCalibrator({"a": v}),
    lambda v: h.AutoCalibrator({"a": h.Identity()}, combine=v),
]


@fuzzed(
    share=2,
    make=st.sampled_from(OPTIONS),
    value=BAD_NUMBERS,
    case=cases(contents=("tame",), max_n=30, wide=4),
)
def test_invalid_options_raise_our_errors(make, value, case):
    cal = make(value)
    fitted = result_or_error(lambda: cal.fit(case.z, case.y))
    if fitted is not None:
        predict_and_check(fitted, case.z)
