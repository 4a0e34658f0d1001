"""Matrix scaling: ``softmax(x + D x + b)``, where x are logits at the best single temperature.

`Inputs` describes how x is computed. The NLL is convex in (D, b). The diagonal entries of D, its other
entries and the biases form three groups, each with its own penalty.

With up to 20 classes, a fit uses Newton's method with full Hessians. With more, it uses L-BFGS, and the
posterior variances are approximated from the diagonal blocks of the Hessian, one per class.

With more than 150 classes, a full D would have too many entries for data of usual size. Each row of D then
has only the diagonal entry and those of the 16 classes with which its class is confused most.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_array

from hetcal._numeric.evidence import Curvature, DenseHessian, NewtonProblem, Problem
from hetcal._numeric.rows import MAX_LOGIT, Rows
from hetcal._numeric.source import Source
from hetcal._typing import CodeArray, Float, FloatArray, IntArray
from hetcal._warnings import emit

__all__ = [
    "BIAS",
    "DIAGONAL",
    "MASK",
    "OFF_DIAGONAL",
    "Center",
    "Inputs",
    "MatrixModel",
    "apply_matrix",
    "prior_precision",
]

Center = Literal["logsumexp", "mean"]

DIAGONAL, OFF_DIAGONAL, BIAS = range(3)  # groups of parameters

MASK = 1e4  # a logit further below the maximum of its row masks its class

_MAX_DENSE = 20  # classes up to which full Hessians are used
_MAX_FULL = 150  # classes up to which every pair of classes has a parameter
_MAX_MATMUL = 400  # classes up to which products with a full matrix are faster than with a sparse one
_N_CONFUSED = 16  # off-diagonal entries per class, if there are more than _MAX_FULL classes
_CHUNK = 1 << 21  # rows are processed in chunks whose temporary arrays have about this many elements
_MAX_DECREASE = 1e-6  # a fit that could decrease the mean loss by more has not converged
_MAX_CHANGE = 0.2  # blocks of the Hessian are recomputed after a larger relative change of the loss


@dataclass(frozen=True)
class Inputs:
    """How logits become x, the input of the matrix.

    Attributes
    ----------
    alpha : inverse temperature
    limit : largest distance of an entry of α z below the maximum of its row; lower entries are raised
        A fit on n rows cannot tell probabilities below 1/(K n) apart, and very low logits would dominate it.
    center : constant that is subtracted from a row: its mean, or ``log Σ exp`` of the row
        With "logsumexp", x are log-probabilities.
    """

    alpha: float
    limit: float
    center: Center

    def __call__(self, z: FloatArray) -> tuple[Float, Float]:
        """Return x twice, (n, K) each, in float64: with masks, and without.

        A class is masked if its logit is more than 10,000 below the maximum. With masks, its entry is α times
        this difference, so that the class stays practically impossible; without, it is raised like other low
        entries. If no class is masked, both results are the same array.
        """
        with np.errstate(over="ignore"):  # huge logits
            below = np.maximum(z - z.max(axis=1, keepdims=True).astype(np.float64), -MAX_LOGIT)
        scaled = np.maximum(self.alpha * below, -self.limit)
        if self.center == "mean":
            constant = scaled.mean(axis=1, keepdims=True)
        else:
            constant = np.log(np.exp(scaled).sum(axis=1, keepdims=True))
        x = scaled - constant
        if below.min(initial=0) >= -MASK:
            return x, x
        return np.where(below < -MASK, self.alpha * below, x), x


@dataclass(frozen=True, eq=False)
class MatrixModel:
    """The loss of matrix scaling as a function of θ.

    θ has one row per class k: the entries ``D[k, columns[k]]`` and the bias ``b[k]``.

    Attributes
    ----------
    inputs : how logits become x
    columns : (K, m) for each row of D, the columns whose entries are parameters
    """

    inputs: Inputs
    columns: IntArray

    @classmethod
    def of(cls, source: Source, inputs: Inputs) -> MatrixModel:
        """Choose the entries of D that are parameters: all of them if there are up to 150 classes."""
        n_classes = source.n_classes
        everything = np.tile(np.arange(n_classes), (n_classes, 1))
        if n_classes <= _MAX_FULL:
            return cls(inputs, everything)
        diagonal = cls(inputs, np.arange(n_classes)[:, None])
        (confusion,) = source.sum_rows(_Confusion(diagonal))
        np.fill_diagonal(confusion, np.inf)  # diagonal entries are always parameters
        order = np.argsort(-confusion, axis=1, kind="stable")[:, : 1 + _N_CONFUSED]
        return cls(inputs, np.sort(order, axis=1))

    @property
    def n_classes(self) -> int:
        """Number of classes K."""
        return len(self.columns)

    @property
    def is_full(self) -> bool:
        """Whether every entry of D is a parameter."""
        return bool(self.columns.shape[1] == self.n_classes)

    @property
    def has_hessian(self) -> bool:
        """Whether there are few enough classes for full Hessians."""
        return self.n_classes <= _MAX_DENSE

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

    def evaluate(self, rows: Rows, part: slice, theta: Float) -> tuple[CodeArray, Float, Float, Float, Float]:
        """Labels, weights, x without masks (n, K), probabilities (n, K) and NLL (n,) of the rows `part`."""
        y, w = rows.y[part], rows.weight[part]
        own, x = self.inputs(rows.z[part])
        return y, w, x, *_probs(own + self.move(x, theta), y)

    def move(self, x: Float, theta: Float) -> Float:
        """``D x + b``, (n, K)."""
        d, bias = self.matrix(theta)
        if self.n_classes > _MAX_MATMUL:
            d = csr_array(d)
        return np.asarray((d @ x.T).T + bias)

    def collect(self, x: Float, residual: Float) -> Float:
        """``Σ_i residual_ik · (x_i[columns[k]], 1)`` for every class k, (K, m + 1)."""
        out = np.empty((self.n_classes, self.columns.shape[1] + 1))
        out[:, -1] = residual.sum(axis=0)
        if self.n_classes <= _MAX_MATMUL:
            out[:, :-1] = np.take_along_axis(residual.T @ x, self.columns, axis=1)
        else:
            by_class = np.ascontiguousarray(x.T)
            for k, columns in enumerate(self.columns):
                out[k, :-1] = by_class[columns] @ residual[:, k]
        return out

    def problem(self, source: Source) -> Problem:
        """Return the loss on the rows of `source` as a problem to minimise."""
        if not self.has_hessian:
            return _ManyClasses(self, source)

        def evaluate(theta: Float) -> tuple[float, Float, Curvature]:
            loss, gradient, hessian = source.sum_rows(_Sums(self, theta))
            return float(loss), gradient.ravel(), DenseHessian(hessian)

        return NewtonProblem(evaluate)

    def loss(self, source: Source, theta: Float) -> float:
        """NLL summed over the rows."""
        return float(source.sum_rows(_Loss(self, theta))[0])


def prior_precision(n_classes: int) -> Float:
    """Prior precisions of the diagonal entries, the off-diagonal entries and the biases, (3,).

    These are the penalties of structured matrix scaling (Berta et al., 2026): 2K, 2K(K − 1) and 2K.
    """
    k = float(n_classes)
    return np.array([2 * k, 2 * k * (k - 1), 2 * k])


def apply_matrix(z: FloatArray, inputs: Inputs, change: Float, bias: Float) -> Float:
    """``x + D x + b`` in float64, (n, K), where `change` is D."""
    own, x = inputs(z)
    return np.asarray(own + x @ change.T + bias)


class _ManyClasses:
    """Matrix scaling for many classes, minimised by L-BFGS in units of equal curvature."""

    def __init__(self, model: MatrixModel, source: Source) -> None:
        self.model, self.source = model, source
        self.total = source.weights()[0]
        self._loss = self._loss_of_blocks = np.inf
        self._blocks: Float = np.empty(0)

    def minimise(
        self, theta: Float, precision: Float, tolerance: float, negligible: float
    ) -> tuple[Float, float]:
        """Minimiser (p,) of the penalised loss, and the unpenalised loss there."""
        penalty = np.where(np.isfinite(precision), precision, 0.0)
        curvature = self._curvature + penalty
        # Parameters without any curvature, such as those of a masked class, have no effect and stay zero.
        free = np.isfinite(precision) & (curvature > 0)
        unit = np.divide(1.0, np.sqrt(curvature), out=np.zeros_like(curvature), where=free)
        theta = np.where(free, theta, 0.0)

        def value(v: Float) -> tuple[float, Float]:
            parameters = unit * v
            loss, gradient = self.source.sum_rows(_Gradient(self.model, parameters))
            self._loss = float(loss)
            slope = unit * (gradient.ravel() + penalty * parameters)
            return (self._loss + float(penalty @ parameters**2) / 2) / self.total, slope / self.total

        def stop_early(_: Float) -> None:
            if self._loss <= negligible:
                raise StopIteration

        start = np.divide(theta, unit, out=np.zeros_like(theta), where=unit > 0)
        options = {"maxiter": 1000, "maxfun": 2000, "maxcor": 20, "ftol": tolerance, "gtol": 1e-9}
        solution = minimize(value, start, jac=True, method="L-BFGS-B", callback=stop_early, options=options)
        _, slope = value(solution.x)  # the last evaluation may be that of a rejected step
        if slope @ slope / 2 > _MAX_DECREASE * max(1.0, abs(solution.fun)) and tolerance < _MAX_DECREASE:
            emit(f"matrix scaling did not converge: {solution.message}", RuntimeWarning)
        return unit * solution.x, self._loss

    def variances(self, theta: Float, precision: Float) -> Float:
        """Posterior variances, as if parameters of different classes were independent, (p,)."""
        if not abs(self._loss - self._loss_of_blocks) <= _MAX_CHANGE * self._loss:
            (self._blocks,) = self.source.sum_rows(_BlockSums(self.model, theta))
            self._loss_of_blocks = self._loss
        blocks = self._blocks.copy()
        added = 1e-10 * (1 + float(blocks.max()))  # keeps blocks without information invertible
        np.einsum("kii->ki", blocks)[...] += precision.reshape(len(blocks), -1) + added
        return np.array(np.einsum("kii->ki", np.linalg.inv(blocks)).ravel(), np.float64)

    @cached_property
    def _curvature(self) -> Float:
        """Diagonal of the Hessian at θ = 0, (p,)."""
        start = np.zeros(self.model.columns.size + self.model.n_classes)
        return np.asarray(self.source.sum_rows(_Diagonal(self.model, start))[0].ravel())


# -- Statistics of blocks of rows; they must be picklable, since they may be sent to other machines. --


@dataclass(frozen=True, eq=False)
class _Sums:
    """Loss, gradient (K, K + 1) and full Hessian (p, p), for few classes."""

    model: MatrixModel
    theta: Float

    def __call__(self, rows: Rows) -> tuple[NDArray[Any], ...]:
        k = self.model.n_classes
        loss, gradient, hessian = 0.0, np.zeros((k, k + 1)), np.zeros((k * (k + 1),) * 2)
        for part in _chunks(len(rows), k * (k + 1)):
            y, w, x, p, nll = self.model.evaluate(rows, part, self.theta)
            wp = w[:, None] * p
            loss += float(w @ nll)
            hessian += _full_hessian(x, p, w)
            wp[np.arange(len(x)), y] -= w
            gradient += self.model.collect(x, wp)
        return np.array(loss), gradient, hessian


@dataclass(frozen=True, eq=False)
class _Gradient:
    """Loss and gradient (K, m + 1)."""

    model: MatrixModel
    theta: Float

    def __call__(self, rows: Rows) -> tuple[NDArray[Any], ...]:
        loss, gradient = 0.0, np.zeros((self.model.n_classes, self.model.columns.shape[1] + 1))
        for part in _chunks(len(rows), self.model.n_classes):
            y, w, x, p, nll = self.model.evaluate(rows, part, self.theta)
            loss += float(w @ nll)
            p *= w[:, None]
            p[np.arange(len(x)), y] -= w
            gradient += self.model.collect(x, p)
        return np.array(loss), gradient


@dataclass(frozen=True, eq=False)
class _BlockSums:
    """Diagonal blocks of the Hessian, one per class, (K, m + 1, m + 1)."""

    model: MatrixModel
    theta: Float

    def __call__(self, rows: Rows) -> tuple[NDArray[Any], ...]:
        k, m = self.model.columns.shape
        out = np.zeros((k, m + 1, m + 1))
        for part in _chunks(len(rows), k):
            _, w, x, p, _ = self.model.evaluate(rows, part, self.theta)
            with_one = np.hstack([x, np.ones((len(x), 1))])
            curvature = w[:, None] * p * (1 - p)
            for i, columns in enumerate(self.model.columns):
                used = with_one if self.model.is_full else with_one[:, np.append(columns, k)]
                out[i] += (used * curvature[:, i : i + 1]).T @ used
        return (out,)


@dataclass(frozen=True, eq=False)
class _Loss:
    """NLL summed over the rows."""

    model: MatrixModel
    theta: Float

    def __call__(self, rows: Rows) -> tuple[NDArray[Any], ...]:
        loss = 0.0
        for part in _chunks(len(rows), self.model.n_classes):
            _, w, _, _, nll = self.model.evaluate(rows, part, self.theta)
            loss += float(w @ nll)
        return (np.array(loss),)


@dataclass(frozen=True, eq=False)
class _Diagonal:
    """Diagonal of the Hessian, (K, m + 1)."""

    model: MatrixModel
    theta: Float

    def __call__(self, rows: Rows) -> tuple[NDArray[Any], ...]:
        out = np.zeros((self.model.n_classes, self.model.columns.shape[1] + 1))
        for part in _chunks(len(rows), self.model.n_classes):
            _, w, x, p, _ = self.model.evaluate(rows, part, self.theta)
            out += self.model.collect(x**2, w[:, None] * p * (1 - p))
        return (out,)


@dataclass(frozen=True, eq=False)
class _Confusion:
    """``Σ_i w_i p_ik p_ij`` for all classes k and j, (K, K), which is large if they are often confused."""

    model: MatrixModel

    def __call__(self, rows: Rows) -> tuple[NDArray[Any], ...]:
        out = np.zeros((self.model.n_classes,) * 2)
        for part in _chunks(len(rows), self.model.n_classes):
            _, w, _, p, _ = self.model.evaluate(rows, part, np.zeros(2 * self.model.n_classes))
            out += (p * w[:, None]).T @ p
        return (out,)


def _probs(u: Float, y: CodeArray) -> tuple[Float, Float]:
    """Softmax (n, K) of `u`, which is overwritten, and NLL of the labels (n,)."""
    u -= u.max(axis=1, keepdims=True)
    true = u[np.arange(len(u)), y]
    np.exp(u, out=u)
    total = u.sum(axis=1)
    u /= total[:, None]
    return u, np.log(total) - true


def _full_hessian(x: Float, p: Float, w: Float) -> Float:
    """``Σ_i w (diag(p) − p pᵀ) ⊗ (x, 1)(x, 1)ᵀ``, (K (K + 1), K (K + 1))."""
    n, k = x.shape
    with_one = np.hstack([x, np.ones((n, 1))])
    weighted = p * np.sqrt(w)[:, None]
    products = (weighted[:, :, None] * with_one[:, None, :]).reshape(n, -1)
    hessian = -(products.T @ products)
    by_class = hessian.reshape(k, k + 1, k, k + 1)
    weighted *= np.sqrt(w)[:, None]
    for i in range(k):
        by_class[i, :, i, :] += (with_one * weighted[:, i : i + 1]).T @ with_one
    return np.asarray(hessian)


def _chunks(n_rows: int, width: int) -> list[slice]:
    step = max(1, _CHUNK // width)
    return [slice(start, start + step) for start in range(0, n_rows, step)]
