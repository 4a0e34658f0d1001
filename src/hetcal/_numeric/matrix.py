"""Matrix scaling: ``softmax(x + D x + b)``, where x are the logits at the best single temperature.

`Inputs` describes how x is computed. The diagonal entries of D, its off-diagonal entries and the biases b
form three groups of parameters, each with its own penalty. A curve can be added to the logit of each class: a
smooth function of the log-odds of that class. The coefficients of the curves form three more groups.
Unless the labels are noisy, the NLL is convex in all parameters.

With up to 20 classes, a fit uses Newton's method with full Hessians. With more, it uses L-BFGS,
preconditioned with the diagonal of the Hessian or with its diagonal blocks, one per class. The blocks also
give approximate posterior variances.

With more than 150 classes, a full D would have too many entries for data of usual size. Each row of D then
has only the diagonal entry and those of the 16 classes with which its class is confused most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_array

from hetcal._numeric.binary import FINE_PRIOR
from hetcal._numeric.block_hessian import BlockHessian, DiagonalHessian
from hetcal._numeric.curves import CurveFeatures, Curves
from hetcal._numeric.evidence import Curvature, DenseHessian, NewtonProblem, Problem, QuadraticModel
from hetcal._numeric.label_models import LabelModel, NoisyLabels
from hetcal._numeric.rows import MAX_LOGIT, Rows
from hetcal._numeric.source import NotInMemory, Source
from hetcal._numeric.threads import in_order, with_one_blas_thread
from hetcal._typing import CodeArray, Float, FloatArray, IntArray
from hetcal._warnings import emit

__all__ = [
    "BETA",
    "BIAS",
    "BROAD",
    "DIAGONAL",
    "FINE",
    "MASK",
    "OFF_DIAGONAL",
    "Center",
    "Inputs",
    "MatrixModel",
    "apply_matrix",
    "prior_precision",
]

Center = Literal["logsumexp", "mean"]

# Groups of parameters. The last three are the coefficients of the curves: of the features with knot 0, the
# broad features and the fine features (see `curves`).
DIAGONAL, OFF_DIAGONAL, BIAS, BETA, BROAD, FINE = range(6)

MASK = 1e4  # a class is masked if its logit is further than this below the maximum of the row

_MAX_DENSE = 20  # largest number of classes for which full Hessians are used
_MAX_FULL = 150  # largest number of classes for which every entry of D is a parameter
_MAX_MATMUL = 400  # largest number of classes for which a dense array for D is faster than a sparse one
_N_CONFUSED = 16  # off-diagonal parameters in each row of D if there are more than _MAX_FULL classes
# Rows are processed in blocks. The next three constants determine how many rows a block has: the largest
# array that is computed for the rows of a block has about this many elements.
_BLOCK = 1 << 17  # small enough for the arrays of a block to stay in the cache
_HESSIAN_BLOCK = 1 << 18  # for full Hessians: larger than _BLOCK, since a (p, p) matrix is added per block
_SPARSE_BLOCK = 1 << 20  # for sparse D: larger than _BLOCK, since each block needs a Python loop over classes
_MAX_STORED = 1 << 24  # x and the curve features are stored if they have at most this many elements in total
_MAX_TASKS = 32  # maximum number of parallel tasks; it limits memory, since every task has its own sums
# An L-BFGS search estimates how much the mean penalised loss can still decrease, relative to max(1, mean
# loss). It ends as soon as this estimate is at most _CONVERGED. A warning is issued if the search with
# Hessian blocks fails with an estimate above _MAX_DECREASE, unless the requested tolerance is _MAX_DECREASE
# or more.
_CONVERGED = 1e-12
_MAX_DECREASE = 1e-6
_MAX_CHANGE = 0.05  # relative change of the loss above which Hessian blocks for variances are recomputed
_MAX_CHANGE_SOLVER = 0.5  # relative change of the loss above which Hessian blocks for L-BFGS are recomputed
_MAX_GRADIENTS = 2000
# A search without Hessian blocks is limited to about _MIN_GRADIENTS + _FEW_GRADIENTS · q gradients, where q
# is the number of parameters per class. Computing the blocks takes about as long as computing _FEW_GRADIENTS
# · q gradients.
_MIN_GRADIENTS, _FEW_GRADIENTS = 10, 0.1
_STEADY = 0.03  # penalties chosen with Hessian blocks have converged if their relative change is below this
_NEGLIGIBLE = 1e-3  # the Hessian block of a class omits rows with at most this fraction of the mean curvature


@dataclass(frozen=True)
class Inputs:
    """How the logits z become x, the input of the matrix.

    Attributes
    ----------
    alpha : inverse temperature α
    limit : largest allowed distance of an entry of α z from the maximum of its row
        Entries further below are raised to this distance. A fit to n rows (their effective number, if they
        are weighted) uses at most ``log(K n)``: it cannot distinguish probabilities below ``1/(K n)``, and
        very low logits would dominate it.
    center : constant that is subtracted from each row: its mean ("mean") or its ``log Σ exp`` ("logsumexp")
        With "logsumexp", x are log-probabilities.
    """

    alpha: float
    limit: float
    center: Center

    def __call__(self, z: FloatArray) -> tuple[Float, Float]:
        """Return x with masks and x without masks, (n, K) each, in float64.

        A class is masked in a row if its logit is more than 10,000 below the maximum of the row. In the first
        result, the entry of a masked class is ``α (z − max z)``, so the class stays practically impossible.
        In the second result, the entry is raised like other low entries. If no class is masked, both results
        are the same array.
        """
        with np.errstate(over="ignore"):  # differences of huge logits overflow to −inf and are then clipped
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
    """The loss of matrix scaling as a function of its parameters θ.

    θ has one row per class. Row k contains the entries ``D[k, columns[k]]``, the bias ``b[k]`` and, if there
    are curves, the coefficients of the scaled features of the curve of class k.

    Attributes
    ----------
    inputs : how logits become x
    columns : (K, m) for each row of D, the columns whose entries are parameters; all other entries are 0
    features : the features of the curves, or None without curves
    """

    inputs: Inputs
    columns: IntArray
    features: CurveFeatures | None = None

    @classmethod
    def of(cls, source: Source, inputs: Inputs, *, has_curves: bool = False) -> MatrixModel:
        """Return a model for the rows of `source`, with curves if `has_curves` is true.

        With up to 150 classes, every entry of D is a parameter. With more, the parameters in a row of D are
        the diagonal entry and those of the 16 classes with which its class is confused most. Each curve has a
        knot at 0; its other knots are placed at weighted quantiles of the log-odds of the rows.
        """
        n_classes = source.n_classes
        features = CurveFeatures.of(source, inputs, inputs.limit) if has_curves else None
        if n_classes <= _MAX_FULL:
            return cls(inputs, np.tile(np.arange(n_classes), (n_classes, 1)), features)
        diagonal = cls(inputs, np.arange(n_classes)[:, None])
        (confusion,) = source.sum_rows(_Confusion(diagonal, np.zeros(2 * n_classes)))
        np.fill_diagonal(confusion, np.inf)  # diagonal entries are always parameters
        order = np.argsort(-confusion, axis=1, kind="stable")[:, : 1 + _N_CONFUSED]
        return cls(inputs, np.sort(order, axis=1), features)

    @property
    def n_classes(self) -> int:
        """Number of classes K."""
        return len(self.columns)

    @property
    def n_features(self) -> int:
        """Number of features of each class's curve; 0 without curves."""
        return 0 if self.features is None else sum(self.features.sizes)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (K, q) of θ, with one row of q parameters per class."""
        k, m = self.columns.shape
        return k, m + 1 + self.n_features

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
        """Group of every parameter, (p,); the groups are the constants from `DIAGONAL` to `FINE`."""
        off = np.where(self.columns == np.arange(self.n_classes)[:, None], DIAGONAL, OFF_DIAGONAL)
        others = [BIAS]
        if self.features is not None:
            others.extend(np.repeat([BETA, BROAD, FINE], self.features.sizes).tolist())
        return np.hstack([off, np.tile(others, (self.n_classes, 1))]).ravel()

    def matrix(self, theta: Float) -> tuple[Float, Float]:
        """Matrix D (K, K) and biases b (K,) for the parameters θ."""
        table, m = theta.reshape(self.shape), self.columns.shape[1]
        d = np.zeros((self.n_classes, self.n_classes))
        np.put_along_axis(d, self.columns, table[:, :m], axis=1)
        return d, table[:, m]

    def sparse_matrix(self, theta: Float) -> tuple[Any, Float]:
        """Return the same as `matrix`, but with a sparse D."""
        table, (k, m) = theta.reshape(self.shape), self.columns.shape
        starts = np.arange(0, k * m + 1, m)
        return csr_array((table[:, :m].ravel(), self.columns.ravel(), starts), shape=(k, k)), table[:, m]

    def coefficients(self, theta: Float) -> Float:
        """Coefficients of the scaled features of the curves, (K, number of features)."""
        return theta.reshape(self.shape)[:, self.columns.shape[1] + 1 :]

    def parts(self, theta: Float) -> tuple[Float, Float, Curves | None]:
        """Matrix D (K, K), biases b (K,) and curves (or None) for the parameters θ.

        The weights of the curves apply to unscaled features. The constants that scaling subtracts from the
        features are taken into account in b.
        """
        d, b = self.matrix(theta)
        if self.features is None:
            return d, b, None
        curves, constant = self.features.curves(self.coefficients(theta))
        return d, b + constant, curves

    @property
    def block_rows(self) -> int:
        """Number of rows in a block."""
        k, q = self.shape
        if self.has_hessian:
            return max(1, _HESSIAN_BLOCK // (k * q))
        return max(1, (_BLOCK if k <= _MAX_MATMUL else _SPARSE_BLOCK) // (k * (1 + self.n_features)))

    def blocks(self, rows: Rows) -> Iterator[_Block]:
        """Yield the rows in blocks of `block_rows` rows; the last block may be shorter."""
        for start in range(0, len(rows), self.block_rows):
            part = slice(start, start + self.block_rows)
            own, x = self.inputs(rows.z[part])
            by_class = np.ascontiguousarray(x.T)
            masked = by_class if own is x else np.ascontiguousarray(own.T)
            labels = None if rows.label_model is None else rows.label_model.take(part)
            curves = None if self.features is None else self.features(by_class)
            yield _Block(rows.y[part], rows.weight[part], masked, by_class, labels, curves)

    def problem(self, source: Source) -> Problem:
        """Return the loss on the rows of `source` as a problem to minimise."""
        sum_rows = _row_sums(self, source)
        if not self.has_hessian:
            return _ManyClasses(self, sum_rows, source.weights()[0])

        def evaluate(theta: Float) -> tuple[float, Float, Curvature]:
            loss, gradient, hessian, pulled = sum_rows(_Sums(self, theta))
            curvature = DenseHessian(hessian - pulled, hessian) if pulled.any() else DenseHessian(hessian)
            return float(loss), gradient.ravel(), curvature

        return NewtonProblem(evaluate)

    def loss(self, source: Source, theta: Float) -> float:
        """Weighted sum of the NLL over the rows of `source` for the parameters θ."""
        return float(source.sum_rows(_Loss(self, theta))[0])


def prior_precision(n_classes: int, *, has_curves: bool = False) -> Float:
    """Prior precisions of the groups of parameters, (3,) without curves and (6,) with curves.

    The first three are those of the diagonal entries, the off-diagonal entries and the biases: 2K, 2K(K − 1)
    and 2K, as in structured matrix scaling (Berta et al., 2026). The other three are those of the
    coefficients of the curves.
    """
    k = float(n_classes)
    curves = [k / 2, k / 2, k / 2 / FINE_PRIOR**2] if has_curves else []
    return np.array([2 * k, 2 * k * (k - 1), 2 * k, *curves])


def apply_matrix(
    z: FloatArray, inputs: Inputs, change: Float, bias: Float, curves: Curves | None = None
) -> Float:
    """Calibrated logits ``x + D x + b`` (n, K) in float64, plus the curves if they are given.

    `change` is D and `bias` is b.
    """
    own, x = inputs(z)
    u = np.asarray(own + x @ change.T + bias)
    return u if curves is None else u + curves(x)


class _ManyClasses:
    """The loss of matrix scaling for many classes, which preconditioned L-BFGS minimises."""

    def __init__(self, model: MatrixModel, sum_rows: _SumRows, total: float) -> None:
        self.matrix_model, self.sum_rows, self.total = model, sum_rows, total
        self._theta: Float = np.empty(0)  # parameters, loss and gradient at the last evaluation
        self._loss, self._gradient = np.inf, np.empty(0)
        self._hessian: BlockHessian | None = None
        self._loss_of_hessian = np.inf

    def minimise(
        self, theta: Float, precision: Float, tolerance: float, negligible: float
    ) -> tuple[Float, float]:
        """Minimiser (p,) of the penalised loss, and the unpenalised loss there.

        Computing the blocks of the Hessian takes as long as computing many gradients. If no earlier call has
        computed the blocks, a short search preconditioned with the diagonal comes first. The blocks are
        computed only if this search does not converge.
        """
        theta = np.where(np.isfinite(precision), theta, 0.0)
        goal = _Goal(precision, tolerance, negligible)
        if self._hessian is None:
            (diagonal,) = self.sum_rows(_Diagonal(self.matrix_model, theta))
            few = int(_MIN_GRADIENTS + _FEW_GRADIENTS * self.matrix_model.shape[1])
            if self._search(DiagonalHessian(diagonal), theta, goal, few) is None:
                return self._theta, self._loss
            theta = self._theta
        hessian = self._hessian_near(theta, _MAX_CHANGE_SOLVER)
        failure = self._search(hessian, theta, goal, _MAX_GRADIENTS)
        if failure is not None and tolerance < _MAX_DECREASE < failure.decrease:
            emit(f"matrix scaling did not converge: {failure.message}", RuntimeWarning)
        return self._theta, self._loss

    def _search(
        self, hessian: BlockHessian | DiagonalHessian, theta: Float, goal: _Goal, max_gradients: int
    ) -> _Failure | None:
        """Run L-BFGS from `theta`; return None if it converges, otherwise a description of the failure."""
        penalty = np.where(np.isfinite(goal.precision), goal.precision, 0.0)
        # Parameters with neither curvature nor penalty have no effect and stay 0. An example is the bias of a
        # class that is always masked, if biases are not penalised.
        free = np.isfinite(goal.precision) & (hessian.diagonal + penalty > 0)
        unit = hessian.preconditioner(penalty, free, self.total)
        decrease = np.inf  # estimated further decrease of the mean penalised loss / max(1, mean loss)

        def value(v: Float) -> tuple[float, Float]:
            nonlocal decrease
            parameters = unit.to_parameters(v)
            loss, gradient = self._evaluate(parameters)
            slope = unit.to_slope(gradient + penalty * parameters) / self.total
            decrease = float(slope @ slope) / 2 / max(1.0, loss / self.total)
            return (loss + float(penalty @ parameters**2) / 2) / self.total, slope

        def stop_early(_: Float) -> None:
            if self._loss <= goal.negligible or decrease <= _CONVERGED:
                raise StopIteration

        start = unit.from_parameters(np.where(free, theta, 0.0))
        limits = {"maxiter": max_gradients, "maxfun": max_gradients}
        options = limits | {"maxcor": 20, "ftol": goal.tolerance, "gtol": 0.0}
        solution = minimize(value, start, jac=True, method="L-BFGS-B", callback=stop_early, options=options)
        value(solution.x)  # stores the results at the solution; the last evaluation may be of a rejected step
        if solution.success or self._loss <= goal.negligible or decrease <= _CONVERGED:
            return None
        return _Failure(decrease, str(solution.message))

    def model(self) -> QuadraticModel:
        """Return a quadratic model of the loss around the last minimiser.

        The model ignores second derivatives with respect to parameters of different classes.
        """
        hessian = self._hessian_near(self._theta, _MAX_CHANGE)
        return QuadraticModel(self._theta, self._gradient, hessian, _STEADY)

    def _evaluate(self, theta: Float) -> tuple[float, Float]:
        """Loss and gradient (p,) at `theta`; the last results are reused if they are for the same `theta`."""
        if not np.array_equal(theta, self._theta):
            loss, gradient = self.sum_rows(_Gradient(self.matrix_model, theta))
            self._theta, self._loss, self._gradient = theta, float(loss), gradient.ravel()
        return self._loss, self._gradient

    def _hessian_near(self, theta: Float, max_change: float) -> BlockHessian:
        """Return the Hessian blocks at `theta`, or the last ones if the loss has hardly changed since then.

        The last blocks are reused if the relative change of the loss is at most `max_change`.
        """
        loss, _ = self._evaluate(theta)
        if self._hessian is None or abs(loss - self._loss_of_hessian) > max_change * loss:
            self._hessian = BlockHessian(self.sum_rows(_BlockSums(self.matrix_model, theta))[0])
            self._loss_of_hessian = loss
        return self._hessian


@dataclass(frozen=True, eq=False)
class _Goal:
    """Penalties (p,) and stopping rules; see :meth:`hetcal._numeric.evidence.Problem.minimise`."""

    precision: Float
    tolerance: float
    negligible: float


@dataclass(frozen=True)
class _Failure:
    """A search that did not converge: how much the loss could still decrease, and the solver's message.

    `decrease` is the estimated decrease of the mean penalised loss, divided by ``max(1, mean loss)``.
    """

    decrease: float
    message: str


# -- Statistics of blocks of rows; they must be picklable, since they may be sent to other machines. --


@dataclass(frozen=True, eq=False)
class _Block:
    """A few rows. Their matrices are transposed, (K, n), because this makes sums over classes faster.

    Attributes
    ----------
    y, w : (n,) labels and weights
    own, x : (K, n) x with masks and x without masks, as `Inputs` returns them; often the same array
    labels : what is known about the true classes if `y` does not state them, otherwise None
    curves : (K, f, n) scaled features of the curves, or None without curves
    """

    y: CodeArray
    w: Float
    own: Float
    x: Float
    labels: LabelModel | None = None
    curves: Float | None = None

    @property
    def label_entries(self) -> tuple[CodeArray, IntArray]:
        """Index that selects the entry of each row's label from a (K, n) matrix."""
        return self.y, np.arange(len(self.y))

    def information(self, row: _Predictions) -> Float:
        """Fisher information of every row about the logit of every class, (K, n).

        Unless labels are noisy, this is the curvature ``p (1 − p)`` of the loss. For noisy labels, it is the
        expected curvature, because the actual curvature can be negative. The expectation is over the
        observed labels j, which have the probabilities ``π = p T``. For class i, it is
        ``p_i² (Σ_j T_ij² / π_j − 1)``, the variance of the posterior probability ``p_i T_ij / π_j``.
        """
        if isinstance(self.labels, NoisyLabels):
            t, p = self.labels.transition, row.p
            observed = t.T @ p
            inverse = np.divide(1.0, observed, out=np.zeros_like(observed), where=observed > 0)
            return np.asarray(np.maximum(p**2 * (t**2 @ inverse - 1), 0))
        return np.asarray(row.p * (1 - row.p))

    def residual(self, p: Float, q: Float | None) -> Float:
        """``w (p − q)``, (K, n), which overwrites `p`. If `q` is None, the one-hot labels are used as q."""
        p *= self.w
        if q is None:
            p[self.label_entries] -= self.w
        else:
            p -= self.w * q
        return p

    @property
    def with_one(self) -> Float:
        """Return x (K, n) with a row of ones for the biases appended, (K + 1, n)."""
        return np.vstack([self.x, np.ones((1, len(self.y)))])

    @property
    def inputs(self) -> Float:
        """What the parameters of each class are multiplied by: x, ones for the bias, and curve features.

        Every entry of D must be a parameter. The shape is (K, q, n), or (1, K + 1, n) without curves, since
        all classes then have the same inputs.
        """
        if self.curves is None:
            return self.with_one[None]
        shared = np.broadcast_to(self.with_one, (len(self.x), len(self.x) + 1, len(self.y)))
        return np.concatenate([shared, self.curves], axis=1)

    def squared(self) -> _Block:
        """Return a copy of this block in which x and the features of the curves are squared."""
        return replace(self, x=self.x**2, curves=None if self.curves is None else self.curves**2)


@dataclass(frozen=True, eq=False)
class _Predictions:
    """Predictions for the rows of a block.

    Attributes
    ----------
    p : (K, n) probabilities
    nll : (n,) NLL
    q : (K, n) probabilities of the true classes given the soft or noisy labels
        It is None if the labels are the true classes.
    """

    p: Float
    nll: Float
    q: Float | None = None


@dataclass(frozen=True, eq=False)
class _Statistic:
    """A sum over rows that depends on the parameters θ (p,)."""

    model: MatrixModel
    theta: Float

    def __call__(self, rows: Rows) -> tuple[NDArray[Any], ...]:
        return self.sum(self.model.blocks(rows))

    def sum(self, blocks: Iterable[_Block]) -> tuple[NDArray[Any], ...]:
        """Sum the statistic over blocks."""
        totals = self.zero()
        move = self.mover()
        for block in blocks:
            p = block.own + move(block)
            p -= p.max(axis=0)
            if block.labels is None:
                true = p[block.label_entries]
                np.exp(p, out=p)
                total = p.sum(axis=0)
                p /= total
                self.add(totals, block, _Predictions(p, np.log(total) - true))
            else:
                p -= np.log(np.exp(p).sum(axis=0))
                q, nll = block.labels.posterior(np.ascontiguousarray(p.T))
                np.exp(p, out=p)
                self.add(totals, block, _Predictions(p, nll, np.ascontiguousarray(q.T)))
        return totals

    def mover(self) -> Callable[[_Block], Float]:
        """Return a function that computes ``D x + b`` (K, n) of a block, plus the curves if any."""
        if self.model.n_classes <= _MAX_MATMUL:
            change, bias = self.model.matrix(self.theta)
        else:
            change, bias = self.model.sparse_matrix(self.theta)
        coefficients = self.model.coefficients(self.theta)[:, None]

        def move(block: _Block) -> Float:
            moved = np.asarray(change @ block.x) + bias[:, None]
            return moved if block.curves is None else moved + (coefficients @ block.curves)[:, 0]

        return move

    def zero(self) -> tuple[NDArray[Any], ...]:
        """Return arrays of zeros, to which `add` adds the contributions of blocks."""
        raise NotImplementedError

    def add(self, totals: tuple[NDArray[Any], ...], block: _Block, row: _Predictions) -> None:
        """Add the contribution of a block to `totals`; the arrays in `row` may be overwritten."""
        raise NotImplementedError

    def collect(self, block: _Block, residual: Float) -> Float:
        """``Σ_i residual_ki · (x_i[columns[k]], 1, curves_ki)`` over rows i for every class k, (K, q)."""
        columns, x = self.model.columns, block.x
        m = columns.shape[1]
        out = np.empty(self.model.shape)
        out[:, m] = residual.sum(axis=1)
        if self.model.is_full:
            out[:, :m] = residual @ x.T
        elif len(columns) <= _MAX_MATMUL:
            out[:, :m] = np.take_along_axis(residual @ x.T, columns, axis=1)
        else:
            for k, used in enumerate(columns):
                out[k, :m] = x[used] @ residual[k]
        if block.curves is not None:
            out[:, m + 1 :] = (block.curves @ residual[..., None])[..., 0]
        return out


class _Loss(_Statistic):
    """Weighted sum of the NLL over the rows."""

    def zero(self) -> tuple[NDArray[Any], ...]:
        return (np.zeros(()),)

    def add(self, totals: tuple[NDArray[Any], ...], block: _Block, row: _Predictions) -> None:
        totals[0][...] += block.w @ row.nll


class _Gradient(_Statistic):
    """Loss and gradient (K, q)."""

    def zero(self) -> tuple[NDArray[Any], ...]:
        return np.zeros(()), np.zeros(self.model.shape)

    def add(self, totals: tuple[NDArray[Any], ...], block: _Block, row: _Predictions) -> None:
        loss, gradient = totals
        loss[...] += block.w @ row.nll
        gradient += self.collect(block, block.residual(row.p, row.q))


class _Sums(_Statistic):
    """Loss, gradient (K, q) and full Hessian as two matrices (p, p), for few classes.

    The Hessian of the loss is the first matrix minus the second. The second is the Hessian of the pull of
    noisy labels (see `label_models`); it is zero for other labels.
    """

    def zero(self) -> tuple[NDArray[Any], ...]:
        k, q = self.model.shape
        pulled = np.zeros((k * q,) * 2)
        return np.zeros(()), np.zeros((k, q)), np.zeros_like(pulled), pulled

    def add(self, totals: tuple[NDArray[Any], ...], block: _Block, row: _Predictions) -> None:
        loss, gradient, hessian, pulled = totals
        loss[...] += block.w @ row.nll
        inputs = block.inputs
        _add_hessian(hessian, inputs, row.p, block.w)
        if row.q is not None and block.labels is not None and block.labels.is_noisy:
            _add_hessian(pulled, inputs, row.q, block.w)
        gradient += self.collect(block, block.residual(row.p, row.q))


class _Diagonal(_Statistic):
    """Diagonal of the Hessian, (K, q).

    For noisy labels, it is an upper bound, since the pull (see `label_models`) is ignored.
    """

    def zero(self) -> tuple[NDArray[Any], ...]:
        return (np.zeros(self.model.shape),)

    def add(self, totals: tuple[NDArray[Any], ...], block: _Block, row: _Predictions) -> None:
        totals[0][...] += self.collect(block.squared(), block.w * row.p * (1 - row.p))


class _BlockSums(_Statistic):
    """Diagonal blocks of the Hessian, one per class, (K, q, q).

    For noisy labels, the expected Hessian is used. To save time, the block of a class leaves out the rows
    whose curvature is far below the mean curvature of the rows that are processed together.
    """

    def zero(self) -> tuple[NDArray[Any], ...]:
        k, q = self.model.shape
        return (np.zeros((k, q, q)),)

    def add(self, totals: tuple[NDArray[Any], ...], block: _Block, row: _Predictions) -> None:
        with_one = block.with_one
        by_row = np.ascontiguousarray(with_one.T)
        curvature = block.w * block.information(row)
        threshold = _NEGLIGIBLE * curvature.mean(axis=1)
        root, constant = np.sqrt(curvature), self.model.n_classes  # `with_one[constant]` is the row of ones
        for i, columns in enumerate(self.model.columns):
            index = np.flatnonzero(curvature[i] > threshold[i])
            if self.model.is_full:
                used = by_row[index]
            else:
                used = with_one[np.ix_(np.append(columns, constant), index)].T
            if block.curves is not None:
                used = np.hstack([used, block.curves[i][:, index].T])
            used *= root[i, index][:, None]
            totals[0][i] += used.T @ used


class _Confusion(_Statistic):
    """``Σ_i w_i p_ik p_ij`` over rows i, (K, K), which is large if classes k and j are often confused."""

    def zero(self) -> tuple[NDArray[Any], ...]:
        return (np.zeros((self.model.n_classes,) * 2),)

    def add(self, totals: tuple[NDArray[Any], ...], block: _Block, row: _Predictions) -> None:
        totals[0][...] += (row.p * block.w) @ row.p.T


# Function that sums a statistic over the rows of a source
_SumRows = Callable[[_Statistic], tuple[NDArray[Any], ...]]


def _row_sums(model: MatrixModel, source: Source) -> _SumRows:
    """Return a function that sums statistics over the rows of `source`.

    If the rows are in memory and few enough, x and the curve features are computed once and stored.
    """
    try:
        rows, ids = source.in_memory("stored inputs").gathered()
    except NotInMemory:
        return source.sum_rows
    if rows.z.size * (1 + model.n_features) > _MAX_STORED:
        return source.sum_rows
    if (ids >= source.n_slices).any():
        rows = rows.take(np.flatnonzero(ids < source.n_slices))
    n_blocks = -(-len(rows) // model.block_rows)
    # An even number of tasks uses two cores equally.
    n_tasks = 1 if n_blocks == 1 else min(_MAX_TASKS, n_blocks + n_blocks % 2)
    edges = [len(rows) * i // n_tasks for i in range(n_tasks + 1)]
    tasks = in_order(lambda a, b: (list(model.blocks(rows.take(slice(a, b)))),), list(pairwise(edges)))

    @with_one_blas_thread
    def sum_rows(statistic: _Statistic) -> tuple[NDArray[Any], ...]:
        parts = in_order(statistic.sum, tasks)
        return tuple(np.sum(part, axis=0) for part in zip(*parts, strict=True))

    return sum_rows


def _add_hessian(hessian: Float, inputs: Float, p: Float, w: Float) -> None:
    """Add ``Σ_i w_i (diag(p_i) − p_i p_iᵀ)_kl v_ik v_ilᵀ`` to each block (k, l) of `hessian` (K q, K q).

    The sum is over rows i, and v_ik (q,) are the `inputs` of class k in row i. The shape of `inputs` is
    (K, q, n), or (1, q, n) if all classes have the same inputs.
    """
    (k, n), q = p.shape, inputs.shape[1]
    products = (p * np.sqrt(w))[:, None, :] * inputs
    flat = products.reshape(-1, n)
    hessian -= flat @ flat.T
    products *= np.sqrt(w)
    if len(inputs) == 1:
        same_class = (flat @ inputs[0].T).reshape(k, q, q)
    else:
        same_class = products @ inputs.transpose(0, 2, 1)
    by_class = hessian.reshape(k, q, k, q)
    for i in range(k):
        by_class[i, :, i, :] += same_class[i]
