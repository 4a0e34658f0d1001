"""Estimate label noise from observed labels, predictions and a few trusted rows, whose true labels are known.

For a row with logits z and predicted class ŷ, the model is ``P(true = j) = softmax(exp(a_ŷ) z + b)_j`` and
``P(observed = y | true = j) = T[j, y]``. The diagonal entry of row k of T is ``1 − e_k``, and ``e_k`` is
divided among the other classes. The noise rate of class k is ``ρ_k = e_k K/(K − 1)``. If all wrong labels are
equally likely, this is the probability that a label is redrawn uniformly from all K classes.

There are three blocks of K parameters: the log inverse temperatures a, the biases b and the logits of the
noise rates. All are fitted together, by Newton's method with exact derivatives. The parameters of each block
have a common normal prior. Its mean is 0 for the biases, and unknown with a normal prior of its own for the
other two blocks. Its variance is estimated by EM with Laplace's approximation.

By default, the other classes receive equal shares of e_k. If the trusted rows provide strong evidence of
unequal shares, the shares are estimated as well. They then have a Dirichlet prior around equal shares, whose
concentration is estimated from the trusted rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import linalg, sparse, special

from hetcal._numeric.probabilities import normalise_weights
from hetcal._numeric.threads import over_blocks, with_one_blas_thread
from hetcal._typing import Float, FloatArray, IntArray

__all__ = ["TrustedFit", "fit_trusted", "uniform_shares"]

_MAX_ROUNDS = 100
_MAX_HALVINGS = 12
_MAX_STEP = 3.0  # largest change of a parameter in one step
# The fit has converged if every noise rate changes by less than _RATE_CHANGE, and every other parameter and
# every share of a wrong label by less than _CHANGE.
_RATE_CHANGE = 2e-4
_CHANGE = 2e-3
_START_RATE = 0.05
# Each array below has one entry per block of parameters. The mean of the parameters of a block has a normal
# prior with mean _MEAN and variance _MEAN_VARIANCE. The variance of the parameters around this mean has a
# weak prior with the centre _VARIANCE and the weight of _VARIANCE_WEIGHT classes.
_MEAN, _MEAN_VARIANCE = np.array([0.0, 0.0, -2.94]), np.array([100.0, 0.0, 4.0])
_VARIANCE, _VARIANCE_WEIGHT = np.array([0.02, 0.02, 0.5]), 2.0
_START_VARIANCE = np.array([0.25, 0.1, 1.0])
# Smallest prior variance of the logits of the noise rates when intervals are computed. It is large, because
# intervals should be shrunk less than estimates.
_WEAK_VARIANCE = 4.0
# The shares are estimated from the counts of wrong labels in the trusted rows, plus this weight times the
# counts that the model expects in all rows. The weight is small because the expected counts are less
# reliable: temperatures and biases cannot calibrate the probability of every class separately for every
# predicted class.
_SOFT_WEIGHT = 0.02
_CONCENTRATIONS = np.geomspace(0.03, 1e5, 80)
_MIN_EVIDENCE = 2.0  # unequal shares are used if they increase the log-evidence by more than this


class TrustedFit(NamedTuple):
    """Result of `fit_trusted`.

    Attributes
    ----------
    transition : (K, K) probability of each observed label (column) given the true class (row)
    low, high : (K,) ends of the intervals for the noise rates
    posterior : (n, K) probability of every true class, given the observed label and, if known, the true label
    """

    transition: Float
    low: Float
    high: Float
    posterior: Float


@dataclass(frozen=True)
class _Rows:
    """Some rows: logits minus their row maximum, and the predicted, observed and true class of each row.

    Unknown true classes are -1.
    """

    z: Float
    predicted: IntArray
    observed: IntArray
    true: IntArray

    @property
    def n_classes(self) -> int:
        return int(self.z.shape[1])


class _Evaluation(NamedTuple):
    """Loss, its gradient (3K,), its Hessian (3K, 3K), and expected counts of pairs of classes (K, K).

    ``pairs[i, j]`` is the expected number of rows with the true class i and the observed label j.
    """

    loss: float
    gradient: Float
    hessian: Float
    pairs: Float


@with_one_blas_thread
def fit_trusted(
    z: FloatArray, observed: IntArray, true: IntArray, *, width: float, shrink_to_uniform: bool = False
) -> TrustedFit:
    """Fit the label noise and the calibration of the classifier together.

    Parameters
    ----------
    z : (n, K) logits
    observed : (n,) observed labels
    true : (n,) true labels, -1 where they are unknown
    width : half the width of the intervals for the noise rates, in standard deviations of their logits
    shrink_to_uniform : whether to assume that all wrong labels of a class are equally likely
    """
    below = (z - z.max(axis=1, keepdims=True)).astype(np.float64)
    rows = _Rows(below, z.argmax(axis=1), observed, true)
    n_classes = rows.n_classes
    trusted_count = _trusted_pairs(true, observed, n_classes)
    shares = uniform_shares(n_classes)
    has_shares = not shrink_to_uniform and n_classes > 2
    concentration = _concentration(trusted_count) if has_shares else np.inf
    theta = _start(rows, shares)
    variance = _START_VARIANCE
    state = _evaluate(rows, theta, shares)
    for _ in range(_MAX_ROUNDS):
        old = theta
        theta, state, covariance = _newton_step(
            rows, theta, shares, state, _prior_precision(variance, n_classes)
        )
        variance = _update_variance(theta, covariance)
        change = 0.0
        if np.isfinite(concentration):
            new_shares = _update_shares(trusted_count, state.pairs, concentration)
            change, shares = float(np.abs(new_shares - shares).max()), new_shares
            state = _evaluate(rows, theta, shares)
        if _has_converged(theta, old, n_classes) and change < _CHANGE:
            break
    low, high = _rate_intervals(rows, theta, shares, state, variance, width)
    transition = _transition(theta[2 * n_classes :], shares)[0]
    return TrustedFit(transition, low, high, _posterior(rows, theta, shares))


def uniform_shares(n_classes: int) -> Float:
    """Equal shares of the wrong labels (columns) of each class (rows), (K, K), with zeros on the diagonal."""
    return (1 - np.eye(n_classes)) / (n_classes - 1)


def _start(rows: _Rows, shares: Float) -> Float:
    """Initial parameters (3K,): those of the best single temperature, zero biases, and noise rates of 5%."""
    n_classes = rows.n_classes
    theta = np.zeros(3 * n_classes)
    theta[2 * n_classes :] = special.logit(_START_RATE)
    for _ in range(15):
        value = _evaluate(rows, theta, shares)
        block = slice(0, n_classes)
        slope, curvature = value.gradient[block].sum(), value.hessian[block, block].sum()
        step = float(np.clip(-slope / max(abs(curvature), 1e-12 * len(rows.z)), -1, 1))
        theta[block] += step
        if abs(step) < _CHANGE:
            break
    return theta


def _newton_step(
    rows: _Rows, theta: Float, shares: Float, state: _Evaluation, precision: Float
) -> tuple[Float, _Evaluation, Float]:
    """Take a damped Newton step on the objective, which is the loss minus the logarithm of the prior.

    `precision` (3K, 3K) is the inverse covariance of the prior. Returns the new parameters, the evaluation
    there, and the inverse of the objective's Hessian at the old parameters; see `_positive_inverse`. The
    parameters stay the same if no tried step is accepted.
    """
    centre = np.repeat(_MEAN, rows.n_classes)

    def objective(parameters: Float, value: _Evaluation) -> float:
        offset = parameters - centre
        return value.loss + float(offset @ precision @ offset) / 2

    gradient = state.gradient + precision @ (theta - centre)
    inverse = _positive_inverse(state.hessian + precision)
    step = -inverse @ gradient
    step *= min(1.0, _MAX_STEP / max(float(np.abs(step).max()), 1e-300))
    before = objective(theta, state)
    least = 1e-4 * float(gradient @ step)
    for _ in range(_MAX_HALVINGS):
        new = theta + step
        value = _evaluate(rows, new, shares)
        if objective(new, value) <= before + least + 1e-12 * abs(before):
            return new, value, inverse
        step, least = step / 2, least / 2
    return theta, state, inverse


def _rate_intervals(
    rows: _Rows, theta: Float, shares: Float, state: _Evaluation, variance: Float, width: float
) -> tuple[Float, Float]:
    """Lower and upper ends of the intervals for the noise rates, (K,) each.

    The estimated rates are shrunk towards each other, so intervals around them would often miss the rates of
    exceptional classes. The intervals are therefore computed around rates that are shrunk less, and extended
    to contain the estimates. The lower end is 0 if the data are consistent with no noise in the class.
    """
    n_classes = rows.n_classes
    rates = slice(2 * n_classes, None)
    weak = np.append(variance[:2], max(_WEAK_VARIANCE, variance[2]))
    precision, free = _prior_precision(weak, n_classes), theta
    for _ in range(_MAX_ROUNDS):
        old = free
        free, state, covariance = _newton_step(rows, free, shares, state, precision)
        if _has_converged(free, old, n_classes):
            break
    margin = width * np.sqrt(np.diag(covariance)[rates])
    low = np.minimum(special.expit(free[rates] - margin), special.expit(theta[rates]))
    high = np.maximum(special.expit(free[rates] + margin), special.expit(theta[rates]))
    may_be_clean = _deviance_without_noise(rows, free, shares) <= width**2
    return np.where(may_be_clean, 0.0, low), np.asarray(high)


def _deviance_without_noise(rows: _Rows, theta: Float, shares: Float) -> Float:
    """Twice the decrease of the log-likelihood if class k had no noise, for each k, (K,).

    All other parameters stay the same.
    """
    transition = _transition(theta[2 * rows.n_classes :], shares)[0]
    # Likelihood of each row if class k had no noise, relative to the fitted model, (n, K). Rows of the true
    # class k would then always have the label k. The part of the likelihood that belongs to the true class k
    # is therefore subtracted. If k is the observed label, this part is added again below, divided by T[k, k].
    ratio = 1 - _distributions(rows, theta, transition)[2]
    index = np.arange(len(ratio))
    own = rows.observed
    ratio[index, own] += (1 - ratio[index, own]) / np.diag(transition)[own]
    with np.errstate(divide="ignore"):
        return np.asarray(-2 * np.log(np.maximum(ratio, 0)).sum(axis=0))


def _prior_precision(variance: Float, n_classes: int) -> Float:
    """Inverse prior covariance (3K, 3K) of all parameters.

    The matrix is block-diagonal. For a block of parameters with the variance v around a mean whose prior
    variance is m, it contains ``(v I + m 11ᵀ)⁻¹``.
    """
    blocks = (
        (np.eye(n_classes) - m / (v + m * n_classes)) / v
        for v, m in zip(variance, _MEAN_VARIANCE, strict=True)
    )
    return np.asarray(linalg.block_diag(*blocks))


def _positive_inverse(matrix: Float) -> Float:
    """Inverse of a symmetric matrix, which is first made positive definite if necessary.

    In that case, its eigenvalues are replaced with their absolute values, but at least 1e-8 times the
    largest.
    """
    try:
        factor = linalg.cho_factor(matrix, check_finite=False)
        return np.asarray(linalg.cho_solve(factor, np.eye(len(matrix)), check_finite=False))
    except linalg.LinAlgError:
        values, vectors = np.linalg.eigh(matrix)
        values = np.maximum(np.abs(values), 1e-8 * np.abs(values).max())
        return np.asarray((vectors / values) @ vectors.T)


def _update_variance(theta: Float, covariance: Float) -> Float:
    """Variances (3,) of the parameters of each block around their mean, by one step of EM."""
    blocks = theta.reshape(3, -1)
    n_classes = blocks.shape[1]
    parts = covariance.reshape(3, n_classes, 3, n_classes)
    result = np.empty(3)
    for b, block in enumerate(blocks):
        has_mean = _MEAN_VARIANCE[b] > 0
        offset = block - block.mean() if has_mean else block
        spread = np.trace(parts[b, :, b]) - (parts[b, :, b].mean() * n_classes if has_mean else 0)
        weight = n_classes - has_mean + _VARIANCE_WEIGHT
        result[b] = (offset @ offset + spread + _VARIANCE_WEIGHT * _VARIANCE[b]) / weight
    return result


def _has_converged(theta: Float, old: Float, n_classes: int) -> bool:
    rates = slice(2 * n_classes, None)
    change = np.abs(special.expit(theta[rates]) - special.expit(old[rates])).max()
    others = np.abs(theta[: 2 * n_classes] - old[: 2 * n_classes]).max()
    return bool(change < _RATE_CHANGE and others < _CHANGE)


def _update_shares(trusted_count: Float, count: Float, concentration: float) -> Float:
    """Posterior mean of the shares of the wrong labels (columns) of each class (rows), (K, K).

    `trusted_count` are counts from trusted rows, and `count` the expected counts of all rows.
    """
    total = trusted_count + _SOFT_WEIGHT * count
    np.fill_diagonal(total, 0)
    prior = concentration * uniform_shares(len(total))
    return np.asarray((total + prior) / (total.sum(axis=1, keepdims=True) + concentration))


def _concentration(count: Float) -> float:
    """Concentration of the Dirichlet prior of the shares of the wrong labels, estimated by its evidence.

    `count` (K, K) has the weighted number of trusted rows for every pair of a true and an observed class. The
    result is the value in `_CONCENTRATIONS` with the largest evidence if this evidence is clearly larger than
    that of equal shares. Otherwise the result is infinite, which means equal shares.
    """
    n_classes = len(count)
    wrong = count[~np.eye(n_classes, dtype=bool)].reshape(n_classes, -1)
    total = wrong.sum(axis=1)
    uniform = float(total.sum()) * -np.log(n_classes - 1)

    def evidence(concentration: float) -> float:
        share = concentration / (n_classes - 1)
        cells = special.gammaln(wrong + share) - special.gammaln(share)
        rows = special.gammaln(concentration) - special.gammaln(total + concentration)
        return float(cells.sum() + rows.sum())

    values = [evidence(c) for c in _CONCENTRATIONS]
    best = int(np.argmax(values))
    return float(_CONCENTRATIONS[best]) if values[best] > uniform + _MIN_EVIDENCE else np.inf


def _transition(logit_rate: Float, shares: Float) -> tuple[Float, Float, Float]:
    """Transition matrix and its first two derivatives, (K, K) each.

    The derivatives of each row are with respect to the logit of the noise rate of its class.
    """
    rate = special.expit(logit_rate)
    scale = (1 - 1 / len(rate)) * (shares - np.eye(len(rate)))
    slope = (rate * (1 - rate))[:, None] * scale
    value = np.eye(len(rate)) + rate[:, None] * scale
    return value, slope, slope * (1 - 2 * rate)[:, None]


def _trusted_pairs(true: IntArray, observed: IntArray, n_classes: int) -> Float:
    """Weighted counts (K, K) of the trusted rows with each true label (row) and observed label (column).

    Rows with some observed labels may have been chosen as trusted rows more often than rows with other
    observed labels. The weights correct the frequencies for this.
    """
    rows = np.flatnonzero(true >= 0)
    chosen = np.bincount(observed[rows], minlength=n_classes)
    weight = np.bincount(observed, minlength=n_classes) / np.maximum(chosen, 1)
    pair = true[rows] * n_classes + observed[rows]
    count = np.bincount(pair, normalise_weights(weight[observed[rows]]), n_classes**2)
    return np.asarray(count.reshape(n_classes, n_classes))


def _indicator(classes: IntArray, n_classes: int) -> sparse.csr_array:
    """Sparse matrix (K, n) whose entry (k, i) is 1 if row i has class k, and 0 otherwise."""
    n = len(classes)
    return sparse.csr_array((np.ones(n), (classes, np.arange(n))), shape=(n_classes, n))


def _distributions(rows: _Rows, theta: Float, transition: Float) -> tuple[Float, Float, Float, Float]:
    """Scaled logits, probabilities and posterior of the true classes, (n, K) each, and log-likelihood (n,).

    The scaled logits do not include the biases.
    """
    n_classes = rows.n_classes
    scaled = np.exp(theta[rows.predicted])[:, None] * rows.z
    log_p = special.log_softmax(scaled + theta[n_classes : 2 * n_classes], axis=1)
    p = np.exp(log_p)
    r = p * transition.T[rows.observed]
    index = np.flatnonzero(rows.true >= 0)
    true = rows.true[index]
    r[index] = 0
    r[index, true] = 1
    total = r.sum(axis=1)
    likelihood = np.log(total)
    likelihood[index] = log_p[index, true] + np.log(transition[true, rows.observed[index]])
    return scaled, p, r / total[:, None], likelihood


def _posterior(rows: _Rows, theta: Float, shares: Float) -> Float:
    transition = _transition(theta[2 * rows.n_classes :], shares)[0]
    return _distributions(rows, theta, transition)[2]


def _evaluate(rows: _Rows, theta: Float, shares: Float) -> _Evaluation:
    """Negative log-likelihood of all rows, its derivatives, and the expected counts of pairs of classes."""
    n_classes = rows.n_classes
    matrices = _transition(theta[2 * n_classes :], shares)

    def part(start: int, stop: int) -> _Evaluation:
        block = slice(start, stop)
        some = _Rows(rows.z[block], rows.predicted[block], rows.observed[block], rows.true[block])
        return _evaluate_block(some, theta, matrices)

    parts = over_blocks(part, len(rows.z), n_classes)
    return _Evaluation(*(sum(values[1:], values[0]) for values in zip(*parts, strict=True)))


def _evaluate_block(rows: _Rows, theta: Float, matrices: tuple[Float, Float, Float]) -> _Evaluation:
    """Negative log-likelihood of some rows, its derivatives, and the expected counts of pairs of classes.

    For a row with the observed label y, let u be the scaled logits plus b, p the probabilities and r the
    posterior of the true classes. Then ``∂loss/∂u = p − r`` and
    ``∂²loss/∂u∂uᵀ = diag(p) − ppᵀ − diag(r) + rrᵀ``. The derivative of the log-likelihood with respect to the
    logit of the noise rate of class k is ``r_k T'[k, y]/T[k, y]``. Row k of T' is the derivative of row k of
    T with respect to this logit.
    """
    n_classes, (transition, slope, curvature) = rows.n_classes, matrices
    w, p, r, likelihood = _distributions(rows, theta, transition)
    of_predicted = _indicator(rows.predicted, n_classes)
    score = r * (slope / transition).T[rows.observed]
    bend = (r * (curvature / transition).T[rows.observed]).sum(axis=0)
    residual = p - r
    p_offset, r_offset = w - (p * w).sum(axis=1)[:, None], w - (r * w).sum(axis=1)[:, None]
    p_spread, r_spread = p * p_offset, r * r_offset
    along = (residual * w).sum(axis=1)
    aa = np.diag(of_predicted @ ((p_spread - r_spread) * w).sum(axis=1) + of_predicted @ along)
    ab = of_predicted @ (p_spread - r_spread)
    bb = np.diag(residual.sum(axis=0)) - p.T @ p + r.T @ r
    ea = -(of_predicted @ (score * r_offset)).T
    eb = score.T @ r - np.diag(score.sum(axis=0))
    ee = score.T @ score - np.diag(bend)
    gradient = np.concatenate([of_predicted @ along, residual.sum(axis=0), -score.sum(axis=0)])
    hessian = np.block([[aa, ab, ea.T], [ab.T, bb, eb.T], [ea, eb, ee]])
    count = (_indicator(rows.observed, n_classes) @ r).T
    return _Evaluation(-float(likelihood.sum()), gradient, hessian, count)
