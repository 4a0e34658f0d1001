"""What the pages of the reproduction say about claims: where ours agree, where they differ, and by how much.

Every sentence is generated from the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hetcal_paper.judging import BINS
from hetcal_paper.paper import Reproduction
from hetcal_paper.paper_claims import Claim, Comparison
from hetcal_paper.paper_differences import paired_difference
from hetcal_paper.paper_numbers import ITEMS
from hetcal_paper.paper_rows import Selection, class_names, first_row
from hetcal_paper.paper_tables import METRIC_NAMES
from hetcal_paper.seed_intervals import SeedInterval, seed_interval

__all__ = ["agreement", "failed_claims", "join_words", "likely_reason", "verdicts"]

_HEADING = "## Claims that do not hold"
_SWEEPS = ("noise", "size")
#: Classes with no more validation rows than this leave their temperatures uncertain.
_FEW_ROWS = 100


def verdicts(item: Reproduction) -> str:
    """How many claims hold, such as ``6 of 7``."""
    if item.has_stand_ins or not item.claims:
        return "–"
    return f"{sum(claim.holds for claim in item.claims)} of {len(item.claims)}"


def agreement(item: Reproduction) -> str:
    """One sentence on where ours agree with the paper and where they differ."""
    if item.has_stand_ins:
        return "Runs of the usual recipe stand in, so that no claim is judged."
    if not item.claims:
        return "These runs alone decide none of the claims."
    agree = [claim.topic for claim in item.claims if claim.holds]
    differ = [f"{claim.topic}{_where_it_fails(item.name, claim)}" for claim in item.claims if not claim.holds]
    parts = [f"agrees on {join_words(agree)}"] if agree else []
    parts += [f"differs on {join_words(differ)}"] if differ else []
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def failed_claims(item: Reproduction) -> str:
    """A sentence for each claim that does not hold, with the intervals of the differences behind it."""
    if item.has_stand_ins:
        return ""
    failed = [claim for claim in item.claims if not claim.holds]
    if not failed:
        return ""
    lines = "\n".join(f"- {_statement(item, claim)}" for claim in failed)
    parts = [_HEADING, lines, likely_reason(item)]
    return "\n\n".join(part for part in parts if part)


def likely_reason(item: Reproduction) -> str:
    """Say why CTS may not be better at some rates of a sweep, where the results support a reason.

    A reason is given only where a quantity sets the rates at which claims fail apart from all rates at which
    they hold: less to correct by class, or a noisier max-ECE.
    """
    selection = item.selection
    if selection is None or selection.kind not in _SWEEPS:
        return ""
    failures = [failure for claim in item.claims for failure in claim.failures]
    failing = sorted({failure.rate for failure in failures if failure.rate is not None})
    judged = {point.rate(selection.kind) for point in selection.present}
    judged -= {0.0} if selection.kind == "noise" else set()  # the claims are about rates above 0
    holding = sorted(judged - set(failing))
    if not failing or not holding:
        return ""
    parts = [_little_to_correct(selection, failing, holding), _noisy_maximum(item, failures, holding)]
    text = "; ".join(part for part in parts if part)
    return f"A likely reason is that {text}." if text else ""


def _little_to_correct(selection: Selection, failing: Sequence[float], holding: Sequence[float]) -> str:
    """Name failing rates at which TS leaves less error by class than at every rate where the claims hold."""
    left = {rate: _left_by_ts(selection, rate) for rate in (*failing, *holding)}
    least = min(left[rate].mean for rate in holding)
    little = [rate for rate in failing if left[rate].mean < least]
    if not little:
        return ""
    first = left[little[0]]
    told = join_words([f"{_points(left[rate], after=first)} at {_percent(rate)}" for rate in little])
    rows = _validation_rows(selection)
    few = f"a class has only {rows} validation rows for its temperature, and "
    return (
        f"{few if rows <= _FEW_ROWS else ''}there is little for CTS to correct: the Avg-ECE of TS exceeds "
        f"its noise floor by {told}, against {100 * least:+.2f} or more where the claims hold "
        f"({BINS[0]} bins)"
    )


def _left_by_ts(selection: Selection, rate: float) -> SeedInterval:
    """Avg-ECE of TS above its noise floor: what one temperature leaves to correct by class."""
    (point,) = (point for point in selection.present if point.rate(selection.kind) == rate)
    pairs = [
        selection.results.value(run, "avg_ece", method="TS", bins=BINS[0], choice=selection.choice)
        for run in point.runs
    ]
    found = seed_interval([value - floor for value, floor in pairs])
    if found is None:
        raise ValueError(f"results must hold the Avg-ECE of TS at rate {rate:g}, got none; summarise again")
    return found


def _noisy_maximum(item: Reproduction, failures: Sequence[Comparison], holding: Sequence[float]) -> str:
    """Name failing rates at which max-ECE is noisier than at every rate where the claims hold."""
    rates = sorted({f.rate for f in failures if f.metric == "max_ece" and f.rate is not None})
    most = max(_floor(item, rate) for rate in holding)
    noisy = [rate for rate in rates if _floor(item, rate) > most]
    if not noisy:
        return ""
    told = join_words([f"{100 * _floor(item, rate):.1f} points at {_percent(rate)}" for rate in noisy])
    return (
        "max-ECE is dominated by noise: chance alone would give a perfectly calibrated CTS a max-ECE of "
        f"{told}, against {100 * most:.1f} or less where the claims hold ({BINS[0]} bins)"
    )


def _floor(item: Reproduction, rate: float) -> float:
    """Noise floor of the max-ECE of CTS."""
    row = first_row(item.rows, method="CTS", metric="max_ece", rate=rate, bins=BINS[0], half=None)
    return 0.0 if row is None or row["floor"] is None else float(row["floor"])


def join_words(words: Sequence[str]) -> str:
    """Join words as a sentence does: ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _statement(item: Reproduction, claim: Claim) -> str:
    """Name the claim, its evidence and the intervals of what contradicts it."""
    head = f"“{claim.text}” does not hold: {claim.evidence}"
    if item.selection is None:
        return f"{head}."
    pairs = [(failure, paired_difference(item.selection, failure)) for failure in claim.failures]
    measured = [_Measured(failure, interval) for failure, interval in pairs if interval is not None]
    zero = sum(one.interval.includes_zero for one in measured)
    differences = [one for one in measured if one.subtracts]
    told = [head]
    for key in dict.fromkeys(one.what for one in differences):
        same = [one for one in differences if one.what == key]
        cells = [
            f"{_points(one.interval, after=differences[0].interval)}{_where(item.name, one.comparison)}"
            for one in same
        ]
        told.append(f"{key} is {join_words(cells)}")
    if zero and zero == len(measured):
        told.append("the interval includes zero" if zero == 1 else "all these intervals include zero")
    elif zero:
        told.append(f"{zero} of the {len(measured)} intervals include zero")
    return "; ".join(told) + "."


@dataclass(frozen=True)
class _Measured:
    """A comparison with its interval over the seeds."""

    comparison: Comparison
    interval: SeedInterval

    @property
    def subtracts(self) -> bool:
        """Whether two values are compared; the evidence of a claim gives single values already."""
        return self.comparison.other is not None or self.comparison.other_half is not None

    @property
    def what(self) -> str:
        """The difference in words, such as ``CTS − TS in ECE``."""
        one, name = self.comparison, METRIC_NAMES[self.comparison.metric]
        if one.other_half is not None:
            return f"the difference between the halves in {name}"
        return f"{one.method} − {one.other} in {name}"


def _where(name: str, comparison: Comparison) -> str:
    """Rate, half or class and number of bins of a comparison."""
    parts = []
    if comparison.rate is not None:
        parts.append(f" at {_percent(comparison.rate)}")
    if comparison.label is not None:
        parts.append(f" for {class_names(name)[comparison.label]}")
    if comparison.half is not None and comparison.other_half is None:
        parts.append(f" on {getattr(ITEMS[name], comparison.half)}")
    if comparison.bins is not None and comparison.half is None and comparison.label is None:
        parts.append(f" with {comparison.bins} bins")
    return "".join(parts)


def _where_it_fails(name: str, claim: Claim) -> str:
    """Rates or classes at which a claim fails, in brackets."""
    rates = sorted({failure.rate for failure in claim.failures if failure.rate is not None})
    labels = sorted({failure.label for failure in claim.failures if failure.label is not None})
    if rates:
        return f" (at {join_words([_percent(rate) for rate in rates])})"
    if labels:
        return f" (in {join_words([class_names(name)[label] for label in labels])})"
    return ""


def _points(interval: SeedInterval, *, after: SeedInterval) -> str:
    """Mean and interval in points, brief where ``after``, the first of the sentence, has as many seeds."""
    brief = interval is not after and interval.n == after.n
    mean = f"{100 * interval.mean:+.2f}" + ("" if brief else " points")
    if interval.low is None or interval.high is None:
        return mean if brief else f"{mean} (one seed)"
    ends = f"{100 * interval.low:+.2f} to {100 * interval.high:+.2f}"
    return f"{mean} ({ends})" if brief else f"{mean} (95% interval over {interval.n} seeds {ends})"


def _percent(rate: float) -> str:
    return f"{100 * rate:g}%"


def _validation_rows(selection: Selection) -> int:
    """Validation rows of a class."""
    point = selection.present[0]
    return int(selection.results.runs[point.runs[0]]["n_validation"]) // point.run.n_classes
