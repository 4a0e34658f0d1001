"""Class by class: does an own temperature pay, and if the rows cannot say yet, how many more would."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from hetcal._numeric.passes import nll_pass, sum_slices
from hetcal._numeric.rows import prepare
from hetcal._numeric.source import MemorySource
from hetcal._numeric.temperatures import fit_bayes, fit_coupled, fit_pooled
from hetcal._typing import Float, FloatArray, IntArray

__all__ = ["MORE_ROWS", "OWN", "POOL", "ClassAdvice", "advise"]


OWN = "own temperature"
POOL = "pool"
MORE_ROWS = "more rows"

_BOUNDS = (0.01, 100.0)  # the calibrators' own
_FEWEST = 10.0  # rows that it is worth asking for
_BORROWED = 20  # rows' worth of the classes' common noise that each class is given


@dataclass(frozen=True)
class ClassAdvice:
    """What an own temperature would bring to one class, and what to do.

    Attributes
    ----------
    name, index : str, int
    n : int
        Rows predicted as the class.
    alpha, alpha_pooled : float
        Best inverse temperature of the class alone, and of all rows together.
    gain, gain_low, gain_high : float
        NLL that the best own temperature would save on a row of the class, in nats, corrected for the luck of
        a fit to these rows; ends of its interval. nan without rows.
    cost : float
        NLL that an own temperature fitted on these n rows loses again to sampling error, per row.
    kind : str
        ``own temperature``, ``pool`` or ``more rows``.
    advice : str
        The same in words: ``own temperature``, ``pool`` or ``about N more rows``.
    more_rows : int
        The N of the advice, rows predicted as the class; else 0.
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
    kind: str
    advice: str
    more_rows: int


def advise(
    z: FloatArray, y: IntArray, names: list[str], *, min_gain: float, level: float
) -> tuple[ClassAdvice, ...]:
    """Compare the gain of an own temperature with its sampling cost, for every class.

    With ``θ = log α``, own temperature θ_k and shared one θ₀, a row of the class gains about
    ``½ j (θ_k − θ₀)²``, where j is its Fisher information, and loses ``½ j Var(θ̂_k)`` to sampling. The
    likelihood ratio ``2 (L_k(α₀) − L_k(α_k))`` in units of its noise is a χ² with one degree of freedom and
    non-centrality λ = gain/cost, so that an own temperature pays where λ > 1.

    - own temperature: λ > 1 at confidence `level`
    - pool: a gain of `min_gain` is ruled out at confidence `level`
    - else: rows until one of the two is expected
    """
    problem = _problem(z, y)
    n = problem.counts()
    pooled, _ = fit_pooled(problem, _BOUNDS)
    own = fit_coupled(problem, np.inf, _BOUNDS).alpha
    noise = _noise(problem)
    everywhere = np.full(problem.n_slices, pooled)
    ratio = 2 * (_losses(problem, everywhere) - _losses(problem, own))
    sure = float(special.ndtri(level))
    rows = []
    for k, name in enumerate(names):
        made = _weigh(int(n[k]), max(0.0, float(ratio[k])), float(noise[k]), min_gain, sure)
        rows.append(ClassAdvice(name, k, int(n[k]), float(own[k]), pooled, *made))
    return tuple(rows)


def _problem(z: FloatArray, y: IntArray) -> MemorySource:
    return MemorySource(prepare(z, y, None))


def _losses(problem: MemorySource, alpha: Float) -> Float:
    return nll_pass(problem.rows, problem.ids, alpha)[0]


def _noise(problem: MemorySource) -> Float:
    """Mean of each class's likelihood ratio where its temperature is the shared one, (K,); 0 if alone.

    It is 1 for a model that is right but for its temperature, and ``V/J`` otherwise (variance of the score
    over the information), taken at the shrunk temperatures, which are never at a bound. The shared
    temperature follows a class by the share of the information that the class holds.
    """
    n = problem.counts()
    alpha = fit_bayes(problem, _BOUNDS).alpha
    # A slice for every row, so that the pass gives the slope and the curvature of each.
    _, slope, bend = nll_pass(problem.rows, np.arange(len(problem.ids)), alpha[problem.ids])
    total_bend, total_slope, square = (
        sum_slices(problem.ids, a, problem.n_slices) for a in (bend, slope, slope**2)
    )
    information = alpha**2 * total_bend
    variance = alpha**2 * (square - total_slope**2 / np.maximum(n, 1))
    total = information.sum()
    if total <= 0:  # every row flat: no temperature does anything
        return np.zeros(problem.n_slices)
    common = variance.sum() / total
    alone = np.divide(variance, information, out=np.full(len(n), common), where=information > 0)
    mixed = (n * alone + _BORROWED * common) / (n + _BORROWED)
    return np.asarray(mixed * (1 - information / total))


def _weigh(
    n: int, ratio: float, noise: float, min_gain: float, sure: float
) -> tuple[float, float, float, float, str, str, int]:
    """Gain with its interval, cost, kind, advice and rows, from the likelihood ratio of one class."""
    if n == 0 or noise <= 1e-9:  # never predicted, or the only class that is
        return math.nan, math.nan, math.nan, math.nan, POOL, POOL, 0
    cost = noise / (2 * n)
    root = math.sqrt(ratio / noise)
    strength = max(0.0, root**2 - 1)
    low, high = cost * max(0.0, root - sure) ** 2, cost * (root + sure) ** 2
    numbers = (cost * strength, low, high, cost)
    if root - sure > 1:
        return *numbers, OWN, OWN, 0
    if high < min_gain:
        return *numbers, POOL, POOL, 0
    more = _round(max(_FEWEST, _rows_to_decide(strength / n, noise, min_gain, sure) - n))
    return *numbers, MORE_ROWS, f"about {more:,} more rows", more


def _rows_to_decide(per_row: float, noise: float, min_gain: float, sure: float) -> float:
    """Rows at which λ = per_row·n is expected to show as above 1, or a gain of `min_gain` as ruled out."""
    to_own = (1 + sure) ** 2 / per_row if per_row > 0 else math.inf
    slack = math.sqrt(2 * min_gain / noise) - math.sqrt(per_row)
    to_pool = (sure / slack) ** 2 if slack > 0 else math.inf
    return min(to_own, to_pool)


def _round(rows: float) -> int:
    """Up to two leading digits."""
    step = int(10 ** max(0, math.floor(math.log10(rows)) - 1))
    return math.ceil(rows / step) * step
