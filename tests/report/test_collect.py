from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from hetcal.calibrators import AutoCalibrator, ClassWiseTemperatureScaling, Identity
from hetcal.calibrators.auto import default_candidates
from hetcal.diagnosis import Verdict, diagnose
from hetcal.label_noise import sensitivity
from hetcal.logits_files import LogitsFile
from hetcal.metrics import evaluate, reliability_curve
from hetcal.report import ReportData, collect, collect_report, make_report
from hetcal.report.collect import as_logits_file


def test_numbers_agree_with_the_metrics(report_data: ReportData, logits_file: LogitsFile) -> None:
    z, y = logits_file.judged.logits, logits_file.judged.labels
    probs = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    expected = evaluate(probs, y)
    assert report_data.before.ece == pytest.approx(expected.ece)
    assert report_data.overall.accuracy == pytest.approx(expected.accuracy)
    assert report_data.overall.gap == pytest.approx(probs.max(axis=1).mean() - expected.accuracy)
    merged = report_data.cells.merged()
    curve = reliability_curve(probs, y)
    assert_allclose(merged.count[0], curve.count)
    used = curve.count > 0
    assert_allclose((merged.correct[0] / np.where(used, curve.count, 1))[used], curve.accuracy[used])


def test_cells_and_diagnosis_agree_with_the_evaluation(report_data: ReportData) -> None:
    cells = report_data.cells_after
    by_bin = np.abs(cells.residual).sum(axis=1) / cells.count.sum(axis=1)
    assert_allclose(by_bin, report_data.after.classes.ece)
    assert_allclose([c.ece for c in report_data.diagnosis_after.classes], report_data.after.classes.ece)


def test_the_recommended_method_is_the_mixture_of_its_candidates(
    report_data: ReportData, logits_file: LogitsFile
) -> None:
    names = [row.name for row in report_data.methods]
    assert names == ["Uncal", "TS", "VS", "CTS", "CTS Γ=bayes", "Auto"]
    auto = AutoCalibrator().fit(logits_file.val.logits, logits_file.val.labels)
    assert report_data.chosen == auto.best_name_
    weights = {c["name"]: c["weight"] for c in report_data.candidates}
    assert weights == {c["name"]: c["weight"] for c in auto.candidates_}
    mean = 0
    n_rows, n_classes = logits_file.val.logits.shape
    for name, candidate in default_candidates(n_classes, n_rows).items():
        fitted = candidate.fit(logits_file.val.logits, logits_file.val.labels)
        mean += weights[name] * fitted.predict_proba(logits_file.judged.logits)
    mixture, _ = auto.best_.steps_
    assert_allclose(mixture.predict_proba(logits_file.judged.logits), mean, atol=1e-4)
    probs = auto.predict_proba(logits_file.judged.logits)
    assert report_data.after.nll == pytest.approx(evaluate(probs, logits_file.judged.labels).nll)
    assert report_data.methods[-1].changed == 0


def test_every_candidate_has_a_description_and_members_are_sorted(report_data: ReportData) -> None:
    assert all(c["meaning"] for c in report_data.candidates)
    shares = [c["weight"] for c in report_data.members]
    assert shares == sorted(shares, reverse=True)
    assert len(shares) > 1
    assert sum(shares) == pytest.approx(1, abs=0.005 * len(report_data.candidates))
    assert report_data.has_final_step
    assert report_data.members[0]["meaning"] in report_data.methods[-1].meaning


def test_biased_logits_have_a_large_decision_cost() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(500, 3)) * 2
    labels = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    cost = collect_report(z + np.array([0.0, 1.5, 3.0]), labels).decision_cost
    assert cost is not None
    assert cost["is_large"]


@pytest.mark.usefixtures("few_methods")
def test_vector_scaling_is_skipped_on_large_data(
    logits_file: LogitsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "_METHODS", collect._METHODS | {"VS": ("", Identity())})
    assert "VS" in [row.name for row in collect_report(logits_file).methods]
    monkeypatch.setattr(collect, "_MAX_VS_LOGITS", 6000)
    data = collect_report(logits_file)
    assert "VS" not in [row.name for row in data.methods]
    assert any("vector scaling" in note for note in data.notes)


def test_clearest_case_is_a_miscalibrated_class(report_data: ReportData) -> None:
    miscalibrated = {Verdict.OVER_CONFIDENT, Verdict.UNDER_CONFIDENT}
    wrong = [c for c in report_data.diagnosis.classes if c.kind in miscalibrated]
    assert report_data.n_wrong == len(wrong) > 0
    assert report_data.clearest is not None
    assert report_data.clearest.ece - report_data.clearest.floor == max(c.ece - c.floor for c in wrong)


def test_gamma_path_runs_from_shared_to_separate_temperatures(
    report_data: ReportData, logits_file: LogitsFile
) -> None:
    path = report_data.path
    assert path.gamma[0] == 0
    assert path.gamma[-1] == np.inf
    assert np.all(np.diff(path.gamma) > 0)
    assert np.ptp(path.alpha[0]) == 0
    free = ClassWiseTemperatureScaling().fit(logits_file.val.logits, logits_file.val.labels)
    assert_allclose(path.alpha[-1], free.alpha_)
    middle = len(path.gamma) // 2
    tied = ClassWiseTemperatureScaling(path.gamma[middle]).fit(logits_file.val.logits, logits_file.val.labels)
    assert np.array_equal(path.alpha[middle], tied.alpha_)
    distance = np.abs(path.alpha - path.alpha0[:, None])[:-1]
    assert np.all(distance <= path.gamma[:-1, None] + 1e-6)


def test_gap_noise_agrees_with_redraws_of_a_calibrated_class(
    report_data: ReportData, logits_file: LogitsFile
) -> None:
    z = logits_file.judged.logits
    probs = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    confidence = probs.max(axis=1)[probs.argmax(axis=1) == 3]
    rng = np.random.default_rng(0)
    gaps = (confidence - (rng.random((4000, len(confidence))) < confidence)).mean(axis=1)
    assert report_data.gap_noise[3] == pytest.approx(np.quantile(np.abs(gaps), 0.95), rel=0.1)


def test_groups_are_evaluated_before_and_after(report_data: ReportData) -> None:
    assert [g.name for g in report_data.groups] == ["<b>night</b>", "day"]
    assert sum(g.n for g in report_data.groups) == 1200
    assert all(g.floor < g.ece for g in report_data.groups)


@pytest.mark.usefixtures("few_methods")
def test_groups_in_both_sets_add_a_method(make_split: Any) -> None:
    parts = [make_split(400, 0), make_split(300, 1)]
    val, test = (dataclasses.replace(s, groups=np.arange(len(s.labels)) % 2) for s in parts)
    methods = collect_report(LogitsFile(val, test, None, "x.npz")).methods
    assert [row.name for row in methods][-2:] == ["CTS by group", "Auto"]


def test_training_counts_correlate_with_the_gaps(report_data: ReportData) -> None:
    # Counts decrease with the class; the factor on the logits increases, and so does the gap.
    assert report_data.training is not None
    assert report_data.training.correlation < -0.8


def test_constant_training_counts_have_no_correlation(thin_data: ReportData) -> None:
    assert thin_data.training is not None
    assert np.isnan(thin_data.training.correlation)


def test_few_rows_leave_classes_undecided(thin_data: ReportData) -> None:
    rows = thin_data.settling.rows
    assert thin_data.settling.undecided > 1
    assert 0 < rows["half"] <= rows["most"] <= rows["all"]


def test_a_class_that_is_never_predicted(thin_data: ReportData) -> None:
    assert thin_data.diagnosis.classes[2].n == 0
    assert thin_data.settling.unseen == 1
    assert np.isnan(thin_data.gap_noise[2])
    assert any("class 2" in note for note in thin_data.notes)


def test_one_set_is_evaluated_by_cross_fitting(thin_data: ReportData) -> None:
    assert thin_data.settings.cross_fitted
    assert thin_data.settings.n_fit == thin_data.settings.n_judged == 160
    cells = thin_data.cells_after
    by_class = np.nansum(thin_data.after.classes.ece * thin_data.after.classes.n)
    assert np.abs(cells.residual).sum() == pytest.approx(by_class)


def test_sensitivity_agrees_with_label_noise_on_the_evaluated_rows(
    noise_data: ReportData, logits_file: LogitsFile
) -> None:
    result = noise_data.sensitivity
    assert result is not None
    z, y = logits_file.judged.logits, logits_file.judged.labels
    assert_allclose(result.flip_rate, sensitivity(z, y, max_rate=0.2).flip_rate)
    assert [c.kind for c in noise_data.diagnosis.classes] == list(result.verdicts[0])
    # With this noise rate, the class is no longer over-confident.
    worst = noise_data.overconfident[0]
    rate = result.flip_rate[worst.index]
    corrected = diagnose(z, y, transition=rate + 0.02).classes[worst.index]
    assert corrected.kind is not Verdict.OVER_CONFIDENT


def test_sensitivity_is_left_out_by_default(report_data: ReportData) -> None:
    assert report_data.sensitivity is None


def test_a_generator_draws_the_seed(thin_data: ReportData) -> None:
    assert thin_data.settings.seed == np.random.default_rng(4).integers(1 << 32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": [0, 1]}, "labels must"),
        ({"groups": ["a"]}, "groups must"),
        ({"class_names": ["a"]}, "class_names must .*got 1"),
        ({"train_counts": [1]}, "train_counts must"),
        ({"format": "pdf"}, "format must .*got 'pdf'"),
        ({"n_bins": 0}, "n_bins must .*got 0"),
        ({"max_noise": 1}, "max_noise must .*got 1"),
    ],
)
def test_bad_input_raises(logits_file: LogitsFile, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_report(logits_file, **arguments)  # type: ignore[arg-type]


def test_rng_must_be_a_seed_or_generator(logits_file: LogitsFile) -> None:
    with pytest.raises(TypeError, match="rng must"):
        make_report(logits_file, rng=-1)


def test_an_array_needs_labels(make_split: Any) -> None:
    with pytest.raises(ValueError, match="labels must"):
        make_report(make_split(50, 0).logits)


def test_groups_belong_to_the_evaluated_rows(logits_file: LogitsFile) -> None:
    file = as_logits_file(logits_file, None, np.zeros(1200, int))
    assert file.val.groups is None
    assert file.judged.groups is not None


def test_repeated_names_get_their_index(report_data: ReportData) -> None:
    assert report_data.labels[5:7] == ("twin [5]", "twin [6]")


def test_names_are_unchanged(report_data: ReportData, hostile_names: tuple[str, ...]) -> None:
    assert report_data.names == hostile_names


def test_probabilities_become_log_probabilities() -> None:
    probs = np.array([[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]])
    file = as_logits_file(None, ["a", "c"], None, probs, ["a", "b", "c"])
    assert file.class_names == ["a", "b", "c"]
    assert file.val.labels.tolist() == [0, 2]
    assert_allclose(np.exp(file.val.logits), np.where(probs > 0, probs, 0.05))


def test_probabilities_and_a_file_exclude_each_other(logits_file: LogitsFile) -> None:
    with pytest.raises(ValueError, match="probs must"):
        make_report(logits_file, probs=[[0.5, 0.5]])


def test_groups_of_a_single_set(make_split: Any) -> None:
    file = LogitsFile(make_split(50, 0), None, None, "")
    groups = as_logits_file(file, None, np.arange(50) % 2).judged.groups
    assert groups is not None
    assert groups.tolist() == [0, 1] * 25
