"""Helpers shared by the Triton kernels: sums for batch norm, and functions that read tiles.

Images and activations have shape (n, side, side, channels) and, by default, type bfloat16; sums and
coefficients are float32. A convolution is computed as matrix products over tiles of ``BLOCK`` output pixels.
``WINDOW`` neighbouring pixels of a row are contiguous in memory and are read at once. For each tile, a 3 by 3
convolution therefore takes three products with a window of 4, whose fourth pixel is masked, or nine products
with a window of 1.

Three ideas reduce memory traffic:

* The batch norm and ReLU inside a block are applied when the next convolution reads its input.
* The sums that batch norm needs in the forward and backward pass are computed when a tensor is written.
* The gradient of a batch norm's input is computed together with the weight gradient, and stored once.

Sums have the shape (2, ``COPIES``, channels). Programs add to different copies, and readers sum the copies.
All sums must be zero at the start of a step; ``adam`` resets them.
"""
# Triton infers the types of the arguments when it compiles a kernel, so they have no annotations to check.
# mypy: ignore-errors

import triton
import triton.language as tl

from hetcal_paper.kernels.launch import COPIES

__all__ = ["NORM_EPS", "add_sums", "affine", "moments", "stem_tile", "totals", "update_running", "window"]

NORM_EPS = tl.constexpr(1e-5)
_COPIES = tl.constexpr(COPIES)
_MOMENTUM = tl.constexpr(0.1)


@triton.jit
def totals(sums, c, CHANNELS: tl.constexpr):
    """Return both sums of the channels ``c``, added over the copies."""
    pointer = sums + tl.arange(0, _COPIES)[:, None] * CHANNELS + c[None, :]
    return tl.sum(tl.load(pointer), 0), tl.sum(tl.load(pointer + _COPIES * CHANNELS), 0)


@triton.jit
def moments(sums, c, count, CHANNELS: tl.constexpr):
    """Return the mean and the biased variance of the channels ``c`` over the batch."""
    first, second = totals(sums, c, CHANNELS)
    mean = first / count
    return mean, tl.maximum(second / count - mean * mean, 0.0)


@triton.jit
def affine(sums, gamma, beta, run_mean, run_var, c, count, CHANNELS: tl.constexpr, TRAIN: tl.constexpr):
    """Return ``scale`` and ``shift`` such that batch norm is ``scale * y + shift``.

    With ``TRAIN``, they follow from the statistics of the batch; otherwise, from the running statistics.
    """
    if TRAIN:
        mean, var = moments(sums, c, count, CHANNELS)
    else:
        mean, var = tl.load(run_mean + c), tl.load(run_var + c)
    scale = tl.load(gamma + c) * tl.rsqrt(var + NORM_EPS)
    return scale, tl.load(beta + c) - mean * scale


@triton.jit
def update_running(sums, run_mean, run_var, count, CHANNELS: tl.constexpr):
    """Update the running statistics; only one program of a launch calls this."""
    c = tl.arange(0, CHANNELS)
    mean, var = moments(sums, c, count, CHANNELS)
    var = var * (count / (count - 1.0))
    old = tl.load(run_mean + c)
    tl.store(run_mean + c, old + _MOMENTUM * (mean - old))
    old = tl.load(run_var + c)
    tl.store(run_var + c, old + _MOMENTUM * (var - old))


@triton.jit
def add_sums(sums, first, second, c, CHANNELS: tl.constexpr):
    """Add ``first`` and ``second`` to the two sums of the channels ``c``, in this program's copy."""
    pointer = sums + (tl.program_id(0) % _COPIES) * CHANNELS + c
    tl.atomic_add(pointer, first, sem="relaxed")
    tl.atomic_add(pointer + _COPIES * CHANNELS, second, sem="relaxed")


@triton.jit
def window(
    x, scale, shift, m, n_pixels, ky, kc, SIDE: tl.constexpr, CHANNELS: tl.constexpr,
    STRIDE: tl.constexpr, WINDOW: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Read the inputs that the output pixels ``m`` need for one row of the 3 by 3 filter.

    ``ky`` is the row of the filter, and ``kc`` is the first of ``WINDOW`` columns. With ``NORM``, the result
    is ``relu(scale * x + shift)``. The result is zero for pixels outside the image.
    """
    OUT: tl.constexpr = SIDE // STRIDE
    k = tl.arange(0, WINDOW * CHANNELS)
    kx = kc + k // CHANNELS
    row = (m // OUT) % OUT * STRIDE + ky - 1
    left = m % OUT * STRIDE - 1
    column = left[:, None] + kx[None, :]
    inside = ((m < n_pixels) & (row >= 0) & (row < SIDE))[:, None]
    inside = inside & (column >= 0) & (column < SIDE) & (kx < 3)[None, :]
    start = ((m // (OUT * OUT) * SIDE + row) * SIDE + left) * CHANNELS
    tile = tl.load(x + start[:, None] + (kc * CHANNELS + k)[None, :], mask=inside, other=0.0)
    if NORM:
        value = tl.maximum(tile.to(tl.float32) * scale[None, :] + shift[None, :], 0.0)
        tile = tl.where(inside, value, 0.0).to(x.dtype.element_ty)
    return tile


@triton.jit
def stem_tile(x, m, n_pixels, SIDE: tl.constexpr):
    """Read the 27 inputs (3 by 3 pixels, 3 channels) of each pixel in ``m``, padded with zeros to 32."""
    k = tl.arange(0, 32)
    row = (m // SIDE % SIDE)[:, None] + (k // 9 - 1)[None, :]
    column = (m % SIDE)[:, None] + (k // 3 % 3 - 1)[None, :]
    inside = (m < n_pixels)[:, None] & (k < 27)[None, :]
    inside = inside & (row >= 0) & (row < SIDE) & (column >= 0) & (column < SIDE)
    offset = (((m // (SIDE * SIDE))[:, None] * SIDE + row) * SIDE + column) * 3 + (k % 3)[None, :]
    return tl.load(x + offset, mask=inside, other=0.0)
