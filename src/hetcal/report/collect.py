"""Compute the numbers of a report from logits."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from hetcal import _version, compare
from hetcal._binary_probs import two_columns
from hetcal._columns import class_names_of, column_names, labels_by_number
from hetcal._format import round_up, share
from hetcal._numeric.probabilities import log_probs, probability_floor
from hetcal._numeric.rows import prepare
from hetcal._numeric.source import MemorySource
from hetcal._numeric.temperatures import fit_cross_validated, fit_path
from hetcal._typing import Float, FloatArray, IntArray
from hetcal._validate import (
    NAME_COLUMNS,
    as_generator,
    check_fold_groups,
    check_groups,
    check_labels,
    check_logits,
    check_names,
    check_probs,
    one_of,
)
from hetcal._warnings import collect_warnings, emit, warn_fitted_rows
from hetcal.calibrators import (
    AutoCalibrator,
    ClassWiseTemperatureScaling,
    Identity,
    TemperatureScaling,
    VectorScaling,
)
from hetcal.diagnosis import Diagnosis, Verdict, diagnose
from hetcal.label_noise import Sensitivity, sensitivity
from hetcal.logits_files import LogitsFile, Split
from hetcal.metrics import evaluate
from hetcal.metrics.binning import TopLabel, calibration_error, class_cells, group_sum, reduce_to_top_label
from hetcal.metrics.floors import floor_of
from hetcal.metrics.intervals import gap_bounds
from hetcal.report.data import (
    IDENTITY,
    GammaPath,
    GroupRow,
    MethodRow,
    Overall,
    ReportData,
    Settings,
    Settling,
    Training,
)
from hetcal.report.describe_auto import FINAL_STEP, count_members, leading_candidates

__all__ = ["as_logits_file", "collect_data"]

# Γ limits the distance between the inverse temperature α of each class and a common centre.
_STEPS = 14  # number of positive finite values of Γ for which class-wise temperatures are fitted
# The largest finite Γ is this quantile of the distances between separately fitted α and the shared α.
_UNCONSTRAINED = 0.97
_SCORES = {"logits": "logits", "probs": "probabilities"}  # what a source without a name is called
_LEVEL = 0.95  # confidence level of the intervals
_N_REDRAWS = 200  # number of simulations of perfect calibration
# Name in `Settling.rows` -> fraction of the undecided classes that get a verdict
_SETTLED = {"half": 0.5, "most": 0.9, "all": 1.0}
_MAX_VS_LOGITS = 10_000_000  # vector scaling can take minutes with more logits
_NO_VS = (
    "vector scaling was skipped, because it can take minutes for {:,} rows and {:,} classes; use "
    "hetcal fit --method vs to fit it"
)
_METHODS: dict[str, tuple[str, Any]] = {
    "Uncal": ("uncalibrated", Identity()),
    "TS": ("temperature scaling", TemperatureScaling()),
    "VS": ("vector scaling", VectorScaling()),
    "CTS": ("class-wise temperature scaling", ClassWiseTemperatureScaling()),
    "CTS Γ=bayes": (
        "class-wise temperature scaling, shrunk towards a common mean",
        ClassWiseTemperatureScaling(gamma="bayes"),
    ),
}
_BY_GROUP = "CTS by group"
# Key of a candidate of AutoCalibrator -> description
_CANDIDATES = {
    IDENTITY: "the uncalibrated model",
    "TS": "temperature scaling",
    "CTS bayes": "class-wise temperatures shrunk towards a common mean",
    "TS, class-wise Platt": "temperature scaling followed by class-wise Platt scaling",
    "TS, class-wise Platt, VS, class-wise Platt": (
        "temperature scaling, class-wise Platt scaling, vector scaling that preserves decisions, and "
        "class-wise Platt scaling again"
    ),
    "VS, CTS bayes": "vector scaling that preserves decisions, followed by class-wise temperatures",
    "VS, class-wise Platt": "vector scaling that preserves decisions, followed by class-wise Platt scaling",
    "MS with curves": "matrix scaling with a curve per class that preserves decisions",
    "spline": "a spline of the log-odds that preserves decisions",
    "isotonic": "isotonic regression that preserves decisions",
}


def as_logits_file(
    data: LogitsFile | ArrayLike | None,
    labels: ArrayLike | None,
    groups: ArrayLike | None,
    probs: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
) -> LogitsFile:
    """Validate logits or probabilities with labels and groups, and return them as a LogitsFile.

    If `data` is a LogitsFile, it is returned unchanged unless `groups` are passed. They then replace the
    groups of the evaluated rows, and other rows lose their groups.
    """
    if isinstance(data, LogitsFile):
        if probs is not None:
            raise ValueError("probs must be left out if data is a LogitsFile, got both; pass one of them")
        if labels is not None:
            raise ValueError(
                "labels must be left out if data is a LogitsFile, got both; omit labels, since the file "
                "contains them"
            )
        return data if groups is None else _with_groups(data, groups)
    probs = two_columns(probs, labels, class_names)
    scores, _ = one_of(data, probs)
    columns, p, floor = column_names(scores), None, None
    names = None if columns is None else class_names_of(columns)
    if probs is None:
        z = check_logits(scores)
    else:
        p = check_probs(scores)
        floor = probability_floor(p)
        z = log_probs(p, floor)
    labels = labels_by_number(labels, columns, class_names)
    if class_names is not None:
        names = check_names(class_names, z.shape[1])
    y = check_labels(
        labels, n_rows=len(z), n_classes=z.shape[1], class_names=names, names_remedy=NAME_COLUMNS
    )
    g = None if groups is None else check_groups(groups, n_rows=len(z))
    return LogitsFile(Split(z, y, g, probs=p, prob_floor=floor), None, names, "")


def collect_data(
    data: LogitsFile,
    *,
    class_names: ArrayLike | None = None,
    train_counts: ArrayLike | None = None,
    has_groups: bool = False,
    n_bins: int = 15,
    max_noise: float | None = None,
    title: str | None = None,
    rng: np.random.Generator | int = 0,
) -> ReportData:
    """Compute all numbers of a report; parameters as in :func:`hetcal.make_report`.

    `has_groups` tells whether the groups in `data` were passed as an argument.
    """
    seed, judged = _seed(rng), data.judged
    passed = _passed(data, class_names, train_counts, has_groups=has_groups, title=title)
    names = check_names(data.class_names if class_names is None else class_names, judged.logits.shape[1])
    options: dict[str, Any] = {"n_bins": n_bins, "n_redraws": _N_REDRAWS, "rng": seed}
    scores: dict[str, Any] = dict(judged.scores)
    diagnosis = diagnose(
        labels=judged.labels, train_counts=train_counts, class_names=names, **scores, **options
    )
    with collect_warnings() as notes:
        auto = _recommend(data)
        methods = _compare(data, auto, names, options)
        path = _gamma_path(data.val)
        uncalibrated = Identity().fit(labels=judged.labels, **scores).predict_proba(**scores)
    before, after = (reduce_to_top_label(probs, judged.labels) for probs in (uncalibrated, auto.probs))
    return ReportData(
        title=title or str(data.about.get("title") or Path(data.path).stem or "Calibration report"),
        about=str(data.about.get("text", "")),
        names=tuple(names),
        overall=_overall(before),
        methods=methods,
        chosen=auto.calibrator.best_name_,
        has_final_step=auto.calibrator.has_final_step_,
        candidates=auto.candidates(),
        decision_cost=auto.calibrator.decision_cost_,
        diagnosis=diagnosis,
        sensitivity=_sensitivity(judged, max_noise),
        diagnosis_after=diagnose(probs=auto.probs, labels=judged.labels, class_names=names, **options),
        cells=class_cells(before, n_bins, "width"),
        cells_after=class_cells(after, n_bins, "width"),
        gap_noise=_gap_noise(before),
        path=path,
        groups=_by_group(judged.groups, before, after, options),
        training=_training(train_counts, diagnosis),
        settling=_settling(diagnosis),
        settings=_settings(data, n_bins, seed, max_noise, passed),
        notes=tuple(dict.fromkeys(notes)),
    )


def _seed(rng: np.random.Generator | int) -> int:
    """Return a seed that the report can print: `rng` itself, or a number drawn from a generator."""
    if isinstance(rng, int | np.integer) and not isinstance(rng, bool) and rng >= 0:
        return int(rng)
    return int(as_generator(rng).integers(1 << 32))


def _with_groups(data: LogitsFile, groups: ArrayLike) -> LogitsFile:
    g = check_groups(groups, n_rows=len(data.judged.labels))
    if data.test is None:
        return replace(data, val=replace(data.val, groups=g))
    return replace(data, val=replace(data.val, groups=None), test=replace(data.test, groups=g))


@dataclass(frozen=True, eq=False)
class _Recommended:
    """The recommended calibrator, and calibrated probabilities (n, K) of the evaluated rows.

    Without test rows, the probabilities come from cross-fitting.
    """

    calibrator: AutoCalibrator
    probs: FloatArray

    def candidates(self) -> tuple[dict[str, Any], ...]:
        """Candidates of the calibrator, with their scores, weights and descriptions."""
        table: list[dict[str, Any]] = self.calibrator.candidates_
        return tuple(row | {"meaning": _CANDIDATES.get(row["name"], "")} for row in table)

    def meaning(self) -> str:
        """One-line description of the recommended calibrator."""
        largest, *others = leading_candidates(self.candidates())
        name = largest["meaning"] or largest["name"]
        final = FINAL_STEP if self.calibrator.has_final_step_ else ""
        if not others:
            return f"{name}{final}, selected by cross-validated likelihood"
        count = count_members(self.calibrator.candidates_)
        return f"a weighted mean of {count} calibrators{final}; {share(largest['weight'])} is {name}"


def _recommend(data: LogitsFile) -> _Recommended:
    val, test = data.val, data.test
    fitted = AutoCalibrator().fit(val.logits, val.labels, fold_groups=val.fold_groups)
    if test is not None:
        warn_fitted_rows(fitted._fitted_share(test.logits, None, test.labels, None))
        return _Recommended(fitted, np.asarray(fitted.predict_proba(test.logits)))
    fold_groups = check_fold_groups(val.fold_groups, len(val.labels), slice(None))
    source = MemorySource(prepare(val.logits, val.labels, None), fold_groups=fold_groups)
    return _Recommended(fitted, compare.cross_fit(AutoCalibrator(), source))


def _compare(
    data: LogitsFile, auto: _Recommended, names: list[str], options: dict[str, Any]
) -> tuple[MethodRow, ...]:
    """Rows of the comparison, with the recommended calibrator last."""
    val, test, judged = data.val, data.test, data.judged
    auto_evaluation = evaluate(auto.probs, judged.labels, names, **options)
    options = options | {"class_names": names, "fold_groups": val.fold_groups, "uncalibrated": judged.probs}
    if test is not None:
        options |= {"test_logits": test.logits, "test_labels": test.labels}
    methods = {name: method for name, (_, method) in _METHODS.items()}
    if val.logits.size > _MAX_VS_LOGITS:
        methods.pop("VS", None)
        emit(_NO_VS.format(*val.logits.shape))  # warnings become notes of the report
    rows = list(compare.compare(val.logits, val.labels, methods=methods, **options).rows)
    if val.groups is not None and (test is None or _all_fitted(test.groups, val.groups)):
        options |= {"groups": val.groups, "test_groups": None if test is None else test.groups}
        by_group = {_BY_GROUP: ClassWiseTemperatureScaling()}
        rows += compare.compare(val.logits, val.labels, methods=by_group, **options).rows
    meanings = {name: meaning for name, (meaning, _) in _METHODS.items()}
    meanings[_BY_GROUP] = "one temperature per group"
    changed = float(np.mean(auto.probs.argmax(axis=1) != judged.logits.argmax(axis=1)))
    return (
        *(MethodRow(r.name, meanings[r.name], r.evaluation, r.changed) for r in rows),
        MethodRow("Auto", auto.meaning(), auto_evaluation, changed),
    )


def _all_fitted(groups: NDArray[Any] | None, fitted: NDArray[Any]) -> bool:
    """Whether all `groups` of the evaluated rows occur in the groups `fitted`; False if `groups` is None."""
    return groups is not None and bool(np.isin(groups, fitted).all())


def _overall(top: TopLabel) -> Overall:
    pooled = replace(top, predicted=np.zeros_like(top.predicted), n_classes=1)
    gap, low, high = (float(a[0]) for a in gap_bounds(pooled, _LEVEL))
    return Overall(float(top.confidence.mean(dtype=np.float64)), float(top.correct.mean()), gap, low, high)


def _gap_noise(top: TopLabel) -> Float:
    """Half-width (K,) of the range around 0 in which the gap of a calibrated class lies with probability 95%.

    The distribution of the gap is approximated by a normal distribution. The half-width is nan for a class
    that is never predicted.
    """
    p = top.confidence.astype(np.float64)
    n = np.bincount(top.predicted, minlength=top.n_classes)
    variance = group_sum(top.predicted, p * (1 - p), top.n_classes)
    return np.asarray(special.ndtri((1 + _LEVEL) / 2) * np.sqrt(variance) / np.where(n > 0, n, np.nan))


def _gamma_path(val: Split) -> GammaPath:
    """Fit class-wise temperatures for Γ = 0, for up to `_STEPS` positive finite values of Γ, and for Γ = inf.

    The largest of the finite values constrains only a few classes.
    """
    rows = prepare(val.logits, val.labels, None)
    source = MemorySource(rows)
    low, high = bounds = ClassWiseTemperatureScaling().alpha_bounds
    shared, separate = fit_path(source, (0.0, np.inf), bounds)
    n_fit = source.counts()
    at_bound = (n_fit > 0) & ((separate.alpha <= low * 1.001) | (separate.alpha >= high * 0.999))
    finite = (n_fit > 0) & ~at_bound
    distance = np.abs(separate.alpha - shared.alpha0)[finite]
    reach = float(np.quantile(distance, _UNCONSTRAINED)) if finite.any() else 0.0
    grid = np.linspace(0, reach, _STEPS + 1)[1:] if reach > 0 else np.empty(0)
    fits = [shared, *fit_path(source, grid, bounds), separate]
    chosen = fit_cross_validated(source, bounds, ClassWiseTemperatureScaling().cv).gamma
    return GammaPath(
        gamma=np.array([0.0, *grid, np.inf]),
        alpha=np.stack([fit.alpha for fit in fits]),
        alpha0=np.array([fit.alpha0 for fit in fits]),
        n_fit=n_fit,
        at_bound=at_bound,
        chosen=float(chosen),
    )


def _by_group(
    groups: NDArray[Any] | None, before: TopLabel, after: TopLabel, options: dict[str, Any]
) -> tuple[GroupRow, ...]:
    if groups is None:
        return ()
    labels, ids = np.unique(groups, return_inverse=True)
    columns_before = _group_columns(before, ids.astype(np.int64), len(labels), options)
    columns_after = _group_columns(after, ids.astype(np.int64), len(labels), options)
    rows = []
    for i, label in enumerate(labels):
        values = {key: column[i].item() for key, column in columns_before.items()}
        values |= {f"{key}_after": columns_after[key][i].item() for key in ("ece", "floor")}
        rows.append(GroupRow(name=str(label), **values))
    return tuple(rows)


def _group_columns(
    top: TopLabel, ids: IntArray, n_groups: int, options: dict[str, Any]
) -> dict[str, NDArray[Any]]:
    """Metrics of :class:`GroupRow`, (n_groups,) each, computed as if the groups were predicted classes."""
    sliced = replace(top, predicted=ids, n_classes=n_groups)
    table = class_cells(sliced, options["n_bins"], "width")
    n = table.count.sum(axis=1)
    gap, low, high = gap_bounds(sliced, _LEVEL)
    floor = floor_of(sliced, **options)
    return {
        "n": n.astype(np.int64),
        "accuracy": table.correct.sum(axis=1) / n,
        "confidence": table.confidence.sum(axis=1) / n,
        "signed_gap": gap,
        "gap_low": low,
        "gap_high": high,
        "ece": calibration_error(table.count, table.residual),
        "floor": np.asarray(floor.mean["class_ece"]),
    }


def _training(train_counts: ArrayLike | None, diagnosis: Diagnosis) -> Training | None:
    if train_counts is None:
        return None
    counts = np.asarray(train_counts, np.float64)
    predicted = [c for c in diagnosis.classes if c.n > 0]
    rows, gap = counts[[c.index for c in predicted]], np.array([c.signed_gap for c in predicted])
    if len(predicted) < 3 or np.ptp(rows) == 0 or np.ptp(gap) == 0:
        return Training(counts, np.nan, np.nan)
    correlation = stats.spearmanr(rows, gap)
    return Training(counts, float(correlation.statistic), float(correlation.pvalue))


def _settling(diagnosis: Diagnosis) -> Settling:
    """Additional rows for verdicts on the undecided classes, if each class keeps its share of predictions."""
    undecided = [c for c in diagnosis.classes if c.kind == Verdict.TOO_FEW_ROWS]
    additional = np.sort([c.rows_needed * diagnosis.n / c.n for c in undecided if c.n > 0])
    rows = {}
    if additional.size:
        index = {name: int(np.ceil(fraction * additional.size)) - 1 for name, fraction in _SETTLED.items()}
        rows = {name: round_up(additional[i]) for name, i in index.items()}
    return Settling(len(undecided), len(undecided) - int(additional.size), rows)


def _sensitivity(judged: Split, max_noise: float | None) -> Sensitivity | None:
    """How the verdicts depend on wrong labels; None if `max_noise` is None."""
    if max_noise is None:
        return None
    scores: dict[str, Any] = dict(judged.scores)
    return sensitivity(labels=judged.labels, max_rate=max_noise, **scores)


def _passed(
    data: LogitsFile,
    class_names: ArrayLike | None,
    train_counts: ArrayLike | None,
    *,
    has_groups: bool,
    title: str | None,
) -> tuple[str, ...]:
    """Names of the optional arguments that were passed and that describe the data."""
    passed = {
        # The names that are passed with arrays become those of the data.
        "class_names": class_names is not None
        and (not data.path or not np.array_equal(class_names, data.class_names or [])),
        "train_counts": train_counts is not None,
        "groups": has_groups,
        "title": title is not None,
    }
    return tuple(name for name, is_passed in passed.items() if is_passed)


def _settings(
    data: LogitsFile, n_bins: int, seed: int, max_noise: float | None, arguments: tuple[str, ...]
) -> Settings:
    versions = {"hetcal": _version.__version__, "python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in ("numpy", "scipy", "scikit-learn")}
    (scores,) = data.judged.scores
    return Settings(
        source=Path(data.path).name or f"an array of {_SCORES[scores]}",
        scores=scores,
        from_file=bool(data.path),
        embedded=Path(data.path).parent == Path(str(resources.files("hetcal.examples"))),
        n_fit=len(data.val.labels),
        n_judged=len(data.judged.labels),
        n_bins=n_bins,
        n_redraws=_N_REDRAWS,
        seed=seed,
        max_noise=max_noise,
        file_arguments=data.passed,
        cross_fitted=data.test is None,
        arguments=arguments,
        versions=versions,
    )
