"""Whether each class should have its own temperature, or how many more rows are needed to decide."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy import special

from hetcal._numeric.passes import nll_pass, sum_slices
from hetcal._numeric.rows import prepare
from hetcal._numeric.source import MemorySource
from hetcal._numeric.temperatures import DEFAULT_BOUNDS, fit_bayes, fit_coupled, fit_pooled
from hetcal._typing import Float, FloatArray, IntArray

__all__ = ["Advice", "ClassAdvice", "advise"]

_MIN_MORE_ROWS = 10.0  # smallest number of additional rows to suggest
_PRIOR_ROWS = 20  # weight, in rows, of the estimate for all classes together in `_null_mean`


class Advice(StrEnum):
    """Advice on the temperature of one class."""

    OWN = "own temperature"
    POOL = "pool"
    MORE_ROWS = "more rows"


@dataclass(frozen=True)
class ClassAdvice:
    """Gain and cost of a separate temperature for one class, and the resulting advice.

    Attributes
    ----------
    name : str
    index : int
    n : int
        Number of rows predicted as the class.
    alpha, alpha_pooled : float
        Optimal inverse temperature of the class alone, and of all rows together. They are equal for a class
        that is never predicted.
    gain : float
        Estimated reduction of the mean NLL of the class, in nats, if it has its optimal temperature instead
        of the shared one. The estimate is corrected for overfitting.
    gain_low, gain_high : float
        One-sided confidence limits of the gain, each at the level of the plan.
    cost : float
        Increase of the mean NLL of the class due to the sampling error of a temperature fitted on n rows.
    kind : Advice
        ``own temperature``, ``pool`` or ``more rows``.
    advice : str
        Text for display: ``own temperature``, ``pool`` or ``about N more rows``.
    more_rows : int
        Approximate number of additional rows predicted as the class that are needed to decide. It is 0 if
        `kind` is not ``more rows``.

    Notes
    -----
    The gain, its limits and the cost are nan if the rows contain no information about a separate temperature,
    and the advice is then ``pool``. This is the case for a class that is never predicted or that is the only
    predicted class. It is the case for all classes if the logits are constant in every row, or if all rows
    are correct by wide margins.
    """

    name: str
    index: int
    n: int
    alpha: float
    alpha_pooled: float
    gain: float
    gain_low: float
    gain_high: float
    cost: float
    kind: Advice
    advice: str
    more_rows: int


def advise(
    z: FloatArray, y: IntArray, names: list[str], *, min_gain: float, level: float
) -> tuple[ClassAdvice, ...]:
    """Compare the gain of a separate temperature with its sampling cost, for every class.

    Let ``θ = log α``. Its optimum is θ_k for the rows predicted as class k, and θ₀ for all rows together. The
    estimate of θ_k is θ̂_k. Let j be the mean Fisher information about θ in a row of the class. With its own
    temperature, the class

    - gains about ``½ j (θ_k − θ₀)²`` per row,
    - loses about ``½ j Var(θ̂_k)`` per row to sampling error.

    A separate temperature is worthwhile if ``λ = gain/cost > 1``. Let L_k be the total NLL of the class. The
    likelihood-ratio statistic ``2 (L_k(α₀) − L_k(α_k))``, divided by its mean under the null hypothesis
    ``θ_k = θ₀``, approximately has a χ² distribution with one degree of freedom and non-centrality λ. The
    advice is

    - own temperature if λ > 1 with confidence `level`,
    - pool if the gain is below `min_gain` with confidence `level`,
    - more rows otherwise, with an estimate of how many are needed for one of the other two.
    """
    source = _source(z, y)
    counts = source.counts()
    pooled, _ = fit_pooled(source, DEFAULT_BOUNDS)
    own = fit_coupled(source, np.inf, DEFAULT_BOUNDS).alpha
    null_mean = _null_mean(source)
    shared = np.full(source.n_slices, pooled)
    ratio = 2 * (_losses(source, shared) - _losses(source, own))
    z_level = float(special.ndtri(level))
    advice = []
    for k, name in enumerate(names):
        n, alpha = int(counts[k]), float(own[k])
        decision = _decide(n, max(0.0, float(ratio[k])), float(null_mean[k]), min_gain, z_level)
        text = f"about {decision.more_rows:,} more rows" if decision.more_rows else str(decision.kind)
        advice.append(
            ClassAdvice(
                name, k, n, alpha, pooled,
                decision.gain, decision.gain_low, decision.gain_high, decision.cost,
                decision.kind, text, decision.more_rows,
            )
        )  # fmt: skip
    return tuple(advice)


@dataclass(frozen=True)
class _Decision:
    """The advice on one class and its numbers, as in :class:`ClassAdvice`."""

    kind: Advice
    gain: float = math.nan
    gain_low: float = math.nan
    gain_high: float = math.nan
    cost: float = math.nan
    more_rows: int = 0


def _decide(n: int, ratio: float, null_mean: float, min_gain: float, z_level: float) -> _Decision:
    """Decide on one class from its likelihood-ratio statistic, `ratio`.

    `null_mean` is the mean of this statistic under the null hypothesis.
    """
    if n == 0 or null_mean <= 1e-9:  # the rows contain no information about a separate temperature
        return _Decision(Advice.POOL)
    cost = null_mean / (2 * n)
    root = math.sqrt(ratio / null_mean)
    noncentrality = max(0.0, root**2 - 1)
    low, high = cost * max(0.0, root - z_level) ** 2, cost * (root + z_level) ** 2
    kind, more_rows = Advice.MORE_ROWS, 0
    if root - z_level > 1:
        kind = Advice.OWN
    elif high < min_gain:
        kind = Advice.POOL
    else:
        needed = _rows_to_decide(noncentrality / n, null_mean, min_gain, z_level)
        more_rows = _round_up(max(_MIN_MORE_ROWS, needed - n))
    return _Decision(kind, cost * noncentrality, low, high, cost, more_rows)


def _rows_to_decide(per_row: float, null_mean: float, min_gain: float, z_level: float) -> float:
    """Number of rows of the class from which "own temperature" or "pool" is the expected advice.

    `per_row` is the non-centrality λ divided by the number of rows of the class.
    """
    to_own = (1 + z_level) ** 2 / per_row if per_row > 0 else math.inf
    margin = math.sqrt(2 * min_gain / null_mean) - math.sqrt(per_row)
    to_pool = (z_level / margin) ** 2 if margin > 0 else math.inf
    return min(to_own, to_pool)


def _round_up(rows: float) -> int:
    """Round up to the next whole number that has at most two significant digits."""
    step = int(10 ** max(0, math.floor(math.log10(rows)) - 1))
    return math.ceil(rows / step) * step


def _source(z: FloatArray, y: IntArray) -> MemorySource:
    return MemorySource(prepare(z, y, None))


def _losses(source: MemorySource, alpha: Float) -> Float:
    return nll_pass(source.rows, source.ids, alpha)[0]


def _null_mean(source: MemorySource) -> Float:
    """Mean of each class's likelihood-ratio statistic if its temperature equals the shared one, (K,).

    The mean is ``V_k/J_k · (1 − J_k/J)``. V_k is the variance of the score of class k, which is the
    derivative of its log-likelihood in log α. J_k is the Fisher information of the class, and J is the sum of
    all J_k. The first factor is 1 if the model is correct up to its temperatures. Its estimate is shrunk
    towards that of all classes together. The second factor accounts for the influence of the class on the
    shared temperature. It is 0 for a class that contains all the information.

    V_k and J_k are evaluated at the temperatures of `fit_bayes`, because temperatures fitted separately can
    be at a bound.
    """
    n = source.counts()
    alpha = fit_bayes(source, DEFAULT_BOUNDS).alpha
    # `nll_pass` returns sums over sets of rows. Here every row is a set of its own.
    _, slope, curvature = nll_pass(source.rows, np.arange(len(source.ids)), alpha[source.ids])
    total_curvature, total_slope, total_square = (
        sum_slices(source.ids, values, source.n_slices) for values in (curvature, slope, slope**2)
    )
    information = alpha**2 * total_curvature
    variance = alpha**2 * (total_square - total_slope**2 / np.maximum(n, 1))
    total = information.sum()
    if total <= 0:  # for example, if the logits are constant in every row
        return np.zeros(source.n_slices)
    common = variance.sum() / total
    own = np.divide(variance, information, out=np.full(len(n), common), where=information > 0)
    shrunk = (n * own + _PRIOR_ROWS * common) / (n + _PRIOR_ROWS)
    return np.asarray(shrunk * (1 - information / total))
