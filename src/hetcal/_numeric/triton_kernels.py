"""Triton kernels that compute moments, predicted classes and calibrated probabilities of many rows."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

__all__ = ["decide", "scaled_softmax", "slopes"]

_TILE_ELEMENTS = 4096
_MAX_TILE_COLUMNS = 2048


def _tile(n_classes: int) -> tuple[int, int]:
    """Numbers of rows and columns that one program of a kernel processes at once."""
    columns = min(triton.next_power_of_2(n_classes), _MAX_TILE_COLUMNS)
    return max(1, _TILE_ELEMENTS // columns), columns


@triton.jit
def _slopes(
    z_ptr,
    top_ptr,
    ids_ptr,
    alpha_ptr,
    active_ptr,
    out_ptr,
    n,
    n_classes,
    rows: tl.constexpr,
    columns: tl.constexpr,
    work: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    inside = row < n
    slice_id = tl.load(ids_ptr + row, mask=inside, other=0)
    active = inside & (tl.load(active_ptr + slice_id, mask=inside, other=0) != 0)
    if tl.max(active.to(tl.int32), axis=0) == 0:
        return
    scale = tl.load(alpha_ptr + slice_id, mask=active, other=1.0).to(work) * 1.4426950408889634  # log2(e)
    top = tl.load(top_ptr + row, mask=active, other=0.0).to(work)
    lowest = -120.0 / scale  # the constant is `MIN_EXPONENT` of `hetcal._numeric.rows`
    e0 = tl.zeros((rows,), work)
    e1 = tl.zeros((rows,), work)
    e2 = tl.zeros((rows,), work)
    e3 = tl.zeros((rows,), work)
    for first in range(0, n_classes, columns):
        column = first + tl.arange(0, columns)
        valid = active[:, None] & (column[None, :] < n_classes)
        z = tl.load(z_ptr + row[:, None] * n_classes + column[None, :], mask=valid, other=0.0).to(work)
        d = tl.maximum(z - top[:, None], lowest[:, None])
        e = tl.where(valid, tl.exp2(d * scale[:, None]), 0.0)
        e0 += tl.sum(e, axis=1)
        e = e * d
        e1 += tl.sum(e, axis=1)
        e = e * d
        e2 += tl.sum(e, axis=1)
        e3 += tl.sum(e * d, axis=1)
    m1, m2, m3 = e1 / e0, e2 / e0, e3 / e0
    tl.store(out_ptr + row, m1, mask=active)
    tl.store(out_ptr + n + row, tl.maximum(m2 - m1 * m1, 0.0), mask=active)
    tl.store(out_ptr + 2 * n + row, m3 - 3 * m1 * m2 + 2 * m1 * m1 * m1, mask=active)


def slopes(z: Any, top: Any, ids: Any, alpha: Any, active: Any) -> Any:
    """E_p[d], Var_p[d] and E_p[(d − E_p[d])³] of every row, with ``d = z − max z`` and ``p = softmax(αd)``.

    The rows of the logits `z` (n, K) are divided into S slices, and `ids` (n,) contains the number of every
    row's slice. `alpha` (S,) contains one α per slice, and `top` (n,) the maximum of every row. The result is
    a tensor (3, n), with zeros for the rows of slices whose entry in `active` (S,) is False.
    """
    n, n_classes = z.shape
    rows, columns = _tile(n_classes)
    out = torch.zeros(3, n, dtype=alpha.dtype, device=z.device)
    work = tl.float64 if alpha.dtype == torch.float64 else tl.float32
    _slopes[(triton.cdiv(n, rows),)](
        *(z, top, ids, alpha, active.to(torch.uint8), out, n, n_classes),
        rows=rows,
        columns=columns,
        work=work,
        num_warps=4 if rows * columns <= 2048 else 8,
    )
    return out


@triton.jit
def _decide(
    z_ptr,
    top_ptr,
    guess_ptr,
    finite_ptr,
    n,
    n_classes,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    inside = row < n
    top = tl.full((rows,), float("-inf"), tl.float64)
    guess = tl.zeros((rows,), tl.int64)
    total = tl.zeros((rows,), tl.float64)
    for first in range(0, n_classes, columns):
        column = first + tl.arange(0, columns)
        valid = inside[:, None] & (column[None, :] < n_classes)
        address = z_ptr + row[:, None] * n_classes + column[None, :]
        z = tl.load(address, mask=valid, other=float("-inf"))
        largest = tl.max(z, axis=1)
        # If several columns have the largest logit, the first of them is the predicted class.
        first_column = tl.min(tl.where(z == largest[:, None], column[None, :], n_classes), axis=1)
        better = largest.to(tl.float64) > top
        guess = tl.where(better, first_column.to(tl.int64), guess)
        top = tl.where(better, largest.to(tl.float64), top)
        total += tl.sum(tl.where(valid, z, 0.0).to(tl.float32), axis=1).to(tl.float64)
    tl.store(top_ptr + row, top.to(top_ptr.dtype.element_ty), mask=inside)
    tl.store(guess_ptr + row, guess, mask=inside)
    # The stored value is 0 if the sum is finite, and nan otherwise, since 0 times nan or infinity is nan.
    tl.store(finite_ptr + row, (total * 0.0).to(tl.float32), mask=inside)


def decide(z: Any) -> tuple[Any, Any, bool]:
    """Maximum of every row, the first column with that maximum, and whether all logits are finite.

    The last result is also False if finite logits, or sums of them, overflow in float32.
    """
    n, n_classes = z.shape
    rows, columns = _tile(n_classes)
    top = torch.empty(n, dtype=z.dtype, device=z.device)
    guess = torch.empty(n, dtype=torch.int64, device=z.device)
    finite = torch.empty(n, dtype=torch.float32, device=z.device)
    _decide[(triton.cdiv(n, rows),)](z, top, guess, finite, n, n_classes, rows=rows, columns=columns)
    return top, guess, bool((finite == 0).all())


@triton.jit
def _scaled_softmax(
    z_ptr,
    top_ptr,
    guess_ptr,
    alpha_ptr,
    p_ptr,
    tied_ptr,
    n,
    n_classes,
    alpha_step,
    rows: tl.constexpr,
    columns: tl.constexpr,
    work: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    inside = row < n
    guess = tl.load(guess_ptr + row, mask=inside, other=0)
    scale = tl.load(alpha_ptr + guess * alpha_step, mask=inside, other=1.0).to(work) * 1.4426950408889634
    top = tl.load(top_ptr + row, mask=inside, other=0.0).to(work)
    total = tl.zeros((rows,), work)
    for first in range(0, n_classes, columns):
        column = first + tl.arange(0, columns)
        valid = inside[:, None] & (column[None, :] < n_classes)
        z = tl.load(z_ptr + row[:, None] * n_classes + column[None, :], mask=valid, other=0.0).to(work)
        total += tl.sum(tl.where(valid, tl.exp2((z - top[:, None]) * scale[:, None]), 0.0), axis=1)
    largest = 1.0 / total  # the probability of the predicted class
    best = tl.full((rows,), n_classes, tl.int64)  # the first column with that probability
    for first in range(0, n_classes, columns):
        column = first + tl.arange(0, columns)
        valid = inside[:, None] & (column[None, :] < n_classes)
        address = row[:, None] * n_classes + column[None, :]
        z = tl.load(z_ptr + address, mask=valid, other=0.0).to(work)
        p = tl.exp2((z - top[:, None]) * scale[:, None]) * largest[:, None]
        tl.store(p_ptr + address, p, mask=valid)
        is_largest = valid & (p >= largest[:, None])
        best = tl.minimum(best, tl.min(tl.where(is_largest, column[None, :], n_classes), axis=1).to(tl.int64))
    tl.store(tied_ptr + row, (best != guess).to(tl.int8), mask=inside)


def scaled_softmax(z: Any, top: Any, guess: Any, alpha: Any) -> tuple[Any, Any]:
    """``softmax(α z)`` of every row, where `alpha` contains one α per predicted class, or a single α.

    Returns
    -------
    p : (n, K) tensor with the type of `alpha`
    tied : (n,) bool tensor
        Rows where rounding gives an earlier class the same probability as the predicted class.
    """
    n, n_classes = z.shape
    rows, columns = _tile(n_classes)
    p = torch.empty((n, n_classes), dtype=alpha.dtype, device=z.device)
    tied = torch.empty(n, dtype=torch.bool, device=z.device)
    _scaled_softmax[(triton.cdiv(n, rows),)](
        *(z, top, guess, alpha, p, tied.view(torch.int8), n, n_classes, int(len(alpha) > 1)),
        rows=rows,
        columns=columns,
        work=tl.float64 if alpha.dtype == torch.float64 else tl.float32,
        num_warps=4 if rows * columns <= 2048 else 8,
    )
    return p, tied
