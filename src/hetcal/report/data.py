"""The numbers of a report: one frozen result from which every format is written."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._typing import Float
from hetcal.diagnosis import CONSISTENT, OVER, TOO_FEW, UNDER, ClassDiagnosis, Diagnosis
from hetcal.metrics import Evaluation
from hetcal.metrics.binning import Cells
from hetcal.metrics.evaluation import as_plain
from hetcal.stacks import leading

__all__ = [
    "FLOORED",
    "GammaPath",
    "GroupRow",
    "MethodRow",
    "Overall",
    "ReportData",
    "Settings",
    "Settling",
    "Training",
]

FLOORED = ("ece", "max_ece", "avg_ece")  # the metrics that have a noise floor


@dataclass(frozen=True, eq=False)
class MethodRow:
    """One method on the judged rows: short name, what it is, its numbers, share of decisions changed."""

    name: str
    meaning: str
    evaluation: Evaluation
    changed: float

    def to_dict(self) -> dict[str, Any]:
        """Numbers of one row of the table, ready for JSON."""
        e = self.evaluation
        values = {m: getattr(e, m) for m in ("accuracy", "nll", "brier", *FLOORED)}
        floors = {f"{m}_floor": e.floor[m] for m in FLOORED}
        return {
            "method": self.name,
            "meaning": self.meaning,
            **values,
            **floors,
            "decisions_changed": self.changed,
        }


@dataclass(frozen=True)
class Overall:
    """Confidence against accuracy over all judged rows; the interval is for their difference in general."""

    confidence: float
    accuracy: float
    gap: float
    low: float
    high: float


@dataclass(frozen=True)
class GroupRow:
    """Rows of one group, before and after the recommended calibrator; ECE beside its floor."""

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
    """Inverse temperatures as Γ grows from one for all to one for each class.

    Attributes
    ----------
    gamma : (G,) array from 0 to inf
    alpha : (G, K) array
    alpha0 : (G,) array, the centre at every Γ
    n_fit : (K,) rows that each class was fitted on
    at_bound : (K,) bool, classes whose own optimum has no finite value
    chosen : Γ that cross-validation picks
    """

    gamma: Float
    alpha: Float
    alpha0: Float
    n_fit: NDArray[np.int64]
    at_bound: NDArray[np.bool_]
    chosen: float

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, with "inf" for the last Γ, which JSON has no number for."""
        return {
            "gamma": [g if np.isfinite(g) else "inf" for g in self.gamma.tolist()],
            "alpha": np.round(self.alpha, 5).tolist(),
            "alpha0": np.round(self.alpha0, 5).tolist(),
            "at_bound": np.flatnonzero(self.at_bound).tolist(),
            "chosen": self.chosen if np.isfinite(self.chosen) else "inf",
        }


@dataclass(frozen=True, eq=False)
class Training:
    """Training rows per class (K,), and their rank correlation with the gap over the predicted classes."""

    counts: Float
    correlation: float
    p_value: float


@dataclass(frozen=True)
class Settling:
    """What it takes to settle the classes that have too few rows.

    Attributes
    ----------
    undecided : classes with too few rows
    unseen : of these, classes that no row is predicted as, for which no number can be given
    rows : mapping of share of the other undecided classes to further rows, drawn like those at hand,
        that settle it
    """

    undecided: int
    unseen: int
    rows: Mapping[str, int]


@dataclass(frozen=True)
class Settings:
    """How the numbers were made; `embedded` for logits that come with the package."""

    source: str
    from_file: bool
    embedded: bool
    n_fit: int
    n_judged: int
    n_bins: int
    seed: int
    cross_fitted: bool
    options: tuple[str, ...]
    versions: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class ReportData:
    """All numbers of a report.

    Attributes
    ----------
    title, about : str
    names : K class names
    overall : confidence against accuracy over all rows
    methods : the rows of the comparison
    chosen : what the recommended calibrator is made of, as ``AutoCalibrator.best_name_`` has it
    candidates : its table of candidates: cross-validated scores, weights and what they are
    diagnosis, diagnosis_after : per class, before and after the recommended calibrator
    cells, cells_after : (K, M) sums per predicted class and confidence bin
    gap_noise : (K,) half width of the range that holds 95% of the gaps of a perfectly calibrated class
    path : class-wise temperatures over Γ
    groups : by group, or empty
    training : rows that the classes were trained on, or None
    settling : rows that undecided classes need
    settings : how it was computed
    notes : what the fits warned about
    """

    title: str
    about: str
    names: tuple[str, ...]
    overall: Overall
    methods: tuple[MethodRow, ...]
    chosen: str
    candidates: tuple[Mapping[str, Any], ...]
    diagnosis: Diagnosis
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
        """The uncalibrated model."""
        return self.methods[0].evaluation

    @property
    def after(self) -> Evaluation:
        """The recommended calibrator."""
        return self.methods[-1].evaluation

    @property
    def members(self) -> list[Mapping[str, Any]]:
        """Candidates that make up the recommended calibrator, the heaviest first; traces left out."""
        return leading(self.candidates)

    @property
    def worst(self) -> ClassDiagnosis:
        """Class with the largest ECE: the one that max-ECE is of.

        It is the largest of many, so that its fair floor is that of max-ECE, not the one of the class alone.
        """
        return self.diagnosis.classes[int(np.nanargmax(self.before.classes.ece))]

    @property
    def clearest(self) -> ClassDiagnosis | None:
        """Class farthest above its own floor among those called wrong; None if no class is."""
        wrong = [c for c in self.diagnosis.classes if c.kind in (OVER, UNDER)]
        return max(wrong, key=lambda c: c.ece - c.floor, default=None)

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """Class names, those that repeat with the number of the class."""
        times = Counter(self.names)
        return tuple(f"{name} [{k}]" if times[name] > 1 else name for k, name in enumerate(self.names))

    @property
    def n_wrong(self) -> int:
        """Number of classes called over- or under-confident."""
        return self.diagnosis.summary[OVER] + self.diagnosis.summary[UNDER]

    @property
    def counts(self) -> dict[str, int]:
        """Number of classes per kind of verdict."""
        return {kind: self.diagnosis.summary[kind] for kind in (OVER, UNDER, CONSISTENT, TOO_FEW)}

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON; None in place of nan."""
        settings = asdict(self.settings)
        value = {
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
            },
            "methods": [row.to_dict() for row in self.methods],
            "reliability": {"before": _pooled(self.cells), "after": _pooled(self.cells_after)},
            "classes": self._classes(),
            "gamma_path": self.path.to_dict(),
            "training": None if self.training is None else self._training(),
            "groups": [asdict(row) for row in self.groups],
            "settling": asdict(self.settling),
            "notes": list(self.notes),
            "settings": settings,
        }
        return dict(as_plain(value))

    def _worst(self) -> dict[str, Any]:
        worst, e = self.worst, self.before
        floors = {"floor": e.floor["max_ece"], "floor_q95": e.floor_q95["max_ece"]}
        head = {"name": worst.name, "index": worst.index, "ece": e.max_ece}
        return head | floors | {"verdict": worst.verdict}

    def _training(self) -> dict[str, float]:
        return (
            {"correlation": self.training.correlation, "p_value": self.training.p_value}
            if self.training
            else {}
        )

    def _classes(self) -> list[dict[str, Any]]:
        after, last = self.diagnosis_after.classes, self.path.alpha[-1]
        return [
            c.to_dict()
            | {
                "gap_after": a.signed_gap,
                "ece_after": a.ece,
                "floor_after": a.floor,
                "verdict_after": a.verdict,
            }
            | {"alpha": last[c.index]}
            | ({} if self.training is None else {"train_count": self.training.counts[c.index]})
            for c, a in zip(self.diagnosis.classes, after, strict=True)
        ]


def _pooled(cells: Cells) -> dict[str, Any]:
    """Reliability of the whole model, a list per column."""
    whole = cells.merged()
    count = whole.count[0]
    safe = np.where(count > 0, count, np.nan)
    return {
        "count": count.astype(int).tolist(),
        "confidence": (whole.confidence[0] / safe).tolist(),
        "accuracy": (whole.correct[0] / safe).tolist(),
    }
