"""One number, or one per class, for how good and how well calibrated probabilities are.

Every score takes ``(probs, labels)`` with probabilities of shape (n, K), or
``(confidence, labels, predicted=...)`` with the confidence (n,) of the predicted class. Class means predicted
class; a class that is never predicted scores nan, and does not count in a maximum or mean over classes. Read
each calibration error beside its :func:`~hetcal.metrics.noise_floor`: with few rows a class, chance alone
makes it large.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from hetcal._numeric.probabilities import probability_floor
from hetcal._typing import FloatArray, IntArray
from hetcal._validate import GIVE_PREDICTED, check_labels, check_probs, choose
from hetcal.metrics.reliability import (
    Binning,
    Cells,
    Norm,
    TopLabel,
    calibration_error,
    cells,
    reduce_to_top_label,
)
from hetcal.metrics.smooth import add_residuals, empty_grid, residual_shares, smooth_error_on

__all__ = [
    "accuracy",
    "as_binary",
    "avg_ece",
    "brier",
    "class_cells",
    "class_ece",
    "debiased_ece",
    "debiased_error",
    "ece",
    "max_ece",
    "mean_brier",
    "mean_nll",
    "nll",
    "pooled_cells",
    "signed_gap",
    "smooth_ece",
    "smooth_error",
]


def accuracy(probs: ArrayLike, labels: ArrayLike, *, predicted: ArrayLike | None = None) -> float:
    """Share of rows whose predicted class is the label.

    Examples
    --------
    >>> accuracy([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]], [0, 1, 1, 1])
    0.75
    """
    return float(reduce_to_top_label(probs, labels, predicted).correct.mean())


def nll(probs: ArrayLike, labels: ArrayLike, *, predicted: ArrayLike | None = None) -> float:
    """Mean negative log-likelihood, in nats.

    ``−(1/n) Σ_i log p_i[y_i]``. A label that was given probability 0 would make it infinite; it counts as
    half of the smallest positive probability among `probs`, as in :func:`hetcal.to_logits`. In the top-1 form
    it is the binary score of being right: ``−(1/n) Σ_i log(p̂_i if right else 1 − p̂_i)``.

    Examples
    --------
    >>> round(nll([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 4)
    0.4904
    >>> round(nll([[0.5, 0.5], [0.0, 1.0]], [0, 0]), 4)  # the zero counts as 0.25: log 0.5 and log 0.25
    1.0397
    >>> round(nll([0.5, 0.75], [0, 0], predicted=[0, 1]), 4)  # the second is wrong: log 0.25
    1.0397
    """
    if predicted is not None:
        return mean_nll(*as_binary(reduce_to_top_label(probs, labels, predicted)))
    p = check_probs(probs, shape_remedy=GIVE_PREDICTED)
    return mean_nll(p, check_labels(labels, n_rows=len(p), n_classes=p.shape[1], table=probs))


def brier(probs: ArrayLike, labels: ArrayLike, *, predicted: ArrayLike | None = None) -> float:
    """Mean squared distance between the probabilities and the one-hot label, between 0 and 2.

    ``(1/n) Σ_i Σ_k (p_i[k] − 1[y_i = k])²``. In the top-1 form it is the binary score of being right, between
    0 and 1: ``(1/n) Σ_i (p̂_i − 1[right])²``.

    Examples
    --------
    >>> brier([[0.5, 0.5], [0.25, 0.75]], [0, 1])
    0.3125
    >>> brier([0.5, 0.75], [0, 1], predicted=[0, 1])
    0.15625
    """
    if predicted is not None:
        return mean_brier(*as_binary(reduce_to_top_label(probs, labels, predicted))) / 2
    p = check_probs(probs, shape_remedy=GIVE_PREDICTED)
    return mean_brier(p, check_labels(labels, n_rows=len(p), n_classes=p.shape[1], table=probs))


def ece(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    n_bins: int = 15,
    binning: Binning = "width",
    norm: Norm = "l1",
) -> float:
    """Calibration error of the top label, all classes together.

    ``Σ_b (n_b/n)·abs(accuracy_b − mean confidence_b)``, or ``√(Σ_b (n_b/n)·(…)²)`` with ``norm="l2"``.
    Classes that err in opposite directions cancel here; see :func:`max_ece` and :func:`avg_ece`.

    Examples
    --------
    >>> round(ece([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]], [0, 1, 1], n_bins=10), 3)
    0.333
    """
    table = pooled_cells(reduce_to_top_label(probs, labels, predicted), n_bins, binning)
    return float(calibration_error(table.count, table.residual, norm)[0])


def class_ece(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    n_bins: int = 15,
    binning: Binning = "width",
    norm: Norm = "l1",
) -> NDArray[np.float64]:
    """Calibration error on the rows predicted as each class, (K,); nan for a class never predicted.

    Examples
    --------
    >>> class_ece([[0.9, 0.1, 0], [0.9, 0.1, 0], [0.2, 0.8, 0]], [0, 1, 1], n_bins=10).round(3)
    array([0.4, 0.2, nan])
    """
    table = class_cells(reduce_to_top_label(probs, labels, predicted), n_bins, binning)
    return calibration_error(table.count, table.residual, norm)


def max_ece(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    n_bins: int = 15,
    binning: Binning = "width",
    norm: Norm = "l1",
) -> float:
    """Largest calibration error over the predicted classes, ``max_k ECE_k``.

    With 100 classes of 100 rows a perfectly calibrated model scores about 0.18: read it beside
    :func:`~hetcal.metrics.noise_floor`.

    Examples
    --------
    >>> round(max_ece([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]], [0, 1, 1], n_bins=10), 3)
    0.4
    """
    return float(
        np.nanmax(class_ece(probs, labels, predicted=predicted, n_bins=n_bins, binning=binning, norm=norm))
    )


def avg_ece(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    n_bins: int = 15,
    binning: Binning = "width",
    norm: Norm = "l1",
) -> float:
    """Unweighted mean of the calibration errors of the predicted classes.

    Examples
    --------
    >>> round(avg_ece([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]], [0, 1, 1], n_bins=10), 3)
    0.3
    """
    return float(
        np.nanmean(class_ece(probs, labels, predicted=predicted, n_bins=n_bins, binning=binning, norm=norm))
    )


def signed_gap(
    probs: ArrayLike, labels: ArrayLike, *, predicted: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Mean confidence − accuracy on the rows predicted as each class, (K,).

    Above zero: over-confident. nan for a class that is never predicted.

    Examples
    --------
    >>> signed_gap([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]], [0, 1, 1]).round(3)
    array([ 0.4, -0.2])
    """
    top = reduce_to_top_label(probs, labels, predicted)
    table = class_cells(top, n_bins=1, binning="width")
    return np.asarray(table.residual[:, 0] / np.where(table.count[:, 0] > 0, table.count[:, 0], np.nan))


def debiased_ece(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    n_bins: int = 15,
    binning: Binning = "width",
    norm: Norm = "l1",
) -> float:
    """Calibration error with the part that chance adds to it taken off, never below 0.

    ``norm="l2"`` is the closed form of Kumar, Liang and Ma (2019),
    ``√max(0, Σ_b (n_b/n)·(gap_b² − a_b(1−a_b)/(n_b−1)))`` with ``a_b`` the accuracy of the bin; a bin with
    one row says nothing and adds 0. ``norm="l1"`` subtracts ``E abs(N(gap_b, s_b²)) − abs(gap_b)``, the bias
    of a folded normal with ``s_b² = a_b(1−a_b)/n_b``, from every bin; it is the value that their resampling
    tends to. It takes off about half of what chance adds, not all of it.

    Examples
    --------
    >>> confidence, labels = [0.7] * 10, [0] * 6 + [1] * 4
    >>> round(ece(confidence, labels, predicted=[0] * 10), 3)
    0.1
    >>> debiased_ece(confidence, labels, predicted=[0] * 10, norm="l2")
    0.0
    """
    top = reduce_to_top_label(probs, labels, predicted)
    return debiased_error(pooled_cells(top, n_bins, binning), norm)


def smooth_ece(probs: ArrayLike, labels: ArrayLike, *, predicted: ArrayLike | None = None) -> float:
    """Calibration error without bins: smooth ECE of Błasiok and Nakkiran (2023).

    With ``r(t) = (1/n) Σ_i K_σ(t, p̂_i)(p̂_i − correct_i)``, a Gaussian kernel reflected at 0 and 1, and
    ``smECE_σ = ∫ abs(r(t)) dt``, it is the one σ with ``smECE_σ = σ``.

    Examples
    --------
    >>> round(smooth_ece([0.7] * 10, [0] * 6 + [1] * 4, predicted=[0] * 10), 3)
    0.1
    """
    return smooth_error(reduce_to_top_label(probs, labels, predicted))


def class_cells(top: TopLabel, n_bins: int, binning: Binning) -> Cells:
    """Cells per predicted class and bin, (K, M)."""
    return cells(
        top.confidence,
        top.correct,
        slices=top.predicted,
        n_slices=top.n_classes,
        n_bins=n_bins,
        binning=binning,
    )


def pooled_cells(top: TopLabel, n_bins: int, binning: Binning) -> Cells:
    """Cells per bin of all rows together, (1, M)."""
    return cells(top.confidence, top.correct, n_bins=n_bins, binning=binning)


def mean_nll(p: FloatArray, y: IntArray) -> float:
    """:func:`nll` of checked arrays."""
    at_label = p[np.arange(len(p)), y].astype(np.float64)
    if (at_label == 0).any():
        at_label[at_label == 0] = probability_floor(p)
    return float(-np.log(at_label).mean())


def mean_brier(p: FloatArray, y: IntArray) -> float:
    """:func:`brier` of checked arrays."""
    at_label = p[np.arange(len(p)), y].astype(np.float64)
    # (1 − p)² − p² instead of 1 − 2p keeps what a nearly perfect prediction leaves.
    all_columns = np.einsum("ik,ik->", p, p, dtype=np.float64, casting="same_kind")
    return max(0.0, float((all_columns + ((1 - at_label) ** 2 - at_label**2).sum()) / len(p)))


def debiased_error(table: Cells, norm: Norm) -> float:
    """:func:`debiased_ece` from pooled cells."""
    used = table.count[0] > 0
    count = table.count[0][used]
    gap, accurate = table.residual[0][used] / count, table.correct[0][used] / count
    return choose(_DEBIASED, norm, "norm")(count, gap, accurate * (1 - accurate))


def smooth_error(top: TopLabel) -> float:
    """:func:`smooth_ece` of a reduced prediction."""
    grid = empty_grid()
    add_residuals(grid, *residual_shares(top.confidence.astype(np.float64), top.correct))
    return smooth_error_on(grid, len(top.confidence))


def as_binary(top: TopLabel) -> tuple[FloatArray, IntArray]:
    """Probabilities (n, 2) of being wrong and right, and which it was."""
    return np.stack([1 - top.confidence, top.confidence], axis=1), top.correct.astype(np.int64)


def _debiased_l1(
    count: NDArray[np.float64], gap: NDArray[np.float64], variance: NDArray[np.float64]
) -> float:
    s = np.sqrt(variance / count)
    ratio = np.divide(gap, s, out=np.full_like(gap, np.inf), where=s > 0)
    size = np.abs(gap)
    folded = s * np.sqrt(2 / np.pi) * np.exp(-0.5 * ratio**2) + size * special.erf(np.abs(ratio) / np.sqrt(2))
    return max(0.0, float(np.average(2 * size - folded, weights=count)))


def _debiased_l2(
    count: NDArray[np.float64], gap: NDArray[np.float64], variance: NDArray[np.float64]
) -> float:
    square = np.where(count > 1, gap**2 - variance / np.maximum(count - 1, 1), 0.0)
    return float(np.sqrt(max(0.0, float(np.average(square, weights=count)))))


_DEBIASED: dict[str, Callable[..., float]] = {"l1": _debiased_l1, "l2": _debiased_l2}
