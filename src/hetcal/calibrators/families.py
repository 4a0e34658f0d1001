"""The numbers behind Platt and vector scaling: losses with derivatives by slice, and the maps themselves.

A family has `start(K)`, the parameters that change nothing; `evaluator(...)`, the loss of every slice with
gradient and Hessian; and `predict(z, theta, ids)`, the probabilities with row i under ``theta[ids[i]]``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from hetcal._core.arrays import FloatArray, IntArray, softmax
from hetcal._core.balls import EvaluateVector
from hetcal._core.kernels import spread, top_margin

__all__ = ["PlattFamily", "VectorFamily", "fit_vector_lbfgs"]

Float = NDArray[np.float64]

_BLOCK = 1 << 20  # elements of a float64 block of probabilities: 8 MiB


@dataclass(frozen=True)
class PlattFamily:
    """``sigmoid(a · logit(p̂) + b)`` for the predicted class; θ = (a, b)."""

    def start(self, n_classes: int) -> Float:  # noqa: ARG002
        """Return the parameters that change nothing."""
        return np.array([1.0, 0.0])

    def evaluator(self, z: FloatArray, y: IntArray, weight: Float, ids: IntArray, n_slices: int) -> EvaluateVector:
        """Binary NLL of "the prediction is right" by slice, with derivatives."""
        x, guess = top_margin(z)
        right = (guess == y).astype(np.float64)

        def evaluate(theta: Float, active: IntArray) -> tuple[Float, Float, Float]:
            rows = _rows_of(ids, active, n_slices)
            k, xs, w = ids[rows], x[rows], weight[rows]
            u = theta[k, 0] * xs + theta[k, 1]
            p = expit(u)
            residual, curve = w * (p - right[rows]), w * p * (1 - p)
            terms = (w * (np.logaddexp(0, u) - right[rows] * u), residual * xs, residual, curve * xs * xs, curve * xs, curve)
            loss, ga, gb, haa, hab, hbb = (np.bincount(k, t, n_slices)[active] for t in terms)
            hessian = np.stack([haa, hab, hab, hbb], axis=1).reshape(-1, 2, 2)
            return loss, np.stack([ga, gb], axis=1), hessian

        return evaluate

    def predict(self, z: FloatArray, theta: Float, ids: IntArray) -> FloatArray:
        """Probabilities with the argmax kept."""
        x, _ = top_margin(z)
        return spread(z, expit(theta[ids, 0] * x + theta[ids, 1]))


@dataclass(frozen=True)
class VectorFamily:
    """``softmax(a ⊙ z + b)``; θ = (a, b), with ``ridge/2 · Σw · ‖θ − anchor‖²`` added to the loss of a slice."""

    ridge: float = 0.0
    anchor: float = 1.0

    def start(self, n_classes: int) -> Float:
        """Return the parameters that change nothing but one temperature, `anchor`."""
        return np.concatenate([np.full(n_classes, self.anchor), np.zeros(n_classes)])

    def evaluator(self, z: FloatArray, y: IntArray, weight: Float, ids: IntArray, n_slices: int) -> EvaluateVector:
        """NLL by slice, with derivatives."""
        order = np.argsort(ids, kind="stable")
        ends = np.searchsorted(ids[order], np.arange(n_slices + 1))
        anchor = self.start(z.shape[1])

        def one(theta: Float, k: int) -> tuple[float, Float, Float]:
            rows = order[ends[k] : ends[k + 1]]
            loss, gradient, hessian = _vector_sums(z[rows], y[rows], weight[rows], theta)
            strength = self.ridge * float(weight[rows].sum())
            away = theta - anchor
            hessian[np.diag_indices_from(hessian)] += strength
            return loss + strength / 2 * float(away @ away), gradient + strength * away, hessian

        def evaluate(theta: Float, active: IntArray) -> tuple[Float, Float, Float]:
            parts = [one(theta[k], int(k)) for k in active]
            return np.array([p[0] for p in parts]), np.stack([p[1] for p in parts]), np.stack([p[2] for p in parts])

        return evaluate

    def predict(self, z: FloatArray, theta: Float, ids: IntArray) -> FloatArray:
        """Probabilities; the argmax may differ from that of `z`."""
        n_classes = z.shape[1]
        out = np.empty_like(z)
        step = max(1, _BLOCK // n_classes)
        for start in range(0, len(z), step):
            part = slice(start, start + step)
            t = theta[ids[part]].astype(z.dtype)
            out[part] = softmax(t[:, :n_classes] * z[part] + t[:, n_classes:])
        return out


def fit_vector_lbfgs(family: VectorFamily, z: FloatArray, y: IntArray, weight: Float) -> Float:
    """Vector scaling for many classes, where a Hessian of (2K)² would not pay."""
    anchor = family.start(z.shape[1])
    total = float(weight.sum())

    def value(theta: Float) -> tuple[float, Float]:
        loss, gradient, _ = _vector_sums(z, y, weight, theta, curvature=False)
        away = theta - anchor
        return loss / total + family.ridge / 2 * float(away @ away), gradient / total + family.ridge * away

    options = {"maxiter": 2000, "maxfun": 4000, "ftol": 1e-13, "gtol": 1e-8, "maxcor": 20}
    return np.asarray(minimize(value, anchor, jac=True, method="L-BFGS-B", options=options).x)


def _rows_of(ids: IntArray, active: IntArray, n_slices: int) -> IntArray | slice:
    if len(active) == n_slices:
        return slice(None)
    wanted = np.zeros(n_slices, bool)
    wanted[active] = True
    return np.flatnonzero(wanted[ids])


def _vector_sums(
    z: FloatArray, y: IntArray, weight: Float, theta: Float, *, curvature: bool = True
) -> tuple[float, Float, Float]:
    """Loss, gradient (2K,) and Hessian (2K, 2K) of the NLL of ``softmax(a ⊙ z + b)``, block by block."""
    n_classes = z.shape[1]
    loss, gradient = 0.0, np.zeros((2, n_classes))
    size = 2 * n_classes if curvature else 0
    hessian = np.zeros((size, size))
    diagonal = np.zeros((3, n_classes))
    step = max(1, _BLOCK // n_classes)
    for start in range(0, len(z), step):
        zs, ys, w = z[start : start + step].astype(np.float64), y[start : start + step], weight[start : start + step]
        u = zs * theta[:n_classes] + theta[n_classes:]
        u -= u.max(axis=1, keepdims=True)
        here = np.arange(len(zs))
        u_true = u[here, ys].copy()
        np.exp(u, out=u)
        total = u.sum(axis=1)
        loss += float(w @ (np.log(total) - u_true))
        u *= (w / total)[:, None]  # u is now w · p
        if curvature:
            root = np.sqrt(w)[:, None]
            p = np.divide(u, root, out=np.zeros_like(u), where=root > 0)
            pair = np.concatenate([p * zs, p], axis=1)
            hessian -= pair.T @ pair
            diagonal += np.stack([np.einsum("ij,ij,ij->j", u, zs, zs), np.einsum("ij,ij->j", u, zs), u.sum(axis=0)])
        u[here, ys] -= w
        gradient += np.stack([np.einsum("ij,ij->j", u, zs), u.sum(axis=0)])
    if curvature:
        i = np.arange(n_classes)
        j = i + n_classes
        hessian[i, i] += diagonal[0]
        hessian[i, j] += diagonal[1]
        hessian[j, i] += diagonal[1]
        hessian[j, j] += diagonal[2]
    return loss, gradient.ravel(), hessian
