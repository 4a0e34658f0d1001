"""From numbers to a verdict per class: over-confident, under-confident, fine, or not enough rows to say."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import fft, special, stats

from hetcal._coerce import real_array
from hetcal._columns import class_names_of, column_names, labels_by_number
from hetcal._display import display_name
from hetcal._numeric.probabilities import keep_decision, softmax, top_label
from hetcal._validate import NAME_COLUMNS, check_labels, check_logits, check_names, check_probs, one_of
from hetcal.metrics.evaluation import as_frame, as_plain
from hetcal.metrics.floors import NoiseFloor, floor_of
from hetcal.metrics.intervals import check_level, gap_bounds, normal_quantile
from hetcal.metrics.reliability import TopLabel, calibration_error, group_sum
from hetcal.metrics.scores import class_cells

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CONSISTENT", "OVER", "TOO_FEW", "UNDER", "ClassDiagnosis", "Diagnosis", "diagnose"]

OVER = "over-confident"
UNDER = "under-confident"
CONSISTENT = "consistent with calibrated"
TOO_FEW = "too few rows"

_EXACT_VARIANCE = 1000.0  # variance up to which the exact distribution of the right predictions is used
_BLOCK_ROWS = 64  # rows whose polynomials are multiplied one by one before the FFT takes over
_CENTRE = 1e-3  # standard deviations around the mean in which the saddlepoint formula is numerically 0/0
_NEWTON_STEPS = 30
_NEWTON_TOLERANCE = 1e-9
_POWER = 0.8  # chance of seeing a gap of `min_gap` that a class needs rows for
_FEWEST = 10  # rows below which no class is called consistent
_MOST = 1e7  # square root of the most rows that are ever asked for, whatever the gap
_SHOWN = 15  # classes in the printed table
_SMALLEST = 1e-15  # smallest p-value of a possible outcome: below it the FFT returns rounding errors
_CAUSES = {
    OVER: "few training samples can cause this",
    UNDER: "label noise in training can cause this",
}


@dataclass(frozen=True)
class ClassDiagnosis:
    """What the rows predicted as one class say about its calibration.

    Attributes
    ----------
    name, index : str, int
    n : int
        Rows predicted as the class.
    accuracy, confidence, signed_gap : float
        Means over these rows; the gap is confidence − accuracy. nan without rows, as all that follows.
    gap_low, gap_high : float
        Interval at ``1 - level`` of the gap that very many rows of the class would show
        (:func:`~hetcal.metrics.gap_intervals`), for this class alone: the number of classes is not taken into
        account. The verdict comes from the p-value, not from this interval.
    ece, floor, floor_q95 : float
        ECE_k, with the mean and the 95% quantile of what perfect calibration would show.
    p_value, p_adjusted : float
        Two-sided, for a gap as large under perfect calibration; alone, and with the false discovery rate of
        all predicted classes controlled.
    verdict : str
        ``over-confident``, ``under-confident``, ``consistent with calibrated`` or
        ``too few rows: about N more needed``.
    hint : str
        A cause that the theory suggests, or empty. Not a finding.
    rows_needed : int
        The N of the verdict, else 0.
    """

    name: str
    index: int
    n: int
    accuracy: float
    confidence: float
    signed_gap: float
    gap_low: float
    gap_high: float
    ece: float
    floor: float
    floor_q95: float
    p_value: float
    p_adjusted: float
    verdict: str
    hint: str
    rows_needed: int

    @property
    def kind(self) -> str:
        """Verdict without the number: the part before the colon."""
        return self.verdict.partition(":")[0]


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`diagnose` finds: a row per class, in the order of the classes.

    Attributes
    ----------
    classes : tuple of K ClassDiagnosis
    n : int
        Rows.
    level : float
        False discovery rate that the verdicts keep.
    min_gap : float
        Gap that a class needs enough rows to show, before it is called consistent.
    """

    classes: tuple[ClassDiagnosis, ...]
    n: int
    level: float
    min_gap: float

    @property
    def summary(self) -> dict[str, int]:
        """Number of classes per kind of verdict."""
        kinds = [c.kind for c in self.classes]
        return {kind: kinds.count(kind) for kind in (OVER, UNDER, CONSISTENT, TOO_FEW)}

    @property
    def worst(self) -> ClassDiagnosis | None:
        """Class with the largest gap among those called over- or under-confident; None if there is none."""
        return next(iter(self._flagged()), None)

    def to_frame(self) -> pd.DataFrame:
        """Classes as a pandas data frame, a row each."""
        return as_frame([asdict(c) for c in self.classes])

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python values, ready for JSON; None in place of nan."""
        head = {"n": self.n, "n_classes": len(self.classes), "level": self.level, "min_gap": self.min_gap}
        return head | {"summary": self.summary, "classes": as_plain([asdict(c) for c in self.classes])}

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in self.summary.items() if count)
        lines = [f"{self.n:,} rows, {len(self.classes):,} classes: {counts}"]
        flagged = self._flagged()
        if not flagged:
            return (
                lines[0] + f"\nno class differs from calibrated at a false discovery rate of {self.level:g}"
            )
        names = [display_name(c.name) for c in flagged[:_SHOWN]]
        width = 2 + max(5, *map(len, names))
        lines += ["", f"{'class':<{width}}{'rows':>7}{'gap':>8}  {'interval':<16}{'adj. p':>8}  verdict"]
        lines += [
            f"{name:<{width}}{c.n:>7,}{c.signed_gap:>+8.3f}  {f'{c.gap_low:+.3f}..{c.gap_high:+.3f}':<16}"
            f"{c.p_adjusted:>8.1g}  {c.verdict}"
            for name, c in zip(names, flagged, strict=False)
        ]
        lines += [f"and {len(flagged) - _SHOWN} more"] if len(flagged) > _SHOWN else []
        kinds = [kind for kind in _CAUSES if self.summary[kind]]
        return "\n".join([*lines, "", *(f"hint: {kind}: {_CAUSES[kind]}" for kind in kinds)])

    def _flagged(self) -> list[ClassDiagnosis]:
        return sorted((c for c in self.classes if c.kind in _CAUSES), key=lambda c: -abs(c.signed_gap))


def diagnose(
    logits: Any = None,
    labels: ArrayLike | None = None,
    train_counts: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    *,
    probs: Any = None,
    n_bins: int = 15,
    level: float = 0.05,
    min_gap: float = 0.1,
    n_redraws: int = 200,
    rng: np.random.Generator | int = 0,
) -> Diagnosis:
    """Say of every class whether its confidences are right, and if not, which way they are off.

    A class is its predicted rows. If the confidences are right, the number of right predictions among them
    is Poisson-binomial; the p-value of the class is ``2·min(P(S ≤ s), P(S ≥ s))``. It is exact where the
    variance ``Σ p̂(1−p̂)`` of that number is at most 1,000, hence always for up to 4,000 rows. Above, it comes
    from a saddlepoint approximation, whose relative error is below 1e-4 for p-values down to 1e-8.
    Benjamini-Hochberg over the predicted classes keeps the false discovery rate at `level`. A class that is
    not significant is called consistent only if its rows would show a gap of `min_gap` with 80% power:
    ``n ≥ ((z_{1−level/2} + z_{0.8}) / min_gap)² · mean p̂(1−p̂)``, and at least 10.

    Parameters
    ----------
    logits : (n, K) scores of held-out rows
    labels : (n,) true classes, as integers or names
    train_counts : (K,) training rows per class
        Used to word the hints.
    class_names : K texts; by default the columns' names of a data frame, or the class numbers
    probs : (n, K) probabilities, in place of `logits`; their confidences are used as they are
    n_bins : number of confidence bins of ECE_k
    level : false discovery rate, and 1 − confidence level of the intervals
    min_gap : smallest gap that matters
    n_redraws, rng : redraws for the floor of ECE_k, and their generator or seed

    Examples
    --------
    >>> import numpy as np
    >>> logits = np.tile([[2.0, 0.0], [0.0, 2.0]], (200, 1))  # confidence 0.88 everywhere
    >>> labels = np.where(np.arange(400) % 2, 1, np.arange(400) % 4 // 2)  # class 0 is right half of the time
    >>> result = diagnose(logits, labels, class_names=["cat", "dog"])
    >>> [c.verdict for c in result.classes]
    ['over-confident', 'under-confident']
    >>> result.worst.name, round(result.worst.signed_gap, 2)
    ('cat', 0.38)
    """
    check_level(level)
    check_level(min_gap, "min_gap")
    top, names = _top_label(logits, labels, class_names, probs)
    counts = None if train_counts is None else _check_counts(train_counts, len(names))
    floor = floor_of(top, n_bins=n_bins, n_redraws=n_redraws, quantiles=(0.95,), rng=rng)
    columns = _columns(top, floor, n_bins=n_bins, level=level)
    needed = _rows_required(top, level, min_gap) - columns["n"]
    std = np.asarray(floor.std["class_ece"])
    rows = []
    for k, name in enumerate(names):
        values = {key: column[k].item() for key, column in columns.items()}
        verdict, more = _verdict(values, needed[k], level)
        hint = _hint(verdict, values, float(std[k]), counts, k)
        rows.append(
            ClassDiagnosis(name=name, index=k, **values, verdict=verdict, hint=hint, rows_needed=more)
        )
    return Diagnosis(tuple(rows), len(top.confidence), level, min_gap)


def _top_label(
    logits: Any, labels: ArrayLike | None, class_names: ArrayLike | None, probs: Any
) -> tuple[TopLabel, list[str]]:
    """Validated input, reduced to the predicted class of each row, and the names of the classes."""
    given, _ = one_of(logits, probs)
    columns = column_names(given)
    labels = labels_by_number(labels, columns, class_names)
    if class_names is None and columns is not None:
        class_names = class_names_of(columns)
    if probs is None:
        z = check_logits(given)
        p = keep_decision(softmax(z), z.argmax(axis=1))
    else:
        p = check_probs(given)
    names = check_names(class_names, p.shape[1])
    y = check_labels(
        labels,
        n_rows=len(p),
        n_classes=p.shape[1],
        class_names=None if class_names is None else names,
        names_remedy=NAME_COLUMNS,
    )
    confidence, guess = top_label(p)
    return TopLabel(confidence, guess, guess == y, p.shape[1]), names


def _check_counts(train_counts: ArrayLike, n_classes: int) -> NDArray[np.float64]:
    counts = np.asarray(real_array(train_counts, "train_counts"), dtype=np.float64)
    if counts.shape != (n_classes,):
        raise ValueError(
            f"train_counts must have one entry per class ({n_classes}), got shape {counts.shape}"
        )
    if not (np.isfinite(counts) & (counts >= 0)).all():
        bad = int(np.argmin(np.isfinite(counts) & (counts >= 0)))
        raise ValueError(f"train_counts must be finite and not negative, got {counts[bad]} for class {bad}")
    return counts


def _columns(top: TopLabel, floor: NoiseFloor, *, n_bins: int, level: float) -> dict[str, NDArray[Any]]:
    """Numbers of the classes, (K,) each, named as in ClassDiagnosis."""
    table = class_cells(top, n_bins, "width")
    n = table.count.sum(axis=1)
    safe = np.where(n > 0, n, np.nan)
    gap, low, high = gap_bounds(top, 1 - level)
    p_value = _p_values(top)
    seen = ~np.isnan(p_value)
    p_adjusted = np.full_like(p_value, np.nan)
    p_adjusted[seen] = stats.false_discovery_control(p_value[seen])
    return {
        "n": n.astype(np.int64),
        "accuracy": table.correct.sum(axis=1) / safe,
        "confidence": table.confidence.sum(axis=1) / safe,
        "signed_gap": gap,
        "gap_low": low,
        "gap_high": high,
        "ece": calibration_error(table.count, table.residual),
        "floor": np.asarray(floor.mean["class_ece"]),
        "floor_q95": floor.quantiles["class_ece"][0],
        "p_value": p_value,
        "p_adjusted": p_adjusted,
    }


def _p_values(top: TopLabel) -> NDArray[np.float64]:
    """Two-sided p-value of the number of right predictions of every class, (K,); nan without rows."""
    order = np.argsort(top.predicted, kind="stable")
    ends = np.cumsum(np.bincount(top.predicted, minlength=top.n_classes))[:-1]
    confidence = np.split(top.confidence[order].astype(np.float64), ends)
    correct = np.split(top.correct[order], ends)
    pairs = zip(confidence, (int(c.sum()) for c in correct), strict=True)
    return np.array([_two_sided(p, right) if len(p) else np.nan for p, right in pairs])


def _two_sided(p: NDArray[np.float64], right: int) -> float:
    """``2·min(P(S ≤ right), P(S ≥ right))``, at most 1, for S the sum of independent Bernoulli(p_i).

    Zero if and only if `right` contradicts rows with a confidence of exactly 0 or 1.
    """
    open_rows = p[(p > 0) & (p < 1)]
    n, s = len(open_rows), right - int(np.count_nonzero(p == 1))
    if not 0 <= s <= n:
        return 0.0
    if n == 0:
        return 1.0
    # Count the rarer outcome: its polynomial has the lower degree, and 1 − p is exact for p ≥ 0.5.
    q, s = (open_rows, s) if open_rows.sum() <= n / 2 else (1 - open_rows, n - s)
    mean, variance = float(q.sum()), float((q * (1 - q)).sum())
    reach = _tail_reach(variance)
    if abs(s - mean) >= reach:
        return _SMALLEST
    if variance <= _EXACT_VARIANCE:
        mass = _poisson_binomial(q, min(n, int(mean + reach) + 1))
        tail = float(min(mass[: s + 1].sum(), mass[s:].sum()))
    else:
        tail = _saddlepoint_tail(q, s, mean, variance)
    return min(1.0, max(_SMALLEST, 2 * tail))


def _tail_reach(variance: float) -> float:
    """Distance from the mean beyond which either tail has less than half of `_SMALLEST`.

    Bernstein's inequality for a sum of Bernoulli variables, ``P(S ≥ mean + t) ≤ exp(−t²/(2·(V + t/3)))``.
    """
    bits = -np.log(_SMALLEST / 2)
    return float(bits / 3 + np.sqrt(bits**2 / 9 + 2 * bits * variance))


def _poisson_binomial(p: NDArray[np.float64], degree: int | None = None) -> NDArray[np.float64]:
    """P(S = 0..degree), (degree + 1,), of a sum of independent Bernoulli(p_i); `degree` is n by default.

    The probabilities are the coefficients of the product of the polynomials ``1 − p_i + p_i x``. Blocks of
    rows are multiplied factor by factor, and the blocks pairwise with an FFT. Powers above `degree` do not
    enter the others and are dropped at every stage, so that many rows with a small variance are cheap.
    """
    n = len(p)
    most = n if degree is None else degree
    size = min(n, _BLOCK_ROWS)
    n_blocks = 1 << (-(-n // size) - 1).bit_length()
    padded = np.zeros(n_blocks * size)  # rows that never count leave the product as it is
    padded[:n] = p
    blocks = np.zeros((size + 1, n_blocks))
    blocks[0] = 1
    for i, q in enumerate(padded.reshape(size, n_blocks)):
        raised = blocks[: i + 1] * q
        blocks[: i + 1] *= 1 - q
        blocks[1 : i + 2] += raised
    factors = blocks[: most + 1].T
    while len(factors) > 1:
        width = 2 * factors.shape[1] - 1
        length = fft.next_fast_len(width, real=True)
        spectrum = fft.rfft(factors, length, axis=1)
        product = fft.irfft(spectrum[::2] * spectrum[1::2], length, axis=1)
        factors = product[:, : min(width, most + 1)]
    return np.asarray(np.maximum(factors[0, : most + 1], 0))


def _saddlepoint_tail(q: NDArray[np.float64], s: int, mean: float, variance: float) -> float:
    """Smaller of ``P(S ≤ s)`` and ``P(S ≥ s)`` by the Lugannani-Rice formula for counts (Daniels, 1987).

    Unlike the normal approximation, which ignores skewness, it keeps a small relative error in the tails.
    """
    if s < mean:  # the lower tail is the upper tail of the other outcome
        q, s, mean = 1 - q, len(q) - s, len(q) - mean
    away = s - 0.5 - mean
    if away < _CENTRE * np.sqrt(variance):  # the p-value is close to 1
        return float(special.ndtr(-away / np.sqrt(variance)))
    theta = 0.0
    for _ in range(_NEWTON_STEPS):  # the tilt under which s − 1/2 is the mean; small, because V is large
        tilted = q / (q + (1 - q) * np.exp(-theta))
        curvature = float((tilted * (1 - tilted)).sum())
        step = (away - float((tilted - q).sum())) / curvature
        theta += step
        if abs(step) <= _NEWTON_TOLERANCE * theta:
            break
    # Every term is of second order in theta, so that nothing cancels in the sum.
    cumulant = float((np.log1p(q * np.expm1(theta)) - theta * q).sum())
    w = np.sqrt(2 * (theta * away - cumulant))
    u = 2 * np.sinh(theta / 2) * np.sqrt(curvature)
    return float(special.ndtr(-w) + np.exp(-(w**2) / 2) / np.sqrt(2 * np.pi) * (1 / u - 1 / w))


def _rows_required(top: TopLabel, level: float, min_gap: float) -> NDArray[np.float64]:
    """Rows with which a gap of `min_gap` shows with 80% power, (K,)."""
    p = top.confidence.astype(np.float64)
    n = np.bincount(top.predicted, minlength=top.n_classes)
    variance = group_sum(top.predicted, p * (1 - p), top.n_classes) / np.maximum(n, 1)
    variance = np.where(n > 0, variance, (p * (1 - p)).mean())
    z = normal_quantile(1 - level / 2) + normal_quantile(_POWER)
    wanted = min(z / min_gap, _MOST) ** 2 * variance
    return np.asarray(np.maximum(np.ceil(wanted), _FEWEST))


def _verdict(values: dict[str, Any], needed: float, level: float) -> tuple[str, int]:
    if values["p_adjusted"] <= level:
        return (OVER if values["signed_gap"] > 0 else UNDER), 0
    if needed > 0:
        more = _round_up(int(needed))
        return f"{TOO_FEW}: about {more:,} more needed", more
    return CONSISTENT, 0


def _round_up(n: int) -> int:
    """Up to a multiple of 5 below 50, to two leading digits above."""
    step = 5 if n <= 50 else 10 ** (len(str(n)) - 2) if n >= 100 else 10
    return -(-n // step) * step


def _hint(
    verdict: str, values: dict[str, Any], std: float, counts: NDArray[np.float64] | None, k: int
) -> str:
    if values["n"] == 0:
        return "no row is predicted as this class"
    if verdict in _CAUSES:
        return _CAUSES[verdict] + ("" if counts is None else f"; {_against_median(counts, k)}")
    # Four standard deviations: this is not corrected for the number of classes, so it must be rare by itself.
    if verdict == CONSISTENT and values["ece"] > values["floor"] + 4 * std:
        return "ECE is far above its floor: over- and under-confident rows may cancel out in the gap"
    return ""


def _against_median(counts: NDArray[np.float64], k: int) -> str:
    median = float(np.median(counts))
    fewer = "fewer" if counts[k] < median else "not fewer"
    return f"train_counts: {counts[k]:,.0f} against a median of {median:,.0f} ({fewer})"
