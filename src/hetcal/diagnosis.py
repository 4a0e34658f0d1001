"""Diagnosis: a verdict for every class, with the numbers that support it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import fft, special

from hetcal._binary_probs import two_columns
from hetcal._coerce import real_array
from hetcal._columns import class_names_of, column_names, labels_by_number
from hetcal._display import display_name
from hetcal._images import flatten_images
from hetcal._numeric.probabilities import keep_decision, softmax
from hetcal._tables import Cell, Note, Table, TableDisplay, Tone, hidden_classes
from hetcal._typing import Float, FloatArray
from hetcal._validate import (
    NAME_COLUMNS,
    as_generator,
    check_integer,
    check_logits,
    check_names,
    check_number,
    check_observed_labels,
    check_probs,
    is_soft,
    one_of,
)
from hetcal.metrics.agreement import LabelKind
from hetcal.metrics.binning import TopLabel, calibration_error, class_cells, group_sum, top_label_of
from hetcal.metrics.evaluation import as_frame, as_plain
from hetcal.metrics.floors import NoiseFloor, floor_of
from hetcal.metrics.intervals import gap_bounds, normal_quantile

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "ClassDiagnosis",
    "Diagnosis",
    "Verdict",
    "check_predictions",
    "diagnose",
    "diagnose_top_label",
    "diagnosis_tables",
]

_MAX_EXACT_VARIANCE = 1000.0  # up to this variance of the number of correct predictions, p-values are exact
_BLOCK_ROWS = 64  # rows per block in `_poisson_binomial`, which multiplies their polynomials without an FFT
_NEAR_MEAN = 1e-3  # up to this many standard deviations from the mean, the saddlepoint formula is nearly 0/0
_NEWTON_STEPS = 30
_NEWTON_TOLERANCE = 1e-9
_POWER = 0.8  # probability of detecting a gap of `min_gap` in a class with enough rows
_MIN_ROWS = 10  # a class with fewer rows never gets the verdict "consistent"
_MAX_ROOT_ROWS = 1e7  # upper limit of z / min_gap in `_rows_required`; its square could otherwise overflow
_MAX_PRINTED = 15  # maximum number of classes in the printed table
_MAX_ROWS = 60  # maximum number of classes in the tables for Rich and notebooks
# Smaller p-values of possible outcomes are raised to this one: the FFT cannot distinguish them from rounding
# errors.
_MIN_P_VALUE = 1e-15


class Verdict(StrEnum):
    """Verdict on the calibration of a class."""

    OVER_CONFIDENT = "over-confident"
    UNDER_CONFIDENT = "under-confident"
    CONSISTENT = "consistent with calibrated"
    TOO_FEW_ROWS = "too few rows"


_CAUSES = {
    Verdict.OVER_CONFIDENT: "few training samples can cause this",
    Verdict.UNDER_CONFIDENT: "label noise in training can cause this",
}


_TONES = {
    Verdict.OVER_CONFIDENT: Tone.OVER,
    Verdict.UNDER_CONFIDENT: Tone.UNDER,
    Verdict.CONSISTENT: Tone.GOOD,
    Verdict.TOO_FEW_ROWS: Tone.UNCERTAIN,
}


@dataclass(frozen=True)
class ClassDiagnosis:
    """Calibration of one class, measured on the rows predicted as that class.

    Attributes
    ----------
    name, index : str, int
    n : int
        Rows predicted as the class.
    accuracy, confidence, signed_gap : float
        Means over these rows; the gap is confidence − accuracy. All floats are nan if `n` is 0.
    gap_low, gap_high : float
        Interval for the gap in the population (:func:`~hetcal.metrics.gap_intervals`) with the confidence
        level ``1 − level``, where `level` is the option of :func:`diagnose`. The interval refers to this
        class alone and is not adjusted for the number of classes. The verdict depends on the p-value, not on
        this interval.
    ece, floor, floor_q95 : float
        Expected calibration error (ECE) over these rows, and the mean and 95% quantile of the ECE that a
        perfectly calibrated model with the same confidences would have.
    p_value, p_adjusted : float
        Two-sided p-value of the gap under perfect calibration, for this class alone and adjusted to control
        the false discovery rate over all predicted classes.
    kind : Verdict
    hint : str
        A possible cause of the gap or another remark, or empty. It is a hint, not a finding.
    rows_needed : int
        Approximate number of additional rows needed if `kind` is ``Verdict.TOO_FEW_ROWS``, otherwise 0.
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
    kind: Verdict
    hint: str
    rows_needed: int

    @property
    def verdict(self) -> str:
        """Verdict as text: ``kind``, followed by the number of rows needed if there are too few."""
        if self.kind is Verdict.TOO_FEW_ROWS:
            return f"{self.kind}: about {self.rows_needed:,} more needed"
        return self.kind.value

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain Python values, with the text ``verdict`` instead of ``kind``."""
        names = ("verdict" if f.name == "kind" else f.name for f in fields(self))
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Diagnosis(TableDisplay):
    """Result of :func:`diagnose`: one entry per class, in the order of the classes.

    Rich and notebooks show it as a table. ``print`` shows only the over- and under-confident classes.

    Attributes
    ----------
    classes : tuple of K ClassDiagnosis
    n : int
        Number of rows.
    level : float
        False discovery rate of the verdicts.
    min_gap : float
        A class is called consistent only if it has enough rows to detect this gap.
    labels : LabelKind
        ``"hard"``, ``"noisy"`` if accuracies, gaps and errors are corrected for label noise, or ``"soft"``.
    """

    classes: tuple[ClassDiagnosis, ...]
    n: int
    level: float
    min_gap: float
    labels: LabelKind = LabelKind.HARD

    @property
    def summary(self) -> dict[str, int]:
        """Number of classes per kind of verdict."""
        kinds = [c.kind for c in self.classes]
        return {kind.value: kinds.count(kind) for kind in Verdict}

    @property
    def worst(self) -> ClassDiagnosis | None:
        """Over- or under-confident class with the largest absolute gap; None if there is no such class."""
        return next(iter(self._flagged()), None)

    def to_frame(self) -> pd.DataFrame:
        """Classes as a pandas data frame, one row per class."""
        return as_frame([c.to_dict() for c in self.classes])

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python values, ready for JSON; None replaces nan."""
        head: dict[str, Any] = {"n": self.n, "n_classes": len(self.classes)}
        head |= {"level": self.level, "min_gap": self.min_gap}
        head["labels"] = self.labels.value
        return head | {"summary": self.summary, "classes": as_plain([c.to_dict() for c in self.classes])}

    def __str__(self) -> str:
        title, flagged = self._title(), self._flagged()
        if not flagged:
            return (
                f"{title}\nno class differs significantly from perfect calibration at a false discovery rate "
                f"of {self.level:g}"
            )
        names = [display_name(c.name) for c in flagged[:_MAX_PRINTED]]
        width = 2 + max(5, *map(len, names))
        head = f"{'class':<{width}}{'verdict':<15}{'gap':>8}{'rows':>9}  {'interval':<16}{'adj. p':>8}"
        table = [
            f"{name:<{width}}{c.kind:<15}{c.signed_gap:>+8.3f}{c.n:>9,}  "
            f"{f'{c.gap_low:+.3f}..{c.gap_high:+.3f}':<16}{c.p_adjusted:>8.1g}"
            for name, c in zip(names, flagged, strict=False)
        ]
        more = [f"and {len(flagged) - _MAX_PRINTED} more"] if len(flagged) > _MAX_PRINTED else []
        hints = [f"hint: {kind}: {cause}" for kind, cause in _CAUSES.items() if self.summary[kind]]
        return "\n".join([title, "", head, *table, *more, "", *hints])

    def _title(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in self.summary.items() if count)
        return f"{self.n:,} rows, {len(self.classes):,} classes{self.labels.note}: {counts}"

    def _tables(self) -> tuple[Table, ...]:
        return diagnosis_tables(self, self._title())

    def _flagged(self) -> list[ClassDiagnosis]:
        return sorted((c for c in self.classes if c.kind in _CAUSES), key=lambda c: -abs(c.signed_gap))


def diagnose(
    logits: Any = None,
    labels: ArrayLike | None = None,
    train_counts: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    *,
    probs: Any = None,
    transition: ArrayLike | None = None,
    ignore_index: int | None = None,
    n_bins: int = 15,
    level: float = 0.05,
    min_gap: float = 0.1,
    n_redraws: int = 200,
    rng: np.random.Generator | int = 0,
) -> Diagnosis:
    """Decide for every class whether its confidences are calibrated and, if not, in which direction they err.

    The rows of a class are those predicted as that class. If the confidences p̂ are calibrated, the number S
    of correct predictions among them has a Poisson-binomial distribution. If s correct predictions are
    observed, the p-value of the class is ``2·min(P(S ≤ s), P(S ≥ s))``, but at most 1. It is exact down to
    1e-15 if the variance ``Σ p̂(1−p̂)`` of S is at most 1,000, which is always the case for up to 4,000 rows.
    For larger variances, a saddlepoint approximation is used. Its relative error is below 1e-4 for p-values
    from 1e-8 to 0.99, and below 0.5% for larger ones.

    The Benjamini-Hochberg procedure over the predicted classes controls the false discovery rate at `level`.
    A class without a significant gap between confidence and accuracy is called consistent only if it has
    enough rows. It needs at least 10 rows, and enough rows to detect a gap of `min_gap` with a probability of
    about 80%. For hard labels, this takes ``((z_{1−level/2} + z_{0.8}) / min_gap)² · mean p̂(1−p̂)`` rows,
    where z are quantiles of the standard normal distribution.

    If the labels are noisy, pass `transition`. S is then the number of rows whose observed label is the
    predicted class. If the model is calibrated, the probability of this event in a row follows from
    `transition` and the predicted probabilities. The probabilities of all rows give the distribution of S.
    The p-value is as accurate as for labels without noise. Accuracies, gaps, intervals and errors refer to
    the true classes; see :mod:`hetcal.metrics.scores`. The transition matrix is taken to be exact.

    For soft labels, the accuracy of a row is the probability that its soft label gives to the predicted
    class. S is the sum of these probabilities, and the p-value is an approximation. The standard deviation of
    S is at most that for hard labels. The ratio of the two is estimated for every class. The deviation of
    S from its mean is divided by this ratio and then compared with the distribution for hard labels. One-hot
    soft labels give the results of hard labels.

    Parameters
    ----------
    logits : (n, K) scores of held-out rows
        An array or tensor (B, K, d1, d2, ...) contains B images with the classes on axis 1, and labels of
        shape (B, d1, d2, ...). Every position is a row. The p-values and intervals assume that rows are
        independent. Neighbouring positions are not, so for images the p-values are too small and the
        intervals too narrow.
    labels : (n,) classes as integers or names, or (n, K) soft labels or counts
    train_counts : (K,) training rows per class
        The hint for an over- or under-confident class compares its number with the median of all classes.
    class_names : K strings; by default the column names of a data frame, or the class numbers
    probs : (n, K) probabilities, instead of `logits`
        An array (n,) or a single column contains the probabilities of class 1.
    transition : (K, K) matrix, or noise rates as one number or (K,) numbers
        How labels are wrong: entry [i, j] is the probability that a label of class i is recorded as j. With a
        noise rate ρ, a label is replaced by a uniformly random one of all K classes with probability ρ.
    ignore_index : label of rows that are left out, such as 255 for unlabelled pixels
    n_bins : number of confidence bins for the ECE of every class
    level : false discovery rate, and 1 − confidence level of the intervals
    min_gap : smallest gap of practical importance
    n_redraws, rng : number of simulations of perfect calibration, and their generator or seed
        The ``floor`` of every class is its mean ECE in these simulations.

    Examples
    --------
    >>> import numpy as np
    >>> logits = np.tile([[2.0, 0.0], [0.0, 2.0]], (200, 1))  # confidence 0.88 everywhere
    >>> labels = np.where(np.arange(400) % 2, 1, np.arange(400) % 4 // 2)  # class 0: half correct
    >>> result = diagnose(logits, labels, class_names=["cat", "dog"])
    >>> [c.verdict for c in result.classes]
    ['over-confident', 'under-confident']
    >>> result.worst.name, round(result.worst.signed_gap, 2)
    ('cat', 0.38)

    One tenth of these labels are wrong, and the confidence of 0.9 refers to the true classes:

    >>> probs, labels = np.tile([0.9, 0.1], (1000, 1)), np.arange(1000) % 100 < 19
    >>> for transition in (None, [[0.9, 0.1], [0.1, 0.9]]):
    ...     cat = diagnose(probs=probs, labels=labels, transition=transition).classes[0]
    ...     print(cat.verdict, round(cat.signed_gap, 2))
    over-confident 0.09
    consistent with calibrated 0.01
    """
    level = check_number(level, "level", above=0, below=1)
    min_gap = check_number(min_gap, "min_gap", above=0, below=1)
    check_integer(n_bins, "n_bins", minimum=1)
    check_integer(n_redraws, "n_redraws", minimum=1)
    generator = as_generator(rng)
    rows = flatten_images(logits, probs, labels, ignore_index)
    top, names = check_predictions(
        rows.labels, class_names, logits=rows.logits, probs=rows.probs, transition=transition
    )
    counts = None if train_counts is None else _check_counts(train_counts, len(names))
    return diagnose_top_label(
        top, names, counts, level=level, min_gap=min_gap, n_bins=n_bins, n_redraws=n_redraws, rng=generator
    )


def diagnose_top_label(
    top: TopLabel,
    names: Sequence[str],
    counts: Float | None = None,
    *,
    level: float,
    min_gap: float,
    n_bins: int = 15,
    n_redraws: int,
    rng: np.random.Generator,
) -> Diagnosis:
    """:func:`diagnose` for validated predictions, class names and options."""
    floor = floor_of(top, n_bins=n_bins, n_redraws=n_redraws, quantiles=(0.95,), rng=rng)
    columns = _columns(top, floor, n_bins=n_bins, level=level)
    missing_rows = _rows_required(top, level, min_gap) - columns["n"]
    std = np.asarray(floor.std["class_ece"])
    classes = []
    for k, name in enumerate(names):
        values = {key: column[k].item() for key, column in columns.items()}
        kind = _judge(values, missing_rows[k], level)
        needed = _round_up(int(missing_rows[k])) if kind is Verdict.TOO_FEW_ROWS else 0
        hint = _hint(kind, values, float(std[k]), counts, k)
        classes.append(ClassDiagnosis(name=name, index=k, **values, kind=kind, hint=hint, rows_needed=needed))
    return Diagnosis(tuple(classes), len(top.confidence), level, min_gap, top.labels)


def diagnosis_tables(
    result: Diagnosis, title: str, max_classes: int = _MAX_ROWS, remedy: str = "to_frame() returns all"
) -> tuple[Table, ...]:
    """Table of the verdicts, smallest adjusted p-value first, with the hints.

    `remedy` says where to find the classes beyond `max_classes`.
    """
    interval = f"{100 * (1 - result.level):g}% interval"
    optional = ((interval,), ("Accuracy", "Confidence"), ("p (adj.)",), ("ECE", "Floor"))
    columns = ("Class", "Verdict", "Gap", "Rows", *(name for group in optional for name in group))
    classes = sorted(result.classes, key=lambda c: c.p_adjusted if c.n else np.inf)
    hints = dict.fromkeys((c.verdict, c.hint) for c in classes if c.hint)
    notes = tuple(Note(f"Hint ({verdict}):", hint) for verdict, hint in hints)
    notes = hidden_classes(len(classes) - max_classes, remedy) + notes
    rows = [_table_row(c) for c in classes[:max_classes]]
    return (Table(title, columns, rows, notes, left=("Verdict",), optional=optional),)


def _table_row(c: ClassDiagnosis) -> list[str | Cell]:
    """Cells of one class. If no row is predicted as the class, only name, verdict and 0 rows are shown."""
    gap, *numbers = (
        f"{c.signed_gap:+.3f}",
        f"{c.gap_low:+.3f} … {c.gap_high:+.3f}",
        *(f"{c.accuracy:.3f}", f"{c.confidence:.3f}"),
        f"{c.p_adjusted:.2g}",
        *(f"{c.ece:.3f}", f"{c.floor:.3f}"),
    )
    if not c.n:
        gap, numbers = "", [""] * len(numbers)
    return [display_name(c.name), Cell(c.verdict, _TONES[c.kind]), gap, f"{c.n:,}", *numbers]


def check_predictions(
    labels: Any,
    class_names: ArrayLike | None,
    *,
    logits: Any = None,
    probs: Any = None,
    transition: ArrayLike | None = None,
    labels_name: str = "labels",
    probs_name: str = "probs",
) -> tuple[TopLabel, list[str]]:
    """Validate the input, and return the predicted classes with their confidences, and the class names."""
    probs = two_columns(probs, labels, class_names, name=probs_name)
    table, _ = one_of(logits, probs)
    columns = column_names(table)
    if not is_soft(labels):
        labels = labels_by_number(labels, columns, class_names)
    if class_names is None and columns is not None:
        class_names = class_names_of(columns)
    if probs is None:
        z = check_logits(table)
        p = keep_decision(softmax(z), z.argmax(axis=1))
    else:
        p = check_probs(table, name=probs_name)
    names = check_names(class_names, p.shape[1])
    y, t = check_observed_labels(
        labels,
        transition,
        n_rows=len(p),
        n_classes=p.shape[1],
        class_names=None if class_names is None else names,
        name=labels_name,
        names_remedy=NAME_COLUMNS,
    )
    return top_label_of(p, y, t), names


def _check_counts(train_counts: ArrayLike, n_classes: int) -> Float:
    counts = np.asarray(real_array(train_counts, "train_counts"), dtype=np.float64)
    if counts.shape != (n_classes,):
        raise ValueError(
            f"train_counts must have shape ({n_classes},), one entry per class, got {counts.shape}; "
            "pass 0 for classes without training rows"
        )
    valid = np.isfinite(counts) & (counts >= 0)
    if not valid.all():
        bad = int(np.argmin(valid))
        raise ValueError(
            f"train_counts must be finite and not negative, got {counts[bad]} for class {bad}; "
            "pass 0 if the class has no training rows"
        )
    return counts


def _columns(top: TopLabel, floor: NoiseFloor, *, n_bins: int, level: float) -> dict[str, NDArray[Any]]:
    """Arrays (K,) with the statistics of all classes, by the name of the attribute of ClassDiagnosis."""
    table = class_cells(top, n_bins, "width")
    n = table.count.sum(axis=1)
    safe_n = np.where(n > 0, n, np.nan)
    gap, low, high = gap_bounds(top, 1 - level)
    p_value = _p_values(top)
    return {
        "n": n.astype(np.int64),
        "accuracy": table.correct.sum(axis=1) / safe_n,
        "confidence": table.confidence.sum(axis=1) / safe_n,
        "signed_gap": gap,
        "gap_low": low,
        "gap_high": high,
        "ece": calibration_error(table.count, table.residual),
        "floor": np.asarray(floor.mean["class_ece"]),
        "floor_q95": floor.quantiles["class_ece"][0],
        "p_value": p_value,
        "p_adjusted": _adjusted(p_value),
    }


def _p_values(top: TopLabel) -> Float:
    """Two-sided p-value of the number of correct predictions of every class, (K,); nan without rows."""
    chance: FloatArray = top.confidence
    outcome: NDArray[Any] = top.correct
    if top.agreement is not None:
        chance, outcome = top.agreement.expected, top.agreement.standardised
    order = np.argsort(top.predicted, kind="stable")
    ends = np.cumsum(np.bincount(top.predicted, minlength=top.n_classes))[:-1]
    by_class = np.split(chance[order].astype(np.float64), ends)
    totals = (float(part.sum()) for part in np.split(outcome[order], ends))
    pairs = zip(by_class, totals, strict=True)
    return np.array([_two_sided(p, total) if len(p) else np.nan for p, total in pairs])


def _adjusted(p_value: Float) -> Float:
    """Benjamini-Hochberg adjustment of the p-values (K,) that are not nan."""
    from scipy import stats  # imported here because it is slow to import

    is_predicted = ~np.isnan(p_value)
    adjusted = np.full_like(p_value, np.nan)
    adjusted[is_predicted] = stats.false_discovery_control(p_value[is_predicted])
    return adjusted


def _two_sided(p: Float, n_correct: float) -> float:
    """Two-sided p-value of `n_correct` for a sum S of independent Bernoulli(p_i) variables.

    It is ``2·min(P(S ≤ n_correct), P(S ≥ n_correct))``, but at most 1. If `n_correct` is not an integer,
    exact tail probabilities are interpolated linearly, and the saddlepoint formula is evaluated at
    `n_correct` itself. The result is zero if `n_correct` lies outside the range of S, and otherwise at least
    `_MIN_P_VALUE`. Every p_i of exactly 0 or 1 narrows the range of S by one.
    """
    uncertain = p[(p > 0) & (p < 1)]
    n, s = len(uncertain), round(n_correct, 9) - int(np.count_nonzero(p == 1))
    if not 0 <= s <= n:
        return 0.0
    if n == 0:
        return 1.0
    # Count the rarer outcome, because its polynomial can be truncated at a lower degree. This loses no
    # accuracy, because the relative rounding error of 1 − p is negligible.
    q, s = (uncertain, s) if uncertain.sum() <= n / 2 else (1 - uncertain, n - s)
    mean, variance = float(q.sum()), float((q * (1 - q)).sum())
    radius = _tail_radius(variance)
    if abs(s - mean) >= radius:
        return _MIN_P_VALUE
    if variance <= _MAX_EXACT_VARIANCE:
        mass = _poisson_binomial(q, min(n, int(mean + radius) + 1))
        k = int(s)
        below, above = mass[: k + 1].sum(), mass[k:].sum()
        if s > k:
            below, above = below + (s - k) * mass[k + 1], above - (s - k) * mass[k]
        tail = float(min(below, above))
    else:
        tail = _saddlepoint_tail(q, s, mean, variance)
    return min(1.0, max(_MIN_P_VALUE, 2 * tail))


def _tail_radius(variance: float) -> float:
    """Distance t such that ``P(S ≥ mean + t)`` and ``P(S ≤ mean − t)`` are at most half of `_MIN_P_VALUE`.

    It follows from Bernstein's inequality, ``P(S ≥ mean + t) ≤ exp(−t²/(2·(V + t/3)))``, where V is the
    variance of S, a sum of independent Bernoulli variables. The inequality also holds for the lower tail.
    """
    nats = -np.log(_MIN_P_VALUE / 2)
    return float(nats / 3 + np.sqrt(nats**2 / 9 + 2 * nats * variance))


def _poisson_binomial(p: Float, degree: int | None = None) -> Float:
    """Probabilities of S = 0, …, degree, for a sum S of n independent Bernoulli(p_i) variables.

    The result has the shape (degree + 1,); `degree` is n by default. The probabilities are the coefficients
    of the product of the polynomials ``1 − p_i + p_i x``. Within a block of rows, the factors are multiplied
    directly; blocks are multiplied pairwise with an FFT. Powers above `degree` do not affect the lower ones
    and are dropped at every stage, which keeps the cost low for many rows with a small variance.
    """
    n = len(p)
    max_power = n if degree is None else degree
    size = min(n, _BLOCK_ROWS)
    n_blocks = 1 << (-(-n // size) - 1).bit_length()
    padded = np.zeros(n_blocks * size)  # a factor with p = 0 does not change the product
    padded[:n] = p
    blocks = np.zeros((size + 1, n_blocks))
    blocks[0] = 1
    for i, q in enumerate(padded.reshape(size, n_blocks)):
        shifted = blocks[: i + 1] * q
        blocks[: i + 1] *= 1 - q
        blocks[1 : i + 2] += shifted
    factors = blocks[: max_power + 1].T
    while len(factors) > 1:
        width = 2 * factors.shape[1] - 1
        length = fft.next_fast_len(width, real=True)
        spectrum = fft.rfft(factors, length, axis=1)
        product = fft.irfft(spectrum[::2] * spectrum[1::2], length, axis=1)
        factors = product[:, : min(width, max_power + 1)]
    return np.asarray(np.maximum(factors[0, : max_power + 1], 0))


def _saddlepoint_tail(q: Float, s: float, mean: float, variance: float) -> float:
    """Smaller of ``P(S ≤ s)`` and ``P(S ≥ s)`` by the Lugannani-Rice formula for counts (Daniels, 1987).

    Unlike the normal approximation, which ignores skewness, it has a small relative error in the tails.
    """
    if s < mean:  # the lower tail is the upper tail of the opposite outcome
        q, s, mean = 1 - q, len(q) - s, len(q) - mean
    offset = s - 0.5 - mean
    if offset < _NEAR_MEAN * np.sqrt(variance):  # the p-value is close to 1: a normal approximation will do
        return float(special.ndtr(-offset / np.sqrt(variance)))
    theta = 0.0
    for _ in range(_NEWTON_STEPS):  # find the theta for which the tilted distribution has mean s − 1/2
        tilted = q / (q + (1 - q) * np.exp(-theta))
        curvature = float((tilted * (1 - tilted)).sum())
        step = (offset - float((tilted - q).sum())) / curvature
        theta += step
        if abs(step) <= _NEWTON_TOLERANCE * theta:
            break
    # theta * q is subtracted in every row instead of theta * mean after the sum. The terms are then
    # nonnegative and of second order in theta, so nothing cancels when they are summed.
    cumulant = float((np.log1p(q * np.expm1(theta)) - theta * q).sum())
    w = np.sqrt(2 * (theta * offset - cumulant))
    u = 2 * np.sinh(theta / 2) * np.sqrt(curvature)
    return float(special.ndtr(-w) + np.exp(-(w**2) / 2) / np.sqrt(2 * np.pi) * (1 / u - 1 / w))


def _rows_required(top: TopLabel, level: float, min_gap: float) -> Float:
    """Number of rows needed to detect a gap of `min_gap` with power `_POWER`, at least `_MIN_ROWS`, (K,)."""
    n, per_row = np.bincount(top.predicted, minlength=top.n_classes), top.null_variance
    variance = group_sum(top.predicted, per_row, top.n_classes) / np.maximum(n, 1)
    variance = np.where(n > 0, variance, per_row.mean())
    z = normal_quantile(1 - level / 2) + normal_quantile(_POWER)
    required = min(z / min_gap, _MAX_ROOT_ROWS) ** 2 * variance
    return np.asarray(np.maximum(np.ceil(required), _MIN_ROWS))


def _judge(values: dict[str, Any], missing_rows: float, level: float) -> Verdict:
    if values["p_adjusted"] <= level:
        return Verdict.OVER_CONFIDENT if values["signed_gap"] > 0 else Verdict.UNDER_CONFIDENT
    return Verdict.TOO_FEW_ROWS if missing_rows > 0 else Verdict.CONSISTENT


def _round_up(n: int) -> int:
    """Round up to a multiple of 5 for n up to 50, of 10 for n below 100, else to two significant digits."""
    step = 5 if n <= 50 else 10 ** (len(str(n)) - 2) if n >= 100 else 10
    return -(-n // step) * step


def _hint(kind: Verdict, values: dict[str, Any], std: float, counts: Float | None, k: int) -> str:
    if values["n"] == 0:
        return "no row is predicted as this class"
    if kind in _CAUSES:
        return _CAUSES[kind] + ("" if counts is None else f"; {_against_median(counts, k)}")
    # The threshold of four standard deviations is high, because the comparison is not adjusted for the number
    # of classes.
    if kind is Verdict.CONSISTENT and values["ece"] > values["floor"] + 4 * std:
        return "ECE is far above its floor: over- and under-confident rows may cancel out in the gap"
    return ""


def _against_median(counts: Float, k: int) -> str:
    median = float(np.median(counts))
    fewer = "fewer" if counts[k] < median else "not fewer"
    return f"it has {counts[k]:,.0f} training rows, {fewer} than the median of {median:,.0f}"
