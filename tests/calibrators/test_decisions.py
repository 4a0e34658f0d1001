"""Calibrators with `preserves_decision` never change the argmax, and all outputs are probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hetcal import (
    AutoCalibrator,
    Chain,
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

pytestmark = pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")

KEEPERS = {
    "identity": Identity(),
    "ts": TemperatureScaling(),
    "ts-ece": TemperatureScaling(loss="ece"),
    "cts": ClassWiseTemperatureScaling(),
    "cts-coupled": ClassWiseTemperatureScaling(gamma=0.1),
    "cts-bayes": ClassWiseTemperatureScaling(gamma="bayes"),
    "cts-bundles": ClassWiseTemperatureScaling(bundles=2),
    "vector-kept": VectorScaling(1e-3, keep_decision=True),
    "vector-kept-centred": VectorScaling(1e-3, center=True, keep_decision=True),
    "platt": PlattScaling(),
    "platt-pooled": PlattScaling(pool=True),
    "classwise-platt-bayes": ClassWise(PlattScaling(pool=True), gamma="bayes"),
    "chain": Chain([VectorScaling(1e-3, keep_decision=True), PlattScaling()]),
    "mixture": Mixture([TemperatureScaling(), PlattScaling()]),
    "isotonic": TopLabelIsotonic(),
    "histogram": TopLabelHistogram(),
    "histogram-width": TopLabelHistogram(binning="width"),
    "classwise-ts": ClassWise(TemperatureScaling()),
    "classwise-platt": ClassWise(PlattScaling()),
    "classwise-isotonic": ClassWise(TopLabelIsotonic(), min_samples=1),
    "classwise-histogram": ClassWise(TopLabelHistogram(n_bins=4), min_samples=1),
    "auto": AutoCalibrator(cv=2),
    "auto-of-isotonic": AutoCalibrator({"only": TopLabelIsotonic()}, cv=2),
}
CLASSES = (2, 3, 10, 40)
ROWS = 1_000_000
TOLERANCE = {np.dtype(np.float32): 2e-6, np.dtype(np.float64): 1e-14}


def labels(z, rng, kind):
    """Mostly correct labels, random labels, or labels that are random where the model is most confident."""
    guess = z.argmax(axis=1)
    noise = rng.integers(0, z.shape[1], size=len(z))
    sure = np.sort(z, axis=1)[:, -1] > 4
    share = {"sensible": 0.3, "chance": 1.0, "contrary": np.where(sure, 1.0, 0.2)}[kind]
    return np.where(rng.random(len(z)) < share, noise, guess)


@pytest.fixture(scope="module")
def fitted():
    """Every calibrator, for every number of classes and kind of labels."""
    calibrators = {}
    for n_classes in CLASSES:
        for kind in ("sensible", "chance", "contrary"):
            rng = np.random.default_rng(n_classes)
            z = rng.normal(scale=2, size=(400, n_classes))
            z[np.arange(400), rng.integers(0, n_classes, size=400)] += 2
            y = labels(z, rng, kind)
            for name, cal in KEEPERS.items():
                calibrators[name, n_classes, kind] = type(cal)(**cal.get_params(deep=False)).fit(z, y)
    return calibrators


def hard_rows(rng, n, n_classes):
    """Rows of every kind that is prone to a change of the argmax, in float64."""
    z = rng.normal(scale=3, size=(n, n_classes))
    kind = np.arange(n) % 9
    z[kind == 1] = np.round(z[kind == 1])  # ties
    z[kind == 2] = z[kind == 2][:, :1]  # constant
    z[kind == 3] *= 1e4 / 3
    z[kind == 4] = np.sign(z[kind == 4]) * 1e4  # ties of extreme values
    z[kind == 5] *= 1e-9  # differences that exp() rounds away
    z[kind == 6] = 1e4 + 1e-3 * z[kind == 6]
    near = np.flatnonzero(kind == 7)  # the last column exceeds the first by one unit in the last place
    z[near, 0] = np.abs(z[near, 0]) + 3 * rng.random(len(near))
    z[near, 1:-1] -= 50
    z[near, -1] = z[near, 0]
    z[kind == 8] = rng.integers(0, 2, size=z[kind == 8].shape) * rng.uniform(
        1, 50, size=(np.sum(kind == 8), 1)
    )
    return z, near


def in_dtype(z, near, dtype):
    z = z.astype(dtype)
    z[near, -1] = np.nextafter(z[near, 0], dtype(np.inf))
    return z


def check(cal, z):
    p = cal.predict_proba(z)
    assert cal.preserves_decision
    np.testing.assert_array_equal(p.argmax(axis=1), z.argmax(axis=1))
    check_probs(p)


def check_probs(p):
    assert p.min() >= 0
    assert p.max() <= 1
    assert np.abs(p.sum(axis=1, dtype=np.float64) - 1).max() <= TOLERANCE[p.dtype] * max(8, p.shape[1])


@pytest.mark.parametrize("name", KEEPERS)
def test_decisions_are_preserved_on_a_million_rows(fitted, name):
    rng, n_checked = np.random.default_rng(0), 0
    share = {2: 0.4, 3: 0.3, 10: 0.25, 40: 0.05}
    for n_classes in CLASSES:
        for i, dtype in enumerate((np.float16, np.float32, np.float64)):
            n = int(ROWS * share[n_classes]) // 3 + 1
            z = in_dtype(*hard_rows(rng, n, n_classes), dtype)
            kinds = ("sensible", "chance", "contrary")
            for part, kind in zip(np.array_split(z, 3), np.roll(kinds, i), strict=True):
                check(fitted[name, n_classes, kind], part)
            n_checked += n
    assert n_checked >= ROWS


@pytest.mark.parametrize("name", KEEPERS)
def test_single_rows_are_predicted_as_in_a_batch(fitted, name):
    rng = np.random.default_rng(1)
    for n_classes in CLASSES:
        for dtype in (np.float32, np.float64):
            z = in_dtype(*hard_rows(rng, 60, n_classes), dtype)
            z = z[(z.min(axis=1) < 0) | (z.max(axis=1) > 1)]  # rows that look like probabilities are refused
            batch = fitted[name, n_classes, "sensible"].predict_proba(z)
            rows = [fitted[name, n_classes, "sensible"].predict_proba(row[None])[0] for row in z]
            np.testing.assert_allclose(np.stack(rows), batch, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_decisions_are_preserved_for_arbitrary_logits(fitted, dtype, data):
    n_classes = data.draw(st.sampled_from(CLASSES[:3]))
    finite = st.floats(-1e4, 1e4, width=np.dtype(dtype).itemsize * 8)
    small = st.sampled_from([0.0, 1.0, -1.0, 0.5, 1e4, -1e4])
    z = data.draw(arrays(dtype, (data.draw(st.integers(1, 4)), n_classes), elements=finite | small))
    total = z.astype(np.float64).sum(axis=1)
    assume(z.min() < 0 or z.max() > 1 or np.any(np.abs(total - 1) > 1e-2))
    name = data.draw(st.sampled_from(list(KEEPERS)))
    check(fitted[name, n_classes, data.draw(st.sampled_from(["sensible", "chance", "contrary"]))], z)


@pytest.mark.parametrize(
    "cal", [VectorScaling(), VectorScaling(ridge=0.1), ClassWise(VectorScaling(ridge=0.1))]
)
def test_vector_scaling_does_not_claim_to_preserve_decisions(cal):
    rng = np.random.default_rng(0)
    z = rng.normal(scale=2, size=(500, 3))
    y = (z + rng.gumbel(size=z.shape) + [1, 0, -1]).argmax(axis=1)
    cal.fit(z, y)
    assert not cal.preserves_decision
    for dtype in (np.float16, np.float32, np.float64):
        check_probs(cal.predict_proba(in_dtype(*hard_rows(rng, 3000, 3), dtype)))


def test_preserves_decision_of_composites():
    assert AutoCalibrator().preserves_decision
    assert not AutoCalibrator({"a": Identity(), "b": VectorScaling()}).preserves_decision
    assert not ClassWise(VectorScaling()).preserves_decision
    assert ClassWise(PlattScaling()).preserves_decision
