from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import block_diag

from hetcal._numeric.block_hessian import BlockHessian, DiagonalHessian

N_CLASSES, SIZE = 3, 4


@pytest.fixture
def blocks() -> np.ndarray:
    a = np.random.default_rng(0).normal(size=(N_CLASSES, SIZE, 10))
    return a @ a.transpose(0, 2, 1)


def test_solutions_and_variances_agree_with_the_full_matrix(blocks):
    rng = np.random.default_rng(1)
    slope, precision = rng.normal(size=12), rng.uniform(0.1, 2, 12)
    step, variances = BlockHessian(blocks).solve_with_variances(slope, precision)
    full = block_diag(*blocks) + np.diag(precision)
    np.testing.assert_allclose(step, np.linalg.solve(full, slope), rtol=1e-6)
    np.testing.assert_allclose(variances, np.linalg.inv(full).diagonal(), rtol=1e-6)


def test_a_block_without_information_has_the_variances_of_the_prior(blocks):
    blocks[1] = 0
    _, variances = BlockHessian(blocks).solve_with_variances(np.zeros(12), np.full(12, 0.5))
    np.testing.assert_allclose(variances[SIZE : 2 * SIZE], 2, rtol=1e-6)


def test_a_singular_block_can_be_used(blocks):
    blocks[0] = np.ones((SIZE, SIZE))
    step, variances = BlockHessian(blocks).solve_with_variances(np.ones(12), np.zeros(12))
    assert np.isfinite(step).all()
    assert (variances > 0).all()


@pytest.mark.parametrize("is_diagonal", [False, True])
def test_the_hessian_is_the_identity_in_preconditioned_coordinates(blocks, is_diagonal):
    penalty, total, free = np.full(12, 0.3), 7.0, np.arange(12) != 5
    if is_diagonal:
        blocks = blocks * np.eye(SIZE)
        hessian = DiagonalHessian(np.einsum("kii->ki", blocks))
    else:
        hessian = BlockHessian(blocks)
    unit = hessian.preconditioner(penalty, free, total)
    full = (block_diag(*blocks) + np.diag(penalty)) / total
    product = np.array([unit.to_slope(full @ unit.to_parameters(v)) for v in np.eye(12)])
    np.testing.assert_allclose(product[free][:, free], np.eye(11), atol=1e-4)
    theta = np.where(free, np.arange(12.0), 0)
    np.testing.assert_allclose(unit.to_parameters(unit.from_parameters(theta)), theta, atol=1e-9)
    assert unit.to_parameters(np.ones(12))[5] == 0  # parameters that are not free stay zero
