"""Accuracy, proper scores and calibration errors: one number, or one per class.

Every score takes ``(probs, labels)`` with probabilities of shape (n, K), or
``(confidence, labels, predicted=...)`` with the confidences (n,) of the predicted classes. Labels are
integers, or class names if `class_names` or the columns of a data frame provide them. Per-class scores
group the rows by predicted class. The score of a class that is never predicted is nan, and a maximum or
mean over classes ignores it. Compare calibration errors with their
:func:`~hetcal.metrics.noise_floor`: with few rows per class, chance alone makes them large.

**Noisy labels.** If some labels are wrong, even a perfect model agrees with fewer labels than its confidence
says. Pass `transition`, a matrix T of shape (K, K) whose entry [i, j] is the probability that a label of
class i is recorded as j. Alternatively, pass noise rates ρ, as one number or (K,) numbers: ρ_k is the
probability that a label of class k is replaced with one drawn uniformly from all K classes. The accuracy and
the calibration errors then refer to the true classes.

For a row with probabilities p, observed label y and predicted class g, let ``A = T[g, g]`` and
``b = Σ_{j≠g} p_j T[j, g] / (1 − p_g)``. The correctness of the row becomes ``(1[y = g] − b)/(A − b)``, whose
expectation is ``p_g`` if the model is calibrated. If ``p_g`` is 1, b is the mean of ``T[j, g]`` over the
other classes. The corrected accuracy of a few rows can lie outside [0, 1]. If ``T[j, g]`` is not the same for
all classes j other than g, b depends on the probabilities of these classes, which must then be calibrated
too.

NLL and Brier score are those of the observed label, whose probabilities are ``p T``. They are proper: the
true probabilities have the lowest expected score. NLLs with and without `transition` are not comparable, nor
are Brier scores.

**Soft labels.** Labels of shape (n, K) are probabilities of the true class, or counts of votes, which are
divided by their sum. The correctness of a row is then the probability ``q_g`` that its soft label gives to
the predicted class g. NLL and Brier score are expectations over a label drawn from the soft label. One-hot
soft labels give the same results as hard labels.

Both `transition` and soft labels need the probabilities of all classes, and they cannot be combined.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import fft, optimize, special

from hetcal._numeric.probabilities import probability_floor
from hetcal._typing import Float, FloatArray, IntArray
from hetcal._validate import GIVE_PREDICTED, check_observed_labels, check_probs
from hetcal.metrics.agreement import observed_probs
from hetcal.metrics.binning import (
    Binning,
    Cells,
    Norm,
    TopLabel,
    calibration_error,
    check_binning,
    class_cells,
    pooled_cells,
    reduce_to_top_label,
)

__all__ = [
    "accuracy",
    "add_residuals",
    "as_binary",
    "avg_ece",
    "brier",
    "class_ece",
    "debiased_ece",
    "debiased_error",
    "ece",
    "max_ece",
    "mean_brier",
    "mean_nll",
    "nll",
    "residual_grid",
    "signed_gap",
    "smooth_ece",
    "smooth_error",
    "smooth_error_of_grid",
    "split_residuals",
    "sum_brier",
]

_GRID_SIZE = 1 << 13  # number of cells in [0, 1]; each is much narrower than usual bandwidths of smooth_ece


def accuracy(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    transition: ArrayLike | None = None,
) -> float:
    """Fraction of rows whose predicted class is the label.

    With `transition`, the result is an estimate of the accuracy with respect to the true classes. For soft
    labels, it is the mean probability that they give to the predicted class.

    Examples
    --------
    >>> accuracy([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]], [0, 1, 1, 1])
    0.75
    """
    return float(reduce_to_top_label(probs, labels, predicted, class_names, transition).correct.mean())


def nll(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    transition: ArrayLike | None = None,
) -> float:
    """Mean negative log-likelihood, in nats.

    The result is ``−(1/n) Σ_i log p_i[y_i]``. A label with probability 0 would make it infinite. Such a zero
    is replaced with half of the smallest positive probability, but at most ``1/(2K)`` and at least 1.2e-38,
    the smallest normal float32. This is also the default floor of :func:`hetcal.to_logits`.

    If `predicted` is passed, the confidence is scored as the probability that the prediction is correct:
    ``−(1/n) Σ_i log(p̂_i if correct else 1 − p̂_i)``. The probabilities are then p̂ and 1 − p̂, and K is 2.
    For soft labels q, the score of a row is ``−Σ_k q_k log p_k``. With `transition`, it is that of the
    observed label y, ``−log (p T)_y``.

    Examples
    --------
    >>> round(nll([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 4)
    0.4904
    >>> round(nll([[0.5, 0.5], [0.0, 1.0]], [0, 0]), 4)  # 0.25 replaces the zero: log 0.5 and log 0.25
    1.0397
    >>> round(nll([0.5, 0.75], [0, 0], predicted=[0, 1]), 4)  # the second row is wrong: log 0.25
    1.0397
    """
    if predicted is not None:
        return mean_nll(*as_binary(reduce_to_top_label(probs, labels, predicted, class_names, transition)))
    return mean_nll(*_observed(probs, labels, class_names, transition))


def brier(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    transition: ArrayLike | None = None,
) -> float:
    """Mean squared distance between the probabilities and the one-hot label, between 0 and 2.

    The result is ``(1/n) Σ_i Σ_k (p_i[k] − 1[y_i = k])²``. If `predicted` is passed, the confidence is scored
    as the probability that the prediction is correct. The result ``(1/n) Σ_i (p̂_i − 1[correct])²`` then lies
    between 0 and 1. For soft labels q, the score of a row is the expectation over a label drawn from q,
    ``Σ_k [(p_k − q_k)² + q_k (1 − q_k)]``. With `transition`, it is the score of the observed label, whose
    probabilities are ``p T``.

    Examples
    --------
    >>> brier([[0.5, 0.5], [0.25, 0.75]], [0, 1])
    0.3125
    >>> brier([0.5, 0.75], [0, 1], predicted=[0, 1])
    0.15625
    """
    if predicted is not None:
        return (
            mean_brier(*as_binary(reduce_to_top_label(probs, labels, predicted, class_names, transition))) / 2
        )
    return mean_brier(*_observed(probs, labels, class_names, transition))


def ece(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    transition: ArrayLike | None = None,
    n_bins: int = 15,
    binning: Binning = "width",
    norm: Norm = "l1",
) -> float:
    """Expected calibration error (ECE) of the top label, over all rows.

    With ``gap_b = mean confidence_b − accuracy_b`` in bin ``b``, it is ``Σ_b (n_b/n)·abs(gap_b)``, or
    ``√(Σ_b (n_b/n)·gap_b²)`` for ``norm="l2"``. The M = `n_bins` bins are the intervals ``(i/M, (i+1)/M]``.
    With ``binning="mass"``, they contain about equal numbers of rows instead. Over-confident and
    under-confident classes can cancel out; :func:`max_ece` and :func:`avg_ece` reveal such classes.

    Examples
    --------
    >>> round(ece([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]], [0, 1, 1], n_bins=10), 3)
    0.333
    """
    check_binning(n_bins, binning, norm)
    table = pooled_cells(
        reduce_to_top_label(probs, labels, predicted, class_names, transition), n_bins, binning
    )
    return float(calibration_error(table.count, table.residual, norm)[0])


def class_ece(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    transition: ArrayLike | None = None,
    n_bins: int = 15,
    binning: Binning = "width",
    norm: Norm = "l1",
) -> Float:
    """ECE of the rows predicted as each class, (K,); nan for a class that is never predicted.

    Examples
    --------
    >>> class_ece([[0.9, 0.1, 0], [0.9, 0.1, 0], [0.2, 0.8, 0]], [0, 1, 1], n_bins=10).round(3)
    array([0.4, 0.2, nan])
    """
    check_binning(n_bins, binning, norm)
    table = class_cells(
        reduce_to_top_label(probs, labels, predicted, class_names, transition), n_bins, binning
    )
    return calibration_error(table.count, table.residual, norm)


def max_ece(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    transition: ArrayLike | None = None,
    n_bins: int = 15,
    binning: Binning = "width",
    norm: Norm = "l1",
) -> float:
    """Largest ECE of a predicted class: the maximum of :func:`class_ece`.

    With 100 classes of 100 rows each, a perfectly calibrated model can score 0.18. Compare the value with
    its :func:`~hetcal.metrics.noise_floor`.

    Examples
    --------
    >>> round(max_ece([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]], [0, 1, 1], n_bins=10), 3)
    0.4
    """
    errors = class_ece(
        probs, labels, predicted=predicted, class_names=class_names, transition=transition,
        n_bins=n_bins, binning=binning, norm=norm,
    )  # fmt: skip
    return float(np.nanmax(errors))


def avg_ece(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    transition: ArrayLike | None = None,
    n_bins: int = 15,
    binning: Binning = "width",
    norm: Norm = "l1",
) -> float:
    """Unweighted mean of the ECEs of the predicted classes: the mean of :func:`class_ece`.

    Examples
    --------
    >>> round(avg_ece([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]], [0, 1, 1], n_bins=10), 3)
    0.3
    """
    errors = class_ece(
        probs, labels, predicted=predicted, class_names=class_names, transition=transition,
        n_bins=n_bins, binning=binning, norm=norm,
    )  # fmt: skip
    return float(np.nanmean(errors))


def signed_gap(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    transition: ArrayLike | None = None,
) -> Float:
    """Mean confidence minus accuracy of the rows predicted as each class, (K,).

    Positive for an over-confident class; nan for a class that is never predicted.

    Examples
    --------
    >>> signed_gap([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]], [0, 1, 1]).round(3)
    array([ 0.4, -0.2])
    """
    top = reduce_to_top_label(probs, labels, predicted, class_names, transition)
    table = class_cells(top, n_bins=1, binning="width")
    return np.asarray(table.residual[:, 0] / np.where(table.count[:, 0] > 0, table.count[:, 0], np.nan))


def debiased_ece(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    transition: ArrayLike | None = None,
    n_bins: int = 15,
    binning: Binning = "width",
    norm: Norm = "l1",
) -> float:
    """ECE with a correction for its upward bias, at least 0.

    ``norm="l2"`` is the closed form of Kumar, Liang and Ma (2019),
    ``√max(0, Σ_b (n_b/n)·(gap_b² − a_b(1−a_b)/(n_b−1)))``, where ``a_b`` is the accuracy of the bin. A bin
    with a single row is not informative and contributes 0.

    ``norm="l1"`` subtracts an estimate of the bias from every bin: ``E abs(X_b) − abs(gap_b)`` for a normal
    variable ``X_b`` with mean ``gap_b`` and variance ``a_b(1−a_b)/n_b``. The resampling estimate of Kumar,
    Liang and Ma converges to this estimate as the number of resamples grows. The correction removes about
    half of the bias.

    For noisy and soft labels, the variance of the correctness in the bin takes the place of ``a_b(1−a_b)``.

    Examples
    --------
    >>> confidence, labels = [0.7] * 10, [0] * 6 + [1] * 4
    >>> round(ece(confidence, labels, predicted=[0] * 10), 3)
    0.1
    >>> debiased_ece(confidence, labels, predicted=[0] * 10, norm="l2")
    0.0
    """
    check_binning(n_bins, binning, norm)
    top = reduce_to_top_label(probs, labels, predicted, class_names, transition)
    return debiased_error(pooled_cells(top, n_bins, binning), norm)


def smooth_ece(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    transition: ArrayLike | None = None,
) -> float:
    """Calibration error without bins: smooth ECE of Błasiok and Nakkiran (2023).

    Let ``r(t) = (1/n) Σ_i K_σ(t, p̂_i)(p̂_i − correct_i)``, where ``K_σ`` is a Gaussian kernel with the
    bandwidth σ, reflected at 0 and 1. Let ``smECE_σ = ∫ abs(r(t)) dt`` over [0, 1]. The result is the unique
    bandwidth σ with ``smECE_σ = σ``.

    Examples
    --------
    >>> round(smooth_ece([0.7] * 10, [0] * 6 + [1] * 4, predicted=[0] * 10), 3)
    0.1
    """
    return smooth_error(reduce_to_top_label(probs, labels, predicted, class_names, transition))


def mean_nll(p: FloatArray, y: NDArray[Any]) -> float:
    """:func:`nll` of validated arrays; the labels are hard (n,) or soft (n, K)."""
    if y.ndim == 2:
        p_positive = np.where(p > 0, p, probability_floor(p)).astype(np.float64)
        return float(-(y * np.log(p_positive)).sum(axis=1).mean())
    p_label = p[np.arange(len(p)), y].astype(np.float64)
    if (p_label == 0).any():
        p_label[p_label == 0] = probability_floor(p)
    return float(-np.log(p_label).mean())


def mean_brier(p: FloatArray, y: NDArray[Any]) -> float:
    """:func:`brier` of validated arrays; the labels are hard (n,) or soft (n, K)."""
    if y.ndim == 2:
        return float(((p.astype(np.float64) - y) ** 2 + y * (1 - y)).sum() / len(p))
    return sum_brier(p.reshape(-1), np.arange(len(p)) * p.shape[1] + y) / len(p)


def sum_brier(flat: FloatArray, label_entries: IntArray) -> float:
    """Sum of the Brier scores of all rows.

    The square p² of each label's probability is replaced with (1 − p)² before the squares are summed.
    Correcting the sum afterwards would lose all digits for nearly perfect predictions.

    Parameters
    ----------
    flat : (n·K,) probabilities, row after row
    label_entries : (n,) position of each label's probability in `flat`
    """
    squares = np.square(flat, dtype=np.float64)
    squares[label_entries] = (1 - flat.take(label_entries).astype(np.float64)) ** 2
    return float(squares.sum())


def as_binary(top: TopLabel) -> tuple[FloatArray, IntArray]:
    """Probabilities (n, 2) of a wrong and a correct prediction, and outcomes (n,): 1 if correct, else 0."""
    return np.stack([1 - top.confidence, top.confidence], axis=1), top.correct.astype(np.int64)


def debiased_error(table: Cells, norm: Norm) -> float:
    """:func:`debiased_ece` from the sums over all rows in every bin, as computed by :func:`pooled_cells`."""
    used = table.count[0] > 0
    count = table.count[0][used]
    gap, bin_accuracy = table.residual[0][used] / count, table.correct[0][used] / count
    variance = bin_accuracy * (1 - bin_accuracy)
    if table.correct_square is not None:
        variance = np.maximum(variance + (table.correct_square[0] - table.correct[0])[used] / count, 0)
    return _debiased_l1(count, gap, variance) if norm == "l1" else _debiased_l2(count, gap, variance)


def smooth_error(top: TopLabel) -> float:
    """:func:`smooth_ece` of a :class:`~hetcal.metrics.binning.TopLabel`."""
    grid = residual_grid()
    add_residuals(grid, *split_residuals(top.confidence.astype(np.float64), top.correct))
    return smooth_error_of_grid(grid, len(top.confidence))


def residual_grid() -> Float:
    """Grid of zeros over [0, 1] for sums of residuals, with one extra cell beyond each end.

    Grids of disjoint sets of rows can be added, so smooth ECE can be computed in one pass over batches.
    """
    return np.zeros(_GRID_SIZE + 2)


def split_residuals(confidence: Float, correct: NDArray[Any]) -> tuple[IntArray, Float, Float]:
    """Split the residual ``confidence - correct`` of every row linearly between the two nearest grid cells.

    Returns
    -------
    cell : (n,) index of the lower of the two cells
    low, high : (n,) parts of the residual for that cell and for the next
    """
    position = confidence * _GRID_SIZE + 0.5
    cell = position.astype(np.int64)
    residual = confidence - correct
    position -= cell
    position *= residual
    return cell, np.subtract(residual, position, out=residual), position


def add_residuals(grid: Float, cell: IntArray, low: Float, high: Float) -> None:
    """Add the result of :func:`split_residuals` to a grid in place."""
    np.add.at(grid, cell, low)
    np.add.at(grid[1:], cell, high)


def smooth_error_of_grid(grid: Float, n_rows: int) -> float:
    """:func:`smooth_ece` from a :func:`residual_grid` to which all rows have been added."""
    inside = grid[1:-1] / n_rows
    inside[[0, -1]] += grid[[0, -1]] / n_rows
    # Smoothing with a Gaussian that is reflected at 0 and 1 multiplies every coefficient of the cosine
    # transform by a factor.
    spectrum = fft.dct(inside, norm="ortho")
    decay = -0.5 * (np.pi * np.arange(_GRID_SIZE)) ** 2

    def excess(sigma: float) -> float:
        return float(np.abs(fft.idct(spectrum * np.exp(decay * sigma**2), norm="ortho")).sum() - sigma)

    if excess(0.0) <= 0:  # in every cell, the residuals are 0 or cancel out
        return 0.0
    if excess(1.0) >= 0:  # for example, because all residuals are 1
        return 1.0
    return float(optimize.brentq(excess, 0.0, 1.0, xtol=1e-13))


def _observed(
    probs: ArrayLike, labels: ArrayLike, class_names: ArrayLike | None, transition: ArrayLike | None
) -> tuple[FloatArray, NDArray[Any]]:
    """Probabilities (n, K) of the observed labels, and the labels, hard (n,) or soft (n, K)."""
    p = check_probs(probs, shape_remedy=GIVE_PREDICTED)
    options: dict[str, Any] = {"n_rows": len(p), "n_classes": p.shape[1], "class_names": class_names}
    y, t = check_observed_labels(labels, transition, **options, table=probs)
    return observed_probs(p, t), y


def _debiased_l1(count: Float, gap: Float, variance: Float) -> float:
    s = np.sqrt(variance / count)
    ratio = np.divide(gap, s, out=np.full_like(gap, np.inf), where=s > 0)
    abs_gap = np.abs(gap)
    folded = s * np.sqrt(2 / np.pi) * np.exp(-0.5 * ratio**2)
    folded += abs_gap * special.erf(np.abs(ratio) / np.sqrt(2))
    return max(0.0, float(np.average(2 * abs_gap - folded, weights=count)))


def _debiased_l2(count: Float, gap: Float, variance: Float) -> float:
    square = np.where(count > 1, gap**2 - variance / np.maximum(count - 1, 1), 0.0)
    return float(np.sqrt(max(0.0, float(np.average(square, weights=count)))))
