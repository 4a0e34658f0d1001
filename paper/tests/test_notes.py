"""The generated sentences contain the numbers of the committed results."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from hetcal_paper.claims import Comparison, paired_difference
from hetcal_paper.intervals import seed_interval
from hetcal_paper.notes import count_claims, failed_claims, likely_reason, notes, summarise_claims
from hetcal_paper.published import NAMES
from hetcal_paper.reproduction import Reproduction, reproduce_from
from hetcal_paper.results import Results, read_results
from hetcal_paper.rows import METHODS
from hetcal_paper.runs import runs_for
from hetcal_paper.sweeps import compare_networks, compare_with_ts
from hetcal_paper.training_page import stopped_early, training_page

BINS = 15


@pytest.fixture(scope="module")
def results() -> Results:
    return read_results(Path(__file__).parents[1] / "results")


@pytest.fixture(scope="module")
def items(results: Results) -> dict[str, Reproduction]:
    return {name: reproduce_from(results, name) for name in NAMES}


def numbers(text: str) -> set[str]:
    return set(re.findall(r"[-+]?\d+(?:\.\d+)?", text))


def test_the_interval_of_a_paired_difference(items: dict[str, Reproduction], results: Results) -> None:
    selection = items["fig10"].selection
    assert selection is not None
    point = next(point for point in selection.present if point.rate("noise") == 0.3)
    pairs = [
        [results.value(run, "max_ece", method=m, bins=BINS)[0] for m in ("CTS", "TS")] for run in point.runs
    ]
    expected = stats.ttest_rel(*zip(*pairs, strict=True)).confidence_interval()
    interval = paired_difference(selection, Comparison("max_ece", "CTS", "TS", bins=BINS, rate=0.3))
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))
    assert interval.n == len(point.runs)


def test_differences_of_halves_and_classes(items: dict[str, Reproduction], results: Results) -> None:
    selection = items["fig11"].selection
    assert selection is not None
    (point,) = selection.present
    tables = {m: [results.classes(run, m, BINS) for run in point.runs] for m in ("VS", "Uncal")}
    pairs = list(zip(tables["VS"], tables["Uncal"], strict=True))
    expected = {
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
    for comparison, values in expected.items():
        interval = paired_difference(selection, comparison)
        assert interval is not None
        assert interval.mean == pytest.approx(np.mean(values), abs=1e-9)
        assert interval.std == pytest.approx(np.std(values, ddof=1), abs=1e-9)


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
            interval = paired_difference(item.selection, comparison)
            assert interval is not None
            digits = 1 if comparison.other is None else 2
            ends = [end for end in (interval.mean, interval.low, interval.high) if end is not None]
            assert {f"{100 * end:+.{digits}f}" for end in ends} <= numbers(sentence)
    assert all(not claim.failures for claim in item.claims if claim.holds)


@pytest.mark.parametrize("name", NAMES)
def test_the_summary_names_every_claim(items: dict[str, Reproduction], name: str) -> None:
    text = summarise_claims(items[name]).lower()
    assert all(claim.topic.lower() in text for claim in items[name].claims)
    holds = sum(claim.holds for claim in items[name].claims)
    assert count_claims(items[name]) == f"{holds} of {len(items[name].claims)}"
    for claim in items[name].claims:
        rates = {f"{100 * failure.rate:g}" for failure in claim.failures if failure.rate is not None}
        assert rates <= numbers(text)


@pytest.mark.parametrize("name", ["fig5", "fig8", "fig10"])
def test_the_likely_reason_is_supported_by_the_results(
    items: dict[str, Reproduction], results: Results, name: str
) -> None:
    """A rate is named only if it differs from all rates at which the claims hold."""
    item = items[name]
    assert item.selection is not None
    kind = item.selection.kind
    failing = {failure.rate for claim in item.claims for failure in claim.failures}
    excess, noise = {}, {}
    for point in item.selection.present:
        rate = point.rate(kind)
        if rate or kind == "size":
            pairs = [results.value(run, "avg_ece", method="TS", bins=10) for run in point.runs]
            excess[rate] = np.mean([value - floor for value, floor in pairs])
            noise[rate] = np.mean([results.value(r, "max_ece", method="CTS", bins=10)[1] for r in point.runs])
    holding = excess.keys() - failing
    shown = numbers(likely_reason(item))
    for rate in excess.keys() & failing:
        if excess[rate] < min(excess[other] for other in holding):
            assert f"{100 * excess[rate]:+.2f}" in shown
    failing_max_ece = set()
    for failure in (f for c in item.claims for f in c.failures if f.metric == "max_ece"):
        interval = paired_difference(item.selection, failure)
        assert interval is not None
        if interval.includes_zero:  # otherwise, noise does not explain the failure
            failing_max_ece.add(failure.rate)
    for rate in noise.keys() & failing_max_ece:
        is_noisier = noise[rate] > max(noise[other] for other in holding)
        assert (f"{100 * noise[rate]:.1f}" in shown) == is_noisier


def test_only_sweeps_have_a_likely_reason(items: dict[str, Reproduction]) -> None:
    assert likely_reason(items["table1"]) == likely_reason(items["example"]) == ""


@pytest.mark.parametrize("name", ["fig3", "table1"])
def test_the_note_gives_the_gaps_of_both_halves(items: dict[str, Reproduction], name: str) -> None:
    shown = numbers(notes(items[name]))
    rows = [row for row in items[name].rows if row["metric"] == "gap" and row.get("half")]
    assert len(rows) == 2
    assert {f"{100 * row['mean']:+.1f}" for row in rows} <= shown


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


@pytest.mark.parametrize("name", ["fig5", "fig8"])
def test_the_notes_say_which_methods_a_sweep_lacks(items: dict[str, Reproduction], name: str) -> None:
    item = items[name]
    assert item.selection is not None
    runs = [run for point in item.selection.present for run in point.runs]
    sentence = next(line for line in notes(item).splitlines() if " were evaluated on " in line)
    for method in METHODS:
        n = sum(item.selection.results.has(run, method) for run in runs)
        assert (f"`{method}`" in sentence) == (n < len(runs))
        if n < len(runs):
            assert {str(n), str(len(runs))} <= numbers(sentence)


def tables(text: str) -> list[list[list[str]]]:
    """Cells of all Markdown tables, without the rule below the head."""
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    return [[line.strip("| ").split(" | ") for line in [b[0], *b[2:]]] for b in blocks]


@pytest.mark.parametrize("metric", ["ece", "max_ece"])
@pytest.mark.parametrize("bins", [10, 15])
def test_methods_are_compared_with_ts_on_the_same_runs(
    items: dict[str, Reproduction], results: Results, metric: str, bins: int
) -> None:
    selection = items["fig5"].selection
    assert selection is not None
    corner = f"{ {'ece': 'ECE', 'max_ece': 'max-ECE'}[metric] }, {bins} bins"
    summary, *all_tables = tables(compare_with_ts(items["fig5"]))
    (head, *lines) = next(table for table in all_tables if table[0][0] == corner)
    assert [line[0] for line in lines] == ["0%", "10%", "20%", "30%", "50%", "70%", "90%"]
    for method in ("CTS", "CTS-cv", "CTS-bayes", "Auto"):
        n_lower = 0
        for point, line in zip(
            sorted(selection.present, key=lambda point: point.rate("noise")), lines, strict=True
        ):
            runs = [run for run in point.runs if results.has(run, method)]
            pairs = [
                [results.value(run, metric, method=m, bins=bins)[0] for m in (method, "TS")] for run in runs
            ]
            expected = stats.ttest_rel(*zip(*pairs, strict=True)).confidence_interval()
            mean = float(np.mean([a - b for a, b in pairs]))
            n_lower += mean < 0
            shown = [float(number) for number in numbers_in_order(line[head.index(f"{method} − TS")])]
            assert shown == pytest.approx([100 * v for v in (mean, expected.low, expected.high)], abs=0.0051)
            seeds = next(i for i, title in enumerate(head) if title.startswith("seeds") and method in title)
            assert line[seeds] == str(len(runs))
        row = next(line for line in summary if line[0].startswith(f"{method} − TS in {corner}"))
        assert row[1] == f"{n_lower} of {len(lines)}"


def numbers_in_order(text: str) -> list[str]:
    return re.findall(r"[-+]?\d+(?:\.\d+)?", text)


def test_the_spread_of_temperatures_explains_only_what_it_can(
    items: dict[str, Reproduction], results: Results
) -> None:
    """The conclusion names exactly the rates where the error of the temperatures exceeds their spread."""
    item = items["fig5"]
    assert item.selection is not None
    text = compare_with_ts(item)
    uncertain = set()
    for point in item.selection.present:
        runs = [run for run in point.runs if results.has(run, "CTS-bayes", metric="log_t_spread")]
        spread, error = (
            np.mean([results.value(run, metric, method=method)[0] for run in runs])
            for metric, method in (("log_t_spread", "CTS-bayes"), ("log_t_error", "CTS"))
        )
        rate = f"{100 * point.rate('noise'):g}"
        line = next(line for line in tables(text)[-1] if line[0] == f"{rate}%")
        at_bound = np.mean([results.value(run, "n_at_bound", method="CTS")[0] for run in runs])
        assert line[1:5] == [f"{spread:.3f}", f"{error:.3f}", f"{spread / error:.1f}", f"{at_bound:.1f}"]
        if spread < error:
            uncertain.add(rate)
    conclusion = text.split("\n\n")[-1]
    sentence = next(part for part in conclusion.split(". ") if "error exceeds the spread" in part)
    assert numbers(sentence) == uncertain


@pytest.mark.parametrize("name", ["fig8", "fig10", "table1", "example"])
def test_only_sweeps_with_other_methods_compare_them(items: dict[str, Reproduction], name: str) -> None:
    assert compare_with_ts(items[name]) == ""


def test_the_claims_of_a_sweep_are_checked_with_the_network_of_the_paper(
    items: dict[str, Reproduction], results: Results
) -> None:
    """Figure 5 at 30% noise compares methods on the runs of Table 1, which have the same training rows."""
    text = compare_networks(items["fig5"])
    runs = [run.name for run in runs_for("table1") if run.name in results.runs]
    choice = runs_for("table1")[0].choice
    for bins, metric, corner in ((10, "ece", "ECE, 10 bins"), (15, "max_ece", "max-ECE, 15 bins")):
        head, *lines = next(table for table in tables(text) if table[0][0] == corner)
        line = next(line for line in lines if line[0] == "30%")
        for method in ("CTS", "Auto"):
            pairs = [
                [results.value(run, metric, method=m, bins=bins, choice=choice)[0] for m in (method, "TS")]
                for run in runs
            ]
            shown = float(numbers_in_order(line[head.index(f"{method} − TS")])[0])
            assert shown == pytest.approx(100 * np.mean([a - b for a, b in pairs]), abs=0.0051)


@pytest.mark.parametrize("name", ["fig10", "table1", "example"])
def test_items_with_the_default_recipe_do_not_compare_networks(
    items: dict[str, Reproduction], name: str
) -> None:
    assert compare_networks(items[name]) == ""


@pytest.mark.parametrize("name", ["fig5", "fig8", "fig10"])
def test_the_notes_give_the_claims_with_the_first_training(
    items: dict[str, Reproduction], results: Results, name: str
) -> None:
    first = reproduce_from(Results(results.folder, first_trainings=True), name)
    used = {run.name for run in runs_for(name)}
    twice = used & results.trained_twice.keys()
    text = notes(items[name])
    assert all((claim.evidence in text) == bool(twice) for claim in first.claims)
    assert (f"{len(twice)} of the {len(used)} runs were trained twice" in text) == bool(twice)


def test_the_training_page_compares_the_epochs_of_runs_trained_to_the_end(
    items: dict[str, Reproduction], results: Results
) -> None:
    """If early stopping ended some runs of a table, the others show what it leaves out."""
    text = training_page(list(items.values()), results)
    text = text.partition("## The choice of the epoch")[2].partition("\n## ")[0]
    lines = [tuple(line[i] for i in (0, 1, 3)) for table in tables(text) for line in table if len(line) > 8]
    runs = [run for run in runs_for("table1") if run.name in results.runs]
    complete = [run for run in runs if not stopped_early(results, run.name)]
    assert len(complete) < len(runs)
    for run in complete:
        for choice in ("phase2", "best"):
            epoch = results.choices(run.name)[choice]
            assert (f"{run.weight_decay:g}", str(run.seed), str(epoch)) in lines
        gaps = [results.value(run.name, "gap", half="low", choice=c)[0] for c in ("phase2", "best")]
        assert (f"seed {run.seed}, " in text) == (gaps[0] * gaps[1] < 0)
        assert {f"{100 * gap:+.1f}" for gap in gaps} <= numbers(text)
