"""A calibrator made of those that do best in cross-validation, with the whole table of candidates kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize

from hetcal._numeric.families import PlattFamily
from hetcal._numeric.folds import count_repeats
from hetcal._numeric.passes import sum_slices
from hetcal._numeric.problems import TemperatureProblem, folds_of
from hetcal._numeric.rows import Rows
from hetcal._numeric.temperatures import fit_pooled
from hetcal._numeric.threads import one_blas_thread
from hetcal._typing import CodeArray, Float, FloatArray, IntArray
from hetcal._warnings import quiet, warn_repeats
from hetcal.calibrators.affine import PlattScaling, VectorScaling
from hetcal.calibrators.base import Calibrator, FitData, fit_step, map_of_step, pass_on, predict_step
from hetcal.calibrators.classwise import ClassWise
from hetcal.calibrators.compose import Chain, Mixture, check_steps
from hetcal.calibrators.temperature import ClassWiseTemperatureScaling, Identity, TemperatureScaling
from hetcal.export import maps

__all__ = ["THEN", "AutoCalibrator", "default_candidates"]


THEN = "; then class-wise Platt"  # ends the name of a mixture that has it behind it
_WAY = 0.25  # how far the last step goes where the weights are trusted
_LEAST = 0.03  # weight below which a candidate is left out
_LEAST_P = float(np.finfo(np.float32).tiny)  # probabilities below count as this
_ENOUGH, _ENOUGH_A_CLASS = 100_000, 2_000  # rows beyond which more would not move the weights
_SAMPLE_SALT = 7
_NEWTON_STEPS, _SETTLED = 50, 1e-12
_LUCK = 0.05  # chance that all predictions are right by luck, up to which that is no evidence


def default_candidates(n_rows: float) -> dict[str, Any]:
    """Candidates from simple to rich, for so many rows; none of them changes a decision."""
    once = TemperatureScaling()
    # Scales and biases of a standard deviation of 1.
    vector = VectorScaling(1 / n_rows, center=True, keep_decision=True)
    shrunk = ClassWiseTemperatureScaling(gamma="bayes")
    platt = ClassWise(PlattScaling(pool=True), gamma="bayes")
    return {
        "Identity": Identity(),
        "TS": once,
        "CTS bayes": shrunk,
        "TS, Platt": Chain([once, PlattScaling(pool=True)]),
        "TS, class-wise Platt": Chain([once, platt]),
        "VS": vector,
        "VS, CTS bayes": Chain([vector, shrunk]),
        "VS, class-wise Platt": Chain([vector, platt]),
    }


class AutoCalibrator(Calibrator):
    """Candidates put together by cross-validated NLL: their best mixture, or the best of them.

    Parameters
    ----------
    candidates : mapping of name to calibrator, optional
        In order of preference where scores tie. Default: identity; one temperature; shrunk class-wise
        temperatures; vector scaling that keeps decisions; and behind these Platt scaling of the confidence,
        for all classes or class by class with shrinkage. None changes a decision. Weights of these are drawn
        to one temperature as far as the gain over it may be chance, and the identity has the weight of one
        row: errors that the rows at hand do not show. What their mixture still gets wrong of the confidence
        in rows that were left out, class by class, is mended behind it, as far as they are to be trusted.
    cv : int, number of folds
        Of far more rows than weights need (100,000, and 2,000 for each class) a part is cross-validated; the
        members are fitted on all.
    combine : "stack" or "best"
        "stack" averages the candidates' probabilities with the weights that have the least cross-validated
        NLL; where all keep decisions, so does the average. "best" takes the one candidate that has it.

    Attributes
    ----------
    best_ : the fitted calibrator, a :class:`Mixture` where several have weight; with the default candidates
        a :class:`Chain` of that and class-wise Platt scaling
    best_name_ : str, its members from the heaviest to the lightest, and what stands behind them
    candidates_ : list of dict
        ``name``, ``nll``, ``error`` (standard error of its difference to the best), ``weight``,
        ``preserves_decision``.
    """

    _unsaved = ("candidates",)  # `best_` and `candidates_` record the choice

    def __init__(
        self,
        candidates: Mapping[str, Any] | None = None,
        *,
        cv: int = 5,
        combine: Literal["stack", "best"] = "stack",
    ) -> None:
        self.candidates = candidates
        self.cv = cv
        self.combine = combine

    @property
    def preserves_decision(self) -> bool:
        """Whether the argmax stays: of the chosen calibrator once fitted, of all candidates before."""
        if hasattr(self, "best_"):
            return _preserves(self.best_)
        return all(_preserves(c) for c in _check_candidates(self.candidates, 1).values())

    def _needs_memory(self) -> bool:
        return True

    def _fit(self, data: FitData) -> None:
        _check_options(self)
        rows = data.in_memory
        candidates = _check_candidates(self.candidates, rows.total_weight)
        if self.candidates is None and rows.right.all():
            candidates = _candidates_without_error(rows)
        if data.fold_groups is None:
            _warn_about_copies(rows)
        trial = _judge(candidates, data, int(self.cv))
        with one_blas_thread():  # the order of its sums must not depend on the machine's cores
            score = trial.nll @ trial.share
            chosen = int(np.argmin(score))
            weights, trust = _weigh(self, trial, chosen, list(candidates))
        error = np.sqrt(len(trial.share)) * ((trial.nll - trial.nll[chosen]) * trial.share).std(axis=1)
        self.candidates_ = [
            {"name": name, "nll": float(s), "error": float(e), "weight": float(v), "preserves_decision": k}
            for name, s, e, v, k in zip(
                candidates, score, error, weights, map(_preserves, candidates.values()), strict=True
            )
        ]
        members = [i for i in np.argsort(-weights, kind="stable") if weights[i] > 0]
        self.best_name_ = _name(list(candidates), weights, members)
        chosen_ones = [list(candidates.values())[i] for i in members]
        final = chosen_ones[0] if len(members) == 1 else Mixture(chosen_ones, weights[members])
        self.best_ = fit_step(final, data)
        last = _last_step(trial, weights, _WAY * trust) if trust > 0 else None
        if last is not None:
            self.best_, self.best_name_ = _behind(self.best_, last), self.best_name_ + THEN

    def _map(self) -> maps.Map:
        return map_of_step(self.best_)

    @classmethod
    def _examples(cls) -> list[Self]:
        return [cls(cv=2)]


def _candidates_without_error(rows: Rows) -> dict[str, Any]:
    """Identity and one temperature, for rows that are all predicted right: nothing more can be learned.

    Any sharper temperature would suit these rows better. But n right predictions are also what an accuracy of
    ``0.05^(1/n)`` gives in one of 20 cases, so that the mean confidence is not raised above that.
    """
    supported = float(_LUCK ** (1 / rows.total_weight))
    below = rows.below_top(slice(None)).astype(np.float64)

    def excess(alpha: float) -> float:
        confidence = 1 / np.exp(alpha * below).sum(axis=1)
        return float(np.average(confidence, weights=rows.weight) - supported)

    low, high = TemperatureScaling().alpha_bounds
    sharpest = 1.0 if excess(1.0) >= 0 else high
    if sharpest > 1 and excess(high) > 0:
        sharpest = float(brentq(excess, 1.0, high))
    return {"Identity": Identity(), "TS": TemperatureScaling((low, sharpest))}


def _warn_about_copies(rows: Rows) -> None:
    """Warn where rows are copies of others, which would be fitted in one fold and judged in another."""
    with quiet(Warning):  # the candidates are fitted, and warn, later
        alpha, _ = fit_pooled(TemperatureProblem(rows, rows.guess, rows.z.shape[1]), (0.01, 100.0))
    warn_repeats(count_repeats(rows, alpha))


def _check_options(model: AutoCalibrator) -> None:
    _check_candidates(model.candidates, 1)
    if isinstance(model.cv, bool) or not isinstance(model.cv, int | np.integer) or model.cv < 2:
        raise ValueError(f"cv must be an integer, 2 or more, got {model.cv!r}")
    if not isinstance(model.combine, str) or model.combine not in ("stack", "best"):
        raise ValueError(f"combine must be 'stack' or 'best', got {model.combine!r}")


def _weigh(model: AutoCalibrator, trial: _Trial, best: int, names: list[str]) -> tuple[Float, float]:
    """Weight of every candidate from the NLL of left-out rows, and how far to trust the default ones."""
    heldout, share, n = trial.nll, trial.share, trial.n_independent
    weights: Float = np.zeros(len(names))
    weights[best] = 1
    if model.combine == "best":
        return weights, 0.0
    if model.candidates is not None:
        return _stack(heldout, share, weights, n), 0.0
    weights = np.r_[0, _stack(heldout[1:], share, weights[1:], n)]  # the identity's part comes last
    return _cautious(trial, weights, names.index("TS"))


def _check_candidates(candidates: Mapping[str, Any] | None, n_rows: float) -> dict[str, Any]:
    if candidates is None:
        return default_candidates(n_rows)
    if not isinstance(candidates, Mapping):
        raise TypeError(f"candidates must be a mapping of name to calibrator, got {candidates!r}")
    if not candidates:
        raise ValueError("candidates must hold at least one calibrator, got none")
    check_steps(list(candidates.values()), "candidates")
    return dict(candidates)


@dataclass(frozen=True)
class _Trial:
    """Left-out rows under candidates that were fitted without them.

    Attributes
    ----------
    nll : (M, n) by candidate and row
    leads, rest : (M, n) probability of the predicted class, and of all others together
    rows : the rows themselves
    groups, all_groups : those of these rows and of all rows, or None
    fold_groups : numbers of what was kept together, or None
    """

    nll: Float
    leads: Float
    rest: Float
    rows: Rows
    groups: NDArray[Any] | None
    all_groups: NDArray[Any] | None
    fold_groups: IntArray | None = None

    @property
    def share(self) -> Float:
        """What part of the weight a row has, (n,)."""
        return np.asarray(self.rows.weight / self.rows.weight.sum())

    @property
    def n_independent(self) -> float:
        """Effective number of independent observations: rows, or what keeps together."""
        if self.fold_groups is None:
            return self.rows.total_weight
        together = np.bincount(self.fold_groups, self.share)
        return float(1 / (together @ together))

    def standard_error(self, gain: Float) -> float:
        """Standard error of the mean of what each row gains."""
        away = np.asarray(self.share * (gain - gain @ self.share))
        if self.fold_groups is not None:  # rows of a group err together
            away = sum_slices(self.fold_groups, away, int(self.fold_groups.max()) + 1)
        return float(np.sqrt(np.sum(away**2)))


def _judge(candidates: dict[str, Any], data: FitData, n_folds: int) -> _Trial:
    """Cross-validate the candidates on all rows, or on enough of very many."""
    judged = data.take(_enough(data.in_memory))
    found = _cross_validate(candidates, judged, n_folds)
    return _Trial(*found, judged.in_memory, judged.groups, data.groups, judged.fold_groups)


def _last_step(trial: _Trial, weights: Float, way: float) -> Any:
    """Class-wise Platt scaling to stand behind a mixture, fitted on its confidence in left-out rows.

    A mean of calibrated probabilities is less sure than it should be, and what the members have in common
    they get wrong together. The parameters go a part of the way: members that are fitted on all rows err
    less than those that some rows were left out of. None where a group was judged in no row.
    """
    seen = np.flatnonzero(trial.leads[0] > 0)
    rows, g = trial.rows, None if trial.groups is None else trial.groups[seen]
    unknown = g is not None and trial.all_groups is not None and not np.isin(trial.all_groups, g).all()
    if not seen.size or unknown:
        return None
    with one_blas_thread():
        odds = np.log(weights @ trial.leads[:, seen]) - np.log(weights @ trial.rest[:, seen])
    # The fit looks at the odds of the predicted class alone, so the other classes may be all alike.
    n_classes = rows.z.shape[1]
    z = np.zeros((len(seen), n_classes), rows.z.dtype)
    z[np.arange(len(seen)), rows.guess[seen]] = np.maximum(odds + np.log(max(n_classes - 1, 1)), 1e-6)
    weight = None if rows.given_weight is None else rows.given_weight[seen]
    with quiet():  # the fit of the members has warned already
        model = ClassWise(PlattScaling(pool=True), gamma="bayes")
        last = fit_step(model, FitData(Rows(z, rows.y[seen], rows.guess[seen], weight), g))
    same = PlattFamily().start(n_classes)
    last.parameters_, last.center_ = (
        same + way * (theta - same) for theta in (last.parameters_, last.center_)
    )
    last.gamma_, last.choice_ = way * last.gamma_, None
    return last


def _behind(first: Any, last: Any) -> Chain:
    """Two fitted calibrators, one after the other."""
    chain = Chain([first, last])
    chain.steps_ = [first, last]
    chain.n_features_in_ = last.n_features_in_
    return chain


def _enough(rows: Rows) -> IntArray | slice:
    """Rows to cross-validate: all, or of very many a part that the order of rows does not change."""
    n, k = rows.z.shape
    parts = n // max(_ENOUGH, _ENOUGH_A_CLASS * k)
    if parts < 2:
        return slice(None)
    # Drawn with another salt than folds are, or the rows of a part would lie in few of the folds.
    return np.flatnonzero(folds_of(TemperatureProblem(rows, rows.guess, k), parts, salt=_SAMPLE_SALT) == 0)


def _cross_validate(candidates: dict[str, Any], data: FitData, n_folds: int) -> tuple[Float, Float, Float]:
    """Every row by every candidate fitted without that row's fold: NLL, and the two sides of its odds."""
    rows, g = data.in_memory, data.groups
    fold = folds_of(TemperatureProblem(rows, rows.guess, rows.z.shape[1], data.fold_groups), n_folds)
    nll, leads, rest = np.zeros((3, len(candidates), len(rows)))
    for f in np.unique(fold):
        test = np.flatnonzero(fold == f)
        # A single row leaves nothing to learn from: judge on what there is.
        train = np.flatnonzero(fold != f) if len(test) < len(rows) else test
        if g is not None:  # a group with all its rows in this fold cannot be judged
            test = test[np.isin(g[test], g[train])]
        if not test.size:
            continue
        with quiet(Warning):  # the fit on all rows warns
            trial = _Fold(data.take(train), rows.z[test], None if g is None else g[test])
            for i, candidate in enumerate(candidates.values()):
                p = trial.predict(candidate)
                p_true, leads[i, test], rest[i, test] = _sides(p, rows.y[test], rows.guess[test])
                nll[i, test] = -np.log(np.maximum(p_true, _LEAST_P))
    return nll, leads, rest


def _sides(p: FloatArray, y: CodeArray, guess: CodeArray) -> tuple[Float, Float, Float]:
    """Probability of the label, of the predicted class, and of all but that (summed: 1 − p̂ would round)."""
    each, others = np.arange(len(p)), p.astype(np.float64)  # a copy: it may be someone else's array
    p_true, leads = others[each, y], others[each, guess]
    others[each, guess] = 0
    return p_true, leads, np.maximum(others.sum(axis=1), _LEAST_P)


class _Fold:
    """Fits on some rows, judged on others; chains that begin with the same object share its fit."""

    def __init__(self, data: FitData, unseen: FloatArray, unseen_groups: NDArray[Any] | None) -> None:
        self.data, self.unseen, self.unseen_groups = data, unseen, unseen_groups
        self.begun: dict[int, tuple[FitData, FloatArray]] = {}

    def predict(self, candidate: Any) -> FloatArray:
        """Probabilities of the unseen rows."""
        if not isinstance(candidate, Chain) or len(candidate.steps) < 2:
            return predict_step(fit_step(candidate, self.data), self.unseen, self.unseen_groups)
        first, *later = candidate.steps
        if id(first) not in self.begun:
            fitted = fit_step(first, self.data)
            seen = self.data.with_logits(pass_on(fitted, self.data.in_memory.z, self.data.groups))
            self.begun[id(first)] = seen, pass_on(fitted, self.unseen, self.unseen_groups)
        seen, unseen = self.begun[id(first)]
        rest = later[0] if len(later) == 1 else Chain(later)
        return predict_step(fit_step(rest, seen), unseen, self.unseen_groups)


def _cautious(trial: _Trial, weights: Float, simple: int) -> tuple[Float, float]:
    """Draw the weights to one temperature as far as the gain over it may be chance, and add the identity.

    The gain g is shrunk as James and Stein do, by the trust ``1 − (error / g)²``, which is returned, too,
    after what fitting the weights to these rows adds to it. The identity receives one pseudo-observation of
    weight, as insurance against errors that these rows do not show.
    """
    heldout, n = trial.nll, trial.n_independent
    gain = heldout[simple] + np.log(weights @ np.exp(-heldout))
    mean = float(gain @ trial.share) - (np.count_nonzero(weights) - 1) / n
    error = trial.standard_error(gain)
    trust = max(0.0, 1 - (error / mean) ** 2) if mean > 0 else 0.0
    kept = np.asarray(trust * weights)
    kept[simple] += 1 - trust
    kept *= 1 - 1 / (n + 2)
    kept[0] += 1 / (n + 2)
    return kept, trust


def _stack(heldout: Float, share: Float, best: Float, n: float) -> Float:
    """Weights (M,) of the mixture with the least NLL on `n` left-out rows, as if each member had a row more.

    That row (a Dirichlet prior) keeps candidates that are all but equal from being chosen between by chance.
    """
    likelihood = np.exp(-(heldout - heldout.min(axis=0)))
    n_members = len(heldout)
    prior = 1 / n

    def value(w: Float) -> tuple[float, Float]:
        w = np.maximum(w, 1e-12)
        mixed = w @ likelihood
        loss = -float(share @ np.log(mixed)) - prior * float(np.log(w).sum())
        return loss, -(likelihood / mixed) @ share - prior / w

    together = {"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like}
    found = minimize(
        *(value, np.full(n_members, 1 / n_members)),
        jac=True, method="SLSQP", bounds=[(0, 1)] * n_members, constraints=together,
        options={"maxiter": 300, "ftol": 1e-12},
    )  # fmt: skip
    best_weights = _polish(np.maximum(found.x, 1e-9), likelihood, share, prior)
    weights = np.where(best_weights < _LEAST, 0, best_weights)
    return np.asarray(weights / weights.sum()) if weights.any() else best


def _polish(w: Float, likelihood: Float, share: Float, prior: float) -> Float:
    """Take Newton steps to the optimum of the strictly convex problem of :func:`_stack`.

    The solver stops where the loss is flat to rounding, and where that is depends on the order of the rows.
    """
    w = w / w.sum()
    for _ in range(_NEWTON_STEPS):
        ratio = likelihood / (w @ likelihood)
        slope = -(ratio @ share) - prior / w
        bend = (ratio * share) @ ratio.T + np.diag(prior / w**2)
        toward, ones = np.linalg.solve(bend, np.stack([slope, np.ones_like(w)], axis=1)).T
        step = toward - ones * (toward.sum() / ones.sum())  # weights still sum to 1
        down = step > 0
        length = min(1.0, 0.5 * float((w[down] / step[down]).min())) if down.any() else 1.0
        w = w - length * step
        if np.abs(step).max() < _SETTLED:
            break
    return np.asarray(w)


def _name(names: list[str], weights: Float, members: list[Any]) -> str:
    """Members with their shares; traces are left out."""
    seen = [i for i in members if weights[i] >= 0.005]
    if len(seen) == 1:
        return str(names[seen[0]])
    return "; ".join(f"{weights[i]:.0%} {names[i]}" for i in seen)


def _preserves(calibrator: Any) -> bool:
    return bool(getattr(calibrator, "preserves_decision", False))
