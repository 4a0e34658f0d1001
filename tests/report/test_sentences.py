from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetcal
from hetcal.__main__ import main
from hetcal._format import number, percent
from hetcal.diagnosis import ClassDiagnosis, Verdict
from hetcal.metrics.binning import Cells
from hetcal.report import ReportData, collect_report, render_report, sentences
from hetcal.report.data import IDENTITY, Finding


def with_recommended(data: ReportData, *, changed: float | None = None, **metrics: float) -> ReportData:
    """The same report with other results of the recommended calibrator."""
    *others, last = data.methods
    evaluation = dataclasses.replace(last.evaluation, **metrics)
    changed = last.changed if changed is None else changed
    last = dataclasses.replace(last, evaluation=evaluation, changed=changed)
    return dataclasses.replace(data, methods=(*others, last))


def with_kinds(data: ReportData, kinds: list[Verdict], *, low: float = -0.1, high: float = 0.1) -> ReportData:
    """The same report with other verdicts and another interval of the average gap."""
    pairs = zip(data.diagnosis.classes, kinds, strict=True)
    classes = tuple(dataclasses.replace(c, kind=kind) for c, kind in pairs)
    settling = dataclasses.replace(data.settling, undecided=kinds.count(Verdict.TOO_FEW_ROWS))
    return dataclasses.replace(
        data,
        diagnosis=dataclasses.replace(data.diagnosis, classes=classes),
        settling=settling,
        overall=dataclasses.replace(data.overall, low=low, high=high),
    )


def with_ece(data: ReportData, ece: float) -> ReportData:
    """The same report with another ECE of the uncalibrated model."""
    first, *others = data.methods
    first = dataclasses.replace(first, evaluation=dataclasses.replace(first.evaluation, ece=ece))
    return dataclasses.replace(data, methods=(first, *others))


OVER, UNDER, FINE, FEW = Verdict


def numbers(text: str) -> list[str]:
    return re.findall(r"\d[\d,]*", text)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([OVER] * 5 + [UNDER] * 2 + [FINE], ["5", "8", "2"]),
        ([OVER] * 2 + [UNDER] * 5 + [FINE], ["5", "8", "2"]),
        ([UNDER] * 8, ["8"]),
        ([OVER] * 3 + [FEW] * 2 + [FINE] * 3, ["3", "8"]),
    ],
)
def test_headline_counts_the_miscalibrated_classes(
    report_data: ReportData, kinds: list[Verdict], expected: list[str]
) -> None:
    data = with_kinds(report_data, kinds)
    assert data.finding is Finding.CLASSES
    headline = sentences.headline(data)
    assert numbers(headline) == expected
    first = max((OVER, UNDER), key=kinds.count)
    assert headline.lower().startswith(first)


def test_headline_names_single_classes(report_data: ReportData) -> None:
    data = with_kinds(report_data, [FINE, OVER, FINE, UNDER, FINE, FINE, FINE, FINE])
    data = dataclasses.replace(data, names=tuple("ABCDEFGH"))
    assert {"B", "D"} <= set(re.findall(r"\w+", sentences.headline(data)))


def test_headline_says_first_that_there_are_too_few_rows(report_data: ReportData) -> None:
    few = with_kinds(report_data, [FEW] * 5 + [OVER] * 3, low=0.01, high=0.02)
    assert few.finding is Finding.FEW_ROWS
    assert numbers(sentences.headline(few))[:3] == ["1,200", "5", "8"]
    assert OVER in sentences.headline(few)
    settling = dataclasses.replace(few.settling, rows={"half": 70, "most": 7100, "all": 9000})
    assert numbers(sentences.lead(dataclasses.replace(few, settling=settling))[0]) == ["7,100"]
    assert len(sentences.lead(with_kinds(report_data, [FEW] * 4 + [OVER] * 4))) == 1


def test_rows_that_decide_every_class_are_not_said_to_decide_most(report_data: ReportData) -> None:
    few = with_kinds(report_data, [FEW] * 8)
    rows = {"half": 60, "most": 330, "all": 330}
    leads = [
        sentences.lead(dataclasses.replace(few, settling=dataclasses.replace(few.settling, **changes)))[0]
        for changes in ({"rows": rows}, {"rows": rows | {"all": 400}}, {"rows": rows, "unseen": 1})
    ]
    assert leads[0] != leads[1] == leads[2]


def test_sixty_rows_are_too_few(make_split: Any) -> None:
    rows = make_split(60, 3)
    data = collect_report(rows.logits, rows.labels)
    assert data.finding is Finding.FEW_ROWS
    assert sentences.headline(data).startswith("60 ")


def test_headline_without_miscalibrated_classes(report_data: ReportData) -> None:
    fine = with_ece(with_kinds(report_data, [FINE] * 8), 0.0)
    levels = with_ece(fine, 0.9)
    average = with_kinds(report_data, [FINE] * 8, low=0.01, high=0.02)
    other_way = with_kinds(report_data, [FINE] * 8, low=-0.02, high=-0.01)
    undecided = with_ece(with_kinds(report_data, [FINE] * 5 + [FEW] * 3), 0.0)
    assert [data.finding for data in (fine, levels, average, other_way, undecided)] == [
        Finding.NOTHING, Finding.LEVELS, Finding.AVERAGE, Finding.AVERAGE, Finding.NOTHING,
    ]  # fmt: skip
    headlines = [sentences.headline(data) for data in (fine, levels, average, other_way, undecided)]
    assert len(set(headlines)) == 5
    assert OVER in headlines[2].lower()
    assert UNDER in headlines[3].lower()
    assert numbers(headlines[4]) == ["3", "8"]
    assert sentences.suggestions(fine) == []
    assert len(sentences.summary(fine)) == 2  # no clearest case


def test_lead_states_the_effect_on_errors_and_decisions(report_data: ReportData) -> None:
    (text,) = sentences.lead(with_recommended(report_data, changed=0.0123))
    for value in (report_data.before.ece, report_data.after.ece, report_data.after.floor["ece"], 0.0123):
        assert percent(value) in text
    assert {str(report_data.n_wrong), str(report_data.n_wrong_after)} <= set(numbers(text))
    worse = with_recommended(report_data, ece=report_data.before.ece + 0.01)
    assert percent(worse.after.ece) in sentences.lead(worse)[0]


def test_nothing_to_fix_recommends_nothing(report_data: ReportData) -> None:
    fine = with_ece(with_kinds(report_data, [FINE] * 8), report_data.after.ece + 1e-3)
    fine = with_recommended(fine, ece=fine.before.ece - 1e-3)
    floor = dict(fine.before.floor_q95) | {"ece": 1.0}
    first = dataclasses.replace(fine.methods[0], evaluation=dataclasses.replace(fine.before, floor_q95=floor))
    fine = dataclasses.replace(fine, methods=(first, *fine.methods[1:]))
    assert fine.calibration_helps
    assert fine.finding is Finding.NOTHING
    text = sentences.recommendation(fine)
    assert number(fine.after.nll) in text
    assert percent(fine.after.ece) not in text  # a lower ECE is no reason to calibrate


def with_class(data: ReportData, **values: Any) -> tuple[ReportData, ClassDiagnosis]:
    """The same report in which the first class is consistent and has these values."""
    first, *others = data.diagnosis.classes
    values = {"kind": FINE, "n": 983, "floor": 0.02, "floor_q95": 0.03, "p_value": 0.4} | values
    changed = dataclasses.replace(first, **values)
    diagnosis = dataclasses.replace(data.diagnosis, classes=(changed, *others))
    return dataclasses.replace(data, diagnosis=diagnosis), changed


def test_a_consistent_class_with_a_large_ece_is_explained(report_data: ReportData) -> None:
    zero = {"gap_low": -0.01, "gap_high": 0.02, "signed_gap": 0.005}
    cases = [
        {"ece": 0.05, **zero},  # the errors cancel out
        {"ece": 0.05, "floor_q95": 0.06, "n": 41, **zero},  # few rows
        {"ece": 0.05, "signed_gap": 0.05, "gap_low": 0.01, "gap_high": 0.09, "p_value": 0.03},
        {"ece": 0.05, "signed_gap": 0.05, "gap_low": 0.01, "gap_high": 0.09, "p_value": 0.06},
    ]
    texts = [sentences.explanation(*with_class(report_data, **values)) for values in cases]
    assert None not in texts
    assert len(set(texts)) == len(texts)
    assert {"41", "6"} <= set(numbers(str(texts[1])))
    for format_ in ("html", "md", "json"):
        assert str(texts[1]) in render_report(with_class(report_data, **cases[1])[0], format_)
    assert sentences.explanation(*with_class(report_data, ece=0.039, **zero)) is None
    assert sentences.explanation(*with_class(report_data, ece=0.05, kind=OVER, **zero)) is None


def test_a_remaining_shape_is_mentioned(report_data: ReportData) -> None:
    """Confidence is too high at low confidences and too low at high ones."""
    n_bins = report_data.settings.n_bins
    centre = (np.arange(n_bins) + 0.5) / n_bins
    count = np.full((1, n_bins), 1000.0)
    cells = Cells(
        count, count * centre, count * np.where(centre < 0.5, centre - 0.1, centre + 0.1).clip(0, 1)
    )
    curved = dataclasses.replace(with_recommended(report_data, ece=0.1), cells_after=cells)
    text = sentences.residual_shape(curved)
    assert text is not None
    low, high = curved.deviations
    assert low.gap > 0 > high.gap
    assert {percent(low.high, 0), percent(high.high, 0)} <= set(text.split())
    one_side = dataclasses.replace(curved, cells_after=Cells(count, count * centre, 0.5 * count * centre))
    assert [deviation.gap > 0 for deviation in one_side.deviations] == [True]
    assert str(sentences.residual_shape(one_side)).count(". ") < text.count(". ")  # no remark on the shape
    assert sentences.residual_shape(with_recommended(curved, ece=0.0)) is None
    for format_ in ("html", "md", "json"):
        assert text in render_report(curved, format_)


def test_lead_states_the_miscalibrated_confidence_levels(report_data: ReportData) -> None:
    count, centre = np.full((1, 15), 1000.0), (np.arange(15) + 0.5) / 15
    correct = count * np.where(centre < 0.5, centre - 0.03, centre + 0.03)
    levels = with_ece(with_kinds(report_data, [FINE] * 8), 0.9)
    levels = dataclasses.replace(levels, cells=Cells(count, count * centre, correct))
    low, high = levels.deviations_before
    assert low.gap > 0 > high.gap
    assert percent(low.high, 0) in sentences.lead(levels)[0]
    assert len(sentences.lead(dataclasses.replace(levels, cells=Cells(count, count, count)))) == 1


def test_summary_states_the_numbers(report_data: ReportData) -> None:
    text = " ".join(sentences.summary(report_data))
    clearest = report_data.clearest
    assert clearest is not None
    for value in (report_data.overall.accuracy, report_data.overall.confidence, clearest.accuracy):
        assert percent(value) in text


def test_recommendation_states_the_effect(report_data: ReportData) -> None:
    text = sentences.recommendation(report_data)
    assert report_data.calibration_helps
    assert percent(report_data.before.ece) in text
    assert percent(report_data.after.ece) in text
    heaviest = max(report_data.candidates, key=lambda c: c["weight"])
    assert heaviest["meaning"] in text
    assert f"{heaviest['weight']:.0%}" in text
    assert "Platt scaling" in text
    assert "1.2%" in sentences.recommendation(with_recommended(report_data, changed=0.0123))


COST = {
    "changed": 0.25,
    "nll": 0.9,
    "free_nll": 0.7,
    "accuracy": 0.5,
    "free_accuracy": 0.625,
    "is_large": True,
}


def with_cost(data: ReportData, **values: Any) -> ReportData:
    return dataclasses.replace(data, decision_cost=COST | values)


def test_recommendation_advises_to_change_decisions_if_keeping_them_is_costly(
    report_data: ReportData, thin_data: ReportData
) -> None:
    text = sentences.recommendation(with_cost(report_data))
    assert text.startswith(sentences.recommendation(report_data))
    for value in ("25.0%", "0.900", "0.700", "50.0%", "62.5%", "hetcal fit --change-decisions"):
        assert value in text
    arrays = sentences.advice(with_cost(thin_data))
    assert arrays is not None
    assert "keep_decision=False" in arrays
    for data in (report_data, with_cost(report_data, is_large=False)):
        assert sentences.advice(data) is None
        assert sentences.recommendation(data) == sentences.recommendation(report_data)


def test_a_calibrator_that_raises_ece_is_not_recommended(report_data: ReportData) -> None:
    worse = with_recommended(report_data, ece=report_data.before.ece + 0.01)
    assert not worse.calibration_helps
    assert "Keep the model" in sentences.recommendation(worse)


def test_the_identity_wins_only_if_its_likelihood_does(report_data: ReportData) -> None:
    def with_identity(nll: float) -> ReportData:
        table = tuple({**c, "nll": nll if c["name"] == IDENTITY else 1.0} for c in report_data.candidates)
        worse = with_recommended(report_data, nll=report_data.before.nll + 0.01)
        return dataclasses.replace(worse, candidates=table)

    assert with_identity(0.9).identity_is_best
    assert not with_identity(0.9).calibration_helps
    assert "Keep the model" in sentences.recommendation(with_identity(0.9))
    assert not with_identity(1.1).identity_is_best
    better = with_recommended(with_identity(0.9), nll=report_data.before.nll - 0.01)
    assert not better.identity_is_best


def test_a_single_calibrator_is_not_called_a_mean(report_data: ReportData) -> None:
    weights = {"MS with curves": 0.999, IDENTITY: 0.001}
    table = tuple({**c, "weight": weights.get(c["name"], 0.0)} for c in report_data.candidates)
    text = sentences.recommendation(dataclasses.replace(report_data, candidates=table))
    assert "matrix scaling" in text
    assert "mean" not in text


def test_suggestions_list_the_classes_of_each_verdict(report_data: ReportData) -> None:
    listed = [set(classes) for _, classes in sentences.suggestions(report_data)]
    wrong = [
        {c.index for c in report_data.diagnosis.classes if c.kind == kind}
        for kind in (Verdict.UNDER_CONFIDENT, Verdict.OVER_CONFIDENT)
    ]
    assert listed == [classes for classes in wrong if classes]


@pytest.mark.parametrize(
    ("rows", "numbers"),
    [
        ((10, 20, 3000), ["10", "20", "3,000"]),
        ((10, 20, 20), ["10", "20"]),
        ((10, 10, 20), ["10", "20"]),
        ((20, 20, 20), ["20"]),
    ],
)
def test_equal_numbers_of_rows_are_stated_once(
    thin_data: ReportData, rows: tuple[int, int, int], numbers: list[str]
) -> None:
    settling = dataclasses.replace(
        thin_data.settling, rows=dict(zip(("half", "most", "all"), rows, strict=True))
    )
    text = sentences.more_rows(dataclasses.replace(thin_data, settling=settling))[1]
    assert [word for word in text.split() if word[0].isdigit()] == numbers


def test_label_noise_is_about_the_overconfident_class_with_the_largest_gap(noise_data: ReportData) -> None:
    assert noise_data.sensitivity is not None
    largest = max(
        (c for c in noise_data.diagnosis.classes if c.kind is OVER),
        key=lambda c: c.signed_gap,
    )
    text = sentences.label_noise(noise_data)
    assert text is not None
    assert noise_data.sensitivity.condition(largest.index) in text
    assert text in sentences.summary(noise_data)
    calibrated = with_kinds(noise_data, [FINE] * 8)
    assert sentences.label_noise(calibrated) != text
    assert all(sentences.wrong_labels(calibrated, c) is None for c in calibrated.diagnosis.classes)


def test_commands_repeat_the_noise_rate(noise_data: ReportData) -> None:
    assert "--label-noise 0.2" in sentences.commands(noise_data)[0]
    settings = dataclasses.replace(noise_data.settings, from_file=False)
    assert "max_noise=0.2" in sentences.commands(dataclasses.replace(noise_data, settings=settings))[0]


def test_decided_classes_need_no_rows(thin_data: ReportData) -> None:
    settling = dataclasses.replace(thin_data.settling, undecided=0, unseen=0, rows={})
    assert len(sentences.more_rows(dataclasses.replace(thin_data, settling=settling))) == 1


@pytest.mark.parametrize(
    ("correlation", "p_value"), [(-0.9, 0.001), (0.9, 0.001), (0.1, 0.6), (np.nan, np.nan)]
)
def test_caveats_state_the_correlation_with_training_counts(
    report_data: ReportData, correlation: float, p_value: float
) -> None:
    assert report_data.training is not None
    training = dataclasses.replace(report_data.training, correlation=correlation, p_value=p_value)
    text = sentences.caveats(dataclasses.replace(report_data, training=training))[-1]
    assert (f"{correlation:.2f}".replace("-", "−") in text) == (correlation == correlation)
    assert "--train-counts" in sentences.caveats(dataclasses.replace(report_data, training=None))[-1]


def test_commands_depend_on_the_source(report_data: ReportData) -> None:
    def first(**settings: Any) -> str:
        changed = dataclasses.replace(report_data.settings, **({"arguments": ()} | settings))
        return sentences.commands(dataclasses.replace(report_data, settings=changed))[0]

    assert first(embedded=True, source="cifar10-noisy.npz") == "hetcal demo"
    example = 'hetcal.make_report(hetcal.load_example("cifar100-noisy"), n_bins=15, rng=0)'
    assert first(embedded=True, source="cifar100-noisy.npz") == example
    assert first(from_file=False) == "hetcal.make_report(logits, labels, n_bins=15, rng=0)"
    probs = "hetcal.make_report(probs=probs, labels=labels, class_names=class_names, n_bins=15, rng=0)"
    assert first(from_file=False, scores="probs", arguments=("class_names",)) == probs
    assert first(source="my.npz") == "hetcal report my.npz --bins 15 -o report.html"
    assert (
        first(source="my.npz", arguments=("groups", "title"), max_noise=0.2)
        == "hetcal report my.npz --bins 15 --groups groups.txt --label-noise 0.2 -o report.html"
    )
    assert (
        first(source="my.npz", seed=7) == "hetcal.make_report(hetcal.load_logits('my.npz'), n_bins=15, rng=7)"
    )


@pytest.mark.usefixtures("few_methods")
def test_commands_name_class_names_of_arrays_and_files_of_labels(make_split: Any, tmp_path: Path) -> None:
    rows = make_split(300, 0)
    names = [f"class {k}" for k in range(8)]
    (call,) = sentences.commands(collect_report(rows.logits, rows.labels, class_names=names))
    assert "(logits, labels, class_names=class_names, " in call
    np.save(tmp_path / "z.npy", rows.logits)
    np.save(tmp_path / "y.npy", rows.labels)
    data = hetcal.load_logits(tmp_path / "z.npy", labels=tmp_path / "y.npy")
    report, fit, evaluate = sentences.commands(collect_report(data))
    assert report.startswith("hetcal report z.npy --labels y.npy ")
    assert "z.npy --labels y.npy" in fit
    assert "new-rows.npy --labels new-labels.npy" in evaluate


@pytest.mark.parametrize("has_test", [False, True])
@pytest.mark.usefixtures("few_methods")
def test_commands_run_and_evaluate_other_rows(
    make_split: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_test: bool
) -> None:
    """Warnings are errors here, so no command may evaluate a calibrator on the rows of its fit."""
    monkeypatch.chdir(tmp_path)
    rows, other = make_split(800, 0), make_split(600, 1)
    np.savez("new-rows.npz", logits=other.logits, labels=other.labels)
    arrays = {"logits": rows.logits, "labels": rows.labels}
    if has_test:
        arrays = {f"val_{key}": value for key, value in arrays.items()}
        arrays |= {"test_logits": other.logits, "test_labels": other.labels}
    np.savez("my file.npz", **arrays)
    commands = sentences.commands(collect_report(hetcal.load_logits("my file.npz")))
    assert [command.split()[1] for command in commands] == ["report", "fit", "evaluate"]
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0


def test_a_calibrated_model_is_left_uncalibrated(make_split: Any) -> None:
    """With few rows of a calibrated model, no candidate has a better likelihood, whatever its ECE."""
    rows = make_split(100, 3)
    factor = np.linspace(0.5, 2.2, 8)[rows.logits.argmax(axis=1)]
    data = collect_report(rows.logits / factor[:, None], rows.labels)
    assert data.identity_is_best
    assert not data.calibration_helps
