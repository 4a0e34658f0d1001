"""How many validation rows are enough: learning curves by sub-sampling, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hetcal._typing import Float, FloatArray
from hetcal._validate import (
    CONVERT_PROBS,
    as_generator,
    check_labels,
    check_logits,
    check_names,
    check_positive,
)
from hetcal.calibrators import TemperatureScaling
from hetcal.planning import text
from hetcal.planning.advice import ClassAdvice, advise
from hetcal.planning.bound import NllBound, gamma_of, logit_norm
from hetcal.planning.curve import Curve, Interval, far_sizes, fit_curve, interval_of, last_above
from hetcal.planning.inputs import check_methods, check_options, check_range, check_sizes
from hetcal.planning.sampling import OnStep, Samples, take_samples

__all__ = ["Forecast", "MethodPlan", "ValidationPlan", "plan_validation_size"]


@dataclass(frozen=True)
class Forecast:
    """What one fit on `rows` rows is expected to score on fresh rows.

    Attributes
    ----------
    rows : int
    nll : Interval
        Held-out NLL. Its interval holds the luck of the rows that the plan was made from, which is common to
        all methods.
    gain : Interval or None
        NLL of the pooled temperature at the same size minus this one; the common luck cancels.
    max_ece_excess : Interval
        max-ECE over its noise floor, on as many rows as the plan holds out; the interval is over splits only.
    """

    rows: int
    nll: Interval
    gain: Interval | None
    max_ece_excess: Interval


@dataclass(frozen=True, eq=False)
class MethodPlan:
    """The learning curve of one method and what follows from it.

    Attributes
    ----------
    name : str
    sizes : (S,) rows fitted on
    nll, nll_error : (S,) mean held-out NLL and its standard error over the splits
    max_ece_excess, max_ece_error : (S,) the same for max-ECE over its noise floor
    limit : Interval
        NLL for ever more rows.
    rows_to_target : Interval
        Rows to reach the plan's target; inf for never.
    rows_to_limit : Interval
        Rows to come within the plan's tolerance of the method's own limit.
    beats_pooled_from : Interval or None
        Rows from which on the method beats the pooled temperature; inf for never, None for itself.
    bound : NllBound or None
        Theorem 4.1 for this method, None where it does not apply.
    curve, max_ece_curve : Curve
        Of the NLL minus the plan's `reference`, and of max-ECE.
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
class ValidationPlan:
    """What :func:`plan_validation_size` finds. ``print`` it for a table.

    Attributes
    ----------
    n, n_classes, n_repeats : int
        Rows at hand, classes, and splits made.
    target : float
        NLL to reach.
    tolerance : float
        Nats that count as near enough, to the best limit and for a class to be pooled.
    level : float
        Of the intervals.
    pooled : str or None
        Name of the method with one temperature for all.
    methods : tuple of MethodPlan
    classes : tuple of ClassAdvice
    reference : float
        NLL, on the rows at hand, of the temperature fitted on them.
    reference_draws : (B,) the same under bootstrap weights of the rows
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
        raise KeyError(f"method must be one of {', '.join(m.name for m in self.methods)}, got {name!r}")

    @property
    def best(self) -> MethodPlan:
        """The method with the lowest limit."""
        return min(self.methods, key=lambda m: m.limit.value)

    def predict(self, method: str, rows: int) -> Forecast:
        """Foretell what a fit of `method` on `rows` rows scores, by its curve."""
        chosen = self[method]
        least = int(chosen.sizes[0])
        if isinstance(rows, bool) or not isinstance(rows, int | np.integer) or rows < least:
            raise ValueError(
                f"rows must be an integer, {least} or more, the smallest size measured, got {rows!r}; "
                "plan with smaller sizes= to look there"
            )
        at = np.array([float(rows)])
        value, draws = float(chosen.curve.at(at)[0]), chosen.curve.sample(at, single=True)[:, 0]
        gain = None
        if self.pooled is not None:
            pooled = self[self.pooled].curve
            others = draws if method == self.pooled else pooled.sample(at, single=True)[:, 0]
            gain = interval_of(float(pooled.at(at)[0]) - value, others - draws, self.level)
        ece = chosen.max_ece_curve
        return Forecast(
            rows=int(rows),
            nll=interval_of(self.reference + value, self.reference_draws + draws, self.level),
            gain=gain,
            max_ece_excess=interval_of(float(ece.at(at)[0]), ece.sample(at)[:, 0], self.level),
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; None where no number of rows is enough and where a class has no rows."""
        return text.plan_dict(self)

    def __str__(self) -> str:
        return text.plan_text(self)


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
    """How many validation rows calibration needs, from those at hand.

    The rows are shuffled `n_repeats` times; every method is fitted on the first m of them and judged on the
    rest, for several m. A curve ``c + a/m``, with a term for a slow or a fast start where the points ask for
    it, goes through the means and on to larger sizes. Intervals come from a bootstrap of rows and splits.

    Parameters
    ----------
    logits : (n, K) scores of validation rows
    labels : (n,) true classes
    target : float, optional
        NLL to reach. Default: within `tolerance` of the lowest limit among the methods.
    methods : mapping of name to calibrator
        Default: TS, and CTS with Γ = 0.1, shrunk and free. ``"Auto": AutoCalibrator()`` can be added, and
        makes the plan take minutes.
    sizes : ascending integers
        Rows to fit on, at most 80% of all. Default: ten, from two rows a class to 80%.
    n_repeats : int
        Splits, 5 or more. Five of them hold out every row once.
    tolerance : float
        Nats that count as near enough: to the best limit, to a method's own limit, and for a class to be
        pooled.
    level : of the intervals, and confidence of the advice per class
    class_names : K texts
    alpha_range, delta : for the bound of Theorem 4.1 that is shown beside
    n_bins : of max-ECE
    rng : generator or seed
    max_seconds : float, optional
        Stop splitting when the next split would end later, but not before five; the result then depends on
        the machine.
    on_step : called with the number of fits done and to do, in units of one size in one split

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
    z = check_logits(logits, probs_remedy=CONVERT_PROBS)
    y = check_labels(labels, n_rows=len(z), n_classes=z.shape[1], table=logits)
    names = check_names(class_names, z.shape[1])
    chosen = check_methods(methods)
    check_options(target, n_repeats, tolerance, level, max_seconds)
    check_positive(n_bins, "n_bins")
    bounds = _bounds(z, chosen, alpha_range, delta)
    generator = as_generator(rng)
    samples = take_samples(
        z, y, chosen, check_sizes(sizes, *z.shape), n_repeats=int(n_repeats), n_bins=n_bins, rng=generator,
        max_seconds=max_seconds, on_step=on_step,
    )  # fmt: skip
    pooled = next((k for k, c in chosen.items() if isinstance(c, TemperatureScaling)), None)
    goal, plans = _read(samples, bounds, pooled, target, tolerance, level, generator)
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


def _bounds(
    z: FloatArray, methods: Mapping[str, Any], alpha_range: tuple[float, float], delta: float
) -> dict[str, NllBound | None]:
    """Theorem 4.1 for each method it speaks about; its arguments are checked before the long part."""
    alpha_range, norm = check_range(alpha_range), logit_norm(z)
    made: dict[str, NllBound | None] = dict.fromkeys(methods)
    for name, method in methods.items():
        gamma = gamma_of(method)
        if gamma is not None and norm > 0:
            bound = NllBound(z.shape[1], gamma, norm, alpha_range, delta)
            bound.excess(len(z))
            made[name] = bound
    return made


def _read(
    samples: Samples,
    bounds: Mapping[str, NllBound | None],
    pooled: str | None,
    target: float | None,
    tolerance: float,
    level: float,
    rng: np.random.Generator,
) -> tuple[float, tuple[MethodPlan, ...]]:
    """Goal, as NLL minus the reference, and the methods' curves and answers."""
    names = list(bounds)
    curves = [
        fit_curve(samples.sizes, *pair, rng, floor=samples.floor, floors=samples.floor_draws)
        for pair in zip(samples.nll, samples.nll_draws, strict=True)
    ]
    goal, goal_draws = _goal(curves, names, samples, target, tolerance)
    plans = []
    for i, name in enumerate(names):
        other = None if pooled in (None, name) else curves[names.index(str(pooled))]
        ece = fit_curve(samples.sizes, samples.max_ece[i], samples.max_ece_draws[i], rng)
        answers = _answers(curves[i], other, samples, (goal, goal_draws), tolerance, level)
        plans.append(MethodPlan(name, *_points(samples, i), *answers, bounds[name], curves[i], ece))
    return goal, tuple(plans)


def _points(samples: Samples, i: int) -> tuple[Float, Float, Float, Float, Float]:
    """Sizes, then mean and standard error of the NLL and of max-ECE, at every size."""
    root = math.sqrt(samples.nll.shape[2])
    nll, ece = samples.nll[i], samples.max_ece[i]
    nll_error, ece_error = (a.std(axis=1, ddof=1) / root for a in (nll, ece))
    return samples.sizes, samples.reference + nll.mean(axis=1), nll_error, ece.mean(axis=1), ece_error


def _goal(
    curves: list[Curve], names: list[str], samples: Samples, target: float | None, tolerance: float
) -> tuple[float, Float]:
    """NLL to reach minus the reference, and the same for every draw."""
    limits = [curve.limit for curve in curves]
    if target is None:
        lowest = np.min([curve.draws[:, 0] for curve in curves], axis=0)
        return min(limits) + tolerance, lowest + tolerance
    best = int(np.argmin(limits))
    if target < samples.reference + limits[best]:
        raise ValueError(
            f"target must be at least {samples.reference + limits[best]:.4f}, the NLL that {names[best]} "
            f"tends to with ever more rows, got {target}; choose a higher target"
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
    """Limit, rows to the goal, rows to the own limit, rows from which on `pooled` is beaten."""
    m = far_sizes(float(samples.sizes[0]))
    height = curve.traced(m)

    def rows(goal: Float) -> Interval:
        found = last_above(height - goal, m)
        return interval_of(float(found[0]), found[1:], level)

    own = np.concatenate([[curve.limit], curve.draws[:, 0]])
    beats = None if pooled is None else rows(pooled.traced(m))
    limit = interval_of(samples.reference + curve.limit, samples.reference_draws + curve.draws[:, 0], level)
    goal = np.concatenate([[goals[0]], goals[1]])
    return limit, rows(goal[:, None]), rows(own[:, None] + tolerance), beats
