"""Triton kernels for the backward pass through convolutions and batch norms.

"The gradient of a tensor" means the gradient of the loss with respect to that tensor. The output of a
convolution is ``y``. It passes through a batch norm, and a shortcut may be added. The result is the input of
a ReLU. ``dy`` is the gradient of ``y``, and ``dz`` is the gradient of the input of the ReLU. Both have the
memory layout of the images; see :mod:`hetcal_paper.kernels.tiles`.
"""
# Triton infers the types of the arguments when it compiles a kernel, so they have no annotations to check.
# mypy: ignore-errors

import triton
import triton.language as tl

from hetcal_paper.kernels.tiles import NORM_EPS, add_sums, affine, moments, stem_tile, totals, window

__all__ = [
    "conv_backward",
    "conv_backward_strided",
    "projection_gradient",
    "stem_gradient",
    "weight_gradient",
]


@triton.jit
def _finish_gradient(
    acc, m, valid, add, active, y, dz, sums, back_sums, gamma, beta, count, CHANNELS: tl.constexpr,
    ADD: tl.constexpr, ACTIVE: tl.constexpr,
):  # fmt: skip
    """Store ``dz``, computed from ``acc``, the gradient of the output of a ReLU.

    With ``ADD``, ``add`` is added to ``acc`` first. ``dz`` equals ``acc`` where the output of the ReLU is
    positive, and is zero elsewhere. With ``ACTIVE``, ``active`` contains this output; otherwise, it is
    recomputed from ``y``. The sums of ``dz`` and of ``dz * (y - mean)`` are added to ``back_sums``.
    """
    c = tl.arange(0, CHANNELS)
    offset = m[:, None] * CHANNELS + c[None, :]
    valid = valid[:, None]
    raw = tl.load(y + offset, mask=valid, other=0.0).to(tl.float32)
    mean, var = moments(sums, c, count, CHANNELS)
    if ADD:
        acc += tl.load(add + offset, mask=valid, other=0.0).to(tl.float32)
    if ACTIVE:
        positive = tl.load(active + offset, mask=valid, other=0.0).to(tl.float32) > 0.0
    else:
        scale = tl.load(gamma + c) * tl.rsqrt(var + NORM_EPS)
        shift = tl.load(beta + c) - mean * scale
        positive = raw * scale[None, :] + shift[None, :] > 0.0
    value = tl.where(positive & valid, acc, 0.0).to(dz.dtype.element_ty)
    tl.store(dz + offset, value, mask=valid)
    value = value.to(tl.float32)
    add_sums(back_sums, tl.sum(value, 0), tl.sum(value * (raw - mean[None, :]), 0), c, CHANNELS)


@triton.jit
def conv_backward(
    dy, w, dz, add, active, y, sums, back_sums, gamma, beta, images,
    SIDE: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr, ADD: tl.constexpr,
    ACTIVE: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Compute ``dz`` of the previous layer from ``dy``, the gradient of the output of a convolution."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n_pixels = images * SIDE * SIDE
    k = tl.arange(0, WINDOW * COUT)
    ci = tl.arange(0, CIN)
    acc = tl.zeros([BLOCK, CIN], tl.float32)
    for ky in tl.static_range(3):
        for kc in tl.static_range(0, 3, WINDOW):
            tile = window(dy, k, k, m, n_pixels, ky, kc, SIDE, COUT, 1, WINDOW, False)
            kx = kc + k // COUT
            offset = (k % COUT * 9 + (2 - ky) * 3 + 2 - kx)[:, None] * CIN + ci[None, :]
            weight = tl.load(w + offset, mask=(kx < 3)[:, None], other=0.0)
            acc = tl.dot(tile, weight, acc)
    count = n_pixels * 1.0
    _finish_gradient(
        acc, m, m < n_pixels, add, active, y, dz, sums, back_sums, gamma, beta, count, CIN, ADD, ACTIVE
    )


@triton.jit
def conv_backward_strided(
    dy, w, dz, back, w_project, active, y, sums, back_sums, gamma, beta, images,
    SIDE: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the same as :func:`conv_backward` for stride 2, including the projection of the shortcut.

    The second axis of the grid selects pixels of ``dz`` with even or odd rows, and with even or odd columns.
    All pixels of one program therefore use the same entries of the filter. ``back`` is the gradient of the
    input of the residual block's last ReLU, which is also the gradient of the projection's output.
    """
    HALF: tl.constexpr = SIDE // 2
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # pixels in dy, counted over all images
    odd_row = tl.program_id(1) // 2
    odd_column = tl.program_id(1) % 2
    valid = m < images * HALF * HALF
    row = m // HALF % HALF
    column = m % HALF
    co = tl.arange(0, COUT)
    ci = tl.arange(0, CIN)
    acc = tl.zeros([BLOCK, CIN], tl.float32)
    for ky in tl.static_range(3):
        if (odd_row + ky) % 2 == 1:
            for kx in tl.static_range(3):
                if (odd_column + kx) % 2 == 1:
                    down = (odd_row + 1 - ky) // 2
                    right = (odd_column + 1 - kx) // 2
                    inside = valid & (row + down < HALF) & (column + right < HALF)
                    offset = (m + down * HALF + right)[:, None] * COUT + co[None, :]
                    tile = tl.load(dy + offset, mask=inside[:, None], other=0.0)
                    offset = (co * 9 + ky * 3 + kx)[:, None] * CIN + ci[None, :]
                    acc = tl.dot(tile, tl.load(w + offset), acc)
    if tl.program_id(1) == 0:
        tile = tl.load(back + m[:, None] * COUT + co[None, :], mask=valid[:, None], other=0.0)
        acc = tl.dot(tile, tl.load(w_project + co[:, None] * CIN + ci[None, :]), acc)
    # m // HALF is the row in dy, counted over all images.
    pixel = (m // HALF * 2 + odd_row) * SIDE + column * 2 + odd_column
    count = images * SIDE * SIDE * 1.0
    _finish_gradient(
        acc, pixel, valid, dz, active, y, dz, sums, back_sums, gamma, beta, count, CIN, False, True
    )


@triton.jit
def _norm_terms(sums, back_sums, gamma, dgamma, dbeta, first, count, CHANNELS: tl.constexpr):
    """Store the gradients of a batch norm's parameters if ``first`` is true; return coefficients for ``dy``.

    The result is (mean, scale, dz_mean, dz_slope) with
    ``dy = scale * (dz - dz_mean - (y - mean) * dz_slope)``.
    """
    c = tl.arange(0, CHANNELS)
    mean, var = moments(sums, c, count, CHANNELS)
    inverse = tl.rsqrt(var + NORM_EPS)
    total, weighted = totals(back_sums, c, CHANNELS)
    tl.store(dbeta + c, total, mask=(c >= 0) & first)
    tl.store(dgamma + c, weighted * inverse, mask=(c >= 0) & first)
    return mean, tl.load(gamma + c) * inverse, total / count, weighted * inverse * inverse / count


@triton.jit
def _norm_tile(dz, y, m, n_pixels, mean, scale, dz_mean, dz_slope, CHANNELS: tl.constexpr):
    """Return ``dy``, the gradient of the input of a batch norm, for the pixels ``m``."""
    offset = m[:, None] * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    valid = (m < n_pixels)[:, None]
    back = tl.load(dz + offset, mask=valid, other=0.0).to(tl.float32)
    raw = tl.load(y + offset, mask=valid, other=0.0).to(tl.float32)
    value = scale[None, :] * (back - dz_mean[None, :] - (raw - mean[None, :]) * dz_slope[None, :])
    return tl.where(valid, value, 0.0).to(dz.dtype.element_ty)


@triton.jit
def weight_gradient(
    x, dz, y, dy, dw, sums, back_sums, gamma, dgamma, dbeta, in_sums, in_gamma, in_beta, images,
    SIDE: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr, STRIDE: tl.constexpr,
    NORM: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Compute ``dy`` and the gradients of the parameters of a convolution and of its batch norm.

    The first axis of the grid divides the entries of the 3 by 3 filter among programs. It has length 1 if
    each program handles the whole filter (``ROWS`` is 3). The second axis divides the pixels.
    """
    OUT: tl.constexpr = SIDE // STRIDE
    group = tl.program_id(0)
    ky = 0 if ROWS == 3 else (group if WINDOW == 4 else group // 3)
    kc = 0 if WINDOW == 4 else group % 3
    n_pixels = images * OUT * OUT
    first = (group == 0) & (tl.program_id(1) == 0)
    count = n_pixels * 1.0
    mean, slope, dz_mean, dz_slope = _norm_terms(sums, back_sums, gamma, dgamma, dbeta, first, count, COUT)
    k = tl.arange(0, WINDOW * CIN)
    co = tl.arange(0, COUT)
    scale, shift = k, k
    if NORM:
        in_count = images * SIDE * SIDE * 1.0
        scale, shift = affine(in_sums, in_gamma, in_beta, in_sums, in_sums, k % CIN, in_count, CIN, True)
    acc0 = tl.zeros([WINDOW * CIN, COUT], tl.float32)
    acc1 = acc0
    acc2 = acc0
    for tile in range(tl.program_id(1), tl.cdiv(n_pixels, BLOCK), tl.num_programs(1)):
        m = tile * BLOCK + tl.arange(0, BLOCK)
        back = _norm_tile(dz, y, m, n_pixels, mean, slope, dz_mean, dz_slope, COUT)
        stores_dy = (m < n_pixels) & (group == 0)
        tl.store(dy + m[:, None] * COUT + co[None, :], back, mask=stores_dy[:, None])
        patches = window(x, scale, shift, m, n_pixels, ky, kc, SIDE, CIN, STRIDE, WINDOW, NORM)
        acc0 = tl.dot(tl.trans(patches), back, acc0)
        if ROWS == 3:
            patches = window(x, scale, shift, m, n_pixels, 1, kc, SIDE, CIN, STRIDE, WINDOW, NORM)
            acc1 = tl.dot(tl.trans(patches), back, acc1)
            patches = window(x, scale, shift, m, n_pixels, 2, kc, SIDE, CIN, STRIDE, WINDOW, NORM)
            acc2 = tl.dot(tl.trans(patches), back, acc2)
    pointer = dw + co[None, :] * (9 * CIN) + (ky * 3 + kc) * CIN + k[:, None]
    inside = (kc + k // CIN < 3)[:, None]
    tl.atomic_add(pointer, acc0, mask=inside, sem="relaxed")
    if ROWS == 3:
        tl.atomic_add(pointer + 3 * CIN, acc1, mask=inside, sem="relaxed")
        tl.atomic_add(pointer + 6 * CIN, acc2, mask=inside, sem="relaxed")


@triton.jit
def projection_gradient(
    x, back, dw, images, SIDE: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the weights of a 1 by 1 convolution with stride 2."""
    n_pixels = images * (SIDE // 2) * (SIDE // 2)
    ci = tl.arange(0, CIN)
    co = tl.arange(0, COUT)
    acc = tl.zeros([CIN, COUT], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(n_pixels, BLOCK), tl.num_programs(0)):
        m = tile * BLOCK + tl.arange(0, BLOCK)
        offset = m[:, None] * COUT + co[None, :]
        gradient = tl.load(back + offset, mask=(m < n_pixels)[:, None], other=0.0)
        patches = window(x, ci, ci, m, n_pixels, 1, 1, SIDE, CIN, 2, 1, False)
        acc = tl.dot(tl.trans(patches), gradient, acc)
    tl.atomic_add(dw + co[None, :] * CIN + ci[:, None], acc, sem="relaxed")


@triton.jit
def stem_gradient(
    x, first_row, dz, y, dw, sums, back_sums, gamma, dgamma, dbeta, images, SIDE: tl.constexpr,
    COUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the parameters of the first convolution and of its batch norm."""
    x += tl.load(first_row) * (SIDE * SIDE * 3)
    n_pixels = images * SIDE * SIDE
    count = n_pixels * 1.0
    first = tl.program_id(0) == 0
    mean, slope, dz_mean, dz_slope = _norm_terms(sums, back_sums, gamma, dgamma, dbeta, first, count, COUT)
    acc = tl.zeros([32, COUT], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(n_pixels, BLOCK), tl.num_programs(0)):
        m = tile * BLOCK + tl.arange(0, BLOCK)
        back = _norm_tile(dz, y, m, n_pixels, mean, slope, dz_mean, dz_slope, COUT)
        acc = tl.dot(tl.trans(stem_tile(x, m, n_pixels, SIDE)), back, acc)
    k = tl.arange(0, 32)
    pointer = dw + tl.arange(0, COUT)[None, :] * 27 + k[:, None]
    tl.atomic_add(pointer, acc, mask=(k < 27)[:, None], sem="relaxed")
