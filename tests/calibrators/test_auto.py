"""AutoCalibrator: cross-validated weights, the mixture and its final step."""

from __future__ import annotations

import numpy as np
import pytest

from hetcal import (
    AutoCalibrator,
    Chain,
    ClassWise,
    ClassWiseTemperatureScaling,
    Identity,
    Mixture,
    PlattScaling,
    TemperatureScaling,
    VectorScaling,
    artefact,
    load,
    save,
)
from hetcal._numeric.rows import prepare
from hetcal._numeric.source import MemorySource
from hetcal.calibrators import auto
from hetcal.calibrators.auto import default_candidates

quiet = pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")
CANDIDATES = {
    "identity": Identity(),
    "pooled": TemperatureScaling(),
    "class-wise": ClassWiseTemperatureScaling(),
}


def nll(p, y):
    return -np.log(p[np.arange(len(y)), y]).mean()


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [(1.0, {"identity", "pooled"}), (0.4, {"pooled"}), (np.geomspace(0.2, 2, 5), {"class-wise"})],
)
def test_best_candidate_matches_the_data(make_sample, alpha, expected):
    for seed in range(3):
        z, y, _ = make_sample(3000, 5, seed, alpha=alpha)
        cal = AutoCalibrator(CANDIDATES, combine="best").fit(z, y)
        assert cal.best_name_ in expected
        mixed = AutoCalibrator(CANDIDATES).fit(z, y)
        assert sum(c["weight"] for c in mixed.candidates_) == pytest.approx(1)
        assert sum(c["weight"] for c in mixed.candidates_ if c["name"] in expected) > 0.5


def test_stacking_averages_probabilities(make_sample):
    z, y, _ = make_sample(800, 4, 0)
    cal = AutoCalibrator(CANDIDATES).fit(z, y)
    table = {c["name"]: c["weight"] for c in cal.candidates_ if c["weight"] > 0}
    assert len(table) > 1
    assert min(table.values()) >= 0.03
    members = [CANDIDATES[name].__class__().fit(z, y).predict_proba(z) for name in table]
    mean = np.einsum("m,mij->ij", list(table.values()), members)
    np.testing.assert_allclose(cal.predict_proba(z), mean, atol=1e-12)
    assert isinstance(cal.best_, Mixture)
    heaviest = max(table, key=table.__getitem__)
    assert cal.best_name_.startswith(f"{table[heaviest]:.0%} {heaviest}; ")


def test_weights_minimise_the_out_of_fold_nll():
    """Moving weight from one member to another does not lower the NLL."""
    rng = np.random.default_rng(0)
    heldout = rng.gamma(1.0, size=(4, 500)) + np.array([0.0, 0.1, 0.2, 2.0])[:, None]
    share = rng.dirichlet(np.ones(500))
    w = auto._stack(heldout, share, np.eye(4)[0], np.full(4, 1 / 500), 0.03)

    members = np.flatnonzero(w)
    best = -share @ np.log(w @ np.exp(-heldout))
    for i in members:
        for j in members:
            moved = w.copy()
            moved[i] -= min(1e-2, w[i] / 2)
            moved[j] += min(1e-2, w[i] / 2)
            # The tolerance covers the effect of the prior and of members that were dropped.
            assert -share @ np.log(moved @ np.exp(-heldout)) > best - 1e-3


def trial_of(heldout, fold_groups=None):
    """Trial with the given out-of-fold NLL (M, n). The predictions themselves are placeholders."""
    n = heldout.shape[1]
    rows = prepare(np.eye(2)[np.arange(n) % 2], np.zeros(n, int), None)
    return auto._Trial(heldout, heldout, heldout, MemorySource(rows, fold_groups=fold_groups), None)


def test_rows_of_a_fold_group_count_once():
    rng = np.random.default_rng(0)
    heldout = rng.gamma(1.0, size=(3, 40))
    once, copies = trial_of(heldout), trial_of(np.tile(heldout, 5), np.tile(np.arange(40), 5))
    assert copies.n_independent == pytest.approx(once.n_independent)
    gain = heldout[0] - heldout[1]
    assert copies.standard_error(np.tile(gain, 5)) == pytest.approx(once.standard_error(gain))


@quiet
def test_error_free_rows_support_a_limited_confidence():
    """Twenty correct predictions do not raise the confidence above ``0.05^(1/20)``."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(20, 2)) * 4
    cal = AutoCalibrator().fit(z, z.argmax(axis=1))
    assert (
        cal.predict_proba(z).max(axis=1).mean()
        <= max(Identity().fit(z, z.argmax(axis=1)).predict_proba(z).max(axis=1).mean(), 0.05 ** (1 / 20))
        + 1e-9
    )
    many_rows = rng.normal(size=(5000, 2)) * 4
    sure = (
        AutoCalibrator().fit(many_rows, many_rows.argmax(axis=1)).predict_proba(many_rows).max(axis=1).mean()
    )
    assert 0.998 < sure < 0.05 ** (1 / 5000)
    fresh_z = rng.normal(size=(4000, 2)) * 4
    fresh_y = (fresh_z + rng.gumbel(size=fresh_z.shape)).argmax(axis=1)
    identity = Identity().fit(fresh_z, fresh_y)
    assert nll(cal.predict_proba(fresh_z), fresh_y) < nll(identity.predict_proba(fresh_z), fresh_y) + 0.02


def test_trust_is_low_if_the_gain_may_be_chance():
    rng = np.random.default_rng(0)
    loss = rng.gamma(1.0, size=400)
    weights = np.array([0.0, 0.0, 1.0])
    for gain, low, high in ((-0.05, 0, 0), (0.0, 0, 0.6), (0.3, 0.97, 1)):
        heldout = np.stack([loss + 1, loss, loss - gain + 0.3 * rng.normal(size=400)])
        assert low <= auto._trust(trial_of(heldout), weights, 1) <= high


def test_the_identity_always_has_the_weight_of_one_row():
    assert auto._insure(np.array([0.0, 0.4, 0.6]), 400) == pytest.approx(np.array([1, 160.4, 240.6]) / 402)


def test_weights_have_a_prior_of_one_row_per_member():
    p = np.array([[0.9, 0.2, 0.6, 0.7], [0.3, 0.8, 0.5, 0.1]])
    share = np.array([0.1, 0.4, 0.3, 0.2])
    w = np.linspace(0.001, 0.999, 9981)[:, None]
    loss = -(np.log(w * p[0] + (1 - w) * p[1]) @ share) - (np.log(w) + np.log(1 - w))[:, 0] / 4
    best = float(w[loss.argmin(), 0])
    stacked = auto._stack(-np.log(p), share, np.eye(2)[0], np.full(2, 1 / 4), 0.03)
    assert stacked == pytest.approx([best, 1 - best], abs=2e-4)
    many_rows = np.tile(np.vstack([p, np.full(4, 1e-6)]), 100)  # the third member is useless and dropped
    stacked = auto._stack(-np.log(many_rows), np.full(400, 1 / 400), np.eye(3)[0], np.full(3, 1 / 400), 0.03)
    assert stacked[2] == 0
    assert stacked.sum() == pytest.approx(1, abs=1e-12)


def test_table_of_candidates_by_hand(make_sample, monkeypatch):
    z, y, _ = make_sample(4, 2, 0)
    heldout = np.array([[1.0, 2.0, 3.0, 2.0], [1.0, 1.0, 2.0, 3.0]])
    trial = auto._Trial(heldout, heldout, heldout, MemorySource(prepare(z, y, None)), None)
    monkeypatch.setattr(auto, "_cross_validate", lambda *_: trial)
    table = AutoCalibrator({"a": Identity(), "b": TemperatureScaling()}, combine="best").fit(z, y).candidates_
    assert [c["nll"] for c in table] == pytest.approx([2, 7 / 4])
    assert [c["error"] for c in table] == pytest.approx([np.std([0, 1, 1, -1]) / 2, 0])
    assert [c["weight"] for c in table] == [0, 1]


def test_final_step_by_hand():
    """Class-wise Platt scaling is fitted to the odds of the mixture and shrunk halfway to the identity."""
    rng = np.random.default_rng(0)
    n, k = 4000, 3
    rows = prepare(rng.normal(size=(n, k)), rng.integers(k, size=n), None)
    leads = np.stack([np.full(n, 0.8), rng.uniform(0.4, 0.7, n)])
    weights = np.array([0.25, 0.75])
    confidence = weights @ leads
    trial = auto._Trial(np.zeros((2, n)), leads, 1 - leads, MemorySource(rows), None)
    final_step = auto._fit_final_step(trial, weights, 0.5)
    # The same fit, from the probabilities of all three classes.
    p = np.repeat(((1 - confidence) / 2)[:, None], k, axis=1)
    p[np.arange(n), rows.guess] = confidence
    full_fit = ClassWise(PlattScaling(pool=True), gamma="bayes").fit(np.log(p), rows.y)
    halfway = (full_fit.parameters_ + np.array([1.0, 0.0])) / 2
    np.testing.assert_allclose(final_step.parameters_, halfway, rtol=1e-6, atol=1e-8)
    chain = auto._join(Identity().fit(rows.z, rows.y), final_step)
    assert chain.preserves_decision
    np.testing.assert_array_equal(chain.predict_proba(rows.z).argmax(axis=1), rows.guess)


def test_final_step_needs_out_of_fold_predictions(make_sample):
    z, y, _ = make_sample(20, 3, 0)
    nothing = np.zeros((1, 20))
    trial = auto._Trial(nothing, nothing, nothing, MemorySource(prepare(z, y, None)), None)
    assert auto._fit_final_step(trial, np.ones(1), 0.5) is None


def test_final_step_is_omitted_if_a_group_has_no_out_of_fold_predictions():
    """A group with a single row is missing from a training fold, but it can be predicted."""
    rng = np.random.default_rng(2)
    z = rng.normal(size=(900, 3)) * 4
    groups = np.arange(900) % 2
    right = rng.random(900) < np.where(groups == 0, 0.9, 0.5)
    y = np.where(right, z.argmax(axis=1), (z.argmax(axis=1) + 1) % 3)
    two_groups = AutoCalibrator().fit(z, y, groups=groups)
    assert two_groups.has_final_step_
    assert two_groups.best_.steps_[1].parameters_.shape == (2, 2)  # one pair of parameters per group
    with_single_row = np.r_[groups[:-1], 2]
    cal = AutoCalibrator().fit(z, y, groups=with_single_row)
    assert not cal.has_final_step_
    assert np.isfinite(cal.predict_proba(z, groups=with_single_row)).all()


def test_custom_candidates_have_no_final_step(make_sample):
    """The second step of a custom chain is not mistaken for a final step."""

    class Frozen(Identity):
        def predict_proba(self, logits):
            p = super().predict_proba(logits)
            p.setflags(write=False)
            return p

    z, y, _ = make_sample(300, 3, 0)
    chain = Chain([Mixture([Identity(), TemperatureScaling()]), PlattScaling()])
    custom = AutoCalibrator({"mine": chain}).fit(z, y)
    assert custom.best_name_ == "mine"
    assert not custom.has_final_step_
    assert AutoCalibrator({"frozen": Frozen()}).fit(z, y).best_name_ == "frozen"


def test_default_mixture_has_a_final_step():
    rng = np.random.default_rng(1)
    z = rng.normal(size=(6000, 4)) * 3
    y = np.where(rng.random(6000) < 0.6, z.argmax(axis=1), rng.integers(4, size=6000))
    cal = AutoCalibrator().fit(z, y)
    mixture, final_step = cal.best_.steps_
    assert cal.has_final_step_
    assert final_step.parameters_.shape == (4, 2)
    assert not np.allclose(final_step.parameters_, [1, 0], atol=1e-3)
    custom = AutoCalibrator({"TS": TemperatureScaling()}).fit(z, y)
    assert isinstance(custom.best_, TemperatureScaling)
    assert not AutoCalibrator(combine="best").fit(z, y).has_final_step_
    np.testing.assert_array_equal(cal.predict_proba(z).argmax(axis=1), z.argmax(axis=1))
    assert mixture.preserves_decision


def test_default_candidates():
    many = default_candidates(100, 50)
    assert list(many) == [
        *("Identity", "TS", "CTS bayes", "VS, CTS bayes", "TS, class-wise Platt"),
        "TS, class-wise Platt, VS, class-wise Platt",
    ]
    vector = many["VS, CTS bayes"].steps[0]
    assert vector.get_params() == {"ridge": 0.02, "center": True, "keep_decision": True}
    common = ["Identity", "TS", "CTS bayes", "VS, class-wise Platt"]
    few, two = default_candidates(10, 50), default_candidates(2, 50)
    assert list(few) == [*common, "MS with curves"]
    assert list(two) == [*common, "spline", "isotonic"]
    assert all(candidate.preserves_decision for kind in (many, few, two) for candidate in kind.values())


def test_trust_by_hand():
    first, second = np.full(4, 0.5), np.array([0.9, 0.8, 0.9, 0.8])
    heldout = -np.log([np.full(4, 0.1), first, second])
    trust = auto._trust(trial_of(heldout), np.array([0.0, 0.5, 0.5]), 1)
    gain = np.log([1.4, 1.3])  # the mixture assigns 0.7 and 0.65, the first member 0.5
    error = (gain[0] - gain[1]) / 2 / np.sqrt(4)
    # The gain is reduced by 1/4, because one free weight was fitted to four rows.
    assert trust == pytest.approx(1 - (error / (gain.mean() - 1 / 4)) ** 2)


def test_temperature_scaling_alone_needs_no_final_step():
    """The gain of a mixture that is temperature scaling itself may be positive because of rounding."""
    heldout = -np.log([[0.1, 0.1], [0.7, 0.3]])
    assert auto._trust(trial_of(heldout), np.array([0.0, 1.0]), 1) == 0


def test_little_loss_if_one_temperature_is_the_truth(make_sample):
    lost = []
    for seed in range(6):
        z, y, _ = make_sample(4100, 5, seed, alpha=0.6)
        fit, rest = slice(0, 100), slice(100, None)
        auto = nll(AutoCalibrator().fit(z[fit], y[fit]).predict_proba(z[rest]), y[rest])
        lost.append(auto - nll(TemperatureScaling().fit(z[fit], y[fit]).predict_proba(z[rest]), y[rest]))
    assert np.mean(lost) < 0.01


def test_default_beats_simple_calibrators_on_new_rows(make_sample):
    z, y, _ = make_sample(23_000, 10, 0)
    cal = AutoCalibrator().fit(z[:3000], y[:3000])
    ours = nll(cal.predict_proba(z[3000:]), y[3000:])
    assert ours < nll(TemperatureScaling().fit(z[:3000], y[:3000]).predict_proba(z[3000:]), y[3000:])
    assert cal.preserves_decision
    assert [c["name"] for c in cal.candidates_] == list(default_candidates(10, 3000))
    best = AutoCalibrator(combine="best").fit(z[:3000], y[:3000])
    assert best.best_name_ in default_candidates(10, 3000)
    assert ours < nll(best.predict_proba(z[3000:]), y[3000:]) + 1e-3


def test_candidates_table(make_sample):
    z, y, _ = make_sample(600, 4, 0)
    cal = AutoCalibrator(CANDIDATES | {"vector": VectorScaling()}, combine="best").fit(z, y)
    table = {row["name"]: row for row in cal.candidates_}
    assert list(table) == ["identity", "pooled", "class-wise", "vector"]
    assert all(
        set(row) == {"name", "nll", "error", "weight", "preserves_decision"} for row in cal.candidates_
    )
    assert min(table, key=lambda name: table[name]["nll"]) == cal.best_name_
    assert table[cal.best_name_]["error"] == 0
    assert [row["preserves_decision"] for row in cal.candidates_] == [True, True, True, False]
    np.testing.assert_array_equal(cal.predict_proba(z), cal.best_.predict_proba(z))
    # The identity needs no fit, so folds do not matter.
    identity_nll = nll(Identity().fit(z, y).predict_proba(z), y)
    assert table["identity"]["nll"] == pytest.approx(identity_nll)


def test_best_candidate_is_refitted_on_all_rows(make_sample):
    z, y, _ = make_sample(600, 4, 0)
    w = np.random.default_rng(0).uniform(0.5, 2, size=600)
    cal = AutoCalibrator({"pooled": TemperatureScaling()}).fit(z, y, sample_weight=w)
    assert cal.best_.alpha_ == TemperatureScaling().fit(z, y, sample_weight=w).alpha_
    assert not hasattr(CANDIDATES["pooled"], "alpha_")  # candidates are copied, not fitted


def test_ties_go_to_the_first_candidate(make_sample):
    z, y, _ = make_sample(200, 3, 0)
    cal = AutoCalibrator({"a": TemperatureScaling(), "b": TemperatureScaling()}, combine="best").fit(z, y)
    assert cal.best_name_ == "a"


def test_sample_weights_affect_the_choice(make_sample):
    z, y, _ = make_sample(4000, 4, 0, alpha=1.0)
    cold, _, _ = make_sample(4000, 4, 1, alpha=1.0)
    both, labels = np.vstack([z, 3 * cold]), np.r_[y, make_sample(4000, 4, 1, alpha=1.0)[1]]
    w = np.r_[np.ones(4000), np.full(4000, 1e-6)]
    plain = AutoCalibrator({"0": Identity(), "1": TemperatureScaling()}, combine="best").fit(both, labels)
    assert plain.best_name_ == "1"
    light = AutoCalibrator({"0": Identity(), "1": TemperatureScaling()}).fit(both, labels, sample_weight=w)
    assert light.candidates_[0]["nll"] == pytest.approx(light.candidates_[1]["nll"], abs=2e-3)


def test_groups(make_sample):
    z, y, _ = make_sample(2000, 3, 0, alpha=1.0)
    groups = np.arange(2000) % 2
    z[groups == 1] *= 4
    cal = AutoCalibrator(CANDIDATES, combine="best").fit(z, y, groups=groups)
    assert cal.best_name_ == "class-wise"
    assert cal.best_.alpha_[0] > 2 * cal.best_.alpha_[1]
    assert cal.predict_proba(z, groups=groups).shape == z.shape
    with pytest.raises(ValueError, match="groups must"):
        cal.predict_proba(z)


@quiet
def test_group_with_a_single_row(make_sample):
    z, y, _ = make_sample(100, 3, 0)
    groups = np.where(np.arange(100) == 17, "rare", "common")
    cal = AutoCalibrator(CANDIDATES).fit(z, y, groups=groups)
    assert np.all(np.isfinite(cal.predict_proba(z, groups=groups)))


class Foreign:
    """A calibrator without weights and groups that predicts the label frequencies."""

    def fit(self, logits, labels):
        self.share = np.bincount(labels, minlength=np.shape(logits)[1]) / len(labels)
        return self

    def predict_proba(self, logits):
        return np.tile(self.share, (len(logits), 1))


def test_candidates_of_other_libraries(make_sample):
    z, y, _ = make_sample(300, 3, 0)
    noise = np.random.default_rng(0).choice(3, p=[0.7, 0.2, 0.1], size=300)
    candidates = {"foreign": Foreign(), "pooled": TemperatureScaling()}
    cal = AutoCalibrator(candidates, combine="best").fit(z, noise, groups=np.arange(300) % 2)
    assert cal.best_name_ == "foreign"
    assert not cal.preserves_decision
    assert cal.predict_proba(z, groups=np.arange(300) % 2).shape == (300, 3)
    assert AutoCalibrator(candidates, combine="best").fit(z, y).best_name_ == "pooled"


def test_unknown_value_of_combine(make_sample):
    z, y, _ = make_sample(50, 3, 0)
    with pytest.raises(ValueError, match="combine must"):
        AutoCalibrator(combine="vote").fit(z, y)


@quiet
@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_few_rows(n, make_sample):
    z, y, _ = make_sample(n, 3, 0)
    cal = AutoCalibrator({"pooled": TemperatureScaling(), "platt": PlattScaling()}).fit(z, y)
    assert np.all(np.isfinite(cal.predict_proba(z)))


@pytest.mark.parametrize("n_classes", [2, 4])
def test_order_of_rows_with_tied_logits_does_not_matter(n_classes):
    rng = np.random.default_rng(0)
    z = rng.integers(-2, 3, size=(400, n_classes)).astype(float)
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    first = AutoCalibrator(cv=3).fit(z, y).predict_proba(z)
    mixed = rng.permutation(400)
    np.testing.assert_allclose(
        AutoCalibrator(cv=3).fit(z[mixed], y[mixed]).predict_proba(z), first, atol=1e-9
    )


def test_order_of_rows_does_not_matter(make_sample):
    z, y, _ = make_sample(300, 3, 0)
    mixed = np.random.default_rng(0).permutation(300)
    first, reordered = (
        AutoCalibrator(CANDIDATES).fit(z, y),
        AutoCalibrator(CANDIDATES).fit(z[mixed], y[mixed]),
    )
    assert first.best_name_ == reordered.best_name_
    np.testing.assert_allclose(
        [c["nll"] for c in reordered.candidates_], [c["nll"] for c in first.candidates_], rtol=1e-9
    )


def test_shared_first_steps_are_fitted_once(make_sample, monkeypatch):
    """Three default candidates begin with one temperature, which is fitted once per fold and on all rows."""
    z, y, _ = make_sample(2000, 25, 0)
    sizes, fit = [], TemperatureScaling._fit

    def counting(self, source):
        sizes.append(len(source))
        fit(self, source)

    monkeypatch.setattr(TemperatureScaling, "_fit", counting)
    cal = AutoCalibrator(cv=3).fit(z, y)
    assert len(sizes) == 4
    assert sizes[-1] == 2000
    members = cal.best_.steps_[0].calibrators_ if cal.has_final_step_ else cal.best_.calibrators_
    chains = [member for member in members if isinstance(member, Chain)]
    p = chains[0].predict_proba(z)
    separate = Chain(chains[0].steps).fit(z, y)
    np.testing.assert_array_equal(separate.predict_proba(z), p)


def test_weights_come_from_a_subset_of_very_many_rows(make_sample, monkeypatch):
    z, y, _ = make_sample(3000, 3, 0)

    def scores(z, y):
        return {row["name"]: row["nll"] for row in AutoCalibrator(CANDIDATES).fit(z, y).candidates_}

    all_rows = scores(z, y)
    monkeypatch.setattr(auto, "_MAX_CV_ROWS", 500)
    monkeypatch.setattr(auto, "_MAX_CV_ROWS_PER_CLASS", 100)
    subset = scores(z, y)
    assert subset != all_rows
    assert subset == pytest.approx(all_rows, abs=0.2)
    order = np.random.default_rng(0).permutation(len(y))
    assert scores(z[order], y[order]) == pytest.approx(subset)
    # The members are fitted on all rows.
    only = AutoCalibrator({"pooled": TemperatureScaling()}).fit(z, y)
    assert only.best_.alpha_ == TemperatureScaling().fit(z, y).alpha_


def biased_sample(n, n_classes, seed=0, bias=3.0):
    """Logits whose errors come from a bias that increases with the class, and labels."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, n_classes)) * 2
    return z + np.linspace(0, bias, n_classes), (z + rng.gumbel(size=z.shape)).argmax(axis=1)


@pytest.mark.parametrize(
    ("n_classes", "expected"),
    [
        (2, {"VS, class-wise Platt", "linear", "spline", "isotonic", "MS of log-probabilities"}),
        (3, {"VS, class-wise Platt", "TS, class-wise Platt", "MS of log-probabilities", "MS with curves"}),
        (30, {"TS, class-wise Platt", "TS, class-wise Platt, VS, class-wise Platt", "MS"}),
    ],
)
def test_wrong_decisions_are_corrected_if_they_may_change(n_classes, expected):
    z, y = biased_sample(4000, n_classes)
    fit, rest = slice(0, 1500), slice(1500, None)
    kept, free = (AutoCalibrator(keep_decision=keep).fit(z[fit], y[fit]) for keep in (True, False))
    assert (kept.preserves_decision, free.preserves_decision) == (True, False)
    assert {c["name"] for c in free.candidates_} == {"Identity", "TS", *expected}
    assert not free.has_final_step_
    p = free.predict_proba(z[rest])
    assert nll(p, y[rest]) < nll(kept.predict_proba(z[rest]), y[rest])
    assert (p.argmax(axis=1) == y[rest]).mean() > (z[rest].argmax(axis=1) == y[rest]).mean()


def test_keep_decision_is_known_before_the_fit():
    assert AutoCalibrator().preserves_decision
    assert not AutoCalibrator(keep_decision=False).preserves_decision
    with pytest.raises(TypeError, match="keep_decision"):
        AutoCalibrator(keep_decision="no").fit(*biased_sample(50, 3))


def test_free_auto_uses_weights_groups_and_fold_groups():
    z, y = biased_sample(600, 3)
    free = AutoCalibrator(keep_decision=False, cv=3)
    w = np.where(np.arange(600) < 300, 1.0, 1e-9)
    weighted = free.fit(z, y, sample_weight=w).predict_proba(z)
    plain = free.fit(z, y).predict_proba(z)
    half = free.fit(z[:300], y[:300]).predict_proba(z)
    assert np.abs(weighted - half).mean() < np.abs(weighted - plain).mean()
    groups = np.array(["a", "b"])[np.arange(600) % 2]
    wrong = np.where(groups == "b", np.random.default_rng(1).integers(3, size=600), y)
    p = free.fit(z, wrong, groups=groups).predict_proba(z, groups=groups)
    assert p[groups == "a"].max(axis=1).mean() > p[groups == "b"].max(axis=1).mean()
    # Copies of rows in the same fold group do not change the cross-validated NLL much.
    once = free.fit(z, y).candidates_[0]["nll"]
    copies = free.fit(np.tile(z, (2, 1)), np.tile(y, 2), fold_groups=np.tile(np.arange(600), 2))
    assert copies.candidates_[0]["nll"] == pytest.approx(once)
    assert np.isfinite(copies.predict_proba(z)).all()


@quiet
@pytest.mark.parametrize("n_classes", [2, 3])
def test_free_auto_with_one_row_or_without_errors(n_classes):
    z, y = biased_sample(40, n_classes)
    for rows, labels in ((z[:1], y[:1]), (z, z.argmax(axis=1)), (z[:2], np.zeros(2, int))):
        cal = AutoCalibrator(keep_decision=False).fit(rows, labels)
        p = cal.predict_proba(z)
        assert np.isfinite(p).all()
        assert p.sum(axis=1) == pytest.approx(1)
        assert cal.decision_cost_ is None
    assert {c["name"] for c in AutoCalibrator(keep_decision=False).fit(z, z.argmax(axis=1)).candidates_} == {
        *("Identity", "TS")
    }


@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_decision_cost_is_large_if_decisions_are_wrong(n_classes):
    z, y = biased_sample(1500, n_classes)
    cal = AutoCalibrator().fit(z, y)
    cost = cal.decision_cost_
    assert cost["is_large"]
    assert cost["accuracy"] == pytest.approx((z.argmax(axis=1) == y).mean())
    vector = VectorScaling(1 / 1500, center=True).fit(z, y).predict_proba(z)
    assert cost["free_nll"] == pytest.approx(nll(vector, y), abs=0.05)
    assert cost["free_accuracy"] == pytest.approx((vector.argmax(axis=1) == y).mean(), abs=0.03)
    assert cost["changed"] == pytest.approx((vector.argmax(axis=1) != z.argmax(axis=1)).mean(), abs=0.05)
    for text in (f"{cost['changed']:.1%}", f"{cost['free_nll']:.3f}", "keep_decision=False"):
        assert text in cal.advice_


@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_no_advice_if_decisions_are_right(n_classes):
    for seed in range(3):
        cal = AutoCalibrator().fit(*biased_sample(800, n_classes, seed, bias=0.0))
        assert cal.decision_cost_["is_large"] is False
        assert cal.advice_ is None


@quiet
def test_decision_cost_is_measured_only_for_the_default_candidates():
    z, y = biased_sample(300, 3)
    for cal in (AutoCalibrator(CANDIDATES), AutoCalibrator(keep_decision=False)):
        assert cal.fit(z, y).decision_cost_ is None
        assert cal.advice_ is None
    assert AutoCalibrator().fit(z, z.argmax(axis=1)).decision_cost_ is None
    with pytest.raises(AttributeError):
        _ = AutoCalibrator().advice_


def test_a_saved_calibrator_has_the_same_attributes(tmp_path):
    z, y = biased_sample(600, 3)
    chain = Chain([Mixture([Identity(), TemperatureScaling()]), PlattScaling()])
    for model in (AutoCalibrator(), AutoCalibrator(keep_decision=False), AutoCalibrator({"mine": chain})):
        model.fit(z, y)
        save(model, tmp_path / "cal.json")
        loaded = load(tmp_path / "cal.json")
        for name in ("has_final_step_", "decision_cost_", "advice_", "preserves_decision"):
            assert getattr(loaded, name) == getattr(model, name)
    assert AutoCalibrator().fit(z, y).has_final_step_


def test_files_of_earlier_versions_lack_the_decision_cost():
    cal = AutoCalibrator().fit(*biased_sample(600, 3))
    assert cal.has_final_step_
    del cal.decision_cost_, cal.has_final_step_
    text = artefact.encode(cal)
    assert "decision_cost_" not in text
    loaded = artefact.decode(text, "cal.json")
    assert loaded.decision_cost_ is None
    assert loaded.advice_ is None
    assert loaded.has_final_step_


def test_a_refit_updates_the_final_step():
    z, y = biased_sample(600, 3)
    cal = AutoCalibrator().fit(z, y)
    assert cal.has_final_step_
    assert not cal.set_params(combine="best").fit(z, y).has_final_step_
