"""Checks of the theorems, the data of the figures, and the slack of the bounds."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

import hetcal.theory as theory
from hetcal.theory import (
    Check,
    bound_curve,
    bound_slack,
    cts_bound,
    lemma_curve,
    theory_checks,
)


@pytest.fixture(scope="module")
def checks() -> list[Check]:
    return theory_checks(rng=0, draws=500)


def test_only_the_claim_about_30n_rows_fails(checks: list[Check]) -> None:
    failed = [check for check in checks if not check.holds]
    assert [check.claim.split()[-1] for check in failed] == ["20", "100", "400"]
    assert all("30n" in check.claim for check in failed)
    assert all(check.exact == pytest.approx(0.777, abs=1e-3) for check in failed)
    assert all(check.simulated == pytest.approx(0.777, abs=0.08) for check in failed)


def test_checks_are_distinct_and_cover_every_result(checks: list[Check]) -> None:
    claims = [check.claim for check in checks]
    assert len(set(claims)) == len(claims)
    for result in ("Lemma 3.3", "Theorem 3.1", "Theorem 4.1", "Corollary 4.2"):
        assert any(result in claim for claim in claims)
    fields = ["claim", "promised", "exact", "simulated", "holds"]
    assert [field.name for field in dataclasses.fields(Check)] == fields
    json.dumps([dataclasses.asdict(check) for check in checks], allow_nan=False)


def test_seed_and_generator_give_the_same_checks(checks: list[Check]) -> None:
    assert theory_checks(rng=np.random.default_rng(0), draws=500) == checks


def test_lemma_curve_agrees_with_simulation() -> None:
    curve = lemma_curve(p_test=0.1, draws=400, rng=2)
    assert curve.noise == tuple(round(0.05 * k, 2) for k in range(10))
    assert curve.confidence == pytest.approx([1 - p for p in curve.noise])
    assert curve.accuracy == pytest.approx([0.9] * 10)
    for line, points, errors in (
        (curve.confidence, curve.simulated_confidence, curve.simulated_confidence_error),
        (curve.accuracy, curve.simulated_accuracy, curve.simulated_accuracy_error),
    ):
        assert np.all(np.abs(np.subtract(line, points)) <= 4 * np.array(errors) + 1e-9)
    json.dumps(dataclasses.asdict(curve), allow_nan=False)


def test_bound_curve_evaluates_the_bound() -> None:
    lines = bound_curve()
    assert [(line.n_classes, line.gamma) for line in lines] == [
        (k, gamma) for k in (2, 10, 100) for gamma in (0.0, 0.01, 1.0)
    ]
    for line in lines:
        assert len(line.n) == len(line.bound) == len(line.regime)
        assert (line.n[0], line.n[-1]) == (100, 10**7)
        bound_at = cts_bound(
            line.n[5], line.n_classes, line.gamma, alpha_range=(0, 10), l_f=10.0, l_c=1.0, delta=0.05
        )
        assert line.bound[5] == bound_at
    assert {line.regime[-1] for line in lines} == {"shared", "class-wise"}
    json.dumps([dataclasses.asdict(line) for line in lines], allow_nan=False)


def test_closed_form_excess_agrees_with_grid_search() -> None:
    # Two classes whose rows have logits e_k: a grid search over α minimises half the Brier score.
    q, n = np.array([0.6, 0.85]), 4000
    rng = np.random.default_rng(0)
    counts = rng.multinomial(n, [0.5, 0.5])
    right = rng.binomial(counts, q)
    c = 1 / (1 + np.exp(-np.linspace(0, 10, 200_001)))
    for k in range(2):
        empirical = (right[k] * (1 - c) ** 2 + (counts[k] - right[k]) * c**2) / counts[k]
        truth = q[k] * (1 - c) ** 2 + (1 - q[k]) * c**2
        fitted = np.argmin(empirical)
        assert c[fitted] == pytest.approx(right[k] / counts[k], abs=1e-4)
        formula = (right[k] / counts[k] - q[k]) ** 2 * 2 / (2 * (2 - 1))
        assert truth[fitted] - truth.min() == pytest.approx(formula, abs=1e-6)


def test_bound_shrinks_more_slowly_than_the_excess() -> None:
    few, many = (bound_slack(n, [0.5, 0.7, 0.9], rng=1) for n in (5000, 500_000))
    for a, b in zip(few, many, strict=True):
        assert a.frequency == b.frequency == 1.0
        assert a.bound / b.bound == pytest.approx(10, rel=0.2)  # proportional to 1/√n
        assert a.excess / b.excess == pytest.approx(100, rel=0.2)  # proportional to 1/n
        assert b.ratio > a.ratio > 100


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: theory_checks(draws=0), "draws"),
        (lambda: bound_slack(100, [0.9]), "correct"),
        (lambda: bound_slack(100, [0.9, 0.4]), r"correct\[1\]"),
        (lambda: bound_slack(0, [0.9, 0.8]), "n"),
        (lambda: bound_slack(10, [0.9, 0.8], delta=0), "delta"),
        (lambda: lemma_curve(p_test=0.6), "p_test"),
        (lambda: bound_curve(gammas=[6.0]), "gamma"),
    ],
)
def test_invalid_arguments(call: Any, name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must "):
        call()


def test_public_names() -> None:
    assert all(hasattr(theory, name) for name in theory.__all__)
    assert {"NoisyBinary", "RareFeature", "cts_bound", "classwise_bound", "samples_needed"} <= set(
        theory.__all__
    )
