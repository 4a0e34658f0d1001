"""Wrong validation labels: how frequent they are, and how they affect verdicts on calibration.

Metrics and calibrators compare predictions with observed labels. If some labels are wrong, both need the
*transition matrix* T, with ``T[i, j] = P(observed label j | true label i)``.
:func:`estimate_transition` estimates T from the true labels of a few rows, from the labels of several
annotators, or, under strong assumptions, from the predictions alone. :func:`hetcal.diagnose` gives a verdict
on every class, such as "over-confident". :func:`sensitivity` shows which share of wrong labels would change
this verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from hetcal._binary_probs import two_columns
from hetcal._coerce import as_array
from hetcal._columns import class_names_of, column_names, labels_by_number
from hetcal._display import display_name
from hetcal._format import percent
from hetcal._numeric.agreement import log_odds, profile_rates
from hetcal._numeric.dawid_skene import fit_annotators
from hetcal._numeric.probabilities import keep_decision, log_probs, probability_floor, softmax, top_label
from hetcal._numeric.trusted_rows import fit_trusted, uniform_shares
from hetcal._tables import Cell, Table, TableDisplay, Tone, hidden_classes
from hetcal._typing import BoolArray, Float, FloatArray, IntArray
from hetcal._validate import (
    NAME_COLUMNS,
    check_bounds,
    check_choice,
    check_integer,
    check_labels,
    check_logits,
    check_names,
    check_number,
    check_probs,
    one_of,
)
from hetcal._warnings import CalibrationWarning, emit, quiet
from hetcal.calibrators import ClassWiseTemperatureScaling
from hetcal.diagnosis import Verdict, diagnose_top_label
from hetcal.metrics.binning import TopLabel
from hetcal.metrics.evaluation import as_plain
from hetcal.metrics.intervals import normal_quantile

__all__ = [
    "AmbiguousNoiseError",
    "Method",
    "Sensitivity",
    "TransitionEstimate",
    "estimate_transition",
    "sensitivity",
]

_MAX_PRINTED = 15  # maximum number of classes in printed tables
_MAX_ROWS = 60  # maximum number of classes in tables for notebooks
# The most frequent confusion of a class is shown if its probability is at least _MIN_CONFUSION, and at least
# _CONFUSION_FACTOR times the average probability of a confusion with one of the K − 1 other classes.
_CONFUSION_FACTOR, _MIN_CONFUSION = 2.0, 0.01
# noise rates at which the profile likelihood is computed
_RATES = np.concatenate([np.arange(0, 0.1, 0.005), np.arange(0.1, 0.905, 0.02)])
_PROFILE_ROUNDS = 3
_NO_TRIAL = 1e-3  # the expected number of wrong or of right labels counts as 0 if it is at most this
_FLIP_STEP = 0.0025  # tolerance of the noise rates at which verdicts change


class Method(StrEnum):
    """What the label noise is estimated from."""

    TRUSTED = "trusted rows"
    ANNOTATORS = "annotators"
    PREDICTIONS = "predictions"


class AmbiguousNoiseError(ValueError):
    """The labels do not determine the noise rates.

    Attributes
    ----------
    rates_low, rates_high : (K,) arrays
        For every class, the lowest and the highest noise rate that is consistent with the labels.
    """

    def __init__(self, message: str, rates_low: Float, rates_high: Float) -> None:
        super().__init__(message)
        self.rates_low, self.rates_high = rates_low, rates_high

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.rates_low, self.rates_high)


@dataclass(frozen=True, eq=False)
class TransitionEstimate(TableDisplay):
    """Result of :func:`estimate_transition`, which can be passed as ``transition=``.

    Attributes
    ----------
    transition : (K, K) array
        ``transition[i, j]`` is P(observed label j | true label i).
    rates : (K,) array
        Noise rate of every class, ``(1 − transition[k, k])·K/(K − 1)``. If labels are wrong because some of
        them were redrawn uniformly from all K classes, this is the probability that a label was redrawn. A
        redrawn label can be right by chance.
    rates_low, rates_high : (K,) arrays
        Approximate confidence intervals of the noise rates. The confidence level ``1 − level`` holds for each
        class alone, and only under the assumptions of the method. Intervals from annotators cover the true
        rate less often than stated in two cases: if few rows have at least three labels, and if the input is
        large. It is large if ``A·K²``, the total number of entries in the matrices of the A annotators,
        exceeds 2,000, or if ``n·(A·K²)²`` exceeds 2·10¹¹.
    method : Method
        What the transition was estimated from.
    share_wrong : float
        Estimated fraction of wrong labels among all labels.
    n, n_trusted : int
        Number of rows, and number of rows whose true label is known.
    level : float
        1 − confidence level of the intervals.
    class_names : tuple of K strings
    posterior : (n, K) array or None
        Probabilities of the true class of every row, given its observed labels and, if they were passed, its
        logits or probabilities. If the true class is known, its probability is 1. None if the method is
        ``Method.PREDICTIONS``. To calibrate a classifier, fit to the observed labels and pass `transition`.
        Fit to the posterior as soft labels only if :func:`estimate_transition` received the scores of this
        classifier, or if nearly every row has a class with a probability close to 1. An uncertain posterior
        that does not depend on the scores makes a classifier look over-confident.
    annotators : (A, K, K) array or None
        Transition matrix of every annotator, if there are annotators. `transition` then describes a label
        that is drawn at random from the labels of all annotators.
    """

    transition: Float
    rates: Float
    rates_low: Float
    rates_high: Float
    method: Method
    share_wrong: float
    n: int
    n_trusted: int
    level: float
    class_names: tuple[str, ...]
    posterior: Float | None = None
    annotators: Float | None = None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = self.transition if dtype is None else self.transition.astype(dtype, copy=False)
        return values.copy() if copy else values

    def to_dict(self) -> dict[str, Any]:
        """Return everything except the posterior as plain Python values, ready for JSON."""
        names = (f.name for f in fields(self) if f.name != "posterior")
        return {name: as_plain(getattr(self, name)) for name in names} | {"method": self.method.value}

    def __str__(self) -> str:
        rows = self._rows()
        width = 2 + max(5, *(len(name) for name, *_ in rows[:_MAX_PRINTED]))
        head = f"{'class':<{width}}{'noise rate':>10}  {'interval':<14}most frequent confusion"
        lines = [
            f"{name:<{width}}{rate:>10}  {interval:<14}{confusion}".rstrip()
            for name, rate, interval, confusion in rows[:_MAX_PRINTED]
        ]
        more = [f"and {len(rows) - _MAX_PRINTED} more"] if len(rows) > _MAX_PRINTED else []
        return "\n".join([self._title(), "", head, *lines, *more])

    def _title(self) -> str:
        source = {
            Method.TRUSTED: f"the true labels of {self.n_trusted:,} of {self.n:,} rows",
            Method.ANNOTATORS: f"{0 if self.annotators is None else len(self.annotators)} annotators of "
            f"{self.n:,} rows",
            Method.PREDICTIONS: f"the predictions of {self.n:,} rows",
        }[self.method]
        return (
            f"Label noise, estimated from {source}: about {percent(self.share_wrong)} of the labels are wrong"
        )

    def _rows(self) -> list[tuple[str, str, str, str]]:
        """Name, noise rate, interval and most frequent confusion of every class, highest noise rate first."""
        n_classes = len(self.rates)
        wrong = self.transition * (1 - np.eye(n_classes))
        average = wrong.sum(axis=1) / (n_classes - 1)
        result = []
        for k in np.argsort(-self.rates, kind="stable"):
            j = int(np.argmax(wrong[k]))
            is_frequent = wrong[k, j] >= max(_MIN_CONFUSION, _CONFUSION_FACTOR * average[k])
            confusion = f"{display_name(self.class_names[j])} ({wrong[k, j]:.1%})" if is_frequent else ""
            interval = f"{self.rates_low[k]:.3f}..{self.rates_high[k]:.3f}"
            result.append((display_name(self.class_names[k]), f"{self.rates[k]:.3f}", interval, confusion))
        return result

    def _tables(self) -> tuple[Table, ...]:
        rows = self._rows()
        columns = ("Class", "Noise rate", f"{100 * (1 - self.level):g}% interval", "Most frequent confusion")
        notes = hidden_classes(len(rows) - _MAX_ROWS, "to_dict() returns all")
        return (Table(self._title(), columns, rows[:_MAX_ROWS], notes, left=(columns[3],)),)


@dataclass(frozen=True, eq=False)
class Sensitivity(TableDisplay):
    """Result of :func:`sensitivity`.

    Attributes
    ----------
    rates : (R,) array
        Noise rates from 0 to the largest one. The noise rate ρ is the probability that a label is replaced
        with one drawn uniformly from all K classes. On average, a fraction ``ρ(K − 1)/K`` of the labels is
        then wrong.
    alpha : (R, K) array
        Inverse temperature of every class at each rate; `alpha` > 1 means that the class is under-confident.
        It is nan for classes that are never predicted.
    verdicts : tuple of R tuples of K Verdict
        Verdict on the confidences of every class, before calibration, at each rate.
    flip_rate : (K,) array
        Approximately the lowest noise rate that contradicts the verdict at rate 0. For a class that is over-
        or under-confident at rate 0, this is the lowest rate with another verdict. For any other class, it is
        the lowest rate at which the class is over- or under-confident. It is nan if there is no such rate.
    n : int
        Number of rows.
    level : float
        False discovery rate of the verdicts at each noise rate.
    class_names : tuple of K strings
    """

    rates: Float
    alpha: Float
    verdicts: tuple[tuple[Verdict, ...], ...]
    flip_rate: Float
    n: int
    level: float
    class_names: tuple[str, ...]

    @property
    def sentences(self) -> tuple[str, ...]:
        """One sentence per class about its verdict.

        An example is "cat: over-confident unless more than 12.0% of the labels are wrong".
        """
        return tuple(f"{display_name(name)}: {self.describe(k)}" for k, name in enumerate(self.class_names))

    def describe(self, k: int) -> str:
        """Return the sentence on class `k` without the name of the class."""
        kind = self.verdicts[0][k]
        has_limit = _is_flagged(kind) and not np.isnan(self.flip_rate[k])
        return f"{kind}{' ' if has_limit else ', '}{self.condition(k)}"

    def condition(self, k: int) -> str:
        """Say when the verdict on class `k` holds.

        An example is "unless more than 12.0% of the labels are wrong".
        """
        kind, rate = self.verdicts[0][k], float(self.flip_rate[k])
        if np.isnan(rate):
            start = "and neither over- nor under-confident " if self._differs(k) else ""
            return f"{start}even if {self._wrong(float(self.rates[-1]))} of the labels are wrong"
        if _is_flagged(kind):
            return f"unless more than {self._wrong(rate)} of the labels are wrong"
        later = next(row[k] for row in self.verdicts if _is_flagged(row[k]))
        return f"but {later} if more than {self._wrong(rate)} of the labels are wrong"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain Python values, ready for JSON; None replaces nan."""
        values = {f.name: as_plain(getattr(self, f.name)) for f in fields(self)}
        return values | {"sentences": list(self.sentences)}

    def __str__(self) -> str:
        shown = [self.sentences[k] for k in self._order()[:_MAX_PRINTED]]
        hidden = len(self.sentences) - len(shown)
        return "\n".join([self._title(), "", *shown, *([f"and {hidden} more"] if hidden else [])])

    def _differs(self, k: int) -> bool:
        """Whether some rate gives another verdict on class `k` than rate 0."""
        return any(row[k] is not self.verdicts[0][k] for row in self.verdicts)

    def _wrong(self, rate: float) -> str:
        return percent(rate * (1 - 1 / len(self.class_names)))

    def _title(self) -> str:
        limit = self._wrong(float(self.rates[-1]))
        return f"{self.n:,} rows: verdicts if up to {limit} of the labels are wrong, uniformly at random"

    def _order(self) -> list[int]:
        """Classes in ascending order of `flip_rate`; those without a flip rate come last."""
        return [int(k) for k in np.argsort(self.flip_rate, kind="stable")]

    def _tables(self) -> tuple[Table, ...]:
        columns = ("Class", "Without noise", "Holds up to", "α without noise", "α at most noise")
        rows: list[list[str | Cell]] = []
        for k in self._order()[:_MAX_ROWS]:
            rate, kind = float(self.flip_rate[k]), self.verdicts[0][k]
            holds = f"{self._wrong(rate)} wrong labels"
            if np.isnan(rate):
                holds = "too few rows at some rates" if self._differs(k) else "all rates"
            alphas = (f"{a:.3g}" if np.isfinite(a) else "" for a in (self.alpha[0, k], self.alpha[-1, k]))
            cell = Cell(kind.value, _TONES.get(kind, Tone.SECONDARY))
            rows.append([display_name(self.class_names[k]), cell, holds, *alphas])
        notes = hidden_classes(len(self.class_names) - _MAX_ROWS, "to_dict() returns all")
        return (Table(self._title(), columns, rows, notes, left=columns[1:3]),)


_TONES = {
    Verdict.OVER_CONFIDENT: Tone.OVER,
    Verdict.UNDER_CONFIDENT: Tone.UNDER,
    Verdict.CONSISTENT: Tone.GOOD,
}


def estimate_transition(
    logits: Any = None,
    labels: ArrayLike | None = None,
    *,
    probs: Any = None,
    trusted: Any = None,
    annotators: Any = None,
    class_names: ArrayLike | None = None,
    model: str | None = None,
    level: float = 0.05,
    smoothing: float = 1.0,
    max_width: float = 0.15,
) -> TransitionEstimate:
    """Estimate the transition matrix of the labels, P(observed label | true label).

    **From a few trusted rows** (`trusted`). For some rows, about 20 per class, both the observed and the true
    label are known. The noise and the calibration of the classifier are fitted jointly to these pairs of
    labels and to the observed labels of all other rows. The parameters are an inverse temperature per
    predicted class, and a bias and a noise rate per class. The logarithms of the inverse temperatures, the
    biases, and the logits of the noise rates have normal priors, one for each of these three kinds. The
    priors shrink the biases towards 0, and the parameters of the other kinds towards the mean of their kind.
    The variances of the priors are estimated from the data. Choose trusted rows at random, or by their
    observed label or prediction, but not by their true label.

    **From several annotators** (`annotators`). The EM algorithm of Dawid and Skene estimates a transition
    matrix for every annotator. It assumes that, given the true class, the annotators err independently. If
    `logits` or `probs` are passed, the calibrated predictions of the classifier are the prior of the true
    class. The temperature and the biases of this calibration are also estimated. At least K rows must have
    three or more labels. Two labels are enough if predictions are passed, and one is enough if `trusted` is
    passed.

    **From the predictions alone.** This method makes three assumptions:

    - A wrong label is equally likely to be any of the other classes.
    - In every predicted class, the calibrated log-odds of the confidence are a linear function of the
      uncalibrated ones.
    - The classifier has not learnt to imitate the noise, as it would from training labels with the same
      noise.

    Very confident predictions then disagree with their labels almost only because labels are wrong, which
    reveals the noise rate. However, wrong labels and miscalibrated confidences often look the same. The
    estimate is therefore accepted only if the likelihood-ratio interval of every noise rate is no wider than
    `max_width` and ends below 0.9. Otherwise, :class:`AmbiguousNoiseError` is raised.

    Parameters
    ----------
    logits : (n, K) scores of the rows
    labels : (n,) observed labels, as integers or names; left out if `annotators` are passed
    probs : (n, K) probabilities, instead of `logits`
        An array (n,) or a single column contains the probabilities of class 1.
    trusted : (n,) true labels, or a tuple of row numbers and their true labels
        In the first form, -1, NaN or None marks rows whose true label is unknown.
    annotators : (n, A) labels of A annotators; -1, NaN or None marks missing ones
    class_names : K strings; by default the column names of a data frame, or the class numbers
    model : {"full", "classwise"}, optional
        ``"classwise"`` spreads the wrong labels of every class evenly over the other classes. ``"full"``
        allows some wrong labels to be more likely than others. With trusted rows, it does so only if these
        rows clearly show it, and it shrinks the estimates towards equally likely wrong labels. With
        annotators, it estimates all entries, and `smoothing` controls the shrinkage. The default is
        ``"full"`` for trusted rows and annotators; from the predictions alone, only ``"classwise"`` is
        possible.
    level : 1 − confidence level of the intervals
    smoothing : weight of the shrinkage of the annotators' matrices, for `annotators`
        Every row of an annotator's matrix is shrunk towards the same row of the matrix of all annotators
        together. That row counts as this number of labels. 0 gives the algorithm of Dawid and Skene.
    max_width : widest interval of a noise rate that is accepted from predictions alone

    References
    ----------
    A. P. Dawid and A. M. Skene, *Maximum likelihood estimation of observer error-rates using the EM
    algorithm*, Applied Statistics 28, 1979.

    Examples
    --------
    >>> import numpy as np
    >>> import hetcal
    >>> example = hetcal.load_example("cifar10-noisy")
    >>> logits, true = example.val.logits, example.val.labels
    >>> rng = np.random.default_rng(1)
    >>> observed = hetcal.corruption.noisy_labels(true, [0, 1, 2, 3, 4], 0.2, 10, rng)
    >>> rows = rng.choice(5000, 200, replace=False)  # rows whose labels an expert checks
    >>> estimate = estimate_transition(logits, observed, trusted=(rows, true[rows]))
    >>> print(f"{estimate.rates[:5].mean():.1f} {estimate.rates[5:].mean():.1f} {estimate.share_wrong:.2f}")
    0.2 0.0 0.09
    >>> cal = hetcal.ClassWiseTemperatureScaling().fit(logits, observed, transition=estimate)

    Three annotators, one of whom often says 1:

    >>> votes = np.tile([[0, 0, 0], [0, 0, 1], [1, 1, 1], [1, 1, 1], [0, 0, 1]], (20, 1))
    >>> estimate_transition(annotators=votes).annotators[2].round(1)
    array([[0.3, 0.7],
           [0. , 1. ]])
    """
    level = check_number(level, "level", above=0, below=1)
    smoothing = check_number(smoothing, "smoothing", minimum=0)
    max_width = check_number(max_width, "max_width", above=0, maximum=1)
    if model is not None:
        check_choice(model, "model", ("full", "classwise"))
    is_classwise = model == "classwise"
    if annotators is not None:
        if labels is not None:
            raise ValueError(
                "labels must be left out if annotators are passed, got both; add the labels as a column of "
                "annotators"
            )
        return _from_annotators(
            logits, probs, annotators, trusted, class_names, level, smoothing, is_classwise
        )
    z, observed, space, _ = _check_rows(logits, labels, probs, class_names)
    if trusted is not None:
        true = _check_trusted(trusted, len(z), space)
        return _from_trusted(z, observed, true, space.names, level, is_classwise)
    if model == "full":
        raise ValueError(
            "model must be 'classwise' if neither trusted nor annotators are passed, got 'full'; pass one of "
            "them, or omit model"
        )
    return _from_predictions(z, observed, space.names, level, max_width)


def sensitivity(
    logits: Any = None,
    labels: ArrayLike | None = None,
    *,
    probs: Any = None,
    max_rate: float = 0.4,
    n_rates: int = 21,
    class_names: ArrayLike | None = None,
    level: float = 0.05,
    min_gap: float = 0.1,
    alpha_bounds: tuple[float, float] = (0.01, 100),
) -> Sensitivity:
    """Show how the verdict on every class depends on the share of wrong labels.

    Wrong labels make a calibrated classifier look over-confident. A verdict on its calibration therefore
    depends on the noise rate of the labels, which is often unknown. This function tries several noise rates,
    each for all classes at once. With the noise rate ρ, a prediction with a calibrated confidence p̂ agrees
    with its label with probability ``(1 − ρ)p̂ + ρ/K``. The verdicts are those of :func:`hetcal.diagnose` for
    these probabilities, with `min_gap` multiplied by ``1 − ρ``. The inverse temperatures are fitted by
    :class:`hetcal.ClassWiseTemperatureScaling` with the noise rate ρ.

    Parameters
    ----------
    logits : (n, K) scores of held-out rows
    labels : (n,) observed labels, as integers or names
    probs : (n, K) probabilities, instead of `logits`
        An array (n,) or a single column contains the probabilities of class 1.
    max_rate : largest noise rate
    n_rates : number of noise rates, evenly spaced from 0
    class_names : K strings; by default the column names of a data frame, or the class numbers
    level, min_gap : as in :func:`hetcal.diagnose`
    alpha_bounds : bounds of the inverse temperatures

    Examples
    --------
    >>> import numpy as np
    >>> logits = np.tile([[2.0, 0.0], [0.0, 2.0]], (200, 1))  # confidence 0.88 everywhere
    >>> labels = np.where(np.arange(400) % 2, 1, np.arange(400) % 10 // 8)  # class 0: 80% agree, class 1: all
    >>> result = sensitivity(logits, labels, class_names=["cat", "dog"])
    >>> print(result.sentences[0])
    cat: over-confident unless more than 3.7% of the labels are wrong
    >>> print(result.sentences[1])
    dog: under-confident, even if 20.0% of the labels are wrong
    """
    max_rate = check_number(max_rate, "max_rate", above=0, below=1)
    check_integer(n_rates, "n_rates", minimum=2)
    level = check_number(level, "level", above=0, below=1)
    min_gap = check_number(min_gap, "min_gap", above=0, below=1)
    bounds = check_bounds(alpha_bounds)
    z, observed, space, p = _check_rows(logits, labels, probs, class_names)
    confidence, predicted = top_label(p)
    n_classes, agrees = z.shape[1], predicted == observed

    def judge(rate: float) -> tuple[Verdict, ...]:
        expected = np.minimum((1 - rate) * confidence.astype(np.float64) + rate / n_classes, 1)
        top = TopLabel(expected, predicted, agrees, n_classes)
        # Label noise reduces the gap between confidence and accuracy by the factor 1 − ρ, so the smallest gap
        # to detect is reduced as well.
        result = diagnose_top_label(
            top,
            space.names,
            level=level,
            min_gap=min_gap * (1 - rate),
            n_redraws=1,
            rng=np.random.default_rng(0),
        )
        return tuple(c.kind for c in result.classes)

    rates = np.linspace(0, max_rate, n_rates)
    verdicts = tuple(judge(float(rate)) for rate in rates)
    alpha = np.stack([_alphas(z, observed, float(rate), bounds) for rate in rates])
    alpha[:, np.bincount(predicted, minlength=n_classes) == 0] = np.nan
    flips = _flip_rates(judge, rates, verdicts)
    return Sensitivity(rates, alpha, verdicts, flips, len(z), level, tuple(space.names))


def _alphas(z: FloatArray, observed: IntArray, rate: float, bounds: tuple[float, float]) -> Float:
    """Fit the inverse temperature of every class for one noise rate, (K,)."""
    calibrator = ClassWiseTemperatureScaling(alpha_bounds=bounds)
    # The fit warns about classes that are never predicted, whose results are not used. It also warns about
    # inverse temperatures at a bound, which are expected at some of the noise rates.
    with quiet(CalibrationWarning), quiet(RuntimeWarning):
        calibrator.fit(z, observed, transition=np.full(z.shape[1], rate) if rate else None)
    return np.asarray(calibrator.alpha_, np.float64)


def _flip_rates(judge: Any, rates: Float, verdicts: tuple[tuple[Verdict, ...], ...]) -> Float:
    """Find the lowest rate at which the verdict of rate 0 no longer holds, for every class, (K,).

    The rates are found by bisection between grid points. The result is nan if the verdict holds at all rates.
    """
    first = verdicts[0]

    def holds(kinds: Sequence[Verdict]) -> BoolArray:
        pairs = zip(first, kinds, strict=True)
        return np.array([now is old if _is_flagged(old) else not _is_flagged(now) for old, now in pairs])

    table = np.array([holds(row) for row in verdicts])
    flips = ~table.all(axis=0)
    index = np.argmin(table, axis=0)  # the first rate at which the verdict does not hold
    high, low = rates[index], rates[np.maximum(index - 1, 0)]
    while flips.any() and float((high - low)[flips].max()) > _FLIP_STEP:
        middle = (low + high) / 2
        for rate in np.unique(middle[flips]):
            is_valid = holds(judge(float(rate)))
            here = flips & (middle == rate)
            low = np.where(here & is_valid, rate, low)
            high = np.where(here & ~is_valid, rate, high)
    return np.where(flips, high, np.nan)


def _is_flagged(kind: Verdict) -> bool:
    return kind in (Verdict.OVER_CONFIDENT, Verdict.UNDER_CONFIDENT)


@dataclass(frozen=True)
class _Labelling:
    """Converter of the caller's labels to class numbers."""

    columns: list[str] | None
    class_names: Any
    names: list[str]
    n_classes: int | None

    def numbers(self, labels: Any, n_rows: int, name: str) -> IntArray:
        numbered = labels_by_number(labels, self.columns, self.class_names)
        has_names = self.class_names is not None or self.columns is not None
        return check_labels(
            numbered,
            n_rows=n_rows,
            n_classes=self.n_classes,
            class_names=self.names if has_names else None,
            name=name,
            names_remedy=NAME_COLUMNS,
        )


def _check_scores(
    logits: Any, probs: Any, labels: Any, class_names: Any
) -> tuple[FloatArray, _Labelling, FloatArray]:
    """Return validated logits, the converter of labels to class numbers, and probabilities."""
    probs = two_columns(probs, labels, class_names)
    table, _ = one_of(logits, probs)
    columns = column_names(table)
    if probs is None:
        z = check_logits(table)
        p = keep_decision(softmax(z), z.argmax(axis=1))
    else:
        p = check_probs(table)
        z = log_probs(p, probability_floor(p))
    shown = class_names_of(columns) if class_names is None and columns is not None else class_names
    names = check_names(shown, z.shape[1])
    return z, _Labelling(columns, class_names, names, z.shape[1]), p


def _check_rows(
    logits: Any, labels: Any, probs: Any, class_names: Any
) -> tuple[FloatArray, IntArray, _Labelling, FloatArray]:
    """Return validated logits, the labels as class numbers, the converter of labels, and probabilities."""
    z, space, p = _check_scores(logits, probs, labels, class_names)
    return z, space.numbers(labels, len(z), "labels"), space, p


def _check_trusted(trusted: Any, n_rows: int, space: _Labelling) -> IntArray:
    """True labels (n,), -1 where they are unknown."""
    if isinstance(trusted, tuple) and len(trusted) == 2 and all(np.ndim(part) == 1 for part in trusted):
        rows = as_array(trusted[0], "trusted")
        is_row = rows.dtype.kind in "iu" and (rows >= 0) & (rows < n_rows)
        if not np.all(is_row) or rows.size == 0 or len(np.unique(rows)) < rows.size:
            raise ValueError(
                f"trusted must contain distinct row numbers in 0..{n_rows - 1} if it is a tuple, got "
                f"{rows!r}; pass (row numbers, true labels)"
            )
        true = np.full(n_rows, -1, np.int64)
        true[rows] = space.numbers(trusted[1], len(rows), "trusted")
        return true
    true = _partial_labels(as_array(trusted, "trusted"), n_rows, space, "trusted")
    if not (true >= 0).any():
        raise ValueError(
            "trusted must contain the true label of at least one row, got only unknown ones; pass the true "
            "labels of about 20 rows per class"
        )
    return true


def _partial_labels(values: NDArray[Any], n_rows: int, space: _Labelling, name: str) -> IntArray:
    """Labels (n,) with -1 where they are missing."""
    if values.shape != (n_rows,):
        raise ValueError(
            f"{name} must have one entry per row ({n_rows}), got shape {values.shape}; mark unknown labels "
            "with -1"
        )
    missing = _is_missing(values)
    if missing.all():
        return np.full(n_rows, -1, np.int64)
    filled = values.copy()
    filled[missing] = values[~missing][0]
    if filled.dtype.kind == "O":
        filled = np.asarray(filled.tolist())
    return np.where(missing, -1, space.numbers(filled, n_rows, name))


def _is_missing(values: NDArray[Any]) -> BoolArray:
    """Whether each entry marks a missing label: -1, NaN, None, pandas' NA or an empty string."""
    if values.dtype.kind in "iu":
        return np.asarray(values == -1)
    if values.dtype.kind == "f":
        return np.asarray(np.isnan(values) | (values == -1))
    return np.array([_is_missing_value(v) for v in values.tolist()], bool)


def _is_missing_value(value: Any) -> bool:
    if value is None or (isinstance(value, str) and not value):
        return True
    try:
        return bool(value != value or value == -1)
    except TypeError:  # a comparison with pandas' NA gives NA, which is neither true nor false
        return True


def _from_trusted(
    z: FloatArray, observed: IntArray, true: IntArray, names: list[str], level: float, is_classwise: bool
) -> TransitionEstimate:
    width = normal_quantile(1 - level / 2)
    fit = fit_trusted(z, observed, true, width=width, shrink_to_uniform=is_classwise)
    n_trusted = int((true >= 0).sum())
    return _estimate(
        fit.transition,
        fit.low,
        fit.high,
        Method.TRUSTED,
        fit.posterior,
        names,
        level,
        len(z),
        n_trusted=n_trusted,
    )


def _from_annotators(
    logits: Any,
    probs: Any,
    annotators: Any,
    trusted: Any,
    class_names: Any,
    level: float,
    smoothing: float,
    is_classwise: bool,
) -> TransitionEstimate:
    array = as_array(annotators, "annotators")
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(
            f"annotators must have shape (n, A) with n and A at least 1, got shape {array.shape}; pass a row "
            "for each sample and a column for each annotator, and mark missing labels with -1"
        )
    z = None
    if logits is None and probs is None:
        names = (
            None
            if class_names is None
            else check_names(class_names, np.size(np.asarray(class_names, object)))
        )
        space = _Labelling(None, class_names, names or [], None if names is None else len(names))
    else:
        z, space, _ = _check_scores(logits, probs, None, class_names)
        if len(z) != len(array):
            raise ValueError(
                f"annotators must have as many rows as the scores ({len(z)}), got {len(array)}; pass the "
                "labels of the same rows"
            )
    columns = [
        _partial_labels(column, len(array), space, f"column {a} of annotators")
        for a, column in enumerate(array.T)
    ]
    votes = np.stack(columns, axis=1)
    n_classes = space.n_classes or int(votes.max()) + 1
    if n_classes < 2:
        raise ValueError(
            f"annotators must use at least two classes, got {max(n_classes, 0)}; pass class_names= to name "
            "all classes"
        )
    space = _Labelling(space.columns, class_names, space.names or check_names(None, n_classes), n_classes)
    true = None if trusted is None else _check_trusted(trusted, len(array), space)
    _refuse_few_votes(votes, n_classes, z is not None, true is not None)
    fit = fit_annotators(votes, n_classes, z, true, smoothing=smoothing, shrink_to_uniform=is_classwise)
    if not fit.has_converged:
        emit("EM did not converge; the transitions of the annotators may be inaccurate", RuntimeWarning)
    low, high = _binomial_interval(1 - np.diag(fit.transition), fit.n_effective, level)
    rates, scale = _rates(fit.transition), n_classes / (n_classes - 1)
    low, high = scale * low, np.minimum(scale * high, np.maximum(rates, 1))
    n_trusted = 0 if true is None else int((true >= 0).sum())
    return _estimate(
        fit.transition,
        low,
        high,
        Method.ANNOTATORS,
        fit.posterior,
        space.names,
        level,
        len(votes),
        n_trusted=n_trusted,
        annotators=fit.matrices,
    )


def _binomial_interval(rate: Float, n: Float, level: float) -> tuple[Float, Float]:
    """Clopper-Pearson intervals of rates observed in n trials, where n need not be a whole number."""
    n_wrong, n_right = n * rate, n * (1 - rate)
    low = special.betaincinv(np.maximum(n_wrong, _NO_TRIAL), n_right + 1, level / 2)
    high = special.betaincinv(n_wrong + 1, np.maximum(n_right, _NO_TRIAL), 1 - level / 2)
    return np.where(n_wrong > _NO_TRIAL, low, 0), np.where(n_right > _NO_TRIAL, high, 1)


def _refuse_few_votes(votes: IntArray, n_classes: int, has_scores: bool, has_trusted: bool) -> None:
    """Refuse annotations from which the accuracy of the annotators cannot be inferred."""
    needed = 1 if has_trusted else 2 if has_scores else 3
    per_row = (votes >= 0).sum(axis=1)
    n_enough = int((per_row >= needed).sum())
    if n_enough < n_classes:
        raise ValueError(
            f"annotators must contain at least {needed} label{'s' * (needed > 1)} in {n_classes} rows or "
            f"more, got {n_enough} such rows; with fewer labels, the accuracy of the annotators is unknown: "
            "pass trusted= with the true labels of some rows, or more labels"
        )


def _from_predictions(
    z: FloatArray, observed: IntArray, names: list[str], level: float, max_width: float
) -> TransitionEstimate:
    n_classes, predicted = z.shape[1], z.argmax(axis=1)
    agrees, x = predicted == observed, log_odds(z, predicted)
    p = softmax(z).astype(np.float64)
    p[np.arange(len(z)), predicted] = 0
    # Row k: distribution of the true class of the rows that are wrongly predicted as class k
    wrong = np.zeros((n_classes, n_classes))
    np.add.at(wrong, predicted, p)
    wrong /= np.maximum(wrong.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    rate = np.zeros(n_classes)
    for _ in range(_PROFILE_ROUNDS):
        loss = profile_rates(x, predicted, agrees, _RATES, n_classes, wrong @ rate)
        rate = _RATES[loss.argmin(axis=0)]
    rate, low, high = _profile_intervals(loss, level)
    is_predicted = np.bincount(predicted, minlength=n_classes) > 0
    low, high = np.where(is_predicted, low, 0), np.where(is_predicted, high, 1)
    _refuse_ambiguity(low, high, is_predicted, names, max_width)
    transition = np.eye(n_classes) + ((1 - 1 / n_classes) * rate)[:, None] * (
        uniform_shares(n_classes) - np.eye(n_classes)
    )
    return _estimate(transition, low, high, Method.PREDICTIONS, None, names, level, len(z), observed=observed)


def _profile_intervals(loss: Float, level: float) -> tuple[Float, Float, Float]:
    """Most likely noise rate, and bounds of its likelihood-ratio interval, (K,) each.

    `loss` (R, K) is the negative profile log-likelihood at the rates `_RATES`.
    """
    limit = loss.min(axis=0) + normal_quantile(1 - level / 2) ** 2 / 2
    inside = loss <= limit
    best, index = loss.argmin(axis=0), np.arange(loss.shape[1])
    first, last = inside.argmax(axis=0), len(_RATES) - 1 - inside[::-1].argmax(axis=0)

    def crossing(outer: IntArray, inner: IntArray) -> Float:
        """Rate between two grid points at which the profile, interpolated linearly, crosses the limit."""
        rise = loss[outer, index] - loss[inner, index]
        part = np.where(rise > 0, (limit - loss[inner, index]) / np.where(rise > 0, rise, 1), 0)
        return np.asarray(_RATES[inner] + np.clip(part, 0, 1) * (_RATES[outer] - _RATES[inner]))

    low = crossing(np.maximum(first - 1, 0), first)
    high = crossing(np.minimum(last + 1, len(_RATES) - 1), last)
    return _RATES[best], low, high


def _refuse_ambiguity(
    low: Float, high: Float, is_predicted: BoolArray, names: list[str], max_width: float
) -> None:
    """Raise an error unless the interval of every class is narrow and below the largest rate considered."""
    width = high - low
    is_bad = (width > max_width) | (high >= _RATES[-1])
    if not is_bad.any():
        return
    k = int(np.argmax(np.where(is_bad, width, -1)))
    name = display_name(names[k])
    detail = (
        f"any noise rate from {low[k]:.2f} to {high[k]:.2f} is consistent with the labels of {name!r}"
        if is_predicted[k]
        else f"{name!r} is never predicted"
    )
    raise AmbiguousNoiseError(
        "labels must determine the noise rate of every class if neither trusted nor annotators are passed, "
        f"got {int(is_bad.sum())} of {len(names)} classes whose rate is ambiguous ({detail}); wrong labels "
        "and miscalibration look alike in these classes: pass the true labels of about 20 rows per class as "
        "trusted=, or call hetcal.label_noise.sensitivity for results at a range of noise rates",
        low,
        high,
    )


def _rates(transition: Float) -> Float:
    n_classes = len(transition)
    return np.asarray((1 - np.diag(transition)) * n_classes / (n_classes - 1))


def _refuse_misnumbered(transition: Float, names: list[str]) -> None:
    """Raise an error if a label is more probable given another true class than given its own class."""
    likely = transition.argmax(axis=0)
    wrong = np.flatnonzero(likely != np.arange(len(transition)))
    if wrong.size:
        k = int(wrong[0])
        name, other = display_name(names[k]), display_name(names[likely[k]])
        raise ValueError(
            "every label must be more probable for rows of its own class than for rows of any other, got the "
            f"label {name!r} with probability {transition[k, k]:.2f} for rows of {name!r} and "
            f"{transition[likely[k], k]:.2f} for rows of {other!r}; check that all labels use the same class "
            "numbers"
        )


def _estimate(
    transition: Float,
    low: Float,
    high: Float,
    method: Method,
    posterior: Float | None,
    names: list[str],
    level: float,
    n: int,
    *,
    n_trusted: int = 0,
    observed: IntArray | None = None,
    annotators: Float | None = None,
) -> TransitionEstimate:
    """Build the result; raise an error if `transition` cannot be used to correct for label noise."""
    _refuse_misnumbered(transition, names)
    if posterior is not None:
        share = posterior.mean(axis=0)
    else:
        frequency = (
            np.bincount(observed, minlength=len(transition)) / n if observed is not None else np.zeros(0)
        )
        share = np.maximum(np.linalg.solve(transition.T, frequency), 0)
        share = share / share.sum()
    return TransitionEstimate(
        transition,
        _rates(transition),
        low,
        high,
        method,
        float(share @ (1 - np.diag(transition))),
        n,
        n_trusted,
        level,
        tuple(names),
        posterior,
        annotators,
    )
