"""The bound of Theorem 4.1 of the paper for the NLL, and its comparison with measured values.

The theorem bounds the excess loss of fitted temperatures: their expected loss on new data minus that of the
best possible temperatures.
"""

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
from hetcal._validate import check_bounds, check_gamma, check_labelled, check_number, check_test_rows
from hetcal.calibrators import ClassWiseTemperatureScaling, TemperatureScaling
from hetcal.theory.bounds import BoundTerms, Regime, cts_bound_terms, samples_needed

__all__ = ["BoundCheck", "NllBound", "bound_check", "gamma_of", "logit_norm"]

# Up to this many rows, the result of `NllBound.rows` is exact; above, it may be up to 0.1% too large.
_MAX_EXACT_ROWS = 4 * 10**11


@dataclass(frozen=True)
class NllBound:
    """The bound of Theorem 4.1, applied to the NLL.

    The theorem bounds the excess loss of fitted class-wise inverse temperatures α: their expected loss on new
    data minus that of the best possible α. It assumes a loss in [0, 1] that is Lipschitz in the
    probabilities, but its proof only uses that the loss is Lipschitz in α. The NLL of a row is Lipschitz in α
    with the constant ``√2 l_f``, and it is at most ``B = log K + √2 α₊ l_f``. The theorem is therefore
    applied to NLL/B with the Lipschitz constant ``l_c = √2/B``, and the resulting bound is multiplied by B.

    Attributes
    ----------
    n_classes : int
        K, the number of classes.
    gamma : float
        Γ, the largest distance of a class's α from the shared α₀. Values of ``(α₊ − α₋)/2`` or more do not
        constrain α, so the bound uses at most ``(α₊ − α₋)/2``.
    l_f : float
        Largest Euclidean norm of a row of logits after its mean has been subtracted.
    alpha_range : (float, float)
        ``(α₋, α₊)``, the bounds of α.
    delta : float
        Largest probability with which the bound may fail.
    """

    n_classes: int
    gamma: float
    l_f: float
    alpha_range: tuple[float, float]
    delta: float

    @property
    def scale(self) -> float:
        """B, an upper bound on the NLL of a row."""
        return math.log(self.n_classes) + math.sqrt(2) * self.alpha_range[1] * self.l_f

    def excess(self, n: int) -> float:
        """Bound on the excess NLL after a fit on n rows, in nats."""
        return self.scale * self._terms(n).total

    def regime(self, n: int) -> Regime:
        """Case of the theorem that applies to n rows: "shared" or "class-wise"."""
        return self._terms(n).regime

    def rows(self, excess: float) -> float:
        """Smallest number of rows from which the bound stays at or below `excess`.

        Above 4·10¹¹ rows, the result may be up to 0.1% too large.
        """
        excess = check_number(excess, "excess", above=0, remedy="pass an NLL, such as 0.01")
        rows = _MAX_EXACT_ROWS
        if self.excess(rows) <= excess:
            scaled = excess / self.scale
            return samples_needed(scaled, n_classes=self.n_classes, gamma=self._gamma(), **self._setup())
        # With this many rows, the bound decreases like 1/√n up to a logarithmic factor.
        while self.excess(rows) > excess:
            rows = math.ceil(rows * max(1.001, (self.excess(rows) / excess) ** 2))
        return rows

    def _terms(self, n: int) -> BoundTerms:
        return cts_bound_terms(n, self.n_classes, self._gamma(), **self._setup())

    def _setup(self) -> dict[str, Any]:
        l_c = math.sqrt(2) / self.scale
        return {"alpha_range": self.alpha_range, "l_f": self.l_f, "l_c": l_c, "delta": self.delta}

    def _gamma(self) -> float:
        return min(self.gamma, (self.alpha_range[1] - self.alpha_range[0]) / 2)


@dataclass(frozen=True)
class BoundCheck:
    """Measured excess NLL of fitted temperatures, compared with the bound of Theorem 4.1.

    Attributes
    ----------
    gamma : float
        Γ of the fitted temperatures.
    regime : {"shared", "class-wise"}
        Case of Theorem 4.1 that applies.
    n, n_judged : int
        Numbers of rows used to fit and to evaluate.
    l_f : float
        Largest Euclidean norm of a row of logits after its mean has been subtracted.
    excess : float
        NLL on the evaluation rows with the fitted temperatures, minus the lowest NLL on these rows that any
        temperatures with the same Γ and the same bounds of α attain.
    bound : float
        Bound of Theorem 4.1, in nats.
    delta : float
        Largest probability with which the bound may fail.
    """

    gamma: float
    regime: Regime
    n: int
    n_judged: int
    l_f: float
    excess: float
    bound: float
    delta: float

    @property
    def holds(self) -> bool:
        """Whether the excess is at most the bound."""
        return self.excess <= self.bound

    @property
    def ratio(self) -> float:
        """``bound / excess``, which shows how loose the bound is; inf if the excess is not positive."""
        return self.bound / self.excess if self.excess > 0 else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Return plain values. Γ and the ratio may be infinite, which JSON does not allow."""
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
    class_names: ArrayLike | None = None,
) -> tuple[BoundCheck, ...]:
    """Check Theorem 4.1 on data, for several values of Γ.

    Class-wise temperatures are fitted on ``(logits, labels)`` within `alpha_range`. Their excess NLL is
    measured on the test rows, relative to temperatures fitted on the test rows themselves. No temperatures
    with the same Γ have a lower NLL on the test rows, not even those that are optimal for the population. The
    measured excess therefore tends to be too large.

    Parameters
    ----------
    logits, labels : arrays of shape (n, K) and (n,)
        Validation rows to fit on.
    test_logits, test_labels : arrays of shape (m, K) and (m,)
        Rows to evaluate on.
    gammas : sequence of float
        Values of Γ, the largest distance of a class's α from the shared α₀.
    alpha_range : (float, float)
        Bounds of the inverse temperatures α.
    delta : float
        Largest probability with which the bound may fail.
    class_names : sequence of str, optional
        K names, if labels are names; by default the column names of a data frame.

    Returns
    -------
    tuple of BoundCheck
        One for each Γ.

    Examples
    --------
    >>> from hetcal import examples
    >>> data = examples.load_example("cifar10-noisy")
    >>> val, test = data.val, data.test
    >>> checks = bound_check(val.logits, val.labels, test.logits, test.labels)
    >>> [(c.gamma, c.regime, c.holds) for c in checks]
    [(0.0, 'shared', True), (0.1, 'class-wise', True), (inf, 'class-wise', True)]
    >>> checks[2].excess < 0.01 and checks[2].ratio > 1e4
    True
    """
    z, y, _ = check_labelled(logits, labels, class_names)
    zt, yt = check_test_rows(test_logits, test_labels, logits, class_names, z.shape[1])
    alpha_range, gammas = check_bounds(alpha_range, "alpha_range"), _check_gammas(gammas)
    l_f = max(logit_norm(z), logit_norm(zt))
    if l_f == 0:
        raise ValueError(
            "logits must differ within at least one row, got only constant rows; "
            "pass the logits of a trained model"
        )
    validation, test = _source(z, y), _source(zt, yt)
    checks = []
    for gamma in gammas:
        bound = NllBound(z.shape[1], gamma, l_f, alpha_range, delta)
        fitted, best = (fit_coupled(source, gamma, alpha_range).alpha for source in (validation, test))
        losses = [float(tempered_nll(test.rows, alpha[test.ids]).mean()) for alpha in (fitted, best)]
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


def gamma_of(method: Any) -> float | None:
    """Γ of a method to which Theorem 4.1 applies; None for all other methods.

    The theorem assumes that the NLL is minimised with a fixed Γ. It does not cover shrinkage, a
    cross-validated Γ or bundles of classes.
    """
    if isinstance(method, TemperatureScaling):
        return 0.0 if method.loss == "nll" else None
    if isinstance(method, ClassWiseTemperatureScaling) and method.loss == "nll" and method.bundles is None:
        return None if isinstance(method.gamma, str) else float(method.gamma)
    return None


def logit_norm(z: FloatArray) -> float:
    """Largest Euclidean norm of a row after its mean has been subtracted, ``l_f``.

    Subtracting the mean does not change the softmax of a row.
    """
    centred = z - z.mean(axis=1, keepdims=True, dtype=np.float64)
    largest = float(np.abs(centred).max())
    centred /= largest or 1.0  # scaling prevents overflow of the squares
    return largest * float(np.sqrt(np.einsum("ij,ij->i", centred, centred).max()))


def _source(z: FloatArray, y: IntArray) -> MemorySource:
    return MemorySource(prepare(z, y, None))


def _check_gammas(gammas: Any) -> list[float]:
    if not isinstance(gammas, Iterable):
        raise TypeError(f"gammas must be a sequence of non-negative numbers, got {gammas!r}; pass a list")
    return [check_gamma(gamma, "gammas") for gamma in gammas]
