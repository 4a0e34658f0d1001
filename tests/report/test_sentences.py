from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from hetcal._format import percent
from hetcal.diagnosis import Verdict
from hetcal.report import ReportData, collect_report, sentences
from hetcal.report.data import IDENTITY


def with_recommended(data: ReportData, *, changed: float | None = None, **metrics: float) -> ReportData:
    """The same report with other results of the recommended calibrator."""
    *others, last = data.methods
    evaluation = dataclasses.replace(last.evaluation, **metrics)
    changed = last.changed if changed is None else changed
    last = dataclasses.replace(last, evaluation=evaluation, changed=changed)
    return dataclasses.replace(data, methods=(*others, last))


def test_headline_depends_on_the_direction_of_the_error(report_data: ReportData) -> None:
    def headline(low: float, high: float) -> str:
        overall = dataclasses.replace(report_data.overall, low=low, high=high)
        return sentences.headline(dataclasses.replace(report_data, overall=overall))

    assert Verdict.OVER_CONFIDENT in headline(0.01, 0.02)
    assert Verdict.UNDER_CONFIDENT in headline(-0.02, -0.01)
    assert not {Verdict.OVER_CONFIDENT, Verdict.UNDER_CONFIDENT} & set(
        headline(-0.01, 0.01).rstrip(".").split()
    )


def test_headline_without_miscalibrated_classes(thin_data: ReportData) -> None:
    overall = dataclasses.replace(thin_data.overall, low=-0.1, high=0.1)
    classes = tuple(dataclasses.replace(c, kind=Verdict.CONSISTENT) for c in thin_data.diagnosis.classes)
    diagnosis = dataclasses.replace(thin_data.diagnosis, classes=classes)
    data = dataclasses.replace(thin_data, overall=overall, diagnosis=diagnosis)
    before = data.before

    def headline(ece: float) -> str:
        first = dataclasses.replace(data.methods[0], evaluation=dataclasses.replace(before, ece=ece))
        return sentences.headline(dataclasses.replace(data, methods=(first, *data.methods[1:])))

    assert headline(0.9) != headline(0.0)
    assert sentences.suggestions(data) == []
    assert len(sentences.summary(data)) == 2  # no clearest case


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
    weights = {"MS": 0.999, IDENTITY: 0.001}
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
        changed = dataclasses.replace(report_data.settings, **settings)
        return sentences.commands(dataclasses.replace(report_data, settings=changed))[0]

    assert first(embedded=True, source="cifar10-noisy.npz") == "hetcal demo"
    example = 'hetcal.make_report(hetcal.load_example("cifar100-noisy"), n_bins=15, rng=0)'
    assert first(embedded=True, source="cifar100-noisy.npz") == example
    assert first(from_file=False) == "hetcal.make_report(logits, labels, n_bins=15, rng=0)"
    assert first(source="my.npz", options=()) == "hetcal report my.npz --bins 15 -o report.html"
    assert (
        first(source="my.npz", seed=7) == "hetcal.make_report(hetcal.load_logits('my.npz'), n_bins=15, rng=7)"
    )


def test_a_calibrated_model_is_left_uncalibrated(make_split: Any) -> None:
    """With few rows of a calibrated model, no candidate has a better likelihood, whatever its ECE."""
    rows = make_split(100, 3)
    factor = np.linspace(0.5, 2.2, 8)[rows.logits.argmax(axis=1)]
    data = collect_report(rows.logits / factor[:, None], rows.labels)
    assert data.identity_is_best
    assert not data.calibration_helps
