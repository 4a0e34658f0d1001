"""Approximate Hessians for many classes: the diagonal, or one diagonal block per class.

The parameters θ (p,) of K classes form a table (K, q). Second derivatives with respect to parameters of
different classes are ignored. These Hessians precondition L-BFGS, and the blocks also give approximate
posterior variances.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs, dtrtri

from hetcal._typing import BoolArray, Float

__all__ = ["BlockHessian", "DiagonalHessian", "Preconditioner"]

_DAMPING = 1e-6  # makes blocks invertible: added to their diagonal after they are scaled to a diagonal of 1


@dataclass(frozen=True, eq=False)
class DiagonalHessian:
    """A Hessian of which only the diagonal is known: `table` (K, q)."""

    table: Float

    @property
    def diagonal(self) -> Float:
        """Diagonal of the Hessian, (p,)."""
        return self.table.ravel()

    def preconditioner(self, penalty: Float, free: BoolArray, total: float) -> Preconditioner:
        """Return coordinates in which the mean penalised loss has second derivatives of about 1.

        `penalty` (p,) contains the second derivatives of the penalty. Parameters that are not `free` (p,)
        stay zero. The mean loss is the loss divided by `total`.
        """
        diagonal = np.where(free, self.diagonal + penalty, 1.0)
        scale = np.sqrt(total) * np.where(free, 1.0, 0.0) / np.sqrt(diagonal)
        return Preconditioner(scale.reshape(self.table.shape))


@dataclass(frozen=True, eq=False)
class BlockHessian:
    """A Hessian of which only one diagonal block per class is known: `blocks` (K, q, q)."""

    blocks: Float

    @property
    def diagonal(self) -> Float:
        """Diagonal of the Hessian, (p,)."""
        return np.asarray(np.einsum("kii->ki", self.blocks).ravel())

    def solve(self, slope: Float, precision: Float) -> Float:
        """``(H + diag(precision))⁻¹ slope``, (p,), where H is the block-diagonal Hessian."""
        return self.solve_with_variances(slope, precision)[0]

    def solve_with_variances(self, slope: Float, precision: Float) -> tuple[Float, Float]:
        """Return ``(H + diag(precision))⁻¹ slope``, (p,), and the diagonal of the inverse matrix, (p,)."""
        added = 1e-10 * (1 + float(self.diagonal.max()))  # makes every block invertible, even one of zeros
        penalised = self._with_diagonal(self.diagonal + precision + added)
        steps, variances = np.empty((2, *penalised.shape[:2]))
        for k, right in enumerate(slope.reshape(steps.shape)):
            factor = _cholesky(penalised[k])
            steps[k], _ = dpotrs(factor, right, lower=True)
            variances[k] = dpotri(factor, lower=True, overwrite_c=True)[0].diagonal()
        return steps.ravel(), variances.ravel()

    def preconditioner(self, penalty: Float, free: BoolArray, total: float) -> Preconditioner:
        """Return coordinates in which the Hessian of the mean penalised loss is close to the identity.

        The arguments are those of :meth:`DiagonalHessian.preconditioner`.
        """
        diagonal = np.where(free, self.diagonal + penalty, 1.0)
        scale = (np.where(free, 1.0, 0.0) / np.sqrt(diagonal)).reshape(len(self.blocks), -1)
        correlation = self._with_diagonal(diagonal) * scale[:, :, None] * scale[:, None, :]
        np.einsum("kii->ki", correlation)[...] = 1 + _DAMPING
        factor = np.stack([_cholesky(block) for block in correlation])
        inverse = np.stack([dtrtri(lower_triangle, lower=True)[0] for lower_triangle in factor])
        return Preconditioner(scale * np.sqrt(total), factor, inverse)

    def _with_diagonal(self, diagonal: Float) -> Float:
        blocks = self.blocks.copy()
        np.einsum("kii->ki", blocks)[...] = diagonal.reshape(len(blocks), -1)
        return blocks


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """Coordinates ``v_k = L_kᵀ (θ_k / s_k)`` for the parameters θ_k of every class k.

    Attributes
    ----------
    scale : (K, q) the scales s, which are zero for parameters that stay zero
    factor, inverse : (K, q, q) lower triangular matrices L_k, and their inverses
        Both are None if every L_k is the identity.
    """

    scale: Float
    factor: Float | None = None
    inverse: Float | None = None

    def to_parameters(self, v: Float) -> Float:
        """Parameters θ (p,) that correspond to the coordinates v (p,)."""
        table = v.reshape(self.scale.shape)
        if self.inverse is not None:
            table = np.einsum("kji,kj->ki", self.inverse, table)
        return np.asarray((self.scale * table).ravel())

    def to_slope(self, gradient: Float) -> Float:
        """Gradient with respect to v, (p,), computed from the gradient with respect to θ, (p,)."""
        table = self.scale * gradient.reshape(self.scale.shape)
        if self.inverse is not None:
            table = np.einsum("kij,kj->ki", self.inverse, table)
        return np.asarray(table.ravel())

    def from_parameters(self, theta: Float) -> Float:
        """Coordinates v (p,) that correspond to the parameters θ (p,)."""
        table = theta.reshape(self.scale.shape)
        table = np.divide(table, self.scale, out=np.zeros_like(table), where=self.scale > 0)
        if self.factor is not None:
            table = np.einsum("kji,kj->ki", self.factor, table)
        return np.asarray(table.ravel())


def _cholesky(matrix: Float) -> Float:
    """Lower Cholesky factor of a matrix; if there is none, the diagonal is increased until there is one."""
    added = 1e-10 * float(matrix.diagonal().max())
    factor, info = dpotrf(matrix, lower=True, clean=True)
    while info:
        factor, info = dpotrf(matrix + added * np.eye(len(matrix)), lower=True, clean=True)
        added *= 100
    return np.asarray(factor)
