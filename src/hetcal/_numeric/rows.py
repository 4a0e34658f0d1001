"""Validated rows: logits, labels, predicted classes and weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._numeric.acceleration import LARGE, compiled_for
from hetcal._numeric.hashing import Keys, row_keys
from hetcal._numeric.label_models import LabelModel
from hetcal._numeric.threads import over_blocks
from hetcal._typing import CodeArray, Float, FloatArray, IntArray

__all__ = [
    "FARTHEST",
    "MAX_LOGIT",
    "MIN_EXPONENT",
    "NARROW",
    "Rows",
    "below_top",
    "code_type",
    "decide",
    "prepare",
]

# Logits outside ±MAX_LOGIT usually mask a class. They are clipped to this range where products with them
# could overflow.
MAX_LOGIT = 1e30
FARTHEST = -MAX_LOGIT  # lower limit of d = z − max z, so that α d stays finite in float32 for α up to 1e8
MIN_EXPONENT = -120.0  # in 2^x, smaller x are raised to this, since 2^-120 is negligible compared with 1
_BLOCK = 1 << 20  # number of elements processed at a time: 8 MiB in float64
NARROW = 64  # rows with fewer classes are short: compiled passes process several of them at once


@dataclass(frozen=True, eq=False)
class Rows:
    """Logits, labels, predicted classes and weights, stored compactly.

    Attributes
    ----------
    z : (n, K) logits, float32 or float64
    y : (n,) labels, in the smallest unsigned integer type that holds K
    guess : (n,) argmax of each row of logits, in the same type as `y`; ties go to the lowest index
    given_weight : (n,) weights, float64, or None if every row has weight 1
    label_model : model of soft or noisy labels, or None if `y` contains the true classes
        With a model, `y` contains the observed labels, or the most likely classes of soft labels.
    """

    z: FloatArray
    y: CodeArray
    guess: CodeArray
    given_weight: Float | None = None
    label_model: LabelModel | None = None

    def __len__(self) -> int:
        return len(self.z)

    @cached_property
    def top(self) -> FloatArray:
        """Largest logit of each row, (n,)."""
        return np.asarray(self.z[np.arange(len(self.z)), self.guess])

    @cached_property
    def d_true(self) -> Float:
        """``z_y − max z``, (n,): the logit of the label `y` minus the largest logit of the row."""
        with np.errstate(over="ignore"):
            below = self.z[np.arange(len(self.z)), self.y].astype(np.float64) - self.top
        return np.asarray(np.maximum(below, FARTHEST))

    @cached_property
    def d_unbiased(self) -> Float:
        """Unbiased estimates (n,) of the logit of the true class minus the largest logit; see `unbiased`."""
        if self.label_model is None:
            return self.d_true
        out, step = np.empty(len(self.z)), max(1, _BLOCK // self.z.shape[1])
        for start in range(0, len(self.z), step):
            part = slice(start, start + step)
            numbers = self.label_model.take(part).unbiased()
            out[part] = np.einsum("ij,ij->i", numbers, self.below_top(part), dtype=np.float64)
        return out

    @cached_property
    def right(self) -> NDArray[np.bool_]:
        """Whether the prediction agrees with the label `y`, (n,)."""
        return np.asarray(self.guess == self.y)

    @cached_property
    def correctness(self) -> NDArray[Any]:
        """Unbiased estimates (n,) of whether the prediction is correct (1) or not (0).

        Without a label model, they are equal to `right`. With noisy labels, they may lie outside [0, 1].
        """
        return self.right if self.label_model is None else self.unbiased[np.arange(len(self)), self.guess]

    @cached_property
    def unbiased(self) -> Float:
        """Unbiased estimates (n, K) of the one-hot vectors of the true classes."""
        if self.label_model is not None:
            return self.label_model.unbiased()
        return np.asarray(np.eye(self.z.shape[1])[self.y])

    @cached_property
    def weight(self) -> Float:
        """Weight of every row, (n,)."""
        return np.ones(len(self.z)) if self.given_weight is None else self.given_weight

    @cached_property
    def keys(self) -> Keys:
        """Hash of every row's logits, (n,); see :func:`hetcal._numeric.hashing.row_keys`."""
        return row_keys(self.z)

    @cached_property
    def max_abs(self) -> float:
        """Largest absolute value of a logit."""
        return float(max(self.z.max(initial=0), -self.z.min(initial=0)))

    @property
    def total_weight(self) -> float:
        """Sum of the weights."""
        return float(len(self.z)) if self.given_weight is None else float(self.given_weight.sum())

    def below_top(self, part: IntArray | slice) -> FloatArray:
        """``z − max z`` of the rows `part`. Do not modify the result: for small arrays, it may be cached."""
        if self.z.size < LARGE:
            return self._below[part]
        return below_top(self.z[part], self.top[part])

    @cached_property
    def _below(self) -> FloatArray:
        return below_top(self.z, self.top)

    def take(self, index: IntArray | slice) -> Rows:
        """Return the rows at `index`."""
        w = None if self.given_weight is None else self.given_weight[index]
        model = None if self.label_model is None else self.label_model.take(index)
        return Rows(self.z[index], self.y[index], self.guess[index], w, model)

    def with_logits(self, z: FloatArray) -> Rows:
        """Return rows with the logits `z` and with the labels and weights of these rows."""
        return Rows(z, self.y, decide(z), self.given_weight, self.label_model)


def code_type(n: int) -> type[np.unsignedinteger[Any]]:
    """Smallest unsigned integer type that holds all integers from 0 to `n`."""
    return next(t for t in (np.uint8, np.uint16, np.uint32, np.uint64) if n <= np.iinfo(t).max)


def decide(z: FloatArray) -> CodeArray:
    """Predicted class of every row, (n,); ties go to the lowest index."""
    guess = np.empty(len(z), code_type(z.shape[1]))
    kernels = compiled_for(z.size)

    def decide_block(start: int, stop: int) -> None:
        if kernels is not None and z.shape[1] < NARROW:  # for long rows, numpy is as fast
            kernels.decide(z, guess, start, stop)
        else:
            guess[start:stop] = z[start:stop].argmax(axis=1)

    over_blocks(decide_block, *z.shape)
    return guess


def prepare(z: FloatArray, y: IntArray, weight: Float | None, label_model: LabelModel | None = None) -> Rows:
    """Return `Rows` from validated arrays, without the rows of weight zero."""
    if weight is not None and not weight.all():
        positive = np.flatnonzero(weight > 0)
        z, y, weight = z[positive], y[positive], weight[positive]
        label_model = None if label_model is None else label_model.take(positive)
    guess = decide(z)
    return Rows(z, y.astype(guess.dtype), guess, weight, label_model)


def below_top(z: FloatArray, top: FloatArray) -> FloatArray:
    """``z − max z``, clipped to at least `FARTHEST`; `top` (n,) contains the row maxima.

    Without clipping, huge logits would give −inf, and −inf · 0 is nan.
    """
    with np.errstate(over="ignore"):
        d: FloatArray = z - top[:, None]
    if d.size and d.min() < FARTHEST:
        np.maximum(d, FARTHEST, out=d)
    return d
