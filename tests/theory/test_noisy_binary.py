"""Lemma 3.3: the population fit, fits to data, simulation and errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from hetcal.theory import NoisyBinary

GRID = [(0.0, 0.0), (0.0, 0.2), (0.01, 0.499), (0.3, 0.05), (0.499, 0.2)]


@pytest.mark.parametrize(("p_plus", "p_minus"), GRID)
def test_population_fit_has_the_confidences_of_the_lemma(p_plus: float, p_minus: float) -> None:
    model = NoisyBinary(p_plus, p_minus)
    fit = model.fit_population()
    assert fit.prob_plus == pytest.approx(1 - p_plus, abs=1e-6) == model.confidence_plus
    assert fit.prob_minus == pytest.approx(1 - p_minus, abs=1e-6) == model.confidence_minus
    assert fit.accuracy(0.2) == pytest.approx(0.8) == model.accuracy(0.2)


@given(st.floats(1e-6, 0.5), st.floats(1e-6, 0.5))
def test_population_fit_is_the_logit_of_the_lemma(p_plus: float, p_minus: float) -> None:
    fit = NoisyBinary(p_plus, p_minus).fit_population()
    assert fit.slope + fit.intercept == pytest.approx(np.log((1 - p_plus) / p_plus), abs=1e-6)
    assert fit.slope - fit.intercept == pytest.approx(np.log((1 - p_minus) / p_minus), abs=1e-6)


def test_fit_to_rows_minimises_the_nll_as_a_general_optimiser_does() -> None:
    x, y = NoisyBinary(0.25, 0.1).sample(500, rng=3)
    fit = NoisyBinary.fit(x, y)

    def nll(t: np.ndarray) -> float:
        return float(np.logaddexp(0, -(2 * y - 1) * (t[0] * x + t[1])).mean())

    reference = minimize(nll, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13})
    assert nll(np.array([fit.slope, fit.intercept])) <= reference.fun + 1e-12
    assert [fit.slope, fit.intercept] == pytest.approx(reference.x, abs=1e-5)


def test_fit_to_four_rows_by_hand() -> None:
    fit = NoisyBinary.fit([1, 1, 1, 1, -1, -1], [1, 1, 1, 0, 0, 1])  # rates 3/4 and 1/2
    assert fit.slope == pytest.approx(np.log(3) / 2)
    assert fit.intercept == pytest.approx(np.log(3) / 2)
    assert (fit.prob_plus, fit.prob_minus) == (pytest.approx(0.75), pytest.approx(0.5))


@pytest.mark.parametrize(("p_plus", "p_minus"), [(0.1, 0.1), (0.3, 0.05), (0.0, 0.4), (0.2, 0.45)])
def test_simulated_fits_agree_with_the_lemma_within_four_standard_errors(
    p_plus: float, p_minus: float
) -> None:
    model = NoisyBinary(p_plus, p_minus)
    draws = model.simulate(4000, draws=2000, rng=1, p_test=0.1)
    for values, truth in (
        (draws.prob_plus, model.confidence_plus),
        (draws.prob_minus, model.confidence_minus),
        (draws.accuracy, model.accuracy(0.1)),
    ):
        assert abs(values.mean() - truth) <= 4 * values.std() / np.sqrt(len(values)) + 1e-12


def test_simulation_agrees_with_fits_to_sampled_rows() -> None:
    model = NoisyBinary(0.3, 0.1)
    rng = np.random.default_rng(0)
    fits = [NoisyBinary.fit(*model.sample(400, rng)).prob_plus for _ in range(400)]
    draws = model.simulate(400, draws=400, rng=rng).prob_plus
    assert np.std(fits) == pytest.approx(draws.std(), rel=0.2)
    assert np.mean(fits) == pytest.approx(draws.mean(), abs=4 * draws.std() / np.sqrt(200))


def test_noise_in_training_makes_the_classifier_under_confident() -> None:
    fit = NoisyBinary(0.3, 0.2).fit_population()
    assert fit.accuracy(0.05) > max(fit.prob_plus, fit.prob_minus)


def test_data_sets_without_one_of_the_points_are_nan() -> None:
    draws = NoisyBinary(0.1, 0.1).simulate(1, draws=50, rng=0)
    assert np.isnan(draws.prob_plus).all()
    assert np.isnan(draws.accuracy).all()


def test_a_tie_is_decided_for_label_one() -> None:
    fit = NoisyBinary(0.2, 0.5).fit_population()
    assert fit.accuracy(0.1) == pytest.approx((0.9 + 0.1) / 2)  # correct at v, wrong at −v


def test_sample_is_reproducible_and_follows_the_definition() -> None:
    x, y = NoisyBinary(0.3, 0.1).sample(40_000, rng=5)
    repeated = NoisyBinary(0.3, 0.1).sample(40_000, rng=5)
    assert np.array_equal(x, repeated[0])
    assert np.array_equal(y, repeated[1])
    assert (x == 1).mean() == pytest.approx(0.5, abs=0.01)
    assert y[x == 1].mean() == pytest.approx(0.7, abs=0.015)
    assert y[x == -1].mean() == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: NoisyBinary(0.6, 0.1), "p_plus"),
        (lambda: NoisyBinary(0.1, -0.1), "p_minus"),
        (lambda: NoisyBinary(0.1, 0.1).accuracy(0.7), "p_test"),
        (lambda: NoisyBinary(0.5, 0.1).accuracy(0.1), "p_plus and p_minus"),
        (lambda: NoisyBinary(0.1, 0.1).fit_population().accuracy(0.7), "p_test"),
        (lambda: NoisyBinary(0.1, 0.1).sample(0, 0), "size"),
        (lambda: NoisyBinary(0.1, 0.1).simulate(0, draws=1, rng=0), "size"),
        (lambda: NoisyBinary(0.1, 0.1).simulate(1, draws=0, rng=0), "draws"),
        (lambda: NoisyBinary(0.1, 0.1).simulate(1, draws=1, rng=0, p_test=2), "p_test"),
        (lambda: NoisyBinary.fit([1, -1], [1]), "x and y"),
        (lambda: NoisyBinary.fit([1, 3], [1, 0]), "x"),
        (lambda: NoisyBinary.fit([1, -1], [1, 2]), "y"),
        (lambda: NoisyBinary.fit([1, 1], [1, 0]), "x"),
    ],
)
def test_invalid_arguments(call, name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must "):
        call()


def test_a_fit_that_does_not_converge_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetcal.theory.noisy_binary._NEWTON_STEPS", 1)
    with pytest.raises(RuntimeError, match="must converge"):
        NoisyBinary(0.1, 0.2).fit_population()


@pytest.mark.parametrize("wrong", ["a", {}, 1j])
def test_points_must_be_numbers(wrong: object) -> None:
    with pytest.raises((TypeError, ValueError), match="x must"):
        NoisyBinary.fit(wrong, [0, 1])  # type: ignore[arg-type]
