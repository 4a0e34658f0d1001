"""Models of soft labels, which are distributions, and of noisy labels, which may be wrong.

The loss of a row is ``log Σ_j e^{u_j} − pull(u)``, where u are the calibrated logits. The function ``pull``
depends on what is known about the true class. If this is the label y, ``pull(u) = u_y``. For soft labels q,
``pull(u) = q · u``. For a noisy label ỹ, ``pull(u) = log Σ_j e^{u_j} T[j, ỹ]``, where ``T[j, ỹ]`` is the
probability of the label ỹ if the true class is j. The loss is then the NLL of the observed label,
``−log (p T)_ỹ``, where p are the calibrated probabilities.

In all cases, the gradient of the loss in u is ``p − q``. Here q is the gradient of the pull: the
probabilities of the true class given everything that is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
from scipy.special import expit

from hetcal._typing import CodeArray, Float, FloatArray, IntArray

__all__ = ["Correctness", "LabelModel", "NoisyLabels", "SoftLabels", "noisy_correctness", "positive_or"]

_VANISHING = 1e-30  # likelihoods below this are computed again with logarithms
_TINY = 1e-300  # smaller likelihoods are raised to this before their logarithm is taken


@dataclass(frozen=True, eq=False)
class Correctness:
    """What is known about whether the predictions are correct: `share`, or the other two attributes.

    Let v be the log-odds of a correct prediction. The loss of a row is then ``log(1 + e^v) − pull(v)``. If
    `share` is given, ``pull(v) = share · v``. If not, ``pull(v) = log(e^{v + if_correct} + e^{if_wrong})``.

    Attributes
    ----------
    share : (n,) 1 if the prediction is correct and 0 if it is wrong, or an estimate of this number
        For soft labels, it is the probability of the predicted class under the soft label. For noisy labels,
        it may be an unbiased estimate, which can lie outside [0, 1].
    if_correct, if_wrong : (n,) log-likelihood of the observed label if the prediction is correct, and if not
    """

    share: Float | None = None
    if_correct: Float | None = None
    if_wrong: Float | None = None

    def take(self, index: Any) -> Correctness:
        """Return the correctness of the rows at `index`."""
        parts = (self.share, self.if_correct, self.if_wrong)
        return Correctness(*(None if part is None else part[index] for part in parts))

    def pull(self, v: Float) -> tuple[Float, Float]:
        """Value of the pull for the log-odds `v` (n,) of every row, and its derivative in v, (n,) each."""
        if self.share is not None:
            return self.share * v, self.share
        if self.if_correct is None or self.if_wrong is None:
            raise ValueError("share must be an array, got None; pass share, or both if_correct and if_wrong")
        return np.logaddexp(v + self.if_correct, self.if_wrong), expit(v + self.if_correct - self.if_wrong)

    def curvature(self, derivative: Float) -> Float:
        """Second derivative of the pull in v, computed from its first derivative."""
        return np.zeros_like(derivative) if self.share is not None else derivative * (1 - derivative)


class LabelModel(Protocol):
    """What is known about the true classes of n rows."""

    @property
    def is_noisy(self) -> bool:
        """Whether the labels are noisy.

        If so, the pull (see the top of this module) is curved, which reduces the curvature of the loss.
        """

    def take(self, index: IntArray | slice) -> Self:
        """Return the model of the rows at `index`."""

    def posterior(self, log_p: Float) -> tuple[Float, Float]:
        """Probabilities q (n, K) of the true classes given the labels, and the loss (n,) of every row.

        `log_p` (n, K) are the logarithms of the calibrated probabilities.
        """

    def moments(self, d: FloatArray, alpha: Float) -> tuple[Float, Float, Float, Float]:
        """``pull(α d)`` of every row, and its first three derivatives in α, (n,) each.

        d (n, K) are logits minus their row maximum, and α (n,) is the inverse temperature of every row.
        """

    def unbiased(self) -> Float:
        """Unbiased estimates (n, K) of the one-hot vectors of the true classes.

        Soft labels themselves are the estimates. For a noisy label ỹ, the estimate is row ỹ of ``T⁻¹``, which
        can contain negative numbers.
        """

    def correctness(self, z: FloatArray, guess: CodeArray) -> Correctness:
        """Return what is known about whether `guess` (n,) is correct.

        For noisy labels, the probabilities of the other classes, given that a guess is wrong, are assumed to
        be proportional to ``exp(z)``, where `z` (n, K) are the logits.
        """


@dataclass(frozen=True, eq=False)
class SoftLabels:
    """Soft labels: a probability distribution `q` over the classes for every row, (n, K)."""

    q: Float

    is_noisy = False

    def take(self, index: IntArray | slice) -> SoftLabels:
        """Return the soft labels of the rows at `index`."""
        return SoftLabels(self.q[index])

    def posterior(self, log_p: Float) -> tuple[Float, Float]:
        """Soft labels (n, K), and the cross-entropy (n,) of every row."""
        return self.q, -np.einsum("ij,ij->i", self.q, log_p)

    def moments(self, d: FloatArray, alpha: Float) -> tuple[Float, Float, Float, Float]:
        """``α q · d`` and its first three derivatives in α: ``q · d``, 0 and 0."""
        mean = np.einsum("ij,ij->i", self.q, d, dtype=np.float64)
        zero = np.zeros(len(mean))
        return alpha * mean, mean, zero, zero

    def unbiased(self) -> Float:
        """Return the soft labels."""
        return self.q

    def correctness(self, z: FloatArray, guess: CodeArray) -> Correctness:  # noqa: ARG002
        """Return the probability of the predicted class under the soft labels, as `share`."""
        return Correctness(share=self.q[np.arange(len(guess)), guess])


@dataclass(frozen=True, eq=False)
class NoisyLabels:
    """Labels that may be wrong.

    Attributes
    ----------
    y : (n,) observed labels
    transition : (K, K) probability of each observed label (column) given the true class (row)
    known : what is known about the correctness of the predictions, or None
        If it is None, `correctness` is computed from the logits of the rows.
    """

    y: IntArray
    transition: Float
    known: Correctness | None = None

    is_noisy = True

    def take(self, index: IntArray | slice) -> NoisyLabels:
        """Return the labels of the rows at `index`."""
        known = None if self.known is None else self.known.take(index)
        return NoisyLabels(self.y[index], self.transition, known)

    @property
    def likelihood(self) -> Float:
        """Probability of each observed label (row) given the true class (column), (K, K)."""
        return np.ascontiguousarray(self.transition.T)

    @cached_property
    def log_likelihood(self) -> Float:
        """Logarithm of the probability of the observed label given each true class, (n, K)."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.transition).T[self.y])

    def posterior(self, log_p: Float) -> tuple[Float, Float]:
        """Probabilities (n, K) of the true classes given the observed labels, and NLL (n,) of the labels."""
        joint = log_p + self.log_likelihood
        top = joint.max(axis=1, keepdims=True)
        joint -= top
        np.exp(joint, out=joint)
        total = joint.sum(axis=1, keepdims=True)
        joint /= total
        return joint, -(top + np.log(total))[:, 0]

    def moments(self, d: FloatArray, alpha: Float) -> tuple[Float, Float, Float, Float]:
        """``log Σ_j e^{α d_j} T[j, ỹ]`` and its first three derivatives in α, (n,) each.

        The derivatives are the mean, the variance and the third central moment of ``d_j`` under the posterior
        distribution of the true class j given the observed label.
        """
        weight = np.minimum(alpha, np.finfo(d.dtype).max).astype(d.dtype)[:, None] * d
        np.exp(weight, out=weight)
        weight *= self.likelihood.astype(d.dtype)[self.y]
        ones = np.ones(d.shape[1], d.dtype)
        total = (weight @ ones).astype(np.float64)
        vanishing = np.flatnonzero(total < _VANISHING)
        total[vanishing] = 1.0
        mean, square, cube = (np.multiply(weight, d, out=weight) @ ones / total for _ in range(3))
        var = np.maximum(square - mean * mean, 0)
        result = np.stack([np.log(total), mean, var, cube - mean * (square + 2 * var)])
        if vanishing.size:  # for all likely true classes, the observed label is nearly impossible
            result[:, vanishing] = self.take(vanishing)._exact_moments(d[vanishing], alpha[vanishing])
        pull, mean, var, skew = result
        return pull, mean, var, skew

    def _exact_moments(self, d: FloatArray, alpha: Float) -> Float:
        """The same as `moments`, (4, n), but computed without underflow."""
        d = d.astype(np.float64)
        q, loss = self.posterior(alpha[:, None] * d)
        mean = np.einsum("ij,ij->i", q, d)
        deviation = d - mean[:, None]
        var, skew = (np.einsum("ij,ij->i", q, deviation**power) for power in (2, 3))
        return np.stack([-loss, mean, var, skew])

    def unbiased(self) -> Float:
        """Return the row of ``T⁻¹`` for every observed label, (n, K)."""
        return np.asarray(np.linalg.inv(self.transition)[self.y])

    def correctness(self, z: FloatArray, guess: CodeArray) -> Correctness:
        """Return the log-likelihoods of the observed labels if the predictions are correct, and if not.

        If `known` is given, it is returned instead.
        """
        if self.known is not None:
            return self.known
        row = np.arange(len(guess))
        rest = z.astype(np.float64)
        rest[row, guess] = -np.inf
        rest -= rest.max(axis=1, keepdims=True)
        np.exp(rest, out=rest)
        by_class = self.transition.T[self.y]
        if_wrong = np.einsum("ij,ij->i", rest, by_class) / rest.sum(axis=1)
        return noisy_correctness(by_class[row, guess], if_wrong)


def noisy_correctness(if_correct: Float, if_wrong: Float) -> Correctness:
    """Return the `Correctness` for noisy labels.

    `if_correct` and `if_wrong` (n,) are the likelihoods of the observed labels if the predictions are
    correct, and if they are wrong. Both may contain zeros.
    """
    log_correct, log_wrong = (np.log(np.maximum(value, _TINY)) for value in (if_correct, if_wrong))
    return Correctness(if_correct=log_correct, if_wrong=log_wrong)


def positive_or(hessian: Float, pulled: Float) -> Float:
    """``hessian − pulled`` where this matrix is positive semidefinite, otherwise `hessian`, (..., p, p).

    The loss of noisy labels is a difference of two convex functions with the Hessians `hessian` and `pulled`.
    Newton steps with `hessian` alone are steps of an EM algorithm. They are safe but slow. Near a minimum,
    steps with the difference converge faster.
    """
    difference = hessian - pulled
    values = np.linalg.eigvalsh(difference)
    is_positive = values[..., 0] >= -1e-9 * np.abs(values[..., -1])
    return np.where(is_positive[..., None, None], difference, hessian)
