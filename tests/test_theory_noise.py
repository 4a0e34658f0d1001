"""Lemma 3.3: the fit at population level, from data, by simulation, and every error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from hetcal.theory import NoisyBinary

GRID = [(p, q) for p in (0.0, 0.01, 0.1, 0.3, 0.45, 0.499) for q in (0.0, 0.05, 0.2, 0.499)]


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

    other = minimize(nll, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13})
    assert nll(np.array([fit.slope, fit.intercept])) <= other.fun + 1e-12
    assert [fit.slope, fit.intercept] == pytest.approx(other.x, abs=1e-5)


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
    assert fit.accuracy(0.1) == pytest.approx((0.9 + 0.1) / 2)  # right at v, wrong at −v


def test_sample_is_reproducible_and_follows_the_definition() -> None:
    x, y = NoisyBinary(0.3, 0.1).sample(40_000, rng=5)
    again = NoisyBinary(0.3, 0.1).sample(40_000, rng=5)
    assert np.array_equal(x, again[0])
    assert np.array_equal(y, again[1])
    assert (x == 1).mean() == pytest.approx(0.5, abs=0.01)
    assert y[x == 1].mean() == pytest.approx(0.7, abs=0.015)
    assert y[x == -1].mean() == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: NoisyBinary(0.6, 0.1), ValueError, r"p_plus must lie in \[0, 0.5\], got 0.6; "),
        (lambda: NoisyBinary(0.1, -0.1), ValueError, r"p_minus must lie in \[0, 0.5\], got -0.1; "),
        (lambda: NoisyBinary(0.1, float("nan")), ValueError, "p_minus must be finite, got nan; "),
        (lambda: NoisyBinary("a", 0.1), TypeError, "p_plus must be a number, got 'a'; "),
        (lambda: NoisyBinary(True, 0.1), TypeError, "p_plus must be a number, got True; "),
        (lambda: NoisyBinary(0.1, 0.1).accuracy(0.7), ValueError, "p_test must lie in"),
        (lambda: NoisyBinary(0.5, 0.1).accuracy(0.1), ValueError, "p_plus and p_minus must be below 1/2"),
        (lambda: NoisyBinary(0.1, 0.1).fit_population().accuracy(0.7), ValueError, "p_test must lie in"),
        (lambda: NoisyBinary(0.1, 0.1).sample(0, 0), ValueError, "size must be at least 1, got 0; "),
        (lambda: NoisyBinary(0.1, 0.1).sample(2.5, 0), TypeError, "size must be an integer, got 2.5; "),
        (lambda: NoisyBinary(0.1, 0.1).sample(2, "x"), TypeError, "rng must be a numpy.random.Generator"),
        (lambda: NoisyBinary(0.1, 0.1).simulate(0, draws=1, rng=0), ValueError, "size must be at least 1"),
        (lambda: NoisyBinary(0.1, 0.1).simulate(1, draws=0, rng=0), ValueError, "draws must be at least 1"),
        (lambda: NoisyBinary(0.1, 0.1).simulate(1, draws=1, rng=0, p_test=2), ValueError, "p_test must lie"),
        (lambda: NoisyBinary.fit([1, -1], [1]), ValueError, "x and y must be one-dimensional"),
        (lambda: NoisyBinary.fit([1, 3], [1, 0]), ValueError, "x must hold -1 and 1 only, got 3 at row 1; "),
        (lambda: NoisyBinary.fit([1, -1], [1, 2]), ValueError, "y must hold 0 and 1 only, got 2 at row 1; "),
        (lambda: NoisyBinary.fit([1, 1], [1, 0]), ValueError, "x must hold both -1 and 1, got 2 rows"),
    ],
)
def test_errors_name_the_argument_and_the_remedy(call, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


def test_a_fit_that_does_not_converge_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetcal.theory.noise._NEWTON_STEPS", 1)
    with pytest.raises(RuntimeError, match="the fit must converge in 1 Newton steps"):
        NoisyBinary(0.1, 0.2).fit_population()


@pytest.mark.parametrize("wrong", ["a", {}, 1j])
def test_points_must_be_numbers(wrong: object) -> None:
    with pytest.raises((TypeError, ValueError), match="x must be"):
        NoisyBinary.fit(wrong, [0, 1])  # type: ignore[arg-type]
