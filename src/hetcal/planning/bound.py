"""The paper's bounds for the NLL at hand, beside what really happens."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hetcal._numeric.passes import tempered_nll
from hetcal._numeric.rows import prepare
from hetcal._numeric.source import MemorySource
from hetcal._numeric.temperatures import fit_coupled
from hetcal._typing import FloatArray, IntArray
from hetcal._validate import CONVERT_PROBS, check_bounds, check_gamma, check_labels, check_logits
from hetcal.calibrators import ClassWiseTemperatureScaling, TemperatureScaling
from hetcal.theory import cts_bound_terms, samples_needed

__all__ = ["BoundCheck", "NllBound", "bound_check", "gamma_of", "logit_norm"]

_FAR = 4 * 10**11  # rows up to which the bound is inverted exactly, and to 0.1% beyond


@dataclass(frozen=True)
class NllBound:
    """Theorem 4.1 for the NLL: the bound with ``l_c = √2/B``, times ``B = log K + √2 α₊ l_f``.

    Attributes
    ----------
    n_classes : int
    gamma : float
        Γ; an infinite one is taken as ``(α₊ − α₋)/2``, which ties nothing either.
    l_f : float
        Largest norm of a row of logits.
    alpha_range : (float, float)
    delta : float
        Probability that the bound may fail.
    """

    n_classes: int
    gamma: float
    l_f: float
    alpha_range: tuple[float, float]
    delta: float

    @property
    def scale(self) -> float:
        """B, the largest NLL that a row can have."""
        return math.log(self.n_classes) + math.sqrt(2) * self.alpha_range[1] * self.l_f

    def excess(self, n: int) -> float:
        """NLL over the best possible that the theorem allows after a fit on n rows, in nats."""
        return self.scale * cts_bound_terms(n, self.n_classes, self._gamma(), **self._setting()).total

    def regime(self, n: int) -> str:
        """Which case of the theorem applies to n rows."""
        return cts_bound_terms(n, self.n_classes, self._gamma(), **self._setting()).regime

    def rows(self, excess: float) -> float:
        """Rows from which on the theorem promises at most this excess."""
        rows = _FAR
        if self.excess(rows) <= excess:
            share = excess / self.scale
            return samples_needed(share, n_classes=self.n_classes, gamma=self._gamma(), **self._setting())
        while self.excess(rows) > excess:  # so far out the bound falls like 1/√n but for a logarithm
            rows = math.ceil(rows * max(1.001, (self.excess(rows) / excess) ** 2))
        return rows

    def _setting(self) -> dict[str, Any]:
        l_c = math.sqrt(2) / self.scale
        return {"alpha_range": self.alpha_range, "l_f": self.l_f, "l_c": l_c, "delta": self.delta}

    def _gamma(self) -> float:
        return min(self.gamma, (self.alpha_range[1] - self.alpha_range[0]) / 2)


@dataclass(frozen=True)
class BoundCheck:
    """How far fitted temperatures are from the best in hindsight, and how far the theorem lets them be.

    Attributes
    ----------
    gamma : float
    regime : str
        Case of Theorem 4.1 that applies.
    n, n_judged : int
        Rows fitted on and judged on.
    l_f : float
        Largest norm of a (centred) row of logits.
    excess : float
        NLL on the judged rows of the temperatures fitted on the n rows, minus that of the best temperatures
        for the judged rows under the same Γ.
    bound : float
        What Theorem 4.1 allows, in nats.
    delta : float
        Probability that it may fail.
    """

    gamma: float
    regime: str
    n: int
    n_judged: int
    l_f: float
    excess: float
    bound: float
    delta: float

    @property
    def holds(self) -> bool:
        """Whether the excess stays under the bound."""
        return self.excess <= self.bound

    @property
    def ratio(self) -> float:
        """Bound over excess: how loose the bound is."""
        return self.bound / self.excess if self.excess > 0 else math.inf

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, but for an infinite Γ or ratio."""
        return asdict(self) | {"holds": self.holds, "ratio": self.ratio}


def bound_check(
    logits: ArrayLike,
    labels: ArrayLike,
    test_logits: ArrayLike,
    test_labels: ArrayLike,
    *,
    gammas: Sequence[float] = (0.0, 0.1, math.inf),
    alpha_range: tuple[float, float] = (0.1, 10.0),
    delta: float = 0.05,
) -> tuple[BoundCheck, ...]:
    """Check Theorem 4.1 on real rows, for several Γ.

    Class-wise temperatures are fitted on ``(logits, labels)`` within `alpha_range` and compared on the test
    rows with those fitted on the test rows themselves, the best in hindsight: they are better than the best
    for the whole population, so the excess found is, if anything, too large.

    Examples
    --------
    >>> from hetcal import examples
    >>> data = examples.load_example("cifar10-noisy")
    >>> val, test = data.val, data.test
    >>> found = bound_check(val.logits, val.labels, test.logits, test.labels)
    >>> [(c.gamma, c.regime, c.holds) for c in found]
    [(0.0, 'shared', True), (0.1, 'class-wise', True), (inf, 'class-wise', True)]
    >>> found[2].excess < 0.01 and found[2].ratio > 1e4
    True
    """
    z = check_logits(logits, probs_remedy=CONVERT_PROBS)
    y = check_labels(labels, n_rows=len(z), n_classes=z.shape[1], table=logits)
    zt = check_logits(test_logits, n_classes=z.shape[1], name="test_logits", probs_remedy=CONVERT_PROBS)
    yt = check_labels(test_labels, n_rows=len(zt), n_classes=z.shape[1], name="test_labels")
    alpha_range, gammas = check_bounds(alpha_range, "alpha_range"), _checked_gammas(gammas)
    l_f = max(logit_norm(z), logit_norm(zt))
    if l_f == 0:
        raise ValueError("logits must differ within some row, got equal ones in all; no bound is about these")
    fitted_on, judged = _problem(z, y), _problem(zt, yt)
    checks = []
    for gamma in gammas:
        bound = NllBound(z.shape[1], gamma, l_f, alpha_range, delta)
        found, best = (fit_coupled(p, gamma, alpha_range).alpha for p in (fitted_on, judged))
        losses = [float(tempered_nll(judged.rows, alpha[judged.ids]).mean()) for alpha in (found, best)]
        checks.append(
            BoundCheck(
                gamma=gamma,
                regime=bound.regime(len(z)),
                n=len(z),
                n_judged=len(zt),
                l_f=l_f,
                excess=losses[0] - losses[1],
                bound=bound.excess(len(z)),
                delta=delta,
            )
        )
    return tuple(checks)


def _checked_gammas(gammas: Any) -> list[float]:
    if not isinstance(gammas, Iterable):
        raise TypeError(f"gammas must be a list of numbers, zero or more, got {gammas!r}")
    return [check_gamma(gamma, "gammas") for gamma in gammas]


def gamma_of(method: Any) -> float | None:
    """Γ of a method that Theorem 4.1 speaks about; None for all others.

    It speaks about the least NLL under a given Γ: neither shrinkage nor a Γ chosen by cross-validation.
    """
    if isinstance(method, TemperatureScaling):
        return 0.0 if method.loss == "nll" else None
    if isinstance(method, ClassWiseTemperatureScaling) and method.loss == "nll" and method.bundles is None:
        return None if isinstance(method.gamma, str) else float(method.gamma)
    return None


def logit_norm(z: FloatArray) -> float:
    """L_f: the largest norm of a row; of the centred row, since a softmax does not see the mean."""
    centred = z - z.mean(axis=1, keepdims=True, dtype=np.float64)
    largest = float(np.abs(centred).max())  # in whose units no square overflows
    centred /= largest or 1.0
    return largest * float(np.sqrt(np.einsum("ij,ij->i", centred, centred).max()))


def _problem(z: FloatArray, y: IntArray) -> MemorySource:
    return MemorySource(prepare(z, y, None))
