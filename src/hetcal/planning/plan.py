"""How many validation rows are enough: learning curves by subsampling, and the numbers of rows they imply."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hetcal._tables import Table, TableDisplay
from hetcal._typing import Float, FloatArray, IntArray
from hetcal._validate import (
    as_generator,
    check_integer,
    check_labelled,
    check_names,
    check_number,
)
from hetcal.calibrators import ClassWiseTemperatureScaling, TemperatureScaling
from hetcal.planning import text
from hetcal.planning.bounds import NllBound, gamma_of, logit_norm
from hetcal.planning.class_advice import ClassAdvice, advise
from hetcal.planning.learning_curve import Curve, Interval, far_sizes, fit_curve, interval_of, last_above
from hetcal.planning.subsampling import HELD_OUT, MIN_REPEATS, OnStep, Samples, take_samples

__all__ = ["Forecast", "MethodPlan", "ValidationPlan", "check_methods", "plan_validation_size"]

_N_SIZES = 10  # largest default number of sizes
_MIN_SIZES = 5  # smallest default number of sizes
_MIN_RATIO = 1.25  # smallest ratio of two consecutive default sizes, unless there are only _MIN_SIZES
_MIN_SIZE = 20  # smallest default size


@dataclass(frozen=True)
class Forecast:
    """Predicted scores, on new data, of one calibrator fitted on `rows` rows.

    Attributes
    ----------
    rows : int
    nll : Interval
        NLL. The interval includes the sampling error of the rows that the plan is based on, which is common
        to all methods.
    gain : Interval or None
        NLL of the method with one temperature for all classes, fitted on the same number of rows, minus this
        NLL. The common sampling error cancels. None if the plan has no such method.
    max_ece_excess : Interval
        max-ECE minus its noise floor, for a test set of a fifth of the available rows. This is the part that
        each split holds out. The interval reflects the variation over splits only.
    """

    rows: int
    nll: Interval
    gain: Interval | None
    max_ece_excess: Interval


@dataclass(frozen=True, eq=False)
class MethodPlan:
    """The learning curves of one method, and the numbers of rows they imply.

    Attributes
    ----------
    name : str
    sizes : array of shape (S,)
        Numbers of rows that the method was fitted on.
    nll, nll_error : arrays of shape (S,)
        Held-out NLL, estimated as the plan's `reference` plus the mean difference from the reference on
        held-out rows, and the standard error of this mean over the splits.
    max_ece_excess, max_ece_error : arrays of shape (S,)
        Mean max-ECE minus its noise floor, and its standard error.
    limit : Interval
        NLL in the limit of infinitely many rows.
    rows_to_target : Interval
        Rows needed to reach the plan's target; inf if it is out of reach.
    rows_to_limit : Interval
        Rows needed for an NLL within the plan's tolerance of the method's own limit.
    beats_pooled_from : Interval or None
        Number of rows beyond which the NLL stays at or below that of the method with one temperature for all
        classes; inf if there is no such number. None for that method itself, or if the plan has no such
        method.
    bound : NllBound or None
        Bound of Theorem 4.1 for this method; None if the theorem does not apply, or if every row of logits
        is constant.
    curve, max_ece_curve : Curve
        Learning curve of the NLL minus the plan's `reference`, and that of max-ECE minus its noise floor.
    """

    name: str
    sizes: Float
    nll: Float
    nll_error: Float
    max_ece_excess: Float
    max_ece_error: Float
    limit: Interval
    rows_to_target: Interval
    rows_to_limit: Interval
    beats_pooled_from: Interval | None
    bound: NllBound | None
    curve: Curve = field(repr=False)
    max_ece_curve: Curve = field(repr=False)


@dataclass(frozen=True, eq=False)
class ValidationPlan(TableDisplay):
    """Result of :func:`plan_validation_size`; ``print``, Rich and notebooks show the summary and tables.

    Attributes
    ----------
    n, n_classes, n_repeats : int
        Numbers of available rows, classes and splits.
    target : float
        NLL to reach.
    tolerance : float
        Difference in NLL, in nats, that is considered negligible.
    level : float
        Confidence level of the intervals.
    pooled : str or None
        Name of the first method that is a :class:`hetcal.TemperatureScaling`, which fits one temperature for
        all classes; None if there is none.
    methods : tuple of MethodPlan
    classes : tuple of ClassAdvice
    reference : float
        NLL of one temperature for all classes, fitted on all rows and evaluated on them.
    reference_draws : array of shape (B,)
        The reference for each of B bootstrap draws of the rows.
    """

    n: int
    n_classes: int
    n_repeats: int
    target: float
    tolerance: float
    level: float
    pooled: str | None
    methods: tuple[MethodPlan, ...]
    classes: tuple[ClassAdvice, ...]
    reference: float
    reference_draws: Float = field(repr=False)

    def __getitem__(self, name: str) -> MethodPlan:
        for method in self.methods:
            if method.name == name:
                return method
        names = ", ".join(m.name for m in self.methods)
        raise KeyError(f"method must be one of {names}, got {name!r}; check the spelling")

    @property
    def best(self) -> MethodPlan:
        """The method with the lowest NLL in the limit of infinitely many rows."""
        return min(self.methods, key=lambda m: m.limit.value)

    @property
    def summary(self) -> str:
        """One sentence: whether the rows are enough, and for which classes more are needed."""
        return text.summary_text(self)

    def predict(self, method: str, rows: int) -> Forecast:
        """Use the learning curves to predict the scores of `method` after a fit on `rows` rows."""
        plan = self[method]
        remedy = "for predictions at fewer rows, pass smaller sizes= to plan_validation_size"
        rows = check_integer(rows, "rows", minimum=int(plan.sizes[0]), remedy=remedy)
        m = np.array([float(rows)])
        nll, nll_draws = float(plan.curve.at(m)[0]), plan.curve.sample(m, single=True)[:, 0]
        gain = None
        if self.pooled is not None:
            pooled = self[self.pooled].curve
            pooled_draws = nll_draws if method == self.pooled else pooled.sample(m, single=True)[:, 0]
            gain = interval_of(float(pooled.at(m)[0]) - nll, pooled_draws - nll_draws, self.level)
        max_ece = plan.max_ece_curve
        return Forecast(
            rows=rows,
            nll=interval_of(self.reference + nll, self.reference_draws + nll_draws, self.level),
            gain=gain,
            max_ece_excess=interval_of(float(max_ece.at(m)[0]), max_ece.sample(m)[:, 0], self.level),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-compatible values; None replaces infinite and undefined numbers."""
        return text.plan_dict(self)

    def to_text(self, *, theory: bool = False) -> str:
        """Return the summary and the tables as text, with the bound of Theorem 4.1 if `theory` is true."""
        return text.plan_text(self, theory=theory)

    def __str__(self) -> str:
        return self.to_text()

    def _tables(self) -> tuple[Table, ...]:
        return text.plan_tables(self)


def plan_validation_size(
    logits: ArrayLike,
    labels: ArrayLike,
    target: float | None = None,
    *,
    methods: Mapping[str, Any] | None = None,
    sizes: ArrayLike | None = None,
    n_repeats: int = 20,
    tolerance: float = 0.01,
    level: float = 0.95,
    class_names: ArrayLike | None = None,
    alpha_range: tuple[float, float] = (0.1, 10.0),
    delta: float = 0.05,
    n_bins: int = 15,
    rng: np.random.Generator | int = 0,
    max_seconds: float | None = None,
    on_step: OnStep | None = None,
) -> ValidationPlan:
    """Estimate how many validation rows calibration needs.

    The rows are shuffled `n_repeats` times. For several sizes m, every method is fitted on the first m rows
    and evaluated on other rows. A curve ``c + a/m`` is fitted to the mean scores of all sizes and
    extrapolated. If the data require it, the curve has another parameter for a slow start,
    ``c + a/(m + m₀)``, or another term for a fast start, ``c + a/m + d·exp(−m/τ)``. Intervals come from a
    bootstrap of rows and splits.

    Parameters
    ----------
    logits : array of shape (n, K)
        Logits of validation rows.
    labels : array of shape (n,)
        True classes, as integers or class names.
    target : float, optional
        NLL to reach. By default, the lowest limit of any method plus `tolerance`.
    methods : mapping of str to calibrator, optional
        By default, temperature scaling (TS) and three forms of class-wise temperature scaling (CTS): with
        Γ = 0.1, with shrinkage, and unconstrained. With ``"Auto": AutoCalibrator()``, the plan takes minutes.
    sizes : array of int, optional
        Three or more increasing numbers of rows to fit on, from 2 rows to 80% of the rows. By default, ten
        sizes, evenly spaced in log m. The smallest is two rows per class, but at least 20 rows, and the
        largest is 80% of the rows. If each size would then be less than 25% larger than the one before,
        there are fewer sizes, but at least five.
    n_repeats : int
        Number of splits, at least 5. Five splits hold out every row once.
    tolerance : float
        Difference in NLL, in nats, that is considered negligible. It is used for the default target, for the
        distance of a method from its own limit, and for the gain of a separate temperature for a class.
    level : float
        Confidence level of the intervals and of the advice per class.
    class_names : sequence of str, optional
        K names, by default the column names of a data frame, or the class numbers.
    alpha_range, delta : (float, float) and float
        Bounds of α in Theorem 4.1, and the largest probability with which its bound may fail.
    n_bins : int
        Number of confidence bins for max-ECE.
    rng : numpy.random.Generator or int
        Random generator or seed.
    max_seconds : float, optional
        Time limit for the fits on subsamples, in seconds. After five or more splits, no further split is
        started if it is expected to exceed the limit. The result then depends on the speed of the machine.
    on_step : callable, optional
        Called as ``on_step(completed, total)`` after each step. A step is one size in one split.

    Returns
    -------
    ValidationPlan

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(600, 3)) + 4 * np.eye(3)[rng.integers(3, size=600)]
    >>> sharp = np.array([0.4, 0.4, 1.5])[z.argmax(axis=1), None]  # true α by predicted class
    >>> labels = (sharp * z + rng.gumbel(size=z.shape)).argmax(axis=1)
    >>> plan = plan_validation_size(z, labels)
    >>> plan["CTS"].rows_to_limit.value < 600, plan["TS"].rows_to_target.value
    (True, inf)
    >>> [c.advice for c in plan.classes]
    ['own temperature', 'own temperature', 'own temperature']
    """
    z, y, given_names = check_labelled(logits, labels, class_names)
    names = check_names(given_names, z.shape[1])
    calibrators = check_methods(methods)
    level = check_number(level, "level", above=0, below=1)
    n_repeats = check_integer(n_repeats, "n_repeats", minimum=MIN_REPEATS, remedy="20 is the default")
    n_bins = check_integer(n_bins, "n_bins", minimum=1)
    tolerance = check_number(tolerance, "tolerance", above=0, remedy="0.01 is the default")
    target = None if target is None else check_number(target, "target", above=0)
    max_seconds = None if max_seconds is None else check_number(max_seconds, "max_seconds", above=0)
    bounds = _bounds(z, calibrators, _check_pair(alpha_range), delta)
    generator = as_generator(rng)
    samples = take_samples(
        z, y, calibrators, _check_sizes(sizes, *z.shape), n_repeats=n_repeats, n_bins=n_bins, rng=generator,
        max_seconds=max_seconds, on_step=on_step,
    )  # fmt: skip
    pooled = next((name for name, c in calibrators.items() if isinstance(c, TemperatureScaling)), None)
    goal, plans = _method_plans(samples, bounds, pooled, target, tolerance, level, generator)
    return ValidationPlan(
        n=len(z),
        n_classes=z.shape[1],
        n_repeats=samples.nll.shape[2],
        target=samples.reference + goal,
        tolerance=tolerance,
        level=level,
        pooled=pooled,
        methods=plans,
        classes=advise(z, y, names, min_gain=tolerance, level=level),
        reference=samples.reference,
        reference_draws=samples.reference_draws,
    )


def check_methods(methods: Mapping[str, Any] | None) -> dict[str, Any]:
    """Validate `methods` and return the calibrators by name; None gives the default calibrators."""
    if methods is None:
        return {
            "TS": TemperatureScaling(),
            "CTS Γ=0.1": ClassWiseTemperatureScaling(0.1),
            "CTS bayes": ClassWiseTemperatureScaling("bayes"),
            "CTS": ClassWiseTemperatureScaling(),
        }
    if not isinstance(methods, Mapping):
        raise TypeError(f"methods must map names to calibrators, got {methods!r}; pass a dict")
    if not methods:
        raise ValueError("methods must contain at least one calibrator, got an empty mapping; add one")
    return {str(name): method for name, method in methods.items()}


def _check_pair(alpha_range: Any) -> tuple[float, float]:
    try:
        low, high = (float(end) for end in alpha_range)
    except (TypeError, ValueError):
        raise TypeError(
            f"alpha_range must be a pair of numbers (lower, upper), got {alpha_range!r}; "
            "(0.1, 10.0) is the default"
        ) from None
    return low, high


def _check_sizes(sizes: ArrayLike | None, n_rows: int, n_classes: int) -> IntArray:
    largest = n_rows - math.ceil(HELD_OUT * n_rows)
    if sizes is None:
        smallest = max(2 * n_classes, _MIN_SIZE)
        if largest < 2 * smallest:
            raise ValueError(
                f"logits must have at least {math.ceil(2 * smallest / (1 - HELD_OUT)):,} rows for a learning "
                f"curve of {n_classes} classes, got {n_rows:,}; collect more rows, or call "
                "plan_validation_size with smaller sizes"
            )
        n_sizes = 1 + int(math.log(largest / smallest) / math.log(_MIN_RATIO))
        n_sizes = min(max(n_sizes, _MIN_SIZES), _N_SIZES)
        return np.unique(np.geomspace(smallest, largest, n_sizes).round().astype(np.int64))
    array = np.asarray(sizes)
    if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) < 3 or (np.diff(array) <= 0).any():
        raise ValueError(
            f"sizes must be three or more strictly increasing integers, got {sizes!r}; "
            "omit sizes for the default"
        )
    if array[0] < 2 or array[-1] > largest:
        raise ValueError(
            f"sizes must be between 2 and {largest}, got {array[0]} to {array[-1]}; "
            "choose sizes in this range, since a fifth of the rows is held out for evaluation"
        )
    return array.astype(np.int64)


def _bounds(
    z: FloatArray, methods: Mapping[str, Any], alpha_range: tuple[float, float], delta: float
) -> dict[str, NllBound | None]:
    """Bound of Theorem 4.1 for each method; None if the theorem does not apply or every row is constant."""
    norm = logit_norm(z)
    bounds: dict[str, NllBound | None] = dict.fromkeys(methods)
    for name, method in methods.items():
        gamma = gamma_of(method)
        if gamma is not None and norm > 0:
            bounds[name] = bound = NllBound(z.shape[1], gamma, norm, alpha_range, delta)
            bound.excess(len(z))  # raises an error for invalid arguments before the expensive part
    return bounds


def _method_plans(
    samples: Samples,
    bounds: Mapping[str, NllBound | None],
    pooled: str | None,
    target: float | None,
    tolerance: float,
    level: float,
    rng: np.random.Generator,
) -> tuple[float, tuple[MethodPlan, ...]]:
    """Return the target NLL minus the reference NLL (see `Samples`), and the plan of each method."""
    names = list(bounds)
    curves = {
        name: fit_curve(samples.sizes, nll, draws, rng, floor=samples.floor, floors=samples.floor_draws)
        for name, nll, draws in zip(names, samples.nll, samples.nll_draws, strict=True)
    }
    goal, goal_draws = _goal(curves, samples, target, tolerance)
    plans = []
    for i, name in enumerate(names):
        pooled_curve = None if pooled in (None, name) else curves[str(pooled)]
        max_ece_curve = fit_curve(samples.sizes, samples.max_ece[i], samples.max_ece_draws[i], rng)
        answers = _answers(curves[name], pooled_curve, samples, (goal, goal_draws), tolerance, level)
        points = _points(samples, i)
        plans.append(MethodPlan(name, *points, *answers, bounds[name], curves[name], max_ece_curve))
    return goal, tuple(plans)


def _points(samples: Samples, i: int) -> tuple[Float, Float, Float, Float, Float]:
    """The attributes `sizes` to `max_ece_error` of :class:`MethodPlan`, in their order there."""
    root = math.sqrt(samples.nll.shape[2])
    nll, max_ece = samples.nll[i], samples.max_ece[i]
    nll_error, max_ece_error = (values.std(axis=1, ddof=1) / root for values in (nll, max_ece))
    return samples.sizes, samples.reference + nll.mean(axis=1), nll_error, max_ece.mean(axis=1), max_ece_error


def _goal(
    curves: Mapping[str, Curve], samples: Samples, target: float | None, tolerance: float
) -> tuple[float, Float]:
    """Target NLL minus the reference NLL: the estimate, and the value in each bootstrap draw, (B,)."""
    best = min(curves, key=lambda name: curves[name].limit)
    lowest = curves[best].limit
    if target is None:
        lowest_draws = np.min([curve.draws[:, 0] for curve in curves.values()], axis=0)
        return lowest + tolerance, lowest_draws + tolerance
    if target < samples.reference + lowest:
        rounded_up = math.ceil(1e4 * (samples.reference + lowest)) / 1e4
        raise ValueError(
            f"target must be at least {rounded_up:.4f}, the limit of the NLL of {best} for "
            f"infinitely many rows, got {target}; choose a higher target"
        )
    return target - samples.reference, target - samples.reference_draws


def _answers(
    curve: Curve,
    pooled: Curve | None,
    samples: Samples,
    goals: tuple[float, Float],
    tolerance: float,
    level: float,
) -> tuple[Interval, Interval, Interval, Interval | None]:
    """Return four intervals: the limit, and three numbers of rows.

    The numbers are the rows needed to reach the target, to come within `tolerance` of the limit, and to beat
    the curve `pooled`. The last interval is None if `pooled` is None.
    """
    m = far_sizes(float(samples.sizes[0]))
    height = curve.interpolated(m)

    def rows_to(goal: Float) -> Interval:
        rows = last_above(height - goal, m)
        return interval_of(float(rows[0]), rows[1:], level)

    limits = np.concatenate([[curve.limit], curve.draws[:, 0]])
    beats_pooled = None if pooled is None else rows_to(pooled.interpolated(m))
    limit = interval_of(samples.reference + curve.limit, samples.reference_draws + curve.draws[:, 0], level)
    goal = np.concatenate([[goals[0]], goals[1]])
    return limit, rows_to(goal[:, None]), rows_to(limits[:, None] + tolerance), beats_pooled
