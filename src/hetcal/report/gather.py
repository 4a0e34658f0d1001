"""Logits to the numbers of a report: diagnose, compare, follow the temperatures over Γ."""

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
from hetcal._columns import class_names_of, column_names, labels_by_number
from hetcal._numeric.probabilities import log_probs, probability_floor
from hetcal._numeric.rows import prepare
from hetcal._numeric.source import MemorySource
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
from hetcal._warnings import collect_warnings, emit, quiet, warn_fitted_rows
from hetcal.calibrators import (
    AutoCalibrator,
    ClassWiseTemperatureScaling,
    Identity,
    TemperatureScaling,
    VectorScaling,
)
from hetcal.diagnosis import TOO_FEW, Diagnosis, diagnose
from hetcal.files import LogitsFile, Split
from hetcal.metrics import evaluate
from hetcal.metrics.floors import floor_of
from hetcal.metrics.intervals import gap_bounds
from hetcal.metrics.reliability import TopLabel, calibration_error, group_sum, reduce_to_top_label
from hetcal.metrics.scores import class_cells
from hetcal.report.data import (
    GammaPath,
    GroupRow,
    MethodRow,
    Overall,
    ReportData,
    Settings,
    Settling,
    Training,
)
from hetcal.stacks import behind, count_text, leading, share_text

__all__ = ["as_logits_file", "collect"]


_STEPS = 14  # values of Γ between 0 and inf
_MOST = 0.97  # share of the classes whose own optimum the largest finite Γ reaches
_LEVEL = 0.95
_REDRAWS = 200
_SETTLED = {"half": 0.5, "most": 0.9, "all": 1.0}
_LARGE = 10_000_000  # numbers to fit on above which vector scaling takes minutes
_NO_VS = "vector scaling was left out: with {:,} classes it takes minutes; hetcal fit --method vs does it"
_METHODS: dict[str, tuple[str, Any]] = {
    "Uncal": ("as the model gives them", Identity()),
    "TS": ("temperature scaling: one temperature", TemperatureScaling()),
    "VS": ("vector scaling: a scale and a bias per class", VectorScaling()),
    "CTS": ("a temperature per predicted class", ClassWiseTemperatureScaling()),
    "CTS Γ=bayes": ("the same, drawn to a common mean", ClassWiseTemperatureScaling(gamma="bayes")),
}
_CHOICES = {
    "Identity": "the model as it is",
    "TS": "temperature scaling",
    "CTS bayes": "class-wise temperatures, drawn to a common mean",
    "TS, Platt": "temperature scaling, followed by Platt scaling of the confidence",
    "TS, class-wise Platt": "temperature scaling, followed by Platt scaling class by class",
    "VS": "vector scaling that keeps decisions",
    "VS, CTS bayes": "vector scaling that keeps decisions, followed by class-wise temperatures",
    "VS, class-wise Platt": "vector scaling that keeps decisions, followed by Platt scaling class by class",
}


def as_logits_file(
    data: LogitsFile | ArrayLike | None,
    labels: ArrayLike | None,
    groups: ArrayLike | None,
    probs: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
) -> LogitsFile:
    """Logits or probabilities, labels and groups as they would come from a file, checked.

    Groups given beside a file replace those of the rows that are judged.
    """
    if isinstance(data, LogitsFile):
        if probs is not None:
            raise ValueError("probs must be left out for a LogitsFile, which has its own, got both")
        if labels is not None:
            raise ValueError("labels must be left out for a LogitsFile, which has its own, got both")
        return data if groups is None else _with_groups(data, groups)
    given, _ = one_of(data, probs)
    columns, p, floor = column_names(given), None, None
    names = None if columns is None else class_names_of(columns)
    if probs is None:
        z = check_logits(given)
    else:
        p = check_probs(given)
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


def collect(
    data: LogitsFile,
    *,
    class_names: ArrayLike | None = None,
    train_counts: ArrayLike | None = None,
    n_bins: int = 15,
    title: str | None = None,
    rng: np.random.Generator | int = 0,
) -> ReportData:
    """Compute all numbers of a report; parameters as in :func:`hetcal.make_report`."""
    seed, judged = _seed(rng), data.judged
    names = check_names(data.class_names if class_names is None else class_names, judged.logits.shape[1])
    options: dict[str, Any] = {"n_bins": n_bins, "n_redraws": _REDRAWS, "rng": seed}
    scores: dict[str, Any] = dict(judged.scores)
    diagnosis = diagnose(
        labels=judged.labels, train_counts=train_counts, class_names=names, **scores, **options
    )
    with collect_warnings() as notes:
        auto = _recommend(data)
        methods = _compare(data, auto, names, options)
        path = _follow_gamma(data.val)
        plain = Identity().fit(labels=judged.labels, **scores).predict_proba(**scores)
    before, after = (reduce_to_top_label(probs, judged.labels) for probs in (plain, auto.probs))
    return ReportData(
        title=title or str(data.about.get("title") or Path(data.path).stem or "Calibration report"),
        about=str(data.about.get("text", "")),
        names=tuple(names),
        overall=_overall(before),
        methods=methods,
        chosen=auto.calibrator.best_name_,
        candidates=auto.candidates(),
        diagnosis=diagnosis,
        diagnosis_after=diagnose(probs=auto.probs, labels=judged.labels, class_names=names, **options),
        cells=class_cells(before, n_bins, "width"),
        cells_after=class_cells(after, n_bins, "width"),
        gap_noise=_gap_noise(before),
        path=path,
        groups=_by_group(judged.groups, before, after, options),
        training=_training(train_counts, diagnosis),
        settling=_settling(diagnosis),
        settings=_settings(data, n_bins, seed, _options(data, class_names, train_counts)),
        notes=tuple(dict.fromkeys(notes)),
    )


def _seed(rng: np.random.Generator | int) -> int:
    """Return a seed that can be written down, drawn from the generator where that is given."""
    if isinstance(rng, int | np.integer) and rng >= 0:
        return int(rng)
    return int(as_generator(rng).integers(1 << 32))


def _with_groups(data: LogitsFile, groups: ArrayLike) -> LogitsFile:
    g = check_groups(groups, n_rows=len(data.judged.labels))
    if data.test is None:
        return replace(data, val=replace(data.val, groups=g))
    return replace(data, val=replace(data.val, groups=None), test=replace(data.test, groups=g))


@dataclass(frozen=True, eq=False)
class _Recommended:
    """The recommended calibrator, fitted on all rows to fit on, and what it gives for the rows to judge."""

    calibrator: AutoCalibrator
    probs: FloatArray

    def candidates(self) -> tuple[dict[str, Any], ...]:
        """Candidates with their scores and what they are."""
        table: list[dict[str, Any]] = self.calibrator.candidates_
        return tuple(row | {"meaning": _CHOICES.get(row["name"], "")} for row in table)

    def meaning(self) -> str:
        """What it is, in a line."""
        first, *others = leading(self.candidates())
        heaviest = first["meaning"] or first["name"]
        if not others:
            return f"by cross-validated likelihood: {heaviest}"
        count = count_text(1 + len(others))
        after = behind(self.calibrator.best_name_)
        return f"a weighted mean of {count} calibrators{after}; {share_text(first['weight'])} is {heaviest}"


def _recommend(data: LogitsFile) -> _Recommended:
    val, test = data.val, data.test
    fitted = AutoCalibrator().fit(val.logits, val.labels, fold_groups=val.fold_groups)
    if test is not None:
        warn_fitted_rows(fitted._fitted_share(test.logits, None, test.labels, None))
        return _Recommended(fitted, np.asarray(fitted.predict_proba(test.logits)))
    together = check_fold_groups(val.fold_groups, len(val.labels), slice(None))
    rows = MemorySource(prepare(val.logits, val.labels, None), fold_groups=together)
    return _Recommended(fitted, compare.cross_fit(AutoCalibrator(), rows))


def _compare(
    data: LogitsFile, auto: _Recommended, names: list[str], options: dict[str, Any]
) -> tuple[MethodRow, ...]:
    """Rows of the comparison, the recommended one last."""
    val, test, judged = data.val, data.test, data.judged
    last = evaluate(auto.probs, judged.labels, names, **options)
    options = options | {"class_names": names, "fold_groups": val.fold_groups, "uncalibrated": judged.probs}
    if test is not None:
        options |= {"test_logits": test.logits, "test_labels": test.labels}
    methods = {name: method for name, (_, method) in _METHODS.items()}
    if val.logits.size > _LARGE:
        methods.pop("VS", None)
        emit(_NO_VS.format(len(names)))  # for the notes of the page
    rows = list(compare.compare(val.logits, val.labels, methods=methods, **options).rows)
    if val.groups is not None and (test is None or _known(test.groups, val.groups)):
        options |= {"groups": val.groups, "test_groups": None if test is None else test.groups}
        by_group = {"CTS by group": ClassWiseTemperatureScaling()}
        rows += compare.compare(val.logits, val.labels, methods=by_group, **options).rows
    meanings = {name: meaning for name, (meaning, _) in _METHODS.items()}
    meanings["CTS by group"] = "a temperature per group"
    changed = float(np.mean(auto.probs.argmax(axis=1) != judged.logits.argmax(axis=1)))
    return (
        *(MethodRow(r.name, meanings[r.name], r.evaluation, r.changed) for r in rows),
        MethodRow("Auto", auto.meaning(), last, changed),
    )


def _known(groups: NDArray[Any] | None, fitted: NDArray[Any]) -> bool:
    """Whether every group to judge was seen in the rows to fit on."""
    return groups is not None and bool(np.isin(groups, fitted).all())


def _overall(top: TopLabel) -> Overall:
    whole = replace(top, predicted=np.zeros_like(top.predicted), n_classes=1)
    gap, low, high = (float(a[0]) for a in gap_bounds(whole, _LEVEL))
    return Overall(float(top.confidence.mean(dtype=np.float64)), float(top.correct.mean()), gap, low, high)


def _gap_noise(top: TopLabel) -> Float:
    """Half width of the 95% range of a class's gap when its confidences are right (normal approximation)."""
    p = top.confidence.astype(np.float64)
    n = np.bincount(top.predicted, minlength=top.n_classes)
    variance = group_sum(top.predicted, p * (1 - p), top.n_classes)
    return np.asarray(special.ndtri((1 + _LEVEL) / 2) * np.sqrt(variance) / np.where(n > 0, n, np.nan))


def _follow_gamma(val: Split) -> GammaPath:
    """Class-wise temperatures on a grid of Γ that ends where nearly every class is free, and at inf."""

    def fit(gamma: float | str) -> ClassWiseTemperatureScaling:
        return ClassWiseTemperatureScaling(gamma=gamma).fit(val.logits, val.labels)  # type: ignore[arg-type]

    with quiet():  # the comparison has warned already
        free, single = fit(np.inf), fit(0.0)
        low, high = free.alpha_bounds
        at_bound = (free.n_samples_ > 0) & ((free.alpha_ <= low * 1.001) | (free.alpha_ >= high * 0.999))
        own = (free.n_samples_ > 0) & ~at_bound
        away = np.abs(free.alpha_ - single.alpha0_)[own]
        reach = float(np.quantile(away, _MOST)) if own.any() else 0.0
        middle = np.linspace(0, reach, _STEPS + 1)[1:] if reach > 0 else np.empty(0)
        fits = [single, *(fit(float(g)) for g in middle), free]
        chosen = fit("cv").gamma_
    return GammaPath(
        gamma=np.array([0.0, *middle, np.inf]),
        alpha=np.stack([f.alpha_ for f in fits]),
        alpha0=np.array([f.alpha0_ for f in fits]),
        n_fit=free.n_samples_,
        at_bound=at_bound,
        chosen=float(chosen),
    )


def _by_group(
    groups: NDArray[Any] | None, before: TopLabel, after: TopLabel, options: dict[str, Any]
) -> tuple[GroupRow, ...]:
    if groups is None:
        return ()
    labels, ids = np.unique(groups, return_inverse=True)
    first = _group_columns(before, ids.astype(np.int64), len(labels), options)
    second = _group_columns(after, ids.astype(np.int64), len(labels), options)
    rows = []
    for i, label in enumerate(labels):
        values = {key: column[i].item() for key, column in first.items()}
        values |= {f"{key}_after": second[key][i].item() for key in ("ece", "floor")}
        rows.append(GroupRow(name=str(label), **values))
    return tuple(rows)


def _group_columns(
    top: TopLabel, ids: IntArray, n_groups: int, options: dict[str, Any]
) -> dict[str, NDArray[Any]]:
    """Numbers of every group, named as in GroupRow: a group takes the place of a predicted class."""
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
    seen = [c for c in diagnosis.classes if c.n > 0]
    rows, gap = counts[[c.index for c in seen]], np.array([c.signed_gap for c in seen])
    if len(seen) < 3 or np.ptp(rows) == 0 or np.ptp(gap) == 0:
        return Training(counts, np.nan, np.nan)
    found = stats.spearmanr(rows, gap)
    return Training(counts, float(found.statistic), float(found.pvalue))


def _settling(diagnosis: Diagnosis) -> Settling:
    """Further rows that bring the undecided classes what they need, at their present share of predictions."""
    undecided = [c for c in diagnosis.classes if c.kind == TOO_FEW]
    more = np.sort([c.rows_needed * diagnosis.n / c.n for c in undecided if c.n > 0])
    rows = {}
    if more.size:
        rows = {name: _round(more[int(np.ceil(share * more.size)) - 1]) for name, share in _SETTLED.items()}
    return Settling(len(undecided), len(undecided) - int(more.size), rows)


def _round(rows: float) -> int:
    """Up to two leading digits: the number is an estimate and should look like one."""
    step = 10 ** max(0, len(str(int(rows))) - 2)
    return int(-(-rows // step) * step)


def _options(
    data: LogitsFile, class_names: ArrayLike | None, train_counts: ArrayLike | None
) -> tuple[str, ...]:
    """Options of the command line that stand for what was given beside the file."""
    named = class_names is not None and not np.array_equal(class_names, data.class_names or [])
    given = {"--classes names.txt": named, "--train-counts counts.csv": train_counts is not None}
    return tuple(text for text, used in given.items() if used)


def _settings(data: LogitsFile, n_bins: int, seed: int, options: tuple[str, ...]) -> Settings:
    versions = {"hetcal": _version.__version__, "python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in ("numpy", "scipy", "scikit-learn")}
    return Settings(
        source=Path(data.path).name or "an array of logits",
        from_file=bool(data.path),
        embedded=Path(data.path).parent == Path(str(resources.files("hetcal.examples"))),
        n_fit=len(data.val.labels),
        n_judged=len(data.judged.labels),
        n_bins=n_bins,
        seed=seed,
        cross_fitted=data.test is None,
        options=options,
        versions=versions,
    )
