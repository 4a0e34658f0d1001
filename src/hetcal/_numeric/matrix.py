"""Matrix scaling: ``softmax(x + D x + b)`` of logits x at the best single temperature.

The NLL is convex in (D, b). Diagonal, off-diagonal entries and biases form three groups with a penalty each.

With up to 20 classes a fit uses full Hessians. With more, a Newton step is solved by conjugate gradients,
preconditioned by the part of the Hessian that belongs to one class at a time, whose inverse also gives the
posterior variances. With more than 150 classes, K² entries are too many for the rows that people have: every
class then uses only the logits of the few classes it is confused with most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._numeric.evidence import Curvature, DenseHessian, Evaluate
from hetcal._numeric.probabilities import FAR
from hetcal._numeric.rows import MAX_LOGIT, Rows
from hetcal._numeric.source import Source
from hetcal._typing import CodeArray, Float, FloatArray, IntArray

__all__ = ["BIAS", "DIAGONAL", "OFF_DIAGONAL", "MatrixModel", "apply_matrix", "prior_precision", "split_logits"]

DIAGONAL, OFF_DIAGONAL, BIAS = range(3)  # groups of parameters

_MAX_DENSE = 20  # classes up to which full Hessians are used
_MAX_FULL = 150  # classes up to which every pair of classes has a parameter
_N_CONFUSED = 16  # off-diagonal entries of a class, if there are more classes than that
_CHUNK = 1 << 21  # elements of the largest temporary array
_MAX_CG_STEPS, _CG_TOLERANCE = 200, 1e-4


@dataclass(frozen=True, eq=False)
class MatrixModel:
    """The loss of matrix scaling as a function of θ.

    θ has one row per class k: the entries ``D[k, columns[k]]`` and the bias ``b[k]``.

    Attributes
    ----------
    alpha : inverse temperature of x = α z
    center : whether to subtract the mean of every row of logits first
    columns : (K, m) columns of D that have a parameter, by row
    """

    alpha: float
    center: bool
    columns: IntArray

    @classmethod
    def of(cls, source: Source, alpha: float, *, center: bool) -> MatrixModel:
        """Choose the entries of D that have a parameter; with up to 150 classes these are all."""
        n_classes = source.n_classes
        everything = np.tile(np.arange(n_classes), (n_classes, 1))
        if n_classes <= _MAX_FULL:
            return cls(alpha, center, everything)
        diagonal = cls(alpha, center, np.arange(n_classes)[:, None])
        (confusion,) = source.sum_rows(_Confusion(diagonal))
        np.fill_diagonal(confusion, np.inf)  # the diagonal always has a parameter
        order = np.argsort(-confusion, axis=1, kind="stable")[:, : 1 + _N_CONFUSED]
        return cls(alpha, center, np.sort(order, axis=1))

    @property
    def n_classes(self) -> int:
        """Number of classes K."""
        return len(self.columns)

    @property
    def is_full(self) -> bool:
        """Whether every entry of D has a parameter."""
        return self.columns.shape[1] == self.n_classes

    @property
    def groups(self) -> IntArray:
        """Group of every parameter, (K (m + 1),)."""
        off = np.where(self.columns == np.arange(self.n_classes)[:, None], DIAGONAL, OFF_DIAGONAL)
        return np.hstack([off, np.full((self.n_classes, 1), BIAS)]).ravel()

    def matrix(self, theta: Float) -> tuple[Float, Float]:
        """``D`` (K, K) and ``b`` (K,)."""
        table = theta.reshape(self.n_classes, -1)
        d = np.zeros((self.n_classes, self.n_classes))
        np.put_along_axis(d, self.columns, table[:, :-1], axis=1)
        return d, table[:, -1]

    def features(self, z: FloatArray) -> tuple[Float, Float]:
        """``α z`` and what D multiplies, each (n, K)."""
        own, shared = split_logits(z, center=self.center)
        x = self.alpha * shared
        return (x if own is shared else self.alpha * own), x

    def move(self, x: Float, theta: Float) -> Float:
        """``D x + b``, (n, K)."""
        table = theta.reshape(self.n_classes, -1)
        if self.is_full:
            return np.asarray(x @ table[:, :-1].T + table[:, -1])
        out = np.empty_like(x)
        for k, columns in enumerate(self.columns):
            out[:, k] = x[:, columns] @ table[k, :-1] + table[k, -1]
        return out

    def collect(self, x: Float, residual: Float) -> Float:
        """``Σ_i residual_ik · (x_i[columns[k]], 1)`` for every class k, (K, m + 1)."""
        out = np.empty((self.n_classes, self.columns.shape[1] + 1))
        out[:, -1] = residual.sum(axis=0)
        if self.is_full:
            out[:, :-1] = residual.T @ x
        else:
            for k, columns in enumerate(self.columns):
                out[k, :-1] = residual[:, k] @ x[:, columns]
        return out

    def blocks(self, x: Float, wp: Float, p: Float) -> Float:
        """Part of the Hessian that belongs to one class at a time, (K, m + 1, m + 1)."""
        out = np.empty((self.n_classes, self.columns.shape[1] + 1, self.columns.shape[1] + 1))
        with_one = np.hstack([x, np.ones((len(x), 1))])
        for k, columns in enumerate(self.columns):
            part = with_one if self.is_full else with_one[:, np.append(columns, self.n_classes)]
            out[k] = (part * (wp[:, k] * (1 - p[:, k]))[:, None]).T @ part
        return out

    def evaluator(self, source: Source) -> Evaluate:
        """Return a function that computes the loss, its gradient and its curvature."""
        dense = self.n_classes <= _MAX_DENSE

        def evaluate(theta: Float) -> tuple[float, Float, Curvature]:
            loss, gradient, second = source.sum_rows(_Sums(self, theta, dense))
            if dense:
                return float(loss), gradient.ravel(), DenseHessian(second)
            return float(loss), gradient.ravel(), _BlockCurvature(self, source, theta, second)

        return evaluate


def prior_precision(n_classes: int) -> Float:
    """Precision of diagonal, off-diagonal entries and biases before the data are seen, (3,).

    These are the penalties of structured matrix scaling (Berta et al., 2026): 2K, 2K(K − 1) and 2K.
    """
    k = float(n_classes)
    return np.array([2 * k, 2 * k * (k - 1), 2 * k])


def split_logits(z: FloatArray, *, center: bool) -> tuple[Float, Float]:
    """Logits in float64, and the same with entries raised to 100 below the maximum of their row, (n, K).

    A class that is masked by a very low logit stays masked, but does not dominate the sums of other classes.
    Without such entries both are the same array.
    """
    top = z.max(axis=1, keepdims=True).astype(np.float64)
    below = np.maximum(z - top, -MAX_LOGIT)
    near = below if below.min(initial=0) >= -FAR else np.maximum(below, -FAR)
    offset = -near.mean(axis=1, keepdims=True) if center else np.clip(top, -MAX_LOGIT, MAX_LOGIT)
    shared = near + offset
    return (shared if near is below else below + offset), shared


def apply_matrix(z: FloatArray, alpha: float, change: Float, bias: Float, *, center: bool) -> Float:
    """``α z + change z + b`` in float64, (n, K), where `change` is α D."""
    own, shared = split_logits(z, center=center)
    return np.asarray(alpha * own + shared @ change.T + bias)


@dataclass(frozen=True, eq=False)
class _BlockCurvature:
    """The Hessian by its blocks (K, m + 1, m + 1), and by products with vectors."""

    model: MatrixModel
    source: Source
    theta: Float
    diagonal_blocks: Float

    def solve(self, gradient: Float, precision: Float) -> Float:
        """Newton step by preconditioned conjugate gradients."""
        inverse = self._inverse(precision)

        def precondition(v: Float) -> Float:
            return np.einsum("kij,kj->ki", inverse, v.reshape(len(inverse), -1)).ravel()

        step, residual = np.zeros_like(gradient), gradient.copy()
        preconditioned = precondition(residual)
        direction = preconditioned.copy()
        size = first = float(residual @ preconditioned)
        for _ in range(_MAX_CG_STEPS):
            if size <= _CG_TOLERANCE * first or size <= 0:
                break
            (product,) = self.source.sum_rows(_Product(self.model, self.theta, direction))
            product = product.ravel() + precision * direction
            length = size / float(direction @ product)
            step += length * direction
            residual -= length * product
            preconditioned = precondition(residual)
            new_size = float(residual @ preconditioned)
            direction = preconditioned + new_size / size * direction
            size = new_size
        return step

    def variances(self, precision: Float) -> Float:
        """Posterior variances, if parameters of different classes were independent, (p,)."""
        return np.einsum("kii->ki", self._inverse(precision)).ravel().copy()

    def _inverse(self, precision: Float) -> Float:
        blocks = self.diagonal_blocks.copy()
        np.einsum("kii->ki", blocks)[...] += precision.reshape(len(blocks), -1) + 1e-10 * (1 + blocks.max())
        return np.linalg.inv(blocks)


# -- Statistics of blocks of rows; they must be picklable, since they are sent to where the rows are. --


@dataclass(frozen=True, eq=False)
class _Sums:
    """Loss, gradient (K, m + 1) and Hessian: full (p, p) if `dense`, else by class (K, m + 1, m + 1)."""

    model: MatrixModel
    theta: Float
    dense: bool

    def __call__(self, rows: Rows) -> tuple[NDArray[Any], ...]:
        model = self.model
        k, m = model.columns.shape
        second = np.zeros((k * (m + 1),) * 2 if self.dense else (k, m + 1, m + 1))
        loss, gradient = 0.0, np.zeros((k, m + 1))
        for part in _chunks(len(rows), k * (m + 1) if self.dense else k):
            w, (own, x) = rows.weight[part], model.features(rows.z[part])
            p, nll = _probs(own + model.move(x, self.theta), rows.y[part])
            wp = w[:, None] * p
            loss += float(w @ nll)
            second += _full_hessian(x, wp, p) if self.dense else model.blocks(x, wp, p)
            wp[np.arange(len(x)), rows.y[part]] -= w
            gradient += model.collect(x, wp)
        return np.array(loss), gradient, second


@dataclass(frozen=True, eq=False)
class _Product:
    """Product of the Hessian with a vector, (K, m + 1)."""

    model: MatrixModel
    theta: Float
    vector: Float

    def __call__(self, rows: Rows) -> tuple[NDArray[Any], ...]:
        out = np.zeros((self.model.n_classes, self.model.columns.shape[1] + 1))
        for part in _chunks(len(rows), self.model.n_classes):
            own, x = self.model.features(rows.z[part])
            p, _ = _probs(own + self.model.move(x, self.theta), rows.y[part])
            change = self.model.move(x, self.vector)
            change -= np.einsum("ij,ij->i", p, change)[:, None]
            out += self.model.collect(x, change * p * rows.weight[part][:, None])
        return (out,)


@dataclass(frozen=True, eq=False)
class _Confusion:
    """How much probability a class takes from rows of other classes, (K, K): ``Σ_i w p_k p_j`` for k ≠ j."""

    model: MatrixModel

    def __call__(self, rows: Rows) -> tuple[NDArray[Any], ...]:
        out = np.zeros((self.model.n_classes,) * 2)
        for part in _chunks(len(rows), self.model.n_classes):
            p, _ = _probs(self.model.features(rows.z[part])[0].copy(), rows.y[part])
            out += (p * rows.weight[part][:, None]).T @ p
        return (out,)


def _probs(u: Float, y: CodeArray) -> tuple[Float, Float]:
    """Softmax (n, K) of `u`, which is overwritten, and NLL of the labels (n,)."""
    u -= u.max(axis=1, keepdims=True)
    true = u[np.arange(len(u)), y]
    np.exp(u, out=u)
    total = u.sum(axis=1)
    u /= total[:, None]
    return u, np.log(total) - true


def _full_hessian(x: Float, wp: Float, p: Float) -> Float:
    """``Σ_i w (diag(p) − p pᵀ) ⊗ (x, 1)(x, 1)ᵀ``, (K (K + 1), K (K + 1))."""
    n, k = x.shape
    with_one = np.hstack([x, np.ones((n, 1))])
    weighted = (wp[:, :, None] * with_one[:, None, :]).reshape(n, -1)
    plain = (p[:, :, None] * with_one[:, None, :]).reshape(n, -1)
    hessian = -(weighted.T @ plain)
    by_class = hessian.reshape(k, k + 1, k, k + 1)
    for i in range(k):
        by_class[i, :, i, :] += (with_one * wp[:, i : i + 1]).T @ with_one
    return hessian


def _chunks(n_rows: int, width: int) -> list[slice]:
    step = max(1, _CHUNK // width)
    return [slice(start, start + step) for start in range(0, n_rows, step)]
