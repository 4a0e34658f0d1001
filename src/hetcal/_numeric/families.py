"""The numbers behind Platt and vector scaling: losses with derivatives by slice, and the maps themselves.

A family has `start(K)`, the parameters that change nothing; `evaluator(...)`, the loss of every slice with
gradient and Hessian; and `predict(z, theta, ids)`, the probabilities with row i under ``theta[ids[i]]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from hetcal._numeric.acceleration import compiled_for
from hetcal._numeric.blocks import Assign, Block, BlockProblem
from hetcal._numeric.passes import spread, sum_slices, top_margin
from hetcal._numeric.probabilities import keep_decision, softmax
from hetcal._numeric.problems import Problem, TemperatureProblem
from hetcal._numeric.rows import Rows, decide
from hetcal._numeric.threads import over_blocks
from hetcal._numeric.trust_region import EvaluateVector
from hetcal._typing import CodeArray, Float, FloatArray, IntArray

__all__ = [
    "PlattFamily",
    "VectorFamily",
    "family_evaluator",
    "vector_hessian",
    "vector_slopes",
    "vector_sums",
]


_BLOCK = 1 << 20  # elements of a float64 block of probabilities: 8 MiB
_SMALL_BLOCK = 1 << 15  # elements of a block that stays in the cache
_LARGEST = 1e30  # logits beyond (masks, mostly) count as this large
_SURE = 1e4  # log-odds beyond count as this: what lies there no slope and intercept could tell apart


@dataclass(frozen=True)
class PlattFamily:
    """``sigmoid(a · logit(p̂) + b)`` for the predicted class; θ = (a, b)."""

    pool: bool = False

    def start(self, n_classes: int) -> Float:  # noqa: ARG002
        """Return the parameters that change nothing."""
        return np.array([1.0, 0.0])

    def evaluator(self, rows: Rows, ids: IntArray, n_slices: int) -> EvaluateVector:
        """Binary NLL of "the prediction is right" by slice, with derivatives."""
        x = _log_odds(rows.z)
        kernels = compiled_for(rows.z.size)

        def evaluate(theta: Float, active: IntArray) -> tuple[Float, Float, Float]:
            if kernels is None:
                sums = _platt_sums(rows, x, ids, theta, active, n_slices)
            else:
                sums = _compiled_platt_sums(kernels, rows, x, ids, theta, active, n_slices)
            loss, ga, gb, haa, hab, hbb = sums[:, active]
            hessian = np.stack([haa, hab, hab, hbb], axis=1).reshape(-1, 2, 2)
            return loss, np.stack([ga, gb], axis=1), hessian

        return evaluate

    def predict(
        self, z: FloatArray, theta: Float, ids: CodeArray, guess: CodeArray | None = None
    ) -> FloatArray:
        """Probabilities with the argmax, which `guess` may supply, kept."""
        margin, guess = top_margin(z, guess)
        x = np.minimum(margin, _SURE)
        return spread(z, expit(theta[ids, 0] * x + theta[ids, 1]), pool=self.pool, guess=guess)


def _platt_sums(rows: Rows, x: Float, ids: IntArray, theta: Float, active: IntArray, n_slices: int) -> Float:
    """Loss of every slice, its gradient (2) and the three entries of its Hessian, (6, S)."""
    some = _rows_of(ids, active, n_slices)
    k, xs, w, r = ids[some], x[some], rows.weight[some], rows.right[some].astype(np.float64)
    u = theta[k, 0] * xs + theta[k, 1]
    p = expit(u)
    residual, curve = w * (p - r), w * p * expit(-u)
    loss = w * (np.logaddexp(0, u) - r * u)
    terms = (loss, residual * xs, residual, curve * xs * xs, curve * xs, curve)
    return np.stack([sum_slices(k, term, n_slices) for term in terms])


def _compiled_platt_sums(
    kernels: Any, rows: Rows, x: Float, ids: IntArray, theta: Float, active: IntArray, n_slices: int
) -> Float:
    """`_platt_sums` on all cores."""
    wanted = np.zeros(n_slices, bool)
    wanted[active] = True
    weight = np.empty(0) if rows.given_weight is None else rows.given_weight

    def some(start: int, stop: int) -> Float:
        sums = np.zeros((6, n_slices))
        kernels.platt_sums(x, rows.right, ids, weight, theta, wanted, sums, start, stop)
        return sums

    return np.asarray(sum(over_blocks(some, *rows.z.shape), np.zeros((6, n_slices))))


@dataclass(frozen=True)
class VectorFamily:
    """``softmax(a ⊙ z + b)``; θ = (a, b), and ``ridge/2 · Σw · ‖θ − start‖²`` added to a slice's loss."""

    ridge: float = 0.0
    anchor: float = 1.0
    keep: bool = False  # the decision

    def start(self, n_classes: int) -> Float:
        """Return the parameters that change nothing but one temperature, `anchor`."""
        return np.concatenate([np.full(n_classes, self.anchor), np.zeros(n_classes)])

    def evaluator(self, rows: Rows, ids: IntArray, n_slices: int) -> EvaluateVector:
        """NLL by slice, with derivatives."""
        everything = n_slices == 1
        order = np.empty(0, np.int64) if everything else np.argsort(ids, kind="stable")
        ends = np.searchsorted(ids[order], np.arange(n_slices + 1))
        anchor = self.start(rows.z.shape[1])

        def one(theta: Float, k: int) -> tuple[float, Float, Float]:
            some = slice(None) if everything else order[ends[k] : ends[k + 1]]  # no copy of all rows
            loss, gradient, hessian = vector_sums(rows.z[some], rows.y[some], rows.weight[some], theta)
            strength = self.ridge * float(rows.weight[some].sum())
            away = theta - anchor
            hessian[np.diag_indices_from(hessian)] += strength
            return loss + strength / 2 * float(away @ away), gradient + strength * away, hessian

        def evaluate(theta: Float, active: IntArray) -> tuple[Float, Float, Float]:
            loss, gradient, hessian = zip(*(one(theta[k], int(k)) for k in active), strict=True)
            return np.array(loss), np.stack(gradient), np.stack(hessian)

        return evaluate

    def predict(
        self, z: FloatArray, theta: Float, ids: CodeArray, guess: CodeArray | None = None
    ) -> FloatArray:
        """Probabilities; the argmax may differ from that of `z` unless it, or `guess`, is to be kept."""
        n_classes = z.shape[1]
        out = np.empty_like(z)
        step = max(1, _BLOCK // n_classes)
        for start in range(0, len(z), step):
            part = slice(start, start + step)
            t = theta[ids[part]]
            u = t[:, :n_classes] * _tame(z[part]) + t[:, n_classes:]
            if self.keep:  # no class passes the predicted one
                mine = decide(z[part]) if guess is None else guess[part]
                np.minimum(u, u[np.arange(len(u)), mine][:, None], out=u)
                out[part] = keep_decision(softmax(u).astype(z.dtype, copy=False), mine)
            else:
                out[part] = softmax(u)
        return out


def family_evaluator(family: PlattFamily | VectorFamily, problem: Problem, place: IntArray) -> EvaluateVector:
    """Loss of some slices with derivatives, wherever the rows are.

    `place` (S,) says which of the family's slices each slice of the problem goes to; −1 leaves it out.
    """
    n_places = int(place.max()) + 1
    if isinstance(problem, TemperatureProblem):
        rows, ids = _placed(problem.rows, place[problem.ids])
        return family.evaluator(rows, ids, n_places)
    if not isinstance(problem, BlockProblem):
        raise TypeError(f"rows must be in memory or in blocks for this family, got {type(problem).__name__}")
    source, assign = problem.source, problem.assign

    def evaluate(theta: Float, active: IntArray) -> tuple[Float, Float, Float]:
        loss, gradient, hessian = source.reduce(_FamilySums(family, assign, place, n_places, theta, active))
        return loss, gradient, hessian

    return evaluate


@dataclass(frozen=True)
class _FamilySums:
    family: PlattFamily | VectorFamily
    assign: Assign
    place: IntArray
    n_places: int
    theta: Float
    active: IntArray

    def __call__(self, block: Block) -> tuple[NDArray[Any], ...]:
        rows, ids = _placed(block.rows, self.place[self.assign(block.rows.guess, block.groups)])
        return self.family.evaluator(rows, ids, self.n_places)(self.theta, self.active)


def _placed(rows: Rows, ids: IntArray) -> tuple[Rows, IntArray]:
    if ids.min() >= 0:
        return rows, ids
    kept = np.flatnonzero(ids >= 0)
    return rows.take(kept), ids[kept]


def _log_odds(z: FloatArray) -> Float:
    return np.minimum(top_margin(z)[0], _SURE)


def _tame(z: FloatArray) -> Float:
    """Logits in float64, near enough to zero (±1e30) that their squares and multiples stay finite."""
    return np.clip(z.astype(np.float64), -_LARGEST, _LARGEST)


def _rows_of(ids: IntArray, active: IntArray, n_slices: int) -> IntArray | slice:
    if len(active) == n_slices:
        return slice(None)
    wanted = np.zeros(n_slices, bool)
    wanted[active] = True
    return np.flatnonzero(wanted[ids])


def vector_sums(z: FloatArray, y: CodeArray, weight: Float, theta: Float) -> tuple[float, Float, Float]:
    """Loss, gradient (2K,) and Hessian (2K, 2K) of the NLL of ``softmax(a ⊙ z + b)``, block by block."""
    n_classes = z.shape[1]
    loss, gradient = 0.0, np.zeros((2, n_classes))
    hessian = np.zeros((2 * n_classes, 2 * n_classes))
    step = max(1, _BLOCK // n_classes)
    for start in range(0, len(z), step):
        part = slice(start, start + step)
        zs, ys, w = _tame(z[part]), y[part], weight[part]
        more, u = _shares(zs, ys, w, theta)
        loss += more
        hessian += vector_hessian(zs, u, w)
        u[np.arange(len(zs)), ys] -= w
        gradient += np.stack([np.einsum("ij,ij->j", u, zs), u.sum(axis=0)])
    return loss, gradient.ravel(), hessian


def vector_slopes(z: FloatArray, y: CodeArray, weight: Float, theta: Float) -> tuple[float, Float]:
    """`vector_sums` without the Hessian, in the dtype of the logits and in blocks that stay in the cache."""
    n_classes = z.shape[1]
    loss, gradient = 0.0, np.zeros((2, n_classes))
    step = max(1, _SMALL_BLOCK // n_classes)
    own = theta.astype(z.dtype)
    for start in range(0, len(z), step):
        part = slice(start, start + step)
        zs, ys, w = np.clip(z[part], -_LARGEST, _LARGEST), y[part], weight[part].astype(z.dtype)
        more, u = _shares(zs, ys, w, own)
        loss += more
        u[np.arange(len(zs)), ys] -= w
        gradient[1] += u.sum(axis=0)
        u *= zs
        gradient[0] += u.sum(axis=0)
    return loss, gradient.ravel()


def _shares(z: Any, y: CodeArray, w: Any, theta: Any) -> tuple[float, Any]:
    """The summed loss and ``w · p`` of every row, in the dtype of the logits."""
    n_classes = z.shape[1]
    u = z * theta[:n_classes]
    u += theta[n_classes:]
    u -= u.max(axis=1, keepdims=True)
    true = u[np.arange(len(z)), y]
    np.exp(u, out=u)
    total = u.sum(axis=1)
    u *= (w / total)[:, None]
    return float(w.astype(np.float64) @ (np.log(total) - true)), u


def vector_hessian(z: Float, wp: Float, weight: Float) -> Float:
    """``Σ_i w (diag(p) − p pᵀ)`` in the coordinates (a ⊙ z, b), from `wp` = w · p with w > 0."""
    p = wp / np.sqrt(weight)[:, None]
    pair = np.concatenate([p * z, p], axis=1)
    hessian = np.asarray(-(pair.T @ pair))
    i = np.arange(z.shape[1])
    j = i + z.shape[1]
    mixed = np.einsum("ij,ij->j", wp, z)
    hessian[i, i] += np.einsum("ij,ij,ij->j", wp, z, z)
    hessian[i, j] += mixed
    hessian[j, i] += mixed
    hessian[j, j] += wp.sum(axis=0)
    return hessian
