"""The numbers of a report, in one frozen object from which every format is rendered."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._typing import Float
from hetcal.diagnosis import ClassDiagnosis, Diagnosis, Verdict
from hetcal.label_noise import Sensitivity
from hetcal.metrics import Evaluation
from hetcal.metrics.binning import Cells
from hetcal.metrics.evaluation import as_plain
from hetcal.report.describe_auto import leading_candidates
from hetcal.report.residual import Deviation, find_deviations

__all__ = [
    "FLOORED",
    "IDENTITY",
    "MISCALIBRATED",
    "Finding",
    "GammaPath",
    "GroupRow",
    "MethodRow",
    "Overall",
    "ReportData",
    "Settings",
    "Settling",
    "Training",
]

FLOORED = ("ece", "max_ece", "avg_ece")  # metrics with a noise floor (their values for a calibrated model)
MISCALIBRATED = (Verdict.OVER_CONFIDENT, Verdict.UNDER_CONFIDENT)
IDENTITY = "Identity"  # key of the identity among the candidates of AutoCalibrator


class Finding(StrEnum):
    """What the headline of a report is about."""

    FEW_ROWS = "too few rows"  # more than half of the classes have too few rows
    CLASSES = "miscalibrated classes"
    AVERAGE = "miscalibrated on average"  # over all rows, but not in any single class
    LEVELS = "miscalibrated at some confidence levels"  # but neither on average nor in any single class
    NOTHING = "nothing to fix"


@dataclass(frozen=True, eq=False)
class MethodRow:
    """Results of one method on the evaluated rows: name, description, metrics, share of changed decisions."""

    name: str
    meaning: str
    evaluation: Evaluation
    changed: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        e = self.evaluation
        values = {m: getattr(e, m) for m in ("accuracy", "nll", "brier", *FLOORED)}
        floors = {f"{m}_floor": e.floor[m] for m in FLOORED}
        names = {"method": self.name, "meaning": self.meaning}
        return {**names, **values, **floors, "decisions_changed": self.changed}


@dataclass(frozen=True)
class Overall:
    """Mean confidence and accuracy of the evaluated rows, and the gap between them with an interval."""

    confidence: float
    accuracy: float
    gap: float
    low: float
    high: float


@dataclass(frozen=True)
class GroupRow:
    """Metrics of one group before calibration and, with the suffix ``_after``, after calibration."""

    name: str
    n: int
    accuracy: float
    confidence: float
    signed_gap: float
    gap_low: float
    gap_high: float
    ece: float
    floor: float
    ece_after: float
    floor_after: float


@dataclass(frozen=True, eq=False)
class GammaPath:
    """Inverse temperatures of the classes for increasing Γ, which limits their distance from a common centre.

    At Γ = 0 they are all equal, and at Γ = inf each class is fitted separately.

    Attributes
    ----------
    gamma : (G,) array of the values of Γ, from 0 to inf
    alpha : (G, K) array of the inverse temperatures
    alpha0 : (G,) array, the centre of the classes' inverse temperatures for each Γ
    n_fit : (K,) int array, rows predicted as each class in the fitting set
    at_bound : (K,) bool array, classes whose separately fitted α is at a bound of the search range
    chosen : float, Γ selected by cross-validation
    """

    gamma: Float
    alpha: Float
    alpha0: Float
    n_fit: NDArray[np.int64]
    at_bound: NDArray[np.bool_]
    chosen: float

    def to_dict(self) -> dict[str, Any]:
        """Return values for JSON, which has no infinite numbers: an infinite Γ becomes ``"inf"``.

        α and α₀ are rounded to five decimals, `at_bound` becomes a list of class numbers, and `n_fit` is left
        out.
        """
        return {
            "gamma": [g if np.isfinite(g) else "inf" for g in self.gamma.tolist()],
            "alpha": np.round(self.alpha, 5).tolist(),
            "alpha0": np.round(self.alpha0, 5).tolist(),
            "at_bound": np.flatnonzero(self.at_bound).tolist(),
            "chosen": self.chosen if np.isfinite(self.chosen) else "inf",
        }


@dataclass(frozen=True, eq=False)
class Training:
    """Training rows per class (K,), and their rank correlation with the gaps of the predicted classes.

    The correlation and its p-value are nan if fewer than three classes are predicted, or if the counts or the
    gaps of the predicted classes are all equal.
    """

    counts: Float
    correlation: float
    p_value: float

    def to_dict(self) -> dict[str, float]:
        """Correlation and p-value without the counts, which the report lists with each class."""
        return {"correlation": self.correlation, "p_value": self.p_value}


@dataclass(frozen=True)
class Settling:
    """Additional rows needed for a verdict on the classes that have too few rows.

    Attributes
    ----------
    undecided : int, classes with too few rows
    unseen : int, undecided classes that are never predicted, for which no estimate exists
    rows : mapping of ``half``, ``most`` and ``all`` to a number of rows
        Additional rows from the same distribution after which half, nine in ten and all of the undecided
        classes are expected to have a verdict. Classes that are never predicted are not counted. The mapping
        is empty if there are no other undecided classes.
    """

    undecided: int
    unseen: int
    rows: Mapping[str, int]


@dataclass(frozen=True)
class Settings:
    """How the numbers were computed.

    `scores` is ``logits`` or ``probs``. `arguments` contains the names of the optional arguments of
    :func:`hetcal.make_report` that describe the data and were passed. `embedded` tells whether the data are
    an example from the package. `file_arguments` contains the arguments of `load_logits` that were passed
    besides the path, such as ``label_column``. `max_noise` is the largest noise rate of
    `ReportData.sensitivity`.
    """

    source: str
    scores: str
    from_file: bool
    embedded: bool
    n_fit: int
    n_judged: int
    n_bins: int
    n_redraws: int
    seed: int
    max_noise: float | None
    file_arguments: Mapping[str, str]
    cross_fitted: bool
    arguments: tuple[str, ...]
    versions: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class ReportData:
    """All numbers of a report.

    Attributes
    ----------
    title, about : str
    names : K class names
    overall : Overall
    methods : rows of the comparison, uncalibrated first and recommended last
    chosen : str, ``AutoCalibrator.best_name_``: members and weights of the recommended calibrator
    has_final_step : bool, whether a class-wise Platt step follows the mixture of candidates
    candidates : candidates with their cross-validated scores, weights and descriptions
    decision_cost : what it costs to keep decisions, ``AutoCalibrator.decision_cost_``; may be None
    diagnosis, diagnosis_after : verdicts on the classes before and after the recommended calibrator
    sensitivity : how the verdicts before calibration depend on wrong labels, or None if not requested
    cells, cells_after : Cells (K, M) before and after the recommended calibrator
        Number of rows, confidence and correct predictions, summed per predicted class and confidence bin.
    gap_noise : (K,) array
        Half-width of the range around 0 in which the gap of a calibrated class lies with probability 95%.
    path : class-wise temperatures for increasing Γ
    groups : one row per group, or empty
    training : training rows per class, or None
    settling : additional rows needed for a verdict on the undecided classes
    settings : how the numbers were computed
    notes : warnings of the fits
    """

    title: str
    about: str
    names: tuple[str, ...]
    overall: Overall
    methods: tuple[MethodRow, ...]
    chosen: str
    has_final_step: bool
    candidates: tuple[Mapping[str, Any], ...]
    decision_cost: Mapping[str, Any] | None
    diagnosis: Diagnosis
    sensitivity: Sensitivity | None
    diagnosis_after: Diagnosis
    cells: Cells
    cells_after: Cells
    gap_noise: Float
    path: GammaPath
    groups: tuple[GroupRow, ...]
    training: Training | None
    settling: Settling
    settings: Settings
    notes: tuple[str, ...]

    @property
    def before(self) -> Evaluation:
        """Evaluation of the uncalibrated model."""
        return self.methods[0].evaluation

    @property
    def after(self) -> Evaluation:
        """Evaluation of the recommended calibrator."""
        return self.methods[-1].evaluation

    @property
    def members(self) -> list[Mapping[str, Any]]:
        """Candidates with a non-negligible weight in the recommended calibrator, largest weight first."""
        return leading_candidates(self.candidates)

    @property
    def identity_is_best(self) -> bool:
        """Whether leaving the model uncalibrated is best by NLL.

        This is the case if the identity has the lowest cross-validated NLL of all candidates, and its NLL on
        the evaluated rows is no higher than that of the recommended calibrator.
        """
        best = min(self.candidates, key=lambda c: float(c["nll"]))
        return best["name"] == IDENTITY and self.after.nll >= self.before.nll

    @property
    def calibration_helps(self) -> bool:
        """Whether the recommended calibrator lowers ECE and `identity_is_best` is false."""
        return self.after.ece < self.before.ece and not self.identity_is_best

    @property
    def average_kind(self) -> Verdict:
        """Verdict on all rows together: consistent if the interval of their gap contains zero."""
        if self.overall.low > 0:
            return Verdict.OVER_CONFIDENT
        return Verdict.UNDER_CONFIDENT if self.overall.high < 0 else Verdict.CONSISTENT

    @property
    def finding(self) -> Finding:
        """What the headline is about: the first finding that applies, in the order of `Finding`."""
        if 2 * self.settling.undecided > len(self.names):
            return Finding.FEW_ROWS
        if self.n_wrong:
            return Finding.CLASSES
        if self.average_kind in MISCALIBRATED:
            return Finding.AVERAGE
        is_above_floor = self.before.ece > self.before.floor_q95["ece"]
        return Finding.LEVELS if is_above_floor else Finding.NOTHING

    @functools.cached_property
    def deviations(self) -> tuple[Deviation, ...]:
        """Confidence ranges in which a gap remains after the recommended calibrator.

        Empty if chance can explain the ECE after calibration, that is, if this ECE is at most the 95%
        quantile of the ECE of a calibrated model.
        """
        return self._deviations(self.after, self.cells_after)

    @functools.cached_property
    def deviations_before(self) -> tuple[Deviation, ...]:
        """Confidence ranges in which the uncalibrated model has a gap.

        Empty if chance can explain the ECE before calibration, that is, if this ECE is at most the 95%
        quantile of the ECE of a calibrated model.
        """
        return self._deviations(self.before, self.cells)

    @property
    def by_gap(self) -> list[ClassDiagnosis]:
        """Classes by descending size of the gap.

        Classes with too few rows follow, because chance could explain their gaps. Classes that are never
        predicted come last.
        """

        def rank(c: ClassDiagnosis) -> tuple[bool, float]:
            return c.kind is Verdict.TOO_FEW_ROWS, -abs(c.signed_gap) if c.n else 1.0

        return sorted(self.diagnosis.classes, key=rank)

    @property
    def worst(self) -> ClassDiagnosis:
        """Class with the largest ECE before calibration.

        This ECE, called max-ECE, is the largest of many. Compare it with the noise floor of max-ECE, not with
        that of the class.
        """
        return self.diagnosis.classes[int(np.nanargmax(self.before.classes.ece))]

    @property
    def clearest(self) -> ClassDiagnosis | None:
        """Miscalibrated class whose ECE exceeds its noise floor the most; None if none is miscalibrated."""
        miscalibrated = (c for c in self.diagnosis.classes if c.kind in MISCALIBRATED)
        return max(miscalibrated, key=lambda c: c.ece - c.floor, default=None)

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """Class names; the class index is appended to names that occur more than once."""
        occurrences = Counter(self.names)
        return tuple(f"{name} [{k}]" if occurrences[name] > 1 else name for k, name in enumerate(self.names))

    @property
    def overconfident(self) -> list[ClassDiagnosis]:
        """Over-confident classes by descending gap."""
        return [c for c in self.by_gap if c.kind is Verdict.OVER_CONFIDENT]

    @property
    def n_wrong(self) -> int:
        """Number of over- or under-confident classes before calibration."""
        return sum(self.counts[kind] for kind in MISCALIBRATED)

    @property
    def n_wrong_after(self) -> int:
        """Number of over- or under-confident classes after calibration."""
        return sum(self.diagnosis_after.summary[kind] for kind in MISCALIBRATED)

    @property
    def counts(self) -> dict[str, int]:
        """Number of classes per verdict before calibration."""
        return self.diagnosis.summary

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON; None replaces nan."""
        values = {
            "title": self.title,
            "about": self.about,
            "accuracy": self.before.accuracy,
            "ece": self.before.ece,
            "ece_floor": self.before.floor["ece"],
            "worst_class": self._worst(),
            "overall": asdict(self.overall),
            "summary": self.counts,
            "summary_after": self.diagnosis_after.summary,
            "recommended": {
                "method": self.methods[-1].name,
                "chosen": self.chosen,
                "members": {c["name"]: c["weight"] for c in self.members},
                "decisions_changed": self.methods[-1].changed,
                "candidates": list(self.candidates),
                "decision_cost": None if self.decision_cost is None else dict(self.decision_cost),
            },
            "methods": [row.to_dict() for row in self.methods],
            "reliability": {"before": _pooled(self.cells), "after": _pooled(self.cells_after)},
            "deviations_before": [asdict(deviation) for deviation in self.deviations_before],
            "deviations_after": [asdict(deviation) for deviation in self.deviations],
            "classes": self._classes(),
            "gamma_path": self.path.to_dict(),
            "training": None if self.training is None else self.training.to_dict(),
            "groups": [asdict(row) for row in self.groups],
            "settling": asdict(self.settling),
            "notes": list(self.notes),
            "settings": asdict(self.settings),
        }
        return dict(as_plain(values))

    def _deviations(self, evaluation: Evaluation, cells: Cells) -> tuple[Deviation, ...]:
        is_above_floor = evaluation.ece > evaluation.floor_q95["ece"]
        return find_deviations(cells, self.diagnosis.level) if is_above_floor else ()

    def _worst(self) -> dict[str, Any]:
        worst, e = self.worst, self.before
        floors = {"floor": e.floor["max_ece"], "floor_q95": e.floor_q95["max_ece"]}
        head = {"name": worst.name, "index": worst.index, "ece": e.max_ece}
        return head | floors | {"verdict": worst.verdict}

    def _classes(self) -> list[dict[str, Any]]:
        rows = []
        for before, after in zip(self.diagnosis.classes, self.diagnosis_after.classes, strict=True):
            row = before.to_dict() | {
                "gap_after": after.signed_gap,
                "ece_after": after.ece,
                "floor_after": after.floor,
                "verdict_after": after.verdict,
                "alpha": self.path.alpha[-1, before.index],
            }
            if self.sensitivity is not None:
                row["flip_rate"] = self.sensitivity.flip_rate[before.index]
            if self.training is not None:
                row["train_count"] = self.training.counts[before.index]
            rows.append(row)
        return rows


def _pooled(cells: Cells) -> dict[str, Any]:
    """Number of rows, mean confidence and accuracy of all rows in each bin, as lists over the bins."""
    pooled = cells.merged()
    count = pooled.count[0]
    safe_count = np.where(count > 0, count, np.nan)
    return {
        "count": count.astype(int).tolist(),
        "confidence": (pooled.confidence[0] / safe_count).tolist(),
        "accuracy": (pooled.correct[0] / safe_count).tolist(),
    }
