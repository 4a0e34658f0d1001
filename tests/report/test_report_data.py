from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from hetcal.calibrators import AutoCalibrator, ClassWiseTemperatureScaling
from hetcal.calibrators.auto import default_candidates
from hetcal.diagnosis import OVER, UNDER
from hetcal.logits_files import LogitsFile, Split
from hetcal.metrics import evaluate, reliability_curve
from hetcal.report import ReportData, collect_report, gather, make_report, render_report
from hetcal.report.gather import as_logits_file
from hetcal.report.words import commands, headline, helps, mend, percent, settling, signed


def test_numbers_agree_with_the_metrics(report_data: ReportData, logits_file: LogitsFile) -> None:
    z, y = logits_file.judged.logits, logits_file.judged.labels
    probs = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    expected = evaluate(probs, y)
    assert report_data.before.ece == pytest.approx(expected.ece)
    assert report_data.overall.accuracy == pytest.approx(expected.accuracy)
    assert report_data.overall.gap == pytest.approx(probs.max(axis=1).mean() - expected.accuracy)
    whole = report_data.cells.merged()
    curve = reliability_curve(probs, y)
    assert_allclose(whole.count[0], curve.count)
    used = curve.count > 0
    assert_allclose((whole.correct[0] / np.where(used, curve.count, 1))[used], curve.accuracy[used])


def test_all_views_of_one_calibrator_agree(report_data: ReportData) -> None:
    cells = report_data.cells_after
    by_bin = np.abs(cells.residual).sum(axis=1) / cells.count.sum(axis=1)
    assert_allclose(by_bin, report_data.after.classes.ece)
    assert_allclose([c.ece for c in report_data.diagnosis_after.classes], report_data.after.classes.ece)


def test_the_recommended_method_is_last_and_made_of_its_candidates(
    report_data: ReportData, logits_file: LogitsFile
) -> None:
    names = [row.name for row in report_data.methods]
    assert names == ["Uncal", "TS", "VS", "CTS", "CTS Γ=bayes", "Auto"]
    auto = AutoCalibrator().fit(logits_file.val.logits, logits_file.val.labels)
    assert report_data.chosen == auto.best_name_
    weights = {c["name"]: c["weight"] for c in report_data.candidates}
    assert weights == {c["name"]: c["weight"] for c in auto.candidates_}
    mean = 0
    for name, candidate in default_candidates(len(logits_file.val.labels)).items():
        fitted = candidate.fit(logits_file.val.logits, logits_file.val.labels)
        mean += weights[name] * fitted.predict_proba(logits_file.judged.logits)
    mixture, _ = auto.best_.steps_
    assert_allclose(mixture.predict_proba(logits_file.judged.logits), mean, atol=1e-4)
    probs = auto.predict_proba(logits_file.judged.logits)
    assert report_data.after.nll == pytest.approx(evaluate(probs, logits_file.judged.labels).nll)
    assert report_data.methods[-1].changed == 0


def test_every_candidate_has_words_and_the_heaviest_lead(report_data: ReportData) -> None:
    assert all(c["meaning"] for c in report_data.candidates)
    shares = [c["weight"] for c in report_data.members]
    assert shares == sorted(shares, reverse=True)
    assert len(shares) > 1
    assert sum(shares) == pytest.approx(1, abs=0.005 * len(report_data.candidates))
    heaviest = max(report_data.candidates, key=lambda c: c["weight"])
    said = f"{heaviest['weight']:.0%}"
    assert report_data.methods[-1].meaning.endswith(
        f"calibrators, with class-wise Platt scaling behind it; {said} is {heaviest['meaning']}"
    )
    assert ", with class-wise Platt scaling behind it. The heaviest" in mend(report_data)
    assert f"The heaviest, at {said}, is {heaviest['meaning']}." in mend(report_data)


def test_vector_scaling_is_left_out_of_large_data_and_the_page_says_so(
    logits_file: LogitsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "_LARGE", 6000)
    data = collect_report(logits_file)
    assert "VS" not in [row.name for row in data.methods]
    assert any(note.startswith("vector scaling was left out: with 8 classes") for note in data.notes)


def test_clearest_case_is_a_class_that_is_called_wrong(report_data: ReportData) -> None:
    wrong = [c for c in report_data.diagnosis.classes if c.kind in (OVER, UNDER)]
    assert report_data.n_wrong == len(wrong) > 0
    assert report_data.clearest is not None
    assert report_data.clearest.ece - report_data.clearest.floor == max(c.ece - c.floor for c in wrong)


def test_the_worst_of_many_calibrated_classes_stands_beside_the_floor_of_the_worst() -> None:
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(400, 40))
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (probs.cumsum(axis=1) > rng.random((400, 1))).argmax(axis=1)  # calibrated
    data = collect_report(LogitsFile(Split(logits, labels), None, None, ""))
    own = data.worst.floor  # that of the class alone, as if it had not been picked for its error
    worst, floor = data.before.max_ece, data.before.floor["max_ece"]
    assert worst == pytest.approx(floor, abs=0.1)
    assert worst > own + 0.05
    for text in (render_report(data, "html"), render_report(data, "md")):
        assert percent(floor) in text
    card = render_report(data, "html").split("Worst class:")[1].split("</div>")[0]
    assert percent(worst) in card
    assert percent(floor) in card
    assert percent(own) not in card


def test_gamma_path_runs_from_one_temperature_to_one_each(
    report_data: ReportData, logits_file: LogitsFile
) -> None:
    path = report_data.path
    assert path.gamma[0] == 0
    assert path.gamma[-1] == np.inf
    assert np.all(np.diff(path.gamma) > 0)
    assert np.ptp(path.alpha[0]) == 0
    free = ClassWiseTemperatureScaling().fit(logits_file.val.logits, logits_file.val.labels)
    assert_allclose(path.alpha[-1], free.alpha_)
    away = np.abs(path.alpha - path.alpha0[:, None])[:-1]
    assert np.all(away <= path.gamma[:-1, None] + 1e-6)


def test_gap_noise_is_what_redraws_of_a_calibrated_class_show(
    report_data: ReportData, logits_file: LogitsFile
) -> None:
    z = logits_file.judged.logits
    probs = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    confidence = probs.max(axis=1)[probs.argmax(axis=1) == 3]
    rng = np.random.default_rng(0)
    gaps = (confidence - (rng.random((4000, len(confidence))) < confidence)).mean(axis=1)
    assert report_data.gap_noise[3] == pytest.approx(np.quantile(np.abs(gaps), 0.95), rel=0.1)


def test_groups_are_judged_before_and_after(report_data: ReportData) -> None:
    assert [g.name for g in report_data.groups] == ["<b>night</b>", "day"]
    assert sum(g.n for g in report_data.groups) == 1200
    assert all(g.floor < g.ece for g in report_data.groups)


def test_groups_in_both_sets_add_a_method(make_split: Any) -> None:
    parts = [make_split(400, 0), make_split(300, 1)]
    val, test = (dataclasses.replace(s, groups=np.arange(len(s.labels)) % 2) for s in parts)
    methods = collect_report(LogitsFile(val, test, None, "x.npz")).methods
    assert [row.name for row in methods][-2:] == ["CTS by group", "Auto"]


def test_training_counts_are_set_against_the_gaps(report_data: ReportData) -> None:
    # Counts fall with the class, the factor on the logits grows, and so does the gap.
    assert report_data.training is not None
    assert report_data.training.correlation < -0.8


def test_training_counts_that_are_all_alike_correlate_with_nothing(thin_data: ReportData) -> None:
    assert thin_data.training is not None
    assert np.isnan(thin_data.training.correlation)


def test_few_rows_leave_classes_undecided_and_say_how_many_more(thin_data: ReportData) -> None:
    rows = thin_data.settling.rows
    assert thin_data.settling.undecided > 1
    assert 0 < rows["half"] <= rows["most"] <= rows["all"]


def test_steps_that_take_as_many_rows_are_said_once(thin_data: ReportData) -> None:
    def said(half: int, most: int, everything: int) -> str:
        rows = {"half": half, "most": most, "all": everything}
        return settling(
            dataclasses.replace(thin_data, settling=dataclasses.replace(thin_data.settling, rows=rows))
        )[1]

    start = "With rows drawn like these, about "
    assert said(10, 20, 3000) == f"{start}10 more would settle half of them, 20 nine in ten, and 3,000 all."
    assert said(10, 20, 20) == f"{start}10 more would settle half of them, and 20 all."
    assert said(10, 10, 20) == f"{start}10 more would settle nine in ten of them, and 20 all."
    assert said(20, 20, 20) == f"{start}20 more would settle all of them."


def test_a_class_that_is_never_predicted_has_no_number(thin_data: ReportData) -> None:
    assert thin_data.diagnosis.classes[2].n == 0
    assert thin_data.settling.unseen == 1
    assert np.isnan(thin_data.gap_noise[2])
    assert any("no row is predicted as class 2" in note for note in thin_data.notes)


def test_one_set_is_judged_by_cross_fitting(thin_data: ReportData) -> None:
    assert thin_data.settings.cross_fitted
    assert thin_data.settings.n_fit == thin_data.settings.n_judged == 160
    cells = thin_data.cells_after
    by_class = np.nansum(thin_data.after.classes.ece * thin_data.after.classes.n)
    assert np.abs(cells.residual).sum() == pytest.approx(by_class)


def test_a_generator_gives_a_seed_that_is_kept(thin_data: ReportData) -> None:
    assert thin_data.settings.seed == np.random.default_rng(4).integers(1 << 32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": [0, 1]}, "labels must be left out for a LogitsFile"),
        ({"groups": ["a"]}, r"groups must be one-dimensional with one entry per row \(1200\)"),
        ({"class_names": ["a"]}, r"class_names must have one entry per class \(8\), got 1"),
        ({"train_counts": [1]}, "train_counts must"),
        ({"format": "pdf"}, "format must be one of 'html', 'md', 'json', got 'pdf'"),
        ({"n_bins": 0}, "n_bins must be a positive integer, got 0"),
    ],
)
def test_bad_input_is_refused(logits_file: LogitsFile, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_report(logits_file, **arguments)  # type: ignore[arg-type]


def test_a_seed_must_be_a_seed(logits_file: LogitsFile) -> None:
    with pytest.raises(TypeError, match="rng must be a numpy"):
        make_report(logits_file, rng=-1)


def test_an_array_needs_labels(make_split: Any) -> None:
    with pytest.raises(ValueError, match="labels must be given"):
        make_report(make_split(50, 0).logits)


def test_groups_beside_a_file_are_those_of_the_judged_rows(logits_file: LogitsFile) -> None:
    made = as_logits_file(logits_file, None, np.zeros(1200, int))
    assert made.val.groups is None
    assert made.judged.groups is not None


def test_commands_fit_the_source(report_data: ReportData) -> None:
    example = dataclasses.replace(report_data.settings, embedded=True, source="cifar10-noisy.npz")
    assert commands(dataclasses.replace(report_data, settings=example)) == ["hetcal demo"]
    other = dataclasses.replace(example, source="cifar100-noisy.npz")
    again = 'hetcal.make_report(hetcal.load_example("cifar100-noisy"), n_bins=15, rng=0)'
    assert commands(dataclasses.replace(report_data, settings=other)) == [again]
    seeded = dataclasses.replace(report_data.settings, seed=7)
    again = commands(dataclasses.replace(report_data, settings=seeded))[0]
    assert again.startswith("hetcal.make_report(hetcal.load_logits('my logits ```\\n<img src=x>")
    assert again.endswith("npz'), n_bins=15, rng=7)")


def test_repeated_names_carry_their_number(report_data: ReportData) -> None:
    assert report_data.labels[5:7] == ("twin [5]", "twin [6]")


def test_names_are_kept_as_given(report_data: ReportData, nasty_names: tuple[str, ...]) -> None:
    assert report_data.names == nasty_names


def test_the_headline_says_which_way_the_model_errs(report_data: ReportData) -> None:
    def said(low: float, high: float) -> str:
        overall = dataclasses.replace(report_data.overall, low=low, high=high)
        return headline(dataclasses.replace(report_data, overall=overall))

    assert said(0.01, 0.02) == "The model is more confident than it is right."
    assert said(-0.02, -0.01) == "The model is right more often than it says."
    assert said(-0.01, 0.01) == "Right on average, wrong class by class."


def test_a_calibrator_that_does_not_help_is_not_praised(
    report_data: ReportData, thin_data: ReportData
) -> None:
    assert "The mean was fitted on 800 rows and brings ECE from" in mend(report_data)
    assert mend(report_data).endswith("Neither the mean nor any of its members changes a decision.")
    assert thin_data.after.ece < thin_data.before.ece
    assert "fitted on four fifths of the rows in turn and brings ECE from" in mend(thin_data)
    assert helps(report_data)
    assert helps(thin_data)
    worse = _judged_after(report_data, ece=report_data.before.ece + 0.01)
    assert "the mean does not lower ECE" in mend(worse)
    assert "Keep the model as it is until there are more rows." in mend(worse)
    assert not helps(worse)


def test_a_calibrated_model_is_best_kept(make_split: Any) -> None:
    """A handful of rows of a model that is right: nothing is better by likelihood, whatever ECE says."""
    rows = make_split(100, 3)
    factor = np.linspace(0.5, 2.2, 8)[rows.logits.argmax(axis=1)]
    data = collect_report(rows.logits / factor[:, None], rows.labels)
    assert min(data.candidates, key=lambda c: c["nll"])["name"] == "Identity"
    assert data.after.nll > data.before.nll
    assert "no calibrator does better than the model as it is" in mend(data)
    assert not helps(data)
    better = _judged_after(data, nll=data.before.nll - 0.01)
    assert helps(better) == (data.after.ece < data.before.ece)


def test_one_calibrator_alone_is_no_mean(report_data: ReportData) -> None:
    weights = {"VS": 0.999, "Identity": 0.001}
    table = tuple({**c, "weight": weights.get(c["name"], 0.0)} for c in report_data.candidates)
    said = mend(dataclasses.replace(report_data, candidates=table))
    assert said.startswith("Recommended: vector scaling that keeps decisions. It was fitted on 800 rows")
    assert said.endswith("It changes no decision.")


def test_changed_decisions_are_told(report_data: ReportData) -> None:
    *others, last = report_data.methods
    changed = dataclasses.replace(report_data, methods=(*others, dataclasses.replace(last, changed=0.0123)))
    assert mend(changed).endswith("It changes 1.2% of the decisions.")


def _judged_after(data: ReportData, **values: float) -> ReportData:
    """The same report with other numbers of the recommended calibrator."""
    *others, last = data.methods
    evaluation = dataclasses.replace(last.evaluation, **values)
    return dataclasses.replace(data, methods=(*others, dataclasses.replace(last, evaluation=evaluation)))


@pytest.mark.parametrize(
    ("value", "text"), [(0.123, "+12.3"), (-0.04, "−4.0"), (-0.0001, "0.0"), (float("nan"), "–"), (None, "–")]
)
def test_gaps_are_written_in_points(value: float | None, text: str) -> None:
    assert signed(value) == text
