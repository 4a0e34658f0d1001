"""Triton kernels for one training step of ResNet-20.

Images are (n, side, side, channels) in bfloat16, sums and coefficients float32. A convolution is a
matrix product over tiles of ``BLOCK`` output pixels; a window of ``WINDOW`` neighbouring pixels in a
row is one contiguous piece of memory, so that a 3 by 3 kernel is three products with a window of
4 (the fourth masked) or nine with a window of 1. Three ideas keep the traffic low:

* the batch norm and ReLU inside a block are applied when the next convolution reads its input;
* the sums that batch norm needs, forward and backward, are taken where the tensors are made;
* the gradient behind a batch norm is made where the weights' gradient needs it, and stored once.

Sums lie as (2, ``COPIES``, channels): programs add to different copies, readers add the copies up.
Everything that is added to must be zero at the start of a step; :func:`adam` leaves it so.
"""
# mypy: ignore-errors
# ruff: noqa: D103, ANN001, ANN201 - kernels take pointers and sizes; the host module describes them

import triton
import triton.language as tl

__all__ = [
    "COPIES",
    "adam",
    "add_shortcut",
    "conv_backward",
    "conv_backward_strided",
    "conv_forward",
    "head",
    "projection_gradient",
    "stem_forward",
    "stem_gradient",
    "weight_gradient",
]

COPIES = 8
_COPIES = tl.constexpr(COPIES)
_EPS = tl.constexpr(1e-5)
_MOMENTUM = tl.constexpr(0.1)


# -- shared pieces --------------------------------------------------------------------------------


@triton.jit
def _totals(sums, c, CHANNELS: tl.constexpr):
    """Both sums of the channels ``c``."""
    at = sums + tl.arange(0, _COPIES)[:, None] * CHANNELS + c[None, :]
    return tl.sum(tl.load(at), 0), tl.sum(tl.load(at + _COPIES * CHANNELS), 0)


@triton.jit
def _moments(sums, c, count, CHANNELS: tl.constexpr):
    """Mean and biased variance of the channels ``c`` over the batch."""
    first, second = _totals(sums, c, CHANNELS)
    mean = first / count
    return mean, tl.maximum(second / count - mean * mean, 0.0)


@triton.jit
def _affine(sums, gamma, beta, run_mean, run_var, c, count, CHANNELS: tl.constexpr, TRAIN: tl.constexpr):
    """Batch norm as ``scale * y + shift``; the first program updates the running statistics."""
    if TRAIN:
        mean, var = _moments(sums, c, count, CHANNELS)
    else:
        mean, var = tl.load(run_mean + c), tl.load(run_var + c)
    scale = tl.load(gamma + c) * tl.rsqrt(var + _EPS)
    return scale, tl.load(beta + c) - mean * scale


@triton.jit
def _update_running(sums, run_mean, run_var, count, CHANNELS: tl.constexpr):
    c = tl.arange(0, CHANNELS)
    mean, var = _moments(sums, c, count, CHANNELS)
    var = var * (count / (count - 1.0))
    old = tl.load(run_mean + c)
    tl.store(run_mean + c, old + _MOMENTUM * (mean - old))
    old = tl.load(run_var + c)
    tl.store(run_var + c, old + _MOMENTUM * (var - old))


@triton.jit
def _add_sums(sums, first, second, c, CHANNELS: tl.constexpr):
    at = sums + (tl.program_id(0) % _COPIES) * CHANNELS + c
    tl.atomic_add(at, first, sem="relaxed")
    tl.atomic_add(at + _COPIES * CHANNELS, second, sem="relaxed")


@triton.jit
def _window(
    x, scale, shift, m, n_pixels, ky, kc, SIDE: tl.constexpr, CHANNELS: tl.constexpr,
    STRIDE: tl.constexpr, WINDOW: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Inputs of the output pixels ``m`` in row ``ky`` of the kernel, from its column ``kc`` on."""
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
def _stem_tile(x, m, n_pixels, SIDE: tl.constexpr):
    """All 27 inputs of the pixels ``m`` of images with 3 channels, padded to 32."""
    k = tl.arange(0, 32)
    row = (m // SIDE % SIDE)[:, None] + (k // 9 - 1)[None, :]
    column = (m % SIDE)[:, None] + (k // 3 % 3 - 1)[None, :]
    inside = (m < n_pixels)[:, None] & (k < 27)[None, :]
    inside = inside & (row >= 0) & (row < SIDE) & (column >= 0) & (column < SIDE)
    at = (((m // (SIDE * SIDE))[:, None] * SIDE + row) * SIDE + column) * 3 + (k % 3)[None, :]
    return tl.load(x + at, mask=inside, other=0.0)


@triton.jit
def _store_and_sum(acc, y, sums, m, n_pixels, CHANNELS: tl.constexpr, TRAIN: tl.constexpr):
    c = tl.arange(0, CHANNELS)
    value = acc.to(y.dtype.element_ty)
    tl.store(y + m[:, None] * CHANNELS + c[None, :], value, mask=(m < n_pixels)[:, None])
    if TRAIN:
        value = value.to(tl.float32)  # rows beyond the last pixel are zero
        _add_sums(sums, tl.sum(value, 0), tl.sum(value * value, 0), c, CHANNELS)


# -- forward --------------------------------------------------------------------------------------


@triton.jit
def stem_forward(
    x, first_row, step, w, y, sums, images, SIDE: tl.constexpr, COUT: tl.constexpr,
    TRAIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n_pixels = images * SIDE * SIDE
    x += tl.load(first_row) * (SIDE * SIDE * 3)
    k = tl.arange(0, 32)
    co = tl.arange(0, COUT)
    weight = tl.load(w + co[None, :] * 27 + k[:, None], mask=(k < 27)[:, None], other=0.0)
    acc = tl.dot(_stem_tile(x, m, n_pixels, SIDE), weight)
    _store_and_sum(acc, y, sums, m, n_pixels, COUT, TRAIN)
    if TRAIN:
        if tl.program_id(0) == 0:
            tl.store(step, tl.load(step) + 1.0)


@triton.jit
def conv_forward(
    x, w, y, sums, in_sums, in_gamma, in_beta, in_mean, in_var, w_project, project, images,
    SIDE: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr, STRIDE: tl.constexpr,
    NORM: tl.constexpr, PROJECT: tl.constexpr, TRAIN: tl.constexpr,
    BLOCK: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    OUT: tl.constexpr = SIDE // STRIDE
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n_pixels = images * OUT * OUT
    k = tl.arange(0, WINDOW * CIN)
    co = tl.arange(0, COUT)
    scale, shift = k, k
    if NORM:
        count = images * SIDE * SIDE * 1.0
        scale, shift = _affine(in_sums, in_gamma, in_beta, in_mean, in_var, k % CIN, count, CIN, TRAIN)
    acc = tl.zeros([BLOCK, COUT], tl.float32)
    for ky in tl.static_range(3):
        for kc in tl.static_range(0, 3, WINDOW):
            tile = _window(x, scale, shift, m, n_pixels, ky, kc, SIDE, CIN, STRIDE, WINDOW, NORM)
            at = co[None, :] * (9 * CIN) + (ky * 3 + kc) * CIN + k[:, None]
            weight = tl.load(w + at, mask=(kc + k // CIN < 3)[:, None], other=0.0)
            acc = tl.dot(tile, weight, acc)
    _store_and_sum(acc, y, sums, m, n_pixels, COUT, TRAIN)
    if PROJECT:  # the shortcut reads what the middle of the kernel reads
        ci = tl.arange(0, CIN)
        tile = _window(x, ci, ci, m, n_pixels, 1, 1, SIDE, CIN, STRIDE, 1, False)
        flat = tl.dot(tile, tl.load(w_project + co[None, :] * CIN + ci[:, None]))
        at = m[:, None] * COUT + co[None, :]
        tl.store(project + at, flat.to(y.dtype.element_ty), mask=(m < n_pixels)[:, None])
    if NORM and TRAIN:
        if tl.program_id(0) == 0:
            _update_running(in_sums, in_mean, in_var, count, CIN)


@triton.jit
def add_shortcut(
    y, shortcut, out, sums, gamma, beta, run_mean, run_var, n_pixels, CHANNELS: tl.constexpr,
    SHORTCUT: tl.constexpr, TRAIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``relu(norm(y) + shortcut)``."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.arange(0, CHANNELS)
    count = n_pixels * 1.0
    at = m[:, None] * CHANNELS + c[None, :]
    live = (m < n_pixels)[:, None]
    value = tl.load(y + at, mask=live, other=0.0).to(tl.float32)
    scale, shift = _affine(sums, gamma, beta, run_mean, run_var, c, count, CHANNELS, TRAIN)
    value = value * scale[None, :] + shift[None, :]
    if SHORTCUT:
        value += tl.load(shortcut + at, mask=live, other=0.0).to(tl.float32)
    tl.store(out + at, tl.maximum(value, 0.0).to(out.dtype.element_ty), mask=live)
    if TRAIN:
        if tl.program_id(0) == 0:
            _update_running(sums, run_mean, run_var, count, CHANNELS)


# -- head: forward and backward -------------------------------------------------------------------


@triton.jit
def head(
    y, shortcut, dz, sums, back_sums, gamma, beta, run_mean, run_var, w, b, dw, db, labels, first_row,
    report, images, PIXELS: tl.constexpr, CHANNELS: tl.constexpr, CLASSES: tl.constexpr,
    PADDED: tl.constexpr, TRAIN: tl.constexpr,
):  # fmt: skip
    """Last ReLU, mean over an image, last layer and loss, and the way back to ``dz``; or hits."""
    image = tl.program_id(0)
    c = tl.arange(0, CHANNELS)
    at = (image * PIXELS + tl.arange(0, PIXELS))[:, None] * CHANNELS + c[None, :]
    label = tl.load(labels + tl.load(first_row) + image)
    raw = tl.load(y + at).to(tl.float32)
    count = images * PIXELS * 1.0
    scale, shift = _affine(sums, gamma, beta, run_mean, run_var, c, count, CHANNELS, TRAIN)
    out = raw * scale[None, :] + shift[None, :] + tl.load(shortcut + at).to(tl.float32)
    out = tl.maximum(out, 0.0).to(y.dtype.element_ty).to(tl.float32)
    feature = tl.sum(out, 0) / PIXELS
    j = tl.arange(0, PADDED)
    real = j < CLASSES
    at_w = j[:, None] * CHANNELS + c[None, :]
    weight = tl.load(w + at_w, mask=real[:, None], other=0.0)
    logits = tl.sum(weight * feature[None, :], 1) + tl.load(b + j, mask=real, other=float("-inf"))
    if TRAIN:
        top = tl.max(logits, 0)
        power = tl.exp(logits - top)
        total = tl.sum(power, 0)
        own = tl.sum(tl.where(j == label, logits, 0.0), 0)
        n = images * 1.0
        tl.atomic_add(report, (tl.log(total) + top - own) / n, sem="relaxed")
        error = (power / total - tl.where(j == label, 1.0, 0.0)) / n
        tl.atomic_add(db + j, error, mask=real, sem="relaxed")
        tl.atomic_add(dw + at_w, error[:, None] * feature[None, :], mask=real[:, None], sem="relaxed")
        slope = tl.sum(weight * error[:, None], 0) / PIXELS
        back = tl.where(out > 0.0, slope[None, :], 0.0).to(dz.dtype.element_ty)
        tl.store(dz + at, back)
        mean, _ = _moments(sums, c, count, CHANNELS)
        back = back.to(tl.float32)
        _add_sums(back_sums, tl.sum(back, 0), tl.sum(back * (raw - mean[None, :]), 0), c, CHANNELS)
        if image == 0:
            _update_running(sums, run_mean, run_var, count, CHANNELS)
    else:
        hit = tl.argmax(logits, 0) == label
        tl.atomic_add(report + 1, hit.to(tl.float32), sem="relaxed")


# -- backward -------------------------------------------------------------------------------------


@triton.jit
def _finish_gradient(
    acc, m, live, add, active, y, dz, sums, back_sums, gamma, beta, count, CHANNELS: tl.constexpr,
    ADD: tl.constexpr, ACTIVE: tl.constexpr,
):  # fmt: skip
    """From the gradient of an activation to that before its ReLU, with the sums for batch norm."""
    c = tl.arange(0, CHANNELS)
    at = m[:, None] * CHANNELS + c[None, :]
    live = live[:, None]
    raw = tl.load(y + at, mask=live, other=0.0).to(tl.float32)
    mean, var = _moments(sums, c, count, CHANNELS)
    if ADD:
        acc += tl.load(add + at, mask=live, other=0.0).to(tl.float32)
    if ACTIVE:  # the activation was stored
        positive = tl.load(active + at, mask=live, other=0.0).to(tl.float32) > 0.0
    else:
        scale = tl.load(gamma + c) * tl.rsqrt(var + _EPS)
        shift = tl.load(beta + c) - mean * scale
        positive = raw * scale[None, :] + shift[None, :] > 0.0
    value = tl.where(positive & live, acc, 0.0).to(dz.dtype.element_ty)
    tl.store(dz + at, value, mask=live)
    value = value.to(tl.float32)
    _add_sums(back_sums, tl.sum(value, 0), tl.sum(value * (raw - mean[None, :]), 0), c, CHANNELS)


@triton.jit
def conv_backward(
    dy, w, dz, add, active, y, sums, back_sums, gamma, beta, images,
    SIDE: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr, ADD: tl.constexpr,
    ACTIVE: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """From the gradient of the output of a convolution to ``dz`` of the layer before it."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n_pixels = images * SIDE * SIDE
    k = tl.arange(0, WINDOW * COUT)
    ci = tl.arange(0, CIN)
    acc = tl.zeros([BLOCK, CIN], tl.float32)
    for ky in tl.static_range(3):
        for kc in tl.static_range(0, 3, WINDOW):
            tile = _window(dy, k, k, m, n_pixels, ky, kc, SIDE, COUT, 1, WINDOW, False)
            kx = kc + k // COUT
            at = (k % COUT * 9 + (2 - ky) * 3 + 2 - kx)[:, None] * CIN + ci[None, :]
            weight = tl.load(w + at, mask=(kx < 3)[:, None], other=0.0)
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
    """Like :func:`conv_backward` for stride 2, with the projection of the shortcut.

    The pixels of a program have one parity of row and column, and thus the same taps.
    """
    HALF: tl.constexpr = SIDE // 2
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # pixels of dy
    odd_row = tl.program_id(1) // 2
    odd_column = tl.program_id(1) % 2
    live = m < images * HALF * HALF
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
                    inside = live & (row + down < HALF) & (column + right < HALF)
                    at = (m + down * HALF + right)[:, None] * COUT + co[None, :]
                    tile = tl.load(dy + at, mask=inside[:, None], other=0.0)
                    at = (co * 9 + ky * 3 + kx)[:, None] * CIN + ci[None, :]
                    acc = tl.dot(tile, tl.load(w + at), acc)
    if tl.program_id(1) == 0:
        tile = tl.load(back + m[:, None] * COUT + co[None, :], mask=live[:, None], other=0.0)
        acc = tl.dot(tile, tl.load(w_project + co[:, None] * CIN + ci[None, :]), acc)
    at = (m // HALF * 2 + odd_row) * SIDE + column * 2 + odd_column  # m // HALF counts rows of all images
    count = images * SIDE * SIDE * 1.0
    _finish_gradient(
        acc, at, live, dz, active, y, dz, sums, back_sums, gamma, beta, count, CIN, False, True
    )


@triton.jit
def _norm_terms(sums, back_sums, gamma, dgamma, dbeta, first, count, CHANNELS: tl.constexpr):
    """Coefficients of ``dy = scale * (dz - lift - (y - mean) * tilt)``, and the norm's gradients."""
    c = tl.arange(0, CHANNELS)
    mean, var = _moments(sums, c, count, CHANNELS)
    inverse = tl.rsqrt(var + _EPS)
    total, weighted = _totals(back_sums, c, CHANNELS)
    tl.store(dbeta + c, total, mask=(c >= 0) & first)
    tl.store(dgamma + c, weighted * inverse, mask=(c >= 0) & first)
    return mean, tl.load(gamma + c) * inverse, total / count, weighted * inverse * inverse / count


@triton.jit
def _norm_tile(dz, y, m, n_pixels, mean, scale, lift, tilt, CHANNELS: tl.constexpr):
    """Gradient of the input of a batch norm."""
    at = m[:, None] * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    live = (m < n_pixels)[:, None]
    back = tl.load(dz + at, mask=live, other=0.0).to(tl.float32)
    raw = tl.load(y + at, mask=live, other=0.0).to(tl.float32)
    value = scale[None, :] * (back - lift[None, :] - (raw - mean[None, :]) * tilt[None, :])
    return tl.where(live, value, 0.0).to(dz.dtype.element_ty)


@triton.jit
def weight_gradient(
    x, dz, y, dy, dw, sums, back_sums, gamma, dgamma, dbeta, in_sums, in_gamma, in_beta, images,
    SIDE: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr, STRIDE: tl.constexpr,
    NORM: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Gradients of a convolution's weights and of its batch norm; stores ``dy`` on the way.

    The first axis of the grid goes over the taps of the kernel unless a program does all
    (``ROWS`` is 3), the second over shares of the pixels.
    """
    OUT: tl.constexpr = SIDE // STRIDE
    group = tl.program_id(0)
    ky = 0 if ROWS == 3 else (group if WINDOW == 4 else group // 3)
    kc = 0 if WINDOW == 4 else group % 3
    n_pixels = images * OUT * OUT
    first = (group == 0) & (tl.program_id(1) == 0)
    count = n_pixels * 1.0
    mean, slope, lift, tilt = _norm_terms(sums, back_sums, gamma, dgamma, dbeta, first, count, COUT)
    k = tl.arange(0, WINDOW * CIN)
    co = tl.arange(0, COUT)
    scale, shift = k, k
    if NORM:
        in_count = images * SIDE * SIDE * 1.0
        scale, shift = _affine(in_sums, in_gamma, in_beta, in_sums, in_sums, k % CIN, in_count, CIN, True)
    acc0 = tl.zeros([WINDOW * CIN, COUT], tl.float32)
    acc1 = acc0
    acc2 = acc0
    for tile in range(tl.program_id(1), tl.cdiv(n_pixels, BLOCK), tl.num_programs(1)):
        m = tile * BLOCK + tl.arange(0, BLOCK)
        back = _norm_tile(dz, y, m, n_pixels, mean, slope, lift, tilt, COUT)
        mine = (m < n_pixels) & (group == 0)
        tl.store(dy + m[:, None] * COUT + co[None, :], back, mask=mine[:, None])
        seen = _window(x, scale, shift, m, n_pixels, ky, kc, SIDE, CIN, STRIDE, WINDOW, NORM)
        acc0 = tl.dot(tl.trans(seen), back, acc0)
        if ROWS == 3:
            seen = _window(x, scale, shift, m, n_pixels, 1, kc, SIDE, CIN, STRIDE, WINDOW, NORM)
            acc1 = tl.dot(tl.trans(seen), back, acc1)
            seen = _window(x, scale, shift, m, n_pixels, 2, kc, SIDE, CIN, STRIDE, WINDOW, NORM)
            acc2 = tl.dot(tl.trans(seen), back, acc2)
    at = dw + co[None, :] * (9 * CIN) + (ky * 3 + kc) * CIN + k[:, None]
    inside = (kc + k // CIN < 3)[:, None]
    tl.atomic_add(at, acc0, mask=inside, sem="relaxed")
    if ROWS == 3:
        tl.atomic_add(at + 3 * CIN, acc1, mask=inside, sem="relaxed")
        tl.atomic_add(at + 6 * CIN, acc2, mask=inside, sem="relaxed")


@triton.jit
def projection_gradient(
    x, back, dw, images, SIDE: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradient of the weights of a 1 by 1 convolution with stride 2."""
    n_pixels = images * (SIDE // 2) * (SIDE // 2)
    ci = tl.arange(0, CIN)
    co = tl.arange(0, COUT)
    acc = tl.zeros([CIN, COUT], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(n_pixels, BLOCK), tl.num_programs(0)):
        m = tile * BLOCK + tl.arange(0, BLOCK)
        at = m[:, None] * COUT + co[None, :]
        given = tl.load(back + at, mask=(m < n_pixels)[:, None], other=0.0)
        seen = _window(x, ci, ci, m, n_pixels, 1, 1, SIDE, CIN, 2, 1, False)
        acc = tl.dot(tl.trans(seen), given, acc)
    tl.atomic_add(dw + co[None, :] * CIN + ci[:, None], acc, sem="relaxed")


@triton.jit
def stem_gradient(
    x, first_row, dz, y, dw, sums, back_sums, gamma, dgamma, dbeta, images, SIDE: tl.constexpr,
    COUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of the first convolution's weights and of its batch norm."""
    x += tl.load(first_row) * (SIDE * SIDE * 3)
    n_pixels = images * SIDE * SIDE
    count = n_pixels * 1.0
    first = tl.program_id(0) == 0
    mean, slope, lift, tilt = _norm_terms(sums, back_sums, gamma, dgamma, dbeta, first, count, COUT)
    acc = tl.zeros([32, COUT], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(n_pixels, BLOCK), tl.num_programs(0)):
        m = tile * BLOCK + tl.arange(0, BLOCK)
        back = _norm_tile(dz, y, m, n_pixels, mean, slope, lift, tilt, COUT)
        acc = tl.dot(tl.trans(_stem_tile(x, m, n_pixels, SIDE)), back, acc)
    k = tl.arange(0, 32)
    at = dw + tl.arange(0, COUT)[None, :] * 27 + k[:, None]
    tl.atomic_add(at, acc, mask=(k < 27)[:, None], sem="relaxed")


# -- optimiser ------------------------------------------------------------------------------------


@triton.jit
def adam(
    flat, low, gradient, exp_avg, exp_avg_sq, rate, step, next_row, rows, size, n_sums,
    weight_decay, LOG_BETA1: tl.constexpr, LOG_BETA2: tl.constexpr, BETA1: tl.constexpr,
    BETA2: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Adam with coupled weight decay; zeroes gradient and sums and moves on to the next rows.

    ``gradient`` holds ``size`` gradients and then ``n_sums`` sums of other kernels.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < size
    t = tl.load(step).to(tl.float64)
    correction1 = (1.0 - tl.exp(t * LOG_BETA1)).to(tl.float32)
    correction2 = (1.0 - tl.exp(t * LOG_BETA2)).to(tl.float32)
    weight = tl.load(flat + i, mask=live, other=0.0)
    slope = tl.load(gradient + i, mask=live, other=0.0) + weight_decay * weight
    mean = tl.load(exp_avg + i, mask=live, other=0.0)
    mean += (1.0 - BETA1) * (slope - mean)
    square = tl.load(exp_avg_sq + i, mask=live, other=0.0)
    square = BETA2 * square + (1.0 - BETA2) * slope * slope
    weight -= tl.load(rate) / correction1 * mean / (tl.sqrt(square) / tl.sqrt(correction2) + EPS)
    tl.store(exp_avg + i, mean, mask=live)
    tl.store(exp_avg_sq + i, square, mask=live)
    tl.store(flat + i, weight, mask=live)
    tl.store(low + i, weight.to(low.dtype.element_ty), mask=live)
    tl.store(gradient + i, tl.zeros([BLOCK], tl.float32), mask=i < size + n_sums)
    if tl.program_id(0) == 0:
        tl.store(next_row, tl.load(next_row) + rows)
