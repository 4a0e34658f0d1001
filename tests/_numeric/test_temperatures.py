"""The pieces between kernels and calibrators: folds, endless slices, the problem itself."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax

from hetcal._numeric import source
from hetcal._numeric import temperatures as temperature
from hetcal._numeric.hashing import hash_mix
from hetcal._numeric.rows import prepare
from hetcal._numeric.scalar_solver import SliceSolution
from hetcal._numeric.source import HeldoutLoss, MemorySource
from hetcal._numeric.temperatures import fit_bayes, fit_coupled, fit_cross_validated, fit_pooled

BOUNDS = (0.01, 100.0)


def problem_of(z, y, ids=None, n_slices=None, weight=None):
    rows = prepare(np.asarray(z, float), np.asarray(y), weight)
    return MemorySource(rows, ids=None if ids is None else np.asarray(ids), n_slices=n_slices)


def test_folds_are_even_in_every_slice(make_sample):
    z, y, _ = make_sample(503, 7, 0)
    problem = problem_of(z, y)
    fold = problem.folds(5)
    sizes = np.bincount(fold, minlength=5)
    assert sizes.max() - sizes.min() <= 1
    for k in range(7):
        sizes = np.bincount(fold[problem.ids == k], minlength=5)
        assert sizes.max() - sizes.min() <= 1


def test_folds_go_with_the_rows(make_sample):
    z, y, _ = make_sample(300, 4, 0)
    first = problem_of(z, y).folds(5)
    mixed = np.random.default_rng(0).permutation(300)
    np.testing.assert_array_equal(problem_of(z[mixed], y[mixed]).folds(5), first[mixed])


def test_folds_do_not_repeat_the_sampling_error(make_sample):
    # Dealt by chance, the share that is right differs between folds as coin tosses do: χ² of about its
    # degrees of freedom. Right and wrong rows dealt apart would give next to nothing.
    statistic, freedom = 0.0, 0
    for seed in range(10):
        z, y, _ = make_sample(1000, 5, seed)
        problem = problem_of(z, y)
        fold = problem.folds(5)
        for k in range(5):
            r = problem.ids == k
            share = problem.rows.right[r].mean()
            counts = np.bincount(fold[r], minlength=5)
            right = np.bincount(fold[r], problem.rows.right[r], 5)
            statistic += np.sum((right - counts * share) ** 2 / (counts * share * (1 - share)))
            freedom += 4
    assert statistic == pytest.approx(freedom, rel=0.35)


def test_folds_of_rows_that_are_all_alike():
    z, y = np.tile([[2.0, 0.0]], (100, 1)), np.arange(100) % 2
    problem = problem_of(z, y)
    fold = problem.folds(4)
    shares = [problem.rows.right[fold == f].mean() for f in range(4)]
    assert np.std(shares) > 0.01  # not dealt by outcome either


def test_endless_slices():
    z = np.array(
        [
            *([3.0, 1.0, 0.0], [9.0, 0.0, 0.0]),  # slice 0: all right
            *([0.0, 2.0, 1.0], [0.0, 2.0, 1.0]),  # slice 1: one wrong
            [1.0, 1.0, 1.0],  # slice 2: flat
            [5.0, 5.0, 0.0],  # slice 3: wrong by a tie, which no α mends; the third class still goes down
        ]
    )
    y = np.array([0, 0, 1, 2, 0, 1])
    problem = problem_of(z, y, ids=[0, 0, 1, 1, 2, 3], n_slices=5)
    np.testing.assert_array_equal(problem.is_separable(), [True, False, False, True, False])
    np.testing.assert_array_equal(problem.counts(), [2, 2, 1, 1, 0])


def test_evaluate_of_some_slices(make_sample):
    z, y, _ = make_sample(200, 4, 0)
    problem = problem_of(z, y)
    alpha = np.array([0.3, 0.6, 1.0, 2.0])
    slope, bend, skew = problem.evaluate(alpha, np.arange(4))
    for some in ([1, 3], [2], [0, 1, 2]):
        part = problem.evaluate(alpha, np.array(some))
        np.testing.assert_allclose(part[0], slope[some], rtol=1e-12)
        np.testing.assert_allclose(part[1], bend[some], rtol=1e-12)
        np.testing.assert_allclose(part[2], skew[some], rtol=1e-12)


def test_pooled_is_one_slice(make_sample):
    z, y, _ = make_sample(200, 4, 0)
    problem = problem_of(z, y)
    alpha, at_bound = fit_pooled(problem, BOUNDS)
    slope, _, _ = problem.evaluate(np.full(4, alpha), np.arange(4))
    assert abs(slope.sum()) < 1e-6
    assert not at_bound


def test_taking_rows(make_sample):
    z, y, _ = make_sample(200, 4, 0)
    index = np.arange(0, 200, 3)
    part, whole = problem_of(z, y).take(index), problem_of(z[index], y[index])
    np.testing.assert_array_equal(part.ids, whole.ids)
    np.testing.assert_array_equal(part.rows.d_true, whole.rows.d_true)
    assert fit_coupled(part, 0.1, BOUNDS).alpha0 == fit_coupled(whole, 0.1, BOUNDS).alpha0


@pytest.mark.parametrize(("n", "spread"), [(2000, 0.4), (150, 1.5)])
def test_bayes_finds_the_mode_and_the_width_of_every_posterior(make_sample, n, spread):
    z, y, _ = make_sample(n, 4, 0)
    z = z * np.exp(spread * np.linspace(-1, 1, 4))[z.argmax(axis=1)][:, None]  # temperatures far apart
    problem = problem_of(z, y)
    fit = fit_bayes(problem, BOUNDS)
    mu, tau = fit.choice["mu"], fit.choice["tau"]
    assert tau > 0

    def losses(t):
        """Negative log posterior of every slice."""
        nll = -log_softmax(np.exp(t)[problem.ids][:, None] * z, axis=1)[np.arange(n), y]
        return np.bincount(problem.ids, nll, 4) + (t - mu) ** 2 / (2 * tau**2)

    t, h = np.log(fit.alpha), 1e-3
    below, here, above = (losses(t + step) for step in (-h, 0, h))
    bend = (above - 2 * here + below) / h**2
    np.testing.assert_allclose((above - below) / (2 * h) / bend, 0, atol=3e-6)
    np.testing.assert_allclose(fit.error, fit.alpha / np.sqrt(bend), rtol=1e-4)


def test_bayes_without_any_interior_slice(make_sample):
    z, _, _ = make_sample(60, 3, 0)
    problem = problem_of(z, z.argmax(axis=1))
    fit = fit_bayes(problem, BOUNDS)
    assert fit.choice["tau"] == 0
    np.testing.assert_array_equal(fit.alpha, 100.0)


def test_folds_of_large_arrays_are_drawn_by_content(make_sample, monkeypatch):
    z, y, _ = make_sample(5000, 4, 0)
    w = np.random.default_rng(0).uniform(0.5, 2, size=5000)
    monkeypatch.setattr(source, "LARGE", 1)
    first = problem_of(z, y, weight=w).folds(5)
    mixed = np.random.default_rng(0).permutation(5000)
    np.testing.assert_array_equal(problem_of(z[mixed], y[mixed], weight=w[mixed]).folds(5), first[mixed])
    sizes = np.bincount(first, minlength=5)
    assert np.sum((sizes - 1000) ** 2 / 1000) < 18  # χ² with 4 degrees of freedom: one in a thousand


def test_hash_is_that_of_splitmix64():
    def mixed(state):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            state = (state ^ state >> shift) * factor % 2**64
        return state ^ state >> 31

    numbers = np.random.default_rng(0).normal(size=50).view(np.uint64)
    expected = [mixed(number) for number in numbers.tolist()]
    np.testing.assert_array_equal(hash_mix(numbers.copy()), np.array(expected, np.uint64))


def test_rows_of_no_slice_do_not_count(make_sample):
    z, y, _ = make_sample(200, 4, 0)
    weight = np.random.default_rng(0).uniform(0.5, 2, size=200)
    whole = problem_of(z, y, weight=weight)
    some = problem_of(z, y, weight=weight, n_slices=3)  # ids of 3 belong to no slice
    part = some.take(np.flatnonzero(some.ids < 3))
    alpha = np.array([0.3, 0.6, 1.0])
    for mine, theirs in zip(
        some.evaluate(alpha, np.array([0, 2])), part.evaluate(alpha, np.array([0, 2])), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)
    for name in ("counts", "slice_weights", "is_separable", "has_finite_optimum"):
        np.testing.assert_allclose(getattr(some, name)(), getattr(part, name)(), rtol=1e-12)
        np.testing.assert_allclose(getattr(some, name)(), getattr(whole, name)()[:3], rtol=1e-12)


def test_first_guess_comes_from_every_so_many_th_row(make_sample):
    z, y, _ = make_sample(1100, 128, 0)
    problem = problem_of(z, y)
    sample = problem.sample()
    np.testing.assert_array_equal(sample.rows.z, z[::4])  # 256 rows or so: a quarter
    np.testing.assert_array_equal(sample.ids, problem.ids[::4])
    assert problem.take(np.arange(1000)).sample() is None


def test_grid_of_gamma_goes_from_zero_to_the_farthest_slice_and_inf(make_sample):
    z, y, _ = make_sample(400, 4, 0)
    problem = problem_of(z, y)
    alone, (pooled, _) = fit_coupled(problem, np.inf, BOUNDS).alpha, fit_pooled(problem, BOUNDS)
    grid = fit_cross_validated(problem, BOUNDS, 3).choice["gamma"]
    assert (len(grid), grid[0], grid[-1]) == (11, 0, np.inf)
    assert grid[-2] == pytest.approx(np.abs(alone - pooled).max())
    np.testing.assert_allclose(np.diff(np.log(grid[1:-1])), np.log(50) / 8)  # from a fiftieth of it


def test_spread_between_slices_is_what_sampling_leaves():
    t = np.array([-1.0, 0.5, 2.0, 3.5])
    mu, tau2 = temperature._between(t, np.full(4, 0.75))
    assert (mu, tau2) == pytest.approx((t.mean(), t.var(ddof=1) - 0.75))
    variance = np.array([0.1, 0.5, 1.0, 2.0])
    mu, tau2 = temperature._between(t, variance)
    weight = 1 / (variance + tau2)
    assert mu == pytest.approx(np.average(t, weights=weight))
    assert np.sum(weight * (t - mu) ** 2) == pytest.approx(3)  # χ² equals its degrees of freedom
    assert temperature._between(t, np.full(4, 10.0)) == pytest.approx((t.mean(), 0))  # no more than sampling


def test_large_arrays_leave_folds_out_without_a_copy(make_sample, monkeypatch):
    z, y, _ = make_sample(200, 4, 0)
    problem, alpha = problem_of(z, y), np.array([0.3, 0.6, 1.0, 2.0])
    copied = list(problem.split(3))
    monkeypatch.setattr(source, "compiled_for", lambda _: object())
    for (copy, inside), (kept, also) in zip(copied, problem.split(3), strict=True):
        assert kept.rows is problem.rows
        np.testing.assert_array_equal(kept.counts(), copy.counts())
        np.testing.assert_array_equal(also.ids, inside.ids)
        np.testing.assert_allclose(
            kept.evaluate(alpha, np.arange(4)), copy.evaluate(alpha, np.arange(4)), rtol=1e-12
        )


def test_heldout_means_and_errors_by_hand():
    loss, weight = np.array([[1.0, 2.0, 6.0], [2.0, 2.0, 2.0]]), np.array([1.0, 1.0, 2.0])
    parts = [(weight[some] * loss[:, some], weight[some]) for some in (slice(0, 2), slice(2, 3))]
    first, second = (HeldoutLoss(wl.sum(axis=1), wl @ wl.T, len(w), w.sum()) for wl, w in parts)
    total = first + second
    np.testing.assert_allclose(total.means(), [15 / 4, 8 / 4])
    away = weight * (loss[0] - loss[1])
    expected = np.sqrt(np.sum((away - away.mean()) ** 2)) / 4
    np.testing.assert_allclose(total.errors(1), [expected, 0])


def test_weights_of_rows(make_sample):
    z, y, _ = make_sample(50, 3, 0)
    weight = np.random.default_rng(0).uniform(0.5, 2, size=50)
    assert problem_of(z, y).weights() == (50, 1)
    assert problem_of(z, y, weight=weight).weights() == pytest.approx((weight.sum(), weight.min()))


def test_gamma_zero_is_one_temperature(make_sample):
    z, y, _ = make_sample(100, 3, 0)
    problem = problem_of(z, y)
    fit, (pooled, at_bound, error) = (
        fit_coupled(problem, 0.0, BOUNDS),
        temperature.fit_pooled_with_error(problem, BOUNDS),
    )
    assert (fit.gamma, fit.alpha0, *fit.alpha) == (0, *[pooled] * 4)
    assert fit.at_bound.tolist() == [at_bound] * 3
    assert fit.error.tolist() == [error] * 3


def test_one_slice_leaves_nothing_between_the_ends_of_the_grid(make_sample):
    z, y, _ = make_sample(100, 3, 0)
    assert fit_cross_validated(problem_of(z, y).pooled(), BOUNDS, 3).choice["gamma"] == [0, np.inf]


def test_errors_come_from_the_curvature():
    bend, at_bound = np.array([0.25, 4.0, 1.0, 0.0]), np.array([False, False, True, False])
    found = temperature._errors(SliceSolution(np.ones(4), at_bound, bend))
    np.testing.assert_array_equal(found, [2, 0.5, np.inf, np.inf])


def test_heldout_losses_add_up_over_chunks(make_sample, monkeypatch):
    z, y, _ = make_sample(50, 3, 0)
    problem, alphas = problem_of(z, y), np.array([[0.5, 1.0, 2.0], [1.0, 1.0, 1.0]])
    whole = problem.heldout_loss(alphas)
    monkeypatch.setattr(source, "_CHUNK_ROWS", 7)
    monkeypatch.setattr(source, "LARGE", 1)
    parts = problem.heldout_loss(alphas)
    np.testing.assert_allclose(parts.loss, whole.loss, rtol=1e-12)
    np.testing.assert_allclose(parts.product, whole.product, rtol=1e-12)
    assert (parts.n, parts.weight) == (50, 50)
