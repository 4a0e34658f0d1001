"""Calibrators one after the other: each is fitted on what those before it make of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import ArrayLike

from hetcal._core.arrays import FloatArray
from hetcal.calibrators.base import Calibrator, FitData, fit_step, pass_on, predict_step

__all__ = ["Chain", "check_steps"]


class Chain(Calibrator):
    """Calibrators one after the other, each fitted on the logarithm of the probabilities before it.

    Vector scaling that keeps decisions mends what classes do to each other; class-wise Platt scaling behind
    it mends the confidence of each predicted class: see :class:`AutoCalibrator`.

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
        """Whether the argmax stays, which every step must see to."""
        return all(getattr(step, "preserves_decision", False) for step in check_steps(self.steps, "steps"))

    def _needs_memory(self) -> bool:
        return True

    def _fit(self, data: FitData) -> None:
        steps = check_steps(self.steps, "steps")
        self.steps_: list[Any] = []
        for step in steps:
            if self.steps_:
                data = data.with_logits(pass_on(self.steps_[-1], data.in_memory.z, data.groups))
            self.steps_.append(fit_step(step, data))

    def _predict(self, z: FloatArray, groups: ArrayLike | None) -> FloatArray:
        for step in self.steps_[:-1]:
            z = pass_on(step, z, groups)
        return predict_step(self.steps_[-1], z, groups)


def check_steps(steps: Any, name: str) -> list[Any]:
    """Calibrators as a list, or an error that names the argument."""
    if isinstance(steps, str) or not isinstance(steps, Sequence):
        raise TypeError(f"{name} must be a sequence of calibrators, got {steps!r}")
    if not steps:
        raise ValueError(f"{name} must hold at least one calibrator, got none")
    for step in steps:
        if isinstance(step, type) or not all(hasattr(step, needed) for needed in ("fit", "predict_proba")):
            raise TypeError(
                f"{name} must have fit and predict_proba, got {step!r}; pass objects, not classes"
            )
    return list(steps)
