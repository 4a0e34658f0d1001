"""Platt scaling of all rows together, for any kind of labels."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from hetcal._numeric.families import MAX_LOG_ODDS, PlattFamily
from hetcal._numeric.label_models import Correctness, NoisyLabels
from hetcal._numeric.noise_bias import Estimate, combine
from hetcal._numeric.passes import top_margin
from hetcal._numeric.rows import Rows
from hetcal._numeric.source import Source
from hetcal._numeric.trust_region import EvaluateVector, minimise_pooled
from hetcal._typing import Float, IntArray
from hetcal._warnings import quiet

__all__ = ["fit_platt"]

_POSITIVE = 100.0  # added to the mean unbiased loss, since the solver expects positive losses
_STATIONARY = 1e-6  # at a minimum, the derivatives of the mean loss are at most this in absolute value
_CURVED = 1e-10  # at a minimum, the smaller eigenvalue of the Hessian must exceed this times the larger one


def fit_platt(source: Source) -> tuple[Float, float]:
    """Fit slope and intercept (2,) to all rows; return them and the minimum of the summed loss.

    For noisy labels, the maximum of the likelihood is corrected for its bias (see `noise_bias`). The returned
    loss is the minimum before the correction.
    """
    family = PlattFamily()
    evaluate = source.family_evaluator(family, np.zeros(source.n_slices, np.int64))
    total, _ = source.weights()
    theta, loss = minimise_pooled(evaluate, np.array([total]), family.start(source.n_classes))
    if source.label_model is not None and source.label_model.is_noisy:
        theta = _reduce_bias(source, theta)
    return theta, loss


def _reduce_bias(source: Source, likely: Float) -> Float:
    """Combine the maximum of the likelihood `likely` (2,) with the minimiser of the unbiased loss.

    If the unbiased loss has no minimum, `likely` is returned. If it has one but the NLL has no minimum at
    `likely`, the minimiser of the unbiased loss is returned.
    """
    rows = source.in_memory("noisy labels").rows_in_slices()
    if not isinstance(rows.label_model, NoisyLabels):
        return likely
    known = rows.label_model.correctness(rows.z, rows.guess)
    share = Correctness(share=np.asarray(rows.correctness, np.float64))
    likelihood = _estimate(rows, known, likely)
    labels = NoisyLabels(rows.label_model.y, rows.label_model.transition, share)
    evaluate = _evaluator(Rows(rows.z, rows.y, rows.guess, rows.given_weight, labels))

    def evaluate_positive(theta: Float, active: IntArray) -> tuple[Float, Float, Float]:
        loss, gradient, hessian = evaluate(theta, active)
        return loss + _POSITIVE * rows.total_weight, gradient, hessian

    start = PlattFamily().start(source.n_classes) if likelihood is None else likely
    with quiet(RuntimeWarning):  # the solver warns if it finds no minimum
        theta, _ = minimise_pooled(evaluate_positive, np.array([rows.total_weight]), start)
    unbiased = _estimate(rows, share, theta)
    if unbiased is None:
        return likely
    return unbiased.theta if likelihood is None else combine(likelihood, unbiased).theta


def _evaluator(rows: Rows) -> EvaluateVector:
    return PlattFamily().evaluator(rows, np.zeros(len(rows), np.int64), 1)


def _estimate(rows: Rows, known: Correctness, theta: Float) -> Estimate | None:
    """Return `theta` with the derivatives of the loss there, or None if `theta` is not a minimum."""
    x = np.minimum(top_margin(rows.z, rows.guess)[0], MAX_LOG_ODDS)
    u = theta[0] * x + theta[1]
    p, pulled = expit(u), known.pull(u)[1]
    features = np.stack([x, np.ones_like(x)], axis=1)
    slopes = (rows.weight * (p - pulled))[:, None] * features
    curvature = rows.weight * (p * (1 - p) - known.curvature(pulled))
    hessian = np.einsum("i,ip,iq->pq", curvature, features, features)
    values = np.linalg.eigvalsh(hessian)
    is_flat = np.abs(slopes.sum(axis=0)).max() <= _STATIONARY * rows.total_weight
    return Estimate(theta, slopes, hessian) if is_flat and values[0] > _CURVED * values[1] else None
