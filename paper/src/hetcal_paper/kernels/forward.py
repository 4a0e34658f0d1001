"""Triton kernels for the forward pass, the last layer including its gradient, and the optimiser.

:mod:`hetcal_paper.kernels.tiles` describes the memory layout. If ``TRAIN`` is false, batch norms use the
running statistics, and no sums for batch norm are computed.
"""
# Triton infers the types of the arguments when it compiles a kernel, so they have no annotations to check.
# mypy: ignore-errors

import triton
import triton.language as tl

from hetcal_paper.kernels.tiles import add_sums, affine, moments, stem_tile, update_running, window

__all__ = ["adam", "add_shortcut", "conv_forward", "head", "stem_forward"]


@triton.jit
def _store_and_sum(acc, y, sums, m, n_pixels, CHANNELS: tl.constexpr, TRAIN: tl.constexpr):
    """Store ``acc`` as the pixels ``m`` of ``y``.

    With ``TRAIN``, the stored values and their squares are added to ``sums``.
    """
    c = tl.arange(0, CHANNELS)
    value = acc.to(y.dtype.element_ty)
    tl.store(y + m[:, None] * CHANNELS + c[None, :], value, mask=(m < n_pixels)[:, None])
    if TRAIN:
        value = value.to(tl.float32)  # entries beyond the last pixel are zero, so they add nothing
        add_sums(sums, tl.sum(value, 0), tl.sum(value * value, 0), c, CHANNELS)


@triton.jit
def stem_forward(
    x, first_row, step, w, y, sums, images, SIDE: tl.constexpr, COUT: tl.constexpr,
    TRAIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Apply the first convolution to the images from ``first_row`` on; with ``TRAIN``, increment ``step``."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n_pixels = images * SIDE * SIDE
    x += tl.load(first_row) * (SIDE * SIDE * 3)
    k = tl.arange(0, 32)
    co = tl.arange(0, COUT)
    weight = tl.load(w + co[None, :] * 27 + k[:, None], mask=(k < 27)[:, None], other=0.0)
    acc = tl.dot(stem_tile(x, m, n_pixels, SIDE), weight)
    _store_and_sum(acc, y, sums, m, n_pixels, COUT, TRAIN)
    if TRAIN:  # noqa: SIM102 - Triton removes a constant branch only if it is separate
        if tl.program_id(0) == 0:
            tl.store(step, tl.load(step) + 1.0)


@triton.jit
def conv_forward(
    x, w, y, sums, in_sums, in_gamma, in_beta, in_mean, in_var, w_project, project, images,
    SIDE: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr, STRIDE: tl.constexpr,
    NORM: tl.constexpr, PROJECT: tl.constexpr, TRAIN: tl.constexpr,
    BLOCK: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Apply a 3 by 3 convolution and, with ``PROJECT``, the 1 by 1 convolution of the shortcut.

    With ``NORM``, the input is ``relu(norm(x))``, computed while ``x`` is read. With ``NORM`` and ``TRAIN``,
    the first program updates the running statistics of that batch norm.
    """
    OUT: tl.constexpr = SIDE // STRIDE
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n_pixels = images * OUT * OUT
    k = tl.arange(0, WINDOW * CIN)
    co = tl.arange(0, COUT)
    scale, shift = k, k
    if NORM:
        count = images * SIDE * SIDE * 1.0
        scale, shift = affine(in_sums, in_gamma, in_beta, in_mean, in_var, k % CIN, count, CIN, TRAIN)
    acc = tl.zeros([BLOCK, COUT], tl.float32)
    for ky in tl.static_range(3):
        for kc in tl.static_range(0, 3, WINDOW):
            tile = window(x, scale, shift, m, n_pixels, ky, kc, SIDE, CIN, STRIDE, WINDOW, NORM)
            offset = co[None, :] * (9 * CIN) + (ky * 3 + kc) * CIN + k[:, None]
            weight = tl.load(w + offset, mask=(kc + k // CIN < 3)[:, None], other=0.0)
            acc = tl.dot(tile, weight, acc)
    _store_and_sum(acc, y, sums, m, n_pixels, COUT, TRAIN)
    if PROJECT:  # the shortcut reads the same pixels as the centre of the 3 by 3 filter
        ci = tl.arange(0, CIN)
        tile = window(x, ci, ci, m, n_pixels, 1, 1, SIDE, CIN, STRIDE, 1, False)
        flat = tl.dot(tile, tl.load(w_project + co[None, :] * CIN + ci[:, None]))
        offset = m[:, None] * COUT + co[None, :]
        tl.store(project + offset, flat.to(y.dtype.element_ty), mask=(m < n_pixels)[:, None])
    if NORM and TRAIN:  # noqa: SIM102 - Triton removes a constant branch only if it is separate
        if tl.program_id(0) == 0:
            update_running(in_sums, in_mean, in_var, count, CIN)


@triton.jit
def add_shortcut(
    y, shortcut, out, sums, gamma, beta, run_mean, run_var, n_pixels, CHANNELS: tl.constexpr,
    SHORTCUT: tl.constexpr, TRAIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write ``relu(norm(y) + shortcut)`` to ``out``; without ``SHORTCUT``, write ``relu(norm(y))``."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.arange(0, CHANNELS)
    count = n_pixels * 1.0
    offset = m[:, None] * CHANNELS + c[None, :]
    valid = (m < n_pixels)[:, None]
    value = tl.load(y + offset, mask=valid, other=0.0).to(tl.float32)
    scale, shift = affine(sums, gamma, beta, run_mean, run_var, c, count, CHANNELS, TRAIN)
    value = value * scale[None, :] + shift[None, :]
    if SHORTCUT:
        value += tl.load(shortcut + offset, mask=valid, other=0.0).to(tl.float32)
    tl.store(out + offset, tl.maximum(value, 0.0).to(out.dtype.element_ty), mask=valid)
    if TRAIN:  # noqa: SIM102 - Triton removes a constant branch only if it is separate
        if tl.program_id(0) == 0:
            update_running(sums, run_mean, run_var, count, CHANNELS)


@triton.jit
def head(
    y, shortcut, dz, sums, back_sums, gamma, beta, run_mean, run_var, w, b, dw, db, labels, first_row,
    report, images, PIXELS: tl.constexpr, CHANNELS: tl.constexpr, CLASSES: tl.constexpr,
    PADDED: tl.constexpr, TRAIN: tl.constexpr,
):  # fmt: skip
    """Apply the last batch norm, shortcut and ReLU, average pooling, and the linear layer.

    Each program handles one image. With ``TRAIN``, the mean loss is added to ``report[0]``, the gradients of
    the linear layer are computed, and ``dz``, the gradient of the last ReLU's input, is stored. Without
    ``TRAIN``, the number of correctly classified rows is added to ``report[1]``.
    """
    image = tl.program_id(0)
    c = tl.arange(0, CHANNELS)
    offset = (image * PIXELS + tl.arange(0, PIXELS))[:, None] * CHANNELS + c[None, :]
    label = tl.load(labels + tl.load(first_row) + image)
    raw = tl.load(y + offset).to(tl.float32)
    count = images * PIXELS * 1.0
    scale, shift = affine(sums, gamma, beta, run_mean, run_var, c, count, CHANNELS, TRAIN)
    out = raw * scale[None, :] + shift[None, :] + tl.load(shortcut + offset).to(tl.float32)
    out = tl.maximum(out, 0.0).to(y.dtype.element_ty).to(tl.float32)
    feature = tl.sum(out, 0) / PIXELS
    j = tl.arange(0, PADDED)
    is_class = j < CLASSES
    weight_offset = j[:, None] * CHANNELS + c[None, :]
    weight = tl.load(w + weight_offset, mask=is_class[:, None], other=0.0)
    logits = tl.sum(weight * feature[None, :], 1) + tl.load(b + j, mask=is_class, other=float("-inf"))
    if TRAIN:
        largest = tl.max(logits, 0)
        exponentials = tl.exp(logits - largest)
        total = tl.sum(exponentials, 0)
        label_logit = tl.sum(tl.where(j == label, logits, 0.0), 0)
        n = images * 1.0
        tl.atomic_add(report, (tl.log(total) + largest - label_logit) / n, sem="relaxed")
        error = (exponentials / total - tl.where(j == label, 1.0, 0.0)) / n
        tl.atomic_add(db + j, error, mask=is_class, sem="relaxed")
        tl.atomic_add(
            dw + weight_offset, error[:, None] * feature[None, :], mask=is_class[:, None], sem="relaxed"
        )
        slope = tl.sum(weight * error[:, None], 0) / PIXELS
        back = tl.where(out > 0.0, slope[None, :], 0.0).to(dz.dtype.element_ty)
        tl.store(dz + offset, back)
        mean, _ = moments(sums, c, count, CHANNELS)
        back = back.to(tl.float32)
        add_sums(back_sums, tl.sum(back, 0), tl.sum(back * (raw - mean[None, :]), 0), c, CHANNELS)
        if image == 0:
            update_running(sums, run_mean, run_var, count, CHANNELS)
    else:
        correct = tl.argmax(logits, 0) == label
        tl.atomic_add(report + 1, correct.to(tl.float32), sem="relaxed")


@triton.jit
def adam(
    flat, low, gradient, exp_avg, exp_avg_sq, rate, step, next_row, rows, size, n_sums,
    weight_decay, LOG_BETA1: tl.constexpr, LOG_BETA2: tl.constexpr, BETA1: tl.constexpr,
    BETA2: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Apply one step of Adam, which adds ``weight_decay * weight`` to the gradient.

    ``gradient`` contains ``size`` gradients followed by ``n_sums`` sums of the batch norms. All of them are
    set to zero afterwards, and ``next_row`` increases by ``rows``.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = i < size
    t = tl.load(step).to(tl.float64)
    correction1 = (1.0 - tl.exp(t * LOG_BETA1)).to(tl.float32)
    correction2 = (1.0 - tl.exp(t * LOG_BETA2)).to(tl.float32)
    weight = tl.load(flat + i, mask=valid, other=0.0)
    slope = tl.load(gradient + i, mask=valid, other=0.0) + weight_decay * weight
    mean = tl.load(exp_avg + i, mask=valid, other=0.0)
    mean += (1.0 - BETA1) * (slope - mean)
    square = tl.load(exp_avg_sq + i, mask=valid, other=0.0)
    square = BETA2 * square + (1.0 - BETA2) * slope * slope
    weight -= tl.load(rate) / correction1 * mean / (tl.sqrt(square) / tl.sqrt(correction2) + EPS)
    tl.store(exp_avg + i, mean, mask=valid)
    tl.store(exp_avg_sq + i, square, mask=valid)
    tl.store(flat + i, weight, mask=valid)
    tl.store(low + i, weight.to(low.dtype.element_ty), mask=valid)
    tl.store(gradient + i, tl.zeros([BLOCK], tl.float32), mask=i < size + n_sums)
    if tl.program_id(0) == 0:
        tl.store(next_row, tl.load(next_row) + rows)
