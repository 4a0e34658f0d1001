"""Calibrators one after the other: each is fitted on what those before it make of the rows."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import has_fit_parameter

from hetcal._core.arrays import FloatArray, keep_decision
from hetcal._core.known import known_logits
from hetcal._core.threads import over_blocks
from hetcal.calibrators.inputs import check_fit, check_predict, in_memory, remember_columns, wherever

__all__ = ["Chain", "check_steps", "fit_step", "pass_on", "predict_step"]


class Chain(BaseEstimator):  # type: ignore[misc]
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

    def fit(
        self,
        logits: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Fit step by step; `groups` (n,) go to the steps that slice by them."""
        steps = check_steps(self.steps, "steps")
        in_memory(self, logits)
        z, y, w = check_fit(logits, labels, sample_weight)
        self.steps_: list[Any] = []
        for step in steps:
            if self.steps_:
                z = pass_on(self.steps_[-1], z, groups)
            self.steps_.append(fit_step(step, z, y, w, groups))
        remember_columns(self, logits)
        return self

    @wherever
    def predict_proba(self, logits: ArrayLike, *, groups: ArrayLike | None = None) -> FloatArray:
        """Calibrated probabilities (n, K); `groups` where they were given to `fit`."""
        z = check_predict(self, logits)
        for step in self.steps_[:-1]:
            z = pass_on(step, z, groups)
        return predict_step(self.steps_[-1], z, groups)


def fit_step(step: Any, z: FloatArray, y: Any, weight: Any, groups: ArrayLike | None) -> Any:
    """A fitted copy of a calibrator; `groups` where it takes them."""
    made = clone(step) if hasattr(step, "get_params") else copy.deepcopy(step)
    options: dict[str, Any] = {} if weight is None else {"sample_weight": weight}
    if groups is not None and has_fit_parameter(made, "groups"):
        options["groups"] = groups
    with known_logits():
        made.fit(z, y, **options)
    return made


def predict_step(step: Any, z: FloatArray, groups: ArrayLike | None) -> FloatArray:
    """Probabilities of a fitted calibrator; `groups` where it takes them."""
    options = {"groups": groups} if groups is not None and has_fit_parameter(step, "groups") else {}
    with known_logits():
        return np.asarray(step.predict_proba(z, **options))


def pass_on(step: Any, z: FloatArray, groups: ArrayLike | None) -> FloatArray:
    """Logits for the next step: probabilities that differ in the last bit may have equal logarithms."""
    p = predict_step(step, z, groups)
    out = np.empty_like(p)

    def some(start: int, stop: int) -> None:
        part = slice(start, stop)
        np.log(np.maximum(p[part], np.finfo(p.dtype).tiny), out=out[part])
        keep_decision(out[part], p[part].argmax(axis=1))

    over_blocks(some, *p.shape)
    return out


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
