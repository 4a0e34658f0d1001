"""Matrix scaling: the calibrated logit of a class may depend on the logits of all classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np

from hetcal._numeric.clipping import fit_clipped
from hetcal._numeric.curves import Curves
from hetcal._numeric.evidence import Penalised, Problem, fit_precisions, minimise_penalised
from hetcal._numeric.matrix import Center, Inputs, MatrixModel, prior_precision
from hetcal._numeric.source import MemorySource, Source
from hetcal._numeric.trust_region import is_error_free
from hetcal._typing import Float
from hetcal._validate import check_choice, check_flag, check_integer, check_number
from hetcal._warnings import warn_separable
from hetcal.calibrators.base import Calibrator
from hetcal.calibrators.temperature import name_whole_data
from hetcal.export import maps

__all__ = ["MatrixScaling"]

_PARTS = {
    "linear": ("diagonal", "off-diagonal", "bias"),
    "spline": ("diagonal", "off-diagonal", "bias", "knots at 0", "broad features", "fine features"),
}
_Features = Literal["linear", "spline"]
_SAMPLE = 50_000  # about this many rows are sampled; the fit to all rows starts from the fit to the sample
_MIN_RATIO = 4  # with fewer than `_MIN_RATIO * _SAMPLE` rows, no sample is used
_PERFECT = 1e-8  # a mean loss this small means separable rows, whose parameters would grow without bound
_FACTORS = (1 / 16, 1 / 4, 1.0, 4.0, 16.0)  # "cv" tries these multiples of each penalty of "bayes"


class MatrixScaling(Calibrator):
    """``softmax(α (I + D) z + b)``: the calibrated logit of a class may depend on the logits of all classes.

    α is the best single inverse temperature, and z are the logits. First, α z is transformed as described
    under `center` and `limit_`. The diagonal of D, its other entries and the biases b are shrunk towards
    zero, each of these three parts with its own penalty. By default, a small or uninformative validation set
    therefore gives almost temperature scaling. Decisions may change unless `keep_decision` is True.

    Parameters
    ----------
    penalty : "bayes", "cv", or numbers
        "bayes" chooses penalties that approximately maximise the evidence (the marginal likelihood). "cv"
        starts from these penalties and changes one after the other. For each, it tries the factors 1/16, 1/4,
        1, 4 and 16, and keeps the one with the lowest cross-validated NLL. A single number is the penalty of
        all parts. Three numbers p are the penalties of the diagonal, of the other entries and of the biases:
        ``p₁/2 · ‖diag D‖² + p₂/2 · ‖D − diag D‖² + p₃/2 · ‖b‖²`` is added to the mean NLL. With
        ``features="spline"``, there are six penalties; see the notes. ``inf`` fixes a part at zero.
    center : "logsumexp" or "mean"
        What is subtracted from each row of α z: ``log Σ exp`` of the row, or its mean. Adding a constant to
        all logits of a row then changes nothing. With "logsumexp", α z becomes log-probabilities, as in
        Dirichlet calibration.
    features : "linear" or "spline"
        With "spline", each class also has a curve, which is added to its calibrated logit. The curve is a
        smooth function of t, the log-odds of the class against all others at the best single temperature.
        Curves correct errors that no linear function of the logits can, such as those of naive Bayes and
        nearest neighbours.
    keep_decision : bool
        Whether to preserve the predicted class ŷ by computing ``softmax(min(u, u_ŷ))``, where u are the
        calibrated logits. This affects only rows in which another class would overtake ŷ; that class becomes
        as likely as ŷ.
    cv : int, number of folds for ``penalty="cv"``

    Attributes
    ----------
    alpha_ : float, α
    limit_ : float, the largest distance of an entry of α z below the maximum of its row
        Lower entries are raised to this distance. The limit is at most ``log(K n)``, where n is the number of
        rows (with weights, their effective number), because n rows cannot distinguish probabilities below
        ``1/(K n)``. It can be lower if the logits give probabilities below about 1e-12, and clipping such
        logits clearly lowers the NLL of temperature scaling; α is then the best inverse temperature of the
        clipped logits. A logit more than 10,000 below the maximum is not raised, so its class stays
        practically impossible.
    change_ : (K, K) array, D
    bias_ : (K,) array, b
    curves_ : dict of the arrays "knots", "widths" and "weights", (K, m) each, or None
        The curve of class k is ``Σ_j weights[k, j] · s(t, knots[k, j], widths[k, j])`` with
        ``s(t, κ, h) = h log(1 + e^v) + h log(1 + e^−v)`` and ``v = (t − κ)/h``, where t is clipped to
        ±`limit_`.
        None if `features` is "linear".
    penalty_ : (3,) or, with curves, (6,) array
        The penalties of the diagonal, the other entries and the biases, and the three of the curves.

    Notes
    -----
    A curve is a weighted sum of 13 features, smooth versions of ``|t − κ|``. One has its knot κ at 0. For two
    classes, it gives, together with D and b, the functions of beta calibration (Kull et al., 2017). Four
    broad features and eight fine ones have knots at quantiles of t. Their widths are 0.7 and 0.2 standard
    deviations of t, but at least 0.07 and 0.02. In the quantiles and the standard deviation, the weight of a
    row is about p (1 − p), where p is the probability of the class, because rows with p near 0 or 1 say
    little about the curve. The last three penalties are those of the feature with knot 0, of the broad and of
    the fine features. They refer to features that are scaled to mean 0 and standard deviation 1 with the same
    weights.

    For given penalties and labels without noise, the problem is convex and solved exactly. With more than 150
    classes, a full D would have too many entries for data of usual size. Each row of D then has only 16
    entries besides the diagonal: those of the 16 classes with which the class of the row is confused most.

    Examples
    --------
    >>> import hetcal
    >>> data = hetcal.load_example("cifar10-noisy")
    >>> model = hetcal.MatrixScaling().fit(data.val.logits, data.val.labels)
    >>> simple = hetcal.TemperatureScaling().fit(data.val.logits, data.val.labels)
    >>> for calibrator in (simple, model):
    ...     p = calibrator.predict_proba(data.test.logits)
    ...     print(f"{hetcal.metrics.nll(p, data.test.labels):.3f}")
    0.465
    0.411
    """

    def __init__(
        self,
        penalty: Literal["bayes", "cv"] | float | Sequence[float] = "bayes",
        *,
        center: Center = "logsumexp",
        features: _Features = "linear",
        keep_decision: bool = False,
        cv: int = 5,
    ) -> None:
        self.penalty = penalty
        self.center = center
        self.features = features
        self.keep_decision = keep_decision
        self.cv = cv

    @property
    def preserves_decision(self) -> bool:
        """Whether the argmax is preserved."""
        return bool(self.keep_decision)

    def _fit(self, source: Source) -> None:
        check_flag(self.keep_decision, "keep_decision")
        check_choice(self.center, "center", ("logsumexp", "mean"))
        features = check_choice(self.features, "features", _PARTS)
        n_folds = check_integer(self.cv, "cv", minimum=2)
        penalty = _check_penalty(self.penalty, _PARTS[features])
        options = _Options(self.center, features == "spline")
        problem = _Problem.of(source, options)
        if penalty is not None:
            fit = problem.fit(penalty * problem.total)
        else:
            fit = problem.fit_precisions()
            if self.penalty == "cv":
                penalty = _cross_validate(source, options, fit.precision / problem.total, n_folds)
                fit = problem.fit(penalty * problem.total)
        separable = not fit.precision.all() and is_error_free(fit.loss, source.weights()[1])
        warn_separable(np.flatnonzero([separable]), name_whole_data)
        self.alpha_, self.limit_ = problem.model.inputs.alpha, problem.model.inputs.limit
        self.change_, self.bias_, curves = problem.model.parts(fit.theta)
        self.curves_ = None
        if curves is not None:
            self.curves_ = {"knots": curves.knots, "widths": curves.widths, "weights": curves.weights}
        self.penalty_ = fit.precision / problem.total

    def _map(self) -> maps.Map:
        inputs = Inputs(self.alpha_, self.limit_, self.center)
        arrays = getattr(self, "curves_", None)  # files of earlier versions do not contain it
        curves = None if arrays is None else Curves(self.limit_, **arrays)
        return maps.Matrix(inputs, self.change_, self.bias_, bool(self.keep_decision), curves)

    @classmethod
    def _examples(cls) -> list[Self]:
        linear = [cls(), cls(0.1, center="mean"), cls((0.1, np.inf, 0.1), keep_decision=True)]
        kept = cls(0.1, center="mean", features="spline", keep_decision=True)
        return [*linear, cls(features="spline"), kept]


@dataclass(frozen=True)
class _Options:
    """Options that determine the model of a fit."""

    center: Center
    has_curves: bool


@dataclass(frozen=True, eq=False)
class _Problem:
    """Matrix scaling for the rows of a source; `total` is the sum of their weights."""

    source: Source
    model: MatrixModel
    total: float

    @classmethod
    def of(cls, source: Source, options: _Options) -> _Problem:
        alpha, clip = fit_clipped(source)
        total = source.weights()[0]
        limit = min(clip, float(np.log(source.n_classes * max(total, 1.0))))
        inputs = Inputs(alpha, limit, options.center)
        return cls(source, MatrixModel.of(source, inputs, has_curves=options.has_curves), total)

    @property
    def prior(self) -> Float:
        return prior_precision(self.model.n_classes, has_curves=self.model.features is not None)

    @cached_property
    def problem(self) -> Problem:
        """The unpenalised loss of these rows."""
        return self.model.problem(self.source)

    def fit_precisions(self) -> Penalised:
        sample = self._sample()
        start = None if sample is None else sample.fit_precisions()
        return fit_precisions(self.problem, self.model.groups, self.prior, start)

    def _sample(self) -> _Problem | None:
        """Return the same problem for a sample of the rows, or None if a sample would not save time.

        The solution for the sample is a good starting point for the fit to all rows.
        """
        if self.source.prefers_few_passes:
            return None
        rows = self.source.sample_rows(_SAMPLE)
        step = len(rows) // _SAMPLE
        n_rows = int(self.source.counts().sum())
        if n_rows < _MIN_RATIO * _SAMPLE:
            return None
        source = MemorySource(rows.take(slice(None, None, max(1, step))))
        return _Problem(source, self.model, source.weights()[0])

    def fit(self, precision: Float, start: Float | None = None) -> Penalised:
        negligible = _PERFECT * self.total
        return minimise_penalised(self.problem, self.model.groups, precision, start, negligible=negligible)


def _check_penalty(penalty: Any, parts: Sequence[str]) -> Float | None:
    """Penalties of the parts, or None if they are chosen from the data."""
    if isinstance(penalty, str):
        check_choice(penalty, "penalty", ("bayes", "cv"), remedy="or pass numbers")
        return None
    values = np.atleast_1d(np.asarray(penalty, dtype=object))
    n_parts = len(parts)
    if values.shape not in ((1,), (n_parts,)):
        count = {3: "three", 6: "six"}[n_parts]
        raise ValueError(
            f"penalty must be 'bayes', 'cv', one number, or {count} numbers ({', '.join(parts)}), "
            f"got {penalty!r}; pass one number to penalise all parts alike"
        )
    numbers = [check_number(value, "penalty", minimum=0, allow_infinite=True) for value in values]
    return np.broadcast_to(np.array(numbers, np.float64), (n_parts,)).copy()


def _cross_validate(source: Source, options: _Options, penalty: Float, n_folds: int) -> Float:
    """Penalties near `penalty` with the lowest NLL on left-out rows, chosen one after the other.

    The result is `penalty` itself if no row can be left out.
    """
    folds = [(_Problem.of(train, options), test) for train, test in source.split(n_folds)]
    if not folds:
        return penalty
    starts: list[Float | None] = [None] * len(folds)

    def score(candidate: Float) -> float:
        total = 0.0
        for i, (problem, test) in enumerate(folds):
            theta = starts[i] = problem.fit(candidate * problem.total, starts[i]).theta
            total += problem.model.loss(test, theta)
        return total

    parts = np.arange(len(penalty))
    order = [1, 0, *parts[2:]]  # start with the off-diagonal entries, which matter most
    for part in order:
        candidates = [penalty * np.where(parts == part, factor, 1.0) for factor in _FACTORS]
        penalty = min(candidates, key=score)
    return penalty
