"""Numbers in the generated sentences of the pages, held against the committed results."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from hetcal_paper.page_claims import agreement, failed_claims, likely_reason, verdicts
from hetcal_paper.page_notes import notes
from hetcal_paper.page_tables import all_classes, other_epochs
from hetcal_paper.reproduction import Reproduction, reproduce_from
from hetcal_paper.claims import Comparison
from hetcal_paper.paper_differences import paired_difference
from hetcal_paper.published import NAMES
from hetcal_paper.results import Results, read_results
from hetcal_paper.intervals import seed_interval

BINS = 15


@pytest.fixture(scope="module")
def results() -> Results:
    return read_results(Path(__file__).parents[2] / "results")


@pytest.fixture(scope="module")
def items(results: Results) -> dict[str, Reproduction]:
    return {name: reproduce_from(results, name) for name in NAMES}


def table(text: str) -> list[dict[str, str]]:
    """Lines of the one table in a text."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"
    ]
    head, _, *lines = rows
    return [dict(zip(head, line, strict=True)) for line in lines]


def numbers(text: str) -> set[str]:
    return set(re.findall(r"[-+]?\d+(?:\.\d+)?", text))


def test_runs_that_do_not_know_the_epoch_are_left_out(results: Results, tmp_path: Path) -> None:
    for file in results.folder.glob("*.csv"):
        text = file.read_text(encoding="utf-8")
        if file.stem == "runs":
            text = re.sub(r"(?m)^(.*-wd0\.0003,.*) early=\d+", r"\1", text)
        (tmp_path / file.name).write_text(text, encoding="utf-8")
    lines = table(other_epochs(reproduce_from(read_results(tmp_path), "fig2")))
    assert {line["Weight decay"] for line in lines} == {"0.0005"}


def test_the_interval_of_a_paired_difference(items: dict[str, Reproduction], results: Results) -> None:
    selection = items["fig10"].selection
    assert selection is not None
    point = next(point for point in selection.present if point.rate("noise") == 0.3)
    pairs = [
        [results.value(run, "max_ece", method=m, bins=BINS)[0] for m in ("CTS", "TS")] for run in point.runs
    ]
    wanted = stats.ttest_rel(*zip(*pairs, strict=True)).confidence_interval()
    found = paired_difference(selection, Comparison("max_ece", "CTS", "TS", bins=BINS, rate=0.3))
    assert found is not None
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high))
    assert found.n == len(point.runs)


def test_differences_of_halves_and_classes(items: dict[str, Reproduction], results: Results) -> None:
    selection = items["fig11"].selection
    assert selection is not None
    (point,) = selection.present
    tables = {m: [results.classes(run, m, BINS) for run in point.runs] for m in ("VS", "Uncal")}
    pairs = list(zip(tables["VS"], tables["Uncal"], strict=True))
    wanted = {
        Comparison("error_true", "VS", "Uncal", bins=BINS, half="high"): [
            np.mean(a.error_true[5:]) - np.mean(b.error_true[5:]) for a, b in pairs
        ],
        Comparison("class_ece", "VS", "Uncal", bins=BINS, label=3): [a.ece[3] - b.ece[3] for a, b in pairs],
        Comparison("gap", half="low", other_half="high"): [
            np.subtract(*(results.value(run, "gap", half=half)[0] for half in ("low", "high")))
            for run in point.runs
        ],
        Comparison("gap", half="low"): [results.value(run, "gap", half="low")[0] for run in point.runs],
    }
    for comparison, values in wanted.items():
        found = paired_difference(selection, comparison)
        assert found is not None
        assert found.mean == pytest.approx(np.mean(values), abs=1e-9)
        assert found.std == pytest.approx(np.std(values, ddof=1), abs=1e-9)


def test_intervals_need_two_seeds() -> None:
    assert seed_interval([float("nan")]) is None
    one = seed_interval([0.5, float("nan")])
    assert one is not None
    assert (one.mean, one.low, one.high, one.n, one.includes_zero) == (0.5, None, None, 1, False)
    two = seed_interval([-1.0, 1.0])
    assert two is not None
    assert two.includes_zero


@pytest.mark.parametrize("name", NAMES)
def test_a_claim_that_fails_names_its_differences(items: dict[str, Reproduction], name: str) -> None:
    item = items[name]
    text = failed_claims(item)
    failed = [claim for claim in item.claims if not claim.holds]
    assert bool(text) == bool(failed)
    sentences = [line for line in text.splitlines() if line.startswith("- ")]
    for claim, sentence in zip(failed, sentences, strict=True):
        assert claim.text in sentence
        assert claim.evidence in sentence
        for comparison in claim.failures:
            assert item.selection is not None
            found = paired_difference(item.selection, comparison)
            assert found is not None
            digits = 1 if comparison.other is None else 2
            ends = [end for end in (found.mean, found.low, found.high) if end is not None]
            assert {f"{100 * end:+.{digits}f}" for end in ends} <= numbers(sentence)
    assert all(not claim.failures for claim in item.claims if claim.holds)


@pytest.mark.parametrize("name", NAMES)
def test_one_sentence_says_where_ours_agree_and_differ(items: dict[str, Reproduction], name: str) -> None:
    text = agreement(items[name]).lower()
    assert all(claim.topic.lower() in text for claim in items[name].claims)
    holds = sum(claim.holds for claim in items[name].claims)
    assert verdicts(items[name]) == f"{holds} of {len(items[name].claims)}"
    for claim in items[name].claims:
        rates = {f"{100 * failure.rate:g}" for failure in claim.failures if failure.rate is not None}
        assert rates <= numbers(text)


@pytest.mark.parametrize("name", ["fig5", "fig8", "fig10"])
def test_the_reason_is_supported_by_the_results(
    items: dict[str, Reproduction], results: Results, name: str
) -> None:
    """A rate is named only if what it is named for sets it apart from all rates where the claims hold."""
    item = items[name]
    assert item.selection is not None
    kind = item.selection.kind
    failing = {failure.rate for claim in item.claims for failure in claim.failures}
    left, noise = {}, {}
    for point in item.selection.present:
        rate = point.rate(kind)
        if rate or kind == "size":
            pairs = [results.value(run, "avg_ece", method="TS", bins=10) for run in point.runs]
            left[rate] = np.mean([value - floor for value, floor in pairs])
            noise[rate] = np.mean([results.value(r, "max_ece", method="CTS", bins=10)[1] for r in point.runs])
    holding = left.keys() - failing
    told = numbers(likely_reason(item))
    for rate in left.keys() & failing:
        if left[rate] < min(left[other] for other in holding):
            assert f"{100 * left[rate]:+.2f}" in told
    worst = {f.rate for c in item.claims for f in c.failures if f.metric == "max_ece"}
    for rate in noise.keys() & worst:
        apart = noise[rate] > max(noise[other] for other in holding)
        assert (f"{100 * noise[rate]:.1f}" in told) == apart


def test_only_sweeps_have_a_reason(items: dict[str, Reproduction]) -> None:
    assert likely_reason(items["table1"]) == likely_reason(items["example"]) == ""


@pytest.mark.parametrize("name", ["fig3", "table1"])
def test_the_note_gives_the_gaps_of_both_halves(items: dict[str, Reproduction], name: str) -> None:
    told = numbers(notes(items[name]))
    rows = [row for row in items[name].rows if row["metric"] == "gap" and row.get("half")]
    assert len(rows) == 2
    assert {f"{100 * row['mean']:+.1f}" for row in rows} <= told


@pytest.mark.parametrize("name", ["fig6", "fig7"])
def test_the_note_gives_the_share_of_the_floor(
    items: dict[str, Reproduction], results: Results, name: str
) -> None:
    selection = items[name].selection
    assert selection is not None
    (point,) = selection.present
    tables = [results.classes(run, "CTS", BINS, selection.choice) for run in point.runs]
    share = sum(np.nansum(t.floor[:50]) for t in tables) / sum(np.nansum(t.ece[:50]) for t in tables)
    assert f"{100 * share:.0f}" in numbers(notes(items[name]))


def test_figures_that_show_all_classes_have_no_table_of_them(items: dict[str, Reproduction]) -> None:
    assert all_classes(items["fig11"]) == ""
    assert other_epochs(items["fig12"]) == ""
    assert all_classes(items["fig2"]) == ""
    assert len(table(all_classes(items["fig6"]))) == 2
