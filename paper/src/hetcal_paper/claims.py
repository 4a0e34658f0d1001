"""The claims of the paper about each table and figure, and whether our results support them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from hetcal_paper.evaluate_run import BINS
from hetcal_paper.intervals import SeedInterval, seed_interval
from hetcal_paper.published import ITEMS
from hetcal_paper.results import REEVALUATE
from hetcal_paper.rows import Point, Row, Selection, evaluated, first_row
from hetcal_paper.tables import join_words, percent

__all__ = [
    "Claim",
    "Comparison",
    "class_claims",
    "example_claims",
    "half_claims",
    "noise_claims",
    "paired_difference",
    "sampling_claims",
    "size_claims",
    "table_claims",
    "training_claims",
]

_METHODS = ("Uncal", "TS", "VS", "CTS")
_CLASS_COLUMNS = {"class_ece": "ece", "avg_ece": "ece", "error": "error", "error_true": "error_true"}


@dataclass(frozen=True)
class Comparison:
    """A value, or a difference between two values, on which a claim depends. It is computed for each run.

    Attributes
    ----------
    metric : str
        Name of the metric. ``gap`` is mean confidence − accuracy.
    method : str
        Method whose value is used.
    other : str or None
        Method whose value is subtracted; None to compare no methods.
    bins : int or None
        Number of bins of a calibration error. It is also needed for classification errors by class, because
        they are stored once per number of bins. None for other metrics.
    rate : float or None
        Noise or sampling rate in a figure with several rates; otherwise None.
    training : str or None
        ``clean``, ``noise`` or ``few`` in figures that compare these training sets; otherwise None.
    half : {"low", "high"} or None
        First (``low``) or second (``high``) half of the classes; None for all classes or a single class.
    other_half : {"low", "high"} or None
        Half of the classes whose value is subtracted; None to compare no halves.
    label : int or None
        Index of a single class; None for all classes or a half.
    """

    metric: str
    method: str = "Uncal"
    other: str | None = None
    bins: int | None = None
    rate: float | None = None
    training: str | None = None
    half: str | None = None
    other_half: str | None = None
    label: int | None = None


@dataclass(frozen=True)
class Claim:
    """One claim of the paper.

    Attributes
    ----------
    text : str
    holds : bool
    evidence : str
        What our results show. Metrics are in percent, and their differences in percentage points.
    topic : str
        Noun phrase that names the claim in a sentence.
    failures : tuple of Comparison
        The comparisons that contradict the claim. Empty if the claim holds, and for claims without
        comparisons, such as those that compare networks with different training sets.
    classes_by : {"predicted", "true"} or None
        For claims about the classification error by class: whether it refers to the predicted or the true
        class. None for other claims.
    """

    text: str
    holds: bool
    evidence: str
    topic: str
    failures: tuple[Comparison, ...] = ()
    classes_by: Literal["predicted", "true"] | None = None


def table_claims(name: str, rows: Sequence[Row]) -> Iterable[Claim]:
    """Yield the claims about the methods in a table and about the two halves of its classes."""
    accuracy = {m: _mean(rows, method=m, metric="accuracy", half=None) for m in _METHODS}
    same = accuracy["TS"] == accuracy["CTS"] == accuracy["Uncal"]
    yield Claim(
        "TS and CTS do not change the accuracy; VS does",
        same and accuracy["VS"] != accuracy["Uncal"],
        _percentages(accuracy),
        "which methods change the accuracy",
    )
    for metric, label in (("ece", "ECE"), ("max_ece", "max-ECE")):
        by_bins = {b: {m: _mean(rows, method=m, metric=metric, bins=b) for m in _METHODS} for b in BINS}
        yield Claim(
            f"CTS and VS have lower {label} than TS and than no calibration",
            all(max(v["CTS"], v["VS"]) < min(v["TS"], v["Uncal"]) for v in by_bins.values()),
            "; ".join(f"{b} bins: {_percentages(v)}" for b, v in by_bins.items()),
            f"CTS and VS having lower {label} than TS and Uncal",
            tuple(
                Comparison(metric, method, other, bins=b)
                for b, v in by_bins.items()
                for method in ("CTS", "VS")
                for other in ("TS", "Uncal")
                if v[method] >= v[other]
            ),
        )
        yield Claim(
            f"TS reduces {label}",
            all(v["TS"] < v["Uncal"] for v in by_bins.values()),
            "; ".join(f"{b} bins: {100 * v['Uncal']:.2f} → {100 * v['TS']:.2f}" for b, v in by_bins.items()),
            f"TS having lower {label} than Uncal",
            tuple(
                Comparison(metric, "TS", "Uncal", bins=b) for b, v in by_bins.items() if v["TS"] >= v["Uncal"]
            ),
        )
    yield from _opposite_halves(name, rows)


def _opposite_halves(name: str, rows: Sequence[Row]) -> Iterable[Claim]:
    """Yield the claims that noisy classes are under-confident and clean classes over-confident."""
    for half, label, sign, direction in (
        ("low", ITEMS[name].low, -1, "under-confident"),
        ("high", ITEMS[name].high, 1, "over-confident"),
    ):
        row = _row(rows, metric="gap", half=half)
        yield _sign_claim(
            f"The {label} are {direction}",
            f"{direction} {label}",
            row,
            sign,
            Comparison("gap", half=half),
        )


def training_claims(name: str, rows: Sequence[Row]) -> Iterable[Claim]:  # noqa: ARG001
    """Yield the claims about networks trained on clean, noisy and small training sets."""
    gaps = {t: first_row(rows, metric="gap", training=t) for t in ("clean", "noise", "few")}
    for training, sign, text, topic in (
        (
            "clean",
            1,
            "The network trained on clean data is over-confident",
            "over-confidence on clean data",
        ),
        (
            "noise",
            -1,
            "The network trained with label noise is under-confident",
            "under-confidence with label noise",
        ),
    ):
        row = gaps[training]
        if row is not None:
            yield _sign_claim(text, topic, row, sign, Comparison("gap", training=training))
    few, clean = gaps["few"], gaps["clean"]
    if few is not None and clean is not None:
        yield Claim(
            "The network trained on few samples is more over-confident than the one trained on all",
            few["mean"] > clean["mean"],
            f"confidence − accuracy is {_points(few)} compared with {_points(clean)}",
            "stronger over-confidence with few samples",
        )


def sampling_claims(name: str, rows: Sequence[Row]) -> Iterable[Claim]:  # noqa: ARG001
    """Yield the claim about the size of the training set, if at least two sizes have runs."""
    gaps = sorted((r["rate"], r["mean"]) for r in rows if r["metric"] == "gap")
    if len(gaps) < 2:
        return
    yield Claim(
        "Over-confidence increases as the training set shrinks",
        all(few[1] > many[1] for few, many in pairwise(gaps)),
        ", ".join(f"{100 * rate:g}%: {100 * gap:+.1f}" for rate, gap in gaps),
        "increasing over-confidence with smaller training sets",
    )


def half_claims(name: str, rows: Sequence[Row]) -> Iterable[Claim]:
    """Yield the claims about the two halves of the classes."""
    if ITEMS[name].halves.corruption == "noise":
        yield from _opposite_halves(name, rows)
        return
    low, high = (_row(rows, metric="gap", half=half) for half in ("low", "high"))
    holds = low["mean"] > high["mean"]
    yield Claim(
        "The under-sampled classes are more over-confident than the fully sampled classes",
        holds,
        f"confidence − accuracy is {_points(low)} compared with {_points(high)}",
        "stronger over-confidence of the under-sampled classes",
        () if holds else (Comparison("gap", half="low", other_half="high"),),
    )


def noise_claims(name: str, rows: Sequence[Row]) -> Iterable[Claim]:  # noqa: ARG001
    """Yield the claims about a figure with several noise rates, if a rate above 0 has runs."""
    noisy = [r for r in rows if r.get("rate")]
    for metric, label in (("ece", "ECE"), ("max_ece", "max-ECE")) if noisy else ():
        text = f"CTS has lower {label} than TS at every noise rate above 0"
        yield _lower_at_all_rates(noisy, metric, text, f"CTS having lower {label} than TS")


def size_claims(name: str, rows: Sequence[Row]) -> Iterable[Claim]:  # noqa: ARG001
    """Yield the claims about a figure with several sampling rates."""
    for metric, label in (("max_ece", "max-ECE"), ("avg_ece", "Avg-ECE")):
        text = f"CTS has lower {label} than TS at every sampling rate"
        yield _lower_at_all_rates(rows, metric, text, f"CTS having lower {label} than TS")
    pairs = _pairs(rows, "ece")
    better = sorted({rate for rate, _, ts, cts in pairs if ts < cts})
    yield Claim(
        "TS sometimes has lower overall ECE than CTS",
        bool(better),
        f"TS is lower at {join_words([percent(rate) for rate in better]) or 'no rate'} "
        f"(with {BINS[0]} bins, {BINS[1]} bins or both)",
        "TS sometimes having lower ECE than CTS",
        () if better else tuple(Comparison("ece", "CTS", "TS", bins=b, rate=rate) for rate, b, *_ in pairs),
    )


def class_claims(name: str, rows: Sequence[Row]) -> Iterable[Claim]:
    """Yield the claims about individual classes."""
    bins = BINS[-1]
    ece = _by_class(rows, "class_ece", bins)
    if ITEMS[name].halves.corruption == "noise":
        better = [k for k, v in ece.items() if max(v["CTS"], v["VS"]) < min(v["TS"], v["Uncal"])]
        yield Claim(
            "In every class, CTS and VS have lower ECE than TS and than no calibration",
            len(better) == len(ece),
            f"true for {len(better)} of the {len(ece)} classes shown ({bins} bins)",
            "CTS and VS having lower ECE than TS and Uncal in every class",
            tuple(
                Comparison("class_ece", method, other, bins=bins, label=k)
                for k, v in ece.items()
                for method in ("CTS", "VS")
                for other in ("TS", "Uncal")
                if v[method] >= v[other]
            ),
        )
        yield from (_moved_errors(rows, by, bins) for by in ("predicted", "true"))
        return
    better = [k for k, v in ece.items() if v["CTS"] < v["Uncal"]]
    yield Claim(
        "In every class, CTS has lower ECE than no calibration",
        len(better) == len(ece),
        f"true for {len(better)} of the {len(ece)} classes shown ({bins} bins)",
        "CTS having lower ECE than Uncal in every class",
        tuple(Comparison("class_ece", "CTS", "Uncal", bins=bins, label=k) for k in ece if k not in better),
    )
    low, high = (_change(rows, "avg_ece", half, "TS", bins) for half in ("low", "high"))
    yield Claim(
        "TS increases the ECE of the under-sampled classes and reduces that of the fully sampled classes",
        low > 0 > high,
        f"TS changes the mean ECE by {100 * low:+.1f} points on under-sampled and {100 * high:+.1f} on fully "
        "sampled classes",
        "TS harming under-sampled classes and helping fully sampled ones",
        _wrong_halves("avg_ece", "TS", bins, low, high),
    )


def _moved_errors(rows: Sequence[Row], by: Literal["predicted", "true"], bins: int) -> Claim:
    """Return the claim that VS raises the error of the noisy classes and lowers that of the clean classes."""
    metric = {"predicted": "error", "true": "error_true"}[by]
    low, high = (_change(rows, metric, half, "VS", bins) for half in ("low", "high"))
    return Claim(
        f"VS raises the error of the noisy classes and lowers that of the clean classes, by {by} class",
        low > 0 > high,
        f"VS changes the error by {100 * low:+.1f} points on noisy and {100 * high:+.1f} on clean classes",
        f"the effect of VS on the error by {by} class",
        _wrong_halves(metric, "VS", bins, low, high),
        by,
    )


def _wrong_halves(metric: str, method: str, bins: int, low: float, high: float) -> tuple[Comparison, ...]:
    """Return comparisons with Uncal in the halves that contradict the claim ``low > 0 > high``.

    ``low`` and ``high`` are the value of ``method`` minus that of Uncal in the two halves of the classes.
    """
    wrong = {"low": low <= 0, "high": high >= 0}
    return tuple(Comparison(metric, method, "Uncal", bins=bins, half=half) for half in wrong if wrong[half])


def example_claims(name: str, rows: Sequence[Row]) -> Iterable[Claim]:  # noqa: ARG001
    """Yield the claim about the example of Section 5.4."""
    equals_paper = all(abs(row["mean"] - row["paper"]) < 1e-9 for row in rows)
    overall = {m: _mean(rows, method=m, metric="ece") for m in ("TS", "CTS")}
    worst = {m: _mean(rows, method=m, metric="max_ece") for m in ("TS", "CTS")}
    yield Claim(
        "CTS has lower ECE by class, TS has lower ECE over both classes",
        equals_paper and worst["CTS"] < worst["TS"] and overall["TS"] < overall["CTS"],
        f"max-ECE {_percentages(worst)}; ECE {_percentages(overall)}",
        "CTS being better by class and TS overall",
    )


def _row(rows: Sequence[Row], **wanted: object) -> Mapping[str, Any]:
    row = first_row(rows, **wanted)
    if row is None:
        raise ValueError(f"rows must contain {wanted}, got no such row; {REEVALUATE}")
    return row


def _mean(rows: Sequence[Row], **wanted: object) -> float:
    return float(_row(rows, **wanted)["mean"])


def _percentages(values: Mapping[str, float]) -> str:
    """Format named values in percent, such as ``TS 1.20, CTS 0.90``."""
    return ", ".join(f"{name} {100 * value:.2f}" for name, value in values.items())


def _has_sign(row: Mapping[str, Any], sign: int) -> bool:
    """Whether the whole interval over the seeds has the given sign; with one seed, the value decides."""
    ends = [row["mean"]] if row["low"] is None else [row["low"], row["high"]]
    return all(sign * end > 0 for end in ends)


def _points(row: Mapping[str, Any]) -> str:
    return f"{100 * row['mean']:+.1f} points"


def _interval(row: Mapping[str, Any]) -> str:
    if row["low"] is None:
        return f"confidence − accuracy is {_points(row)} (one seed)"
    return (
        f"confidence − accuracy is {_points(row)} (95% interval over {row['n']} seeds: "
        f"{100 * row['low']:+.1f} to {100 * row['high']:+.1f})"
    )


def _pairs(rows: Sequence[Row], metric: str) -> list[tuple[float, int, float, float]]:
    """Return tuples (rate, number of bins, mean of TS, mean of CTS) for one metric."""
    return [
        (
            r["rate"],
            r["bins"],
            r["mean"],
            _mean(rows, method="CTS", metric=metric, bins=r["bins"], rate=r["rate"]),
        )
        for r in rows
        if r["metric"] == metric and r["method"] == "TS"
    ]


def _sign_claim(text: str, topic: str, row: Mapping[str, Any], sign: int, comparison: Comparison) -> Claim:
    """Return the claim that confidence − accuracy is positive (``sign`` is 1) or negative (−1)."""
    holds = _has_sign(row, sign)
    return Claim(text, holds, _interval(row), topic, () if holds else (comparison,))


def _lower_at_all_rates(rows: Sequence[Row], metric: str, text: str, topic: str) -> Claim:
    pairs = _pairs(rows, metric)
    counts = ((b, [cts < ts for _, bins, ts, cts in pairs if bins == b]) for b in BINS)
    cells = (f"at {sum(lower)} of {len(lower)} rates with {b} bins" for b, lower in counts)
    evidence = f"CTS is lower {' and '.join(cells)}"
    failures = tuple(
        Comparison(metric, "CTS", "TS", bins=bins, rate=rate) for rate, bins, ts, cts in pairs if cts >= ts
    )
    return Claim(text, not failures, evidence, topic, failures)


def _by_class(rows: Sequence[Row], metric: str, bins: int) -> dict[int, dict[str, float]]:
    """Return means by class and method; leave out classes that lack the mean of Uncal, TS, VS or CTS."""
    means: dict[int, dict[str, float]] = {}
    for row in rows:
        if row["metric"] == metric and row["bins"] == bins and row["mean"] is not None:
            means.setdefault(row["class"], {})[row["method"]] = row["mean"]
    return {k: values for k, values in means.items() if set(_METHODS) <= set(values)}


def _change(rows: Sequence[Row], metric: str, half: str, method: str, bins: int) -> float:
    after, before = (_mean(rows, method=m, metric=metric, half=half, bins=bins) for m in (method, "Uncal"))
    return after - before


def paired_difference(selection: Selection, comparison: Comparison) -> SeedInterval | None:
    """Return the mean of a comparison over the seeds with its interval.

    Both values of a difference come from the same run, so effects of the seed on both values cancel. Runs
    that were not evaluated with both methods are left out.

    Returns
    -------
    SeedInterval or None
        None if no run has the values.
    """
    return seed_interval([_difference(selection, run, comparison) for run in _runs(selection, comparison)])


def _runs(selection: Selection, comparison: Comparison) -> Sequence[str]:
    def matches(point: Point) -> bool:
        return (comparison.rate is None or point.rate(selection.kind) == comparison.rate) and (
            comparison.training is None or point.training == comparison.training
        )

    methods = [comparison.method] if comparison.other is None else [comparison.method, comparison.other]
    points = [point for point in selection.present if matches(point)]
    return [run for point in points for run in evaluated(selection, point, *methods)]


def _difference(selection: Selection, run: str, comparison: Comparison) -> float:
    first = _value(selection, run, comparison, comparison.method, comparison.half)
    if comparison.other is None and comparison.other_half is None:
        return first
    method, half = comparison.other or comparison.method, comparison.other_half or comparison.half
    return first - _value(selection, run, comparison, method, half)


def _value(selection: Selection, run: str, comparison: Comparison, method: str, half: str | None) -> float:
    """Return the metric of one run over all rows, over one half of the classes, or for a single class."""
    results, choice, metric = selection.results, selection.choice, comparison.metric
    if metric == "gap":
        return results.value(run, metric, method=method, half=half or "all", choice=choice)[0]
    if half is None and comparison.label is None:
        return results.value(run, metric, method=method, bins=comparison.bins, choice=choice)[0]
    table = results.classes(run, method, comparison.bins or 0, choice)
    values = getattr(table, _CLASS_COLUMNS[metric])
    if comparison.label is not None:
        return float(values[comparison.label])
    middle = len(values) // 2
    return float(np.nanmean(values[:middle] if half == "low" else values[middle:]))
