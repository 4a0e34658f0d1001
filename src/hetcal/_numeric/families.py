"""Platt and vector scaling: the loss of every slice with its derivatives, and the calibration maps.

The rows of a slice share their parameters. For example, the rows with one predicted class can form a slice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.special import expit

from hetcal._numeric.acceleration import compiled_for
from hetcal._numeric.label_models import Correctness, LabelModel, positive_or
from hetcal._numeric.passes import spread, sum_slices, top_margin
from hetcal._numeric.probabilities import keep_decision, softmax
from hetcal._numeric.rows import MAX_LOGIT, Rows, decide
from hetcal._numeric.threads import in_order, over_blocks
from hetcal._numeric.trust_region import EvaluateVector
from hetcal._typing import CodeArray, Float, FloatArray, IntArray

__all__ = [
    "MAX_LOG_ODDS",
    "Family",
    "PlattFamily",
    "VectorFamily",
    "clip_logits",
    "vector_gradient",
    "vector_hessian",
    "vector_sums",
]

_BLOCK = 1 << 20  # logits processed at a time to compute a Hessian: 8 MiB in float64
_PREDICT_BLOCK = 1 << 17  # probabilities predicted at a time
_MIN_BLOCKS = 4  # with fewer blocks, starting threads costs more than it saves
_SMALL_BLOCK = 1 << 15  # logits processed at a time to compute a gradient, few enough to stay in the cache
MAX_LOG_ODDS = 1e4  # larger log-odds are clipped to this; a sigmoid of usual slope is saturated there


class Family(Protocol):
    """A calibration map with parameters θ (p,), whose loss has a gradient and a Hessian."""

    def start(self, n_classes: int) -> Float:
        """Return the parameters to start from, (p,)."""

    def evaluator(self, rows: Rows, ids: IntArray, n_slices: int) -> EvaluateVector:
        """Return a function that computes the loss, gradient and Hessian by slice.

        `ids` (n,) is the slice of every row.
        """


@dataclass(frozen=True)
class PlattFamily:
    """Platt scaling of the confidence p̂: ``sigmoid(a · logit(p̂) + b)`` with θ = (a, b).

    The confidence is the probability of the predicted class. `pool` is passed to
    :func:`hetcal._numeric.passes.spread`, which computes the probabilities of the other classes in `predict`.
    """

    pool: bool = False

    def start(self, n_classes: int) -> Float:  # noqa: ARG002
        """Return the parameters of the identity map, (2,)."""
        return np.array([1.0, 0.0])

    def evaluator(self, rows: Rows, ids: IntArray, n_slices: int) -> EvaluateVector:
        """Return a function that computes the binary NLL by slice, its gradient and its Hessian.

        The binary outcome is whether the prediction is correct. With noisy labels, a Hessian that is not
        positive semidefinite is replaced; see `positive_or`.
        """
        x = _log_odds(rows.z, rows.guess)
        if rows.label_model is None:
            correct = Correctness(share=rows.right.astype(np.float64))
            kernels = compiled_for(rows.z.size)
        else:
            correct, kernels = rows.label_model.correctness(rows.z, rows.guess), None

        def evaluate(theta: Float, active: IntArray) -> tuple[Float, Float, Float]:
            if kernels is None:
                sums = _platt_sums(rows.weight, x, correct, ids, theta, active, n_slices)
            else:
                sums = _compiled_platt_sums(kernels, rows, x, ids, theta, active, n_slices)
            loss, ga, gb, haa, hab, hbb, *pulled = sums[:, active]
            hessian = _symmetric(haa, hab, hbb)
            if pulled:
                hessian = positive_or(hessian, _symmetric(*pulled))
            return loss, np.stack([ga, gb], axis=1), hessian

        return evaluate

    def predict(
        self, z: FloatArray, theta: Float, ids: CodeArray, guess: CodeArray | None = None
    ) -> FloatArray:
        """Probabilities (n, K), with the parameters ``theta[ids[i]]`` for row i; the argmax is preserved.

        `guess` is the argmax of every row; if None, it is computed.
        """
        guess = decide(z) if guess is None else guess
        x = _log_odds(z, guess)
        return spread(z, expit(theta[ids, 0] * x + theta[ids, 1]), pool=self.pool, guess=guess)


def _symmetric(a: Float, b: Float, c: Float) -> Float:
    """Symmetric matrices ``((a, b), (b, c))``, (S, 2, 2), from their entries, (S,) each."""
    return np.stack([a, b, b, c], axis=1).reshape(-1, 2, 2)


def _platt_sums(
    weight: Float,
    x: Float,
    correct: Correctness,
    ids: IntArray,
    theta: Float,
    active: IntArray,
    n_slices: int,
) -> Float:
    """Loss, gradient (2 entries) and Hessian (3 distinct entries) of the slices `active`, (6, S).

    The columns of the other slices are zero. If `correct.share` is None, as usual for noisy labels, the
    caller has to subtract the Hessian of the pull (see the module `label_models`) from this Hessian. The 3
    distinct entries of the pull's Hessian are then appended to the result, which has the shape (9, S).
    """
    index = _active_rows(ids, active, n_slices)
    k, xs, w = ids[index], x[index], weight[index]
    u = theta[k, 0] * xs + theta[k, 1]
    known = correct.take(index)
    pull, r = known.pull(u)
    e = np.exp(-np.abs(u))  # one exponential gives p, 1 − p and the loss without cancellation
    likely, unlikely = 1 / (1 + e), e / (1 + e)
    p = np.where(u >= 0, likely, unlikely)
    residual, curve = w * (p - r), w * likely * unlikely
    loss = w * (np.maximum(u, 0) + np.log1p(e) - pull)
    terms = [loss, residual * xs, residual, curve * xs * xs, curve * xs, curve]
    if known.share is None:
        curve = w * known.curvature(r)
        terms += [curve * xs * xs, curve * xs, curve]
    return np.stack([sum_slices(k, term, n_slices) for term in terms])


def _compiled_platt_sums(
    kernels: Any, rows: Rows, x: Float, ids: IntArray, theta: Float, active: IntArray, n_slices: int
) -> Float:
    """Compute the same as `_platt_sums`, in parallel with numba. The labels must be the true classes."""
    visited = np.zeros(n_slices, bool)
    visited[active] = True
    weight = np.empty(0) if rows.given_weight is None else rows.given_weight

    def sum_block(start: int, stop: int) -> Float:
        sums = np.zeros((6, n_slices))
        kernels.platt_sums(x, rows.right, ids, weight, theta, visited, sums, start, stop)
        return sums

    return np.asarray(sum(over_blocks(sum_block, *rows.z.shape), np.zeros((6, n_slices))))


@dataclass(frozen=True)
class VectorFamily:
    """Vector scaling, ``softmax(a ⊙ z + b)``, with θ = (a, b).

    The loss of a slice includes the penalty ``ridge/2 · Σw · ‖θ − θ_start‖²``. The parameters θ_start are
    those of temperature scaling with the inverse temperature `anchor`. With ``keep=True``, `predict`
    preserves the predicted class of every row.
    """

    ridge: float = 0.0
    anchor: float = 1.0
    keep: bool = False

    def start(self, n_classes: int) -> Float:
        """Return the parameters of temperature scaling with the inverse temperature `anchor`, (2K,)."""
        return np.concatenate([np.full(n_classes, self.anchor), np.zeros(n_classes)])

    def evaluator(self, rows: Rows, ids: IntArray, n_slices: int) -> EvaluateVector:
        """Return a function that computes the penalised NLL of each slice, its gradient and its Hessian."""
        pooled = n_slices == 1
        order = np.empty(0, np.int64) if pooled else np.argsort(ids, kind="stable")
        ends = np.searchsorted(ids[order], np.arange(n_slices + 1))
        anchor = self.start(rows.z.shape[1])

        def evaluate_slice(theta: Float, k: int) -> tuple[float, Float, Float]:
            index = slice(None) if pooled else order[ends[k] : ends[k + 1]]  # not used if pooled
            part = rows if pooled else rows.take(index)
            loss, gradient, hessian = vector_sums(part, theta)
            strength = self.ridge * part.total_weight
            offset = theta - anchor
            hessian[np.diag_indices_from(hessian)] += strength
            return loss + strength / 2 * float(offset @ offset), gradient + strength * offset, hessian

        def evaluate(theta: Float, active: IntArray) -> tuple[Float, Float, Float]:
            loss, gradient, hessian = zip(*(evaluate_slice(theta[k], int(k)) for k in active), strict=True)
            return np.array(loss), np.stack(gradient), np.stack(hessian)

        return evaluate

    def predict(
        self, z: FloatArray, theta: Float, ids: CodeArray, guess: CodeArray | None = None
    ) -> FloatArray:
        """Probabilities (n, K), with the parameters ``theta[ids[i]]`` for row i.

        With ``keep=True``, no class overtakes the predicted one. `guess` is the argmax of every row; if
        None, it is computed.
        """
        n_classes = z.shape[1]
        out = np.empty_like(z)
        step = max(1, _PREDICT_BLOCK // n_classes)

        def transform(start: int) -> None:
            part = slice(start, start + step)
            t = theta if len(theta) == 1 else theta[ids[part]]
            u = t[:, :n_classes] * clip_logits(z[part])
            u += t[:, n_classes:]
            if self.keep:
                predicted = decide(z[part]) if guess is None else guess[part]
                np.minimum(u, u[np.arange(len(u)), predicted][:, None], out=u)
                out[part] = keep_decision(softmax(u).astype(z.dtype, copy=False), predicted)
            else:
                out[part] = softmax(u)

        in_order(transform, [(start,) for start in range(0, len(z), step)], _MIN_BLOCKS)
        return out


def _log_odds(z: FloatArray, guess: CodeArray) -> Float:
    return np.minimum(top_margin(z, guess)[0], MAX_LOG_ODDS)


def clip_logits(z: FloatArray) -> Float:
    """Logits in float64, clipped to keep their squares and products finite."""
    return np.clip(z.astype(np.float64), -MAX_LOGIT, MAX_LOGIT)


def _active_rows(ids: IntArray, active: IntArray, n_slices: int) -> IntArray | slice:
    """Index that selects the rows of the slices `active`."""
    if len(active) == n_slices:
        return slice(None)
    visited = np.zeros(n_slices, bool)
    visited[active] = True
    return np.flatnonzero(visited[ids])


def vector_sums(rows: Rows, theta: Float) -> tuple[float, Float, Float]:
    """Summed NLL of ``softmax(a ⊙ z + b)``, its gradient (2K,) and its Hessian (2K, 2K) in θ = (a, b).

    With noisy labels, a Hessian that is not positive semidefinite is replaced with a larger, positive
    semidefinite matrix.
    """
    n_classes, labels = rows.z.shape[1], rows.label_model
    loss, gradient = 0.0, np.zeros((2, n_classes))
    hessian, pulled = np.zeros((2, 2 * n_classes, 2 * n_classes))
    step = max(1, _BLOCK // n_classes)
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        zs, w = clip_logits(rows.z[part]), rows.weight[part]
        if labels is None:
            ys = rows.y[part]
            block_loss, u = _weighted_probs(zs, ys, w, theta)
            hessian += vector_hessian(zs, u, w)
            u[np.arange(len(zs)), ys] -= w
        else:
            block_loss, u, q = _probs_and_labels(zs, labels.take(part), w, theta)
            hessian += vector_hessian(zs, u, w)
            if labels.is_noisy:
                pulled += vector_hessian(zs, q, w)
            u -= q
        loss += block_loss
        gradient += np.stack([np.einsum("ij,ij->j", u, zs), u.sum(axis=0)])
    return loss, gradient.ravel(), positive_or(hessian, pulled) if labels is not None else hessian


def vector_gradient(rows: Rows, theta: Float) -> tuple[float, Float]:
    """Loss and gradient (2K,) as in `vector_sums`, but computed in parallel in the dtype of the logits."""
    n, n_classes = rows.z.shape
    kernels = compiled_for(rows.z.size)
    if kernels is None or rows.label_model is not None:
        clip = rows.max_abs > MAX_LOGIT

        def sum_block(start: int, stop: int) -> tuple[float, Float]:
            return _vector_gradient(rows.take(slice(start, stop)), theta, clip)

    else:
        weight = np.empty(0) if rows.given_weight is None else rows.given_weight
        scale, bias = theta.astype(rows.z.dtype).reshape(2, n_classes)

        def sum_block(start: int, stop: int) -> tuple[float, Float]:
            gradient = np.zeros((2, n_classes))
            loss = kernels.vector_sums(rows.z, rows.y, weight, scale, bias, gradient, start, stop)
            return loss, gradient.ravel()

    blocks = over_blocks(sum_block, n, n_classes)
    return sum(loss for loss, _ in blocks), np.sum([gradient for _, gradient in blocks], axis=0)


def _vector_gradient(rows: Rows, theta: Float, clip: bool) -> tuple[float, Float]:
    """Summed loss and gradient (2K,) of these rows, computed in blocks that stay in the cache.

    `clip` says whether some logits have to be clipped.
    """
    z, n_classes, labels = rows.z, rows.z.shape[1], rows.label_model
    loss, gradient = 0.0, np.zeros((2, n_classes))
    step = max(1, _SMALL_BLOCK // n_classes)
    theta = np.asarray(theta, z.dtype)
    for start in range(0, len(z), step):
        part = slice(start, start + step)
        zs = np.clip(z[part], -MAX_LOGIT, MAX_LOGIT) if clip else z[part]
        w = rows.weight[part].astype(z.dtype)
        if labels is None:
            ys = rows.y[part]
            block_loss, u = _weighted_probs(zs, ys, w, theta)
            u[np.arange(len(zs)), ys] -= w
        else:
            block_loss, u, q = _probs_and_labels(zs, labels.take(part), w, theta)
            u -= q
        loss += block_loss
        gradient[1] += u.sum(axis=0)
        u *= zs
        gradient[0] += u.sum(axis=0)
    return loss, gradient.ravel()


def _weighted_probs(z: Any, y: CodeArray, w: Any, theta: Any) -> tuple[float, Any]:
    """Loss summed with the weights w, and ``w · p`` (n, K) in the dtype of the logits.

    p are the calibrated probabilities.
    """
    n_classes = z.shape[1]
    u = z * theta[:n_classes]
    u += theta[n_classes:]
    u -= u.max(axis=1, keepdims=True)
    true = u[np.arange(len(z)), y]
    np.exp(u, out=u)
    total = u.sum(axis=1)
    u *= (w / total)[:, None]
    return float(w.astype(np.float64) @ (np.log(total) - true)), u


def _probs_and_labels(z: Any, labels: LabelModel, w: Any, theta: Any) -> tuple[float, Any, Any]:
    """Loss summed with the weights w, and ``w · p`` and ``w · q``, (n, K) each.

    p are the calibrated probabilities, and q those of the true classes given the labels.
    """
    n_classes = z.shape[1]
    u = z * theta[:n_classes]
    u += theta[n_classes:]
    u -= u.max(axis=1, keepdims=True)
    u -= np.log(np.exp(u).sum(axis=1, keepdims=True))
    q, loss = labels.posterior(u)
    np.exp(u, out=u)
    return float(w.astype(np.float64) @ loss), u * w[:, None], q * w[:, None]


def vector_hessian(z: Float, wp: Float, weight: Float) -> Float:
    """Hessian (2K, 2K) of the summed NLL of ``softmax(a ⊙ z + b)`` in θ = (a, b).

    It is ``Σ_i w_i J_iᵀ (diag(p_i) − p_i p_iᵀ) J_i``, where ``J_i = [diag(z_i), I]`` is the derivative of
    ``a ⊙ z_i + b`` in θ.

    Parameters
    ----------
    z : (n, K) logits
    wp : (n, K) weights times probabilities
    weight : (n,) positive weights
    """
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
