"""What the paper says of each table and figure, and whether our rows bear it out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from hetcal_paper.judging import BINS
from hetcal_paper.paper_numbers import ITEMS
from hetcal_paper.paper_rows import Row, first_row

__all__ = ["Claim", "Comparison", "check_claims"]


@dataclass(frozen=True)
class Comparison:
    """One difference that a claim is about, taken run by run.

    Attributes
    ----------
    metric : str
        ``gap`` is mean confidence − accuracy.
    method : str
    other : str or None
        The method that is subtracted; None for the value of ``method`` itself.
    bins : int or None
    rate : float or None
        Noise or sampling rate of a sweep.
    training : str or None
        ``clean``, ``noise`` or ``few``, where an item has several trainings.
    half : {"low", "high"} or None
    other_half : {"low", "high"} or None
        The half of the classes that is subtracted, if any.
    label : int or None
        A single class.
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
    """One statement of the paper.

    Attributes
    ----------
    text : str
    holds : bool
    evidence : str
        The numbers, in per cent.
    topic : str
        What the claim is about, as a noun phrase for lists.
    failures : tuple of Comparison
        The differences that contradict the claim; empty where it holds.
    classes_by : {"predicted", "true"} or None
        Whether an error by class is that of the predicted or of the true class.
    """

    text: str
    holds: bool
    evidence: str
    topic: str
    failures: tuple[Comparison, ...] = ()
    classes_by: Literal["predicted", "true"] | None = None


def check_claims(name: str, rows: Sequence[Row]) -> tuple[Claim, ...]:
    """Hold the rows of an item against what the paper says of it."""
    return tuple(_CLAIMS[ITEMS[name].kind](name, rows))


def _table(name: str, rows: Sequence[Row]) -> Iterable[Claim]:
    accuracy = {m: _mean(rows, method=m, metric="accuracy", half=None) for m in _METHODS}
    same = accuracy["TS"] == accuracy["CTS"] == accuracy["Uncal"]
    yield Claim(
        "TS and CTS leave the accuracy as it is, VS changes it",
        same and accuracy["VS"] != accuracy["Uncal"],
        _several(accuracy),
        "which methods change the accuracy",
    )
    for metric, label in (("ece", "ECE"), ("max_ece", "max-ECE")):
        by_bins = {b: {m: _mean(rows, method=m, metric=metric, bins=b) for m in _METHODS} for b in BINS}
        yield Claim(
            f"CTS and VS have lower {label} than TS and no calibration",
            all(max(v["CTS"], v["VS"]) < min(v["TS"], v["Uncal"]) for v in by_bins.values()),
            "; ".join(f"{b} bins: {_several(v)}" for b, v in by_bins.items()),
            f"the lower {label} of CTS and VS",
            tuple(
                Comparison(metric, method, other, bins=b)
                for b, v in by_bins.items()
                for method in ("CTS", "VS")
                for other in ("TS", "Uncal")
                if v[method] >= v[other]
            ),
        )
        yield Claim(
            f"TS lowers {label}",
            all(v["TS"] < v["Uncal"] for v in by_bins.values()),
            "; ".join(f"{b} bins: {100 * v['Uncal']:.2f} → {100 * v['TS']:.2f}" for b, v in by_bins.items()),
            f"the lower {label} of TS",
            tuple(
                Comparison(metric, "TS", "Uncal", bins=b) for b, v in by_bins.items() if v["TS"] >= v["Uncal"]
            ),
        )
    yield from _opposite_halves(name, rows)


def _opposite_halves(name: str, rows: Sequence[Row]) -> Iterable[Claim]:
    """Under-confident where there was noise, over-confident where there was none."""
    for half, label, sign, word in (
        ("low", ITEMS[name].low, -1, "under-confident"),
        ("high", ITEMS[name].high, 1, "over-confident"),
    ):
        row = _row(rows, metric="gap", half=half)
        yield _sign_claim(
            f"The {label} are {word}",
            f"the {label} being {word}",
            row,
            sign,
            Comparison("gap", half=half),
        )


def _trainings(name: str, rows: Sequence[Row]) -> Iterable[Claim]:  # noqa: ARG001
    gaps = {t: first_row(rows, metric="gap", training=t) for t in ("clean", "noise", "few")}
    for training, sign, text, topic in (
        (
            "clean",
            1,
            "Trained on clean data the network is over-confident",
            "over-confidence after clean training",
        ),
        ("noise", -1, "Trained with label noise it is under-confident", "under-confidence after label noise"),
    ):
        row = gaps[training]
        if row is not None:
            yield _sign_claim(text, topic, row, sign, Comparison("gap", training=training))
    few, clean = gaps["few"], gaps["clean"]
    if few is not None and clean is not None:
        yield Claim(
            "Trained on few samples it is more over-confident than on all",
            few["mean"] > clean["mean"],
            f"confidence − accuracy {_points(few)} against {_points(clean)}",
            "more over-confidence with few samples",
        )


def _sampling(name: str, rows: Sequence[Row]) -> Iterable[Claim]:  # noqa: ARG001
    gaps = sorted((r["rate"], r["mean"]) for r in rows if r["metric"] == "gap")
    if len(gaps) < 2:
        return
    yield Claim(
        "Over-confidence grows as the training set shrinks",
        all(few[1] > many[1] for few, many in pairwise(gaps)),
        ", ".join(f"{100 * rate:g}%: {100 * gap:+.1f}" for rate, gap in gaps),
        "over-confidence that grows as the training set shrinks",
    )


def _halves(name: str, rows: Sequence[Row]) -> Iterable[Claim]:
    if name == "fig3":
        yield from _opposite_halves(name, rows)
        return
    low, high = (_row(rows, metric="gap", half=half) for half in ("low", "high"))
    holds = low["mean"] > high["mean"]
    yield Claim(
        "The under-sampled classes are more over-confident than the others",
        holds,
        f"confidence − accuracy {_points(low)} against {_points(high)}",
        "the under-sampled classes being more over-confident",
        () if holds else (Comparison("gap", half="low", other_half="high"),),
    )


def _noise(name: str, rows: Sequence[Row]) -> Iterable[Claim]:  # noqa: ARG001
    noisy = [r for r in rows if r.get("rate")]
    for metric, label in (("ece", "ECE"), ("max_ece", "max-ECE")) if noisy else ():
        text = f"CTS has lower {label} than TS at every noise rate above 0"
        yield _lower_at_all_rates(noisy, metric, text, f"the lower {label} of CTS")


def _size(name: str, rows: Sequence[Row]) -> Iterable[Claim]:  # noqa: ARG001
    for metric, label in (("max_ece", "max-ECE"), ("avg_ece", "Avg-ECE")):
        text = f"CTS has lower {label} than TS at every sampling rate"
        yield _lower_at_all_rates(rows, metric, text, f"the lower {label} of CTS")
    pairs = _pairs(rows, "ece")
    better = sorted({rate for rate, _, ts, cts in pairs if ts < cts})
    yield Claim(
        "In ECE over all rows TS is sometimes better than CTS",
        bool(better),
        "at " + ", ".join(f"{100 * rate:g}%" for rate in better) if better else "at no rate",
        "TS being sometimes better in ECE",
        () if better else tuple(Comparison("ece", "CTS", "TS", bins=b, rate=rate) for rate, b, *_ in pairs),
    )


def _classes(name: str, rows: Sequence[Row]) -> Iterable[Claim]:
    bins = BINS[-1]
    ece = _by_class(rows, "class_ece", bins)
    if ITEMS[name].low == "noisy classes":
        better = [k for k, v in ece.items() if max(v["CTS"], v["VS"]) < min(v["TS"], v["Uncal"])]
        yield Claim(
            "CTS and VS have lower ECE than TS and no calibration in every class",
            len(better) == len(ece),
            f"true of {len(better)} of the {len(ece)} classes shown ({bins} bins)",
            "the lower ECE of CTS and VS in every class",
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
        "CTS improves on no calibration in every class",
        len(better) == len(ece),
        f"true of {len(better)} of the {len(ece)} classes shown ({bins} bins)",
        "the lower ECE of CTS in every class",
        tuple(Comparison("class_ece", "CTS", "Uncal", bins=bins, label=k) for k in ece if k not in better),
    )
    low, high = (_change(rows, "avg_ece", half, "TS", bins) for half in ("low", "high"))
    yield Claim(
        "TS inflates the errors of the small classes and improves the large ones",
        low > 0 > high,
        f"mean ECE {100 * low:+.1f} points on small, {100 * high:+.1f} on large classes",
        "TS harming the small classes and helping the large ones",
        _wrong_halves("avg_ece", "TS", bins, low, high),
    )


def _moved_errors(rows: Sequence[Row], by: Literal["predicted", "true"], bins: int) -> Claim:
    """Whether VS moves errors from the clean to the noisy classes."""
    metric = {"predicted": "error", "true": "error_true"}[by]
    low, high = (_change(rows, metric, half, "VS", bins) for half in ("low", "high"))
    return Claim(
        f"VS raises the error of the noisy classes and lowers that of the clean ones, by {by} class",
        low > 0 > high,
        f"error {100 * low:+.1f} points on noisy, {100 * high:+.1f} on clean classes",
        f"the change of errors by VS, by {by} class",
        _wrong_halves(metric, "VS", bins, low, high),
        by,
    )


def _wrong_halves(metric: str, method: str, bins: int, low: float, high: float) -> tuple[Comparison, ...]:
    """Halves whose change contradicts a rise on the low and a fall on the high half."""
    wrong = {"low": low <= 0, "high": high >= 0}
    return tuple(Comparison(metric, method, "Uncal", bins=bins, half=half) for half in wrong if wrong[half])


def _example(name: str, rows: Sequence[Row]) -> Iterable[Claim]:  # noqa: ARG001
    close = all(abs(row["mean"] - row["paper"]) < 1e-9 for row in rows)
    merged = {m: _mean(rows, method=m, metric="ece") for m in ("TS", "CTS")}
    worst = {m: _mean(rows, method=m, metric="max_ece") for m in ("TS", "CTS")}
    yield Claim(
        "Class by class CTS is better, merged TS is",
        close and worst["CTS"] < worst["TS"] and merged["TS"] < merged["CTS"],
        f"max-ECE {_several(worst)}; ECE {_several(merged)}",
        "CTS being better by class and TS when merged",
    )


_METHODS = ("Uncal", "TS", "VS", "CTS")


def _row(rows: Sequence[Row], **wanted: object) -> Mapping[str, Any]:
    found = first_row(rows, **wanted)
    if found is None:
        raise ValueError(f"rows must hold {wanted}; summarise again with force")
    return found


def _mean(rows: Sequence[Row], **wanted: object) -> float:
    return float(_row(rows, **wanted)["mean"])


def _several(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {100 * value:.2f}" for name, value in values.items())


def _beyond_zero(row: Mapping[str, Any], sign: int) -> bool:
    """Whether the interval over the seeds lies on one side of zero; with one seed, the value."""
    ends = [row["mean"]] if row["low"] is None else [row["low"], row["high"]]
    return all(sign * end > 0 for end in ends)


def _points(row: Mapping[str, Any]) -> str:
    return f"{100 * row['mean']:+.1f} points"


def _interval(row: Mapping[str, Any]) -> str:
    if row["low"] is None:
        return f"confidence − accuracy {_points(row)} (one seed)"
    return (
        f"confidence − accuracy {_points(row)}, 95% interval over {row['n']} seeds "
        f"{100 * row['low']:+.1f} to {100 * row['high']:+.1f}"
    )


def _pairs(rows: Sequence[Row], metric: str) -> list[tuple[float, int, float, float]]:
    """Rate, bins, TS and CTS."""
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
    """Claim that confidence − accuracy is above or below zero."""
    holds = _beyond_zero(row, sign)
    return Claim(text, holds, _interval(row), topic, () if holds else (comparison,))


def _lower_at_all_rates(rows: Sequence[Row], metric: str, text: str, topic: str) -> Claim:
    pairs = _pairs(rows, metric)
    counts = ((b, [cts < ts for _, bins, ts, cts in pairs if bins == b]) for b in BINS)
    evidence = ", ".join(f"lower at {sum(lower)} of {len(lower)} rates with {b} bins" for b, lower in counts)
    failures = tuple(
        Comparison(metric, "CTS", "TS", bins=bins, rate=rate) for rate, bins, ts, cts in pairs if cts >= ts
    )
    return Claim(text, not failures, evidence, topic, failures)


def _by_class(rows: Sequence[Row], metric: str, bins: int) -> dict[int, dict[str, float]]:
    """Mean by class and method; classes that some method never predicts are left out."""
    found: dict[int, dict[str, float]] = {}
    for row in rows:
        if row["metric"] == metric and row["bins"] == bins and row["mean"] is not None:
            found.setdefault(row["class"], {})[row["method"]] = row["mean"]
    return {k: values for k, values in found.items() if set(_METHODS) <= set(values)}


def _change(rows: Sequence[Row], metric: str, half: str, method: str, bins: int) -> float:
    after, before = (_mean(rows, method=m, metric=metric, half=half, bins=bins) for m in (method, "Uncal"))
    return after - before


_CLAIMS: dict[str, Callable[[str, Sequence[Row]], Iterable[Claim]]] = {
    "table": _table,
    "trainings": _trainings,
    "sampling": _sampling,
    "halves": _halves,
    "noise": _noise,
    "size": _size,
    "classes": _classes,
    "example": _example,
}
