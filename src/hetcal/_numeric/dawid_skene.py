"""Estimates of annotators' confusion matrices and of the true labels, by EM (Dawid and Skene, 1979).

The probability that annotator a gives the label y to a row of true class k is ``π^a[k, y]``. Given the true
class, the labels of different annotators are independent. Without a classifier, the prior probabilities of
the true classes of a row are the frequencies of the classes. With the logits z of a classifier, they are
``softmax(αz + b)``, and α and b are fitted along with the matrices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import linalg, sparse, special

from hetcal._numeric.threads import with_one_blas_thread
from hetcal._numeric.trusted_rows import uniform_shares
from hetcal._typing import Float, FloatArray, IntArray

__all__ = ["AnnotatorFit", "fit_annotators"]

_MAX_ROUNDS = 2000
_CONVERGED = 1e-7  # EM stops when every posterior probability changes by less than this
_RIDGE = 10.0  # precision of the normal prior of the biases
_LEAST = 1e-300
_LEAST_INFORMATION = 0.5  # added to the information about every parameter, in case the labels contain none
_MAX_PARAMETERS, _MAX_PRODUCTS = 2000, 2e11  # beyond either limit, `_variances_of_shift` is used
_BLOCK = 1 << 22  # entries of the gradients of log-likelihoods that are computed at once


class AnnotatorFit(NamedTuple):
    """Result of `fit_annotators`.

    Attributes
    ----------
    matrices : (A, K, K) for each annotator, probability of each label (column) given the true class (row)
    transition : (K, K) the same for a label that is drawn at random from the labels of all annotators
    posterior : (n, K) for each row, probability that each class is the true class
    n_effective : (K,) effective number of labels for the error rate of every class
        If the true classes were known, this number of labels would determine ``1 − diag(transition)`` as
        precisely as the data do.
    has_converged : whether EM converged
    """

    matrices: Float
    transition: Float
    posterior: Float
    n_effective: Float
    has_converged: bool


@with_one_blas_thread
def fit_annotators(
    votes: IntArray,
    n_classes: int,
    z: FloatArray | None = None,
    true: IntArray | None = None,
    *,
    smoothing: float,
    shrink_to_uniform: bool = False,
) -> AnnotatorFit:
    """Estimate the confusion matrices of the annotators and the true labels by EM.

    EM starts from the shares of the classes among the labels of each row, to which one label is added that is
    divided evenly among the classes. Rows with a known true label keep this label.

    Parameters
    ----------
    votes : (n, A) labels, -1 where an annotator gave none
    n_classes : K
    z : (n, K) logits of a classifier, or None
    true : (n,) true labels, -1 where they are unknown; or None
    smoothing : number of pseudo-labels per true class that shrink every matrix towards the pooled matrix
        The pooled matrix of all annotators is itself shrunk in this way, towards a matrix in which all
        classes have the same error rate and all wrong labels of a class are equally likely.
    shrink_to_uniform : whether to make all wrong labels of a class equally likely in every matrix
    """
    n, n_annotators = votes.shape
    row, annotator = np.nonzero(votes >= 0)
    cell = annotator * n_classes + votes[row, annotator]
    is_vote = sparse.csr_array((np.ones(len(row)), (cell, row)), shape=(n_annotators * n_classes, n))
    of_row = is_vote.T.tocsr()
    known = np.flatnonzero(true >= 0) if true is not None else np.empty(0, np.int64)
    certain = np.eye(n_classes)[true[known]] if true is not None else np.empty((0, n_classes))
    prior = _Prior(z)
    votes_of_class = np.asarray(of_row @ np.tile(np.eye(n_classes), (n_annotators, 1)))
    posterior = votes_of_class + 1 / n_classes  # rows without votes get equal shares
    posterior /= posterior.sum(axis=1, keepdims=True)
    posterior[known] = certain
    has_converged = False
    for _ in range(_MAX_ROUNDS):
        count = np.asarray(is_vote @ posterior).reshape(n_annotators, n_classes, n_classes)
        count = count.transpose(0, 2, 1)  # axes: annotator, true class, observed class
        matrices, transition = _matrices(count, smoothing, shrink_to_uniform)
        log_matrices = np.log(np.maximum(matrices, _LEAST)).transpose(0, 2, 1).reshape(-1, n_classes)
        new = special.softmax(prior.log_probs(posterior) + np.asarray(of_row @ log_matrices), axis=1)
        new[known] = certain
        change, posterior = float(np.abs(new - posterior).max()), new
        if change < _CONVERGED:
            has_converged = True
            break
    n_effective = _effective_labels(matrices, count, posterior, votes, known, with_shares=z is None)
    return AnnotatorFit(matrices, transition, posterior, n_effective, has_converged)


class _Prior:
    """Prior of the true classes, updated from the posterior in every round of EM."""

    def __init__(self, z: FloatArray | None) -> None:
        self.z = None if z is None else (z - z.max(axis=1, keepdims=True)).astype(np.float64)
        self.theta = np.zeros(1 if z is None else 1 + z.shape[1])  # log α and b; not used if z is None

    def log_probs(self, posterior: Float) -> Float:
        """Update the prior from the posterior (n, K), and return the logarithms of its probabilities.

        Without logits, the probabilities are the frequencies of the classes, (K,). With logits, they are
        ``softmax(αz + b)``, (n, K), after one Newton step in log α and b.
        """
        if self.z is None:
            share: Float = posterior.mean(axis=0)
            return np.log(np.maximum(share, _LEAST))
        loss, gradient, hessian = self._evaluate(posterior)
        step = -linalg.solve(hessian, gradient, assume_a="sym")
        step *= min(1.0, 1 / max(float(np.abs(step).max()), _LEAST))
        start = self.theta
        for _ in range(20):
            self.theta = start + step
            if self._loss(posterior) <= loss:
                return self._log_softmax()
            step = step / 2
        self.theta = start
        return self._log_softmax()

    def _log_softmax(self) -> Float:
        u = np.exp(self.theta[0]) * self.z + self.theta[1:]
        return np.asarray(special.log_softmax(u, axis=1))

    def _loss(self, posterior: Float) -> float:
        penalty = _RIDGE / 2 * float(self.theta[1:] @ self.theta[1:])
        return penalty - float((posterior * self._log_softmax()).sum())

    def _evaluate(self, posterior: Float) -> tuple[float, Float, Float]:
        """Summed cross-entropy plus the penalty of the biases, its gradient, and an approximate Hessian.

        The approximation is the Fisher information plus the Hessian of the penalty. It is positive definite.
        """
        p, w = np.exp(self._log_softmax()), np.exp(self.theta[0]) * self.z
        residual, bias = p - posterior, self.theta[1:]
        gradient = np.concatenate([[(residual * w).sum()], residual.sum(axis=0) + _RIDGE * bias])
        offset = w - (p * w).sum(axis=1)[:, None]
        mixed = (p * offset).sum(axis=0)
        corner = np.array([[(p * offset * w).sum() + 1e-9 * len(p)]])
        square = np.diag(p.sum(axis=0) + _RIDGE) - p.T @ p
        hessian = np.block([[corner, mixed[None]], [mixed[:, None], square]])
        return self._loss(posterior), gradient, hessian


def _matrices(count: Float, smoothing: float, shrink_to_uniform: bool) -> tuple[Float, Float]:
    """Confusion matrices of the annotators, (A, K, K), and of a label drawn from all their labels, (K, K).

    `count` (A, K, K) is the expected number of labels by annotator, true class and label.
    """
    n_classes = count.shape[1]
    pooled = count.sum(axis=0)
    wrong = 1 - np.trace(pooled) / pooled.sum()
    base = (1 - wrong) * np.eye(n_classes) + wrong * uniform_shares(n_classes)
    pooled = _shrunk(pooled, base, smoothing)
    matrices = _shrunk(count, pooled, smoothing)
    share = count.sum(axis=2)
    empty = share.sum(axis=0) == 0
    share = np.where(empty, 1.0, share)
    transition = np.einsum("ak,akj->kj", share / share.sum(axis=0), matrices)
    if shrink_to_uniform:
        matrices, transition = _spread_evenly(matrices), _spread_evenly(transition)
    return matrices, transition


def _shrunk(count: Float, centre: Float, smoothing: float) -> Float:
    """Frequencies (…, K, K) in each row of `count`, shrunk towards `centre` by `smoothing` pseudo-counts.

    The frequencies of a row without counts are those of `centre`.
    """
    total = count.sum(axis=-1, keepdims=True) + smoothing
    return np.asarray(
        np.where(total > 0, (count + smoothing * centre) / np.where(total > 0, total, 1), centre)
    )


def _spread_evenly(matrices: Float) -> Float:
    """Keep the diagonals of matrices (…, K, K), and spread the rest of each row evenly."""
    n_classes = matrices.shape[-1]
    right = np.einsum("...kk->...k", matrices)[..., None]
    return np.asarray(right * np.eye(n_classes) + (1 - right) * uniform_shares(n_classes))


def _effective_labels(
    matrices: Float, count: Float, posterior: Float, votes: IntArray, known: IntArray, *, with_shares: bool
) -> Float:
    """Effective number of labels (K,), at most the expected number of labels of each class.

    If the true classes were known, the error rate of a class would have a binomial variance. The effective
    number of labels is the number for which this variance equals the variance of the error rate that follows
    from the information in the data. `with_shares` says whether the shares of the classes were fitted, too.
    """
    n_labels = count.sum(axis=(0, 2))
    weight = count.sum(axis=2) / np.maximum(n_labels, _LEAST)
    rate = 1 - (weight * np.einsum("akk->ak", matrices)).sum(axis=0)
    binomial = rate * (1 - rate)
    size = matrices.size
    if size <= _MAX_PARAMETERS and float(len(votes)) * size**2 <= _MAX_PRODUCTS:
        variance = _variances(matrices, posterior, votes, weight, with_shares=with_shares)
    else:
        variance = _variances_of_shift(matrices, count, posterior, votes, known, weight)
    # If no label of a class is wrong, both variances are 0. All of its labels count then.
    share = np.divide(binomial, n_labels * variance, out=np.ones_like(rate), where=n_labels * variance > 0)
    return np.asarray(n_labels * np.minimum(share, 1))


def _variances(
    matrices: Float, posterior: Float, votes: IntArray, weight: Float, *, with_shares: bool
) -> Float:
    """Variances (K,) of the error rates, from the information about all parameters.

    The parameters are the logits of the entries of all matrices and, if `with_shares` is True, of the shares
    of the classes. The score of a row is the gradient of its log-likelihood. It equals the posterior mean of
    the score that the row would have if its true class were known. The information is the sum of ``s sᵀ``
    over the scores s of all rows, plus `_LEAST_INFORMATION` for every parameter. The variances follow by the
    delta method.
    """
    n_classes = matrices.shape[1]
    share = posterior.mean(axis=0)
    n_parameters = matrices.size + (n_classes if with_shares else 0)
    information = _LEAST_INFORMATION * np.eye(n_parameters)
    step = max(1, _BLOCK // matrices.size)
    for start in range(0, len(posterior), step):
        r, y = posterior[start : start + step], votes[start : start + step, :, None]
        residual = (y == np.arange(n_classes))[:, :, None] - (y >= 0)[:, :, None] * matrices
        score = (r[:, None, :, None] * residual).reshape(len(r), -1)
        if with_shares:
            score = np.concatenate([score, r - share], axis=1)
        information += score.T @ score
    right = np.einsum("akk->ak", matrices)
    slope = np.zeros((n_classes, *matrices.shape))
    for k in range(n_classes):
        slope[k, :, k] = -(weight[:, k] * right[:, k])[:, None] * (np.eye(n_classes)[k] - matrices[:, k])
    slopes = np.zeros((n_classes, n_parameters))
    slopes[:, : matrices.size] = slope.reshape(n_classes, -1)
    return np.asarray((slopes * linalg.solve(information, slopes.T, assume_a="pos").T).sum(axis=1))


def _variances_of_shift(
    matrices: Float, count: Float, posterior: Float, votes: IntArray, known: IntArray, weight: Float
) -> Float:
    """Variances (K,) of the error rates if only one shift per class, common to all annotators, is unknown.

    This approximation is used if `_variances` would be too expensive. Let δ_k be a shift that is added to the
    logits of the error rates of all annotators in class k. The information about δ is what it would be if all
    true classes were known, minus the information that is missing because some are unknown (Louis, 1982).
    """
    n_classes = posterior.shape[1]
    error = 1 - np.einsum("akk->ak", matrices)
    score = np.zeros(posterior.shape)
    for a, given in enumerate(votes.T):
        rows = np.flatnonzero(given >= 0)
        is_wrong = given[rows, None] != np.arange(n_classes)
        score[rows] += is_wrong - error[a]
    complete = (count.sum(axis=2) * error * (1 - error)).sum(axis=0)
    unknown = np.delete(np.arange(len(posterior)), known)
    r, g = posterior[unknown], score[unknown]
    missing = np.diag((r * g * g).sum(axis=0)) - (r * g).T @ (r * g)
    information = np.diag(complete + _LEAST_INFORMATION) - missing
    values, vectors = np.linalg.eigh(information)
    variance = ((vectors**2) / np.maximum(values, 1e-3)).sum(axis=1)
    speed = (weight * error * (1 - error)).sum(axis=0)
    return np.asarray(speed**2 * variance)
