"""All metrics of one set of predictions, each beside its floor, in one frozen result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcal._columns import class_names_of, column_names, labels_by_number
from hetcal._display import display_name
from hetcal._numeric.blocks import RowSource, is_source
from hetcal._numeric.passes import scaled_softmax
from hetcal._numeric.probabilities import top_label
from hetcal._typing import FloatArray, IntArray
from hetcal._validate import (
    GIVE_PREDICTED,
    NAME_COLUMNS,
    as_generator,
    check_labels,
    check_logits,
    check_names,
    check_probs,
)
from hetcal._warnings import warn_fitted_rows
from hetcal.metrics.floors import NoiseFloor, by_sub_cells, floor_of, floor_of_sub_cells
from hetcal.metrics.reliability import (
    Cells,
    TopLabel,
    calibration_error,
    check_positive,
    reduce_to_top_label,
)
from hetcal.metrics.scores import (
    as_binary,
    class_cells,
    debiased_error,
    mean_brier,
    mean_nll,
    smooth_error,
)
from hetcal.metrics.smooth import smooth_error_on
from hetcal.metrics.subcells import SubBins
from hetcal.metrics.totals import Totals, totals_of, totals_of_source

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ClassTable", "Evaluation", "as_frame", "as_plain", "evaluate"]

_FLOORED = ("ece", "max_ece", "avg_ece")
_SHOWN = 5  # classes in the printed table


@dataclass(frozen=True, eq=False)
class ClassTable:
    """One entry per class, of the rows predicted as that class; nan where there are none.

    Attributes
    ----------
    name : tuple of K str
    n : (K,) int array
        Rows predicted as the class.
    accuracy, confidence : (K,) arrays
    signed_gap : (K,) array
        Confidence − accuracy.
    ece, floor, floor_q95 : (K,) arrays
        ECE_k, with the mean and the 95% quantile of what perfect calibration would show.
    """

    name: tuple[str, ...]
    n: IntArray
    accuracy: NDArray[np.float64]
    confidence: NDArray[np.float64]
    signed_gap: NDArray[np.float64]
    ece: NDArray[np.float64]
    floor: NDArray[np.float64]
    floor_q95: NDArray[np.float64]

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per class, of plain values."""
        names = [f.name for f in fields(self)]
        columns = (as_plain(getattr(self, name)) for name in names)
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What :func:`evaluate` finds.

    Attributes
    ----------
    n, n_classes, n_bins : int
    accuracy, nll, brier : float
    n_zero : int
        Labels that were given probability 0. Their NLL would be infinite; each zero counts as half of the
        smallest positive probability.
    ece, max_ece, avg_ece, smooth_ece, debiased_ece : float
    worst_class : str
        The class with the largest ECE_k.
    floor, floor_q95 : mapping of ``ece``, ``max_ece`` and ``avg_ece`` to float
        Mean and 95% quantile of the metric for a perfectly calibrated model with these confidences.
    classes : ClassTable
    """

    n: int
    n_classes: int
    n_bins: int
    accuracy: float
    nll: float
    brier: float
    n_zero: int
    ece: float
    max_ece: float
    avg_ece: float
    smooth_ece: float
    debiased_ece: float
    worst_class: str
    floor: Mapping[str, float]
    floor_q95: Mapping[str, float]
    classes: ClassTable

    @property
    def excess(self) -> dict[str, float]:
        """Metric − mean of its floor, for ``ece``, ``max_ece`` and ``avg_ece``."""
        return {name: getattr(self, name) - self.floor[name] for name in _FLOORED}

    def to_frame(self) -> pd.DataFrame:
        """Classes as a pandas data frame, a row each."""
        return as_frame(self.classes.rows())

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python values, ready for JSON; None in place of nan."""
        values = {f.name: as_plain(getattr(self, f.name)) for f in fields(self) if f.name != "classes"}
        return values | {"excess": self.excess, "classes": self.classes.rows()}

    def __str__(self) -> str:
        lines = [
            f"{self.n:,} rows, {self.n_classes:,} classes, {self.n_bins} bins",
            f"accuracy {self.accuracy:.4f}   nll {self.nll:.4f}   brier {self.brier:.4f}",
            *([f"{self.n_zero:,} labels had probability 0"] if self.n_zero else []),
            "",
            f"{'metric':<14}{'value':>8}{'floor':>8}{'floor 95%':>11}{'excess':>9}",
        ]
        for name in _FLOORED:
            value, floor, q95 = getattr(self, name), self.floor[name], self.floor_q95[name]
            lines.append(f"{name:<14}{value:>8.4f}{floor:>8.4f}{q95:>11.4f}{value - floor:>+9.4f}")
        lines += [f"{name:<14}{getattr(self, name):>8.4f}" for name in ("smooth_ece", "debiased_ece")]
        return "\n".join(lines + self._class_lines())

    def _class_lines(self) -> list[str]:
        table = self.classes
        order = np.argsort(np.where(table.n > 0, table.floor - table.ece, np.inf), kind="stable")
        order = order[: min(_SHOWN, int((table.n > 0).sum()))]
        names = [display_name(table.name[k]) for k in order]
        width = max(14, 2 + max(map(len, names)))
        title = "class" if len(order) == self.n_classes else "worst classes"
        head = f"{title:<{width}}{'rows':>8}{'acc.':>8}{'conf.':>8}{'gap':>9}"
        note = "floors of single classes; compare the largest ece with the floor of max_ece"
        end = [] if len(order) == self.n_classes else [note]
        lines = [
            f"{name:<{width}}{table.n[k]:>8,}{table.accuracy[k]:>8.3f}{table.confidence[k]:>8.3f}"
            f"{table.signed_gap[k]:>+9.3f}{table.ece[k]:>8.3f}{table.floor[k]:>8.3f}{table.floor_q95[k]:>11.3f}"
            for name, k in zip(names, order, strict=True)
        ]
        return ["", head + f"{'ece':>8}{'floor':>8}{'floor 95%':>11}", *lines, *end]


def evaluate(
    probs: Any = None,
    labels: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    *,
    logits: Any = None,
    calibrator: Any = None,
    groups: ArrayLike | None = None,
    predicted: ArrayLike | None = None,
    n_bins: int = 15,
    n_redraws: int = 200,
    rng: np.random.Generator | int = 0,
) -> Evaluation:
    """Accuracy, scores and calibration errors, overall and per class, each beside its noise floor.

    Parameters
    ----------
    probs : (n, K) probabilities, or the (n,) confidence together with `predicted`, or batches
        Batches of probabilities (:class:`hetcal.Batches`, or what a calibrator's ``predict_proba`` makes of
        batches of logits) are gone over once. Their numbers are those of the rows in memory; only the redraws
        of their floor are always made as :func:`~hetcal.metrics.noise_floor` makes them for many rows.
    labels : (n,) true classes, as integers or names; left out for batches, which hold them
    class_names : K texts
        By default the columns' names of a data frame, or the class numbers. In the top-1 form their number
        is K.
    logits : (n, K) unnormalised scores, in place of `probs`
    calibrator : fitted calibrator, optional
        Judge what it makes of `logits` or `probs`. A warning says so where these are rows that it was fitted
        on.
    groups : (n,) group of every row, for a calibrator that was fitted by group
    predicted : (n,) predicted classes, for top-1 dumps
    n_bins : number of equal-width confidence bins
    n_redraws : redraws for the floor, see :func:`~hetcal.metrics.noise_floor`
    rng : generator or seed of the redraws

    Examples
    --------
    >>> result = evaluate([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]], [0, 1, 1], ["cat", "dog"], n_bins=10)
    >>> result.worst_class, round(result.max_ece, 3), result.classes.n.tolist()
    ('cat', 0.4, [2, 1])
    >>> result.to_dict()["classes"][1]["name"]
    'dog'
    """
    check_positive(n_bins, "n_bins")
    check_positive(n_redraws, "n_redraws")
    redraws = _Redraws(n_redraws, as_generator(rng))
    if predicted is None:
        given = probs if logits is None else logits
        labels = labels_by_number(labels, column_names(given), class_names)
        class_names = _names_of(given) if class_names is None else class_names
    if calibrator is not None or logits is not None:
        if predicted is not None:
            raise ValueError(
                "predicted must be left out beside logits or a calibrator, got both; it goes with confidences"
            )
        probs = _probabilities(calibrator, logits, probs, labels, class_names, groups)
    elif probs is None:
        raise ValueError("probs must be given, got None; pass probabilities, or scores as logits=")
    if is_source(probs):
        names = check_names(class_names, probs.n_classes)
        found = _in_batches(probs, labels, predicted, n_bins, redraws)
    elif predicted is None:
        found = _in_memory(probs, labels, class_names, SubBins(n_bins), redraws)
        names = check_names(class_names, len(found.by_class.count))
    else:
        found = _top1(probs, labels, predicted, class_names, n_bins, redraws)
        names = check_names(class_names, len(found.by_class.count))
    return _sum_up(names, found)


def _probabilities(
    calibrator: Any, logits: Any, probs: Any, labels: Any, class_names: Any, groups: Any
) -> Any:
    """Probabilities to judge: a softmax of logits, or what a calibrator gives."""
    if calibrator is None:
        if probs is not None:
            raise ValueError("probs must be left out where logits are given, got both; pass one of them")
        if is_source(logits):
            check_logits(logits.first().rows.z, probs_remedy="pass batches of probabilities as probs=")
            return logits.transform(_softmax_of)
        return _softmax_of(check_logits(logits), None)
    if not hasattr(calibrator, "_fitted_share"):
        raise TypeError(
            f"calibrator must be a fitted calibrator of hetcal, got {calibrator!r:.60}; evaluate the "
            "probabilities of other models as probs="
        )
    found = calibrator.predict_proba(logits, probs=probs, groups=groups, class_names=class_names)
    if labels is not None:
        warn_fitted_rows(calibrator._fitted_share(logits, probs, labels, class_names))
    return found


def _names_of(given: Any) -> list[str] | None:
    """Class names that the columns of a table, or of batches, have."""
    if is_source(given):
        names: list[str] | None = given.class_names
        return names
    columns = column_names(given)
    return None if columns is None else class_names_of(columns)


def _softmax_of(z: FloatArray, groups: Any) -> FloatArray:  # noqa: ARG001
    return scaled_softmax(z, np.ones(len(z)))


def as_plain(value: Any) -> Any:
    """Plain Python in place of numpy, and None in place of nan, all the way down."""
    if isinstance(value, np.ndarray | np.generic):
        return as_plain(value.tolist())
    if isinstance(value, Mapping):
        return {key: as_plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(v) for v in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def as_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows as a pandas data frame."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError('to_frame needs pandas; install it with pip install "hetcal[files]"') from error
    return pd.DataFrame(list(rows))


@dataclass(frozen=True, eq=False)
class _Redraws:
    n_redraws: int
    rng: np.random.Generator

    def of(self, top: TopLabel, n_bins: int) -> NoiseFloor:
        return floor_of(top, n_bins=n_bins, n_redraws=self.n_redraws, quantiles=(0.95,), rng=self.rng)

    def of_totals(self, totals: Totals) -> NoiseFloor:
        cells = totals.sub_cells()
        return floor_of_sub_cells(cells, n_redraws=self.n_redraws, quantiles=(0.95,), rng=self.rng)


@dataclass(frozen=True, eq=False)
class _Found:
    """What an evaluation is made of, wherever the rows were."""

    by_class: Cells
    nll: float
    brier: float
    n_zero: int
    smooth_ece: float
    floor: NoiseFloor


def _in_batches(source: RowSource, labels: Any, predicted: Any, n_bins: int, redraws: _Redraws) -> _Found:
    extra = [name for name, value in (("labels", labels), ("predicted", predicted)) if value is not None]
    if extra:
        raise ValueError(f"{extra[0]} must be left out beside rows in batches, which hold their own")
    return _of_totals(totals_of_source(source, n_bins), redraws)


def _in_memory(
    probs: ArrayLike, labels: ArrayLike | None, class_names: Any, bins: SubBins, redraws: _Redraws
) -> _Found:
    p = check_probs(probs, shape_remedy=GIVE_PREDICTED)
    names = None if class_names is None else check_names(class_names, p.shape[1])
    y = check_labels(
        labels, n_rows=len(p), n_classes=p.shape[1], class_names=names, names_remedy=NAME_COLUMNS
    )
    if by_sub_cells(len(p), p.shape[1], bins, redraws.n_redraws):
        return _of_totals(totals_of(p, y, bins), redraws)
    confidence, guess = top_label(p)
    top = TopLabel(confidence, guess, guess == y, p.shape[1])
    n_zero = int(np.count_nonzero(p[np.arange(len(p)), y] == 0))
    return _of_top(top, mean_nll(p, y), mean_brier(p, y), n_zero, bins.n_bins, redraws)


def _top1(
    confidence: ArrayLike,
    labels: Any,
    predicted: ArrayLike,
    class_names: ArrayLike | None,
    n_bins: int,
    redraws: _Redraws,
) -> _Found:
    top = reduce_to_top_label(confidence, labels, predicted)
    if class_names is not None:
        top = replace(top, n_classes=max(top.n_classes, np.size(np.asarray(class_names, dtype=object))))
    p, y = as_binary(top)
    n_zero = int(np.count_nonzero(p[np.arange(len(p)), y] == 0))
    return _of_top(top, mean_nll(p, y), mean_brier(p, y) / 2, n_zero, n_bins, redraws)


def _of_top(top: TopLabel, nll: float, brier: float, n_zero: int, n_bins: int, redraws: _Redraws) -> _Found:
    by_class = class_cells(top, n_bins, "width")
    return _Found(by_class, nll, brier, n_zero, smooth_error(top), redraws.of(top, n_bins))


def _of_totals(totals: Totals, redraws: _Redraws) -> _Found:
    smooth = smooth_error_on(totals.grid, totals.n)
    brier, n_zero = max(0.0, float(totals.scores[1]) / totals.n), int(totals.scores[2])
    return _Found(totals.cells(), totals.nll, brier, n_zero, smooth, redraws.of_totals(totals))


def _sum_up(names: list[str], found: _Found) -> Evaluation:
    floor, pooled = found.floor, found.by_class.merged()
    classes = _class_table(names, found.by_class, floor)
    return Evaluation(
        n=int(pooled.count.sum()),
        n_classes=len(names),
        n_bins=pooled.count.shape[1],
        accuracy=float(pooled.correct.sum() / pooled.count.sum()),
        nll=found.nll,
        brier=found.brier,
        n_zero=found.n_zero,
        ece=float(calibration_error(pooled.count, pooled.residual)[0]),
        max_ece=float(np.nanmax(classes.ece)),
        avg_ece=float(np.nanmean(classes.ece)),
        smooth_ece=found.smooth_ece,
        debiased_ece=debiased_error(pooled, "l1"),
        worst_class=names[int(np.nanargmax(classes.ece))],
        floor={name: float(floor.mean[name]) for name in _FLOORED},
        floor_q95={name: float(floor.quantiles[name][0]) for name in _FLOORED},
        classes=classes,
    )


def _class_table(names: list[str], by_class: Cells, floor: NoiseFloor) -> ClassTable:
    n = by_class.count.sum(axis=1)
    safe = np.where(n > 0, n, np.nan)
    accuracy, confidence = by_class.correct.sum(axis=1) / safe, by_class.confidence.sum(axis=1) / safe
    return ClassTable(
        name=tuple(names),
        n=n.astype(np.int64),
        accuracy=accuracy,
        confidence=confidence,
        signed_gap=confidence - accuracy,
        ece=calibration_error(by_class.count, by_class.residual),
        floor=np.asarray(floor.mean["class_ece"]),
        floor_q95=floor.quantiles["class_ece"][0],
    )
