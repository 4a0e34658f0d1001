"""Combinations of calibrators: sequences and weighted means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcal._numeric.source import Source
from hetcal.calibrators.base import Calibrator, NextStep, fit_step, map_of_step, needs_memory
from hetcal.export import maps

__all__ = ["Chain", "Mixture", "check_steps", "normalise_shares"]


class Chain(Calibrator):
    """A sequence of calibrators; each but the first receives the log-probabilities of the one before it.

    For example, a first step of vector scaling with ``keep_decision=True`` changes how probability is divided
    among the classes without changing a decision. A second step of class-wise Platt scaling then corrects the
    confidence for each predicted class. :class:`AutoCalibrator` uses such sequences.

    Parameters
    ----------
    steps : sequence of calibrators

    Attributes
    ----------
    steps_ : list of the fitted calibrators

    Examples
    --------
    >>> import numpy as np
    >>> from hetcal import ClassWise, PlattScaling, VectorScaling
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(500, 3)) * 3
    >>> y = np.where(rng.random(500) < 0.7, z.argmax(axis=1), 0)
    >>> cal = Chain([VectorScaling(keep_decision=True), ClassWise(PlattScaling(), gamma="bayes")]).fit(z, y)
    >>> bool((cal.predict_proba(z).argmax(axis=1) == z.argmax(axis=1)).all())
    True
    """

    def __init__(self, steps: Sequence[Any]) -> None:
        self.steps = steps

    @property
    def preserves_decision(self) -> bool:
        """Whether every step preserves the argmax."""
        return all(getattr(step, "preserves_decision", False) for step in check_steps(self.steps, "steps"))

    def _needs_memory(self) -> bool:
        return any(map(needs_memory, check_steps(self.steps, "steps")))

    def _fit(self, source: Source) -> None:
        steps = check_steps(self.steps, "steps")
        self.steps_: list[Any] = []
        for step in steps:
            if self.steps_:
                source = source.transform(NextStep(self.steps_[-1]))
            self.steps_.append(fit_step(step, source))

    def _map(self) -> maps.Map:
        return maps.Chain(tuple(map(map_of_step, self.steps_)))

    @classmethod
    def _examples(cls) -> list[Self]:
        from hetcal.calibrators.affine import PlattScaling, VectorScaling

        first = [VectorScaling(1e-3, keep_decision=keep) for keep in (True, False)]
        return [cls([step, PlattScaling(pool=True)]) for step in first]


def check_steps(steps: Any, name: str) -> list[Any]:
    """Validate a sequence of calibrators and return it as a list; `name` is its name in errors."""
    if isinstance(steps, str) or not isinstance(steps, Sequence):
        raise TypeError(f"{name} must be a sequence of calibrators, got {steps!r}; pass a list of them")
    if not steps:
        raise ValueError(f"{name} must contain at least one calibrator, got an empty sequence; add one")
    for step in steps:
        if isinstance(step, type) or not all(hasattr(step, method) for method in ("fit", "predict_proba")):
            raise TypeError(
                f"{name} must contain objects with fit and predict_proba, got {step!r}; "
                "pass calibrator objects, not classes or names"
            )
    return list(steps)


class Mixture(Calibrator):
    """``Σ_m w_m p_m``: the weighted mean of the probabilities of several calibrators.

    Decisions are preserved if all members preserve them.

    Parameters
    ----------
    calibrators : sequence of calibrators
    weights : (M,) finite non-negative numbers, not all zero; None gives equal weights
        `fit` scales them to sum to 1.

    Attributes
    ----------
    calibrators_ : list of the fitted calibrators
    weights_ : (M,) array, the weights scaled to sum to 1
    """

    def __init__(self, calibrators: Sequence[Any], weights: ArrayLike | None = None) -> None:
        self.calibrators = calibrators
        self.weights = weights

    @property
    def preserves_decision(self) -> bool:
        """Whether every member preserves the argmax."""
        members = check_steps(self.calibrators, "calibrators")
        return all(getattr(member, "preserves_decision", False) for member in members)

    def _needs_memory(self) -> bool:
        return any(map(needs_memory, check_steps(self.calibrators, "calibrators")))

    def _fit(self, source: Source) -> None:
        members = check_steps(self.calibrators, "calibrators")
        weights = normalise_shares(self.weights, len(members))
        self.calibrators_ = [fit_step(member, source) for member in members]
        self.weights_ = weights

    def _map(self) -> maps.Map:
        members = tuple(map(map_of_step, self.calibrators_))
        return maps.Mixture(np.asarray(self.weights_, np.float64), members)

    @classmethod
    def _examples(cls) -> list[Self]:
        from hetcal.calibrators.affine import PlattScaling, VectorScaling
        from hetcal.calibrators.temperature import ClassWiseTemperatureScaling

        members = [ClassWiseTemperatureScaling("bayes"), VectorScaling(1e-3, keep_decision=True)]
        return [cls(members, [3, 1]), cls([VectorScaling(1e-3), PlattScaling()])]


def normalise_shares(weights: ArrayLike | None, n: int) -> NDArray[np.float64]:
    """Validate weights (n,), and return them scaled to sum to 1; None gives equal weights."""
    if weights is None:
        return np.full(n, 1 / n)
    try:
        w = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        raise TypeError(
            f"weights must contain one number per calibrator ({n}), got {weights!r}; leave it out for equal "
            "weights"
        ) from None
    if w.shape != (n,) or not np.isfinite(w).all() or w.min() < 0 or w.max() == 0:
        raise ValueError(
            f"weights must contain one finite non-negative number per calibrator ({n}), "
            f"at least one of them positive, got {weights!r}; leave it out for equal weights"
        )
    w = w / w.max()  # the sum of large weights could overflow
    return np.asarray(w / w.sum())
